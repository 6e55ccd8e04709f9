"""The auditor: finds ledgers that lack copies and makes tasks for them (rules 22 and 24). It repairs nothing.

An election makes one of the auto-recovery processes the auditor. If it dies, another process takes over.
While a process leads, it does three jobs:

    registrations   watches them. A bookie that is not registered is absent; after a delay, it is lost
                    (``repair.core.audit.Absences``)
    metadata        makes a *pass* over all metadata at the start, when a bookie is lost or an operator wants
                    it emptied, when racks or the placement policy change, and from time to time. A ledger
                    gets a task if it names a bookie that is lost or being emptied, or if its copies can be
                    moved to more racks
    entries         checks them from time to time: it asks bookies for the entries that they should have
                    (``repair.checking``)

**The first pass compares everything** (rule 22). A bookie may have been lost while no process led, and the
watch does not report that later. The auditor knows bookies from their cookies, from their registrations and
from the metadata of ledgers. So even a bookie that the auditor never saw alive counts.

**Every conclusion comes from a fresh read**, after a sync, never from a watched view. If a view lags, a
bookie that came back long ago would still look lost. If an auditor was deposed and does not know it yet, it
may make an unnecessary task. That is harmless: tasks are hints, and the worker checks them.

**Registrations are read while a pass runs.** A pass over many ledgers takes a long time. During a pass, a
bookie may come back, workers may finish the tasks that the pass made for it, and the bookie may be lost
again. Then the bookie's delay starts again, and the next pass must look for the bookie again. So reading
registrations does not wait for passes.

**Between two passes**, a ledger can come to name a lost bookie only through a writer that chose the bookie
before it was lost. That writer replaces the bookie. If the writer dies first, the next pass finds the ledger.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

import attrs
import trio

from ledgerlog.concurrency.gathering import gather, gather_each
from ledgerlog.concurrency.pace import Pace
from ledgerlog.election.election import Election
from ledgerlog.errors import LedgerLogError, PermissionDenied
from ledgerlog.event_log import BOOKIES_GONE, COPIES_MISSING, tell
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.core.placement import rack_of
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.limits import RECONNECT_DELAY_MAX_S
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId
from ledgerlog.model.layout import BOOKIES, REPAIR_DRAINING, REPAIR_SETTINGS
from ledgerlog.model.ledger import LedgerMetadata, LedgerState, MetadataCorrupt
from ledgerlog.model.repair import AuditState, RepairSettings
from ledgerlog.repair.checking import LedgerFaults, check_ledger
from ledgerlog.repair.core.audit import Absences, named_bookies
from ledgerlog.repair.core.placement import NarrowFragment, narrow_fragments
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.repair.settings import SettingsInForce

__all__ = ["AUDITOR_ELECTION", "Auditor", "Pass", "check_entries", "pass_over_metadata", "pass_over_now"]

AUDITOR_ELECTION = "ledgerlog.auditor"
"""The name of the auditor's election."""

_LEDGERS_AT_ONCE = 8
_LOOK_S = 30.0
"""Registrations are read at least this often, even if no watch fires."""

logger = logging.getLogger(__name__)


@attrs.frozen
class Pass:
    """The result of a pass over all metadata."""

    ledgers: int
    """How many ledgers there are."""
    looked_at: int
    """How many of them the pass looked at before its time was over."""
    affected: dict[int, tuple[BookieId, ...]]
    """The ledgers that name any of the wanted bookies, each with these bookies."""
    named: frozenset[BookieId]
    """All bookies that any ledger names. Ledgers that were not looked at or cannot be read are left out."""
    unreadable: dict[int, str]
    """Ledgers whose metadata cannot be read, each with the reason: the metadata is damaged, or this client
    may not read it."""
    in_recovery: tuple[int, ...]
    """Ledgers in recovery. Their recoverers may use bookies that metadata names only after the close."""
    narrow: dict[int, list[NarrowFragment]] = attrs.field(factory=dict)
    """The ledgers with entries whose copies lie in too few racks; empty if the pass did not look for them."""
    movable: dict[int, tuple[BookieId, ...]] = attrs.field(factory=dict)
    """The ledgers in ``narrow`` whose copies can be moved to more racks now, each with the bookies of the
    write sets that lie in too few racks."""
    strays: tuple[str, ...] = ()
    """Nodes below ``ledgers`` that do not belong to a ledger: the path of each, and the fault of its name.
    The node may have belonged to a ledger, and it is unknown which bookies that ledger names."""


