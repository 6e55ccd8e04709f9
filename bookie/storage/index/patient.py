"""An index that waits while the disk has no room for its writes.

If there is no room for another file, such as a segment or an entry log, the bookie can write it again later.
Index writes are different: the index must not fall behind the other files, and the caller is in the middle of
a larger step. So while the bookie serves, a batch waits for room (``bookie.storage.disk.ballast``). The
checkpoint, flush or collection that writes the batch waits too. Fences and recovery continue while the
journal has room. Ordinary adds are refused at once (``on_stuck``).

A start and a stop do not wait for room. The batch is tried once. If it finds no room, the bookie removes the
ballast and tries the batch once more. If it still finds no room, it fails. If a stop fails in this way, it is
not a clean stop: the next start replays the journal.

If no file descriptor is left for the index, a batch waits too, even at a start and at a stop, because the
disk has room for the batch.

A refresh closes the index and opens it again, which takes room and descriptors. So the index is not closed
while the disk is full. If it cannot be opened again nevertheless, the refresh waits until it can.

**Damage.** ``PatientIndex`` also remembers the first damage that was found in the index (``damage``,
``damaged``). All reads and writes pass through it, so it makes no difference whether a reader, a flush or
scrubbing found the damage. ``bookie.server.healing`` waits for the event ``damaged``.

If a batch finds no room, the inner index raises DiskFull and stays whole. Nothing of the batch counts, and
the index takes the next batch (``StoredIndex``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import trio

from bookie.core.rows import Change, Row
from bookie.storage.disk.ballast import Ballast
from bookie.storage.disk.descriptors import RETRY_S, OutOfDescriptors
from bookie.storage.index.index import NOT_NOW, Index
from ledgerlog.errors import DiskFull, StorageCorrupt

logger = logging.getLogger(__name__)


class PatientIndex:
    """An ``Index`` around another ``Index``. Its writes wait for room."""

    def __init__(self, inner: Index, ballast: Ballast, *, retry_s: float) -> None:
        self.path = inner.path
        self.if_behind = inner.if_behind
        self.is_patient = False
        """Whether batches wait for room."""
        self.on_stuck: Callable[[bool], None] | None = None
        """Called with True when batches begin to wait, and with False when they no longer wait."""
        self.damage: StorageCorrupt | None = None
        """The first damage that was found in the index; None if there was none."""
        self.damaged = trio.Event()
        """Set when ``damage`` is set."""
        self._inner = inner
        self._ballast = ballast
        self._retry_s = retry_s
        self._is_stuck = False

    def get_now(self, key: bytes) -> bytes | None:
        with self.noting_damage():
            return self._inner.get_now(key)

    def scan_now(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        with self.noting_damage():
            return self._inner.scan_now(start, stop, floor=floor, limit=limit)

    async def scan(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        with self.noting_damage():
            return await self._inner.scan(start, stop, floor=floor, limit=limit)

    async def write(self, rows: Sequence[Change]) -> None:
        is_last_try = False
        while True:
            try:
                if self.is_patient:
                    await self._ballast.ensure()
                with self.noting_damage():
                    await self._inner.write(rows)
            except DiskFull as full:
                if not self.is_patient:
                    if is_last_try:
                        raise
                    # Try again even if the stop itself, or another batch, has just removed the ballast.
                    await self._ballast.give_up(str(full))
                    is_last_try = True
                    continue
                self._set_stuck(True, full)
                await trio.sleep(self._retry_s)
            except OutOfDescriptors as none_left:
                self._set_stuck(True, none_left)
                await trio.sleep(RETRY_S)
            else:
                self._set_stuck(False)
                return

    async def refresh(self) -> None:
        """Do ``Index.refresh``.

        Raises:
            DiskFull: There may be no room to open the index again. It stays open.
        """
        if self.is_patient:
            await self._ballast.ensure()
        try:
            with self.noting_damage():
                await self._inner.refresh()
        except NOT_NOW:
            if not self.is_patient:
                raise
            await self.write(())  # A batch opens the index again, and waits until that is possible.

    @contextmanager
    def noting_damage(self) -> Iterator[None]:
        """If the body raises damage of the index, remember it. The exception is still raised."""
        try:
            yield
        except StorageCorrupt as damage:
            if damage.path == self.path and self.damage is None:
                self.damage = damage
                self.damaged.set()
                logger.error("%s", damage)
            raise

    def _set_stuck(self, is_stuck: bool, why: object = None) -> None:
        if is_stuck == self._is_stuck:
            return
        self._is_stuck = is_stuck
        if is_stuck:
            logger.error("%s: the index cannot be written for now: %s", self.path, why)
        else:
            logger.warning("%s: the index can be written again", self.path)
        if self.on_stuck is not None:
            self.on_stuck(is_stuck)

    async def aclose(self) -> None:
        await self._inner.aclose()
