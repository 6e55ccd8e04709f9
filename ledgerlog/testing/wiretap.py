"""What the processes of a simulated cluster tell each other, frame by frame, for whoever checks it.

The network carries bytes in pieces, cut anywhere. A ``Tap`` sits on one direction of one connection, cuts
what goes in into frames again, and tells an observer of each frame twice: when its sender has handed the last
byte of it to the network, and when its receiver has taken the last byte out. Both are called in the task of
the process that acts, so a rule that is broken is told at the step that breaks it. A frame that is lost on
the way is sent and never received.

A tap takes nothing away and adds nothing: it draws no chance and takes no time.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import attrs

from ledgerlog.testing.process import Incarnation
from ledgerlog.wire.frame import HEADER, Frame, Header

__all__ = ["Conversation", "Observer", "Tap"]

_LENGTH_BYTES = 4


@attrs.frozen(eq=False)
class Conversation:
    """One connection."""

    client: Incarnation
    """Who opened it."""
    server: Incarnation
    number: int


class Observer(Protocol):
    """Who is told. ``is_reply``: it goes to the client. May raise, in the task that sends or receives."""

    def on_sent(self, conversation: Conversation, frame: Frame, *, is_reply: bool) -> None: ...

    def on_received(self, conversation: Conversation, frame: Frame, *, is_reply: bool) -> None: ...


class Tap:
    """One direction of one connection."""

    __slots__ = ("_conversation", "_is_reply", "_observer", "_received", "_rest", "_sent", "_travelling")

    def __init__(self, observer: Observer, conversation: Conversation, *, is_reply: bool) -> None:
        self._observer = observer
        self._conversation = conversation
        self._is_reply = is_reply
        self._rest = b""  # the beginning of a frame that is not complete
        self._sent = 0  # bytes of complete frames
        self._received = 0
        self._travelling: deque[tuple[int, Frame]] = deque()

    def sent(self, data: bytes) -> None:
        """The sender has handed over these bytes."""
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
        """The receiver has taken so many bytes."""
        self._received += count
        travelling = self._travelling
        while travelling and travelling[0][0] <= self._received:
            frame = travelling.popleft()[1]
            self._observer.on_received(self._conversation, frame, is_reply=self._is_reply)