async def _survey(registry: LedgerRegistry) -> tuple[Sequence[int], Sequence[str]]:
    """List all ledgers, and the nodes that do not belong to a ledger. Each of these nodes is logged. It does
    not stop the work on ledgers."""
    ledgers, strays = await registry.survey()
    for stray in strays:
        logger.error("%s", stray)
    return ledgers, strays


async def pass_over_metadata(
    client: LedgerClient,
    is_gone: Callable[[BookieId], bool],
    *,
    places: Mapping[BookieId, BookieInfo] | None = None,
    unfit: Collection[BookieId] = (),
    within_s: float = math.inf,
) -> Pass:
    """Find the ledgers that name a bookie that is gone, and the ledgers whose copies lie in too few racks.

    Args:
        client: The client whose store is read.
        is_gone: Tells whether a bookie counts as gone.
        places: The registered bookies, to look for copies in too few racks; None: do not look for them.
        unfit: Bookies that take no copies, because they are being emptied.
        within_s: End after this many seconds, with the findings until then.

    Raises:
        MetadataUnavailable: The metadata store could not be reached. (If a ledger's metadata cannot be read,
            nothing is raised; ``Pass.unreadable`` has the ledger.)
    """
    registry = LedgerRegistry(client.store, client.environment)
    deadline = trio.current_time() + within_s
    ledgers, strays = await _survey(registry)
    looked_at = 0
    affected: dict[int, tuple[BookieId, ...]] = {}
    named: set[BookieId] = set()
    unreadable: dict[int, str] = {}
    in_recovery: list[int] = []
    narrow: dict[int, list[NarrowFragment]] = {}
    movable: dict[int, tuple[BookieId, ...]] = {}

    def look_at_racks(metadata: LedgerMetadata, places: Mapping[BookieId, BookieInfo]) -> None:
        found = narrow_fragments(metadata, places, min_racks=client.bookies.policy.min_racks)
        if found:
            narrow[metadata.ledger_id] = found
        mendable = {
            bookie
            for fragment in found
            if fragment.last_entry is not None
            and client.bookies.spread(
                metadata.fragments[fragment.index].ensemble,
                write_quorum=metadata.replication.write_quorum,
                unfit=unfit,
            )
            for bookie in fragment.bookies
        }
        if mendable:
            movable[metadata.ledger_id] = tuple(sorted(mendable))

    async def look(ledger_id: int) -> None:
        nonlocal looked_at
        try:
            found = await registry.find(ledger_id)
        except (MetadataCorrupt, PermissionDenied) as failure:
            logger.error("ledger=%d cannot be repaired: %s", ledger_id, failure)
            unreadable[ledger_id] = str(failure)
            looked_at += 1
            return
        looked_at += 1
        if found is not None:
            names = named_bookies(found[0])
            named.update(names)
            if found[0].state is LedgerState.IN_RECOVERY:
                in_recovery.append(ledger_id)
            hit = tuple(sorted(filter(is_gone, names)))
            if hit:
                affected[ledger_id] = hit
            if places is not None:
                look_at_racks(found[0], places)

    with trio.move_on_at(deadline):
        await gather_each(ledgers, look, at_once=_LEDGERS_AT_ONCE)
    return Pass(
        len(ledgers),
        looked_at,
        dict(sorted(affected.items())),
        frozenset(named),
        dict(sorted(unreadable.items())),
        tuple(sorted(in_recovery)),
        dict(sorted(narrow.items())),
        dict(sorted(movable.items())),
        tuple(strays),
    )


async def pass_over_now(
    client: LedgerClient,
    queue: RepairQueue,
    *,
    draining: Collection[BookieId] = (),
    within_s: float = math.inf,
) -> Pass:
    """Find the ledgers that name a bookie that is not registered at this moment or is being emptied.

    This also finds ledgers whose copies lie in too few racks. A bookie counts even if it is known only from
    the metadata of ledgers.

    Args:
        client: The client whose store is read.
        queue: The repair queue, to read the registrations.
        draining: The bookies that are being emptied.
        within_s: End after this many seconds, with the findings until then.

    Raises:
        MetadataUnavailable: The metadata store could not be reached.
    """
    registered = await queue.registered()
    there = registered.keys() - frozenset(draining)
    found = await pass_over_metadata(
        client, lambda bookie: bookie not in there, places=registered, unfit=draining, within_s=within_s
    )
    if not found.affected:
        return found
    # A ledger that was created during the pass may name a bookie that registered during the pass.
    there |= (await queue.registered()).keys() - frozenset(draining)
    affected = {}
    for ledger_id, hit in found.affected.items():
        if still_gone := tuple(bookie for bookie in hit if bookie not in there):
            affected[ledger_id] = still_gone
    return attrs.evolve(found, affected=affected)


