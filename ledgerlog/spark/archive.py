"""Archiving and compacting a log on Spark: the steps of ``ledgerlog.archive.jobs``, many at a time.

A step does the same work with Spark as without it, and is safe for the same reasons. A task carries out whole
steps. Each step ends in its own transaction, or leaves a file that no metadata record names. So if a task
fails, is killed or runs twice, only work is lost.

    archive   The driver's host plans. Each task copies some ledgers, or checks the files of some ledgers and
              gives up the bookies' copies.
    compact   Each task computes the digests of the keys in some files. Spark finds the latest offset of each
              key. Each new file is written by one task, which needs one bit of memory for each offset. The
              driver's host commits the new files, from the oldest on.

Tasks connect to the metadata store, the bookies and the destination by themselves. If the destination is a
local path, all hosts must see the same files there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions

from ledgerlog.archive.core.compaction import KeyRule, key_digest, parse_key_rule
from ledgerlog.archive.file_reader import ArchiveFile
from ledgerlog.archive.jobs.archiver import Archiver, ArchiveStep, guarded
from ledgerlog.archive.jobs.job import open_archiver, retire_gone
from ledgerlog.archive.jobs.publishing import TableOptions, open_publisher
from ledgerlog.archive.jobs.rewrite import (
    Group,
    finish_group,
    groups_to_compact,
    rewrite_group,
)
from ledgerlog.errors import ArchiveCorrupt, ArchiveUnavailable, LogNotFound
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import ARCHIVE_KEEP_COPIES_S, ARCHIVE_MERGE_BYTES
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.record import RecordBatch
from ledgerlog.redact import redact
from ledgerlog.spark.connection import run_connected
from ledgerlog.spark.job_progress import Progress, parallelism, watched

__all__ = ["archive_on_spark", "compact_on_spark"]

_TASKS_PER_CORE = 4
"""There are more tasks than cores, because ledgers differ in size and some tasks are done early."""

_STEPS = "what STRING, ledger_id LONG, records LONG, bytes LONG, file STRING, why STRING"
_KEYS = "part LONG, offset LONG, digest BINARY, is_dead BOOLEAN, why STRING"
_MADE = "part LONG, record BINARY, why STRING, unread ARRAY<STRING>"

_STEPS_ARROW = pa.schema(
    [
        ("what", pa.string()),
        ("ledger_id", pa.int64()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("file", pa.string()),
        ("why", pa.string()),
    ]
)
_KEYS_ARROW = pa.schema(
    [
        ("part", pa.int64()),
        ("offset", pa.int64()),
        ("digest", pa.binary()),
        ("is_dead", pa.bool_()),
        ("why", pa.string()),
    ]
)
_MADE_ARROW = pa.schema(
    [
        ("part", pa.int64()),
        ("record", pa.binary()),
        ("why", pa.string()),
        ("unread", pa.list_(pa.string())),
    ]
)


@attrs.frozen(kw_only=True)
class _Where:
    """The archive that tasks work on. Spark sends this object to the tasks."""

    uri: str = attrs.field(repr=redact)
    name: str
    incarnation: int | None
    destination: str = attrs.field(repr=redact)
    keep_copies_s: float

    def pinned_by(self, archiver: Archiver) -> _Where:
        """Return the same archive for tasks, with a fixed incarnation of the log and an absolute destination.

        Tasks may have other working directories, so a relative path would mean another place there.
        """
        return attrs.evolve(self, incarnation=archiver.incarnation, destination=archiver.destination.url)


async def _open(where: _Where, client: LedgerClient, *, accept_destination: bool = False) -> Archiver:
    """Open the archive of the log."""
    return await open_archiver(
        client,
        where.name,
        where.destination,
        keep_copies_s=where.keep_copies_s,
        incarnation=where.incarnation,
        accept_destination=accept_destination,
    )


# --- archiving ------------------------------------------------------------------------------------


def archive_on_spark(
    spark: SparkSession,
    uri: str,
    name: str,
    destination: str,
    *,
    keep_copies_s: float = ARCHIVE_KEEP_COPIES_S,
    accept_destination: bool = False,
    table: TableOptions | None = None,
    on_progress: Progress | None = None,
) -> list[ArchiveStep]:
    """Do all archive work that is possible now for one log, with Spark tasks.

    The result is the same as with ``archive.jobs.job.archive_log``.

    Args:
        spark: The session.
        uri: The URI of the cluster.
        name: The name of the log.
        destination: The destination of new files: a directory, or a URL that ``pyarrow.fs`` knows.
        keep_copies_s: How long bookies keep their copies of an archived ledger, in seconds. 0: give them up
            in this run.
        accept_destination: The destination is the right one although its marker is missing, or although the
            log has files elsewhere; make a new marker.
        table: Where the archive's Iceberg table is (``archive.jobs.publishing``). None: there is no table.
            Pass the same value to all jobs of a log.
        on_progress: Called with two numbers: the tasks that are done, and all tasks.

    Returns:
        The steps. The steps that tasks carried out are ordered by ledger.

    Raises:
        LogNotFound: There is no log of this name.
        InvalidArgument: pyarrow cannot find files at ``destination``, or the table or its catalog is not
            there for this log (``archive.jobs.publishing.open_publisher``). Or the destination is new, the
            log has files elsewhere, and ``accept_destination`` is not set.
        ArchiveSupportMissing: pyarrow is not installed, or pyiceberg if there is a table.
        ArchiveCorrupt: The table is damaged, or another program changed it. Nothing was done.
        ArchiveUnavailable: The destination failed or did not answer in time, or its marker is missing and
            ``accept_destination`` is not set.
        NotEnoughBookies: No bookie has ever served this cluster.
        MetadataUnavailable: The metadata store did not answer. The steps until then are done.
        PySparkException: A task failed. Run the job again; it continues from there.
    """
    where = _Where(uri=uri, name=name, incarnation=None, destination=destination, keep_copies_s=keep_copies_s)

    async def begin(client: LedgerClient) -> tuple[_Where, list[ArchiveStep], list[tuple[str, int]]]:
        steps = await retire_gone(client, destination, accept_destination=accept_destination, table=table)
        archiver = await _open(where, client, accept_destination=accept_destination)
        async with open_publisher(archiver, table) as publisher:
            plan = archiver.plan(await archiver.look())
            await publisher.retire(plan.retire, steps.append)
        return where.pinned_by(archiver), steps, _items(plan)

    where, steps, items = run_connected(uri, begin)
    attempted: set[tuple[str, int]] = set()
    while items:
        attempted.update(items)
        steps += _on_tasks(spark, where, items, on_progress)

        async def look_again(client: LedgerClient) -> list[tuple[str, int]]:
            archiver = await _open(where, client)
            return [item for item in _items(archiver.plan(await archiver.look())) if item not in attempted]

        # Copy withdrawn ledgers again. If there is no delay, give up the ledgers that were just copied.
        items = run_connected(uri, look_again)

    async def end(client: LedgerClient) -> None:
        archiver = await _open(where, client)
        async with open_publisher(archiver, table) as publisher:
            await publisher.clean_up(steps.append)

    run_connected(uri, end)
    return steps


def _items(plan: Any) -> list[tuple[str, int]]:
    """Return the steps of a plan for tasks, each with its ledger."""
    return [
        *(("give up", ledger_id) for _, ledger_id in plan.give_up),
        *(("copy", segment.ledger_id) for segment in plan.copy),
    ]


def _on_tasks(
    spark: SparkSession, where: _Where, items: list[tuple[str, int]], on_progress: Progress | None
) -> list[ArchiveStep]:
    """Carry out steps in tasks of Spark."""

    def work(batches: Iterable[Any]) -> Iterator[Any]:
        yield from _steps_of_task(where, batches)

    parts = min(len(items), _TASKS_PER_CORE * parallelism(spark))
    rows = spark.createDataFrame(items, "kind STRING, ledger_id LONG").repartition(parts)
    done = rows.mapInArrow(work, _STEPS)
    found = watched(spark, f"archive of {where.name}", done.collect, on_progress)
    return sorted(
        (ArchiveStep(**row.asDict()) for row in found), key=lambda step: (step.ledger_id, step.what)
    )


def _steps_of_task(where: _Where, batches: Iterable[Any]) -> Iterator[Any]:
    """Carry out the steps of one task, and yield the results."""
    for batch in batches:
        items = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))

        async def carry_out(client: LedgerClient, items: list[Any] = items) -> list[ArchiveStep]:
            archiver = await _open(where, client)
            steps: list[ArchiveStep] = []
            try:
                for kind, ledger_id in items:
                    steps.append(await _step(archiver, kind, ledger_id))
            except ArchiveUnavailable as failure:  # The destination does not answer.
                left = items[len(steps) :]
                steps += [ArchiveStep(what="failed", ledger_id=each, why=str(failure)) for _, each in left]
            return steps

        steps = run_connected(where.uri, carry_out)
        yield pa.RecordBatch.from_pylist([attrs.asdict(step) for step in steps], schema=_STEPS_ARROW)


async def _step(archiver: Archiver, kind: str, ledger_id: int) -> ArchiveStep:
    """Carry out a step of the plan, if a new plan still has this step."""
    state = await archiver.look_at(ledger_id)
    plan = archiver.plan(state)
    if kind == "copy":
        for segment in plan.copy:
            if segment.ledger_id == ledger_id:
                return await guarded(archiver, archiver.copy(segment), ledger_id)
    else:
        for record, its in plan.give_up:
            if its == ledger_id:
                return await guarded(archiver, archiver.give_up(record, ledger_id), ledger_id)
    return ArchiveStep(what="skipped", ledger_id=ledger_id, why="it is done, or no longer needed")


# --- compaction -------------------------------------------------------------------------------------


def compact_on_spark(
    spark: SparkSession,
    uri: str,
    name: str,
    destination: str,
    *,
    key: str = "key",
    tombstones: str | None = None,
    tombstones_after_s: float | None = None,
    bytes_max: int = ARCHIVE_MERGE_BYTES,
    table: TableOptions | None = None,
    on_progress: Progress | None = None,
) -> list[ArchiveStep]:
    """Keep only the latest record of each key in the archived part of the log, with tasks of Spark.

    The result is the same as with ``archive.jobs.rewrite.compact_log``, but Spark groups the keys. If a file
    cannot be read, a ``failed`` step names the file, and nothing is changed.

    Args:
        spark: The session.
        uri: The URI of the cluster.
        name: The name of the log.
        destination: The destination of new files: a directory, or a URL that ``pyarrow.fs`` knows.
        key: The rule for keys, for example ``json:user.id``; see ``archive.core.compaction``. ``key`` is the
            key that a record was appended with.
        tombstones: ``empty`` or ``json:PATH``; see ``archive.core.compaction.parse_key_rule``. None: no
            record is a tombstone.
        tombstones_after_s: Drop a tombstone this many seconds after it was appended. None: never.
        bytes_max: The largest size of a new file, as the sum of the sizes of its old files.
        table: Where the archive's Iceberg table is (``archive.jobs.publishing``). None: there is no table.
            Pass the same value to all jobs of a log.
        on_progress: Called with two numbers: the tasks that are done, and all tasks.

    Returns:
        The steps, in the order of the log.

    Raises:
        InvalidArgument: ``key`` or ``tombstones`` is malformed, or pyarrow cannot find files at
            ``destination``, or the table or its catalog is not there for this log. Or the destination is
            new, and the log has files elsewhere.
        LogNotFound: There is no log of this name.
        ArchiveSupportMissing: pyarrow is not installed, or pyiceberg if there is a table.
        ArchiveCorrupt: The table is damaged, or another program changed it. Nothing was done.
        ArchiveUnavailable: The destination failed, did not answer in time, or its marker is missing.
        NotEnoughBookies: No bookie has ever served this cluster.
        MetadataUnavailable: The metadata store did not answer. The steps until then are done.
        PySparkException: A task failed. Nothing was changed. Run it again.
    """
    parse_key_rule(key, tombstones)  # Refuse a wrong rule before anything is read.
    where = _Where(
        uri=uri, name=name, incarnation=None, destination=destination, keep_copies_s=ARCHIVE_KEEP_COPIES_S
    )

    async def begin(client: LedgerClient) -> tuple[_Where, int, list[Group], int]:
        archiver = await _open(where, client)
        async with open_publisher(archiver, table):
            pass  # Refuse a table that is not this log's before anything is read.
        now_ms = client.environment.now_ms()
        groups = await groups_to_compact(archiver, bytes_max=bytes_max)
        return where.pinned_by(archiver), archiver.incarnation, groups, now_ms

    where, incarnation, groups, now_ms = run_connected(uri, begin)
    if not groups:
        return []
    before_ms = 0 if tombstones_after_s is None else max(0, now_ms - round(1000 * tombstones_after_s))

    def take_keys(batches: Iterable[Any]) -> Iterator[Any]:
        yield from _keys_of_task(key, tombstones, before_ms, incarnation, len(groups), batches)

    def rewrite(table: Any) -> Any:
        return _rewrite_in_task(where, groups, table)

    files = [(part, record.with_url().encode()) for part, group in enumerate(groups) for record in group]
    parts = min(len(files), _TASKS_PER_CORE * parallelism(spark))
    rows = spark.createDataFrame(files, "part LONG, record BINARY").repartition(parts)
    keys = rows.mapInArrow(take_keys, _KEYS)
    made = _kept(spark, keys, len(groups)).groupBy("part").applyInArrow(rewrite, _MADE)
    found = watched(spark, f"compaction of {name}", made.collect, on_progress)
    by_part = {row["part"]: row for row in found}

    async def end(client: LedgerClient) -> list[ArchiveStep]:
        if by_part[0]["unread"]:
            return [ArchiveStep(what="failed", ledger_id=None, why=why) for why in by_part[0]["unread"]]
        archiver = await _open(where, client)
        steps: list[ArchiveStep] = []
        async with open_publisher(archiver, table) as publisher:
            for part, group in enumerate(groups):
                row = by_part[part]
                if row["record"] is None:
                    steps.append(ArchiveStep(what="failed", ledger_id=group[0].ledger_id, why=row["why"]))
                else:
                    record = ArchivedFile.decode_untrusted(bytes(row["record"]), incarnation)
                    record = await archiver.archives.resolve(record)
                    work = finish_group(archiver, group, record)
                    steps.append(await guarded(archiver, work, group[0].ledger_id))
                if steps[-1].what in ("failed", "skipped"):
                    break  # A tombstone may go only after all records that it deletes.
            await publisher.publish(steps.append)
        return steps

    return run_connected(uri, end)


def _kept(spark: SparkSession, keys: DataFrame, parts: int) -> DataFrame:
    """Return the offsets that stay, each with its new file.

    Each new file also gets a row with the offset -1, so that a new file without records is written too. A row
    with a reason says that an old file could not be read. One query makes all rows, so each old file is read
    once. With two reads, one for the digests and one for the other rows, a file could fail only in the first
    read. It would then lose all its records with keys.
    """
    newest = (
        keys.groupBy("digest", functions.expr("CASE WHEN digest IS NULL THEN offset END"))
        .agg(functions.max(functions.struct("offset", "part", "is_dead", "why")).alias("newest"))
        .where("not newest.is_dead")
        .select("newest.part", "newest.offset", "newest.why")
    )
    every = spark.range(parts).selectExpr("id AS part", "-1L AS offset", "CAST(NULL AS STRING) AS why")
    return newest.unionByName(every)


def _keys_of_task(
    key: str, tombstones: str | None, before_ms: int, incarnation: int, parts: int, batches: Iterable[Any]
) -> Iterator[Any]:
    """Read the files of one task. Yield the digests of the records' keys, with the records' offsets.

    If a file cannot be read, yield a row for each new file with the reason, and with an offset that no other
    row has. Then no new file may be written: the unreadable file may hold the latest record of any key.
    """
    rule = parse_key_rule(key, tombstones)
    for batch in batches:
        for part, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            record = ArchivedFile.decode_untrusted(data, incarnation)
            try:
                yield from _keys_of_file(record, part, rule, before_ms)
            except (ArchiveCorrupt, ArchiveUnavailable) as failure:
                first = -2 - record.first_offset * parts
                rows = [
                    {"part": each, "offset": first - each, "is_dead": False, "why": str(failure)}
                    for each in range(parts)
                ]
                yield pa.RecordBatch.from_pylist(rows, schema=_KEYS_ARROW)


def _keys_of_file(record: ArchivedFile, part: int, rule: KeyRule, before_ms: int) -> Iterator[Any]:
    file = ArchiveFile(record)
    try:
        for group in range(file.groups):
            rows: dict[str, list[Any]] = {name: [] for name in _KEYS_ARROW.names}
            for entry in file.read_group(group):
                is_old = entry.timestamp_ms < before_ms
                keys = zip(rule.keys_of(entry), entry.payloads, strict=True)
                for offset, (found, value) in enumerate(keys, entry.first_offset):
                    rows["part"].append(part)
                    rows["offset"].append(offset)
                    rows["digest"].append(None if found is None else key_digest(found))
                    rows["is_dead"].append(is_old and found is not None and rule.is_tombstone(value))
                    rows["why"].append(None)
            yield pa.RecordBatch.from_pydict(rows, schema=_KEYS_ARROW)
    finally:
        file.close()


def _rewrite_in_task(where: _Where, groups: list[Group], table: Any) -> Any:
    """Write one new file. Return the file's metadata record, or the reasons why the write failed."""
    part = table.column("part")[0].as_py()
    unread = sorted(why for why in table.column("why").to_pylist() if why is not None)
    if unread:
        return _made(part, None, "", unread)
    group = groups[part]
    first, end = group[0].first_offset, group[-1].end_offset
    bits = bytearray((end - first + 7) // 8)
    for offset in table.column("offset").to_pylist():
        if offset >= 0:
            at = offset - first
            bits[at >> 3] |= 1 << (at & 7)

    def keeps(batch: RecordBatch) -> list[bool]:
        places = range(batch.first_offset - first, batch.end_offset - first)
        return [bool(bits[at >> 3] >> (at & 7) & 1) for at in places]

    async def write(client: LedgerClient) -> bytes:
        return (await rewrite_group(await _open(where, client), group, keeps=keeps)).encode()

    try:
        return _made(part, run_connected(where.uri, write), "")
    except (ArchiveCorrupt, ArchiveUnavailable, LogNotFound) as failure:
        return _made(part, None, str(failure))


def _made(part: int, record: bytes | None, why: str, unread: Sequence[str] = ()) -> Any:
    row = {"part": part, "record": record, "why": why, "unread": list(unread)}
    return pa.Table.from_pylist([row], schema=_MADE_ARROW)
