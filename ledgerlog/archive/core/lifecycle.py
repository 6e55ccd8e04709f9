"""What may be archived now, what may be deleted now, what may be merged: decisions about one log.

An archived ledger goes through this, and each step may be done by anybody, again, and from what the metadata
store says alone:

    copied     its records are in a file, which was read again and found right; the record of it is written
               while the log's list names the ledger. Both bookies and the file have the records now
    given up   after a delay, and after the file was read once more, the ledger's metadata are deleted while
               the record stands; bookies collect their copies as those of any ledger that was deleted
    merged     neighbours whose copies are given up are one file, and one segment of the list in place of
               theirs, from one transaction on
    retired    the list names the ledger no more (truncation, retention, the log was deleted): its file is
               deleted, then its record

**Never a gap.** At every moment the ledger's metadata or its archive's record are there. The record is
withdrawn only while the ledger is there, and the ledger deleted only while the record is there, each in one
transaction that checks the other.

**Never two truths.** Only ledgers that are counted are copied: they are CLOSED, and what is in them never
changes. Only files that bookies hold no copies of any more are merged or compacted.

**What stays on bookies.** The newest counted ledger with records is copied and not given up until there is a
newer one: who takes over may have to read there who appended what. A sealed log is never taken over, and goes
whole. Ledgers without records are not worth a file.

**Compaction** goes over the longest stretch, from the first of the list, of ledgers that are given up. Of
each key it keeps the latest record in that stretch. Files are replaced from the oldest on: whatever a crash
leaves, a record is missing only where a later one of its key is there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from ledgerlog.model.archive import ArchiveRecord
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.segments import Segment

__all__ = ["ArchivePlan", "compactable", "merge_groups", "plan_archive"]


@attrs.frozen(kw_only=True)
class ArchivePlan:
    """What is to do for one log."""

    copy: tuple[Segment, ...]
    """Ledgers to be copied, in the order of the log."""
    give_up: tuple[tuple[ArchiveRecord, int], ...]
    """Ledgers whose copies may be given up, each with the record of its file."""
    waiting: tuple[ArchiveRecord, ...]
    """Archived, and their copies stay for now."""
    retire: tuple[ArchiveRecord, ...]
    """Records of ledgers that the list does not name."""


def plan_archive(
    metadata: LogMetadata | None,
    records: Sequence[ArchiveRecord],
    with_copies: Collection[int],
    *,
    now_ms: int,
    keep_copies_ms: int,
) -> ArchivePlan:
    """What may be done now. ``records`` must have been read before the log's record (None: the log is gone),
    or one that was made between the two would look as if its ledger had left the list; ``with_copies`` are
    those of the ledgers of both that have metadata."""
    if metadata is None:
        return ArchivePlan(copy=(), give_up=(), waiting=(), retire=tuple(records))
    counted = [segment for segment in metadata.segments if segment.record_count]
    newest = counted[-1].ledger_id if counted and not metadata.sealed else None
    listed = {segment.ledger_id for segment in counted}
    archived = {ledger.ledger_id for record in records for ledger in record.ledgers}
    give_up: list[tuple[ArchiveRecord, int]] = []
    waiting: list[ArchiveRecord] = []
    retire: list[ArchiveRecord] = []
    for record in records:
        if record.ledger_id not in listed:
            retire.append(record)
            continue
        standing = [each.ledger_id for each in record.ledgers if each.ledger_id in with_copies]
        # A clock that was set back makes it wait longer, and never shorter than by what it was set back.
        is_due = now_ms - record.archived_ms >= keep_copies_ms and newest not in standing
        if standing and is_due:
            give_up.extend((record, ledger_id) for ledger_id in standing)
        elif standing:
            waiting.append(record)
    return ArchivePlan(
        copy=tuple(
            segment
            for segment in counted
            if segment.ledger_id not in archived and segment.ledger_id in with_copies
        ),
        give_up=tuple(give_up),
        waiting=tuple(waiting),
        retire=tuple(retire),
    )


def merge_groups(
    metadata: LogMetadata,
    records: Sequence[ArchiveRecord],
    with_copies: Collection[int],
    *,
    bytes_max: int,
    ledgers_max: int,
) -> list[tuple[ArchiveRecord, ...]]:
    """Neighbours that may become one file each, of about ``bytes_max`` at most and of no more ledgers. A file
    that is half as large already stays as it is, so that none is written over and over."""
    groups: list[tuple[ArchiveRecord, ...]] = []
    group: list[ArchiveRecord] = []

    def end() -> None:
        if len(group) > 1:
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
    records: Sequence[ArchiveRecord],
    with_copies: Collection[int],
    *,
    bytes_max: int,
    ledgers_max: int,
) -> list[tuple[ArchiveRecord, ...]]:
    """The files that compaction goes over, from the oldest on, grouped as they are to be written: one or
    several neighbours become one."""
    groups: list[tuple[ArchiveRecord, ...]] = []
    group: list[ArchiveRecord] = []
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


def _adjoin(one: ArchiveRecord, other: ArchiveRecord) -> bool:
    """Whether nothing was lost between two neighbours (``model.log``): no file reaches over a gap."""
    return one.end_offset == other.first_offset


def _given_up(
    metadata: LogMetadata, records: Sequence[ArchiveRecord], with_copies: Collection[int]
) -> list[ArchiveRecord | None]:
    """For each listed ledger with records, in order: its file, None where bookies have the ledger or it has
    no file."""
    by_ledger = {record.ledger_id: record for record in records}
    found: list[ArchiveRecord | None] = []
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
