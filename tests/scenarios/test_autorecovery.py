"""Auto-recovery on whole clusters: bookies are lost for good, and ledgers come back to their write quorum."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from ledgerlog.autorecovery.board import Board
from ledgerlog.autorecovery.checking import CheckPace, check_ledger
from ledgerlog.autorecovery.copying import Copying, Pacer, Target
from ledgerlog.autorecovery.ledger import LedgerRepair
from ledgerlog.client.client import open_client
from ledgerlog.core.audit import named_bookies
from ledgerlog.core.repair import FragmentRepair, RepairFailed
from ledgerlog.errors import MetadataUnavailable
from ledgerlog.meta.store import Versioned
from ledgerlog.model.layout import REPAIR_SETTINGS, cookie_path, ledger_path, repair_task_path
from ledgerlog.model.ledger import LedgerMetadata, LedgerState
from ledgerlog.model.quorum import Replication
from ledgerlog.model.repair import RepairTask
from tests.clusters import FaultyStore, SeededEnvironment, eventually, open_cluster
from tests.repairing import (
    R332,
    StoreThatNotes,
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


async def test_a_new_bookie_that_is_lost_before_it_is_named_is_not_named(clock: MockClock) -> None:
    """It has every copy, and dies while another one is still being given its own."""
    async with open_cluster(bookies=7) as cluster, cluster.client() as client:
        board = await set_up(client, bytes_per_s=20_000)
        ledger_id = await written(client, 40, size=10_000)
        store = StoreThatNotes(cluster.tree, ledger_path(ledger_id))
        await start_repair(cluster, store=store)
        named = await names(client, ledger_id)
        spares = [bookie.bookie_id for bookie in cluster.spares(sorted(named))]
        lost = set(sorted(named)[:2])
        for bookie in sorted(lost):
            await cluster.bookies[bookie].kill(session_s=0)

        def given() -> list[str]:
            return [b for b in spares if cluster.bookies[b].node.engine.last_durable(ledger_id) == 39]

        await eventually(lambda: bool(given()))
        (dead,) = given()
        await cluster.bookies[dead].kill()
        await repaired(client, board, ledger_id, {*lost, dead})
        await assert_whole(client, ledger_id, 40)
        assert store.noted
        for value in store.noted:
            assert dead not in named_bookies(LedgerMetadata.decode_untrusted(value, ledger_id))


async def test_a_new_bookie_that_refuses_one_copy_is_not_named(clock: MockClock) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        board = await set_up(client, bytes_per_s=10_000_000)
        ledger_id = await written(client, 300, size=10_000)
        metadata = await client.ledgers.metadata(ledger_id)
        refusing, other = (b.bookie_id for b in cluster.spares(metadata.last_fragment.ensemble))
        # It has something else under the id of one entry, and refuses that one (rule 6).
        copying = Copying(client.opened, Pacer(10_000_000))
        target = Target(client.opened, metadata, refusing)
        await copying.store(target, {150: b"something else"}, metadata.last_entry or 0)
        target.close()
        core = FragmentRepair(metadata, 0, 0, {metadata.last_fragment.ensemble[0]: refusing}, new_token=bytes)
        with pytest.raises(RepairFailed, match=refusing):
            await copying.repair_fragment(core, draining=board.draining)
        assert await client.ledgers.metadata(ledger_id) == metadata
        (lost, *_) = metadata.last_fragment.ensemble
        await cluster.bookies[lost].kill(session_s=0)
        await start_repair(cluster)
        await repaired(client, board, ledger_id, {lost})
        await assert_whole(client, ledger_id, 300)
        assert await names(client, ledger_id) == {*metadata.last_fragment.ensemble[1:], other}


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


async def test_a_fragment_that_cannot_be_repaired_does_not_hold_up_the_others(clock: MockClock) -> None:
    async with open_cluster(bookies=7) as cluster, cluster.client() as client:
        board = await set_up(client)
        writer = await client.ledgers.create(replication=Replication(2, 2, 1))
        await writer.append_many([payload(n) for n in range(5)])
        first = set(writer.metadata.last_fragment.ensemble)
        for bookie in sorted(first):
            await cluster.bookies[bookie].kill(session_s=0)
            while bookie in writer.metadata.last_fragment.ensemble:
                await writer.append(payload(5))
                await trio.sleep(0.1)
        last = await writer.close()
        assert writer.metadata.fragments[0].ensemble == tuple(
            sorted(first, key=writer.metadata.fragments[0].ensemble.index)
        )
        also = writer.metadata.last_fragment.ensemble[0]
        await cluster.bookies[also].kill(session_s=0)
        await start_repair(cluster)

        async def is_repaired() -> bool:
            fragments = (await client.ledgers.metadata(writer.ledger_id)).fragments
            return not {also, *first}.intersection(*(f.ensemble for f in fragments[1:]))

        async def has_reason() -> bool:
            found = await board.task(writer.ledger_id)
            return found is not None and "entry 0 of ledger" in (found[0].trouble or "")

        await until(is_repaired)
        await until(has_reason)
        for bookie in sorted(first):
            await cluster.bookies[bookie].start()
        await quiet(board)
        await assert_whole(client, writer.ledger_id, last + 1)


async def test_an_open_ledger_whose_last_bookies_are_all_gone_stays_open_and_says_what_to_do(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=7) as cluster, cluster.client() as client:
        board = await set_up(client)
        # One has entries and the other has none, which nobody can tell without its bookies.
        ledgers = [await written(client, count, close=False) for count in (10, 0)]
        await start_repair(cluster)
        lost = {ledger_id: sorted(await names(client, ledger_id)) for ledger_id in ledgers}
        for bookie in sorted({bookie for of in lost.values() for bookie in of}):
            await cluster.bookies[bookie].kill(session_s=0)
        for _ in range(3):  # There are others to go to.
            await cluster.add_bookie()
        before = [await client.ledgers.metadata(ledger_id) for ledger_id in ledgers]
        store = client.opened.store
        assert isinstance(store, FaultyStore)
        await trio.sleep(600)
        for ledger_id, was in zip(ledgers, before, strict=True):
            assert await client.ledgers.metadata(ledger_id) == was
            assert was.state is LedgerState.OPEN
            found = await board.task(ledger_id)
            assert found is not None
            trouble = found[0].trouble or ""
            assert all(bookie in trouble for bookie in lost[ledger_id])
            assert f"'ledgerlog ledger recover {ledger_id} --accept-loss'" in trouble
        for bookie in sorted({bookie for of in lost.values() for bookie in of}):
            await cluster.bookies[bookie].start()
        await quiet(board)
        for ledger_id, was in zip(ledgers, before, strict=True):
            assert await client.ledgers.metadata(ledger_id) == was, "and nobody had to be fenced"


async def test_a_writer_whose_bookies_all_lost_their_registration_is_not_fenced(clock: MockClock) -> None:
    async with open_cluster(bookies=6) as cluster, cluster.client() as client:
        board = await set_up(client)
        await start_repair(cluster)
        writer = await client.ledgers.create(replication=R332)
        away = writer.metadata.last_fragment.ensemble
        for bookie in away:
            cluster.bookies[bookie].store.disconnect()
            cluster.bookies[bookie].store.inner.expire_session()
        for n in range(100):
            assert await writer.append(payload(n)) == n
            await trio.sleep(3)
        found = await board.task(writer.ledger_id)
        assert found is not None
        assert "it is not closed" in (found[0].trouble or "")
        for bookie in away:
            cluster.bookies[bookie].store.reconnect()
        await quiet(board)
        assert await writer.append(payload(100)) == 100
        assert await writer.close() == 100


async def test_an_idle_writer_leaves_a_lost_bookie_and_is_not_fenced(clock: MockClock) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        board = await set_up(client)
        await start_repair(cluster)
        idle = [await client.ledgers.create(replication=R332) for _ in range(2)]
        await idle[0].append(payload(0))
        await cluster.bookies["b1"].kill()
        await trio.sleep(100)
        await quiet(board)
        for writer in idle:
            await writer.append(payload(1))
            await writer.close()


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


async def test_a_bookie_that_has_repaired_its_damage_keeps_its_place(clock: MockClock) -> None:
    """It has copied again what rotted; and there is nobody who could take its place."""
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        board = await set_up(client)
        process = await start_repair(cluster)
        ledger_id = await written(client, 10, size=100)
        bookie = cluster.bookies["b1"]
        for others in ("b2", "b3"):
            cluster.network.cut("b1", others)
        await bookie.stop()
        assert bookie.flip_byte(payload(4)) > 0
        await bookie.start()
        await board.post(ledger_id, damaged=["b1"])

        async def has_reason() -> bool:
            found = await board.task(ledger_id)
            return found is not None and "NotEnoughBookies" in (found[0].trouble or "")

        await until(has_reason)
        cluster.network.heal()
        assert await bookie.node.engine.scrubber.scrub() == 1
        await quiet(board)
        assert process.copied == 0, "the bookie did it"
        await assert_whole(client, ledger_id, 10)


async def test_a_lost_bookie_that_comes_and_goes_is_not_taken_for_one_that_is_back(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        await set_up(client)
        ledger_id = await written(client, 10)
        (away, *_) = sorted(await names(client, ledger_id))
        cluster.network.stall("worker", away)
        async with open_client(
            FaultyStore(cluster.tree), cluster.network.at("worker"), environment=SeededEnvironment("worker")
        ) as worker:
            repair = LedgerRepair(worker, Board(worker), Copying(worker, Pacer(1_000_000)))
            task = RepairTask(ledger_id=ledger_id, lost=(away,))
            # Registered at the first look, and not any more once it has not answered.
            await cluster.bookies[away].kill(session_s=1.0)
            verdict = await repair.run(task, grace_s=0.0, say=lambda _: None)
            assert verdict.trouble == f"{away} comes and goes"
            verdict = await repair.run(task, grace_s=0.0, say=lambda _: None)
        assert verdict.is_done
        await assert_whole(client, ledger_id, 10)
        assert away not in await names(client, ledger_id)


async def test_a_task_whose_record_is_damaged_holds_up_no_other_and_is_made_anew(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client)
        ledgers = [await written(client, 5) for _ in range(4)]
        await client.opened.store.create(repair_task_path(ledgers[0]), b"not a task")
        await start_repair(cluster)
        lost = set.intersection(*[await names(client, e) for e in ledgers]).pop()
        await cluster.bookies[lost].kill(session_s=0)
        for ledger_id in ledgers:
            await repaired(client, board, ledger_id, {lost})
            await assert_whole(client, ledger_id, 5)


async def test_a_bookie_that_flaps_within_the_delay_costs_no_copy(clock: MockClock) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        board = await set_up(client, lost_after_ms=30_000)
        ledger_id = await written(client, 20)
        process = await start_repair(cluster)
        (away, *_) = sorted(await names(client, ledger_id))
        for _ in range(10):
            await cluster.bookies[away].kill(session_s=0)
            await trio.sleep(25)
            await cluster.bookies[away].start()
            await trio.sleep(3)
        assert process.copied == 0
        assert await board.tasks() == []
        # A delay that is made shorter holds for who is away already.
        await cluster.bookies[away].kill(session_s=0)
        await trio.sleep(10)
        assert await board.tasks() == []
        await set_up(client, lost_after_ms=5_000)
        with trio.fail_after(10):
            await repaired(client, board, ledger_id, {away})


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


async def test_a_worker_does_nothing_before_it_has_read_its_settings(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        board = await set_up(client, paused=True)
        ledger_id = await written(client, 120, size=10_000)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        assert await board.post(ledger_id, lost=[lost])
        store = StoreWithoutSettings(cluster.tree)
        process = await start_repair(cluster, store=store)
        await trio.sleep(100)
        assert process.copied == 0, "it was to be paused"
        await set_up(client, paused=False, bytes_per_s=10_000)
        await trio.sleep(100)
        assert process.copied == 0, "it would have copied a burst of the default rate"
        store.has_settings = True
        began = trio.current_time()
        await repaired(client, board, ledger_id, {lost})
        assert process.copied_bytes == 1_200_000
        # Of three pieces, in whatever order, all but the last are waited for by the next.
        assert 60 < trio.current_time() - began < 120


class StoreWithoutSettings(FaultyStore):
    """Cannot read the settings of repair."""

    has_settings = False

    async def get(self, path: str) -> Versioned | None:
        if path == REPAIR_SETTINGS and not self.has_settings:
            raise MetadataUnavailable("no answer")
        return await super().get(path)


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
