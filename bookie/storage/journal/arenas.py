"""Arenas: the memory from which segments are written and recent entries are read.

An arena is as large as a segment, and one segment after another uses it. Bytes that an earlier segment left
in an arena are never read, because blocks are written whole and each run (a frame of entries of one ledger)
names its own bytes. There are at most ``count`` arenas. Their number and size bound the memory that a bookie
spends on recent data.
"""

from __future__ import annotations

from bookie.storage.disk.disk import Disk


class Arenas:
    """Up to ``count`` arenas of ``size`` bytes each. If a segment has another size, its arena has that size
    too."""

    def __init__(self, disk: Disk, *, count: int, size: int) -> None:
        self.bytes_held = 0
        self._disk = disk
        self._size = size
        self._count = count
        self._made = 0
        self._free: list[memoryview] = []

    @property
    def has_free(self) -> bool:
        """Whether an arena is free. Call ``take`` only then."""
        return bool(self._free) or self._made < self._count

    async def take(self, size: int | None = None) -> memoryview:
        """Take a free arena of ``size`` bytes, by default the usual size. Its content is arbitrary."""
        assert self.has_free
        if size is None or size == self._size:
            if self._free:
                return self._free.pop()
            size = self._size
        elif self._free:
            self._let_go(self._free.pop())
        self._made += 1
        self.bytes_held += size
        return await self._disk.make_buffer(size)

    def give_back(self, view: memoryview) -> None:
        """Return an arena that is no longer read or written."""
        if len(view) == self._size:
            self._free.append(view)
        else:
            self._let_go(view)

    def _let_go(self, view: memoryview) -> None:
        self._made -= 1
        self.bytes_held -= len(view)
