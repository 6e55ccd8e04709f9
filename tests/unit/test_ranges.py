"""``ledger.core.ranges`` against a plain set of integers."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.ledger.core.ranges import RangeSet

_span = st.tuples(st.integers(0, 24), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), _span),
        st.tuples(st.just("discard"), st.integers(-1, 30)),
        st.tuples(st.just("clear"), st.none()),
    ),
    max_size=14,
)


def _play(steps: list[tuple[str, object]]) -> tuple[RangeSet, set[int]]:
    ranges, model = RangeSet(), set[int]()
    for verb, argument in steps:
        if verb == "add":
            low, high = argument
            ranges.add(low, high)
            model.update(range(low, high + 1))
        elif verb == "discard":
            ranges.discard_through(argument)
            model -= set(range(argument + 1))
        else:
            ranges.clear()
            model.clear()
    return ranges, model


@given(_steps)
def test_a_range_set_holds_what_a_plain_set_holds(steps: list[tuple[str, object]]) -> None:
    ranges, model = _play(steps)
    for item in range(-1, 34):
        assert (item in ranges) == (item in model)


@given(_steps)
def test_its_ranges_are_disjoint_growing_and_never_adjacent(steps: list[tuple[str, object]]) -> None:
    ranges, model = _play(steps)
    spans = ranges.ranges()
    assert all(low <= high for low, high in spans)
    assert all(high + 1 < low for (_, high), (low, _) in itertools.pairwise(spans))
    assert {item for low, high in spans for item in range(low, high + 1)} == model


@given(_steps, st.integers(0, 31))
def test_reach_is_the_end_of_the_unbroken_run_from_a_start(
    steps: list[tuple[str, object]], start: int
) -> None:
    ranges, model = _play(steps)
    end = start
    while end in model:
        end += 1
    assert ranges.reach(start) == end - 1


@given(_steps, st.integers(0, 31))
def test_next_from_is_the_smallest_member_not_below_a_start(
    steps: list[tuple[str, object]], start: int
) -> None:
    ranges, model = _play(steps)
    assert ranges.next_from(start) == min((item for item in model if item >= start), default=None)


@given(_steps, _span)
def test_adding_twice_changes_nothing(steps: list[tuple[str, object]], span: tuple[int, int]) -> None:
    ranges, _ = _play(steps)
    ranges.add(*span)
    once = ranges.ranges()
    ranges.add(*span)
    assert ranges.ranges() == once


def test_confirmations_that_come_in_order_are_one_range_that_grows() -> None:
    ranges = RangeSet()
    for first in range(0, 300, 3):
        ranges.add(first, first + 2)
    assert ranges.ranges() == [(0, 299)]
