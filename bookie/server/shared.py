"""The state that all connections of one bookie share: the engine, the bookie's identity, and the bounds.

The server makes one ``Shared`` and gives it to every connection. The ``Shared`` also tells the connections
that a sync is done: the engine calls ``on_durable`` once for each sync, and the ``Shared`` tells only the
connections with adds under way, and not all other open connections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

import attrs

from bookie.core.fullness import DiskSpace
from bookie.server.access import Access, AccessControl
from bookie.server.fair import FairShares, Party
from bookie.server.polls import Polls
from bookie.server.strangers import Strangers
from bookie.storage.engine.engine import Engine
from ledgerlog.concurrency.complaints import Complaints
from ledgerlog.limits import BOOKIE_SPARE_BUFFER_BYTES
from ledgerlog.net.prover import Prover
from ledgerlog.wire.frame import Header, Kind, SpareBuffers, Status
from ledgerlog.wire.hello import Hello

REFUSED = "refused_"
"""A figure with this prefix counts the refusals for one reason."""


class AwaitsSync(Protocol):
    """Something that has adds under way."""

    def on_durable(self, position: int) -> bool:
        """Tell it that the journal is durable up to ``position``. Return whether more of its adds are under
        way."""
        ...


class Served(AwaitsSync, Protocol):
    """A connection, as the shared state sees it."""

    def drop(self, why: str) -> None:
        """Close the connection at once, for the reason ``why``."""
        ...


@attrs.define(eq=False)
class _Ended:
    """The adds under way of a connection that has ended. They count for its party until they are synced."""

    fair: FairShares
    party: Party
    pending: deque[list[int]]

    def on_durable(self, position: int) -> bool:
        synced = 0
        while self.pending and self.pending[0][0] <= position:
            synced += self.pending.popleft()[2]
        self.party.on_synced(synced)
        if not self.pending:
            self.fair.leave(self.party)
        return bool(self.pending)


@attrs.define(eq=False)
class Shared:
    engine: Engine
    access: AccessControl
    """Decides which requests clients may make."""
    identity: Hello
    """The bookie's identity: its id, the instance of its data and its cluster."""
    complaints: Complaints
    listing_key: bytes
    """A client that sends this key may list the ledgers and their keys."""
    prover: Prover
    """Proves the identity of the bookie and verifies its clients."""
    spare_buffers: SpareBuffers = attrs.Factory(lambda: SpareBuffers(BOOKIE_SPARE_BUFFER_BYTES))
    """Receive buffers for large frames that no connection uses."""
    fair: FairShares = attrs.Factory(FairShares)
    polls: Polls = attrs.Factory(Polls)
    """Ends the long polls whose time is up."""
    strangers: Strangers[Served] = attrs.Factory(Strangers)
    last_adder: Served | None = None
    """The connection from which the last add came."""
    counts: dict[str, int] = attrs.Factory(
        lambda: dict.fromkeys(
            (
                "connections_accepted",
                "connections_refused",
                "peers_cut_off",
                "adds_refused",
                "requests_denied",
                "unknown_ledgers_refused",
            ),
            0,
        )
    )
    connections: int = 0
    """How many clients are connected."""
    refused: dict[Status, int] = attrs.Factory(dict)
    """How many adds and requests were refused, by reason."""
    spaces: Callable[[], Collection[DiskSpace]] = tuple
    """Returns the known space of each file system that the bookie writes to."""
    _awaiting: dict[AwaitsSync, None] = attrs.Factory(dict)

    def figures(self) -> dict[str, int]:
        """Return the figures of the bookie, for INFO replies and for its metrics."""
        marks = self.engine.loss_marks.now
        fullest = min(self.spaces(), key=lambda space: space.free / max(space.total, 1), default=None)
        return {
            **self.engine.statistics(),
            **self.counts,
            "connections": self.connections,
            "requests_under_way": self.fair.requests,
            "reply_bytes": self.fair.reply_bytes,
            "disk_bytes": -1 if fullest is None else fullest.total,
            "disk_free_bytes": -1 if fullest is None else fullest.free,
            "is_read_only": int(self.engine.is_read_only),
            "fenced_through": marks.fenced_through,
            "ledgers_in_limbo": marks.limbo_count,
            **{f"{REFUSED}{status.name.lower()}": count for status, count in list(self.refused.items())},
        }

    def count_refused(self, status: Status) -> None:
        """Count an add or a request that is refused."""
        self.refused[status] = self.refused.get(status, 0) + 1

    def tell_refused(self, peer: str, access: Access, header: Header, status: Status) -> None:
        """Count a request that ``access`` refused, and log it."""
        what = f"client={peer}: {access.who}: {Kind(header.kind).name} of ledger={header.ledger_id}"
        match status:
            case Status.PERMISSION_DENIED:
                self.counts["requests_denied"] += 1
                why = "it does not have the right"
            case Status.UNAUTHORIZED:
                self.counts["requests_denied"] += 1
                why = "the key is not the ledger's"
            case Status.NO_SUCH_LEDGER:
                self.counts["unknown_ledgers_refused"] += 1
                why = "there is no such ledger"
            case _:
                why = "it is not known now whether it has the right"
        self.complaints.tell(f"{what} is refused: {why}")

    def await_sync(self, connection: Served) -> None:
        """Note that ``connection`` has adds that are not durable yet."""
        self._awaiting[connection] = None

    def await_sync_of_ended(self, party: Party, pending: deque[list[int]]) -> None:
        """Count the adds of a connection that has ended for its party until they are synced.

        Args:
            party: The party of the connection.
            pending: The adds under way, each as [position, number, bytes], by position.
        """
        ended = _Ended(self.fair, party, pending)
        if ended.on_durable(self.engine.durable_position):
            self._awaiting[ended] = None

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
