"""Heartbeats over a direct connection between a leader and its standbys.

A candidate's ``BeatServer`` listens during the whole candidacy, even before the candidate leads, so that the
address is known as soon as the candidate leads. The server sends one frame to each standby every
``limits.ELECTION_BEAT_S``. ``Hearing`` is the standby's side: it connects to the leader that the election's
record names, and reports to the core (``election.core.candidacy``) whether it hears the leader.

**How a failure shows.** If a process dies, its connections close: the standby reads the end of the stream,
connects again, and is refused, all within a millisecond or two. If a process hangs or a machine is gone,
no frame comes, and the standby notices that after ``limits.ELECTION_SILENCE_S``. Neither sign proves that the
leader is gone. So this module decides nothing. It reports the signs to the core, which has the rules for
suspecting a leader.

**Who is served.** A standby's first frame, HELLO, must name the candidacy that the standby wants to hear: 16
random bytes, which are found only in the metadata store. So a peer that cannot read the store learns nothing
here, and cannot take the place of a standby. Before its HELLO, a connection is a *stranger*, and it must say
HELLO before a deadline. If there are ``limits.ELECTION_STRANGERS_MAX`` strangers and one more connects, the
oldest stranger is dropped. A standby is rarely dropped in this way, because a standby says HELLO in its first
packet. With certificates, TLS has proved before the first frame that the peer belongs to the cluster.

If a standby does not take the 32 bytes of a frame at once, the server drops its connection and does not wait.
That costs the standby only time, because the metadata session still shows the leader's death.
"""

from __future__ import annotations

import contextlib
import logging
from hmac import compare_digest

import trio

from ledgerlog.election.core.candidacy import Candidacy
from ledgerlog.errors import InvalidArgument, Unauthenticated, WireError
from ledgerlog.limits import (
    ELECTION_BEAT_S,
    ELECTION_SILENCE_S,
    ELECTION_STANDBYS_MAX,
    ELECTION_STRANGERS_MAX,
    HANDSHAKE_TIMEOUT_S,
)
from ledgerlog.net.transport import ConnectionLost, Listener, Network, Stream
from ledgerlog.wire.beats import BEAT_FRAME_BYTES, Beat, BeatKind

__all__ = ["BeatServer", "Hearing", "candidacy_bytes"]

logger = logging.getLogger(__name__)


def candidacy_bytes(candidacy: str) -> bytes:
    """Decode a candidacy's id, 32 hexadecimal digits, to 16 bytes.

    Raises:
        InvalidArgument: ``candidacy`` is not such an id.
    """
    try:
        data = bytes.fromhex(candidacy)
    except ValueError:
        data = b""
    if len(data) != 16:
        raise InvalidArgument(f"{candidacy!r} is not the id of a candidacy")
    return data


class BeatServer:
    """A candidate's listener and its connected standbys."""

    def __init__(self, listener: Listener, core: Candidacy) -> None:
        self._listener = listener
        self._core = core
        self._strangers: dict[Stream, None] = {}
        """Connections that have not said HELLO, the oldest first. Their streams may take nothing yet."""
        self._standbys: dict[Stream, None] = {}
        """Connections that have said HELLO."""

    @property
    def address(self) -> str:
        return self._listener.address

    async def run(self) -> None:
        """Serve standbys until cancelled, or until the listener fails."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat)
            while True:
                try:
                    stream = await self._listener.accept()
                except ConnectionLost as cause:
                    logger.warning("heartbeats are no longer sent to standbys: %s", cause)
                    return
                if len(self._strangers) >= ELECTION_STRANGERS_MAX:
                    self._drop(next(iter(self._strangers)))
                self._strangers[stream] = None
                nursery.start_soon(self._serve, stream)

    async def _serve(self, stream: Stream) -> None:
        hello: Beat | None = None
        try:
            with trio.move_on_after(HANDSHAKE_TIMEOUT_S):
                hello = await receive_beat(stream)
            if hello is None or hello.kind is not BeatKind.HELLO or not self._is_me(hello.candidacy):
                return
            if stream not in self._strangers or len(self._standbys) >= ELECTION_STANDBYS_MAX:
                return
            del self._strangers[stream]
            self._standbys[stream] = None
            self._send(stream, Beat(BeatKind.BEAT, self._core.leading or 0, hello.candidacy))
            # The standby sends nothing more; this returns when the connection ends.
            await receive_beat(stream)
        except (ConnectionLost, WireError, Unauthenticated):
            pass  # The standby left, or the peer was not a standby.
        finally:
            self._drop(stream)

    @property
    def _me(self) -> bytes | None:
        return None if self._core.me is None else candidacy_bytes(self._core.me)

    def _is_me(self, candidacy: bytes) -> bool:
        return self._me is not None and compare_digest(candidacy, self._me)

    async def _beat(self) -> None:
        while True:
            await trio.sleep(ELECTION_BEAT_S)
            me = self._me
            if me is not None:
                beat = Beat(BeatKind.BEAT, self._core.leading or 0, me)
                for stream in list(self._standbys):
                    self._send(stream, beat)

    def say_ended(self, term: int, candidacy: str) -> None:
        """Tell every standby that this candidacy's term is over. This method does not await."""
        for stream in list(self._standbys):
            self._send(stream, Beat(BeatKind.ENDED, term, candidacy_bytes(candidacy)))

    def _send(self, stream: Stream, beat: Beat) -> None:
        try:
            if stream.send_nowait([beat.encode()]) == BEAT_FRAME_BYTES:
                return
        except ConnectionLost:
            pass
        self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        self._strangers.pop(stream, None)
        self._standbys.pop(stream, None)
        stream.close()

    def close(self) -> None:
        """Stop listening, and close every connection."""
        self._listener.close()
        for stream in [*self._strangers, *self._standbys]:
            self._drop(stream)


