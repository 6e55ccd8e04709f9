"""The file ``gone`` in a bookie's directory. It names the deleted ledgers that left no other trace.

The value is ``bookie.core.gone_ledgers.GoneLedgers``. This module reads, replaces and keeps it. It replaces
the file in the same way as ``loss_marks``: after a crash the file holds the old value or the new one. The
rows of deleted ledgers leave the index only after the value that names these ledgers is durable.

A directory without deletions, or of version 0.1, has no such file. If the directory must have the file, the
loss marks say so (``LossMarks.has_gone_file``). If the file is then missing or damaged, the bookie no longer
knows which ledgers it must refuse. That is a loss like any other (``bookie.server.phase_one``). The file does
not depend on the journal or the index, so a rebuild of the index forgets no gone ledger.
"""

from __future__ import annotations

import attrs

from bookie.core.gone_ledgers import GoneLedgers
from bookie.core.loss_marks import LossMarks
from bookie.storage.disk.disk import Disk, FileMissing
from bookie.storage.disk.loss_marks import LossMarkStore
from ledgerlog.errors import StorageCorrupt
from ledgerlog.limits import MIB

_BYTES_MAX = 256 * MIB
"""Room for sixteen million ranges. There are no more ranges than ledgers in the cluster, plus one."""


def gone_path(directory: str) -> str:
    return f"{directory}/gone"


async def read_gone(disk: Disk, directory: str, instance: str, marks: LossMarks) -> GoneLedgers:
    """Read the gone ledgers of a directory.

    Raises:
        IncompatibleVersion: A newer version wrote the file.
        StorageCorrupt: The file is damaged, or belongs to another bookie, or is missing although the marks
            say that there is one.
    """
    path = gone_path(directory)
    try:
        data = await disk.read_file(path, _BYTES_MAX)
    except FileMissing as missing:
        if marks.has_gone_file:
            raise StorageCorrupt(
                path, None, f"the file of the gone ledgers is missing: {missing}"
            ) from missing
        return GoneLedgers()
    return GoneLedgers.decode_untrusted(data, path=path, instance=instance)


async def write_gone(disk: Disk, directory: str, instance: str, gone: GoneLedgers) -> None:
    """Replace the gone ledgers of a directory durably. After a crash the file has the old value or the new
    one."""
    path = gone_path(directory)
    await disk.write_file(f"{path}.new", gone.encode(instance))
    await disk.rename(f"{path}.new", path)
    await disk.sync_directory(directory)


class GoneLedgerStore:
    """The gone ledgers of a directory that this process owns. ``now`` is the value in force; it is durable.

    One task at a time may call ``replace``.
    """

    def __init__(
        self, disk: Disk, directory: str, instance: str, now: GoneLedgers, marks: LossMarkStore
    ) -> None:
        self.now = now
        self._disk = disk
        self._directory = directory
        self._instance = instance
        self._marks = marks

    async def replace(self, gone: GoneLedgers) -> None:
        """Make ``gone`` durable, then put it in force.

        Raises:
            StorageError: The old value stays in force. After a restart, the old or the new value is in force,
                so the caller must not let an id become known that only the new value names.

        Cancelling: as for StorageError.
        """
        await write_gone(self._disk, self._directory, self._instance, gone)
        await self._marks.change(lambda marks: attrs.evolve(marks, has_gone_file=True))
        self.now = gone
