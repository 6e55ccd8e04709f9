"""If a store answers reads and no writes, each change ends in time with an unknown outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from ledgerlog.errors import MetadataOutcomeUnknown, MetadataUnavailable
from ledgerlog.limits import METADATA_TIMEOUT_S
from ledgerlog.log.log import Log, create_log, delete_log
from ledgerlog.log.snapshot_list import SnapshotList
from ledgerlog.meta.memory import MemoryStore, MemoryTree
from ledgerlog.meta.settle import remove, settle
from ledgerlog.meta.store import VersionConflict
from ledgerlog.model.snapshots import ListedSnapshot
from ledgerlog.testing.faulty_store import FaultyStore, answer_lost_behind
from ledgerlog.testing.memory_cluster import Client, open_cluster


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


async def create_another(client: Client, log: Log) -> object:
    async def first_write() -> None:
        client.store.lost_writes = 0  # It gets its number.
        client.store.before_write = second_write

    async def second_write() -> None:
        client.store.lost_writes = 100_000

    client.store.before_write = first_write
    return await create_log(client.opened, "another")


async def delete(client: Client, log: Log) -> object:
    return await delete_log(client.opened, "log")


async def truncate(client: Client, log: Log) -> object:
    return await log.truncate(5)


async def move_cursor(client: Client, log: Log) -> object:
    return await log.cursor("new").move(3, expected=None)


async def delete_cursor(client: Client, log: Log) -> object:
    return await log.cursor("old").delete()


async def list_snapshot(client: Client, log: Log) -> object:
    snapshots = SnapshotList(client.store, log.incarnation)
    return await snapshots.change(lambda there: [ListedSnapshot(len(there) + 1, 1, 1)])


async def delete_snapshot_list(client: Client, log: Log) -> object:
    return await SnapshotList(client.store, log.incarnation).delete()


@pytest.mark.parametrize(
    "change",
    [create_another, delete, truncate, move_cursor, delete_cursor, list_snapshot, delete_snapshot_list],
)
async def test_a_store_that_answers_no_write_is_not_asked_for_ever(
    autojump_clock: MockClock, change: Callable[[Client, Log], Awaitable[object]]
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        async with log.writer() as writer:
            await writer.append_many([b"x"] * 10)
            await writer.roll()
        await log.cursor("old").move(0, expected=None)
        await list_snapshot(client, log)
        client.store.lost_writes, asked = 100_000, client.store.writes
        begun = trio.current_time()
        with pytest.raises(MetadataOutcomeUnknown):
            await change(client, log)
        assert trio.current_time() - begun <= METADATA_TIMEOUT_S + 1
        assert 10 < client.store.writes - asked < 100, "it pauses, and does not give up at once"


async def test_a_lost_answer_is_settled_at_once_and_a_refusal_is_an_answer(autojump_clock: MockClock) -> None:
    answers = [MetadataOutcomeUnknown(""), VersionConflict(), MetadataOutcomeUnknown("")]
    told = []

    async def attempt(is_unsure: bool) -> float:
        told.append(is_unsure)
        if answers:
            raise answers.pop(0)
        return trio.current_time()

    store, begun = MemoryStore(MemoryTree()), trio.current_time()
    assert await settle(store, attempt, what="it") == begun
    assert told == [False, True, True, True]
    answers[:] = [MetadataOutcomeUnknown(""), MetadataOutcomeUnknown("")]
    assert await settle(store, attempt, what="it") > begun


async def test_a_node_that_always_changes_is_an_error_and_not_a_loop(autojump_clock: MockClock) -> None:
    async def refuse(is_unsure: bool) -> None:
        raise VersionConflict

    with pytest.raises(MetadataUnavailable, match="nothing was written"):
        await settle(MemoryStore(MemoryTree()), refuse, what="it")
    losses = [MetadataOutcomeUnknown("")]

    async def lose_once(is_unsure: bool) -> None:
        raise losses.pop() if losses else VersionConflict

    with pytest.raises(MetadataOutcomeUnknown, match="it may have happened"):
        await settle(MemoryStore(MemoryTree()), lose_once, what="it")


async def test_a_deletion_that_took_effect_leaves_the_node_that_a_rival_made_since() -> None:
    tree = MemoryTree()
    rival = FaultyStore(tree)
    await rival.create("a", b"old")
    store = FaultyStore(tree, answer_lost_behind("a", lambda: rival.create("a", b"new")))
    assert await remove(store, "a")
    found = await rival.get("a")
    assert found is not None
    assert found.value == b"new"
