"""Rebuilding the index from the files that hold the entries.

Everything in the index can be found again: the place of each run (a frame of entries of one ledger, stored in
one piece), and the key, fence, LAC and LAFR of each ledger. Each entry log stores the keys, fences, LACs and
LAFRs of all ledgers that had a record in the files that the log replaced. Only one thing is forgotten: LACs
and LAFRs that came without an entry, after the last entry. That is safe, because both are lower bounds.

    1  entry logs: each names the files that it replaced. Those files do not count, and their numbers may be
       missing
    2  every other number, of segments and of logs, must be present. If one is missing, the file was lost, and
       the bookie would deny entries that it acknowledged
    3  read the segments that count in order, as replay does. If entry logs replaced the segments between two
       of them, the chain of blocks is broken there. Within each stretch without gaps, the chain is followed
    4  if two files hold the same entry, choose the run that the index names
       (``bookie.storage.upkeep.doubles``)
    5  replace the old index by the new one

**Corruption.** If a payload is corrupted but the heads around it are valid, the rebuild continues, because
these heads say which entries exist. A run with a corrupted payload gets a row like any other. So the bookie
still does not deny the damaged entries, and scrubbing restores them. If an entry was stored again already,
the index names the copy. Corruption in a head, or in a record that is not an ADD, hides which entries
existed. Then the rebuild fails.

A START record says where the torn last block of the previous segment was cut. The START record helps only
while its own segment exists. Without an index, the bookie cannot notice the loss of the newest segments or
logs. If all segments are lost, the rebuild fails. If a rebuild crashes, it leaves the old index or none. Then
call ``rebuild_index`` again.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing

from bookie.core import rows
from bookie.core.block import PAGE_BYTES, decode_header
from bookie.core.boot import ReplayStart, start_of
from bookie.core.file_set import FileSet
from bookie.core.journal_items import EntryRun, JournalPosition
from bookie.core.segment import SEGMENT_HEADER_BYTES, first_block
from bookie.storage.engine.directory import NOTHING_YET, StorageDirectory
from bookie.storage.entrylog.entry_files import EntryFiles
from bookie.storage.entrylog.entry_logs import EntryLogFiles
from bookie.storage.entrylog.file_pool import FilePool
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.index.index import Index
from bookie.storage.journal.replay import Replay
from bookie.storage.journal.segments import SegmentFiles
from bookie.storage.upkeep.doubles import Age, AllRuns, Doubles
from bookie.storage.upkeep.startup_cleanup import take_over_log
from ledgerlog.errors import StorageCorrupt


async def rebuild_index(
    directory: StorageDirectory, *, on_file: Callable[[int, int], None] = lambda done, total: None
) -> int:
    """Rebuild the index, and replace the damaged or lost index by the new one.

    The files must be complete, and undamaged except for payloads; see the module docstring.

    Args:
        directory: The locked directory.
        on_file: Called as ``on_file(done, total)``: the number of files that were read, and the number of all
            files that will be read.

    Returns:
        How many runs the new index has.

    Raises:
        StorageCorrupt: A file is missing or damaged; the error names it. The old index is unchanged.
    """
    instance = await directory.read_instance()
    files = SegmentFiles(directory.disk, directory.journal_path, instance)
    logs = EntryLogFiles.for_reading(directory.disk, directory.entries_path, instance)
    await files.prepare()
    numbers, log_numbers = await files.numbers(), await logs.prepare()
    if not numbers:
        raise StorageCorrupt(
            files.directory,
            None,
            "there is no segment to build an index from: put the journal back (is it mounted?); if it is "
            "lost, decommission the bookie so that its ledgers are repaired, and start under a new --id",
        )
    replaced, last_replaced = await read_replaced(logs, log_numbers)
    for number in _missing(numbers, replaced, sign=1):
        raise StorageCorrupt(files.path(number), None, "the segment is missing, and no entry log replaced it")
    for number in _missing(log_numbers, replaced, sign=-1):
        raise StorageCorrupt(
            logs.path(number), None, "the entry log is missing, and no other entry log replaced it"
        )
    async with fresh_index(directory) as index:
        catalogue = AllRuns(Catalogue(index))
        counting = [number for number in numbers if number not in replaced]
        total = len(counting) + sum(-number not in replaced for number in log_numbers)
        read = _counted(total, on_file)
        runs = await add_logs(logs, catalogue, log_numbers, replaced, on_read=read)
        found, mark = await _follow(directory, files, catalogue, counting, on_read=read)
        with closing(FilePool(directory.disk, EntryFiles(files, logs).path)) as pool:
            await Doubles(catalogue, pool, lambda run: newness(run, last_replaced)).settle()
        await catalogue.write([rows.encode_instance(instance), rows.encode_mark(mark)])
    return runs + found


@asynccontextmanager
async def fresh_index(directory: StorageDirectory) -> AsyncIterator[Index]:
    """Make an empty index for the body. If the body succeeds, the new index replaces the old one."""
    fresh_path = f"{directory.index_path}.new"
    await directory.indexes.remove(fresh_path)
    index = await directory.indexes.create(fresh_path)
    try:
        yield index
    finally:
        await index.aclose()
    await directory.indexes.replace(fresh_path, directory.index_path)


async def read_replaced(logs: EntryLogFiles, numbers: Sequence[int]) -> tuple[FileSet, dict[int, int]]:
    """Read which files the entry logs with these numbers replaced.

    Returns:
        The replaced files, and for each log that no other log replaced, the last segment that it replaced.
    """
    replaced = FileSet()
    last_replaced: dict[int, int] = {}
    for number in reversed(numbers):
        if -number not in replaced:  # A replaced log may be damaged; its replacement lists the same files.
            by_this = await logs.read_replaced(number)
            last_replaced[-number] = by_this.highest
            replaced |= by_this
    return replaced, last_replaced


def _counted(total: int, on_file: Callable[[int, int], None]) -> Callable[[], None]:
    """Return a function that reports one more file each time."""
    on_file(0, total)
    done = itertools.count(1)
    return lambda: on_file(next(done), total)


async def add_logs(
    logs: EntryLogFiles,
    catalogue: Catalogue,
    numbers: Sequence[int],
    replaced: FileSet,
    *,
    on_read: Callable[[], None] = lambda: None,
) -> int:
    """Add to the index the runs of all entry logs that no other log replaced. Return the number of these
    runs.

    ``on_read`` is called after each log.
    """
    runs = 0
    for number in numbers:
        if -number not in replaced:
            taken, changes = await take_over_log(logs, catalogue, number, replaced, passes_rot=True)
            await catalogue.write(changes)
            runs += taken
            on_read()
    return runs


def newness(run: EntryRun, last_replaced: Mapping[int, int]) -> Age:
    """Return the age of a run. If two runs hold the same entry, the newer run has the greater age.

    ``last_replaced`` has the number of the last segment that each log replaced.
    """
    return (
        (run.file, 0, 0, run.offset) if run.file > 0 else (last_replaced[run.file], 1, -run.file, run.offset)
    )


def _missing(numbers: Sequence[int], replaced: FileSet, *, sign: int) -> Iterable[int]:
    present = set(numbers)
    return (
        number
        for number in range(1, max(numbers, default=0) + 1)
        if number not in present and sign * number not in replaced
    )


async def _follow(
    directory: StorageDirectory,
    files: SegmentFiles,
    catalogue: Catalogue,
    numbers: Sequence[int],
    *,
    on_read: Callable[[], None],
) -> tuple[int, ReplayStart]:
    """Add the segments' records to the index. Return the number of runs, and the place where the journal
    continues.

    ``on_read`` is called after each segment.
    """
    seals = await _seals(files, numbers)
    runs = 0
    end = NOTHING_YET
    steps: Replay | None = None
    for stretch in _stretches(numbers):
        mark = await _beginning(files, stretch, end)
        if mark.end.sequence < end.sequence:
            raise StorageCorrupt(
                files.path(stretch[0]),
                SEGMENT_HEADER_BYTES,
                f"block {mark.sequence}, but block {end.sequence} is in segment {end.segment}",
            )
        steps = Replay(
            disk=directory.disk,
            files=files,
            catalogue=catalogue,
            mark=mark,
            may_be_trimmed=True,
            passes_rot=True,
        )
        for number in stretch:
            await steps.take_segment(number, seals.get(number))
            on_read()
        runs += steps.runs
        end = steps.walk.end
    if steps is None:
        raise StorageCorrupt(
            files.directory, None, "the segment in which the journal should continue is missing: put it back"
        )
    walk = steps.walk
    if not steps.is_closed:
        # Only a clean stop trims a segment before the next one begins, and a clean stop puts a CLOSE record
        # at the end of the segment.
        raise StorageCorrupt(files.path(walk.end.segment), walk.end.offset, "the end of the file is missing")
    return runs, ReplayStart(walk.next_segment, walk.next_sequence, is_optional=True, end=walk.end)


def _stretches(numbers: Sequence[int]) -> list[list[int]]:
    """Split the numbers into parts without gaps."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return found


