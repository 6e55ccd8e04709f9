"""Ends of long polls, in an event loop."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

from bookie.server.polls import AT_ONCE, Polls


@attrs.define(eq=False)
class Poll:
    ended: list[float]

    def wake(self) -> None:
        self.ended.append(trio.current_time())


async def test_a_poll_ends_when_its_time_is_up_and_an_earlier_one_before_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    polls, ended = Polls(), []
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(polls.run)
        await trio.testing.wait_all_tasks_blocked()
        for seconds in (5.0, 1.0, 3.0):
            polls.add(Poll(ended), seconds)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert [end - began for end in ended] == pytest.approx([1.0, 3.0, 5.0])


async def test_of_thousands_that_run_out_together_few_end_in_a_pass(
    autojump_clock: trio.testing.MockClock,
) -> None:
    polls, ended = Polls(), []
    most = before = 0
    for _ in range(1000):
        polls.add(Poll(ended), 1.0)
    await trio.sleep(1.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(polls.run)
        while len(ended) < 1000:
            await trio.lowlevel.checkpoint()
            most, before = max(most, len(ended) - before), len(ended)
        nursery.cancel_scope.cancel()
    assert 0 < most <= 2 * AT_ONCE


async def test_a_poll_that_was_answered_does_not_end(autojump_clock: trio.testing.MockClock) -> None:
    polls, ended = Polls(), []
    answered, other = Poll(ended), Poll(ended)
    polls.add(answered, 1.0)
    polls.add(other, 2.0)
    polls.remove(answered)
    polls.remove(answered)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(polls.run)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert len(ended) == 1
