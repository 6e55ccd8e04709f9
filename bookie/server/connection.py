"""One client's connection: frames in, verdicts and acknowledgements out.

Each connection has one task that receives, one task that sends (``outbox``), and one task for each request,
except adds, that the bookie works on (``requests``). The receiving task handles the adds itself, one chunk of
bytes at a time. It runs no checkpoint between an add and its verdict:

    chunk -> frames -> decode -> verify digests -> engine.add -> position or refusal
                                                                     |
    sync done -> on_durable -> one cumulative acknowledgement <- pending (position, number)

**Numbers.** Both ends count the ADDs of a connection from 1. An add does not carry its number, because the
same bytes go to every bookie of a write set. Every ADD that arrives whole has a number and one outcome: a
refusal, or an acknowledgement of this number or of a later one. ``_pending`` holds the adds under way as
(position, number, bytes): once the journal is durable up to this position, the adds up to this number are
durable. Adds with the same position share one item, so ``_pending`` has one item for each sync to wait for.
Some adds are durable at once: a duplicate, or an add that only brings the LAC. Their acknowledgement waits
for the earlier adds.

**Before HELLO** the bookie answers nothing and takes only one small frame (``limits.HELLO_BYTES_MAX``). If a
peer announces a larger frame, the bookie closes the connection at once. If a HELLO names another bookie, or
another instance of this bookie's data, the bookie answers with its own identity and closes the connection.
Without this check, a bookie whose disk was replaced could take an add of an old writer (protocol, bug #4812).

**The client's identity.** If a HELLO claims a principal that the bookie can verify, the two ends exchange
proofs before any other frame (``wire.proof``). After that, or at once if there is nothing to prove, the
client is *greeted*: the bookie serves it. Until then the connection is a *stranger*: it has a deadline and
only a small buffer (``strangers``). If the cluster is closed, the bookie serves only clients that proved an
identity.

**Access.** The bookie accepts an add only if the client may add to that ledger (``access``). The first add to
each ledger may have to wait for the metadata store. Meanwhile all later frames of the connection wait,
because both ends count the adds in their order. For later adds the check is one look into a set.

**Damage.** If an entry does not match its digest, the bookie refuses the whole frame with CORRUPT, stores
none of its entries, and logs the fault: some memory or network is failing. A malformed frame ends the
connection, because the next bytes may not be a frame.

**Deadlines.** A peer has ``limits.HANDSHAKE_TIMEOUT_S`` until it is greeted. Each frame has
``limits.FRAME_PROGRESS_TIMEOUT_S`` from its first byte to its last, not counting the time in which the bookie
itself does not read. Between frames, a connection may be quiet without a limit.

**Turns.** The bookie parses and handles at most ``limits.TURN_BYTES`` or ``limits.TURN_FRAMES`` of a client
at a time, no matter how much the client has sent. Then the other tasks run. So a flood of small frames delays
the other clients by one turn only. A *party* is all connections of one principal from one address. If several
parties use the bookie, all connections of a party together get one such turn in each pass of the event loop
(``fair``). The exact cost of frames is known only when they are parsed. So the connection first asks for a
turn for the estimated cost, and then corrects the estimate.

**Memory.** The receive buffer starts small and grows as needed (``FrameBuffer``). If a frame is larger than
the ordinary buffer, the connection needs one of ``limits.BOOKIE_LARGE_FRAMES`` places to receive it. So the
memory for unfinished frames is bounded for all connections together. The bookie keeps a few of these larger
buffers for the next large frames.

**Back-pressure.** Before an add, the receiving task waits until the engine has room for the add (memory, or
bytes that are not durable), and until few enough bytes of the party's adds wait for their sync (``fair``).
Between two chunks, the task waits while the client leaves too many bytes of answers unread
(``limits.BOOKIE_CONNECTION_ANSWER_BYTES``). While the task waits it reads nothing, and TCP slows the client
down. If a client leaves replies with data unread, only that client's other requests wait (``requests``).

**Ends.** A connection ends in one of these ways:

- The client closes or dies. Its adds under way still become durable, but no client gets an acknowledgement.
  Until they are durable, they count for its party.
- The client misbehaves; one line in the log reports it (``complaints``).
- The network breaks.
- The bookie stops: ``drain`` stops reading, answers the requests that were begun, and closes.

An error ends only its own connection, with two exceptions that end the bookie: a failure of the storage, and
a broken invariant (AssertionError), because the state that other clients depend on may be damaged.
"""

