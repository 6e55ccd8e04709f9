"""Reads an archived Parquet file by row group, and checks it (``archive.parquet`` has the format).

Everything here blocks; ``archive.reader`` and the jobs run it in threads. ``ArchiveCorrupt`` means: the file
does not decode, its pages do not match their checksums, or it is not the file that its metadata record
describes. ``ArchiveUnavailable`` means: the bytes of the file cannot be read.

**Damaged or unreadable?** pyarrow raises the same OSError, without an errno, for a page with a wrong checksum
and for an object store that broke the connection. So if decoding fails, this module opens the file again and
decodes a second time. If that fails too, this module reads the bytes that decoding needed. It reads no other
bytes, because a step has a deadline and a file may be large. The file counts as damaged only if all these
bytes can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ledgerlog.archive.destinations import files_as_errors, open_input
from ledgerlog.archive.footer import read_recorded_end
from ledgerlog.archive.parquet import (
    SCHEMA,
    SCHEMA_WITH_ATTRIBUTES,
    Facts,
    RecordsDigest,
    column_of,
    facts_of,
    record_batches_of,
)
from ledgerlog.errors import ArchiveCorrupt
from ledgerlog.limits import ARCHIVE_GROUP_BYTES, MIB
from ledgerlog.model.archive import ArchivedFile, ArchivedLedger
from ledgerlog.model.record import RecordBatch

__all__ = ["ArchiveFile", "FileCheck"]

T = TypeVar("T")

_READ_BYTES = MIB
_FOOTER_BYTES = MIB
_REREAD_BYTES_MAX = 8 * ARCHIVE_GROUP_BYTES
"""How many bytes ``_read_bytes`` reads at most."""

_UNDECODABLE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError, EOFError)
"""The errors that decoding raises for a damaged file. For an unreadable file it raises some of these too."""


@contextmanager
def _computing(url: str) -> Iterator[None]:
    """Raise ArchiveCorrupt, with the file's URL, if the body fails on data that was read and decoded."""
    try:
        yield
    except _UNDECODABLE as cause:
        raise ArchiveCorrupt(url, f"it is damaged: {cause}") from cause


def _raise_unless_decoding(url: str, cause: BaseException) -> None:
    """Raise ArchiveUnavailable if the operating system said why the file cannot be read."""
    if isinstance(cause, OSError) and cause.errno is not None:
        with files_as_errors(url):
            raise cause


def _read_bytes(url: str, start: int | None, length: int) -> None:
    """Read some bytes of a file and drop them, to find out whether the file can be read.

    The bounds may come from a damaged file, so they are cut to the file's size and to ``_REREAD_BYTES_MAX``.

    Args:
        url: The URL of the file.
        start: Where the bytes begin; None: read the last ``length`` bytes.
        length: How many bytes to read.

    Raises:
        ArchiveUnavailable: The bytes cannot be read.
    """
    with open_input(url) as stream, files_as_errors(url):
        size = stream.size()
        left = max(0, min(length, size, _REREAD_BYTES_MAX))
        stream.seek(size - left if start is None else max(0, min(start, size - left)))
        while left > 0 and (read := len(stream.read(min(left, _READ_BYTES)))):
            left -= read


