"""Wait for several tasks at once, and raise an expected fault bare.

A nursery wraps the exceptions of its tasks in a group. That is wrong for a caller who asked one question, for
example "where does this ledger end?". Several tasks may work on the answer. If one of them meets an expected
fault (``LedgerLogError``), the caller must get that fault without a group. If one of these functions does
raise a group, the group holds a bug or a cancellation.

If you cancel one of these functions, its tasks are cancelled. When it returns or raises, all of its tasks
have ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

import trio

from ledgerlog.errors import LedgerLogError

__all__ = ["gather", "gather_each", "race"]

Work = Callable[[], Awaitable[object]]
T = TypeVar("T")


async def gather(*works: Work) -> None:
    """Run all ``works`` and return when all have returned.

    The first ``LedgerLogError`` of a work cancels the others and is raised.
    """
    await _run(works, first_ends=False)


async def gather_each(items: Collection[T], work: Callable[[T], Awaitable[object]], *, at_once: int) -> None:
    """Call ``work`` for every item.

    Args:
        items: The items, in the order in which they are started.
        work: The async function to call with one item.
        at_once: How many calls run at the same time at most; at least 1.

    Raises:
        LedgerLogError: One call raised it; the others were cancelled, and items that had not started are
            skipped.
    """
    assert at_once > 0, "no item would be started"
    waiting = iter(items)

    async def some() -> None:
        for item in waiting:
            await work(item)

    await gather(*[some] * min(at_once, len(items)))


async def race(*works: Work) -> None:
    """Run all ``works`` until the first one returns or raises a ``LedgerLogError``; cancel the others.

    Raises:
        LedgerLogError: A work raised it; the others were cancelled.
    """
    await _run(works, first_ends=True)


async def _run(works: tuple[Work, ...], *, first_ends: bool) -> None:
    failure: LedgerLogError | None = None
    is_ended = False

    async def run(work: Work, nursery: trio.Nursery) -> None:
        nonlocal failure, is_ended
        try:
            await work()
        except LedgerLogError as error:
            if is_ended:
                return  # The outcome is decided already; ignore an error that comes during the cancellation.
            failure, is_ended = error, True
        is_ended = is_ended or first_ends
        if is_ended:
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(run, work, nursery)
    if failure is not None:
        raise failure
