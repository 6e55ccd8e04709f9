"""Waiting, in real time, for what other processes and threads do.

Nobody tells a test when a file has grown, a thread has got somewhere or another process has changed the
metadata store, so it has to look again and again; here is the one place that does. ``PATIENCE_S`` bounds each
such wait, and every other wait in real time. It is there to find what hangs, and says nothing about how fast
things are: it is many times what they take, so that a machine with much else to do makes no test fail. It
is less than any limit of a test (``tests/hanging.py``), so that what fails is the wait, by its name. Who
expects tests to fail, as the mutants do, sets ``LEDGERLOG_TEST_PATIENCE_S`` to less.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

PATIENCE_S = float(os.environ.get("LEDGERLOG_TEST_PATIENCE_S", "300"))

T = TypeVar("T")


async def until(
    look: Callable[[], T | Awaitable[T]], *, every_s: float = 0.02, tell: Callable[[], object] | None = None
) -> T:
    """Call ``look`` until its result is true, and return the result. An awaitable result is awaited.

    Raises:
        trio.TooSlowError: It was not true within ``PATIENCE_S``. The message has what ``tell`` returns then.
    """
    with trio.move_on_after(PATIENCE_S):
        while True:
            found = look()
            seen: T = await found if inspect.isawaitable(found) else found
            if seen:
                return seen
            await trio.sleep(every_s)
    raise trio.TooSlowError(f"not true within {PATIENCE_S:g} s" + (f": {tell()}" if tell is not None else ""))
