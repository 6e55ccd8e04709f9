"""The bound on the bytes that repair copies in a second: over all tasks that copy, even if it changes while
they wait."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from ledgerlog.repair.copying import Pacer


async def test_all_who_copy_share_the_rate(clock: MockClock) -> None:
    pacer = Pacer(10_000)
    passed = 0

    async def copy() -> None:
        nonlocal passed
        while True:
            await pacer.pass_through(1_000)
            passed += 1_000

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(copy)
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    # The burst at the start, and a piece that was let through with the last token.
    assert 195_000 <= passed <= 200_000 + 2_500 + 1_000


async def test_who_waits_at_a_low_rate_goes_on_as_soon_as_it_is_raised(clock: MockClock) -> None:
    pacer = Pacer(1)
    await pacer.pass_through(1_000_000)
    began = trio.current_time()

    async def operator() -> None:
        await trio.sleep(5)
        pacer.set(bytes_per_s=10_000_000, paused=False)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(operator)
        await pacer.pass_through(1_000)
    assert 5 <= trio.current_time() - began < 6


async def test_a_pause_holds_who_waits_for_his_turn(clock: MockClock) -> None:
    pacer = Pacer(1_000)
    await pacer.pass_through(10_000)
    began = trio.current_time()

    async def operator() -> None:
        await trio.sleep(1)
        pacer.set(bytes_per_s=1_000, paused=True)
        await trio.sleep(99)
        pacer.set(bytes_per_s=1_000, paused=False)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(operator)
        await pacer.pass_through(1_000)
    assert 100 <= trio.current_time() - began < 101