from __future__ import annotations

import logging
from collections import deque

import attrs
import trio

from bookie.server.access import Access
from bookie.server.fair import address_of
from bookie.server.outbox import ClientTooSlow, Outbox
from bookie.server.requests import Requests
from bookie.server.shared import Shared
from ledgerlog import limits
from ledgerlog.errors import StorageError, Unauthenticated, WireError
from ledgerlog.model.principal import Principal
from ledgerlog.net.transport import ConnectionLost, Stream
from ledgerlog.net.turns import Turns
from ledgerlog.wire.entries import decode_entries_untrusted
from ledgerlog.wire.frame import Frame, FrameBuffer, Header, Kind, Status
from ledgerlog.wire.hello import (
    TLS_HANDSHAKE,
    Claim,
    begins_as_tls,
    decode_hello_untrusted,
    encode_hello_reply,
)
from ledgerlog.wire.proof import decode_proof_untrusted, encode_proof_reply

logger = logging.getLogger(__name__)

_NEVER = float("inf")

_ADD = Kind.ADD.value

_FRAME_BYTES = limits.TURN_BYTES // limits.TURN_FRAMES
"""A frame costs at least this much of a turn."""

_REPORTED = frozenset((Status.CORRUPT, Status.CONFLICT, Status.IO_ERROR))
"""Refusals that are logged for the operator: the bookie or the client has damaged data (rule 6)."""


