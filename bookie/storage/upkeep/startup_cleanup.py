"""What a crash left of entries that were moving, put in order before anything else at a start.

A log under its own name is complete, so it counts, whether the index knows it or not, until another log says
that it replaced it. One that counts and that the index does not know is taken over: its runs get their rows,
and the files that it replaced lose theirs, which is what was under way when the crash came
(``bookie.storage.entrylog.rewriting``). Then files are left that some log replaced and the index does not
know; these are removed, the segments among them once replay has moved the mark past them. A file that is
neither known nor replaced by any log is not ours to judge: it stays, and is told of.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from contextlib import aclosing

from bookie.core import rows
from bookie.core.boot import IndexBehind
from bookie.core.file_set import FileSet
from bookie.core.records import Run
from bookie.core.rows import Change, FileRow
from bookie.storage.engine.found_ledgers import FoundLedgers
from bookie.storage.entrylog.entry_files import EntryFiles
from bookie.storage.entrylog.entry_logs import EntryLogFiles
from bookie.storage.index.catalogue import Catalogue
from ledgerlog.errors import StorageCorrupt

logger = logging.getLogger(__name__)

_PIECE_ROWS = 1024


async def take_over_logs(logs: EntryLogFiles, catalogue: Catalogue) -> FileSet:
    """Bring entry logs that the index does not know into it: the files that these replaced.

    IndexBehind if one that the index knows is missing; StorageCorrupt if one that it does not know is
    damaged."""
    numbers = await logs.prepare()
    known = {-row.file: row for row in await catalogue.logs()}
    for number, row in known.items():
        if number not in numbers:
            raise IndexBehind(
                logs.path(number), None, f"the entry log is missing; the index has {row.runs} runs in it"
            )
    if all(number in known for number in numbers):
        return FileSet()
    replaced, gone = await _read_replaced(logs, numbers, known)
    taken = FileSet()
    for number in numbers:
        # One that another log replaced was known once: what it held has moved on since.
        if number not in known and -number not in gone:
            await take_over_log(logs, catalogue, number, replaced[number])
            taken |= replaced[number]
    return taken


async def _read_replaced(
    logs: EntryLogFiles, numbers: Sequence[int], known: Container[int]
) -> tuple[dict[int, FileSet], FileSet]:
    """Which files each log replaced, and all of them. StorageCorrupt if one cannot be asked that matters."""
    replaced: dict[int, FileSet] = {}
    gone = FileSet()
    for number in reversed(numbers):
        try:
            replaced[number] = await logs.read_replaced(number)
        except StorageCorrupt as damage:
            # A log replaces files that are older. If each of those is known to the index or was replaced by a
            # log that is newer, nothing hangs on this one, and it may be rotten.
            if any(low not in known and -low not in gone for low in numbers if low <= number):
                raise
            logger.error("what this log replaced is not known: %s", damage)
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
) -> int:
    """Bring an entry log into an index that does not know it, in the place of the files that are
    ``replaced``; how many runs it has. ``passes_rot``: runs with rotten payloads as well."""
    path = logs.path(number)
    header = await logs.read_header(number)
    ledgers = FoundLedgers(catalogue)
    runs: list[Run] = []
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
    await catalogue.write(changes)
    return len(runs)


async def _superseded(catalogue: Catalogue, run: Run, replaced: FileSet) -> list[Change]:
    """The rows of runs that this one was put together from."""
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
    """Remove files that the index does not know and some log replaced. Segments from ``first_segment`` on are
    still the journal's."""
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
            logger.error("what this log replaced is not known: %s", damage)
    for file in strange:
        if file in replaced:
            await files.remove(file)
        else:
            logger.warning(
                "%s: the index does not know this file, and no entry log replaced it; it is kept",
                files.path(file),
            )
