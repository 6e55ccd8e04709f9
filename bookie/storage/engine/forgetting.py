"""Runs leave memory: the index has them, and ledgers find them there from now on.

Whoever reads asks the index first and memory second (``bookie.storage.engine.reader``). A run that comes to
the index after the first look and leaves memory before the second would be found by neither, and be denied
(rule 8). Two things prevent it:

``given_up`` grows before the first run is forgotten. A reader that finds another number after its second look
than before the first one looks again.

``forget`` returns once every read that may have found the runs in memory is done. Only then their bytes may
make way for others.

Segments of the journal and arenas of the write cache leave memory in this same way.
"""

from __future__ import annotations

from bookie.storage.engine.ledgers import InMemory, Ledgers
from bookie.storage.entrylog.file_pool import FilePool


class Forgetter:
    """Lets runs leave memory."""

    def __init__(self, ledgers: Ledgers, pool: FilePool) -> None:
        self.given_up = 0
        """How many segments and arenas have left memory, or begun to."""
        self._ledgers = ledgers
        self._pool = pool

    async def forget(self, resident: InMemory) -> None:
        """Have ledgers forget the runs of a segment or an arena, which are in the index. Returns when nobody
        reads them in memory any more."""
        self.given_up += 1
        await self._ledgers.forget(resident)
        await self._pool.retire(())
