"""``ledger.core.placement``: which bookies form an ensemble."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerlog.errors import NotEnoughBookies
from ledgerlog.ledger.core.placement import choose_bookies, narrow_write_sets, spread
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.repair.core.placement import narrow_fragments


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
    together = narrow_write_sets(ensemble, write_quorum=write_quorum, label=label)
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
        return len(narrow_write_sets(after, write_quorum=write_quorum))

    (name,) = choose_bookies(candidates, staying, write_quorum=write_quorum).values()
    found = next(info for info in candidates if info.bookie_id == name)
    assert together(found) == min(map(together, candidates))


def test_neighbours_lie_apart_though_racks_come_twice() -> None:
    """Four slots, three racks, a write quorum of 2: with a-a-b-c, losing rack a would lose entries."""
    for candidates in itertools.permutations(labelled([2, 1, 1])):
        assert not narrow_write_sets(filled(candidates, 4, 2), write_quorum=2)


def test_write_sets_that_lie_together_are_named_by_their_slots() -> None:
    a, b, c, d = labelled([2, 1, 1])
    assert narrow_write_sets([a, b, c, d], write_quorum=2) == [(0, 1)]
    assert narrow_write_sets([a, c, d, b], write_quorum=2) == [(3, 0)]
    assert narrow_write_sets([a, c, b, d], write_quorum=2) == []
    assert narrow_write_sets([a, b], write_quorum=2) == [(0, 1)]
    assert narrow_write_sets([a, b], write_quorum=1) == []
    assert narrow_write_sets(FOUR, write_quorum=2) == [], "without labels nobody can tell"


def test_an_arrangement_is_found_that_no_single_exchange_leads_to() -> None:
    """Seven slots, a write quorum of 2, racks of 1, 3 and 5 bookies: all of the small racks are needed."""
    dice = Random(1)
    for _ in range(200):
        candidates = labelled([1, 3, 5])
        dice.shuffle(candidates)
        assert not narrow_write_sets(filled(candidates, 7, 2), write_quorum=2)


# --- a minimum of racks ------------------------------------------------------------------------------


def in_rack(name: str, rack: int) -> BookieInfo:
    return bookie(name, rack=f"r{rack}")


def can_be_laid(
    fixed: Sequence[int | None], counts: Sequence[int], write_quorum: int, min_racks: int
) -> bool:
    """Try every way to fill the free slots: is no write set narrow that has one of them?"""
    slots = len(fixed)
    need = min(min_racks, write_quorum)
    sets = [[(first + at) % slots for at in range(write_quorum)] for first in range(slots)]
    touched = [each for each in sets if any(fixed[slot] is None for slot in each)]
    laid, left = list(fixed), list(counts)

    def fill(slot: int) -> bool:
        if slot == slots:
            return all(len({laid[at] for at in each}) >= need for each in touched)
        if fixed[slot] is not None:
            return fill(slot + 1)
        for rack in range(len(left)):
            if left[rack]:
                left[rack] -= 1
                laid[slot] = rack
                if fill(slot + 1):
                    return True
                laid[slot] = None
                left[rack] += 1
        return False

    return fill(0)


@settings(max_examples=400, deadline=None)
@given(st.data(), st.integers(2, 6))
def test_free_slots_beside_others_lie_in_enough_racks_if_any_choice_does(
    data: st.DataObject, slots: int
) -> None:
    """A strict policy refuses only what cannot be done. For all slots, or beside bookies that stay."""
    write_quorum = data.draw(st.integers(2, slots))
    min_racks = data.draw(st.integers(2, write_quorum))
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    fixed = data.draw(st.lists(st.none() | st.integers(0, len(counts) - 1), min_size=slots, max_size=slots))
    free = [slot for slot, rack in enumerate(fixed) if rack is None]
    candidates = data.draw(
        st.permutations([in_rack(f"c{r}.{n}", r) for r, count in enumerate(counts) for n in range(count)])
    )
    if not free or len(candidates) < len(free):
        return
    ensemble = [None if rack is None else in_rack(f"s{slot}", rack) for slot, rack in enumerate(fixed)]
    chosen = choose_bookies(candidates, ensemble, write_quorum=write_quorum, min_racks=min_racks)
    named = {info.bookie_id: info for info in candidates}
    whole = [info or named[chosen[slot]] for slot, info in enumerate(ensemble)]
    narrow = narrow_write_sets(whole, write_quorum=write_quorum, at_least=min_racks)
    is_laid = not any(slot in chosen for each in narrow for slot in each)
    assert is_laid == can_be_laid(fixed, counts, write_quorum, min_racks)


def test_two_that_stay_leave_one_way_to_lay_the_racks() -> None:
    """Slots 2 and 3 stay in rack 0. So their neighbours must be in rack 1, and slot 0 in rack 0."""
    candidates = [in_rack("a1", 1), in_rack("a0", 0), in_rack("b0", 0), in_rack("b1", 1)]
    ensemble = [None, None, in_rack("s2", 0), in_rack("s3", 0), None]
    chosen = choose_bookies(candidates, ensemble, write_quorum=2)
    assert {slot: name[1] for slot, name in chosen.items()} == {0: "0", 1: "1", 4: "1"}


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(2, 7))
def test_moves_end_and_never_make_it_worse(data: st.DataObject, slots: int) -> None:
    """Each round lowers the racks that write sets lack, whatever the order of the candidates."""
    write_quorum = data.draw(st.integers(2, slots))
    min_racks = data.draw(st.integers(2, write_quorum))
    racks = data.draw(st.lists(st.integers(0, 4), min_size=slots, max_size=slots))
    ensemble = [in_rack(f"s{slot}", rack) for slot, rack in enumerate(racks)]
    others = data.draw(st.lists(st.integers(0, 5), max_size=6))
    spares = [in_rack(f"c{number}", rack) for number, rack in enumerate(others)]
    fixed = data.draw(st.sets(st.integers(0, slots - 1)))

    def lacking(of: Sequence[BookieInfo]) -> int:
        rings = {tuple(sorted((first + at) % slots for at in range(write_quorum))) for first in range(slots)}
        return sum(max(0, min_racks - len({of[slot].labels["rack"] for slot in ring})) for ring in rings)

    everybody = {info.bookie_id: info for info in (*ensemble, *spares)}
    while True:
        candidates = data.draw(st.permutations(list(everybody.values())))
        found = spread(candidates, ensemble, write_quorum=write_quorum, fixed=fixed, min_racks=min_racks)
        if not found:
            break
        assert not fixed & found.keys()
        assert not {info.bookie_id for info in ensemble} & set(found.values())
        assert len(set(found.values())) == len(found)
        moved = [everybody[found[slot]] if slot in found else info for slot, info in enumerate(ensemble)]
        assert lacking(moved) < lacking(ensemble)
        ensemble = moved
    if lacking(ensemble):
        names = {info.bookie_id for info in ensemble}
        for slot in set(range(slots)) - fixed:
            for info in everybody.values():
                if info.bookie_id not in names:
                    tried = [*ensemble[:slot], info, *ensemble[slot + 1 :]]
                    assert lacking(tried) >= lacking(ensemble), "one exchange would have helped"


def test_three_racks_for_each_write_set_count_more_than_pairs_in_one_rack() -> None:
    """Six slots, four copies, racks of 1, 2, 2 and 1 bookies: fewest pairs alone leave a write set in two."""
    candidates = [in_rack(name, int(name[1])) for name in ("b2x", "b1x", "b3x", "b2y", "b1y", "b0x")]
    chosen = choose_bookies(candidates, [None] * 6, write_quorum=4, min_racks=3)
    named = {info.bookie_id: info for info in candidates}
    ensemble = [named[chosen[slot]] for slot in range(6)]
    assert not narrow_write_sets(ensemble, write_quorum=4, at_least=3)


def test_what_lies_well_is_not_moved() -> None:
    ensemble = [in_rack(f"s{slot}", slot % 2) for slot in range(4)]
    spares = [in_rack(f"c{n}", n) for n in range(4)]
    assert spread(spares, ensemble, write_quorum=2) == {}
    assert spread([], [in_rack("a", 1), in_rack("b", 1)], write_quorum=2) == {}


def test_three_racks_are_wanted_and_two_are_narrow() -> None:
    two = [in_rack("a", 1), in_rack("b", 1), in_rack("c", 2)]
    assert narrow_write_sets(two, write_quorum=3, at_least=3) == [(0, 1, 2)]
    assert narrow_write_sets(two, write_quorum=3, at_least=2) == []
    assert narrow_write_sets(two, write_quorum=3, at_least=1) == []
    found = spread([in_rack("d", 2), in_rack("e", 3)], two, write_quorum=3, min_racks=3)
    assert list(found.values()) == ["e"]
    assert set(found) <= {0, 1}


def test_only_write_sets_that_hold_entries_are_narrow() -> None:
    """Four slots, two copies, racks a a b c: the entries 0 and 4 lie in rack a alone."""
    racks = dict(zip(("b1", "b2", "b3", "b4"), "aabc", strict=True))
    infos = {name: bookie(name, rack=rack) for name, rack in racks.items()}
    made = LedgerMetadata.create(
        ledger_id=7,
        replication=Replication(4, 2, 2),
        ensemble=list(racks),
        key=bytes(16),
        token=b"t",
        created_ms=1,
    )
    (open_one,) = narrow_fragments(made, infos, min_racks=2)
    assert (open_one.bookies, open_one.racks, open_one.last_entry) == (("b1", "b2"), ("a",), None)
    (closed,) = narrow_fragments(made.closed(0, b"t"), infos, min_racks=2)
    assert closed.last_entry == 0
    assert narrow_fragments(made.closed(-1, b"t"), infos, min_racks=2) == []
    del infos["b2"]
    assert narrow_fragments(made, infos, min_racks=2) == [], "nobody knows where it is"
