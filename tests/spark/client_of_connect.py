"""A client of Spark Connect that does with logs all that docs/SPARK.md has: ``python -m
tests.spark.client_of_connect URI DIRECTORY``. The cluster has one log, ``orders``, with three records of JSON
in two ledgers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ledgerlog.spark import session
from ledgerlog.spark.archive import archive_on_spark, compact_on_spark
from ledgerlog.spark.audit_job import audit
from ledgerlog.spark.progress import MicroBatch, show_progress
from ledgerlog.spark.views import register_logs


def main(uri: str, directory: Path) -> None:
    spark = session(
        "a client of Spark Connect",
        master="local[2,4]",
        config={
            "spark.api.mode": "connect",
            "spark.driver.memory": "600m",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.log.level": "ERROR",
        },
    )
    assert not hasattr(spark, "sparkContext"), "this is no client"
    orders = spark.read.format("ledgerlog").option("uri", uri).load("orders")
    assert orders.count() == 3

    rows = spark.range(2).selectExpr("CAST(id AS STRING) AS value")
    writer = rows.write.format("ledgerlog").option("uri", uri).option("createLog", "true")
    writer.mode("append").save("copy")
    with pytest.raises(Exception, match="only appended to"):
        writer.mode("overwrite").save("copy")

    batches: list[MicroBatch] = []
    listener = show_progress(spark, batches.append)
    query = (
        spark.readStream.format("ledgerlog")
        .options(uri=uri, startingOffsets="earliest")
        .load("orders")
        .select("value")
        .writeStream.format("ledgerlog")
        .options(uri=uri, checkpointLocation=str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start("copy")
    )
    assert query.awaitTermination(300)
    assert query.exception() is None
    spark.streams.removeListener(listener)
    assert [(batch.rows, dict(batch.behind)) for batch in batches] == [(3, {"orders": 0})]

    assert set(register_logs(spark, uri)) == {"copy", "orders"}
    assert spark.sql("SELECT count(*) FROM copy CROSS JOIN orders").collect()[0][0] == 15

    with audit(spark, uri, on_progress=lambda done, total: None) as found:
        assert found.is_clean
        assert found.logs == 2
    steps = archive_on_spark(spark, uri, "orders", str(directory / "archive"), keep_copies_s=0)
    assert sorted(step.what for step in steps) == ["copied", "copied", "given up"], steps
    steps = compact_on_spark(spark, uri, "orders", str(directory / "archive"), key="json:id")
    assert [step.what for step in steps] == ["compacted"], steps
    spark.stop()
    print("all of it works")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
