"""Taking the results of a task in trio out of its channel."""

from __future__ import annotations

from typing import TypeVar

import trio

from ledgerlog.errors import LedgerLogError

__all__ = ["take_from"]

T = TypeVar("T")


async def take_from(receive: trio.MemoryReceiveChannel[T | LedgerLogError], broken: Exception) -> T:
    """Return the next result.

    Args:
        receive: The channel. A ``LedgerLogError`` in it is the end of the task, and is raised.
        broken: What to raise if the task closed the channel before its end, which is a bug.
    """
    try:
        got = await receive.receive()
    except trio.EndOfChannel:
        raise broken from None
    if isinstance(got, LedgerLogError):
        raise got
    return got
