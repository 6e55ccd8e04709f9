"""So many bytes or requests a second, for work that goes on beside other work and must leave it room."""

from __future__ import annotations

import trio

from ledgerlog.concurrency.core.rate import TokenBucket

__all__ = ["Pace"]


class Pace:
    """One rate for all who pass through it.

    You pass through before you move something, and wait until that and all before it is paid for. What nobody
    used is saved for a second at most, so that after a pause nobody catches up at full speed."""

    def __init__(self, per_s: float) -> None:
        self._bucket = TokenBucket(per_s, burst_s=1.0)

    async def pass_through(self, size: int) -> None:
        """Wait until so much more may be moved. If this is cancelled, it counts as moved."""
        now = trio.current_time()
        self._bucket.spend(size, now)
        await trio.sleep(self._bucket.debt_s(now))
