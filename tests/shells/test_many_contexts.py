"""A program has many writers and readers open in one AsyncExitStack. It may leave them in any way."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest
import trio

import ledgerlog
from ledgerlog import Cluster, Log
from ledgerlog.concurrency.nurseries import is_cancelled, open_nursery, open_serving_nursery

MANY = 150
"""As many contexts. What recurses once for each meets the limit, which is lower for these tests."""
ROOM = 120
"""Frames that a test has beyond its own."""


@pytest.fixture
def _little_room() -> Iterator[None]:
    before = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(before)


def leave_little_room() -> None:
    sys.setrecursionlimit(len(inspect.stack(0)) + ROOM)


class Wrong(Exception):
    """What a body raises."""


Open = Callable[[Cluster, Log], AbstractAsyncContextManager[object]]

CONTEXTS: dict[str, Open] = {
    "writers": lambda cluster, log: log.writer(),
    "readers": lambda cluster, log: log.read(follow=True),
    "nurseries": lambda cluster, log: open_nursery(),
    "serving nurseries": lambda cluster, log: open_serving_nursery(),
}


@pytest.mark.usefixtures("_little_room")
@pytest.mark.parametrize("end", ["normally", "by an error", "cancelled", "cancelled in a wait"])
@pytest.mark.parametrize("kind", CONTEXTS)
async def test_many_contexts_of_one_stack_are_left(kind: str, end: str) -> None:
    async with ledgerlog.connect("memory:") as cluster:
        names = [f"log-{number}" for number in range(MANY if kind == "writers" else 1)]
        logs = [await cluster.create_log(name) for name in names]
        is_wrong = False
        with trio.CancelScope() as scope:
            try:
                async with AsyncExitStack() as stack:
                    for number in range(MANY):
                        log = logs[number % len(logs)]
                        await stack.enter_async_context(CONTEXTS[kind](cluster, log))
                    leave_little_room()
                    if end == "by an error":
                        raise Wrong
                    if end.startswith("cancelled"):
                        scope.cancel()
                    if end == "cancelled in a wait":
                        await trio.sleep_forever()
            except Wrong:
                is_wrong = True
        assert is_wrong == (end == "by an error")
        if end == "cancelled in a wait":
            assert scope.cancelled_caught
        if kind == "writers" and not end.startswith("cancelled"):
            for log in logs:
                ledger_id = (await log.info()).segments[-1].ledger_id
                assert (await cluster.ledgers.metadata(ledger_id)).is_closed


async def test_whether_it_is_cancelled_is_said_as_trio_says_it() -> None:
    assert not await is_cancelled()
    with trio.CancelScope() as scope:
        assert not await is_cancelled()
        scope.cancel()
        assert await is_cancelled()
        with trio.CancelScope(shield=True):
            assert not await is_cancelled()
        await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_cancellation_comes_out_of_nurseries_as_one_and_a_bug_beside_it_in_a_group() -> None:
    async def fail() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise Wrong

    async def cancelled() -> None:
        with trio.CancelScope() as scope:
            async with open_serving_nursery(), open_serving_nursery() as nursery:
                nursery.start_soon(fail)
                nursery.start_soon(trio.sleep_forever)
                await trio.lowlevel.checkpoint()
                scope.cancel()
                await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await cancelled()
    assert caught.value.subgroup(Wrong) is not None
    assert caught.value.subgroup(trio.Cancelled) is None
