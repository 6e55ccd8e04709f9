"""An archived part of a log as a Parquet file (formats 1 and 2; docs/ARCHIVE.md describes them).

    offset     int64                     without gaps, unless the file is compacted
    timestamp  timestamp[ms, UTC]        the leader's wall clock; it never decreases
    value      binary                    the record
    ledger_id  int64                     the record's position is (ledger_id, entry_id, slot)
    entry_id   int64
    slot       int32
    epoch      int64                     of the leader that appended the record

If a record has a key or headers, its file has format 2 and two more columns. Only these columns have nulls:

    key        binary                    null: the record has none
    headers    list of (name, value)     a text and bytes; null: the record has none

Each row group then has a Bloom filter of its keys, if the writer's pyarrow can make one. Readers that look
for a key, Spark's for example, skip the groups that do not have it. Format and digest do not depend on it.

Rows are sorted by ``offset``. A row group has about ``limits.ARCHIVE_GROUP_ROWS`` rows
or ``limits.ARCHIVE_GROUP_BYTES`` bytes of records; a reader holds one group at a time. Pages are compressed
with zstd and carry checksums, which every read verifies. Any program that reads Parquet reads the file as a
table.

The key-value metadata in the footer describe the file (all values are text):

    ledgerlog.format       1 or 2                ledgerlog.count      rows
    ledgerlog.log          the log's name        ledgerlog.compacted  true or false
    ledgerlog.incarnation                        ledgerlog.digest     64 hexadecimal digits
    ledgerlog.ledgers      JSON [[id, first offset, end offset, last entry], ...]

**The digest** covers the records, not the bytes of the file. Files with the same records therefore have the
same digest, even if different jobs wrote them. The digest is the SHA-256 of eight SHA-256 digests, one after
the other. The first seven cover one column each, as little-endian 64-bit numbers: offset, timestamp
(milliseconds), ledger_id, entry_id, slot, epoch, and the lengths of the values. The eighth covers the joined
values. If a record has a key or headers, four more digests follow. They cover the lengths of the keys (-1: no
key), the joined keys, the lengths of the headers as bytes (``model.attributes``), and these bytes joined. The
end of the file has a digest of its own (``archive.footer``).

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

import hashlib
import inspect
import json
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ledgerlog.archive.destinations import Destination, file_name, files_as_errors, open_input
from ledgerlog.archive.footer import digest_of, read_end
from ledgerlog.errors import ArchiveCorrupt, ArchiveUnavailable, IncompatibleVersion, LedgerLogError
from ledgerlog.limits import ARCHIVE_GROUP_BYTES, ARCHIVE_GROUP_ROWS, MIB
from ledgerlog.model.archive import ArchivedFile, ArchivedLedger
from ledgerlog.model.attributes import Headers, encode_headers
from ledgerlog.model.record import RecordBatch

__all__ = [
    "SCHEMA",
    "SCHEMA_WITH_ATTRIBUTES",
    "ArchiveFile",
    "ArchiveWriter",
    "AttributesFound",
    "Facts",
    "FileCheck",
]

T = TypeVar("T")

FORMAT = "1"
FORMAT_WITH_ATTRIBUTES = "2"

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("slot", pa.int32(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
    ]
)

_PAIR = pa.struct(
    [pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
_HEADERS = pa.list_(pa.field("element", _PAIR, nullable=False))

SCHEMA_WITH_ATTRIBUTES = pa.schema([*SCHEMA, pa.field("key", pa.binary()), pa.field("headers", _HEADERS)])

_NUMBERS = ("offset", "timestamp", "ledger_id", "entry_id", "slot", "epoch")
_ENCODED = ("timestamp", "ledger_id", "entry_id", "epoch")
"""Columns with few different values. The file stores these columns as dictionaries."""

_KEY_FILTER: dict[str, Any] = (
    {"bloom_filter_options": {"key": {"ndv": ARCHIVE_GROUP_ROWS, "fpp": 0.05}}}
    if "bloom_filter_options" in inspect.signature(pq.write_table).parameters
    else {}
)
"""A Bloom filter of the keys of each row group, if this pyarrow writes such filters. pyarrow makes the filter
smaller if a group has fewer different keys."""

_READ_BYTES = MIB
_FOOTER_BYTES = MIB
_REREAD_BYTES_MAX = 8 * ARCHIVE_GROUP_BYTES
"""How many bytes ``_read_bytes`` reads at most."""


@attrs.frozen(kw_only=True)
class Facts:
    """The description of a file in its footer."""

    log: str
    """The name of the log."""
    incarnation: int
    """The incarnation of the log."""
    ledgers: tuple[ArchivedLedger, ...]
    """The ledgers that the file holds, in the order of the log."""
    record_count: int
    """How many records the file has."""
    compacted: bool
    """Whether compaction may have dropped records."""
    digest: bytes
    """The digest of the records."""
    has_attributes: bool = False
    """Whether the file has columns for keys and headers."""


class AttributesFound(LedgerLogError):
    """A record has a key or headers, but the file has no columns for keys and headers. Begin a new file that
    has these columns."""


# --- the digest -----------------------------------------------------------------------------------


class _Digest:
    """The digest of records. Add the records table by table."""

    def __init__(self) -> None:
        self._columns = {name: hashlib.sha256() for name in (*_NUMBERS, "length", "value")}
        self._attributes = {name: hashlib.sha256() for name in _ATTRIBUTE_DIGESTS}
        self._has_attributes = False
        self._rows_without = 0

    def add(self, table: Any) -> None:
        """Add the records of a table."""
        for name in _NUMBERS:
            self._columns[name].update(_int64_bytes(_column(table, name)))
        values = _column(table, "value")
        self._columns["length"].update(_int64_bytes(pc.binary_length(values)))
        self._columns["value"].update(_value_bytes(values))
        if "key" in table.column_names and not _is_without_attributes(table):
            self._add_attributes(table)
        else:
            self._rows_without += table.num_rows

    def _add_attributes(self, table: Any) -> None:
        self._pass_rows_without()
        self._has_attributes = True
        keys = _column(table, "key").to_pylist()
        headers = [encode_headers(each) for each in _headers_of(_column(table, "headers"))]
        for name, items in (("key", keys), ("headers", headers)):
            lengths = array("q", [-1 if item is None else len(item) for item in items])
            self._attributes[f"{name} length"].update(lengths)
            self._attributes[name].update(b"".join(item for item in items if item))

    def _pass_rows_without(self) -> None:
        """Add the lengths for the last rows, which had no keys and headers and are not in the digest yet."""
        self._attributes["key length"].update(array("q", (-1,)) * self._rows_without)
        self._attributes["headers length"].update(bytes(8 * self._rows_without))
        self._rows_without = 0

    def digest(self) -> bytes:
        """Return the digest of all records so far."""
        parts = list(self._columns.values())
        if self._has_attributes:
            self._pass_rows_without()
            parts += self._attributes.values()
        return hashlib.sha256(b"".join(each.digest() for each in parts)).digest()


_ATTRIBUTE_DIGESTS = ("key length", "key", "headers length", "headers")


def _is_without_attributes(table: Any) -> bool:
    return all(_column(table, name).null_count == table.num_rows for name in ("key", "headers"))


def _headers_of(column: Any) -> list[Headers]:
    """Return the headers of each record from their column."""
    return [
        tuple((pair["name"], pair["value"]) for pair in pairs) if pairs else ()
        for pairs in column.to_pylist()
    ]


def _column(table: Any, name: str) -> Any:
    column = table.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _int64_bytes(numbers: Any) -> memoryview:
    if numbers.type != pa.int64():
        numbers = numbers.cast(pa.int64())
    start = 8 * numbers.offset
    return memoryview(numbers.buffers()[1] or b"")[start : start + 8 * len(numbers)]


def _value_bytes(values: Any) -> memoryview:
    _, offsets, data = values.buffers()
    if not len(values) or data is None:
        return memoryview(b"")
    bounds = memoryview(offsets).cast("i")
    return memoryview(data)[bounds[values.offset] : bounds[values.offset + len(values)]]


# --- writing --------------------------------------------------------------------------------------


class ArchiveWriter:
    """Writes one file, from records in the order of their offsets. For one thread at a time.

    Args:
        destination: The destination of the file.
        directory: The log's directory at the destination.
        log: The name of the log.
        incarnation: The incarnation of the log.
        ledgers: The ledgers that the file holds, in the order of the log.
        compacted: Whether compaction may have dropped records.
        nonce: Hexadecimal digits that no other file has in its name.
        has_attributes: Whether the file gets columns for keys and headers.

    Raises:
        ArchiveUnavailable: The file cannot be created.
    """

    def __init__(
        self,
        destination: Destination,
        *,
        directory: str,
        log: str,
        incarnation: int,
        ledgers: Sequence[ArchivedLedger],
        compacted: bool,
        nonce: str,
        has_attributes: bool = False,
    ) -> None:
        self._has_attributes = has_attributes
        self._schema = SCHEMA_WITH_ATTRIBUTES if has_attributes else SCHEMA
        self._destination = destination
        self._log = log
        self._incarnation = incarnation
        self._ledgers = tuple(ledgers)
        self._compacted = compacted
        self._nonce = nonce
        self._directory = directory
        self._temporary = f"{self._directory}/.{ledgers[0].first_offset:020d}.{nonce}.tmp"
        self._digest = _Digest()
        self._count = 0
        self.file_bytes = 0
        """How many bytes were written so far."""
        self._gathered: list[RecordBatch] = []
        self._rows = self._bytes = 0
        self.end = b""
        """The digest of the file's end as it was written (``archive.footer``), once it is closed."""
        self._sink = _Sink(destination.create(self._temporary))
        try:
            with self._translated():
                self._writer = pq.ParquetWriter(
                    self._sink,
                    self._schema,
                    compression="zstd",
                    use_dictionary=list(_ENCODED),
                    write_statistics=[
                        name for name in self._schema.names if name not in ("value", "headers")
                    ],
                    write_page_checksum=True,
                    **(_KEY_FILTER if has_attributes else {}),
                )
        except ArchiveUnavailable:
            self._delete_unfinished(self._sink)
            raise

    def _translated(self) -> Any:
        return files_as_errors(self._destination.url_of(self._temporary))

    def add(self, batches: Sequence[RecordBatch]) -> None:
        """Add the next records.

        Raises:
            ArchiveUnavailable: The file system failed. Call ``discard``.
            AttributesFound: A record has a key or headers, and the file has no columns for them. Call
                ``discard`` and start again.
        """
        for batch in batches:
            if not self._has_attributes and batch.has_attributes:
                raise AttributesFound
            self._gathered.append(batch)
            self._rows += len(batch)
            self._bytes += batch.byte_length
            if self._rows >= ARCHIVE_GROUP_ROWS or self._bytes >= ARCHIVE_GROUP_BYTES:
                self._write_group()

    def _write_group(self) -> None:
        batches, self._gathered = self._gathered, []
        self._rows = self._bytes = 0
        table = _table_of(batches, self._schema)
        self._digest.add(table)
        self._count += table.num_rows
        with self._translated():
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self.file_bytes = self._sink.tell()

    def close(self) -> Facts:
        """End the file. It does not have its final name yet.

        Returns:
            The file's own description.

        Raises:
            ArchiveUnavailable: The file system failed. Call ``discard``.
        """
        if self._gathered:
            self._write_group()
        facts = Facts(
            log=self._log,
            incarnation=self._incarnation,
            ledgers=self._ledgers,
            record_count=self._count,
            compacted=self._compacted,
            digest=self._digest.digest(),
            has_attributes=self._has_attributes,
        )
        with self._translated():
            self._writer.add_key_value_metadata(_footer(facts))
            self._sink.keeps = True
            self._writer.close()
            self._sink.close()
        self.end = digest_of(read_end(pa.BufferReader(bytes(self._sink.kept))))
        return facts

    def publish(self, facts: Facts) -> str:
        """Give the closed file its final name.

        Args:
            facts: The result of ``close``.

        Returns:
            The URL of the file.

        Raises:
            ArchiveUnavailable: The file system failed. The file may or may not have its final name.
        """
        first, end = self._ledgers[0].first_offset, self._ledgers[-1].end_offset
        name = f"{self._directory}/{file_name(first, end, facts.digest, self._nonce)}"
        self._destination.publish(self._temporary, name)
        return self._destination.url_of(name)

    def discard(self) -> None:
        """Delete the unfinished file.

        Raises:
            ArchiveUnavailable: The file system failed. The file may be gone or not.
        """
        self._delete_unfinished(self._writer, self._sink)

    def _delete_unfinished(self, *parts: Any) -> None:
        for part in parts:
            # Closing the file writes buffered bytes. That fails on a full disk. Delete the file anyway.
            with suppress(OSError, pa.ArrowException):
                part.close()
        self._destination.delete(self._temporary)


