"""The index capability on a key-value store in a directory: LevelDB or RocksDB.

``StoredIndex`` does everything that does not depend on the store: threads, the tally of batches, and opening
the store again. A ``Store`` opens a ``Database``, whose calls are synchronous. The modules ``leveldb`` and
``rocksdb`` each have a ``Store`` and a ``Database``. Only these modules know their library and translate its
exceptions.

Every call that may touch the disk runs in a thread. A batch needs one hop to a thread. Every batch is synced
before ``write`` returns. If several batches were unsynced, at best only the first few of them would survive a
power cut. If the store changed its log file in between, even that is not certain.

**Damage.** Reads verify the checksums of blocks, and opening fails if the log or the manifest is damaged.
``bookie.storage.index.tally`` detects the damage that a store mistakes for the normal end of a file.

**A full disk.** If a batch found no room, a part of that batch may be in the store's log. So before the next
batch, the database is opened again: the store moves the complete batches of the log into a table and begins
another log. If there is no room for the table either, nothing can be read. ``bookie.storage.disk.ballast``
keeps room free to prevent this.

**No descriptor left.** A store opens tables and logs when it needs them. If a read finds no descriptor, it is
tried once more with a descriptor that is kept for such reads. If a batch finds no descriptor, it is not
written. If the store's own compaction found none, no later batch is written either until the database is
opened again. So a missing descriptor is handled like a full disk.

The messages of errors name the remedy, because the index can always be rebuilt from the journal.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Protocol, TypeVar

import attrs
import trio

from bookie.core.rows import Change, Row
from bookie.storage.disk.descriptors import SpareDescriptor
from bookie.storage.index import tally as tallies
from bookie.storage.index.index import NOT_NOW, remedy
from bookie.storage.index.tally import Tally, read_tally
from ledgerlog.concurrency.watermark import fresh
from ledgerlog.errors import StorageCorrupt, StorageError

T = TypeVar("T")

NO_ROOM = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
"""The operating system's texts for a full disk, which a store includes in its messages."""
_READERS = 4


class Database(Protocol):
    """An open store. Several threads may read at a time, while one writes.

    All calls raise StorageCorrupt if the store is damaged, DiskFull if it found no room, OutOfDescriptors if
    it found no descriptor, and otherwise StorageError.
    """

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none."""
        ...

    def scan(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        """Do ``Index.scan_now``."""
        ...

    def rows_from(self, start: bytes) -> Generator[Row, None, None]:
        """Yield all rows from ``start`` on, in order. Close the generator before you close the database."""
        ...

    def write(self, changes: Sequence[Change], tally: Tally) -> None:
        """Write a batch atomically and durably. ``tally`` is the tally after this batch."""
        ...

    def knows(self, tally: Tally) -> None:
        """Take the tally that was found when the database was opened."""
        ...

    def close(self) -> None:
        """Close the store's files. No call may follow, except this one, which then does nothing."""
        ...


class Store(Protocol):
    """A key-value store."""

    def open(self, path: str, *, is_new: bool) -> Database:
        """Open a database.

        Args:
            path: The directory of the database.
            is_new: Whether to make the database. If not, it must exist.

        Raises:
            StorageCorrupt: The database is damaged.
            StorageError: There is one already (``is_new``), or it could not be opened.
        """
        ...


@attrs.define
class _Opened:
    """An open database, and the tally of its batches."""

    database: Database
    tally: Tally


