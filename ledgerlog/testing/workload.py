"""The first workload: leaders that contend for one log while the world does its worst, and then does not.

A run has three phases:

1. **Trouble.** Several processes take the log over again and again, append unique records from several
   tasks, roll, and are deposed; a follower reads along; and a nemesis injects faults, one after the other.
2. **Healing.** The network, disks and metadata are good again, every bookie is started, the leaders are
   ended. Now everything must converge in bounded time: a new leader takes over and appends (``WRITABLE_S``).
3. **Judgement.** The log is read twice and compared with what everybody was told (``history.judge``). Through
   all of it a ``GodView`` looks at every durable block, metadata write and acknowledgement.

**Swarm.** The seed draws the shape of the cluster and which kinds of faults there are, how often they come
and how many bookies may be down at once. A run with every fault at full rate does nothing but fail; many runs
with a few kinds each go further.

A batch of runs in which nothing was acknowledged, nobody was deposed and no write was torn proves nothing.
``vacuity`` says what a batch lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

import attrs
import trio

from ledgerlog.cluster import Cluster
from ledgerlog.errors import AppendUnknown, LedgerLogError, StorageError
from ledgerlog.log.log import Log
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.log import RollPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.model.record import Record
from ledgerlog.testing.cluster import SMALL_STORAGE, simulated_cluster
from ledgerlog.testing.deterministic import Simulation
from ledgerlog.testing.history import History, judge
from ledgerlog.testing.invariants import GodView, Violation
from ledgerlog.testing.links import LinkQuality
from ledgerlog.testing.metadata import METADATA
from ledgerlog.testing.network import EVERYBODY

__all__ = ["Report", "Swarm", "run_seed", "vacuity"]

LOG = "log"

WRITABLE_S = 60.0
"""So long after the healing a new leader must have appended."""

RUN_CPU_S = 60.0

RECORDS_MAX = 600
"""So many are sent in one run: more of the same finds less than another seed."""

FAULTS = (
    "kill",
    "power cut",
    "crash at a door",
    "power cut at a door",
    "pause",
    "partition",
    "one-way partition",
    "cut off",
    "reset",
    "half-open",
    "slow link",
    "clogged link",
    "session expiry",
    "lost metadata writes",
    "disk stall",
    "full disk",
    "failed sync",
    "depose",
)


@attrs.frozen(kw_only=True)
class Swarm:
    """What one seed is about."""

    bookies: int
    replication: Replication
    leaders: int
    tasks: int
    roll_records: int | None
    trouble_s: float
    faults: tuple[str, ...]
    gap_s: float
    """The mean time between two faults."""
    down_max: int
    """So many bookies may be down at once."""
    tail_share: float
    payload_max: int
    segment_records: int
    """A bookie goes on in a new journal segment after so many records."""

    @classmethod
    def draw(cls, random: Random) -> Swarm:
        """A swarm of its own for each seed."""
        shapes = [
            Replication(1, 1, 1),
            Replication(2, 2, 2),
            Replication(3, 3, 2),
            Replication(3, 3, 2),
            Replication(3, 2, 2),
            Replication(4, 3, 2),
            Replication(3, 3, 2, guaranteed=True),
            Replication(3, 2, 2, guaranteed=True),
        ]
        replication = random.choice(shapes)
        bookies = replication.ensemble + random.choice((0, 1, 1, 2))
        count = random.choice((2, 3, 5, 8))
        return cls(
            bookies=bookies,
            replication=replication,
            leaders=random.choice((1, 2, 2, 3)),
            tasks=random.choice((1, 2, 4)),
            roll_records=random.choice((None, 5, 20)),
            trouble_s=random.choice((10.0, 20.0, 40.0)),
            faults=tuple(sorted(random.sample(FAULTS, count))),
            gap_s=random.choice((0.3, 1.0, 3.0)),
            down_max=random.choice((1, 1, 2, bookies)),
            tail_share=random.choice((0.0, 0.01, 0.2)),
            payload_max=random.choice((20, 200, 20_000)),
            segment_records=random.choice((30, 100, 1000)),
        )


@attrs.frozen(kw_only=True)
class Report:
    """What became of one seed."""

    seed: int
    trace_hash: str
    events: int
    simulated_s: float
    cpu_s: float
    swarm: Swarm | None
    faults: dict[str, int]
    counts: dict[str, int]
    checks: dict[str, int]
    failure: BaseException | None
    trace: list[str]
    """The last events, where it failed."""

    @property
    def is_ok(self) -> bool:
        return self.failure is None


class _Run:
    """One seed on its way."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.swarm = Swarm.draw(simulation.random("swarm"))
        self.dice = simulation.random("workload")
        self.nemesis = simulation.random("nemesis")
        self.history = History()
        self.god = GodView()
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.is_over = False
        self._records = 0

    async def main(self, simulation: Simulation) -> None:
        swarm = self.swarm
        simulation.event("swarm", *map(str, attrs.astuple(swarm, recurse=False)))
        async with simulated_cluster(
            bookies=swarm.bookies,
            replication=swarm.replication,
            storage=attrs.evolve(SMALL_STORAGE, segment_records_max=swarm.segment_records),
            quality=LinkQuality(tail_share=swarm.tail_share),
            on_durable=self.god.on_durable,
            on_metadata=self.god.on_metadata,
        ) as cluster:
            self.cluster = cluster
            self.faults = cluster.faults
            self.god.look_at(cluster.tree.value)
            async with cluster.client("maker") as client:
                await client.create_log(LOG, roll=RollPolicy(max_records=swarm.roll_records))
            leaders = [f"leader-{number}" for number in range(1, swarm.leaders + 1)]
            for name in leaders:
                cluster.start(name, self.lead_again_and_again)
            cluster.start("follower", self.follow)
            try:
                await self.make_trouble(leaders)
                await self.heal([*leaders, "follower"])
                await self.converge()
            finally:
                self.counts["torn writes"] = sum(cluster.disk(b).torn_writes for b in cluster.bookies)
                self.counts["lost writes"] = sum(cluster.disk(b).lost_writes for b in cluster.bookies)

    # --- leaders ------------------------------------------------------------------------------

    async def lead_again_and_again(self, client: Cluster) -> None:
        dice = self.dice
        log: Log | None = None
        while True:
            try:
                log = log or await client.open_log(LOG)
                async with log.writer() as writer:
                    self.counts["takeovers"] += 1
                    self.simulation.event("leads", writer.epoch, writer.next_offset)
                    self.history.on_leader(writer.epoch, writer.next_offset)
                    with trio.move_on_after(dice.expovariate(1 / 8)):
                        await self.append_from_all_sides(writer)
            except LedgerLogError as error:
                self.counts["terms that failed"] += 1
                self.simulation.event("term failed", type(error).__name__)
            await trio.sleep(dice.expovariate(1 / 2))

    async def append_from_all_sides(self, writer: LogWriter) -> None:
        async with trio.open_nursery() as nursery:
            for task in range(self.swarm.tasks):
                nursery.start_soon(self.append, writer, task)

    async def append(self, writer: LogWriter, task: int) -> None:
        dice, history = self.dice, self.history
        while self._records < RECORDS_MAX:
            await trio.sleep(dice.expovariate(20))
            if dice.random() < 0.02:
                try:
                    await writer.roll()
                except LedgerLogError:
                    return
                self.counts["rolls"] += 1
            names = []
            for _ in range(dice.choice((1, 1, 1, 2, 5))):
                self._records += 1
                name = b"%d.%d.%d " % (writer.epoch, task, self._records)
                names.append(name.ljust(dice.randrange(len(name), len(name) + self.swarm.payload_max), b"x"))
            call = history.on_send(names)
            try:
                acks = await writer.append_many(names)
            except AppendUnknown:
                self.counts["unknown"] += len(names)
                continue
            except LedgerLogError:
                history.on_refused(call)
                self.counts["refused"] += len(names)
                return
            history.on_acks(call, acks)
            for ack in acks:
                self.god.on_ack(ack.position.ledger_id, ack.position.entry_id, LOG)
            self.simulation.event("ack", acks[0].epoch, acks[0].offset, len(acks))
            self.counts["acked"] += len(acks)

    async def follow(self, client: Cluster) -> None:
        seen: list[Record] = []
        self.history.reads.append(seen)
        while True:
            try:
                log = await client.open_log(LOG)
                async with log.read(len(seen), follow=True) as records:
                    async for record in records:
                        seen.append(record)
                        self.counts["followed"] += 1
            except LedgerLogError as error:
                self.simulation.event("follower failed", type(error).__name__)
            await trio.sleep(0.5)

    # --- trouble ------------------------------------------------------------------------------

    async def make_trouble(self, leaders: list[str]) -> None:
        nemesis, swarm = self.nemesis, self.swarm
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.bring_back)
            with trio.move_on_after(swarm.trouble_s):
                while True:
                    await trio.sleep(nemesis.expovariate(1 / swarm.gap_s))
                    nursery.start_soon(self.inject, nemesis.choice(swarm.faults), leaders)
            nursery.cancel_scope.cancel()

    async def bring_back(self) -> None:
        """Whatever is down is started again sooner or later."""
        cluster, nemesis = self.cluster, self.nemesis
        while True:
            await trio.sleep(nemesis.expovariate(1 / 2))
            names = [*cluster.bookies, *(f"leader-{n}" for n in range(1, self.swarm.leaders + 1)), "follower"]
            down = [name for name in names if not cluster.is_running(name)]
            if down:
                await self.try_restart(nemesis.choice(down))

    async def try_restart(self, name: str) -> None:
        try:
            with trio.move_on_after(20):
                await self.cluster.restart(name)
                self.counts["restarts"] += 1
        except StorageError as error:
            self.simulation.event("not restarted", name, type(error).__name__)
        except LedgerLogError:
            self.simulation.event("not restarted", name)

    async def inject(self, fault: str, leaders: list[str]) -> None:
        cluster, nemesis = self.cluster, self.nemesis
        down = sum(not cluster.is_running(bookie) for bookie in cluster.bookies)
        bookie = nemesis.choice(cluster.bookies)
        leader = nemesis.choice(leaders)
        anybody = nemesis.choice((bookie, bookie, leader))
        may_fall = anybody == leader or down < self.swarm.down_max
        lasting_s = nemesis.choice((0.1, 1.0, 5.0, 12.0))
        match fault:
            case "kill" if may_fall:
                cluster.kill(anybody)
            case "power cut" if may_fall:
                cluster.kill(anybody, power_cut=True)
            case "crash at a door" if may_fall:
                incarnation = cluster.process(anybody).incarnation
                if incarnation is not None:
                    cluster.faults[fault] += 1
                    incarnation.crash_at_door(nemesis.randrange(1, 30), before=nemesis.random() < 0.5)
            case "power cut at a door" if down < self.swarm.down_max:
                # Mostly while a write is under way, because that tears it.
                incarnation = cluster.process(bookie).incarnation
                if incarnation is not None:
                    cluster.faults[fault] += 1
                    before = nemesis.random() < 0.8
                    incarnation.crash_at_door(nemesis.randrange(1, 20), before=before, power_cut=True)
            case "pause":
                cluster.pause(anybody)
                await trio.sleep(lasting_s)
                cluster.resume(anybody)
            case "partition" | "one-way partition":
                a, b = (bookie, leader) if nemesis.random() < 0.5 else (leader, bookie)
                other = nemesis.choice((b, b, METADATA))
                cluster.partition(a, other, one_way=fault != "partition")
                await trio.sleep(lasting_s)
                cluster.network.heal(a, other)
            case "cut off":
                cluster.partition(anybody, EVERYBODY)
                await trio.sleep(lasting_s)
                cluster.network.heal(anybody, EVERYBODY)
            case "reset" | "half-open":
                cluster.reset(leader, bookie, half=fault == "half-open")
            case "slow link":
                cluster.slow(leader, bookie, nemesis.choice((10, 100, 1000)))
                await trio.sleep(lasting_s)
                cluster.network.heal(leader, bookie)
            case "clogged link":
                cluster.clog(leader, bookie, nemesis.choice((1_000, 100_000)))
                await trio.sleep(lasting_s)
                cluster.network.heal(leader, bookie)
            case "session expiry":
                cluster.expire_session(anybody)
            case "lost metadata writes":
                cluster.faults[fault] += 1
                cluster.lose_metadata_writes(anybody, nemesis.choice((0.2, 0.6)))
                await trio.sleep(lasting_s)
                cluster.lose_metadata_writes(anybody, 0.0)
            case "disk stall":
                cluster.faults[fault] += 1
                cluster.disk(bookie).stall(lasting_s)
            case "full disk":
                cluster.faults[fault] += 1
                cluster.disk(bookie).is_full = True
                await trio.sleep(lasting_s)
                cluster.disk(bookie).is_full = False
            case "failed sync" if down < self.swarm.down_max:
                cluster.faults[fault] += 1
                cluster.disk(bookie).fail_syncs(nemesis.randrange(1, 5))
            case "depose":
                # The classic: a leader that stands still, is replaced, and wakes up.
                cluster.pause(leader)
                await trio.sleep(lasting_s)
                cluster.resume(leader)

    # --- after it -----------------------------------------------------------------------------

    async def heal(self, clients: list[str]) -> None:
        cluster = self.cluster
        cluster.heal()
        for name in clients:
            cluster.kill(name)
        for bookie in cluster.bookies:
            incarnation = cluster.process(bookie).incarnation
            if incarnation is not None:
                incarnation.cancel_planned_crash()
            else:
                await cluster.restart(bookie)

    async def converge(self) -> None:
        cluster, history = self.cluster, self.history
        async with cluster.client("judge") as client:
            log = await client.open_log(LOG)
            began = self.simulation.now
            with trio.move_on_after(WRITABLE_S) as patience:
                await self.append_the_last(log)
            if patience.cancelled_caught:
                raise Violation(f"{WRITABLE_S:g} s after everything was healed the log takes no record")
            self.simulation.event("writable")
            self.counts["ms until writable"] = round((self.simulation.now - began) * 1000)
            final, again = await self.read_all(log), await self.read_all(log)
        judge(history, final, again)
        self.counts["records"] = len(final)

    async def append_the_last(self, log: Log) -> None:
        while True:
            try:
                async with log.writer() as writer:
                    self.history.on_leader(writer.epoch, writer.next_offset)
                    call = self.history.on_send([b"the last, of epoch %d" % writer.epoch])
                    self.history.on_acks(call, [await writer.append(call.names[0])])
                return
            except LedgerLogError as error:
                self.simulation.event("not writable yet", type(error).__name__)
                await trio.sleep(0.5)

    async def read_all(self, log: Log) -> list[Record]:
        async with log.read() as records:
            return [record async for record in records]


