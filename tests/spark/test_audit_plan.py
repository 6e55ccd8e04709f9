"""Planning an audit costs a listing, and a bounded number of other reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ledgerlog.ledger.core.copies import replicas_of
from ledgerlog.model.layout import ARCHIVES, LEDGERS, ledger_path
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.spark import audit_plan
from ledgerlog.spark.audit_plan import AuditPart, plan_audit
from ledgerlog.spark.options import parse_audit_options
from ledgerlog.testing.faulty_store import Call, GoOn
from ledgerlog.testing.memory_cluster import Client, open_cluster
from tests.archive.archived_logs import archive, fill, new_log


async def planned(client: Client, **options: str) -> list[AuditPart]:
    given = {"uri": "zk://localhost/unused", **options}
    return await plan_audit(client.opened, parse_audit_options(given))


async def make(client: Client, entries: Sequence[int]) -> dict[int, LedgerMetadata]:
    """Make metadata of closed ledgers with these numbers of entries."""
    made = {}
    for ledger_id, count in enumerate(entries):
        created = LedgerMetadata.create(
            ledger_id=ledger_id,
            replication=Replication(3, 3, 2),
            ensemble=("b1", "b2", "b3"),
            key=b"k" * 16,
            token=b"t" * 16,
            created_ms=0,
            custom={},
        )
        made[ledger_id] = created.closed(count - 1, b"c" * 16)
        await client.store.create(ledger_path(ledger_id), made[ledger_id].encode())
    return made


def reads_of(client: Client, root: str) -> list[str]:
    """The paths below a root that are read from now on."""
    paths: list[str] = []

    async def note(call: Call, go_on: GoOn) -> Any:
        if call.verb == "get" and call.path.startswith(f"{root}/"):
            paths.append(call.path)
        return await go_on()

    client.store.faults.append(note)
    return paths


def ids(parts: Sequence[AuditPart]) -> list[int]:
    return [ledger.ledger_id for part in parts for ledger in part.ledgers]


async def test_a_plan_has_all_ledgers_and_reads_the_metadata_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_plan, "_WEIGHED", 16)
    async with open_cluster() as cluster, cluster.client() as client:
        await make(client, [10] * 300)
        reads = reads_of(client, LEDGERS)
        parts = await planned(client, minPartitions="7")
        assert ids(parts) == list(range(300))
        assert len(parts) >= 7
        assert 0 < len(reads) <= 16
        reads.clear()
        assert ids(await planned(client, ledgers="5,7,11")) == [5, 7, 11]
        assert len(reads) == 3, "each ledger that somebody names must exist"


async def test_few_ledgers_are_weighed_one_by_one() -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        made = await make(client, [10, 50_000, 10, 10, 50_000, 10])
        parts = await planned(client, replicasPerPartition="100000")
        assert [[ledger.ledger_id for ledger in part.ledgers] for part in parts] == [
            [0],
            [1],
            [2, 3],
            [4],
            [5],
        ]
        assert replicas_of(made[1]) > 100_000


@pytest.mark.parametrize("period", [2, 4, 8])
async def test_ledgers_of_several_logs_in_turn_are_weighed_by_more_than_one_of_the_logs(
    monkeypatch: pytest.MonkeyPatch, period: int
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        sizes = [20_000 if number % period == 0 else 0 for number in range(512)]
        await make(client, sizes)
        exact = len(await planned(client, replicasPerPartition="400000"))
        monkeypatch.setattr(audit_plan, "_WEIGHED", 128)
        sampled = len(await planned(client, replicasPerPartition="400000"))
        assert exact / 2 <= sampled <= 2 * exact


async def test_files_are_weighed_by_some_of_them_and_only_for_a_scrub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(audit_plan, "_WEIGHED", 2)
    async with open_cluster() as cluster, cluster.client() as client:
        await fill(await new_log(client), 1, 1, 1, 1, 1, 1)
        await archive(client, tmp_path)
        reads = reads_of(client, ARCHIVES)
        for mode, most in (("index", 0), ("scrub", 2)):
            parts = await planned(client, mode=mode)
            assert [file.ledger_id for part in parts for file in part.files] == list(range(6))
            assert len(reads) == most
