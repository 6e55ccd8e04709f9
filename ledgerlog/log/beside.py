"""Tasks that serve the body of an ``async with``, without a group around what the body raises.

A nursery wraps every exception in an ExceptionGroup. People who write ``async with log.writer()`` did
not open a nursery, so what their body raises must come out as they raised it. Only a bug in a serving
task comes out in a group.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from ledgerlog.nurseries import open_serving_nursery


@asynccontextmanager
async def beside(task: Callable[[], Awaitable[None]], *, name: str) -> AsyncIterator[None]:
    """Run ``task`` during the body; it is cancelled when the body ends, and its own end ends nothing."""
    async with open_serving_nursery() as nursery:
        nursery.start_soon(task, name=name)
        yield
