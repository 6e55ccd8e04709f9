"""Scrubbing: what is stored is read now and then, though nobody asks for it, and what is rotten is replaced.

A disk gives back other bytes than were written, or none, and tells nobody. Copies elsewhere help as long as
they are there, so rot has to be found before it is everywhere. A *pass* goes through every run that the index
names, in the order of the index, and reads it from the segment or entry log where it lies, at no more than
``bytes_per_s``; frame checksum, ids and the digest of each entry are compared as for a reader. What is in
memory, and will yet be written, is passed over.

A run that fails is *rotten*: it is kept in ``rotten`` and said in the log. Nothing else changes. It stays in
the index, because what the index names is never denied: readers are told CORRUPT or IO_ERROR for those of
its entries that do not match, and turn to another bookie (rule 8). It counts as rotten until it reads well
again, its ledger is deleted, or it was restored.

**Restoring** needs intact copies, which others have. Whoever brings them (``bookie.server.corruption``) hands
all entries of the run to ``restore``. They are appended to the journal as any add is, though they are stored,
and take the place of the rotten run (``bookie.storage.upkeep.replacing``). The file of the rotten run is held
before anything is decided: compaction that is under way is waited for, and only then the row is looked at for
the last time.

**What no row names** is read as well, a file at a time, since all of a file must be sound when the index is
to be made again. A file with rot there, and one whose rotten runs were restored, is handed to compaction
(``suspect``), which frees it.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence

import trio

from bookie.core import rows
from bookie.core.records import Run
from bookie.storage.engine.ledgers import Ledgers
from bookie.storage.entrylog.contents import Contents
from bookie.storage.entrylog.file_pool import FilePool
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.journal.journal import Journal
from bookie.storage.upkeep.compaction import Compactor, verify_frame
from bookie.storage.upkeep.replacing import Replacer, Rotten
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import DiskFull, StorageError
from ledgerlog.limits import MIB
from ledgerlog.wire.entries import Entries

logger = logging.getLogger(__name__)

_BATCH_ROWS = 64
_BATCH_BYTES = MIB
_FIRST_PASS_S = 3600.0
"""A bookie that is started more often than it scrubs would never do it, so the first pass comes early."""


class Scrubber:
    """``residents``: the files that are in memory."""

    def __init__(
        self,
        *,
        journal: Journal,
        residents: Container[int],
        pool: FilePool,
        catalogue: Catalogue,
        ledgers: Ledgers,
        contents: Contents,
        compactor: Compactor,
        replacer: Replacer,
        bytes_per_s: int,
    ) -> None:
        self.passes = 0
        self.runs_checked = 0
        self.bytes_checked = 0
        self.rotten = replacer.rotten
        """Runs that were found rotten and still are, by ledger and first id."""
        self.found = trio.Event()
        """Set, and another put in its place, by a pass that ends with rotten runs."""
        self._journal = journal
        self._residents = residents
        self._pool = pool
        self._catalogue = catalogue
        self._ledgers = ledgers
        self._contents = contents
        self._compactor = compactor
        self._replacer = replacer
        self._pace = Pace(bytes_per_s)
        self._lock = trio.Lock()
        self._restoring = trio.Lock()

    # --- finding ----------------------------------------------------------------------------------

    async def run(self, *, interval_s: float) -> None:
        """A pass now and then, for ever. What cannot be read is a finding and no failure."""
        await trio.sleep(min(interval_s, _FIRST_PASS_S))
        while True:
            await self.scrub()
            await trio.sleep(interval_s)

    async def scrub(self) -> int:
        """One pass; how many runs are rotten now. One caller after the other."""
        async with self._lock:
            try:
                await self._pass()
                await self._check_files()
            except StorageError as trouble:
                logger.error("scrubbing ends early, the index cannot be read: %s", trouble)
            else:
                self.passes += 1
            if self.rotten:
                found, self.found = self.found, trio.Event()
                found.set()
            return len(self.rotten)

    async def _pass(self) -> None:
        start, stop = rows.run_key(0, 0), rows.run_key(2**64 - 1, 2**64 - 1)
        seen: set[tuple[int, int]] = set()
        while True:
            with self._pool.reading():
                part = await self._catalogue.index.scan(start, stop, floor=start, limit=_BATCH_ROWS)
                size = taken = 0
                for key, value in part:
                    run = rows.decode_run(key, value, self._catalogue.path)
                    taken += 1
                    if run.file not in self._residents and not self._is_superseded(run):
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
        """Read the files whole: rot in what no row names, a head or a deleted ledger's run, is nobody's
        finding, until the index is to be made again from the files. Compaction frees it."""
        with_rotten_runs = {rotten.run.file for rotten in self.rotten.values()}
        for row in (*await self._catalogue.segments(), *await self._catalogue.logs()):
            if row.file in self._residents or row.file in with_rotten_runs:
                continue
            try:
                await self._contents.read(row, pace=self._pace)
            except StorageError as damage:
                # It may have been written again, and be gone or another segment's, since the row was read.
                if await self._catalogue.file(row.file) == row:
                    logger.error("rotten: in what no entry that counts needs: %s", damage)
                    self._compactor.suspect(row.file)
            self.bytes_checked += row.end

    async def _check(self, run: Run) -> bool:
        """Whether a run reads as it was written."""
        path = self._pool.path_of(run.file)
        try:
            (frame,) = await self._pool.read(run.file, [(run.offset, run.length)])
            verify_frame(run, frame, path)
        except StorageError as damage:
            before = self.rotten.get((run.ledger_id, run.first))
            self.rotten[run.ledger_id, run.first] = Rotten(run, str(damage))
            if before is None or before.run != run:
                logger.error(
                    "rotten: ledger=%d entries=%d..%d: %s", run.ledger_id, run.first, run.last, damage
                )
            return False
        finally:
            self.runs_checked += 1
            self.bytes_checked += run.length
        return True

    def _is_superseded(self, run: Run) -> bool:
        """Whether its entries were stored again, and its row is about to be theirs."""
        state = self._ledgers.loaded.get(run.ledger_id)
        # A state with runs in memory is itself in memory.
        return state is not None and state.is_replaced(run.first, self._journal.commit.newest)

    # --- restoring --------------------------------------------------------------------------------

    async def restore(self, rotten: Rotten, parts: Sequence[Entries], *, lac: int, lafr: int) -> bool:
        """Store the entries of a rotten run again, durably; ``parts`` are all of them, in order, the first of
        which begins where the run does, and each fits a frame. Their digests were verified. False: it is not
        there any more as it was found, or a part behind the first begins where another run does, and nothing
        was changed.

        DiskFull: there is no room, and some of it may be stored twice."""
        assert parts[0].first == rotten.run.first
        assert parts[-1].last >= rotten.run.last
        async with self._restoring, self._compactor.holding(rotten.run.file):
            return await self._restore(rotten.run, parts, lac=lac, lafr=lafr)

    async def _restore(self, run: Run, parts: Sequence[Entries], *, lac: int, lafr: int) -> bool:
        journal = self._journal
        state = self._ledgers.get(run.ledger_id)
        if (
            state is None
            or state.is_deleted
            or self._is_superseded(run)
            or not self._catalogue.names_now(run)
        ):
            self.rotten.pop((run.ledger_id, run.first), None)
            return False
        if not self._replacer.fits(state, parts):
            return False
        rest = list(parts)
        state.pins += 1
        try:
            while not self._replacer.replace(state, run, rest, lac=lac, lafr=lafr):
                if journal.is_disk_full:
                    raise DiskFull(f"no room for another copy of entries of ledger {run.ledger_id}")
                await journal.progress.park()
            await journal.wait_durable(journal.commit.newest)
        finally:
            state.pins -= 1
        return True
