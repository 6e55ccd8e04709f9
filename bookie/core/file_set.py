"""Sets of file numbers, kept as ranges.

Files of a bookie have numbers: segments of the journal positive ones, entry logs negative ones. Each entry
log says which files it took the place of, and which ones these had replaced before, so the sets of all logs
together grow with the life of a bookie; as ranges they stay small, because files are replaced about in the
order of their numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import attrs

Range = tuple[int, int]
"""First and last, both included."""


@attrs.frozen
class FileSet:
    ranges: tuple[Range, ...] = ()
    """Growing, not adjacent."""

    @classmethod
    def of(cls, numbers: Iterable[int]) -> FileSet:
        return cls.join([(number, number) for number in numbers])

    @classmethod
    def join(cls, ranges: Iterable[Range]) -> FileSet:
        """All numbers of some ranges, in any order."""
        joined: list[Range] = []
        for low, high in sorted(ranges):
            if joined and low <= joined[-1][1] + 1:
                joined[-1] = joined[-1][0], max(high, joined[-1][1])
            else:
                joined.append((low, high))
        return cls(tuple(joined))

    def __or__(self, other: FileSet) -> FileSet:
        return FileSet.join((*self.ranges, *other.ranges))

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self.ranges, (number, 2**63)) - 1
        return at >= 0 and number <= self.ranges[at][1]

    @property
    def highest(self) -> int:
        """The greatest number, 0 where there is none above it."""
        return max((0, *(last for _, last in self.ranges)))

    def __bool__(self) -> bool:
        return bool(self.ranges)
