"""A whole cluster inside one test: bookies that can be killed, clients, a network and metadata that fail.

Everything is the production code over the capabilities in memory, so there is no thread, no socket and no
file, and under ``trio.testing.MockClock(autojump_threshold=0)`` time-outs cost nothing:

    async with open_cluster(bookies=4) as cluster:
        async with cluster.client() as client:
            writer = await client.ledgers.create(replication=Replication(3, 3, 2))
            await writer.append(b"x")
            await cluster.bookies[writer.metadata.last_fragment.ensemble[0]].kill()
            await writer.append(b"y")

**Bookies.** Each has a disk and indexes of its own, which outlive it. ``kill`` is a power cut for everything
but the disk: its tasks are cancelled, its connections break, its registration stays until the metadata store
gives the session up (``SESSION_TIMEOUT_S``, unless told otherwise). ``stop`` is graceful. ``start`` opens it
again on the same data.

**The network** knows who talks to whom: every client and bookie has a view of its own (``network.at``), and
a link is a pair of them with a direction. A stalled link carries nothing and says nothing, as a cable that
was pulled out does not; what the ends do meanwhile, closing included, shows when it is healed. A cut breaks
the connections that are there and refuses new ones.

**Metadata.** Each party has its own ``FaultyStore`` on one tree: it can lose contact, hang, lose the
answers of writes that were applied, or of writes that were not.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import attrs
import trio

from bookie.server.node import Node, open_bookie
from bookie.storage.config import StorageConfig
from bookie.storage.index import MemoryIndexes
from bookie.storage.memory_disk import MemoryDisk
from ledgerlog.autorecovery.peers import open_peers
from ledgerlog.client.client import LedgerClient, open_client
from ledgerlog.client.environment import Environment
from ledgerlog.client.ledgers import Ledgers
from ledgerlog.errors import MetadataOutcomeUnknown, MetadataUnavailable
from ledgerlog.limits import APPEND_DEADLINE_S, METADATA_TIMEOUT_S, MIB, SESSION_TIMEOUT_S
from ledgerlog.meta.memory import MemorySession, MemoryStore, MemoryTree
from ledgerlog.meta.store import Operation, Versioned, Watch
from ledgerlog.model.ids import BookieId
from ledgerlog.model.quorum import Replication
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.transport import Buffer, ConnectionLost, Listener, Stream

SMALL = StorageConfig(segment_bytes=MIB, arenas=2, frame_bytes_max=700 * 1024)
"""Segments that cost little to make."""

CLUSTER = "0123456789abcdef0123456789abcdef"
"""The id of the cluster of every tree that ``new_tree`` makes."""

EVERYBODY = "*"

T = TypeVar("T")


# --- network --------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Link:
    """One direction between two hosts."""

    is_stalled: bool = False
    is_cut: bool = False
    changed: trio.Event = attrs.Factory(trio.Event)

    def change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def wait_clear(self) -> None:
        while self.is_stalled:
            await self.changed.wait()


class FaultyNetwork:
    """The hosts' network. ``at(host)`` is one host's ``Network``; addresses are names of hosts."""

    def __init__(self) -> None:
        self._local = LocalNetwork()
        self._links: dict[tuple[str, str], _Link] = {}
        self._streams: dict[_FaultyStream, None] = {}
        self.hosts: dict[str, None] = {}
        self.connects = 0

    def at(self, host: str) -> HostNetwork:
        self.hosts[host] = None
        return HostNetwork(self, host)

    def link(self, source: str, target: str) -> _Link:
        return self._links.setdefault((source, target), _Link())

    def _chosen(self, source: str, target: str, both: bool) -> list[tuple[str, str]]:
        sources = [source] if source != EVERYBODY else list(self.hosts)
        targets = [target] if target != EVERYBODY else list(self.hosts)
        pairs = [(a, b) for a in sources for b in targets if a != b]
        return pairs + [(b, a) for a, b in pairs] if both else pairs

    def stall(self, source: str, target: str, *, both: bool = True) -> None:
        """Carry nothing from ``source`` to ``target`` (and back), without a word."""
        for pair in self._chosen(source, target, both):
            self.link(*pair).is_stalled = True

    def cut(self, source: str, target: str) -> None:
        """Break all connections between the two, and refuse new ones."""
        for a, b in self._chosen(source, target, True):
            self.link(a, b).is_cut = True
            self.reset(a, b)

    def reset(self, source: str, target: str) -> None:
        """Break all connections between the two, once."""
        for stream in list(self._streams):
            if {stream.host, stream.peer} == {source, target}:
                stream.reset()

    def heal(self, source: str = EVERYBODY, target: str = EVERYBODY) -> None:
        """Let everything through again."""
        for pair in self._chosen(source, target, True):
            link = self.link(*pair)
            link.is_stalled = link.is_cut = False
            link.change()
        for stream in list(self._streams):
            stream.on_healed()


@attrs.frozen
class HostNetwork:
    """The network as one host sees it (``transport.Network``)."""

    _network: FaultyNetwork
    host: str

    async def connect(self, address: str) -> Stream:
        network = self._network
        there, back = network.link(self.host, address), network.link(address, self.host)
        network.connects += 1
        await there.wait_clear()
        await back.wait_clear()
        if there.is_cut or back.is_cut:
            await trio.lowlevel.checkpoint()
            raise ConnectionLost(f"cannot connect to {address}: the link is cut")
        stream = _FaultyStream(
            await network._local.connect(address), network, self.host, address, there=there, back=back
        )
        network._streams[stream] = None
        return stream

    async def listen(self, address: str) -> Listener:
        return await self._network._local.listen(address)


class _FaultyStream:
    """The connecting end of a connection; both directions are delayed here."""

    def __init__(
        self, inner: Stream, network: FaultyNetwork, host: str, peer: str, *, there: _Link, back: _Link
    ) -> None:
        self._inner = inner
        self._network = network
        self.host = host
        self.peer = peer
        self._there = there
        self._back = back
        self._held = b""  # arrived, and then the link stalled
        self._is_closed = False
        self._waiting: dict[trio.CancelScope, None] = {}

    async def _unless_closed(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Wait for something; ConnectionLost if this end is closed meanwhile."""
        self._check()
        with trio.CancelScope() as waiting:
            self._waiting[waiting] = None
            try:
                return await wait()
            finally:
                del self._waiting[waiting]
        raise ConnectionLost(f"the connection with {self.peer} is closed")

    def _check(self) -> None:
        if self._is_closed:
            raise ConnectionLost(f"the connection with {self.peer} is closed")

    async def receive_into(self, buffer: memoryview) -> int:
        back = self._back
        while not self._held:
            await self._unless_closed(back.wait_clear)
            count = await self._unless_closed(lambda: self._inner.receive_into(buffer))
            if not back.is_stalled:
                return count
            if not count:
                await self._unless_closed(back.wait_clear)
                return 0
            self._held = bytes(buffer[:count])
        await self._unless_closed(back.wait_clear)
        count = min(len(self._held), len(buffer))
        buffer[:count] = self._held[:count]
        self._held = self._held[count:]
        return count

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        self._check()
        if self._there.is_stalled:
            return 0  # The socket is full.
        return self._inner.send_nowait(buffers)

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        await self._unless_closed(self._there.wait_clear)
        await self._unless_closed(lambda: self._inner.send_all(buffers))

    def close(self) -> None:
        self._is_closed = True
        for waiting in list(self._waiting):
            waiting.cancel()
        self.on_healed()

    def reset(self) -> None:
        """Break the connection, for both ends."""
        self._network._streams.pop(self, None)
        self._inner.close()

    def on_healed(self) -> None:
        """The other end learns of the close as soon as anything gets through."""
        if self._is_closed and not (self._there.is_stalled or self._back.is_stalled):
            self.reset()


