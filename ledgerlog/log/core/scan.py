"""Planning a parallel read of a log: from the ledgers' contents to parts of about equal weight.

One process plans a scan, and many tasks carry it out. This module makes the plan, from numbers alone:
offsets, entries and bytes.

**Ranges** of offsets are half-open and without holes. A ``Stretch`` is the part of a log that one ledger
holds. The stretches of a log adjoin each other, except for lost records before a stretch
(``Stretch.lost_before``). ``cut`` takes a range out of the stretches, as one ``Piece`` for each ledger.
``share`` makes parts of the pieces: it splits a piece that is too heavy for one part, and packs light
neighbours into one part. So a log of ten thousand small ledgers does not become ten thousand tasks. Pieces
stay in order: if you read the parts one after the other, you read the log in order.

The plan does not cut at fragments (a fragment is a range of entries on the same ensemble of bookies). The
metadata names the first entry of a fragment, but not the offset of that entry. To learn the offset, the
planner would have to read the entry. A cut there would gain nothing, because entries are striped over bookies
within a fragment too.

The **weight** of a piece is its bytes, plus a fixed cost for each record and each ledger. The plan assumes
that a ledger's bytes are spread evenly over its records. So a cut is exact by count, and approximate by
bytes.

**Admission** (``admit``) does the same arithmetic for one micro-batch of a stream over several logs. It
decides how far the stream may go in each log, so that all logs together stay within a number of records and
of bytes. Each log gets a share in proportion to its backlog, so no log waits until another is done. At least
one log moves, even if the bound is very small.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from operator import itemgetter

import attrs

from ledgerlog.limits import SCAN_PIECES_MAX
from ledgerlog.model.record import AttachedLedger

__all__ = ["LEDGER_WEIGHT", "RECORD_WEIGHT", "Backlog", "Piece", "Stretch", "admit", "cut", "share"]

RECORD_WEIGHT = 32
"""The weight of a record in addition to its bytes."""

LEDGER_WEIGHT = 256 * 1024
"""The weight of a ledger in addition to its records: the cost of finding and opening the ledger."""


@attrs.frozen(kw_only=True)
class Stretch:
    """The records that one ledger holds of its log: offsets ``start`` to below ``end``.

    A stretch without records stands for the end of a log whose last offsets were lost.
    """

    ledger_id: int
    start: int
    end: int
    byte_length: int
    """Bytes of the records, approximately."""
    last_entry: int | None
    """The last entry that may be read. None for a closed ledger, because its metadata names the last
    entry."""
    spliced: AttachedLedger | None = None
    """For a ledger that was written apart and spliced: the offsets and times that the log gives its records.
    None for other ledgers."""
    lost_before: int = 0
    """How many offsets were lost between the previous stretch and ``start``. No piece contains them."""

    def __attrs_post_init__(self) -> None:
        assert 0 <= self.start < self.end + (self.lost_before > 0), "a stretch holds records"
        assert self.byte_length >= 0

    def bytes_between(self, start: int, end: int) -> int:
        """Return about how many bytes the records from ``start`` to below ``end`` have."""
        return self.byte_length * (end - start) // (self.end - self.start)

    def records_within(self, byte_count: int) -> int:
        """Return about how many records ``byte_count`` bytes hold, at least one."""
        return max(1, byte_count * (self.end - self.start) // max(1, self.byte_length))


@attrs.frozen(kw_only=True)
class Piece:
    """The records from ``start`` to below ``end`` of one log, all of them in one stretch."""

    log: str
    incarnation: int
    stretch: Stretch
    start: int
    end: int

    def __attrs_post_init__(self) -> None:
        assert self.stretch.start <= self.start < self.end <= self.stretch.end

    @property
    def records(self) -> int:
        return self.end - self.start

    @property
    def byte_length(self) -> int:
        return self.stretch.bytes_between(self.start, self.end)

    @property
    def weight(self) -> int:
        return LEDGER_WEIGHT + RECORD_WEIGHT * self.records + self.byte_length


def cut(log: str, incarnation: int, stretches: Sequence[Stretch], start: int, end: int) -> list[Piece]:
    """Return the range from ``start`` to below ``end`` as pieces.

    The stretches must hold all of the range, except for lost offsets.
    """
    pieces = []
    at = start
    for stretch in stretches:
        if stretch.end <= at or at >= end:
            continue
        assert stretch.start - stretch.lost_before <= at, "stretches adjoin each other"
        at = max(at, stretch.start)
        stop = min(end, stretch.end)
        if at >= stop:
            break  # The range ends in a gap.
        pieces.append(Piece(log=log, incarnation=incarnation, stretch=stretch, start=at, end=stop))
        at = stop
    assert at >= end, f"log {log!r}: offsets {at} to {end - 1} lie in no ledger"
    return pieces


def share(
    pieces: Sequence[Piece],
    *,
    max_bytes: int,
    max_records: int | None = None,
    min_parts: int = 1,
) -> list[tuple[Piece, ...]]:
    """Make parts of the pieces.

    Args:
        pieces: The pieces, in order.
        max_bytes: The approximate limit of one part's weight.
        max_records: The most records of one part; None for no such bound. Parts are larger than these limits
            if there would be more than ``limits.SCAN_PIECES_MAX`` otherwise.
        min_parts: Make at least this many parts, if there are enough records. This is also bounded by
            ``limits.SCAN_PIECES_MAX``.
    """
    assert max_bytes > 0
    assert max_records is None or max_records > 0
    total = sum(piece.records for piece in pieces)
    if not total:
        return []
    wanted = min(min_parts, total, SCAN_PIECES_MAX)
    if wanted > 1:
        # Split pieces are packed until a part is as full as its limit allows, so a limit by count gives the
        # number of parts.
        limit = -(-total // wanted)
        max_records = limit if max_records is None else min(limit, max_records)
    parts: list[tuple[Piece, ...]] = []
    open_part: list[Piece] = []
    weight = records = 0
    for piece in _split(pieces, max_bytes, max_records):
        is_full = weight + piece.weight > max_bytes + LEDGER_WEIGHT or (
            max_records is not None and records + piece.records > max_records
        )
        if open_part and is_full:
            parts.append(tuple(open_part))
            open_part, weight, records = [], 0, 0
        open_part.append(piece)
        weight += piece.weight
        records += piece.records
    parts.append(tuple(open_part))
    return _halve_largest(parts, wanted)


def _split(pieces: Sequence[Piece], max_bytes: int, max_records: int | None) -> list[Piece]:
    counts = []
    for piece in pieces:
        count = -(-(piece.weight - LEDGER_WEIGHT) // max_bytes)
        if max_records is not None:
            count = max(count, -(-piece.records // max_records))
        counts.append(min(count, piece.records))
    if (total := sum(counts)) > SCAN_PIECES_MAX:
        counts = [max(1, count * SCAN_PIECES_MAX // total) for count in counts]
    return [part for piece, count in zip(pieces, counts, strict=True) for part in _evenly(piece, count)]


def _evenly(piece: Piece, count: int) -> list[Piece]:
    bounds = [piece.start + piece.records * index // count for index in range(count + 1)]
    return [
        attrs.evolve(piece, start=start, end=end) for start, end in itertools.pairwise(bounds) if start < end
    ]


def _halve_largest(parts: list[tuple[Piece, ...]], wanted: int) -> list[tuple[Piece, ...]]:
    """Halve the part with the most records, until there are ``wanted`` parts."""

    def sized(part: tuple[Piece, ...], *place: int) -> tuple[int, tuple[int, ...], tuple[Piece, ...]]:
        return -sum(piece.records for piece in part), place, part

    heap = [sized(part, index) for index, part in enumerate(parts)]
    heapq.heapify(heap)
    while len(heap) < wanted:
        _, place, part = heapq.heappop(heap)
        if len(part) > 1:
            halves = [part[: len(part) // 2], part[len(part) // 2 :]]
        else:
            halves = [(half,) for half in _evenly(part[0], 2)]
        for side, half in enumerate(halves):
            heapq.heappush(heap, sized(half, *place, side))
    return [part for _, _, part in sorted(heap, key=itemgetter(1))]


@attrs.frozen
class Backlog:
    """The part of one log that a stream has yet to read: its stretches, from ``start`` to below ``end``."""

    stretches: Sequence[Stretch]
    start: int
    end: int

    @property
    def records(self) -> int:
        return self.end - self.start

    def pieces(self) -> list[Piece]:
        return cut("", 0, self.stretches, self.start, self.end) if self.records else []

    def offset_after(self, byte_count: int) -> int:
        """Return the offset that about ``byte_count`` bytes reach; ``start`` if they hold less than one
        record."""
        at, left = self.start, byte_count
        for piece in self.pieces():
            size = piece.byte_length
            if size > left:
                return piece.start + piece.records * left // size
            at, left = piece.end, left - size
        return at


def admit(
    backlogs: Mapping[str, Backlog], *, max_records: int | None = None, max_bytes: int | None = None
) -> dict[str, int]:
    """Return the end of the next micro-batch in each log. Without bounds it is the end of the backlog."""
    ends = {log: backlog.end for log, backlog in backlogs.items()}
    if max_records is not None:
        counts = {log: backlog.records for log, backlog in backlogs.items()}
        for log, granted in _proportionally(counts, max_records).items():
            ends[log] = min(ends[log], backlogs[log].start + granted)
    if max_bytes is not None:
        sizes = {
            log: sum(piece.byte_length + RECORD_WEIGHT * piece.records for piece in backlog.pieces())
            for log, backlog in backlogs.items()
        }
        # Each record adds RECORD_WEIGHT here too. Otherwise a backlog of empty records would weigh nothing.
        for log, granted in _proportionally(sizes, max_bytes).items():
            size, backlog = sizes[log], backlogs[log]
            own = sum(piece.byte_length for piece in backlog.pieces())
            reach = backlog.offset_after(own * granted // size) if size else backlog.end
            ends[log] = min(ends[log], reach if granted < size else backlog.end)
    if all(ends[log] <= backlog.start for log, backlog in backlogs.items()):
        for log, backlog in sorted(backlogs.items(), key=lambda item: (-item[1].records, item[0])):
            if backlog.records:
                ends[log] = backlog.start + 1
                break
    return ends


def _proportionally(wants: Mapping[str, int], total: int) -> dict[str, int]:
    """Divide ``total`` in proportion to the wants, rounded down. Then give one more to each of the first
    names, in order, that still want more, until nothing is left."""
    wanted = sum(wants.values())
    if wanted <= total:
        return dict(wants)
    granted = {name: want * total // wanted for name, want in wants.items()}
    left = total - sum(granted.values())
    for name in sorted(wants):
        more = min(left, wants[name] - granted[name], 1)
        granted[name] += more
        left -= more
    return granted
