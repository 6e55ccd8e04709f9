"""Fair turns for streams whose calls often need not wait.

A call that finds what it wants at once is cheapest if it returns at once. A peer that always has more to
give would then keep the loop for itself. So every ``FREE_TURNS``-th call lets the other tasks run before it
tries; the calls between only notice a cancellation. A call that really waited starts the count anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from trio.lowlevel import checkpoint, checkpoint_if_cancelled

from ledgerlog.net.transport import Buffer, Stream, buffers_bytes, unsent

__all__ = ["FREE_TURNS", "Turns", "send_all_of"]

FREE_TURNS = 16


class Turns:
    """The turns of one stream."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free = FREE_TURNS

    async def take(self) -> None:
        """A checkpoint; a cheap one most of the time."""
        self._free -= 1
        if self._free > 0:
            await checkpoint_if_cancelled()
        else:
            self._free = FREE_TURNS
            await checkpoint()

    def renew(self) -> None:
        """The others have just had their turn."""
        self._free = FREE_TURNS


async def send_all_of(
    stream: Stream, buffers: Sequence[Buffer], turns: Turns, wait_room: Callable[[], Awaitable[object]]
) -> None:
    """``Stream.send_all`` by way of ``send_nowait``, with ``wait_room`` between the attempts."""
    await turns.take()
    left = buffers_bytes(buffers)
    while True:
        sent = stream.send_nowait(buffers)
        left -= sent
        if not left:
            return
        buffers = unsent(buffers, sent)
        await wait_room()
