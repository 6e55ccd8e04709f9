"""What the workloads, the nemesis and the judges of one simulated run share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

import attrs
import trio

from ledgerlog.cluster import Cluster
from ledgerlog.errors import LedgerLogError
from ledgerlog.model.record import Ack
from ledgerlog.testing.cluster import SimulatedCluster
from ledgerlog.testing.deterministic import Simulation
from ledgerlog.testing.invariants import GodView, Violation
from ledgerlog.testing.swarm import Swarm
from ledgerlog.testing.wire_rules import WireView

__all__ = ["CONVERGE_S", "Workload", "World", "retry"]

CONVERGE_S = 60.0
"""So long after the healing everything must work again, in simulated seconds."""


@attrs.define(eq=False)
class World:
    """One run."""

    simulation: Simulation
    cluster: SimulatedCluster
    swarm: Swarm
    god: GodView
    wire: WireView
    nursery: trio.Nursery
    """For what belongs to no process: the outside world."""
    counts: Counter[str] = attrs.field(factory=Counter)
    rotten: dict[str, None] = attrs.field(factory=dict)
    """The bookies on whose disks bits have rotted."""
    _poked: trio.Event = attrs.field(factory=trio.Event)

    def event(self, kind: str, *args: object) -> None:
        self.simulation.event(kind, *args)

    def on_ack(self, ack: Ack, log: str) -> None:
        """Somebody was told that a record of a log is durable."""
        position = ack.position
        assert position is not None, "only a duplicate may have none"
        self.god.on_ack(position.ledger_id, position.entry_id, log, now=self.simulation.now)

    def poke(self) -> None:
        """Let whoever rests act now: for a nemesis that wants a race."""
        self._poked.set()
        self._poked = trio.Event()

    async def rest(self, seconds: float) -> None:
        """Sleep, or until somebody pokes."""
        with trio.move_on_after(seconds):
            await self._poked.wait()


class Workload(Protocol):
    """Something that is done with a cluster, and that can tell afterwards whether it was done right."""

    def __init__(self, world: World) -> None: ...

    @property
    def clients(self) -> list[str]:
        """The names of its processes, for the nemesis to choose from. They are ended before the judgement."""
        ...

    @property
    def writers(self) -> list[str]:
        """Those of them that append, for faults that are aimed at appends."""
        ...

    async def prepare(self) -> None:
        """Make what is needed, and start the processes with ``cluster.start``."""
        ...

    async def judge(self, client: Cluster) -> None:
        """All is healed and the processes have ended: everything must work again, and the outcome be right.
        Raises Violation."""
        ...


async def retry(world: World, what: str, attempt: Callable[[], Awaitable[None]]) -> None:
    """Try until it works; Violation where that takes longer than ``CONVERGE_S``."""
    began = world.simulation.now
    last: LedgerLogError | None = None
    with trio.move_on_after(CONVERGE_S):
        while True:
            try:
                await attempt()
            except LedgerLogError as error:
                last = error
                world.event("not yet", what, type(error).__name__)
                await trio.sleep(0.25)
                continue
            took = round((world.simulation.now - began) * 1000)
            world.counts["worst ms to converge"] = max(world.counts["worst ms to converge"], took)
            return
    failure = Violation(
        f"Convergence: {CONVERGE_S:g} s after everything was healed, {what} is still not possible"
    )
    raise failure from last
