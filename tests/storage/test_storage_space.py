"""Segments give back what they do not use, and a file that is cut anywhere else is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from attrs import evolve
from storing import KEY, SMALL, add_durably, add_frame, opened, payloads, read, read_all, running
from trio.testing import wait_all_tasks_blocked

from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.opening import open_engine
from bookie.storage.index.index import MemoryIndexes
from bookie.storage.upkeep.rebuild import rebuild_index
from ledgerlog.errors import DiskFull, StorageCorrupt
from ledgerlog.limits import KIB, MIB
from ledgerlog.testing.faulty_disk import Fails, FaultyDisk, skips
from ledgerlog.wire.frame import Status
from tests.waiting import PATIENCE_S


def sizes(disk: MemoryDisk) -> list[int]:
    return [len(content) for path, content in sorted(disk.files.items()) if path.endswith(".journal")]


async def test_many_starts_do_not_fill_the_disk() -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    for start in range(20):
        async with running("b", disk=disk, indexes=indexes) as engine:
            await add_durably(engine, 1, [start])
            await wait_all_tasks_blocked()
    *used, spare = sizes(disk)
    assert len(used) == 20
    assert max(used) <= 4 * 4096
    assert spare == SMALL.segment_bytes, "one segment is prepared in advance"
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert await read_all(engine, 1) == payloads(1, range(20))


async def test_many_crashes_do_not_fill_the_disk() -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()

    async def add_and_crash(start: int) -> None:
        async with running("b", disk=disk, indexes=indexes) as engine:
            await add_durably(engine, 1, [start])
            await wait_all_tasks_blocked()
            raise ZeroDivisionError

    for start in range(10):
        with pytest.raises(ZeroDivisionError):
            await add_and_crash(start)
    *used, _active, _spare = sizes(disk)
    assert max(used) <= 4 * 4096
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert await read_all(engine, 1) == payloads(1, range(10))


async def test_a_segment_for_which_the_room_ran_out_half_way_is_made_when_there_is_room() -> None:
    disk = FaultyDisk()
    # The file system notices only at a write that it has no room, even if it was allocated.
    no_room = Fails(
        "write_sync", error=DiskFull("No space left on device"), only=lambda path: path.endswith(".new")
    )
    async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
        await wait_all_tasks_blocked()  # The next segment is ready.
        disk.faults.append(no_room)
        at = 0
        while not isinstance(position := engine.add(*add_frame(1, [at])), Status):
            await engine.wait_durable(position)
            await engine.wait_room()
            at += 1
        assert position is Status.DISK_FULL
        with trio.fail_after(PATIENCE_S):
            while no_room.count < 3:  # noqa: ASYNC110 (a task of the engine)
                await trio.sleep(0.005)
        assert not [path for path in disk.files if path.endswith(".new")]
        disk.faults.clear()
        with trio.fail_after(PATIENCE_S):
            while engine.statistics()["is_disk_full"]:  # noqa: ASYNC110 (as above)
                await trio.sleep(0.005)
        await add_durably(engine, 1, [at])
        assert await read_all(engine, 1) == payloads(1, range(at + 1))


async def test_a_segment_that_a_crash_left_untrimmed_is_trimmed_at_the_next_start() -> None:
    disk, indexes = FaultyDisk(skips("truncate")), MemoryIndexes()
    for start in range(3):
        async with running("b", disk=disk, indexes=indexes) as engine:
            await add_durably(engine, 1, [start])
    assert sizes(disk)[:3] == [SMALL.segment_bytes] * 3
    disk.faults.clear()
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert max(sizes(disk)[:3]) <= 4 * 4096
        assert await read_all(engine, 1) == payloads(1, range(3))


async def test_the_index_is_made_again_from_trimmed_segments() -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    for start in range(3):
        async with running("b", disk=disk, indexes=indexes) as engine:
            await add_durably(engine, 1, [start])
            await engine.fence(7 + start, KEY)
    async with opened("b", disk, indexes) as directory:
        indexes.indexes.clear()
        assert await rebuild_index(directory) == 3
        async with open_engine(directory, SMALL) as engine:
            assert await read_all(engine, 1) == payloads(1, range(3))
            for ledger in (7, 8, 9):
                assert (await engine.fence(ledger, KEY)).status is Status.OK


@pytest.mark.parametrize("segment", [1, 2, 3])
async def test_a_trimmed_segment_that_lost_its_last_blocks_is_noticed_when_the_index_is_made_again(
    segment: int,
) -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    for start in range(3):
        async with running("b", disk=disk, indexes=indexes) as engine:
            await add_durably(engine, 1, [start])
    path = f"b/journal/{segment:016x}.journal"
    del disk.files[path][-4096:]
    async with opened("b", disk, indexes) as directory:
        with pytest.raises(StorageCorrupt, match=path):
            await rebuild_index(directory)
    # With the index, what is left can be read and what is not is said to be damaged, if it held entries.
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert await read_all(engine, 1) == payloads(1, range(3)), "the last block is that of the clean stop"


async def test_real_files_are_trimmed_and_read_back(tmp_path: Path) -> None:
    async with running(str(tmp_path / "b")) as engine:
        await add_durably(engine, 1, range(10))
    first = tmp_path / "b" / "journal" / f"{1:016x}.journal"
    assert first.stat().st_size < SMALL.segment_bytes // 2
    async with running(str(tmp_path / "b")) as engine:
        assert await read_all(engine, 1) == payloads(1, range(10))


async def test_a_bookie_whose_disk_is_full_starts_and_can_be_read_and_fenced() -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    large = evolve(SMALL, segment_bytes=MIB, small_run_bytes=0)
    at = 0
    async with running("b", large, disk=disk, indexes=indexes) as engine:
        await wait_all_tasks_blocked()
        disk.capacity_bytes = sum(map(len, disk.files.values())) + 200 * KIB
        while not isinstance(position := engine.add(*add_frame(1, [at], [bytes(9000)])), Status):
            await engine.wait_durable(position)
            await engine.wait_room()
            at += 1
        assert position is Status.DISK_FULL
        # As somebody else may, whose files are on the same disk.
        disk.capacity_bytes = 0
    disk.capacity_bytes = sum(map(len, disk.files.values())) + 200 * KIB
    async with running("b", large, disk=disk, indexes=indexes) as engine:
        found = await read(engine, 1, bytes_max=10**9)
        assert list(found.entries.ids) == list(range(at))
        assert (await engine.fence(1, KEY)).status is Status.OK
        await wait_all_tasks_blocked()
        assert engine.add(*add_frame(2, [0])) is Status.DISK_FULL
        disk.capacity_bytes = None
        with trio.fail_after(PATIENCE_S):
            while engine.statistics()["is_disk_full"]:  # noqa: ASYNC110 (a task of the engine)
                await trio.sleep(0.005)
        await add_durably(engine, 2, [0])
    async with running("b", large, disk=disk, indexes=indexes) as engine:
        assert engine.add(*add_frame(1, [at])) is Status.FENCED
        assert await read_all(engine, 2) == payloads(2, [0])
