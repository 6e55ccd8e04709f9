"""The segments of a log, and the columns in which the log's record stores them.

A log is a chain of ledgers, its *segments*. A segment is *counted* once the number of its records is known,
after its ledger is CLOSED. Counted segments come first in the list. See ``model.log`` for the log's record
and the rules for changing the list. This module defines only the single segment, and the stored form of the
list.

**Bytes.** In format 2 the field ``segments`` of the record is ``[n, m, t, packed, bytes]``: n segments, m of
them counted, t of those with records. The bytes are columns of little-endian 64-bit numbers: n ledger ids and
n epochs, each as its difference from the previous one; m record counts; m byte lengths; and two timestamps
for each of the t segments with records: its first timestamp minus the last timestamp before it, and its last
timestamp minus its first. ``packed`` is 0 if the columns are stored as they are. It is 1 if each column is
stored by planes (the lowest bytes of all its numbers, then the next, ...) and the whole is one zstd frame.

Format 3 adds the field ``gaps`` of the record: ``[ledger id, lost, ...]``, a pair for each segment that has a
gap before it (``LogSegment.lost_before``). It is written only if there are gaps, which is nearly never.

A segment takes about 10 bytes packed and at worst 48. Format 1, which had the columns as CBOR lists (22 bytes
a segment, and 40 ms to read 10,000), is read and never written. Encoding and decoding work column by column,
never segment by segment, because they must be fast with ten thousand segments: each roll writes the list
while appends continue, and each takeover reads it.

**Bounds.** A list has at most ``limits.LOG_SEGMENTS_MAX`` segments, even if they pack well. Encoding and
decoding check the same rules (``_check``), so every written list can be read.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import LEDGER_ID_MAX, LOG_SEGMENTS_MAX
from ledgerlog.model.checks import require
from ledgerlog.model.codec import Fields
from ledgerlog.model.packing import number_bytes, numbers, pack, planes, unpack, unplaned
from ledgerlog.model.record import AttachedLedger, tuple_new

_NUMBER_MAX = 2**63 - 1
_PACK_MIN_BYTES = 512
"""Shorter columns are not packed."""


@attrs.frozen
class SegmentCounts:
    """The size of a closed ledger of a log."""

    record_count: int
    byte_length: int
    """Bytes of the records, without headers."""
    first_ms: int | None = None
    """Timestamp of the first record; None if there is none."""
    last_ms: int | None = None
    """Timestamp of the last record; None if there is none."""
    lost_before: int = 0
    """How many offsets before the first record were lost; see ``LogSegment``."""

    def __attrs_post_init__(self) -> None:
        require(self.record_count >= 0 and self.byte_length >= 0, "counts are not negative")
        require(self.lost_before >= 0, "a gap is not negative")
        empty = self.record_count == 0
        require((self.first_ms is None) == empty, "a segment has timestamps exactly if it has records")
        require((self.last_ms is None) == empty, "a segment has timestamps exactly if it has records")
        require(not empty or self.byte_length == 0, "an empty segment has no bytes")


NOTHING = SegmentCounts(0, 0)


class LogSegment(NamedTuple):
    """One ledger of a log. A named tuple is made fast, and each takeover decodes the whole list."""

    ledger_id: int
    """The id of the ledger."""
    epoch: int
    """The epoch of the leader that made the ledger."""
    first_offset: int | None
    """The offset of the ledger's first record, after the gap if there is one. None while the ledger before
    this one is not counted."""
    record_count: int | None = None
    """How many records the ledger holds; None until it is closed and counted."""
    byte_length: int | None = None
    """Bytes of its records, without headers; None until it is counted."""
    first_ms: int | None = None
    """The time of its first record in ms since 1970; None until it is counted, and if it is empty."""
    last_ms: int | None = None
    """The time of its last record in ms since 1970; None until it is counted, and if it is empty."""
    lost_before: int = 0
    """The size of the gap between the previous segment and ``first_offset``, in offsets. Bookies lost the
    gap's records, and an operator accepted the loss. No other record gets these offsets."""

    @property
    def is_counted(self) -> bool:
        """Whether the ledger is closed and its records are counted."""
        return self.record_count is not None

    @property
    def end_offset(self) -> int | None:
        """The offset after its last record; None while that is not known."""
        if self.first_offset is None or self.record_count is None:
            return None
        return self.first_offset + self.record_count

    @property
    def spliced(self) -> AttachedLedger | None:
        """The place in the log of the records of a ledger that was spliced into the log (``AttachedLedger``).

        None while the segment is not counted; a spliced ledger is always counted. Do not use the value for
        other ledgers.
        """
        if self.first_offset is None or self.last_ms is None:
            return None
        return AttachedLedger(self.first_offset, self.epoch, self.last_ms)

    def with_counts(self, counts: SegmentCounts) -> LogSegment:
        """Return the segment of the same ledger, counted.

        Args:
            counts: The counts.
        """
        return LogSegment(
            self.ledger_id,
            self.epoch,
            self.first_offset,
            counts.record_count,
            counts.byte_length,
            counts.first_ms,
            counts.last_ms,
            counts.lost_before,
        )


