"""Damaged records of auto-recovery in the metadata store are reported with their paths, and stop nothing
else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

import ledgerlog.cluster
from ledgerlog.cli.repair import status_fields
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.layout import (
    REPAIR_AUDIT,
    REPAIR_LOCKS,
    REPAIR_SETTINGS,
    cookie_path,
    draining_path,
    repair_progress_path,
    repair_task_path,
    repair_worker_path,
)
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.repair.decommission import decommission
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.testing.memory_cluster import Client, eventually, open_cluster
from tests.repairing import (
    assert_whole,
    board_has_tasks,
    names,
    quiet,
    repaired,
    set_up,
    start_repair,
    until,
    written,
)


async def overwrite(store: MetadataStore, path: str, value: bytes = b"damaged") -> None:
    node = await store.get(path)
    if node is None:
        await store.create(path, value)
    else:
        await store.set(path, value, version=node.version)


async def status(client: Client) -> dict[str, object]:
    return await status_fields(ledgerlog.cluster.Cluster("memory:", client.opened))


def settings_are_noted(queue: RepairQueue) -> Callable[[], Awaitable[bool]]:
    async def condition() -> bool:
        record = await queue.audit_record()
        return record is not None and record.settings == await queue.settings()

    return condition


async def test_damaged_settings_are_told_and_the_last_ones_hold(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        queue = await set_up(client, bytes_per_s=10_000)
        ledger_id = await written(client, 120, size=10_000)
        process = await start_repair(cluster)
        await until(settings_are_noted(queue))
        await overwrite(client.opened.store, REPAIR_SETTINGS)
        (lost, other, *_) = sorted(await names(client, ledger_id))
        began = trio.current_time()
        await cluster.bookies[lost].kill(session_s=0)
        await repaired(client, queue, ledger_id, {lost})
        assert process.copied_bytes == 1_200_000
        assert trio.current_time() - began > 60, "at the rate that was set"
        for who in ("worker=repair-1", "auditor=repair-1"):
            told = [r for r in caplog.records if r.levelname == "ERROR" and r.getMessage().startswith(who)]
            assert len(told) == 1
            assert REPAIR_SETTINGS in told[0].getMessage()
        # A process that starts now uses the settings that the auditor recorded.
        await process.kill(session_s=0)
        fresh = await start_repair(cluster, "repair-2")
        began = trio.current_time()
        await cluster.bookies[other].kill(session_s=0)
        await repaired(client, queue, ledger_id, {lost, other})
        assert fresh.copied_bytes == 1_200_000
        assert trio.current_time() - began > 60
        await assert_whole(client, ledger_id, 120)


async def test_a_pause_outlives_its_record_and_who_has_read_it(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, paused=True)
        ledger_id = await written(client, 20)
        process = await start_repair(cluster)
        await until(settings_are_noted(queue))
        await overwrite(client.opened.store, REPAIR_SETTINGS)
        (lost, *_) = await names(client, ledger_id)
        await cluster.bookies[lost].kill(session_s=0)
        await until(board_has_tasks(queue))
        await trio.sleep(100)
        await process.kill(session_s=0)
        fresh = await start_repair(cluster, "repair-2")
        await trio.sleep(100)
        assert (process.copied, fresh.copied) == (0, 0)
        said = await status(client)
        assert said["paused"] is True
        (damage,) = said["damaged"]
        assert damage["path"] == REPAIR_SETTINGS
        assert "repair settings --reset" in damage["why"]
        with pytest.raises(MetadataCorrupt, match=REPAIR_SETTINGS):
            await queue.change_settings(lambda now: now)
        await queue.change_settings(lambda now: now, reset=True)
        await repaired(client, queue, ledger_id, {lost})
        await assert_whole(client, ledger_id, 20)
        assert (await status(client))["damaged"] == []


async def test_settings_that_nobody_has_ever_read_may_be_a_pause(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = RepairQueue(client.opened)
        ledger_id = await written(client, 20)
        for path in (REPAIR_SETTINGS, REPAIR_AUDIT):
            await overwrite(client.opened.store, path)
        process = await start_repair(cluster)
        (lost, *_) = await names(client, ledger_id)
        await cluster.bookies[lost].kill(session_s=0)
        await until(board_has_tasks(queue))
        assert process.leads, "tasks are made, and its own record is made anew"
        await trio.sleep(600)
        assert process.copied == 0
        assert await queue.tasks() == [ledger_id]
        await queue.change_settings(lambda now: now, reset=True)
        await repaired(client, queue, ledger_id, {lost})


@pytest.mark.parametrize("what", ["request", "cookie"])
async def test_a_bookie_of_which_nobody_can_tell_whether_it_is_to_be_emptied_is_left_alone(
    clock: MockClock, what: str
) -> None:
    async with open_cluster(bookies=6) as cluster, cluster.client() as client:
        queue = await set_up(client, bookie_check_ms=5_000)
        ledger_id = await written(client, 20)
        named = sorted(await names(client, ledger_id))
        spares = [bookie.bookie_id for bookie in cluster.spares(named)]
        store = client.opened.store
        for bookie in (named[1], *spares[:2]):
            await queue.drain(bookie)
            await overwrite(store, draining_path(bookie) if what == "request" else cookie_path(bookie))
        await overwrite(store, draining_path("not a bookie"))
        process = await start_repair(cluster)
        await cluster.bookies[named[0]].kill(session_s=0)
        await repaired(client, queue, ledger_id, {named[0]})
        assert await names(client, ledger_id) == {*named[1:], spares[2]}
        await assert_whole(client, ledger_id, 20)
        await trio.sleep(60)
        assert process.leads
        said = await status(client)
        assert {damage["path"] for damage in said["damaged"]} == {
            draining_path(bookie) for bookie in (named[1], *spares[:2])
        }, "what was about nobody is tidied away"
        assert said["draining"] == []
        if what == "request":
            with trio.fail_after(600):
                await decommission(client.opened, spares[0], say=lambda _: None)
            assert await queue.cookie(spares[0]) is None
            assert await queue.keep(spares[1])
            assert draining_path(spares[1]) not in str((await status(client))["damaged"])


async def test_a_request_that_is_damaged_while_its_bookie_is_emptied_is_told_to_who_asked(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        await set_up(client, paused=True)
        await written(client, 5)
        looks = []

        async def ask() -> None:
            with pytest.raises(MetadataCorrupt, match="whether an operator wants bookie b1 emptied"):
                await decommission(client.opened, "b1", say=looks.append)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await eventually(lambda: bool(looks))
            await overwrite(client.opened.store, draining_path("b1"))


async def test_what_workers_left_damaged_keeps_nobody_from_seeing_the_rest(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        await set_up(client)
        await start_repair(cluster)

        async def is_seen() -> bool:
            return [worker["name"] for worker in (await status(client))["workers"]] == ["repair-1"]

        await until(is_seen)
        store = client.opened.store
        await overwrite(store, repair_worker_path("aa"))
        await overwrite(store, repair_progress_path("aa"))
        await overwrite(store, f"{REPAIR_LOCKS}/no-number")
        assert await is_seen()


async def test_a_damaged_task_is_made_anew_by_who_is_to_work_on_it(clock: MockClock) -> None:
    """Only the worker does this: the auditor makes one task for each loss that it finds, never a second."""
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 5)
        process = await start_repair(cluster)
        await overwrite(client.opened.store, repair_task_path(ledger_id))
        await quiet(queue)
        assert (process.service.worker.repaired, process.copied) == (1, 0), "it lacked nothing"
        await set_up(client, lost_after_ms=10**9)
        (lost, *_) = await names(client, ledger_id)
        await cluster.bookies[lost].kill(session_s=0)
        await trio.sleep(1)
        await overwrite(client.opened.store, repair_task_path(ledger_id))
        await repaired(client, queue, ledger_id, {lost})
        await assert_whole(client, ledger_id, 5)
