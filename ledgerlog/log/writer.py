"""A log's writer as a caller holds it: leadership, and appends through it.

    append ... submit      a record joins the open batch of ``core.append_queue``; the caller waits for
                           its ticket, which costs one reschedule and nothing else
    pump                   batches become entries of the current ledger: at once while few entries are
                           on their way, else when a batch is full; what arrives meanwhile gathers
    progress               a ledger confirmed entries: their tickets are answered, and the pump runs
    keeper                 one task that rolls, closes and watches (``log.keeper``)

A lone append is on the wire before ``append`` first waits. A busy writer pays the protocol once per
entry of ``limits.LOG_ENTRY_BYTES_TARGET``. There is no timer and no task per record.

**The end.** A leadership ends once: the writer is left, or a ledger of it fails, or the record shows a
successor. From then on nothing more is taken. What was never sent is surely not in the log. What
was sent is looked for: the writer recovers its own ledgers, which is harmless since they are dead
already, and where each ends tells the fate of every entry. Only where that cannot be found out
in ``limits.LOG_RESOLVE_TIMEOUT_S`` does an append end in AppendUnknown. Every way out goes through
``_answer_all``, so no append waits for ever.
"""

from __future__ import annotations

import contextlib
import logging
import math
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from ledgerlog.client.client import LedgerClient
from ledgerlog.client.watermark import Watermark, fresh
from ledgerlog.client.writer import LedgerWriter
from ledgerlog.core.append_queue import AppendQueue, Batch, BatchState, cumulative, group_cost
from ledgerlog.core.log_chain import Leadership
from ledgerlog.errors import (
    AppendUnknown,
    InvalidArgument,
    LedgerLogError,
    LogSealed,
    LostLeadership,
    NotEnoughBookies,
    RecordTooLarge,
)
from ledgerlog.limits import (
    LOG_CLOSE_TIMEOUT_S,
    LOG_RESOLVE_TIMEOUT_S,
    LOG_WINDOW_RECORDS,
    RECORD_BYTES_MAX,
    WRITER_FRAMES_OUTSTANDING,
)
from ledgerlog.log.beside import beside
from ledgerlog.log.keeper import Keeper
from ledgerlog.log.registry import LogRegistry
from ledgerlog.log.takeover import delete_ledgers, take_over
from ledgerlog.model.log import NOTHING, LogMetadata, RollPolicy, SegmentCounts
from ledgerlog.model.record import Ack
from ledgerlog.wire.records import encode_entry

__all__ = ["LogWriter", "Submission", "WriterStatistics", "lead"]

_LATE_ROLL_S = 1.0
"""How soon a roll by age is wanted again where the roll before it had not ended."""

_DISCARD_TIMEOUT_S = 2.0
"""Leaving in a hurry tries for this long to delete a ledger that nobody will use."""

_SPARE_AT = 0.75
"""The next ledger is made when a bound of the roll policy is used up to this part."""

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class WriterStatistics:
    """Counts since the writer was entered, and where it stands."""

    epoch: int
    next_offset: int
    """The offset of the next record, if all that is on its way arrives."""
    durable_offset: int
    """The offset after the last record that is acknowledged."""
    records_appended: int
    bytes_appended: int
    entries_appended: int
    records_outstanding: int
    """Taken and not yet acknowledged."""
    bytes_outstanding: int
    rolls: int
    ledger_id: int
    """Where new records go."""


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


class Submission:
    """A record that is on its way. It goes there whether or not anybody waits."""

    __slots__ = ("_batch", "_slot", "_ticket", "_writer")

    def __init__(self, writer: LogWriter, batch: Batch, slot: int, ticket: int) -> None:
        self._writer = writer
        self._batch = batch
        self._slot = slot
        self._ticket = ticket

    async def wait(self) -> Ack:
        """The record's Ack once it is durable. Errors as for ``LogWriter.append``. Cancelling abandons the
        wait and not the record; it may be waited for again, and by several tasks."""
        await self._writer._wait(self._batch, self._ticket)
        return self._batch.ack(self._slot)


