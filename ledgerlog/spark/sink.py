"""Writing tables to a log: each task stages a ledger, and one commit splices all ledgers (``log.attach``).

To *stage* is to write a ledger that belongs to no log yet. To *splice* is to put such ledgers into a log's
list of ledgers.

    tasks     Each task writes its rows to its own new ledger, closes the ledger, and reports it.
    driver    ``commit`` makes all these ledgers part of the log in one transaction, or none of them.

If a task fails, is killed or runs twice, it leaves a ledger that no list names. A sweep deletes that ledger.
``abort`` deletes nothing: Spark also calls ``abort`` while tasks still write, and after a commit that took
effect but whose answer was lost.

**Once.** Spark numbers the batches of a stream, from 0 with a new checkpoint. The producer of the batches is
the query's id, which is in the checkpoint; the option ``producerId`` sets another producer. If Spark forgets
that a batch was done and repeats it, the commit finds the batch in the log and changes nothing. A batch job
is written once if you give it ``producerId`` and a ``batchSeq`` that grows from job to job. Without these
options every job counts as new.

**The messages of tasks.** The commit runs in its own process, on a new object. So the messages of the tasks
carry all that the commit needs: the log's incarnation, the query, the run of the query, the batch. The run is
Spark's job group, which is new with each start of a query. The run tells two drivers on one checkpoint apart
(``log.core.attach``).

**Columns** are ``value`` and, if the table has them, ``key`` and ``headers`` in the types of Kafka's sink. A
null ``key`` means no key; null ``headers`` mean no headers.

**Several logs.** If no log is named, each row names its log in the column ``log``. A task then stages a
ledger for each of these logs, and the commit splices the ledgers log by log. Each log gets its part of the
batch whole and once, but the logs do not share one transaction. If the commit ends between two logs, Spark
repeats the batch; the logs that already have the batch do not change. A log takes part only in batches with
rows for it. So the batch numbers in a log may have gaps, and the log's checks see only these batches.

**Many tasks.** A batch may have ``limits.LOG_SPLICE_LEDGERS_MAX`` tasks. Spark does not tell a sink how many
tasks a job has, on the driver or in a task. It numbers the tasks from 0, and starts them in this order. A
task whose number is too high fails before it reads a row.

**Refused.** The sink refuses the mode overwrite and the output mode complete, because a log is only appended
to. It refuses other columns, because they would be lost silently. It also refuses a null ``value``, and a
null name or value of a header."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ledgerlog.blocking.portal import Held, Portal
from ledgerlog.errors import InvalidArgument, LogExists, LogNotFound
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.environment import Environment
from ledgerlog.limits import LOG_SPLICE_LABELS_MAX, LOG_SPLICE_LEDGERS_MAX
from ledgerlog.log.attach import Stage, splice, stage
from ledgerlog.log.core.attach import Commit, SpliceRefused, Staged
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.ids import check_log_name
from ledgerlog.spark.connection import connected, run_connected
from ledgerlog.spark.options import WriteOptions, parse_write_options

__all__ = [
    "LOGS_MAX",
    "BatchOf",
    "LogStreamWriter",
    "LogTableWriter",
    "StagedPart",
    "StagedRows",
    "commit_rows",
    "stage_rows",
]

_JOBS = "batch jobs"
"""The source of batch jobs (``Commit.source``). A batch job numbers its batches itself."""

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"


@attrs.frozen
class BatchOf:
    """Identifies a batch. Each task writes a part of one."""

    source: str
    """The query's id; for a batch job a constant."""
    run: str
    """Spark's job group, which is new with each start of a query; for a batch job a random token."""
    batch: int
    """The number of the batch."""


@attrs.frozen
class StagedPart:
    """The ledger that a task staged for one log."""

    incarnation: int
    """The incarnation of the log."""
    staged: Staged | None
    """The staged ledger; None if the task had no rows for the log."""


