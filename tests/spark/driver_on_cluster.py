"""A driver of a Spark cluster that a test kills.

    python driver_on_cluster.py MASTER URI copy SOURCE SINK CHECKPOINT
    python driver_on_cluster.py MASTER URI archive LOG DESTINATION

``copy`` copies a log to a log in micro-batches of 40 rows with four tasks, until it is killed or refused.
From time to time the first attempt of a task is slow, so that Spark runs a speculative copy of it.
``archive`` does all archive work of a log, and prints the steps.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

from ledgerlog.archive.jobs.publishing import TableOptions
from ledgerlog.spark import session
from ledgerlog.spark.archive import archive_on_spark

SLOW_S = 5.0
ROWS, TASKS = 40, 4


def copy(spark: Any, uri: str, source: str, sink: str, checkpoint: str) -> None:
    def sometimes_slow(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        is_first = context is not None and context.attemptNumber() == 0
        if is_first and context.partitionId() == TASKS - 1 and random.random() < 0.25:
            time.sleep(SLOW_S)
        yield from batches

    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": ROWS, "minPartitions": TASKS}
    rows = spark.readStream.format("ledgerlog").options(uri=uri, **options).load(source).select("value")
    query = (
        rows.mapInArrow(sometimes_slow, "value BINARY")
        .writeStream.format("ledgerlog")
        .options(uri=uri, checkpointLocation=checkpoint)
        .trigger(processingTime="100 milliseconds")
        .start(sink)
    )
    query.awaitTermination()


def archive(spark: Any, uri: str, name: str, destination: str) -> None:
    steps = archive_on_spark(spark, uri, name, destination, keep_copies_s=0, table=TableOptions())
    print(json.dumps(Counter(step.what for step in steps)))


if __name__ == "__main__":
    master, uri, what, *given = sys.argv[1:]
    on_cluster = session(f"{what} {given[0]}", master=master)
    {"copy": copy, "archive": archive}[what](on_cluster, uri, *given)
    on_cluster.stop()
