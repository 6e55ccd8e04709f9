"""A whole cluster in one process under simulated time, network and disks: the production code, and a bad
world.

    async def scenario(cluster):
        async with cluster.client("a") as client:
            log = await client.create_log("orders")
            async with log.writer() as writer:
                await writer.append(b"first")
                cluster.kill("bookie-2")
                await writer.append(b"second")

    simulate(scenario, seed=1, bookies=4)

Everything that runs is what runs in production: clients, logs, bookies with their journal and index,
sessions of the metadata store. What is simulated is below: time (``deterministic``), the network
(``network``), the disks (``disk``), the metadata store's own process (``metadata``), and the lives of
processes (``process``).

**Processes** have names. Bookies are ``bookie-1``, ``bookie-2``, ...; the metadata store is ``metadata`` and
never fails; everything else is a client. A client process is either the body of ``async with
cluster.client(name)``, or a function that is started with ``cluster.start(name, main)`` and can be killed
and restarted like a bookie.

**Faults** stay until they are healed. A bookie whose disk fails stops, as it does in production, and stays
down until ``restart``. What is not an expected fault (an assertion, any exception that is no LedgerLogError)
ends the whole run: it is a bug, and the run names its seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import attrs
import trio

from bookie.server.node import Node, open_bookie
from bookie.storage.engine.config import StorageConfig
from ledgerlog.cluster import Cluster
from ledgerlog.concurrency.nurseries import open_serving_nursery
from ledgerlog.errors import InvalidArgument, LedgerLogError
from ledgerlog.ledger.client import open_client
from ledgerlog.ledger.environment import TOKEN_BYTES, Environment
from ledgerlog.limits import (
    APPEND_DEADLINE_S,
    FRAME_BYTES_TARGET,
    KIB,
    LEDGER_KEY_BYTES,
    LOG_ENTRY_BYTES_TARGET,
    MIB,
)
from ledgerlog.meta.memory import Content, MemoryTree
from ledgerlog.model.quorum import Replication
from ledgerlog.repair.peers import open_peers
from ledgerlog.testing.deterministic import Outcome, Simulation, current_simulation
from ledgerlog.testing.disk import Platter, SimDisk, SimIndexes
from ledgerlog.testing.links import LinkQuality
from ledgerlog.testing.metadata import METADATA, SimStore, SimTree
from ledgerlog.testing.network import EVERYBODY, SimNetwork
from ledgerlog.testing.process import Incarnation, NodeCrashed
from ledgerlog.testing.wiretap import Observer

__all__ = ["SMALL_STORAGE", "SimulatedCluster", "simulate", "simulated_cluster"]

SMALL_STORAGE = StorageConfig(segment_bytes=MIB, arenas=2, frame_bytes_max=700 * KIB, segment_records_max=100)
"""Journals that roll often, and cost little to make. Records of a log may have up to about 500 KiB: a bookie
must take what a client may put into one frame."""

assert SMALL_STORAGE.frame_bytes_max > FRAME_BYTES_TARGET + LOG_ENTRY_BYTES_TARGET // 2

WRITE_CACHE_AGE_S = 0.5
"""So long entries are in memory alone on a bookie that does not sync them at once."""

EPOCH_MS = 1_700_000_000_000
"""Wall clocks of the simulated world begin here."""

T = TypeVar("T")
Main = Callable[[Cluster], Awaitable[None]]
OnDurable = Callable[[str, str, int, bytes], None]
OnMetadata = Callable[[str, bytes | None, bytes | None], None]
OnLoss = Callable[[str], None]


class SimEnvironment(Environment):
    """Chance from the seed, and a wall clock that follows simulated time, a little wrong for each process."""

    def __init__(self, incarnation: Incarnation) -> None:
        self.random = incarnation.random
        self._incarnation = incarnation
        self._skew_ms = incarnation.random.randrange(-2000, 2000)

    def now_ms(self) -> int:
        return EPOCH_MS + self._skew_ms + int(self._incarnation.simulation.now * 1000)

    def new_token(self) -> bytes:
        return self.random.randbytes(TOKEN_BYTES)

    def new_key(self) -> bytes:
        return self.random.randbytes(LEDGER_KEY_BYTES)


class Process:
    """A process of the cluster: its machine, and its current life where it has one."""

    def __init__(self, cluster: SimulatedCluster, name: str) -> None:
        self.name = name
        self.incarnation: Incarnation | None = None
        self.store: SimStore | None = None
        self.main: Callable[[], Awaitable[None]] | None = None
        """What ``restart`` runs."""
        self.platter: Platter | None = None
        self.node: Node | None = None
        self.failure: LedgerLogError | None = None
        """What the last life ended of, where it was a fault and not a kill."""
        self.stopping = trio.Event()
        self.settled = trio.Event()
        """The start is over, one way or another: it serves, or has ended."""
        self.is_starting = False
        """Somebody starts it, and it has not begun to live."""
        self._cluster = cluster
        self.lives = 0
        """How many there have been."""
        self._ended = trio.Event()

    @property
    def is_running(self) -> bool:
        return self.incarnation is not None

    @asynccontextmanager
    async def life(self) -> AsyncIterator[tuple[Incarnation, SimStore]]:
        """One life, for the body. NodeCrashed comes out, alone, where it ended by a crash."""
        cluster = self._cluster
        if self.incarnation is not None:
            raise InvalidArgument(f"{self.name} runs already")
        self.lives += 1
        self.is_starting = False
        incarnation = Incarnation(cluster.simulation, self.name, self.lives, self._crash)
        self.incarnation, self.failure = incarnation, None
        self._ended, self.stopping = trio.Event(), trio.Event()
        cluster.network.add_host(self.name)
        cluster.network.on_process_start(self.name)
        self.store = store = SimStore(cluster.tree, cluster.network, incarnation)
        store.belong_to(cluster.cluster_id)
        store.lost_share = cluster.metadata_lost_share
        ended = self._ended
        cluster.simulation.event("start", self.name, self.lives)
        try:
            with incarnation.scope:
                try:
                    yield incarnation, store
                except BaseExceptionGroup as group:
                    # What a dying process meets at its closed doors, and the faults that follow from it, are
                    # nobody's concern; a bug that shows only then still is.
                    rest = group.split((NodeCrashed, LedgerLogError))[1] if incarnation.is_dead else group
                    if rest is not None:
                        raise rest from None
                except (NodeCrashed, LedgerLogError):
                    if not incarnation.is_dead:
                        raise
        finally:
            if not incarnation.is_dead:
                store.end()
                self._end(incarnation, power_cut=False)
            ended.set()
        if incarnation.is_dead:
            raise NodeCrashed(f"{self.name} was killed")

    async def supervise(self) -> None:
        """Run ``main`` until it ends, one way or another."""
        assert self.main is not None
        settled = self.settled
        try:
            await self.main()
        except NodeCrashed:
            return
        except LedgerLogError as error:
            self.failure = error
            self._cluster.simulation.event("failed", self.name, type(error).__name__)
            self._cluster.faults["process failed"] += 1
        finally:
            settled.set()

    def _crash(self, power_cut: bool) -> None:
        self.crash(power_cut=power_cut)

    def crash(self, *, power_cut: bool = False) -> None:
        """End the life at once."""
        incarnation = self.incarnation
        if incarnation is None:
            return
        self._cluster.simulation.event("crash", self.name, power_cut)
        incarnation.die()
        self._end(incarnation, power_cut=power_cut)
        assert self.store is not None
        self.store.look()

    def _end(self, incarnation: Incarnation, *, power_cut: bool) -> None:
        if self.node is not None and not self.stopping.is_set():
            self._cluster.on_loss(self.name)
        self.incarnation = None
        self.node = None
        self._cluster.network.on_process_end(incarnation, is_silent=power_cut)
        if self.platter is not None:
            self.platter.on_process_end(power_cut=power_cut)

    async def wait_ended(self) -> None:
        """Return once the last life is over and all its tasks are."""
        await self._ended.wait()


class SimulatedCluster:
    """Given by ``simulated_cluster``. Methods that name an unknown process raise InvalidArgument."""

    def __init__(
        self,
        simulation: Simulation,
        nursery: trio.Nursery,
        *,
        storage: StorageConfig,
        quality: LinkQuality | None,
        replication: Replication,
        on_durable: OnDurable | None,
        on_metadata: OnMetadata | None,
        on_loss: OnLoss | None,
        observer: Observer | None,
        unsynced: int,
    ) -> None:
        self.simulation = simulation
        self.network = SimNetwork(simulation, quality=quality, observer=observer)
        self.network.add_host(METADATA)
        self._right_metadata: Content | None = None
        """What the metadata store held before it was exchanged."""
        self._other_metadata: Content | None = None
        """What it was exchanged for."""
        self.cluster_id = simulation.random("cluster").randbytes(16).hex()
        self.tree = SimTree(on_metadata, cluster=self.cluster_id)
        self.replication = replication
        self.metadata_lost_share = 0.0
        """So many of the metadata writes of processes that start from now on are lost, or their answers
        are."""
        self.faults: Counter[str] = Counter()
        """How many of each kind were injected."""
        self._nursery = nursery
        self._storage = storage
        self._unsynced = unsynced
        self._on_durable = on_durable
        self._on_loss = on_loss
        self._processes: dict[str, Process] = {}

    def on_loss(self, bookie: str) -> None:
        """A bookie that served is gone, and did not stop cleanly."""
        if self._on_loss is not None:
            self._on_loss(bookie)

    # --- who there is -------------------------------------------------------------------------

    @property
    def bookies(self) -> list[str]:
        """The names of all bookies."""
        return [name for name, process in self._processes.items() if process.platter is not None]

    def process(self, name: str) -> Process:
        """A process by its name, for what has no method here."""
        found = self._processes.get(name)
        if found is None:
            raise InvalidArgument(f"there is no process {name!r}; there are {', '.join(self._processes)}")
        return found

    def disk(self, name: str) -> Platter:
        """A bookie's disk, to make it slow, full or bad."""
        platter = self.process(name).platter
        if platter is None:
            raise InvalidArgument(f"{name} is no bookie: it has no disk")
        return platter

    def is_running(self, name: str) -> bool:
        return self.process(name).is_running

    # --- starting -----------------------------------------------------------------------------

    async def add_bookie(self) -> str:
        """One bookie more, serving; its name."""
        name = f"bookie-{len(self.bookies) + 1}"
        process = self._processes[name] = Process(self, name)
        report = self._on_durable

        def on_durable(path: str, offset: int, data: bytes) -> None:
            if report is not None:
                report(name, path, offset, data)

        process.platter = Platter(self.simulation, name, on_durable=on_durable)
        process.main = lambda: self._run_bookie(process)
        await self.restart(name)
        return name

    async def _run_bookie(self, process: Process) -> None:
        assert process.platter is not None
        async with (
            process.life() as (incarnation, store),
            open_bookie(
                f"/{process.name}",
                store,
                bookie_id=process.name,
                network=self.network.at(incarnation),
                listen=process.name,
                random_bytes=incarnation.random.randbytes,
                config=self._storage_of(process.name),
                disk=SimDisk(process.platter, incarnation),
                indexes=SimIndexes(process.platter, incarnation),
                peers=partial(
                    open_peers,
                    store,
                    self.network.at(incarnation),
                    environment=SimEnvironment(incarnation),
                ),
            ) as process.node,
        ):
            process.settled.set()
            await process.stopping.wait()

    def _storage_of(self, bookie: str) -> StorageConfig:
        if self.bookies.index(bookie) >= self._unsynced:
            return self._storage
        return attrs.evolve(self._storage, journal_write_data=False, write_cache_age_s=WRITE_CACHE_AGE_S)

    @asynccontextmanager
    async def client(
        self,
        name: str,
        *,
        replication: Replication | None = None,
        append_deadline_s: float = APPEND_DEADLINE_S,
    ) -> AsyncIterator[Cluster]:
        """A client process of that name, for the body: what ``ledgerlog.connect`` gives.

        Where the process is killed, the body is cancelled and NodeCrashed raised from here."""
        process = self._processes.setdefault(name, Process(self, name))
        async with (
            process.life() as (incarnation, store),
            open_client(
                store,
                self.network.at(incarnation),
                environment=SimEnvironment(incarnation),
                default_replication=replication or self.replication,
                append_deadline_s=append_deadline_s,
            ) as opened,
        ):
            yield Cluster("simulated:", opened)

    def start(self, name: str, main: Main) -> None:
        """Start a client process that runs ``main(client)``, now and at every ``restart``. Its end is its own
        affair; a LedgerLogError that it raises is kept in ``process(name).failure``."""
        process = self._processes.setdefault(name, Process(self, name))

        async def run() -> None:
            async with self.client(name) as client:
                await main(client)

        process.main = run
        self._nursery.start_soon(process.supervise, name=name)

    # --- faults -------------------------------------------------------------------------------

    def kill(self, name: str, *, power_cut: bool = False) -> None:
        """End a process at once, as SIGKILL does; with ``power_cut`` its machine as well, which loses what
        was not synced and says nothing to anybody. Nothing where it does not run."""
        process = self.process(name)
        if process.is_running:
            self.faults["power cut" if power_cut else "kill"] += 1
            process.crash(power_cut=power_cut)

    async def stop(self, name: str) -> None:
        """Let a bookie stop cleanly."""
        process = self.process(name)
        if process.is_running:
            process.stopping.set()
            await process.wait_ended()

    async def restart(self, name: str) -> None:
        """Start a process again on what its disk has; kill it first if it runs. Of a bookie, returns once it
        serves, was killed again, or raises what keeps it from serving."""
        process = self.process(name)
        if process.main is None:
            raise InvalidArgument(f"{name} was not started by start(), so it cannot be restarted")
        if process.is_running:
            self.kill(name)
        if process.lives:
            await process.wait_ended()
        # Somebody else may have waited for the same end, and started it already.
        if not process.is_starting and not process.is_running:
            process.is_starting, process.settled = True, trio.Event()
            self._nursery.start_soon(process.supervise, name=name)
        settled = process.settled
        if process.platter is not None:
            await settled.wait()
            if process.failure is not None:
                raise process.failure

    def pause(self, name: str) -> None:
        """Stop a process where it is, as SIGSTOP does, until ``resume``."""
        process = self.process(name)
        if process.incarnation is not None and not process.incarnation.is_paused:
            self.faults["pause"] += 1
            self.simulation.event("pause", name)
            process.incarnation.pause()
            assert process.store is not None
            process.store.look()

    def resume(self, name: str) -> None:
        process = self.process(name)
        if process.incarnation is not None and process.incarnation.is_paused:
            self.simulation.event("resume", name)
            process.incarnation.resume()
            self.network.on_resume()

    def partition(self, a: str, b: str = EVERYBODY, *, one_way: bool = False) -> None:
        """Let nothing through from ``a`` to ``b`` (EVERYBODY: all others, the metadata store included), nor
        back unless ``one_way``, until ``heal``."""
        self.faults["one-way partition" if one_way else "partition"] += 1
        self.simulation.event("partition", a, b, one_way)
        self.network.block(a, b, one_way=one_way)

    def exchange_metadata(self, *, cluster: str | None = None) -> None:
        """Let something else answer as the metadata store, until ``bring_metadata_back``: a store that was
        emptied and goes on, or with ``cluster`` the one of another cluster. It has given out as many ids as
        the right one, so it denies every ledger. Nothing where that is so already."""
        if self._right_metadata is not None:
            return
        self.faults["metadata exchanged"] += 1
        self.simulation.event("metadata exchanged", cluster)
        other = MemoryTree(cluster)
        self._right_metadata = self.tree.content
        self._other_metadata = attrs.evolve(other.content, counters=self._right_metadata.counters)
        self.tree.exchange(self._other_metadata)

    def bring_metadata_back(self) -> None:
        """Let the metadata store answer again that was exchanged. AssertionError: something was written to
        what answered in its place. Nothing where it was not exchanged."""
        if self._right_metadata is None:
            return
        self.simulation.event("metadata brought back")
        assert self._other_metadata is not None
        # Registrations are told from the rest by their paths alone: they end with the sessions.
        is_untouched = self.tree.paths("") == sorted(self._other_metadata.nodes)
        written = self.tree.exchange(self._right_metadata)
        assert is_untouched, "somebody has registered in a store that is not the cluster's"
        assert written == self._other_metadata, "somebody wrote to a store that is not the cluster's"
        self._right_metadata = None

    def heal(self) -> None:
        """Make the network, the disks and the metadata store good again, and resume who is paused. Who is
        down stays down."""
        self.simulation.event("heal")
        self.bring_metadata_back()
        self.metadata_lost_share = 0.0
        for name, process in self._processes.items():
            self.resume(name)
            if process.platter is not None:
                process.platter.heal()
            if process.store is not None:
                process.store.lost_share = 0.0
        self.network.heal()

    def slow(self, a: str, b: str, factor: float) -> None:
        """Make the latencies between two processes ``factor`` times as long."""
        self.faults["slow link"] += 1
        self.simulation.event("slow", a, b, factor)
        for link in self.network.links(a, b):
            link.slow = factor

    def clog(self, a: str, b: str, bytes_per_s: float) -> None:
        """Let so many bytes a second through between two processes."""
        self.faults["clogged link"] += 1
        self.simulation.event("clog", a, b, bytes_per_s)
        for link in self.network.links(a, b):
            link.bytes_per_s = bytes_per_s

    def reset(self, a: str, b: str, *, half: bool = False) -> None:
        """Break the connections that ``a`` opened to ``b``; with ``half`` only ``a`` learns it."""
        count = self.network.reset(a, b, half=half)
        if count:
            self.faults["half-open" if half else "reset"] += count
            self.simulation.event("reset", a, b, half, count)

    def expire_session(self, name: str) -> None:
        """Let the metadata store give up the session of a process."""
        process = self.process(name)
        if process.store is not None and not process.store.is_ended and process.is_running:
            self.faults["session expiry"] += 1
            process.store.expire()

    def lose_metadata_writes(self, name: str, share: float) -> None:
        """Let so many of a process's metadata writes be lost, or have their answers lost."""
        store = self.process(name).store
        if store is not None:
            store.lost_share = share


