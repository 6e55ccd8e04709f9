"""The connections of an ensemble: one sink for each slot's tenure by one bookie.

A sink is attached to its bookie's connection when the bookie joins the ensemble and detached when it
leaves, so that a confirmation which arrives late, for a slot that meanwhile has another bookie, or for
the same bookie in another slot, reaches nobody (protocol A.1, queue rule 4). The sinks tell a
``SlotOwner`` (a writer's or a recoverer's shell) what happened and, once per burst, that it should
act on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ledgerlog.core.pending import Send
from ledgerlog.model.ids import BookieId
from ledgerlog.net.connection import BookieConnection
from ledgerlog.net.pool import ConnectionPool
from ledgerlog.net.transport import Buffer
from ledgerlog.wire.frame import Status


class SlotOwner(Protocol):
    """All methods are synchronous and called in the connections' tasks."""

    def on_add_ok(self, bookie: BookieId, first: int, last: int) -> None: ...

    def on_add_refused(self, bookie: BookieId, status: Status) -> None: ...

    def on_bookie_lost(self, bookie: BookieId, why: str) -> None: ...

    def on_bookie_connected(self, bookie: BookieId) -> None: ...

    def take_sends(self, bookie: BookieId) -> list[Send]: ...

    def encode(self, send: Send, slot: int) -> Sequence[Buffer]: ...

    def act(self) -> None:
        """Look at the state again: something of the above has happened."""
        ...


class SlotSink:
    """One bookie's tenure of one slot."""

    __slots__ = ("bookie", "connection", "index", "owner")

    def __init__(self, owner: SlotOwner, index: int, connection: BookieConnection) -> None:
        self.owner = owner
        self.index = index
        self.bookie = connection.bookie_id
        self.connection = connection

    def on_add_ok(self, bookie_id: BookieId, first: int, last: int) -> None:
        self.owner.on_add_ok(bookie_id, first, last)

    def on_add_refused(self, bookie_id: BookieId, first: int, last: int, status: Status) -> None:
        self.owner.on_add_refused(bookie_id, status)

    def on_bookie_lost(self, bookie_id: BookieId, why: str) -> None:
        self.owner.on_bookie_lost(bookie_id, why)

    def on_bookie_connected(self, bookie_id: BookieId) -> None:
        self.owner.on_bookie_connected(bookie_id)

    def on_batch_end(self) -> None:
        self.owner.act()

    def send_due(self) -> None:
        """Hand everything due at the bookie to its connection, if that is up."""
        connection, owner = self.connection, self.owner
        if not connection.is_connected:
            return
        for send in owner.take_sends(self.bookie):
            connection.send_add(owner.encode(send, self.index), self, send.first, send.last)


class SlotSinks:
    """The sinks of the present ensemble."""

    def __init__(self, owner: SlotOwner, pool: ConnectionPool) -> None:
        self._owner = owner
        self._pool = pool
        self.sinks: list[SlotSink] = []

    def follow(self, ensemble: Sequence[BookieId]) -> None:
        """Make the sinks those of ``ensemble``: detach who left, attach who joined."""
        if not self.sinks:
            self.sinks = [self._attach(index, bookie) for index, bookie in enumerate(ensemble)]
            return
        for sink, bookie in zip(list(self.sinks), ensemble, strict=True):
            if sink.bookie != bookie:
                sink.connection.detach(sink)
                self.sinks[sink.index] = self._attach(sink.index, bookie)

    def _attach(self, index: int, bookie: BookieId) -> SlotSink:
        connection = self._pool.connection(bookie)
        sink = SlotSink(self._owner, index, connection)
        connection.attach(sink)
        return sink

    def send_due(self) -> None:
        for sink in self.sinks:
            sink.send_due()

    def close(self) -> None:
        """Detach all. Nothing is called afterwards."""
        for sink in self.sinks:
            sink.connection.detach(sink)
        self.sinks = []
