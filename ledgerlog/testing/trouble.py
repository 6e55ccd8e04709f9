"""Faults for a scenario of your own, drawn from the seed: ``simulate(scenario, faults=DrawnFaults())``.

A scenario that injects its own faults finds the bugs that its author thought of. Drawn faults find others.
Each seed draws a few kinds of faults, how often they come and how many bookies may be down at once, because a
run with all kinds at once hardly gets anything done. The faults come while the scenario runs. Processes that
they end are started again, as an operator or a supervisor would do. ``await cluster.calm()`` waits until the
faults are over and everything is healed; after it the scenario checks what must be true.

The faults of a run are a numbered plan. If a run fails, ``simulate`` says which faults came before, and
repeats the run with fewer and fewer of them (``shrink``), to name those that it takes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import attrs
import trio

from ledgerlog.concurrency.nurseries import open_serving_nursery
from ledgerlog.errors import InvalidArgument, LedgerLogError
from ledgerlog.testing.cluster import SimulatedCluster
from ledgerlog.testing.injector import BOOKIES_ONLY, CLOCK_JUMP, FAULTS, Injector, Victims
from ledgerlog.testing.plan import Fault, carry_out, draw_faults

__all__ = ["DRAWN_FAULTS", "DrawnFaults", "RunningFaults", "open_trouble"]

DRAWN_FAULTS = (*FAULTS, CLOCK_JUMP)
"""The kinds of faults that a scenario meets: every one that loses nothing if your service is right."""

BACK_S = 2.0
"""A process that is down is started again after this time on average, in seconds."""

RESTART_S = 20.0
"""If a bookie has not started after this time, it is tried again later."""


def _to_kinds(kinds: Collection[str]) -> tuple[str, ...]:
    unknown = [kind for kind in kinds if kind not in DRAWN_FAULTS]
    if unknown or not kinds:
        raise InvalidArgument(
            f"no such faults: {', '.join(unknown) or 'none given'}; there are {', '.join(DRAWN_FAULTS)}"
        )
    return tuple(dict.fromkeys(kinds))


def _positive(_instance: object, _attribute: object, seconds: float) -> None:
    if not 0 < seconds < float("inf"):
        raise InvalidArgument(f"seconds is {seconds!r}; it must be a positive number")


@attrs.frozen(kw_only=True)
class DrawnFaults:
    """Faults that each seed draws for itself.

        simulate(scenario, seed=1, faults=DrawnFaults(seconds=20, spare=["auditor"]))

    Bookies, and the processes that the scenario starts with ``cluster.start``, meet them. The body of
    ``cluster.client(name)`` does not.
    """

    seconds: float = attrs.field(default=20.0, validator=_positive)
    """How long the trouble lasts, in simulated seconds from the beginning of the scenario."""
    kinds: tuple[str, ...] = attrs.field(default=DRAWN_FAULTS, converter=_to_kinds)
    """The kinds of faults that a seed draws from. The default is all of them, ``DRAWN_FAULTS``."""
    spare: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)
    """The names of processes that no fault hits."""


class RunningFaults:
    """The faults of one run.

    Args:
        cluster: The cluster of the run.
        faults: What to draw from.
        only: The numbers of the faults to inject. None: all of the plan.
    """

    def __init__(
        self, cluster: SimulatedCluster, faults: DrawnFaults, only: Collection[int] | None = None
    ) -> None:
        self.told: list[str] = []
        """The faults so far, with their victims, as text for people."""
        self._cluster = cluster
        self._faults = faults
        random = cluster.simulation.random("faults")
        kinds = random.sample(faults.kinds, min(len(faults.kinds), random.choice((2, 3, 5, 8))))
        gap_s = faults.seconds / random.choice((4, 10, 20, 40))
        self._down_max = random.choice((1, 1, 2, len(cluster.bookies)))
        plan = draw_faults(random, kinds, gap_s=gap_s, until_s=faults.seconds)
        self.plan = tuple(fault for fault in plan if only is None or fault.number in only)
        """The faults that are planned."""
        self._injector = Injector(cluster, self._tell)

    async def run(self) -> None:
        """Inject the faults, until the trouble is over."""
        await carry_out(self.plan, self._faults.seconds, self._inject, self._bring_back)

    def _tell(self, fault: Fault, *what: object) -> None:
        self.told.append(f"{fault} {' '.join(map(str, what))}".rstrip())
        self._cluster.simulation.event("fault", fault.number, fault.kind, *map(str, what))

    async def _inject(self, fault: Fault) -> None:
        cluster = self._cluster
        random = cluster.simulation.random(f"fault {fault.number}")
        bookies = [name for name in cluster.bookies if name not in self._faults.spare]
        clients = [name for name in cluster.services if name not in self._faults.spare]
        if not bookies and not clients:
            return
        bookie = random.choice(bookies or cluster.bookies)
        client = random.choice(clients or [bookie])
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

    async def _bring_back(self) -> None:
        random = self._cluster.simulation.random("bring back")
        while True:
            await trio.sleep(random.expovariate(1 / min(BACK_S, self._faults.seconds / 8)))
            down = self._cluster.down
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
    """Inject drawn faults during the body. ``cluster.calm`` waits for their end."""
    trouble = RunningFaults(cluster, faults, only)
    async with open_serving_nursery() as nursery:
        over = cluster.trouble_over = trio.Event()

        async def run() -> None:
            await trouble.run()
            over.set()

        nursery.start_soon(run)
        yield trouble
        nursery.cancel_scope.cancel()
