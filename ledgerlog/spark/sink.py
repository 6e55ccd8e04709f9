"""Writing tables to a log: each task stages a ledger, and one commit splices all of them (``log.attach``).

    tasks     write their rows to a ledger of their own, close it, and say what they staged
    driver    ``commit``: one transaction makes all of them part of the log, or none

A task that fails, is killed or runs twice has written to a ledger that nothing names, and a sweep removes it.
Spark's ``abort`` deletes nothing: it also comes after a commit that took effect and whose answer was lost,
and while tasks still write.

**Once.** A stream's batches are numbered by Spark and begin at 0 with the checkpoint. Whose they are is the
query's id, which is in the checkpoint; ``producerId`` gives them a name of their own. A batch that Spark does
again, having lost what it knew of the first time, is found to be there and changes nothing. A batch job
counts once where it says so: ``producerId`` and a ``batchSeq`` that grows from job to job. Without them each
job is new.

**What the commit knows.** It runs in a process of its own, on an object made anew. So the messages of the
tasks carry everything: the log's incarnation, the query, the run of it, the batch. The run is Spark's job
group, which is made with each start of a query; it tells two drivers on one checkpoint apart
(``log.core.attach``).

**Refused**: overwriting and complete output, since a log is only appended to; columns besides ``value``,
which would be lost without a word; null."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from pyspark.sql.types import BinaryType, StringType, StructType

from ledgerlog.blocking.portal import Portal
from ledgerlog.errors import InvalidArgument, LogNotFound
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.environment import Environment
from ledgerlog.log.attach import splice, stage
from ledgerlog.log.core.attach import Commit, SpliceRefused, Staged
from ledgerlog.log.registry import LogRegistry
from ledgerlog.spark.options import WriteOptions, parse_write_options
from ledgerlog.spark.source import connected

__all__ = ["BatchOf", "LogStreamWriter", "LogWriter", "StagedRows", "commit_rows", "stage_rows"]

_JOBS = "batch jobs"
"""The source of what batch jobs write, which number themselves."""

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"


@attrs.frozen
class BatchOf:
    """Which batch a task writes a part of."""

    source: str
    run: str
    batch: int


@attrs.frozen
class StagedRows(WriterCommitMessage):
    """What one task has staged."""

    cluster: str | None
    """The id of the cluster in which it did."""
    incarnation: int
    batch_of: BatchOf
    staged: Staged | None
    """None where it had no rows."""


async def open_log(client: LedgerClient, options: WriteOptions) -> int:
    """The log's incarnation now. LogNotFound."""
    incarnation = await LogRegistry(client.store, client.environment).find(options.log)
    if incarnation is None:
        raise LogNotFound(options.log)
    return incarnation


async def commit_rows(
    client: LedgerClient, options: WriteOptions, messages: Sequence[StagedRows | None], batch_id: int | None
) -> None:
    """Splice what the tasks of one batch have staged, in the order of their messages. Errors as for
    ``splice``; SpliceRefused where the messages are not of one batch of one log."""
    rows = [message for message in messages if message is not None]
    if len(rows) < len(messages):
        raise SpliceRefused(f"log {options.log!r}: a task of the batch has not said what it staged")
    if not rows:
        return  # A batch of no partition has nothing to number either.
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
    """Write the rows of one task to a ledger of its own and close it."""
    portal = Portal()
    try:
        client, _ = portal.enter(connected(options.uri))
        incarnation = portal.run(lambda: open_log(client, options))
        registry = LogRegistry(client.store, client.environment)
        opened, held = portal.enter(stage(client, registry, options.log, incarnation))
        for batch in batches:
            values = _values(batch)
            portal.run(partial(opened.append_many, values))
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


def check_written(schema: StructType, overwrite: bool) -> None:
    """InvalidArgument where a table of that schema cannot be written, or not so."""
    if overwrite:
        raise InvalidArgument(
            "a log is only appended to: neither mode overwrite nor output mode complete can be written to it"
        )
    if schema.names != ["value"] or not isinstance(schema["value"].dataType, BinaryType | StringType):
        raise InvalidArgument(
            "what is written to a log is one column, value, of binary or string, and not "
            f"{schema.simpleString()}"
        )


def _commit(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int | None
) -> None:
    rows = [message if isinstance(message, StagedRows) else None for message in messages]

    async def work() -> None:
        # In another cluster the ids of staged ledgers are those of others.
        cluster = next((each.cluster for each in rows if each is not None), None)
        async with connected(options.uri, cluster=cluster) as client:
            await commit_rows(client, options, rows, batch_id)

    portal = Portal()
    try:
        portal.run(work)
    finally:
        portal.close()


class LogWriter(DataSourceArrowWriter):
    """``df.write.format("ledgerlog").mode("append")``. Made once a job, and sent to its tasks and its
    commit."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._of = BatchOf(_JOBS, Environment().new_token().hex(), options.batch_seq or 0)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return stage_rows(self._options, iterator, self._of)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages, None)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("ledgerlog")``. Made anew for each batch's tasks and for its commit."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return stage_rows(self._options, iterator, _batch_of_task())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _commit(self._options, messages, batchId)


def _batch_of_task() -> BatchOf:
    context = TaskContext.get()
    said = {name: context and context.getLocalProperty(name) for name in (_QUERY_ID, _RUN_ID, _BATCH_ID)}
    query, run, batch = said[_QUERY_ID], said[_RUN_ID], said[_BATCH_ID]
    if not query or not run or not batch:
        raise SpliceRefused(f"Spark does not say which batch of which query a task belongs to: {said}")
    return BatchOf(query, run, int(batch))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> LogWriter:
    """What ``df.write`` gets. InvalidArgument."""
    check_written(schema, overwrite)
    return LogWriter(parse_write_options(options, is_stream=False))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> LogStreamWriter:
    """What ``df.writeStream`` gets. InvalidArgument."""
    check_written(schema, overwrite)
    return LogStreamWriter(parse_write_options(options, is_stream=True))
