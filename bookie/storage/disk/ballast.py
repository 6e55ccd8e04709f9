"""Ballast: disk space that is reserved early and given up when the disk is full.

A bookie on a full disk must still be able to stop cleanly, to start, and to free space. Each of these writes
a little: the index, the marks, a short segment. The bookie turns read-only long before its disk is full, but
that does not help if other programs write to the same disk. Above all, LevelDB must never find the disk full:
if only a part of a batch reached LevelDB's log and another batch follows that part, the index is damaged. So
room is kept in two ways:

* A file, ``PATH/ballast``, of ``size`` bytes, allocated and never written to. It is for starts and stops. If
  fewer than ``size`` bytes are free, a start or a stop first removes the file (``make_way``). Afterwards the
  bookie takes the remaining room again at once, before other programs take it (``leave``). The bookie
  restores the whole ballast when twice ``size`` is free (``restore``).
* Large files leave ``size`` bytes free (``check``). Large files are segments and entry logs: a bookie can do
  without a new one for a while. The index may use the bytes that they leave, down to half of ``size``
  (``ensure``).

The table reads from a disk with room (left) to a full disk (right):

    free bytes                        2 x size            size        size / 2          0
    segments, entry logs   made                            | refused: DiskFull
    index                  written                                       | waits
    ballast                made again |                    | removed by a start or a stop

For example, with 16 MiB of ballast, the bookie makes no segment or entry log that would leave less than 16
MiB free. The index waits if less than 8 MiB are free. So if the bookie itself fills its disk, it stops taking
data while the index still has enough room for the work that frees space. If other programs fill the disk to
the last byte, the bookie still stops and starts cleanly, again and again. A start does not ask whether there
is enough room. It removes the ballast and tries.

If the file system of a directory has no bounds, there is no ballast. The ballast is at most a sixteenth of
the disk, because on a small disk the bookie's files are small too. If the bookie crashes while it makes the
file, it leaves a file named ``PATH/ballast.new``. That file is removed together with the ballast, or when the
ballast is made again.

**A small bookie** needs little to start and to stop. So the ballast may be smaller at first
(``begin_small``). It gets its whole size once the bookie makes a file that is larger than half of that size.
The free room that large files must leave is the same from the beginning.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

import trio

from bookie.core.block import PAGE_BYTES
from bookie.storage.disk.disk import Disk, FileMissing
from ledgerlog.errors import DiskFull, StorageError
from ledgerlog.limits import MIB

logger = logging.getLogger(__name__)

BALLAST_BYTES = 16 * MIB
"""LevelDB writes tables of four megabytes. A compaction writes several at once and removes the old ones only
afterwards."""

_SHARE = 16
_SMALL = 16
"""A file this many times smaller than the ballast does not count as large. For example, a log that only
remembers fences must be written, to free the files that it replaces."""


class Ballast:
    """The ballast of one directory. If ``size`` is 0, there is none."""

    def __init__(self, disk: Disk, directory: str, size: int = BALLAST_BYTES) -> None:
        self.size = size
        """The intended size in bytes. On a small disk the ballast is smaller."""
        self._small: int | None = None
        """The size of the file while the bookie is small. None once the bookie makes a file that is larger
        than half of ``size``."""
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/ballast"
        self._fresh = f"{self._path}.new"
        """The temporary name of the ballast. A crash may leave the file under this name. Then the file still
        holds room."""
        self._lock = trio.Lock()
        self._was_given_up = False
        self._is_ending = False

    def begin_small(self, size: int) -> None:
        """Take no more than ``size`` bytes until the bookie makes a file that is larger than half of
        ``self.size``."""
        self._small = size

    async def run(self, changed: Callable[[], trio.Event], *, interval_s: float) -> None:
        """Take the ballast again when there is room for it, forever.

        Args:
            changed: Returns the event to wait for. ``run`` calls ``changed`` again after each look.
            interval_s: Look after this many seconds at the latest.

        Raises:
            StorageError: The disk failed.
        """
        await self.leave(free_share=1)
        while True:
            event = changed()
            await self.restore()
            with trio.move_on_after(interval_s):
                await event.wait()

    async def make_way(self) -> None:
        """Give the ballast up before a start or a stop, if less than its size is free."""
        free, size = await self._look()
        if free < size:
            await self.give_up(f"{free} bytes are free")

    async def make_way_for_good(self) -> None:
        """Give the ballast up before a stop, as ``make_way`` does. From now on, large files need not leave
        room, and ``restore`` does nothing."""
        self._is_ending = True
        await self.make_way()

    async def leave(self, *, free_share: int = 0) -> None:
        """Take the ballast again after a start or a stop, if the start or the stop removed it.

        Take all free bytes, except ``free_share`` halves of the ballast's size. For example, with
        ``free_share=1`` half of its size stays free.
        """
        if self._was_given_up:
            free, size = await self._look()
            await self._take(min(size, (free - free_share * size // 2) // PAGE_BYTES * PAGE_BYTES))

    async def check(self, size: int) -> None:
        """Check that a large file may be made.

        Raises:
            DiskFull: A file of ``size`` bytes would use room that must be kept.
        """
        if 2 * size > self.size:
            self._small = None
        free, kept = await self._look()
        if not kept or self._is_ending:
            return
        if size * _SMALL <= kept:
            await self.ensure()
        elif free - size < 2 * kept - min(kept, await self._held()):
            raise DiskFull(
                f"{free} bytes are free in {self._directory}: not enough for another {size}, because {kept} "
                f"are reserved for the index"
            )

    async def ensure(self) -> None:
        """Check that there is room for small writes that the bookie cannot do without, such as the index.

        Raises:
            DiskFull: There is no room.
        """
        free, size = await self._look()
        if free < size // 2:
            raise DiskFull(f"{free} bytes are free in {self._directory}: too few for the index")

    async def give_up(self, why: str) -> None:
        """Remove the ballast if there is one. ``why`` goes to the log."""
        is_held = False
        async with self._lock:
            for path in (self._path, self._fresh):
                with contextlib.suppress(FileMissing):
                    await self._disk.unlink(path)
                    is_held = True
        if is_held:
            self._was_given_up = True
            logger.warning("%s was given up: %s", self._path, why)

    async def restore(self) -> None:
        """Take the whole ballast if some of it is missing and twice its size is free."""
        free, size = await self._look()
        if free >= 2 * size and not self._is_ending:
            await self._take(size if self._small is None else min(size, self._small))

    async def _take(self, size: int) -> None:
        async with self._lock:
            if size <= await self._held():
                return
            with contextlib.suppress(FileMissing):
                await self._disk.unlink(self._fresh)
            with contextlib.suppress(DiskFull):  # Another writer took the room first.
                self._disk.close(await self._disk.create(self._fresh, size))
                await self._disk.rename(self._fresh, self._path)
                await self._disk.sync_directory(self._directory)

    async def _held(self) -> int:
        """Return how many bytes the ballast has. An earlier process may have got less than the full size."""
        try:
            file = await self._disk.open(self._path)
        except FileMissing:
            return 0
        try:
            return await self._disk.size(file)
        finally:
            self._disk.close(file)

    async def _look(self) -> tuple[int, int]:
        """Return how many bytes are free, and how many of them must be kept."""
        if not self.size:
            return 0, 0
        try:
            space = await self._disk.space(self._directory)
        except StorageError:
            return 0, 0  # The disk watch reports this error.
        if space is None:
            return 0, 0
        return space.free, min(self.size, space.total // _SHARE // PAGE_BYTES * PAGE_BYTES)
