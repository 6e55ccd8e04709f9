"""What the planner's process sees of the logs: how far each reaches now, in which ledgers, on which bookies.

Only here are metadata read. What tasks need of them goes with the parts of the plan: the metadata of each
ledger that a part touches, and where the bookies serve. So a job of a thousand tasks opens one session with
the metadata store and not a thousand.

**The end** is what is confirmed: an open ledger counts up to the entry that its bookies say is confirmed,
which neither fences it nor disturbs its writer. A ledger that is open beside the one before it counts only
where it continues that one (``log.positions``).

**Data loss** is whatever a reader asked for and can never get: records that were truncated away, or lost with
bookies in the middle of a log (``Log.recover``), a log that was deleted, or deleted and made again. It is an
error, unless ``failOnDataLoss`` is false; then what is left is read and the rest is said in the log of the
process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence

import attrs
import trio

from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.errors import (
    EntryUnavailable,
    InvalidArgument,
    LedgerLogError,
    LedgerNotFound,
    LogNotFound,
    RecordsLost,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.log.core.scan import Piece, Stretch, cut, share
from ledgerlog.log.core.search import EntrySearch
from ledgerlog.log.positions import continues, find_moment, read_header
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.log import LogMetadata
from ledgerlog.spark.options import Bound, ReadOptions
from ledgerlog.spark.scanning import ScanPart

__all__ = [
    "DataLoss",
    "LogView",
    "look",
    "look_at_all",
    "offset_of",
    "plan",
    "plan_table",
    "range_of",
    "readable",
    "select",
    "still_there",
    "view_reaching",
]

logger = logging.getLogger(__name__)

_READS_AT_ONCE = 32
"""Requests to the metadata store that are under way together."""

_CATCH_UP_S = 30.0
"""How long a confirmed end that was seen before is waited for: the bookies that told it may be gone, and the
others learn of it with the next entry or a recovery."""

_RETRY_S = 0.2


class DataLoss(LedgerLogError):
    """Records that were to be read are gone for good; ``failOnDataLoss=false`` reads what is left."""


@attrs.frozen(kw_only=True)
class LogView:
    """A log as it was at one moment."""

    metadata: LogMetadata
    stretches: tuple[Stretch, ...]
    """Its ledgers with records, growing and up to ``end``; a last one without any if ``end`` is behind a
    gap."""
    end: int
    """The offset after the last record that was confirmed."""

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def incarnation(self) -> int:
        return self.metadata.incarnation

    @property
    def first(self) -> int:
        """The first offset that is readable."""
        return self.metadata.first_offset


async def select(client: LedgerClient, options: ReadOptions) -> list[str]:
    """The names of the logs that the options speak of, sorted."""
    registry = LogRegistry(client.store, client.environment)
    return options.select([] if options.pattern is None else await registry.list(""))


async def look_at_all(client: LedgerClient, options: ReadOptions) -> list[LogView]:
    """The logs that the options speak of, by name. Errors as for ``look``; LogNotFound for one that they
    name. One that the pattern has found a moment ago, and that is gone, is nobody's loss."""
    views = []
    for name in await select(client, options):
        try:
            views.append(await look(client, name))
        except LogNotFound:
            if options.pattern is None:
                raise
            logger.warning("log %r is gone and left out", name)
    return views


async def look(client: LedgerClient, name: str, *, incarnation: int | None = None) -> LogView:
    """The log as it is now. LogNotFound; DataLoss where it is not that incarnation any more;
    EntryUnavailable, MetadataUnavailable; LedgerNotFound where its list names a ledger that there is not."""
    registry = LogRegistry(client.store, client.environment)
    found = await registry.find(name)
    if incarnation is not None and found != incarnation:
        what = "was deleted" if found is None else "was deleted and made again"
        raise DataLoss(
            f"log {name!r} {what} since it was read first: what was still to be read of it is gone. Start "
            "with a new checkpoint, or set failOnDataLoss=false to go on with what there is"
        )
    seen = -1
    while True:
        metadata, version = (None, -1) if found is None else await registry.read(found)
        if metadata is None:
            raise LogNotFound(name)
        try:
            return await _view(client, metadata)
        except LedgerNotFound:
            # An open ledger that turned out to be empty leaves the list with the next truncation. Where the
            # list still names it, it is lost.
            if version == seen:
                raise
            seen = version


