"""The storage of one bookie behind one object: adds, fences, reads and statistics.

    add ----> verdict on the ledger's state -> record into the journal's arena -> position
              (``adding``)                     (one sync for all that gathered) -> durable_position
    fence --> fenced in memory -> FENCE record -> its sync -> answer                     (``fencing``)
    read ---> runs in memory, runs in the index -> arena or segment file -> entries      (``reader``)

``bookie.storage.engine.opening`` makes the engine from a directory and runs its tasks around the body that
uses it. Call its methods only in the trio thread that opened it. The modules in parentheses do the work. This
module applies the loss marks to each answer, and does the clean stop.

**Positions.** ``add`` returns the sequence of the journal block that holds its record. Blocks become durable
in order, so a position is durable once ``durable_position`` has reached it.

**One step.** ``add`` and the beginning of ``fence`` never wait. So no other task runs between the verdict and
the append to the journal. Both are one step on one object per ledger (rule 3).

**Failure.** If a sync or a write to the index fails, the engine ends. It refuses all later adds, and never
acknowledges an entry that was not synced.

**After a loss.** The loss marks (``bookie.core.loss_marks``) say which answers the bookie must not give
because it may have lost data. Every verdict on an add and every answer to a read checks them.

See ``bookie.storage.engine.config`` for how much memory and disk the engine uses.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from bookie.core.due_items import Waiter
from bookie.core.ledger import BookieLedger
from bookie.core.loss_marks import undenied
from bookie.core.reading import no_entries
from bookie.core.results import FenceResult, ListResult, ReadResult, ScrubResult, status_of
from bookie.storage.disk.loss_marks import LossMarkStore
from bookie.storage.engine.adding import Adder
from bookie.storage.engine.fencing import Fencer
from bookie.storage.engine.flushing import Flusher
from bookie.storage.engine.lac_watch import LacWatch
from bookie.storage.engine.ledgers import LedgerTable
from bookie.storage.engine.reader import Pace, Reader, at_once
from bookie.storage.engine.write_cache import WriteCache
from bookie.storage.index.patient import PatientIndex
from bookie.storage.journal.arenas import Arenas
from bookie.storage.journal.checkpoint import Checkpointer
from bookie.storage.journal.journal import Journal
from bookie.storage.upkeep.collector import Collector
from bookie.storage.upkeep.compaction import Compactor
from bookie.storage.upkeep.read_repair import ReadRepair
from bookie.storage.upkeep.reclaiming import Reclaimer
from bookie.storage.upkeep.replacing import Replacer
from bookie.storage.upkeep.scrub import Scrubber
from ledgerlog.counts import Histogram
from ledgerlog.errors import StorageError
from ledgerlog.limits import ENTRY_ID_MAX
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.wire.entries import Entries
from ledgerlog.wire.frame import Frame, Status
from ledgerlog.wire.ledgers import LedgerOnBookie
from ledgerlog.wire.scrub import ScrubReport

__all__ = ["Engine", "FenceResult", "ListResult", "ReadResult"]


class Engine:
    """All ledgers of one bookie. ``open_engine`` makes it; call its methods in the same trio thread."""

    def __init__(
        self,
        *,
        journal: Journal,
        ledgers: LedgerTable,
        reader: Reader,
        checkpointer: Checkpointer,
        compactor: Compactor,
        collector: Collector | None,
        scrubber: Scrubber,
        replacer: Replacer,
        index: PatientIndex,
        mender: ReadRepair,
        arenas: Arenas,
        marks: LossMarkStore,
        write_cache: WriteCache | None,
        frame_bytes_max: int,
    ) -> None:
        self.loss_marks = marks
        """The loss marks: the answers that the bookie must not give because it may have lost data."""
        self._journal = journal
        self._commit = journal.commit
        self._ledgers = ledgers
        self._reader = reader
        self._checkpointer = checkpointer
        self.compactor = compactor
        self.collector = collector
        """None if no deletion oracle says which ledgers are gone."""
        self.scrubber = scrubber
        """Finds damaged runs on the disk, and stores their entries again."""
        self.replacer = replacer
        """Replaces damaged runs."""
        self.index = index
        """The index. It reports when damage in it is found."""
        self.reclaimer = Reclaimer(compactor, collector)
        """Frees space on request."""
        self._arenas = arenas
        self._write_cache = write_cache
        """The destination of adds that skip the journal; None if all adds use the journal."""
        self._lac_watch = LacWatch()
        self._adder = Adder(
            journal=journal,
            ledgers=ledgers,
            mender=mender,
            marks=marks,
            write_cache=write_cache,
            lac_watch=self._lac_watch,
            frame_bytes_max=frame_bytes_max,
        )
        self._fencer = Fencer(journal, ledgers)
        self.flusher = Flusher(checkpointer, write_cache)
        self._reads = 0

    @property
    def is_read_only(self) -> bool:
        """Whether ordinary adds are refused. Recovery adds and fences are still accepted. The watch on the
        disk's free space sets this."""
        return self._adder.is_read_only

    @is_read_only.setter
    def is_read_only(self, value: bool) -> None:
        self._adder.is_read_only = value

    # --- adds -------------------------------------------------------------------------------------

    def add(self, frame: Frame, entries: Entries) -> int | Status:
        """Add the entries of an ADD frame.

        If a stored entry is damaged and the frame brings it again, the new copy replaces the stored one. An
        add without entries only brings the LAC and the LAFR. Such an add needs no sync and returns the
        current durable position; if the ledger is unknown here, the engine does not remember the ledger.

        Args:
            frame: The frame. The caller has verified its checksum. Its bytes are copied.
            entries: The entries of the frame. The caller has verified their digests.

        Returns:
            A journal position: the add is durable once ``durable_position`` has reached it. Or a ``Status``
            that refuses the add. Then none of its entries was stored, with one exception: if the frame brings
            entries that are stored already, a first part of its new entries may be stored before DISK_FULL
            or TOO_MANY_REQUESTS. It does no harm to send the frame again:

            - UNAUTHORIZED: the key is wrong.
            - FENCED: this is not a recovery add, and the ledger is fenced, or may have been fenced before a
              loss of data.
            - CONFLICT: an id is stored with another digest.
            - READ_ONLY: this is not a recovery add, and ``is_read_only`` is set.
            - DISK_FULL: the disk has no room for another file of entries.
            - TOO_MANY_REQUESTS: no memory is free; see ``wait_room``.
            - BAD_REQUEST: the frame is larger than ``frame_bytes_max``, or its sparse ids are too far apart.
            - CORRUPT or IO_ERROR: stored entries or the index had to be compared but cannot be read, and the
              frame does not bring all entries that would repair them.
            - IO_ERROR: the engine has failed.
            - NOT_READY: the engine is being closed.
        """
        return self._adder.add(frame, entries)

    @property
    def durable_position(self) -> int:
        """The position up to which all adds are durable. At least 1, and never decreases."""
        return self._commit.durable

    async def wait_durable(self, position: int) -> None:
        """Wait until ``durable_position`` has reached ``position``. For occasional use; servers use
        ``on_durable``."""
        await self._journal.wait_durable(position)

    def on_durable(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` each time after ``durable_position`` has moved. It must not raise."""
        self._journal.on_durable(callback)

    def remove_on_durable(self, callback: Callable[[], None]) -> None:
        """Undo ``on_durable``."""
        self._journal.remove_on_durable(callback)

    def hold(self) -> None:
        """Do not sync the following adds before ``release``. Do not wait between the two calls."""
        self._journal.hold()

    def release(self, *, at_once: bool) -> None:
        """Start the sync of the adds since ``hold``. Raises nothing.

        Args:
            at_once: Sync within this call and call the ``on_durable`` callbacks, if the adds are small and
                the disk is quick. This saves a pass of the event loop. The sync then misses the adds that
                other tasks bring in this pass, so use it only if no other connection is busy.
        """
        self._journal.release(at_once=at_once)

    def more_follows(self) -> None:
        """Announce that the caller will add more in the next pass of the event loop, because one sync for all
        of them is cheaper. Other callers do not wait for these adds: any ``release`` syncs all adds."""
        self._journal.more_follows()

    @property
    def pending_bytes(self) -> int:
        """How many bytes were received but are not durable yet."""
        return self._commit.pending_bytes

    @property
    def has_room(self) -> bool:
        """Whether there is room for another add now, of any size."""
        return self._journal.has_room and (self._write_cache is None or self._write_cache.has_room)

    def has_room_for(self, size: int) -> bool:
        """Whether there is room for an add of ``size`` bytes now. If not, call ``wait_room``."""
        return self._journal.has_room_for(size) and (self._write_cache is None or self._write_cache.has_room)

    async def wait_room(self) -> bool:
        """Wait until there is room for another add of any size: fewer than ``limits.BOOKIE_INFLIGHT_BYTES``
        are pending, and the journal and the write cache have memory. Returns False if the disk is full or the
        engine has stopped; then adds are refused."""
        while not self.has_room and not self._adder.is_disk_full and self._journal.stopped is None:
            await self._journal.room.park()
        return self.has_room

    async def fence(self, ledger_id: int, key: bytes) -> FenceResult:
        """Refuse ordinary adds of the ledger from now on, durably once this returns OK.

        Args:
            ledger_id: The ledger. It may be unknown here.
            key: The ledger's key.

        Returns:
            The LAC and the LAFR, and a status. OK: the ledger is fenced durably. UNAUTHORIZED: the key is
            wrong, and nothing changed. DISK_FULL: the journal had no room for the fence. The ledger is as
            before, unless the fence has already refused an add. CORRUPT or IO_ERROR: the index cannot be
            read, or the engine has failed. NOT_READY: the engine is being closed.

        Cancelling: the fence may or may not have happened.
        """
        return await self._fencer.fence(ledger_id, key)

    # --- reads ------------------------------------------------------------------------------------

    async def read(
        self,
        ledger_id: int,
        *,
        first: int,
        last: int,
        stride: int,
        bytes_max: int,
        pace: Pace = at_once,
    ) -> ReadResult:
        """Read the entries first, first + stride, ... up to ``last``.

        An entry that is not durable yet does not exist yet.

        Args:
            ledger_id: The ledger.
            first: The first entry, at least 0.
            last: The last entry.
            stride: The distance between two entries, at least 1.
            bytes_max: About how many payload bytes to return. One entry always fits.
            pace: Waits until a piece of work may be done, before each piece.

        Returns:
            The entries and a status. Damage and faults of the disk are statuses too, and raise nothing.
        """
        try:
            state = self._living(ledger_id)
        except StorageError as error:
            return ReadResult(status_of(error), no_entries(ledger_id), first - 1, NO_ENTRY, NO_ENTRY)
        self._reads += 1
        # Ask before the read. If limbo ends during the read, the read may have missed entries that repair has
        # just stored, so it must still count as a read in limbo.
        in_limbo = self.loss_marks.now.denies_nothing(ledger_id)
        if state is None:
            await trio.lowlevel.checkpoint()
            nothing = no_entries(ledger_id)
            found = ReadResult(Status.NO_SUCH_LEDGER, nothing, last, NO_ENTRY, NO_ENTRY)
        else:
            with state.pinned():
                found = await self._reader.read(
                    state, first=first, last=last, stride=stride, bytes_max=bytes_max, pace=pace
                )
        return undenied(found, first) if in_limbo else found

    async def recovery_read(
        self,
        ledger_id: int,
        key: bytes,
        *,
        first: int,
        last: int,
        stride: int,
        bytes_max: int,
        pace: Pace = at_once,
    ) -> ReadResult:
        """Fence the ledger durably, then ``read``.

        If the result denies an entry, the bookie had not accepted that entry before the fence, and only a
        recovery add can store it later (R-B1). If the fence fails, the result has the status of ``fence``."""
        fenced = await self.fence(ledger_id, key)
        if fenced.status is not Status.OK:
            return ReadResult(fenced.status, no_entries(ledger_id), first - 1, NO_ENTRY, NO_ENTRY)
        return await self.read(
            ledger_id, first=first, last=last, stride=stride, bytes_max=bytes_max, pace=pace
        )

    async def list_entries(
        self,
        ledger_id: int,
        *,
        first: int,
        last: int = ENTRY_ID_MAX,
        pairs_max: int,
        pace: Pace = at_once,
    ) -> ListResult:
        """List the stored entries among first..last of the ledger, as up to ``pairs_max`` ranges.

        One call takes only a fraction of a second, no matter how long the ledger is. ``through`` says how far
        the list reaches; ask again from ``through + 1`` on for the rest. If the status is OK and there is no
        range at all, the list is complete through ``last``."""
        try:
            state = self._living(ledger_id)
        except StorageError as error:
            return ListResult(status_of(error), [], first - 1)
        in_limbo = self.loss_marks.now.denies_nothing(ledger_id)
        if state is None:
            await trio.lowlevel.checkpoint()
            found = ListResult(Status.NO_SUCH_LEDGER, [], last)
        else:
            with state.pinned():
                found = await self._reader.list_entries(
                    state, first=first, last=last, pairs_max=pairs_max, pace=pace
                )
        return undenied(found, first) if in_limbo else found

    async def scrub(
        self, ledger_id: int, *, first: int, last: int, classes: int, bytes_max: int, pace: Pace = at_once
    ) -> ScrubResult:
        """Read and check about ``bytes_max`` bytes of the entries first..last, on the disk or in memory.
        ``ledgerlog.wire.scrub`` describes the report."""
        nothing = ScrubReport((), (), ())
        try:
            state = self._living(ledger_id)
        except StorageError as error:
            return ScrubResult(status_of(error), nothing, first - 1)
        in_limbo = self.loss_marks.now.denies_nothing(ledger_id)
        if state is None:
            await trio.lowlevel.checkpoint()
            found = ScrubResult(Status.NO_SUCH_LEDGER, nothing, last)
        else:
            with state.pinned():
                found = await self._reader.scrub(
                    state, first=first, last=last, classes=classes, bytes_max=bytes_max, pace=pace
                )
        return undenied(found, first) if in_limbo else found

    async def list_ledgers(self, first: int, maximum: int) -> tuple[list[LedgerOnBookie], int]:
        """List the ledgers with stored entries, from ledger ``first`` on, in order.

        Args:
            first: The first ledger.
            maximum: The most ledgers to return.

        Returns:
            The ledgers, and the ledger id up to which the list is complete.

        Raises:
            StorageError: The index cannot be read.
        """
        return await self._ledgers.held_from(first, maximum)

    def knows(self, ledger_id: int) -> bool:
        """Return whether the bookie knows the ledger: its key is in the journal. Until then, a fence under
        way may still be undone. The bookie still knows a deleted ledger.

        Raises:
            StorageError: The index cannot be read.
        """
        state = self._ledgers.get(ledger_id)
        return state is not None and state.key_sequence is not None

    def lac(self, ledger_id: int) -> tuple[int, int]:
        """Return the greatest LAC and LAFR that this bookie was told; -1 if it was told none.

        Raises:
            StorageError: The index cannot be read.
        """
        state = self._living(ledger_id)
        return (NO_ENTRY, NO_ENTRY) if state is None else (state.lac, state.lafr)

    def last_durable(self, ledger_id: int) -> int:
        """Return the highest entry that is durable here; -1 if there is none. After a crash this may be an
        entry that was in flight and was lost.

        Raises:
            StorageError: The index cannot be read.
        """
        state = self._living(ledger_id)
        return NO_ENTRY if state is None else state.last_durable(self._commit.durable)

    def await_lac(self, ledger_id: int, entry_id: int, waiter: Waiter) -> bool:
        """Wake ``waiter``, once, when the LAC that this bookie was told has reached ``entry_id``.

        Returns:
            False if the LAC has reached ``entry_id`` already. Then ``waiter`` is not woken.

        Raises:
            StorageError: The index cannot be read.
        """
        if self.lac(ledger_id)[0] >= entry_id:
            return False
        self._lac_watch.add(ledger_id, entry_id, waiter)
        return True

    def forget_lac(self, ledger_id: int, waiter: Waiter) -> None:
        """Forget ``waiter``. If it was woken already, do nothing."""
        self._lac_watch.remove(ledger_id, waiter)

    def _living(self, ledger_id: int) -> BookieLedger | None:
        """Return the state of a ledger; None if it is unknown or deleted. Raises StorageError if the index
        cannot be read."""
        state = self._ledgers.get(ledger_id)
        return None if state is None or state.is_deleted else state

    # --- the whole --------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until everything added so far is durable and in the index.

        Raises:
            DiskFull: The disk has no room. Some entries are still only in memory.

        Cancelling: only the wait ends; a task of the engine does the work.
        """
        await self.flusher.flush()

    @property
    def files_changed(self) -> trio.Event:
        """Return an event that is set when the bookie next begins, fills or rewrites a file of entries."""
        return self._journal.files_changed

    def statistics(self) -> dict[str, int]:
        """Return counts since the start, and current sizes."""
        journal, space = self._journal, self.compactor.space
        return {
            "entries": self._adder.entries,
            "bytes": self._adder.bytes,
            "frames": self._adder.frames,
            "syncs": journal.syncs,
            "sync_us": round(journal.sync_s.sum_s * 1_000_000),
            "journal_bytes_written": journal.bytes_written,
            "fences": self._fencer.fences,
            "reads": self._reads,
            "runs_read_from_memory": self._reader.runs_from_memory,
            "runs_read_from_disk": self._reader.runs_from_disk,
            "runs_read_from_cache": self._reader.cache.hits,
            "checkpoints": self._checkpointer.checkpoints,
            "segments_flushed": self._checkpointer.flushes,
            "log_bytes_written": self._checkpointer.rewriter.bytes_written,
            "compactions": self.compactor.jobs,
            "ledgers_deleted": self.collector.deleted if self.collector else 0,
            "scrub_passes": self.scrubber.passes,
            "scrubbed_bytes": self.scrubber.bytes_checked,
            "rotten_runs": len(self.scrubber.rotten),
            "runs_restored": self.replacer.replaced,
            "ledgers_in_memory": len(self._ledgers.loaded),
            "runs_in_memory": sum(len(segment.runs) for segment in journal.residents.values()),
            "cache_bytes": self._arenas.bytes_held,
            "read_cache_bytes": self._reader.cache.bytes_held,
            "pending_bytes": self.pending_bytes,
            "segment": journal.active.number,
            "is_disk_full": int(self._adder.is_disk_full),
            "unflushed_bytes": self._write_cache.unflushed_bytes if self._write_cache else 0,
            "caches_flushed": self._write_cache.flushes if self._write_cache else 0,
            "segments_in_memory": len(journal.residents),
            "segments_unindexed": len(journal.sealed),
            "collections": self.collector.passes if self.collector else 0,
            "compaction_bytes_freed": self.compactor.bytes_freed,
            "files_damaged": len(self.compactor.damaged),
            "segments": space.segments,
            "segment_bytes": space.segment_bytes,
            "entry_logs": space.entry_logs,
            "entry_log_bytes": space.entry_log_bytes,
            "live_bytes": space.live_bytes,
        }

    @property
    def sync_s(self) -> Histogram:
        """How long the syncs of the journal took."""
        return self._journal.sync_s

    # --- for its own tasks ------------------------------------------------------------------------

    def stop(self, status: Status) -> None:
        """Refuse all adds and fences from now on, with this status."""
        self._journal.stop(status)

    async def close(self) -> None:
        """Stop cleanly: make everything durable and indexed, and only then clear the unclean bit."""
        self.stop(Status.NOT_READY)
        if self.collector is not None:
            await self.collector.stop()
        if self._write_cache is not None:
            await self._write_cache.flush()
        await self._checkpointer.close()
        await self.loss_marks.change(lambda now: now.serving(acknowledges_unsynced=False))
