"""RocksDB as the store of an index, through rocksdict, in its raw mode: keys and values are bytes.

**The interpreter's lock.** rocksdict holds the interpreter's lock (GIL) during reads and during ``write``,
also while the disk syncs. So a batch is first written without a sync, which takes microseconds. Then
``flush_wal`` syncs RocksDB's log; rocksdict releases the lock for that. Readers see the batch before it is
durable. It is durable when ``write`` returns. A write never waits inside RocksDB for a flush or a compaction
(``no_slowdown``); it waits in this module, without the lock.

**Damage.** RocksDB verifies the checksum of each block that it reads, and an iterator that meets damage ends
with an error (``status``). On opening, ``paranoid_checks`` verifies the manifest, the names and sizes of all
tables, and RocksDB's log. RocksDB treats the first bad record of its log as the record that was being written
when the power failed. The index then ends before that record, as if the log had been cut there. The engine
notices if the journal does not reach back so far (``Index.if_behind``).

**Closing.** RocksDB stays open while an iterator or a snapshot lives, and a frame of a traceback can keep it
alive. So this module deletes iterators and snapshots explicitly.

Only this module translates rocksdict's exceptions. rocksdict raises plain ``Exception``, with RocksDB's
message.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

import rocksdict

from bookie.core.rows import Change, Row
from bookie.storage.disk.descriptors import WORDS as NO_DESCRIPTOR
from bookie.storage.disk.descriptors import OutOfDescriptors
from bookie.storage.disk.real import raise_ours
from bookie.storage.index.index import remedy
from bookie.storage.index.stored import NO_ROOM
from bookie.storage.index.tally import Tally
from ledgerlog.errors import DiskFull, StorageCorrupt, StorageError, StorageLocked
from ledgerlog.limits import INDEX_CACHE_BYTES, INDEX_WRITE_BUFFER_BYTES, KIB, MIB

T = TypeVar("T")

_BLOOM_BITS = 10
_WRITE_BUFFERS = 3
"""A batch waits if this many write buffers are full and not yet in a table."""
_LOG_BYTES_MAX = 256 * KIB
"""RocksDB keeps two files of this size with messages for its developers."""
_STALLED_S = 0.001
_STALLED = "Write stall"
_EXISTS = "error_if_exists"
_LOCKED = (os.strerror(errno.EAGAIN), os.strerror(errno.ENOLCK))
_MISSING = os.strerror(errno.ENOENT)
_DAMAGED = ("Corruption", "Invalid argument", "Not implemented", "NotFound")
"""The first words of RocksDB's messages about damage. "Corruption" is the usual one. The others come if a
manifest or a table can be read, but names something that does not exist."""


class RocksDb:
    """``Store``: RocksDB."""

    def open(self, path: str, *, is_new: bool) -> RocksDbDatabase:
        options = _options(is_new=is_new)
        # Without ``column_families``, rocksdict would take the options that are stored in the directory, if
        # it can read them.
        return _translated(
            path,
            lambda: RocksDbDatabase(
                path, rocksdict.Rdict(path, options, column_families={"default": options})
            ),
        )


class RocksDbDatabase:
    """``Database``: an open RocksDB directory."""

    def __init__(self, path: str, database: rocksdict.Rdict) -> None:
        self._path = path
        self._database = database
        self._read = rocksdict.ReadOptions()
        self._read.set_verify_checksums(True)
        database.set_read_options(self._read)
        self._pass = rocksdict.ReadOptions()
        """Options for reading many rows once: their blocks do not stay in memory."""
        self._pass.set_verify_checksums(True)
        self._pass.fill_cache(False)  # type: ignore[call-arg]  # its stub lacks the argument
        self._write = rocksdict.WriteOptions()
        self._write.no_slowdown = True

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = _translated(self._path, lambda: self._database.get(key))
        return value

    def scan(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        return _translated(self._path, lambda: self._scan(start, stop, floor, limit))

    def _scan(self, start: bytes, stop: bytes, floor: bytes, limit: int) -> list[Row]:
        rows: list[Row] = []
        iterator = self._database.iter(self._read)  # The iterator sees the rows as they are now.
        try:
            iterator.seek_for_prev(start)
            if iterator.valid() and iterator.key() == start:
                iterator.prev()
            if not iterator.valid():
                iterator.status()
            elif (key := iterator.key()) >= floor:
                rows.append((key, iterator.value()))
            iterator.seek(start)
            while limit and iterator.valid():
                if (key := iterator.key()) >= stop:
                    break
                limit -= 1
                rows.append((key, iterator.value()))
                iterator.next()
            if not iterator.valid():
                iterator.status()
        finally:
            del iterator
        return rows

    def rows_from(self, start: bytes) -> Generator[Row, None, None]:
        iterator = self._database.iter(self._pass)
        try:
            iterator.seek(start)
            while iterator.valid():
                yield iterator.key(), iterator.value()
                iterator.next()
            _translated(self._path, iterator.status)
        finally:
            del iterator

    def write(self, changes: Sequence[Change], tally: Tally) -> None:
        while not self._written(changes):
            time.sleep(_STALLED_S)
        _translated(self._path, lambda: self._database.flush_wal(True))

    def _written(self, changes: Sequence[Change]) -> bool:
        """Write a batch without a sync. Return False if too many write buffers or tables wait for RocksDB's
        threads; then nothing of the batch was written."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in changes:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        try:
            _translated(self._path, lambda: self._database.write(batch, self._write))
        except StorageError as failure:
            if _STALLED not in str(failure):
                raise
            return False
        return True

    def knows(self, tally: Tally) -> None:
        """Do nothing. RocksDB needs no tally, because its iterators report damage."""

    def close(self) -> None:
        # Here rocksdict writes the batches to a table. Every batch is in the synced log, so nothing is lost
        # if that table cannot be written.
        with contextlib.suppress(StorageError, rocksdict.DbClosedError):
            _translated(self._path, self._database.close)


def _options(*, is_new: bool) -> rocksdict.Options:
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(rocksdict.Cache(INDEX_CACHE_BYTES))
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    blocks.set_bloom_filter(_BLOOM_BITS, False)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(is_new)
    options.set_error_if_exists(is_new)
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(rocksdict.DBCompressionType.snappy())
    options.set_write_buffer_size(INDEX_WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(_WRITE_BUFFERS)
    options.set_max_background_jobs(2)
    options.set_manifest_preallocation_size(64 * KIB)
    options.set_max_manifest_file_size(MIB)
    options.set_max_log_file_size(_LOG_BYTES_MAX)
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def _translated(path: str, function: Callable[[], T]) -> T:
    try:
        return function()
    except OSError as cause:
        raise_ours("use", path, cause)
    except Exception as cause:
        if type(cause) is not Exception:
            raise
        raise _translation(path, str(cause)) from cause
    finally:
        del function  # A traceback keeps this frame, and the function may be a method of an iterator.


def _translation(path: str, said: str) -> StorageError:
    if any(word in said for word in NO_DESCRIPTOR):
        return OutOfDescriptors(f"{path}: there is no descriptor for the index: {said}")
    if any(word in said for word in NO_ROOM):
        return DiskFull(f"{path}: there is no room for the index: {said}")
    if _EXISTS in said:
        return StorageError(f"there is an index at {path} already")
    if said.startswith(_DAMAGED) or _MISSING in said:
        return StorageCorrupt(path, None, f"the index is damaged ({said}); {remedy(path)}")
    if "lock" in said and any(word in said for word in _LOCKED):
        return StorageLocked(path, None)
    return StorageError(f"{path}: the index failed: {said}")
