"""Limit background work to a number of bytes or requests each second, so that other work has room."""

from __future__ import annotations

import trio

from ledgerlog.concurrency.core.rate import TokenBucket

__all__ = ["Pace"]


class Pace:
    """One rate that several tasks share.

    A task calls ``pass_through`` before it moves data, and waits until the rate has paid for this and for all
    earlier calls. Unused rate is saved for at most one second. After a long pause the work therefore does not
    run unlimited to catch up.

    Args:
        per_s: Bytes (or requests) each second, above 0.
    """

    def __init__(self, per_s: float) -> None:
        self._bucket = TokenBucket(per_s, burst_s=1.0)

    async def pass_through(self, size: int) -> None:
        """Wait until the rate allows ``size`` more bytes (or requests).

        Cancelling: the bytes count as moved.
        """
        now = trio.current_time()
        self._bucket.spend(size, now)
        await trio.sleep(self._bucket.debt_s(now))
