"""A log's writer as a caller holds it: leadership, and appends through it.

A record joins the open batch of ``log.core.append_queue`` and its caller waits for its ticket, which costs
one reschedule and nothing else; everything behind that is the ``Leader``'s. Here is what callers see:
what is checked before a record is taken, the line in front of a full window, what a cancellation
takes back, and which error tells what about a record.

**Numbered records.** Where a record comes with its producer's sequence, ``log.core.producers`` says whether
it is new. Calls with sequences are taken one after the other, so that what one finds to be new is taken
before the next asks. A record that is there already is answered with where it is; one that is on its way,
with what becomes of it.

**Which error.** AppendUnknown means that a record was sent and nobody could tell in time whether it is
in the log. Every other error means that it is not there.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Sequence

import attrs
import trio

from ledgerlog.concurrency.watermark import fresh
from ledgerlog.errors import (
    AppendUnknown,
    InvalidArgument,
    LedgerLogError,
    OutOfSequence,
    RecordTooLarge,
)
from ledgerlog.limits import RECORD_BYTES_MAX
from ledgerlog.log.core.append_queue import Batch, BatchState, cumulative, group_cost
from ledgerlog.log.core.producers import Known
from ledgerlog.log.leader import Leader
from ledgerlog.model.producer import check_producer_id, check_sequence
from ledgerlog.model.record import Ack

_BYTES = frozenset({bytes})

__all__ = ["LogWriter", "Submission", "WriterStatistics"]


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


class Submission:
    """A record that is on its way. It goes there whether or not anybody waits."""

    __slots__ = ("_batch", "_is_duplicate", "_slot", "_ticket", "_writer")

    def __init__(
        self, writer: LogWriter, batch: Batch, slot: int, ticket: int, *, is_duplicate: bool = False
    ) -> None:
        self._writer = writer
        self._batch = batch
        self._slot = slot
        self._ticket = ticket
        self._is_duplicate = is_duplicate

    async def wait(self) -> Ack:
        """The record's Ack once it is durable. Errors as for ``LogWriter.append``. Cancelling abandons the
        wait and not the record; it may be waited for again, and by several tasks."""
        await self._writer._wait(self._batch, self._ticket)
        ack = self._batch.ack(self._slot)
        return ack._replace(duplicate=True) if self._is_duplicate else ack


class _Answered(Submission):
    """A record that was there before it was submitted."""

    __slots__ = ("_ack",)

    def __init__(self, ack: Ack) -> None:
        self._ack = ack

    async def wait(self) -> Ack:
        await trio.lowlevel.checkpoint()
        return self._ack


class LogWriter:
    """The leader of a log, from ``async with log.writer()``. Any number of tasks may append at once; the
    records get their offsets in the order in which they were taken."""

    def __init__(self, name: str, leader: Leader, producer: str | None = None) -> None:
        self._name = name
        self._leader = leader
        self._core = leader.core
        self._producer = producer
        self._numbered_gate = trio.StrictFIFOLock()
        """Held by a call with sequences from asking what is new until all of that is taken."""
        # These are looked at for each record.
        self._queue = leader.queue
        self._answered = leader.answered
        self._first_offset = leader.queue.next_offset
        self._bytes_at_start = leader.core.bytes_total
        self._gate = trio.StrictFIFOLock()
        self._at_gate = 0
        """Tasks in line for the window. While there are any, nobody passes them."""

    # --- what callers read --------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of this leadership: one more at each takeover of the log. A fencing token that callers
        may use elsewhere."""
        return self._core.epoch

    @property
    def next_offset(self) -> int:
        """The offset of the next record, if all that is on its way arrives."""
        return self._queue.tail

    @property
    def failure(self) -> LedgerLogError | None:
        """Why nothing more can be appended, None while the leadership lasts."""
        return self._core.refusal

    async def wait_over(self) -> None:
        """Return once nothing can be appended any more and every append is answered; ``failure`` says why."""
        await self._leader.wait_over()

    def statistics(self) -> WriterStatistics:
        """Where the writer stands. Cheap; not a checkpoint."""
        queue = self._queue
        return WriterStatistics(
            epoch=self._core.epoch,
            next_offset=queue.tail,
            durable_offset=queue.durable_offset,
            records_appended=queue.next_offset - self._first_offset,
            bytes_appended=self._core.bytes_total - self._bytes_at_start,
            entries_appended=self._core.entries_appended,
            records_outstanding=queue.records_outstanding,
            bytes_outstanding=queue.bytes_outstanding,
            rolls=self._core.rolls,
            ledger_id=self._core.segment.ledger_id,
        )

    # --- appending ----------------------------------------------------------------------------

    async def append(
        self,
        data: bytes,
        *,
        expected_offset: int | None = None,
        sequence: int | None = None,
        producer: str | None = None,
    ) -> Ack:
        """Append one record; its Ack once it is durable on an ack quorum and so is all before it.

        ``data`` is 0 to ``limits.RECORD_BYTES_MAX`` bytes. With ``expected_offset`` it is written at that
        offset or not at all. Waits for a place in the window first.

        With ``sequence``, the record's number among those of its ``producer`` (default: that of the writer),
        it is written once, however often it is appended: a repeat gives the first one's offset, with
        ``duplicate`` set, whoever led the log meanwhile. It needs a writer with deduplication (see
        ``Log.writer``), excludes ``expected_offset``, and is not taken back by a cancellation: repeat it.
        OutOfSequence, TooManyProducers: it was not written.

        LostLeadership, LogSealed, NotEnoughBookies, OffsetMismatch, RecordTooLarge, InvalidArgument: it was
        not written. AppendUnknown: it may or may not be in the log. Cancelled before it was sent, it is not
        written; afterwards its outcome is unknown. The writer stays usable and in order either way."""
        if type(data) is not bytes:
            data = _as_bytes(data)
        size = len(data)
        if size > RECORD_BYTES_MAX:
            raise RecordTooLarge(size, RECORD_BYTES_MAX)
        if sequence is not None or producer is not None:
            if expected_offset is not None:
                raise InvalidArgument("a record has a sequence or an expected offset, not both")
            if self._numbered_gate.locked() or not self._is_free_for(size):
                (ack,) = await self._append_numbered([data], [size], sequence, producer, atomic=True)
                return ack
            return await self._append_one_numbered(data, size, *self._numbering(sequence, producer, 1))
        queue = self._queue
        if self._at_gate or self._core.refusal is not None or not queue.has_room(size):
            await self._wait_room(size)
        if expected_offset is not None:
            queue.check_expected(expected_offset)
        batch = queue.add(data, size, expected_offset)
        slot = len(batch.records) - 1
        ticket = queue.next_ticket - 1
        if queue.is_sendable:
            self._leader.pump()
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

    async def append_many(
        self,
        datas: Sequence[bytes],
        *,
        atomic: bool = False,
        sequence: int | None = None,
        producer: str | None = None,
    ) -> list[Ack]:
        """Append records in their order, pipelined through the window; one Ack for each once all are durable.
        Other tasks' records may come in between. An empty sequence gives an empty list.

        ``atomic`` puts them into one entry: they are in the log all together or not at all, at consecutive
        offsets; RecordTooLarge where they are over about ``limits.ENTRY_BYTES_MAX`` together.

        ``sequence`` is that of the first record, the others follow it; see ``append``. Those at the start
        that are there already are answered as duplicates, the others are written; of an atomic group all or
        none.

        Errors as for ``append``, RecordTooLarge and InvalidArgument before anything is taken. After another
        error, and after a cancellation, a prefix of the records may be in the log; where that is so, or
        cannot be known, the error is AppendUnknown and says how many are surely there."""
        records = list(datas)
        if not _BYTES.issuperset(map(type, records)):
            records = [_as_bytes(data) for data in records]
        sizes = list(map(len, records))
        if not records:
            await trio.lowlevel.checkpoint()
            return []
        if max(sizes) > RECORD_BYTES_MAX:
            raise RecordTooLarge(max(sizes), RECORD_BYTES_MAX)
        if sequence is not None or producer is not None:
            return await self._append_numbered(records, sizes, sequence, producer, atomic=atomic)
        parts: list[tuple[Batch, int, int]] = []
        try:
            is_complete = await self._take_many(records, sizes, atomic, parts)
            await self._answered.wait(parts[-1][0].end_ticket - 1)
        except trio.Cancelled:
            for batch, start, stop in reversed(parts):
                self._take_back(batch, start, stop)
            raise
        except LedgerLogError:
            if not parts:
                raise
            is_complete = False
        if not is_complete:
            raise self._verdict_of_many(parts, len(records))
        acks: list[Ack] = []
        for batch, start, stop in parts:
            acks += batch.acks(start, stop)
        return acks

    async def submit(
        self, data: bytes, *, sequence: int | None = None, producer: str | None = None
    ) -> Submission:
        """Wait for a place in the window and take the record; ``await submission.wait()`` gives its Ack.

        Always a checkpoint, before the record is taken: cancelled, it is not written. ``sequence`` and errors
        as for ``append``, as far as they are known when it is taken."""
        if type(data) is not bytes:
            data = _as_bytes(data)
        size = len(data)
        if size > RECORD_BYTES_MAX:
            raise RecordTooLarge(size, RECORD_BYTES_MAX)
        await trio.lowlevel.checkpoint()
        if sequence is not None or producer is not None:
            numbering = self._numbering(sequence, producer, 1)
            parts: list[tuple[Batch, int, int]] = []
            async with self._numbered_gate:
                known = self._admit(numbering, 1)
                if not known:
                    await self._take_many([data], [size], True, parts, numbering)
            if parts:
                batch, slot, _ = parts[0]
                return Submission(self, batch, slot, batch.first_ticket + slot)
            if isinstance(known[0], int):
                return _Answered(self._ack_of(known[0]))
            batch, slot = known[0]
            return Submission(self, batch, slot, batch.first_ticket + slot, is_duplicate=True)
        queue = self._queue
        if not self._is_free_for(size):
            await self._wait_room(size)
        batch = queue.add(data, size)
        slot = len(batch.records) - 1
        ticket = queue.next_ticket - 1
        self._leader.pump()
        return Submission(self, batch, slot, ticket)

    async def flush(self) -> None:
        """Return once all that was taken before the call is durable. Errors as for ``append``, for any of
        it. Always a checkpoint."""
        self._leader.hurry()
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
        await self._leader.roll()

    async def truncate(self, before_offset: int, *, ignore_pins: bool = False) -> None:
        """Give up the records below ``before_offset``, as their leader: ``Log.truncate`` with the promise
        that nothing is given up by one who was deposed, which matters to whoever truncates behind his own
        state.

        LostLeadership, and nothing was given up. InvalidArgument where the offset is beyond what is durable;
        TruncationPinned, LogNotFound, MetadataUnavailable as for ``Log.truncate``."""
        durable = self._queue.durable_offset
        if (
            not isinstance(before_offset, int)
            or isinstance(before_offset, bool)
            or not 0 <= before_offset <= durable
        ):
            raise InvalidArgument(f"{before_offset!r} is not an offset up to the durable end, {durable}")
        await trio.lowlevel.checkpoint()
        await self._leader.refuse()
        await self._leader.truncate(before_offset, ignore_pins=ignore_pins)

    # --- numbered records -----------------------------------------------------------------------

    def _numbering(self, sequence: int | None, producer: str | None, count: int) -> tuple[str, int]:
        """Whose records, from which sequence on. InvalidArgument."""
        producers = self._core.producers
        if producers is None:
            raise InvalidArgument(
                f"log {self._name!r}: a sequence needs deduplication; enter log.writer(dedupe=True)"
            )
        producer_id = self._producer if producer is None else producer
        if producer_id is None or sequence is None:
            raise InvalidArgument("a numbered record has a producer and a sequence")
        if not isinstance(producer_id, str) or producer_id not in producers:
            check_producer_id(producer_id)
        return producer_id, check_sequence(sequence, count)

    def _admit(self, numbering: tuple[str, int], count: int) -> list[Known]:
        assert self._core.producers is not None
        return self._core.producers.admit(*numbering, count, self._leader.now_ms())

    def _ack_of(self, offset: int) -> Ack:
        return Ack(offset, None, self._core.epoch, duplicate=True)

    async def _append_one_numbered(self, data: bytes, size: int, producer_id: str, sequence: int) -> Ack:
        """Append a record for which there is a place, and nobody else asks what is new."""
        known = self._admit((producer_id, sequence), 1)
        if known:
            return await self._known_ack(known[0])
        batch = self._queue.add(data, size)
        slot = len(batch.records) - 1
        self._number((batch, slot, slot + 1), producer_id, sequence)
        if self._queue.is_sendable:
            self._leader.pump()
        await self._wait(batch, batch.first_ticket + slot)
        return batch.ack(slot)

    async def _known_ack(self, place: Known) -> Ack:
        """The Ack of a record that was appended before, once it is durable. Always a checkpoint."""
        if isinstance(place, int):
            await trio.lowlevel.checkpoint()
            return self._ack_of(place)
        batch, slot = place
        await self._wait(batch, batch.first_ticket + slot)
        return batch.ack(slot)._replace(duplicate=True)

    async def _append_numbered(
        self,
        records: list[bytes],
        sizes: list[int],
        sequence: int | None,
        producer: str | None,
        *,
        atomic: bool,
    ) -> list[Ack]:
        """Append those of the records that are new; an Ack for each."""
        producer_id, first = self._numbering(sequence, producer, len(records))
        parts: list[tuple[Batch, int, int]] = []
        is_complete = True
        async with self._numbered_gate:
            known = self._admit((producer_id, first), len(records))
            fresh_count = len(records) - len(known)
            if atomic and known and fresh_count:
                raise OutOfSequence(
                    self._name,
                    producer_id,
                    first,
                    first + len(known) - 1,
                    "a part of the group is there already",
                )
            if fresh_count:
                at = len(known)
                is_complete = await self._take_many(
                    records[at:], sizes[at:], atomic, parts, (producer_id, first + at)
                )
        acks = [
            self._ack_of(place) if isinstance(place, int) else await self._known_ack(place) for place in known
        ]
        if parts:
            try:
                await self._answered.wait(parts[-1][0].end_ticket - 1)
            except LedgerLogError:
                is_complete = False
        else:
            await trio.lowlevel.checkpoint()
        if not is_complete:
            raise self._verdict_of_many(parts, fresh_count)
        for batch, start, stop in parts:
            acks += batch.acks(start, stop)
        return acks

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
        await self._leader.refuse()
        self._at_gate += 1
        try:
            async with self._gate:
                while self._core.refusal is None and not self._queue.has_room(size):
                    with contextlib.suppress(LedgerLogError):  # It is the refusal, raised below.
                        await self._answered.wait(self._answered.value + 1)
        finally:
            self._at_gate -= 1
        await self._leader.refuse()

    async def _take_many(
        self,
        records: list[bytes],
        sizes: list[int],
        atomic: bool,
        parts: list[tuple[Batch, int, int]],
        numbering: tuple[str, int] | None = None,
    ) -> bool:
        """Take all records, as the window lets them in; ``parts`` says where they are. ``numbering``: whose
        they are, and the sequence of the first. False where the end came in between; raises the refusal where
        it came before the first."""
        queue = self._queue
        total = len(records)
        if atomic:
            cost = group_cost(sizes)
            if not self._is_free_for(sum(sizes)):
                await self._wait_room(sum(sizes))
            batch = queue.add_group(records, cost)
            parts.append((batch, len(batch.records) - total, len(batch.records)))
            if numbering is not None:
                self._number(parts[-1], *numbering)
            self._leader.pump()
            return True
        ends = cumulative(sizes)
        at = 0
        while at < total:
            if not self._is_free_for(sizes[at]):
                try:
                    await self._wait_room(sizes[at])
                except LedgerLogError:
                    if not parts:
                        raise
                    return False
            places, room = queue.room()
            before = ends[at - 1] if at else 0
            limit = max(at + 1, bisect_right(ends, before + room, at, min(total, at + max(1, places))))
            stop = queue.add_many(records, ends, at, limit)
            batch = queue.last_batch
            parts.append((batch, len(batch.records) - (stop - at), len(batch.records)))
            if numbering is not None:
                self._number(parts[-1], numbering[0], numbering[1] + at)
            at = stop
            self._leader.pump()
            if at < total:
                await trio.lowlevel.checkpoint()
        return True

    def _number(self, part: tuple[Batch, int, int], producer_id: str, first_sequence: int) -> None:
        assert self._core.producers is not None
        batch, start, stop = part
        self._core.producers.on_taken(
            producer_id, first_sequence, batch, start, stop - start, self._leader.now_ms()
        )

    def _is_free_for(self, size: int) -> bool:
        """Whether a record of ``size`` bytes may be taken now, past nobody who waits in line."""
        return not (self._core.refusal or self._at_gate) and self._queue.has_room(size)

    def _verdict(self, batch: Batch) -> LedgerLogError:
        """What to raise for a record that was taken and has failed."""
        if batch.state is BatchState.UNKNOWN:
            return self._unknown(
                f"the record was sent to ledger {batch.ledger_id} in epoch {self._core.epoch} "
                "and may or may not be in the log"
            )
        assert batch.state is BatchState.LOST
        return fresh(self._why())

    def _verdict_of_many(self, parts: list[tuple[Batch, int, int]], total: int) -> LedgerLogError:
        durable = sum(stop - start for batch, start, stop in parts if batch.state is BatchState.DURABLE)
        unknown = sum(stop - start for batch, start, stop in parts if batch.state is BatchState.UNKNOWN)
        if not durable and not unknown:
            return fresh(self._why())
        return self._unknown(
            f"of {total} records the first {durable} are in the log, "
            f"the next {unknown} may or may not be, the others are not"
        )

    def _verdict_of_the_rest(self) -> LedgerLogError:
        """What to raise for all that was still on its way at the end."""
        lost, unknown = self._queue.lost_count, self._queue.unknown_count
        if not unknown:
            return fresh(self._why())
        return self._unknown(f"{unknown} records may or may not be in the log, {lost} are not")

    def _why(self) -> LedgerLogError:
        why = self._core.failure or self._core.refusal
        assert why is not None, "an append fails only when the leadership ends"
        return why

    def _unknown(self, what: str) -> AppendUnknown:
        unknown = AppendUnknown(f"log {self._name!r}: {what}")
        unknown.__cause__ = fresh(self._why())
        return unknown

    def _take_back(self, batch: Batch, start: int, stop: int) -> None:
        if self._queue.take_back(batch, start, stop):
            self._leader.pump()


def _as_bytes(data: object) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidArgument(f"a record is bytes, not {type(data).__name__}")
