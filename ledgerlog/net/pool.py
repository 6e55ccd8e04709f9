"""All connections of a process to bookies, and the one task that watches their deadlines.

``open_pool`` owns the nursery of the connections' tasks. The pool makes a connection when a bookie is first
asked for, and keeps the connection as long as the pool is open. While it is not connected, it costs one
parked task.

Every ``_TICK_S``, the deadline task checks the sessions that wait for something. It sleeps while there are
none. So an idle process does not wake, and in a busy one the cost grows with the number of ticks and not of
frames.

**Signs of life.** ``ask`` sends HELLO to a bookie over a new stream and then closes the stream. This works
even if the connection for adds is blocked: a bookie without room reads no adds, but still answers the HELLO
of new connections.

If you leave the pool, every connection is closed, and waiting requests fail with BookieUnavailable. The
*sinks* (the senders of adds, ``net.adds``) are no longer called, so end their owners first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from random import Random

import attrs
import trio

from ledgerlog.concurrency.nurseries import open_serving_nursery
from ledgerlog.errors import LedgerLogError
from ledgerlog.limits import CONNECTION_SPARE_BUFFER_BYTES, REACH_ASK_S
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.model.protocol import ProtocolSupport
from ledgerlog.net.adds import Burst
from ledgerlog.net.connection import BookieConnection, ConnectionStatistics
from ledgerlog.net.prover import Prover
from ledgerlog.net.session import BookieBusy, PeerSession, handshake
from ledgerlog.net.transport import Network
from ledgerlog.versions import SPOKEN
from ledgerlog.wire.frame import SpareBuffers
from ledgerlog.wire.hello import Hello

__all__ = ["ConnectionPool", "PoolStatistics", "open_pool"]

_TICK_S = 0.25


@attrs.frozen(kw_only=True)
class PoolStatistics:
    """Statistics of each connection, and sums. Connections to the replaced data of a bookie are left out."""

    connections: tuple[ConnectionStatistics, ...]
    connected: int
    queued_bytes: int
    unanswered_adds: int


class ConnectionPool:
    """The connections to all bookies; see the module docstring. ``open_pool`` makes a pool."""

    def __init__(
        self,
        network: Network,
        resolve: Callable[[BookieId], Awaitable[BookieInfo]],
        nursery: trio.Nursery,
        *,
        rng: Random,
        cluster: str | None,
        speaks: ProtocolSupport,
        prover: Prover | None,
    ) -> None:
        self._network = network
        self._resolve = resolve
        self._nursery = nursery
        self._rng = rng
        self._cluster = cluster
        self._speaks = speaks
        self._prover = prover
        self._burst = Burst()
        self._spares = SpareBuffers(CONNECTION_SPARE_BUFFER_BYTES)
        self._connections: dict[BookieId, BookieConnection] = {}
        self._asked: dict[BookieId, list[Callable[[BookieId], None]]] = {}
        """The bookies that are being asked for a sign of life, each with the callbacks for its answer."""
        self._watched: list[PeerSession] = []
        self._watch_wanted = trio.Event()
        nursery.start_soon(self._watch_deadlines, name="connection deadlines")

    def connection(self, bookie_id: BookieId) -> BookieConnection:
        """Get the connection to a bookie; all callers share it. It may not be connected yet.

        Call this again for every new purpose. If a bookie's data was replaced, new callers get another
        connection, while ledgers that rely on the old data keep the old connection.

        Raises:
            InvalidArgument: The id is malformed.
        """
        connection = self._connections.get(bookie_id)
        if connection is None:
            connection = self._connections[check_bookie_id(bookie_id)] = BookieConnection(
                bookie_id,
                network=self._network,
                resolve=self._resolve,
                burst=self._burst,
                spares=self._spares,
                rng=self._rng,
                watch=self._watch,
                on_superseded=self._on_superseded,
                cluster=self._cluster,
                speaks=self._speaks,
                prover=self._prover,
            )
            self._nursery.start_soon(connection.run, name=f"connection to {bookie_id}")
        return connection

    def ask(self, bookie_id: BookieId, on_sign: Callable[[BookieId], None]) -> None:
        """Ask a bookie for a sign of life, over a new stream. Calls for the same bookie at the same time
        share one stream.

        Args:
            bookie_id: The bookie.
            on_sign: Called if the bookie answers within ``limits.REACH_ASK_S``.
        """
        if bookie_id in self._asked:
            self._asked[bookie_id].append(on_sign)
        else:
            self._asked[bookie_id] = [on_sign]
            self._nursery.start_soon(self._ask, bookie_id)

    async def reaches(self, bookies: Collection[BookieId], needed: int) -> bool:
        """Ask bookies for a sign of life. Return whether ``needed`` of them answer in time."""
        signs: set[BookieId] = set()
        enough = trio.Event()

        def on_sign(bookie_id: BookieId) -> None:
            signs.add(bookie_id)
            if len(signs) >= needed:
                enough.set()

        for bookie_id in bookies:
            self.ask(bookie_id, on_sign)
        with trio.move_on_after(REACH_ASK_S):
            await enough.wait()
        return enough.is_set()

    async def _ask(self, bookie_id: BookieId) -> None:
        is_there = False
        try:
            with trio.move_on_after(REACH_ASK_S):
                is_there = await self._greets(bookie_id)
        finally:
            told = self._asked.pop(bookie_id)
        for on_sign in told if is_there else ():
            on_sign(bookie_id)

    async def _greets(self, bookie_id: BookieId) -> bool:
        try:
            info = await self._resolve(bookie_id)
            stream = await self._network.connect(info.address)
            try:
                wanted = Hello.of(bookie_id, info.instance or None, self._cluster, self._speaks)
                await handshake(stream, wanted, self._prover)
            finally:
                stream.close()
        except BookieBusy:
            return True
        except LedgerLogError:
            return False
        return True

    def troubles(self, bookies: Iterable[BookieId]) -> dict[BookieId, str]:
        """Return why these bookies did not answer the last request to them.

        Bookies that did, and bookies without a connection, are left out. This makes no connection.
        """
        there = (self._connections.get(bookie) for bookie in bookies)
        return {
            each.bookie_id: each.trouble for each in there if each is not None and each.trouble is not None
        }

    def statistics(self) -> PoolStatistics:
        """The present statistics."""
        each = tuple(connection.statistics() for connection in list(self._connections.values()))
        return PoolStatistics(
            connections=each,
            connected=sum(statistics.is_connected for statistics in each),
            queued_bytes=sum(statistics.queued_bytes for statistics in each),
            unanswered_adds=sum(statistics.unanswered_adds for statistics in each),
        )

    def _on_superseded(self, connection: BookieConnection) -> None:
        if self._connections.get(connection.bookie_id) is connection:
            del self._connections[connection.bookie_id]

    def _watch(self, session: PeerSession) -> None:
        self._watched.append(session)
        self._watch_wanted.set()

    async def _watch_deadlines(self) -> None:
        while True:
            if not self._watched:
                self._watch_wanted = trio.Event()
                await self._watch_wanted.wait()
            await trio.sleep(_TICK_S)
            now = trio.current_time()
            watched, self._watched = self._watched, []
            for session in watched:
                if session.check(now):
                    self._watched.append(session)


@asynccontextmanager
async def open_pool(
    network: Network,
    resolve: Callable[[BookieId], Awaitable[BookieInfo]],
    *,
    rng: Random | None = None,
    cluster: str | None = None,
    speaks: ProtocolSupport = SPOKEN,
    prover: Prover | None = None,
) -> AsyncIterator[ConnectionPool]:
    """Open a pool of connections over ``network``, and close it on leaving.

    Args:
        network: The network to the bookies.
        resolve: Finds a bookie's present address and the instance of its data. It raises BookieUnavailable if
            the bookie is not registered.
        rng: Shortens reconnection delays at random. Pass a seeded one to make the delays repeatable.
        cluster: The id of the metadata store. A bookie of another cluster refuses the connection.
        speaks: The protocol versions and features of this client.
        prover: Proves who this process is. None in an open cluster, if the process proves nothing.
    """
    async with open_serving_nursery() as nursery:
        yield ConnectionPool(
            network, resolve, nursery, rng=rng or Random(), cluster=cluster, speaks=speaks, prover=prover
        )