# --- metadata -------------------------------------------------------------------------------------


def new_tree(cluster: str = CLUSTER) -> MemoryTree:
    """A metadata tree in which a cluster was made, and nothing else."""
    return MemoryTree(cluster)


class FaultyStore:
    """One party's metadata store (``store.MetadataStore``), with the faults that a remote one has."""

    def __init__(self, tree: MemoryTree) -> None:
        self.inner = MemoryStore(tree)
        self.lost_answers = 0
        """So many writes to come are applied, and their answer is lost."""
        self.lost_writes = 0
        """So many writes to come are not applied, which their caller does not learn."""
        self.is_hanging = False
        """Calls get no answer until their deadline."""
        self.before_write: Callable[[], Awaitable[None]] | None = None
        """Called once, before the next write."""
        self.before_get: Callable[[str], Awaitable[None]] | None = None
        """Called with the path, before each read of a node."""
        self.writes = 0

    def disconnect(self) -> None:
        self.inner.disconnect()

    def reconnect(self) -> None:
        self.inner.reconnect()

    @property
    def session(self) -> MemorySession:
        return self.inner.session

    @property
    def cluster(self) -> str | None:
        return self.inner.cluster

    def belong_to(self, cluster: str) -> None:
        self.inner.belong_to(cluster)

    async def _hang(self) -> None:
        if self.is_hanging:
            await trio.sleep(METADATA_TIMEOUT_S)
            raise MetadataUnavailable("the metadata store does not answer")

    async def _write(self, write: Callable[[], Awaitable[Any]]) -> Any:
        self.writes += 1
        hook, self.before_write = self.before_write, None
        if hook is not None:
            await hook()
        if self.is_hanging:
            await trio.sleep(METADATA_TIMEOUT_S)
            raise MetadataOutcomeUnknown("the metadata store does not answer")
        if self.lost_writes:
            self.lost_writes -= 1
            await trio.lowlevel.checkpoint()
            raise MetadataOutcomeUnknown("the request was lost")
        result = await write()
        if self.lost_answers:
            self.lost_answers -= 1
            raise MetadataOutcomeUnknown("the answer was lost")
        return result

    async def get(self, path: str) -> Versioned | None:
        if self.before_get is not None:
            await self.before_get(path)
        await self._hang()
        return await self.inner.get(path)

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> int:
        result: int = await self._write(lambda: self.inner.create(path, value, ephemeral=ephemeral))
        return result

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        result: int = await self._write(lambda: self.inner.set(path, value, version=version))
        return result

    async def delete(self, path: str, *, version: int | None = None) -> None:
        await self._write(lambda: self.inner.delete(path, version=version))

    async def children(self, path: str) -> list[str]:
        await self._hang()
        return await self.inner.children(path)

    async def transaction(self, operations: Sequence[Operation]) -> list[int]:
        result: list[int] = await self._write(lambda: self.inner.transaction(operations))
        return result

    async def next_id(self, counter: str) -> int:
        result: int = await self._write(lambda: self.inner.next_id(counter))
        return result

    async def highest_id(self, counter: str) -> int:
        await self._hang()
        return await self.inner.highest_id(counter)

    async def sync(self) -> None:
        await self._hang()
        await self.inner.sync()

    def watch(self, path: str) -> AbstractAsyncContextManager[Watch]:
        return self.inner.watch(path)