class StoredIndex:
    """An ``Index`` in a directory. ``create`` and ``open_stored`` make it."""

    def __init__(self, path: str, store: Store, opened: _Opened, log: str = "its log") -> None:
        self.path = path
        self.if_behind = f"the index has lost its last batches ({log} was cut): {remedy(path)}"
        self._store = store
        self._opened = opened
        self._is_torn = False
        """Whether a batch failed because no room or no descriptor was left. The log may end in the middle of
        that batch."""
        self._failure: StorageError | None = None
        """The error if the database could not be opened again; None otherwise."""
        self._limiter = trio.CapacityLimiter(_READERS)
        self._writer = trio.CapacityLimiter(1)
        self._writing = trio.Lock()
        """Held while a batch is written, and while the database is opened again."""
        self._spare = SpareDescriptor()

    @property
    def _database(self) -> Database:
        if self._failure is not None:
            raise fresh(self._failure)  # Keep its type: a caller that waits for room waits for this, too.
        return self._opened.database

    def get_now(self, key: bytes) -> bytes | None:
        return self._reading(lambda: self._database.get(key))

    def _reading(self, read: Callable[[], T]) -> T:
        """Call ``read``, and lend it the spare descriptor if no other is free. The store does not keep that
        descriptor: it closes each file that it opened for the read, or maps the file into memory."""
        try:
            return self._spare.lend(read)
        finally:
            self._spare.keep()

    def scan_now(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        return self._reading(lambda: self._database.scan(start, stop, floor=floor, limit=limit))

    async def scan(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        return await trio.to_thread.run_sync(
            lambda: self.scan_now(start, stop, floor=floor, limit=limit), limiter=self._limiter
        )

    async def write(self, rows: Sequence[Change]) -> None:
        def put() -> None:
            tally, changes = self._opened.tally.next_batch(len(rows))
            self._database.write([*rows, *changes], tally)
            self._opened.tally = tally

        async with self._writing:
            if self._is_torn or self._failure is not None:
                with trio.CancelScope(shield=True):
                    await self._open_again()
            try:
                await trio.to_thread.run_sync(put, limiter=self._writer)
            except NOT_NOW:
                self._is_torn = True
                raise

    async def refresh(self) -> None:
        async with self._writing:
            with trio.CancelScope(shield=True):
                await self._open_again()

    async def _open_again(self) -> None:
        """Open the database again, which begins another log. First wait until no thread reads. Then block the
        event loop, so that no other task reads in the meantime. If this fails, it raises StorageError. Later
        reads raise the same error, and the next batch tries to open the database again."""
        readers = [object() for _ in range(_READERS)]
        for reader in readers:
            await self._limiter.acquire_on_behalf_of(reader)
        try:
            self._opened.database.close()
            self._opened = _reopened(self._store, self.path)
        except StorageError as failure:
            self._failure = failure
            raise
        else:
            self._failure, self._is_torn = None, False
        finally:
            for reader in readers:
                self._limiter.release_on_behalf_of(reader)

    async def aclose(self) -> None:
        try:
            await trio.to_thread.run_sync(self._opened.database.close, limiter=self._writer)
        finally:
            self._spare.close()


def create(store: Store, path: str) -> StoredIndex:
    """Create an empty index. StorageError if there is one already."""
    database = store.open(path, is_new=True)
    os.chmod(path, 0o700)
    return StoredIndex(path, store, _Opened(database, Tally()))


def open_stored(store: Store, path: str) -> StoredIndex:
    """Open an index. Raises StorageCorrupt if opening shows that the index is damaged."""
    log = _newest_log(path)  # Look first, because opening begins another log and removes this one.
    return StoredIndex(path, store, _reopened(store, path), log)


def _reopened(store: Store, path: str) -> _Opened:
    """Open an existing database, and check its tally."""
    database = store.open(path, is_new=False)
    try:
        since_value = database.get(tallies.SINCE_KEY)
        with closing(database.rows_from(tallies.PREFIX)) as rows:
            tally = read_tally(path, since_value, rows)
        database.knows(tally)
    except BaseException:
        database.close()
        raise
    return _Opened(database, tally)


def _newest_log(path: str) -> str:
    """Return the log that holds the newest batches. Raises StorageCorrupt if there is none, because the store
    would mistake a missing log for an empty one. A store always begins a log before its manifest names that
    log, so a sound index has a log."""
    names = [name for name in os.listdir(path) if name.endswith(".log")]
    if not names:
        raise StorageCorrupt(path, None, f"the index's log, {path}/*.log, is missing; {remedy(path)}")
    return os.path.join(path, max(names, key=lambda name: (len(name), name)))
