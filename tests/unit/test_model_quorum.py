"""Quorum arithmetic, compared with the words of the rules and the table of protocol A.0."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import ENSEMBLE_MAX
from ledgerlog.model.quorum import Replication, has_duplicates


def smallest_cover(replication: Replication) -> int:
    for size in range(replication.ensemble + 1):
        for slots in itertools.combinations(range(replication.ensemble), size):
            if replication.covers(set(slots)):
                return size
    raise AssertionError


def every_set_covers(replication: Replication, size: int) -> bool:
    return all(
        replication.covers(set(slots)) for slots in itertools.combinations(range(replication.ensemble), size)
    )


@pytest.mark.parametrize(
    ("numbers", "negative_quorum", "smallest", "example", "always", "not_covering"),
    [
        ((3, 2, 2), 1, 2, {0, 1}, 2, {0}),
        ((3, 3, 2), 2, 2, {0, 1}, 2, None),
        ((4, 2, 2), 1, 2, {0, 2}, 3, {0}),
        ((4, 3, 2), 2, 3, {0, 1, 2}, 3, {0, 1}),
        ((5, 3, 2), 2, 4, {0, 1, 2, 3}, 4, {0, 1}),
        ((6, 3, 2), 2, 4, {0, 1, 3, 4}, 5, {0, 1}),
        ((6, 3, 3), 1, 2, {0, 3}, 4, {0}),
        ((9, 3, 2), 2, 6, {0, 1, 3, 4, 6, 7}, 8, {0, 1}),
        ((5, 3, 1), 3, 5, {0, 1, 2, 3, 4}, 5, {0, 1, 2, 3}),
        ((3, 3, 1), 3, 3, {0, 1, 2}, 3, None),
        ((3, 3, 3), 1, 1, {2}, 1, None),
        ((1, 1, 1), 1, 1, {0}, 1, None),
    ],
)
def test_the_table_of_coverage(
    numbers: tuple[int, int, int],
    negative_quorum: int,
    smallest: int,
    example: set[int],
    always: int,
    not_covering: set[int] | None,
) -> None:
    replication = Replication(*numbers)
    assert replication.negative_quorum == negative_quorum
    assert smallest_cover(replication) == smallest
    assert replication.covers(example)
    # The coarser rule, E - AQ + 1 of the ensemble: the smallest size at which every set of slots covers.
    assert always == replication.ensemble - replication.ack_quorum + 1
    assert every_set_covers(replication, always)
    assert always == 1 or not every_set_covers(replication, always - 1)
    if not_covering is not None:
        assert len(not_covering) >= negative_quorum
        assert not replication.covers(not_covering), "a negative quorum of the ensemble is not enough"


@st.composite
def replications(draw: st.DrawFn, largest: int = 7) -> Replication:
    ensemble = draw(st.integers(1, largest))
    write_quorum = draw(st.integers(1, ensemble))
    return Replication(ensemble, write_quorum, draw(st.integers(1, write_quorum)), draw(st.booleans()))


@given(replications(), st.sets(st.integers(0, 6)))
def test_the_four_wordings_of_coverage_agree(replication: Replication, slots: set[int]) -> None:
    """For each write set: enough slots have it, every ack quorum has one, too few lack it, no ack quorum
    lacks it.
    """
    write_sets = [set(replication.write_set(first)) for first in range(replication.ensemble)]
    ack = replication.ack_quorum
    enough = all(len(each & slots) >= replication.negative_quorum for each in write_sets)
    every = all(
        set(subset) & slots for each in write_sets for subset in itertools.combinations(sorted(each), ack)
    )
    few_lack = all(len(each - slots) < ack for each in write_sets)
    none_lacks = not any(
        set(subset) <= each - slots
        for each in write_sets
        for subset in itertools.combinations(sorted(each), ack)
    )
    assert replication.covers(slots) == enough == every == few_lack == none_lacks


@given(replications(), st.integers(0, 2**63 - 2))
def test_write_sets_are_the_next_slots_around_the_ring(replication: Replication, entry_id: int) -> None:
    write_set = replication.write_set(entry_id)
    assert write_set == tuple((entry_id + i) % replication.ensemble for i in range(replication.write_quorum))
    assert len(set(write_set)) == replication.write_quorum
    for slot in range(replication.ensemble):
        assert replication.holds(slot, entry_id) == (slot in write_set)
    assert replication.is_striped == (replication.ensemble > replication.write_quorum)


@given(replications(5), st.data())
def test_an_acknowledged_entry_and_a_negative_quorum_exclude_each_other(
    replication: Replication, data: st.DataObject
) -> None:
    write_set = replication.write_set(data.draw(st.integers(0, 100)))
    stored = data.draw(st.sets(st.sampled_from(write_set), min_size=replication.ack_quorum))
    assert len(set(write_set) - stored) < replication.negative_quorum


@pytest.mark.parametrize(
    "numbers",
    [
        (3, 4, 2),
        (3, 2, 3),
        (2, 3, 3),
        (0, 0, 0),
        (3, 3, 0),
        (3, 0, 0),
        (-1, -1, -1),
        (ENSEMBLE_MAX + 1, 3, 2),
    ],
)
def test_quorums_out_of_relation_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgument):
        Replication(*numbers)


@pytest.mark.parametrize("value", [True, 1.0, "3", None])
@pytest.mark.parametrize("name", ["ensemble", "write_quorum", "ack_quorum"])
def test_a_quorum_that_is_no_integer_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=name):
        Replication(**{name: value})


def test_the_default_survives_one_loss() -> None:
    assert str(Replication()) == "3/3/2"
    assert str(Replication(5, 3, 2, guaranteed=True)) == "5/3/2 guaranteed"
    Replication(ENSEMBLE_MAX, ENSEMBLE_MAX, ENSEMBLE_MAX)


def test_a_bookie_in_two_slots_is_noticed() -> None:
    assert has_duplicates(["a", "b", "a"])
    assert not has_duplicates(["a", "b", "c"])
