"""Records of a log, their acknowledgements, and batches of records.

A record's *offset* is its number in the log: dense, from 0, and it never changes. Its *position* is its
ledger, the entry in the ledger, and its slot (index) in the entry. Its *epoch* is the epoch of the leader
that wrote it. Its *timestamp* is that leader's wall clock in milliseconds. Timestamps never decrease within a
log, and all records of one entry have the same timestamp.

A replay makes millions of these objects, so ``Ack`` and ``Record`` are named tuples. The interpreter builds a
batch of named tuples without a Python frame for each. That takes about 0.2 us for each; a frozen attrs object
takes 0.5 us. If you need only the bytes, take ``RecordBatch.payloads``: then no ``Record`` is made. If you
make columns of the records, take a ``PackedBatch``, which makes no object for a record at all.

Few records have a key or headers (``model.attributes``). If no record of a batch has a key or headers, the
batch has None in place of both columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any, NamedTuple

from ledgerlog.model.attributes import Headers, attributes_size
from ledgerlog.model.ids import Position

__all__ = [
    "Ack",
    "PackedBatch",
    "PackedColumn",
    "Record",
    "RecordBatch",
    "AttachedLedger",
    "moment",
    "milliseconds",
]

tuple_new: Callable[..., Any] = tuple.__new__
"""The function that ``_make`` of a named tuple calls. ``map`` over it makes many tuples without a Python
frame for each. It does not check the number of fields."""

_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def moment(timestamp_ms: int) -> datetime:
    """Return a timestamp as an aware datetime in UTC. A year above 9999 becomes the end of the year 9999."""
    try:
        return _EPOCH_START + timestamp_ms * _MILLISECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def milliseconds(when: datetime) -> int:
    """Return the first whole millisecond since 1970 that is not before ``when``."""
    return -((_EPOCH_START - _aware(when)) // _MILLISECOND)


def parse_moment(text: str) -> datetime:
    """Parse a time in ISO 8601, for example 2026-03-01T12:00:00+01:00. Raise ValueError if the text is not
    such a time.

    The result is aware. A time without a zone is UTC.
    """
    return _aware(datetime.fromisoformat(text))


def _aware(when: datetime) -> datetime:
    # A time without a zone is UTC in programs, in commands and in Spark. So it means the same on every
    # machine, and it matches the times that we print.
    return when if when.utcoffset() is not None else when.replace(tzinfo=UTC)


class Ack(NamedTuple):
    """The acknowledgement of a record: it is durable on an ack quorum of bookies.

    Every later reader and leader of the log will see the record.
    """

    offset: int
    """The offset of the record in the log."""
    position: Position | None
    """The position of the record. None only for a duplicate, if the leader remembers just the record's
    offset."""
    epoch: int
    """The epoch of the leader that appended the record. For a duplicate without a position, the epoch of the
    leader that answers."""
    duplicate: bool = False
    """Whether an earlier append had already written the record; ``offset`` is then that append's offset."""


class Record(NamedTuple):
    """One record of a log."""

    offset: int
    """Its number in the log, from 0. It never changes."""
    position: Position
    """Where it lies: ledger, entry and slot."""
    data: bytes
    """The bytes that were appended."""
    timestamp: datetime
    """The leader's wall clock at the append, in UTC, in whole milliseconds."""
    epoch: int
    """The epoch of the leader that appended it."""
    key: bytes | None = None
    """Its key, if it was appended with one."""
    headers: Headers = ()
    """Its headers, in the order in which they were given: pairs of a name and a value."""


class AttachedLedger(NamedTuple):
    """The place in the log of a ledger that was written outside the log and then spliced into it as a whole.

    The entries of such a ledger only know offsets relative to its first record (``wire.records``). The log's
    record has these values. With them, a reader computes the offsets in the log.
    """

    first_offset: int
    """The offset of the ledger's first record."""
    epoch: int
    timestamp_ms: int
    """The time of the splice. It is the timestamp of all records of the ledger."""


