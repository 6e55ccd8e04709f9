"""``spark.readStream.format("ledgerlog")`` on real bookies: every record once, across restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ledgerlog.spark.columns import DECLARED
from tests.spark.conftest import SparkOnLogs

pytestmark = pytest.mark.processes


def run_to_the_end(on_spark: SparkOnLogs, name: str, path: Path, **options: Any) -> list[dict[str, Any]]:
    """Run the query over the present records; return the progress of each batch."""
    query = (
        on_spark.read_stream(startingOffsets="earliest", **options)
        .load(name)
        .selectExpr("offset", "CAST(value AS STRING) AS value")
        .writeStream.format("parquet")
        .option("path", str(path / "table"))
        .option("checkpointLocation", str(path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return [json.loads(progress.json) for progress in query.recentProgress]


def test_every_record_once_over_restarts_and_the_cursor_follows(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    log = on_spark.cluster.create_log(log_name)
    values = [b"%d" % at for at in range(90)]
    for run, begun in enumerate((0, 50)):
        with log.writer() as writer:
            writer.append_many(values[begun : begun + (50, 40)[run]])
        progress = run_to_the_end(on_spark, log_name, tmp_path, maxOffsetsPerTrigger=30, cursorName="etl")
        counts = [batch["numInputRows"] for batch in progress if batch["numInputRows"]]
        assert counts == ([30, 20], [30, 10])[run]
    source = progress[-1]["sources"][0]
    assert source["latestOffset"]["logs"][log_name]["offset"] == 90
    rows = on_spark.spark.read.parquet(str(tmp_path / "table")).orderBy("offset").collect()
    assert [(row.offset, row.value.encode()) for row in rows] == list(enumerate(values))
    state = log.cursor("etl").get()
    assert state is not None
    assert state.offset > 0


def test_a_checkpoint_from_before_there_was_the_column_key_goes_on(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    log = on_spark.cluster.create_log(log_name)
    before = [column for column in DECLARED.split(", ") if not column.startswith("key ")]
    for number, schema in enumerate((", ".join(before), None)):
        with log.writer() as writer:
            writer.append_many([b"0", b"1"], keys=[None, b"k%d" % number])
        reader = on_spark.read_stream(startingOffsets="earliest")
        query = (
            (reader if schema is None else reader.schema(schema))
            .load(log_name)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "table"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
    rows = on_spark.spark.read.option("mergeSchema", True).parquet(str(tmp_path / "table")).orderBy("offset")
    found = [(row.offset, row.key) for row in rows.collect()]
    assert found == [(0, None), (1, None), (2, None), (3, bytearray(b"k1"))]


def test_a_log_made_anew_fails_the_query_and_says_why(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    with on_spark.cluster.create_log(log_name).writer() as writer:
        writer.append(b"x")
    run_to_the_end(on_spark, log_name, tmp_path)
    on_spark.cluster.delete_log(log_name)
    on_spark.cluster.create_log(log_name)
    with pytest.raises(Exception, match="deleted and made again"):
        run_to_the_end(on_spark, log_name, tmp_path)
