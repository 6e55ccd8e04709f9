"""Waiting for several things at once, with ordinary faults raised as themselves.

A nursery wraps whatever its tasks raise in a group. For a caller who asked one question ("where does
this ledger end?") that is wrong: an expected fault (``LedgerLogError``) must come out bare, whichever of
the tasks behind the question met it. A group that does come out of here is a bug, or a cancellation.

Everything here is a plain wait: cancelling it cancels the tasks behind it, and when it returns or raises,
none of them is left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from ledgerlog.errors import LedgerLogError

__all__ = ["first_of", "together"]

Work = Callable[[], Awaitable[object]]


async def together(*works: Work) -> None:
    """Do all of them; return when all have returned. The first that raises a LedgerLogError ends the
    others, and that error is raised."""
    await _run(works, first_ends=False)


async def first_of(*works: Work) -> None:
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