# --- bookies --------------------------------------------------------------------------------------


class Bookie:
    """One bookie's machine: its disk, and the bookie while it runs."""

    def __init__(self, cluster: Cluster, bookie_id: BookieId) -> None:
        self.bookie_id = bookie_id
        self.disk = MemoryDisk()
        self.indexes = MemoryIndexes()
        self.address = bookie_id
        """Where it serves from its next start on."""
        self.labels: dict[str, str] = {}
        """Its placement labels, from its next start on."""
        self.fix_cookie = False
        """Whether it starts on a disk that was emptied."""
        self.has_metadata = True
        """Whether the metadata store answers it from its next start on."""
        self._cluster = cluster
        self._node: Node | None = None
        self._store: FaultyStore | None = None
        self._scope = trio.CancelScope()
        self._stopping = trio.Event()
        self._ended = trio.Event()

    @property
    def node(self) -> Node:
        """The bookie as it runs."""
        assert self._node is not None, f"{self.bookie_id} does not run"
        return self._node

    @property
    def store(self) -> FaultyStore:
        assert self._store is not None
        return self._store

    @property
    def is_running(self) -> bool:
        return self._node is not None

    async def start(self) -> None:
        """Start, on the data that the disk has."""
        assert not self.is_running
        await self._cluster.nursery.start(self._run)

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        cluster = self._cluster
        self._store = store = FaultyStore(cluster.tree)
        store.is_hanging = not self.has_metadata
        self._stopping, self._ended = trio.Event(), trio.Event()
        with trio.CancelScope() as self._scope:
            async with open_bookie(
                f"/{self.bookie_id}",
                store,
                bookie_id=self.bookie_id,
                network=cluster.network.at(self.bookie_id),
                listen=self.address,
                random_bytes=cluster.random_bytes,
                config=cluster.config,
                labels=self.labels,
                disk=self.disk,
                indexes=self.indexes,
                fix_cookie=self.fix_cookie,
                peers=partial(
                    open_peers,
                    store,
                    cluster.network.at(self.bookie_id),
                    environment=SeededEnvironment(self.bookie_id),
                ),
            ) as self._node:
                task_status.started()
                await self._stopping.wait()
        self._node = None
        self._ended.set()

    async def stop(self) -> None:
        """Stop gracefully: it answers what it has begun and takes its registration away."""
        self._stopping.set()
        await self._ended.wait()
        self.store.inner.close()

    async def kill(self, *, session_s: float = SESSION_TIMEOUT_S) -> None:
        """End it at once. The metadata store takes its registration away after ``session_s``."""
        store = self.store
        store.disconnect()
        self._scope.cancel()
        await self._ended.wait()

        async def expire() -> None:
            await trio.sleep(session_s)
            store.inner.expire_session()

        self._cluster.nursery.start_soon(expire)

    async def lose_disk(self) -> None:
        """Kill it and put an empty disk in the place of its own, on which it may start."""
        await self.kill(session_s=0)
        self.disk, self.indexes, self.fix_cookie = MemoryDisk(), MemoryIndexes(), True

    async def restart(self) -> None:
        """Kill it and start it again at once."""
        await self.kill()
        await self.start()

    def set_read_only(self, value: bool) -> None:
        self.node.set_read_only(value)

    def flip_byte(self, needle: bytes) -> int:
        """Damage every place on the disk that holds ``needle``: its first byte is turned. How many places."""
        places = 0
        for content in self.disk.files.values():
            at = content.find(needle)
            while at >= 0:
                content[at] ^= 0xFF
                places += 1
                at = content.find(needle, at + 1)
        return places


