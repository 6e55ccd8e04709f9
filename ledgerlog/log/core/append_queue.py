"""The queue of a log writer: it packs records into entries, and answers them once the entries are confirmed.

Records gather in batches. A batch becomes one entry when it is sent. All its records are acknowledged
together, once that entry and every entry sent before it are confirmed:

    add             the record joins the open batch: a list append and a few counters
    first_to_send   returns the oldest batch, with its offsets; ``on_sent`` says which entry it became
    on_confirmed    a ledger has confirmed all entries up to a given entry; returns the last answered ticket
    resolve         the leadership is over; gives every batch its final verdict

A record's *slot* is its index in its batch. The *window* is the bound on the records that were taken and are
not yet answered.

**Tickets and offsets.** Every record gets a ticket when it is added. Tickets are never reused, and a caller
waits for its record's ticket. The offset is fixed only when the batch is sent. Until then, the record can be
taken back if its caller is cancelled. All later records then move up, so offsets have no holes. ``tail`` is
the offset that the next record would get now.

**One order.** Batches are sent, confirmed and acknowledged in the order of their tickets, even if they went
to different ledgers. If a newer ledger confirms entries early, their batches wait until the older ledger has
confirmed all of its entries (C05). The queue ensures this: it answers only the head of ``_sent``.

**Conditions.** A record added with ``expected`` is written at that offset or not at all. The queue checks
this condition when the record is added, and again if an earlier record is taken back.

**Verdicts.** A batch that was sent ends DURABLE, LOST (surely not in the log) or UNKNOWN. A batch that was
never sent is LOST. ``resolve`` decides this from the entry at which recovery closed each ledger.

Invariants: ``tail`` = ``next_offset`` + the queued records that are not dropped. ``records_outstanding`` and
``bytes_outstanding`` cover the records in ``_queued`` and ``_sent`` that are not dropped. Batches in
``_sent`` have growing tickets, and their offsets join without a gap.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, repeat

from ledgerlog.errors import InvalidArgument, OffsetMismatch, RecordTooLarge
from ledgerlog.limits import (
    ENTRY_BYTES_MAX,
    KIB,
    LOG_ENTRY_BYTES_TARGET,
    LOG_WINDOW_BYTES,
    LOG_WINDOW_RECORDS,
    PRODUCER_ID_BYTES_MAX,
    RECORD_BYTES_MAX,
    WRITER_FRAMES_OUTSTANDING,
)
from ledgerlog.model.attributes import Attributes
from ledgerlog.model.ids import NO_ENTRY, Position
from ledgerlog.model.producer import NumberedRecords
from ledgerlog.model.record import Ack, tuple_new

__all__ = ["AppendQueue", "Batch", "BatchState", "group_cost"]

_RECORD_OVERHEAD = 4
"""Bytes that an entry needs for each record in addition to the record itself. They hold the record's
length."""

_ATTRIBUTES_OVERHEAD = 12
"""The same, in an entry with keys or headers. It also holds the lengths of each key and of each record's
headers."""

_NUMBERED_OVERHEAD = 17 + PRODUCER_ID_BYTES_MAX
"""The most bytes that an entry needs to name the producer of a run of records."""

_GROUP_OVERHEAD = ENTRY_BYTES_MAX - RECORD_BYTES_MAX - KIB
"""Records and their lengths may take so many bytes in one entry in addition to the largest record."""

assert _GROUP_OVERHEAD >= _ATTRIBUTES_OVERHEAD


def group_cost(
    sizes: Sequence[int], *, has_attributes: bool = False, record_bytes_max: int = RECORD_BYTES_MAX
) -> int:
    """Return the bytes that records of these sizes take in one entry.

    Args:
        sizes: The bytes of each record, its key and headers included.
        has_attributes: Whether a record has a key or headers.
        record_bytes_max: The largest record that the log takes.

    Raises:
        RecordTooLarge: No entry can hold all these records.
    """
    cost = sum(sizes) + (_ATTRIBUTES_OVERHEAD if has_attributes else _RECORD_OVERHEAD) * len(sizes)
    cost_max = record_bytes_max + _GROUP_OVERHEAD
    if cost > cost_max:
        raise RecordTooLarge(cost, cost_max, "group of records")
    return cost


class BatchState(enum.IntEnum):
    """The state of a batch: waiting, sent, or its final verdict."""

    QUEUED = 0
    SENT = 1
    DURABLE = 2
    """All its records are in the log."""
    LOST = 3
    """None of its records is in the log, and none ever will be."""
    UNKNOWN = 4
    """Its records may or may not be in the log."""


class Batch:
    """Records that become one entry."""

    __slots__ = (
        "_dropped_slots",
        "attributes",
        "cost",
        "dropped",
        "end_ticket",
        "entry_id",
        "epoch",
        "expected",
        "first_offset",
        "first_ticket",
        "ledger_id",
        "numbered",
        "overhead",
        "records",
        "size",
        "state",
    )

    def __init__(self, first_ticket: int, epoch: int, *, has_attributes: bool = False) -> None:
        self.first_ticket = first_ticket
        self.end_ticket = first_ticket
        """The ticket after the last one that is answered together with this batch."""
        self.epoch = epoch
        self.records: list[bytes] = []
        """The records by slot; a dropped record is empty bytes. The list is emptied once the batch is
        answered."""
        self.attributes: dict[int, Attributes] | None = {} if has_attributes else None
        """The keys and headers of the records that have any, by slot. None if the batch takes no such
        records."""
        self.overhead = _ATTRIBUTES_OVERHEAD if has_attributes else _RECORD_OVERHEAD
        """Bytes in the entry for each record, in addition to the record itself."""
        self.size = 0
        """Bytes of the records that are not dropped, their keys and headers included."""
        self.cost = 0
        """Bytes in the entry, for packing. Includes dropped records."""
        self.state = BatchState.QUEUED
        self.ledger_id = -1
        self.entry_id = NO_ENTRY
        self.first_offset = -1
        self.expected: list[tuple[int, int]] | None = None
        """The slots with a condition. Each comes with the only offset at which its record may be written."""
        self.dropped: dict[int, OffsetMismatch | None] | None = None
        """The slots that were dropped. The value is None if the record was taken back, or the error if its
        condition failed."""
        self.numbered: list[NumberedRecords] | None = None
        """The producers of numbered records, by slot. A numbered record is never dropped."""
        self._dropped_slots: list[int] = []

    @property
    def live_count(self) -> int:
        """How many records are not dropped. Valid until the batch is answered."""
        return len(self.records) - (len(self.dropped) if self.dropped else 0)

    def has_room(self, size: int, count: int, limit: int, *, for_attributes: bool) -> bool:
        """Return whether the entry stays within ``limit`` bytes with ``count`` more records of together
        ``size`` bytes.

        A batch that began without keys and headers has no room for a record with a key or headers, because
        then each record of the batch would need more bytes.
        """
        if for_attributes and self.attributes is None:
            return False
        return self.cost + size + self.overhead * count <= limit

    def extend(
        self, records: Sequence[bytes], size: int, attributes: Sequence[Attributes | None] | None = None
    ) -> None:
        """Add records. The batch has room for them (``has_room``).

        Args:
            records: The records.
            size: The bytes of all records, keys and headers included.
            attributes: The keys and headers of the records; None if no record has any.
        """
        if attributes is not None:
            assert self.attributes is not None
            slots = enumerate(attributes, len(self.records))
            self.attributes.update((slot, each) for slot, each in slots if each is not None)
        self.records += records
        self.size += size
        self.cost += size + self.overhead * len(records)

    def live_records(self) -> list[bytes]:
        """Return the records to write: all that are not dropped."""
        if not self.dropped:
            return self.records
        return [record for slot, record in enumerate(self.records) if slot not in self.dropped]

    def live_attributes(self) -> dict[int, Attributes] | None:
        """Return ``attributes`` by the records' slots in the entry; None if no record to write has any."""
        if not self.attributes:
            return None
        if not self.dropped:
            return self.attributes
        return {self.live_slot(slot): each for slot, each in self.attributes.items()}

    def live_slot(self, slot: int) -> int:
        """Return the slot that a record gets in the entry. Dropped records get none."""
        return slot - bisect_left(self._dropped_slots, slot) if self.dropped else slot

    def number(self, producer_id: str, slot: int, count: int, first_sequence: int) -> None:
        """Note that ``count`` records, just added from ``slot`` on, belong to a producer."""
        numbered = self.numbered = self.numbered or []
        if numbered:
            last_id, last_slot, length, last_sequence = numbered[-1]
            if (
                last_slot + length == slot
                and last_sequence + length == first_sequence
                and last_id == producer_id
            ):
                numbered[-1] = NumberedRecords(producer_id, last_slot, length + count, last_sequence)
                return
        numbered.append(NumberedRecords(producer_id, slot, count, first_sequence))
        self.cost += _NUMBERED_OVERHEAD

    def live_numbered(self) -> list[NumberedRecords]:
        """Return ``numbered`` with slots in the entry instead of slots in the batch."""
        if not self.dropped:
            return self.numbered or []
        return [one._replace(slot=self.live_slot(one.slot)) for one in self.numbered or ()]

    def mismatch(self, slot: int) -> OffsetMismatch | None:
        """Return the error of a record that was left out because its condition failed after it was added.

        None for any other record.
        """
        return None if self.dropped is None else self.dropped.get(slot)

    def ack(self, slot: int) -> Ack:
        """Return the Ack of one record of a durable batch.

        Raises:
            OffsetMismatch: The record's condition failed after it was added; it was not written.
        """
        if self.dropped is not None:
            mismatch = self.mismatch(slot)
            if mismatch is not None:
                raise mismatch
            assert slot not in self.dropped, "no caller asks for a record that was taken back"
            slot = self.live_slot(slot)
        position = tuple_new(Position, (self.ledger_id, self.entry_id, slot))
        ack: Ack = tuple_new(Ack, (self.first_offset + slot, position, self.epoch, False))
        return ack

    def acks(self, start: int, stop: int) -> list[Ack]:
        """Return the Acks of consecutive slots, none of which was dropped."""
        first, last = self.live_slot(start), self.live_slot(stop - 1)
        slots = range(first, last + 1)
        assert len(slots) == stop - start
        places = zip(repeat(self.ledger_id), repeat(self.entry_id), slots, strict=False)
        positions = map(tuple_new, repeat(Position), places)
        offsets = range(self.first_offset + first, self.first_offset + last + 1)
        fields = zip(offsets, positions, repeat(self.epoch), repeat(False), strict=False)
        return list(map(tuple_new, repeat(Ack), fields))

    def _drop(self, slot: int, why: OffsetMismatch | None) -> int:
        """Leave a record out; return its size."""
        assert self.state is BatchState.QUEUED
        if self.dropped is None:
            self.dropped = {}
        assert slot not in self.dropped
        self.dropped[slot] = why
        self._dropped_slots.insert(bisect_right(self._dropped_slots, slot), slot)
        size = len(self.records[slot])
        self.records[slot] = b""
        if self.attributes and (attributes := self.attributes.pop(slot, None)) is not None:
            size += attributes.size
        self.size -= size
        return size


