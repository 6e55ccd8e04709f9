"""Faults for a scenario of your own, drawn from the seed: ``simulate(scenario, faults=DrawnFaults())``.

A scenario that injects its own faults finds only the bugs that its author thought of. Drawn faults find other
bugs. A run with all kinds of faults at once makes almost no progress. So each seed draws a few kinds of
faults, how often they come, and how many bookies may be down at once. The faults come while the scenario
runs. Processes that have failed or were killed are started again until the scenario ends, as a supervisor
would do. ``await cluster.calm()`` waits until the faults are over and everything is healed. After that, your
scenario checks what must be true. If you do not call ``calm``, the effects of faults stay: for example, a
partition.

The faults of a run are a numbered plan. If a run fails, ``simulate`` says which faults came before the
failure. Then it repeats the run with fewer and fewer faults (``minimize``), to name the faults that the run
needs to fail.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import attrs
import trio

from ledgerlog.concurrency.nurseries import open_serving_nursery
from ledgerlog.errors import InvalidArgument, LedgerLogError
from ledgerlog.testing.cluster import SimulatedCluster
from ledgerlog.testing.injector import (
    BOOKIES_ONLY,
    CLOCK_JUMP,
    FAULTS,
    LINKS,
    NEEDS_BOOKIE,
    Injector,
    Victims,
)
from ledgerlog.testing.plan import Fault, carry_out, draw_faults

__all__ = ["DRAWN_FAULTS", "DrawnFaults", "RunningFaults", "open_trouble"]

DRAWN_FAULTS = (*FAULTS, CLOCK_JUMP)
"""The kinds of faults that a scenario can meet. If your service is right, none of them loses data."""

BACK_S = 2.0
"""A process that is down is started again after this time on average, in seconds."""

RESTART_S = 20.0
"""If a bookie has not started after this time, another process that is down gets its turn."""


def _to_kinds(kinds: Collection[str]) -> tuple[str, ...]:
    kinds = _to_names(kinds)
    unknown = sorted(kinds.difference(DRAWN_FAULTS))
    if unknown or not kinds:
        raise InvalidArgument(
            f"no such faults: {', '.join(unknown) or 'none given'}; there are {', '.join(DRAWN_FAULTS)}"
        )
    return tuple(kind for kind in DRAWN_FAULTS if kind in kinds)


def _to_names(names: Collection[str]) -> frozenset[str]:
    if isinstance(names, str):
        raise InvalidArgument(f"{names!r} is one text: give a list of names")
    return frozenset(names)


def _positive(_instance: object, _attribute: object, seconds: float) -> None:
    if not 0 < seconds < float("inf"):
        raise InvalidArgument(f"seconds is {seconds!r}; it must be a positive number")


@attrs.frozen(kw_only=True)
class DrawnFaults:
    """Faults that each seed draws for itself.

        simulate(scenario, seed=1, faults=DrawnFaults(seconds=20, spare=["auditor"]))

    The faults hit bookies, and the processes that the scenario starts with ``cluster.start``. No fault aims
    at the body of ``cluster.client(name)``. But the body may find bookies and the metadata store out of
    reach, like every process.
    """

    seconds: float = attrs.field(default=20.0, validator=_positive)
    """How long the trouble lasts, in simulated seconds from the beginning of the scenario. The number of
    faults is drawn, too, and does not depend on it."""
    kinds: tuple[str, ...] = attrs.field(default=DRAWN_FAULTS, converter=_to_kinds)
    """The kinds of faults that a seed draws from. The default is all of them, ``DRAWN_FAULTS``."""
    spare: frozenset[str] = attrs.field(default=frozenset(), converter=_to_names)
    """The names of processes that no fault aims at. If one of them is down, the scenario must restart it."""


class RunningFaults:
    """The faults of one run.

    Args:
        cluster: The cluster of the run.
        faults: The faults to draw: their kinds, how long they come, and the processes to spare.
        only: The numbers of the faults to inject. None: all faults of the plan.
    """

    def __init__(
        self, cluster: SimulatedCluster, faults: DrawnFaults, only: Collection[int] | None = None
    ) -> None:
        self.told: list[str] = []
        """The faults so far, with their victims, as text for people."""
        self.injected: list[int] = []
        """The numbers of the faults so far."""
        self._cluster = cluster
        self._faults = faults
        self._over = cluster.trouble_over = trio.Event()
        random = cluster.simulation.random("drawn faults")
        kinds = random.sample(faults.kinds, min(len(faults.kinds), random.choice((2, 3, 5, 8))))
        gap_s = faults.seconds / random.choice((4, 10, 20, 40))
        self._down_max = random.choice((1, 1, 2, len(cluster.bookies)))
        plan = draw_faults(random, kinds, gap_s=gap_s, until_s=faults.seconds)
        missing = sorted(set(only or ()).difference(fault.number for fault in plan))
        if missing:
            raise InvalidArgument(
                f"the seed draws the faults from 0 to {len(plan) - 1}, and not "
                f"{', '.join(map(str, missing))}: a failure names the faults of its own seed, kinds and "
                "seconds"
            )
        self.plan = tuple(fault for fault in plan if only is None or fault.number in only)
        """The faults that are planned."""
        self._injector = Injector(cluster, self._tell)

    @property
    def trace_hash(self) -> str:
        """The hash of the run so far."""
        return self._cluster.simulation.trace.digest

    async def run(self) -> None:
        """Inject the faults, until the trouble is over. Then set ``cluster.trouble_over``."""
        await carry_out(self.plan, self._faults.seconds, self._inject)
        self._over.set()

    def _tell(self, fault: Fault, *what: object) -> None:
        self.told.append(f"{fault} {' '.join(map(str, what))}".rstrip())
        self.injected.append(fault.number)
        self._cluster.simulation.event("fault", fault.number, fault.kind, *map(str, what))

    async def _inject(self, fault: Fault) -> None:
        cluster = self._cluster
        random = cluster.simulation.random(f"drawn fault {fault.number}")
        bookies = [name for name in cluster.bookies if name not in self._faults.spare]
        clients = [name for name in cluster.services if name not in self._faults.spare]
        if not bookies and (not clients or fault.kind in NEEDS_BOOKIE):
            return
        bookie = random.choice(bookies or clients)
        others = clients or [name for name in bookies if name != bookie]
        if not others and fault.kind in LINKS:
            return
        client = random.choice(others or [bookie])
        lasting_s = random.choice((0.02, 0.05, 0.12, 0.3)) * min(self._faults.seconds, 40.0)
        may_fall = bookies and (
            sum(not cluster.is_running(name) for name in cluster.bookies) < self._down_max
        )
        anybody = random.choice((bookie, bookie, client))
        if fault.kind in BOOKIES_ONLY:
            anybody = bookie
        elif anybody == bookie and not may_fall:
            anybody = client
        if (anybody in cluster.bookies and not may_fall) or not cluster.is_running(anybody):
            return
        await self._injector.inject(fault, random, Victims(bookie, client, anybody, lasting_s))

    async def bring_back(self) -> None:
        """Start processes that are down, as a supervisor would do, until cancelled."""
        random = self._cluster.simulation.random("drawn restarts")
        while True:
            await trio.sleep(random.expovariate(1 / min(BACK_S, self._faults.seconds / 8)))
            down = [name for name in self._cluster.down if name not in self._faults.spare]
            if down:
                with trio.move_on_after(RESTART_S):
                    try:
                        await self._cluster.restart(random.choice(down))
                    except LedgerLogError as error:
                        self._cluster.simulation.event("not restarted", type(error).__name__)


@asynccontextmanager
async def open_trouble(
    cluster: SimulatedCluster, faults: DrawnFaults, only: Collection[int] | None
) -> AsyncIterator[RunningFaults]:
    """Inject drawn faults during the body. ``cluster.calm`` waits for their end.

    Raises:
        InvalidArgument: The plan has no faults with the numbers ``only``, or ``faults.spare`` names a process
            that never existed.
    """
    trouble = RunningFaults(cluster, faults, only)
    async with open_serving_nursery() as nursery:
        nursery.start_soon(trouble.run)
        nursery.start_soon(trouble.bring_back)
        yield trouble
    for name in sorted(faults.spare):
        cluster.process(name)
