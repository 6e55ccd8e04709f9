"""A network in memory whose links can stall and break, for tests with an event loop of their own.

``FaultyNetwork`` carries bytes with ``ledgerlog.net.local``. It knows which hosts talk to each other, because
every client and every bookie has a view of its own (``network.at``). A link is an ordered pair of hosts.

* ``stall``: the link carries nothing and reports nothing, as if its cable were unplugged. If an end sends or
  closes meanwhile, the other end learns it only after the link is healed.
* ``cut``: the connections break, and new ones are refused.
* ``reset``: the connections break once.
* ``heal``: ends all of these.

Nothing takes time here. If you need latency, bandwidth or random choices, use ``simulate``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import attrs
import trio

from ledgerlog.model.principal import Principal
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.transport import Buffer, ConnectionLost, Listener, Stream
from ledgerlog.testing.network import EVERYBODY

__all__ = ["FaultyNetwork"]

T = TypeVar("T")


@attrs.define(eq=False)
class _Link:
    """One direction between two hosts."""

    is_stalled: bool = False
    is_cut: bool = False
    changed: trio.Event = attrs.Factory(trio.Event)

    def change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def wait_clear(self) -> None:
        while self.is_stalled:
            await self.changed.wait()


class FaultyNetwork:
    """The network of all hosts. ``at(host)`` is one host's ``Network``. Addresses are names of hosts.

    ``stall``, ``cut`` and ``heal`` also accept EVERYBODY in place of a host.
    """

    def __init__(self) -> None:
        self._local = LocalNetwork()
        self._links: dict[tuple[str, str], _Link] = {}
        self._streams: dict[_FaultyStream, None] = {}
        self.hosts: dict[str, None] = {}
        self.connects = 0
        self.principals: dict[str, Principal] = {}
        """For each host, the principal that bookies see in its connections. A host that is not here has no
        principal, as in an open cluster."""

    def at(self, host: str) -> FaultyHostNetwork:
        """Return the network as this host sees it, and add the host if it is new."""
        self.hosts[host] = None
        return FaultyHostNetwork(self, host)

    def link(self, source: str, target: str) -> _Link:
        """Return the link from ``source`` to ``target``."""
        return self._links.setdefault((source, target), _Link())

    def _chosen(self, source: str, target: str, both: bool) -> list[tuple[str, str]]:
        sources = [source] if source != EVERYBODY else list(self.hosts)
        targets = [target] if target != EVERYBODY else list(self.hosts)
        pairs = [(a, b) for a in sources for b in targets if a != b]
        return pairs + [(b, a) for a, b in pairs] if both else pairs

    def stall(self, source: str, target: str, *, both: bool = True) -> None:
        """Carry nothing from ``source`` to ``target``, and nothing back if ``both``. Report nothing."""
        for pair in self._chosen(source, target, both):
            self.link(*pair).is_stalled = True

    def cut(self, source: str, target: str) -> None:
        """Break all connections between the two hosts, and refuse new ones until ``heal``."""
        for a, b in self._chosen(source, target, True):
            self.link(a, b).is_cut = True
            self.reset(a, b)

    def reset(self, source: str, target: str) -> None:
        """Break all connections between the two hosts once."""
        for stream in list(self._streams):
            if {stream.host, stream.peer} == {source, target}:
                stream.reset()

    def heal(self, source: str = EVERYBODY, target: str = EVERYBODY) -> None:
        """End all faults between the two hosts; by default between all hosts."""
        for pair in self._chosen(source, target, True):
            link = self.link(*pair)
            link.is_stalled = link.is_cut = False
            link.change()
        for stream in list(self._streams):
            stream.on_healed()


@attrs.frozen
class FaultyHostNetwork:
    """The network as one host sees it (``transport.Network``)."""

    _network: FaultyNetwork
    host: str

    async def connect(self, address: str) -> Stream:
        network = self._network
        there, back = network.link(self.host, address), network.link(address, self.host)
        network.connects += 1
        await there.wait_clear()
        await back.wait_clear()

        def is_cut() -> bool:
            return there.is_cut or back.is_cut

        lost = ConnectionLost(f"cannot connect to {address}: the link is cut")
        if is_cut():
            await trio.lowlevel.checkpoint()
            raise lost
        inner = await network._local.connect(address, principal=network.principals.get(self.host))
        if is_cut():  # Meanwhile.
            inner.close()
            raise lost
        stream = _FaultyStream(inner, network, self.host, address, there=there, back=back)
        network._streams[stream] = None
        return stream

    async def listen(self, address: str) -> Listener:
        return await self._network._local.listen(address)


class _FaultyStream:
    """The connecting end of a connection. It delays both directions."""

    def __init__(
        self, inner: Stream, network: FaultyNetwork, host: str, peer: str, *, there: _Link, back: _Link
    ) -> None:
        self._inner = inner
        self._network = network
        self.host = host
        self.peer = peer
        self._there = there
        self._back = back
        self._held = b""  # bytes that arrived just before the link stalled
        self._is_closed = False
        self._waiting: dict[trio.CancelScope, None] = {}

    @property
    def principal(self) -> Principal | None:
        return self._inner.principal

    async def _unless_closed(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Await ``wait()``. Raise ConnectionLost if this end is closed meanwhile."""
        self._check()
        with trio.CancelScope() as waiting:
            self._waiting[waiting] = None
            try:
                return await wait()
            finally:
                del self._waiting[waiting]
        raise ConnectionLost(f"the connection with {self.peer} is closed")

    def _check(self) -> None:
        if self._is_closed:
            raise ConnectionLost(f"the connection with {self.peer} is closed")

    async def receive_into(self, buffer: memoryview) -> int:
        back = self._back
        while not self._held:
            await self._unless_closed(back.wait_clear)
            count = await self._unless_closed(lambda: self._inner.receive_into(buffer))
            if not back.is_stalled:
                return count
            if not count:
                await self._unless_closed(back.wait_clear)
                return 0
            self._held = bytes(buffer[:count])
        await self._unless_closed(back.wait_clear)
        count = min(len(self._held), len(buffer))
        buffer[:count] = self._held[:count]
        self._held = self._held[count:]
        return count

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        self._check()
        if self._there.is_stalled:
            return 0  # As if the socket's buffer were full.
        return self._inner.send_nowait(buffers)

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        await self._unless_closed(self._there.wait_clear)
        await self._unless_closed(lambda: self._inner.send_all(buffers))

    def close(self) -> None:
        self._is_closed = True
        for waiting in list(self._waiting):
            waiting.cancel()
        self.on_healed()

    def reset(self) -> None:
        """Break the connection for both ends."""
        self._network._streams.pop(self, None)
        self._inner.close()

    def on_healed(self) -> None:
        """If this end is closed, tell the other end, unless the link is still stalled."""
        if self._is_closed and not (self._there.is_stalled or self._back.is_stalled):
            self.reset()
