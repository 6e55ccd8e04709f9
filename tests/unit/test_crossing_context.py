"""An async context that a task of trio's loop enters for a caller in another loop or thread."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledgerlog.crossing.loop import CallOutcome, Context


@asynccontextmanager
async def refused() -> AsyncIterator[None]:
    raise ValueError("no entry")
    yield


async def test_an_error_of_entering_is_told_once() -> None:
    entered: list[CallOutcome[None]] = []
    ended: list[None] = []
    context = Context(refused(), on_entered=entered.append, on_over=lambda: ended.append(None))
    await context.serve()
    (outcome,) = entered
    assert isinstance(outcome.error, ValueError)
    assert len(ended) == 1
    assert context.over is not None
    assert context.over.error is None, "there is nothing to leave, so leaving raises nothing"
