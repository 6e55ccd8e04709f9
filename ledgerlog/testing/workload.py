"""Run one seed, from drawing its swarm to the verdict: the whole system under faults.

A run has three phases:

1. **Trouble.** The workloads of the swarm run (``WORKLOADS``: leaders that contend for a log, ledgers with
   racing recoverers, a user's service, producers that repeat everything). Residents (see below) run beside
   them, and a nemesis carries out its plan of faults (``nemesis``).
2. **Healing.** The network, the disks and the metadata are healed, every bookie is started, and the clients
   are ended. From now on everything must work again in bounded time (``world.CONVERGE_S``).
3. **Judgement.** Each workload compares the stored data with the answers that its processes got. During all
   phases the rules of ``invariants`` check every durable block, metadata write and acknowledgement, and the
   rules of ``wire_rules`` check every frame.

**To test more:** write a workload, which is a class like ``ContendingLeaders``. Add it to ``WORKLOADS`` and
to a mix of ``swarm.WORKLOAD_MIXES``. For example, replicated state machines belong there. A *resident* is a
process that runs beside every workload and has no users of its own. Add it to ``RESIDENTS``, and it is
started, killed and restarted like the others. For example, auditors and replication workers belong there.

A batch of runs in which nothing was acknowledged, no leader was deposed or no write was torn would pass even
if the system were wrong. So ``vacuity`` names the events that a batch lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs
import trio

from bookie.storage.engine.config import StorageConfig
from ledgerlog.cluster import Cluster
from ledgerlog.limits import KIB
from ledgerlog.testing.archivers import REQUEST_S, Archivers, open_store
from ledgerlog.testing.campaigners import CampaigningLeaders
from ledgerlog.testing.cluster import SMALL_STORAGE
from ledgerlog.testing.counters import Counters
from ledgerlog.testing.deterministic import Simulation
from ledgerlog.testing.drills import LedgerDrills
from ledgerlog.testing.features import Features
from ledgerlog.testing.greedy import GreedyPeers
from ledgerlog.testing.hostile import HostilePeers, Hostility
from ledgerlog.testing.injector import EXCHANGE
from ledgerlog.testing.invariants import GodView
from ledgerlog.testing.leaders import ContendingLeaders
from ledgerlog.testing.links import LinkQuality
from ledgerlog.testing.minimize import the_one
from ledgerlog.testing.nemesis import Nemesis, draw_plan
from ledgerlog.testing.people import DISK_BYTES, FILLED, People
from ledgerlog.testing.plan import Fault
from ledgerlog.testing.producers import RepeatingProducers
from ledgerlog.testing.recoverers import RacingRecoverers
from ledgerlog.testing.repairers import OPERATOR, Repairers
from ledgerlog.testing.replicated import ReplicatedCounters
from ledgerlog.testing.restores import RestoredStore
from ledgerlog.testing.rot_rules import judge_rot
from ledgerlog.testing.runs import simulated_cluster
from ledgerlog.testing.swarm import COLLECT_S, COLLECT_S_MAX, Size, Swarm
from ledgerlog.testing.wire_rules import WireView
from ledgerlog.testing.world import Workload, World

if TYPE_CHECKING:
    from ledgerlog.testing.archive_store import ArchiveStore

__all__ = ["RESIDENTS", "WORKLOADS", "Report", "lacking", "run_seed", "vacuity"]

WORKLOADS: dict[str, Callable[[World], Workload]] = {
    "leaders": ContendingLeaders,
    "recoverers": RacingRecoverers,
    "drills": LedgerDrills,
    "service": Counters,
    "producers": RepeatingProducers,
    "replicas": ReplicatedCounters,
    "campaigns": CampaigningLeaders,
}
"""The workloads that a run may have, by name."""

RESIDENTS: dict[str, Callable[[Cluster], Awaitable[None]]] = {}
"""Client processes, by name, that run in every cluster."""

RUN_CPU_S = {Size.SMALL: 60.0, Size.FULL: 300.0, Size.LONG: 1800.0}
"""A run that takes more CPU time fails, in seconds. The limits catch endless loops, so they are far above
what a run needs, also on a busy machine."""

SIMULATED_S_MAX = {Size.SMALL: 3600.0, Size.FULL: 3600.0, Size.LONG: 48 * 3600.0}
"""A run that takes more simulated time fails, in seconds."""


@attrs.frozen(kw_only=True)
class Report:
    """The result of a run of one seed."""

    seed: int
    trace_hash: str
    events: int
    simulated_s: float
    cpu_s: float
    swarm: Swarm
    people: People
    hostility: Hostility
    features: Features
    plan: tuple[Fault, ...]
    """The planned faults, without the faults that were left out."""
    told: list[str]
    """The faults that were injected, with their details."""
    faults: dict[str, int]
    counts: dict[str, int]
    checks: dict[str, int]
    failure: BaseException | None
    trace: list[str]
    """The last events, if the run failed."""

    @property
    def is_ok(self) -> bool:
        """Whether the run found nothing wrong."""
        return self.failure is None


class _Run:
    """A run of one seed."""

    def __init__(
        self,
        simulation: Simulation,
        size: Size,
        only: Collection[int] | None,
        people: bool | None,
        hostile: bool | None,
        features: Collection[str] | None,
    ) -> None:
        self.simulation = simulation
        self.swarm = Swarm.draw(simulation.random("swarm"), size)
        of_people = simulation.random("people")
        self.people = People.draw(of_people, self.swarm, wanted=people)
        of_features = simulation.random("features")
        self.of_keys = simulation.random("keys")
        self.features = Features.draw(
            of_features,
            self.of_keys,
            size=size,
            wanted=() if self.people.restores else features,
        )
        self.features, self.swarm = self.features.fit(self.swarm, self.people)
        plan = sorted(
            (
                *(() if self.people.restores else draw_plan(simulation.random("nemesis"), self.swarm)),
                *self.people.draw_plan(of_people, self.swarm),
                *self.features.draw_plan(of_features, self.swarm.trouble_s),
            ),
            key=lambda fault: fault.at_s,
        )
        self.plan = tuple(fault for fault in plan if only is None or fault.number in only)
        of_hostile = simulation.random("hostile")
        is_wanted = False if self.people.restores else hostile
        self.hostility = Hostility.draw(of_hostile, self.swarm.trouble_s, wanted=is_wanted)
        self.directory: str | None = None
        self.archive_store: ArchiveStore | None = None
        self.god = GodView()
        self.wire = WireView(self.god)
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.told: list[str] = []
        self.hostile = HostilePeers(self.hostility, of_hostile, self.god, self.counts)

    @contextmanager
    def open_directory(self) -> Iterator[None]:
        """Make a directory for the body if the run keeps files in one (``World.directory``)."""
        features = self.features
        if not features.archivers and not features.snapshot_files:
            yield
            return
        with TemporaryDirectory() as self.directory, ExitStack() as stack:
            self.simulation.threads_are_steps, self.simulation.thread_s = True, REQUEST_S
            if features.archivers:
                self.archive_store = stack.enter_context(open_store(self.simulation))
            yield

    async def main(self, simulation: Simulation) -> None:
        swarm = self.swarm
        simulation.event("swarm", *map(str, attrs.astuple(swarm, recurse=False)))
        if self.people.kinds:
            simulation.event("people", *self.people.kinds)
        if self.hostility.roles:
            simulation.event("hostile", *self.hostility.roles)
        if self.features.names:
            simulation.event("features", *self.features.names)
        if self.people.restores:
            await self._restore(simulation)
            return
        async with (
            trio.open_nursery() as outside,
            simulated_cluster(
                bookies=swarm.bookies,
                replication=swarm.replication,
                storage=self.features.storage(_storage(swarm, self.people), swarm.stretch),
                quality=LinkQuality(tail_share=swarm.tail_share),
                on_durable=self.god.on_durable,
                on_metadata=self.god.on_metadata,
                on_loss=self.wire.loss.on_loss,
                unsynced=swarm.unsynced,
                observer=self.hostile.overhear(self.wire),
                prover_of=self.hostile.prover_of,
                racks=self.people.racks,
                disk_bytes=DISK_BYTES if FILLED in self.people.kinds else None,
            ) as cluster,
        ):
            self.faults = cluster.faults
            for bookie in cluster.bookies[: swarm.unsynced]:
                self.wire.loss.on_unsynced(bookie)
            careless = self.people.careless or self.features.careless(swarm)
            for bookie in cluster.bookies[:careless]:
                self.wire.loss.on_careless(bookie)
            self.god.look_at(cluster.tree)
            world = World(
                simulation,
                cluster,
                swarm,
                self.god,
                self.wire,
                outside,
                self.counts,
                careless=careless,
                directory=self.directory if self.features.snapshot_files else None,
                random_keys=self.of_keys if self.features.keys else None,
            )
            workloads = [WORKLOADS[name](world) for name in self.features.workloads_of(swarm)]
            for workload in workloads:
                await workload.prepare()
            repairers = Repairers(world, self.features.repairers, self.features.repair)
            archiving = Archivers(world, self.features.archivers, self.archive_store)
            residents = {**RESIDENTS, **repairers.mains, **archiving.mains}
            for name, main in residents.items():
                cluster.start(name, main)
            clients = [name for workload in workloads for name in workload.clients]
            writers = [name for workload in workloads for name in workload.writers]
            nemesis = Nemesis(world, self.people, [*clients, *residents], writers, archiving)
            self.told = nemesis.told
            await self.hostile.start(cluster)
            greedy = GreedyPeers(world, self.features.greedy)
            greedy.start()
            try:
                await nemesis.make_trouble(self.plan)
                if self.archive_store is not None:
                    self.archive_store.heal()
                greedy.stop()
                await nemesis.heal()
                simulation.event("healed")
                await greedy.judge()
                async with cluster.client("judge") as client:
                    await repairers.heal(client)
                    for name in archiving.mains:
                        await cluster.put_down(name)
                    await archiving.clean()
                    for name in residents:
                        if name != OPERATOR:
                            await cluster.restart(name)
                    for workload in workloads:
                        await workload.judge(client)
                    await repairers.judge(client)
                    await archiving.judge(client)
                    if self.people.kinds:
                        await nemesis.mishaps.judge()
                    if self.features.rot:
                        await judge_rot(world, client)
            finally:
                self.hostile.stop(cluster)
                repairers.count()
                self.counts["torn writes"] = sum(cluster.disk(b).torn_writes for b in cluster.bookies)
                self.counts["lost writes"] = sum(cluster.disk(b).lost_writes for b in cluster.bookies)
                self.counts["unsynced losses"] = self.wire.loss.losses
                self.counts["told as unknown"] = self.wire.answers.get("UNKNOWN", 0)
                nodes = [cluster.process(bookie).node for bookie in cluster.bookies]
                self.counts["copied out of limbo"] = sum(node.repair.copied for node in nodes if node)
                for what in ("compactions", "scrub_passes", "runs_restored"):
                    figures = [node.server.figures()[what] for node in nodes if node]
                    self.counts[what.replace("_", " ")] = sum(figures)
                if self.archive_store is not None:
                    self.counts["archive requests failed"] = self.archive_store.failed
                    self.counts["archive uploads damaged"] = self.archive_store.flipped
                self.counts["bits flipped"] = cluster.network.bits_damaged
                self.counts["damage told"] = self.wire.answers.get("CORRUPT", 0)
            outside.cancel_scope.cancel()

    async def _restore(self, simulation: Simulation) -> None:
        swarm = self.swarm
        with TemporaryDirectory() as path:
            run = RestoredStore(swarm, simulation.random("restored store"), f"{path}/backup", self.counts)
            self.told = run.told
            async with simulated_cluster(
                bookies=swarm.bookies,
                replication=swarm.replication,
                storage=_storage(swarm, self.people),
                quality=LinkQuality(tail_share=swarm.tail_share),
                on_durable=run.on_durable,
                on_metadata=run.on_metadata,
            ) as cluster:
                self.faults = cluster.faults
                await run.run(cluster)


def _storage(swarm: Swarm, people: People) -> StorageConfig:
    config, often_s = SMALL_STORAGE, min(COLLECT_S * swarm.stretch, COLLECT_S_MAX)
    if swarm.size is Size.SMALL:
        # Entries are small in such runs, and a small journal costs less to create than a large one.
        config = attrs.evolve(config, segment_bytes=128 * KIB, frame_bytes_max=64 * KIB)
    if EXCHANGE in swarm.faults or people.kinds:
        config = attrs.evolve(config, collect_interval_s=often_s)
    if FILLED in people.kinds:
        config = attrs.evolve(
            config,
            disk_reserve_bytes=2 * config.segment_bytes,
            ballast_bytes=config.segment_bytes // 2,
            disk_watch_interval_s=often_s,
            disk_full_retry_s=min(often_s, config.disk_full_retry_s),
        )
    return attrs.evolve(config, segment_records_max=swarm.segment_records)


def run_seed(
    seed: int,
    *,
    size: Size = Size.FULL,
    only: Collection[int] | None = None,
    is_strict: bool = False,
    people: bool | None = None,
    hostile: bool | None = None,
    features: Collection[str] | None = None,
) -> Report:
    """Run one seed. A failure of the run is not raised, but returned in ``Report.failure``.

    Args:
        seed: The seed.
        size: How long the run is.
        only: The numbers of the faults to inject. None: all faults of the plan.
        is_strict: Hash every step of every task into the trace, too.
        people: Whether people make mistakes in the run (``ledgerlog.testing.people``). None: the seed
            decides.
        hostile: Whether the cluster is closed and hostile peers attack it (``ledgerlog.testing.hostile``).
            None: the seed decides.
        features: The features that the run has (``ledgerlog.testing.features.NAMES``). Empty: none. None: the
            seed decides.

    Returns:
        The report.
    """
    simulation = Simulation(seed, is_strict=is_strict)
    run = _Run(simulation, size, only, people, hostile, features)
    failure: BaseException | None = None
    try:
        with run.open_directory():
            simulation.run(run.main, cpu_s_max=RUN_CPU_S[size], simulated_s_max=SIMULATED_S_MAX[size])
    except BaseException as error:
        failure = run.god.violation or the_one(error)
        if isinstance(failure, KeyboardInterrupt | SystemExit):
            raise
    return Report(
        seed=seed,
        trace_hash=simulation.trace.digest,
        events=simulation.trace.events,
        simulated_s=simulation.now,
        cpu_s=simulation.cpu_s,
        swarm=run.swarm,
        people=run.people,
        hostility=run.hostility,
        features=run.features,
        plan=run.plan,
        told=run.told,
        faults=dict(sorted(run.faults.items())),
        counts=dict(sorted(run.counts.items())),
        checks=dict(sorted({**run.god.checks, **run.god.edges}.items())),
        failure=failure,
        trace=simulation.trace.lines(40) if failure is not None else [],
    )


def vacuity(reports: Iterable[Report]) -> list[str]:
    """Return the events that are too rare in a batch of runs for the batch to prove anything.

    Returns:
        Lines of text for people. Empty: no event is too rare.
    """
    numbers: Counter[str] = Counter()
    runs = 0
    for report in reports:
        runs += 1
        numbers.update(report.counts)
        numbers.update(report.faults)
        numbers.update(report.checks)
    return lacking(numbers, runs)


def lacking(numbers: Counter[str], runs: int, size: Size = Size.FULL) -> list[str]:
    """Do the same as ``vacuity``, from the sums of all counts, faults and checks.

    The bounds are a fraction of the numbers that batches of 50 runs show. So bad luck alone does not bring a
    number below its bound, but a fault or a workload that stopped working does. "open ends" are records with
    an unknown outcome: their leader died, or could not find out the outcome.
    """
    wanted = {
        "acked": 10 * runs,
        "followed": 5 * runs,
        "takeovers": runs,
        "recoveries": runs // 4,
        "OPEN > IN_RECOVERY": runs // 2,
        "restarts": runs // 4,
        "torn writes": runs // 50,
        "kill": runs // 10,
        "open ends": runs // 10,
        "late adds": runs // 25,
        "bit rot": runs // 50,
        "damage told": runs // 200,
        "CloseProven": runs // 2,
        "NegativeReadFinal": runs // 2,
        "unsynced losses": runs // 20,
        "told as unknown": runs // 50,
        "copied out of limbo": runs // 50,
        "stale reads": runs // 50,
        "version changed": runs // 50,
        "rack lost": runs // 50,
        "disk filled up": runs // 50,
        "damaged and repaired": runs // 100,
        "directory rolled back": runs // 500,
        "store restored": 0 if size is Size.LONG else runs // 100,
        "hostile peers greeted": runs // 20,
        "hostile adds": runs // 20,
        "hostile requests": runs // 20,
        "HostileRefused": runs // 20,
    }
    return [
        f"{what}: {numbers[what]} in {runs} runs, at least {least} are wanted"
        for what, least in wanted.items()
        if numbers[what] < least
    ]
