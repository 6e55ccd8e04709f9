"""Several producers splice into one log, beside its leader. Nobody is deposed, and each batch counts once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from ledgerlog import limits
from ledgerlog.errors import (
    LogListFull,
    LostLeadership,
    MetadataOutcomeUnknown,
    OffsetMismatch,
    StorageCorrupt,
)
from ledgerlog.limits import LOG_SPLICE_ANSWER_S, LOG_SPLICE_HOLD_S, METADATA_BYTES_MAX
from ledgerlog.log.core.attach import Commit, SpliceRefused, Staged
from ledgerlog.log.log import Log, open_log
from ledgerlog.log.splice_desk import SpliceDesk
from ledgerlog.log.splice_requests import request_of
from ledgerlog.log.sweep import sweep
from ledgerlog.meta.store import Delete
from ledgerlog.model.layout import ledger_path, log_record_path, request_path, requests_path, splice_path
from ledgerlog.testing.faulty_store import Call, GoOn
from ledgerlog.testing.memory_cluster import Client, open_cluster
from tests.shells.test_log_splice import batch, commit, contents, mark_of, mortal, new_log, registry, staged


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


def is_splice_of_leader(call: Call) -> bool:
    """Whether a call is the transaction in which a leader splices."""
    return call.verb == "transaction" and any(
        isinstance(each, Delete) and each.path.startswith("requests/") for each in call.operations
    )


def before_the_splice(act: Callable[[], Awaitable[None]]) -> Any:
    """Return a fault: before the leader's first transaction of a splice, ``act()`` runs."""
    is_done = False

    async def fault(call: Call, go_on: GoOn) -> Any:
        nonlocal is_done
        if is_splice_of_leader(call) and not is_done:
            is_done = True
            await act()
        return await go_on()

    return fault


async def deaf(_: SpliceDesk) -> None:
    """A leader that watches no requests."""
    await trio.sleep_forever()


