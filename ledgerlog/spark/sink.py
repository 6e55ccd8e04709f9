"""Writing tables to a log: each task stages a ledger, and one commit splices all ledgers (``log.attach``).

    tasks     Each writes its rows to its own new ledger, closes it, and reports it.
    driver    ``commit`` makes all these ledgers part of the log in one transaction, or none of them.

If a task fails, is killed or runs twice, it leaves a ledger that no list names. A sweep deletes that ledger.
Spark's ``abort`` deletes nothing: Spark also calls it after a commit that took effect but whose answer was
lost, and while tasks still write.

**Once.** Spark numbers the batches of a stream, from 0 with a new checkpoint. The producer of the batches is
the query's id, which is in the checkpoint; the option ``producerId`` sets another producer. If Spark repeats
a batch because it forgot that the batch was done, the commit finds the batch in the log and changes nothing.
A batch job is written once if you give it ``producerId`` and a ``batchSeq`` that grows from job to job.
Without them every job counts as new.

**What the commit knows.** It runs in its own process, on a new object. So the messages of the tasks carry all
that it needs: the log's incarnation, the query, the run of the query, the batch. The run is Spark's job
group, which is new with each start of a query. It tells two drivers on one checkpoint apart
(``log.core.attach``).

**Columns** are ``value`` and, if the table has them, ``key`` and ``headers`` in the types of Kafka's sink.
Null is no key and no headers.

**Refused** are overwriting and complete output, because a log is only appended to; other columns, because
they would be lost silently; null values, and null as the name or the value of a header."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ledgerlog.blocking.portal import Portal
from ledgerlog.errors import InvalidArgument, LogExists, LogNotFound
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.environment import Environment
from ledgerlog.log.attach import splice, stage
from ledgerlog.log.core.attach import Commit, SpliceRefused, Staged
from ledgerlog.log.registry import LogRegistry
from ledgerlog.spark.options import WriteOptions, parse_write_options
from ledgerlog.spark.source import connected

__all__ = ["BatchOf", "LogStreamWriter", "LogTableWriter", "StagedRows", "commit_rows", "stage_rows"]

_JOBS = "batch jobs"
"""The source of batch jobs, which number their batches themselves (``Commit.source``)."""

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"


@attrs.frozen
class BatchOf:
    """Identifies the batch that a task writes a part of."""

    source: str
    """The query's id; for a batch job a constant."""
    run: str
    """Spark's job group, which is new with each start of a query; for a batch job a random token."""
    batch: int
    """The number of the batch."""


@attrs.frozen
class StagedRows(WriterCommitMessage):
    """The message of a task: the ledger that it staged."""

    cluster: str | None
    """The id of the cluster in which it was staged."""
    incarnation: int
    """The incarnation of the log."""
    batch_of: BatchOf
    """The batch."""
    staged: Staged | None
    """The staged ledger; None if the task had no rows."""


async def open_log(client: LedgerClient, options: WriteOptions) -> int:
    """Return the current incarnation of the log.

    Raises:
        LogNotFound: There is no log of this name.
    """
    incarnation = await LogRegistry(client.store, client.environment).find(options.log)
    if incarnation is None:
        raise LogNotFound(options.log)
    return incarnation


