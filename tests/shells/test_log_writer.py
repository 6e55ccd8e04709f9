"""A log's writer over ledgers in memory: appends, rolls, cancellation, and every way in which it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import attrs
import pytest
import trio
import trio.testing
from fakes.ledgers import Ledgers, LedgerWriter, World, open_world

from ledgerlog.errors import (
    AppendUnknown,
    EntryNotFound,
    InvalidArgument,
    LogListFull,
    LogNotFound,
    LogSealed,
    LostLeadership,
    MetadataUnavailable,
    NotEnoughBookies,
    OffsetMismatch,
    RecordTooLarge,
    RecoveryFailed,
    SessionExpired,
)
from ledgerlog.limits import LOG_CLOSE_TIMEOUT_S, LOG_ENTRY_BYTES_TARGET, RECORD_BYTES_MAX
from ledgerlog.log.log import Log, create_log, delete_log, open_log
from ledgerlog.meta.memory import MemoryStore
from ledgerlog.model.ids import Position
from ledgerlog.model.layout import log_record_path
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.record import Ack
from ledgerlog.testing.faulty_store import Call, FaultyStore, GoOn, before


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as world:
        yield world


@pytest.fixture
async def log(world: World) -> Log:
    return await create_log(world.client(), "log")


async def elsewhere(world: World) -> Log:
    """The same log, opened by another process."""
    return await open_log(world.client(), "log")


async def contents(world: World) -> list[bytes]:
    async with (await elsewhere(world)).read() as records:
        found = [record async for record in records]
    assert [record.offset for record in found] == list(range(len(found)))
    return [record.data for record in found]


async def stored(log: Log) -> LogMetadata:
    metadata, _ = await log._read()
    return metadata


class Outcome:
    """The outcome of a call that runs in its own task."""

    def __init__(self) -> None:
        self.value: object = None
        self.failure: Exception | None = None
        self.scope = trio.CancelScope()
        self.done = trio.Event()


def start(nursery: trio.Nursery, call: object, *args: object, **options: object) -> Outcome:
    outcome = Outcome()

    async def run() -> None:
        with outcome.scope:
            try:
                outcome.value = await call(*args, **options)
            except Exception as failure:
                outcome.failure = failure
        outcome.done.set()

    nursery.start_soon(run)
    return outcome


# --- appending ------------------------------------------------------------------------------------


async def test_records_get_dense_offsets_and_are_read_back_in_order(world: World, log: Log) -> None:
    async with log.writer() as writer:
        assert writer.epoch == 1
        assert await writer.append(b"first") == Ack(0, Position(0, 0, 0), 1, False)
        assert [ack.offset for ack in await writer.append_many([b"a", b"", b"b"])] == [1, 2, 3]
        assert await writer.append_many([]) == []
        submissions = [await writer.submit(b"%d" % n) for n in range(3)]
        assert [(await submission.wait()).offset for submission in submissions] == [4, 5, 6]
        assert (await submissions[0].wait()).offset == 4, "it may be asked again"
        statistics = writer.statistics()
        assert (statistics.records_appended, statistics.durable_offset, writer.next_offset) == (7, 7, 7)
        assert (statistics.records_outstanding, statistics.bytes_outstanding) == (0, 0)
    assert await contents(world) == [b"first", b"a", b"", b"b", b"0", b"1", b"2"]


async def test_an_ack_says_where_the_record_lies(world: World, log: Log) -> None:
    async with log.writer() as writer:
        acks = [await writer.append(b"x"), *await writer.append_many([b"y" * 1000] * 1000)]
    async with log.read() as records:
        assert [(r.offset, r.position, r.epoch) async for r in records] == [
            (a.offset, a.position, a.epoch) for a in acks
        ]
    assert len({ack.position.entry_id for ack in acks}) >= 1_000_000 // LOG_ENTRY_BYTES_TARGET


async def test_what_arrives_while_entries_are_on_their_way_gathers_into_the_next(
    world: World, log: Log
) -> None:
    async with log.writer() as writer, trio.open_nursery() as nursery:
        world.hold_all = True
        outcomes = [start(nursery, writer.append, b"%d" % n) for n in range(100)]
        await trio.testing.wait_all_tasks_blocked()
        assert writer.statistics().entries_appended == 3
        world.release()
        await outcomes[-1].done.wait()
        assert writer.statistics().entries_appended == 4
    assert sorted(o.value.offset for o in outcomes) == list(range(100))


async def test_bytes_like_records_are_copied_and_others_refused(world: World, log: Log) -> None:
    async with log.writer() as writer:
        data = bytearray(b"ab")
        world.hold_all = True
        submission = await writer.submit(data)
        data[:] = b"XY"
        world.release()
        await submission.wait()
        await writer.append(memoryview(b"cd"))
        for bad in ("text", None, 3):
            with pytest.raises(InvalidArgument):
                await writer.append(bad)
        with pytest.raises(InvalidArgument):
            await writer.append_many([b"good", "bad"])
    assert await contents(world) == [b"ab", b"cd"]


async def test_a_record_that_is_too_large_is_refused_before_anything_is_taken(world: World, log: Log) -> None:
    async with log.writer() as writer:
        large = bytes(RECORD_BYTES_MAX)
        with pytest.raises(RecordTooLarge):
            await writer.append(large + b"x")
        with pytest.raises(RecordTooLarge):
            await writer.append_many([b"good", large + b"x"])
        with pytest.raises(RecordTooLarge):
            await writer.submit(large + b"x")
        assert writer.next_offset == 0
        await writer.append(large)
    assert [len(data) for data in await contents(world)] == [RECORD_BYTES_MAX]


async def test_an_atomic_group_lies_in_one_entry(world: World, log: Log) -> None:
    async with log.writer() as writer:
        await writer.append(b"before")
        acks = await writer.append_many([b"x" * 100_000] * 5, atomic=True)
        assert len({ack.position.entry_id for ack in acks}) == 1
        with pytest.raises(RecordTooLarge):
            await writer.append_many([bytes(RECORD_BYTES_MAX)] * 2, atomic=True)


async def test_what_is_no_offset_is_refused_as_expected_offset(world: World, log: Log) -> None:
    async with log.writer() as writer:
        await writer.append(b"a")
        for wrong in ("1", 1.0, True, -1, 2**63):
            with pytest.raises(InvalidArgument, match="is not an offset"):
                await writer.append(b"b", expected_offset=wrong)
        assert (await writer.append(b"b", expected_offset=1)).offset == 1


async def test_what_is_no_offset_or_lies_beyond_the_durable_end_is_refused_by_truncate(
    world: World, log: Log
) -> None:
    async with log.writer() as writer:
        await writer.append(b"a")
        for wrong in ("1", 1.0, True, -1, 2**63):
            with pytest.raises(InvalidArgument, match=r"is not an offset$"):
                await writer.truncate(wrong)
        with pytest.raises(InvalidArgument, match="end at offset 1: it cannot be truncated at 2"):
            await writer.truncate(2)
        assert (await log.info()).first_offset == 0


async def test_a_conditional_append_is_written_at_its_offset_or_not_at_all(world: World, log: Log) -> None:
    async with log.writer() as writer:
        await writer.append(b"a", expected_offset=0)
        with pytest.raises(OffsetMismatch) as caught:
            await writer.append(b"b", expected_offset=5)
        assert (caught.value.expected, caught.value.actual) == (5, 1)
        world.hold_all = True
        async with trio.open_nursery() as nursery:
            outcomes = [start(nursery, writer.append, b"c", expected_offset=1) for _ in range(3)]
            await trio.testing.wait_all_tasks_blocked()
            world.release()
        assert sum(outcome.failure is None for outcome in outcomes) == 1
        assert all(isinstance(o.failure, OffsetMismatch) for o in outcomes if o.failure)
    assert await contents(world) == [b"a", b"c"]


async def test_the_window_makes_appends_wait_and_lets_them_in_one_after_the_other(
    world: World, log: Log
) -> None:
    async with log.writer(window=2) as writer, trio.open_nursery() as nursery:
        world.hold_all = True
        outcomes = [start(nursery, writer.append, b"%d" % n) for n in range(9)]
        many = start(nursery, writer.append_many, [b"m"] * 7)
        await trio.testing.wait_all_tasks_blocked()
        assert writer.statistics().records_outstanding == 2
        assert writer.next_offset == 2
        world.release()
        await many.done.wait()
        for outcome in outcomes:
            await outcome.done.wait()
            assert outcome.failure is None
        assert writer.next_offset == 16


async def test_a_full_ledger_window_is_waited_for(world: World, log: Log) -> None:
    async with log.writer() as writer:
        ledger = world.ledgers[0].writer
        assert ledger is not None
        ledger.window_entries = 1
        acks = await writer.append_many([b"x" * 100_000] * 20)
        assert [ack.offset for ack in acks] == list(range(20))


async def test_flush_waits_for_what_was_taken_before_it(world: World, log: Log) -> None:
    async with log.writer() as writer, trio.open_nursery() as nursery:
        await writer.flush()
        world.hold_all = True
        await writer.submit(b"a")
        flushed = start(nursery, writer.flush)
        await trio.testing.wait_all_tasks_blocked()
        assert not flushed.done.is_set()
        world.release()
        await flushed.done.wait()
        assert writer.statistics().durable_offset == 1


async def test_submit_and_flush_are_checkpoints(log: Log) -> None:
    async with log.writer() as writer:
        with trio.testing.assert_checkpoints():
            await writer.submit(b"a")
        await writer.flush()
        with trio.testing.assert_checkpoints():
            await writer.flush()
        with trio.testing.assert_checkpoints():
            await writer.append_many([])


async def test_timestamps_are_the_leaders_and_never_decrease(world: World, log: Log) -> None:
    times = []
    for step in (5, -100, 3):
        world.now_ms += step
        async with log.writer() as writer:
            await writer.append(b"x")
    async with log.read() as records:
        times = [record.timestamp async for record in records]
    assert times == sorted(times)
    assert times[0] == times[1] == times[2]
    metadata = await stored(log)
    assert metadata.counted_ms == 1_700_000_000_005


# --- cancellation ---------------------------------------------------------------------------------


async def test_an_append_cancelled_before_it_was_sent_is_not_written(world: World, log: Log) -> None:
    async with log.writer() as writer:
        world.hold_all = True
        async with trio.open_nursery() as nursery:
            sent = [start(nursery, writer.append, b"sent%d" % n) for n in range(3)]
            await trio.testing.wait_all_tasks_blocked()
            gathered = [start(nursery, writer.append, b"%d" % n) for n in range(5)]
            await trio.testing.wait_all_tasks_blocked()
            many = start(nursery, writer.append_many, [b"m"] * 4)
            await trio.testing.wait_all_tasks_blocked()
            for outcome in (gathered[1], gathered[3], many):
                outcome.scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert writer.next_offset == 6
            world.release()
        assert sorted(o.value.offset for o in sent) == [0, 1, 2]
        alive = [gathered[n] for n in (0, 2, 4)]
        assert sorted(o.value.offset for o in alive) == [3, 4, 5]
        await writer.append(b"after")
    assert sorted(await contents(world)) == sorted([b"sent0", b"sent1", b"sent2", b"0", b"2", b"4", b"after"])


async def test_an_append_cancelled_after_it_was_sent_leaves_the_writer_usable_and_in_order(
    world: World, log: Log
) -> None:
    async with log.writer() as writer:
        world.hold_all = True
        async with trio.open_nursery() as nursery:
            outcome = start(nursery, writer.append, b"sent")
            await trio.testing.wait_all_tasks_blocked()
            outcome.scope.cancel()
        world.release()
        assert (await writer.append(b"next")).offset == 1
    assert await contents(world) == [b"sent", b"next"]


async def test_a_conditional_append_whose_condition_a_cancellation_broke_is_not_written(
    world: World, log: Log
) -> None:
    async with log.writer() as writer:
        world.hold_all = True
        async with trio.open_nursery() as nursery:
            for n in range(3):
                start(nursery, writer.append, b"%d" % n)
            await trio.testing.wait_all_tasks_blocked()
            first = start(nursery, writer.append, b"cancelled")
            await trio.testing.wait_all_tasks_blocked()
            second = start(nursery, writer.append, b"depends", expected_offset=4)
            await trio.testing.wait_all_tasks_blocked()
            first.scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            world.release()
        assert isinstance(second.failure, OffsetMismatch)
        assert second.failure.actual == 3
    assert len(await contents(world)) == 3


# --- rolling --------------------------------------------------------------------------------------


async def test_a_roll_goes_on_in_a_new_ledger_and_closes_the_old_one(world: World, log: Log) -> None:
    async with log.writer() as writer:
        await writer.append_many([b"a", b"b"])
        await writer.roll()
        assert not writer._leader.core.chain.is_rolling, "the older ledger is counted"
        ack = await writer.append(b"c")
        assert (ack.offset, ack.position.ledger_id) == (2, 1)
        metadata = await stored(log)
        assert [(s.ledger_id, s.epoch, s.record_count) for s in metadata.segments] == [
            (0, 1, 2),
            (1, 1, None),
        ]
        assert world.ledgers[0].metadata.is_closed
        assert writer.statistics().rolls == 1
    assert await contents(world) == [b"a", b"b", b"c"]


async def test_a_ledger_that_an_operator_ended_short_is_not_counted_as_it_was_sent(
    world: World, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    recover = Ledgers.recover

    async def unanswered(writer: LedgerWriter) -> NoReturn:
        raise AppendUnknown("the store did not answer")

    async def short(ledgers: Ledgers, ledger_id: int) -> LedgerMetadata:
        return attrs.evolve(await recover(ledgers, ledger_id), last_entry=0)

    async with log.writer() as a:
        await a.append(b"a")
        await a.append(b"b")
        with monkeypatch.context() as patch:
            patch.setattr(LedgerWriter, "close", unanswered)
            patch.setattr(Ledgers, "recover", short)
            with pytest.raises(LostLeadership):
                await a.roll()
    assert (await stored(log)).segments[0].record_count is None


async def test_an_empty_ledger_is_not_rolled(log: Log) -> None:
    async with log.writer() as writer:
        await writer.roll()
        assert writer.statistics().rolls == 0


async def test_appends_go_on_during_a_roll_and_are_acknowledged_in_order(world: World, log: Log) -> None:
    """The old ledger confirms nothing for a while: the roll is written, new records go to the new ledger, and
    none of them is acknowledged before those of the old one (C05)."""
    async with log.writer() as writer, trio.open_nursery() as nursery:
        await writer.append(b"0")
        world.held.add(0)
        old = start(nursery, writer.append, b"old")
        await trio.testing.wait_all_tasks_blocked()
        rolled = start(nursery, writer.roll)
        while writer.statistics().ledger_id == 0:
            await trio.testing.wait_all_tasks_blocked()
        new = start(nursery, writer.append, b"new")
        await trio.testing.wait_all_tasks_blocked()
        assert world.ledgers[1].lac == 0, "the new ledger has confirmed it"
        assert not new.done.is_set()
        assert not rolled.done.is_set()
        assert not world.ledgers[0].metadata.is_closed
        world.release()
        await new.done.wait()
        assert old.done.is_set()
        await rolled.done.wait()
    assert await contents(world) == [b"0", b"old", b"new"]


async def test_a_log_rolls_by_records_and_by_bytes_with_a_ledger_made_ahead(world: World) -> None:
    for policy in (RollPolicy(max_bytes=None, max_records=10), RollPolicy(max_bytes=100)):
        name = f"log-{policy.max_records}"
        log = await create_log(world.client(), name, roll=policy)
        async with log.writer() as writer:
            before = len(world.created)
            for n in range(8):
                await writer.append(b"%010d" % n)
            await trio.testing.wait_all_tasks_blocked()
            assert len(world.created) == before + 1, "the next ledger was made ahead"
            for n in range(8, 40):
                await writer.append(b"%010d" % n)
                await trio.testing.wait_all_tasks_blocked()
            assert writer.statistics().rolls == 4
        async with log.read() as records:
            assert [record.data async for record in records] == [b"%010d" % n for n in range(40)]


async def test_a_log_rolls_by_age_but_an_empty_ledger_does_not_age(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    log = await create_log(world.client(), "log", roll=RollPolicy(max_age_s=100))
    async with log.writer() as writer:
        await trio.sleep(1000)
        assert writer.statistics().rolls == 0
        await writer.append(b"a")
        await trio.sleep(99)
        assert writer.statistics().rolls == 0
        await trio.sleep(2)
        assert writer.statistics().rolls == 1
        await trio.sleep(1000)
        assert writer.statistics().rolls == 1
        await writer.append(b"b")
        await trio.sleep(101)
        assert writer.statistics().rolls == 2
    assert await contents(world) == [b"a", b"b"]


async def test_a_roll_for_which_the_list_was_too_long_is_made_once_it_is_short(
    world: World, log: Log, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with log.writer() as writer:
        for _ in range(9):
            await writer.append(b"x")
            await writer.roll()
        await writer.append(b"x")
        size = len((await stored(log)).encode())
        monkeypatch.setattr("ledgerlog.model.log.LOG_RECORD_BYTES_MAX", size)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.roll)
            await trio.sleep(10)
            assert len((await stored(log)).segments) == 10
            await log.truncate(9)
        assert len((await stored(log)).segments) == 2


async def test_takeovers_for_which_the_list_is_too_long_leave_no_ledger(
    world: World, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with log.writer() as writer:
        await writer.append(b"x")
    made = await world.client().ledgers.list()
    with monkeypatch.context() as full:
        full.setattr("ledgerlog.model.log.LOG_RECORD_BYTES_MAX", len((await stored(log)).encode()))
        for _ in range(3):
            with pytest.raises(LogListFull):
                async with log.writer():
                    pass
    assert await world.client().ledgers.list() == made
    async with log.writer() as writer:
        assert (await writer.append(b"y")).offset == 1


async def test_a_roll_that_cannot_be_made_now_is_made_later(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    client = world.client()
    log = await create_log(client, "log")
    async with log.writer() as writer, trio.open_nursery() as nursery:
        await writer.append(b"a")
        client.ledgers.unavailable = True
        rolled = start(nursery, writer.roll)
        await trio.sleep(30)
        assert not rolled.done.is_set()
        assert (await writer.append(b"b")).position.ledger_id == 0
        client.store.disconnect()
        client.ledgers.unavailable = False
        await trio.sleep(30)
        assert not rolled.done.is_set()
        assert (await writer.append(b"c")).offset == 2
        client.store.reconnect()
        await rolled.done.wait()
        assert rolled.failure is None
    assert await contents(world) == [b"a", b"b", b"c"]


async def test_a_truncation_by_somebody_else_does_not_stop_the_leader(world: World, log: Log) -> None:
    async with log.writer() as writer:
        await writer.append_many([b"a", b"b", b"c"])
        await writer.roll()
        await (await elsewhere(world)).truncate(2)
        await writer.append(b"d")
        await writer.roll()
        await (await elsewhere(world)).truncate(3)
        await writer.append(b"e")
    metadata = await stored(log)
    assert [s.ledger_id for s in metadata.segments] == [1, 2]
    assert metadata.first_offset == 3
    async with log.read() as records:
        assert [(r.offset, r.data) async for r in records] == [(3, b"d"), (4, b"e")]


# --- taking over ----------------------------------------------------------------------------------


async def test_a_takeover_deposes_the_leader_and_keeps_what_he_acknowledged(world: World, log: Log) -> None:
    async with log.writer() as a:
        await a.append(b"a")
        async with (await elsewhere(world)).writer() as b:
            assert b.epoch == 2
            assert (await b.append(b"b")).offset == 1
            with pytest.raises(LostLeadership) as caught:
                await a.append(b"never")
            assert caught.value.epoch == 2
            with pytest.raises(LostLeadership):
                await a.append_many([b"never"] * 3)
            with pytest.raises(LostLeadership):
                await a.submit(b"never")
            with pytest.raises(LostLeadership):
                await a.roll()
            assert isinstance(a.failure, LostLeadership)
    assert await contents(world) == [b"a", b"b"]


async def test_who_is_refused_is_told_of_a_successor_that_came_since(world: World, log: Log) -> None:
    async with log.writer() as a:
        await a.append(b"a")
        await world.client().ledgers.recover(0)  # It fences the leader, and writes no epoch.
        with pytest.raises(LostLeadership) as caught:
            await a.append(b"b")
        assert caught.value.epoch is None
        async with (await elsewhere(world)).writer() as b:
            with pytest.raises(LostLeadership) as caught:
                await a.append(b"c")
            assert caught.value.epoch == b.epoch == 2


async def test_an_idle_leader_learns_of_its_successor_by_itself(world: World, log: Log) -> None:
    async with log.writer() as a, (await elsewhere(world)).writer():
        while a.failure is None:
            await trio.testing.wait_all_tasks_blocked()
    assert isinstance(a.failure, LostLeadership)


class WatchLater:
    """A store whose watches are opened only once it may be reached again, and end when it is lost."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.reachable = trio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def lose(self) -> None:
        self.reachable = trio.Event()
        self._store._tree._watches.changed_somewhere()

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncIterator[WatchLater]:
        await self.reachable.wait()
        async with self._store.watch(path) as watch:
            self._watch = watch
            yield self

    async def wait(self) -> None:
        await self._watch.wait()
        if not self.reachable.is_set():
            raise SessionExpired("the session is over")