async def check_entries(
    client: LedgerClient,
    *,
    check_all: bool,
    per_s: int,
    on_fault: Callable[[int, LedgerFaults], Awaitable[None]],
    is_gone: Callable[[BookieId], bool],
    first: int = 0,
    on_passed: Callable[[int], object] = lambda ledger_id: None,
    on_checked: Callable[[int, int], object] = lambda checked, ledgers: None,
    on_unchecked: Callable[[int, str], object] = lambda ledger_id, why: None,
) -> int:
    """Check for every ledger that bookies have the entries that they should have.

    Args:
        client: The client to ask the bookies with.
        check_all: Whether to compare all entries by the bookies' lists. If not, only the first and the last
            entry of each share are read. See ``check_ledger``.
        per_s: Send at most this many requests a second.
        on_fault: Awaited for each ledger that has missing or damaged copies.
        is_gone: Tells whether a bookie is known to be gone: it need not answer.
        first: Do not check the ledgers below this one.
        on_passed: Called with a ledger such that all ledgers below it are checked. If the check ends early,
            another one can continue there.
        on_checked: Called before the first ledger and after each, with the number of ledgers that are
            checked and the number of all ledgers.
        on_unchecked: Called for each ledger that cannot be checked, or not completely, with the reason: its
            metadata is damaged, this client may not read the ledger, or a bookie that is not gone did not
            answer or is in limbo. The check logs it and continues.

    Returns:
        How many ledgers were checked. Nodes below ``ledgers`` that are not the node of a ledger are logged
        and skipped.

    Raises:
        MetadataUnavailable: The metadata store could not be reached.
    """
    registry = LedgerRegistry(client.store, client.environment)
    ledgers, _ = await _survey(registry)
    ledgers = [ledger_id for ledger_id in ledgers if ledger_id >= first]
    under_way: dict[int, None] = {}  # In the order of the ledgers.
    pace = Pace(per_s)
    checked = 0
    on_checked(checked, len(ledgers))

    async def look(ledger_id: int) -> None:
        nonlocal checked
        under_way[ledger_id] = None
        unknown: list[str] = []
        try:
            faults = await check_ledger(client, ledger_id, check_all=check_all, pace=pace)
        except (MetadataCorrupt, PermissionDenied) as failure:
            unknown.append(str(failure))
        else:
            silent = [bookie for bookie in faults.silent if not is_gone(bookie)]
            troubles = client.pool.troubles(silent)
            unknown += [troubles.get(bookie, f"bookie {bookie} did not answer") for bookie in silent]
            unknown += [f"bookie {bookie} is in limbo" for bookie in faults.in_limbo]
            if not faults.is_clean:
                await on_fault(ledger_id, faults)
        if unknown:
            why = "; ".join(unknown)
            logger.error("ledger=%d cannot be checked: %s", ledger_id, why)
            on_unchecked(ledger_id, why)
        del under_way[ledger_id]
        on_passed(next(iter(under_way), ledger_id + 1))
        checked += 1
        on_checked(checked, len(ledgers))

    await gather_each(ledgers, look, at_once=_LEDGERS_AT_ONCE)
    return len(ledgers)


@attrs.frozen
class _Found:
    """The result of one look at the registrations."""

    lost: frozenset[BookieId]
    gone: frozenset[BookieId]
    """The lost bookies, and the bookies that are being emptied."""
    registered: Mapping[BookieId, BookieInfo]
    draining: frozenset[BookieId]


