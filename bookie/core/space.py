"""All decisions about disk space: where entries stay, and which files are rewritten.

Entries are first written to a segment of the journal. Entries may *stay* there: the segment is kept
unchanged, and the index records where in it each run is. A *run* is a frame of entries of one ledger, stored
in one piece. Then nothing is written twice. With large runs this works well: the cost of a read depends on
the number of runs, and hardly on the distance between them. Small runs are costly: the index needs a row for
each run, and much of the segment is headers and padding. So if the runs of a full segment are smaller than
``small_run_bytes`` on average, the segment is rewritten at once: its runs are sorted and joined
(``bookie.core.merging``) in an entry log, and the segment is free. If the journal has its own device, every
full segment is rewritten.

Later, a file is rewritten, alone or with others, for one of these reasons:

    dead        no ledger with runs in it exists. Only fences are carried over
    foreign     it is a segment, and the journal has its own device
    sparse      less than ``soon_ratio`` of its bytes belong to ledgers that exist
    small       its runs are small, or the file is, and there are ``merge_width`` such files of its level.
                Together they become one file of the next level. On each level, runs are ``merge_width`` times
                as large as on the level before. So an entry is written a few times at most, no matter how
                many ledgers are interleaved
    wasteful    less than ``eventual_ratio`` of its bytes belong to ledgers that exist. Checked now and then
    rotten      it is damaged, but no damaged part holds an entry that counts. (An entry counts if its ledger
                exists and the index still names its run.) This reason comes before all others

A job rewrites several files into one log, as many as fit ``log_bytes_max`` bytes and ``log_runs_max`` runs.
These bounds exist because runs are sorted in memory. A job takes at most ``merge_width`` small files, or four
times as many files for another reason, and only one rotten file. Small files are taken in the order of their
numbers. If a file and the next one do not fit one log, the file waits and the search goes on behind it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from heapq import nsmallest

import attrs

from bookie.core.rows import FileRow
from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import KIB, MIB


@attrs.frozen(kw_only=True)
class SpacePolicy:
    """The thresholds of the decisions (see the module's text)."""

    small_run_bytes: int = 8 * KIB
    """A file has small runs if they are smaller than this on average."""
    small_file_bytes: int = MIB
    """A file with fewer bytes of runs counts as small."""
    merge_width: int = 8
    """How many small files of one level are merged into one; at least 2."""
    soon_ratio: float = 0.2
    """Rewrite a file if less than this share of its bytes belongs to ledgers that exist; from 0 to
    ``eventual_ratio``."""
    eventual_ratio: float = 0.8
    """Rewrite a file eventually if less than this share of its bytes belongs to ledgers that exist; from
    ``soon_ratio`` to 1."""
    log_bytes_max: int = 256 * MIB
    """The most bytes of entries in one entry log."""
    log_runs_max: int = 128 * 1024
    """The most runs in one entry log."""
    is_journal_apart: bool = False
    """The journal has its own device, where no entries stay."""

    def __attrs_post_init__(self) -> None:
        if self.merge_width < 2 or not 0 <= self.soon_ratio <= self.eventual_ratio <= 1:
            raise InvalidArgument(
                f"merge_width {self.merge_width} must be at least 2, and soon_ratio {self.soon_ratio} and "
                f"eventual_ratio {self.eventual_ratio} must grow from 0 to 1"
            )

    def stays(self, runs: int, run_bytes: int) -> bool:
        """Whether the entries of a full segment stay in the segment. If it has no runs, there is nothing to
        sort, so it stays."""
        return not self.is_journal_apart and run_bytes >= runs * self.small_run_bytes

    def _is_small(self, row: FileRow) -> bool:
        return (
            row.live_bytes < row.runs * self.small_run_bytes and row.runs > 0
        ) or row.run_bytes < self.small_file_bytes

    def reason(self, row: FileRow, *, is_eventual: bool = True) -> str | None:
        """Return the reason to rewrite a file, or None if there is none.

        "small" applies only once there are enough such files. "wasteful" needs ``is_eventual``.
        """
        if row.runs and not row.live_bytes:
            return "dead"
        if row.file > 0 and self.is_journal_apart:
            return "foreign"
        if row.live_bytes < self.soon_ratio * row.run_bytes:
            return "sparse"
        if self._is_small(row):
            return "small"
        if is_eventual and row.live_bytes < self.eventual_ratio * row.run_bytes:
            return "wasteful"
        return None


def why_kept(row: FileRow | None, policy: SpacePolicy) -> str:
    """Explain to a person why a file exists. ``row`` is None if the index does not name the file."""
    if row is None:
        return (
            "the index does not know it: it was replaced, or is not yet part of the index; the next start "
            "decides"
        )
    if not row.runs:
        return f"no entries; removed once there are {policy.merge_width} such files (fences are copied)"
    share = f"{row.live_bytes / max(1, row.run_bytes):.0%} of its bytes belong to ledgers that exist"
    match policy.reason(row):
        case "dead":
            return "none of its ledgers exists; removed at the next look of compaction"
        case "foreign":
            return f"{share}; moves to an entry log at the next look of compaction"
        case "sparse":
            return f"{share}; compacted at the next look"
        case "small":
            return f"{share}; small, compacted once there are {policy.merge_width} like it"
        case "wasteful":
            return f"{share}; compacted eventually"
    return share


@attrs.frozen
class SpaceUse:
    """The space that files with entries take, by kind. Segments that are only in memory are not counted."""

    segments: int = 0
    segment_bytes: int = 0
    """The bytes of the runs in segments, including runs of ledgers that were deleted later."""
    entry_logs: int = 0
    entry_log_bytes: int = 0
    live_bytes: int = 0
    """The bytes of the runs whose ledgers exist, in all files."""

    def plus(self, rows: Sequence[FileRow]) -> SpaceUse:
        """Return the sums with the rows of more files."""
        segments = [row for row in rows if row.file > 0]
        segment_bytes = sum(row.run_bytes for row in segments)
        return SpaceUse(
            self.segments + len(segments),
            self.segment_bytes + segment_bytes,
            self.entry_logs + len(rows) - len(segments),
            self.entry_log_bytes + sum(row.run_bytes for row in rows) - segment_bytes,
            self.live_bytes + sum(row.live_bytes for row in rows),
        )


@attrs.frozen
class Job:
    """Files to be replaced by one entry log."""

    reason: str
    sources: tuple[FileRow, ...]

    @property
    def level(self) -> int:
        """The level of the log that replaces them."""
        return max(row.level for row in self.sources) + (self.reason == "small")


ROTTEN = "rotten"
_REASONS = ("dead", "foreign", "sparse", "small", "wasteful")


class JobSearch:
    """Finds the next files to rewrite. It takes the rows in pieces, so that the caller can let other tasks
    run between two of them.

    Args:
        policy: The thresholds.
        is_eventual: Whether to include wasteful files.
    """

    def __init__(self, policy: SpacePolicy, *, is_eventual: bool) -> None:
        self._policy = policy
        self._is_eventual = is_eventual
        self._found: dict[str, list[FileRow]] = defaultdict(list)

    def take(self, rows: Iterable[FileRow]) -> None:
        """Take the rows of some files that may be touched."""
        for row in rows:
            reason = self._policy.reason(row, is_eventual=self._is_eventual)
            if reason is not None:
                self._found[reason].append(row)
        for reason, candidates in self._found.items():
            if reason != "small" and len(candidates) > _most(self._policy):
                self._found[reason] = nsmallest(_most(self._policy), candidates, key=_share_and_number)

    def job(self) -> Job | None:
        """Return the job for the files that were taken, or None if there is none."""
        for reason in _REASONS:
            candidates = self._found[reason]
            if reason == "small":
                chosen = _small_ones(candidates, self._policy)
            else:
                chosen = _fitting(sorted(candidates, key=_share_and_number), self._policy)
            if chosen:
                return Job(reason, tuple(chosen))
        return None


def _share_and_number(row: FileRow) -> tuple[float, int]:
    return row.live_bytes / max(1, row.run_bytes), abs(row.file)


def _most(policy: SpacePolicy) -> int:
    """Return the most files in a job."""
    return 4 * policy.merge_width


def _small_ones(candidates: Sequence[FileRow], policy: SpacePolicy) -> list[FileRow]:
    levels: dict[int, list[FileRow]] = defaultdict(list)
    for row in candidates:
        levels[row.level].append(row)
    width = policy.merge_width
    for _, rows in sorted(levels.items()):
        rows.sort(key=lambda row: abs(row.file))
        for start in range(len(rows) - width + 1):
            chosen = _fitting(rows[start : start + width], policy)
            if len(chosen) > 1:
                return chosen
    return []


def _fitting(rows: Sequence[FileRow], policy: SpacePolicy) -> list[FileRow]:
    """Return the first rows that fit one log together; at least one row if there is any."""
    chosen: list[FileRow] = []
    size = runs = 0
    for row in rows[: _most(policy)]:
        size += row.live_bytes
        runs += row.runs
        if chosen and (size > policy.log_bytes_max or runs > policy.log_runs_max):
            break
        chosen.append(row)
    return chosen
