"""Auto-recovery of ledgers that are not closed (rule 20): it leaves live writers alone, but not dead ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from trio.testing import MockClock

from ledgerlog.ledger.client import open_client
from ledgerlog.model.ledger import LedgerState
from ledgerlog.model.repair import RepairTask
from ledgerlog.repair.copying import Copying, Pacer
from ledgerlog.repair.ledger import LedgerRepair
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.testing.faulty_store import Call, FaultyStore, before
from ledgerlog.testing.memory_cluster import SeededEnvironment, open_cluster
from tests.repairing import (
    R332,
    assert_whole,
    board_has_tasks,
    names,
    payload,
    quiet,
    repaired,
    set_up,
    start_repair,
    until,
    written,
)


async def test_rule_20_the_last_fragment_of_a_live_writer_is_left_to_him(clock: MockClock) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        queue = await set_up(client)
        await start_repair(cluster)
        writer = await client.ledgers.create(replication=R332)
        await writer.append_many([payload(n) for n in range(10)])
        (lost,) = writer.metadata.last_fragment.ensemble[:1]
        await cluster.bookies[lost].kill()
        await writer.append_many([payload(n) for n in range(10, 20)])
        await repaired(client, queue, writer.ledger_id, {lost})
        # The writer was never disturbed, and it keeps the change that repair made to the older fragment.
        await writer.append_many([payload(n) for n in range(20, 30)])
        other = writer.metadata.last_fragment.ensemble[0]
        await cluster.bookies[other].kill()
        await writer.append_many([payload(n) for n in range(30, 40)])
        assert await writer.close() == 39
        await repaired(client, queue, writer.ledger_id, {lost, other})
        await assert_whole(client, writer.ledger_id, 40)
        assert await client.contents(writer.ledger_id) == [payload(n) for n in range(40)]


async def test_rule_20_without_a_spare_a_live_writer_is_not_stopped(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        await start_repair(cluster)
        writer = await client.ledgers.create(replication=R332)
        await writer.append(payload(0))
        await cluster.bookies["b1"].kill(session_s=0)
        for n in range(1, 100):
            assert await writer.append(payload(n)) == n
            await trio.sleep(3)
        found = await queue.task(writer.ledger_id)
        assert found is not None
        assert "NotEnoughBookies" in (found[0].trouble or "")
        await cluster.add_bookie()
        await trio.sleep(30)
        await writer.append(payload(100))
        await repaired(client, queue, writer.ledger_id, {"b1"})
        assert await writer.close() == 100
        await assert_whole(client, writer.ledger_id, 101)


async def test_rule_20_an_open_ledger_without_a_writer_is_recovered_after_the_grace_period(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, grace_ms=100_000)
        ledger_id = await written(client, 10, close=False)
        await start_repair(cluster)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await trio.sleep(80)
        assert (await client.ledgers.metadata(ledger_id)).state is LedgerState.OPEN
        found = await queue.task(ledger_id)
        assert found is not None
        assert found[0].trouble == f"its writer may still replace {lost}"
        await repaired(client, queue, ledger_id, {lost})
        assert (await client.ledgers.metadata(ledger_id)).last_entry == 9
        await assert_whole(client, ledger_id, 10)


async def test_rule_20_a_bookie_that_is_back_within_the_grace_period_costs_no_recovery(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, grace_ms=100_000)
        ledger_id = await written(client, 10, close=False)
        await start_repair(cluster)
        (away,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[away].kill(session_s=0)
        await until(board_has_tasks(queue))
        await cluster.bookies[away].start()
        await quiet(queue)
        assert (await client.ledgers.metadata(ledger_id)).state is LedgerState.OPEN


async def test_rule_20_before_it_recovers_a_ledger_a_worker_looks_again(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 10, close=False)
        (away,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[away].kill(session_s=0)
        await trio.sleep(1)
        hooks: list[Callable[[], Awaitable[None]]] = []

        async def act(call: Call) -> None:
            if call.verb == "sync" and hooks:
                await hooks.pop()()

        store = FaultyStore(cluster.tree, before(act))
        async with open_client(
            store, cluster.network.at("worker"), environment=SeededEnvironment("worker")
        ) as worker:
            repair = LedgerRepair(worker, RepairQueue(worker), Copying(worker, Pacer(1_000_000)))
            task = RepairTask(ledger_id=ledger_id, lost=(away,))
            hooks.append(cluster.bookies[away].start)
            verdict = await repair.run(task, grace_s=0.0, say=lambda _: None)
        assert verdict.is_done
        assert (await client.ledgers.metadata(ledger_id)).state is LedgerState.OPEN
        assert await queue.tasks() == []


async def test_an_open_ledger_whose_last_bookies_are_all_gone_stays_open_and_says_what_to_do(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=7) as cluster, cluster.client() as client:
        queue = await set_up(client)
        # One ledger has entries and the other has none. Without their bookies nobody can tell.
        ledgers = [await written(client, count, close=False) for count in (10, 0)]
        await start_repair(cluster)
        lost = {ledger_id: sorted(await names(client, ledger_id)) for ledger_id in ledgers}
        for bookie in sorted({bookie for of in lost.values() for bookie in of}):
            await cluster.bookies[bookie].kill(session_s=0)
        for _ in range(3):  # Other bookies could take the copies.
            await cluster.add_bookie()
        before = [await client.ledgers.metadata(ledger_id) for ledger_id in ledgers]
        store = client.opened.store
        assert isinstance(store, FaultyStore)
        await trio.sleep(600)
        for ledger_id, was in zip(ledgers, before, strict=True):
            assert await client.ledgers.metadata(ledger_id) == was
            assert was.state is LedgerState.OPEN
            found = await queue.task(ledger_id)
            assert found is not None
            trouble = found[0].trouble or ""
            assert all(bookie in trouble for bookie in lost[ledger_id])
            assert f"'ledgerlog ledger recover {ledger_id} --accept-loss'" in trouble
        for bookie in sorted({bookie for of in lost.values() for bookie in of}):
            await cluster.bookies[bookie].start()
        await quiet(queue)
        for ledger_id, was in zip(ledgers, before, strict=True):
            assert await client.ledgers.metadata(ledger_id) == was, "and nobody had to be fenced"


async def test_a_writer_whose_bookies_all_lost_their_registration_is_not_fenced(clock: MockClock) -> None:
    async with open_cluster(bookies=6) as cluster, cluster.client() as client:
        queue = await set_up(client)
        await start_repair(cluster)
        writer = await client.ledgers.create(replication=R332)
        away = writer.metadata.last_fragment.ensemble
        assert await writer.append(payload(0)) == 0  # A bookie that knows a ledger needs no store for it.
        for bookie in away:
            cluster.bookies[bookie].store.disconnect()
            cluster.bookies[bookie].store.inner.expire_session()
        for n in range(1, 100):
            assert await writer.append(payload(n)) == n
            await trio.sleep(3)
        found = await queue.task(writer.ledger_id)
        assert found is not None
        assert "it is not closed" in (found[0].trouble or "")
        for bookie in away:
            cluster.bookies[bookie].store.reconnect()
        await quiet(queue)
        assert await writer.append(payload(100)) == 100
        assert await writer.close() == 100


async def test_an_idle_writer_leaves_a_lost_bookie_and_is_not_fenced(clock: MockClock) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        queue = await set_up(client)
        await start_repair(cluster)
        idle = [await client.ledgers.create(replication=R332) for _ in range(2)]
        await idle[0].append(payload(0))
        await cluster.bookies["b1"].kill()
        await trio.sleep(100)
        await quiet(queue)
        for writer in idle:
            await writer.append(payload(1))
            await writer.close()


async def test_rule_20_a_bookie_that_is_lost_again_leaves_its_writer_the_whole_time_again(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append_many([payload(n) for n in range(5)])
        first = writer.metadata.last_fragment.ensemble[0]
        await cluster.bookies[first].kill(session_s=0)
        while first in writer.metadata.last_fragment.ensemble:
            await writer.append(payload(5))
            await trio.sleep(0.1)
        ledger_id = writer.ledger_id
        away, silent = writer.metadata.fragments[0].ensemble[1:]
        await writer.aclose()
        async with open_client(
            FaultyStore(cluster.tree), cluster.network.at("worker"), environment=SeededEnvironment("worker")
        ) as worker:
            repair = LedgerRepair(worker, RepairQueue(worker), Copying(worker, Pacer(1_000_000)))
            task = RepairTask(ledger_id=ledger_id, lost=(away,))

            async def trouble() -> str | None:
                return (await repair.run(task, grace_s=100.0, say=lambda _: None)).trouble

            await cluster.bookies[away].kill(session_s=0)
            await trio.sleep(1)
            assert await trouble() == f"its writer may still replace {away}"
            await cluster.bookies[away].start()
            # The task stays, with another reason.
            cluster.network.stall("worker", silent)
            assert "no answer" in (await trouble() or "")
            cluster.network.heal()
            await trio.sleep(1_000)
            await cluster.bookies[away].kill(session_s=0)
            await trio.sleep(1)
            assert await trouble() == f"its writer may still replace {away}"
        assert (await client.ledgers.metadata(ledger_id)).state is LedgerState.OPEN
