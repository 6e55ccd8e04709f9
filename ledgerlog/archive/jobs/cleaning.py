"""Deleting files in a log's directory that no record of the archive names.

Such a file is called a *stray*. A job leaves a stray if the job ends before it records its file, or if it
replaces or withdraws the record of a file. No job will ever record an old stray: no name is used twice, and
no job records a file that is almost a day old (``Archiver.is_late``). But a stray may hold the last copy of
some rows. So a stray stays in each of these cases:

- The stray is younger than a day. A job may be about to record it.
- Another file replaced the stray less than a day ago: a file with all offsets of the stray that was made
  after it. A reader of the stray may need this day to finish.
- A record names a file with some of the stray's offsets, but that file is not there, or another file is in
  its place. A cleaner whose clock is ahead may have deleted that file just before a job recorded it.
- The log lists a ledger with some of the stray's offsets, and this ledger is in no recorded file. Then only
  bookies have the ledger, and no job has checked yet that they have all of it.

- The metadata were restored from a backup, and no operator has accepted the loss yet. The stray may be an
  archived file that the backup does not know (``model.restoration``).

The last three cases are reported as ``skipped``. If the log was deleted, no case applies.
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
from ledgerlog.model.layout import RESTORED
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
            names, with any content. Pass 0 only for logs that were deleted.

    Returns:
        A step for each file that was ``cleaned`` or ``skipped``, or whose deletion ``failed``.

    Raises:
        ArchiveUnavailable: The destination's files cannot be listed, or it does not answer any more.
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
    # Read the log's record last. If a ledger is archived between the two reads, it then counts as not
    # archived, and the stray stays.
    metadata, _ = await archiver.read_log()
    # Compare only the last part of each name, which is unique. The rest may differ: this job may reach the
    # destination by another URL than the record has, for example through a symbolic link.
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
    others = _Others(archiver, metadata, records, await store.get(RESTORED) is not None)
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
            await archiver.expect_answer_after(failure)
            steps.append(ArchiveStep(what="failed", ledger_id=None, file=url, why=str(failure)))
        else:
            steps.append(ArchiveStep(what="cleaned", ledger_id=None, bytes=file.size, file=url))
    return steps


def _replaced(made: Sequence[tuple[int, int, int, str | None]]) -> dict[str, int]:
    """Return when another file replaced each stray, in milliseconds, by the stray's name.

    The file that replaced a stray is the first file made after the stray that has all offsets of the stray.
    One pass finds all of them, because there may be thousands of files.

    Args:
        made: For each file its first offset, its end offset, when it was made (ms) and its name. The name is
            None if the file is not a stray.
    """
    found: dict[str, int] = {}
    begun: list[tuple[int, int]] = []  # End offset and time of earlier files that may hold the next one.
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
    is_restored: bool
    """Whether the metadata were restored from a backup, with a loss that is not accepted yet."""
    _archived: set[int] = attrs.field(init=False)
    _there: dict[bytes, bool] = attrs.field(factory=dict, init=False)
    """Whether the file of a record is there, by the record's token. It has only the files checked so far."""

    def __attrs_post_init__(self) -> None:
        self._archived = {ledger.ledger_id for record in self.records for ledger in record.ledgers}

    async def lack(self, first: int, end: int) -> str | None:
        """Return why a file with these offsets may hold the last copy of a record; None if it does not."""
        if self.is_restored:
            return (
                "the metadata come from a backup, which may not know this file; 'ledgerlog metadata restore "
                "--accept-loss' ends this"
            )
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
            except (ArchiveCorrupt, ArchiveUnavailable) as failure:
                await self.archiver.expect_answer_after(failure)
                self._there[record.token] = False
            else:
                self._there[record.token] = True
        return self._there[record.token]