async def commit_rows(
    client: LedgerClient, options: WriteOptions, messages: Sequence[StagedRows | None], batch_id: int | None
) -> None:
    """Splice the staged ledgers of one batch, in the order of the tasks' messages.

    Args:
        client: The cluster.
        options: The log to write, and the producer.
        messages: The message of each task; None for a task without a message.
        batch_id: The number of the stream's batch; None for a batch job.

    Raises:
        SpliceRefused: A message is missing, or the messages are not of one batch of one log; nothing was
            spliced. ``splice`` raises this error for other reasons too, and raises other errors.
    """
    rows = [message for message in messages if message is not None]
    if len(rows) < len(messages):
        raise SpliceRefused(f"log {options.log!r}: a task of the batch did not report what it staged")
    if not rows:
        return  # A batch without partitions needs no number either.
    if len({(each.cluster, each.incarnation, each.batch_of) for each in rows}) != 1 or batch_id not in (
        None,
        rows[0].batch_of.batch,
    ):
        raise SpliceRefused(
            f"log {options.log!r}: the tasks of batch {batch_id} wrote for different batches, or the log was "
            "deleted and made again while they did, or the URI led to different clusters"
        )
    of = rows[0].batch_of
    staged = tuple(each.staged for each in rows if each.staged is not None)
    is_stream = batch_id is not None
    producer = options.producer_id or (of.source if is_stream else None)
    if producer is None and not staged:
        return
    await splice(
        client,
        LogRegistry(client.store, client.environment),
        options.log,
        rows[0].incarnation,
        Commit(
            producer=producer,
            source=of.source,
            run=of.run,
            batch=of.batch,
            staged=staged,
            gaps=not is_stream or not options.fail_on_data_loss,
        ),
    )


def stage_rows(options: WriteOptions, batches: Iterator[Any], of: BatchOf) -> StagedRows:
    """Write the rows of one task to a new ledger and close it.

    Args:
        options: The log to write, and the producer.
        batches: Arrow batches with a column ``value``, and perhaps ``key`` and ``headers``.
        of: The batch of which the task writes a part.

    Raises:
        InvalidArgument: A value is null, or headers are malformed. No list will name the ledger.
        RecordTooLarge: A record is over a limit. No list will name the ledger.
        LogNotFound: There is no log of this name.
    """
    portal = Portal()
    try:
        client, _ = portal.enter(connected(options.uri))
        incarnation = portal.run(lambda: open_log(client, options))
        registry = LogRegistry(client.store, client.environment)
        opened, held = portal.enter(stage(client, registry, options.log, incarnation))
        for batch in batches:
            append = partial(opened.append_many, _values(batch), keys=_keys(batch), headers=_headers(batch))
            portal.run(append)
        staged = portal.run(opened.close)
        held.leave()
    finally:
        portal.close()
    return StagedRows(client.store.cluster, incarnation, of, staged)


def _values(batch: Any) -> list[bytes]:
    column = batch.column("value")
    if column.null_count:
        raise InvalidArgument("a record is bytes: the column value holds null")
    values: list[bytes] = column.cast(pa.binary()).to_pylist()
    return values


def _keys(batch: Any) -> list[bytes | None] | None:
    if "key" not in batch.schema.names:
        return None
    keys: list[bytes | None] = batch.column("key").cast(pa.binary()).to_pylist()
    return keys


def _headers(batch: Any) -> list[list[tuple[str, bytes]] | None] | None:
    if "headers" not in batch.schema.names:
        return None
    rows = []
    for pairs in batch.column("headers").to_pylist():
        if pairs is not None and any(
            pair is None or pair["key"] is None or pair["value"] is None for pair in pairs
        ):
            raise InvalidArgument("a header has a name and bytes: the column headers holds null in one")
        rows.append(None if pairs is None else [(pair["key"], pair["value"]) for pair in pairs])
    return rows


