"""Open files for reading entries, and waiting until no read uses them.

A *run* is a frame of entries of one ledger, stored in one piece. A run names its file by one number: a
segment of the journal by its own number, an entry log by its negative number. ``FilePool`` opens a file when
a read asks for it and keeps it open. If more than ``_OPEN_FILES_MAX`` are open, it closes the least recently
used files, but never a file that a read is using.

**Retiring.** If the entries of a file were written again elsewhere, the file is removed. But a read may have
found the file in the index already, and may open it soon. So each read runs within ``reading``, and
``retire`` waits until all earlier reads have ended. Later reads find the entries in their new place. A read
may take long, because it waits for turns. So while ``retire`` waits (``is_awaited``), reads end early.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import attrs
import trio

from bookie.storage.disk.disk import Disk, File

_OPEN_FILES_MAX = 64


@attrs.define(eq=False)
class _OpenFile:
    file: File
    users: int = 0


class FilePool:
    """A pool of open files. ``path_of`` returns the path of a file number."""

    def __init__(self, disk: Disk, path_of: Callable[[int], str]) -> None:
        self.path_of = path_of
        self._disk = disk
        self._open: dict[int, _OpenFile] = {}  # the most recently used last
        self._era = 0
        self._readers: Counter[int] = Counter()
        self._done = trio.lowlevel.ParkingLot()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Protect files for a read. If the index names a file at any time while the body runs, the file stays
        readable until the end of the body."""
        era = self._era
        self._readers[era] += 1
        try:
            yield
        finally:
            self._readers[era] -= 1
            if not self._readers[era]:
                del self._readers[era]
                self._done.unpark_all()

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for the end of reads. A read that may take long should end early then."""
        return bool(self._done)

    async def read(self, file: int, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read the bytes at each (offset, length) of a file.

        If the file ends before a range does, the result for that range is shorter.

        Raises:
            StorageError: The file cannot be read or does not exist.
        """
        (found,) = await self.read_many([(file, ranges)])
        return found

    async def read_many(self, requests: Sequence[tuple[int, Sequence[tuple[int, int]]]]) -> list[list[bytes]]:
        """Do as ``read``, for several files at once."""
        used: list[_OpenFile] = []
        try:
            for file, _ in requests:
                opened = self._open.pop(file, None)
                if opened is None:
                    made = await self._disk.open(self.path_of(file))
                    other = self._open.pop(file, None)
                    if other is None:
                        opened = _OpenFile(made)
                    else:
                        self._disk.close(made)  # Another read opened the file at the same time.
                        opened = other
                self._open[file] = opened
                opened.users += 1
                used.append(opened)
            return await self._disk.read_many(
                [(opened.file, ranges) for opened, (_, ranges) in zip(used, requests, strict=True)]
            )
        finally:
            for opened in used:
                opened.users -= 1
            self._close_idle()

    def read_now(self, file: int, offset: int, length: int) -> bytes:
        """Do as ``read``, for one range, without letting other tasks run."""
        opened = self._open.get(file)
        if opened is not None:
            return self._disk.read_now(opened.file, offset, length)
        made = self._disk.open_now(self.path_of(file))
        try:
            return self._disk.read_now(made, offset, length)
        finally:
            self._disk.close(made)

    def _close_idle(self) -> None:
        surplus = len(self._open) - _OPEN_FILES_MAX
        for file in [file for file, opened in self._open.items() if not opened.users][: max(0, surplus)]:
            self._disk.close(self._open.pop(file).file)

    async def retire(self, files: Iterable[int]) -> None:
        """Wait until no read uses these files, and close them. The index must no longer name them."""
        era, self._era = self._era, self._era + 1
        while any(begun <= era for begun in self._readers):
            await self._done.park()
        for file in files:
            opened = self._open.pop(file, None)
            if opened is not None:
                assert not opened.users
                self._disk.close(opened.file)

    def close(self) -> None:
        """Close all files. No read may be under way."""
        for opened in self._open.values():
            self._disk.close(opened.file)
        self._open.clear()
