"""A ledger's reader as a caller holds it: the shell around ``ledger.core.reader``.

An open ledger is read up to the LAC, which bookies tell (the writer sends it with every add, and by
itself when it falls idle); a closed one up to its last entry.

**The end of an open ledger.** ``last_add_confirmed`` promises what was acknowledged before it was called. It
reads the metadata again, because the ledger may have been closed and bookies may have been replaced, and
asks the last ensemble. Answers that cover the ensemble (A.0) include one of a bookie that holds the last
acknowledged entry, but perhaps none that knows that it is acknowledged: the writer tells the LAC with
its next frame, or a moment later if there is none. So each answer also says which entry is the last
that the bookie holds, and the LAC is waited for, shortly, to get there. An entry that nobody will ever
acknowledge, because its writer died, costs a reader that wait once.

**Moves.** Repair and recovery move entries to other bookies. When a read fails the metadata is read again,
and if it names other bookies the read is tried once more.

The reader keeps the highest LAC that it was told: what it may read never shrinks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial

import trio

from ledgerlog.concurrency.gathering import gather, race
from ledgerlog.errors import (
    BookieUnavailable,
    EntryCorrupt,
    EntryNotFound,
    EntryUnavailable,
    InvalidArgument,
)
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.ranges import read_entries
from ledgerlog.limits import LONG_POLL_S, READ_REPLY_BYTES_TARGET, REQUEST_TIMEOUT_S
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.layout import ledger_path
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.net.pool import ConnectionPool
from ledgerlog.wire.frame import Kind, Status

LAC_CATCH_UP_S = 0.1
"""How long a reader waits for the LAC to reach entries that an ack quorum already holds."""

STRAGGLER_S = 0.02
"""How long the remaining bookies are waited for once enough have told their LAC."""

METADATA_LOOK_S = 0.1
"""A reader that waits looks at the metadata so long after it last did, and then whenever it changes: one that
follows a busy writer is woken far more often, and asks the store for nothing meanwhile."""

POLLS_ABANDONED_MAX = 32
"""A bookie that has so many requests of ours under way which nobody waits for any more is not polled again
yet, where others tell as much."""

_RETRY_S = 0.1


class LedgerReader:
    """Reads one ledger; never fences it. Any number of tasks may use it at once."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        registry: LedgerRegistry,
        pool: ConnectionPool,
        store: MetadataStore,
        prefer: int = 0,
    ) -> None:
        self.ledger_id = metadata.ledger_id
        self.metadata = metadata
        """The newest metadata seen."""
        self._registry = registry
        self._pool = pool
        self._store = store
        self._prefer = prefer
        self._lac = metadata.fragments[-1].first_entry - 1  # All below the last fragment is committed.
        self._looked_at = trio.current_time()  # when the metadata was read, at the latest
        self._unconfirmed = NO_ENTRY  # held by a bookie, and waited for in vain
        self._failed: dict[BookieId, None] = {}

    @property
    def is_closed(self) -> bool:
        """Whether the metadata last seen says that the ledger is closed."""
        return self.metadata.is_closed

    async def refresh(self) -> LedgerMetadata:
        """Read the metadata again. LedgerNotFound, MetadataUnavailable."""
        begun = trio.current_time()
        self.metadata, _ = await self._registry.read(self.ledger_id)
        self._looked_at = begun
        return self.metadata

    # --- the end ------------------------------------------------------------------------------

    async def last_add_confirmed(self) -> int:
        """The last entry that may be read now (-1: none). Whatever was acknowledged to the writer before this
        call is included as long as bookies that cover the last ensemble answer, and the writer is there
        to tell its LAC; where the latter is gone the last entries may show only after recovery.

        Raises EntryUnavailable if no bookie answers, LedgerNotFound, MetadataUnavailable."""
        if self.is_closed:
            await trio.lowlevel.checkpoint()
        else:
            held = await self._ask_end()
            if not held and not self.metadata.is_closed:
                raise EntryUnavailable(
                    self.ledger_id,
                    self._lac + 1,
                    "no bookie of its last ensemble tells how far it is confirmed",
                )
            top = max(held.values(), default=NO_ENTRY)
            if top > max(self._lac, self._unconfirmed) and not self.metadata.is_closed:
                with trio.move_on_after(LAC_CATCH_UP_S):
                    await self._poll_any(top - 1)
                if self._lac < top:
                    self._unconfirmed = top
        return self._readable()

    async def _ask_end(self) -> dict[int, int]:
        """Ask the metadata and the last ensemble that it names: LAC and metadata are the newest then. What
        the bookies that answered hold, by slot."""
        while True:
            asked = self.metadata.last_fragment.ensemble
            held: dict[int, int] = {}
            await gather(self.refresh, partial(self._ask_lac, asked, held))
            if self.metadata.is_closed or self.metadata.last_fragment.ensemble == asked:
                return held

    def _readable(self) -> int:
        return self._end() if self.is_closed else self._lac

    def _end(self) -> int:
        assert self.metadata.last_entry is not None
        return self.metadata.last_entry

    async def _ask_lac(self, ensemble: Sequence[BookieId], held: dict[int, int]) -> None:
        """Ask an ensemble for its LAC; into ``held``, by slot, the last entry that each bookie who answered
        holds.

        Enough have answered when they cover the ensemble (no entry could be acknowledged without one of
        them); the others get a moment more, so that a dead bookie does not make every read wait."""
        covers = self.metadata.replication.covers
        async with trio.open_nursery() as nursery:

            async def ask(slot: int, bookie: BookieId) -> None:
                last = await self._lac_of(bookie, wait_ms=0, beyond=NO_ENTRY)
                if last is not None:
                    held[slot] = last
                    if covers(held):
                        scope = nursery.cancel_scope
                        scope.deadline = min(scope.deadline, trio.current_time() + STRAGGLER_S)

            for slot, bookie in enumerate(ensemble):
                nursery.start_soon(ask, slot, bookie)

    async def _lac_of(self, bookie: BookieId, *, wait_ms: int, beyond: int) -> int | None:
        try:
            reply = await self._pool.connection(bookie).request(
                Kind.READ_LAC,
                timeout_s=REQUEST_TIMEOUT_S + wait_ms / 1000,
                ledger_id=self.ledger_id,
                first=beyond,
                last=NO_ENTRY,
                wait_ms=wait_ms,
            )
        except BookieUnavailable:
            return None
        header = reply.header
        if header.status not in (Status.OK, Status.NO_SUCH_LEDGER, Status.UNKNOWN):
            return None
        self._lac = max(self._lac, header.lac)
        # A bookie in limbo tells the LAC that it knows, but may have held more: it does not count (A.3).
        return None if header.status == Status.UNKNOWN else header.last

    async def wait_beyond(self, entry_id: int) -> int:
        """Wait until an entry beyond ``entry_id`` may be read; the last that may. Returns at once where one
        may already, and with what there is when the ledger turns out to be closed, when its bookies changed,
        or after ``limits.LONG_POLL_S``. Raises LedgerNotFound, MetadataUnavailable."""
        if self.is_closed or self._lac > entry_id:
            await trio.lowlevel.checkpoint()
        else:
            await race(self._follow_metadata, partial(self._poll_any, entry_id))
        return self._readable()

    async def _follow_metadata(self) -> None:
        """Return when the ledger is closed or its entries go to other bookies."""
        ensemble = self.metadata.last_fragment.ensemble
        await trio.sleep_until(self._looked_at + METADATA_LOOK_S)
        async with self._store.watch(ledger_path(self.ledger_id)) as watch:
            await self.refresh()
            while not self.metadata.is_closed and self.metadata.last_fragment.ensemble == ensemble:
                await watch.wait()
                await self.refresh()

    async def _poll_any(self, entry_id: int) -> None:
        """Long polls to the last ensemble, until one shows a LAC beyond ``entry_id`` or all end."""
        async with trio.open_nursery() as nursery:
            waiting = self._worth_polling()

            async def poll(bookie: BookieId) -> None:
                answered = await self._lac_of(bookie, wait_ms=round(LONG_POLL_S * 1000), beyond=entry_id)
                if answered is None:
                    await trio.sleep(_RETRY_S)
                waiting.remove(bookie)
                if self._lac > entry_id or not waiting:
                    nursery.cancel_scope.cancel()

            for bookie in list(waiting):
                nursery.start_soon(poll, bookie)

    def _worth_polling(self) -> list[BookieId]:
        """The last ensemble, without bookies that lag. The first answer ends the polls to the others, and one
        that hears nothing of the writer holds each of them to its end: who follows a busy writer would fill
        it with them, until it has no place for anybody's requests."""
        metadata = self.metadata
        ensemble = metadata.last_fragment.ensemble
        prompt = [
            slot
            for slot, bookie in enumerate(ensemble)
            if self._pool.connection(bookie).abandoned_requests < POLLS_ABANDONED_MAX
        ]
        # One of those that cover the ensemble has what is acknowledged, and is told so with the next frame.
        slots = prompt if metadata.replication.covers(prompt) else range(len(ensemble))
        return [ensemble[slot] for slot in slots]

    # --- entries ------------------------------------------------------------------------------

    async def read(self, first: int, last: int) -> list[bytes]:
        """The payloads of entries first..last. The caller bounds their number.

        InvalidArgument: not 0 <= first <= last. EntryNotFound: beyond the last entry that may be read now, or
        every bookie of its write set says that there is none. EntryUnavailable: nobody who could know has
        answered. EntryCorrupt: every copy that was found is damaged. LedgerNotFound, MetadataUnavailable.
        Cancelling is harmless."""
        await self._check_range(first, last)
        payloads: list[bytes] = []
        while len(payloads) <= last - first:
            payloads += await self._read_some(first + len(payloads), last, READ_REPLY_BYTES_TARGET)
        return payloads

    async def read_batch(
        self, first: int, last: int, *, bytes_max: int = READ_REPLY_BYTES_TARGET
    ) -> list[bytes]:
        """As many entries from ``first`` on as one exchange brings, at least one, at most through ``last``;
        about ``bytes_max`` payload bytes (at least 1). Errors as for ``read``."""
        if bytes_max < 1:
            raise InvalidArgument(f"bytes_max is {bytes_max}: it must be positive")
        await self._check_range(first, last)
        return await self._read_some(first, last, bytes_max)

    async def _check_range(self, first: int, last: int) -> None:
        if not 0 <= first <= last:
            raise InvalidArgument(f"entries {first}..{last} are not a range")
        readable = self._readable()
        if last > readable:
            readable = await self.last_add_confirmed()
        if last > readable:
            raise EntryNotFound(self.ledger_id, last, f"the last entry that may be read is {readable}")

    async def _read_some(self, first: int, last: int, bytes_max: int) -> list[bytes]:
        try:
            return await self._read_once(first, last, bytes_max)
        except (EntryUnavailable, EntryNotFound, EntryCorrupt):
            # Repair may have moved the entries since the metadata was read.
            before = self.metadata.fragments
            await self.refresh()
            self._failed.clear()
            if self.metadata.fragments == before:
                raise
        return await self._read_once(first, last, bytes_max)

    async def _read_once(self, first: int, last: int, bytes_max: int) -> list[bytes]:
        return await read_entries(
            self.metadata,
            first,
            last,
            bytes_max=bytes_max,
            connection=self._pool.connection,
            failed=self._failed,
            prefer=self._prefer,
        )

    async def follow(self, first: int = 0) -> AsyncGenerator[tuple[int, bytes], None]:
        """Every entry from ``first`` on, with its id, as it becomes readable; ends when the ledger is closed
        and read to its end. Use it under ``contextlib.aclosing``. Errors as for ``read``."""
        next_entry = first
        while True:
            readable = await self.wait_beyond(next_entry - 1)
            while next_entry <= readable:
                for payload in await self.read_batch(next_entry, readable):
                    yield next_entry, payload
                    next_entry += 1
            if self.is_closed and next_entry > self._end():
                return
