"""Boot: find the end of a journal from the scans of its segments.

The bookie writes one block at a time, and one segment after the other. So the journal is a chain of blocks
with growing sequences that ends in one place. At most one torn block may come after that place:

    segment 7          segment 8          segment 9
    [ 41 | 42 | 43 ]   [ 44 | 45 | torn ] [ zeros ]       ends after block 45; the torn block is cut
    [ 41 | 42 | 43 ]   [ torn | zeros   ]                 ends after block 43
    [ 41 | 42 | torn ] [ 44 | ...       ]                 damage: 44 was begun only after 43 was synced
    [ 41 | 42 | torn ] [ torn           ]                 damage, for the same reason
    [ 41 | 42 ]        [ zeros ]          [ 43 | ...  ]   damage: the bookie never skips a segment
    [ 41 | 42 ]        [ 44 | ...       ]                 damage: block 43 is missing

``JournalWalk`` takes the scans of the segments in order. It finds the end or raises StorageCorrupt.

**Garbage.** A prepared segment may hold bytes that the bookie never wrote, even in its file's header. These
bytes do not form a block, but look like a rotten block. If the bookie certainly never wrote to that segment,
the bytes do not matter (``JournalWalk.is_unwritten``). Otherwise the segment is damaged:

    [ 41 | 42 ]        [ zeros ]          [ garbage ]     ends after block 42; the last segment is removed
    [ 41 | 42 ]        [ garbage ]                        damage: block 43 may have been there

**Cutting.** The torn block is never overwritten. At each start, the bookie replays the records of the journal
that the index may lack. It makes them durable in the index, together with the place where the journal ended.
It then continues in a segment that was never written to. The first record there is a START record, which
names the same place again. A rebuild without the index needs this record (``bookie.storage.upkeep.rebuild``).
If the bookie crashes during this start, it leaves at most a torn START block. The mark in the index already
excludes everything before that block, including the old torn block.

**The mark** is stored in the index and says where replay begins. The index has everything before the mark's
segment. If ``is_optional`` is set, nothing from that segment on was acknowledged, so the segment may be
missing. If it is not set and the segment is missing, the segment was lost (``IndexBehind``).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from bookie.core.block import PAGE_BYTES
from bookie.core.journal_items import START, JournalPosition, decode_start
from bookie.core.segment import FoundBlock, SegmentScan
from ledgerlog.errors import StorageCorrupt


class IndexBehind(StorageCorrupt):
    """A file is missing that the index still needs.

    Either the file was lost, or the index lost its last batches after the file was deleted. The caller that
    opens the index adds the file of the index that may be at fault.
    """

    def __init__(self, path: str, offset: int | None, why: str) -> None:
        super().__init__(path, offset, why)
        self.why = why
        """The reason alone, without the path."""


@attrs.frozen
class ReplayStart:
    """Where replay begins."""

    segment: int
    """Replay begins with this segment."""
    sequence: int
    """The sequence of the first block in that segment, if the segment has a block."""
    is_optional: bool
    """That segment has no acknowledged record, because the bookie did not serve clients with it yet."""
    end: JournalPosition
    """Where the journal before that segment ends."""

    def __attrs_post_init__(self) -> None:
        assert self.sequence == self.end.sequence + 1


def segments_to_replay(numbers: Sequence[int], mark: ReplayStart, directory: str) -> list[int]:
    """Choose the segments that must be scanned.

    Args:
        numbers: The segments that exist in ``directory``, in any order.
        mark: Where replay begins.
        directory: The journal's directory, for the error.

    Returns:
        Their numbers, ascending and without a gap.

    Raises:
        IndexBehind: A segment is missing.
    """
    wanted = sorted(number for number in numbers if number >= mark.segment)
    if not wanted and mark.is_optional:
        return []
    expected = list(range(mark.segment, wanted[-1] + 1)) if wanted else [mark.segment]
    for number in expected:
        if number not in wanted:
            raise IndexBehind(
                directory,
                None,
                f"segment {number} is missing, but the index says that the journal continues there",
            )
    return wanted


class JournalWalk:
    """Follow a journal from a mark to its end.

    Call ``on_segment`` with consecutive segments. ``may_be_trimmed`` accepts trimmed segments. Set it only if
    the walk starts at the beginning of the journal instead of at the index's mark.
    """

    def __init__(self, mark: ReplayStart, *, may_be_trimmed: bool = False) -> None:
        self.end = mark.end
        """The end of the journal so far."""
        self.next_segment = mark.segment
        """The number after the last segment that was ever written to."""
        self._number = mark.segment
        self._optional = mark.segment if mark.is_optional else None
        self._torn: tuple[str, int] | None = None
        self._skipped: str | None = None
        self._may_be_trimmed = may_be_trimmed

    @property
    def next_sequence(self) -> int:
        """The sequence that the next block must have."""
        return self.end.sequence + 1

    @property
    def is_unwritten(self) -> bool:
        """Whether the bookie certainly never wrote to the segment that ``on_segment`` takes next.

        There are two possible reasons: the bookie never wrote to the previous segment, or the mark says so.
        """
        return self._skipped is not None or self._number == self._optional

    def on_segment(self, scan: SegmentScan, path: str, *, is_sealed: bool = False) -> None:
        """Take the scan of the next segment.

        Args:
            scan: The content of the segment.
            path: The segment's file, for the error.
            is_sealed: A START record in a later segment says where the last valid block of this one ends.

        Raises:
            StorageCorrupt: The segment contradicts the segments before it.
            IndexBehind: The segment is trimmed, although replay has not passed it.
        """
        assert scan.number == self._number, "segments come in order"
        self._number += 1
        if is_sealed and not scan.blocks:
            # The only write to this segment was a torn START: the bookie crashed during its start.
            self.next_segment = scan.number + 1
            return
        if scan.is_garbage and self.next_segment == scan.number:
            self.next_segment = scan.number + 1  # The bookie continues in a segment of zeros.
        if scan.is_pristine or scan.is_garbage:
            self._skipped = self._skipped or path
            return
        if scan.is_trimmed and not self._may_be_trimmed:
            raise IndexBehind(path, scan.end, "the file ends here, but replay has not reached its end")
        if self._torn is not None:
            torn_path, offset = self._torn
            raise StorageCorrupt(torn_path, offset, f"a damaged block, but {path} was written after it")
        if self._skipped is not None:
            raise StorageCorrupt(
                self._skipped, PAGE_BYTES, f"an empty segment, but {path} after it is not empty"
            )
        if scan.blocks:
            first = scan.blocks[0]
            if first.header.sequence != self.next_sequence:
                raise StorageCorrupt(
                    path,
                    first.offset,
                    f"block {first.header.sequence} where block {self.next_sequence} was expected: "
                    f"the journal before it ends at byte {self.end.offset} of segment {self.end.segment}",
                )
            self.end = JournalPosition(scan.number, scan.end, scan.blocks[-1].header.sequence)
        if scan.is_torn:
            self._torn = path, scan.end
        self.next_segment = scan.number + 1


def start_of(image: memoryview, block: FoundBlock, path: str) -> JournalPosition | None:
    """Return the position in the block's START record, or None if the block does not begin with one."""
    for record in block.records(image, path):
        return decode_start(record, path) if record.kind == START else None
    return None
