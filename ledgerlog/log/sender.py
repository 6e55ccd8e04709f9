"""The working part of a leadership: from records that were taken to answers.

    pump       batches become entries of the current ledger: at once while few entries are on their
               way, else when a batch is full; what arrives meanwhile gathers
    progress   a ledger confirmed entries: their tickets are answered, and the pump runs
    keeper     one task that rolls, closes and watches (``log.keeper``); it asks here what is drained

A lone record is on the wire before its caller first waits, and a busy writer pays the protocol once
per entry of ``limits.LOG_ENTRY_BYTES_TARGET``. There is no timer and no task per record. With ``linger_s`` a
batch that takes more records waits for them that long, which is one timer for all.

**Deduplication.** The table of producers (``core.producers``) grows with what is sent, and goes into the log
as a checkpoint: before the first records of each ledger, and again after so much that replaying it would make
a takeover slow.

**The end.** A leadership ends once: the writer is left, or a ledger of it fails, or the record shows a
successor. From then on nothing more is sent. What was never sent is surely not in the log. What
was sent is looked for: the leader recovers its own ledgers, which is harmless since they are dead
already, and where each ends tells the fate of every entry. Only where that cannot be found out in
``limits.LOG_RESOLVE_TIMEOUT_S`` is the outcome unknown. Every way out goes through ``answer_all``, so
no append waits for ever.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection

import attrs
import trio

from ledgerlog.client.client import LedgerClient
from ledgerlog.client.writer import LedgerWriter
from ledgerlog.concurrency.watermark import Watermark, fresh
from ledgerlog.core.append_queue import AppendQueue, Batch
from ledgerlog.core.keeping import is_current_expired, let_go
from ledgerlog.core.log_chain import LeaderChain
from ledgerlog.core.producers import Producers
from ledgerlog.errors import (
    LedgerLogError,
    LogSealed,
    LostLeadership,
    NotEnoughBookies,
    WriteQuorumUnavailable,
)
from ledgerlog.limits import (
    LOG_CHECKPOINT_BYTES,
    LOG_CHECKPOINT_ENTRIES,
    LOG_ENTRY_BYTES_TARGET,
    LOG_RESOLVE_TIMEOUT_S,
    LOG_RETENTION_LOOK_S,
    LOG_WINDOW_BYTES,
    LOG_WINDOW_RECORDS,
    WRITER_FRAMES_OUTSTANDING,
)
from ledgerlog.log.keeper import Keeper
from ledgerlog.log.keeping import apply_retention, truncate
from ledgerlog.log.registry import LogRegistry
from ledgerlog.log.takeover import delete_ledgers, is_short
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.segments import NOTHING, SegmentCounts
from ledgerlog.wire.records import Numbering, encode_checkpoint, encode_entry

_LATE_ROLL_S = 1.0
"""How soon a roll by age is wanted again where the roll before it had not ended."""

_DISCARD_TIMEOUT_S = 2.0
"""Leaving in a hurry tries for this long to delete a ledger that nobody will use."""

_SPARE_AT = 0.75
"""The next ledger is made when a bound of the roll policy is used up to this part."""

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class SendOptions:
    """How records become entries."""

    window_records: int = LOG_WINDOW_RECORDS
    window_bytes: int = LOG_WINDOW_BYTES
    entry_bytes: int = LOG_ENTRY_BYTES_TARGET
    linger_s: float = 0.0
    compress: bool = False


@attrs.define
class _Checkpoint:
    """A table of producers that was sent to a ledger, and what was sent after it."""

    entry_id: int
    size: int
    byte_length: int = 0
    entries: int = 0

    @property
    def is_old(self) -> bool:
        """Whether replaying what follows it, rather than it, would make a takeover slow."""
        return self.byte_length >= max(LOG_CHECKPOINT_BYTES, 32 * self.size) or self.entries >= max(
            LOG_CHECKPOINT_ENTRIES, self.size // 32
        )


@attrs.define
class _Segment:
    """What this leadership has sent to one ledger."""

    writer: LedgerWriter
    record_count: int = 0
    byte_length: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    since: float = math.inf
    """trio's time of the first entry; an empty ledger does not age."""
    checkpoint: _Checkpoint | None = None

    def counts(self) -> SegmentCounts:
        if not self.record_count:
            return NOTHING
        return SegmentCounts(self.record_count, self.byte_length, self.first_ms, self.last_ms)

    def used(self, policy: RollPolicy) -> float:
        """Which part of the policy's tightest bound is used up, age aside."""
        used = 0.0
        if policy.max_bytes is not None:
            used = self.byte_length / policy.max_bytes
        if policy.max_records is not None:
            used = max(used, self.record_count / policy.max_records)
        return used