@asynccontextmanager
async def simulated_cluster(
    *,
    bookies: int = 4,
    replication: Replication | None = None,
    storage: StorageConfig = SMALL_STORAGE,
    quality: LinkQuality | None = None,
    on_durable: OnDurable | None = None,
    on_metadata: OnMetadata | None = None,
    on_loss: OnLoss | None = None,
    observer: Observer | None = None,
    unsynced: int = 0,
) -> AsyncIterator[SimulatedCluster]:
    """A cluster of running bookies, for the body, inside a run of ``simulate`` or ``Simulation``, whose seed
    is the cluster's. ``replication`` is the clients' default. The first ``unsynced`` bookies acknowledge
    entries before they sync them (``journal_write_data = false``) and come back from a crash through limbo;
    no more than ``ack_quorum - 1``, if nothing is to be lost.

    ``on_durable(bookie, path, offset, data)`` is called for everything that becomes durable, and
    ``on_metadata(path, before, after)`` for each metadata write, ``on_loss(bookie)`` when a bookie that
    served ends without a clean stop. ``observer`` is told of every frame that processes exchange
    (``wiretap.Observer``)."""
    simulation = current_simulation()
    copies = min(3, bookies)
    async with open_serving_nursery() as nursery:
        cluster = SimulatedCluster(
            simulation,
            nursery,
            storage=storage,
            quality=quality,
            replication=replication or Replication(copies, copies, copies // 2 + 1),
            on_durable=on_durable,
            on_metadata=on_metadata,
            on_loss=on_loss,
            observer=observer,
            unsynced=unsynced,
        )
        for _ in range(bookies):
            await cluster.add_bookie()
        yield cluster


def simulate(
    scenario: Callable[[SimulatedCluster], Awaitable[T]],
    *,
    seed: int = 0,
    bookies: int = 4,
    replication: Replication | None = None,
    storage: StorageConfig = SMALL_STORAGE,
    quality: LinkQuality | None = None,
    is_strict: bool = False,
) -> Outcome[T]:
    """Run ``await scenario(cluster)`` on a simulated cluster, from this thread, outside of any event loop.
    The same seed gives the same run. Errors as for ``Simulation.run``."""

    async def main(simulation: Simulation) -> T:
        async with simulated_cluster(
            bookies=bookies, replication=replication, storage=storage, quality=quality
        ) as cluster:
            return await scenario(cluster)

    return Simulation(seed, is_strict=is_strict).run(main)
