"""Counts that the parts of a process keep for monitoring. This module is pure.

A core or a shell adds to an attribute where the event happens, at most once for each batch. The counts are
not copied: ``ledgerlog.metrics`` reads them when a client asks for metrics.

A ``Histogram`` counts durations in fixed buckets. All histograms have the same buckets, from 100 us to 100 s,
so the histograms of several processes can be added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import attrs

__all__ = ["BUCKETS_S", "CURSORS_MAX", "ClientCounts", "Histogram", "LedLog"]

CURSORS_MAX = 1000
"""How many cursors a process remembers. Each cursor is a series of its own in Prometheus."""

BUCKETS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0),
)
"""The upper ends of the buckets in seconds. One more bucket has no upper end."""


class Histogram:
    """How often durations of each length were seen."""

    __slots__ = ("buckets", "sum_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        """How many durations fell into each bucket. A duration counts only in the first bucket that it
        fits."""
        self.sum_s = 0.0
        """The sum of all durations in seconds."""

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self.buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.buckets)


@attrs.frozen(kw_only=True)
class LedLog:
    """The state of a log that this process leads."""

    name: str
    first_offset: int
    durable_offset: int
    epoch: int
    segments: int
    records_appended: int
    bytes_appended: int
    entries_appended: int
    records_outstanding: int
    bytes_outstanding: int
    window_records: int
    window_bytes: int
    rolls: int


@attrs.define(eq=False)
class ClientCounts:
    """The counts of a client since it was opened."""

    append_s: Histogram = attrs.Factory(Histogram)
    """The times from handing an entry to its ledger until an ack quorum has synced it. A ledger times one
    entry at a time. So a lone append is always timed; in a stream of entries, about one entry for each round
    trip is timed."""
    ensemble_changes: int = 0
    """How often a writer continued with another ensemble."""
    bookies_failed: int = 0
    """How often a writer gave up a bookie of its ensemble."""
    metadata_retries: int = 0
    """How often a ledger's writer repeated a write because the metadata store did not answer."""
    ledgers_created: int = 0
    recovery_s: Histogram = attrs.Factory(Histogram)
    """The durations of recoveries that ended well."""
    recoveries_failed: int = 0
    takeover_s: dict[str, Histogram] = attrs.Factory(dict)
    """The durations of takeovers, by part: "read", "recover", "create", "write", "producers", and "all"."""
    takeovers_failed: int = 0
    leaderships_lost: int = 0
    """How many leaderships were lost: they ended although the leader had not left."""
    unknown_records: int = 0
    """The number of records whose outcome could not be found out."""
    records_appended: int = 0
    """The number of records that were appended in leaderships that are over."""
    bytes_appended: int = 0
    entries_appended: int = 0
    rolls: int = 0
    cursors: dict[tuple[str, str], int] = attrs.Factory(dict)
    """The offset of each cursor that this process moves, by log and cursor. At most ``CURSORS_MAX`` cursors:
    the ones that were moved last."""
    led: dict[object, Callable[[], LedLog]] = attrs.Factory(dict)
    """For each leadership at work, a function that describes its log."""

    def begin_leading(self, leadership: object, describe: Callable[[], LedLog]) -> None:
        """Note a leadership that has begun."""
        self.led[leadership] = describe

    def end_leading(self, leadership: object) -> None:
        """Note that a leadership is over. Its figures stay in the sums."""
        log = self.led.pop(leadership)()
        self.records_appended += log.records_appended
        self.bytes_appended += log.bytes_appended
        self.entries_appended += log.entries_appended
        self.rolls += log.rolls

    def on_cursor(self, log: str, cursor: str, offset: int) -> None:
        """Note that this process moved a cursor."""
        self.cursors.pop((log, cursor), None)
        self.cursors[log, cursor] = offset
        if len(self.cursors) > CURSORS_MAX:
            del self.cursors[next(iter(self.cursors))]

    def forget_cursor(self, log: str, cursor: str) -> None:
        """Note that a cursor is deleted."""
        self.cursors.pop((log, cursor), None)

    def on_takeover_part(self, part: str, seconds: float) -> None:
        """Count how long a part of a takeover took."""
        if part not in self.takeover_s:
            self.takeover_s[part] = Histogram()
        self.takeover_s[part].observe(seconds)
