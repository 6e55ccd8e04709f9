"""Auto-recovery on whole clusters: bookies are lost for good, and ledgers return to their write quorum."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ledgerlog.ledger.client import open_client
from ledgerlog.model.layout import cookie_path, repair_task_path
from ledgerlog.model.quorum import Replication
from ledgerlog.model.repair import RepairTask
from ledgerlog.repair.copying import Copying, Pacer
from ledgerlog.repair.ledger import LedgerRepair
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.testing.faulty_store import FaultyStore
from ledgerlog.testing.memory_cluster import SeededEnvironment, eventually, open_cluster
from tests.repairing import (
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


async def test_what_a_lost_bookie_held_is_copied_and_another_is_named(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 50)
        process = await start_repair(cluster)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill()
        await repaired(client, queue, ledger_id, {lost})
        await assert_whole(client, ledger_id, 50)
        assert await client.contents(ledger_id) == [payload(n) for n in range(50)]
        assert process.copied == 50
        assert process.service.worker.repaired == 1


async def test_rule_22_an_auditor_compares_all_metadata_at_its_start(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 5)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        # The bookie and its registration were lost before any process looked.
        await cluster.bookies[lost].kill(session_s=0)
        await trio.sleep(60)
        await start_repair(cluster)
        await repaired(client, queue, ledger_id, {lost})
        await assert_whole(client, ledger_id, 5)


async def test_rule_22_a_bookie_of_which_only_its_name_in_metadata_is_left_is_missed(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 5)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await trio.sleep(1)
        await client.opened.store.delete(cookie_path(lost))
        await start_repair(cluster)
        await repaired(client, queue, ledger_id, {lost})
        await assert_whole(client, ledger_id, 5)


async def test_a_bookie_that_is_back_before_the_delay_costs_no_copy(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, lost_after_ms=60_000)
        ledger_id = await written(client, 20)
        process = await start_repair(cluster)
        before = await client.ledgers.metadata(ledger_id)
        (away,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[away].kill(session_s=0)
        await trio.sleep(50)
        record = await queue.audit_record()
        assert record is not None
        assert list(record.absent) == [away]
        await cluster.bookies[away].start()
        await trio.sleep(300)
        assert process.copied == 0
        assert await queue.tasks() == []
        assert await client.ledgers.metadata(ledger_id) == before
        record = await queue.audit_record()
        assert record is not None
        assert record.absent == {}


async def test_a_bookie_that_is_back_before_its_task_is_worked_on_is_kept(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, paused=True)
        ledger_id = await written(client, 20)
        process = await start_repair(cluster)
        (away,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[away].kill(session_s=0)
        await until(board_has_tasks(queue))
        await cluster.bookies[away].start()
        await set_up(client, paused=False)
        await quiet(queue)
        assert process.copied == 0
        assert away in await names(client, ledger_id)


async def test_a_bookie_that_flaps_within_the_delay_costs_no_copy(clock: MockClock) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        queue = await set_up(client, lost_after_ms=30_000)
        ledger_id = await written(client, 20)
        process = await start_repair(cluster)
        (away, *_) = sorted(await names(client, ledger_id))
        for _ in range(10):
            await cluster.bookies[away].kill(session_s=0)
            await trio.sleep(25)
            await cluster.bookies[away].start()
            await trio.sleep(3)
        assert process.copied == 0
        assert await queue.tasks() == []
        # A shorter delay also applies to bookies that are already away.
        await cluster.bookies[away].kill(session_s=0)
        await trio.sleep(10)
        assert await queue.tasks() == []
        await set_up(client, lost_after_ms=5_000)
        with trio.fail_after(10):
            await repaired(client, queue, ledger_id, {away})


async def test_a_lost_bookie_that_comes_and_goes_is_not_taken_for_one_that_is_back(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        await set_up(client)
        ledger_id = await written(client, 10)
        (away, *_) = sorted(await names(client, ledger_id))
        cluster.network.stall("worker", away)
        async with open_client(
            FaultyStore(cluster.tree), cluster.network.at("worker"), environment=SeededEnvironment("worker")
        ) as worker:
            repair = LedgerRepair(worker, RepairQueue(worker), Copying(worker, Pacer(1_000_000)))
            task = RepairTask(ledger_id=ledger_id, lost=(away,))
            # The bookie is registered at the first look, and no longer registered after it did not answer.
            await cluster.bookies[away].kill(session_s=1.0)
            verdict = await repair.run(task, grace_s=0.0, say=lambda _: None)
            assert verdict.trouble == f"{away} comes and goes"
            verdict = await repair.run(task, grace_s=0.0, say=lambda _: None)
        assert verdict.is_done
        await assert_whole(client, ledger_id, 10)
        assert away not in await names(client, ledger_id)


@pytest.mark.parametrize("entries", [0, 1, 2, 7, 30])
@pytest.mark.parametrize("shape", [Replication(4, 2, 2), Replication(5, 3, 2)], ids=str)
async def test_striped_ledgers_come_back_whole_whatever_their_length(
    clock: MockClock, shape: Replication, entries: int
) -> None:
    async with open_cluster(bookies=7) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, entries, shape)
        process = await start_repair(cluster)
        metadata = await client.ledgers.metadata(ledger_id)
        lost = metadata.last_fragment.ensemble[-1]
        held = sum(lost in metadata.bookies_of(entry_id) for entry_id in range(entries))
        await cluster.bookies[lost].kill(session_s=0)
        await repaired(client, queue, ledger_id, {lost})
        assert process.copied == held, "what its slot did not hold was not lost (rule 21)"
        await assert_whole(client, ledger_id, entries)


async def test_rule_21_a_closed_ledger_without_entries_loses_all_its_bookies_and_nothing_else(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=6) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 0)
        process = await start_repair(cluster)
        lost = await names(client, ledger_id)
        for bookie in sorted(lost):
            await cluster.bookies[bookie].kill(session_s=0)
        await repaired(client, queue, ledger_id, lost)
        assert process.copied == 0


async def test_copies_go_to_other_racks_where_bookies_say_theirs(clock: MockClock) -> None:
    async with open_cluster(bookies=0) as cluster, cluster.client() as client:
        for rack in ("r1", "r2", "r3", "r1", "r1", "r3"):
            await cluster.add_bookie(rack=rack)
        queue = await set_up(client)
        ledger_id = await written(client, 5)
        racks = {"b1": "r1", "b2": "r2", "b3": "r3", "b4": "r1", "b5": "r1", "b6": "r3"}
        named = await names(client, ledger_id)
        assert sorted(racks[bookie] for bookie in named) == ["r1", "r2", "r3"]
        (lost,) = [bookie for bookie in named if racks[bookie] == "r3"]
        await start_repair(cluster)
        await cluster.bookies[lost].kill(session_s=0)
        await repaired(client, queue, ledger_id, {lost})
        assert sorted(racks[bookie] for bookie in await names(client, ledger_id)) == ["r1", "r2", "r3"]


async def test_when_the_auditor_dies_another_one_finds_what_it_did_not(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 10)
        processes = [await start_repair(cluster, f"repair-{n}") for n in (1, 2, 3)]
        await eventually(lambda: any(process.leads for process in processes))
        (auditor,) = [process for process in processes if process.leads]
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await auditor.kill()
        await repaired(client, queue, ledger_id, {lost})
        await assert_whole(client, ledger_id, 10)
        assert sum(process.leads for process in processes if process is not auditor) == 1


async def test_rule_22_a_bookie_that_comes_and_goes_during_a_pass_is_looked_for_again(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client, paused=True)
        first, second = [await written(client, 5) for _ in range(2)]
        store = FaultyStore(cluster.tree)
        is_held, go_on = trio.Event(), trio.Event()

        async def hold(path: str) -> None:
            if path == repair_task_path(second):
                is_held.set()
                await go_on.wait()

        store.before_get = hold
        process = await start_repair(cluster, store=store)
        await cluster.bookies["b1"].kill(session_s=0)
        await is_held.wait()
        # The pass has made one task. Somebody finds that the bookie is back, and has nothing to do.
        await cluster.bookies["b1"].start()
        worker = await queue.register_worker()
        found = await queue.task(first)
        assert found is not None
        assert await queue.remove(first, found[1], worker)
        await trio.sleep(1)
        await cluster.bookies["b1"].kill(session_s=0)
        await trio.sleep(60)
        go_on.set()

        async def both() -> bool:
            return await queue.tasks() == [first, second]

        await until(both, timeout_s=60)
        assert process.leads
