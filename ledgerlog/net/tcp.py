"""The network capability over TCP.

This module uses the standard library's non-blocking sockets; trio only says when to try again. A send and a
receive together cost 33 microseconds with trio's own streams and about 11 with these. Every frame has this
cost.

**Trying first.** A stream tries a send at once, and waits for the socket only if the kernel takes nothing.
It tries a receive at once too, unless the last receive filled only part of its buffer. In that case the
kernel had no more bytes: a try would nearly always fail, and would cost as much as the wait. If a peer is so
fast that no send or receive ever waits, the other tasks of the process must not starve. So a stream lets
other tasks run after a number of bytes or calls (``net.turns``). The calls in between only check for
cancellation.

**Cancellation.** A receive checks for cancellation and waits *before* it takes bytes from the kernel, never
after. So a cancelled receive loses no bytes. A cancelled ``send_all`` has sent an unknown part of its bytes.

**Closing** marks the stream, wakes the tasks that wait for its socket, and closes the descriptor, in one
step without a checkpoint. So no task can use a descriptor after its number was reused. The kernel still
delivers bytes that were sent earlier, unless this end has left received bytes unread: then the kernel resets
the connection.

**Dead machines.** If the peer's machine is dead, nothing at all comes from it. On an idle connection,
keep-alive probes detect that. On a connection with bytes under way, ``TCP_USER_TIMEOUT`` detects it. Both
take about half a minute. If only the peer's process hangs, the layer above detects it, because that layer
knows which answers are due.

**Every OSError** becomes ConnectionLost here. A malformed address becomes InvalidArgument.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import socket
from collections.abc import Sequence
from typing import Any

import trio
from trio.lowlevel import (
    checkpoint,
    notify_closing,
    wait_readable,
    wait_writable,
)

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import CONNECT_TIMEOUT_S, MIB
from ledgerlog.model.principal import Principal
from ledgerlog.net.transport import Buffer, ConnectionLost, Listener, Stream, buffers_bytes
from ledgerlog.net.turns import Turns, send_all_of

__all__ = ["TcpNetwork", "end_if_unread", "own_host_towards", "parse_address"]

logger = logging.getLogger(__name__)

_SEND_BUFFER_BYTES = MIB
"""The send buffer to request for every stream, so that a whole frame leaves without waiting."""

_BACKLOG = 1024
_IOV_MAX = os.sysconf("SC_IOV_MAX")

_KEEPALIVE_IDLE_S = 15
_KEEPALIVE_INTERVAL_S = 5
_KEEPALIVE_PROBES = 3
_UNACKNOWLEDGED_MAX_S = 30

_ACCEPT_BACK_OFF_S = 0.05
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Accepting failed for lack of descriptors or memory: the connection stays in the backlog."""
_LISTENER_BROKEN = frozenset((errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP, errno.EFAULT))
"""Accepting can never succeed again. An error that is in none of these sets concerns only the connection that
was being accepted."""

_ADDRESS = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[\w.\-]+)?)\]|(?P<host>[^\s:\[\]/]+)):(?P<port>[0-9]{1,5})\Z"
)


def parse_address(address: str) -> tuple[str, int]:
    """Split ``host:port``, ``1.2.3.4:port`` or ``[::1]:port`` into host and port.

    Raises:
        InvalidArgument: The address has another form, or a port above 65535.
    """
    match = _ADDRESS.match(address)
    if match is None or int(match["port"]) > 65535:
        raise InvalidArgument(f"{address!r} is not an address: host:port, 1.2.3.4:port or [::1]:port")
    return match["v6"] or match["host"], int(match["port"])


async def own_host_towards(host: str, port: int) -> str | None:
    """Return this machine's own address towards another host, in the form that is used before ``:port``.

    This sends nothing, except to resolve ``host``. It returns None if this machine has no route, or if the
    name does not resolve within ``CONNECT_TIMEOUT_S``."""
    found: Sequence[Any] = ()
    try:
        with trio.move_on_after(CONNECT_TIMEOUT_S):
            found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        if not found:
            return None
        family, kind, protocol, _, sockaddr = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(sockaddr)  # For a datagram socket this only chooses a route; it sends nothing.
            return _format_address(probe.getsockname()).rpartition(":")[0]
    except (OSError, UnicodeError):
        return None


