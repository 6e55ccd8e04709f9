"""Write golden checkpoints of the version that runs this: ``python -m tests.golden.make_checkpoints FILE``.

Run it once for each release, from the tree of that release, and keep the result for ever. The file, a
tar.xz, has a cluster of one bookie (``cluster``) and the checkpoints of two streams of Spark that used it:

    copy       from the log ``in`` to the log ``out``. The newest commit is missing, as if Spark was killed
               just after the sink had written its batch
    distinct   the rows of ``in``, all columns, without duplicates, to the log ``distinct``. Spark keeps the
               columns in the state of the query
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from ledgerlog import blocking
from ledgerlog.model.quorum import Replication
from ledgerlog.spark import session

COMMAND = (sys.executable, "-m", "ledgerlog", "cluster", "run")

VALUES = [b"value %d" % number for number in range(50)]
"""The records of ``in``. Each micro-batch has 20 of them at most."""


def run_copy(spark: Any, uri: str, checkpoint: Path) -> None:
    """Run the query ``copy`` until it has read everything."""
    rows = spark.readStream.format("ledgerlog").options(
        uri=uri, startingOffsets="earliest", maxOffsetsPerTrigger=20
    )
    write(rows.load("in").select("value"), uri, checkpoint, "out")


def run_distinct(spark: Any, uri: str, checkpoint: Path, schema: str | None = None) -> None:
    """Run the query ``distinct`` until it has read everything, with these columns or with all."""
    reader = spark.readStream.format("ledgerlog").options(uri=uri, startingOffsets="earliest")
    rows = (reader if schema is None else reader.schema(schema)).load("in")
    write(rows.dropDuplicates().select("value"), uri, checkpoint, "distinct")


def write(rows: Any, uri: str, checkpoint: Path, log: str) -> None:
    query = (
        rows.writeStream.format("ledgerlog")
        .options(uri=uri, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start(log)
    )
    assert query.awaitTermination(120)


def batch_of(path: Path) -> int:
    return int(path.name)


def forget_newest_commit(checkpoint: Path) -> None:
    commits = (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    newest = max(commits, key=batch_of)
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)


def main(file: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as directory:
        path = Path(directory)
        process = subprocess.Popen(
            [*COMMAND, str(path / "cluster"), "--bookies", "1", "--json"],
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            uri = json.loads(process.stdout.readline())["uri"]
            spark = session("golden", master="local[1]", config={"spark.sql.shuffle.partitions": "1"})
            with blocking.connect(uri) as cluster:
                for name in ("in", "out", "distinct"):
                    cluster.create_log(name, replication=Replication(1, 1, 1))
                with cluster.open_log("in").writer() as writer:
                    writer.append_many(VALUES)
                run_copy(spark, uri, path / "copy")
                run_distinct(spark, uri, path / "distinct")
            forget_newest_commit(path / "copy")
            spark.stop()
        finally:
            process.terminate()
            process.wait()
        with tarfile.open(file, "w:xz") as tar:
            for name in ("cluster", "copy", "distinct"):
                tar.add(path / name, arcname=name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
