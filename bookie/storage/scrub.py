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

**Restoring** needs intact copies, which others have. Whoever brings them (``bookie.server.rot``) hands all
entries of the run to ``restore``. They are appended to the journal as any add is, though they are stored: the
new run begins with the same id, so it takes the place of the rotten one in the index, and before that for
who reads what it holds. Entries that make more than one frame are appended last part first: what takes the
row's place must not be durable before that which the row named and it does not. A crash in between leaves the
rotten row, and two copies of some entries.

**What no row names** is read as well, a file at a time, since all of a file must be sound when the index is
to be made again. A file with rot there, and one whose rotten runs were restored, is handed to compaction
(``suspect``), which frees it.

**Compaction** must not touch the file of a rotten run while its copies are not indexed yet: what cannot be
read now may be read a second later, be put together with what follows it, and have one row for all of it,
which the copies' row would then take the place of. So such a file is *held* (``holds``), compaction that is
under way is waited for, and only then the row is looked at for the last time.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container, Sequence

import attrs
import trio

from bookie.core import rows
from bookie.core.ledger import LedgerState
from bookie.core.records import ADD, Run
from bookie.storage.catalogue import Catalogue
from bookie.storage.compaction import verify_frame
from bookie.storage.contents import Contents
from bookie.storage.files import FilePool
from bookie.storage.journal import Journal
from bookie.storage.ledgers import Ledgers
from bookie.storage.segments import Segment
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import DiskFull, StorageError
from ledgerlog.limits import MIB
from ledgerlog.wire.entries import Entries, encode_add

logger = logging.getLogger(__name__)

_BATCH_ROWS = 64
_BATCH_BYTES = MIB
_FIRST_PASS_S = 3600.0
"""A bookie that is started more often than it scrubs would never do it, so the first pass comes early."""


@attrs.frozen
class Rotten:
    """A run of which something does not read as it was written."""

    run: Run
    why: str


class Scrubber:
    """``residents``: the files that are in memory. ``compaction_rests`` returns once no compaction is under
    way that began before the call."""

    def __init__(
        self,
        *,
        journal: Journal,
        residents: Container[int],
        pool: FilePool,
        catalogue: Catalogue,
        ledgers: Ledgers,
        compaction_rests: Callable[[], Awaitable[None]],
        contents: Contents,
        suspect: Callable[[int], None],
        bytes_per_s: int,
    ) -> None:
        self.passes = 0
        self.runs_checked = 0
        self.bytes_checked = 0
        self.runs_restored = 0
        self.rotten: dict[tuple[int, int], Rotten] = {}
        """Runs that were found rotten and still are, by ledger and first id."""
        self.found = trio.Event()
        """Set, and another put in its place, by a pass that ends with rotten runs."""
        self._journal = journal
        self._residents = residents
        self._pool = pool
        self._catalogue = catalogue
        self._ledgers = ledgers
        self._compaction_rests = compaction_rests
        self._contents = contents
        self._suspect = suspect
        self._pace = Pace(bytes_per_s)
        self._held: dict[int, Segment | None] = {}
        """Files of rotten runs, and the segment with the last of their copies; None while these are made."""
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
                    self._suspect(row.file)
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

    def begins(self, state: LedgerState, first: int) -> bool:
        """Whether a run of the ledger begins with that id, pending ones included. Another one that does takes
        the place of its row, and only for a rotten run is one stored that has all that the row names."""
        if state.is_replaced(first, self._journal.commit.newest):
            return True
        return self._catalogue.index.get_now(rows.run_key(state.ledger_id, first)) is not None

    def hold(self, file: int) -> None:
        """Keep a file as it is until all that is in the journal now is indexed."""
        if self._held.get(file, self._journal.active) is not None:
            self._held[file] = self._journal.active

    def on_mended(self, run: Run) -> None:
        """Somebody else put another run in the place of this one (``bookie.storage.mending``)."""
        self.runs_restored += 1
        self.rotten.pop((run.ledger_id, run.first), None)
        self._suspect(run.file)

    def holds(self, file: int) -> bool:
        """Whether a file must stay as it is for now."""
        if file not in self._held:
            return False
        segment = self._held[file]
        if segment is None or not segment.is_indexed:
            return True
        del self._held[file]
        return False

    # --- restoring --------------------------------------------------------------------------------

    async def restore(self, rotten: Rotten, parts: Sequence[Entries], *, lac: int, lafr: int) -> bool:
        """Store the entries of a rotten run again, durably; ``parts`` are all of them, in order, the first of
        which begins where the run does, and each fits a frame. Their digests were verified. False: it is not
        there any more as it was found, or a part behind the first begins where another run does, and nothing
        was changed.

        DiskFull: there is no room, and some of it may be stored twice."""
        assert parts[0].first == rotten.run.first
        assert parts[-1].last >= rotten.run.last
        async with self._restoring:
            self._held[rotten.run.file] = None
            try:
                await self._compaction_rests()
                return await self._restore(rotten.run, parts, lac=lac, lafr=lafr)
            finally:
                self._held[rotten.run.file] = self._journal.active

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
        if any(self.begins(state, part.first) for part in parts[1:]):
            return False
        state.pins += 1
        try:
            for entries in reversed(parts):
                raw = b"".join(encode_add(entries, lac=lac, lafr=lafr, key=state.key, recovery=True))
                while (offset := journal.append(ADD, raw)) is None:
                    if journal.is_disk_full:
                        raise DiskFull(f"no room for another copy of entries of ledger {run.ledger_id}")
                    await journal.progress.park()
                segment = journal.active
                copy = Run(
                    run.ledger_id,
                    entries.first,
                    entries.last,
                    len(entries),
                    segment.image.number,
                    offset,
                    len(raw),
                    journal.commit.sequence,
                )
                segment.runs.append(copy)
                segment.restored.add((copy.ledger_id, copy.first))
                state.on_run(copy)
            await journal.wait_durable(journal.commit.newest)
        finally:
            state.pins -= 1
        self.on_mended(run)
        return True
