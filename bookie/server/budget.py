"""Bytes that may be in use at once, and who waits for them.

A ``ByteBudget`` bounds the memory of replies: a read takes what its reply may need before it reads, and
gives it back when the reply has been handed to the network. Waiters are served in the order in which
they came. What asks for more than the whole budget is served when nothing else is in use, so nothing
waits for ever; what turns out larger than it asked for is charged all the same, so the bound can be
passed by the difference, which is one entry at most for each reply.
"""

from __future__ import annotations

from collections import deque

import trio


class ByteBudget:
    """``limit`` bytes, shared by tasks of one event loop."""

    __slots__ = ("_limit", "_waiting", "used")

    def __init__(self, limit: int) -> None:
        assert limit > 0
        self._limit = limit
        self._waiting: deque[tuple[int, trio.Event]] = deque()
        self.used = 0

    async def take(self, count: int) -> None:
        """Wait for ``count`` bytes. A cancelled call has taken nothing."""
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

    def charge(self, count: int) -> None:
        """Take without waiting, past the limit where it must be."""
        self.used += count

    def give(self, count: int) -> None:
        """Return bytes that were taken."""
        assert 0 <= count <= self.used, "more was given back than had been taken"
        self.used -= count
        self._serve()

    def _fits(self, count: int) -> bool:
        return not self.used or self.used + count <= self._limit

    def _serve(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            count, turn = self._waiting.popleft()
            self.used += count
            turn.set()
