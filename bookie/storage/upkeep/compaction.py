"""Compaction: rewriting files that are mostly dead, or whose runs are small.

``bookie.core.space`` decides what to rewrite. This module does it, one job at a time:

    1  list the runs of each source file. A *run* is a frame of entries of one ledger, stored in one piece. To
       find them, read the blocks of a segment, or the records of an entry log
    2  copy the live runs into a new log, at no more than ``bytes_per_s`` (``Rewriter.replace``). A run is
       live if the index names it and its ledger exists
    3  remove the sources

Threads read the files, in ranges. Writes are made in pieces, and the journal's writes come first. The event
loop does the rest of the work, in steps of about a millisecond. At any time the memory holds at most the
image of one segment, the list of a job's runs (the policy bounds it) and one piece. Every frame is verified
before it is copied.

**Corruption.** If a file fails its checks, the list of its live runs comes from the index
(``bookie.storage.entrylog.contents``). If all live runs can be read, the corruption does not touch them. Then
the file is rewritten, and the corruption disappears with the old file. If a live run cannot be read, the file
may be the only trace of its entries. Then the file stays unchanged until the index no longer names that run,
and the bookie logs the damage. If the index could not be read, each round tries again. A client that reads a
damaged entry gets CORRUPT, and reads the entry from another bookie. If a file is known to hold corruption
(``suspect``), it is rewritten as soon as possible, no matter how much of it is live. The reason: while the
file exists, the index cannot be rebuilt from the files.

A full disk ends a job, and the next round tries again. Compaction does not touch files that are in memory or
that the journal still needs. It also does not touch a *held* file (``hold``, ``holding``): one of its runs is
damaged, and the copies that replace the run are not indexed yet (``bookie.storage.upkeep.replacing``).

Nor does compaction touch an entry log while the entries that were flushed to it are also in memory. It might
join the first of these runs with a run of another file, under one row. But readers prefer a run in memory to
the row with the same first id, so they would not find the entries of the other file.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager

import attrs
import trio

from bookie.core import rows
from bookie.core.file_set import FileSet
from bookie.core.frames import decode_run
from bookie.core.journal_items import EntryRun
from bookie.core.rows import FileRow
from bookie.core.space import ROTTEN, Job, JobSearch, SpacePolicy, SpaceUse
from bookie.storage.disk.ballast import Ballast
from bookie.storage.engine.reader import Resident
from bookie.storage.entrylog.contents import FileContents
from bookie.storage.entrylog.entry_logs import UnreadableSource
from bookie.storage.entrylog.file_pool import FilePool
from bookie.storage.entrylog.rewriting import Rewriter
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.index.index import NOT_NOW
from bookie.storage.journal.journal import Journal
from bookie.storage.journal.segments import JournalSegment
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import StorageCorrupt, StorageError, WireError
from ledgerlog.wire.frame import HEADER_BYTES

logger = logging.getLogger(__name__)

_SCAN_ROWS = 256
_STEP_FILES = 512
"""How many files are looked at between two checkpoints."""


@attrs.frozen
class UnreadableFile:
    """The reason that a file cannot be rewritten."""

    why: str
    run: EntryRun | None
    """The live run that cannot be read. None: the index itself cannot be read."""


class Compactor:
    """Rewrites files. It also knows the files that it must leave alone."""

    def __init__(
        self,
        *,
        journal: Journal,
        residents: Mapping[int, Resident],
        contents: FileContents,
        pool: FilePool,
        catalogue: Catalogue,
        rewriter: Rewriter,
        ballast: Ballast,
        policy: SpacePolicy,
        bytes_per_s: int,
    ) -> None:
        self.jobs = 0
        self.bytes_freed = 0
        self.damaged: dict[int, UnreadableFile] = {}
        """The files that cannot be rewritten, each with the reason."""
        self.space = SpaceUse()
        """The files at the last look."""
        self._suspects: set[int] = set()
        self._held: dict[int, JournalSegment | None] = {}
        """Held files, each with the segment that must be indexed before the file is released. None: the file
        is held until the body of ``holding`` ends."""
        self._journal = journal
        self._residents = residents
        self._contents = contents
        self._pool = pool
        self._catalogue = catalogue
        self._rewriter = rewriter
        self._ballast = ballast
        self._policy = policy
        self._pace = Pace(bytes_per_s)
        self._lock = trio.Lock()
        self._sources: frozenset[int] = frozenset()
        """The files that the current job rewrites."""

    # --- files to leave alone ----------------------------------------------------------------------

    def is_moving(self, file: int) -> bool:
        """Whether the current job rewrites this file."""
        return file in self._sources

    def hold(self, file: int) -> None:
        """Leave a file alone until everything that is in the journal now is indexed."""
        if self._held.get(file, self._journal.active) is not None:
            self._held[file] = self._journal.active

    @asynccontextmanager
    async def holding(self, file: int) -> AsyncIterator[None]:
        """Leave a file alone during the body. After the body, do as ``hold`` does.

        Entering waits until the current job ends. One caller at a time.
        """
        self._held[file] = None
        try:
            async with self._lock:
                pass  # A job that began before the file was held has ended now.
            yield
        finally:
            self._held[file] = self._journal.active

    def holds(self, file: int) -> bool:
        """Whether a file must be left alone for now."""
        if file not in self._held:
            return False
        segment = self._held[file]
        if segment is None or not segment.is_indexed:
            return True
        del self._held[file]
        return False

    def _is_busy(self, file: int) -> bool:
        return (
            file in self._residents
            or any(resident.flushed_to == file for resident in self._residents.values())
            or self.holds(file)
        )

    def suspect(self, file: int) -> None:
        """Rewrite this file as soon as all its live runs can be read.

        The file holds corruption, or it held corrupted runs whose entries were stored again.
        """
        self._suspects.add(file)
        self.damaged.pop(file, None)

    # --- jobs --------------------------------------------------------------------------------------

    async def run(self, *, interval_s: float, eventual_interval_s: float) -> None:
        """Compact at intervals, until cancelled.

        Args:
            interval_s: Seconds between two rounds.
            eventual_interval_s: Seconds between two rounds that also do the eventual jobs of the policy.

        Raises:
            StorageError: A write to the disk or to the index failed.
        """
        eventual_at = trio.current_time() + eventual_interval_s
        while True:
            await trio.sleep(interval_s)
            is_eventual = trio.current_time() >= eventual_at
            if is_eventual:
                eventual_at = trio.current_time() + eventual_interval_s
            await self.compact(is_eventual=is_eventual)

    async def compact(self, *, is_eventual: bool) -> int:
        """Do every job that is due, and return how many. A second caller waits for the first."""
        async with self._lock:
            for file, damage in list(self.damaged.items()):
                if damage.run is None:
                    self.suspect(file)  # The index could not be read. Perhaps it can be now.
            done = await self._compact(is_eventual=is_eventual)
            self.jobs += done
            return done

    async def _compact(self, *, is_eventual: bool) -> int:
        done = 0
        while True:
            try:
                if (job := await self._next_job(is_eventual=is_eventual)) is None:
                    break
                # There was no checkpoint since ``_next_job`` checked that the files are not busy.
                self._sources = frozenset(row.file for row in job.sources)
                await self._do(job)
            except NOT_NOW as trouble:
                logger.warning("compaction waits: %s", trouble)
                break
            except UnreadableSource as damage:
                self.damaged[damage.file] = UnreadableFile(str(damage), damage.run)
                self._suspects.discard(damage.file)
                logger.error("not compacted, and kept unchanged: %s", damage)
                continue
            finally:
                self._sources = frozenset()
            self._suspects.difference_update(row.file for row in job.sources)
            done += 1
        return done

    async def _next_job(self, *, is_eventual: bool) -> Job | None:
        """Return the next job. There is no checkpoint after the check that its files may be touched."""
        while True:
            job = await self._look_for_job(is_eventual=is_eventual)
            if job is None or all(map(self._may_touch, job.sources)):
                return job

    async def _look_for_job(self, *, is_eventual: bool) -> Job | None:
        suspects = frozenset(self._suspects)
        known = [*await self._catalogue.segments(), *await self._catalogue.logs()]
        files: set[int] = set()
        space = SpaceUse()
        for start in range(0, len(known), _STEP_FILES):
            piece = known[start : start + _STEP_FILES]
            files.update(row.file for row in piece)
            space = space.plus(piece)
            await trio.lowlevel.checkpoint()
        self.space = space
        self._suspects -= suspects - files  # A file that became one since may be new.
        self._look_at_damaged(files)
        search = JobSearch(self._policy, is_eventual=is_eventual)
        for start in range(0, len(known), _STEP_FILES):
            found = [row for row in known[start : start + _STEP_FILES] if self._may_touch(row)]
            for row in found:
                if row.file in self._suspects:
                    return Job(ROTTEN, (row,))
            search.take(found)
            await trio.lowlevel.checkpoint()
        return search.job()

    def _may_touch(self, row: FileRow) -> bool:
        return row.file not in self.damaged and not self._is_busy(row.file)

    def _look_at_damaged(self, known: Set[int]) -> None:
        """Let damaged files be rewritten again if the index no longer names the run that could not be
        read."""
        for file, damage in list(self.damaged.items()):
            if file not in known:
                del self.damaged[file]
            elif damage.run is not None and not self._catalogue.names_now(damage.run):
                self.suspect(file)

    async def _do(self, job: Job) -> None:
        if job.reason != ROTTEN:
            # The new log has about these bytes. If they have no room, do not read the files in vain. (Of a
            # damaged file, most may be stored again elsewhere.)
            least = sum(row.live_bytes - row.runs * HEADER_BYTES for row in job.sources)
            await self._ballast.check(max(0, least))
        runs: list[EntryRun] = []
        marked: set[int] = set()
        replaced = FileSet.of(row.file for row in job.sources)
        for row in job.sources:
            try:
                held = await self._contents.read(row)
            except StorageError as damage:
                logger.warning("the file is damaged, so its live runs are read from the index: %s", damage)
                try:
                    held = await self._contents.read_by_index(row)
                except StorageError as trouble:
                    raise UnreadableSource(row.file, f"{damage}; {trouble}") from trouble
            runs += held.runs
            marked |= held.marked
            replaced |= held.replaced
        marked.update(run.ledger_id for run in runs)
        written = await self._rewriter.replace(
            job.sources,
            runs=await self._named(runs),
            marked=marked,
            level=job.level,
            replaced=replaced,
            fetch=self._fetch,
            pace=self._pace,
        )
        freed = sum(row.end for row in job.sources) - written.size
        self.bytes_freed += freed
        logger.info(
            "compacted files=%s reason=%s into log=%d runs=%d bytes=%d freed=%d",
            ",".join(str(row.file) for row in job.sources),
            job.reason,
            written.number,
            len(written.runs),
            written.size,
            freed,
        )

    # --- which runs are live -----------------------------------------------------------------------

    async def _named(self, runs: list[EntryRun]) -> list[EntryRun]:
        """Return the runs that the index names, sorted.

        If a run's entries were stored again, the index names the new run, which may hold more entries. A copy
        of the old run would overwrite the new run's row.
        """
        runs.sort()
        named: list[EntryRun] = []
        at = 0
        while at < len(runs):
            ledger_id = runs[at].ledger_id
            start, stop = rows.run_key(ledger_id, runs[at].first), rows.run_key(ledger_id, 2**64 - 1)
            try:
                part = await self._catalogue.index.scan(start, stop, floor=start, limit=_SCAN_ROWS)
                those = [rows.decode_run(key, value, self._catalogue.path) for key, value in part]
            except StorageCorrupt as damage:
                raise UnreadableSource(runs[at].file, str(damage)) from damage
            found = {run.first: run for run in those}
            beyond = max(found) if len(part) == _SCAN_ROWS else 2**64
            while at < len(runs) and runs[at].ledger_id == ledger_id and runs[at].first <= beyond:
                run, other = runs[at], found.get(runs[at].first)
                if other is not None and (other.file, other.offset) == (run.file, run.offset):
                    named.append(run)
                at += 1
        return named

    # --- copying ----------------------------------------------------------------------------------

    async def _fetch(self, wanted: Sequence[EntryRun]) -> list[bytes]:
        by_file: dict[int, list[int]] = {}
        for index, run in enumerate(wanted):
            by_file.setdefault(run.file, []).append(index)
        frames: list[bytes] = [b""] * len(wanted)
        for file, indices in by_file.items():
            ranges = [(wanted[index].offset, wanted[index].length) for index in indices]
            try:
                found = await self._pool.read(file, ranges)
            except StorageError as damage:
                raise UnreadableSource(file, str(damage), wanted[indices[0]]) from damage
            for count, (index, frame) in enumerate(zip(indices, found, strict=True)):
                verify_frame(wanted[index], frame, self._pool.path_of(file))
                frames[index] = frame
                if count % 64 == 63:
                    await trio.lowlevel.checkpoint()
        return frames


def verify_frame(run: EntryRun, frame: bytes, path: str) -> None:
    """Check that these bytes are the run's frame, and that each of its entries matches its digest.

    Raises:
        StorageError: The bytes are another frame, or an entry does not match. The error names the file and
            the offset.
    """
    try:
        entries = decode_run(run, frame)
    except WireError as damage:
        raise UnreadableSource(run.file, f"{path}: byte {run.offset}: {damage}", run) from damage
    if damaged := entries.damaged():
        raise UnreadableSource(
            run.file,
            f"{path}: byte {run.offset}: entry {damaged[0]} of ledger {run.ledger_id} "
            "does not match its digest",
            run,
        )
