"""The disk capability: a bookie uses its files only through a ``Disk``.

``RealDisk`` (``bookie.storage.disk.real``) uses the file system, ``MemoryDisk``
(``bookie.storage.disk.memory``) uses memory. A recording disk in the tests enumerates the states that a crash
can leave behind. Code that uses a disk may rely only on these promises, which hold for all of these disks:

* Data is durable when its ``write_sync`` returns. If a crash comes earlier, each sector (512 bytes) of the
  data may or may not be written. A sector that was not written reads as before.
* A file that ``create`` made has its full size and reads as zeros.
* Changes of names (``create``, ``rename``, ``unlink``, ``make_directory``) are durable after
  ``sync_directory`` of the directory that holds them. If a crash comes earlier, any of the changes may have
  happened, in any order: of three renames, for example, only the second.
* An operation that raises may or may not have happened. Do not retry a failed ``write_sync``: the kernel may
  have dropped the data, and may still report success for the second call.

Offsets are explicit; there is no append. Calls are few: one call for each group commit, for each batch of
reads, or for a whole file. Paths consist only of fixed names and integers, below the directory that the
operator named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookie.core.fullness import DiskSpace
from ledgerlog.errors import StorageError


class FileMissing(StorageError):
    """There is no file of that name."""


class File(Protocol):
    """An open file. Several tasks may use it at once, but only one writes."""

    @property
    def path(self) -> str: ...


class Lock(Protocol):
    """The lock of a directory."""

    def release(self) -> None:
        """Release the lock. Idempotent."""
        ...


class Disk(Protocol):
    """Files and directories.

    All methods raise StorageError: DiskFull if there is no room, FileMissing if there is no such file. If a
    call is cancelled, it finishes the operation that it has begun before it returns.
    """

    # --- directories and names --------------------------------------------------------------------

    async def make_directory(self, path: str) -> None:
        """Make a directory that only its owner may enter. Do nothing if it exists."""
        ...

    async def lock_directory(self, path: str) -> Lock:
        """Become the only process that uses the directory. The lock ends with the process at the latest.

        Raises:
            StorageLocked: Another process holds the lock. The error names that process.
        """
        ...

    async def list_directory(self, path: str) -> list[str]:
        """Return the names in a directory, sorted.

        Raises:
            FileMissing: There is no such directory.
        """
        ...

    async def sync_directory(self, path: str) -> None:
        """Make all changes of names in the directory durable."""
        ...

    async def rename(self, source: str, target: str) -> None:
        """Give a file or directory another name in the same directory. Replace a file of that name."""
        ...

    async def unlink(self, path: str) -> None:
        """Remove a file.

        Raises:
            FileMissing: There is no such file.
        """
        ...

    async def remove_directory(self, path: str) -> None:
        """Remove a directory with the files in it. Do nothing if it does not exist."""
        ...

    async def truncate(self, path: str, size: int) -> None:
        """Cut a file to its first ``size`` bytes, durably. If a crash comes earlier, it may have its old
        size."""
        ...

    async def space(self, path: str) -> DiskSpace | None:
        """Return the space of a directory's file system, or None if nothing bounds it."""
        ...

    # --- small files ------------------------------------------------------------------------------

    async def write_file(self, path: str, data: bytes) -> None:
        """Make a file with this content, or replace a file of that name. The content is durable; the name is
        durable only after ``sync_directory``."""
        ...

    async def read_file(self, path: str, bytes_max: int) -> bytes:
        """Return the first ``bytes_max`` bytes of a file, or the whole file if it is shorter.

        Raises:
            FileMissing: There is no such file.
        """
        ...

    # --- segments ---------------------------------------------------------------------------------

    async def create(self, path: str, size: int) -> File:
        """Make a file of ``size`` zero bytes, all of them allocated, for ``write_sync``.

        The file must not exist. Its size is durable; its name is durable only after ``sync_directory``.

        Raises:
            DiskFull: There is no room. No file is left behind.
        """
        ...

    async def open(self, path: str, *, for_writing: bool = False) -> File:
        """Open an existing file for reading, and with ``for_writing`` also for ``write_sync``."""
        ...

    async def make_buffer(self, size: int) -> memoryview:
        """Return memory that ``write_sync`` can write from.

        It is zero. It has the alignment that ``write_sync`` needs, and real pages are assigned already.
        ``size`` is a multiple of 4096.

        Raises:
            StorageError: There is no memory for it.
        """
        ...

    async def write_sync(self, file: File, offset: int, view: memoryview) -> None:
        """Write durably.

        Writes of a disk happen one after the other, in the order of the calls.

        Args:
            file: A file that is open for writing.
            offset: Where to write, a multiple of 4096.
            view: A part of the memory from ``make_buffer``. Its offset in that memory and its length are
                multiples of 4096. Its bytes must not change until this returns.
        """
        ...

    async def write_behind(self, file: File, offset: int, view: memoryview) -> None:
        """Write durably, as ``write_sync`` does. Use it for data that no caller waits for.

        Such a write never delays another write, and may end before or after others. A file may have only one
        such write under way.
        """
        ...

    def may_write_now(self, size: int) -> bool:
        """Whether a ``write_now`` of ``size`` bytes is allowed. Only disks that answer at once allow it."""
        ...

    def write_now(self, file: File, offset: int, view: memoryview) -> float:
        """Write durably, as ``write_sync``, without letting other tasks run. Return how many seconds it took.

        Call it only if ``may_write_now`` has just returned True, and never while a ``write_sync`` is under
        way.
        """
        ...

    async def read(self, file: File, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes at each (offset, length) of ``ranges``, in one go.

        If a range goes past the end of the file, its result ends there.
        """
        ...

    async def read_many(
        self, requests: Sequence[tuple[File, Sequence[tuple[int, int]]]]
    ) -> list[list[bytes]]:
        """Read from several files in one go, from each as ``read`` does."""
        ...

    def read_now(self, file: File, offset: int, length: int) -> bytes:
        """Read one range without letting other tasks run. Use it only for rare and small reads."""
        ...

    def open_now(self, path: str) -> File:
        """Open a file for reading without letting other tasks run."""
        ...

    async def size(self, file: File) -> int:
        """Return the file's size in bytes."""
        ...

    def close(self, file: File) -> None:
        """Close the file. Idempotent. Closing makes nothing durable."""
        ...

    async def aclose(self) -> None:
        """Release the disk's own resources, such as threads. No call may follow."""
        ...
