"""The journal: group commit on the disk, and the supply of segments.

``append`` copies a record into the current segment's arena and wakes the writer. Two tasks serve it:

* ``run_writer`` makes one block of all records that have gathered, writes the block with one sync, and wakes
  all waiting tasks: through callbacks (``on_durable``) and ``wait_durable``. It delays a block only for adds
  that are about to come. A connection that appends its adds over several passes of the event loop calls
  ``more_follows`` after each pass. The connection then gets one sync for up to
  ``limits.JOURNAL_GATHER_BYTES`` of adds instead of one sync for each pass. If another caller waits too
  (``release``), the delay ends. A caller that says ``more_follows`` but appends nothing delays the sync by
  two passes of the event loop. If a task appends a small group of records, it may also write the group itself
  (``hold`` and ``release``). Passing a single append to the writer and back takes one more pass of the event
  loop, which costs as much as the whole append.
* ``run_supply`` keeps the next segment ready: an arena, and a file that is allocated and named durably. An
  arena becomes free once the oldest segment in memory is indexed. Then the ledgers forget the runs (frames of
  entries) of that segment, and reads find these runs in the index.

If a write fails, it is not tried again. ``run_writer`` raises the error, and that ends the engine. Nothing in
that write is ever acknowledged.

**Room.** A record is refused if it does not fit into the current segment and no next one is ready.
``has_room`` turns false earlier: it is true only if a next segment is ready, or if the current one has space
for two of the largest frames. So in ordinary operation no add is refused. If the disk has no room for another
segment, ``is_disk_full`` is true and ``run_supply`` tries again from time to time. Until it succeeds,
ordinary adds are refused. The rest of the existing segments is the reserve for fences and recovery. It also
has room for ``segment_records_max`` records, however many the current segment has.

**Small beginnings** (``StorageConfig.first_segment_bytes``). If the current segment is a small one, the next
segment is made only when an add would use more than half of the current one (``has_room_for``). Then adds
wait until the next segment is ready. That segment has room for a frame of any size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from bookie.core.block import PAGE_BYTES
from bookie.core.journal import ClosedBlock, GroupCommit
from bookie.storage.disk.disk import Disk
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.forgetting import Forgetter
from bookie.storage.journal.arenas import Arenas
from bookie.storage.journal.segments import JournalSegment, SegmentFiles
from ledgerlog.counts import Histogram
from ledgerlog.errors import DiskFull, StorageError
from ledgerlog.limits import BOOKIE_INFLIGHT_BYTES, JOURNAL_GATHER_BYTES
from ledgerlog.wire.frame import Status


class Journal:
    """The journal of a running bookie.

    Args:
        disk: The disk with the segments.
        files: The journal directory.
        arenas: The memory of segments.
        config: The limits and the pauses.
        active: The current segment. Its START block is durable.
        commit: The group commit. Its image belongs to ``active``.
        new_nonce: Makes the nonce of a new segment, 16 random bytes.
    """

    def __init__(
        self,
        *,
        disk: Disk,
        files: SegmentFiles,
        arenas: Arenas,
        config: StorageConfig,
        active: JournalSegment,
        commit: GroupCommit,
        new_nonce: Callable[[], bytes],
    ) -> None:
        self.commit = commit
        self.active = active
        """The segment that takes records."""
        self.residents: dict[int, JournalSegment] = {active.number: active}
        """The segments in memory by number, oldest first."""
        self.sealed: deque[JournalSegment] = deque()
        """Segments that are full and not indexed yet, oldest first."""
        self.is_index_stuck = False
        """Whether no segment can leave memory because the index waits for room on its disk."""
        self.stopped: Status | None = None
        """The status with which adds and fences are refused; None while they are accepted."""
        self.syncs = 0
        """How many blocks were written."""
        self.bytes_written = 0
        """The bytes of these blocks."""
        self.sync_s = Histogram()
        """How long their syncs took."""
        self.progress = trio.lowlevel.ParkingLot()
        """Woken when a segment is sealed or indexed, or the next one is ready. The few tasks that manage
        segments park here. A block that becomes durable does not wake them, because they would have nothing
        to do."""
        self.room = trio.lowlevel.ParkingLot()
        """Woken each time ``has_room`` may have turned true."""
        self.files_changed = trio.Event()
        """Set, and replaced by another event, when a file of entries is begun, filled or rewritten."""
        self._disk = disk
        self._files = files
        self._arenas = arenas
        self._config = config
        self._new_nonce = new_nonce
        self._is_disk_full = False
        self._next: JournalSegment | None = None
        self._is_next_wanted = not config.starts_small
        """Whether to make the next segment now. False only while the current segment is a small one."""
        self._wake = trio.Event()
        self._is_awake = True
        self._is_held = False
        self._follows = False
        """Whether a caller said ``more_follows`` since the writer last looked."""
        self._is_urgent = False
        """Whether a caller that did not call ``more_follows`` waits for the gathered records."""
        self._failure: StorageError | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._waiters: list[tuple[int, trio.Event]] = []

    # --- appending --------------------------------------------------------------------------------

    def append(self, kind: int, body: bytes | memoryview) -> int | None:
        """Copy a record into the journal.

        The record is durable once ``commit.durable`` reaches the value that ``commit.sequence`` has right
        after this call.

        Args:
            kind: The record's kind (``bookie.core.journal_items``).
            body: The record's body.

        Returns:
            The offset of the body in ``active``, or None if there is no room now.
        """
        commit = self.commit
        records, records_max = self.active.records, self._config.segment_records_max
        if records >= records_max and not commit.leave_segment():
            self._want_next()
            if not self.is_disk_full or records >= 2 * records_max:
                return None
        offset = commit.append(kind, body)
        if commit.image is not self.active.image:
            self._roll()
        if offset is None:
            self._want_next()
            return None
        self.active.records += 1
        if not self._is_awake and not self._is_held:
            self._rouse()
        return offset

    def hold(self) -> None:
        """Until ``release``, appends wake no task. Call ``release`` before any other task can run."""
        self._is_held = True

    def release(self, *, at_once: bool) -> None:
        """Start writing the records that were appended since ``hold``.

        With ``at_once``, this call writes the records itself and calls the callbacks, if the disk is quick
        enough for that and nothing else is being written. Otherwise ``run_writer`` writes them. This call
        never raises: if a write fails, ``run_writer`` raises the error.
        """
        self._is_held = False
        commit = self.commit
        newest = commit.newest
        self._is_urgent = newest != commit.durable
        if self._is_awake or not self._is_urgent:
            return
        if at_once and self._disk.may_write_now(commit.pending_bytes + PAGE_BYTES):
            self._write_now()
            if newest == commit.durable:
                self._is_urgent = False
                return
        self._rouse()

    def more_follows(self) -> None:
        """Announce more appends in the next pass of the event loop. The writer waits for them."""
        self._follows = True

    def _write_now(self) -> None:
        block = self.commit.take_block()
        assert block is not None
        segment = self.residents[block.image.number]
        try:
            took_s = self._disk.write_now(segment.file, block.offset, block.view)
        except StorageError as error:
            # Leave the block in the state "being written", so that no other block is written before the
            # writer ends the engine.
            self._failure = error
        else:
            self.sync_s.observe(took_s)
            self._on_written(block)

    def _rouse(self) -> None:
        self._is_awake = True
        self._wake.set()

    def append_close(self) -> None:
        """Append the CLOSE record of a clean stop. Everything must be durable, and nothing may follow."""
        self.commit.append_close()
        self._rouse()

    def _roll(self) -> None:
        following, self._next = self._next, None
        assert following is not None
        assert following.image is self.commit.image
        self.active.final_sequence = self.commit.sequence - 1
        self.sealed.append(self.active)
        self.active = following
        self._is_next_wanted = following.image.size >= self._config.segment_bytes
        self.residents[following.number] = following
        self.progress.unpark_all()

    @property
    def is_disk_full(self) -> bool:
        """Whether there is no room for another segment, or no segment can leave memory because the index has
        no room."""
        return self._is_disk_full or self.is_index_stuck

    def on_index_stuck(self, is_stuck: bool) -> None:
        """Note that the index begins to wait for room (``is_stuck``), or no longer waits."""
        self.is_index_stuck = is_stuck
        self.wake_all()

    @property
    def has_room(self) -> bool:
        """Whether the journal can take another add, of any size."""
        return self.has_room_for(self._config.frame_bytes_max)

    def has_room_for(self, size: int) -> bool:
        """Whether the journal can take another add of ``size`` bytes now. If not, the journal begins to make
        room."""
        commit, active = self.commit, self.active
        if commit.pending_bytes >= BOOKIE_INFLIGHT_BYTES:
            return False
        if self._next is not None:
            return True
        if active.records < self._config.segment_records_max:
            if self._is_next_wanted and commit.room >= 2 * self._config.frame_bytes_max:
                return True
            if not self._is_next_wanted and commit.room - size >= active.image.size // 2:
                return True
        self._want_next()
        return False

    def _want_next(self) -> None:
        if not self._is_next_wanted:
            self._is_next_wanted = True
            self.progress.unpark_all()

    # --- waiting ----------------------------------------------------------------------------------

    def on_durable(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after every block that becomes durable."""
        self._callbacks.append(callback)

    def remove_on_durable(self, callback: Callable[[], None]) -> None:
        """Stop calling ``callback``."""
        self._callbacks.remove(callback)

    async def wait_durable(self, sequence: int) -> None:
        """Wait until the block ``sequence`` is durable."""
        if self.commit.durable >= sequence:
            return
        event = trio.Event()
        waiter = (sequence, event)
        self._waiters.append(waiter)
        try:
            await event.wait()
        finally:
            if not event.is_set():
                self._waiters.remove(waiter)

    def stop(self, status: Status) -> None:
        """Refuse adds and fences from now on, with this status.

        Records that do not come from clients are still appended, for example the CLOSE of a clean stop.
        """
        self.stopped = status
        self.wake_all()

    def wake_all(self) -> None:
        """Wake all tasks that wait for segments or for room."""
        self.progress.unpark_all()
        self.room.unpark_all()

    def on_files_changed(self) -> None:
        """Note that the size of the bookie's files has changed."""
        changed, self.files_changed = self.files_changed, trio.Event()
        changed.set()

    # --- tasks ------------------------------------------------------------------------------------

    async def run_writer(self) -> None:
        """Write the records that are appended, forever.

        Raises:
            StorageError: The disk failed a write.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            await self._gather()
            if not await self.write_block():
                self._is_awake = False
                self._wake = trio.Event()
                await self._wake.wait()

    async def _gather(self) -> None:
        """Let the callers of ``more_follows`` run once more, and again as long as they call it again."""
        while self._follows and not self._is_urgent and self.commit.pending_bytes < JOURNAL_GATHER_BYTES:
            self._follows = False
            await trio.lowlevel.checkpoint()
            if not self._follows and not self._is_urgent:
                # Trio runs tasks in any order. If a caller ran last in one pass and first in the next, it
                # needs one more pass.
                await trio.lowlevel.checkpoint()
        self._follows = self._is_urgent = False

    async def write_block(self) -> bool:
        """Write the next block and wake all tasks that wait for it. Return False if there was nothing to
        write."""
        block = self.commit.take_block()
        if block is None:
            return False
        segment = self.residents[block.image.number]
        began = trio.current_time()
        await self._disk.write_sync(segment.file, block.offset, block.view)
        self.sync_s.observe(trio.current_time() - began)
        self._on_written(block)
        return True

    def _on_written(self, block: ClosedBlock) -> None:
        self.commit.on_written(block)
        segment = self.residents[block.image.number]
        segment.end = block.offset + len(block.view)
        segment.last_sequence = block.sequence
        self.syncs += 1
        self.bytes_written += len(block.view)
        for callback in tuple(self._callbacks):
            callback()
        if self._waiters:
            self._wake_waiters()
        if self.room:
            self.room.unpark_all()

    def _wake_waiters(self) -> None:
        durable = self.commit.durable
        ready = [waiter for waiter in self._waiters if waiter[0] <= durable]
        self._waiters = [waiter for waiter in self._waiters if waiter[0] > durable]
        for _, event in ready:
            event.set()

    async def run_supply(self, forgetter: Forgetter) -> None:
        """Keep the next segment ready, forever. If the disk is full, wait.

        Args:
            forgetter: Makes ledgers forget the runs of a segment that leaves memory.

        Raises:
            StorageError: The disk failed, or there is no memory for an arena.
        """
        while True:
            if self._next is None and self._is_next_wanted:
                view = await self._free_arena(forgetter)
                segment = await self._new_segment(self.active.number + 1, view)
                self._next = segment
                self.commit.offer_segment(segment.image)
                self.wake_all()
                self.on_files_changed()
            else:
                await self.progress.park()

    async def _free_arena(self, forgetter: Forgetter) -> memoryview:
        while not self._arenas.has_free:
            oldest = next(iter(self.residents.values()))
            if not oldest.is_indexed:
                await self.progress.park()
                continue
            await forgetter.forget(oldest)
            del self.residents[oldest.number]
            self._disk.close(oldest.file)
            self._arenas.give_back(oldest.image.view)
        return await self._arenas.take(self._config.bytes_after(self.active.image.size))

    async def _new_segment(self, number: int, view: memoryview) -> JournalSegment:
        while True:
            try:
                segment = await self._files.create(number, view, self._new_nonce())
            except DiskFull:
                self._is_disk_full = True
                self.wake_all()
                await trio.sleep(self._config.disk_full_retry_s)
            else:
                self._is_disk_full = False
                return segment

    def close_files(self) -> None:
        """Close the files of all segments in memory."""
        for segment in (*self.residents.values(), self._next):
            if segment is not None:
                self._disk.close(segment.file)


assert PAGE_BYTES == 4096, "the disk capability promises this alignment"
