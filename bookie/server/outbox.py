"""What a connection has to say to its client, and in which order it is said.

Three kinds of messages leave a bookie, and only two of them care for order:

* a **refusal** of add number k goes out before any acknowledgement that passes k, because the client
  takes an acknowledgement of n as the success of everything up to n that was not refused *before*;
* an **acknowledgement** is cumulative, so there is never more than one to send: the highest number.
  While the socket is full it is not queued but remembered, and said once, at its newest, when there is
  room. It therefore costs nothing that a client reads slowly;
* a **reply** belongs to one request and may be said at any time.

So each batch that is sent is: refusals, one acknowledgement, then replies. A follower that reads
megabytes on a connection does not delay the acknowledgements on it by more than one batch.

**Two ways out.** When nothing waits, a message goes straight from whoever says it (for an
acknowledgement that is the callback of the journal's sync) into the socket, with no task switch. What
the socket does not take waits for the connection's sending task, ``run``, and from then on everything
does until it has caught up. ``send_nowait`` is never called while ``run`` is inside ``send_all``:
``_is_idle`` says so, and it becomes true again only in ``run``.

**Bounds.** ``unsent_bytes`` counts what has been said and not handed to the network yet; the
connection stops reading from a client that lets it grow. A client that takes less than one batch
within ``limits.FRAME_PROGRESS_TIMEOUT_S`` is given up: a batch is at most one message beyond
``BATCH_BYTES``, and what it waited for has timed out at the client long before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import attrs
import trio

from ledgerlog import limits
from ledgerlog.net.transport import Buffer, ConnectionLost, Stream, buffers_bytes, unsent
from ledgerlog.wire.frame import REPLY, Kind, encode_head

BATCH_BYTES = limits.READ_REPLY_BYTES_TARGET


class ClientTooSlow(Exception):
    """The client did not take a batch of messages in time; its connection is to be closed."""


@attrs.frozen
class _Message:
    """Bytes to send, or what is left of them, and whom to tell when they are gone."""

    buffers: Sequence[Buffer]
    size: int
    on_sent: Callable[[], None] | None = None


class Outbox:
    """The sending half of one connection."""

    __slots__ = (
        "_ack_due",
        "_ack_sent",
        "_changed",
        "_is_idle",
        "_on_lost",
        "_refusals",
        "_replies",
        "_stream",
        "_unfinished",
        "_wake",
        "unsent_bytes",
    )

    def __init__(self, stream: Stream, on_lost: Callable[[ConnectionLost], None]) -> None:
        """``on_lost`` is told when a message that went the straight way met a broken connection, perhaps
        more than once; it must not raise. ``run`` raises ConnectionLost itself."""
        self._stream = stream
        self._on_lost = on_lost
        self._unfinished: _Message | None = None
        """What is left of a message that went the straight way as far as it could: it is always next."""
        self._refusals: list[_Message] = []
        self._replies: deque[_Message] = deque()
        self._ack_due = 0
        self._ack_sent = 0
        self._is_idle = False
        """True while ``run`` waits and nothing is queued: messages may go the straight way."""
        self._wake = trio.Event()
        self._changed = trio.Event()
        self.unsent_bytes = 0
        """Bytes said and not yet handed to the network."""

    # --- saying ---------------------------------------------------------------------------------

    def acknowledge(self, number: int) -> None:
        """All adds up to ``number`` are durable or were refused before."""
        assert number >= self._ack_due, "acknowledgements never go back"
        self._ack_due = number
        if self._is_idle and number > self._ack_sent:
            self._ack_sent = number
            self._send_now(_acknowledgement(number))

    def refuse(self, number: int, status: int, *, ledger_id: int, first: int, last: int) -> None:
        """Add ``number`` of this connection was refused and nothing of it is stored."""
        assert number > self._ack_due, "an add was refused after it had been acknowledged"
        head = encode_head(
            Kind.REFUSED, status=status, request=number, ledger_id=ledger_id, first=first, last=last
        )
        message = _Message([head], len(head))
        if self._is_idle:
            self._send_now(message)
        else:
            self._refusals.append(message)
            self._queued(message)

    def reply(self, buffers: Sequence[Buffer], on_sent: Callable[[], None] | None = None) -> None:
        """A reply, whole. The buffers must not change any more. ``on_sent`` is called once they have been
        handed to the network; it is not called when the connection ends before."""
        message = _Message(buffers, buffers_bytes(buffers), on_sent)
        if self._is_idle:
            self._send_now(message)
        else:
            self._replies.append(message)
            self._queued(message)

    def _send_now(self, message: _Message) -> None:
        try:
            sent = self._stream.send_nowait(message.buffers)
        except ConnectionLost as lost:
            self._on_lost(lost)
            return
        if sent == message.size:
            if message.on_sent is not None:
                message.on_sent()
            return
        # Idle means that nothing else is unfinished; and even a message of which nothing went yet keeps
        # its place, since a refusal must not fall behind the acknowledgement that passes it.
        assert self._unfinished is None
        self._unfinished = _Message(unsent(message.buffers, sent), message.size - sent, message.on_sent)
        self._queued(self._unfinished)

    def _queued(self, message: _Message) -> None:
        self.unsent_bytes += message.size
        self._is_idle = False
        self._wake.set()

    # --- sending --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send what could not go the straight way, for ever. ClientTooSlow, ConnectionLost."""
        while True:
            batch = self._take_batch()
            if not batch:
                self._wake = trio.Event()
                self._is_idle = True
                self._announce()
                await self._wake.wait()
                continue
            with trio.move_on_after(limits.FRAME_PROGRESS_TIMEOUT_S) as scope:
                await self._stream.send_all([buffer for message in batch for buffer in message.buffers])
            if scope.cancelled_caught:
                raise ClientTooSlow(
                    f"it took less than {sum(message.size for message in batch)} bytes of replies "
                    f"in {limits.FRAME_PROGRESS_TIMEOUT_S:g} s"
                )
            for message in batch:
                self.unsent_bytes -= message.size
                if message.on_sent is not None:
                    message.on_sent()
            self._announce()

    def _take_batch(self) -> list[_Message]:
        batch = []
        if self._unfinished is not None:
            batch.append(self._unfinished)
            self._unfinished = None
        batch += self._refusals
        self._refusals = []
        if self._ack_due > self._ack_sent:
            self._ack_sent = self._ack_due
            batch.append(_acknowledgement(self._ack_due))
            self.unsent_bytes += batch[-1].size
        size = 0
        while self._replies and size < BATCH_BYTES:
            batch.append(self._replies.popleft())
            size += batch[-1].size
        return batch

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait_below(self, unsent_bytes: int) -> None:
        """Return once at most ``unsent_bytes`` are unsent, at once where they are already."""
        while self.unsent_bytes > unsent_bytes:
            await self._changed.wait()

    async def wait_all_sent(self) -> None:
        """Return once nothing is left to be handed to the network."""
        while not self._is_idle:
            await self._changed.wait()


def _acknowledgement(number: int) -> _Message:
    head = encode_head(Kind.ADD | REPLY, request=number)
    return _Message([head], len(head))
