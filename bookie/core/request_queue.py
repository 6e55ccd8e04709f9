"""The queue of one connection's requests: which request may begin now.

A client may have a thousand requests under way. If each request were a task, a client that disconnects would
end a thousand tasks at once, and all other clients would wait for that. So a request waits here as a value,
and becomes a task only when it may begin:

* The bookie works on only a few requests of a connection at the same time.
* While many bytes of replies wait for the client to read them, the bookie begins no request. Otherwise a
  client that does not read its replies could make the bookie read entries for nothing.

Requests wait in three lines (``Line``). Each line has its own places: how many of its requests the bookie
works on at the same time. So the fence of a new leader never waits for the reads of its own connection, and a
client that follows a ledger does not wait for its own reads of old entries.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Generic, TypeVar

__all__ = ["Line", "RequestQueue"]

T = TypeVar("T")


class Line(Enum):
    """A line of requests. If requests of several lines may begin, the requests of the first line begin
    first."""

    URGENT = "urgent"
    """Fences and recovery reads."""
    POLL = "poll"
    """Long polls. While a long poll waits for its ledger to grow, it is in no line."""
    USUAL = "usual"


class RequestQueue(Generic[T]):
    """The requests of one connection. ``T`` is the caller's type of a request.

    Args:
        urgent_max: The most urgent requests that are worked on at the same time.
        polls_max: The same for long polls.
        usual_max: The same for all other requests.
        unread_bytes_max: If more bytes of replies wait for the client, no request begins.
    """

    __slots__ = ("_lines", "_unread_bytes", "_unread_bytes_max")

    def __init__(self, *, urgent_max: int, polls_max: int, usual_max: int, unread_bytes_max: int) -> None:
        self._lines: dict[Line, _Places[T]] = {
            Line.URGENT: _Places(urgent_max),
            Line.POLL: _Places(polls_max),
            Line.USUAL: _Places(usual_max),
        }
        self._unread_bytes_max = unread_bytes_max
        self._unread_bytes = 0

    @property
    def unread_bytes(self) -> int:
        """The bytes of replies that wait for the client to read."""
        return self._unread_bytes

    def add(self, request: T, line: Line) -> None:
        """Queue a request. ``begin`` returns it when it may begin."""
        self._lines[line].waiting.append(request)

    def begin(self) -> T | None:
        """Return the next request that may begin, and count it as begun. None: no request may begin now."""
        if self._unread_bytes > self._unread_bytes_max:
            return None
        for places in self._lines.values():
            request = places.begin()
            if request is not None:
                return request
        return None

    def end(self, line: Line) -> None:
        """Say that the work on a request of this line is over."""
        self._lines[line].end()

    def hold(self, count: int) -> None:
        """Say that ``count`` bytes of a reply wait for the client."""
        self._unread_bytes += count

    def release(self, count: int) -> None:
        """Say that ``count`` of these bytes are sent."""
        assert 0 <= count <= self._unread_bytes, "more was sent than had waited"
        self._unread_bytes -= count

    def clear(self) -> list[T]:
        """Remove and return the waiting requests. Call this when the connection has ended."""
        return [request for places in self._lines.values() for request in places.clear()]


class _Places(Generic[T]):
    __slots__ = ("_most", "_working", "waiting")

    def __init__(self, most: int) -> None:
        self.waiting: deque[T] = deque()
        self._most = most
        self._working = 0

    def begin(self) -> T | None:
        if not self.waiting or self._working >= self._most:
            return None
        self._working += 1
        return self.waiting.popleft()

    def end(self) -> None:
        assert self._working, "no request had begun"
        self._working -= 1

    def clear(self) -> list[T]:
        left = list(self.waiting)
        self.waiting.clear()
        return left