@pytest.mark.parametrize("when", ["before its record is watched", "while the store is away"])
async def test_an_idle_leader_learns_of_a_successor_who_came_while_nothing_was_watched(
    world: World, log: Log, when: str, autojump_clock: trio.testing.MockClock
) -> None:
    client = world.client()
    client.store = store = WatchLater(client.store)
    if when == "while the store is away":
        store.reachable.set()
    async with (await open_log(client, "log")).writer() as a:
        await trio.testing.wait_all_tasks_blocked()
        if store.reachable.is_set():
            store.lose()
            await trio.testing.wait_all_tasks_blocked()
        async with (await elsewhere(world)).writer():
            store.reachable.set()
            with trio.fail_after(60):
                await a.wait_over()
    assert isinstance(a.failure, LostLeadership)


async def test_an_idle_leader_that_could_not_read_the_record_reads_it_again(
    world: World, log: Log, autojump_clock: trio.testing.MockClock
) -> None:
    client = world.client()
    client.store = store = FaultyStore(world.tree)
    async with (await open_log(client, "log")).writer() as a:
        await trio.testing.wait_all_tasks_blocked()

        async def away_once(call: Call) -> None:
            if (call.verb, call.path) == ("get", log_record_path(log.incarnation)):
                store.faults.clear()
                raise MetadataUnavailable("no answer")

        store.faults.append(before(away_once))
        async with (await elsewhere(world)).writer():
            with trio.fail_after(60):
                await a.wait_over()
        assert not store.faults
    assert isinstance(a.failure, LostLeadership)


