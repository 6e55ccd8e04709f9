"""An index that is written to only while the disk has room for it, and waits while it has none.

Everything else that a bookie writes may fail for want of room and be done again: a segment, an entry log.
What is in the index must follow what is in them, and whoever writes it is in the middle of something. So
while the bookie serves, a batch waits for room (``bookie.storage.disk.ballast``), and with it the checkpoint,
flush or collection that it belongs to. Fences and recovery go on in the journal as long as that has room;
ordinary adds are refused at once (``on_stuck``).

At a start and at a stop nobody waits: the batch is tried, once more without the ballast, and then it fails.
A stop that fails so is not a clean one: the next start replays the journal.

Where there is no descriptor for a file of the index a batch waits as well, also at a start and at a stop: the
disk can take it.

The index underneath says DiskFull where a batch found no room, and is whole then: nothing of the batch
counts, and it takes the next one (``LevelDbIndex``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from bookie.core.rows import Change, Row
from bookie.storage.disk.ballast import Ballast
from bookie.storage.disk.descriptors import RETRY_S, OutOfDescriptors
from bookie.storage.index.index import Index
from ledgerlog.errors import DiskFull

logger = logging.getLogger(__name__)


class PatientIndex:
    """``Index`` on another one."""

    def __init__(self, inner: Index, ballast: Ballast, *, retry_s: float) -> None:
        self.path = inner.path
        self.if_behind = inner.if_behind
        self.is_patient = False
        """Whether batches wait for room."""
        self.on_stuck: Callable[[bool], None] | None = None
        """Told when batches begin to wait, and when they do not any more."""
        self._inner = inner
        self._ballast = ballast
        self._retry_s = retry_s
        self._is_stuck = False

    def get_now(self, key: bytes) -> bytes | None:
        return self._inner.get_now(key)

    def scan_now(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        return self._inner.scan_now(start, stop, floor=floor, limit=limit)

    async def scan(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        return await self._inner.scan(start, stop, floor=floor, limit=limit)

    async def write(self, rows: Sequence[Change]) -> None:
        while True:
            try:
                if self.is_patient:
                    await self._ballast.ensure()
                await self._inner.write(rows)
            except DiskFull as full:
                if not self.is_patient:
                    if await self._ballast.give_up(str(full)):
                        continue
                    raise
                self._set_stuck(True, full)
                await trio.sleep(self._retry_s)
            except OutOfDescriptors as none_left:
                self._set_stuck(True, none_left)
                await trio.sleep(RETRY_S)
            else:
                self._set_stuck(False)
                return

    def _set_stuck(self, is_stuck: bool, why: object = None) -> None:
        if is_stuck == self._is_stuck:
            return
        self._is_stuck = is_stuck
        if is_stuck:
            logger.error("%s: nothing can be written for now: %s", self.path, why)
        else:
            logger.warning("%s: it can be written again", self.path)
        if self.on_stuck is not None:
            self.on_stuck(is_stuck)

    async def aclose(self) -> None:
        await self._inner.aclose()
