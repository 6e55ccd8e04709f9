"""A sink that kills its own process if a test says so: in the middle of a task's rows, just before the
transaction of a commit, or just after it.

A test leaves a note, an empty file, in a directory: ``task-BATCH-PARTITION``, ``before-BATCH`` or
``after-BATCH``. The first process to find the note removes it and kills itself, so each note kills one
process. Otherwise the sink does the same as ``format("ledgerlog")``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark import TaskContext, cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ledgerlog.spark.sink import LogStreamWriter, stream_writer

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's processes cannot import the tests.


def die_if_told(notes: Path, note: str) -> None:
    try:
        (notes / note).unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class KilledSink(DataSource):
    """``format("killed_sink")``, with the option ``notes``."""

    @classmethod
    def name(cls) -> str:
        return "killed_sink"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        options = {name: value for name, value in dict(self.options).items() if name.lower() != "notes"}
        return KilledWriter(stream_writer(options, schema, overwrite), Path(self.options["notes"]))


class KilledWriter(DataSourceStreamArrowWriter):
    def __init__(self, writer: LogStreamWriter, notes: Path) -> None:
        self._writer = writer
        self._notes = notes

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        note = f"task-{context.getLocalProperty('streaming.sql.batchId')}-{context.partitionId()}"

        def rows() -> Iterator[Any]:
            for batch in iterator:
                yield batch.slice(0, 1)
                die_if_told(self._notes, note)
                yield batch.slice(1)

        return self._writer.write(rows())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        die_if_told(self._notes, f"before-{batchId}")
        self._writer.commit(messages, batchId)
        die_if_told(self._notes, f"after-{batchId}")
