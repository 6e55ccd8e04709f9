"""Auto-recovery in a swarm: impatient auditors and workers, and the state that they must reach in the end.

Each process runs the production service (``ledgerlog.repair.service``): a candidate for auditor, and a
worker. Bookies count as lost long before they come back. So a ledger may be repaired and recovered while its
writer still lives, while a recoverer works on it, or by two workers at once.

An operator is there too: it looks at the queue, has bookies emptied for a while, and asks when one may be
restarted.

What must hold:

    WriteQuorum     after everything was healed, every ledger gets back to its write quorum: no ledger names a
                    bookie that is not registered, no task is left, and each bookie has the entries that
                    metadata says it has
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from ledgerlog.cluster import Cluster
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import LedgerLogError, NotEnoughBookies
from ledgerlog.model.repair import RepairSettings
from ledgerlog.repair.auditor import pass_over_now
from ledgerlog.repair.checking import check_ledger
from ledgerlog.repair.leaving import wait_until_free
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.repair.service import AutoRecovery
from ledgerlog.testing.world import World, retry

__all__ = ["OPERATOR", "Repairers"]

OPERATOR = "operator"
"""The name of the operator's process. It does not run again after everything was healed."""

PATIENCE_S = 60.0
"""The operator waits at most this long until a bookie may be restarted, in seconds. Meanwhile it looks at the
metadata again and again, which is most of the work of a long run if it waits longer."""

_CHECKS_PER_S = 100_000


class Repairers:
    """The processes of auto-recovery of one run. Each is a *resident* (``workload``).

    Args:
        count: How many processes there are. May be 0.
        settings: The settings of repair that each process stores at its start, for a full run. In a long run
            their times are longer.
    """

    def __init__(self, world: World, count: int, settings: RepairSettings) -> None:
        self._world = world
        self._quick = settings
        self._settings = _slowed(settings, world.swarm.stretch)
        self.mains: dict[str, Callable[[Cluster], Awaitable[None]]] = {
            f"repair-{number}": self._run for number in range(1, count + 1)
        }
        if count:
            self.mains[OPERATOR] = self._operate
        """The processes, by name."""
        self._services: list[AutoRecovery] = []

    async def _run(self, cluster: Cluster) -> None:
        await RepairQueue(cluster.client).change_settings(partial(_with_values, self._settings))
        service = AutoRecovery(cluster.client)
        self._services.append(service)
        await service.run()

    async def _operate(self, client: Cluster) -> None:
        random = self._world.simulation.random(OPERATOR)
        gap_s = min(3.0 * self._world.swarm.stretch, self._world.swarm.trouble_s / 4)
        queue = RepairQueue(client.client)
        while True:
            await trio.sleep(random.expovariate(1 / gap_s))
            bookie = random.choice(self._world.cluster.bookies)
            try:
                await queue.workers()
                await queue.locks()
                await queue.requests()
                if random.random() < 0.5:
                    await queue.drain(bookie)
                    self._world.counts["bookies drained"] += 1
                    await trio.sleep(random.choice((0.5, 3.0)) * gap_s)
                    await queue.keep(bookie)
                else:
                    within_s = min(gap_s, PATIENCE_S)
                    await wait_until_free(client.client, bookie, within_s=within_s, say=lambda why: None)
            except LedgerLogError as error:
                self._world.event("not operated", type(error).__name__)

    def count(self) -> None:
        """Add the actions of the processes to the counts of the run."""
        counts, services = self._world.counts, self._services
        counts["repair processes"] += len(services)
        counts["ledgers repaired"] += sum(service.worker.repaired for service in services)
        counts["entries repaired"] += sum(service.worker.copying.entries for service in services)

    async def heal(self, client: Cluster) -> None:
        """Take back the operator's requests, because the operator may have died before it took them back.

        The time until everything is whole does not depend on the length of the run. So the processes store
        the settings of a full run when they start again.
        """
        self._settings = self._quick
        queue = RepairQueue(client.client)
        for bookie in await queue.draining() if self.mains else ():
            await queue.keep(bookie)

    async def judge(self, client: Cluster) -> None:
        """Wait until every ledger is at its write quorum. Call it after everything was healed.

        Raises:
            Violation: A ledger is not at its write quorum within ``CONVERGE_S``.
        """
        if not self.mains:
            return
        queue, registry = RepairQueue(client.client), client.client.ledgers

        async def be_whole() -> None:
            found = await pass_over_now(client.client, queue)
            if found.affected or found.unreadable:
                raise NotEnoughBookies(f"{found.affected} lack bookies, {found.unreadable} cannot be read")
            if tasks := await queue.tasks():
                raise NotEnoughBookies(f"there are tasks for {tasks}")
            for ledger_id in await registry.list():
                faults = await check_ledger(
                    client.client, ledger_id, check_all=True, pace=Pace(_CHECKS_PER_S)
                )
                if faults.doubtful:
                    raise NotEnoughBookies(f"ledger {ledger_id}: {faults}")
            self._world.god.checks["WriteQuorum"] += found.ledgers

        await retry(self._world, "every ledger to be at its write quorum (WriteQuorum)", be_whole)


def _slowed(settings: RepairSettings, stretch: float) -> RepairSettings:
    """Return the settings of a run whose pauses are ``stretch`` times longer."""
    return attrs.evolve(
        settings,
        lost_after_ms=round(settings.lost_after_ms * stretch),
        grace_ms=round(settings.grace_ms * stretch),
        bookie_check_ms=round(settings.bookie_check_ms * stretch),
        entry_check_ms=round(settings.entry_check_ms * stretch),
    )


def _with_values(wanted: RepairSettings, now: RepairSettings) -> RepairSettings:
    """Return ``wanted`` with the keys of later versions that ``now`` has."""
    return attrs.evolve(wanted, unknown=now.unknown)
