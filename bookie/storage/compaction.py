"""Compaction: files of which little counts, or whose runs are small, are written again.

What is to be done is decided by ``bookie.core.space``; here it is done, one job at a time:

    1  find the runs of each source: of a segment by going through its blocks, of an entry log through its
       records
    2  write those that the index names, of ledgers that exist, into a new log, from the files they are in, at
       no more than ``bytes_per_s`` (``Rewriter.replace``)
    3  remove the sources

Reading is done by ranges in threads, writing in pieces behind the journal's, and the work in between in steps
of about a millisecond. At no time is more in memory than a segment's image, the list of a job's runs (bounded
by the policy) and one piece. Every frame is verified before it is written again: a source that fails is left
alone from then on, and said to be damaged in the log; whoever reads the damaged entry is told so by the
reader, and repairs it from another bookie.

A full disk ends a job, and the next look tries again. Files that are in memory, or that the journal still
needs, are not touched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing

import trio

from bookie.core import rows
from bookie.core.block import BLOCK_HEADER_BYTES, block_damage, decode_header
from bookie.core.entry_log import LEDGER, REPLACES, decode_ledger, decode_replaces
from bookie.core.file_set import FileSet
from bookie.core.frames import damaged_entries, decode_run
from bookie.core.records import (
    ADD,
    DELETE,
    FENCE,
    Record,
    Run,
    decode_add,
    decode_delete,
    decode_fence,
    decode_records,
)
from bookie.core.rows import FileRow
from bookie.core.segment import SEGMENT_HEADER_BYTES
from bookie.core.space import Job, SpacePolicy, next_job
from bookie.storage.catalogue import Catalogue
from bookie.storage.entry_logs import EntryLogFiles, UnreadableSource
from bookie.storage.files import FilePool
from bookie.storage.pace import Pace
from bookie.storage.rewriting import Rewriter
from bookie.storage.segments import SegmentFiles
from ledgerlog.errors import DiskFull, StorageCorrupt, StorageError, WireError
from ledgerlog.limits import KIB

logger = logging.getLogger(__name__)

_SCAN_ROWS = 256
_STEP_BYTES = 256 * KIB
"""What is looked at without a pause, while adds wait."""


class Compactor:
    """``is_busy`` tells of a file whether it may not be touched."""

    def __init__(
        self,
        *,
        files: SegmentFiles,
        logs: EntryLogFiles,
        pool: FilePool,
        catalogue: Catalogue,
        rewriter: Rewriter,
        policy: SpacePolicy,
        is_busy: Callable[[int], bool],
        bytes_per_s: int,
    ) -> None:
        self.jobs = 0
        self.bytes_freed = 0
        self.damaged: dict[int, str] = {}
        """Files that cannot be written again, and why."""
        self._files = files
        self._logs = logs
        self._pool = pool
        self._catalogue = catalogue
        self._rewriter = rewriter
        self._policy = policy
        self._is_busy = is_busy
        self._pace = Pace(bytes_per_s)
        self._lock = trio.Lock()
        self._sources: frozenset[int] = frozenset()
        """The files that the job under way writes again."""

    def is_moving(self, file: int) -> bool:
        """Whether what a file holds is being written again now."""
        return file in self._sources

    async def run(self, *, interval_s: float, eventual_interval_s: float) -> None:
        """Do what is to be done, for ever. StorageError if the disk or the index fails a write."""
        eventual_at = trio.current_time() + eventual_interval_s
        while True:
            await trio.sleep(interval_s)
            is_eventual = trio.current_time() >= eventual_at
            if is_eventual:
                eventual_at = trio.current_time() + eventual_interval_s
            await self.compact(is_eventual=is_eventual)

    async def compact(self, *, is_eventual: bool) -> int:
        """Do every job that there is now; how many were done. One caller after the other."""
        async with self._lock:
            done = await self._compact(is_eventual=is_eventual)
            self.jobs += done
            return done

    async def wait_idle(self) -> None:
        """Returns once every compaction that began before the call has ended. Another may have begun by
        then."""
        async with self._lock:
            pass

    async def _compact(self, *, is_eventual: bool) -> int:
        done = 0
        while (job := next_job(await self._candidates(), self._policy, is_eventual=is_eventual)) is not None:
            # Without a wait since the files were found not to be busy.
            self._sources = frozenset(row.file for row in job.sources)
            try:
                await self._do(job)
            except DiskFull as full:
                logger.warning("compaction waits: %s", full)
                break
            except UnreadableSource as damage:
                self.damaged[damage.file] = str(damage)
                logger.error("not compacted, kept as it is: %s", damage)
                continue
            finally:
                self._sources = frozenset()
            done += 1
        return done

    async def _candidates(self) -> list[FileRow]:
        found = (*await self._catalogue.segments(), *await self._catalogue.logs())
        return [row for row in found if row.file not in self.damaged and not self._is_busy(row.file)]

    async def _do(self, job: Job) -> None:
        runs: list[Run] = []
        marked: set[int] = set()
        replaced = FileSet.of(row.file for row in job.sources)
        for row in job.sources:
            try:
                if row.file > 0:
                    await self._scan_segment(row, runs, marked)
                else:
                    replaced |= await self._walk_log(row, runs, marked)
            except StorageError as damage:
                raise UnreadableSource(row.file, str(damage)) from damage
        marked.update(run.ledger_id for run in runs)
        written = await self._rewriter.replace(
            job.sources,
            runs=await self._named(runs),
            marked=marked,
            level=job.level,
            replaced=replaced,
            fetch=self._fetch,
            pace=self._pace.pass_through,
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

    # --- what a file holds ------------------------------------------------------------------------

    async def _scan_segment(self, row: FileRow, runs: list[Run], marked: set[int]) -> None:
        number, path = row.file, self._files.path(row.file)
        header = await self._files.read_header(number)
        image = memoryview(await self._files.read_image(number))
        at, step = SEGMENT_HEADER_BYTES, 0
        while at < row.end:
            block = decode_header(image[at : row.end], nonce=header.nonce, segment=number)
            if block is None or block_damage(image[at:], block, nonce=header.nonce) is not None:
                raise StorageCorrupt(path, at, f"a damaged block, though the segment goes on to {row.end}")
            start = at + BLOCK_HEADER_BYTES
            for record in decode_records(image, start, start + block.content_bytes, path):
                if record.kind == ADD:
                    run, _ = decode_add(record, file=number, sequence=block.sequence, path=path)
                    runs.append(run)
                elif record.kind == FENCE:
                    marked.add(decode_fence(record, path).ledger_id)
                elif record.kind == DELETE:
                    marked.update(decode_delete(record, path))
            at += block.block_bytes
            step += block.block_bytes
            if step >= _STEP_BYTES:
                step = 0
                await trio.lowlevel.checkpoint()

    async def _walk_log(self, row: FileRow, runs: list[Run], marked: set[int]) -> FileSet:
        number, path = -row.file, self._logs.path(-row.file)
        replaced = FileSet()
        async with aclosing(self._logs.records(number)) as records:
            async for record in records:
                if record.kind == ADD:
                    add = Record(ADD, record.offset, memoryview(record.body))
                    runs.append(decode_add(add, file=row.file, sequence=0, path=path)[0])
                elif record.kind == LEDGER:
                    marked.add(decode_ledger(record.body, path, record.offset).ledger_id)
                elif record.kind == REPLACES:
                    replaced = decode_replaces(record.body, path, record.offset)
        return replaced

    async def _named(self, runs: list[Run]) -> list[Run]:
        """Those that the index names, sorted. Of entries that were stored again elsewhere it names the other
        run, which may hold more: its row would be lost if this one were brought back."""
        runs.sort()
        named: list[Run] = []
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

    async def _fetch(self, wanted: Sequence[Run]) -> list[bytes]:
        by_file: dict[int, list[int]] = {}
        for index, run in enumerate(wanted):
            by_file.setdefault(run.file, []).append(index)
        frames: list[bytes] = [b""] * len(wanted)
        for file, indices in by_file.items():
            ranges = [(wanted[index].offset, wanted[index].length) for index in indices]
            try:
                found = await self._pool.read(file, ranges)
            except StorageError as damage:
                raise UnreadableSource(file, str(damage)) from damage
            for count, (index, frame) in enumerate(zip(indices, found, strict=True)):
                verify_frame(wanted[index], frame, self._pool.path_of(file))
                frames[index] = frame
                if count % 64 == 63:
                    await trio.lowlevel.checkpoint()
        return frames


def verify_frame(run: Run, frame: bytes, path: str) -> None:
    """Raises a StorageError unless these bytes are the run's frame and each of its entries matches its
    digest."""
    try:
        entries = decode_run(run, frame)
    except WireError as damage:
        raise UnreadableSource(run.file, f"{path}: byte {run.offset}: {damage}") from damage
    if damaged := damaged_entries(entries):
        raise UnreadableSource(
            run.file,
            f"{path}: byte {run.offset}: entry {damaged[0]} of ledger {run.ledger_id} "
            "does not match its digest",
        )
