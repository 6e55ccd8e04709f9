"""Freeing space on request.

Collection and compaction run at their own intervals. If the disk is short of space, the watch on the disk
asks for both at once (``prompt``). First the bookie deletes the ledgers that the metadata store no longer
has. Then it compacts every file that is worth it, including files that could wait. This is the same work as
at the usual intervals, under the same locks and the same limit of rate.

All prompts during a round lead to one more round. The next round begins at least ``_PAUSE_S`` seconds after
the last one ended. The reason: a round asks the metadata store about every ledger, and a second later it
would free nothing more.
"""

from __future__ import annotations

import logging

import trio

from bookie.storage.index.index import NOT_NOW
from bookie.storage.upkeep.collector import Collector
from bookie.storage.upkeep.compaction import Compactor
from ledgerlog.errors import MetadataUnavailable

logger = logging.getLogger(__name__)

_PAUSE_S = 60.0


class Reclaimer:
    """Runs collection and compaction on request."""

    def __init__(self, compactor: Compactor, collector: Collector | None) -> None:
        self.rounds = 0
        self._compactor = compactor
        self._collector = collector
        self._wanted = trio.Event()

    def prompt(self) -> None:
        """Ask for space to be freed soon."""
        self._wanted.set()

    async def run(self) -> None:
        """Follow prompts, forever. Raises StorageError if a write to the disk or the index fails."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            if self._collector is not None:
                try:
                    await self._collector.collect()
                except MetadataUnavailable as trouble:
                    logger.warning("short of space, but the metadata store cannot be asked: %s", trouble)
                except NOT_NOW as trouble:
                    logger.warning("short of space, but collection waits: %s", trouble)
            await self._compactor.compact(is_eventual=True)
            self.rounds += 1
            await trio.sleep(_PAUSE_S)
