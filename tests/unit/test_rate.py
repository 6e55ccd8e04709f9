"""``concurrency.core.rate``: how much passes through a token bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.concurrency.core.rate import TokenBucket


def test_it_is_full_at_first_and_then_as_fast_as_its_rate() -> None:
    bucket = TokenBucket(100, 0.0, burst_s=0.5)
    assert bucket.delay(0.0) == 0
    bucket.spend(50, 0.0)
    assert bucket.delay(0.0) > 0
    bucket.spend(0, 1.0)
    assert bucket.delay(1.0) == 0


def test_a_piece_larger_than_the_burst_is_let_through_and_waited_for_by_the_next() -> None:
    bucket = TokenBucket(100, 0.0, burst_s=0.1)
    assert bucket.delay(0.0) == 0
    bucket.spend(1000, 0.0)
    assert 9.8 < bucket.delay(0.0) < 10


def test_another_rate_holds_from_then_on() -> None:
    bucket = TokenBucket(100, 0.0)
    bucket.spend(125, 0.0)
    bucket.change_rate(1000, 0.0)
    assert bucket.delay(0.0) < 0.2
    assert bucket.rate == 1000


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(0, 500), st.floats(0, 0.5)), min_size=1, max_size=50),
)
def test_no_more_goes_through_than_the_rate_the_burst_and_one_piece(
    rate: int, pieces: list[tuple[int, float]]
) -> None:
    now, spent = 0.0, 0
    bucket = TokenBucket(rate, now, burst_s=0.25)
    for size, pause_s in pieces:
        now += pause_s + bucket.delay(now + pause_s)
        assert bucket.delay(now) < 1e-6
        bucket.spend(size, now)
        spent += size
        assert spent <= rate * (now + 0.25) + size + 1e-6


def test_what_was_spent_is_paid_for_by_time() -> None:
    bucket = TokenBucket(100, burst_s=1.0)
    assert bucket.debt_s(5.0) == 0
    bucket.spend(150, 5.0)
    assert bucket.debt_s(5.0) == 0.5
    bucket.spend(50, 5.25)
    assert bucket.debt_s(5.25) == 0.75
    assert bucket.debt_s(6.0) == 0


def test_another_rate_pays_no_debt_for_the_time_before_it() -> None:
    bucket = TokenBucket(10, 0.0, burst_s=1.0)
    bucket.spend(20, 0.0)
    bucket.change_rate(1000, 0.5)
    assert bucket.debt_s(0.5) == pytest.approx(5 / 1000)
