"""Deleting what nothing names: files in a log's directory that no record of the archive has.

A job that ended before it made its record has left them, and so has whoever replaced or withdrew a record.
Such a file will never be named: no name comes twice, and no job records a file that is almost as old as this
asks for (``Archiver.is_late``). Yet it may be the last that there is of some records. So it stays

    while it is younger than a day, since a job may be about to record it
    while a file that has its offsets now is younger than a day: who reads the old one comes to its end
    while a file that has its offsets now is not there, or is another: a cleaner whose clock is ahead may have
    taken that one just before it was recorded
    while the log lists a ledger with its offsets that is in no file: bookies alone have that, and are asked
    for all of it before they are trusted with it for long

The last two are told as ``skipped``. None of it holds for logs that were deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import attrs

from ledgerlog.archive.reader import in_thread
from ledgerlog.archiving.archiver import Archiver, Step
from ledgerlog.errors import ArchiveCorrupt, ArchiveUnavailable
from ledgerlog.limits import ARCHIVE_STRAY_AGE_S
from ledgerlog.model.archive import ArchiveRecord
from ledgerlog.model.log import LogMetadata

__all__ = ["clean"]

logger = logging.getLogger(__name__)


async def clean(archiver: Archiver, *, min_age_s: float = ARCHIVE_STRAY_AGE_S) -> list[Step]:
    """Delete files in the log's directory that no record names, that are so old, and whose records are
    elsewhere (above). With ``min_age_s`` 0, which is for logs that were deleted, all that no record names.
    ArchiveUnavailable, MetadataUnavailable."""
    from ledgerlog.archive import places

    destination, store = archiver.destination, archiver.client.store
    files = await in_thread(lambda: destination.list(archiver.directory), file=destination.url)
    now_ms = archiver.client.environment.now_ms()
    made_before = datetime.fromtimestamp(now_ms / 1000, UTC) - timedelta(seconds=min_age_s)
    old = [file for file in files if not min_age_s or file.modified <= made_before]
    if not old:
        return []
    await store.sync()
    records = [record for record, _ in await archiver.archives.of_log(archiver.incarnation)]
    # Behind the records: a ledger that was archived in between counts as one that is not.
    metadata, _ = await archiver.logs.read(archiver.incarnation)
    # By the last part of the name, which no two files have: the same place may be given in other words than
    # when the record was made, through a link or with other options.
    named = {places.base_name(record.file) for record in records}
    others = _Others(archiver, metadata, records, now_ms - round(1000 * min_age_s))
    steps = []
    for file in old:
        url = destination.url_of(file.name)
        name = places.base_name(url)
        if name in named:
            continue
        if min_age_s:
            first, end = places.offsets_of_name(name) or (0, 0)
            if others.are_young(first, end):
                continue
            why = await others.lack(first, end)
            if why is not None:
                logger.error("log=%s: %s is kept: %s", archiver.name, url, why)
                steps.append(Step(what="skipped", ledger_id=None, file=url, why=why))
                continue
        await archiver.delete_file(url)
        steps.append(Step(what="cleaned", ledger_id=None, bytes=file.size, file=url))
    return steps


@attrs.define(eq=False)
class _Others:
    """Where else the records of a file are."""

    archiver: Archiver
    metadata: LogMetadata | None
    records: Sequence[ArchiveRecord]
    young_ms: int
    """What was recorded since then is young."""
    _there: dict[bytes, bool] = attrs.field(factory=dict)
    """What is known of files, by the tokens of their records."""

    def _having(self, first: int, end: int) -> list[ArchiveRecord]:
        return [each for each in self.records if first < each.end_offset and each.first_offset < end]

    def are_young(self, first: int, end: int) -> bool:
        return any(record.archived_ms > self.young_ms for record in self._having(first, end))

    async def lack(self, first: int, end: int) -> str | None:
        """Why a file with these offsets may be the last that has them; None where it is not."""
        for record in self._having(first, end):
            if not await self._is_there(record):
                return f"it may hold records of {record.file}, which is not there"
        archived = {ledger.ledger_id for record in self.records for ledger in record.ledgers}
        for segment in () if self.metadata is None else self.metadata.segments:
            start, stop = segment.first_offset, segment.end_offset
            if start is None or stop is None or segment.ledger_id in archived:
                continue
            if max(first, start) < min(end, stop):
                return f"it may hold records of ledger {segment.ledger_id}, which is not archived"
        return None

    async def _is_there(self, record: ArchiveRecord) -> bool:
        """Whether its file is known to be there, and to be the right one; it may lie at another
        destination."""
        if record.token not in self._there:
            try:
                await self.archiver.expect_file(record)
            except (ArchiveCorrupt, ArchiveUnavailable):
                self._there[record.token] = False
            else:
                self._there[record.token] = True
        return self._there[record.token]
