"""The ends of long polls: thousands that end at the same moment delay nobody else.

A client may have thousands of long polls under way, and all of them may run out together. If each had a timer
of its own, all would end in one pass of the event loop, and every other client would wait for that. So the
task ``run`` ends them, the earliest first, at most ``AT_ONCE`` in a pass. A poll may thus last a little
longer than it asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from itertools import count

import trio

__all__ = ["AT_ONCE", "Polls"]

AT_ONCE = 16

_FEW = 64


class Polls:
    """The long polls of one bookie. ``run`` must run while any poll waits."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, int, trio.CancelScope]] = []
        """A heap: when each poll ends, and a number that makes them different."""
        self._waiting: dict[int, None] = {}
        """The numbers of the polls that wait. The others in the heap have ended already."""
        self._numbers = count()
        self._wanted = trio.Event()

    @contextmanager
    def lasting(self, seconds: float) -> Iterator[trio.CancelScope]:
        """Wait inside the body for at most about so many seconds. Cancel the scope to end it earlier."""
        number = next(self._numbers)
        with trio.CancelScope() as poll:
            heappush(self._ends, (trio.current_time() + seconds, number, poll))
            self._waiting[number] = None
            self._wanted.set()
            try:
                yield poll
            finally:
                self._waiting.pop(number, None)
                if len(self._ends) > _FEW + 2 * len(self._waiting):
                    self._ends = [end for end in self._ends if end[1] in self._waiting]
                    heapify(self._ends)

    async def run(self) -> None:
        """End the polls whose time is up. Never returns."""
        while True:
            await self._wait_for_next()
            now, left = trio.current_time(), AT_ONCE
            while left and self._ends and self._ends[0][0] <= now:
                _, number, poll = heappop(self._ends)
                if self._waiting.pop(number, number) is None:
                    poll.cancel()
                    left -= 1
            await trio.lowlevel.checkpoint()

    async def _wait_for_next(self) -> None:
        while not self._ends or self._ends[0][0] > trio.current_time():
            self._wanted = trio.Event()
            with trio.move_on_at(self._ends[0][0] if self._ends else float("inf")):
                await self._wanted.wait()
