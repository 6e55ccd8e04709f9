"""The place of an iterator over records, as the faces for threads and for asyncio share it.

A face offers the library outside of trio's loop (``crossing.loop``). It gets lists of batches from
``crossing.fetching``, and its caller iterates over them record by record, or batch by batch. If a caller
mixes the two ways, each continues where the other stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from ledgerlog.crossing.fetching import Fetched
from ledgerlog.errors import RecordsLost
from ledgerlog.model.record import Record, RecordBatch

__all__ = ["ReadingPlace"]


class ReadingPlace:
    """Where an iterator over records is.

    Args:
        fetched: The reader.
    """

    def __init__(self, fetched: Fetched) -> None:
        self._fetched = fetched
        self.next_offset = fetched.next_offset
        """The offset after the last record that was returned."""
        self.records: Iterator[Record] = iter(())
        """The remaining records of the batch that was begun. Set ``next_offset`` for each record that you
        take."""
        self.received = 0
        """How many lists have come. The empty list at the end of the log counts too."""
        self._batch: RecordBatch | None = None
        self._waiting: deque[RecordBatch | RecordsLost] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether another list is needed before ``take``."""
        return not self._waiting

    def on_received(self, taken: Sequence[RecordBatch | RecordsLost] | None) -> None:
        """Note the answer of ``Fetched.take``: a list, empty at the end of the log; None if no list came in
        time."""
        if taken is not None:
            self._waiting.extend(taken)
            self.received += 1

    def take(self) -> RecordBatch | None:
        """Take the next batch; None if there is none.

        Raises:
            RecordsLost: Records were given up before they were read. Call this again to read on after them.
        """
        if not self._waiting:
            return None
        first = self._waiting.popleft()
        if isinstance(first, RecordsLost):
            self.next_offset = max(self.next_offset, first.first_offset)
            raise first
        return first

    def begin(self, batch: RecordBatch) -> None:
        """Begin to go through a batch record by record."""
        self._batch, self.records = batch, iter(batch)

    def drop_if_left(self) -> None:
        """If the reader was left, drop all batches. ``Fetched.take`` then raises ConnectionClosed."""
        if self._fetched.is_left:
            self._batch, self.records = None, iter(())
            self._waiting.clear()

    def take_rest(self) -> RecordBatch | None:
        """Take the rest of the batch that was begun; None if nothing is left."""
        begun, self._batch, self.records = self._batch, None, iter(())
        if begun is None or self.next_offset >= begun.end_offset:
            return None
        return begun.between(self.next_offset)
