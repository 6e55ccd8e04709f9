"""What lies in a cache only: the index says nothing of it, and nobody is shown it before it is on the
disk."""

from __future__ import annotations

import contextlib

import pytest
import trio
from storing import Crash, add, add_durably, payloads, read_all, running
from trio.testing import wait_all_tasks_blocked

from bookie.storage.disk import File
from bookie.storage.index import MemoryIndexes
from bookie.storage.memory_disk import MemoryDisk, MemoryFile
from ledgerlog.errors import StorageError


class SteppedDisk(MemoryDisk):
    """A disk whose writes are let through one by one, once ``step`` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.permits: trio.Semaphore | None = None

    def step(self) -> None:
        self.permits = trio.Semaphore(0)

    async def write_sync(self, file: File, offset: int, view: memoryview) -> None:
        if self.permits is not None:
            await self.permits.acquire()
        await super().write_sync(file, offset, view)


class CachedDisk(MemoryDisk):
    """A disk below a cache. A sync that fails leaves its bytes in the cache, for whoever reads next, and a
    power cut leaves what was synced."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_syncs = False
        self._synced: dict[int, bytearray] = {}

    async def create(self, path: str, size: int) -> MemoryFile:
        file = await super().create(path, size)
        self._synced[id(file.content)] = bytearray(file.content)
        return file

    async def write_sync(self, file: File, offset: int, view: memoryview) -> None:
        assert isinstance(file, MemoryFile)
        await super().write_sync(file, offset, view)
        if self.fails_syncs:
            raise StorageError("cannot sync: Input/output error")
        self._synced[id(file.content)][offset : offset + len(view)] = view

    def cut_power(self) -> None:
        for content in self.files.values():
            content[:] = self._synced.get(id(content), content)


async def test_a_flush_brings_nothing_into_the_index_that_became_pending_behind_it() -> None:
    disk, indexes = SteppedDisk(), MemoryIndexes()
    with contextlib.suppress(Crash):
        async with running("b", disk=disk, indexes=indexes) as engine:
            await add_durably(engine, 1, [0])
            disk.step()
            assert disk.permits is not None
            add(engine, 1, [1])
            await wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.flush)
                await wait_all_tasks_blocked()
                add(engine, 1, [2])
                disk.permits.release()
            raise Crash
    disk.permits = None
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert await read_all(engine, 1) == payloads(1, [0, 1])


async def test_what_a_boot_finds_in_a_cache_is_synced_before_it_is_shown() -> None:
    disk, indexes = CachedDisk(), MemoryIndexes()

    async def fail_to_sync() -> None:
        async with running("b", disk=disk, indexes=indexes) as engine:
            await add_durably(engine, 1, [0])
            disk.fails_syncs = True
            add(engine, 1, [1])
            await trio.sleep_forever()

    with pytest.raises(StorageError, match="cannot sync"):
        await fail_to_sync()
    disk.fails_syncs = False
    with contextlib.suppress(Crash):
        async with running("b", disk=disk, indexes=indexes) as engine:
            assert await read_all(engine, 1) == payloads(1, [0, 1]), "it was never acknowledged, and is there"
            raise Crash
    disk.cut_power()
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert await read_all(engine, 1) == payloads(1, [0, 1]), "whoever was shown it may rely on it"
