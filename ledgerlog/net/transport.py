"""The network capability: reliable byte streams between a client and a bookie.

TCP implements it for real (``net.tcp``); an in-process network (``net.local``) carries the same bytes
between tasks of one process; a simulated one decides delays and losses by a seed. Code above sees
these three classes only. Addresses are text: ``host:port`` for TCP, any name for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ledgerlog.errors import LedgerLogError

Buffer = bytes | bytearray | memoryview
"""Memory of bytes; a view has one dimension of format ``B``, so that ``len`` counts bytes."""


def buffers_bytes(buffers: Sequence[Buffer]) -> int:
    """How many bytes there are in some buffers."""
    return sum(map(len, buffers))


def unsent(buffers: Sequence[Buffer], sent: int) -> list[Buffer]:
    """What is left of ``buffers`` once their first ``sent`` bytes have gone."""
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *buffers[index + 1 :]]
        sent -= len(buffer)
    assert not sent
    return []


class ConnectionLost(LedgerLogError):
    """The stream is broken or was closed by either side; what was sent last may or may not have arrived."""


class Stream(Protocol):
    """One connection. At most one task receives and at most one sends at a time."""

    @property
    def peer(self) -> str:
        """The other end's address, for messages."""
        ...

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at least one byte into the front of ``buffer``; how many. 0 when the peer has finished
        sending. Raises ConnectionLost. Cancelling loses nothing that was not reported."""
        ...

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        """Send as much of ``buffers`` as goes without waiting; how many bytes went, possibly 0.
        Raises ConnectionLost. Never call it while another task is inside ``send_all``."""
        ...

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """Send everything, waiting as needed. Raises ConnectionLost. After cancellation an unknown part
        was sent: close the stream."""
        ...

    def close(self) -> None:
        """Give the connection up at once; tasks inside its methods get ConnectionLost. Idempotent."""
        ...


class Listener(Protocol):
    @property
    def address(self) -> str:
        """Where it listens, with the port that was really bound."""
        ...

    async def accept(self) -> Stream:
        """The next connection. Raises ConnectionLost once the listener is closed."""
        ...

    def close(self) -> None: ...


class Network(Protocol):
    async def connect(self, address: str) -> Stream:
        """A stream to a listener. Raises ConnectionLost; the caller brings the deadline."""
        ...

    async def listen(self, address: str) -> Listener:
        """Listen at an address (port 0: any free one). InvalidArgument if it is malformed, ConnectionLost
        if it is taken."""
        ...
