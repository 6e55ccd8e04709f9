"""Choose neighbouring ledgers of a log, to gather them into one ledger (``log.gather``).

A splice adds one ledger to a log for each task, and each of these ledgers takes a place in the log's list. If
nothing else happened, a million batches of eight tasks would make eight million segments. So many small
neighbours are copied into one new ledger, which takes their place.

**Few copies.** The weight of a ledger is its bytes, plus a cost for each record and for the ledger itself. A
run of neighbours is gathered if their weight is at least ``limits.LOG_GATHER_GROWTH`` times the weight of the
heaviest of them. So each copy of a record lies in a ledger that is at least four times as heavy as the one
before, and a record is copied O(log n) times. For example, 64 ledgers of 1 KiB become one of 64 KiB. The new
ledger is copied again only when its neighbours are as heavy as it is.

**Few ledgers.** Light ledgers are tried first, then ledgers of up to four times that weight, and so on. In a
log without gaps and archived parts, fewer than ``limits.LOG_GATHER_LEDGERS_MIN`` neighbours remain of each
class of weight. Ledgers of more than a quarter of the greatest size stay as they are.

**Left alone.** These ledgers stay, and no run reaches across them:

- a ledger that is not counted, because a leader still writes to it;
- a ledger with a gap before it, unless it is the first of its run;
- an archived ledger: its file is named by the ledger (``model.archive``);
- all ledgers of a log with deduplication: their entries name producers, and a copy would not name them.

**Policies.** Retention drops whole ledgers. So a gathered ledger stays within the roll policy. It also stays
within an eighth of the bytes and of the age that retention keeps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

from ledgerlog.limits import (
    LOG_GATHER_BYTES_MAX,
    LOG_GATHER_GROWTH,
    LOG_GATHER_LEDGERS_MAX,
    LOG_GATHER_LEDGERS_MIN,
)
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.segments import LogSegment

__all__ = ["plan_gather"]

_RECORD_WEIGHT = 32
_LEDGER_WEIGHT = 256
_RETENTION_SHARE = 8
_FIRST_CLASS = 1024
"""The weight of the lightest class of ledgers."""


def plan_gather(metadata: LogMetadata, archived: Collection[int]) -> tuple[LogSegment, ...]:
    """Return the neighbours to gather into one ledger now; empty if there are none.

    Args:
        metadata: The record of the log.
        archived: The ledgers that are archived.
    """
    counted = metadata.segments[: len(metadata.segments) - len(metadata.open_segments)]
    if metadata.dedupe_epoch is not None or len(counted) < LOG_GATHER_LEDGERS_MIN:
        return ()
    bounds = _Bounds(metadata)
    weights = list(map(_weight, counted))
    by_weight = sorted(weights)
    heaviest = min(bounds.bytes_max // LOG_GATHER_GROWTH, by_weight[-1])
    limit = _FIRST_CLASS
    while True:
        is_many = bisect_right(by_weight, limit) >= LOG_GATHER_LEDGERS_MIN
        for start, stop in _runs(counted, weights, limit, archived) if is_many else ():
            for begin, end in bounds.cut(counted, start, stop):
                if _is_worth(weights[begin:end]) and any(each.record_count for each in counted[begin:end]):
                    return counted[begin:end]
        if limit >= heaviest:
            return ()
        limit *= LOG_GATHER_GROWTH


def _weight(segment: LogSegment) -> int:
    return (segment.byte_length or 0) + _RECORD_WEIGHT * (segment.record_count or 0) + _LEDGER_WEIGHT


def _is_worth(weights: Sequence[int]) -> bool:
    return len(weights) >= LOG_GATHER_LEDGERS_MIN and sum(weights) >= LOG_GATHER_GROWTH * max(weights)


def _runs(
    segments: Sequence[LogSegment], weights: Sequence[int], limit: int, archived: Collection[int]
) -> Iterator[tuple[int, int]]:
    """Yield the longest runs of neighbours that may be joined and weigh at most ``limit`` each."""
    start = 0
    for index, segment in enumerate(segments):
        is_out = weights[index] > limit or segment.ledger_id in archived
        if is_out or segment.lost_before:
            if index - start >= LOG_GATHER_LEDGERS_MIN:
                yield start, index
            start = index + is_out
    if len(segments) - start >= LOG_GATHER_LEDGERS_MIN:
        yield start, len(segments)


class _Bounds:
    """How large a gathered ledger may be, by the policies of its log."""

    def __init__(self, metadata: LogMetadata) -> None:
        roll, retention = metadata.roll, metadata.retention
        sizes = [LOG_GATHER_BYTES_MAX]
        ages = []
        if roll.max_bytes is not None:
            sizes.append(roll.max_bytes)
        if retention.max_bytes is not None:
            sizes.append(retention.max_bytes // _RETENTION_SHARE)
        if roll.max_age_s is not None:
            ages.append(roll.max_age_s)
        if retention.max_age_s is not None:
            ages.append(retention.max_age_s / _RETENTION_SHARE)
        self.bytes_max = min(sizes)
        self._records_max = roll.max_records
        self._age_ms = None if not ages else 1000 * min(ages)

    def cut(self, segments: Sequence[LogSegment], start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of a run that are each within the bounds, in order."""
        begin = start
        size = records = 0
        first_ms: int | None = None
        for index in range(start, stop):
            segment = segments[index]
            size += segment.byte_length or 0
            records += segment.record_count or 0
            first_ms = segment.first_ms if first_ms is None else first_ms
            age_ms = 0 if first_ms is None or segment.last_ms is None else segment.last_ms - first_ms
            if (
                size > self.bytes_max
                or (self._records_max is not None and records > self._records_max)
                or (self._age_ms is not None and age_ms > self._age_ms)
                or index - begin >= LOG_GATHER_LEDGERS_MAX
            ):
                if index > begin:
                    yield begin, index
                begin, size, records = index, segment.byte_length or 0, segment.record_count or 0
                first_ms = segment.first_ms
        yield begin, stop
