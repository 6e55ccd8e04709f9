"""Appends that come from outside of trio's loop, many at once, and are answered many at once.

A task in trio that appends waits in ``LogWriter.append``. A caller in another event loop cannot wait there,
and a task of trio for each of its records would cost more than the append. So a face hands over all records
that have gathered in one step, and an ``AppendLane`` takes them into the window. It waits for answers in one
task for all records, and hands over all answers that are there. Each record has the outcome that
``LogWriter.append`` would give it.

The lane's two tasks exist only while there is something to wait for: a place in the window, or an answer.
So nobody has to end a lane. When the leadership ends, every record is answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

import trio

from ledgerlog.errors import LedgerLogError
from ledgerlog.log.core.append_queue import Batch
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.attributes import Attributes
from ledgerlog.model.record import Ack

__all__ = ["AppendLane", "OutsideAppend"]


class OutsideAppend:
    """One record, and its outcome once it has one: an Ack or an error."""

    __slots__ = ("_batch", "_slot", "_ticket", "attributes", "data", "is_withdrawn", "outcome", "size")

    def __init__(self, data: bytes, attributes: Attributes | None = None) -> None:
        self.data = data
        """The record, at most ``limits.RECORD_BYTES_MAX`` bytes."""
        self.attributes = attributes
        """The key and headers of the record, if it has any."""
        self.size = len(data) if attributes is None else len(data) + attributes.size
        """The bytes of the record, its key and headers included."""
        self.outcome: Ack | LedgerLogError | None = None
        self.is_withdrawn = False
        self._batch: Batch | None = None
        self._slot = -1
        self._ticket = -1


A = TypeVar("A", bound=OutsideAppend)


class AppendLane(Generic[A]):
    """The appends of one writer from one other event loop. All its methods belong to trio's loop.

    Args:
        writer: The writer.
        nursery: Where the lane's tasks run. It must last until the writer was left.
        tell: Gets records that have their outcome, in the order of the log.
    """

    def __init__(self, writer: LogWriter, nursery: trio.Nursery, tell: Callable[[list[A]], object]) -> None:
        self._writer = writer
        self._nursery = nursery
        self._tell = tell
        self._waiting: deque[A] = deque()
        """Records that wait for a place in the window, in the order in which they came."""
        self._pending: deque[A] = deque()
        """Records in the window, in the order of their tickets."""

    def take(self, appends: Iterable[A]) -> None:
        """Append records, in this order. Their outcomes are told later, never in this call."""
        writer = self._writer
        for append in appends:
            if append.is_withdrawn:
                continue
            if self._waiting or not writer._is_free_for(append.size):
                if not self._waiting:
                    self._nursery.start_soon(self._wait_for_places)
                self._waiting.append(append)
            else:
                self._put(append)

    def withdraw(self, append: A) -> None:
        """The caller of a record was cancelled: if the record is not sent yet, it is not written.

        No outcome of it is told, unless that has happened already.
        """
        append.is_withdrawn = True
        if append._batch is not None and append.outcome is None:
            self._writer._take_back(append._batch, append._slot, append._slot + 1)

    def _put(self, append: A) -> None:
        """Put a record into the window, which has room for it."""
        queue = self._writer._queue
        batch = append._batch = queue.add(append.data, append.size, None, append.attributes)
        append._slot = len(batch.records) - 1
        append._ticket = queue.next_ticket - 1
        if not self._pending:
            self._nursery.start_soon(self._wait_for_answers)
        self._pending.append(append)
        if queue.is_sendable:
            self._writer._leader.pump()

    async def _wait_for_places(self) -> None:
        while self._waiting:
            append = self._waiting[0]
            failure = None
            if not append.is_withdrawn:
                try:
                    await self._writer._wait_room(append.size)
                except LedgerLogError as refusal:
                    failure = refusal
            # No checkpoint from here on: the place is taken at once.
            self._waiting.popleft()
            if append.is_withdrawn:
                continue
            if failure is None:
                self._put(append)
            else:
                append.outcome = failure
                self._tell([append])

    async def _wait_for_answers(self) -> None:
        pending, answered = self._pending, self._writer._answered
        while pending:
            with suppress(LedgerLogError):  # The end of the leadership. Each record gets its own verdict.
                await answered.wait(pending[0]._ticket)
            told = []
            while pending and (pending[0]._ticket <= answered.value or answered.failure is not None):
                append = pending.popleft()
                if append.is_withdrawn:
                    continue
                assert append._batch is not None
                if append._ticket <= answered.value:
                    append.outcome = append._batch.ack(append._slot)
                else:
                    append.outcome = self._writer._verdict(append._batch)
                told.append(append)
            if told:
                self._tell(told)
