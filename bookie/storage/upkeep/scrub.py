"""Scrubbing: read all stored entries at intervals, and replace damaged ones.

A disk can return other bytes than were written, or none, without an error. Other copies help only while they
exist, so damage must be found before it reaches every copy. A *run* is a frame of entries of one ledger,
stored in one piece. A *pass* goes through every run that the index names, in the order of the index. It reads
each run from its segment or entry log, at no more than ``bytes_per_s``, and makes the same checks as for a
reader: the frame checksum, the ids, and the digest of each entry. It skips runs that are in memory, because
their entries may not be in a file yet. And it skips runs of deleted ledgers: their rows may still name a file
that compaction has removed.

If a run fails the check, it is *rotten*: ``rotten`` remembers the run, and a log line reports it. Nothing
else changes. The run stays in the index, because a bookie never denies an entry that its index names (rule
8). Readers get CORRUPT or IO_ERROR for the damaged entries, and ask another bookie. The run is rotten until
it reads well again, its ledger is deleted, or it is restored.

**Restoring** needs intact copies from other bookies. ``bookie.server.corruption`` fetches them and gives all
entries of the run to ``restore``. ``restore`` appends these entries to the journal like an add, although the
bookie has stored them already, and they replace the damaged run (``bookie.storage.upkeep.replacing``). The
order is: make compaction leave the run's file alone (``Compactor.holding``), wait for the current compaction
job, and only then check the run's row for the last time.

**The index** is read completely too, and first. For this it is closed and opened again, so a pass on a full
disk ends at once. If a row or a block of the index is damaged, the index remembers that
(``bookie.storage.index.patient``), and the bookie makes the index again (``bookie.server.healing``).

**Parts of files that no row names** are read too, one file at a time, because the index can be rebuilt only
from files that are wholly intact. Compaction rewrites a file with damage in such a part, and a file whose
damaged runs were restored (``suspect``).
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence

import trio

from bookie.core import rows
from bookie.core.frames import decode_run
from bookie.core.journal_items import EntryRun
from bookie.core.ledger import BookieLedger
from bookie.storage.engine.ledgers import LedgerTable
from bookie.storage.entrylog.contents import FileContents
from bookie.storage.entrylog.file_pool import FilePool
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.index.patient import PatientIndex
from bookie.storage.journal.journal import Journal
from bookie.storage.upkeep.compaction import Compactor, verify_frame
from bookie.storage.upkeep.replacing import DamagedRun, Replacer
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import DiskFull, StorageError
from ledgerlog.event_log import ROTTEN, tell
from ledgerlog.limits import MIB
from ledgerlog.wire.entries import Entries

logger = logging.getLogger(__name__)

_BATCH_ROWS = 64
_BATCH_BYTES = MIB
_FIRST_PASS_S = 3600.0
"""The longest wait before the first pass. Without this limit, a bookie that restarts more often than it
scrubs would never scrub."""


class Scrubber:
    """Finds damaged runs, and stores their entries again.

    Args:
        residents: The files that are in memory; scrubbing skips them.
        bytes_per_s: The highest rate of reading.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        residents: Container[int],
        pool: FilePool,
        index: PatientIndex,
        catalogue: Catalogue,
        ledgers: LedgerTable,
        contents: FileContents,
        compactor: Compactor,
        replacer: Replacer,
        bytes_per_s: int,
    ) -> None:
        self.passes = 0
        self.runs_checked = 0
        self.bytes_checked = 0
        self.rotten = replacer.rotten
        """Damaged runs that are not restored yet, by ledger and first id."""
        self.found = trio.Event()
        """Set at the end of a pass that leaves damaged runs; a new event then takes its place."""
        self._journal = journal
        self._residents = residents
        self._pool = pool
        self._index = index
        self._catalogue = catalogue
        self._ledgers = ledgers
        self._contents = contents
        self._compactor = compactor
        self._replacer = replacer
        self._pace = Pace(bytes_per_s)
        self._is_regular = False
        self._wanted = trio.Event()
        self._lock = trio.Lock()
        self._restoring = trio.Lock()

    # --- finding ----------------------------------------------------------------------------------

    async def run(self, *, interval_s: float, at_once: bool = False) -> None:
        """Scrub every ``interval_s`` seconds, and after each ``prompt``, until you cancel this. This does not
        raise if something cannot be read.

        Args:
            interval_s: Seconds from the end of one pass to the next.
            at_once: Begin the first pass now.
        """
        self._is_regular = True
        if not at_once:
            await self._pause(min(interval_s, _FIRST_PASS_S))
        while True:
            await self.scrub()
            await self._pause(interval_s)

    def prompt(self) -> bool:
        """Ask for a pass now, or another one after the present one. Return False if scrubbing is switched
        off."""
        self._wanted.set()
        return self._is_regular

    async def _pause(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._wanted.wait()
        self._wanted = trio.Event()

    async def scrub(self) -> int:
        """Make one pass, and return how many runs are damaged now. A second caller waits for the first."""
        async with self._lock:
            try:
                await self.check_index(self._pace)
                await self._pass()
                await self._check_files()
            except StorageError as trouble:
                logger.error("scrubbing ends early: %s", trouble)
            else:
                self.passes += 1
            if self.rotten:
                found, self.found = self.found, trio.Event()
                found.set()
            return len(self.rotten)

    async def check_index(self, pace: Pace | None = None) -> None:
        """Read the whole index from the disk.

        Args:
            pace: Read no faster than this allows. None: as fast as the disk allows.

        Raises:
            StorageCorrupt: The index is damaged. ``PatientIndex.damage`` is set too.
        """
        await self._index.refresh()
        with self._index.noting_damage():
            await self._catalogue.check(pace)

    async def _pass(self) -> None:
        start, stop = rows.run_key(0, 0), rows.run_key(2**64 - 1, 2**64 - 1)
        seen: set[tuple[int, int]] = set()
        while True:
            with self._pool.reading():
                part = await self._catalogue.index.scan(start, stop, floor=start, limit=_BATCH_ROWS)
                size = taken = 0
                looked_at, is_deleted = -1, False
                for key, value in part:
                    run = rows.decode_run(key, value, self._catalogue.path)
                    taken += 1
                    if run.ledger_id != looked_at:
                        looked_at = run.ledger_id
                        is_deleted = self._ledgers.is_deleted(run.ledger_id)
                    if not is_deleted and run.file not in self._residents and not self._is_superseded(run):
                        size += run.length
                        if await self._check(run):
                            self.rotten.pop((run.ledger_id, run.first), None)
                        else:
                            seen.add((run.ledger_id, run.first))
                    if size >= _BATCH_BYTES:
                        break
            if taken == len(part) < _BATCH_ROWS:
                break
            start = part[taken - 1][0] + b"\0"
            await self._pace.pass_through(size)
        for gone in self.rotten.keys() - seen:
            del self.rotten[gone]

    async def _check_files(self) -> None:
        """Read each file completely, to find damage that no row names.

        Such damage lies in a head, or in a run of a deleted ledger. No reader would find it, but the index
        could not be rebuilt from the file. Compaction removes the file.
        """
        with_rotten_runs = {rotten.run.file for rotten in self.rotten.values()}
        for row in (*await self._catalogue.segments(), *await self._catalogue.logs()):
            if row.file in self._residents or row.file in with_rotten_runs:
                continue
            try:
                await self._contents.read(row, pace=self._pace)
            except StorageError as damage:
                # The file may have been rewritten after the row was read: it may be gone or have a new row.
                if await self._catalogue.file(row.file) == row:
                    logger.error("damaged, but in a part of the file that no live entry needs: %s", damage)
                    self._compactor.suspect(row.file)
            self.bytes_checked += row.end

    async def _check(self, run: EntryRun) -> bool:
        """Whether a run reads as it was written. Updates ``rotten``."""
        path = self._pool.path_of(run.file)
        try:
            (frame,) = await self._pool.read(run.file, [(run.offset, run.length)])
            verify_frame(run, frame, path)
        except StorageError as damage:
            before = self.rotten.get((run.ledger_id, run.first))
            self.rotten[run.ledger_id, run.first] = DamagedRun(run, str(damage))
            if before is None or before.run != run:
                tell(
                    logger,
                    ROTTEN,
                    "rotten: ledger=%(ledger)d entries=%(first)d..%(last)d: %(why)s",
                    ledger=run.ledger_id,
                    first=run.first,
                    last=run.last,
                    why=str(damage),
                )
            return False
        finally:
            self.runs_checked += 1
            self.bytes_checked += run.length
        return True

    def _is_superseded(self, run: EntryRun) -> bool:
        """Whether the run's entries were stored again. The row of the copy will then overwrite this run's
        row."""
        state = self._ledgers.loaded.get(run.ledger_id)
        # If a ledger has runs in memory, its state is in memory.
        return state is not None and state.is_replaced(run.first, self._journal.commit.newest)

    def _is_as_found(self, run: EntryRun) -> bool:
        """Whether the run is still stored as a pass found it, and its ledger is not deleted."""
        state = self._ledgers.get(run.ledger_id)
        return (
            state is not None
            and not state.is_deleted
            and not self._is_superseded(run)
            and self._catalogue.names_now(run)
        )

    # --- restoring --------------------------------------------------------------------------------

    async def restore(self, rotten: DamagedRun, parts: Sequence[Entries], *, lac: int, lafr: int) -> bool:
        """Store the entries of a damaged run again, durably.

        Args:
            rotten: The run, as a pass found it.
            parts: All entries of the run up to the ledger's end, in order. The first part begins where the
                run begins. Each part fits into one frame. The caller has verified their digests.
            lac: The ledger's LAC to store with them.
            lafr: The ledger's LAFR to store with them.

        Returns:
            False if nothing was changed: the run is no longer stored as it was found, or a later part begins
            at the first id of another run.

        Raises:
            DiskFull: There is no room. Some of the entries may be stored twice. A later call goes on from
                there.
        """
        assert parts[0].first == rotten.run.first
        assert parts[-1].last >= rotten.run.last or lac < rotten.run.last, (
            "the parts hold all entries of the run up to the ledger's end"
        )
        async with self._restoring, self._compactor.holding(rotten.run.file):
            return await self._restore(rotten.run, parts, lac=lac, lafr=lafr)

    async def forget(self, rotten: DamagedRun) -> bool:
        """Drop a damaged run from the index. Compaction rewrites its file without it.

        The caller has made sure that the ledger is closed, and that the whole run lies after the ledger's
        end.

        Args:
            rotten: The run, as a pass found it.

        Returns:
            False if nothing was changed: the run is no longer stored as it was found.
        """
        run = rotten.run
        async with self._restoring, self._compactor.holding(run.file):
            self.rotten.pop((run.ledger_id, run.first), None)
            if not self._is_as_found(run):
                return False
            await self._catalogue.write([(rows.run_key(run.ledger_id, run.first), None)])
            self._compactor.suspect(run.file)
            return True

    async def _restore(self, run: EntryRun, parts: Sequence[Entries], *, lac: int, lafr: int) -> bool:
        journal, state = self._journal, self._ledgers.get(run.ledger_id)
        if state is None:
            self.rotten.pop((run.ledger_id, run.first), None)
            return False
        with state.pinned():
            rest = [part for part in parts if part is parts[0] or not await self._is_stored(state, part)]
            while True:
                if not self._is_as_found(run):
                    self.rotten.pop((run.ledger_id, run.first), None)
                    return False
                if not self._replacer.fits(state, rest):
                    return False
                if self._replacer.replace(state, run, rest, lac=lac, lafr=lafr):
                    break
                if journal.is_disk_full:
                    raise DiskFull(f"no room for another copy of entries of ledger {run.ledger_id}")
                await journal.progress.park()
            await journal.wait_durable(journal.commit.newest)
        return True

    async def _is_stored(self, state: BookieLedger, part: Entries) -> bool:
        """Whether a sound and durable run begins with the part's first id and holds its entries. If a restore
        was stopped by a full disk or a crash, its last parts are stored like this."""
        try:
            found = self._pending(state, part.first) or await self._indexed(state, part.first)
            if found is None:
                return False
            run, frame = found
            verify_frame(run, frame, self._pool.path_of(run.file))
        except StorageError:
            return False
        stored = decode_run(run, frame)
        digests = dict(zip(stored.ids, stored.digests, strict=True))
        return all(digests.get(e) == digest for e, digest in zip(part.ids, part.digests, strict=True))

    def _pending(self, state: BookieLedger, first: int) -> tuple[EntryRun, bytes] | None:
        """Return the durable run of the journal in memory that begins with this id, and its frame.

        The frame comes from memory: the segment's file may be gone already, or may go at any time.
        """
        for run in state.runs_between(first, first):
            segment = self._journal.residents.get(run.file)
            if run.first == first and run.sequence <= self._journal.commit.durable and segment is not None:
                return run, bytes(segment.image.view[run.offset : run.offset + run.length])
        return None

    async def _indexed(self, state: BookieLedger, first: int) -> tuple[EntryRun, bytes] | None:
        """Return the run that the index has under this first id, and its frame."""
        key = rows.run_key(state.ledger_id, first)
        with self._pool.reading():
            value = self._catalogue.index.get_now(key)
            if value is None:
                return None
            run = rows.decode_run(key, value, self._catalogue.path)
            (frame,) = await self._pool.read(run.file, [(run.offset, run.length)])
            return run, frame
