"""The storage of one bookie: verdicts, journal, index and reads, behind one object.

    add ----> verdict on the ledger's state -> record into the journal's arena -> position
                                               (one sync for all that gathered) -> durable_position
    fence --> fenced in memory -> FENCE record -> its sync -> answer
    read ---> runs in memory, runs in the index -> arena or segment file -> entries

``open_engine`` replays what the directory's journal holds beyond its index, goes on in a fresh segment, runs
the tasks (journal writer, supply of segments, checkpoints), and stops cleanly when its body ends without
an exception. A clean stop leaves everything in the index and says in it where the journal ends, so that the
next start reads no journal, and any damage is found by whoever reads the damaged entry.

**Positions.** ``add`` returns the sequence of the journal block that its record went into. Blocks become
durable in order, so a position is durable once ``durable_position`` has reached it.

**Without the journal's copy** (``journal_write_data = false``) an add is copied into the write cache
(``bookie.storage.write_cache``) and acknowledged at once. Its position is that of the record that brought its
ledger's key: the first add of a ledger, like every fence, goes through the journal.

**Failure.** A sync or index write that fails ends the engine: ``open_engine`` cancels its body and raises the
StorageError. Adds made meanwhile are refused; nothing that was not synced is ever acknowledged.

**After a loss.** What the bookie may not say because it may have lost data is in its marks
(``bookie.core.marks``): they are asked in each verdict, and no engine opens on a directory that may have lost
something and was not marked for it.

**One step.** ``add`` and the beginning of ``fence`` never wait, so the verdict and the place in the journal
are one step on one object per ledger (rule 3). An add that brings ids up to the last known one is the
exception in cost, not in kind: it compares digests with what is stored, which may read the disk right there
when those entries are no longer in memory.

Memory and disk use are stated in ``bookie.storage.config``.
"""

from __future__ import annotations

import logging
import os
from collections import ChainMap
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio

from bookie.core.block import NONCE_BYTES, PAGE_BYTES
from bookie.core.boot import Mark
from bookie.core.journal import GroupCommit
from bookie.core.ledger import LedgerState
from bookie.core.reading import no_entries
from bookie.core.records import ADD, FENCE, START, Run, encode_fence, encode_start
from bookie.core.results import FenceResult, ListResult, ReadResult
from bookie.core.rows import encode_mark
from bookie.storage.arenas import Arenas
from bookie.storage.cancellation import holds_cancellation
from bookie.storage.catalogue import Catalogue
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.collector import Collector, Witness
from bookie.storage.compaction import Compactor
from bookie.storage.config import StorageConfig
from bookie.storage.directory import StorageDirectory
from bookie.storage.disk import FileMissing
from bookie.storage.entry_logs import EntryLogFiles
from bookie.storage.files import FilePool
from bookie.storage.journal import Journal
from bookie.storage.ledgers import InMemory, Ledgers
from bookie.storage.leveldb import REMEDY
from bookie.storage.marks import KeptMarks, read_marks
from bookie.storage.read_cache import ReadCache
from bookie.storage.reader import Reader, Resident
from bookie.storage.reclaiming import Reclaimer
from bookie.storage.recycling import Recycler
from bookie.storage.replay import Replayed, replay
from bookie.storage.rewriting import Rewriter
from bookie.storage.scrub import Scrubber
from bookie.storage.segments import Segment, SegmentFiles
from bookie.storage.settling import remove_replaced, take_over_logs
from bookie.storage.write_cache import CachedArena, WriteCache
from ledgerlog.errors import DiskFull, StorageCorrupt, StorageError
from ledgerlog.limits import ENSEMBLE_MAX, FRAME_ENTRIES_MAX, KIB, WRITER_WINDOW_ENTRIES
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.wire.entries import Entries, compact_ids, encode_add
from ledgerlog.wire.frame import RECOVERY, SPARSE, Frame, Header, Status

__all__ = ["Engine", "FenceResult", "ListResult", "ReadResult", "open_engine"]

logger = logging.getLogger(__name__)

_FIRST_SEGMENT_BYTES_MIN = 128 * KIB
"""On a full disk. It has room for some thirty syncs of fences and small recovery adds."""

_SPARSE_SLACK = 2 * (WRITER_WINDOW_ENTRIES + FRAME_ENTRIES_MAX)


