"""What rots on a bookie's disk is found unasked, never denied, and copied again from others."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from bookie.storage.engine.config import StorageConfig
from bookie.storage.upkeep.salvage import ASIDE
from ledgerlog.ledger.peers import LedgerPeers
from ledgerlog.limits import KIB
from ledgerlog.model.quorum import Replication
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.testing.memory_cluster import SMALL, Bookie, Client, MemoryCluster, eventually, open_cluster
from ledgerlog.wire.frame import Status
from tests.repairing import repaired, set_up, start_repair, until

R332 = Replication(3, 3, 2)
STAYS = attrs.evolve(SMALL, small_run_bytes=0)
"""Entries stay in the segments in which they came."""
SORTED = attrs.evolve(SMALL, small_run_bytes=SMALL.segment_bytes)
"""They are written again, sorted and put together."""
UNREADABLE = (Status.CORRUPT, Status.IO_ERROR)
COUNT = 60


def payload(number: int) -> bytes:
    return b"<entry %d>" % number + bytes(48 * KIB)


def small(number: int) -> bytes:
    """So small that bookies put many entries together into one run."""
    return payload(number)[:100]


async def written(client: Client, replication: Replication = R332, *, close: bool = True) -> int:
    writer = await client.ledgers.create(replication=replication)
    for number in range(COUNT):
        await writer.append(payload(number))
    if close:
        await writer.close()
    return writer.ledger_id


async def put_together(client: Client, bookie: Bookie) -> None:
    """Fill the segment that holds what came last, so that small entries of a ledger get one run."""
    writer = await client.ledgers.create(replication=R332)
    for _ in range(COUNT):
        await writer.append(bytes(48 * KIB))
    await writer.close()
    await bookie.node.engine.compactor.compact(is_eventual=True)


async def rotted(bookie: Bookie, *numbers: int) -> None:
    """Some entries rot while nobody looks; none is in memory any more."""
    await bookie.stop()
    for number in numbers:
        assert bookie.flip_byte(b"<entry %d>" % number)
    await bookie.start()


async def status_of(bookie: Bookie, ledger_id: int, entry_id: int) -> Status:
    found = await bookie.node.engine.read(
        ledger_id, first=entry_id, last=entry_id, stride=1, bytes_max=100_000
    )
    assert not (found.status is Status.OK and not len(found.entries)), "a rotten entry was denied"
    return found.status


async def restored(cluster: MemoryCluster, client: Client, ledger_id: int, bookie: Bookie) -> None:
    scrubber = bookie.node.engine.scrubber
    await eventually(lambda: not scrubber.rotten)
    assert (await client.ledgers.verify(ledger_id)).under_replicated == []
    for _ in range(2):
        await bookie.restart()
        assert await bookie.node.engine.scrubber.scrub() == 0
        for number in range(COUNT):
            assert await status_of(bookie, ledger_id, number) is Status.OK


@pytest.mark.parametrize("config", [STAYS, SORTED], ids=["stays", "sorted"])
async def test_what_rotted_is_found_and_stored_again_for_good(
    clock: MockClock, config: StorageConfig, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cluster(3, config=config) as cluster, cluster.client() as client:
        ledger_id = await written(client)
        bookie = cluster.bookies["b1"]
        await rotted(bookie, 3, 4, 31)
        for number in (3, 4, 31):
            assert await status_of(bookie, ledger_id, number) in UNREADABLE
        engine = bookie.node.engine
        assert await engine.scrubber.scrub() >= 2
        assert engine.statistics()["rotten_runs"] >= 2
        assert sum(record.message.startswith("rotten: ledger=") for record in caplog.records) >= 2
        await restored(cluster, client, ledger_id, bookie)
        assert engine.statistics()["runs_restored"] >= 2


async def test_scrubbing_begins_by_itself_an_hour_after_the_start_and_can_be_switched_off(
    clock: MockClock,
) -> None:
    config = attrs.evolve(SMALL, scrub_interval_s=7200.0, scrub_bytes_per_s=1024 * KIB)
    async with open_cluster(3, config=config) as cluster, cluster.client() as client:
        ledger_id = await written(client)
        bookie = cluster.bookies["b1"]
        await rotted(bookie, 7)
        await trio.sleep(3599)
        assert bookie.node.engine.statistics()["scrubbed_bytes"] == 0
        await trio.sleep(2)
        assert 0 < bookie.node.engine.statistics()["scrubbed_bytes"] <= 3200 * KIB, (
            "it reads at a bounded rate"
        )
        await trio.sleep(60)
        assert bookie.node.engine.statistics()["scrub_passes"] == 1
        assert bookie.node.engine.statistics()["runs_restored"] == 1
        assert await status_of(bookie, ledger_id, 7) is Status.OK
    async with open_cluster(1, config=attrs.evolve(config, scrub=False)) as cluster:
        await trio.sleep(20_000)
        assert cluster.bookies["b1"].node.engine.statistics()["scrub_passes"] == 0


async def test_scrubbing_begins_at_once_while_files_are_set_aside(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        ledger_id = await written(client)
        bookie = cluster.bookies["b1"]
        await rotted(bookie, 7)
        await bookie.stop()
        segment = next(path for path in bookie.disk.files if path.endswith(".journal"))
        bookie.disk.files[f"{segment}{ASIDE}"] = bytearray(b"damaged")
        await bookie.start()
        scrubber = bookie.node.engine.scrubber
        with trio.fail_after(60):
            await eventually(lambda: scrubber.passes == 1 and not scrubber.rotten)
        assert await status_of(bookie, ledger_id, 7) is Status.OK


async def test_without_an_intact_copy_it_stays_rotten_and_is_never_denied(clock: MockClock) -> None:
    async with open_cluster(3, config=STAYS) as cluster, cluster.client() as client:
        ledger_id = await written(client)
        for bookie in cluster.bookies.values():
            await rotted(bookie, 5)
        bookie = cluster.bookies["b1"]
        assert await bookie.node.engine.scrubber.scrub() == 1
        await eventually(lambda: len(bookie.node.corruption_repair.unrepaired) == 1)
        assert await status_of(bookie, ledger_id, 5) in UNREADABLE
        await client.ledgers.delete(ledger_id)
        assert bookie.node.engine.collector is not None
        await bookie.node.engine.collector.collect()
        assert await bookie.node.engine.scrubber.scrub() == 0, "what is deleted is not rotten"


async def test_auto_recovery_is_asked_about_what_cannot_be_copied_again_and_about_nothing_else(
    clock: MockClock,
) -> None:
    async with open_cluster(3, config=STAYS) as cluster, cluster.client() as client:
        queue = RepairQueue(client.opened)
        stuck = await written(client)
        for bookie in cluster.bookies.values():
            await rotted(bookie, 5)
        easy, still_open = await written(client), await written(client, close=False)
        bookie = cluster.bookies["b1"]
        await rotted(bookie, 20)
        assert await bookie.node.engine.scrubber.scrub() == 4
        await eventually(lambda: len(bookie.node.corruption_repair.unrepaired) == 2)
        assert {ledger_id for ledger_id, _ in bookie.node.corruption_repair.unrepaired} == {stuck, still_open}
        assert await status_of(bookie, easy, 20) is Status.OK

        async def is_asked() -> bool:
            return bool(await queue.tasks())

        await until(is_asked)
        assert await queue.tasks() == [stuck]
        found = await queue.task(stuck)
        assert found is not None
        assert found[0].damaged == ("b1",)


async def test_bookies_that_were_down_are_asked_again(clock: MockClock) -> None:
    async with open_cluster(3, config=STAYS) as cluster, cluster.client() as client:
        ledger_id = await written(client)
        bookie = cluster.bookies["b1"]
        await rotted(bookie, 5)
        cluster.network.cut("b1", "b2")
        cluster.network.cut("b1", "b3")
        assert await bookie.node.engine.scrubber.scrub() == 1
        await trio.sleep(600)
        assert len(bookie.node.corruption_repair.unrepaired) == 1
        cluster.network.heal()
        await trio.sleep(700)
        assert not bookie.node.engine.scrubber.rotten
        assert await status_of(bookie, ledger_id, 5) is Status.OK


async def test_the_last_fragment_of_an_open_ledger_waits_until_it_is_closed(clock: MockClock) -> None:
    async with open_cluster(3, config=STAYS) as cluster, cluster.client() as client:
        ledger_id = await written(client, close=False)
        bookie = cluster.bookies["b1"]
        await rotted(bookie, 5)
        assert await bookie.node.engine.scrubber.scrub() == 1
        await eventually(lambda: len(bookie.node.corruption_repair.unrepaired) == 1)
        assert await status_of(bookie, ledger_id, 5) in UNREADABLE
        await client.ledgers.recover(ledger_id)
        await trio.sleep(700)
        assert not bookie.node.engine.scrubber.rotten
        assert await status_of(bookie, ledger_id, 5) is Status.OK


async def test_a_striped_ledger_is_restored_where_it_is_held(clock: MockClock) -> None:
    async with open_cluster(3, config=SORTED) as cluster, cluster.client() as client:
        ledger_id = await written(client, Replication(3, 2, 2))
        bookie = cluster.bookies["b1"]
        held = [n for n in range(COUNT) if (await status_held(bookie, ledger_id, n))]
        await rotted(bookie, held[4], held[20])
        assert await bookie.node.engine.scrubber.scrub() >= 1
        scrubber = bookie.node.engine.scrubber
        await eventually(lambda: not scrubber.rotten)
        assert (await client.ledgers.verify(ledger_id)).under_replicated == []


@pytest.mark.parametrize("replication", [R332, Replication(3, 2, 2)], ids=["every entry", "striped"])
@pytest.mark.parametrize("config", [STAYS, SORTED], ids=["stays", "sorted"])
async def test_what_rotted_in_a_copy_that_the_metadata_does_not_name_is_stored_again(
    clock: MockClock, config: StorageConfig, replication: Replication
) -> None:
    """Another bookie took its place while it was down. It still has the entries, and denies none of them."""
    async with open_cluster(4, config=config) as cluster, cluster.client() as client:
        queue = await set_up(client)
        writer = await client.ledgers.create(replication=replication)
        for number in range(COUNT):
            await writer.append(small(number))
        await writer.close()
        ledger_id = writer.ledger_id
        bookie = cluster.bookies[writer.metadata.last_fragment.ensemble[0]]
        held = [n for n in range(COUNT) if await status_held(bookie, ledger_id, n)]
        if config is SORTED:
            await put_together(client, bookie)
        await bookie.stop()
        await start_repair(cluster)
        await repaired(client, queue, ledger_id, {bookie.bookie_id})
        await bookie.start()
        await rotted(bookie, held[4], held[20])
        scrubber = bookie.node.engine.scrubber
        assert await scrubber.scrub() >= 1
        await eventually(lambda: not scrubber.rotten)
        assert not bookie.node.corruption_repair.unrepaired
        for _ in range(2):
            for number in held:
                assert await status_of(bookie, ledger_id, number) is Status.OK
            await bookie.restart()
            assert await bookie.node.engine.scrubber.scrub() == 0


async def status_held(bookie: Bookie, ledger_id: int, entry_id: int) -> bool:
    found = await bookie.node.engine.read(
        ledger_id, first=entry_id, last=entry_id, stride=1, bytes_max=100_000
    )
    return len(found.entries) == 1


# --- behind the end -------------------------------------------------------------------------------


@pytest.mark.parametrize("replication", [R332, Replication(3, 2, 2)], ids=["every entry", "striped"])
@pytest.mark.parametrize("config", [STAYS, SORTED], ids=["stays", "sorted"])
async def test_what_rotted_behind_the_end_of_a_ledger_keeps_nothing_from_being_stored_again(
    clock: MockClock, config: StorageConfig, replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bookie stored entries that nobody acknowledged, and recovery ended the ledger before them.

    If its entries stay where they came, a run lies wholly behind the end. If they are sorted, a run goes on
    behind the end. No other bookie is asked for entries behind the end (seed 923065 of the simulator)."""
    asked: list[int] = []
    fetch = LedgerPeers.fetch

    async def noted(self: LedgerPeers, metadata: Any, bookie: Any, first: int, last: int) -> Any:
        asked.append(last)
        return await fetch(self, metadata, bookie, first, last)

    monkeypatch.setattr(LedgerPeers, "fetch", noted)
    async with open_cluster(3, config=config) as cluster, cluster.client() as writing:
        bookie = cluster.bookies["b1"]
        writer = await writing.ledgers.create(replication=replication)
        for number in range(COUNT):
            await writer.append(small(number))
        for name in ("b2", "b3"):
            cluster.network.cut("client-1", name)
        writer.push([small(number) for number in range(COUNT, COUNT + 4)])
        ledger_id = writer.ledger_id

        async def held() -> list[int]:
            return [n for n in range(COUNT + 4) if await status_held(bookie, ledger_id, n)]

        async def is_stored() -> bool:
            return max(await held()) >= COUNT

        await until(is_stored)
        async with cluster.client() as other:
            cluster.network.cut("client-2", "b1")
            assert (await other.ledgers.recover(ledger_id)).last_entry == COUNT - 1
        cluster.network.heal()
        if config is SORTED:
            await put_together(writing, bookie)
        last = max(number for number in await held() if number < COUNT)
        await rotted(bookie, *[number for number in await held() if number >= last])
        engine = bookie.node.engine
        assert await engine.scrubber.scrub() >= 1
        await eventually(lambda: not engine.scrubber.rotten)
        assert not bookie.node.corruption_repair.unrepaired
        assert max(asked) < COUNT
        assert max(await held()) == last
        async with cluster.client() as other:
            assert (await other.ledgers.verify(ledger_id)).under_replicated == []
        await bookie.restart()
        assert await bookie.node.engine.scrubber.scrub() == 0
        assert max(await held()) == last


async def test_a_run_of_several_fragments_is_stored_again(clock: MockClock) -> None:
    """A bookie that stays in the ensemble puts entries of both fragments together."""
    async with open_cluster(4, config=SORTED) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        stays, leaves, *_ = (cluster.bookies[name] for name in writer.metadata.fragments[0].ensemble)
        for number in range(COUNT):
            if number == COUNT // 2:
                await leaves.stop()
            await writer.append(small(number))
        await writer.close()
        assert len(writer.metadata.fragments) == 2
        await leaves.start()
        await put_together(client, stays)
        await rotted(stays, COUNT - 3)
        assert await stays.node.engine.scrubber.scrub() == 1
        ((_, rotten),) = stays.node.engine.scrubber.rotten.items()
        assert rotten.run.first < COUNT // 2 < rotten.run.last, "one run has entries of both fragments"
        await restored(cluster, client, writer.ledger_id, stays)
