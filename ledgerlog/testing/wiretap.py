"""Observe the messages between the processes of a simulated cluster, frame by frame.

The network carries bytes in pieces that may be cut anywhere. A ``Tap`` observes one direction of one
connection and reassembles the frames. It reports each frame to an observer twice: when the sender has handed
the frame's last byte to the network, and when the receiver has taken the frame's last byte out. The tap makes
each report in the task of the process that sends or receives, so a broken rule is reported at the step that
breaks it. If a frame is lost or damaged on the way, it is only reported as sent. If a length, a header or an
index is damaged, all later frames count as not received, too: the receiver must close the connection.

A tap changes nothing: it removes no data, adds no data, draws no random number and takes no time.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import attrs

from ledgerlog.testing.process import Incarnation
from ledgerlog.wire.frame import HEADER, HEADER_BYTES, Frame, Header, index_bytes

__all__ = ["TappedConnection", "Observer", "Tap"]

_LENGTH_BYTES = 4
_FOR_EVER = 1 << 62


@attrs.frozen(eq=False)
class TappedConnection:
    """One connection between two processes."""

    client: Incarnation
    """The process that opened the connection."""
    server: Incarnation
    number: int


class Observer(Protocol):
    """Receives the frames. ``is_reply`` means that the frame goes to the client.

    The methods may raise. The error comes out in the task that sends or receives the frame.
    """

    def on_sent(self, conversation: TappedConnection, frame: Frame, *, is_reply: bool) -> None:
        """The sender has handed the whole frame to the network."""
        ...

    def on_received(self, conversation: TappedConnection, frame: Frame, *, is_reply: bool) -> None:
        """The receiver has taken the whole frame."""
        ...


class Tap:
    """Observes one direction of one connection."""

    __slots__ = (
        "_conversation",
        "_damaged",
        "_is_reply",
        "_observer",
        "_received",
        "_rest",
        "_sent",
        "_travelling",
    )

    def __init__(self, observer: Observer, conversation: TappedConnection, *, is_reply: bool) -> None:
        self._observer = observer
        self._conversation = conversation
        self._is_reply = is_reply
        self._rest = b""  # the beginning of an incomplete frame
        self._sent = 0  # bytes of complete frames that were sent
        self._received = 0
        self._travelling: deque[tuple[int, Frame]] = deque()
        self._damaged: deque[int] = deque()  # offsets in the whole stream

    def damaged(self, at: int) -> None:
        """A byte of the data that is about to be sent is damaged on the way.

        Args:
            at: Its offset in the data that the next call of ``sent`` gets.
        """
        self._damaged.append(self._sent + len(self._rest) + at)

    def sent(self, data: bytes) -> None:
        """The sender has handed these bytes to the network."""
        if self._rest:
            data = self._rest + data
        at, view, frames = 0, memoryview(data), []
        while len(data) - at >= _LENGTH_BYTES:
            stop = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "little")
            if stop > len(data):
                break
            frame = Frame(Header._make(HEADER.unpack_from(data, at)), view[at:stop])
            self._sent += stop - at
            self._travelling.append((self._sent, frame))
            frames.append(frame)
            at = stop
        self._rest = data[at:]
        for frame in frames:
            self._observer.on_sent(self._conversation, frame, is_reply=self._is_reply)

    def received(self, count: int) -> None:
        """The receiver has taken ``count`` bytes."""
        self._received += count
        travelling = self._travelling
        while travelling and travelling[0][0] <= self._received:
            end, frame = travelling.popleft()
            if self._damaged and self._damaged[0] < end:
                begin, is_refused = end - len(frame.raw), False
                while self._damaged and self._damaged[0] < end:
                    is_refused |= self._damaged.popleft() - begin < _checked_bytes(frame)
                if is_refused:
                    travelling.clear()
                    self._received = -_FOR_EVER
                continue
            self._observer.on_received(self._conversation, frame, is_reply=self._is_reply)


def _checked_bytes(frame: Frame) -> int:
    """Return how many bytes of a frame its own checksum covers, with the fields before it."""
    header = frame.header
    body_bytes = len(frame.raw) - HEADER_BYTES
    return HEADER_BYTES + index_bytes(header.kind, header.flags, header.entry_count, body_bytes)
