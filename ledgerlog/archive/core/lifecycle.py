"""Decisions about one log: which ledgers and files may be archived, deleted or merged now.

An archived ledger goes through four states. Any job may carry out a step, and repeat it. A step needs only
the facts in the metadata store.

    copied     A file holds the ledger's records. A job has read the file again and found it right. The job
               stored a metadata record of the file while the log's list named the ledger. "The file's record"
               below is this one. Bookies and the file both have the ledger's records now.
    given up   After a delay, and after reading the file once more, a job deletes the ledger's metadata while
               the file's record exists. Bookies then collect their copies, as for any deleted ledger.
    merged     Neighbouring files whose ledgers are given up become one file. One transaction replaces their
               segments in the log's list by one segment.
    retired    The list no longer names the ledger, because of truncation, retention or the deletion of
               the log. A job deletes the file, then its record.

**Never a gap.** At every moment the ledger's metadata or the file's record exists. A job deletes the file's
record only in a transaction that checks that the ledger's metadata exist. It deletes the ledger's metadata
only in a transaction that checks that the file's record exists. (A retired ledger loses both.)

**Never two truths.** Jobs copy only *counted* ledgers: the log's list says how many records they have. Such
ledgers are CLOSED, and their contents never change. Jobs merge or compact a file only if bookies no longer
hold copies of its ledgers.

**What stays on bookies.** Jobs copy the newest counted ledger with records, but give it up only when there is
a newer one. Until then a takeover may have to read in this ledger which producer appended each record. A
sealed log has no more takeovers, so all its ledgers are given up. Ledgers without records, and ledgers whose
records are all truncated, are not copied.

**Compaction** covers the ledgers from the first one of the list up to the first one that is not given up. It
keeps the latest record of each key in this range. It replaces files from the oldest on. If it crashes midway,
every dropped record still has a later record of its key in the log.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.segments import LogSegment

__all__ = ["ArchivePlan", "compactable", "covers_its_segment", "in_the_log", "merge_groups", "plan_archive"]


@attrs.frozen(kw_only=True)
class ArchivePlan:
    """The work to do for one log."""

    copy: tuple[LogSegment, ...]
    """Ledgers to copy, in the order of the log."""
    give_up: tuple[tuple[ArchivedFile, int], ...]
    """Ledgers whose copies on bookies may be given up, each with the record of its file."""
    waiting: tuple[ArchivedFile, ...]
    """Archived ledgers whose copies on bookies stay for now."""
    retire: tuple[ArchivedFile, ...]
    """Records of files whose ledgers the list does not name."""


def in_the_log(metadata: LogMetadata | None, records: Sequence[ArchivedFile]) -> list[ArchivedFile]:
    """Return the records of files whose ledgers the log's list names. See ``plan_archive`` for arguments."""
    if metadata is None:
        return []
    listed = {segment.ledger_id for segment in metadata.segments if segment.record_count}
    return [record for record in records if record.ledger_id in listed]


def covers_its_segment(metadata: LogMetadata | None, record: ArchivedFile) -> bool:
    """Whether the file and the log's list give the ledger the same offsets.

    A merge changes both in one transaction. So they differ if they were read before and after a merge. If all
    records of the ledger are truncated, the list may give it other offsets (``model.log``), and this is true.
    """
    at = None if metadata is None else metadata.index_of(record.ledger_id)
    if metadata is None or at is None:
        return False
    segment = metadata.segments[at]
    if metadata.has_truncated(segment):
        return True
    return (segment.first_offset, segment.end_offset) == (record.first_offset, record.end_offset)


