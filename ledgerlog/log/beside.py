"""Tasks that serve the body of an ``async with``, without a group around what the body raises.

A nursery wraps every exception in an ExceptionGroup. People who write ``async with log.writer()`` did
not open a nursery, so what their body raises must come out as they raised it. Only a bug in a serving
task comes out in a group.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def beside(task: Callable[[], Awaitable[None]], *, name: str) -> AsyncIterator[None]:
    """Run ``task`` during the body; it is cancelled when the body ends, and its own end ends nothing."""
    error: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task, name=name)
            try:
                yield
            except BaseException as caught:
                error = caught
            nursery.cancel_scope.cancel()
    except BaseException as ended:
        if error is None or not _is_cancellation(ended):
            raise
    if error is not None:
        raise error


def _is_cancellation(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled)
