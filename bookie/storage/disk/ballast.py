"""Ballast: room that is taken while there is some, to be given up when there is none.

A bookie on a full disk must still be able to stop in order, to start, and to free space, and each of these
writes a little: the index, the marks, a short segment. That the bookie itself turns read-only long before
does not help where others write to the same disk. Above all LevelDB may never find the disk full: a batch of
which only a part reached its log, and one more behind it, is a damaged index. So room is kept in two ways:

* a file, ``PATH/ballast``, of ``size`` bytes, allocated and never written to. It is for starts and stops, and
  removed where less than its size is free (``make_way``). What is left of it afterwards is taken again at
  once, before others take it (``leave``), all of it when twice its size is free (``restore``);
* what is large leaves that much free (``check``): segments and entry logs, of which a bookie can do without
  the next one. The index may use what they leave, down to the half (``ensure``).

    free bytes                        2 x size            size        size / 2          0
    segments, entry logs   made                            | refused: DiskFull
    index                  written                                       | waits
    ballast                made again |                    | given up by a start, and by a stop

So a bookie that fills its disk itself stops where the index has room to free what can be freed; and where
others fill it to the last byte, it still stops and starts in order, again and again. A start does not ask
whether there is room for it, it tries: what is in its way is given up first.

Where the file system of a directory has no bounds there is nothing to keep. The size is at most a sixteenth
of the disk: on a small one the bookie's files are small too. A crash while the file is made leaves one under
another name, ``PATH/ballast.new``, which is given up with it, and goes when the ballast is taken.
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
"""LevelDB writes tables of four megabytes, some of them at once where it compacts, and removes what they
replace only then."""

_SHARE = 16
_SMALL = 16
"""What is so many times smaller than the ballast is no large file: a log that only remembers fences must be
written to free the files that it replaces."""


class Ballast:
    """That of one directory. Where ``size`` is 0 nothing is kept."""

    def __init__(self, disk: Disk, directory: str, size: int = BALLAST_BYTES) -> None:
        self.size = size
        """As it should be; of a small disk it is less."""
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/ballast"
        self._fresh = f"{self._path}.new"
        """As which it is made. A crash may leave it, and it holds as much as if it had its name."""
        self._lock = trio.Lock()
        self._was_given_up = False
        self._is_ending = False

    async def run(self, changed: Callable[[], trio.Event], *, interval_s: float) -> None:
        """Take the ballast again when there is room for it, for ever: looks now and then, and whenever the
        event that ``changed`` gives is set. StorageError if the disk fails."""
        await self.leave(free_share=1)
        while True:
            event = changed()
            await self.restore()
            with trio.move_on_after(interval_s):
                await event.wait()

    async def make_way(self) -> None:
        """Before a start or a stop: give the ballast up if there is less room than that."""
        free, size = await self._look()
        if free < size:
            await self.give_up(f"{free} bytes are free")

    async def make_way_for_good(self) -> None:
        """Before a stop: the same, and large files need not leave anything any more."""
        self._is_ending = True
        await self.make_way()

    async def leave(self, *, free_share: int = 0) -> None:
        """After a start or a stop: take what was given up for it again, as much as there is, but for so many
        halves of its size."""
        if self._was_given_up:
            free, size = await self._look()
            await self._take(min(size, (free - free_share * size // 2) // PAGE_BYTES * PAGE_BYTES))

    async def check(self, size: int) -> None:
        """DiskFull if a large file of that size would take room that is kept."""
        free, kept = await self._look()
        if not kept or self._is_ending:
            return
        if size * _SMALL <= kept:
            await self.ensure()
        elif free - size < 2 * kept - min(kept, await self._held()):
            raise DiskFull(
                f"{free} bytes are free in {self._directory}: not enough for another {size}, because "
                f"{kept} are kept for the index"
            )

    async def ensure(self) -> None:
        """DiskFull unless there is room for what is small and must be written."""
        free, size = await self._look()
        if free < size // 2:
            raise DiskFull(f"{free} bytes are free in {self._directory}: too few for the index")

    async def give_up(self, why: str) -> bool:
        """Give back what is held; False if nothing is."""
        is_held = False
        async with self._lock:
            for path in (self._path, self._fresh):
                with contextlib.suppress(FileMissing):
                    await self._disk.unlink(path)
                    is_held = True
        if is_held:
            self._was_given_up = True
            logger.warning("%s was given up: %s", self._path, why)
        return is_held

    async def restore(self) -> None:
        """Take the ballast, if it is not all held and there is plenty."""
        free, size = await self._look()
        if free >= 2 * size and not self._is_ending:
            await self._take(size)

    async def _take(self, size: int) -> None:
        async with self._lock:
            if size <= await self._held():
                return
            with contextlib.suppress(FileMissing):
                await self._disk.unlink(self._fresh)
            with contextlib.suppress(DiskFull):  # Somebody was quicker.
                self._disk.close(await self._disk.create(self._fresh, size))
                await self._disk.rename(self._fresh, self._path)
                await self._disk.sync_directory(self._directory)

    async def _held(self) -> int:
        """How many bytes are held; what an earlier life could not take all of is less than it should be."""
        try:
            file = await self._disk.open(self._path)
        except FileMissing:
            return 0
        try:
            return await self._disk.size(file)
        finally:
            self._disk.close(file)

    async def _look(self) -> tuple[int, int]:
        """How much is free, and how much of it is to be kept."""
        if not self.size:
            return 0, 0
        try:
            space = await self._disk.space(self._directory)
        except StorageError:
            return 0, 0  # Whoever watches the disk says so.
        if space is None:
            return 0, 0
        return space.free, min(self.size, space.total // _SHARE // PAGE_BYTES * PAGE_BYTES)