class Auditor:
    """A candidate in the auditor's election; the auditor while it leads. ``run`` is its task."""

    def __init__(self, client: LedgerClient, *, name: str) -> None:
        self.name = name
        self.is_leading = False
        self._client = client
        self._queue = RepairQueue(client)
        self._settings = SettingsInForce(self._queue, name=f"auditor={name}")
        self._wake = trio.Event()
        self._looked = trio.Event()
        self._record = AuditState()
        self._saying = trio.Lock()
        self._found: _Found | None = None
        """The result of the last look; None before the first."""
        self._named: frozenset[BookieId] = frozenset()
        """The bookies that metadata named at the last pass."""
        self._audited: frozenset[BookieId] | None = None
        """The bookies that the last pass looked for and that have been gone ever since; None before the first
        pass."""
        self._min_racks = 0
        """How many racks the placement policy wanted at the last pass."""
        self._racks: dict[BookieId, str | None] = {}
        """The racks of all bookies that were registered at any pass so far."""
        self._passing: frozenset[BookieId] = frozenset()
        """The bookies that the pass under way looks for and that have been gone since the pass began."""
        self._next_pass_at = 0.0
        self._check_after_ms = 0
        """When the check before the last check of entries ended."""
        self._check_from = 0
        """All ledgers below this one were checked since then."""

    def prompt(self) -> bool:
        """Start a pass over all metadata now, unless a pass is under way. Return False if this process is not
        the auditor."""
        if self.is_leading:
            self._next_pass_at = trio.current_time()
            self._looked.set()
        return self.is_leading

    @property
    def record(self) -> AuditState:
        """The auditor's record, as this process last read or wrote it while it was the auditor."""
        return self._record

    async def run(self) -> None:
        """Stand for election, lead, and stand again, until cancelled."""
        election = Election(self._client, AUDITOR_ELECTION, candidate=self.name)
        told = ""
        while True:
            try:
                async with election.leadership():
                    self.is_leading = True
                    await self._lead()
            except LedgerLogError as trouble:
                # During an outage of the store, every try fails in the same way. Log the trouble once.
                level, told = logging.DEBUG if str(trouble) == told else logging.WARNING, str(trouble)
                logger.log(level, "auditor=%s steps down: %s", self.name, trouble)
            finally:
                self.is_leading = False
            await trio.sleep(RECONNECT_DELAY_MAX_S)

    async def _lead(self) -> None:
        """Audit until cancelled.

        If the store fails, this raises the store's error, and the leadership ends. The next leader starts
        from the beginning, even if it is this process. Only a check of entries continues where it was, if no
        other auditor has ended one meanwhile.
        """
        self._record = attrs.evolve(await self._last_record(), auditor=self.name)
        self._found = self._audited = None
        self._named = self._passing = frozenset()
        self._next_pass_at = trio.current_time()
        await gather(
            *(partial(self._listen, path) for path in (BOOKIES, REPAIR_SETTINGS, REPAIR_DRAINING)),
            self._watch_bookies,
            self._go_over_metadata,
            self._check_entries,
        )

    async def _last_record(self) -> AuditState:
        try:
            return await self._queue.audit_record() or AuditState()
        except MetadataCorrupt as damage:
            # The auditor can find the contents of the record again, or they were only for people.
            logger.error("auditor=%s: %s; a new one is made", self.name, damage)
            return AuditState()

    async def _heed(self) -> RepairSettings:
        """Return the settings to use now. Note them in the record, in case the stored settings get damaged
        later."""
        settings = await self._settings.read()
        if self._settings.damage is None and settings != self._record.settings:
            self._record = attrs.evolve(self._record, settings=settings)
            await self._say()
        return settings

    async def _say(self) -> None:
        async with self._saying:  # Of two concurrent writes, one would be lost.
            await self._queue.say_audit(self._record)

    async def _listen(self, path: str) -> None:
        async with self._client.store.watch(path) as watch:
            while True:
                self._wake.set()
                await watch.wait()

    # --- bookies and metadata -------------------------------------------------------------------

    async def _watch_bookies(self) -> None:
        absences = Absences()
        while True:
            self._wake = trio.Event()
            settings = await self._heed()
            draining = frozenset(await self._queue.draining())
            registered = await self._queue.registered()
            now, delay_s = trio.current_time(), settings.lost_after_ms / 1000
            absences.look({*self._named, *await self._queue.known()} - registered.keys(), now)
            lost = absences.lost(now, delay_s)
            self._found = found = _Found(lost, lost | draining, registered, draining)
            # Drop the bookies that came back: if one is lost again, a pass must look for it again.
            self._audited = None if self._audited is None else self._audited & found.gone
            self._passing &= found.gone
            self._next_pass_at = min(self._next_pass_at, now + settings.bookie_check_ms / 1000)
            self._looked.set()
            await self._say_absences(absences)
            with trio.move_on_at(min(now + _LOOK_S, absences.next_lost_at(now, delay_s) or now + _LOOK_S)):
                await self._wake.wait()

    async def _go_over_metadata(self) -> None:
        while True:
            self._looked = trio.Event()
            found = self._found
            if found is None or not self._is_pass_due(found):
                with trio.move_on_at(math.inf if found is None else self._next_pass_at):
                    await self._looked.wait()
                continue
            self._passing = found.gone
            self._min_racks = self._client.bookies.policy.min_racks
            self._racks |= {bookie: rack_of(info) for bookie, info in found.registered.items()}
            passed = await self._pass(found)
            is_news = not passed.named <= self._named | found.registered.keys()
            self._named, self._audited = passed.named, self._passing
            self._next_pass_at = trio.current_time() + (await self._heed()).bookie_check_ms / 1000
            if is_news:
                self._wake.set()  # Metadata names bookies that were unknown. They may be absent as well.

    def _is_pass_due(self, found: _Found) -> bool:
        is_time = trio.current_time() >= self._next_pass_at
        is_new = self._audited is None or not found.gone <= self._audited
        return is_new or is_time or self._is_placed_anew(found)

    def _is_placed_anew(self, found: _Found) -> bool:
        """Whether copies can now lie in other racks: since the last pass, the policy has changed, or a bookie
        has registered that is new or is in another rack. A bookie that went away and came back to its rack
        does not count."""
        return self._min_racks != self._client.bookies.policy.min_racks or any(
            self._racks.get(bookie) != rack_of(info) for bookie, info in found.registered.items()
        )

    async def _pass(self, look: _Found) -> Pass:
        lost, gone = look.lost, look.gone
        found = await pass_over_metadata(
            self._client, gone.__contains__, places=look.registered, unfit=look.draining
        )
        made = 0
        for ledger_id, hit in found.affected.items():
            made += await self._queue.post(ledger_id, lost=hit)
        for ledger_id, narrow in found.movable.items():
            if await self._queue.post(ledger_id, misplaced=narrow):
                logger.info("auditor=%s: ledger=%d lies in too few racks", self.name, ledger_id)
        if gone:
            tell(
                logger,
                BOOKIES_GONE,
                "auditor=%(auditor)s: lost=%(lost)s drained=%(drained)s affected=%(affected)d new "
                "tasks=%(made)d of ledgers=%(ledgers)d",
                auditor=self.name,
                lost=",".join(sorted(lost)) or "none",
                drained=",".join(sorted(gone - lost)) or "none",
                affected=len(found.affected),
                made=made,
                ledgers=found.ledgers,
            )
        if not found.strays:
            await self._queue.tidy(found.named)
        self._record = attrs.evolve(
            self._record,
            metadata_at_ms=self._client.environment.now_ms(),
            ledgers=found.ledgers,
            affected=len(found.affected),
        )
        await self._say()
        return found

    async def _say_absences(self, absences: Absences) -> None:
        now, now_ms = trio.current_time(), self._client.environment.now_ms()
        absent = {
            bookie: self._record.absent.get(bookie, now_ms - round(1000 * (now - since)))
            for bookie, since in absences.since().items()
        }
        if absent != self._record.absent:
            self._record = attrs.evolve(self._record, absent=absent)
            await self._say()

    # --- entries ----------------------------------------------------------------------------------

    async def _check_entries(self) -> None:
        while True:
            settings = await self._heed()
            if settings.entry_check_ms and self._check_is_due(settings):
                await self._check_once(settings)
            pause_s = max(settings.entry_check_ms / 1000, 1.0) if settings.entry_check_ms else _LOOK_S
            await trio.sleep(min(_LOOK_S, pause_s))

    def _check_is_due(self, settings: RepairSettings) -> bool:
        # Use the wall clock: for example, a daily check stays daily, no matter how often the auditor changes.
        # If the clock goes back, the check comes later by at most the same time. If the clock goes back to
        # before the last check, the next check is due at once.
        since_ms = self._client.environment.now_ms() - self._record.entries_at_ms
        return since_ms >= settings.entry_check_ms or since_ms < 0

    async def _check_once(self, settings: RepairSettings) -> None:
        async def on_fault(ledger_id: int, faults: LedgerFaults) -> None:
            tell(
                logger,
                COPIES_MISSING,
                "auditor=%(auditor)s: ledger=%(ledger)d incomplete on=%(incomplete)s damaged on=%(damaged)s",
                auditor=self.name,
                ledger=ledger_id,
                incomplete=",".join(faults.incomplete) or "none",
                damaged=",".join(faults.damaged) or "none",
            )
            await self._queue.post(ledger_id, incomplete=faults.incomplete, damaged=faults.damaged)

        def on_passed(ledger_id: int) -> None:
            self._check_from = ledger_id

        # A check of many ledgers takes long. If it was interrupted, for example by an outage of the store,
        # continue it. Otherwise the last ledgers might never be checked.
        if self._check_after_ms != self._record.entries_at_ms:
            self._check_after_ms, self._check_from = self._record.entries_at_ms, 0
        await check_entries(
            self._client,
            check_all=settings.check_all,
            per_s=settings.checks_per_s,
            on_fault=on_fault,
            is_gone=lambda bookie: not self._client.bookies.is_registered(bookie),
            first=self._check_from,
            on_passed=on_passed,
        )
        self._check_from = 0
        self._record = attrs.evolve(self._record, entries_at_ms=self._client.environment.now_ms())
        await self._say()
