"""``meta.settle`` for tasks that run for ever: they log an outage once and wait until it is over. They settle
a lost answer at once."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.errors import (
    LedgerLogError,
    LedgerNotFound,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    SessionExpired,
)
from ledgerlog.limits import METADATA_CONFLICTS_MAX
from ledgerlog.meta.memory import Content, MemoryTree
from ledgerlog.meta.settle import follow, go_on, on_lost_answer, on_unsettled, remove, settle
from ledgerlog.meta.store import NodeExists, VersionConflict
from ledgerlog.meta.watches import TreeWatch
from ledgerlog.testing.faulty_store import Call, FaultyStore, StaleReplica, before

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


@pytest.mark.parametrize("refusal", [MetadataOutcomeUnknown("its answer is lost"), NodeExists("a rival")])
async def test_a_change_is_decided_anew_on_a_store_that_has_caught_up(
    clock: MockClock, refusal: LedgerLogError
) -> None:
    store, done = FaultyStore(MemoryTree()), list[str]()

    async def note(call: Call) -> None:
        done.append(call.verb)

    async def attempt(is_unsure: bool) -> int:
        done.append("attempt")
        if len(done) == 1:
            raise refusal
        assert is_unsure == isinstance(refusal, MetadataOutcomeUnknown)
        return 1

    store.faults.append(before(note))
    assert await settle(store, attempt, what="a change") == 1
    assert done == ["attempt", "sync", "attempt"]


async def test_conflicts_without_end_leave_the_outcome_of_a_lost_answer_unknown(clock: MockClock) -> None:
    tries = 0

    async def attempt(_: bool) -> None:
        nonlocal tries
        tries += 1
        raise MetadataOutcomeUnknown("its answer is lost") if tries == 1 else VersionConflict("a rival")

    with pytest.raises(MetadataOutcomeUnknown, match="it may have happened"):
        await settle(MemoryTree().open_store(), attempt, what="a change")
    assert tries == METADATA_CONFLICTS_MAX + 1


async def test_a_removal_sees_the_node_that_was_made_just_before() -> None:
    tree = MemoryTree()
    await tree.open_store().create("made", b"")
    assert await remove(FaultyStore(tree, StaleReplica(Content())), "made")
    assert await tree.open_store().get("made") is None


async def test_a_watch_waits_for_the_next_change_after_each(nursery: trio.Nursery) -> None:
    store, seen = MemoryTree().open_store(), list[int]()

    async def follow_it() -> None:
        async with store.watch("a") as watch:
            while True:
                await watch.wait()
                seen.append(len(seen))
                assert len(seen) < 10

    nursery.start_soon(follow_it)
    await wait_all_tasks_blocked()
    version = await store.create("a", b"")
    await wait_all_tasks_blocked()
    assert seen == [0]
    await store.set("a", b"x", version=version)
    await wait_all_tasks_blocked()
    assert seen == [0, 1]
    nursery.cancel_scope.cancel()


async def test_a_change_wakes_all_tasks_that_wait_on_a_watch(nursery: trio.Nursery) -> None:
    for _ in range(20):  # Each time in another order.
        watch, begun, woken = TreeWatch("a"), list[int](), list[int]()

        async def wait(number: int, watch: TreeWatch, begun: list[int], woken: list[int]) -> None:
            begun.append(number)
            await watch.wait()
            woken.append(number)

        for number in range(10):
            nursery.start_soon(wait, number, watch, begun, woken)
        while len(begun) < 10:
            await trio.lowlevel.checkpoint()
        watch.mark()
        await wait_all_tasks_blocked()
        assert sorted(woken) == list(range(10))


async def test_a_watch_remembers_a_change_that_nobody_has_waited_for(nursery: trio.Nursery) -> None:
    store, is_awake = MemoryTree().open_store(), trio.Event()
    async with store.watch("a") as watch:
        await store.create("a", b"")
        with trio.CancelScope() as cancelled:
            cancelled.cancel()
            await watch.wait()
        assert cancelled.cancelled_caught

        async def wait() -> None:
            await watch.wait()
            is_awake.set()

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert is_awake.is_set()
