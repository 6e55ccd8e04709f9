"""Bookies that are taken out of service: under load, all at once, and down to the last one."""

from __future__ import annotations

from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock

from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.errors import CookieMismatch, InvalidArgument
from ledgerlog.ledger.core.writer import MetadataIntent
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.model.layout import draining_path, ledger_path, read_only_path, writable_path
from ledgerlog.model.ledger import Fragment, LedgerMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.repair.core.audit import named_bookies
from ledgerlog.repair.decommission import Emptying, decommission
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.testing.faulty_store import FaultyStore, NotedWrites
from ledgerlog.testing.memory_cluster import eventually, open_cluster
from tests.repairing import (
    R332,
    assert_whole,
    names,
    payload,
    repaired,
    set_up,
    start_repair,
    until,
    written,
)


async def test_a_bookie_is_emptied_under_load_without_disturbing_a_writer(clock: MockClock) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        queue = await set_up(client)
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
        assert await queue.cookie(leaving) is None
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
        # The bookie runs on and stays read-only until it is stopped. Then nothing is left of the request.
        assert cluster.bookies[leaving].node.is_read_only
        assert list(await queue.draining()) == [leaving]
        await cluster.bookies[leaving].stop()
        await set_up(client, bookie_check_ms=1_000)

        async def is_tidy() -> bool:
            return await queue.draining() == {}

        await until(is_tidy)


async def test_a_bookie_that_alone_has_something_is_emptied_too(clock: MockClock) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        queue = await set_up(client)
        await start_repair(cluster)
        alone = await written(client, 20, Replication(1, 1, 1))
        two = await written(client, 20, Replication(2, 2, 1))
        (leaving,) = await names(client, alone)
        other = sorted(await names(client, two) - {leaving})[0]
        await cluster.bookies[other].kill(session_s=0)
        with trio.fail_after(600):
            await decommission(client.opened, leaving, say=lambda _: None)
        for ledger_id in (alone, two):
            await repaired(client, queue, ledger_id, {leaving, other})
            await assert_whole(client, ledger_id, 20)


async def test_two_bookies_are_emptied_at_once(clock: MockClock) -> None:
    async with open_cluster(bookies=6) as cluster, cluster.client() as client:
        queue = await set_up(client)
        await start_repair(cluster)
        ledgers = [await written(client, 20) for _ in range(6)]
        writer = await client.ledgers.create(replication=R332)
        await writer.append(payload(0))
        leaving = {"b1", "b2"}
        with trio.fail_after(600):
            async with trio.open_nursery() as nursery:
                for bookie in sorted(leaving):
                    nursery.start_soon(partial(decommission, client.opened, bookie, say=lambda _: None))
        assert await writer.append(payload(1)) == 1
        await writer.close()
        for ledger_id, entries in (*((e, 20) for e in ledgers), (writer.ledger_id, 2)):
            assert not leaving & await names(client, ledger_id)
            await assert_whole(client, ledger_id, entries)
        assert not leaving & set(await queue.known())