async def test_the_batches_of_two_producers_alternate_and_the_epoch_stays(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        epochs = set()
        for number in range(3):
            for each, producer in ((client, "etl"), (other, "elt")):
                ledgers = await staged(each.opened, log, [b"%s %d" % (producer.encode(), number)])
                done = await commit(
                    each.opened, log, batch(number, ledgers, producer=producer, run=f"run of {producer}")
                )
                epochs.add(done.epoch)
        assert epochs == {1}, "no splice takes over, and a log with records has an epoch"
        assert await contents(log) == [b"%s %d" % (who, n) for n in range(3) for who in (b"etl", b"elt")]


async def test_a_zombie_of_one_producer_is_told_while_another_producer_goes_on(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await commit(client.opened, log, batch(0, await staged(client.opened, log, [b"a"])))
        other = batch(0, await staged(client.opened, log, [b"other"]), producer="elt", run="its run")
        await commit(client.opened, log, other)
        await commit(client.opened, log, batch(1, await staged(client.opened, log, [b"b"]), run="run 2"))
        async with log.writer():
            with pytest.raises(LostLeadership, match="another run of producer 'etl'"):
                await commit(client.opened, log, batch(2, await staged(client.opened, log, [b"x"])))
            other = batch(1, await staged(client.opened, log, [b"more"]), producer="elt", run="its run")
            await commit(client.opened, log, other)
        assert await contents(log) == [b"a", b"other", b"b", b"more"]


async def test_a_run_of_version_0_1_goes_on_beside_runs_of_this_version(autojump_clock: object) -> None:
    """It demands that the log's epoch is the one in its mark, so no splice may raise the epoch."""
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await commit(client.opened, log, batch(0, await staged(client.opened, log, [b"a"])))
        mark = await mark_of(client, log)
        other = batch(0, await staged(client.opened, log, [b"b"]), producer="elt", run="its run")
        await commit(client.opened, log, other)
        metadata, _ = await registry(client.opened).read(log.incarnation)
        assert metadata is not None
        assert metadata.epoch == mark.epoch
        assert not metadata.open_segments


async def test_a_batch_without_rows_moves_the_mark_beside_a_leader_without_asking_it(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        async with log.writer() as writer:
            await writer.append(b"a")
            ledger = writer.statistics().ledger_id
            await commit(client.opened, log, batch(0))
            await writer.append(b"b")
            assert writer.statistics().ledger_id == ledger
        await commit(client.opened, log, batch(1, await staged(client.opened, log, [b"c"])))
        assert await contents(log) == [b"a", b"b", b"c"]


async def test_the_leader_splices_between_its_records_and_goes_on(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        async with log.writer() as writer:
            await writer.append_many([b"a", b"b"])
            ledgers = await staged(driver.opened, log, [b"c", b"d"], [b"e"])
            begun = trio.current_time()
            done = await commit(driver.opened, log, batch(0, ledgers))
            assert trio.current_time() - begun < 1
            assert (done.was_there, done.end_offset, done.epoch) == (False, 5, writer.epoch)
            ack = await writer.append(b"f")
            assert (ack.offset, ack.epoch) == (5, 1)
            said = writer.statistics()
            assert (said.next_offset, said.durable_offset) == (6, 6)
            assert (said.records_appended, said.bytes_appended) == (3, 3)
            assert await client.store.children(requests_path(log.incarnation)) == []
        async with log.read() as records:
            found = [record async for record in records]
        assert [record.data for record in found] == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert [record.timestamp for record in found] == sorted(record.timestamp for record in found)
        assert {record.epoch for record in found} == {1}
        assert (await log.info()).next_offset == 6
        async with log.writer() as writer:
            assert (await writer.append(b"g")).offset == 6
        assert await sweep(client.opened, min_age_s=0) == []


async def test_an_idle_leader_splices_one_batch_after_the_other(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        async with log.writer() as writer:
            for number in range(4):
                ledgers = await staged(driver.opened, log, [b"%d" % number])
                await commit(driver.opened, log, batch(number, ledgers))
            assert (await writer.append(b"last")).offset == 4
        assert await contents(log) == [b"0", b"1", b"2", b"3", b"last"]


async def test_appends_go_on_while_many_producers_splice(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        producers = ["a", "b", "c"]
        done: list[int] = []

        async def splices(producer: str) -> None:
            async with cluster.client() as driver:
                for number in range(5):
                    ledgers = await staged(driver.opened, log, [b"%s%d" % (producer.encode(), number)])
                    made = batch(number, ledgers, producer=producer, run=f"run of {producer}")
                    await commit(driver.opened, log, made)
                    await trio.sleep(0.1)
                done.append(1)

        appended = 0
        async with log.writer() as writer, trio.open_nursery() as nursery:
            for producer in producers:
                nursery.start_soon(splices, producer)
            while len(done) < len(producers):
                await writer.append(b"w%d" % appended)
                appended += 1
                await trio.sleep(0.01)
        found = await contents(log)
        for who, count in (("w", appended), *((producer, 5) for producer in producers)):
            mine = [data for data in found if data.startswith(who.encode())]
            assert mine == [b"%s%d" % (who.encode(), number) for number in range(count)]
        assert len(found) == appended + 15


async def test_records_that_wait_for_a_splice_keep_their_order_and_a_condition_that_fails_is_told(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        acks: list[int] = []

        async def appends() -> None:
            nursery.start_soon(conditioned)
            nursery.start_soon(append, b"after 1")
            nursery.start_soon(append, b"after 2")
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            assert acks == [], "the leader holds them back"

        async def append(data: bytes) -> None:
            acks.append((await writer.append(data)).offset)

        async def conditioned() -> None:
            with pytest.raises(OffsetMismatch):
                await writer.append(b"exactly at 1", expected_offset=1)

        client.store.faults.append(before_the_splice(appends))
        async with log.writer() as writer, trio.open_nursery() as nursery:
            await writer.append(b"before")
            ledgers = await staged(driver.opened, log, [b"x", b"y"])
            await commit(driver.opened, log, batch(0, ledgers))
        assert sorted(acks) == [3, 4]
        found = await contents(log)
        assert found[:3] == [b"before", b"x", b"y"]
        assert sorted(found[3:]) == [b"after 1", b"after 2"]


@pytest.mark.parametrize("dies_before", [True, False])
@pytest.mark.parametrize("producer", ["etl", None])
async def test_a_leader_that_is_killed_at_any_write_of_a_splice_leaves_the_batch_once(
    autojump_clock: object, dies_before: bool, producer: str | None
) -> None:
    deaths = 0
    for at in range(1, 30):
        async with open_cluster() as cluster, cluster.client() as client:
            log = await new_log(client)
            async with mortal(cluster, "leader") as (leads, death):
                with trio.CancelScope() as death.process:
                    async with (await open_log(leads, "log")).writer() as writer:
                        await writer.append(b"live")
                        death.at, death.is_before = at, dies_before
                        ledgers = await staged(client.opened, log, [b"a"], [b"b", b"c"])
                        await commit(client.opened, log, batch(0, ledgers, producer=producer))
                        if not death.process.cancel_called:
                            await writer.append(b"late")
                            death.at = -1
                deaths += death.process.cancelled_caught
                if death.process.cancelled_caught:
                    await commit(client.opened, log, batch(0, ledgers, producer=producer))
            found = await contents(log)
            assert found in ([b"live", b"a", b"b", b"c"], [b"live", b"a", b"b", b"c", b"late"])
            if not death.process.cancelled_caught:
                break
    assert deaths >= 3


@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.parametrize("producer", ["etl", None])
async def test_a_leader_whose_answer_is_lost_settles_the_splice(
    autojump_clock: object, is_applied: bool, producer: str | None
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        lost = 0

        async def lose(call: Call, go_on: GoOn) -> Any:
            nonlocal lost
            if not is_splice_of_leader(call) or lost == 2:
                return await go_on()
            lost += 1
            if is_applied:
                await go_on()
            raise MetadataOutcomeUnknown("lost")

        client.store.faults.append(lose)
        async with log.writer() as writer:
            await writer.append(b"a")
            ledgers = await staged(driver.opened, log, [b"b"])
            assert not (await commit(driver.opened, log, batch(0, ledgers, producer=producer))).was_there
            assert (await writer.append(b"c")).offset == 2
        assert lost == (1 if is_applied else 2)
        assert await contents(log) == [b"a", b"b", b"c"]


async def test_a_splice_that_was_truncated_before_its_answer_is_settled_took_effect(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        is_lost = False

        async def lose(call: Call, go_on: GoOn) -> Any:
            nonlocal is_lost
            done = await go_on()
            if is_splice_of_leader(call) and not is_lost:
                is_lost = True
                await (await open_log(driver.opened, "log")).truncate(2)
                raise MetadataOutcomeUnknown("lost")
            return done

        client.store.faults.append(lose)
        async with log.writer() as writer:
            await writer.append(b"a")
            await commit(driver.opened, log, batch(0, await staged(driver.opened, log, [b"b"])))
            assert (await writer.append(b"c")).offset == 2
        async with log.read() as records:
            assert [(record.offset, record.data) async for record in records] == [(2, b"c")]


async def test_a_leader_that_does_not_answer_is_deposed_and_its_late_transaction_does_nothing(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        is_over = trio.Event()
        client.store.faults.append(before_the_splice(is_over.wait))
        async with log.writer() as writer:
            await writer.append(b"a")
            ledgers = await staged(driver.opened, log, [b"b"])
            begun = trio.current_time()
            done = await commit(driver.opened, log, batch(0, ledgers))
            assert LOG_SPLICE_ANSWER_S <= trio.current_time() - begun < LOG_SPLICE_ANSWER_S + 5
            assert done.epoch == 2
            is_over.set()
            with pytest.raises(LostLeadership):
                await writer.append(b"late")
        assert await contents(log) == [b"a", b"b"]
        assert await client.store.children(requests_path(log.incarnation)) == []


async def test_a_leader_of_version_0_1_knows_no_requests_and_is_deposed(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        with monkeypatch.context() as old:
            old.setattr(SpliceDesk, "watch", deaf)
            async with log.writer() as writer:
                await writer.append(b"a")
                made = batch(0, await staged(driver.opened, log, [b"b"]))
                assert (await commit(driver.opened, log, made)).epoch == 2
                with pytest.raises(LostLeadership):
                    await writer.append(b"late")
        assert await contents(log) == [b"a", b"b"]


async def test_a_request_that_is_withdrawn_while_the_leader_acts_is_not_spliced(
    autojump_clock: object,
) -> None:
    """The leader has closed its ledger already, so it goes on in the next one without the batch."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)

        async def withdraw() -> None:
            (token,) = await driver.store.children(requests_path(log.incarnation))
            await driver.store.delete(request_path(log.incarnation, token))

        client.store.faults.append(before_the_splice(withdraw))
        async with log.writer() as writer:
            await writer.append(b"a")
            made = batch(0, await staged(driver.opened, log, [b"b"]))
            await driver.store.create(
                request_path(log.incarnation, "aa"), request_of(made).encode(), ephemeral=True
            )
            await trio.sleep(1)
            assert (await writer.append(b"c")).offset == 1
            assert await contents(log) == [b"a", b"c"]
            assert not (await commit(driver.opened, log, made)).was_there
        assert await contents(log) == [b"a", b"c", b"b"]


async def test_a_staged_ledger_that_changes_while_the_leader_acts_is_read_again(
    autojump_clock: object,
) -> None:
    """As by auto-recovery."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        ledgers = await staged(driver.opened, log, [b"b"])

        async def touch() -> None:
            path = ledger_path(ledgers[0].ledger_id)
            node = await driver.store.get(path)
            assert node is not None
            await driver.store.set(path, node.value, version=node.version)

        client.store.faults.append(before_the_splice(touch))
        async with log.writer() as writer:
            await writer.append(b"a")
            assert (await commit(driver.opened, log, batch(0, ledgers))).end_offset == 2
            await writer.append(b"c")
        assert await contents(log) == [b"a", b"b", b"c"]


async def test_a_ledger_that_is_listed_while_the_leader_gets_ready_to_splice_it_is_refused(
    autojump_clock: object,
) -> None:
    """As if the request names a ledger with which somebody else replaces others at this moment."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        async with log.writer() as writer:
            await writer.append(b"a")
        made = batch(0, await staged(driver.opened, log, [b"a"]))
        logs = registry(driver.opened)

        async def list_it(call: Call, go_on: GoOn) -> Any:
            found = await go_on()
            if call.verb == "get" and call.path.startswith(f"{requests_path(log.incarnation)}/"):
                client.store.faults.remove(list_it)
                metadata, version = await logs.existing(log.name, log.incarnation)
                listed = metadata.gathered(metadata.segments[:1], made.staged[0].ledger_id, b"gathered")
                assert listed is not None
                await logs.write(listed, version)
            return found

        async with log.writer() as writer:
            await writer.append(b"b")
            client.store.faults.append(list_it)
            with pytest.raises(SpliceRefused, match="is part of a log already"):
                await commit(driver.opened, log, made)
            assert (await writer.append(b"c")).offset == 2
        assert [s.record_count for s in (await log.info()).segments] == [1, 1, 1]


async def test_a_batch_that_the_leader_cannot_write_is_refused_and_the_leader_goes_on(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        async with log.writer() as writer:
            await writer.append(b"a")
            made = batch(0, await staged(driver.opened, log, *[[b"%d" % at] for at in range(5)]))
            with monkeypatch.context() as patched:
                patched.setattr(limits, "METADATA_TRANSACTION_BYTES_MAX", 3000)
                with pytest.raises(SpliceRefused, match=r"5 ledgers and a list of .*coalesce"):
                    await commit(driver.opened, log, made)
            assert (await writer.append(b"b")).offset == 1
            assert (await commit(driver.opened, log, made)).end_offset == 7


async def test_a_list_that_is_full_is_told_by_the_leader(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        async with log.writer() as writer:
            await writer.append(b"a")
            made = batch(0, await staged(driver.opened, log, [b"b"]))
            with monkeypatch.context() as patched:
                patched.setattr("ledgerlog.model.log.LOG_SEGMENTS_ROLL_MAX", 0)
                patched.setattr("ledgerlog.model.log.METADATA_TRANSACTION_BYTES_MAX", 100)
                with pytest.raises(LogListFull):
                    await commit(driver.opened, log, made)
            assert (await writer.append(b"c")).offset == 1


async def test_a_splice_goes_on_by_itself_as_soon_as_the_leader_has_left(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        made = batch(0, await staged(driver.opened, log, [b"b"]))
        monkeypatch.setattr(SpliceDesk, "watch", deaf)
        async with trio.open_nursery() as nursery:
            async with log.writer() as writer:
                await writer.append(b"a")
                nursery.start_soon(commit, driver.opened, log, made)
                await trio.sleep(1)
            begun = trio.current_time()
        assert trio.current_time() - begun < 1
        metadata, _ = await registry(client.opened).read(log.incarnation)
        assert metadata is not None
        assert metadata.epoch == 1
        assert await contents(log) == [b"a", b"b"]


@pytest.mark.parametrize("is_acting", [False, True])
async def test_a_leader_that_is_left_during_a_splice_ends_it_first(
    autojump_clock: object, is_acting: bool
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        made = batch(0, await staged(driver.opened, log, [b"b"]))
        is_left = trio.Event()

        async def leave() -> None:
            is_left.set()
            for _ in range(20):
                await trio.lowlevel.checkpoint()

        if is_acting:
            client.store.faults.append(before_the_splice(leave))
        async with trio.open_nursery() as nursery, log.writer() as writer:
            await writer.append(b"a")
            nursery.start_soon(commit, driver.opened, log, made)
            if is_acting:
                await is_left.wait()
            await writer.submit(b"last")
        found = await contents(log)
        assert found == ([b"a", b"b", b"last"] if is_acting else [b"a", b"last", b"b"])
        metadata, _ = await registry(client.opened).read(log.incarnation)
        assert metadata is not None
        assert (metadata.epoch, metadata.open_segments) == (1, ())


async def test_a_leader_that_cannot_end_a_splice_gives_up_and_its_held_records_are_surely_not_written(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)

        async def hang() -> None:
            client.store.is_hanging = True
            nursery.start_soon(append)

        async def append() -> None:
            with pytest.raises(LostLeadership, match="a splice held appends back"):
                await writer.append(b"held")
            failed.set()

        failed = trio.Event()
        client.store.faults.append(before_the_splice(hang))
        async with trio.open_nursery() as nursery, log.writer() as writer:
            await writer.append(b"a")
            made = batch(0, await staged(driver.opened, log, [b"b"]))
            begun = trio.current_time()
            await commit(driver.opened, log, made)
            with trio.fail_after(3 * LOG_SPLICE_HOLD_S):
                await failed.wait()
            assert trio.current_time() - begun > LOG_SPLICE_HOLD_S
            client.store.is_hanging = False
        assert await contents(log) == [b"a", b"b"]


async def test_a_run_that_is_followed_while_it_asks_is_told(autojump_clock: object) -> None:
    """The other run has spliced a batch of the same number and the same count, with other rows."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        await commit(driver.opened, log, batch(0, await staged(driver.opened, log, [b"a"])))
        others = batch(1, await staged(client.opened, log, [b"of run 2"]), run="run 2")
        is_followed = False

        async def follow(call: Call, go_on: GoOn) -> Any:
            nonlocal is_followed
            if call.verb == "create" and call.path.startswith("requests/") and not is_followed:
                is_followed = True
                await commit(client.opened, log, others)
            return await go_on()

        driver.store.faults.append(follow)
        async with log.writer():
            with pytest.raises(LostLeadership, match="another run"):
                await commit(driver.opened, log, batch(1, await staged(driver.opened, log, [b"mine"])))
        assert await contents(log) == [b"a", b"of run 2"]


async def test_a_next_leader_serves_a_request_that_the_last_one_left(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        async with AsyncExitStack() as stack:
            with trio.CancelScope() as dies:
                async with log.writer() as writer:
                    await writer.append(b"a")
                    dies.cancel()
                    await trio.sleep_forever()
            nursery = await stack.enter_async_context(trio.open_nursery())
            made = batch(0, await staged(driver.opened, log, [b"b"]))
            begun = trio.current_time()
            done = trio.Event()

            async def splices() -> None:
                await commit(driver.opened, log, made)
                done.set()

            nursery.start_soon(splices)
            await trio.sleep(1)
            writer = await stack.enter_async_context(log.writer())
            await done.wait()
            assert trio.current_time() - begun < LOG_SPLICE_ANSWER_S
            await writer.append(b"c")
            assert await contents(log) == [b"a", b"b", b"c"]


async def test_a_leader_that_nobody_asks_pays_one_listing(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        calls: list[Call] = []

        async def note(call: Call, go_on: GoOn) -> Any:
            calls.append(call)
            return await go_on()

        async with log.writer() as writer:
            await writer.append(b"a")
            await trio.sleep(1)
            client.store.faults.append(note)
            for number in range(20):
                await writer.append(b"%d" % number)
                await trio.sleep(1)
            assert [call for call in calls if call.path != log_record_path(log.incarnation)] == []


async def test_a_request_that_cannot_be_read_is_left_alone_and_others_are_served(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        await driver.store.create(request_path(log.incarnation, "00"), b"\xa1\x61v\x09", ephemeral=True)
        await driver.store.create(request_path(log.incarnation, "01"), b"no request", ephemeral=True)
        async with log.writer() as writer:
            await writer.append(b"a")
            await commit(driver.opened, log, batch(0, await staged(driver.opened, log, [b"b"])))
            await writer.append(b"c")
        assert await contents(log) == [b"a", b"b", b"c"]
        assert await driver.store.children(requests_path(log.incarnation)) == ["00", "01"]


async def ask(driver: Client, log: Log, made: Commit) -> str:
    """Put a request before the leader, and return its path when the leader has had time for it."""
    path = request_path(log.incarnation, "aa")
    await driver.store.create(path, request_of(made).encode(), ephemeral=True)
    await trio.sleep(1)
    return path


TOO_MANY = 2**63 - 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made, ledger: attrs.evolve(made, staged=(ledger, ledger)),
        lambda made, ledger: attrs.evolve(made, staged=(attrs.evolve(ledger, record_count=0),)),
        lambda made, ledger: attrs.evolve(made, staged=(attrs.evolve(ledger, record_count=TOO_MANY),)),
        lambda made, ledger: attrs.evolve(made, staged=(attrs.evolve(ledger, byte_length=TOO_MANY),)),
    ],
    ids=["a ledger twice", "no records", "too many records", "too many bytes"],
)
async def test_a_request_that_no_stage_can_have_made_does_not_end_the_leader(
    autojump_clock: object, spoil: Callable[[Commit, Staged], Commit]
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        async with log.writer() as writer:
            await writer.append(b"a")
            made = batch(0, await staged(driver.opened, log, [b"b"]))
            spoiled = spoil(made, made.staged[0])
            path = await ask(driver, log, spoiled)
            assert await driver.store.get(path) is None, "it is answered"
            with pytest.raises(SpliceRefused):
                await commit(driver.opened, log, spoiled)
            await writer.append(b"c")
            await commit(driver.opened, log, made)
        assert await contents(log) == [b"a", b"c", b"b"]


async def test_a_request_without_room_for_a_refusal_does_not_end_the_leader(autojump_clock: object) -> None:
    """The batch is too large for one transaction, and the request is as large as a record can be."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        async with log.writer() as writer:
            await writer.append(b"a")
            made = batch(0, await staged(driver.opened, log, [b"b"]))
            room = METADATA_BYTES_MAX - len(request_of(made).encode()) - 20
            path = await ask(driver, log, attrs.evolve(made, source="x" * room))
            assert await driver.store.get(path) is None
            await writer.append(b"c")
        assert await contents(log) == [b"a", b"c"]


async def test_a_mark_that_cannot_be_read_does_not_end_the_leader(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        async with log.writer() as writer:
            await writer.append(b"a")
            first, second = await staged(driver.opened, log, [b"b"], [b"d"])
            await commit(driver.opened, log, batch(0, (first,)))
            mark = splice_path(log.incarnation, "etl")
            await driver.store.set(mark, b"no mark", version=0)
            await ask(driver, log, batch(1, (second,)))
            await writer.append(b"c")
        assert await contents(log) == [b"a", b"b", b"c"]


async def test_a_leader_goes_on_while_its_requests_cannot_be_listed(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as driver:
        log = await new_log(client)
        is_damaged = True

        async def damaged(call: Call, go_on: GoOn) -> object:
            if is_damaged and call.verb == "children" and call.path == requests_path(log.incarnation):
                raise StorageCorrupt("metadata.sqlite", None, "database disk image is malformed")
            return await go_on()

        client.store.faults.append(damaged)
        async with log.writer() as writer:
            await writer.append(b"a")
            await trio.sleep(60)
            is_damaged = False
            await commit(driver.opened, log, batch(0, await staged(driver.opened, log, [b"b"])))
        assert await contents(log) == [b"a", b"b"]
