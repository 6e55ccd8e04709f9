"""Nurseries that are an implementation detail: an exception of the body comes out unchanged, not in a group.

trio wraps the failures of a nursery in an exception group, even if there is only one failure. A user who
writes ``async with connect(...)`` did not open a nursery, so an exception that the user raises in the body
must come out as it is. A bookie has three nurseries inside each other, and nearly always one fault stops it.
The operator should see that fault, without three groups around it.

A cancellation goes through the nursery in the ordinary way. The scope that was cancelled may be the nursery's
own scope, and then only the nursery can catch the cancellation. If a cancellation comes out of the nursery,
it comes out as one bare ``Cancelled``, unless other failures come with it in a group.

A program may stack a thousand of these nurseries around one body, in an ``AsyncExitStack``. So the cost of
one nursery must not grow with the number of nurseries around it. The code does not nest one more group for
each level, does not recurse through nested groups (splitting a group recurses), and does not look at all
scopes around the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

__all__ = ["background", "holds_cancellation", "is_cancelled", "open_nursery", "open_serving_nursery"]


@asynccontextmanager
async def open_nursery() -> AsyncIterator[trio.Nursery]:
    """Open a nursery that raises a single failure bare, without a group.

    If the body raises, the tasks are cancelled and the exception comes out unchanged. If one task fails, its
    exception comes out bare, even if several groups wrap it. If the body and a task fail, both come out in
    one group.
    """
    async with _opened(bare=True) as nursery:
        yield nursery


@asynccontextmanager
async def open_serving_nursery() -> AsyncIterator[trio.Nursery]:
    """Open a nursery for tasks that serve the body. Such a task fails only because of a bug.

    When the body ends, the tasks are cancelled. An exception of the body comes out unchanged. An exception of
    a task always comes out in a group, together with the body's exception if there is one. The caller
    therefore cannot mistake a bug in a task for an answer to its own call.
    """
    async with _opened(bare=False) as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def background(task: Callable[[], Awaitable[None]], *, name: str) -> AsyncIterator[None]:
    """Run ``task`` while the body runs.

    The task is cancelled when the body ends. If the task returns first, the body continues.

    Args:
        task: The async function to run. If it raises, the exception comes out in a group, as in
            ``open_serving_nursery``.
        name: The name of the task for debuggers and trio's tools.
    """
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
        # If the body failed, we cancelled the tasks. Report only the other exceptions of the tasks.
        failure = _with_one_cancellation(ended) if body_error is None else _without_cancellation(ended)
    while bare and isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    if failure is not None and body_error is not None:
        failure = BaseExceptionGroup("the body and a task failed", [body_error, failure])
    try:
        # Raise outside of the except block. Inside it, Python would show the group as the context of its own
        # member.
        if failure is not None:
            raise failure
        if body_error is not None:
            raise body_error
    finally:
        del failure, body_error


def holds_cancellation(error: BaseException) -> bool:
    """Return whether ``error`` is a cancellation, or a group that contains one."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(trio.Cancelled) is not None
    return isinstance(error, trio.Cancelled)


async def is_cancelled() -> bool:
    """Return whether the next await would be cancelled.

    ``trio.current_effective_deadline()`` answers this too, but it recurses over all scopes around the caller.
    """
    try:
        await trio.lowlevel.checkpoint_if_cancelled()
    except trio.Cancelled:
        return True  # The next checkpoint raises Cancelled again.
    return False


def _with_one_cancellation(error: BaseException) -> BaseException:
    """Replace all cancellations of body and tasks by one, either bare or in the topmost group."""
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
    """Remove the cancellations; None if nothing is left."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1]
    return None if isinstance(error, trio.Cancelled) else error