class Connection:
    """Serves one client while ``run`` runs. ``BookieServer`` makes it."""

    __slots__ = (
        "_access",
        "_adds",
        "_all_durable",
        "_buffer",
        "_due",
        "_is_draining",
        "_large_places",
        "_nursery",
        "_outbox",
        "_party",
        "_pending",
        "_requests",
        "_shared",
        "_stream",
        "_timeout",
        "_turns",
        "is_greeted",
        "principal",
    )

    def __init__(self, stream: Stream, shared: Shared) -> None:
        self._stream = stream
        self._shared = shared
        self._outbox = Outbox(stream, self._on_lost, self._take_turn_to_send)
        self._party = shared.fair.enter(address_of(stream.peer))
        self._access: Access | None = None
        """Decides which requests the client may make. None before the client is greeted."""
        self._requests = Requests(shared, self._party, self._outbox, stream.peer)
        self._buffer = FrameBuffer(
            limits.BOOKIE_CONNECTION_BUFFER_BYTES_MIN,
            limits.BOOKIE_CONNECTION_BUFFER_BYTES,
            shared.spare_buffers,
        )
        self._large_places: tuple[trio.CapacityLimiter, ...] = ()
        """The places that the connection holds while it receives a large frame."""
        self._turns = Turns(least=_FRAME_BYTES)
        """Counts how much of the present turn is used."""
        self._adds = 0
        """How many ADDs the client has sent, which is also the number of the last one."""
        self._pending: deque[list[int]] = deque()
        """[position, number, bytes], the first two increasing: once ``position`` is durable, so is every add
        up to ``number``, except refused ones. ``bytes`` is the size of the adds of this item."""
        self._all_durable = trio.Event()
        self.is_greeted = False
        """Whether the bookie has accepted the client's HELLO, and the client's proof of identity if proofs
        were exchanged."""
        self.principal: Principal | None = None
        """The identity that the client has proved. None: the client is not greeted yet, or did not prove an
        identity."""
        self._due = Kind.HELLO
        """The kind of frame that the bookie expects next from a client that is not greeted."""
        self._is_draining = False
        self._timeout = trio.CancelScope()
        """The scope of receiving. The scope is cancelled if the peer's time is up or the bookie stops."""
        self._nursery: trio.Nursery | None = None

    @property
    def peer(self) -> str:
        return self._stream.peer

    async def run(self) -> None:
        """Serve the client until the connection ends, then close the connection. Raises only AssertionError
        and StorageError. ``run`` handles all faults of the client itself, and logs other exceptions."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._send)
                await self._receive()
                nursery.cancel_scope.cancel()
        except* (AssertionError, StorageError):
            raise
        except* Exception:
            logger.exception("client=%s: its connection is closed after an error in serving it", self.peer)
        finally:
            self._nursery = None
            self._stream.close()
            self._shared.forget(self)
            if self._access is not None:
                self._access.close()
            self._requests.close()
            self._outbox.close()
            self._release_large()
            if self.is_greeted:
                self._shared.fair.end(self._party)
            self._shared.await_sync_of_ended(self._party, self._pending)

    def drop(self, why: str) -> None:
        """Close the connection at once."""
        self._cut_off(ConnectionLost(why))
        self._stream.close()
        self._abandon()

    def drain(self) -> None:
        """Stop reading, finish the requests that were begun, and return. The caller sets a deadline."""
        self._is_draining = True
        self._requests.stop_waiting()
        self._timeout.cancel()

    # --- sending --------------------------------------------------------------------------------

    async def _take_turn_to_send(self, count: int) -> None:
        """Wait until the connection's party may have ``count`` bytes sent. The cost is an eighth of the
        bytes, because the bookie only copies them."""
        fair, cost = self._shared.fair, count >> 3
        if not fair.take(self._party, cost):
            await fair.turn(self._party, cost, self._outbox)

    async def _send(self) -> None:
        try:
            await self._outbox.run()
        except ConnectionLost as lost:
            self._on_lost(lost)
        except ClientTooSlow as slow:
            self._cut_off(slow)
            self._abandon()

    def _on_lost(self, lost: ConnectionLost) -> None:
        logger.debug("client=%s: %s", self.peer, lost)
        self._abandon()

    def _abandon(self) -> None:
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    def _cut_off(self, why: Exception) -> None:
        self._shared.counts["peers_cut_off"] += 1
        self._shared.complaints.tell(f"client={self.peer}: cut off: {why}")

    # --- receiving ------------------------------------------------------------------------------

    async def _receive(self) -> None:
        try:
            with self._timeout as timeout:
                timeout.deadline = trio.current_time() + limits.HANDSHAKE_TIMEOUT_S
                if await self._receive_hello():
                    await self._receive_frames()
                return
            if not self._is_draining:
                raise ClientTooSlow(self._what_took_too_long())
            await self._finish()
        except ConnectionLost as lost:
            self._on_lost(lost)
        except (Unauthenticated, WireError, ClientTooSlow) as why:
            self._cut_off(why)

    async def _receive_hello(self) -> bool:
        """Return whether the connection continues. It ends if the peer closed before its HELLO, or if the
        bookie refused the HELLO."""
        frame = await self._receive_first(Kind.HELLO)
        return frame is not None and await self._on_hello(frame)

    async def _receive_first(self, kind: Kind) -> Frame | None:
        """Receive a HELLO or a PROOF, the frames that identify a client. None: the peer closed, or tried
        TLS."""
        self._due = kind
        buffer = self._buffer
        is_first = True
        while (frame := buffer.take_frame(limits.HELLO_BYTES_MAX)) is None:
            room = buffer.writable()
            count = await self._stream.receive_into(room)
            if not count:
                return None
            if is_first and kind is Kind.HELLO and begins_as_tls(room[:count], TLS_HANDSHAKE):
                # Answer without TLS, so that the client's TLS fails at once.
                self._outbox.reply([encode_hello_reply(Status.BAD_REQUEST, self._shared.identity)])
                await self._turn_away(WireError("it speaks TLS, but this bookie has no certificate"))
                return None
            is_first = False
            buffer.received(count)
        if frame.header.kind != kind:
            raise WireError(f"a message of kind {frame.header.kind} before {kind.name}")
        return frame

    async def _receive_frames(self) -> None:
        """Handle frames until the peer closes its side."""
        buffer, stream, turns = self._buffer, self._stream, self._turns
        assert self._access is not None, "nothing is served before HELLO"
        writable = self._access.writable
        was_mid_frame = False
        while True:
            frames = None
            while buffer.has_frame:  # The first may have come together with HELLO.
                frames = await self._take_frames()
                header, raw = frames[0]
                if (
                    len(frames) == 1
                    and header.kind == _ADD
                    and header.ledger_id in writable
                    and self._has_room(len(raw))
                    and not buffer.is_mid_frame
                ):
                    turns.spend(len(raw))
                    self._on_lone_add(frames[0])
                else:
                    await self._on_frames(frames)
                if self._outbox.answer_bytes > limits.BOOKIE_CONNECTION_ANSWER_BYTES:
                    await self._wait_until_read()
            if self._large_places and buffer.unfinished_bytes <= limits.BOOKIE_CONNECTION_BUFFER_BYTES:
                self._release_large()
            is_mid_frame = buffer.is_mid_frame
            if is_mid_frame:
                if frames or not was_mid_frame:
                    self._expect(limits.FRAME_PROGRESS_TIMEOUT_S)
            elif was_mid_frame:
                self._expect(_NEVER)
            was_mid_frame = is_mid_frame
            if is_mid_frame:
                if buffer.unfinished_bytes > limits.BOOKIE_CONNECTION_BUFFER_BYTES and not self._large_places:
                    await self._take_large()
                self._more_follows()
            count = await stream.receive_into(buffer.writable())
            if not count:
                return
            buffer.received(count)

    async def _take_frames(self) -> list[Frame]:
        """Wait until the connection's party may handle a turn of the received data. Return the frames in
        it."""
        if self._turns.left <= 0:
            await self._let_others_run()
        count, size = self._buffer.count_frames(limits.TURN_FRAMES)
        expected = min(max(size, count * _FRAME_BYTES), limits.TURN_BYTES)
        await self._take_share(expected)
        frames = self._buffer.take_frames(limits.TURN_FRAMES)
        more = _cost_of_turn(frames, 0) - expected
        if more:
            self._shared.fair.pay(self._party, more)
        return frames

    async def _on_frames(self, frames: list[Frame]) -> None:
        """Handle frames. The turn of the first of them has begun already."""
        turns = self._turns
        assert self._access is not None
        writable = self._access.writable
        for index, frame in enumerate(frames):
            if index and turns.left <= 0:
                await self._let_others_run()
                await self._take_share(_cost_of_turn(frames, index))
            turns.spend(_cost_of(frame))
            if frame.header.kind == _ADD:
                if frame.header.ledger_id not in writable and not await self._may_add(frame.header):
                    continue
                while not self._has_room(len(frame.raw)) and await self._wait_room():
                    # Every task that waited for room continues now. So wait for a turn again, and check
                    # whether room is left.
                    await self._take_share(_cost_of_turn(frames, index))
                self._on_add(frame)
            else:
                self._on_request(frame)
        self._await_sync()

    async def _may_add(self, header: Header) -> bool:
        """Return whether an add is allowed. If not, refuse it."""
        access = self._access
        assert access is not None
        if access.is_allowed(header):
            return True
        self._await_sync()
        self._expect(_NEVER)  # The bookie does not read now, so the peer's time does not count.
        status = await access.check(header)
        if status is None:
            return True
        self._adds += 1
        self._shared.tell_refused(self.peer, access, header, status)
        self._refuse(self._adds, status, header)
        return False

    async def _take_share(self, cost: int) -> None:
        """Wait until the connection's party may do ``cost`` bytes of work."""
        fair = self._shared.fair
        if not fair.take(self._party, cost):
            self._await_sync()
            self._expect(_NEVER)  # The waiting frames have arrived in time.
            await fair.turn(self._party, cost, self)

    async def _let_others_run(self) -> None:
        self._await_sync()
        self._expect(_NEVER)  # The waiting frames have arrived in time.
        self._more_follows()
        await self._turns.take()

    def _more_follows(self) -> None:
        """Let the next sync also cover the following adds of this client, unless another client would have to
        wait for that."""
        if self._shared.fair.is_alone:
            self._shared.engine.more_follows()

    def _on_lone_add(self, frame: Frame) -> None:
        """Handle an add that came alone. If the bookie's last add came from this connection too, probably no
        other client is adding. Then start the sync at once, because a wait of one more pass of the event loop
        would collect no more adds."""
        shared = self._shared
        is_alone = shared.last_adder is self
        shared.engine.hold()
        try:
            self._on_add(frame)
            self._await_sync()
        finally:
            shared.engine.release(at_once=is_alone)

    def _expect(self, timeout_s: float) -> None:
        """Give the peer this long for the bytes that the bookie expects next."""
        self._timeout.deadline = trio.current_time() + timeout_s

    def _what_took_too_long(self) -> str:
        if not self.is_greeted:
            return f"it did not send {self._due.name} within {limits.HANDSHAKE_TIMEOUT_S:g} s"
        return (
            f"a message of {self._buffer.unfinished_bytes or 'unknown'} bytes was not complete "
            f"{limits.FRAME_PROGRESS_TIMEOUT_S:g} s after its beginning"
        )

    def _await_sync(self) -> None:
        """Acknowledge the adds that are durable already. Have ``on_durable`` called for the others."""
        pending = self._pending
        if pending:
            position = self._shared.engine.durable_position
            if pending[0][0] > position or self.on_durable(position):
                self._shared.await_sync(self)

    def _has_room(self, size: int) -> bool:
        """Whether the engine and the party have room for an add of ``size`` bytes now.

        Call this before each add, with no checkpoint between the call and the add. So no add is refused for
        lack of room, even if many connections wait."""
        return self._shared.engine.has_room_for(size) and self._shared.fair.may_add(self._party)

    async def _wait_room(self) -> bool:
        """Wait until there may be room again. Return False if the engine refuses adds now."""
        self._await_sync()
        self._expect(_NEVER)  # The bookie does not read now, so the peer's time does not count.
        if self._shared.fair.may_add(self._party):
            return await self._shared.engine.wait_room()
        await self._party.synced.park()
        return True

    async def _wait_until_read(self) -> None:
        self._expect(_NEVER)
        await self._outbox.wait_below(limits.BOOKIE_CONNECTION_ANSWER_BYTES)

    async def _take_large(self) -> None:
        self._expect(_NEVER)
        for limiter in self._party.large_frame_limiters():
            await limiter.acquire_on_behalf_of(self)
            self._large_places = (*self._large_places, limiter)
        self._expect(limits.FRAME_PROGRESS_TIMEOUT_S)

    def _release_large(self) -> None:
        places, self._large_places = self._large_places, ()
        for limiter in reversed(places):
            limiter.release_on_behalf_of(self)

    async def _finish(self) -> None:
        """Answer every add and request that was begun."""
        while self._pending:
            self._all_durable = trio.Event()
            await self._all_durable.wait()
        await self._requests.wait_all_answered()
        await self._outbox.wait_all_sent()

    # --- frames ---------------------------------------------------------------------------------

    def _on_request(self, frame: Frame) -> None:
        if frame.header.kind == Kind.HELLO:
            raise WireError("a second HELLO")
        assert self._nursery is not None
        self._requests.begin(frame, self._nursery)

    async def _on_hello(self, frame: Frame) -> bool:
        """Check the HELLO and answer it. Return whether the connection continues."""
        meant = decode_hello_untrusted(frame)
        shared = self._shared
        identity, prover = shared.identity, shared.prover
        status = meant.accepts(identity)
        if status is not Status.OK:
            self._outbox.reply([encode_hello_reply(status, identity)])
            return await self._turn_away(WireError(f"it wants {meant}; this is {identity}"))
        principal, claim = self._stream.principal, meant.claim
        proof = None if principal is not None or claim is None else prover.verify(claim)
        if proof is None and not shared.fair.has_connection(self._party.address, principal):
            return await self._turn_away_busy(encode_hello_reply(Status.TOO_MANY_REQUESTS, identity))
        answer = meant.agreed(identity)
        if proof is not None:
            raw = encode_hello_reply(status, attrs.evolve(answer, challenge=proof.challenge))
            proof.on_answered(bytes(frame.raw), raw)
            self._outbox.reply([raw])
            if (frame_of_proof := await self._receive_first(Kind.PROOF)) is None:
                return False
            own_proof = proof.on_proof(decode_proof_untrusted(frame_of_proof))
            # Check this only after the proof. Without a proof, a stranger must not use up connections of the
            # principal that it claims to be, and must not learn whether any are left.
            if own_proof is not None and not shared.fair.has_connection(self._party.address, proof.principal):
                return await self._turn_away_busy(encode_proof_reply(own_proof, is_busy=True))
            self._outbox.reply([encode_proof_reply(own_proof)])
            if own_proof is None:
                return await self._turn_away(Unauthenticated(f"it does not prove its claim: {claim}"))
            principal = proof.principal
        else:
            if principal is None and prover.admission.is_required:
                self._outbox.reply([encode_hello_reply(Status.UNAUTHORIZED, identity)])
                return await self._turn_away(Unauthenticated(_why_unproven(claim)))
            self._outbox.reply([encode_hello_reply(status, answer)])
        self.is_greeted = True
        self.principal = principal
        self._party = self._requests.party = shared.fair.greet(self._party, principal)
        self._access = shared.access.open(
            principal,
            self._party.look_limiters,
            self._requests.end_polls,
            is_by_secret=proof is not None,
        )
        self._requests.access = self._access
        shared.strangers.leave(self)
        self._expect(_NEVER)
        return True

    async def _turn_away_busy(self, answer: bytes) -> bool:
        """Refuse a client whose party or principal has as many connections as it may have, and return
        False."""
        self._shared.counts["connections_refused"] += 1
        self._outbox.reply([answer])
        return await self._turn_away(WireError("its party already has as many connections as it may have"))

    async def _turn_away(self, why: Exception) -> bool:
        """Count and log that the client is refused, wait until the answer is sent, and return False."""
        self._cut_off(why)
        self._timeout.deadline = _NEVER
        with trio.move_on_after(limits.HANDSHAKE_TIMEOUT_S):
            await self._outbox.wait_all_sent()
        return False

    def _on_add(self, frame: Frame) -> None:
        self._adds = number = self._adds + 1
        shared = self._shared
        shared.last_adder = self
        entries = decode_entries_untrusted(frame)
        verdict: int | Status
        if (damaged := entries.first_damaged()) is not None:
            verdict = Status.CORRUPT
            shared.complaints.tell(
                f"client={self.peer}: ledger={entries.ledger_id}: entry {damaged} does not match its digest"
            )
        else:
            verdict = shared.engine.add(frame, entries)
        if type(verdict) is Status:
            self._refuse(number, verdict, frame.header)
            return
        size = len(frame.raw)
        self._party.unsynced_bytes += size
        pending = self._pending
        if pending and verdict <= pending[-1][0]:
            pending[-1][1] = number
            pending[-1][2] += size
        else:
            pending.append([verdict, number, size])

    def _refuse(self, number: int, status: Status, header: Header) -> None:
        shared = self._shared
        shared.counts["adds_refused"] += 1
        shared.count_refused(status)
        if status in _REPORTED:
            shared.complaints.tell(
                f"client={self.peer}: ledger={header.ledger_id}: entries {header.first}..{header.last} are "
                f"refused: {status.name}"
            )
        self._outbox.refuse(number, status, ledger_id=header.ledger_id, first=header.first, last=header.last)

    def on_durable(self, position: int) -> bool:
        """Acknowledge the adds that are durable now. Return whether other adds are still under way."""
        pending = self._pending
        number = synced = 0
        while pending and pending[0][0] <= position:
            _, number, size = pending.popleft()
            synced += size
        if number:
            self._party.on_synced(synced)
            self._outbox.acknowledge(number)
        if pending:
            return True
        if self._is_draining:
            self._all_durable.set()
        return False


def _why_unproven(claim: Claim | None) -> str:
    if claim is None:
        return "it does not prove who it is, and the cluster is closed"
    return f"it claims to be {claim.principal}, with a secret that is not this cluster's"


def _cost_of(frame: Frame) -> int:
    """Return the share of a turn that a frame costs, in bytes."""
    size = len(frame.raw)
    if frame.header.kind == _ADD or size >= limits.TURN_REQUEST_BYTES:
        return size
    return limits.TURN_REQUEST_BYTES


def _cost_of_turn(frames: list[Frame], first: int) -> int:
    """Return the cost of the frames from number ``first`` on, as far as one turn reaches."""
    cost = 0
    for frame in frames[first:]:
        cost += max(_cost_of(frame), _FRAME_BYTES)
        if cost >= limits.TURN_BYTES:
            break
    return cost
