"""Ledgers after a bookie lost data, on whole bookies: T09, T10, T11 and T30.

T09 to T11 are the two scenarios of the proposal to run without the journal. Each test ends well here. Without
its rule it ends in a loss; the mutants that name these tests show that.

A bookie loses its data in one of three ways. Its disk is replaced by an empty one, and its operator says so.
Or an older copy of its directory is put back. Or it ran without the journal's copy of the data, and its
process was killed; then it keeps its flushed entries and its fences.
"""

from __future__ import annotations

import contextlib
import random

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledgerlog.errors import LedgerLogError, RecoveryFailed
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import ADD_TIMEOUT_S
from ledgerlog.model.ids import BookieId
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.memory_cluster import SMALL, Bookie, Client, MemoryCluster, eventually, open_cluster
from ledgerlog.wire.entries import Entries
from ledgerlog.wire.frame import Frame, Status

R332 = Replication(3, 3, 2)
UNSYNCED = attrs.evolve(SMALL, journal_write_data=False)


async def opened(client: Client) -> tuple[LedgerWriter, tuple[BookieId, ...]]:
    """Return a ledger's writer, and its ensemble."""
    writer = await client.ledgers.create(replication=R332)
    return writer, writer.metadata.last_fragment.ensemble


async def try_append(writer: LedgerWriter, payload: bytes) -> int | None:
    """Return the entry if it was acknowledged. Return None if its writer failed, or was told nothing."""
    with trio.move_on_after(4 * ADD_TIMEOUT_S):
        try:
            return await writer.append(payload)
        except LedgerLogError:
            return None
    return None


async def replaced(bookie: Bookie) -> None:
    """The bookie comes back on an empty disk, and finishes phase two if there is one."""
    await bookie.lose_disk()
    await bookie.start()
    with trio.fail_after(300):
        await bookie.node.repair.wait_done()


async def check_end(client: Client, writer: LedgerWriter, acknowledged: list[bytes]) -> None:
    """Report a LOSS if an acknowledged entry is not in the ledger."""
    metadata = await client.ledgers.recover(writer.ledger_id)
    assert await client.contents(writer.ledger_id) == acknowledged, "LOSS: acknowledged entries are gone"
    assert metadata.last_entry == len(acknowledged) - 1


