"""Turns between the parties of a bookie, in an event loop."""

from __future__ import annotations

import trio
import trio.testing

from bookie.server.fair import FairShares, Party
from ledgerlog import limits

TURN = limits.TURN_BYTES


async def work(fair: FairShares, party: Party, done: list[str], cost: int = TURN) -> None:
    """One item of work."""
    if not fair.take(party, cost):
        await fair.turn(party, cost)
    done.append(str(party.name))


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
    # The one has nothing to ask for in some rounds, because it is not back yet.
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
