"""The columns of a table of records. No other module makes Arrow batches from records.

    log        string      the log's name
    offset     long        the record's number in the log
    timestamp  timestamp   the leader's wall clock when it appended the record, in milliseconds
    value      binary      the record's bytes
    ledger_id  long        the ledger that the record lies in
    entry_id   long        the entry that the record lies in
    epoch      long        the epoch of the leader that appended the record
    key        binary      the record's key; null if it has none
    headers    array       of structs of a name (key) and a value, as Kafka's source has them; null if the
                           record has none. Only with the option includeHeaders

With your own schema you may ask for any of these columns, in any order. This module makes only the columns of
the schema; there is no other pruning. Spark compares the schema of the batches with the declared schema in
every detail: names, order, nullability, the time zone UTC. So this module derives the Arrow schema from the
declared schema alone.

Entries arrive as they were written, with the bytes of their records joined. This module collects entries
until there are ``ROWS_PER_BATCH`` rows or ``BYTES_PER_BATCH`` bytes, and then turns them into columns
together. It makes no Python object for a single row, except for headers.

Rows of archived files arrive in Arrow's columns (``ArchivedRows``), and stay in them. If a query asks only
for ``log`` and ``offset``, only ranges of offsets arrive (``OffsetRange``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ledgerlog.errors import EntryCorrupt, InvalidArgument
from ledgerlog.model.attributes import decode_headers
from ledgerlog.model.record import PackedBatch, PackedColumn

__all__ = [
    "BYTES_PER_BATCH",
    "COLUMNS",
    "DECLARED",
    "DECLARED_WITH_HEADERS",
    "ROWS_PER_BATCH",
    "ArchivedRows",
    "ColumnTypes",
    "Gathered",
    "OffsetRange",
    "Scanned",
    "arrow_schema",
    "batches_of",
]

ROWS_PER_BATCH = 16 * 1024
BYTES_PER_BATCH = 4 * 1024 * 1024

_BARE_ROWS = 2**30
"""The most rows of a batch without columns. Spark counts the rows of a batch in 32 bits."""

DECLARED = (
    "log STRING NOT NULL, offset LONG NOT NULL, timestamp TIMESTAMP NOT NULL, value BINARY NOT NULL, "
    "ledger_id LONG NOT NULL, entry_id LONG NOT NULL, epoch LONG NOT NULL, key BINARY"
)
"""The columns of a table of records, if its reader declares no schema."""

DECLARED_WITH_HEADERS = f"{DECLARED}, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
"""The columns of ``DECLARED``, and the column ``headers``."""

_LAST_MS = 253_402_300_799_999
"""The end of the year 9999, the last time that Spark can show. It replaces every later timestamp."""

Gathered = list[tuple[str, PackedBatch]]
"""Entries, each with the name of its log."""


@attrs.frozen
class ArchivedRows:
    """Rows of an archived file, in order."""

    log: str
    """The name of the log."""
    table: Any
    """The columns of the file that the query needs, as ``archive.reader.ArchiveReader.tables`` gives them."""

    @property
    def last(self) -> int:
        """The offset of the last row. There must be a row."""
        return int(self.table.column("offset")[-1].as_py())

    def between(self, start: int, end: int) -> ArchivedRows:
        """Return the rows with offsets from ``start`` to below ``end``."""
        low, high = np.searchsorted(self.table.column("offset").to_numpy(), (start, end))
        return ArchivedRows(self.log, self.table.slice(low, max(0, high - low)))

    def slices(self) -> Iterator[ArchivedRows]:
        """Divide the rows so that each part makes one Arrow batch. No part is empty."""
        rows = self.table.num_rows
        count = max(-(-rows // ROWS_PER_BATCH), min(rows, -(-self.table.nbytes // BYTES_PER_BATCH)))
        for at in range(count):
            low, high = rows * at // count, rows * (at + 1) // count
            yield ArchivedRows(self.log, self.table.slice(low, high - low))


@attrs.frozen
class OffsetRange:
    """Consecutive rows, from ``start`` to below ``end``. Only their log and their offsets are known."""

    log: str
    start: int
    end: int

    COLUMNS = frozenset(("log", "offset"))
    """The columns that such rows have."""


Scanned = Gathered | ArchivedRows | OffsetRange
"""The results of a scan, in order: entries, rows of an archived file, or a range of offsets."""

ColumnTypes = Mapping[str, tuple[DataType, Any]]
"""The columns of a source: the Spark type and the Arrow type of each."""

_TYPES: ColumnTypes = {
    "log": (StringType(), pa.string()),
    "offset": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "value": (BinaryType(), pa.binary()),
    "ledger_id": (LongType(), pa.int64()),
    "entry_id": (LongType(), pa.int64()),
    "epoch": (LongType(), pa.int64()),
    "key": (BinaryType(), pa.binary()),
    "headers": (
        ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
    ),
}

COLUMNS = frozenset(_TYPES)
"""The names of all columns of a table of records."""


def arrow_schema(declared: StructType, columns: ColumnTypes = _TYPES) -> Any:
    """Return the Arrow schema for a declared schema.

    Args:
        declared: The schema that the reader asks for.
        columns: The columns that exist; by default the columns of a table of records.

    Raises:
        InvalidArgument: ``declared`` has a column that does not exist, or that has another type, or that is
            declared NOT NULL although records may lack it.
    """
    fields = []
    for field in declared.fields:
        known = columns.get(field.name)
        if known is None:
            raise InvalidArgument(f"there is no column {field.name!r}; there are {', '.join(columns)}")
        if field.dataType != known[0]:
            raise InvalidArgument(
                f"the column {field.name} is {known[0].simpleString()}, not {field.dataType.simpleString()}"
            )
        if field.name in ("key", "headers") and not field.nullable:
            raise InvalidArgument(f"the column {field.name} is null for some records: declare it nullable")
        fields.append(pa.field(field.name, known[1], nullable=field.nullable))
    return pa.schema(fields)


def batches_of(fetched: Iterable[Scanned], schema: Any) -> Iterator[Any]:
    """Make Arrow batches of records, in their order. No batch is empty.

    Args:
        fetched: The records, in their order.
        schema: The result of ``arrow_schema``.
    """
    gathered: Gathered = []
    rows = size = 0
    for entries in fetched:
        if not isinstance(entries, list):
            if gathered:
                yield _record_batch(gathered, rows, schema)
                gathered, rows, size = [], 0, 0
            if isinstance(entries, ArchivedRows):
                yield _archived_batch(entries, schema)
            else:
                yield from _range_batches(entries, schema)
            continue
        for log, batch in entries:
            gathered.append((log, batch))
            rows += len(batch)
            # Count the bytes, even if no column needs them: memory holds them until the batch is made.
            size += batch.byte_length
            if rows >= ROWS_PER_BATCH or size >= BYTES_PER_BATCH:
                yield _record_batch(gathered, rows, schema)
                gathered, rows, size = [], 0, 0
    if gathered:
        yield _record_batch(gathered, rows, schema)


def _record_batch(gathered: Gathered, rows: int, schema: Any) -> Any:
    if not schema.names:
        return _bare_batch(rows)
    counts = np.fromiter((len(batch) for _, batch in gathered), dtype=np.int64, count=len(gathered))
    columns = [_COLUMNS[name](gathered, counts) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _bare_batch(rows: int) -> Any:
    """Make a batch without columns. It still says how many rows it has."""
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))


def _range_batches(rows: OffsetRange, schema: Any) -> Iterator[Any]:
    step = BYTES_PER_BATCH // (16 + len(rows.log.encode())) if schema.names else _BARE_ROWS
    for start in range(rows.start, rows.end, step):
        end = min(rows.end, start + step)
        if not schema.names:
            yield _bare_batch(end - start)
            continue
        offsets = np.arange(start, end, dtype=np.int64)
        columns = {"offset": pa.array(offsets), "log": pa.repeat(pa.scalar(rows.log), len(offsets))}
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _archived_batch(rows: ArchivedRows, schema: Any) -> Any:
    if not schema.names:
        return _bare_batch(rows.table.num_rows)
    columns = [_archived_column(rows, name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _archived_column(rows: ArchivedRows, name: str) -> Any:
    count = rows.table.num_rows
    if name == "log":
        return pa.repeat(pa.scalar(rows.log, pa.string()), count)
    if name not in rows.table.column_names:
        return pa.nulls(count, _TYPES[name][1])  # No record of the file has a key or headers.
    column = rows.table.column(name).combine_chunks()
    if name == "timestamp":
        milliseconds = pc.min_element_wise(column.cast(pa.int64()), pa.scalar(_LAST_MS))
        return pc.multiply(milliseconds, pa.scalar(1000)).view(_TYPES[name][1])
    return _archived_headers(column) if name == "headers" else column


def _archived_headers(column: Any) -> Any:
    pairs = column.flatten()
    kind = _TYPES["headers"][1]
    named = pa.StructArray.from_arrays(pairs.flatten(), fields=list(kind.value_type))
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(column), 0))
    starts = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    is_missing = pc.is_null(column) if column.null_count else None
    return pa.ListArray.from_arrays(starts, named, type=kind, mask=is_missing)


def _repeated(value: Callable[[PackedBatch], int]) -> Callable[[Gathered, Any], Any]:
    def column(gathered: Gathered, counts: Any) -> Any:
        each = np.fromiter((value(batch) for _, batch in gathered), dtype=np.int64, count=len(gathered))
        return pa.array(np.repeat(each, counts))

    return column


def _offsets(gathered: Gathered, counts: Any) -> Any:
    return pa.array(
        np.concatenate(
            [np.arange(batch.first_offset, batch.end_offset, dtype=np.int64) for _, batch in gathered]
        )
    )


def _timestamps(gathered: Gathered, counts: Any) -> Any:
    microseconds = _repeated(lambda batch: min(batch.timestamp_ms, _LAST_MS) * 1000)(gathered, counts)
    return microseconds.view(_TYPES["timestamp"][1])


def _values(gathered: Gathered, counts: Any) -> Any:
    ends = np.zeros(int(counts.sum()) + 1, dtype=np.int32)
    lengths = [np.frombuffer(batch.lengths, dtype=np.uint32) for _, batch in gathered]
    np.cumsum(np.concatenate(lengths), out=ends[1:])
    data = b"".join([batch.data for _, batch in gathered])
    return pa.Array.from_buffers(
        pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)], null_count=0
    )


def _keys(gathered: Gathered, counts: Any) -> Any:
    lengths = [
        np.full(len(batch), PackedColumn.ABSENT, dtype=np.uint32)
        if batch.keys is None
        else np.frombuffer(batch.keys.lengths, dtype=np.uint32)
        for _, batch in gathered
    ]
    column = np.concatenate(lengths)
    is_there = column != PackedColumn.ABSENT
    ends = np.zeros(len(column) + 1, dtype=np.int32)
    np.cumsum(np.where(is_there, column, 0), out=ends[1:])
    data = b"".join([batch.keys.data for _, batch in gathered if batch.keys is not None])
    validity = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(column), [validity, pa.py_buffer(ends), pa.py_buffer(data)])


def _headers(gathered: Gathered, counts: Any) -> Any:
    rows: list[list[dict[str, Any]] | None] = []
    for _, batch in gathered:
        if batch.headers is None:
            rows += [None] * len(batch)
            continue

        def fail(why: str, batch: PackedBatch = batch) -> NoReturn:
            raise EntryCorrupt(batch.ledger_id, batch.entry_id, why)

        for encoded in batch.headers.items():
            pairs = decode_headers(encoded, fail) if encoded else ()
            rows.append([{"key": name, "value": value} for name, value in pairs] or None)
    return pa.array(rows, type=_TYPES["headers"][1])


def _logs(gathered: Gathered, counts: Any) -> Any:
    names = sorted({log for log, _ in gathered})
    if len(names) == 1:
        return pa.repeat(pa.scalar(names[0], pa.string()), int(counts.sum()))
    places = {log: place for place, log in enumerate(names)}
    each = np.fromiter((places[log] for log, _ in gathered), dtype=np.int32, count=len(gathered))
    return pa.DictionaryArray.from_arrays(np.repeat(each, counts), pa.array(names)).cast(pa.string())


_COLUMNS: dict[str, Callable[[Gathered, Any], Any]] = {
    "log": _logs,
    "offset": _offsets,
    "timestamp": _timestamps,
    "value": _values,
    "ledger_id": _repeated(lambda batch: batch.ledger_id),
    "entry_id": _repeated(lambda batch: batch.entry_id),
    "epoch": _repeated(lambda batch: batch.epoch),
    "key": _keys,
    "headers": _headers,
}
