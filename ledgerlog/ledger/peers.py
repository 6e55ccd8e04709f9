"""The other bookies of the cluster, from which a bookie copies the entries that it lacks.

``fetch`` checks every entry against the digest that the ledger's writer made. This module decides nothing:
the bookie that lacks entries decides which are missing, and when its part of a ledger is whole again.
"""

from __future__ import annotations

import trio

from ledgerlog.errors import LedgerLogError, LedgerNotFound, PermissionDenied
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.core.reader import RangeAsk, RangeRead
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.ledger.ranges import list_range, read_range
from ledgerlog.meta.deletion_floor import deletion_floor
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata


class LedgerPeers:
    """The cluster, as a bookie sees it while it copies its lost entries from other bookies."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client

    async def list_ledgers(self) -> list[int]:
        """List the ids of all ledgers, in ascending order: at least all that existed before the call.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        await self._client.store.sync()
        return await self._client.ledgers.list()

    async def deletion_floor(self) -> int:
        """Return the lowest id of a ledger that counts as deleted if the store does not have it.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        return await deletion_floor(self._client.store)

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """Read a ledger's metadata; None if there is no such ledger.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        try:
            return await self._client.ledgers.metadata(ledger_id)
        except LedgerNotFound:
            return None

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence the ledger and close it. See ``ledger.recovery.recover_ledger``."""
        return await self._client.ledgers.recover(ledger_id)

    async def fetch(
        self, metadata: LedgerMetadata, bookie_id: BookieId, first: int, last: int
    ) -> tuple[dict[int, bytes], LedgerLogError | None]:
        """Read entries that a bookie lacks, about as many as one reply brings.

        If the bookie should hold the first one, only such entries are read, and only from other bookies.
        Otherwise all entries of the range are read, from the bookies that the metadata names.

        Args:
            metadata: The ledger's metadata.
            bookie_id: The bookie that lacks the entries.
            first: The first entry to read.
            last: The last entry to read.

        Returns:
            The entries found, by id, and a failure or None. If the failure is None, ``first`` is among the
            entries. Otherwise the failure says why an entry is unavailable: EntryNotFound (all other
            bookies deny the entry that it names), EntryUnavailable, EntryCorrupt or PermissionDenied.
        """
        holder = bookie_id if bookie_id in metadata.bookies_of(first) else None
        read = RangeRead(metadata, first, last, holder=holder)
        while not read.is_done and first not in read.found:
            asks = read.take_asks()
            async with trio.open_nursery() as nursery:
                for ask in asks:
                    nursery.start_soon(self._ask, metadata.ledger_id, read, ask)
        return read.found, read.failure

    async def first_held(self, metadata: LedgerMetadata, bookie_id: BookieId, first: int, last: int) -> int:
        """Find the first entry that another bookie may have, by the lists of all other bookies.

        Call this after an entry was not found. One call can show that many more entries are gone.

        Args:
            metadata: The ledger's metadata.
            bookie_id: The bookie that lacks the entries.
            first: The first entry.
            last: The last entry. It is in the same fragment; if it is below ``first``, no bookie is asked.

        Returns:
            The entry, or ``last + 1`` if all other bookies deny all entries. A bookie that does not answer,
            or is in limbo, may have every entry.

        Raises:
            PermissionDenied: A bookie does not let this process read the ledger.
        """
        found = last + 1
        for other in metadata.fragment_of(first).ensemble:
            at = first
            while other != bookie_id and at < found:
                connection = self._client.pool.connection(other)
                listed = await list_range(connection, metadata.ledger_id, first=at, last=last)
                if listed is None or listed.negative is not Negative.ABSENT:
                    return first
                if listed.pairs:
                    found = min(found, max(first, listed.pairs[0][0]))
                at = listed.through + 1
        return found

    async def _ask(self, ledger_id: int, read: RangeRead, ask: RangeAsk) -> None:
        why: list[str] = []
        try:
            answer = await read_range(
                self._client.pool.connection(ask.bookie),
                ledger_id,
                first=ask.first,
                last=ask.last,
                stride=ask.stride,
                tell_why=why.append,
            )
        except PermissionDenied as denial:
            read.on_denied(denial)
            return
        if answer is None:
            read.on_failed(ask, *why)
        else:
            read.on_reply(ask, answer.found, answer.through, answer.negative, answer.damaged)
