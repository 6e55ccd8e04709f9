"""Look at the cluster for the watchers of pages, and only at the subjects that they watch.

A *watcher* is an open page of a browser or a terminal. It watches a *subject*, for example the log "orders".
The looks at a subject begin with its first watcher and end with its last watcher. All watchers of the subject
share them. The board of bookies is part of every page. If there are no watchers, the observer looks at
nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import attrs
import trio

from ledgerlog.console.core.picture import Picture, Row
from ledgerlog.console.ledgers import LedgerFollower, LedgerListFollower
from ledgerlog.console.logs import LogFollower, LogListFollower
from ledgerlog.console.looks import Looking
from ledgerlog.console.pulse import Pulse
from ledgerlog.console.repairs import RepairFollower
from ledgerlog.errors import InvalidArgument
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import CONSOLE_TELL_S, LEDGER_ID_MAX
from ledgerlog.model.ids import check_log_name

__all__ = ["ClusterObserver", "Subject", "View"]

_KINDS = ("cluster", "logs", "log", "ledgers", "ledger", "repair")
_TEXT_MAX = 255


@attrs.frozen
class Subject:
    """The subject of a page."""

    kind: str = "cluster"
    """``cluster``, ``logs``, ``log``, ``ledgers``, ``ledger`` or ``repair``."""
    name: str = ""
    """The name of the log; for ``logs``, the beginning of the names."""
    after: str = ""
    """For ``logs``: the page begins after this name."""
    number: int | None = None
    """For ``ledger``: the ledger. For ``ledgers``: the page has ledgers below this id. For ``log``: how many
    of the newest segments the page's table leaves out."""

    @classmethod
    def parse_untrusted(cls, query: Mapping[str, str]) -> Subject:
        """Read a subject from a query.

        Raises:
            InvalidArgument: The query names no subject.
        """
        kind, name, after = query.get("kind", "cluster"), query.get("name", ""), query.get("after", "")
        text = query.get("number", "")
        if kind not in _KINDS:
            raise InvalidArgument(f"there is no page {kind[:32]!r}")
        if len(name) > _TEXT_MAX or len(after) > _TEXT_MAX:
            raise InvalidArgument(f"a name has at most {_TEXT_MAX} characters")
        if text and not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= LEDGER_ID_MAX):
            raise InvalidArgument(f"{text[:32]!r} is not a number from 0 to {LEDGER_ID_MAX}")
        if kind == "log":
            check_log_name(name)
        if kind == "ledger" and not text:
            raise InvalidArgument("the page of a ledger needs its number")
        return cls(kind, name, after, int(text) if text else None)


class _Follower(Protocol):
    def picture(self) -> Picture: ...

    async def run(self) -> None: ...


@attrs.define(eq=False)
class _Live:
    follower: _Follower
    scope: trio.CancelScope
    watchers: int = 0


class View:
    """A subject that is watched."""

    def __init__(self, looking: Looking, follower: _Follower) -> None:
        self._looking = looking
        self._follower = follower

    def picture(self) -> Picture:
        """Return the present picture of the subject."""
        looking = self._looking
        rows: Mapping[str, Row] = looking.bookies.rows()
        return {
            **self._follower.picture(),
            "bookies": rows,
            "happenings": looking.happenings.rows(),
            "troubles": looking.trouble_rows(),
        }

    async def pictures(self, alive_s: float) -> AsyncGenerator[Picture, None]:
        """Yield pictures forever: one at once, and one after each change or after ``alive_s`` seconds."""
        while True:
            change = self._looking.change
            yield self.picture()
            with trio.move_on_after(alive_s):
                await change.wait()
            await trio.sleep(CONSOLE_TELL_S)


class ClusterObserver:
    """Looks at one cluster. ``run`` has to run while there are watchers."""

    def __init__(self, client: LedgerClient, *, now_s: Callable[[], float]) -> None:
        """Create it.

        Args:
            client: The client of the cluster.
            now_s: The wall clock, in seconds since 1970.
        """
        self.now_s = now_s
        self._looking = Looking(client, now_s)
        self._nursery: trio.Nursery | None = None
        self._subjects: dict[Subject, _Live] = {}
        self._pulse: trio.CancelScope | None = None

    @property
    def watchers(self) -> int:
        """How many watchers there are."""
        return sum(live.watchers for live in self._subjects.values())

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at the watched subjects, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    @asynccontextmanager
    async def watch(self, subject: Subject) -> AsyncIterator[View]:
        """Watch a subject for the body of the ``async with``."""
        assert self._nursery is not None, "it runs"
        await trio.lowlevel.checkpoint()
        if not self._subjects:
            self._pulse = trio.CancelScope()
            self._nursery.start_soon(self._within, self._pulse, Pulse(self._looking).run)
        live = self._subjects.get(subject)
        if live is None:
            live = self._subjects[subject] = _Live(self._follower_of(subject), trio.CancelScope())
            self._nursery.start_soon(self._within, live.scope, live.follower.run)
        live.watchers += 1
        try:
            yield View(self._looking, live.follower)
        finally:
            live.watchers -= 1
            if not live.watchers:
                live.scope.cancel()
                del self._subjects[subject]
                if not self._subjects and self._pulse is not None:
                    self._pulse.cancel()

    def _follower_of(self, subject: Subject) -> _Follower:
        looking, number = self._looking, subject.number
        match subject.kind:
            case "logs":
                return LogListFollower(looking, prefix=subject.name, after=subject.after)
            case "log":
                return LogFollower(looking, subject.name, is_alone=True, segments_from=number or 0)
            case "ledgers":
                return LedgerListFollower(looking, below=number)
            case "ledger":
                assert number is not None
                return LedgerFollower(looking, number)
            case _:
                return RepairFollower(looking, with_tasks=subject.kind == "repair")

    @staticmethod
    async def _within(scope: trio.CancelScope, run: Callable[[], Awaitable[None]]) -> None:
        with scope:
            await run()
