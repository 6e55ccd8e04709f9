"""A token bucket: it limits how much is done each second. Pure arithmetic; the caller passes in the time.

The bucket gains ``rate`` tokens each second, up to ``burst_s`` seconds' worth. Before you do a piece of work,
ask ``delay`` how long to wait, then take its tokens with ``spend``.

A piece may cost more than a full bucket holds. It may start as soon as the bucket holds any token, and the
bucket goes into debt. The next caller waits until that debt is paid. So no piece waits forever. In any time
t, the work done costs at most ``rate * t``, plus one burst, plus one piece. For example, with 100 tokens a
second and a burst of 0.25 s, a piece of 500 tokens starts on a full bucket of 25. The bucket is then at -475,
and the next piece starts after about 4.76 s.
"""

from __future__ import annotations

import math

__all__ = ["TokenBucket"]


class TokenBucket:
    """A token bucket. Times are seconds of any clock that never goes back."""

    def __init__(self, rate: float, now: float = -math.inf, *, burst_s: float = 0.25) -> None:
        """Start with a full bucket.

        Args:
            rate: Tokens each second, above 0.
            now: The time of the start. By default, the first use is the start.
            burst_s: The bucket holds at most ``rate * burst_s`` tokens.
        """
        assert rate > 0
        self._rate = rate
        self._burst_s = burst_s
        self._tokens = rate * burst_s
        self._at = now

    @property
    def rate(self) -> float:
        """Tokens each second."""
        return self._rate

    def change_rate(self, rate: float, now: float) -> None:
        """Use another rate from ``now`` on. Saved tokens (up to the new burst) and debt stay."""
        assert rate > 0
        self._gather(now)
        self._rate = rate
        self._tokens = min(self._tokens, rate * self._burst_s)

    def delay(self, now: float) -> float:
        """Return how many seconds to wait from ``now`` until you may spend; 0.0 if you may spend now."""
        self._gather(now)
        return 0.0 if self._tokens > 0 else (1 - self._tokens) / self._rate

    def debt_s(self, now: float) -> float:
        """Return how many seconds from ``now`` until all debt is paid; 0.0 if there is no debt."""
        self._gather(now)
        return max(0.0, -self._tokens / self._rate)

    def spend(self, count: float, now: float) -> None:
        """Take ``count`` tokens for a piece of work that is done at ``now``. This may leave a debt."""
        self._gather(now)
        self._tokens -= count

    def _gather(self, now: float) -> None:
        assert now >= self._at
        self._tokens = min(self._tokens + (now - self._at) * self._rate, self._rate * self._burst_s)
        self._at = now
