"""Spark's side of reading: the classes that Spark calls. Spark calls each method in a certain process:

    batch    ``reader`` and ``partitions``   a process on the driver's host, once for each query
    stream   everything but ``read``         one long-lived process on the driver's host
    both     ``read``                        a worker process of an executor, once for each task

Only the stream's long-lived process keeps state from one call to the next. Each process has its own
connection to the cluster and runs the library's event loop in a thread (``ledgerlog.blocking.portal``). Each
call into that thread moves a batch.

**Filters are not pushed down.** In Spark 4.3, if one use of a table pushes a filter into the reader, the
filter also affects other uses of the table, and these then give wrong counts. To read less, use options and
your own schema.

**An empty plan** also reaches ``read``: Spark passes it as one partition without a value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ledgerlog.blocking.portal import Portal
from ledgerlog.errors import InvalidArgument
from ledgerlog.meta.uri import open_store, parse_uri
from ledgerlog.model.credentials import Credentials
from ledgerlog.net.prover import Prover
from ledgerlog.net.tls import network_of
from ledgerlog.proving import with_secret_beside, with_secret_named
from ledgerlog.spark.columns import arrow_schema, batches_of
from ledgerlog.spark.connection import connected, run_connected, taken
from ledgerlog.spark.options import ReadOptions, parse_read_options
from ledgerlog.spark.planning import plan_table
from ledgerlog.spark.scanning import ScanBroken, ScanPart, open_scan
from ledgerlog.spark.stream import LogStream, decode_offsets, encode_offsets

__all__ = ["LogPartition", "LogTableReader", "LogStreamReader", "read_part"]


class LogPartition(InputPartition):
    """One task's part of a scan."""

    def __init__(self, part: ScanPart) -> None:
        super().__init__(part)


def read_part(part: ScanPart, schema: Any) -> Iterator[Any]:
    """Read a part, and yield its records as Arrow batches.

    If you stop early, close the generator; then nothing keeps running. See ``scanning.open_scan`` for the
    errors.

    Args:
        part: The part.
        schema: The result of ``columns.arrow_schema``.
    """
    uri = parse_uri(part.uri)
    credentials = with_secret_beside(Credentials.completed(os.environ), uri)
    credentials = with_secret_named(credentials, part.admission)
    scan = open_scan(
        part,
        network_of(credentials, cluster=part.cluster),
        lambda: open_store(uri, cluster=part.cluster, credentials=credentials),
        columns=schema.names,
        prover=Prover.of(credentials),
    )
    with Portal() as portal:
        yield from batches_of(taken(scan, portal, ScanBroken), schema)


def _read(partition: InputPartition, schema: StructType) -> Iterator[Any]:
    if isinstance(partition, LogPartition):
        yield from read_part(partition.value, arrow_schema(schema))


class LogTableReader(DataSourceReader):
    """The reader for ``spark.read.format("ledgerlog")``. Spark calls it.

    Args:
        options: The options of the read.
        schema: The columns that the query asks for.

    Raises:
        InvalidArgument: ``schema`` has a column that does not exist, or that has another type.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """Plan the table. Records that are appended later are not in it.

        See ``planning.plan_table`` for the errors.
        """

        columns = self._schema.names
        parts = run_connected(self._options.uri, lambda client: plan_table(client, self._options, columns))
        return [LogPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one part, and yield its records as Arrow batches."""
        return _read(partition, self._schema)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader for ``spark.readStream.format("ledgerlog")``. Spark calls it.

    Args:
        options: The options of the read.
        schema: The columns that the query asks for.

    Raises:
        InvalidArgument: ``schema`` has a column that does not exist, or that has another type.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._portal: Portal | None = None
        self._stream: LogStream | None = None
        arrow_schema(schema)

    def __getstate__(self) -> dict[str, Any]:
        # Tasks need only the options and the schema. The connection stays in this process.
        return {**self.__dict__, "_portal": None, "_stream": None}

    def _run(self, work: Callable[[LogStream], Any]) -> Any:
        if self._portal is None:
            self._portal = Portal()
        if self._stream is None:
            client, _ = self._portal.enter(connected(self._options.uri))
            self._stream = LogStream(client, self._options)
        stream = self._stream
        return self._portal.run(lambda: work(stream))

    def initialOffset(self) -> dict[str, Any]:
        """Return the position at which a new query begins."""
        return encode_offsets(self._run(LogStream.initial))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the most that a micro-batch reads, from the options."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the position at which the next micro-batch ends.

        Raises:
            InvalidArgument: Spark asks for a kind of limit that this source does not know, or the checkpoint
                is not of this source.
        """
        max_records: int | None = None
        max_bytes: int | None = None
        if isinstance(limit, ReadMaxRows):
            # Spark passes one limit. If the options limit both records and bytes, Spark passes the number of
            # records. So take the number of bytes from the options.
            max_records, max_bytes = limit.max_rows, self._options.max_bytes_per_trigger
        elif isinstance(limit, ReadMaxBytes):
            max_bytes = limit.max_bytes
        elif not isinstance(limit, ReadAllAvailable):
            raise InvalidArgument(f"{type(limit).__name__} is not a limit that this source knows")
        offsets = decode_offsets(start)
        return encode_offsets(
            self._run(lambda stream: stream.latest(offsets, max_records=max_records, max_bytes=max_bytes))
        )

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on, read only up to the present ends of the logs."""
        self._run(LogStream.pin)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the logs, for Spark's progress reports; None if they are not known now."""
        newest = self._run(LogStream.newest)
        return None if newest is None else encode_offsets(newest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the micro-batch from ``start`` up to ``end``."""
        begun, until = decode_offsets(start), decode_offsets(end)
        return [LogPartition(part) for part in self._run(lambda stream: stream.parts(begun, until))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one part, and yield its records as Arrow batches."""
        return _read(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Move the stream's cursor, if there is one, to ``end``. All records before ``end`` are processed."""
        if self._options.cursor_name is not None:
            offsets = decode_offsets(end)
            self._run(lambda stream: stream.commit(offsets))

    def stop(self) -> None:
        """Disconnect from the cluster."""
        if self._portal is not None:
            self._portal.close()
            self._portal = None
            self._stream = None


def batch_reader(options: dict[str, str], schema: StructType) -> LogTableReader:
    """Return the reader for ``spark.read``.

    Args:
        options: The options of the query, by name.
        schema: The columns that the query asks for.

    Raises:
        InvalidArgument: An option or a column is wrong.
    """
    return LogTableReader(parse_read_options(options, is_stream=False), schema)


def stream_reader(options: dict[str, str], schema: StructType) -> LogStreamReader:
    """Return the reader for ``spark.readStream``.

    Args:
        options: The options of the query, by name.
        schema: The columns that the query asks for.

    Raises:
        InvalidArgument: An option or a column is wrong.
    """
    return LogStreamReader(parse_read_options(options, is_stream=True), schema)
