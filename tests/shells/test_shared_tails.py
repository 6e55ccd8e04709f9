"""Followers of one log in one process share the work. They ask once, and each sees every record."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from random import Random
from typing import cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ledgerlog.cluster import Cluster, connect
from ledgerlog.errors import EntryCorrupt
from ledgerlog.ledger.reader import LedgerReader
from ledgerlog.ledger.tail import LedgerTail, _Turn
from ledgerlog.limits import LOG_READ_AHEAD_BYTES
from ledgerlog.log.log import Log
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.quorum import Replication

RECORDS = 20


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with connect("memory:?bookies=3") as cluster:
        yield cluster


class Follower:
    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.scope = trio.CancelScope()
        self.at_tail = trio.Event()

    async def run(self, log: Log) -> None:
        with self.scope:
            async with log.read(follow=True) as records:
                async for record in records:
                    self.seen.append(record.data)
                    self.at_tail.set()


def answered(cluster: Cluster) -> int:
    return sum(each.requests_answered for each in cluster.client.pool.statistics().connections)


async def reached(condition: Callable[[], bool]) -> None:
    """Wait for a condition as long as tasks may bring it about."""
    for _ in range(1000):
        if condition():
            return
        await wait_all_tasks_blocked()
    raise AssertionError("nothing goes on, and it has not happened")


async def start(nursery: trio.Nursery, log: Log, writer: LogWriter, them: list[Follower]) -> None:
    """Append a first record, and let followers read up to it."""
    await writer.append(b"first")
    for each in them:
        nursery.start_soon(each.run, log)
    for each in them:
        await each.at_tail.wait()
    await wait_all_tasks_blocked()


async def append_and_see(writer: LogWriter, them: list[Follower]) -> None:
    """Append records one by one. Wait for each until all followers have it."""
    for number in range(RECORDS):
        await writer.append(b"%d" % number)
        await reached(lambda n=number: all(len(each.seen) >= n + 2 for each in them))


async def asked_for_each_record(cluster: Cluster, name: str, followers: int) -> float:
    log = await cluster.create_log(name, replication=Replication(3, 3, 2))
    them = [Follower() for _ in range(followers)]
    async with log.writer() as writer, trio.open_nursery() as nursery:
        await start(nursery, log, writer, them)
        before = answered(cluster)
        await append_and_see(writer, them)
        asked = answered(cluster) - before
        nursery.cancel_scope.cancel()
    for each in them:
        assert each.seen == [b"first", *(b"%d" % number for number in range(RECORDS))]
    return asked / RECORDS


async def test_forty_followers_ask_no_more_than_one(cluster: Cluster) -> None:
    # A record costs a read and a poll of each bookie, and now and then the last confirmed entry comes late.
    one = await asked_for_each_record(cluster, "one", 1)
    forty = await asked_for_each_record(cluster, "forty", 40)
    assert 1 <= forty <= one + 2, (one, forty)


class Steps(trio.abc.Instrument):
    """Counts the steps of the tasks that fetch for followers."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.startswith("log reader")


async def test_the_task_that_fetches_sleeps_while_another_follower_hands_it_records(cluster: Cluster) -> None:
    log = await cluster.create_log("log", replication=Replication(3, 3, 2))
    them, steps = [Follower() for _ in range(20)], Steps()
    async with log.writer() as writer, trio.open_nursery() as nursery:
        await start(nursery, log, writer, them)
        trio.lowlevel.add_instrument(steps)
        await append_and_see(writer, them)
        trio.lowlevel.remove_instrument(steps)
        nursery.cancel_scope.cancel()
    # One of them does the work: it polls, reads, and polls again.
    assert 0 < steps.count < 12 * RECORDS, steps.count


async def test_a_follower_takes_over_from_one_that_cannot_go_on(cluster: Cluster) -> None:
    async with await cluster.ledgers.create(replication=Replication(3, 3, 2)) as writer:
        reader = await cluster.ledgers.open(writer.ledger_id)
        tail = LedgerTail(reader, lambda entry_id, payload: (payload, len(payload)), kept_bytes_max=1_000)
        taken: dict[str, list[int]] = {}
        ended: dict[str, int] = {}

        async def follow(name: str, room: int, scope: trio.CancelScope) -> None:
            mine = taken[name] = []

            def take(entry_id: int, item: bytes) -> bool:
                if len(mine) < room:
                    mine.append(entry_id)
                    return True
                return False

            with scope:
                ended[name] = await tail.follow(0, take)

        async with trio.open_nursery() as nursery:
            scopes = {name: trio.CancelScope() for name in ("one", "full", "left", "last")}
            for name, room in (("one", 2), ("full", 1), ("left", 9), ("last", 9)):
                nursery.start_soon(follow, name, room, scopes[name])
                await wait_all_tasks_blocked()
            for number in range(4):
                if number == 3:
                    scopes["left"].cancel()
                await writer.append(b"%d" % number)
                await reached(lambda n=number: len(taken["last"]) > n)
            assert taken == {"one": [0, 1], "full": [0], "left": [0, 1, 2], "last": [0, 1, 2, 3]}
            assert ended == {"one": 2, "full": 1}
            scopes["last"].cancel()
        assert not tail._at_end


