"""A ledger's reader, as callers use it: the shell around ``ledger.core.reader``.

You can read an open ledger up to the LAC (the last add confirmed). Readers learn the LAC from the bookies.
The writer sends it to the bookies with every add, and in a frame of its own when no more adds come. You can
read a closed ledger up to its last entry.

**The end of an open ledger.** ``last_add_confirmed`` includes every entry that was acknowledged before the
call. The call reads the metadata again, because the ledger may have been closed or its bookies replaced, and
asks the bookies of the last ensemble. If the answers cover the ensemble (no entry can be acknowledged without
one of these bookies; A.0), one answer is from a bookie that holds the last acknowledged entry. If they do not
cover it, the last acknowledged entry may be on the other bookies only, and the call raises EntryUnavailable.
For example, with E=3, WQ=3 and AQ=2 an answer from one bookie is not enough. A bookie with the last
acknowledged entry may not know yet that the entry is acknowledged: the writer sends the LAC with its next
frame, or a moment later if there is none. So each answer also names the last entry that the bookie holds, and
the reader waits briefly until the LAC reaches that entry. If the LAC does not reach it, the reader asks once
more: the entry may be a later one that is still under way, and bookies may have learned meanwhile that an
earlier entry is acknowledged. If the writer died, the LAC may never reach it. So the reader waits no second
time if all bookies of the ensemble answer, and hold the same entries as before: then no entry was
acknowledged since.

**Moved entries.** Repair and recovery move entries to other bookies. If a read fails, the reader reads the
metadata again. If the metadata now name other bookies, the reader tries the read once more.

The reader keeps the highest LAC that a bookie reported, and the newest metadata. So the readable range never
shrinks.

**Outages of the metadata store.** A reader that waits for entries goes on without the store, as the ledger's
writer does. A new entry shows that the metadata are still right: the writer uses the same bookies. The
waiting fails only if the store was asked, and for ``limits.METADATA_TIMEOUT_S`` neither an answer nor a new
entry came.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from functools import partial

import trio

from ledgerlog.concurrency.gathering import gather, race
from ledgerlog.errors import (
    BookieUnavailable,
    EntryCorrupt,
    EntryNotFound,
    EntryUnavailable,
    InvalidArgument,
    MetadataUnavailable,
    PermissionDenied,
)
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.permission import check_permitted
from ledgerlog.ledger.ranges import read_entries
from ledgerlog.limits import (
    LAC_PUBLISH_IDLE_S,
    LONG_POLL_S,
    METADATA_TIMEOUT_S,
    READ_REPLY_BYTES_TARGET,
    REQUEST_TIMEOUT_S,
)
from ledgerlog.meta.belonging import StoreRestored
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.layout import ledger_path
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.net.pool import ConnectionPool
from ledgerlog.wire.frame import Kind, Status

LAC_CATCH_UP_S = 0.1
_SOON_S = 10 * LAC_PUBLISH_IDLE_S
"""Seconds that a reader waits for the LAC to reach entries that a bookie already holds."""

STRAGGLER_S = 0.02
"""Seconds that a reader waits for the remaining bookies after enough bookies have reported their LAC."""

METADATA_LOOK_S = 0.1
"""A waiting reader reads the metadata this many seconds after it last read them, and then whenever they
change. A reader that follows a busy writer wakes far more often, but does not ask the store each time."""

POLLS_ABANDONED_MAX = 32
"""Skip polling a bookie with this many abandoned requests of ours, if other bookies can report as much.

