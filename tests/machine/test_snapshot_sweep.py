"""A sweep deletes the snapshots of deleted logs and of dead savers, and touches no others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import attrs
import pytest
import trio

from ledgerlog.errors import LedgerLogError, LedgerNotFound
from ledgerlog.limits import LOG_SWEEP_AGE_S, REPLICA_SNAPSHOT_SWEEP_AGE_S
from ledgerlog.log.log import Log, create_log, delete_log, list_logs
from ledgerlog.log.snapshot_list import SnapshotList
from ledgerlog.log.sweep import sweep
from ledgerlog.machine.snapshots import LedgerSnapshots
from ledgerlog.model.layout import SNAPSHOTS, snapshots_path
from ledgerlog.model.snapshots import ListedSnapshot, snapshot_labels
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, SeededEnvironment, open_cluster


@attrs.frozen
class _Wrapped:
    """The part of a cluster that ``LedgerSnapshots`` uses."""

    client: Any


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with open_cluster(3) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as client:
        yield client


@pytest.fixture
async def log(client: Client) -> Log:
    return await create_log(client.opened, "log")


class Clocks:
    """The wall clocks of all clients. Nothing else notices that time passes."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def advance(self, seconds: float) -> None:
        self.ahead_ms += round(1000 * seconds)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    now_ms = SeededEnvironment.now_ms
    monkeypatch.setattr(SeededEnvironment, "now_ms", lambda self: now_ms(self) + clocks.ahead_ms)
    return clocks


def snapshots_of(client: Client) -> LedgerSnapshots:
    return LedgerSnapshots(_Wrapped(client.opened))


def whys(found: list[Any]) -> list[str]:
    return [orphan.why for orphan in found]


class Saver:
    """Saves a snapshot, and waits in the middle until ``may_end``."""

    def __init__(self, client: Client, log: Log) -> None:
        self._client = client
        self._log = log
        self.has_begun = trio.Event()
        self.may_end = False
        self.error: LedgerLogError | None = None

    def _pieces(self) -> Iterator[bytes]:
        yield bytes(5_000_000)
        self.has_begun.set()
        while not self.may_end:
            yield b""

    async def run(self) -> None:
        try:
            await snapshots_of(self._client).save("log", self._log.incarnation, 10, self._pieces())
        except LedgerLogError as error:
            self.error = error

    async def die(self, cluster: MemoryCluster) -> None:
        """Begin a snapshot, and die without a chance to clean up."""
        async with cluster.client() as self._client, trio.open_nursery() as nursery:
            nursery.start_soon(self.run)
            await self.has_begun.wait()
            self._client.store.disconnect()
            nursery.cancel_scope.cancel()


async def test_snapshots_go_with_their_log(client: Client, log: Log) -> None:
    await snapshots_of(client).save("log", log.incarnation, 10, [b"x"])
    other = await create_log(client.opened, "other")
    info = await snapshots_of(client).save("other", other.incarnation, 10, [b"y"])
    await delete_log(client.opened, "log")
    assert len(await client.ledgers.list()) == 1
    assert await snapshots_of(client).find(log.incarnation) == []
    assert await snapshots_of(client).load(info) == b"y"
    assert len(await client.store.children(SNAPSHOTS)) == 1


