"""The checker of histories finds what is wrong and accepts what is right."""

from __future__ import annotations

import contextlib
import itertools
import random
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

from ledgerlog.errors import InvalidArgument
from ledgerlog.testing import History, NotLinearizable, ServiceCall

Command = tuple[str, str | None, str | None]
"""A verb, the value that a cas expects, and the value that is written."""


def apply(value: str | None, command: Command) -> tuple[str | None, Any]:
    """A register."""
    verb, old, new = command
    match verb:
        case "set":
            return new, None
        case "get":
            return value, value
        case _:
            return (new, True) if value == old else (value, False)


@attrs.frozen
class Op:
    """One call, with the times of its begin and its answer."""

    command: Command
    begun: float
    ended: float | None
    answer: Any = None


def get(begun: float, ended: float | None, found: str | None) -> Op:
    return Op(("get", None, None), begun, ended, found)


def put(begun: float, ended: float | None, new: str) -> Op:
    return Op(("set", None, new), begun, ended)


def cas(begun: float, ended: float | None, old: str | None, new: str, *, succeeded: bool) -> Op:
    return Op(("cas", old, new), begun, ended, succeeded)


def recorded(ops: list[Op]) -> History[Command]:
    """Record calls in the order of their times."""
    history, calls = History[Command](), dict[int, ServiceCall[Command]]()
    moments = [(op.begun, 0, at) for at, op in enumerate(ops)]
    moments += [(op.ended, 1, at) for at, op in enumerate(ops) if op.ended is not None]
    for _, is_end, at in sorted(moments):
        if is_end:
            calls[at].answered(ops[at].answer)
        else:
            calls[at] = history.begin(ops[at].command)
    return history


def is_linearizable(ops: list[Op]) -> bool:
    try:
        recorded(ops).check(apply, initial=None)
    except NotLinearizable:
        return False
    return True


def test_what_overlaps_may_be_seen_in_either_order() -> None:
    for seen in ("1", "2"):
        assert is_linearizable([put(0, 10, "1"), put(1, 9, "2"), get(20, 21, seen)])


def test_a_read_that_goes_back_is_found() -> None:
    assert not is_linearizable([put(0, 1, "1"), put(2, 3, "2"), get(4, 5, "2"), get(6, 7, "1")])


def test_a_lost_write_is_found() -> None:
    assert not is_linearizable([put(0, 1, "1"), get(2, 3, None)])


def test_a_write_that_never_answered_may_happen_late_or_never() -> None:
    pending = put(0, None, "1")
    assert is_linearizable([pending, get(5, 6, None), get(7, 8, "1")])
    assert is_linearizable([pending, get(5, 6, None)])
    assert not is_linearizable([pending, get(5, 6, "1"), get(7, 8, None)])
    assert is_linearizable([Op(("cas", None, "1"), 0, None), get(5, 6, "1")]), "whatever its answer would be"


def test_a_call_that_was_refused_did_not_happen() -> None:
    history = History[Command]()
    history.begin(("set", None, "1")).refused()
    history.begin(("get", None, None)).answered(None)
    history.check(apply, initial=None)
    history.begin(("get", None, None)).answered("1")
    with pytest.raises(NotLinearizable):
        history.check(apply, initial=None)


def test_a_call_ends_once() -> None:
    history = History[Command]()
    call = history.begin(("get", None, None))
    call.answered(None)
    with pytest.raises(InvalidArgument, match="has ended already"):
        call.answered("1")
    with pytest.raises(InvalidArgument, match="has ended already"):
        call.refused()
    refused = history.begin(("get", None, None))
    refused.refused()
    with pytest.raises(InvalidArgument, match="has ended already"):
        refused.answered(None)


def test_two_that_both_win_a_compare_and_set_are_found() -> None:
    first, won = put(0, 1, "0"), cas(2, 9, "0", "1", succeeded=True)
    assert not is_linearizable([first, won, cas(3, 8, "0", "2", succeeded=True)])
    assert is_linearizable([first, won, cas(3, 8, "0", "2", succeeded=False)])


