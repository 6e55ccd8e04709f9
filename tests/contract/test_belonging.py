"""A metadata store is exchanged for another one under its users: the promise of ``MetadataStore.belong_to``.

A ``World`` is a store that a test may exchange while clients have it open: for an empty store, for a store
with another cluster, and back. To test another kind of store, or another way to exchange one, write its world
and add it to ``EXCHANGES``.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import pytest
import trio
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from bookie.server.node import BookieNode, open_bookie
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.errors import (
    LedgerLogError,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    SessionExpired,
    WrongCluster,
)
from ledgerlog.ledger.client import open_client
from ledgerlog.meta.belonging import StoreRestored, join_cluster, make_cluster
from ledgerlog.meta.memory import Content, MemoryTree
from ledgerlog.meta.sqlite import open_sqlite_store
from ledgerlog.meta.store import Create, MetadataStore
from ledgerlog.meta.zookeeper.store import open_zookeeper_store
from ledgerlog.model.layout import CLUSTER, LEDGER_COUNTER, writable_path
from ledgerlog.model.quorum import Replication
from ledgerlog.net.local import LocalNetwork
from ledgerlog.repair.service import AutoRecovery
from ledgerlog.testing.memory_cluster import SMALL
from tests.waiting import PATIENCE_S, until
from tests.zookeepers import Ensemble, new_chroot, open_ensemble

ANOTHER = b"anothercluster"

GIVEN_OUT = 5
"""How many ledger ids the other store has given out: more than are in use, so it could deny every ledger."""

Dump = dict[str, bytes]


class World(Protocol):
    def open_store(self) -> AbstractAsyncContextManager[MetadataStore]: ...

    async def exchange(self, into: str) -> None:
        """Let another store answer: "emptied" or "another"."""
        ...

    async def bring_back(self) -> None: ...

    async def dump(self) -> Dump:
        """Return the nodes of the store that answers now. No client of it notices."""
        ...


async def fill_other(store: MetadataStore, into: str) -> None:
    """Fill the other store: like an emptied store that is used again, or like a store of another cluster."""
    for _ in range(GIVEN_OUT):
        await store.next_id(LEDGER_COUNTER)
    if into == "another":
        await store.create(CLUSTER, ANOTHER)


class MemoryWorld:
    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.right: Content | None = None

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[MetadataStore]:
        async with self.tree.open_store() as store:
            yield store

    async def exchange(self, into: str) -> None:
        other = MemoryTree()
        async with other.open_store() as store:
            await fill_other(store, into)
        self.right = self.tree.exchange(other.exchange(Content()))

    async def bring_back(self) -> None:
        assert self.right is not None
        self.tree.exchange(self.right)

    async def dump(self) -> Dump:
        return {path: node.value for path, node in self.tree._nodes.items()}


def copy_file(source: Path, target: Path) -> None:
    """Copy a metadata file with all writes that are in its log."""
    connection, copy = sqlite3.connect(source), sqlite3.connect(target)
    connection.backup(copy)
    connection.close()
    copy.close()


class SqliteWorld:
    """The file and everything next to it are renamed, and another file takes the name."""

    def __init__(self, path: Path) -> None:
        self.path = path / "metadata.sqlite"
        self.aside = path / "aside"
        self.aside.mkdir()
        self.is_away = False

    def open_store(self) -> AbstractAsyncContextManager[MetadataStore]:
        return open_sqlite_store(self.path, session_timeout_s=2.0)

    def _files(self, folder: Path) -> list[Path]:
        return [found for found in folder.glob("metadata.sqlite*") if found.is_file()]

    async def exchange(self, into: str) -> None:
        for file in self._files(self.path.parent):
            file.rename(self.aside / file.name)
        async with open_sqlite_store(self.path) as store:
            await fill_other(store, into)

    async def bring_back(self) -> None:
        for file in self._files(self.path.parent):
            file.unlink()
        for file in self._files(self.aside):
            file.rename(self.path.parent / file.name)

    async def dump(self) -> Dump:
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        try:
            return dict(connection.execute("SELECT path, value FROM nodes").fetchall())
        finally:
            connection.close()


class RestoredSqliteWorld(SqliteWorld):
    """The test brings back a copy: another file."""

    async def bring_back(self) -> None:
        for file in self._files(self.path.parent):
            file.unlink()
        # Copy now, when nobody writes to the file any more: an older copy would be refused.
        copy_file(self.aside / self.path.name, self.path)


class ChrootWorld:
    """The nodes below a chroot of one ensemble are deleted, and other nodes made."""

    def __init__(self, hosts: str) -> None:
        self.hosts = hosts
        self.chroot = new_chroot()
        self.saved: dict[str, bytes] = {}

    def open_store(self) -> AbstractAsyncContextManager[MetadataStore]:
        return open_zookeeper_store(self.hosts, chroot=self.chroot)

    async def _with_client(self, work: Callable[[KazooClient], object]) -> None:
        def run() -> None:
            client = KazooClient(hosts=self.hosts)
            client.start()
            try:
                work(client)
            finally:
                client.stop()
                client.close()

        await trio.to_thread.run_sync(run)

    async def exchange(self, into: str) -> None:
        await self._with_client(self._save)
        await self._with_client(self._delete)
        async with self.open_store() as store:
            await fill_other(store, into)

    async def bring_back(self) -> None:
        def restore(client: KazooClient) -> None:
            self._delete(client)
            # The versions of the counters hold their numbers.
            for path, value in sorted(self.saved.items(), key=lambda item: item[0].endswith("=cluster")):
                client.ensure_path(path)
                client.set(path, value)
                for _ in range(GIVEN_OUT if "+counters" in path else 0):
                    client.set(path, value)

        await self._with_client(restore)

    def _delete(self, client: KazooClient) -> None:
        while client.exists(self.chroot):
            # Live clients go on writing until the node is gone by which they recognize the store.
            with suppress(NotEmptyError):
                client.delete(self.chroot, recursive=True)

    def _save(self, client: KazooClient) -> None:
        self.saved = self._walk(client)

    def _walk(self, client: KazooClient) -> dict[str, bytes]:
        found: dict[str, bytes] = {}

        def walk(path: str) -> None:
            try:
                value, stat = client.get(path)
                names = client.get_children(path)
            except NoNodeError:
                return
            if not stat.ephemeralOwner:
                found[path] = value
            for name in names:
                walk(f"{path}/{name}")

        walk(self.chroot)
        return found

    async def dump(self) -> Dump:
        found: Dump = {}
        await self._with_client(lambda client: found.update(self._walk(client)))
        return found


class EnsembleWorld(ChrootWorld):
    """The address leads to another ensemble, with fewer or more transactions than the clients have seen."""

    def __init__(self, ensemble: Ensemble, *, is_further: bool) -> None:
        super().__init__(ensemble.hosts)
        self.chroot = "/chroot"
        self.ensemble = ensemble
        self.is_further = is_further
        self.data = ensemble.servers[0].directory / "data"

    def _move(self, source: Path, target: Path) -> None:
        (self.data / "version-2").rename(target)
        if source.exists():
            source.rename(self.data / "version-2")

    async def _become(self, source: Path, target: Path) -> None:
        await self.ensemble.kill()
        self._move(source, target)
        await self.ensemble.start()
        await self.ensemble.wait_serving()

    async def exchange(self, into: str) -> None:
        await self._become(self.data / "other", self.data / "right")
        if self.is_further:
            # One more start of a leader makes its transactions newer than those that clients have seen.
            await self.ensemble.kill()
            await self.ensemble.start()
            await self.ensemble.wait_serving()

            def write(client: KazooClient) -> None:
                client.ensure_path("/much")
                for _ in range(200):
                    client.set("/much", b"")

            await self._with_client(write)
        async with self.open_store() as store:
            await fill_other(store, into)

    async def bring_back(self) -> None:
        await self._become(self.data / "right", self.data / "other")


PLAIN_WORLDS = ["memory", "sqlite", "sqlite, restored", "zookeeper, chroot"]
ENSEMBLE_WORLDS = ["zookeeper, newer ensemble", "zookeeper, older ensemble"]
INTO = ["emptied", "another"]


def exchange(kind: str, into: str, *, is_long: bool = False) -> Any:
    marks = [pytest.mark.processes] if "zookeeper" in kind else []
    marks += [pytest.mark.soak] if is_long else []
    return pytest.param(kind, into, marks=marks, id=f"{kind}-{into}")


EXCHANGES = [
    *(exchange(kind, into) for kind in PLAIN_WORLDS for into in INTO),
    exchange("zookeeper, newer ensemble", "another"),
    exchange("zookeeper, older ensemble", "emptied"),
    exchange("zookeeper, newer ensemble", "emptied", is_long=True),
    exchange("zookeeper, older ensemble", "another", is_long=True),
]
"""What stands in for the store, and what it holds.

