"""Publishing the archive of a log as an Iceberg table (``archive.table``).

    1  Load the table. Then read from the metadata store which files are part of the log.
    2  If the table names other files, commit one snapshot that adds the missing files and removes the others.
       Also commit one if the table has another first offset of the log: a truncation inside a file changes
       only this. If another job committed since step 1, or merged files between the reads of step 1, begin
       again.

Every job publishes when it is done. ``archive_log`` publishes two more times: before it deletes files whose
ledgers the log no longer names, and before it deletes files that no metadata record names. So the current
snapshot never names a file that a job deletes. If publishing fails, these files stay, and the next run
publishes and deletes them.

A crash before step 2 leaves a table that names the files of an earlier moment. All of them are still there:
a replaced file stays for a day. The next run publishes. Snapshots that are a day old are forgotten, because
the files that they name may be gone.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ledgerlog.archive.core.lifecycle import covers_its_segment, in_the_log
from ledgerlog.archive.jobs.archiver import Archiver, ArchiveStep, OnStep, guarded
from ledgerlog.archive.jobs.cleaning import clean
from ledgerlog.archive.reader import in_thread
from ledgerlog.errors import ArchiveCorrupt, ArchiveSupportMissing, ArchiveUnavailable
from ledgerlog.limits import ARCHIVE_STRAY_AGE_S
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.optional_packages import how_to_install

if TYPE_CHECKING:
    from ledgerlog.archive.table import LogTable

__all__ = ["Publisher", "TableOptions", "drop_table", "has_default_catalog", "open_publisher"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
"""How many times ``publish`` tries to commit, if another job commits or merges files first each time."""


@attrs.frozen(kw_only=True)
class TableOptions:
    """Where the tables of archives are. Pass the same value to all jobs of a log."""

    catalog: str | None = None
    """The name of a catalog in pyiceberg's configuration; None: an SQLite file in the destination."""
    namespace: str = "ledgerlog"
    """The namespace of the tables."""
    is_anew: bool = False
    """Make a new table of the log, even if the table is damaged or another program changed it."""


def has_default_catalog(destination: str) -> bool:
    """Whether a destination, given by URL or path, is a local directory. Its catalog can then be a file."""
    return "://" not in destination or destination.startswith("file:")


class Publisher:
    """Publishes the archive of one log. ``open_publisher`` makes one. For one task at a time."""

    def __init__(self, archiver: Archiver, table: LogTable | None) -> None:
        self._archiver = archiver
        self._table = table

    async def publish(self, tell: OnStep) -> bool:
        """Make the table name the files that are part of the log now.

        Args:
            tell: Called with a ``published`` step if the table named other files before, or another first
                offset, or with a ``failed`` step.

        Returns:
            Whether the table now names exactly the log's files. True if the archive has no table.

        Raises:
            InvalidArgument: The table belongs to another log or another cluster.
            MetadataUnavailable: The metadata store did not answer.
            MetadataCorrupt: The record of the log or of a file does not decode.
        """
        if self._table is None:
            return True
        try:
            step = await self._publish(self._table)
        except (ArchiveCorrupt, ArchiveUnavailable) as failure:
            logger.error("log=%s: %s", self._archiver.name, failure)
            tell(ArchiveStep(what="failed", ledger_id=None, why=str(failure)))
            return False
        if step is not None:
            tell(step)
        return True

    async def retire(self, records: Sequence[ArchivedFile], tell: OnStep) -> None:
        """Publish, and then delete the files of records that the log no longer names.

        If publishing fails, the files stay. See ``publish`` and ``Archiver.retire`` for the errors.
        """
        if records and await self.publish(tell):
            for record in records:
                tell(await guarded(self._archiver, self._archiver.retire(record), record.ledger_id))

    async def clean_up(self, tell: OnStep) -> None:
        """Publish, and then delete old files that no record names (``archive.jobs.cleaning``).

        If publishing fails, the files stay. See ``publish`` and ``clean`` for the errors.
        """
        if await self.publish(tell):
            for step in await clean(self._archiver):
                tell(step)

    async def _publish(self, table: LogTable) -> ArchiveStep | None:
        from ledgerlog.archive.table import TableChanged

        archiver = self._archiver
        for _ in range(_ATTEMPTS):
            base = await in_thread(table.load, file=table.name)
            await archiver.client.store.sync()
            records = [record for record, _ in await archiver.archives.of_log(archiver.incarnation)]
            metadata, _ = await archiver.read_log()
            ours = in_the_log(metadata, records)
            if not all(covers_its_segment(metadata, record) for record in ours):
                continue  # Another job merged files between these two reads.
            files = await in_thread(partial(table.by_url, ours), file=table.name)
            removed = [file for url, file in base.files.items() if url not in files]
            new = [record for url, record in files.items() if url not in base.files]
            first_offset = 0 if metadata is None else metadata.first_offset
            is_same_start = not base.files or base.first_offset == f"{first_offset}"
            if not removed and not new and is_same_start:
                return None
            added = [await in_thread(partial(table.data_file, record), file=record.file) for record in new]
            archiver.mark("table planned")
            day_ago = datetime.fromtimestamp(archiver.client.environment.now_ms() / 1000, UTC) - timedelta(
                seconds=ARCHIVE_STRAY_AGE_S
            )
            commit = partial(
                table.commit,
                base,
                added,
                removed,
                first_offset=first_offset,
                end_offset=max((record.end_offset for record in files.values()), default=0),
                expire_before=day_ago,
            )
            try:
                committed = await in_thread(commit, file=table.name)
            except TableChanged:
                continue
            archiver.mark("table published")
            await in_thread(partial(table.forget_files, committed, day_ago), file=table.name)
            return ArchiveStep(
                what="published",
                ledger_id=None,
                records=sum(record.record_count for record in files.values()),
                bytes=sum(record.file_bytes for record in files.values()),
                why=f"table {table.name} has {len(files)} files: {len(added)} new ones, {len(removed)} "
                f"fewer, first offset {first_offset}",
            )
        raise ArchiveUnavailable(
            f"of table {table.name}",
            f"other jobs committed, or merged files, before this one {_ATTEMPTS} times; run it again",
        )


