"""Turns between the parties of a bookie, in an event loop."""

from __future__ import annotations

import trio
import trio.testing

from bookie.server.fair import FairShares, Party
from ledgerlog import limits
from ledgerlog.model.principal import Principal

ALICE, BOB, BOOKIE = map(Principal.parse, ("client/alice", "client/bob", "bookie/b2"))

TURN = limits.TURN_BYTES


async def work(fair: FairShares, party: Party, done: list[str], cost: int = TURN) -> None:
    """One item of work."""
    if not fair.take(party, cost):
        await fair.turn(party, cost, None)
    done.append(party.address)


async def greedy(fair: FairShares, party: Party, done: list[str]) -> None:
    """A connection that always has more."""
    while True:
        await work(fair, party, done)
        await trio.lowlevel.checkpoint()


async def test_a_hundred_connections_of_one_address_get_hardly_more_than_one_of_another() -> None:
    fair = FairShares()
    many, one = fair.enter("many"), fair.enter("one")
    done: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fair.run)
        for _ in range(100):
            nursery.start_soon(greedy, fair, many, done)
        nursery.start_soon(greedy, fair, one, done)
        while len(done) < 5000:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    late = done[1000:]
    # In some rounds this party asks for nothing, because it has not come back yet.
    assert late.count("many") < 2 * late.count("one")


async def test_who_asks_rarely_goes_on_at_once_beside_a_flood() -> None:
    fair = FairShares()
    many, one = fair.enter("many"), fair.enter("one")
    done: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fair.run)
        assert fair.take(one, 1)
        for _ in range(100):
            nursery.start_soon(greedy, fair, many, done)
        for _ in range(50):
            before = len(done)
            while len(done) < before + 20:
                await trio.lowlevel.checkpoint()
            assert fair.take(one, 1000), "it had spent nothing"
        nursery.cancel_scope.cancel()


async def test_a_connection_that_ends_while_it_waits_is_forgotten(autojump_clock: trio.abc.Clock) -> None:
    fair = FairShares()
    many, one = fair.enter("many"), fair.enter("one")
    done: list[str] = []
    assert fair.take(many, TURN)
    assert fair.take(one, TURN)
    with trio.CancelScope() as scope:
        scope.cancel()
        await work(fair, one, done)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fair.run)
        await work(fair, one, done)
        nursery.cancel_scope.cancel()
    assert done == ["one"]


def test_a_party_is_there_as_long_as_its_connections() -> None:
    fair = FairShares()
    first, second = fair.enter("a"), fair.enter("a")
    assert first is second
    fair.leave(first)
    assert fair.enter("a") is second
    fair.leave(second)
    fair.leave(second)
    assert fair.enter("a") is not second


# --- parties and principals -------------------------------------------------------------------------


def test_principals_at_one_address_are_parties_of_their_own() -> None:
    fair = FairShares()
    alice, bob, stranger = fair.enter("host", ALICE), fair.enter("host", BOB), fair.enter("host")
    assert len({alice.name, bob.name, stranger.name}) == 3
    assert fair.enter("host", ALICE) is alice


async def test_a_principal_at_many_addresses_gets_no_more_turns_than_another() -> None:
    fair = FairShares()
    many = [fair.enter(f"many-{number}", ALICE) for number in range(20)]
    one = fair.enter("one", BOB)
    done: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fair.run)
        for party in many:
            nursery.start_soon(greedy, fair, party, done)
        nursery.start_soon(greedy, fair, one, done)
        while len(done) < 5000:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    late = done[1000:]
    assert len(late) - late.count("one") < 2 * late.count("one")


def fill(party: Party, count: int) -> int:
    """Begin ordinary requests. Return how many got a place."""
    for number in range(count):
        places = party.request_places(is_poll=False, is_urgent=False)
        if places is None:
            return number
        for each in places:
            each.requests += 1
    return count


def test_one_party_and_one_principal_have_a_part_of_the_places_for_requests() -> None:
    fair = FairShares()
    parties = [fair.enter(f"host-{number}", ALICE) for number in range(4)]
    begun = [fill(party, limits.BOOKIE_REQUESTS) for party in parties]
    assert begun[0] == limits.PARTY_REQUESTS
    assert sum(begun) == limits.PRINCIPAL_REQUESTS
    assert fill(fair.enter("host-0", BOB), 1) == 1