def test_keys_are_checked_alone_and_the_failure_shows_the_calls_of_the_key() -> None:
    history = History[tuple[str, Command]]()
    for name in ("a", "b"):
        history.begin((name, ("set", None, "1"))).answered(None)
    history.begin(("a", ("get", None, None))).answered("1")
    history.begin(("b", ("get", None, None))).answered("7")
    with pytest.raises(NotLinearizable) as caught:
        history.check(lambda value, command: apply(value, command[1]), initial=None, key=lambda c: c[0])
    said = str(caught.value)
    assert "no order of the 2 calls with the key 'b' explains their answers" in said
    assert "The longest order has 1 of them and leads to the state '1'" in said
    assert "cannot get the answer '7'" in said
    assert said.count("\n  ") == 2, "the calls of the key, and of no other"


def by_trying(ops: list[Op]) -> bool:
    """All orders of all calls that were answered, and of any that were not, for small histories."""
    answered = [op for op in ops if op.ended is not None]
    pending = [op for op in ops if op.ended is None]
    chosen = itertools.chain.from_iterable(
        itertools.combinations(pending, count) for count in range(len(pending) + 1)
    )
    return any(has_order([*answered, *some]) for some in chosen)


def has_order(ops: list[Op]) -> bool:
    for order in itertools.permutations(ops):
        if any(
            late.ended is not None and late.ended < early.begun
            for at, early in enumerate(order)
            for late in order[at + 1 :]
        ):
            continue
        value: str | None = None
        for op in order:
            value, answer = apply(value, op.command)
            if op.ended is not None and answer != op.answer:
                break
        else:
            return True
    return False


@given(st.integers(0, 2**32))
def test_it_agrees_with_trying_all_orders(seed: int) -> None:
    rng = random.Random(seed)
    ops = []
    for number in range(rng.randrange(1, 6)):
        begun = rng.randrange(10)
        ended = None if rng.random() < 0.3 else begun + rng.randrange(1, 6) + 0.5
        match rng.choice(["get", "set", "cas"]):
            case "get":
                ops.append(get(begun, ended, rng.choice([None, *"01234"])))
            case "set":
                ops.append(put(begun, ended, str(number)))
            case _:
                old, won = rng.choice([None, *"01234"]), rng.random() < 0.5
                ops.append(cas(begun, ended, old, str(number), succeeded=won))
    assert is_linearizable(ops) == by_trying(ops)


def steps_of(ops: list[Op]) -> int:
    """How many commands the check applies."""
    steps = 0

    def counted(state: str | None, command: Command) -> tuple[str | None, Any]:
        nonlocal steps
        steps += 1
        return apply(state, command)

    with contextlib.suppress(NotLinearizable):
        recorded(ops).check(counted, initial=None)
    return steps


def test_the_same_calls_with_the_same_state_are_looked_at_once() -> None:
    ops = [put(number, 10 + number, "1") for number in range(8)]
    assert steps_of([*ops, get(20, 21, "2")]) < 8 * 2**8, "not 8! orders"


def test_reads_without_an_answer_cost_nothing() -> None:
    ops = [get(number, None, None) for number in range(20)]
    assert steps_of([*ops, put(30, 31, "1"), get(32, 33, "2")]) < 500


def test_a_long_history_is_checked_in_few_steps() -> None:
    rng = random.Random(1)
    ops, value, now = list[Op](), None, 0.0
    for number in range(3000):
        now += 1
        begun, ended = now - rng.random() * 3, now + rng.random() * 3
        if rng.random() < 0.5:
            value = str(number)
            ops.append(put(begun, ended, value))
        else:
            ops.append(get(begun, ended, value))
    assert steps_of(ops) < 20 * len(ops)
    assert is_linearizable(ops)
