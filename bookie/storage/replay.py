"""Replay: from the journal that a bookie left, cleanly or not, to an index that has all of it.

``replay`` follows the journal from the mark to its end (``bookie.core.boot``), a segment at a time:

    1  scan the segment; damage is StorageCorrupt
    2  write its last valid block again, durably. Every earlier block is known to have been synced, because
       another followed; this one may be in a cache only, and must not be shown to anybody before it is on
       the disk (a lone sync would not do: after a failed one the cache may hold what the disk never got)
    3  take its runs, fences, LACs and LAFRs, and write them to the index

then moves the mark to the end. Doing all that again, after a crash anywhere in between, gives the same. The
memory it takes is one segment's image, the runs of one segment, and the states of the ledgers in it.

``rebuild_index`` does the same from the first segment on, into a new index, and needs the START records to
know where torn blocks were cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from bookie.core import records, rows
from bookie.core.block import BLOCK_HEADER_BYTES, PAGE_BYTES
from bookie.core.boot import JournalWalk, Mark, segments_to_replay, start_of
from bookie.core.ledger import LedgerState
from bookie.core.records import Place, Run
from bookie.core.rows import FileRow
from bookie.core.segment import (
    SEGMENT_HEADER_BYTES,
    FoundBlock,
    SegmentHeader,
    SegmentScan,
    first_block,
    scan_segment,
)
from bookie.storage.catalogue import Catalogue
from bookie.storage.checkpoint import save_ledgers
from bookie.storage.directory import NOTHING_YET, StorageDirectory
from bookie.storage.disk import Disk
from bookie.storage.ledgers import Ledgers
from bookie.storage.segments import SegmentFiles
from ledgerlog.errors import StorageCorrupt

_PIECE_ROWS = 4096
_START = Mark(1, NOTHING_YET.sequence + 1, is_optional=True, end=NOTHING_YET)


@attrs.frozen
class Replayed:
    """Where a journal goes on."""

    end: Place
    next_segment: int
    """The segment to go on in; ``pristine`` if it exists, else to be made."""
    pristine: tuple[SegmentHeader, ...]
    """Segments behind the end to which nothing was ever written."""
    segments: int
    runs: int


class _Replay:
    """Follows the journal and writes what it holds to the index."""

    def __init__(
        self,
        *,
        disk: Disk,
        files: SegmentFiles,
        catalogue: Catalogue,
        mark: Mark,
        may_be_trimmed: bool = False,
    ) -> None:
        self.walk = JournalWalk(mark, may_be_trimmed=may_be_trimmed)
        self.runs = 0
        self.pristine: list[SegmentHeader] = []
        self.is_closed = True
        """The last block seen is the CLOSE of a clean stop, or there is none, or its file is whole."""
        self._disk = disk
        self._files = files
        self._catalogue = catalogue

    async def take_segment(self, number: int, seal: int | None) -> None:
        """The next segment; ``seal`` is where its last valid block ends, if a later START record says so."""
        path = self._files.path(number)
        header = await self._files.read_header(number)
        image = memoryview(await self._files.read_image(number))
        scan = scan_segment(image, header, path=path, sequence=None, stop=seal)
        self.walk.on_segment(scan, path, is_sealed=seal is not None)
        if not scan.blocks:
            if scan.is_pristine and seal is None:
                self.pristine.append(header)
            return
        self.is_closed = not scan.is_trimmed or seal is not None or _is_close(image, scan.blocks[-1], path)
        if seal is None and not scan.is_trimmed:
            await self._write_again(number, image, scan.blocks[-1])
        last = scan.blocks[-1].header.sequence
        ledgers = Ledgers(self._catalogue, maximum=2**63, durable=lambda: last)
        found = _apply(ledgers, image, scan, path)
        for start in range(0, len(found), _PIECE_ROWS):
            await self._catalogue.write([rows.encode_run(run) for run in found[start : start + _PIECE_ROWS]])
        await save_ledgers(self._catalogue, ledgers.dirty())
        usage = rows.usage_of(found)
        row = FileRow.of(number, end=scan.end, last_sequence=self.walk.end.sequence, runs=found, usage=usage)
        await self._catalogue.write(rows.encode_file_and_usage(row, usage))
        self.runs += len(found)

    async def _write_again(self, number: int, image: memoryview, block: FoundBlock) -> None:
        buffer = await self._disk.make_buffer(block.header.block_bytes)
        buffer[:] = image[block.offset : block.stop]
        file = await self._disk.open(self._files.path(number), for_writing=True)
        try:
            await self._disk.write_sync(file, block.offset, buffer)
        finally:
            self._disk.close(file)


def _apply(ledgers: Ledgers, image: memoryview, scan: SegmentScan, path: str) -> list[Run]:
    """Bring the ledger states up to what the segment says; its runs."""
    found: list[Run] = []
    for block in scan.blocks:
        sequence = block.header.sequence
        start = block.offset + BLOCK_HEADER_BYTES
        for record in records.decode_records(image, start, start + block.header.content_bytes, path):
            if record.kind == records.ADD:
                run, header = records.decode_add(record, segment=scan.number, sequence=sequence, path=path)
                state = _state(ledgers, run.ledger_id, header.key)
                state.on_run(run)
                state.tell(header.lac, header.lafr)
                found.append(run)
            elif record.kind == records.FENCE:
                fence = records.decode_fence(record, path)
                _state(ledgers, fence.ledger_id, fence.key).on_fence()
                ledgers.loaded[fence.ledger_id].fence_sequence = sequence
            elif record.kind not in (records.START, records.CLOSE):
                raise StorageCorrupt(path, record.offset, f"a record of unknown kind {record.kind}")
    return found


def _is_close(image: memoryview, block: FoundBlock, path: str) -> bool:
    start = block.offset + BLOCK_HEADER_BYTES
    content = records.decode_records(image, start, start + block.header.content_bytes, path)
    return [record.kind for record in content] == [records.CLOSE]


def _state(ledgers: Ledgers, ledger_id: int, key: bytes) -> LedgerState:
    state = ledgers.get(ledger_id)
    if state is None:
        state = LedgerState(ledger_id, key)
        ledgers.add(state)
    return state


async def replay(directory: StorageDirectory, files: SegmentFiles, catalogue: Catalogue) -> Replayed:
    """Bring everything that the journal holds into the index, and move the mark to the journal's end.

    Raises StorageCorrupt, naming file and offset, for damage or for a segment that is missing."""
    await files.remove_unfinished()
    numbers = await files.numbers()
    present = frozenset(numbers)
    for row in await catalogue.segments():
        if row.file not in present:
            raise StorageCorrupt(
                files.path(row.file), None, f"the segment is missing; the index has {row.runs} runs in it"
            )
    mark = catalogue.mark_now()
    steps = _Replay(disk=directory.disk, files=files, catalogue=catalogue, mark=mark)
    for number in segments_to_replay(numbers, mark, files.directory):
        await steps.take_segment(number, None)
    walk = steps.walk
    await catalogue.write(
        [rows.encode_mark(Mark(walk.next_segment, walk.next_sequence, is_optional=True, end=walk.end))]
    )
    return Replayed(
        end=walk.end,
        next_segment=walk.next_segment,
        pristine=tuple(steps.pristine),
        segments=walk.next_segment - mark.segment,
        runs=steps.runs,
    )


# --- without an index -----------------------------------------------------------------------------


async def rebuild_index(directory: StorageDirectory) -> int:
    """Make the index again from the journal, and put it in the place of the one that is damaged or lost. How
    many runs it has.

    The journal must be complete and undamaged: StorageCorrupt names what is not. That it has lost its newest
    segments cannot be seen without an index, but for the loss of all of them: then nothing is made, since a
    bookie that forgot everything would deny what it acknowledged. LACs and LAFRs that were
    told without an entry after the last one are forgotten, which is safe (they are lower bounds). A crash in
    between leaves the old index, or none; then call it again."""
    instance = await directory.read_instance()
    files = SegmentFiles(directory.disk, directory.journal_path, instance)
    await files.remove_unfinished()
    numbers = await files.numbers()
    if not numbers:
        raise StorageCorrupt(
            files.directory,
            None,
            "there is no segment to make an index from: put the journal back (is it mounted?); if it is "
            "lost, decommission the bookie so that its ledgers are repaired, and start under a new --id",
        )
    seals = await _seals(files, numbers)
    fresh_path = f"{directory.index_path}.new"
    await directory.indexes.remove(fresh_path)
    index = await directory.indexes.create(fresh_path)
    try:
        catalogue = Catalogue(index)
        steps = _Replay(
            disk=directory.disk, files=files, catalogue=catalogue, mark=_START, may_be_trimmed=True
        )
        for number in segments_to_replay(numbers, _START, files.directory):
            await steps.take_segment(number, seals.get(number))
        walk = steps.walk
        if not steps.is_closed:
            # A segment is trimmed before the next is begun only by a clean stop, whose mark would end it.
            raise StorageCorrupt(
                files.path(walk.end.segment), walk.end.offset, "the end of the file is missing"
            )
        mark = Mark(walk.next_segment, walk.next_sequence, is_optional=True, end=walk.end)
        await catalogue.write([rows.encode_instance(instance), rows.encode_mark(mark)])
    finally:
        await index.aclose()
    await directory.indexes.replace(fresh_path, directory.index_path)
    return steps.runs


async def _seals(files: SegmentFiles, numbers: Sequence[int]) -> Mapping[int, int]:
    """Where the last valid blocks of segments end, as far as START records say."""
    seals: dict[int, int] = {}
    for number in numbers:
        header = await files.read_header(number)
        # A START record is alone in its block, which then has one page.
        (pages,) = await files.read(number, [(0, SEGMENT_HEADER_BYTES + PAGE_BYTES)])
        image = memoryview(pages)
        block = first_block(image, header)
        if block is None or (end := start_of(image, block, files.path(number))) is None:
            continue
        if end.segment:
            seals[end.segment] = end.offset
        for between in range(end.segment + 1, number):
            seals[between] = SEGMENT_HEADER_BYTES
    files.close()
    return seals
