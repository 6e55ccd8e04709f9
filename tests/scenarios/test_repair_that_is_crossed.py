"""Events that cross a repair: second losses, new bookies that fail, deletion, and entries that cannot be
repaired now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledgerlog.errors import PermissionDenied
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.meta.grants import change_grants
from ledgerlog.model.access import Grant, Role
from ledgerlog.model.layout import ledger_path
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.missing import shares
from ledgerlog.model.principal import Principal
from ledgerlog.model.quorum import Replication
from ledgerlog.repair.copying import Copying, Pacer, Target
from ledgerlog.repair.core.audit import named_bookies
from ledgerlog.repair.core.repair import FragmentRepair, RepairFailed
from ledgerlog.testing.faulty_store import FaultyStore, NotedWrites
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, eventually, open_cluster
from tests.repairing import (
    R332,
    assert_whole,
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


async def test_a_ledger_that_is_deleted_during_its_repair_is_let_go(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client, bytes_per_s=1_000)
        ledger_id = await written(client, 60, size=20_000)
        await start_repair(cluster)
        (lost,) = sorted(await names(client, ledger_id))[:1]
        await cluster.bookies[lost].kill(session_s=0)
        await until(lock_is_taken(queue))
        await client.ledgers.delete(ledger_id)
        await set_up(client, bytes_per_s=10_000_000)

        async def is_let_go() -> bool:
            return not await queue.locks()

        await until(is_let_go)
        assert await queue.tasks() == []


async def test_a_second_bookie_is_lost_during_the_repair(clock: MockClock) -> None:
    async with open_cluster(bookies=6) as cluster, cluster.client() as client:
        queue = await set_up(client, bytes_per_s=20_000)
        ledgers = [await written(client, 20, size=10_000) for _ in range(4)]
        await start_repair(cluster)
        first, second = sorted(await names(client, ledgers[0]))[:2]
        await cluster.bookies[first].kill(session_s=0)
        await until(lock_is_taken(queue))
        await cluster.bookies[second].kill()
        await set_up(client, bytes_per_s=10_000_000)
        for ledger_id in ledgers:
            await repaired(client, queue, ledger_id, {first, second})
            await assert_whole(client, ledger_id, 20)


async def test_the_bookie_that_copies_go_to_is_lost(clock: MockClock) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        queue = await set_up(client, bytes_per_s=20_000)
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
        await repaired(client, queue, ledger_id, {lost, stored[0]})
        await assert_whole(client, ledger_id, 200)


async def lose_two_until_one_spare_has_all(
    cluster: MemoryCluster, client: Client, ledger_id: int, noted: NotedWrites
) -> tuple[set[str], str]:
    """Kill two bookies of a ledger with forty entries, next to a worker whose writes are noted.

    Wait until one of their replacements has received every copy, and the other has not. Return the lost
    bookies, and that replacement.
    """
    await start_repair(cluster, store=FaultyStore(cluster.tree, noted))
    named = await names(client, ledger_id)
    spares = [bookie.bookie_id for bookie in cluster.spares(sorted(named))]
    lost = set(sorted(named)[:2])
    for bookie in sorted(lost):
        await cluster.bookies[bookie].kill(session_s=0)

    def given() -> list[str]:
        return [b for b in spares if cluster.bookies[b].node.engine.last_durable(ledger_id) == 39]

    await eventually(lambda: bool(given()))
    (first,) = given()
    return lost, first


async def test_a_new_bookie_that_is_lost_before_it_is_named_is_not_named(clock: MockClock) -> None:
    """The new bookie has every copy, and dies while another new bookie still receives its own."""
    async with open_cluster(bookies=7) as cluster, cluster.client() as client:
        queue = await set_up(client, bytes_per_s=20_000)
        ledger_id = await written(client, 40, size=10_000)
        noted = NotedWrites(ledger_path(ledger_id))
        lost, dead = await lose_two_until_one_spare_has_all(cluster, client, ledger_id, noted)
        await cluster.bookies[dead].kill(session_s=60)  # The store does not notice the death for long.
        await repaired(client, queue, ledger_id, {*lost, dead})
        await assert_whole(client, ledger_id, 40)
        assert noted.values
        for value in noted.values:
            assert dead not in named_bookies(LedgerMetadata.decode_untrusted(value, ledger_id))


async def test_a_new_bookie_whose_registration_goes_before_it_is_named_is_not_named(clock: MockClock) -> None:
    """The new bookie serves on, and nobody would miss it: the auditor asked earlier which ledgers name it."""
    async with open_cluster(bookies=7) as cluster, cluster.client() as client:
        queue = await set_up(client, bytes_per_s=20_000)
        ledger_id = await written(client, 40, size=10_000)
        noted = NotedWrites(ledger_path(ledger_id))
        lost, cut_off = await lose_two_until_one_spare_has_all(cluster, client, ledger_id, noted)
        cluster.bookies[cut_off].store.disconnect()
        cluster.bookies[cut_off].store.inner.expire_session()
        await repaired(client, queue, ledger_id, lost)
        assert noted.values
        for value in noted.values:
            assert cut_off not in named_bookies(LedgerMetadata.decode_untrusted(value, ledger_id))


async def test_a_new_bookie_that_refuses_one_copy_is_not_named(clock: MockClock) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        queue = await set_up(client, bytes_per_s=10_000_000)
        ledger_id = await written(client, 300, size=10_000)
        metadata = await client.ledgers.metadata(ledger_id)
        refusing, other = (b.bookie_id for b in cluster.spares(metadata.last_fragment.ensemble))
        # The bookie has another payload for one entry id, and refuses that entry (rule 6).
        copying = Copying(client.opened, Pacer(10_000_000))
        target = Target(client.opened, metadata, refusing)
        await copying.store(target, {150: b"something else"}, metadata.last_entry or 0)
        target.close()
        core = FragmentRepair(metadata, 0, 0, {metadata.last_fragment.ensemble[0]: refusing}, new_token=bytes)
        with pytest.raises(RepairFailed, match=refusing):
            await copying.repair_fragment(core)
        assert await client.ledgers.metadata(ledger_id) == metadata
        (lost, *_) = metadata.last_fragment.ensemble
        await cluster.bookies[lost].kill(session_s=0)
        await start_repair(cluster)
        await repaired(client, queue, ledger_id, {lost})
        await assert_whole(client, ledger_id, 300)
        assert await names(client, ledger_id) == {*metadata.last_fragment.ensemble[1:], other}


async def test_too_few_bookies_leave_a_task_with_its_reason_until_one_comes(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 10)
        await start_repair(cluster)
        await cluster.bookies["b1"].kill(session_s=0)

        async def has_reason() -> bool:
            found = await queue.task(ledger_id)
            return found is not None and "NotEnoughBookies" in (found[0].trouble or "")

        await until(has_reason)
        await cluster.add_bookie()
        await repaired(client, queue, ledger_id, {"b1"})
        await assert_whole(client, ledger_id, 10)


async def restrict(cluster: MemoryCluster, host: str) -> None:
    """Let the clients of a host read and write only the logs below ``mine/``."""
    cluster.network.principals[host] = principal = Principal("client", "repair")
    async with cluster.tree.open_store() as store:
        await change_grants(store, principal, lambda now: now.granted(Grant(Role.WRITER, "mine/")))
    await wait_all_tasks_blocked()


async def belonging(client: Client, log: bytes) -> int:
    """A closed ledger of a log, with one entry."""
    writer = await client.ledgers.create(replication=R332, metadata={"log-name": log})
    await writer.append(payload(0))
    await writer.close()
    return writer.ledger_id


async def test_a_worker_that_may_not_read_a_ledger_leaves_it_with_the_reason_and_repairs_the_others(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client)
        denied, permitted = await belonging(client, b"a/1"), await belonging(client, b"mine/1")
        await restrict(cluster, "repair-1")
        lost = sorted(await names(client, denied) & await names(client, permitted))[0]
        await queue.post(denied, incomplete=await names(client, denied))
        before, _ = await queue.task(denied) or (None, 0)
        assert before is not None
        await start_repair(cluster)
        await cluster.bookies[lost].kill(session_s=0)

        async def has_reason() -> bool:
            found = await queue.task(denied)
            return found is not None and lost in found[0].lost and "may not read" in (found[0].trouble or "")

        await until(has_reason)
        task, _ = await queue.task(denied) or (None, 0)
        assert task is not None
        assert task.incomplete == before.incomplete, "no bookie has said which entries it has"

        async def is_repaired() -> bool:
            return lost not in await names(client, permitted)

        await until(is_repaired)


@pytest.mark.parametrize("what", ["fill", "repair_fragment"])
async def test_copying_without_the_right_to_read_is_refused_without_a_group(
    what: str, clock: MockClock
) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        ledger_id = await belonging(client, b"a/1")
        metadata, version = await LedgerRegistry(client.store, client.opened.environment).read(ledger_id)
        bookie = metadata.last_fragment.ensemble[0]
        (spare,) = (spare.bookie_id for spare in cluster.spares(metadata.last_fragment.ensemble))
        async with cluster.client() as other:
            await restrict(cluster, other.host)
            copying = Copying(other.opened, Pacer(10_000_000))
            (share,) = shares(metadata, bookie)
            token = other.opened.environment.new_token
            core = FragmentRepair(metadata, version, 0, {bookie: spare}, new_token=token)
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "fill": partial(copying.fill, metadata, bookie, share, [(0, 0)]),
                "repair_fragment": partial(copying.repair_fragment, core),
            }
            with pytest.raises(PermissionDenied):
                await calls[what]()
        assert await client.ledgers.metadata(ledger_id) == metadata


async def test_an_entry_that_nobody_has_leaves_the_ledger_as_it_is_and_says_so(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 10, Replication(1, 1, 1))
        await start_repair(cluster)
        (only,) = await names(client, ledger_id)
        before = await client.ledgers.metadata(ledger_id)
        await cluster.bookies[only].kill(session_s=0)

        async def has_reason() -> bool:
            found = await queue.task(ledger_id)
            return found is not None and found[0].trouble is not None

        await until(has_reason)
        assert await client.ledgers.metadata(ledger_id) == before
        await cluster.bookies[only].start()
        await quiet(queue)
        await assert_whole(client, ledger_id, 10)


async def test_a_fragment_that_cannot_be_repaired_does_not_hold_up_the_others(clock: MockClock) -> None:
    async with open_cluster(bookies=7) as cluster, cluster.client() as client:
        queue = await set_up(client)
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
            found = await queue.task(writer.ledger_id)
            return found is not None and "entry 0 of ledger" in (found[0].trouble or "")

        await until(is_repaired)
        await until(has_reason)
        for bookie in sorted(first):
            await cluster.bookies[bookie].start()
        await quiet(queue)
        await assert_whole(client, writer.ledger_id, last + 1)


async def test_a_lost_bookie_whose_entries_nobody_has_does_not_hold_up_another_of_its_fragment(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=9) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 20, Replication(5, 2, 1))
        ensemble = (await client.ledgers.metadata(ledger_id)).last_fragment.ensemble
        # With these bookies lost, the entries of slots 0 and 1 alone have no other bookie. Slots 2 and 4 have
        # the entries of slot 3.
        lost = {slot: ensemble[slot] for slot in (0, 1, 3)}
        for bookie in lost.values():
            await cluster.bookies[bookie].kill(session_s=0)
        await start_repair(cluster)

        async def is_replaced() -> bool:
            return lost[3] not in await names(client, ledger_id)

        await until(is_replaced)
        now = (await client.ledgers.metadata(ledger_id)).last_fragment.ensemble
        assert (now[0], now[1]) == (lost[0], lost[1]), "only where somebody may still find their entries"

        async def is_said() -> bool:
            found = await queue.task(ledger_id)
            return found is not None and found[0].lost == tuple(sorted((lost[0], lost[1])))

        await until(is_said)
        for slot in (0, 1):
            await cluster.bookies[lost[slot]].start()
        await quiet(queue)
        await assert_whole(client, ledger_id, 20)
