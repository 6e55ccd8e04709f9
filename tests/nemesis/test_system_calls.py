"""If a system call of a bookie fails, the bookie stops at once, and no acknowledged entry is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ledgerlog.cli.local_cluster import LocalCluster, local_cluster
from ledgerlog.errors import LedgerLogError
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.model.quorum import Replication
from tests.nemesis.system_calls import injected, why_not
from tests.waiting import PATIENCE_S

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(why_not() is not None, reason=f"system calls cannot be made to fail: {why_not()}"),
]

ALL_OF_TWO = Replication(2, 2, 2)


async def written(writer: LedgerWriter, count: int) -> int:
    """Append until an append fails, and return the number of acknowledged entries."""
    for number in range(count):
        try:
            await writer.append(b"entry %d" % number)
        except LedgerLogError:
            return number
    return count


async def intact(local: LocalCluster, ledger_id: int, acknowledged: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                await local.cluster.ledgers.recover(ledger_id)
                break
            except LedgerLogError:
                await trio.sleep(0.1)
    reader = await local.cluster.ledgers.open(ledger_id)
    assert await reader.last_add_confirmed() >= acknowledged - 1
    if acknowledged:
        found = await reader.read(0, acknowledged - 1)
        assert [bytes(found[number]) for number in range(acknowledged)] == [
            b"entry %d" % number for number in range(acknowledged)
        ]


@pytest.mark.parametrize(("error", "told_as"), [("EIO", "StorageError"), ("ENOSPC", "DiskFull")])
async def test_a_bookie_whose_sync_fails_stops_and_has_acknowledged_nothing_that_it_lost(
    tmp_path: Path, error: str, told_as: str
) -> None:
    async with local_cluster(tmp_path / "cluster", bookies=2, grace_s=2.0) as local:
        writer = await local.cluster.ledgers.create(replication=ALL_OF_TWO)
        victim = local.bookies["bookie-2"]
        log_path = tmp_path / "strace.log"
        acknowledged = 0
        async with injected(local.children, victim, f"error={error}:when=5", log_path=log_path):
            with trio.move_on_after(PATIENCE_S):
                async with trio.open_nursery() as nursery:

                    async def append() -> None:
                        nonlocal acknowledged
                        for number in range(10_000):
                            try:
                                await writer.append(b"entry %d" % number)
                            except LedgerLogError:
                                return
                            acknowledged = number + 1

                    nursery.start_soon(append)
                    await victim.wait()
                    nursery.cancel_scope.cancel()
        assert not victim.is_running, "a bookie does not go on after a failed sync"
        assert victim.exit_status == 1
        assert f"bookie: {told_as}: " in victim.how_it_ended()
        await local.start_serving("bookie-2")
        await intact(local, writer.ledger_id, acknowledged)


async def test_a_bookie_whose_syncs_take_their_time_is_waited_for(tmp_path: Path) -> None:
    async with local_cluster(tmp_path / "cluster", bookies=2, grace_s=2.0) as local:
        writer = await local.cluster.ledgers.create(replication=ALL_OF_TWO)
        log_path = tmp_path / "strace.log"
        fault = "delay_enter=300ms"
        async with injected(local.children, local.bookies["bookie-2"], fault, log_path=log_path):
            began = trio.current_time()
            assert await written(writer, 4) == 4
            assert trio.current_time() - began >= 4 * 0.3
        await intact(local, writer.ledger_id, 4)
