"""The work of a task: it reads pieces of logs from bookies, ahead of the thread that makes Arrow batches.

A *piece* is a range of offsets in one ledger of a log. A task gets only a ``ScanPart``: pieces, the metadata
of their ledgers, and the addresses of the bookies. So the task normally talks only to bookies. If none of the
bookies that could have an entry gives it, the task reads the metadata again, once for each such failure:
repair may have moved the entry, or a bookie may have a new address. If nothing has changed, the task fails.

The task fences nothing and yields no record outside its pieces. So the table ends at the end of the log that
the planner saw.

**Within a piece.** A search by offsets finds the first entry (``log.core.search``). Offsets are spread over
entries more or less evenly, so two or three reads suffice. From there every entry must begin at the offset
where the previous entry ended. A gap or an overlap is ``EntryCorrupt``, so the table never lacks a row and
never has an extra row.

**Archives.** If a ledger is archived and no bookie has it, the task reads the archived file. It also
does so if, after the plan was made, bookies gave the ledger up, did not answer for it or damaged it. A
compacted file gives the rows that are left; nothing shows that rows are missing. The rows stay in Arrow's
columns from the file to Spark, and only the columns that the query asks for are read (``ArchivedRows``).

**Gathered ledgers.** If a new ledger has replaced the piece's ledger in the log's list (``log.gather``), and
bookies no longer have the old one, the task reads the rest of the piece from the new one.

**Nothing to read.** Offsets have no gaps, so the plan knows the rows of a query that asks only for columns of
``OffsetRange.COLUMNS``. The task reads no records then, except from a compacted file.

**Ahead.** A trio task reads, and another thread takes the batches. At most ``_AHEAD`` batches of about
``_FETCHED_BYTES`` bytes each wait in between. Entries may be compressed, so one reply of a bookie may fill
many batches.

**The end** of a scan is marked by None, so a broken scan never looks like a finished one. If a scan stops
without this mark, ``ScanBroken`` is raised.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial

import attrs
import trio

from ledgerlog.archive.reader import open_archive
from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.concurrency.nurseries import background
from ledgerlog.errors import (
    ArchiveCorrupt,
    ArchiveUnavailable,
    BookieUnavailable,
    EntryCorrupt,
    EntryNotFound,
    EntryUnavailable,
    LedgerLogError,
    LedgerNotFound,
)
from ledgerlog.ledger.bookies import BookieDirectory, check_understood
from ledgerlog.ledger.environment import Environment
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.ranges import read_entries
from ledgerlog.limits import READ_REPLY_BYTES_TARGET
from ledgerlog.log.core.scan import Piece, Stretch
from ledgerlog.log.positions import NOT_ON_BOOKIES, find_entry_of_offset
from ledgerlog.log.registry import LogRegistry
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.admission import OPEN, Admission
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.net.pool import ConnectionPool, open_pool
from ledgerlog.net.prover import Prover
from ledgerlog.net.transport import Network
from ledgerlog.spark.channel import take_from
from ledgerlog.spark.columns import ArchivedRows, Gathered, OffsetRange, Scanned
from ledgerlog.wire.records import EntryHeader, decode_header, decode_packed

__all__ = ["ScanBroken", "ScanPart", "open_scan"]

logger = logging.getLogger(__name__)

_AHEAD = 4
"""How many batches may wait for the thread that takes them."""

_FETCHED_BYTES = READ_REPLY_BYTES_TARGET
"""The approximate size of a batch of entries."""

_REPLY_BYTES_MIN = 64 * 1024
"""The task asks a bookie for at least this many bytes, even if the piece has fewer left."""

OpenStore = Callable[[], AbstractAsyncContextManager[MetadataStore]]
"""Opens a connection to the metadata store."""


class ScanBroken(LedgerLogError):
    """A scan stopped too early. Leave the ``async with`` of ``open_scan``; it raises the reason."""


@attrs.frozen(kw_only=True)
class ScanPart:
    """The work of one task. All of it can be sent to another process."""

    uri: str
    """The URI of the cluster."""
    cluster: str | None
    """The id of the cluster of the plan. In another cluster the ledgers would seem to be deleted."""
    pieces: tuple[Piece, ...]
    """The pieces of logs, in order."""
    ledgers: Mapping[int, bytes]
    """The encoded metadata of the pieces' ledgers. Metadata contain the ledgers' keys, so keep the part
    secret."""
    archives: Mapping[int, bytes] = attrs.field(factory=dict)
    """The encoded records of archived files, by the ledger of the piece. Only for ledgers that are not in
    ``ledgers``."""
    bookies: Mapping[BookieId, bytes]
    """The registrations of the bookies when the plan was made."""
    fail_on_data_loss: bool
    """Whether it is an error if a ledger was deleted after the plan was made."""
    admission: Admission = OPEN
    """How the cluster was closed when the plan was made."""


@asynccontextmanager
async def open_scan(
    part: ScanPart,
    network: Network,
    open_store: OpenStore,
    *,
    columns: Collection[str],
    prover: Prover | None = None,
) -> AsyncIterator[Callable[[], Awaitable[Scanned | None]]]:
    """Start to read a part, for the body of the ``async with``.

    Args:
        part: The part.
        network: Connects to the bookies.
        open_store: Opens the metadata store, if the task has to read metadata again.
        columns: The columns that the query asks for. Entries of bookies come whole anyway.
        prover: Proves to bookies who the task is. None: the task has no proof. The part says whether the
            cluster is closed.

    Yields:
        An async function. Each call returns the next entries. After the last entries, one call returns None.

    The function raises:

    - EntryUnavailable: no bookie gives an entry. Try again.
    - EntryCorrupt: an entry is damaged or not the next one of its log.
    - LedgerNotFound: records were truncated away after the plan was made, and the part fails on data loss.
    - ArchiveUnavailable: an archived file cannot be read. Try again.
    - ArchiveCorrupt: an archived file is damaged.
    - MetadataUnavailable: the metadata store did not answer.
    - Unauthenticated: the cluster is closed, and this process cannot prove who it is.
    - ScanBroken: a bug ended the scan. Leave the ``async with``; it raises the bug.
    """
    environment = Environment()
    view = _View(part, environment, open_store)
    prover = prover or Prover()
    prover.admit(part.admission)
    prover.check_own()
    async with open_pool(network, view.resolve, rng=environment.random, prover=prover) as pool:
        send, receive = trio.open_memory_channel[Scanned | LedgerLogError | None](_AHEAD)
        scan = _Scan(part, view, pool, send, columns)

        async with background(scan.run, name="log scan"):
            yield partial(take_from, receive, ScanBroken("the scan ended before its end"))


class _View:
    """The task's knowledge about ledgers and bookies, from its part and from later reads."""

    def __init__(self, part: ScanPart, environment: Environment, open_store: OpenStore) -> None:
        self.environment = environment
        self._open_store = open_store
        self._ledgers = {
            ledger_id: LedgerMetadata.decode_untrusted(value, ledger_id)
            for ledger_id, value in part.ledgers.items()
        }
        self._bookies = {
            bookie_id: BookieInfo.decode_untrusted(value, bookie_id)
            for bookie_id, value in part.bookies.items()
        }

    def ledger(self, ledger_id: int) -> LedgerMetadata:
        """Return the metadata of a ledger."""
        return self._ledgers[ledger_id]

    async def find_archive(self, piece: Piece, offset: int) -> ArchivedFile | None:
        """Return the record of the file that now holds an offset of a piece; None if there is none."""
        async with self._open_store() as store:
            await store.sync()
            return await ArchiveRegistry(store).holding(piece.incarnation, piece.stretch.ledger_id, offset)

    async def is_gone(self, piece: Piece) -> bool:
        """Whether all records of a piece were truncated away, or its log was deleted."""
        async with self._open_store() as store:
            metadata, _ = await LogRegistry(store, self.environment).read(piece.incarnation)
            return metadata is None or metadata.first_offset >= piece.end

    async def find_gathered(self, piece: Piece, offset: int) -> Piece | None:
        """Return the rest of a piece, from an offset on, in the ledger that has replaced the piece's ledger
        in the log's list; None if there is none."""
        async with self._open_store() as store:
            metadata, _ = await LogRegistry(store, self.environment).read(piece.incarnation)
            old = piece.stretch.ledger_id
            if metadata is None or not metadata.segments or metadata.index_of(old) is not None:
                return None
            segment = metadata.segments[metadata.index_at(offset)]
            start, end = segment.first_offset, segment.end_offset
            if start is None or end is None or not start <= offset < piece.end <= end:
                return None
            found = await LedgerRegistry(store, self.environment).find(segment.ledger_id)
            if found is None:
                return None
            self._ledgers[segment.ledger_id] = found[0]
        stretch = Stretch(
            ledger_id=segment.ledger_id,
            start=start,
            end=end,
            byte_length=segment.byte_length or 0,
            last_entry=None,
            spliced=segment.spliced,
        )
        return attrs.evolve(piece, stretch=stretch, start=offset)

    async def resolve(self, bookie_id: BookieId) -> BookieInfo:
        """Return the registration of a bookie.

        Raises:
            BookieUnavailable: The bookie was not registered.
            IncompatibleVersion: The bookie has no version of the protocol in common with this process.
        """
        info = self._bookies.get(bookie_id)
        if info is None:
            raise BookieUnavailable(f"bookie {bookie_id} was not registered when the read was planned")
        check_understood(info)
        return info

    async def refresh(self, ledger_id: int) -> bool:
        """Read the metadata of a ledger and the bookies' registrations again.

        Returns:
            Whether anything has changed. If so, a bookie may now give an entry that no bookie gave before.

        Raises:
            LedgerNotFound: The ledger was deleted.
            MetadataUnavailable: The metadata store did not answer.
        """
        async with self._open_store() as store:
            await store.sync()
            ledger, _ = await LedgerRegistry(store, self.environment).read(ledger_id)
            directory = BookieDirectory(store, self.environment)
            await directory.refresh()
        registered = {info.bookie_id: info for info in directory.registered()}
        before = (self._ledgers[ledger_id].fragments, dict(self._bookies))
        self._ledgers[ledger_id] = ledger
        self._bookies |= registered
        return before != (ledger.fragments, self._bookies)


