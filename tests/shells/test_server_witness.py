"""What the metadata store must have said before a bookie deletes a ledger (rule 25)."""

from __future__ import annotations

import pytest
import trio

from bookie.server.witness import MetadataWitness
from ledgerlog.errors import MetadataUnavailable, WrongCluster
from ledgerlog.meta.memory import Content, MemoryStore, MemoryTree
from ledgerlog.model.layout import CLUSTER, LEDGER_COUNTER, ledger_path
from tests.waiting import PATIENCE_S


class ForgetfulStore(MemoryStore):
    """A store whose listings leave something out, or that cannot be reached from some call on."""

    is_listing_short = False
    calls_left = 10**6

    def _call(self) -> None:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise MetadataUnavailable("the store cannot be reached")

    async def sync(self) -> None:
        self._call()
        await super().sync()

    async def children(self, path: str) -> list[str]:
        self._call()
        found = await super().children(path)
        return found[:1] if self.is_listing_short else found

    async def get(self, path: str):
        self._call()
        return await super().get(path)


@pytest.fixture
async def store() -> ForgetfulStore:
    store = ForgetfulStore(MemoryTree())
    for _ in range(5):
        ledger_id = await store.next_id(LEDGER_COUNTER)
        await store.create(ledger_path(ledger_id), b"metadata")
    await store.delete(ledger_path(1))
    await store.delete(ledger_path(3))
    return store


async def test_only_ledgers_without_a_node_are_gone(store: ForgetfulStore) -> None:
    assert await MetadataWitness(store).surely_gone([0, 1, 2, 3, 4]) == [1, 3]


async def test_a_listing_that_leaves_ledgers_out_deletes_none_of_them(store: ForgetfulStore) -> None:
    store.is_listing_short = True
    assert await MetadataWitness(store).surely_gone([0, 1, 2, 3, 4]) == [1, 3]


async def test_nothing_is_said_of_ids_that_were_never_given_out(store: ForgetfulStore) -> None:
    assert await MetadataWitness(store).surely_gone([4, 5, 10**12]) == []


@pytest.mark.parametrize("calls", range(6))
async def test_a_store_that_stops_answering_says_nothing_at_all(store: ForgetfulStore, calls: int) -> None:
    store.calls_left = calls
    with trio.fail_after(PATIENCE_S):
        if calls == 5:
            assert await MetadataWitness(store).surely_gone([0, 1, 2, 3, 4]) == [1, 3]
        else:
            with pytest.raises(MetadataUnavailable):
                await MetadataWitness(store).surely_gone([0, 1, 2, 3, 4])


async def test_a_store_that_was_emptied_meanwhile_says_nothing_at_all(store: ForgetfulStore) -> None:
    """Who empties a store may take the node that says whose it is away last."""
    await store.create(CLUSTER, b"ours")
    store.belong_to("ours")
    tree, get = store._tree, store.get

    async def get_and_empty(path: str):
        tree.exchange(Content())
        return

    store.get = get_and_empty
    with pytest.raises(WrongCluster):
        await MetadataWitness(store).surely_gone([0, 1, 2, 3, 4])
    store.get = get
    with pytest.raises(WrongCluster):
        await MetadataWitness(store).surely_gone([0, 1, 2, 3, 4])
