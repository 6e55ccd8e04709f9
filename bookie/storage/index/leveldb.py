"""LevelDB as the store of an index, through plyvel. plyvel releases the interpreter's lock inside LevelDB.

**Damage.** Reads verify the checksums of blocks (``verify_checksums``). ``paranoid_checks`` makes opening
fail if the log or the manifest is damaged.

If an iterator meets a damaged block, LevelDB continues after the block and remembers the error, and plyvel
raises the error at the next row. If no row follows, plyvel ends the iteration as if the range were sound. So
every iteration here must end at a row. Therefore the row with the key ``_END_KEY`` comes after all other
rows, and the rows of the tally come before all others. An index of version 0.1 has no row at the end; the
first batch adds that row.

**A full disk.** If a batch found no room, a part of that batch may be in the log. LevelDB would write the
next batch after that part, and no later opening could read the next batch. So ``StoredIndex`` opens the
database again before the next batch.

Only this module translates plyvel's exceptions.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TypeVar

import plyvel

from bookie.core.rows import Change, Row
from bookie.storage.disk.descriptors import WORDS as NO_DESCRIPTOR
from bookie.storage.disk.descriptors import OutOfDescriptors
from bookie.storage.disk.real import raise_ours
from bookie.storage.index.index import remedy
from bookie.storage.index.stored import NO_ROOM
from bookie.storage.index.tally import Tally, tally_key
from ledgerlog.errors import DiskFull, StorageCorrupt, StorageError, StorageLocked
from ledgerlog.limits import INDEX_CACHE_BYTES, INDEX_WRITE_BUFFER_BYTES

T = TypeVar("T")

_END_KEY = b"\xff" * 32
"""The key of the last row."""
_BLOOM_BITS = 10
_DAMAGED = (os.strerror(errno.EINVAL), os.strerror(errno.ENOENT))
"""LevelDB's words for a table that is empty (LevelDB cannot map an empty table into memory) or missing."""
_LOCKED = os.strerror(errno.EAGAIN)
_OF_THE_MANIFEST = "descriptor"
"""LevelDB's name for its manifest in messages that do not name the file."""


class LevelDb:
    """``Store``: LevelDB."""

    def open(self, path: str, *, is_new: bool) -> LevelDbDatabase:
        def open_it() -> LevelDbDatabase:
            database = plyvel.DB(
                path,
                create_if_missing=is_new,
                error_if_exists=is_new,
                paranoid_checks=True,
                bloom_filter_bits=_BLOOM_BITS,
                lru_cache_size=INDEX_CACHE_BYTES,
                write_buffer_size=INDEX_WRITE_BUFFER_BYTES,
            )
            try:
                return LevelDbDatabase(path, database)
            except BaseException:
                database.close()
                raise

        return _translated(path, open_it)


class LevelDbDatabase:
    """``Database``: an open LevelDB directory."""

    def __init__(self, path: str, database: plyvel.DB) -> None:
        self._path = path
        self._database = database
        self._tally = Tally()
        self._has_end = database.get(_END_KEY, verify_checksums=True) is not None
        """Whether the row at the end is there."""

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = _translated(self._path, lambda: self._database.get(key, verify_checksums=True))
        return value

    def scan(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        return _translated(self._path, lambda: self._scan(start, stop, floor, limit))

    def _scan(self, start: bytes, stop: bytes, floor: bytes, limit: int) -> list[Row]:
        rows: list[Row] = []
        tally, has_end = self._tally.newest, self._has_end  # Read these before the snapshot is taken.
        # Both iterators must see the same rows. A batch between them could remove the row of the first
        # iterator and put another row below the beginning of the second iterator.
        with self._database.snapshot() as snapshot:
            # Set no lower end: plyvel 1.5.1 misses rows if a reverse iterator has both ends.
            with snapshot.iterator(stop=start, reverse=True, verify_checksums=True) as below:
                row = next(below, None)
                if row is None and tally and start > tally_key(tally):
                    raise _rows_missing(self._path)
                if row is not None and row[0] >= floor:
                    rows.append(row)
            with closing(_rows_from(snapshot, self._path, start, has_end=has_end)) as rest:
                for row in rest:
                    if not limit or row[0] >= stop:
                        break
                    limit -= 1
                    rows.append(row)
        return rows

    def rows_from(self, start: bytes) -> Generator[Row, None, None]:
        rows = _rows_from(self._database, self._path, start, has_end=self._has_end, fill_cache=False)
        with closing(rows):
            while (row := _translated(self._path, lambda: next(rows, None))) is not None:
                yield row

    def write(self, changes: Sequence[Change], tally: Tally) -> None:
        def put() -> None:
            # Without ``transaction``, plyvel writes a part of the batch if building it raises.
            with self._database.write_batch(transaction=True, sync=True) as batch:
                for key, value in changes:
                    if value is None:
                        batch.delete(key)
                    else:
                        batch.put(key, value)
                if not self._has_end:
                    batch.put(_END_KEY, b"")

        _translated(self._path, put)
        self._tally, self._has_end = tally, True

    def knows(self, tally: Tally) -> None:
        self._tally = tally

    def close(self) -> None:
        self._database.close()


def _rows_from(
    source: plyvel.DB, path: str, start: bytes, *, has_end: bool, fill_cache: bool = True
) -> Generator[Row, None, None]:
    """Yield the rows of a database or of a snapshot from ``start`` to the end. Raises StorageCorrupt if the
    iteration does not reach the row at the end."""
    with source.iterator(start=start, verify_checksums=True, fill_cache=fill_cache) as rows:
        for row in rows:
            if row[0] == _END_KEY:
                return
            yield row
    if has_end:
        raise _rows_missing(path)


def _rows_missing(path: str) -> StorageCorrupt:
    return StorageCorrupt(path, None, f"the index is damaged (a block of rows is missing); {remedy(path)}")


def _said(path: str, cause: plyvel.Error) -> str:
    """Return LevelDB's message. If it is about the manifest and does not name the file, add the path."""
    said = cause.args[0] if cause.args else ""
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    if _OF_THE_MANIFEST in text:
        with contextlib.suppress(OSError), open(os.path.join(path, "CURRENT"), encoding="utf-8") as current:
            return f"{path}/{current.read(100).strip()}: {text}"
    return text


def _translated(path: str, function: Callable[[], T]) -> T:
    try:
        return function()
    except plyvel.CorruptionError as cause:
        raise StorageCorrupt(
            path, None, f"the index is damaged ({_said(path, cause)}); {remedy(path)}"
        ) from cause
    except plyvel.Error as cause:
        if any(word in str(cause) for word in NO_DESCRIPTOR):
            raise OutOfDescriptors(f"{path}: there is no descriptor for the index: {cause}") from cause
        if any(word in str(cause) for word in NO_ROOM):
            raise DiskFull(f"{path}: there is no room for the index: {cause}") from cause
        if any(word in str(cause) for word in _DAMAGED):
            raise StorageCorrupt(
                path, None, f"the index is damaged ({_said(path, cause)}); {remedy(path)}"
            ) from cause
        if _LOCKED in str(cause) or "already held" in str(cause):
            raise StorageLocked(path, None) from cause
        raise StorageError(f"{path}: the index failed: {cause}") from cause
    except OSError as cause:
        raise_ours("use", path, cause)