async def _view(client: LedgerClient, metadata: LogMetadata) -> LogView:
    stretches = []
    lost = 0  # Before the next stretch; what holds no records is none.
    for segment in metadata.segments:
        lost += segment.lost_before
        if segment.first_offset is not None and segment.record_count:
            stretches.append(
                Stretch(
                    ledger_id=segment.ledger_id,
                    start=segment.first_offset,
                    end=segment.first_offset + segment.record_count,
                    byte_length=segment.byte_length or 0,
                    last_entry=None,
                    spliced=segment.spliced,
                    lost_before=lost,
                )
            )
            lost = 0
    end, byte_end = metadata.counted_end, metadata.counted_bytes
    for index, segment in enumerate(metadata.open_segments):
        if index and not await continues(client.ledgers, segment, end):
            break
        reader = await client.ledgers.open(segment.ledger_id)
        last = await reader.last_add_confirmed()
        if last == NO_ENTRY:
            continue
        header = await read_header(reader, last, segment)
        if header.end_offset > end:
            stretches.append(
                Stretch(
                    ledger_id=segment.ledger_id,
                    start=end,
                    end=header.end_offset,
                    byte_length=max(0, header.bytes_after - byte_end),
                    last_entry=last,
                    lost_before=lost,
                )
            )
            lost = 0
        end, byte_end = header.end_offset, header.bytes_after
    if lost:
        ledger_id = metadata.segments[-1].ledger_id
        stretches.append(
            Stretch(ledger_id=ledger_id, start=end, end=end, byte_length=0, last_entry=None, lost_before=lost)
        )
    return LogView(metadata=metadata, stretches=tuple(stretches), end=end)


async def view_reaching(
    client: LedgerClient, name: str, end: int, *, incarnation: int | None = None
) -> LogView:
    """A view that reaches to ``end`` at least, which was seen to be confirmed once and is so still. Errors as
    for ``look``; EntryUnavailable where nobody confirms it in time."""
    deadline = trio.current_time() + _CATCH_UP_S
    while True:
        view = await look(client, name, incarnation=incarnation)
        if view.end >= end:
            return view
        if trio.current_time() >= deadline:
            raise EntryUnavailable(
                view.stretches[-1].ledger_id if view.stretches else 0,
                0,
                f"log {name!r} was confirmed up to offset {end} and is now said to end at {view.end}",
            )
        await trio.sleep(_RETRY_S)


async def offset_of(client: LedgerClient, view: LogView, bound: Bound, moment_ms: int | None) -> int:
    """A bound as an offset; what lies before the first readable record stays as it is. Where a moment is
    given it is the offset of the first record from then on. InvalidArgument where the log ends before it."""
    if moment_ms is not None:
        return min(max(await _offset_of_moment(client, view, moment_ms), view.first), view.end)
    if bound == "earliest":
        return view.first
    if bound == "latest":
        return view.end
    if bound > view.end:
        raise InvalidArgument(f"log {view.name!r} ends at offset {view.end}: there is no offset {bound} yet")
    return bound


async def _offset_of_moment(client: LedgerClient, view: LogView, moment_ms: int) -> int:
    place = await find_moment(client.ledgers, ArchiveRegistry(client.store), view.metadata, moment_ms)
    at = place.offset
    # It goes no further than the first open ledger, where a reader would begin and pass over what is older. A
    # table has to know whether the moment lies in the ledgers behind it.
    for stretch in view.stretches:
        if stretch.last_entry is not None and stretch.start == at:
            at = await _offset_in_open(client, view, stretch, moment_ms)
    return at


async def _offset_in_open(client: LedgerClient, view: LogView, stretch: Stretch, moment_ms: int) -> int:
    """The offset of the first entry of an open ledger that is not older; the stretch's end where all are."""
    assert stretch.last_entry is not None
    index = view.metadata.index_of(stretch.ledger_id)
    assert index is not None
    reader = await client.ledgers.open(stretch.ledger_id)
    search = EntrySearch(0, stretch.last_entry, moment_ms)
    headers = {}
    while search.probe is not None:
        header = await read_header(reader, search.probe, view.metadata.segments[index])
        headers[search.probe] = header
        search.on_value(header.timestamp_ms)
    return headers[search.found].first_offset if search.found in headers else stretch.end


async def range_of(client: LedgerClient, view: LogView, options: ReadOptions) -> tuple[int, int]:
    """From where to where a batch reads. DataLoss, InvalidArgument."""
    start = await offset_of(client, view, options.start_of(view.name), options.starting_ms)
    end = await offset_of(client, view, options.end_of(view.name), options.ending_ms)
    if end < view.first and options.start_of(view.name) == "earliest" and options.starting_ms is None:
        start = 0  # All that was asked for is gone; it is not the bounds that are wrong.
    if start > end and options.starting_ms is None and options.ending_ms is None:
        raise InvalidArgument(f"log {view.name!r}: offset {start}, where to begin, is behind {end}, the end")
    return readable(view, start, options.fail_on_data_loss), max(start, end, view.first)


