"""One ledger, from its task to its write quorum (rules 20, 21, 23, 24).

    the metadata now            no such ledger: done
    who of the task is gone     a bookie that is registered again, and is not drained, is not
    who of it is damaged        a bookie that has read what it has, and found it sound, is not
    fragments that name them    copy what they held to others and name these       ``repair.core.repair``
    the open last fragment      wait for its writer to replace them, if he can; then look again, recover,
                                start over
    every other copy            bookies that live are asked what they have, and given what they lack
                                (``ledger.core.comparison``); the task stays while one of them does not know
                                what it has, since it is in limbo, or does not say

and that again, on the metadata as it then is, until there is nothing to do. So whatever happens meanwhile (a
writer rolls on, a second bookie dies, an operator deletes the ledger, a bookie returns) is met by the next
look. Nothing is remembered between looks but since when an open fragment has been seen with its lost bookie.

The last step is what finds entries that their writer left below the write quorum: the plain mode acknowledges
and closes at the ack quorum, and a bookie whose connection broke just then lacks what was on its way to it.

**One bookie's entries that nobody has do not hold up another's**: the lost ones of a fragment are replaced
together, and where some entry of theirs cannot be had, one by one. Of three that are lost one may be whole.

**What is left undone** comes back as a ``Verdict`` with the reason, for people to read and for the worker to
try again, and with the task as it stands: a bookie that is back is not among the lost ones any more. Only
bugs are raised from here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence

import attrs
import trio

from ledgerlog.errors import (
    BookieUnavailable,
    EntryCorrupt,
    EntryNotFound,
    EntryUnavailable,
    LedgerLogError,
    LedgerNotFound,
    MetadataError,
    NotEnoughBookies,
    RecoveryFailed,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.copies import compare_lists
from ledgerlog.ledger.core.comparison import FaultKind
from ledgerlog.ledger.core.copies import CopyFault
from ledgerlog.ledger.core.ranges import RangeSet
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.recovery import recover_ledger
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.missing import shares
from ledgerlog.model.repair import RepairTask
from ledgerlog.repair.copying import Copying
from ledgerlog.repair.core.audit import named_bookies
from ledgerlog.repair.core.repair import Finding, FragmentRepair, Work, survey
from ledgerlog.repair.queue import Board

__all__ = ["LedgerRepair", "Verdict"]

logger = logging.getLogger(__name__)


_UNSOUND_S = 300.0
"""A bookie that did not find its copy of a ledger sound is asked to read it again after this."""

_RANGES_SAID = 20
"""More are not written out."""


@attrs.frozen
class Verdict:
    """What became of a task."""

    trouble: str | None = None
    """Why it is not done; None where it is."""
    again_in_s: float | None = None
    """When it is worth trying again; None leaves that to the worker."""
    task: RepairTask | None = None
    """The task as it stands now, with the trouble in it; None where it is done."""

    @property
    def is_done(self) -> bool:
        return self.trouble is None


DONE = Verdict()


@attrs.define(eq=False)
class _Attempt:
    """One attempt at a task, and what it has learnt."""

    task: RepairTask
    named: frozenset[BookieId] | None = None
    """Whom the ledger names; None before the first look."""
    gone: set[BookieId] | None = None
    """See ``_gone``; None before the first look."""
    damaged: frozenset[BookieId] | None = None
    """See ``_damaged``; None before it was looked at."""
    incomplete: set[BookieId] | None = None
    """Who lacks entries, or may; None before bookies were asked what they have."""
    unsteady: set[BookieId] = attrs.Factory(set)
    """Lost bookies that were back and do not answer."""
    stuck: dict[tuple[int, BookieId], str] = attrs.Factory(dict)
    """Places in fragments, by their first entries, that could not be given to anybody now, and why."""
    one_by_one: set[int] = attrs.Factory(set)
    """Fragments, by their first entries, whose lost bookies cannot all be replaced together."""

    def stands(self, trouble: str) -> RepairTask:
        """The task as it stands: what it named and is not so any more is gone from it."""
        task = self.task
        lost = task.lost if self.gone is None else sorted({*self.gone, *self.unsteady})
        damaged = task.damaged if self.damaged is None else sorted(self.damaged)
        incomplete = task.incomplete if self.incomplete is None else sorted(self.incomplete)
        lost, damaged, incomplete = (
            tuple(bookie for bookie in bookies if self.named is None or bookie in self.named)
            for bookies in (lost, damaged, incomplete)
        )
        return attrs.evolve(task, lost=lost, damaged=damaged, incomplete=incomplete).troubled(trouble)

    def reasons(self) -> list[str]:
        """Why places are left, each once."""
        return list(dict.fromkeys(self.stuck.values()))


class LedgerRepair:
    """Works on one ledger at a time; what it keeps is about ledgers that wait."""

    def __init__(self, client: LedgerClient, board: Board, copying: Copying) -> None:
        self._client = client
        self._board = board
        self._copying = copying
        self._registry = LedgerRegistry(client.store, client.environment)
        self._seen: dict[int, tuple[tuple[BookieId, ...], float]] = {}
        """Open last ensembles that named a lost bookie, and since when that has been seen."""
        self._unsound: dict[tuple[int, BookieId], float] = {}
        """When bookies have read what they have of a ledger, and not found it sound."""

    def keep_only(self, ledger_ids: Collection[int]) -> None:
        """Forget what was seen of all other ledgers: somebody else has repaired them."""
        self._seen = {e: seen for e, seen in self._seen.items() if e in ledger_ids}
        self._unsound = {key: at for key, at in self._unsound.items() if key[0] in ledger_ids}

    async def make_anew(self, ledger_id: int) -> None:
        """Replace a task whose record is damaged. Nobody knows whom it named: it names whoever of the ledger
        is not there now, which costs a copy too many at most. The rest is seen when it is worked on."""
        found = await self._registry.find(ledger_id)
        named = frozenset[BookieId]() if found is None else named_bookies(found[0])
        lost = [bookie for bookie in named if not await self._board.is_registered(bookie)]
        await self._board.post(ledger_id, lost=lost)

    async def run(self, task: RepairTask, *, grace_s: float, say: Callable[[str], None]) -> Verdict:
        """Do what there is to do about the task's ledger. ``say`` is told what is going on."""
        attempt = _Attempt(task)
        try:
            verdict = await self._run(attempt, grace_s, say)
        except LedgerNotFound:
            verdict = DONE  # It was deleted while we worked: nobody misses a copy.
        except LedgerLogError as trouble:
            verdict = Verdict(_words(trouble))
        if verdict.trouble is None:
            self._seen.pop(task.ledger_id, None)
            return verdict
        return attrs.evolve(verdict, task=attempt.stands(verdict.trouble))

    async def _run(self, attempt: _Attempt, grace_s: float, say: Callable[[str], None]) -> Verdict:
        task = attempt.task
        while True:
            await self._copying.pacer.wait_resumed()
            found = await self._registry.find(task.ledger_id)
            if found is None:
                return DONE
            metadata, version = found
            attempt.named = named_bookies(metadata)
            draining, undecided = await self._board.requests()
            attempt.gone = gone = await self._gone(metadata, task, draining)
            if attempt.damaged is None:
                attempt.damaged = await self._damaged(metadata, task)
            damaged = attempt.damaged
            barred = {*gone, *draining, *undecided, *damaged}
            findings = survey(metadata, {*gone, *damaged})
            ready = [_not_stuck(finding, metadata, attempt) for finding in findings]
            to_do = next((finding for finding in ready if finding.lost), None)
            if to_do is not None:
                await self._repair_now(
                    metadata, version, to_do, attempt, barred=barred, serving={*draining, *damaged}, say=say
                )
                continue
            waiting = [f for f in findings if f.work is Work.RECOVER and not gone.isdisjoint(f.lost)]
            if not waiting:
                # Who is lost there again later leaves its writer the whole time again.
                self._seen.pop(task.ledger_id, None)
                return _together(attempt.reasons(), await self._complete(metadata, attempt, say))
            held_up = await self._what_holds_up_the_end(metadata, waiting[0], barred, grace_s)
            if held_up is None and await self._is_still_so(metadata, gone):
                say("recovery")
                logger.info(
                    "ledger=%d is recovered: its last fragment names %s, which its writer did not replace",
                    task.ledger_id,
                    ", ".join(waiting[0].lost),
                )
                held_up = await self._recover(metadata)
            if held_up is not None:
                return _together(attempt.reasons(), held_up)

    async def _gone(
        self, metadata: LedgerMetadata, task: RepairTask, draining: Collection[BookieId]
    ) -> set[BookieId]:
        """Of the bookies that the ledger names: those that are drained, and those of the task that are still
        not registered."""
        named = named_bookies(metadata)
        gone = {bookie for bookie in named if bookie in draining}
        for bookie in task.lost:
            if bookie in named and bookie not in gone and not await self._board.is_registered(bookie):
                gone.add(bookie)
        return gone

    async def _damaged(self, metadata: LedgerMetadata, task: RepairTask) -> frozenset[BookieId]:
        """Of the bookies that the task calls damaged, those that do not say, having read it all, that what
        they have of the ledger is sound: a bookie copies again by itself what rotted. One that has just read
        it is not asked to at each try."""
        damaged: set[BookieId] = set()
        for bookie in sorted(named_bookies(metadata).intersection(task.damaged)):
            key = metadata.ledger_id, bookie
            if trio.current_time() - self._unsound.get(key, -math.inf) >= _UNSOUND_S:
                if await self._copying.is_sound(metadata, bookie):
                    self._unsound.pop(key, None)
                    continue
                self._unsound[key] = trio.current_time()
            damaged.add(bookie)
        return frozenset(damaged)

    # --- fragments ----------------------------------------------------------------------------

    async def _repair_now(
        self,
        metadata: LedgerMetadata,
        version: int,
        finding: Finding,
        attempt: _Attempt,
        *,
        barred: Collection[BookieId],
        serving: Collection[BookieId],
        say: Callable[[str], None],
    ) -> None:
        """Give the lost bookies' places in a fragment to others, or note why that cannot be done now: the
        other fragments do not wait for it, since it may be for ever."""
        first = metadata.fragments[finding.fragment_index].first_entry
        if first in attempt.one_by_one:
            finding = attrs.evolve(finding, lost=finding.lost[:1])
        say(f"fragment {first}")
        try:
            await self._repair(metadata, version, finding, barred, serving)
        except (LedgerNotFound, MetadataError):
            raise
        except (EntryCorrupt, EntryNotFound, EntryUnavailable) as trouble:
            if len(finding.lost) > 1:
                attempt.one_by_one.add(first)
            else:
                attempt.stuck[first, finding.lost[0]] = _words(trouble)
        except LedgerLogError as trouble:
            attempt.stuck.update(((first, bookie), _words(trouble)) for bookie in finding.lost)

    async def _repair(
        self,
        metadata: LedgerMetadata,
        version: int,
        finding: Finding,
        avoid: Collection[BookieId],
        serving: Collection[BookieId],
    ) -> None:
        fragment = metadata.fragments[finding.fragment_index]
        staying = [bookie for bookie in fragment.ensemble if bookie not in finding.lost]
        chosen = self._choose(len(finding.lost), staying, {*avoid, *fragment.ensemble})
        core = FragmentRepair(
            metadata,
            version,
            finding.fragment_index,
            dict(zip(finding.lost, chosen, strict=False)),
            new_token=self._client.environment.new_token,
            avoid=sorted(avoid),
            serving=serving,
        )
        await self._copying.repair_fragment(core)
        logger.info(
            "ledger=%d fragment=%d: %s",
            metadata.ledger_id,
            fragment.first_entry,
            ", ".join(f"{new} has the place of {old}" for old, new in core.replacements.items()),
        )

    def _choose(
        self, count: int, staying: Collection[BookieId], barred: Collection[BookieId]
    ) -> list[BookieId]:
        """Bookies for so many lost ones; fewer where there are not enough, since some copies are better than
        none. NotEnoughBookies where there is not one."""
        for wanted in range(count, 0, -1):
            for even_doubtful in (False, True):
                try:
                    return self._client.bookies.choose(
                        wanted, beside=staying, exclude=barred, even_doubtful=even_doubtful
                    )
                except NotEnoughBookies as none_left:
                    failure = none_left
        raise failure

    # --- the open last fragment -----------------------------------------------------------------

    async def _what_holds_up_the_end(
        self, metadata: LedgerMetadata, finding: Finding, barred: Collection[BookieId], grace_s: float
    ) -> Verdict | None:
        """Why the ledger is not to be recovered now, None where it is.

        *Nobody could take a lost one's place.* Its writer cannot replace it then, and goes on with an ack
        quorum; to recover the ledger would stop him, for nothing, and keep him from making the next one.

        *Its last bookies that are there do not suffice to fence it.* Whether anything was written to the
        others, nothing at all included, they alone can tell: metadata says where a fragment begins and not
        whether it has an entry (rule 21 is about fragments whose end is known). A recovery could only stop
        a writer who may still reach them. So the ledger stays as it is, until they are back or an operator
        decides.

        *Its writer has time left*; it begins when neither of the others holds."""
        try:
            self._choose(1, [b for b in metadata.last_fragment.ensemble if b not in barred], barred)
        except NotEnoughBookies as trouble:
            self._seen.pop(metadata.ledger_id, None)
            return Verdict(_words(trouble))
        ensemble = metadata.last_fragment.ensemble
        there = [slot for slot, b in enumerate(ensemble) if await self._board.is_registered(b)]
        if not metadata.replication.covers(there):
            self._seen.pop(metadata.ledger_id, None)
            missing = ", ".join(b for slot, b in enumerate(ensemble) if slot not in there)
            return Verdict(
                f"it is not closed, and without {missing} nobody can tell where it ends: "
                f"{_decision(metadata)}"
            )
        wait_s = self._grace_left(metadata, grace_s)
        if wait_s > 0:
            return Verdict(f"its writer may still replace {', '.join(finding.lost)}", wait_s)
        return None

    def _grace_left(self, metadata: LedgerMetadata, grace_s: float) -> float:
        """How long its writer still has to change the last ensemble; a change starts it anew."""
        ensemble, now = metadata.last_fragment.ensemble, trio.current_time()
        seen = self._seen.get(metadata.ledger_id)
        if seen is None or seen[0] != ensemble:
            seen = self._seen[metadata.ledger_id] = ensemble, now
        return seen[1] + grace_s - now

    async def _is_still_so(self, metadata: LedgerMetadata, gone: Collection[BookieId]) -> bool:
        """Look again, behind a sync: whether the ledger is still not closed and names, last, the bookies that
        are still gone (rule 20)."""
        await self._client.store.sync()
        found = await self._registry.find(metadata.ledger_id)
        if found is None or found[0].is_closed or found[0].last_fragment != metadata.last_fragment:
            return False
        draining = await self._board.draining()
        for bookie in metadata.last_fragment.ensemble:
            if bookie in draining:
                return True
            if bookie in gone and not await self._board.is_registered(bookie):
                return True
        return False

    async def _recover(self, metadata: LedgerMetadata) -> Verdict | None:
        """Close it; what is in the way where that cannot be done now."""
        client = self._client
        try:
            await recover_ledger(
                metadata.ledger_id,
                registry=self._registry,
                directory=client.bookies,
                pool=client.pool,
                environment=client.environment,
            )
        except RecoveryFailed as trouble:
            return Verdict(f"{_words(trouble)}: {_decision(metadata)}")
        except (LedgerNotFound, MetadataError):
            raise
        except LedgerLogError as trouble:
            return Verdict(_words(trouble))
        return None

    # --- what bookies that live lack ------------------------------------------------------------

    async def _complete(
        self, metadata: LedgerMetadata, attempt: _Attempt, say: Callable[[str], None]
    ) -> Verdict:
        """Compare what each bookie should have with what it lists, and give it what it lacks."""
        task = attempt.task
        attempt.incomplete = incomplete = set[BookieId]()
        nowhere = RangeSet()
        silent: list[str] = []
        in_limbo: list[str] = []
        left: list[str] = []
        found: dict[BookieId, list[CopyFault]] = {}
        for fault in await compare_lists(self._client.pool, metadata):
            found.setdefault(fault.bookie, []).append(fault)
        for bookie, faults in sorted(found.items()):
            kinds = {fault.kind for fault in faults}
            if bookie in task.incomplete and not kinds.isdisjoint((FaultKind.UNREACHABLE, FaultKind.LIMBO)):
                incomplete.add(bookie)
            if FaultKind.LIMBO in kinds:
                in_limbo.append(bookie)  # It brings itself what it lost.
            if FaultKind.UNREACHABLE in kinds:
                if await self._board.is_registered(bookie):
                    silent.append(bookie)
                elif bookie in task.lost and bookie not in (attempt.gone or ()):
                    # It was back when we looked for who is lost. The auditor may not have seen that, and
                    # would see no reason to make a task again.
                    attempt.unsteady.add(bookie)
                    left.append(f"{bookie} comes and goes")
                # Else it is for the auditor to call it lost, or not.
            for share in shares(metadata, bookie):
                missing = [
                    (fault.first_entry, fault.last_entry)
                    for fault in faults
                    if fault.kind is FaultKind.MISSING and share.first <= fault.first_entry <= share.last
                ]
                if not missing:
                    continue
                say(f"entries {missing[0][0]}..{missing[-1][1]} to {bookie}")
                try:
                    filled = await self._copying.fill(metadata, bookie, share, missing)
                except BookieUnavailable as trouble:
                    incomplete.add(bookie)
                    left.append(f"{bookie} lacks entries: {_words(trouble)}")
                    break
                for first, last in filled.nowhere.ranges():
                    nowhere.add(first, last)
                if away := filled.unavailable.ranges():
                    left.append(
                        f"{bookie} lacks entries {_listed(away)}, which cannot be had now: "
                        f"{', '.join(filled.silent)} did not say"
                    )
                if away or filled.nowhere.ranges():
                    incomplete.add(bookie)
        if lost := nowhere.ranges():
            left.append(f"no intact copy is left of entries {_listed(lost)}")
        if silent:
            left.append(f"it is not known what {', '.join(silent)} has of it: no answer")
        if in_limbo:
            left.append(f"it is not known what {', '.join(in_limbo)} has of it: in limbo")
        return _together(left, DONE)


