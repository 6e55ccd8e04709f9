"""Recovering a ledger: the shell around ``ledger.core.recovery``.

Each recovery has one nursery. The nursery runs a task for each outstanding fence or read, each with its own
deadline. The main task carries out metadata intents, sends write-backs and finds replacements. The core
decides where the ledger ends; this module only carries out the core's decisions. If write-backs are stalled,
bookies that give no sign of life are replaced after a second (``ledger.core.reach``).

Recovery does not write back the entries up to its start. They may lack copies, and only the ledger's writer
knew which. So this module files the recovered ledger for repair, in the transaction that closes the ledger.
If the ledger acknowledges entries only at their full write quorum, there is nothing to file (rule 24)."""

from __future__ import annotations

import logging

import trio

from ledgerlog.concurrency.nurseries import open_serving_nursery
from ledgerlog.errors import BookieUnavailable, LedgerLogError, LedgerNotFound, PermissionDenied
from ledgerlog.ledger.bookies import BookieDirectory
from ledgerlog.ledger.core.reach import Reach
from ledgerlog.ledger.core.recovery import LedgerRecovery, Phase, ReadAsk
from ledgerlog.ledger.core.writer import MetadataIntent
from ledgerlog.ledger.encoding import AddEncoder
from ledgerlog.ledger.environment import Environment
from ledgerlog.ledger.holders import needs_holders, write_holders
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.permission import denied
from ledgerlog.ledger.ranges import read_range
from ledgerlog.ledger.repair_tasks import may_lack_copies
from ledgerlog.ledger.slots import Refusals, SlotOwner, SlotSinks
from ledgerlog.limits import APPEND_DEADLINE_S, REACH_ASK_S, REACH_LOOK_S, REQUEST_TIMEOUT_S
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.net.pool import ConnectionPool
from ledgerlog.wire.frame import Kind, Status

_LOOK_S = 0.5

_WHAT = "recover it"

logger = logging.getLogger(__name__)


async def recover_ledger(
    ledger_id: int,
    *,
    registry: LedgerRegistry,
    directory: BookieDirectory,
    pool: ConnectionPool,
    environment: Environment,
    deadline_s: float = APPEND_DEADLINE_S,
    accept_loss: bool = False,
    accept_unreachable: bool = False,
) -> LedgerMetadata:
    """Fence a ledger, find its end and close it.

    A closed ledger stays as it is. Any number of clients may recover a ledger at the same time; all of them
    get the same end.

    Args:
        ledger_id: The ledger.
        registry: Reads and writes the ledger's metadata.
        directory: Finds replacements for failed bookies.
        pool: Connections to bookies.
        environment: Clock, random choices and keys.
        deadline_s: Seconds that a write-back may take.
        accept_loss: If bookies lost data and it is unknown whether an entry exists, end the ledger before
            that entry instead of giving up. The metadata then record that entry
            (``ledger.core.recovery.LOST_FROM``).
        accept_unreachable: Accept the loss even if bookies that may hold the entry do not answer.

    Returns:
        The ledger's CLOSED metadata.

    Raises:
        LedgerNotFound: There is no such ledger, or it was deleted meanwhile.
        RecoveryFailed: Fencing or a read stayed incomplete. You may try again.
        NotEnoughBookies: No bookie took a write-back within ``deadline_s``. You may try again.
        PermissionDenied: This client may not recover the ledger.
        MetadataUnavailable: The metadata store cannot be reached.
        MetadataOutcomeUnknown: The ledger may or may not be closed. You may try again.

    Cancelling: the ledger stays IN_RECOVERY until another client recovers it.
    """
    metadata, version = await registry.read(ledger_id)
    while needs_holders(metadata):
        stored, version = await write_holders(
            metadata,
            version,
            registry=registry,
            pool=pool,
            environment=environment,
            accept_unreachable=accept_unreachable,
        )
        if stored is None:
            raise LedgerNotFound(ledger_id)
        metadata = stored
    core = LedgerRecovery(
        metadata,
        version,
        new_token=environment.new_token,
        accept_loss=accept_loss,
        accept_unreachable=accept_unreachable,
    )
    shell = _Recovery(core, registry, directory, pool, environment, deadline_s)
    await shell.run()
    if core.failure is not None:
        if await _is_deleted(registry, ledger_id):
            raise LedgerNotFound(ledger_id) from core.failure
        raise core.failure
    if core.lost_from is not None:
        logger.warning(
            "ledger=%d is closed at %d, and may have lost entries from %d on: its operator accepted that",
            ledger_id,
            core.metadata.last_entry,
            core.lost_from,
        )
    was_recovered = not metadata.is_closed and core.metadata.last_entry != NO_ENTRY
    if was_recovered and may_lack_copies(metadata.replication) and core.metadata.token not in shell.filed:
        await registry.file_for_repair(ledger_id, ())  # Another client closed it; it may be of version 0.1.
    return core.metadata


