"""A nursery that raises what went wrong, and not a group with that one thing in it.

trio collects the failures of a nursery in an exception group, also when there is one. A node has three
nurseries inside each other, and what stops it is nearly always one fault: a disk that failed, a listener
that broke, the caller's own exception. That one is what the caller is to see.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_nursery() -> AsyncIterator[trio.Nursery]:
    """As ``trio.open_nursery``; a group of one exception, however deep, is raised as that exception."""
    failure: BaseException
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
        return
    except BaseExceptionGroup as group:
        failure = group
        while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
            failure = failure.exceptions[0]
    try:
        # Outside of the handler, so that the group is not shown as the context of what it held.
        raise failure
    finally:
        del failure
