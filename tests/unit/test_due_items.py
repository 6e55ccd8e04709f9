"""Items that fall due one after the other, compared with a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.core.due_items import DueItems


def test_items_fall_due_in_order_and_equal_ones_as_they_came() -> None:
    items: DueItems[str] = DueItems()
    for item, due in (("c", 3), ("a", 1), ("b1", 2), ("b2", 2)):
        items.add(item, due)
    assert items.next_due() == 1
    assert items.take(0) is None
    assert list(items.take_all(2)) == ["a", "b1", "b2"]
    assert items.next_due() == 3
    assert list(items.take_all(3)) == ["c"]
    assert items.next_due() == float("inf")


def test_a_removed_item_never_falls_due_and_may_come_again() -> None:
    items: DueItems[str] = DueItems()
    items.add("a", 1)
    items.add("b", 2)
    items.remove("a")
    items.remove("nobody")
    assert items.next_due() == 2
    items.add("a", 3)
    assert list(items.take_all(9)) == ["b", "a"]


def test_removed_items_are_forgotten_however_late_they_were_due() -> None:
    items: DueItems[int] = DueItems()
    items.add(-1, 10**9)
    for number in range(10_000):
        items.add(number, 10**6)
        items.remove(number)
    assert len(items) == 1
    assert len(items._heap) < 100


def test_a_removed_item_is_not_referred_to() -> None:
    items: DueItems[tuple[int]] = DueItems()
    items.add((1,), 5)
    items.remove((1,))
    assert [place[2] for place in items._heap] == [None]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 20), st.integers(0, 9)),
            st.tuples(st.just("remove"), st.integers(0, 20), st.just(0)),
            st.tuples(st.just("take"), st.just(0), st.integers(0, 9)),
        )
    )
)
def test_items_are_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    items: DueItems[int] = DueItems()
    plain: list[tuple[int, int]] = []  # Python's sort is stable, too.
    for verb, item, due in steps:
        if verb == "add" and item not in [each for _, each in plain]:
            items.add(item, due)
            plain.append((due, item))
            plain.sort(key=lambda each: each[0])
        elif verb == "remove":
            items.remove(item)
            plain = [each for each in plain if each[1] != item]
        elif verb == "take":
            expected = [each[1] for each in plain if each[0] <= due]
            assert list(items.take_all(due)) == expected
            plain = [each for each in plain if each[0] > due]
        assert len(items) == len(plain)
        assert items.next_due() == min((each[0] for each in plain), default=float("inf"))
