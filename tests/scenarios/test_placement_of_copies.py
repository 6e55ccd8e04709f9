"""The placement policy: what it refuses, what the audit reports, and how workers move copies."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledgerlog.cli.repair import audit
from ledgerlog.cluster import Cluster
from ledgerlog.errors import MetadataCorrupt, NotEnoughBookies, NotEnoughRacks
from ledgerlog.ledger.bookies import STORED_PLACEMENT
from ledgerlog.model.layout import PLACEMENT
from ledgerlog.model.placement import PlacementPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, open_cluster
from tests.repairing import assert_whole, names, payload, quiet, set_up, start_repair, stored, until, written

R222 = Replication(2, 2, 2)
R422 = Replication(4, 2, 2)
R332 = Replication(3, 3, 2)
STRICT = PlacementPolicy(min_racks=2, strict=True)


async def set_policy(client: Client, policy: PlacementPolicy) -> None:
    await STORED_PLACEMENT.change(client.store, lambda _: policy)
    await client.opened.bookies.refresh()


async def audited(client: Client, *, make_tasks: bool = False) -> list[dict[str, Any]]:
    cluster = Cluster("memory:", client.opened)
    return await audit(cluster, entries="none", per_s=100, make_tasks=make_tasks)


async def racks(cluster: MemoryCluster, *labels: str) -> None:
    """Start a bookie for each label; "" is a bookie without one."""
    for rack in labels:
        await (cluster.add_bookie(rack=rack) if rack else cluster.add_bookie())


async def test_a_strict_policy_refuses_a_ledger_that_one_rack_would_hold(clock: MockClock) -> None:
    async with open_cluster(bookies=0) as cluster, cluster.client() as client:
        await racks(cluster, "a", "a", "")
        await set_policy(client, STRICT)
        with pytest.raises(NotEnoughRacks, match=r"2 racks or more .* a \(2\); without a rack label: b3"):
            await client.ledgers.create(replication=R222)
        assert await client.ledgers.list() == []
        one_copy = await client.ledgers.create(replication=Replication(1, 1, 1))
        await one_copy.close()
        await racks(cluster, "b")
        writer = await client.ledgers.create(replication=R222)
        assert "b4" in writer.metadata.last_fragment.ensemble
        assert "b3" not in writer.metadata.last_fragment.ensemble
        await writer.close()


async def test_creating_waits_for_a_bookie_of_another_rack(clock: MockClock) -> None:
    async with open_cluster(bookies=0) as cluster, cluster.client() as client:
        await racks(cluster, "a", "a")
        await set_policy(client, STRICT)

        async def come() -> None:
            await trio.sleep(2)
            await racks(cluster, "b")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come)
            writer = await client.ledgers.create(replication=R222)
        assert "b3" in writer.metadata.last_fragment.ensemble
        await writer.close()


async def test_a_policy_that_is_not_strict_is_a_preference(clock: MockClock) -> None:
    async with open_cluster(bookies=0) as cluster, cluster.client() as client:
        await racks(cluster, "a", "a", "a")
        await set_policy(client, PlacementPolicy(min_racks=3))
        await written(client, 3, R332)
        await racks(cluster, "b", "c")
        await client.opened.bookies.wait_writable(5)
        for _ in range(5):
            writer = await client.ledgers.create(replication=R332)
            assert {"b4", "b5"} < set(writer.metadata.last_fragment.ensemble)
            await writer.close()


async def test_a_strict_policy_refuses_a_replacement_of_a_writer_but_not_of_repair(clock: MockClock) -> None:
    """The writer goes on at its ack quorum. A copy in the wrong rack is better than none, so repair makes it.
    When a bookie of another rack comes, the copy is moved."""
    replication = Replication(3, 3, 2)
    async with open_cluster(bookies=0) as cluster, cluster.client() as client:
        await racks(cluster, "a", "b", "c", "a", "b")
        await set_policy(client, PlacementPolicy(min_racks=3, strict=True))
        queue = await set_up(client)
        writer = await client.ledgers.create(replication=replication)
        ensemble = writer.metadata.last_fragment.ensemble
        await cluster.bookies["b3"].kill(session_s=0)
        for n in range(20):
            await writer.append(payload(n))
            await trio.sleep(0.5)
        assert writer.metadata.last_fragment.ensemble == ensemble, "nobody in a third rack"
        await writer.close()
        await start_repair(cluster)

        async def is_replaced() -> bool:
            return "b3" not in await names(client, writer.ledger_id)

        await until(is_replaced)
        await quiet(queue)
        await assert_whole(client, writer.ledger_id, 20)
        found = await audited(client)
        assert [(f["ledger"], f["racks"]) for f in found] == [(writer.ledger_id, ["a", "b"])]
        await racks(cluster, "d")

        async def is_moved() -> bool:
            return "b6" in await names(client, writer.ledger_id)

        await until(is_moved)
        await quiet(queue)
        await assert_whole(client, writer.ledger_id, 20)
        assert await audited(client) == []


async def test_copies_in_one_rack_are_reported_and_moved(clock: MockClock) -> None:
    """Labels come later: until then nobody knew that the bookies stand in one rack."""
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledgers = [await written(client, 9, R422) for _ in range(4)]
        still_open = await client.ledgers.create(replication=R422)
        await still_open.append(payload(0))
        for number, bookie in enumerate(cluster.bookies.values()):
            bookie.labels = {"rack": "ab"[number // 3]}
            await bookie.stop()
            await bookie.start()
        await client.opened.bookies.refresh()
        before = await audited(client)
        assert before
        assert await queue.tasks() == []
        assert all(set(f["racks"]) <= {"a", "b"} and f["bookies"] for f in before)
        assert {f["ledger"] for f in before} <= {*ledgers, still_open.ledger_id}
        for f in before:
            assert ("still appends" in f["why"]) == (f["ledger"] == still_open.ledger_id)
        await racks(cluster, "b", "c", "c")
        await still_open.append(payload(1))
        await still_open.close()
        process = await start_repair(cluster)

        async def is_spread() -> bool:
            return not await audited(client)

        await until(is_spread)
        await quiet(queue)
        assert process.copied > 0
        for ledger_id in ledgers:
            await assert_whole(client, ledger_id, 9)
        await assert_whole(client, still_open.ledger_id, 2)
        copied = process.copied
        await trio.sleep(7200)
        assert process.copied == copied, "what is spread is not moved again"
        for rack in "abc":
            assert await is_readable_without(cluster, client, rack, dict.fromkeys(ledgers, 9))


async def is_readable_without(
    cluster: MemoryCluster, client: Client, rack: str, ledgers: dict[int, int]
) -> bool:
    """Whether every entry can be read while all bookies of a rack are down."""
    lost = [b for b in cluster.bookies.values() if b.labels.get("rack") == rack]
    for bookie in lost:
        await bookie.kill(session_s=0)
    try:
        for ledger_id, count in ledgers.items():
            reader = await client.ledgers.open(ledger_id)
            found = await reader.read(0, count - 1)
            if found != [payload(n) for n in range(count)]:
                return False
    finally:
        for bookie in lost:
            await bookie.start()
    return True


async def test_an_audit_makes_no_task_that_nobody_can_do(clock: MockClock) -> None:
    async with open_cluster(bookies=0) as cluster, cluster.client() as client:
        await racks(cluster, "a", "a", "a")
        queue = await set_up(client)
        ledger_id = await written(client, 3, R222)
        (found,) = await audited(client, make_tasks=True)
        assert found["ledger"] == ledger_id
        assert found["racks"] == ["a"]
        assert "no writable bookie in another rack helps" in found["why"]
        assert await queue.tasks() == []


async def test_bookies_without_labels_are_in_racks_of_their_own(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        await set_up(client)
        await written(client, 3, R422)
        assert await audited(client) == []


async def test_a_damaged_policy_refuses_new_ledgers_where_no_policy_was_ever_read(clock: MockClock) -> None:
    async with open_cluster(bookies=0) as cluster, cluster.client() as knows:
        await racks(cluster, "a", "a")
        await set_policy(knows, attrs.evolve(STRICT, strict=False))
        node = await knows.store.get(PLACEMENT)
        assert node is not None
        await knows.store.set(PLACEMENT, b"rubbish", version=node.version)
        await knows.opened.bookies.refresh()
        await written(knows, 1, R222)  # It goes by what it knew.
        async with cluster.client() as new:
            with pytest.raises(NotEnoughBookies, match=r"bookies/placement.*metadata placement --reset"):
                await new.ledgers.create(replication=R222)
            with pytest.raises(MetadataCorrupt, match="placement policy"):
                await STORED_PLACEMENT.change(new.store, lambda now: now)
            await STORED_PLACEMENT.change(new.store, lambda now: now, reset=True)
            await new.opened.bookies.refresh()
            await written(new, 1, R222)


async def test_copies_move_soon_after_a_bookie_came_in_another_rack(clock: MockClock) -> None:
    async with open_cluster(bookies=0) as cluster, cluster.client() as client:
        await racks(cluster, "a", "a")
        queue = await set_up(client)
        ledger_id = await written(client, 3, R222)
        await start_repair(cluster)
        await trio.sleep(60)
        await racks(cluster, "b")

        async def is_moved() -> bool:
            return "b3" in await names(client, ledger_id)

        await until(is_moved, timeout_s=60)  # The next pass by the clock is in an hour.
        await quiet(queue)
        await assert_whole(client, ledger_id, 3)


async def test_a_copy_that_only_the_misplaced_bookie_has_is_moved(clock: MockClock) -> None:
    """Each of the two bookies has an entry that the other lacks; one of them gives up its slot."""
    async with open_cluster(bookies=0) as cluster, cluster.client() as client:
        await racks(cluster, "a", "a")
        queue = await set_up(client)
        ledger_id = await stored(cluster, client, 6, R222, holes=[("b1", 1), ("b2", 4)])
        await racks(cluster, "b")
        await start_repair(cluster)

        async def is_moved() -> bool:
            return "b3" in await names(client, ledger_id)

        await until(is_moved)
        await quiet(queue)
        await assert_whole(client, ledger_id, 6)
