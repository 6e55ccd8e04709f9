"""Traps that other log layers fell into, each played on production bookies.

Time is simulated, and everything runs in this process. Leaders are clients on hosts of their own, whose
network and metadata can fail one by one.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from ledgerlog.election.election import Election
from ledgerlog.errors import (
    AppendUnknown,
    LedgerLogError,
    LedgerNotFound,
    LogSealed,
    LostLeadership,
    NotEnoughBookies,
)
from ledgerlog.ledger.reader import LedgerReader
from ledgerlog.limits import LOG_CHECKPOINT_ENTRIES, LOG_RESOLVE_TIMEOUT_S, WRITER_WINDOW_ENTRIES
from ledgerlog.log.log import Log, create_log, open_log
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, eventually, open_cluster


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with open_cluster(3) as cluster:
        yield cluster


@pytest.fixture
async def a(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as client:
        yield client


@pytest.fixture
async def b(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as client:
        yield client


async def log_of(client: Client, **options: object) -> Log:
    """Return the log as one client sees it; make the log if it does not exist."""
    return await create_log(client.opened, "log", exist_ok=True, **options)


async def contents(client: Client) -> list[bytes]:
    log = await open_log(client.opened, "log")
    info = await log.info()
    async with log.read() as records:
        found = [record async for record in records]
    assert [r.offset for r in found] == list(range(info.first_offset, info.first_offset + len(found)))
    return [record.data for record in found]


class Outcome:
    """The outcome of a call that runs in its own task."""

    def __init__(self, nursery: trio.Nursery, call: Callable[[], Awaitable[object]]) -> None:
        self.value: object = None
        self.failure: LedgerLogError | None = None
        self.is_over = False

        async def run() -> None:
            try:
                self.value = await call()
            except LedgerLogError as failure:
                self.failure = failure
            self.is_over = True

        nursery.start_soon(run)


async def test_a_stale_writer_does_not_revive_a_deleted_ledger(
    cluster: MemoryCluster, a: Client, b: Client, autojump_clock: MockClock
) -> None:
    """A hangs with an add under way. B takes over and deletes the ledger, and the bookies forget it. Then A
    wakes up.
    """
    async with contextlib.AsyncExitStack() as stack, trio.open_nursery() as nursery:
        stale = await stack.enter_async_context((await log_of(a)).writer())
        await stale.append(b"a0")
        ledger_id = stale.statistics().ledger_id
        cluster.network.stall(a.host, "*")
        late = Outcome(nursery, lambda: stale.append(b"late"))
        await trio.testing.wait_all_tasks_blocked()
        log = await log_of(b)
        async with log.writer() as writer:
            await writer.append(b"b0")
            await log.truncate(1)
        with pytest.raises(LedgerNotFound):
            await b.ledgers.metadata(ledger_id)
        for bookie in cluster.bookies.values():
            await bookie.restart()
        cluster.network.heal()
        await eventually(lambda: late.is_over)
        assert isinstance(late.failure, LostLeadership | AppendUnknown)
        with contextlib.suppress(LedgerLogError):
            await stack.aclose()
    with pytest.raises(LedgerNotFound):
        await b.ledgers.metadata(ledger_id)
    assert ledger_id not in await b.ledgers.list()
    assert await contents(b) == [b"b0"]


@pytest.mark.parametrize("producer", [None, "p"])
async def test_an_entry_that_recovery_kept_is_not_written_again_into_the_next_ledger(
    cluster: MemoryCluster, a: Client, b: Client, autojump_clock: MockClock, producer: str | None
) -> None:
    """The bookies have A's record, but A does not know it; B's recovery keeps the record. A must not say that
    it is lost, and if it has a sequence, a repeat finds it.
    """
    async with trio.open_nursery() as nursery:
        with trio.CancelScope():
            async with (await log_of(a)).writer(producer=producer) as writer:
                sequence = None if producer is None else 1
                await writer.append(b"zero", sequence=sequence and 0)
                for bookie in cluster.bookies:
                    cluster.network.stall(bookie, a.host, both=False)
                outcome = Outcome(nursery, lambda: writer.append(b"once", sequence=sequence))
                await trio.sleep(0.1)
                async with (await log_of(b)).writer(producer=producer) as after:
                    assert after.next_offset == 2, "recovery kept it"
                    cluster.network.heal()
                    await eventually(lambda: outcome.is_over)
                    assert outcome.failure is None or isinstance(outcome.failure, AppendUnknown)
                    if producer is not None:
                        again = await after.append(b"once", sequence=1)
                        assert (again.offset, again.duplicate) == (1, True)
                    await after.append(b"next", sequence=None if producer is None else 2)
    assert await contents(b) == [b"zero", b"once", b"next"]


async def test_a_roll_that_is_due_by_size_and_by_age_at_once_is_one_roll(
    a: Client, autojump_clock: MockClock
) -> None:
    log = await log_of(a, roll=RollPolicy(max_records=10, max_age_s=60))
    async with log.writer() as writer:
        for _ in range(5):
            rolls = writer.statistics().rolls
            await writer.append_many([b"x"] * 9)
            ledger_id = writer.statistics().ledger_id
            await trio.sleep(60 - 1e-9)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.append, b"x")
                nursery.start_soon(trio.sleep, 1e-9)
            await trio.sleep(30)
            assert writer.statistics().rolls == rolls + 1
            assert writer.statistics().ledger_id != ledger_id
    segments = (await log.info()).segments
    assert [s.record_count for s in segments] == [10] * 5 + [0]
    assert await a.ledgers.list() == [s.ledger_id for s in segments]


async def test_a_seal_during_a_roll_ends_the_log_where_its_leader_was(
    a: Client, b: Client, autojump_clock: MockClock
) -> None:
    log = await log_of(a)
    rival = await log_of(b)
    async with contextlib.AsyncExitStack() as stack, trio.open_nursery() as nursery:
        writer = await stack.enter_async_context(log.writer())
        acks = await writer.append_many([b"x"] * 3)

        async def seal() -> None:
            await rival.seal()

        async def before_the_list() -> None:
            a.store.before_write = seal  # The first write makes the ledger, the second lists it.

        a.store.before_write = before_the_list
        roll = Outcome(nursery, writer.roll)
        late = Outcome(nursery, lambda: writer.append(b"late"))
        await eventually(lambda: roll.is_over and late.is_over)
        assert isinstance(roll.failure, LogSealed)
        with pytest.raises(LogSealed):
            await writer.append(b"never")
        with contextlib.suppress(LedgerLogError):
            await stack.aclose()
    found = await contents(b)
    assert found[: len(acks)] == [b"x"] * 3
    assert len(found) == 3 + (late.failure is None)
    info = await rival.info()
    assert info.sealed
    assert all(segment.is_counted for segment in info.segments)
    assert await b.ledgers.list() == [segment.ledger_id for segment in info.segments]


@pytest.mark.parametrize("end", ["fence", "seal", "metadata gone", "bookies gone"])
async def test_nobody_is_left_waiting_after_the_end(
    cluster: MemoryCluster, a: Client, b: Client, autojump_clock: MockClock, end: str
) -> None:
    """When the leadership ends, every kind of call is under way, and some calls wait for the window."""
    log = await log_of(a)
    async with trio.open_nursery() as nursery, contextlib.AsyncExitStack() as stack:
        writer = await stack.enter_async_context(log.writer(window=20, producer="p"))
        await writer.append(b"x")
        submission = await writer.submit(b"x")
        cluster.network.stall(a.host, "*")
        calls: list[Callable[[], Awaitable[object]]] = [
            *[lambda: writer.append(b"x")] * 15,
            lambda: writer.append_many([b"x"] * 50),
            lambda: writer.append_many([b"x"] * 5, atomic=True),
            lambda: writer.append(b"x", sequence=1),
            lambda: writer.append(b"x", sequence=1),
            lambda: writer.submit(b"x"),
            submission.wait,
            writer.flush,
            writer.roll,
        ]
        outcomes = [Outcome(nursery, call) for call in calls]
        await trio.testing.wait_all_tasks_blocked()
        if end == "metadata gone":
            a.store.is_hanging = True
        if end == "seal":
            await (await log_of(b)).seal()
        elif end == "bookies gone":
            for bookie in cluster.bookies.values():
                await bookie.kill()
        else:
            await stack.enter_async_context((await log_of(b)).writer())
        cluster.network.heal()
        await eventually(lambda: all(outcome.is_over for outcome in outcomes))
        for outcome in outcomes[:17]:
            assert outcome.failure is not None
        with pytest.raises(LedgerLogError):
            await writer.append(b"never")
        with contextlib.suppress(LedgerLogError):
            await stack.aclose()


async def test_leaders_that_die_before_their_first_record_a_hundred_times_over(
    cluster: MemoryCluster, a: Client, autojump_clock: MockClock
) -> None:
    """Each leader makes a ledger, most leaders list it, and none writes a record. The log goes on, and does
    not get slower.
    """
    log = await log_of(a)
    async with log.writer(producer="p") as writer:
        await writer.append(b"first", sequence=1)
    for number in range(100):
        with trio.CancelScope() as life:
            life.deadline = trio.current_time() + (0.0001 * number if number % 3 else 1000)
            async with log.writer(producer="p"):
                life.cancel()
    began = trio.current_time()
    async with log.writer(producer="p") as writer:
        assert trio.current_time() - began < 0.1
        assert (await writer.append(b"first", sequence=1)).duplicate
        assert (await writer.append(b"second", sequence=2)).offset == 1
    assert await contents(a) == [b"first", b"second"]
    metadata, _ = await log._read()
    assert len(metadata.encode()) < 2000
    await log.truncate(2)
    async with log.writer() as writer:
        await writer.append(b"third")
        await writer.roll()
        await log.truncate(2)
    assert len((await log.info()).segments) <= 3, "the empty ones went with the others"


async def test_a_truncation_by_a_deposed_leader_fails(
    a: Client, b: Client, autojump_clock: MockClock
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        old = await stack.enter_async_context((await log_of(a)).writer())
        await old.append_many([b"x"] * 10)
        await old.truncate(3)
        new = await stack.enter_async_context((await log_of(b)).writer())
        with pytest.raises(LostLeadership) as caught:
            await old._leader.truncate(7, ignore_pins=False)
        assert caught.value.epoch == 2
        with pytest.raises(LostLeadership):
            await old.truncate(7)
        await new.truncate(5)
        assert (await (await log_of(b)).info()).first_offset == 5

        # The compare-and-set decides: a leader that is deposed during its write fails too.
        third = await stack.enter_async_context(contextlib.AsyncExitStack())

        async def depose() -> None:
            await third.enter_async_context((await log_of(a)).writer())

        b.store.before_write = depose
        with pytest.raises(LostLeadership):
            await new.truncate(8)
        assert (await (await log_of(b)).info()).first_offset == 5
        with contextlib.suppress(LedgerLogError):
            await stack.aclose()


@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.parametrize("what", ["take over", "roll", "leave", "seal", "truncate", "cursor"])
async def test_a_write_of_the_list_whose_answer_was_lost_is_settled_by_reading(
    cluster: MemoryCluster, a: Client, autojump_clock: MockClock, what: str, is_applied: bool
) -> None:
    log = await log_of(a)

    def lose(number: int) -> None:
        """Lose the answer to the write with that number, counted from now on."""

        async def before_write() -> None:
            if number > 1:
                lose(number - 1)
            elif is_applied:
                a.store.lost_answers = 1
            else:
                a.store.lost_writes = 1

        a.store.before_write = before_write

    async with log.writer() as writer:
        await writer.append_many([b"x"] * 3)
    if what == "take over":
        lose(3)  # The writes are: the ledger's number, the ledger, and the list.
    async with log.writer() as writer:
        assert writer.epoch == 2
        await writer.append(b"y")
        if what == "roll":
            lose(3)
            await writer.roll()
            await writer.append(b"z")
        if what == "leave":
            lose(2)
    if what in ("seal", "truncate", "cursor"):
        lose(1)
    if what == "seal":
        await log.seal()
    if what == "truncate":
        await log.truncate(3)
    if what == "cursor":
        state = await log.cursor("c").set(2, pins=True)
        assert (await log.cursor("c").get()) == state
    info = await log.info()
    assert info.sealed == (what == "seal")
    assert info.first_offset == (3 if what == "truncate" else 0)
    assert info.epoch == (3 if what == "seal" else 2)
    assert len({segment.ledger_id for segment in info.segments}) == len(info.segments)
    found = await contents(a)
    assert found[-1] == (b"z" if what == "roll" else b"y")
    async with contextlib.AsyncExitStack() as stack:
        if what != "seal":
            writer = await stack.enter_async_context(log.writer())
            await writer.append(b"on")
            assert writer.epoch == 3


async def test_opening_reads_little_however_many_producers_and_records_there_are(
    cluster: MemoryCluster, a: Client, b: Client, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await log_of(a)
    async with log.writer(dedupe=True, entry_bytes=1) as writer:
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(_append_numbered, writer, f"producer-{number}", 8)
        written = writer.statistics().entries_appended
    assert written == 8000
    read = 0
    read_some = LedgerReader._read_some

    async def counted(self: LedgerReader, first: int, last: int, bytes_max: int) -> list[bytes]:
        nonlocal read
        payloads = await read_some(self, first, last, bytes_max)
        read += len(payloads)
        return payloads

    monkeypatch.setattr(LedgerReader, "_read_some", counted)
    async with (await log_of(b)).writer() as writer:
        assert read <= LOG_CHECKPOINT_ENTRIES + 3
        acks = await writer.append_many([b"x"] * 9, sequence=0, producer="producer-77")
        assert [ack.duplicate for ack in acks] == [True] * 8 + [False]


async def _append_numbered(writer: LogWriter, producer: str, count: int) -> None:
    for sequence in range(count):
        await writer.append(b"x", sequence=sequence, producer=producer)


async def test_having_been_elected_proves_nothing_and_the_log_decides(
    cluster: MemoryCluster, a: Client, b: Client, autojump_clock: MockClock
) -> None:
    """A holds the election, and its scope is not cancelled. B writes to the log without any election. A's
    appends still fail, and the records that A acknowledged before stay.
    """
    election = Election(a.opened, "leader", candidate="a", listen=None)
    async with election.leadership() as term, contextlib.AsyncExitStack() as stack:
        writer = await stack.enter_async_context((await log_of(a)).writer())
        await writer.append(b"a")
        async with (await log_of(b)).writer() as other:
            await other.append(b"b")
            assert term.number == 1
            with pytest.raises((LostLeadership, AppendUnknown)):
                await writer.append(b"never")
        with contextlib.suppress(LedgerLogError):
            await stack.aclose()
        assert await contents(a) == [b"a", b"b"]


# --- a guaranteed log that lacks a bookie -------------------------------------------------------------


async def test_a_guaranteed_log_without_a_bookie_for_its_last_copies_ends_its_appends_in_time(
    cluster: MemoryCluster, clock: MockClock
) -> None:
    """The other bookies acknowledge records until the ledger's window is full of records that lack a copy.
    Later appends fail in time, and for certain. No acknowledged record is lost.
    """
    async with cluster.client(append_deadline_s=5) as client:
        log = await log_of(client, replication=Replication(3, 3, 2, guaranteed=True))
        async with log.writer(entry_bytes=1) as writer:
            await cluster.bookies["b1"].kill()
            acked = [b"%d" % number for number in range(WRITER_WINDOW_ENTRIES)]
            await writer.append_many(acked)
            begun = trio.current_time()
            with trio.fail_after(60), pytest.raises(NotEnoughBookies):
                await writer.append(b"no room")
            assert 5 <= trio.current_time() - begun < 12
        await cluster.bookies["b1"].start()
        assert await contents(client) == acked
        async with log.writer() as writer:
            assert (await writer.append(b"goes on")).offset == len(acked)


# --- a log that lacks bookies -----------------------------------------------------------------------------


@pytest.mark.parametrize("store_latency_s", [0.0, 0.005, 0.05])
async def test_a_leader_without_bookies_ends_its_ledger_where_it_was_acknowledged(
    cluster: MemoryCluster, b: Client, clock: MockClock, store_latency_s: float
) -> None:
    """Nobody can recover the ledger, because its bookies are gone. Its writer fixes its end in the metadata
    store. The append fails for certain, and the log goes on with other bookies.
    """
    async with cluster.client(append_deadline_s=5, store_latency_s=store_latency_s) as owner:
        log = await log_of(owner, replication=Replication(3, 3, 2))
        async with log.writer() as writer:
            await writer.append(b"acknowledged")
            for bookie in ("b1", "b2"):
                await cluster.bookies[bookie].kill()
            with pytest.raises(NotEnoughBookies):
                await writer.append(b"no quorum")
            ledger_id = writer.statistics().ledger_id
        metadata = await b.ledgers.metadata(ledger_id)
        assert (metadata.is_closed, metadata.last_entry) == (True, 0)
    for _ in range(2):
        await cluster.add_bookie()
    await eventually(lambda: len(b.opened.bookies.writable()) == 3)
    async with (await log_of(b)).writer() as writer:
        assert (await writer.append(b"goes on")).offset == 1


async def test_a_leader_without_bookies_ends_both_its_ledgers_while_it_rolls(
    cluster: MemoryCluster, b: Client, clock: MockClock
) -> None:
    """The older ledger fails before the newer one has confirmed anything, or the other way round."""
    async with cluster.client(append_deadline_s=5, store_latency_s=0.005) as owner:
        log = await log_of(owner, replication=Replication(3, 3, 2), roll=RollPolicy(max_records=4))
        async with log.writer(entry_bytes=1) as writer, trio.open_nursery() as nursery:
            await writer.append_many([b"%d" % n for n in range(3)])
            await eventually(lambda: writer._core.chain.spare is not None)
            for bookie in ("b1", "b2"):
                await cluster.bookies[bookie].kill()
            older = Outcome(nursery, lambda: writer.append(b"older"))
            await eventually(lambda: writer._core.chain.draining is not None)
            await trio.sleep(1)
            newer = Outcome(nursery, lambda: writer.append(b"newer"))
            await eventually(lambda: older.is_over and newer.is_over)
            assert isinstance(older.failure, NotEnoughBookies)
            assert isinstance(newer.failure, NotEnoughBookies)
    for _ in range(2):
        await cluster.add_bookie()
    await eventually(lambda: len(b.opened.bookies.writable()) == 3)
    async with (await log_of(b)).writer() as writer:
        assert (await writer.append(b"goes on")).offset == 3


async def test_a_leader_without_bookies_and_without_the_store_answers_in_time(
    cluster: MemoryCluster, b: Client, clock: MockClock
) -> None:
    async with cluster.client(append_deadline_s=5) as owner:
        log = await log_of(owner, replication=Replication(3, 3, 2))
        async with log.writer() as writer:
            await writer.append(b"acknowledged")
            for bookie in ("b1", "b2"):
                await cluster.bookies[bookie].kill()
            owner.store.is_hanging = True
            begun = trio.current_time()
            with pytest.raises(AppendUnknown):
                await writer.append(b"no quorum")
            assert trio.current_time() - begun < 5 + LOG_RESOLVE_TIMEOUT_S + 1