def joined(parts: Sequence[LogSegment], ledger_id: int) -> LogSegment:
    """Return the segment of a ledger that holds the records of several counted neighbours.

    Some of them must have records, and no gap may lie between them.
    """
    assert all(part.is_counted for part in parts), "only closed ledgers are joined"
    assert not any(part.lost_before for part in parts[1:]), "nothing is joined across a gap"
    with_records = [part for part in parts if part.record_count]
    return LogSegment(
        ledger_id,
        parts[0].epoch,
        parts[0].first_offset,
        sum(part.record_count or 0 for part in parts),
        sum(part.byte_length or 0 for part in parts),
        with_records[0].first_ms,
        with_records[-1].last_ms,
        parts[0].lost_before,
    )


@attrs.frozen
class Gap:
    """Offsets of a log whose records were lost: from ``first_offset`` to ``end_offset - 1``.

    An operator accepted the loss with ``Log.recover(accept_loss=True)``. No other record ever gets these
    offsets.
    """

    first_offset: int
    """The first lost offset."""
    end_offset: int
    """The offset after the last lost one."""


class _Columns(NamedTuple):
    """The list of segments as it is stored, with ids and epochs as differences."""

    ledgers: Sequence[int]
    epochs: Sequence[int]
    counts: Sequence[int]
    sizes: Sequence[int]
    times: Sequence[int]


def _differences(numbers: Sequence[int]) -> list[int]:
    """Return the first number, then the difference between each number and the previous one."""
    return [*numbers[:1], *map(operator.sub, numbers[1:], numbers)]


def _refuse_to_write(why: str) -> NoReturn:
    raise InvalidArgument(f"no record can hold this list of ledgers: {why}")


def _check(
    ledgers: Sequence[int],
    epochs: Sequence[int],
    columns: _Columns,
    *,
    epoch: int,
    offset: int,
    lost: int,
    last_ms: int,
    fail: Callable[[str], NoReturn],
) -> None:
    """Check the rules for a list that is written or read.

    ``ledgers`` and ``epochs`` are plain values, not differences. ``lost`` is the number of offsets in all
    gaps.
    """
    counts, sizes, times = columns.counts, columns.sizes, columns.times
    if len(ledgers) > LOG_SEGMENTS_MAX:
        fail(f"a list of {len(ledgers)} ledgers, over the limit of {LOG_SEGMENTS_MAX}")
    if len(epochs) != len(ledgers) or len(sizes) != len(counts):
        fail("the columns of the list of ledgers have different lengths")
    if not 0 <= len(ledgers) - len(counts) <= 2:
        fail(f"{len(counts)} of {len(ledgers)} ledgers are counted; only the last two may not be")
    if len(set(ledgers)) != len(ledgers):
        fail("a ledger is listed twice")
    if ledgers and not 0 <= min(ledgers) <= max(ledgers) <= LEDGER_ID_MAX:
        fail(f"a ledger's id is out of range (0 to {LEDGER_ID_MAX})")
    if any(map(operator.gt, [1, *epochs], epochs)) or (epochs and epochs[-1] > epoch):
        fail("the epochs of the ledgers do not grow, or are beyond the log's own")
    if min(itertools.chain(counts, sizes, times), default=0) < 0:
        fail("a count, a length or a stretch of time is negative")
    if 2 * sum(map(bool, counts)) != len(times):
        fail("the number of pairs of times does not match the counted ledgers with records")
    if max(offset + lost + sum(counts), last_ms + sum(times), max(sizes, default=0)) > _NUMBER_MAX:
        fail("offsets, lengths or times are out of range")


