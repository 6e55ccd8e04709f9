"""Fair turns for streams whose calls often need not wait.

A call that finds what it wants at once is cheapest if it returns at once. A peer that always has more to
give would then keep the loop for itself. So a task that has handled ``limits.TURN_BYTES`` since it last
waited lets the other tasks run before it goes on; until then it only notices a cancellation.

Bytes alone do not tell the work: a frame of a hundred bytes takes as long as one of a few thousand. So each
thing counts for ``least`` bytes, however small it is. Who handles frames counts frames, of which there are
``limits.TURN_FRAMES`` in a turn at most. A stream counts its calls (``limits.TURN_CALLS``); it only copies
bytes, which is an eighth of the work of handling them (``spend_copied``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from trio.lowlevel import checkpoint, checkpoint_if_cancelled

from ledgerlog.limits import TURN_BYTES, TURN_CALLS
from ledgerlog.net.transport import Buffer, Stream, buffers_bytes, unsent

__all__ = ["Turns", "send_all_of"]


class Turns:
    """The turns of one task, or of one stream."""

    __slots__ = ("_least", "_left")

    def __init__(self, *, least: int = TURN_BYTES // TURN_CALLS) -> None:
        self._least = least
        self._left = TURN_BYTES

    @property
    def is_over(self) -> bool:
        """Whether the next ``take`` lets the others run."""
        return self._left <= 0

    async def take(self) -> None:
        """A checkpoint; a cheap one as long as the turn is not over."""
        if self._left > 0:
            await checkpoint_if_cancelled()
        else:
            self._left = TURN_BYTES
            await checkpoint()

    def spend(self, count: int) -> None:
        """One thing of ``count`` bytes was handled."""
        least = self._least
        self._left -= count if count > least else least

    def spend_copied(self, count: int) -> None:
        """``count`` bytes were copied by one call, and nothing else was done with them."""
        self.spend(count >> 3)

    def renew(self) -> None:
        """The others have just had their turn."""
        self._left = TURN_BYTES


async def send_all_of(
    stream: Stream, buffers: Sequence[Buffer], turns: Turns, wait_room: Callable[[], Awaitable[object]]
) -> None:
    """``Stream.send_all`` by way of ``send_nowait``, with ``wait_room`` between the attempts."""
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
