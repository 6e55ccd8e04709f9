"""Exponential back-off: pauses that grow while calls fail. Pure arithmetic; the caller sleeps.

The first pause is the shortest. Each pause is twice the pause before, up to the longest.

    backoff = Backoff(0.05, 2.0)
    backoff.next_s()     # 0.05, then 0.1, 0.2, ... and 2.0 in the end
    backoff.reset()      # the next pause is 0.05 again

The caller decides when a series of failures is over, and then calls ``reset``. Often one successful call is
not a reason to reset. For example, suppose that a task can read from a store but not write to it. If the task
called ``reset`` after each read, its pauses would never grow.
"""

from __future__ import annotations

__all__ = ["Backoff"]


class Backoff:
    """The pauses of one task, in seconds. See the module's example.

    Args:
        min_s: The first pause, above 0.
        max_s: The longest pause, at least ``min_s``.
    """

    def __init__(self, min_s: float, max_s: float) -> None:
        assert 0 < min_s <= max_s
        self._min_s = min_s
        self._max_s = max_s
        self._last_s = 0.0

    @property
    def is_growing(self) -> bool:
        """Whether there was a pause since the last ``reset``.

        If you log a failure only while this is False, each series of failures is logged once.
        """
        return self._last_s > 0

    def next_s(self) -> float:
        """Return the pause after one more failure, in seconds."""
        self._last_s = min(max(2 * self._last_s, self._min_s), self._max_s)
        return self._last_s

    def reset(self) -> None:
        """End the series of failures: the next pause is the shortest again."""
        self._last_s = 0.0
