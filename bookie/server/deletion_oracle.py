"""The metadata store's word on which ledgers are gone, for the bookie's garbage collection.

What a bookie deletes cannot be brought back, so the word must be positive (rule 25): the store was asked
after a ``sync``, it answered, and there is no node of the ledger. A listing alone is not enough: it decides
only whom to ask about one by one. An id that the store never gave out is none of its ledgers' (it may be
another store, or an old copy of the right one), and nothing is said of it. Whatever cannot be asked raises
MetadataUnavailable, and no part of the answer is then of use.

A store that is not the cluster's answers readily that everything is gone. The store itself refuses that
(``WrongCluster``, see ``MetadataStore.belong_to``). It is asked once more, after a ``sync``, when all answers
are there: the node that says whose it is may be the last one to go while a store is being emptied.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.layout import LEDGER_COUNTER, ledger_path

_ASKED_AT_ONCE = 64
"""Questions to the store that are on their way at the same time: one alone waits for a round trip each."""


class MetadataWitness:
    """``Witness`` of ``bookie.storage.upkeep.collector``, on the cluster's store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def surely_gone(self, ledger_ids: Sequence[int]) -> list[int]:
        """Those of some ledgers that are not in the store any more. MetadataUnavailable."""
        store = self._store
        await store.sync()
        highest = await store.highest_id(LEDGER_COUNTER)
        listed: dict[str, frozenset[str]] = {}
        unlisted: list[int] = []
        for ledger_id in ledger_ids:
            if ledger_id > highest:
                continue
            parent, _, name = ledger_path(ledger_id).rpartition("/")
            if parent not in listed:
                listed = {parent: frozenset(await store.children(parent))}  # Ids grow: one is enough.
            if name not in listed[parent]:
                unlisted.append(ledger_id)
        gone: list[int] = []

        async def look(ledger_id: int) -> None:
            if await store.get(ledger_path(ledger_id)) is None:
                gone.append(ledger_id)

        await gather_each(unlisted, look, at_once=_ASKED_AT_ONCE)
        if gone:
            await store.sync()
        return sorted(gone)
