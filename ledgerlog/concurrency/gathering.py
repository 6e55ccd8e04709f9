"""Waiting for several things at once, with expected faults raised as themselves.

A nursery wraps whatever its tasks raise in a group. For a caller who asked one question ("where does this
ledger end?") that is wrong: an expected fault (``LedgerLogError``) must come out bare, whichever of the tasks
behind the question met it. A group that does come out of here is a bug, or a cancellation.

Everything here is a plain wait: if you cancel it, its tasks are cancelled, and when it returns or raises,
none of them is left.
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
    """Do all of them; return when all have returned. The first that raises a LedgerLogError ends the
    others, and that error is raised."""
    await _run(works, first_ends=False)


async def gather_each(items: Collection[T], work: Callable[[T], Awaitable[object]], *, at_once: int) -> None:
    """Do ``work`` on every item, on at most ``at_once`` at a time; errors as for ``gather``."""
    waiting = iter(items)

    async def some() -> None:
        for item in waiting:
            await work(item)

    await gather(*[some] * min(at_once, len(items)))


async def race(*works: Work) -> None:
    """Do all of them until the first returns or raises a LedgerLogError, which ends the others."""
    await _run(works, first_ends=True)


async def _run(works: tuple[Work, ...], *, first_ends: bool) -> None:
    failure: LedgerLogError | None = None

    async def run(work: Work, nursery: trio.Nursery) -> None:
        nonlocal failure
        try:
            await work()
        except LedgerLogError as error:
            failure = failure or error
            nursery.cancel_scope.cancel()
        if first_ends:
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(run, work, nursery)
    if failure is not None:
        raise failure