async def test_t09_scenario_1_a_fence_that_was_lost_with_a_disk_lets_no_add_in_after_the_close(
    clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as owner, cluster.client() as recoverer:
        writer, (first, second, third) = await opened(owner)
        cluster.network.stall(owner.host, second)
        assert await writer.append(b"e0") == 0
        # The recoverer's fence does not reach the third bookie. The other two still cover the ensemble.
        cluster.network.cut(recoverer.host, third)
        metadata = await recoverer.ledgers.recover(writer.ledger_id)
        assert metadata.last_entry == 0
        await replaced(cluster.bookies[second])
        # The owner wakes up, and hears nothing from the first bookie.
        cluster.network.stall(owner.host, first)
        cluster.network.heal(owner.host, second)
        late = await try_append(writer, b"e1")
        cluster.network.heal()
        assert late is None, "LOSS: an entry beyond the end of a closed ledger was acknowledged"
        await check_end(recoverer, writer, [b"e0"])


async def test_t30_so_does_one_of_a_ledger_that_no_longer_names_the_bookie(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as owner, cluster.client() as recoverer:
        for bookie in cluster.bookies.values():
            bookie.set_read_only(bookie.bookie_id == "b4")
        await eventually(lambda: len(owner.opened.bookies.writable()) == 3)
        writer, (first, second, third) = await opened(owner)
        cluster.network.stall(owner.host, second)
        assert await writer.append(b"e0") == 0
        # The owner sleeps, and does not notice that a fourth bookie takes the second one's place.
        owner.store.disconnect()
        cluster.bookies["b4"].set_read_only(False)
        cluster.network.cut(recoverer.host, third)
        refuse_adds(cluster.bookies[second])
        await eventually(lambda: len(recoverer.opened.bookies.writable()) == 4)
        metadata = await recoverer.ledgers.recover(writer.ledger_id)
        assert metadata.last_entry == 0
        assert second not in metadata.last_fragment.ensemble, "it was replaced in private"
        cluster.bookies["b4"].set_read_only(True)
        await replaced(cluster.bookies[second])
        owner.store.reconnect()
        await eventually(
            lambda: {info.bookie_id for info in owner.opened.bookies.writable()} == {first, second, third}
        )
        cluster.network.stall(owner.host, first)
        cluster.network.heal(owner.host, second)
        late = await try_append(writer, b"e1")
        cluster.network.heal()
        assert late is None, "LOSS: an entry beyond the end of a closed ledger was acknowledged"
        await check_end(recoverer, writer, [b"e0"])


def refuse_adds(bookie: Bookie) -> None:
    """Let this process of the bookie fence and read, but store nothing: its disk is full."""

    def add(frame: Frame, entries: Entries) -> int | Status:
        return Status.DISK_FULL

    bookie.node.engine.add = add


async def test_t10_t11_scenario_2_an_entry_that_was_lost_with_a_disk_is_not_denied_and_not_cut(
    clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as owner, cluster.client() as recoverer:
        writer, (first, second, third) = await opened(owner)
        cluster.network.cut(owner.host, second)
        assert await writer.append(b"e0") == 0
        await hide(cluster, third, from_hosts=(first, second, recoverer.host))
        await cluster.bookies[first].lose_disk()
        await cluster.bookies[first].start()
        await check_recovery_waits_for_the_third(cluster, recoverer, writer)
        await check_end(recoverer, writer, [b"e0"])


async def test_t10_t11_scenario_2_an_entry_that_was_rolled_back_is_not_denied_and_not_cut(
    clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as owner, cluster.client() as recoverer:
        rolled_back = cluster.bookies["b1"]
        await rolled_back.stop()
        snapshot = rolled_back.snapshot()
        await rolled_back.start()
        await eventually(lambda: len(owner.opened.bookies.writable()) == 3)
        writer, ensemble = await opened(owner)
        second, third = (bookie for bookie in ensemble if bookie != "b1")
        cluster.network.cut(owner.host, second)
        assert await writer.append(b"e0") == 0
        await hide(cluster, third, from_hosts=("b1", second, recoverer.host))
        await rolled_back.kill(session_s=0)
        rolled_back.disk, rolled_back.indexes = snapshot
        await rolled_back.start()
        await check_recovery_waits_for_the_third(cluster, recoverer, writer)
        await check_end(recoverer, writer, [b"e0"])


async def test_t10_t11_scenario_2_an_entry_that_was_lost_unsynced_is_not_denied_and_not_cut(
    clock: MockClock,
) -> None:
    async with (
        open_cluster(3, config=UNSYNCED) as cluster,
        cluster.client() as owner,
        cluster.client() as recoverer,
    ):
        writer, (first, second, third) = await opened(owner)
        assert await writer.append(b"e0") == 0, "the first one is synced, with the ledger's key"
        cluster.network.cut(owner.host, second)
        assert await writer.append(b"e1") == 1
        await hide(cluster, third, from_hosts=(first, second, recoverer.host))
        await cluster.bookies[first].kill(session_s=0)
        await cluster.bookies[first].start()
        await check_recovery_waits_for_the_third(cluster, recoverer, writer)
        await check_end(recoverer, writer, [b"e0", b"e1"])


async def test_scenario_1_a_fence_outlives_a_crash_of_a_bookie_that_does_not_sync_entries(
    clock: MockClock,
) -> None:
    async with (
        open_cluster(3, config=UNSYNCED) as cluster,
        cluster.client() as owner,
        cluster.client() as recoverer,
    ):
        writer, (first, second, third) = await opened(owner)
        assert await writer.append(b"e0") == 0
        cluster.network.cut(recoverer.host, third)
        metadata = await recoverer.ledgers.recover(writer.ledger_id)
        assert metadata.last_entry == 0
        cluster.network.stall(owner.host, first)
        await cluster.bookies[second].kill(session_s=0)
        await cluster.bookies[second].start()
        late = await try_append(writer, b"e1")
        cluster.network.heal()
        assert late is None, "LOSS: an entry beyond the end of a closed ledger was acknowledged"
        await check_end(recoverer, writer, [b"e0"])


async def hide(cluster: MemoryCluster, bookie_id: BookieId, *, from_hosts: tuple[str, ...]) -> None:
    for host in from_hosts:
        cluster.network.cut(host, bookie_id)


async def check_recovery_waits_for_the_third(
    cluster: MemoryCluster, recoverer: Client, writer: LedgerWriter
) -> None:
    """The first may have lost e0, the second never had it, the third does not answer: recovery must not
    decide.
    """
    last: int | None = None
    with contextlib.suppress(RecoveryFailed):
        last = (await recoverer.ledgers.recover(writer.ledger_id)).last_entry
    assert last is None, f"LOSS: it was closed at {last}, and e0 was acknowledged"
    cluster.network.heal()


async def test_every_bookie_of_a_ledger_loses_its_disk_in_turn_and_nothing_is_lost(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        writer, ensemble = await opened(client)
        acknowledged = [b"entry %d" % number for number in range(30)]
        for payload in acknowledged:
            await writer.append(payload)
        for bookie_id in ensemble:
            await replaced(cluster.bookies[bookie_id])
        await check_end(client, writer, acknowledged)
        assert (await client.ledgers.verify(writer.ledger_id)).under_replicated == []


async def test_a_log_of_ledgers_goes_on_while_a_bookie_comes_back_empty(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        done: list[tuple[int, list[bytes]]] = []
        for round_number in range(4):
            writer, (first, *_) = await opened(client)
            written = [b"round %d entry %d" % (round_number, number) for number in range(10)]
            for payload in written[:5]:
                await writer.append(payload)
            await cluster.bookies[first].lose_disk()
            await cluster.bookies[first].start()
            acknowledged = written[:5]
            for payload in written[5:]:
                if await try_append(writer, payload) is None:
                    break
                acknowledged.append(payload)
            done.append((writer.ledger_id, acknowledged))
        for ledger_id, acknowledged in done:
            await client.ledgers.recover(ledger_id)
            assert (await client.contents(ledger_id))[: len(acknowledged)] == acknowledged
        # Only a closed ledger can be whole. By now all ledgers are closed.
        await eventually(
            lambda: not any(b.node.engine.loss_marks.now.limbo for b in cluster.bookies.values())
        )
        for ledger_id, _ in done:
            assert (await client.ledgers.verify(ledger_id)).unreadable == []


async def test_after_a_power_failure_of_all_bookies_nothing_is_guessed_and_an_operator_decides(
    clock: MockClock,
) -> None:
    async with open_cluster(3, config=UNSYNCED) as cluster, cluster.client() as client:
        writer, _ = await opened(client)
        flushed = [b"flushed %d" % number for number in range(10)]
        for payload in flushed:
            await writer.append(payload)
        for bookie in cluster.bookies.values():
            await bookie.node.engine.flush()
        for number in range(10):
            await writer.append(b"not flushed %d" % number)
        for bookie in cluster.bookies.values():
            await bookie.kill(session_s=0)
        await cluster.start_all()
        await trio.sleep(120)
        metadata = await client.ledgers.metadata(writer.ledger_id)
        assert not metadata.is_closed, "nobody knows where it ends"
        for bookie in cluster.bookies.values():
            assert bookie.node.engine.loss_marks.now.denies_nothing(writer.ledger_id)
        found = await client.ledgers.recover_accepting_loss(writer.ledger_id)
        assert found.metadata.last_entry == 9
        assert found.lost_from == 10
        assert await client.contents(writer.ledger_id) == flushed
        for bookie in cluster.bookies.values():
            with trio.fail_after(300):
                await bookie.node.repair.wait_done()
        assert (await client.ledgers.verify(writer.ledger_id)).under_replicated == []


@pytest.mark.parametrize("seed", range(6))
async def test_bookies_that_do_not_sync_entries_crash_one_at_a_time_and_nothing_acknowledged_is_lost(
    clock: MockClock, seed: int
) -> None:
    """Fewer bookies than an ack quorum lose their unsynced data at once, repeatedly, at random places."""
    chance = random.Random(seed)
    acknowledged: dict[int, list[bytes]] = {}
    async with open_cluster(4, config=UNSYNCED, seed=seed) as cluster, cluster.client() as client:
        for round_number in range(5):
            writer, ensemble = await opened(client)
            kept = acknowledged[writer.ledger_id] = []
            crash_at = chance.randrange(40)
            victim = cluster.bookies[chance.choice(ensemble)]
            for number in range(40):
                if number == crash_at:
                    await victim.kill(session_s=0)
                    if chance.random() < 0.7:
                        await victim.start()
                payload = b"round %d entry %d" % (round_number, number)
                if await try_append(writer, payload) is None:
                    break
                kept.append(payload)
            if chance.random() < 0.5:
                await writer.close()
            if not victim.is_running:
                await victim.start()
            for ledger_id in acknowledged:
                await client.ledgers.recover(ledger_id)
            # This bookie lost its data. The next one may lose its data only when this one is whole again.
            with trio.fail_after(600):
                await victim.node.repair.wait_done()
        for ledger_id, kept in acknowledged.items():
            assert (await client.contents(ledger_id))[: len(kept)] == kept, "LOSS"
            assert (await client.ledgers.verify(ledger_id)).unreadable == []
