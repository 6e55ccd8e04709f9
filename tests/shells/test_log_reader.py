"""Reading a log over ledgers in memory: where reading starts and ends, and which records it never shows."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

import attrs
import pytest
import trio
import trio.testing
from fakes.ledgers import LedgerReader, World, open_world

from ledgerlog.cluster import connect
from ledgerlog.errors import (
    ConnectionClosed,
    EntryCorrupt,
    EntryNotFound,
    EntryUnavailable,
    InvalidArgument,
    LedgerNotFound,
    LogNotFound,
    MetadataUnavailable,
    Truncated,
)
from ledgerlog.ledger.tail import LedgerTail
from ledgerlog.limits import LOG_READ_AHEAD_BYTES, LONG_POLL_S
from ledgerlog.log.log import Log, create_log, delete_log, open_log
from ledgerlog.log.reader import LogReader
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.ids import Position
from ledgerlog.model.layout import log_record_path
from ledgerlog.model.policies import RetentionPolicy
from ledgerlog.model.record import moment
from ledgerlog.testing.faulty_store import Call, FaultyStore, GoOn


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as world:
        yield world


@pytest.fixture
async def log(world: World) -> Log:
    return await create_log(world.client(), "log")


async def fill(world: World, log: Log, *segments: int, last_open: bool = False) -> None:
    """Ledgers with so many entries of two records each, ten milliseconds apart."""
    async with log.writer() as writer:
        for number, entries in enumerate(segments):
            if number:
                await writer.roll()
            for _ in range(entries):
                world.now_ms += 10
                offset = writer.next_offset
                await writer.append_many([b"%d" % offset, b"%d" % (offset + 1)])


async def offsets(log: Log, start: object = "earliest", **options: object) -> list[int]:
    async with log.read(start, **options) as records:
        found = [record async for record in records]
    assert all(record.data == b"%d" % record.offset for record in found)
    return [record.offset for record in found]


async def read_until_unavailable(
    log: Log, start: int | Literal["earliest"] = "earliest"
) -> tuple[list[int], EntryUnavailable]:
    seen = []
    try:
        async with log.read(start) as records:
            async for record in records:
                seen.append(record.offset)
    except EntryUnavailable as failure:
        return seen, failure
    raise AssertionError("it ended like a whole log")


class Follower:
    """A task that follows a log."""

    def __init__(
        self, nursery: trio.Nursery, log: Log, start: object = "earliest", **options: object
    ) -> None:
        self.seen: list[int] = []
        self.failure: Exception | None = None
        self.done = trio.Event()
        self._log, self._start, self._options = log, start, options
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        try:
            async with self._log.read(self._start, follow=True, **self._options) as records:
                async for record in records:
                    self.seen.append(record.offset)
        except Exception as failure:
            self.failure = failure
        self.done.set()

    async def until(self, count: int) -> None:
        while len(self.seen) < count and not self.done.is_set():
            await trio.testing.wait_all_tasks_blocked()
        assert self.seen == list(range(self.seen[0], self.seen[0] + count)) if count else not self.seen


# --- where it starts and ends ---------------------------------------------------------------------


async def test_every_offset_is_a_start(world: World, log: Log) -> None:
    await fill(world, log, 3, 1, 4)
    for start in range(18):
        assert await offsets(log, start) == list(range(start, 16))
        assert await offsets(log, start, until=start + 3) == list(range(start, min(16, start + 3)))
    assert await offsets(log, 5, until=5) == []
    assert await offsets(log, 5, until=2) == []


async def test_every_position_is_a_start(world: World, log: Log) -> None:
    await fill(world, log, 3, 1, 4)
    async with log.read() as records:
        positions = [record.position async for record in records]
    for offset, position in enumerate(positions):
        assert await offsets(log, position) == list(range(offset, 16))
        behind = Position(position.ledger_id, position.entry_id, position.slot + 1)
        assert await offsets(log, behind) == list(range(offset + 1, 16))
    assert await offsets(log, Position(0, 3)) == list(range(6, 16)), "behind the last entry of a ledger"
    for bad in (Position(9, 0), Position(0, 4), Position(0, 3, 1), Position(0, 0, 3)):
        with pytest.raises(InvalidArgument):
            await offsets(log, bad)


async def test_a_position_that_cannot_be_read_yet_is_unavailable(world: World, log: Log) -> None:
    async with log.writer() as writer:
        await writer.append(b"0")
        world.hold_all = True
        await writer.submit(b"1")
        await writer.submit(b"2")
        await trio.testing.wait_all_tasks_blocked()
        for position in (Position(0, 2), Position(0, 1, 1)):
            with pytest.raises(EntryUnavailable, match="is not closed"):
                await offsets(log, position)
        world.release()
        await writer.flush()
    with pytest.raises(InvalidArgument, match="has no position"):
        await offsets(log, Position(0, 9))


async def test_every_moment_is_a_start(world: World, log: Log) -> None:
    begun = world.now_ms
    await fill(world, log, 3, 1, 4)
    for entry in range(8):
        written = moment(begun + 10 * (entry + 1))
        for when in (written, written - timedelta(milliseconds=9), written - timedelta(microseconds=1)):
            assert await offsets(log, when) == list(range(2 * entry, 16))
        assert await offsets(log, written + timedelta(microseconds=1)) == list(range(2 * entry + 2, 16))
    assert await offsets(log, datetime(1970, 1, 1, tzinfo=UTC)) == list(range(16))
    assert await offsets(log, datetime(1900, 1, 1)) == list(range(16)), "a naive one is UTC"
    assert await offsets(log, datetime(2999, 1, 1, tzinfo=UTC)) == []


async def test_the_latest_is_behind_what_is_confirmed(world: World, log: Log) -> None:
    assert await offsets(log, "latest") == []
    await fill(world, log, 2)
    assert await offsets(log, "latest") == []
    async with trio.open_nursery() as nursery:
        follower = Follower(nursery, log, "latest", until=6)
        await trio.testing.wait_all_tasks_blocked()
        await fill(world, log, 1)
        await follower.done.wait()
    assert follower.seen == [4, 5]


@pytest.mark.parametrize(
    "bad",
    [
        Position(0, 1, -1),
        Position(0, 1, -5),
        Position(0, -1),
        Position(-1, 0),
        Position(2**63, 0),
        Position(0, 2**63),
    ],
)
async def test_a_position_with_a_number_out_of_range_is_refused_at_once(
    world: World, log: Log, bad: Position
) -> None:
    await fill(world, log, 3)
    with pytest.raises(InvalidArgument, match="does not say where to start"):
        log.read(bad)


@pytest.mark.parametrize("bad", [-1, 2**63, True, 1.5, "newest", None, b"0"])
async def test_what_is_no_place_to_start_is_refused_at_once(log: Log, bad: object) -> None:
    with pytest.raises(InvalidArgument):
        log.read(bad)
    if bad is not None:
        with pytest.raises(InvalidArgument):
            log.read(0, until=bad)


async def test_a_log_that_nobody_ever_led_is_empty(log: Log) -> None:
    assert await offsets(log) == []
    assert await offsets(log, 5) == []
    assert await offsets(log, moment(5)) == []


async def test_empty_ledgers_are_passed_over(world: World, log: Log) -> None:
    for entries in (1, 0, 0, 2, 0):
        await fill(world, log, entries)
    assert await offsets(log) == list(range(6))
    assert await offsets(log, 2) == list(range(2, 6))
    assert await offsets(log, moment(world.now_ms)) == [4, 5]
    assert await offsets(log, Position(1, 0)) == [2, 3, 4, 5]
    assert (await log.info()).next_offset == 6


# --- batches --------------------------------------------------------------------------------------


async def test_batches_are_the_same_records(world: World, log: Log) -> None:
    await fill(world, log, 3, 2)
    async with log.read(3, until=8) as records:
        assert [batch.payloads async for batch in records.batches()] == [[b"3"], [b"4", b"5"], [b"6", b"7"]]
        assert records.next_offset == 8


async def test_both_ways_of_iterating_share_one_place(world: World, log: Log) -> None:
    await fill(world, log, 3)
    async with log.read() as records:
        assert isinstance(records, LogReader)
        assert records.next_offset == 0
        assert (await anext(records)).offset == 0
        batches = records.batches()
        assert (await anext(batches)).payloads == [b"1"]
        assert (await anext(batches)).payloads == [b"2", b"3"]
        assert (await anext(records)).offset == 4
        assert records.next_offset == 5
        assert (await anext(records)).offset == 5
        with pytest.raises(StopAsyncIteration):
            await anext(records)
        with pytest.raises(StopAsyncIteration):
            await anext(batches)


async def test_reading_ahead_is_bounded(world: World, log: Log) -> None:
    async with log.writer() as writer:
        for _ in range(30):
            await writer.append(bytes(1_000_000))
    async with log.read() as records:
        await trio.testing.wait_all_tasks_blocked()
        assert 4_000_000 < records._buffered_bytes <= LOG_READ_AHEAD_BYTES
        assert len([record async for record in records]) == 30


async def test_reading_ahead_is_bounded_by_what_records_take_and_not_by_how_they_were_packed(
    world: World, log: Log
) -> None:
    async with log.writer(compression="zstd") as writer:
        for _ in range(60):
            await writer.append(bytes(1_000_000))
    async with log.read() as records:
        await trio.testing.wait_all_tasks_blocked()
        ahead = sum(batch.byte_length for batch, _ in records._buffer)
        assert 4_000_000 < ahead <= records._buffered_bytes <= LOG_READ_AHEAD_BYTES
        assert len([record async for record in records]) == 60


async def test_nobody_waits_for_a_reader_that_was_left(world: World, log: Log) -> None:
    async with log.writer() as writer:
        await writer.append(b"0")
    waited: list[int] = []
    async with trio.open_nursery() as nursery:

        async def wait(records: LogReader) -> None:
            waited.append((await anext(records)).offset)
            with pytest.raises(ConnectionClosed):
                await anext(records)

        async with log.read(follow=True) as records:
            nursery.start_soon(wait, records)
            await trio.testing.wait_all_tasks_blocked()
    assert waited == [0]
    with pytest.raises(ConnectionClosed):
        await anext(records)


async def test_a_reader_that_was_left_at_the_tail_does_not_end_like_a_whole_log() -> None:
    async with connect("memory:?bookies=3") as cluster:
        log = await cluster.create_log("log")
        async with log.writer() as writer:
            await writer.append(b"0")
            async with log.read(follow=True) as records:
                assert (await anext(records)).data == b"0"
                await trio.testing.wait_all_tasks_blocked(0.01)
            for _ in range(2):
                with pytest.raises(ConnectionClosed, match="was left"):
                    await anext(records)
            with pytest.raises(ConnectionClosed, match="was left"):
                await anext(records.batches())


# --- what is never shown --------------------------------------------------------------------------


async def test_what_is_not_confirmed_is_not_shown(world: World, log: Log) -> None:
    async with log.writer() as writer:
        await writer.append(b"0")
        world.hold_all = True
        await writer.submit(b"1")
        assert await offsets(log) == [0]
        assert (await log.info()).next_offset == 1
        world.release()
        await writer.flush()
        assert await offsets(log) == [0, 1]


async def test_a_newer_ledger_is_not_read_before_the_older_one_has_ended(world: World, log: Log) -> None:
    async with log.writer() as writer, trio.open_nursery() as nursery:
        follower = Follower(nursery, log, until=3)
        await writer.append(b"0")
        world.held.add(0)
        await writer.submit(b"1")
        nursery.start_soon(writer.roll)
        while writer.statistics().ledger_id == 0:
            await trio.testing.wait_all_tasks_blocked()
        await writer.submit(b"2")
        await trio.testing.wait_all_tasks_blocked()
        assert world.ledgers[1].lac == 0
        assert await offsets(log) == [0]
        assert await offsets(log, "latest") == []
        assert await offsets(log, 2) == []
        await follower.until(1)
        world.release()
        await follower.done.wait()
        assert follower.seen == [0, 1, 2]


async def test_what_was_acknowledged_is_read_though_the_ledger_before_it_stays_open(
    world: World, log: Log, autojump_clock: trio.testing.MockClock
) -> None:
    world.held_open.add(0)
    async with log.writer() as writer, trio.open_nursery() as nursery:
        follower = Follower(nursery, log, until=4)
        await writer.append(b"0")
        await follower.until(1)
        nursery.start_soon(writer.roll)
        while writer.statistics().ledger_id == 0:
            await trio.testing.wait_all_tasks_blocked()
        assert await offsets(log) == [0], "nothing is in the new ledger"
        assert (await log.info()).next_offset == 1
        await writer.append_many([b"1", b"2"])
        assert not world.ledgers[0].metadata.is_closed
        assert await offsets(log) == [0, 1, 2]
        assert await offsets(log, 2) == [2]
        assert (await log.info()).next_offset == 3
        async with log.read("latest", follow=True) as records:
            await writer.append(b"3")
            assert (await anext(records)).offset == 3
        await follower.done.wait()
        assert follower.seen == [0, 1, 2, 3]
        assert not world.ledgers[0].metadata.is_closed
        world.release()


async def test_a_reader_that_cannot_know_the_end_gives_what_it_has_and_says_so(
    world: World, log: Log
) -> None:
    async with log.writer() as writer:
        for offset in range(4):
            await writer.append(b"%d" % offset)
        world.known[0] = 1
        for start in (0, 1, 2, 3):
            assert (await read_until_unavailable(log, start))[0] == [*range(start, 2)]
        assert await offsets(log, until=2) == [0, 1], "it need not know the end"
        with pytest.raises(EntryUnavailable):
            await offsets(log, "latest")
        with pytest.raises(EntryUnavailable):
            await log.info()
        assert (await log.counted_info()).next_offset == 0
        world.known.clear()
        assert await offsets(log) == [0, 1, 2, 3]


async def test_a_follower_gets_what_the_answering_bookies_know_and_waits_for_the_rest(
    world: World, log: Log
) -> None:
    async with log.writer() as writer, trio.open_nursery() as nursery:
        for offset in range(4):
            await writer.append(b"%d" % offset)
        world.known[0] = 1
        follower = Follower(nursery, log, until=4)
        await follower.until(2)
        await trio.testing.wait_all_tasks_blocked()
        assert follower.seen == [0, 1]
        world.release()
        await follower.done.wait()
        assert follower.seen == [0, 1, 2, 3]


async def roll_and_hold_open(world: World, writer: LogWriter, nursery: trio.Nursery) -> None:
    """Roll; the older ledger stays open, and too few bookies of the newer one answer."""
    older = writer.statistics().ledger_id
    assert older is not None
    world.held_open.add(older)
    nursery.start_soon(writer.roll)
    while writer.statistics().ledger_id == older:
        await trio.testing.wait_all_tasks_blocked()
    world.known[older + 1] = -1


async def test_a_reader_that_cannot_know_whether_the_log_is_continued_says_so(world: World, log: Log) -> None:
    async with log.writer() as writer, trio.open_nursery() as nursery:
        await writer.append(b"0")
        await roll_and_hold_open(world, writer, nursery)
        await writer.append(b"1")
        seen, failure = await read_until_unavailable(log)
        assert (seen, failure.ledger_id) == ([0], 1)
        with pytest.raises(EntryUnavailable):
            await log.info()
        world.known[1] = 0
        world.known[0] = 0  # The newer ledger begins where it ends, so the rest of it need not be known.
        seen, failure = await read_until_unavailable(log)
        assert (seen, failure.ledger_id) == ([0, 1], 1)
        with pytest.raises(EntryUnavailable):
            await log.info()
        del world.known[1]
        assert await offsets(log) == [0, 1]
        assert await offsets(log, "latest") == []
        assert (await log.info()).next_offset == 2
        world.known.clear()
        assert await offsets(log) == [0, 1]
        world.release()


async def test_the_tail_is_in_the_older_open_ledger_while_more_may_be_confirmed_there(
    world: World, log: Log, autojump_clock: trio.testing.MockClock
) -> None:
    async with log.writer() as writer, trio.open_nursery() as nursery:
        await writer.append(b"0")
        world.held.add(0)
        nursery.start_soon(writer.append, b"1")
        await trio.testing.wait_all_tasks_blocked()
        await roll_and_hold_open(world, writer, nursery)
        world.known.clear()
        assert (await log.info()).next_offset == 1
        follower = Follower(nursery, log, "latest", until=2)
        await trio.testing.wait_all_tasks_blocked()
        world.release()
        with trio.fail_after(10 * LONG_POLL_S):
            await follower.done.wait()
        assert (follower.seen, follower.failure) == ([1], None)


async def test_a_follower_waits_for_bookies_that_know_whether_the_log_is_continued(
    world: World, log: Log, autojump_clock: trio.testing.MockClock
) -> None:
    async with log.writer() as writer, trio.open_nursery() as nursery:
        await writer.append(b"0")
        await roll_and_hold_open(world, writer, nursery)
        await writer.append(b"1")
        follower = Follower(nursery, log, until=2)
        await follower.until(1)
        await trio.sleep(5 * LONG_POLL_S)
        assert (follower.seen, follower.failure) == ([0], None)
        world.known.clear()
        await follower.done.wait()
        assert follower.seen == [0, 1]
        assert not world.ledgers[0].metadata.is_closed
        world.release()


async def leave_a_newer_ledger_that_does_not_continue_the_log(world: World, log: Log) -> None:
    """The older ledger of a roll ends without a record that the newer one follows."""
    world.ends = lambda ledger: ledger.lac
    client = world.client()
    with trio.CancelScope() as scope:
        async with log.writer() as writer:
            await writer.append(b"0")
            world.held.add(0)
            await writer.submit(b"lost")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.roll)
                while writer.statistics().ledger_id == 0:
                    await trio.testing.wait_all_tasks_blocked()
                await writer.submit(b"void")
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
    world.release()
    for ledger_id in (0, 1):
        await client.ledgers.recover(ledger_id)
    assert world.ledgers[1].metadata.last_entry == 0


async def test_a_ledger_that_does_not_continue_the_log_is_passed_over_before_and_after_it_is_counted(
    world: World, log: Log
) -> None:
    """A reader that comes before the next leader has written that down sees it from the entries."""
    await leave_a_newer_ledger_that_does_not_continue_the_log(world, log)
    async with trio.open_nursery() as nursery:
        follower = Follower(nursery, log, until=2)
        assert await offsets(log) == [0]
        assert await offsets(log, "latest") == []
        assert (await log.info()).next_offset == 1
        await follower.until(1)
        async with log.writer() as writer:
            assert (await writer.append(b"1")).offset == 1
        await follower.done.wait()
    assert follower.seen == [0, 1]
    assert await offsets(log) == [0, 1]


async def test_entries_that_belong_to_another_place_are_corrupt(world: World, log: Log) -> None:
    await fill(world, log, 3)
    entries = world.ledgers[0].entries
    entries[1], entries[2] = entries[2], entries[1]
    with pytest.raises(EntryCorrupt, match="entry 1 of ledger 0"):
        await offsets(log)
    entries[1] = b"not an entry"
    async with log.read() as records:
        assert [(await anext(records)).offset for _ in range(2)] == [0, 1], "what came before is given out"
        with pytest.raises(EntryCorrupt, match="entry 1 of ledger 0"):
            await anext(records)
        with pytest.raises(EntryCorrupt):
            await anext(records)


# --- following ------------------------------------------------------------------------------------


async def test_a_follower_sees_every_record_across_rolls_and_takeovers(world: World, log: Log) -> None:
    async with trio.open_nursery() as nursery:
        follower = Follower(nursery, log, until=40)
        await follower.until(0)
        for _ in range(4):
            async with log.writer() as writer:
                for n in range(10):
                    await writer.append(b"x")
                    if n == 5:
                        await writer.roll()
        await follower.done.wait()
    assert follower.failure is None
    assert follower.seen == list(range(40))


async def test_a_follower_passes_from_a_leader_who_vanished_to_the_next(world: World, log: Log) -> None:
    async with trio.open_nursery() as nursery:
        follower = Follower(nursery, log, until=2)
        with trio.CancelScope() as scope:
            async with log.writer() as writer:
                await writer.append(b"0")
                scope.cancel()
                await trio.lowlevel.checkpoint()
        await follower.until(1)
        async with log.writer() as writer:
            await writer.append(b"1")
        await follower.done.wait()
    assert follower.seen == [0, 1]


async def test_a_takeover_just_before_the_watch_does_not_stop_a_follower(world: World, log: Log) -> None:
    """The follower reads the record, and sees no ledger after the one that it has read."""
    async with log.writer() as writer:
        await writer.append(b"0")
    client = world.client()
    client.store = store = FaultyStore(world.tree)
    mine = await open_log(client, "log")
    gets = 0

    async def take_over(call: Call, go_on: GoOn) -> Any:
        nonlocal gets
        found = await go_on()
        if (call.verb, call.path) == ("get", log_record_path(log.incarnation)):
            gets += 1
            if gets == 2:  # The first one was at the beginning.
                store.faults.clear()
                async with log.writer() as writer:
                    await writer.append(b"1")
        return found

    store.faults.append(take_over)
    async with trio.open_nursery() as nursery:
        follower = Follower(nursery, mine)
        for _ in range(5):
            await trio.testing.wait_all_tasks_blocked()
        assert follower.seen == [0, 1]
        nursery.cancel_scope.cancel()
    assert not store.faults


async def test_a_follower_that_starts_beyond_the_tail_waits_for_its_offset(world: World, log: Log) -> None:
    async with trio.open_nursery() as nursery:
        followers = [Follower(nursery, log, start, until=12) for start in (3, 7, 11)]
        await fill(world, log, 2, 4)
        for follower in followers:
            await follower.done.wait()
    assert [follower.seen for follower in followers] == [list(range(n, 12)) for n in (3, 7, 11)]


async def test_following_ends_where_a_log_is_sealed(world: World, log: Log) -> None:
    async with trio.open_nursery() as nursery:
        followers = [Follower(nursery, log), Follower(nursery, log, "latest")]
        await trio.testing.wait_all_tasks_blocked()
        await fill(world, log, 2)
        await log.seal()
        for follower in followers:
            await follower.done.wait()
            assert follower.failure is None
            assert follower.seen == [0, 1, 2, 3]
        late = Follower(nursery, log)
        await late.done.wait()
        assert late.seen == [0, 1, 2, 3]


async def test_a_cancelled_reader_reads_on_where_it_was(world: World, log: Log) -> None:
    async with log.read(follow=True) as records:
        with trio.move_on_after(0) as scope:
            await anext(records)
        assert scope.cancelled_caught
        await fill(world, log, 2)
        assert [(await anext(records)).offset for _ in range(4)] == [0, 1, 2, 3]


# --- truncation, deletion, faults -----------------------------------------------------------------


async def test_an_offset_that_was_truncated_is_told_and_never_skipped(world: World, log: Log) -> None:
    await fill(world, log, 3, 3)
    first = Position(0, 0)
    await log.truncate(8)
    for start in (0, 7, first, Position(1, 0)):
        with pytest.raises(Truncated) as caught:
            await offsets(log, start)
        assert caught.value.first_offset == 8
    assert await offsets(log) == [8, 9, 10, 11]
    assert await offsets(log, moment(0)) == [8, 9, 10, 11]
    assert sorted(world.ledgers) == [1]


async def test_a_reader_that_is_overtaken_by_truncation_is_told(world: World, log: Log) -> None:
    async with log.writer() as writer:
        for _ in range(3):
            await writer.append_many([bytes(1_000_000)] * 10)
            await writer.roll()
    async with log.read() as records:
        assert (await anext(records)).offset == 0
        await trio.testing.wait_all_tasks_blocked()
        await log.truncate(30)
        seen = [0]

        async def read_on() -> None:
            async for record in records:
                seen.append(record.offset)

        with pytest.raises(Truncated) as caught:
            await read_on()
        assert seen == list(range(len(seen))), "what was fetched before is given out without a gap"
        assert caught.value.first_offset == 30
        assert len(seen) < 30


async def test_a_reader_whose_ledger_was_truncated_behind_it_reads_on(world: World, log: Log) -> None:
    await fill(world, log, 3)
    async with trio.open_nursery() as nursery:
        follower = Follower(nursery, log, until=8)
        await follower.until(6)
        await log.truncate(6)
        await fill(world, log, 1)
        await follower.done.wait()
    assert follower.failure is None
    assert follower.seen == list(range(8))


async def test_a_deleted_log_ends_its_readers(world: World, log: Log) -> None:
    await fill(world, log, 1)
    async with trio.open_nursery() as nursery:
        follower = Follower(nursery, log)
        await follower.until(2)
        await delete_log(world.client(), "log")
        await follower.done.wait()
    assert isinstance(follower.failure, LogNotFound)
    with pytest.raises(LogNotFound):
        await offsets(log)


async def crossed(world: World, act: Callable[[], Awaitable[object]], verb: str = "open") -> Log:
    """The log, held by a client. When the client first asks for a ledger, somebody else acts before the
    answer."""
    client = world.client()
    ask = getattr(client.ledgers, verb)

    async def act_and_ask(ledger_id: int) -> object:
        setattr(client.ledgers, verb, ask)
        await act()
        return await ask(ledger_id)

    setattr(client.ledgers, verb, act_and_ask)
    return await open_log(client, "log")


async def vanish(world: World, log: Log) -> None:
    """Leave an open ledger with two records behind."""
    with trio.CancelScope() as scope:
        async with log.writer() as writer:
            offset = writer.next_offset
            await writer.append_many([b"%d" % offset, b"%d" % (offset + 1)])
            scope.cancel()
            await trio.sleep_forever()


async def test_who_looks_while_a_ledger_is_dropped_looks_again(world: World, log: Log) -> None:
    await fill(world, log, 3, 3)
    first_offset = 0

    async def drop() -> None:
        nonlocal first_offset
        await fill(world, log, 3)
        first_offset = (await log.info()).next_offset - 6
        await log.truncate(first_offset)

    for start in ("earliest", moment(0), Position(0, 0), 0, 11):
        mine = await crossed(world, drop)
        if start in ("earliest", moment(0)):
            found = await offsets(mine, start)
            assert found == list(range(first_offset, first_offset + 6))
        else:
            with pytest.raises(Truncated) as caught:
                await offsets(mine, start)
            assert caught.value.first_offset == first_offset
    await vanish(world, log)
    await log.configure(retention=RetentionPolicy(max_bytes=1_000_000))
    for look in (Log.info, Log.why_kept, Log.apply_retention, partial(Log.truncate, before_offset=1_000)):
        mine = await crossed(world, drop)
        if isinstance(look, partial):
            with pytest.raises(InvalidArgument) as refused:
                await look(mine)
            assert f"ends at offset {first_offset + 6}:" in str(refused.value)
        else:
            await look(mine)
        await vanish(world, log)


async def test_who_looks_while_the_log_is_deleted_is_told(world: World, log: Log) -> None:
    async def delete() -> None:
        await delete_log(world.client(), "log")

    for look in (
        lambda log: offsets(log, "latest"),
        lambda log: offsets(log, 0),
        Log.info,
        Log.why_kept,
        Log.apply_retention,
        partial(Log.truncate, before_offset=1),
    ):
        await vanish(world, log)
        await log.configure(retention=RetentionPolicy(max_bytes=1_000_000))
        mine = await crossed(world, delete)
        with pytest.raises(LogNotFound):
            await look(mine)
        log = await create_log(world.client(), "log")


async def test_who_looks_for_a_ledger_that_the_store_has_lost_is_told(world: World, log: Log) -> None:
    await fill(world, log, 3)
    await vanish(world, log)

    async def lose() -> None:
        for ledger_id in list(world.ledgers):
            await world.client().ledgers.delete(ledger_id)

    mine = await crossed(world, lose)
    for _ in range(2):
        with pytest.raises(LedgerNotFound):
            await offsets(mine)
        with pytest.raises(LedgerNotFound):
            await mine.info()


async def test_a_lost_ledger_is_told_though_the_record_changes_whenever_somebody_looks(
    world: World, log: Log
) -> None:
    await vanish(world, log)
    await world.client().ledgers.delete(0)
    client = world.client()
    ask, looks = client.ledgers.open, 0

    async def change_and_ask(ledger_id: int) -> object:
        nonlocal looks
        looks += 1
        if looks < 10:
            await log.configure(retention=RetentionPolicy(max_bytes=1_000_000 + looks))
        return await ask(ledger_id)

    client.ledgers.open = change_and_ask
    with pytest.raises(LedgerNotFound):
        await (await open_log(client, "log")).info()
    assert looks == 1


@contextlib.contextmanager
def entries_lost(lost: set[int], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ledger 0 has lost some entries."""
    read = LedgerReader.read

    async def read_what_is_left(self: LedgerReader, first: int, last: int) -> list[bytes]:
        for entry_id in range(first, last + 1):
            if self.ledger_id == 0 and entry_id in lost:
                raise EntryNotFound(self.ledger_id, entry_id)
        return await read(self, first, last)

    async def read_one(self: LedgerReader, first: int, _: int, **__: object) -> list[bytes]:
        return await self.read(first, first)

    with monkeypatch.context() as patch:
        patch.setattr(LedgerReader, "read", read_what_is_left)
        patch.setattr(LedgerReader, "read_batch", read_one)
        yield


