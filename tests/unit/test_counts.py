"""Histograms of durations, and the sums that a client keeps over its leaderships."""

from __future__ import annotations

from ledgerlog.counts import BUCKETS_S, CURSORS_MAX, ClientCounts, Histogram, LedLog
from ledgerlog.metrics.families import CLIENT_APPEND_SECONDS, CLIENT_TAKEOVER_SECONDS, Measurement, samples


def led(records: int) -> LedLog:
    return LedLog(
        name="orders",
        first_offset=0,
        durable_offset=records,
        epoch=1,
        segments=1,
        records_appended=records,
        bytes_appended=10 * records,
        entries_appended=1,
        records_outstanding=0,
        bytes_outstanding=0,
        window_records=10,
        window_bytes=100,
        rolls=2,
    )


def test_a_duration_counts_in_the_first_bucket_whose_end_it_does_not_pass() -> None:
    histogram = Histogram()
    for seconds in (0.0, BUCKETS_S[0], 0.0002, 1.0, 1000.0):
        histogram.observe(seconds)
    assert histogram.buckets[0] == 2
    assert histogram.buckets[1] == 1
    assert histogram.buckets[BUCKETS_S.index(1.0)] == 1
    assert histogram.buckets[-1] == 1
    assert histogram.count == 5
    assert histogram.sum_s == BUCKETS_S[0] + 0.0002 + 1001.0


def test_the_samples_of_a_histogram_add_up_to_its_count() -> None:
    histogram = Histogram()
    for seconds in (0.0001, 0.3, 200.0):
        histogram.observe(seconds)
    found = samples(Measurement(CLIENT_TAKEOVER_SECONDS, histogram, ("all",)))
    buckets = [each for each in found if each.name.endswith("_bucket")]
    values = [each.value for each in buckets]
    assert values == sorted(values)
    assert (values[0], values[-1]) == (1, 3)
    assert buckets[-1].labels == {"part": "all", "le": "+Inf"}
    assert [(each.name[len(CLIENT_TAKEOVER_SECONDS.name) :], each.value) for each in found[-2:]] == [
        ("_count", 3),
        ("_sum", 200.3001),
    ]


def test_an_empty_histogram_has_samples_so_that_a_rate_over_it_is_defined() -> None:
    assert samples(Measurement(CLIENT_APPEND_SECONDS, Histogram()))[-1].value == 0.0


def test_what_a_leadership_has_appended_stays_in_the_sums_when_it_is_over() -> None:
    counts = ClientCounts()
    counts.begin_leading("one", lambda: led(3))
    counts.begin_leading("two", lambda: led(4))
    counts.end_leading("one")
    assert (counts.records_appended, counts.bytes_appended, counts.entries_appended, counts.rolls) == (
        3,
        30,
        1,
        2,
    )
    assert list(counts.led) == ["two"]


def test_only_the_cursors_that_were_moved_last_are_remembered() -> None:
    counts = ClientCounts()
    for number in range(CURSORS_MAX):
        counts.on_cursor("orders", f"c{number}", 0)
    counts.on_cursor("orders", "c0", 5)
    counts.on_cursor("orders", "another", 1)
    assert len(counts.cursors) == CURSORS_MAX
    assert counts.cursors["orders", "c0"] == 5
    assert ("orders", "c1") not in counts.cursors
