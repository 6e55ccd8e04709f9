"""What a log keeps and why: the one place that decides what retention lets go.

Retention drops whole ledgers from the start of the list, and only counted ones: the current ledger stays,
whatever it holds. A ledger goes as soon as one bound of the policy lets it go: its newest record is older
than ``max_age_s``, or at least ``max_bytes`` of records are left without it. Cursors that pin hold
everything from their offsets on, and where deduplication is on the newest ledger with records stays,
because it tells who appended what.

``why_kept`` answers the operator's question for every ledger, by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledgerlog.model.cursor import CursorState
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.segments import Segment

__all__ = ["first_pin", "is_current_expired", "retention_cut", "why_kept"]


def first_pin(cursors: Iterable[CursorState]) -> CursorState | None:
    """The cursor that pins most; None where none pins anything."""
    return min((c for c in cursors if c.pins), key=lambda cursor: cursor.offset, default=None)


def retention_cut(metadata: LogMetadata, now_ms: int, *, open_bytes: int = 0) -> int:
    """The offset before which retention lets records go, at least ``first_offset``; cursors aside.
    ``open_bytes``: durable record bytes in ledgers that are not counted yet. What is only on its way there
    may be lost, and would have let go what must be kept then."""
    policy = metadata.retention
    cut = metadata.first_offset
    if policy.max_age_s is None and policy.max_bytes is None:
        return cut
    left = open_bytes + sum(segment.byte_length or 0 for segment in metadata.segments)
    for segment in metadata.segments[: metadata.dedupe_index]:
        end = segment.end_offset
        if end is None or not (
            _is_expired(segment, policy.max_age_s, now_ms)
            or (policy.max_bytes is not None and left - (segment.byte_length or 0) >= policy.max_bytes)
        ):
            break
        left -= segment.byte_length or 0
        cut = max(cut, end)
    return cut


def is_current_expired(metadata: LogMetadata, now_ms: int, last_ms: int | None) -> bool:
    """Whether all that is in the current ledger, whose newest record is of ``last_ms``, is older than
    retention keeps: going on in a new ledger lets it go."""
    age_s = metadata.retention.max_age_s
    return age_s is not None and last_ms is not None and last_ms + age_s * 1000 < now_ms


def _is_expired(segment: Segment, max_age_s: float | None, now_ms: int) -> bool:
    if max_age_s is None:
        return False
    return segment.last_ms is None or segment.last_ms + max_age_s * 1000 < now_ms


def why_kept(
    metadata: LogMetadata, cursors: Iterable[CursorState], now_ms: int, *, open_bytes: int = 0
) -> list[str]:
    """For each segment of the list, why its ledger is still there."""
    pin = first_pin(cursors)
    cut = retention_cut(metadata, now_ms, open_bytes=open_bytes)
    told_by = metadata.dedupe_index
    reasons = []
    for index, segment in enumerate(metadata.segments):
        end = segment.end_offset
        if not segment.is_counted:
            is_last = index == len(metadata.segments) - 1
            reasons.append("new records go there" if is_last else "its last records are on their way")
        elif told_by is not None and index == told_by and end is not None and end <= cut:
            reasons.append("it tells who appended what (deduplication)")
        elif end is not None and end <= cut:
            if end <= metadata.first_offset:
                reasons.append("it is truncated, and leaves with the ledgers before it")
            elif pin is not None and pin.offset < end:
                reasons.append(f"cursor {pin.name!r} pins the records from offset {pin.offset} on")
            else:
                reasons.append("retention lets it go: the leader drops it, or 'log retain' does")
        else:
            reasons.append(_why_retained(metadata, now_ms, segment, pin))
    return reasons


def _why_retained(metadata: LogMetadata, now_ms: int, segment: Segment, pin: CursorState | None) -> str:
    policy = metadata.retention
    whys = []
    if policy.max_age_s is None and policy.max_bytes is None:
        whys.append("the log has no retention")
    if policy.max_age_s is not None and not _is_expired(segment, policy.max_age_s, now_ms):
        whys.append(f"retention keeps {policy.max_age_s:g} s")
    if policy.max_bytes is not None:
        whys.append(f"retention keeps {policy.max_bytes} bytes")
    if pin is not None and segment.end_offset is not None and pin.offset < segment.end_offset:
        whys.append(f"cursor {pin.name!r} pins the records from offset {pin.offset} on")
    return "; ".join(whys) or "a ledger before it is kept"
