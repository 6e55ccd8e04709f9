"""Logs in Spark SQL: views and tables, and what the statements say that a log cannot do."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ledgerlog.errors import InvalidArgument
from ledgerlog.spark import views
from ledgerlog.spark.archive import archive_on_spark
from ledgerlog.spark.views import _text, register_logs
from tests.spark.conftest import SparkOnLogs
from tests.spark.test_spark_sink import append, contents

pytestmark = pytest.mark.processes


def options(on_spark: SparkOnLogs, log: str, **more: str) -> str:
    given = {"uri": on_spark.uri, "log": log, **more}
    return "(" + ", ".join(f"{key} = '{value}'" for key, value in given.items()) + ")"


def run(on_spark: SparkOnLogs, text: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in on_spark.spark.sql(text).collect()]


def make(on_spark: SparkOnLogs, *names: str) -> None:
    for name in names:
        on_spark.cluster.create_log(name)


def test_a_temporary_view_is_read_and_inserted_into(on_spark: SparkOnLogs, log_name: str) -> None:
    make(on_spark, log_name)
    append(on_spark, log_name, [b"one", b"two"])
    given = options(on_spark, log_name)
    run(on_spark, f"CREATE TEMPORARY VIEW {log_name} USING ledgerlog OPTIONS {given}")
    assert run(on_spark, f"SELECT offset, CAST(value AS STRING) FROM {log_name} ORDER BY offset") == [
        (0, "one"),
        (1, "two"),
    ]
    columns = "(value STRING, key BINARY)"
    run(on_spark, f"CREATE TEMPORARY VIEW {log_name}_in {columns} USING ledgerlog OPTIONS {given}")
    run(on_spark, f"INSERT INTO {log_name}_in (value) VALUES ('three')")
    assert contents(on_spark, log_name) == [b"one", b"two", b"three"]
    # The first view is a snapshot, as a DataFrame is.
    assert run(on_spark, f"SELECT count(*) FROM {log_name}") == [(2,)]


def test_a_table_gets_its_options_in_each_query(on_spark: SparkOnLogs, log_name: str) -> None:
    make(on_spark, log_name)
    append(on_spark, log_name, [b"one"])
    given = options(on_spark, log_name)
    table = f"{log_name}_table"
    run(on_spark, f"CREATE TABLE {table} USING ledgerlog OPTIONS {given}")
    for refused in (f"SELECT * FROM {table}", f"INSERT INTO {table} SELECT * FROM {table} WITH {given}"):
        with pytest.raises(Exception, match="does not pass the OPTIONS of CREATE TABLE"):
            run(on_spark, refused)
    run(on_spark, f"CREATE VIEW {table}_view AS SELECT * FROM {table} WITH {given}")
    assert run(on_spark, f"SELECT count(*) FROM {table}_view") == [(1,)]

    run(on_spark, f"CREATE TABLE {table}_in (value BINARY) USING ledgerlog")
    once = options(on_spark, log_name, producerId="nightly", batchSeq="1")
    for _ in range(2):
        run(on_spark, f"INSERT INTO {table}_in WITH {once} SELECT CAST('two' AS BINARY)")
    assert contents(on_spark, log_name) == [b"one", b"two"]
    # Each query reads the log as it is then.
    assert run(on_spark, f"SELECT count(*) FROM {table}_view") == [(2,)]
    assert run(on_spark, f"SELECT count(*) FROM {table} WITH {given}") == [(2,)]


def test_spark_reads_one_log_for_two_uses_of_a_table(on_spark: SparkOnLogs, log_name: str) -> None:
    """The page warns of it, and views of ``register_logs`` share no table because of it. If this fails with a
    later Spark, both can go."""
    names = [f"{log_name}/one", f"{log_name}/two"]
    make(on_spark, *names)
    for count, name in enumerate(names, 1):
        append(on_spark, name, [b"x"] * count)
    run(on_spark, f"CREATE TABLE {log_name} USING ledgerlog")
    one, two = (f"SELECT * FROM {log_name} WITH {options(on_spark, name)}" for name in names)
    assert [run(on_spark, f"SELECT count(*) FROM ({each})") for each in (one, two)] == [[(1,)], [(2,)]]
    assert run(on_spark, f"SELECT count(*) FROM ({one} UNION ALL {two})") == [(2,)]


def test_what_a_log_cannot_do_is_refused(on_spark: SparkOnLogs, log_name: str) -> None:
    make(on_spark, log_name)
    append(on_spark, log_name, [b"one"])
    given = options(on_spark, log_name)
    view, table = f"{log_name}_view", f"{log_name}_table"
    run(on_spark, f"CREATE TEMPORARY VIEW {view} (value BINARY) USING ledgerlog OPTIONS {given}")
    run(on_spark, f"CREATE TABLE {table} (value BINARY) USING ledgerlog")
    for statement, words in (
        (f"INSERT OVERWRITE {view} VALUES (X'01')", "only appended to"),
        (f"INSERT OVERWRITE {table} WITH {given} VALUES (X'01')", "only appended to"),
        (f"DELETE FROM {view}", "does not support deletes"),
        (f"UPDATE {view} SET value = X'01'", "does not support UPDATE"),
        (f"TRUNCATE TABLE {table}", "does not support truncates"),
        (
            f"MERGE INTO {table} t USING (SELECT X'01' AS value) s ON t.value = s.value "
            "WHEN MATCHED THEN DELETE",
            "does not support MERGE",
        ),
        (f"CREATE TABLE {table}_2 USING ledgerlog OPTIONS {given} AS SELECT X'01' AS value", "no options"),
    ):
        with pytest.raises(Exception, match=words):
            run(on_spark, statement)
    assert contents(on_spark, log_name) == [b"one"]
    assert not on_spark.spark.catalog.tableExists(f"{table}_2")


def test_each_log_of_a_cluster_gets_a_view_that_reads_it_as_it_is(
    on_spark: SparkOnLogs, log_name: str
) -> None:
    one, two = names = [f"{log_name}/one-1", f"{log_name}/two.2"]
    make(on_spark, *names)
    for count, name in enumerate(names, 2):
        append(on_spark, name, [b"x"] * count)
    pattern = f"{log_name}/.*"
    assert register_logs(on_spark.spark, on_spark.uri, pattern=pattern) == {one: one, two: two}
    found = {view.name for view in on_spark.spark.catalog.listTables() if view.isTemporary}
    assert found.issuperset(names)
    assert run(on_spark, f"SELECT count(*) FROM `{one}` CROSS JOIN `{two}` CROSS JOIN `{two}`") == [(18,)]
    append(on_spark, one, [b"x"])
    assert run(on_spark, f"SELECT count(*) FROM `{one}`") == [(3,)]
    with pytest.raises(Exception, match="is a view"):
        run(on_spark, f"INSERT INTO `{one}` SELECT * FROM `{two}`")

    # Views of other options are others, in the same query, too.
    more = {"startingOffsets": "1", "includeHeaders": "true"}
    assert register_logs(on_spark.spark, on_spark.uri, pattern=pattern, prefix="late ", **more) == {
        f"late {one}": one,
        f"late {two}": two,
    }
    rows = f"(SELECT offset FROM `{two}` UNION ALL SELECT offset FROM `late {two}`)"
    assert run(on_spark, f"SELECT count(*), sum(offset) FROM {rows}") == [(5, 6)]
    assert on_spark.spark.table(f"`late {one}`").columns[-1] == "headers"


def test_an_option_of_views_may_be_a_number_or_a_truth_value(monkeypatch: pytest.MonkeyPatch) -> None:
    class Statements:
        def __init__(self) -> None:
            self.said: list[str] = []

        def sql(self, text: str) -> None:
            self.said.append(text)

    spark: Any = Statements()
    monkeypatch.setattr(views, "run_connected", lambda uri, find: {"orders": None})
    register_logs(spark, "zk://zk1/ledgerlog", startingOffsets=5, includeHeaders=True, failOnDataLoss=False)
    *_, table, view = spark.said
    assert "OPTIONS (includeHeaders 'true')" in table
    assert "startingOffsets = '5'" in view


def test_what_is_wrong_with_views_is_said_before_one_is_made(on_spark: SparkOnLogs, log_name: str) -> None:
    names = [f"{log_name}/a", f"{log_name}/A"]
    make(on_spark, *names)
    for wrong, words in (
        ({}, "differ only in case"),
        ({"pattern": "("}, "not a regular expression"),
        ({"colour": "red"}, "there is no option 'colour'"),
        ({"log": "x"}, "exactly one of"),
        ({"pattern": names[0], "startingOffsets": '{"other": 3}'}, "other"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            register_logs(on_spark.spark, on_spark.uri, **{"pattern": f"{log_name}/.*", **wrong})
    assert not on_spark.spark.catalog.tableExists(f"`{names[0]}`")
    assert not on_spark.spark.catalog.tableExists(f"`{names[1]}`")


def test_texts_are_quoted_for_sql(on_spark: SparkOnLogs) -> None:
    text = 'it\'s a \\ and "this" `too`\n'
    assert run(on_spark, f"SELECT {_text(text)}") == [(text,)]


def test_spark_itself_reads_the_archived_beginning_of_a_view(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    directory = tmp_path / "with {a} [strange] name*"
    with on_spark.cluster.create_log(log_name).writer(entry_bytes=512) as writer:
        for ledger in range(4):
            if ledger:
                writer.roll()
            for at in range(60):
                writer.append(
                    b"%d" % at, key=b"%d" % (at % 7), headers=[("n", b"%d" % at)] if at % 2 else None
                )
    archive_on_spark(on_spark.spark, on_spark.uri, log_name, str(directory), keep_copies_s=0)
    on_spark.cluster.open_log(log_name).truncate(17)  # Within the first file.
    run(on_spark, f"DROP VIEW IF EXISTS `{log_name}`")
    register = partial(register_logs, on_spark.spark, on_spark.uri, pattern=log_name)
    assert register(archives_as_parquet=True, includeHeaders="true") == {log_name: log_name}
    append(on_spark, log_name, [b"later"])

    source = on_spark.read(includeHeaders="true").load(log_name)
    view = on_spark.spark.table(f"`{log_name}`")
    assert view.schema.simpleString() == source.schema.simpleString()
    assert view.count() == 224
    assert sorted(view.collect()) == sorted(source.collect())
    for where in (
        "offset >= 170 AND offset < 250",
        "key = X'33'",
        "epoch > 1",
        "value = X'33' OR offset = 239",
    ):
        asked = f"SELECT offset, key FROM `{log_name}` WHERE {where}"
        found = on_spark.spark.sql(asked)
        assert sorted(found.collect()) == sorted(source.where(where).select("offset", "key").collect())
    # Spark reads the files, and knows what to leave out.
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert "GreaterThanOrEqual(offset,17), Or(EqualTo(value," in plan
    assert "ReadSchema: struct<offset:bigint,value:binary,key:binary>" in plan


def test_a_view_of_a_log_that_is_sealed_and_archived_whole_is_parquet_alone(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    def plan() -> tuple[int, str]:
        archive_on_spark(on_spark.spark, on_spark.uri, log_name, str(tmp_path), keep_copies_s=0)
        register_logs(on_spark.spark, on_spark.uri, pattern=log_name, archives_as_parquet=True)
        found = on_spark.spark.sql(f"SELECT count(*) FROM `{log_name}`")
        return found.collect()[0][0], found._jdf.queryExecution().executedPlan().toString()

    make(on_spark, log_name)
    append(on_spark, log_name, [b"value %d" % at for at in range(20)])
    count, words = plan()
    assert count == 20
    assert "BatchScan" in words  # Somebody may append to the log.
    on_spark.cluster.open_log(log_name).seal()
    count, words = plan()
    assert count == 20
    assert "BatchScan" not in words
    assert "PushedFilters: []" in words  # A count reads no column.
    assert "ReadSchema: struct<>" in words


def test_a_view_of_a_sealed_log_has_what_is_not_archived_too(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    make(on_spark, log_name)
    append(on_spark, log_name, [b"early"])
    archive_on_spark(on_spark.spark, on_spark.uri, log_name, str(tmp_path), keep_copies_s=0)
    append(on_spark, log_name, [b"late"])
    on_spark.cluster.open_log(log_name).seal()
    register_logs(on_spark.spark, on_spark.uri, pattern=log_name, archives_as_parquet=True)
    assert sorted(run(on_spark, f"SELECT CAST(value AS STRING) FROM `{log_name}`")) == [("early",), ("late",)]


def test_a_damaged_page_of_an_archive_fails_a_view(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    make(on_spark, log_name)
    append(on_spark, log_name, [b"value %d" % at for at in range(200)])
    archive_on_spark(on_spark.spark, on_spark.uri, log_name, str(tmp_path), keep_copies_s=0)
    register_logs(on_spark.spark, on_spark.uri, pattern=log_name, archives_as_parquet=True)
    (file,) = tmp_path.glob("*/*.parquet")
    chunk = pq.read_metadata(file).row_group(0).column(2)
    data = bytearray(file.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 5] ^= 1
    file.write_bytes(data)
    with pytest.raises(Exception, match=r"(?i)crc|checksum"):
        run(on_spark, f"SELECT max(value) FROM `{log_name}`")


def test_a_view_of_parquet_takes_no_bounds(on_spark: SparkOnLogs, log_name: str) -> None:
    make(on_spark, log_name)
    for bound in ("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"):
        with pytest.raises(InvalidArgument, match="filter in the query"):
            register_logs(
                on_spark.spark, on_spark.uri, pattern=log_name, archives_as_parquet=True, **{bound: "0"}
            )