def _not_stuck(finding: Finding, metadata: LedgerMetadata, attempt: _Attempt) -> Finding:
    """The finding, as far as something is left to be tried: nothing of an open last fragment."""
    if finding.work is Work.RECOVER:
        return attrs.evolve(finding, lost=())
    first = metadata.fragments[finding.fragment_index].first_entry
    return attrs.evolve(finding, lost=tuple(b for b in finding.lost if (first, b) not in attempt.stuck))


def _words(trouble: LedgerLogError) -> str:
    return f"{type(trouble).__name__}: {trouble}"


def _listed(ranges: Sequence[tuple[int, int]]) -> str:
    """Some ranges, for a person."""
    words = [f"{first}" if first == last else f"{first}..{last}" for first, last in ranges[:_RANGES_SAID]]
    more = len(ranges) - len(words)
    return ", ".join(words) + (f" and {more} more ranges" if more else "")


def _decision(metadata: LedgerMetadata) -> str:
    """What a person can do about a ledger that nobody can close."""
    return (
        "bring its bookies back; if they are lost for good, with what they had, it is ended by "
        f"'ledgerlog ledger recover {metadata.ledger_id} --accept-loss'"
    )


def _together(left: Collection[str], verdict: Verdict) -> Verdict:
    """The verdict, and other reasons beside it."""
    if not left:
        return verdict
    trouble = "; ".join((*left, *(() if verdict.trouble is None else (verdict.trouble,))))
    return attrs.evolve(verdict, trouble=trouble)
