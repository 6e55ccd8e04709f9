"""Who ends a ledger below the write quorum files it for repair, with nobody checking entries (rule 24)."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledgerlog.errors import AppendUnknown
from ledgerlog.ledger.repair_tasks import drop_task
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import METADATA_TIMEOUT_S
from ledgerlog.meta.store import Set
from ledgerlog.model.layout import REPAIR_TASKS, ledger_path, repair_task_path
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.model.repair import RepairTask
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.testing.faulty_store import Call, GoOn
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, eventually, open_cluster
from tests.repairing import R332, assert_whole, payload, quiet, set_up, start_repair, written


async def incomplete(queue: RepairQueue, ledger_id: int) -> tuple[str, ...] | None:
    """The bookies that the ledger's task says lack entries; None if there is no task."""
    found = await queue.task(ledger_id)
    return None if found is None else found[0].incomplete


async def with_a_late_copy(cluster: MemoryCluster, client: Client) -> tuple[LedgerWriter, str]:
    """A ledger with two entries, and the bookie whose confirmation of the second one is on its way."""
    writer = await client.ledgers.create(replication=R332)
    slow = writer.metadata.last_fragment.ensemble[2]
    await writer.append(payload(0))
    await wait_all_tasks_blocked()
    cluster.network.stall(slow, client.host)
    await writer.append(payload(1))
    return writer, slow


async def with_a_lost_copy(
    cluster: MemoryCluster, client: Client, *, comes_back: bool = True
) -> tuple[LedgerWriter, str]:
    """A ledger with three entries, and the bookie that lost the second one on the way. If it does not come
    back, it is stopped before the third one."""
    writer = await client.ledgers.create(replication=R332)
    bookie = writer.metadata.last_fragment.ensemble[2]
    await writer.append(payload(0))
    await wait_all_tasks_blocked()
    cluster.network.stall(client.host, bookie)
    await writer.append(payload(1))
    cluster.network.reset(client.host, bookie)
    cluster.network.heal()
    if not comes_back:
        await cluster.bookies[bookie].stop()
    await trio.sleep(5)
    await writer.append(payload(2))
    await wait_all_tasks_blocked()
    return writer, bookie


@pytest.mark.parametrize("comes_back", [False, True], ids=["away at the close", "back at the close"])
async def test_rule_24_a_writer_that_closes_below_the_write_quorum_files_the_repair(
    comes_back: bool, clock: MockClock
) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client, entry_check_ms=0, lost_after_ms=3_600_000)
        writer = await client.ledgers.create(replication=R332)
        await writer.append_many([payload(n) for n in range(5)])
        bookie = writer.metadata.last_fragment.ensemble[2]
        await cluster.bookies[bookie].stop()
        await writer.append_many([payload(n) for n in range(5, 9)])
        if comes_back:
            await cluster.bookies[bookie].start()
            await trio.sleep(5)
            await writer.append_many([payload(n) for n in range(9, 12)])
        entries = await writer.close() + 1
        assert await incomplete(queue, writer.ledger_id) == (bookie,)
        await start_repair(cluster)
        await trio.sleep(60)
        if not comes_back:
            assert await incomplete(queue, writer.ledger_id) == (bookie,), "it is not known what it lacks"
            await cluster.bookies[bookie].start()
        await quiet(queue)
        await assert_whole(client, writer.ledger_id, entries)


async def test_the_task_of_a_deleted_ledger_goes_with_it(clock: MockClock) -> None:
    """Nobody runs auto-recovery here."""
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        writer = await client.ledgers.create(replication=R332)
        await writer.append_many([payload(n) for n in range(5)])
        await cluster.bookies[writer.metadata.last_fragment.ensemble[2]].stop()
        await writer.append_many([payload(n) for n in range(5, 9)])
        await writer.close()
        assert await queue.tasks() == [writer.ledger_id]
        await client.ledgers.delete(writer.ledger_id)
        assert await queue.tasks() == []


@pytest.mark.parametrize("shape", [(3, 3, 2), (5, 3, 2), (3, 3, 3)])
async def test_rule_24_a_ledger_on_its_whole_write_quorum_is_not_filed(
    shape: tuple[int, int, int], clock: MockClock
) -> None:
    async with open_cluster(bookies=5) as cluster, cluster.client() as client:
        queue = await set_up(client)
        for count in (0, 1, 40):
            await written(client, count, Replication(*shape))
        assert await queue.tasks() == []


