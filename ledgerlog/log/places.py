"""Where in a log's ledgers something is: the tail, an offset, a position, a moment.

The log's record says where each counted segment starts and which time it spans; inside a segment the
entries' headers say the rest. Of segments that are not counted, what is confirmed counts: their
readers tell. What a newer open segment holds belongs to the log only if it continues the older one
(``core.log_chain``), which its first entry says.
"""

from __future__ import annotations

import attrs

from ledgerlog.client.ledgers import Ledgers
from ledgerlog.client.reader import LedgerReader
from ledgerlog.core.log_search import EntrySearch
from ledgerlog.errors import InvalidArgument, Truncated
from ledgerlog.model.ids import NO_ENTRY, Position
from ledgerlog.model.log import LogMetadata, Segment
from ledgerlog.wire.records import EntryHeader, decode_header


@attrs.frozen
class Place:
    """Where reading goes on."""

    segment: Segment | None
    """None: before the first ledger of the list, whatever that is or will be."""
    entry_id: int | None
    """The next entry; None: the segment is read to its end."""
    offset: int
    """The offset of the first record there."""


async def read_header(reader: LedgerReader, entry_id: int, segment: Segment) -> EntryHeader:
    (payload,) = await reader.read(entry_id, entry_id)
    return decode_header(payload, ledger_id=reader.ledger_id, entry_id=entry_id, spliced=segment.spliced)


async def find_tail(ledgers: Ledgers, metadata: LogMetadata) -> Place:
    """Behind the last record that is confirmed now. Errors as for reading."""
    place = Place(None, None, metadata.counted_end)
    if metadata.segments:
        place = Place(metadata.segments[-1], None, metadata.counted_end)
    for index, segment in enumerate(metadata.open_segments):
        if index and place.entry_id is not None and not await continues(ledgers, segment, place.offset):
            return place  # The older one is open, and more may come there.
        reader = await ledgers.open(segment.ledger_id)
        last = await reader.last_add_confirmed()
        offset = place.offset
        if last != NO_ENTRY:
            if index and (await read_header(reader, 0, segment)).first_offset != offset:
                return place
            offset = (await read_header(reader, last, segment)).end_offset
        place = Place(segment, None if reader.is_closed else last + 1, offset)
    return place


async def continues(ledgers: Ledgers, segment: Segment, offset: int) -> bool:
    """Whether the segment's first entry is confirmed and begins at ``offset``. Where the segment before it is
    confirmed up to there, that is all of it: its leader sends nothing to it once he has sent to this one.
    Errors as for reading."""
    if segment.record_count == 0:
        return False
    reader = await ledgers.open(segment.ledger_id)
    if await reader.last_add_confirmed() == NO_ENTRY:
        return False
    return (await read_header(reader, 0, segment)).first_offset == offset


async def find_offset(ledgers: Ledgers, metadata: LogMetadata, offset: int) -> Place:
    """The entry that holds an offset, or the place where records will come that are before it or it. The
    offset must not be truncated. Errors as for reading."""
    assert offset >= metadata.first_offset
    if not metadata.segments:
        return Place(None, None, metadata.counted_end)
    segment = metadata.segments[metadata.index_at(offset)]
    assert segment.first_offset is not None
    if segment.end_offset is not None and offset >= segment.end_offset:
        return Place(segment, None, segment.end_offset)
    reader = await ledgers.open(segment.ledger_id)
    last = await reader.last_add_confirmed()
    if last == NO_ENTRY or offset == segment.first_offset:
        return Place(segment, 0, segment.first_offset)
    top = await read_header(reader, last, segment)
    if offset >= top.end_offset:
        return Place(segment, last + 1, top.end_offset)
    search = EntrySearch(0, last, offset, value_below=segment.first_offset, value_at_high=top.end_offset - 1)
    headers = {last: top}
    while search.probe is not None:
        header = headers[search.probe] = await read_header(reader, search.probe, segment)
        search.on_value(header.end_offset - 1)
    return Place(segment, search.found, headers[search.found].first_offset)


async def find_position(ledgers: Ledgers, metadata: LogMetadata, position: Position) -> tuple[Place, int]:
    """The entry of a position, and the offset of the record there. Truncated, InvalidArgument where the log
    has no such position; one slot or one entry behind the last is the place where the next will be."""
    index = metadata.index_of(position.ledger_id)
    if index is None:
        if metadata.first_offset:
            raise Truncated(metadata.name, metadata.first_offset)
        raise InvalidArgument(f"log {metadata.name!r} has no ledger {position.ledger_id}")
    segment = metadata.segments[index]
    if segment.record_count == 0:
        assert segment.first_offset is not None
        return Place(segment, None, segment.first_offset), segment.first_offset
    reader = await ledgers.open(segment.ledger_id)
    last = await reader.last_add_confirmed()
    if position.entry_id > last:
        if position.entry_id > last + 1 or position.slot:
            raise InvalidArgument(
                f"log {metadata.name!r} has no position {position}: its ledger ends with entry {last} now"
            )
        if last == NO_ENTRY:
            tail = await find_tail(ledgers, metadata) if segment.first_offset is None else None
            offset = segment.first_offset if tail is None else tail.offset
            assert offset is not None
        else:
            offset = (await read_header(reader, last, segment)).end_offset
        return Place(segment, None if reader.is_closed else last + 1, offset), offset
    header = await read_header(reader, position.entry_id, segment)
    if position.slot > header.record_count:
        raise InvalidArgument(
            f"log {metadata.name!r} has no position {position}: its entry holds {header.record_count} records"
        )
    offset = header.first_offset + position.slot
    if offset < metadata.first_offset:
        raise Truncated(metadata.name, metadata.first_offset)
    return Place(segment, position.entry_id, header.first_offset), offset


async def find_moment(ledgers: Ledgers, metadata: LogMetadata, when_ms: int) -> Place:
    """The first entry whose timestamp is not before ``when_ms``, or a place where all that will be read is
    newer or is yet to come. Errors as for reading."""
    place = Place(None, None, metadata.counted_end)
    for segment in metadata.segments:
        if segment.first_offset is None:
            break
        if segment.last_ms is None or segment.last_ms < when_ms:
            place = Place(segment, None, segment.end_offset or segment.first_offset)
            if segment.is_counted:
                continue
        reader = await ledgers.open(segment.ledger_id)
        last = await reader.last_add_confirmed()
        if last == NO_ENTRY:
            return Place(segment, 0, segment.first_offset)
        top = await read_header(reader, last, segment)
        if top.timestamp_ms < when_ms:
            return Place(segment, last + 1, top.end_offset)
        search = EntrySearch(0, last, when_ms, value_below=segment.first_ms, value_at_high=top.timestamp_ms)
        headers = {last: top}
        while search.probe is not None:
            header = headers[search.probe] = await read_header(reader, search.probe, segment)
            search.on_value(header.timestamp_ms)
        return Place(segment, search.found, headers[search.found].first_offset)
    return place
