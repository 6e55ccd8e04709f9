"""Read a log as Spark's tasks do, but without Spark. Each part that the planner sends goes through pickle
first."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ledgerlog.ledger.client import LedgerClient
from ledgerlog.log.log import Log
from ledgerlog.meta.store import MetadataStore
from ledgerlog.spark.columns import COLUMNS, DECLARED, Scanned, arrow_schema, batches_of
from ledgerlog.spark.options import ReadOptions, parse_read_options
from ledgerlog.spark.planning import plan_table
from ledgerlog.spark.scanning import ScanPart, open_scan
from ledgerlog.testing.memory_cluster import Client, MemoryCluster

ALL_COLUMNS = [column.split(" ")[0] for column in DECLARED.split(", ")]

Row = tuple[str, int, Any, bytes, int, int, int, bytes | None]


def read_options(log: str = "log", **options: str) -> ReadOptions:
    which = {} if "logs" in options or "logPattern" in options else {"log": log}
    return parse_read_options({"uri": "zk://localhost/unused", **which, **options}, is_stream=False)


def stream_options(log: str = "log", **options: str) -> ReadOptions:
    which = {} if "logs" in options or "logPattern" in options else {"log": log}
    given = {"uri": "zk://localhost/unused", "startingOffsets": "earliest", **which, **options}
    return parse_read_options(given, is_stream=True)


async def planned(
    client: LedgerClient, options: ReadOptions, columns: Collection[str] = COLUMNS
) -> list[ScanPart]:
    return await plan_table(client, options, columns)


async def fetched(
    cluster: MemoryCluster,
    client: Client,
    part: ScanPart,
    host: str = "task",
    *,
    meanwhile: Callable[[], Awaitable[object]] | None = None,
    columns: Collection[str] = ALL_COLUMNS,
) -> list[Scanned]:
    """Read a part as a task on ``host``. The task reads the metadata through ``client``'s store.
    Run ``meanwhile`` once the first entries are there."""

    @asynccontextmanager
    async def open_store() -> AsyncIterator[MetadataStore]:
        yield client.store

    sent: ScanPart = pickle.loads(pickle.dumps(part))
    got = []
    async with open_scan(sent, cluster.network.at(host), open_store, columns=columns) as take:
        while (entries := await take()) is not None:
            got.append(entries)
            if meanwhile is not None and len(got) == 1:
                await meanwhile()
    return got


async def rows(
    cluster: MemoryCluster, client: Client, parts: Sequence[ScanPart], columns: Sequence[str] = ALL_COLUMNS
) -> list[Any]:
    """Read all parts as rows of some columns, in the order of the parts."""

    schema = arrow_schema(declared(columns))
    found: list[Any] = []
    for part in parts:
        for batch in batches_of(await fetched(cluster, client, part, columns=columns), schema):
            assert batch.schema == schema
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return found


def declared(columns: Sequence[str] = ALL_COLUMNS) -> Any:
    """Make the schema of some columns without Spark's own parser, which needs a JVM."""
    from pyspark.sql import types

    pair = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    kinds = {
        "STRING": types.StringType(),
        "LONG": types.LongType(),
        "TIMESTAMP": types.TimestampType(),
        "BINARY": types.BinaryType(),
    }
    known = {"headers": types.StructField("headers", types.ArrayType(pair))}
    for column in DECLARED.split(", "):
        name, kind, *rest = column.split(" ", 2)
        known[name] = types.StructField(name, kinds[kind], nullable=rest != ["NOT NULL"])
    return types.StructType([known[name] for name in columns])


async def client_rows(log: Log, start: Any = "earliest") -> list[Row]:
    """Read the same rows with the client's own reader."""
    async with log.read(start) as records:
        return [
            (
                log.name,
                record.offset,
                record.timestamp,
                record.data,
                record.position.ledger_id,
                record.position.entry_id,
                record.epoch,
                record.key,
            )
            async for record in records
        ]
