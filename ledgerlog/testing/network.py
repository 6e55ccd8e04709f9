"""A network of streams under simulated time. It does everything that TCP may do, and a seed decides.

Every process is a host with its own ``Network``, so the network knows both ends of each connection. A *link*
is an ordered pair of hosts. Each direction has its own state:

* **latency**: uniform between two bounds, with a longer tail now and then; ``slow`` multiplies it.
* **clogged**: the link carries only a limited number of bytes a second.
* **damaged**: a bit of some sends is flipped on the way, as a bad network card does it behind the checksums
  of TCP. The receiver must notice that.
* **blocked**: nothing arrives, and neither end learns that. The sender's kernel keeps the data and tries
  again, so the data arrives after the link is healed. If you block only one direction, that is a one-way
  partition.
* **reset**: the connections between two hosts break, and data in flight is lost. Both ends learn that, or
  only one end does. Then the other end is half open: it learns of the break when it sends something.

A connection has two *channels*. Each channel keeps the order of its data; there is no order between
connections. Data travels in pieces, cut where the seed decides. A channel holds at most ``buffer_bytes`` of
data that is in flight or unread. If the channel is full, the sender waits with the rest of the data.

**Ends of processes.** If a process is killed, its kernel closes its connections. The peer receives the data
that was sent before, and then the end or a reset. If the machine of a process loses power, the peers do not
learn that: their ends are half open, and the data that they send is kept. Once the machine is up again, it
answers the data with a reset.

**Pieces and tokens.** Each piece in flight has an entry in its channel's queue and one timer. The timer does
not name the piece: it delivers the first piece in the queue. So if a link was blocked and is healed, pieces
that waited and later pieces cannot overtake each other. If a timer finds the link blocked, the network counts
the timer as *stalled*, and ``heal`` sets the timer again.

Closing and ConnectionLost are as in ``net.transport``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import attrs
import trio
from trio.lowlevel import ParkingLot

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import KIB
from ledgerlog.model.principal import Principal
from ledgerlog.net.transport import Buffer, ConnectionLost, Listener, Stream
from ledgerlog.net.turns import Turns, send_all_of
from ledgerlog.testing.deterministic import Simulation
from ledgerlog.testing.links import Link, LinkQuality
from ledgerlog.testing.process import Incarnation
from ledgerlog.testing.wiretap import Observer, Tap, TappedConnection

__all__ = ["EVERYBODY", "SimNetwork"]

EVERYBODY = "*"
"""All hosts. Pass it to a fault in place of a host's name."""

_BACKLOG = 1024
_FIRST_FREE_PORT = 49152
Piece = bytes | None
"""Bytes. Empty bytes are the end of the data. None is a reset."""

_FIN: Piece = b""
_RESET: Piece = None