@attrs.frozen
class StagedRows(WriterCommitMessage):
    """The message of a task: the ledgers that it staged."""

    cluster: str | None
    """The id of the cluster in which the ledgers were staged."""
    batch_of: BatchOf
    """The batch."""
    parts: Mapping[str, StagedPart]
    """The staged ledgers, by the name of their log."""


async def open_log(client: LedgerClient, name: str, *, create: bool) -> int:
    """Return the current incarnation of a log.

    Args:
        client: The cluster.
        name: The name of the log.
        create: Whether to make the log if there is no log of this name.

    Raises:
        LogNotFound: There is no log of this name, and ``create`` is false.
    """
    registry = LogRegistry(client.store, client.environment)
    incarnation = await registry.find(name)
    if incarnation is None and create:
        with suppress(LogExists):  # Another task or job made it just now.
            await registry.create(name, replication=client.default_replication)
        incarnation = await registry.find(name)
    if incarnation is None:
        raise LogNotFound(name)
    return incarnation


async def commit_rows(
    client: LedgerClient, options: WriteOptions, messages: Sequence[StagedRows | None], batch_id: int | None
) -> None:
    """Splice the staged ledgers of one batch, log by log, in the order of the tasks' messages.

    Args:
        client: The cluster.
        options: The producer, and which gaps are allowed.
        messages: The message of each task; None for a task without a message.
        batch_id: The number of the stream's batch; None for a batch job.

    Raises:
        SpliceRefused: A message is missing, or the messages are not of one batch of one cluster and of one
            incarnation of each log; nothing was spliced. ``splice`` raises this error for other reasons too,
            and other errors. After an error of ``splice``, some of several logs may have their part of the
            batch.
    """
    rows = [message for message in messages if message is not None]
    if len(rows) < len(messages):
        raise SpliceRefused("a task of the batch did not report the ledgers that it staged")
    if not rows:
        return  # A batch without partitions needs no number either.
    names = sorted({name for each in rows for name in each.parts})
    parts = {name: [each.parts[name] for each in rows if name in each.parts] for name in names}
    of = rows[0].batch_of
    if len({(each.cluster, each.batch_of) for each in rows}) != 1 or batch_id not in (None, of.batch):
        raise SpliceRefused(
            f"logs {', '.join(names)}: the tasks wrote for different batches, or the URI led to different "
            "clusters"
        )
    for name, of_log in parts.items():
        if len({part.incarnation for part in of_log}) != 1:
            raise SpliceRefused(f"log {name!r} was deleted and made again while the tasks wrote")
        ledgers = sum(part.staged is not None for part in of_log)
        if ledgers > LOG_SPLICE_LEDGERS_MAX:  # Before any log gets its part.
            raise InvalidArgument(
                f"log {name!r}: {ledgers} ledgers in one batch, over the limit of {LOG_SPLICE_LEDGERS_MAX}: "
                "write with fewer tasks"
            )
    is_stream = batch_id is not None
    producer = options.producer_id or (of.source if is_stream else None)
    for name, of_log in parts.items():
        staged = tuple(part.staged for part in of_log if part.staged is not None)
        if producer is None and not staged:
            continue
        await splice(
            client,
            LogRegistry(client.store, client.environment),
            name,
            of_log[0].incarnation,
            Commit(
                producer=producer,
                source=of.source,
                run=of.run,
                batch=of.batch,
                staged=staged,
                gaps=not is_stream or not options.fail_on_data_loss or options.log is None,
            ),
        )


LOGS_MAX = 32
"""The most logs that one task can write to. For each log the task makes a ledger, and holds up to 32 MiB that
bookies have not acknowledged yet."""


