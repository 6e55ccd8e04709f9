"""A TCP proxy for every link between a client and a server, on the loopback device of this machine.

Servers are bookies, and where there are some, ZooKeeper's, whose clients are the bookies, too.

A bookie listens where nobody looks for it (``listen_address``) and advertises the address of its proxy, a
port that is the same on every address of 127.0.0.0/8 that the proxies use. Each client that is to have links
of its own has an address there: it connects to the advertised port *on its own address*, so that the proxy
knows whose connection it has without being told. Who knows nothing of this (the bookies among themselves, the
driver) connects to what is advertised, and shares the links of ``OTHERS``.

    client "writer-2" ---> 127.0.0.3:P ---+
    client "writer-1" ---> 127.0.0.2:P ---+--> 127.0.1.N:P, the bookie's own listener
    everybody else ------> 127.0.0.1:P ---+

A metadata server knows nothing of it, and listens on 127.0.0.1; a client that is to have links of its own is
given the addresses of the proxies (``metadata_uri``).

Linux serves all of 127.0.0.0/8 without being told to; ``can_proxy`` says where that is not so.

**A link has two directions**, each with a gate and a delay. What meets a closed gate waits, in order, and
goes on when it opens, as TCP sends again what a partition swallowed; behind ``QUEUE_CHUNKS`` chunks the proxy
reads no more, and its sender feels the back-pressure. The end of a connection is such a chunk, too: behind a
closed gate nobody learns that the other end is gone. What differs from a real partition: the kernel still
accepts connections, which then stay silent.

**Breaking**: ``reset`` (both ends get RST, and what was under way is lost), ``reset(half=True)`` (one end
gets it, and the other one is left with a connection that nobody has), ``half_close`` (one direction ends
cleanly in the middle of everything).
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
"""The client that stands for all that have no address of their own."""

QUEUE_CHUNKS = 64
CHUNK_BYTES = 64 * 1024
_CONNECT_S = 5.0
_LINGER_RESET = struct.pack("ii", 1, 0)


@attrs.define(eq=False)
class Direction:
    """One way of a link."""

    delay_s: float = 0.0
    """Every chunk that comes from now on takes so long."""
    carried_bytes: int = 0
    _opened: trio.Event | None = None

    @property
    def is_open(self) -> bool:
        return self._opened is None

    def close(self) -> None:
        """Let nothing through any more, and tell nobody."""
        if self._opened is None:
            self._opened = trio.Event()

    def open(self) -> None:
        """Let everything through, what has waited first."""
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
    """Between one client and one server, all their connections together."""

    client: str
    server: str
    to_server: Direction = attrs.Factory(Direction)
    to_client: Direction = attrs.Factory(Direction)
    _connections: dict[_Connection, None] = attrs.Factory(dict)

    @property
    def connections(self) -> int:
        """How many there are at the moment."""
        return len(self._connections)

    def cut(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """A partition, or a one-way one."""
        if to_server:
            self.to_server.close()
        if to_client:
            self.to_client.close()

    def delay(self, delay_s: float) -> None:
        """From now on every chunk takes so long, either way."""
        self.to_server.delay_s = self.to_client.delay_s = delay_s

    def heal(self) -> None:
        """Everything passes again, at once. Connections that were broken stay so."""
        self.delay(0.0)
        self.to_server.open()
        self.to_client.open()

    def reset(self, *, half: bool = False) -> int:
        """Break every connection, losing what is under way: how many. With ``half`` only the client's end
        is told; the server's stays, and is silent until the server gives it up."""
        broken = list(self._connections)
        for connection in broken:
            reset(connection.client)
            if not half:
                reset(connection.server)
                connection.scope.cancel()
        return len(broken)

    def half_close(self) -> int:
        """End what clients send, cleanly and early; what servers send still comes. How many connections."""
        ended = 0
        for connection in self._connections:
            with suppress(OSError):
                connection.server.socket.shutdown(socket.SHUT_WR)
                ended += 1
        return ended


@attrs.define(eq=False)
class Proxies:
    """Made by ``open_proxies``."""

    links: dict[tuple[str, str], Link]
    """By client and server."""
    hosts: dict[str, str]
    """The address of each client, at which its links begin."""
    _ports: dict[str, int]
    _own_hosts: dict[str, str]
    _metadata: dict[str, int]

    def advertised(self, bookie: str) -> str:
        """What the bookie advertises."""
        return f"{self.hosts[OTHERS]}:{self._ports[bookie]}"

    def listen_address(self, bookie: str) -> str:
        """Where the bookie itself listens."""
        return f"{self._own_hosts[bookie]}:{self._ports[bookie]}"

    def metadata_uri(self, client: str) -> str:
        """Where this client finds the metadata servers."""
        return "zk://" + ",".join(f"{self.hosts[client]}:{port}" for port in self._metadata.values())

    def of(self, *, client: str | None = None, server: str | None = None) -> Iterator[Link]:
        """The links of a client, of a server, of both, or all."""
        for (begins_at, ends_at), link in self.links.items():
            if client in (None, begins_at) and server in (None, ends_at):
                yield link

    def heal(self) -> None:
        """All links."""
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
    """Proxies between clients and bookies, and ``OTHERS``, for the body of the ``async with``; and between
    both and the servers of the metadata, by their ports on 127.0.0.1."""
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
    """One connection, from its first byte to its last."""
    async with client:
        await link.to_server.wait_open()
        try:
            with trio.fail_after(_CONNECT_S):
                server = await trio.open_tcp_stream(host, port)
        except (OSError, trio.TooSlowError):
            await link.to_client.wait_open()
            reset(client)  # Nobody listens: the client's kernel would have said the same.
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
    """Carry one direction of a connection to its end. One that is not clean ends the other direction too."""
    send, receive = trio.open_memory_channel[tuple[float, bytes | None]](QUEUE_CHUNKS)

    async def read() -> None:
        async with send:
            while True:
                try:
                    data: bytes | None = await source.receive_some(CHUNK_BYTES)
                except trio.ClosedResourceError:
                    # We broke this end alone, and the other one hears nothing of it.
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
                    connection.cancel()  # The end that was left alone has given up, too.
            except trio.BrokenResourceError:
                await reverse.wait_open()
                reset(source)
                connection.cancel()


def reset(stream: trio.SocketStream) -> None:
    """RST to the other end of a connection."""
    with suppress(OSError):  # It may be over already.
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
    stream.socket.close()
