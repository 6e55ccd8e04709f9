"""Retention by the leader, the sweep of orphaned ledgers, and what a crash in between leaves."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from ledgerlog.errors import InvalidArgument, LedgerLogError, MetadataOutcomeUnknown
from ledgerlog.limits import LOG_PROPERTIES_BYTES_MAX, LOG_RETENTION_LOOK_S
from ledgerlog.log.log import Log, create_log, delete_log, open_log
from ledgerlog.log.registry import LogRegistry
from ledgerlog.log.retention import apply_retention
from ledgerlog.log.sweep import sweep
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.layout import CURSORS, log_record_path
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.testing.faulty_store import answer_lost_behind
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, open_cluster

OLD_S = 10_000.0


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with open_cluster(3) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as client:
        yield client


async def make(client: Client, **options: object) -> Log:
    return await create_log(client.opened, "log", **options)


async def listed(log: Log) -> list[int]:
    return [segment.ledger_id for segment in (await log.info()).segments]


async def test_a_leader_drops_what_is_over_the_bound_in_bytes(
    client: Client, autojump_clock: MockClock
) -> None:
    log = await make(client, roll=RollPolicy(max_records=10), retention=RetentionPolicy(max_bytes=3000))
    async with log.writer() as writer:
        for _ in range(20):
            await writer.append_many([b"x" * 100] * 10)
            await trio.sleep(0.1)
        await trio.sleep(120)
        info = await log.info()
        assert info.next_offset == 200
        assert 160 <= info.first_offset <= 170
        assert len(await client.ledgers.list()) <= 6
    async with log.read() as records:
        assert [record.offset async for record in records] == list(range(info.first_offset, 200))


async def test_a_leader_drops_what_is_old_also_from_a_log_that_nobody_writes(
    client: Client, autojump_clock: MockClock
) -> None:
    log = await make(client, retention=RetentionPolicy(max_age_s=600))
    async with log.writer() as writer:
        await writer.append(b"old")
        await trio.sleep(500)
        await writer.append(b"young")
        await trio.sleep(200)
        assert (await log.info()).first_offset == 0, "whole ledgers only"
        await trio.sleep(600)
        info = await log.info()
        assert (info.first_offset, info.next_offset) == (2, 2)
        assert writer.statistics().rolls == 1
        await writer.append(b"new")
    assert (await log.info()).next_offset == 3


async def test_retention_is_paused_while_the_store_is_away_and_goes_on(
    client: Client, autojump_clock: MockClock
) -> None:
    log = await make(client, retention=RetentionPolicy(max_age_s=100), roll=RollPolicy(max_records=1))
    async with log.writer() as writer:
        await writer.append(b"x")
        await writer.append(b"y")
        client.store.disconnect()
        await trio.sleep(300)
        client.store.reconnect()
        await trio.sleep(300)
        assert writer.failure is None
        assert (await log.info()).first_offset == 2


async def test_a_deposed_leader_drops_nothing(
    cluster: MemoryCluster, client: Client, autojump_clock: MockClock
) -> None:
    log = await make(client, roll=RollPolicy(max_records=5))
    async with log.writer() as writer:
        await writer.append_many([b"x"] * 5)
        await writer.roll()
        await writer.append(b"x")
        epoch = writer.epoch
    await log.configure(retention=RetentionPolicy(max_bytes=1))
    async with cluster.client() as other:
        rival = await open_log(other.opened, "log")

        async def meanwhile() -> None:
            await rival.seal()

        async def retain() -> int:
            return await apply_retention(
                client.opened, log._registry, "log", log.incarnation, epoch=epoch, durable_bytes=0
            )

        client.store.before_write = meanwhile
        assert await retain() == 0, "it was deposed while it wrote"
        assert await retain() == 0, "it was deposed before"
    assert (await log.info()).first_offset == 0
    assert await log.apply_retention() == 5


async def test_what_is_only_on_its_way_lets_nothing_go(
    cluster: MemoryCluster, client: Client, autojump_clock: MockClock
) -> None:
    """Retention counts the bytes that are kept from the tail. Those that no bookie has yet may be lost."""
    log = await make(client, retention=RetentionPolicy(max_bytes=1000))
    async with log.writer() as writer, trio.open_nursery() as nursery:
        await writer.append(b"x" * 900)
        await writer.roll()
        await writer.append(b"y" * 50)
        cluster.network.stall("*", "*")
        nursery.start_soon(writer.append, b"z" * 5000)
        await trio.sleep(3)
        await log.configure(retention=RetentionPolicy(max_bytes=999))
        await trio.sleep(1)
        assert (await log._read())[0].first_offset == 0
        cluster.network.heal()
        await writer.flush()
        await trio.sleep(120)
        assert (await log._read())[0].first_offset == 1, "now it lies on an ack quorum"


# --- policies under a leader ----------------------------------------------------------------------


async def rolls_of(writer: LogWriter, records: int) -> int:
    """How often the leader goes on in a new ledger while so many records come one by one."""
    before = writer.statistics().rolls
    for _ in range(records):
        await writer.append(b"x" * 10)
        await trio.sleep(0.1)
    return writer.statistics().rolls - before


async def test_a_leader_keeps_to_the_roll_policy_that_somebody_else_has_written(
    cluster: MemoryCluster, client: Client, autojump_clock: MockClock
) -> None:
    log = await make(client, roll=RollPolicy(max_records=1000))
    async with cluster.client() as other, log.writer() as writer:
        operator = await open_log(other.opened, "log")
        assert await rolls_of(writer, 20) == 0
        await operator.configure(roll=RollPolicy(max_records=10))
        await trio.sleep(1)
        assert writer.statistics().rolls == 1, "the ledger is larger than that already"
        assert await rolls_of(writer, 40) in (3, 4)
        await operator.configure(roll=RollPolicy(max_bytes=10_000))
        await trio.sleep(1)
        assert await rolls_of(writer, 40) == 0
        await operator.configure(roll=RollPolicy(max_bytes=300))
        assert await rolls_of(writer, 60) in (2, 3)
        assert (writer.epoch, writer.failure) == (1, None)


async def test_a_leader_keeps_to_a_bound_of_age_that_comes_and_goes(
    cluster: MemoryCluster, client: Client, autojump_clock: MockClock
) -> None:
    log = await make(client)
    async with cluster.client() as other, log.writer() as writer:
        operator = await open_log(other.opened, "log")
        await writer.append(b"x")
        await trio.sleep(100)
        await operator.configure(roll=RollPolicy(max_age_s=400))
        await trio.sleep(100)
        assert len(await client.ledgers.list()) == 1, "not even the next one is made"
        await trio.sleep(190)
        assert writer.statistics().rolls == 0
        await trio.sleep(20)
        assert writer.statistics().rolls == 1
        await writer.append(b"x")
        await operator.configure(roll=RollPolicy(max_age_s=5))
        await trio.sleep(6)
        assert writer.statistics().rolls == 2
        await writer.append(b"x")
        await operator.configure(roll=RollPolicy())
        await trio.sleep(1000)
        assert writer.statistics().rolls == 2


async def test_a_new_retention_is_kept_to_at_once(client: Client, autojump_clock: MockClock) -> None:
    log = await make(client, roll=RollPolicy(max_records=5))
    async with log.writer() as writer:
        for _ in range(4):
            await writer.append_many([b"x"] * 5)
            await trio.sleep(1)
        await log.configure(retention=RetentionPolicy(max_bytes=1))
        await trio.sleep(1)
        assert (await log.info()).first_offset >= 10


# --- orphans --------------------------------------------------------------------------------------


async def test_what_a_crash_between_truncation_and_deletion_leaves_is_swept(
    cluster: MemoryCluster, client: Client, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await make(client, roll=RollPolicy(max_records=10))
    async with log.writer() as writer:
        for _ in range(3):
            await writer.append_many([b"x"] * 10)
            await writer.roll()
        with trio.CancelScope() as crash, monkeypatch.context() as patch:

            async def die(*_: object) -> None:
                crash.cancel()
                await trio.lowlevel.checkpoint()

            patch.setattr("ledgerlog.log.retention.delete_ledgers", die)
            await log.truncate(20)
        assert len(await client.ledgers.list()) == len(await listed(log)) + 2
        await trio.sleep(OLD_S)
        assert await sweep(client.opened, min_age_s=2 * OLD_S) == []
        found = await sweep(client.opened, delete=False)
        assert [(orphan.why, orphan.is_deleted) for orphan in found] == [
            ("it was taken off the list", False)
        ] * 2
        assert len(await sweep(client.opened)) == 2
        assert await client.ledgers.list() == await listed(log)
        await writer.append(b"y")
    async with log.read() as records:
        assert len([record async for record in records]) == 11


async def test_a_ledger_that_a_leader_has_made_ahead_is_not_swept(
    client: Client, autojump_clock: MockClock
) -> None:
    log = await make(client, roll=RollPolicy(max_records=100))
    async with log.writer() as writer:
        await writer.append_many([b"x"] * 90)
        await trio.sleep(OLD_S)
        ledgers = await client.ledgers.list()
        assert len(ledgers) == 2, "the spare"
        assert await sweep(client.opened) == []
        await writer.append_many([b"x"] * 20)
        await trio.sleep(1)
        assert await listed(log) == ledgers
        assert writer.failure is None


async def test_what_a_deposed_leader_has_made_ahead_is_swept(
    cluster: MemoryCluster, client: Client, autojump_clock: MockClock
) -> None:
    log = await make(client, roll=RollPolicy(max_records=100))
    async with cluster.client() as dying:
        with trio.CancelScope() as scope:
            async with (await open_log(dying.opened, "log")).writer() as writer:
                await writer.append_many([b"x"] * 90)
                await trio.sleep(1)
                dying.store.disconnect()  # The leader cannot delete the ledgers that it drops.
                scope.cancel()
    await trio.sleep(OLD_S)
    assert len(await client.ledgers.list()) == 2
    assert await sweep(client.opened) == [], "nobody has taken over: the leader may come back"
    async with log.writer() as writer:
        found = await sweep(client.opened)
        assert [orphan.why for orphan in found] == [
            "its leader of epoch 1 is gone, and the log is at epoch 2"
        ]
        await writer.append(b"x")
    assert await client.ledgers.list() == await listed(log)


async def test_what_a_deleted_log_leaves_is_swept_and_its_namesake_is_not(
    client: Client, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await make(client)
    async with log.writer() as writer:
        await writer.append(b"x")
    with monkeypatch.context() as patch:

        async def nothing(*_: object) -> int:
            return 0

        patch.setattr("ledgerlog.log.log.delete_ledgers", nothing)
        patch.setattr("ledgerlog.log.log.delete_cursors", nothing)
        await log.cursor("c").set(1)
        await delete_log(client.opened, "log")
    again = await make(client)
    async with again.writer() as writer:
        await writer.append(b"y")
    await again.cursor("c").set(0)
    await trio.sleep(OLD_S)
    found = await sweep(client.opened)
    assert [(orphan.log, orphan.why) for orphan in found] == [("log", "its log is gone")]
    assert await client.ledgers.list() == await listed(again)
    assert [state.offset for state in await again.cursors()] == [0]
    left = [await client.store.children(f"{CURSORS}/{name}") for name in await client.store.children(CURSORS)]
    assert [names for names in left if names] == [["c"]]


async def test_the_ledgers_of_a_damaged_log_are_swept_once_it_is_deleted_and_not_before(
    client: Client, autojump_clock: MockClock
) -> None:
    log = await make(client)
    other = await create_log(client.opened, "other")
    for each in (log, other):
        async with each.writer() as writer:
            await writer.append(b"x")
    lost = await create_log(client.opened, "lost")
    async with lost.writer() as writer:
        await writer.append(b"x")
    await LogRegistry(client.store, client.opened.environment).delete("lost", lost.incarnation)
    mine = await listed(log)
    path = log_record_path(log.incarnation)
    node = await client.store.get(path)
    assert node is not None
    await client.store.set(path, node.value[:-1], version=node.version)
    await trio.sleep(OLD_S)
    assert [orphan.log for orphan in await sweep(client.opened)] == ["lost"]
    await delete_log(client.opened, "log", damaged=True)
    found = await sweep(client.opened)
    assert {(orphan.ledger_id, orphan.log, orphan.why) for orphan in found} == {
        (ledger_id, "log", "its log is gone") for ledger_id in mine
    }
    assert await client.ledgers.list() == await listed(other)


async def test_ledgers_that_belong_to_no_log_are_left_alone(
    client: Client, autojump_clock: MockClock
) -> None:
    never_given_out = {"log-name": b"x", "log-incarnation": b"7", "log-epoch": b"1"}
    for labels in ({}, {"log-incarnation": b"junk"}, {"log-incarnation": b"8"}, never_given_out):
        writer = await client.ledgers.create(metadata=labels)
        await writer.close()
    await trio.sleep(OLD_S)
    assert await sweep(client.opened) == []


async def test_a_sweep_of_no_age_at_all_deletes_nothing(client: Client, autojump_clock: MockClock) -> None:
    writer = await client.ledgers.create(
        metadata={"log-name": b"x", "log-incarnation": b"7", "log-epoch": b"1"}
    )
    await writer.close()
    for age_s in (-1, float("nan")):
        with pytest.raises(InvalidArgument):
            await sweep(client.opened, min_age_s=age_s)
    assert await client.ledgers.list() == [writer.ledger_id]


async def test_a_sweep_without_the_store_deletes_nothing(
    client: Client, cluster: MemoryCluster, autojump_clock: MockClock
) -> None:
    log = await make(client)
    async with log.writer() as writer:
        await writer.append(b"x")
    await trio.sleep(OLD_S)
    async with cluster.client() as away:
        away.store.disconnect()
        with pytest.raises(LedgerLogError):
            await sweep(away.opened)
    assert len(await client.ledgers.list()) == 1


async def test_a_truncation_that_took_effect_before_a_successor_came_is_not_denied(
    cluster: MemoryCluster, client: Client, autojump_clock: MockClock
) -> None:
    """The answer to the write is lost. The log is truncated there, so the call has succeeded, no matter who
    leads now."""
    log = await make(client)
    async with cluster.client() as other, log.writer() as writer:
        rival = await open_log(other.opened, "log")
        await writer.append_many([b"x"] * 3)

        async def succeed() -> None:
            async with rival.writer():
                pass

        client.store.faults.append(answer_lost_behind(log_record_path(log.incarnation), succeed))
        await writer.truncate(2)
        assert (await rival.info()).first_offset == 2


async def test_what_refuses_a_change_that_may_have_happened_does_not_say_that_nothing_happened(
    cluster: MemoryCluster, client: Client, autojump_clock: MockClock
) -> None:
    log = await make(client)
    async with cluster.client() as other:
        rival = await open_log(other.opened, "log")

        async def fill() -> None:
            await rival.set_properties({"big": "x" * (LOG_PROPERTIES_BYTES_MAX - 3)})

        client.store.faults.append(answer_lost_behind(log_record_path(log.incarnation), fill))
        with pytest.raises(MetadataOutcomeUnknown) as unknown:
            await log.update_properties({"more": "y"})
        assert isinstance(unknown.value.__cause__, InvalidArgument)
        with pytest.raises(InvalidArgument):
            await log.update_properties({"more": "y"})


async def told_to_go(log: Log, held_by: str) -> list[int]:
    """Return the ledgers that go once the cursor ``held_by``, which pins offset 0, is deleted, according to
    ``why_kept``."""
    going = []
    for segment, why in await log.why_kept():
        if why not in (f"cursor {held_by!r} pins the records from offset 0 on", "a ledger before it is kept"):
            break
        going.append(segment.ledger_id)
    return going


@pytest.mark.parametrize("is_led", [False, True])
@pytest.mark.parametrize("seed", range(6))
async def test_retention_drops_the_ledgers_that_an_operator_was_told(
    client: Client, autojump_clock: MockClock, seed: int, is_led: bool
) -> None:
    """The leader and a call on demand take the decision that ``why_kept`` explains. Both know the records of
    ledgers that are not counted yet."""
    rng = random.Random(seed)
    log = await make(client)
    total = 0
    with trio.CancelScope() as leadership:
        async with log.writer(dedupe=rng.random() < 0.3) as writer:
            for _ in range(rng.randint(2, 5)):
                for _ in range(rng.randint(1, 3)):
                    await writer.append(bytes(size := rng.randint(1, 1000)))
                    total += size
                await writer.roll()
            await log.cursor("hold").set(0, pins=True)
            if rng.random() < 0.3:
                await log.cursor("slow").set(rng.randint(0, 8), pins=True)
            await writer.append(bytes(size := rng.randint(1, 3000)))
            total += size
            await trio.sleep(60)  # Now readers, too, know that the last record is confirmed.
            if not is_led:
                leadership.cancel()  # So the last ledger stays open.
                await trio.lowlevel.checkpoint()
            await log.configure(retention=RetentionPolicy(max_bytes=rng.randint(1, total)))
            await check_what_goes(log, partial(trio.sleep, 2 * LOG_RETENTION_LOOK_S))
    if not is_led:
        await log.configure(retention=RetentionPolicy(max_bytes=rng.randint(1, total)))
        await check_what_goes(log, log.apply_retention)


async def check_what_goes(log: Log, let_go: Callable[[], Awaitable[object]]) -> None:
    before = await listed(log)
    told = await told_to_go(log, "hold")
    assert await listed(log) == before, "the cursor holds everything"
    await log.cursor("hold").delete()
    await let_go()
    assert await listed(log) == before[len(told) :]


async def test_retention_that_a_pin_overtakes_drops_and_deletes_nothing(
    cluster: MemoryCluster, client: Client
) -> None:
    log = await make(client)
    async with log.writer() as writer:
        for _ in range(3):
            await writer.append_many([b"x"] * 10)
            await writer.roll()
    await log.configure(retention=RetentionPolicy(max_bytes=1))
    before = await client.ledgers.list()
    async with cluster.client() as rival:
        cursor = (await open_log(rival.opened, "log")).cursor("c")

        async def pin() -> None:
            await cursor.move(0, expected=None, pins=True)

        client.store.before_write = pin
        assert await log.apply_retention() == 0
    assert await client.ledgers.list() == before
    async with log.read() as records:
        assert [record.offset async for record in records] == list(range(30))
