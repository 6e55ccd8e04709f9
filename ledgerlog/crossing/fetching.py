"""Reading a log for callers outside of trio's loop.

A task in trio's loop fetches batches ahead of the caller. Each call of ``take`` returns all batches that have
arrived. So a caller that replays a log crosses between the loops once for many records, not once for each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from ledgerlog.concurrency.nurseries import background
from ledgerlog.concurrency.watermark import fresh
from ledgerlog.errors import ConnectionClosed, LedgerLogError, RecordsLost
from ledgerlog.limits import LOG_READ_AHEAD_BYTES
from ledgerlog.log import reader as readers
from ledgerlog.model.record import RecordBatch

__all__ = ["Fetched", "fetch"]

_RECORD_COST_BYTES = 48


class Fetched:
    """The batches that have arrived and that no ``take`` has returned yet."""

    def __init__(self) -> None:
        self.batches: deque[RecordBatch | RecordsLost] = deque()
        self.bytes = 0
        self.is_complete = False
        self.is_left = False
        """Whether the reader was left. It gives no record after that, not even one that has arrived."""
        self.failure: LedgerLogError | None = None
        self.next_offset = 0
        self.given: list[RecordBatch | RecordsLost] = []
        """The last answer of ``take``. An interruption may lose an answer on its way to the caller, so
        ``take`` can return it again."""
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
        """Wait for a batch, and return all batches that have arrived.

        ``received`` is the number of answers that the caller has received. If the caller has not received
        the last answer (an interruption lost it), return that answer again. Return an empty list at the end
        of the log, and None if no batch arrived within ``timeout_s``."""
        if self.is_left:
            raise ConnectionClosed("the reader was left")
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
    """Enter a log's reader, and fetch from it while the body runs."""
    fetched = Fetched()
    async with manager as reader:
        fetched.next_offset = reader.next_offset

        async def run() -> None:
            await fetched.run(reader)

        async with background(run, name="reader outside of the loop"):
            try:
                yield fetched
            finally:
                fetched.is_left = True
