"""A log after an accepted loss, if two of its ledgers were open: no readable record is dropped silently.

The leader has rolled, and dies before the older ledger is closed. Both ledgers hold acknowledged records.
Bookies of the older ledger lose their disks. Its end can no longer be found, and an operator accepts the
loss.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledgerlog.archive.jobs.job import archive_log
from ledgerlog.archive.jobs.rewrite import merge_log
from ledgerlog.errors import (
    AppendUnknown,
    EntryCorrupt,
    InvalidArgument,
    LedgerLogError,
    LogSealed,
    LossUndecided,
    LostLeadership,
    RecordsLost,
    RecoveryFailed,
    Truncated,
)
from ledgerlog.limits import LOG_RETENTION_LOOK_S
from ledgerlog.log.log import Log, create_log, open_log
from ledgerlog.log.reader import LogReader
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.ids import Position
from ledgerlog.model.layout import log_record_path
from ledgerlog.model.policies import RetentionPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.model.record import Record
from ledgerlog.model.segments import Gap, LogSegment
from ledgerlog.testing.faulty_store import Call, GoOn, answer_lost_behind
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, eventually, open_cluster
from tests.repairing import quiet, set_up, start_repair

KEPT, LOST, BEHIND = 51, 49, 100
RESUMED = KEPT + LOST
END = RESUMED + BEHIND

Found = list[bytes | RecordsLost]


def record(offset: int) -> bytes:
    return b"record %d" % offset


def records(first: int, end: int) -> list[bytes]:
    return [record(offset) for offset in range(first, end)]


@attrs.frozen
class After:
    """The older ledger has lost its last 49 records."""

    cluster: MemoryCluster
    owner: Client
    client: Client
    log: Log
    writer: LogWriter
    """The dead leader's writer. It has lost its metadata store."""
    leading: trio.CancelScope
    older: int
    newer: int

    async def die(self) -> None:
        self.leading.cancel()
        await eventually(lambda: self.leading.cancelled_caught)

    async def accept(self) -> None:
        """An operator accepts the loss of the ledger that the error names."""
        with pytest.raises(RecoveryFailed):
            await self.client.ledgers.recover(self.older)
        accepted = await self.client.ledgers.recover_accepting_loss(self.older)
        assert (accepted.metadata.last_entry, accepted.lost_from) == (0, 1)


@asynccontextmanager
async def after_a_loss(*, behind: int = BEHIND) -> AsyncIterator[After]:
    async with open_cluster(6) as cluster, cluster.client() as owner, cluster.client() as client:
        for spare in ("b4", "b5", "b6"):
            cluster.bookies[spare].set_read_only(True)
        await eventually(lambda: len(owner.opened.bookies.writable()) == 3)
        await create_log(owner.opened, "log", replication=Replication(3, 3, 2))
        log = await open_log(client.opened, "log")

        async def lead(*, task_status: trio.TaskStatus[After]) -> None:
            with trio.CancelScope() as leading:
                async with (await open_log(owner.opened, "log")).writer() as writer:
                    older, newer = await roll_without_end(cluster, owner, writer, behind)
                    task_status.started(After(cluster, owner, client, log, writer, leading, older, newer))
                    await writer.wait_over()

        async with trio.open_nursery() as nursery:
            yield await nursery.start(lead)
            nursery.cancel_scope.cancel()