@attrs.define(eq=False)
class _FlushWaiter:
    done: trio.Event = attrs.Factory(trio.Event)
    failure: DiskFull | None = None


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
        pool: FilePool,
        arenas: Arenas,
        config: StorageConfig,
        marks: KeptMarks,
        write_cache: WriteCache | None,
    ) -> None:
        self.is_read_only = False
        """Whoever watches the disk sets it: ordinary adds are refused then, recovery adds and fences are
        not."""
        self.marks = marks
        """What may not be said because data may have been lost."""
        self._journal = journal
        self._commit = journal.commit
        self._ledgers = ledgers
        self._loaded = ledgers.loaded
        self._reader = reader
        self._checkpointer = checkpointer
        self.compactor = compactor
        self.collector = collector
        """None where nobody can say which ledgers are gone."""
        self.scrubber = scrubber
        """Finds what is rotten on the disk, and stores it again."""
        self.reclaimer = Reclaimer(compactor, collector)
        """Frees space when it is asked to."""
        self._pool = pool
        self._arenas = arenas
        self._write_cache = write_cache
        """Where adds go that skip the journal; None where none does."""
        self._frame_bytes_max = config.frame_bytes_max
        self._stopped: Status | None = None
        self._flush_waiters: list[_FlushWaiter] = []
        self._flush_wanted = trio.lowlevel.ParkingLot()
        self._lac_waiters: dict[int, list[tuple[int, trio.Event]]] = {}
        self._entries = 0
        self._frames = 0
        self._bytes = 0
        self._fences = 0
        self._reads = 0

    # --- adds -------------------------------------------------------------------------------------

    def add(self, frame: Frame, entries: Entries) -> int | Status:
        """Take an ADD frame, whose checksum and digests the caller has verified.

        Returns a journal position: the add is durable once ``durable_position`` has reached it. Or a
        ``Status`` that refuses it, and then nothing of it is stored: UNAUTHORIZED (wrong key), FENCED (the
        ledger is fenced and this is not a recovery add), CONFLICT (an id is stored with another digest),
        READ_ONLY, DISK_FULL, TOO_MANY_REQUESTS (no memory is free: see ``wait_room``), BAD_REQUEST (larger
        than ``frame_bytes_max``, or sparse ids too far apart), CORRUPT or IO_ERROR (stored entries or the
        index, which it had to be compared with, cannot be read), IO_ERROR too once the engine has failed,
        NOT_READY once it is being closed.

        The frame's bytes are copied. An add without entries tells LAC and LAFR, needs no sync and returns the
        current durable position; for a ledger that is unknown here nothing is remembered."""
        header = frame.header
        state = self._loaded.get(header.ledger_id)
        if state is None:
            try:
                state = self._state(header.ledger_id)
            except StorageError as error:
                return _status_of(error)
        is_recovery = header.flags & RECOVERY
        if state is not None:
            refusal = state.add_refusal(header.key, bool(is_recovery))
            if refusal is not None:
                state.is_fence_told = state.is_fence_told or refusal is Status.FENCED
                return refusal
            state.was_used = True
        if not is_recovery and self.marks.now.refuses_adds(header.ledger_id):
            return Status.FENCED  # A fence that was told may have been lost (D27.1).
        if self._stopped is not None:
            return self._stopped
        if not header.entry_count:
            if state is not None:
                self._tell(state, header)
            return self._commit.durable
        if not is_recovery:
            if self.is_read_only:
                return Status.READ_ONLY
            if self._is_disk_full:
                return Status.DISK_FULL
        if header.flags & SPARSE and header.last - header.first > _sparse_span_max(header.entry_count):
            return Status.BAD_REQUEST
        is_known = state is not None
        if state is None:
            state = LedgerState(header.ledger_id, header.key)
        is_misnamed = header.flags & SPARSE and header.entry_count == header.last - header.first + 1
        verdict: int | Status
        if header.first > state.last_entry and not is_misnamed:
            verdict = self._append(state, header, frame.raw)
        else:
            verdict = self._add_some(state, header, frame.raw, entries)
        if type(verdict) is Status:
            return verdict
        if not is_known:
            self._add_ledger(state)
        self._tell(state, header)
        return verdict

    def _append(self, state: LedgerState, header: Header, raw: bytes | memoryview) -> int | Status:
        """Append a frame of ids that are not stored yet: its position, or why it cannot be."""
        if len(raw) > self._frame_bytes_max:
            return Status.BAD_REQUEST
        if self._write_cache is not None and state.key_sequence is not None:
            return self._append_unsynced(self._write_cache, state, header, raw)
        journal = self._journal
        offset = journal.append(ADD, raw)
        if offset is None:
            return Status.DISK_FULL if journal.is_disk_full else Status.TOO_MANY_REQUESTS
        segment = journal.active
        run = Run(
            header.ledger_id,
            header.first,
            header.last,
            header.entry_count,
            segment.image.number,
            offset,
            len(raw),
            self._commit.sequence,
        )
        segment.runs.append(run)
        state.on_run(run)
        if state.key_sequence is None:
            state.key_sequence = run.sequence
        self._count(header, raw)
        return self._commit.newest

    def _append_unsynced(
        self, cache: WriteCache, state: LedgerState, header: Header, raw: bytes | memoryview
    ) -> int | Status:
        """The same for a frame that skips the journal. A crash may lose it, acknowledged or not."""
        assert state.key_sequence is not None
        place = cache.append(raw)
        if place is None:
            return Status.DISK_FULL if self._is_disk_full else Status.TOO_MANY_REQUESTS
        number, offset = place
        run = Run(
            header.ledger_id,
            header.first,
            header.last,
            header.entry_count,
            number,
            offset,
            len(raw),
            self._commit.durable,  # It is readable from now on, as if it were durable.
        )
        cache.on_run(run)
        state.on_run(run)
        self._count(header, raw)
        return state.key_sequence

    def _count(self, header: Header, raw: bytes | memoryview) -> None:
        self._frames += 1
        self._entries += header.entry_count
        self._bytes += len(raw)

    def _add_some(
        self, state: LedgerState, header: Header, raw: memoryview, entries: Entries
    ) -> int | Status:
        """An add that may bring ids which are stored: compare those, store the others (rules 6 and 7)."""
        try:
            stored = self._reader.digests_now(state, header.first, header.last)
        except StorageError as error:
            return _status_of(error)
        fresh = []
        for index, (entry_id, digest) in enumerate(zip(entries.ids, entries.digests, strict=True)):
            known = stored.get(entry_id)
            if known is None:
                fresh.append(index)
            elif known != digest:
                return Status.CONFLICT
        # What is here already and pending is durable with the newest block.
        newest = self._commit.newest
        if not fresh:
            return newest
        ids = compact_ids([entries.ids[index] for index in fresh])
        if len(fresh) == len(entries) and isinstance(ids, range) != bool(header.flags & SPARSE):
            return self._append(state, header, raw)
        buffers = encode_add(
            entries.select(fresh),
            lac=header.lac,
            lafr=header.lafr,
            key=header.key,
            recovery=bool(header.flags & RECOVERY),
        )
        smaller = header._replace(first=ids[0], last=ids[-1], entry_count=len(ids))
        verdict = self._append(state, smaller, b"".join(buffers))
        return verdict if type(verdict) is Status else max(verdict, newest)

    def _tell(self, state: LedgerState, header: Header) -> None:
        if state.tell(header.lac, header.lafr) and state.ledger_id in self._lac_waiters:
            for entry_id, event in self._lac_waiters[state.ledger_id]:
                if state.lac >= entry_id:
                    event.set()

    def _living(self, ledger_id: int) -> LedgerState | None:
        """As ``_state``, None also for a ledger that was deleted: nothing is said of its entries any more."""
        state = self._state(ledger_id)
        return None if state is None or state.is_deleted else state

    def _state(self, ledger_id: int) -> LedgerState | None:
        """The state of a ledger, read from the index where it is not in memory. StorageError as the index."""
        state = self._ledgers.get(ledger_id)
        self._look_at_crowd()
        return state

    def _add_ledger(self, state: LedgerState) -> None:
        self._ledgers.add(state)
        self._look_at_crowd()

    def _look_at_crowd(self) -> None:
        if self._ledgers.is_crowded:
            self._journal.progress.unpark_all()

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

    @property
    def pending_bytes(self) -> int:
        """Bytes received and not durable yet."""
        return self._commit.pending_bytes

    @property
    def has_room(self) -> bool:
        """Whether another batch of adds should be brought now."""
        return self._journal.has_room and (self._write_cache is None or self._write_cache.has_room)

    @property
    def _is_disk_full(self) -> bool:
        return self._journal.is_disk_full or (
            self._write_cache is not None and self._write_cache.is_disk_full
        )

    async def wait_room(self) -> None:
        """Returns while there is room for another batch of adds: fewer than ``limits.BOOKIE_INFLIGHT_BYTES``
        are pending, and the journal's memory has space. When the disk is full it returns as well, and adds
        are refused."""
        while not self.has_room and not self._is_disk_full and self._stopped is None:
            await self._journal.room.park()

    # --- fences -----------------------------------------------------------------------------------

    async def fence(self, ledger_id: int, key: bytes) -> FenceResult:
        """Refuse ordinary adds of the ledger from now on, durably when this returns; also of a ledger that
        was unknown. A wrong key changes nothing. DISK_FULL: there was no room for it, and the ledger is as it
        was, unless an add was refused meanwhile. Cancelled, it may have happened."""
        try:
            state = self._state(ledger_id)
        except StorageError as error:
            return FenceResult(_status_of(error), NO_ENTRY, NO_ENTRY)
        if state is None:
            state = LedgerState(ledger_id, key)
            self._add_ledger(state)
        refusal = state.fence_refusal(key)
        if refusal is None and self._stopped is not None:
            refusal = self._stopped
        if refusal is not None:
            await trio.lowlevel.checkpoint()
            return FenceResult(refusal, NO_ENTRY, NO_ENTRY)
        self._fences += 1
        state.pins += 1
        state.fencers += 1
        try:
            refusal = await self._fence(state)
        finally:
            state.pins -= 1
            state.fencers -= 1
            if not state.fencers:
                state.give_up_fence()
                if state.is_blank and not state.pins:
                    self._ledgers.drop(state)
        return FenceResult(refusal or Status.OK, state.lac, state.lafr)

    async def _fence(self, state: LedgerState) -> Status | None:
        """Returns once the fence is durable, or why it cannot be."""
        if state.is_fence_settled(self._commit.durable):
            await trio.lowlevel.checkpoint()
            return None
        if not state.is_fenced:
            state.on_fence()
        while not state.fence_sequence:
            if self._journal.append(FENCE, encode_fence(state.ledger_id, state.key)) is not None:
                self._journal.active.marked.add(state.ledger_id)
                state.fence_sequence = self._commit.sequence
                if state.key_sequence is None:
                    state.key_sequence = state.fence_sequence
            elif self._journal.is_disk_full:
                await trio.lowlevel.checkpoint()
                return Status.DISK_FULL
            else:
                await self._journal.progress.park()
        # Also whoever finds the ledger fenced already waits for the first fencer's sync (rule 2).
        await self._journal.wait_durable(state.fence_sequence)
        return None

    # --- reads ------------------------------------------------------------------------------------

    async def read(self, ledger_id: int, *, first: int, last: int, stride: int, bytes_max: int) -> ReadResult:
        """The entries first, first + stride, ... up to ``last`` (``first`` >= 0, ``stride`` >= 1) within
        about ``bytes_max`` payload bytes; one entry always fits. Never raises for what is on the disk: see
        ``ReadResult``. Entries that are not durable yet do not exist yet."""
        try:
            state = self._living(ledger_id)
        except StorageError as error:
            return ReadResult(_status_of(error), no_entries(ledger_id), first - 1, NO_ENTRY, NO_ENTRY)
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
        return found.undenied() if in_limbo else found

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

    async def list_entries(self, ledger_id: int, *, first: int, pairs_max: int) -> ListResult:
        """Which entries of the ledger are stored, from ``first`` on, as up to ``pairs_max`` ranges."""
        try:
            state = self._living(ledger_id)
        except StorageError as error:
            return ListResult(_status_of(error), [], first - 1)
        in_limbo = self.marks.now.denies_nothing(ledger_id)
        if state is None:
            await trio.lowlevel.checkpoint()
            return ListResult(Status.UNKNOWN if in_limbo else Status.NO_SUCH_LEDGER, [], first - 1)
        state.pins += 1
        try:
            found = await self._reader.list_entries(state, first=first, pairs_max=pairs_max)
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
            return
        waiter = (entry_id, trio.Event())
        self._lac_waiters.setdefault(ledger_id, []).append(waiter)
        try:
            await waiter[1].wait()
        finally:
            waiters = self._lac_waiters[ledger_id]
            waiters.remove(waiter)
            if not waiters:
                del self._lac_waiters[ledger_id]

    # --- the whole --------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Returns once everything added so far is durable and in the index. DiskFull: some is in memory
        still. A task of the engine does it, so cancelling ends the wait alone."""
        waiter = _FlushWaiter()
        self._flush_waiters.append(waiter)
        self._flush_wanted.unpark_all()
        await waiter.done.wait()
        if waiter.failure is not None:
            raise waiter.failure

    async def run_flushes(self) -> None:
        """Flush whenever somebody wants it, for ever. StorageError if the disk or the index fails."""
        while True:
            if not self._flush_waiters:
                await self._flush_wanted.park()
                continue
            waiters, self._flush_waiters = self._flush_waiters, []
            failure: DiskFull | None = None
            try:
                await self._flush()
            except DiskFull as full:
                failure = full
            for waiter in waiters:
                waiter.failure = failure
                waiter.done.set()

    async def _flush(self) -> None:
        if self._write_cache is not None:
            await self._write_cache.flush()
        await self._checkpointer.flush()

    @property
    def files_changed(self) -> trio.Event:
        """Set once a file of entries was begun, filled or written again after this look at it."""
        return self._journal.files_changed

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and sizes as they are now."""
        journal = self._journal
        return {
            "entries": self._entries,
            "bytes": self._bytes,
            "frames": self._frames,
            "syncs": journal.syncs,
            "journal_bytes_written": journal.bytes_written,
            "fences": self._fences,
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
            "runs_restored": self.scrubber.runs_restored,
            "ledgers_in_memory": len(self._loaded),
            "runs_in_memory": sum(len(segment.runs) for segment in journal.residents.values()),
            "cache_bytes": self._arenas.bytes_held,
            "read_cache_bytes": self._reader.cache.bytes_held,
            "pending_bytes": self.pending_bytes,
            "segment": journal.active.number,
            "is_disk_full": int(self._is_disk_full),
            "unflushed_bytes": self._write_cache.unflushed_bytes if self._write_cache else 0,
            "caches_flushed": self._write_cache.flushes if self._write_cache else 0,
        }

    async def _forget_cached(self, arena: CachedArena) -> None:
        self._journal.given_up += 1  # Before the first run is forgotten, as the journal does.
        await self._forget(arena)
        self._journal.on_files_changed()

    async def _forget(self, segment: InMemory) -> None:
        """The segment's runs are in the index and leave memory. Its bytes may go when this returns."""
        await self._ledgers.forget(segment)
        # Whoever found them in memory may be about to read them there.
        await self._pool.retire(())

    def stop(self, status: Status) -> None:
        """Refuse everything from now on, with this status."""
        self._stopped = status
        self._journal.wake_all()

    async def close(self) -> None:
        """The clean stop: all is durable and indexed, and only then is it said that nothing was lost."""
        self.stop(Status.NOT_READY)
        if self.collector is not None:
            await self.collector.stop()
        if self._write_cache is not None:
            await self._write_cache.flush()
        await self._checkpointer.close()
        await self.marks.replace(self.marks.now.serving(acknowledges_unsynced=False))


