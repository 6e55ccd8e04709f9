"""Greedy peers in a simulated cluster: clients that send allowed requests, but far too many of them.

    crowd       opens many connections and says nothing, or half of a HELLO
    announces   announces a large frame and sends little of it
    deaf        sends many requests and reads no answer
    floods      sends many adds to a ledger of its own and does not wait for their answers

A bookie may slow such a peer down or close its connections. Everything else must work as without the peer,
and:

    GivenBack       a while after the greedy peers and all other clients have ended, no bookie holds bytes for
                    replies
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

import trio

from ledgerlog.cluster import Cluster
from ledgerlog.concurrency.gathering import gather
from ledgerlog.errors import LedgerLogError, WireError
from ledgerlog.limits import FRAME_BYTES_MAX
from ledgerlog.net.session import handshake
from ledgerlog.net.transport import ConnectionLost, Stream
from ledgerlog.testing.world import World
from ledgerlog.wire.frame import HEADER_BYTES, Kind, encode_head
from ledgerlog.wire.hello import Hello, encode_hello

__all__ = ["GreedyPeers"]

_PATIENCE_S = 3.0
_HELD_S = 1.0
"""How long a peer keeps its connections open, in seconds."""
_PAYLOAD = bytes(1000)


class GreedyPeers:
    """The greedy processes of one run.

    Args:
        world: The run.
        count: How many there are. May be 0.
    """

    def __init__(self, world: World, count: int) -> None:
        self.names = [f"greedy-{number}" for number in range(1, count + 1)]
        self._world = world
        self._cluster = world.cluster
        self._gap_s = min(0.5, world.swarm.trouble_s / 10) * world.swarm.stretch

    def start(self) -> None:
        """Start the processes."""
        for name in self.names:
            self._cluster.start(name, _Peer(self._world, name, self._gap_s).main)

    def stop(self) -> None:
        """End the processes."""
        for name in self.names:
            self._cluster.process(name).crash()

    async def judge(self) -> None:
        """Check that no bookie holds replies for clients that are gone. Call it when all clients have ended.

        Raises:
            Violation: A bookie still holds bytes for replies.
        """
        if not self.names:
            return
        cluster = self._cluster
        held = cluster.bookies
        for _ in range(100):
            held = [bookie for bookie in held if self._reply_bytes(bookie)]
            if not held:
                self._world.god.checks["GivenBack"] += 1
                return
            await trio.sleep(0.1)
        self._world.god.violate("GivenBack", f"{held} hold bytes for replies that no client waits for")

    def _reply_bytes(self, bookie: str) -> int:
        node = self._cluster.process(bookie).node
        return 0 if node is None else node.server.figures()["reply_bytes"]


class _Peer:
    """One greedy process."""

    def __init__(self, world: World, name: str, gap_s: float) -> None:
        self._world = world
        self._random: Random = world.simulation.random(name)
        self._gap_s = gap_s
        self._ways: dict[str, Callable[[Cluster, str], Awaitable[None]]] = {
            "crowd": self._crowd,
            "announces": self._announce,
            "deaf": self._ask_without_listening,
            "floods": self._flood,
        }

    async def main(self, client: Cluster) -> None:
        """Be greedy until the process ends."""
        random, counts = self._random, self._world.counts
        while True:
            await trio.sleep(random.expovariate(1 / self._gap_s))
            way, bookie = random.choice(sorted(self._ways)), random.choice(self._world.cluster.bookies)
            counts[f"greedy: {way}"] += 1
            with trio.move_on_after(_PATIENCE_S):
                try:
                    await self._ways[way](client, bookie)
                except (LedgerLogError, ConnectionLost, WireError):
                    counts["greedy connections cut off"] += 1

    async def _crowd(self, client: Cluster, bookie: str) -> None:
        streams: list[Stream] = []
        try:
            for _ in range(self._random.choice((3, 20))):
                stream = await client.client.network.connect(bookie)
                streams.append(stream)
                await stream.send_all([encode_hello(Hello(bookie, None))[: self._random.choice((0, 1, 50))]])
            await trio.sleep(_HELD_S)
        finally:
            for stream in streams:
                stream.close()

    async def _announce(self, client: Cluster, bookie: str) -> None:
        async def announce(stream: Stream) -> None:
            size = self._random.choice((100_000, FRAME_BYTES_MAX))
            head = bytearray(encode_head(Kind.ADD, payload_bytes=10))
            head[:4] = size.to_bytes(4, "little")
            await stream.send_all([bytes(head), bytes(self._random.choice((0, 500)))])
            await trio.sleep(_HELD_S)

        await self._greeted(client, bookie, announce)

    async def _ask_without_listening(self, client: Cluster, bookie: str) -> None:
        ids = await client.ledgers.list()
        if not ids:
            return
        ledger = await client.ledgers.metadata(self._random.choice(ids))
        last = ledger.last_entry  # If a ledger is not closed, only a reader knows which entries may be read.
        kinds = [
            Kind.LIST,
            Kind.READ_LAC,
            Kind.INFO,
            *([Kind.READ] * 5 if last is not None and last >= 0 else []),
        ]

        async def ask(stream: Stream) -> None:
            for request in range(1, self._random.choice((20, 200))):
                kind = self._random.choice(kinds)
                head = encode_head(
                    kind,
                    request=request,
                    ledger_id=0 if kind is Kind.INFO else ledger.ledger_id,
                    count=1 if kind is Kind.READ else 0,
                    first=-1 if kind is Kind.READ_LAC else 0,
                    last=max(0, last or 0) if kind is Kind.READ else 0,
                    argument=100_000 if kind is Kind.READ else 0,
                )
                assert len(head) == HEADER_BYTES
                await stream.send_all([head])
            await trio.sleep(_HELD_S)

        await self._greeted(client, bookie, ask)

    async def _flood(self, client: Cluster, bookie: str) -> None:
        writer = await client.ledgers.create()
        try:
            # A failed append is raised as itself: ``main`` counts it.
            await gather(*[partial(writer.append, _PAYLOAD)] * self._random.choice((10, 50)))
        finally:
            with trio.move_on_after(_HELD_S) as scope:
                scope.shield = True
                await writer.close()
                await client.ledgers.delete(writer.ledger_id)

    async def _greeted(
        self, client: Cluster, bookie: str, go_on: Callable[[Stream], Awaitable[None]]
    ) -> None:
        """Open a connection, say HELLO as any client does, and continue."""
        stream = await client.client.network.connect(bookie)
        try:
            await handshake(stream, Hello(bookie, None), client.client.prover)
            await go_on(stream)
        finally:
            stream.close()