class RecordBatch:
    """The records of one entry, or a consecutive part of them.

    Iterating over a batch makes ``Record`` objects. If you need only the bytes, take ``payloads``:

        async for batch in reader.batches():
            total += sum(map(len, batch.payloads))

    The batch does not copy ``payloads``, so do not change the list.

    Attributes:
        ledger_id: The ledger that holds the entry.
        entry_id: The entry.
        first_offset: The offset of the first record in the batch.
        first_slot: The slot of the first record in its entry.
        epoch: The epoch of the leader that appended the records.
        timestamp_ms: That leader's wall clock, in milliseconds since 1970.
        payloads: The bytes of each record, in order.
        keys: The key of each record, or None for a record without one. None if no record of the batch has a
            key or headers.
        headers: The headers of each record. None if no record of the batch has a key or headers.
    """

    __slots__ = (
        "entry_id",
        "epoch",
        "first_offset",
        "first_slot",
        "headers",
        "keys",
        "ledger_id",
        "payloads",
        "timestamp_ms",
    )

    def __init__(
        self,
        *,
        ledger_id: int,
        entry_id: int,
        first_offset: int,
        first_slot: int,
        epoch: int,
        timestamp_ms: int,
        payloads: list[bytes],
        keys: list[bytes | None] | None = None,
        headers: list[Headers] | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.first_offset = first_offset
        self.first_slot = first_slot
        self.epoch = epoch
        self.timestamp_ms = timestamp_ms
        self.payloads = payloads
        self.keys = keys
        self.headers = headers

    def __repr__(self) -> str:
        return (
            f"<RecordBatch offsets {self.first_offset}..{self.end_offset - 1} "
            f"entry {self.ledger_id}:{self.entry_id} epoch {self.epoch}>"
        )

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[Record]:
        count = len(self.payloads)
        return map(
            tuple_new,
            repeat(Record),
            zip(
                range(self.first_offset, self.end_offset),
                map(
                    tuple_new,
                    repeat(Position),
                    zip(
                        repeat(self.ledger_id),
                        repeat(self.entry_id),
                        range(self.first_slot, self.first_slot + count),
                        strict=False,
                    ),
                ),
                self.payloads,
                repeat(self.timestamp),
                repeat(self.epoch),
                repeat(None) if self.keys is None else self.keys,
                repeat(()) if self.headers is None else self.headers,
                strict=False,  # ``repeat`` has no end.
            ),
        )

    @property
    def end_offset(self) -> int:
        """The offset after the last record of the batch."""
        return self.first_offset + len(self.payloads)

    @property
    def has_attributes(self) -> bool:
        """Whether any record of the batch has a key or headers."""
        if self.keys is not None and any(key is not None for key in self.keys):
            return True
        return self.headers is not None and any(self.headers)

    @property
    def timestamp(self) -> datetime:
        """The leader's wall clock at the append, as a datetime in UTC."""
        return moment(self.timestamp_ms)

    @property
    def byte_length(self) -> int:
        """The bytes of all records of the batch, their keys and headers included."""
        size = sum(map(len, self.payloads))
        if self.keys is None and self.headers is None:
            return size
        return size + attributes_size(self.keys, self.headers)

    def between(self, start: int, end: int | None = None) -> RecordBatch:
        """Return the part of the batch with offsets from ``start`` to ``end - 1``.

        Args:
            start: The first offset to keep.
            end: The offset after the last one to keep; None keeps the rest.

        Returns:
            The part, perhaps empty. If every record is kept, this is the batch itself.
        """
        low = max(0, start - self.first_offset)
        high = len(self.payloads) if end is None else min(len(self.payloads), end - self.first_offset)
        if low == 0 and high == len(self.payloads):
            return self
        part = slice(low, max(low, high))
        return RecordBatch(
            ledger_id=self.ledger_id,
            entry_id=self.entry_id,
            first_offset=self.first_offset + low,
            first_slot=self.first_slot + low,
            epoch=self.epoch,
            timestamp_ms=self.timestamp_ms,
            payloads=self.payloads[part],
            keys=None if self.keys is None else self.keys[part],
            headers=None if self.headers is None else self.headers[part],
        )


class PackedColumn:
    """One item of bytes for each record, in packed form: the joined bytes, and the lengths.

    The column does not copy the bytes and the lengths, so do not change them.
    """

    __slots__ = ("data", "lengths")

    ABSENT = 2**32 - 1
    """The length of an absent item (None), which takes no place in ``data``."""

    def __init__(self, lengths: array[int], data: memoryview) -> None:
        self.lengths = lengths
        """The length of each item in bytes, as unsigned 32-bit numbers."""
        self.data = data

    @classmethod
    def of(cls, items: Sequence[bytes | None]) -> PackedColumn:
        """Pack some items."""
        lengths = array("I", [cls.ABSENT if item is None else len(item) for item in items])
        return cls(lengths, memoryview(b"".join([item for item in items if item])))

    def items(self) -> list[bytes | None]:
        """Return the items, None for each that is absent."""
        found: list[bytes | None] = []
        at = 0
        for length in self.lengths:
            if length == self.ABSENT:
                found.append(None)
            else:
                found.append(bytes(self.data[at : at + length]))
                at += length
        return found

    def between(self, low: int, high: int) -> PackedColumn:
        """Return the items from index ``low`` to ``high - 1``."""
        start = sum(length for length in self.lengths[:low] if length != self.ABSENT)
        lengths = self.lengths[low:high]
        size = sum(length for length in lengths if length != self.ABSENT)
        return PackedColumn(lengths, self.data[start : start + size])


class PackedBatch:
    """The records of one entry, or a consecutive part of them, in packed form: joined bytes and lengths.

    The batch does not copy the bytes and the lengths, so do not change them.
    """

    __slots__ = (
        "data",
        "entry_id",
        "epoch",
        "first_offset",
        "headers",
        "keys",
        "ledger_id",
        "lengths",
        "timestamp_ms",
    )

    def __init__(
        self,
        *,
        ledger_id: int,
        entry_id: int,
        first_offset: int,
        epoch: int,
        timestamp_ms: int,
        lengths: array[int],
        data: memoryview,
        keys: PackedColumn | None = None,
        headers: PackedColumn | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.first_offset = first_offset
        """The offset of the first record of the batch."""
        self.epoch = epoch
        self.timestamp_ms = timestamp_ms
        self.lengths = lengths
        """The length of each record in bytes, as unsigned 32-bit numbers."""
        self.data = data
        self.keys = keys
        """The keys of the records; None if no record of the entry has a key or headers."""
        self.headers = headers
        """The headers of each record, as ``model.attributes`` encodes them; None as for ``keys``."""

    def __repr__(self) -> str:
        return (
            f"<PackedBatch offsets {self.first_offset}..{self.end_offset - 1} "
            f"entry {self.ledger_id}:{self.entry_id} epoch {self.epoch}>"
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def end_offset(self) -> int:
        """The offset after the last record of the batch."""
        return self.first_offset + len(self.lengths)

    @property
    def byte_length(self) -> int:
        """The bytes of all records of the batch, their keys and headers included."""
        size = len(self.data)
        if self.keys is not None:
            size += len(self.keys.data)
        if self.headers is not None:
            size += len(self.headers.data)
        return size

    def between(self, start: int, end: int) -> PackedBatch:
        """Return the part with offsets from ``start`` to ``end - 1``; the batch itself if that is all of
        it."""
        low = max(0, start - self.first_offset)
        high = max(low, min(len(self.lengths), end - self.first_offset))
        if low == 0 and high == len(self.lengths):
            return self
        skipped = sum(self.lengths[:low])
        lengths = self.lengths[low:high]
        return PackedBatch(
            ledger_id=self.ledger_id,
            entry_id=self.entry_id,
            first_offset=self.first_offset + low,
            epoch=self.epoch,
            timestamp_ms=self.timestamp_ms,
            lengths=lengths,
            data=self.data[skipped : skipped + sum(lengths)],
            keys=None if self.keys is None else self.keys.between(low, high),
            headers=None if self.headers is None else self.headers.between(low, high),
        )
