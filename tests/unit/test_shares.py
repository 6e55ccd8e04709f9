"""Fair shares of a bookie's work, each rule by itself."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bookie.core.shares import ACCOUNTS_MAX, ALONE_QUANTA, ALONE_S, Shares

QUANTUM = 100


def contended() -> Shares[str]:
    """Shares of two parties that have both just asked; nothing of either's quantum is spent."""
    shares: Shares[str] = Shares(QUANTUM)
    assert shares.take("a", 0, 0.0)
    assert shares.take("b", 0, 0.0)
    return shares


def test_a_party_that_is_alone_gets_many_quanta_in_a_round_and_no_more() -> None:
    shares: Shares[str] = Shares(QUANTUM)
    for _ in range(5):
        assert [shares.take("a", QUANTUM, 0.0) for _ in range(ALONE_QUANTA + 1)].count(True) == ALONE_QUANTA
        shares.wait("a", 0, "next")
        assert shares.renew(0.0) == ["next"]


def test_all_that_waits_of_a_party_that_is_alone_goes_on_in_such_portions() -> None:
    shares: Shares[int] = Shares(QUANTUM)
    for _ in range(ALONE_QUANTA):
        assert shares.take("a", QUANTUM, 0.0)
    for number in range(20):
        assert not shares.take("a", QUANTUM, 0.0)
        shares.wait("a", QUANTUM, number)
    assert shares.renew(0.0) == list(range(ALONE_QUANTA))
    assert shares.renew(0.0) == list(range(ALONE_QUANTA, 2 * ALONE_QUANTA))


def test_who_comes_to_a_party_that_was_alone_goes_on_at_once() -> None:
    shares: Shares[str] = Shares(QUANTUM)
    for _ in range(ALONE_QUANTA):
        assert shares.take("a", QUANTUM, 0.0)
    for number in range(100):
        shares.wait("a", QUANTUM, f"a{number}")
    assert shares.take("b", QUANTUM, 0.0)
    shares.wait("b", QUANTUM, "b")
    assert "b" in [*shares.renew(0.0), *shares.renew(0.0)]


def test_a_party_is_alone_again_some_time_after_the_other_has_asked() -> None:
    shares = contended()
    assert shares.take("a", 2 * QUANTUM, 0.1)
    assert not shares.take("a", 1, 0.1)
    assert shares.take("a", 1, 0.1 + ALONE_S * 2)


def test_a_party_that_has_spent_its_quantum_waits_and_the_others_do_not() -> None:
    shares = contended()
    assert shares.take("a", QUANTUM, 0.0)
    assert not shares.take("a", 1, 0.0)
    assert shares.take("b", 1, 0.0)


def test_what_waits_goes_on_in_order_within_its_party() -> None:
    shares = contended()
    shares.take("a", QUANTUM, 0.0)
    for number in range(5):
        assert not shares.take("a", 40, 0.0)
        shares.wait("a", 40, f"a{number}")
    assert shares.renew(0.0) == ["a0", "a1", "a2"]
    assert shares.renew(0.0) == ["a3", "a4"]
    assert shares.waiting == 0


def test_who_comes_later_does_not_overtake_what_waits_of_its_party() -> None:
    shares = contended()
    shares.take("a", QUANTUM, 0.0)
    for number in range(4):
        shares.wait("a", QUANTUM, f"a{number}")
    shares.renew(0.0)
    assert not shares.take("a", 1, 0.0)


def test_a_costly_item_is_paid_for_by_the_next_rounds() -> None:
    shares = contended()
    assert shares.take("a", 3 * QUANTUM, 0.0)
    shares.wait("a", 1, "next")
    assert [shares.renew(0.0) for _ in range(3)] == [[], [], ["next"]]


def test_who_spends_nothing_saves_nothing() -> None:
    shares = contended()
    shares.take("b", 1, 0.0)
    for _ in range(50):
        shares.renew(0.0)
    assert shares.take("a", QUANTUM, 0.0)
    assert shares.take("b", 0, 0.0)
    assert not shares.take("a", 1, 0.0)


def test_what_is_cancelled_is_forgotten_and_the_rest_goes_on() -> None:
    shares = contended()
    shares.take("a", QUANTUM, 0.0)
    one, two = "one", "two"
    shares.wait("a", 1, one)
    shares.wait("a", 1, two)
    shares.leave("a", one)
    assert shares.waiting == 1
    assert shares.renew(0.0) == [two]
    shares.leave("a", two)
    shares.leave("nobody", two)
    assert shares.waiting == 0