def _sparse_span_max(entry_count: int) -> int:
    """How far apart the first and the last id of so many may be: striping leaves to each bookie at least one
    of ``ENSEMBLE_MAX``, and a writer's window has gaps where entries are stored already. Adds and reads of
    what lies between cost by the span, so it may not be anything that a client writes there."""
    return entry_count * ENSEMBLE_MAX + _SPARSE_SLACK


def _status_of(error: StorageError) -> Status:
    """How a failure to read what is stored is told to the client."""
    return Status.CORRUPT if isinstance(error, StorageCorrupt) else Status.IO_ERROR


def random_nonce() -> bytes:
    """A segment's nonce: must not be known to clients."""
    return os.urandom(NONCE_BYTES)


@asynccontextmanager
async def open_engine(
    directory: StorageDirectory,
    config: StorageConfig | None = None,
    *,
    new_nonce: Callable[[], bytes] = random_nonce,
    marks: KeptMarks | None = None,
    witness: Witness | None = None,
) -> AsyncIterator[Engine]:
    """The storage in a formatted directory that this process has locked (``open_directory``).

    ``marks`` are those that phase one of the boot left (``bookie.server.identity``). Without them the
    directory must be one that lost nothing, else it is refused with a StorageError. ``witness`` is the
    metadata store's word on which ledgers are gone; without it nothing is ever deleted.

    Replays what the last stop left in the journal; raises StorageCorrupt, naming file and offset, for damage
    or a file that is missing, and StorageError if the directory is not formatted. Leaving the body normally
    is a clean stop; leaving it by an exception or cancellation loses nothing that was durable. If the disk
    or the index fails meanwhile, the body is cancelled and StorageError raised here."""
    config = config or StorageConfig()
    disk = directory.disk
    instance = await directory.read_instance()
    policy = config.space_policy(is_journal_apart=directory.is_journal_apart)
    if marks is None:
        marks = await _sound_marks(directory)
    files = SegmentFiles(disk, directory.journal_path, instance)
    logs = EntryLogFiles(disk, directory.entries_path, instance, new_nonce)
    pool = FilePool(disk, lambda file: files.path(file) if file > 0 else logs.path(-file))
    try:
        index = await directory.indexes.open(directory.index_path)
    except FileMissing as cause:
        raise StorageCorrupt(directory.index_path, None, f"the index is missing; {REMEDY}") from cause
    try:
        catalogue = Catalogue(index)
        if catalogue.instance_now() != instance:
            raise StorageCorrupt(index.path, None, f"the index is not that of bookie instance {instance}")
        replaced = await take_over_logs(logs, catalogue)
        replayed = await replay(directory, files, catalogue, replaced)
        arenas = Arenas(disk, count=config.arenas, size=config.segment_bytes)
        active = await _next_segment(files, arenas, replayed, new_nonce, config.segment_bytes)
        try:
            commit = GroupCommit(
                durable=replayed.end.sequence, image=active.image, group_bytes_max=config.group_bytes_max
            )
            journal = Journal(
                disk=disk,
                files=files,
                arenas=arenas,
                config=config,
                active=active,
                commit=commit,
                new_nonce=new_nonce,
            )
        except BaseException:
            disk.close(active.file)
            raise
        try:
            # First a durable START block, then the mark that says that this segment counts, then clients.
            journal.append(START, encode_start(replayed.end))
            await journal.write_block()
            mark = Mark(active.number, commit.durable, is_optional=False, end=replayed.end)
            await catalogue.write([encode_mark(mark)])
            await remove_replaced(files, logs, catalogue, first_segment=active.number)
            # Replay's own segments, and any that the life before us moved its mark past and did not get to.
            for row in await catalogue.segments():
                if row.file < active.number and await files.size(row.file) > row.end:
                    await files.trim(row.file, row.end)
            # Durable before the first request, and so that a crash from here on is known for what it is.
            await marks.replace(marks.now.serving(acknowledges_unsynced=not config.journal_write_data))
            ledgers = Ledgers(catalogue, maximum=config.ledgers_max, durable=lambda: commit.durable)
            files.recycler = recycler = Recycler(
                disk, files.directory, size=config.segment_bytes, count=config.spare_segments
            )
            rewriter = Rewriter(files=files, logs=logs, pool=pool, catalogue=catalogue, ledgers=ledgers)
            residents: Mapping[int, Resident] = journal.residents
            write_cache = None

            async def forget_cached(arena: CachedArena) -> None:
                await engine._forget_cached(arena)

            if not config.journal_write_data:
                write_cache = WriteCache(
                    arenas=Arenas(disk, count=config.arenas, size=config.segment_bytes),
                    rewriter=rewriter,
                    forget=forget_cached,
                    wake=journal.room.unpark_all,
                    records_max=config.segment_records_max,
                    frame_bytes_max=config.frame_bytes_max,
                    age_s=config.write_cache_age_s,
                    disk_full_retry_s=config.disk_full_retry_s,
                )
                await write_cache.prepare()
                residents = _Residents(journal.residents, write_cache.residents)
            compactor = Compactor(
                files=files,
                logs=logs,
                pool=pool,
                catalogue=catalogue,
                rewriter=rewriter,
                policy=policy,
                is_busy=lambda file: file in journal.residents or scrubber.holds(file),
                bytes_per_s=config.compact_bytes_per_s,
            )

            async def compaction_rests() -> None:
                async with compactor._lock:
                    pass

            scrubber = Scrubber(
                journal=journal,
                residents=residents,
                pool=pool,
                catalogue=catalogue,
                ledgers=ledgers,
                compaction_rests=compaction_rests,
                bytes_per_s=config.scrub_bytes_per_s,
            )
            engine = Engine(
                journal=journal,
                ledgers=ledgers,
                reader=Reader(
                    journal=journal,
                    residents=residents,
                    pool=pool,
                    catalogue=catalogue,
                    cache=ReadCache(config.read_cache_bytes),
                    read_ahead_bytes=config.read_ahead_bytes,
                ),
                checkpointer=Checkpointer(
                    journal=journal,
                    files=files,
                    ledgers=ledgers,
                    catalogue=catalogue,
                    rewriter=rewriter,
                    policy=policy,
                ),
                compactor=compactor,
                collector=None
                if witness is None
                else Collector(
                    journal=journal, catalogue=catalogue, ledgers=ledgers, rewriter=rewriter, witness=witness
                ),
                scrubber=scrubber,
                pool=pool,
                arenas=arenas,
                config=config,
                marks=marks,
                write_cache=write_cache,
            )
            async with _running(engine, journal, recycler, config):
                yield engine
        finally:
            journal.close_files()
            pool.close()
    finally:
        with trio.CancelScope(shield=True):
            await index.aclose()


