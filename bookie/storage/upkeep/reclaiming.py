"""Freeing space when it is asked for, and not when its time has come.

Collection and compaction have their own pace. Where a disk is short of space, whoever watches it asks for
both (``prompt``): first what the metadata store no longer has is given up, then every file of which enough
does not count is written again, the ones included that could wait. Both are the same work that goes on now
and then, done under the same locks, and bounded by the same rate.

Prompts that come while one is being followed are one more prompt, and two of them never begin within
``_PAUSE_S``: a pass asks the store for every ledger, and what it did not free it will not free a second
later.
"""

from __future__ import annotations

import logging

import trio

from bookie.storage.upkeep.collector import Collector
from bookie.storage.upkeep.compaction import Compactor
from ledgerlog.errors import MetadataUnavailable

logger = logging.getLogger(__name__)

_PAUSE_S = 60.0


class Reclaimer:
    def __init__(self, compactor: Compactor, collector: Collector | None) -> None:
        self.rounds = 0
        self._compactor = compactor
        self._collector = collector
        self._wanted = trio.Event()

    def prompt(self) -> None:
        """Have space freed soon."""
        self._wanted.set()

    async def run(self) -> None:
        """Follow prompts, for ever. StorageError if the disk or the index fails a write."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            if self._collector is not None:
                try:
                    await self._collector.collect()
                except MetadataUnavailable as trouble:
                    logger.warning("short of space, and the metadata store cannot be asked: %s", trouble)
            await self._compactor.compact(is_eventual=True)
            self.rounds += 1
            await trio.sleep(_PAUSE_S)
