"""The index capability on LevelDB, through plyvel.

Every call that may touch the disk runs in a thread, one hop for each batch; plyvel releases the interpreter's
lock inside LevelDB. Every batch is written with ``sync``. If several batches were unsynced, only an ordered
prefix of them would survive a power cut. If LevelDB changed its log file in between, not even that is sure.

**Damage.** Reads verify the checksums of blocks (``verify_checksums``). ``paranoid_checks`` makes opening
fail if the log or the manifest is damaged.

If an iterator meets a damaged block, LevelDB goes on after the block and remembers the error, and plyvel
raises the error at the next row. If no row follows, plyvel ends the iteration as if the range were sound. So
every iteration here must end at a row. After all other rows comes the row with the key ``_END_KEY``; before
all other rows come those of the tally. An index of version 0.1 has no row at the end; the first batch adds
it.

LevelDB mistakes one kind of damage for the normal end of a file: a record near the end of its log or manifest
whose *length* is damaged. It looks like a record that was being written when the power went, and LevelDB
silently drops it and everything after it. In the log, this loses the newest batches. That is the same as an
older replay mark: the journal is replayed from there. In the manifest, it can lose a whole table from the
middle of the history.

The *tally* detects this. Batches are numbered, and each contains its own row (0x00, "tally", number). On
opening, the numbers found must have no gap up to the newest. If a table is missing, the tally rows of its
batches are missing too.

Old tally rows are removed, because a start must not read a row for each batch of the bookie's life. A damaged
end of a manifest can hide only the newest table, and a table holds at most _KEPT batches: each batch takes
about ninety bytes, and a table is made from four megabytes. So the tally rows of older batches prove nothing.
The row (0x00, "since") holds the number of the last batch whose tally row is gone. The batch that removes the
tally rows up to this number also writes this row.

**A full disk.** If a batch found no room, a part of it may be in the log. LevelDB would write the next batch
after that part, and no later opening could read it. So before the next batch, the database is opened again:
LevelDB moves the whole batches of the log into a table and begins another log. If there is no room for that
either, nothing can be read. ``bookie.storage.disk.ballast`` keeps room free to prevent this.

**No descriptor left.** LevelDB opens tables and logs when it needs them. If a read finds no descriptor, it is
tried once more with a descriptor that is kept for it. If a batch finds none, it is not written. If LevelDB's
own compaction found none, no later batch is written either until the database is opened again. So this is
handled like a full disk.

Only this module translates plyvel's exceptions, to StorageCorrupt and StorageError. The message names the
remedy, because the index can always be rebuilt from the journal.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TypeVar

import attrs
import plyvel
import trio

from bookie.core.rows import Change, Row
from bookie.storage.disk.descriptors import WORDS as NO_DESCRIPTOR
from bookie.storage.disk.descriptors import OutOfDescriptors, SpareDescriptor
from bookie.storage.disk.disk import Disk, FileMissing
from bookie.storage.index.index import remedy
from ledgerlog.errors import DiskFull, StorageCorrupt, StorageError
from ledgerlog.wire.checksum import checksum

T = TypeVar("T")

_TALLY = struct.Struct(">6sQ")
_TALLY_PREFIX = b"\0tally"
_TALLY_VALUE = struct.Struct("<I")
_SINCE_KEY = b"\0since"
_SINCE = struct.Struct("<QI")
_END_KEY = b"\xff" * 32
"""The key of the last row."""
_KEPT = 2**17
_STEP = 1024
"""How many tally rows are removed at once; up to four times as many if there are more to remove."""
_BLOOM_BITS = 10
_READERS = 4
_NO_ROOM = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
"""LevelDB's messages contain the words of the operating system."""
_DAMAGED = (os.strerror(errno.EINVAL), os.strerror(errno.ENOENT))
"""LevelDB's words for a table that is empty (it cannot map it into memory) or missing."""
_OF_THE_MANIFEST = "descriptor"
"""LevelDB's word for its manifest in messages that do not name the file."""


@attrs.define
class _Opened:
    """An open database, and known facts about its rows."""

    database: plyvel.DB
    since: int
    """The number of the last batch whose tally row was removed."""
    tally: int
    """The number of the newest batch."""
    has_end: bool
    """Whether the row at the end is there."""


