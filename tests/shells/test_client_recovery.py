"""Recovering ledgers: with all bookies, with some missing, and with several recoverers at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from ledgerlog.errors import (
    LedgerFenced,
    LedgerNotFound,
    MetadataUnavailable,
    NotEnoughBookies,
    RecoveryFailed,
)
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import ADD_TIMEOUT_S, REQUEST_TIMEOUT_S
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata, LedgerState
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.faulty_disk import Gate
from ledgerlog.testing.memory_cluster import Bookie, Client, MemoryCluster, eventually, open_cluster
from ledgerlog.wire.frame import Status

R332 = Replication(3, 3, 2)
GUARANTEED = Replication(3, 3, 2, guaranteed=True)


def ensemble(cluster: MemoryCluster, writer: LedgerWriter) -> list[Bookie]:
    return cluster.bookies_of(writer.metadata.last_fragment.ensemble)


async def abandoned(client: Client, replication: Replication, count: int = 10) -> LedgerWriter:
    """A ledger with acknowledged entries whose writer went away."""
    writer = await client.ledgers.create(replication=replication)
    await writer.append_many([b"entry %d" % i for i in range(count)])
    await writer.aclose()
    return writer


async def unacknowledged(
    cluster: MemoryCluster, client: Client, replication: Replication, *, on: int = 1
) -> tuple[LedgerWriter, list[Bookie]]:
    """A ledger of ten entries. An eleventh entry reached only the first ``on`` bookies of its ensemble, and
    then the writer went away."""
    writer = await client.ledgers.create(replication=replication)
    await writer.append_many([b"entry %d" % i for i in range(10)])
    await trio.sleep(0.1)
    bookies = ensemble(cluster, writer)
    for bookie in bookies[on:]:
        cluster.network.stall(client.host, bookie.bookie_id)
    writer.push([b"entry 10"])
    await trio.sleep(0.1)
    await writer.aclose()
    for bookie in bookies:
        cluster.network.reset(client.host, bookie.bookie_id)  # Frames that were on their way are gone.
    cluster.network.heal()
    return writer, bookies


async def check(client: Client, ledger_id: int, count: int) -> LedgerMetadata:
    metadata = await client.ledgers.metadata(ledger_id)
    assert metadata.last_entry == count - 1
    assert await client.contents(ledger_id) == [b"entry %d" % i for i in range(count)]
    return metadata


@pytest.mark.parametrize(
    "replication", [R332, GUARANTEED, Replication(4, 2, 2), Replication(5, 3, 2)], ids=str
)
async def test_recovery_keeps_what_was_acknowledged_and_closes_the_ledger(
    replication: Replication, clock: MockClock
) -> None:
    async with open_cluster(replication.ensemble) as cluster, cluster.client() as client:
        writer = await abandoned(client, replication, 57)
        metadata = await client.ledgers.recover(writer.ledger_id)
        assert metadata == await check(client, writer.ledger_id, 57)
        assert await client.ledgers.recover(writer.ledger_id) == metadata
        reader = await client.ledgers.open(writer.ledger_id, recover=True)
        assert reader.is_closed


async def test_an_empty_ledger_recovers_to_no_entry(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        assert (await client.ledgers.recover(writer.ledger_id)).last_entry == -1
        with pytest.raises(LedgerFenced):
            await writer.append(b"late")
        assert (await client.ledgers.metadata(writer.ledger_id)).last_entry == -1


async def test_a_ledger_that_does_not_exist_cannot_be_recovered(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        with pytest.raises(LedgerNotFound):
            await client.ledgers.recover(99)


async def test_an_entry_that_one_bookie_holds_is_kept_and_brought_to_its_quorum(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer, bookies = await unacknowledged(cluster, client, R332)
        # Otherwise two bookies that lack it may answer first, and recovery cuts it off.
        await bookies[2].kill()
        await client.ledgers.recover(writer.ledger_id)
        await check(client, writer.ledger_id, 11)
        await bookies[0].kill()
        await check(client, writer.ledger_id, 11)


async def test_an_entry_on_a_bookie_that_does_not_answer_is_cut_only_if_it_was_never_acknowledged(
    clock: MockClock,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer, bookies = await unacknowledged(cluster, client, R332)
        await bookies[0].kill()
        await client.ledgers.recover(writer.ledger_id)
        await check(client, writer.ledger_id, 10)
        await bookies[0].start()
        await check(client, writer.ledger_id, 10)


@pytest.mark.parametrize("how", ["dead", "hung"])
async def test_recovery_goes_on_without_one_of_three(how: str, clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await abandoned(client, R332)
        missing = ensemble(cluster, writer)[1]
        if how == "dead":
            await missing.kill()
        else:
            cluster.network.stall(client.host, missing.bookie_id)
        begun = trio.current_time()
        await client.ledgers.recover(writer.ledger_id)
        assert trio.current_time() - begun < 1, "enough bookies answered at once"
        await check(client, writer.ledger_id, 10)


@pytest.mark.parametrize("how", ["dead", "hung"])
async def test_recovery_with_too_few_bookies_fails_and_succeeds_when_they_are_back(
    how: str, clock: MockClock
) -> None:
    async with open_cluster(5) as cluster, cluster.client() as client:
        writer = await abandoned(client, R332)
        missing = ensemble(cluster, writer)[1:]
        for bookie in missing:
            if how == "dead":
                await bookie.kill()
            else:
                cluster.network.stall(client.host, bookie.bookie_id)
        for _ in range(2):
            begun = trio.current_time()
            with pytest.raises(RecoveryFailed):
                await client.ledgers.recover(writer.ledger_id)
            assert trio.current_time() - begun <= REQUEST_TIMEOUT_S + 1
            metadata = await client.ledgers.metadata(writer.ledger_id)
            assert metadata.state is LedgerState.IN_RECOVERY
        cluster.network.heal()
        await cluster.start_all()
        await client.ledgers.recover(writer.ledger_id)
        await check(client, writer.ledger_id, 10)


async def test_a_write_back_waits_little_more_than_a_second_for_a_bookie_that_hangs(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer, bookies = await unacknowledged(cluster, client, Replication(3, 3, 3), on=2)
        cluster.network.stall(client.host, bookies[2].bookie_id)
        began = trio.current_time()
        metadata = await client.ledgers.recover(writer.ledger_id)
        assert trio.current_time() - began < 1.5
        assert bookies[2].bookie_id not in metadata.last_fragment.ensemble
        await check(client, writer.ledger_id, 11)


async def test_a_write_back_waits_for_a_bookie_that_is_slow_and_gives_signs_of_life(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer, bookies = await unacknowledged(cluster, client, Replication(3, 3, 3), on=2)
        gate = Gate("write_sync")
        bookies[2].disk.faults.append(gate)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.ledgers.recover, writer.ledger_id)
            await trio.sleep(ADD_TIMEOUT_S - 1)
            gate.open()
        metadata = await client.ledgers.metadata(writer.ledger_id)
        assert bookies[2].bookie_id in metadata.last_fragment.ensemble
        await check(client, writer.ledger_id, 11)


async def test_the_write_back_goes_to_a_replacement_that_the_closed_metadata_names(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        replication = Replication(3, 3, 3)
        writer, bookies = await unacknowledged(cluster, client, replication, on=2)
        (spare,) = cluster.spares(writer.metadata.last_fragment.ensemble)
        await bookies[2].kill()
        metadata = await client.ledgers.recover(writer.ledger_id)
        await check(client, writer.ledger_id, 11)
        last = metadata.last_fragment
        assert last.first_entry == 10
        assert last.ensemble == (bookies[0].bookie_id, bookies[1].bookie_id, spare.bookie_id)
        for bookie in bookies[:2]:
            await bookie.kill()
        reader = await client.ledgers.open(writer.ledger_id)
        assert await reader.read(10, 10) == [b"entry 10"]


async def test_a_replacement_that_dies_during_the_write_back_is_replaced(clock: MockClock) -> None:
    async with open_cluster(5) as cluster, cluster.client() as client:
        writer, bookies = await unacknowledged(cluster, client, Replication(3, 3, 3), on=2)
        one, two = cluster.spares(writer.metadata.last_fragment.ensemble)
        await bookies[2].kill()
        await one.kill()
        metadata = await client.ledgers.recover(writer.ledger_id)
        assert metadata.last_fragment.ensemble[2] == two.bookie_id
        await check(client, writer.ledger_id, 11)


async def test_without_a_bookie_for_the_write_back_the_ledger_stays_in_recovery(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client(append_deadline_s=8) as client:
        writer, bookies = await unacknowledged(cluster, client, GUARANTEED, on=2)
        await bookies[2].kill()
        begun = trio.current_time()
        with pytest.raises(NotEnoughBookies):
            await client.ledgers.recover(writer.ledger_id)
        assert 8 <= trio.current_time() - begun <= 10
        metadata = await client.ledgers.metadata(writer.ledger_id)
        assert metadata.state is LedgerState.IN_RECOVERY
        assert metadata.fragments == writer.metadata.fragments, "private fragments were not published"
        await bookies[2].start()
        await client.ledgers.recover(writer.ledger_id)
        await check(client, writer.ledger_id, 11)


async def test_read_only_bookies_take_the_write_back(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        writer, bookies = await unacknowledged(cluster, client, GUARANTEED, on=2)
        for bookie in bookies:
            bookie.set_read_only(True)
        metadata = await client.ledgers.recover(writer.ledger_id)
        assert metadata.fragments == writer.metadata.fragments
        await check(client, writer.ledger_id, 11)


async def test_a_write_back_that_was_refused_is_tried_again(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        writer, bookies = await unacknowledged(cluster, client, GUARANTEED, on=2)
        monkeypatch.setattr(bookies[2].node.engine, "add", lambda *args: Status.DISK_FULL)

        async def make_room() -> None:
            await trio.sleep(5)
            monkeypatch.undo()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make_room)
            await client.ledgers.recover(writer.ledger_id)
        assert bookies[2].node.server.counts["adds_refused"] <= 12
        await check(client, writer.ledger_id, 11)


async def test_in_guaranteed_mode_recovery_brings_every_entry_to_its_full_write_quorum(
    clock: MockClock,
) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=GUARANTEED)
        await writer.append(b"entry 0")
        await trio.sleep(0.1)
        late = ensemble(cluster, writer)[2]
        cluster.network.stall(client.host, late.bookie_id)
        for number in range(1, 10):
            await writer.append(b"entry %d" % number)
        assert writer.last_add_fully_replicated == 0
        await writer.aclose()
        await late.kill()
        await client.ledgers.recover(writer.ledger_id)
        await check(client, writer.ledger_id, 10)
        verified = await client.ledgers.verify(writer.ledger_id)
        assert verified.under_replicated == [0], "entry 0 stands in the fragment of the bookie that is dead"
        cluster.network.heal()
        await late.start()
        assert (await client.ledgers.verify(writer.ledger_id)).under_replicated == []


@pytest.mark.parametrize("recoverers", [2, 3])
async def test_recoverers_that_race_agree(recoverers: int, clock: MockClock) -> None:
    for delay in range(0, 30, 5):
        async with open_cluster(4) as cluster, cluster.client() as client:
            writer, bookies = await unacknowledged(cluster, client, R332)
            found: list[LedgerMetadata] = []

            async def recover(
                number: int,
                cluster: MemoryCluster = cluster,
                writer: LedgerWriter = writer,
                bookies: list[Bookie] = bookies,
                found: list[LedgerMetadata] = found,
                delay: int = delay,
            ) -> None:
                async with cluster.client() as other:
                    # Each recoverer reaches only two of the three bookies, and not the same two.
                    cluster.network.cut(other.host, bookies[number].bookie_id)
                    for _ in range(delay * number):
                        await trio.lowlevel.checkpoint()
                    found.append(await other.ledgers.recover(writer.ledger_id))

            async with trio.open_nursery() as nursery:
                for number in range(recoverers):
                    nursery.start_soon(recover, number)
            assert len(found) == recoverers
            assert all(metadata == found[0] for metadata in found)
            assert found[0].last_entry in (9, 10)
            await check(client, writer.ledger_id, found[0].last_entry + 1)


async def test_recovery_under_a_live_writer_loses_nothing_that_it_acknowledged(clock: MockClock) -> None:
    for steps in range(0, 200, 25):
        async with open_cluster(4) as cluster, cluster.client() as client, cluster.client() as other:
            writer = await client.ledgers.create(replication=R332)
            acknowledged: list[int] = []

            async def append(writer: LedgerWriter = writer, acknowledged: list[int] = acknowledged) -> None:
                while True:
                    acknowledged.append(await writer.append(b"entry %d" % len(acknowledged)))

            async def append_to_the_end(append: Callable[[], Awaitable[None]] = append) -> None:
                with pytest.raises(LedgerFenced):
                    await append()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(append_to_the_end)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                metadata = await other.ledgers.recover(writer.ledger_id)
            assert metadata.last_entry is not None
            assert len(acknowledged) <= metadata.last_entry + 1 <= len(acknowledged) + 1
            await check(other, writer.ledger_id, metadata.last_entry + 1)


# --- metadata faults ------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["lost_answers", "lost_writes"])
async def test_lost_answers_of_the_store_do_not_disturb_recovery(fault: str, clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await abandoned(client, R332)
        setattr(client.store, fault, 4)
        await client.ledgers.recover(writer.ledger_id)
        await check(client, writer.ledger_id, 10)


@pytest.mark.parametrize("when", ["announcing", "closing"])
async def test_an_outage_of_the_store_is_raised_as_itself_and_recovery_can_be_tried_again(
    when: str, clock: MockClock
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await abandoned(client, R332)
        store = client.store

        async def lose() -> None:
            if when == "announcing":
                store.disconnect()
            else:
                store.before_write = lose_now

        async def lose_now() -> None:
            store.disconnect()

        store.before_write = lose
        with pytest.raises(MetadataUnavailable):
            await client.ledgers.recover(writer.ledger_id)
        store.reconnect()
        state = (await client.ledgers.metadata(writer.ledger_id)).state
        assert state is (LedgerState.OPEN if when == "announcing" else LedgerState.IN_RECOVERY)
        await client.ledgers.recover(writer.ledger_id)
        await check(client, writer.ledger_id, 10)


async def test_a_ledger_that_is_deleted_during_recovery_is_gone(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await abandoned(client, R332)

        async def announced() -> None:
            client.store.before_write = delete

        async def delete() -> None:
            await other.ledgers.delete(writer.ledger_id)

        client.store.before_write = announced
        with pytest.raises(LedgerNotFound):
            await client.ledgers.recover(writer.ledger_id)


async def test_a_ledger_that_is_deleted_during_a_recovery_that_fails_is_gone(clock: MockClock) -> None:
    """The recovery gets no further, as with bookies that have dropped the ledger and refuse."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await abandoned(client, R332)
        cluster.network.stall(client.host, "*")

        async def delete() -> None:
            await trio.sleep(1)
            await other.ledgers.delete(writer.ledger_id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete)
            with pytest.raises(LedgerNotFound):
                await client.ledgers.recover(writer.ledger_id)


async def test_recovery_leaves_no_connection_in_use(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer, bookies = await unacknowledged(cluster, client, Replication(3, 3, 3), on=2)
        await bookies[2].kill()
        await client.ledgers.recover(writer.ledger_id)
        await eventually(lambda: all(c.sinks == 0 for c in client.opened.pool.statistics().connections))
        names: list[BookieId] = [c.bookie_id for c in client.opened.pool.statistics().connections]
        assert len(names) >= 3