LOST = [{7}, {7, 8, 9}, {0, 4, 8, 12, 16}, {19}, {3, 18, 19}, set(range(1, 20))]


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("lost", LOST, ids=str)
async def test_an_offset_is_found_though_other_entries_of_its_ledger_are_lost(
    world: World, log: Log, lost: set[int], is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with log.writer() as writer:
        for first in range(0, 40, 2):
            await writer.append_many([b"%d" % first, b"%d" % (first + 1)])
        if not is_open:
            await writer.roll()
        with entries_lost(lost, monkeypatch):
            for offset in range(40):
                if offset // 2 in lost:
                    with pytest.raises(EntryNotFound):
                        await offsets(log, offset, until=offset + 1)
                else:
                    assert await offsets(log, offset, until=offset + 1) == [offset]


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("lost", LOST, ids=str)
async def test_a_moment_is_found_though_other_entries_of_its_ledger_are_lost(
    world: World, log: Log, lost: set[int], is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of a lost entry may be as new as those of the entry after it."""
    begun = world.now_ms
    async with log.writer() as writer:
        for entry_id in range(20):
            world.now_ms = begun + 10 * entry_id
            await writer.append_many([b"%d" % (2 * entry_id), b"%d" % (2 * entry_id + 1)])
        if not is_open:
            await writer.roll()
        with entries_lost(lost, monkeypatch):
            for entry_id in range(20):
                start, end = moment(begun + 10 * entry_id), 2 * entry_id + 1
                if {entry_id - 1, entry_id} & lost:
                    with pytest.raises(EntryNotFound):
                        await offsets(log, start, until=end)
                else:
                    assert await offsets(log, start, until=end) == [2 * entry_id]


@pytest.mark.parametrize("start", ["earliest", 3, 5, Position(0, 2)])
async def test_a_closed_ledger_that_is_shorter_than_the_list_counts_is_told(
    world: World, log: Log, start: object
) -> None:
    await fill(world, log, 3, 3)
    ledger = world.ledgers[0]
    ledger.metadata = attrs.evolve(ledger.metadata, last_entry=1)
    client = world.client()
    ask, opened = client.ledgers.open, 0

    async def count_and_ask(ledger_id: int) -> object:
        nonlocal opened
        opened += 1
        assert opened < 10, "the reader opens the ledger for ever"
        return await ask(ledger_id)

    client.ledgers.open = count_and_ask
    seen = []

    async def read_all() -> None:
        async with (await open_log(client, "log")).read(start) as records:
            async for record in records:
                seen.append(record.offset)

    with pytest.raises(EntryNotFound) as caught:
        await read_all()
    assert seen == {"earliest": [0, 1, 2, 3], 3: [3]}.get(start, [])
    assert (caught.value.ledger_id, caught.value.entry_id) == (0, 2)
    assert "up to offset 6" in str(caught.value)


async def test_a_reader_that_looks_for_a_loss_at_the_end_while_a_ledger_is_dropped_reads_on(
    world: World, log: Log
) -> None:
    await leave_a_newer_ledger_that_does_not_continue_the_log(world, log)

    async def drop() -> None:
        async with log.writer() as writer:
            await writer.append(b"1")
            await writer.truncate(1)

    mine = await crossed(world, drop, "metadata")
    assert await offsets(mine) == [0, 1]
    assert 0 not in world.ledgers


async def test_a_reader_compares_what_it_has_read_in_its_own_task(
    world: World, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has lost records that the reader has read. Other followers know the records with their offsets
    before the reader does, and hand them out."""
    find_readable, follow = LedgerReader.find_readable, LedgerTail.follow
    asked: list[int] = []
    handed_out: list[bool] = []

    async def late(self: LedgerReader) -> int:
        last = await find_readable(self)
        asked.append(self.ledger_id)
        return 0 if asked.count(1) == 1 and self.ledger_id == 1 else last

    async def hand_out(self: LedgerTail[Any], first: int, take: Callable[[int, Any], bool]) -> int:
        if self.reader.ledger_id != 1:
            return await follow(self, first, take)
        (entry,) = await self.read(first, first)
        handed_out.append(False)
        with contextlib.suppress(EntryCorrupt):
            handed_out[-1] = not take(first, entry)
        return first

    with trio.CancelScope() as scope:
        async with log.writer() as writer:
            for offset in range(3):
                await writer.append(b"%d" % offset)
            scope.cancel()
            await trio.sleep_forever()
    async with trio.open_nursery() as nursery:
        follower = Follower(nursery, log)
        await follower.until(3)
        ledger = world.ledgers[0]
        del ledger.entries[1:]
        ledger.metadata = ledger.metadata.closed(0, b"lost")
        monkeypatch.setattr(LedgerReader, "find_readable", late)
        monkeypatch.setattr(LedgerTail, "follow", hand_out)
        async with (await open_log(world.client(), "log")).writer() as writer:
            await writer.append(b"new 1")
            await writer.append(b"new 2")
            await writer.truncate(1)
            ledger.tell()
            await follower.done.wait()
    assert isinstance(follower.failure, EntryCorrupt)
    assert "it has lost that record" in str(follower.failure)
    assert handed_out == [True], "it does not take the entry, and raises nothing"


@pytest.mark.parametrize("end", [2, 3])
async def test_a_truncation_gives_up_no_record_that_came_after_the_end_it_found(
    world: World, end: int
) -> None:
    """The open ledger loses its last records after the truncation has found the end of the log, and the next
    leader gives their offsets to other records."""
    client = world.client()
    client.store = store = FaultyStore(world.tree)
    mine = await create_log(client, "log")
    log = await open_log(world.client(), "log")
    with trio.CancelScope() as scope:
        async with log.writer() as writer:
            for offset in range(3):
                await writer.append(b"%d" % offset)
            scope.cancel()
            await trio.sleep_forever()

    async def lose_and_take_over(call: Call, go_on: GoOn) -> Any:
        if (call.verb, call.path) == ("set", log_record_path(log.incarnation)):
            store.faults.clear()
            ledger = world.ledgers[0]
            del ledger.entries[1:]
            ledger.metadata = ledger.metadata.closed(0, b"lost")
            async with log.writer() as writer:
                for offset in range(1, end):
                    await writer.append(b"%d" % offset)
        return await go_on()

    store.faults.append(lose_and_take_over)
    if end < 3:
        with pytest.raises(InvalidArgument, match="ends at offset 2"):
            await mine.truncate(3)
        assert await offsets(log) == [0, 1]
    else:
        await mine.truncate(3)
        assert await offsets(log) == []
    assert not store.faults


async def test_a_store_out_of_reach_is_told(world: World) -> None:
    client = world.client()
    log = await create_log(client, "log")
    await fill(world, log, 1)
    async with log.read(follow=True) as records:
        assert [(await anext(records)).offset for _ in range(2)] == [0, 1]
        await trio.testing.wait_all_tasks_blocked()
        client.store.disconnect()
        with pytest.raises(MetadataUnavailable):
            await offsets(log)