class LogWriter:
    """The leader of a log, from ``async with log.writer()``. Any number of tasks may append at once; the
    records get their offsets in the order in which they were taken."""

    def __init__(
        self,
        metadata: LogMetadata,
        version: int,
        ledger: LedgerWriter,
        *,
        client: LedgerClient,
        registry: LogRegistry,
        window: int,
    ) -> None:
        self._client = client
        self._registry = registry
        self._name = metadata.name
        self._policy = metadata.roll
        self._epoch = metadata.epoch
        self._now_ms = client.environment.now_ms
        self._queue = AppendQueue(
            metadata.name,
            epoch=metadata.epoch,
            next_offset=metadata.counted_end,
            window_records=window,
        )
        self._answered = Watermark()
        self._refusal: LedgerLogError | None = None
        """Why nothing more is taken: the writer is being left, or has failed."""
        self._failure: LedgerLogError | None = None
        """Why nothing more is sent; set once, and once more when the reason is known better."""
        self._bytes_before = metadata.counted_bytes
        self._last_ms = metadata.counted_ms
        self._first_offset = metadata.counted_end
        self._bytes_at_start = metadata.counted_bytes
        self._entries_appended = 0
        self._rolls = 0
        self._segment = _Segment(ledger)
        self._draining_segment: _Segment | None = None
        self._pumping = False
        self._pump_again = False
        self._gate = trio.StrictFIFOLock()
        self._at_gate = 0
        self._room_wanted = trio.Event()
        self._over = trio.Event()
        self._chain = Leadership(metadata, version, ledger.ledger_id, new_token=client.environment.new_token)
        self._keeper = Keeper(self._chain, ledger, self, client=client, registry=registry)
        self._follow(ledger)

    # --- what callers read --------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of this leadership: one more at each takeover of the log. A fencing token that callers
        may use elsewhere."""
        return self._epoch

    @property
    def next_offset(self) -> int:
        """The offset of the next record, if all that is on its way arrives."""
        return self._queue.tail

    @property
    def failure(self) -> LedgerLogError | None:
        """Why nothing more can be appended, None while the leadership lasts."""
        return self._refusal

    def statistics(self) -> WriterStatistics:
        """Where the writer stands. Cheap; not a checkpoint."""
        queue = self._queue
        return WriterStatistics(
            epoch=self._epoch,
            next_offset=queue.tail,
            durable_offset=queue.durable_offset,
            records_appended=queue.next_offset - self._first_offset,
            bytes_appended=self._bytes_before - self._bytes_at_start,
            entries_appended=self._entries_appended,
            records_outstanding=queue.records_outstanding,
            bytes_outstanding=queue.bytes_outstanding,
            rolls=self._rolls,
            ledger_id=self._segment.writer.ledger_id,
        )

    # --- appending ----------------------------------------------------------------------------

    async def append(self, data: bytes, *, expected_offset: int | None = None) -> Ack:
        """Append one record; its Ack once it is durable on an ack quorum and so is all before it.

        ``data`` is 0 to ``limits.RECORD_BYTES_MAX`` bytes. With ``expected_offset`` it is written at that
        offset or not at all. Waits for a place in the window first.

        LostLeadership, LogSealed, NotEnoughBookies, OffsetMismatch, RecordTooLarge, InvalidArgument: it was
        not written. AppendUnknown: it may or may not be in the log. Cancelled before it was sent, it is not
        written; afterwards its outcome is unknown. The writer stays usable and in order either way."""
        if type(data) is not bytes:
            data = _as_bytes(data)
        size = len(data)
        if size > RECORD_BYTES_MAX:
            raise RecordTooLarge(size, RECORD_BYTES_MAX)
        queue = self._queue
        if self._refusal is not None or self._at_gate or not queue.has_room(size):
            await self._wait_room(size)
        if expected_offset is not None:
            queue.check_expected(expected_offset)
        batch = queue.add(data, size, expected_offset)
        slot = len(batch.records) - 1
        ticket = queue.next_ticket - 1
        if queue.entries_sent < WRITER_FRAMES_OUTSTANDING or queue.has_full:
            self._pump()
        try:
            await self._answered.wait(ticket)
        except trio.Cancelled:
            self._take_back(batch, slot, slot + 1)
            raise
        except LedgerLogError:
            failure = self._verdict(batch)
        else:
            return batch.ack(slot)
        raise failure

    async def append_many(self, datas: Sequence[bytes], *, atomic: bool = False) -> list[Ack]:
        """Append records in their order, pipelined through the window; one Ack for each once all are durable.
        Other tasks' records may come in between. An empty sequence gives an empty list.

        ``atomic`` puts them into one entry: they are in the log all together or not at all, at consecutive
        offsets; RecordTooLarge where they are over about ``limits.ENTRY_BYTES_MAX`` together.

        Errors as for ``append``, RecordTooLarge and InvalidArgument before anything is taken. After another
        error, and after a cancellation, a prefix of the records may be in the log; where that is so, or
        cannot be known, the error is AppendUnknown and says how many are surely there."""
        records = [data if type(data) is bytes else _as_bytes(data) for data in datas]
        sizes = list(map(len, records))
        if not records:
            await trio.lowlevel.checkpoint()
            return []
        if max(sizes) > RECORD_BYTES_MAX:
            raise RecordTooLarge(max(sizes), RECORD_BYTES_MAX)
        parts: list[tuple[Batch, int, int]] = []
        try:
            await self._take_many(records, sizes, atomic, parts)
            await self._answered.wait(parts[-1][0].end_ticket - 1)
        except trio.Cancelled:
            for batch, start, stop in reversed(parts):
                self._take_back(batch, start, stop)
            raise
        except LedgerLogError:
            failure = self._verdict_of_many(parts, len(records))
        else:
            acks: list[Ack] = []
            for batch, start, stop in parts:
                acks += batch.acks(start, stop)
            return acks
        raise failure

    async def submit(self, data: bytes) -> Submission:
        """Wait for a place in the window and take the record; ``await submission.wait()`` gives its Ack.

        Always a checkpoint, before the record is taken: cancelled, it is not written. Errors as for
        ``append``, as far as they are known when it is taken."""
        if type(data) is not bytes:
            data = _as_bytes(data)
        size = len(data)
        if size > RECORD_BYTES_MAX:
            raise RecordTooLarge(size, RECORD_BYTES_MAX)
        await trio.lowlevel.checkpoint()
        queue = self._queue
        if self._refusal is not None or self._at_gate or not queue.has_room(size):
            await self._wait_room(size)
        batch = queue.add(data, size)
        slot = len(batch.records) - 1
        ticket = queue.next_ticket - 1
        self._pump()
        return Submission(self, batch, slot, ticket)

    async def flush(self) -> None:
        """Return once all that was taken before the call is durable. Errors as for ``append``, for any of
        it. Always a checkpoint."""
        try:
            await self._answered.wait(self._queue.next_ticket - 1)
        except LedgerLogError:
            failure = self._verdict_of_the_rest()
        else:
            return
        raise failure

    async def roll(self) -> None:
        """Go on in a new ledger; returns once new records go there and the ledger before is closed. Does
        nothing while the current ledger is empty. Appends go on meanwhile. Cancelling abandons the wait,
        not the roll. LostLeadership and the like if the leadership ends first."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        if not self._segment.record_count and not self._queue.has_queued:
            return
        before = self._chain.current
        self._chain.want_roll()
        self._keeper.look()
        while before in (self._chain.current, self._chain.draining):
            await self._keeper.wait_moved()
            self._check_open()

    # --- waiting ------------------------------------------------------------------------------

    async def _wait(self, batch: Batch, ticket: int) -> None:
        try:
            await self._answered.wait(ticket)
        except LedgerLogError:
            failure = self._verdict(batch)
        else:
            return
        raise failure

    async def _wait_room(self, size: int) -> None:
        """Wait in line for a place in the window. There is no checkpoint between the return of this and the
        caller's taking of the place."""
        self._check_open()
        self._at_gate += 1
        try:
            async with self._gate:
                while self._refusal is None and not self._queue.has_room(size):
                    with contextlib.suppress(LedgerLogError):  # It is the refusal, raised below.
                        await self._answered.wait(self._answered.value + 1)
        finally:
            self._at_gate -= 1
        self._check_open()

    async def _take_many(
        self,
        records: list[bytes],
        sizes: list[int],
        atomic: bool,
        parts: list[tuple[Batch, int, int]],
    ) -> None:
        """Take all records, as the window lets them in; ``parts`` says where they are."""
        queue = self._queue
        total = len(records)
        if atomic:
            cost = group_cost(sizes)
            if self._refusal is not None or self._at_gate or not queue.has_room(sum(sizes)):
                await self._wait_room(sum(sizes))
            batch = queue.add_group(records, cost)
            parts.append((batch, len(batch.records) - total, len(batch.records)))
            self._pump()
            return
        ends = cumulative(sizes)
        at = 0
        while at < total:
            if self._refusal is not None or self._at_gate or not queue.has_room(sizes[at]):
                await self._wait_room(sizes[at])
            places, room = queue.room()
            before = ends[at - 1] if at else 0
            limit = max(at + 1, bisect_right(ends, before + room, at, min(total, at + max(1, places))))
            stop = queue.add_many(records, ends, at, limit)
            batch = queue.last_batch
            parts.append((batch, len(batch.records) - (stop - at), len(batch.records)))
            at = stop
            self._pump()
            if at < total:
                await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise fresh(self._refusal)

    def _verdict(self, batch: Batch) -> LedgerLogError:
        """What to raise for a record that was taken and has failed."""
        assert self._failure is not None
        if batch.state is BatchState.UNKNOWN:
            return self._unknown(
                f"the record was sent to ledger {batch.ledger_id} in epoch {self._epoch} "
                "and may or may not be in the log"
            )
        assert batch.state is BatchState.LOST
        return fresh(self._failure)

    def _verdict_of_many(self, parts: list[tuple[Batch, int, int]], total: int) -> LedgerLogError:
        assert self._failure is not None
        durable = sum(stop - start for batch, start, stop in parts if batch.state is BatchState.DURABLE)
        unknown = sum(stop - start for batch, start, stop in parts if batch.state is BatchState.UNKNOWN)
        if not durable and not unknown:
            return fresh(self._failure)
        return self._unknown(
            f"of {total} records the first {durable} are in the log, "
            f"the next {unknown} may or may not be, the others are not"
        )

    def _verdict_of_the_rest(self) -> LedgerLogError:
        """What to raise for all that was still on its way at the end."""
        assert self._failure is not None
        lost, unknown = self._queue.lost_count, self._queue.unknown_count
        if not unknown:
            return fresh(self._failure)
        return self._unknown(f"{unknown} records may or may not be in the log, {lost} are not")

    def _unknown(self, what: str) -> AppendUnknown:
        assert self._failure is not None
        unknown = AppendUnknown(f"log {self._name!r}: {what}")
        unknown.__cause__ = fresh(self._failure)
        return unknown

    def _take_back(self, batch: Batch, start: int, stop: int) -> None:
        if self._queue.take_back(batch, start, stop):
            self._pump()

    # --- the pump -----------------------------------------------------------------------------

    def _pump(self) -> None:
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
        finally:
            self._pumping = False
        queue = self._queue
        if queue.answered > self._answered.value and self._answered.failure is None:
            self._answered.advance(queue.answered)

    def _send_due(self) -> None:
        queue = self._queue
        segment = self._segment
        writer = segment.writer
        while self._failure is None:
            batch = queue.first_to_send(full_only=queue.entries_sent >= WRITER_FRAMES_OUTSTANDING)
            if batch is None:
                break
            if not writer.has_room:
                self._room_wanted.set()
                break
            self._last_ms = now_ms = max(self._last_ms, self._now_ms())
            payload = encode_entry(
                batch.live_records(),
                epoch=self._epoch,
                first_offset=batch.first_offset,
                timestamp_ms=now_ms,
                bytes_before=self._bytes_before,
            )
            try:
                entry_id = writer.push((payload,))
            except LedgerLogError as failure:
                self._end(failure)
                break
            self._entries_appended += 1
            self._bytes_before += batch.size
            segment.record_count += batch.live_count
            segment.byte_length += batch.size
            segment.last_ms = now_ms
            if segment.first_ms is None:
                segment.first_ms = now_ms
                segment.since = trio.current_time()
                if self._policy.max_age_s is not None:
                    self._keeper.look_at(segment.since + self._policy.max_age_s * _SPARE_AT)
            queue.on_sent(batch, writer.ledger_id, entry_id)
            used = segment.used(self._policy)
            if used >= _SPARE_AT:
                self._want_roll(used)

    def _want_roll(self, used: float) -> None:
        chain = self._chain
        if not chain.may_roll_by_policy:
            return
        if used >= 1:
            chain.want_roll()
            self._keeper.look()
        elif not chain.has_spare:
            chain.want_spare()
            self._keeper.look()

    def _follow(self, writer: LedgerWriter) -> None:
        def on_progress() -> None:
            self._on_progress(writer)

        writer.set_progress_callback(on_progress)

    def _on_progress(self, writer: LedgerWriter) -> None:
        """A ledger confirmed entries, or failed."""
        queue = self._queue
        answered = queue.on_confirmed(writer.ledger_id, writer.last_add_confirmed)
        if answered > self._answered.value and self._answered.failure is None:
            self._answered.advance(answered)
        if writer.failure is not None:
            self._end(writer.failure)
        elif queue.has_queued:
            self._pump()
        if self._chain.closing is not None:
            self._keeper.look()

    # --- Appends: what the keeper asks ----------------------------------------------------------

    def is_drained(self, ledger_id: int) -> bool:
        if ledger_id == self._segment.writer.ledger_id:
            return not self._queue.has_queued and not self._queue.entries_sent
        return self._queue.is_drained(ledger_id)

    def counts_of(self, ledger_id: int) -> SegmentCounts:
        for segment in (self._segment, self._draining_segment):
            if segment is not None and segment.writer.ledger_id == ledger_id:
                return segment.counts()
        raise AssertionError(f"ledger {ledger_id} is not of this leadership")

    def on_ledger(self, writer: LedgerWriter) -> None:
        self._rolls += 1
        self._draining_segment, self._segment = self._segment, _Segment(writer)
        self._follow(writer)
        self._pump()

    def on_time(self) -> None:
        """The age of the current ledger is worth a look."""
        age_s = self._policy.max_age_s
        if age_s is None or self._segment.first_ms is None:
            return
        used = (trio.current_time() - self._segment.since) / age_s
        self._want_roll(used)
        if used < 1:
            self._keeper.look_at(self._segment.since + age_s)
        elif self._chain.draining is not None:
            self._keeper.look_at(trio.current_time() + _LATE_ROLL_S)

    # --- the tasks, and the end -----------------------------------------------------------------

    async def _run(self) -> None:
        """Serve the leadership until it ends; then answer whoever still waits."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keeper.watch, self._client.store)
            nursery.start_soon(self._make_room)
            await self._keeper.run()
            nursery.cancel_scope.cancel()
        if self._chain.failure is not None:
            self._end(self._chain.failure)
            await self._resolve()
        self._over.set()

    async def _make_room(self) -> None:
        """Run the pump again once a full ledger window has room. Progress does that by itself, but in
        guaranteed mode room can come without progress of the LAC."""
        while True:
            await self._room_wanted.wait()
            self._room_wanted = trio.Event()
            try:
                await self._segment.writer.wait_room()
            except LedgerLogError as failure:
                self._end(failure)
                return
            self._pump()

    def _end(self, failure: LedgerLogError) -> None:
        """Take nothing more. The keeper's task goes on from here."""
        if self._failure is None:
            if not isinstance(failure, LostLeadership | LogSealed | NotEnoughBookies):
                failure = LostLeadership(self._name, None, str(failure))
            self._failure = self._refusal = failure
            self._chain.on_lost(failure)
            self._keeper.look()

    async def _resolve(self) -> None:
        """Find out what became of what was sent, and who leads now."""
        ends: dict[int, int] = {}
        with trio.move_on_after(LOG_RESOLVE_TIMEOUT_S):
            for writer in (self._keeper.draining, self._keeper.current):
                if writer is None:
                    continue
                await writer.aclose()
                if self._queue.entries_sent:
                    try:
                        metadata = await self._client.ledgers.recover(writer.ledger_id)
                    except LedgerLogError as cause:
                        logger.info("ledger=%d: its end is not known: %s", writer.ledger_id, cause)
                    else:
                        assert metadata.last_entry is not None
                        ends[writer.ledger_id] = metadata.last_entry
            await self._learn_successor()
        self._answer_all(ends)

    async def _learn_successor(self) -> None:
        if not isinstance(self._failure, LostLeadership) or self._failure.epoch is not None:
            return
        try:
            record, _ = await self._registry.read(self._chain.metadata.incarnation)
        except LedgerLogError as cause:
            logger.info("log=%s: its record cannot be read now: %s", self._name, cause)
            return
        if record is not None and record.sealed:
            self._failure = self._refusal = LogSealed(self._name)
        elif record is not None and record.epoch > self._epoch:
            self._failure = self._refusal = LostLeadership(self._name, record.epoch)

    def _answer_all(self, ends: dict[int, int]) -> None:
        """Answer every append that still waits; afterwards none can wait."""
        if self._failure is None:
            self._failure = self._refusal = LostLeadership(self._name, None, "its writer was left")
        answered = self._queue.resolve(ends)
        if self._answered.failure is None:
            self._answered.advance(max(answered, self._answered.value))
            self._answered.fail(self._failure)

    async def _leave(self) -> None:
        """Take nothing more, send and acknowledge what was taken, close the ledger, count it."""
        if self._refusal is None:
            self._refusal = LostLeadership(self._name, None, "its writer was left")
        self._chain.finish()
        self._keeper.look()
        await self._over.wait()

    async def _abandon(self) -> None:
        """Let go of everything, whatever state it is in."""
        self._answer_all({})
        with trio.move_on_after(_DISCARD_TIMEOUT_S, shield=True):
            await delete_ledgers(self._client.ledgers, await self._keeper.give_up_ledgers())


@asynccontextmanager
async def lead(
    client: LedgerClient, registry: LogRegistry, name: str, incarnation: int, *, window: int | None = None
) -> AsyncIterator[LogWriter]:
    """Leadership of a log for the body of the ``async with``; see ``Log.writer``."""
    metadata, version, ledger = await take_over(client, registry, name, incarnation)
    writer = LogWriter(
        metadata,
        version,
        ledger,
        client=client,
        registry=registry,
        window=LOG_WINDOW_RECORDS if window is None else window,
    )
    outstanding = 0
    try:
        async with beside(writer._run, name=f"log writer {name}"):
            try:
                yield writer
            finally:
                outstanding = writer._queue.records_outstanding
                if trio.current_effective_deadline() > -math.inf:
                    with trio.move_on_after(LOG_CLOSE_TIMEOUT_S):
                        await writer._leave()
    finally:
        await writer._abandon()
    if outstanding and (writer._queue.unknown_count or writer._queue.lost_count):
        raise writer._verdict_of_the_rest()


def _as_bytes(data: object) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidArgument(f"a record is bytes, not {type(data).__name__}")
