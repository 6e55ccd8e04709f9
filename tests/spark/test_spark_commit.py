"""What the commit of a batch makes of the messages of its tasks, without Spark."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
import trio.testing
from pyspark.sql import types

from ledgerlog.errors import InvalidArgument
from ledgerlog.log.attach import stage
from ledgerlog.log.core.attach import SpliceRefused
from ledgerlog.log.log import Log, create_log
from ledgerlog.log.registry import LogRegistry
from ledgerlog.spark import sink
from ledgerlog.spark.columns import arrow_schema, batches_of
from ledgerlog.spark.options import WriteOptions, parse_write_options
from ledgerlog.spark.sink import BatchOf, StagedRows, check_written, commit_rows
from ledgerlog.testing.memory_cluster import Client, open_cluster
from tests.spark.spark_logs import client_rows, declared, fetched, planned, read_options, rows

STREAM = parse_write_options({"uri": "zk://localhost/x", "log": "log"}, is_stream=True)
JOB = parse_write_options({"uri": "zk://localhost/x", "log": "log"}, is_stream=False)


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


async def message(
    client: Client, log: Log, values: list[bytes], batch: int = 0, run: str = "run 1"
) -> StagedRows:
    registry = LogRegistry(client.store, client.opened.environment)
    async with stage(client.opened, registry, log.name, log.incarnation) as opened:
        await opened.append_many(values)
        staged = await opened.close()
    made = StagedRows(client.opened.store.cluster, log.incarnation, BatchOf("query", run, batch), staged)
    sent: StagedRows = pickle.loads(pickle.dumps(made))
    return sent


async def commit(
    client: Client, messages: list[StagedRows | None], batch: int | None, options: WriteOptions = STREAM
) -> None:
    await commit_rows(client.opened, options, messages, batch)


async def contents(log: Log) -> list[bytes]:
    return [row[3] for row in await client_rows(log)]


async def test_the_rows_of_a_batch_come_in_the_order_of_its_tasks_and_once(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        for batch in range(3):
            for _ in range(
                2
            ):  # Spark does each batch twice, and the second time it is another run of the query.
                messages = [
                    await message(client, log, [b"%d.%d" % (batch, task)] * task, batch) for task in range(3)
                ]
                await commit(client, messages, batch)
        assert await contents(log) == [
            b"%d.%d" % (batch, task) for batch in range(3) for task in range(3) for _ in range(task)
        ]
        parts = await planned(client.opened, read_options(minPartitions="4"))
        assert await rows(cluster, client, parts) == await client_rows(log)


async def test_keys_and_headers_are_columns_of_the_table_and_of_the_sink(autojump_clock: object) -> None:
    kafka = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    pairs = [[{"key": "h", "value": b"1"}, {"key": "h", "value": b""}], None, []]
    given = pa.record_batch(
        [pa.array(["a", "b", "c"]), pa.array([b"k", None, b""]), pa.array(pairs, type=kafka)],
        names=["value", "key", "headers"],
    )
    assert (sink._keys(given.select(["value"])), sink._headers(given.select(["value"]))) == (None, None)
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        registry = LogRegistry(client.store, client.opened.environment)
        async with log.writer() as writer:
            await writer.append_many([b"plain", b"plain"])
        async with stage(client.opened, registry, log.name, log.incarnation) as opened:
            await opened.append_many(
                sink._values(given), keys=sink._keys(given), headers=sink._headers(given)
            )
            staged = await opened.close()
        made = StagedRows(client.opened.store.cluster, log.incarnation, BatchOf("query", "run 1", 0), staged)
        await commit(client, [made], 0)
        parts = await planned(client.opened, read_options(minPartitions="2"))
        assert await rows(cluster, client, parts) == await client_rows(log)
        schema = arrow_schema(with_headers(declared()))
        read: list[Any] = []
        for part in parts:
            for batch in batches_of(await fetched(cluster, client, part), schema):
                read += batch.select(["value", "key", "headers"]).to_pylist()
    assert read == [
        {"value": b"plain", "key": None, "headers": None},
        {"value": b"plain", "key": None, "headers": None},
        {"value": b"a", "key": b"k", "headers": pairs[0]},
        {"value": b"b", "key": None, "headers": None},
        {"value": b"c", "key": b"", "headers": None},
    ]
    for wrong in ([{"key": None, "value": b"1"}], [{"key": "h", "value": None}], [None]):
        table = pa.record_batch([pa.array([b"a"]), pa.array([wrong], type=kafka)], names=["value", "headers"])
        with pytest.raises(InvalidArgument, match="holds null"):
            sink._headers(table)


def with_headers(schema: types.StructType) -> types.StructType:
    pair = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    return types.StructType([*schema.fields, types.StructField("headers", types.ArrayType(pair))])


async def test_a_batch_without_rows_is_a_batch_all_the_same(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        await commit(client, [await message(client, log, [])], 0)
        await commit(client, [await message(client, log, [b"a"], 1)], 1)
        assert await contents(log) == [b"a"]


async def test_jobs_without_a_number_are_all_new(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        for run in ("job 1", "job 2"):
            await commit(client, [await message(client, log, [b"a"], run=run)], None, JOB)
        await commit(client, [await message(client, log, [], run="job 3")], None, JOB)
        assert await contents(log) == [b"a", b"a"]


async def test_messages_that_do_not_belong_together_are_refused(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        first, other = await message(client, log, [b"a"]), await message(client, log, [b"b"], 1)
        for messages, batch in (([first, other], 0), ([first], 1), ([first, None], 0)):
            with pytest.raises(SpliceRefused):
                await commit(client, list(messages), batch)
        await commit(client, [], 0)
        assert await contents(log) == []


@pytest.mark.parametrize(
    ("names", "overwrite", "words"),
    [
        (["value"], True, "only appended to"),
        (["value", "topic"], False, "perhaps key and headers"),
        (["key"], False, "the column value"),
        (["value", "headers"], False, "array<struct<key:string,value:binary>>"),
        (["value", "value"], False, "the column value"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(names: list[str], overwrite: bool, words: str) -> None:
    fields: list[Any] = [types.StructField(name, types.BinaryType()) for name in names]
    with pytest.raises(InvalidArgument, match=words):
        check_written(types.StructType(fields), overwrite)
    check_written(types.StructType([types.StructField("value", types.StringType())]), False)
    pair = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    every: list[Any] = [
        types.StructField("headers", types.ArrayType(pair)),
        types.StructField("key", types.StringType()),
        types.StructField("value", types.BinaryType()),
    ]
    check_written(types.StructType(every), False)
