"""A bookie serves only from the directory that its identity belongs to, and says what is wrong otherwise."""

from __future__ import annotations

import contextlib
import itertools

import attrs
import pytest
import trio

from bookie.server.identity import establish_identity
from ledgerlog.errors import (
    CookieMismatch,
    InvalidArgument,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    StorageCorrupt,
    StorageError,
)
from ledgerlog.meta.memory import MemoryStore, MemoryTree
from ledgerlog.meta.store import NodeExists
from ledgerlog.model import layout
from ledgerlog.model.bookie import Cookie
from ledgerlog.model.ledger import MetadataCorrupt

_numbers = itertools.count(1)


def random_bytes(count: int) -> bytes:
    return next(_numbers).to_bytes(count, "big")


@attrs.define
class Directory:
    """A directory in memory: what ``establish_identity`` asks of one."""

    cookie: bytes | None = None
    data: bool = False
    path: str = "/data/b1"
    fails: bool = False

    async def read_cookie(self) -> bytes | None:
        return self.cookie

    async def write_cookie(self, data: bytes) -> None:
        if self.fails:
            raise StorageError("the disk failed")
        self.cookie = data

    async def has_data(self) -> bool:
        return self.data


@pytest.fixture
def store() -> MemoryStore:
    return MemoryTree().open_store()


async def establish(store: MemoryStore, directory: Directory, bookie_id: str | None = "b1") -> Cookie:
    return await establish_identity(store, directory, bookie_id=bookie_id, random_bytes=random_bytes)


async def formatted(store: MemoryStore) -> Directory:
    directory = Directory()
    await establish(store, directory)
    directory.data = True
    return directory


async def test_a_new_directory_is_formatted_on_both_sides(store: MemoryStore) -> None:
    directory = Directory()
    cookie = await establish(store, directory)
    assert cookie.bookie_id == "b1"
    cluster = await store.get(layout.CLUSTER)
    there = await store.get(layout.cookie_path("b1"))
    assert cluster is not None
    assert there is not None
    assert cookie.cluster == cluster.value.decode()
    assert directory.cookie == there.value == cookie.encode()


async def test_a_directory_is_served_again_and_again_and_keeps_its_instance(store: MemoryStore) -> None:
    directory = Directory()
    cookie = await establish(store, directory)
    directory.data = True
    assert await establish(store, directory) == cookie
    assert await establish(store, directory, None) == cookie


async def test_an_id_is_generated_once_where_none_is_given(store: MemoryStore) -> None:
    directory = Directory()
    cookie = await establish(store, directory, None)
    assert cookie.bookie_id.startswith("bookie-")
    assert (await establish(store, directory, None)).bookie_id == cookie.bookie_id


async def test_bookies_of_one_store_have_one_cluster_and_instances_of_their_own(store: MemoryStore) -> None:
    first = await establish(store, Directory(), "b1")
    second = await establish(store, Directory(), "b2")
    assert first.cluster == second.cluster
    assert first.instance != second.instance


async def test_a_crash_between_the_two_writes_is_completed(store: MemoryStore) -> None:
    directory = Directory()
    store.disconnect()
    with pytest.raises(MetadataUnavailable):
        await establish(store, directory)
    assert directory.cookie is None  # Nothing was written before the store was asked.
    store.reconnect()
    cookie = await establish(store, directory)
    await store.delete(layout.cookie_path("b1"))  # As if the crash had come before the second write.
    assert await establish(store, directory) == cookie
    assert await store.get(layout.cookie_path("b1")) is not None


async def test_a_directory_whose_cookie_could_not_be_written_is_unknown_to_the_store(
    store: MemoryStore,
) -> None:
    directory = Directory(fails=True)
    with pytest.raises(StorageError):
        await establish(store, directory)
    assert await store.get(layout.cookie_path("b1")) is None
    directory.fails = False
    await establish(store, directory)


async def test_an_emptied_directory_is_refused(store: MemoryStore) -> None:
    await formatted(store)
    with pytest.raises(CookieMismatch, match=r"/data/b1 is empty, and .* knows bookie b1.*decommission"):
        await establish(store, Directory())


