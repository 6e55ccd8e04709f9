"""Salvaging a damaged directory: keep all sound records, set damaged files aside, make a new index.

The caller has marked the loss durably (``bookie.server.repairing``): every ledger that exists is fenced and
in limbo. So from now on no answer depends on which records were lost. Salvage then only has to keep as much
as it can. Each entry that it keeps need not be copied from another bookie.

If the index alone is damaged, ``rebuild_index`` makes a new one, and no file moves. Otherwise:

    1  remove the index. Everything in the index is in the files too. Until step 4 the bookie does not start
    2  for each damaged entry log, then for each segment, damaged or not: write its sound records into a new
       entry log that replaces it. Then set a damaged file aside, and remove a sound one
    3  write one more entry log, without entries. It lists as replaced every file number that is gone, even
       the numbers of files that were missing before
    4  make a new index from the entry logs. The journal continues after the last number

The segments go into entry logs so that nothing depends on the chain of blocks, which the damage has broken.
Each log is as large as its contents, and a sound segment is removed as soon as its log is durable. So the
disk needs room for one more segment and for a copy of each damaged file. A crash in between leaves a
directory without an index; then call ``salvage`` again.

**Set aside** means a new name in the same directory: ``000000000000002a.journal.damaged``. A start ignores
these names, and no number is used twice. The files are removed once nothing is in limbo (``drop_set_aside``).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence

import attrs
import trio

from bookie.core import rows
from bookie.core.block import PAGE_BYTES
from bookie.core.boot import ReplayStart
from bookie.core.entry_log import LogHeader
from bookie.core.facts import Fact, Replaces
from bookie.core.file_set import FileSet
from bookie.core.journal_items import EntryRun, JournalPosition
from bookie.core.merging import Merged, merge_runs
from bookie.core.salvage import fullest, log_facts, own_number, segment_facts
from bookie.core.segment import SEGMENT_HEADER_BYTES, SegmentHeader, scan_segment
from bookie.storage.disk.disk import FileMissing
from bookie.storage.engine.directory import NOTHING_YET, StorageDirectory
from bookie.storage.engine.found_ledgers import FoundLedgers
from bookie.storage.entrylog.entry_files import EntryFiles
from bookie.storage.entrylog.entry_logs import EntryLogFiles
from bookie.storage.entrylog.file_pool import FilePool
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.index.index import MemoryIndex
from bookie.storage.journal.segments import SegmentFiles
from bookie.storage.upkeep.doubles import AllRuns, Doubles
from bookie.storage.upkeep.rebuild import add_logs, fresh_index, newness, read_replaced, rebuild_index
from ledgerlog.errors import StorageCorrupt

logger = logging.getLogger(__name__)

ASIDE = ".damaged"
"""The suffix of the name of a file that was set aside."""

_STEP_FACTS = 128
"""Other tasks run after this many facts."""


@attrs.frozen
class Salvaged:
    """The result of a salvage."""

    set_aside: tuple[str, ...]
    """The new paths of the damaged files."""
    runs: int
    """How many runs of entries the new index has."""


async def salvage(directory: StorageDirectory, new_nonce: Callable[[], bytes]) -> Salvaged:
    """Make a directory fit for a start again. The loss must be marked already.

    Args:
        directory: The locked directory. Its cookie must be sound.
        new_nonce: Makes nonces for entry logs. Clients must not be able to guess them.

    Raises:
        IncompatibleVersion: A newer version wrote a file. Earlier files may be salvaged already.
        StorageError: The disk failed, or is full. You may call it again.
    """
    await directory.disk.make_directory(directory.journal_path)
    await directory.disk.make_directory(directory.entries_path)
    try:
        return Salvaged((), await rebuild_index(directory))
    except StorageCorrupt as damage:
        logger.warning(
            "the index cannot be built from complete files, so the readable data is salvaged: %s", damage
        )
    return await _Salvage(directory, await directory.read_instance(), new_nonce).run()


class _Salvage:
    def __init__(self, directory: StorageDirectory, instance: str, new_nonce: Callable[[], bytes]) -> None:
        self._directory = directory
        self._disk = directory.disk
        self._instance = instance
        self._segments = SegmentFiles(directory.disk, directory.journal_path, instance)
        self._logs = EntryLogFiles(directory.disk, directory.entries_path, instance, new_nonce)
        self._set_aside: list[str] = []
        self._sequence = NOTHING_YET.sequence
        """The greatest sequence of a block that was found."""

    async def run(self) -> Salvaged:
        directory = self._directory
        await directory.indexes.remove(directory.index_path)
        await self._segments.prepare()
        numbers, log_numbers = await self._segments.numbers(), await self._logs.prepare()
        replaced = FileSet()
        sound: set[int] = set()
        for number in reversed(log_numbers):
            if -number in replaced:
                sound.add(number)  # Another log has its entries, and a start removes it.
                continue
            if await self._is_sound_log(number):
                sound.add(number)
                replaced |= await self._logs.read_replaced(number)
        # A segment that a damaged log replaced is salvaged if it is still there. In any case its number is
        # taken, because the new log lists it as replaced, too.
        taken = replaced.highest
        for number in log_numbers:
            if number not in sound:
                image = await self._read(self._logs.path(number))
                taken = max(taken, (await self._move(-number, image, is_damaged=True)).highest)
        for number in numbers:
            if number not in replaced:
                image = await self._read(self._segments.path(number))
                await self._move(number, image, is_damaged=not self._is_sound_segment(number, image))
        top = max((taken, *numbers))
        kept = frozenset(await self._logs.numbers())
        gone = [-number for number in range(1, max(kept, default=0) + 1) if number not in kept]
        every = FileSet.join(((1, top), *((file, file) for file in gone))) if top else FileSet.of(gone)
        await self._write(every, FoundLedgers(Catalogue(MemoryIndex("salvage"))), [], None)
        return Salvaged(tuple(self._set_aside), await self._make_index(top))

    async def _read(self, path: str) -> memoryview:
        file = await self._disk.open(path)
        try:
            (data,) = await self._disk.read(file, [(0, await self._disk.size(file))])
        finally:
            self._disk.close(file)
        return memoryview(data)

    async def _is_sound_log(self, number: int) -> bool:
        try:
            async for _ in self._logs.facts(number, passes_rot=True):
                pass
        except StorageCorrupt as damage:
            logger.warning("salvaging: %s", damage)
            return False
        return True

    def _is_sound_segment(self, number: int, image: memoryview) -> bool:
        path = self._segments.path(number)
        try:
            header = SegmentHeader.decode(
                bytes(image[:PAGE_BYTES]), path=path, number=number, instance=self._instance
            )
            scan_segment(image, header, path=path, sequence=None)
        except StorageCorrupt as damage:
            logger.warning("salvaging: %s", damage)
            return False
        return True

    async def _move(self, file: int, image: memoryview, *, is_damaged: bool) -> FileSet:
        """Write the facts that a file proves into a new entry log, then set the file aside or remove it.

        Returns:
            The files that the new log replaces.
        """
        path = self._segments.path(file) if file > 0 else self._logs.path(-file)
        ledgers = FoundLedgers(Catalogue(MemoryIndex("salvage")))
        found: list[EntryRun] = []
        replaced = FileSet.of([file])
        for count, fact in enumerate(self._facts(file, image, path), 1):
            if fact is None or not count % _STEP_FACTS:
                await trio.lowlevel.checkpoint()
            if fact is None:
                continue
            if isinstance(fact, Replaces):
                replaced |= fact.files
            run = ledgers.take(fact, path)
            if run is not None:
                found.append(run)
        runs = [run for run in fullest(found) if not ledgers.is_deleted(run.ledger_id)]
        await self._write(replaced, ledgers, runs, image)
        if is_damaged:
            await set_aside(self._directory, path)
            self._set_aside.append(path + ASIDE)
        else:
            await self._disk.unlink(path)
            await self._disk.sync_directory(path.rpartition("/")[0])
        return replaced

    def _facts(self, file: int, image: memoryview, path: str) -> Iterable[Fact | None]:
        """Yield the facts that a file proves; none if the header is damaged or belongs to another bookie.
        Yield None now and then while no fact is found."""
        page = bytes(image[:PAGE_BYTES])
        number = own_number(page)  # If two files were exchanged, this differs from the number in the name.
        try:
            if file < 0:
                log = LogHeader.decode(page, path=path, number=number, instance=self._instance)
                yield from log_facts(image, log, path)
                return
            segment = SegmentHeader.decode(page, path=path, number=number, instance=self._instance)
        except StorageCorrupt as damage:
            logger.error("nothing can be salvaged: %s", damage)
            return
        for sequence, fact in segment_facts(image, segment, path):
            self._sequence = max(self._sequence, sequence)
            yield fact

    async def _write(
        self, replaced: FileSet, ledgers: FoundLedgers, runs: Sequence[EntryRun], image: memoryview | None
    ) -> None:
        async def fetch(wanted: Sequence[EntryRun]) -> list[memoryview]:
            assert image is not None
            return [image[run.offset : run.offset + run.length] for run in wanted]

        merged: list[Merged] = [each for run in runs for each in merge_runs([run])]
        usage: dict[int, int] = {}
        for run in merged:
            usage[run.ledger_id] = usage.get(run.ledger_id, 0) + run.length
        await self._logs.write(
            level=0,
            replaced=replaced,
            ledgers=ledgers.logged(),
            runs=merged,
            usage=usage,
            fetch=fetch,
            pace=None,
        )

    async def _make_index(self, top: int) -> int:
        """Make the index from all entry logs that no other log replaced. Return how many runs it has."""
        logs = self._logs
        async with fresh_index(self._directory) as index:
            catalogue = AllRuns(Catalogue(index))
            numbers = await logs.numbers()
            replaced, last_replaced = await read_replaced(logs, numbers)
            runs = await add_logs(logs, catalogue, numbers, replaced)
            with contextlib.closing(FilePool(self._disk, EntryFiles(self._segments, logs).path)) as pool:
                await Doubles(
                    catalogue, pool, lambda run: newness(run, last_replaced), is_lost_marked=True
                ).settle()
            end = JournalPosition(top, SEGMENT_HEADER_BYTES, self._sequence) if top else NOTHING_YET
            mark = ReplayStart(top + 1, end.sequence + 1, is_optional=True, end=end)
            await catalogue.write([rows.encode_instance(self._instance), rows.encode_mark(mark)])
        return runs


async def set_aside(directory: StorageDirectory, path: str) -> None:
    """Give a damaged file a name that a start ignores, durably."""
    await directory.disk.rename(path, path + ASIDE)
    await directory.disk.sync_directory(path.rpartition("/")[0])


async def find_set_aside(directory: StorageDirectory) -> list[str]:
    """Return the paths of the files that were set aside."""
    found: list[str] = []
    for place in (directory.path, directory.journal_path, directory.entries_path):
        with contextlib.suppress(FileMissing):
            names = await directory.disk.list_directory(place)
            found += [f"{place}/{name}" for name in names if name.endswith(ASIDE)]
    return found


async def drop_set_aside(directory: StorageDirectory) -> int:
    """Remove the files that were set aside. Return how many there were."""
    found = await find_set_aside(directory)
    for path in found:
        with contextlib.suppress(FileMissing):  # Somebody has moved it away since.
            await directory.disk.unlink(path)
    return len(found)
