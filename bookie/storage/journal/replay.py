"""Replay: bring the journal of the bookie's previous process into the index, even if that process crashed.

``replay`` follows the journal from the mark (the row of the index that says where replay begins) to the
journal's end (``bookie.core.boot``), one segment at a time:

    1  scan the segment; damage is StorageCorrupt
    2  write its last valid block again, durably. Every earlier block is known to be synced, because another
       block followed it. The last block may only be in a cache, and no client may see its entries before they
       are on the disk. A sync alone is not enough: after a failed sync the cache may hold data that never
       reached the disk
    3  take its runs, fences, LACs and LAFRs, and write them to the index. If an entry log replaced the
       segment, the index has the runs from that log already

Then it moves the mark to the journal's end. If a crash interrupts the replay anywhere, a second replay gives
the same result. Replay needs memory for one segment's image, the runs of one segment (its frames of entries),
and the states of the ledgers in that segment.

``bookie.storage.upkeep.rebuild`` does the same from the first segment on, into a new index.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from bookie.core import rows
from bookie.core.boot import IndexBehind, JournalWalk, ReplayStart, segments_to_replay
from bookie.core.facts import Close, block_facts
from bookie.core.file_set import FileSet
from bookie.core.journal_items import EntryRun, JournalPosition
from bookie.core.rows import Change, FileRow
from bookie.core.segment import FoundBlock, SegmentHeader, scan_segment, scan_without_header
from bookie.storage.disk.disk import Disk
from bookie.storage.engine.directory import StorageDirectory
from bookie.storage.engine.found_ledgers import FoundLedgers
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.journal.segments import SegmentFiles
from ledgerlog.errors import StorageCorrupt

_PIECE_ROWS = 4096
_NOTHING = FileSet()


@attrs.frozen
class Replayed:
    """The result of a replay: the place at which the journal continues, and counts."""

    end: JournalPosition
    """The end of the journal."""
    next_segment: int
    """The number of the next segment to use. If that segment exists, its header is in ``pristine``; otherwise
    the segment must be made."""
    pristine: tuple[SegmentHeader, ...]
    """The headers of the segments after the end, which were never written to. The files of all but the first
    may hold garbage or a damaged header."""
    segments: int
    """How many segments were replayed."""
    runs: int
    """How many runs were brought into the index."""


class Replay:
    """Follow a journal, one segment at a time, and write its records to the index.

    Args:
        disk: The disk with the journal.
        files: The journal directory.
        catalogue: The index.
        mark: The position at which replay begins.
        replaced: Segments whose runs the index knows from entry logs.
        may_be_trimmed: Accept trimmed segments (``bookie.core.boot.JournalWalk``).
        passes_rot: Accept damaged payloads (``bookie.core.segment.BlockWalk``).
    """

    def __init__(
        self,
        *,
        disk: Disk,
        files: SegmentFiles,
        catalogue: Catalogue,
        mark: ReplayStart,
        replaced: FileSet = _NOTHING,
        may_be_trimmed: bool = False,
        passes_rot: bool = False,
    ) -> None:
        self.walk = JournalWalk(mark, may_be_trimmed=may_be_trimmed)
        self.runs = 0
        self.pristine: list[SegmentHeader] = []
        self.is_closed = True
        """False if the last block seen should be the CLOSE of a clean stop but is not. A trimmed file must
        end with a CLOSE, unless a later START record says where the file ends."""
        self._disk = disk
        self._files = files
        self._catalogue = catalogue
        self._replaced = replaced
        self._passes_rot = passes_rot

    async def take_segment(self, number: int, seal: int | None) -> None:
        """Take the next segment. If a later START record gives the end of this segment's last valid block,
        ``seal`` is that end."""
        path = self._files.path(number)
        try:
            header, image = await self._files.read(number)
        except StorageCorrupt:
            image = await self._files.read_raw(number)
            is_unwritten = self.walk.is_unwritten and seal is None
            unwritten = scan_without_header(image, number) if is_unwritten else None
            if unwritten is None:
                raise
            scan = unwritten
            header = SegmentHeader(number=number, size=len(image), nonce=b"", instance=self._files.instance)
        else:
            scan = scan_segment(
                image,
                header,
                path=path,
                sequence=None,
                stop=seal,
                passes_rot=self._passes_rot,
                is_unwritten=self.walk.is_unwritten,
            )
        self.walk.on_segment(scan, path, is_sealed=seal is not None)
        if not scan.blocks:
            if (scan.is_pristine or scan.is_garbage) and number >= self.walk.next_segment and seal is None:
                self.pristine.append(header)
            else:
                empty = FileRow.of(
                    number, end=scan.end, last_sequence=self.walk.end.sequence, runs=(), usage={}
                )
                await self._catalogue.write(rows.encode_file_and_usage(empty, {}))
            return
        last = scan.blocks[-1]
        self.is_closed = (
            not scan.is_trimmed or seal is not None or [*block_facts(image, last, path)] == [Close()]
        )
        if seal is None and not scan.is_trimmed:
            await self._write_again(number, image, last)
        ledgers = FoundLedgers(self._catalogue)
        facts = (fact for block in scan.blocks for fact in block_facts(image, block, path))
        found = [run for fact in facts if (run := ledgers.take(fact, path)) is not None]
        if number in self._replaced:
            await ledgers.save()  # The index has the segment's runs already, from the entry log.
            await self._remove_damaged(found)
            return
        for start in range(0, len(found), _PIECE_ROWS):
            await self._catalogue.write([rows.encode_run(run) for run in found[start : start + _PIECE_ROWS]])
        await ledgers.save()
        usage = rows.usage_of(found)
        row = FileRow.of(number, end=scan.end, last_sequence=self.walk.end.sequence, runs=found, usage=usage)
        await self._catalogue.write(rows.encode_file_and_usage(row, usage))
        self.runs += len(found)

    async def _remove_damaged(self, found: Sequence[EntryRun]) -> None:
        """Remove the rows of damaged runs that these runs replaced. An entry log has these runs.

        A run that replaces a damaged one takes its row. But if the log has merged the run into the one before
        it, the row still names the damaged run. The log is not a known file before the mark moves, so each
        row that names a known file is such a row.
        """
        catalogue = self._catalogue
        known = {row.file for row in (*await catalogue.segments(), *await catalogue.logs())}
        for start in range(0, len(found), _PIECE_ROWS):
            keys = [rows.run_key(run.ledger_id, run.first) for run in found[start : start + _PIECE_ROWS]]
            named = [(key, catalogue.index.get_now(key)) for key in keys]
            await catalogue.write(
                [
                    (key, None)
                    for key, value in named
                    if value is not None and rows.decode_run(key, value, catalogue.path).file in known
                ]
            )

    async def _write_again(self, number: int, image: memoryview, block: FoundBlock) -> None:
        buffer = await self._disk.make_buffer(block.header.block_bytes)
        buffer[:] = image[block.offset : block.stop]
        file = await self._disk.open(self._files.path(number), for_writing=True)
        try:
            await self._disk.write_sync(file, block.offset, buffer)
        finally:
            self._disk.close(file)


async def replay(
    directory: StorageDirectory,
    files: SegmentFiles,
    catalogue: Catalogue,
    replaced: FileSet,
    changes: Sequence[Change],
) -> Replayed:
    """Bring everything in the journal into the index, and move the mark to the journal's end.

    Args:
        directory: The bookie's directory.
        files: The journal directory.
        catalogue: The index.
        replaced: Segments whose runs are in entry logs. The index has these runs already.
        changes: Changes of the index. They are written in one batch with the mark.

    Raises:
        StorageCorrupt: The journal is damaged. The error names the file and the offset.
        IndexBehind: A segment is missing.
    """
    await files.prepare()
    numbers = await files.numbers()
    present = frozenset(numbers)
    for row in await catalogue.segments():
        if row.file not in present:
            raise IndexBehind(
                files.path(row.file), None, f"the segment is missing; the index has {row.runs} runs in it"
            )
    mark = catalogue.mark_now()
    steps = Replay(disk=directory.disk, files=files, catalogue=catalogue, mark=mark, replaced=replaced)
    for number in segments_to_replay(numbers, mark, files.directory):
        await steps.take_segment(number, None)
    walk = steps.walk
    mark_after = ReplayStart(walk.next_segment, walk.next_sequence, is_optional=True, end=walk.end)
    await catalogue.write([*changes, rows.encode_mark(mark_after)])
    return Replayed(
        end=walk.end,
        next_segment=walk.next_segment,
        pristine=tuple(steps.pristine),
        segments=walk.next_segment - mark.segment,
        runs=steps.runs,
    )
