"""Repairing one ledger: from its task until every entry has its write quorum (rules 20, 21, 23, 24).

    metadata            read the ledger's metadata. If the ledger does not exist, the task is done
    lost bookies        check the task's lost bookies: a bookie that is registered again and is not being
                        emptied is not lost
    damaged bookies     check the task's damaged bookies: a bookie that has read its whole share and found it
                        sound is not damaged
    fragments           if a fragment names lost or damaged bookies, copy their entries to other bookies, then
                        let the fragment name the other bookies (``repair.core.repair``)
    an open last one    if the last fragment of an open ledger names lost bookies, give the ledger's writer
                        time to replace them, if it can. Then check again, recover the ledger, and start over
    misplaced bookies   if copies lie in too few racks and other bookies can correct that, copy the entries to
                        these bookies and let the fragment name them: the same work as for lost bookies
    other copies        ask the live bookies which entries they have, and give them the missing ones
                        (``ledger.core.comparison``). A bookie in *limbo* may have lost entries and does not
                        know yet which. If a bookie is in limbo or does not answer, the task stays, because it
                        is unknown what the bookie has

``LedgerRepair`` repeats these steps on fresh metadata until nothing is left to do. So the next round handles
every change in between: a writer continued in another ledger, a second bookie died, an operator deleted the
ledger, a bookie returned. Between tries at a task, ``LedgerRepair`` remembers only two times: when it first
saw a lost bookie in an open last fragment, and when a bookie last reported damage.

The last step finds entries that their writer left below the write quorum. In the plain mode, the writer
acknowledges entries and closes the ledger at the ack quorum. If a bookie's connection broke at that moment,
the bookie lacks the entries that were on their way to it.

**If the entries of one bookie are gone, repair still replaces the other bookies.** Repair replaces the lost
bookies of a fragment together. If some entry of these bookies is not available, repair replaces them one by
one. For example, of three lost bookies, one may be replaced completely although the entries of the other two
are gone.

**Unfinished work** comes back as a ``Verdict`` with the reason. People can read it, and the worker tries the
task again. The verdict also has the updated task: a bookie that is back is no longer among the lost ones.
``LedgerRepair.run`` raises only bugs.
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
from ledgerlog.repair.queue import RepairQueue

__all__ = ["LedgerRepair", "Verdict"]

logger = logging.getLogger(__name__)


_UNSOUND_S = 300.0
"""If a bookie did not report that its copy of a ledger is sound, ask it again after this time."""

_RANGES_SAID = 20
"""A message lists at most this many ranges."""


@attrs.frozen
class Verdict:
    """The outcome of one try at a task."""

    trouble: str | None = None
    """Why the task is not done; None if it is done."""
    again_in_s: float | None = None
    """After how many seconds to try again; None leaves that to the worker."""
    task: RepairTask | None = None
    """The task as it stands now, with the trouble in it; None if it is done."""

    @property
    def is_done(self) -> bool:
        """Whether the task is done."""
        return self.trouble is None


DONE = Verdict()


@attrs.define(eq=False)
class _Attempt:
    """One try at a task, with the findings so far."""

    task: RepairTask
    named: frozenset[BookieId] | None = None
    """The bookies that the ledger names; None before the first look."""
    gone: set[BookieId] | None = None
    """See ``LedgerRepair._gone``; None before the first look."""
    damaged: frozenset[BookieId] | None = None
    """See ``LedgerRepair._damaged``; None before the bookies were asked."""
    incomplete: set[BookieId] | None = None
    """Bookies that lack entries or may lack some; None until all bookies were asked which entries they
    have."""
    unsteady: set[BookieId] = attrs.Factory(set)
    """Lost bookies of the task that were registered again, but do not answer and are not registered now."""
    stuck: dict[tuple[int, BookieId], str] = attrs.Factory(dict)
    """Lost bookies that cannot be replaced now, with the reason. The key is the fragment's first entry and
    the bookie."""
    unmoved: dict[int, str] = attrs.Factory(dict)
    """Why copies could not be moved to other racks, by the first entry of the fragment."""
    was_spread: bool = False
    """Whether every move to another rack was made or tried."""
    one_by_one: set[int] = attrs.Factory(set)
    """Fragments, by first entry, whose lost bookies cannot all be replaced together."""

    def stands(self, trouble: str) -> RepairTask:
        """Return the task with the trouble noted in it, and without findings that are no longer true."""
        task = self.task
        lost = task.lost if self.gone is None else sorted({*self.gone, *self.unsteady})
        damaged = task.damaged if self.damaged is None else sorted(self.damaged)
        incomplete = task.incomplete if self.incomplete is None else sorted(self.incomplete)
        asks_all = task.is_about_all and self.incomplete is None
        misplaced = () if self.was_spread and not self.unmoved else task.misplaced
        lost, damaged, incomplete, misplaced = (
            tuple(bookie for bookie in bookies if self.named is None or bookie in self.named)
            for bookies in (lost, damaged, incomplete, misplaced)
        )
        return attrs.evolve(
            task,
            lost=lost,
            damaged=damaged,
            incomplete=incomplete,
            misplaced=misplaced,
            asks_all=asks_all,
        ).troubled(trouble)

    def reasons(self) -> list[str]:
        """Return why lost or misplaced bookies are not replaced, each reason once."""
        return list(dict.fromkeys((*self.stuck.values(), *self.unmoved.values())))


class LedgerRepair:
    """Repairs ledgers, each from its task. Between tries it remembers only the times in ``_seen`` and
    ``_unsound``."""

    def __init__(self, client: LedgerClient, queue: RepairQueue, copying: Copying) -> None:
        self._client = client
        self._queue = queue
        self._copying = copying
        self._registry = LedgerRegistry(client.store, client.environment)
        self._seen: dict[int, tuple[tuple[BookieId, ...], float]] = {}
        """By ledger: the last ensemble of an open ledger that names a lost bookie, and when it was first
        seen."""
        self._unsound: dict[tuple[int, BookieId], float] = {}
        """By ledger and bookie: when the bookie was last asked and did not report a sound copy."""

    def keep_only(self, ledger_ids: Collection[int]) -> None:
        """Forget every ledger that is not in ``ledger_ids``: it no longer has a task."""
        self._seen = {e: seen for e, seen in self._seen.items() if e in ledger_ids}
        self._unsound = {key: at for key, at in self._unsound.items() if key[0] in ledger_ids}

    async def make_anew(self, ledger_id: int) -> None:
        """Replace a task whose record is damaged.

        The damaged task no longer tells which bookies it named. The new task names every bookie of the ledger
        that is not registered; at worst this makes one extra copy. It also says that any bookie may lack
        entries. Other faults are found while a worker works on the new task.
        """
        found = await self._registry.find(ledger_id)
        named = frozenset[BookieId]() if found is None else named_bookies(found[0])
        lost = [bookie for bookie in named if not await self._queue.is_registered(bookie)]
        await self._queue.post(ledger_id, lost=lost, asks_all=True)

    async def run(self, task: RepairTask, *, grace_s: float, say: Callable[[str], None]) -> Verdict:
        """Repair the task's ledger as far as possible.

        Args:
            task: The task, read under the ledger's lock.
            grace_s: How long the writer of an open ledger may take to replace a lost bookie.
            say: Called with a few words about the present step.

        Returns:
            The outcome. It has expected errors as its ``trouble``; they are not raised.
        """
        attempt = _Attempt(task)
        try:
            verdict = await self._run(attempt, grace_s, say)
        except LedgerNotFound:
            verdict = DONE  # The ledger was deleted in the meantime: no copy is missing.
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
            draining, undecided = await self._queue.requests()
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
                # If a bookie of the last fragment is lost later, the grace period of the writer starts again.
                self._seen.pop(task.ledger_id, None)
                if task.misplaced and await self._move(
                    metadata, version, attempt, barred=barred, serving={*draining, *damaged}, say=say
                ):
                    continue
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
        """Return the bookies of the ledger that count as lost.

        These are its bookies that are being emptied, and its bookies that the task calls lost and that are
        still not registered.
        """
        named = named_bookies(metadata)
        gone = {bookie for bookie in named if bookie in draining}
        for bookie in task.lost:
            if bookie in named and bookie not in gone and not await self._queue.is_registered(bookie):
                gone.add(bookie)
        return gone

    async def _damaged(self, metadata: LedgerMetadata, task: RepairTask) -> frozenset[BookieId]:
        """Return the damaged bookies of the task that the ledger names.

        A bookie copies damaged entries back by itself. So it is no longer damaged if it has read all its
        entries of the ledger and reports that they are sound. A bookie that did not report that is asked
        again only after ``_UNSOUND_S``, and not at each try.
        """
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
        """Replace the lost bookies of a fragment, or note why that cannot be done now.

        If this fragment cannot be repaired now, the others do not wait for it: it may never be repaired.
        """
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
        chosen = self._choose(metadata, fragment.ensemble, finding.lost, avoid)
        await self._replace_bookies(metadata, version, finding.fragment_index, chosen, avoid, serving)

    async def _move(
        self,
        metadata: LedgerMetadata,
        version: int,
        attempt: _Attempt,
        *,
        barred: Collection[BookieId],
        serving: Collection[BookieId],
        say: Callable[[str], None],
    ) -> bool:
        """Move copies of one fragment to other racks, if a fragment needs that and it is possible.

        Returns:
            Whether it tried. The stored metadata may then have changed.
        """
        for index, fragment in enumerate(metadata.fragments):
            first = fragment.first_entry
            if first in attempt.unmoved or metadata.fragment_end(index) is None:
                continue
            found = self._client.bookies.spread(
                fragment.ensemble, write_quorum=metadata.replication.write_quorum, unfit=barred
            )
            if not found:
                continue
            say(f"fragment {first} to other racks")
            chosen = {fragment.ensemble[slot]: bookie for slot, bookie in found.items()}
            try:
                await self._replace_bookies(metadata, version, index, chosen, barred, {*serving, *chosen})
            except (LedgerNotFound, MetadataError):
                raise
            except LedgerLogError as trouble:
                attempt.unmoved[first] = (
                    f"copies of fragment {first} stay in too few racks: {_words(trouble)}"
                )
            return True
        attempt.was_spread = True
        return False

    async def _replace_bookies(
        self,
        metadata: LedgerMetadata,
        version: int,
        index: int,
        chosen: dict[BookieId, BookieId],
        avoid: Collection[BookieId],
        serving: Collection[BookieId],
    ) -> None:
        """Copy the entries of each bookie in ``chosen`` to the bookie that replaces it, and let the fragment
        name the new bookies."""
        fragment = metadata.fragments[index]
        core = FragmentRepair(
            metadata,
            version,
            index,
            chosen,
            new_token=self._client.environment.new_token,
            avoid=sorted(avoid),
            serving=serving,
        )
        await self._copying.repair_fragment(core)
        logger.info(
            "ledger=%d fragment=%d: %s",
            metadata.ledger_id,
            fragment.first_entry,
            ", ".join(f"{new} replaces {old}" for old, new in core.replacements.items()),
        )

    def _choose(
        self,
        metadata: LedgerMetadata,
        ensemble: Sequence[BookieId],
        lost: Collection[BookieId],
        avoid: Collection[BookieId],
    ) -> dict[BookieId, BookieId]:
        """Choose bookies to replace the lost ones of an ensemble.

        If there are too few bookies, some slots keep their lost bookie: a few new copies are better than
        none. A bookie that failed this process a short while ago is *doubtful*. Doubtful bookies are chosen
        only if more lost bookies can be replaced in this way.

        Raises:
            NotEnoughBookies: No bookie can be chosen.
        """
        slots = [slot for slot, bookie in enumerate(ensemble) if bookie in lost]
        chosen: dict[int, BookieId] = {}
        for even_doubtful in (False, True):
            found = self._client.bookies.replacements(
                ensemble,
                slots,
                write_quorum=metadata.replication.write_quorum,
                even_doubtful=even_doubtful,
                unfit=avoid,
            )
            if len(found) > len(chosen):
                chosen = found
        if not chosen:
            raise self._client.bookies.why_no_replacement({*ensemble, *avoid})
        return {ensemble[slot]: bookie for slot, bookie in chosen.items()}

    # --- the open last fragment -----------------------------------------------------------------

    async def _what_holds_up_the_end(
        self, metadata: LedgerMetadata, finding: Finding, barred: Collection[BookieId], grace_s: float
    ) -> Verdict | None:
        """Return why the ledger must not be recovered now, or None if it may be recovered.

        There are three reasons:

        *No bookie can replace the lost one.* Then the writer cannot replace the lost bookie either and
        continues with an ack quorum. A recovery would stop the writer for nothing, and the writer could not
        create its next ledger.

        *Too few bookies of the last ensemble are registered to fence the ledger.* Only the missing bookies
        know whether they store any entry of the last fragment. The metadata says where the fragment begins,
        but not whether it has an entry; rule 21 is only about fragments with a known end. A recovery could
        only stop a writer that may still reach these bookies. So the ledger stays unchanged until the
        missing bookies are back or an operator decides.

        *The writer has time left.* The grace period begins when the other two reasons are gone.
        """
        try:
            self._choose(metadata, metadata.last_fragment.ensemble, finding.lost[:1], barred)
        except NotEnoughBookies as trouble:
            self._seen.pop(metadata.ledger_id, None)
            return Verdict(_words(trouble))
        ensemble = metadata.last_fragment.ensemble
        there = [slot for slot, b in enumerate(ensemble) if await self._queue.is_registered(b)]
        if not metadata.replication.covers(there):
            self._seen.pop(metadata.ledger_id, None)
            missing = ", ".join(b for slot, b in enumerate(ensemble) if slot not in there)
            return Verdict(
                f"it is not closed, and its end cannot be found without {missing}: {_decision(metadata)}"
            )
        wait_s = self._grace_left(metadata, grace_s)
        if wait_s > 0:
            return Verdict(f"its writer may still replace {', '.join(finding.lost)}", wait_s)
        return None

    def _grace_left(self, metadata: LedgerMetadata, grace_s: float) -> float:
        """Return how many seconds the writer still has to replace the lost bookie in the last ensemble.

        If the ensemble changes, the grace period begins again.
        """
        ensemble, now = metadata.last_fragment.ensemble, trio.current_time()
        seen = self._seen.get(metadata.ledger_id)
        if seen is None or seen[0] != ensemble:
            seen = self._seen[metadata.ledger_id] = ensemble, now
        return seen[1] + grace_s - now

    async def _is_still_so(self, metadata: LedgerMetadata, gone: Collection[BookieId]) -> bool:
        """Check again, after a sync, that the ledger needs recovery (rule 20).

        The ledger needs recovery if three things hold: it is still not closed, it has the same last fragment,
        and a bookie of that fragment is still gone.
        """
        await self._client.store.sync()
        found = await self._registry.find(metadata.ledger_id)
        if found is None or found[0].is_closed or found[0].last_fragment != metadata.last_fragment:
            return False
        draining = await self._queue.draining()
        for bookie in metadata.last_fragment.ensemble:
            if bookie in draining:
                return True
            if bookie in gone and not await self._queue.is_registered(bookie):
                return True
        return False

    async def _recover(self, metadata: LedgerMetadata) -> Verdict | None:
        """Recover and close the ledger. Return the obstacle, or None if the ledger is now closed."""
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

    # --- entries that live bookies lack ---------------------------------------------------------

    async def _complete(
        self, metadata: LedgerMetadata, attempt: _Attempt, say: Callable[[str], None]
    ) -> Verdict:
        """Compare each bookie's list of entries with its shares, and give it the entries that it lacks."""
        task = attempt.task
        incomplete = set[BookieId]()
        nowhere = RangeSet()
        silent: list[str] = []
        in_limbo: list[str] = []
        away: list[str] = []
        left: list[str] = []
        found: dict[BookieId, list[CopyFault]] = {}
        for fault in await compare_lists(self._client.pool, metadata):
            found.setdefault(fault.bookie, []).append(fault)
        for bookie, faults in sorted(found.items()):
            kinds = {fault.kind for fault in faults}
            is_asked_about = bookie in task.incomplete or task.is_about_all
            if is_asked_about and not kinds.isdisjoint((FaultKind.UNREACHABLE, FaultKind.LIMBO)):
                incomplete.add(bookie)
            if FaultKind.LIMBO in kinds:
                in_limbo.append(bookie)  # The bookie copies back its lost entries itself.
            if FaultKind.UNREACHABLE in kinds:
                if await self._queue.is_registered(bookie):
                    silent.append(bookie)
                elif bookie in task.lost and bookie not in (attempt.gone or ()):
                    # The bookie was registered when we looked for lost bookies, and now it is not. The
                    # auditor may have missed that change, and would then not make a new task.
                    attempt.unsteady.add(bookie)
                    left.append(f"{bookie} comes and goes")
                elif is_asked_about:
                    away.append(bookie)  # If the bookie comes back, it must still be asked.
                # If the bookie is not registered, the auditor decides whether it is lost.
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
                if not_now := filled.unavailable.ranges():
                    left.append(
                        f"{bookie} lacks entries {_listed(not_now)}, which cannot be read now: "
                        f"{', '.join(filled.silent)} did not answer"
                    )
                if not_now or filled.nowhere.ranges():
                    incomplete.add(bookie)
        attempt.incomplete = incomplete
        if lost := nowhere.ranges():
            left.append(f"no intact copy is left of entries {_listed(lost)}")
        if silent:
            left.append(f"it is not known which copies {', '.join(silent)} has: no answer")
        if away:
            left.append(f"it is not known which copies {', '.join(away)} has: not registered")
        if in_limbo:
            left.append(f"it is not known which copies {', '.join(in_limbo)} has: in limbo")
        return _together(left, DONE)


