"""A bound on how much is done in a second: a token bucket, as arithmetic on times that it is given.

Tokens come at ``rate`` a second and gather up to ``burst_s`` seconds' worth. Whoever does something of a size
asks first: ``delay`` is how long to wait, and ``spend`` takes the tokens. A piece may be larger than what
ever gathers: it is let through as soon as there is any token, and the debt is waited for by whoever comes
next. So no piece waits for ever, and over any stretch of time no more is done than the rate, the burst and
one piece.
"""

from __future__ import annotations

import math

__all__ = ["TokenBucket"]


class TokenBucket:
    """See above. Times are seconds by any clock that does not go back."""

    def __init__(self, rate: float, now: float = -math.inf, *, burst_s: float = 0.25) -> None:
        """It is full at first, at ``now`` or whenever it is used first."""
        assert rate > 0
        self._rate = rate
        self._burst_s = burst_s
        self._tokens = rate * burst_s
        self._at = now

    @property
    def rate(self) -> float:
        return self._rate

    def change_rate(self, rate: float, now: float) -> None:
        """Another rate from now on. What has gathered, and a debt, stay, within the new burst."""
        assert rate > 0
        self._gather(now)
        self._rate = rate
        self._tokens = min(self._tokens, rate * self._burst_s)

    def delay(self, now: float) -> float:
        """How long to wait from ``now`` on until something may be spent; 0.0: nothing."""
        self._gather(now)
        return 0.0 if self._tokens > 0 else (1 - self._tokens) / self._rate

    def debt_s(self, now: float) -> float:
        """How long to wait from ``now`` on until everything that was spent is paid for; 0.0: it is."""
        self._gather(now)
        return max(0.0, -self._tokens / self._rate)

    def spend(self, count: float, now: float) -> None:
        """Something of this size is done now."""
        self._gather(now)
        self._tokens -= count

    def _gather(self, now: float) -> None:
        assert now >= self._at
        self._tokens = min(self._tokens + (now - self._at) * self._rate, self._rate * self._burst_s)
        self._at = now
