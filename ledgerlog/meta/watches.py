"""The open watches of a store, and how they wake after a change. All kinds of stores use this module.

A watch is a flag and an event. ``mark`` raises the flag and fires the event. ``Watch.wait`` returns when the
flag is up, and lowers it. The flag remembers a change; the event only wakes tasks. A change may come between
opening a watch and waiting on it, between two waits, or while a cancelled wait unwinds. In each case the flag
stays up, and the next wait returns at once. So a watch may wake a task without need. But it never misses a
change, if the store marks it after every change.

This module does not know where changes come from. A store calls ``changed`` with the paths that were written,
or ``changed_somewhere`` if it does not know the paths.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from ledgerlog.meta.arguments import check_path


class TreeWatch:
    """One watch on a path and everything below it (``store.Watch``)."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._below = path + "/"
        self._flag = False
        self._event = trio.Event()

    def covers(self, path: str) -> bool:
        """Return whether the watch covers a change at ``path``."""
        return path == self.path or path.startswith(self._below)

    def mark(self) -> None:
        """Raise the flag, and wake all tasks that wait now."""
        self._flag = True
        self._event.set()
        self._event = trio.Event()

    async def wait(self) -> None:
        """Return once the flag is up, and lower it. Always a checkpoint.

        If several tasks wait on one watch, a change wakes them all.

        Cancelling: the flag stays as it was, so the next wait reports the change.
        """
        event = self._event
        await trio.lowlevel.checkpoint()
        if not self._flag:
            await event.wait()  # It is set if the change came during the checkpoint, for another task too.
        self._flag = False


class WatchSet:
    """The open watches of one store, or of one tree, in the order of their opening."""

    def __init__(self) -> None:
        # A dict keeps the order. The order of a set's hashes would differ between two runs with the same
        # seed.
        self._watches: dict[TreeWatch, None] = {}
        self._opened = trio.Event()

    def __len__(self) -> int:
        return len(self._watches)

    @asynccontextmanager
    async def open(self, path: str) -> AsyncIterator[TreeWatch]:
        """Open a watch on ``path`` for the body of the ``async with``."""
        check_path(path)
        await trio.lowlevel.checkpoint()
        watch = TreeWatch(path)
        self._watches[watch] = None
        self._opened.set()
        try:
            yield watch
        finally:
            del self._watches[watch]

    async def wait_any(self) -> None:
        """Return once at least one watch is open."""
        while not self._watches:
            self._opened = trio.Event()
            await self._opened.wait()

    def changed(self, paths: Iterable[str]) -> None:
        """Mark the watches that cover one of ``paths``."""
        paths = list(paths)
        for watch in self._watches:
            if any(watch.covers(path) for path in paths):
                watch.mark()

    def changed_somewhere(self) -> None:
        """Mark all watches, because the store does not know which paths changed."""
        for watch in self._watches:
            watch.mark()