async def _beginning(files: SegmentFiles, stretch: Sequence[int], end: JournalPosition) -> ReplayStart:
    """Return the replay mark for reading a stretch whose preceding segment is gone.

    ``end`` is the end of the part of the journal that was read before.
    """
    if stretch[0] == 1:
        return ReplayStart(1, NOTHING_YET.sequence + 1, is_optional=False, end=NOTHING_YET)
    before = end.sequence
    for number in stretch:
        header, image = await files.read(number)
        block = decode_header(image[SEGMENT_HEADER_BYTES:], nonce=header.nonce, segment=number)
        if block is not None:
            # This may be a torn block. That does no harm: the block that replaced the torn one has the same
            # sequence.
            before = block.sequence - 1
            break
    place = JournalPosition(stretch[0] - 1, SEGMENT_HEADER_BYTES, before)
    return ReplayStart(stretch[0], before + 1, is_optional=False, end=place)


async def _seals(files: SegmentFiles, numbers: Sequence[int]) -> Mapping[int, int]:
    """Return the end of the last valid block of each segment, if START records give it."""
    seals: dict[int, int] = {}
    for number in numbers:
        # A START record is alone in its block, so the block has one page.
        header, image = await files.read(number, SEGMENT_HEADER_BYTES + PAGE_BYTES)
        block = first_block(image, header)
        if block is None or (end := start_of(image, block, files.path(number))) is None:
            continue
        if end.segment:
            seals[end.segment] = end.offset
        for between in range(end.segment + 1, number):
            seals[between] = SEGMENT_HEADER_BYTES
    return seals
