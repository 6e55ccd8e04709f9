"""Who ends a ledger, and which error its writer gets: fences, races, and a metadata store that fails."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledgerlog.errors import (
    AppendUnknown,
    LedgerClosed,
    LedgerFenced,
    LedgerLogError,
    LedgerNotFound,
    MetadataUnavailable,
    NotEnoughBookies,
)
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import APPEND_DEADLINE_S, METADATA_TIMEOUT_S
from ledgerlog.model.layout import LEDGERS, ledger_path
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.memory_cluster import Client, eventually, open_cluster

R332 = Replication(3, 3, 2)


async def outcome(writer: LedgerWriter, payload: bytes, outcomes: list[int | LedgerLogError]) -> None:
    try:
        outcomes.append(await writer.append(payload))
    except LedgerLogError as failure:
        outcomes.append(failure)


# --- fences ---------------------------------------------------------------------------------------


async def test_a_writer_whose_ledger_is_recovered_acknowledges_nothing_more(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        assert (await other.ledgers.recover(writer.ledger_id)).last_entry == 0
        outcomes: list[int | LedgerLogError] = []
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(outcome, writer, b"y", outcomes)
        assert [type(failure) for failure in outcomes] == [LedgerFenced] * 5
        assert len(set(map(id, outcomes))) == 5, "each caller has an exception of its own"
        for ended in (lambda: writer.append(b"z"), writer.close, writer.wait_room):
            with pytest.raises(LedgerFenced):
                await ended()
        assert await client.contents(writer.ledger_id) == [b"x"]


async def test_an_idle_writer_learns_of_the_fence_from_the_lac_that_it_tells(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        bookies = writer.metadata.last_fragment.ensemble
        cluster.network.stall(bookies[2], client.host, both=False)
        await writer.append(b"x")
        await other.ledgers.recover(writer.ledger_id)
        cluster.network.reset(client.host, bookies[0])
        await eventually(lambda: writer.failure is not None)
        assert isinstance(writer.failure, LedgerFenced)


async def test_entries_under_way_when_the_fence_falls_have_an_unknown_outcome_and_stay_in_order(
    clock: MockClock,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        returned: dict[int, bytes] = {}
        failures: list[type[LedgerLogError]] = []

        async def append(task: int) -> None:
            number = 0
            while True:
                payload = b"%d/%d" % (task, number)
                try:
                    entry_id = await writer.append(payload)
                except LedgerLogError as failure:
                    failures.append(type(failure))
                    return
                assert not failures, "nothing is acknowledged once a failure was told"
                returned[entry_id] = payload
                number += 1
                await trio.sleep(0.0005)

        async with trio.open_nursery() as nursery:
            for task in range(8):
                nursery.start_soon(append, task)
            await eventually(lambda: len(returned) > 100)
            metadata = await other.ledgers.recover(writer.ledger_id)
        assert failures == [LedgerFenced] * 8
        contents = await other.contents(writer.ledger_id)
        assert metadata.last_entry == len(contents) - 1 >= max(returned)
        for entry_id, payload in returned.items():
            assert contents[entry_id] == payload


async def test_a_close_that_races_with_recovery_ends_the_ledger_in_one_place(clock: MockClock) -> None:
    ends = set()
    for delay in range(0, 40, 2):
        async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
            writer = await client.ledgers.create(replication=R332)
            await writer.append(b"x")
            recovered: list[int | None] = []

            async def recover(
                client: Client = other, writer: LedgerWriter = writer, found: list[int | None] = recovered
            ) -> None:
                found.append((await client.ledgers.recover(writer.ledger_id)).last_entry)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(recover)
                for _ in range(delay):
                    await trio.lowlevel.checkpoint()
                try:
                    closed: int | str = await writer.close()
                except (LedgerFenced, LedgerClosed) as failure:
                    closed = type(failure).__name__
            assert recovered == [0]
            assert closed in (0, "LedgerFenced", "LedgerClosed")
            ends.add(closed)
    assert len(ends) >= 2, "the race went both ways"


async def test_a_writer_whose_ledger_is_deleted_notices_at_its_next_metadata_write(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        await other.ledgers.delete(writer.ledger_id)
        assert await writer.append(b"nobody told it yet") == 1
        await cluster.bookies[writer.metadata.last_fragment.ensemble[0]].kill()
        await eventually(lambda: writer.failure is not None)
        with pytest.raises(LedgerNotFound):
            await writer.append(b"y")
        with pytest.raises(LedgerNotFound):
            await writer.close()
        another = await client.ledgers.create(replication=R332)
        await other.ledgers.delete(another.ledger_id)
        with pytest.raises(LedgerNotFound):
            await another.close()


async def test_a_ledger_that_somebody_else_closed_further_on_is_told_as_fenced(clock: MockClock) -> None:
    """Recovery kept an entry whose acknowledgement did not reach the writer."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        cluster.network.stall("*", client.host, both=False)
        writer.push([b"stored, answers lost"])
        await trio.sleep(0.1)
        recovered = await other.ledgers.recover(writer.ledger_id)
        assert recovered.last_entry == 1
        with pytest.raises(LedgerFenced):
            await writer.close(timeout_s=1)
        with pytest.raises(LedgerFenced):
            await writer.wait_confirmed(1)


