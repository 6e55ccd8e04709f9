"""The nemesis of a run: it plans the faults and injects them.

The faults of a run are a *plan*, drawn before the run from the seed alone. Each fault has a number, a time
and a kind. When it comes, it draws its details (its victims, its duration) from a generator of its own, which
its number seeds. So if you leave some faults out, the others draw the same as before. ``shrink`` uses this to
repeat a failing run with a part of its plan.

Directed faults aim at situations that are known to break replicated logs. Random faults rarely hit them:

    depose               a leader is paused, is replaced and wakes up
    late adds            a client's adds to some bookies are held back, and its rivals are woken: recovery
                         decides while adds are on their way, and they arrive afterwards
    member lost          a client's adds do not reach some bookies, and its connection to a bookie that has
                         them breaks. So entries are half confirmed when the ensemble changes. Often the
                         metadata store is slow meanwhile, which prolongs the change
    reset at a fence     when a bookie has confirmed a fence, the client's connections to another one break.
                         So the fence of that other bookie is lost, and the client reads it unfenced
    power cut after a fence   the bookie that has just confirmed a fence loses power, and comes back
"""

from __future__ import annotations

from random import Random

import trio

from ledgerlog.errors import StorageCorrupt
from ledgerlog.testing.metadata import METADATA
from ledgerlog.testing.network import EVERYBODY
from ledgerlog.testing.people import FIRST_NUMBER, Mishaps, People
from ledgerlog.testing.plan import Fault, draw_faults
from ledgerlog.testing.restarts import require_rot, start_again, try_restart
from ledgerlog.testing.swarm import LOSING, Swarm
from ledgerlog.testing.world import World

__all__ = ["Nemesis", "draw_plan"]

SETTLE_S = 0.1
"""After the healing, wait this long for processes that met a fault just before to end."""


def draw_plan(random: Random, swarm: Swarm) -> tuple[Fault, ...]:
    """Draw the faults of a run, in the order of their times."""
    return draw_faults(random, swarm.faults, gap_s=swarm.gap_s, until_s=swarm.trouble_s)


