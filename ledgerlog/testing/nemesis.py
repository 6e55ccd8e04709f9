"""The nemesis of a run: it plans the faults and injects them.

The faults of a run are a *plan*, drawn before the run from the seed alone. Each fault has a number, a time
and a kind. When the time of a fault comes, the fault draws its details (the victims and the duration) from
its own generator. The number of the fault seeds this generator. So if you leave some faults out, the others
draw the same details as before. ``shrink`` uses this to repeat a failing run with a part of its plan.

Directed faults aim at situations that are known to break replicated logs. Random faults rarely hit them:

    depose               a leader is paused, is replaced and wakes up
    late adds            a client's adds to some bookies are held back, and the client's rivals are woken.
                         Recovery decides while the adds are on their way, and the adds arrive afterwards
    member lost          a client's adds do not reach some bookies, and the client's connection to a bookie
                         that has the adds breaks. So entries are half confirmed when the ensemble changes.
                         Often the metadata store is slow meanwhile, which prolongs the change
    reset at a fence     when a bookie has confirmed a fence, the client's connections to another bookie
                         break. So the fence of the other bookie is lost, and the client reads that bookie
                         unfenced
    power cut after a fence   the bookie that has just confirmed a fence loses power, and comes back
"""

from __future__ import annotations

from random import Random

import trio

from ledgerlog.errors import LedgerLogError, StorageCorrupt
from ledgerlog.testing import features, people
from ledgerlog.testing.archivers import ARCHIVE_FAULTS, Archivers
from ledgerlog.testing.cluster import SETTLE_S
from ledgerlog.testing.injector import BOOKIES_ONLY, LOST_FOR_GOOD, ROT_AT_REST, Injector, Victims
from ledgerlog.testing.metadata import METADATA
from ledgerlog.testing.people import Mishaps, People
from ledgerlog.testing.plan import Fault, carry_out, draw_faults
from ledgerlog.testing.restarts import repair, require_rot, start_again, try_restart
from ledgerlog.testing.swarm import LOSING, Swarm
from ledgerlog.testing.world import World

__all__ = ["Nemesis", "draw_plan"]

REST_S = 0.02
"""If bits are to rot in entries that are at rest, and there are none yet: how soon to look again in a full
run, in seconds."""


def draw_plan(random: Random, swarm: Swarm) -> tuple[Fault, ...]:
    """Draw the faults of a run, in the order of their times."""
    return draw_faults(random, swarm.faults, gap_s=swarm.gap_s, until_s=swarm.trouble_s)