async def test_a_log_whose_list_of_snapshots_is_damaged_is_deleted_and_a_sweep_finds_the_snapshots(
    client: Client, log: Log, clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    await snapshots_of(client).save("log", log.incarnation, 10, [b"x"])
    path = snapshots_path(log.incarnation)
    node = await client.store.get(path)
    assert node is not None
    await client.store.set(path, b"?", version=node.version)
    await delete_log(client.opened, "log")
    assert await list_logs(client.opened) == []
    assert "what log 'log' left is not deleted now and is left to a sweep" in caplog.text
    clocks.advance(2 * REPLICA_SNAPSHOT_SWEEP_AGE_S)
    assert whys(await sweep(client.opened)) == ["its log is gone"]
    assert await client.ledgers.list() == []


async def test_snapshots_that_a_deleted_log_has_left_are_swept_and_no_others(
    client: Client, log: Log, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for next_offset in (10, 20):
        await snapshots_of(client).save("log", log.incarnation, next_offset, [b"x"])
    with monkeypatch.context() as patch:

        async def nothing(*_: object) -> None:
            return

        patch.setattr("ledgerlog.log.log.delete_snapshots", nothing)
        await delete_log(client.opened, "log")
    again = await create_log(client.opened, "log")
    info = await snapshots_of(client).save("log", again.incarnation, 5, [b"y"])
    assert await sweep(client.opened) == [], "the snapshots are too young"
    clocks.advance(2 * REPLICA_SNAPSHOT_SWEEP_AGE_S)
    assert whys(await sweep(client.opened, delete=False)) == ["its log is gone"] * 2
    assert len(await client.ledgers.list()) == 3
    found = await sweep(client.opened)
    assert [(orphan.log, orphan.why, orphan.is_deleted) for orphan in found] == [
        ("log", "its log is gone", True)
    ] * 2
    assert await snapshots_of(client).find(again.incarnation) == [info]
    assert await snapshots_of(client).load(info) == b"y"
    assert len(await client.store.children(SNAPSHOTS)) == 1, "the list goes with its snapshots"


async def test_a_snapshot_whose_saver_died_before_listing_it_is_swept(
    client: Client, log: Log, clocks: Clocks
) -> None:
    await client.ledgers.create(metadata=snapshot_labels("log", log.incarnation))
    clocks.advance(LOG_SWEEP_AGE_S + 1)
    assert whys(await sweep(client.opened)) == ["no list of snapshots names it"]
    assert await client.ledgers.list() == []


async def test_a_snapshot_whose_saver_died_while_writing_is_swept_after_a_day(
    cluster: MemoryCluster, client: Client, log: Log, clocks: Clocks
) -> None:
    await Saver(client, log).die(cluster)
    clocks.advance(REPLICA_SNAPSHOT_SWEEP_AGE_S / 2)
    assert await sweep(client.opened) == [], "its saver may still write it"
    assert len(await SnapshotList(client.store, log.incarnation).read()) == 1
    clocks.advance(REPLICA_SNAPSHOT_SWEEP_AGE_S / 2 + 1)
    assert whys(await sweep(client.opened, delete=False)) == ["it was begun long ago and never finished"]
    assert len(await SnapshotList(client.store, log.incarnation).read()) == 1, "delete=False changes nothing"
    assert whys(await sweep(client.opened)) == ["it was begun long ago and never finished"]
    assert await client.ledgers.list() == []
    assert await SnapshotList(client.store, log.incarnation).read() == []


async def test_a_saver_who_took_longer_than_a_sweep_waits_fails_and_leaves_nothing(
    cluster: MemoryCluster, client: Client, log: Log, clocks: Clocks
) -> None:
    saver = Saver(client, log)
    async with cluster.client() as sweeping, trio.open_nursery() as nursery:
        nursery.start_soon(saver.run)
        await saver.has_begun.wait()
        clocks.advance(2 * REPLICA_SNAPSHOT_SWEEP_AGE_S)
        assert len(await sweep(sweeping.opened)) == 1
        saver.may_end = True
    assert isinstance(saver.error, LedgerLogError)
    assert await snapshots_of(client).find(log.incarnation) == []
    assert await client.ledgers.list() == []


async def test_a_snapshot_that_is_finished_while_it_is_being_swept_is_kept(
    cluster: MemoryCluster, client: Client, log: Log, clocks: Clocks
) -> None:
    """The sweep reads an unfinished snapshot. The saver closes and finishes it before the sweep writes."""
    writer = await client.ledgers.create(metadata=snapshot_labels("log", log.incarnation))
    listed = ListedSnapshot(writer.ledger_id, 10)
    snapshots = SnapshotList(client.store, log.incarnation)
    await snapshots.change(lambda _: [listed])
    await writer.append(b"x")
    await writer.close()
    clocks.advance(REPLICA_SNAPSHOT_SWEEP_AGE_S + 1)
    finished = attrs.evolve(listed, size=1)

    async with cluster.client() as sweeping:

        async def meanwhile() -> None:
            await snapshots.change(lambda _: [finished])

        sweeping.store.before_write = meanwhile
        assert await sweep(sweeping.opened) == []
    (info,) = await snapshots_of(client).find(log.incarnation)
    assert await snapshots_of(client).load(info) == b"x"


async def test_a_saver_that_lists_while_a_sweep_has_found_it_in_no_list_does_not_finish(
    cluster: MemoryCluster, client: Client, log: Log, clocks: Clocks
) -> None:
    """The sweep finds the ledger in no list and deletes it. A deleted ledger is never listed as whole."""
    writer = await client.ledgers.create(metadata=snapshot_labels("log", log.incarnation))
    clocks.advance(LOG_SWEEP_AGE_S + 1)
    snapshots = SnapshotList(client.store, log.incarnation)

    async with cluster.client() as sweeping:

        async def meanwhile() -> None:
            await snapshots.change(lambda _: [ListedSnapshot(writer.ledger_id, 10)])
            await writer.append(b"x")

        sweeping.store.before_write = meanwhile
        assert [orphan.is_deleted for orphan in await sweep(sweeping.opened)] == [True]
    with pytest.raises(LedgerNotFound):
        await writer.close()


async def test_a_snapshot_that_was_closed_while_a_sweep_looked_is_not_deleted(
    cluster: MemoryCluster, client: Client, log: Log, clocks: Clocks
) -> None:
    writer = await client.ledgers.create(metadata=snapshot_labels("log", log.incarnation))
    clocks.advance(LOG_SWEEP_AGE_S + 1)
    snapshots = SnapshotList(client.store, log.incarnation)

    async with cluster.client() as sweeping:

        async def meanwhile() -> None:
            await snapshots.change(lambda _: [ListedSnapshot(writer.ledger_id, 10)])
            await writer.append(b"x")
            await writer.close()
            await snapshots.change(lambda _: [ListedSnapshot(writer.ledger_id, 10, 1)])

        sweeping.store.before_write = meanwhile
        assert [orphan.is_deleted for orphan in await sweep(sweeping.opened)] == [False]
    (info,) = await snapshots_of(client).find(log.incarnation)
    assert await snapshots_of(client).load(info) == b"x"


async def test_a_saver_whose_snapshot_was_taken_off_its_list_does_not_finish(
    client: Client, log: Log
) -> None:
    """The snapshot is off the list, but its ledger is not deleted yet."""
    saver = Saver(client, log)
    snapshots = SnapshotList(client.store, log.incarnation)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(saver.run)
        await saver.has_begun.wait()
        await snapshots.change(lambda _: [])
        saver.may_end = True
    assert isinstance(saver.error, LedgerNotFound)
    assert await snapshots.read() == []
    assert await client.ledgers.list() == []
