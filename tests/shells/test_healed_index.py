"""If a bookie finds its index damaged, it makes the index again from its files, without an operator and
without other bookies."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

import ledgerlog
from bookie.core import rows
from bookie.core.rows import Row
from bookie.server import main
from bookie.server.healing import serve_and_heal
from bookie.server.node import BookieNode, open_bookie
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.errors import LedgerLogError, StorageCorrupt
from ledgerlog.model.quorum import Replication
from ledgerlog.net.local import LocalNetwork
from ledgerlog.testing.memory_cluster import (
    SMALL,
    Bookie,
    Client,
    MemoryCluster,
    eventually,
    new_tree,
    open_cluster,
)
from ledgerlog.wire.frame import Status
from tests.waiting import until

R332 = Replication(3, 3, 2)
CONFIG = attrs.evolve(SMALL, scrub=False)
ENTRIES = 20


def payload_of(entry: int) -> bytes:
    return b"entry %d|" % entry * 50


async def fill(client: Client, cluster: MemoryCluster) -> int:
    writer = await client.ledgers.create(replication=R332)
    for entry in range(ENTRIES):
        await writer.append(payload_of(entry))
    await writer.close()
    for bookie in cluster.bookies.values():
        await bookie.node.engine.flush()
    return writer.ledger_id


def damage_row(bookie: Bookie, key: bytes) -> None:
    (index,) = bookie.indexes.indexes.values()
    value = index.get_now(key)
    assert value is not None
    index.apply([(key, bytes([value[0] ^ 1]) + value[1:])])


def damage_blocks(bookie: Bookie, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every read of a range of the open index fail."""
    (index,) = bookie.indexes.indexes.values()

    def fail(*args: object, **options: object) -> list[Row]:
        raise StorageCorrupt(index.path, None, "a block is damaged")

    monkeypatch.setattr(index, "scan_now", fail)


async def check_copies(bookie: Bookie, ledger_id: int) -> None:
    result = await bookie.node.engine.read(ledger_id, first=0, last=ENTRIES - 1, stride=1, bytes_max=1 << 20)
    assert result.entries.payloads() == [payload_of(entry) for entry in range(ENTRIES)]


async def healed(bookie: Bookie, before: BookieNode) -> None:
    await eventually(lambda: bookie.is_running and bookie.node is not before)


@pytest.mark.parametrize("kind", ["run", "ledger"])
async def test_scrubbing_finds_damage_of_the_index_and_the_index_is_made_again(
    kind: str, autojump_clock: MockClock
) -> None:
    async with open_cluster(3, config=CONFIG) as cluster, cluster.client() as client:
        ledger_id = await fill(client, cluster)
        bookie = cluster.bookies["b1"]
        before, address = bookie.node, bookie.node.address
        key = rows.run_key(ledger_id, 0) if kind == "run" else rows.ledger_key(ledger_id)
        damage_row(bookie, key)
        await before.engine.scrubber.scrub()
        assert before.engine.index.damage is not None
        await healed(bookie, before)
        assert bookie.node.address == address
        assert await bookie.node.engine.scrubber.scrub() == 0
        assert bookie.node.engine.index.damage is None
        await check_copies(bookie, ledger_id)


def test_a_bookie_that_serves_again_frees_what_its_former_life_left() -> None:
    """The garbage collector does not visit the objects of a bookie that serves. Most of them are in
    cycles."""

    class Engine:
        def __init__(self) -> None:
            self.itself = self

    thresholds, interval_s = gc.get_threshold(), sys.getswitchinterval()
    try:
        engine = Engine()
        former = weakref.ref(engine)
        main._tune_interpreter()
        del engine
        main._tune_interpreter()
        assert former() is None
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval_s)


async def test_an_index_that_was_made_again_marks_nothing_as_lost(autojump_clock: MockClock) -> None:
    async with open_cluster(3, config=CONFIG) as cluster, cluster.client() as client:
        ledger_id = await fill(client, cluster)
        bookie = cluster.bookies["b1"]
        before = bookie.node
        damage_row(bookie, rows.run_key(ledger_id, 0))
        await before.engine.scrubber.scrub()
        await healed(bookie, before)
        assert bookie.node.engine.loss_marks.now.fenced_through < ledger_id
        assert not bookie.node.engine.loss_marks.now.denies_nothing(ledger_id)


async def test_a_read_that_meets_damage_of_the_index_has_it_made_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster(3, config=CONFIG) as cluster, cluster.client() as client:
        ledger_id = await fill(client, cluster)
        bookie = cluster.bookies["b1"]
        await bookie.stop()
        await bookie.start()  # This index has its rows on the disk only.
        before = bookie.node
        damage_blocks(bookie, monkeypatch)
        result = await before.engine.read(ledger_id, first=0, last=0, stride=1, bytes_max=1)
        assert result.status is Status.CORRUPT
        await healed(bookie, before)
        await check_copies(bookie, ledger_id)


