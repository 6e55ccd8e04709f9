"""What the metadata store must have said before a bookie deletes a ledger (rule 25)."""

from __future__ import annotations

import pytest
import trio

from bookie.server.witness import MetadataWitness
from ledgerlog.errors import MetadataUnavailable
from ledgerlog.meta.memory import MemoryStore, MemoryTree
from ledgerlog.model.layout import LEDGER_COUNTER, ledger_path
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


@pytest.mark.parametrize("calls", range(5))
async def test_a_store_that_stops_answering_says_nothing_at_all(store: ForgetfulStore, calls: int) -> None:
    store.calls_left = calls
    with trio.fail_after(PATIENCE_S):
        if calls == 4:
            assert await MetadataWitness(store).surely_gone([0, 1, 2, 3, 4]) == [1, 3]
        else:
            with pytest.raises(MetadataUnavailable):
                await MetadataWitness(store).surely_gone([0, 1, 2, 3, 4])
