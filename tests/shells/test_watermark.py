"""A watermark wakes exactly the waiting tasks whose level it has reached, no matter which tasks are
cancelled."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from ledgerlog.concurrency.watermark import Watermark, fresh
from ledgerlog.errors import AppendUnknown, LedgerClosed, LedgerFenced, RecordTooLarge


class Waits:
    """Tasks that wait for levels, and their outcomes."""

    def __init__(self, watermark: Watermark, nursery: trio.Nursery) -> None:
        self.watermark = watermark
        self.nursery = nursery
        self.order: list[int] = []
        self.failed: list[tuple[int, BaseException]] = []
        self.cancelled: list[int] = []
        self.scopes: list[trio.CancelScope] = []

    async def start(self, *levels: int) -> None:
        for level in levels:
            scope = trio.CancelScope()
            self.scopes.append(scope)
            self.nursery.start_soon(self._wait, level, scope)
            await trio.testing.wait_all_tasks_blocked()

    async def _wait(self, level: int, scope: trio.CancelScope) -> None:
        with scope:
            try:
                await self.watermark.wait(level)
            except LedgerFenced as failure:
                self.failed.append((level, failure))
            else:
                self.order.append(level)
        if scope.cancelled_caught:
            self.cancelled.append(level)


async def test_a_waiter_returns_once_its_level_is_reached_and_not_before() -> None:
    watermark = Watermark()
    async with trio.open_nursery() as nursery:
        waits = Waits(watermark, nursery)
        await waits.start(0, 1, 5)
        watermark.advance(1)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(waits.order) == [0, 1]
        watermark.advance(4)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(waits.order) == [0, 1]
        watermark.advance(9)
    assert sorted(waits.order) == [0, 1, 5]


async def test_levels_may_arrive_in_any_order() -> None:
    watermark = Watermark()
    async with trio.open_nursery() as nursery:
        waits = Waits(watermark, nursery)
        await waits.start(5, 2, 9, 2, 0, 7)
        for level in range(10):
            watermark.advance(level)
            await trio.testing.wait_all_tasks_blocked()
    assert waits.order == [0, 2, 2, 5, 7, 9]


async def test_what_is_reached_already_returns_at_the_next_checkpoint() -> None:
    watermark = Watermark(3)
    with trio.testing.assert_checkpoints():
        await watermark.wait(3)
    watermark.fail(LedgerFenced(1))
    with trio.testing.assert_checkpoints():
        await watermark.wait(2)


async def test_a_failure_reaches_everybody_who_waits_and_everybody_who_comes_later() -> None:
    watermark = Watermark()
    async with trio.open_nursery() as nursery:
        waits = Waits(watermark, nursery)
        await waits.start(0, 1, 2)
        watermark.advance(0)
        watermark.fail(LedgerFenced(7, "taken over"))
        watermark.fail(LedgerFenced(8, "too late to matter"))
    assert waits.order == [0]
    assert sorted(level for level, _ in waits.failed) == [1, 2]
    assert {str(failure) for _, failure in waits.failed} == {"ledger 7 is fenced: taken over"}
    with trio.testing.assert_checkpoints(), pytest.raises(LedgerFenced) as caught:
        await watermark.wait(1)
    raised = [failure for _, failure in waits.failed] + [caught.value]
    assert len({id(failure) for failure in raised}) == 3, "everybody raises an exception of his own"


async def test_a_watermark_that_advanced_and_failed_at_once_answers_those_it_reached() -> None:
    watermark = Watermark()
    async with trio.open_nursery() as nursery:
        waits = Waits(watermark, nursery)
        await waits.start(3, 4)
        watermark.advance(3)
        watermark.fail(LedgerFenced(1))
    assert waits.order == [3]
    assert [level for level, _ in waits.failed] == [4]


async def test_a_cancelled_waiter_disturbs_nobody() -> None:
    watermark = Watermark()
    async with trio.open_nursery() as nursery:
        waits = Waits(watermark, nursery)
        await waits.start(1, 1, 2)
        waits.scopes[0].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert waits.cancelled == [1]
        watermark.advance(2)
    assert sorted(waits.order) == [1, 2]


async def test_a_waiter_that_was_reached_before_its_cancellation_returns() -> None:
    watermark = Watermark()
    async with trio.open_nursery() as nursery:
        waits = Waits(watermark, nursery)
        await waits.start(1)
        watermark.advance(1)
        waits.scopes[0].cancel()
    assert waits.order == [1]
    assert waits.cancelled == []


async def test_giving_up_again_and_again_before_a_stalled_watermark_holds_no_memory() -> None:
    watermark = Watermark()
    for _ in range(1_000):
        with trio.CancelScope() as scope:
            scope.cancel()
            await watermark.wait(5)
    assert len(watermark._waiters) <= 129
    watermark.advance(5)
    assert not watermark._waiters
    assert watermark._dead == 0


async def test_everybody_is_answered_once_whatever_is_cancelled() -> None:
    for seed in range(20):
        dice = random.Random(seed)
        watermark = Watermark()
        async with trio.open_nursery() as nursery:
            waits = Waits(watermark, nursery)
            await waits.start(*(dice.randrange(30) for _ in range(60)))
            for _ in range(25):
                if dice.random() < 0.6:
                    dice.choice(waits.scopes).cancel()
                else:
                    watermark.advance(min(29, watermark.value + dice.randrange(4)))
                if dice.random() < 0.5:
                    await trio.testing.wait_all_tasks_blocked()
            if dice.random() < 0.5:
                watermark.fail(LedgerFenced(1))
            else:
                watermark.advance(29)
        assert len(waits.order) + len(waits.failed) + len(waits.cancelled) == 60
        assert all(level > watermark.value for level, _ in waits.failed)
        assert all(level <= watermark.value for level in waits.order)
        assert not watermark._waiters
        assert watermark._dead == 0


async def test_going_back_or_moving_after_a_failure_is_a_bug() -> None:
    watermark = Watermark(4)
    with pytest.raises(AssertionError, match="never goes back"):
        watermark.advance(3)
    watermark.fail(LedgerFenced(1))
    with pytest.raises(AssertionError, match="does not move"):
        watermark.advance(5)


def test_a_fresh_copy_says_what_the_original_says() -> None:
    cause = ValueError("deep below")
    closed = LedgerClosed(4, 17, "by its owner")
    closed.__cause__ = cause
    copy = fresh(closed)
    assert copy is not closed
    assert type(copy) is LedgerClosed
    assert str(copy) == str(closed) == "ledger 4 is closed at entry 17: by its owner"
    assert (copy.ledger_id, copy.last_entry) == (4, 17)
    assert copy.__cause__ is cause
    assert copy.__traceback__ is None
    assert str(fresh(RecordTooLarge(9, 8))) == str(RecordTooLarge(9, 8))
    assert str(fresh(AppendUnknown("who knows"))) == "who knows"
