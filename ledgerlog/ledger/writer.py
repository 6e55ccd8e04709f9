"""A ledger's writer, as callers use it: the shell around the protocol machine ``ledger.core.writer``.

An append enqueues the entry, sends it and waits until the watermark (the LAC: the last add confirmed) has
reached the entry. No step of the protocol depends on a caller's task, so cancelling a caller only abandons
its wait. Frames are sent by the task that makes them possible: an appending task, or the receiver task whose
acknowledgement made room. The writer has two tasks in the client's nursery, which do the rest:

    metadata   carries out the core's metadata intent, again and again until the core has none. It may hang
               in the store for as long as the store lets it
    maintain   has ``ledger.member_watch`` look after the bookies of the ensemble; publishes the LAC when the
               writer falls idle (rule 16), so that readers see the last entry; gives up if no progress was
               made for ``append_deadline_s``. It never waits for the store, so its deadlines hold

No entry has its own timer; the maintaining task looks at the clock a few times a second.

**Publishing the LAC.** A frame carries the LAC at the time of its encoding, so only ``_publish_lac`` tells
bookies that the last entries of a burst are confirmed. A bookie that reconnects or joins gets the LAC again:
it may have forgotten a LAC that came without an entry, because nothing synced it.

**Closing** first refuses new appends. Entries that were appended before have time to be confirmed, and no
other entry can follow them. In the plain mode (without guaranteed write quorum), the ledger is closed when
its entries have an ack quorum. Some bookies may still lack copies then. A writer that has stored the end, or
does not know whether it has, waits a moment for the last copies. If a bookie still lacks some, the writer
files the ledger for repair (rule 24). Callers of ``close`` wait for the filing, because only the writer knows
of the missing copies. The outcome of ``close`` does not depend on the filing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from ledgerlog.concurrency.watermark import Watermark, fresh
from ledgerlog.counts import ClientCounts
from ledgerlog.errors import (
    AppendUnknown,
    InvalidArgument,
    LedgerClosed,
    LedgerLogError,
    MetadataError,
    NotEnoughBookies,
    RecordTooLarge,
    SessionExpired,
    Unauthenticated,
    WriteQuorumUnavailable,
)
from ledgerlog.event_log import ENSEMBLE_CHANGED, tell
from ledgerlog.ledger.bookies import BookieDirectory
from ledgerlog.ledger.core import writer as core_writer
from ledgerlog.ledger.encoding import AddEncoder
from ledgerlog.ledger.member_watch import LOOK_S, MemberWatch
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.permission import denied
from ledgerlog.ledger.repair_tasks import may_lack_copies
from ledgerlog.ledger.slots import SlotOwner, SlotSink, SlotSinks
from ledgerlog.limits import (
    APPEND_DEADLINE_S,
    ENTRY_BYTES_MAX,
    LAC_PUBLISH_IDLE_S,
    LATE_COPIES_S,
    METADATA_TIMEOUT_S,
    REACH_ASK_S,
    REACH_LOOK_S,
    REFUSED_S,
    WRITER_WINDOW_BYTES,
    WRITER_WINDOW_ENTRIES,
)
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.model.reach import OutOfReach
from ledgerlog.net.pool import ConnectionPool
from ledgerlog.wire.entries import encode_lac
from ledgerlog.wire.frame import Status

_REST_S = 30.0
"""Seconds between two looks of the maintaining task while nothing happens. Any event that needs a look wakes
the task earlier."""

_METADATA_RETRY_S = 0.2

_BYTES = {bytes}

logger = logging.getLogger(__name__)


class BookiesUnauthenticated(NotEnoughBookies, Unauthenticated):
    """Authentication failed between this process and every bookie of a new ledger.

    A caller that waits for bookies continues waiting, as if the bookies were down."""


class LedgerWriter:
    """The single writer of one ledger, made by ``Ledgers.create``.

    You can use it as an async context manager. A normal exit closes the ledger, or raises the reason why the
    ledger cannot be closed. On an error or a cancellation, the writer gives the ledger up and leaves it OPEN.

    Payloads are ``bytes`` of at most ``limits.ENTRY_BYTES_MAX``. Any number of tasks may use a writer at the
    same time. Entries are numbered in the order in which the writer takes them."""

    def __init__(
        self,
        core: core_writer.WriterCore,
        *,
        registry: LedgerRegistry,
        directory: BookieDirectory,
        pool: ConnectionPool,
        append_deadline_s: float = APPEND_DEADLINE_S,
        window_bytes: int = WRITER_WINDOW_BYTES,
        window_entries: int = WRITER_WINDOW_ENTRIES,
        counts: ClientCounts | None = None,
    ) -> None:
        self._core = core
        self._registry = registry
        self._directory = directory
        self._append_deadline_s = append_deadline_s
        self._window_bytes = window_bytes
        self._window_entries = window_entries
        self._counts = counts or ClientCounts()
        self._timed_entry = NO_ENTRY  # the entry whose time to its ack quorum is being measured
        self._timed_at = 0.0
        metadata = core.metadata
        self._encoder = AddEncoder(
            metadata.ledger_id, metadata.replication, metadata.key, recovery=False, marks=self._marks
        )
        self._key = metadata.key
        owner = SlotOwner(
            on_add_refused=self._on_add_refused,
            on_bookie_lost=self._on_bookie_lost,
            on_bookie_connected=self._on_bookie_connected,
            encode=self._encoder.encode,
            act=self._act,
        )
        self._slots = SlotSinks(core, owner, pool, metadata.replication)
        self._pool = pool
        self._members = MemberWatch(core, self._slots, directory, self._counts)
        self._confirmed = Watermark(NO_ENTRY)
        self._room = trio.lowlevel.ParkingLot()
        self._drained = trio.lowlevel.ParkingLot()
        self._over = trio.Event()
        self._settled_repair = trio.Event()  # set when nothing is left to file for repair
        self._filed: list[BookieId] | None = None
        """The bookies that every attempt of the closing write files for repair; None before the first one."""
        self._is_resting = False  # the maintaining task sleeps until something happens
        self._wake = trio.Event()
        self._intent_wanted = trio.Event()
        self._progress_callback: Callable[[], None] | None = None
        self._progress_at = 0.0  # when the LAC last moved, or when something became pending
        self._nap = trio.CancelScope()  # of the maintaining task, which sleeps until its deadline
        self._look_at = 0.0  # when the maintaining task must look at everything again
        self._publish_due = False
        self._publish_anyway = False  # even if frames carried the LAC: a bookie may not have received them
        self._introduced: set[BookieId] = set()
        self._outcome: LedgerLogError | None = None
        self._closers = 0
        self._is_given_up = False
        self._ending_since: float | None = None

    # --- state for callers --------------------------------------------------------------------

    @property
    def ledger_id(self) -> int:
        """The id of the ledger."""
        return self._core.ledger_id

    @property
    def replication(self) -> Replication:
        """The quorums of the ledger."""
        return self._core.replication

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last stored or read it."""
        return self._core.metadata

    @property
    def last_add_pushed(self) -> int:
        """The last entry appended, acknowledged or not; -1 if there is none."""
        return self._core.last_add_pushed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry acknowledged; -1 if there is none. An ack quorum has synced it and all earlier
        entries."""
        return self._core.lac

    @property
    def last_add_fully_replicated(self) -> int:
        """The last entry that is on its full write quorum together with all earlier entries.

        Only the guaranteed mode counts this. In the plain mode it stays at -1."""
        return self._core.lafr

    @property
    def failure(self) -> LedgerLogError | None:
        """Why nothing more can be appended; None while appends are possible."""
        return self._core.failure if self._outcome is None else self._outcome

    @property
    def denial(self) -> LedgerLogError | None:
        """A PermissionDenied, once a bookie has refused an add because this client does not have the right;
        None before. The writer then ends, and ``failure`` tells the fate of the entries that were not
        acknowledged yet."""
        return self._core.denial

    @property
    def out_of_reach(self) -> OutOfReach | None:
        """The bookies that keep this writer from an ack quorum, because it cannot reach them. None if an ack
        quorum is in reach, or if the writer does not know yet. Progress sets this to None again."""
        return self._members.out_of_reach

    @property
    def frames_outstanding(self) -> int:
        """The number of unacknowledged batches, sent or not."""
        return self._core.pending.unconfirmed_batches()

    @property
    def has_room(self) -> bool:
        """Whether the window has room for another entry."""
        core = self._core
        return core.unsettled_entries < self._window_entries and core.unsettled_bytes < self._window_bytes

    def set_progress_callback(self, callback: Callable[[], None] | None) -> None:
        """Call ``callback`` synchronously, once per batch, after the LAC moved or ``failure`` was set.

        Args:
            callback: The function to call; None for none. It replaces the one set before.
        """
        self._progress_callback = callback

    def set_reach_callback(self, callback: Callable[[], None] | None) -> None:
        """Call ``callback`` synchronously after ``out_of_reach`` changed.

        Args:
            callback: The function to call; None for none. It replaces the one set before.
        """
        self._members.set_reach_callback(callback)

    # --- appending ----------------------------------------------------------------------------

    def push(self, payloads: Sequence[bytes]) -> int:
        """Make these payloads the next entries, without waiting.

        This ignores the window. Check ``has_room`` first, or bound the number of entries yourself.

        Args:
            payloads: ``bytes``, each at most ``limits.ENTRY_BYTES_MAX``.

        Returns:
            The id of the first of these entries.

        Raises:
            RecordTooLarge: A payload is too large. Nothing was pushed.
            InvalidArgument: A payload is not ``bytes``. Nothing was pushed.
            LedgerClosed: ``close`` was called, or the ledger is closed. Nothing was pushed.
            LedgerLogError: ``failure`` is set; this raises it. Nothing was pushed.
        """
        core = self._core
        if core.failure is not None or self._closers:
            self._check_alive()
        if not _BYTES.issuperset(map(type, payloads)):
            _check_payloads(payloads)
        if max(map(len, payloads), default=0) > ENTRY_BYTES_MAX:
            raise RecordTooLarge(max(map(len, payloads)), ENTRY_BYTES_MAX, "ledger entry")
        was_idle = core.last_add_pushed == core.pending.lac
        first = core.append(payloads)
        is_timed = self._timed_entry == NO_ENTRY and bool(payloads)
        if was_idle or is_timed:
            now = trio.current_time()
            if was_idle:
                self._progress_at = now
                if self._is_resting:
                    self._wake.set()  # From now on, the maintaining task must look at the clock.
            if is_timed:
                self._timed_entry, self._timed_at = first, now
        if core.form_batches():
            self._slots.send_due()
        return first

    async def wait_room(self) -> None:
        """Wait until the window has room. This is always a checkpoint.

        Raises:
            LedgerClosed: ``close`` was called, or the ledger is closed.
            WriteQuorumUnavailable: Only in guaranteed mode, where entries stay in the window until they are
                on their full write quorum: no entry reached its full write quorum within the append deadline.
                The writer stays usable.
            LedgerLogError: ``failure`` is set; this raises it.
        """
        await trio.lowlevel.checkpoint()
        pending = self._core.pending
        while not self.has_room:
            self._check_alive()
            settled = pending.settled
            with trio.move_on_after(self._append_deadline_s) as patience:
                await self._room.park()
            if patience.cancelled_caught and self.replication.guaranteed and pending.settled == settled:
                self._check_alive()
                raise WriteQuorumUnavailable(
                    f"ledger {self.ledger_id}: the window is full of entries from {settled + 1} on that are "
                    f"not on their full write quorum; nothing was appended"
                )
        self._check_alive()

    async def wait_confirmed(self, entry_id: int) -> None:
        """Wait until an entry is acknowledged.

        Args:
            entry_id: The entry, as returned by ``push``.

        Raises:
            LedgerFenced: Another client took the ledger over. The entry may or may not be in the ledger.
            NotEnoughBookies: The ledger was closed without the entry, because too few bookies took it.
            PermissionDenied: The ledger was closed without the entry: this client may no longer add to it.
            LedgerClosed: The ledger was closed without the entry.
            LedgerNotFound: The ledger was deleted.
            AppendUnknown: The outcome could not be determined. The entry may be in the ledger.

        Cancelling: only abandons the wait.
        """
        await self._confirmed.wait(entry_id)

    async def append(self, payload: bytes) -> int:
        """Append one entry, and wait until an ack quorum has synced it and all entries before it.

        Args:
            payload: ``bytes``, at most ``limits.ENTRY_BYTES_MAX``.

        Returns:
            The id of the entry.

        Raises:
            RecordTooLarge: The payload is too large. It was not written.
            InvalidArgument: The payload is not ``bytes``. It was not written.
            WriteQuorumUnavailable: Only in guaranteed mode: the window was full, and no entry in it got its
                full write quorum within the append deadline. The payload was not written.
            LedgerFenced: Another client took the ledger over. The entry may or may not be in the ledger.
            NotEnoughBookies: The ledger was closed without the entry, because too few bookies took it.
            PermissionDenied: The ledger was closed without the entry: this client may not add to it.
            LedgerClosed: The ledger is closed, or being closed. The entry is not in it.
            LedgerNotFound: The ledger was deleted.
            AppendUnknown: The outcome could not be determined. The entry may be in the ledger.

        Cancelling: before the entry is sent, it is not written; after that, the outcome is unknown. In both
        cases the writer stays usable, and its entries stay in order.
        """
        if not self.has_room:
            await self.wait_room()
        entry_id = self.push([payload])
        await self._confirmed.wait(entry_id)
        return entry_id

    async def append_many(self, payloads: Sequence[bytes]) -> range:
        """Append entries with consecutive ids, and wait until all are acknowledged.

        The call waits for room in the window once and then takes all payloads, so entries of other tasks
        never come in between. So the payloads of this call may exceed the window.

        Args:
            payloads: ``bytes``, each at most ``limits.ENTRY_BYTES_MAX``.

        Returns:
            The ids of the entries.

        Raises:
            LedgerLogError: The same errors as ``append``. If an error comes after the entries were taken,
                some of them may be in the ledger, always a prefix.

        Cancelling: as for ``append``; a prefix of the entries may be in the ledger.
        """
        if not self.has_room:
            await self.wait_room()
        first = self.push(payloads)
        await self._confirmed.wait(first + len(payloads) - 1)
        return range(first, first + len(payloads))

    async def flush(self) -> None:
        """Wait until everything appended so far is acknowledged.

        Raises:
            LedgerLogError: The errors of ``append``, about the last entry appended.

        Cancelling: only abandons the wait.
        """
        await self._confirmed.wait(self.last_add_pushed)

    # --- ending -------------------------------------------------------------------------------

    async def close(self, *, timeout_s: float | None = None) -> int:
        """Wait until all entries are acknowledged, then close the ledger. Calling it again is harmless.

        In guaranteed mode this waits until all entries are fully replicated. Appends are refused meanwhile.

        Args:
            timeout_s: Seconds to wait for the entries; None for the append deadline. After that the plain
                mode closes at the LAC, and entries above it fail with LedgerClosed.

        Returns:
            The last entry of the ledger; -1 if it is empty.

        Raises:
            WriteQuorumUnavailable: Only in guaranteed mode: the wait timed out. The ledger stays OPEN and the
                writer usable.
            LedgerFenced: Another client took the ledger over.
            LedgerClosed: Another client closed the ledger.
            LedgerNotFound: The ledger was deleted.
            AppendUnknown: The metadata store did not say in time whether it stored the end. The ledger is
                closed at that end, or stays OPEN until a client recovers it.

        Cancelling: during the wait for the entries, this changes nothing. Later, the ledger is closed all the
        same, if the store takes the write.
        """
        core = self._core
        self._closers += 1
        try:
            self._room.unpark_all()  # Tasks that wait for room are refused.
            with trio.move_on_after(self._append_deadline_s if timeout_s is None else timeout_s):
                while not core.is_drained and core.failure is None:
                    await self._drained.park()
            if core.failure is None:
                core.close()  # May raise WriteQuorumUnavailable.
                self._wake.set()
        finally:
            self._closers -= 1
        await self._over.wait()
        await self._settled_repair.wait()
        if core.is_closed:
            assert core.close_at is not None
            return core.close_at
        assert self.failure is not None
        raise fresh(self.failure)

    async def aclose(self) -> None:
        """Give the ledger up without closing it: it stays OPEN until a client recovers it.

        Callers that wait for unacknowledged entries get AppendUnknown."""
        self._give_up()
        await trio.lowlevel.checkpoint()

    def _give_up(self) -> None:
        self._is_given_up = True
        self._end(AppendUnknown(f"ledger {self.ledger_id} was given up by its writer, and left open"))

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *args: object) -> None:
        if exc_type is not None or self._is_given_up:
            await self.aclose()
            return
        try:
            await self.close()
        except BaseException:
            self._give_up()
            raise

    # --- SlotOwner: reports of the connections --------------------------------------------------

    def _on_add_refused(self, bookie: BookieId, first: int, last: int, status: Status) -> None:
        """Handle the refusal of an add. The connection calls this.

        Args:
            bookie: The bookie that refused.
            first: The first entry of the refused add.
            last: The last entry of the refused add.
            status: The reason. FENCED ends this writer, unless the bookie is a new, untried replacement.
                PERMISSION_DENIED ends the writer too: the other bookies would refuse as well.
        """
        if status is Status.FENCED:
            if self._core.on_fenced(bookie):
                self._members.on_unfit(bookie)
                self._wake.set()
        elif status is Status.PERMISSION_DENIED:
            self._core.deny(denied(self._pool.connection(bookie), self.ledger_id, "add to it"))
            self._wake.set()
            self._tell_progress()  # The closing write may take a long time.
        elif self._members.on_refused(bookie, status):
            self._wake.set()

    def _on_bookie_lost(self, bookie: BookieId, why: str) -> None:
        """Handle the loss of a bookie's connection. The connection calls this.

        Args:
            bookie: The bookie.
            why: The reason, in words.
        """
        if self._members.on_lost(bookie, why):
            self._wake.set()

    def _on_bookie_connected(self, bookie: BookieId) -> None:
        """Handle a new connection with a bookie: send again the adds that the bookie did not confirm.

        The connection calls it.

        Args:
            bookie: The bookie.
        """
        self._members.on_connected(bookie)
        self._tell_lac_again()

    def _marks(self) -> tuple[int, int]:
        pending = self._core.pending
        return pending.lac, pending.lafr

    def _act(self) -> None:
        """Act on the core's state. Connections call this after they have changed the state."""
        core = self._core
        pending = core.pending
        if core.failure is None:
            core.form_batches()
            if pending.has_sends:
                self._slots.send_due()
        elif core.is_over:
            self._end(core.failure)
            self._wake.set()  # The end may be waiting for a copy that just arrived.
            return
        confirmed, lac = self._confirmed, pending.lac
        if lac > confirmed.value and confirmed.failure is None:
            self._progress_at = now = trio.current_time()
            if lac >= self._timed_entry != NO_ENTRY:
                self._counts.append_s.observe(now - self._timed_at)
                self._timed_entry = NO_ENTRY
            if self._members.is_stalled:
                self._members.on_progress()
            confirmed.advance(lac)
            if lac > self._encoder.told_lac:
                self._publish_due = True
                self._nap_until_idle(now)
            if self._progress_callback is not None:
                self._progress_callback()
        if core.failure is not None:
            self._wake.set()  # A closing write is wanted.
        if self._closers and core.is_drained:
            self._drained.unpark_all()
        if self._room and self.has_room:
            self._room.unpark_all()

    def _tell_progress(self) -> None:
        if self._progress_callback is not None:
            self._progress_callback()

    # --- the two tasks ------------------------------------------------------------------------

    async def _run(self) -> None:
        """Maintain the ledger until the writer is over. The client runs this in its nursery."""
        self._directory.on_change(self._on_bookies_changed)
        try:
            self._follow()
            self._act()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_metadata)
                await self._maintain()
                nursery.cancel_scope.cancel()
            await self._file_for_repair()
        finally:
            # Until a closing write has been settled, the fate of the pending adds is unknown.
            failure = self._core.failure if self._core.is_over else None
            self._end(
                failure or AppendUnknown(f"ledger {self.ledger_id}: its client was closed before it answered")
            )
            self._slots.close()
            self._settled_repair.set()
            self._directory.remove_on_change(self._on_bookies_changed)

    def _follow(self) -> None:
        pending = self._core.pending
        self._slots.follow(pending.ensemble, pending.fragments[-1].first_entry)

    async def _file_for_repair(self) -> None:
        """If the ledger may have been closed below the write quorum, file it for repair (rule 24)."""
        end = self._core.written_end
        if end is None or not may_lack_copies(self.replication):
            return
        with trio.move_on_after(LATE_COPIES_S):
            while self._slots.expects_more(end):
                self._wake = trio.Event()
                await self._wake.wait()
        lacking = self._slots.lacking(end)
        if lacking:
            logger.info(
                "ledger=%d ended at %d; copies are missing on=%s", self.ledger_id, end, ",".join(lacking)
            )
        if unfiled := [bookie for bookie in lacking if bookie not in (self._filed or ())]:
            await self._registry.file_for_repair(self.ledger_id, unfiled)

    async def _attempt(self, intent: core_writer.MetadataIntent) -> tuple[LedgerMetadata | None, int]:
        """Attempt a write. The closing write also files the bookies for repair that may never confirm the
        entries that they lack: if this process dies, nobody else knows of them (rule 24)."""
        end = intent.metadata.last_entry
        if end is None or not may_lack_copies(self.replication):
            return await self._registry.attempt(intent)
        lost = self._slots.given_up(end)
        if self._filed is None:
            self._filed = lost
        else:
            # The fate of an earlier attempt may be unknown, so only what each of them names is surely filed.
            self._filed = [bookie for bookie in self._filed if bookie in lost]
        return await self._registry.attempt(intent, files={"incomplete": lost} if lost else None)

    async def _write_metadata(self) -> None:
        core = self._core
        is_troubled = False
        while not self._over.is_set():
            intent = core.intent
            if intent is None:
                self._intent_wanted = trio.Event()
                await self._intent_wanted.wait()
                continue
            try:
                stored, version = await self._attempt(intent)
            except (MetadataError, SessionExpired) as cause:
                level = logging.DEBUG if is_troubled else logging.WARNING
                logger.log(level, "ledger=%d metadata write is tried again: %s", self.ledger_id, cause)
                is_troubled = True
                self._counts.metadata_retries += 1
                await trio.sleep(_METADATA_RETRY_S)
                continue
            except LedgerLogError as cause:
                # The stored metadata are damaged, so the end of the ledger is unknown.
                self._end(AppendUnknown(f"ledger {self.ledger_id}: {cause}"))
                return
            is_troubled = False
            if self._over.is_set():
                return  # The ledger ended while the write was on its way. Use no connection from now on.
            before = core.pending.ensemble
            core.on_metadata_read(stored, version)
            after = core.pending.ensemble
            if before != after:
                self._counts.ensemble_changes += 1
                tell(
                    logger,
                    ENSEMBLE_CHANGED,
                    "ledger=%(ledger)d ensemble changed from %(before)s to %(after)s",
                    ledger=self.ledger_id,
                    before=before,
                    after=after,
                )
                self._follow()
                self._tell_lac_again()
            self._act()
            self._wake.set()  # Another bookie may have failed in the meantime.

    async def _maintain(self) -> None:
        core = self._core
        while not self._over.is_set():
            self._wake = trio.Event()
            if core.failure is None:
                self._introduce()
                self._publish_lac()
                self._look_at_deadline()
                if self._members.look(self._progress_at):
                    self._tell_lac_again()
            self._look_at_ending()
            if core.intent is not None:
                self._intent_wanted.set()
            elif core.is_over:
                self._act()
            self._is_resting = self._may_rest()
            self._look_at = trio.current_time() + self._next_look_s()
            with trio.move_on_at(self._look_at) as self._nap:
                if self._publish_due:
                    self._nap_until_idle(trio.current_time())
                await self._wake.wait()
            self._is_resting = False

    def _nap_until_idle(self, now: float) -> None:
        """Make the maintaining task check soon whether it must publish the LAC. If the LAC moves before that,
        a new call only delays the check. This costs less than a check."""
        self._nap.deadline = min(self._look_at, now + LAC_PUBLISH_IDLE_S)

    def _may_rest(self) -> bool:
        """Whether the writer has nothing to do at a certain time. It may then sleep until the next add, a
        lost bookie or a change of the registrations wakes it, so an idle writer costs nothing."""
        core = self._core
        return (
            core.failure is None
            and core.is_drained
            and core.intent is None
            and not self._publish_due
            and self._members.are_well
            and trio.current_time() - self._progress_at >= LOOK_S
        )

    def _on_bookies_changed(self) -> None:
        if self._is_resting:
            self._wake.set()

    def _next_look_s(self) -> float:
        core = self._core
        if self._is_resting:
            return _REST_S
        if core.failure is not None or core.lac == core.last_add_pushed:
            return LOOK_S
        if self._members.is_stalled:
            return REACH_LOOK_S
        return min(LOOK_S, max(REACH_LOOK_S / 10, self._progress_at + REACH_ASK_S - trio.current_time()))

    def _tell_lac_again(self) -> None:
        if self._core.lac != NO_ENTRY:
            self._publish_due = self._publish_anyway = True
            self._wake.set()

    def _introduce(self) -> None:
        """Introduce a ledger without entries to its bookies: send each a frame without entries.

        A bookie asks the metadata store about a ledger that it has never seen. With this frame it asks now,
        and not at the first entry. A log creates its next ledger ahead of time, so that it can continue while
        the store is away.
        """
        if self._core.last_add_pushed != NO_ENTRY:
            return
        new = [sink for sink in self._slots.connected() if sink.bookie not in self._introduced]
        self._introduced.update(sink.bookie for sink in new)
        self._send_lac(new)

    def _publish_lac(self) -> None:
        core = self._core
        if not self._publish_due:
            return
        if core.lac <= self._encoder.told_lac and not self._publish_anyway:
            self._publish_due = False
        elif trio.current_time() - self._progress_at >= LAC_PUBLISH_IDLE_S / 2:
            self._publish_due = self._publish_anyway = False
            self._encoder.told_lac = core.lac
            self._send_lac(self._slots.connected())

    def _send_lac(self, sinks: Sequence[SlotSink]) -> None:
        """Send a frame without entries. ``core.on_add_ok`` ignores the answer to this frame."""
        core = self._core
        frame = encode_lac(self.ledger_id, lac=core.lac, lafr=core.lafr, key=self._key)
        for sink in sinks:
            sink.connection.send_add(frame, sink, core.lac + 1, core.lac)

    def _look_at_deadline(self) -> None:
        core = self._core
        if core.lac == core.last_add_pushed:
            return
        is_hopeless = core.lac == NO_ENTRY and self._slots.are_refused
        deadline_s = min(self._append_deadline_s, REFUSED_S) if is_hopeless else self._append_deadline_s
        if trio.current_time() - self._progress_at >= deadline_s:
            failed = self._members.failed()
            kind = BookiesUnauthenticated if is_hopeless else NotEnoughBookies
            core.give_up(
                kind(
                    f"ledger {self.ledger_id}: no ack quorum of {self.replication.ack_quorum} for entry "
                    f"{core.lac + 1} within {deadline_s:g} s"
                    + (f"; failed: {', '.join(failed)}" if failed else "")
                )
            )
            self._tell_progress()  # The closing write may take a long time.

    def _look_at_ending(self) -> None:
        """End with an unknown outcome if the store does not take the ledger's closing write in time."""
        failure = self._core.failure
        if failure is None:
            return
        if self._ending_since is None:
            self._ending_since = trio.current_time()
        elif trio.current_time() - self._ending_since >= METADATA_TIMEOUT_S:
            self._end(
                AppendUnknown(f"ledger {self.ledger_id} ended ({failure}) and its end could not be stored")
            )

    def _end(self, failure: LedgerLogError) -> None:
        """Fail everything that is not acknowledged, and wake all waiting tasks."""
        if self._over.is_set():
            return
        core = self._core
        if core.failure is None:
            core.abandon()
        self._outcome = failure
        if core.written_end is None:
            self._slots.close()  # If left open, late copies still count; see ``_file_for_repair``.
        self._members.on_progress()
        # Entries that were confirmed in the same burst as the end count as confirmed.
        self._confirmed.advance(core.lac)
        self._confirmed.fail(failure)
        self._over.set()
        self._wake.set()
        self._room.unpark_all()
        self._drained.unpark_all()
        self._tell_progress()

    def _check_alive(self) -> None:
        failure = self.failure
        if failure is not None:
            raise fresh(failure if self.denial is None else self.denial)
        if self._closers:
            raise LedgerClosed(self.ledger_id, None, "it is being closed by its writer")


def _check_payloads(payloads: Sequence[bytes]) -> None:
    """Refuse a payload that cannot be sent. If it were pending, it would block all later entries."""
    for payload in payloads:
        if not isinstance(payload, bytes):
            raise InvalidArgument(f"a ledger entry is bytes, not {type(payload).__name__}")
