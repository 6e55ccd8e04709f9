"""What a task does: read its pieces of logs from the bookies, ahead of the one who makes tables of them.

A ``ScanPart`` is all that a task is told: pieces of logs, the metadata of their ledgers, and where bookies
serve. With that it asks bookies and nobody else. Only where all bookies that could have an entry fail to
give it are the metadata read again, once for each such failure: repair may have moved the entries, and a
bookie may serve somewhere else by now. If nothing of that has changed the failure stands.

Nothing is fenced and nothing beyond the piece is given out, so the end that the planner saw is the end.

**Within a piece.** The first entry is found by its offsets (``core.log_search``): entries lie at even
distances more or less, so two or three looks do. From there every entry must begin where the one before it
ended: a gap or an overlap is ``EntryCorrupt``, never a row too few or too many.

**Ahead.** One task reads and another thread takes; ``_AHEAD`` replies of bookies lie between them at most.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import attrs
import trio

from ledgerlog.client.bookies import BookieDirectory
from ledgerlog.client.environment import Environment
from ledgerlog.client.metadata import LedgerRegistry
from ledgerlog.client.ranges import read_range
from ledgerlog.core.log_search import EntrySearch
from ledgerlog.core.reader import RangeAsk, RangeRead
from ledgerlog.core.scan import Piece
from ledgerlog.errors import (
    BookieUnavailable,
    EntryCorrupt,
    EntryNotFound,
    EntryUnavailable,
    LedgerLogError,
    LedgerNotFound,
)
from ledgerlog.limits import READ_REPLY_BYTES_TARGET
from ledgerlog.log.beside import beside
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.record import RecordBatch
from ledgerlog.net.pool import ConnectionPool, open_pool
from ledgerlog.net.transport import Network
from ledgerlog.wire.records import EntryHeader, decode_entry, decode_header

__all__ = ["Fetched", "ScanPart", "open_scan"]

logger = logging.getLogger(__name__)

_AHEAD = 4

_REPLY_BYTES_MIN = 64 * 1024

Fetched = list[tuple[str, RecordBatch]]
"""Entries in their order, each with the name of its log."""

OpenStore = Callable[[], AbstractAsyncContextManager[MetadataStore]]


@attrs.frozen(kw_only=True)
class ScanPart:
    """What one task reads. Everything in it can be sent to another process."""

    uri: str
    pieces: tuple[Piece, ...]
    ledgers: Mapping[int, bytes]
    """Metadata of the ledgers of the pieces. They hold the ledgers' keys, so a part is as secret as they."""
    bookies: Mapping[BookieId, bytes]
    """The registrations of the bookies that there were."""
    fail_on_data_loss: bool


@asynccontextmanager
async def open_scan(
    part: ScanPart, network: Network, open_store: OpenStore
) -> AsyncIterator[Callable[[], Awaitable[Fetched | None]]]:
    """For the body of the ``async with``, an async function that gives what was read next, None at the end.

    It raises EntryUnavailable (retryable), EntryCorrupt, MetadataUnavailable; LedgerNotFound where records
    were truncated away meanwhile, unless the part says to go on without them."""
    environment = Environment()
    view = _View(part, environment, open_store)
    async with open_pool(network, view.resolve, rng=environment.random) as pool:
        send, receive = trio.open_memory_channel[Fetched | LedgerLogError](_AHEAD)
        scan = _Scan(part, view, pool, send)

        async def take() -> Fetched | None:
            try:
                got = await receive.receive()
            except trio.EndOfChannel:
                return None
            if isinstance(got, LedgerLogError):
                raise got
            return got

        async with beside(scan.run, name="log scan"):
            yield take


class _View:
    """What the task knows of ledgers and bookies: what it was told, and what it has read since."""

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
        return self._ledgers[ledger_id]

    async def resolve(self, bookie_id: BookieId) -> BookieInfo:
        info = self._bookies.get(bookie_id)
        if info is None:
            raise BookieUnavailable(f"bookie {bookie_id} was not registered when the read was planned")
        return info

    async def refresh(self, ledger_id: int) -> bool:
        """Read the metadata again; whether a bookie may give now what none gave before. LedgerNotFound."""
        async with self._open_store() as store:
            await store.sync()
            ledger, _ = await LedgerRegistry(store, self.environment).read(ledger_id)
            directory = BookieDirectory(store, self.environment)
            await directory.refresh()
        registered = {info.bookie_id: info for info in (*directory.writable(), *directory.read_only())}
        before = (self._ledgers[ledger_id].fragments, dict(self._bookies))
        self._ledgers[ledger_id] = ledger
        self._bookies |= registered
        return before != (ledger.fragments, self._bookies)


