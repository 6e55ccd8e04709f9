"""If an old copy of a bookie's directory is put back, the bookie denies nothing that was acknowledged since
(D27.13)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ledgerlog.cli.bookie import bookie_states
from ledgerlog.cli.local_cluster import LocalCluster, local_cluster
from ledgerlog.cluster import Cluster, connect
from ledgerlog.errors import RecoveryFailed
from ledgerlog.model.quorum import Replication
from tests.waiting import until

pytestmark = pytest.mark.processes

R332 = Replication(3, 3, 2)
BEFORE, AFTER = 100, 200
PAYLOADS = [b"%d" % number for number in range(BEFORE + AFTER)]


async def put_back(local: LocalCluster, bookie_id: str, copy: Path) -> None:
    """Kill the bookie, put the copy in the place of its directory, and start it again."""
    await kill(local, bookie_id)
    shutil.rmtree(local.data_path(bookie_id))
    shutil.copytree(copy, local.data_path(bookie_id))
    await local.start_serving(bookie_id)


async def kill(local: LocalCluster, bookie_id: str) -> None:
    local.bookies[bookie_id].kill()
    await local.bookies[bookie_id].wait()


async def in_limbo(cluster: Cluster, bookie_id: str) -> int | None:
    (state,) = [each for each in await bookie_states(cluster) if each.bookie_id == bookie_id]
    return state.ledgers_in_limbo


async def test_no_entry_is_denied_by_a_bookie_whose_directory_was_rolled_back(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    async with local_cluster(tmp_path / "cluster", bookies=3) as local:
        cluster = local.cluster
        async with connect(local.uri) as other:
            writer = await other.ledgers.create(replication=R332)
            ledger_id = writer.ledger_id
            await writer.append_many(PAYLOADS[:BEFORE])
            await local.bookies["bookie-1"].stop()
            shutil.copytree(local.data_path("bookie-1"), copy)
            await local.start_serving("bookie-1")
            await kill(local, "bookie-3")
            await writer.append_many(PAYLOADS[BEFORE:])  # Only the first two bookies have these entries.

        await put_back(local, "bookie-1", copy)
        assert "rolled back: " in local.log_path("bookie-1").read_text(encoding="utf-8")
        await kill(local, "bookie-2")
        await local.start_serving("bookie-3")
        with pytest.raises(RecoveryFailed):
            await cluster.ledgers.recover(ledger_id)

        await local.start_serving("bookie-2")
        closed = await cluster.ledgers.recover(ledger_id)
        assert closed.last_entry == BEFORE + AFTER - 1
        await until(lambda: _is_refilled(cluster))
        verification = await cluster.ledgers.verify(ledger_id)
        assert verification.unreadable == verification.unreachable == verification.damaged == []
        reader = await cluster.ledgers.open(ledger_id)
        assert await reader.read(0, BEFORE + AFTER - 1) == PAYLOADS
        await local.bookies["bookie-2"].stop()
        await local.bookies["bookie-3"].stop()
        reader = await cluster.ledgers.open(ledger_id)
        assert await reader.read(0, BEFORE + AFTER - 1) == PAYLOADS, "the bookie has all of them back"


async def _is_refilled(cluster: Cluster) -> bool:
    return await in_limbo(cluster, "bookie-1") == 0