async def test_data_without_a_cookie_is_refused(store: MemoryStore) -> None:
    with pytest.raises(
        CookieMismatch, match="has data and no cookie, and the metadata store knows no bookie"
    ):
        await establish(store, Directory(data=True))
    await formatted(store)
    with pytest.raises(
        CookieMismatch, match="has data and no cookie, and the metadata store knows bookie b1"
    ):
        await establish(store, Directory(data=True))


async def test_a_bookie_that_the_store_has_forgotten_is_refused(store: MemoryStore) -> None:
    directory = await formatted(store)
    await store.delete(layout.cookie_path("b1"))
    with pytest.raises(CookieMismatch, match="knows no such bookie: it was decommissioned"):
        await establish(store, directory)


async def test_a_swapped_directory_is_refused(store: MemoryStore) -> None:
    directory = await formatted(store)
    await store.delete(layout.cookie_path("b1"))
    other = await formatted(store)
    assert other.cookie != directory.cookie
    with pytest.raises(CookieMismatch, match="not the directory that the bookie served from last"):
        await establish(store, directory)


async def test_a_directory_of_another_bookie_is_refused(store: MemoryStore) -> None:
    directory = await formatted(store)
    with pytest.raises(CookieMismatch, match="belongs to bookie b1, not to b2: start it with --id b1"):
        await establish(store, directory, "b2")


async def test_a_directory_of_another_cluster_is_refused_even_while_it_is_empty(store: MemoryStore) -> None:
    directory = await formatted(store)
    directory.data = False
    with pytest.raises(CookieMismatch, match="was formatted for cluster"):
        await establish(MemoryTree().open_store(), directory)


async def test_a_damaged_cookie_names_its_file_and_a_damaged_record_its_node(store: MemoryStore) -> None:
    directory = await formatted(store)
    good = directory.cookie
    assert good is not None
    for position in range(len(good)):
        directory.cookie = good[:position] + bytes([good[position] ^ 0x41]) + good[position + 1 :]
        with pytest.raises((StorageCorrupt, CookieMismatch), match="/data/b1"):
            await establish(store, directory, None)
    directory.cookie = good
    node = await store.get(layout.cookie_path("b1"))
    assert node is not None
    await store.set(layout.cookie_path("b1"), b"nonsense", version=node.version)
    with pytest.raises(MetadataCorrupt, match="cookie of bookie b1"):
        await establish(store, directory)


async def test_a_malformed_id_is_refused_before_anything_is_written(store: MemoryStore) -> None:
    directory = Directory()
    with pytest.raises(InvalidArgument):
        await establish(store, directory, "no blanks")
    assert directory.cookie is None
    assert await store.get(layout.CLUSTER) is None


async def test_of_two_directories_that_are_formatted_for_one_id_at_once_one_is_refused() -> None:
    tree = MemoryTree()
    outcomes: list[str] = []

    async def start(path: str) -> None:
        try:
            await establish(tree.open_store(), Directory(path=path))
            outcomes.append("serves")
        except CookieMismatch:
            outcomes.append("refused")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start, "/data/one")
        nursery.start_soon(start, "/data/two")
    assert sorted(outcomes) == ["refused", "serves"]


class ForgetfulStore(MemoryStore):
    """Loses the answer of every create, after it was applied or before."""

    applies = True

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> int:
        if self.applies:
            with contextlib.suppress(NodeExists):
                await super().create(path, value, ephemeral=ephemeral)
        raise MetadataOutcomeUnknown("the answer was lost")


async def test_a_lost_answer_is_settled_by_looking() -> None:
    store = ForgetfulStore(MemoryTree())
    directory = Directory()
    cookie = await establish(store, directory)
    assert await establish(store, directory) == cookie

    store = ForgetfulStore(MemoryTree())
    store.applies = False
    with pytest.raises(MetadataOutcomeUnknown):
        await establish(store, directory := Directory())
    assert directory.cookie is None
