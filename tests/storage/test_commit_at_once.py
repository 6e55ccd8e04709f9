"""Adds between ``hold`` and ``release``: a quick disk writes them at once, and none is acknowledged too
early."""

from __future__ import annotations

import pytest
import trio
from storing import add, payloads, read_all, running
from trio.testing import wait_all_tasks_blocked

from bookie.storage.index.index import MemoryIndexes
from ledgerlog.errors import StorageError
from ledgerlog.testing.faulty_disk import Fails, FaultyDisk


def quick_disk() -> FaultyDisk:
    """Ready to write in the caller's step."""
    disk = FaultyDisk()
    disk.is_quick = True
    return disk


async def test_what_was_held_is_durable_and_told_when_release_returns() -> None:
    disk = quick_disk()
    async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
        await wait_all_tasks_blocked()
        told: list[int] = []
        engine.on_durable(lambda: told.append(engine.durable_position))
        by_the_writer = disk.calls["write_sync"]
        engine.hold()
        positions = [add(engine, 1, [0]), add(engine, 1, [1])]
        assert not told
        assert engine.durable_position < positions[0]
        engine.release(at_once=True)
        assert engine.durable_position == positions[-1]
        assert told == [engine.durable_position]
        await wait_all_tasks_blocked()
        assert (disk.calls["write_now"], disk.calls["write_sync"]) == (1, by_the_writer)
        assert await read_all(engine, 1) == payloads(1, [0, 1])


@pytest.mark.parametrize("is_quick", [False, True])
async def test_otherwise_the_writer_is_woken(is_quick: bool) -> None:
    disk = quick_disk()
    disk.is_quick = is_quick
    async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
        await wait_all_tasks_blocked()
        engine.hold()
        position = add(engine, 1, [0])
        assert isinstance(position, int)
        engine.release(at_once=not is_quick)
        assert engine.durable_position < position
        await engine.wait_durable(position)
        assert disk.calls["write_now"] == 0


async def test_nothing_is_written_twice_at_a_time() -> None:
    disk = quick_disk()
    async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
        await wait_all_tasks_blocked()
        first = add(engine, 1, [0])  # Has woken the writer.
        engine.hold()
        second = add(engine, 1, [1])
        assert isinstance(first, int)
        assert isinstance(second, int)
        engine.release(at_once=True)
        assert engine.durable_position < first
        await engine.wait_durable(second)
        assert disk.calls["write_now"] == 0


async def test_a_write_at_once_that_fails_ends_the_engine_and_is_neither_told_nor_tried_again() -> None:
    disk, indexes = quick_disk(), MemoryIndexes()
    told: list[int] = []

    async def add_and_fail() -> None:
        async with running("b", disk=disk, indexes=indexes) as engine:
            await wait_all_tasks_blocked()
            disk.faults.append(Fails("write_now"))
            engine.on_durable(lambda: told.append(engine.durable_position))
            engine.hold()
            position = add(engine, 1, [0])
            engine.release(at_once=True)
            assert isinstance(position, int)
            assert engine.durable_position < position
            engine.hold()
            add(engine, 1, [1])
            engine.release(at_once=True)
            by_the_writer.append(disk.calls["write_sync"])
            await trio.sleep_forever()

    by_the_writer: list[int] = []
    with pytest.raises(StorageError, match="Input/output"):
        await add_and_fail()
    assert not told
    assert disk.calls["write_now"] == 1
    assert by_the_writer == [disk.calls["write_sync"]]
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert await read_all(engine, 1) == {}


async def test_who_has_more_at_hand_has_one_sync_for_all_of_it() -> None:
    disk = quick_disk()
    async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
        await wait_all_tasks_blocked()
        before = disk.calls["write_sync"]
        for entry in range(20):
            position = add(engine, 1, [entry])
            if entry < 19:
                engine.more_follows()
                await trio.lowlevel.checkpoint()
        assert isinstance(position, int)
        await engine.wait_durable(position)
        assert disk.calls["write_sync"] - before == 1


async def test_who_does_not_bring_more_is_waited_for_for_a_moment_only() -> None:
    disk = quick_disk()
    async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
        await wait_all_tasks_blocked()
        position = add(engine, 1, [0])
        assert isinstance(position, int)
        engine.more_follows()
        await wait_all_tasks_blocked()
        assert engine.durable_position >= position


async def test_a_neighbour_does_not_wait_for_who_has_more_at_hand() -> None:
    disk = quick_disk()
    disk.is_quick = False
    async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
        await wait_all_tasks_blocked()
        for round_ in range(10):
            add(engine, 1, [2 * round_])
            engine.more_follows()
            engine.hold()
            position = add(engine, 2, [round_])
            assert isinstance(position, int)
            engine.release(at_once=False)
            by_the_writer = disk.calls["write_sync"]
            for _ in range(3):
                engine.more_follows()
                await trio.lowlevel.checkpoint()
            assert disk.calls["write_sync"] > by_the_writer
            await engine.wait_durable(position)


async def test_no_more_than_so_much_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.storage.journal.journal.JOURNAL_GATHER_BYTES", 1_000)
    disk = quick_disk()
    most = 0
    async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
        await wait_all_tasks_blocked()
        for entry in range(40):
            add(engine, 1, [entry])
            most = max(most, engine.pending_bytes)
            engine.more_follows()
            await trio.lowlevel.checkpoint()
        assert most < 3_000
