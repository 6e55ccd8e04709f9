"""The checker of histories finds what is wrong and accepts what is right."""

from __future__ import annotations

import itertools
import random

import hypothesis.strategies as st
from hypothesis import given

from tests.machine.linearizable import Kind, Operation, not_linearizable


def op(kind: Kind, begun: float, ended: float | None, value: str | None, **rest: object) -> Operation:
    return Operation(key="k", kind=kind, begun=begun, ended=ended, value=value, **rest)


def test_what_overlaps_may_be_seen_in_either_order() -> None:
    for seen in ("1", "2"):
        history = [op("set", 0, 10, "1"), op("set", 1, 9, "2"), op("get", 20, 21, seen)]
        assert not_linearizable(history) == []


def test_a_read_that_goes_back_is_found() -> None:
    history = [op("set", 0, 1, "1"), op("set", 2, 3, "2"), op("get", 4, 5, "2"), op("get", 6, 7, "1")]
    assert not_linearizable(history) == ["k"]


def test_a_lost_write_is_found() -> None:
    assert not_linearizable([op("set", 0, 1, "1"), op("get", 2, 3, None)]) == ["k"]


def test_a_write_that_never_answered_may_happen_late_or_never() -> None:
    pending = op("set", 0, None, "1")
    assert not_linearizable([pending, op("get", 5, 6, None), op("get", 7, 8, "1")]) == []
    assert not_linearizable([pending, op("get", 5, 6, None)]) == []
    assert not_linearizable([pending, op("get", 5, 6, "1"), op("get", 7, 8, None)]) == ["k"]


def test_two_that_both_win_a_compare_and_set_are_found() -> None:
    both = [
        op("set", 0, 1, "0"),
        op("cas", 2, 9, "1", old="0", succeeded=True),
        op("cas", 3, 8, "2", old="0", succeeded=True),
    ]
    assert not_linearizable(both) == ["k"]
    one = [both[0], both[1], op("cas", 3, 8, "2", old="0", succeeded=False)]
    assert not_linearizable(one) == []


def by_trying(history: list[Operation]) -> bool:
    """All orders, for small histories in which everything answered."""
    for order in itertools.permutations(history):
        if any(
            late.ended is not None and late.ended < early.begun
            for at, early in enumerate(order)
            for late in order[at + 1 :]
        ):
            continue
        value: str | None = None
        for operation in order:
            fits, value = operation.happen(value)
            if not fits:
                break
        else:
            return True
    return False


@given(st.integers(0, 2**32))
def test_it_agrees_with_trying_all_orders(seed: int) -> None:
    rng = random.Random(seed)
    history = []
    for number in range(rng.randrange(1, 6)):
        begun = rng.randrange(10)
        kind: Kind = rng.choice(["get", "set", "cas"])
        value = str(number) if kind != "get" else rng.choice([None, *"01234"])
        history.append(
            op(
                kind,
                begun,
                begun + rng.randrange(1, 6) + 0.5,
                value,
                old=rng.choice([None, *"01234"]) if kind == "cas" else None,
                succeeded=rng.random() < 0.5 if kind == "cas" else None,
            )
        )
    assert (not_linearizable(history) == []) == by_trying(history)


def test_a_long_history_is_checked_quickly() -> None:
    rng = random.Random(1)
    history, value, now = [], None, 0.0
    for number in range(3000):
        now += 1
        if rng.random() < 0.5:
            value = str(number)
            history.append(op("set", now - rng.random() * 3, now + rng.random() * 3, value))
        else:
            history.append(op("get", now - rng.random() * 3, now + rng.random() * 3, value))
    assert not_linearizable(history) == []