async def roll_without_end(
    cluster: MemoryCluster, owner: Client, writer: LogWriter, behind: int
) -> tuple[int, int]:
    """Append 51 records on all bookies of a ledger, 49 on two of them, and ``behind`` in the next ledger.

    Then the two bookies lose their data. Return the ids of the ledgers.
    """
    leader = writer._leader
    older = leader._writer
    ensemble = older.metadata.last_fragment.ensemble
    await writer.append_many(records(0, KEPT))
    for bookie_id, bookie in cluster.bookies.items():
        bookie.set_read_only(False)
        if bookie_id in ensemble:
            owner.opened.bookies.quarantine(bookie_id)  # So the newer ledger goes to the other bookies.
    await eventually(lambda: len(owner.opened.bookies.writable()) == 6)
    cluster.network.stall(owner.host, ensemble[2])
    await writer.append_many(records(KEPT, RESUMED - 1))
    cluster.network.stall(owner.host, ensemble[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.append, record(RESUMED - 1))
        nursery.start_soon(writer.roll)
        await eventually(lambda: writer.statistics().rolls == 1)
        # The older ledger can no longer be closed, and all its records are acknowledged.
        owner.store.disconnect()
        cluster.network.heal(owner.host, ensemble[1])
        await eventually(lambda: leader.queue.durable_offset == RESUMED)
        nursery.cancel_scope.cancel()
    if behind:
        await writer.append_many(records(RESUMED, RESUMED + behind))
    for lost in ensemble[:2]:
        await cluster.bookies[lost].lose_disk()
        await cluster.bookies[lost].start()
    return older.ledger_id, leader._writer.ledger_id


async def read(reader: LogReader) -> Found:
    """Return everything that a reader receives."""
    found: Found = []
    while True:
        try:
            async for each in reader:
                found.append(each.data)
        except RecordsLost as gap:
            found.append(gap)
        else:
            return found


def shown(found: Found) -> list[bytes | tuple[int, int]]:
    return [(each.lost_from, each.first_offset) if isinstance(each, RecordsLost) else each for each in found]


async def test_a_takeover_stops_and_names_what_it_would_drop(clock: MockClock) -> None:
    async with after_a_loss() as after:
        await after.die()
        await after.accept()
        before = await after.client.store.get(log_record_path(after.log.incarnation))
        for attempt in (after.log.writer().__aenter__, after.log.seal, after.log.recover):
            with pytest.raises(LossUndecided) as caught:
                await attempt()
            found = caught.value
            assert (found.short_ledger, found.kept_ledger) == (after.older, after.newer)
            assert (found.lost_from, found.first_offset, found.end_offset) == (KEPT, RESUMED, END)
            assert "the 100 records from 100 to 199 would be dropped" in str(found)
            assert "'ledgerlog log recover log --accept-loss'" in str(found)
        assert await after.client.store.get(log_record_path(after.log.incarnation)) == before
        assert len(await after.client.ledgers.list()) == 2, "no ledger is left behind"
        async with after.log.read() as reader:
            with pytest.raises(LossUndecided):
                await read(reader)
            assert reader.next_offset == KEPT


async def test_what_is_behind_a_loss_is_kept_behind_a_gap_if_an_operator_says_so(clock: MockClock) -> None:
    async with after_a_loss() as after:
        await after.die()
        await after.accept()
        assert await after.log.recover(accept_loss=True) == (Gap(KEPT, RESUMED),)
        async with after.log.writer() as writer:
            assert (await writer.append(record(END))).offset == END
        info = await after.log.info()
        assert (info.next_offset, info.gaps) == (END + 1, (Gap(KEPT, RESUMED),))
        gap = (KEPT, RESUMED)
        below, above = records(0, KEPT), records(RESUMED, END + 1)
        for start, until, expected in (
            ("earliest", None, [*below, gap, *above]),
            (KEPT, None, [gap, *above]),
            (60, None, [gap, *above]),
            (60, 70, [gap]),
            (RESUMED, None, above),
            (RESUMED + 1, None, above[1:]),
            (0, KEPT, below),
            (KEPT - 1, KEPT + 1, [record(KEPT - 1), gap]),
            ("latest", None, []),
        ):
            async with after.log.read(start, until=until) as reader:
                assert shown(await read(reader)) == expected, (start, until)
        # Run a second time, it has nothing to decide and nothing to do.
        assert await after.log.recover(accept_loss=True) == ()
        await after.log.truncate(60)
        assert (await after.log.info()).gaps == (Gap(60, RESUMED),)
        for where in ("earliest", 60):
            async with after.log.read(where) as reader:
                assert shown(await read(reader)) == [gap, *above]
        await after.log.truncate(RESUMED)
        assert (await after.log.info()).gaps == ()
        async with after.log.read() as reader:
            assert shown(await read(reader)) == above


async def test_a_loss_may_be_accepted_for_the_log_at_once(clock: MockClock) -> None:
    async with after_a_loss() as after:
        await after.die()
        with pytest.raises(RecoveryFailed):
            await after.log.recover()
        with pytest.raises(InvalidArgument):
            await after.log.recover(accept_unreachable=True)
        assert await after.log.recover(accept_loss=True) == (Gap(KEPT, RESUMED),)
        async with after.log.read(RESUMED) as reader:
            assert await read(reader) == records(RESUMED, END)
        await after.log.seal()
        with pytest.raises(LogSealed):
            await after.log.recover(accept_loss=True)


async def test_a_gap_is_told_to_who_made_it_also_if_the_answer_was_lost(clock: MockClock) -> None:
    """Another client has written the record since, so no token is left by which a writer knows its write."""
    async with after_a_loss() as after, after.cluster.client() as third:
        await after.die()
        await after.accept()
        other = await open_log(third.opened, "log")

        async def write() -> None:
            await other.set_properties({"a": "b"})

        after.client.store.faults.append(answer_lost_behind(log_record_path(after.log.incarnation), write))
        assert await after.log.recover(accept_loss=True) == (Gap(KEPT, RESUMED),)
        assert await after.log.recover(accept_loss=True) == ()


async def test_nothing_is_to_be_decided_where_nothing_is_behind_a_loss(clock: MockClock) -> None:
    async with after_a_loss(behind=0) as after:
        await after.die()
        await after.accept()
        async with after.log.read() as reader:
            assert await read(reader) == records(0, KEPT)
        async with after.log.writer() as writer:
            assert (await writer.append(b"new")).offset == KEPT


async def test_a_follower_waits_for_the_decision_and_is_told_of_the_gap(clock: MockClock) -> None:
    async with after_a_loss() as after:
        await after.die()
        await after.accept()
        found: Found = []

        async def follow() -> None:
            async with after.log.read(until=END, follow=True, dense=True) as reader:
                while True:
                    try:
                        async for each in reader:
                            found.append(each.data)
                    except RecordsLost as gap:
                        found.append(gap)
                    else:
                        return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await eventually(lambda: len(found) == KEPT)
            with pytest.raises(LossUndecided):
                await after.log.recover()
            await after.log.recover(accept_loss=True)
        assert shown(found) == [*records(0, KEPT), (KEPT, RESUMED), *records(RESUMED, END)]


@pytest.mark.parametrize("answer", ["comes", "is lost"])
async def test_a_leader_that_lives_ends_in_order_where_its_older_ledger_is_ended_short(
    answer: str, clock: MockClock
) -> None:
    async with after_a_loss() as after:
        await after.accept()
        draining = after.writer._leader._maintenance.draining
        assert draining is not None
        if answer == "is lost":

            async def close() -> int:
                raise AppendUnknown("the store did not say whether it took the end")

            draining.close = close
        after.owner.store.reconnect()

        async def append() -> None:
            while True:
                await after.writer.append(b"more")
                await trio.sleep(1)

        with pytest.raises(LostLeadership):
            await append()
        await after.writer.wait_over()
        with pytest.raises(LossUndecided):
            await after.log.recover()


@pytest.mark.parametrize("options", [{}, {"retention": RetentionPolicy(max_bytes=10**9)}])
@pytest.mark.parametrize("dedupe", [False, True])
async def test_a_log_that_ends_below_its_truncation_goes_on_at_its_first_offset(
    clock: MockClock, options: dict[str, RetentionPolicy], dedupe: bool
) -> None:
    """All records above the truncation are lost, and the rest of the ledger was truncated before."""
    async with open_cluster(3) as cluster, cluster.client() as owner, cluster.client() as client:
        log = await create_log(client.opened, "log", replication=Replication(3, 3, 2), **options)
        leading = trio.CancelScope()
        with leading:
            async with (await open_log(owner.opened, "log")).writer(dedupe=dedupe) as writer:
                await writer.append_many(records(0, KEPT))
                await writer.roll()
                await writer.append_many(records(KEPT, RESUMED))
                await writer.truncate(RESUMED - 20)
                leading.cancel()
                await trio.sleep_forever()
        for bookie in cluster.bookies.values():
            await bookie.lose_disk()
        await cluster.start_all()
        assert await log.recover(accept_loss=True) == ()
        info = await log.info()
        assert (info.first_offset, info.next_offset) == (RESUMED - 20, RESUMED - 20)
        if dedupe:
            return  # The table of producers is lost with the disks.
        async with log.writer() as writer:
            assert (await writer.append(b"new")).offset == RESUMED - 20
            await writer.roll()
            await trio.sleep(2 * LOG_RETENTION_LOOK_S)
            assert (await writer.append(b"newer")).offset == RESUMED - 19
        async with log.read() as reader:
            assert await read(reader) == [b"new", b"newer"]
        await log.truncate(RESUMED - 19)
        assert len((await log.info()).segments) == 1


@attrs.frozen
class LostAtTheEnd:
    """A log with one ledger that has lost its records from offset 51 on. It has no leader."""

    cluster: MemoryCluster
    client: Client
    log: Log
    bookies: tuple[str, ...]
    """The bookies of the ledger."""


Step = Callable[[MemoryCluster, tuple[str, ...]], Awaitable[None]]


@asynccontextmanager
async def lost_at_the_end(
    *, with_51: Step | None = None, with_100: Step | None = None, truncate_to: int = 0
) -> AsyncIterator[LostAtTheEnd]:
    """Call the steps when the log has 51 records and when it has 100. Then lose the last 49."""
    async with open_cluster(3) as cluster, cluster.client() as owner, cluster.client() as client:
        log = await create_log(client.opened, "log", replication=Replication(3, 3, 2))
        leading = trio.CancelScope()
        with leading:
            async with (await open_log(owner.opened, "log")).writer() as writer:
                await writer.append_many(records(0, KEPT))
                bookies = tuple(writer._leader._writer.metadata.last_fragment.ensemble)
                await trio.sleep(1)  # The third bookie has all of them now.
                if with_51 is not None:
                    await with_51(cluster, bookies)
                cluster.network.stall(owner.host, bookies[2])
                await writer.append_many(records(KEPT, RESUMED))
                await writer.truncate(truncate_to)
                if with_100 is not None:
                    await with_100(cluster, bookies)
                leading.cancel()
                await trio.sleep_forever()
        for bookie in bookies[:2]:
            await cluster.bookies[bookie].lose_disk()
            await cluster.bookies[bookie].start()
        assert await log.recover(accept_loss=True) == ()
        yield LostAtTheEnd(cluster, client, log, bookies)


@attrs.define
class Follower:
    """Somebody who follows the log in ``nursery``, and what they get."""

    nursery: trio.Nursery
    found: list[Record] = attrs.field(factory=list)
    told: list[LedgerLogError] = attrs.field(factory=list)
    """The error that ended the reader."""
    _host: str = ""
    _reached: trio.Event = attrs.field(factory=trio.Event)

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.found]

    def __attrs_post_init__(self) -> None:
        self._reached.set()

    async def _hold(self, _: Call, go_on: GoOn) -> object:
        await self._reached.wait()
        return await go_on()

    async def begin(self, cluster: MemoryCluster, count: int) -> None:
        """Begin to follow, and return when ``count`` records have come."""

        async def run() -> None:
            async with cluster.client() as client:
                self._host = client.host
                client.store.faults.append(self._hold)
                async with (await open_log(client.opened, "log")).read(follow=True) as reader:
                    try:
                        async for record in reader:
                            self.found.append(record)
                    except LedgerLogError as failure:
                        self.told.append(failure)

        self.nursery.start_soon(run)
        await eventually(lambda: len(self.found) == count)

    def lose(self, cluster: MemoryCluster, bookies: Iterable[str]) -> None:
        """Get no more answers, neither of the bookies nor of the metadata store."""
        self._reached = trio.Event()
        for bookie in bookies:
            cluster.network.stall(self._host, bookie)

    async def read_and_lose(self, cluster: MemoryCluster, bookies: tuple[str, ...]) -> None:
        """Read all that the log has before the loss, and get no more answers then."""
        await self.begin(cluster, RESUMED)
        self.lose(cluster, bookies)

    async def come_back(self, after: LostAtTheEnd) -> LedgerLogError:
        """Get answers again, and return the error that ends the reader."""
        self._reached.set()
        for bookie in after.bookies:
            after.cluster.network.heal(self._host, bookie)
        await eventually(lambda: bool(self.told))
        return self.told[0]


