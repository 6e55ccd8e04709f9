"""``ledger.core.placement``: which bookies make an ensemble."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import NotEnoughBookies
from ledgerlog.ledger.core.placement import choose_bookies
from ledgerlog.model.bookie import BookieInfo


def bookie(name: str, **labels: str) -> BookieInfo:
    return BookieInfo(bookie_id=name, address=f"{name}:1", instance=f"i-{name}", labels=labels)


FOUR = [bookie("b0"), bookie("b1"), bookie("b2"), bookie("b3")]

_labelled = st.builds(
    lambda number, labels: bookie(f"b{number}", **labels),
    st.integers(0, 9),
    st.dictionaries(st.sampled_from(["zone", "rack", "host", "colour"]), st.sampled_from("xyz"), max_size=3),
)


@given(
    st.lists(_labelled, max_size=9),
    st.integers(0, 5),
    st.lists(_labelled, max_size=3),
    st.sets(st.integers(0, 9).map(lambda number: f"b{number}"), max_size=3),
)
def test_the_chosen_are_distinct_candidates_that_are_neither_excluded_nor_there_already(
    candidates: list[BookieInfo], count: int, beside: list[BookieInfo], exclude: set[str]
) -> None:
    barred = {info.bookie_id for info in beside} | exclude
    free = {info.bookie_id for info in candidates} - barred
    if len(free) < count:
        with pytest.raises(NotEnoughBookies):
            choose_bookies(candidates, count, beside=beside, exclude=exclude)
        return
    chosen = choose_bookies(candidates, count, beside=beside, exclude=exclude)
    assert len(chosen) == len(set(chosen)) == count
    assert set(chosen) <= free


def test_without_labels_the_order_of_preference_decides() -> None:
    assert choose_bookies(FOUR, 3) == ["b0", "b1", "b2"]
    assert choose_bookies(FOUR[::-1], 2) == ["b3", "b2"]


def test_copies_are_kept_apart_by_zone_then_by_rack_then_by_host() -> None:
    candidates = [
        bookie("b0", zone="z1", rack="r1", host="h1"),
        bookie("b1", zone="z1", rack="r1", host="h2"),
        bookie("b2", zone="z1", rack="r2", host="h3"),
        bookie("b3", zone="z2", rack="r3", host="h4"),
    ]
    assert choose_bookies(candidates, 2) == ["b0", "b3"]
    assert choose_bookies(candidates, 3) == ["b0", "b3", "b2"]
    assert choose_bookies(candidates[:2] + candidates[:1], 2) == ["b0", "b1"]


def test_keeping_apart_is_a_preference_and_not_a_condition() -> None:
    one_host = [bookie(f"b{i}", zone="z", rack="r", host="h") for i in range(3)]
    assert choose_bookies(one_host, 3) == ["b0", "b1", "b2"]


def test_a_replacement_is_kept_apart_from_the_bookies_that_stay() -> None:
    staying = [bookie("b0", rack="r1"), bookie("b1", rack="r2")]
    candidates = [bookie("b2", rack="r1"), bookie("b3", rack="r2"), bookie("b4", rack="r3")]
    assert choose_bookies(candidates, 1, beside=staying) == ["b4"]


def test_a_bookie_without_labels_clashes_with_nobody() -> None:
    candidates = [bookie("b0", rack="r1"), bookie("b1", rack="r1"), bookie("b2")]
    assert choose_bookies(candidates, 2) == ["b0", "b2"]


def test_a_bookie_that_is_listed_twice_is_chosen_once() -> None:
    candidates = [FOUR[0], FOUR[1], FOUR[0]]
    assert choose_bookies(candidates, 2) == ["b0", "b1"]
    with pytest.raises(NotEnoughBookies):
        choose_bookies(candidates, 3)


def test_the_complaint_says_how_many_are_needed_and_who_was_not_counted() -> None:
    with pytest.raises(NotEnoughBookies, match=r"2 more writable bookies are needed, 1 are there .*b0, b1"):
        choose_bookies(FOUR[:3], 2, beside=FOUR[:1], exclude=["b1"])


def test_the_choice_depends_on_nothing_but_its_arguments() -> None:
    for order in itertools.permutations(FOUR):
        assert choose_bookies(order, 2) == [info.bookie_id for info in order[:2]]


def test_racks_of_one_name_in_two_zones_are_two_racks() -> None:
    beside = [bookie("b9", zone="z1", rack="r1")]
    candidates = [bookie("b0", zone="z1", rack="r2"), bookie("b1", zone="z2", rack="r1")]
    assert choose_bookies(candidates, 1, beside=beside) == ["b1"]
    third = [*beside, bookie("b1", zone="z2", rack="r1")]
    more = [bookie("b3", zone="z1", rack="r1"), bookie("b4", zone="z1", rack="r2")]
    assert choose_bookies(more, 1, beside=third) == ["b4"]


def test_without_labels_copies_are_kept_on_different_machines_by_their_addresses() -> None:
    def at(name: str, address: str) -> BookieInfo:
        return BookieInfo(bookie_id=name, address=address, instance="i")

    candidates = [at("b0", "host-a:1"), at("b1", "host-a:2"), at("b2", "host-b:1"), at("b3", "in-process")]
    assert choose_bookies(candidates, 3) == ["b0", "b2", "b3"]
    assert choose_bookies(candidates, 1, beside=[at("b9", "host-a:9")]) == ["b2"]
