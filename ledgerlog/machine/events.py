"""The events of a replica, for programs that listen to them."""

from __future__ import annotations

import enum
import weakref
from collections import deque

import attrs
import trio

from ledgerlog.limits import REPLICA_EVENTS

__all__ = ["EventKind", "Events", "Listeners", "ReplicaEvent"]


class EventKind(enum.Enum):
    """The kinds of events of a replica. The text of each kind explains ``ReplicaEvent.offset`` and
    ``.detail``."""

    RESTORED = "restored"
    """The machine was restored from a snapshot up to ``offset``; ``detail`` names the snapshot."""
    LEADING = "leading"
    """The replica leads from ``offset`` on; ``detail`` has the epoch of the log."""
    FOLLOWING = "following"
    """The replica no longer leads; ``detail`` says why."""
    SEALED = "sealed"
    """The log is sealed. No more commands can be proposed."""
    SNAPSHOT = "snapshot"
    """A snapshot up to ``offset`` is durable."""
    SNAPSHOT_FAILED = "snapshot failed"
    """A snapshot was not made, or cannot be used; ``detail`` says why. The replica continues without it."""
    TRUNCATED = "truncated"
    """The log was truncated before ``offset``. Durable snapshots have the effect of the truncated records."""
    NOT_TRUNCATED = "not truncated"
    """A snapshot up to ``offset`` was saved, but older snapshots could not be deleted or the log could not be
    truncated; ``detail`` says why."""
    STOPPED = "stopped"
    """The replica has stopped at ``offset``; ``detail`` says why."""
    MISSED = "missed"
    """The listener was too slow. Its oldest waiting events were dropped; ``offset`` is their number."""


@attrs.frozen
class ReplicaEvent:
    """One event of a replica. ``Replica.events`` yields them."""

    kind: EventKind
    """The kind of the event."""
    offset: int
    """An offset in the log; see ``EventKind``. For ``EventKind.MISSED`` a number of events."""
    detail: str = ""
    """The reason or another detail, for people; see ``EventKind``."""


class Events:
    """An async iterator over a replica's events since the iterator was made. It ends when the replica ends.

    It keeps at most ``limits.REPLICA_EVENTS`` events for you. If you do not take them in time, the oldest
    ones are dropped, and an event of the kind ``EventKind.MISSED`` says how many.
    """

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
    """The listeners of one replica."""

    def __init__(self) -> None:
        self._all: list[weakref.ref[Events]] = []
        """Weak references, so that a listener need not unsubscribe."""
        self._is_over = False

    def add(self) -> Events:
        """Make a listener that gets the events from now on."""
        events = Events()
        if self._is_over:
            events._end()
        else:
            self._all.append(weakref.ref(events))
        return events

    def tell(self, kind: EventKind, offset: int, detail: str = "") -> None:
        """Give an event to all listeners. See ``EventKind`` for the arguments."""
        for events in self._living():
            events._put(ReplicaEvent(kind, offset, detail))

    def end(self) -> None:
        """End all listeners: there are no further events."""
        self._is_over = True
        for events in self._living():
            events._end()
        self._all = []

    def _living(self) -> list[Events]:
        """Return the listeners that are still in use."""
        living = [events for events in (each() for each in self._all) if events is not None]
        if len(living) < len(self._all):
            self._all = [weakref.ref(events) for events in living]
        return living
