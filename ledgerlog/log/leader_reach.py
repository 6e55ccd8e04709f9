"""Reports to an election: which bookies the log writers of its leader cannot reach.

A log writer knows whether it reaches an ack quorum of bookies. The election knows whether another process
could do better. So an election opens a ``LeaderReach`` around the body of each leadership. A writer that is
entered in the body, or in a task that the body starts, finds the ``LeaderReach`` by a context variable and
reports to it. A writer outside of any leadership makes no reports.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import trio

from ledgerlog.model.reach import OutOfReach

__all__ = ["LeaderReach"]

_current: ContextVar[LeaderReach | None] = ContextVar("ledgerlog_leader_reach", default=None)


class LeaderReach:
    """The reports of the log writers inside one leadership."""

    def __init__(self) -> None:
        self._reports: dict[object, OutOfReach] = {}
        self._changed = trio.Event()

    @staticmethod
    def current() -> LeaderReach | None:
        """Return the ``LeaderReach`` of the innermost leadership around the caller; None if there is none."""
        return _current.get()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make this object the ``current`` one during the body."""
        before = _current.get()
        _current.set(self)
        try:
            yield
        finally:
            _current.set(before)

    @property
    def out_of_reach(self) -> OutOfReach | None:
        """The bookies that one of the writers cannot reach. None if every writer reaches an ack quorum, or if
        there is no writer."""
        return next(iter(self._reports.values()), None)

    def report(self, writer: object, out_of_reach: OutOfReach | None) -> None:
        """Take a writer's report. None means that the writer reaches an ack quorum, or has ended."""
        if self._reports.get(writer) != out_of_reach:
            if out_of_reach is None:
                del self._reports[writer]
            else:
                self._reports[writer] = out_of_reach
            self._changed.set()
            self._changed = trio.Event()

    async def wait_change(self) -> None:
        """Wait until a report changes."""
        await self._changed.wait()
