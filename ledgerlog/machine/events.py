"""What happens to a replica, for those who want to know."""

from __future__ import annotations

import enum
import weakref
from collections import deque

import attrs
import trio

from ledgerlog.limits import REPLICA_EVENTS

__all__ = ["EventKind", "Events", "Listeners", "ReplicaEvent"]


class EventKind(enum.Enum):
    RESTORED = "restored"
    """The machine was restored from a snapshot, which reaches up to ``offset``."""
    LEADING = "leading"
    """It leads from ``offset`` on; ``detail`` has the epoch of the log."""
    FOLLOWING = "following"
    """It does not lead any more; ``detail`` says why."""
    SEALED = "sealed"
    """The log is complete: nothing is proposed any more."""
    SNAPSHOT = "snapshot"
    """A snapshot up to ``offset`` is durable."""
    SNAPSHOT_FAILED = "snapshot failed"
    """One was not made, or cannot be used; ``detail`` says why. The replica goes on without."""
    TRUNCATED = "truncated"
    """The log was truncated before ``offset``, behind durable snapshots."""
    NOT_TRUNCATED = "not truncated"
    """The log was not truncated behind a snapshot up to ``offset``; ``detail`` says why."""
    STOPPED = "stopped"
    """The replica has stopped at ``offset``; ``detail`` says why."""
    MISSED = "missed"
    """The listener was too slow: so many events (``offset``) before this place were lost."""


@attrs.frozen
class ReplicaEvent:
    kind: EventKind
    offset: int
    detail: str = ""


class Events:
    """An async iterator of a replica's events from when it was made; ends with the replica."""

    def __init__(self) -> None:
        self._waiting: deque[ReplicaEvent] = deque()
        self._missed = 0
        self._is_over = False
        self._changed = trio.Event()

    def _put(self, event: ReplicaEvent) -> None:
        if len(self._waiting) >= REPLICA_EVENTS:
            self._waiting.popleft()
            self._missed += 1
        self._waiting.append(event)
        self._changed.set()

    def _end(self) -> None:
        self._is_over = True
        self._changed.set()

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> ReplicaEvent:
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._is_over:
                raise StopAsyncIteration
            self._changed = trio.Event()
            await self._changed.wait()
        if self._missed:
            missed, self._missed = self._missed, 0
            return ReplicaEvent(EventKind.MISSED, missed)
        return self._waiting.popleft()


class Listeners:
    """Those who listen to one replica."""

    def __init__(self) -> None:
        self._all: list[weakref.ref[Events]] = []
        """Whoever stops listening need not say so."""
        self._is_over = False

    def add(self) -> Events:
        events = Events()
        if self._is_over:
            events._end()
        else:
            self._all.append(weakref.ref(events))
        return events

    def tell(self, kind: EventKind, offset: int, detail: str = "") -> None:
        for events in self._living():
            events._put(ReplicaEvent(kind, offset, detail))

    def end(self) -> None:
        """Nothing more will happen."""
        self._is_over = True
        for events in self._living():
            events._end()
        self._all = []

    def _living(self) -> list[Events]:
        living = [events for events in (each() for each in self._all) if events is not None]
        if len(living) < len(self._all):
            self._all = [weakref.ref(events) for events in living]
        return living
