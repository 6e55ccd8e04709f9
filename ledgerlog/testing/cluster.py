"""A whole cluster in one process: production code under simulated time, network and disks.

    async def scenario(cluster):
        async with cluster.client("a") as client:
            log = await client.create_log("orders")
            async with log.writer() as writer:
                await writer.append(b"first")
                cluster.kill("bookie-2")
                await writer.append(b"second")

    simulate(scenario, seed=1, bookies=4)

Clients, logs, bookies with their journal and index, and sessions of the metadata store run the production
code. Five things are simulated: time (``deterministic``), the network (``network``), the disks (``disk``),
the metadata store's own process (``metadata``), and the lives of processes (``process``).

**Processes** have names. Bookies are ``bookie-1``, ``bookie-2`` and so on. The metadata store is ``metadata``
and never fails. Every other process is a client. A client process is either the body of ``async with
cluster.client(name)``, or a function that you start with ``cluster.start(name, main)``. You can kill and
restart the second kind like a bookie.

**Faults** last until you heal them. A bookie whose disk fails stops, as in production, and stays down until
``restart``. Any exception other than a LedgerLogError, for example a failed assertion, is a bug: it ends the
whole run, and the run names its seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from random import Random

import attrs
import trio

from bookie.server.identity import establish_identity
from bookie.server.node import BookieNode, open_bookie
from bookie.server.repairing import repair_directory, restore_cookie
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.directory import open_directory
from ledgerlog.cluster import Cluster
from ledgerlog.errors import InvalidArgument, LedgerLogError
from ledgerlog.ledger.client import open_client
from ledgerlog.ledger.environment import TOKEN_BYTES, Environment
from ledgerlog.limits import (
    APPEND_DEADLINE_S,
    ENTRY_BYTES_MAX,
    FRAME_BYTES_TARGET,
    KIB,
    LEDGER_KEY_BYTES,
    LOG_ENTRY_BYTES_TARGET,
    MIB,
    RECORD_BYTES_MAX,
)
from ledgerlog.meta.memory import Content, MemoryTree
from ledgerlog.model.quorum import Replication
from ledgerlog.net.prover import Prover
from ledgerlog.repair.peers import open_peers
from ledgerlog.testing.deterministic import Simulation, running_process
from ledgerlog.testing.disk import EMPTY_IMAGE, DiskImage, Platter, SimDisk, SimIndexes
from ledgerlog.testing.links import LinkQuality
from ledgerlog.testing.metadata import METADATA, SimStore, SimTree
from ledgerlog.testing.network import EVERYBODY, SimNetwork
from ledgerlog.testing.process import Incarnation, NodeCrashed
from ledgerlog.testing.wiretap import Observer
from ledgerlog.versions import NEXT, THIS

__all__ = ["SMALL_STORAGE", "OnDurable", "OnLoss", "OnMetadata", "ProverOf", "SimulatedCluster"]

SMALL_STORAGE = StorageConfig(segment_bytes=MIB, arenas=2, frame_bytes_max=700 * KIB, segment_records_max=100)
"""The default storage of simulated bookies: journals that roll often and are cheap to create.

