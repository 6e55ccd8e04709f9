"""Reading without ``await``: iterators over the results of asynchronous readers.

A reader is for one thread at a time. ``crossing.fetching`` fetches ahead for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial

from ledgerlog.blocking.base import Face
from ledgerlog.blocking.portal import Portal
from ledgerlog.crossing.fetching import Fetched
from ledgerlog.errors import RecordsLost
from ledgerlog.ledger import reader
from ledgerlog.limits import READ_REPLY_BYTES_TARGET
from ledgerlog.model.record import Record, RecordBatch

__all__ = ["EntriesFace", "RecordsFace"]


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