class _Residents(ChainMap[int, Any]):
    """What is in memory, of both kinds. The two number what they have differently."""


async def _sound_marks(directory: StorageDirectory) -> KeptMarks:
    """The marks of a directory that lost nothing; StorageError for another."""
    now = await read_marks(directory.disk, directory.path)
    if now is None or now.is_unclean:
        raise StorageError(
            f"{directory.path} may have lost acknowledged entries: its bookie did not stop cleanly and ran "
            "without the journal's copy of them, or its marks are gone. Only 'bookie run', which can ask the "
            "metadata store, may open it"
        )
    return KeptMarks(directory.disk, directory.path, now)


async def _next_segment(
    files: SegmentFiles, arenas: Arenas, replayed: Replayed, new_nonce: Callable[[], bytes], size: int
) -> Segment:
    """The segment to go on in: one that was prepared and never written to, or a new one of ``size`` bytes. On
    a full disk a smaller one has to do: who cannot start can neither be read nor give space back."""
    number = replayed.next_segment
    if replayed.pristine:
        header, *more = replayed.pristine
        assert header.number == number
        for surplus in more:
            await files.remove(surplus.number)
        return await files.reopen(header, await arenas.take(header.size))
    while True:
        view = await arenas.take(size)
        try:
            return await files.create(number, view, new_nonce())
        except DiskFull as full:
            arenas.give_back(view)
            if size <= _FIRST_SEGMENT_BYTES_MIN:
                raise
            size = max(_FIRST_SEGMENT_BYTES_MIN, size // 8 // PAGE_BYTES * PAGE_BYTES)
            logger.warning("going on in a segment of %d bytes: %s", size, full)


@asynccontextmanager
async def _running(
    engine: Engine, journal: Journal, recycler: Recycler, config: StorageConfig
) -> AsyncIterator[None]:
    """Runs the tasks of an engine around the body."""
    failure: StorageError | None = None
    body_error: BaseException | None = None

    async with trio.open_nursery() as nursery:

        async def guard(task: Callable[[], Awaitable[None]]) -> None:
            nonlocal failure
            try:
                await task()
            except StorageError as error:
                failure = failure or error
                engine.stop(Status.IO_ERROR)
                nursery.cancel_scope.cancel()

        nursery.start_soon(guard, journal.run_writer)
        nursery.start_soon(guard, lambda: journal.run_supply(engine._forget))
        nursery.start_soon(guard, engine._checkpointer.run)
        nursery.start_soon(guard, engine.run_flushes)
        nursery.start_soon(guard, recycler.run)
        nursery.start_soon(guard, engine.reclaimer.run)
        if engine._write_cache is not None:
            nursery.start_soon(guard, engine._write_cache.run_supply)
            nursery.start_soon(guard, engine._write_cache.run_flushes)
        nursery.start_soon(
            guard,
            lambda: engine.compactor.run(
                interval_s=config.compact_interval_s,
                eventual_interval_s=config.compact_eventual_interval_s,
            ),
        )
        if config.scrub:
            nursery.start_soon(guard, partial(engine.scrubber.run, interval_s=config.scrub_interval_s))
        if engine.collector is not None:
            collect = partial(engine.collector.run, interval_s=config.collect_interval_s)
            nursery.start_soon(guard, collect)
        try:
            yield
            await engine.close()
        except BaseException as error:
            if holds_cancellation(error):
                raise
            # Raised below as it is: the nursery is ours and would wrap what is the caller's in a group.
            body_error = error
        engine.stop(Status.NOT_READY)
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if body_error is not None:
        raise body_error