async def test_emptying_the_last_spare_waits_for_another_and_may_be_interrupted(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        await start_repair(cluster)
        closed = await written(client, 20)
        writer = await client.ledgers.create(replication=R332)
        await writer.append(payload(0))
        looks: list[Emptying] = []
        with trio.move_on_after(100):
            await decommission(client.opened, "b1", say=looks.append)
        assert looks[-1].ledgers_left == 2
        assert all("NotEnoughBookies" in looks[-1].troubles[e] for e in (closed, writer.ledger_id))
        assert await writer.append(payload(1)) == 1, "nobody stops a writer for it"
        assert await queue.cookie("b1") is not None
        await cluster.add_bookie()
        with trio.fail_after(600):
            await decommission(client.opened, "b1", say=looks.append)
        assert await writer.append(payload(2)) == 2
        await writer.close()
        for ledger_id, entries in ((closed, 20), (writer.ledger_id, 3)):
            assert "b1" not in await names(client, ledger_id)
            await assert_whole(client, ledger_id, entries)
        with pytest.raises(InvalidArgument, match="was decommissioned"):
            await decommission(client.opened, "b1", say=looks.append)


async def test_a_new_bookie_that_is_to_be_emptied_meanwhile_is_not_named(clock: MockClock) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        await set_up(client, bytes_per_s=20_000)
        ledger_id = await written(client, 100, size=10_000)
        noted = NotedWrites(ledger_path(ledger_id))
        process = await start_repair(cluster, store=FaultyStore(cluster.tree, noted))
        named = await names(client, ledger_id)
        (lost, *_) = sorted(named)
        await cluster.bookies[lost].kill(session_s=0)
        await eventually(lambda: process.copied > 0)
        (target,) = [
            spare.bookie_id
            for spare in cluster.spares(sorted(named))
            if spare.node.engine.last_durable(ledger_id) >= 0
        ]
        with trio.fail_after(600):
            await decommission(client.opened, target, say=lambda _: None)
        queue = await set_up(client, bytes_per_s=10_000_000)
        await repaired(client, queue, ledger_id, {lost, target})
        for value in noted.values:
            assert target not in named_bookies(LedgerMetadata.decode_untrusted(value, ledger_id))


async def test_an_emptied_bookie_may_be_kept_after_all(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, paused=True)
        await start_repair(cluster)
        await written(client, 5)
        await queue.drain("b1")
        await eventually(lambda: cluster.bookies["b1"].node.is_read_only)
        assert await queue.keep("b1")
        await eventually(lambda: not cluster.bookies["b1"].node.is_read_only)
        assert not await queue.keep("b1")


async def test_a_bookie_that_is_decommissioned_already_cannot_be_kept(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client)
        await decommission(client.opened, "b1", say=lambda _: None)
        with pytest.raises(InvalidArgument, match="decommissioned already; stop its process"):
            await queue.keep("b1")
        assert list(await queue.draining()) == ["b1"]
        await trio.sleep(10)
        assert cluster.bookies["b1"].node.is_read_only
        with pytest.raises(InvalidArgument, match="no bookie b9"):
            await queue.keep("b9")


async def test_a_bookie_that_was_decommissioned_while_it_was_cut_off_stays_read_only(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue, bookie = await set_up(client), cluster.bookies["b1"]
        await queue.drain("b1")
        await eventually(lambda: bookie.node.is_read_only)
        bookie.store.disconnect()
        bookie.store.inner.expire_session()
        await decommission(client.opened, "b1", say=lambda _: None)
        assert await queue.draining() == {}, "it counts as stopped"
        bookie.store.reconnect()
        await until(partial(queue.is_registered, "b1"))
        await trio.sleep(60)
        assert bookie.node.is_read_only
        assert not await queue.is_writable("b1")


async def test_a_bookie_is_kept_or_loses_its_cookie_but_never_both(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client, cluster.client() as other:
        queue, rival = await set_up(client), await set_up(other)
        request = await queue.drain("b1")

        async def keep() -> None:
            assert await rival.keep("b1")

        client.store.before_write = keep
        with pytest.raises(InvalidArgument, match="b1 will be kept"):
            await queue.forget_cookie(request)
        assert await queue.cookie("b1") is not None
        request = await queue.drain("b1")
        client.store.before_write = partial(rival.forget_cookie, request)
        with pytest.raises(InvalidArgument, match="decommissioned already"):
            await queue.keep("b1")
        assert list(await queue.draining()) == ["b1"]


@pytest.mark.parametrize("is_formatted_anew", [False, True])
async def test_a_bookie_that_another_process_has_decommissioned_meanwhile_is_not_said_to_be_kept(
    clock: MockClock, is_formatted_anew: bool
) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client, cluster.client() as other:
        bookie = cluster.bookies["b1"]
        await bookie.stop()

        async def end() -> None:
            await decommission(other.opened, "b1", say=lambda _: None)
            if is_formatted_anew:
                bookie.disk, bookie.indexes = MemoryDisk(), MemoryIndexes()
                await bookie.start()
            ended.set()

        ended = trio.Event()
        cluster.nursery.start_soon(end)
        await trio.sleep(1)
        with trio.fail_after(600):
            done = await decommission(client.opened, "b1", say=lambda _: None)
        await ended.wait()
        assert await RepairQueue(client.opened).is_forgotten(done)


async def test_who_starts_while_it_is_to_be_emptied_is_never_registered_as_writable(clock: MockClock) -> None:
    async with open_cluster(bookies=1) as cluster, cluster.client() as client:
        queue, bookie = await set_up(client), cluster.bookies["b1"]
        await queue.drain("b1")
        await bookie.stop()
        store = client.opened.store
        async with store.watch(writable_path("b1")) as watch:
            await bookie.start()
            assert bookie.node.is_read_only
            assert await store.get(read_only_path("b1")) is not None
            with trio.move_on_after(60) as patience:
                await watch.wait()
            assert patience.cancelled_caught


async def test_a_damaged_request_to_empty_a_bookie_does_not_keep_it_from_starting(clock: MockClock) -> None:
    async with open_cluster(bookies=1) as cluster, cluster.client() as client:
        bookie = cluster.bookies["b1"]
        await bookie.stop()
        await client.opened.store.create(draining_path("b1"), b"damaged")
        await bookie.start()
        assert not bookie.node.is_read_only


async def test_a_bookie_formatted_anew_under_the_id_of_an_emptied_one_is_another(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client)
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
        assert await queue.draining() == {}


async def test_a_ledger_that_a_writer_made_during_the_first_look_is_seen_by_the_second(
    clock: MockClock,
) -> None:
    """Nobody runs auto-recovery here, so the ledger names the bookie for ever."""
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        looks = 0

        async def made() -> None:
            await LedgerRegistry(client.opened.store, client.opened.environment).create(
                R332, ("b1", "b2", "b3"), {}
            )

        def say(emptying: Emptying) -> None:
            nonlocal looks
            looks += 1
            if emptying.ledgers_left == 0 and looks == 1:
                cluster.nursery.start_soon(made)

        await cluster.bookies["b1"].stop()
        with trio.move_on_after(60) as scope:
            await decommission(client.opened, "b1", say=say)
        assert scope.cancelled_caught
        assert looks > 2
        assert await RepairQueue(client.opened).cookie("b1") is not None


async def test_a_recovery_that_is_under_way_is_waited_for_before_the_second_look(clock: MockClock) -> None:
    """Its recoverer has replaced a bookie by b1. The metadata name b1 only once the ledger is closed."""
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        registry = LedgerRegistry(client.opened.store, client.opened.environment)
        metadata, version = await registry.create(R332, ("b2", "b3", "b4"), {})
        metadata = metadata.in_recovery(b"recoverer")
        _, version = await registry.attempt(MetadataIntent(metadata, version))

        async def close() -> None:
            await trio.sleep(10)
            closed = metadata.closed(-1, b"closed", (Fragment(0, ("b1", "b3", "b4")),))
            await registry.attempt(MetadataIntent(closed, version))

        cluster.nursery.start_soon(close)
        await cluster.bookies["b1"].stop()
        with trio.move_on_after(120) as scope:
            await decommission(client.opened, "b1", say=lambda _: None)
        assert scope.cancelled_caught
        assert await RepairQueue(client.opened).cookie("b1") is not None


async def test_the_cookie_of_a_bookie_that_was_formatted_anew_stays(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = RepairQueue(client.opened)
        request = await queue.drain("b1")
        await queue.forget_cookie(attrs.evolve(request, instance="another"))
        assert await queue.cookie("b1") is not None
        await queue.forget_cookie(request)
        assert await queue.cookie("b1") is None


async def test_a_ledger_whose_metadata_is_damaged_is_said_to_hold_the_emptying_up(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        await set_up(client, bookie_check_ms=5_000)
        await start_repair(cluster)
        store = client.opened.store
        ledger_id = await written(client, 5)
        node = await store.get(ledger_path(ledger_id))
        assert node is not None
        version = await store.set(ledger_path(ledger_id), b"damaged", version=node.version)
        looks: list[Emptying] = []
        with trio.move_on_after(60):
            await decommission(client.opened, "b1", say=looks.append)
        assert looks[-1].ledgers_left == 1
        assert "it may name the bookie: metadata of ledger" in looks[-1].troubles[ledger_id]
        await store.set(ledger_path(ledger_id), node.value, version=version)
        with trio.fail_after(600):
            await decommission(client.opened, "b1", say=looks.append)
        assert looks[-1].ledgers_left == 0