async def test_an_idle_leader_learns_of_a_successor_who_came_while_it_read_the_record(
    world: World, log: Log, autojump_clock: trio.testing.MockClock
) -> None:
    client = world.client()
    client.store = store = FaultyStore(world.tree)
    async with (await open_log(client, "log")).writer() as a:
        await trio.testing.wait_all_tasks_blocked()

        async def succeeded(call: Call, go_on: GoOn) -> Any:
            found = await go_on()
            if (call.verb, call.path) == ("get", log_record_path(log.incarnation)):
                store.faults.clear()
                async with (await elsewhere(world)).writer():
                    await trio.sleep(1)
            return found

        store.faults.append(succeeded)
        await (await elsewhere(world)).update_properties({"a": "b"})  # The leader reads the record.
        with trio.fail_after(60):
            await a.wait_over()
        assert not store.faults
    assert isinstance(a.failure, LostLeadership)


@pytest.mark.parametrize("kept", [True, False])
async def test_an_append_under_way_at_a_takeover_is_answered_by_where_recovery_ends(
    world: World, log: Log, kept: bool
) -> None:
    world.ends = lambda ledger: len(ledger.entries) - 1 if kept else ledger.lac
    async with log.writer() as a, trio.open_nursery() as nursery:
        await a.append(b"0")
        world.hold_all = True
        sent = start(nursery, a.append, b"sent")
        await trio.testing.wait_all_tasks_blocked()
        world.release()
        world.hold_all = True
        async with (await elsewhere(world)).writer() as b:
            await sent.done.wait()
            world.release()
            ack = await b.append(b"b")
        if kept:
            assert sent.value == Ack(1, Position(0, 1, 0), 1)
            assert ack.offset == 2
        else:
            assert isinstance(sent.failure, LostLeadership)
            assert ack.offset == 1
    assert await contents(world) == ([b"0", b"sent", b"b"] if kept else [b"0", b"b"])


