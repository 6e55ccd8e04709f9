"""A TCP proxy for every link between a client and a server, on the loopback device of this machine.

Servers are bookies and, if the cluster has them, ZooKeeper servers. Bookies are clients of ZooKeeper, too.

A bookie listens on a hidden address (``listen_address``) and advertises the address of its proxy. The port of
the proxy is the same on every address of 127.0.0.0/8 that the proxies use. Each client with links of its own
has such an address: it connects to the advertised port *on its own address*, so the proxy knows the client
without being told. All others (the bookies among themselves, the driver) connect to the advertised address,
and share the links of ``OTHERS``.

    client "writer-2" ---> 127.0.0.3:P ---+
    client "writer-1" ---> 127.0.0.2:P ---+--> 127.0.1.N:P, the bookie's own listener
    everybody else ------> 127.0.0.1:P ---+

A metadata server knows nothing of the proxies, and listens on 127.0.0.1. A client with links of its own gets
the addresses of the proxies (``metadata_uri``).

Linux serves all of 127.0.0.0/8 by default; ``can_proxy`` is false if a machine does not.

**A link has two directions**, each with a gate and a delay. Chunks wait at a closed gate, in order, and go on
when it opens, as TCP sends lost segments again after a partition. After ``QUEUE_CHUNKS`` chunks the proxy
reads no more, and the sender feels the back-pressure. The end of a connection is such a chunk, too: behind a
closed gate, nobody learns that the other end is gone. Unlike in a real partition, the kernel still accepts
connections, which then stay silent.

**Breaking**: ``reset`` sends RST to both ends, and loses data on the way. ``reset(half=True)`` sends RST to
the client only, and leaves the server with a dead connection. ``half_close`` ends one direction cleanly, at
any moment.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType

import attrs
import trio

__all__ = ["OTHERS", "Direction", "Link", "Proxies", "can_proxy", "open_proxies", "reset"]

OTHERS = "others"
"""The name for all clients without an address of their own."""

QUEUE_CHUNKS = 64
CHUNK_BYTES = 64 * 1024
_CONNECT_S = 5.0
_LINGER_RESET = struct.pack("ii", 1, 0)


@attrs.define(eq=False)
class Direction:
    """One direction of a link."""

    delay_s: float = 0.0
    """Delay of every chunk that comes from now on."""
    carried_bytes: int = 0
    _opened: trio.Event | None = None

    @property
    def is_open(self) -> bool:
        return self._opened is None

    def close(self) -> None:
        """Let nothing through any more, without telling either end."""
        if self._opened is None:
            self._opened = trio.Event()

    def open(self) -> None:
        """Let everything through, the waiting chunks first."""
        if self._opened is not None:
            self._opened.set()
            self._opened = None

    async def wait_open(self) -> None:
        while self._opened is not None:
            await self._opened.wait()


@attrs.define(eq=False)
class _Connection:
    client: trio.SocketStream
    server: trio.SocketStream
    scope: trio.CancelScope


@attrs.define(eq=False)
class Link:
    """All connections between one client and one server."""

    client: str
    server: str
    to_server: Direction = attrs.Factory(Direction)
    to_client: Direction = attrs.Factory(Direction)
    _connections: dict[_Connection, None] = attrs.Factory(dict)

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def cut(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Start a partition, in both directions or in one."""
        if to_server:
            self.to_server.close()
        if to_client:
            self.to_client.close()

    def delay(self, delay_s: float) -> None:
        """Delay every chunk from now on, in both directions."""
        self.to_server.delay_s = self.to_client.delay_s = delay_s

    def heal(self) -> None:
        """Let everything pass again, without delay. Broken connections stay broken."""
        self.delay(0.0)
        self.to_server.open()
        self.to_client.open()

    def reset(self, *, half: bool = False) -> int:
        """Break every connection, losing data on the way, and return how many there were.

        With ``half``, only the client's end is told. The server's end stays silent until the server gives
        it up.
        """
        broken = list(self._connections)
        for connection in broken:
            reset(connection.client)
            if not half:
                reset(connection.server)
                connection.scope.cancel()
        return len(broken)

    def half_close(self) -> int:
        """End the direction to the server cleanly and early, and return the number of connections.

        Data from the server still arrives.
        """
        ended = 0
        for connection in self._connections:
            with suppress(OSError):
                connection.server.socket.shutdown(socket.SHUT_WR)
                ended += 1
        return ended


