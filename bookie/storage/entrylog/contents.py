"""What counts of a file that is to be written again: a sound one says it, of a rotten one the index does.

A sound file says everything itself: its runs, the ledgers that any record of it is about, and of an entry log
which files it took the place of. Rot hides some of that. What must not be lost with the file is then found
from what is sound elsewhere:

    runs       the rows of the index that name the file, of the ledgers that use it. A run that no row names
               does not count: its ledger is deleted, or its entries were stored again elsewhere
    ledgers    every ledger that is fenced or deleted, wherever that is written: any of them may have its only
               record, besides the index, in the part that is rotten. What else a lost record may have told
               (LACs and LAFRs) are bounds, and safe to forget
    replaced   every number of which there is no file and no row: nothing but being replaced removes a file

The rows come from an index that lost nothing, or the bookie would not run. Whether the runs can be read is
for whoever copies them to find out: as long as one that a row names cannot, the file stays.
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
    """What a file holds."""

    runs: list[EntryRun] = attrs.field(factory=list)
    marked: set[int] = attrs.field(factory=set)
    """Ledgers that other records than adds are about."""
    replaced: FileSet = attrs.field(factory=FileSet)


class FileContents:
    """The files that the index knows, by what is in them."""

    def __init__(self, files: EntryFiles, catalogue: Catalogue) -> None:
        self._files = files
        self._catalogue = catalogue

    # --- by reading -------------------------------------------------------------------------------

    async def read(self, row: FileRow, *, pace: Pace | None = None) -> FileRuns:
        """What a file says, all of it proved, read at a ``pace`` if there is one. StorageCorrupt for damage
        anywhere before its end, StorageError if it cannot be read."""
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

    async def counted(self, row: FileRow) -> FileRuns:
        """What counts of a file that is damaged. StorageCorrupt if the index is."""
        replaced = FileSet()
        if row.file < 0:
            try:
                replaced = await self._files.logs.read_replaced(-row.file)
            except StorageError:
                replaced = await self._absent()
        return FileRuns(await self._named(row.file), await self._refused(), replaced)

    async def _named(self, file: int) -> list[EntryRun]:
        """The runs that the index names there."""
        found: list[EntryRun] = []
        for ledger_id in sorted(await self._catalogue.usage(file)):
            start, stop = rows.run_key(ledger_id, 0), rows.run_key(ledger_id, 2**64 - 1)
            async with aclosing(self._catalogue.pages(start, stop)) as pages:
                async for page in pages:
                    those = [rows.decode_run(key, value, self._catalogue.path) for key, value in page]
                    found += [run for run in those if run.file == file]
        return found

    async def _refused(self) -> set[int]:
        """All ledgers that are fenced or deleted."""
        found: set[int] = set()
        async with aclosing(self._catalogue.ledgers()) as pages:
            async for page in pages:
                for ledger_id, stored in page:
                    if stored.is_fenced or stored.is_deleted:
                        found.add(ledger_id)
        return found

    async def _absent(self) -> FileSet:
        """The numbers below the newest that no file has and no row names."""
        segments, logs = await self._files.segments.numbers(), await self._files.logs.numbers()
        segments += [row.file for row in await self._catalogue.segments()]
        logs += [-row.file for row in await self._catalogue.logs()]
        return FileSet.join((*_gaps(segments), *((-high, -low) for low, high in _gaps(logs))))


def _gaps(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The ranges of numbers from 1 on that are left out."""
    return [
        (low + 1, high - 1) for low, high in itertools.pairwise([0, *sorted(set(numbers))]) if high > low + 1
    ]