def _not_stuck(finding: Finding, metadata: LedgerMetadata, attempt: _Attempt) -> Finding:
    """Remove from the finding the bookies that cannot be replaced now. For an open last fragment, remove all
    bookies."""
    if finding.work is Work.RECOVER:
        return attrs.evolve(finding, lost=())
    first = metadata.fragments[finding.fragment_index].first_entry
    return attrs.evolve(finding, lost=tuple(b for b in finding.lost if (first, b) not in attempt.stuck))


def _words(trouble: LedgerLogError) -> str:
    return f"{type(trouble).__name__}: {trouble}"


def _listed(ranges: Sequence[tuple[int, int]]) -> str:
    """Write ranges for a person: the first ``_RANGES_SAID`` of them."""
    words = [f"{first}" if first == last else f"{first}..{last}" for first, last in ranges[:_RANGES_SAID]]
    more = len(ranges) - len(words)
    return ", ".join(words) + (f" and {more} more ranges" if more else "")


def _decision(metadata: LedgerMetadata) -> str:
    """Say how an operator can end a ledger that recovery cannot close."""
    return (
        "bring its bookies back; if they and their data are lost for good, end it with "
        f"'ledgerlog ledger recover {metadata.ledger_id} --accept-loss', with '--accept-unreachable' if a "
        "bookie will never answer again"
    )


def _together(left: Collection[str], verdict: Verdict) -> Verdict:
    """Return the verdict, with the reasons in ``left`` before its own reasons."""
    if not left:
        return verdict
    trouble = "; ".join((*left, *(() if verdict.trouble is None else (verdict.trouble,))))
    return attrs.evolve(verdict, trouble=trouble)
