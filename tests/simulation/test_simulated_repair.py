"""Auto-recovery beside the simulator's workloads: two impatient processes of it, while bookies die.

Bookies count as lost long before they come back, so ledgers are repaired, and recovered, under writers that
live, beside recoverers, and by two workers at once. All that the simulator looks at must hold as it does
without.
"""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from ledgerlog.cluster import Cluster
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.repair.service import AutoRecovery
from ledgerlog.testing import people, workload
from ledgerlog.testing.swarm import Size
from ledgerlog.testing.workload import run_seed

SEEDS = (302, 303, 2000)


class Repairers:
    """Two processes that repair, for the simulator's table of residents, and what they did."""

    def __init__(self) -> None:
        self.services: list[AutoRecovery] = []

    async def run(self, cluster: Cluster) -> None:
        queue = RepairQueue(cluster.client)
        await queue.change_settings(
            lambda now: attrs.evolve(
                now,
                lost_after_ms=200,
                grace_ms=300,
                bookie_check_ms=2_000,
                entry_check_ms=3_000,
                check_all=True,
            )
        )
        service = AutoRecovery(cluster.client)
        self.services.append(service)
        await service.run()

    def counts(self) -> Counter[str]:
        return Counter(
            tasks=sum(service.worker.repaired for service in self.services),
            entries=sum(service.worker.copying.entries for service in self.services),
            lives=len(self.services),
        )


@pytest.fixture
def repairers(monkeypatch: pytest.MonkeyPatch) -> Repairers:
    made = Repairers()
    monkeypatch.setattr(people, "PEOPLE_SHARE", 0.0)
    for name in ("repair-1", "repair-2"):
        monkeypatch.setitem(workload.RESIDENTS, name, made.run)
    return made


@pytest.mark.long
def test_repair_under_faults_breaks_no_promise(repairers: Repairers) -> None:
    for seed in SEEDS:
        report = run_seed(seed, features=())
        assert report.failure is None, (seed, report.failure)
    counts = repairers.counts()
    assert counts["tasks"] > len(SEEDS)
    assert counts["entries"] > 10
    assert counts["lives"] > 2 * len(SEEDS), "its processes died and came back, too"


def test_with_repair_the_same_seed_is_the_same_run(repairers: Repairers) -> None:
    first, again = (run_seed(SEEDS[0], size=Size.SMALL, features=()) for _ in range(2))
    assert (first.trace_hash, first.events) == (again.trace_hash, again.events)


@pytest.mark.soak
def test_repair_under_many_faults_breaks_no_promise(repairers: Repairers) -> None:
    for seed in range(1_000, 1_100):
        report = run_seed(seed, features=())
        assert report.failure is None, (seed, report.failure)
