"""The index capability: sorted rows, read by key or by range, written in atomic batches.

``StoredIndex`` (``bookie.storage.index.stored``) keeps the rows in a directory, with LevelDB or RocksDB.
``MemoryIndex`` keeps them in memory, for bookies without files and for simulation. ``bookie.core.rows``
defines what the rows mean. ``Catalogue`` reads and writes the rows as runs, ledgers and segments.

All implementations keep this contract:

* A batch is written whole or not at all. It is durable when ``write`` returns. Batches become durable in the
  order in which they were written.
* A failed operation raises StorageError, or StorageCorrupt if the rows are damaged. A damaged row is never
  skipped: if a range cannot be read in full, the result is an error, not a shorter range.
* The ``_now`` forms do not let other tasks run. A lookup takes a few microseconds if the key is in the
  store's cache, or if the store's filter shows that the key is missing. Any other lookup reads from the disk.
  Use the ``_now`` forms if no other task may run between two of your steps.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

import trio

from bookie.core.rows import Change, Row
from bookie.storage.disk.descriptors import OutOfDescriptors
from bookie.storage.disk.disk import FileMissing
from ledgerlog.errors import DiskFull, StorageError

NOT_NOW = (DiskFull, OutOfDescriptors)
"""The errors that an index raises if the machine has no room or no descriptor for now. Nothing is damaged and
nothing was done: try again later. Reads raise these errors too, while the index cannot be opened again."""


def remedy(path: str) -> str:
    """Return the advice for a damaged index, for messages."""
    return (
        f"`bookie rebuild-index {os.path.dirname(path) or '.'}` rebuilds the index from the journal and the "
        f"entry logs"
    )


class Index(Protocol):
    @property
    def path(self) -> str:
        """The path of the index, for messages."""
        ...

    @property
    def if_behind(self) -> str:
        """Text for the message that the last batches are missing: where to look, and the remedy."""
        ...

    def get_now(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none."""
        ...

    def scan_now(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        """Read rows in order, as they were at one moment: all rows of a batch or none.

        Args:
            start: The smallest key.
            stop: The first key after the range.
            floor: If the last row below ``start`` has a key of at least ``floor``, return this row too, as
                the first.
            limit: Read at most this many rows with ``start <= key < stop``.
        """
        ...

    async def scan(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        """Like ``scan_now``, but other tasks run in the meantime."""
        ...

    async def write(self, rows: Sequence[Change]) -> None:
        """Put all rows atomically and durably, and remove the rows with the value None. If a key changes
        twice, the last change counts."""
        ...

    async def refresh(self) -> None:
        """Forget the rows that are kept in memory, so that the next reads come from the disk. This finds the
        damage that a start would find. No other task runs meanwhile, because no read may come before the
        tally is checked (``bookie.storage.index.tally``). Usually this takes some milliseconds. If the tally
        is at its longest, it takes about half a second.

        Raises:
            StorageCorrupt: The index is damaged, and nothing can be read from it.
            StorageError: The index could not be opened again. Reads raise this too, until a batch is
                written.
        """
        ...

    async def aclose(self) -> None:
        """Close the index. No call may follow."""
        ...


class MemoryIndex:
    """An ``Index`` in memory. Its rows survive when a bookie closes it, like files."""

    def __init__(self, path: str = "the index in memory") -> None:
        self.path = path
        self.if_behind = f"{path} has lost its last batches: {remedy(path)}"
        self._keys: list[bytes] = []
        self._values: dict[bytes, bytes] = {}

    def get_now(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def scan_now(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        keys = self._keys
        low = bisect_left(keys, start)
        found = keys[low : min(bisect_left(keys, stop), low + limit)]
        if low and keys[low - 1] >= floor:
            found.insert(0, keys[low - 1])
        return [(key, self._values[key]) for key in found]

    async def scan(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        await trio.lowlevel.checkpoint()
        return self.scan_now(start, stop, floor=floor, limit=limit)

    async def write(self, rows: Sequence[Change]) -> None:
        await trio.lowlevel.checkpoint()
        self.apply(rows)

    def apply(self, rows: Sequence[Change]) -> None:
        """Write rows without waiting."""
        final = dict(rows)
        for key in [key for key, value in final.items() if value is None]:
            del final[key]
            if self._values.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
        self._put({key: value for key, value in final.items() if value is not None})

    async def refresh(self) -> None:
        await trio.lowlevel.checkpoint()

    def _put(self, rows: dict[bytes, bytes]) -> None:
        fresh = sorted(key for key in rows if key not in self._values)
        self._values.update(rows)
        if fresh and (not self._keys or fresh[0] > self._keys[-1]):
            self._keys.extend(fresh)
        elif fresh:
            at = bisect_right(self._keys, fresh[0])
            self._keys[at:] = sorted(self._keys[at:] + fresh)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Indexes(Protocol):
    """Creates and opens indexes, by path."""

    async def create(self, path: str) -> Index:
        """Create an empty index. Raises StorageError if there is one already."""
        ...

    async def open(self, path: str) -> Index:
        """Open an index. Raises FileMissing if there is none, and StorageCorrupt if opening shows damage."""
        ...

    async def remove(self, path: str) -> None:
        """Remove an index that is not open. Do nothing if there is none."""
        ...

    async def replace(self, source: str, target: str) -> None:
        """Replace the index at ``target`` durably by the one at ``source``. Both must be closed. ``target``
        may be missing."""
        ...


class MemoryIndexes:
    """``Indexes`` in memory. They exist as long as this object."""

    def __init__(self) -> None:
        self.indexes: dict[str, MemoryIndex] = {}

    async def create(self, path: str) -> MemoryIndex:
        await trio.lowlevel.checkpoint()
        if path in self.indexes:
            raise StorageError(f"there is an index at {path} already")
        self.indexes[path] = MemoryIndex(path)
        return self.indexes[path]

    async def open(self, path: str) -> MemoryIndex:
        await trio.lowlevel.checkpoint()
        if path not in self.indexes:
            raise FileMissing(f"there is no index at {path}; {remedy(path)}")
        return self.indexes[path]

    async def remove(self, path: str) -> None:
        await trio.lowlevel.checkpoint()
        self.indexes.pop(path, None)

    async def replace(self, source: str, target: str) -> None:
        await trio.lowlevel.checkpoint()
        self.indexes[target] = self.indexes.pop(source)
