"""Append lanes: appends from another event loop than trio's, taken in groups and answered in groups.

A task in trio that appends waits in ``LogWriter.append``. A caller in another event loop cannot wait there,
and a trio task for each of the caller's records would cost more than the append. So the asyncio face
(``ledgerlog.aio``) hands over all records that have gathered, in one step. An ``AppendLane`` takes these
records into the writer's window (the bound on records that are not yet answered). One task of the lane waits
for the answers to all records, and passes on all answers that have come, in one call. Each record has the
outcome that ``LogWriter.append`` would give it.

A lane has two tasks. Each one exists only while it has something to wait for: a place in the window, or an
answer. So you need not end a lane. When the leadership ends, every record is answered. If the tasks are
cancelled first, because the connection is closed, every record has an error at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

import trio

from ledgerlog.errors import AppendUnknown, ConnectionClosed, LedgerLogError
from ledgerlog.log.core.append_queue import Batch
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.attributes import Attributes
from ledgerlog.model.record import Ack

__all__ = ["AppendLane", "OutsideAppend"]


class OutsideAppend:
    """One record, and later its outcome: an Ack or an error."""

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
        nursery: Where the lane's tasks run. It must stay open until the writer was left.
        tell: The lane calls this with records that have their outcome, in the order of the log.
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
        """Append records, in this order. The lane reports their outcomes later; in this call only if the
        nursery is closed already."""
        writer = self._writer
        for append in appends:
            if append.is_withdrawn:
                continue
            if self._waiting or not writer._is_free_for(append.size):
                self._waiting.append(append)
                if len(self._waiting) == 1:
                    self._start(self._wait_for_places, self._waiting)
            else:
                self._put(append)

    def withdraw(self, append: A) -> None:
        """Note that the caller of a record was cancelled. If the record is not sent yet, it is not written.

        The lane does not report the record's outcome, unless it has done so already.
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
        self._pending.append(append)
        if len(self._pending) == 1:
            self._start(self._wait_for_answers, self._pending)
        if append._slot == 0 or queue.is_sendable:
            self._writer._leader.pump()

    def _start(self, wait: Callable[[], Awaitable[None]], appends: deque[A]) -> None:
        async def task() -> None:
            try:
                await wait()
            except trio.Cancelled:
                self._give_up(appends)
                raise

        try:
            self._nursery.start_soon(task)
        except RuntimeError:  # The nursery is closed.
            self._give_up(appends)

    def _give_up(self, appends: deque[A]) -> None:
        """Tell the callers of records that the connection was closed."""
        told = [append for append in appends if not append.is_withdrawn]
        appends.clear()
        for append in told:
            closed = ConnectionClosed("the connection was closed during the call")
            if append._batch is None:
                append.outcome = closed
            else:
                append.outcome = AppendUnknown(
                    "the connection was closed: the record may or may not be in the log"
                )
                append.outcome.__cause__ = closed
        if told:
            self._tell(told)

    async def _wait_for_places(self) -> None:
        while self._waiting:
            append = self._waiting[0]
            failure = None
            if not append.is_withdrawn:
                try:
                    await self._writer._wait_room(append.size)
                except LedgerLogError as refusal:
                    failure = refusal
            # No checkpoint from here on, so that no other task takes the place.
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
            with suppress(LedgerLogError):  # The leadership has ended. Each record gets its own verdict.
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