async def test_rule_24_a_copy_that_is_confirmed_after_the_close_counts(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        writer, _ = await with_a_late_copy(cluster, client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.close)
            await trio.sleep(0.1)
            assert (await client.ledgers.metadata(writer.ledger_id)).is_closed
            cluster.network.heal()
        assert await queue.tasks() == []


async def test_rule_24_a_bookie_that_left_the_ensemble_and_lacks_entries_is_named(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client)
        writer, gone = await with_a_lost_copy(cluster, client, comes_back=False)
        assert len(writer.metadata.fragments) == 2
        await writer.close()
        assert await incomplete(queue, writer.ledger_id) == (gone,)


async def test_rule_24_a_bookie_that_left_with_all_its_entries_is_not_named(clock: MockClock) -> None:
    async with open_cluster(bookies=4) as cluster, cluster.client() as client:
        queue = await set_up(client)
        writer = await client.ledgers.create(replication=R332)
        await writer.append_many([payload(n) for n in range(5)])
        await trio.sleep(1)
        await cluster.bookies[writer.metadata.last_fragment.ensemble[2]].stop()
        await eventually(lambda: len(writer.metadata.fragments) == 2)
        await writer.append(payload(5))
        await trio.sleep(1)
        await writer.close()
        assert await queue.tasks() == []


@pytest.mark.parametrize("failure", ["refused", "hanging"])
async def test_rule_24_a_close_succeeds_if_the_ledger_cannot_be_filed(
    failure: str, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        writer, _ = await with_a_late_copy(cluster, client)

        async def no_tasks(call: Call, go_on: GoOn) -> object:
            if any(operation.path.startswith(REPAIR_TASKS) for operation in call.operations):
                if failure == "hanging":
                    await trio.sleep_forever()
                client.store.disconnect()
            return await go_on()

        client.store.faults.append(no_tasks)
        with trio.fail_after(METADATA_TIMEOUT_S):
            assert await writer.close() == 1
        assert "could not be filed for repair" in caplog.text
        client.store.faults.remove(no_tasks)
        client.store.reconnect()
        assert await queue.tasks() == []


async def test_rule_24_a_writer_that_does_not_know_whether_it_closed_files_the_repair(
    clock: MockClock,
) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client, cluster.client() as other:
        queue = await set_up(other)
        writer, bookie = await with_a_late_copy(cluster, client)
        path = ledger_path(writer.ledger_id)

        async def no_answer(call: Call, go_on: GoOn) -> object:
            answer = await go_on()
            if path in {call.path, *(operation.path for operation in call.operations)}:
                await trio.sleep_forever()
            return answer

        client.store.faults.append(no_answer)
        with pytest.raises(AppendUnknown):
            await writer.close()
        assert (await other.ledgers.metadata(writer.ledger_id)).is_closed
        assert await incomplete(queue, writer.ledger_id) == (bookie,)


async def test_rule_24_a_ledger_that_is_recovered_below_its_write_quorum_is_filed(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client, cluster.client() as other:
        queue = await set_up(client, entry_check_ms=0, lost_after_ms=3_600_000)
        writer = await client.ledgers.create(replication=R332)
        bookie = cluster.bookies[writer.metadata.last_fragment.ensemble[2]]
        await writer.append(payload(0))
        await bookie.stop()
        await writer.append_many([payload(n) for n in range(1, 5)])
        await bookie.start()
        await trio.sleep(5)
        await writer.append(payload(5))
        await trio.sleep(5)
        await writer.aclose()
        assert (await other.ledgers.recover(writer.ledger_id)).last_entry == 5
        assert (await client.ledgers.verify(writer.ledger_id)).under_replicated == [1, 2, 3, 4]
        assert await queue.tasks() == [writer.ledger_id]
        await bookie.stop()
        await start_repair(cluster)
        await trio.sleep(60)
        assert await queue.tasks() == [writer.ledger_id], "it is not known what the bookie lacks"
        await bookie.start()
        await quiet(queue)
        await assert_whole(client, writer.ledger_id, 6)
        await other.ledgers.recover(writer.ledger_id)
        assert await queue.tasks() == [], "it was closed already"


@pytest.mark.parametrize("named", ["before it is recovered", "afterwards", "in a task of version 0.1"])
async def test_rule_24_any_bookie_of_a_recovered_ledger_may_lack_entries_whichever_its_task_names(
    named: str, clock: MockClock
) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client, cluster.client() as other:
        queue = await set_up(client, entry_check_ms=0, lost_after_ms=3_600_000)
        writer = await client.ledgers.create(replication=R332)
        ledger_id = writer.ledger_id
        complete, _, lacking = writer.metadata.last_fragment.ensemble
        await cluster.bookies[lacking].stop()
        await writer.append(payload(0))
        await writer.aclose()
        if named == "before it is recovered":
            await queue.post(ledger_id, incomplete=[complete])
        await other.ledgers.recover(ledger_id)
        if named == "in a task of version 0.1":
            await drop_task(client.store, ledger_id)
            await client.store.create(repair_task_path(ledger_id), RepairTask(ledger_id=ledger_id).encode())
        await queue.post(ledger_id, incomplete=[complete])
        await start_repair(cluster)
        await trio.sleep(60)
        assert await incomplete(queue, ledger_id) == (lacking,), "it is not known what it lacks"
        await cluster.bookies[lacking].start()
        await quiet(queue)
        await assert_whole(client, ledger_id, 1)


@pytest.mark.parametrize("replication", [Replication(3, 3, 3), Replication(3, 3, 2, guaranteed=True)])
async def test_rule_24_a_recovered_ledger_that_acknowledges_at_the_write_quorum_is_not_filed(
    replication: Replication, clock: MockClock
) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 3, replication, close=False)
        await client.ledgers.recover(ledger_id)
        assert await queue.tasks() == []


# --- in the transaction that closes -----------------------------------------------------------------


def closes(call: Call, ledger_id: int) -> bool:
    """Whether this call is the closing write of the ledger."""
    return any(
        operation.path == ledger_path(ledger_id)
        and LedgerMetadata.decode_untrusted(operation.value, ledger_id).is_closed
        for operation in call.operations
        if isinstance(operation, Set)
    )


async def abandoned(client: Client) -> int:
    """A ledger that its writer left open, with entries."""
    writer = await client.ledgers.create(replication=R332)
    await writer.append_many([payload(n) for n in range(5)])
    await writer.aclose()
    return writer.ledger_id


@pytest.mark.parametrize(
    ("bookies", "comes_back"), [(3, True), (3, False), (4, False)], ids=["back", "away", "replaced"]
)
@pytest.mark.parametrize("happens", [True, False], ids=["closed", "not closed"])
async def test_rule_24_a_writer_that_dies_at_its_close_has_filed_the_copies_that_were_lost(
    happens: bool, bookies: int, comes_back: bool, clock: MockClock
) -> None:
    async with (
        open_cluster(bookies=bookies) as cluster,
        cluster.client() as client,
        cluster.client() as other,
    ):
        queue = await set_up(other)
        writer, bookie = await with_a_lost_copy(cluster, client, comes_back=comes_back)
        assert len(writer.metadata.fragments) == bookies - 2

        async def dies(call: Call, go_on: GoOn) -> object:
            if closes(call, writer.ledger_id):
                if happens:
                    await go_on()
                await trio.sleep_forever()
            return await go_on()

        client.store.faults.append(dies)
        with trio.move_on_after(5):
            await writer.close()
        assert (await other.ledgers.metadata(writer.ledger_id)).is_closed is happens
        assert await incomplete(queue, writer.ledger_id) == ((bookie,) if happens else None)


async def test_rule_24_a_task_that_a_worker_ends_after_the_close_is_not_made_again(clock: MockClock) -> None:
    """The worker saw the closed ledger, and gave the bookie all that it lacked."""
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        writer, _ = await with_a_lost_copy(cluster, client)

        async def ends_it(call: Call, go_on: GoOn) -> object:
            answer = await go_on()
            if closes(call, writer.ledger_id):
                await drop_task(client.store, writer.ledger_id)
            return answer

        client.store.faults.append(ends_it)
        await writer.close()
        assert await queue.tasks() == []


@pytest.mark.parametrize("happens", [True, False], ids=["closed", "not closed"])
async def test_rule_24_a_recoverer_that_dies_at_its_close_has_filed_the_repair(
    happens: bool, clock: MockClock
) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client, cluster.client() as other:
        queue = await set_up(other)
        ledger_id = await abandoned(client)

        async def dies(call: Call, go_on: GoOn) -> object:
            if closes(call, ledger_id):
                if happens:
                    await go_on()
                await trio.sleep_forever()
            return await go_on()

        client.store.faults.append(dies)
        with trio.move_on_after(5):
            await client.ledgers.recover(ledger_id)
        assert (await other.ledgers.metadata(ledger_id)).is_closed is happens
        assert await queue.tasks() == ([ledger_id] if happens else [])


async def test_rule_24_a_ledger_that_another_recoverer_closes_first_is_filed(clock: MockClock) -> None:
    """The other one may be of version 0.1, and die before it files."""
    async with open_cluster(bookies=3) as cluster, cluster.client() as client, cluster.client() as other:
        queue = await set_up(other)
        ledger_id = await abandoned(client)

        async def loses_the_race(call: Call, go_on: GoOn) -> object:
            if closes(call, ledger_id):
                client.store.faults.clear()
                await other.ledgers.recover(ledger_id)
                await drop_task(other.store, ledger_id)
            return await go_on()

        client.store.faults.append(loses_the_race)
        await client.ledgers.recover(ledger_id)
        assert await queue.tasks() == [ledger_id]


async def test_rule_24_a_task_that_a_worker_ends_before_the_close_is_made_again(clock: MockClock) -> None:
    """The worker saw the ledger before it was closed."""
    async with open_cluster(bookies=3) as cluster, cluster.client() as client, cluster.client() as other:
        queue = await set_up(other)
        ledger_id = await abandoned(client)
        await queue.post(ledger_id, incomplete=["b1"])
        ended: list[int] = []

        async def ends_it(call: Call, go_on: GoOn) -> object:
            if closes(call, ledger_id) and not ended:
                ended.append(ledger_id)
                await drop_task(other.store, ledger_id)
            return await go_on()

        client.store.faults.append(ends_it)
        await client.ledgers.recover(ledger_id)
        assert ended
        assert await queue.tasks() == [ledger_id]


async def test_rule_24_a_task_that_is_there_keeps_the_bookies_that_it_names(clock: MockClock) -> None:
    async with open_cluster(bookies=3) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await abandoned(client)
        await queue.post(ledger_id, incomplete=["b1"])
        await client.ledgers.recover(ledger_id)
        assert await incomplete(queue, ledger_id) == ("b1",)
