"""Accepting clients: one task accepts, and each client gets a connection with its own tasks.

The server owns the listener, the connections and their shared state. It knows no metadata and no directories.
The server itself uses the engine only to learn that a sync is done.

**How many.** At most ``connections_max`` connections are open at once. One client may have three quarters of
them, and the last sixteenth is for other bookies (``fair``). If one more client connects, the server closes
the oldest stranger, which is a connection that is not greeted yet (``strangers``). If there is no stranger,
the server refuses the newcomer: it sends the reason, unless it would have to wait for that, and closes the
connection. The client then counts the bookie as failed and tries another bookie, which is better for the
client than waiting in a queue.

**The end.** ``stop`` closes the listener and lets every connection finish its requests. ``serve`` returns
when the last connection is closed. If you cancel ``serve``, the connections are dropped at once. If the
listener breaks by itself, the whole service fails: a bookie that clients cannot reach must not stay
registered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import trio

from bookie.core.fullness import DiskSpace
from bookie.server.access import AccessControl
from bookie.server.connection import Connection
from bookie.server.fair import FairShares
from bookie.server.shared import Shared
from bookie.storage.engine.engine import Engine
from ledgerlog import limits
from ledgerlog.concurrency.complaints import Complaints
from ledgerlog.concurrency.nurseries import background
from ledgerlog.model.admission import ProvenBy
from ledgerlog.net.prover import Prover
from ledgerlog.net.transport import ConnectionLost, Listener, Stream
from ledgerlog.wire.frame import Status
from ledgerlog.wire.hello import Hello, encode_hello_reply

logger = logging.getLogger(__name__)


class BookieServer:
    """Serves the wire protocol for one engine."""

    def __init__(
        self,
        engine: Engine,
        identity: Hello,
        *,
        access: AccessControl,
        listing_key: bytes,
        connections_max: int | None = None,
        prover: Prover | None = None,
    ) -> None:
        """Create a server.

        Args:
            engine: The bookie's storage.
            identity: The bookie's id, instance and cluster.
            access: Decides which requests clients may make.
            listing_key: A random secret. A client that sends it may list the ledgers with their keys.
            connections_max: Serve at most this many connections. None: ``limits.BOOKIE_CONNECTIONS_MAX``.
            prover: Proves the identity of the bookie and verifies its clients. None: the bookie has no
                identity, and the cluster is open.
        """
        self._connections_max = connections_max
        self._shared = Shared(
            engine=engine,
            access=access,
            identity=identity,
            listing_key=listing_key,
            complaints=Complaints(logger),
            prover=prover or Prover(),
            fair=FairShares(connections_max or limits.BOOKIE_CONNECTIONS_MAX),
        )
        self.listing_key = listing_key
        self._connections: dict[Connection, None] = {}
        self._listener: Listener | None = None
        self._stopping = trio.Event()

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def tell_spaces(self, spaces: Callable[[], Collection[DiskSpace]]) -> None:
        """Set the function that tells ``figures`` the space of the disks."""
        self._shared.spaces = spaces

    @property
    def counts(self) -> dict[str, int]:
        """Counts since the start: connections accepted and refused, peers cut off, adds refused,
        requests denied, requests for ledgers that do not exist refused."""
        return dict(self._shared.counts)

    def figures(self) -> dict[str, int]:
        """Return the figures of the bookie, as in an INFO reply."""
        return self._shared.figures()

    async def serve(self, listener: Listener) -> None:
        """Serve clients until ``stop``, and then until the last client has its answers. Then close the
        listener.

        Raises:
            ConnectionLost: The listener broke.
            ExceptionGroup: A group of the errors that must stop the whole bookie: StorageError,
                AssertionError.
        """
        assert self._listener is None, "a server serves once"
        self._listener = listener
        shared = self._shared
        shared.engine.on_durable(shared.on_durable)
        shared.prover.on_admission(self._on_admission)
        self._on_admission()
        try:
            async with (
                background(shared.fair.run, name="rounds"),
                background(shared.polls.run, name="polls"),
                trio.open_nursery() as nursery,
            ):
                while not self._stopping.is_set():
                    try:
                        stream = await listener.accept()
                    except ConnectionLost:
                        if self._stopping.is_set():
                            break
                        nursery.cancel_scope.cancel()
                        raise
                    self._admit(stream, nursery)
        finally:
            shared.prover.remove_on_admission(self._on_admission)
            shared.engine.remove_on_durable(shared.on_durable)
            listener.close()

    def stop(self) -> None:
        """Accept no more clients. ``serve`` returns once all requests under way are answered."""
        self._stopping.set()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.drain()

    def _admit(self, stream: Stream, nursery: trio.Nursery) -> None:
        shared = self._shared
        most = limits.BOOKIE_CONNECTIONS_MAX if self._connections_max is None else self._connections_max
        if len(self._connections) >= most and not self._drop_stranger(
            f"{len(self._connections)} connections are open, which is the limit"
        ):
            shared.counts["connections_refused"] += 1
            shared.complaints.tell(
                f"client={stream.peer}: refused: {len(self._connections)} connections are open, which is "
                f"the limit"
            )
            try:
                stream.send_nowait([encode_hello_reply(Status.TOO_MANY_REQUESTS, shared.identity)])
            except ConnectionLost as lost:
                logger.debug("client=%s: %s", stream.peer, lost)
            stream.close()
            return
        shared.counts["connections_accepted"] += 1
        connection = Connection(stream, shared)
        self._connections[connection] = None
        shared.connections = len(self._connections)
        surplus = shared.strangers.enter(connection, stream.peer)
        if surplus is not None:
            surplus.drop("it had not sent HELLO, and too many other connections came from its address")
        nursery.start_soon(self._run, connection)

    def _on_admission(self) -> None:
        """Follow how the cluster is closed. If it is closed now, close the connections of greeted clients
        that did not prove an identity."""
        prover = self._shared.prover
        self._shared.access.set_open(prover.admission.by is ProvenBy.NOTHING)
        if not prover.admission.is_required:
            return
        for connection in list(self._connections):
            if connection.is_greeted and connection.principal is None:
                connection.drop("it did not prove who it is, and the cluster is closed now")

    def _drop_stranger(self, why: str) -> bool:
        """Close the oldest stranger (see ``strangers``). Return whether there was one."""
        stranger = self._shared.strangers.take_oldest()
        if stranger is None:
            return False
        stranger.drop(f"it had not sent HELLO, and {why}")
        return True

    async def _run(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            del self._connections[connection]
            self._shared.connections = len(self._connections)
