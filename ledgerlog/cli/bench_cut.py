"""Cuts for the failover benchmark: bytes get lost, but no connection breaks, as after a cable is unplugged.

``CuttableNetwork`` cuts a candidate off from the bookies, inside the candidate. Accepted connections stay, so
the candidate's standbys still hear its heartbeat. ``StoreRelay`` stands between a candidate and the servers
of ZooKeeper, on the loopback device, in the process that runs the benchmark.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import attrs
import trio

from ledgerlog.concurrency.nurseries import open_serving_nursery
from ledgerlog.meta.uri import ZooKeeperUri
from ledgerlog.model.principal import Principal
from ledgerlog.net.transport import Buffer, ConnectionLost, Listener, Network, Stream, buffers_bytes

__all__ = ["CuttableNetwork", "StoreRelay", "open_store_relay"]

_CHUNK_BYTES = 64 * 1024


class CuttableNetwork:
    """A network that can be ``cut``. From then on, this process's own connections carry nothing, new ones
    included."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.is_cut = False

    def cut(self) -> None:
        """Lose all bytes from now on."""
        self.is_cut = True

    async def connect(self, address: str) -> Stream:
        if self.is_cut:
            await trio.sleep_forever()
        return _CuttableStream(await self._network.connect(address), self)

    async def listen(self, address: str) -> Listener:
        return await self._network.listen(address)


class _CuttableStream:
    def __init__(self, inner: Stream, network: CuttableNetwork) -> None:
        self._inner = inner
        self._network = network
        self._closed = trio.Event()

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def principal(self) -> Principal | None:
        return self._inner.principal

    async def receive_into(self, buffer: memoryview) -> int:
        count = await self._inner.receive_into(buffer)
        if not self._network.is_cut:
            return count
        await self._closed.wait()
        raise ConnectionLost(f"the connection with {self.peer} is closed")

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        return buffers_bytes(buffers) if self._network.is_cut else self._inner.send_nowait(buffers)

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        if self._network.is_cut:
            await trio.lowlevel.checkpoint()
        else:
            await self._inner.send_all(buffers)

    def close(self) -> None:
        self._inner.close()
        self._closed.set()


@attrs.define(eq=False)
class StoreRelay:
    """Relays one candidate's connections to the servers of ZooKeeper. ``open_store_relay`` makes it."""

    uri: str
    """The URI of the cluster through the relay."""
    is_cut: bool = False

    def cut(self) -> None:
        """Lose all bytes from now on. New connections are accepted and stay silent."""
        self.is_cut = True

    async def _carry(self, client: trio.SocketStream, host: str, port: int) -> None:
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            if self.is_cut:
                await trio.sleep_forever()
            server = await trio.open_tcp_stream(host, port)
            async with client, server, trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, client, server)
                await self._pump(server, client)
                nursery.cancel_scope.cancel()

    async def _pump(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(_CHUNK_BYTES):
                if self.is_cut:
                    await trio.sleep_forever()
                await target.send_all(data)
            if self.is_cut:
                await trio.sleep_forever()
            await target.send_eof()


@asynccontextmanager
async def open_store_relay(uri: ZooKeeperUri) -> AsyncIterator[StoreRelay]:
    """Relay connections to the servers of this store for the body of the ``async with``."""
    async with open_serving_nursery() as nursery:
        relay = StoreRelay("")
        servers = []
        for host, port in uri.servers:

            async def carry(client: trio.SocketStream, host: str = host, port: int = port) -> None:
                await relay._carry(client, host, port)

            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, carry, [listener])
            servers.append(("127.0.0.1", int(listener.socket.getsockname()[1])))
        relay.uri = str(ZooKeeperUri(tuple(servers), uri.chroot))
        yield relay
