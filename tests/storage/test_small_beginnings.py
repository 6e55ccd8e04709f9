"""A bookie that stores little takes little room: its first segment is small, and so is its ballast."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import trio
from attrs import evolve
from storing import KEY, SMALL, Crash, add_durably, add_frame, read_all, running
from trio.testing import wait_all_tasks_blocked

from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.engine import Engine
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.cluster import connect
from ledgerlog.embedded import STORAGE
from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import FRAME_BYTES_MAX, KIB, MIB
from ledgerlog.wire.frame import Status

PAGE = 4096
FIRST = 8 * PAGE
CONFIG = evolve(SMALL, segment_bytes=64 * PAGE, first_segment_bytes=FIRST, arenas=3, small_run_bytes=0)


def segment_sizes(disk: MemoryDisk) -> list[int]:
    return [len(content) for path, content in sorted(disk.files.items()) if path.endswith(".journal")]


def stats_of(directory: Path) -> list[os.stat_result]:
    return [path.stat() for path in directory.rglob("*") if path.is_file()]


async def add_when_there_is_room(engine: Engine, entry_id: int, size: int) -> None:
    """As a connection does: it asks for the room of this very add."""
    frame, entries = add_frame(1, [entry_id], [b"%07d" % entry_id * (size // 7)])
    if not engine.has_room_for(len(frame.raw)):
        await engine.wait_room()
    position = engine.add(frame, entries)
    assert not isinstance(position, Status), position
    await engine.wait_durable(position)


async def test_six_records_in_a_file_cluster_take_less_than_a_mebibyte(tmp_path: Path) -> None:
    async with connect(f"file:{tmp_path}") as cluster:
        log = await cluster.create_log("log")
        async with log.writer() as writer:
            for number in range(6):
                await writer.append(b"record %d" % number)
        taken = stats_of(tmp_path)
    assert sum(512 * each.st_blocks for each in taken) < MIB
    assert sum(each.st_size for each in taken) < MIB


async def test_no_segment_is_made_before_half_of_the_first_is_used_and_the_next_takes_any_frame() -> None:
    disk = MemoryDisk()
    async with running("b", CONFIG, disk=disk, indexes=MemoryIndexes()) as engine:
        await add_when_there_is_room(engine, 0, 100)
        await wait_all_tasks_blocked()
        assert segment_sizes(disk) == [FIRST]
        entry_id = 1
        while len(segment_sizes(disk)) == 1:
            await add_when_there_is_room(engine, entry_id, 100)
            await wait_all_tasks_blocked()
            entry_id += 1
        assert segment_sizes(disk) == [FIRST, CONFIG.segment_bytes]
        assert engine.has_room
        for _ in range(20):
            await add_when_there_is_room(engine, entry_id, CONFIG.frame_bytes_max - 200)
            entry_id += 1
        assert len(await read_all(engine, 1)) == entry_id


async def test_the_largest_frame_is_taken_at_once() -> None:
    disk = MemoryDisk()
    async with running("b", CONFIG, disk=disk, indexes=MemoryIndexes()) as engine:
        assert not engine.has_room_for(CONFIG.frame_bytes_max)
        await add_when_there_is_room(engine, 0, CONFIG.frame_bytes_max - 200)
        assert len(await read_all(engine, 1)) == 1


async def test_a_fence_asks_for_the_next_segment_if_the_first_is_full() -> None:
    async with running("b", CONFIG, disk=MemoryDisk(), indexes=MemoryIndexes()) as engine:
        entry_id = 0
        while not isinstance(engine.add(*add_frame(1, [entry_id], [bytes(2_000)])), Status):
            entry_id += 1
        await wait_all_tasks_blocked()
        with trio.fail_after(60):
            assert (await engine.fence(1, KEY)).status is Status.OK


@pytest.mark.parametrize("seed", range(10))
async def test_nothing_is_lost_while_segments_grow_whatever_the_sizes_and_the_stops(seed: int) -> None:
    random = Random(seed)
    disk, indexes = MemoryDisk(), MemoryIndexes()
    stored = 0
    for _ in range(6):
        try:
            async with running("b", CONFIG, disk=disk, indexes=indexes) as engine:
                assert len(await read_all(engine, 1)) == stored
                for _ in range(random.randrange(25)):
                    await add_when_there_is_room(engine, stored, random.choice([70, 700, 7_000, 19_000]))
                    stored += 1
                if random.random() < 0.5:
                    raise Crash
        except Crash:
            continue
    async with running("b", CONFIG, disk=disk, indexes=indexes) as engine:
        assert len(await read_all(engine, 1)) == stored


async def test_a_disk_without_room_for_the_next_segment_refuses_adds_and_takes_fences() -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    config = evolve(CONFIG, ballast_bytes=0)
    async with running("b", config, disk=disk, indexes=indexes) as engine:
        await add_durably(engine, 1, [0])  # It asks for room for any frame.
    disk.capacity_bytes = sum(map(len, disk.files.values())) + 2 * FIRST
    async with running("b", config, disk=disk, indexes=indexes) as engine:
        position: int | Status = 0
        entry_id = 1
        while not isinstance(position, Status):
            frame, entries = add_frame(1, [entry_id], [bytes(1_000)])
            if not engine.has_room_for(len(frame.raw)):
                await engine.wait_room()
            position = engine.add(frame, entries)
            entry_id += 1
            await wait_all_tasks_blocked()
        assert position is Status.DISK_FULL
        assert (await engine.fence(1, KEY)).status is Status.OK
    async with running("b", config, disk=disk, indexes=indexes) as engine:
        assert len(await read_all(engine, 1)) == entry_id - 1


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await wait_all_tasks_blocked()


async def test_the_ballast_gets_its_whole_size_with_the_first_large_file() -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    disk.capacity_bytes = 64 * MIB
    config = evolve(CONFIG, ballast_bytes=128 * KIB, disk_watch_interval_s=0.01)

    def ballast() -> int:
        return len(disk.files.get("b/ballast", b""))

    async with running("b", config, disk=disk, indexes=indexes) as engine:
        await until(lambda: ballast() > 0)
        assert ballast() == FIRST
        await add_when_there_is_room(engine, 0, 19_000)
        await until(lambda: ballast() == 128 * KIB)
    async with running("b", config, disk=disk, indexes=indexes):
        await wait_all_tasks_blocked()
        assert ballast() == 128 * KIB, "it never shrinks"


def test_a_bookie_of_an_embedded_cluster_begins_small_and_every_segment_behind_takes_any_frame() -> None:
    assert STORAGE.starts_small
    sizes = [STORAGE.first_segment_bytes]
    while sizes[-1] < STORAGE.segment_bytes:
        sizes.append(STORAGE.bytes_after(sizes[-1]))
    assert all(size % PAGE == 0 for size in sizes)
    assert all(size >= 2 * FRAME_BYTES_MAX for size in sizes[1:])
    large = StorageConfig()
    assert not large.starts_small
    assert large.bytes_after(128 * KIB) == large.segment_bytes


@pytest.mark.parametrize("first", [PAGE, 8 * PAGE + 1, 65 * PAGE])
def test_a_first_segment_of_an_impossible_size_is_refused(first: int) -> None:
    with pytest.raises(InvalidArgument, match="first_segment_bytes"):
        evolve(CONFIG, first_segment_bytes=first)
