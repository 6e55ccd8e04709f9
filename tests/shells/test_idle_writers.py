"""An idle writer does nothing: none of its timers goes off again and again."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

from ledgerlog.cluster import connect
from ledgerlog.model.quorum import Replication

WRITERS = 30
MINUTES = 10


class Steps(trio.abc.Instrument):
    """Counts the steps of tasks by the first words of their names."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.counts[" ".join(task.name.split(" ")[:2])] += 1


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


async def test_writers_that_idle_for_minutes_hardly_wake_up(clock: MockClock) -> None:
    async with connect("memory:?bookies=3") as cluster, AsyncExitStack() as stack:
        writers = [
            await stack.enter_async_context(await cluster.ledgers.create(replication=Replication(3, 3, 2)))
            for _ in range(WRITERS)
        ]
        for writer in writers:
            await writer.append(b"x")
        await trio.sleep(5)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(60 * MINUTES)
        trio.lowlevel.remove_instrument(steps)
        assert steps.counts["ledger writer"] <= 3 * WRITERS * MINUTES, steps.counts
        for writer in writers:
            assert await writer.append(b"y") == 1
