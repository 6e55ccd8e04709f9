"""Nurseries that their callers do not see: what a body raises comes out as it was raised, not in a group.

trio collects the failures of a nursery in an exception group, also when there is one. People who write
``async with connect(...)`` did not open a nursery: what their body raises must come out as they raised it.
And what stops a node, in three nurseries inside each other, is nearly always one fault, which is to be seen.

A cancellation is not carried around a nursery: its scope may be the nursery's own, and beyond that nobody
would catch it. What comes out of the nursery all the same is one ``Cancelled``, without a group.

A program may have a thousand of these around one body, in an ``AsyncExitStack``. So nothing here grows by a
level, or recurses, with each: neither groups, which are split by recursion, nor a look at all scopes around
the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

__all__ = ["beside", "holds_cancellation", "is_cancelled", "open_nursery", "open_serving_nursery"]


@asynccontextmanager
async def open_nursery() -> AsyncIterator[trio.Nursery]:
    """As ``trio.open_nursery``; what the body raises comes out as it is, and ends the tasks. A group of one
    failure of a task, however deep, is raised as that failure; with one of the body, both in a group."""
    async with _opened(bare=True) as nursery:
        yield nursery


@asynccontextmanager
async def open_serving_nursery() -> AsyncIterator[trio.Nursery]:
    """For tasks that serve the body and fail by a bug alone: they are cancelled when the body ends, and
    what the body raises comes out as it is. What a task raises comes out in a group, the body's failure with
    it, so that nobody takes a bug for an answer to what the body asked."""
    async with _opened(bare=False) as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def beside(task: Callable[[], Awaitable[None]], *, name: str) -> AsyncIterator[None]:
    """Run ``task`` during the body; it is cancelled when the body ends, and its own end ends nothing."""
    async with open_serving_nursery() as nursery:
        nursery.start_soon(task, name=name)
        yield


@asynccontextmanager
async def _opened(*, bare: bool) -> AsyncIterator[trio.Nursery]:
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
        # Where the body failed the tasks were cancelled for that; only what else they met is to be told.
        failure = _with_one_cancellation(ended) if body_error is None else _without_cancellation(ended)
    while bare and isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
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


def holds_cancellation(error: BaseException) -> bool:
    """Whether it is a cancellation, or a group with one in it."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(trio.Cancelled) is not None
    return isinstance(error, trio.Cancelled)


async def is_cancelled() -> bool:
    """Whether the next await would be cancelled. ``trio.current_effective_deadline()`` tells that, too, but
    by recursion over all scopes around the caller."""
    try:
        await trio.lowlevel.checkpoint_if_cancelled()
    except trio.Cancelled:
        return True  # The next checkpoint raises it again.
    return False


def _with_one_cancellation(error: BaseException) -> BaseException:
    """The same with its cancellations, of body and tasks, as one that is in no group but the topmost."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    cancelled, rest = error.split(trio.Cancelled)
    if cancelled is None:
        return error
    one: BaseException = cancelled
    while isinstance(one, BaseExceptionGroup):
        one = one.exceptions[0]
    return one if rest is None else BaseExceptionGroup(error.message, [one, *rest.exceptions])


def _without_cancellation(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1]
    return None if isinstance(error, trio.Cancelled) else error
