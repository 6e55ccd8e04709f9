"""The cleanup at a start after a crash that interrupted the rewriting of files.

An entry log under its final name is complete. The log is valid until another log replaces it, even if the
index does not know it. A start *takes over* each valid log that the index does not know: it writes the rows
of the log's runs (frames of entries). The batch with which replay moves the mark also adds the log's own row,
and deletes the rows of the files that the log replaced. This finishes the interrupted work
(``bookie.storage.entrylog.rewriting``).

If a crash interrupts the start before that batch, the next start takes the log over again. If the index knew
the log already, the next start would replay a segment that the log replaced, and the index would name the
segment again. A log that compaction makes later would list the segment as replaced, and the segment might be
removed.

Then the start removes files that some log replaced and the index does not know. If such a file is a segment,
the start removes it after replay has moved the mark past it. If a file is not in the index and no log
replaced it, the bookie cannot judge it: it keeps the file and logs a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from contextlib import aclosing

from bookie.core import rows
from bookie.core.boot import IndexBehind
from bookie.core.file_set import FileSet
from bookie.core.journal_items import EntryRun
from bookie.core.rows import Change, FileRow
from bookie.storage.engine.found_ledgers import FoundLedgers
from bookie.storage.entrylog.entry_files import EntryFiles
from bookie.storage.entrylog.entry_logs import EntryLogFiles
from bookie.storage.index.catalogue import Catalogue
from ledgerlog.errors import StorageCorrupt

logger = logging.getLogger(__name__)

_PIECE_ROWS = 1024


async def take_over_logs(logs: EntryLogFiles, catalogue: Catalogue) -> tuple[FileSet, list[Change]]:
    """Bring the runs of entry logs that the index does not know into the index.

    Returns:
        The files that these logs replaced, and the changes of the index that end the take-over. They must be
        written in one batch with the mark after these files.

    Raises:
        IndexBehind: A log that the index knows is missing.
        StorageCorrupt: A log that the index does not know is damaged.
    """
    numbers = await logs.prepare()
    known = {-row.file: row for row in await catalogue.logs()}
    for number, row in known.items():
        if number not in numbers:
            raise IndexBehind(
                logs.path(number), None, f"the entry log is missing; the index has {row.runs} runs in it"
            )
    if all(number in known for number in numbers):
        return FileSet(), []
    replaced, gone = await _read_replaced(logs, numbers, known)
    taken, changes = FileSet(), list[Change]()
    for number in numbers:
        # Skip a log that another log replaced: its entries are in the newer log.
        if number not in known and -number not in gone:
            _, its_changes = await take_over_log(logs, catalogue, number, replaced[number])
            changes += its_changes
            taken |= replaced[number]
    return taken, changes


async def _read_replaced(
    logs: EntryLogFiles, numbers: Sequence[int], known: Container[int]
) -> tuple[dict[int, FileSet], FileSet]:
    """Read which files each log replaced.

    Returns:
        The files that each log replaced, by the log's number, and the union of them.

    Raises:
        StorageCorrupt: A log that matters for the take-over cannot be read.
    """
    replaced: dict[int, FileSet] = {}
    gone = FileSet()
    for number in reversed(numbers):
        try:
            replaced[number] = await logs.read_replaced(number)
        except StorageCorrupt as damage:
            # A log replaces only older files. If the index knows this log and each older one, or newer logs
            # replaced them, nothing depends on this log, and it may be damaged.
            if any(low not in known and -low not in gone for low in numbers if low <= number):
                raise
            logger.error("it is not known which files this log replaced: %s", damage)
        else:
            gone |= replaced[number]
    return replaced, gone


async def take_over_log(
    logs: EntryLogFiles,
    catalogue: Catalogue,
    number: int,
    replaced: FileSet,
    *,
    passes_rot: bool = False,
) -> tuple[int, list[Change]]:
    """Bring the runs of an entry log into an index that does not know the log.

    Args:
        logs: The entry logs.
        catalogue: The index.
        number: The number of the log.
        replaced: The files that the log replaced.
        passes_rot: Whether to take over runs with damaged payloads too.

    Returns:
        The number of runs that were taken over, and the changes of the index that end the take-over: they add
        the log's row, and delete the rows of the files that it replaced. Runs of deleted ledgers do not
        count.
    """
    path = logs.path(number)
    header = await logs.read_header(number)
    ledgers = FoundLedgers(catalogue)
    runs: list[EntryRun] = []
    async with aclosing(logs.facts(number, passes_rot=passes_rot)) as facts:
        async for fact in facts:
            run = ledgers.take(fact, path)
            if run is not None and not ledgers.is_deleted(run.ledger_id):
                runs.append(run)
    await ledgers.save()
    for start in range(0, len(runs), _PIECE_ROWS):
        batch: list[Change] = []
        for run in runs[start : start + _PIECE_ROWS]:
            batch += await _superseded(catalogue, run, replaced)
            batch.append(rows.encode_run(run))
        await catalogue.write(batch)
    usage = rows.usage_of(runs)
    row = FileRow.of(-number, end=header.size, runs=runs, usage=usage, level=header.level)
    changes: list[Change] = [*rows.encode_file_and_usage(row, usage)]
    for old in (*await catalogue.segments(), *await catalogue.logs()):
        if old.file in replaced:
            changes += [(rows.file_key(old.file), None), (rows.usage_key(old.file), None)]
    return len(runs), changes


async def _superseded(catalogue: Catalogue, run: EntryRun, replaced: FileSet) -> list[Change]:
    """Return changes that delete the rows of the runs that were merged into this one."""
    found: list[Change] = []
    start, stop = rows.run_key(run.ledger_id, run.first + 1), rows.run_key(run.ledger_id, run.last + 1)
    if start < stop:
        async with aclosing(catalogue.pages(start, stop)) as pages:
            async for page in pages:
                for key, value in page:
                    if rows.decode_run(key, value, catalogue.path).file in replaced:
                        found.append((key, None))
    return found


async def remove_replaced(files: EntryFiles, catalogue: Catalogue, *, first_segment: int) -> None:
    """Remove files that the index does not know and that some log replaced. Segments from ``first_segment``
    on stay, because the journal still uses them."""
    known = {row.file for row in (*await catalogue.segments(), *await catalogue.logs())}
    present = [number for number in await files.segments.numbers() if number < first_segment]
    present += [-number for number in await files.logs.numbers()]
    strange = [file for file in present if file not in known]
    if not strange:
        return
    replaced = FileSet()
    for row in await catalogue.logs():
        try:
            replaced |= await files.logs.read_replaced(-row.file)
        except StorageCorrupt as damage:
            logger.error("it is not known which files this log replaced: %s", damage)
    for file in strange:
        if file in replaced:
            await files.remove(file)
        else:
            logger.warning(
                "%s: the index does not know this file, and no entry log replaced it; it is kept",
                files.path(file),
            )
