"""Reading an archived part of a log from the event loop: a thread reads one row group at a time.

A file is opened for one reader and read from one offset on. Memory holds one row group, about
``limits.ARCHIVE_GROUP_BYTES``. Each step has a deadline (``limits.ARCHIVE_READ_TIMEOUT_S``). If a file system
does not answer in time, the step raises ``ArchiveUnavailable`` and abandons its thread. At most
``limits.ARCHIVE_THREADS_MAX`` threads read archives. So a file system that hangs cannot use up the threads
that the rest of the process needs, for example for name lookups.

Opening the first file imports pyarrow. If pyarrow is not installed, this raises ``ArchiveSupportMissing``,
which names the command that installs it. A program that reads no archive does not need pyarrow.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ledgerlog.errors import ArchiveCorrupt, ArchiveSupportMissing, ArchiveUnavailable
from ledgerlog.limits import ARCHIVE_READ_TIMEOUT_S, ARCHIVE_THREADS_MAX
from ledgerlog.model.archive import ArchivedFile, ArchivedLedger
from ledgerlog.model.record import RecordBatch
from ledgerlog.optional_packages import how_to_install

if TYPE_CHECKING:
    from ledgerlog.archive.file_reader import ArchiveFile, FileCheck

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
    """Run ``work`` in a thread for archives.

    Args:
        work: The function to run.
        file: The file that ``work`` works on, for the message of the error.
        timeout_s: How long to wait, in seconds; None: ``limits.ARCHIVE_READ_TIMEOUT_S``.

    Returns:
        The result of ``work``. If ``work`` raises an error, this function raises the same error.

    Raises:
        ArchiveUnavailable: ``work`` took longer than ``timeout_s``. ``work`` still runs; its result is
            dropped.

    Cancelling: abandons the wait. ``work`` still runs; its result is dropped.
    """
    timeout_s = ARCHIVE_READ_TIMEOUT_S if timeout_s is None else timeout_s
    with trio.move_on_after(timeout_s):
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=_limiter())
    raise ArchiveUnavailable(
        file, f"its file system did not answer within {timeout_s:g} s; try again when it does"
    )


def _close_beside(close: Callable[[], None]) -> None:
    """Close a file in a thread that nothing waits for.

    A file system that hangs may hang during a close too. The file was only read, so an error of the close
    changes nothing.
    """
    trio.lowlevel.start_thread_soon(close, lambda outcome: None)


class ArchiveReader:
    """Reads an archived part of a log. ``open_archive`` makes one. For one task at a time.

    Every method may raise ArchiveUnavailable (try again later) and ArchiveCorrupt. No method holds more than
    one row group.
    """

    def __init__(self, record: ArchivedFile, file: ArchiveFile) -> None:
        self.record = record
        self.is_busy = False
        """Whether a thread uses the file, perhaps after its caller stopped waiting."""
        self._file = file

    async def offset_of_moment(self, when_ms: int) -> int:
        """Return the offset of the first record that is not older than a time.

        Args:
            when_ms: The time, in milliseconds since the epoch.

        Returns:
            The offset; the end offset of the file if all records are older.

        Raises:
            ArchiveUnavailable: The file cannot be read.
            ArchiveCorrupt: The file is damaged.
        """
        found = await self._run(lambda: self._file.offset_of_moment(when_ms))
        return self.record.end_offset if found is None else found

    async def offset_of_entry(self, ledger: ArchivedLedger, entry_id: int, slot: int) -> int:
        """Return the offset of a record by its place in a ledger.

        Args:
            ledger: A ledger of this file.
            entry_id: The entry of the record.
            slot: The place of the record in the entry.

        Returns:
            The offset of the record. If the file does not have the record: the offset of the ledger's next
            record in the file; if there is none, the ledger's end offset.

        Raises:
            ArchiveUnavailable: The file cannot be read.
            ArchiveCorrupt: The file is damaged.
        """
        return await self._run(lambda: self._file.offset_of_entry(ledger, entry_id, slot))

    async def batches(self, start: int) -> AsyncGenerator[list[RecordBatch], None]:
        """Read the records from an offset on, one row group at a time.

        Args:
            start: The first offset that you need. The first batch may begin before it.

        Yields:
            The batches of a row group. Offsets grow, and have gaps only if the file is compacted.

        Raises:
            ArchiveUnavailable: The file cannot be read.
            ArchiveCorrupt: The file is damaged, or it lacks records.
        """
        group = self._file.group_of_offset(start)
        next_offset: int | None = None
        while group < self._file.groups:
            batches = await self._run(partial(self._file.read_group, group))
            batches = [batch for batch in batches if batch.end_offset > start]
            for batch in batches:
                self._check(batch.first_offset, batch.end_offset, start, next_offset)
                next_offset = batch.end_offset
            if batches:
                yield batches
            group += 1
        self._check_end(start, next_offset)

    async def tables(self, start: int, columns: Collection[str]) -> AsyncGenerator[Any, None]:
        """Read some columns of the records from an offset on, one row group at a time, as Arrow tables.

        Args:
            start: The first offset that you need. The first table may begin before it.
            columns: The names of the columns; ``archive.parquet`` describes them. ``offset`` is always there.
                A column that the file does not have is left out.

        Yields:
            The records of a row group, in order. Offsets have gaps only if the file is compacted.

        Raises:
            ArchiveUnavailable: The file cannot be read.
            ArchiveCorrupt: The file is damaged, or it lacks records.
        """
        next_offset: int | None = None
        for group in range(self._file.group_of_offset(start), self._file.groups):
            first, last, _ = self._file.bounds(group)
            self._check(first, last + 1, start, next_offset)
            yield await self._run(partial(self._file.read_columns, group, columns))
            next_offset = last + 1
        self._check_end(start, next_offset)

    def _check(self, first: int, end: int, start: int, next_offset: int | None) -> None:
        """Check that the records from ``first`` to below ``end`` may come next."""
        if self.record.compacted:
            is_right = next_offset is None or first >= next_offset
        elif next_offset is None:
            is_right = first <= start
        else:
            is_right = first == next_offset
        if not is_right or end > self.record.end_offset:
            self._fail(f"it has offset {first}, but {next_offset or start} was expected")

    def _check_end(self, start: int, next_offset: int | None) -> None:
        """Check that the file may end here."""
        reached = start if next_offset is None else next_offset
        if not self.record.compacted and reached < self.record.end_offset:
            self._fail(f"it ends at offset {reached}, before {self.record.end_offset}")

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
    """Raise ArchiveSupportMissing if the body's import of archive modules fails for lack of pyarrow."""
    try:
        yield
    except ImportError as cause:
        raise ArchiveSupportMissing(
            where, f"this needs pyarrow, which cannot be imported ({cause}): {how_to_install('pyarrow')}"
        ) from cause


