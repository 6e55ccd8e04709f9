"""The commit of a batch from the messages of its tasks, without Spark."""

from __future__ import annotations

import pickle
from typing import Any

import attrs
import pyarrow as pa
import pytest
import trio
import trio.testing
from pyspark.sql import types

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import LOG_SPLICE_LEDGERS_MAX
from ledgerlog.log import gather
from ledgerlog.log.attach import stage
from ledgerlog.log.core.attach import SpliceRefused, Staged
from ledgerlog.log.log import Log, create_log
from ledgerlog.log.registry import LogRegistry
from ledgerlog.spark import sink
from ledgerlog.spark.columns import arrow_schema, batches_of
from ledgerlog.spark.options import WriteOptions, parse_write_options
from ledgerlog.spark.sink import (
    BatchOf,
    LogStreamWriter,
    LogTableWriter,
    StagedPart,
    StagedRows,
    check_written,
    commit_rows,
)
from ledgerlog.testing.memory_cluster import Client, open_cluster
from pyspark_ledgerlog import DefaultSource
from tests.spark.spark_logs import client_rows, declared, fetched, planned, read_options, rows

STREAM = parse_write_options({"uri": "zk://localhost/x", "log": "log"}, is_stream=True)
JOB = parse_write_options({"uri": "zk://localhost/x", "log": "log"}, is_stream=False)


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


def reported(client: Client, log: Log, of: BatchOf, staged: Staged | None) -> StagedRows:
    return StagedRows(client.opened.store.cluster, of, {log.name: StagedPart(log.incarnation, staged)})


