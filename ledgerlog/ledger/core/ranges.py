"""A set of entry ids, kept as ranges: the confirmations of one slot of an ensemble.

Bookies confirm a frame of entries at a time, nearly always in order. So the set is usually one range that
grows at its end. Resends and reconnects make a few more ranges, which merge again as the gaps fill.
"""

from __future__ import annotations


class RangeSet:
    """Disjoint, non-adjacent ranges [low, high] of integers, in ascending order."""

    __slots__ = ("_highs", "_lows")

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []

    def add(self, low: int, high: int) -> bool:
        """Add every id in low..high to the set. Return whether there is one range more than before."""
        assert low <= high
        lows, highs = self._lows, self._highs
        if not highs or low > highs[-1] + 1:
            lows.append(low)
            highs.append(high)
            return True
        if low >= lows[-1]:
            if high > highs[-1]:
                highs[-1] = high
            return False
        # The slow path: find the ranges that touch low..high and make them one.
        begin = 0
        while highs[begin] < low - 1:
            begin += 1
        end = begin
        while end < len(lows) and lows[end] <= high + 1:
            end += 1
        if begin < end:
            low, high = min(low, lows[begin]), max(high, highs[end - 1])
        lows[begin:end] = [low]
        highs[begin:end] = [high]
        return begin == end

    def reach(self, start: int) -> int:
        """Return the largest x such that all of start..x is in the set; start - 1 if ``start`` is not in the
        set."""
        for low, high in zip(self._lows, self._highs, strict=True):
            if high >= start:
                return high if low <= start else start - 1
        return start - 1

    def next_from(self, start: int) -> int | None:
        """Return the smallest id in the set that is at least ``start``; None if there is none."""
        for low, high in zip(self._lows, self._highs, strict=True):
            if high >= start:
                return max(low, start)
        return None

    def discard_through(self, last: int) -> None:
        """Forget every id up to ``last``."""
        lows, highs = self._lows, self._highs
        while highs and highs[0] <= last:
            del lows[0], highs[0]
        if lows and lows[0] <= last:
            lows[0] = last + 1

    @property
    def count(self) -> int:
        """How many ranges there are."""
        return len(self._lows)

    def discard_first(self) -> None:
        """Forget the ids of the first range."""
        del self._lows[0], self._highs[0]

    def clear(self) -> None:
        """Remove every id."""
        self._lows.clear()
        self._highs.clear()

    def ranges(self) -> list[tuple[int, int]]:
        """The ranges, in ascending order."""
        return list(zip(self._lows, self._highs, strict=True))

    def __contains__(self, item: int) -> bool:
        return self.reach(item) >= item
