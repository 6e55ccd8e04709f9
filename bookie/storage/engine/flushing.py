"""Flushes that somebody asks for: everything added so far, in files and in the index.

Checkpoints and the write cache's own flushes come by themselves; this is for who must know that they did:
repair, before it takes ledgers out of limbo, and tests. The engine's own task does it, for all that asked
meanwhile at once, so that whoever asks may be cancelled in the middle and nothing is left half done.
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
    def __init__(self, checkpointer: Checkpointer, write_cache: WriteCache | None) -> None:
        self._checkpointer = checkpointer
        self._write_cache = write_cache
        self._waiters: list[_Waiter] = []
        self._wanted = trio.lowlevel.ParkingLot()

    async def flush(self) -> None:
        """``Engine.flush``."""
        waiter = _Waiter()
        self._waiters.append(waiter)
        self._wanted.unpark_all()
        await waiter.done.wait()
        if waiter.failure is not None:
            raise waiter.failure

    async def run(self) -> None:
        """Flush whenever somebody wants it, for ever. StorageError if the disk or the index fails."""
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