@asynccontextmanager
async def open_archive(record: ArchivedFile) -> AsyncIterator[ArchiveReader]:
    """Open the file that a record names, for the body of the ``async with``.

    Raises:
        ArchiveUnavailable: The file is not there, cannot be read, or its file system did not answer in time.
        ArchiveCorrupt: The file is damaged, or it is not the file that was recorded.
        ArchiveSupportMissing: pyarrow is not installed.
    """

    def load() -> ArchiveFile:
        with pyarrow_needed(record.file):
            from ledgerlog.archive.file_reader import ArchiveFile
        return ArchiveFile(record)

    file = await in_thread(load, file=record.file)
    reader = ArchiveReader(record, file)
    try:
        yield reader
    finally:
        if not reader.is_busy:
            _close_beside(file.close)  # If a thread still uses the file, it closes with its last reference.


async def check_end(record: ArchivedFile) -> None:
    """Check a file against its record by its size and its end. The records are not read.

    Raises:
        ArchiveUnavailable: The file is not there, cannot be read, or its file system did not answer in time.
        ArchiveCorrupt: The file is damaged, or it is not the file that was recorded.
        ArchiveSupportMissing: pyarrow is not installed.
    """

    def look() -> None:
        with pyarrow_needed(record.file):
            from ledgerlog.archive.file_reader import ArchiveFile
            from ledgerlog.archive.footer import end_of
        size, _ = end_of(record)
        if size != record.file_bytes:
            raise ArchiveCorrupt(record.file, f"it has {size} bytes, and its record says {record.file_bytes}")
        ArchiveFile(record).close()

    await in_thread(look, file=record.file)


async def check_archive(record: ArchivedFile) -> None:
    """Read a whole file, one row group at a time, and check it against its record.

    Raises:
        ArchiveUnavailable: The file is not there, cannot be read, or its file system did not answer in time.
        ArchiveCorrupt: The file is damaged, or it is not the file that was recorded.
        ArchiveSupportMissing: pyarrow is not installed.
    """

    def begin() -> FileCheck:
        with pyarrow_needed(record.file):
            from ledgerlog.archive.file_reader import FileCheck
        return FileCheck(record)

    check = await in_thread(begin, file=record.file)
    while await in_thread(check.step, file=record.file):
        pass
    check.end()
    # After a failure a thread may still use the file. It then closes with its last reference.
    _close_beside(check.close)