async def test_an_index_that_is_damaged_again_within_an_hour_is_made_again_only_after_it(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster(3, config=CONFIG) as cluster, cluster.client() as client:
        ledger_id = await fill(client, cluster)
        bookie = cluster.bookies["b1"]
        for wait_s in (0, 3600):
            before, began = bookie.node, trio.current_time()
            damage_row(bookie, rows.run_key(ledger_id, 0))
            await before.engine.scrubber.scrub()
            await eventually(lambda before=before: bookie.node is not before, timeout_s=10_000)
            assert wait_s * 0.95 <= trio.current_time() - began < wait_s * 1.1 + 60
            await check_copies(bookie, ledger_id)


@pytest.mark.parametrize("may_salvage", [False, True])
async def test_if_a_file_is_damaged_too_the_directory_is_salvaged_only_by_leave(
    may_salvage: bool, autojump_clock: MockClock
) -> None:
    async with open_cluster(3, config=CONFIG) as cluster, cluster.client() as client:
        ledger_id = await fill(client, cluster)
        bookie = cluster.bookies["b1"]
        bookie.repair_damage = may_salvage
        before = bookie.node
        damage_row(bookie, rows.run_key(ledger_id, 0))
        path = min(path for path in bookie.disk.files if path.endswith(".journal"))
        bookie.disk.files[path][4096 + 9] ^= 1
        await before.engine.scrubber.scrub()
        await healed(bookie, before)
        assert bookie.node.has_sound_index is may_salvage
        assert (bookie.node.engine.loss_marks.now.fenced_through >= ledger_id) is may_salvage
        if may_salvage:
            await bookie.node.repair.wait_done()
            await check_copies(bookie, ledger_id)
        else:
            after = bookie.node
            await after.engine.scrubber.scrub()
            await trio.sleep(80_000)
            assert bookie.node is after, "it does not stop again for nothing"
            assert (await client.contents(ledger_id)) == [payload_of(entry) for entry in range(ENTRIES)]


async def test_a_bookie_that_cannot_write_its_index_ends_if_the_index_was_made_again_just_now(
    autojump_clock: MockClock,
) -> None:
    tree, disk, indexes = new_tree(), MemoryDisk(), MemoryIndexes()
    opened: list[str | None] = []

    def open_node(*, again_at: str | None) -> AbstractAsyncContextManager[BookieNode]:
        opened.append(again_at)
        return open_bookie(
            "/b1",
            store,
            bookie_id="b1",
            network=LocalNetwork(),
            listen=again_at or "first-address",
            random_bytes=os.urandom,
            config=CONFIG,
            disk=disk,
            indexes=indexes,
            heals_index=again_at is not None,
        )

    async def fail(node: BookieNode) -> None:
        index = node.engine.index
        with index.noting_damage():
            raise StorageCorrupt(index.path, None, "a flush met damage")

    async with tree.open_store() as store:
        with pytest.raises(StorageCorrupt, match="a flush met damage"):
            await serve_and_heal(open_node, fail)
    assert opened == [None, "first-address"]


async def test_another_failure_of_the_storage_ends_the_bookie(autojump_clock: MockClock) -> None:
    tree = new_tree()

    def open_node(*, again_at: str | None) -> AbstractAsyncContextManager[BookieNode]:
        assert again_at is None
        return open_bookie(
            "/b1",
            store,
            bookie_id="b1",
            network=LocalNetwork(),
            listen="b1",
            random_bytes=os.urandom,
            config=CONFIG,
            disk=MemoryDisk(),
            indexes=MemoryIndexes(),
        )

    async def fail(node: BookieNode) -> None:
        with node.engine.index.noting_damage():
            raise StorageCorrupt("/b1/journal/1", 0, "a segment is damaged")

    async with tree.open_store() as store:
        with pytest.raises(StorageCorrupt, match="a segment is damaged"):
            await serve_and_heal(open_node, fail)


def damage_tables(path: Path) -> None:
    """Write into the tables of an index that a process has mapped into its memory."""
    tables = [table for table in path.iterdir() if table.suffix in (".ldb", ".sst")]
    assert tables
    for table in tables:
        with table.open("r+b") as file:
            file.seek(table.stat().st_size // 2)
            file.write(b"damage")


async def test_a_cluster_inside_a_process_makes_a_damaged_index_again_too(tmp_path: Path) -> None:
    uri, runs = f"file:{tmp_path}/cluster", 500
    async with (
        ledgerlog.connect(uri) as cluster,
        await cluster.ledgers.create(replication=Replication(1, 1, 1)) as writer,
    ):
        for entry in range(runs):  # So many that a start does not read all blocks of the index.
            await writer.append(payload_of(entry))
    async with ledgerlog.connect(uri):
        pass  # The store of the index writes tables when it opens its log.
    async with ledgerlog.connect(uri) as cluster:
        damage_tables(tmp_path / "cluster" / "bookie-1" / "index")

        async def reads_all() -> bool:
            try:
                reader = await cluster.ledgers.open(writer.ledger_id)
                found = [data for entry in range(runs) for data in await reader.read(entry, entry)]
            except LedgerLogError:
                return False
            return found == [payload_of(entry) for entry in range(runs)]

        assert not await reads_all(), "the index cannot tell"
        await until(reads_all)
