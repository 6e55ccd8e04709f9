"""Deleting files in a log's directory that no record of the archive names.

A job leaves such a file if it ends before it makes its record, or if it replaces or withdraws a record. No
record will ever name the file: no name is used twice, and no job records a file that is almost a day old
(``Archiver.is_late``). But it may hold the last copy of some records. So it stays in each of these cases:

- It is younger than a day. A job may be about to record it.
- The first file that was made after it with all its offsets is younger than a day. A reader of the old file
  may need that time to finish.
- A recorded file that has some of its offsets is not there, or another file is in its place. A cleaner whose
  clock is ahead may have deleted that file just before it was recorded.
- The log lists a ledger with some of its offsets, and this ledger is in no file. Only bookies have that
  ledger, and no job has checked yet that they have all of it.

The last two cases are reported as ``skipped``. If the log was deleted, no case applies.
"""

from __future__ import annotations

import itertools
import logging
from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import attrs

from ledgerlog.archive.jobs.archiver import Archiver, ArchiveStep
from ledgerlog.archive.reader import in_thread
from ledgerlog.errors import ArchiveCorrupt, ArchiveUnavailable
from ledgerlog.limits import ARCHIVE_STRAY_AGE_S
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.log import LogMetadata
from ledgerlog.redact import redact

__all__ = ["clean"]

logger = logging.getLogger(__name__)


async def clean(archiver: Archiver, *, min_age_s: float = ARCHIVE_STRAY_AGE_S) -> list[ArchiveStep]:
    """Delete old files in the log's directory if no record names them and their records are elsewhere.

    The module has the exact conditions.

    Args:
        archiver: The archive of the log.
        min_age_s: The age from which a file may be deleted, in seconds. 0: delete all files that no record
            names, whatever they hold. This is for logs that were deleted.

    Returns:
        A step for each file that was ``cleaned`` or ``skipped``, or whose deletion ``failed``.

    Raises:
        ArchiveUnavailable: The destination's files cannot be listed.
        MetadataUnavailable: The metadata store did not answer.
        MetadataCorrupt: A record does not decode.
    """
    from ledgerlog.archive import destinations

    destination, store = archiver.destination, archiver.client.store
    files = await in_thread(lambda: destination.list(archiver.directory), file=destination.url)
    now_ms = archiver.client.environment.now_ms()
    made_before = datetime.fromtimestamp(now_ms / 1000, UTC) - timedelta(seconds=min_age_s)
    old = [file for file in files if not min_age_s or file.modified <= made_before]
    if not old:
        return []
    await store.sync()
    records = [record for record, _ in await archiver.archives.of_log(archiver.incarnation)]
    # Read the log's record last: a ledger that is archived in between then counts as not archived.
    metadata, _ = await archiver.logs.read(archiver.incarnation)
    # Compare the last part of the names, which is unique. The destination may be given in another way than
    # when the record was made, for example through a symbolic link or with other options.
    named = {destinations.base_name(record.file) for record in records}
    strays = {
        file.name: destinations.offsets_of_name(destinations.base_name(file.name)) or (0, 0)
        for file in files
        if destinations.base_name(file.name) not in named
    }
    replaced = _replaced(
        [(*strays[file.name], _ms(file.modified), file.name) for file in files if file.name in strays]
        + [(record.first_offset, record.end_offset, record.archived_ms, None) for record in records]
    )
    others = _Others(archiver, metadata, records)
    steps = []
    for file in old:
        if file.name not in strays:
            continue
        url = destination.url_of(file.name)
        if min_age_s:
            if replaced.get(file.name, 0) > _ms(made_before):
                continue
            why = await others.lack(*strays[file.name])
            if why is not None:
                logger.error("log=%s: %s is kept: %s", archiver.name, redact(url), redact(why))
                steps.append(ArchiveStep(what="skipped", ledger_id=None, file=url, why=why))
                continue
        try:
            await in_thread(partial(destination.delete, file.name), file=url)
        except ArchiveUnavailable as failure:
            logger.error("log=%s: %s", archiver.name, failure)
            steps.append(ArchiveStep(what="failed", ledger_id=None, file=url, why=str(failure)))
        else:
            steps.append(ArchiveStep(what="cleaned", ledger_id=None, bytes=file.size, file=url))
    return steps


def _replaced(made: Sequence[tuple[int, int, int, str | None]]) -> dict[str, int]:
    """Return the times at which other files replaced the strays, in milliseconds.

    A file is replaced by the first file made after it that has all its offsets. This takes one pass, because
    there may be thousands of files.

    Args:
        made: For each file its first offset, its end offset, when it was made (ms) and its name. The name is
            None if the file is not a stray.
    """
    found: dict[str, int] = {}
    begun: list[tuple[int, int]] = []  # End offset and time of files that may reach beyond the next file.
    for first, end, ms, name in sorted(made, key=lambda each: (each[0], -each[1], -each[2])):
        begun = [each for each in begun if each[0] > first]
        later = [moment for other_end, moment in begun if other_end >= end and moment > ms]
        if name is not None and later:
            found[name] = min(later)
        begun.append((end, ms))
    return found


def _ms(when: datetime) -> int:
    return round(1000 * when.timestamp())


@attrs.define(eq=False)
class _Others:
    """Finds out whether the records of a file are elsewhere too."""

    archiver: Archiver
    metadata: LogMetadata | None
    records: Sequence[ArchivedFile]
    """The records of the archive, by offset."""
    _archived: set[int] = attrs.field(init=False)
    _there: dict[bytes, bool] = attrs.field(factory=dict, init=False)
    """Whether the file of a record is there, by the record's token; only for files that were looked for."""

    def __attrs_post_init__(self) -> None:
        self._archived = {ledger.ledger_id for record in self.records for ledger in record.ledgers}

    async def lack(self, first: int, end: int) -> str | None:
        """Return why a file with these offsets may be the last one with some record; None if it is not."""
        at = bisect_right(self.records, first, key=lambda record: record.end_offset)
        for record in itertools.takewhile(lambda record: record.first_offset < end, self.records[at:]):
            if not await self._is_there(record):
                return f"it may hold records of {record.file}, which is not there"
        segments = () if self.metadata is None else self.metadata.segments
        at = 0 if self.metadata is None or not segments else self.metadata.index_at(first)
        for segment in segments[at:]:
            start, stop = segment.first_offset, segment.end_offset
            if start is None or stop is None or start >= end:
                break
            if max(first, start) < stop and segment.ledger_id not in self._archived:
                return f"it may hold records of ledger {segment.ledger_id}, which is not archived"
        return None

    async def _is_there(self, record: ArchivedFile) -> bool:
        """Whether the file of a record is there and is the right one. It may lie at another destination."""
        if record.token not in self._there:
            try:
                await self.archiver.expect_file(record)
            except (ArchiveCorrupt, ArchiveUnavailable):
                self._there[record.token] = False
            else:
                self._there[record.token] = True
        return self._there[record.token]
