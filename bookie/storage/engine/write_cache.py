"""The write cache: adds that skip the journal are acknowledged from memory, and written sorted, once, later.

    add ---> frame copied into the active arena ---> acknowledged at once
    active arena full, or old ---> sealed ---> one sorted entry log, synced, indexed (``Rewriter.flush``)
                                          ---> its runs leave the ledgers' memory, the arena is free

A bookie with a write cache writes every entry once. A crash loses the entries that were not flushed. The
unclean bit (``bookie.core.loss_marks``) tells the next start about this, and the bookie comes back through
limbo. The cache takes entries only: fences go to the journal, and so does the first add of each ledger,
because it brings the ledger's key.

**Addresses.** A *run* is a frame of entries of one ledger, stored in one piece. A run in memory names its
arena by a number that no file has, from ``_FIRST_NUMBER`` on. Readers find the arena in ``residents``, like
the segments of the journal in memory. Once the arena's entries are in an entry log and in the index, the
ledgers forget its runs. The arena is reused once every read that may have found these runs has ended.

**Room.** While one arena is flushed, another takes adds. If all are full, adds wait (``has_room``). If the
disk has no room for the entry log, the flush is tried again every ``disk_full_retry_s`` seconds, and until
then the bookie refuses ordinary adds.

**Age.** Entries that are in memory for ``age_s`` seconds are flushed even if their arena is not full. So a
bookie with few adds loses little in a crash.
"""

from __future__ import annotations

import logging
from collections import deque

import attrs
import trio

from bookie.core.file_set import FileSet
from bookie.core.journal import SegmentImage
from bookie.core.journal_items import EntryRun
from bookie.core.rows import Change
from bookie.storage.engine.forgetting import Forgetter
from bookie.storage.entrylog.rewriting import Rewriter
from bookie.storage.journal.arenas import Arenas
from bookie.storage.journal.journal import Journal
from ledgerlog.errors import DiskFull

logger = logging.getLogger(__name__)

_FIRST_NUMBER = 2**62


@attrs.define(eq=False)
class CachedArena:
    """An arena with entries that are in no file yet."""

    image: SegmentImage
    runs: list[EntryRun] = attrs.field(factory=list)
    used: int = 0
    """Bytes of entries in it."""
    begun_at: float = 0.0
    """The trio time at which the first run came."""
    flushed_to: int | None = None
    """The number of the entry log with its entries; None if they are not flushed."""
    restored: frozenset[tuple[int, int]] = frozenset()
    """Always empty, because replacements of damaged runs go through the journal."""

    @property
    def number(self) -> int:
        return self.image.number


