"""Five users compare the copies of one broken cluster and agree.

They are verification, the auditor's checks, the repair worker, the backfill and the audit of all copies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import attrs
import pytest
from trio.testing import MockClock

from ledgerlog.cli.repair import audit
from ledgerlog.cluster import Cluster
from ledgerlog.concurrency.pace import Pace
from ledgerlog.ledger.verify import LedgerVerification
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.missing import Share, shares
from ledgerlog.model.quorum import Replication
from ledgerlog.model.repair import RepairTask
from ledgerlog.repair.checking import LedgerFaults, check_ledger
from ledgerlog.repair.copying import Copying, Missing, Pacer
from ledgerlog.repair.core.backfill import Backfill
from ledgerlog.repair.ledger import LedgerRepair
from ledgerlog.spark.audit_plan import plan_audit
from ledgerlog.spark.audit_repairs import Ailments
from ledgerlog.spark.audit_task import AuditRow, open_audit
from ledgerlog.spark.options import parse_audit_options
from ledgerlog.testing.memory_cluster import SMALL, Client, MemoryCluster, open_cluster
from ledgerlog.testing.network import EVERYBODY
from tests.repairing import Place, copy_payload, set_up, stored

R553 = Replication(5, 5, 3)
WHOLE, IN_LIMBO, DAMAGED, SILENT, LACKING = "b1", "b2", "b3", "b4", "b5"
ENTRIES = 20
ROTTEN = 0
MISSING = range(16, 20)
ALL = range(ENTRIES)

Kinds = dict[tuple[BookieId, int], str]
"""The fault of each faulty copy. Copies that are not named are sound."""

TRUTH: Kinds = (
    {(IN_LIMBO, e): "limbo" for e in ALL}
    | {(DAMAGED, ROTTEN): "corrupt"}
    | {(SILENT, e): "unreachable" for e in ALL}
    | {(LACKING, e): "missing" for e in MISSING}
)
LISTED = {copy: kind for copy, kind in TRUTH.items() if kind != "corrupt"}
"""A list does not show damage."""


@asynccontextmanager
async def broken(
    *, holes: Collection[Place] = (), rotten: int = ROTTEN
) -> AsyncIterator[tuple[MemoryCluster, Client, int]]:
    """A ledger with one sound bookie, one in limbo, one damaged, one silent, and one that lacks entries."""
    # No bookie repairs itself.
    config = attrs.evolve(SMALL, small_run_bytes=0, scrub=False)
    async with open_cluster(5, config=config) as cluster, cluster.client() as client:
        await set_up(client)
        missing = {(LACKING, e) for e in MISSING}
        ledger_id = await stored(cluster, client, ENTRIES, R553, holes={*missing, *holes})
        damaged = cluster.bookies[DAMAGED]
        await damaged.stop()
        assert damaged.flip_byte(copy_payload(rotten)[:-200])
        await damaged.start()
        await cluster.bookies[IN_LIMBO].lose_disk()
        for other in set(cluster.bookies) - {IN_LIMBO}:
            cluster.network.cut(IN_LIMBO, other)
        await cluster.bookies[IN_LIMBO].start()
        cluster.network.cut(SILENT, EVERYBODY)
        yield cluster, client, ledger_id


async def audited(client: Client, mode: str) -> tuple[Kinds, list[AuditRow]]:
    options = parse_audit_options({"uri": "zk://localhost/unused", "mode": mode})
    rows: list[AuditRow] = []
    for part in await plan_audit(client.opened, options):
        async with open_audit(part, client.opened) as take:
            while (found := await take()) is not None:
                rows += found
    kinds: Kinds = {}
    for row in rows:
        assert row.bookie is not None
        assert row.first_entry is not None
        assert row.last_entry is not None
        kinds |= {(row.bookie, e): row.kind for e in range(row.first_entry, row.last_entry + 1)}
    return kinds, rows


def check_verification(found: LedgerVerification, truth: Kinds) -> None:
    """Verification names the bookies of each kind, and the entries with a faulty copy."""

    def those(kind: str) -> list[BookieId]:
        return sorted({bookie for (bookie, _), its_kind in truth.items() if its_kind == kind})

    assert found.damaged == sorted((e, bookie) for (bookie, e), kind in truth.items() if kind == "corrupt")
    assert found.in_limbo == those("limbo")
    assert found.unreachable == those("unreachable")
    assert found.under_replicated == sorted({e for _, e in truth})
    assert found.unreadable == [e for e in ALL if sum(f == e for _, f in truth) == R553.write_quorum]


async def test_five_users_say_the_same_of_one_broken_cluster(clock: MockClock) -> None:
    async with broken() as (_, client, ledger_id):
        check_verification(await client.ledgers.verify(ledger_id), TRUTH)
        scrubbed, rows = await audited(client, "scrub")
        assert scrubbed == TRUTH
        assert (await audited(client, "index"))[0] == LISTED
        ailments = Ailments()
        for row in rows:
            ailments.add(ledger_id, row.bookie, row.kind)
        assert (ailments.incomplete, ailments.damaged) == ({ledger_id: {LACKING}}, {ledger_id: {DAMAGED}})
        # The auditor's checks.
        pace = Pace(1000)
        ends = await check_ledger(client.opened, ledger_id, check_all=False, pace=pace)
        assert ends == LedgerFaults((LACKING,), (DAMAGED,), (SILENT,), (IN_LIMBO,))
        lists = await check_ledger(client.opened, ledger_id, check_all=True, pace=pace)
        assert lists == attrs.evolve(ends, damaged=())
        # Repair, and the backfill that it runs.
        fills: list[tuple[Backfill, Missing]] = []

        class Noting(Copying):
            async def fill(
                self, metadata: LedgerMetadata, bookie: BookieId, share: Share, missing: Missing
            ) -> Backfill:
                assert bookie == LACKING
                filled = await super().fill(metadata, bookie, share, missing)
                fills.append((filled, missing))
                return filled

        copying = Noting(client.opened, Pacer(1_000_000))
        repair = LedgerRepair(client.opened, await set_up(client), copying)
        task = RepairTask(
            ledger_id=ledger_id, damaged=(DAMAGED, WHOLE), incomplete=(IN_LIMBO, SILENT, LACKING)
        )
        verdict = await repair.run(task, grace_s=0.0, say=lambda _: None)
        ((filled, missing),) = fills
        assert missing == [(MISSING[0], MISSING[-1])]
        assert filled.silent == [IN_LIMBO, SILENT]
        assert (filled.nowhere.ranges(), filled.unavailable.ranges()) == ([], [])
        assert copying.entries == len(MISSING)
        assert verdict.task is not None
        assert verdict.task.damaged == (DAMAGED,)
        assert verdict.task.incomplete == (IN_LIMBO, SILENT), "nobody knows that these have what they should"
        assert f"which copies {IN_LIMBO} has: in limbo" in (verdict.trouble or "")
        assert f"which copies {SILENT} has: no answer" in (verdict.trouble or "")
        # All users see the entries that the backfill brought.
        left = {copy: kind for copy, kind in TRUTH.items() if kind != "missing"}
        check_verification(await client.ledgers.verify(ledger_id), left)
        assert (await audited(client, "scrub"))[0] == left


async def test_an_entry_without_a_copy_is_lost_to_nobody_while_one_is_silent_or_in_limbo(
    clock: MockClock,
) -> None:
    """Entry 17 is missing on two bookies and damaged on one. The other two may have it."""
    async with broken(holes={(WHOLE, 17)}, rotten=17) as (cluster, client, ledger_id):
        truth = {copy: kind for copy, kind in TRUTH.items() if kind != "corrupt"}
        truth |= {(WHOLE, 17): "missing", (DAMAGED, 17): "corrupt"}
        found = await client.ledgers.verify(ledger_id)
        check_verification(found, truth)
        assert found.unreadable == [17]
        scrubbed, rows = await audited(client, "scrub")
        assert scrubbed == truth
        assert {row.copies_left for row in rows if row.first_entry == 17} == {0}
        metadata = await client.ledgers.metadata(ledger_id)
        (share,) = shares(metadata, LACKING)
        copying = Copying(client.opened, Pacer(1_000_000))
        filled = await copying.fill(metadata, LACKING, share, [(16, 19)])
        assert (filled.nowhere.ranges(), filled.unavailable.ranges()) == ([], [(17, 17)])
        # The silent bookie comes back, and has the entry.
        cluster.network.heal(SILENT, client.host)
        filled = await copying.fill(metadata, LACKING, share, [(17, 17)])
        assert (filled.nowhere.ranges(), filled.unavailable.ranges()) == ([], [])
        assert (await client.ledgers.verify(ledger_id)).unreadable == []


async def test_a_bookie_in_limbo_and_a_silent_one_have_nothing_that_a_ledger_could_be_archived_on(
    clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        ledger_id = await stored(cluster, client, ENTRIES)
        pace = Pace(1000)
        assert (await check_ledger(client.opened, ledger_id, check_all=True, pace=pace)).doubtful == ()
        await cluster.bookies["b2"].lose_disk()
        cluster.network.cut("b2", "b1")
        cluster.network.cut("b2", "b3")
        await cluster.bookies["b2"].start()
        faults = await check_ledger(client.opened, ledger_id, check_all=True, pace=pace)
        assert (faults.is_clean, faults.doubtful) == (True, ("b2",))
        await cluster.bookies["b1"].kill()
        faults = await check_ledger(client.opened, ledger_id, check_all=True, pace=pace)
        assert (faults.is_clean, faults.doubtful) == (True, ("b1", "b2"))


@pytest.mark.parametrize("entries", ["ends", "all"])
async def test_an_audit_names_the_ledgers_that_a_silent_bookie_or_one_in_limbo_keeps_from_the_check(
    entries: str, clock: MockClock
) -> None:
    async with broken() as (cluster, client, ledger_id):
        said = await audit(Cluster("memory:", client.opened), entries=entries, per_s=1000, make_tasks=False)
        (unchecked,) = [item for item in said if not item["bookies"]]
        assert unchecked["ledger"] == ledger_id
        assert "not checked: " in unchecked["why"]
        assert f"bookie {SILENT} at " in unchecked["why"], "with the reason of the connection"
        assert f"bookie {IN_LIMBO} is in limbo" in unchecked["why"]
        # It is known that a bookie is gone if it is not registered: it need not answer.
        await cluster.bookies[IN_LIMBO].stop()
        await cluster.bookies[SILENT].stop()
        said = await audit(Cluster("memory:", client.opened), entries=entries, per_s=1000, make_tasks=False)
        assert [item for item in said if not item["bookies"]] == []
        gone = [item["bookies"] for item in said if item["why"] == "not registered"]
        assert gone == [[IN_LIMBO, SILENT]]


async def test_what_only_bookies_in_limbo_say_of_the_end_of_an_open_ledger_is_not_known(
    clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=Replication(1, 1, 1))
        await writer.append(b"one")
        await writer.aclose()
        (bookie,) = writer.metadata.last_fragment.ensemble
        found = await client.ledgers.verify(writer.ledger_id)
        assert (found.entries, found.unknown_from, found.in_limbo) == (1, None, [])
        await cluster.bookies[bookie].lose_disk()
        for other in set(cluster.bookies) - {bookie}:
            cluster.network.cut(bookie, other)
        await cluster.bookies[bookie].start()
        found = await client.ledgers.verify(writer.ledger_id)
        assert (found.entries, found.unknown_from) == (0, 0)
