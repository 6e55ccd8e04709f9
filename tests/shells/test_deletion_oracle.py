"""What the metadata store must have said before a bookie deletes a ledger (rule 25)."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import trio

from bookie.server.deletion_oracle import MetadataDeletionOracle
from ledgerlog.errors import MetadataUnavailable, WrongCluster
from ledgerlog.meta.memory import Content, MemoryTree
from ledgerlog.meta.store import NodeExists
from ledgerlog.model.layout import CLUSTER, LEDGER_COUNTER, RESTORED, ledger_path
from ledgerlog.model.restoration import Restoration
from ledgerlog.testing.faulty_store import Call, FaultyStore, GoOn, StaleReplica, unreachable_after
from tests.waiting import PATIENCE_S


async def short_listing(call: Call, go_on: GoOn) -> Any:
    """Listings leave out all but the first."""
    found = await go_on()
    return found[:1] if call.verb == "children" else found


@pytest.fixture
async def store() -> FaultyStore:
    store = FaultyStore(MemoryTree())
    for _ in range(5):
        ledger_id = await store.next_id(LEDGER_COUNTER)
        await store.create(ledger_path(ledger_id), b"metadata")
    await store.delete(ledger_path(1))
    await store.delete(ledger_path(3))
    return store


async def test_only_ledgers_without_a_node_are_gone(store: FaultyStore) -> None:
    assert await MetadataDeletionOracle(store).surely_gone([0, 1, 2, 3, 4]) == [1, 3]


async def test_a_listing_that_leaves_ledgers_out_deletes_none_of_them(store: FaultyStore) -> None:
    store.faults.append(short_listing)
    assert await MetadataDeletionOracle(store).surely_gone([0, 1, 2, 3, 4]) == [1, 3]


async def test_nothing_is_said_of_ids_that_were_never_given_out(store: FaultyStore) -> None:
    assert await MetadataDeletionOracle(store).surely_gone([4, 5, 10**12]) == []


async def test_a_ledger_that_a_replica_has_not_seen_yet_is_not_gone(store: FaultyStore) -> None:
    ledger_id = await store.next_id(LEDGER_COUNTER)
    behind = store.inner._tree.content
    await store.create(ledger_path(ledger_id), b"metadata")
    store.faults.append(StaleReplica(behind))
    store.faults.append(short_listing)
    assert await MetadataDeletionOracle(store).surely_gone([ledger_id]) == []


async def test_the_newest_ledger_can_be_gone_too(store: FaultyStore) -> None:
    await store.delete(ledger_path(4))
    assert await MetadataDeletionOracle(store).surely_gone([4, 5]) == [4]


@pytest.mark.parametrize("calls", range(9))
async def test_a_store_that_stops_answering_says_nothing_at_all(store: FaultyStore, calls: int) -> None:
    store.faults.append(unreachable_after(calls))
    with trio.fail_after(PATIENCE_S):
        if calls == 8:
            assert await MetadataDeletionOracle(store).surely_gone([0, 1, 2, 3, 4]) == [1, 3]
        else:
            with pytest.raises(MetadataUnavailable):
                await MetadataDeletionOracle(store).surely_gone([0, 1, 2, 3, 4])


async def test_a_store_that_was_emptied_meanwhile_says_nothing_at_all(store: FaultyStore) -> None:
    """Who empties a store may take the node that says whose it is away last."""
    await store.create(CLUSTER, b"ours")
    store.belong_to("ours")

    async def emptied_before_it_answers(call: Call, go_on: GoOn) -> Any:
        if call.verb == "get":
            store.inner._tree.exchange(Content())
            return None
        return await go_on()

    store.faults.append(emptied_before_it_answers)
    with pytest.raises(WrongCluster):
        await MetadataDeletionOracle(store).surely_gone([0, 1, 2, 3, 4])
    store.faults.clear()
    with pytest.raises(WrongCluster):
        await MetadataDeletionOracle(store).surely_gone([0, 1, 2, 3, 4])


async def test_after_a_restore_nothing_from_before_it_is_gone_until_somebody_accepts_that(
    store: FaultyStore,
) -> None:
    await store.skip_ids(LEDGER_COUNTER, 99)
    held = Restoration(floor=100, counter=4, backup_ms=1, restored_ms=2)
    await store.create(RESTORED, held.encode())
    assert await store.next_id(LEDGER_COUNTER) == 100
    assert await MetadataDeletionOracle(store).surely_gone([1, 3, 50, 99, 100, 101]) == [100]
    await store.delete(RESTORED)
    assert await MetadataDeletionOracle(store).surely_gone([1, 3, 50, 99, 100, 101]) == [1, 3, 50, 99, 100]


@pytest.mark.parametrize("question", ["surely gone", "absent"])
async def test_what_is_brought_back_before_the_loss_is_accepted_is_not_gone(
    store: FaultyStore, question: str
) -> None:
    """Both happen after the oracle has asked about the ledger."""
    held = Restoration(floor=4, counter=4, backup_ms=1, restored_ms=2)
    await store.create(RESTORED, held.encode())
    syncs = 0

    async def brought_back_and_accepted(call: Call, go_on: GoOn) -> Any:
        nonlocal syncs
        if call.verb == "sync":
            syncs += 1
            if syncs == 2:  # The answers are there.
                await store.inner.create(ledger_path(3), b"metadata")
                await store.inner.delete(RESTORED)
        return await go_on()

    store.faults.append(brought_back_and_accepted)
    oracle = MetadataDeletionOracle(store)
    found = await (oracle.surely_gone([1, 3]) if question == "surely gone" else oracle.absent(0, 4))
    assert found == []
    assert syncs == 2


async def test_a_restore_during_the_questions_deletes_nothing(store: FaultyStore) -> None:
    """The record of the restore is there before any answer of the restored store."""

    async def restored_before_it_answers(call: Call, go_on: GoOn) -> Any:
        if call.verb == "get" and call.path != RESTORED and await store.inner.get(RESTORED) is None:
            held = Restoration(floor=100, counter=4, backup_ms=1, restored_ms=2)
            with contextlib.suppress(NodeExists):  # Another of the questions did it.
                await store.inner.create(RESTORED, held.encode())
        return await go_on()

    store.faults.append(restored_before_it_answers)
    assert await MetadataDeletionOracle(store).surely_gone([0, 1, 2, 3, 4]) == []


async def test_a_record_of_a_restore_that_does_not_decode_deletes_nothing(store: FaultyStore) -> None:
    await store.create(RESTORED, b"?")
    with pytest.raises(MetadataUnavailable, match="the record of the last restore"):
        await MetadataDeletionOracle(store).surely_gone([0, 1, 2, 3, 4])


# --- listings -------------------------------------------------------------------------------------


async def test_ids_without_a_ledger_are_absent_and_later_ones_are_not(store: FaultyStore) -> None:
    oracle = MetadataDeletionOracle(store)
    assert await oracle.absent(0, 10**12) == [(1, 1), (3, 3)]
    assert await oracle.absent(2, 2) == []
    assert await oracle.absent(3, 4) == [(3, 3)]
    await store.skip_ids(LEDGER_COUNTER, 10**9)
    await store.create(ledger_path(10**9 + 7), b"metadata")
    await store.next_id(LEDGER_COUNTER)
    assert await oracle.absent(2, 10**12) == [(3, 3), (5, 10**9 + 1)]
    listings: list[str] = []

    async def note(call: Call, go_on: GoOn) -> Any:
        if call.verb == "children":
            listings.append(call.path)
        return await go_on()

    store.faults.append(note)
    await oracle.absent(2, 10**12)
    assert len(listings) == 4, "ids that are far apart cost no more"


@pytest.mark.parametrize("calls", range(10))
async def test_a_store_that_stops_answering_lists_nothing(store: FaultyStore, calls: int) -> None:
    store.faults.append(unreachable_after(calls))
    with trio.fail_after(PATIENCE_S):
        if calls == 8:
            assert await MetadataDeletionOracle(store).absent(0, 4) == [(1, 1), (3, 3)]
        elif calls < 8:
            with pytest.raises(MetadataUnavailable):
                await MetadataDeletionOracle(store).absent(0, 4)


async def test_ids_from_before_a_restore_are_not_absent_until_somebody_accepts_that(
    store: FaultyStore,
) -> None:
    await store.skip_ids(LEDGER_COUNTER, 99)
    assert await store.next_id(LEDGER_COUNTER) == 100
    await store.create(RESTORED, Restoration(floor=100, counter=4, backup_ms=1, restored_ms=2).encode())
    assert await MetadataDeletionOracle(store).absent(0, 100) == [(100, 100)]
    await store.delete(RESTORED)
    assert await MetadataDeletionOracle(store).absent(0, 100) == [(1, 1), (3, 3), (5, 100)]