class SimNetwork:
    """The network of a simulated cluster. ``at`` returns one process's view of it."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        quality: LinkQuality | None = None,
        buffer_bytes: int = 256 * KIB,
        observer: Observer | None = None,
    ) -> None:
        self.simulation = simulation
        self.untapped: dict[str, None] = {}
        """Hosts whose own connections are not observed: hostile hosts, which also send bytes that do not form
        a frame."""
        self.observer = observer
        """Told of every frame on every connection."""
        self.quality = quality or LinkQuality()
        self.buffer_bytes = buffer_bytes
        self.random = simulation.random("network")
        self.resets = 0
        self.bytes_lost = 0
        self.bits_damaged = 0
        self._hosts: dict[str, None] = {}
        self._down: dict[str, None] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._owners: dict[str, str] = {}
        self._listeners: dict[str, _Listener] = {}
        self._ends: dict[_End, None] = {}
        self._changed = trio.Event()
        self._next_port = _FIRST_FREE_PORT
        self._next_connection = 1
        self._watchers: list[Callable[[], None]] = []

    def at(self, incarnation: Incarnation) -> HostNetwork:
        """Return the network as one life of a process sees it."""
        self.add_host(incarnation.process)
        return HostNetwork(self, incarnation)

    def add_host(self, host: str) -> None:
        """Add a host, so that EVERYBODY includes it."""
        self._hosts[host] = None

    # --- faults -------------------------------------------------------------------------------

    def link(self, source: str, target: str) -> Link:
        """Return the direction from one host to another, to read it or to make it slow or clogged."""
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(source, target)
        return link

    def links(self, a: str, b: str, *, one_way: bool = False) -> list[Link]:
        """Return all directions from ``a`` to ``b``, and back unless ``one_way``. Both may be EVERYBODY."""
        sources = list(self._hosts) if a == EVERYBODY else [a]
        targets = list(self._hosts) if b == EVERYBODY else [b]
        pairs = [(s, t) for s in sources for t in targets if s != t]
        if not one_way:
            pairs = list(dict.fromkeys(pairs + [(t, s) for s, t in pairs]))
        return [self.link(*pair) for pair in pairs]

    def block(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Let nothing through from ``a`` to ``b``, and nothing back unless ``one_way``. The two ends do not
        learn it."""
        for link in self.links(a, b, one_way=one_way):
            link.is_blocked = True
        self._on_change()

    def heal(self, a: str = EVERYBODY, b: str = EVERYBODY) -> None:
        """Let everything through again at full speed and undamaged; by default between all hosts."""
        for link in self.links(a, b):
            link.is_blocked, link.slow, link.bytes_per_s, link.damaged_share = False, 1.0, None, 0.0
        self._on_change()

    def reset(self, a: str, b: str, *, half: bool = False) -> int:
        """Break all connections between two hosts. Data in flight is lost.

        Args:
            a: The host of the ends that learn it now.
            b: The host of the other ends.
            half: The ends at ``b`` do not learn it now; they are half open.

        Returns:
            How many connections broke.
        """
        count = 0
        for end in [end for end in self._ends if (end.host, end.peer_host) == (a, b)]:
            count += 1
            end.outgoing.lose()
            end.other.outgoing.lose()
            end.break_off("it was reset")
            if not half:
                end.other.break_off("it was reset")
        self.resets += count
        return count

    def is_blocked(self, a: str, b: str) -> bool:
        """Whether no round trip between the two hosts is possible."""
        return self.link(a, b).is_blocked or self.link(b, a).is_blocked

    # --- hosts --------------------------------------------------------------------------------

    def on_process_end(self, incarnation: Incarnation, *, is_silent: bool) -> None:
        """A process has ended. ``is_silent``: its machine is down too, so the peers do not learn it."""
        host = incarnation.process
        for address, listener in list(self._listeners.items()):
            if listener.incarnation is incarnation:
                del self._listeners[address]
                listener.close()
        for end in [end for end in self._ends if end.incarnation is incarnation]:
            end.die(is_silent=is_silent)
        if is_silent:
            self._down[host] = None

    def on_process_start(self, host: str) -> None:
        """The machine is up again."""
        if host in self._down:
            del self._down[host]
            self._on_change()

    def on_resume(self) -> None:
        """A paused process continues."""
        self._on_change()

    def is_down(self, host: str) -> bool:
        return host in self._down

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher()`` after each change of links or hosts."""
        self._watchers.append(watcher)

    def _on_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        for end in list(self._ends):
            end.outgoing.go_on()
        for watcher in self._watchers:
            watcher()

    # --- travelling ---------------------------------------------------------------------------

    def latency(self, link: Link, size: int) -> float:
        """Draw the travel time of a piece, in seconds."""
        quality, random = self.quality, self.random
        low, high = quality.latency_s
        seconds = low + (high - low) * random.random()
        if random.random() < quality.tail_share:
            seconds += random.random() * quality.tail_s
        seconds *= link.slow
        if link.bytes_per_s is not None:
            seconds += size / link.bytes_per_s
        return seconds

    async def travel(
        self, incarnation: Incarnation, source: str, target: str, *, until: float = math.inf
    ) -> bool:
        """Wait as long as a small message travels, and as long as the link is blocked or the target is down.

        The message belongs to a process, which may die or be cancelled meanwhile.

        Args:
            incarnation: The life of that process.
            source: The host that the message comes from.
            target: The host that it goes to.
            until: The simulated time at which to stop waiting.

        Returns:
            Whether the message has arrived.
        """
        link, simulation = self.link(source, target), self.simulation
        while True:
            arrival = simulation.now + self.latency(link, 64)
            await incarnation.wait_until(min(arrival, until))
            if incarnation.is_paused:
                with trio.move_on_at(until):
                    await incarnation.wait_running()
            if simulation.now >= until:
                return False
            if not link.is_blocked and target not in self._down:
                return True
            with trio.move_on_at(until):
                await self._changed.wait()
            if simulation.now >= until:
                return False

    # --- for processes ------------------------------------------------------------------------

    async def _connect(self, incarnation: Incarnation, address: str) -> Stream:
        _check_address(address)
        incarnation.enter_door()
        host = incarnation.process
        target = self._owners.get(address) or address.partition(":")[0]
        await self.travel(incarnation, host, target)
        listener = self._listeners.get(address)
        refusal = None
        if listener is None:
            refusal = "nothing listens there"
        elif len(listener.waiting) >= _BACKLOG:
            refusal = "too many connections wait there"
        if listener is None or refusal is not None:
            await self.travel(incarnation, target, host)
            raise ConnectionLost(f"cannot connect to {address}: {refusal}")
        number, self._next_connection = self._next_connection, self._next_connection + 1
        there, back = _Channel(self, host, target), _Channel(self, target, host)
        # A process that listens at another name than its own serves no frames, but heartbeats of an
        # election.
        is_bookie = address.partition(":")[0] == listener.incarnation.process
        if self.observer is not None and is_bookie and host not in self.untapped:
            conversation = TappedConnection(incarnation, listener.incarnation, number)
            there.tap = Tap(self.observer, conversation, is_reply=False)
            back.tap = Tap(self.observer, conversation, is_reply=True)
        mine = _End(incarnation, target, address, number, incoming=back, outgoing=there)
        theirs = _End(listener.incarnation, host, f"{host}#{number}", number, incoming=there, outgoing=back)
        mine.other, theirs.other = theirs, mine
        self._ends[mine] = self._ends[theirs] = None
        self.simulation.event("connect", host, target, number)
        listener.waiting.append(theirs)
        listener.lot.unpark()
        try:
            await self.travel(incarnation, target, host)
        except BaseException:
            mine.close()
            raise
        return mine

    async def _listen(self, incarnation: Incarnation, address: str) -> Listener:
        _check_address(address)
        incarnation.enter_door()
        await trio.lowlevel.checkpoint()
        if address.endswith(":0"):
            address = f"{address[:-1]}{self._next_port}"
            self._next_port += 1
        if address in self._listeners:
            raise ConnectionLost(f"cannot listen at {address}: the address is taken")
        listener = self._listeners[address] = _Listener(self, incarnation, address)
        self._owners[address] = incarnation.process
        return listener


@attrs.frozen
class HostNetwork:
    """The network as one process sees it (``transport.Network``)."""

    _network: SimNetwork
    _incarnation: Incarnation

    async def connect(self, address: str) -> Stream:
        """Connect as ``transport.Network`` says. It hangs while the link is blocked: use a deadline."""
        return await self._network._connect(self._incarnation, address)

    async def listen(self, address: str) -> Listener:
        return await self._network._listen(self._incarnation, address)


def _check_address(address: str) -> None:
    if not address or not address.isprintable() or any(character.isspace() for character in address):
        raise InvalidArgument(f"{address!r} is not an address: an address is text without blanks")


class _Channel:
    """One direction of a connection."""

    __slots__ = (
        "chunks",
        "in_flight",
        "is_finished",
        "last_arrival",
        "link",
        "network",
        "offset",
        "queue",
        "readers",
        "receiver",
        "sender",
        "stalled",
        "tap",
        "unread",
        "writers",
    )

    receiver: _End
    sender: _End

    def __init__(self, network: SimNetwork, source: str, target: str) -> None:
        self.network = network
        self.link = network.link(source, target)
        self.queue: deque[Piece] = deque()  # in flight; each piece has a timer or counts as stalled
        self.stalled = 0
        self.in_flight = 0
        self.last_arrival = 0.0
        self.chunks: deque[bytes] = deque()  # arrived and not read
        self.offset = 0  # of the first unread byte in the first chunk
        self.unread = 0
        self.is_finished = False
        self.tap: Tap | None = None
        self.readers = ParkingLot()
        self.writers = ParkingLot()

    # --- the sender's side --------------------------------------------------------------------

    def put(self, buffers: Sequence[Buffer]) -> int:
        """Take bytes until the channel is full. Return the number of bytes taken."""
        network = self.network
        room = before = network.buffer_bytes - self.in_flight - self.unread
        taken: list[bytes] = []
        for buffer in buffers:
            if room <= 0:
                break
            if len(buffer) > room:
                buffer = memoryview(buffer)[:room]
            if len(buffer):
                taken.append(bytes(buffer))
                room -= len(buffer)
        if not taken:
            return 0
        data = sent = taken[0] if len(taken) == 1 else b"".join(taken)
        random = network.random
        if self.link.damaged_share and random.random() < self.link.damaged_share:
            data = self._damaged(data)
        if len(data) > 1 and random.random() < network.quality.cut_share:
            at = random.randrange(1, len(data))
            self._send(data[:at])
            self._send(data[at:])
        else:
            self._send(data)
        if self.tap is not None:
            self.tap.sent(sent)
        return before - room

    def _damaged(self, data: bytes) -> bytes:
        """Flip one bit."""
        network = self.network
        at, bit = network.random.randrange(len(data)), network.random.randrange(8)
        network.bits_damaged += 1
        network.simulation.event("bit flipped", self.link.source, self.link.target, at)
        if self.tap is not None:
            self.tap.damaged(at)
        return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]

    def put_control(self, piece: Piece) -> None:
        """Send the end of the data, or a reset."""
        self._send(piece)

    def _send(self, piece: Piece) -> None:
        self.queue.append(piece)
        self.in_flight += len(piece or b"")
        if self.sender.incarnation.is_paused:
            self.stalled += 1
        else:
            self._set_timer(len(piece or b""))

    def _set_timer(self, size: int) -> None:
        simulation = self.network.simulation
        arrival = max(self.last_arrival, simulation.now + self.network.latency(self.link, size))
        self.last_arrival = arrival
        simulation.at(arrival, self._arrive)

    def go_on(self) -> None:
        """Set the stalled pieces' timers again, if the link and the sender allow it."""
        if not self.stalled or self._is_blocked() or self.sender.incarnation.is_paused:
            return
        stalled, self.stalled = self.stalled, 0
        for _ in range(stalled):
            self._set_timer(0)

    def _is_blocked(self) -> bool:
        return self.link.is_blocked or self.network.is_down(self.link.target)

    # --- the receiver's side ------------------------------------------------------------------

    def _arrive(self) -> None:
        if not self.queue:
            return  # The pieces in flight were lost.
        if self._is_blocked():
            self.stalled += 1
            return
        piece = self.queue.popleft()
        receiver = self.receiver
        if piece is None:  # A reset.
            receiver.break_off("it was reset by the other end")
            return
        self.in_flight -= len(piece)
        if receiver.is_gone:
            # No process reads here. Answer data with a reset, but not the end of the data.
            if piece:
                self.network.bytes_lost += len(piece)
                if not self.sender.is_gone:
                    receiver.outgoing.put_control(_RESET)
            self.writers.unpark_all()
            return
        self.network.simulation.event("arrive", self.link.source, self.link.target, len(piece))
        if piece:
            self.chunks.append(piece)
            self.unread += len(piece)
        else:
            self.is_finished = True
        self.readers.unpark_all()

    def take_into(self, buffer: memoryview) -> int:
        """Move bytes that have arrived to the front of ``buffer``. Return the number of bytes moved."""
        size = min(len(buffer), self.unread)
        network = self.network
        if size > 1 and network.random.random() < network.quality.short_read_share:
            size = network.random.randrange(1, size)
        filled = 0
        chunks = self.chunks
        while filled < size:
            chunk = chunks[0]
            count = min(len(chunk) - self.offset, size - filled)
            buffer[filled : filled + count] = memoryview(chunk)[self.offset : self.offset + count]
            filled += count
            self.offset += count
            if self.offset == len(chunk):
                chunks.popleft()
                self.offset = 0
        self.unread -= filled
        self.writers.unpark_all()
        if self.tap is not None:
            self.tap.received(filled)
        return filled

    def lose(self) -> None:
        """Lose everything in flight."""
        self.network.bytes_lost += self.in_flight
        self.queue.clear()
        self.in_flight = self.stalled = 0
        self.writers.unpark_all()

    def discard(self) -> None:
        """Drop all data that has arrived and was not read."""
        self.chunks.clear()
        self.offset = self.unread = 0

    def wake(self) -> None:
        self.readers.unpark_all()
        self.writers.unpark_all()


