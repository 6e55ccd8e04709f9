"""Bounds of a bookie's server: reply bytes that are taken and given back, log lines of strangers."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from bookie.server.budget import ByteBudget
from ledgerlog.concurrency.complaints import LINES, PERIOD_S, Complaints
from tests.waiting import PATIENCE_S


async def test_bytes_are_taken_at_once_while_they_fit_and_waited_for_in_order_when_not(
    nursery: trio.Nursery,
) -> None:
    budget = ByteBudget(100)
    served: list[int] = []

    async def take(count: int) -> None:
        await budget.take(count)
        served.append(count)

    await take(60)
    for count in (50, 10, 40):  # 10 would fit, but it came after 50.
        nursery.start_soon(take, count)
        await trio.testing.wait_all_tasks_blocked()
    assert served == [60]
    budget.give(60)
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(served) == [10, 40, 50, 60]
    assert budget.used == 100


async def test_more_than_the_whole_budget_is_served_alone(nursery: trio.Nursery) -> None:
    budget = ByteBudget(100)
    await budget.take(1)
    nursery.start_soon(budget.take, 500)
    await trio.testing.wait_all_tasks_blocked()
    assert budget.used == 1
    budget.give(1)
    assert budget.used == 500


async def test_who_stops_waiting_lets_the_next_one_through(nursery: trio.Nursery) -> None:
    budget = ByteBudget(100)
    await budget.take(60)
    with trio.CancelScope() as given_up:
        nursery.start_soon(_cancel_when_blocked, given_up)
        await budget.take(90)
    assert given_up.cancelled_caught
    with trio.fail_after(PATIENCE_S):
        await budget.take(40)
    assert budget.used == 100


async def test_a_wait_that_is_cancelled_in_the_moment_it_is_served_has_taken_nothing() -> None:
    budget = ByteBudget(100)
    await budget.take(100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(budget.take, 50)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        budget.give(100)
    assert budget.used == 0


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def test_a_flood_of_complaints_is_cut_and_what_was_left_out_is_counted(
    caplog: pytest.LogCaptureFixture, mock_clock: trio.testing.MockClock
) -> None:
    complaints = Complaints(logging.getLogger("complaints"))
    for number in range(LINES + 5):
        complaints.tell(f"peer {number}")
    assert len(caplog.records) == LINES
    mock_clock.jump(PERIOD_S)
    complaints.tell("another")
    assert caplog.records[-1].getMessage() == "another (and 5 more such lines were left out)"
    complaints.tell("x" * 10_000)
    assert len(caplog.records[-1].getMessage()) < 500
    assert complaints.count == LINES + 7
