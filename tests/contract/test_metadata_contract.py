"""One suite for every metadata store: each sentence of ``ledgerlog.meta.store`` has a test.

A ``World`` is one tree with as many clients as a test opens. To test another store, write its world and add
it to ``WORLDS``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest
import trio
import trio.testing

from ledgerlog import limits
from ledgerlog.errors import (
    InvalidArgument,
    LedgerLogError,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    SessionExpired,
)
from ledgerlog.meta.memory import MemoryStore, MemoryTree
from ledgerlog.meta.outside_store import OutsideStore
from ledgerlog.meta.sqlite import open_sqlite_store
from ledgerlog.meta.store import (
    Check,
    Create,
    Delete,
    MetadataSession,
    MetadataStore,
    NodeExists,
    NodeHasChildren,
    NodeMissing,
    Operation,
    SessionState,
    Set,
    VersionConflict,
    Versioned,
    Watch,
)
from ledgerlog.meta.zookeeper.store import ZooKeeperStore, open_zookeeper_store
from ledgerlog.testing.faulty_store import FaultyStore
from tests.waiting import PATIENCE_S
from tests.waiting import until as eventually
from tests.zookeepers import expire_session, new_chroot

NEVER = 2**62
"""A version that no store shows."""


class World(Protocol):
    async def open_store(self) -> MetadataStore: ...

    async def close_store(self, store: MetadataStore) -> None: ...

    async def expire_session(self, store: MetadataStore) -> None:
        """End the store's session, on the tree's side."""
        ...


class MemoryWorld:
    def __init__(self) -> None:
        self.tree = MemoryTree()

    async def open_store(self) -> MetadataStore:
        return self.tree.open_store()

    async def close_store(self, store: MetadataStore) -> None:
        assert isinstance(store, MemoryStore)
        store.close()

    async def expire_session(self, store: MetadataStore) -> None:
        assert isinstance(store, MemoryStore)
        store.expire_session()


class FaultyWorld:
    """The fake with faults, without any fault set."""

    def __init__(self) -> None:
        self.tree = MemoryTree()

    async def open_store(self) -> MetadataStore:
        return FaultyStore(self.tree)

    async def close_store(self, store: MetadataStore) -> None:
        assert isinstance(store, FaultyStore)
        store.inner.close()

    async def expire_session(self, store: MetadataStore) -> None:
        assert isinstance(store, FaultyStore)
        store.inner.expire_session()


class OutsideWorld:
    """The store as a bookie uses it."""

    def __init__(self) -> None:
        self.inner = MemoryWorld()
        self.stores: dict[MetadataStore, MetadataStore] = {}

    async def open_store(self) -> MetadataStore:
        store = await self.inner.open_store()
        outside = OutsideStore(store)
        self.stores[outside] = store
        return outside

    async def close_store(self, store: MetadataStore) -> None:
        await self.inner.close_store(self.stores[store])

    async def expire_session(self, store: MetadataStore) -> None:
        await self.inner.expire_session(self.stores[store])


class HeldStores:
    """Each store lives in its own task, so any test or fixture may open and close it."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._closing: dict[int, tuple[trio.Event, trio.Event]] = {}

    def _open(self) -> AbstractAsyncContextManager[MetadataStore]:
        raise NotImplementedError

    async def _hold(self, *, task_status: trio.TaskStatus[MetadataStore]) -> None:
        close, closed = trio.Event(), trio.Event()
        async with self._open() as store:
            self._closing[id(store)] = close, closed
            task_status.started(store)
            await close.wait()
        closed.set()

    async def open_store(self) -> MetadataStore:
        store: MetadataStore = await self._nursery.start(self._hold)
        return store

    async def close_store(self, store: MetadataStore) -> None:
        close, closed = self._closing[id(store)]
        close.set()
        await closed.wait()


class SqliteWorld(HeldStores):
    def __init__(self, path: Path, nursery: trio.Nursery) -> None:
        super().__init__(nursery)
        self.path = path

    def _open(self) -> AbstractAsyncContextManager[MetadataStore]:
        return open_sqlite_store(self.path, session_timeout_s=10.0)

    async def expire_session(self, store: MetadataStore) -> None:
        connection = sqlite3.connect(self.path)
        with connection:
            connection.execute(
                "UPDATE sessions SET lease_until_ns = 0 WHERE session_id = ?", (store.session.session_id,)
            )
        connection.close()


