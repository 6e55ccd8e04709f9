"""One session of a connection to a bookie: from the handshake to the moment it breaks.

``handshake`` checks who is at the other end. A ``PeerSession`` then owns the stream. It has two tasks: a
receiver, which calls *sinks* (senders of adds, ``net.adds``) and wakes requests, and a sender, which works
only while the socket is full. Everything else in a session is synchronous.

**Sending.** Frames are sent in the order of the calls, because both ends number the adds in this order. If
nothing is queued, the session tries the stream at once. If the stream does not take all bytes, the session
queues the rest, and the sender task sends them when there is room. During a burst (``net.adds``), frames are
only queued; at its end they are sent together. The queue is bounded in bytes. If it exceeds the bound, the
session breaks: the bookie is far too slow.

**Breaking.** A session ends only by breaking. It breaks if the peer closes the stream or violates the
protocol, a deadline passes, the queue is full, or the session is no longer needed. ``break_off`` records
the first reason, closes the stream and fails the waiting requests. It calls no sink, so it is safe even
inside a sink's own call. The receiver notices the break and ends ``run``; the session's owner then notifies
the sinks.

**Deadlines** need no timer for each frame. ``check`` is called a few times a second while it returns True.
Each call notes how many adds have been sent so far. If a note that covers an unanswered add is ADD_TIMEOUT_S
old, that add is at least as old. So if an add stays unanswered, the session breaks after ADD_TIMEOUT_S. It
breaks at most two ticks later than that (a tick is the time between two calls).

**Requests** carry numbers, counted from 1 in each session. If the caller of a request gave up waiting, the
request is *abandoned*, and its reply is dropped. A reply with an unknown number, or a second reply, breaks
the session. The session also breaks if the bookie leaves more than ``_ABANDONED_MAX`` abandoned requests
without an answer, so that their number stays bounded.

**Untrusted bytes.** The worst that a hostile peer can cause is a WireError inside the session, which breaks
the session. The frame buffer (``wire.frame.FrameBuffer``) bounds the memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import attrs
import trio

from ledgerlog.errors import BookieUnavailable, IncompatibleVersion, Unauthenticated, WireError
from ledgerlog.limits import (
    ADD_TIMEOUT_S,
    CONNECTION_IDLE_S,
    CONNECTION_SEND_QUEUE_BYTES,
    FRAME_PROGRESS_TIMEOUT_S,
    MIB,
    TURN_BYTES,
    TURN_FRAMES,
)
from ledgerlog.model.credentials import HOW_TO_GIVE_CERTIFICATE
from ledgerlog.model.ids import BookieId
from ledgerlog.model.principal import Principal, PrincipalKind
from ledgerlog.model.protocol import ProtocolSupport
from ledgerlog.net.adds import Attachment, Burst, UnansweredAdds
from ledgerlog.net.prover import Prover
from ledgerlog.net.transport import Buffer, ConnectionLost, Stream, buffers_bytes, unsent
from ledgerlog.net.turns import Turns
from ledgerlog.wire.frame import (
    HEADER_BYTES,
    REPLY,
    Frame,
    FrameBuffer,
    Kind,
    SpareBuffers,
    Status,
    encode_head,
)
from ledgerlog.wire.hello import TLS_ALERT, Hello, begins_as_tls, decode_hello_untrusted, encode_hello
from ledgerlog.wire.proof import decode_proof_untrusted, encode_proof

__all__ = ["BookieBusy", "BookieUnauthenticated", "PeerSession", "handshake"]

_SEND_BYTES = MIB
"""The sender task hands about this many bytes to the stream at a time."""

_ABANDONED_MAX = 1024

_ADD_OK = Kind.ADD | REPLY


class BookieBusy(BookieUnavailable):
    """The bookie answers, but has too many requests or connections under way to take another one."""


class BookieUnauthenticated(BookieUnavailable, Unauthenticated):
    """The bookie answers, but the bookie or this process did not prove its identity.

    A caller that knows other bookies uses these, as if this bookie were down."""


async def handshake(
    stream: Stream, wanted: Hello, prover: Prover | None = None, spares: SpareBuffers | None = None
) -> tuple[Hello, FrameBuffer]:
    """Send HELLO and check who answers. Then both ends prove who they are (``wire.proof``).

    This has no deadline of its own.

    Args:
        stream: The new stream.
        wanted: The bookie, and perhaps the instance and cluster, that must answer.
        prover: Proves who this process is. None in an open cluster, if the process proves nothing.
        spares: Large buffers for the rest of the stream.

    Returns:
        The answer, and the buffer to receive the rest of the stream with.

    Raises:
        ConnectionLost: The stream broke.
        WireError: The answer is malformed.
        BookieUnavailable: The other end refuses, or is not the wanted bookie.
        BookieBusy: A kind of BookieUnavailable: the bookie has too many connections.
        Unauthenticated: One end did not accept the other's proof of who it is, or got none.
        IncompatibleVersion: The two ends have no version of the protocol in common.
    """
    prover = prover or Prover()
    proof = prover.begin()
    hello = encode_hello(wanted if proof is None else attrs.evolve(wanted, claim=proof.claim))
    await stream.send_all([hello])
    _check_principal(stream, wanted.bookie_id)
    buffer = FrameBuffer(spares=spares)
    frame = await _receive_answer(stream, buffer, Kind.HELLO)
    raw_answer = bytes(frame.raw)
    answer = decode_hello_untrusted(frame)
    status = Status(frame.header.status)
    if status is Status.OK:
        status = wanted.accepts(answer)
    if status is Status.WRONG_BOOKIE:
        raise BookieUnavailable(
            f"another bookie serves at that address: {_identity(answer)}, but {_identity(wanted)} was "
            f"expected"
        )
    if wanted.accepts(answer) is Status.BAD_REQUEST:
        raise IncompatibleVersion("it", answer.support.range, wanted.support.range, is_protocol=True)
    if status is Status.TOO_MANY_REQUESTS:
        raise BookieBusy("it has too many connections to serve us")
    if status is Status.UNAUTHORIZED:
        raise Unauthenticated(prover.why_refused())
    if status is not Status.OK:
        raise BookieUnavailable(f"it refuses to serve us: {status.name}")
    if answer.protocol != answer.protocol_max or not {*answer.features} <= {*wanted.features}:
        raise WireError(f"it answers with protocol {answer.support} and features {answer.features}")
    if answer.challenge is None:
        prover.accept_unproven(stream.principal)
    elif proof is None:
        raise WireError("it asks us to prove a claim that we did not make")
    else:
        await stream.send_all([encode_proof(proof.on_challenge(answer.challenge, hello, raw_answer))])
        frame = await _receive_answer(stream, buffer, Kind.PROOF)
        if frame.header.status == Status.UNAUTHORIZED:
            raise Unauthenticated(prover.why_refused())
        if frame.header.status == Status.TOO_MANY_REQUESTS:
            raise BookieBusy("we already have as many connections to it as it allows")
        proof.on_proof(decode_proof_untrusted(frame))
    return answer, buffer


async def _receive_answer(stream: Stream, buffer: FrameBuffer, kind: Kind) -> Frame:
    """Receive the answer to the only frame that was sent. Anything after the answer is an error."""
    is_first = kind is Kind.HELLO
    while True:
        room = buffer.writable()
        received = await stream.receive_into(room)
        if not received:
            raise ConnectionLost(f"it closed the connection instead of answering {kind.name}")
        if is_first and begins_as_tls(room[:received], TLS_ALERT):
            raise Unauthenticated(
                f"it speaks TLS, but this process has no certificate: {HOW_TO_GIVE_CERTIFICATE}"
            )
        is_first = False
        buffer.received(received)
        frames = buffer.take_frames()
        if frames:
            break
    if len(frames) > 1 or buffer.is_mid_frame:
        raise WireError(f"it sent more than {kind.name} before we asked for anything")
    if frames[0].header.kind != kind | REPLY:
        raise WireError(f"a message of kind {frames[0].header.kind} in place of an answer to {kind.name}")
    return frames[0]


def _check_principal(stream: Stream, bookie_id: BookieId) -> None:
    """If the transport has proved who the peer is, check that the peer is this bookie."""
    principal = stream.principal
    if principal not in (None, Principal(PrincipalKind.BOOKIE, bookie_id)):
        raise Unauthenticated(
            f"its certificate proves that it is {principal}, but bookie/{bookie_id} was expected"
        )


def _identity(hello: Hello) -> str:
    instance = "" if hello.instance is None else f" instance {hello.instance!r}"
    cluster = "" if hello.cluster is None else f" of cluster {hello.cluster!r}"
    return f"{hello.bookie_id}{instance}{cluster}"


@attrs.define(eq=False)
class _Request:
    """A waiting request. ``frame`` is the reply; if it is None at the end, the session broke before the reply
    came."""

    kind: int
    ledger_id: int
    frame: Frame | None = None
    is_over: trio.Event = attrs.field(factory=trio.Event)


class PeerSession:
    """A connection after its handshake.

    Run ``run`` in a task, and read ``broken`` when ``run`` returns."""

    __slots__ = (
        "_abandoned",
        "_add_notes",
        "_buffer",
        "_burst",
        "_frames_received",
        "_idle_since",
        "_is_corked",
        "_is_used",
        "_last_request",
        "_mid_frame",
        "_on_broken",
        "_queue",
        "_queue_bytes",
        "_requests",
        "_sender_wanted",
        "_sending_bytes",
        "_stream",
        "_turns",
        "_watch",
        "adds",
        "agreed",
        "broken",
        "is_watched",
        "replies",
        "was_idle",
    )

    def __init__(
        self,
        stream: Stream,
        buffer: FrameBuffer,
        *,
        adds: UnansweredAdds,
        burst: Burst,
        agreed: ProtocolSupport,
        watch: Callable[[PeerSession], None],
        on_broken: Callable[[], None],
    ) -> None:
        """Begin a session.

        Args:
            stream: The stream, after the handshake.
            buffer: The buffer that ``handshake`` returned.
            adds: The numbering of this session's adds.
            burst: The burst that all connections of the pool share.
            agreed: The protocol version and the features that HELLO agreed on.
            watch: Called when a deadline begins. It must arrange that ``check`` is called regularly from then
                on, until ``check`` returns False.
            on_broken: Called once, at the moment when the session breaks.
        """
        self._stream = stream
        self._buffer = buffer
        self._burst = burst
        self._watch = watch
        self._on_broken = on_broken
        self.adds = adds
        self.agreed = agreed
        """The protocol version and the features that both ends use."""
        self.broken: str | None = None
        """Why the session broke; None while it is up."""
        self.was_idle = False
        """Whether the session broke because it was not needed."""
        self.replies = 0
        """How many requests were answered."""
        self.is_watched = False

        self._turns = Turns(least=TURN_BYTES // TURN_FRAMES)
        self._queue: list[Buffer] = []
        self._queue_bytes = 0
        self._sending_bytes = 0  # inside the sender's send_all; nothing else may send meanwhile
        self._is_corked = False
        self._sender_wanted = trio.Event()

        self._last_request = 0
        self._requests: dict[int, _Request] = {}
        self._abandoned: set[int] = set()

        self._frames_received = 0
        self._add_notes: deque[tuple[float, int]] = deque()  # (when, adds sent by then), in ascending order
        self._mid_frame: tuple[float, int] | None = None  # (since when, frames received before it)
        self._is_used = True
        self._idle_since: float | None = None

    # --- sending ------------------------------------------------------------------------------

    @property
    def frames_received(self) -> int:
        """How many frames have come, since the handshake."""
        return self._frames_received

    @property
    def queued_bytes(self) -> int:
        """The number of bytes that wait for the socket. Up to a mebibyte of them may have been sent
        already."""
        return self._queue_bytes + self._sending_bytes

    def send_add(self, buffers: Sequence[Buffer], attachment: Attachment, first: int, last: int) -> None:
        """Count an add and send it, now or as soon as the socket takes it.

        If the session is broken already, this does nothing: the loss of the session tells the sink that the
        outcome of all its unanswered adds is unknown."""
        if self.broken is not None:
            return
        self.adds.append(attachment, first, last)
        self._send(buffers)
        if not self.is_watched:
            self._have_watched()

    def _send(self, buffers: Sequence[Buffer]) -> None:
        if self._burst.is_active:
            if not self._is_corked:
                self._is_corked = True
                self._burst.cork(self)
            self._enqueue(buffers)
        elif self._queue or self._sending_bytes:
            self._enqueue(buffers)
        else:
            try:
                sent = self._stream.send_nowait(buffers)
            except ConnectionLost as lost:
                self.break_off(str(lost))
                return
            if sent != buffers_bytes(buffers):
                self._enqueue(unsent(buffers, sent))
                self._sender_wanted.set()

    def _enqueue(self, buffers: Sequence[Buffer]) -> None:
        size = buffers_bytes(buffers)
        if self.queued_bytes + size > CONNECTION_SEND_QUEUE_BYTES:
            self.break_off(f"it is too slow: {self.queued_bytes} bytes wait to be sent")
            return
        self._queue.extend(buffers)
        self._queue_bytes += size

    def flush(self) -> None:
        """Send everything that gathered during the burst."""
        self._is_corked = False
        if self.broken is not None or self._sending_bytes or not self._queue:
            return  # If the sender is busy, it takes the queue by itself.
        try:
            sent = self._stream.send_nowait(self._queue)
        except ConnectionLost as lost:
            self.break_off(str(lost))
            return
        self._queue_bytes -= sent
        if self._queue_bytes:
            self._queue = unsent(self._queue, sent)
            self._sender_wanted.set()
        else:
            self._queue = []

    async def _send_queue(self) -> None:
        """The sender task: send the queue each time there is one."""
        while self.broken is None:
            if not self._queue:
                self._sender_wanted = trio.Event()
                await self._sender_wanted.wait()
                continue
            batch = self._take_batch()
            try:
                await self._stream.send_all(batch)
            except ConnectionLost as lost:
                self.break_off(str(lost))
            self._sending_bytes = 0

    def _take_batch(self) -> list[Buffer]:
        size = count = 0
        for buffer in self._queue:
            size += len(buffer)
            count += 1
            if size >= _SEND_BYTES:
                break
        batch = self._queue[:count]
        del self._queue[:count]
        self._queue_bytes -= size
        self._sending_bytes = size
        return batch

    # --- requests -----------------------------------------------------------------------------

    @property
    def abandoned(self) -> int:
        """How many requests were given up here and have no answer yet."""
        return len(self._abandoned)

    async def request(
        self,
        kind: Kind,
        *,
        flags: int,
        count: int,
        ledger_id: int,
        first: int,
        last: int,
        lac: int,
        lafr: int,
        argument: int,
        wait_ms: int,
        key: bytes,
    ) -> Frame:
        """Send a request and wait for its reply. Raise BookieUnavailable if the session breaks first."""
        if self.broken is not None:
            raise BookieUnavailable(self.broken)
        self._last_request += 1
        number = self._last_request
        head = encode_head(
            kind,
            flags=flags,
            count=count,
            request=number,
            ledger_id=ledger_id,
            first=first,
            last=last,
            lac=lac,
            lafr=lafr,
            argument=argument,
            wait_ms=wait_ms,
            key=key,
        )
        request = self._requests[number] = _Request(kind, ledger_id)
        self._send([head])
        try:
            await request.is_over.wait()
        finally:
            if self._requests.pop(number, None) is not None:
                self._abandon(number)
        if request.frame is None:
            assert self.broken is not None
            raise BookieUnavailable(self.broken)
        return request.frame

    def _abandon(self, number: int) -> None:
        self._abandoned.add(number)
        if len(self._abandoned) > _ABANDONED_MAX:
            self.break_off(f"it did not answer {len(self._abandoned)} requests")

    def _on_reply(self, frame: Frame) -> None:
        header = frame.header
        request = self._requests.get(header.request)
        if request is None:
            if header.request not in self._abandoned:
                raise WireError(
                    f"a message of kind {header.kind} answers the unknown request {header.request}"
                )
            self._abandoned.remove(header.request)
            return
        if header.kind != request.kind | REPLY or header.ledger_id != request.ledger_id:
            raise WireError(
                f"a message of kind {header.kind} about ledger {header.ledger_id} answers request "
                f"{header.request}, of kind {request.kind} about ledger {request.ledger_id}"
            )
        del self._requests[header.request]
        self.replies += 1
        request.frame = Frame(header, memoryview(bytes(frame.raw)))
        request.is_over.set()

    # --- receiving ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until the session is broken. If you cancel this, call ``break_off`` yourself."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_queue)
            await self._receive()
            nursery.cancel_scope.cancel()

    async def _receive(self) -> None:
        buffer, turns = self._buffer, self._turns
        while True:
            if turns.left <= 0:
                await turns.take()
            try:
                received = await self._stream.receive_into(buffer.writable())
                if not received:
                    self.break_off("it closed the connection")
                    return
                buffer.received(received)
                frames = buffer.take_frames()
                if frames:
                    self._frames_received += len(frames)
                    for frame in frames:
                        turns.spend(len(frame.raw))
                    self._on_frames(frames)
            except ConnectionLost as lost:
                self.break_off(str(lost))
                return
            except WireError as error:
                self.break_off(f"it broke the protocol: {error}")
                return
            if not self.is_watched and buffer.is_mid_frame:
                self._have_watched()

    def _on_frames(self, frames: Sequence[Frame]) -> None:
        adds = self.adds
        with self._burst:
            for frame in frames:
                header = frame.header
                if header.kind == _ADD_OK:
                    if len(frame.raw) != HEADER_BYTES:
                        raise WireError("an acknowledgement with a body")
                    adds.on_acknowledged(header.request)
                elif header.kind == Kind.REFUSED:
                    adds.on_refused(header.request, Status(header.status))
                else:
                    self._on_reply(frame)

    # --- the end ------------------------------------------------------------------------------

    def break_off(self, why: str) -> None:
        """End the session. Only the first reason counts. This calls no sink."""
        if self.broken is not None:
            return
        self.broken = why
        self._stream.close()
        self._queue = []
        self._queue_bytes = 0
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.is_over.set()
        self._sender_wanted.set()
        self._on_broken()

    def set_used(self, is_used: bool) -> None:
        """Set whether the session is needed: a sink is attached or a request waits. If it is not needed for
        ``limits.CONNECTION_IDLE_S``, it ends."""
        self._is_used = is_used
        if is_used:
            self._idle_since = None
        elif not self.is_watched:
            self._have_watched()

    def _have_watched(self) -> None:
        if self.broken is None:
            self.is_watched = True
            self._watch(self)

    def check(self, now: float) -> bool:
        """Break the session if a deadline has passed. Return whether a deadline is left to watch."""
        if self.broken is None:
            timed = [self._check_adds(now), self._check_frame(now), self._check_use(now)]
            self.is_watched = self.broken is None and any(timed)
        else:
            self.is_watched = False
        return self.is_watched

    def _check_adds(self, now: float) -> bool:
        notes, answered, sent = self._add_notes, self.adds.answered, self.adds.sent
        while notes and notes[0][1] <= answered:
            notes.popleft()
        if sent > (notes[-1][1] if notes else answered):
            notes.append((now, sent))
        if notes and now - notes[0][0] >= ADD_TIMEOUT_S:
            self.break_off(f"it did not answer add {answered + 1} of {sent} for {ADD_TIMEOUT_S:g} s")
        return bool(notes)

    def _check_frame(self, now: float) -> bool:
        if not self._buffer.is_mid_frame:
            self._mid_frame = None
        elif self._mid_frame is None or self._mid_frame[1] != self._frames_received:
            self._mid_frame = (now, self._frames_received)
        elif now - self._mid_frame[0] >= FRAME_PROGRESS_TIMEOUT_S:
            self.break_off(f"it stopped in the middle of a message for {FRAME_PROGRESS_TIMEOUT_S:g} s")
        return self._mid_frame is not None

    def _check_use(self, now: float) -> bool:
        if self._is_used:
            return False
        if self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since >= CONNECTION_IDLE_S:
            self.was_idle = True
            self.break_off("it is not needed")
        return True
