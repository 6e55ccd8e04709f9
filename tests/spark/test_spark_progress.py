"""A line for each micro-batch: read from Spark's progress report, and shown while the query runs."""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.sql.streaming.listener import StreamingQueryListener

from ledgerlog.spark.progress import MicroBatch, _offsets, micro_batch, show_progress
from ledgerlog.spark.stream import StreamOffset, encode_offsets
from tests.spark.conftest import SparkOnLogs
from tests.spark.test_spark_sink import append, contents, run_query


def said(
    end: dict[str, StreamOffset], newest: dict[str, StreamOffset] | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "id": "0123456789abcdef",
        "name": "copy",
        "timestamp": "2026-03-01T12:00:00.500Z",
        "batchId": 7,
        "batchDuration": 500,
        "durationMs": {"latestOffset": 12, "triggerExecution": 500},
        "numInputRows": 2000,
        "sources": [
            {
                "endOffset": encode_offsets(end),
                "latestOffset": None if newest is None else encode_offsets(newest),
            }
        ],
        **more,
    }


def test_the_line_says_rows_rate_and_how_far_each_log_is_behind() -> None:
    batch = micro_batch(
        said(
            {"orders": StreamOffset(7, 320), "other": StreamOffset(8, 5)},
            {"orders": StreamOffset(7, 1523), "other": StreamOffset(8, 5)},
        )
    )
    assert (
        str(batch)
        == "copy batch 7: 2,000 rows, 4,000 rows/s; orders at 320, 1,203 behind; other at 5, at the end"
    )
    assert (batch.duration_s, batch.begun) == (0.5, datetime(2026, 3, 1, 12, 0, 0, 500_000, UTC))


def test_offsets_come_as_text_as_well_and_of_other_sources_only_the_rows_count() -> None:
    place = {"orders": StreamOffset(7, 320)}
    source = {"endOffset": json.dumps(encode_offsets(place)), "latestOffset": "null"}
    for sources, expected in (
        ([source], {"orders": 320}),
        ([{"endOffset": 17, "latestOffset": 18}, {"endOffset": "{", "latestOffset": "{"}], {}),
        ([{"endOffset": {"topic": {"0": 3}}}], {}),
    ):
        batch = micro_batch(said(place, sources=sources, name=None))
        assert batch.reached == expected
        assert batch.behind == {}
        line = "01234567 batch 7: 2,000 rows, 4,000 rows/s"
        assert str(batch) == "; ".join([line, *(f"{log} at {at}" for log, at in expected.items())])


def test_of_a_batch_that_a_restarted_query_repeats_the_lag_is_not_known() -> None:
    place = {"orders": StreamOffset(7, 320)}
    batch = micro_batch(said(place, place, durationMs={"addBatch": 400, "triggerExecution": 500}))
    assert (batch.reached, batch.behind) == ({"orders": 320}, {})
    assert str(batch) == "copy batch 7: 2,000 rows, 4,000 rows/s; orders at 320"
    many = {f"log{at}": StreamOffset(at, 1) for at in range(9)}
    assert str(micro_batch(said(many))).endswith("; log5 at 1; 3 more logs")


def test_of_a_log_that_was_made_anew_all_is_behind() -> None:
    batch = micro_batch(said({"orders": StreamOffset(7, 320)}, {"orders": StreamOffset(9, 10)}))
    assert batch.behind == {"orders": 10}


def test_of_many_logs_those_that_are_furthest_behind_are_named() -> None:
    logs = {f"log{at}": StreamOffset(at, 100 - at) for at in range(9)}
    line = str(micro_batch(said(logs, {log: StreamOffset(at.incarnation, 100) for log, at in logs.items()})))
    assert "; log8 at 92, 8 behind; log7" in line
    assert line.endswith("; 3 more logs, 3 behind")


def test_a_batch_that_took_no_time_has_no_rate() -> None:
    assert micro_batch(said({}, batchDuration=0)).rows_per_s == 0


class Reports(StreamingQueryListener):
    """What Spark itself reports of each micro-batch."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self.found.append(json.loads(event.progress.json))

    def onQueryTerminated(self, event: Any) -> None:
        pass


def test_at_exit_the_last_batch_is_told_and_the_listener_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[Callable[[], object]] = []
    monkeypatch.setattr(
        atexit, "register", lambda function, *given: at_exit.append(partial(function, *given))
    )
    spark = MagicMock()
    bus = spark.sparkContext._jsc.sc().listenerBus()
    bus.waitUntilEmpty.side_effect = TimeoutError  # The removal does not depend on it.
    listener = show_progress(spark)
    (end,) = at_exit
    spark.streams.removeListener.assert_not_called()
    end()
    bus.waitUntilEmpty.assert_called_once()
    spark.streams.removeListener.assert_called_once_with(listener)
    spark.sparkContext._jsc = None  # The session has ended.
    end()


@pytest.mark.processes
def test_every_micro_batch_is_told_while_the_query_runs(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, sink = f"{log_name}/in", f"{log_name}/out"
    for name in (source, sink):
        on_spark.cluster.create_log(name)
    append(on_spark, source, [b"%d" % at for at in range(90)])
    told: list[MicroBatch] = []
    reports = Reports()
    on_spark.spark.streams.addListener(reports)
    listeners = [show_progress(on_spark.spark), show_progress(on_spark.spark, told.append), reports]
    try:
        run_query(on_spark, source, sink, tmp_path / "checkpoint")
        on_spark.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        for listener in listeners:
            on_spark.spark.streams.removeListener(listener)
    assert len(contents(on_spark, sink)) == 90
    assert [(batch.rows, dict(batch.reached), dict(batch.behind)) for batch in told] == [
        (40, {source: 40}, {source: 50}),
        (40, {source: 80}, {source: 10}),
        (10, {source: 90}, {source: 0}),
    ]
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if " batch " in line] == [str(batch) for batch in told]
    # Spark's own report has the lag as two positions. It has no place for more of a source in Python.
    assert len(reports.found) >= len(told)
    for batch, report in zip(told, reports.found, strict=False):
        (part,) = report["sources"]
        ends = (_offsets(part[name])[source].offset for name in ("endOffset", "latestOffset"))
        assert tuple(ends) == (batch.reached[source], 90)
        assert part["numInputRows"] == batch.rows
        assert part.keys() >= {"inputRowsPerSecond", "processedRowsPerSecond"}
        assert not part.get("metrics")
