"""Limit background work, so that other work has room: to a number of bytes or requests each second, or to a
part of the time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from ledgerlog.concurrency.core.rate import TokenBucket

__all__ = ["Pace", "TimeShare"]


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


class TimeShare:
    """At most a part of the time of another process, which several tasks share.

    One task at a time has the turn. After work of ``t`` seconds no task works for ``t * (1 / share - 1)``
    seconds. So if the other process gets slow, because others need it, it gets less work from us. The caller
    does not need to know how fast it could be. If several of our processes use the same other process, each
    has this share of its own; but each slows down the others, and so all of them pause longer.

    Args:
        share: The part of the time, above 0 and at most 1. With 1 there are no pauses.
    """

    def __init__(self, share: float) -> None:
        assert 0 < share <= 1
        self._pause = 1 / share - 1
        self._lock = trio.Lock()
        self._rested = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn, and keep it for the body of the ``async with``."""
        async with self._lock:
            yield

    async def rest(self) -> None:
        """Wait until the pause is over. Call this with the turn, before you work."""
        await trio.sleep_until(self._rested)

    def on_worked(self, seconds: float, now: float) -> None:
        """Begin the pause after work that took ``seconds`` and ended ``now``. Call this with the turn."""
        self._rested = now + seconds * self._pause
