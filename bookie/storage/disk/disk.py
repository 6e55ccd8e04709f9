"""The disk capability: every effect that a bookie has on its files goes through it.

``RealDisk`` (``bookie.storage.disk.real``) does it for real, ``MemoryDisk`` (``bookie.storage.disk.memory``)
in memory; a recording one enumerates the states that a crash can leave behind. What the code above may rely
on, and no more, is written here, and holds for all of them:

* what ``write_sync`` wrote is durable when it returns; until then any part of it, in sectors of 512 bytes,
  may or may not be found after a crash, and what was not written reads as before;
* a file that ``create`` made reads as zeros in its full size;
* names (``create``, ``rename``, ``unlink``, ``make_directory``) are durable after ``sync_directory`` of the
  directory that holds them, and any first few of them may be found after a crash before that;
* an operation that raises may or may not have happened. A failed ``write_sync`` must not be retried: the
  kernel may have dropped the data and call the next one a success.

Offsets are explicit, there is no append. Calls are few: one for each group commit, each batch of reads,
each file. Paths are made of fixed names and integers only, below the directory that the operator named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookie.core.fullness import DiskSpace
from ledgerlog.errors import StorageError


class FileMissing(StorageError):
    """There is no file of that name."""


class File(Protocol):
    """An open file. Several tasks may use it at once; only one writes."""

    @property
    def path(self) -> str: ...


class Lock(Protocol):
    def release(self) -> None:
        """Give the lock up. Idempotent."""
        ...


class Disk(Protocol):
    """All methods raise StorageError (DiskFull where there is no room, FileMissing where there is no such
    file). Cancelling one does not interrupt what it began: the call ends first."""

    # --- directories and names --------------------------------------------------------------------

    async def make_directory(self, path: str) -> None:
        """Make a directory that only its owner may enter, unless it exists already."""
        ...

    async def lock_directory(self, path: str) -> Lock:
        """Become the only process that uses the directory. StorageLocked, naming the holder, if another does.
        The lock ends with the process at the latest."""
        ...

    async def list_directory(self, path: str) -> list[str]:
        """The names in a directory, sorted. FileMissing if there is no such directory."""
        ...

    async def sync_directory(self, path: str) -> None:
        """Make all changes of names in the directory durable."""
        ...

    async def rename(self, source: str, target: str) -> None:
        """Give a file or directory another name in the same directory, replacing a file of that name."""
        ...

    async def unlink(self, path: str) -> None:
        """Remove a file. FileMissing if there is none."""
        ...

    async def remove_directory(self, path: str) -> None:
        """Remove a directory with the files in it; nothing if there is none."""
        ...

    async def truncate(self, path: str, size: int) -> None:
        """Cut the end of a file off. After a crash it may not have happened."""
        ...

    async def space(self, path: str) -> DiskSpace | None:
        """What the file system of a directory has; None where nothing bounds it."""
        ...

    # --- small files ------------------------------------------------------------------------------

    async def write_file(self, path: str, data: bytes) -> None:
        """Make a file with this content, replacing one of that name. Content is durable, the name is not."""
        ...

    async def read_file(self, path: str, bytes_max: int) -> bytes:
        """The whole content of a file, cut after ``bytes_max`` bytes. FileMissing if there is none."""
        ...

    # --- segments ---------------------------------------------------------------------------------

    async def create(self, path: str, size: int) -> File:
        """Make a file of ``size`` zero bytes, all of them allocated, for ``write_sync``. Its size is durable,
        its name is not. DiskFull leaves no file behind. The file must not exist."""
        ...

    async def open(self, path: str, *, for_writing: bool = False) -> File:
        """Open an existing file for reading, and for ``write_sync`` where that is asked for."""
        ...

    async def make_buffer(self, size: int) -> memoryview:
        """Memory that ``write_sync`` may write from, aligned as it wants it and really there. ``size`` is a
        multiple of 4096."""
        ...

    async def write_sync(self, file: File, offset: int, view: memoryview) -> None:
        """Write, durably. ``view`` is a part of a ``make_buffer``; its place there, its length and ``offset``
        are multiples of 4096, and its bytes do not change until this returns. Writes of a disk happen one
        after the other, in the order of the calls."""
        ...

    async def write_behind(self, file: File, offset: int, view: memoryview) -> None:
        """As ``write_sync``, for what nobody waits for: it stands in no other write's way, may come to its
        end before or after others, and only one of it is under way for a file."""
        ...

    def may_write_now(self, size: int) -> bool:
        """Whether a ``write_sync`` of so many bytes may be made without letting other tasks run, which is for
        disks that answer at once."""
        ...

    def write_now(self, file: File, offset: int, view: memoryview) -> None:
        """As ``write_sync``, without letting other tasks run. Only where ``may_write_now`` has just said so,
        and never while a ``write_sync`` is under way."""
        ...

    async def read(self, file: File, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes at (offset, length) for each of ``ranges``, in one go; fewer where the file ends
        before."""
        ...

    async def read_many(
        self, requests: Sequence[tuple[File, Sequence[tuple[int, int]]]]
    ) -> list[list[bytes]]:
        """As ``read`` for each of several files, in one go."""
        ...

    def read_now(self, file: File, offset: int, length: int) -> bytes:
        """As ``read``, of one range, without letting other tasks run. For rare and small things only."""
        ...

    def open_now(self, path: str) -> File:
        """As ``open`` for reading, without letting other tasks run."""
        ...

    async def size(self, file: File) -> int:
        """The file's size in bytes."""
        ...

    def close(self, file: File) -> None:
        """Give the file up. Idempotent. Nothing that was not durable becomes durable."""
        ...

    async def aclose(self) -> None:
        """Give up what the disk itself holds, such as threads. No call may follow."""
        ...