class _Scan:
    """The task that reads the pieces and sends their entries."""

    def __init__(
        self,
        part: ScanPart,
        view: _View,
        pool: ConnectionPool,
        send: trio.MemorySendChannel[Scanned | LedgerLogError | None],
        columns: Collection[str],
    ) -> None:
        self._part = part
        self._view = view
        self._pool = pool
        self._send = send
        self._columns = columns
        self._failed: dict[BookieId, None] = {}
        self._at = 0
        """The next offset of the piece to send. All earlier records were sent."""

    async def run(self) -> None:
        """Read all pieces and send their entries, then None. If this fails, send the error."""
        with self._send:
            try:
                for piece in self._part.pieces:
                    await self._read_piece(piece)
                await self._send.send(None)
            except LedgerLogError as failure:
                await self._send.send(failure)

    async def _read_piece(self, piece: Piece) -> None:
        self._at = piece.start
        try:
            planned = self._part.archives.get(piece.stretch.ledger_id)
            # A merged file may begin with other ledgers than the piece's ledger.
            record = planned and ArchivedFile.decode_untrusted(planned, piece.incarnation)
            if OffsetRange.COLUMNS.issuperset(self._columns) and not (record and record.compacted):
                await self._send.send(OffsetRange(piece.log, piece.start, piece.end))
            elif record:
                await self._read_archive(piece, record)
            else:
                await self._read_ledger(piece)
        except LedgerNotFound:
            if self._part.fail_on_data_loss:
                raise
            logger.warning(
                "ledger=%d log=%s was deleted; the records that were not yet read, of offsets %d to %d, are "
                "left out",
                piece.stretch.ledger_id,
                piece.log,
                piece.start,
                piece.end - 1,
            )

    async def _read_ledger(self, piece: Piece) -> None:
        try:
            await self._read_records(piece)
        except NOT_ON_BOOKIES:
            record = await self._view.find_archive(piece, self._at)
            moved = await self._view.find_gathered(piece, self._at) if record is None else None
            if record is None and moved is None:
                raise
        else:
            return
        if record is not None:
            await self._read_archive(piece, record)
        elif moved is not None:
            await self._read_ledger(moved)

    async def _read_archive(self, piece: Piece, record: ArchivedFile) -> None:
        while self._at < piece.end:
            try:
                await self._read_file(piece, record)
            except ArchiveUnavailable as failure:
                # A merge may have replaced the file since the plan was made.
                moved = await self._view.find_archive(piece, self._at)
                if moved is None or moved.file == record.file:
                    if await self._view.is_gone(piece):
                        raise LedgerNotFound(piece.stretch.ledger_id) from failure
                    raise
                record = moved

    async def _read_file(self, piece: Piece, record: ArchivedFile) -> None:
        """Send the records of the piece that are in the file, from ``_at`` on."""
        async with (
            open_archive(record) as archive,
            aclosing(archive.tables(self._at, self._columns)) as groups,
        ):
            async for table in groups:
                rows = ArchivedRows(piece.log, table)
                for some in rows.between(self._at, piece.end).slices():
                    await self._send.send(some)
                self._at = max(self._at, rows.last + 1)
                if self._at >= piece.end:
                    return
        self._at = record.end_offset
        if self._at < piece.end:
            raise ArchiveCorrupt(
                record.file,
                f"it ends at offset {self._at}, but log {piece.log!r} has offset {piece.end - 1} in it",
            )

    async def _read_records(self, piece: Piece) -> None:
        ledger_id = piece.stretch.ledger_id
        last = piece.stretch.last_entry
        if last is None:
            last = self._view.ledger(ledger_id).last_entry
            if last is None:
                raise EntryCorrupt(
                    ledger_id, 0, f"log {piece.log!r} counts it as closed, but it is not closed"
                )
        entry_id = await self._find(piece, last)
        offset: int | None = None
        while offset is None or offset < piece.end:
            if entry_id > last:
                raise EntryCorrupt(
                    ledger_id, last, f"log {piece.log!r} has offset {piece.end - 1} in it, after its end"
                )
            left = piece.stretch.bytes_between(max(piece.start, offset or 0), piece.end)
            payloads = await self._read(
                ledger_id, entry_id, last, min(READ_REPLY_BYTES_TARGET, max(_REPLY_BYTES_MIN, 2 * left))
            )
            fetched: Gathered = []
            size = 0
            for payload in payloads:
                header, batch = decode_packed(
                    payload, ledger_id=ledger_id, entry_id=entry_id, spliced=piece.stretch.spliced
                )
                _check_place(piece, entry_id, header, offset)
                offset = header.end_offset
                entry_id += 1
                if not header.is_checkpoint:
                    batch = batch.between(piece.start, piece.end)
                    if len(batch):
                        fetched.append((piece.log, batch))
                        size += batch.byte_length
                if size >= _FETCHED_BYTES:
                    await self._send.send(fetched)
                    fetched, size = [], 0
                    self._at = max(self._at, offset)  # After a failure, continue here in the archive.
                if offset >= piece.end:
                    break
            if fetched:
                await self._send.send(fetched)
            self._at = max(self._at, offset or 0)

    async def _find(self, piece: Piece, last: int) -> int:
        """Return the entry that holds the first record of the piece."""
        stretch = piece.stretch
        if piece.start == stretch.start:
            return 0

        async def read(entry_id: int) -> EntryHeader:
            (payload,) = await self._read(stretch.ledger_id, entry_id, entry_id, 1)
            return decode_header(
                payload, ledger_id=stretch.ledger_id, entry_id=entry_id, spliced=stretch.spliced
            )

        entry_id, _ = await find_entry_of_offset(
            read, last, piece.start, first=stretch.start, end=max(piece.start + 1, stretch.end)
        )
        return entry_id

    # --- entries ------------------------------------------------------------------------------

    async def _read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        """Read entries from ``first`` on, at least one, in one exchange with a bookie."""
        try:
            return await self._read_once(ledger_id, first, last, bytes_max)
        except (EntryUnavailable, EntryNotFound, EntryCorrupt):
            self._failed.clear()
            if not await self._view.refresh(ledger_id):
                raise
        return await self._read_once(ledger_id, first, last, bytes_max)

    async def _read_once(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        metadata = self._view.ledger(ledger_id)
        return await read_entries(
            metadata,
            first,
            last,
            bytes_max=bytes_max,
            connection=self._pool.connection,
            failed=self._failed,
            prefer=self._view.environment.random.randrange(metadata.replication.ensemble),
        )


def _check_place(piece: Piece, entry_id: int, header: EntryHeader, offset: int | None) -> None:
    """Raise EntryCorrupt unless the entry is the next one of the log."""
    if offset is None:
        is_right = header.first_offset <= piece.start
    else:
        is_right = header.first_offset == offset
    if not is_right:
        raise EntryCorrupt(
            piece.stretch.ledger_id,
            entry_id,
            f"its first offset is {header.first_offset}, but log {piece.log!r} continues at "
            f"{piece.start if offset is None else offset}",
        )