class ArchiveFile:
    """One file, open for reading by row group. For one thread at a time.

    Args:
        record: The record that names the file. Its end is decoded only if it is the one that was recorded
            (``archive.footer``).

    Raises:
        ArchiveUnavailable: The file is not there or cannot be read.
        ArchiveCorrupt: The file is damaged, or it is not the one that was recorded.
    """

    def __init__(self, record: ArchivedFile) -> None:
        self.url = url = record.file
        self._record = record
        try:
            self._open()
        except _UNDECODABLE as cause:
            _raise_unless_decoding(url, cause)
            self._decode_again(self._open, None, _FOOTER_BYTES)

    def _open(self) -> None:
        """Open the file and read its footer."""
        stream = open_input(self._record)
        try:
            end = read_recorded_end(stream, self._record)
            self._file = pq.ParquetFile(
                stream,
                metadata=pq.read_metadata(pa.BufferReader(end)),
                page_checksum_verification=True,
                pre_buffer=False,
            )
            self.facts = facts_of(self.url, self._file.metadata.metadata or {})
            self._check_record(self._record)
            schema = self._file.schema_arrow.remove_metadata()
            if not schema.equals(SCHEMA_WITH_ATTRIBUTES if self.facts.has_attributes else SCHEMA):
                raise ArchiveCorrupt(self.url, f"its columns are {schema.names}")
            self._first = [self._bound(group, "offset", "min") for group in range(self.groups)]
            self._last = [self._bound(group, "offset", "max") for group in range(self.groups)]
        except BaseException:
            stream.close()
            raise
        self._stream = stream

    def _decode_again(self, work: Callable[[], T], start: int | None, length: int) -> T:
        """Do ``work`` a second time, on the file opened again.

        Args:
            work: Opens the file, and decodes it.
            start: Position of the first byte that ``work`` decodes; None: the bytes are at the file's end.
            length: How many bytes ``work`` decodes.

        Raises:
            ArchiveUnavailable: The bytes cannot be read.
            ArchiveCorrupt: The bytes can be read, but they do not decode.
        """
        try:
            return work()
        except _UNDECODABLE as cause:
            _raise_unless_decoding(self.url, cause)
            _read_bytes(self.url, start, length)
            raise ArchiveCorrupt(self.url, f"it is damaged: {cause}") from cause

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    @property
    def groups(self) -> int:
        """How many row groups there are."""
        return int(self._file.metadata.num_row_groups)

    def _bound(self, group: int, column: str, which: str) -> Any:
        statistics = self._file.metadata.row_group(group).column(SCHEMA.names.index(column)).statistics
        if statistics is None or not statistics.has_min_max:
            raise ArchiveCorrupt(self.url, f"its row group {group} does not say its bounds")
        return getattr(statistics, which)

    def _check_record(self, record: ArchivedFile) -> None:
        facts = self.facts
        said = (facts.incarnation, facts.ledgers, facts.record_count, facts.compacted, facts.digest)
        wanted = (
            record.incarnation,
            record.ledgers,
            record.record_count,
            record.compacted,
            record.digest,
        )
        if said != wanted:
            raise ArchiveCorrupt(
                self.url,
                f"it is not the file that was archived: it holds {facts.record_count} records of ledgers "
                f"from {facts.ledgers[0].ledger_id if facts.ledgers else None} on, digest "
                f"{facts.digest.hex()[:16]}, and its record says {record.record_count} and "
                f"{record.digest.hex()[:16]}",
            )

    def bounds(self, group: int) -> tuple[int, int, int]:
        """Return the facts about a group that are in the footer: its first offset, its last offset, its last
        timestamp.

        Searches by offset or by time use these bounds. The timestamp is in milliseconds.
        """
        return self._first[group], self._last[group], int(self._bound(group, "timestamp", "max_raw"))

    def group_of_offset(self, offset: int) -> int:
        """Return the first group with a record at or after an offset; ``groups`` if there is none."""
        return self._first_where(lambda group: self._last[group] >= offset)

    def offset_of_moment(self, when_ms: int) -> int | None:
        """Return the offset of the first record that is not older than a time.

        Args:
            when_ms: The time, in milliseconds since the epoch.

        Returns:
            The offset; None if all records are older.

        Raises:
            ArchiveUnavailable: The file cannot be read.
            ArchiveCorrupt: The file is damaged.
        """
        with _computing(self.url):
            group = self._first_where(
                lambda group: int(self._bound(group, "timestamp", "max_raw")) >= when_ms
            )
            if group == self.groups:
                return None
            table = self._read(group, ["offset", "timestamp"])
            times = table.column("timestamp").cast(pa.int64())
            found = pc.index(pc.greater_equal(times, when_ms), pa.scalar(True)).as_py()
            if found < 0:
                raise ArchiveCorrupt(self.url, f"its row group {group} is older than it says")
            return int(table.column("offset")[found].as_py())

    def offset_of_entry(self, ledger: ArchivedLedger, entry_id: int, slot: int) -> int:
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
        with _computing(self.url):
            for group in range(self.group_of_offset(ledger.first_offset), self.groups):
                if self._first[group] >= ledger.end_offset:
                    break
                table = self._read(group, ["offset", "ledger_id", "entry_id", "slot"])
                rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
                for offset, ledger_id, entry, at in rows:
                    if ledger_id == ledger.ledger_id and (entry, at) >= (entry_id, slot):
                        return int(offset)
        return ledger.end_offset

    def _first_where(self, holds: Callable[[int], bool]) -> int:
        low, high = 0, self.groups
        while low < high:
            middle = (low + high) // 2
            if holds(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _read(self, group: int, columns: list[str] | None = None) -> Any:
        """Read a row group, or some of its columns.

        Raises:
            ArchiveUnavailable: The file cannot be read.
            ArchiveCorrupt: The file is damaged, or another file has replaced it.
        """
        try:
            return self._file.read_row_group(group, columns=columns, use_threads=False)
        except _UNDECODABLE as cause:
            _raise_unless_decoding(self.url, cause)
        before = self.facts
        with suppress(OSError):  # The stream may be broken. Only the file opened again counts.
            self._stream.close()

        def anew() -> Any:
            self._open()
            if self.facts != before:
                raise ArchiveCorrupt(self.url, "another file replaced it while it was read")
            return self._file.read_row_group(group, columns=columns, use_threads=False)

        return self._decode_again(anew, *self._bytes_of(group))

    def _bytes_of(self, group: int) -> tuple[int, int]:
        """Return where a row group begins and how long it is, as the footer says."""
        with _computing(self.url):
            row_group = self._file.metadata.row_group(group)
            columns = [row_group.column(at) for at in range(row_group.num_columns)]
            starts = [each.dictionary_page_offset or each.data_page_offset for each in columns]
            return min(starts), sum(each.total_compressed_size for each in columns)

    def read_table(self, group: int) -> Any:
        """Return a row group as an Arrow table.

        Raises:
            ArchiveUnavailable: The file cannot be read.
            ArchiveCorrupt: The file is damaged.
        """
        return self._read(group)

    def read_columns(self, group: int, columns: Collection[str]) -> Any:
        """Return some columns of a row group as an Arrow table, without a Python object for a record.

        Args:
            group: The row group.
            columns: The names of the columns. A column that the file does not have is left out. ``offset`` is
                always read, and checked.

        Raises:
            ArchiveUnavailable: The file cannot be read.
            ArchiveCorrupt: The file is damaged.
        """
        names = [name for name in self._file.schema_arrow.names if name == "offset" or name in columns]
        table = self._read(group, names)
        first, last = self._first[group], self._last[group]
        with _computing(self.url):
            offsets = column_of(table, "offset")
            is_right = (
                len(offsets) > 0
                and (offsets[0].as_py(), offsets[-1].as_py()) == (first, last)
                and pc.all(pc.greater(offsets[1:], offsets[:-1]), min_count=0).as_py()
            )
        if not is_right or (not self.facts.compacted and len(offsets) != last - first + 1):
            raise ArchiveCorrupt(
                self.url, f"its row group {group} does not hold the offsets that its header names"
            )
        return table

    def read_group(self, group: int) -> list[RecordBatch]:
        """Return a row group as batches, each of consecutive records of one entry.

        Raises:
            ArchiveUnavailable: The file cannot be read.
            ArchiveCorrupt: The file is damaged.
        """
        table = self._read(group)
        with _computing(self.url):
            batches = record_batches_of(table)
        if not batches or (batches[0].first_offset, batches[-1].end_offset - 1) != (
            self._first[group],
            self._last[group],
        ):
            raise ArchiveCorrupt(
                self.url, f"its row group {group} does not hold the offsets that its header names"
            )
        return batches


class FileCheck:
    """Reads a whole file, one row group at a time, and checks it against its footer.

    It checks the number of rows, their order, the bounds of each group and the digest. For one thread at a
    time. Call ``step`` until it returns False, then ``end``.

    Args:
        record: The record that names the file.

    Raises:
        ArchiveUnavailable: The file is not there or cannot be read.
        ArchiveCorrupt: The file is damaged, or it is not the one that was recorded.
    """

    def __init__(self, record: ArchivedFile) -> None:
        self._file = ArchiveFile(record)
        self._url = url = record.file
        self._digest = RecordsDigest()
        self._count = self._group = 0
        with _computing(url):  # A damaged footer may name no ledger.
            self._offset = self._file.facts.ledgers[0].first_offset - 1
        self._ms = 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def step(self) -> bool:
        """Check one more group; return False if all groups are checked.

        Raises:
            ArchiveUnavailable: The file cannot be read.
            ArchiveCorrupt: The group is damaged, or its records are not in order.
        """
        if self._group == self._file.groups:
            return False
        table = self._file.read_table(self._group)
        self._group += 1
        with _computing(self._url):
            self._digest.add(table)
        self._count += table.num_rows
        compacted = self._file.facts.compacted
        with _computing(self._url):
            offsets = column_of(table, "offset")
            steps = pc.subtract(offsets[1:], offsets[:-1])
            grows = pc.all(pc.greater(steps, 0) if compacted else pc.equal(steps, 1), min_count=0).as_py()
            times = column_of(table, "timestamp").cast(pa.int64())
            is_ordered = pc.all(pc.greater_equal(times[1:], times[:-1]), min_count=0).as_py()
            first, first_ms = offsets[0].as_py(), times[0].as_py()
            last, last_ms = offsets[-1].as_py(), times[-1].as_py()
            has_bounds = self._file.bounds(self._group - 1) == (first, last, last_ms)
        begins = first > self._offset if compacted else first == self._offset + 1
        if not has_bounds:
            raise ArchiveCorrupt(self._url, f"its row group {self._group - 1} is not within its bounds")
        if not (begins and grows and is_ordered and first_ms >= self._ms):
            raise ArchiveCorrupt(self._url, f"its records are not in order around offset {first}")
        self._offset, self._ms = last, last_ms
        return True

    def end(self) -> Facts:
        """Check the number of records and the digest, after the last group.

        Returns:
            The file's description of itself, now checked.

        Raises:
            ArchiveCorrupt: The records do not match the footer.
        """
        facts = self._file.facts
        if self._count != facts.record_count or self._digest.digest() != facts.digest:
            raise ArchiveCorrupt(self._url, f"its {self._count} records do not match its digest")
        end = facts.ledgers[-1].end_offset
        if self._offset >= end or (not facts.compacted and self._offset + 1 != end):
            raise ArchiveCorrupt(self._url, f"it ends with offset {self._offset} and says {end - 1}")
        return facts