def segment_columns(
    segments: Sequence[LogSegment], uncounted: int, *, epoch: int, offset: int, last_ms: int
) -> list[int | bytes]:
    """Return the field ``segments`` of a record.

    Args:
        segments: The list.
        uncounted: How many segments at the end are not counted.
        epoch: The epoch of the record.
        offset: The offset before the list.
        last_ms: The last timestamp before the list.

    Raises:
        InvalidArgument: The list could not be read again.
    """
    # Work by the column, as decoding does: a roll may write ten thousand segments while appends continue.
    counted = len(segments) - uncounted
    ledgers, epochs, _, counts, sizes, firsts, lasts, gaps = (
        zip(*segments, strict=True) if segments else [()] * 8
    )
    first = [begun for begun in firsts if begun is not None]
    last = [ended for ended in lasts if ended is not None]
    times = [0] * (2 * len(first))
    times[::2] = map(operator.sub, first, [last_ms, *last])
    times[1::2] = map(operator.sub, last, first)
    columns = _Columns(
        ledgers=_differences(ledgers),
        epochs=_differences(epochs),
        counts=counts[:counted],
        sizes=sizes[:counted],
        times=times,
    )
    _check(
        ledgers,
        epochs,
        columns,
        epoch=epoch,
        offset=offset,
        lost=sum(gaps),
        last_ms=last_ms,
        fail=_refuse_to_write,
    )
    raw = [number_bytes(column) for column in columns]
    is_packed = sum(map(len, raw)) >= _PACK_MIN_BYTES
    body = pack(b"".join(map(planes, raw))) if is_packed else b"".join(raw)
    return [len(segments), counted, len(times) // 2, int(is_packed), body]


def gap_column(segments: Sequence[LogSegment]) -> list[int]:
    """Return the field ``gaps`` of a record; empty if there are no gaps."""
    return [number for s in segments if s.lost_before for number in (s.ledger_id, s.lost_before)]


def _read_gaps(fields: Fields, ledgers: Sequence[int], counted: int) -> list[int]:
    """Return for each counted segment how many offsets before it were lost."""
    column = [] if fields.optional("gaps", list) is None else fields.sequence("gaps", int)
    lost = dict(zip(column[::2], column[1::2], strict=False))
    if 2 * len(lost) != len(column) or min(lost.values(), default=1) < 1:
        fields.fail("the field 'gaps' is not pairs of a ledger and a number of offsets")
    if not lost.keys() <= set(ledgers[:counted]):
        fields.fail("the field 'gaps' names a ledger that is not listed and counted")
    return [lost.get(ledger_id, 0) for ledger_id in ledgers[:counted]]


def _packed_columns(fields: Fields) -> _Columns:
    shape = fields.get("segments", list)
    if [type(item) for item in shape] != [int, int, int, int, bytes]:
        fields.fail("the field 'segments' is not four numbers and their columns")
    listed, counted, timed, packed, body = shape
    lengths = (listed, listed, counted, counted, 2 * timed)
    size = 8 * sum(lengths)
    if min(lengths) < 0 or packed not in (0, 1) or max(listed, counted, timed) > LOG_SEGMENTS_MAX:
        fields.fail(f"the field 'segments' says {shape[:4]}")
    data = unpack(body, size, fields.fail) if packed else body
    if len(data) != size:
        fields.fail(f"the columns of the list of ledgers have {len(data)} bytes and not {size}")
    columns = []
    at = 0
    for length in lengths:
        column = data[at : at + 8 * length]
        columns.append(numbers(unplaned(column) if packed else column))
        at += 8 * length
    return _Columns(*columns)


def _listed_columns(fields: Fields) -> _Columns:
    """Read the columns of format 1."""
    return _Columns(
        ledgers=fields.sequence("ledgers", int),
        epochs=fields.sequence("epochs", int),
        counts=fields.sequence("counts", int),
        sizes=fields.sequence("bytes", int),
        times=fields.sequence("times", int),
    )


def read_segments(fields: Fields, *, listed: bool, offset: int, last_ms: int) -> tuple[LogSegment, ...]:
    """Read the list in a record.

    Args:
        fields: The record.
        listed: Whether the record has format 1.
        offset: The offset before the first segment.
        last_ms: The last timestamp before the first segment.
    """
    columns = _listed_columns(fields) if listed else _packed_columns(fields)
    ledgers = list(itertools.accumulate(columns.ledgers))
    epochs = list(itertools.accumulate(columns.epochs))
    counts, sizes, times = columns.counts, columns.sizes, columns.times
    gaps = _read_gaps(fields, ledgers, len(counts))
    _check(
        ledgers,
        epochs,
        columns,
        epoch=fields.integer("epoch"),
        offset=offset,
        lost=sum(gaps),
        last_ms=last_ms,
        fail=fields.fail,
    )
    if any(gaps):
        ends = itertools.accumulate(map(operator.add, counts, gaps), initial=offset)
        starts = list(map(operator.add, ends, [*gaps, 0]))
    else:
        starts = list(itertools.accumulate(counts, initial=offset))
    moments = list(itertools.accumulate(times, initial=last_ms))
    # An empty segment has no times. There are few of these, if any.
    firsts: list[int | None] = list(moments[1::2])
    lasts: list[int | None] = list(moments[2::2])
    for index, count in enumerate(counts):
        if not count:
            if sizes[index]:
                fields.fail("a ledger without records has bytes")
            firsts.insert(index, None)
            lasts.insert(index, None)
    rows = zip(ledgers, epochs, starts, counts, sizes, firsts, lasts, gaps, strict=False)
    segments: list[LogSegment] = list(map(tuple_new, itertools.repeat(LogSegment), rows))
    start: int | None = starts[-1]
    for ledger_id, epoch in zip(ledgers[len(counts) :], epochs[len(counts) :], strict=True):
        segments.append(LogSegment(ledger_id, epoch, start))
        start = None
    return tuple(segments)
