"""All connections of a process to bookies, and the one task that watches their deadlines.

``open_pool`` owns the nursery in which every connection has its task. A connection is made when its
bookie is asked for first and stays for as long as the pool: unconnected it costs a parked task.

The deadline task looks every ``_TICK_S`` at the sessions that have something to be late with, and sleeps
while none has. So an idle process does not wake, and a busy one pays per tick, not per frame.

Leaving the pool closes every connection. Requests that wait fail with BookieUnavailable; sinks are not
called any more, so their owners end first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import attrs
import trio

from ledgerlog.concurrency.nurseries import open_serving_nursery
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.net.adds import Burst
from ledgerlog.net.connection import BookieConnection, ConnectionStatistics
from ledgerlog.net.session import Session
from ledgerlog.net.transport import Network

__all__ = ["ConnectionPool", "PoolStatistics", "open_pool"]

_TICK_S = 0.25


@attrs.frozen(kw_only=True)
class PoolStatistics:
    """The connections, those that were superseded left out, and some sums over them."""

    connections: tuple[ConnectionStatistics, ...]
    connected: int
    queued_bytes: int
    unanswered_adds: int


class ConnectionPool:
    """See above. Made by ``open_pool``."""

    def __init__(
        self,
        network: Network,
        resolve: Callable[[BookieId], Awaitable[BookieInfo]],
        nursery: trio.Nursery,
        *,
        rng: Random,
        cluster: str | None,
    ) -> None:
        self._network = network
        self._resolve = resolve
        self._nursery = nursery
        self._rng = rng
        self._cluster = cluster
        self._burst = Burst()
        self._connections: dict[BookieId, BookieConnection] = {}
        self._watched: list[Session] = []
        self._watch_wanted = trio.Event()
        nursery.start_soon(self._watch_deadlines, name="connection deadlines")

    def connection(self, bookie_id: BookieId) -> BookieConnection:
        """The connection to a bookie, the same one for everybody; made, but not yet connected, where there
        is none. Raises InvalidArgument if the id is malformed.

        Ask again for every new purpose: a bookie whose data was replaced gets another connection while
        the ledgers that rely on the old data still hold the old one."""
        connection = self._connections.get(bookie_id)
        if connection is None:
            connection = self._connections[check_bookie_id(bookie_id)] = BookieConnection(
                bookie_id,
                network=self._network,
                resolve=self._resolve,
                burst=self._burst,
                rng=self._rng,
                watch=self._watch,
                on_superseded=self._on_superseded,
                cluster=self._cluster,
            )
            self._nursery.start_soon(connection.run, name=f"connection to {bookie_id}")
        return connection

    def statistics(self) -> PoolStatistics:
        """Counts as of now."""
        each = tuple(connection.statistics() for connection in self._connections.values())
        return PoolStatistics(
            connections=each,
            connected=sum(statistics.is_connected for statistics in each),
            queued_bytes=sum(statistics.queued_bytes for statistics in each),
            unanswered_adds=sum(statistics.unanswered_adds for statistics in each),
        )

    def _on_superseded(self, connection: BookieConnection) -> None:
        if self._connections.get(connection.bookie_id) is connection:
            del self._connections[connection.bookie_id]

    def _watch(self, session: Session) -> None:
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
) -> AsyncIterator[ConnectionPool]:
    """A pool of connections over ``network``, closed on leaving.

    ``resolve`` says where a bookie serves now and which instance its data is; it raises BookieUnavailable
    where the bookie is not registered. ``rng`` shortens reconnection delays by chance; a seeded one makes
    them repeat. ``cluster`` is the id of the metadata store: a bookie of another one refuses us."""
    async with open_serving_nursery() as nursery:
        yield ConnectionPool(network, resolve, nursery, rng=rng or Random(), cluster=cluster)
