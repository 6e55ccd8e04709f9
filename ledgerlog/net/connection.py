"""A persistent connection to one bookie, shared by every ledger of the process.

The task of a ``BookieConnection`` runs a loop: wait until the bookie is needed, find its present address,
connect, shake hands, serve until the session breaks (``net.session``), notify the sinks, wait a little. A
*sink* (``net.adds``) sends adds over the connection and is notified of their outcome. The bookie is needed
while a sink is attached or a request waits. Here, the loss of a connection is an event, not an exception;
only an exception from a bug ends the task.

**Notifications.** When the session breaks, each attached sink gets one ``on_bookie_lost`` for the loss, and
one for each later attempt that fails. So a writer can replace the bookie instead of waiting. If a sink
attaches later, it is notified only of later events. Only the connection's task calls sinks; ``send_add`` and
``attach`` never do. If a send finds the socket broken, it closes the socket, and the task reports the loss
afterwards.

**Back-off.** After the n-th failure in a row the next attempt waits RECONNECT_DELAY_MIN_S * 2**n, capped. The
delay is shortened by up to half at random, so that not all clients come at once when a bookie returns. A
session counts as a success if the bookie answered anything in it, or if it lasted longer than
RECONNECT_DELAY_MAX_S. A new request or sink ends the delay early, as soon as RECONNECT_DELAY_MIN_S has
passed, and gets the outcome of the attempt that follows.

**Instances.** An *instance* of a bookie is one set of its data. An operator can replace a bookie's data under
the same id. For an attached writer, the result is another bookie: the new instance does not know the fences
and entries that the old one acknowledged. So a connection talks to one instance as long as any sink is
attached. If the bookie returns as another instance, the attached sinks are told again and again that the
bookie is lost, until all have detached. ``on_superseded`` lets the pool make another connection for all new
callers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import attrs
import trio

from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.errors import BookieUnavailable, LedgerLogError, Unauthenticated
from ledgerlog.limits import (
    BUSY_DELAY_MAX_S,
    BUSY_DELAY_MIN_S,
    CONNECT_TIMEOUT_S,
    HANDSHAKE_TIMEOUT_S,
    RECONNECT_DELAY_MAX_S,
    RECONNECT_DELAY_MIN_S,
)
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.protocol import ProtocolSupport
from ledgerlog.net.adds import AddSink, Attachment, Burst, UnansweredAdds
from ledgerlog.net.prover import Prover
from ledgerlog.net.session import BookieBusy, BookieUnauthenticated, PeerSession, handshake
from ledgerlog.net.transport import Buffer, Network
from ledgerlog.wire.frame import NO_KEY, Frame, Kind, SpareBuffers, Status
from ledgerlog.wire.hello import Hello

__all__ = ["AddSink", "BookieBusy", "BookieConnection", "ConnectionStatistics", "Resolve"]

logger = logging.getLogger(__name__)

Resolve = Callable[[BookieId], Awaitable[BookieInfo]]
"""Finds a bookie's present address. Raises BookieUnavailable if the bookie is not registered, or another
LedgerLogError if the address could not be found."""


@attrs.frozen(kw_only=True)
class ConnectionStatistics:
    """Counts since the connection was made. An add counts once for each frame."""

    bookie_id: BookieId
    address: str | None
    """The last address that was connected to or tried."""
    is_connected: bool
    sinks: int
    """How many sinks are attached now."""
    queued_bytes: int
    """How many bytes wait for the socket now."""
    unanswered_adds: int
    """How many adds of the present session have no answer."""
    adds_sent: int
    adds_answered: int
    """How many adds were answered, including refused ones."""
    adds_refused: int
    requests_answered: int
    connects: int
    """How many handshakes succeeded."""
    losses: int
    """How many sessions broke. Sessions that ended because they were not needed do not count."""
    failed_attempts: int
    """How many attempts to connect failed."""


class BookieConnection:
    """The connection to one bookie; see the module docstring. ``net.pool`` makes it and runs ``run`` in a
    task."""

    def __init__(
        self,
        bookie_id: BookieId,
        *,
        network: Network,
        resolve: Resolve,
        burst: Burst,
        spares: SpareBuffers,
        rng: Random,
        watch: Callable[[PeerSession], None],
        on_superseded: Callable[[BookieConnection], None],
        cluster: str | None,
        speaks: ProtocolSupport,
        prover: Prover | None,
    ) -> None:
        self.bookie_id = bookie_id
        self._network = network
        self._resolve = resolve
        self._burst = burst
        self._spares = spares
        self._rng = rng
        self._watch = watch
        self._on_superseded = on_superseded
        self._cluster = cluster
        self._speaks = speaks
        self._prover = prover

        self._attachments: dict[AddSink, Attachment] = {}
        self._requests = 0  # requests that wait, for a session or for an answer
        self._needed = trio.Event()
        self._hurry = trio.Event()
        self._attempt_over = trio.Event()
        self._is_closed = False

        self._session: PeerSession | None = None
        self._lost: list[Attachment] = []  # attached when the session broke, and not yet notified
        self._instance: str | None = None  # the instance that the attached sinks rely on
        self._address: str | None = None
        self._failure = f"bookie {bookie_id}: not connected yet"
        self._trouble: str | None = None
        self._failures = 0  # in a row
        self._is_refused = False  # the last attempt failed because one end did not prove its identity

        self._ended_sent = self._ended_answered = self._ended_refused = self._ended_replies = 0
        self._ended_frames = 0
        self._connects = self._losses = self._failed_attempts = 0

    # --- adds ---------------------------------------------------------------------------------

    @property
    def whoami(self) -> str:
        """Who this process is to the bookie, for messages."""
        principal = None if self._prover is None else self._prover.principal
        return "this client" if principal is None else str(principal)

    @property
    def is_connected(self) -> bool:
        """Whether adds can be sent now."""
        session = self._session
        return session is not None and session.broken is None

    @property
    def agreed(self) -> ProtocolSupport | None:
        """The protocol version and the features of the present session; None if there is no session."""
        return None if self._session is None else self._session.agreed

    @property
    def queued_bytes(self) -> int:
        """How many bytes wait for the socket."""
        return 0 if self._session is None else self._session.queued_bytes

    @property
    def frames_received(self) -> int:
        """How many frames of any kind have come from the bookie, over all sessions. Each session began with
        the bookie's answer to HELLO."""
        since = 0 if self._session is None else self._session.frames_received
        return self._connects + self._ended_frames + since

    def break_off(self, why: str) -> None:
        """End the present session, for all its users. The attached sinks are notified later, as of any other
        loss.

        This calls no sink itself. Without a session it does nothing.

        Args:
            why: The reason, in words.
        """
        if self._session is not None:
            self._session.break_off(why)

    @property
    def abandoned_requests(self) -> int:
        """How many requests were given up here and are not yet answered by the bookie."""
        session = self._session
        return 0 if session is None or session.broken is not None else session.abandoned

    def attach(self, sink: AddSink) -> None:
        """Notify ``sink`` of everything from now on, and keep the bookie connected while the sink is
        attached.

        This calls nothing now: if ``is_connected`` is true already, no ``on_bookie_connected`` follows."""
        assert sink not in self._attachments, "a sink is attached once at a time"
        if not self._attachments and not self.is_connected:
            self._instance = None  # No sink relies on the instance of an earlier session.
        self._attachments[sink] = Attachment(sink)
        self._hurry.set()
        self._on_use_changed()

    def detach(self, sink: AddSink) -> None:
        """Stop all calls to ``sink`` and forget its unanswered adds. Detaching again is harmless.

        The bookie may still store and answer these adds, but no sink is notified."""
        attachment = self._attachments.pop(sink, None)
        if attachment is not None:
            attachment.sink = None
            self._on_use_changed()

    @property
    def is_refused(self) -> bool:
        """Whether the last attempt failed because one end did not prove its identity."""
        return self._is_refused

    @property
    def trouble(self) -> str | None:
        """Why the last request got no answer; None if it got one, or if there was no request yet. The reason
        names the bookie."""
        return self._trouble

    def send_add(self, buffers: Sequence[Buffer], sink: AddSink, first: int, last: int) -> None:
        """Send an ADD of an attached sink. The sink is notified of the outcome later (see ``AddSink``).

        This never waits and never calls a sink. Call it only if ``is_connected`` is true, but continue if the
        connection breaks during a series of calls: all these adds are lost, and one ``on_bookie_lost``
        reports them. A connection with more than CONNECTION_SEND_QUEUE_BYTES unsent breaks.

        Args:
            buffers: One frame of ``wire.entries``. Leave them unchanged until the outcome is known.
            sink: The attached sink.
            first: The first entry of the frame.
            last: The last entry of the frame.
        """
        session = self._session
        assert session is not None, f"an add for bookie {self.bookie_id}, which is not connected"
        session.send_add(buffers, self._attachments[sink], first, last)

    # --- requests -----------------------------------------------------------------------------

    async def request(
        self,
        kind: Kind,
        *,
        timeout_s: float,
        flags: int = 0,
        count: int = 0,
        ledger_id: int = 0,
        first: int = 0,
        last: int = 0,
        lac: int = NO_ENTRY,
        lafr: int = NO_ENTRY,
        argument: int = 0,
        wait_ms: int = 0,
        key: bytes = NO_KEY,
        is_patient: bool = True,
    ) -> Frame:
        """Ask the bookie and wait for its reply: FENCE, READ, READ_LAC, LIST, INFO or SCRUB.

        This connects first if necessary. If the bookie is busy (has too many requests under way), this asks
        again after growing pauses, unless ``is_patient`` is False. The other arguments are fields of the
        request.

        Args:
            kind: The kind of request.
            timeout_s: Seconds for everything: connecting, asking again and waiting.
            is_patient: Whether to ask a busy bookie again.

        Returns:
            The reply. Check its status yourself. Its bytes are a copy that belongs to you.

        Raises:
            BookieUnavailable: No connection could be made, the connection broke, or ``timeout_s`` passed. In
                the last two cases, the bookie may have acted on the request. The message names the bookie,
                its address and the reason.
            BookieBusy: A kind of BookieUnavailable: the bookie has too many requests under way, and has
                done nothing.
            BookieUnauthenticated: A kind of BookieUnavailable: the bookie or this process did not prove who
                it is. Nothing was done.

        Cancelling: abandons the reply; the bookie may have acted on the request.
        """
        assert kind not in (Kind.HELLO, Kind.ADD, Kind.REFUSED), f"{kind.name} is not a request"
        self._requests += 1
        self._on_use_changed()
        is_busy = False
        backoff = Backoff(BUSY_DELAY_MIN_S, BUSY_DELAY_MAX_S)
        try:
            with trio.move_on_after(timeout_s):
                while True:
                    session = await self._wait_session()
                    try:
                        reply = await session.request(
                            kind,
                            flags=flags,
                            count=count,
                            ledger_id=ledger_id,
                            first=first,
                            last=last,
                            lac=lac,
                            lafr=lafr,
                            argument=argument,
                            wait_ms=wait_ms,
                            key=key,
                        )
                    except BookieUnavailable as lost:
                        raise BookieUnavailable(f"{self._name}: {lost}") from None
                    is_busy = reply.header.status == Status.TOO_MANY_REQUESTS
                    if not is_busy:
                        self._trouble = None
                        return reply
                    if not is_patient:
                        break
                    await trio.sleep(backoff.next_s() * self._rng.uniform(0.5, 1.0))
                    is_busy = False
            if is_busy:
                raise BookieBusy(f"{self._name}: too many requests to it are under way for this {kind.name}")
            raise BookieUnavailable(f"{self._name}: no answer to {kind.name} within {timeout_s:g} s")
        except BookieUnavailable as failure:
            self._trouble = str(failure)
            raise
        finally:
            self._requests -= 1
            self._on_use_changed()

    async def _wait_session(self) -> PeerSession:
        """Return the present session, or wait for the next attempt to connect and return its session. If that
        attempt fails, raise BookieUnavailable."""
        session = self._session
        if session is None or session.broken is not None:
            if self._is_closed:
                raise BookieUnavailable(self._failure)
            self._hurry.set()
            await self._attempt_over.wait()
            session = self._session
            if session is None:
                raise (BookieUnauthenticated if self._is_refused else BookieUnavailable)(self._failure)
        return session  # If it broke meanwhile, the request notices and says why.

    # --- the task -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect while needed, serve, connect again. Only cancellation ends it."""
        try:
            while True:
                if not self._is_needed:
                    self._needed = trio.Event()
                    await self._needed.wait()
                self._hurry = trio.Event()
                if not await self._serve():
                    await self._back_off()
        finally:
            self._is_closed = True
            self._failure = f"{self._name}: the connection pool is closed"
            if self._session is not None:
                self._session.break_off("the connection pool is closed")
            self._attempt_over.set()

    async def _serve(self) -> bool:
        """Make one attempt and, if it succeeds, serve the session.

        Returns whether the session ended only because it was not needed."""
        try:
            session = await self._connect()
        except LedgerLogError as error:
            self._is_refused = isinstance(error, Unauthenticated)
            self._note_who_lost()
            self._failures += 1
            self._failed_attempts += 1
            self._on_failure(str(error))
            self._end_attempt()
            return False
        self._is_refused = False
        started = trio.current_time()
        self._on_connected(session)
        await session.run()
        assert session.broken is not None
        self._session = None
        self._count(session)
        if session.adds.answered or session.replies or trio.current_time() - started > RECONNECT_DELAY_MAX_S:
            self._failures = 0
        else:
            self._failures += 1
        if session.was_idle:
            return True
        self._losses += 1
        self._on_failure(session.broken)
        return False

    async def _connect(self) -> PeerSession:
        """Find the bookie, connect, shake hands. Raises LedgerLogError with the reason."""
        with trio.move_on_after(CONNECT_TIMEOUT_S) as connecting:
            info = await self._resolve(self.bookie_id)
            self._address = info.address
            stream = await self._network.connect(info.address)
        if connecting.cancelled_caught:
            raise BookieUnavailable(f"no connection within {CONNECT_TIMEOUT_S:g} s")
        try:
            wanted = Hello.of(self.bookie_id, info.instance or None, self._cluster, self._speaks)
            with trio.move_on_after(HANDSHAKE_TIMEOUT_S) as shaking:
                answer, buffer = await handshake(stream, wanted, self._prover, self._spares)
            if shaking.cancelled_caught:
                raise BookieUnavailable(f"no answer to HELLO within {HANDSHAKE_TIMEOUT_S:g} s")
            if self._instance not in (None, answer.instance) and self._attachments:
                self._on_superseded(self)
                raise BookieUnavailable(
                    f"its data was replaced: it is instance {answer.instance!r} now, and ledgers in use "
                    f"were written to instance {self._instance!r}"
                )
            self._instance = answer.instance
        except BaseException:
            stream.close()
            raise
        return PeerSession(
            stream,
            buffer,
            adds=UnansweredAdds(self.bookie_id, self._burst),
            burst=self._burst,
            agreed=answer.support,
            watch=self._watch,
            on_broken=self._note_who_lost,
        )

    def _note_who_lost(self) -> None:
        self._lost = list(self._attachments.values())

    def _on_connected(self, session: PeerSession) -> None:
        self._session = session
        self._connects += 1
        session.set_used(self._is_needed)
        logger.info(
            "connected: bookie=%s address=%s instance=%s", self.bookie_id, self._address, self._instance
        )
        with self._burst:
            for attachment in list(self._attachments.values()):
                if attachment.sink is not None:
                    self._burst.touch(attachment)
                    attachment.sink.on_bookie_connected(self.bookie_id)
        self._end_attempt()

    def _on_failure(self, why: str) -> None:
        """Tell every sink that was attached that the session broke or that the attempt failed."""
        is_news = self._failures <= 1
        logger.log(logging.WARNING if is_news else logging.DEBUG, "lost: %s: %s", self._name, why)
        self._failure = f"{self._name}: {why}"
        lost, self._lost = self._lost, []
        with self._burst:
            for attachment in lost:
                if attachment.sink is not None:
                    self._burst.touch(attachment)
                    attachment.sink.on_bookie_lost(self.bookie_id, why)

    def _end_attempt(self) -> None:
        """Wake the requests that wait for a session: the attempt is over.

        The end of a session is not the end of an attempt: a request that comes after it waits for the next
        attempt."""
        self._attempt_over.set()
        self._attempt_over = trio.Event()

    async def _back_off(self) -> None:
        delay = min(RECONNECT_DELAY_MIN_S * 2 ** min(self._failures, 16), RECONNECT_DELAY_MAX_S)
        delay = max(delay * self._rng.uniform(0.5, 1.0), RECONNECT_DELAY_MIN_S)
        await trio.sleep(RECONNECT_DELAY_MIN_S)
        with trio.move_on_after(delay - RECONNECT_DELAY_MIN_S):
            await self._hurry.wait()

    # --- use and statistics -------------------------------------------------------------------

    @property
    def _is_needed(self) -> bool:
        return bool(self._attachments) or self._requests > 0

    @property
    def _name(self) -> str:
        return f"bookie {self.bookie_id}" + ("" if self._address is None else f" at {self._address}")

    def _on_use_changed(self) -> None:
        is_needed = self._is_needed
        if is_needed:
            self._needed.set()
        if self._session is not None:
            self._session.set_used(is_needed)

    def _count(self, session: PeerSession) -> None:
        self._ended_sent += session.adds.sent
        self._ended_answered += session.adds.answered
        self._ended_refused += session.adds.refused
        self._ended_replies += session.replies
        self._ended_frames += session.frames_received

    def statistics(self) -> ConnectionStatistics:
        """Return the present statistics."""
        session = self._session
        adds = None if session is None else session.adds
        sent, answered, refused = (0, 0, 0) if adds is None else (adds.sent, adds.answered, adds.refused)
        return ConnectionStatistics(
            bookie_id=self.bookie_id,
            address=self._address,
            is_connected=self.is_connected,
            sinks=len(self._attachments),
            queued_bytes=self.queued_bytes,
            unanswered_adds=sent - answered,
            adds_sent=self._ended_sent + sent,
            adds_answered=self._ended_answered + answered,
            adds_refused=self._ended_refused + refused,
            requests_answered=self._ended_replies + (0 if session is None else session.replies),
            connects=self._connects,
            losses=self._losses,
            failed_attempts=self._failed_attempts,
        )
