"""Finding the place of something in a log's ledgers: the tail, an offset, a position, a time.

The log's record says at which offset each counted segment starts and which time it spans. (A segment is
*counted* once the record says how many records its ledger holds.) Inside a segment, each entry's header says
its first offset and its time. In a segment that is not counted, only the confirmed entries belong to the log,
and a ``LedgerReader`` tells which entries are confirmed. A newer open segment belongs to the log only if its
first entry continues the older segment (``log.core.chain``).

A counted segment may be archived (``model.archive``). If no bookie serves its ledger, the search continues in
the archive file. A file can be read from any offset on, so a ``ReadPosition`` in a file has entry 0, and only
its offset counts.

"Errors as for reading" below means: EntryUnavailable, EntryNotFound, EntryCorrupt and LedgerNotFound from the
bookies, MetadataUnavailable, and for an archived segment ArchiveUnavailable, ArchiveCorrupt and
ArchiveSupportMissing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import attrs

from ledgerlog.archive.reader import open_archive
from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.errors import (
    EntryCorrupt,
    EntryNotFound,
    EntryUnavailable,
    InvalidArgument,
    LedgerLogError,
    LedgerNotFound,
    LossUndecided,
    Truncated,
)
from ledgerlog.ledger.core.recovery import may_be_short
from ledgerlog.ledger.ledgers import Ledgers
from ledgerlog.ledger.reader import LedgerReader
from ledgerlog.log.core.search import EntrySearch
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.ids import NO_ENTRY, Position
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.segments import LogSegment
from ledgerlog.wire.records import EntryHeader, decode_header

_LOST_IN_A_ROW_MAX = 16
"""If more entries in a row are lost, a search does not find what comes after them."""


@attrs.frozen
class ReadPosition:
    """A place where reading starts or continues."""

    segment: LogSegment | None
    """The segment to read. None: the place is before the first ledger of the list, even if that ledger is
    still to come."""
    entry_id: int | None
    """The next entry to read. None: the segment is read to its end."""
    offset: int
    """The offset of the first record there."""


ReadsHeaders = Callable[[int], Awaitable[EntryHeader]]
"""Reads the header of an entry. Errors as for reading."""


class OpensLedgers(Protocol):
    """Opens ledgers for reading: ``Ledgers``, or a substitute."""

    async def open(self, ledger_id: int) -> LedgerReader:
        """Return a reader of the ledger."""
        ...


@attrs.frozen
class LogTail(ReadPosition):
    """The place after the last record that is confirmed."""

    bytes_before: int
    """Bytes of all records ever appended before this place, truncated ones included."""
    last_entry: int
    """The entry before this place in the segment's ledger; -1 if there is none."""


async def read_header(reader: LedgerReader, entry_id: int, segment: LogSegment) -> EntryHeader:
    """Read one entry and decode its header."""
    (payload,) = await reader.read(entry_id, entry_id)
    return decode_header(payload, ledger_id=reader.ledger_id, entry_id=entry_id, spliced=segment.spliced)


async def find_tail(ledgers: OpensLedgers, metadata: LogMetadata) -> LogTail:
    """Find the place after the last record that is confirmed now. Errors as for reading."""
    tails, doubt = await find_tails(ledgers, metadata)
    if doubt is not None:
        raise doubt
    if tails:
        return tails[-1]
    newest = metadata.segments[-1] if metadata.segments else None
    return LogTail(newest, None, metadata.counted_end, metadata.counted_bytes, NO_ENTRY)


