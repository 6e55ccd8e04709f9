"""Spark's side of reading: the classes that it calls, each in the process where it calls them.

    batch    ``reader`` and ``partitions``   a process on the driver's host, once a query
    stream   everything but ``read``         one long-lived process on the driver's host
    both     ``read``                        a worker process of an executor, once a task

Nothing lives longer than the call but in the stream's long-lived process. Each of them connects by itself and
runs the library's loop in a thread beside (``ledgerlog.blocking.portal``); what crosses over is a batch.

**Filters are not pushed down.** Spark 4.3 lets a filter that one use of a table pushed into the reader leak
into its other uses and then counts wrong. Prune by options and by a schema of your own instead.

**An empty plan** reaches ``read`` all the same, as one partition without a value.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
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
from ledgerlog.ledger.client import LedgerClient, open_client
from ledgerlog.meta.uri import open_store, parse_uri
from ledgerlog.net.tcp import TcpNetwork
from ledgerlog.spark.columns import arrow_schema, batches_of
from ledgerlog.spark.options import ReadOptions, parse_read_options
from ledgerlog.spark.planning import plan_table
from ledgerlog.spark.scanning import Fetched, ScanBroken, ScanPart, open_scan
from ledgerlog.spark.stream import LogStream, decode_offsets, encode_offsets

__all__ = ["LogPartition", "LogReader", "LogStreamReader", "connected", "read_part"]


class LogPartition(InputPartition):
    """One task's part of a scan."""

    def __init__(self, part: ScanPart) -> None:
        super().__init__(part)


@asynccontextmanager
async def connected(uri: str, *, cluster: str | None = None) -> AsyncIterator[LedgerClient]:
    """A client of the cluster, for the body of the ``async with``. WrongCluster where it is not the one with
    the id ``cluster``."""
    async with (
        open_store(parse_uri(uri), cluster=cluster) as store,
        open_client(store, TcpNetwork()) as client,
    ):
        yield client


def read_part(part: ScanPart, schema: Any) -> Iterator[Any]:
    """The part as Arrow batches. A consumer that stops early leaves nothing running."""
    portal = Portal()
    try:
        scan = open_scan(part, TcpNetwork(), lambda: open_store(parse_uri(part.uri), cluster=part.cluster))
        take, held = portal.enter(scan)

        def fetched() -> Iterator[Fetched]:
            while True:
                try:
                    entries = portal.run(take)
                except ScanBroken:
                    held.leave()  # It says why.
                    raise
                if entries is None:
                    return
                yield entries

        yield from batches_of(fetched(), schema)
    finally:
        portal.close()


def _read(partition: InputPartition, schema: StructType) -> Iterator[Any]:
    if isinstance(partition, LogPartition):
        yield from read_part(partition.value, arrow_schema(schema))


class LogReader(DataSourceReader):
    """``spark.read.format("ledgerlog")``."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """The plan, made once: what is appended afterwards is not in the table."""

        async def make() -> list[ScanPart]:
            async with connected(self._options.uri) as client:
                return await plan_table(client, self._options)

        portal = Portal()
        try:
            return [LogPartition(part) for part in portal.run(make)]
        finally:
            portal.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition, self._schema)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream.format("ledgerlog")``."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._portal: Portal | None = None
        self._stream: LogStream | None = None
        arrow_schema(schema)

    def __getstate__(self) -> dict[str, Any]:
        # What tasks get of it is how to read; the connection stays where it is.
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
        return encode_offsets(self._run(LogStream.initial))

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        max_records: int | None = None
        max_bytes: int | None = None
        if isinstance(limit, ReadMaxRows):
            # Spark knows of one limit at a time; where there are two, this one stands for both.
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
        self._run(LogStream.pin)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        newest = self._run(LogStream.newest)
        return None if newest is None else encode_offsets(newest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begun, until = decode_offsets(start), decode_offsets(end)
        return [LogPartition(part) for part in self._run(lambda stream: stream.parts(begun, until))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.cursor_name is not None:
            offsets = decode_offsets(end)
            self._run(lambda stream: stream.commit(offsets))

    def stop(self) -> None:
        if self._portal is not None:
            self._portal.close()
            self._portal = None
            self._stream = None


def batch_reader(options: dict[str, str], schema: StructType) -> LogReader:
    """What ``spark.read`` gets. InvalidArgument for the options or the schema."""
    return LogReader(parse_read_options(options, is_stream=False), schema)


def stream_reader(options: dict[str, str], schema: StructType) -> LogStreamReader:
    """What ``spark.readStream`` gets. InvalidArgument for the options or the schema."""
    return LogStreamReader(parse_read_options(options, is_stream=True), schema)