# --- metadata: lost answers -----------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["lost_answers", "lost_writes"])
async def test_a_lost_answer_to_the_closing_write_is_found_out(fault: str, clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        setattr(client.store, fault, 2)
        assert await writer.close() == 0
        assert (await client.ledgers.metadata(writer.ledger_id)).last_entry == 0


@pytest.mark.parametrize("fault", ["lost_answers", "lost_writes"])
async def test_a_lost_answer_to_an_ensemble_change_is_found_out(fault: str, clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=Replication(3, 3, 3))
        await writer.append(b"x")
        setattr(client.store, fault, 2)
        await cluster.bookies[writer.metadata.last_fragment.ensemble[1]].kill()
        assert await writer.append(b"y") == 1
        assert len(writer.metadata.fragments) == 2
        assert await client.ledgers.metadata(writer.ledger_id) == writer.metadata
        assert await writer.close() == 1


@pytest.mark.parametrize("fault", ["lost_answers", "lost_writes"])
async def test_a_lost_answer_to_a_creation_is_found_out(fault: str, clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        setattr(client.store, fault, 2)  # One of the number, one of the node.
        writer = await client.ledgers.create(replication=R332)
        assert await writer.append(b"x") == 0
        assert await client.ledgers.list() == [writer.ledger_id]
        await writer.close()


async def test_a_creation_that_is_applied_late_is_known_as_ones_own(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt is lost on the way and arrives just before the second."""
    async with open_cluster() as cluster, cluster.client() as client:
        store = client.store
        sent: list[bytes] = []
        create = store.inner.create

        async def late(path: str, value: bytes, *, ephemeral: bool = False) -> int:
            if path.startswith(LEDGERS):
                sent.append(value)
                if len(sent) == 1:
                    store.lost_answers = 1
                    return 0  # Not applied yet, and the answer lost.
                await create(path, sent[0])
            return await create(path, value, ephemeral=ephemeral)

        monkeypatch.setattr(store.inner, "create", late)
        writer = await client.ledgers.create(replication=R332)
        assert len(sent) == 2
        assert await writer.append(b"x") == 0


async def test_a_creation_whose_answers_are_always_lost_ends(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        client.store.lost_writes = 1000
        with pytest.raises(MetadataUnavailable):
            await client.ledgers.create(replication=R332)


@pytest.mark.parametrize("fault", ["lost_answers", "lost_writes"])
async def test_a_lost_answer_to_a_deletion_is_found_out(fault: str, clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.close()
        setattr(client.store, fault, 1)
        await client.ledgers.delete(writer.ledger_id)
        assert await client.ledgers.list() == []
        with pytest.raises(LedgerNotFound):
            await client.ledgers.delete(writer.ledger_id)
        with pytest.raises(LedgerNotFound):
            await client.ledgers.open(writer.ledger_id)


# --- metadata: outages ----------------------------------------------------------------------------


def lose_metadata(client: Client, how: str) -> None:
    if how == "hangs":
        client.store.is_hanging = True
    else:
        client.store.disconnect()


def find_metadata(client: Client) -> None:
    client.store.is_hanging = False
    client.store.reconnect()


@pytest.mark.parametrize("how", ["gone", "hangs"])
async def test_without_metadata_a_writer_goes_on_and_replaces_its_bookie_later(
    how: str, clock: MockClock
) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        reader = await other.ledgers.open(writer.ledger_id)
        await writer.append(b"x")
        lose_metadata(client, how)
        dead = writer.metadata.last_fragment.ensemble[1]
        await cluster.bookies[dead].kill()
        for number in range(1, 60):
            assert await writer.append(b"y") == number
            await trio.sleep(1)
            # The writer publishes the LAC even while a metadata write is under way.
            assert await reader.wait_beyond(number - 1) == number
        assert len(writer.metadata.fragments) == 1
        find_metadata(client)
        await eventually(lambda: len(writer.metadata.fragments) == 2)
        assert dead not in writer.metadata.last_fragment.ensemble
        await writer.append(b"z")
        assert await writer.close() == 60


@pytest.mark.parametrize("how", ["gone", "hangs"])
async def test_the_append_deadline_holds_while_a_metadata_write_hangs(how: str, clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        dead = cluster.bookies_of(writer.metadata.last_fragment.ensemble[:2])
        lose_metadata(client, how)
        for bookie in dead:
            await bookie.kill()
        begun = trio.current_time()
        with pytest.raises(AppendUnknown):
            await writer.append(b"y")
        waited = trio.current_time() - begun
        assert waited <= APPEND_DEADLINE_S + METADATA_TIMEOUT_S + 2
        find_metadata(client)
        await cluster.start_all()
        assert (await other.ledgers.recover(writer.ledger_id)).last_entry in (0, 1)


@pytest.mark.parametrize("how", ["gone", "hangs"])
async def test_a_close_that_the_store_does_not_take_ends_in_time_and_for_good(
    how: str, clock: MockClock
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        lose_metadata(client, how)
        begun = trio.current_time()
        for _ in range(2):
            with pytest.raises(AppendUnknown):
                await writer.close()
        assert trio.current_time() - begun <= METADATA_TIMEOUT_S + 2
        find_metadata(client)
        with pytest.raises(AppendUnknown):
            await writer.append(b"y")
        assert (await other.ledgers.recover(writer.ledger_id)).last_entry == 0


async def test_a_close_goes_through_a_short_outage(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        client.store.disconnect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.close)
            await trio.sleep(METADATA_TIMEOUT_S / 2)
            client.store.reconnect()
        assert (await client.ledgers.metadata(writer.ledger_id)).last_entry == 0


async def test_a_writer_without_quorum_and_metadata_fails_its_appends_with_an_unknown_outcome(
    clock: MockClock,
) -> None:
    """The writer tries to close at its LAC, and does not know whether the write took effect."""
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        outcomes: list[int | LedgerLogError] = []
        async with trio.open_nursery() as nursery:
            for bookie in cluster.bookies_of(writer.metadata.last_fragment.ensemble[:2]):
                await bookie.kill()
            nursery.start_soon(outcome, writer, b"y", outcomes)
            await trio.sleep(APPEND_DEADLINE_S - 1)
            client.store.disconnect()
        assert [type(found) for found in outcomes] == [AppendUnknown]


async def test_a_client_that_is_closed_while_an_end_is_being_written_leaves_the_outcome_unknown(
    clock: MockClock,
) -> None:
    """The writer gave up and tries to close at its LAC. It does not know yet whether the store took the
    write."""
    outcomes: list[int | LedgerLogError] = []
    async with open_cluster() as cluster, trio.open_nursery() as nursery, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        for bookie in cluster.bookies_of(writer.metadata.last_fragment.ensemble[:2]):
            await bookie.kill()
        lose_metadata(client, "hangs")
        nursery.start_soon(outcome, writer, b"y", outcomes)
        await eventually(lambda: writer.failure is not None)
        assert isinstance(writer.failure, NotEnoughBookies)
    assert [type(found) for found in outcomes] == [AppendUnknown]


async def test_progress_tells_that_the_append_deadline_ended_a_ledger_before_its_end_is_stored(
    clock: MockClock,
) -> None:
    async with open_cluster() as cluster, trio.open_nursery() as nursery, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        seen: list[LedgerLogError | None] = []
        writer.set_progress_callback(lambda: seen.append(writer.failure))
        for bookie in cluster.bookies_of(writer.metadata.last_fragment.ensemble[:2]):
            await bookie.kill()
        lose_metadata(client, "hangs")
        outcomes: list[int | LedgerLogError] = []
        nursery.start_soon(outcome, writer, b"y", outcomes)
        await eventually(lambda: writer.failure is not None)
        assert [type(failure) for failure in seen] == [NotEnoughBookies]
        assert not outcomes


async def test_a_writer_that_is_given_up_during_an_ensemble_change_uses_no_connection_any_more(
    clock: MockClock,
) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        may_write = trio.Event()
        client.store.before_write = may_write.wait
        await cluster.bookies[writer.metadata.last_fragment.ensemble[0]].kill()
        await eventually(lambda: client.store.before_write is None)
        await writer.aclose()
        may_write.set()
        await wait_all_tasks_blocked()
        await trio.sleep(1)
        assert all(c.sinks == 0 for c in client.opened.pool.statistics().connections)


async def test_damaged_metadata_ends_the_writer_and_not_its_client(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        path = ledger_path(writer.ledger_id)
        await other.store.set(path, b"\xff damage", version=0)
        with pytest.raises(AppendUnknown, match="ledger 0"):
            await writer.close()
        another = await client.ledgers.create(replication=R332)
        assert await another.append(b"the client lives") == 0


# --- creating -------------------------------------------------------------------------------------


async def test_a_ledger_needs_as_many_bookies_as_its_ensemble(clock: MockClock) -> None:
    async with open_cluster(2) as cluster, cluster.client() as client:
        begun = trio.current_time()
        with pytest.raises(NotEnoughBookies):
            await client.ledgers.create(replication=R332)
        assert trio.current_time() - begun == pytest.approx(METADATA_TIMEOUT_S, abs=0.1)
        writers: list[LedgerWriter] = []

        async def create() -> None:
            writers.append(await client.ledgers.create(replication=R332))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)
            await trio.sleep(3)
            await cluster.add_bookie()
        assert await writers[0].append(b"x") == 0


async def test_bookies_that_failed_a_short_while_ago_are_chosen_last(clock: MockClock) -> None:
    async with open_cluster(6) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        failed = cluster.bookies_of(writer.metadata.last_fragment.ensemble)[:2]
        for bookie in failed:
            await bookie.kill(session_s=3600)
        await writer.append(b"y")
        names = {bookie.bookie_id for bookie in failed}
        for _ in range(20):
            another = await client.ledgers.create(replication=R332)
            assert not names.intersection(another.metadata.last_fragment.ensemble)
            await another.close()


async def test_read_only_bookies_are_not_chosen(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        cluster.bookies["b2"].set_read_only(True)
        await eventually(lambda: len(client.opened.bookies.writable()) == 3)
        for _ in range(10):
            writer = await client.ledgers.create(replication=R332)
            assert "b2" not in writer.metadata.last_fragment.ensemble
