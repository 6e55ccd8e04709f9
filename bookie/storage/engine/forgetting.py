"""Removing runs from memory once the index has them.

A *run* is a frame of entries of one ledger, stored in one piece.

A read asks the index first and memory second (``bookie.storage.engine.reader``). Suppose that a run enters
the index after the first look and leaves memory before the second. Then both looks would miss the run, and
the bookie would deny an entry that it has (rule 8). Two measures prevent that:

``given_up`` grows before the first run is forgotten. The reader notes ``given_up`` before it asks the index,
and compares afterwards. If ``given_up`` has grown, the reader looks again.

``forget`` returns once every read that may have found the runs in memory has ended. Only then may other
entries overwrite the bytes of these runs.

Segments of the journal and arenas of the write cache leave memory in the same way.
"""

from __future__ import annotations

from bookie.storage.engine.ledgers import InMemory, LedgerTable
from bookie.storage.entrylog.file_pool import FilePool


class Forgetter:
    """Removes runs from memory."""

    def __init__(self, ledgers: LedgerTable, pool: FilePool) -> None:
        self.given_up = 0
        """Number of segments and arenas that have left memory or begun to."""
        self._ledgers = ledgers
        self._pool = pool

    async def forget(self, resident: InMemory) -> None:
        """Make the ledgers forget the runs of a segment or an arena. The index must have these runs. This
        returns once no read uses them in memory."""
        self.given_up += 1
        await self._ledgers.forget(resident)
        await self._pool.retire(())