These bookies take frames of at most 700 KiB. So a log takes records of at most 636 KiB
(``SimulatedCluster.record_bytes_max``).
"""

assert SMALL_STORAGE.frame_bytes_max > FRAME_BYTES_TARGET + LOG_ENTRY_BYTES_TARGET // 2

_FRAME_OVERHEAD = ENTRY_BYTES_MAX - RECORD_BYTES_MAX
"""A frame takes so many bytes more than its record at most."""

SETTLE_S = 0.1
"""How many seconds to wait after the healing: a process that met a fault just before may still be ending."""

WRITE_CACHE_AGE_S = 0.5
"""If a bookie does not sync entries at once, it may hold them only in memory for this many seconds."""

EPOCH_MS = 1_700_000_000_000
"""The time at which the simulated wall clocks start."""

Main = Callable[[Cluster], Awaitable[None]]
OnDurable = Callable[[str, str, int, bytes], None]
OnMetadata = Callable[[str, bytes | None, bytes | None], None]
OnLoss = Callable[[str], None]
ProverOf = Callable[[str, Random], Prover | None]


class SimEnvironment(Environment):
    """The environment of one process: a random generator seeded by the run, and a wall clock.

    The wall clock is the simulated time plus the skew and the jumps of the process.
    """

    def __init__(self, incarnation: Incarnation, process: Process, record_bytes_max: int) -> None:
        self.random = incarnation.random
        self.version = NEXT if process.is_next_version else THIS
        self.record_bytes_max = record_bytes_max
        self._process = process
        self._incarnation = incarnation
        self._skew_ms = incarnation.random.randrange(-2000, 2000)

    def now_ms(self) -> int:
        now_ms = int(self._incarnation.simulation.now * 1000)
        return EPOCH_MS + self._skew_ms + self._process.clock_jumps_ms + now_ms

    def new_token(self) -> bytes:
        return self.random.randbytes(TOKEN_BYTES)

    def new_key(self) -> bytes:
        return self.random.randbytes(LEDGER_KEY_BYTES)


class Process:
    """A process of the cluster: its machine, and its current life if it runs."""

    def __init__(self, cluster: SimulatedCluster, name: str) -> None:
        self.name = name
        self.incarnation: Incarnation | None = None
        self.store: SimStore | None = None
        self.main: Callable[[], Awaitable[None]] | None = None
        """The function that ``restart`` runs."""
        self.platter: Platter | None = None
        self.node: BookieNode | None = None
        self.failure: LedgerLogError | None = None
        """The fault that ended the last life. None if it ended otherwise, for example by a kill."""
        self.stopping = trio.Event()
        self.settled = trio.Event()
        """Set when the start is over: the process serves, or it has ended."""
        self.is_starting = False
        """A start is under way, and the new life has not begun."""
        self._cluster = cluster
        self.lives = 0
        """How many lives have begun."""
        self.clock_jumps_ms = 0
        """How far the jumps of its wall clock have moved it."""
        self.is_next_version = False
        """Whether its next lives are of the version after this one (``ledgerlog.versions.NEXT``)."""
        self.has_new_disk = False
        """Whether its disk was replaced. Until it serves again, it is started with ``--fix-cookie``."""
        self.heals_index = False
        """Whether its index was lost. Until it serves again, its starts make the index from the files."""
        self.has_finished = False
        """Whether ``main`` returned, so that there is nothing to start again."""
        self._ended = trio.Event()

    @property
    def is_running(self) -> bool:
        return self.incarnation is not None

    @property
    def is_down(self) -> bool:
        """Whether a supervisor would start the process again: it was killed or stopped, or has failed."""
        is_off = not self.is_running and not self.is_starting and self.lives > 0
        return is_off and self.main is not None and not self.has_finished

    @asynccontextmanager
    async def life(self) -> AsyncIterator[tuple[Incarnation, SimStore]]:
        """Run one life of the process during the body. If a crash ends it, raise a bare NodeCrashed."""
        cluster = self._cluster
        if self.incarnation is not None:
            raise InvalidArgument(f"{self.name} runs already")
        self.lives += 1
        self.is_starting = False
        incarnation = Incarnation(cluster.simulation, self.name, self.lives, self._crash)
        self.incarnation, self.failure, self.has_finished = incarnation, None, False
        self._ended, self.stopping = trio.Event(), trio.Event()
        cluster.network.add_host(self.name)
        cluster.network.on_process_start(self.name)
        self.store = store = SimStore(cluster.tree, cluster.network, incarnation)
        store.belong_to(cluster.cluster_id)
        store.lost_share = cluster.metadata_lost_share
        ended = self._ended
        cluster.simulation.event("start", self.name, self.lives)
        token = running_process.set(incarnation)
        try:
            with incarnation.scope:
                try:
                    yield incarnation, store
                except BaseExceptionGroup as group:
                    # Ignore the faults of a process that is dying: its network, disk and store already refuse
                    # its calls. A bug that shows only then must still come out.
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
            running_process.reset(token)
        if incarnation.is_dead:
            raise NodeCrashed(f"{self.name} was killed")

    async def supervise(self) -> None:
        """Run ``main`` until it ends, and record how it ended."""
        assert self.main is not None
        settled = self.settled
        try:
            await self.main()
            self.has_finished = self.platter is None
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
        """End the current life at once."""
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
        """Wait until the last life and all its tasks have ended."""
        await self._ended.wait()


class SimulatedCluster:
    """A cluster of simulated processes. ``simulate`` and ``simulated_cluster`` give you one.

    Methods that take the name of a process raise InvalidArgument if the cluster has no such process.
    """

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
        racks: int,
        disk_bytes: int | None,
        prover_of: ProverOf,
    ) -> None:
        self.simulation = simulation
        """The run that the cluster belongs to."""
        self.network = SimNetwork(simulation, quality=quality, observer=observer)
        """The simulated network of all processes."""
        self.network.add_host(METADATA)
        self._right_metadata: Content | None = None
        """The content of the metadata store before it was exchanged. None: it is not exchanged."""
        self._other_metadata: Content | None = None
        """The content that answers while it is exchanged."""
        self.cluster_id = simulation.random("cluster").randbytes(16).hex()
        """The id of the cluster in the metadata store."""
        self.tree = SimTree(on_metadata, cluster=self.cluster_id)
        """The content of the metadata store."""
        self.replication = replication
        """The default replication of the clients."""
        frame_bytes = storage.frame_bytes_max
        self.record_bytes_max = min(RECORD_BYTES_MAX, max(frame_bytes // 2, frame_bytes - _FRAME_OVERHEAD))
        """The largest record that a log takes, in bytes. A larger one raises RecordTooLarge."""
        self.metadata_lost_share = 0.0
        """The share of metadata writes, from 0 to 1, that are lost or lose their answer. It applies to
        processes that start from now on."""
        self.faults: Counter[str] = Counter()
        """How many faults of each kind were injected."""
        self.trouble_over: trio.Event | None = None
        """Set when the faults that the seed has drawn are over. None: it draws none."""
        self._nursery = nursery
        self._storage = storage
        self._unsynced = unsynced
        self._racks = racks
        self._disk_bytes = disk_bytes
        self._prover_of = prover_of
        self._on_durable = on_durable
        self._on_loss = on_loss
        self._processes: dict[str, Process] = {}

    def on_loss(self, bookie: str) -> None:
        """Report that a serving bookie has ended without a clean stop. The bookie's process calls it.

        Args:
            bookie: The name of the bookie.
        """
        if self._on_loss is not None:
            self._on_loss(bookie)

    # --- processes ----------------------------------------------------------------------------

    @property
    def bookies(self) -> list[str]:
        """The names of all bookies."""
        return [name for name, process in self._processes.items() if process.platter is not None]

    @property
    def services(self) -> list[str]:
        """The names of the client processes that ``start`` started."""
        return [n for n, process in self._processes.items() if process.main and process.platter is None]

    @property
    def down(self) -> list[str]:
        """The names of the processes that were killed or stopped, or have failed, and can be restarted."""
        return [name for name, process in self._processes.items() if process.is_down]

    def process(self, name: str) -> Process:
        """Return a process by its name, if you need more than the methods of ``SimulatedCluster``.

        Args:
            name: The name of the process.

        Returns:
            The process.

        Raises:
            InvalidArgument: The cluster has no such process.
        """
        found = self._processes.get(name)
        if found is None:
            raise InvalidArgument(f"there is no process {name!r}; there are {', '.join(self._processes)}")
        return found

    def disk(self, name: str) -> Platter:
        """Return a bookie's disk, so that you can make it slow, full or bad.

        Args:
            name: The name of the bookie.

        Returns:
            The disk.

        Raises:
            InvalidArgument: ``name`` is not a bookie.
        """
        platter = self.process(name).platter
        if platter is None:
            raise InvalidArgument(f"{name} is not a bookie: it has no disk")
        return platter

    def is_running(self, name: str) -> bool:
        """Return whether a process is running. A paused process is running.

        Args:
            name: The name of the process.
        """
        return self.process(name).is_running

    # --- starting -----------------------------------------------------------------------------

    async def add_bookie(self) -> str:
        """Start another bookie, and wait until it serves.

        Returns:
            The name of the new bookie.

        Raises:
            LedgerLogError: The bookie could not start, for example because the network is partitioned.
        """
        name = f"bookie-{len(self.bookies) + 1}"
        process = self._processes[name] = Process(self, name)
        report = self._on_durable

        def on_durable(path: str, offset: int, data: bytes) -> None:
            if report is not None:
                report(name, path, offset, data)

        process.platter = Platter(self.simulation, name, on_durable=on_durable)
        process.platter.capacity_bytes = self._disk_bytes
        process.main = lambda: self._run_bookie(process)
        await self.restart(name)
        return name

    async def _run_bookie(self, process: Process) -> None:
        async with (
            process.life() as (incarnation, store),
            self._open_bookie(process, incarnation, store, process.name) as process.node,
        ):
            process.has_new_disk = process.heals_index = False
            process.settled.set()
            await process.stopping.wait()

    def _open_bookie(
        self, process: Process, incarnation: Incarnation, store: SimStore, bookie: str
    ) -> AbstractAsyncContextManager[BookieNode]:
        """Serve the directory of ``bookie`` on the disk of a process."""
        assert process.platter is not None
        prover = self._prover_of(bookie, incarnation.random)
        return open_bookie(
            f"/{bookie}",
            store,
            bookie_id=bookie,
            network=self.network.at(incarnation),
            listen=process.name,
            random_bytes=incarnation.random.randbytes,
            config=self._storage_of(bookie),
            labels={"rack": self.rack_of(bookie)} if self._racks else None,
            fix_cookie=process.has_new_disk,
            heals_index=process.heals_index,
            version=NEXT if process.is_next_version else THIS,
            disk=SimDisk(process.platter, incarnation),
            indexes=SimIndexes(process.platter, incarnation),
            peers=partial(
                open_peers,
                store,
                self.network.at(incarnation),
                environment=SimEnvironment(incarnation, process, self.record_bytes_max),
                prover=prover,
            ),
            prover=prover,
        )

    def rack_of(self, bookie: str) -> str:
        """Return the rack of a bookie. The bookies take turns over the racks.

        Args:
            bookie: The name of the bookie.
        """
        return f"rack-{self.bookies.index(bookie) % max(1, self._racks) + 1}"

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
        """Run a client process with this name during the body.

        Args:
            name: The name of the process.
            replication: The client's default replication. None: the default of the cluster.
            append_deadline_s: The client's append deadline, in seconds, as for ``ledgerlog.connect``.

        Returns:
            An async context manager. Entering it gives the ``Cluster`` that ``ledgerlog.connect`` would give.

        Raises:
            NodeCrashed: You killed the process; its body was cancelled.
            InvalidArgument: A process of that name is running.
        """
        process = self._processes.setdefault(name, Process(self, name))
        async with (
            process.life() as (incarnation, store),
            open_client(
                store,
                self.network.at(incarnation),
                environment=SimEnvironment(incarnation, process, self.record_bytes_max),
                default_replication=replication or self.replication,
                append_deadline_s=append_deadline_s,
                prover=self._prover_of(name, incarnation.random),
            ) as opened,
        ):
            yield Cluster("simulated:", opened)

    def start(self, name: str, main: Main) -> None:
        """Start a client process that runs ``main(client)``, now and at every ``restart``.

        The process ends when ``main`` returns. If ``main`` raises a LedgerLogError, the run continues, and
        ``process(name).failure`` has the error.

        Args:
            name: The name of the process.
            main: An async function. It gets a connected ``Cluster``.

        Raises:
            InvalidArgument: A process of that name is running.
        """
        process = self._processes.setdefault(name, Process(self, name))
        if process.is_running or process.is_starting:
            raise InvalidArgument(f"{name} runs already")

        async def run() -> None:
            async with self.client(name) as client:
                await main(client)

        process.main = run
        self._begin(process)

    def _begin(self, process: Process) -> None:
        process.is_starting, process.settled = True, trio.Event()
        self._nursery.start_soon(process.supervise, name=process.name)

    # --- faults -------------------------------------------------------------------------------

    def kill(self, name: str, *, power_cut: bool = False) -> None:
        """Kill a process at once, as SIGKILL does. Do nothing if it is not running.

        Args:
            name: The name of the process.
            power_cut: Cut the power of its machine too. The machine loses all data that was not synced, and
                its peers do not learn that their connections are broken.
        """
        process = self.process(name)
        if process.is_running:
            self.faults["power cut" if power_cut else "kill"] += 1
            process.crash(power_cut=power_cut)

    async def put_down(self, name: str, *, power_cut: bool = False) -> None:
        """Kill a process, even if a start is under way, and wait until it has ended.

        Args:
            name: The name of the process.
            power_cut: As for ``kill``.
        """
        process = self.process(name)
        while process.is_starting:
            await trio.lowlevel.checkpoint()  # The new life begins at once.
        self.kill(name, power_cut=power_cut)
        if process.lives:
            await process.wait_ended()

    async def stop(self, name: str) -> None:
        """Stop a bookie cleanly, and wait until it has stopped. Do nothing if it is not running.

        Args:
            name: The name of the bookie.
        """
        process = self.process(name)
        if process.is_running:
            process.stopping.set()
            await process.wait_ended()

    async def restart(self, name: str) -> None:
        """Start a process again, with the content of its disk. Kill it first if it runs.

        For a bookie, wait until it serves, or is killed again.

        Args:
            name: The name of a bookie, or of a process that ``start`` started.

        Raises:
            InvalidArgument: The process was not started by ``start``.
            LedgerLogError: The bookie cannot serve, for example because its disk is damaged.
        """
        process = self.process(name)
        if process.main is None:
            raise InvalidArgument(f"{name} was not started by start(), so it cannot be restarted")
        if process.is_running:
            self.kill(name)
        if process.lives:
            await process.wait_ended()
        # Another task may have waited for the same end, and may have started the process already.
        if not process.is_starting and not process.is_running:
            self._begin(process)
        settled = process.settled
        if process.platter is not None:
            await settled.wait()
            if process.failure is not None:
                raise process.failure

    def pause(self, name: str) -> None:
        """Pause a process, as SIGSTOP does, until ``resume`` or ``heal``.

        Args:
            name: The name of the process.
        """
        process = self.process(name)
        if process.incarnation is not None and not process.incarnation.is_paused:
            self.faults["pause"] += 1
            self.simulation.event("pause", name)
            process.incarnation.pause()
            assert process.store is not None
            process.store.look()

    def resume(self, name: str) -> None:
        """Let a paused process continue.

        Args:
            name: The name of the process.
        """
        process = self.process(name)
        if process.incarnation is not None and process.incarnation.is_paused:
            self.simulation.event("resume", name)
            process.incarnation.resume()
            self.network.on_resume()

    def partition(self, a: str, b: str = EVERYBODY, *, one_way: bool = False) -> None:
        """Block the network from ``a`` to ``b`` and back, until ``heal``.

        Args:
            a: The name of a process.
            b: The name of another process, or EVERYBODY for all others, including the metadata store.
            one_way: Block only the direction from ``a`` to ``b``.
        """
        self.faults["one-way partition" if one_way else "partition"] += 1
        self.simulation.event("partition", a, b, one_way)
        self.network.block(a, b, one_way=one_way)

    def exchange_metadata(self, *, cluster: str | None = None) -> None:
        """Let another store answer in place of the metadata store, until ``bring_metadata_back`` or ``heal``.

        The other store has given out as many ids as the right store, but has no ledgers. So it reports for
        every ledger that the ledger does not exist. Do nothing if the store is exchanged already.

        Args:
            cluster: The id of the cluster that the other store belongs to. None: a store that was emptied.
        """
        if self._right_metadata is not None:
            return
        self.faults["metadata exchanged"] += 1
        self.simulation.event("metadata exchanged", cluster)
        for process in self._processes.values():
            if process.store is not None:
                process.store.catch_up()
        other = MemoryTree(cluster)
        self._right_metadata = self.tree.content
        self._other_metadata = attrs.evolve(other.content, counters=self._right_metadata.counters)
        self.tree.exchange(self._other_metadata)

    def bring_metadata_back(self) -> None:
        """Undo ``exchange_metadata``. Do nothing if the store is not exchanged.

        Raises:
            AssertionError: A process wrote to the other store.
        """
        if self._right_metadata is None:
            return
        self.simulation.event("metadata brought back")
        assert self._other_metadata is not None
        # Only the paths show a registration: the content that ``exchange`` returns has no ephemeral nodes.
        is_untouched = self.tree.paths("") == sorted(self._other_metadata.nodes)
        written = self.tree.exchange(self._right_metadata)
        assert is_untouched, "a process has registered in a store that is not the cluster's"
        assert written == self._other_metadata, "a process wrote to a store that is not the cluster's"
        self._right_metadata = None

    def lag_metadata(self, name: str) -> None:
        """Let a process read only the present state of the metadata, until ``catch_up_metadata`` or ``heal``.

        The process does not see later writes of other processes, as if it read from a replica that lags. A
        write, a ``sync`` or a new session of the process also ends the lag.

        Args:
            name: The name of the process.
        """
        store = self.process(name).store
        if store is not None:
            self.faults["stale reads"] += 1
            self.simulation.event("metadata lags", name)
            store.lag()

    def catch_up_metadata(self, name: str) -> None:
        """Undo ``lag_metadata``.

        Args:
            name: The name of the process.
        """
        store = self.process(name).store
        if store is not None:
            store.catch_up()

    def put_disk_back(self, bookie: str, image: DiskImage) -> None:
        """Replace the content of a bookie's disk by an older image of it (``disk(bookie).take_image()``).

        Args:
            bookie: The name of a bookie that is down.
            image: The image. ``EMPTY_IMAGE`` is a new disk: the bookie then starts with ``--fix-cookie``.

        Raises:
            InvalidArgument: The bookie is running.
        """
        process = self.process(bookie)
        if process.is_running:
            raise InvalidArgument(f"{bookie} is running: kill it before you touch its disk")
        self.disk(bookie).put_back(image)
        process.has_new_disk = image == EMPTY_IMAGE

    @asynccontextmanager
    async def copy_of(self, bookie: str, image: DiskImage) -> AsyncIterator[BookieNode]:
        """Serve a copy of a bookie's directory during the body, from a machine of its own.

        Args:
            bookie: The name of the original, which may be running.
            image: The copy.

        Returns:
            An async context manager. Entering it gives the bookie that serves the copy.

        Raises:
            CookieMismatch: The original is running, so the copy is refused.
        """
        process = Process(self, f"{bookie}-copy")
        process.platter = Platter(self.simulation, process.name)
        process.platter.put_back(image)
        async with (
            process.life() as (incarnation, store),
            self._open_bookie(process, incarnation, store, bookie) as node,
        ):
            yield node

    async def repair(self, bookie: str) -> bool:
        """Repair the directory of a bookie that is down, as ``bookie repair`` does.

        Args:
            bookie: The name of the bookie.

        Returns:
            Whether anything had to be repaired. If so, the loss is marked.

        Raises:
            NodeCrashed: You killed the process that repairs.
            LedgerLogError: The repair is refused; see ``bookie.server.repairing``.
        """
        process, disk = self.process(bookie), self.disk(bookie)
        if process.lives:
            await process.wait_ended()
        async with (
            process.life() as (incarnation, store),
            open_directory(
                f"/{bookie}", disk=SimDisk(disk, incarnation), indexes=SimIndexes(disk, incarnation)
            ) as directory,
        ):
            random_bytes = incarnation.random.randbytes
            has_new_cookie = await restore_cookie(store, directory)
            await establish_identity(store, directory, bookie_id=bookie, random_bytes=random_bytes)
            done = await repair_directory(
                store, directory, random_bytes=random_bytes, config=self._storage_of(bookie)
            )
        return has_new_cookie or done is not None

    def jump_clock(self, name: str, seconds: float) -> None:
        """Set the wall clock of a process forward or back. ``heal`` does not correct the clock.

        Timeouts and deadlines use another clock, which never jumps.

        Args:
            name: The name of the process.
            seconds: How many seconds forward. A negative number sets the clock back.
        """
        self.faults["clock jump"] += 1
        self.simulation.event("clock jump", name, seconds)
        self.process(name).clock_jumps_ms += round(1000 * seconds)

    def heal(self) -> None:
        """Heal all faults of the network, the disks and the metadata store, and resume paused processes.

        Planned crashes are cancelled. Processes that are down stay down.
        """
        self.simulation.event("heal")
        self.bring_metadata_back()
        self.metadata_lost_share = 0.0
        for name, process in self._processes.items():
            self.resume(name)
            if process.incarnation is not None:
                process.incarnation.cancel_planned_crash()
            if process.platter is not None:
                process.platter.heal()
            if process.store is not None:
                process.store.lost_share = 0.0
                process.store.catch_up()
        self.network.heal()

    async def calm(self) -> None:
        """Wait until the drawn faults are over, heal everything, and start every process that is down.

        Bookies that you have stopped start as well. When ``calm`` returns, all bookies serve, and each
        process that ``start`` started runs or has returned. Then give your service a few seconds: sessions
        need time to end, and leaders need time to change.

        Raises:
            LedgerLogError: A bookie cannot serve although everything is healed, for example because you have
                damaged its disk.
        """
        if self.trouble_over is not None:
            await self.trouble_over.wait()
        self.heal()
        await trio.sleep(SETTLE_S)
        for process in list(self._processes.values()):
            if process.platter is not None and not process.is_down:
                await process.settled.wait()  # A start may be under way.
                if process.stopping.is_set():
                    await process.wait_ended()
            if process.is_down:
                await self.restart(process.name)
            while process.is_starting:
                await trio.lowlevel.checkpoint()  # The new life begins at once.

    def slow(self, a: str, b: str, factor: float) -> None:
        """Multiply the latencies between two processes by ``factor``, until ``heal``.

        Args:
            a: The name of a process.
            b: The name of the other process.
            factor: The factor, for example 10.0 for ten times the latency.
        """
        self.faults["slow link"] += 1
        self.simulation.event("slow", a, b, factor)
        for link in self.network.links(a, b):
            link.slow = factor

    def clog(self, a: str, b: str, bytes_per_s: float) -> None:
        """Limit the bandwidth between two processes, until ``heal``.

        Args:
            a: The name of a process.
            b: The name of the other process.
            bytes_per_s: The bandwidth in each direction, in bytes per second.
        """
        self.faults["clogged link"] += 1
        self.simulation.event("clog", a, b, bytes_per_s)
        for link in self.network.links(a, b):
            link.bytes_per_s = bytes_per_s

    def damage_link(self, a: str, b: str, share: float) -> None:
        """Flip a bit in some of the data that ``a`` sends to ``b``, until ``heal``. TCP does not notice.

        Args:
            a: The name of a process, or EVERYBODY.
            b: The name of another process, or EVERYBODY.
            share: The share of sends that are damaged, from 0 to 1.
        """
        self.faults["bits flipped on the way"] += 1
        self.simulation.event("link damaged", a, b, share)
        for link in self.network.links(a, b, one_way=True):
            link.damaged_share = share

    def reset(self, a: str, b: str, *, half: bool = False) -> None:
        """Break all connections between two processes.

        Args:
            a: The name of a process.
            b: The name of the other process.
            half: Only ``a`` learns that they are broken. ``b`` learns it when it sends something.
        """
        count = self.network.reset(a, b, half=half)
        if count:
            self.faults["half-open" if half else "reset"] += count
            self.simulation.event("reset", a, b, half, count)

    def expire_session(self, name: str) -> None:
        """Make the metadata store end the session of a process. Do nothing if the process has no session.

        Args:
            name: The name of the process.
        """
        process = self.process(name)
        if process.store is not None and not process.store.is_ended and process.is_running:
            self.faults["session expiry"] += 1
            process.store.expire()

    def lose_metadata_writes(self, name: str, share: float) -> None:
        """Lose a share of a process's metadata writes, or of the answers to them, until ``heal``.

        Args:
            name: The name of the process.
            share: The share, from 0 to 1.
        """
        store = self.process(name).store
        if store is not None:
            store.lost_share = share
