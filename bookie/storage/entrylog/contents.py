"""Finding a file's contents before compaction rewrites it: from the file if it is sound, otherwise from the
index.

The records of a sound file tell everything: its runs (frames of entries of one ledger), the ledgers that the
records are about, and in an entry log, the replaced files. If the file is damaged, the bookie gets all three
from other sources:

    runs       The rows of the index that name the file, for each ledger that uses it. A run without a row
               does not count: its ledger is deleted, or its entries were stored again elsewhere.
    ledgers    Every ledger that the index knows as fenced or deleted. The damaged part may hold the only
               record of any of them besides the index. Other lost records only raised LACs and LAFRs. These
               are lower bounds, so it is safe to forget them.
    replaced   Every file number without a file and without a row. A file disappears only if another file
               replaces it.

You can trust these rows, because a bookie does not run on an index that lost rows. This module does not check
that the runs can be read. The caller finds out when it copies them. If a row names a run that cannot be read,
the caller keeps the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import aclosing

import attrs

from bookie.core import rows
from bookie.core.entry_log import LoggedLedger
from bookie.core.facts import Add, Deletion, Replaces
from bookie.core.file_set import FileSet
from bookie.core.journal_items import EntryRun, Fence
from bookie.core.rows import FileRow
from bookie.storage.entrylog.entry_files import EntryFiles
from bookie.storage.index.catalogue import Catalogue
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import StorageError


@attrs.frozen
class FileRuns:
    """The runs, ledgers and replaced files that a file holds."""

    runs: list[EntryRun] = attrs.field(factory=list)
    marked: set[int] = attrs.field(factory=set)
    """Ledgers with a record in the file that is not an add, for example a fence."""
    replaced: FileSet = attrs.field(factory=FileSet)


class FileContents:
    """Finds the contents of the files that the index knows."""

    def __init__(self, files: EntryFiles, catalogue: Catalogue) -> None:
        self._files = files
        self._catalogue = catalogue

    # --- by reading -------------------------------------------------------------------------------

    async def read(self, row: FileRow, *, pace: Pace | None = None) -> FileRuns:
        """Read the contents of a whole file and check every checksum.

        Args:
            row: The file's row in the index.
            pace: Limits the speed of reading; None for no limit.

        Raises:
            StorageCorrupt: The file is damaged somewhere before its end.
            StorageError: The file cannot be read.
        """
        held = FileRuns()
        replaced = FileSet()
        async with aclosing(self._files.facts(row.file, end=row.end, pace=pace)) as facts:
            async for fact in facts:
                match fact:
                    case Add(run):
                        held.runs.append(run)
                    case Fence() | LoggedLedger():
                        held.marked.add(fact.ledger_id)
                    case Deletion(ledger_ids):
                        held.marked.update(ledger_ids)
                    case Replaces(files):
                        replaced = files
        return attrs.evolve(held, replaced=replaced)

    # --- by the index -----------------------------------------------------------------------------

    async def read_by_index(self, row: FileRow) -> FileRuns:
        """Return the contents of a damaged file that still count, according to the index.

        Raises:
            StorageCorrupt: The index is damaged.
        """
        replaced = FileSet()
        if row.file < 0:
            try:
                replaced = await self._files.logs.read_replaced(-row.file)
            except StorageError:
                replaced = await self._absent()
        return FileRuns(await self._indexed_runs(row.file), await self._fenced_or_deleted(), replaced)

    async def _indexed_runs(self, file: int) -> list[EntryRun]:
        """Return the runs in this file that have a row in the index."""
        found: list[EntryRun] = []
        for ledger_id in sorted(await self._catalogue.usage(file)):
            start, stop = rows.run_key(ledger_id, 0), rows.run_key(ledger_id, 2**64 - 1)
            async with aclosing(self._catalogue.pages(start, stop)) as pages:
                async for page in pages:
                    those = [rows.decode_run(key, value, self._catalogue.path) for key, value in page]
                    found += [run for run in those if run.file == file]
        return found

    async def _fenced_or_deleted(self) -> set[int]:
        """Return all ledgers that are fenced or deleted."""
        found: set[int] = set()
        async with aclosing(self._catalogue.ledgers()) as pages:
            async for page in pages:
                for ledger_id, stored in page:
                    if stored.is_fenced or stored.is_deleted:
                        found.add(ledger_id)
        return found

    async def _absent(self) -> FileSet:
        """Return the file numbers below the newest that have no file and no row."""
        # Look at the rows first. A file gets its name before its row, and files get their names in order. So
        # whichever files come meanwhile, none of them is missing in the listing below one that has a row.
        segments = [row.file for row in await self._catalogue.segments()]
        logs = [-row.file for row in await self._catalogue.logs()]
        segments += await self._files.segments.numbers()
        logs += await self._files.logs.numbers()
        return FileSet.join((*_gaps(segments), *((-high, -low) for low, high in _gaps(logs))))


def _gaps(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the missing ranges below the largest number, from 1 on: [2, 5] gives (1, 1) and (3, 4)."""
    return [
        (low + 1, high - 1) for low, high in itertools.pairwise([0, *sorted(set(numbers))]) if high > low + 1
    ]