class Hearing:
    """A standby's connection to one leader."""

    def __init__(self, network: Network, core: Candidacy, term: int, holder: str, address: str) -> None:
        self._network = network
        self._core = core
        self._term = term
        self._holder = holder
        self._address = address
        self._has_spoken = False
        self.changed = trio.Event()
        """Set after a report to the core that may change its need."""

    async def run(self) -> None:
        """Listen until the leader says that its term is over, or until its address proves to be unusable."""
        try:
            holder = candidacy_bytes(self._holder)
        except InvalidArgument:
            # Another version of ledgerlog wrote this id. Only the metadata session will show this leader's
            # death.
            return
        while True:
            try:
                if await self._listen(holder):
                    return
            except ConnectionLost as cause:
                self._suspect(str(cause))
                await trio.sleep(ELECTION_BEAT_S)
            except (WireError, Unauthenticated) as cause:
                self._suspect(str(cause))
                await trio.sleep(ELECTION_SILENCE_S)
            except InvalidArgument as cause:
                logger.warning("the leader's heartbeat cannot be heard at %r: %s", self._address, cause)
                return

    async def _listen(self, holder: bytes) -> bool:
        """Listen over one connection until it ends. Return whether the leader said that its term is over."""
        with trio.move_on_after(ELECTION_SILENCE_S) as connecting:
            stream = await self._network.connect(self._address)
        if connecting.cancelled_caught:
            self._suspect("it does not answer")
            return False
        try:
            with trio.move_on_after(ELECTION_SILENCE_S) as greeting:
                await stream.send_all([Beat(BeatKind.HELLO, self._term, holder).encode()])
            if greeting.cancelled_caught:
                self._suspect("it does not answer")
                return False
            heard = False
            while True:
                with trio.move_on_after(ELECTION_SILENCE_S) as waiting:
                    beat = await receive_beat(stream)
                if waiting.cancelled_caught:
                    self._suspect(f"nothing was heard for {ELECTION_SILENCE_S:g} s")
                    return False
                if beat is None:
                    if not heard:
                        raise WireError(f"another candidate listens at {self._address}")
                    # The leader closed the connection. Connect again at once: if its process is dead, the
                    # port refuses.
                    return False
                if beat.candidacy != holder:
                    raise WireError(f"another candidate speaks at {self._address}")
                heard = True
                if beat.kind is BeatKind.ENDED and beat.term == self._term:
                    self._core.on_ended(self._term)
                    self.changed.set()
                    return True
                if beat.kind is BeatKind.BEAT and beat.term == self._term:
                    self._has_spoken = False
                    self._core.on_beat(self._term)
                elif beat.kind is BeatKind.BEAT and not beat.term:
                    # The holder lives but does not lead. Either it does not know yet that its claim took
                    # effect, or its term is over.
                    self._core.on_silence(self._term)
                    self.changed.set()
        finally:
            stream.close()

    def _suspect(self, why: str) -> None:
        if not self._has_spoken:
            self._has_spoken = True
            logger.info("the leader of term %d at %s is suspected: %s", self._term, self._address, why)
        self._core.on_silence(self._term)
        self.changed.set()


async def receive_beat(stream: Stream) -> Beat | None:
    """Receive the next frame.

    Returns:
        The frame. None if the peer closed the connection.

    Raises:
        ConnectionLost: The connection broke.
        WireError: The bytes are not a heartbeat.
    """
    buffer = bytearray(BEAT_FRAME_BYTES)
    view = memoryview(buffer)
    filled = 0
    while filled < BEAT_FRAME_BYTES:
        count = await stream.receive_into(view[filled:])
        if not count:
            with contextlib.suppress(ConnectionLost):
                stream.close()
            return None
        filled += count
    return Beat.decode_untrusted(bytes(buffer))
