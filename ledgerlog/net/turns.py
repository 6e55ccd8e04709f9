"""Fair turns for tasks that use a stream, if the calls of the stream often return without a wait.

A call that need not wait is cheapest if it returns at once. But if the peer always sends more, the task would
never let another task run. So after it has handled ``limits.TURN_BYTES`` without waiting, which is one
*turn*, the task lets the other tasks run before it continues. Until then, it only checks for a cancellation.

Bytes alone do not measure the work: a frame of a hundred bytes takes as long as one of a few thousand. So
each item counts for at least ``least`` bytes. For a task that handles frames, an item is a frame, and a turn
has at most ``limits.TURN_FRAMES``. For a stream, an item is a call, and a turn has at most
``limits.TURN_CALLS``. A stream only copies bytes, which is an eighth of the work of handling them
(``spend_copied``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from trio.lowlevel import checkpoint, checkpoint_if_cancelled

from ledgerlog.limits import TURN_BYTES, TURN_CALLS
from ledgerlog.net.transport import Buffer, Stream, buffers_bytes, unsent

__all__ = ["Turns", "send_all_of"]


class Turns:
    """The turns of one task, or of one stream."""

    __slots__ = ("_least", "left")

    def __init__(self, *, least: int = TURN_BYTES // TURN_CALLS) -> None:
        self._least = least
        self.left = TURN_BYTES
        """The bytes that are left of the turn. If none are left, the next ``take`` lets other tasks run."""

    async def take(self) -> None:
        """Run a checkpoint: a cheap one until the turn is over, then one that lets other tasks run."""
        if self.left > 0:
            await checkpoint_if_cancelled()
        else:
            self.left = TURN_BYTES
            await checkpoint()

    def spend(self, count: int) -> None:
        """Count one item of ``count`` bytes that was handled."""
        least = self._least
        self.left -= count if count > least else least

    def spend_copied(self, count: int) -> None:
        """Count ``count`` bytes that one call only copied."""
        cost, least = count >> 3, self._least
        self.left -= cost if cost > least else least

    def renew(self) -> None:
        """Begin a new turn: other tasks have just run."""
        self.left = TURN_BYTES


async def send_all_of(
    stream: Stream, buffers: Sequence[Buffer], turns: Turns, wait_room: Callable[[], Awaitable[object]]
) -> None:
    """Implement ``Stream.send_all`` with ``send_nowait``, calling ``wait_room`` between the attempts."""
    await turns.take()
    left = buffers_bytes(buffers)
    while True:
        sent = stream.send_nowait(buffers)
        turns.spend_copied(sent)
        left -= sent
        if not left:
            return
        buffers = unsent(buffers, sent)
        await wait_room()
