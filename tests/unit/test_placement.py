"""``ledger.core.placement``: which bookies form an ensemble."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerlog.errors import NotEnoughBookies
from ledgerlog.ledger.core.placement import choose_bookies, write_sets_together
from ledgerlog.model.bookie import BookieInfo


def bookie(name: str, **labels: str) -> BookieInfo:
    return BookieInfo(bookie_id=name, address=f"{name}:1", instance=f"i-{name}", labels=labels)


def choose(
    candidates: Sequence[BookieInfo],
    count: int,
    *,
    beside: Sequence[BookieInfo] = (),
    exclude: Collection[str] = (),
) -> list[str]:
    """Choose bookies for slots that form one write set with the slots in ``beside``."""
    chosen = choose_bookies(
        candidates, [*beside, *[None] * count], write_quorum=len(beside) + count, exclude=exclude
    )
    assert sorted(chosen) == list(range(len(beside), len(beside) + count))
    return [chosen[slot] for slot in sorted(chosen)]


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
            choose(candidates, count, beside=beside, exclude=exclude)
        return
    chosen = choose(candidates, count, beside=beside, exclude=exclude)
    assert len(chosen) == len(set(chosen)) == count
    assert set(chosen) <= free


def test_without_labels_the_order_of_preference_decides() -> None:
    assert choose(FOUR, 3) == ["b0", "b1", "b2"]
    assert choose(FOUR[::-1], 2) == ["b3", "b2"]


def test_copies_are_kept_apart_by_zone_then_by_rack_then_by_host() -> None:
    candidates = [
        bookie("b0", zone="z1", rack="r1", host="h1"),
        bookie("b1", zone="z1", rack="r1", host="h2"),
        bookie("b2", zone="z1", rack="r2", host="h3"),
        bookie("b3", zone="z2", rack="r3", host="h4"),
    ]
    assert choose(candidates, 2) == ["b0", "b3"]
    assert choose(candidates, 3) == ["b0", "b3", "b2"]
    assert choose(candidates[:2] + candidates[:1], 2) == ["b0", "b1"]


def test_keeping_apart_is_a_preference_and_not_a_condition() -> None:
    one_host = [bookie(f"b{i}", zone="z", rack="r", host="h") for i in range(3)]
    assert choose(one_host, 3) == ["b0", "b1", "b2"]


def test_a_replacement_is_kept_apart_from_the_bookies_that_stay() -> None:
    staying = [bookie("b0", rack="r1"), bookie("b1", rack="r2")]
    candidates = [bookie("b2", rack="r1"), bookie("b3", rack="r2"), bookie("b4", rack="r3")]
    assert choose(candidates, 1, beside=staying) == ["b4"]


def test_a_bookie_without_labels_clashes_with_nobody() -> None:
    candidates = [bookie("b0", rack="r1"), bookie("b1", rack="r1"), bookie("b2")]
    assert choose(candidates, 2) == ["b0", "b2"]


def test_a_bookie_that_is_listed_twice_is_chosen_once() -> None:
    candidates = [FOUR[0], FOUR[1], FOUR[0]]
    assert choose(candidates, 2) == ["b0", "b1"]
    with pytest.raises(NotEnoughBookies):
        choose(candidates, 3)


def test_the_complaint_says_how_many_are_needed_and_who_was_not_counted() -> None:
    with pytest.raises(NotEnoughBookies, match=r"2 more writable bookies are needed, 1 are there .*b0, b1"):
        choose(FOUR[:3], 2, beside=FOUR[:1], exclude=["b1"])


def test_the_choice_depends_on_nothing_but_its_arguments() -> None:
    for order in itertools.permutations(FOUR):
        assert choose(order, 2) == [info.bookie_id for info in order[:2]]


def test_racks_of_one_name_in_two_zones_are_two_racks() -> None:
    beside = [bookie("b9", zone="z1", rack="r1")]
    candidates = [bookie("b0", zone="z1", rack="r2"), bookie("b1", zone="z2", rack="r1")]
    assert choose(candidates, 1, beside=beside) == ["b1"]
    third = [*beside, bookie("b1", zone="z2", rack="r1")]
    more = [bookie("b3", zone="z1", rack="r1"), bookie("b4", zone="z1", rack="r2")]
    assert choose(more, 1, beside=third) == ["b4"]


def test_without_labels_copies_are_kept_on_different_machines_by_their_addresses() -> None:
    def at(name: str, address: str) -> BookieInfo:
        return BookieInfo(bookie_id=name, address=address, instance="i")

    candidates = [at("b0", "host-a:1"), at("b1", "host-a:2"), at("b2", "host-b:1"), at("b3", "in-process")]
    assert choose(candidates, 3) == ["b0", "b2", "b3"]
    assert choose(candidates, 1, beside=[at("b9", "host-a:9")]) == ["b2"]


# --- write sets of an ensemble that is wider than they are --------------------------------------------


def labelled(counts: Sequence[int], label: str = "rack") -> list[BookieInfo]:
    """Return ``counts[n]`` bookies for each place n."""
    return [
        bookie(f"b{place}.{number}", **{label: f"p{place}"})
        for place, count in enumerate(counts)
        for number in range(count)
    ]


def filled(candidates: Sequence[BookieInfo], slots: int, write_quorum: int) -> list[BookieInfo]:
    chosen = choose_bookies(candidates, [None] * slots, write_quorum=write_quorum)
    named = {info.bookie_id: info for info in candidates}
    return [named[chosen[slot]] for slot in range(slots)]


@settings(max_examples=300)
@given(st.data(), st.integers(2, 7), st.sampled_from(["zone", "rack", "host"]))
def test_no_place_has_all_copies_of_an_entry_if_the_places_allow_it(
    data: st.DataObject, slots: int, label: str
) -> None:
    """For every E, WQ and number of racks up to 7: after the loss of any one rack each entry has a copy."""
    write_quorum = data.draw(st.integers(2, slots))
    counts = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=7))
    candidates = data.draw(st.permutations(labelled(counts, label)))
    if len(candidates) < slots:
        return
    ensemble = filled(candidates, slots, write_quorum)
    # Of any ``write_quorum`` neighbours, one place may have all but one.
    most = slots * (write_quorum - 1) // write_quorum
    is_possible = sum(min(count, most) for count in counts) >= slots
    together = write_sets_together(ensemble, write_quorum=write_quorum, label=label)
    assert (not together) == is_possible
    for lost in {info.labels[label] for info in ensemble} if is_possible else ():
        for entry in range(slots):
            write_set = [ensemble[(entry + at) % slots] for at in range(write_quorum)]
            assert any(info.labels[label] != lost for info in write_set)


@given(st.data(), st.integers(2, 7))
def test_a_replacement_leaves_no_rack_with_all_copies_if_one_candidate_can(
    data: st.DataObject, slots: int
) -> None:
    write_quorum = data.draw(st.integers(2, slots))
    ensemble = [bookie(f"s{slot}", rack=data.draw(st.sampled_from("abc"))) for slot in range(slots)]
    failed = data.draw(st.integers(0, slots - 1))
    candidates = [bookie(f"c{n}", rack=rack) for n, rack in enumerate(data.draw(st.permutations("aabbcd")))]
    staying = [None if slot == failed else info for slot, info in enumerate(ensemble)]

    def together(chosen: BookieInfo) -> int:
        after = [chosen if info is None else info for info in staying]
        return len(write_sets_together(after, write_quorum=write_quorum))

    (name,) = choose_bookies(candidates, staying, write_quorum=write_quorum).values()
    found = next(info for info in candidates if info.bookie_id == name)
    assert together(found) == min(map(together, candidates))


def test_neighbours_lie_apart_though_racks_come_twice() -> None:
    """Four slots, three racks, a write quorum of 2: with a-a-b-c, losing rack a would lose entries."""
    for candidates in itertools.permutations(labelled([2, 1, 1])):
        assert not write_sets_together(filled(candidates, 4, 2), write_quorum=2)


def test_write_sets_that_lie_together_are_named_by_their_slots() -> None:
    a, b, c, d = labelled([2, 1, 1])
    assert write_sets_together([a, b, c, d], write_quorum=2) == [(0, 1)]
    assert write_sets_together([a, c, d, b], write_quorum=2) == [(3, 0)]
    assert write_sets_together([a, c, b, d], write_quorum=2) == []
    assert write_sets_together([a, b], write_quorum=2) == [(0, 1)]
    assert write_sets_together([a, b], write_quorum=1) == []
    assert write_sets_together(FOUR, write_quorum=2) == [], "without labels nobody can tell"


def test_an_arrangement_is_found_that_no_single_exchange_leads_to() -> None:
    """Seven slots, a write quorum of 2, racks of 1, 3 and 5 bookies: all of the small racks are needed."""
    dice = Random(1)
    for _ in range(200):
        candidates = labelled([1, 3, 5])
        dice.shuffle(candidates)
        assert not write_sets_together(filled(candidates, 7, 2), write_quorum=2)