class LevelDbIndex:
    """An ``Index`` in a LevelDB directory. ``LevelDb`` makes it."""

    def __init__(self, path: str, opened: _Opened, log: str = "its log") -> None:
        self.path = path
        self.if_behind = f"the index has lost its last batches ({log} was cut): {remedy(path)}"
        self._opened = opened
        self._is_torn = False
        """Whether a batch failed for lack of room or of a descriptor. The log may end in the middle of it."""
        self._failure: StorageError | None = None
        """The reason if the database could not be opened again."""
        self._limiter = trio.CapacityLimiter(_READERS)
        self._writer = trio.CapacityLimiter(1)
        self._writing = trio.Lock()
        """Held while a batch is written, and while the database is opened again."""
        self._spare = SpareDescriptor()

    @property
    def _database(self) -> plyvel.DB:
        if self._failure is not None:
            raise StorageError(str(self._failure)) from self._failure
        return self._opened.database

    def get_now(self, key: bytes) -> bytes | None:
        return self._reading(lambda: self._get(key))

    def _reading(self, read: Callable[[], T]) -> T:
        """Call ``read``; lend it the spare descriptor if there is no other. LevelDB does not keep the
        descriptor: it closes each file that it opened for the read, or maps it into memory."""
        try:
            return self._spare.lend(lambda: _translated(self.path, read))
        finally:
            self._spare.keep()

    def _get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._database.get(key, verify_checksums=True)
        return value

    def scan_now(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        return self._reading(lambda: self._scan(start, stop, floor, limit))

    def _scan(self, start: bytes, stop: bytes, floor: bytes, limit: int) -> list[Row]:
        rows: list[Row] = []
        tally, has_end = self._opened.tally, self._opened.has_end  # Before the snapshot is taken.
        # Both iterators must see the same rows. A batch between them could remove the first one's row and put
        # another row below the beginning of the second.
        with self._database.snapshot() as snapshot:
            # No lower end: plyvel 1.5.1 misses rows if a reverse iterator has both ends.
            with snapshot.iterator(stop=start, reverse=True, verify_checksums=True) as below:
                row = next(below, None)
                if row is None and tally and start > _tally_key(tally):
                    raise _rows_missing(self.path)
                if row is not None and row[0] >= floor:
                    rows.append(row)
            with closing(_rows_from(snapshot, self.path, start, has_end=has_end)) as rest:
                for row in rest:
                    if not limit or row[0] >= stop:
                        break
                    limit -= 1
                    rows.append(row)
        return rows

    async def scan(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        return await trio.to_thread.run_sync(
            lambda: self.scan_now(start, stop, floor=floor, limit=limit), limiter=self._limiter
        )

    async def write(self, rows: Sequence[Change]) -> None:
        def put() -> None:
            opened = self._opened
            number = opened.tally + 1
            # Without ``transaction``, plyvel writes a part of the batch if building it raises.
            with self._database.write_batch(transaction=True, sync=True) as batch:
                for key, value in rows:
                    if value is None:
                        batch.delete(key)
                    else:
                        batch.put(key, value)
                batch.put(*_tally_row(number, len(rows)))
                since = opened.since
                if number - since >= _KEPT + _STEP:
                    since = min(since + 4 * _STEP, number - _KEPT)
                    for gone in range(opened.since + 1, since + 1):
                        batch.delete(_tally_key(gone))
                    batch.put(*_since_row(since))
                if not opened.has_end:
                    batch.put(_END_KEY, b"")
            opened.since, opened.tally, opened.has_end = since, number, True

        async with self._writing:
            if self._is_torn or self._failure is not None:
                with trio.CancelScope(shield=True):
                    await self._open_again()
            try:
                await trio.to_thread.run_sync(lambda: _translated(self.path, put), limiter=self._writer)
            except (DiskFull, OutOfDescriptors):
                self._is_torn = True
                raise

    async def refresh(self) -> None:
        async with self._writing:
            with trio.CancelScope(shield=True):
                await self._open_again()

    async def _open_again(self) -> None:
        """Open the database again, which begins another log. First wait until no thread reads. Then block the
        event loop, so that no other task reads in the meantime. If it fails, it raises StorageError: later
        reads raise it too, and the next batch tries again."""
        readers = [object() for _ in range(_READERS)]
        for reader in readers:
            await self._limiter.acquire_on_behalf_of(reader)
        try:
            self._opened.database.close()
            self._opened = _reopened(self.path)
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


class LevelDb:
    """``Indexes`` in LevelDB directories."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def create(self, path: str) -> LevelDbIndex:
        def create() -> LevelDbIndex:
            database = _translated(path, lambda: _open(path, is_new=True))
            os.chmod(path, 0o700)
            return LevelDbIndex(path, _Opened(database, since=0, tally=0, has_end=False))

        return await trio.to_thread.run_sync(create)

    async def open(self, path: str) -> LevelDbIndex:
        def open_it() -> LevelDbIndex:
            if not os.path.isfile(os.path.join(path, "CURRENT")):
                raise FileMissing(f"there is no {path}/CURRENT; {remedy(path)}")
            log = _newest_log(path)  # Look before opening: that begins another log and removes this one.
            return LevelDbIndex(path, _reopened(path), log)

        return await trio.to_thread.run_sync(open_it)

    async def remove(self, path: str) -> None:
        await self._disk.remove_directory(path)

    async def replace(self, source: str, target: str) -> None:
        """Replace an index. A crash in the middle leaves no index at ``target``. The next start notices that;
        nothing else is lost."""
        await self._disk.remove_directory(target)
        await self._disk.rename(source, target)
        await self._disk.sync_directory(os.path.dirname(target))


def _reopened(path: str) -> _Opened:
    """Open an existing database, and check its tally."""
    database = _translated(path, lambda: _open(path, is_new=False))
    try:
        return _translated(path, lambda: _checked(path, database))
    except BaseException:
        database.close()
        raise


def _checked(path: str, database: plyvel.DB) -> _Opened:
    has_end = database.get(_END_KEY, verify_checksums=True) is not None
    since, tally = _check_tally(path, database, has_end=has_end)
    return _Opened(database, since=since, tally=tally, has_end=has_end)


def _newest_log(path: str) -> str:
    """Return the log that holds the newest batches. StorageCorrupt if there is none. LevelDB itself would
    mistake a missing log for an empty one. It always begins a log before its manifest names it, so a sound
    index has one."""
    names = [name for name in os.listdir(path) if name.endswith(".log")]
    if not names:
        raise StorageCorrupt(path, None, f"the index's log, {path}/*.log, is missing; {remedy(path)}")
    return os.path.join(path, max(names, key=lambda name: (len(name), name)))


def _open(path: str, *, is_new: bool) -> plyvel.DB:
    return plyvel.DB(
        path,
        create_if_missing=is_new,
        error_if_exists=is_new,
        paranoid_checks=True,
        bloom_filter_bits=_BLOOM_BITS,
    )


def _tally_key(number: int) -> bytes:
    return _TALLY.pack(_TALLY_PREFIX, number)


def _tally_row(number: int, rows: int) -> Row:
    key = _tally_key(number)
    return key, _TALLY_VALUE.pack(checksum(key + rows.to_bytes(4, "little"))) + rows.to_bytes(4, "little")


def _since_row(number: int) -> Row:
    return _SINCE_KEY, _SINCE.pack(number, checksum(_SINCE_KEY + number.to_bytes(8, "little")))


def _rows_from(
    source: plyvel.DB, path: str, start: bytes, *, has_end: bool, fill_cache: bool = True
) -> Generator[Row, None, None]:
    """Yield the rows of a database or of a snapshot from ``start`` to the end. StorageCorrupt if the row at
    the end is not reached."""
    with source.iterator(start=start, verify_checksums=True, fill_cache=fill_cache) as rows:
        for row in rows:
            if row[0] == _END_KEY:
                return
            yield row
    if has_end:
        raise _rows_missing(path)


def _rows_missing(path: str) -> StorageCorrupt:
    return StorageCorrupt(path, None, f"the index is damaged (a block of rows is missing); {remedy(path)}")


def _check_tally(path: str, database: plyvel.DB, *, has_end: bool) -> tuple[int, int]:
    """Return the number of the last batch without a tally row, and that of the newest batch. StorageCorrupt
    if a row between them is missing."""
    since = 0
    value = database.get(_SINCE_KEY, verify_checksums=True)
    if value is not None:
        since = int.from_bytes(value[:8], "little")
        if (_SINCE_KEY, value) != _since_row(since):
            raise StorageCorrupt(path, None, f"the beginning of the index's tally is damaged; {remedy(path)}")
    expected = since
    with closing(_rows_from(database, path, _TALLY_PREFIX, has_end=has_end, fill_cache=False)) as rows:
        for key, value in rows:
            if not key.startswith(_TALLY_PREFIX):
                break
            expected += 1
            if (key, value) != _tally_row(expected, int.from_bytes(value[4:], "little")):
                raise StorageCorrupt(path, None, f"batch {expected} of the index is missing; {remedy(path)}")
    if expected < since + _KEPT and since:
        raise StorageCorrupt(path, None, f"batch {expected + 1} of the index is missing; {remedy(path)}")
    return since, expected


def _said(path: str, cause: plyvel.Error) -> str:
    """LevelDB's message. If it is about the manifest and does not name the file, the path is added."""
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
        if any(word in str(cause) for word in _NO_ROOM):
            raise DiskFull(f"{path}: there is no room for the index: {cause}") from cause
        if any(word in str(cause) for word in _DAMAGED):
            raise StorageCorrupt(
                path, None, f"the index is damaged ({_said(path, cause)}); {remedy(path)}"
            ) from cause
        raise StorageError(f"{path}: the index failed: {cause}") from cause
    except OSError as cause:
        raise StorageError(f"{path}: the index failed: {cause.strerror}") from cause
