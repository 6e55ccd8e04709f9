"""Writers leave a bookie that is to be restarted, and the wait for them ends when it should."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from ledgerlog.log.log import create_log, open_log
from ledgerlog.model.layout import ledger_path
from ledgerlog.repair.leaving import wait_until_free
from ledgerlog.testing.memory_cluster import open_cluster
from tests.repairing import R332, names, payload, written


async def test_writers_busy_idle_and_of_logs_leave_a_read_only_bookie_and_its_restart_disturbs_none(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        closed = await written(client, 3)
        busy = await client.ledgers.create(replication=R332)
        idle = await client.ledgers.create(replication=R332)
        untouched = await client.ledgers.create(replication=R332)
        await idle.append(payload(0))
        await busy.append(payload(0))
        leaving = busy.metadata.last_fragment.ensemble[0]
        said: list[str] = []
        await create_log(client.opened, "log", replication=R332)
        log = await open_log(client.opened, "log")
        async with log.writer() as logged, trio.open_nursery() as nursery:
            await logged.append(payload(0))

            async def write() -> None:
                while True:
                    await busy.append(payload(1))
                    await logged.append(payload(1))
                    await trio.sleep(0.25)

            nursery.start_soon(write)
            cluster.bookies[leaving].set_read_only(True)
            found = await wait_until_free(client.opened, leaving, within_s=60, say=said.append)
            assert (found.is_free, said[-1]) == (True, "")
            changes = client.opened.counts.ensemble_changes
            assert changes
            await cluster.bookies[leaving].stop()
            await idle.append(payload(1))
            await trio.sleep(3)
            assert client.opened.counts.ensemble_changes == changes, "the restart disturbs nobody"
            nursery.cancel_scope.cancel()
        for writer in (busy, idle, untouched):
            await writer.close()
            assert leaving not in writer.metadata.last_fragment.ensemble
        assert len(await names(client, closed)) == 3


async def test_the_wait_for_writers_ends_at_its_deadline_and_names_the_ledgers_that_stay(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(payload(0))
        cluster.bookies["b1"].set_read_only(True)
        began = trio.current_time()
        found = await wait_until_free(client.opened, "b1", within_s=30, say=lambda _: None)
        assert trio.current_time() - began <= 31
        assert not found.is_free
        assert found.waits_for == f"ledgers that are not closed use it: 1 ({writer.ledger_id})"
        assert await writer.append(payload(1)) == 1, "the other two take its adds"
        await cluster.add_bookie()
        found = await wait_until_free(client.opened, "b1", within_s=60, say=lambda _: None)
        assert found.is_free
        await writer.close()


async def test_a_bookie_that_is_not_read_only_is_never_taken_for_free(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        found = await wait_until_free(client.opened, "b1", within_s=30, say=lambda _: None)
        assert not found.is_free
        assert found.waits_for == "it is not registered as read-only"


async def test_a_ledger_whose_metadata_is_damaged_may_use_the_bookie(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        ledger_id = await written(client, 1)
        node = await client.store.get(ledger_path(ledger_id))
        assert node is not None
        await client.store.set(ledger_path(ledger_id), b"damage", version=node.version)
        cluster.bookies["b1"].set_read_only(True)
        found = await wait_until_free(client.opened, "b1", within_s=30, say=lambda _: None)
        assert not found.is_free
        assert f"({ledger_id})" in found.waits_for