async def message(
    client: Client, log: Log, values: list[bytes], batch: int = 0, run: str = "run 1"
) -> StagedRows:
    registry = LogRegistry(client.store, client.opened.environment)
    async with stage(client.opened, registry, log.name, log.incarnation) as opened:
        await opened.append_many(values)
        staged = await opened.close()
    made = reported(client, log, BatchOf("query", run, batch), staged)
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
            for run in ("run 1", "run 2"):  # Spark does each batch twice.
                messages = [
                    await message(client, log, [b"%d.%d" % (batch, task)] * task, batch, run)
                    for task in range(3)
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
        made = reported(client, log, BatchOf("query", "run 1", 0), staged)
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
        (["value", "topic"], False, "optionally key and headers"),
        (["key"], False, "the column value"),
        (["value", "headers"], False, "array<struct<key:string,value:binary>>"),
        (["value", "value"], False, "the column value"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(names: list[str], overwrite: bool, words: str) -> None:
    fields: list[Any] = [types.StructField(name, types.BinaryType()) for name in names]
    with pytest.raises(InvalidArgument, match=words):
        check_written(types.StructType(fields), overwrite, log="log")
    check_written(types.StructType([types.StructField("value", types.StringType())]), False, log="log")
    pair = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    every: list[Any] = [
        types.StructField("headers", types.ArrayType(pair)),
        types.StructField("key", types.StringType()),
        types.StructField("value", types.BinaryType()),
    ]
    check_written(types.StructType(every), False, log="log")


def test_the_log_is_named_by_the_job_or_by_the_rows() -> None:
    value = types.StructField("value", types.StringType())
    by_rows = types.StructType([value, types.StructField("log", types.StringType())])
    check_written(by_rows, False, log=None)
    with pytest.raises(InvalidArgument, match="have each row name its log in a column log"):
        check_written(types.StructType([value]), False, log=None)
    with pytest.raises(
        InvalidArgument,
        match="but the job also names 'log': to write all rows to 'log', select only value, key and headers",
    ):
        check_written(by_rows, False, log="log")
    by_number = types.StructType([value, types.StructField("log", types.LongType())])
    with pytest.raises(InvalidArgument, match=r"log \(string\)"):
        check_written(by_number, False, log=None)


def test_the_rows_of_a_batch_go_to_their_logs_in_their_order() -> None:
    batch = pa.record_batch([pa.array(["a1", "b1", "a2"]), pa.array(["a", "b", "a"])], names=["value", "log"])
    parts = {name: rows.column("value").to_pylist() for name, rows in sink._by_log(batch, None)}
    assert parts == {"a": ["a1", "a2"], "b": ["b1"]}
    assert [(name, rows.num_rows) for name, rows in sink._by_log(batch, "all")] == [("all", 3)]
    nameless = pa.record_batch([pa.array(["x"]), pa.array([None], pa.string())], names=["value", "log"])
    with pytest.raises(InvalidArgument, match="the column log names the log of each row: it holds null"):
        list(sink._by_log(nameless, None))


async def test_each_log_gets_its_part_once_if_the_commit_ends_between_two_logs(
    autojump_clock: object,
) -> None:
    routed = parse_write_options({"uri": "zk://localhost/x"}, is_stream=True)
    async with open_cluster() as cluster, cluster.client() as client:
        logs = [await create_log(client.opened, name) for name in ("a", "b")]

        async def task(batch: int, values: dict[str, list[bytes]]) -> StagedRows:
            parts = {}
            for log in logs:
                if log.name in values:
                    parts |= (await message(client, log, values[log.name], batch)).parts
            return StagedRows(client.opened.store.cluster, BatchOf("query", "run 1", batch), parts)

        first = [await task(0, {"a": [b"a0"], "b": [b"b0"]}), await task(0, {"b": [b"b1"]})]
        only_a = attrs.evolve(first[0], parts={"a": first[0].parts["a"]})
        await commit(client, [only_a], 0, routed)
        again = [await task(0, {"a": [b"a0"], "b": [b"b0"]}), await task(0, {"b": [b"b1"]})]
        await commit(client, again, 0, routed)
        # No row of the batches 1 to 3 is for the log b.
        await commit(client, [await task(1, {"a": [b"a1"]})], 1, routed)
        await commit(client, [await task(4, {"b": [b"b4"]}), await task(4, {})], 4, routed)
        assert [await contents(log) for log in logs] == [[b"a0", b"a1"], [b"b0", b"b1", b"b4"]]
        # A log that is deleted and made again between two tasks is not the log of the first one.
        parts = {"a": StagedPart(logs[0].incarnation + 1, None)}
        stray = StagedRows(client.opened.store.cluster, BatchOf("query", "run 1", 5), parts)
        with pytest.raises(SpliceRefused, match="log 'a' was deleted and made again"):
            await commit(client, [await task(5, {"a": [b"a5"]}), stray], 5, routed)


def test_a_writer_that_commits_does_not_look_for_the_log() -> None:
    """Nor does it make a log again that was deleted while the tasks wrote. Nobody listens at the URI."""
    options = {"uri": "zk://127.0.0.1:1/nowhere", "log": "log", "createLog": "true"}
    sent = pickle.loads(pickle.dumps(DefaultSource(options)))
    schema = types.StructType([types.StructField("value", types.StringType())])
    assert isinstance(sent.streamWriter(schema, False), LogStreamWriter)


async def test_no_log_gets_its_part_if_another_has_too_many_ledgers(autojump_clock: object) -> None:
    routed = parse_write_options({"uri": "zk://localhost/x"}, is_stream=True)
    async with open_cluster() as cluster, cluster.client() as client:
        first, second = [await create_log(client.opened, name) for name in ("a", "b")]
        one = await message(client, first, [b"a"])
        many = await message(client, second, [b"b"])
        messages = [one, *[many] * (LOG_SPLICE_LEDGERS_MAX + 1)]
        with pytest.raises(
            InvalidArgument, match="log 'b': 10001 ledgers in one batch, over the limit of 10000"
        ):
            await commit(client, list(messages), 0, routed)
        assert await contents(first) == []


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_task_too_many_fails_before_it_reads_a_row(
    monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    class Task:
        """The first task that is too many."""

        def partitionId(self) -> int:
            return LOG_SPLICE_LEDGERS_MAX

        def getLocalProperty(self, _: str) -> str:
            return "1"

    def values() -> Any:
        raise AssertionError("it read a row")
        yield

    monkeypatch.setattr(sink.TaskContext, "get", Task)
    writer = LogStreamWriter(STREAM) if is_stream else LogTableWriter(JOB)
    with pytest.raises(InvalidArgument, match=r"task 10000: .* at most 10000 tasks"):
        writer.write(values())


async def test_many_small_batches_leave_few_ledgers_and_older_plans_read_them(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def columns(found: list[Any]) -> list[Any]:
        return [(*row[:4], *row[6:]) for row in found]

    monkeypatch.setattr(gather, "LOG_GATHERED_KEEP_S", 5.0)
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        for batch in range(14):
            await commit(
                client, [await message(client, log, [b"%d" % batch], batch) for _ in range(4)], batch
            )
        assert len((await log.info()).segments) == 56
        parts = await planned(client.opened, read_options())
        whole = await client_rows(log)
        for batch in range(14, 17):
            await commit(
                client, [await message(client, log, [b"%d" % batch], batch) for _ in range(4)], batch
            )
        assert len((await log.info()).segments) == 5
        assert await rows(cluster, client, parts) == whole
        await trio.sleep(5)
        await gather.delete_replaced(
            client.opened, LogRegistry(client.store, client.opened.environment), log.incarnation
        )
        for bookie in cluster.bookies.values():
            await bookie.node.engine.flush()
            await bookie.node.engine.collector.collect()
        again = await rows(cluster, client, parts)
        assert columns(again) == columns(whole)
        assert await rows(cluster, client, await planned(client.opened, read_options())) == await client_rows(
            log
        )
