"""A bookie whose disk fills up is read-only in time, does what must go on, and comes back by itself."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.errors import BookieReadOnly, NotEnoughBookies, StorageError
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import KIB, MIB
from ledgerlog.model.layout import read_only_path, writable_path
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.memory_cluster import SMALL, Bookie, Client, MemoryCluster, eventually, open_cluster

R222 = Replication(2, 2, 2)
R333 = Replication(3, 3, 3)
CONFIG = attrs.evolve(SMALL, disk_reserve_bytes=4 * MIB, log_bytes_max=2 * MIB)
CAPACITY = 16 * MIB
ENTRY = bytes(64 * KIB)


async def bounded(cluster: MemoryCluster, bookie_id: str, capacity: int = CAPACITY) -> Bookie:
    """A bookie of the cluster, on a disk that may become full."""
    bookie = cluster.bookies[bookie_id]
    await bookie.stop()
    bookie.disk, bookie.indexes, bookie.fix_cookie = MemoryDisk(), MemoryIndexes(), True
    bookie.disk.capacity_bytes = capacity
    await bookie.start()
    return bookie


async def registered(bookie: Bookie) -> tuple[bool, bool]:
    """Whether it is in the list of those that are writable, and in that of those that are read-only."""
    paths = writable_path(bookie.bookie_id), read_only_path(bookie.bookie_id)
    writable, read_only = [await bookie.store.get(path) is not None for path in paths]
    return writable, read_only


def free(bookie: Bookie) -> int:
    assert bookie.disk.capacity_bytes is not None
    return bookie.disk.capacity_bytes - sum(map(len, bookie.disk.files.values()))


async def fill(client: Client, *bookies: Bookie, replication: Replication = R222) -> LedgerWriter:
    """A ledger that is written until all of the bookies are read-only."""
    writer = await client.ledgers.create(replication=replication)
    for _ in range(2 * CAPACITY // len(ENTRY)):
        if all(bookie.node.is_read_only for bookie in bookies):
            return writer
        await writer.append(ENTRY)
    raise AssertionError("they took more than their disks hold")


async def append_for_ever(writer: LedgerWriter) -> None:
    while True:
        await writer.append(ENTRY)


async def test_a_bookie_turns_read_only_before_its_disk_is_full_and_new_ledgers_go_elsewhere(
    clock: MockClock,
) -> None:
    async with open_cluster(4, config=CONFIG) as cluster, cluster.client() as client:
        full = [await bounded(cluster, "b1"), await bounded(cluster, "b2")]
        await eventually(lambda: len(client.opened.bookies.writable()) == 4)
        writer = await fill(client, *full)
        for bookie in full:
            assert free(bookie) > 0
            assert bookie.node.engine.statistics()["is_disk_full"] == 0
        await eventually(lambda: len(client.opened.bookies.writable()) == 2)
        for bookie in full:
            assert await registered(bookie) == (False, True)
        await writer.append(b"goes on elsewhere")
        await writer.close()
        assert set(writer.metadata.last_fragment.ensemble) == {"b3", "b4"}
        assert (await client.ledgers.verify(writer.ledger_id)).under_replicated == []


async def test_without_another_bookie_the_writer_is_told_and_recovery_closes_the_ledger_all_the_same(
    clock: MockClock,
) -> None:
    async with open_cluster(2, config=CONFIG) as cluster, cluster.client() as client:
        full = [await bounded(cluster, "b1"), await bounded(cluster, "b2")]
        writer = await client.ledgers.create(replication=R222)
        with pytest.raises(NotEnoughBookies, match=r"failed: .*b\d \(READ_ONLY\)"):
            await append_for_ever(writer)
        with pytest.raises(BookieReadOnly, match=r"2 writable bookies are needed, 0 .* emptied: b1, b2"):
            await client.ledgers.create(replication=R222)
        with pytest.raises(NotEnoughBookies) as few:
            await client.ledgers.create(replication=R333)
        assert type(few.value) is NotEnoughBookies, "the two that are full would not do either"
        async with cluster.client() as another:
            reader = await another.ledgers.open(writer.ledger_id, recover=True)
            assert await reader.last_add_confirmed() >= writer.last_add_confirmed
            assert (await another.ledgers.verify(writer.ledger_id)).under_replicated == []
        assert all(bookie.is_running and bookie.node.is_read_only for bookie in full)


async def test_it_comes_back_by_itself_once_ledgers_were_deleted_and_long_before_collections_time(
    clock: MockClock,
) -> None:
    async with open_cluster(2, config=CONFIG) as cluster, cluster.client() as client:
        bookie = await bounded(cluster, "b1")
        writer = await client.ledgers.create(replication=R222)
        with pytest.raises(NotEnoughBookies):
            await append_for_ever(writer)
        assert bookie.node.is_read_only
        await client.ledgers.delete(writer.ledger_id)
        with trio.fail_after(CONFIG.collect_interval_s / 10):
            await eventually(lambda: not bookie.node.is_read_only, timeout_s=float("inf"))
        await eventually(lambda: len(client.opened.bookies.writable()) == 2)
        again = await client.ledgers.create(replication=R222)
        await again.append(b"room again")
        await again.close()


async def test_who_starts_on_a_full_disk_is_never_registered_as_writable(clock: MockClock) -> None:
    async with open_cluster(2, config=CONFIG) as cluster, cluster.client() as client:
        bookie = await bounded(cluster, "b1")
        await bookie.stop()
        bookie.disk.capacity_bytes = CAPACITY - free(bookie) + MIB
        async with client.opened.store.watch(writable_path("b1")) as watch:
            await bookie.start()
            assert await registered(bookie) == (False, True)
            with trio.move_on_after(60) as patience:
                await watch.wait()
            assert patience.cancelled_caught
        assert client.opened.bookies.is_read_only("b1")


async def test_an_operators_word_stands_when_the_disk_has_room_again(clock: MockClock) -> None:
    async with open_cluster(1, config=CONFIG) as cluster:
        bookie = await bounded(cluster, "b1")
        bookie.set_read_only(True)
        bookie.disk.capacity_bytes = CAPACITY - free(bookie) + MIB
        await trio.sleep(2 * CONFIG.disk_watch_interval_s)
        bookie.disk.capacity_bytes = CAPACITY
        await trio.sleep(2 * CONFIG.disk_watch_interval_s)
        assert bookie.node.is_read_only
        bookie.set_read_only(False)
        assert not bookie.node.is_read_only


async def test_a_disk_that_cannot_be_asked_changes_nothing_and_is_said_once(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cluster(1, config=CONFIG) as cluster:
        bookie = await bounded(cluster, "b1")

        async def fail(path: str) -> None:
            await trio.lowlevel.checkpoint()
            raise StorageError(f"cannot look at the space of {path}: Input/output error")

        bookie.disk.space = fail
        await trio.sleep(5 * CONFIG.disk_watch_interval_s)
        assert not bookie.node.is_read_only
        assert [
            record.message.count("the space on its disk cannot be read") for record in caplog.records
        ].count(1) == 1