class ZooKeeperWorld(HeldStores):
    """A tree of its own on the shared server."""

    def __init__(self, hosts: str, nursery: trio.Nursery) -> None:
        super().__init__(nursery)
        self.hosts = hosts
        self.chroot = new_chroot()

    def _open(self) -> AbstractAsyncContextManager[MetadataStore]:
        return open_zookeeper_store(self.hosts, chroot=self.chroot)

    async def expire_session(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        await expire_session(store, self.hosts)


WORLDS = ["memory", "faulty", "outside", "sqlite", pytest.param("zookeeper", marks=pytest.mark.processes)]


@pytest.fixture(params=WORLDS)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def hosts(kind: str, request: pytest.FixtureRequest) -> str:
    if kind != "zookeeper":
        return ""
    hosts: str = request.getfixturevalue("zookeeper_hosts")
    return hosts


@pytest.fixture
async def world(kind: str, hosts: str, tmp_path: Path) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        if kind == "memory":
            yield MemoryWorld()
        elif kind == "faulty":
            yield FaultyWorld()
        elif kind == "outside":
            yield OutsideWorld()
        elif kind == "sqlite":
            yield SqliteWorld(tmp_path / "new" / "meta.db", nursery)
        else:
            yield ZooKeeperWorld(hosts, nursery)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def store(world: World) -> MetadataStore:
    return await world.open_store()


@pytest.fixture
async def other(world: World) -> MetadataStore:
    return await world.open_store()


async def returns(watch: Watch) -> None:
    with trio.fail_after(PATIENCE_S):
        await watch.wait()


async def until(watch: Watch, condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds, in the level-triggered way in which every user of a watch does it."""
    with trio.fail_after(PATIENCE_S):
        while not await condition():
            await watch.wait()


def _has_new_session(store: MetadataStore, before: MetadataSession) -> bool:
    return store.session is not before


async def _is_missing(store: MetadataStore, path: str) -> bool:
    return await store.get(path) is None


# --- values and versions --------------------------------------------------------------------------


async def test_a_path_without_a_node_reads_as_none(store: MetadataStore) -> None:
    assert await store.get("nothing/here") is None


async def test_what_was_created_is_read_with_its_version_by_every_client(
    store: MetadataStore, other: MetadataStore
) -> None:
    version = await store.create("a", b"\0value\xff")
    assert await store.get("a") == await other.get("a") == Versioned(b"\0value\xff", version)


async def test_a_parent_need_not_be_created_first(store: MetadataStore) -> None:
    await store.create("a/b/c", b"deep")
    assert await store.children("a") == ["b"]
    assert await store.children("a/b") == ["c"]


async def test_a_node_may_have_a_value_and_children(store: MetadataStore) -> None:
    version = await store.create("a", b"value")
    await store.create("a/b", b"child")
    assert await store.get("a") == Versioned(b"value", version)
    assert await store.children("a") == ["b"]


async def test_a_second_create_fails_and_changes_nothing(store: MetadataStore, other: MetadataStore) -> None:
    version = await store.create("a", b"first")
    for ephemeral in (False, True):
        with pytest.raises(NodeExists):
            await other.create("a", b"second", ephemeral=ephemeral)
    assert await store.get("a") == Versioned(b"first", version)


async def test_a_set_at_the_version_read_replaces_the_value_and_grows_the_version(
    store: MetadataStore,
) -> None:
    versions = [await store.create("a", b"0")]
    for value in (b"1", b"1", b""):
        versions.append(await store.set("a", value, version=versions[-1]))
        assert await store.get("a") == Versioned(value, versions[-1])
    assert versions == sorted(set(versions))


async def test_a_set_at_another_version_conflicts_and_changes_nothing(
    store: MetadataStore, other: MetadataStore
) -> None:
    old = await store.create("a", b"0")
    new = await other.set("a", b"1", version=old)
    for version in (old, NEVER, -1):
        with pytest.raises(VersionConflict):
            await store.set("a", b"2", version=version)
    assert await store.get("a") == Versioned(b"1", new)


async def test_a_set_of_a_missing_node_fails_and_makes_none(store: MetadataStore) -> None:
    with pytest.raises(NodeMissing):
        await store.set("a", b"", version=0)
    assert await store.get("a") is None


async def test_of_many_writers_at_one_version_exactly_one_wins(
    store: MetadataStore, other: MetadataStore
) -> None:
    version = await store.create("a", b"")
    won = []

    async def write(client: MetadataStore, name: bytes) -> None:
        try:
            await client.set("a", name, version=version)
        except VersionConflict:
            return
        won.append(name)

    async with trio.open_nursery() as nursery:
        for n in range(8):
            nursery.start_soon(write, store if n % 2 else other, b"%d" % n)
    node = await store.get("a")
    assert node is not None
    assert won == [node.value]


# The other stores may give a node's old versions again after a delete.
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_a_version_never_comes_back_where_the_store_promises_so(store: MetadataStore) -> None:
    old = await store.create("a", b"same")
    await store.delete("a")
    assert await store.create("a", b"same") > old
    with pytest.raises(VersionConflict):
        await store.set("a", b"", version=old)


# --- delete and children --------------------------------------------------------------------------


async def test_a_deleted_node_is_gone_for_everyone(store: MetadataStore, other: MetadataStore) -> None:
    version = await store.create("a", b"")
    await store.delete("a", version=version)
    assert await other.get("a") is None
    await store.create("b", b"")
    await other.delete("b")
    assert await store.get("b") is None


async def test_a_delete_at_another_version_conflicts_and_changes_nothing(store: MetadataStore) -> None:
    old = await store.create("a", b"0")
    new = await store.set("a", b"1", version=old)
    for version in (old, NEVER):
        with pytest.raises(VersionConflict):
            await store.delete("a", version=version)
    assert await store.get("a") == Versioned(b"1", new)


@pytest.mark.parametrize("version", [None, 0])
async def test_a_delete_of_a_missing_node_fails(store: MetadataStore, version: int | None) -> None:
    with pytest.raises(NodeMissing):
        await store.delete("a", version=version)


@pytest.mark.parametrize("below", ["a/b", "a/b/c/d"])
async def test_a_node_with_children_is_not_deleted(store: MetadataStore, below: str) -> None:
    version = await store.create("a", b"value")
    await store.create(below, b"")
    for expected in (None, version):
        with pytest.raises(NodeHasChildren):
            await store.delete("a", version=expected)
    assert await store.get("a") == Versioned(b"value", version)
    assert await store.children("a") == ["b"]


async def test_a_node_whose_name_only_begins_alike_is_no_child(store: MetadataStore) -> None:
    await store.create("a", b"")
    for sibling in ("a-b", "a.b", "a0", "aa", "a!/x"):
        await store.create(sibling, b"")
    assert await store.children("a") == []
    await store.delete("a")


async def test_children_are_complete_sorted_and_named_once(store: MetadataStore) -> None:
    names = ["b", "b-x", "b!", "b0", "a", "é", "z", "B", "10", "9", "\U0001f600"]
    for name in names:
        await store.create(f"p/{name}", b"")
        await store.create(f"p/{name}/below/1", b"")
        await store.create(f"p/{name}/below/2", b"")
    await store.create("p/only/below", b"")
    await store.create("pp/other", b"")
    assert await store.children("p") == sorted([*names, "only"])


async def test_a_path_without_children_has_none_whether_it_exists_or_not(store: MetadataStore) -> None:
    await store.create("a", b"")
    assert await store.children("a") == []
    assert await store.children("missing") == []


async def test_many_children_are_listed_completely(store: MetadataStore) -> None:
    names = [f"{n:05}" for n in range(3000)]
    for first in range(0, 3000, 500):
        await store.transaction([Create(f"many/{name}", b"") for name in names[first : first + 500]])
    assert await store.children("many") == names


# --- transactions ---------------------------------------------------------------------------------


async def test_a_transaction_does_all_in_order_and_gives_the_versions(
    store: MetadataStore, other: MetadataStore
) -> None:
    a, b, c = [await store.create(path, b"0") for path in "abc"]
    versions = await store.transaction(
        [
            Set("a", b"1", a),
            Delete("b", b),
            Create("b/child", b"2"),
            Check("c", c),
            Create("b", b"3"),
            Delete("c"),
        ]
    )
    assert [versions[1], versions[3], versions[5]] == [0, c, 0]
    assert await other.get("a") == Versioned(b"1", versions[0])
    assert await other.get("b/child") == Versioned(b"2", versions[2])
    assert await other.get("b") == Versioned(b"3", versions[4])
    assert await other.get("c") is None


async def test_an_empty_transaction_does_nothing(store: MetadataStore) -> None:
    assert await store.transaction([]) == []


FAILING: list[tuple[Operation, type[LedgerLogError]]] = [
    (Create("there", b"x"), NodeExists),
    (Create("there", b"x", ephemeral=True), NodeExists),
    (Set("missing", b"x", 0), NodeMissing),
    (Set("there", b"x", NEVER), VersionConflict),
    (Delete("missing"), NodeMissing),
    (Delete("missing", 0), NodeMissing),
    (Delete("there", NEVER), VersionConflict),
    (Delete("parent"), NodeHasChildren),
    (Check("missing", 0), NodeMissing),
    (Check("there", NEVER), VersionConflict),
    (Create("eph/child", b""), InvalidArgument),
    (Create("parent/child", b"", ephemeral=True), NodeExists),
    (Create("bare", b"", ephemeral=True), InvalidArgument),
]


@pytest.mark.parametrize("at", [0, 2, 4])
@pytest.mark.parametrize(("failing", "error"), FAILING)
async def test_a_transaction_with_a_failing_operation_changes_nothing(
    store: MetadataStore, failing: Operation, error: type[LedgerLogError], at: int
) -> None:
    there = await store.create("there", b"0")
    parent = await store.create("parent", b"0")
    child = await store.create("parent/child", b"0")
    gone = await store.create("gone", b"0")
    await store.create("bare/below", b"0")
    await store.create("eph", b"0", ephemeral=True)
    operations: list[Operation] = [
        Create("new", b"1"),
        Set("parent/child", b"1", child),
        Delete("gone", gone),
        Create("gone", b"1", ephemeral=True),
    ]
    operations.insert(at, failing)
    with pytest.raises(error):
        await store.transaction(operations)
    assert await store.get("new") is None
    assert await store.get("there") == Versioned(b"0", there)
    assert await store.get("parent") == Versioned(b"0", parent)
    assert await store.get("parent/child") == Versioned(b"0", child)
    assert await store.get("gone") == Versioned(b"0", gone)
    assert await store.children("eph") == []


async def test_a_transaction_raises_what_its_first_failing_operation_would(store: MetadataStore) -> None:
    await store.create("there", b"")
    with pytest.raises(NodeMissing):
        await store.transaction([Create("new", b""), Delete("missing"), Create("there", b"")])
    with pytest.raises(NodeExists):
        await store.transaction([Create("there", b""), Delete("missing")])


async def test_operations_see_those_before_them(store: MetadataStore) -> None:
    await store.transaction([Create("a", b"1"), Delete("a"), Create("a", b"2")])
    node = await store.get("a")
    assert node is not None
    assert node.value == b"2"
    with pytest.raises(NodeExists):
        await store.transaction([Create("b", b""), Create("b", b"")])
    assert await store.get("b") is None


# --- arguments ------------------------------------------------------------------------------------

BAD_PATHS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/..",
    "./a",
    "a/./b",
    "a\0b",
    "a\nb",
    "a\x7f",
    "\ud800",
    "\uf000",
    "\uffff",
    "zookeeper",
    "zookeeper/quota",
    "x" * (limits.METADATA_PATH_BYTES_MAX + 1),
    "é" * (limits.METADATA_PATH_BYTES_MAX // 2 + 1),
]


@pytest.mark.parametrize("path", BAD_PATHS)
async def test_a_path_that_some_store_cannot_keep_is_refused_by_every_call(
    store: MetadataStore, path: str
) -> None:
    calls: list[Callable[[], Awaitable[object]]] = [
        partial(store.get, path),
        partial(store.create, path, b""),
        partial(store.set, path, b"", version=0),
        partial(store.delete, path),
        partial(store.children, path),
        partial(store.next_id, path),
        partial(store.highest_id, path),
        partial(store.transaction, [Create("fine", b""), Check(path, 0)]),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument):
            await call()
    with pytest.raises(InvalidArgument):
        async with store.watch(path):
            pass
    assert await store.get("fine") is None


async def test_a_path_of_the_longest_length_is_kept(store: MetadataStore) -> None:
    path = "é/" + "x" * (limits.METADATA_PATH_BYTES_MAX - 3)
    await store.create(path, b"1")
    assert await store.children("é") == [path[2:]]


async def test_a_value_up_to_the_bound_is_kept_and_one_over_it_is_refused(store: MetadataStore) -> None:
    most = bytes(limits.METADATA_BYTES_MAX)
    version = await store.create("a", most)
    assert await store.get("a") == Versioned(most, version)
    with pytest.raises(InvalidArgument):
        await store.create("b", most + b"\0")
    with pytest.raises(InvalidArgument):
        await store.set("a", most + b"\0", version=version)
    with pytest.raises(InvalidArgument):
        await store.transaction([Create("b", b""), Create("c", most + b"\0")])
    assert await store.get("a") == Versioned(most, version)
    assert await store.get("b") is None


async def test_a_transaction_that_no_packet_could_carry_is_refused(store: MetadataStore) -> None:
    half = bytes(limits.METADATA_BYTES_MAX // 2)
    await store.transaction([Create("a", half), Create("b", half)])
    with pytest.raises(InvalidArgument, match="3 operations"):
        await store.transaction([Create("c", half), Create("d", half), Create("e", half)])
    with pytest.raises(InvalidArgument):
        await store.transaction([Create(f"many/{n}", b"") for n in range(5000)])
    assert await store.get("c") is None
    assert await store.children("many") == []


async def test_arguments_of_a_wrong_type_are_refused(store: MetadataStore) -> None:
    version = await store.create("a", b"0")
    with pytest.raises(InvalidArgument):
        await store.set("a", b"1", version=None)
    with pytest.raises(InvalidArgument):
        await store.set("a", "text", version=version)
    with pytest.raises(InvalidArgument):
        await store.get(b"a")
    assert await store.get("a") == Versioned(b"0", version)


# --- counters -------------------------------------------------------------------------------------


async def test_ids_start_at_zero_and_grow_for_each_counter(
    store: MetadataStore, other: MetadataStore
) -> None:
    assert await store.highest_id("ledger") == -1
    given = [await client.next_id("ledger") for client in (store, other, store, other)]
    assert given == sorted(set(given))
    assert given[0] == 0
    assert await other.highest_id("ledger") == given[-1]
    assert await store.highest_id("other") == -1
    assert await store.next_id("other") == 0


@pytest.mark.parametrize("through", [0, 7, 2**40 + 5, 2**62 + 5])
async def test_skipped_ids_are_not_given_out(
    store: MetadataStore, other: MetadataStore, through: int
) -> None:
    await store.skip_ids("ledger", through)
    assert await other.highest_id("ledger") >= through
    given = [await client.next_id("ledger") for client in (other, store)]
    assert through < given[0] < given[1]
    assert await store.highest_id("ledger") == given[1]


async def test_skipping_ids_never_takes_a_counter_back(store: MetadataStore) -> None:
    given = [await store.next_id("ledger") for _ in range(3)]
    await store.skip_ids("ledger", given[1])
    assert await store.next_id("ledger") > given[2]


async def test_no_id_is_given_out_twice_to_concurrent_clients(
    store: MetadataStore, other: MetadataStore
) -> None:
    given: list[int] = []

    async def take(client: MetadataStore) -> None:
        for _ in range(25):
            given.append(await client.next_id("ledger"))

    async with trio.open_nursery() as nursery:
        for client in (store, other, store, other):
            nursery.start_soon(take, client)
    assert len(set(given)) == 100
    assert await store.highest_id("ledger") == max(given)


# --- sessions -------------------------------------------------------------------------------------


async def test_a_new_session_is_connected_and_has_its_own_id(
    store: MetadataStore, other: MetadataStore
) -> None:
    assert store.session.state is SessionState.CONNECTED
    assert store.session.session_id != other.session.session_id
    with trio.fail_after(PATIENCE_S):
        assert await store.session.wait_not(SessionState.LOST) is SessionState.CONNECTED


async def test_an_ephemeral_node_is_an_ordinary_node_while_its_session_lives(
    store: MetadataStore, other: MetadataStore
) -> None:
    version = await store.create("members/a", b"0", ephemeral=True)
    assert await other.children("members") == ["a"]
    assert await other.get("members/a") == Versioned(b"0", version)
    version = await other.set("members/a", b"1", version=version)
    await store.delete("members/a", version=version)
    assert await other.children("members") == []


async def test_ephemeral_nodes_vanish_with_a_closed_store_and_others_stay(
    world: World, store: MetadataStore, other: MetadataStore
) -> None:
    await store.transaction([Create("m/a", b"", ephemeral=True), Create("m/b", b"", ephemeral=True)])
    await store.create("m/stays", b"")
    mine = await other.create("m/mine", b"", ephemeral=True)
    session = store.session
    await world.close_store(store)
    assert session.state is SessionState.LOST
    assert await other.children("m") == ["mine", "stays"]
    assert await other.get("m/a") is None
    assert await other.get("m/mine") == Versioned(b"", mine)


async def test_ephemeral_nodes_have_no_children(store: MetadataStore) -> None:
    await store.create("a", b"", ephemeral=True)
    for ephemeral in (False, True):
        with pytest.raises(InvalidArgument):
            await store.create("a/b", b"", ephemeral=ephemeral)
        with pytest.raises(InvalidArgument):
            await store.create("a/b/c", b"", ephemeral=ephemeral)
    await store.create("p/q", b"")
    with pytest.raises(InvalidArgument):
        await store.create("p", b"", ephemeral=True)
    assert await store.children("a") == []


async def test_an_expired_session_is_lost_and_its_nodes_vanish_and_a_new_one_follows(
    world: World, store: MetadataStore, other: MetadataStore
) -> None:
    first = store.session
    await store.create("m/a", b"", ephemeral=True)

    async def gone() -> bool:
        return await other.children("m") == []

    async with other.watch("m") as watch:
        await world.expire_session(store)
        await until(watch, gone)
    with trio.fail_after(PATIENCE_S):
        while first.state is not SessionState.LOST:
            await first.wait_not(first.state)
        await eventually(lambda: store.session is not first)
    assert store.session.state is SessionState.CONNECTED
    assert store.session.session_id != first.session_id
    await store.create("m/a", b"again", ephemeral=True)
    assert await other.children("m") == ["a"]
    await world.close_store(other)
    assert await store.children("m") == ["a"]


async def test_after_an_ephemeral_create_was_refused_the_store_has_a_new_session(
    world: World, store: MetadataStore
) -> None:
    first = store.session
    await world.expire_session(store)
    # If the store has heard of the expiry already, it is in its new session and may succeed.
    refused = False
    try:
        await store.transaction([Create("plain", b""), Create("e", b"", ephemeral=True)])
    except SessionExpired:
        refused = True
    assert first.state is SessionState.LOST
    assert store.session is not first
    assert store.session.state is SessionState.CONNECTED
    assert (await store.get("plain") is None) == (await store.get("e") is None) == refused


async def test_an_ephemeral_create_never_slips_into_the_next_session(
    world: World, store: MetadataStore
) -> None:
    for n in range(4):
        before = store.session
        started = trio.Event()

        async def create(path: str, started: trio.Event) -> None:
            started.set()
            with suppress(SessionExpired, MetadataOutcomeUnknown):
                await store.create(path, b"", ephemeral=True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create, f"e/{n}", started)
            await started.wait()
            await world.expire_session(store)
        await eventually(partial(_has_new_session, store, before))
        # The node was created in the expired session, or not at all.
        async with store.watch("e") as watch:
            await until(watch, partial(_is_missing, store, f"e/{n}"))


async def test_what_needs_no_session_goes_on_while_it_is_over(world: World, store: MetadataStore) -> None:
    await world.expire_session(store)
    try:
        version = await store.create("a", b"0")
    except MetadataOutcomeUnknown:
        # The write met the very moment of the end. The writer settles it: it reads, and goes on.
        node = await store.get("a")
        version = await store.create("a", b"0") if node is None else node.version
    version = await store.set("a", b"1", version=version)
    assert await store.get("a") == Versioned(b"1", version)


# --- watches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("path", ["w", "w/child", "w/deep/down"])
async def test_a_watch_sees_creates_sets_and_deletes_at_and_below_its_path(
    store: MetadataStore, other: MetadataStore, path: str, own: bool
) -> None:
    writer = store if own else other
    async with store.watch("w") as watch:
        version = await writer.create(path, b"0")
        await returns(watch)
        version = await writer.set(path, b"1", version=version)
        await returns(watch)
        await writer.delete(path, version=version)
        await returns(watch)
        await writer.transaction([Create("elsewhere", b""), Create(path, b"2")])
        await returns(watch)


async def test_a_change_between_opening_a_watch_and_waiting_is_not_missed(
    store: MetadataStore, other: MetadataStore
) -> None:
    async with store.watch("w") as watch:
        await other.create("w", b"")
        assert await store.get("w") is not None
        await returns(watch)


async def test_a_change_between_two_waits_is_not_missed(store: MetadataStore, other: MetadataStore) -> None:
    seen = []

    async def follow() -> None:
        async with store.watch("w") as watch:
            ready.set()
            while not seen or seen[-1] != b"9":
                await watch.wait()
                node = await store.get("w")
                # Even a slow reader ends at the last value.
                await trio.lowlevel.checkpoint()
                seen.append(b"" if node is None else node.value)

    ready = trio.Event()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await ready.wait()
            version = await other.create("w", b"")
            for n in range(10):
                version = await other.set("w", b"%d" % n, version=version)
    assert seen[-1] == b"9"


async def test_a_wait_that_was_cancelled_leaves_the_change_for_the_next(
    store: MetadataStore, other: MetadataStore
) -> None:
    async with store.watch("w") as watch:
        await store.create("w", b"")
        with trio.CancelScope() as scope:
            scope.cancel()
            await watch.wait()
        assert scope.cancelled_caught
        await returns(watch)


async def test_several_watchers_all_see_a_change(store: MetadataStore, other: MetadataStore) -> None:
    async with (
        store.watch("w") as first,
        store.watch("w") as second,
        other.watch("w/x") as third,
        store.watch("w/x") as fourth,
    ):
        await other.create("w/x", b"")
        for watch in (first, second, third, fourth):
            await returns(watch)


async def test_tasks_that_share_a_watch_all_wake(store: MetadataStore, other: MetadataStore) -> None:
    woken = []

    async def wait(watch: Watch, name: int) -> None:
        await watch.wait()
        woken.append(name)

    with trio.fail_after(PATIENCE_S):
        async with store.watch("w") as watch, trio.open_nursery() as nursery:
            for name in range(3):
                nursery.start_soon(wait, watch, name)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await other.create("w", b"")
    assert sorted(woken) == [0, 1, 2]


async def test_a_watch_sees_ephemeral_nodes_vanish(
    world: World, store: MetadataStore, other: MetadataStore
) -> None:
    await other.create("m/a", b"", ephemeral=True)

    async def gone() -> bool:
        return await store.children("m") == []

    async with store.watch("m") as watch:
        await world.close_store(other)
        await until(watch, gone)


async def test_a_failed_write_leaves_watchers_able_to_see_the_next(store: MetadataStore) -> None:
    async with store.watch("w") as watch:
        with pytest.raises(NodeMissing):
            await store.set("w", b"", version=0)
        await store.create("w", b"")
        await returns(watch)


# --- sync, cancellation, the end ------------------------------------------------------------------


async def test_after_sync_every_finished_write_is_read(store: MetadataStore, other: MetadataStore) -> None:
    for n in range(5):
        await store.create(f"a/{n}", b"")
        await other.sync()
        assert await other.get(f"a/{n}") is not None


async def test_a_call_under_a_cancelled_scope_changes_nothing(store: MetadataStore) -> None:
    version = await store.create("a", b"0")
    calls: list[Callable[[], Awaitable[object]]] = [
        partial(store.get, "a"),
        partial(store.create, "b", b""),
        partial(store.set, "a", b"1", version=version),
        partial(store.delete, "a"),
        partial(store.children, "a"),
        partial(store.transaction, [Create("b", b"")]),
        partial(store.next_id, "n"),
        partial(store.highest_id, "n"),
        store.sync,
    ]
    for call in calls:
        with trio.CancelScope() as scope:
            scope.cancel()
            await call()
        assert scope.cancelled_caught, "every call is a checkpoint"
    assert await store.get("a") == Versioned(b"0", version)
    assert await store.get("b") is None
    assert await store.highest_id("n") == -1


async def test_a_write_cancelled_at_any_moment_is_applied_or_not_and_never_half(store: MetadataStore) -> None:
    done = set()
    for n in range(40):
        with trio.move_on_after(n * 0.00005):
            await store.transaction([Create(f"t/{n}/left", b""), Create(f"t/{n}/right", b"")])
            done.add(str(n))
        names = await store.children(f"t/{n}")
        assert names in ([], ["left", "right"])
        assert names or str(n) not in done
    assert set(await store.children("t")) >= done


async def test_a_closed_store_is_unavailable(world: World, store: MetadataStore) -> None:
    await world.close_store(store)
    for call in (partial(store.get, "a"), partial(store.create, "a", b""), store.sync):
        with pytest.raises(MetadataUnavailable):
            await call()