class AppendQueue:
    """All appends of one leadership of one log, from taking a record to its answer.

    Args:
        name: The name of the log, for errors.
        epoch: The epoch of the leadership.
        next_offset: The offset of the first record of this leadership.
        entry_bytes: A batch takes records up to this many bytes, their lengths included. A larger record
            gets a batch for itself.
        window_records: How many records may be taken and not yet answered.
        window_bytes: How many bytes of records may be taken and not yet answered.

    Raises:
        InvalidArgument: A bound is out of range.
    """

    def __init__(
        self,
        name: str,
        *,
        epoch: int,
        next_offset: int,
        entry_bytes: int = LOG_ENTRY_BYTES_TARGET,
        window_records: int = LOG_WINDOW_RECORDS,
        window_bytes: int = LOG_WINDOW_BYTES,
    ) -> None:
        if window_records < 1 or window_bytes < 1:
            raise InvalidArgument(
                f"the window must be at least one record and one byte, not {window_records}, {window_bytes}"
            )
        if not 1 <= entry_bytes <= RECORD_BYTES_MAX + _GROUP_OVERHEAD:
            raise InvalidArgument(
                f"entries of {entry_bytes} bytes: it must be 1 to {RECORD_BYTES_MAX + _GROUP_OVERHEAD}"
            )
        self._name = name
        self._epoch = epoch
        self._entry_bytes = entry_bytes
        self.window_records = window_records
        self.window_bytes = window_bytes
        self._queued: deque[Batch] = deque()
        self._open: Batch | None = None
        """The batch at the end of ``_queued``, while it takes records."""
        self._sent: deque[Batch] = deque()
        self._confirmed: dict[int, int] = {}
        self._conditions = 0
        """How many queued records have an expected offset. If 0, nothing has to be checked again."""
        self.next_offset = next_offset
        """The first offset of the next batch to be sent."""
        self.durable_offset = next_offset
        """The offset after the last durable record."""
        self.durable_bytes = 0
        """Bytes of the records that have become durable in this leadership."""
        self.tail = next_offset
        """The offset that the next record would get now."""
        self.next_ticket = 0
        self.answered = -1
        """The last ticket that is answered."""
        self.records_outstanding = 0
        self.bytes_outstanding = 0
        self.lost_count = 0
        """How many records ``resolve`` found to be lost."""
        self.unknown_count = 0
        """How many records ``resolve`` could not decide about."""

    # --- questions ----------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """Whether a record of ``size`` bytes fits into the window. One record always fits into an empty
        window."""
        return (
            self.records_outstanding < self.window_records
            and self.bytes_outstanding + size <= self.window_bytes
        ) or not self.records_outstanding

    def room(self) -> tuple[int, int]:
        """Return how many records and how many bytes still fit into the window."""
        return (
            self.window_records - self.records_outstanding,
            self.window_bytes - self.bytes_outstanding,
        )

    @property
    def entry_bytes(self) -> int:
        return self._entry_bytes

    @property
    def has_queued(self) -> bool:
        return bool(self._queued)

    @property
    def open_ticket(self) -> int:
        """The first ticket of the batch that still takes records. If there is no such batch, the ticket of
        the next record."""
        return self.next_ticket if self._open is None else self._open.first_ticket

    @property
    def has_full(self) -> bool:
        """Whether a batch that takes no more records waits to be sent."""
        return bool(self._queued) and self._queued[0] is not self._open

    @property
    def is_sendable(self) -> bool:
        """Whether the oldest batch may be sent: few entries are on their way, or the batch is full."""
        return len(self._sent) < WRITER_FRAMES_OUTSTANDING or (
            bool(self._queued) and self._queued[0] is not self._open
        )

    @property
    def entries_sent(self) -> int:
        """How many entries were sent and are not yet acknowledged."""
        return len(self._sent)

    def is_drained(self, ledger_id: int) -> bool:
        """Whether every batch that was sent to a ledger is answered. Do not ask this about the newest ledger.

        Batches are in order. So unless the ledger is the newest one, its unanswered batches are at the head
        of ``_sent``.
        """
        return not self._sent or self._sent[0].ledger_id != ledger_id

    # --- adding -------------------------------------------------------------------------------

    def check_expected(self, expected: int) -> None:
        """Check that the next record would get this offset.

        Raises:
            OffsetMismatch: The record would get another offset.
        """
        if expected != self.tail:
            raise OffsetMismatch(self._name, expected, self.tail)

    def add(
        self, record: bytes, size: int, expected: int | None = None, attributes: Attributes | None = None
    ) -> Batch:
        """Take a record and return its batch.

        The record gets the last slot of the batch and the ticket ``next_ticket - 1``.

        Args:
            record: The data of the record.
            size: The bytes of the record, its key and headers included.
            expected: The only offset at which the record may be written.
            attributes: The key and headers of the record, if it has any.
        """
        batch = self._open
        if batch is None or batch.cost + size + batch.overhead > self._entry_bytes:
            batch = self._new_batch(has_attributes=attributes is not None)
        if attributes is not None:
            if batch.attributes is None:
                batch = self._new_batch(has_attributes=True)
            assert batch.attributes is not None
            batch.attributes[len(batch.records)] = attributes
        if expected is not None:
            assert expected == self.tail
            batch.expected = batch.expected or []
            batch.expected.append((len(batch.records), expected))
            self._conditions += 1
        batch.records.append(record)
        batch.size += size
        batch.cost += size + batch.overhead
        batch.end_ticket = self.next_ticket = self.next_ticket + 1
        self.tail += 1
        self.records_outstanding += 1
        self.bytes_outstanding += size
        return batch

    def add_many(
        self,
        records: Sequence[bytes],
        ends: Sequence[int],
        at: int,
        limit: int,
        attributes: Sequence[Attributes | None] | None = None,
    ) -> int:
        """Take consecutive records into one batch, as many as fit, but at least one. The batch is
        ``last_batch`` afterwards.

        Args:
            records: All records of the call.
            ends: The cumulative sizes of all records, their keys and headers included.
            at: The index of the first record to take.
            limit: The index to stop before, even if more records fit.
            attributes: The keys and headers of all records; None if no record has any.

        Returns:
            The index of the first record that was not taken.
        """
        before = ends[at - 1] if at else 0
        batch = self._batch_for(ends[at] - before, 1, attributes)
        room = self._entry_bytes - batch.cost
        overhead = batch.overhead
        base = before + overhead * at
        stop = bisect_right(range(at + 1, limit + 1), room, key=lambda k: ends[k - 1] + overhead * k - base)
        end = at + max(1, stop)
        if attributes is not None:
            attributes = attributes[at:end]
        self._extend(batch, records[at:end], ends[end - 1] - before, attributes)
        return end

    def add_group(
        self, records: Sequence[bytes], size: int, attributes: Sequence[Attributes | None] | None = None
    ) -> Batch:
        """Take records that must share one entry; they get the last slots of the returned batch.

        Args:
            records: The records. ``group_cost`` has found that an entry can hold them.
            size: The bytes of all records, keys and headers included.
            attributes: The keys and headers of the records; None if no record has any.
        """
        batch = self._batch_for(size, len(records), attributes)
        self._extend(batch, records, size, attributes)
        return batch

    def _batch_for(self, size: int, count: int, attributes: Sequence[Attributes | None] | None) -> Batch:
        """Return the open batch if it has room for ``count`` records of ``size`` bytes, or a new one."""
        batch = self._open
        for_attributes = attributes is not None
        if batch is None or not batch.has_room(size, count, self._entry_bytes, for_attributes=for_attributes):
            batch = self._new_batch(has_attributes=for_attributes)
        return batch

    @property
    def last_batch(self) -> Batch:
        """The batch that took the newest record."""
        assert self._open is not None
        return self._open

    def _extend(
        self,
        batch: Batch,
        records: Sequence[bytes],
        size: int,
        attributes: Sequence[Attributes | None] | None,
    ) -> None:
        count = len(records)
        batch.extend(records, size, attributes)
        batch.end_ticket = self.next_ticket = self.next_ticket + count
        self.tail += count
        self.records_outstanding += count
        self.bytes_outstanding += size

    def _new_batch(self, *, has_attributes: bool = False) -> Batch:
        self._open = batch = Batch(self.next_ticket, self._epoch, has_attributes=has_attributes)
        self._queued.append(batch)
        return batch

    # --- taking back --------------------------------------------------------------------------

    def take_back(self, batch: Batch, start: int, stop: int) -> bool:
        """Drop the records in slots ``start`` to below ``stop``, unless their batch was sent already.

        Do not take numbered records back: if a producer repeats a record, it must learn the outcome of the
        earlier one.

        Returns:
            Whether the records were dropped.
        """
        if batch.state is not BatchState.QUEUED:
            return False
        for slot in range(start, stop):
            if batch.dropped is None or slot not in batch.dropped:
                self._drop(batch, slot, None)
        if self._conditions:
            self._recheck()
        return True

    def _drop(self, batch: Batch, slot: int, why: OffsetMismatch | None) -> None:
        self.bytes_outstanding -= batch._drop(slot, why)
        self.records_outstanding -= 1
        self.tail -= 1

    def _recheck(self) -> None:
        """Drop the queued records whose condition no longer holds."""
        offset = self.next_offset
        for batch in self._queued:
            for slot, expected in batch.expected or ():
                dropped = batch.dropped
                if dropped is not None and slot in dropped:
                    continue
                actual = offset + batch.live_slot(slot)
                if expected != actual:
                    self._drop(batch, slot, OffsetMismatch(self._name, expected, actual))
            offset += batch.live_count
        assert offset == self.tail

    def skip_to(self, offset: int) -> None:
        """Continue at this offset, behind records that were spliced into the log. Nothing may be on its way.

        Queued records move up. If a record has a condition that no longer holds, it is dropped.
        """
        assert not self._sent, "a sent record has its offset for good"
        assert offset >= self.next_offset
        self.tail += offset - self.next_offset
        self.next_offset = self.durable_offset = offset
        if self._conditions:
            self._recheck()

    # --- sending ------------------------------------------------------------------------------

    def first_to_send(self, *, full_only: bool) -> Batch | None:
        """Return the oldest batch that is not sent, with its ``first_offset`` set; None if no batch may be
        sent.

        If all records of a batch were dropped, the batch is answered without being sent.

        Args:
            full_only: Return only a batch that takes no more records.
        """
        queued = self._queued
        while queued:
            batch = queued[0]
            if full_only and batch is self._open:
                return None
            if batch.live_count:
                batch.first_offset = self.next_offset
                return batch
            self._forget_head()
            batch.state = BatchState.LOST
            if self._sent:
                self._sent[-1].end_ticket = batch.end_ticket
            else:
                self.answered = batch.end_ticket - 1
        return None

    def on_sent(self, batch: Batch, ledger_id: int, entry_id: int) -> None:
        """The batch became an entry. From here on the ledger decides its outcome."""
        assert batch is self._queued[0]
        self._forget_head()
        if ledger_id not in self._confirmed:
            # A roll: of the older ledgers, only the last can still confirm entries.
            self._confirmed = {**dict(list(self._confirmed.items())[-1:]), ledger_id: NO_ENTRY}
        self.next_offset += batch.live_count
        batch.state = BatchState.SENT
        batch.ledger_id = ledger_id
        batch.entry_id = entry_id
        self._sent.append(batch)

    def _forget_head(self) -> None:
        batch = self._queued.popleft()
        if batch is self._open:
            self._open = None
        if batch.expected:
            self._conditions -= len(batch.expected)

    # --- answers ------------------------------------------------------------------------------

    def on_confirmed(self, ledger_id: int, last_confirmed: int) -> int:
        """A ledger confirmed its entries up to ``last_confirmed``. Return the last answered ticket."""
        self._confirmed[ledger_id] = last_confirmed
        sent = self._sent
        while sent:
            batch = sent[0]
            if batch.entry_id > self._confirmed.get(batch.ledger_id, NO_ENTRY):
                break
            sent.popleft()
            self._retire(batch, BatchState.DURABLE)
        return self.answered

    def _retire(self, batch: Batch, state: BatchState) -> None:
        batch.state = state
        count = batch.live_count
        self.records_outstanding -= count
        self.bytes_outstanding -= batch.size
        batch.records = []
        batch.attributes = None
        if state is BatchState.DURABLE:
            self.durable_offset = batch.first_offset + count
            self.durable_bytes += batch.size
            self.answered = batch.end_ticket - 1
        elif state is BatchState.LOST:
            self.lost_count += count
        else:
            self.unknown_count += count

    def resolve(self, ends: Mapping[int, int], short: Collection[int] = ()) -> int:
        """Give every batch its verdict, because the leadership is over.

        A batch is in its ledger if its entry is not beyond the ledger's last entry. If the older ledger lacks
        a batch that was sent to it, the newer ledger counts as empty. So a batch in the newer ledger is in
        the log only if all batches of the older ledger are. Three rules follow:

        - If a batch is LOST, all later batches are LOST.
        - After an UNKNOWN batch, no batch is DURABLE.
        - One exception: if a batch is lost in a short ledger (an accepted loss ended it early), an operator
          decides about the newer ledger. So the batches of the newer ledger are UNKNOWN.

        For example, batches became entries 5 and 6 of ledger 1 and entry 0 of ledger 2. If recovery ended
        ledger 1 at entry 5, the first batch is durable and the other two are lost.

        Args:
            ends: The last entry of each ledger that is known to be CLOSED.
            short: The ledgers in ``ends`` that an accepted loss ended.

        Returns:
            The last ticket of the last durable batch.
        """
        verdict = BatchState.DURABLE
        lost_in: int | None = None
        while self._sent:
            batch = self._sent.popleft()
            end = ends.get(batch.ledger_id)
            if lost_in in short and batch.ledger_id != lost_in:
                verdict, lost_in = BatchState.UNKNOWN, None
            if verdict is not BatchState.LOST:
                if end is None:
                    verdict = BatchState.UNKNOWN
                elif batch.entry_id > end:
                    verdict, lost_in = BatchState.LOST, batch.ledger_id
            self._retire(batch, verdict)
        while self._queued:
            batch = self._queued[0]
            self._forget_head()
            self._retire(batch, BatchState.LOST)
        self.tail = self.next_offset
        return self.answered


def cumulative(sizes: Sequence[int]) -> list[int]:
    """Return the sum of the sizes up to and including each one."""
    return list(accumulate(sizes))
