"""A bound on the bytes in use at the same time, and the queue of tasks that wait for them.

A ``ByteBudget`` bounds the memory of replies. Before a read, a task takes the bytes that the reply may need.
It gives them back once the reply is handed to the network. Waiting tasks are served in the order in which
they came. If a task asks for more than the whole budget, it gets the bytes when no others are in use, so no
task waits forever. If a reply is larger than the bytes that were taken, the difference is charged too. So
the bytes in use may exceed the bound, by at most one entry for each reply.
"""

from __future__ import annotations

from collections import deque

import trio


class ByteBudget:
    """A budget of ``limit`` bytes, shared by the tasks of one event loop."""

    __slots__ = ("_limit", "_waiting", "used")

    def __init__(self, limit: int) -> None:
        assert limit > 0
        self._limit = limit
        self._waiting: deque[tuple[int, trio.Event]] = deque()
        self.used = 0

    async def take(self, count: int) -> None:
        """Wait for ``count`` bytes and take them. A cancelled call has taken nothing."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._waiting and self._fits(count):
            self.used += count
            return
        turn = (count, trio.Event())
        self._waiting.append(turn)
        try:
            await turn[1].wait()
        except trio.Cancelled:
            if turn[1].is_set():
                self.give(count)
            else:
                self._waiting.remove(turn)
                self._serve()
            raise

    def has_room_for(self, count: int) -> bool:
        """Whether ``take`` would not wait now."""
        return not self._waiting and self._fits(count)

    def charge(self, count: int) -> None:
        """Take bytes without waiting, even past the limit."""
        self.used += count

    def give(self, count: int) -> None:
        """Return bytes that were taken."""
        assert 0 <= count <= self.used, "a task gave back more bytes than were taken"
        self.used -= count
        self._serve()

    def _fits(self, count: int) -> bool:
        return not self.used or self.used + count <= self._limit

    def _serve(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            count, turn = self._waiting.popleft()
            self.used += count
            turn.set()