class Nemesis:
    """Carries out a plan."""

    def __init__(self, world: World, people: People, clients: list[str], writers: list[str]) -> None:
        self.told: list[str] = []
        """The effects of each fault, as text for people."""
        self._world = world
        self._cluster = world.cluster
        self._clients = clients
        self._writers = writers
        self.mishaps = Mishaps(world, people, clients, self._tell)
        """The faults of people."""

    async def make_trouble(self, plan: tuple[Fault, ...]) -> None:
        """Inject the faults until the time for trouble is over. Their effects stay until ``heal``."""
        began = self._world.simulation.now
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._bring_back)
            with trio.move_on_after(self._world.swarm.trouble_s):
                for fault in plan:
                    await trio.sleep(began + fault.at_s - self._world.simulation.now)
                    is_people = fault.number >= FIRST_NUMBER
                    nursery.start_soon(self.mishaps.inject if is_people else self._inject, fault)
                await trio.sleep_forever()
            nursery.cancel_scope.cancel()

    def _tell(self, fault: Fault, *what: object) -> None:
        self.told.append(f"{fault} {' '.join(map(str, what))}".rstrip())
        self._world.event("fault", fault.number, fault.kind, *map(str, what))

    # --- coming back --------------------------------------------------------------------------

    async def _bring_back(self) -> None:
        """Restart processes that are down, each after a random time."""
        cluster, random = self._cluster, self._world.simulation.random("bring back")
        while True:
            await trio.sleep(random.expovariate(1 / min(2.0, self._world.swarm.trouble_s / 8)))
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
        for bookie in cluster.bookies:
            incarnation = cluster.process(bookie).incarnation
            if incarnation is not None:
                incarnation.cancel_planned_crash()
        await trio.sleep(SETTLE_S)  # A process that met a fault just before may be about to end.
        for bookie in cluster.bookies:
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
        may_fall = sum(not cluster.is_running(bookie) for bookie in cluster.bookies) < swarm.down_max
        aims_at_appends = kind in ("depose", "late adds", "member lost")
        bookie = random.choice(cluster.bookies)
        client = random.choice(self._writers if aims_at_appends else self._clients)
        if kind in LOSING and swarm.unsynced and random.random() < 0.5:
            bookie = random.choice(cluster.bookies[: swarm.unsynced])
        anybody = random.choice((bookie, bookie, client))
        lasting_s = random.choice((0.02, 0.05, 0.12, 0.3)) * min(swarm.trouble_s, 40.0)
        if anybody == bookie and not may_fall:
            anybody = client
        if kind == "clean stop" or kind.startswith("power cut") or kind == "failed sync":
            if not may_fall:
                return
            anybody = bookie
        if not cluster.is_running(anybody):
            return
        link_s = f"for {lasting_s:.3f} s"
        match kind:
            case "kill":
                self._tell(fault, anybody)
                cluster.kill(anybody)
            case "power cut":
                incarnation = cluster.process(bookie).incarnation
                if incarnation is not None and random.random() < 0.6:
                    self._tell(fault, bookie, "in the next write")
                    cluster.faults[kind] += 1
                    incarnation.crash_at_door(1, before=True, power_cut=True, writes_only=True)
                else:
                    self._tell(fault, bookie, "now")
                    cluster.kill(bookie, power_cut=True)
            case "clean stop":
                self._tell(fault, bookie)
                cluster.faults[kind] += 1
                with trio.move_on_after(lasting_s):
                    await cluster.stop(bookie)
            case "crash at a door" | "power cut at a door":
                # A power cut comes mostly during a write, because it then tears the write.
                is_cut = kind != "crash at a door"
                writes = is_cut and random.random() < 0.8
                doors, before = random.randrange(1, 6 if writes else 25), random.random() < 0.7
                name = "write" if writes else "effect"
                self._tell(fault, anybody, "before" if before else "after", name, doors)
                incarnation = cluster.process(anybody).incarnation
                assert incarnation is not None
                cluster.faults[kind] += 1
                incarnation.crash_at_door(doors, before=before, power_cut=is_cut, writes_only=writes)
            case "pause" | "depose":
                who = client if kind == "depose" else anybody
                self._tell(fault, who, link_s)
                cluster.pause(who)
                if kind == "depose":
                    world.poke()
                await trio.sleep(lasting_s)
                cluster.resume(who)
            case "partition" | "one-way partition":
                a, b = (bookie, client) if random.random() < 0.5 else (client, bookie)
                other = random.choice((b, b, METADATA))
                self._tell(fault, a, other, link_s)
                cluster.partition(a, other, one_way=kind != "partition")
                await trio.sleep(lasting_s)
                cluster.network.heal(a, other)
            case "cut off":
                self._tell(fault, anybody, link_s)
                cluster.partition(anybody, EVERYBODY)
                await trio.sleep(lasting_s)
                cluster.network.heal(anybody, EVERYBODY)
            case "metadata outage":
                self._tell(fault, link_s)
                cluster.faults[kind] += 1
                cluster.network.block(METADATA, EVERYBODY)
                await trio.sleep(lasting_s)
                cluster.network.heal(METADATA, EVERYBODY)
            case "metadata exchanged":
                other_cluster = random.choice((None, "anothercluster"))
                what = "emptied" if other_cluster is None else "of another cluster"
                self._tell(fault, what, link_s)
                cluster.exchange_metadata(cluster=other_cluster)
                await trio.sleep(lasting_s)
                cluster.bring_metadata_back()
            case "clock jump":
                seconds = random.choice((-3600.0, -30.0, 30.0, 3600.0))
                self._tell(fault, anybody, seconds, "s")
                cluster.jump_clock(anybody, seconds)
            case "reset" | "half-open":
                self._tell(fault, client, bookie)
                cluster.reset(client, bookie, half=kind == "half-open")
            case "slow link":
                factor = random.choice((10, 100, 1000))
                self._tell(fault, client, bookie, factor, link_s)
                cluster.slow(client, bookie, factor)
                await trio.sleep(lasting_s)
                cluster.network.heal(client, bookie)
            case "clogged link":
                rate = random.choice((1_000, 100_000))
                self._tell(fault, client, bookie, rate, link_s)
                cluster.clog(client, bookie, rate)
                await trio.sleep(lasting_s)
                cluster.network.heal(client, bookie)
            case "session expiry":
                self._tell(fault, anybody)
                cluster.expire_session(anybody)
            case "lost metadata writes":
                share = random.choice((0.2, 0.6))
                self._tell(fault, anybody, share, link_s)
                cluster.faults[kind] += 1
                cluster.lose_metadata_writes(anybody, share)
                await trio.sleep(lasting_s)
                cluster.lose_metadata_writes(anybody, 0.0)
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
            case _:
                await self._inject_into_disk(fault, random, bookie, lasting_s)

    async def _inject_into_disk(self, fault: Fault, random: Random, bookie: str, lasting_s: float) -> None:
        world, cluster, kind = self._world, self._cluster, fault.kind
        disk = cluster.disk(bookie)
        match kind:
            case "disk stall":
                self._tell(fault, bookie, f"for {lasting_s:.3f} s")
                disk.stall(lasting_s)
            case "slow disk":
                disk.slow = random.choice((5.0, 50.0))
                self._tell(fault, bookie, disk.slow, f"for {lasting_s:.3f} s")
                await trio.sleep(lasting_s)
                disk.slow = 1.0
            case "full disk":
                self._tell(fault, bookie, f"for {lasting_s:.3f} s")
                disk.is_full = True
                await trio.sleep(lasting_s)
                disk.is_full = False
            case "failed sync":
                count = random.randrange(1, 5)
                self._tell(fault, bookie, "write", count)
                disk.fail_syncs(count)
            case "bit rot":
                if bookie not in world.rotten and len(world.rotten) >= world.swarm.rotten_max:
                    bookie = random.choice(list(world.rotten))
                flipped = sum(cluster.disk(bookie).rot() for _ in range(random.choice((1, 3, 10))))
                if not flipped:
                    return
                world.rotten[bookie] = None
                world.counts["bits rotten"] += flipped
                self._tell(fault, bookie, flipped, "bits")
                if random.random() < 0.6:
                    # Restart the bookie: at its start it reads its disk, and has nothing in memory.
                    with trio.move_on_after(lasting_s):
                        await cluster.stop(bookie)
                    await try_restart(self._world, bookie)
            case _:
                raise AssertionError(f"there is no fault of the kind {kind!r}")
        cluster.faults[kind] += 1

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
