"""Descriptors: the process's limit, how it is divided, and what happens if none is left.

A bookie often opens files: segments, entry logs, tables of its index. If its connections used up all
descriptors, no file could be opened, and the bookie stops if a file operation fails. Three measures prevent
this:

- A starting bookie raises its limit as far as the system allows (``raise_limit``).
- Connections get only the descriptors that ``RESERVE`` leaves (``connections_within``).
- The bookie never mistakes EMFILE or ENFILE for a failure of the disk. A caller that can wait tries again
  (``OutOfDescriptors``). A caller that cannot wait uses the one spare descriptor (``SpareDescriptor``).
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
"""Descriptors for files, the metadata store, and connections to other bookies. 64 entry logs stay open."""

CONNECTIONS_MIN = 64
"""If a bookie may have fewer connections than this, it does not start."""

WORDS = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE))
"""The operating system's messages for these errors. Some libraries (LevelDB, RocksDB) report the error only
as text that contains them."""

RETRY_S = 0.1


class OutOfDescriptors(StorageError):
    """The process or the machine has no descriptor left. The disk is sound and nothing was done, so you may
    try again."""


def is_exhaustion(cause: BaseException) -> bool:
    """Whether ``cause`` is an error that says that no descriptor was left."""
    return isinstance(cause, OutOfDescriptors) or (
        isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE)
    )


def raise_limit() -> int:
    """Raise the process's limit of descriptors as far as the system allows.

    Returns:
        The limit that holds now, or 2**31 if there is none.

    Raises:
        LedgerLogError: The limit is below ``RESERVE + CONNECTIONS_MIN``.
    """
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
            f"this process may have {limit} files and connections open, but a bookie needs at least "
            f"{RESERVE + CONNECTIONS_MIN}: raise the limit (ulimit -n; of a service, LimitNOFILE=)"
        )
    return limit


def connections_within(limit: int, most: int) -> int:
    """Return how many connections a bookie with ``limit`` descriptors may have, at most ``most``."""
    return max(0, min(most, limit - RESERVE))


class SpareDescriptor:
    """One descriptor, kept for callers that cannot wait until another is free. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor = -1
        self._is_closed = False
        self.keep()

    def keep(self) -> None:
        """Open the spare descriptor if it is not held. If none is available, do nothing."""
        if self._descriptor < 0:
            with self._lock:
                self._take()

    def close(self) -> None:
        """Free the spare descriptor for good."""
        with self._lock:
            self._is_closed = True
            self._free()

    def lend(self, function: Callable[[], T]) -> T:
        """Call ``function``. If it finds no descriptor, free the spare one and call it again.

        Only one caller at a time makes a second call. If ``function`` leaves a file open, call ``keep`` after
        you close that file.

        Returns:
            The result of ``function``.
        """
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
