"""Whole ledgers become part of a log exactly once, in spite of crashes of a commit, rivals and traps."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import cbor2
import pytest
import trio
import trio.testing

from bookie.storage.engine.config import StorageConfig
from ledgerlog import limits
from ledgerlog.errors import (
    EntryCorrupt,
    InvalidArgument,
    LedgerNotFound,
    LogNotFound,
    LogSealed,
    LostLeadership,
    MetadataOutcomeUnknown,
    RecordTooLarge,
)
from ledgerlog.ledger.client import LedgerClient, open_client
from ledgerlog.ledger.ledgers import Ledgers
from ledgerlog.limits import LOG_SPLICE_LEDGERS_MAX, LOG_STAGED_SWEEP_AGE_S, RECORD_BYTES_MAX
from ledgerlog.log.attach import Spliced, splice, stage
from ledgerlog.log.core import attach as core_attach
from ledgerlog.log.core.attach import Commit, SpliceRefused, Staged
from ledgerlog.log.log import Log, create_log, delete_log, open_log
from ledgerlog.log.registry import STAGED_LABEL, LogRegistry
from ledgerlog.log.sweep import sweep
from ledgerlog.model.attach import SpliceMark
from ledgerlog.model.layout import ledger_path, log_record_path, splice_path, splices_path
from ledgerlog.model.log import LogListFull
from ledgerlog.model.policies import RetentionPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.model.segments import LogSegment
from ledgerlog.testing.faulty_store import Call, FaultyStore, GoOn, answer_lost_behind
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, SeededEnvironment, open_cluster
from ledgerlog.wire.records import decode_entry


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


async def new_log(client: Client) -> Log:
    return await create_log(client.opened, "log", replication=Replication(3, 3, 2))


def registry(client: LedgerClient) -> LogRegistry:
    return LogRegistry(client.store, client.environment)


async def staged(client: LedgerClient, log: Log, *ledgers: Sequence[bytes]) -> tuple[Staged, ...]:
    """A closed ledger for each list of records."""
    made = []
    for records in ledgers:
        async with stage(client, registry(client), log.name, log.incarnation) as opened:
            await opened.append_many(records)
            done = await opened.close()
            if done is not None:
                made.append(done)
    return tuple(made)


def batch(number: int, ledgers: tuple[Staged, ...] = (), **changes: Any) -> Commit:
    made = Commit(producer="etl", source="query", run="run 1", batch=number, staged=ledgers)
    return attrs.evolve(made, **changes)


async def commit(client: LedgerClient, log: Log, made: Commit) -> Spliced:
    return await splice(client, registry(client), log.name, log.incarnation, made)


async def contents(log: Log) -> list[bytes]:
    async with log.read() as records:
        found = [record async for record in records]
    assert [record.offset for record in found] == list(range(len(found)))
    return [record.data for record in found]


async def test_staged_ledgers_are_part_of_the_log_after_the_commit_and_not_before(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        async with log.writer() as writer:
            await writer.append_many([b"a", b"b"])
        ledgers = await staged(client.opened, log, [b"c", b"d"], [], [b"e"])
        assert len(ledgers) == 2
        assert await contents(log) == [b"a", b"b"]
        done = await commit(client.opened, log, batch(0, ledgers))
        assert (done.was_there, done.end_offset) == (False, 5)
        assert await contents(log) == [b"a", b"b", b"c", b"d", b"e"]
        async with log.writer() as writer:
            assert (await writer.append(b"f")).offset == 5
        assert await contents(log) == [b"a", b"b", b"c", b"d", b"e", b"f"]


async def test_keys_and_headers_of_staged_records_are_part_of_the_log(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        async with stage(client.opened, registry(client.opened), log.name, log.incarnation) as opened:
            await opened.append_many([b"plain"] * 3)
            await opened.append_many([b"a", b""], keys=[b"k", None], headers=[None, [("h", b"1")]])
            with pytest.raises(InvalidArgument):
                await opened.append_many([b"a"], keys=[b"k", b"k"])
            with pytest.raises(RecordTooLarge):
                await opened.append_many([bytes(RECORD_BYTES_MAX)], keys=[b"k"])
            made = await opened.close()
        assert made is not None
        assert made.byte_length == 3 * len(b"plain") + len(b"a" + b"k") + 8, "a header of 8 bytes"
        await commit(client.opened, log, batch(0, (made,)))
        async with log.read() as records:
            found = [(record.data, record.key, record.headers) async for record in records]
        assert found == [(b"plain", None, ())] * 3 + [(b"a", b"k", ()), (b"", None, (("h", b"1"),))]


async def test_a_record_as_large_as_may_be_comes_after_a_small_one(autojump_clock: object) -> None:
    async with open_cluster(config=StorageConfig()) as cluster, cluster.client() as client:
        log = await new_log(client)
        values = [bytes(250_000), bytes(RECORD_BYTES_MAX), b"a", b"b"]
        await commit(client.opened, log, batch(0, await staged(client.opened, log, values)))
        assert await contents(log) == values


async def test_a_batch_that_is_there_is_done_also_where_its_garbage_cannot_be_deleted(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await commit(client.opened, log, batch(0, await staged(client.opened, log, [b"a", b"b"])))
        again = await staged(client.opened, log, [b"a"], [b"b"])

        async def hang() -> None:
            client.store.is_hanging = True

        client.store.before_write = hang
        assert (await commit(client.opened, log, batch(0, again))).was_there
        client.store.is_hanging = False
        assert await contents(log) == [b"a", b"b"]
        for left in again:
            await client.ledgers.metadata(left.ledger_id)  # A sweep's, in a day.


async def test_spliced_records_are_found_by_offset_by_time_and_by_position(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        big = bytes(100 * 1024)
        values = [b"%d" % at + big for at in range(12)]
        ledgers = await staged(client.opened, log, values[:6], values[6:])
        assert ledgers[0].last_entry == 1
        await trio.sleep(10)
        await commit(client.opened, log, batch(0, ledgers))
        async with log.read() as records:
            everything = [record async for record in records]
        assert {record.timestamp for record in everything} == {everything[0].timestamp}
        assert {record.epoch for record in everything} == {1}
        for start in range(12):
            async with log.read(start) as records:
                assert [record async for record in records] == everything[start:]
            async with log.read(everything[start].position) as records:
                assert [record async for record in records] == everything[start:]
        async with log.read(everything[0].timestamp) as records:
            assert [record async for record in records] == everything
        info = await log.info()
        assert info.next_offset == 12
        await log.truncate(7)
        async with log.read() as records:
            assert [record async for record in records] == everything[7:]


async def test_times_never_go_back_whatever_the_clock_of_the_committer_says(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await trio.sleep(50)
        async with log.writer() as writer:
            await writer.append(b"a")
        environment = SeededEnvironment("behind")
        environment.now_ms = lambda: 1
        behind = attrs.evolve(client.opened, environment=environment)
        await commit(behind, log, batch(0, await staged(behind, log, [b"b"])))
        async with log.read() as records:
            times = [record.timestamp async for record in records]
        assert times[0] == times[1]


async def test_a_batch_counts_once_and_what_a_second_attempt_staged_is_deleted(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        first = await staged(client.opened, log, [b"a"], [b"b"])
        again = await staged(client.opened, log, [b"a", b"b"])
        await commit(client.opened, log, batch(0, first))
        assert (await commit(client.opened, log, batch(0, first))).was_there
        assert (await commit(client.opened, log, batch(0, again))).was_there
        assert await contents(log) == [b"a", b"b"]
        with pytest.raises(LedgerNotFound):
            await client.ledgers.metadata(again[0].ledger_id)


class Death:
    """A fault of a store: it kills its process at a write, before or after it took effect."""

    at = -1
    is_before = True
    process: trio.CancelScope

    async def __call__(self, call: Call, go_on: GoOn) -> Any:
        if not call.is_write:
            return await go_on()
        self.at -= 1
        if self.at == 0 and not self.is_before:
            await go_on()
        if self.at == 0:
            self.process.cancel()
            await trio.sleep_forever()
        return await go_on()


@asynccontextmanager
async def mortal(cluster: MemoryCluster, host: str) -> AsyncIterator[tuple[LedgerClient, Death]]:
    death = Death()
    store = FaultyStore(cluster.tree, death)
    async with open_client(store, cluster.network.at(host), environment=SeededEnvironment(host)) as client:
        try:
            yield client, death
        finally:
            store.inner.close()


@pytest.mark.parametrize("dies_before", [True, False])
@pytest.mark.parametrize("restages", [True, False], ids=["restaged", "same ledgers"])
@pytest.mark.parametrize("leads", [True, False], ids=["beside a leader", "behind a dead leader"])
async def test_a_commit_killed_at_any_write_counts_once_when_it_is_done_again(
    autojump_clock: object, dies_before: bool, restages: bool, leads: bool
) -> None:
    """Reads change nothing. So a crash at a read is the same as a crash before the next write."""
    deaths = 0
    for at in range(1, 20):
        async with open_cluster() as cluster, cluster.client() as client:
            log = await new_log(client)
            ledgers = await staged(client.opened, log, [b"a"], [b"b", b"c"])
            with trio.CancelScope() as leading:
                async with log.writer() as live:
                    await live.append(b"live")
                    if not leads:
                        leading.cancel()
                        await trio.lowlevel.checkpoint()
                    at = await commit_mortally(cluster, log, batch(0, ledgers), at, is_before=dies_before)
                    await commit_again(client, log, ledgers, restages=restages)
                    await live.append(b"late")
            if not leads:
                at = await commit_mortally(cluster, log, batch(0, ledgers), at, is_before=dies_before)
                await commit_again(client, log, ledgers, restages=restages)
            late = [b"late"] if leads else []
            assert await contents(log) == [b"live", b"a", b"b", b"c", b"d", *late]
        if not at:
            break
        deaths += 1
    assert deaths >= (1 if leads else 3)


async def commit_mortally(cluster: MemoryCluster, log: Log, made: Commit, at: int, *, is_before: bool) -> int:
    """Commit, and be killed at write ``at``. Return 0 if there are fewer writes."""
    async with mortal(cluster, "driver") as (driver, death):
        death.at, death.is_before = at, is_before
        with trio.CancelScope() as death.process:
            await commit(driver, log, made)
        return at if death.process.cancelled_caught else 0


async def commit_again(client: Client, log: Log, ledgers: tuple[Staged, ...], *, restages: bool) -> None:
    # The writer may not have told its end yet.
    assert await contents(log) in ([], [b"live"], [b"live", b"a", b"b", b"c"])
    if restages:
        ledgers = await staged(client.opened, log, [b"a"], [b"b", b"c"])
    await commit(client.opened, log, batch(0, ledgers, run="run 2"))
    last = await staged(client.opened, log, [b"d"])
    await commit(client.opened, log, batch(1, last, run="run 2"))
    assert await contents(log) == [b"live", b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("fault", ["lost_answers", "lost_writes"])
async def test_a_transaction_whose_answer_is_lost_is_settled_by_reading(
    autojump_clock: object, fault: str
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        for number, producer in enumerate(("etl", None)):
            ledgers = await staged(client.opened, log, [b"%d" % number])
            setattr(client.store, fault, 1)
            done = await commit(client.opened, log, batch(0, ledgers, producer=producer))
            assert not done.was_there
        assert await contents(log) == [b"0", b"1"]


async def test_a_transaction_that_arrives_while_it_is_settled_took_effect(autojump_clock: object) -> None:
    """After the mark was read, and before the log's record and the ledgers are."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        made = batch(0, await staged(client.opened, log, [b"a"]))

        async def arrive(path: str) -> None:
            if not client.store.lost_writes and path == log_record_path(log.incarnation):
                client.store.before_get = None
                await commit(other.opened, log, made)

        client.store.lost_writes, client.store.before_get = 1, arrive
        done = await commit(client.opened, log, made)
        assert client.store.before_get is None
        assert (done.was_there, done.end_offset) == (False, 1)
        assert await contents(log) == [b"a"]


