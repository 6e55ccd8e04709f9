"""Merging and compacting archived files: neighbouring files become one file, and one segment of the log.

    1  Read the old files. Write the rows that stay to a new file. Read the new file again and check it.
    2  In one transaction, replace the old files' metadata records by one metadata record, and their segments
       in the log's list by one segment. The transaction checks that the log's metadata record and the old
       files' metadata records still have the versions that step 1 read.

A crash before step 2 leaves a new file that no metadata record names. After step 2, no metadata record names
the old files. A later run of the archive deletes the unnamed files (``archive.jobs.cleaning``). It waits for
a day, so that a reader of an old file can finish. If a reader looks for a deleted old file, it finds the new
file by the offset.

A file is rewritten only if bookies have no copies of its ledgers (``archive.core.lifecycle``). Offsets,
positions, timestamps and epochs do not change. A merged file has all records. A compacted file has the latest
record of each key (``archive.core.compaction``). New files go to the destination of the job, so these jobs
bring files back from another destination. A *tombstone* is a record that deletes its key. Compaction
commits its groups from the oldest on, and stops at the first group that fails. So a tombstone is dropped only
after all records that it deletes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial

import trio

from ledgerlog.archive.core.compaction import KeyRule, Latest, own_rule, survivors
from ledgerlog.archive.core.lifecycle import compactable, merge_groups
from ledgerlog.archive.jobs.archiver import LATE, Archiver, ArchiveStep, OnStep, Steps, done
from ledgerlog.archive.jobs.job import open_archiver
from ledgerlog.archive.jobs.publishing import TableOptions, open_publisher
from ledgerlog.archive.reader import open_archive
from ledgerlog.errors import (
    ArchiveCorrupt,
    ArchiveUnavailable,
    LogNotFound,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import ARCHIVE_MERGE_BYTES, ARCHIVE_MERGE_LEDGERS_MAX
from ledgerlog.log.takeover import delete_ledgers
from ledgerlog.meta.settle import settle
from ledgerlog.meta.store import Check, Delete, Operation, Set
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.layout import archive_path, log_record_path
from ledgerlog.model.record import RecordBatch

__all__ = [
    "Group",
    "Keeps",
    "commit_group",
    "compact_log",
    "finish_group",
    "groups_to_compact",
    "merge_log",
    "rewrite_group",
]

Group = tuple[ArchivedFile, ...]
"""Neighbouring files, in the order of the log."""

Keeps = Callable[[RecordBatch], Sequence[bool]]
"""Says of each record of a batch whether it stays."""


async def rewrite_group(archiver: Archiver, group: Group, *, keeps: Keeps | None) -> ArchivedFile:
    """Write a new file with the records of some files that stay. No metadata record names the new file yet.

    Args:
        archiver: The archive of the log.
        group: The files.
        keeps: Says whether a record stays; None: all stay.

    Returns:
        The record of the new file.

    Raises:
        ArchiveUnavailable: A file cannot be read, or the destination failed, did not answer in time, or its
            marker is missing.
        ArchiveCorrupt: A file is damaged, or the new file does not have the content that was written.
    """
    ledgers = [ledger for record in group for ledger in record.ledgers]
    compacted = keeps is not None or any(record.compacted for record in group)

    async def left() -> AsyncGenerator[list[RecordBatch], None]:
        for record in group:
            async with aclosing(_pages(record)) as pages:
                async for batches in pages:
                    if keeps is not None:
                        batches = await trio.to_thread.run_sync(partial(_left_of, batches, keeps))
                    yield batches

    return await archiver.write_file(ledgers, left, compacted=compacted)


async def _pages(record: ArchivedFile) -> AsyncGenerator[list[RecordBatch], None]:
    """Read all records of a file, one row group at a time."""
    async with open_archive(record) as archive, aclosing(archive.batches(record.first_offset)) as pages:
        async for batches in pages:
            yield batches


def _left_of(batches: Sequence[RecordBatch], keeps: Keeps) -> list[RecordBatch]:
    return [left for batch in batches for left in survivors(batch, keeps)]


async def commit_group(archiver: Archiver, group: Group, made: ArchivedFile) -> ArchiveStep:
    """Replace the records of a group by the record of the new file (step 2).

    Args:
        archiver: The archive of the log.
        group: The old files.
        made: The record of the new file.

    Returns:
        A step that was ``merged`` or ``compacted``. ``skipped``: the old files were truncated away, another
        job changed them, or the new file is almost a day old. The new file is deleted then, unless an answer
        of the store was lost.

    Raises:
        ArchiveUnavailable: The new file is gone or cannot be read.
        ArchiveCorrupt: Another file is in the place of the new one.
        MetadataUnavailable: The metadata store did not answer. The old files stay.
        MetadataOutcomeUnknown: Either the old files or the new file are part of the log.
    """
    what = "compacted" if made.compacted else "merged"
    path = archive_path(archiver.incarnation, made.ledger_id)

    async def write(is_unsure: bool) -> ArchiveStep | list[int]:
        metadata, version = await archiver.logs.read(archiver.incarnation)
        found = [await archiver.archives.find(archiver.incarnation, each.ledger_id) for each in group]
        if found[0] is not None and found[0][0].token == made.token:
            return []  # Our own transaction took effect, and its answer was lost.
        listed = metadata is not None and all(metadata.index_of(each.ledger_id) is not None for each in group)
        if metadata is None or not listed or [each and each[0] for each in found] != list(group):
            # After a lost answer, our own transaction may have taken effect between these reads. Then the
            # store names the new file although a read found an old record. So leave the file to ``clean``.
            if not is_unsure:
                await archiver.delete_file(made)
            return done("skipped", group[0], why="it was truncated, or another job changed it")
        # If this job was held up for a day, a cleaner may have deleted the new file. If it was held up for
        # almost a day, a cleaner may be about to delete the new file. So keep the old files.
        if not is_unsure and archiver.is_late(made):
            await archiver.delete_file(made)
            return done("skipped", group[0], why=LATE)
        await archiver.expect_file(made)
        merged, dropped = metadata.merged(
            made.ledger_id, made.end_offset, archiver.client.environment.new_token()
        )
        versions = [each[1] for each in found if each is not None]
        operations: list[Operation] = [
            Set(log_record_path(archiver.incarnation), merged.encode(), version)
            if dropped
            else Check(log_record_path(archiver.incarnation), version),
            await archiver.check_place(),
            Set(path, made.encode(), versions[0]),
        ]
        operations += [
            Delete(archive_path(archiver.incarnation, each.ledger_id), its)
            for each, its in zip(group[1:], versions[1:], strict=True)
        ]
        await archiver.client.store.transaction(operations)
        return dropped

    dropped = await settle(archiver.client.store, write, what=f"the record of archive file {made.file}")
    if isinstance(dropped, ArchiveStep):
        return dropped
    archiver.mark("merged")
    # The list may have had ledgers without records between the files' ledgers. The merge dropped them, too.
    await delete_ledgers(archiver.client.ledgers, dropped)
    return done(what, made)


async def merge_log(
    client: LedgerClient,
    name: str,
    destination: str,
    *,
    bytes_max: int = ARCHIVE_MERGE_BYTES,
    table: TableOptions | None = None,
    on_step: OnStep | None = None,
) -> list[ArchiveStep]:
    """Merge the log's archived files into fewer and larger ones, and shorten the log's list of ledgers.

    It merges only files of ledgers whose copies bookies have given up. A file at another destination is
    rewritten at this one, also alone, unless it is larger than half of ``bytes_max``. If a file cannot be
    read or replaced, its step is ``failed``; the other files are still merged.

    Args:
        client: The cluster.
        name: The name of the log.
        destination: Where new files go: a directory, or a URL that ``pyarrow.fs`` knows.
        bytes_max: The largest size of a new file, as the sum of the sizes of its old files.
        table: Where the archive's Iceberg table is (``archive.jobs.publishing``). None: there is no table.
            Pass the same value to all jobs of a log.
        on_step: Called with each step when it is done.

    Returns:
        The steps, in order.

    Raises:
        LogNotFound: There is no log of this name.
        InvalidArgument: pyarrow cannot find files at ``destination``, or the table or its catalog is not
            there for this log (``archive.jobs.publishing.open_publisher``). Or the destination is new, and
            the log has files elsewhere.
        ArchiveSupportMissing: pyarrow is not installed, or pyiceberg if there is a table.
        ArchiveCorrupt: The table is damaged, or another program changed it. Nothing was done.
        ArchiveUnavailable: The destination or the catalog of the table failed or did not answer in time, or
            the destination's marker is missing.
        NotEnoughBookies: No bookie has ever served this cluster.
        MetadataUnavailable: The metadata store did not answer. The steps until then are done.

    Cancelling: harmless. Run it again.
    """
    archiver = await open_archiver(client, name, destination)
    state = await archiver.look()
    if state.metadata is None:
        raise LogNotFound(name)
    elsewhere = {record.ledger_id for record, _ in state.records if not await archiver.is_here(record)}
    groups = merge_groups(
        state.metadata,
        [record for record, _ in state.records],
        state.with_copies,
        elsewhere=elsewhere,
        bytes_max=bytes_max,
        ledgers_max=ARCHIVE_MERGE_LEDGERS_MAX,
    )
    steps = Steps(on_step)
    async with open_publisher(archiver, table) as publisher:
        for group in groups:
            steps.tell(await _guarded(archiver, group, None))
        await publisher.publish(steps.tell)
    return steps


async def groups_to_compact(archiver: Archiver, *, bytes_max: int) -> list[Group]:
    """Return the groups of files that compaction covers, from the oldest on.

    Raises:
        LogNotFound: The log is gone.
        MetadataUnavailable: The metadata store did not answer.
    """
    state = await archiver.look()
    if state.metadata is None:
        raise LogNotFound(archiver.name)
    return compactable(
        state.metadata,
        [record for record, _ in state.records],
        state.with_copies,
        bytes_max=bytes_max,
        ledgers_max=ARCHIVE_MERGE_LEDGERS_MAX,
    )


async def compact_log(
    client: LedgerClient,
    name: str,
    destination: str,
    *,
    rule: KeyRule | None = None,
    tombstones_after_s: float | None = None,
    bytes_max: int = ARCHIVE_MERGE_BYTES,
    table: TableOptions | None = None,
    on_step: OnStep | None = None,
) -> list[ArchiveStep]:
    """Keep only the latest record of each key in the archived part of the log.

    This part begins with the log's first ledger. It ends before the first ledger that bookies have copies of.
    Offsets do not change, so the offsets have gaps afterwards.

    One process reads everything twice and holds a digest of each key. If files cannot be read, the result is
    a ``failed`` step for each of them, and nothing is changed. If a file cannot be replaced, compaction ends
    with a ``failed`` or ``skipped`` step. Run compaction again then.

    Args:
        client: The cluster.
        name: The name of the log.
        destination: Where new files go: a directory, or a URL that ``pyarrow.fs`` knows.
        rule: Says which key a record has. ``archive.core.compaction.parse_key_rule`` makes a rule. None: the
            key that the record was appended with.
        tombstones_after_s: Drop a tombstone this many seconds after it was appended. None: never.
        bytes_max: The largest size of a new file, as the sum of the sizes of its old files.
        table: Where the archive's Iceberg table is (``archive.jobs.publishing``). None: there is no table.
            Pass the same value to all jobs of a log.
        on_step: Called with each step when it is done.

    Returns:
        The steps, in order.

    Raises:
        TooManyKeys: The archive has more keys than one process can hold. Nothing was changed; compact it on
            Spark.
        LogNotFound: There is no log of this name.
        InvalidArgument: pyarrow cannot find files at ``destination``, or the table or its catalog is not
            there for this log (``archive.jobs.publishing.open_publisher``). Or the destination is new, and
            the log has files elsewhere.
        ArchiveSupportMissing: pyarrow is not installed, or pyiceberg if there is a table.
        ArchiveCorrupt: The table is damaged, or another program changed it. Nothing was done.
        ArchiveUnavailable: The destination or the catalog of the table failed or did not answer in time, or
            the destination's marker is missing.
        NotEnoughBookies: No bookie has ever served this cluster.
        MetadataUnavailable: The metadata store did not answer. The steps until then are done.

    Cancelling: harmless. Run it again.
    """
    archiver = await open_archiver(client, name, destination)
    groups = await groups_to_compact(archiver, bytes_max=bytes_max)
    before_ms = 0
    if tombstones_after_s is not None:
        before_ms = max(0, client.environment.now_ms() - round(1000 * tombstones_after_s))
    latest = Latest(rule or own_rule(), tombstones_before_ms=before_ms)
    steps = Steps(on_step)
    async with open_publisher(archiver, table) as publisher:
        for group in groups:
            for record in group:
                failed = await _feed(archiver, latest, record)
                if failed is not None:
                    steps.tell(failed)
        if steps:
            return steps  # A file that cannot be read may hold the latest record of any key.
        for group in groups:
            step = await _guarded(archiver, group, latest.keeps)
            steps.tell(step)
            if step.what in ("failed", "skipped"):
                break
        await publisher.publish(steps.tell)
    return steps


async def _feed(archiver: Archiver, latest: Latest, record: ArchivedFile) -> ArchiveStep | None:
    """Feed a file's records to ``latest``; return a step that ``failed`` if the file cannot be read."""
    try:
        async with aclosing(_pages(record)) as pages:
            async for batches in pages:
                await trio.to_thread.run_sync(latest.feed, batches)
    except (ArchiveCorrupt, ArchiveUnavailable) as failure:
        await archiver.expect_answer_after(failure)
        return done("failed", record, why=str(failure))
    return None


async def _guarded(archiver: Archiver, group: Group, keeps: Keeps | None) -> ArchiveStep:
    """Rewrite and commit a group; return a step that ``failed`` if a file is at fault."""
    try:
        made = await rewrite_group(archiver, group, keeps=keeps)
        return await finish_group(archiver, group, made)
    except (ArchiveCorrupt, ArchiveUnavailable) as failure:
        await archiver.expect_answer_after(failure)
        return done("failed", group[0], why=str(failure))


async def finish_group(archiver: Archiver, group: Group, made: ArchivedFile) -> ArchiveStep:
    """Commit the new file of a group.

    If the group is a single file at this destination, and the new file has as many records, delete the new
    file instead and return an ``unchanged`` step. See ``commit_group`` for the other steps and the errors.
    """
    is_same = len(group) == 1 and made.record_count == group[0].record_count
    if is_same and await archiver.is_here(group[0]):
        await archiver.delete_file(made)
        return done("unchanged", group[0])
    return await commit_group(archiver, group, made)