A request is abandoned if it is still under way and no task waits for its answer."""

_RETRY_S = 0.1


class LedgerReader:
    """Reads one ledger and never fences it. Any number of tasks may use it at the same time."""

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
        self._version = -1
        self._registry = registry
        self._pool = pool
        self._store = store
        self._prefer = prefer
        self._lac_told = NO_ENTRY
        self._looked_at = trio.current_time()  # the time of the last metadata read, or later
        self._unanswered_since: float | None = None
        """The time of the first question to the metadata store that neither an answer nor a new entry has
        followed. None: there is none."""
        self._waited_for: tuple[Sequence[BookieId], dict[int, int]] | None = None
        """The last ensemble and the last entries that its bookies held, before a wait for a LAC that did not
        come in time."""
        self._failed: dict[BookieId, None] = {}

    @property
    def _lac(self) -> int:
        """The highest LAC that this reader knows. All fragments before the last one are committed."""
        return max(self._lac_told, self.metadata.last_fragment.first_entry - 1)

    @property
    def is_closed(self) -> bool:
        """Whether the metadata last seen says that the ledger is closed."""
        return self.metadata.is_closed

    async def refresh(self) -> LedgerMetadata:
        """Read the metadata again and return them.

        Raises:
            LedgerNotFound: The ledger was deleted.
            MetadataUnavailable: The metadata store cannot be reached.
        """
        begun = trio.current_time()
        if self._unanswered_since is None:
            self._unanswered_since = begun
        metadata, version = await self._registry.read(self.ledger_id)
        if version >= self._version:  # Another task may have got a later answer first.
            self.metadata, self._version = metadata, version
        self._looked_at, self._unanswered_since = begun, None
        return self.metadata

    def _check_in_touch(self, away: MetadataUnavailable) -> None:
        """Raise ``away`` if the store has been asked in vain for ``limits.METADATA_TIMEOUT_S``, and no new
        entry came meanwhile."""
        since = self._unanswered_since
        if since is not None and trio.current_time() - since >= METADATA_TIMEOUT_S:
            raise away

    # --- the end ------------------------------------------------------------------------------

    async def last_add_confirmed(self) -> int:
        """Find the last entry that you can read now.

        The result includes every entry that was acknowledged to the writer before this call, if the writer
        can tell the bookies within 0.1 s that the entry is acknowledged. If the writer or its network is
        slow, you can read its last entries later. If the writer is gone, they may become readable only after
        recovery.

        Returns:
            The last readable entry; -1 if there is none.

        Raises:
            EntryUnavailable: Too few bookies of the last ensemble answered: an acknowledged entry may be on
                the others only.
            PermissionDenied: This client may not read the ledger.
            LedgerNotFound: The ledger was deleted.
            MetadataUnavailable: The metadata store cannot be reached.
        """
        await self._learn_end()
        return self.readable

    async def known_end(self) -> tuple[int, EntryUnavailable | None]:
        """Find the last entry that you can read now, as ``last_add_confirmed`` does, without a failure if too
        few bookies answer.

        Returns:
            The last entry that is known to be readable, and the EntryUnavailable that
            ``last_add_confirmed`` would raise. None: it would raise none, and the entry is the last one.

        Raises:
            LedgerLogError: The other errors of ``last_add_confirmed``.
        """
        try:
            return await self.last_add_confirmed(), None
        except EntryUnavailable as doubt:
            return self.readable, doubt

    async def find_readable(self) -> int:
        """Find the last entry that you can read now, even if too few bookies answer to know of all
        acknowledged entries.

        Returns:
            The last entry that is known to be readable; -1 if there is none.

        Raises:
            EntryUnavailable: No bookie of the last ensemble answered.
            LedgerLogError: The other errors of ``last_add_confirmed``.
        """
        await self._learn_end(must_cover=False)
        return self.readable

    async def is_readable(self, entry_id: int) -> bool:
        """Find out whether you can read an entry now.

        Args:
            entry_id: The entry, at least 0.

        Raises:
            EntryUnavailable: The entry is not known to be readable, and too few bookies of the last ensemble
                answered to deny it.
            LedgerLogError: The other errors of ``last_add_confirmed``, if the reader has to ask.
        """
        if entry_id <= self.readable:
            await trio.lowlevel.checkpoint()
            return True
        try:
            await self._learn_end()
        except EntryUnavailable:
            if entry_id > self.readable:
                raise
        return entry_id <= self.readable

    async def _learn_end(self, *, must_cover: bool = True) -> None:
        """Learn how far the ledger is readable.

        Args:
            must_cover: Whether the answers must cover the last ensemble. If not, one answer is enough.

        Raises:
            LedgerLogError: The errors of ``last_add_confirmed``. ``readable`` may have grown all the same.
        """
        if self.is_closed:
            await trio.lowlevel.checkpoint()
            return
        reasons: dict[BookieId, str] = {}
        held = await self._ask_end(reasons)
        if self.metadata.is_closed:
            return
        self._check_enough(held, must_cover, reasons)
        top = max(held.values())
        ensemble = self.metadata.last_fragment.ensemble
        is_as_before = len(held) == len(ensemble) and self._waited_for == (ensemble, held)
        if top > self._lac:
            # If nothing has changed since a wait in vain, the writer is probably gone. If it lives and has
            # just acknowledged an entry, it tells the bookies soon.
            with trio.move_on_after(_SOON_S if is_as_before else LAC_CATCH_UP_S):
                await self._poll_any(top - 1)
            if self._lac < top:
                self._waited_for = ensemble, held
                held = await self._ask_end(reasons)
                # For a caller that needs no covering answers, those to the first question are enough. And no
                # entry above ``top`` was acknowledged before the call.
                if must_cover and self._lac < top and not self.metadata.is_closed:
                    self._check_enough(held, must_cover, reasons)

    def _check_enough(
        self,
        held: Collection[int],
        must_cover: bool,
        reasons: Mapping[BookieId, str],
    ) -> None:
        """Raise EntryUnavailable if the answers from the slots ``held`` are not enough."""
        if not held or (must_cover and not self.metadata.replication.covers(held)):
            who = (
                "too few bookies of its last ensemble report"
                if held
                else "no bookie of its last ensemble reports"
            )
            why = [f"{who} how far it is confirmed", *reasons.values()]
            raise EntryUnavailable(self.ledger_id, self._lac + 1, "; ".join(why))

    async def _ask_end(self, reasons: dict[BookieId, str]) -> dict[int, int]:
        """Read the metadata and ask their last ensemble. Repeat until the answers are from the ensemble that
        the metadata name.

        Returns the last entry that each answering bookie holds, by slot. For the other bookies, it puts into
        ``reasons`` why they did not answer."""
        while True:
            asked = self.metadata.last_fragment
            held: dict[int, int] = {}
            reasons.clear()
            await gather(self.refresh, partial(self._ask_lac, asked.ensemble, held, reasons))
            if self.metadata.is_closed or self.metadata.last_fragment == asked:
                return held

    @property
    def readable(self) -> int:
        """The last entry that you can read, as far as this reader knows; -1 if there is none."""
        return self._end() if self.is_closed else self._lac

    def _end(self) -> int:
        assert self.metadata.last_entry is not None
        return self.metadata.last_entry

    async def _ask_lac(
        self, ensemble: Sequence[BookieId], held: dict[int, int], reasons: dict[BookieId, str]
    ) -> None:
        """Ask the bookies of an ensemble for the LAC.

        For each bookie that answers, this puts the last entry that the bookie holds into ``held``, by slot.
        For each other bookie, it puts the reason into ``reasons``.

        The answers are enough once they cover the ensemble: no entry can be acknowledged without one of these
        bookies. The remaining bookies get only ``STRAGGLER_S`` more, so that a dead bookie does not slow down
        every read."""
        covers = self.metadata.replication.covers
        denial: PermissionDenied | None = None
        async with trio.open_nursery() as nursery:

            async def ask(slot: int, bookie: BookieId) -> None:
                nonlocal denial
                try:
                    last = await self._lac_of(bookie, wait_ms=0, beyond=NO_ENTRY, reasons=reasons)
                except PermissionDenied as refused:
                    denial = refused
                    nursery.cancel_scope.cancel()
                    return
                if last is not None:
                    held[slot] = last
                    if covers(held):
                        scope = nursery.cancel_scope
                        scope.deadline = min(scope.deadline, trio.current_time() + STRAGGLER_S)

            for slot, bookie in enumerate(ensemble):
                nursery.start_soon(ask, slot, bookie)
        if denial is not None:
            raise denial

    async def _lac_of(
        self, bookie: BookieId, *, wait_ms: int, beyond: int, reasons: dict[BookieId, str] | None = None
    ) -> int | None:
        try:
            connection = self._pool.connection(bookie)
            reply = await connection.request(
                Kind.READ_LAC,
                timeout_s=REQUEST_TIMEOUT_S + wait_ms / 1000,
                ledger_id=self.ledger_id,
                first=beyond,
                last=NO_ENTRY,
                wait_ms=wait_ms,
            )
        except BookieUnavailable as cause:
            if reasons is not None:
                reasons[bookie] = str(cause)
            return None
        header = reply.header
        check_permitted(header.status, connection, self.ledger_id, "read it")
        if header.status not in (Status.OK, Status.NO_SUCH_LEDGER, Status.UNKNOWN):
            if reasons is not None:
                reasons[bookie] = f"bookie {bookie} answers {Status(header.status).name}"
            return None
        if header.lac > self._lac:
            self._lac_told, self._unanswered_since = header.lac, None
        if header.status == Status.UNKNOWN:
            # The bookie reports the LAC that it knows, but may have held later entries. Its answer does not
            # count (A.3).
            if reasons is not None:
                reasons[bookie] = f"bookie {bookie} is in limbo: it may have lost entries"
            return None
        return header.last

    async def wait_beyond(self, entry_id: int) -> int:
        """Wait until an entry after ``entry_id`` can be read.

        This returns at once if you can read such an entry already. It also returns, without such an entry, if
        the ledger turns out to be closed, if its bookies changed, or after ``limits.LONG_POLL_S``. If the
        metadata store is slow, it waits for the store's answer, too.

        Args:
            entry_id: The last entry that you know of; -1 for none.

        Returns:
            The last entry that you can read now.

        Raises:
            PermissionDenied: This client has no right to read the ledger, or has lost it.
            LedgerNotFound: The ledger was deleted.
            MetadataUnavailable: The metadata store cannot be reached, and there was no new entry for
                ``limits.METADATA_TIMEOUT_S``.
        """
        if self.is_closed or self._lac > entry_id:
            await trio.lowlevel.checkpoint()
        else:
            await self._wait_beyond(entry_id)
        return self.readable

    async def _wait_beyond(self, entry_id: int) -> None:
        is_looking = False

        async def follow_metadata() -> None:
            """Return when the ledger is closed or has a new last ensemble."""
            nonlocal is_looking
            ensemble = self.metadata.last_fragment.ensemble
            await trio.sleep_until(self._looked_at + METADATA_LOOK_S)
            is_looking = True
            async with self._store.watch(ledger_path(self.ledger_id)) as watch:
                while True:
                    try:
                        await self.refresh()
                    except StoreRestored:
                        raise  # No later look succeeds.
                    except MetadataUnavailable as away:
                        self._check_in_touch(away)
                    is_looking = False
                    if self.metadata.is_closed or self.metadata.last_fragment.ensemble != ensemble:
                        return
                    await watch.wait()
                    is_looking = True

        async def poll() -> None:
            await self._poll_any(entry_id)
            while is_looking and self._lac <= entry_id:  # Do not cut off a slow look each time.
                await self._poll_any(entry_id)

        await race(follow_metadata, poll)

    async def _poll_any(self, entry_id: int) -> None:
        """Long-poll the last ensemble until one answer shows a LAC after ``entry_id``, or all polls end."""
        denial: PermissionDenied | None = None
        async with trio.open_nursery() as nursery:
            waiting = self._worth_polling()

            async def poll(bookie: BookieId) -> None:
                nonlocal denial
                try:
                    answered = await self._lac_of(bookie, wait_ms=round(LONG_POLL_S * 1000), beyond=entry_id)
                except PermissionDenied as refused:
                    denial = refused
                    nursery.cancel_scope.cancel()
                    return
                if answered is None:
                    await trio.sleep(_RETRY_S)
                waiting.remove(bookie)
                if self._lac > entry_id or not waiting:
                    nursery.cancel_scope.cancel()

            for bookie in list(waiting):
                nursery.start_soon(poll, bookie)
        if denial is not None:
            raise denial

    def _worth_polling(self) -> list[BookieId]:
        """List the bookies of the last ensemble, leaving out lagging ones if the others cover the ensemble.

        The first answer makes the reader abandon its polls to the other bookies. A bookie that gets no frames
        from the writer holds each abandoned poll until the poll's time-out. A reader that follows a busy
        writer would fill such a bookie with polls, until the bookie had no room for any requests."""
        metadata = self.metadata
        ensemble = metadata.last_fragment.ensemble
        prompt = [
            slot
            for slot, bookie in enumerate(ensemble)
            if self._pool.connection(bookie).abandoned_requests < POLLS_ABANDONED_MAX
        ]
        # If bookies cover the ensemble, one of them holds the last acknowledged entry, and learns with the
        # next frame that the entry is acknowledged.
        slots = prompt if metadata.replication.covers(prompt) else range(len(ensemble))
        return [ensemble[slot] for slot in slots]

    # --- entries ------------------------------------------------------------------------------

    async def read(self, first: int, last: int) -> list[bytes]:
        """Read the payloads of entries first..last. All payloads are kept in memory: choose a range that
        fits.

        Args:
            first: The first entry, at least 0.
            last: The last entry, at least ``first``.

        Returns:
            The payloads, in order.

        Raises:
            InvalidArgument: Not 0 <= first <= last.
            EntryNotFound: An entry is after the last readable one, or every bookie of its write set says that
                there is no such entry.
            EntryUnavailable: A bookie that may have the entry did not answer, or is in limbo. Or an entry is
                after the last one that is known to be readable, and too few bookies answered to deny it.
            EntryCorrupt: Every copy that was found is damaged.
            PermissionDenied: This client has no right to read the ledger, or has lost it.
            LedgerNotFound: The ledger was deleted.
            MetadataUnavailable: The metadata store cannot be reached.

        Cancelling: harmless.
        """
        await self._check_range(first, last)
        payloads: list[bytes] = []
        while len(payloads) <= last - first:
            payloads += await self._read_some(first + len(payloads), last, READ_REPLY_BYTES_TARGET)
        return payloads

    async def read_batch(
        self, first: int, last: int, *, bytes_max: int = READ_REPLY_BYTES_TARGET
    ) -> list[bytes]:
        """Read as many entries from ``first`` on as one exchange brings: at least one.

        Args:
            first: The first entry, at least 0.
            last: The last entry that may be returned, at least ``first``.
            bytes_max: About how many payload bytes to read, at least 1.

        Returns:
            The payloads of consecutive entries from ``first`` on.

        Raises:
            InvalidArgument: Not 0 <= first <= last, or ``bytes_max`` is below 1.
            LedgerLogError: The other errors of ``read``.

        Cancelling: harmless.
        """
        if bytes_max < 1:
            raise InvalidArgument(f"bytes_max is {bytes_max}: it must be positive")
        await self._check_range(first, last)
        return await self._read_some(first, last, bytes_max)

    async def _check_range(self, first: int, last: int) -> None:
        if not 0 <= first <= last:
            raise InvalidArgument(f"entries {first}..{last} are not a range")
        if last > self.readable and not await self.is_readable(last):
            raise EntryNotFound(self.ledger_id, last, f"the last entry that can be read is {self.readable}")

    async def _read_some(self, first: int, last: int, bytes_max: int) -> list[bytes]:
        before = self.metadata.fragments  # Another task may read newer metadata during our read.
        try:
            return await self._read_once(first, last, bytes_max)
        except (EntryUnavailable, EntryNotFound, EntryCorrupt):
            # Repair may have moved the entries since the metadata was read.
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
        """Yield every entry from ``first`` on with its id, as it becomes readable.

        This ends when the ledger is closed and read to its end. Use it under ``contextlib.aclosing``.

        Args:
            first: The first entry to yield, at least 0.

        Yields:
            The id and the payload of an entry.

        Raises:
            LedgerLogError: The errors of ``read``.
        """
        next_entry = first
        while True:
            readable = await self.wait_beyond(next_entry - 1)
            while next_entry <= readable:
                for payload in await self.read_batch(next_entry, readable):
                    yield next_entry, payload
                    next_entry += 1
            if self.is_closed and next_entry > self._end():
                return


class WatchedReader(LedgerReader):
    """A reader whose owner watches the metadata and sets ``metadata`` after each change.

    So it does not ask the metadata store for the end of the ledger. The end that it finds may be an entry or
    so before the last one that the writer has acknowledged.
    """

    async def _learn_end(self, *, must_cover: bool = True) -> None:
        if self.is_closed:
            await trio.lowlevel.checkpoint()
            return
        held: dict[int, int] = {}
        reasons: dict[BookieId, str] = {}
        await self._ask_lac(self.metadata.last_fragment.ensemble, held, reasons)
        if not self.is_closed:  # Its owner may have learned of a close meanwhile.
            self._check_enough(held, must_cover, reasons)
