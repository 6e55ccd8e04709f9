"""Descriptors: how many this process may have, who may have them, and what happens when none is left.

A bookie opens files all the time: segments, entry logs, tables of its index. If its connections had taken all
descriptors, each of these would fail, and a failure of a file ends a bookie. So the limit is raised as far as
it may be when a bookie starts (``raise_limit``), connections get what ``RESERVE`` leaves
(``connections_within``), and EMFILE and ENFILE are never taken for a failure of the disk: whoever can wait
tries again (``OutOfDescriptors``), and who cannot takes the one that is kept for it (``SpareDescriptor``).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import threading
from collections.abc import Callable
from typing import TypeVar

from ledgerlog.errors import LedgerLogError, StorageError

T = TypeVar("T")

logger = logging.getLogger(__name__)

RESERVE = 256
"""For files, the metadata store, and connections to other bookies. Of entry logs 64 are kept open."""

CONNECTIONS_MIN = 64
"""A bookie that may have fewer connections does not start."""

WORDS = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE))
"""What a library says that puts the words of the operating system into its own."""

RETRY_S = 0.1


class OutOfDescriptors(StorageError):
    """The process, or the machine, has no descriptor left. Nothing is wrong with the disk, and nothing was
    done: it may be tried again."""


def is_exhaustion(cause: BaseException) -> bool:
    """Whether something failed for want of a descriptor."""
    return isinstance(cause, OutOfDescriptors) or (
        isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE)
    )


def raise_limit() -> int:
    """Raise the process's limit as far as it may be raised; what it is now. LedgerLogError if that is too
    little for a bookie."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as refusal:
            logger.warning("the limit of descriptors stays at %d: %s", soft, refusal)
    limit = 2**31 if soft == resource.RLIM_INFINITY else soft
    if limit < RESERVE + CONNECTIONS_MIN:
        raise LedgerLogError(
            f"this process may have {limit} files and connections open, and a bookie needs "
            f"{RESERVE + CONNECTIONS_MIN} at least: raise the limit (ulimit -n; of a service, LimitNOFILE=)"
        )
    return limit


def connections_within(limit: int, most: int) -> int:
    """How many connections a bookie may have, ``most`` at most, where it may have ``limit`` descriptors."""
    return max(0, min(most, limit - RESERVE))


class SpareDescriptor:
    """One descriptor that is kept for those who cannot wait for another. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor = -1
        self._is_closed = False
        self.keep()

    def keep(self) -> None:
        """Take one, if it is not held and can be had."""
        if self._descriptor < 0:
            with self._lock:
                self._take()

    def close(self) -> None:
        """Free it for good."""
        with self._lock:
            self._is_closed = True
            self._free()

    def lend(self, function: Callable[[], T]) -> T:
        """What ``function`` returns, which is called again with the descriptor free if it found none; one
        caller after the other. If what it opened stays open, call ``keep`` once that is closed."""
        try:
            return function()
        except Exception as cause:
            if not is_exhaustion(cause):
                raise
        with self._lock:
            self._free()
            try:
                return function()
            finally:
                self._take()

    def _take(self) -> None:
        if self._descriptor < 0 and not self._is_closed:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _free(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
