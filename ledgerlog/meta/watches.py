"""The waiting half of watches, shared by the stores: who waits for what, and how a change wakes them.

A watch is a flag and an event. ``mark`` raises the flag and fires the event; ``Watch.wait`` returns
when the flag is up and lowers it. The flag, not the event, is what remembers: a change that comes
between opening a watch and waiting on it, or between two waits, or while a cancelled wait unwinds,
leaves the flag up and the next wait returns at once. So a watch may wake once too often and can
never sleep through a change, provided that the store marks after every change that it learns of.

What this module refuses to know: where changes come from. A store calls ``changed`` with the paths
that were written, or ``changed_somewhere`` when it knows only that something may have been.
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
        return path == self.path or path.startswith(self._below)

    def mark(self) -> None:
        self._flag = True
        self._event.set()
        self._event = trio.Event()

    async def wait(self) -> None:
        """Return once the flag is up, and lower it. Always a checkpoint; a cancelled wait leaves the
        flag as it was, so the change is reported by the next wait. Where several tasks wait on one
        watch, a change wakes them all."""
        await trio.lowlevel.checkpoint()
        if not self._flag:
            await self._event.wait()
        self._flag = False


class WatchSet:
    """The open watches of one store, or of one tree, in the order of their opening."""

    def __init__(self) -> None:
        # A dict for its order: waking in a set's hash order would differ between runs of one seed.
        self._watches: dict[TreeWatch, None] = {}
        self._opened = trio.Event()

    def __len__(self) -> int:
        return len(self._watches)

    @asynccontextmanager
    async def open(self, path: str) -> AsyncIterator[TreeWatch]:
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
        paths = list(paths)
        for watch in self._watches:
            if any(watch.covers(path) for path in paths):
                watch.mark()

    def changed_somewhere(self) -> None:
        for watch in self._watches:
            watch.mark()