class _Sink:
    """A file that is written, and what was written last. pyarrow calls its methods."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.keeps = False
        """Whether the next bytes are kept in memory, too."""
        self.kept = bytearray()

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def write(self, data: Any) -> None:
        self._stream.write(data)
        if self.keeps:
            self.kept += data

    def tell(self) -> int:
        return int(self._stream.tell())

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def _table_of(batches: Sequence[RecordBatch], schema: Any) -> Any:
    columns: dict[str, array[int]] = {name: array("q") for name in _NUMBERS}
    values: list[bytes] = []
    for batch in batches:
        count = len(batch)
        columns["offset"].extend(range(batch.first_offset, batch.end_offset))
        columns["slot"].extend(range(batch.first_slot, batch.first_slot + count))
        for name, value in (
            ("timestamp", batch.timestamp_ms),
            ("ledger_id", batch.ledger_id),
            ("entry_id", batch.entry_id),
            ("epoch", batch.epoch),
        ):
            columns[name].extend(array("q", (value,)) * count)
        values.extend(batch.payloads)
    arrays = {
        name: pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(column)])
        for name, column in columns.items()
    }
    arrays["value"] = pa.array(values, type=pa.binary())
    if "key" in schema.names:
        keys: list[bytes | None] = []
        headers: list[list[dict[str, Any]] | None] = []
        for batch in batches:
            keys += [None] * len(batch) if batch.keys is None else batch.keys
            for pairs in [()] * len(batch) if batch.headers is None else batch.headers:
                headers.append([{"name": name, "value": value} for name, value in pairs] or None)
        arrays["key"] = pa.array(keys, type=pa.binary())
        arrays["headers"] = pa.array(headers, type=_HEADERS)
    return pa.Table.from_arrays([arrays[field.name].cast(field.type) for field in schema], schema=schema)


def _footer(facts: Facts) -> dict[str, str]:
    return {
        "ledgerlog.format": FORMAT_WITH_ATTRIBUTES if facts.has_attributes else FORMAT,
        "ledgerlog.log": facts.log,
        "ledgerlog.incarnation": str(facts.incarnation),
        "ledgerlog.ledgers": json.dumps([list(attrs.astuple(ledger)) for ledger in facts.ledgers]),
        "ledgerlog.count": str(facts.record_count),
        "ledgerlog.compacted": "true" if facts.compacted else "false",
        "ledgerlog.digest": facts.digest.hex(),
    }


# --- reading --------------------------------------------------------------------------------------


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
        url: The URL of the file.
        record: The record that names the file. The file must be the one that was recorded. None: accept any
            archived file.

    Raises:
        ArchiveUnavailable: The file is not there or cannot be read.
        ArchiveCorrupt: The file is damaged, or it is not the one that was recorded.
    """

    def __init__(self, url: str, record: ArchivedFile | None = None) -> None:
        self.url = url
        self._record = record
        try:
            self._open()
        except _UNDECODABLE as cause:
            _raise_unless_decoding(url, cause)
            self._decode_again(self._open, None, _FOOTER_BYTES)

    def _open(self) -> None:
        """Open the file and read its footer."""
        stream = open_input(self.url if self._record is None else self._record)
        try:
            end = read_end(stream)
            if self._record is not None and digest_of(end) != self._record.footer:
                raise ValueError("its end is damaged, or it is not the file that was archived")
            self._file = pq.ParquetFile(
                stream,
                metadata=pq.read_metadata(pa.BufferReader(end)),
                page_checksum_verification=True,
                pre_buffer=False,
            )
            self.facts = self._facts()
            if self._record is not None:
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

    def _facts(self) -> Facts:
        said = self._file.metadata.metadata or {}

        def word(name: str) -> str:
            value = said.get(f"ledgerlog.{name}".encode())
            if value is None:
                raise ArchiveCorrupt(self.url, f"it is not an archive of a log: it does not name its {name}")
            return str(value.decode())

        found, ours = word("format"), (int(FORMAT), int(FORMAT_WITH_ATTRIBUTES))
        if found.isdecimal() and found.isascii() and len(found) < 6 and int(found) > ours[1]:
            version = int(found)
            raise IncompatibleVersion(f"archive file {self.url}", (version, version), ours)
        if found not in (FORMAT, FORMAT_WITH_ATTRIBUTES):
            raise ArchiveCorrupt(
                self.url, f"format {found}; this version reads formats {FORMAT} and {FORMAT_WITH_ATTRIBUTES}"
            )
        return Facts(
            log=word("log"),
            incarnation=int(word("incarnation")),
            ledgers=tuple(
                ArchivedLedger(ledger_id=a, first_offset=b, end_offset=c, last_entry=d)
                for a, b, c, d in json.loads(word("ledgers"))
            ),
            record_count=int(word("count")),
            compacted=word("compacted") == "true",
            digest=bytes.fromhex(word("digest")),
            has_attributes=found == FORMAT_WITH_ATTRIBUTES,
        )

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
            offsets = _column(table, "offset")
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
            batches = _batches_of(table)
        if not batches or (batches[0].first_offset, batches[-1].end_offset - 1) != (
            self._first[group],
            self._last[group],
        ):
            raise ArchiveCorrupt(
                self.url, f"its row group {group} does not hold the offsets that its header names"
            )
        return batches


