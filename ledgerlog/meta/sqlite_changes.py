"""Hints that something may have happened to a shared metadata file, so that a process need not look at the
file again and again.

The kernel (inotify) tells a process about two directories: the one of the metadata file, and the one of the
sessions' lock files. Three things end a wait:

* a process wrote to the file, or to the write-ahead log beside it;
* the file was replaced, moved or removed;
* a process closed a lock file that it had open for writing. Only the owner of a session opens its lock file
  for writing, and a process that dies closes all its files. A process that only tries a lock opens the file
  for reading.

**A hint, never a fact.** SQLite writes a transaction to its log first, syncs the log, and shows the
transaction to readers only then. So at the time of the hint there may be nothing to see yet; look again a
little later. A hint may also be lost: the kernel's queue is bounded, and a directory may be removed and made
again. So look from time to time without a hint too.

The kernel lets each user have some 128 inotify instances. If there is none left, ``open_hints`` says so in
the log and returns None. Then look at the file regularly instead.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
from pathlib import Path

import trio
from inotify_simple import INotify, flags

__all__ = ["Hint", "Hints", "open_hints"]

logger = logging.getLogger(__name__)

_OF_THE_FILE = flags.MODIFY | flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO
_OF_THE_LOCKS = flags.CLOSE_WRITE


class Hint(enum.Flag):
    """The kinds of events that may have happened. Several may have happened at once."""

    NONE = 0
    FILE = enum.auto()
    """The file was written or replaced, or the kernel lost count."""
    SESSION = enum.auto()
    """The owner of a session closed its lock file, so the owner is dead or has ended the session."""


class Hints:
    """The hints about one metadata file. ``open_hints`` makes it."""

    def __init__(self, path: Path, inotify: INotify, locks: int) -> None:
        self._name = path.name
        self._inotify = inotify
        self._locks = locks
        """The number of the watch on the lock files."""
        self._is_waited_for = False

    async def wait(self, timeout_s: float) -> Hint:
        """Wait for a hint, at most ``timeout_s`` seconds. Always a checkpoint.

        Returns:
            The hints of the kernel since the last call; NONE if there were none. FILE if the hints were
            closed.
        """
        self._is_waited_for = True
        try:
            with trio.move_on_after(timeout_s), contextlib.suppress(trio.ClosedResourceError):
                while not self._inotify.closed:
                    await trio.lowlevel.wait_readable(self._inotify.fileno())
                    # Between the kernel's hint and this step, another task may have closed it.
                    if not self._inotify.closed and (hint := self._take()):
                        return hint
        finally:
            self._is_waited_for = False
        return Hint.FILE if self._inotify.closed else Hint.NONE

    def _take(self) -> Hint:
        hint = Hint.NONE
        for event in self._inotify.read(timeout=0):
            if event.wd == self._locks and event.name:
                hint |= Hint.SESSION
            elif event.name.startswith(self._name) or not event.name:
                hint |= Hint.FILE
        return hint

    def close(self) -> None:
        """Stop the hints, and wake a waiting task. You may call this again."""
        if self._is_waited_for:
            trio.lowlevel.notify_closing(self._inotify.fileno())
        self._inotify.close()


def open_hints(path: str | os.PathLike[str], locks: str | os.PathLike[str]) -> Hints | None:
    """Begin to take hints. It blocks, so call it in a thread.

    Args:
        path: The metadata file.
        locks: The directory of the sessions' lock files.

    Returns:
        The hints; None if the kernel gives none.
    """
    path = Path(path)
    inotify = None
    try:
        inotify = INotify(nonblocking=True)
        inotify.add_watch(path.parent, _OF_THE_FILE)
        return Hints(path, inotify, inotify.add_watch(locks, _OF_THE_LOCKS))
    except OSError as cause:
        if inotify is not None:
            inotify.close()
        logger.warning(
            "looking for changes of file=%s 50 times a second, because inotify gives no hints: %s",
            path,
            cause.strerror,
        )
        return None