async def _is_deleted(registry: LedgerRegistry, ledger_id: int) -> bool:
    """Whether the store says that the ledger is gone. Its bookies then refuse fences and write-backs, and do
    not say why."""
    try:
        return await registry.find(ledger_id) is None
    except LedgerLogError:
        return False


class _Recovery:
    def __init__(
        self,
        core: LedgerRecovery,
        registry: LedgerRegistry,
        directory: BookieDirectory,
        pool: ConnectionPool,
        environment: Environment,
        deadline_s: float,
    ) -> None:
        self._environment = environment
        self._core = core
        self._registry = registry
        self._directory = directory
        self._pool = pool
        self._deadline_s = deadline_s
        self._key = core.metadata.key
        encoder = AddEncoder(core.ledger_id, core.replication, self._key, recovery=True, marks=self.marks)
        owner = SlotOwner(
            on_add_refused=self.on_add_refused,
            on_bookie_lost=self.on_bookie_lost,
            on_bookie_connected=self.on_bookie_connected,
            encode=encoder.encode,
            act=self.act,
        )
        self._slots = SlotSinks(core, owner, pool, core.replication)
        self._reach = Reach(core.replication)
        self._wake = trio.Event()
        self._refusals = Refusals(self._slots)
        self._settled = NO_ENTRY
        self._progress_at = trio.current_time()
        self.filed: set[bytes] = set()
        """The tokens of closing writes that also filed the ledger for repair."""

    async def run(self) -> None:
        """Drive the core until the recovery is done or failed. An expected error is raised by itself, not in
        an exception group."""
        try:
            async with open_serving_nursery() as nursery:
                await self._drive(nursery)
        finally:
            self._slots.close()

    async def _drive(self, nursery: trio.Nursery) -> None:
        core = self._core
        phase: Phase | None = None
        while core.phase not in (Phase.DONE, Phase.FAILED):
            if core.phase is not phase:
                phase = core.phase
                self._environment.mark(f"recovery: {phase.value}")
            self._wake = trio.Event()
            if core.intent is not None:
                core.on_metadata_read(*await self._write(core.intent))
                continue
            for slot, bookie in core.take_fences():
                nursery.start_soon(self._fence, slot, bookie)
            for ask in core.take_reads():
                nursery.start_soon(self._read, ask)
            self._write_back()
            if core.intent is None and core.phase not in (Phase.DONE, Phase.FAILED):
                is_stalled = trio.current_time() - self._progress_at >= REACH_ASK_S
                with trio.move_on_after(REACH_LOOK_S if is_stalled else _LOOK_S):
                    await self._wake.wait()
        self._environment.mark(f"recovery: {core.phase.value}")

    async def _write(self, intent: MetadataIntent) -> tuple[LedgerMetadata | None, int]:
        wanted = intent.metadata
        files = wanted.is_closed and wanted.last_entry != NO_ENTRY and may_lack_copies(wanted.replication)
        if files:
            self.filed.add(wanted.token)
        return await self._registry.attempt(intent, files={"asks_all": True} if files else None)

    async def _fence(self, slot: int, bookie: BookieId) -> None:
        try:
            reply = await self._pool.connection(bookie).request(
                Kind.FENCE, timeout_s=REQUEST_TIMEOUT_S, ledger_id=self._core.ledger_id, key=self._key
            )
        except BookieUnavailable as cause:
            self._not_fenced(slot, str(cause))
        else:
            if reply.header.status == Status.OK:
                self._core.on_fence_ok(slot, reply.header.lac, reply.header.lafr)
            elif reply.header.status == Status.PERMISSION_DENIED:
                self._core.deny(denied(self._pool.connection(bookie), self._core.ledger_id, _WHAT))
            else:
                self._not_fenced(slot, f"bookie {bookie} answers {Status(reply.header.status).name}")
        self._wake.set()

    def _not_fenced(self, slot: int, why: str) -> None:
        logger.info("ledger=%d is not fenced in slot %d: %s", self._core.ledger_id, slot, why)
        self._core.on_fence_failed(slot, why)

    async def _read(self, ask: ReadAsk) -> None:
        try:
            answer = await read_range(
                self._pool.connection(ask.bookie),
                self._core.ledger_id,
                first=ask.first,
                last=ask.last,
                stride=ask.stride,
                recovery_key=self._key,
            )
        except PermissionDenied as denial:
            self._core.deny(denial)
            self._wake.set()
            return
        if answer is None:
            self._core.on_read_failed(ask)
        else:
            self._core.on_read(ask, answer.found, answer.through, answer.negative)
        self._wake.set()

    def _write_back(self) -> None:
        core = self._core
        if core.phase not in (Phase.READING, Phase.CLOSING) or core.pending.is_drained:
            self._progress_at = trio.current_time()
            self._reach.on_progress()
            return
        self._follow()
        # Bookies that refused a write-back (overloaded, or disk full) may take it now.
        for sink in self._refusals.take_due():
            core.on_bookie_connected(sink.bookie)
        self._slots.send_due()
        self._look_at_reach()
        self._replace()
        if core.pending.settled > self._settled:
            self._settled = core.pending.settled
            self._progress_at = trio.current_time()
            self._reach.on_progress()
        elif trio.current_time() - self._progress_at > self._deadline_s:
            core.give_up(f"entry {core.pending.settled + 1} was not taken within {self._deadline_s:g} s")

    def _follow(self) -> None:
        core = self._core
        self._slots.follow(core.private_ensemble, core.pending.fragments[-1].first_entry)

    def _look_at_reach(self) -> None:
        """If the write-back is stalled, replace the bookies that give no sign of life, as a writer does."""
        if trio.current_time() - self._progress_at < REACH_ASK_S:
            return
        members = self._core.pending.ensemble
        spares = [info.bookie_id for info in self._directory.writable() if info.bookie_id not in members]
        self._slots.look_for_signs(self._reach, spares, self._directory.quarantine)
        for bookie in self._reach.unanswering:
            self._core.on_bookie_failed(bookie)
            self._directory.quarantine(bookie)

    def _replace(self) -> None:
        core = self._core
        failed = core.replaceable()
        if not failed:
            return
        is_stalled = trio.current_time() - self._progress_at >= _LOOK_S
        chosen = self._directory.replacements(
            core.pending.ensemble,
            failed,
            write_quorum=core.pending.replication.write_quorum,
            even_doubtful=is_stalled,
        )
        if chosen:
            core.change_ensemble(chosen)
            self._follow()
            self._slots.send_due()

    # --- SlotOwner ----------------------------------------------------------------------------

    def on_add_refused(self, bookie: BookieId, first: int, last: int, status: Status) -> None:
        logger.warning(
            "ledger=%d bookie=%s refuses a write-back: %s", self._core.ledger_id, bookie, status.name
        )
        if status is Status.PERMISSION_DENIED:
            self._core.deny(denied(self._pool.connection(bookie), self._core.ledger_id, _WHAT))
            return
        self._refusals.add(bookie)
        self._core.on_bookie_failed(bookie)
        self._directory.quarantine(bookie)

    def on_bookie_lost(self, bookie: BookieId, why: str) -> None:
        self._refusals.forget(bookie)
        self._core.on_bookie_failed(bookie)
        self._directory.quarantine(bookie)

    def on_bookie_connected(self, bookie: BookieId) -> None:
        self._refusals.forget(bookie)
        self._core.on_bookie_connected(bookie)

    def marks(self) -> tuple[int, int]:
        return self._core.frozen_lac, self._core.frozen_lafr

    def act(self) -> None:
        self._wake.set()
