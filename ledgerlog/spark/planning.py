"""Planning a read: find the present end of each log, the log's ledgers, and their bookies.

Only the planner reads metadata. It sends each task the metadata that the task needs, and the addresses of the
bookies. So a job of a thousand tasks opens one session with the metadata store, not a thousand. (A task reads
metadata only if bookies do not give an entry or an archived file cannot be read; see ``spark.scanning``.)

**The end** of a log is the end of its confirmed records. For an open ledger, the planner asks the ledger's
bookies which entry is the last confirmed one. This request does not fence the ledger or disturb the writer.
If two ledgers are open, the second ledger counts only if it continues the first (``log.positions``).

**Data loss** means that a reader asked for records that it can never get: they were truncated away, they were
lost with bookies in the middle of a log (``Log.recover``), or the log was deleted (and perhaps made again).
This is an error, unless ``failOnDataLoss`` is false. Then the read returns the remaining records, and the
process logs the loss."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

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
from ledgerlog.log.positions import find_entry_of_moment, find_moment, find_tails, read_header
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.segments import LogSegment
from ledgerlog.spark.columns import COLUMNS, OffsetRange
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
"""How many requests the planner sends to the metadata store at once."""

_CATCH_UP_S = 30.0
"""How long to wait for a confirmed end that was seen before, in seconds.

