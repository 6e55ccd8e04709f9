"""The repair queue: tasks and locks, settings, lost answers, damaged records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import ledgerlog.cluster
from ledgerlog.cli.repair import audit, status_fields
from ledgerlog.errors import MetadataUnavailable
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.repair_tasks import drop_task
from ledgerlog.meta.memory import Content
from ledgerlog.meta.store import Create, Delete
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.layout import (
    COOKIES,
    READ_ONLY_BOOKIES,
    REPAIR_SETTINGS,
    REPAIR_WORKERS,
    draining_path,
    read_only_path,
    repair_task_path,
    writable_path,
)
from ledgerlog.model.repair import RepairTask
from ledgerlog.repair.auditor import Pass, pass_over_now
from ledgerlog.repair.copying import Copying, Pacer
from ledgerlog.repair.ledger import LedgerRepair
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.repair.worker import Worker
from ledgerlog.testing.faulty_store import Call, FaultyStore, GoOn, StaleReplica, answer_lost_behind, before
from ledgerlog.testing.memory_cluster import eventually, open_cluster
from tests.repairing import (
    assert_whole,
    board_has_tasks,
    lock_is_taken,
    names,
    payload,
    quiet,
    repaired,
    set_up,
    start_repair,
    until,
    written,
)


async def test_a_task_that_grows_while_it_is_worked_on_is_not_removed(clock: MockClock) -> None:
    """Rule 22: a task is removed at the version that was read, and only by a worker whose session lives."""
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        worker = await queue.register_worker()
        assert await queue.post(7, lost=["b1"])
        found = await queue.task(7)
        assert found is not None
        assert await queue.post(7, lost=["b2"])
        assert not await queue.remove(7, found[1], worker)
        assert not await queue.post(7, lost=["b1"]), "it names both"
        found = await queue.task(7)
        assert found is not None
        assert found[0].lost == ("b1", "b2")
        assert await queue.remove(7, found[1], worker)
        assert await queue.tasks() == []


async def test_a_task_whose_finding_is_found_again_while_it_is_worked_on_is_not_removed(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        worker = await queue.register_worker()
        await queue.post(7, lost=["b1"], incomplete=["b2"], asks_all=True)
        registry = LedgerRegistry(client.store, client.opened.environment)
        for find_it_again in (
            partial(queue.post, 7, lost=["b1"]),
            partial(registry.file_for_repair, 7, ["b2"]),
            partial(registry.file_for_repair, 7, ()),
        ):
            before = await queue.task(7)
            assert before is not None
            await find_it_again()
            assert not await queue.remove(7, before[1], worker)
            after = await queue.task(7)
            assert after is not None
            assert after[0] == before[0]
        assert await queue.remove(7, after[1], worker)


async def test_a_worker_that_was_cut_off_does_not_remove_a_task_that_was_made_since(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as one, cluster.client() as other:
        mine, queue = RepairQueue(one.opened), RepairQueue(other.opened)
        worker = await mine.register_worker()
        await queue.post(7, lost=["b1"])
        assert await mine.lock(7, worker)
        before = await mine.task(7)
        assert before is not None
        one.store.inner.expire_session()
        # Another worker does the task. Then a new task is made, with the same version as the first.
        second = await queue.register_worker()
        assert await queue.lock(7, second)
        found = await queue.task(7)
        assert found is not None
        assert await queue.remove(7, found[1], second)
        await queue.post(7, lost=["b2"])
        again = await queue.task(7)
        assert again is not None
        assert again[1] == before[1], "versions come back"
        assert not await mine.remove(7, before[1], worker)
        for somebody_else in (worker, await queue.register_worker()):
            await queue.unlock(7, somebody_else)
            assert await queue.locks() == {7: second.token}, "nor does it let go of somebody else's lock"
        assert await queue.tasks() == [7]


async def test_a_removal_whose_answer_was_lost_does_not_remove_a_task_that_was_made_since(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=0) as cluster, cluster.client() as one, cluster.client() as other:
        mine, queue = RepairQueue(one.opened), RepairQueue(other.opened)
        worker = await mine.register_worker()
        await queue.post(7, lost=["b1"])
        before = await mine.task(7)
        assert before is not None

        async def post() -> None:
            await queue.post(7, lost=["b2"])

        one.store.faults.append(answer_lost_behind(repair_task_path(7), post))
        await mine.remove(7, before[1], worker)
        again = await queue.task(7)
        assert again is not None
        assert (again[0].lost, again[1]) == (("b2",), before[1]), "versions come back"


async def test_a_worker_that_was_cut_off_does_not_overwrite_a_task_that_was_made_since(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=0) as cluster, cluster.client() as one, cluster.client() as other:
        mine, queue = RepairQueue(one.opened), RepairQueue(other.opened)
        worker = await mine.register_worker()
        await queue.post(7, lost=["b1"])
        task, version = await mine.task(7) or (None, 0)
        assert task is not None
        version = await mine.note(task, version, task.troubled("a first try"), worker) or 0
        task = task.troubled("a first try")
        one.store.inner.expire_session()
        # Another worker does the task. Then a new task is made, and written once, as the first was.
        await drop_task(other.store, 7)
        await queue.post(7, lost=["b2"])
        await queue.post(7, lost=["b3"])
        again = await queue.task(7)
        assert again is not None
        assert again[1] == version, "versions come back"
        assert await mine.note(task, version, task.troubled("a second try"), worker) is None
        assert await queue.task(7) == again


async def test_a_worker_whose_session_is_over_takes_no_lock_in_the_next_session(clock: MockClock) -> None:
    """Nobody could release such a lock while the process lives."""
    async with open_cluster(bookies=0) as cluster, cluster.client() as client:
        queue = RepairQueue(client.opened)
        worker = await queue.register_worker()
        client.store.inner.expire_session()
        again = await queue.register_worker()
        assert not await queue.lock(7, worker)
        assert await queue.lock(7, again)
        assert not await queue.lock(7, worker)
        await queue.unlock(7, again)
        assert await queue.locks() == {}


async def test_a_worker_that_dies_with_a_lock_is_followed_by_another(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, bytes_per_s=1_000)
        ledger_id = await written(client, 40, size=20_000)
        processes = {name: await start_repair(cluster, name) for name in ("repair-1", "repair-2")}
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await until(lock_is_taken(queue))
        (token,) = (await queue.locks()).values()
        holder = (await queue.workers())[token].name
        await processes.pop(holder).kill()
        assert list(await queue.locks()) == [ledger_id], "the lock outlives it by its session"
        await set_up(client, bytes_per_s=10_000_000)
        await repaired(client, queue, ledger_id, {lost})
        await assert_whole(client, ledger_id, 40)
        assert await queue.locks() == {}


async def test_a_lock_that_could_not_be_let_go_of_is_taken_up_again_by_its_worker(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, bytes_per_s=200_000)
        ledger_id = await written(client, 40, size=20_000)
        process = await start_repair(cluster)
        session = process.store.session
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await until(lock_is_taken(queue))
        process.store.disconnect()
        await trio.sleep(3)
        process.store.reconnect()
        assert process.store.session is session
        assert list(await queue.locks()) == [ledger_id], "its session holds it on"
        with trio.fail_after(120):
            await repaired(client, queue, ledger_id, {lost})
        await assert_whole(client, ledger_id, 40)


async def test_lost_answers_of_the_store_are_settled_by_looking(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, paused=True)
        ledger_id = await written(client, 10)
        process = await start_repair(cluster)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await until(board_has_tasks(queue))
        await set_up(client, paused=False)
        for _ in range(20):
            process.store.lost_answers = 1
            await trio.sleep(0.3)
            process.store.lost_answers, process.store.lost_writes = 0, 1
            await trio.sleep(0.3)
            process.store.lost_writes = 0
        await repaired(client, queue, ledger_id, {lost})
        await assert_whole(client, ledger_id, 10)
        assert await queue.locks() == {}


async def test_a_task_whose_record_is_damaged_holds_up_no_other_and_is_made_anew(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledgers = [await written(client, 5) for _ in range(4)]
        await client.opened.store.create(repair_task_path(ledgers[0]), b"not a task")
        await start_repair(cluster)
        lost = set.intersection(*[await names(client, e) for e in ledgers]).pop()
        await cluster.bookies[lost].kill(session_s=0)
        for ledger_id in ledgers:
            await repaired(client, queue, ledger_id, {lost})
            await assert_whole(client, ledger_id, 5)


async def test_while_it_is_paused_tasks_are_made_and_nothing_is_copied(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, paused=True)
        ledger_id = await written(client, 20)
        process = await start_repair(cluster)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await until(board_has_tasks(queue))
        await trio.sleep(600)
        assert await queue.tasks() == [ledger_id]
        assert process.copied == 0
        await set_up(client, paused=False)
        await repaired(client, queue, ledger_id, {lost})
        await assert_whole(client, ledger_id, 20)


async def test_copies_are_made_at_the_rate_that_was_set_however_many_ledgers_wait(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, bytes_per_s=20_000)
        ledgers = [await written(client, 20, size=1_000) for _ in range(8)]
        process = await start_repair(cluster)
        await quiet(queue)  # A bookie that was not connected yet lacks its first ledger.
        filled = process.copied
        (lost,) = sorted(await names(client, ledgers[0]))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await eventually(lambda: process.copied > filled)
        began, before = trio.current_time(), process.copied_bytes
        await quiet(queue)
        took, copied = trio.current_time() - began, process.copied_bytes - before
        assert copied >= 60_000
        assert copied <= 20_000 * (took + 0.25) + 20_000
        assert took < 2 * copied / 20_000 + 5, "nor much slower"


async def test_workers_share_the_rate_of_the_cluster(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, cluster_bytes_per_s=40_000)
        ledgers = [await written(client, 20, size=1_000) for _ in range(12)]
        processes = [await start_repair(cluster, f"repair-{n}") for n in range(4)]
        await trio.sleep(15)  # Each process has seen the others by now.
        await quiet(queue)  # A bookie that was not connected yet lacks its first ledger.

        def copied() -> int:
            return sum(process.copied_bytes for process in processes)

        filled = copied()
        (lost, *_) = sorted(await names(client, ledgers[0]))
        await cluster.bookies[lost].kill(session_s=0)
        await eventually(lambda: copied() > filled)
        began, before = trio.current_time(), copied()
        await quiet(queue)
        took = trio.current_time() - began
        assert copied() - before >= 100_000
        # Each process may also begin with a burst, and one piece more.
        assert copied() - before <= 40_000 * (took + 0.25) + 4 * 20_000


async def no_settings(call: Call) -> None:
    if call.verb == "get" and call.path == REPAIR_SETTINGS:
        raise MetadataUnavailable("no answer")


async def test_a_worker_does_nothing_before_it_has_read_its_settings(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, paused=True)
        ledger_id = await written(client, 120, size=10_000)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        assert await queue.post(ledger_id, lost=[lost])
        store = FaultyStore(cluster.tree, before(no_settings))
        process = await start_repair(cluster, store=store)
        await trio.sleep(100)
        assert process.copied == 0, "it was to be paused"
        await set_up(client, paused=False, bytes_per_s=10_000)
        await trio.sleep(100)
        assert process.copied == 0, "it would have copied a burst of the default rate"
        store.faults.clear()
        began = trio.current_time()
        await repaired(client, queue, ledger_id, {lost})
        assert process.copied_bytes == 1_200_000
        # There are three pieces in some order. Each piece but the last makes the next one wait.
        assert 60 < trio.current_time() - began < 120


@pytest.mark.parametrize(("verb", "path"), [("get", REPAIR_SETTINGS), ("create", REPAIR_WORKERS)])
async def test_a_worker_whose_session_ends_while_it_begins_leaves_no_other_worker_behind(
    clock: MockClock, verb: str, path: str
) -> None:
    async with open_cluster(bookies=0) as cluster, cluster.client() as client, cluster.client() as other:
        queue = await set_up(other)
        store = client.store

        async def lose_session(call: Call) -> None:
            if call.verb == verb and call.path.startswith(path):
                store.faults.clear()
                store.inner.expire_session()

        store.faults.append(before(lose_session))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Worker(client.opened, name="w").run)
            await trio.sleep(100)
            assert not store.faults
            assert await queue.worker_count() == 1
            nursery.cancel_scope.cancel()
        assert await queue.worker_count() == 0


async def test_a_task_that_is_stuck_names_nobody_who_is_back(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 10)
        await start_repair(cluster)
        for bookie in ("b1", "b2"):
            await cluster.bookies[bookie].kill(session_s=0)

        def stands_for(*lost: str) -> Callable[[], Awaitable[bool]]:
            async def condition() -> bool:
                found = await queue.task(ledger_id)
                return found is not None and found[0].lost == lost and found[0].trouble is not None

            return condition

        await until(stands_for("b1", "b2"))
        await cluster.bookies["b1"].start()
        await until(stands_for("b2"))
        await cluster.bookies["b2"].start()
        await quiet(queue)
        await assert_whole(client, ledger_id, 10)


async def test_a_task_names_who_lacks_entries_that_nobody_has_and_who_is_emptied_since(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 10)
        await queue.drain("b3")
        repair = LedgerRepair(client.opened, queue, Copying(client.opened, Pacer(1_000_000)))
        task = RepairTask(ledger_id=ledger_id, lost=("b1",), damaged=("b2",), incomplete=("b1", "b2"))
        verdict = await repair.run(task, grace_s=0.0, say=lambda _: None)
        # No bookie could take the place of the bookie that is being emptied. The other bookies are back and
        # sound.
        assert verdict.task == RepairTask(ledger_id=ledger_id, lost=("b3",), trouble=verdict.trouble)
        assert "NotEnoughBookies" in (verdict.trouble or "")


async def test_a_task_about_all_bookies_stays_so_if_the_store_goes_away_before_they_were_asked(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client, cluster.client() as other:
        queue = await set_up(other)
        ledger_id = await written(other, 10)
        drained = sorted(await names(other, ledger_id))[0]
        await queue.drain(drained)
        spare, *_ = cluster.spares(sorted(await names(other, ledger_id)))

        async def away(call: Call) -> None:
            if call.path == writable_path(spare.bookie_id):
                client.store.disconnect()

        client.store.faults.append(before(away))
        mine = RepairQueue(client.opened)
        repair = LedgerRepair(client.opened, mine, Copying(client.opened, Pacer(1_000_000)))
        verdict = await repair.run(RepairTask(ledger_id=ledger_id), grace_s=0.0, say=lambda _: None)
        assert "Metadata" in (verdict.trouble or "")
        assert verdict.task == RepairTask(
            ledger_id=ledger_id, lost=(drained,), asks_all=True, trouble=verdict.trouble
        )


async def test_a_task_names_nobody_whose_place_was_given_away(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 10, size=100)
        damaged, lost, _ = (await client.ledgers.metadata(ledger_id)).last_fragment.ensemble
        bookie = cluster.bookies[damaged]
        await bookie.stop()
        assert bookie.flip_byte(payload(4)) > 0
        await bookie.start()
        await cluster.bookies[lost].kill(session_s=0)
        await trio.sleep(1)
        repair = LedgerRepair(client.opened, queue, Copying(client.opened, Pacer(1_000_000)))
        task = RepairTask(ledger_id=ledger_id, lost=(lost,), damaged=(damaged,), incomplete=(damaged,))
        verdict = await repair.run(task, grace_s=0.0, say=lambda _: None)
        # One bookie was available for two places.
        assert "NotEnoughBookies" in (verdict.trouble or "")
        assert verdict.task == RepairTask(ledger_id=ledger_id, lost=(lost,), trouble=verdict.trouble)


async def test_what_status_says_is_lost_is_not_there_now(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, paused=True)
        ledger_id = await written(client, 10)
        await start_repair(cluster)
        away, gone, _ = sorted(await names(client, ledger_id))
        for bookie in (away, gone):
            await cluster.bookies[bookie].kill(session_s=0)

        async def lost() -> list[str]:
            status = await status_fields(ledgerlog.cluster.Cluster("memory:", client.opened))
            return [bookie for task in status["tasks"] for bookie in task["lost"]]

        async def both_are_lost() -> bool:
            return await lost() == [away, gone]

        await until(both_are_lost)
        await cluster.bookies[away].start()
        assert await lost() == [gone], "workers are paused, and nobody has looked at the task since"
        await queue.drain(away)
        assert await lost() == [away, gone]


async def test_tries_that_fail_are_few_however_many_tasks_wait(clock: MockClock) -> None:
    """With one of three bookies gone, no ledger can be repaired, and the metadata store must serve writers
    too.
    """
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledgers = [await written(client, 1) for _ in range(60)]
        tries = 0

        async def count(path: str) -> None:
            nonlocal tries
            tries += path in tasks

        store = FaultyStore(cluster.tree)
        tasks = {repair_task_path(ledger_id) for ledger_id in ledgers}
        await start_repair(cluster, store=store)
        await cluster.bookies["b1"].kill(session_s=0)

        async def all_have_a_reason() -> bool:
            found = [await queue.task(ledger_id) for ledger_id in ledgers]
            return all(task is not None and task[0].trouble is not None for task in found)

        await until(all_have_a_reason)
        store.before_get = count
        for _ in range(30):
            # After each change all tasks are worth another try.
            await set_up(client, grace_ms=2_000 + tries)
            await trio.sleep(1)
        assert 100 <= tries <= 10 * 30 + 10 + 2
        store.before_get = None
        await cluster.add_bookie()
        began = trio.current_time()
        await quiet(queue)
        assert trio.current_time() - began < 10, "what succeeds does not wait for it"


async def test_a_shorter_grace_holds_for_who_waits_already(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, grace_ms=10**9)
        ledger_id = await written(client, 10, close=False)
        await start_repair(cluster)
        (lost, *_) = await names(client, ledger_id)
        await cluster.bookies[lost].kill(session_s=0)

        async def waits() -> bool:
            found = await queue.task(ledger_id)
            return found is not None and found[0].trouble == f"its writer may still replace {lost}"

        await until(waits)
        await set_up(client, grace_ms=1_000)
        with trio.fail_after(60):
            await repaired(client, queue, ledger_id, {lost})


async def test_status_an_audit_and_the_auditor_find_the_same_ledgers(clock: MockClock) -> None:
    """Two of five bookies die while no auto-recovery runs."""
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        queue = await set_up(client, paused=True)
        ledgers = [await written(client, count) for count in (0, 1, 10, 3, 7, 2)]
        dead = ("b2", "b4")
        for bookie in dead:
            await cluster.bookies[bookie].kill(session_s=0)
        hit = {ledger_id for ledger_id in ledgers if set(dead) & set(await names(client, ledger_id))}
        assert hit
        handle = ledgerlog.cluster.Cluster("memory:", client.opened)

        async def said() -> tuple[int, int]:
            status = await status_fields(handle)
            assert status["is_complete"]
            return status["under_replicated"], status["waiting"]

        assert await said() == (len(hit), 0)
        found = await audit(handle, entries="none", per_s=100, make_tasks=False)
        assert {fields["ledger"] for fields in found} == hit
        await start_repair(cluster)

        async def all_have_tasks() -> bool:
            return set(await queue.tasks()) == hit

        await until(all_have_tasks)
        assert await said() == (len(hit), len(hit))
        # A bookie that is back no longer counts as missing, although its tasks are still there: workers are
        # paused.
        for bookie in dead:
            await cluster.bookies[bookie].start()
        assert await said() == (0, len(hit))


async def test_an_audit_says_of_a_bookie_that_comes_back_during_it_no_untruth(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        ledger_id = await written(client, 3)
        bookie = min(await names(client, ledger_id))
        await cluster.bookies[bookie].kill(session_s=0)

        async def pass_slowly(*args: Any, **options: Any) -> Pass:
            found = await pass_over_now(*args, **options)
            await cluster.bookies[bookie].start()
            return found

        monkeypatch.setattr("ledgerlog.cli.repair.pass_over_now", pass_slowly)
        handle = ledgerlog.cluster.Cluster("memory:", client.opened)
        assert await audit(handle, entries="none", per_s=100, make_tasks=False) == []


async def test_a_bookie_that_registers_during_a_pass_is_not_missed_by_it(clock: MockClock) -> None:
    class QueueBefore(RepairQueue):
        """A queue whose first look finds b1 not registered yet."""

        looks = 0

        async def registered(self) -> dict[str, BookieInfo]:
            found = await super().registered()
            self.looks += 1
            return {bookie: info for bookie, info in found.items() if self.looks > 1 or bookie != "b1"}

    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        await set_up(client, paused=True)
        ledger_id = await written(client, 1)
        assert "b1" in await names(client, ledger_id)
        queue = QueueBefore(client.opened)
        assert (await pass_over_now(client.opened, queue)).affected == {}
        assert queue.looks == 2


async def test_a_bookie_that_moves_between_the_lists_is_registered_all_the_time(clock: MockClock) -> None:
    async with open_cluster(bookies=0) as cluster, cluster.client() as client:
        queue, other = RepairQueue(client.opened), cluster.tree.open_store()
        value = BookieInfo("x", "host:1", "").encode()

        async def moves(call: Call, go_on: GoOn) -> Any:
            found = await go_on()
            if call.path.startswith(READ_ONLY_BOOKIES):
                client.store.faults.clear()
                await other.transaction([Delete(writable_path("x")), Create(read_only_path("x"), value)])
            return found

        for ask in (queue.registered, lambda: queue.is_registered("x")):
            await other.create(writable_path("x"), value)
            client.store.faults.append(moves)
            assert await ask()
            assert not client.store.faults
            await other.delete(read_only_path("x"))


async def test_a_bookie_that_has_just_registered_is_seen_on_every_replica(clock: MockClock) -> None:
    async with open_cluster(bookies=0) as cluster, cluster.client() as client:
        await cluster.tree.open_store().create(writable_path("x"), BookieInfo("x", "host:1", "").encode())
        client.store.faults.append(StaleReplica(Content()))
        assert set(await RepairQueue(client.opened).registered()) == {"x"}


async def test_a_lock_that_another_worker_took_between_two_steps_stays(clock: MockClock) -> None:
    """The session of the first worker ends after it has seen that it has the lock. The new lock has the
    version of the old one."""
    async with open_cluster(bookies=0) as cluster, cluster.client() as one, cluster.client() as other:
        mine, queue = RepairQueue(one.opened), RepairQueue(other.opened)
        worker, second = await mine.register_worker(), await queue.register_worker()
        assert await mine.lock(7, worker)

        async def taken(call: Call) -> None:
            if any(isinstance(each, Delete) for each in call.operations):
                one.store.faults.clear()
                one.store.inner.expire_session()
                assert await queue.lock(7, second)

        one.store.faults.append(before(taken))
        await mine.unlock(7, worker)
        assert not one.store.faults
        assert await queue.locks() == {7: second.token}
        await queue.unlock(7, second)
        assert await queue.locks() == {}


async def test_a_request_that_was_made_between_two_steps_of_tidying_stays(clock: MockClock) -> None:
    async with open_cluster(bookies=1) as cluster, cluster.client() as client, cluster.client() as other:
        queue, rival = RepairQueue(client.opened), RepairQueue(other.opened)
        first = await queue.drain("b1")
        later = attrs.evolve(first, instance="later")
        stored = await other.store.get(draining_path("b1"))
        assert stored is not None
        await other.store.set(
            draining_path("b1"), attrs.evolve(first, instance="earlier").encode(), version=stored.version
        )

        async def asked_again(call: Call) -> None:
            if any(isinstance(each, Delete) for each in call.operations):
                client.store.faults.clear()
                stored = await other.store.get(draining_path("b1"))
                assert stored is not None
                await other.store.set(draining_path("b1"), later.encode(), version=stored.version)

        client.store.faults.append(before(asked_again))
        await queue.tidy(())
        assert not client.store.faults
        node = await other.store.get(draining_path("b1"))
        assert node is not None
        assert node.value == later.encode()
        await rival.keep("b1")


async def test_a_bookie_that_goes_while_the_auditor_looks_is_noticed_at_once(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, lost_after_ms=3_600_000, entry_check_ms=0)
        process = await start_repair(cluster)
        await eventually(lambda: process.leads)
        await trio.sleep(5)

        async def goes(call: Call) -> None:
            if (call.verb, call.path) == ("children", COOKIES):
                process.store.faults.clear()
                await cluster.bookies["b1"].kill(session_s=0)
                await trio.sleep(1)

        process.store.faults.append(before(goes))
        await set_up(client, lost_after_ms=3_600_001, entry_check_ms=0)  # The auditor looks again.
        await trio.sleep(5)
        assert not process.store.faults
        record = await queue.audit_record()
        assert record is not None
        assert "b1" in record.absent
