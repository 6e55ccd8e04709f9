"""An exception of a body comes out as it was raised. A node stops with one failure, and not with a group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from serving import Machine

from ledgerlog import connect
from ledgerlog.cli.processes import open_children
from ledgerlog.concurrency.nurseries import background, open_nursery, open_serving_nursery
from ledgerlog.meta.sqlite import open_sqlite_store


@asynccontextmanager
async def bare_nursery(_: Path) -> AsyncIterator[None]:
    async with open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        yield


@asynccontextmanager
async def serving_nursery(_: Path) -> AsyncIterator[None]:
    async with open_serving_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        yield


@asynccontextmanager
async def task_beside(_: Path) -> AsyncIterator[None]:
    async with background(trio.sleep_forever, name="background"):
        yield


@asynccontextmanager
async def sqlite_store(path: Path) -> AsyncIterator[None]:
    async with open_sqlite_store(path / "metadata.sqlite"):
        yield


@asynccontextmanager
async def child_processes(_: Path) -> AsyncIterator[None]:
    async with open_children():
        yield


@asynccontextmanager
async def whole_bookie(_: Path) -> AsyncIterator[None]:
    async with Machine().bookie():
        yield


@asynccontextmanager
async def embedded_cluster(path: Path) -> AsyncIterator[None]:
    async with connect(f"file:{path}/cluster"):
        yield


@pytest.mark.parametrize(
    "opened",
    [
        bare_nursery,
        serving_nursery,
        task_beside,
        sqlite_store,
        child_processes,
        whole_bookie,
        embedded_cluster,
    ],
)
@pytest.mark.parametrize(
    "error",
    [
        ValueError("the body's"),
        ExceptionGroup("the body's", [ValueError("one")]),
        KeyboardInterrupt(),
        BaseExceptionGroup("the body's", [KeyboardInterrupt()]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_the_body_raises_comes_out_as_it_was_raised(
    opened: object, error: BaseException, tmp_path: Path
) -> None:
    raised: BaseException | None = None
    try:
        async with opened(tmp_path):
            raise error
    except BaseException as caught:
        raised = caught
    assert raised is error


async def test_the_failure_of_a_task_cancels_the_body_and_is_raised_alone() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def run() -> None:
        async with open_nursery() as outer, open_nursery() as inner:
            inner.start_soon(fail)
            outer.start_soon(trio.sleep_forever)
            await trio.sleep_forever()

    with pytest.raises(ZeroDivisionError):
        await run()


async def test_a_failure_of_the_body_and_what_a_task_meets_while_it_is_cancelled_are_both_told() -> None:
    async def fail_on_the_way_out() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ZeroDivisionError

    async def run() -> None:
        async with open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(fail_on_the_way_out)
            await trio.testing.wait_all_tasks_blocked()
            raise ValueError

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert [type(each) for each in caught.value.exceptions] == [ValueError, ZeroDivisionError]


async def test_tasks_that_serve_a_body_end_with_it() -> None:
    async with open_serving_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)


async def test_a_bug_in_a_task_that_serves_a_body_is_not_taken_for_a_failure_of_the_body() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def run() -> None:
        async with open_serving_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert caught.group_contains(ZeroDivisionError)


async def test_a_cancelled_body_ends_as_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    with trio.move_on_after(1) as scope:
        async with open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_nursery_that_its_body_cancels_catches_that_in_a_group_too() -> None:
    escaped: BaseException | None = None
    try:
        async with open_nursery() as nursery:
            nursery.cancel_scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as cancelled:
                raise BaseExceptionGroup("of the body", [cancelled]) from None
    except BaseException as error:
        escaped = error
    assert escaped is None
    assert nursery.cancel_scope.cancelled_caught