async def find_tails(
    ledgers: OpensLedgers, metadata: LogMetadata
) -> tuple[list[LogTail], EntryUnavailable | None]:
    """Find how far the log is known to be confirmed in each of its open ledgers that continues it.

    Returns:
        The place after the last record of each ledger, and why there may be more confirmed records than that:
        too few bookies answered. None: there are no more.

    Errors otherwise as for reading.
    """
    tails: list[LogTail] = []
    doubt: EntryUnavailable | None = None
    offset, bytes_before = metadata.counted_end, metadata.counted_bytes
    for segment in metadata.open_segments:
        if tails and tails[-1].entry_id is not None:
            try:
                is_continued = await continues(ledgers, segment, offset)
            except EntryUnavailable as failure:
                return tails, doubt or failure
            if not is_continued:
                break  # The older segment is open, and more records may come there.
        reader = await ledgers.open(segment.ledger_id)
        last, doubt = await reader.known_end()  # A doubt about the older segment is settled.
        is_closed = reader.is_closed
        if last != NO_ENTRY:
            if tails and (await read_header(reader, 0, segment)).first_offset != offset:
                return tails, None
            header = await read_header(reader, last, segment)
            offset, bytes_before = header.end_offset, header.bytes_after
        tails.append(LogTail(segment, None if is_closed else last + 1, offset, bytes_before, last))
    return tails, doubt


async def continues(ledgers: OpensLedgers, segment: LogSegment, offset: int) -> bool:
    """Whether the segment's first entry is confirmed and begins at ``offset``.

    If so, and if the older segment before it is confirmed up to ``offset``, the older segment holds nothing
    more. A leader sends nothing to the older segment after it has sent to the newer one. Errors as for
    reading.
    """
    if segment.record_count == 0:
        return False
    reader = await ledgers.open(segment.ledger_id)
    if not await reader.is_readable(0):
        return False
    return (await read_header(reader, 0, segment)).first_offset == offset


async def find_undecided_loss(ledgers: Ledgers, metadata: LogMetadata) -> LossUndecided | None:
    """Look for a loss at the end of the older of two open ledgers about which an operator has not decided for
    this log. An operator has accepted the loss for the ledger, or the metadata were restored.

    Return None if there is no such loss. Errors as for reading.
    """
    if len(metadata.open_segments) < 2:
        return None
    older, newer = metadata.open_segments
    ended = await ledgers.metadata(older.ledger_id)
    if ended.last_entry is None or not may_be_short(ended):
        return None
    assert older.first_offset is not None
    lost_from = older.first_offset
    if ended.last_entry != NO_ENTRY:
        reader = await ledgers.open(older.ledger_id)
        lost_from = (await read_header(reader, ended.last_entry, older)).end_offset
    reader = await ledgers.open(newer.ledger_id)
    if not await reader.is_readable(0):
        return None
    first_offset = (await read_header(reader, 0, newer)).first_offset
    if first_offset <= lost_from:
        return None
    last = await reader.find_readable()  # It is for the message only.
    return LossUndecided(
        metadata.name,
        older.ledger_id,
        newer.ledger_id,
        lost_from,
        first_offset,
        (await read_header(reader, last, newer)).end_offset,
    )


NOT_ON_BOOKIES = (LedgerNotFound, EntryNotFound, EntryUnavailable, EntryCorrupt)
"""If reading a ledger fails with one of these errors, look in its archive. EntryCorrupt is one of them: the
copies on all bookies may be damaged while the file, which has digests of its own, is whole."""


async def archive_of(
    archives: ArchiveRegistry, metadata: LogMetadata, segment: LogSegment, failure: LedgerLogError
) -> ArchivedFile:
    """Return the record of the archive file that holds a segment, for a segment that no bookie serves.

    Args:
        archives: The archive records.
        metadata: The record of the log.
        segment: The segment.
        failure: The error that reading from bookies raised.

    Raises:
        LedgerLogError: ``failure``, if no file holds the segment.
    """
    if segment.first_offset is None or not segment.record_count:
        raise failure
    record = await archives.holding(metadata.incarnation, segment.ledger_id, segment.first_offset)
    if record is None:
        raise failure
    return record


