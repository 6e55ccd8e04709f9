"""The file ``marks`` in a bookie's directory: the one place where a possible loss is remembered.

The value is ``bookie.core.loss_marks.Marks``; here it is read, replaced and kept. A replacement is written
under another name, synced, renamed, and the directory synced, so after a crash the file holds the old value
or the new one. What is in force in memory changes when the new value is durable, never before: an answer that
follows from it can then not be taken back by a crash.

Formatting writes the file before the cookie gets its name, so every directory with a cookie has one. A
directory whose file is gone can no longer say whether data was lost, so it is taken for one that lost some
(``None``). It depends on neither journal nor index: making the index anew forgets no mark.
"""

from __future__ import annotations

import trio

from bookie.core.loss_marks import Marks
from bookie.storage.disk.disk import Disk, FileMissing
from ledgerlog.limits import MIB

_BYTES_MAX = 64 * MIB
"""Four million ranges: each costs a ledger that stays in limbo between others that do not."""


def marks_path(directory: str) -> str:
    return f"{directory}/marks"


async def read_marks(disk: Disk, directory: str) -> Marks | None:
    """The marks in a directory, None where there is no such file. StorageCorrupt if it is damaged."""
    path = marks_path(directory)
    try:
        data = await disk.read_file(path, _BYTES_MAX)
    except FileMissing:
        return None
    return Marks.decode_untrusted(data, path)


async def write_marks(disk: Disk, directory: str, marks: Marks) -> None:
    """Replace the marks in a directory, durably. After a crash there are the old ones or the new ones."""
    path = marks_path(directory)
    await disk.write_file(f"{path}.new", marks.encode())
    await disk.rename(f"{path}.new", path)
    await disk.sync_directory(directory)


class KeptMarks:
    """The marks of a directory while this process has it: ``now`` is in force, and durable."""

    def __init__(self, disk: Disk, directory: str, now: Marks) -> None:
        self.now = now
        self._disk = disk
        self._directory = directory
        self._lock = trio.Lock()

    async def replace(self, marks: Marks) -> None:
        """Put ``marks`` in force once they are durable. StorageError: the old ones are in force, and after a
        crash either may be. Cancelled, either may be as well."""
        async with self._lock:
            if marks != self.now:
                await write_marks(self._disk, self._directory, marks)
                self.now = marks
            else:
                await trio.lowlevel.checkpoint()
