"""The index capability on LevelDB, through plyvel.

Every call that may touch the disk runs in a thread, one batch a hop; plyvel releases the interpreter's lock
inside LevelDB. Every batch is written with ``sync``: of several unsynced ones only an ordered prefix
survives a power cut, and not even that where LevelDB changed its log file in between.

**Damage.** Reads verify block checksums (``verify_checksums``) and ``paranoid_checks`` makes opening fail on
a damaged log or manifest; plyvel raises for a damaged block in the middle of a range too. One kind of
damage LevelDB takes for the normal end of a file: a record whose *length* is damaged, near the end of its
log or manifest, looks like one that was being written when the power went, and it and all after it is
dropped without a word. In the log that loses the newest batches, which amounts to an older mark, and the
journal is replayed from there. In the manifest it can lose a whole table out of the middle of history.
Hence the *tally*: batches are numbered, and each carries the row (0x00, "tally", number) of its own. On
opening, the numbers found must run to the newest without a gap; a table that went missing takes the tally
rows of its batches with it.

What the damaged end of a manifest hides is the newest table, and that holds no more than _KEPT batches (each
takes some ninety bytes of the four megabytes that a table is made from). Older tally rows prove nothing, and
so that a start need not read one for each batch of a bookie's life, they go: the row (0x00, "since") says
behind which number the tally begins, and is written with the batch that removes the rows up to it.

**A full disk.** A batch that found no room may be in the log in part, and LevelDB would write the next one
behind that part, where no later opening could read it. So before the next batch the database is opened
again: LevelDB then takes what is whole in the log into a table, and begins another log. As long as that finds
no room either, nothing can be read: ``bookie.storage.disk.ballast`` is there so that it does not come to
that.

**No descriptor left.** LevelDB opens tables and logs when it needs them. A read that finds no descriptor is
done once more with one that is kept for it. A batch that finds none is not written; and if it was LevelDB's
compaction that found none, no later batch is either, until the database is opened again. So it is treated as
on a full disk.

plyvel's exceptions are translated here, and nowhere else, to StorageCorrupt and StorageError. The message
names the remedy, because the index can always be made again from the journal.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

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
_KEPT = 2**17
_STEP = 1024
"""Tally rows go in steps of so many; four times as many where there are more to catch up with."""
_BLOOM_BITS = 10
_READERS = 4
_NO_ROOM = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
"""LevelDB says what the operating system said, in its words."""
_DAMAGED = (os.strerror(errno.EINVAL), os.strerror(errno.ENOENT))
"""What it says of a table that is empty, which it cannot map into memory, or gone."""
_OF_THE_MANIFEST = "descriptor"
"""In what it says of its manifest without naming the file."""


class LevelDbIndex:
    """``Index`` in a directory of LevelDB's. Made by ``LevelDb``."""

    def __init__(self, path: str, database: plyvel.DB, since: int, tally: int, log: str = "its log") -> None:
        self.path = path
        self.if_behind = f"the index has lost its last batches ({log} was cut): {remedy(path)}"
        self._open_database = database
        self._since = since
        """The number of the last batch that has no tally row any more."""
        self._tally = tally
        """The number of the newest batch."""
        self._is_torn = False
        """Whether a batch found no room, and the log may end in the middle of it."""
        self._failure: StorageError | None = None
        """Why it could not be opened again."""
        self._limiter = trio.CapacityLimiter(_READERS)
        self._writer = trio.CapacityLimiter(1)
        self._spare = SpareDescriptor()

    @property
    def _database(self) -> plyvel.DB:
        if self._failure is not None:
            raise StorageError(str(self._failure)) from self._failure
        return self._open_database

    def get_now(self, key: bytes) -> bytes | None:
        return self._reading(lambda: self._get(key))

    def _reading(self, read: Callable[[], T]) -> T:
        """What ``read`` returns; LevelDB closes what it opened for it, or maps it into memory."""
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
        # Both iterators must see the same rows: a batch in between could take what the first one found away
        # and put it in front of where the second begins.
        with self._database.snapshot() as snapshot:
            # Without a lower end: plyvel 1.5.1 misses rows when a reverse iterator has both.
            with snapshot.iterator(stop=start, reverse=True, verify_checksums=True) as below:
                row = next(below, None)
                if row is not None and row[0] >= floor:
                    rows.append(row)
            with snapshot.iterator(start=start, stop=stop, verify_checksums=True) as rest:
                for row in rest:
                    if not limit:
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
            number = self._tally + 1
            # Without ``transaction`` plyvel writes what there is of a batch when making it fails.
            with self._database.write_batch(transaction=True, sync=True) as batch:
                for key, value in rows:
                    if value is None:
                        batch.delete(key)
                    else:
                        batch.put(key, value)
                batch.put(*_tally_row(number, len(rows)))
                since = self._since
                if number - since >= _KEPT + _STEP:
                    since = min(since + 4 * _STEP, number - _KEPT)
                    for gone in range(self._since + 1, since + 1):
                        batch.delete(_tally_key(gone))
                    batch.put(*_since_row(since))
            self._since, self._tally = since, number

        if self._is_torn:
            with trio.CancelScope(shield=True):
                await self._open_again()
        try:
            await trio.to_thread.run_sync(lambda: _translated(self.path, put), limiter=self._writer)
        except (DiskFull, OutOfDescriptors):
            self._is_torn = True
            raise

    async def _open_again(self) -> None:
        """Begin another log. The loop waits for it, so that nobody reads meanwhile, and threads that read end
        first. StorageError if it cannot be done, and for who reads from then on; it may be tried again."""
        readers = [object() for _ in range(_READERS)]
        for reader in readers:
            await self._limiter.acquire_on_behalf_of(reader)
        try:
            self._open_database.close()
            self._open_database, self._since, self._tally = _reopened(self.path)
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
            await trio.to_thread.run_sync(self._open_database.close, limiter=self._writer)
        finally:
            self._spare.close()


