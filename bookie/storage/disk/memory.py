"""The disk capability in memory, for bookies without files and for tests that want a quick disk.

Names and contents exist as long as the ``MemoryDisk``. Every call takes effect at once and lets other tasks
run, as on a real disk. A call fails only if the caller made a mistake, or if ``capacity_bytes`` is set and
the space is used up.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from bookie.core.fullness import DiskSpace
from bookie.storage.disk.disk import File, FileMissing
from ledgerlog.errors import DiskFull, StorageError, StorageLocked


@attrs.define(eq=False)
class MemoryFile:
    """An open file: its path, and the content that all open files of that path share."""

    path: str
    content: bytearray


class _MemoryLock:
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)


class MemoryDisk:
    """``Disk`` without a disk."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        """The content of each file, by path."""
        self.directories: set[str] = set()
        """The paths of all directories."""
        self.capacity_bytes: int | None = None
        """The most bytes that all files together may have; None: no bound."""
        self._locks: set[str] = set()

    async def make_directory(self, path: str) -> None:
        await trio.lowlevel.checkpoint()
        parts = path.split("/")
        self.directories.update("/".join(parts[:count]) for count in range(1, len(parts) + 1))

    async def lock_directory(self, path: str) -> _MemoryLock:
        await trio.lowlevel.checkpoint()
        if path in self._locks:
            raise StorageLocked(path, None)
        self._locks.add(path)
        return _MemoryLock(self._locks, path)

    async def list_directory(self, path: str) -> list[str]:
        await trio.lowlevel.checkpoint()
        if path not in self.directories:
            raise FileMissing(f"cannot list {path}: no such directory")
        names = (*self.files, *self.directories)
        return sorted(name.rpartition("/")[2] for name in names if name.rpartition("/")[0] == path)

    async def sync_directory(self, path: str) -> None:
        await trio.lowlevel.checkpoint()

    async def rename(self, source: str, target: str) -> None:
        await trio.lowlevel.checkpoint()
        self.files[target] = self._content(source)
        del self.files[source]

    async def unlink(self, path: str) -> None:
        await trio.lowlevel.checkpoint()
        self._content(path)
        del self.files[path]

    async def remove_directory(self, path: str) -> None:
        await trio.lowlevel.checkpoint()
        for name in [name for name in self.files if name.startswith(f"{path}/")]:
            del self.files[name]
        self.directories.discard(path)

    async def truncate(self, path: str, size: int) -> None:
        await trio.lowlevel.checkpoint()
        del self._content(path)[size:]

    async def space(self, path: str) -> DiskSpace | None:
        await trio.lowlevel.checkpoint()
        if self.capacity_bytes is None:
            return None
        return DiskSpace(self.capacity_bytes, max(0, self.capacity_bytes - self._bytes_used))

    @property
    def _bytes_used(self) -> int:
        return sum(map(len, self.files.values()))

    def _check_space(self, path: str, size: int) -> None:
        if self.capacity_bytes is not None and self._bytes_used + size > self.capacity_bytes:
            raise DiskFull(f"cannot create {path}: the disk is full")

    async def write_file(self, path: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self._check_space(path, len(data))
        self.files[path] = bytearray(data)

    async def read_file(self, path: str, bytes_max: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return bytes(self._content(path)[:bytes_max])

    async def create(self, path: str, size: int) -> MemoryFile:
        await trio.lowlevel.checkpoint()
        if path in self.files:
            raise StorageError(f"cannot create {path}: it exists")
        self._check_space(path, size)
        self.files[path] = bytearray(size)
        return self.open_now(path)

    async def open(self, path: str, *, for_writing: bool = False) -> MemoryFile:
        await trio.lowlevel.checkpoint()
        return self.open_now(path)

    def open_now(self, path: str) -> MemoryFile:
        return MemoryFile(path, self._content(path))

    def _content(self, path: str) -> bytearray:
        content = self.files.get(path)
        if content is None:
            raise FileMissing(f"cannot open {path}: no such file")
        return content

    async def make_buffer(self, size: int) -> memoryview:
        await trio.lowlevel.checkpoint()
        return memoryview(bytearray(size))

    async def write_sync(self, file: File, offset: int, view: memoryview) -> None:
        assert isinstance(file, MemoryFile)
        await trio.lowlevel.checkpoint()
        file.content[offset : offset + len(view)] = view

    def may_write_now(self, size: int) -> bool:
        return False

    def write_now(self, file: File, offset: int, view: memoryview) -> float:
        raise AssertionError("write_now was called, though may_write_now returns False")

    async def write_behind(self, file: File, offset: int, view: memoryview) -> None:
        await self.write_sync(file, offset, view)

    async def read(self, file: File, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        return [self.read_now(file, offset, length) for offset, length in ranges]

    async def read_many(
        self, requests: Sequence[tuple[File, Sequence[tuple[int, int]]]]
    ) -> list[list[bytes]]:
        return [await self.read(file, ranges) for file, ranges in requests]

    def read_now(self, file: File, offset: int, length: int) -> bytes:
        assert isinstance(file, MemoryFile)
        return bytes(file.content[offset : offset + length])

    async def size(self, file: File) -> int:
        assert isinstance(file, MemoryFile)
        await trio.lowlevel.checkpoint()
        return len(file.content)

    def close(self, file: File) -> None:
        pass

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