async def find_offset(
    ledgers: Ledgers, archives: ArchiveRegistry, metadata: LogMetadata, offset: int
) -> ReadPosition:
    """Find the entry that holds an offset.

    If the offset is beyond the confirmed records, return the place where the next records will come. The
    offset must not be truncated. Errors as for reading.
    """
    assert offset >= metadata.first_offset
    if not metadata.segments:
        return ReadPosition(None, None, metadata.counted_end)
    segment = metadata.segments[metadata.index_at(offset)]
    assert segment.first_offset is not None
    if offset < segment.first_offset:
        return ReadPosition(None, None, offset)  # In a gap, and the segments before it are truncated.
    if segment.end_offset is not None and offset >= segment.end_offset:
        return ReadPosition(segment, None, segment.end_offset)
    try:
        return await find_offset_in_ledger(ledgers, segment, offset)
    except NOT_ON_BOOKIES as failure:
        await archive_of(archives, metadata, segment, failure)
        return ReadPosition(segment, 0, offset)


async def find_offset_in_ledger(ledgers: Ledgers, segment: LogSegment, offset: int) -> ReadPosition:
    """Find the entry that holds an offset, in a ledger whose first offset is known.

    If the offset is beyond the confirmed entries, return the place of the next entry. If other entries are
    lost, the search goes on without them. Errors as for reading.
    """
    assert segment.first_offset is not None
    reader = await ledgers.open(segment.ledger_id)
    last = await reader.find_readable()
    if last == NO_ENTRY or offset == segment.first_offset:
        return ReadPosition(segment, 0, segment.first_offset)
    end = segment.end_offset
    if end is not None and offset >= end:
        return ReadPosition(segment, last + 1, end)
    entry_id, first = await find_entry_of_offset(
        partial(read_header, reader, segment=segment), last, offset, first=segment.first_offset, end=end
    )
    return ReadPosition(segment, entry_id, first)


async def find_entry_of_offset(
    read: ReadsHeaders, last: int, offset: int, *, first: int, end: int | None
) -> tuple[int, int]:
    """Find the entry that holds an offset among entries 0 to ``last``.

    Args:
        read: Reads the header of an entry.
        last: The last entry.
        offset: The offset.
        first: The first offset of the ledger.
        end: The offset after entry ``last``, more than ``offset``; None if it is not known.

    Returns:
        The entry and its first offset. If the offset is beyond ``last``: the next entry and its offset.

    Raises:
        EntryNotFound, EntryCorrupt: The entry is lost, or may be lost.
        EntryUnavailable, LedgerNotFound: As for reading.
    """
    return await _find_entry(
        read,
        last,
        offset,
        value=lambda header: header.end_offset - 1,
        value_before=lambda header: header.first_offset - 1,
        value_below=first,
        value_at_last=None if end is None else end - 1,
    )


async def find_entry_of_moment(
    read: ReadsHeaders, last: int, when_ms: int, *, first_ms: int | None = None, last_ms: int | None = None
) -> tuple[int, int]:
    """Find the first entry of 0 to ``last`` whose timestamp is at or after ``when_ms``.

    A lost entry may be as new as the next entry that can be read. Arguments, result and errors otherwise as
    for ``find_entry_of_offset``.
    """
    return await _find_entry(
        read,
        last,
        when_ms,
        value=lambda header: header.timestamp_ms,
        value_before=lambda header: header.timestamp_ms,
        value_below=first_ms,
        value_at_last=last_ms,
    )


async def _find_entry(
    read: ReadsHeaders,
    last: int,
    wanted: int,
    *,
    value: Callable[[EntryHeader], int],
    value_before: Callable[[EntryHeader], int],
    value_below: int | None,
    value_at_last: int | None,
) -> tuple[int, int]:
    """Find the first entry whose value is at least ``wanted``. Lost entries hinder this only if the entry
    may be one of them.

    ``value_before`` tells from a header how high the value of the entry before it can be. ``value_at_last``
    is at least ``wanted``.
    """
    headers: dict[int, EntryHeader] = {}
    lost: dict[int, EntryNotFound | EntryCorrupt] = {}

    async def look(entry_id: int) -> EntryHeader | None:
        """Return the header of an entry; None if the entry is lost."""
        if entry_id not in headers and entry_id not in lost:
            try:
                headers[entry_id] = await read(entry_id)
            except (EntryNotFound, EntryCorrupt) as failure:
                lost[entry_id] = failure
        return headers.get(entry_id)

    high = last
    if value_at_last is None:
        top = await look(last)
        if top is None:
            high = last - 1
        else:
            value_at_last = value(top)
    search = EntrySearch(0, high, wanted, value_below=value_below, value_at_high=value_at_last)
    while (probe := search.probe) is not None:
        header = await look(probe)
        if header is not None:
            search.on_value(value(header))
            continue
        # The next entry that can be read tells how high the value of the lost one is, at most.
        following = range(probe + 1, min(probe + _LOST_IN_A_ROW_MAX, last) + 1)
        for entry_id in following:
            header = await look(entry_id)
            if header is not None:
                search.on_value(value_before(header))
                break
        else:
            search.on_value(wanted)  # Too many are lost in a row: look only at the entries before them.
    found = min(search.found, last)
    header = await look(found)
    if header is None:
        raise lost[found]
    return (found, header.first_offset) if value(header) >= wanted else (found + 1, header.end_offset)


