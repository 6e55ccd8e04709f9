"""Auto-recovery on whole clusters: bookies are lost for good, and ledgers come back to their write quorum."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from bookie.storage.index import MemoryIndexes
from bookie.storage.memory_disk import MemoryDisk
from ledgerlog.autorecovery.board import Board
from ledgerlog.autorecovery.checking import CheckPace, check_ledger
from ledgerlog.autorecovery.copying import Copying, Pacer
from ledgerlog.autorecovery.decommission import Emptying, decommission
from ledgerlog.autorecovery.ledger import LedgerRepair
from ledgerlog.client.client import open_client
from ledgerlog.errors import CookieMismatch
from ledgerlog.model.layout import cookie_path
from ledgerlog.model.ledger import LedgerState
from ledgerlog.model.quorum import Replication
from ledgerlog.model.repair import RepairTask
from tests.clusters import FaultyStore, SeededEnvironment, eventually, open_cluster
from tests.repairing import (
    R332,
    assert_whole,
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
        board = await set_up(client)
        ledger_id = await written(client, 50)
        process = await start_repair(cluster)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill()
        await repaired(client, board, ledger_id, {lost})
        await assert_whole(client, ledger_id, 50)
        assert await client.contents(ledger_id) == [payload(n) for n in range(50)]
        assert process.copied == 50
        assert process.service.worker.repaired == 1


async def test_rule_22_an_auditor_compares_all_metadata_at_its_start(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client)
        ledger_id = await written(client, 5)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        # Lost, registration and all, before anybody looked.
        await cluster.bookies[lost].kill(session_s=0)
        await trio.sleep(60)
        await start_repair(cluster)
        await repaired(client, board, ledger_id, {lost})
        await assert_whole(client, ledger_id, 5)


async def test_a_bookie_that_is_back_before_the_delay_costs_no_copy(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client, lost_after_ms=60_000)
        ledger_id = await written(client, 20)
        process = await start_repair(cluster)
        before = await client.ledgers.metadata(ledger_id)
        (away,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[away].kill(session_s=0)
        await trio.sleep(50)
        record = await board.audit_record()
        assert record is not None
        assert list(record.absent) == [away]
        await cluster.bookies[away].start()
        await trio.sleep(300)
        assert process.copied == 0
        assert await board.tasks() == []
        assert await client.ledgers.metadata(ledger_id) == before
        record = await board.audit_record()
        assert record is not None
        assert record.absent == {}


async def test_a_bookie_that_is_back_before_its_task_is_worked_on_is_kept(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client, paused=True)
        ledger_id = await written(client, 20)
        process = await start_repair(cluster)
        (away,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[away].kill(session_s=0)
        await until(board_has_tasks(board))
        await cluster.bookies[away].start()
        await set_up(client, paused=False)
        await quiet(board)
        assert process.copied == 0
        assert away in await names(client, ledger_id)


async def test_while_it_is_paused_tasks_are_made_and_nothing_is_copied(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client, paused=True)
        ledger_id = await written(client, 20)
        process = await start_repair(cluster)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await until(board_has_tasks(board))
        await trio.sleep(600)
        assert await board.tasks() == [ledger_id]
        assert process.copied == 0
        await set_up(client, paused=False)
        await repaired(client, board, ledger_id, {lost})
        await assert_whole(client, ledger_id, 20)


async def test_rule_20_the_last_fragment_of_a_live_writer_is_left_to_him(clock: MockClock) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        board = await set_up(client)
        await start_repair(cluster)
        writer = await client.ledgers.create(replication=R332)
        await writer.append_many([payload(n) for n in range(10)])
        (lost,) = writer.metadata.last_fragment.ensemble[:1]
        await cluster.bookies[lost].kill()
        await writer.append_many([payload(n) for n in range(10, 20)])
        await repaired(client, board, writer.ledger_id, {lost})
        # The writer was never disturbed, and it keeps what repair did to the fragment before.
        await writer.append_many([payload(n) for n in range(20, 30)])
        other = writer.metadata.last_fragment.ensemble[0]
        await cluster.bookies[other].kill()
        await writer.append_many([payload(n) for n in range(30, 40)])
        assert await writer.close() == 39
        await repaired(client, board, writer.ledger_id, {lost, other})
        await assert_whole(client, writer.ledger_id, 40)
        assert await client.contents(writer.ledger_id) == [payload(n) for n in range(40)]


async def test_rule_20_without_a_spare_a_live_writer_is_not_stopped(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        board = await set_up(client)
        await start_repair(cluster)
        writer = await client.ledgers.create(replication=R332)
        await writer.append(payload(0))
        await cluster.bookies["b1"].kill(session_s=0)
        for n in range(1, 100):
            assert await writer.append(payload(n)) == n
            await trio.sleep(3)
        found = await board.task(writer.ledger_id)
        assert found is not None
        assert "NotEnoughBookies" in (found[0].trouble or "")
        await cluster.add_bookie()
        await trio.sleep(30)
        await writer.append(payload(100))
        await repaired(client, board, writer.ledger_id, {"b1"})
        assert await writer.close() == 100
        await assert_whole(client, writer.ledger_id, 101)


async def test_rule_20_an_open_ledger_without_a_writer_is_recovered_after_the_grace_period(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client, grace_ms=100_000)
        ledger_id = await written(client, 10, close=False)
        await start_repair(cluster)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await trio.sleep(80)
        assert (await client.ledgers.metadata(ledger_id)).state is LedgerState.OPEN
        found = await board.task(ledger_id)
        assert found is not None
        assert found[0].trouble == f"its writer may still replace {lost}"
        await repaired(client, board, ledger_id, {lost})
        assert (await client.ledgers.metadata(ledger_id)).last_entry == 9
        await assert_whole(client, ledger_id, 10)


async def test_rule_20_a_bookie_that_is_back_within_the_grace_period_costs_no_recovery(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client, grace_ms=100_000)
        ledger_id = await written(client, 10, close=False)
        await start_repair(cluster)
        (away,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[away].kill(session_s=0)
        await until(board_has_tasks(board))
        await cluster.bookies[away].start()
        await quiet(board)
        assert (await client.ledgers.metadata(ledger_id)).state is LedgerState.OPEN


@pytest.mark.parametrize("entries", [0, 1, 2, 7, 30])
@pytest.mark.parametrize("shape", [Replication(4, 2, 2), Replication(5, 3, 2)], ids=str)
async def test_striped_ledgers_come_back_whole_whatever_their_length(
    clock: MockClock, shape: Replication, entries: int
) -> None:
    async with open_cluster(bookies=7) as cluster, cluster.client() as client:
        board = await set_up(client)
        ledger_id = await written(client, entries, shape)
        process = await start_repair(cluster)
        metadata = await client.ledgers.metadata(ledger_id)
        lost = metadata.last_fragment.ensemble[-1]
        held = sum(lost in metadata.bookies_of(entry_id) for entry_id in range(entries))
        await cluster.bookies[lost].kill(session_s=0)
        await repaired(client, board, ledger_id, {lost})
        assert process.copied == held, "what its slot did not hold was not lost (rule 21)"
        await assert_whole(client, ledger_id, entries)


async def test_rule_21_a_closed_ledger_without_entries_loses_all_its_bookies_and_nothing_else(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=6) as cluster, cluster.client() as client:
        board = await set_up(client)
        ledger_id = await written(client, 0)
        process = await start_repair(cluster)
        lost = await names(client, ledger_id)
        for bookie in sorted(lost):
            await cluster.bookies[bookie].kill(session_s=0)
        await repaired(client, board, ledger_id, lost)
        assert process.copied == 0


async def test_a_ledger_that_is_deleted_during_its_repair_is_let_go(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client, bytes_per_s=1_000)
        ledger_id = await written(client, 60, size=20_000)
        process = await start_repair(cluster)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await until(lock_is_taken(board))
        await client.ledgers.delete(ledger_id)
        await set_up(client, bytes_per_s=10_000_000)
        await quiet(board)
        assert await board.locks() == {}
        assert process.service.worker.repaired == 1


async def test_a_second_bookie_is_lost_during_the_repair(clock: MockClock) -> None:
    async with open_cluster(bookies=6) as cluster, cluster.client() as client:
        board = await set_up(client, bytes_per_s=20_000)
        ledgers = [await written(client, 20, size=10_000) for _ in range(4)]
        await start_repair(cluster)
        first, second = sorted(await names(client, ledgers[0]))[:2]
        await cluster.bookies[first].kill(session_s=0)
        await until(lock_is_taken(board))
        await cluster.bookies[second].kill()
        await set_up(client, bytes_per_s=10_000_000)
        for ledger_id in ledgers:
            await repaired(client, board, ledger_id, {first, second})
            await assert_whole(client, ledger_id, 20)


async def test_the_bookie_that_copies_go_to_is_lost(clock: MockClock) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        board = await set_up(client, bytes_per_s=20_000)
        ledger_id = await written(client, 200, size=10_000)
        process = await start_repair(cluster)
        named = await names(client, ledger_id)
        spare_1, spare_2 = (bookie.bookie_id for bookie in cluster.spares(sorted(named)))
        lost = sorted(named)[0]
        await cluster.bookies[lost].kill(session_s=0)
        await eventually(lambda: process.copied > 0)
        stored = [
            spare
            for spare in (spare_1, spare_2)
            if cluster.bookies[spare].node.engine.last_durable(ledger_id) >= 0
        ]
        await cluster.bookies[stored[0]].kill(session_s=0)
        await set_up(client, bytes_per_s=10_000_000)
        await repaired(client, board, ledger_id, {lost, stored[0]})
        await assert_whole(client, ledger_id, 200)


async def test_when_the_auditor_dies_another_one_finds_what_it_did_not(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client)
        ledger_id = await written(client, 10)
        processes = [await start_repair(cluster, f"repair-{n}") for n in (1, 2, 3)]
        await eventually(lambda: any(process.leads for process in processes))
        (auditor,) = [process for process in processes if process.leads]
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await auditor.kill()
        await repaired(client, board, ledger_id, {lost})
        await assert_whole(client, ledger_id, 10)
        assert sum(process.leads for process in processes if process is not auditor) == 1


async def test_a_worker_that_dies_with_a_lock_is_followed_by_another(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client, bytes_per_s=1_000)
        ledger_id = await written(client, 40, size=20_000)
        processes = {name: await start_repair(cluster, name) for name in ("repair-1", "repair-2")}
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await until(lock_is_taken(board))
        (token,) = (await board.locks()).values()
        holder = (await board.workers())[token].name
        await processes.pop(holder).kill()
        assert list(await board.locks()) == [ledger_id], "the lock outlives it by its session"
        await set_up(client, bytes_per_s=10_000_000)
        await repaired(client, board, ledger_id, {lost})
        await assert_whole(client, ledger_id, 40)
        assert await board.locks() == {}


async def test_a_lock_that_could_not_be_let_go_of_is_taken_up_again_by_its_worker(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client, bytes_per_s=200_000)
        ledger_id = await written(client, 40, size=20_000)
        process = await start_repair(cluster)
        session = process.store.session
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await until(lock_is_taken(board))
        process.store.disconnect()
        await trio.sleep(3)
        process.store.reconnect()
        assert process.store.session is session
        assert list(await board.locks()) == [ledger_id], "its session holds it on"
        with trio.fail_after(120):
            await repaired(client, board, ledger_id, {lost})
        await assert_whole(client, ledger_id, 40)


async def test_too_few_bookies_leave_a_task_with_its_reason_until_one_comes(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        board = await set_up(client)
        ledger_id = await written(client, 10)
        await start_repair(cluster)
        await cluster.bookies["b1"].kill(session_s=0)

        async def has_reason() -> bool:
            found = await board.task(ledger_id)
            return found is not None and "NotEnoughBookies" in (found[0].trouble or "")

        await until(has_reason)
        await cluster.add_bookie()
        await repaired(client, board, ledger_id, {"b1"})
        await assert_whole(client, ledger_id, 10)


async def test_an_entry_that_nobody_has_leaves_the_ledger_as_it_is_and_says_so(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client)
        ledger_id = await written(client, 10, Replication(1, 1, 1))
        await start_repair(cluster)
        (only,) = await names(client, ledger_id)
        before = await client.ledgers.metadata(ledger_id)
        await cluster.bookies[only].kill(session_s=0)

        async def has_reason() -> bool:
            found = await board.task(ledger_id)
            return found is not None and found[0].trouble is not None

        await until(has_reason)
        assert await client.ledgers.metadata(ledger_id) == before
        await cluster.bookies[only].start()
        await quiet(board)
        await assert_whole(client, ledger_id, 10)


async def test_rule_24_entries_below_the_write_quorum_are_found_by_lists_and_given(clock: MockClock) -> None:
    """The plain mode closes at the ack quorum: the third bookie misses what was on its way to it."""
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        board = await set_up(client)
        writer = await client.ledgers.create(replication=R332)
        await writer.append_many([payload(n) for n in range(5)])
        slow = writer.metadata.last_fragment.ensemble[2]
        cluster.network.stall(client.host, slow)
        for n in range(5, 9):
            await writer.append(payload(n))
        await writer.close()
        cluster.network.reset(client.host, slow)
        cluster.network.heal()
        assert (await client.ledgers.verify(writer.ledger_id)).under_replicated == [5, 6, 7, 8]
        process = await start_repair(cluster)
        await set_up(client, entry_check_ms=10_000, check_all=True)

        async def is_whole() -> bool:
            return not (await client.ledgers.verify(writer.ledger_id)).under_replicated

        await until(is_whole)
        await quiet(board)
        assert process.copied == 4
        assert len((await client.ledgers.metadata(writer.ledger_id)).fragments) == 1


async def test_rule_24_a_hole_between_the_ends_is_seen_by_the_full_check_alone(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        await set_up(client)
        writer = await client.ledgers.create(replication=R332)
        await writer.append_many([payload(n) for n in range(5)])
        bookie = writer.metadata.last_fragment.ensemble[2]
        await cluster.bookies[bookie].stop()
        await writer.append_many([payload(n) for n in range(5, 9)])
        await cluster.bookies[bookie].start()
        await writer.flush()
        await trio.sleep(1)
        # Nothing was sent again of what was settled meanwhile; what follows is.
        await writer.append_many([payload(n) for n in range(9, 12)])
        await writer.close()
        assert (await client.ledgers.verify(writer.ledger_id)).under_replicated == [5, 6, 7, 8]
        copying, pace = Copying(client.opened, Pacer(1_000_000)), CheckPace(1000)
        ends = await check_ledger(client.opened, copying, writer.ledger_id, check_all=False, pace=pace)
        full = await check_ledger(client.opened, copying, writer.ledger_id, check_all=True, pace=pace)
        assert ends.is_clean
        assert full.incomplete == (bookie,)


async def test_a_damaged_copy_at_a_fragments_end_is_replaced(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client)
        ledger_id = await written(client, 10, size=100)
        damaged = (await client.ledgers.metadata(ledger_id)).last_fragment.ensemble[1]
        bookie = cluster.bookies[damaged]
        await bookie.stop()
        assert bookie.flip_byte(payload(9)) > 0
        await bookie.start()
        await start_repair(cluster)
        await set_up(client, entry_check_ms=10_000)
        await repaired(client, board, ledger_id, {damaged})
        await assert_whole(client, ledger_id, 10)


async def test_a_bookie_is_emptied_under_load_without_disturbing_a_writer(clock: MockClock) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        board = await set_up(client)
        await start_repair(cluster)
        closed = [await written(client, 10) for _ in range(5)]
        writer = await client.ledgers.create(replication=R332)
        idle = await client.ledgers.create(replication=R332)
        await idle.append(payload(0))
        await writer.append(payload(0))
        leaving = writer.metadata.last_fragment.ensemble[0]
        looks: list[Emptying] = []
        appended = 1
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                nonlocal appended
                while True:
                    await writer.append(payload(appended))
                    appended += 1
                    await trio.sleep(0.05)

            nursery.start_soon(write)
            with trio.fail_after(600):
                await decommission(client.opened, leaving, say=looks.append)
            nursery.cancel_scope.cancel()
        assert looks[0].ledgers_left > 0
        assert looks[-1].ledgers_left == 0
        assert await board.cookie(leaving) is None
        await writer.flush()
        last = await writer.close()
        assert await idle.append(payload(1)) == 1, "nor one that was idle"
        assert await idle.close() == 1
        for ledger_id, count in (
            (writer.ledger_id, last + 1),
            (idle.ledger_id, 2),
            *((e, 10) for e in closed),
        ):
            assert leaving not in await names(client, ledger_id)
            await assert_whole(client, ledger_id, count)
        # It runs and stays read-only until it is stopped; then nothing is left of the request.
        assert cluster.bookies[leaving].node.is_read_only
        assert list(await board.draining()) == [leaving]
        await cluster.bookies[leaving].stop()
        await set_up(client, bookie_check_ms=1_000)

        async def is_tidy() -> bool:
            return await board.draining() == {}

        await until(is_tidy)


async def test_an_emptied_bookie_may_be_kept_after_all(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client, paused=True)
        await start_repair(cluster)
        await written(client, 5)
        await board.drain("b1")
        await eventually(lambda: cluster.bookies["b1"].node.is_read_only)
        assert await board.keep("b1")
        await eventually(lambda: not cluster.bookies["b1"].node.is_read_only)
        assert not await board.keep("b1")


async def test_a_bookie_formatted_anew_under_the_id_of_an_emptied_one_is_another(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client)
        await start_repair(cluster)
        await written(client, 5)
        with trio.fail_after(600):
            await decommission(client.opened, "b1", say=lambda _: None)
        bookie = cluster.bookies["b1"]
        await bookie.stop()
        with pytest.raises(CookieMismatch, match="decommissioned"):
            await bookie.start()
        bookie.disk, bookie.indexes = MemoryDisk(), MemoryIndexes()
        await bookie.start()
        await trio.sleep(10)
        assert not bookie.node.is_read_only
        assert await board.draining() == {}


async def test_copies_go_to_other_racks_where_bookies_say_theirs(clock: MockClock) -> None:
    async with open_cluster(bookies=0) as cluster, cluster.client() as client:
        for rack in ("r1", "r2", "r3", "r1", "r1", "r3"):
            await cluster.add_bookie(rack=rack)
        board = await set_up(client)
        ledger_id = await written(client, 5)
        racks = {"b1": "r1", "b2": "r2", "b3": "r3", "b4": "r1", "b5": "r1", "b6": "r3"}
        named = await names(client, ledger_id)
        assert sorted(racks[bookie] for bookie in named) == ["r1", "r2", "r3"]
        (lost,) = [bookie for bookie in named if racks[bookie] == "r3"]
        await start_repair(cluster)
        await cluster.bookies[lost].kill(session_s=0)
        await repaired(client, board, ledger_id, {lost})
        assert sorted(racks[bookie] for bookie in await names(client, ledger_id)) == ["r1", "r2", "r3"]


async def test_a_task_that_grows_while_it_is_worked_on_is_not_removed(clock: MockClock) -> None:
    """Rule 22: at the version that was read, and by a worker whose session lives."""
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        board = await set_up(client)
        worker = await board.register_worker()
        assert await board.post(7, lost=["b1"])
        found = await board.task(7)
        assert found is not None
        assert await board.post(7, lost=["b2"])
        assert not await board.post(7, lost=["b1"]), "it names both"
        assert not await board.remove(7, found[1], worker)
        found = await board.task(7)
        assert found is not None
        assert found[0].lost == ("b1", "b2")
        assert await board.remove(7, found[1], worker)
        assert await board.tasks() == []


async def test_a_worker_that_was_cut_off_does_not_remove_a_task_that_was_made_since(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as one, cluster.client() as other:
        mine, board = Board(one.opened), Board(other.opened)
        worker = await mine.register_worker()
        await board.post(7, lost=["b1"])
        assert await mine.lock(7, worker)
        before = await mine.task(7)
        assert before is not None
        one.store.inner.expire_session()
        # Another one does it, and a new task is made, at the very version of the first.
        second = await board.register_worker()
        assert await board.lock(7, second)
        found = await board.task(7)
        assert found is not None
        assert await board.remove(7, found[1], second)
        await board.post(7, lost=["b2"])
        again = await board.task(7)
        assert again is not None
        assert again[1] == before[1], "versions come back"
        assert not await mine.remove(7, before[1], worker)
        await mine.unlock(7, worker)
        assert list(await board.locks()) == [7], "nor does it let go of somebody else's lock"
        assert await board.tasks() == [7]


async def test_lost_answers_of_the_store_are_settled_by_looking(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client, paused=True)
        ledger_id = await written(client, 10)
        process = await start_repair(cluster)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await until(board_has_tasks(board))
        await set_up(client, paused=False)
        for _ in range(20):
            process.store.lost_answers = 1
            await trio.sleep(0.3)
            process.store.lost_answers, process.store.lost_writes = 0, 1
            await trio.sleep(0.3)
            process.store.lost_writes = 0
        await repaired(client, board, ledger_id, {lost})
        await assert_whole(client, ledger_id, 10)
        assert await board.locks() == {}


async def test_rule_22_a_bookie_of_which_only_its_name_in_metadata_is_left_is_missed(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client)
        ledger_id = await written(client, 5)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await trio.sleep(1)
        await client.opened.store.delete(cookie_path(lost))
        await start_repair(cluster)
        await repaired(client, board, ledger_id, {lost})
        await assert_whole(client, ledger_id, 5)


async def test_rule_20_before_it_recovers_a_ledger_a_worker_looks_again(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client)
        ledger_id = await written(client, 10, close=False)
        (away,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[away].kill(session_s=0)
        await trio.sleep(1)
        store = StoreWithHook(cluster.tree)
        async with open_client(
            store, cluster.network.at("worker"), environment=SeededEnvironment("worker")
        ) as worker:
            repair = LedgerRepair(worker, Board(worker), Copying(worker, Pacer(1_000_000)))
            task = RepairTask(ledger_id=ledger_id, lost=(away,))
            store.before_sync = cluster.bookies[away].start
            verdict = await repair.run(task, grace_s=0.0, say=lambda _: None)
        assert verdict.is_done
        assert (await client.ledgers.metadata(ledger_id)).state is LedgerState.OPEN
        assert await board.tasks() == []


async def test_copies_are_made_at_the_rate_that_was_set_however_many_ledgers_wait(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client, bytes_per_s=20_000)
        ledgers = [await written(client, 20, size=1_000) for _ in range(8)]
        process = await start_repair(cluster)
        (lost,) = sorted(await names(client, ledgers[0]))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await eventually(lambda: process.copied > 0)
        began, before = trio.current_time(), process.copied_bytes
        await quiet(board)
        took, copied = trio.current_time() - began, process.copied_bytes - before
        assert copied >= 60_000
        assert copied <= 20_000 * (took + 0.25) + 20_000
        assert took < 2 * copied / 20_000 + 5, "nor much slower"


class StoreWithHook(FaultyStore):
    """Does something once, before a sync."""

    before_sync: Callable[[], Awaitable[None]] | None = None

    async def sync(self) -> None:
        hook, self.before_sync = self.before_sync, None
        if hook is not None:
            await hook()
        await super().sync()


def board_has_tasks(board: Board) -> Callable[[], Awaitable[bool]]:
    async def condition() -> bool:
        return bool(await board.tasks())

    return condition


def lock_is_taken(board: Board) -> Callable[[], Awaitable[bool]]:
    async def condition() -> bool:
        return bool(await board.locks())

    return condition
