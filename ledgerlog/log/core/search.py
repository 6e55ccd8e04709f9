"""Finding an entry by a value that never decreases along a ledger: its last offset, or its timestamp.

Only an entry itself shows its content, and looking at an entry costs a read. So the search probes few
entries. If the values at both ends are known, it guesses by interpolation. That finds an offset among entries
of similar size in two or three probes. Every other probe halves the remaining range. So for any distribution
of values, the search needs at most twice as many probes as a binary search.

    search = EntrySearch(low, high, wanted)
    while search.probe is not None:
        search.on_value(<value of entry search.probe>)
    search.found    the first entry whose value is at least ``wanted``; high + 1 if there is none
"""

from __future__ import annotations

__all__ = ["EntrySearch"]


class EntrySearch:
    """The search in entries ``low`` to ``high``.

    Args:
        low: The first entry of the range.
        high: The last entry of the range.
        wanted: Find the first entry whose value is at least this.
        value_below: A lower bound for the values of all entries in the range, if known.
        value_at_high: The value of entry ``high``, if known.
    """

    def __init__(
        self,
        low: int,
        high: int,
        wanted: int,
        *,
        value_below: int | None = None,
        value_at_high: int | None = None,
    ) -> None:
        self._low, self._high = low, high + 1
        self._wanted = wanted
        self._value_below = value_below
        self._value_at_high = value_at_high
        self._halve = False
        if value_at_high is not None and low <= high:
            if value_at_high < wanted:
                self._low = high + 1
            else:
                self._high = high

    @property
    def found(self) -> int:
        """The result. Valid once ``probe`` is None."""
        return self._low

    @property
    def probe(self) -> int | None:
        """The entry to look at next. It stays the same until ``on_value`` reports its value."""
        low, high = self._low, self._high
        if low >= high:
            return None
        below, above = self._value_below, self._value_at_high
        if self._halve or below is None or above is None or above <= below:
            return (low + high) // 2
        guess = low + (self._wanted - below) * (high - low) // (above - below)
        return min(max(guess, low), high - 1)

    def on_value(self, value: int) -> None:
        """Report the value of entry ``probe``."""
        at = self.probe
        assert at is not None
        if value >= self._wanted:
            self._high = at
            self._value_at_high = value
        else:
            self._low = at + 1
            self._value_below = value
        self._halve = not self._halve
