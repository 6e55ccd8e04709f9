"""Ranges of ids: pairs of the first and the last id, both included. For example, (3, 5) is 3, 4 and 5."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

__all__ = ["IdRange", "IdSequence", "joined", "ranges_of", "without"]

IdRange = tuple[int, int]


def joined(ranges: Iterable[IdRange]) -> list[IdRange]:
    """Return the same ids as ascending ranges that do not overlap and do not touch.

    >>> joined([(6, 9), (0, 2), (3, 4)])
    [(0, 4), (6, 9)]
    """
    found: list[IdRange] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return found


def ranges_of(ids: Iterable[int]) -> list[IdRange]:
    """Return ascending ids as ascending ranges that do not touch.

    >>> ranges_of([0, 1, 2, 6])
    [(0, 2), (6, 6)]
    """
    found: list[IdRange] = []
    for an_id in ids:
        if found and an_id == found[-1][1] + 1:
            found[-1] = found[-1][0], an_id
        else:
            found.append((an_id, an_id))
    return found


def without(ranges: Iterable[IdRange], taken: Iterable[IdRange]) -> list[IdRange]:
    """Return the parts of ``ranges`` that are in none of ``taken``. Both must ascend.

    >>> without([(0, 9)], [(2, 3), (9, 12)])
    [(0, 1), (4, 8)]
    """
    found: list[IdRange] = []
    rest = iter(taken)
    away = next(rest, None)
    for low, high in ranges:
        while away is not None and away[1] < low:
            away = next(rest, None)
        while away is not None and away[0] <= high:
            if low < away[0]:
                found.append((low, away[0] - 1))
            low = away[1] + 1
            if low > high:
                break
            away = next(rest, None)
        if low <= high:
            found.append((low, high))
    return found


class IdSequence(Sequence[int]):
    """Ascending ids that take the memory of their ranges, so there may be 2**62 of them.

    It is equal to every sequence of the same ids.

    >>> list(IdSequence([(6, 9), (0, 1)]))
    [0, 1, 6, 7, 8, 9]
    """

    __slots__ = ("_starts", "ranges")

    def __init__(self, ranges: Iterable[IdRange] = ()) -> None:
        self.ranges: Sequence[IdRange] = joined(ranges)
        """The ids as ascending ranges that do not overlap and do not touch."""
        counts = (high - low + 1 for low, high in self.ranges)
        # The index of the first id of each range, and at the end the number of all ids.
        self._starts = list(itertools.accumulate(counts, initial=0))

    @classmethod
    def of(cls, ids: Iterable[int]) -> IdSequence:
        """Return ascending ids as an IdSequence."""
        return ids if isinstance(ids, IdSequence) else cls(ranges_of(ids))

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[int]:
        return itertools.chain.from_iterable(range(low, high + 1) for low, high in self.ranges)

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, int):
            return False
        index = bisect_right(self.ranges, item, key=lambda pair: pair[0]) - 1
        return index >= 0 and item <= self.ranges[index][1]

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        number = bisect_right(self._starts, place) - 1
        return self.ranges[number][0] + place - self._starts[number]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, IdSequence):
            return self.ranges == other.ranges
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(map(int.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]  # It is equal to lists, which have no hash.

    def __repr__(self) -> str:
        return f"[{', '.join(str(a) if a == b else f'{a}..{b}' for a, b in self.ranges)}]"
