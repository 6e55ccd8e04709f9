"""The network capability (``net.transport``) inside one process: bytes in bounded buffers between tasks.

It carries the same bytes as TCP and makes the same promises, without sockets, threads, clocks or random
choices. Only the event loop decides which task runs next. So under a deterministic event loop, a program
repeats exactly. Embedded clusters and tests use this network.

A connection is two pipes, one for each direction. A pipe holds at most ``buffer_bytes``. If a pipe is full,
the sender has sent a part of its bytes and waits for room, as with TCP. ``bytes`` objects are passed on as
they are. Other buffers are copied on sending, because their owner may change them afterwards.

**Closing** follows TCP. The other end can still read the bytes that the closing end sent before, and then
receives 0. Bytes that the closing end has not read are lost. The other end's sends raise ConnectionLost at
once, while TCP may still accept some. Every task inside a method of the closed end gets ConnectionLost. If
you close a listener, the connections that were not accepted yet are closed too.

**Addresses** are any text without blanks. If the address of a listener ends in ``:0``, the 0 is replaced by a
unique number, as with port 0 of TCP.

A receive or send that need not wait only checks for cancellation. After a number of bytes or calls
(``net.turns``), it lets other tasks run, as over TCP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from trio.lowlevel import ParkingLot, checkpoint

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import MIB
from ledgerlog.model.principal import Principal
from ledgerlog.net.transport import Buffer, ConnectionLost, Listener, Stream
from ledgerlog.net.turns import Turns, send_all_of

__all__ = ["LocalNetwork"]

_BACKLOG = 1024
"""How many connections may wait to be accepted by one listener. More are refused."""

_FIRST_FREE_PORT = 49152


class LocalNetwork:
    """A network of its own: both ends of a connection must use this object."""

    def __init__(self, *, buffer_bytes: int = MIB) -> None:
        assert buffer_bytes > 0
        self._buffer_bytes = buffer_bytes
        self._listeners: dict[str, _LocalListener] = {}
        self._next_port = _FIRST_FREE_PORT
        self._next_client = 1

    async def connect(self, address: str, *, principal: Principal | None = None) -> Stream:
        """Open a stream to a listener.

        Args:
            address: The listener's address.
            principal: The listener treats the client as this principal, without a proof. This is for tests.

        Raises:
            ConnectionLost: No listener has the address, or too many connections wait there.
            InvalidArgument: The address is malformed.
        """
        _check_address(address)
        await checkpoint()
        listener = self._listeners.get(address)
        if listener is None:
            raise ConnectionLost(f"cannot connect to {address}: nothing listens there")
        if len(listener.waiting) >= _BACKLOG:
            raise ConnectionLost(f"cannot connect to {address}: too many connections wait there")
        there, back = _Pipe(self._buffer_bytes), _Pipe(self._buffer_bytes)
        client = f"client:{self._next_client}"
        self._next_client += 1
        listener.waiting.append(_LocalStream(client, incoming=there, outgoing=back, principal=principal))
        listener.lot.unpark()
        return _LocalStream(address, incoming=back, outgoing=there)

    async def listen(self, address: str) -> Listener:
        """Listen at an address.

        Raises:
            ConnectionLost: The address is taken.
            InvalidArgument: The address is malformed.
        """
        _check_address(address)
        await checkpoint()
        if address.endswith(":0"):
            address = f"{address[:-1]}{self._next_port}"
            self._next_port += 1
        if address in self._listeners:
            raise ConnectionLost(f"cannot listen at {address}: the address is taken")
        listener = self._listeners[address] = _LocalListener(self._listeners, address)
        return listener


def _check_address(address: str) -> None:
    if not address or not address.isprintable() or any(character.isspace() for character in address):
        raise InvalidArgument(f"{address!r} is not an address: an address is text without blanks")


class _Pipe:
    """One direction of a connection."""

    __slots__ = ("bound", "buffered", "chunks", "is_broken", "is_finished", "offset", "readers", "writers")

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.chunks: deque[bytes] = deque()
        self.offset = 0  # of the first unread byte in the first chunk
        self.buffered = 0  # unread bytes; never more than the bound
        self.is_finished = False  # the sending end is closed: nothing follows the buffered bytes
        self.is_broken = False  # the receiving end is closed
        self.readers = ParkingLot()
        self.writers = ParkingLot()

    def put(self, buffers: Sequence[Buffer]) -> int:
        """Take bytes until the pipe is full. Return how many were taken."""
        room = before = self.bound - self.buffered
        for buffer in buffers:
            if not room:
                break
            size = len(buffer)
            if size > room:
                buffer = memoryview(buffer)[:room]
                size = room
            if size:
                self.chunks.append(buffer if type(buffer) is bytes else bytes(buffer))
                room -= size
        taken = before - room
        if taken:
            self.buffered += taken
            self.readers.unpark_all()
        return taken

    def take_into(self, buffer: memoryview) -> int:
        """Move bytes to the front of ``buffer``. Return how many were moved."""
        filled, size = 0, len(buffer)
        chunks = self.chunks
        while chunks and filled < size:
            chunk = chunks[0]
            count = min(len(chunk) - self.offset, size - filled)
            buffer[filled : filled + count] = memoryview(chunk)[self.offset : self.offset + count]
            filled += count
            self.offset += count
            if self.offset == len(chunk):
                chunks.popleft()
                self.offset = 0
        if filled:
            self.buffered -= filled
            self.writers.unpark_all()
        return filled

    def finish(self) -> None:
        self.is_finished = True
        self._wake()

    def break_off(self) -> None:
        self.is_broken = True
        self.chunks.clear()
        self.offset = self.buffered = 0
        self._wake()

    def _wake(self) -> None:
        self.readers.unpark_all()
        self.writers.unpark_all()


class _LocalStream:
    """One end of a connection; see ``transport.Stream``."""

    __slots__ = ("_incoming", "_is_closed", "_outgoing", "_peer", "_principal", "_turns")

    def __init__(
        self, peer: str, *, incoming: _Pipe, outgoing: _Pipe, principal: Principal | None = None
    ) -> None:
        self._peer = peer
        self._principal = principal
        self._incoming = incoming
        self._outgoing = outgoing
        self._is_closed = False
        self._turns = Turns()

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def principal(self) -> Principal | None:
        return self._principal

    async def receive_into(self, buffer: memoryview) -> int:
        assert len(buffer), "there is no room to receive into"
        await self._turns.take()
        pipe = self._incoming
        while True:
            if self._is_closed:
                raise ConnectionLost(f"the connection with {self._peer} is closed")
            if pipe.buffered:
                received = pipe.take_into(buffer)
                self._turns.spend_copied(received)
                return received
            if pipe.is_finished:
                return 0
            await pipe.readers.park()

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        if self._is_closed:
            raise ConnectionLost(f"the connection with {self._peer} is closed")
        if self._outgoing.is_broken:
            raise ConnectionLost(f"the connection with {self._peer} broke: it was closed there")
        return self._outgoing.put(buffers)

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        await send_all_of(self, buffers, self._turns, self._outgoing.writers.park)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._outgoing.finish()
        self._incoming.break_off()


class _LocalListener:
    """See ``transport.Listener``."""

    __slots__ = ("_address", "_is_closed", "_listeners", "lot", "waiting")

    def __init__(self, listeners: dict[str, _LocalListener], address: str) -> None:
        self._listeners = listeners
        self._address = address
        self._is_closed = False
        self.waiting: deque[_LocalStream] = deque()
        self.lot = ParkingLot()

    @property
    def address(self) -> str:
        return self._address

    async def accept(self) -> Stream:
        await checkpoint()
        while True:
            if self._is_closed:
                raise ConnectionLost(f"the listener at {self._address} is closed")
            if self.waiting:
                return self.waiting.popleft()
            await self.lot.park()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        del self._listeners[self._address]
        while self.waiting:
            self.waiting.popleft().close()
        self.lot.unpark_all()