class _Scan:
    def __init__(
        self,
        part: ScanPart,
        view: _View,
        pool: ConnectionPool,
        send: trio.MemorySendChannel[Fetched | LedgerLogError],
    ) -> None:
        self._part = part
        self._view = view
        self._pool = pool
        self._send = send
        self._failed: dict[BookieId, None] = {}

    async def run(self) -> None:
        with self._send:
            try:
                for piece in self._part.pieces:
                    await self._read_piece(piece)
            except LedgerLogError as failure:
                await self._send.send(failure)

    async def _read_piece(self, piece: Piece) -> None:
        try:
            await self._read_records(piece)
        except LedgerNotFound:
            if self._part.fail_on_data_loss:
                raise
            logger.warning(
                "ledger=%d log=%s was deleted; of offsets %d to %d the rest is left out",
                piece.stretch.ledger_id,
                piece.log,
                piece.start,
                piece.end - 1,
            )

    async def _read_records(self, piece: Piece) -> None:
        ledger_id = piece.stretch.ledger_id
        last = piece.stretch.last_entry
        if last is None:
            last = self._view.ledger(ledger_id).last_entry
            if last is None:
                raise EntryCorrupt(ledger_id, 0, f"log {piece.log!r} counts it as closed, and it is not")
        entry_id = await self._find(piece, last)
        offset: int | None = None
        while offset is None or offset < piece.end:
            if entry_id > last:
                raise EntryCorrupt(
                    ledger_id, last, f"log {piece.log!r} has offset {piece.end - 1} in it, behind its end"
                )
            left = piece.stretch.bytes_between(max(piece.start, offset or 0), piece.end)
            payloads = await self._read(
                ledger_id, entry_id, last, min(READ_REPLY_BYTES_TARGET, max(_REPLY_BYTES_MIN, 2 * left))
            )
            fetched: Fetched = []
            for payload in payloads:
                header, batch = decode_entry(
                    payload, ledger_id=ledger_id, entry_id=entry_id, spliced=piece.stretch.spliced
                )
                _check_place(piece, entry_id, header, offset)
                offset = header.end_offset
                entry_id += 1
                if not header.is_checkpoint:
                    batch = batch.between(piece.start, piece.end)
                    if len(batch):
                        fetched.append((piece.log, batch))
                if offset >= piece.end:
                    break
            if fetched:
                await self._send.send(fetched)

    async def _find(self, piece: Piece, last: int) -> int:
        """The entry that holds the first record of the piece."""
        stretch = piece.stretch
        if piece.start == stretch.start:
            return 0
        search = EntrySearch(
            0, last, piece.start, value_below=stretch.start, value_at_high=max(piece.start, stretch.end - 1)
        )
        while search.probe is not None:
            entry_id = search.probe
            (payload,) = await self._read(stretch.ledger_id, entry_id, entry_id, 1)
            header = decode_header(
                payload, ledger_id=stretch.ledger_id, entry_id=entry_id, spliced=stretch.spliced
            )
            search.on_value(header.end_offset - 1)
        return search.found

    # --- entries ------------------------------------------------------------------------------

    async def _read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        """As many entries from ``first`` on as one exchange brings, at least one."""
        try:
            return await self._read_once(ledger_id, first, last, bytes_max)
        except (EntryUnavailable, EntryNotFound, EntryCorrupt):
            self._failed.clear()
            if not await self._view.refresh(ledger_id):
                raise
        return await self._read_once(ledger_id, first, last, bytes_max)

    async def _read_once(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        metadata = self._view.ledger(ledger_id)
        prefer = self._view.environment.random.randrange(metadata.replication.ensemble)
        read = RangeRead(metadata, first, last, avoid=list(self._failed), prefer=prefer)
        while not read.is_done:
            asks = read.take_asks()
            share = max(1, bytes_max // max(1, len(asks)))
            async with trio.open_nursery() as nursery:
                for ask in asks:
                    nursery.start_soon(self._ask, read, ask, share)
            payloads = read.payloads()
            if payloads:
                return payloads
        assert read.failure is not None
        raise read.failure

    async def _ask(self, read: RangeRead, ask: RangeAsk, bytes_max: int) -> None:
        answer = await read_range(
            self._pool.connection(ask.bookie),
            read.ledger_id,
            first=ask.first,
            last=ask.last,
            stride=ask.stride,
            bytes_max=bytes_max,
        )
        if answer is None:
            self._failed[ask.bookie] = None
            read.on_failed(ask)
        else:
            self._failed.pop(ask.bookie, None)
            read.on_reply(ask, answer.found, answer.through, answer.negative, answer.damaged)


def _check_place(piece: Piece, entry_id: int, header: EntryHeader, offset: int | None) -> None:
    """EntryCorrupt unless the entry is the next one of the log."""
    if offset is None:
        is_right = header.first_offset <= piece.start
    else:
        is_right = header.first_offset == offset
    if not is_right:
        raise EntryCorrupt(
            piece.stretch.ledger_id,
            entry_id,
            f"its first offset is {header.first_offset} where log {piece.log!r} goes on at "
            f"{piece.start if offset is None else offset}",
        )