class LevelDb:
    """``Indexes`` that are LevelDB directories."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def create(self, path: str) -> LevelDbIndex:
        def create() -> LevelDbIndex:
            database = _translated(path, lambda: _open(path, is_new=True))
            os.chmod(path, 0o700)
            return LevelDbIndex(path, database, 0, 0)

        return await trio.to_thread.run_sync(create)

    async def open(self, path: str) -> LevelDbIndex:
        def open_it() -> LevelDbIndex:
            if not os.path.isfile(os.path.join(path, "CURRENT")):
                raise FileMissing(f"there is no {path}/CURRENT; {remedy(path)}")
            log = _newest_log(path)  # LevelDB begins another as it opens, and this one goes.
            return LevelDbIndex(path, *_reopened(path), log)

        return await trio.to_thread.run_sync(open_it)

    async def remove(self, path: str) -> None:
        await self._disk.remove_directory(path)

    async def replace(self, source: str, target: str) -> None:
        """A crash in between leaves no index at ``target``, which is noticed, and no other harm."""
        await self._disk.remove_directory(target)
        await self._disk.rename(source, target)
        await self._disk.sync_directory(os.path.dirname(target))


def _reopened(path: str) -> tuple[plyvel.DB, int, int]:
    """A database that exists, and what its tally says (``_check_tally``)."""
    database = _translated(path, lambda: _open(path, is_new=False))
    try:
        return database, *_translated(path, lambda: _check_tally(path, database))
    except BaseException:
        database.close()
        raise


def _newest_log(path: str) -> str:
    """The log that holds the newest batches. LevelDB begins one before it says so in its manifest, and takes
    a missing one for one without batches: StorageCorrupt if there is none."""
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


def _check_tally(path: str, database: plyvel.DB) -> tuple[int, int]:
    """Behind which batch the tally begins, and the number of the newest; StorageCorrupt if one of those in
    between is missing."""
    since = 0
    value = database.get(_SINCE_KEY, verify_checksums=True)
    if value is not None:
        since = int.from_bytes(value[:8], "little")
        if (_SINCE_KEY, value) != _since_row(since):
            raise StorageCorrupt(path, None, f"the beginning of the index's tally is damaged; {remedy(path)}")
    expected = since
    with database.iterator(prefix=_TALLY_PREFIX, verify_checksums=True, fill_cache=False) as rows:
        for key, value in rows:
            expected += 1
            if (key, value) != _tally_row(expected, int.from_bytes(value[4:], "little")):
                raise StorageCorrupt(path, None, f"batch {expected} of the index is missing; {remedy(path)}")
    if expected < since + _KEPT and since:
        raise StorageCorrupt(path, None, f"batch {expected + 1} of the index is missing; {remedy(path)}")
    return since, expected


def _said(path: str, cause: plyvel.Error) -> str:
    """What LevelDB said, and the file that it spoke of where it does not name it."""
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
