"""Entries that are only in a cache: the index does not name them, and no reader sees them before they are on
the disk."""

from __future__ import annotations

import contextlib

import pytest
import trio
from storing import Crash, add, add_durably, payloads, read_all, running
from trio.testing import wait_all_tasks_blocked

from bookie.storage.index.index import MemoryIndexes
from ledgerlog.errors import StorageError
from ledgerlog.testing.faulty_disk import Fails, FaultyDisk, Gate


async def test_a_flush_brings_nothing_into_the_index_that_became_pending_behind_it() -> None:
    disk, indexes = FaultyDisk(), MemoryIndexes()
    with contextlib.suppress(Crash):
        async with running("b", disk=disk, indexes=indexes) as engine:
            await add_durably(engine, 1, [0])
            gate = Gate("write_sync")
            disk.faults.append(gate)
            add(engine, 1, [1])
            await wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.flush)
                await wait_all_tasks_blocked()
                add(engine, 1, [2])
                gate.let_one_through()
            raise Crash
    disk.faults.clear()
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert await read_all(engine, 1) == payloads(1, [0, 1])


async def test_what_a_boot_finds_in_a_cache_is_synced_before_it_is_shown() -> None:
    disk, indexes = FaultyDisk(), MemoryIndexes()

    async def fail_to_sync() -> None:
        async with running("b", disk=disk, indexes=indexes) as engine:
            await add_durably(engine, 1, [0])
            disk.faults.append(Fails("write_sync", happens=True))
            add(engine, 1, [1])
            await trio.sleep_forever()

    with pytest.raises(StorageError, match="Input/output"):
        await fail_to_sync()
    disk.faults.clear()
    with contextlib.suppress(Crash):
        async with running("b", disk=disk, indexes=indexes) as engine:
            assert await read_all(engine, 1) == payloads(1, [0, 1]), "it was never acknowledged, and is there"
            raise Crash
    disk.cut_power()
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert await read_all(engine, 1) == payloads(1, [0, 1]), "whoever was shown it may rely on it"
