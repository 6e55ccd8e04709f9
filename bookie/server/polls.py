"""The ends of long polls: thousands of polls that end at the same moment delay no other client.

A client may have thousands of long polls under way, and the time of all may be up at once. If each poll had
its own timer, all would end in one pass of the event loop, and every other client would wait for that. So the
task ``run`` ends the polls, the earliest first, at most ``AT_ONCE`` in a pass. A poll may therefore last a
little longer than the client asked for.
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
        """A heap with the end of each poll, a unique number, and the scope of its wait."""
        self._waiting: dict[int, None] = {}
        """The numbers of the polls that still wait. Any other poll in the heap has ended already."""
        self._numbers = count()
        self._wanted = trio.Event()

    @contextmanager
    def lasting(self, seconds: float) -> Iterator[trio.CancelScope]:
        """Bound the wait in the body to about this many seconds. Cancel the scope to end the wait earlier."""
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
        """End the polls whose time is up. This never returns."""
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
