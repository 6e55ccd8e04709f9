"""Deeds of operators on real processes: a few in every test run, an hour of them by hand.

``LEDGERLOG_NEMESIS_MINUTES`` and ``LEDGERLOG_NEMESIS_SEED`` set the soak (defaults 60 and 1).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trio.testing import MockClock

from ledgerlog.model.quorum import Replication
from ledgerlog.testing.invariants import Violation
from ledgerlog.testing.memory_cluster import open_cluster
from tests.nemesis import small_disks
from tests.nemesis.people import DEEDS, compare_copies, run_people
from tests.nemesis.proxies import can_proxy
from tests.nemesis.test_nemesis import SOAK_MINUTES, SOAK_SEED

proxied = pytest.mark.skipif(not can_proxy(), reason="this machine does not serve all of 127.0.0.0/8")


@proxied
@pytest.mark.processes
async def test_people_who_empty_roll_back_damage_and_lose_a_rack_lose_nothing_acknowledged(
    tmp_path: Path,
) -> None:
    deeds = ("emptied", "rolled back", "damaged", "rack lost")
    report = await run_people(tmp_path / "cluster", seed=3, trouble_s=0.0, wanted=deeds)
    print(json.dumps(report.as_dict()))
    assert set(report.deeds) == set(deeds)
    assert report.copies > 0


@proxied
@pytest.mark.processes
@pytest.mark.soak
async def test_an_hour_of_people_loses_nothing_acknowledged(tmp_path: Path) -> None:
    report = await run_people(
        tmp_path / "cluster", seed=SOAK_SEED, trouble_s=60 * SOAK_MINUTES, wanted=tuple(DEEDS)
    )
    print(json.dumps(report.as_dict(), indent=2))
    assert set(report.deeds) == set(DEEDS) - ({"full disk"} if small_disks.why_not() else set())


async def test_a_copy_that_is_missing_is_found_and_all_others_are_counted(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        async with await client.ledgers.create(replication=Replication(3, 3, 2)) as writer:
            await writer.append_many([b"%d" % number for number in range(10)])
        assert await compare_copies(client.ledgers, client.opened.pool) == 30
        cluster.network.cut(client.host, "b1")
        writer = await client.ledgers.create(replication=Replication(3, 3, 2))
        await writer.append(b"on two of three")
        await writer.close()
        cluster.network.heal()
        with pytest.raises(Violation, match="b1 lacks entries"):
            await compare_copies(client.ledgers, client.opened.pool)
