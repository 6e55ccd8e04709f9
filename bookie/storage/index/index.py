"""The index capability: sorted rows, read by key or by range, written in atomic batches.

``LevelDbIndex`` (``bookie.storage.index.leveldb``) keeps them in a directory; ``MemoryIndex`` in memory, for
bookies without files and for simulation. What rows mean is ``bookie.core.rows``; ``Catalogue`` on top of this
module reads and writes them as runs, ledgers and segments.

The contract, for all of them:

* a batch is written whole or not at all, and is durable when ``write`` returns; batches become durable in
  the order in which they were written;
* an operation that fails raises StorageError, StorageCorrupt where the rows are damaged. A damaged row is
  never skipped: a range that cannot be read in full is an error, not a shorter range;
* the ``_now`` forms do not let other tasks run. A key that is in LevelDB's cache, or is ruled out by its
  filter, costs a few microseconds, another a read from the disk: they are for what must not be torn
  apart by a wait.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

import trio

from bookie.core.rows import Change, Row
from bookie.storage.disk.disk import FileMissing
from ledgerlog.errors import StorageError


def remedy(path: str) -> str:
    """What to do about an index that is damaged, for messages."""
    return (
        f"`bookie rebuild-index {os.path.dirname(path) or '.'}` makes the index again from the journal and "
        "the entry logs"
    )


class Index(Protocol):
    @property
    def path(self) -> str:
        """For messages."""
        ...

    @property
    def if_behind(self) -> str:
        """For messages: what to look at and what to do if the last batches are missing."""
        ...

    def get_now(self, key: bytes) -> bytes | None:
        """The value of a key, None where there is none."""
        ...

    def scan_now(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        """Up to ``limit`` rows with ``start <= key < stop``, in order, and in front of them the row with the
        greatest key below ``start``, where there is one that is not below ``floor``. They are as they were
        at one moment: of a batch that is being written, all rows or none."""
        ...

    async def scan(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        """As ``scan_now``, while other tasks run."""
        ...

    async def write(self, rows: Sequence[Change]) -> None:
        """Put all rows, and remove those whose value is None, atomically and durably. Of two changes of one
        key the last counts."""
        ...

    async def aclose(self) -> None:
        """Give the index up; no call may follow."""
        ...


class MemoryIndex:
    """``Index`` in memory. It outlives the bookie that closes it, as files do."""

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
    """Where indexes live, by path."""

    async def create(self, path: str) -> Index:
        """A new, empty index. StorageError if there is one already."""
        ...

    async def open(self, path: str) -> Index:
        """The index that is there. FileMissing if there is none; StorageCorrupt if it is damaged as far as
        that shows on opening."""
        ...

    async def remove(self, path: str) -> None:
        """Remove an index that is not open; nothing if there is none."""
        ...

    async def replace(self, source: str, target: str) -> None:
        """Let the index at ``source`` take the place of the one at ``target``, durably. Both are closed;
        there may be none at ``target``."""
        ...


class MemoryIndexes:
    """``Indexes`` in memory, for as long as the object lives."""

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