def run_seed(seed: int, *, is_strict: bool = False) -> Report:
    """Run one seed. Never raises for what it finds: see ``Report.failure``."""
    simulation = Simulation(seed, is_strict=is_strict)
    run = _Run(simulation)
    failure: BaseException | None = None
    try:
        simulation.run(run.main, cpu_s_max=RUN_CPU_S, simulated_s_max=3600)
    except BaseException as error:
        failure = _the_one(error)
        if isinstance(failure, KeyboardInterrupt | SystemExit):
            raise
    return Report(
        seed=seed,
        trace_hash=simulation.trace.digest,
        events=simulation.trace.events,
        simulated_s=simulation.now,
        cpu_s=simulation.cpu_s,
        swarm=run.swarm,
        faults=dict(sorted(run.faults.items())),
        counts=dict(sorted(run.counts.items())),
        checks=dict(sorted({**run.god.checks, **run.god.edges}.items())),
        failure=failure,
        trace=simulation.trace.lines(40) if failure is not None else [],
    )


def _the_one(error: BaseException) -> BaseException:
    """What to show of a group: a violation, because the others are its consequences; else the first."""
    leaves = [error]
    while any(isinstance(leaf, BaseExceptionGroup) for leaf in leaves):
        leaves = [
            inner
            for leaf in leaves
            for inner in (leaf.exceptions if isinstance(leaf, BaseExceptionGroup) else (leaf,))
        ]
    return next((leaf for leaf in leaves if isinstance(leaf, Violation)), leaves[0])


def vacuity(reports: Iterable[Report]) -> list[str]:
    """What a batch of runs lacks to prove anything, as lines for a person; empty where it lacks nothing."""
    counts: Counter[str] = Counter()
    runs = 0
    for report in reports:
        runs += 1
        counts.update(report.counts)
        counts.update(report.faults)
        counts.update(report.checks)
    wanted = {
        "acked": 40 * runs,
        "followed": 5 * runs,
        "takeovers": 2 * runs,
        "OPEN > IN_RECOVERY": runs // 2,
        "restarts": runs // 4,
        "torn writes": runs // 50,
        "kill": runs // 10,
        "unknown": runs // 25,
    }
    return [
        f"{what}: {counts[what]} in {runs} runs, at least {least} are wanted"
        for what, least in wanted.items()
        if counts[what] < least
    ]