def check_told_of_the_loss(failure: LedgerLogError, follower: Follower) -> None:
    assert isinstance(failure, EntryCorrupt)
    assert f"was read with record {RESUMED - 1} of epoch 1" in str(failure)
    assert follower.offsets == list(range(RESUMED))


async def test_a_follower_is_told_of_a_loss_though_the_ledger_that_had_it_has_left_the_list(
    clock: MockClock,
) -> None:
    """It would skip the new records with the offsets that it has read."""
    async with trio.open_nursery() as nursery:
        follower = Follower(nursery)
        async with lost_at_the_end(with_100=follower.read_and_lose) as after, after.log.writer() as writer:
            await writer.append_many([b"new"] * 60)
            await writer.roll()
            await writer.truncate(KEPT + 10)
            assert (await after.log.info()).segments[0].first_offset == KEPT, "where the new records begin"
            failure = await follower.come_back(after)
        check_told_of_the_loss(failure, follower)


async def test_a_follower_is_told_of_a_loss_though_a_file_has_its_ledger_with_the_new_records(
    clock: MockClock, tmp_path: Path
) -> None:
    async with trio.open_nursery() as nursery:
        follower = Follower(nursery)
        async with lost_at_the_end(with_100=follower.read_and_lose) as after:
            async with after.log.writer() as writer:
                await writer.append_many([b"new"] * LOST)  # The follower is where the next entry begins.
                await writer.append_many([b"new"] * 11)
            async with after.log.writer() as writer:
                await writer.append(b"newest")  # Bookies keep the newest ledger.
            queue = await set_up(after.client)
            await start_repair(after.cluster)
            await trio.sleep(60)  # Only a ledger with all its copies is archived.
            await quiet(queue)
            clock.autojump_threshold, clock.rate = math.inf, 1.0  # Archive files are read in threads.
            opened = after.client.opened
            steps = await archive_log(opened, "log", str(tmp_path), keep_copies_s=0)
            assert [step.what for step in steps].count("given up") == 2
            assert [step.what for step in await merge_log(opened, "log", str(tmp_path))] == ["merged"]
            failure = await follower.come_back(after)
        check_told_of_the_loss(failure, follower)


