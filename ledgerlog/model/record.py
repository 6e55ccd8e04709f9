"""What people put into a log and get out of it: records, their acknowledgements, and batches of them.

A record's *offset* is its number in the log: dense, from 0, for ever. Its *position* says where it
lies. Its *timestamp* is the wall clock of the leader that wrote it, in milliseconds, never decreasing
within a log; the records of one entry share it. Its *epoch* is the epoch of that leader.

A replay hands out millions of these, so ``Ack`` and ``Record`` are named tuples: immutable values
with a name for each field that the interpreter builds by the batch without a Python frame for each
(about 0.2 us; a frozen attrs object takes 0.5). Whoever needs only the bytes takes
``RecordBatch.payloads`` and pays for none of it. Whoever makes columns of them takes a ``PackedBatch``, which
holds no object for a record at all.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any, NamedTuple

from ledgerlog.model.ids import Position

__all__ = ["Ack", "PackedBatch", "Record", "RecordBatch", "Spliced", "moment", "milliseconds"]

tuple_new: Callable[..., Any] = tuple.__new__
"""What ``_make`` of a named tuple calls: mapped over, it makes many of them without a Python frame for each.
The fields must be as many as there are."""

_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def moment(timestamp_ms: int) -> datetime:
    """A timestamp as an aware datetime in UTC; years after 9999 are shown as the end of that year."""
    try:
        return _EPOCH_START + timestamp_ms * _MILLISECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def milliseconds(when: datetime) -> int:
    """The first whole millisecond since 1970 that is not before ``when``."""
    return -((_EPOCH_START - _aware(when)) // _MILLISECOND)


def parse_moment(text: str) -> datetime:
    """A time in ISO 8601 as an aware datetime, for example 2026-03-01T12:00:00+01:00. ValueError."""
    return _aware(datetime.fromisoformat(text))


def _aware(when: datetime) -> datetime:
    # A time without a zone is UTC wherever it is given, in a program, to a command or to Spark: it means the
    # same on every machine, and it is what we print.
    return when if when.utcoffset() is not None else when.replace(tzinfo=UTC)


class Ack(NamedTuple):
    """The record is durable on an ack quorum and will be there for every later reader and leader."""

    offset: int
    position: Position | None
    """None only for a duplicate of a record of which the leader remembers the offset and no more."""
    epoch: int
    """The epoch of the leader that appended it; for such a duplicate, of the one that answers."""
    duplicate: bool = False
    """Whether an earlier append had written it already; ``offset`` is where."""


class Record(NamedTuple):
    """One record of a log."""

    offset: int
    position: Position
    data: bytes
    timestamp: datetime
    """The leader's wall clock when it was appended, in UTC, in whole milliseconds."""
    epoch: int


class Spliced(NamedTuple):
    """What a log says of a ledger that was written without it and then made part of it whole: its entries
    know of their own offsets only from where the ledger begins (``wire.records``)."""

    first_offset: int
    """The offset of the ledger's first record."""
    epoch: int
    timestamp_ms: int
    """When it became part of the log, which is the time of all its records."""


class RecordBatch:
    """The records of one entry, or a stretch of them; iterating over it makes ``Record`` objects.

    ``payloads`` is the records' bytes in order; the batch is not copied, so leave the list alone."""

    __slots__ = ("entry_id", "epoch", "first_offset", "first_slot", "ledger_id", "payloads", "timestamp_ms")

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
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.first_offset = first_offset
        """The offset of the first record here."""
        self.first_slot = first_slot
        """The slot of the first record here within its entry."""
        self.epoch = epoch
        self.timestamp_ms = timestamp_ms
        self.payloads = payloads

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
                strict=False,  # What is repeated has no end.
            ),
        )

    @property
    def end_offset(self) -> int:
        """The offset after the last record here."""
        return self.first_offset + len(self.payloads)

    @property
    def timestamp(self) -> datetime:
        return moment(self.timestamp_ms)

    @property
    def byte_length(self) -> int:
        """The bytes of all records here."""
        return sum(map(len, self.payloads))

    def between(self, start: int, end: int | None = None) -> RecordBatch:
        """The part with offsets from ``start`` on and below ``end``; the batch itself if that is all."""
        low = max(0, start - self.first_offset)
        high = len(self.payloads) if end is None else min(len(self.payloads), end - self.first_offset)
        if low == 0 and high == len(self.payloads):
            return self
        return RecordBatch(
            ledger_id=self.ledger_id,
            entry_id=self.entry_id,
            first_offset=self.first_offset + low,
            first_slot=self.first_slot + low,
            epoch=self.epoch,
            timestamp_ms=self.timestamp_ms,
            payloads=self.payloads[low : max(low, high)],
        )


class PackedBatch:
    """The records of one entry, or a stretch of them, as they lie in it: their bytes joined, and how long
    each is. Neither is copied, so leave both alone."""

    __slots__ = ("data", "entry_id", "epoch", "first_offset", "ledger_id", "lengths", "timestamp_ms")

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
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.first_offset = first_offset
        """The offset of the first record here."""
        self.epoch = epoch
        self.timestamp_ms = timestamp_ms
        self.lengths = lengths
        """Bytes of each record, as unsigned numbers of 32 bits."""
        self.data = data

    def __repr__(self) -> str:
        return (
            f"<PackedBatch offsets {self.first_offset}..{self.end_offset - 1} "
            f"entry {self.ledger_id}:{self.entry_id} epoch {self.epoch}>"
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def end_offset(self) -> int:
        """The offset after the last record here."""
        return self.first_offset + len(self.lengths)

    @property
    def byte_length(self) -> int:
        """The bytes of all records here."""
        return len(self.data)

    def between(self, start: int, end: int) -> PackedBatch:
        """The part with offsets from ``start`` on and below ``end``; the batch itself if that is all."""
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
        )