The bookies that reported this end may be gone. The others learn it with the next entry or by a recovery."""

_RETRY_S = 0.2


class DataLoss(LedgerLogError):
    """Records that a read needs are gone for good. With ``failOnDataLoss=false`` you read the records that
    are left."""


@attrs.frozen(kw_only=True)
class LogView:
    """A log at one moment."""

    metadata: LogMetadata
    """The record of the log."""
    stretches: tuple[Stretch, ...]
    """The log's ledgers with records, in order, up to ``end``. If the last offsets before ``end`` were lost,
    a last stretch without records stands for this gap."""
    end: int
    """The offset after the last record that is known to be confirmed."""
    doubt: EntryUnavailable | None = attrs.field(default=None, eq=False)
    """Why there may be more confirmed records: too few bookies answered. None: there are no more."""

    @property
    def name(self) -> str:
        """The name of the log."""
        return self.metadata.name

    @property
    def incarnation(self) -> int:
        """The incarnation of the log."""
        return self.metadata.incarnation

    @property
    def first(self) -> int:
        """The first offset that can be read."""
        return self.metadata.first_offset

    def check_whole(self) -> None:
        """Raise ``doubt``, if there is one."""
        if self.doubt is not None:
            raise self.doubt


async def select(client: LedgerClient, options: ReadOptions) -> list[str]:
    """Return the names of the logs that the options select, sorted."""
    registry = LogRegistry(client.store, client.environment)
    return options.select([] if options.pattern is None else await registry.list(""))


async def look_at_all(client: LedgerClient, options: ReadOptions) -> list[LogView]:
    """Look at all logs that the options select.

    If a log that only the pattern selects is gone by now, leave the log out. That is not data loss.

    Returns:
        The views, in the order of the names.

    Raises:
        LogNotFound: A log that the options name does not exist.
        EntryUnavailable: No bookie gives the last entry that is known to be confirmed.
        MetadataUnavailable: The metadata store did not answer.
        LedgerNotFound: The list of a log names a ledger that does not exist.
    """
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
    """Look at a log as it is now. If too few bookies answer to know where it ends, the view has a ``doubt``.

    Args:
        client: The cluster.
        name: The name of the log.
        incarnation: The incarnation that the log must have; None: any.

    Raises:
        LogNotFound: There is no log of this name.
        DataLoss: The log was deleted, or the log of this name has another incarnation.
        EntryUnavailable: No bookie gives the last entry that is known to be confirmed.
        MetadataUnavailable: The metadata store did not answer.
        LedgerNotFound: The list of the log names a ledger that does not exist.
    """
    registry = LogRegistry(client.store, client.environment)
    found = await registry.find(name)
    if incarnation is not None and found != incarnation:
        what = "was deleted" if found is None else "was deleted and made again"
        raise DataLoss(
            f"log {name!r} {what} since the stream first read it, and its unread records are gone. Start "
            f"with a new checkpoint, or set failOnDataLoss=false to continue with the records that are left"
        )
    if found is None:
        raise LogNotFound(name)
    return await registry.look(name, found, partial(_view, client))


async def _view(client: LedgerClient, metadata: LogMetadata, _: int) -> LogView:
    stretches = []
    lost = 0  # How many records were lost before the next stretch. Empty ledgers make no stretch.
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
    tails, doubt = await find_tails(client.ledgers, metadata)
    for tail in tails:
        assert tail.segment is not None
        if tail.offset > end:
            stretches.append(
                Stretch(
                    ledger_id=tail.segment.ledger_id,
                    start=end,
                    end=tail.offset,
                    byte_length=max(0, tail.bytes_before - byte_end),
                    last_entry=tail.last_entry,
                    lost_before=lost,
                )
            )
            lost = 0
        end, byte_end = tail.offset, tail.bytes_before
    if lost:
        ledger_id = metadata.segments[-1].ledger_id
        stretches.append(
            Stretch(ledger_id=ledger_id, start=end, end=end, byte_length=0, last_entry=None, lost_before=lost)
        )
    return LogView(metadata=metadata, stretches=tuple(stretches), end=end, doubt=doubt)


async def view_reaching(
    client: LedgerClient, name: str, end: int, *, incarnation: int | None = None
) -> LogView:
    """Return a view that reaches at least to ``end``.

    Args:
        client: The cluster.
        name: The name of the log.
        end: An offset that was confirmed earlier. A confirmed offset stays confirmed.
        incarnation: The incarnation that the log must have; None: any.

    Raises:
        EntryUnavailable: No bookie confirms ``end`` within 30 seconds. See ``look`` for other errors.
    """
    deadline = trio.current_time() + _CATCH_UP_S
    while True:
        view = await look(client, name, incarnation=incarnation)
        if view.end >= end:
            return view
        if trio.current_time() >= deadline:
            raise EntryUnavailable(
                view.stretches[-1].ledger_id if view.stretches else 0,
                0,
                f"log {name!r} was confirmed up to offset {end} but now ends at {view.end}",
            )
        await trio.sleep(_RETRY_S)


async def offset_of(client: LedgerClient, view: LogView, bound: Bound, moment_ms: int | None) -> int:
    """Return a bound as an offset. The result may be lower than the first readable offset.

    Args:
        client: The cluster.
        view: The log.
        bound: The bound.
        moment_ms: A time in milliseconds since the epoch. If set, return the offset of the first record from
            this time on, and ignore ``bound``.

    Raises:
        InvalidArgument: The log ends before ``bound``.
        EntryUnavailable: Too few bookies answered to know where the log ends, and the offset depends on it.
    """
    if moment_ms is not None:
        offset = max(await _offset_of_moment(client, view, moment_ms), view.first)
        if offset >= view.end:
            view.check_whole()
        return min(offset, view.end)
    if bound == "earliest":
        return view.first
    if bound == "latest":
        view.check_whole()
        return view.end
    if bound > view.end:
        view.check_whole()
        raise InvalidArgument(f"log {view.name!r} ends at offset {view.end}: there is no offset {bound} yet")
    return bound


async def _offset_of_moment(client: LedgerClient, view: LogView, moment_ms: int) -> int:
    async def find(metadata: LogMetadata, version: int) -> int:
        place = await find_moment(client.ledgers, ArchiveRegistry(client.store), metadata, moment_ms)
        at = place.offset
        # ``find_moment`` stops at the first open ledger, or where the bookies that answer know no more: a
        # reader of the log can begin there and skip older records. A table needs the exact offset, so search
        # the open ledgers too, up to the end that the view has found.
        for stretch in view.stretches:
            index = metadata.index_of(stretch.ledger_id)
            is_here = stretch.start <= at < stretch.end
            if index is not None and stretch.last_entry is not None and is_here:
                at = await _offset_in_open(client, metadata.segments[index], stretch, moment_ms)
        return at

    # The log may have been truncated since the view was made.
    registry = LogRegistry(client.store, client.environment)
    return await registry.look(view.name, view.incarnation, find)


async def _offset_in_open(client: LedgerClient, segment: LogSegment, stretch: Stretch, moment_ms: int) -> int:
    """Return the first offset of the first entry of an open ledger that is not older than a time.

    If all entries are older, return the end of the ledger.
    """
    assert stretch.last_entry is not None
    reader = await client.ledgers.open(stretch.ledger_id)
    read = partial(read_header, reader, segment=segment)
    _, offset = await find_entry_of_moment(read, stretch.last_entry, moment_ms)
    return offset


async def range_of(client: LedgerClient, view: LogView, options: ReadOptions) -> tuple[int, int]:
    """Return the first offset of a batch, and the offset after its last one.

    Raises:
        DataLoss: Records that the options ask for were truncated away, and ``failOnDataLoss`` is true.
        InvalidArgument: The batch would begin after its end, or the log ends before an offset in the options.
        EntryUnavailable: Too few bookies answered to know where the log ends, and the range depends on it.
    """
    start = await offset_of(client, view, options.start_of(view.name), options.starting_ms)
    end = await offset_of(client, view, options.end_of(view.name), options.ending_ms)
    if end < view.first and options.start_of(view.name) == "earliest" and options.starting_ms is None:
        start = 0  # All requested records are gone. Report data loss, not wrong bounds.
    if start > end and options.starting_ms is None and options.ending_ms is None:
        raise InvalidArgument(f"log {view.name!r}: the start offset {start} is after the end offset {end}")
    return readable(view, start, options.fail_on_data_loss), max(start, end, view.first)


def readable(view: LogView, start: int, fail_on_data_loss: bool) -> int:
    """Return ``start``, or the first later offset that is still there.

    Raises:
        DataLoss: Records from ``start`` on were truncated away, and ``fail_on_data_loss`` is set.
    """
    return still_there(view.name, start, view.first, fail_on_data_loss)


def still_there(name: str, start: int, first: int, fail_on_data_loss: bool) -> int:
    """Like ``readable``, for a log that begins at offset ``first``."""
    if start >= first:
        return start
    lost = f"log {name!r}: the records from offset {start} to {first - 1} were truncated away"
    if fail_on_data_loss:
        raise DataLoss(f"{lost}. failOnDataLoss=false continues with the records that are left")
    logger.warning("%s", lost)
    return first


async def plan_table(
    client: LedgerClient, options: ReadOptions, columns: Collection[str] = COLUMNS
) -> list[ScanPart]:
    """Plan a table of the logs as they are now.

    Args:
        client: The cluster.
        options: The options of the read.
        columns: The columns that the query asks for.

    See ``look_at_all``, ``range_of`` and ``plan`` for the errors.
    """
    ranges = [(view, *await range_of(client, view, options)) for view in await look_at_all(client, options)]
    return await plan(client, ranges, options, columns)


async def plan(
    client: LedgerClient,
    ranges: Iterable[tuple[LogView, int, int]],
    options: ReadOptions,
    columns: Collection[str] = COLUMNS,
) -> list[ScanPart]:
    """Plan the parts that read some ranges of logs.

    Args:
        client: The cluster.
        ranges: For each range: the log, the first offset, and the offset after the last one.
        options: How to cut the ranges.
        columns: The columns that the query asks for. If tasks need no records for them, they get more rows.

    Raises:
        DataLoss: A ledger was deleted in the meantime, or a range reaches into a gap, and ``failOnDataLoss``
            is true.
        MetadataUnavailable: The metadata store did not answer.
    """

    def stretches_of(view: LogView) -> Sequence[Stretch]:
        if OffsetRange.COLUMNS.issuperset(columns):
            return [attrs.evolve(stretch, byte_length=0) for stretch in view.stretches]
        return view.stretches

    pieces: list[Piece] = []
    for view, start, end in ranges:
        for gap in view.metadata.gaps:
            if max(start, gap.first_offset) < min(end, gap.end_offset):
                lost = RecordsLost(view.name, gap.first_offset, gap.end_offset)
                if options.fail_on_data_loss:
                    raise DataLoss(
                        f"{lost}. failOnDataLoss=false continues with the records that are left"
                    ) from lost
                logger.warning("%s", lost)
        if start < end:
            pieces += cut(view.name, view.incarnation, stretches_of(view), start, end)
    ledgers = await _ledgers(client, pieces)
    archives = await _archives(client, [piece for piece in pieces if piece.stretch.ledger_id not in ledgers])
    there = ledgers.keys() | archives.keys()
    if options.fail_on_data_loss and len(there) < len({piece.stretch.ledger_id for piece in pieces}):
        raise DataLoss("records were truncated away while they were about to be read; try again")
    await client.bookies.refresh()
    bookies = {info.bookie_id: info.encode() for info in client.bookies.registered()}
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
            admission=client.prover.admission,
        )
        for part in parts
    ]


def _of_pieces(part: Sequence[Piece], found: Mapping[int, bytes]) -> dict[int, bytes]:
    ids = {piece.stretch.ledger_id for piece in part}
    return {ledger_id: found[ledger_id] for ledger_id in sorted(ids) if ledger_id in found}


async def _archives(client: LedgerClient, pieces: Sequence[Piece]) -> dict[int, bytes]:
    """Return the encoded records of the files that hold the pieces, by the ledger of the piece."""
    archives = ArchiveRegistry(client.store)
    found: dict[int, bytes] = {}
    for piece in pieces:
        if piece.stretch.ledger_id not in found:
            record = await archives.holding(piece.incarnation, piece.stretch.ledger_id, piece.start)
            if record is None:
                logger.warning("ledger=%d was deleted before it was read", piece.stretch.ledger_id)
            else:
                found[piece.stretch.ledger_id] = record.with_url().encode()
    return found


async def _ledgers(client: LedgerClient, pieces: Sequence[Piece]) -> dict[int, bytes]:
    """Return the encoded metadata of the pieces' ledgers. Leave out ledgers that are gone."""
    found: dict[int, bytes] = {}

    async def read(ledger_id: int) -> None:
        with contextlib.suppress(LedgerNotFound):
            found[ledger_id] = (await client.ledgers.metadata(ledger_id)).encode()

    ledger_ids = sorted({piece.stretch.ledger_id for piece in pieces})
    await gather_each(ledger_ids, read, at_once=_READS_AT_ONCE)
    return found
