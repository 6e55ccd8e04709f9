"""Auto-recovery in a swarm: impatient auditors and workers, and what they must have done in the end.

Each process runs the production service (``ledgerlog.repair.service``): a candidate for auditor, and a
worker. Bookies count as lost long before they come back. So ledgers are repaired, and recovered, under
writers that live, beside recoverers, and by two workers at once.

What must hold:

    WriteQuorum     after everything was healed, every ledger gets back to its write quorum: no ledger names a
                    bookie that is not registered, no task is left, and each bookie has the entries that
                    metadata says it has
"""

from __future__ import annotations

from functools import partial

import attrs

from ledgerlog.cluster import Cluster
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import NotEnoughBookies
from ledgerlog.model.repair import RepairSettings
from ledgerlog.repair.auditor import pass_over_now
from ledgerlog.repair.checking import check_ledger
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.repair.service import AutoRecovery
from ledgerlog.testing.world import World, retry

__all__ = ["Repairers"]

_CHECKS_PER_S = 100_000


class Repairers:
    """The processes of auto-recovery of one run. Each is a *resident* (``workload``).

    Args:
        count: How many processes there are. May be 0.
        settings: The settings of repair that each process stores at its start.
    """

    def __init__(self, world: World, count: int, settings: RepairSettings) -> None:
        self._world = world
        self._settings = settings
        self.mains = {f"repair-{number}": self._run for number in range(1, count + 1)}
        """The processes, by name."""
        self._services: list[AutoRecovery] = []

    async def _run(self, cluster: Cluster) -> None:
        await RepairQueue(cluster.client).change_settings(partial(_with_values, self._settings))
        service = AutoRecovery(cluster.client)
        self._services.append(service)
        await service.run()

    def count(self) -> None:
        """Add to the counts of the run what the processes did."""
        counts, services = self._world.counts, self._services
        counts["repair processes"] += len(services)
        counts["ledgers repaired"] += sum(service.worker.repaired for service in services)
        counts["entries repaired"] += sum(service.worker.copying.entries for service in services)

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
            if found.affected or found.damaged:
                raise NotEnoughBookies(f"{found.affected} lack bookies, {found.damaged} are damaged")
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


def _with_values(wanted: RepairSettings, now: RepairSettings) -> RepairSettings:
    """Return ``wanted`` with the keys of later versions that ``now`` has."""
    return attrs.evolve(wanted, unknown=now.unknown)