class _Stages:
    """The ledgers that a task writes, one for each log."""

    def __init__(self, portal: Portal, client: LedgerClient, options: WriteOptions, room: int) -> None:
        self._portal = portal
        self._client = client
        self._options = options
        self._room = room
        self._opened: dict[str, tuple[int, Stage, Held[Stage]]] = {}

    def check(self, names: Iterable[str]) -> None:
        """Refuse malformed names of logs, and too many names. Call this before a log is made."""
        wanted = {check_log_name(name) for name in names}.union(self._opened)
        if len(wanted) > LOGS_MAX:
            raise InvalidArgument(
                f"a task can write to at most {LOGS_MAX} logs, but the column log names {len(wanted)}: "
                "partition the table by the column log"
            )

    def stage_of(self, name: str) -> Stage:
        """Return the open ledger for a log."""
        found = self._opened.get(name)
        if found is None:
            client, create = self._client, self._options.create_log
            incarnation = self._portal.run(lambda: open_log(client, name, create=create))
            registry = LogRegistry(client.store, client.environment)
            opened, held = self._portal.enter(stage(client, registry, name, incarnation, room=self._room))
            found = self._opened[name] = incarnation, opened, held
        return found[1]

    def close(self) -> dict[str, StagedPart]:
        """Close all ledgers, and return them by the names of their logs."""
        parts = {}
        for name, (incarnation, opened, held) in self._opened.items():
            parts[name] = StagedPart(incarnation, self._portal.run(opened.close))
            held.leave()
        return parts


def stage_rows(options: WriteOptions, batches: Iterator[Any], of: BatchOf, *, task: int = 0) -> StagedRows:
    """Write the rows of one task to new ledgers, one for each log, and close them.

    Args:
        options: The log to write, and the producer.
        batches: Arrow batches with a column ``value``, and perhaps ``key`` and ``headers``. If the options
            name no log, they have a column ``log``.
        of: The batch of which the task writes a part.
        task: The number of the task within the job, from 0.

    Raises:
        InvalidArgument: The job has more tasks than one batch may have ledgers; no row was read then. A
            value or the name of a log is null, a name or headers are malformed, or the rows
            name too many logs.
        RecordTooLarge: A record is over a limit.
        LogNotFound: There is no log of this name, and the options do not say to make it.
        LogListFull: A log's list may have no room for another batch.

    After an error, no log will list the ledgers that this call wrote.
    """
    if task >= LOG_SPLICE_LEDGERS_MAX:
        raise InvalidArgument(
            f"task {task}: a job may write to a log with at most {LOG_SPLICE_LEDGERS_MAX} tasks: write with "
            "fewer tasks (coalesce)"
        )
    with Portal() as portal:
        client, _ = portal.enter(connected(options.uri))
        stages = _Stages(portal, client, options, max(LOG_SPLICE_LABELS_MAX, task + 1))
        if options.log is not None:
            stages.stage_of(options.log)  # A task without rows reports its log, too.
        for batch in batches:
            by_log = dict(_by_log(batch, options.log))
            stages.check(by_log)
            for name, rows in by_log.items():
                append = stages.stage_of(name).append_many
                portal.run(partial(append, _values(rows), keys=_keys(rows), headers=_headers(rows)))
        parts = stages.close()
    return StagedRows(client.store.cluster, of, parts)


def _by_log(batch: Any, log: str | None) -> Iterator[tuple[str, Any]]:
    """Split a batch by the column ``log``, unless ``log`` is set. Rows of one log keep their order."""
    if log is not None:
        yield log, batch
        return
    names = batch.column("log")
    if names.null_count:
        raise InvalidArgument("the column log names the log of each row: it holds null")
    for name in pc.unique(names).to_pylist():
        yield name, batch.filter(pc.equal(names, name))


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


_ROUTED: Mapping[str, tuple[str, ...]] = {"log": ("string",)}
"""The column that names the log of each row, if the options name no log."""

