"""A clean stop ends the journal, no matter what was under way when it began."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
import trio
from storing import SMALL, ToldOracle, add_durably, opened, payloads, read, read_all

from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.opening import open_engine
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.wire.frame import Status


class SlowOracle(ToldOracle):
    """Says that ledger 1 is gone, once the test lets it answer."""

    def __init__(self) -> None:
        super().__init__({1})
        self.was_asked = trio.Event()
        self.may_answer = trio.Event()

    async def surely_gone(self, ledger_ids: Sequence[int]) -> Collection[int]:
        self.was_asked.set()
        await self.may_answer.wait()
        return await super().surely_gone(ledger_ids)


@pytest.mark.parametrize("steps", range(10))
async def test_a_collection_that_is_under_way_appends_nothing_behind_a_clean_stop(steps: int) -> None:
    """No matter when the metadata store answers, the stop is clean, and the next start deletes."""
    disk, indexes = MemoryDisk(), MemoryIndexes()
    oracle = SlowOracle()

    async def answer() -> None:
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        oracle.may_answer.set()

    async with (
        trio.open_nursery() as outside,
        opened("b", disk, indexes) as directory,
        open_engine(directory, SMALL, oracle=oracle) as engine,
    ):
        assert engine.collector is not None
        for ledger_id in (1, 2):
            await add_durably(engine, ledger_id, range(3))
        await engine.flush()
        outside.start_soon(engine.collector.collect)
        await oracle.was_asked.wait()
        outside.start_soon(answer)  # While the engine closes.
    async with (
        opened("b", disk, indexes) as directory,
        open_engine(directory, SMALL, oracle=oracle) as engine,
    ):
        assert engine.collector is not None
        await engine.collector.collect()
        assert (await read(engine, 1)).status is Status.NO_SUCH_LEDGER
        assert await read_all(engine, 2) == payloads(2, range(3))
