"""Reading without ``await``: iterators over the results of asynchronous readers.

A reader is for one thread at a time: while a call is under way, a call of another thread is refused.
``crossing.fetching`` fetches ahead for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from threading import get_ident

from ledgerlog.blocking.base import Face
from ledgerlog.blocking.portal import Portal
from ledgerlog.crossing.fetching import Fetched
from ledgerlog.crossing.place import ReadingPlace
from ledgerlog.errors import InvalidArgument
from ledgerlog.ledger import reader
from ledgerlog.limits import READ_REPLY_BYTES_TARGET
from ledgerlog.log.reader import in_use
from ledgerlog.model.record import Record, RecordBatch

__all__ = ["EntriesFace", "RecordsFace"]


class _OneCall:
    """A context manager, entered for each call: it refuses the calls of other threads while its body runs.

    It is a class, because a generator as a context manager costs a record four times as much. It yields the
    place, which is empty if the reader was left.
    """

    def __init__(self, portal: Portal, place: ReadingPlace) -> None:
        self._portal = portal
        self._place = place
        self._user: dict[str, int] = {}
        """The thread whose call is under way. ``setdefault`` enters one thread only, whatever the threads do.
        If an interruption comes just after that, the thread stays entered, and its next call clears it."""

    def __enter__(self) -> ReadingPlace:
        thread = get_ident()
        if self._user.setdefault("thread", thread) != thread:
            self._portal.check()  # In a forked child, the call of a thread of the parent never ends.
            raise in_use()
        self._place.drop_if_left()
        return self._place

    def __exit__(self, *failure: object) -> None:
        self._user.clear()


class RecordsFace(Face[Fetched]):
    """The records of a log, as an iterator."""

    def __init__(self, portal: Portal, inner: Fetched) -> None:
        super().__init__(portal, inner)
        self._place = ReadingPlace(inner)
        self._one_call = _OneCall(portal, self._place)

    @property
    def next_offset(self) -> int:
        """The offset after the last record that was returned, or the offset where reading starts."""
        return self._place.next_offset

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

        Raises:
            InvalidArgument: ``timeout_s`` is negative or no number.
            LedgerLogError: As for ``ledgerlog.LogReader``.
        """
        if timeout_s is not None and (not isinstance(timeout_s, int | float) or not timeout_s >= 0):
            raise InvalidArgument(f"timeout_s must be None or 0 and more seconds, not {timeout_s!r}")
        with self._one_call as place:
            while True:
                for record in place.records:
                    place.next_offset = record.offset + 1
                    return record
                batch = self._take(timeout_s)
                if batch is None:
                    return None
                place.begin(batch)

    def batches(self) -> Iterator[RecordBatch]:
        """Iterate by batches, for replay. Both ways of iterating share one place in the log."""
        return iter(self._next_batch, None)

    def _next_batch(self) -> RecordBatch | None:
        with self._one_call as place:
            batch = place.take_rest()
            if batch is None:
                batch = self._take(None)
            if batch is not None:
                place.next_offset = batch.end_offset
            return batch

    def _take(self, timeout_s: float | None) -> RecordBatch | None:
        place = self._place
        if place.is_empty:
            place.on_received(self._run(lambda: self._inner.take(place.received, timeout_s)))
        return place.take()


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