async def find_position(
    ledgers: Ledgers, archives: ArchiveRegistry, metadata: LogMetadata, position: Position
) -> tuple[ReadPosition, int]:
    """Find the entry of a position, and the offset of the record there.

    The position may lie one slot after the last record of an entry, or one entry after the last entry. The
    offset is then the offset of the next record. Errors as for reading, and:

    Raises:
        Truncated: The record at that offset is truncated.
        InvalidArgument: The log has no such position.
        EntryUnavailable: Also if the position lies in a ledger that is still open, after all that can be
            read of it now. The log may have it or not.
    """
    place, offset = await _find_listed_position(ledgers, archives, metadata, position)
    if offset < metadata.first_offset:
        raise Truncated(metadata.name, metadata.first_offset)
    return place, offset


async def _find_listed_position(
    ledgers: Ledgers, archives: ArchiveRegistry, metadata: LogMetadata, position: Position
) -> tuple[ReadPosition, int]:
    """Find a position as ``find_position`` does, even if its record is truncated but still there."""
    index = metadata.index_of(position.ledger_id)
    if index is None:
        return await _find_merged_position(archives, metadata, position)
    segment = metadata.segments[index]
    if segment.record_count == 0:
        assert segment.first_offset is not None
        return ReadPosition(segment, None, segment.first_offset), segment.first_offset
    try:
        return await _find_position_in_ledger(ledgers, metadata, segment, position)
    except NOT_ON_BOOKIES as failure:
        record = await archive_of(archives, metadata, segment, failure)
        return await _find_archived_position(metadata, record, position)


async def _find_merged_position(
    archives: ArchiveRegistry, metadata: LogMetadata, position: Position
) -> tuple[ReadPosition, int]:
    """Find a position in a ledger that the list no longer names: it was truncated, or archived and
    merged."""
    for record, _ in await archives.of_log(metadata.incarnation):
        is_listed = metadata.index_of(record.ledger_id) is not None
        if is_listed and record.ledger(position.ledger_id) is not None:
            return await _find_archived_position(metadata, record, position)
    if metadata.first_offset:
        raise Truncated(metadata.name, metadata.first_offset)
    raise InvalidArgument(
        f"log {metadata.name!r} has no ledger {position.ledger_id}: it never had it, or a gathered ledger "
        "holds its records now; start at an offset instead"
    )


async def _find_archived_position(
    metadata: LogMetadata, record: ArchivedFile, position: Position
) -> tuple[ReadPosition, int]:
    """Find a position in an archived ledger.

    If the position is not in the file, it stands for the next record. That is so for a checkpoint, for a
    place after the last record of an entry, and for a record that was compacted away.
    """
    ledger = record.ledger(position.ledger_id)
    segment = metadata.segments[metadata.index_at(record.first_offset)]
    if ledger is None or segment.ledger_id != record.ledger_id:
        raise Truncated(metadata.name, metadata.first_offset)
    if position.entry_id > ledger.last_entry + 1 or (position.entry_id > ledger.last_entry and position.slot):
        raise InvalidArgument(
            f"log {metadata.name!r} has no position {position}: its ledger ends with entry "
            f"{ledger.last_entry}"
        )
    async with open_archive(record) as archive:
        offset = await archive.offset_of_entry(ledger, position.entry_id, position.slot)
    return ReadPosition(segment, 0, offset), offset