class TcpNetwork:
    """TCP over IPv4 and IPv6. trio resolves names, in a thread unless they are numeric."""

    def __init__(self) -> None:
        self._send_buffer_bytes = _granted_send_buffer()

    async def connect(self, address: str) -> Stream:
        """Open a stream to a listener.

        If a name has several addresses and one has not answered for a quarter of a second, the next is tried
        too. The call waits as long as the kernel does, perhaps minutes. If the process has no file descriptor
        left, the call waits for one. Use a deadline.

        Raises:
            ConnectionLost: No address answered.
            InvalidArgument: The address is malformed.
        """
        host, port = parse_address(address)
        if port == 0:
            raise InvalidArgument(f"{address!r}: nothing listens at port 0")
        while True:
            try:
                connected = await trio.open_tcp_stream(host, port)
                break
            except UnicodeError as cause:
                raise InvalidArgument(f"{address!r}: {host!r} is not a host name") from cause
            except OSError as cause:
                if not _is_exhaustion(cause):
                    raise ConnectionLost(f"cannot connect to {address}: {_reason(cause)}") from cause
                logger.debug("cannot connect to %s for now: %s", address, _reason(cause))
            await trio.sleep(_ACCEPT_BACK_OFF_S)
        sock = socket.socket(fileno=connected.socket.detach())
        try:
            if sock.getsockname() == sock.getpeername():
                # No process listens at the port. The kernel chose the same port for our end, and TCP then
                # connected the socket to itself.
                raise ConnectionLost(f"cannot connect to {address}: nothing listens there")
            self._configure(sock)
        except OSError as cause:
            sock.close()
            raise ConnectionLost(f"cannot connect to {address}: {_reason(cause)}") from cause
        except ConnectionLost:
            sock.close()
            raise
        return TcpStream(sock, address)

    async def listen(self, address: str) -> Listener:
        """Listen at an address. Port 0 means any free port; ``[::]`` means both IPv6 and IPv4.

        Raises:
            InvalidArgument: The address is malformed.
            ConnectionLost: The address is taken, or does not belong to this machine.
        """
        host, port = parse_address(address)
        try:
            found = await trio.socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except UnicodeError as cause:
            raise InvalidArgument(f"{address!r}: {host!r} is not a host name") from cause
        except OSError as cause:
            raise ConnectionLost(f"cannot listen at {address}: {_reason(cause)}") from cause
        family, kind, protocol, _, sockaddr = found[0]
        sock = None
        try:
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            # Without this, a restarted bookie could not bind for a minute while old connections linger.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(sockaddr)
            sock.listen(_BACKLOG)
            return TcpListener(self, sock)
        except OSError as cause:
            if sock is not None:
                sock.close()
            raise ConnectionLost(f"cannot listen at {address}: {_reason(cause)}") from cause

    def _configure(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._send_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            # trio sets a low value for its own streams; a socket then takes only 16 KiB at a time.
            ("TCP_NOTSENT_LOWAT", 0),
            ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
            ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_S),
            ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        ):
            _set_option(sock, name, value)
        end_if_unread(sock, _UNACKNOWLEDGED_MAX_S)


class TcpStream:
    """One TCP connection; see ``transport.Stream``."""

    __slots__ = ("_closed", "_fd", "_is_drained", "_peer", "_sock", "_turns")

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._peer = peer
        self._closed = False
        self._is_drained = False  # the last receive filled only part of its buffer
        self._turns = Turns()

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def principal(self) -> Principal | None:
        return None

    async def receive_into(self, buffer: memoryview) -> int:
        turns = self._turns
        try:
            if self._is_drained and not self._closed:
                turns.renew()
                await wait_readable(self._fd)
            else:
                await turns.take()
            while not self._closed:
                try:
                    received = self._sock.recv_into(buffer)
                except BlockingIOError:
                    turns.renew()
                    await wait_readable(self._fd)
                else:
                    self._is_drained = received < len(buffer)
                    turns.spend_copied(received)
                    return received
        except trio.ClosedResourceError as cause:
            raise ConnectionLost(f"the connection with {self._peer} is closed") from cause
        except OSError as cause:
            raise self._lost(cause) from cause
        raise ConnectionLost(f"the connection with {self._peer} is closed")

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        if self._closed:
            raise ConnectionLost(f"the connection with {self._peer} is closed")
        sent = 0
        try:
            if len(buffers) <= _IOV_MAX:
                return self._sock.sendmsg(buffers)
            for at in range(0, len(buffers), _IOV_MAX):
                part = buffers[at : at + _IOV_MAX]
                went = self._sock.sendmsg(part)
                sent += went
                if went < buffers_bytes(part):
                    break
        except BlockingIOError:
            pass
        except OSError as cause:
            raise self._lost(cause) from cause
        return sent

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        await send_all_of(self, buffers, self._turns, self._wait_writable)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        _close_socket(self._sock)

    async def _wait_writable(self) -> None:
        self._turns.renew()
        try:
            await wait_writable(self._fd)
        except trio.ClosedResourceError as cause:
            raise ConnectionLost(f"the connection with {self._peer} is closed") from cause
        except OSError as cause:
            raise self._lost(cause) from cause

    def _lost(self, cause: OSError) -> ConnectionLost:
        return ConnectionLost(f"the connection with {self._peer} broke: {_reason(cause)}")