class WriteCache:
    """The arenas that take adds, and their flushes."""

    def __init__(
        self,
        *,
        arenas: Arenas,
        journal: Journal,
        rewriter: Rewriter,
        forgetter: Forgetter,
        records_max: int,
        frame_bytes_max: int,
        age_s: float,
        disk_full_retry_s: float,
    ) -> None:
        self.residents: dict[int, CachedArena] = {}
        """The arenas that hold entries, by number."""
        self.is_disk_full = False
        self.flushes = 0
        self._refusals = 0
        """How many flushes found no room on the disk."""
        self._arenas = arenas
        self._journal = journal
        self._rewriter = rewriter
        self._forgetter = forgetter
        self._records_max = records_max
        self._frame_bytes_max = frame_bytes_max
        self._age_s = age_s
        self._disk_full_retry_s = disk_full_retry_s
        self._number = _FIRST_NUMBER
        self._active: CachedArena
        self._next: CachedArena | None = None
        self._sealed: deque[CachedArena] = deque()
        self._progress = trio.lowlevel.ParkingLot()
        """Woken when an arena is sealed, flushed, or made."""

    async def prepare(self) -> None:
        """Make the first arena. Call it before any other method."""
        self._active = await self._make()

    @property
    def unflushed_bytes(self) -> int:
        """Bytes of entries that a crash would lose now."""
        return sum(arena.used for arena in self.residents.values())

    # --- appending --------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether a batch of adds has room now."""
        return self._next is not None or self._fits(2 * self._frame_bytes_max, self._records_max)

    def _fits(self, length: int, records_max: int) -> bool:
        active = self._active
        return len(active.image.view) - active.used >= length and len(active.runs) < records_max

    def append(self, raw: bytes | memoryview) -> tuple[int, int] | None:
        """Copy a frame into memory.

        Returns:
            The number of the arena and the frame's offset in it, or None if there is no room now.
        """
        length = len(raw)
        has_room = self._fits(length, self._records_max) or self._roll()
        if not has_room:
            # While the disk is full, only recovery adds, and there is a reserve for it, as in the journal.
            is_disk_full = self.is_disk_full or self._journal.is_disk_full
            if not is_disk_full or not self._fits(length, 2 * self._records_max):
                return None
        active = self._active
        at = active.used
        active.image.view[at : at + length] = raw
        active.used = at + length
        return active.number, at

    def on_run(self, run: EntryRun) -> None:
        """Note the run of the last appended frame."""
        active = self._active
        assert run.file == active.number
        if not active.runs:
            active.begun_at = trio.current_time()
        active.runs.append(run)

    def _roll(self) -> bool:
        """Continue in the next arena. Return False if no next arena is ready."""
        if self._next is None:
            return False
        self._sealed.append(self._active)
        self._active, self._next = self._next, None
        self._progress.unpark_all()
        return True

    # --- tasks ------------------------------------------------------------------------------------

    async def run_flushes(self) -> None:
        """Flush full and old arenas, forever. If the disk is full, wait and try again.

        Raises:
            StorageError: The disk or the index failed.
        """
        while True:
            if self._sealed:
                try:
                    await self._flush_oldest()
                except DiskFull as full:
                    if not self.is_disk_full:
                        logger.warning("entries stay in memory for now: %s", full)
                    self.is_disk_full = True
                    self._refusals += 1
                    self._progress.unpark_all()
                    self._journal.room.unpark_all()
                    await trio.sleep(self._disk_full_retry_s)
                continue
            active = self._active
            due = (active.begun_at if active.runs else trio.current_time()) + self._age_s
            with trio.move_on_at(due) as patience:
                await self._progress.park()
            if patience.cancelled_caught and active is self._active and active.runs:
                self._roll()

    async def run_supply(self) -> None:
        """Keep the next arena ready, forever. Raises StorageError if there is no memory for it."""
        while True:
            if self._next is None and self._arenas.has_free:
                self._next = await self._make()
                self._progress.unpark_all()
                self._journal.room.unpark_all()
            else:
                await self._progress.park()

    async def _make(self) -> CachedArena:
        view = await self._arenas.take()
        arena = CachedArena(SegmentImage(self._number, b"", view))
        self._number += 1
        self.residents[arena.number] = arena
        return arena

    async def _flush_oldest(self) -> None:
        arena = self._sealed[0]

        def changes(log: int) -> list[Change]:
            arena.flushed_to = log
            return []

        if arena.runs:
            await self._rewriter.flush(
                runs=arena.runs,
                marked=(),
                view=arena.image.view,
                replaced=FileSet(),
                indexed=0,
                changes=changes,
            )
        self.is_disk_full = False
        self.flushes += 1
        await self._forgetter.forget(arena)
        self._journal.on_files_changed()
        self._sealed.popleft()
        del self.residents[arena.number]
        self._arenas.give_back(arena.image.view)
        self._progress.unpark_all()
        self._journal.room.unpark_all()

    async def flush(self) -> None:
        """Wait until everything appended so far is in entry logs and in the index, durably.

        Raises:
            DiskFull: The disk has no room. The entries stay in memory.

        Cancelling: only the wait ends; ``run_flushes`` does the work.
        """
        refusals = self._refusals  # A flush that was refused earlier may find room now.
        last = self._active
        while last is self._active and last.runs and not self._roll():
            await self._wait_progress(refusals)
        waited = [arena.number for arena in self._sealed]
        while any(number in self.residents for number in waited):
            await self._wait_progress(refusals)

    async def _wait_progress(self, refusals: int) -> None:
        if self._refusals > refusals:
            raise DiskFull("the disk has no room for the entries that are in memory")
        await self._progress.park()
