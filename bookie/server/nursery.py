"""A nursery that raises what went wrong, and not a group with that one thing in it.

trio collects the failures of a nursery in an exception group, also when there is one. A node has three
nurseries inside each other, and what stops it is nearly always one fault: a disk that failed, a listener
that broke, the caller's own exception. That one is what the caller is to see.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from bookie.storage.cancellation import holds_cancellation


@asynccontextmanager
async def open_nursery() -> AsyncIterator[trio.Nursery]:
    """As ``trio.open_nursery``; what the body raises comes out as it is, and ends the tasks. A group of one
    failure of a task, however deep, is raised as that failure; with one of the body, both in a group."""
    body_error: BaseException | None = None
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:
                if holds_cancellation(error):
                    raise
                body_error = error
                nursery.cancel_scope.cancel()
    except BaseException as ended:
        if body_error is None or not holds_cancellation(ended):
            failure = ended
    while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    if failure is not None and body_error is not None:
        failure = BaseExceptionGroup("the body and a task failed", [body_error, failure])
    try:
        # Outside of the handler, so that the group is not shown as the context of what it held.
        if failure is not None:
            raise failure
        if body_error is not None:
            raise body_error
    finally:
        del failure, body_error