_WRITTEN: Mapping[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""The columns that can be written, and the types that each may have."""


def check_written(schema: StructType, overwrite: bool) -> None:
    """Check that a table can be written to a log.

    Raises:
        InvalidArgument: The mode is overwrite or complete, or the table lacks ``value``, or it has another
            column than ``value``, ``key`` and ``headers``, or one of another type.
    """
    if overwrite:
        raise InvalidArgument(
            "a log is only appended to: neither mode overwrite nor output mode complete can be written to it"
        )
    names = schema.names
    if (
        "value" not in names
        or len(set(names)) != len(names)
        or any(field.dataType.simpleString() not in _WRITTEN.get(field.name, ()) for field in schema.fields)
    ):
        columns = "; ".join(f"{name} ({' or '.join(types)})" for name, types in _WRITTEN.items())
        raise InvalidArgument(
            f"a log takes a table with the column value, and perhaps key and headers, and not "
            f"{schema.simpleString()}. Their types: {columns}"
        )


def _require_log(options: WriteOptions) -> None:
    """Find the log on the driver's host, before Spark starts a task. Make it if the options say so."""

    async def work() -> None:
        async with connected(options.uri) as client:
            if not options.create_log:
                await open_log(client, options)
                return
            registry = LogRegistry(client.store, client.environment)
            if await registry.find(options.log) is None:
                with suppress(LogExists):  # Another job made it just now.
                    await registry.create(options.log, replication=client.default_replication)

    portal = Portal()
    try:
        portal.run(work)
    finally:
        portal.close()


def _commit(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int | None
) -> None:
    rows = [message if isinstance(message, StagedRows) else None for message in messages]

    async def work() -> None:
        # In another cluster, the ids of the staged ledgers belong to other ledgers.
        cluster = next((each.cluster for each in rows if each is not None), None)
        async with connected(options.uri, cluster=cluster) as client:
            await commit_rows(client, options, rows, batch_id)

    portal = Portal()
    try:
        portal.run(work)
    finally:
        portal.close()


class LogTableWriter(DataSourceArrowWriter):
    """The writer for ``df.write.format("ledgerlog").mode("append")``. Spark calls it.

    Spark makes one for each job, and sends it to the job's tasks and to its commit.

    Args:
        options: The log to write, and the producer.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._of = BatchOf(_JOBS, Environment().new_token().hex(), options.batch_seq or 0)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of one task to a new ledger. The errors are those of ``stage_rows``."""
        return stage_rows(self._options, iterator, self._of)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Splice the ledgers that the tasks staged. The errors are those of ``commit_rows``."""
        _commit(self._options, messages, None)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """The writer for ``df.writeStream.format("ledgerlog")``. Spark calls it.

    Spark makes a new one for each batch's tasks and for its commit.

    Args:
        options: The log to write, and the producer.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of one task to a new ledger. The errors are those of ``stage_rows``."""
        return stage_rows(self._options, iterator, _batch_of_task())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Splice the ledgers that the tasks staged. The errors are those of ``commit_rows``."""
        _commit(self._options, messages, batchId)


def _batch_of_task() -> BatchOf:
    """Return the batch that this task belongs to, from the properties that Spark gives the task."""
    context = TaskContext.get()
    said = {name: context and context.getLocalProperty(name) for name in (_QUERY_ID, _RUN_ID, _BATCH_ID)}
    query, run, batch = said[_QUERY_ID], said[_RUN_ID], said[_BATCH_ID]
    if not query or not run or not batch:
        raise SpliceRefused(f"Spark does not say which batch of which query a task belongs to: {said}")
    return BatchOf(query, run, int(batch))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> LogTableWriter:
    """Return the writer for ``df.write``.

    Args:
        options: The options of the job, by name.
        schema: The columns of the table.
        overwrite: Whether the mode is overwrite.

    Raises:
        InvalidArgument: An option, the schema or the mode is wrong.
        LogNotFound: There is no log of this name, and the options do not say to make it.
    """
    check_written(schema, overwrite)
    parsed = parse_write_options(options, is_stream=False)
    _require_log(parsed)
    return LogTableWriter(parsed)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> LogStreamWriter:
    """Return the writer for ``df.writeStream``.

    Args:
        options: The options of the query, by name.
        schema: The columns of the table.
        overwrite: Whether the output mode is complete.

    Raises:
        InvalidArgument: An option, the schema or the mode is wrong.
        LogNotFound: There is no log of this name, and the options do not say to make it.
    """
    check_written(schema, overwrite)
    parsed = parse_write_options(options, is_stream=True)
    _require_log(parsed)
    return LogStreamWriter(parsed)
