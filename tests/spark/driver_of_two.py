"""Run a query from a log to a log in a separate driver, again and again, until a file appears.

    python driver_of_two.py URI SOURCE SINK CHECKPOINT STOP

prints as JSON how often the query started and how often it ended with an error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ledgerlog.spark import session


def main(uri: str, source: str, sink: str, checkpoint: str, stop: str) -> None:
    spark = session(
        "driver of two",
        master="local[2,4]",
        config={
            "spark.driver.memory": "600m",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.log.level": "ERROR",
        },
    )
    started = 0
    refused: list[str] = []
    while not Path(stop).exists():
        query = (
            spark.readStream.format("ledgerlog")
            .options(uri=uri, startingOffsets="earliest", maxOffsetsPerTrigger=40, minPartitions=4)
            .load(source)
            .select("value")
            .writeStream.format("ledgerlog")
            .options(uri=uri, checkpointLocation=checkpoint)
            .trigger(processingTime="200 milliseconds")
            .start(sink)
        )
        started += 1
        try:
            while not Path(stop).exists() and not query.awaitTermination(1):
                pass
            query.stop()
        except Exception as cause:
            refused.append(str(cause).strip().splitlines()[0][:200])
    print(json.dumps({"started": started, "refused": len(refused), "words": sorted(set(refused))[:4]}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
