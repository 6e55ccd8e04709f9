"""Segments used again: the files of those that went to entry logs, filled with zeros.

A sync into a file whose blocks were all written before takes half the time of one into a file that is merely
allocated, because the file system has nothing to note down. So the file of a segment that is not needed any
more is kept for the next one, up to ``count`` of them.

What was never written to a segment must read as zeros, since that is how a torn write is told from damage
(``bookie.core.block``). So a spare is written over with zeros first, durably, at ``_BYTES_PER_S`` at most,
while nobody waits for it. Its name says that it is a spare until it is the next segment's; a start removes
all that it finds under such names, so a spare that was not finished is never used.
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
        """How many were taken out."""
        self._disk = disk
        self._directory = directory
        self._size = size
        self._count = count
        self._used: deque[tuple[str, int]] = deque()
        self._ready: deque[str] = deque()
        self._zeroing = 0
        self._wake = trio.lowlevel.ParkingLot()

    async def take_in(self, path: str, used: int) -> bool:
        """Make the file of a segment that is not needed any more, and of which the first ``used`` bytes were
        written, a spare, durably; False if none is wanted, or not of its size."""
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
        """The path of a spare of that size which reads as zeros, now the caller's; None if there is none."""
        if size != self._size or not self._ready:
            return None
        self.recycled += 1
        return self._ready.popleft()

    async def run(self) -> None:
        """Fill what was taken in with zeros, for ever. StorageError if the disk fails."""
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
        zeros[:] = bytes(len(zeros))
        for at in range(0, used, len(zeros)):
            piece = zeros[: used - at]
            await self._disk.write_behind(file, at, piece)
            await trio.sleep(len(piece) / _BYTES_PER_S)
