"""What the memory tree adds to the contract: clients that lose contact, and the same history for the same
seed.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ledgerlog.errors import MetadataUnavailable
from ledgerlog.meta.memory import MemoryTree
from ledgerlog.meta.store import SessionState, VersionConflict, Versioned
from tests.waiting import PATIENCE_S


async def test_a_disconnected_client_is_suspended_and_reaches_nothing_while_its_nodes_stay() -> None:
    tree = MemoryTree()
    store, other = tree.open_store(), tree.open_store()
    await store.create("m/a", b"", ephemeral=True)
    session = store.session
    store.disconnect()
    assert session.state is SessionState.SUSPENDED
    with pytest.raises(MetadataUnavailable):
        await store.get("m/a")
    with pytest.raises(MetadataUnavailable):
        await store.create("b", b"")
    assert await other.children("m") == ["a"]
    assert await other.get("b") is None
    store.reconnect()
    assert store.session is session
    assert session.state is SessionState.CONNECTED
    assert await store.children("m") == ["a"]


async def test_a_session_that_expires_while_its_client_is_away_is_lost_only_when_it_is_back() -> None:
    tree = MemoryTree()
    store, other = tree.open_store(), tree.open_store()
    await store.create("m/a", b"", ephemeral=True)
    session = store.session
    store.disconnect()
    store.expire_session()
    assert await other.children("m") == []
    assert session.state is SessionState.SUSPENDED
    store.reconnect()
    assert session.state is SessionState.LOST
    assert store.session.state is SessionState.CONNECTED
    assert store.session.session_id != session.session_id


async def test_what_changed_while_a_client_was_away_wakes_its_watch_when_it_is_back() -> None:
    tree = MemoryTree()
    store, other = tree.open_store(), tree.open_store()
    async with store.watch("w") as watch:
        store.disconnect()
        await other.create("w", b"")
        store.reconnect()
        with trio.fail_after(PATIENCE_S):
            await watch.wait()


async def test_whoever_waits_on_a_session_sees_each_change_of_its_state() -> None:
    store = MemoryTree().open_store()
    session = store.session
    seen = []

    async def follow() -> None:
        state = session.state
        while state is not SessionState.LOST:
            state = await session.wait_not(state)
            seen.append(state)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        store.disconnect()
        await trio.testing.wait_all_tasks_blocked()
        store.reconnect()
        await trio.testing.wait_all_tasks_blocked()
        store.expire_session()
    assert seen == [SessionState.SUSPENDED, SessionState.CONNECTED, SessionState.LOST]


async def test_a_closed_store_gives_up_its_session_and_opens_no_other() -> None:
    tree = MemoryTree()
    other = tree.open_store()
    async with tree.open_store() as store:
        await store.create("a", b"", ephemeral=True)
        session = store.session
    assert await other.get("a") is None
    assert store.session is session
    assert session.state is SessionState.LOST
    store.reconnect()
    assert store.session is session
    with pytest.raises(MetadataUnavailable):
        await store.get("a")


async def test_versions_are_as_weak_as_zookeepers() -> None:
    store = MemoryTree().open_store()
    assert await store.create("a", b"first") == 0
    assert await store.set("a", b"", version=0) == 1
    await store.delete("a")
    assert await store.create("a", b"second") == 0
    with pytest.raises(VersionConflict):
        await store.set("a", b"", version=1)
    assert await store.get("a") == Versioned(b"second", 0)


async def test_session_ids_are_the_same_in_every_run() -> None:
    tree = MemoryTree()
    assert [tree.open_store().session.session_id for _ in range(3)] == ["memory-1", "memory-2", "memory-3"]
