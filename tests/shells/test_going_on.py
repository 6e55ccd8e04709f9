"""``meta.settle`` for tasks that run for ever: they log an outage once and wait until it is over. They settle
a lost answer at once."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock

from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.errors import (
    LedgerLogError,
    LedgerNotFound,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    SessionExpired,
)
from ledgerlog.meta.memory import MemoryTree
from ledgerlog.meta.settle import follow, go_on, on_lost_answer, on_unsettled
from ledgerlog.meta.store import NodeExists

logger = logging.getLogger(__name__)


@pytest.mark.parametrize("fault", [MetadataUnavailable, MetadataOutcomeUnknown, SessionExpired])
async def test_a_step_that_the_store_does_not_answer_pauses_longer_each_time_and_is_told_once(
    clock: MockClock, caplog: pytest.LogCaptureFixture, fault: type[LedgerLogError]
) -> None:
    async def fail() -> None:
        raise fault("no answer")

    backoff = Backoff(1, 4)
    pauses = []
    with caplog.at_level(logging.DEBUG):
        for _ in range(4):
            began = trio.current_time()
            assert not await go_on(fail, what="the task cannot look", backoff=backoff, log=logger)
            pauses.append(trio.current_time() - began)
    assert pauses == pytest.approx([1, 2, 4, 4])
    assert [record.levelno for record in caplog.records] == [logging.WARNING] + [logging.DEBUG] * 3
    assert caplog.records[0].getMessage() == "the task cannot look now: no answer"


async def test_a_step_that_succeeds_leaves_the_end_of_a_row_of_failures_to_its_caller() -> None:
    backoff = Backoff(1, 4)
    backoff.next_s()
    assert await go_on(trio.lowlevel.checkpoint, what="", backoff=backoff, log=logger)
    assert backoff.is_growing


async def test_what_is_not_the_stores_absence_is_raised() -> None:
    async def fail() -> None:
        raise LedgerNotFound(1)

    with pytest.raises(LedgerNotFound):
        await go_on(fail, what="", backoff=Backoff(1, 4), log=logger)


async def test_whoever_follows_looks_at_once_after_every_change_and_after_every_outage(
    clock: MockClock,
) -> None:
    store = MemoryTree().open_store()
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        if looks in (3, 4):
            raise MetadataUnavailable("away")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            lambda: follow(store, "a", look, what="nothing", log=logger, every_s=100.0, pause_s=3.0)
        )
        await trio.sleep(1)
        assert looks == 1
        await store.create("a", b"")
        await trio.sleep(1)
        assert looks == 2
        await store.create("a/b", b"")
        await trio.sleep(1)
        assert looks == 3
        await trio.sleep(7)
        assert looks == 5
        await trio.sleep(99)
        assert looks == 6
        nursery.cancel_scope.cancel()


async def test_a_lost_answer_is_acted_on_before_the_exception_goes_on() -> None:
    acted: list[str] = []
    with pytest.raises(MetadataOutcomeUnknown), on_lost_answer(lambda: acted.append("lost")):
        raise MetadataOutcomeUnknown("no answer")
    with pytest.raises(MetadataUnavailable), on_lost_answer(lambda: acted.append("away")):
        raise MetadataUnavailable("away")
    with pytest.raises(NodeExists), on_unsettled(lambda: acted.append("refused")):
        raise NodeExists("a")
    with pytest.raises(MetadataOutcomeUnknown), on_unsettled(lambda: acted.append("unsettled")):
        raise MetadataOutcomeUnknown("no answer")
    assert acted == ["lost", "refused", "unsettled"]


@pytest.mark.parametrize("is_cancelled_too", [False, True])
async def test_a_cancelled_write_has_lost_its_answer_if_the_caller_says_so(is_cancelled_too: bool) -> None:
    acted: list[str] = []
    with trio.move_on_after(0), on_lost_answer(lambda: acted.append("x"), is_cancelled_too=is_cancelled_too):
        await trio.sleep_forever()
    assert acted == ["x"] * is_cancelled_too
