"""What the connections of one bookie have in common: the engine, who the bookie is, and the bounds.

One object for each server, made by it and handed to every connection. It has no behaviour of its own
but to pass the news of a sync on: the engine calls ``on_durable`` once, and only the connections that
have adds under way hear of it, however many others are open.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import trio

from bookie.server.budget import ByteBudget
from bookie.server.complaints import Complaints
from bookie.server.strangers import Strangers
from bookie.storage.engine.engine import Engine
from ledgerlog.wire.hello import Hello


class Served(Protocol):
    """A connection."""

    def drop(self, why: str) -> None:
        """Close it at once."""
        ...

    def on_durable(self, position: int) -> bool:
        """Everything up to ``position`` is durable; whether something is still under way."""
        ...


@attrs.define(eq=False)
class Shared:
    engine: Engine
    identity: Hello
    """Who this bookie is: its id, the instance of its data and its cluster."""
    complaints: Complaints
    reply_budget: ByteBudget
    large_frames: trio.CapacityLimiter
    strangers: Strangers[Served] = attrs.Factory(Strangers)
    last_adder: Served | None = None
    """The connection that brought adds last."""
    requests: int = 0
    """Requests other than adds under way."""
    counts: dict[str, int] = attrs.Factory(
        lambda: dict.fromkeys(
            ("connections_accepted", "connections_refused", "peers_cut_off", "adds_refused"), 0
        )
    )
    _awaiting: dict[Served, None] = attrs.Factory(dict)

    def await_sync(self, connection: Served) -> None:
        """``connection`` has adds that are not durable yet."""
        self._awaiting[connection] = None

    def forget(self, connection: Served) -> None:
        self.strangers.leave(connection)
        self._awaiting.pop(connection, None)
        if self.last_adder is connection:
            self.last_adder = None

    def on_durable(self) -> None:
        position = self.engine.durable_position
        awaiting, self._awaiting = self._awaiting, {}
        for connection in awaiting:
            if connection.on_durable(position):
                self._awaiting[connection] = None