def _batches_of(table: Any) -> list[RecordBatch]:
    rows = table.num_rows
    if not rows:
        return []
    columns = {name: _column(table, name) for name in table.column_names}
    breaks = None
    for name, step in (("offset", 1), ("slot", 1), ("entry_id", 0), ("ledger_id", 0)):
        column = columns[name]
        changed = pc.not_equal(pc.subtract(column[1:], column[:-1]), step)
        breaks = changed if breaks is None else pc.or_(breaks, changed)
    starts = [0, *(at + 1 for at in pc.indices_nonzero(breaks).to_pylist())]
    at = pa.array(starts)
    values = columns["value"].to_pylist()
    keys = columns["key"].to_pylist() if "key" in columns else None
    headers = _headers_of(columns["headers"]) if "headers" in columns else None
    firsts = {name: columns[name].take(at).cast(pa.int64()).to_pylist() for name in _NUMBERS}
    batches = []
    for index, start in enumerate(starts):
        stop = starts[index + 1] if index + 1 < len(starts) else rows
        batches.append(
            RecordBatch(
                ledger_id=firsts["ledger_id"][index],
                entry_id=firsts["entry_id"][index],
                first_offset=firsts["offset"][index],
                first_slot=firsts["slot"][index],
                epoch=firsts["epoch"][index],
                timestamp_ms=firsts["timestamp"][index],
                payloads=values[start:stop],
                keys=None if keys is None else keys[start:stop],
                headers=None if headers is None else headers[start:stop],
            )
        )
    return batches


class FileCheck:
    """Reads a whole file, one row group at a time, and checks it against its footer.

    It checks the number of rows, their order, the bounds of each group and the digest. For one thread at a
    time. Call ``step`` until it returns False, then ``end``.

    Args:
        url: The URL of the file.
        record: The record that names the file, as for ``ArchiveFile``.

    Raises:
        ArchiveUnavailable: The file is not there or cannot be read.
        ArchiveCorrupt: The file is damaged, or it is not the one that was recorded.
    """

    def __init__(self, url: str, record: ArchivedFile | None = None) -> None:
        self._file = ArchiveFile(url, record)
        self._url = url
        self._digest = _Digest()
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
            offsets = _column(table, "offset")
            steps = pc.subtract(offsets[1:], offsets[:-1])
            grows = pc.all(pc.greater(steps, 0) if compacted else pc.equal(steps, 1), min_count=0).as_py()
            times = _column(table, "timestamp").cast(pa.int64())
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
