"""The file ``marks`` in a bookie's directory. Only this file says that data may have been lost.

The value is ``bookie.core.loss_marks.LossMarks``. This module reads, replaces and keeps it. To replace the
file, it writes the new value under another name, syncs and renames that file, and syncs the directory. So
after a crash the file holds the old value or the new one. The value in memory changes only after the new
value is durable. So if an answer of the bookie depended on some marks, the bookie still has these marks after
a crash.

Formatting writes this file before it gives the cookie its name, so every directory with a cookie has marks.
If the file is gone, it is unknown whether data was lost, so the bookie assumes a loss (``read_marks`` returns
None). The file does not depend on the journal or the index, so a rebuild of the index forgets no mark.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from bookie.core.loss_marks import LossMarks
from bookie.storage.disk.disk import Disk, FileMissing
from ledgerlog.limits import MIB

_BYTES_MAX = 64 * MIB
"""Room for four million ranges. Each range needs a ledger in limbo between ledgers that are not in limbo."""


def marks_path(directory: str) -> str:
    return f"{directory}/marks"


async def read_marks(disk: Disk, directory: str) -> LossMarks | None:
    """Read the marks of a directory. Return None if the file is missing. Raises StorageCorrupt if it is
    damaged."""
    path = marks_path(directory)
    try:
        data = await disk.read_file(path, _BYTES_MAX)
    except FileMissing:
        return None
    return LossMarks.decode_untrusted(data, path)


async def write_marks(disk: Disk, directory: str, marks: LossMarks) -> None:
    """Replace the marks of a directory durably. After a crash the file has the old marks or the new ones."""
    path = marks_path(directory)
    await disk.write_file(f"{path}.new", marks.encode())
    await disk.rename(f"{path}.new", path)
    await disk.sync_directory(directory)


class LossMarkStore:
    """The marks of a directory that this process owns. ``now`` has the marks in force; they are durable."""

    def __init__(self, disk: Disk, directory: str, now: LossMarks) -> None:
        self.now = now
        self._disk = disk
        self._directory = directory
        self._lock = trio.Lock()

    async def change(self, change: Callable[[LossMarks], LossMarks]) -> None:
        """Make changed marks durable, then put them in force. Calls run one after the other, and each call
        starts from the marks of the call before.

        Raises:
            StorageError: The old marks stay in force. After a restart the old or the new marks may be in
                force.

        Cancelling: as for StorageError.
        """
        async with self._lock:
            marks = change(self.now)
            if marks != self.now:
                await write_marks(self._disk, self._directory, marks)
                self.now = marks
            else:
                await trio.lowlevel.checkpoint()
