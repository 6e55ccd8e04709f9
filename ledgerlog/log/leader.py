"""A leadership at work, from records to answers: the shell around ``log.core.leadership.Leadership``.

    pump         turns batches into entries of the current ledger: at once while few entries
                 are on their way, otherwise when a batch is full. Records gather meanwhile
    progress     a ledger confirmed entries: answer their tickets, then pump
    maintain     one task rolls and closes the chain's ledgers as needed. Another task makes the
                 next ledgers ahead of time (``log.maintenance``)

Calls go one way. The ``LogWriter`` calls the ``LogLeader``, which calls the core and the chain maintenance.
The core and the maintenance do not call back. The leader looks at the core after each step of the
maintenance, before any other task runs. So after a roll it sends no record to the old ledger.

A lone record is on the wire before its caller first waits. A busy writer pays the cost of the protocol once
per entry of ``limits.LOG_ENTRY_BYTES_TARGET`` bytes. There is no timer and no task per record. With
``linger_s``, a batch waits that long for more records, unless it is full; one timer serves all batches.

**Deduplication.** The table of producers (``log.core.producers``) grows with the records that are sent. It
goes into the log as a checkpoint (an entry that holds the whole table) before the first records of each
ledger, and again whenever a takeover would otherwise have too many entries to replay.

**The end.** A leadership ends once: the user leaves the writer, one of its ledgers fails, or the record shows
a successor. After that nothing more is sent. If a record was never sent, it is surely not in the log. To
learn which of the sent records are in the log, the leader recovers its own ledgers. That is harmless, because
these ledgers take no more entries. If too few bookies may be left for a recovery, the writer of each ledger
first tries to close the ledger. The end of each ledger tells the outcome of every entry. The outcome is
unknown only if the recovery takes longer than ``limits.LOG_RESOLVE_TIMEOUT_S`` or fails. Every way out goes
through ``_answer_all``, so no append waits forever.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection

import attrs
import trio

from ledgerlog.concurrency.watermark import Watermark, fresh
from ledgerlog.errors import (
    LedgerLogError,
    NotEnoughBookies,
    PermissionDenied,
    WriteQuorumUnavailable,
)
from ledgerlog.event_log import LOG_LEADERSHIP_LOST, tell
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.core.recovery import may_be_short
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import (
    LOG_ENTRY_BYTES_TARGET,
    LOG_RESOLVE_TIMEOUT_S,
    LOG_RETENTION_LOOK_S,
    LOG_WINDOW_BYTES,
    LOG_WINDOW_RECORDS,
    WRITER_FRAMES_OUTSTANDING,
)
from ledgerlog.log.core.append_queue import AppendQueue, Batch
from ledgerlog.log.core.leadership import Leadership
from ledgerlog.log.core.producers import Producers
from ledgerlog.log.leader_reach import LeaderReach
from ledgerlog.log.maintenance import ChainMaintenance
from ledgerlog.log.registry import LogRegistry
from ledgerlog.log.retention import apply_retention, truncate
from ledgerlog.log.takeover import delete_ledgers
from ledgerlog.model.log import LogMetadata
from ledgerlog.wire.records import Numbering, encode_checkpoint, encode_entry

_DISCARD_TIMEOUT_S = 2.0
"""How long an abandoned leader tries to delete its unused spare ledger, in seconds."""

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class SendOptions:
    """How records become entries. ``Log.writer`` explains each option."""

    window_records: int = LOG_WINDOW_RECORDS
    window_bytes: int = LOG_WINDOW_BYTES
    entry_bytes: int = LOG_ENTRY_BYTES_TARGET
    linger_s: float = 0.0
    compress: bool = False


class LogLeader:
    """One leadership at work. ``run`` serves it; a ``LogWriter`` takes the records and passes them on.

    Args:
        metadata: The record that the takeover wrote.
        version: The version of that record.
        ledger: The writer of the ledger that the takeover made.
        client: The client of the cluster.
        registry: The records of the logs.
        options: How records become entries.
        producers: The table of producers; None if the log has no deduplication.
    """

    def __init__(
        self,
        metadata: LogMetadata,
        version: int,
        ledger: LedgerWriter,
        *,
        client: LedgerClient,
        registry: LogRegistry,
        options: SendOptions,
        producers: Producers | None = None,
    ) -> None:
        self._client = client
        self._registry = registry
        self._now_ms = client.environment.now_ms
        self.record_bytes_max = client.environment.record_bytes_max
        """The largest record that the log takes."""
        self.queue = AppendQueue(
            metadata.name,
            epoch=metadata.epoch,
            next_offset=metadata.counted_end,
            entry_bytes=min(options.entry_bytes, self.record_bytes_max),
            window_records=options.window_records,
            window_bytes=options.window_bytes,
        )
        self.core = Leadership(
            metadata,
            version,
            ledger.ledger_id,
            new_token=client.environment.new_token,
            queue=self.queue,
            producers=producers,
        )
        self._compress = options.compress
        self._linger_s = options.linger_s
        self._due_ticket = 0
        """For lingering: if an open batch begins below this ticket, it has lingered long enough."""
        self._lingering = -1
        """The first ticket of the open batch that was seen last."""
        self._lingering_since = -math.inf
        """When that batch was first seen."""
        self._linger_wanted = trio.Event()
        self.answered = Watermark()
        """The last answered ticket. At the end of the leadership, this watermark fails with the reason."""
        self._pumping = False
        self._pump_again = False
        self._room_wanted = trio.Event()
        self._over = trio.Event()
        self._moved = trio.Event()
        self._leader_reach = LeaderReach.current()
        self._maintenance = ChainMaintenance(self.core, ledger, client=client, registry=registry)
        self._follow(ledger)

    # --- sending ------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send the batches that are due.

        A ledger may report progress or its failure from within ``push``, so ``pump`` may be called again
        while it runs. The inner call only sets ``_pump_again``, and the outer call then repeats its loop.
        """
        if self._pumping:
            self._pump_again = True
            return
        self._pumping = True
        try:
            self._pump_again = True
            while self._pump_again:
                self._pump_again = False
                self._send_due()
                if self._pump_again:
                    # Entries that were just sent may be confirmed already.
                    writer = self._writer
                    self.queue.on_confirmed(writer.ledger_id, writer.last_add_confirmed)
        finally:
            self._pumping = False
        queue = self.queue
        if queue.answered > self.answered.value and self.answered.failure is None:
            self.answered.advance(queue.answered)

    def _send_due(self) -> None:
        core, queue, writer = self.core, self.queue, self._writer
        assert writer.ledger_id == core.segment.ledger_id
        if self._linger_s > 0:
            self._note_open_batch()
        while core.failure is None and not core.chain.is_holding:
            full_only = queue.entries_sent >= WRITER_FRAMES_OUTSTANDING or (
                self._linger_s > 0 and queue.open_ticket >= self._due_ticket
            )
            batch = queue.first_to_send(full_only=full_only)
            if batch is None:
                # A batch that has lingered long enough waits for an entry on its way, and not for the timer.
                if self._linger_s > 0 and queue.has_queued and queue.open_ticket >= self._due_ticket:
                    self._linger_wanted.set()
                break
            if not writer.has_room:
                # A failed ledger has no more room, and reports its failure itself.
                if writer.failure is None:
                    self._room_wanted.set()
                break
            now_ms = max(core.last_ms, self._now_ms())
            try:
                numbering = None if core.producers is None else self._numbering(core.producers, batch, now_ms)
                payload = encode_entry(
                    batch.live_records(),
                    epoch=core.epoch,
                    first_offset=batch.first_offset,
                    timestamp_ms=now_ms,
                    bytes_before=core.bytes_total,
                    numbering=numbering,
                    compress=self._compress,
                    attributes=batch.live_attributes(),
                )
                entry_id = writer.push((payload,))
            except LedgerLogError as failure:
                self._on_lost(failure)
                break
            numbered = None if numbering is None else numbering.numbered
            if core.segment.first_ms is None:
                core.on_first(trio.current_time())
            if core.on_sent(batch, entry_id, now_ms, numbered):
                self._maintenance.look()

    def _note_open_batch(self) -> None:
        """Note when a batch that takes records began."""
        ticket = self.queue.open_ticket
        if self._lingering < ticket < self.queue.next_ticket:
            self._lingering, self._lingering_since = ticket, trio.current_time()

    def now_ms(self) -> int:
        """Return the time by the leader's clock, which never goes back."""
        return max(self.core.last_ms, self._now_ms())

    def hurry(self) -> None:
        """Send everything that was taken, without lingering."""
        self._due_ticket = self.queue.next_ticket
        self.pump()

    def on_taken_back(self) -> None:
        """Records left the queue that were not sent. Without them the current ledger may be drained."""
        self.pump()
        self._look_if_closing()

    def _numbering(self, producers: Producers, batch: Batch, now_ms: int) -> Numbering:
        """Return the data about producers for the next entry. If a checkpoint is due, send it first."""
        core, writer = self.core, self._writer
        if core.is_checkpoint_due:
            entry_id = writer.last_add_pushed + 1
            payload = encode_checkpoint(
                producers.checkpoint(now_ms),
                entry_id=entry_id,
                epoch=core.epoch,
                first_offset=batch.first_offset,
                timestamp_ms=now_ms,
                bytes_before=core.bytes_total,
            )
            pushed = writer.push((payload,))
            assert pushed == entry_id, "the entry is the one that it says it is"
            core.on_checkpoint(entry_id, len(payload))
        checkpoint = core.segment.checkpoint
        assert checkpoint is not None
        return Numbering(checkpoint.entry_id, batch.live_numbered())

    def _follow(self, writer: LedgerWriter) -> None:
        """Send new appends to this ledger from now on."""

        def on_progress() -> None:
            self._on_progress(writer)

        self._writer = writer
        writer.set_progress_callback(on_progress)
        writer.set_reach_callback(self._tell_reach)
        self._tell_reach()

    def _tell_reach(self) -> None:
        """If this process leads by an election, tell the election whether the bookies can be reached."""
        if self._leader_reach is not None:
            draining = self._maintenance.draining
            before = None if draining is None else draining.out_of_reach
            self._leader_reach.report(self, before or self._writer.out_of_reach)

    def _on_progress(self, writer: LedgerWriter) -> None:
        """A ledger confirmed entries, or failed."""
        queue = self.queue
        answered = queue.on_confirmed(writer.ledger_id, writer.last_add_confirmed)
        if answered > self.answered.value and self.answered.failure is None:
            self.answered.advance(answered)
        if writer.failure is not None:
            self._on_lost(writer.failure if writer.denial is None else writer.denial)
        elif queue.has_queued or self._pumping:
            self.pump()
        self._look_if_closing()

    def _look_if_closing(self) -> None:
        if self.core.chain.closing is not None:
            self._maintenance.look()

    def _on_lost(self, failure: LedgerLogError) -> None:
        """End the leadership, and wake the task that serves it."""
        self.core.on_lost(failure)
        self._maintenance.look()

    # --- the tasks, and the end -----------------------------------------------------------------

    async def run(self) -> None:
        """Serve the leadership until it ends, then answer every append that still waits."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._maintenance.watch, self._client.store)
            nursery.start_soon(self._maintenance.desk.watch)
            nursery.start_soon(self._maintenance.make_spares)
            nursery.start_soon(self._make_room)
            nursery.start_soon(self._retain)
            if self._linger_s > 0:
                nursery.start_soon(self._linger)
            await self._maintain()
            nursery.cancel_scope.cancel()
        if self.core.failure is not None:
            await self._resolve()
        self._over.set()

    async def _maintain(self) -> None:
        """Carry out the steps that the chain needs, until it is finished or lost."""
        core, maintenance = self.core, self._maintenance
        while True:
            core.look(trio.current_time())
            if maintenance.current is not self._writer:
                self._follow(maintenance.current)
                self.pump()
            elif core.is_over:
                break
            elif await maintenance.step():
                self._tell_moved()
            else:
                await maintenance.wait(core.look_at(trio.current_time()))
        self._tell_moved()

    def _tell_moved(self) -> None:
        """Wake the tasks that wait for the chain to change."""
        self._moved.set()
        self._moved = trio.Event()

    async def wait_over(self) -> None:
        """Wait until the leadership has ended and every append is answered."""
        await self._over.wait()

    async def refuse(self) -> None:
        """Raise the reason why nothing more is taken, if there is one.

        The reason is as precise as possible. When we looked first, a successor that fenced us may not have
        written its epoch yet, so this method looks again. If nothing is wrong, it returns at once, without a
        checkpoint.

        Raises:
            LostLeadership: Another writer leads, or the user leaves this one.
            LogSealed: The log was sealed.
            NotEnoughBookies: The leadership ended because too few bookies were writable.
            PermissionDenied: The leadership ended because this client may no longer write the log.
        """
        core = self.core
        if core.refusal is None:
            return
        if core.failure is not None:
            await self._over.wait()
            with trio.move_on_after(LOG_RESOLVE_TIMEOUT_S):
                await self._learn_successor()
        raise fresh(core.refusal)

    async def roll(self) -> None:
        """Continue in a new ledger; see ``LogWriter.roll``."""
        chain = self.core.chain
        await self.refuse()
        if not self.core.segment.record_count and not self.queue.has_queued:
            return
        before = chain.current
        chain.want_roll()
        self._maintenance.look()
        while before in (chain.current, chain.draining):
            await self._moved.wait()
            await self.refuse()

    async def _make_room(self) -> None:
        """Pump again once a full ledger window has room.

        Usually the progress callback does that. In guaranteed mode, where entries stay in the window until
        they are fully replicated, room can come without progress of the LAC. Room may also never come: if the
        last copies find no bookie within the append deadline, the leadership ends and the waiting appends get
        that error.
        """
        while True:
            await self._room_wanted.wait()
            self._room_wanted = trio.Event()
            writer = self._writer
            try:
                await writer.wait_room()
            except WriteQuorumUnavailable as failure:
                if writer is self._writer:
                    self._on_lost(failure)
            except LedgerLogError:
                pass  # If the ledger is still in use, its progress callback reports the failure.
            self.pump()

    async def _retain(self) -> None:
        """While we lead, drop the ledgers that retention lets go: after each roll, and as ledgers get old."""
        core, chain = self.core, self.core.chain
        while True:
            metadata = chain.metadata
            retention = metadata.retention
            age_s = retention.max_age_s
            now_ms = self._now_ms()
            if core.want_roll_of_expired(now_ms):
                self._maintenance.look()
            if core.may_let_go(now_ms):
                try:
                    gone = await apply_retention(
                        self._client,
                        self._registry,
                        core.name,
                        metadata.incarnation,
                        epoch=core.epoch,
                        durable_bytes=core.durable_bytes,
                    )
                    if gone:
                        logger.info("log=%s: retention dropped %d records", core.name, gone)
                except LedgerLogError as cause:
                    logger.warning("log=%s: retention cannot drop anything now: %s", core.name, cause)
            look_s = (
                LOG_RETENTION_LOOK_S if age_s is None else min(LOG_RETENTION_LOOK_S, max(1.0, age_s / 10))
            )
            with trio.move_on_after(look_s):
                count = len(chain.metadata.segments)
                while count == len(chain.metadata.segments) and retention == chain.metadata.retention:
                    await self._moved.wait()

    async def truncate(self, before_offset: int, *, ignore_pins: bool) -> None:
        """Give up records, as long as we lead; see ``LogWriter.truncate``."""
        await truncate(
            self._client,
            self._registry,
            self.core.name,
            self.core.chain.metadata.incarnation,
            before_offset,
            self.queue.durable_offset,
            ignore_pins=ignore_pins,
            epoch=self.core.epoch,
        )

    async def _linger(self) -> None:
        """Send an open batch once its first record has lingered long enough."""
        while True:
            await self._linger_wanted.wait()
            ticket = self._lingering
            await trio.sleep_until(self._lingering_since + self._linger_s)
            # If a request came meanwhile, the pump below sees its batch, and asks again if it does not send.
            self._linger_wanted = trio.Event()
            # Later records may have filled the batch, and another batch may be open by now.
            self._due_ticket = max(self._due_ticket, ticket + 1)
            self.pump()

    async def _resolve(self) -> None:
        """Find out whether the records that were sent are in the log, and which process leads now."""
        ends: dict[int, int] = {}
        short: set[int] = set()
        writers = [
            writer for writer in (self._maintenance.draining, self._maintenance.current) if writer is not None
        ]
        with trio.move_on_after(LOG_RESOLVE_TIMEOUT_S):
            for writer in writers:
                await self._end_ledger(writer)
                if self.queue.entries_sent:
                    try:
                        metadata = await self._client.ledgers.recover(writer.ledger_id)
                    except LedgerLogError as cause:
                        logger.info("ledger=%d: its end is not known: %s", writer.ledger_id, cause)
                    else:
                        assert metadata.last_entry is not None
                        ends[writer.ledger_id] = metadata.last_entry
                        if may_be_short(metadata):
                            short.add(writer.ledger_id)
            await self._learn_successor()
        self._answer_all(ends, short)
        for writer in writers:
            writer.set_progress_callback(None)
            writer.set_reach_callback(None)
            if writer.failure is None:
                await writer.aclose()
            # A writer that has failed ends by itself. If the store is away now, that writer may store the end
            # later.

    async def _end_ledger(self, writer: LedgerWriter) -> None:
        """End the writer of one of our ledgers, so that a recovery finds where the ledger ends.

        If the bookies of a ledger are gone, or refuse this client, the ledger cannot be recovered. In the
        plain (not guaranteed) mode, however, its writer can close it at its LAC without these bookies. That
        must happen before any recovery begins. If a ledger has failed, its writer is closing it already. So
        wait for this writer: leaving the writer would cancel its write.
        """
        try:
            if writer.failure is not None:
                await writer.close()
            elif isinstance(self.core.failure, NotEnoughBookies | PermissionDenied):
                await writer.close(timeout_s=0)
        except LedgerLogError as cause:
            logger.info("ledger=%d is not closed by its writer: %s", writer.ledger_id, cause)
        if writer.failure is None:
            await writer.aclose()

    async def _learn_successor(self) -> None:
        core = self.core
        if not core.wants_successor:
            return
        incarnation = core.chain.metadata.incarnation
        try:
            record, _ = await self._registry.read(incarnation)
            why_gone = await self._registry.why_missing(core.name, incarnation) if record is None else None
        except LedgerLogError as cause:
            logger.info("log=%s: its record cannot be read now: %s", core.name, cause)
            return
        core.on_successor(record, why_gone)

    def _answer_all(self, ends: dict[int, int], short: Collection[int] = ()) -> None:
        """Answer every append that still waits. After this call no append can wait."""
        counts, unknown = self._client.counts, self.queue.unknown_count
        if not self._over.is_set() and self.core.failure is not None:
            counts.leaderships_lost += 1
            tell(
                logger,
                LOG_LEADERSHIP_LOST,
                "log=%(log)s: the leadership in epoch %(epoch)d ended: %(why)s",
                log=self.core.name,
                epoch=self.core.epoch,
                why=str(self.core.failure),
            )
        failure = self.core.end(ends, short)
        counts.unknown_records += self.queue.unknown_count - unknown
        if self.answered.failure is None:
            self.answered.advance(max(self.queue.answered, self.answered.value))
            self.answered.fail(failure)
        self._over.set()
        self._tell_moved()
        if self._leader_reach is not None:
            self._leader_reach.report(self, None)
            self._leader_reach = None

    async def leave(self) -> None:
        """Take no more records, send and acknowledge the taken records, close the ledger and count it."""
        self.core.leave()
        self._linger_s = 0.0
        self.pump()
        self._maintenance.look()
        await self._over.wait()

    async def abandon(self) -> None:
        """End everything at once, in any state."""
        self._answer_all({})
        with trio.move_on_after(_DISCARD_TIMEOUT_S, shield=True):
            await delete_ledgers(self._client.ledgers, await self._maintenance.give_up_ledgers())
