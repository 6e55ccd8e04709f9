"""Reading an archived part of a log from the loop: a thread reads, a row group at a time.

A file is opened for one reader and read from one place on. What is held in memory is one row group, about
``limits.ARCHIVE_GROUP_BYTES``. Each step has a deadline (``limits.ARCHIVE_READ_TIMEOUT_S``): a file system
that does not answer is ``ArchiveUnavailable``, and the thread that waits for it is left to itself. There are
``limits.ARCHIVE_THREADS_MAX`` of them for archives and no more, so that such a file system does not take the
threads that everything else in the process needs, name lookups among them.

pyarrow is imported with the first file. Where it is not installed that is ``ArchiveSupportMissing``, which
names what to install; whoever reads no archive does not need it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from ledgerlog.errors import ArchiveCorrupt, ArchiveSupportMissing, ArchiveUnavailable
from ledgerlog.limits import ARCHIVE_READ_TIMEOUT_S, ARCHIVE_THREADS_MAX
from ledgerlog.model.archive import ArchivedLedger, ArchiveRecord
from ledgerlog.model.record import RecordBatch
from ledgerlog.optional_packages import how_to_install

if TYPE_CHECKING:
    from ledgerlog.archive.parquet import ArchiveFile, FileCheck

__all__ = ["ArchiveReader", "check_archive", "check_end", "in_thread", "open_archive", "pyarrow_needed"]

T = TypeVar("T")

_limiters: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("archive threads")


def _limiter() -> trio.CapacityLimiter:
    try:
        return _limiters.get()
    except LookupError:
        _limiters.set(limiter := trio.CapacityLimiter(ARCHIVE_THREADS_MAX))
        return limiter


async def in_thread(work: Callable[[], T], *, file: str, timeout_s: float | None = None) -> T:
    """What ``work`` returns or raises, done in a thread. ArchiveUnavailable where it takes longer than
    ``timeout_s``, by default ``limits.ARCHIVE_READ_TIMEOUT_S``; it goes on then, and nobody hears of it, as
    when the caller is cancelled."""
    timeout_s = ARCHIVE_READ_TIMEOUT_S if timeout_s is None else timeout_s
    with trio.move_on_after(timeout_s):
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=_limiter())
    raise ArchiveUnavailable(file, f"its file system did not answer within {timeout_s:g} s")


def _close_beside(close: Callable[[], None]) -> None:
    """Close a file that was read, in a thread that nobody waits for: a file system that does not answer may
    not answer this either, and what it says to it changes nothing."""
    trio.lowlevel.start_thread_soon(close, lambda outcome: None)


class ArchiveReader:
    """An archived part of a log. From ``open_archive``; for one task at a time. Every method may raise
    ArchiveUnavailable (retryable) and ArchiveCorrupt, and never holds more than a row group."""

    def __init__(self, record: ArchiveRecord, file: ArchiveFile) -> None:
        self.record = record
        self.is_busy = False
        """Whether a thread is in the file, or was left there."""
        self._file = file

    async def offset_of_moment(self, when_ms: int) -> int:
        """The offset of the first record that is not older than that; the end where all are."""
        found = await self._run(lambda: self._file.offset_of_moment(when_ms))
        return self.record.end_offset if found is None else found

    async def offset_of_entry(self, ledger: ArchivedLedger, entry_id: int, slot: int) -> int:
        """The offset of a record by its place in a ledger; where there is none, of the next one."""
        return await self._run(lambda: self._file.offset_of_entry(ledger, entry_id, slot))

    async def batches(self, start: int) -> AsyncGenerator[list[RecordBatch], None]:
        """The records from an offset on, by the row group; a batch may begin before it. Offsets grow, and
        without gaps unless the file is compacted."""
        group = self._file.group_of_offset(start)
        next_offset: int | None = None
        while group < self._file.groups:
            batches = await self._run(partial(self._file.read_group, group))
            batches = [batch for batch in batches if batch.end_offset > start]
            for batch in batches:
                self._check(batch, start, next_offset)
                next_offset = batch.end_offset
            if batches:
                yield batches
            group += 1
        reached = start if next_offset is None else next_offset
        if not self.record.compacted and reached < self.record.end_offset:
            self._fail(f"it ends at offset {reached}, before {self.record.end_offset}")

    def _check(self, batch: RecordBatch, start: int, next_offset: int | None) -> None:
        if self.record.compacted:
            is_right = next_offset is None or batch.first_offset >= next_offset
        elif next_offset is None:
            is_right = batch.first_offset <= start
        else:
            is_right = batch.first_offset == next_offset
        if not is_right or batch.end_offset > self.record.end_offset:
            self._fail(f"it has offset {batch.first_offset} where {next_offset or start} was to come")

    def _fail(self, why: str) -> None:
        raise ArchiveCorrupt(self.record.file, why)

    async def _run(self, work: Callable[[], T]) -> T:
        def step() -> T:
            try:
                return work()
            finally:
                self.is_busy = False

        assert not self.is_busy, "one thread at a time"
        self.is_busy = True
        return await in_thread(step, file=self.record.file)


@contextmanager
def pyarrow_needed(where: str) -> Iterator[None]:
    """For a body that imports what reads and writes archives: ArchiveSupportMissing where that fails."""
    try:
        yield
    except ImportError as cause:
        raise ArchiveSupportMissing(
            where, f"this needs pyarrow, which cannot be imported ({cause}): {how_to_install('pyarrow')}"
        ) from cause


@asynccontextmanager
async def open_archive(record: ArchiveRecord) -> AsyncIterator[ArchiveReader]:
    """The file that a record names, which must be the one that was recorded, for the body of the ``async
    with``. ArchiveUnavailable, ArchiveCorrupt, ArchiveSupportMissing."""

    def load() -> ArchiveFile:
        with pyarrow_needed(record.file):
            from ledgerlog.archive.parquet import ArchiveFile
        return ArchiveFile(record.file, record)

    file = await in_thread(load, file=record.file)
    reader = ArchiveReader(record, file)
    try:
        yield reader
    finally:
        if not reader.is_busy:
            _close_beside(file.close)  # Otherwise with the last reference to it, which the thread has.


async def check_end(record: ArchiveRecord) -> None:
    """Hold a file against its record by its size and its end, which says what it holds; records are not
    read. ArchiveCorrupt, ArchiveUnavailable, ArchiveSupportMissing."""

    def look() -> None:
        with pyarrow_needed(record.file):
            from ledgerlog.archive.footer import end_of
            from ledgerlog.archive.parquet import ArchiveFile
        size, _ = end_of(record)
        if size != record.file_bytes:
            raise ArchiveCorrupt(record.file, f"it has {size} bytes where {record.file_bytes} were recorded")
        ArchiveFile(record.file, record).close()

    await in_thread(look, file=record.file)


async def check_archive(record: ArchiveRecord) -> None:
    """Read a file whole, a row group at a time, and hold it against its record. ArchiveCorrupt,
    ArchiveUnavailable, ArchiveSupportMissing."""

    def begin() -> FileCheck:
        with pyarrow_needed(record.file):
            from ledgerlog.archive.parquet import FileCheck
        return FileCheck(record.file, record)

    check = await in_thread(begin, file=record.file)
    while await in_thread(check.step, file=record.file):
        pass
    check.end()
    _close_beside(check.close)  # Where it fails, with the last reference: a thread may be in the file still.