def plan_archive(
    metadata: LogMetadata | None,
    records: Sequence[ArchivedFile],
    with_copies: Collection[int],
    *,
    now_ms: int,
    keep_copies_ms: int,
) -> ArchivePlan:
    """Decide which work is possible now.

    Args:
        metadata: The record of the log; None if the log is gone.
        records: The records of the log's files. Read them before ``metadata``. Otherwise a ledger that is
            appended to the list and archived between the two reads would seem to have left the list.
        with_copies: The ledgers that have metadata, out of those that ``metadata`` or ``records`` name.
        now_ms: The wall clock, in milliseconds.
        keep_copies_ms: How long bookies keep their copies of an archived ledger, in milliseconds.
    """
    if metadata is None:
        return ArchivePlan(copy=(), give_up=(), waiting=(), retire=tuple(records))
    counted = [segment for segment in metadata.segments if segment.record_count]
    newest = counted[-1].ledger_id if counted and not metadata.sealed else None
    archived = {ledger.ledger_id for record in records for ledger in record.ledgers}
    give_up: list[tuple[ArchivedFile, int]] = []
    waiting: list[ArchivedFile] = []
    staying = {record.ledger_id for record in in_the_log(metadata, records)}
    for record in records:
        if record.ledger_id not in staying:
            continue
        standing = [each.ledger_id for each in record.ledgers if each.ledger_id in with_copies]
        # If the clock is set back in the meantime, the wait gets longer. If the clock is set forward, the
        # wait gets shorter by at most the same time.
        is_due = now_ms - record.archived_ms >= keep_copies_ms and newest not in standing
        if standing and is_due:
            give_up.extend((record, ledger_id) for ledger_id in standing)
        elif standing:
            waiting.append(record)
    return ArchivePlan(
        copy=tuple(
            segment
            for segment in counted
            if segment.ledger_id not in archived
            and segment.ledger_id in with_copies
            and not metadata.has_truncated(segment)
        ),
        give_up=tuple(give_up),
        waiting=tuple(waiting),
        retire=tuple(record for record in records if record.ledger_id not in staying),
    )


def merge_groups(
    metadata: LogMetadata,
    records: Sequence[ArchivedFile],
    with_copies: Collection[int],
    *,
    elsewhere: Collection[int] = (),
    bytes_max: int,
    ledgers_max: int,
) -> list[tuple[ArchivedFile, ...]]:
    """Return groups of neighbouring files that may become one file each.

    A file that is larger than half of ``bytes_max`` stays as it is, so no file is rewritten repeatedly. A
    group is a single file only if that file lies at another destination.

    Args:
        metadata: The record of the log.
        records: The records of the log's files.
        with_copies: The ledgers of these files that have metadata.
        elsewhere: The first ledgers of files that lie at another destination.
        bytes_max: The largest size of a new file, as the sum of the sizes of its old files.
        ledgers_max: How many ledgers a new file holds at most.
    """
    groups: list[tuple[ArchivedFile, ...]] = []
    group: list[ArchivedFile] = []

    def end() -> None:
        if len(group) > 1 or any(record.ledger_id in elsewhere for record in group):
            groups.append(tuple(group))
        group.clear()

    for record in _given_up(metadata, records, with_copies):
        if record is None or 2 * record.file_bytes > bytes_max:
            continue
        if group and not _adjoin(group[-1], record):
            end()
        size = sum(each.file_bytes for each in group) + record.file_bytes
        count = sum(len(each.ledgers) for each in group) + len(record.ledgers)
        if group and (size > bytes_max or count > ledgers_max):
            end()
        group.append(record)
    end()
    return groups


def compactable(
    metadata: LogMetadata,
    records: Sequence[ArchivedFile],
    with_copies: Collection[int],
    *,
    bytes_max: int,
    ledgers_max: int,
) -> list[tuple[ArchivedFile, ...]]:
    """Return the files that compaction covers, from the oldest on, in groups that become one file each.

    A group may be a single file, of any size. See ``merge_groups`` for the arguments.
    """
    groups: list[tuple[ArchivedFile, ...]] = []
    group: list[ArchivedFile] = []
    for record in _given_up(metadata, records, with_copies):
        if record is None:
            break
        size = sum(each.file_bytes for each in group) + record.file_bytes
        count = sum(len(each.ledgers) for each in group) + len(record.ledgers)
        if group and (size > bytes_max or count > ledgers_max or not _adjoin(group[-1], record)):
            groups.append(tuple(group))
            group = []
        group.append(record)
    if group:
        groups.append(tuple(group))
    return groups


def _adjoin(one: ArchivedFile, other: ArchivedFile) -> bool:
    """Whether no records were lost between two neighbouring files (``model.log``). No file may span a gap."""
    return one.end_offset == other.first_offset


def _given_up(
    metadata: LogMetadata, records: Sequence[ArchivedFile], with_copies: Collection[int]
) -> list[ArchivedFile | None]:
    """Return the file of each listed ledger with records, in order.

    An item is None if bookies have copies of the ledger, or if it has no file.
    """
    by_ledger = {record.ledger_id: record for record in records}
    found: list[ArchivedFile | None] = []
    for segment in metadata.segments:
        if segment.record_count == 0:
            continue
        record = by_ledger.get(segment.ledger_id)
        is_whole = (
            record is not None
            and (record.first_offset, record.end_offset) == (segment.first_offset, segment.end_offset)
            and not any(ledger.ledger_id in with_copies for ledger in record.ledgers)
        )
        found.append(record if is_whole else None)
    return found
