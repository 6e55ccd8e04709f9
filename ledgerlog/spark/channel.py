"""Taking the results of a trio task out of the task's channel."""

from __future__ import annotations

from typing import TypeVar

import trio

from ledgerlog.errors import LedgerLogError

__all__ = ["take_from"]

T = TypeVar("T")


async def take_from(receive: trio.MemoryReceiveChannel[T | LedgerLogError], broken: Exception) -> T:
    """Return the next result.

    Args:
        receive: The channel. If the next item is a ``LedgerLogError``, the task has ended and this function
            raises the error.
        broken: The error to raise if the task closed the channel without sending its end. That is a bug.
    """
    try:
        got = await receive.receive()
    except trio.EndOfChannel:
        raise broken from None
    if isinstance(got, LedgerLogError):
        raise got
    return got
