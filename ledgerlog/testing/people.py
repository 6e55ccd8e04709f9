"""The faults of people: mistakes of operators, upgrades, and replaced machines.

    metadata exchanged        another store answers for a while: one that was emptied, or another cluster's
    stale reads               a process reads the metadata from a replica that lags
    directory rolled back     an older image of a bookie's disk replaces the present one
    damaged and repaired      files of a bookie are damaged, ``bookie repair`` makes the bookie startable, and
                              its peers refill it. If the repair is refused, the bookie gets a new disk
    version changed           a process stops, and starts in the next version, or in this one again
    rack lost                 all bookies of a rack lose power at once, and come back later
    disk filled up            other programs fill a bookie's disk, and free the space again
    store restored            the metadata store is restored from an older backup. Such a run has a workload
                              and judges of its own, and no other faults (``restores``)

About one run in three has some of these faults in addition to the faults of its swarm. They are drawn from
their own random streams and have numbers from ``FIRST_NUMBER`` on, so a swarm is the same with and without
them.

**The budget.** Rolling back and damaging cost entries. Only the first ``ack quorum - 1`` bookies suffer these
two faults, and no bookie does if bits rot in the run. If the run has bookies that do not sync, these are the
same bookies. An old image is put back only if its bookie has served again since the image was taken.
Otherwise the bookie cannot notice the old image (``bookie.server.generations``).

**What must hold.** Everything that holds without these faults, and:

    DeletedIsGone       a bookie deletes only ledgers that the right metadata store has deleted (rule 25)
    UnknownKept         a process that rewrites a record keeps the keys that only another version knows
    BootMarks, LimboNoNegative, LimboClear    (``loss_rules``) hold for a bookie that was rolled back or
                        repaired, for the ledgers that existed then
    NothingWritten      no process registers in the wrong store, or writes to it
    Serves              after everything was healed, every bookie serves and takes adds. A bookie may refuse
                        to be repaired; then its error says why
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import attrs
import trio

from ledgerlog.errors import BookieUnavailable, LedgerLogError
from ledgerlog.limits import KIB, MIB
from ledgerlog.testing.injector import EXCHANGE
from ledgerlog.testing.plan import Fault, draw_faults
from ledgerlog.testing.restarts import RESTART_S, repair, start_again, try_restart
from ledgerlog.testing.swarm import Size, Swarm
from ledgerlog.testing.world import World, retry

__all__ = [
    "DAMAGED",
    "FILLED",
    "FIRST_NUMBER",
    "KINDS",
    "RACK",
    "RESTORED",
    "ROLLED_BACK",
    "STALE",
    "VERSION",
    "Mishaps",
    "People",
]

STALE = "stale reads"
ROLLED_BACK = "directory rolled back"
DAMAGED = "damaged and repaired"
VERSION = "version changed"
RACK = "rack lost"
FILLED = "disk filled up"

RESTORED = "store restored"

KINDS = (EXCHANGE, STALE, ROLLED_BACK, DAMAGED, VERSION, RACK, FILLED)

RESTORED_SHARE = 1 / 8
"""The share of runs with faults of people in which the store is restored. Such a run takes its own
time, so no long run has it."""

COSTLY = (ROLLED_BACK, DAMAGED)
"""Of the faults of people, only these two make a bookie lose entries."""

PEOPLE_SHARE = 1 / 3
"""The share of runs with faults of people."""

DISK_BYTES = 400 * MIB
"""The capacity of disks that people fill."""

SEGMENT_BYTES = 128 * KIB
"""About the disk space that a bookie needs to continue. Filling a disk leaves a few times as much free."""

FIRST_NUMBER = 1000
"""The number of the first fault of people in a plan."""


@attrs.frozen(kw_only=True)
class People:
    """The faults of people in one run."""

    kinds: tuple[str, ...]
    """The kinds of these faults. Empty: the run has no faults of people."""
    gap_s: float
    """The mean time between two of these faults, in seconds."""
    careless: int
    """How many bookies may lose entries by faults of people."""
    racks: int
    """The number of racks over which the bookies are spread. 0: bookies have no labels for racks."""

    @classmethod
    def draw(cls, random: Random, swarm: Swarm, *, wanted: bool | None = None) -> People:
        """Draw the faults of people in a run.

        Args:
            random: The generator to draw from.
            swarm: The parameters of the run.
            wanted: Whether the run has faults of people. None: this is drawn, too.
        """
        is_drawn = random.random() < PEOPLE_SHARE
        careless = 0 if "bit rot" in swarm.faults else swarm.replication.ack_quorum - 1
        possible = [kind for kind in KINDS if careless or kind not in COSTLY]
        kinds = random.sample(possible, random.choice((1, 2, 3, len(possible))))
        if random.random() < RESTORED_SHARE and swarm.size is not Size.LONG:
            kinds = [RESTORED]
        if not (is_drawn if wanted is None else wanted):
            kinds = []
        return cls(
            kinds=tuple(sorted(kinds)),
            gap_s=swarm.trouble_s / random.choice((2, 4, 8)),
            careless=careless if set(kinds) & set(COSTLY) else 0,
            racks=random.choice((2, 3)) if RACK in kinds else 0,
        )

    @property
    def restores(self) -> bool:
        """Whether the metadata store is restored from a backup in the run."""
        return RESTORED in self.kinds

    def draw_plan(self, random: Random, swarm: Swarm) -> tuple[Fault, ...]:
        """Draw the faults, in the order of their times."""
        if self.restores:
            return ()
        return draw_faults(
            random, self.kinds, gap_s=self.gap_s, until_s=swarm.trouble_s, first_number=FIRST_NUMBER
        )


class Mishaps:
    """Carries out the faults of people."""

    def __init__(self, world: World, people: People, clients: list[str], tell: Callable[..., None]) -> None:
        self._world = world
        self._people = people
        self._cluster = world.cluster
        self._clients = clients
        self._tell = tell

    async def inject(self, fault: Fault) -> None:
        """Carry out one fault."""
        world, cluster = self._world, self._cluster
        random = world.simulation.random(f"fault {fault.number}")
        lasting_s = random.choice((0.05, 0.12, 0.3)) * world.swarm.fault_s
        bookie, client = random.choice(cluster.bookies), random.choice(self._clients)
        anybody = random.choice((bookie, client))
        match fault.kind:
            case "metadata exchanged":
                await self._exchange(fault, random, lasting_s)
            case "stale reads":
                if cluster.is_running(anybody):
                    self._tell(fault, anybody, f"for {lasting_s:.3f} s")
                    cluster.lag_metadata(anybody)
                    await trio.sleep(lasting_s)
                    cluster.catch_up_metadata(anybody)
            case "version changed":
                await self._change_version(fault, anybody, lasting_s)
            case "rack lost":
                await self._lose_rack(fault, cluster.rack_of(bookie), lasting_s)
            case "disk filled up":
                await self._fill_disk(fault, random, bookie, lasting_s)
            case "directory rolled back":
                careless = random.choice(cluster.bookies[: self._people.careless])
                await self._roll_back(fault, random, careless, lasting_s)
            case "damaged and repaired":
                careless = random.choice(cluster.bookies[: self._people.careless])
                await self._damage(fault, random, careless)
            case _:
                raise AssertionError(f"people do nothing of the kind {fault.kind!r}")

    async def _exchange(self, fault: Fault, random: Random, lasting_s: float) -> None:
        other = random.choice((None, "anothercluster"))
        self._tell(fault, "emptied" if other is None else "of another cluster", f"for {lasting_s:.3f} s")
        self._cluster.exchange_metadata(cluster=other)
        await trio.sleep(lasting_s)
        self._cluster.bring_metadata_back()

    async def _change_version(self, fault: Fault, name: str, lasting_s: float) -> None:
        cluster, process = self._cluster, self._cluster.process(name)
        process.is_next_version = not process.is_next_version
        self._tell(fault, name, "is of the next version" if process.is_next_version else "is of this version")
        cluster.faults[fault.kind] += 1
        if name not in cluster.bookies:
            cluster.kill(name)
        else:
            with trio.move_on_after(lasting_s):
                await cluster.stop(name)
        if not cluster.is_running(name):
            await try_restart(self._world, name)

    async def _lose_rack(self, fault: Fault, rack: str, lasting_s: float) -> None:
        cluster = self._cluster
        lost = [bookie for bookie in cluster.bookies if cluster.rack_of(bookie) == rack]
        self._tell(fault, rack, ",".join(lost), f"for {lasting_s:.3f} s")
        cluster.faults[fault.kind] += 1
        with self.hands_on(*lost):
            for bookie in lost:
                cluster.kill(bookie, power_cut=True)
            await trio.sleep(lasting_s)
        for bookie in lost:
            if not cluster.is_running(bookie):
                await try_restart(self._world, bookie)

    async def _fill_disk(self, fault: Fault, random: Random, bookie: str, lasting_s: float) -> None:
        disk, process = self._cluster.disk(bookie), self._cluster.process(bookie)
        left = random.randrange(1, 5) * SEGMENT_BYTES // random.choice((1, 1, 8))
        self._tell(fault, bookie, f"{left} bytes are left for {lasting_s:.3f} s")
        self._cluster.faults[fault.kind] += 1
        disk.capacity_bytes = disk.used_bytes + left
        try:
            await trio.sleep(lasting_s)
            if process.node is not None and process.node.is_read_only:
                self._world.counts["turned read-only"] += 1
        finally:
            disk.capacity_bytes = DISK_BYTES

    async def _roll_back(self, fault: Fault, random: Random, bookie: str, lasting_s: float) -> None:
        cluster, process = self._cluster, self._cluster.process(bookie)
        if not self._serves(bookie):
            return
        image, lives = cluster.disk(bookie).take_image(), process.lives
        await trio.sleep(lasting_s * random.random())
        if self._world.in_hands[bookie]:
            return
        with self.hands_on(bookie):
            if not await self._restarted(random, bookie) or process.lives == lives:
                return
            await trio.sleep(lasting_s * random.random())
            if not self._serves(bookie):
                return  # The bookie has not served since, so the image may be of its present generation.
            await cluster.put_down(bookie, power_cut=random.random() < 0.5)
            self._tell(fault, bookie)
            cluster.faults[fault.kind] += 1
            cluster.put_disk_back(bookie, image)
            self._world.wire.loss.on_mishap(bookie)
        await try_restart(self._world, bookie)

    async def _restarted(self, random: Random, bookie: str) -> bool:
        """Restart a bookie, cleanly or not. Return whether it serves."""
        cluster = self._cluster
        try:
            with trio.move_on_after(RESTART_S):
                if random.random() < 0.5:
                    await cluster.stop(bookie)
                await cluster.restart(bookie)
        except LedgerLogError:
            return False
        return self._serves(bookie)

    def _serves(self, bookie: str) -> bool:
        return self._cluster.process(bookie).node is not None

    async def _damage(self, fault: Fault, random: Random, bookie: str) -> None:
        cluster = self._cluster
        if self._world.in_hands[bookie]:
            return
        with self.hands_on(bookie):
            if random.random() < 0.5:
                with trio.move_on_after(RESTART_S):
                    await cluster.stop(bookie)
            await cluster.put_down(bookie, power_cut=True)
            done = [cluster.disk(bookie).damage(random) for _ in range(random.choice((1, 2, 5)))]
            told = [what for what in done if what is not None]
            if told:
                self._world.damaged[bookie] = None
                self._tell(fault, bookie, "; ".join(told))
                cluster.faults[fault.kind] += 1
            if random.random() < 0.7:
                try:
                    await repair(self._world, bookie)
                except LedgerLogError as error:  # For example, the store cannot be reached.
                    self._world.event("not repaired", bookie, type(error).__name__)
        await try_restart(self._world, bookie)

    @contextmanager
    def hands_on(self, *bookies: str) -> Iterator[None]:
        """During the body, only the caller starts these bookies."""
        in_hands = self._world.in_hands
        in_hands.update(bookies)
        try:
            yield
        finally:
            in_hands.subtract(bookies)

    async def judge(self) -> None:
        """Check that every bookie serves and takes adds. Call it after everything was healed.

        Raises:
            Violation: A bookie does not serve and take adds within ``CONVERGE_S``.
        """
        cluster = self._cluster

        async def all_serve() -> None:
            for bookie in cluster.bookies:
                if not cluster.is_running(bookie) and bookie in self._world.damaged:
                    await start_again(self._world, bookie)  # A start that was under way has met the damage.
                node = cluster.process(bookie).node
                if node is None and (bookie in self._world.rotten or bookie in self._world.lost):
                    continue  # The bookie is gone for good, or has refused to start on a rotten disk.
                if node is None or node.is_read_only:
                    raise BookieUnavailable(f"{bookie} does not serve, or takes no adds")

        await retry(self._world, "for every bookie to serve and to take adds (Serves)", all_serve)