class Scripted:
    """A ledger's reader. ``wait_beyond`` waits for ``grow``, and then returns the last entry."""

    def __init__(self) -> None:
        self.is_closed = False
        self.readable = -1
        self.polled: list[int] = []
        self._grown = trio.Event()

    async def wait_beyond(self, entry_id: int) -> int:
        self.polled.append(entry_id)
        while True:
            before = self.readable
            await self._grown.wait()
            if self.readable > entry_id or self.readable == before:  # It grew by nothing: the poll is over.
                return self.readable

    async def read_batch(self, first: int, last: int, *, bytes_max: int) -> list[bytes]:
        return [b"%d" % entry_id for entry_id in range(first, last + 1)]

    def grow(self, entries: int) -> None:
        self.readable += entries
        self._grown.set()
        self._grown = trio.Event()


class Taker:
    """Follows a tail, and keeps what it has taken."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.taken: list[bytes] = []
        self.went_on_at: int | None = None

    def take(self, entry_id: int, item: bytes) -> bool:
        assert item == b"%d" % entry_id
        self.taken.append(item)
        return True

    async def follow(self, tail: LedgerTail[bytes]) -> None:
        self.went_on_at = await tail.follow(self.first, self.take)


def scripted_tail(reader: Scripted) -> LedgerTail[bytes]:
    return LedgerTail(cast(LedgerReader, reader), lambda entry_id, payload: (payload, 1))


async def follow_in_order(nursery: trio.Nursery, tail: LedgerTail[bytes], *them: Taker) -> None:
    for each in them:
        nursery.start_soon(each.follow, tail)
        await wait_all_tasks_blocked()


async def test_a_poll_that_brings_nothing_lets_all_followers_go_on() -> None:
    reader = Scripted()
    tail, them = scripted_tail(reader), [Taker(0) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        await follow_in_order(nursery, tail, *them)
        reader.grow(0)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [each.went_on_at for each in them] == [0, 0, 0]
    assert reader.polled == [-1], "each of them looks whether the ledger is closed, and none polls again"


async def test_a_poll_waits_for_the_first_entry_that_a_follower_needs() -> None:
    reader = Scripted()
    tail, sooner, later = scripted_tail(reader), Taker(0), Taker(2)
    async with trio.open_nursery() as nursery:
        await follow_in_order(nursery, tail, sooner, later)
        for _ in range(4):
            reader.grow(1)
            await wait_all_tasks_blocked()
        assert reader.polled == [-1, 0, 1, 2, 3]
        assert (sooner.taken, later.taken) == ([b"0", b"1", b"2", b"3"], [b"2", b"3"])
        nursery.cancel_scope.cancel()


async def test_who_takes_the_poll_over_polls_for_all() -> None:
    reader = Scripted()
    tail, them, scope = scripted_tail(reader), [Taker(first) for first in (0, 2, 0)], trio.CancelScope()

    async def first_one() -> None:
        with scope:
            await them[0].follow(tail)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first_one)
        await wait_all_tasks_blocked()
        await follow_in_order(nursery, tail, *them[1:])
        scope.cancel()
        await wait_all_tasks_blocked()
        assert reader.polled == [-1, -1]
        nursery.cancel_scope.cancel()


async def test_a_follower_that_needs_entries_from_before_the_poll_waits_for_them_by_itself() -> None:
    reader = Scripted()
    tail, later, sooner = scripted_tail(reader), Taker(2), Taker(0)
    async with trio.open_nursery() as nursery:
        await follow_in_order(nursery, tail, later, sooner)
        assert reader.polled == [1, -1]
        reader.grow(1)
        await wait_all_tasks_blocked()
        assert (sooner.taken, sooner.went_on_at) == ([], 0)
        reader.grow(2)
        await wait_all_tasks_blocked()
        assert later.taken == [b"2"]
        nursery.cancel_scope.cancel()


async def test_the_buffer_of_a_follower_that_takes_nothing_keeps_its_bound(cluster: Cluster) -> None:
    log = await cluster.create_log("log", replication=Replication(3, 3, 2))
    quick, data = Follower(), bytes(900_000)
    async with log.writer() as writer, trio.open_nursery() as nursery:
        async with log.read(follow=True) as slow:
            await start(nursery, log, writer, [quick])
            for number in range(12):
                await writer.append(data)
                await reached(lambda n=number: len(quick.seen) >= n + 2)
                assert slow._buffered_bytes <= LOG_READ_AHEAD_BYTES
            assert slow._buffered_bytes > LOG_READ_AHEAD_BYTES / 2
            seen = [await anext(slow) for _ in range(13)]
            assert [each.data for each in seen] == quick.seen
        nursery.cancel_scope.cancel()


async def test_a_follower_that_asked_for_all_may_leave(cluster: Cluster) -> None:
    log = await cluster.create_log("log", replication=Replication(3, 3, 2))
    them = [Follower() for _ in range(6)]
    async with log.writer() as writer, trio.open_nursery() as nursery:
        await writer.append(b"0")
        for each in them:
            nursery.start_soon(each.run, log)
        for each in them:
            await each.at_tail.wait()
        for number in range(1, 6):
            await wait_all_tasks_blocked()
            them[number - 1].scope.cancel()  # One of the followers asks for all of them now.
            await wait_all_tasks_blocked()
            await writer.append(b"%d" % number)
            while len(them[-1].seen) <= number:
                await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    for number, each in enumerate(them):
        assert each.seen == [b"%d" % record for record in range(number + 1)]
    assert not cluster.client.tails._tails, "nobody follows, so nothing is kept"


async def test_one_of_those_who_wait_does_the_work_that_failed() -> None:
    turn, released = _Turn(), trio.Event()
    begun: list[str] = []

    async def follow(name: str, scope: trio.CancelScope) -> None:
        with scope:
            if await turn.wait_round():
                with turn.taken():
                    begun.append(name)
                    await released.wait()

    async with trio.open_nursery() as nursery:
        first = trio.CancelScope()
        nursery.start_soon(follow, "first", first)
        await wait_all_tasks_blocked()
        for name in ("second", "third", "fourth"):
            nursery.start_soon(follow, name, trio.CancelScope())
        await wait_all_tasks_blocked()
        assert begun == ["first"]
        first.cancel()
        await wait_all_tasks_blocked()
        assert len(begun) == 2
        released.set()
    assert len(begun) == 2, "the others take the result"
    assert turn.rounds == 1


@pytest.mark.parametrize("seed", range(20))
async def test_whoever_falls_behind_reads_alone_and_misses_nothing(cluster: Cluster, seed: int) -> None:
    random = Random(seed)
    decoded = 0

    def decode(entry_id: int, payload: bytes) -> tuple[tuple[int, bytes], int]:
        nonlocal decoded
        decoded += 1
        return (entry_id, payload), len(payload)

    async with await cluster.ledgers.create(replication=Replication(3, 3, 2)) as writer:
        reader = await cluster.ledgers.open(writer.ledger_id)
        tail = LedgerTail(reader, decode, kept_bytes_max=random.choice([0, 10, 100, 10_000]))
        payloads = [random.randbytes(random.randrange(30)) for _ in range(60)]
        expected = list(enumerate(payloads))

        async def follow(pause: int) -> None:
            seen: list[tuple[int, bytes]] = []
            room = 0

            def take(entry_id: int, item: tuple[int, bytes]) -> bool:
                nonlocal room
                if not room or entry_id == len(payloads) - 1:  # As a reader that comes to its end.
                    return False
                assert entry_id == len(seen)
                seen.append(item)
                room -= 1
                return True

            while len(seen) < len(payloads):
                room = random.randrange(8)
                assert await tail.follow(len(seen), take) == len(seen)
                last = tail.reader.readable
                if last >= len(seen):
                    found = await tail.read(len(seen), last)
                    assert found
                    assert len(found) <= last + 1 - len(seen)
                    seen += found
                for _ in range(random.randrange(pause + 1)):
                    await trio.lowlevel.checkpoint()
            assert seen == expected

        async with trio.open_nursery() as nursery:
            for pause in (0, 0, 5, 50):
                nursery.start_soon(follow, pause)
            at = 0
            while at < len(payloads):
                count = random.randrange(1, 8)
                await writer.append_many(payloads[at : at + count])
                at += count
                for _ in range(random.randrange(4)):
                    await trio.lowlevel.checkpoint()
    assert decoded >= len(payloads)


async def test_the_entries_before_a_damaged_one_come_out_first(cluster: Cluster) -> None:
    def decode(entry_id: int, payload: bytes) -> tuple[int, int]:
        if payload == b"bad":
            raise EntryCorrupt(1, entry_id, "it is bad")
        return entry_id, len(payload)

    async with await cluster.ledgers.create(replication=Replication(3, 3, 2)) as writer:
        await writer.append_many([b"good", b"good", b"bad", b"good"])
        tail = LedgerTail(await cluster.ledgers.open(writer.ledger_id), decode, kept_bytes_max=1_000)
        last = await tail.reader.last_add_confirmed()
        assert await tail.read(0, last) == [0, 1]
        for _ in range(2):
            with pytest.raises(EntryCorrupt):
                await tail.read(2, last)
        assert await tail.read(1, last) == [1]
        assert await tail.read(3, last) == [3]


async def test_what_was_kept_before_a_jump_is_not_given_for_other_entries(cluster: Cluster) -> None:
    async with await cluster.ledgers.create(replication=Replication(3, 3, 2)) as writer:
        await writer.append_many([b"x"] * 6)
        reader = await cluster.ledgers.open(writer.ledger_id)
        tail = LedgerTail(reader, lambda entry_id, payload: (entry_id, len(payload)), kept_bytes_max=1_000)
        await reader.last_add_confirmed()
        for entry_id in (0, 5, 4):
            assert await tail.read(entry_id, entry_id) == [entry_id]