# --- the whole ------------------------------------------------------------------------------------


class SeededEnvironment(Environment):
    """Tokens in order, choices by a seed, and trio's clock for the wall's."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self._secret = random.Random(f"secret {seed}")

    def now_ms(self) -> int:
        return round(trio.current_time() * 1000)


class Cluster:
    """Given by ``open_cluster``."""

    def __init__(self, nursery: trio.Nursery, *, config: StorageConfig, seed: int) -> None:
        self.nursery = nursery
        self.config = config
        self.tree = new_tree()
        self.network = FaultyNetwork()
        self.bookies: dict[BookieId, Bookie] = {}
        self._seed = seed
        self._numbers = itertools.count(1)
        self._clients = itertools.count(1)

    def random_bytes(self, count: int) -> bytes:
        return next(self._numbers).to_bytes(count, "big")

    async def add_bookie(self, **labels: str) -> Bookie:
        """One bookie more, running."""
        bookie_id = f"b{len(self.bookies) + 1}"
        bookie = self.bookies[bookie_id] = Bookie(self, bookie_id)
        bookie.labels = labels
        await bookie.start()
        return bookie

    async def start_all(self) -> None:
        """Start every bookie that does not run."""
        for bookie in self.bookies.values():
            if not bookie.is_running:
                await bookie.start()

    def bookies_of(self, ensemble: Sequence[BookieId]) -> list[Bookie]:
        return [self.bookies[bookie_id] for bookie_id in ensemble]

    def spares(self, ensemble: Sequence[BookieId]) -> list[Bookie]:
        """The bookies that are not in the ensemble."""
        return [bookie for bookie in self.bookies.values() if bookie.bookie_id not in ensemble]

    @asynccontextmanager
    async def client(
        self,
        *,
        replication: Replication | None = None,
        append_deadline_s: float = APPEND_DEADLINE_S,
        store_type: Callable[[MemoryTree], FaultyStore] = FaultyStore,
    ) -> AsyncIterator[Client]:
        """A client on a host of its own, named client-1, client-2 and so on."""
        name = f"client-{next(self._clients)}"
        store = store_type(self.tree)
        store.belong_to(CLUSTER)
        async with open_client(
            store,
            self.network.at(name),
            environment=SeededEnvironment(f"{name} {self._seed}"),
            default_replication=replication,
            append_deadline_s=append_deadline_s,
        ) as opened:
            try:
                yield Client(name, store, opened)
            finally:
                store.inner.close()


@attrs.frozen
class Client:
    host: str
    """Its name on the network."""
    store: FaultyStore
    opened: LedgerClient

    @property
    def ledgers(self) -> Ledgers:
        return self.opened.ledgers

    async def contents(self, ledger_id: int) -> list[bytes]:
        """All that may be read of a ledger now."""
        reader = await self.ledgers.open(ledger_id)
        last = await reader.last_add_confirmed()
        return await reader.read(0, last) if last >= 0 else []


@asynccontextmanager
async def open_cluster(
    bookies: int = 3, *, config: StorageConfig = SMALL, seed: int = 0
) -> AsyncIterator[Cluster]:
    """A cluster of running bookies b1, b2, ... for the body. What the body raises comes out as it is."""
    error: BaseException | None = None
    async with trio.open_nursery() as nursery:
        cluster = Cluster(nursery, config=config, seed=seed)
        for _ in range(bookies):
            await cluster.add_bookie()
        try:
            yield cluster
        except BaseException as caught:
            error = caught
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error


async def eventually(condition: Callable[[], bool], *, timeout_s: float = 120.0) -> None:
    """Wait, in mock time, until the condition holds."""
    with trio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110  # Any condition, and mock time costs nothing.
            await trio.sleep(0.001)
