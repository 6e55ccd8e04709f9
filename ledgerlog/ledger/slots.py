"""The connections of an ensemble: one sink for each slot's tenure by one bookie.

A sink is attached to its bookie's connection when the bookie joins the ensemble, and detached when it
leaves. So a late confirmation reaches nobody if the slot has another bookie meanwhile, or the bookie
another slot (protocol A.1, queue rule 4).

A sink forwards nothing: its callbacks are the receivers' own methods. Confirmations go from the connection
to the ``SlotCore`` (the protocol machine of a writer or a recoverer). Everything else goes to the
``SlotOwner`` (the shell around that machine), whose ``act`` is called once per burst.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ledgerlog.ledger.core.pending import Send
from ledgerlog.model.ids import BookieId
from ledgerlog.net.connection import BookieConnection
from ledgerlog.net.pool import ConnectionPool
from ledgerlog.net.transport import Buffer
from ledgerlog.wire.frame import Status


class SlotCore(Protocol):
    """The protocol machine: it counts confirmations and says which entries are due."""

    def on_add_ok(self, bookie: BookieId, first: int, last: int, /) -> object: ...

    def take_sends(self, bookie: BookieId, /) -> list[Send]: ...


class SlotOwner(Protocol):
    """The shell around the machine. Connections call these synchronous methods in their own tasks."""

    def on_add_refused(self, bookie: BookieId, first: int, last: int, status: Status, /) -> None: ...

    def on_bookie_lost(self, bookie: BookieId, why: str, /) -> None: ...

    def on_bookie_connected(self, bookie: BookieId, /) -> None: ...

    def encode(self, send: Send, slot: int, /) -> Sequence[Buffer]: ...

    def act(self) -> None:
        """Look at the core's state again.

        A confirmation arrived, or another method of this class was called."""
        ...


class SlotSink:
    """One bookie's tenure of one slot. An ``AddSink``."""

    __slots__ = (
        "_encode",
        "_take_sends",
        "bookie",
        "connection",
        "index",
        "on_add_ok",
        "on_add_refused",
        "on_batch_end",
        "on_bookie_connected",
        "on_bookie_lost",
    )

    def __init__(self, core: SlotCore, owner: SlotOwner, index: int, connection: BookieConnection) -> None:
        self.index = index
        self.bookie = connection.bookie_id
        self.connection = connection
        self._take_sends = core.take_sends
        self._encode = owner.encode
        self.on_add_ok = core.on_add_ok
        self.on_add_refused = owner.on_add_refused
        self.on_bookie_lost = owner.on_bookie_lost
        self.on_bookie_connected = owner.on_bookie_connected
        self.on_batch_end = owner.act

    def send_due(self) -> None:
        """Hand all entries due at the bookie to its connection, if it is connected."""
        connection = self.connection
        if not connection.is_connected:
            return
        for send in self._take_sends(self.bookie):
            connection.send_add(self._encode(send, self.index), self, send.first, send.last)


class SlotSinks:
    """The sinks of the present ensemble."""

    def __init__(self, core: SlotCore, owner: SlotOwner, pool: ConnectionPool) -> None:
        self._core = core
        self._owner = owner
        self._pool = pool
        self.sinks: list[SlotSink] = []

    def follow(self, ensemble: Sequence[BookieId]) -> None:
        """Make the sinks those of ``ensemble``: detach bookies that left, attach bookies that joined."""
        if not self.sinks:
            self.sinks = [self._attach(index, bookie) for index, bookie in enumerate(ensemble)]
            return
        for sink, bookie in zip(list(self.sinks), ensemble, strict=True):
            if sink.bookie != bookie:
                sink.connection.detach(sink)
                self.sinks[sink.index] = self._attach(sink.index, bookie)

    def _attach(self, index: int, bookie: BookieId) -> SlotSink:
        connection = self._pool.connection(bookie)
        sink = SlotSink(self._core, self._owner, index, connection)
        connection.attach(sink)
        return sink

    def send_due(self) -> None:
        for sink in self.sinks:
            sink.send_due()

    def close(self) -> None:
        """Detach all sinks. No callback is called afterwards."""
        for sink in self.sinks:
            sink.connection.detach(sink)
        self.sinks = []
