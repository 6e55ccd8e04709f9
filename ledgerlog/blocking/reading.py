"""Reading without ``await``: iterators over the results of asynchronous readers.

A log's reader fetches in the loop's thread and hands over all batches that have come, many at once. So a
replay costs one hop for many records, not one for each. A reader is for one thread at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import trio

from ledgerlog.blocking.base import Face
from ledgerlog.blocking.portal import Portal
from ledgerlog.concurrency.nurseries import background
from ledgerlog.concurrency.watermark import fresh
from ledgerlog.errors import ConnectionClosed, LedgerLogError, RecordsLost
from ledgerlog.ledger import reader
from ledgerlog.limits import LOG_READ_AHEAD_BYTES, READ_REPLY_BYTES_TARGET
from ledgerlog.log import reader as readers
from ledgerlog.model.record import Record, RecordBatch

__all__ = ["EntriesFace", "Fetched", "RecordsFace", "fetch"]

_RECORD_COST_BYTES = 48


class Fetched:
    """Batches that have come and are not handed over yet."""

    def __init__(self) -> None:
        self.batches: deque[RecordBatch | RecordsLost] = deque()
        self.bytes = 0
        self.is_complete = False
        self.failure: LedgerLogError | None = None
        self.next_offset = 0
        self.given: list[RecordBatch | RecordsLost] = []
        """The batches handed over last, until it is known that they arrived."""
        self.given_count = 0
        self.changed = trio.Event()
        self.taken = trio.Event()

    async def run(self, reader: readers.LogReader) -> None:
        try:
            while True:
                try:
                    await self._copy(reader)
                except RecordsLost as gap:
                    self.batches.append(gap)
                    self.changed.set()
                else:
                    break
        except LedgerLogError as failure:
            self.failure = failure
        except trio.Cancelled:
            self.failure = ConnectionClosed("the reader was left")
            raise
        finally:
            self.is_complete = True
            self.changed.set()

    async def _copy(self, reader: readers.LogReader) -> None:
        async for batch in reader.batches():
            self.batches.append(batch)
            self.bytes += batch.byte_length + _RECORD_COST_BYTES * len(batch)
            self.changed.set()
            while self.bytes > LOG_READ_AHEAD_BYTES:
                self.taken = trio.Event()
                await self.taken.wait()

    async def take(
        self, received: int, timeout_s: float | None = None
    ) -> list[RecordBatch | RecordsLost] | None:
        """Return all batches that have come, at least one. The list is empty at the end; None: the time is
        up.

        ``received`` is how many such answers have arrived. If an interruption lost an answer, it is given
        again."""
        if received < self.given_count:
            return self.given
        with trio.move_on_after(float("inf") if timeout_s is None else timeout_s):
            while not self.batches and not self.is_complete:
                self.changed = trio.Event()
                await self.changed.wait()
        taken = list(self.batches)
        if not taken and self.is_complete and self.failure is not None:
            raise fresh(self.failure)
        if not taken and not self.is_complete:
            return None
        self.given = taken
        self.given_count += 1
        self.batches.clear()
        self.bytes = 0
        self.taken.set()
        return taken


@asynccontextmanager
async def fetch(manager: AbstractAsyncContextManager[readers.LogReader]) -> AsyncIterator[Fetched]:
    """Enter a log's reader and fetch from it during the body."""
    fetched = Fetched()
    async with manager as reader:
        fetched.next_offset = reader.next_offset

        async def run() -> None:
            await fetched.run(reader)

        async with background(run, name="blocking reader"):
            yield fetched


class RecordsFace(Face[Fetched]):
    """The records of a log, as an iterator."""

    def __init__(self, portal: Portal, inner: Fetched) -> None:
        super().__init__(portal, inner)
        self._waiting: deque[RecordBatch | RecordsLost] = deque()
        self._received = 0
        self._records: Iterator[Record] = iter(())
        self._batch: RecordBatch | None = None
        self._next_offset = inner.next_offset

    @property
    def next_offset(self) -> int:
        """The offset after the last record that was returned, or the offset where reading starts."""
        return self._next_offset

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        record = self.next()
        if record is None:
            raise StopIteration
        return record

    def next(self, timeout_s: float | None = None) -> Record | None:
        """Read the next record.

        Args:
            timeout_s: Seconds to wait for it; None to wait without a limit.

        Returns:
            The record. None at the end of the iteration, or if no record came in time.
        """
        for record in self._records:
            self._next_offset = record.offset + 1
            return record
        batch = self._take(timeout_s)
        if batch is None:
            return None
        self._batch, self._records = batch, iter(batch)
        return self.next()

    def batches(self) -> Iterator[RecordBatch]:
        """Iterate by batches, for replay. Both ways of iterating share one place in the log."""
        while True:
            begun, self._batch, self._records = self._batch, None, iter(())
            if begun is not None and self._next_offset < begun.end_offset:
                batch: RecordBatch | None = begun.between(self._next_offset)
            else:
                batch = self._take(None)
            if batch is None:
                return
            self._next_offset = batch.end_offset
            yield batch

    def _take(self, timeout_s: float | None) -> RecordBatch | None:
        if not self._waiting:
            taken = self._run(lambda: self._inner.take(self._received, timeout_s))
            if taken is not None:
                self._waiting.extend(taken)
                self._received += 1
        if not self._waiting:
            return None
        first = self._waiting.popleft()
        if isinstance(first, RecordsLost):
            self._next_offset = max(self._next_offset, first.first_offset)
            raise first
        return first


class EntriesFace(Face[reader.LedgerReader]):
    """The entries of a ledger."""

    def follow(self, first: int = 0) -> Iterator[tuple[int, bytes]]:
        """Iterate over the ledger's entries as they are confirmed, until it is closed and all are read.

        Args:
            first: The first entry.

        Yields:
            Entry id and payload of each entry, in order.
        """
        at = first
        while True:
            last = self._run(partial(self._inner.wait_beyond, at - 1))
            while at <= last:
                read = partial(self._inner.read_batch, at, last, bytes_max=READ_REPLY_BYTES_TARGET)
                for payload in self._run(read):
                    yield at, payload
                    at += 1
            end = self._inner.metadata.last_entry
            if end is not None and at > end:
                return
