"""``spark.read.format("ledgerlog")`` on real bookies: found by its name, right counts, clear errors."""

from __future__ import annotations

import threading
from datetime import UTC
from typing import Any

import pytest
from pyspark.sql.types import StructType

from ledgerlog.spark.columns import DECLARED, arrow_schema
from ledgerlog.spark.options import parse_read_options
from ledgerlog.spark.source import LogTableReader, read_part
from tests.spark.a_source_with_filters import Numbers
from tests.spark.conftest import SparkOnLogs
from tests.spark.spark_logs import declared

pytestmark = pytest.mark.processes


def fill(on_spark: SparkOnLogs, name: str, count: int = 1000) -> list[bytes]:
    values = [b"record %d" % at for at in range(count)]
    with on_spark.cluster.create_log(name).writer(entry_bytes=2048) as writer:
        writer.append_many(values[: count // 2])
        writer.roll()
        writer.append_many(values[count // 2 :])
    return values


def test_a_log_is_a_table_of_its_records(on_spark: SparkOnLogs, log_name: str) -> None:
    values = fill(on_spark, log_name)
    table = on_spark.read(minPartitions=4).load(log_name)
    assert table.rdd.getNumPartitions() >= 4
    rows = table.orderBy("offset").collect()
    with on_spark.cluster.open_log(log_name).read() as reader:
        records = list(reader)
    assert [bytes(row.value) for row in rows] == values
    assert [
        (row.log, row.offset, row.timestamp.replace(tzinfo=UTC), row.ledger_id, row.entry_id, row.epoch)
        for row in rows
    ] == [
        (log_name, r.offset, r.timestamp, r.position.ledger_id, r.position.entry_id, r.epoch) for r in records
    ]


def test_counts_filters_limits_and_a_schema_of_ones_own(on_spark: SparkOnLogs, log_name: str) -> None:
    fill(on_spark, log_name)
    table = on_spark.read(maxRecordsPerPartition=300).load(log_name)
    assert table.count() == 1000
    assert table.filter("offset % 10 = 3").count() == 100
    assert table.limit(7).count() == 7
    assert table.union(table.filter("offset < 5")).count() == 1005
    narrow = on_spark.read().schema("offset LONG").load(log_name)
    assert narrow.selectExpr("min(offset)", "max(offset)", "count(*)").collect()[0] == (0, 999, 1000)
    assert narrow.columns == ["offset"]
    assert (
        on_spark.read().schema("log STRING, offset LONG").load(log_name).where("offset >= 990").count() == 10
    )
    assert on_spark.read(minPartitions=3).schema(StructType([])).load(log_name).count() == 1000


def test_a_table_is_a_snapshot(on_spark: SparkOnLogs, log_name: str) -> None:
    fill(on_spark, log_name, 10)
    table = on_spark.read(startingOffsets=3).load(log_name)
    assert table.count() == 7
    with on_spark.cluster.open_log(log_name).writer() as writer:
        writer.append(b"later")
    assert table.count() == 7
    assert on_spark.read(startingOffsets=3).load(log_name).count() == 8


def test_a_task_that_stops_early_leaves_no_thread_behind(on_spark: SparkOnLogs, log_name: str) -> None:
    fill(on_spark, log_name)
    before = set(threading.enumerate())
    options = parse_read_options({"uri": on_spark.uri, "log": log_name}, is_stream=False)
    (partition,) = LogTableReader(options, declared()).partitions()
    batches = read_part(partition.value, arrow_schema(declared()))
    assert next(batches).num_rows > 0
    batches.close()
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert "ledgerlog-blocking" not in left  # Trio keeps threads of its own for a while.


def test_an_empty_log_is_an_empty_table(on_spark: SparkOnLogs, log_name: str) -> None:
    on_spark.cluster.create_log(log_name)
    assert on_spark.read().load(log_name).collect() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endingOffset": "5"}, "did you mean endingOffsets"),
        ({"startingOffsets": "5000"}, "ends at offset 10"),
    ],
)
def test_what_is_wrong_is_said(
    on_spark: SparkOnLogs, log_name: str, options: dict[str, Any], words: str
) -> None:
    fill(on_spark, log_name, 10)
    with pytest.raises(Exception, match=words):
        on_spark.read(**options).load(log_name).count()


def test_the_declared_schema_is_what_spark_sees(on_spark: SparkOnLogs, log_name: str) -> None:
    on_spark.cluster.create_log(log_name)
    schema = on_spark.read().load(log_name).schema
    assert schema.names == [column.split(" ")[0] for column in DECLARED.split(", ")]


def test_spark_leaks_a_pushed_filter_into_other_uses_of_a_table(on_spark: SparkOnLogs) -> None:
    """The page warns of it, and the source takes no filters because of it. If this fails with a later Spark,
    it can take them."""
    spark = on_spark.spark
    spark.dataSource.register(Numbers)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        table = spark.read.format("numbers_below_100").load()
        assert table.where("number >= 90").count() == 10
        assert table.count() == 10, "there are 100"
        table = spark.read.format("numbers_below_100").load()
        assert table.union(table.where("number >= 90")).count() == 20, "there are 110"
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
