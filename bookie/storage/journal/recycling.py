"""Recycling the files of segments whose entries went to entry logs: fill them with zeros.

If all blocks of a file were written before, a sync takes half as long as for a file that is only allocated,
because the file system has no metadata to update. So the recycler keeps up to ``count`` files of segments
that are no longer needed, for later segments.

The unwritten part of a segment must read as zeros, because zeros distinguish a torn write from damage
(``bookie.core.block``). So the recycler first overwrites a spare with zeros, durably, at no more than
``_BYTES_PER_S``, while no task waits for it. The file has a spare's name until it becomes the next segment. A
start removes all files with such names, so an unfinished spare is never used.
"""

from __future__ import annotations

from collections import deque

import trio

from bookie.storage.disk.disk import Disk, File
from ledgerlog.limits import MIB

SPARE = ".spare"

_PIECE_BYTES = MIB
_BYTES_PER_S = 64 * MIB


class Recycler:
    """Spares of ``size`` bytes in the directory of segments."""

    def __init__(self, disk: Disk, directory: str, *, size: int, count: int) -> None:
        self.recycled = 0
        """How many spares ``take_out`` has returned."""
        self._disk = disk
        self._directory = directory
        self._size = size
        self._count = count
        self._used: deque[tuple[str, int]] = deque()
        self._ready: deque[str] = deque()
        self._zeroing = 0
        self._wake = trio.lowlevel.ParkingLot()

    async def take_in(self, path: str, used: int) -> bool:
        """Make a spare of the file of a segment that is no longer needed: rename it durably.

        Args:
            path: The segment's file.
            used: How many bytes at its beginning were written.

        Returns:
            False if there are enough spares or the file has another size; nothing was changed then.
        """
        if len(self._used) + len(self._ready) + self._zeroing >= self._count:
            return False
        file = await self._disk.open(path)
        try:
            if await self._disk.size(file) != self._size:
                return False
        finally:
            self._disk.close(file)
        spare = path + SPARE
        await self._disk.rename(path, spare)
        await self._disk.sync_directory(self._directory)
        self._used.append((spare, used))
        self._wake.unpark_all()
        return True

    def take_out(self, size: int) -> str | None:
        """Remove a spare of ``size`` bytes that reads as zeros. Return its path, or None if there is none."""
        if size != self._size or not self._ready:
            return None
        self.recycled += 1
        return self._ready.popleft()

    async def run(self) -> None:
        """Fill the files that were taken in with zeros, forever. Raises StorageError if the disk fails."""
        while True:
            if not self._used:
                await self._wake.park()
                continue
            path, used = self._used.popleft()
            self._zeroing += 1
            file = await self._disk.open(path, for_writing=True)
            try:
                await self._fill(file, used)
            finally:
                self._disk.close(file)
                self._zeroing -= 1
            self._ready.append(path)

    async def _fill(self, file: File, used: int) -> None:
        zeros = await self._disk.make_buffer(min(used, _PIECE_BYTES))
        for at in range(0, used, len(zeros)):
            piece = zeros[: used - at]
            await self._disk.write_behind(file, at, piece)
            await trio.sleep(len(piece) / _BYTES_PER_S)
