"""A serving bookie is registered in the metadata store, no matter what happens to its session or its node."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing
from serving import Machine, random_bytes
from trio.testing import MockClock

from bookie.server.registration import Registration
from ledgerlog.concurrency.gathering import race
from ledgerlog.errors import CookieMismatch, MetadataOutcomeUnknown, MetadataUnavailable
from ledgerlog.limits import SESSION_TIMEOUT_S
from ledgerlog.meta.belonging import make_cluster
from ledgerlog.meta.memory import MemoryStore, MemoryTree
from ledgerlog.model import layout
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.testing.faulty_store import FaultyStore

INFO = BookieInfo("b1", "host:1", "instance-1", {"rack": "r1"})
WRITABLE, READ_ONLY = layout.writable_path("b1"), layout.read_only_path("b1")


async def unclaimed() -> None:
    """No other data was ever served under the id."""


class Observer:
    """Another client of the tree, to see what others see."""

    def __init__(self, tree: MemoryTree) -> None:
        self.store = tree.open_store()

    async def lists(self) -> tuple[list[str], list[str]]:
        return (
            await self.store.children(layout.WRITABLE_BOOKIES),
            await self.store.children(layout.READ_ONLY_BOOKIES),
        )

    async def wait_lists(self, writable: list[str], read_only: list[str]) -> None:
        with trio.fail_after(60):
            async with self.store.watch(layout.BOOKIES) as watch:
                while await self.lists() != (writable, read_only):
                    await watch.wait()


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree()


@pytest.fixture
def store(tree: MemoryTree) -> MemoryStore:
    return tree.open_store()


async def test_a_bookie_registers_where_it_serves_and_unregisters_when_it_stops(
    tree: MemoryTree, store: MemoryStore
) -> None:
    registration = Registration(store, INFO, unclaimed)
    await registration.register()
    observer = Observer(tree)
    node = await observer.store.get(WRITABLE)
    assert node is not None
    assert BookieInfo.decode_untrusted(node.value, "b1") == INFO
    await registration.unregister()
    assert await observer.lists() == ([], [])


async def test_to_register_again_changes_nothing(tree: MemoryTree, store: MemoryStore) -> None:
    registration = Registration(store, INFO, unclaimed)
    await registration.register()
    first = await store.get(WRITABLE)
    await registration.register()
    assert await store.get(WRITABLE) == first


@pytest.mark.parametrize("path", [WRITABLE, READ_ONLY])
async def test_the_registration_of_an_earlier_process_is_waited_out_until_its_session_ends(
    tree: MemoryTree, store: MemoryStore, nursery: trio.Nursery, path: str
) -> None:
    earlier = tree.open_store()
    await earlier.create(path, INFO.encode(), ephemeral=True)
    registration = Registration(store, INFO, unclaimed)
    registered = trio.Event()

    async def register() -> None:
        await registration.register()
        registered.set()

    nursery.start_soon(register)
    await trio.testing.wait_all_tasks_blocked()
    assert not registered.is_set()
    assert (await store.get(path)) is not None
    earlier.expire_session()
    with trio.fail_after(60):
        await registered.wait()
    assert await Observer(tree).lists() == (["b1"], [])


@pytest.mark.parametrize("address", [INFO.address, "host:2"])
@pytest.mark.parametrize("path", [WRITABLE, READ_ONLY])
async def test_a_node_of_an_earlier_process_in_the_same_place_is_replaced_at_once(
    tree: MemoryTree, store: MemoryStore, path: str, address: str, clock: MockClock
) -> None:
    earlier = tree.open_store()
    former = attrs.evolve(INFO, address=address, place="boot/1/2")
    await earlier.create(path, former.encode(), ephemeral=True)
    info = attrs.evolve(INFO, place="boot/1/2")
    registration = Registration(store, info, unclaimed)
    with trio.fail_after(1):
        await registration.register()
    # The old session ends only now. The registration of the new process stays.
    earlier.expire_session()
    observer = Observer(tree)
    assert await observer.lists() == (["b1"], [])
    node = await observer.store.get(WRITABLE)
    assert node is not None
    assert BookieInfo.decode_untrusted(node.value, "b1") == info


@pytest.mark.parametrize("place", ["", "boot/1/3"])
async def test_a_node_from_another_place_is_never_replaced(
    tree: MemoryTree, store: MemoryStore, place: str, autojump_clock: trio.testing.MockClock
) -> None:
    other = attrs.evolve(INFO, place=place)
    await tree.open_store().create(WRITABLE, other.encode(), ephemeral=True)
    before = await store.get(WRITABLE)
    with pytest.raises(CookieMismatch):
        await Registration(store, attrs.evolve(INFO, place="boot/1/2" if place else ""), unclaimed).register()
    assert await store.get(WRITABLE) == before


@pytest.mark.parametrize("path", [WRITABLE, READ_ONLY])
async def test_a_bookie_whose_id_another_living_process_is_registered_under_is_refused(
    tree: MemoryTree, store: MemoryStore, path: str, autojump_clock: trio.testing.MockClock
) -> None:
    other = attrs.evolve(INFO, address="elsewhere:7")
    await tree.open_store().create(path, other.encode(), ephemeral=True)
    before = await store.get(path)
    start = trio.current_time()
    with pytest.raises(CookieMismatch, match=r"bookie b1 is registered at elsewhere:7 .*new --id"):
        await Registration(store, INFO, unclaimed).register()
    assert SESSION_TIMEOUT_S < trio.current_time() - start < 2 * SESSION_TIMEOUT_S
    assert await store.get(path) == before


async def test_two_bookies_with_one_id_do_not_push_each_other_out(
    tree: MemoryTree,
    store: MemoryStore,
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = Registration(store, INFO, unclaimed)
    await first.register()
    store.expire_session()  # The bookie was out of contact, and meanwhile the other one registered.
    other_info = attrs.evolve(INFO, address="elsewhere:7")
    other_store = tree.open_store()
    other = Registration(other_store, other_info, unclaimed)
    await other.register()
    node = await store.get(WRITABLE)
    async with trio.open_nursery() as running:
        running.start_soon(first.run)
        running.start_soon(other.run)
        await trio.sleep(120)
        assert await store.get(WRITABLE) == node
        told = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
        assert len(told) == 1
        assert "elsewhere:7" in told[0]
        other_store.close()
        await trio.sleep(60)
        node = await store.get(WRITABLE)
        assert node is not None
        assert node.value == INFO.encode()
        running.cancel_scope.cancel()


async def test_a_bookie_whose_session_was_lost_registers_in_the_new_one(
    tree: MemoryTree, store: MemoryStore, nursery: trio.Nursery
) -> None:
    registration = Registration(store, INFO, unclaimed)
    await registration.register()
    nursery.start_soon(registration.run)
    await trio.testing.wait_all_tasks_blocked()
    store.expire_session()
    await Observer(tree).wait_lists(["b1"], [])


async def test_a_bookie_that_was_out_of_contact_for_too_long_registers_when_it_is_back(
    tree: MemoryTree, store: MemoryStore, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    registration = Registration(store, INFO, unclaimed)
    await registration.register()
    nursery.start_soon(registration.run)
    await trio.testing.wait_all_tasks_blocked()
    store.disconnect()
    store.expire_session()
    await trio.testing.wait_all_tasks_blocked()
    observer = Observer(tree)
    assert await observer.lists() == ([], [])
    store.reconnect()
    await observer.wait_lists(["b1"], [])


async def test_a_registration_that_somebody_deleted_comes_back(
    tree: MemoryTree, store: MemoryStore, nursery: trio.Nursery
) -> None:
    registration = Registration(store, INFO, unclaimed)
    await registration.register()
    nursery.start_soon(registration.run)
    await trio.testing.wait_all_tasks_blocked()
    observer = Observer(tree)
    await observer.store.delete(WRITABLE)
    await observer.wait_lists(["b1"], [])


async def test_a_bookie_moves_between_the_lists(tree: MemoryTree, store: MemoryStore) -> None:
    registration = Registration(store, INFO, unclaimed)
    await registration.register()
    observer = Observer(tree)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registration.run)
        registration.is_read_only = True
        await observer.wait_lists([], ["b1"])
        registration.is_read_only = False
        await observer.wait_lists(["b1"], [])
        registration.is_read_only = True
        await observer.wait_lists([], ["b1"])
        nursery.cancel_scope.cancel()
    await registration.unregister()
    assert await observer.lists() == ([], [])


async def test_a_bookie_that_turns_read_only_while_it_looks_at_its_node_is_moved(tree: MemoryTree) -> None:
    store = FaultyStore(tree)
    registration = Registration(store, INFO, unclaimed)
    observer = Observer(tree)
    await registration.register()

    async def turns(path: str) -> None:
        if path == READ_ONLY:  # It is read last, and no write follows.
            store.before_get = None
            registration.is_read_only = True

    store.before_get = turns
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registration.run)
        await observer.wait_lists([], ["b1"])
        nursery.cancel_scope.cancel()


async def test_a_conflict_after_a_lost_answer_leaves_the_doubt(tree: MemoryTree) -> None:
    """The node that the lost write made is still taken for our own."""
    store = FaultyStore(tree)
    registration = Registration(store, INFO, unclaimed)
    store.lost_answers = 1
    with pytest.raises(MetadataOutcomeUnknown):
        await registration.register()

    async def touched() -> None:
        node = await store.inner.get(WRITABLE)
        assert node is not None
        await store.inner.set(WRITABLE, node.value, version=node.version)

    store.before_write = touched
    await registration.register()
    assert store.before_write is None
    assert registration.is_registered
    assert await Observer(tree).lists() == (["b1"], [])


async def test_a_store_that_cannot_be_reached_is_told_once_and_asked_again(
    tree: MemoryTree,
    store: MemoryStore,
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    registration = Registration(store, INFO, unclaimed)
    store.disconnect()
    with pytest.raises(MetadataUnavailable):
        await registration.register()
    # The session does not know yet that it is over.
    store._session._become(type(store._session.state).CONNECTED)
    nursery.start_soon(registration.run)
    await trio.sleep(60)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    store.reconnect()
    await Observer(tree).wait_lists(["b1"], [])


async def test_what_cannot_be_unregistered_goes_with_the_session(
    tree: MemoryTree, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    registration = Registration(store, INFO, unclaimed)
    await registration.register()
    store.disconnect()
    await registration.unregister()
    assert "ends with the session" in caplog.text
    store.close()
    assert await Observer(tree).lists() == ([], [])


async def test_a_registration_that_is_not_ours_any_more_is_left_alone(
    tree: MemoryTree, store: MemoryStore
) -> None:
    registration = Registration(store, INFO, unclaimed)
    await registration.register()
    store.expire_session()
    later = tree.open_store()
    await later.create(WRITABLE, b"another life", ephemeral=True)
    await registration.unregister()
    assert await Observer(tree).lists() == (["b1"], [])


@pytest.mark.parametrize("is_in_race", [False, True])
async def test_a_bookie_that_is_cancelled_unregisters(
    tree: MemoryTree, autojump_clock: MockClock, is_in_race: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session may go on, as while its index is made again. A race raises a group of cancellations."""
    machine = Machine(tree=tree, ledgers={})
    observer = Observer(tree)
    await make_cluster(observer.store, random_bytes)
    unregister, left = Registration.unregister, []

    async def look(registration: Registration) -> None:
        await unregister(registration)
        left.append(await observer.lists())

    monkeypatch.setattr(Registration, "unregister", look)
    with trio.CancelScope() as scope:
        async with machine.bookie():
            assert await observer.lists() == (["b1"], [])
            scope.cancel()
            if is_in_race:
                await race(trio.sleep_forever, trio.sleep_forever)
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert left == [([], [])]