async def _find_position_in_ledger(
    ledgers: Ledgers, metadata: LogMetadata, segment: LogSegment, position: Position
) -> tuple[ReadPosition, int]:
    reader = await ledgers.open(segment.ledger_id)
    last = await reader.find_readable()
    if position.entry_id > last:
        if position.entry_id > last + 1 or position.slot:
            if not reader.is_closed:
                # It may have been acknowledged. If its writer is gone, readers see it only after recovery.
                raise EntryUnavailable(
                    segment.ledger_id,
                    position.entry_id,
                    f"the ledger is not closed, and is known to be confirmed only up to entry {last}. If log "
                    f"{metadata.name!r} has the position, you can read from it as soon as its writer "
                    "confirms it, or after the next takeover",
                )
            raise InvalidArgument(
                f"log {metadata.name!r} has no position {position}: its ledger ends with entry {last} now"
            )
        if last == NO_ENTRY:
            tail = await find_tail(ledgers, metadata) if segment.first_offset is None else None
            offset = segment.first_offset if tail is None else tail.offset
            assert offset is not None
        else:
            offset = (await read_header(reader, last, segment)).end_offset
        return ReadPosition(segment, None if reader.is_closed else last + 1, offset), offset
    header = await read_header(reader, position.entry_id, segment)
    if position.slot > header.record_count:
        raise InvalidArgument(
            f"log {metadata.name!r} has no position {position}: its entry holds {header.record_count} records"
        )
    offset = header.first_offset + position.slot
    return ReadPosition(segment, position.entry_id, header.first_offset), offset


async def find_moment(
    ledgers: Ledgers, archives: ArchiveRegistry, metadata: LogMetadata, when_ms: int
) -> ReadPosition:
    """Find the first entry whose timestamp is at or after ``when_ms``.

    If there is none, return a place that has only newer or future records after it. Errors as for reading.
    """
    place = ReadPosition(None, None, metadata.first_offset if metadata.segments else metadata.counted_end)
    is_behind_gap = False
    for segment in metadata.segments:
        if segment.first_offset is None:
            break
        is_behind_gap = is_behind_gap or segment.lost_before > 0
        end = segment.end_offset
        if end is not None and metadata.has_truncated(segment):
            place = ReadPosition(segment, None, end)
            is_behind_gap = False
            continue
        if end is not None and segment.last_ms is None and is_behind_gap:
            continue  # A segment without records does not tell how old the lost records were.
        if end is not None and (segment.last_ms is None or segment.last_ms < when_ms):
            place = ReadPosition(segment, None, end)
            is_behind_gap = False
            continue
        if is_behind_gap and segment.first_ms is not None and segment.first_ms >= when_ms:
            return place  # The lost records may be of that time too, so the reader has to report the gap.
        try:
            found = await _find_moment_in_ledger(ledgers, segment, when_ms)
        except NOT_ON_BOOKIES as failure:
            record = await archive_of(archives, metadata, segment, failure)
            async with open_archive(record) as archive:
                return ReadPosition(segment, 0, await archive.offset_of_moment(when_ms))
        return place if is_behind_gap and found.entry_id == 0 else found
    return place


async def _find_moment_in_ledger(ledgers: Ledgers, segment: LogSegment, when_ms: int) -> ReadPosition:
    assert segment.first_offset is not None
    reader = await ledgers.open(segment.ledger_id)
    last = await reader.find_readable()
    if last == NO_ENTRY:
        return ReadPosition(segment, 0, segment.first_offset)
    entry_id, first = await find_entry_of_moment(
        partial(read_header, reader, segment=segment),
        last,
        when_ms,
        first_ms=segment.first_ms,
        last_ms=segment.last_ms,
    )
    return ReadPosition(segment, entry_id, first)