@attrs.define(eq=False)
class Proxies:
    """All links, made by ``open_proxies``."""

    links: dict[tuple[str, str], Link]
    """Links by client and server."""
    hosts: dict[str, str]
    """The address of each client, where its links begin."""
    _ports: dict[str, int]
    _own_hosts: dict[str, str]
    _metadata: dict[str, int]

    def advertised(self, bookie: str) -> str:
        """Return the address that the bookie advertises."""
        return f"{self.hosts[OTHERS]}:{self._ports[bookie]}"

    def listen_address(self, bookie: str) -> str:
        """Return the address where the bookie itself listens."""
        return f"{self._own_hosts[bookie]}:{self._ports[bookie]}"

    def metadata_uri(self, client: str) -> str:
        """Return the metadata URI of this client."""
        return "zk://" + ",".join(f"{self.hosts[client]}:{port}" for port in self._metadata.values())

    def of(self, *, client: str | None = None, server: str | None = None) -> Iterator[Link]:
        """Yield the links of a client, of a server, of both, or all."""
        for (begins_at, ends_at), link in self.links.items():
            if client in (None, begins_at) and server in (None, ends_at):
                yield link

    def heal(self) -> None:
        """Heal all links."""
        for link in self.links.values():
            link.heal()


def can_proxy() -> bool:
    """Whether this machine serves all of 127.0.0.0/8."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.1.2", 0))
        except OSError:
            return False
    return True


@asynccontextmanager
async def open_proxies(
    bookies: list[str], clients: list[str], *, metadata: Mapping[str, int] = MappingProxyType({})
) -> AsyncIterator[Proxies]:
    """Open proxies for the body of the ``async with``.

    They lead from clients and ``OTHERS`` to bookies, and from clients and bookies to the metadata servers.
    ``metadata`` has the port of each metadata server on 127.0.0.1.
    """
    hosts = {OTHERS: "127.0.0.1"} | {client: f"127.0.0.{n}" for n, client in enumerate(clients, 2)}
    own_hosts = {bookie: f"127.0.1.{n}" for n, bookie in enumerate(bookies, 2)}
    proxies = Proxies({}, hosts | own_hosts, {}, own_hosts, dict(metadata))
    async with trio.open_nursery() as nursery:

        def connect(client: str, server: str, listener: trio.SocketListener, to: tuple[str, int]) -> None:
            link = proxies.links[client, server] = Link(client, server)
            nursery.start_soon(_serve, listener, link, *to)

        for bookie in bookies:
            port = 0
            for client, host in hosts.items():
                listener = _listen(host, port)
                port = listener.socket.getsockname()[1]
                connect(client, bookie, listener, (own_hosts[bookie], port))
            proxies._ports[bookie] = port
        for server, port in metadata.items():
            for client in (*clients, *bookies):
                connect(client, server, _listen(proxies.hosts[client], port), ("127.0.0.1", port))
        yield proxies
        nursery.cancel_scope.cancel()


def _listen(host: str, port: int) -> trio.SocketListener:
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.listen(256)
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


async def _serve(listener: trio.SocketListener, link: Link, host: str, port: int) -> None:
    async def connected(client: trio.SocketStream) -> None:
        await _carry(link, client, host, port)

    await trio.serve_listeners(connected, [listener])


async def _carry(link: Link, client: trio.SocketStream, host: str, port: int) -> None:
    """Carry one connection, from its first byte to its last."""
    async with client:
        await link.to_server.wait_open()
        try:
            with trio.fail_after(_CONNECT_S):
                server = await trio.open_tcp_stream(host, port)
        except (OSError, trio.TooSlowError):
            await link.to_client.wait_open()
            reset(client)  # Nobody listens: without a proxy, the client would get a reset, too.
            return
        async with server, trio.open_nursery() as nursery:
            connection = _Connection(client, server, nursery.cancel_scope)
            link._connections[connection] = None
            try:
                there, back = link.to_server, link.to_client
                async with trio.open_nursery() as pumps:
                    pumps.start_soon(_pump, client, server, there, back, nursery.cancel_scope)
                    pumps.start_soon(_pump, server, client, back, there, nursery.cancel_scope)
            finally:
                del link._connections[connection]


async def _pump(
    source: trio.SocketStream,
    target: trio.SocketStream,
    direction: Direction,
    reverse: Direction,
    connection: trio.CancelScope,
) -> None:
    """Carry one direction of a connection to its end. If that is not clean, end the other one, too."""
    send, receive = trio.open_memory_channel[tuple[float, bytes | None]](QUEUE_CHUNKS)

    async def read() -> None:
        async with send:
            while True:
                try:
                    data: bytes | None = await source.receive_some(CHUNK_BYTES)
                except trio.ClosedResourceError:
                    # We broke only this end, and the other end must not notice.
                    await trio.sleep_forever()
                except trio.BrokenResourceError:
                    data = None
                await send.send((trio.current_time() + direction.delay_s, data))
                if not data:
                    return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        async for due, data in receive:
            await trio.sleep_until(due)
            await direction.wait_open()
            try:
                if data is None:
                    reset(target)
                    connection.cancel()
                elif data:
                    await target.send_all(data)
                    direction.carried_bytes += len(data)
                else:
                    await target.send_eof()
            except trio.ClosedResourceError:
                if not data:
                    connection.cancel()  # The remaining end has given up, too.
            except trio.BrokenResourceError:
                await reverse.wait_open()
                reset(source)
                connection.cancel()


def reset(stream: trio.SocketStream) -> None:
    """Send RST to the other end of a connection."""
    with suppress(OSError):  # It may be over already.
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
    stream.socket.close()
