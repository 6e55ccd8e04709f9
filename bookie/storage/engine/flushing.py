"""Flush on request: bring everything added so far into files and into the index.

Checkpoints and the write cache flush on their own. Use this if you must know that a flush has happened. For
example, repair flushes before it takes ledgers out of limbo. A task of the engine does the work, with one
flush for all callers that wait at that moment. If a caller is cancelled, only its wait ends and the flush
continues.
"""

from __future__ import annotations

import attrs
import trio

from bookie.storage.engine.write_cache import WriteCache
from bookie.storage.journal.checkpoint import Checkpointer
from ledgerlog.errors import DiskFull


@attrs.define(eq=False)
class _Waiter:
    done: trio.Event = attrs.Factory(trio.Event)
    failure: DiskFull | None = None


class Flusher:
    """Flushes for callers of ``Engine.flush``, in a task of the engine."""

    def __init__(self, checkpointer: Checkpointer, write_cache: WriteCache | None) -> None:
        self._checkpointer = checkpointer
        self._write_cache = write_cache
        self._waiters: list[_Waiter] = []
        self._wanted = trio.lowlevel.ParkingLot()

    async def flush(self) -> None:
        """Do ``Engine.flush``."""
        waiter = _Waiter()
        self._waiters.append(waiter)
        self._wanted.unpark_all()
        await waiter.done.wait()
        if waiter.failure is not None:
            raise waiter.failure

    async def run(self) -> None:
        """Flush whenever a caller waits, forever. Raises StorageError if the disk or the index fails."""
        while True:
            if not self._waiters:
                await self._wanted.park()
                continue
            waiters, self._waiters = self._waiters, []
            failure: DiskFull | None = None
            try:
                await self._flush()
            except DiskFull as full:
                failure = full
            for waiter in waiters:
                waiter.failure = failure
                waiter.done.set()

    async def _flush(self) -> None:
        if self._write_cache is not None:
            await self._write_cache.flush()
        await self._checkpointer.flush()
