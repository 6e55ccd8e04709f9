"""Inject one fault into a simulated cluster. This module has the kinds of faults, and the effect of each
kind.

Two modules use it: ``nemesis`` in the system's own runs, and ``trouble`` for the drawn faults of a user's
scenario. The caller decides which processes a fault hits and how long the fault lasts (``Victims``). Kinds of
faults that need a view of the protocol are in ``nemesis``.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs
import trio

from ledgerlog.testing.cluster import SimulatedCluster
from ledgerlog.testing.metadata import METADATA
from ledgerlog.testing.network import EVERYBODY
from ledgerlog.testing.plan import Fault

__all__ = [
    "BOOKIES_ONLY",
    "CLOCK_JUMP",
    "DAMAGED_LINK",
    "EXCHANGE",
    "FAULTS",
    "INDEX_LOST",
    "LINKS",
    "LOST_FOR_GOOD",
    "NEEDS_BOOKIE",
    "ROT_AT_REST",
    "Injector",
    "Victims",
]

CLOCK_JUMP = "clock jump"
"""The wall clock of a process is set forward or back."""

DAMAGED_LINK = "bits flipped on the way"
"""A link damages data, and the checksums of TCP do not notice."""

ROT_AT_REST = "rot at rest"
"""Bits rot in journals and entry logs while the bookie runs on. (The kind "bit rot" mostly restarts the
bookie, which then may refuse to start.)"""

INDEX_LOST = "index lost"
"""The index of a bookie is gone. It is made again from the files, by a start or by ``bookie repair``."""

LOST_FOR_GOOD = "bookie lost for good"
"""A bookie loses its machine and its disk, and is not replaced."""

EXCHANGE = "metadata exchanged"
"""Another metadata store answers for a while."""

FAULTS = (
    # processes
    "kill",
    "power cut",
    "crash at a door",
    "power cut at a door",
    "pause",
    "clean stop",
    # links
    "partition",
    "one-way partition",
    "cut off",
    "reset",
    "half-open",
    "slow link",
    "clogged link",
    # metadata
    "session expiry",
    "lost metadata writes",
    "metadata outage",
    # disks
    "disk stall",
    "slow disk",
    "full disk",
    "failed sync",
)
"""The kinds of faults that every cluster and every client must survive at any time."""

BOOKIES_ONLY = ("power cut", "power cut at a door", "clean stop", "failed sync")
"""The faults of processes that hit only bookies. Each of them takes a bookie out of service for a while."""

LINKS = ("partition", "one-way partition", "reset", "half-open", "slow link", "clogged link")
"""The faults of the links between two processes."""

NEEDS_BOOKIE = (*BOOKIES_ONLY, *LINKS, "disk stall", "slow disk", "full disk")
"""The faults that always concern a bookie."""


@attrs.frozen
class Victims:
    """The processes that a fault hits, and how long the fault lasts."""

    bookie: str
    client: str
    anybody: str
    """The process to hit, if the fault may hit either the client or the bookie."""
    lasting_s: float
    """If the fault ends by itself: how long it lasts, in seconds."""


class Injector:
    """Injects faults into a cluster.

    Args:
        cluster: The cluster.
        tell: Called as ``tell(fault, *what)`` when a fault is injected, with its victims and its size.
    """

    def __init__(self, cluster: SimulatedCluster, tell: Callable[..., None]) -> None:
        self._cluster = cluster
        self._tell = tell

    async def inject(self, fault: Fault, random: Random, victims: Victims) -> None:
        """Inject a fault. If the fault lasts for a time, return when the fault is over. A killed process
        stays down.

        Args:
            fault: The fault. Its kind is one of ``FAULTS``, ``EXCHANGE``, ``CLOCK_JUMP`` or
                ``DAMAGED_LINK``.
            random: The generator to draw the rest of its details from.
            victims: The processes that it hits. ``victims.anybody`` must be running.
        """
        cluster, kind = self._cluster, fault.kind
        bookie, client, anybody, lasting_s = (
            victims.bookie,
            victims.client,
            victims.anybody,
            victims.lasting_s,
        )
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
                # Mostly cut the power during a write, because that tears the write.
                is_cut = kind != "crash at a door"
                writes = is_cut and random.random() < 0.8
                doors, before = random.randrange(1, 6 if writes else 25), random.random() < 0.7
                name = "write" if writes else "effect"
                self._tell(fault, anybody, "before" if before else "after", name, doors)
                incarnation = cluster.process(anybody).incarnation
                assert incarnation is not None
                cluster.faults[kind] += 1
                incarnation.crash_at_door(doors, before=before, power_cut=is_cut, writes_only=writes)
            case "pause":
                self._tell(fault, anybody, link_s)
                cluster.pause(anybody)
                await trio.sleep(lasting_s)
                cluster.resume(anybody)
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
            case "bits flipped on the way":
                share = random.choice((0.02, 0.2))
                a, b = random.choice(((client, bookie), (bookie, client), (EVERYBODY, bookie)))
                self._tell(fault, a, b, share, link_s)
                cluster.damage_link(a, b, share)
                await trio.sleep(lasting_s)
                cluster.network.heal(a, b)
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
            case _:
                await self._inject_into_disk(fault, random, bookie, lasting_s)

    async def _inject_into_disk(self, fault: Fault, random: Random, bookie: str, lasting_s: float) -> None:
        cluster, kind = self._cluster, fault.kind
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
            case _:
                raise AssertionError(f"there is no fault of the kind {kind!r}")
        cluster.faults[kind] += 1
