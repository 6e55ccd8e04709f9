"""Moving entries from memory or from files into a new entry log, and pointing the index at it.

A *run* is a frame of entries of one ledger, stored in one piece. All code that moves runs uses ``Rewriter``:
the flush of a full segment whose runs do not stay in it, the flush of a write cache (its entries skip the
journal), and compaction. They all make things durable in this order:

    1  The entry log is complete under its final name.
    2  The states of ledgers that changed are saved. For example, merging two runs with a gap between them
       makes a run that may overlap others, which raises the ledger's ``straddle``.
    3  The rows of the log's runs are written in batches, each synced. If several runs were merged into one,
       the batch with the new row also removes the old rows.
    4  One last batch adds the log's own row and the caller's changes (for example, it moves the replay mark),
       and removes the rows of the replaced files.
    5  The replaced files are removed as soon as no read uses them.

A crash before step 4 leaves a log that the index does not know. The next start takes the log over: it does
steps 3 and 4 again. A crash after step 4 may leave files that the index does not know. The new log names
these files as replaced, so the next start removes them (``bookie.storage.upkeep.startup_cleanup``). So at any
time, each run that the index names is in an existing file.

**Deleted ledgers** are left out. If a ledger is deleted while its runs are being written, steps 3 and 4 skip
it. Each batch checks for deletions under the catalogue's lock, and garbage collection holds the same lock
while it marks ledgers as deleted.

**Ledger states are copied too.** A replaced file may hold the only record of a fence besides the index, and a
rebuild of the index must find it. So each log has a LEDGER record for every ledger that has a record in a
file that it replaces. Deleted ledgers are included until they are among the gone ledgers
(``bookie.core.gone_ledgers``), because the bookie must continue refusing them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import trio

from bookie.core import rows
from bookie.core.entry_log import LoggedLedger
from bookie.core.file_set import FileSet
from bookie.core.journal_items import EntryRun
from bookie.core.merging import Merged, merge_runs
from bookie.core.rows import Change, FileRow
from bookie.storage.engine.ledgers import LedgerTable
from bookie.storage.entrylog.entry_files import EntryFiles
from bookie.storage.entrylog.entry_logs import STEP_RUNS, Fetch, WrittenLog
from bookie.storage.entrylog.file_pool import FilePool
from bookie.storage.index.catalogue import Catalogue
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import DiskFull

logger = logging.getLogger(__name__)

_STEP_LEDGERS = 128
"""How many ledgers are handled between two checkpoints, as ``STEP_RUNS`` is for runs."""


async def _by_ledger(runs: Sequence[EntryRun]) -> dict[int, list[EntryRun]]:
    found: dict[int, list[EntryRun]] = {}
    for start in range(0, len(runs), STEP_RUNS):
        for run in runs[start : start + STEP_RUNS]:
            found.setdefault(run.ledger_id, []).append(run)
        await trio.lowlevel.checkpoint()
    return found


class Rewriter:
    """Writes entry logs from runs and updates the index, in the order that the module describes."""

    def __init__(
        self,
        *,
        files: EntryFiles,
        pool: FilePool,
        catalogue: Catalogue,
        ledgers: LedgerTable,
    ) -> None:
        self.bytes_written = 0
        self.logs_written = 0
        self._files = files
        self._pool = pool
        self._catalogue = catalogue
        self._ledgers = ledgers
        self._watching: list[set[int]] = []

    # --- deletions --------------------------------------------------------------------------------

    def on_deleted(self, ledger_ids: Iterable[int]) -> None:
        """Tell the current writes that these ledgers are deleted. Call it under the catalogue's lock."""
        for gone in self._watching:
            gone.update(ledger_ids)

    @contextmanager
    def _watch(self) -> Iterator[set[int]]:
        """Return a set that collects the ledgers that are deleted from now on."""
        gone: set[int] = set()
        self._watching.append(gone)
        try:
            yield gone
        finally:
            # ``remove`` would look for an equal set, and most of them are empty.
            self._watching = [each for each in self._watching if each is not gone]

    # --- moving entries ---------------------------------------------------------------------------

    async def flush(
        self,
        *,
        runs: Sequence[EntryRun],
        marked: Iterable[int],
        view: memoryview,
        replaced: FileSet,
        indexed: int,
        changes: Callable[[int], Sequence[Change]],
        rows_elsewhere: Iterable[tuple[int, int]] = (),
    ) -> WrittenLog:
        """Write runs that lie in memory into a new entry log.

        Args:
            runs: The runs to write.
            marked: Ledgers with records other than adds in the same memory.
            view: The memory. Each run lies in it at the run's offset.
            replaced: The segment that holds the runs; empty if no file holds them yet.
            indexed: How many runs, counted from the first, have a row in the index already.
            changes: Called with the number of the log as a file. Returns changes of the index. They are
                written in one batch with the log's row, so compaction does not know the log before.
            rows_elsewhere: Ledger and first entry id of runs whose rows name other files. These rows are
                replaced or removed as well.

        Raises:
            DiskFull: The disk has no room. Nothing has changed.
        """

        async def fetch(wanted: Sequence[EntryRun]) -> list[memoryview]:
            return [view[run.offset : run.offset + run.length] for run in wanted]

        return await self._write(
            runs=runs,
            marked=marked,
            level=0,
            replaced=replaced,
            old_keys={(run.ledger_id, run.first) for run in runs[:indexed]}.union(rows_elsewhere),
            fetch=fetch,
            pace=None,
            changes=changes,
        )

    async def replace(
        self,
        sources: Sequence[FileRow],
        *,
        runs: Sequence[EntryRun],
        marked: Iterable[int],
        level: int,
        replaced: FileSet,
        fetch: Fetch,
        pace: Pace | None,
    ) -> WrittenLog:
        """Write all runs of some files into a new entry log, then remove the files.

        Args:
            sources: The rows of the files.
            runs: The runs of the files, without runs that the index no longer names.
            marked: Ledgers with records other than adds in the files.
            level: How often the entries were merged with entries of other files.
            replaced: The files, and the files that those files had replaced.
            fetch: Reads the frames of runs from the files.
            pace: Limits the speed of writing; None for no limit.

        Raises:
            DiskFull: The disk has no room. Nothing has changed.
            UnreadableSource: A run cannot be read. Nothing has changed.
        """

        def changes(log: int) -> list[Change]:
            keys = [key(row.file) for row in sources for key in (rows.file_key, rows.usage_key)]
            return [(key, None) for key in keys]

        written = await self._write(
            runs=runs,
            marked=marked,
            level=level,
            replaced=replaced,
            old_keys=None,
            fetch=fetch,
            pace=pace,
            changes=changes,
        )
        await self.remove([row.file for row in sources])
        return written

    async def _write(
        self,
        *,
        runs: Sequence[EntryRun],
        marked: Iterable[int],
        level: int,
        replaced: FileSet,
        old_keys: set[tuple[int, int]] | None,
        fetch: Fetch,
        pace: Pace | None,
        changes: Callable[[int], Sequence[Change]],
    ) -> WrittenLog:
        """Write the log and the index. ``old_keys`` has the ledger and the first entry id of each run that
        has a row; None if all runs have a row."""
        with self._watch() as gone:
            by_ledger = await _by_ledger(runs)
            ledgers = set(by_ledger)
            ledgers.update(marked)
            carried, is_deleted = await self._carried(ledgers)
            for ledger_id in is_deleted:
                by_ledger.pop(ledger_id, None)
            merged, usage = await self._merge(by_ledger)
            written = await self._files.logs.write(
                level=level,
                replaced=replaced,
                ledgers=carried,
                runs=merged,
                usage=usage,
                fetch=fetch,
                pace=pace,
            )
            self.bytes_written += written.size
            self.logs_written += 1
            await self._ledgers.save()
            await self._index(written, merged, old_keys, gone)
            async with self._catalogue.lock:
                usage = {ledger_id: size for ledger_id, size in usage.items() if ledger_id not in gone}
                row = FileRow.of(written.file, end=written.size, runs=written.runs, usage=usage, level=level)
                await self._catalogue.write([*rows.encode_file_and_usage(row, usage), *changes(written.file)])
            return written

    async def _carried(self, ledger_ids: Iterable[int]) -> tuple[dict[int, LoggedLedger], set[int]]:
        """Return the state of each ledger for its LEDGER record, and the set of deleted ledgers."""
        carried: dict[int, LoggedLedger] = {}
        deleted: set[int] = set()
        for count, ledger_id in enumerate(sorted(ledger_ids)):
            if self._ledgers.is_gone(ledger_id):
                deleted.add(ledger_id)
                continue
            stored = self._ledgers.stored(ledger_id)
            if stored is None:
                continue  # The ledger is unknown, because its fence was undone.
            carried[ledger_id] = LoggedLedger(
                ledger_id, stored.key, stored.is_fenced, stored.is_deleted, stored.lac, stored.lafr
            )
            if stored.is_deleted:
                deleted.add(ledger_id)
            if count % _STEP_LEDGERS == _STEP_LEDGERS - 1:
                await trio.lowlevel.checkpoint()
        return carried, deleted

    async def _merge(self, by_ledger: dict[int, list[EntryRun]]) -> tuple[list[Merged], dict[int, int]]:
        """Return the runs as the log will hold them, and the bytes of each ledger's runs."""
        merged: list[Merged] = []
        usage: dict[int, int] = {}
        step = 0
        for ledger_id in sorted(by_ledger):
            size = 0
            for each in merge_runs(sorted(by_ledger.pop(ledger_id))):
                merged.append(each)
                size += each.length
                if len(each.parts) > 1 and not each.is_dense:
                    state = self._ledgers.get(ledger_id)
                    assert state is not None
                    state.on_merge(each.last - each.first)
                step += len(each.parts)
                if step >= STEP_RUNS:
                    step = 0
                    await trio.lowlevel.checkpoint()
            usage[ledger_id] = size
        return merged, usage

    async def _index(
        self,
        written: WrittenLog,
        merged: Sequence[Merged],
        old_keys: set[tuple[int, int]] | None,
        gone: set[int],
    ) -> None:
        batch: list[Change] = []
        for run, each in zip(written.runs, merged, strict=True):
            batch.append(rows.encode_run(run))
            for part in each.parts[1:]:
                if old_keys is None or (part.ledger_id, part.first) in old_keys:
                    batch.append((rows.run_key(part.ledger_id, part.first), None))
            if len(batch) >= STEP_RUNS:
                await self._write_piece(batch, gone)
                batch = []
        await self._write_piece(batch, gone)

    async def _write_piece(self, batch: Sequence[Change], gone: set[int]) -> None:
        async with self._catalogue.lock:
            if gone:
                batch = [(key, value) for key, value in batch if rows.ledger_of_run_key(key) not in gone]
            if batch:
                await self._catalogue.write(batch)
            else:
                await trio.lowlevel.checkpoint()

    async def remove(self, files: Sequence[int], *, used: int | None = None) -> None:
        """Remove files that the index no longer names, as soon as no read uses them.

        Args:
            files: The numbers of the files.
            used: How many bytes from the start of a segment were ever written; None if it is not known.
        """
        await self._pool.retire(files)
        for file in files:
            try:
                await self._files.remove(file, used=used)
            except DiskFull as full:
                logger.warning("file=%d stays until the next start, which removes it: %s", file, full)