@pytest.fixture
def _few_visits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if readers go to ledgers again and again."""
    visits = iter(range(10))
    read_segment = LogReader._read_segment

    async def visit(self: LogReader, segment: LogSegment, entry_id: int) -> bool:
        assert next(visits, None) is not None, "a reader goes around in circles"
        return await read_segment(self, segment, entry_id)

    monkeypatch.setattr(LogReader, "_read_segment", visit)


@pytest.mark.usefixtures("_few_visits")
async def test_no_reader_shows_what_is_below_a_truncation_that_the_log_has_moved_to(clock: MockClock) -> None:
    async with lost_at_the_end(truncate_to=RESUMED - 20) as after:
        (ledger,) = (segment.ledger_id for segment in (await after.log.info()).segments)
        long_ago = datetime(1970, 1, 1, tzinfo=UTC)
        for start in ("earliest", RESUMED - 20, long_ago):
            async with after.log.read(start) as reader:
                assert await read(reader) == []
        async with after.log.writer() as writer:
            assert (await writer.append(b"new")).offset == RESUMED - 20
        for start in ("earliest", RESUMED - 20, long_ago):
            async with after.log.read(start) as reader:
                assert await read(reader) == [b"new"], start
        for position in (Position(ledger, 0, 0), Position(ledger, 0, KEPT), Position(ledger, 1, 0)):
            with pytest.raises(Truncated) as caught:
                async with after.log.read(position):
                    raise AssertionError
            assert caught.value.first_offset == RESUMED - 20


@pytest.mark.usefixtures("_few_visits")
async def test_a_follower_in_a_ledger_that_ends_below_a_truncation_is_told_of_the_truncation(
    clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        follower = Follower(nursery)

        async def follow(cluster: MemoryCluster, bookies: tuple[str, ...]) -> None:
            """Follow the log up to its present end, and lose the bookies then."""
            await follower.begin(cluster, KEPT)
            follower.lose(cluster, bookies)

        async with lost_at_the_end(with_51=follow, truncate_to=RESUMED - 20) as after:
            failure = await follower.come_back(after)
        assert isinstance(failure, Truncated)
        assert failure.first_offset == RESUMED - 20
        assert follower.offsets == list(range(KEPT))


async def test_a_reader_that_has_read_what_is_lost_skips_no_record_with_the_same_offset(
    clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        follower = Follower(nursery)

        async def follow(cluster: MemoryCluster, _: tuple[str, ...]) -> None:
            await follower.begin(cluster, RESUMED)

        async with lost_at_the_end(with_100=follow) as after, after.log.writer() as writer:
            assert (await writer.append_many([b"new"] * BEHIND))[0].offset == KEPT
            failure = await follower.come_back(after)
        assert isinstance(failure, EntryCorrupt)
        assert "its first offset is 51, but log 'log' was read up to offset 100" in str(failure)
        assert [record.data for record in follower.found] == records(0, RESUMED)
