"""Busy and idle writers leave bookies that take no more ordinary adds, if others are available."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from ledgerlog.model.quorum import Replication
from ledgerlog.testing.memory_cluster import eventually, open_cluster

R332 = Replication(3, 3, 2)


async def test_an_idle_writer_leaves_a_bookie_that_turned_read_only(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"0")
        leaving = writer.metadata.last_fragment.ensemble[1]
        cluster.bookies[leaving].set_read_only(True)
        await eventually(lambda: leaving not in writer.metadata.last_fragment.ensemble)
        assert await writer.append(b"1") == 1
        assert await writer.close() == 1
        assert (await client.ledgers.verify(writer.ledger_id)).under_replicated == []


async def test_without_a_spare_it_stays_and_changes_nothing(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"0")
        before = writer.metadata
        cluster.bookies["b1"].set_read_only(True)
        await trio.sleep(30)
        assert writer.metadata == before
        assert client.opened.counts.bookies_failed == 0
        cluster.bookies["b1"].set_read_only(False)
        await trio.sleep(1)
        assert await writer.append(b"1") == 1
        assert await writer.close() == 1


async def test_a_bookie_is_writable_again_when_nobody_wants_it_read_only(clock: MockClock) -> None:
    async with open_cluster(bookies=1) as cluster:
        node = cluster.bookies["b1"].node
        node.set_read_only(True)
        node.set_read_only(True, wanted_by="draining")
        node.set_read_only(False)
        assert node.is_read_only
        node.set_read_only(False, wanted_by="draining")
        assert not node.is_read_only
