"""``concurrency.gathering`` and ``concurrency.pace``: several waits at once, and a rate for all who wait."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ledgerlog.concurrency.gathering import gather, gather_each, race
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import LedgerNotFound, MetadataUnavailable


async def test_the_first_expected_fault_ends_the_others_and_comes_out_bare(clock: MockClock) -> None:
    async def fail() -> None:
        await trio.sleep(1)
        raise LedgerNotFound(7)

    with pytest.raises(LedgerNotFound), trio.fail_after(60):
        await gather(fail, trio.sleep_forever)
    with pytest.raises(LedgerNotFound), trio.fail_after(60):
        await race(fail, trio.sleep_forever)
    assert trio.current_time() < 3


async def test_what_the_loser_of_a_race_raises_while_it_is_cancelled_decides_nothing(
    clock: MockClock,
) -> None:
    async def first() -> None:
        await trio.sleep(1)

    async def loser() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise MetadataUnavailable("while it is cancelled")

    await race(first, loser)


async def test_a_bug_comes_out_in_a_group() -> None:
    async def fail() -> None:
        raise KeyError

    with pytest.raises(ExceptionGroup) as raised:
        await gather(fail, trio.sleep_forever)
    assert isinstance(raised.value.exceptions[0], KeyError)


async def test_every_item_is_worked_on_once_and_no_more_than_so_many_at_once(
    clock: MockClock,
) -> None:
    done: list[int] = []
    running = most = 0

    async def work(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1
        done.append(item)

    await gather_each(range(10), work, at_once=3)
    assert sorted(done) == list(range(10))
    assert most == 3
    await gather_each([], work, at_once=3)


async def test_an_expected_fault_of_one_item_ends_the_others(clock: MockClock) -> None:
    async def work(item: int) -> None:
        await trio.sleep(item)
        raise LedgerNotFound(item)

    with pytest.raises(LedgerNotFound) as raised:
        await gather_each((1, 100), work, at_once=2)
    assert raised.value.ledger_id == 1
    assert trio.current_time() < 50


async def test_a_pace_is_waited_for_by_who_spends_and_saves_a_second_at_most(
    clock: MockClock,
) -> None:
    pace = Pace(100)
    await trio.sleep(60)
    began = trio.current_time()
    await pace.pass_through(100)  # What was saved.
    assert trio.current_time() == began
    await pace.pass_through(50)
    await pace.pass_through(50)
    assert trio.current_time() - began == pytest.approx(1.0)
