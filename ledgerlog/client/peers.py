"""What a bookie needs of a client when it comes back after a loss: the other bookies.

A storage node knows no client; its entry point hands this in (``open_peers``). It is opened only while
something is in limbo, so that a bookie in good health has no connections to others.

Everything that is brought was checked against the digests that its writer made. Nothing here decides what is
missing, or when it is whole: that is the bookie's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from ledgerlog.client.client import LedgerClient, open_client
from ledgerlog.client.environment import Environment
from ledgerlog.client.ranges import read_range
from ledgerlog.core.reader import RangeAsk, RangeRead
from ledgerlog.errors import LedgerLogError, LedgerNotFound
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.net.transport import Network


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
        """Fence the ledger and close it; see ``client.recovery.recover_ledger``."""
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


@asynccontextmanager
async def open_peers(
    store: MetadataStore, network: Network, *, environment: Environment | None = None
) -> AsyncIterator[LedgerPeers]:
    """A ``LedgerPeers`` for the body of the ``async with``. MetadataUnavailable at the start."""
    async with open_client(store, network, environment=environment) as client:
        yield LedgerPeers(client)
