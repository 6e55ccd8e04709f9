"""The metadata store's answer for the bookie's garbage collection: which ledgers are deleted.

A bookie cannot restore deleted entries, so it needs positive evidence (rule 25): the store answered after a
``sync``, and the store has no node of the ledger. A listing alone is not enough. The listing only decides
which ledgers to ask about one by one. If the store never gave out an id, the oracle says nothing about that
ledger, because the store may be another one, or an old copy of the right one. If any question fails, the
oracle raises MetadataUnavailable and returns no part of the answer.

A store of another cluster would answer that everything is gone. The store object itself refuses such a store
(``WrongCluster``, see ``MetadataStore.belong_to``). The oracle makes the store object check again, by a
``sync`` after the last answer. Perhaps the store is just being emptied. The node that names the cluster may
be deleted last, so the first check can still find it when ledgers are already gone.

A store that was restored from a backup has forgotten ledgers that bookies hold. Until an operator accepts
that loss, the oracle reports no ledger from before the restore as gone (``meta.deletion_floor``). The oracle
reads the record of the restore first and last.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from bookie.core.gone_ledgers import Range
from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.meta.deletion_floor import deletion_floor
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.id_ranges import ranges_of, without
from ledgerlog.model.layout import LEDGER_COUNTER, LEDGERS, ledger_id_of, ledger_path

_ASKED_AT_ONCE = 64
"""Ask the store about this many ledgers at the same time, because each question takes a round trip."""


class MetadataDeletionOracle:
    """The ``DeletionOracle`` of ``bookie.storage.upkeep.collector``, on the cluster's metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def surely_gone(self, ledger_ids: Sequence[int]) -> list[int]:
        """Return the ledgers, out of ``ledger_ids``, that the store no longer has, in ascending order.

        Args:
            ledger_ids: The ledgers to ask about. Ascending order takes the fewest listings.

        Raises:
            MetadataUnavailable: The store could not answer every question. Nothing is known.
            WrongCluster: The store belongs to another cluster.
        """
        store = self._store
        await store.sync()
        floor = await deletion_floor(store)
        highest = await store.highest_id(LEDGER_COUNTER)
        listed: dict[str, frozenset[str]] = {}
        unlisted: list[int] = []
        for ledger_id in ledger_ids:
            if ledger_id > highest:
                continue
            parent, _, name = ledger_path(ledger_id).rpartition("/")
            if parent not in listed:
                # Ids ascend, so it is enough to keep one parent's listing at a time.
                listed = {parent: frozenset(await store.children(parent))}
            if name not in listed[parent]:
                unlisted.append(ledger_id)
        gone: list[int] = []

        async def look(ledger_id: int) -> None:
            if await store.get(ledger_path(ledger_id)) is None:
                gone.append(ledger_id)

        await gather_each(unlisted, look, at_once=_ASKED_AT_ONCE)
        if gone:
            await store.sync()
            floor = max(floor, await deletion_floor(store))
            gone = [ledger_id for ledger_id in gone if ledger_id >= floor]
        return sorted(gone)

    async def absent(self, first: int, last: int) -> list[Range]:
        """Return ranges of ids from ``first`` to ``last`` that were given out and are not listed, ascending.

        Ids from before a restore are left out until an operator has accepted the loss.

        Raises:
            MetadataUnavailable: The store could not answer every question. Nothing is known.
            WrongCluster: The store belongs to another cluster.
        """
        store = self._store
        await store.sync()
        first = max(first, await deletion_floor(store))
        last = min(last, await store.highest_id(LEDGER_COUNTER))
        async with aclosing(self._listed(first, last)) as ledgers:
            listed = [ledger_id async for ledger_id in ledgers]
        await store.sync()
        first = max(first, await deletion_floor(store))
        return without([(first, last)], ranges_of(listed)) if first <= last else []

    async def _listed(self, first: int, last: int) -> AsyncGenerator[int, None]:
        """Yield the ledgers from ``first`` to ``last`` that the store lists, ascending."""
        # A path has the id in parts, the highest digits first: skip the parts that lie outside the range.
        _, *lowest = ledger_path(first).split("/")
        _, *highest = ledger_path(max(first, last)).split("/")
        for top in sorted(await self._store.children(LEDGERS)):
            if not lowest[0] <= top <= highest[0]:
                continue
            for middle in sorted(await self._store.children(f"{LEDGERS}/{top}")):
                if not lowest[:2] <= [top, middle] <= highest[:2]:
                    continue
                for name in sorted(await self._store.children(f"{LEDGERS}/{top}/{middle}")):
                    with contextlib.suppress(ValueError):  # This is some other node.
                        ledger_id = ledger_id_of(top, middle, name)
                        if first <= ledger_id <= last:
                            yield ledger_id