class Sender:
    """One leadership at work. ``run`` serves it; the ``LogWriter`` in front of it takes the records."""

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
        self._name = metadata.name
        self._policy = metadata.roll
        """As of the newest record that the keeper has seen."""
        self._now_ms = client.environment.now_ms
        self.epoch = metadata.epoch
        self.queue = AppendQueue(
            metadata.name,
            epoch=metadata.epoch,
            next_offset=metadata.counted_end,
            entry_bytes=options.entry_bytes,
            window_records=options.window_records,
            window_bytes=options.window_bytes,
        )
        self.producers = producers
        """Who appended what; None where the log has no deduplication."""
        self._compress = options.compress
        self._linger_s = options.linger_s
        self._due_ticket = 0
        """With lingering: an open batch that begins below this ticket has lingered enough."""
        self._linger_wanted = trio.Event()
        self.answered = Watermark()
        """The last ticket that is answered. It fails once everything is, at the end."""
        self.refusal: LedgerLogError | None = None
        """Why nothing more is taken: the writer is being left, or ``failure``."""
        self.failure: LedgerLogError | None = None
        """Why nothing more is sent; set once, and once more when the reason is known better."""
        self.entries_appended = 0
        self._bytes_before = metadata.counted_bytes
        """Bytes of the records before this leadership."""
        self.bytes_total = self._bytes_before
        """Bytes of all records of the log up to and with the last that was sent."""
        self._last_ms = metadata.counted_ms
        self.rolls = 0
        self.segment = _Segment(ledger)
        self._draining_segment: _Segment | None = None
        self._pumping = False
        self._pump_again = False
        self._room_wanted = trio.Event()
        self._over = trio.Event()
        self.chain = LeaderChain(metadata, version, ledger.ledger_id, new_token=client.environment.new_token)
        self.keeper = Keeper(self.chain, ledger, self, client=client, registry=registry)
        self._follow(ledger)

    # --- sending ------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send what is due. A ledger may report progress or its failure from within ``push``, hence the
        guard: that is looked at before this returns."""
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
                    # What was just sent may be what was just confirmed.
                    writer = self.segment.writer
                    self.queue.on_confirmed(writer.ledger_id, writer.last_add_confirmed)
        finally:
            self._pumping = False
        queue = self.queue
        if queue.answered > self.answered.value and self.answered.failure is None:
            self.answered.advance(queue.answered)

    def _send_due(self) -> None:
        queue = self.queue
        segment = self.segment
        writer = segment.writer
        while self.failure is None:
            full_only = queue.entries_sent >= WRITER_FRAMES_OUTSTANDING or (
                self._linger_s > 0 and queue.open_ticket >= self._due_ticket
            )
            batch = queue.first_to_send(full_only=full_only)
            if batch is None:
                if self._linger_s > 0 and queue.has_queued:
                    self._linger_wanted.set()
                break
            if not writer.has_room:
                if writer.failure is None:  # One that failed has no room any more, and tells its failure.
                    self._room_wanted.set()
                break
            self._last_ms = now_ms = max(self._last_ms, self._now_ms())
            try:
                numbering = None if self.producers is None else self._numbering(self.producers, batch, now_ms)
                payload = encode_entry(
                    batch.live_records(),
                    epoch=self.epoch,
                    first_offset=batch.first_offset,
                    timestamp_ms=now_ms,
                    bytes_before=self.bytes_total,
                    numbering=numbering,
                    compress=self._compress,
                )
                entry_id = writer.push((payload,))
            except LedgerLogError as failure:
                self.on_lost(failure)
                break
            if numbering is not None:
                self._on_numbered(numbering, batch, now_ms)
            self.entries_appended += 1
            self.bytes_total += batch.size
            segment.record_count += batch.live_count
            segment.byte_length += batch.size
            segment.last_ms = now_ms
            if segment.first_ms is None:
                segment.first_ms = now_ms
                segment.since = trio.current_time()
                if self._policy.max_age_s is not None:
                    self.keeper.look_at(segment.since + self._policy.max_age_s * _SPARE_AT)
            queue.on_sent(batch, writer.ledger_id, entry_id)
            self._want_roll_of(segment)

    def now_ms(self) -> int:
        """The leader's clock, which never goes back."""
        return max(self._last_ms, self._now_ms())

    def hurry(self) -> None:
        """Send what was taken without lingering."""
        self._due_ticket = self.queue.next_ticket
        self.pump()

    def _numbering(self, producers: Producers, batch: Batch, now_ms: int) -> Numbering:
        """What the next entry says of producers. Sends a checkpoint first where one is due."""
        segment = self.segment
        checkpoint = segment.checkpoint
        if checkpoint is None or checkpoint.is_old:
            writer = segment.writer
            entry_id = writer.last_add_pushed + 1
            payload = encode_checkpoint(
                producers.checkpoint(now_ms),
                entry_id=entry_id,
                epoch=self.epoch,
                first_offset=batch.first_offset,
                timestamp_ms=now_ms,
                bytes_before=self.bytes_total,
            )
            pushed = writer.push((payload,))
            assert pushed == entry_id, "the entry is the one that it says it is"
            checkpoint = segment.checkpoint = _Checkpoint(entry_id, len(payload))
        return Numbering(checkpoint.entry_id, batch.live_numbered())

    def _on_numbered(self, numbering: Numbering, batch: Batch, now_ms: int) -> None:
        assert self.producers is not None
        assert self.segment.checkpoint is not None
        if numbering.numbered:
            self.producers.on_sent(numbering.numbered, batch.first_offset, now_ms)
        self.segment.checkpoint.byte_length += batch.size
        self.segment.checkpoint.entries += 1

    def _want_roll_of(self, segment: _Segment) -> None:
        used = segment.used(self._policy)
        if used >= _SPARE_AT:
            self._want_roll(used)

    def _want_roll(self, used: float) -> None:
        chain = self.chain
        if not chain.may_roll_by_policy:
            return
        if used >= 1:
            chain.want_roll()
            self.keeper.look()
        elif not chain.has_spare:
            chain.want_spare()
            self.keeper.look()

    def _follow(self, writer: LedgerWriter) -> None:
        def on_progress() -> None:
            self._on_progress(writer)

        writer.set_progress_callback(on_progress)

    def _on_progress(self, writer: LedgerWriter) -> None:
        """A ledger confirmed entries, or failed."""
        queue = self.queue
        answered = queue.on_confirmed(writer.ledger_id, writer.last_add_confirmed)
        if answered > self.answered.value and self.answered.failure is None:
            self.answered.advance(answered)
        if writer.failure is not None:
            self.on_lost(writer.failure)
        elif queue.has_queued or self._pumping:
            self.pump()
        if self.chain.closing is not None:
            self.keeper.look()

    # --- Appends: what the keeper asks ----------------------------------------------------------

    def is_drained(self, ledger_id: int) -> bool:
        if ledger_id == self.segment.writer.ledger_id:
            return not self.queue.has_queued and not self.queue.entries_sent
        return self.queue.is_drained(ledger_id)

    def counts_of(self, ledger_id: int) -> SegmentCounts:
        for segment in (self.segment, self._draining_segment):
            if segment is not None and segment.writer.ledger_id == ledger_id:
                return segment.counts()
        raise AssertionError(f"ledger {ledger_id} is not of this leadership")

    def on_ledger(self, writer: LedgerWriter) -> None:
        self.rolls += 1
        self._draining_segment, self.segment = self.segment, _Segment(writer)
        self._follow(writer)
        self.pump()

    def on_record(self, metadata: LogMetadata) -> None:
        if metadata.roll != self._policy:
            self._policy = metadata.roll
            self._want_roll_of(self.segment)
            self.on_time()

    def on_lost(self, failure: LedgerLogError) -> None:
        """The leadership is over: take and send nothing more. The task that serves it goes on from here."""
        if self.failure is None:
            if not isinstance(failure, LostLeadership | LogSealed | NotEnoughBookies):
                failure = LostLeadership(self._name, None, str(failure))
            self.failure = self.refusal = failure
            self.chain.on_lost(failure)
            self.keeper.look()

    def on_time(self) -> None:
        """The age of the current ledger is worth a look."""
        age_s = self._policy.max_age_s
        if age_s is None or self.segment.first_ms is None:
            return
        now, due = trio.current_time(), self.segment.since + age_s
        near = self.segment.since + age_s * _SPARE_AT
        if now < near:
            self.keeper.look_at(near)
            return
        # By division alone the very moment asked for can come out a hair below 1, and would be asked for
        # again at once, for as long as the clock stands still.
        used = 1.0 if now >= due else (now - self.segment.since) / age_s
        self._want_roll(used)
        if now < due:
            self.keeper.look_at(due)
        elif self.chain.draining is not None:
            self.keeper.look_at(trio.current_time() + _LATE_ROLL_S)

    # --- the tasks, and the end -----------------------------------------------------------------

    async def run(self) -> None:
        """Serve the leadership until it ends; then answer whoever still waits."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.keeper.watch, self._client.store)
            nursery.start_soon(self._make_room)
            nursery.start_soon(self._retain)
            if self._linger_s > 0:
                nursery.start_soon(self._linger)
            await self.keeper.run()
            nursery.cancel_scope.cancel()
        if self.failure is not None:
            await self._resolve()
        self._over.set()

    async def wait_over(self) -> None:
        """Return once the leadership has ended and every append is answered."""
        await self._over.wait()

    async def refuse(self) -> None:
        """Raise why nothing more is taken, as well as that gets known: whoever fenced us may not have written
        his epoch yet when we looked. Returns if nothing is wrong; then it is no checkpoint."""
        if self.refusal is None:
            return
        if self.failure is not None:
            await self._over.wait()
            with trio.move_on_after(LOG_RESOLVE_TIMEOUT_S):
                await self._learn_successor()
        raise fresh(self.refusal)

    async def _make_room(self) -> None:
        """Run the pump again once a full ledger window has room. Progress does that by itself, but in
        guaranteed mode room can come without progress of the LAC, or not come at all: where the last copies
        find no bookie within the append deadline, those who wait are told."""
        while True:
            await self._room_wanted.wait()
            self._room_wanted = trio.Event()
            writer = self.segment.writer
            try:
                await writer.wait_room()
            except WriteQuorumUnavailable as failure:
                if writer is self.segment.writer:
                    self.on_lost(failure)
            except LedgerLogError:
                pass  # The failure of a ledger that still matters is told by its progress.
            self.pump()

    async def _retain(self) -> None:
        """Drop what retention lets go, while we lead: after each roll, and as ledgers get old."""
        while True:
            metadata = self.chain.metadata
            retention = metadata.retention
            age_s = retention.max_age_s
            now_ms = self._now_ms()
            if is_current_expired(metadata, now_ms, self.segment.last_ms) and self.chain.may_roll_by_policy:
                self.chain.want_roll()
                self.keeper.look()
            durable_bytes = self._bytes_before + self.queue.durable_bytes
            open_bytes = max(0, durable_bytes - metadata.counted_bytes)
            if let_go(metadata, None, now_ms, open_bytes=open_bytes):
                try:
                    gone = await apply_retention(
                        self._client,
                        self._registry,
                        self._name,
                        metadata.incarnation,
                        epoch=self.epoch,
                        durable_bytes=durable_bytes,
                    )
                    if gone:
                        logger.info("log=%s: retention dropped %d records", self._name, gone)
                except LedgerLogError as cause:
                    logger.warning("log=%s: retention drops nothing now: %s", self._name, cause)
            look_s = (
                LOG_RETENTION_LOOK_S if age_s is None else min(LOG_RETENTION_LOOK_S, max(1.0, age_s / 10))
            )
            with trio.move_on_after(look_s):
                count = len(self.chain.metadata.segments)
                while (
                    count == len(self.chain.metadata.segments) and retention == self.chain.metadata.retention
                ):
                    await self.keeper.wait_moved()

    async def truncate(self, before_offset: int, *, ignore_pins: bool) -> None:
        """Give records up, as long as we lead; see ``LogWriter.truncate``."""
        await truncate(
            self._client,
            self._registry,
            self._name,
            self.chain.metadata.incarnation,
            before_offset,
            self.queue.durable_offset,
            ignore_pins=ignore_pins,
            epoch=self.epoch,
        )

    async def _linger(self) -> None:
        """Send an open batch once its first record has waited for company long enough."""
        while True:
            await self._linger_wanted.wait()
            ticket = self.queue.open_ticket
            await trio.sleep(self._linger_s)
            # What was wanted meanwhile is seen by the pump, which wants it again where it is not sent.
            self._linger_wanted = trio.Event()
            # What came later may have made the batch full, and then another one is open by now.
            self._due_ticket = max(self._due_ticket, ticket + 1)
            self.pump()

    async def _resolve(self) -> None:
        """Find out what became of what was sent, and who leads now."""
        ends: dict[int, int] = {}
        short: set[int] = set()
        with trio.move_on_after(LOG_RESOLVE_TIMEOUT_S):
            for writer in (self.keeper.draining, self.keeper.current):
                if writer is None:
                    continue
                await writer.aclose()
                if self.queue.entries_sent:
                    try:
                        metadata = await self._client.ledgers.recover(writer.ledger_id)
                    except LedgerLogError as cause:
                        logger.info("ledger=%d: its end is not known: %s", writer.ledger_id, cause)
                    else:
                        assert metadata.last_entry is not None
                        ends[writer.ledger_id] = metadata.last_entry
                        if is_short(metadata):
                            short.add(writer.ledger_id)
            await self._learn_successor()
        self.answer_all(ends, short)

    async def _learn_successor(self) -> None:
        if not isinstance(self.failure, LostLeadership) or self.failure.epoch is not None:
            return
        try:
            record, _ = await self._registry.read(self.chain.metadata.incarnation)
        except LedgerLogError as cause:
            logger.info("log=%s: its record cannot be read now: %s", self._name, cause)
            return
        if record is None:
            self.failure = self.refusal = LostLeadership(self._name, None, "the log was deleted")
        elif record.sealed:
            self.failure = self.refusal = LogSealed(self._name)
        elif record.epoch > self.epoch:
            self.failure = self.refusal = LostLeadership(self._name, record.epoch)

    def answer_all(self, ends: dict[int, int], short: Collection[int] = ()) -> None:
        """Answer every append that still waits; afterwards none can wait."""
        if self.failure is None:
            self.failure = self.refusal = LostLeadership(self._name, None, "its writer was left")
        answered = self.queue.resolve(ends, short)
        if self.answered.failure is None:
            self.answered.advance(max(answered, self.answered.value))
            self.answered.fail(self.failure)
        self._over.set()
        self.keeper.tell_moved()

    async def leave(self) -> None:
        """Take nothing more, send and acknowledge what was taken, close the ledger, count it."""
        if self.refusal is None:
            self.refusal = LostLeadership(self._name, None, "its writer was left")
        self.chain.finish()
        self._linger_s = 0.0
        self.pump()
        self.keeper.look()
        await self._over.wait()

    async def abandon(self) -> None:
        """Let go of everything, whatever state it is in."""
        self.answer_all({})
        with trio.move_on_after(_DISCARD_TIMEOUT_S, shield=True):
            await delete_ledgers(self._client.ledgers, await self.keeper.give_up_ledgers())
