"""A ledger's writer as a caller holds it: the shell around ``core.writer``.

Appending is enqueue, send, wait for the watermark: callers perform no effect of the protocol, so
cancelling one abandons its wait and nothing else. Frames go out straight from whoever made them
possible (an appending task, or the receiver task whose acknowledgement freed the way). Everything
that waits on other machines is done by one task of the writer, which lives in the client's nursery:

* it carries out the core's metadata intent, again and again until the core has no intent;
* it finds replacements for failed bookies;
* it publishes the LAC when the writer falls idle (rule 16), so that readers see the last entry;
* it gives up when no progress was made for ``append_deadline_s``.

There is no timer per entry; this task looks at the clock a few times a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from ledgerlog.client.bookies import BookieDirectory
from ledgerlog.client.encoding import AddEncoder
from ledgerlog.client.metadata import LedgerRegistry
from ledgerlog.client.slots import SlotSinks
from ledgerlog.client.watermark import Watermark, fresh
from ledgerlog.core import writer as core_writer
from ledgerlog.core.pending import Send
from ledgerlog.errors import (
    AppendUnknown,
    LedgerLogError,
    MetadataUnavailable,
    NotEnoughBookies,
    RecordTooLarge,
    WriteQuorumUnavailable,
)
from ledgerlog.limits import (
    APPEND_DEADLINE_S,
    ENTRY_BYTES_MAX,
    LAC_PUBLISH_IDLE_S,
    METADATA_TIMEOUT_S,
    WRITER_WINDOW_BYTES,
    WRITER_WINDOW_ENTRIES,
)
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.net.pool import ConnectionPool
from ledgerlog.net.transport import Buffer
from ledgerlog.wire.entries import encode_lac
from ledgerlog.wire.frame import Status

_LOOK_S = 0.5
"""How often the maintaining task looks at deadlines, and tries failed bookies again."""

_METADATA_RETRY_S = 0.2

logger = logging.getLogger(__name__)


class LedgerWriter:
    """The single writer of one ledger. Made by ``Ledgers.create``; usable as an async context manager,
    which closes the ledger on a normal exit and gives it up (leaves it OPEN) on an error.

    Payloads are bytes of at most ``limits.ENTRY_BYTES_MAX``; they belong to the writer until settled."""

    def __init__(
        self,
        core: core_writer.LedgerWriter,
        *,
        registry: LedgerRegistry,
        directory: BookieDirectory,
        pool: ConnectionPool,
        append_deadline_s: float = APPEND_DEADLINE_S,
        window_bytes: int = WRITER_WINDOW_BYTES,
        window_entries: int = WRITER_WINDOW_ENTRIES,
    ) -> None:
        self._core = core
        self._registry = registry
        self._directory = directory
        self._append_deadline_s = append_deadline_s
        self._window_bytes = window_bytes
        self._window_entries = window_entries
        metadata = core.metadata
        self._encoder = AddEncoder(metadata.ledger_id, metadata.replication, metadata.key, recovery=False)
        self._key = metadata.key
        self._slots = SlotSinks(self, pool)
        self._confirmed = Watermark(NO_ENTRY)
        self._room = trio.lowlevel.ParkingLot()
        self._drained = trio.lowlevel.ParkingLot()
        self._over = trio.Event()
        self._wake = trio.Event()
        self._progress_callback: Callable[[], None] | None = None
        self._progress_at = 0.0  # when the LAC last moved, or when something became pending
        self._published_lac = NO_ENTRY
        self._publish_due = False
        self._outcome: LedgerLogError | None = None
        self._refusals: dict[BookieId, str] = {}
        self._closing_since: float | None = None

    # --- what callers read --------------------------------------------------------------------

    @property
    def ledger_id(self) -> int:
        return self._core.ledger_id

    @property
    def replication(self) -> Replication:
        return self._core.replication

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last stored or read it."""
        return self._core.metadata

    @property
    def last_add_pushed(self) -> int:
        """The last entry appended (-1: none), acknowledged or not."""
        return self._core.last_add_pushed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry acknowledged (-1: none); it and all before it are synced on an ack quorum."""
        return self._core.lac

    @property
    def last_add_fully_replicated(self) -> int:
        """In guaranteed mode the last entry that, with all before it, is on its full write quorum; in the
        plain mode, where nobody counts that, -1."""
        return self._core.lafr

    @property
    def failure(self) -> LedgerLogError | None:
        """Why nothing more can be appended, None while the ledger lives."""
        return self._core.failure if self._outcome is None else self._outcome

    @property
    def frames_outstanding(self) -> int:
        """Batches sent, or ready to be sent, and not acknowledged."""
        return self._core.pending.unconfirmed_batches()

    @property
    def has_room(self) -> bool:
        """Whether the window has room for another entry."""
        core = self._core
        return core.unsettled_bytes < self._window_bytes and core.unsettled_entries < self._window_entries

    def set_progress_callback(self, callback: Callable[[], None] | None) -> None:
        """Call ``callback``, synchronously and once per batch, after the LAC moved or ``failure`` was set."""
        self._progress_callback = callback

    # --- appending ----------------------------------------------------------------------------

    def push(self, payloads: Sequence[bytes]) -> int:
        """Make these the next entries, without waiting; the id of the first.

        Does not look at the window: callers that push without ``has_room`` bound themselves. Raises
        RecordTooLarge (nothing is pushed) and what ``failure`` says."""
        core = self._core
        if core.failure is not None:
            raise fresh(self.failure or core.failure)
        if max(map(len, payloads)) > ENTRY_BYTES_MAX:
            raise RecordTooLarge(max(map(len, payloads)), ENTRY_BYTES_MAX, "ledger entry")
        if core.last_add_pushed == core.lac:
            self._progress_at = trio.current_time()
        first = core.append(payloads)
        if core.form_batches():
            self._slots.send_due()
        return first

    async def wait_room(self) -> None:
        """Return once the window has room. Raises what ``failure`` says. Always a checkpoint."""
        await trio.lowlevel.checkpoint()
        while not self.has_room:
            self._check_alive()
            await self._room.park()
        self._check_alive()

    async def wait_confirmed(self, entry_id: int) -> None:
        """Return once the entry is acknowledged. Cancelling abandons the wait only.

        LedgerFenced: somebody took the ledger over; the entry may or may not survive. NotEnoughBookies,
        LedgerClosed: the ledger was closed without the entry. AppendUnknown: it could not be found out."""
        await self._confirmed.wait(entry_id)

    async def append(self, payload: bytes) -> int:
        """Append one entry; its id, once it is synced on an ack quorum and so are all before it.

        Errors as for ``wait_confirmed``, and RecordTooLarge. Cancelled before it was sent, the entry was not
        written; afterwards its outcome is unknown. The writer stays usable and in order either way."""
        if not self.has_room:
            await self.wait_room()
        entry_id = self.push([payload])
        await self._confirmed.wait(entry_id)
        return entry_id

    async def append_many(self, payloads: Sequence[bytes]) -> range:
        """Append entries, pipelined through the window; their ids, once all are acknowledged.

        Errors as for ``append``; some of the entries may then be in the ledger, always a prefix."""
        step = max(1, self._window_entries // 8)
        first = self.last_add_pushed + 1
        entry_id = NO_ENTRY
        begin = 0
        while begin < len(payloads):
            if not self.has_room:
                await self.wait_room()
            pushed = self.push(payloads[begin : begin + step])
            if begin == 0:
                first = pushed
            entry_id = pushed + min(step, len(payloads) - begin) - 1
            begin += step
        if begin:
            await self._confirmed.wait(entry_id)
        return range(first, first + len(payloads))

    async def flush(self) -> None:
        """Return once everything appended so far is acknowledged."""
        await self._confirmed.wait(self.last_add_pushed)

    # --- ending -------------------------------------------------------------------------------

    async def close(self, *, timeout_s: float | None = None) -> int:
        """Wait until what was appended is acknowledged (in guaranteed mode: fully replicated), then close
        the ledger there; its last entry (-1: it is empty).

        After ``timeout_s`` (default: the append deadline) of waiting, the plain mode closes at the LAC and
        what is above it fails with LedgerClosed; the guaranteed mode raises WriteQuorumUnavailable and
        leaves the ledger OPEN and this writer usable. LedgerFenced, LedgerClosed: somebody else ended it.
        MetadataUnavailable: the store did not answer; the ledger may or may not be closed. Cancelling
        leaves it OPEN or closed, for the next opener to find out. Idempotent."""
        with trio.move_on_after(self._append_deadline_s if timeout_s is None else timeout_s):
            while not self._core.is_drained and self._core.failure is None:
                await self._drained.park()
        if not self._core.is_over and self._core.failure is None:
            self._core.close()  # May raise WriteQuorumUnavailable.
            self._wake.set()
        with trio.move_on_after(2 * METADATA_TIMEOUT_S):
            await self._over.wait()
        if self._core.is_closed:
            assert self._core.close_at is not None
            return self._core.close_at
        if not self._core.is_over:
            raise MetadataUnavailable(f"ledger {self.ledger_id}: the store did not take its end in time")
        assert self.failure is not None
        raise fresh(self.failure)

    async def aclose(self) -> None:
        """Give the ledger up without closing it: it stays OPEN until somebody recovers it. What is not
        acknowledged fails with AppendUnknown."""
        if not self._core.is_over:
            self._core.abandon()
            self._end(AppendUnknown(f"ledger {self.ledger_id} was given up by its writer before it answered"))
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *args: object) -> None:
        if exc_type is None and (self._core.failure is None or not self._core.is_over):
            try:
                await self.close()
            except WriteQuorumUnavailable:
                self._core.abandon()
                self._end(AppendUnknown(f"ledger {self.ledger_id} was left open by its writer"))
                raise
        else:
            await self.aclose()

    # --- SlotOwner: what connections tell -------------------------------------------------------

    def on_add_ok(self, bookie: BookieId, first: int, last: int) -> None:
        if first <= last:  # A frame that only told the LAC confirms no entry.
            self._core.on_add_ok(bookie, first, last)

    def on_add_refused(self, bookie: BookieId, status: Status) -> None:
        if status is Status.FENCED:
            self._core.on_fenced(bookie)
            return
        self._refusals[bookie] = status.name
        self._failed(bookie, f"it refuses adds: {status.name}")

    def on_bookie_lost(self, bookie: BookieId, why: str) -> None:
        self._refusals.pop(bookie, None)
        self._failed(bookie, why)

    def on_bookie_connected(self, bookie: BookieId) -> None:
        self._refusals.pop(bookie, None)
        self._core.on_bookie_connected(bookie)

    def _failed(self, bookie: BookieId, why: str) -> None:
        if self._core.on_bookie_failed(bookie):
            logger.warning("ledger=%d bookie=%s failed: %s", self.ledger_id, bookie, why)
            self._directory.quarantine(bookie)
            self._wake.set()

    def take_sends(self, bookie: BookieId) -> list[Send]:
        return self._core.take_sends(bookie)

    def encode(self, send: Send, slot: int) -> Sequence[Buffer]:
        core = self._core
        self._published_lac = max(self._published_lac, core.lac)
        return self._encoder.encode(send, slot, lac=core.lac, lafr=core.lafr)

    def act(self) -> None:
        core = self._core
        if core.failure is None:
            core.form_batches()
            self._slots.send_due()
        if core.is_over:
            self._end(core.failure or AppendUnknown(f"ledger {self.ledger_id} is over"))
            return
        if core.lac > self._confirmed.value and self._confirmed.failure is None:
            self._progress_at = trio.current_time()
            self._confirmed.advance(core.lac)
            if not self._publish_due and core.lac > self._published_lac:
                self._publish_due = True
                self._wake.set()
            self._tell_progress()
        if core.failure is not None:
            self._wake.set()  # A closing write is wanted.
        if core.is_drained or core.failure is not None:
            self._drained.unpark_all()
        if self._room and self.has_room:
            self._room.unpark_all()

    def _tell_progress(self) -> None:
        if self._progress_callback is not None:
            self._progress_callback()

    # --- the maintaining task -----------------------------------------------------------------

    async def run(self) -> None:
        """Maintain the ledger until it is over. Run by the client, in its nursery."""
        self._slots.follow(self._core.pending.ensemble)
        self.act()
        try:
            while not self._over.is_set():
                self._wake = trio.Event()
                if not await self._step():
                    with trio.move_on_after(LAC_PUBLISH_IDLE_S if self._publish_due else _LOOK_S):
                        await self._wake.wait()
        finally:
            self._end(
                self._core.failure
                or AppendUnknown(f"ledger {self.ledger_id}: its client was closed before it answered")
            )

    async def _step(self) -> bool:
        """Do one thing that waits for nobody but the metadata store. Whether anything was done."""
        core = self._core
        if core.intent is not None:
            await self._attempt()
            return True
        if core.failure is None:
            self._publish_lac()
            self._look_at_deadline()
            return self._replace()
        return False

    async def _attempt(self) -> None:
        intent = self._core.intent
        assert intent is not None
        try:
            stored, version = await self._registry.attempt(intent)
        except MetadataUnavailable as cause:
            logger.warning("ledger=%d metadata write is tried again: %s", self.ledger_id, cause)
            self._look_at_deadline()
            self._look_at_closing()
            await trio.sleep(_METADATA_RETRY_S)
            return
        before = self._core.pending.ensemble
        self._core.on_metadata_read(stored, version)
        after = self._core.pending.ensemble
        if before != after:
            logger.info("ledger=%d ensemble changed from %s to %s", self.ledger_id, before, after)
            self._slots.follow(after)
        self.act()

    def _replace(self) -> bool:
        core = self._core
        failed = core.replaceable()
        if not failed:
            self._retry_refused()
            return False
        ensemble = core.pending.ensemble
        staying = [bookie for i, bookie in enumerate(ensemble) if i not in failed]
        leaving = [ensemble[i] for i in failed]
        for count in range(len(failed), 0, -1):
            try:
                chosen = self._directory.choose(count, beside=staying, exclude=leaving)
            except NotEnoughBookies:
                continue
            core.change_ensemble(dict(zip(failed, chosen, strict=False)))
            return True
        self._retry_refused()
        return False

    def _retry_refused(self) -> None:
        """Without a replacement, a bookie that refused an add (it was full, or overloaded) is tried again
        on the connection that still stands; one that was lost is tried by its connection."""
        for sink in self._slots.sinks:
            if sink.bookie in self._refusals and sink.connection.is_connected:
                del self._refusals[sink.bookie]
                self._core.on_bookie_connected(sink.bookie)
                sink.send_due()

    def _publish_lac(self) -> None:
        core = self._core
        if not self._publish_due:
            return
        if core.lac <= self._published_lac:
            self._publish_due = False
        elif trio.current_time() - self._progress_at >= LAC_PUBLISH_IDLE_S / 2:
            self._publish_due = False
            self._published_lac = core.lac
            frame = encode_lac(self.ledger_id, lac=core.lac, lafr=core.lafr, key=self._key)
            for sink in self._slots.sinks:
                if sink.connection.is_connected:
                    sink.connection.send_add(frame, sink, core.lac + 1, core.lac)

    def _look_at_deadline(self) -> None:
        core = self._core
        if core.lac == core.last_add_pushed or core.failure is not None:
            return
        waited = trio.current_time() - self._progress_at
        if waited >= self._append_deadline_s:
            failed = [slot.bookie for slot in core.pending.slots if slot.failed]
            core.give_up(
                NotEnoughBookies(
                    f"ledger {self.ledger_id}: no ack quorum of {self.replication.ack_quorum} for entry "
                    f"{core.lac + 1} within {self._append_deadline_s:g} s"
                    + (f"; failed: {', '.join(failed)}" if failed else "")
                )
            )

    def _look_at_closing(self) -> None:
        """The ledger is to be closed and the store does not take it: whoever waits is told in time that
        the outcome is unknown."""
        if self._core.failure is None:
            return
        if self._closing_since is None:
            self._closing_since = trio.current_time()
        elif trio.current_time() - self._closing_since > METADATA_TIMEOUT_S:
            self._end(
                AppendUnknown(
                    f"ledger {self.ledger_id} ended ({self._core.failure}) and its end could not be stored"
                )
            )

    def _end(self, failure: LedgerLogError) -> None:
        """Nothing more will be acknowledged: everybody who waits is told."""
        if self._over.is_set():
            return
        if self._core.failure is None:
            self._core.abandon()
        self._outcome = failure
        self._slots.close()
        self._confirmed.fail(failure)
        self._over.set()
        self._wake.set()
        self._room.unpark_all()
        self._drained.unpark_all()
        self._tell_progress()

    def _check_alive(self) -> None:
        failure = self.failure
        if failure is not None:
            raise fresh(failure)
