"""Looking into the entry logs of a stopped bookie: the content of each, and why it is kept.

As in ``bookie.server.inspect``, the output shows damage in its place and continues, and nothing is changed.
If the index cannot be read, the reason why a file is kept is left out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from bookie.core.entry_log import LoggedLedger
from bookie.core.facts import Add, Replaces
from bookie.core.rows import FileRow
from bookie.core.space import why_kept
from bookie.storage.disk.disk import FileMissing
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.directory import StorageDirectory
from bookie.storage.entrylog.contents import FileContents
from bookie.storage.entrylog.entry_files import EntryFiles
from bookie.storage.entrylog.entry_logs import EntryLogFiles
from bookie.storage.entrylog.file_pool import FilePool
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.journal.segments import SegmentFiles
from bookie.storage.upkeep.compaction import verify_frame
from ledgerlog.errors import StorageCorrupt, StorageError


async def known_files(directory: StorageDirectory) -> dict[int, FileRow] | None:
    """Return the index's rows of segments and entry logs, by file number; None if the index cannot be
    read."""
    try:
        index = await directory.indexes.open(directory.index_path)
    except StorageError:
        return None
    try:
        catalogue = Catalogue(index)
        return {row.file: row for row in (*await catalogue.segments(), *await catalogue.logs())}
    except StorageError:
        return None
    finally:
        await index.aclose()


def kept_because(directory: StorageDirectory, known: dict[int, FileRow] | None, file: int) -> str | None:
    """Return why a file is kept, according to the index; None if the index cannot be read."""
    if known is None:
        return None
    return why_kept(
        known.get(file), StorageConfig().space_policy(is_journal_apart=directory.is_journal_apart)
    )


async def is_healed(directory: StorageDirectory, instance: str, file: int) -> bool:
    """Return whether a damaged file still has intact copies of all its runs that the bookie needs.

    A run is a frame of entries of one ledger, stored in one piece. The bookie still needs the runs that the
    index names in this file, except the entries of deleted ledgers. Returns False if the index cannot be
    read.
    """
    files = EntryFiles(
        SegmentFiles(directory.disk, directory.journal_path, instance),
        EntryLogFiles.for_reading(directory.disk, directory.entries_path, instance),
    )
    pool = FilePool(directory.disk, files.path)
    try:
        index = await directory.indexes.open(directory.index_path)
    except StorageError:
        return False
    try:
        catalogue = Catalogue(index)
        row = await catalogue.file(file)
        if row is None:
            return False
        for run in (await FileContents(files, catalogue).read_by_index(row)).runs:
            stored = catalogue.ledger_now(run.ledger_id)
            if stored is None or not stored.is_deleted:
                (frame,) = await pool.read(file, [(run.offset, run.length)])
                verify_frame(run, frame, pool.path_of(file))
    except StorageError:
        return False
    else:
        return True
    finally:
        pool.close()
        await index.aclose()


async def show_entries(directory: StorageDirectory) -> AsyncGenerator[dict[str, Any], None]:
    """Yield one item for each entry log, in order.

    The item of a damaged log has ``damage``. It has ``healed`` instead if all entries that the bookie still
    needs are intact (``is_healed``).
    """
    instance = await directory.read_instance()
    logs = EntryLogFiles.for_reading(directory.disk, directory.entries_path, instance)
    known = await known_files(directory)
    try:
        numbers = await logs.numbers()
    except FileMissing:
        return  # The bookie never ran.
    for number in numbers:
        item: dict[str, Any] = {"log": number, "file": logs.path(number)}
        try:
            item |= await _figures(logs, number)
        except StorageCorrupt as damage:
            item["healed" if await is_healed(directory, instance, -number) else "damage"] = str(damage)
        row = None if known is None else known.get(-number)
        if row is not None:
            item["live_bytes"] = row.live_bytes
        item["kept_because"] = kept_because(directory, known, -number)
        yield item


async def _figures(logs: EntryLogFiles, number: int) -> dict[str, Any]:
    header = await logs.read_header(number)
    runs = entries = entry_bytes = run_bytes = fenced = deleted = 0
    ledgers: set[int] = set()
    replaced: list[list[int]] = []
    async with aclosing(logs.facts(number)) as facts:
        async for fact in facts:
            match fact:
                case Add(run):
                    runs += 1
                    entries += run.entry_count
                    run_bytes += run.length
                    entry_bytes += run.length - run.head_length
                    ledgers.add(run.ledger_id)
                case LoggedLedger():
                    fenced += fact.is_fenced and not fact.is_deleted
                    deleted += fact.is_deleted
                case Replaces(files):
                    replaced = [list(each) for each in files.ranges]
    return {
        "bytes": header.size,
        "level": header.level,
        "runs": runs,
        "entries": entries,
        "entry_bytes": entry_bytes,
        "run_bytes": run_bytes,
        "ledgers": len(ledgers),
        "fences": fenced,
        "deleted_ledgers": deleted,
        "replaced_files": replaced,
    }