async def test_a_commit_whose_first_ledger_was_truncated_before_its_answer_is_settled_took_effect(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        ledgers = await staged(client.opened, log, [b"a"], [b"b"])

        async def truncate(_: str) -> None:
            if not client.store.lost_answers:
                client.store.before_get = None
                await (await open_log(other.opened, "log")).truncate(1)

        client.store.lost_answers, client.store.before_get = 1, truncate
        done = await commit(client.opened, log, batch(0, ledgers, producer=None))
        assert not done.was_there
        assert client.store.before_get is None
        async with log.read() as records:
            assert [(record.offset, record.data) async for record in records] == [(1, b"b")]


async def test_a_splice_without_producer_that_was_truncated_before_its_answer_is_settled_is_not_denied(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as third:
        log = await new_log(client)
        other = await open_log(third.opened, "log")
        ledgers = await staged(client.opened, log, [b"c", b"d"])

        async def truncate() -> None:
            await other.truncate(2)

        client.store.faults.append(answer_lost_behind(log_record_path(log.incarnation), truncate))
        begun = trio.current_time()
        with pytest.raises(MetadataOutcomeUnknown):
            await commit(client.opened, log, batch(0, ledgers, producer=None))
        assert trio.current_time() - begun < 1
        assert (await other.info()).next_offset == 2


async def test_a_store_that_takes_no_write_and_says_nothing_is_not_asked_for_ever(
    autojump_clock: object,
) -> None:
    """As with a disk that is full under a store in a file: it can be read, and each commit fails."""
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        made = batch(0, await staged(client.opened, log, [b"a"]))
        client.store.lost_writes, begun = 100_000, client.store.writes
        with pytest.raises(MetadataOutcomeUnknown):
            await commit(client.opened, log, made)
        assert client.store.writes - begun < 1000, "it pauses between attempts"
        assert client.store.writes - begun > 3, "a store that moves to another leader is asked again"
        client.store.lost_writes = 0
        await commit(client.opened, log, made)
        assert await contents(log) == [b"a"]


async def test_of_two_runs_on_one_checkpoint_the_older_is_told(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await commit(client.opened, log, batch(0, await staged(client.opened, log, [b"a"])))
        await commit(client.opened, log, batch(1, await staged(client.opened, log, [b"b"]), run="run 2"))
        with pytest.raises(LostLeadership, match="another run"):
            await commit(client.opened, log, batch(2, await staged(client.opened, log, [b"c"])))
        await commit(client.opened, log, batch(2, await staged(client.opened, log, [b"c"]), run="run 2"))
        assert await contents(log) == [b"a", b"b", b"c"]


async def test_a_run_that_was_followed_is_told_also_where_the_other_has_a_batch_of_that_number(
    autojump_clock: object,
) -> None:
    """As with a copy of a checkpoint: the batches of the two have the same numbers, and other rows."""
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        first = batch(0, await staged(client.opened, log, [b"a"]))
        await commit(client.opened, log, first)
        await commit(client.opened, log, batch(1, await staged(client.opened, log, [b"b"]), run="run 2"))
        assert (await commit(client.opened, log, first)).was_there  # These very ledgers are there.
        for others in (await staged(client.opened, log, [b"b", b"c"]), ()):
            with pytest.raises(LostLeadership, match="another run"):
                await commit(client.opened, log, batch(1, others))
        assert await contents(log) == [b"a", b"b"]


@pytest.mark.parametrize("is_truncated", [False, True])
async def test_a_run_that_is_followed_while_its_answer_is_lost_finds_its_own_batch_there(
    autojump_clock: object, is_truncated: bool
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await commit(client.opened, log, batch(0, await staged(client.opened, log, [b"a"])))
        ledgers = await staged(client.opened, log, [b"b"])
        follows = batch(2, await staged(client.opened, log, [b"c"]), run="run 2")
        settling = False

        async def follow(path: str) -> None:
            nonlocal settling
            if settling:
                client.store.before_get = None
                await commit(other.opened, log, follows)
                if is_truncated:
                    await log.truncate(2)
            settling = settling or not client.store.lost_answers

        client.store.lost_answers = 1
        client.store.before_get = follow
        done = await commit(client.opened, log, batch(1, ledgers))
        assert done.was_there is is_truncated
        async with log.read() as records:
            assert [record.data async for record in records] == [b"a", b"b", b"c"][2 * is_truncated :]


async def mark_of(client: Client, log: Log) -> SpliceMark:
    node = await client.store.get(splice_path(log.incarnation, "etl"))
    assert node is not None
    return SpliceMark.decode_untrusted(node.value, "etl")


async def rewrite_mark(client: Client, log: Log, **changes: Any) -> None:
    """Put another mark in place of the one that is there."""
    path = splice_path(log.incarnation, "etl")
    node = await client.store.get(path)
    assert node is not None
    changed = attrs.evolve(SpliceMark.decode_untrusted(node.value, "etl"), **changes)
    await client.store.set(path, changed.encode(), version=node.version)


async def test_a_new_run_below_the_mark_is_told_both_numbers_and_writes_nothing(
    autojump_clock: object,
) -> None:
    """As after a checkpoint was put back: its batches have the numbers of others, and other rows."""
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        for number in range(4):
            ledgers = await staged(client.opened, log, [b"%d" % number])
            await commit(client.opened, log, batch(number, ledgers))
        for number in (1, 2, 0):
            for changes in ({}, {"gaps": True}):  # A job that passes over numbers does not go back, either.
                again = await staged(client.opened, log, [b"other rows"])
                made = batch(number, again, run="put back", **changes)
                with pytest.raises(SpliceRefused, match=f"batch {number}, .* up to 3: .*checkpoint"):
                    await commit(client.opened, log, made)
                await client.ledgers.metadata(again[0].ledger_id)  # A sweep's, in a day.
        assert await contents(log) == [b"0", b"1", b"2", b"3"]
        # The same run asks late. It is told that its ledgers are in the log.
        late = await staged(client.opened, log, [b"2"])
        assert (await commit(client.opened, log, batch(2, late))).was_there
        # A new run repeats the last batch, as Spark does after a restart, and goes on.
        last = await staged(client.opened, log, [b"3"])
        assert (await commit(client.opened, log, batch(3, last, run="run 2"))).was_there
        await commit(client.opened, log, batch(4, await staged(client.opened, log, [b"4"]), run="run 2"))
        assert await contents(log) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_zombie_below_the_mark_is_told_and_the_run_that_goes_on_is_not_harmed(
    autojump_clock: object,
) -> None:
    """One run has staged and committed nothing, so no mark names it. A mark names the other one."""
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await commit(client.opened, log, batch(0, await staged(client.opened, log, [b"a"])))
        slept = await staged(client.opened, log, [b"b"])
        for number, data in ((1, b"b"), (2, b"c")):
            ledgers = await staged(client.opened, log, [data])
            await commit(client.opened, log, batch(number, ledgers, run="run 3"))
        with pytest.raises(LostLeadership, match="another run"):
            await commit(client.opened, log, batch(1, slept))
        with pytest.raises(SpliceRefused, match=r"batch 1, .* up to 2"):
            await commit(client.opened, log, batch(1, slept, run="run 2"))
        await commit(client.opened, log, batch(3, await staged(client.opened, log, [b"d"]), run="run 3"))
        assert await contents(log) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("run", ["run 1", "run 2"])
async def test_a_batch_with_the_marks_number_and_another_count_is_not_that_batch(
    autojump_clock: object, run: str
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        async with log.writer() as writer:
            await writer.append(b"before")
        await commit(client.opened, log, batch(0, await staged(client.opened, log, [b"a"], [b"b", b"c"])))
        mark = await mark_of(client, log)
        assert (mark.records, mark.end_offset) == (3, 4)
        for others in (await staged(client.opened, log, [b"a", b"b"]), ()):
            count = sum(each.record_count for each in others)
            with pytest.raises(SpliceRefused, match=f"has {count} records, .* has 3 .up to offset 4"):
                await commit(client.opened, log, batch(0, others, run=run))
        # The same rows in other tasks are the same batch.
        same = await staged(client.opened, log, [b"a", b"b", b"c"])
        assert (await commit(client.opened, log, batch(0, same, run=run))).was_there
        assert await contents(log) == [b"before", b"a", b"b", b"c"]


async def test_a_log_that_ends_before_the_mark_was_put_back(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await commit(client.opened, log, batch(0, await staged(client.opened, log, [b"a"])))
        await rewrite_mark(client, log, end_offset=3)
        ledgers = await staged(client.opened, log, [b"b"])
        for number in (0, 1):
            with pytest.raises(SpliceRefused, match=r"ended at offset 3, .* ends at 1"):
                await commit(client.opened, log, batch(number, ledgers))
        assert await contents(log) == [b"a"]


async def test_of_a_mark_of_version_0_1_only_the_number_is_compared_and_the_next_batch_completes_it(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await commit(client.opened, log, batch(0, await staged(client.opened, log, [b"a"])))
        path = splice_path(log.incarnation, "etl")
        node = await client.store.get(path)
        assert node is not None
        fields = cbor2.loads(node.value)
        del fields["records"], fields["end_offset"]
        await client.store.set(path, cbor2.dumps(fields, canonical=True), version=node.version)
        mark = await mark_of(client, log)
        assert (mark.records, mark.end_offset) == (None, None)
        again = await staged(client.opened, log, [b"a", b"b"])
        assert (await commit(client.opened, log, batch(0, again, run="run 2"))).was_there
        await commit(client.opened, log, batch(1, await staged(client.opened, log, [b"b"]), run="run 2"))
        mark = await mark_of(client, log)
        assert (mark.records, mark.end_offset) == (1, 2)
        with pytest.raises(SpliceRefused, match=r"batch 0, .* up to 1"):
            await commit(client.opened, log, batch(0, again, run="run 3"))
        assert await contents(log) == [b"a", b"b"]


@pytest.mark.parametrize("producer", ["etl", None])
async def test_what_is_left_of_a_log_that_is_gone_passes_for_no_batch(
    autojump_clock: object, producer: str | None
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        made = batch(0, await staged(client.opened, log, [b"a"]), producer=producer)
        await commit(client.opened, log, made)
        await registry(client.opened).delete(log.name, log.incarnation)  # Its marks and ledgers go next.
        with pytest.raises(LogNotFound):
            await commit(client.opened, log, made)


async def test_a_run_goes_on_beside_a_writer_and_behind_it(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await commit(client.opened, log, batch(0, await staged(client.opened, log, [b"a"])))
        async with log.writer() as writer:
            await writer.append(b"b")
            done = await commit(client.opened, log, batch(1, await staged(client.opened, log, [b"c"])))
            assert (done.epoch, writer.epoch) == (2, 2)
            await writer.append(b"more")
        done = await commit(client.opened, log, batch(2, await staged(client.opened, log, [b"d"])))
        assert done.epoch == 2
        assert await contents(log) == [b"a", b"b", b"c", b"more", b"d"]


async def test_a_later_commit_of_a_run_writes_the_log_once_and_takes_over_nothing(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await commit(client.opened, log, batch(0, await staged(client.opened, log, [b"a"])))
        ledgers = await staged(client.opened, log, [b"b"])
        writes = client.store.writes
        done = await commit(client.opened, log, batch(1, ledgers))
        assert (client.store.writes - writes, done.epoch) == (1, 1)
        assert not (await commit(client.opened, log, batch(2))).was_there  # without a record
        assert await contents(log) == [b"a", b"b"]


async def test_the_traps_are_errors_that_say_so(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        ledgers = await staged(client.opened, log, [b"a"])
        with pytest.raises(SpliceRefused, match="the log has none"):
            await commit(client.opened, log, batch(3, ledgers))
        await commit(client.opened, log, batch(3, ledgers, gaps=True))
        more = await staged(client.opened, log, [b"b"])
        with pytest.raises(SpliceRefused, match="checkpoint was deleted"):
            await commit(client.opened, log, batch(0, more, source="other", run="run 2"))
        with pytest.raises(SpliceRefused, match="those up to 3"):
            await commit(client.opened, log, batch(5, more))
        with pytest.raises(SpliceRefused, match="part of a log already"):
            await commit(client.opened, log, batch(4, ledgers))
        with pytest.raises(SpliceRefused, match="another process closed it"):
            await commit(client.opened, log, batch(4, (attrs.evolve(more[0], last_entry=7),)))
        with pytest.raises(InvalidArgument, match="coalesce"):
            await commit(client.opened, log, batch(4, more * (LOG_SPLICE_LEDGERS_MAX + 1)))
        with pytest.raises(InvalidArgument, match="not the name of a producer"):
            await commit(client.opened, log, batch(4, more, producer="a b"))
        await client.ledgers.delete(more[0].ledger_id)
        with pytest.raises(SpliceRefused, match="is gone"):
            await commit(client.opened, log, batch(4, more))
        async with stage(client.opened, registry(client.opened), "log", log.incarnation) as opened:
            with pytest.raises(RecordTooLarge):
                await opened.append_many([bytes(RECORD_BYTES_MAX + 1)])
        assert await contents(log) == [b"a"]


async def test_a_batch_that_does_not_fit_beside_the_list_into_one_transaction_says_what_to_do(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        made = batch(0, await staged(client.opened, log, *[[b"%d" % at] for at in range(5)]))
        with monkeypatch.context() as patched:
            patched.setattr(limits, "METADATA_TRANSACTION_BYTES_MAX", 3000)
            with pytest.raises(InvalidArgument, match=r"5 ledgers and a list of 0 .*coalesce"):
                await commit(client.opened, log, made)
        await commit(client.opened, log, made)
        assert await contents(log) == [b"%d" % at for at in range(5)]


async def put_segments(client: Client, log: Log, segments: tuple[LogSegment, ...]) -> None:
    """Put another list in place of that of a log without ledgers."""
    metadata, version = await registry(client.opened).read(log.incarnation)
    assert metadata is not None
    longer = attrs.evolve(metadata, epoch=1, segments=segments)
    await registry(client.opened).write(longer, version)


def alike(count: int) -> tuple[LogSegment, ...]:
    """Ledgers that pack into almost nothing."""
    return tuple(LogSegment(2**40 + n, 1, n, 1, 1, 5, 5) for n in range(count))


async def test_a_list_that_is_full_is_told_before_a_task_writes_and_nothing_is_harmed(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        early = await staged(client.opened, log, [b"a"])
        # As long as version 0.1 made it by its last commits, and did not read it any more.
        await put_segments(client, log, alike(163_840 + 256))
        before = await client.ledgers.list()
        with pytest.raises(LogListFull, match="truncate"):
            async with stage(client.opened, registry(client.opened), "log", log.incarnation):
                raise AssertionError("it gave a stage")
        assert await client.ledgers.list() == before
        with pytest.raises(LogListFull, match="truncate"):
            await commit(client.opened, log, batch(0, early))
        assert (await log.info()).next_offset == 163_840 + 256
        async with log.writer() as writer:
            assert (await writer.append(b"b")).offset == 163_840 + 256
        await put_truncated(client, log, 163_840 + 255)
        await commit(client.opened, log, batch(0, early))
        async with log.read(163_840 + 256) as records:
            assert [record.data async for record in records] == [b"b", b"a"]


async def put_truncated(client: Client, log: Log, before: int) -> None:
    """Truncate, without a look for each of the ledgers, none of which there is."""
    metadata, version = await registry(client.opened).read(log.incarnation)
    assert metadata is not None
    shorter, _ = metadata.truncated(before, metadata.counted_end, b"truncated")
    await registry(client.opened).write(shorter, version)


async def test_a_list_that_leaves_a_batch_no_room_in_its_transaction_is_full(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        made = batch(0, await staged(client.opened, log, [b"a"]))
        dice = random.Random(1)
        sizes = [dice.randrange(2**40) for _ in range(500)]
        await put_segments(
            client, log, tuple(LogSegment(2**40 + n, 1, n, 1, size, 5, 5) for n, size in enumerate(sizes))
        )
        with monkeypatch.context() as patched:
            patched.setattr(limits, "METADATA_TRANSACTION_BYTES_MAX", 3000)
            with pytest.raises(LogListFull, match="500 ledgers"):
                await commit(client.opened, log, made)
        assert (await commit(client.opened, log, made)).end_offset == 501


async def test_a_log_that_takes_no_ledgers_says_why(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        async with log.writer(dedupe=True):
            pass
        ledgers = await staged(client.opened, log, [b"a"])
        with pytest.raises(SpliceRefused, match="dedupe"):
            await commit(client.opened, log, batch(0, ledgers))
        async with log.writer(dedupe=False):
            pass
        await commit(client.opened, log, batch(0, ledgers))
        more = await staged(client.opened, log, [b"b"])
        await log.seal()
        with pytest.raises(LogSealed):
            await commit(client.opened, log, batch(1, more))
        await delete_log(client.opened, "log")
        with pytest.raises(LogNotFound):
            await commit(client.opened, log, batch(1, more))
        assert await client.store.children(splices_path(log.incarnation)) == []


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_commit_starts_over_if_the_ledger_it_recovers_is_gone_by_the_hand_of_a_rival(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        await create_log(client.opened, "log", retention=RetentionPolicy(max_bytes=1))
        log, rival = await open_log(client.opened, "log"), await open_log(other.opened, "log")
        with trio.CancelScope() as scope:
            async with rival.writer() as writer:
                await writer.append(b"0123456789")
                scope.cancel()
                await trio.sleep_forever()
        ledgers = await staged(client.opened, log, [b"x"])
        recover = Ledgers.recover
        crossed: list[int] = []

        async def crossed_recover(ledgers: Ledgers, ledger_id: int) -> object:
            if not crossed:
                crossed.append(ledger_id)
                async with rival.writer() as writer:
                    await writer.append(b"0123456789")
                    await writer.roll()
                    await writer.truncate(2)
                await rival.apply_retention()
                if is_deleted:
                    await delete_log(other.opened, "log")
            return await recover(ledgers, ledger_id)

        monkeypatch.setattr(Ledgers, "recover", crossed_recover)
        if is_deleted:
            with pytest.raises(LogNotFound):
                await commit(client.opened, log, batch(0, ledgers))
        else:
            done = await commit(client.opened, log, batch(0, ledgers))
            assert (done.was_there, done.end_offset) == (False, 3)
        with pytest.raises(LedgerNotFound):
            await client.ledgers.metadata(crossed[0])


@pytest.fixture
def one_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """A splice labels only the last ledger of its batch."""
    monkeypatch.setattr(core_attach, "LOG_SPLICE_LABELS_MAX", 1)


@pytest.mark.parametrize("producer", ["etl", None])
async def test_a_batch_of_more_ledgers_than_a_transaction_labels_counts_once(
    autojump_clock: object, one_label: None, producer: str | None
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as third:
        log, other = await new_log(client), await open_log(third.opened, "log")
        ledgers = await staged(client.opened, log, [b"a"], [b"b"], [b"c"])
        made = batch(0, ledgers, producer=producer)
        client.store.lost_answers = 1
        assert not (await commit(client.opened, log, made)).was_there
        labels = [(await client.ledgers.metadata(each.ledger_id)).custom for each in ledgers]
        assert [STAGED_LABEL in each for each in labels] == [True, True, False]
        for _ in range(2):
            assert (await commit(client.opened, log, attrs.evolve(made, run="run 2"))).was_there
            assert await contents(log) == [b"a", b"b", b"c"]
        with pytest.raises(SpliceRefused, match="part of a log already"):
            await commit(client.opened, log, batch(1, ledgers[:2], producer=producer, run="run 2"))

        async def truncate() -> None:
            await other.truncate(4)

        # The first ledger is truncated before the answer is settled.
        more = await staged(client.opened, log, [b"d"], [b"e"])
        client.store.faults.append(answer_lost_behind(log_record_path(log.incarnation), truncate))
        done = await commit(client.opened, log, batch(1, more, producer=producer, run="run 2"))
        assert (done.was_there, done.end_offset) == (False, 5)
        async with log.read() as records:
            assert [record.data async for record in records] == [b"e"]


async def test_of_a_splice_and_a_sweep_at_the_same_time_one_fails(
    autojump_clock: object, one_label: None
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as sweeper:
        log = await new_log(client)
        ledgers = await staged(client.opened, log, [b"a"], [b"b"])
        (late,) = await staged(client.opened, log, [b"x"])
        await trio.sleep(LOG_STAGED_SWEEP_AGE_S)

        async def commit_now() -> None:
            await commit(client.opened, log, batch(0, ledgers))

        sweeper.store.before_write = commit_now
        found = await sweep(sweeper.opened, min_age_s=0)
        assert [(orphan.ledger_id, orphan.is_deleted) for orphan in found] == [
            (ledgers[0].ledger_id, False),
            (late.ledger_id, True),
        ]
        assert await contents(log) == [b"a", b"b"]

        (old,) = await staged(client.opened, log, [b"c"])
        await trio.sleep(LOG_STAGED_SWEEP_AGE_S)
        young = await staged(client.opened, log, [b"d"])

        async def sweep_now() -> None:
            (orphan,) = await sweep(sweeper.opened, min_age_s=0)
            assert (orphan.ledger_id, orphan.is_deleted) == (old.ledger_id, True)

        client.store.before_write = sweep_now
        with pytest.raises(MetadataOutcomeUnknown, match="deleted before the splice"):
            await commit(client.opened, log, batch(1, (old, *young)))
        with pytest.raises(SpliceRefused, match="it was swept"):
            await commit(client.opened, log, batch(1, (old, *young)))
        assert await contents(log) == [b"a", b"b"]


@pytest.mark.parametrize("fault", ["lost_answers", "lost_writes"])
async def test_a_sweep_whose_answer_is_lost_has_deleted_the_staged_ledger(
    autojump_clock: object, fault: str
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        (old,) = await staged(client.opened, log, [b"a"])
        await trio.sleep(LOG_STAGED_SWEEP_AGE_S)
        setattr(client.store, fault, 1)
        (orphan,) = await sweep(client.opened, min_age_s=0)
        assert (orphan.ledger_id, orphan.is_deleted) == (old.ledger_id, True)
        with pytest.raises(LedgerNotFound):
            await client.ledgers.metadata(old.ledger_id)


async def test_as_many_ledgers_as_a_batch_may_have_fit_into_one_transaction(autojump_clock: object) -> None:
    """Whatever numbers are in the list: ids and sizes here pack badly."""
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        (model,) = await staged(client.opened, log, [b"a"])
        metadata = await client.ledgers.metadata(model.ledger_id)
        dice = random.Random(1)
        made = []
        for ledger_id in dice.sample(range(2**40, 2**48), LOG_SPLICE_LEDGERS_MAX):
            written = attrs.evolve(metadata, ledger_id=ledger_id)
            await client.store.create(ledger_path(ledger_id), written.encode())
            made.append(attrs.evolve(model, ledger_id=ledger_id, byte_length=dice.randrange(2**40)))
        done = await commit(client.opened, log, batch(0, tuple(made)))
        assert done.end_offset == LOG_SPLICE_LEDGERS_MAX


async def test_deduplication_can_begin_after_a_splice(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await commit(client.opened, log, batch(0, await staged(client.opened, log, [b"a"])))
        for _ in range(2):
            async with log.writer(producer="p") as writer:
                await writer.append(b"b", sequence=0)
        assert await contents(log) == [b"a", b"b"]


async def test_a_sweep_takes_what_was_staged_in_vain_and_nothing_before_its_time(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        used = await staged(client.opened, log, [b"a"])
        vain = await staged(client.opened, log, [b"x"])
        await commit(client.opened, log, batch(0, used))
        assert await sweep(client.opened, min_age_s=0) == []
        await trio.sleep(LOG_STAGED_SWEEP_AGE_S)
        young = await staged(client.opened, log, [b"b"])
        found = await sweep(client.opened, min_age_s=0)
        assert [(orphan.ledger_id, orphan.why) for orphan in found] == [
            (vain[0].ledger_id, "it was staged and never became part of its log")
        ]
        await commit(client.opened, log, batch(1, young))
        assert await contents(log) == [b"a", b"b"]
        await log.truncate(1)
        assert await sweep(client.opened, min_age_s=0) == []


async def test_a_sweep_that_looked_before_the_commit_deletes_nothing(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as sweeper:
        log = await new_log(client)
        ledgers = await staged(client.opened, log, [b"a"])
        await trio.sleep(LOG_STAGED_SWEEP_AGE_S)

        async def commit_now() -> None:
            await commit(client.opened, log, batch(0, ledgers))

        sweeper.store.before_write = commit_now
        (orphan,) = await sweep(sweeper.opened, min_age_s=0)
        assert not orphan.is_deleted
        assert await contents(log) == [b"a"]


async def test_a_staged_entry_is_no_entry_of_a_log_by_itself(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        (made,) = await staged(client.opened, log, [b"a"])
        (payload,) = await client.contents(made.ledger_id)
        with pytest.raises(EntryCorrupt, match="in no log"):
            decode_entry(payload, ledger_id=made.ledger_id, entry_id=0)
