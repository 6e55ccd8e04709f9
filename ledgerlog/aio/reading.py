"""Reading in asyncio: async iterators over the results of the library's readers.

A reader is for one task at a time: while a call is under way, another one is refused. ``crossing.fetching``
fetches ahead, so most records have arrived already when you ask for them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from ledgerlog.aio.base import AioFace
from ledgerlog.aio.bridge import Bridge
from ledgerlog.crossing.fetching import Fetched
from ledgerlog.crossing.place import ReadingPlace
from ledgerlog.ledger import reader
from ledgerlog.limits import READ_REPLY_BYTES_TARGET
from ledgerlog.log.reader import Batches, in_use
from ledgerlog.model.record import Record, RecordBatch

__all__ = ["AioEntries", "AioRecords"]


class AioRecords(AioFace[Fetched]):
    """The records of a log, as an async iterator."""

    def __init__(self, portal: Bridge, inner: Fetched) -> None:
        super().__init__(portal, inner)
        self._place = ReadingPlace(inner)
        self._is_in_use = False

    @property
    def next_offset(self) -> int:
        """The offset after the last record that was returned, or the offset where reading starts."""
        return self._place.next_offset

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        place = self._place
        place.drop_if_left()
        while True:
            for record in place.records:
                place.next_offset = record.offset + 1
                return record
            batch = await self._take()
            if batch is None:
                raise StopAsyncIteration
            place.begin(batch)

    def batches(self) -> AsyncIterator[RecordBatch]:
        """Iterate by batches, for replay. If you mix this with iterating by records, each of them continues
        where the other stopped."""
        return Batches(self)

    async def _next_batch(self) -> RecordBatch | None:
        self._place.drop_if_left()
        batch = self._place.take_rest()
        if batch is None:
            batch = await self._take()
        if batch is not None:
            self._place.next_offset = batch.end_offset
        return batch

    async def _take(self) -> RecordBatch | None:
        if self._is_in_use:
            raise in_use()
        place = self._place
        self._is_in_use = True
        try:
            if place.is_empty:
                place.on_received(await self._run(partial(self._inner.take, place.received)))
        finally:
            self._is_in_use = False
        return place.take()


class AioEntries(AioFace[reader.LedgerReader]):
    """The entries of a ledger."""

    async def follow(self, first: int = 0) -> AsyncIterator[tuple[int, bytes]]:
        """Iterate over the ledger's entries as they are confirmed, until it is closed and all are read.

        Args:
            first: The first entry.

        Yields:
            Entry id and payload of each entry, in order.
        """
        at = first
        while True:
            last = await self._run(partial(self._inner.wait_beyond, at - 1))
            while at <= last:
                read = partial(self._inner.read_batch, at, last, bytes_max=READ_REPLY_BYTES_TARGET)
                for payload in await self._run(read):
                    yield at, payload
                    at += 1
            end = self._inner.metadata.last_entry
            if end is not None and at > end:
                return
