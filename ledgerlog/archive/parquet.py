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

``archive.file_writer`` writes such files, and ``archive.file_reader`` reads and checks them.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from ledgerlog.errors import ArchiveCorrupt, IncompatibleVersion
from ledgerlog.model.archive import ArchivedLedger
from ledgerlog.model.attributes import Headers, encode_headers
from ledgerlog.model.record import RecordBatch

__all__ = [
    "SCHEMA",
    "SCHEMA_WITH_ATTRIBUTES",
    "Facts",
    "RecordsDigest",
    "record_batches_of",
    "column_of",
    "facts_of",
    "metadata_of",
    "table_of",
]

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


# --- the description of a file --------------------------------------------------------------------


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


def metadata_of(facts: Facts) -> dict[str, str]:
    """Return the key-value metadata of a file."""
    return {
        "ledgerlog.format": FORMAT_WITH_ATTRIBUTES if facts.has_attributes else FORMAT,
        "ledgerlog.log": facts.log,
        "ledgerlog.incarnation": str(facts.incarnation),
        "ledgerlog.ledgers": json.dumps([list(attrs.astuple(ledger)) for ledger in facts.ledgers]),
        "ledgerlog.count": str(facts.record_count),
        "ledgerlog.compacted": "true" if facts.compacted else "false",
        "ledgerlog.digest": facts.digest.hex(),
    }


def facts_of(url: str, metadata: Mapping[bytes, bytes]) -> Facts:
    """Decode the key-value metadata of a file.

    Raises:
        ArchiveCorrupt: It is not the metadata of an archived file. Damaged values raise other errors, too, as
            decoding does (``archive.file_reader``).
        IncompatibleVersion: The file has a later format.
    """

    def word(name: str) -> str:
        value = metadata.get(f"ledgerlog.{name}".encode())
        if value is None:
            raise ArchiveCorrupt(url, f"it is not an archive of a log: it does not name its {name}")
        return value.decode()

    found, ours = word("format"), (int(FORMAT), int(FORMAT_WITH_ATTRIBUTES))
    if found.isdecimal() and found.isascii() and len(found) < 6 and int(found) > ours[1]:
        version = int(found)
        raise IncompatibleVersion(f"archive file {url}", (version, version), ours)
    if found not in (FORMAT, FORMAT_WITH_ATTRIBUTES):
        raise ArchiveCorrupt(
            url, f"format {found}; this version reads formats {FORMAT} and {FORMAT_WITH_ATTRIBUTES}"
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


# --- the digest -----------------------------------------------------------------------------------


class RecordsDigest:
    """The digest of records. Add the records table by table."""

    def __init__(self) -> None:
        self._columns = {name: hashlib.sha256() for name in (*_NUMBERS, "length", "value")}
        self._attributes = {name: hashlib.sha256() for name in _ATTRIBUTE_DIGESTS}
        self._has_attributes = False
        self._rows_without = 0

    def add(self, table: Any) -> None:
        """Add the records of a table."""
        for name in _NUMBERS:
            self._columns[name].update(_int64_bytes(column_of(table, name)))
        values = column_of(table, "value")
        self._columns["length"].update(_int64_bytes(pc.binary_length(values)))
        self._columns["value"].update(_value_bytes(values))
        if "key" in table.column_names and not _is_without_attributes(table):
            self._add_attributes(table)
        else:
            self._rows_without += table.num_rows

    def _add_attributes(self, table: Any) -> None:
        self._pass_rows_without()
        self._has_attributes = True
        keys = column_of(table, "key").to_pylist()
        headers = [encode_headers(each) for each in _headers_of(column_of(table, "headers"))]
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
    return all(column_of(table, name).null_count == table.num_rows for name in ("key", "headers"))


def _headers_of(column: Any) -> list[Headers]:
    """Return the headers of each record from their column."""
    return [
        tuple((pair["name"], pair["value"]) for pair in pairs) if pairs else ()
        for pairs in column.to_pylist()
    ]


def column_of(table: Any, name: str) -> Any:
    """Return a column of a table as one array."""
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


# --- records and tables ---------------------------------------------------------------------------


def table_of(batches: Sequence[RecordBatch], schema: Any) -> Any:
    """Return the records of some batches as an Arrow table."""
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


def record_batches_of(table: Any) -> list[RecordBatch]:
    """Return the records of an Arrow table as batches, each of consecutive records of one entry."""
    rows = table.num_rows
    if not rows:
        return []
    columns = {name: column_of(table, name) for name in table.column_names}
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
