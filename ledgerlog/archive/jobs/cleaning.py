"""Deleting what nothing names: files in a log's directory that no record of the archive has.

A job that ended before it made its record has left them, and so has whoever replaced or withdrew a record.
Such a file will never be named: no name comes twice, and no job records a file that is almost as old as this
asks for (``Archiver.is_late``). Yet it may be the last that there is of some records. So it stays

    while it is younger than a day, since a job may be about to record it
    while the first file that came after it with all of its offsets is younger than a day: who reads the old
    one comes to its end
    while a file that has its offsets now is not there, or is another: a cleaner whose clock is ahead may have
    taken that one just before it was recorded
    while the log lists a ledger with its offsets that is in no file: bookies alone have that, and are asked
    for all of it before they are trusted with it for long

The last two are told as ``skipped``. None of it holds for logs that were deleted.
"""

from __future__ import annotations

import itertools
import logging
from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import attrs

from ledgerlog.archive.jobs.archiver import Archiver, Step
from ledgerlog.archive.reader import in_thread
from ledgerlog.errors import ArchiveCorrupt, ArchiveUnavailable
from ledgerlog.limits import ARCHIVE_STRAY_AGE_S
from ledgerlog.model.archive import ArchiveRecord
from ledgerlog.model.log import LogMetadata
from ledgerlog.redact import redact

__all__ = ["clean"]

logger = logging.getLogger(__name__)


async def clean(archiver: Archiver, *, min_age_s: float = ARCHIVE_STRAY_AGE_S) -> list[Step]:
    """Delete files in the log's directory that no record names, that are so old, and whose records are
    elsewhere (above). With ``min_age_s`` 0, which is for logs that were deleted, all that no record names.
    ArchiveUnavailable, MetadataUnavailable."""
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
    # Behind the records: a ledger that was archived in between counts as one that is not.
    metadata, _ = await archiver.logs.read(archiver.incarnation)
    # By the last part of the name, which no two files have: the same place may be given in other words than
    # when the record was made, through a link or with other options.
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
                steps.append(Step(what="skipped", ledger_id=None, file=url, why=why))
                continue
        await in_thread(partial(destination.delete, file.name), file=url)
        steps.append(Step(what="cleaned", ledger_id=None, bytes=file.size, file=url))
    return steps


def _replaced(made: Sequence[tuple[int, int, int, str | None]]) -> dict[str, int]:
    """When other files took the places of strays. ``made`` has first offset, end, when it was made (ms) and
    name of each file, None for a name where it is no stray. A file is replaced by the first one made after it
    that has all of its offsets. In one pass, for there may be thousands of both."""
    found: dict[str, int] = {}
    begun: list[tuple[int, int]] = []  # End and moment of those that may reach over what comes next.
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
    """Where else the records of a file are."""

    archiver: Archiver
    metadata: LogMetadata | None
    records: Sequence[ArchiveRecord]
    """By offset."""
    _archived: set[int] = attrs.field(init=False)
    _there: dict[bytes, bool] = attrs.field(factory=dict, init=False)
    """What is known of files, by the tokens of their records."""

    def __attrs_post_init__(self) -> None:
        self._archived = {ledger.ledger_id for record in self.records for ledger in record.ledgers}

    async def lack(self, first: int, end: int) -> str | None:
        """Why a file with these offsets may be the last that has them; None where it is not."""
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