async def test_what_cannot_be_found_out_is_unknown_and_what_was_not_sent_is_lost(
    world: World, log: Log
) -> None:
    async with log.writer() as writer, trio.open_nursery() as nursery:
        world.hold_all = True
        sent = [start(nursery, writer.append, b"sent") for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        queued = start(nursery, writer.append, b"queued")
        many = start(nursery, writer.append_many, [b"m"] * 3)
        flushed = start(nursery, writer.flush)
        await trio.testing.wait_all_tasks_blocked()
        world.recovery_fails.add(0)
        world.fence(0)
        for outcome in (*sent, queued, many, flushed):
            await outcome.done.wait()
        assert all(isinstance(outcome.failure, AppendUnknown) for outcome in sent)
        assert isinstance(sent[0].failure.__cause__, LostLeadership)
        assert isinstance(queued.failure, LostLeadership)
        assert isinstance(many.failure, LostLeadership)
        assert isinstance(flushed.failure, AppendUnknown)
        with pytest.raises(LostLeadership):
            await writer.append(b"later")


async def test_a_record_whose_condition_failed_is_not_unknown_though_its_batch_is(
    world: World, log: Log
) -> None:
    async with log.writer() as writer, trio.open_nursery() as nursery:
        world.hold_all = True
        world.confirm_steps = lambda: 100  # So the batch after the first three is not confirmed at once.
        sent = [start(nursery, writer.append, b"%d" % n) for n in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        first = start(nursery, writer.append, b"cancelled")
        await trio.testing.wait_all_tasks_blocked()
        conditional = start(nursery, writer.append, b"depends", expected_offset=4)
        await trio.testing.wait_all_tasks_blocked()
        other = start(nursery, writer.append, b"sent")
        await trio.testing.wait_all_tasks_blocked()
        first.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        world.release()
        for outcome in sent:
            await outcome.done.wait()
        world.hold_all = True
        await trio.testing.wait_all_tasks_blocked()
        assert not conditional.done.is_set()
        world.recovery_fails.add(0)
        world.fence(0)
        for outcome in (conditional, other):
            await outcome.done.wait()
        assert isinstance(other.failure, AppendUnknown)
        assert isinstance(conditional.failure, OffsetMismatch)


@pytest.mark.parametrize("end", ["deposed", "left"])
async def test_nobody_waits_for_a_ledger_that_is_made_ahead(
    world: World, autojump_clock: trio.testing.MockClock, end: str
) -> None:
    """Too few bookies are available for the next ledger. The leadership ends without waiting for them."""
    client = world.client()
    log = await create_log(client, "log", roll=RollPolicy(max_records=4))
    making = trio.Event()

    async def create(**_: object) -> NoReturn:
        making.set()
        await trio.sleep_forever()

    async with log.writer() as writer, trio.open_nursery() as nursery:
        for _ in range(2):
            await writer.append(b"x")
        client.ledgers.create = create
        await writer.append(b"x")
        await making.wait()
        begun = trio.current_time()
        if end == "deposed":
            world.hold_all = True
            outcome = start(nursery, writer.append, b"under way")
            await trio.testing.wait_all_tasks_blocked()
            async with (await elsewhere(world)).writer():
                await outcome.done.wait()
    assert trio.current_time() - begun < 1


async def test_append_many_says_how_much_of_it_is_in_the_log(world: World, log: Log) -> None:
    world.ends = lambda ledger: 1
    async with log.writer() as writer, trio.open_nursery() as nursery:
        world.hold_all = True
        many = start(nursery, writer.append_many, [b"x" * 100_000] * 10)
        await trio.testing.wait_all_tasks_blocked()
        async with (await elsewhere(world)).writer():
            await many.done.wait()
    assert isinstance(many.failure, AppendUnknown)
    kept = len(await contents(world))
    assert 0 < kept < 10
    assert f"of 10 records the first {kept} are in the log, the next 0 may" in str(many.failure)


async def test_a_takeover_in_the_middle_of_a_roll_keeps_a_prefix_of_what_was_submitted(
    world: World, log: Log
) -> None:
    """The old ledger loses its last entry, the new one has confirmed what came after: C05 and the void
    segment. Nothing of the new ledger was acknowledged, and nothing of it is in the log."""
    world.ends = lambda ledger: ledger.lac
    async with log.writer() as a, trio.open_nursery() as nursery:
        await a.append(b"0")
        world.held.add(0)
        old = start(nursery, a.append, b"old")
        await trio.testing.wait_all_tasks_blocked()
        start(nursery, a.roll)
        while a.statistics().ledger_id == 0:
            await trio.testing.wait_all_tasks_blocked()
        new = start(nursery, a.append, b"new")
        await trio.testing.wait_all_tasks_blocked()
        assert world.ledgers[1].lac == 0
        async with (await elsewhere(world)).writer() as b:
            assert (await b.append(b"b")).offset == 1
            await new.done.wait()
        assert isinstance(old.failure, LostLeadership)
        assert isinstance(new.failure, LostLeadership)
    assert await contents(world) == [b"0", b"b"]
    assert [s.record_count for s in (await stored(log)).segments] == [1, 0, 1]


async def test_entering_raises_what_stands_in_the_way(world: World, log: Log) -> None:
    async with log.writer() as writer:
        await writer.append(b"a")
        world.recovery_fails.add(0)
        other = await elsewhere(world)
        with pytest.raises(RecoveryFailed):
            async with other.writer():
                raise AssertionError("not reached")
        assert list(world.ledgers) == [0], "nothing is left behind"
        world.recovery_fails.clear()
    await log.seal()
    with pytest.raises(LogSealed):
        async with log.writer():
            raise AssertionError("not reached")
    await delete_log(world.client(), "log")
    with pytest.raises(LogNotFound):
        async with log.writer():
            raise AssertionError("not reached")
    with pytest.raises(InvalidArgument):
        log.writer(window=0)


async def gone(world: World, log: Log, ledger_id: int) -> None:
    """Retention drops the ledger. A leader that left while it did so leaves the deletion to a sweep."""
    await log.apply_retention()
    if ledger_id in world.ledgers:
        await world.client().ledgers.delete(ledger_id)


@pytest.mark.parametrize("is_cleared", [False, True])
@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_takeover_starts_over_if_its_ledger_is_gone_by_the_hand_of_a_rival(
    world: World, is_deleted: bool, is_cleared: bool
) -> None:
    client = world.client()
    log = await create_log(client, "log", retention=RetentionPolicy(max_bytes=1))
    rival = await open_log(world.client(), "log")
    with trio.CancelScope() as scope:
        async with rival.writer() as writer:
            await writer.append(b"0123456789")
            scope.cancel()
            await trio.sleep_forever()
    crossed: list[int] = []

    def cross(ask: Callable[[int], Awaitable[object]]) -> Callable[[int], Awaitable[object]]:
        async def crossed_ask(ledger_id: int) -> object:
            if not crossed:
                crossed.append(ledger_id)
                async with rival.writer() as writer:
                    await writer.append(b"0123456789")
                    await writer.roll()
                await gone(world, rival, ledger_id)
                if is_deleted:
                    await delete_log(world.client(), "log")
                if is_cleared:
                    raise EntryNotFound(ledger_id, 0, "the bookies have cleared their space")
            return await ask(ledger_id)

        return crossed_ask

    if is_cleared:
        client.ledgers.open = cross(client.ledgers.open)
    else:
        client.ledgers.recover = cross(client.ledgers.recover)
    if is_deleted:
        with pytest.raises(LogNotFound):
            async with log.writer():
                pass
    else:
        async with log.writer() as writer:
            assert (await writer.append(b"x")).offset == 2
    assert crossed[0] not in world.ledgers


@pytest.mark.parametrize("is_table", [False, True])
async def test_a_takeover_tells_a_lost_ledger_though_the_record_changes_whenever_it_looks(
    world: World, is_table: bool
) -> None:
    """Whether it recovers the ledger, or reads the table of producers from it."""
    client = world.client()
    log = await create_log(client, "log")
    with trio.CancelScope() as scope:
        async with log.writer(dedupe=is_table) as writer:
            await writer.append(b"a")
            if not is_table:
                scope.cancel()
                await trio.sleep_forever()
    looks = 0

    async def change_and_miss(ledger_id: int) -> object:
        nonlocal looks
        looks += 1
        if looks < 10:
            await log.configure(retention=RetentionPolicy(max_bytes=1_000_000 + looks))
        raise EntryNotFound(ledger_id, 0, "bookies have lost it")

    client.ledgers.open = change_and_miss
    with pytest.raises(EntryNotFound):
        async with log.writer():
            pass
    assert looks == 1


@pytest.mark.parametrize("is_cleared", [False, True])
async def test_a_leader_is_deposed_before_it_leads_if_the_table_of_producers_is_gone_by_the_hand_of_a_rival(
    world: World, is_cleared: bool
) -> None:
    client = world.client()
    log = await create_log(client, "log")
    rival = await open_log(world.client(), "log")
    async with log.writer(producer="p", dedupe=True) as writer:
        await writer.append(b"0123456789", sequence=0)
    open_ledger = client.ledgers.open
    crossed: list[int] = []

    async def crossed_open(ledger_id: int) -> object:
        if not crossed:
            crossed.append(ledger_id)
            async with rival.writer() as writer:
                await writer.append(b"0123456789")
                await writer.roll()
                await writer.truncate(2)
            await gone(world, rival, ledger_id)
            if is_cleared:
                raise EntryNotFound(ledger_id, 0, "the bookies have cleared their space")
        return await open_ledger(ledger_id)

    client.ledgers.open = crossed_open
    with pytest.raises(LostLeadership, match="another writer has taken over"):
        async with log.writer():
            pass
    assert crossed
    async with log.writer() as writer:
        assert (await writer.append(b"x")).offset == 2


async def test_a_takeover_that_is_cancelled_leaves_no_ledger(world: World, log: Log) -> None:
    for steps in range(1, 12):
        with trio.CancelScope() as scope:
            world.recovery_steps = 0

            async def cancel_after(steps: int = steps, scope: trio.CancelScope = scope) -> None:
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_after)
                async with log.writer():
                    await trio.sleep_forever()
        metadata = await stored(log)
        listed = {segment.ledger_id for segment in metadata.segments}
        # If the call is cancelled during the write, the ledger may be listed or not. It stays in both cases.
        assert listed <= set(world.ledgers)
        assert len(set(world.ledgers) - listed) <= 1
        for ledger_id in set(world.ledgers) - listed:
            del world.ledgers[ledger_id]


# --- the end --------------------------------------------------------------------------------------


async def test_leaving_sends_what_was_taken_closes_the_ledger_and_counts_it(world: World, log: Log) -> None:
    world.confirm_steps = lambda: 20
    async with log.writer() as writer:
        submissions = [await writer.submit(b"%d" % n) for n in range(50)]
    assert [(await submission.wait()).offset for submission in submissions] == list(range(50))
    metadata = await stored(log)
    assert metadata.open_segments == ()
    assert metadata.counted_end == 50
    with pytest.raises(LostLeadership, match="was left"):
        await writer.append(b"after")
    assert len(await contents(world)) == 50


async def test_leaving_during_a_roll_ends_the_roll(world: World, log: Log) -> None:
    world.confirm_steps = lambda: 5
    async with log.writer() as writer, trio.open_nursery() as nursery:
        await writer.append(b"a")
        start(nursery, writer.roll)
        await writer.submit(b"b")
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    metadata = await stored(log)
    assert metadata.open_segments == ()
    assert set(world.ledgers) == {s.ledger_id for s in metadata.segments}, "no spare is left behind"
    assert await contents(world) == [b"a", b"b"]


async def test_leaving_drops_a_roll_for_which_the_list_has_no_room(
    world: World, log: Log, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trio.open_nursery() as nursery:
        async with log.writer() as writer:
            await writer.append(b"a")
            monkeypatch.setattr("ledgerlog.model.log.LOG_SEGMENTS_MAX", 1)
            rolled = start(nursery, writer.roll)
            await trio.sleep(5)
            begun = trio.current_time()
        assert trio.current_time() - begun < 1
    assert isinstance(rolled.failure, LostLeadership)
    assert (await stored(log)).segments[-1].is_counted
    assert sorted(world.ledgers) == [0], "the ledger that was made ahead is deleted"


async def test_what_the_body_raises_comes_out_as_it_is(log: Log) -> None:
    class Oops(Exception):
        pass

    async def write_and_fail() -> None:
        async with log.writer() as writer:
            await writer.append(b"a")
            raise Oops

    async def read_and_fail() -> None:
        async with log.read() as records:
            async for _ in records:
                raise Oops

    with pytest.raises(Oops):
        await write_and_fail()
    assert (await stored(log)).open_segments == (), "an error of the body is no reason not to close"
    with pytest.raises(Oops):
        await read_and_fail()


async def test_a_cancelled_body_leaves_the_ledger_to_the_next_leader(world: World, log: Log) -> None:
    with trio.CancelScope() as scope:
        async with log.writer() as writer:
            await writer.append(b"a")
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert len((await stored(log)).open_segments) == 1
    async with log.writer() as writer:
        assert (await writer.append(b"b")).offset == 1
    assert await contents(world) == [b"a", b"b"]


async def test_a_cancelled_body_leaves_no_ledger_that_was_made_ahead(world: World) -> None:
    log = await create_log(world.client(), "log", roll=RollPolicy(max_records=4))
    with trio.CancelScope() as scope:
        async with log.writer() as writer:
            for _ in range(3):
                await writer.append(b"x")
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(world.ledgers) == [0, 1]
            scope.cancel()
            await trio.sleep_forever()
    assert sorted(world.ledgers) == [0]


async def test_nobody_waits_for_ever_when_the_body_is_cancelled(world: World, log: Log) -> None:
    world.hold_all = True
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with log.writer(window=2) as writer:
                outcomes = [start(nursery, writer.append, b"%d" % n) for n in range(5)]
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
                await trio.sleep_forever()
        for outcome in outcomes:
            await outcome.done.wait()
        kinds = sorted(type(outcome.failure).__name__ for outcome in outcomes)
        assert kinds == ["AppendUnknown"] * 2 + ["LostLeadership"] * 3


async def test_leaving_with_records_that_cannot_be_brought_to_an_end_says_so(
    world: World, log: Log, autojump_clock: trio.testing.MockClock
) -> None:
    world.hold_all = True
    begun = trio.current_time()
    with pytest.raises(AppendUnknown, match="1 records may or may not"):
        async with log.writer() as writer:
            await writer.submit(b"a")
    assert trio.current_time() - begun <= LOG_CLOSE_TIMEOUT_S + 1


async def test_leaving_without_metadata_leaves_the_ledger_open_and_loses_nothing(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    client = world.client()
    log = await create_log(client, "log")
    async with log.writer() as writer:
        await writer.append(b"a")
        client.store.disconnect()
    client.store.reconnect()
    assert await contents(world) == [b"a"]
    async with log.writer() as writer:
        assert (await writer.append(b"b")).offset == 1


async def test_a_ledger_without_bookies_ends_the_leadership_with_that_reason(world: World, log: Log) -> None:
    async with log.writer() as writer, trio.open_nursery() as nursery:
        world.hold_all = True
        world.ends = lambda ledger: ledger.lac
        outcome = start(nursery, writer.append, b"a")
        await trio.testing.wait_all_tasks_blocked()
        ledger = world.ledgers[0].writer
        assert ledger is not None
        ledger.end(NotEnoughBookies("all are gone"))
        await outcome.done.wait()
        assert isinstance(outcome.failure, NotEnoughBookies)
        with pytest.raises(NotEnoughBookies):
            await writer.append(b"b")
    assert await contents(world) == []


async def test_sealing_or_deleting_a_log_ends_its_leader(world: World, log: Log) -> None:
    async with log.writer() as writer:
        await writer.append(b"a")
        await (await elsewhere(world)).seal()
        with pytest.raises(LogSealed):
            await writer.append(b"b")
    await log.seal()
    other = await create_log(world.client(), "other")
    async with other.writer() as writer:
        await writer.append(b"a")
        await delete_log(world.client(), "other")
        while writer.failure is None:
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(LostLeadership, match="deleted"):
            await writer.append(b"b")


@pytest.mark.parametrize("is_fenced", [False, True])
async def test_a_leader_whose_record_is_lost_does_not_say_that_the_log_was_deleted(
    world: World, log: Log, is_fenced: bool
) -> None:
    async with log.writer() as writer:
        await writer.append(b"a")
        if is_fenced:
            world.fence(0)
            with pytest.raises(LostLeadership):
                await writer.append(b"b")
        await world.client().store.delete(log_record_path(log.incarnation))
        while writer.failure is None:
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(LostLeadership, match="lost the record of log 'log'"):
            await writer.append(b"c")


async def test_one_of_many_callers_failing_does_not_show_in_another_ones_traceback(
    world: World, log: Log
) -> None:
    async with log.writer() as writer, trio.open_nursery() as nursery:
        world.hold_all = True
        world.ends = lambda ledger: ledger.lac
        outcomes = [start(nursery, writer.append, b"x") for _ in range(20)]
        await trio.testing.wait_all_tasks_blocked()
        world.fence(0)
        for outcome in outcomes:
            await outcome.done.wait()
    assert len({id(outcome.failure) for outcome in outcomes}) == 20


@pytest.mark.parametrize("end", ["takeover", "cancellation", "deletion", "leaving"])
async def test_a_roll_that_is_waited_for_ends_with_the_leadership(world: World, log: Log, end: str) -> None:
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with log.writer() as writer:
                await writer.append(b"a")
                world.held.add(0)
                submission = await writer.submit(b"b")
                rolled = start(nursery, writer.roll)
                while writer.statistics().ledger_id == 0:
                    await trio.testing.wait_all_tasks_blocked()
                match end:
                    case "takeover":
                        async with (await elsewhere(world)).writer():
                            await rolled.done.wait()
                    case "deletion":
                        await delete_log(world.client(), "log")
                        await rolled.done.wait()
                    case "cancellation":
                        scope.cancel()
                    case _:
                        world.release()
        await rolled.done.wait()
        assert isinstance(rolled.failure, LostLeadership) or (end == "leaving" and rolled.failure is None)
        if end == "leaving":
            assert (await submission.wait()).offset == 1


async def test_a_leader_that_leaves_closes_its_ledger_if_the_last_queued_record_is_taken_back(
    world: World, log: Log, autojump_clock: trio.testing.MockClock
) -> None:
    """The window of the ledger is full although all entries are confirmed, as with a guaranteed write
    quorum."""
    begun = trio.current_time()
    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery, log.writer() as writer:
        await writer.append(b"0")
        ledger = world.ledgers[writer.statistics().ledger_id]
        assert ledger.writer is not None
        ledger.writer.window_entries = 0

        async def append() -> None:
            with scope:
                await writer.append(b"1")

        async def cancel() -> None:
            await trio.sleep(1)
            scope.cancel()

        nursery.start_soon(append)
        nursery.start_soon(cancel)
        await trio.testing.wait_all_tasks_blocked()
    assert trio.current_time() - begun < 2
    assert ledger.metadata.is_closed
    assert (await log.info()).next_offset == 1