class Nemesis:
    """Carries out a plan."""

    def __init__(
        self,
        world: World,
        faults_of_people: People,
        clients: list[str],
        writers: list[str],
        archivers: Archivers,
    ) -> None:
        self.told: list[str] = []
        """The effects of each fault, as text for people."""
        self._world = world
        self._cluster = world.cluster
        self._clients = clients
        self._writers = writers
        self._archivers = archivers
        self._injector = Injector(world.cluster, self._tell)
        self.mishaps = Mishaps(world, faults_of_people, clients, self._tell)
        """The faults of people."""

    async def make_trouble(self, plan: tuple[Fault, ...]) -> None:
        """Inject the faults until the time for trouble is over. Their effects stay until ``heal``."""

        async def inject(fault: Fault) -> None:
            is_of_people = people.FIRST_NUMBER <= fault.number < features.FIRST_NUMBER
            await (self.mishaps.inject if is_of_people else self._inject)(fault)

        await carry_out(plan, self._world.swarm.trouble_s, inject, self._bring_back)

    def _tell(self, fault: Fault, *what: object) -> None:
        self.told.append(f"{fault} {' '.join(map(str, what))}".rstrip())
        self._world.event("fault", fault.number, fault.kind, *map(str, what))

    # --- coming back --------------------------------------------------------------------------

    async def _bring_back(self) -> None:
        """Restart processes that are down, each after a random time."""
        cluster, random = self._cluster, self._world.simulation.random("bring back")
        while True:
            await trio.sleep(random.expovariate(1 / self._world.swarm.down_s))
            names = (*cluster.bookies, *self._clients)
            down = [name for name in names if not cluster.is_running(name) and not self._world.in_hands[name]]
            if down:
                await try_restart(self._world, random.choice(down))

    async def heal(self) -> None:
        """Heal everything, end the clients, and start every bookie that can start."""
        cluster = self._cluster
        self._world.wire.forget_calls()
        cluster.heal()
        for name in self._clients:
            cluster.process(name).crash()
        await trio.sleep(SETTLE_S)  # A process that met a fault just before may still be ending.
        for bookie in cluster.bookies:
            if bookie in self._world.lost:
                continue
            process = cluster.process(bookie)
            if bookie in self._world.damaged:
                await process.settled.wait()  # A start that is under way may meet the damage.
            if process.is_running and process.stopping.is_set():
                await process.wait_ended()
            if not process.is_running:
                try:
                    await start_again(self._world, bookie)
                except StorageCorrupt as error:
                    require_rot(self._world, bookie, error)

    # --- faults -------------------------------------------------------------------------------

    async def _inject(self, fault: Fault) -> None:
        world, cluster = self._world, self._cluster
        random = world.simulation.random(f"fault {fault.number}")
        kind, swarm = fault.kind, world.swarm
        there = [bookie for bookie in cluster.bookies if bookie not in world.lost]
        may_fall = sum(not cluster.is_running(bookie) for bookie in there) < swarm.down_max
        aims_at_appends = kind in ("depose", "late adds", "member lost")
        bookie = random.choice(cluster.bookies)
        client = random.choice(self._writers if aims_at_appends else self._clients)
        if kind in LOSING and swarm.unsynced and random.random() < 0.5:
            bookie = random.choice(cluster.bookies[: swarm.unsynced])
        anybody = random.choice((bookie, bookie, client))
        lasting_s = random.choice((0.02, 0.05, 0.12, 0.3)) * swarm.fault_s
        if anybody == bookie and not may_fall:
            anybody = client
        if kind in ARCHIVE_FAULTS:
            self._tell(fault, f"for {lasting_s:.3f} s")
            await self._archivers.inject(fault, random, lasting_s)
            return
        if kind == LOST_FOR_GOOD:
            self._lose(fault, bookie)
            return
        if kind in (*BOOKIES_ONLY, "power cut after a fence"):
            if not may_fall:
                return
            anybody = bookie
        if not cluster.is_running(anybody):
            return
        match kind:
            case "depose":
                self._tell(fault, client, f"for {lasting_s:.3f} s")
                cluster.pause(client)
                world.poke()
                await trio.sleep(lasting_s)
                cluster.resume(client)
            case "late adds":
                await self._late_adds(fault, random, client, lasting_s)
            case "member lost":
                await self._member_lost(fault, random, client, lasting_s)
            case "reset at a fence":
                other = random.choice(cluster.bookies)
                self._tell(fault, bookie, client, other)
                world.wire.call_at_next_fence(bookie, lambda: self._later(0.0, cluster.reset, client, other))
                world.poke()
            case "power cut after a fence":
                await self._cut_after_fence(fault, random, bookie)
            case "index lost":
                await self._lose_index(fault, random)
            case "bit rot" | "rot at rest":
                await self._rot(fault, random, bookie, lasting_s)
            case _:
                victims = Victims(bookie, client, anybody, lasting_s)
                await self._injector.inject(fault, random, victims)

    def _lose(self, fault: Fault, bookie: str) -> None:
        world = self._world
        world.lost[bookie] = None
        world.in_hands[bookie] += 1  # It is never started again.
        self._tell(fault, bookie)
        world.cluster.faults[fault.kind] += 1
        world.cluster.kill(bookie, power_cut=True)

    async def _rot(self, fault: Fault, random: Random, bookie: str, lasting_s: float) -> None:
        world, cluster = self._world, self._cluster
        if world.careless:
            bookie = random.choice(cluster.bookies[: world.careless])
        elif bookie not in world.rotten and len(world.rotten) >= world.swarm.rotten_max:
            bookie = random.choice(list(world.rotten))
        at_rest = fault.kind == ROT_AT_REST
        disk = cluster.disk(bookie)
        count = random.choice((1, 3, 10))
        if at_rest and random.random() < 0.7:
            while not disk.rot_entries():  # Nothing is at rest yet.
                await world.rest(REST_S * world.swarm.stretch)
            flipped = 1 + sum(disk.rot_entries() for _ in range(count - 1))
        else:
            flipped = sum(disk.rot() for _ in range(count))
        if not flipped:
            return
        world.rotten[bookie] = None
        if world.careless:
            world.damaged[bookie] = None
        world.counts["bits rotten"] += flipped
        self._tell(fault, bookie, flipped, "bits")
        if not at_rest and random.random() < 0.6:
            # Restart the bookie: at its start it reads its disk, and has nothing in memory.
            with trio.move_on_after(lasting_s):
                await cluster.stop(bookie)
            await try_restart(self._world, bookie)
        cluster.faults[fault.kind] += 1

    async def _lose_index(self, fault: Fault, random: Random) -> None:
        """Lose the index of a bookie that may rot. A start or ``bookie repair`` makes another one."""
        world, cluster = self._world, self._cluster
        bookie = random.choice(cluster.bookies[: world.careless])
        if world.in_hands[bookie]:
            return
        with self.mishaps.hands_on(bookie):
            await cluster.put_down(bookie, power_cut=random.random() < 0.5)
            if not cluster.disk(bookie).lose_index():
                return
            cluster.faults[fault.kind] += 1
            world.damaged[bookie] = None
            is_repaired = random.random() < 0.3
            self._tell(fault, bookie, "and is repaired" if is_repaired else "and makes it again")
            if is_repaired:
                try:
                    await repair(world, bookie)
                except LedgerLogError as error:  # For example, the store cannot be reached.
                    world.event("not repaired", bookie, type(error).__name__)
            else:
                cluster.process(bookie).heals_index = True
        await try_restart(world, bookie)

    async def _late_adds(self, fault: Fault, random: Random, client: str, lasting_s: float) -> None:
        cluster, network = self._cluster, self._cluster.network
        held = random.sample(cluster.bookies, random.randrange(1, len(cluster.bookies) + 1))
        self._tell(fault, client, ",".join(held), f"for {lasting_s:.3f} s")
        cluster.faults[fault.kind] += 1
        for bookie in held:
            network.block(client, bookie, one_way=True)
        await trio.sleep(random.choice((0.0, 0.01, 0.05)))
        self._world.poke()
        await trio.sleep(lasting_s)
        for bookie in held:
            network.heal(client, bookie)

    async def _member_lost(self, fault: Fault, random: Random, client: str, lasting_s: float) -> None:
        cluster, network = self._cluster, self._cluster.network
        lost, *others = random.sample(cluster.bookies, len(cluster.bookies))
        held = others[: random.randrange(len(others) + 1)]
        self._tell(fault, client, "loses", lost, "and does not reach", ",".join(held))
        cluster.faults[fault.kind] += 1
        if random.random() < 0.6:
            cluster.slow(client, METADATA, random.choice((20, 100)))
        for bookie in held:
            network.block(client, bookie, one_way=True)
        await trio.sleep(random.choice((0.005, 0.02, 0.1)))
        cluster.reset(client, lost)
        network.block(client, lost)
        if random.random() < 0.3:
            self._world.poke()
        await trio.sleep(random.choice((0.005, 0.05, lasting_s)))
        for bookie in held:
            network.heal(client, bookie)
        await trio.sleep(lasting_s)
        network.heal(client, METADATA)
        network.heal(client, lost)

    async def _cut_after_fence(self, fault: Fault, random: Random, bookie: str) -> None:
        cluster = self._cluster
        self._tell(fault, bookie)
        cut = trio.Event()

        def power_cut() -> None:
            cluster.faults[fault.kind] += 1
            cluster.kill(bookie, power_cut=True)
            cut.set()

        after_s = random.choice((0.0, 0.0005, 0.005))
        self._world.wire.call_at_next_fence(bookie, lambda: self._later(after_s, power_cut))
        self._world.poke()
        await cut.wait()
        await try_restart(self._world, bookie)

    def _later(self, seconds: float, call: object, *args: object) -> None:
        assert callable(call)
        self._world.simulation.after(seconds, call, *args)