def test_when_all_places_are_taken_fences_recovery_and_bookies_still_find_some() -> None:
    fair = FairShares()
    for name in ("a", "b"):
        assert fill(fair.enter("host", Principal("client", name)), limits.PARTY_REQUESTS)
    late = fair.enter("late", BOB)
    assert late.request_places(is_poll=False, is_urgent=False) is None
    assert late.request_places(is_poll=False, is_urgent=True) == (late.own, late.of_principal, fair.reserve)
    bookie = fair.enter("bookie", BOOKIE)
    assert fill(bookie, 2 * limits.RESERVE_REQUESTS) == limits.RESERVE_REQUESTS, "the reserve has an end, too"


def test_when_all_reply_bytes_are_taken_recovery_and_bookies_still_find_some() -> None:
    fair = FairShares()
    fair.everybody.reply_budget.charge(limits.BOOKIE_REPLY_BYTES)
    late, bookie = fair.enter("late", BOB), fair.enter("bookie", BOOKIE)
    assert list(late.reply_budgets(1000, is_urgent=False))[-1] is fair.everybody.reply_budget
    assert list(late.reply_budgets(1000, is_urgent=True))[-1] is fair.reserve.reply_budget
    assert list(bookie.reply_budgets(1000, is_urgent=False))[-1] is fair.reserve.reply_budget


async def test_when_all_large_frames_and_questions_are_taken_a_bookie_still_finds_a_place() -> None:
    fair = FairShares()
    late, bookie = fair.enter("late", BOB), fair.enter("bookie", BOOKIE)
    assert list(bookie.large_frame_limiters())[-1] is fair.everybody.large_frames
    for number in range(limits.BOOKIE_LARGE_FRAMES):
        fair.everybody.large_frames.acquire_on_behalf_of_nowait(number)
    for number in range(limits.BOOKIE_LOOKS):
        fair.everybody.looks.acquire_on_behalf_of_nowait(number)
    assert list(bookie.large_frame_limiters())[-1] is fair.reserve.large_frames
    assert list(bookie.look_limiters())[-1] is fair.reserve.looks
    assert list(late.large_frame_limiters())[-1] is fair.everybody.large_frames
    assert list(late.look_limiters())[-1] is fair.everybody.looks


def test_the_reserve_is_chosen_by_the_room_that_is_left_after_the_wait_for_the_places_of_the_party() -> None:
    fair = FairShares()
    bookie = fair.enter("bookie", BOOKIE)
    budgets, frames, looks = (
        iter(bookie.reply_budgets(1000, is_urgent=False)),
        iter(bookie.large_frame_limiters()),
        iter(bookie.look_limiters()),
    )
    assert [next(budgets), next(budgets)] == [bookie.own.reply_budget, bookie.of_principal.reply_budget]
    assert [next(frames), next(frames)] == [bookie.own.large_frames, bookie.of_principal.large_frames]
    assert [next(looks), next(looks)] == [bookie.own.looks, bookie.of_principal.looks]
    fair.everybody.reply_budget.charge(limits.BOOKIE_REPLY_BYTES)
    fair.everybody.large_frames.total_tokens = fair.everybody.looks.total_tokens = 0
    reserve = fair.reserve
    assert (next(budgets), next(frames), next(looks)) == (
        reserve.reply_budget,
        reserve.large_frames,
        reserve.looks,
    )


def test_one_principal_has_three_quarters_of_the_connections_and_the_last_are_for_bookies() -> None:
    fair = FairShares(connections_max=32)

    def greet(address: str, principal: Principal | None) -> bool:
        stranger = fair.enter(address)
        if not fair.has_connection(address, principal):
            fair.leave(stranger)
            return False
        fair.greet(stranger, principal)
        return True

    assert [greet(f"host-{number % 5}", ALICE) for number in range(26)].count(True) == 24
    assert [greet("host", BOB) for _ in range(8)].count(True) == 6
    assert fair.everybody.greeted == 30
    assert [greet("bookie", BOOKIE) for _ in range(2)] == [True, True]


def test_one_address_of_an_open_cluster_has_three_quarters_of_the_connections() -> None:
    fair = FairShares(connections_max=32)
    strangers = [fair.enter("host") for _ in range(40)]
    greeted = []
    for _ in range(24):
        assert fair.has_connection("host", None), "strangers take nobody's place"
        greeted.append(fair.greet(strangers.pop(), None))
    assert not fair.has_connection("host", None)
    assert fair.has_connection("other", None)
    fair.end(left := greeted.pop())
    fair.leave(left)
    assert fair.has_connection("host", None)
    for party in greeted:
        fair.end(party)
        fair.leave(party)
    for party in strangers:
        fair.leave(party)
    assert fair.everybody.greeted == 0
    assert not fair._parties
