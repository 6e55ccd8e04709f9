"""Pauses that grow while something fails: exponential back-off, as arithmetic.

The first pause is the shortest, and each is twice the one before, up to the longest. What ends a row of
failures is the caller's to say: often it is not the next call that succeeds, because a task that reads well
and cannot write would then never wait longer.

    backoff = Backoff(0.05, 2.0)
    backoff.next_s()     # 0.05, then 0.1, 0.2, ... and 2.0 in the end
    backoff.reset()      # the next pause is 0.05 again
"""

from __future__ import annotations

__all__ = ["Backoff"]


class Backoff:
    """See above."""

    def __init__(self, min_s: float, max_s: float) -> None:
        assert 0 < min_s <= max_s
        self._min_s = min_s
        self._max_s = max_s
        self._last_s = 0.0

    @property
    def is_growing(self) -> bool:
        """Whether there was a pause since the last ``reset``. Tell people of a failure while this is False:
        then they hear of each row of failures once."""
        return self._last_s > 0

    def next_s(self) -> float:
        """The pause after one more failure."""
        self._last_s = min(max(2 * self._last_s, self._min_s), self._max_s)
        return self._last_s

    def reset(self) -> None:
        """It goes well again."""
        self._last_s = 0.0
