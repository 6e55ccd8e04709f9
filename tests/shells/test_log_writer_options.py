"""How records become entries, as ``Log.writer`` is asked: lingering, sizes, windows in bytes, packing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
import trio
import trio.testing
from fakes.ledgers import World, open_world
from trio.testing import MockClock

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import WRITER_FRAMES_OUTSTANDING
from ledgerlog.log.lane import AppendLane, OutsideAppend
from ledgerlog.log.log import Log, create_log
from ledgerlog.model.policies import RollPolicy


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as world:
        yield world


@pytest.fixture
async def log(world: World) -> Log:
    return await create_log(world.client(), "log", roll=RollPolicy(max_records=1000))


async def contents(log: Log) -> list[bytes]:
    async with log.read() as records:
        return [record.data async for record in records]


async def test_a_record_that_lingers_shares_its_entry_with_what_comes_meanwhile(
    log: Log, autojump_clock: MockClock
) -> None:
    async with log.writer(linger_s=0.05) as writer, trio.open_nursery() as nursery:
        begun = trio.current_time()
        times = []

        async def append(after_s: float) -> None:
            await trio.sleep(after_s)
            ack = await writer.append(b"x")
            times.append((ack.position.entry_id, round(trio.current_time() - begun, 2)))

        for after_s in (0, 0.03, 0.06, 0.3):
            nursery.start_soon(append, after_s)
    assert times == [(0, 0.05), (0, 0.05), (1, 0.11), (2, 0.35)]


async def test_a_record_lingers_no_longer_because_the_batch_before_it_filled_early(
    log: Log, autojump_clock: MockClock
) -> None:
    async with log.writer(linger_s=1, entry_bytes=100) as writer, trio.open_nursery() as nursery:
        begun = trio.current_time()
        times = []

        async def append(after_s: float, size: int) -> None:
            await trio.sleep(after_s)
            ack = await writer.append(b"x" * size)
            times.append((ack.position.entry_id, round(trio.current_time() - begun, 2)))

        for after_s, size in ((0, 46), (0.1, 46), (0.2, 46), (0.3, 46), (0.5, 1), (0.7, 1), (1.6, 1)):
            nursery.start_soon(append, after_s, size)
    assert times == [(0, 0.2)] * 2 + [(1, 0.5)] * 2 + [(2, 1.5)] * 2 + [(3, 2.6)]


async def test_a_batch_that_waits_for_entries_on_their_way_does_not_keep_the_timer_busy(
    world: World, log: Log, autojump_clock: MockClock
) -> None:
    async with log.writer(linger_s=0.1, entry_bytes=100) as writer:
        world.hold_all = True
        for _ in range(WRITER_FRAMES_OUTSTANDING):
            await writer.submit(b"x" * 100)
        await writer.submit(b"y")
        await trio.sleep(10)
        assert writer.statistics().durable_offset == 0
        world.release()
        begun = trio.current_time()
        await writer.flush()
    assert trio.current_time() == begun


@pytest.mark.parametrize("way", ["append", "numbered append", "lane"])
async def test_a_record_lingers_from_when_it_is_taken_though_many_entries_are_on_their_way(
    world: World, log: Log, autojump_clock: MockClock, way: str
) -> None:
    async with (
        trio.open_nursery() as nursery,
        log.writer(linger_s=1, entry_bytes=100, dedupe=way == "numbered append") as writer,
    ):
        world.hold_all = True
        for _ in range(WRITER_FRAMES_OUTSTANDING):
            await writer.submit(b"x" * 100)
        await trio.sleep(2)  # All of them are sent now.
        if way == "lane":
            AppendLane(writer, nursery, lambda told: None).take([OutsideAppend(b"y")])
        elif way == "append":
            nursery.start_soon(writer.append, b"y")
        else:
            nursery.start_soon(partial(writer.append, b"y", producer="p", sequence=0))
        await trio.sleep(0.7)
        world.release()
        await trio.sleep(0.2)
        assert writer.statistics().records_outstanding == 1
        await trio.sleep(0.2)
        assert not writer.statistics().records_outstanding


async def test_without_lingering_a_lone_record_waits_for_nothing(log: Log, autojump_clock: MockClock) -> None:
    async with log.writer() as writer:
        begun = trio.current_time()
        for _ in range(3):
            await writer.append(b"x")
        assert trio.current_time() == begun


async def test_a_full_batch_a_flush_and_the_end_do_not_linger(log: Log, autojump_clock: MockClock) -> None:
    async with log.writer(linger_s=1, entry_bytes=100) as writer:
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.append_many, [b"x" * 46] * 2)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(writer.append, b"y")
            await trio.testing.wait_all_tasks_blocked()
            assert writer.statistics().durable_offset == 2, "two filled an entry"
            await writer.flush()
        await writer.submit(b"z")
    assert trio.current_time() == begun
    assert await contents(log) == [b"x" * 46] * 2 + [b"y", b"z"]


async def test_lingering_goes_on_over_a_roll(log: Log, autojump_clock: MockClock) -> None:
    async with log.writer(linger_s=0.01) as writer:
        for _ in range(3):
            await writer.append_many([b"x"] * 900)
        assert writer.statistics().rolls >= 1
    assert len(await contents(log)) == 2700


async def test_entries_are_about_as_large_as_asked(log: Log, autojump_clock: MockClock) -> None:
    async with log.writer(entry_bytes=1000) as writer:
        acks = await writer.append_many([b"x" * 96] * 100)
    assert {a.position.entry_id for a in acks} == set(range(10))


async def test_the_window_is_bounded_in_bytes(world: World, log: Log, autojump_clock: MockClock) -> None:
    async with log.writer(window_bytes=1000) as writer:
        world.hold_all = True
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(writer.append, b"x" * 100)
            await trio.testing.wait_all_tasks_blocked()
            assert writer.statistics().bytes_outstanding == 1000
            world.release()
    assert len(await contents(log)) == 20


async def test_packed_entries_are_smaller_and_read_the_same(
    world: World, log: Log, autojump_clock: MockClock
) -> None:
    records = [b"the same line again, number %d" % n for n in range(500)]
    async with log.writer(compression="zstd", dedupe=True) as writer:
        await writer.append_many(records)
        await writer.append(b"x")
    assert await contents(log) == [*records, b"x"]
    stored = sum(map(len, world.ledgers[world.created[-1]].entries))
    assert stored < sum(map(len, records)) / 3
    async with log.read(317, until=319) as found:
        assert [record.data async for record in found] == records[317:319]
    assert (await log.info()).next_offset == 501


async def test_options_are_checked(log: Log, autojump_clock: MockClock) -> None:
    for bad in (
        {"linger_s": -1},
        {"linger_s": 5},
        {"linger_s": "1"},
        {"linger_s": True},
        {"window": 0},
        {"window_bytes": 0},
        {"window_bytes": True},
        {"entry_bytes": 0},
        {"entry_bytes": 2**30},
        {"compression": "gzip"},
    ):
        with pytest.raises(InvalidArgument):
            log.writer(**bad)