How an ensemble is exchanged says nothing of what the other one holds. Each exchange starts servers several
times, so outside of the soaks each ensemble is exchanged for one of the two.
"""

exchanged = pytest.mark.parametrize(("kind", "into"), EXCHANGES)


@pytest.fixture
def hosts(kind: str, request: pytest.FixtureRequest) -> str:
    """Those of the shared server, if the world is a part of it; otherwise none."""
    found: str = request.getfixturevalue("zookeeper_hosts") if kind == "zookeeper, chroot" else ""
    return found


@pytest.fixture
async def world(kind: str, hosts: str, tmp_path: Path) -> AsyncIterator[World]:
    if kind == "memory":
        yield MemoryWorld()
    elif kind == "sqlite":
        yield SqliteWorld(tmp_path)
    elif kind == "sqlite, restored":
        yield RestoredSqliteWorld(tmp_path)
    elif kind == "zookeeper, chroot":
        yield ChrootWorld(hosts)
    else:
        assert kind in ENSEMBLE_WORLDS
        async with open_ensemble(tmp_path, 1) as ensemble:
            yield EnsembleWorld(ensemble, is_further="newer" in kind)


async def refused(call: Callable[[], Awaitable[object]]) -> None:
    """Wait for WrongCluster. The connection may break, or the session end, before that."""
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                await call()
            except WrongCluster:
                return
            except (MetadataUnavailable, SessionExpired):
                await trio.sleep(0.05)
            else:
                raise AssertionError("a store that is another's has answered")


async def works(call: Callable[[], Awaitable[object]]) -> None:
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                await call()
                return
            except (MetadataUnavailable, SessionExpired):
                await trio.sleep(0.05)


@exchanged
async def test_a_store_that_becomes_another_answers_nothing_until_the_right_one_is_back(
    world: World, into: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ledgerlog")
    async with world.open_store() as store:
        assert await make_cluster(store, os.urandom)
        version = await store.create("a", b"right")
        await store.next_id(LEDGER_COUNTER)
        async with store.watch("a") as watch:
            await world.exchange(into)
            before = await world.dump()
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: store.get("a"),
                lambda: store.set("a", b"wrong", version=version),
                lambda: store.delete("a"),
                lambda: store.create("b", b"wrong"),
                lambda: store.create("c", b"wrong", ephemeral=True),
                lambda: store.transaction([Create("d/e", b"wrong")]),
                lambda: store.children("a"),
                lambda: store.next_id(LEDGER_COUNTER),
                lambda: store.highest_id(LEDGER_COUNTER),
                store.sync,
            ]
            for call in calls:
                await refused(call)
            assert await world.dump() == before
            said = [record.levelname for record in caplog.records if record.levelname != "INFO"]
            assert said == ["ERROR"], "it is said once, and loudly"
            await world.bring_back()
            with trio.fail_after(PATIENCE_S):
                await watch.wait()
        await works(store.sync)
        node = await store.get("a")
        assert node is not None
        assert node.value == b"right"
        await works(lambda: store.create("mine", b"", ephemeral=True))
        await store.set("a", b"written", version=node.version)
        assert "again" in caplog.text


@pytest.mark.parametrize("place", ["another file", "the same file", "before a restore"])
@pytest.mark.parametrize("is_bookie", [False, True])
async def test_an_older_copy_of_the_file_is_refused_and_a_restore_is_not(
    tmp_path: Path, place: str, is_bookie: bool
) -> None:
    """The copy would give ids out again, and no floor would protect the ledgers that it does not know."""
    world = SqliteWorld(tmp_path)
    older, newer = tmp_path / "older", tmp_path / "newer"
    async with world.open_store() as store:
        await make_cluster(store, os.urandom)
        if place == "before a restore":
            # The store was emptied before it was restored, so the copy has the higher revisions.
            for number in range(9):
                await store.create(f"ledgers/{number}", b"")
    copy_file(world.path, older)
    if place == "before a restore":
        with sqlite3.connect(older) as connection:
            (cluster,) = connection.execute("SELECT value FROM nodes WHERE path = ?", (CLUSTER,)).fetchone()
        connection.close()
        for file in world._files(tmp_path):
            file.unlink()
        async with world.open_store() as store:
            await store.create(CLUSTER, cluster + b":1f")
    async with world.open_store() as store:
        cluster = await join_cluster(store)
        store.belong_to(cluster, through_restores=is_bookie)
        await store.create("after/the/copy", b"")
        copy_file(world.path, newer)
        if place == "the same file":
            connection = sqlite3.connect(world.path)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()
            world.path.write_bytes(older.read_bytes())
        else:
            for file in world._files(tmp_path):
                file.unlink()
            os.replace(older, world.path)
        with pytest.raises(WrongCluster):
            await store.sync()
        with pytest.raises(WrongCluster):
            await store.next_id(LEDGER_COUNTER)
        for file in world._files(tmp_path):
            file.unlink()
        os.replace(newer, world.path)
        await works(store.sync)
        assert await store.get("after/the/copy") is not None
        for file in world._files(tmp_path):
            file.unlink()
        async with world.open_store() as restored:
            await restored.create(CLUSTER, f"{cluster}:2f".encode())
        if is_bookie:
            await works(store.sync)
        else:
            await refused(store.sync)


@pytest.mark.parametrize(
    "failure", [None, MetadataUnavailable("the disk is away"), MetadataOutcomeUnknown("no answer")]
)
async def test_every_call_learns_why_the_file_in_place_of_ours_is_not_opened(
    tmp_path: Path, failure: LedgerLogError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, whoever waits for a restore looks seldom. Somebody else's call may have found it a moment
    before."""

    def fail(*_: object, **__: object) -> None:
        assert failure is not None
        raise failure

    world = SqliteWorld(tmp_path)
    async with world.open_store() as store:
        await make_cluster(store, os.urandom)
    async with world.open_store() as store:
        cluster = await join_cluster(store)
        await store.sync()
        for file in world._files(tmp_path):
            file.unlink()
        async with world.open_store() as restored:
            await restored.create(CLUSTER, f"{cluster}:2f".encode())
        if failure is not None:
            monkeypatch.setattr("ledgerlog.meta.sqlite._open_file", fail)
        for _ in range(3):
            with pytest.raises(MetadataUnavailable, match=str(failure or "restart the process")) as caught:
                await store.sync()
            assert type(caught.value) is (MetadataUnavailable if failure else StoreRestored)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=exchange(kind, "").marks) for kind in PLAIN_WORLDS]
)
async def test_a_store_that_nobody_has_claimed_answers_whatever_it_is(world: World) -> None:
    async with world.open_store() as store:
        assert store.cluster is None
        await store.create("a", b"")
        assert await store.get("a") is not None


