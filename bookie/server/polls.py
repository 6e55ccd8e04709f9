"""Ends long polls in small batches, so that thousands of polls that end at once do not delay other clients.

A client may have thousands of long polls under way, and all of them may time out at once. If each poll had
its own timer, all would end in one pass of the event loop, and every other client would wait for that. So the
task ``run`` ends the polls, the earliest first, at most ``AT_ONCE`` in a pass. A poll may therefore last a
little longer than the client asked for.
"""

from __future__ import annotations

import trio

from bookie.core.due_items import DueItems, Waiter

__all__ = ["AT_ONCE", "Polls"]

AT_ONCE = 16


class Polls:
    """The waiting long polls of one bookie. ``run`` must run while any poll waits."""

    def __init__(self) -> None:
        self._ends: DueItems[Waiter] = DueItems()
        self._wanted = trio.Event()

    def add(self, poll: Waiter, seconds: float) -> None:
        """Wake ``poll``, once, when about this many seconds have passed."""
        end = trio.current_time() + seconds
        if end < self._ends.next_due():
            self._wanted.set()
        self._ends.add(poll, end)

    def remove(self, poll: Waiter) -> None:
        """Forget ``poll``. If ``poll`` was woken already, do nothing."""
        self._ends.remove(poll)

    async def run(self) -> None:
        """Wake the polls whose time is up. This never returns."""
        while True:
            await self._wait_for_next()
            now = trio.current_time()
            for _ in range(AT_ONCE):
                poll = self._ends.take(now)
                if poll is None:
                    break
                poll.wake()
            await trio.lowlevel.checkpoint()

    async def _wait_for_next(self) -> None:
        while (end := self._ends.next_due()) > trio.current_time():
            self._wanted = trio.Event()
            with trio.move_on_at(end):
                await self._wanted.wait()
