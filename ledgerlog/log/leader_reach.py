"""What the log writers inside a leadership of an election cannot reach.

A log writer knows whether it reaches an ack quorum of bookies. The election knows whether another process
could do better. Whoever holds a leadership opens a ``LeaderReach`` around its body. A writer that is entered
in the body finds it by its context, also in tasks that the body starts, and reports to it. A writer outside
of any leadership reports to nobody.
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
        """Return that of the innermost leadership that the caller is in; None if it is in none."""
        return _current.get()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Be the ``current`` one during the body."""
        before = _current.get()
        _current.set(self)
        try:
            yield
        finally:
            _current.set(before)

    @property
    def out_of_reach(self) -> OutOfReach | None:
        """What a writer cannot reach; None if all writers reach an ack quorum, or none is there."""
        return next(iter(self._reports.values()), None)

    def report(self, writer: object, out_of_reach: OutOfReach | None) -> None:
        """Take a writer's report. None: it reaches an ack quorum, or has ended."""
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
