"""The messages that a connection sends to its client, and their order.

A bookie sends three kinds of messages. The order matters for the first two:

* A **refusal** of add number k goes out before any acknowledgement of k or more. The client reads an
  acknowledgement of n as the success of all adds up to n that were not refused *before*.
* An **acknowledgement** is cumulative: it carries the highest number, so one message covers all earlier ones.
  While the socket is full, the outbox does not queue acknowledgements. It remembers the highest number and
  sends it once there is room. A slow client therefore costs no memory for acknowledgements.
* A **reply** belongs to one request and may go out at any time.

The messages leave in *batches*. Each batch has refusals first, then one acknowledgement, then replies. So
replies delay the acknowledgements of their connection by one batch at most, for example when a client reads
megabytes of entries on that connection.

**Two ways out.** If no other message waits, a message goes straight into the socket, in the task of the
caller and without a task switch. (For acknowledgements, the caller is the callback of the journal's sync.) If
the socket does not take all of a message, the rest waits for the connection's sending task, ``run``. From
then on all messages wait for ``run`` until the queue is empty again. Messages go straight into the socket
only while ``_is_idle`` is set. ``run`` sets this flag when nothing is queued, and any queued message clears
it. So ``send_nowait`` is never called while ``run`` is inside ``send_all``.

**Bounds.** ``unsent_bytes`` counts the bytes that are in the outbox and not yet handed to the network. A
reply with data holds its bytes in the memory budgets for replies (``requests``) until it is sent. All other
messages count in ``answer_bytes``. If ``answer_bytes`` grows too large, the connection stops reading from its
client. If a client takes less than one batch within ``limits.FRAME_PROGRESS_TIMEOUT_S``, ``run`` gives up. By
then the client's own requests have long timed out. ``BATCH_BYTES`` bounds the replies of a batch: together
they exceed it by less than one reply. The refusals, the acknowledgement and the rest of an unfinished message
are not counted in this bound.

**Turns.** Clients take turns (``fair``): before each batch, ``run`` waits until it is its client's turn.
Otherwise, if a client with many connections begins to read at last, the bookie would send that client
megabytes in one pass of the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from ledgerlog import limits
from ledgerlog.net.transport import Buffer, ConnectionLost, Stream, buffers_bytes, unsent
from ledgerlog.wire.frame import HEADER_BYTES, REPLY, Kind, encode_head

BATCH_BYTES = limits.READ_REPLY_BYTES_TARGET

_ADD_REPLY = Kind.ADD | REPLY

_MESSAGE_BYTES = 512
"""Roughly how much memory a message needs in addition to its bytes."""


class ClientTooSlow(Exception):
    """The client did not take a batch of messages in time. The connection must be closed."""


@attrs.frozen
class _Message:
    """Bytes to send, or the rest of them, and a callback for when they are sent."""

    buffers: Sequence[Buffer]
    size: int
    on_sent: Callable[[], None] | None = None

    @property
    def answer_bytes(self) -> int:
        """How many bytes of ``Outbox.answer_bytes`` are for this message."""
        return self.size + _MESSAGE_BYTES if self.on_sent is None else 0


async def _at_once(count: int) -> None:
    """Return at once: an outbox without turns."""


def _nobody_listens(lost: ConnectionLost) -> None:
    """Ignore a lost connection, after ``Outbox.close``."""


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
        "_take_turn",
        "_unfinished",
        "_wake",
        "answer_bytes",
        "unsent_bytes",
    )

    def __init__(
        self,
        stream: Stream,
        on_lost: Callable[[ConnectionLost], None],
        take_turn: Callable[[int], Awaitable[None]] = _at_once,
    ) -> None:
        """Create the outbox of a stream.

        Args:
            stream: The connection to the client.
            on_lost: Called if the connection breaks while a message goes straight into it, perhaps more than
                once. It must not raise. ``run`` raises ConnectionLost itself.
            take_turn: Waits until that many bytes may be sent.
        """
        self._stream = stream
        self._on_lost = on_lost
        self._unfinished: _Message | None = None
        """The rest of a message that the socket took only in part. ``run`` sends it first."""
        self._refusals: list[_Message] = []
        self._replies: deque[_Message] = deque()
        self._ack_due = 0
        self._ack_sent = 0
        self._is_idle = False
        """True while ``run`` waits and nothing is queued. Messages may then go straight into the socket."""
        self._wake = trio.Event()
        self._changed = trio.Event()
        self._take_turn = take_turn
        self.unsent_bytes = 0
        """Bytes that are in the outbox and not yet handed to the network."""
        self.answer_bytes = 0
        """Roughly the memory of the messages in the outbox that are not counted in a budget."""

    # --- giving messages to the outbox ------------------------------------------------------------

    def acknowledge(self, number: int) -> None:
        """Tell the client that each add up to ``number`` is durable, unless it was refused before."""
        assert number >= self._ack_due, "acknowledgements never go back"
        self._ack_due = number
        if self._is_idle and number > self._ack_sent:
            self._ack_sent = number
            self._send_now([_acknowledgement(number)], HEADER_BYTES)

    def refuse(self, number: int, status: int, *, ledger_id: int, first: int, last: int) -> None:
        """Tell the client that add ``number`` of this connection was refused, and that none of its entries is
        stored.

        Args:
            number: The number of the add on this connection.
            status: The reason, a ``Status``.
            ledger_id: The ledger of the add.
            first: The first entry of the add.
            last: The last entry of the add.
        """
        assert number > self._ack_due, "an add was refused after it had been acknowledged"
        head = encode_head(
            Kind.REFUSED, status=status, request=number, ledger_id=ledger_id, first=first, last=last
        )
        if self._is_idle:
            self._send_now([head], len(head))
        else:
            message = _Message([head], len(head))
            self._refusals.append(message)
            self._queued(message)

    def reply(self, buffers: Sequence[Buffer], on_sent: Callable[[], None] | None = None) -> None:
        """Send a whole reply.

        Args:
            buffers: The bytes. They must not change after this.
            on_sent: Called once the bytes are handed to the network. If the connection ends before that, this
                is not called.
        """
        size = buffers_bytes(buffers)
        if self._is_idle:
            self._send_now(buffers, size, on_sent)
        else:
            message = _Message(buffers, size, on_sent)
            self._replies.append(message)
            self._queued(message)

    def _send_now(
        self, buffers: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None = None
    ) -> None:
        try:
            sent = self._stream.send_nowait(buffers)
        except ConnectionLost as lost:
            self._on_lost(lost)
            return
        if sent == size:
            if on_sent is not None:
                on_sent()
            return
        # While idle, nothing else is unfinished. The message keeps its place at the front even if none of its
        # bytes were sent yet. Otherwise an acknowledgement could overtake a refusal.
        assert self._unfinished is None
        self._unfinished = _Message(unsent(buffers, sent), size - sent, on_sent)
        self._queued(self._unfinished)

    def _queued(self, message: _Message) -> None:
        self.unsent_bytes += message.size
        self.answer_bytes += message.answer_bytes
        self._is_idle = False
        self._wake.set()

    # --- sending --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send the messages that could not go straight into the socket. This never returns.

        Raises:
            ClientTooSlow: The client did not take a batch within ``limits.FRAME_PROGRESS_TIMEOUT_S``.
            ConnectionLost: The connection broke.
        """
        while True:
            batch = self._take_batch()
            if not batch:
                self._wake = trio.Event()
                self._is_idle = True
                self._announce()
                await self._wake.wait()
                continue
            await self._take_turn(sum(message.size for message in batch))
            with trio.move_on_after(limits.FRAME_PROGRESS_TIMEOUT_S) as scope:
                await self._stream.send_all([buffer for message in batch for buffer in message.buffers])
            if scope.cancelled_caught:
                raise ClientTooSlow(
                    f"it took less than {sum(message.size for message in batch)} bytes of replies "
                    f"in {limits.FRAME_PROGRESS_TIMEOUT_S:g} s"
                )
            for message in batch:
                self.unsent_bytes -= message.size
                self.answer_bytes -= message.answer_bytes
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
            batch.append(_Message([_acknowledgement(self._ack_due)], HEADER_BYTES))
            self.unsent_bytes += batch[-1].size
            self.answer_bytes += batch[-1].answer_bytes
        size = 0
        while self._replies and size < BATCH_BYTES:
            batch.append(self._replies.popleft())
            size += batch[-1].size
        return batch

    def close(self) -> None:
        """Forget the connection, because it has ended. If the outbox and the connection still referred to
        each other, only the garbage collector could free them. If thousands of connections ended, that would
        cost the bookie pauses of a tenth of a second."""
        self._on_lost = _nobody_listens
        self._take_turn = _at_once

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait_below(self, answer_bytes: int) -> None:
        """Wait until ``self.answer_bytes`` is at most ``answer_bytes``."""
        while self.answer_bytes > answer_bytes:
            await self._changed.wait()

    async def wait_all_sent(self) -> None:
        """Wait until all bytes are handed to the network."""
        while not self._is_idle:
            await self._changed.wait()


def _acknowledgement(number: int) -> bytes:
    return encode_head(_ADD_REPLY, request=number)
