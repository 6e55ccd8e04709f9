"""Auto-recovery of entries that live bookies lack, or have damaged (rule 24)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledgerlog.concurrency.pace import Pace
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import SCRUB_BYTES
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.repair import RepairTask
from ledgerlog.repair import auditor
from ledgerlog.repair.checking import LedgerFaults, check_ledger
from ledgerlog.repair.copying import Copying, Pacer
from ledgerlog.repair.ledger import LedgerRepair
from ledgerlog.testing.memory_cluster import open_cluster
from tests.repairing import (
    R332,
    assert_whole,
    payload,
    quiet,
    repaired,
    set_up,
    start_repair,
    stored,
    until,
    written,
)


async def test_rule_24_entries_below_the_write_quorum_are_found_by_lists_and_given(clock: MockClock) -> None:
    """The plain mode closes at the ack quorum: the third bookie misses the entries that were on their way to
    it.
    """
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
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
        await set_up(client, entry_check_ms=10_000)

        async def is_whole() -> bool:
            return not (await client.ledgers.verify(writer.ledger_id)).under_replicated

        await until(is_whole)
        await quiet(queue)
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
        # Entries that settled meanwhile are not sent again; the next entries are sent.
        await writer.append_many([payload(n) for n in range(9, 12)])
        await writer.close()
        assert (await client.ledgers.verify(writer.ledger_id)).under_replicated == [5, 6, 7, 8]
        pace = Pace(1000)
        ends = await check_ledger(client.opened, writer.ledger_id, check_all=False, pace=pace)
        full = await check_ledger(client.opened, writer.ledger_id, check_all=True, pace=pace)
        assert ends.is_clean
        assert full.incomplete == (bookie,)


async def test_rule_24_a_hole_between_the_ends_is_found_by_the_check_as_it_is(clock: MockClock) -> None:
    """Nobody filed it, and every bookie was there all the time. The periodic check finds it by the lists."""
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client, entry_check_ms=10_000)
        ledger_id = await stored(cluster, client, 9, holes=[("b2", 4)])
        assert (await client.ledgers.verify(ledger_id)).under_replicated == [4]
        assert await queue.tasks() == []
        process = await start_repair(cluster)

        async def is_whole() -> bool:
            return not (await client.ledgers.verify(ledger_id)).under_replicated

        await until(is_whole)
        await quiet(queue)
        assert process.copied == 1


async def test_a_check_of_entries_goes_on_after_an_outage_where_it_was(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []
    check = auditor.check_ledger

    async def note(client: LedgerClient, ledger_id: int, **options: Any) -> LedgerFaults:
        faults = await check(client, ledger_id, **options)
        checked.append(ledger_id)
        return faults

    monkeypatch.setattr(auditor, "check_ledger", note)
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        await set_up(client, checks_per_s=1, entry_check_ms=100_000)
        ledgers = [await written(client, 1) for _ in range(40)]
        process = await start_repair(cluster)

        async def has_checked(ledgers: Sequence[int]) -> bool:
            return {*checked} >= {*ledgers}

        for part in (10, 20, 30):
            await until(partial(has_checked, ledgers[:part]))
            process.store.disconnect()
            await trio.sleep(100)
            process.store.reconnect()
        await until(partial(has_checked, ledgers))
        assert len(checked) < 40 + 3 * 8, "at most those that were under way are checked twice"
        checked.clear()
        await until(partial(has_checked, ledgers))


async def test_a_damaged_copy_at_a_fragments_end_is_replaced(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 10, size=100)
        damaged = (await client.ledgers.metadata(ledger_id)).last_fragment.ensemble[1]
        bookie = cluster.bookies[damaged]
        await bookie.stop()
        assert bookie.flip_byte(payload(9)) > 0
        await bookie.start()
        await start_repair(cluster)
        await set_up(client, entry_check_ms=10_000, check_all=False)
        await repaired(client, queue, ledger_id, {damaged})
        await assert_whole(client, ledger_id, 10)


async def test_a_bookie_that_has_repaired_its_damage_keeps_its_place(clock: MockClock) -> None:
    """The bookie copied the rotten entries again. No other bookie could take its place."""
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        process = await start_repair(cluster)
        ledger_id = await written(client, 10, size=100)
        bookie = cluster.bookies["b1"]
        for others in ("b2", "b3"):
            cluster.network.cut("b1", others)
        await bookie.stop()
        assert bookie.flip_byte(payload(4)) > 0
        await bookie.start()
        await queue.post(ledger_id, damaged=["b1"])

        async def has_reason() -> bool:
            found = await queue.task(ledger_id)
            return found is not None and "NotEnoughBookies" in (found[0].trouble or "")

        await until(has_reason)
        cluster.network.heal()
        assert await bookie.node.engine.scrubber.scrub() == 1
        await quiet(queue)
        assert process.copied == 0, "the bookie did it"
        await assert_whole(client, ledger_id, 10)


async def test_a_long_hole_is_filled_by_ranges_at_the_rate_that_was_set(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client, bytes_per_s=1_000_000)
        writer = await client.ledgers.create(replication=R332)
        await writer.append(payload(0, 1_000))
        slow = writer.metadata.last_fragment.ensemble[2]
        cluster.network.stall(client.host, slow)
        await writer.append_many([payload(n, 1_000) for n in range(1, 5_001)])
        await writer.close()
        cluster.network.reset(client.host, slow)
        cluster.network.heal()
        await queue.post(writer.ledger_id, incomplete=[slow])
        process = await start_repair(cluster)
        began = trio.current_time()
        await quiet(queue)
        assert process.copied_bytes == 5_000_000
        assert 3.5 < trio.current_time() - began < 8
        await assert_whole(client, writer.ledger_id, 5_001)


async def test_a_bookie_is_not_made_to_read_a_damaged_ledger_at_each_try(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 10, size=100)
        bookie = cluster.bookies["b1"]
        for others in ("b2", "b3"):
            cluster.network.cut("b1", others)
        await bookie.stop()
        assert bookie.flip_byte(payload(4)) > 0
        await bookie.start()
        reads: list[str] = []

        class Noting(Copying):
            async def is_sound(self, metadata: LedgerMetadata, bookie: BookieId) -> bool:
                reads.append(bookie)
                return await super().is_sound(metadata, bookie)

        repair = LedgerRepair(client.opened, queue, Noting(client.opened, Pacer(1_000_000)))
        task = RepairTask(ledger_id=ledger_id, damaged=("b1",))
        for _ in range(10):
            assert not (await repair.run(task, grace_s=0.0, say=lambda _: None)).is_done
            await trio.sleep(60)
        assert reads == ["b1", "b1"]
        cluster.network.heal()
        assert await bookie.node.engine.scrubber.scrub() == 1
        await trio.sleep(300)
        assert (await repair.run(task, grace_s=0.0, say=lambda _: None)).is_done


async def test_what_a_bookie_reads_to_find_its_copy_sound_counts_against_the_rate(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        await set_up(client)
        ledger_id = await written(client, 100, size=300_000)
        metadata = await client.ledgers.metadata(ledger_id)
        copying = Copying(client.opened, Pacer(SCRUB_BYTES // 10))
        began = trio.current_time()
        assert await copying.is_sound(metadata, "b1")
        # It reads thirty megabytes in requests of eight. The next user of the pacer waits for the last
        # request.
        assert 15 < trio.current_time() - began < 45
