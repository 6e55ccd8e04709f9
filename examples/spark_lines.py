"""Text through Spark: lines into a log, a table of them, a stream of figures into another log, and a plot.

    python examples/spark_lines.py [FILE ...] [--seconds 20] [--plot lines.png] [--master spark://HOST:7077]

It starts a temporary cluster, and Spark on this machine. ``pip install 'ledgerlog[spark,plot]'``
installs everything that it needs. With ``--master`` a Spark cluster of this machine does the work instead.
It appends the lines of the files, or of Python's own manual, again and again. The minute of a line is the
time at its beginning (2026-03-01T12:00:07), or the time of its append. Each function is a separate step, like
a cell of a notebook; ``run`` calls all of them in order.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ledgerlog import blocking
from ledgerlog.spark.progress import MicroBatch, micro_batch, show_progress
from ledgerlog.spark.session import LOCAL_MASTER, session


@contextmanager
def throw_away_cluster() -> Iterator[str]:
    """Run a cluster of three bookie processes for the body of the ``with``. Yield its URI."""
    with tempfile.TemporaryDirectory() as path:
        command = [sys.executable, "-m", "ledgerlog", "cluster", "run", f"{path}/cluster", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield json.loads(process.stdout.readline())["uri"]
            finally:
                process.terminate()


def text_lines(files: Sequence[Path]) -> list[bytes]:
    """Return the lines of the files that are not blank; without files, the lines of Python's manual."""
    texts = [file.read_text(encoding="utf-8") for file in files] or topics.values()
    return [line.encode() for text in texts for line in text.splitlines() if line.strip()]


def append_lines(uri: str, name: str, lines: list[bytes], stop: threading.Event, chunk: int = 500) -> int:
    """Append the lines again and again, ``chunk`` together, until ``stop`` is set. Return their number."""
    count = 0
    with blocking.connect(uri) as cluster, cluster.open_log(name).writer() as writer:
        for start in itertools.cycle(range(0, len(lines), chunk)):
            count += len(writer.append_many(lines[start : start + chunk]))
            if stop.wait(0.02):
                break
    return count


def start_counting(spark: SparkSession, uri: str, name: str, counts: str, checkpoint: str) -> Any:
    """Start the stream: it writes lines and bytes of each second, as JSON, to the log ``counts``, once.

    A second is written when a later line shows that it is over. So the last second is still open when the
    query ends. The next run that starts from the checkpoint writes it."""
    lines = spark.readStream.format("ledgerlog").options(uri=uri, startingOffsets="earliest").load(name)
    per_second = (
        lines.withWatermark("timestamp", "0 seconds")
        .groupBy(F.window("timestamp", "1 second").alias("second"))
        .agg(F.count("*").alias("lines"), F.sum(F.length("value")).alias("bytes"))
    )
    return (
        per_second.select(F.to_json(F.struct("second.start", "lines", "bytes")).alias("value"))
        .writeStream.queryName(counts)
        .format("ledgerlog")
        .options(uri=uri, checkpointLocation=checkpoint)
        .trigger(processingTime="1 second")
        .start(counts)
    )


def lines_per_minute(spark: SparkSession, uri: str, name: str) -> list[tuple[str, int]]:
    """Return the table: the number of lines of each minute."""
    columns = "timestamp TIMESTAMP, value BINARY"
    table = spark.read.format("ledgerlog").option("uri", uri).schema(columns).load(name)
    begins = F.regexp_extract(F.col("value").cast("string"), r"^\d{4}-\d\d-\d\d[T ][\d:]{8}", 0)
    minute = F.date_trunc("minute", F.coalesce(F.try_to_timestamp(begins), "timestamp")).cast("string")
    return [(row[0], row[1]) for row in table.groupBy(minute.alias("at")).count().orderBy("at").collect()]


def read_counts(uri: str, counts: str) -> list[dict[str, Any]]:
    """Return the records that the stream has written, read without Spark."""
    with blocking.connect(uri) as cluster, cluster.open_log(counts).read() as records:
        return [json.loads(record.data) for record in records]


def plot(batches: Sequence[MicroBatch], minutes: Sequence[tuple[str, int]], name: str, path: Path) -> None:
    """Plot the lines by minute, and for each micro-batch the rows per second and the rows behind."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 8), layout="constrained")
    bars, rate = figure.subplots(2)
    bars.bar([minute[:16] for minute, _ in minutes], [count for _, count in minutes])
    bars.set(ylabel="lines by minute", title=f"The log {name}")
    bars.tick_params("x", rotation=30)
    at = [(batch.begun - batches[0].begun).total_seconds() for batch in batches]
    rate.plot(at, [batch.rows_per_s for batch in batches], "o-", label="rows per second")
    rate.plot(at, [batch.behind.get(name) for batch in batches], "--", label="rows behind")
    rate.set(xlabel="seconds", title=f"A stream over {name}")
    rate.legend()
    figure.savefig(path)


def run(spark: SparkSession, uri: str, name: str, lines: list[bytes], seconds: float, path: Path) -> None:
    """Run all steps, while a thread appends for ``seconds``."""
    counts = f"{name}-per-second"
    with blocking.connect(uri) as cluster:
        cluster.create_log(name)
        cluster.create_log(counts)
    listener = show_progress(spark)
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as checkpoint, ThreadPoolExecutor(1) as pool:
        appending = pool.submit(append_lines, uri, name, lines, stop)
        query = start_counting(spark, uri, name, counts, checkpoint)
        try:
            query.awaitTermination(seconds)
        finally:
            stop.set()
        print(f"{appending.result():,} lines appended")
        query.processAllAvailable()
        query.stop()
    progress = [micro_batch(json.loads(each.json)) for each in query.recentProgress]
    minutes = lines_per_minute(spark, uri, name)
    for minute, count in minutes:
        print(f"{minute}  {count:,} lines")
    for each in read_counts(uri, counts):
        print(f"{each['start']}  {each['lines']:,} lines, {each['bytes']:,} bytes")
    spark.streams.removeListener(listener)
    plot([batch for batch in progress if batch.rows], minutes, name, path)
    print(f"{len(progress)} micro-batches, plotted in {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--plot", type=Path, default=Path("lines.png"))
    parser.add_argument("--master", default=LOCAL_MASTER)
    given = parser.parse_args()
    with throw_away_cluster() as uri:
        config = {"spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"}
        spark = session("lines", master=given.master, config=config)
        run(spark, uri, "lines", text_lines(given.files), given.seconds, given.plot)
        spark.stop()