@exchanged
async def test_a_live_bookie_client_and_auditor_write_and_delete_nothing_and_go_on_by_themselves(
    world: World, into: str
) -> None:
    """All together: acknowledged entries survive a store that denies each of their ledgers."""
    network = LocalNetwork()
    numbers = iter(range(1, 10**6))
    async with AsyncExitStack() as stack:

        async def opened() -> MetadataStore:
            store = await stack.enter_async_context(world.open_store())
            await join_cluster(store)
            return store

        async with world.open_store() as store:
            await make_cluster(store, os.urandom)
        nodes: list[BookieNode] = []
        for name in ("b1", "b2", "b3"):
            node = open_bookie(
                f"/{name}",
                await opened(),
                bookie_id=name,
                network=network,
                listen=name,
                random_bytes=lambda count: next(numbers).to_bytes(count, "big"),
                config=SMALL,
                disk=MemoryDisk(),
                indexes=MemoryIndexes(),
            )
            nodes.append(await stack.enter_async_context(node))
        client_store = await opened()
        client = await stack.enter_async_context(open_client(client_store, network))
        repairing = await stack.enter_async_context(open_client(await opened(), network))
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(AutoRecovery(repairing, name="auditor").run)
        closed = []
        for _ in range(2):
            writer = await client.ledgers.create(Replication(3, 3, 2))
            await writer.append(b"acknowledged")
            await writer.close()
            closed.append(writer.ledger_id)
        writer = await client.ledgers.create(Replication(3, 3, 2))
        await writer.append(b"acknowledged")
        for node in nodes:
            await node.engine.flush()

        await world.exchange(into)
        before = await world.dump()
        for node in nodes:
            assert node.engine.collector is not None
            await refused(node.engine.collector.collect)
        await refused(lambda: client.ledgers.create(Replication(3, 3, 2)))
        await writer.append(b"the data path needs no metadata")
        for node in nodes:
            assert node.engine.collector is not None
            assert node.engine.collector.deleted == 0
        assert await world.dump() == before

        await world.bring_back()
        await works(client_store.sync)

        async def all_are_registered() -> bool:
            found = [await client_store.get(writable_path(node.bookie_id)) for node in nodes]
            return None not in found

        async def holds() -> bool:
            try:
                return await all_are_registered()
            except LedgerLogError:
                return False

        await until(holds)
        for node in nodes:
            assert node.engine.collector is not None
            await works(node.engine.collector.collect)
            assert node.engine.collector.deleted == 0
        for ledger_id in closed:
            reader = await client.ledgers.open(ledger_id)
            assert await reader.read(0, 0) == [b"acknowledged"]
        await writer.append(b"after")
        await writer.close()

        async def create() -> None:
            created = await client.ledgers.create(Replication(3, 3, 2))
            await created.append(b"new")
            await created.close()

        await works(create)
        nursery.cancel_scope.cancel()
