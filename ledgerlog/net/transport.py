"""The network capability: reliable byte streams between a client and a bookie.

``net.tcp`` implements it over TCP. An in-process network (``net.local``) carries the same bytes between
tasks of one process. A simulated network draws delays and losses from a seed. Code above uses only the
three protocols ``Stream``, ``Listener`` and ``Network``. Addresses are text: ``host:port`` for TCP, any
name for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ledgerlog.errors import LedgerLogError
from ledgerlog.model.principal import Principal

Buffer = bytes | bytearray | memoryview
"""A bytes-like object. A view has one dimension of format ``B``, so ``len`` counts bytes."""


def buffers_bytes(buffers: Sequence[Buffer]) -> int:
    """Count the bytes in some buffers."""
    return sum(map(len, buffers))


def unsent(buffers: Sequence[Buffer], sent: int) -> list[Buffer]:
    """Return the rest of ``buffers`` after their first ``sent`` bytes."""
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *buffers[index + 1 :]]
        sent -= len(buffer)
    assert not sent
    return []


class ConnectionLost(LedgerLogError):
    """The stream broke, or either side closed it. The last bytes sent may or may not have arrived."""


class Stream(Protocol):
    """One connection. At most one task may receive, and at most one may send, at a time."""

    @property
    def peer(self) -> str:
        """The other end's address, for messages."""
        ...

    @property
    def principal(self) -> Principal | None:
        """The principal that the transport itself has proved the peer to be, by a certificate.

        None if the transport proves nothing (plain TCP, streams inside one process), or if nothing was
        received or sent yet."""
        ...

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at least one byte into the front of ``buffer``.

        Returns:
            How many bytes were received; 0 if the peer has finished sending.

        Raises:
            ConnectionLost: The stream is broken or closed.
            Unauthenticated: One end refused the other's proof of who it is. This is raised only before the
                first byte was received.

        Cancelling: loses no bytes.
        """
        ...

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        """Send as much of ``buffers`` as possible without waiting.

        Never call it while another task is inside ``send_all``. If some bytes were not sent, begin the next
        call of either method with exactly these bytes: a stream that encrypts may have encrypted them
        already. A new stream may take nothing before ``send_all`` or ``receive_into`` has returned once.

        Returns:
            How many bytes were sent, possibly 0.

        Raises:
            ConnectionLost: The stream is broken or closed.
        """
        ...

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """Send everything, waiting as needed.

        Raises:
            ConnectionLost: The stream is broken or closed. The bytes may or may not have arrived.
            Unauthenticated: As for ``receive_into``.

        Cancelling: an unknown part was sent; close the stream.
        """
        ...

    def close(self) -> None:
        """Close the connection at once; closing again is harmless.

        Tasks inside this stream's methods get ConnectionLost."""
        ...


class Listener(Protocol):
    """Accepts connections at one address."""

    @property
    def address(self) -> str:
        """The address of the listener, with the port that was really bound."""
        ...

    async def accept(self) -> Stream:
        """Wait for the next connection and return it. Raise ConnectionLost once the listener is closed."""
        ...

    def close(self) -> None: ...


class Network(Protocol):
    """Opens streams and listeners."""

    async def connect(self, address: str) -> Stream:
        """Open a stream to a listener, without a deadline of its own. Raise ConnectionLost if that fails."""
        ...

    async def listen(self, address: str) -> Listener:
        """Listen at an address; port 0 means any free port.

        Raises:
            InvalidArgument: The address is malformed.
            ConnectionLost: The address is taken.
        """
        ...