async def drop_table(archiver: Archiver, options: TableOptions | None) -> bool:
    """Drop the table of a log that was deleted. The files of the archive stay.

    A table of another log stays. See ``open_publisher`` for the arguments and the errors.

    Returns:
        Whether the log has no table now. False: its table is not in the catalog of ``options``, or is
        damaged.
    """
    from ledgerlog.archive.destinations import TABLE_DIRECTORY

    destination = archiver.destination
    own = partial(destination.list, f"{archiver.directory}/{TABLE_DIRECTORY}")
    if not await in_thread(own, file=destination.url):
        return True
    if options is None or (options.catalog is None and not has_default_catalog(destination.url)):
        return False
    async with _opened(archiver, options) as table:
        assert table is not None
        is_gone = await in_thread(table.drop, file=table.name)
        if is_gone:
            archiver.mark("table dropped")
        return is_gone


@asynccontextmanager
async def open_publisher(archiver: Archiver, options: TableOptions | None) -> AsyncIterator[Publisher]:
    """Open the table of a log, for the body of the ``async with``. The catalog must answer.

    Args:
        archiver: The archive of the log.
        options: Where the table is; None: the archive has no table.

    Raises:
        InvalidArgument: pyiceberg has no such catalog; or no catalog is named, and the destination is not a
            local directory. Or the table belongs to another log or another cluster.
        ArchiveSupportMissing: pyiceberg is not installed.
        ArchiveUnavailable: The catalog did not answer.
        ArchiveCorrupt: The table is damaged, or another program changed which files it names.
    """
    async with _opened(archiver, options) as table:
        if table is not None:
            await in_thread(table.load, file=table.name)
        yield Publisher(archiver, table)


@asynccontextmanager
async def _opened(archiver: Archiver, options: TableOptions | None) -> AsyncIterator[LogTable | None]:
    if options is None:
        yield None
        return
    try:
        from ledgerlog.archive.table import LogTable
    except ImportError as cause:
        raise ArchiveSupportMissing(
            archiver.destination.url,
            f"its tables need pyiceberg, which cannot be imported ({cause}): {how_to_install('pyiceberg')}",
        ) from cause
    make = partial(
        LogTable,
        archiver.destination,
        catalog=options.catalog,
        namespace=options.namespace,
        directory=archiver.directory,
        log=archiver.name,
        incarnation=archiver.incarnation,
        cluster=archiver.markers.cluster,
        is_anew=options.is_anew,
    )
    table = await in_thread(make, file=archiver.destination.url)
    try:
        yield table
    finally:
        table.close()
