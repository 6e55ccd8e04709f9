"""Helpers for tests of connections: a bookie that a test controls, and a sink that records its calls.

``ScriptedBookie`` is a real server over any network, built on the wire module: it accepts, shakes hands and
counts adds as a bookie does. The test then decides what it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import trio

from ledgerlog.errors import BookieUnavailable
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId
from ledgerlog.net.connection import BookieConnection
from ledgerlog.net.pool import ConnectionPool, open_pool
from ledgerlog.net.transport import Buffer, ConnectionLost, Listener, Network, Stream
from ledgerlog.wire.entries import Entries, decode_entries_untrusted, encode_add, encode_lac
from ledgerlog.wire.frame import NO_KEY, REPLY, Frame, FrameBuffer, Kind, Status, encode_head
from ledgerlog.wire.hello import Hello, decode_hello_untrusted, encode_hello_reply

ME = Hello(bookie_id="b1", instance="instance-1")


class Peer:
    """The bookie's end of one connection."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.hello: Hello | None = None
        self.buffer = FrameBuffer()
        self.frames: list[Frame] = []
        self.adds = 0

    async def next_frame(self) -> Frame:
        """Return a copy of the next frame. ConnectionLost: the stream has ended."""
        while not self.frames:
            received = await self.stream.receive_into(self.buffer.writable())
            if not received:
                raise ConnectionLost("the client closed the connection")
            self.buffer.received(received)
            for frame in self.buffer.take_frames():
                self.frames.append(Frame(frame.header, memoryview(bytes(frame.raw))))
        frame = self.frames.pop(0)
        self.adds += frame.header.kind == Kind.ADD
        return frame

    async def next_adds(self, count: int) -> list[Entries]:
        """The entries of the next ``count`` frames, which must be adds."""
        taken = []
        for _ in range(count):
            frame = await self.next_frame()
            assert frame.header.kind == Kind.ADD
            taken.append(decode_entries_untrusted(frame))
        return taken

    async def wait_lost(self) -> None:
        """Read until the client closes."""
        try:
            while True:
                await self.next_frame()
        except ConnectionLost:
            pass

    async def send(self, *frames: Buffer) -> None:
        await self.stream.send_all(frames)

    async def acknowledge(self, through: int | None = None) -> None:
        await self.send(acknowledgement(self.adds if through is None else through))

    async def refuse(self, number: int, status: Status = Status.FENCED) -> None:
        await self.send(refusal(number, status))

    async def reply(self, request: Frame, **fields: Any) -> None:
        header = request.header
        defaults = {"request": header.request, "ledger_id": header.ledger_id}
        await self.send(encode_head(header.kind | REPLY, **{**defaults, **fields}))

    async def shake_hands(self, status: Status = Status.OK, me: Hello = ME) -> None:
        self.hello = decode_hello_untrusted(await self.next_frame())
        await self.send(encode_hello_reply(status, me))

    def close(self) -> None:
        self.stream.close()


class ScriptedBookie:
    """Listens; the test takes each connection with ``accept`` (bare) or ``next`` (after the handshake)."""

    def __init__(self, network: Network, listener: Listener) -> None:
        self.network = network
        self.listener = listener
        self.info = BookieInfo(bookie_id="b1", address=listener.address, instance="instance-1")
        self.peers: list[Peer] = []
        self.resolved = 0
        self.registered = True

    @property
    def address(self) -> str:
        return self.info.address

    async def resolve(self, bookie_id: BookieId) -> BookieInfo:
        self.resolved += 1
        if not self.registered or bookie_id != self.info.bookie_id:
            raise BookieUnavailable(f"bookie {bookie_id} is not registered")
        return self.info

    async def accept(self) -> Peer:
        peer = Peer(await self.listener.accept())
        self.peers.append(peer)
        return peer

    async def next(self, me: Hello = ME) -> Peer:
        peer = await self.accept()
        await peer.shake_hands(me=me)
        return peer

    def close(self) -> None:
        self.listener.close()
        for peer in self.peers:
            peer.close()


def acknowledgement(through: int) -> bytes:
    return encode_head(Kind.ADD | REPLY, request=through)


def refusal(number: int, status: Status = Status.FENCED) -> bytes:
    return encode_head(Kind.REFUSED, request=number, status=status)


def add_frame(first: int, count: int = 1, *, size: int = 10, ledger_id: int = 7) -> Sequence[Buffer]:
    """An ADD of ``count`` entries from ``first`` on. If ``count`` is 0, it only tells a LAC."""
    if not count:
        return encode_lac(ledger_id, lac=first, lafr=-1, key=NO_KEY)
    payloads = [entry.to_bytes(8, "big").ljust(size, b"p") for entry in range(first, first + count)]
    return encode_add(Entries.build(ledger_id, first, payloads), lac=-1, lafr=-1, key=NO_KEY, recovery=False)


class RecordingSink:
    """Records its calls as tuples, and lets the test wait for them."""

    def __init__(self, act: Callable[[RecordingSink], None] | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.act = act
        self._changed = trio.Event()

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        self._changed.set()

    def on_add_ok(self, bookie_id: BookieId, first: int, last: int) -> None:
        self._note("ok", first, last)

    def on_add_refused(self, bookie_id: BookieId, first: int, last: int, status: Status) -> None:
        self._note("refused", first, last, status)

    def on_bookie_lost(self, bookie_id: BookieId, why: str) -> None:
        self._note("lost", why)

    def on_bookie_connected(self, bookie_id: BookieId) -> None:
        self._note("connected")

    def on_batch_end(self) -> None:
        self._note("end")
        if self.act is not None:
            self.act(self)

    def count(self, kind: str) -> int:
        return sum(call[0] == kind for call in self.calls)

    async def until(self, kind: str, times: int = 1) -> None:
        """Wait for ``times`` calls of the kind, and for the end of the burst after them."""
        while self.count(kind) < times or self.calls[-1] != ("end",):
            self._changed = trio.Event()
            await self._changed.wait()

    def take(self) -> list[tuple[Any, ...]]:
        calls, self.calls = self.calls, []
        return calls


class Scene:
    """One bookie, one pool, its connection."""

    def __init__(self, bookie: ScriptedBookie, pool: ConnectionPool) -> None:
        self.bookie = bookie
        self.pool = pool
        self.connection: BookieConnection = pool.connection("b1")

    async def connected_sink(self, sink: RecordingSink | None = None) -> tuple[RecordingSink, Peer]:
        """Attach a sink and bring the connection up."""
        sink = sink or RecordingSink()
        self.connection.attach(sink)
        peer = await self.bookie.next()
        await sink.until("connected")
        sink.take()
        return sink, peer

    def send(self, sink: RecordingSink, first: int, count: int = 1, **options: Any) -> None:
        last = first + count - 1
        self.connection.send_add(add_frame(first, count, **options), sink, first, last)


@asynccontextmanager
async def opened_scene(network: Network, address: str, *, seed: int = 1) -> AsyncIterator[Scene]:
    bookie = ScriptedBookie(network, await network.listen(address))
    try:
        async with open_pool(network, bookie.resolve, rng=Random(seed)) as pool:
            yield Scene(bookie, pool)
    finally:
        bookie.close()