def test_parties_that_have_gone_leave_nothing() -> None:
    shares = contended()
    for number in range(1000):
        shares.take(number, 5, 0.0)
    shares.renew(0.0)
    shares.renew(0.0)
    assert not shares._accounts


def test_parties_that_never_wait_do_not_fill_the_memory() -> None:
    """A round begins only when something waits."""
    shares = contended()
    for number in range(3 * ACCOUNTS_MAX):
        assert shares.take(number, 5, 0.0, group=number % 7)
    assert len(shares._accounts) <= ACCOUNTS_MAX
    assert shares._members.total() == len(shares._accounts)


def test_parties_of_one_group_divide_the_share_of_one_party() -> None:
    """Who comes as many gets no more than who comes as one."""
    shares: Shares[str] = Shares(QUANTUM)
    many = [f"m{number}" for number in range(10)]
    for party in (*many, "one"):
        group = "one" if party == "one" else "many"
        shares.take(party, 100 * QUANTUM, 0.0, group=group)
        for _ in range(1000):
            shares.wait(party, 1, party)
    for _ in range(2000):
        shares.renew(0.0)
    spent: Counter[str] = Counter()
    for _ in range(5):
        for party in shares.renew(0.0):
            spent["one" if party == "one" else "many"] += 1
    assert spent["many"] <= 5 * QUANTUM


def test_a_party_has_the_whole_share_again_when_the_others_of_its_group_are_gone() -> None:
    shares = contended()
    for party in ("x", "y"):
        shares.take(party, 1, 0.0, group="g")
    for _ in range(5):
        shares.renew(0.0)
    assert not shares._accounts
    assert not shares._members
    assert shares.take("x", QUANTUM - 1, 0.0, group="g")
    assert shares.take("x", 1, 0.0, group="g")
    assert not shares.take("x", 1, 0.0, group="g")


@given(
    counts=st.dictionaries(st.integers(0, 5), st.integers(1, 60), min_size=2),
    costs=st.lists(st.integers(1, QUANTUM), min_size=1, max_size=8),
)
def test_parties_get_the_same_however_many_items_wait(counts: dict[int, int], costs: list[int]) -> None:
    shares: Shares[tuple[int, int]] = Shares(QUANTUM)
    for party in counts:
        shares.take(party, 0, 0.0)
        shares.take(party, QUANTUM, 0.0)
    for party, count in counts.items():
        if party != next(iter(counts)) or not shares.take(party, QUANTUM, 0.0):
            for number in range(count):
                cost = costs[number % len(costs)]
                shares._accounts[party].left = min(shares._accounts[party].left, 0)
                shares.wait(party, cost, (party, cost))
    spent: Counter[int] = Counter()
    while shares.waiting:
        still = {party for party, account in shares._accounts.items() if account.lanes}
        for party, cost in shares.renew(0.0):
            spent[party] += cost
        behind = {party for party in still if shares._accounts.get(party) and shares._accounts[party].lanes}
        if len(behind) > 1:
            figures = [spent[party] for party in behind]
            assert max(figures) - min(figures) <= 2 * QUANTUM


# --- lanes ------------------------------------------------------------------------------------------


def test_the_lanes_of_a_party_take_turns_however_much_waits_in_each() -> None:
    shares = contended()
    shares.take("a", QUANTUM, 0.0)
    for number in range(50):
        shares.wait("a", 40, f"busy{number}", lane="busy")
    shares.wait("a", 40, "other0", lane="other")
    shares.wait("a", 40, "other1", lane="other")
    assert shares.renew(0.0) == ["busy0", "other0", "busy1"]
    assert shares.renew(0.0)[0] == "other1"
    assert shares.waiting == 47


def test_an_item_that_leaves_its_lane_leaves_the_others_in_it() -> None:
    shares = contended()
    shares.take("a", QUANTUM, 0.0)
    for item in ("x0", "x1", "x2"):
        shares.wait("a", 1, item, lane="x")
    shares.wait("a", 1, "y", lane="y")
    shares.leave("a", "x1")
    shares.leave("a", "y")
    assert shares.waiting == 2
    assert shares.renew(0.0) == ["x0", "x2"]
    assert shares.waiting == 0


def test_what_was_paid_too_little_is_paid_by_the_next_rounds_and_what_was_too_much_is_given_back() -> None:
    shares = contended()
    assert shares.take("a", 10, 0.0)
    shares.pay("a", 2 * QUANTUM)
    assert not shares.take("a", 1, 0.0)
    assert shares.take("b", QUANTUM, 0.0)
    shares.pay("b", 1 - QUANTUM)
    assert shares.take("b", 1, 0.0)
    shares.wait("a", 1, "next")
    assert [shares.renew(0.0) for _ in range(2)] == [[], ["next"]]
