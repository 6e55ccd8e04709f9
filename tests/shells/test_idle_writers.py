"""An idle writer does nothing: none of its timers goes off again and again."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

from ledgerlog.cluster import connect
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.memory_cluster import eventually, open_cluster
from tests.steps import counted_steps

WRITERS = 30
MINUTES = 10


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
        with counted_steps() as steps:
            await trio.sleep(60 * MINUTES)
        of_writers = sum(count for name, count in steps.items() if name.startswith("ledger writer "))
        assert of_writers <= 3 * WRITERS * MINUTES, steps
        for writer in writers:
            assert await writer.append(b"y") == 1


@pytest.mark.parametrize("how", ["an idle writer leaves it", "it refuses an add"])
async def test_a_writer_rests_again_after_it_has_replaced_a_read_only_bookie(
    how: str, clock: MockClock
) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=Replication(3, 3, 2))
        await writer.append(b"x")
        await trio.sleep(5)
        bookie, *_ = cluster.bookies_of(writer.metadata.last_fragment.ensemble)
        bookie.set_read_only(True)
        if how == "it refuses an add":
            await writer.append(b"y")
        await eventually(lambda: bookie.bookie_id not in writer.metadata.last_fragment.ensemble)
        await trio.sleep(5)
        with counted_steps() as steps:
            await trio.sleep(60 * MINUTES)
        of_writer = sum(count for name, count in steps.items() if name.startswith("ledger writer "))
        assert of_writer <= 3 * MINUTES, steps
