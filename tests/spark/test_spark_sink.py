"""Write tables to logs on real bookies: rows in are rows out, each once, whatever Spark runs again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ledgerlog.errors import LogNotFound
from tests.spark.conftest import SparkOnLogs

pytestmark = pytest.mark.processes


def contents(on_spark: SparkOnLogs, name: str) -> list[bytes]:
    with on_spark.cluster.open_log(name).read() as reader:
        records = list(reader)
    assert [record.offset for record in records] == list(range(len(records)))
    return [record.data for record in records]


def texts(start: int, end: int) -> list[bytes]:
    return sorted(b"row %d" % at for at in range(start, end))


def write(on_spark: SparkOnLogs, name: str, start: int, end: int, **options: Any) -> None:
    table = on_spark.spark.range(start, end, numPartitions=3).selectExpr("concat('row ', id) AS value")
    table.write.format("ledgerlog").options(uri=on_spark.uri, **options).mode("append").save(name)


def test_a_table_is_appended_and_read_back(on_spark: SparkOnLogs, log_name: str) -> None:
    log = on_spark.cluster.create_log(log_name)
    with log.writer() as writer:
        writer.append(b"before")
        write(on_spark, log_name, 0, 300)
        assert writer.append(b"after").offset == 301
    written = contents(on_spark, log_name)
    assert (written[0], sorted(written[1:-1]), written[-1]) == (b"before", texts(0, 300), b"after")
    table = on_spark.read().load(log_name)
    assert [bytes(row.value) for row in table.orderBy("offset").collect()] == written
    write(on_spark, log_name, 0, 2)
    assert len(contents(on_spark, log_name)) == 304


def test_keys_and_headers_are_written_and_read_in_kafkas_columns(
    on_spark: SparkOnLogs, log_name: str
) -> None:
    on_spark.cluster.create_log(log_name)
    table = on_spark.spark.range(0, 30, numPartitions=3).selectExpr(
        "concat('row ', id) AS value",
        "IF(id % 3 = 0, NULL, concat('key ', id)) AS key",
        "IF(id % 2 = 0, NULL, array(struct('h' AS key, CAST(id AS STRING) AS value))) AS headers",
    )
    kafka = table.withColumn("headers", table.headers.cast("array<struct<key:string,value:binary>>"))
    kafka.write.format("ledgerlog").options(uri=on_spark.uri).mode("append").save(log_name)
    with on_spark.cluster.open_log(log_name).read() as reader:
        found = {record.data: (record.key, record.headers) for record in reader}
    assert found == {
        b"row %d" % at: (
            None if at % 3 == 0 else b"key %d" % at,
            () if at % 2 == 0 else (("h", b"%d" % at),),
        )
        for at in range(30)
    }
    assert on_spark.read().load(log_name).columns[-1] == "key"
    back = on_spark.read(includeHeaders="true").load(log_name)
    assert back.columns[-2:] == ["key", "headers"]
    assert back.where("key IS NULL").count() == 10
    assert back.where("headers[0].value = CAST('7' AS BINARY)").selectExpr(
        "CAST(key AS STRING)"
    ).collect() == [("key 7",)]


def test_a_job_that_says_which_it_is_counts_once(on_spark: SparkOnLogs, log_name: str) -> None:
    on_spark.cluster.create_log(log_name)
    for _ in range(2):
        write(on_spark, log_name, 0, 10, producerId="nightly", batchSeq=20260301)
    write(on_spark, log_name, 10, 15, producerId="nightly", batchSeq=20260302)
    assert sorted(contents(on_spark, log_name)) == texts(0, 15)


def test_what_cannot_be_written_is_refused(on_spark: SparkOnLogs, log_name: str) -> None:
    on_spark.cluster.create_log(log_name)
    rows = on_spark.spark.range(3).selectExpr("id", "CAST(id AS STRING) AS value")

    def attempt(table: Any, mode: str = "append", **options: Any) -> None:
        table.write.format("ledgerlog").options(uri=on_spark.uri, **options).mode(mode).save(log_name)

    with pytest.raises(Exception, match="only appended to"):
        attempt(rows.select("value"), "overwrite")
    with pytest.raises(Exception, match="the column value, and optionally key and headers"):
        attempt(rows)
    with pytest.raises(Exception, match="go together"):
        attempt(rows.select("value"), producerId="x")
    with pytest.raises(Exception, match="holds null"):
        attempt(rows.selectExpr("CAST(NULL AS STRING) AS value"))
    assert contents(on_spark, log_name) == []


def test_a_mode_that_a_log_cannot_have_is_refused_before_any_work(
    on_spark: SparkOnLogs, log_name: str
) -> None:
    rows = on_spark.spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    writer = rows.write.format("ledgerlog").options(uri=on_spark.uri, createLog="true")
    for mode, words in (
        ("overwrite", "only appended to"),
        ("ignore", 'cannot be written in the "Ignore" mode'),
        ("errorifexists", 'cannot be written in the "ErrorIfExists" mode'),
    ):
        with pytest.raises(Exception, match=words):
            writer.mode(mode).save(log_name)
    with pytest.raises(LogNotFound):
        on_spark.cluster.open_log(log_name)


def test_a_task_that_fails_and_runs_again_appends_its_rows_once(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    on_spark.cluster.create_log(log_name)
    marker = tmp_path / "failed"

    def fail_once(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            if number == 1 and not marker.exists():
                marker.touch()
                raise ValueError("after the first rows")
            yield batch

    table = on_spark.spark.range(0, 30_000, numPartitions=1).selectExpr("concat('row ', id) AS value")
    rows = table.mapInArrow(fail_once, "value STRING")
    rows.write.format("ledgerlog").options(uri=on_spark.uri).mode("append").save(log_name)
    assert marker.exists()
    assert sorted(contents(on_spark, log_name)) == texts(0, 30_000)


def test_a_log_that_does_not_exist_is_said_before_a_task_starts_or_made(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    source, missing, made = f"{log_name}/in", f"{log_name}/missing", f"{log_name}/made"
    on_spark.cluster.create_log(source)
    with pytest.raises(Exception, match="LogNotFound") as caught:
        write(on_spark, missing, 0, 10)
    assert "stage failure" not in str(caught.value)
    # A query without any data says so too.
    with pytest.raises(Exception, match="LogNotFound") as caught:
        run_query(on_spark, source, missing, tmp_path / "checkpoint")
    assert "stage failure" not in str(caught.value)
    with pytest.raises(LogNotFound):
        on_spark.cluster.open_log(missing)
    for start in (0, 10):
        write(on_spark, made, start, start + 10, createLog="true")
    assert sorted(contents(on_spark, made)) == texts(0, 20)
    append(on_spark, source, [b"one"])
    run_query(on_spark, source, f"{made}/by-stream", tmp_path / "another", createLog="true")
    assert contents(on_spark, f"{made}/by-stream") == [b"one"]


def test_each_row_goes_to_the_log_that_it_names(on_spark: SparkOnLogs, log_name: str, tmp_path: Path) -> None:
    names = [f"{log_name}/{number}" for number in range(3)]
    table = on_spark.spark.range(0, 30, numPartitions=3).selectExpr(
        "concat('row ', id) AS value", f"concat('{log_name}/', id % 3) AS log"
    )

    def write_rows(rows: Any, **options: Any) -> None:
        rows.write.format("ledgerlog").options(uri=on_spark.uri, **options).mode("append").save()

    for name in names[:2]:
        on_spark.cluster.create_log(name)
    with pytest.raises(Exception, match="LogNotFound"):
        write_rows(table)
    assert [contents(on_spark, name) for name in names[:2]] == [[], []]
    for _ in range(2):
        write_rows(table, createLog="true", producerId="nightly", batchSeq=1)
    for number, name in enumerate(names):
        assert sorted(contents(on_spark, name)) == sorted(b"row %d" % at for at in range(number, 30, 3))
    with pytest.raises(Exception, match="a task can write to at most"):
        write_rows(
            on_spark.spark.range(0, 200, numPartitions=1).selectExpr(
                "CAST(id AS STRING) AS value", f"concat('{log_name}/many/', id) AS log"
            ),
            createLog="true",
        )
    # A stream takes the log that it reads from as the name of the log that it writes to.
    source = f"{log_name}/in"
    on_spark.cluster.create_log(source)
    append(on_spark, source, [b"one", b"two"])
    query = (
        on_spark.read_stream(startingOffsets="earliest")
        .load(source)
        .selectExpr("value", "concat(log, '/copy') AS log")
        .writeStream.format("ledgerlog")
        .options(uri=on_spark.uri, createLog="true")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert contents(on_spark, f"{source}/copy") == [b"one", b"two"]


def run_query(
    on_spark: SparkOnLogs,
    source: str,
    sink: str,
    checkpoint: Path,
    sink_format: str = "ledgerlog",
    *,
    min_partitions: int = 1,
    **options: Any,
) -> None:
    query = start_query(
        on_spark, source, sink, checkpoint, sink_format, min_partitions=min_partitions, **options
    )
    assert query.awaitTermination(120)


def start_query(
    on_spark: SparkOnLogs,
    source: str,
    sink: str,
    checkpoint: Path,
    sink_format: str = "ledgerlog",
    *,
    min_partitions: int = 1,
    **options: Any,
) -> Any:
    return (
        on_spark.read_stream(
            startingOffsets="earliest", maxOffsetsPerTrigger=40, minPartitions=min_partitions
        )
        .load(source)
        .select("value")
        .writeStream.format(sink_format)
        .options(uri=on_spark.uri, **options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(sink)
    )


def append(on_spark: SparkOnLogs, name: str, values: list[bytes]) -> None:
    with on_spark.cluster.open_log(name).writer() as writer:
        writer.append_many(values)


def test_a_stream_from_log_to_log_counts_each_row_once_over_restarts_and_lost_commits(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    source, sink, checkpoint = f"{log_name}/in", f"{log_name}/out", tmp_path / "checkpoint"
    values = [b"%d" % at for at in range(120)]
    on_spark.cluster.create_log(source)
    on_spark.cluster.create_log(sink)
    append(on_spark, source, values[:60])
    run_query(on_spark, source, sink, checkpoint, producerId="copier")
    # Make Spark forget its last commit, as if it was killed just then.
    newest = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=batch_of)
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    append(on_spark, source, values[60:])
    run_query(on_spark, source, sink, checkpoint, producerId="copier")
    assert contents(on_spark, sink) == values
    # Without its checkpoint the query begins at batch 0 again. The sink must not take the batch for done.
    with pytest.raises(Exception, match="checkpoint was deleted"):
        run_query(on_spark, source, sink, tmp_path / "another", producerId="copier")
    assert contents(on_spark, sink) == values


def test_two_queries_and_a_service_write_one_log_at_once(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    sink = f"{log_name}/out"
    on_spark.cluster.create_log(sink)
    values = {name: [b"%s %d" % (name.encode(), at) for at in range(120)] for name in ("one", "two")}
    for name, rows in values.items():
        on_spark.cluster.create_log(f"{log_name}/{name}")
        append(on_spark, f"{log_name}/{name}", rows)
    of_service = []
    with on_spark.cluster.open_log(sink).writer() as writer:
        queries = [start_query(on_spark, f"{log_name}/{name}", sink, tmp_path / name) for name in values]
        while any(query.isActive for query in queries):
            of_service.append(b"service %d" % len(of_service))
            writer.append(of_service[-1])
            queries[0].awaitTermination(0.1)
        assert [query.exception() for query in queries] == [None, None]
        of_service.append(b"service, last")
        assert writer.append(of_service[-1]).epoch == 1, "nobody was deposed"
    found = contents(on_spark, sink)
    for name, rows in (*values.items(), ("service", of_service)):
        assert [row for row in found if row.startswith(name.encode())] == rows
    assert len(found) == 240 + len(of_service)


def test_a_checkpoint_that_is_put_back_is_an_error_and_no_loss(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    """An old checkpoint uses batch numbers again. If the sink took those batches for done, every query would
    succeed without writing them."""
    source, sink, checkpoint = f"{log_name}/in", f"{log_name}/out", tmp_path / "checkpoint"
    values = [b"%d" % at for at in range(260)]
    on_spark.cluster.create_log(source)
    on_spark.cluster.create_log(sink)
    append(on_spark, source, values[:40])
    run_query(on_spark, source, sink, checkpoint, producerId="copier")
    shutil.copytree(checkpoint, tmp_path / "old")
    append(on_spark, source, values[40:130])
    run_query(on_spark, source, sink, checkpoint, producerId="copier")
    append(on_spark, source, values[130:])
    # The older checkpoint goes on with batch 1, but the log has batches 0 to 3.
    with pytest.raises(Exception, match="batch 1, but the log already has the batches up to 3"):
        run_query(on_spark, source, sink, tmp_path / "old", producerId="copier")
    assert contents(on_spark, sink) == values[:130]
    # The newer checkpoint still works.
    run_query(on_spark, source, sink, checkpoint, producerId="copier")
    assert contents(on_spark, sink) == values


def test_a_job_whose_number_goes_back_or_that_has_other_rows_is_an_error(
    on_spark: SparkOnLogs, log_name: str
) -> None:
    on_spark.cluster.create_log(log_name)
    write(on_spark, log_name, 0, 10, producerId="nightly", batchSeq=2)
    with pytest.raises(Exception, match="batch 1, but the log already has the batches up to 2"):
        write(on_spark, log_name, 10, 20, producerId="nightly", batchSeq=1)
    with pytest.raises(Exception, match="has 11 records, but the batch of that number in the log has 10"):
        write(on_spark, log_name, 0, 11, producerId="nightly", batchSeq=2)
    assert sorted(contents(on_spark, log_name)) == texts(0, 10)


def batch_of(path: Path) -> int:
    return int(path.name)
