"""The objects that the workloads, the nemesis and the checkers of one simulated run share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
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
"""After the faults are healed, everything must work again within this time, in simulated seconds."""

_CALM_GAP_S = 0.7


@attrs.define(eq=False)
class World:
    """One simulated run."""

    simulation: Simulation
    cluster: SimulatedCluster
    swarm: Swarm
    god: GodView
    wire: WireView
    nursery: trio.Nursery
    """For tasks that belong to no process, such as the nemesis."""
    counts: Counter[str] = attrs.field(factory=Counter)
    careless: int = 0
    """This many of the first bookies may lose entries: by faults of people (``people``), or because they rot
    and are repaired."""
    directory: str | None = None
    """A directory of this machine that all processes share. None: the run uses none. Its path differs from
    run to run, so nothing in the run may depend on it."""
    random_keys: Random | None = None
    """The generator of keys and headers. None: records have none."""
    rotten: dict[str, None] = attrs.field(factory=dict)
    """The bookies whose disks the nemesis has damaged with bit rot."""
    damaged: dict[str, None] = attrs.field(factory=dict)
    """The bookies whose files people have damaged. If one refuses to start, it is repaired."""
    lost: dict[str, None] = attrs.field(factory=dict)
    """The bookies that are gone for good."""
    in_hands: Counter[str] = attrs.field(factory=Counter)
    """The bookies that people work on. Only these people start them."""
    _poked: trio.Event = attrs.field(factory=trio.Event)

    def event(self, kind: str, *args: object) -> None:
        self.simulation.event(kind, *args)

    def on_ack(self, ack: Ack, log: str) -> None:
        """A process got the acknowledgement of a record of a log."""
        position = ack.position
        assert position is not None, "only a duplicate may have none"
        self.god.on_ack(position.ledger_id, position.entry_id, log, now=self.simulation.now)

    def poke(self) -> None:
        """Wake every task in ``rest`` now. The nemesis calls it to cause a race."""
        self._poked.set()
        self._poked = trio.Event()

    def gap_s(self, times: int) -> float:
        """Return the average time between actions of which about ``times`` happen while faults come.

        Afterwards it is longer in short runs, because the time until everything works again does not depend
        on the length of the run.
        """
        gap_s = self.swarm.trouble_s / times
        return gap_s if self.simulation.now < self.swarm.trouble_s else max(gap_s, _CALM_GAP_S)

    async def rest(self, seconds: float) -> None:
        """Sleep for ``seconds``, or until ``poke``."""
        with trio.move_on_after(seconds):
            await self._poked.wait()


class Workload(Protocol):
    """A use of a cluster that can check its outcome afterwards."""

    def __init__(self, world: World) -> None: ...

    @property
    def clients(self) -> list[str]:
        """The names of the workload's processes, for the nemesis. They end before ``judge`` is called."""
        ...

    @property
    def writers(self) -> list[str]:
        """The names of the processes that append, for faults that aim at appends."""
        ...

    async def prepare(self) -> None:
        """Create the objects that the workload needs, and start its processes with ``cluster.start``."""
        ...

    async def judge(self, client: Cluster) -> None:
        """Check that everything works again and that the outcome is right.

        All faults are healed and the processes have ended.

        Args:
            client: A client of the healed cluster.

        Raises:
            Violation: Something does not work or is wrong.
        """
        ...


async def retry(world: World, what: str, attempt: Callable[[], Awaitable[None]]) -> None:
    """Repeat ``attempt`` until it succeeds. Raise Violation if that takes longer than ``CONVERGE_S``."""
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
