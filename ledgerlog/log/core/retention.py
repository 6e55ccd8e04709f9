"""Which ledgers a log keeps, and why. This is the only place that decides which ledgers retention lets go.

Retention drops whole ledgers from the start of the list. For each ledger, ``holds`` gives the reason to keep
it:

    CURRENT     new records go to this ledger
    ENDING      the ledger's last records are still on their way
    DEDUPE      it is the newest ledger with records; it tells which producer appended which record
    RETENTION   no bound of the policy lets the ledger go. One bound is enough to let it go: its newest
                record is older than ``max_age_s``, or at least ``max_bytes`` of records remain without
                this ledger and the ledgers before it
    PIN         a cursor pins records in the ledger

For example, a log with ``max_bytes=1000`` has three closed ledgers of 600 bytes each and an empty current
one. The first ledger goes, because 1200 bytes remain without it. The second one stays, because only 600 bytes
would remain.

If a ledger has no readable records, RETENTION and PIN do not hold it, unless the log has no retention at all.
All ledgers before the first held one go; ``let_go`` counts them. Every caller that drops ledgers uses
``let_go``. For operators, ``why_kept`` gives the same reasons in words.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

from ledgerlog.model.cursor import CursorState
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.segments import LogSegment

__all__ = ["Hold", "first_pin", "holds", "is_current_expired", "let_go", "why_kept"]


class Hold(enum.Enum):
    """A reason that keeps a ledger in the list of its log. The module docstring explains each reason."""

    CURRENT = enum.auto()
    ENDING = enum.auto()
    DEDUPE = enum.auto()
    RETENTION = enum.auto()
    PIN = enum.auto()


def first_pin(cursors: Iterable[CursorState]) -> CursorState | None:
    """Return the pinning cursor with the lowest offset; None if no cursor pins anything."""
    return min((c for c in cursors if c.pins), key=lambda cursor: cursor.offset, default=None)


def holds(
    metadata: LogMetadata, pin: CursorState | None, now_ms: int, *, durable_bytes: int = 0
) -> Iterator[frozenset[Hold]]:
    """Yield the reason to keep each ledger of the list, in order.

    Args:
        metadata: The record of the log.
        pin: The pinning cursor with the lowest offset (``first_pin``).
        now_ms: The wall clock.
        durable_bytes: Bytes of all records ever appended that are known to be durable. The log's record
            already tells the bytes in counted ledgers; pass 0 if you know of no others. Do not include
            records that are still on their way: if these records are lost, retention would have dropped too
            much.
    """
    policy = metadata.retention
    is_unbounded = policy.max_age_s is None and policy.max_bytes is None
    told_by = metadata.dedupe_index
    last = len(metadata.segments) - 1
    left = max(durable_bytes, metadata.counted_bytes) - metadata.before[1]
    for index, segment in enumerate(metadata.segments):
        end = segment.end_offset
        if end is None:
            yield frozenset({Hold.CURRENT if index == last else Hold.ENDING})
            continue
        left -= segment.byte_length or 0
        is_readable = bool(segment.record_count) and end > metadata.first_offset
        found = set()
        if index == told_by:
            found.add(Hold.DEDUPE)
        if is_unbounded or (
            is_readable
            and not _is_expired(segment, policy.max_age_s, now_ms)
            and (policy.max_bytes is None or left < policy.max_bytes)
        ):
            found.add(Hold.RETENTION)
        if is_readable and pin is not None and pin.offset < end:
            found.add(Hold.PIN)
        yield frozenset(found)


def let_go(metadata: LogMetadata, pin: CursorState | None, now_ms: int, *, durable_bytes: int = 0) -> int:
    """Return how many ledgers, from the start of the list, retention drops now; see ``holds``."""
    count = 0
    for found in holds(metadata, pin, now_ms, durable_bytes=durable_bytes):
        if found:
            break
        count += 1
    return count


def is_current_expired(metadata: LogMetadata, now_ms: int, last_ms: int | None) -> bool:
    """Whether everything in the current ledger is older than retention keeps. If so, a roll lets the ledger
    go.

    Args:
        metadata: The record of the log.
        now_ms: The wall clock.
        last_ms: The time of the newest record in the current ledger; None if the ledger has no record.
    """
    age_s = metadata.retention.max_age_s
    return age_s is not None and last_ms is not None and last_ms + age_s * 1000 < now_ms


def _is_expired(segment: LogSegment, max_age_s: float | None, now_ms: int) -> bool:
    if max_age_s is None:
        return False
    return segment.last_ms is None or segment.last_ms + max_age_s * 1000 < now_ms


def why_kept(
    metadata: LogMetadata, cursors: Iterable[CursorState], now_ms: int, *, durable_bytes: int = 0
) -> list[str]:
    """Return, for each ledger of the list, all reasons why it is still there, in words.

    The arguments are the same as of ``holds``, but with all cursors of the log instead of ``pin``.
    """
    pins = sorted((cursor for cursor in cursors if cursor.pins), key=lambda cursor: cursor.offset)
    whys: list[str] = []
    goes = True
    held = holds(metadata, first_pin(pins), now_ms, durable_bytes=durable_bytes)
    for segment, found in zip(metadata.segments, held, strict=True):
        if found:
            goes = False
            whys.append("; ".join(_why(hold, metadata, segment, pins) for hold in Hold if hold in found))
        elif goes:
            whys.append("retention lets it be dropped: by the leader, or by 'log retain'")
        else:
            whys.append("a ledger before it is kept")
    return whys


def _why(hold: Hold, metadata: LogMetadata, segment: LogSegment, pins: list[CursorState]) -> str:
    """Return a hold in words. ``pins`` are the pinning cursors, by offset."""
    policy = metadata.retention
    match hold:
        case Hold.CURRENT:
            return "new records go there"
        case Hold.ENDING:
            return "its last records are still being written"
        case Hold.DEDUPE:
            return "deduplication needs it to know which producer appended which record"
        case Hold.RETENTION:
            age = [] if policy.max_age_s is None else [f"retention keeps {policy.max_age_s:g} s"]
            size = [] if policy.max_bytes is None else [f"retention keeps {policy.max_bytes} bytes"]
            return "; ".join([*age, *size]) or "the log has no retention"
        case Hold.PIN:
            end = segment.end_offset
            assert end is not None, "a pin is asked about only for counted ledgers"
            first, *others = (cursor for cursor in pins if cursor.offset < end)
            also = f" (other cursors that pin it: {len(others)})" if others else ""
            return f"cursor {first.name!r} pins the records from offset {first.offset} on{also}"
