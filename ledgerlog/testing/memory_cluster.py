"""A whole cluster in the event loop of a test. You can kill its bookies and break its network and metadata.

It runs the production code over capabilities in memory: it uses no thread, socket or file. Under
``trio.testing.MockClock(autojump_threshold=0)`` time-outs take no real time:

    async with open_cluster(bookies=4) as cluster:
        async with cluster.client() as client:
            writer = await client.ledgers.create(replication=Replication(3, 3, 2))
            await writer.append(b"x")
            await cluster.bookies[writer.metadata.last_fragment.ensemble[0]].kill()
            await writer.append(b"y")

Use it to inject one fault at one place and to check one rule. Use ``simulate``
(``ledgerlog.testing.cluster``) for the rest: latency, crashes of disks, and thousands of schedules by seed.

**Bookies.** Each bookie has its own disk and indexes, which outlive its process. ``kill`` is like a power
cut, except that the disk loses nothing. ``kill`` cancels the bookie's tasks and breaks its connections. The
bookie's registration stays until the metadata store ends the session (after ``SESSION_TIMEOUT_S``, unless you
choose another time). ``stop`` is graceful. ``start`` starts the bookie again on the same data.
``bookie.disk`` is a ``FaultyDisk`` (``faulty_disk``).

**The network** is a ``FaultyNetwork`` (``faulty_network``). Each client and each bookie is a host of it.

**Metadata.** Each client and each bookie has its own ``FaultyStore`` (``faulty_store``) on one tree.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import attrs
import trio

from bookie.server.healing import serve_and_heal
from bookie.server.node import BookieNode, open_bookie
from bookie.storage.engine.config import StorageConfig
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.ledger.client import LedgerClient, open_client
from ledgerlog.ledger.environment import TOKEN_BYTES, Environment
from ledgerlog.ledger.ledgers import Ledgers
from ledgerlog.limits import APPEND_DEADLINE_S, LEDGER_KEY_BYTES, MIB, SESSION_TIMEOUT_S
from ledgerlog.meta.memory import MemoryTree
from ledgerlog.model.ids import BookieId
from ledgerlog.model.quorum import Replication
from ledgerlog.net.prover import Prover
from ledgerlog.repair.peers import open_peers
from ledgerlog.testing.faulty_disk import FaultyDisk
from ledgerlog.testing.faulty_network import FaultyNetwork
from ledgerlog.testing.faulty_store import Fault, FaultyStore, latency

__all__ = [
    "CLUSTER",
    "SMALL",
    "Bookie",
    "Client",
    "MemoryCluster",
    "SeededEnvironment",
    "eventually",
    "new_tree",
    "open_cluster",
]

SMALL = StorageConfig(segment_bytes=MIB, arenas=2, frame_bytes_max=700 * 1024)
"""The default storage of the bookies: segments that are cheap to create."""

CLUSTER = "0123456789abcdef0123456789abcdef"
"""The id of the cluster in every tree that ``new_tree`` makes."""


def new_tree(cluster: str = CLUSTER) -> MemoryTree:
    """Return a metadata tree that holds only a new cluster."""
    return MemoryTree(cluster)


# --- bookies --------------------------------------------------------------------------------------


class Bookie:
    """One bookie's machine: the disk, and the bookie if it runs."""

    def __init__(self, cluster: MemoryCluster, bookie_id: BookieId) -> None:
        self.bookie_id = bookie_id
        self.disk = FaultyDisk()
        self.indexes = MemoryIndexes()
        self.address = bookie_id
        """The address at which it serves after its next start."""
        self.labels: dict[str, str] = {}
        """Its placement labels after its next start."""
        self.fix_cookie = False
        """Whether it accepts a disk without its cookie at its next start."""
        self.repair_damage = False
        """Whether it salvages a damaged disk at its next start."""
        self.has_metadata = True
        """Whether the metadata store answers it after its next start."""
        self._cluster = cluster
        self._node: BookieNode | None = None
        self._store: FaultyStore | None = None
        self._scope = trio.CancelScope()
        self._stopping = trio.Event()
        self._ended = trio.Event()

    @property
    def node(self) -> BookieNode:
        """The running bookie. Raises AssertionError if the bookie does not run."""
        assert self._node is not None, f"{self.bookie_id} does not run"
        return self._node

    @property
    def store(self) -> FaultyStore:
        """The metadata store of its current life, or of its last one."""
        assert self._store is not None
        return self._store

    @property
    def is_running(self) -> bool:
        return self._node is not None

    async def start(self) -> None:
        """Start the bookie on the data of its disk, and wait until it serves."""
        assert not self.is_running
        await self._cluster.nursery.start(self._run)

    def open_node(self, *, again_at: str | None) -> AbstractAsyncContextManager[BookieNode]:
        """Open the bookie on the data of its disk (``bookie.server.healing.OpenNode``)."""
        cluster = self._cluster
        return open_bookie(
            f"/{self.bookie_id}",
            self.store,
            bookie_id=self.bookie_id,
            network=cluster.network.at(self.bookie_id),
            listen=self.address,
            random_bytes=cluster.random_bytes,
            config=cluster.config,
            labels=self.labels,
            disk=self.disk,
            indexes=self.indexes,
            fix_cookie=self.fix_cookie,
            repair_damage=self.repair_damage,
            heals_index=again_at is not None,
            peers=partial(
                open_peers,
                self.store,
                cluster.network.at(self.bookie_id),
                environment=SeededEnvironment(self.bookie_id),
                prover=(prover := cluster.prover_of(self.bookie_id)),
            ),
            prover=prover,
        )

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        self._store = store = FaultyStore(self._cluster.tree)
        store.is_hanging = not self.has_metadata
        self._stopping, self._ended = trio.Event(), trio.Event()

        async def serve(node: BookieNode) -> None:
            if self._node is None:
                task_status.started()
            self._node = node
            await self._stopping.wait()

        with trio.CancelScope() as self._scope:
            await serve_and_heal(self.open_node, serve)
        self._node = None
        self._ended.set()

    async def stop(self) -> None:
        """Stop gracefully: the bookie answers the requests it has begun and removes its registration."""
        self._stopping.set()
        await self._ended.wait()
        self.store.inner.close()

    async def kill(self, *, session_s: float = SESSION_TIMEOUT_S) -> None:
        """End the bookie at once. The metadata store removes its registration after ``session_s`` seconds."""
        store = self.store
        store.disconnect()
        self._scope.cancel()
        await self._ended.wait()

        async def expire() -> None:
            await trio.sleep(session_s)
            store.inner.expire_session()

        self._cluster.nursery.start_soon(expire)

    async def lose_disk(self) -> None:
        """Kill the bookie and give it an empty disk. The bookie may start on that disk."""
        await self.kill(session_s=0)
        self.disk, self.indexes, self.fix_cookie = FaultyDisk(), MemoryIndexes(), True

    def snapshot(self) -> tuple[FaultyDisk, MemoryIndexes]:
        """Copy the directory of the bookie. The bookie must not run.

        To roll the bookie back, assign the copy to ``disk`` and ``indexes``.
        """
        assert not self.is_running
        disk, indexes = FaultyDisk(), MemoryIndexes()
        disk.files.update({path: bytearray(data) for path, data in self.disk.files.items()})
        disk.directories.update(self.disk.directories)
        indexes.indexes.update(copy.deepcopy(self.indexes.indexes))
        return disk, indexes

    async def restart(self) -> None:
        """Kill the bookie and start it again at once."""
        await self.kill()
        await self.start()

    def set_read_only(self, value: bool) -> None:
        """Make the bookie read-only, or writable again."""
        self.node.set_read_only(value)

    def flip_byte(self, needle: bytes) -> int:
        """Invert the first byte of every ``needle`` on the disk. Return the number of needles."""
        places = 0
        for content in self.disk.files.values():
            at = content.find(needle)
            while at >= 0:
                content[at] ^= 0xFF
                places += 1
                at = content.find(needle, at + 1)
        return places


