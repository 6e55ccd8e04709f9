"""The other bookies, as one sees them that is to be given what it lacks.

Everything that is brought was checked against the digests that its writer made. Nothing here decides what is
missing, or when it is whole: that is the bookie's.
"""

from __future__ import annotations

import trio

from ledgerlog.errors import LedgerLogError, LedgerNotFound
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.core.reader import RangeAsk, RangeRead
from ledgerlog.ledger.ranges import read_range
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata


class LedgerPeers:
    """The cluster, as a bookie sees it that copies what it lost."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client

    async def list_ledgers(self) -> list[int]:
        """The ids of all ledgers, growing; at least those that existed before the call.
        MetadataUnavailable."""
        await self._client.store.sync()
        return await self._client.ledgers.list()

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """A ledger's metadata, None where there is no such ledger. MetadataUnavailable."""
        try:
            return await self._client.ledgers.metadata(ledger_id)
        except LedgerNotFound:
            return None

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence the ledger and close it; see ``ledger.recovery.recover_ledger``."""
        return await self._client.ledgers.recover(ledger_id)

    async def fetch(
        self, metadata: LedgerMetadata, bookie_id: BookieId, first: int, last: int
    ) -> tuple[dict[int, bytes], LedgerLogError | None]:
        """Some of the entries first..last that ``bookie_id`` is to hold, from others: about as many as a
        reply brings. ``first`` is one of those that it is to hold, and is among them; else the failure says
        why not all could be had: EntryNotFound (all others deny the entry that it names), EntryUnavailable,
        EntryCorrupt. Raises MetadataUnavailable."""
        read = RangeRead(metadata, first, last, holder=bookie_id)
        while not read.is_done and first not in read.found:
            asks = read.take_asks()
            async with trio.open_nursery() as nursery:
                for ask in asks:
                    nursery.start_soon(self._ask, metadata.ledger_id, read, ask)
        return read.found, read.failure

    async def _ask(self, ledger_id: int, read: RangeRead, ask: RangeAsk) -> None:
        answer = await read_range(
            self._client.pool.connection(ask.bookie),
            ledger_id,
            first=ask.first,
            last=ask.last,
            stride=ask.stride,
        )
        if answer is None:
            read.on_failed(ask)
        else:
            read.on_reply(ask, answer.found, answer.through, answer.negative, answer.damaged)