class _End:
    """One end of a connection (``transport.Stream``)."""

    other: _End

    def __init__(
        self,
        incarnation: Incarnation,
        peer_host: str,
        peer: str,
        number: int,
        *,
        incoming: _Channel,
        outgoing: _Channel,
    ) -> None:
        self.incarnation = incarnation
        self.host = incarnation.process
        self.peer_host = peer_host
        self.number = number
        self.incoming = incoming
        self.outgoing = outgoing
        incoming.receiver = self
        outgoing.sender = self
        self._peer = peer
        self._is_closed = False
        self._broken: str | None = None
        self._turns = Turns()

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def principal(self) -> Principal | None:
        return None

    @property
    def is_gone(self) -> bool:
        """Whether no process will still read at this end."""
        return self._is_closed or self._broken is not None

    def _check(self) -> None:
        self.incarnation.check()
        if self._is_closed:
            raise ConnectionLost(f"the connection with {self._peer} is closed")

    async def receive_into(self, buffer: memoryview) -> int:
        assert len(buffer), "there is no room to receive into"
        await self._turns.take()
        incoming = self.incoming
        while True:
            self._check()
            if self.incarnation.is_paused:
                await self.incarnation.wait_running()
                continue
            if incoming.unread:
                received = incoming.take_into(buffer)
                self._turns.spend_copied(received)
                return received
            if self._broken is not None:
                raise ConnectionLost(f"the connection with {self._peer} broke: {self._broken}")
            if incoming.is_finished:
                return 0
            await incoming.readers.park()

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        self._check()
        if self._broken is not None:
            raise ConnectionLost(f"the connection with {self._peer} broke: {self._broken}")
        return self.outgoing.put(buffers)

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        await send_all_of(self, buffers, self._turns, self.outgoing.writers.park)

    def close(self) -> None:
        if self._is_closed or self.incarnation.is_dead:
            return
        self._shut(is_silent=False)

    # --- for the network ----------------------------------------------------------------------

    def die(self, *, is_silent: bool) -> None:
        """The end's process has ended."""
        if self._is_closed:
            return
        if is_silent:
            self.outgoing.lose()
        self._shut(is_silent=is_silent)

    def _shut(self, *, is_silent: bool) -> None:
        self._is_closed = True
        if not is_silent and self._broken is None:
            # As the kernel does: closing with unread data sends a reset.
            self.outgoing.put_control(_RESET if self.incoming.unread else _FIN)
        self.incoming.discard()
        self._wake()
        self._forget()

    def break_off(self, why: str) -> None:
        """Break this end of the connection, and let its process know."""
        if self._broken is not None or self._is_closed:
            return
        self._broken = why
        self.incoming.discard()
        self._wake()
        self._forget()

    def _wake(self) -> None:
        self.incoming.wake()
        self.outgoing.wake()

    def _forget(self) -> None:
        if self.other.is_gone:
            self.outgoing.network._ends.pop(self, None)
            self.outgoing.network._ends.pop(self.other, None)


class _Listener:
    """A listening address (``transport.Listener``)."""

    def __init__(self, network: SimNetwork, incarnation: Incarnation, address: str) -> None:
        self._network = network
        self._address = address
        self._is_closed = False
        self.incarnation = incarnation
        self.waiting: deque[_End] = deque()
        self.lot = ParkingLot()

    @property
    def address(self) -> str:
        return self._address

    async def accept(self) -> Stream:
        await trio.lowlevel.checkpoint()
        while True:
            await self.incarnation.wait_running()
            if self._is_closed:
                raise ConnectionLost(f"the listener at {self._address} is closed")
            if self.waiting:
                return self.waiting.popleft()
            await self.lot.park()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._network._listeners.get(self._address) is self:
            del self._network._listeners[self._address]
        while self.waiting:
            self.waiting.popleft().close()
        self.lot.unpark_all()