# --- the cluster ----------------------------------------------------------------------------------


class SeededEnvironment(Environment):
    """Tokens and choices from a seed; trio's clock serves as the wall clock."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self._tokens = random.Random(f"secret {seed}")

    def now_ms(self) -> int:
        return round(trio.current_time() * 1000)

    def new_token(self) -> bytes:
        return self._tokens.randbytes(TOKEN_BYTES)

    def new_key(self) -> bytes:
        return self._tokens.randbytes(LEDGER_KEY_BYTES)


class MemoryCluster:
    """A cluster of bookies in memory. ``open_cluster`` gives you one."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        config: StorageConfig,
        seed: int,
        prover_of: Callable[[str], Prover | None],
    ) -> None:
        self.nursery = nursery
        self.config = config
        self.tree = new_tree()
        self.network = FaultyNetwork()
        self.bookies: dict[BookieId, Bookie] = {}
        self.prover_of = prover_of
        """Returns the prover of a process's identity. Called with the name of each bookie at its start, and
        of each client."""
        self._seed = seed
        self._numbers = itertools.count(1)
        self._clients = itertools.count(1)

    def random_bytes(self, count: int) -> bytes:
        return next(self._numbers).to_bytes(count, "big")

    async def add_bookie(self, **labels: str) -> Bookie:
        """Start another bookie, with these placement labels, and wait until it serves."""
        bookie_id = f"b{len(self.bookies) + 1}"
        bookie = self.bookies[bookie_id] = Bookie(self, bookie_id)
        bookie.labels = labels
        await bookie.start()
        return bookie

    async def start_all(self) -> None:
        """Start every bookie that is not running."""
        for bookie in self.bookies.values():
            if not bookie.is_running:
                await bookie.start()

    def bookies_of(self, ensemble: Sequence[BookieId]) -> list[Bookie]:
        """Return the bookies of the ensemble."""
        return [self.bookies[bookie_id] for bookie_id in ensemble]

    def spares(self, ensemble: Sequence[BookieId]) -> list[Bookie]:
        """Return the bookies that are not in the ensemble."""
        return [bookie for bookie in self.bookies.values() if bookie.bookie_id not in ensemble]

    @asynccontextmanager
    async def client(
        self,
        *,
        replication: Replication | None = None,
        append_deadline_s: float = APPEND_DEADLINE_S,
        faults: Sequence[Fault] = (),
        store_latency_s: float = 0.0,
    ) -> AsyncIterator[Client]:
        """Connect a client on a host of its own, named client-1, client-2 and so on.

        Args:
            replication: The client's default replication. None: the default of ``ledgerlog.connect``.
            append_deadline_s: The client's append deadline, in seconds.
            faults: The faults of the client's metadata store.
            store_latency_s: How long each call of the client's metadata store takes, in seconds.

        Returns:
            An async context manager. Entering it gives the ``Client``.
        """
        name = f"client-{next(self._clients)}"
        store = FaultyStore(self.tree, *faults)
        if store_latency_s:
            store.faults.append(latency(store_latency_s))
        store.belong_to(CLUSTER)
        async with open_client(
            store,
            self.network.at(name),
            environment=SeededEnvironment(f"{name} {self._seed}"),
            default_replication=replication,
            append_deadline_s=append_deadline_s,
            prover=self.prover_of(name),
        ) as opened:
            try:
                yield Client(name, store, opened)
            finally:
                store.inner.close()


