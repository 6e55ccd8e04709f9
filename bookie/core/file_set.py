"""Sets of file numbers, kept as ranges.

Each file of a bookie has a number: positive for a segment of the journal, negative for an entry log. An entry
log lists the files that it replaced, and the files that those files had replaced before. So these sets grow
as long as the bookie lives. Kept as ranges they stay small, because files are replaced roughly in the order
of their numbers. For example, segments 1 to 1000 are one range.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import attrs

from ledgerlog.model.id_ranges import joined

Range = tuple[int, int]
"""The first and the last number, both included."""


@attrs.frozen
class FileSet:
    ranges: tuple[Range, ...] = ()
    """In ascending order, with at least one number missing between two ranges."""

    @classmethod
    def of(cls, numbers: Iterable[int]) -> FileSet:
        return cls.join([(number, number) for number in numbers])

    @classmethod
    def join(cls, ranges: Iterable[Range]) -> FileSet:
        """Join ranges, given in any order, into one set. They may overlap."""
        return cls(tuple(joined(ranges)))

    def __or__(self, other: FileSet) -> FileSet:
        return FileSet.join((*self.ranges, *other.ranges))

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self.ranges, (number, 2**63)) - 1
        return at >= 0 and number <= self.ranges[at][1]

    @property
    def highest(self) -> int:
        """The greatest number, or 0 if the set has no positive number."""
        return max((0, *(last for _, last in self.ranges)))

    def __bool__(self) -> bool:
        return bool(self.ranges)
