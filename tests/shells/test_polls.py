"""Ends of long polls, in an event loop."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from bookie.server.polls import AT_ONCE, Polls


async def poll(polls: Polls, seconds: float, ended: list[float]) -> None:
    with polls.lasting(seconds):
        await trio.sleep_forever()
    ended.append(trio.current_time())


async def test_a_poll_ends_when_its_time_is_up_and_an_earlier_one_before_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    polls, ended = Polls(), []
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(polls.run)
        for seconds in (5.0, 1.0, 3.0):
            nursery.start_soon(poll, polls, seconds, ended)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert [end - began for end in ended] == pytest.approx([1.0, 3.0, 5.0])


async def test_of_thousands_that_run_out_together_few_end_in_a_pass(
    autojump_clock: trio.testing.MockClock,
) -> None:
    polls, ended = Polls(), []
    most = before = 0
    async with trio.open_nursery() as nursery:
        for _ in range(1000):
            nursery.start_soon(poll, polls, 1.0, ended)
        await trio.sleep(1.0)
        nursery.start_soon(polls.run)
        while len(ended) < 1000:
            await trio.lowlevel.checkpoint()
            most, before = max(most, len(ended) - before), len(ended)
        nursery.cancel_scope.cancel()
    assert 0 < most <= 2 * AT_ONCE


async def test_polls_that_were_answered_are_forgotten() -> None:
    polls = Polls()
    with polls.lasting(60):
        for _ in range(10_000):
            with polls.lasting(60):
                pass
    assert len(polls._ends) < 200
    assert not polls._waiting


async def test_a_poll_can_be_ended_early(autojump_clock: trio.testing.MockClock) -> None:
    polls = Polls()
    with trio.fail_after(1), polls.lasting(60) as scope:
        scope.cancel()
        await trio.sleep_forever()