@attrs.frozen
class Client:
    """A connected client of a ``MemoryCluster``."""

    host: str
    """Its name in the network."""
    store: FaultyStore
    """Its metadata store."""
    opened: LedgerClient
    """The client itself."""

    @property
    def ledgers(self) -> Ledgers:
        """The client's ledgers."""
        return self.opened.ledgers

    async def contents(self, ledger_id: int) -> list[bytes]:
        """Read all entries of a ledger up to its LAC."""
        reader = await self.ledgers.open(ledger_id)
        last = await reader.last_add_confirmed()
        return await reader.read(0, last) if last >= 0 else []


@asynccontextmanager
async def open_cluster(
    bookies: int = 3,
    *,
    config: StorageConfig = SMALL,
    seed: int = 0,
    prover_of: Callable[[str], Prover | None] = lambda _: None,
) -> AsyncIterator[MemoryCluster]:
    """Run a cluster of bookies named b1, b2 and so on during the body.

    An exception of the body comes out as it was raised, not in a group.

    Args:
        bookies: How many bookies to start.
        config: Their storage configuration.
        seed: Decides the random choices of the clients.
        prover_of: Takes the name of a process (a bookie's id, or client-1 and so on), and returns the prover
            of its identity. The default is an open cluster, in which no process proves its identity.

    Returns:
        An async context manager. Entering it gives the ``MemoryCluster`` with all its bookies serving.
    """
    error: BaseException | None = None
    async with trio.open_nursery() as nursery:
        cluster = MemoryCluster(nursery, config=config, seed=seed, prover_of=prover_of)
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
    """Wait in mock time until ``condition()`` is true. Raise trio.TooSlowError after ``timeout_s`` seconds.

    At first it checks the condition every millisecond. Later the pause is a twentieth of the time waited so
    far: mock time costs nothing, but each check costs a turn of the event loop.
    """
    began = trio.current_time()
    with trio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110  # Any condition, and mock time costs nothing.
            await trio.sleep(max(0.001, (trio.current_time() - began) / 20))
