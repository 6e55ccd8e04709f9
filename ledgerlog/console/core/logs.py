"""The board of one log: its record, the ledgers that are not closed, its tail, its leader and its cursors.

**The line.** A page draws a log's ledgers on one line, in the order of their offsets. ``line_of`` divides the
line into about ``limits.CONSOLE_LINE_PARTS_MAX`` parts at most. Short neighbours are drawn as one part. Each
of the newest ledgers always has its own part.

**A takeover** shows in the metadata, step by step: an open ledger of the log is in recovery (fenced), then
the ledger is closed at its last entry, then the log's record names a new epoch and a new ledger. The console
may see a fast takeover only when it is over. Then it infers the unseen steps from their results. The times of
the steps are the times at which the console saw them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import attrs

from ledgerlog.console.core.picture import Happenings, Row, significant
from ledgerlog.limits import CONSOLE_LINE_PARTS_MAX, CONSOLE_PAGE_ROWS
from ledgerlog.model.cursor import CursorState
from ledgerlog.model.ledger import LedgerMetadata, LedgerState
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.segments import LogSegment

__all__ = ["LogBoard", "line_of"]

_NEWEST_ALONE = 6
"""This many of the newest ledgers each have their own part of the line."""
_TAKEOVERS_SHOWN = 5
_WINDOW_S = 6.0
_LEADER_S = 10.0
"""A leader that closes the ledgers of a log leads it sooner than this many seconds later."""


def line_of(segments: Sequence[LogSegment], next_offset: int | None) -> list[Row]:
    """Return the parts of a log's line, oldest first."""
    if not segments:
        return []
    start = segments[0].first_offset or 0
    end = max(next_offset or 0, *(s.end_offset or s.first_offset or 0 for s in segments[-3:]))
    least = max(1, -(-(end - start) // CONSOLE_LINE_PARTS_MAX))
    parts: list[Row] = []
    gathered: list[LogSegment] = []
    records = 0

    def finish() -> None:
        nonlocal records
        if gathered:
            parts.append(_part(gathered, next_offset))
            gathered.clear()
            records = 0

    alone = len(segments) - _NEWEST_ALONE
    for index, segment in enumerate(segments):
        if index >= alone or segment.lost_before:
            finish()
        gathered.append(segment)
        records += segment.record_count or 0
        if index >= alone or records >= least:
            finish()
    finish()
    return parts


def _part(segments: Sequence[LogSegment], next_offset: int | None) -> Row:
    first, last = segments[0], segments[-1]
    begins = first.first_offset
    ends = last.end_offset
    if ends is None and begins is not None and next_offset is not None:
        ends = max(begins, next_offset)
    return {
        "ledger": first.ledger_id,
        "ledgers": len(segments),
        "first_offset": begins,
        "end_offset": ends,
        "epoch": last.epoch,
        "lost_before": first.lost_before,
        "is_open": not last.is_counted,
    }


@attrs.define(eq=False)
class _Takeover:
    number: int
    began_s: float
    epoch_before: int
    epoch: int | None = None
    ledger: int | None = None
    fenced: list[int] = attrs.field(factory=list)
    closed: dict[int, int] = attrs.field(factory=dict)
    closed_s: float | None = None
    """When the last of its ledgers was closed."""
    ended_s: float | None = None
    was_watched: bool = True
    """Whether the console saw the beginning of the takeover."""

    def row(self) -> Row:
        ended = self.ended_s
        return {
            "epoch_before": self.epoch_before,
            "epoch": self.epoch,
            "ledger": self.ledger,
            "fenced": list(self.fenced),
            "closed": [[ledger_id, last] for ledger_id, last in self.closed.items()],
            "began_s": round(self.began_s, 3),
            "seconds": round(ended - self.began_s, 3) if ended is not None and self.was_watched else None,
            "is_closed": ended is not None or 0 < len(self.fenced) <= len(self.closed),
            "is_over": ended is not None,
        }


class LogBoard:
    """Folds the observations of one log into rows. All times are in seconds since 1970.

    Args:
        name: The name of the log.
        happenings: The list to which the board adds takeovers and similar events.
        segments_from: The number of newer segments to leave out of the table of segments.
    """

    def __init__(self, name: str, happenings: Happenings, *, segments_from: int = 0) -> None:
        self.name = name
        self._happenings = happenings
        self._segments_from = segments_from
        self._state = "looking"
        """``looking``, ``there``, ``deleted``, ``missing`` or ``damaged``."""
        self._why: str | None = None
        self.metadata: LogMetadata | None = None
        self._line: tuple[tuple[object, int | None], list[Row]] = ((None, None), [])
        self._totals: tuple[object, dict[str, int]] = (None, {})
        self._open: dict[int, LedgerMetadata | None] = {}
        self._next_offset: int | None = None
        self._tail_why: str | None = None
        self._tails: deque[tuple[float, int]] = deque()
        self._leader: tuple[str, int, bool] | None = None
        self._cursors: dict[str, CursorState] = {}
        self._takeovers: deque[_Takeover] = deque(maxlen=_TAKEOVERS_SHOWN)
        self._takeover_count = 0
        self._seen: tuple[int, int] | None = None
        """The incarnation and the epoch of the last record."""

    # --- what is seen -----------------------------------------------------------------------------

    def on_record(self, metadata: LogMetadata, at_s: float) -> None:
        """Take the record of the log."""
        before = self.metadata
        if before is not None and before.incarnation != metadata.incarnation:
            self._forget()
            before = None
        self._seen = metadata.incarnation, metadata.epoch
        if before is None and self._state == "deleted":
            self._tell(at_s, "is there again: another log of this name", "note")
        self._state, self._why, self.metadata = "there", None, metadata
        open_ids = {segment.ledger_id for segment in metadata.open_segments}
        self._open = {ledger_id: self._open.get(ledger_id) for ledger_id in open_ids}
        if not open_ids:
            self.on_tail(metadata.counted_end, at_s)
        if before is not None and metadata.epoch > before.epoch:
            self._on_epoch(before, metadata, at_s)

    def on_missing(self, at_s: float) -> None:
        """Note that there is no log of this name."""
        if self._state in ("there", "damaged"):
            self._state = "deleted"
            self._tell(at_s, "was deleted", "bad")
        elif self._state != "deleted":
            self._state = "missing"
        self._forget()

    def on_damage(self, why: str) -> None:
        """Note that the log's record cannot be read."""
        self._state, self._why = "damaged", why

    def on_ledger(self, ledger_id: int, ledger: LedgerMetadata | None, at_s: float) -> None:
        """Take the metadata of a ledger that the log's record does not count yet. None: it is gone."""
        if self.metadata is None:
            return
        if ledger_id in self._open:
            self._open[ledger_id] = ledger
        if ledger is None:
            return
        current = self._takeovers[-1] if self._takeovers and self._takeovers[-1].ended_s is None else None
        if ledger.state is LedgerState.IN_RECOVERY:
            if current is None:
                current = self._begin(at_s, self.metadata.epoch)
                self._tell(at_s, f"is being taken over: ledger {ledger_id} is fenced", "note")
            if ledger_id not in current.fenced:
                current.fenced.append(ledger_id)
        elif ledger.state is LedgerState.CLOSED and current is not None and ledger.last_entry is not None:
            if ledger_id not in current.closed:
                current.closed_s = at_s
            current.closed[ledger_id] = ledger.last_entry

    def on_leader(self, leader: tuple[str, int, bool] | None, at_s: float) -> None:
        """Take the leader of the election that has the log's name.

        Args:
            leader: The leader's name and term, and whether its session lives. None: there is no leader.
            at_s: The time at which the console saw this.
        """
        self._leader = leader

    def on_tail(self, next_offset: int, at_s: float) -> None:
        """Take the offset after the last confirmed record."""
        self._tail_why = None
        self._next_offset = next_offset
        if self._tails and self._tails[-1][1] > next_offset:
            self._tails.clear()
        self._tails.append((at_s, next_offset))
        while len(self._tails) > 2 and self._tails[1][0] <= at_s - _WINDOW_S:
            self._tails.popleft()

    def on_tail_unknown(self, why: str) -> None:
        """Note that the present end of the log is not known, and why."""
        self._tail_why = why
        self._tails.clear()

    def on_cursors(self, cursors: Mapping[str, CursorState]) -> None:
        """Take all cursors of the log."""
        self._cursors = dict(cursors)

    def _forget(self) -> None:
        self.metadata, self._next_offset, self._leader = None, None, None
        self._open.clear()
        self._tails.clear()
        self._cursors = {}

    def _begin(self, at_s: float, epoch_before: int) -> _Takeover:
        self._takeover_count += 1
        takeover = _Takeover(self._takeover_count, at_s, epoch_before)
        self._takeovers.append(takeover)
        return takeover

    def _on_epoch(self, before: LogMetadata, after: LogMetadata, at_s: float) -> None:
        takeover = self._takeovers[-1] if self._takeovers else None
        if takeover is None or takeover.ended_s is not None:
            takeover = self._begin(at_s, before.epoch)
            takeover.was_watched = False
        elif takeover.closed_s is not None and at_s - takeover.closed_s > _LEADER_S:
            takeover.was_watched = False  # Repair closed the ledgers, and the leader came long after that.
        takeover.epoch, takeover.ended_s = after.epoch, at_s
        for segment in before.open_segments:
            if segment.ledger_id not in takeover.fenced:
                takeover.fenced.append(segment.ledger_id)
        newest = after.segments[-1] if after.segments else None
        if newest is not None and not newest.is_counted:
            takeover.ledger = newest.ledger_id
            self._tell(at_s, f"is led in epoch {after.epoch}, in ledger {newest.ledger_id}", "good")
        elif after.sealed:
            self._tell(at_s, "is sealed", "note")
        else:
            self._tell(at_s, f"was recovered in epoch {after.epoch}, and has no leader", "note")

    def _tell(self, at_s: float, text: str, tone: str) -> None:
        self._happenings.add(at_s, f"log {self.name}", text, tone=tone, once=self._seen)

    # --- what is shown ----------------------------------------------------------------------------

    @property
    def _lead(self) -> str:
        """Whether a process leads the log, in a word: ``taken over``, ``led``, ``sealed`` or ``nobody``."""
        assert self.metadata is not None
        if self.metadata.sealed:
            return "sealed"
        states = {None if ledger is None else ledger.state for ledger in self._open.values()}
        if LedgerState.IN_RECOVERY in states:
            return "taken over"
        # Repair closes a ledger whose writer is gone, and the log's record stays as it is.
        return "led" if states - {LedgerState.CLOSED} else "nobody"

    def row(self) -> Row:
        """Return the row of the log in a list of logs."""
        metadata, leader = self.metadata, self._leader
        if metadata is None:
            return {"name": self.name, "state": self._state, "why": self._why, "line": []}
        rate = None
        if len(self._tails) > 1 and self._tails[-1][0] > self._tails[0][0]:
            (first_s, first), (last_s, last) = self._tails[0], self._tails[-1]
            rate = significant((last - first) / (last_s - first_s))
        return {
            "name": self.name,
            "state": self._state,
            "why": self._why or self._tail_why,
            "lead": self._lead,
            "epoch": metadata.epoch,
            "leader": None if leader is None else leader[0],
            "term": None if leader is None else leader[1],
            "is_leader_there": leader is not None and leader[2],
            "ledgers": len(metadata.segments),
            "first_offset": metadata.first_offset,
            "next_offset": self._next_offset,
            "records_per_s": rate,
            **self._sums(metadata),
            "replication": str(metadata.replication),
            "deduplicates": metadata.dedupe_epoch is not None,
            "line": self._parts(),
        }

    def _sums(self, metadata: LogMetadata) -> dict[str, int]:
        """Return sums over the whole list of ledgers. It may be long, so compute them once a record."""
        if self._totals[0] != metadata.token:
            lost = sum(gap.end_offset - gap.first_offset for gap in metadata.gaps)
            sums = {"bytes": metadata.counted_bytes - metadata.before[1], "lost": lost}
            self._totals = (metadata.token, sums)
        return self._totals[1]

    def _parts(self) -> list[Row]:
        assert self.metadata is not None
        made_of = (self.metadata.token, self._next_offset if self.metadata.open_segments else None)
        if self._line[0] != made_of:
            self._line = (made_of, line_of(self.metadata.segments, self._next_offset))
        parts = self._line[1]
        recovering = {
            ledger_id
            for ledger_id, ledger in self._open.items()
            if ledger is not None and ledger.state is LedgerState.IN_RECOVERY
        }
        return [{**part, "is_fenced": part["ledger"] in recovering} for part in parts]

    def sections(self) -> dict[str, Mapping[str, Row]]:
        """Return the sections of the page of the log."""
        return {
            "log": {self.name: self.row()},
            "segments": self._segment_rows(),
            "cursors": self._cursor_rows(),
            "takeovers": {str(t.number): t.row() for t in self._takeovers},
        }

    def _segment_rows(self) -> dict[str, Row]:
        if self.metadata is None:
            return {}
        segments = self.metadata.segments
        end = len(segments) - self._segments_from
        shown = segments[max(0, end - CONSOLE_PAGE_ROWS) : max(0, end)]
        return {str(segment.ledger_id): self._segment_row(segment) for segment in shown}

    def _segment_row(self, segment: LogSegment) -> Row:
        ledger = self._open.get(segment.ledger_id)
        state = "CLOSED" if segment.is_counted else "OPEN" if ledger is None else ledger.state.value
        return {
            "ledger": segment.ledger_id,
            "state": state,
            "epoch": segment.epoch,
            "first_offset": segment.first_offset,
            "records": segment.record_count,
            "bytes": segment.byte_length,
            "lost_before": segment.lost_before,
            "first_ms": segment.first_ms,
            "last_ms": segment.last_ms,
            "bookies": [] if ledger is None else list(ledger.last_fragment.ensemble),
        }

    def _cursor_rows(self) -> dict[str, Row]:
        end = self._next_offset
        return {
            name: {
                "name": name,
                "offset": cursor.offset,
                "lag": None if end is None else max(0, end - cursor.offset),
                "pins": cursor.pins,
                "updated_ms": cursor.updated_ms,
            }
            for name, cursor in sorted(self._cursors.items())
        }
