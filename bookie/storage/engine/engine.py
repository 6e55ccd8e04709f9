"""The storage of one bookie behind one object: adds, fences, reads, and how it stands.

    add ----> verdict on the ledger's state -> record into the journal's arena -> position
              (``adding``)                     (one sync for all that gathered) -> durable_position
    fence --> fenced in memory -> FENCE record -> its sync -> answer                     (``fencing``)
    read ---> runs in memory, runs in the index -> arena or segment file -> entries      (``reader``)

``bookie.storage.engine.opening`` makes it from a directory, and runs its tasks around the body that uses it;
here are its verbs, which are for the trio thread that opened it. What each of them does is in the module that
is named beside it; what this one adds is what the marks say about an answer, and the clean stop.

**Positions.** ``add`` returns the sequence of the journal block that its record went into. Blocks become
durable in order, so a position is durable once ``durable_position`` has reached it.

**One step.** ``add`` and the beginning of ``fence`` never wait, so the verdict and the place in the journal
are one step on one object per ledger (rule 3).

**Failure.** A sync or index write that fails ends the engine: adds made meanwhile are refused, and nothing
that was not synced is ever acknowledged.

**After a loss.** What the bookie may not say because it may have lost data is in its marks
(``bookie.core.loss_marks``): they are asked in each verdict and in each answer to a read.

Memory and disk use are stated in ``bookie.storage.engine.config``.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from bookie.core.ledger import LedgerState
from bookie.core.reading import no_entries
from bookie.core.results import FenceResult, ListResult, ReadResult, ScrubResult, status_of
from bookie.storage.disk.loss_marks import KeptMarks
from bookie.storage.engine.adding import Adder
from bookie.storage.engine.fencing import Fencer
from bookie.storage.engine.flushing import Flusher
from bookie.storage.engine.lac_watch import LacWatch
from bookie.storage.engine.ledgers import Ledgers
from bookie.storage.engine.reader import Reader
from bookie.storage.engine.write_cache import WriteCache
from bookie.storage.journal.arenas import Arenas
from bookie.storage.journal.checkpoint import Checkpointer
from bookie.storage.journal.journal import Journal
from bookie.storage.upkeep.collector import Collector
from bookie.storage.upkeep.compaction import Compactor
from bookie.storage.upkeep.read_repair import Mender
from bookie.storage.upkeep.reclaiming import Reclaimer
from bookie.storage.upkeep.replacing import Replacer
from bookie.storage.upkeep.scrub import Scrubber
from ledgerlog.errors import StorageError
from ledgerlog.limits import ENTRY_ID_MAX
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.wire.entries import Entries
from ledgerlog.wire.frame import Frame, Status
from ledgerlog.wire.scrub import ScrubReport

__all__ = ["Engine", "FenceResult", "ListResult", "ReadResult"]


class Engine:
    """All ledgers of one bookie. Made by ``open_engine``; methods are for the trio thread that opened it."""

    def __init__(
        self,
        *,
        journal: Journal,
        ledgers: Ledgers,
        reader: Reader,
        checkpointer: Checkpointer,
        compactor: Compactor,
        collector: Collector | None,
        scrubber: Scrubber,
        replacer: Replacer,
        mender: Mender,
        arenas: Arenas,
        marks: KeptMarks,
        write_cache: WriteCache | None,
        frame_bytes_max: int,
    ) -> None:
        self.marks = marks
        """What may not be said because data may have been lost."""
        self._journal = journal
        self._commit = journal.commit
        self._ledgers = ledgers
        self._reader = reader
        self._checkpointer = checkpointer
        self.compactor = compactor
        self.collector = collector
        """None where nobody can say which ledgers are gone."""
        self.scrubber = scrubber
        """Finds what is rotten on the disk, and stores it again."""
        self.replacer = replacer
        """Puts others in the place of rotten runs."""
        self.reclaimer = Reclaimer(compactor, collector)
        """Frees space when it is asked to."""
        self._arenas = arenas
        self._write_cache = write_cache
        """Where adds go that skip the journal; None where none does."""
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
        """Whoever watches the disk sets it: ordinary adds are refused then, recovery adds and fences are
        not."""
        return self._adder.is_read_only

    @is_read_only.setter
    def is_read_only(self, value: bool) -> None:
        self._adder.is_read_only = value

    # --- adds -------------------------------------------------------------------------------------

    def add(self, frame: Frame, entries: Entries) -> int | Status:
        """Take an ADD frame, whose checksum and digests the caller has verified.

        Returns a journal position: the add is durable once ``durable_position`` has reached it. Or a
        ``Status`` that refuses it, and then nothing of it is stored: UNAUTHORIZED (wrong key), FENCED (the
        ledger is fenced and this is not a recovery add), CONFLICT (an id is stored with another digest),
        READ_ONLY, DISK_FULL, TOO_MANY_REQUESTS (no memory is free: see ``wait_room``), BAD_REQUEST (larger
        than ``frame_bytes_max``, or sparse ids too far apart), CORRUPT or IO_ERROR (stored entries or the
        index, which it had to be compared with, cannot be read, and what it brings does not make them whole),
        IO_ERROR too once the engine has failed, NOT_READY once it is being closed. What it brings of stored
        entries that are damaged takes their place.

        The frame's bytes are copied. An add without entries tells LAC and LAFR, needs no sync and returns the
        current durable position; for a ledger that is unknown here nothing is remembered."""
        return self._adder.add(frame, entries)

    @property
    def durable_position(self) -> int:
        """All adds with a position up to this one are durable. At least 1, never decreasing."""
        return self._commit.durable

    async def wait_durable(self, position: int) -> None:
        """Returns once ``durable_position`` has reached ``position``. For the few; servers use
        ``on_durable``."""
        await self._journal.wait_durable(position)

    def on_durable(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever ``durable_position`` has moved. It must not raise."""
        self._journal.on_durable(callback)

    def remove_on_durable(self, callback: Callable[[], None]) -> None:
        """Undo ``on_durable``."""
        self._journal.remove_on_durable(callback)

    def hold(self) -> None:
        """Adds from here to ``release``, in one and the same step, are made durable by that."""
        self._journal.hold()

    def release(self, *, at_once: bool) -> None:
        """Have the adds since ``hold`` made durable. ``at_once``: within this call, ``on_durable`` callbacks
        included, where they are small and the disk is quick. It saves a pass of the event loop, and gives up
        the company of adds that other tasks would bring in this pass: for who is alone. Raises nothing."""
        self._journal.release(at_once=at_once)

    def more_follows(self) -> None:
        """The caller has more adds at hand and brings them in the next pass of the event loop: one sync for
        all of them is cheaper. Nobody else waits for them: ``release`` has everything made durable."""
        self._journal.more_follows()

    @property
    def pending_bytes(self) -> int:
        """Bytes received and not durable yet."""
        return self._commit.pending_bytes

    @property
    def has_room(self) -> bool:
        """Whether another batch of adds should be brought now."""
        return self._journal.has_room and (self._write_cache is None or self._write_cache.has_room)

    async def wait_room(self) -> None:
        """Returns while there is room for another batch of adds: fewer than ``limits.BOOKIE_INFLIGHT_BYTES``
        are pending, and the journal's memory has space. When the disk is full it returns as well, and adds
        are refused."""
        while not self.has_room and not self._adder.is_disk_full and self._journal.stopped is None:
            await self._journal.room.park()

    async def fence(self, ledger_id: int, key: bytes) -> FenceResult:
        """Refuse ordinary adds of the ledger from now on, durably when this returns; also of a ledger that
        was unknown. A wrong key changes nothing. DISK_FULL: there was no room for it, and the ledger is as it
        was, unless an add was refused meanwhile. Cancelled, it may have happened."""
        return await self._fencer.fence(ledger_id, key)

    # --- reads ------------------------------------------------------------------------------------

    async def read(self, ledger_id: int, *, first: int, last: int, stride: int, bytes_max: int) -> ReadResult:
        """The entries first, first + stride, ... up to ``last`` (``first`` >= 0, ``stride`` >= 1) within
        about ``bytes_max`` payload bytes; one entry always fits. Never raises for what is on the disk: see
        ``ReadResult``. Entries that are not durable yet do not exist yet."""
        try:
            state = self._living(ledger_id)
        except StorageError as error:
            return ReadResult(status_of(error), no_entries(ledger_id), first - 1, NO_ENTRY, NO_ENTRY)
        self._reads += 1
        # Asked before the look: what ends limbo meanwhile is what the look may just have missed.
        in_limbo = self.marks.now.denies_nothing(ledger_id)
        if state is None:
            await trio.lowlevel.checkpoint()
            status = Status.UNKNOWN if in_limbo else Status.NO_SUCH_LEDGER
            return ReadResult(status, no_entries(ledger_id), last, NO_ENTRY, NO_ENTRY)
        state.pins += 1
        try:
            found = await self._reader.read(state, first=first, last=last, stride=stride, bytes_max=bytes_max)
        finally:
            state.pins -= 1
        return found.undenied(first) if in_limbo else found

    async def recovery_read(
        self, ledger_id: int, key: bytes, *, first: int, last: int, stride: int, bytes_max: int
    ) -> ReadResult:
        """As ``read``, after the ledger was fenced durably: whatever it says does not exist was not accepted
        before the fence, and never will be but by recovery (R-B1). UNAUTHORIZED or DISK_FULL if it could not
        fence."""
        fenced = await self.fence(ledger_id, key)
        if fenced.status is not Status.OK:
            return ReadResult(fenced.status, no_entries(ledger_id), first - 1, NO_ENTRY, NO_ENTRY)
        return await self.read(ledger_id, first=first, last=last, stride=stride, bytes_max=bytes_max)

    async def list_entries(
        self, ledger_id: int, *, first: int, last: int = ENTRY_ID_MAX, pairs_max: int
    ) -> ListResult:
        """Which of the entries first..last of the ledger are stored, as up to ``pairs_max`` ranges.

        It looks at so much of the index as takes a fraction of a second, however long the ledger is, and
        says in ``through`` how far it came: ask for the rest behind that. Where it names no entry at all it
        is complete through ``last``."""
        try:
            state = self._living(ledger_id)
        except StorageError as error:
            return ListResult(status_of(error), [], first - 1)
        in_limbo = self.marks.now.denies_nothing(ledger_id)
        if state is None:
            await trio.lowlevel.checkpoint()
            return ListResult(Status.UNKNOWN if in_limbo else Status.NO_SUCH_LEDGER, [], last)
        state.pins += 1
        try:
            found = await self._reader.list_entries(state, first=first, last=last, pairs_max=pairs_max)
        finally:
            state.pins -= 1
        return found.undenied() if in_limbo else found

    async def scrub(
        self, ledger_id: int, *, first: int, last: int, classes: int, bytes_max: int
    ) -> ScrubResult:
        """Read the entries first..last where they lie, about ``bytes_max`` bytes of them, and check them;
        ``wire.scrub`` says what is told of them. What is in memory is checked there."""
        nothing = ScrubReport((), (), ())
        try:
            state = self._living(ledger_id)
        except StorageError as error:
            return ScrubResult(status_of(error), nothing, first - 1)
        in_limbo = self.marks.now.denies_nothing(ledger_id)
        if state is None:
            await trio.lowlevel.checkpoint()
            return ScrubResult(Status.UNKNOWN if in_limbo else Status.NO_SUCH_LEDGER, nothing, last)
        state.pins += 1
        try:
            found = await self._reader.scrub(
                state, first=first, last=last, classes=classes, bytes_max=bytes_max
            )
        finally:
            state.pins -= 1
        return found.undenied() if in_limbo else found

    def lac(self, ledger_id: int) -> tuple[int, int]:
        """The greatest LAC and LAFR that were told here, -1 where none was. Raises StorageError if the index
        cannot say."""
        state = self._living(ledger_id)
        return (NO_ENTRY, NO_ENTRY) if state is None else (state.lac, state.lafr)

    def last_durable(self, ledger_id: int) -> int:
        """The highest entry that is durable here, -1 where there is none. After a crash it may name one that
        was under way and was lost. Raises StorageError as ``lac``."""
        state = self._living(ledger_id)
        return NO_ENTRY if state is None else state.last_durable(self._commit.durable)

    async def wait_lac(self, ledger_id: int, entry_id: int) -> None:
        """Returns once the ledger's LAC, as told here, has reached ``entry_id``. Raises StorageError as
        ``lac``."""
        if self.lac(ledger_id)[0] >= entry_id:
            await trio.lowlevel.checkpoint()
        else:
            await self._lac_watch.wait(ledger_id, entry_id)

    def _living(self, ledger_id: int) -> LedgerState | None:
        """The state of a ledger, None also for one that was deleted: nothing is said of its entries any more.
        StorageError as the index."""
        state = self._ledgers.get(ledger_id)
        return None if state is None or state.is_deleted else state

    # --- the whole --------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Returns once everything added so far is durable and in the index. DiskFull: some is in memory
        still. A task of the engine does it, so cancelling ends the wait alone."""
        await self.flusher.flush()

    @property
    def files_changed(self) -> trio.Event:
        """Set once a file of entries was begun, filled or written again after this look at it."""
        return self._journal.files_changed

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and sizes as they are now."""
        journal = self._journal
        return {
            "entries": self._adder.entries,
            "bytes": self._adder.bytes,
            "frames": self._adder.frames,
            "syncs": journal.syncs,
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
        }

    # --- for its own tasks ------------------------------------------------------------------------

    def stop(self, status: Status) -> None:
        """Refuse everything from now on, with this status."""
        self._journal.stop(status)

    async def close(self) -> None:
        """The clean stop: all is durable and indexed, and only then is it said that nothing was lost."""
        self.stop(Status.NOT_READY)
        if self.collector is not None:
            await self.collector.stop()
        if self._write_cache is not None:
            await self._write_cache.flush()
        await self._checkpointer.close()
        await self.marks.replace(self.marks.now.serving(acknowledges_unsynced=False))
