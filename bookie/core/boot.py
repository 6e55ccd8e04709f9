"""Boot: what the segments of a journal say together.

Only one block is written at a time, and one segment after the other. So the journal is a chain of blocks with
growing sequences that ends in one place, and behind that place at most one torn block may stand:

    segment 7          segment 8          segment 9
    [ 41 | 42 | 43 ]   [ 44 | 45 | torn ] [ zeros ]       ends behind block 45; the torn block is cut
    [ 41 | 42 | 43 ]   [ torn | zeros   ]                 ends behind block 43
    [ 41 | 42 | torn ] [ 44 | ...       ]                 damage: 44 was begun only after 43 was synced
    [ 41 | 42 | torn ] [ torn           ]                 damage, for the same reason
    [ 41 | 42 ]        [ zeros ]          [ 43 | ...  ]   damage: no segment is left out
    [ 41 | 42 ]        [ 44 | ...       ]                 damage: block 43 is missing

``JournalWalk`` takes the scans of segments in order and finds the end, or raises StorageCorrupt.

**Cutting.** The torn block is never overwritten. A bookie makes everything it replayed durable in the index,
together with the place where the journal ended, and goes on in a segment to which nothing was ever
written; the START record in front says the same place again, for whoever must do without the index
(``seals_of``). A crash during that start leaves at most a torn START block, and the index already says
that nothing before it counts.

**The mark** is the index's word on where to begin: everything before its segment is in the index.
``is_optional`` says that nothing was acknowledged from its segment on, so that the segment may be
missing; otherwise a segment that is not there has been lost, and that is damage.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from bookie.core.block import PAGE_BYTES
from bookie.core.records import START, Place, decode_start
from bookie.core.segment import FoundBlock, SegmentScan
from ledgerlog.errors import StorageCorrupt


class IndexBehind(StorageCorrupt):
    """A file is missing that the index still counts on. It was lost; or the index has lost its last batches,
    and the file went since. Whoever opens the index says which file of it that would be."""

    def __init__(self, path: str, offset: int | None, why: str) -> None:
        super().__init__(path, offset, why)
        self.why = why


@attrs.frozen
class Mark:
    """Where replay begins."""

    segment: int
    sequence: int
    """Of the first block in that segment, unless nothing was written to it."""
    is_optional: bool
    """No acknowledged record can lie in that segment: it was not opened for clients (again) yet."""
    end: Place
    """Where the journal before that segment ends."""

    def __attrs_post_init__(self) -> None:
        assert self.sequence == self.end.sequence + 1


def segments_to_replay(numbers: Sequence[int], mark: Mark, directory: str) -> list[int]:
    """Which segments of those found in ``directory`` must be scanned. IndexBehind if one is missing."""
    wanted = sorted(number for number in numbers if number >= mark.segment)
    if not wanted and mark.is_optional:
        return []
    expected = list(range(mark.segment, wanted[-1] + 1)) if wanted else [mark.segment]
    for number in expected:
        if number not in wanted:
            raise IndexBehind(
                directory, None, f"segment {number} is missing, the index says that the journal goes on there"
            )
    return wanted


class JournalWalk:
    """Follows a journal from a mark on. ``on_segment`` must be called with consecutive segments, which may be
    trimmed only where the mark is not what the index says but the journal's beginning."""

    def __init__(self, mark: Mark, *, may_be_trimmed: bool = False) -> None:
        self.end = mark.end
        """Where the journal ends, as far as it was followed."""
        self.next_segment = mark.segment
        """Behind the last segment to which anything was ever written."""
        self._number = mark.segment
        self._torn: tuple[str, int] | None = None
        self._skipped: str | None = None
        self._may_be_trimmed = may_be_trimmed

    @property
    def next_sequence(self) -> int:
        return self.end.sequence + 1

    def on_segment(self, scan: SegmentScan, path: str, *, is_sealed: bool = False) -> None:
        """The next segment's scan; ``is_sealed``: a later START record says where its last valid block ends.
        StorageCorrupt if it contradicts what came before."""
        assert scan.number == self._number, "segments come in order"
        self._number += 1
        if is_sealed and not scan.blocks:
            # Only the torn START of a bookie that did not get far was ever written to it.
            self.next_segment = scan.number + 1
            return
        if scan.is_pristine:
            self._skipped = self._skipped or path
            return
        if scan.is_trimmed and not self._may_be_trimmed:
            raise IndexBehind(path, scan.end, "the file ends here, though replay has not passed it")
        if self._torn is not None:
            torn_path, offset = self._torn
            raise StorageCorrupt(torn_path, offset, f"a damaged block, though {path} was written after it")
        if self._skipped is not None:
            raise StorageCorrupt(self._skipped, PAGE_BYTES, f"an empty segment, though {path} is not")
        if scan.blocks:
            first = scan.blocks[0]
            if first.header.sequence != self.next_sequence:
                raise StorageCorrupt(
                    path,
                    first.offset,
                    f"block {first.header.sequence} where block {self.next_sequence} was expected: "
                    f"the journal before it ends at byte {self.end.offset} of segment {self.end.segment}",
                )
            self.end = Place(scan.number, scan.end, scan.blocks[-1].header.sequence)
        if scan.is_torn:
            self._torn = path, scan.end
        self.next_segment = scan.number + 1


def start_of(image: memoryview, block: FoundBlock, path: str) -> Place | None:
    """What the START record says, if the block begins with one."""
    for record in block.records(image, path):
        return decode_start(record, path) if record.kind == START else None
    return None
