"""Entries that move: from memory or from files into an entry log, and the index with them.

Everything that writes entries a second time goes through ``Rewriter``: the flush of a full segment whose
runs do not stay where they are, the flush of a write cache that no journal backs, and compaction. The order
of durability is the same for all:

    1  the entry log, complete, under its own name
    2  states of ledgers that changed (a run with gaps may reach over others now: ``straddle``)
    3  rows of its runs, each batch synced, in pieces; a row whose run was put together with others goes in
       the same batch
    4  in one batch: the log's own row, what its caller wants with it (the mark moves on), and the rows of the
       files that it replaces go
    5  the files that it replaces, once nobody reads from them

A crash before 4 leaves a log that the index does not know. The next start takes it over, which is doing 3 and
4 again. A crash after 4 leaves files that the index does not know, and a log that says it replaced them: they
are removed (``bookie.storage.upkeep.startup_cleanup``). So at any time each run that counts is in a file that
exists.

**Deleted ledgers** are left out. One that is deleted while its runs are on their way is left out of 3 and 4:
each piece asks under the catalogue's lock, which also the garbage collection takes for each of its own.

**What goes along.** A file that goes may hold the only record of a fence besides the index, which must be
possible to make anew. So each log has a LEDGER record of every ledger that had any record in the files it
replaces, the deleted ones included: they must stay refused.
"""

from __future__ import annotations

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
from bookie.storage.entrylog.entry_logs import Fetch, WrittenLog
from bookie.storage.entrylog.file_pool import FilePool
from bookie.storage.index.catalogue import Catalogue
from ledgerlog.concurrency.pace import Pace

_PIECE_ROWS = 1024
_STEP_RUNS = 1024
_STEP_LEDGERS = 128
"""What is done at once, while adds wait: about a millisecond."""


async def _by_ledger(runs: Sequence[EntryRun]) -> dict[int, list[EntryRun]]:
    found: dict[int, list[EntryRun]] = {}
    for start in range(0, len(runs), _STEP_RUNS):
        for run in runs[start : start + _STEP_RUNS]:
            found.setdefault(run.ledger_id, []).append(run)
        await trio.lowlevel.checkpoint()
    return found


class Rewriter:
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
        """These ledgers are deleted. To be called under the catalogue's lock."""
        for gone in self._watching:
            gone.update(ledger_ids)

    @contextmanager
    def _watch(self) -> Iterator[set[int]]:
        """The ledgers that are deleted from now on."""
        gone: set[int] = set()
        self._watching.append(gone)
        try:
            yield gone
        finally:
            self._watching.remove(gone)

    # --- moving entries ---------------------------------------------------------------------------

    async def flush(
        self,
        *,
        runs: Sequence[EntryRun],
        marked: Iterable[int],
        view: memoryview,
        replaced: FileSet,
        indexed: int,
        changes: Callable[[], Sequence[Change]],
        restored: Iterable[tuple[int, int]] = (),
    ) -> WrittenLog:
        """Write runs that lie in memory, in ``view`` at their offsets, into a new entry log.

        ``marked`` are ledgers that have other records there. ``replaced`` is the segment that they are in, or
        nothing where no file has them yet. So many of the runs, the first ``indexed`` ones, have rows in the
        index, and so have ``restored`` ones, which name other files and must not outlive this. ``changes``
        are written together with the log's row. DiskFull: nothing has changed."""

        async def fetch(wanted: Sequence[EntryRun]) -> list[memoryview]:
            return [view[run.offset : run.offset + run.length] for run in wanted]

        return await self._write(
            runs=runs,
            marked=marked,
            level=0,
            replaced=replaced,
            old_keys={(run.ledger_id, run.first) for run in runs[:indexed]}.union(restored),
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
        """Write all runs of some files into a new entry log, and remove the files. ``replaced`` are these,
        and what they had replaced."""

        def changes() -> list[Change]:
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
        changes: Callable[[], Sequence[Change]],
    ) -> WrittenLog:
        """``old_keys``: ledger and first id of each run that has a row; None: all have."""
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
                await self._catalogue.write([*rows.encode_file_and_usage(row, usage), *changes()])
            return written

    async def _carried(self, ledger_ids: Iterable[int]) -> tuple[dict[int, LoggedLedger], set[int]]:
        """What is to be written of each ledger, and which of them are deleted."""
        carried: dict[int, LoggedLedger] = {}
        deleted: set[int] = set()
        for count, ledger_id in enumerate(sorted(ledger_ids)):
            stored = self._ledgers.stored(ledger_id)
            if stored is None:
                continue  # Of a fence that was given up nothing is known.
            carried[ledger_id] = LoggedLedger(
                ledger_id, stored.key, stored.is_fenced, stored.is_deleted, stored.lac, stored.lafr
            )
            if stored.is_deleted:
                deleted.add(ledger_id)
            if count % _STEP_LEDGERS == _STEP_LEDGERS - 1:
                await trio.lowlevel.checkpoint()
        return carried, deleted

    async def _merge(self, by_ledger: dict[int, list[EntryRun]]) -> tuple[list[Merged], dict[int, int]]:
        """The runs as they are to be written, and how many bytes of them each ledger has."""
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
                if step >= _STEP_RUNS:
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
            if len(batch) >= _PIECE_ROWS:
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
        """Remove files that the index names no more, once nobody reads from them. ``used``: so many of the
        first bytes of a segment were ever written."""
        await self._pool.retire(files)
        for file in files:
            await self._files.remove(file, used=used)
