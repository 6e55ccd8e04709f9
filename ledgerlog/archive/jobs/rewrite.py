"""Merging archived files, and compacting them: several neighbours become one file, and one segment of the
log.

    1  the files are read, and what stays of them is written to a new one, which is read again and checked
    2  one transaction replaces their records by one and their segments in the log's list by one, if the log's
       record and all of theirs are at the versions that were read

A crash before 2 leaves a file that nothing names. After it the old files are what nothing names; they are
deleted by ``archive.jobs.cleaning`` with the next run of the archive, so that who reads one of them comes to
its end, and who looks for one that is gone finds the new one by its offset.

Only files whose ledgers bookies have no more are touched (``archive.core.lifecycle``). Offsets, positions,
timestamps and epochs stay what they were. A merged file has all records; a compacted one the latest of each
key (``archive.core.compaction``). Its groups are committed from the oldest on and no further than the first
that fails: a tombstone goes only after everything that it speaks of.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial

import trio

from ledgerlog.archive.core.compaction import KeyRule, Latest, survivors
from ledgerlog.archive.core.lifecycle import compactable, merge_groups
from ledgerlog.archive.jobs.archiver import LATE, Archiver, OnStep, Step, done
from ledgerlog.archive.jobs.job import open_archiver
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
from ledgerlog.model.archive import ArchiveRecord
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

Group = tuple[ArchiveRecord, ...]
"""Neighbours, in the order of the log."""

Keeps = Callable[[int, bytes, int], bool]
"""Whether a record stays, by its offset, its bytes and its timestamp."""


async def rewrite_group(archiver: Archiver, group: Group, *, keeps: Keeps | None) -> ArchiveRecord:
    """Write what stays of the files to a new one; without ``keeps`` all of it. Nothing names it yet.
    ArchiveUnavailable, ArchiveCorrupt."""
    ledgers = [ledger for record in group for ledger in record.ledgers]
    compacted = keeps is not None or any(record.compacted for record in group)
    async with archiver.writing(ledgers, compacted=compacted) as file:
        for record in group:
            async with aclosing(_pages(record)) as pages:
                async for batches in pages:
                    if keeps is not None:
                        batches = await trio.to_thread.run_sync(partial(_left_of, batches, keeps))
                    await file.add(batches)
        return await file.finish()


async def _pages(record: ArchiveRecord) -> AsyncGenerator[list[RecordBatch], None]:
    """All records of a file. ArchiveUnavailable, ArchiveCorrupt."""
    async with open_archive(record) as archive, aclosing(archive.batches(record.first_offset)) as pages:
        async for batches in pages:
            yield batches


def _left_of(batches: Sequence[RecordBatch], keeps: Keeps) -> list[RecordBatch]:
    return [left for batch in batches for left in survivors(batch, keeps)]


async def commit_group(archiver: Archiver, group: Group, made: ArchiveRecord) -> Step:
    """Step 2: ``merged`` or ``compacted``; ``skipped`` where the files were truncated away or changed by
    another job, or the new one is almost a day old, and the new file is deleted then. ArchiveUnavailable
    where the new file is gone; MetadataUnavailable."""
    what = "compacted" if made.compacted else "merged"
    path = archive_path(archiver.incarnation, made.ledger_id)

    async def write(is_unsure: bool) -> Step | list[int]:
        metadata, version = await archiver.logs.read(archiver.incarnation)
        found = [await archiver.archives.find(archiver.incarnation, each.ledger_id) for each in group]
        if found[0] is not None and found[0][0].token == made.token:
            return []  # By our own transaction, whose answer was lost.
        listed = metadata is not None and all(metadata.index_of(each.ledger_id) is not None for each in group)
        if metadata is None or not listed or [each and each[0] for each in found] != list(group):
            # Where an answer was lost this may be our own transaction, which came late and was seen by some
            # of these reads only: the file may be named then, and is left to ``clean``.
            if not is_unsure:
                await archiver.delete_file(made)
            return done("skipped", group[0], why="it was truncated, or changed by another job meanwhile")
        # A job that was held up for a day finds its file cleaned away; the old ones are all there is then.
        # Just before that it may meet a cleaner who has read the records already.
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
            Set(path, made.encode(), versions[0]),
        ]
        operations += [
            Delete(archive_path(archiver.incarnation, each.ledger_id), its)
            for each, its in zip(group[1:], versions[1:], strict=True)
        ]
        await archiver.client.store.transaction(operations)
        return dropped

    dropped = await settle(archiver.client.store, write, what=f"the record of archive file {made.file}")
    if isinstance(dropped, Step):
        return dropped
    archiver.mark("merged")
    # Between them lay ledgers without records, perhaps, which have left the list with them.
    await delete_ledgers(archiver.client.ledgers, dropped)
    return done(what, made)


async def merge_log(
    client: LedgerClient,
    name: str,
    destination: str,
    *,
    bytes_max: int = ARCHIVE_MERGE_BYTES,
    on_step: OnStep | None = None,
) -> list[Step]:
    """Make fewer and larger files of the log's archived ledgers, of about ``bytes_max`` at most, and fewer
    segments of its list. Only ledgers whose copies bookies have given up. LogNotFound, InvalidArgument,
    MetadataUnavailable, ArchiveSupportMissing; a file that cannot be read is a step that ``failed``.
    Cancelling is harmless."""
    archiver = await open_archiver(client, name, destination)
    state = await archiver.look()
    if state.metadata is None:
        raise LogNotFound(name)
    groups = merge_groups(
        state.metadata,
        [record for record, _ in state.records],
        state.with_copies,
        bytes_max=bytes_max,
        ledgers_max=ARCHIVE_MERGE_LEDGERS_MAX,
    )
    steps = []
    for group in groups:
        step = await _guarded(archiver, group, None)
        steps.append(step)
        if on_step is not None:
            on_step(step)
    return steps


async def groups_to_compact(archiver: Archiver, *, bytes_max: int) -> list[Group]:
    """What compaction goes over. LogNotFound."""
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
    rule: KeyRule,
    tombstones_after_s: float | None = None,
    bytes_max: int = ARCHIVE_MERGE_BYTES,
    on_step: OnStep | None = None,
) -> list[Step]:
    """Keep, of each key, the latest record in the archived part of the log, which is everything from its
    first ledger on up to the first that bookies have copies of. Offsets stay what they are, so the log has
    gaps there. Tombstones go ``tombstones_after_s`` seconds after they were appended; None: never.

    One process reads everything twice and holds the keys' digests (TooManyKeys: do it on Spark). The first
    file that cannot be read or replaced ends it, as a step that ``failed`` or was ``skipped``; run it again.
    Errors as for ``merge_log``. Cancelling is harmless."""
    archiver = await open_archiver(client, name, destination)
    groups = await groups_to_compact(archiver, bytes_max=bytes_max)
    before_ms = 0
    if tombstones_after_s is not None:
        before_ms = max(0, client.environment.now_ms() - round(1000 * tombstones_after_s))
    latest = Latest(rule, tombstones_before_ms=before_ms)
    steps: list[Step] = []

    def tell(step: Step) -> bool:
        steps.append(step)
        if on_step is not None:
            on_step(step)
        return step.what not in ("failed", "skipped")

    for group in groups:
        for record in group:
            failed = await _feed(latest, record)
            if failed is not None:
                tell(failed)
                return steps
    for group in groups:
        if not tell(await _guarded(archiver, group, latest.keeps)):
            break
    return steps


async def _feed(latest: Latest, record: ArchiveRecord) -> Step | None:
    try:
        async with aclosing(_pages(record)) as pages:
            async for batches in pages:
                await trio.to_thread.run_sync(latest.feed, batches)
    except (ArchiveCorrupt, ArchiveUnavailable) as failure:
        return done("failed", record, why=str(failure))
    return None


async def _guarded(archiver: Archiver, group: Group, keeps: Keeps | None) -> Step:
    try:
        made = await rewrite_group(archiver, group, keeps=keeps)
        return await finish_group(archiver, group, made)
    except (ArchiveCorrupt, ArchiveUnavailable) as failure:
        return done("failed", group[0], why=str(failure))


async def finish_group(archiver: Archiver, group: Group, made: ArchiveRecord) -> Step:
    """Commit the new file; one that is as the only old one is deleted instead, and the step is
    ``unchanged``."""
    if len(group) == 1 and made.record_count == group[0].record_count:
        await archiver.delete_file(made)
        return done("unchanged", group[0])
    return await commit_group(archiver, group, made)
