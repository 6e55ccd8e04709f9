"""Sequences of ids that are kept as ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.model.id_ranges import IdSequence, joined, ranges_of

ids = st.sets(st.integers(-20, 60)).map(sorted)


@given(ids, st.slices(20), st.integers(-25, 65))
def test_it_is_like_a_list_of_the_same_ids(wanted: list[int], part: slice, item: int) -> None:
    found = IdSequence.of(wanted)
    assert (found == wanted, wanted == found, found == IdSequence(joined((e, e) for e in wanted))) == (
        True,
    ) * 3
    assert found.ranges == ranges_of(wanted)
    assert (list(found), len(found), found[part]) == (wanted, len(wanted), wanted[part])
    assert [found[at] for at in range(-len(wanted), len(wanted))] == wanted * 2
    assert (item in found) == (item in wanted)
    assert found != [*wanted, 61]
    assert found != [*wanted[:-1], 61]
    with pytest.raises(IndexError):
        found[len(wanted)]


def test_it_may_hold_more_ids_than_any_memory() -> None:
    found = IdSequence([(7, 2**62), (1, 2)])
    assert (len(found), found[0], found[2], found[-1], found[:3]) == (2**62 - 4, 1, 7, 2**62, [1, 2, 7])
    assert 2**61 in found
    assert 5 not in found
    assert "7" not in found
    assert repr(found) == f"[1..2, 7..{2**62}]"
    assert found != "17"
