"""The figures of the benchmarks: latencies, CPU time, and the bookies' counts.

``Latencies`` takes one duration for many records, because a batch is confirmed at once. So its memory and
time grow only with the number of batches. Percentiles are exact and never interpolated.

CPU time is in nanoseconds and covers whole processes: all their threads, including those that have ended. It
is read from the kernel's CPU clock of each process, which any process may read.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import Any

import attrs

from ledgerlog.cli.processes import ChildFailed
from ledgerlog.cluster import Cluster
from ledgerlog.errors import WireError
from ledgerlog.ledger.figures import ask_figures
from ledgerlog.model.ids import BookieId

__all__ = ["BookieCounts", "CpuClock", "Latencies", "bookie_counts", "median_ns"]

_ANSWER_S = 5.0


class Latencies:
    """Durations in nanoseconds, each with the number of records that took this long."""

    def __init__(self) -> None:
        self._durations = array("q")
        self._counts = array("q")

    def add(self, duration_ns: int, count: int = 1) -> None:
        """Add ``count`` records that took this long."""
        self._durations.append(duration_ns)
        self._counts.append(count)

    def add_spread(self, longest_ns: int, shortest_ns: int, count: int) -> None:
        """Add ``count`` records that were due at even distances and were done together."""
        pieces = min(count, 8)
        for piece in range(pieces):
            part = count * (piece + 1) // pieces - count * piece // pieces
            middle = (2 * piece + 1) / (2 * pieces)
            self.add(round(longest_ns + (shortest_ns - longest_ns) * middle), part)

    @property
    def count(self) -> int:
        """The number of records."""
        return sum(self._counts)

    def percentiles_ms(self, *parts: float) -> list[float]:
        """Return, for each part, the smallest duration that this share of the records does not exceed.

        For example, 0.5 gives the median.
        """
        pairs = sorted(zip(self._durations, self._counts, strict=True))
        total = self.count
        found: list[float] = []
        wanted = sorted(set(parts))
        reached: dict[float, float] = {}
        passed = 0
        for duration, count in pairs:
            passed += count
            while wanted and passed >= wanted[0] * total:
                reached[wanted.pop(0)] = duration / 1e6
        for part in parts:
            found.append(reached.get(part, pairs[-1][0] / 1e6 if pairs else 0.0))
        return found


def median_ns(durations: Sequence[int]) -> int:
    return sorted(durations)[len(durations) // 2]


class CpuClock:
    """The CPU time that this process and some others spend, from the start of the clock on."""

    def __init__(self, processes: dict[str, int]) -> None:
        """``processes`` has the process ids by name. ChildFailed: one of them has ended."""
        self._clocks = {name: _clock_of(pid) for name, pid in processes.items()}
        self._began = self._read()
        self._began_here = time.process_time_ns()

    def _read(self) -> dict[str, int]:
        return {name: _read_clock(name, clock) for name, clock in self._clocks.items()}

    def spent_ns(self) -> tuple[int, dict[str, int]]:
        """Return the time of this process, and of each other process. ChildFailed: one of them has ended."""
        here = time.process_time_ns() - self._began_here
        return here, {name: now - self._began[name] for name, now in self._read().items()}


def _clock_of(pid: int) -> int:
    """Return the id of a process's CPU clock, as clock_getcpuclockid(3) computes it."""
    return (~pid << 3) | 2


def _read_clock(name: str, clock: int) -> int:
    try:
        return time.clock_gettime_ns(clock)
    except OSError as cause:
        raise ChildFailed(f"{name} has ended, so its CPU time cannot be read") from cause


@attrs.frozen
class BookieCounts:
    """The counts of one bookie since its start, or between two moments."""

    syncs: int
    journal_bytes: int
    runs_from_memory: int
    runs_from_disk: int

    def __sub__(self, before: BookieCounts) -> BookieCounts:
        return BookieCounts(
            self.syncs - before.syncs,
            self.journal_bytes - before.journal_bytes,
            self.runs_from_memory - before.runs_from_memory,
            self.runs_from_disk - before.runs_from_disk,
        )


async def bookie_counts(cluster: Cluster) -> dict[BookieId, BookieCounts]:
    """Return the counts of every writable bookie. BookieUnavailable: a bookie does not answer."""
    found = {}
    for info in cluster.bookies.writable():
        figures = await ask_figures(cluster.client.pool, info.bookie_id, timeout_s=_ANSWER_S)
        try:
            found[info.bookie_id] = BookieCounts(
                syncs=figures["syncs"],
                journal_bytes=figures["journal_bytes_written"],
                runs_from_memory=figures["runs_read_from_memory"],
                runs_from_disk=figures["runs_read_from_disk"],
            )
        except KeyError as missing:
            raise WireError(f"bookie {info.bookie_id} does not report the figure {missing}") from None
    return found


def rounded(value: Any, digits: int = 3) -> Any:
    """Round the floats in a JSON value. Lists are left as they are."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    return value
