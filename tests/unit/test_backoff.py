"""``concurrency.core.backoff``: pauses that grow while something keeps failing."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.concurrency.core.backoff import Backoff


def test_a_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_after_a_reset_a_row_of_failures_begins_anew() -> None:
    backoff = Backoff(0.5, 3.0)
    assert not backoff.is_growing
    backoff.next_s()
    backoff.next_s()
    assert backoff.is_growing
    backoff.reset()
    assert not backoff.is_growing
    assert backoff.next_s() == 0.5


@given(st.floats(0.001, 10), st.floats(1, 100), st.integers(2, 2000))
def test_no_pause_is_shorter_than_the_one_before_or_out_of_bounds(
    min_s: float, factor: float, count: int
) -> None:
    backoff = Backoff(min_s, min_s * factor)
    pauses = [backoff.next_s() for _ in range(count)]
    assert all(before <= after for before, after in pairwise(pauses))
    assert min_s == pauses[0]
    assert pauses[-1] <= min_s * factor