_WRITTEN: Mapping[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""The columns that can be written, and the types that each may have."""


def check_written(schema: StructType, overwrite: bool, *, log: str | None) -> None:
    """Check that a table can be written to a log.

    Args:
        schema: The columns of the table.
        overwrite: Whether the mode is overwrite or complete.
        log: The log to write; None if the rows name their logs.

    Raises:
        InvalidArgument: The mode is overwrite or complete. Or the table lacks ``value``, has another column
            than ``value``, ``key`` and ``headers``, or has a column of a wrong type. If ``log`` is None, the
            table must have the column ``log`` as well; otherwise it must not.
    """
    if overwrite:
        raise InvalidArgument(
            "a log is only appended to: it takes no mode overwrite and no output mode complete"
        )
    names = schema.names
    if log is None and "log" not in names:
        raise InvalidArgument(
            "name the log to write by the path or by the option log, or have each row name its log in a "
            "column log"
        )
    if log is not None and "log" in names:
        raise InvalidArgument(
            f"the rows name their logs in the column log, but the job also names {log!r}: to write all rows "
            f"to {log!r}, select only value, key and headers; to write each row to its log, do not name one, "
            "and select log, too"
        )
    known = {**_WRITTEN, **_ROUTED} if log is None else _WRITTEN
    if (
        "value" not in names
        or len(set(names)) != len(names)
        or any(field.dataType.simpleString() not in known.get(field.name, ()) for field in schema.fields)
    ):
        columns = "; ".join(f"{name} ({' or '.join(types)})" for name, types in known.items())
        raise InvalidArgument(
            f"a log takes a table with the column value, and optionally key and headers, not "
            f"{schema.simpleString()}. Their types: {columns}"
        )


def _require_log(options: WriteOptions) -> None:
    """Find the log on the driver's host, before Spark starts a task. Make it if the options say so.

    If the rows name their logs, only the tasks know these logs. Then this does nothing."""
    name = options.log
    if name is not None:
        run_connected(options.uri, lambda client: open_log(client, name, create=options.create_log))


def _commit(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int | None
) -> None:
    rows = [message if isinstance(message, StagedRows) else None for message in messages]
    # In another cluster, the ids of the staged ledgers belong to other ledgers.
    cluster = next((each.cluster for each in rows if each is not None), None)
    run_connected(options.uri, lambda client: commit_rows(client, options, rows, batch_id), cluster=cluster)


class LogTableWriter(DataSourceArrowWriter):
    """The writer for ``df.write.format("ledgerlog").mode("append")``. Spark calls it.

    Spark makes one writer for each job, and sends it to the job's tasks and to the job's commit.

    Args:
        options: The log to write, and the producer.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._of = BatchOf(_JOBS, Environment().new_token().hex(), options.batch_seq or 0)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of one task to new ledgers. See ``stage_rows`` for the errors."""
        return stage_rows(self._options, iterator, self._of, task=_task())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Splice the ledgers that the tasks staged. See ``commit_rows`` for the errors."""
        _commit(self._options, messages, None)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """The writer for ``df.writeStream.format("ledgerlog")``. Spark calls it.

    For each batch, Spark makes one writer for the tasks and another one for the commit.

    Args:
        options: The log to write, and the producer.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of one task to new ledgers. See ``stage_rows`` for the errors."""
        return stage_rows(self._options, iterator, _batch_of_task(), task=_task())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Splice the ledgers that the tasks staged. See ``commit_rows`` for the errors."""
        _commit(self._options, messages, batchId)


def _task() -> int:
    """Return the number of this task within its job. Spark numbers the tasks from 0, and gives a task no
    other information."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


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
    parsed = parse_write_options(options, is_stream=False)
    check_written(schema, overwrite, log=parsed.log)
    _require_log(parsed)
    return LogTableWriter(parsed)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, is_commit: bool = False
) -> LogStreamWriter:
    """Return the writer for ``df.writeStream``.

    Args:
        options: The options of the query, by name.
        schema: The columns of the table.
        overwrite: Whether the output mode is complete.
        is_commit: Whether the writer commits or aborts a batch whose tasks have ended. If so, do not look for
            the log, and do not make it again if it was deleted in the meantime.

    Raises:
        InvalidArgument: An option, the schema or the mode is wrong.
        LogNotFound: There is no log of this name, and the options do not say to make it.
    """
    parsed = parse_write_options(options, is_stream=True)
    check_written(schema, overwrite, log=parsed.log)
    if not is_commit:
        _require_log(parsed)
    return LogStreamWriter(parsed)
