"""A repair's write crosses the writes of the ledger's owner and of its recoverers (rules 13 and 14).

Each keeps the changes of the others. The test uses the production shells of all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledgerlog.ledger.client import LedgerClient, open_client
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.meta.store import Versioned
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.layout import ledger_path, writable_path
from ledgerlog.model.ledger import LedgerState
from ledgerlog.model.repair import RepairTask
from ledgerlog.repair.copying import Copying, Pacer
from ledgerlog.repair.ledger import LedgerRepair, Verdict
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.testing.faulty_store import CrossedWrites, FaultyStore
from ledgerlog.testing.memory_cluster import MemoryCluster, SeededEnvironment, eventually, open_cluster
from tests.repairing import R332, payload


@asynccontextmanager
async def party(cluster: MemoryCluster, name: str) -> AsyncIterator[tuple[LedgerClient, CrossedWrites]]:
    crossed = CrossedWrites()
    store = FaultyStore(cluster.tree, crossed)
    async with open_client(store, cluster.network.at(name), environment=SeededEnvironment(name)) as client:
        try:
            yield client, crossed
        finally:
            store.inner.close()


async def repair_once(client: LedgerClient, ledger_id: int, lost: str) -> Verdict:
    repair = LedgerRepair(client, RepairQueue(client), Copying(client, Pacer(10_000_000)))
    task = RepairTask(ledger_id=ledger_id, lost=(lost,))
    return await repair.run(task, grace_s=1000.0, say=lambda _: None)


async def replaced(writer: LedgerWriter, bookie: str) -> None:
    """Return when the writer has left that bookie."""
    with trio.fail_after(60):
        while bookie in writer.metadata.last_fragment.ensemble:  # noqa: ASYNC110 (a core)
            await trio.sleep(0.01)


async def two_fragments(cluster: MemoryCluster, client: LedgerClient) -> tuple[LedgerWriter, str]:
    """Return the writer of an open ledger that lost one bookie, and that bookie."""
    writer = await client.ledgers.create(replication=R332)
    await writer.append_many([payload(n) for n in range(5)])
    lost = writer.metadata.last_fragment.ensemble[0]
    await cluster.bookies[lost].kill(session_s=0)
    await writer.append_many([payload(n) for n in range(5, 10)])
    await replaced(writer, lost)
    return writer, lost


async def test_a_repair_that_meets_its_owners_change_keeps_it(clock: MockClock) -> None:
    async with (
        open_cluster(bookies=6) as cluster,
        party(cluster, "owner") as (owner, _),
        party(cluster, "worker") as (worker, crossed),
    ):
        writer, lost = await two_fragments(cluster, owner)
        second = writer.metadata.last_fragment.ensemble[1]

        async def owner_changes() -> None:
            await cluster.bookies[second].kill(session_s=0)
            await writer.append_many([payload(n) for n in range(10, 15)])
            await replaced(writer, second)

        crossed.acts[ledger_path(writer.ledger_id)] = [owner_changes]
        assert (await repair_once(worker, writer.ledger_id, lost)).is_done
        stored = await worker.ledgers.metadata(writer.ledger_id)
        assert [fragment.first_entry for fragment in stored.fragments] == [0, 5, 10]
        assert lost not in stored.fragments[0].ensemble
        assert stored.last_fragment == writer.metadata.last_fragment
        await writer.append(payload(15))
        assert await writer.close() == 15


async def test_an_owners_change_that_meets_a_repair_keeps_it(clock: MockClock) -> None:
    async with (
        open_cluster(bookies=6) as cluster,
        party(cluster, "owner") as (owner, crossed),
        party(cluster, "worker") as (worker, _),
    ):
        writer, lost = await two_fragments(cluster, owner)
        second = writer.metadata.last_fragment.ensemble[1]
        verdicts: list[Verdict] = []

        async def worker_repairs() -> None:
            verdicts.append(await repair_once(worker, writer.ledger_id, lost))

        crossed.acts[ledger_path(writer.ledger_id)] = [worker_repairs]
        await cluster.bookies[second].kill(session_s=0)
        await writer.append_many([payload(n) for n in range(10, 15)])
        await replaced(writer, second)
        assert [verdict.is_done for verdict in verdicts] == [True]
        stored = await worker.ledgers.metadata(writer.ledger_id)
        assert lost not in stored.fragments[0].ensemble, "what repair did is still there"
        assert second not in stored.last_fragment.ensemble
        assert await writer.close() == 14
        assert lost not in (await worker.ledgers.metadata(writer.ledger_id)).fragments[0].ensemble


async def test_a_close_that_meets_a_repair_keeps_it(clock: MockClock) -> None:
    async with (
        open_cluster(bookies=5) as cluster,
        party(cluster, "owner") as (owner, crossed),
        party(cluster, "worker") as (worker, _),
    ):
        writer, lost = await two_fragments(cluster, owner)

        async def worker_repairs() -> None:
            assert (await repair_once(worker, writer.ledger_id, lost)).is_done

        crossed.acts[ledger_path(writer.ledger_id)] = [worker_repairs]
        assert await writer.close() == 9
        stored = await worker.ledgers.metadata(writer.ledger_id)
        assert stored.is_closed
        assert lost not in stored.fragments[0].ensemble


async def test_a_recoverer_that_meets_repairs_at_both_its_writes_keeps_them(clock: MockClock) -> None:
    async with (
        open_cluster(bookies=6) as cluster,
        party(cluster, "owner") as (owner, _),
        party(cluster, "recoverer") as (recoverer, crossed),
        party(cluster, "worker") as (worker, _),
    ):
        writer, lost = await two_fragments(cluster, owner)
        ledger_id = writer.ledger_id
        other = (await worker.ledgers.metadata(ledger_id)).fragments[0].ensemble[1]

        async def first_repair() -> None:
            assert (await repair_once(worker, ledger_id, lost)).is_done

        async def second_repair() -> None:
            await cluster.bookies[other].kill(session_s=0)
            await trio.sleep(1)
            await repair_once(worker, ledger_id, other)
            stored = await worker.ledgers.metadata(ledger_id)
            assert stored.state is LedgerState.IN_RECOVERY
            assert other not in stored.fragments[0].ensemble

        # The writes are: the announcement, the announcement again after the conflict, and the close.
        crossed.acts[ledger_path(ledger_id)] = [first_repair, trio.lowlevel.checkpoint, second_repair]
        closed = await recoverer.ledgers.recover(ledger_id)
        assert closed.last_entry == 9
        assert not {lost, other} & set(closed.fragments[0].ensemble)
        assert closed == await worker.ledgers.metadata(ledger_id)


async def test_two_repairs_of_one_fragment_end_with_one_name(clock: MockClock) -> None:
    async with (
        open_cluster(bookies=6) as cluster,
        party(cluster, "owner") as (owner, _),
        party(cluster, "slow") as (slow, crossed),
        party(cluster, "quick") as (quick, _),
    ):
        writer, lost = await two_fragments(cluster, owner)
        await writer.close()

        async def overtake() -> None:
            assert (await repair_once(quick, writer.ledger_id, lost)).is_done

        crossed.acts[ledger_path(writer.ledger_id)] = [overtake]
        verdict = await repair_once(slow, writer.ledger_id, lost)
        stored = await quick.ledgers.metadata(writer.ledger_id)
        assert lost not in stored.fragments[0].ensemble
        assert verdict.is_done or "another process changed" in (verdict.trouble or "")
        assert (await repair_once(slow, writer.ledger_id, lost)).is_done
        assert (await slow.ledgers.metadata(writer.ledger_id)) == stored


async def closed_with_a_lost_bookie(cluster: MemoryCluster, owner: LedgerClient) -> LedgerWriter:
    """The writer of a closed ledger of five entries whose first bookie is lost."""
    writer = await owner.ledgers.create(replication=R332)
    await writer.append_many([payload(n) for n in range(5)])
    await writer.close()
    await cluster.bookies[writer.metadata.last_fragment.ensemble[0]].kill(session_s=0)
    return writer


@pytest.mark.parametrize("how", ["lost", "drained"])
async def test_a_new_bookie_is_not_named_once_it_is_lost_or_to_be_emptied(clock: MockClock, how: str) -> None:
    """The bookie leaves between the worker's last look at it and the write. A process that asks later which
    ledgers name the bookie must see all of them.
    """
    async with (
        open_cluster(bookies=5) as cluster,
        party(cluster, "owner") as (owner, _),
        party(cluster, "worker") as (worker, crossed),
    ):
        writer = await closed_with_a_lost_bookie(cluster, owner)
        named = writer.metadata.last_fragment.ensemble
        spares = [bookie.bookie_id for bookie in cluster.spares(named)]
        left: list[str] = []

        async def leaves() -> None:
            # Repair would choose both spares, one after the other. The spare that has the copies leaves.
            (new,) = [b for b in spares if cluster.bookies[b].node.engine.last_durable(writer.ledger_id) == 4]
            left.append(new)
            if how == "lost":
                cluster.bookies[new].store.disconnect()
                cluster.bookies[new].store.inner.expire_session()
            else:
                await RepairQueue(owner).drain(new)
                await eventually(lambda: cluster.bookies[new].node.is_read_only)

        crossed.acts[ledger_path(writer.ledger_id)] = [leaves]
        verdict = await repair_once(worker, writer.ledger_id, named[0])
        assert not verdict.is_done
        stored = await worker.ledgers.metadata(writer.ledger_id)
        assert stored == writer.metadata, "and nothing else was changed"
        assert (await repair_once(worker, writer.ledger_id, named[0])).is_done
        stored = await worker.ledgers.metadata(writer.ledger_id)
        assert left[0] not in stored.last_fragment.ensemble
        assert named[0] not in stored.last_fragment.ensemble


async def test_a_new_bookie_that_has_registered_anew_since_it_got_its_copies_is_not_named(
    clock: MockClock,
) -> None:
    """The bookie has started again, perhaps without copies that it had not synced. The worker's connection
    still looks whole, and the new registration has the version of the old one."""
    async with (
        open_cluster(bookies=4) as cluster,
        party(cluster, "owner") as (owner, _),
        party(cluster, "worker") as (worker, _),
    ):
        writer = await closed_with_a_lost_bookie(cluster, owner)
        named = writer.metadata.last_fragment.ensemble
        (spare,) = cluster.spares(named)
        path = writable_path(spare.bookie_id)

        async def register_anew(asked: str) -> None:
            if asked == path and spare.node.engine.last_durable(writer.ledger_id) == 4:
                worker.store.before_get = None
                there = await owner.store.get(path)
                assert there is not None
                info = BookieInfo.decode_untrusted(there.value, spare.bookie_id)
                await owner.store.delete(path, version=there.version)
                again = attrs.evolve(info, listing_key=bytes(len(info.listing_key)))
                await owner.store.create(path, again.encode(), ephemeral=True)
                assert await owner.store.get(path) == Versioned(again.encode(), there.version)

        worker.store.before_get = register_anew
        assert not (await repair_once(worker, writer.ledger_id, named[0])).is_done
        assert worker.store.before_get is None
        assert await worker.ledgers.metadata(writer.ledger_id) == writer.metadata