def readable(view: LogView, start: int, fail_on_data_loss: bool) -> int:
    """``start``, or the first record that is still there. DataLoss where that is an error."""
    return still_there(view.name, start, view.first, fail_on_data_loss)


def still_there(name: str, start: int, first: int, fail_on_data_loss: bool) -> int:
    """``readable`` of a log that begins at ``first``."""
    if start >= first:
        return start
    lost = f"log {name!r}: the records from offset {start} to {first - 1} were truncated away"
    if fail_on_data_loss:
        raise DataLoss(f"{lost}. failOnDataLoss=false goes on with what is left")
    logger.warning("%s", lost)
    return first


async def plan_table(client: LedgerClient, options: ReadOptions) -> list[ScanPart]:
    """The parts of a table, as the logs are now. Errors as for ``look_at_all``, ``range_of`` and ``plan``."""
    ranges = [(view, *await range_of(client, view, options)) for view in await look_at_all(client, options)]
    return await plan(client, ranges, options)


async def plan(
    client: LedgerClient, ranges: Iterable[tuple[LogView, int, int]], options: ReadOptions
) -> list[ScanPart]:
    """The parts that read the ranges. DataLoss where a ledger was deleted meanwhile, and where a range
    reaches into a gap."""
    pieces: list[Piece] = []
    for view, start, end in ranges:
        for gap in view.metadata.gaps:
            if max(start, gap.first_offset) < min(end, gap.end_offset):
                lost = RecordsLost(view.name, gap.first_offset, gap.end_offset)
                if options.fail_on_data_loss:
                    raise DataLoss(f"{lost}. failOnDataLoss=false goes on with what is left") from lost
                logger.warning("%s", lost)
        if start < end:
            pieces += cut(view.name, view.incarnation, view.stretches, start, end)
    ledgers = await _ledgers(client, pieces)
    archives = await _archives(client, [piece for piece in pieces if piece.stretch.ledger_id not in ledgers])
    there = ledgers.keys() | archives.keys()
    if options.fail_on_data_loss and len(there) < len({piece.stretch.ledger_id for piece in pieces}):
        raise DataLoss("records were truncated away while they were about to be read; try again")
    await client.bookies.refresh()
    bookies = {
        info.bookie_id: info.encode() for info in (*client.bookies.writable(), *client.bookies.read_only())
    }
    parts = share(
        [piece for piece in pieces if piece.stretch.ledger_id in there],
        max_bytes=options.max_bytes_per_partition,
        max_records=options.max_records_per_partition,
        min_parts=options.min_partitions,
    )
    return [
        ScanPart(
            uri=options.uri,
            cluster=client.store.cluster,
            pieces=part,
            ledgers=_of_pieces(part, ledgers),
            archives=_of_pieces(part, archives),
            bookies=bookies,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        for part in parts
    ]


def _of_pieces(part: Sequence[Piece], found: Mapping[int, bytes]) -> dict[int, bytes]:
    ids = {piece.stretch.ledger_id for piece in part}
    return {ledger_id: found[ledger_id] for ledger_id in sorted(ids) if ledger_id in found}


async def _archives(client: LedgerClient, pieces: Sequence[Piece]) -> dict[int, bytes]:
    """Where the pieces are archived: the files' records by the ledgers that the list names."""
    archives = ArchiveRegistry(client.store)
    found: dict[int, bytes] = {}
    for piece in pieces:
        if piece.stretch.ledger_id not in found:
            record = await archives.holding(piece.incarnation, piece.stretch.ledger_id, piece.start)
            if record is None:
                logger.warning("ledger=%d was deleted before it was read", piece.stretch.ledger_id)
            else:
                found[piece.stretch.ledger_id] = record.encode()
    return found


async def _ledgers(client: LedgerClient, pieces: Sequence[Piece]) -> dict[int, bytes]:
    """The metadata of the ledgers of the pieces, those that are gone left out."""
    found: dict[int, bytes] = {}

    async def read(ledger_id: int) -> None:
        with contextlib.suppress(LedgerNotFound):
            found[ledger_id] = (await client.ledgers.metadata(ledger_id)).encode()

    ledger_ids = sorted({piece.stretch.ledger_id for piece in pieces})
    await gather_each(ledger_ids, read, at_once=_READS_AT_ONCE)
    return found