class TcpListener:
    """A listening socket; see ``transport.Listener``.

    If the process has run out of descriptors, ``accept`` logs this once and tries again twenty times a
    second. Meanwhile, connections wait in the kernel's backlog. They are served when descriptors are free.

    A stranger may connect and leave at once, again and again. ``accept`` closes such a connection itself, in
    one pass of the event loop. If it returned the connection, the connection would cost three more passes and
    two tasks, and a flood of such connections would keep other clients waiting in the backlog."""

    __slots__ = ("_address", "_closed", "_fd", "_is_exhausted", "_network", "_sock")

    def __init__(self, network: TcpNetwork, sock: socket.socket) -> None:
        self._network = network
        self._sock = sock
        self._fd = sock.fileno()
        self._address = _format_address(sock.getsockname())
        self._closed = trio.Event()
        self._is_exhausted = False

    @property
    def address(self) -> str:
        return self._address

    async def accept(self) -> Stream:
        await checkpoint()
        while True:
            if self._closed.is_set():
                raise ConnectionLost(f"the listener at {self._address} is closed")
            try:
                sock, peer = self._sock.accept()
            except BlockingIOError:
                await self._wait()
            except OSError as cause:
                if cause.errno in _EXHAUSTED:
                    await self._back_off(cause)
                elif cause.errno in _LISTENER_BROKEN:
                    raise ConnectionLost(
                        f"the listener at {self._address} broke: {_reason(cause)}"
                    ) from cause
                else:
                    await checkpoint()  # The connection died in the backlog.
            else:
                self._is_exhausted = False
                if _has_left(sock):
                    sock.close()
                    await checkpoint()
                    continue
                try:
                    self._network._configure(sock)
                    return TcpStream(sock, _format_address(peer))
                except OSError:
                    sock.close()  # The peer reset the connection between the two calls.

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        _close_socket(self._sock)

    async def _wait(self) -> None:
        try:
            await wait_readable(self._fd)
        except trio.ClosedResourceError as cause:
            raise ConnectionLost(f"the listener at {self._address} is closed") from cause
        except OSError as cause:
            raise ConnectionLost(f"the listener at {self._address} broke: {_reason(cause)}") from cause

    async def _back_off(self, cause: OSError) -> None:
        if not self._is_exhausted:
            self._is_exhausted = True
            logger.warning("cannot accept connections at %s for now: %s", self._address, _reason(cause))
        with trio.move_on_after(_ACCEPT_BACK_OFF_S):
            await self._closed.wait()


def end_if_unread(sock: socket.socket, after_s: float) -> None:
    """Have the kernel end a connection if the peer takes no bytes for ``after_s`` seconds.

    If you set this on a listening socket, its connections inherit it.
    """
    _set_option(sock, "TCP_USER_TIMEOUT", round(after_s * 1000))


def _set_option(sock: socket.socket, name: str, value: int) -> None:
    option = getattr(socket, name, None)  # Some platforms lack some options.
    if option is not None:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _has_left(sock: socket.socket) -> bool:
    """Return whether the peer of a new connection is gone without having sent anything."""
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True  # The peer reset the connection.


def _granted_send_buffer() -> int:
    """Return the size of the send buffer to ask for; 0 if the kernel should choose.

    If you ask for a size, the kernel no longer adapts the buffer. So ask only if the kernel grants the size
    (its bound is net.core.wmem_max). Linux then reports twice the size."""
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        if probe.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= _SEND_BUFFER_BYTES:
            return _SEND_BUFFER_BYTES
    return 0


def _is_exhaustion(error: BaseException) -> bool:
    """Return whether a socket could not be opened for lack of descriptors. In this case the other end may be
    well."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return True
    if isinstance(error.__cause__, BaseExceptionGroup):
        return any(map(_is_exhaustion, error.__cause__.exceptions))
    return error.__cause__ is not None and _is_exhaustion(error.__cause__)


def _close_socket(sock: socket.socket) -> None:
    notify_closing(sock)
    with contextlib.suppress(OSError):
        # Linux closes the descriptor even if close reports an earlier failure of the connection.
        sock.close()


def _format_address(sockaddr: tuple[Any, ...]) -> str:
    host, port = sockaddr[0], sockaddr[1]
    if len(sockaddr) == 2:
        return f"{host}:{port}"
    scope = f"%{sockaddr[3]}" if sockaddr[3] and "%" not in host else ""
    return f"[{host}{scope}]:{port}"


def _reason(error: BaseException) -> str:
    """Return the innermost reason in words. trio wraps the failures of several addresses in a group."""
    if isinstance(error.__cause__, OSError):
        return _reason(error.__cause__)
    if isinstance(error.__cause__, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_reason(each) for each in error.__cause__.exceptions))
    strerror = getattr(error, "strerror", None)
    return str(strerror or error or type(error).__name__)
