"""One ledger takes the place of many small ones: the log stays as it was, whatever dies, races or is lost."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
import trio.testing

from ledgerlog.errors import InvalidArgument
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.log import gather as log_gather
from ledgerlog.log import sweep as log_sweep
from ledgerlog.log.attach import stage
from ledgerlog.log.core import gather as core_gather
from ledgerlog.log.core.attach import Staged
from ledgerlog.log.gather import delete_replaced, gather_ledgers
from ledgerlog.log.log import Log, delete_log, open_log
from ledgerlog.log.sweep import sweep
from ledgerlog.model.ids import Position
from ledgerlog.model.layout import gathered_path, is_gathered, log_record_path, splices_path
from ledgerlog.model.policies import RetentionPolicy
from ledgerlog.model.record import Record
from ledgerlog.testing.faulty_store import answer_lost_behind
from ledgerlog.testing.memory_cluster import Client, open_cluster
from ledgerlog.wire.records import decode_entry
from tests.shells.test_log_splice import batch, commit, mortal, new_log, registry, staged

_STAGED_S = 40.0
_KEEP_S = 20.0


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ledgers are many, and waits are short: a simulated day is long for the bookies."""
    monkeypatch.setattr(log_sweep, "LOG_STAGED_SWEEP_AGE_S", _STAGED_S)
    monkeypatch.setattr(log_gather, "LOG_GATHERED_KEEP_S", _KEEP_S)
    monkeypatch.setattr(core_gather, "LOG_GATHER_LEDGERS_MIN", 4)
    monkeypatch.setattr(core_gather, "LOG_GATHER_GROWTH", 2)


async def records_of(log: Log) -> list[Record]:
    """The records, without their positions."""
    async with log.read() as records:
        return [record._replace(position=None) async for record in records]


async def ids(client: Client, log: Log) -> list[int]:
    metadata, _ = await registry(client.opened).read(log.incarnation)
    assert metadata is not None
    return [segment.ledger_id for segment in metadata.segments]


async def lists_of_replaced(client: Client, log: Log) -> list[str]:
    return [one for one in await client.store.children(splices_path(log.incarnation)) if is_gathered(one)]


async def splice_apart(client: Client, log: Log, count: int, *, first: int = 0) -> None:
    """Splice ``count`` ledgers of two records, at different times, without gathering any."""
    at_least, core_gather.LOG_GATHER_LEDGERS_MIN = core_gather.LOG_GATHER_LEDGERS_MIN, 10**9
    for number in range(first, first + count):
        await trio.sleep(1)
        values = [b"%d" % number, b"x%d" % number]
        await commit(client.opened, log, batch(number, await staged(client.opened, log, values)))
    core_gather.LOG_GATHER_LEDGERS_MIN = at_least


async def gather_now(client: Client, log: Log) -> int:
    return await gather_ledgers(client.opened, registry(client.opened), log.name, log.incarnation)


async def staged_with_keys(client: Client, log: Log) -> Staged:
    async with stage(client.opened, registry(client.opened), log.name, log.incarnation) as opened:
        await opened.append_many([b"a", b""], keys=[b"k", None], headers=[None, [("h", b"1")]])
        made = await opened.close()
    assert made is not None
    return made


async def test_splices_leave_few_ledgers_and_records_stay_as_they_were(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        async with log.writer(compression="zstd") as writer:
            await writer.append(b"by a leader" * 20)
        await splice_apart(client, log, 3)
        before = await records_of(log)
        await commit(client.opened, log, batch(3, (await staged_with_keys(client, log),)))
        (one,) = await ids(client, log)
        after = await records_of(log)
        assert after[: len(before)] == before
        assert [(each.offset, each.key, each.headers) for each in after[-2:]] == [
            (7, b"k", ()),
            (8, None, (("h", b"1"),)),
        ]
        assert len({each.timestamp for each in after}) == 4
        payloads = await client.contents(one)
        entries = [decode_entry(payload, ledger_id=one, entry_id=at) for at, payload in enumerate(payloads)]
        assert len(payloads[0]) < 150, "it is compressed as before"
        assert [header.bytes_before for header, _ in entries] == [
            sum(len(each.data) + len(each.key or b"") for each in after[: header.first_offset])
            for header, _ in entries
        ]
        for record in after:
            async with log.read(record.offset) as records:
                assert (await anext(records)).data == record.data
            async with log.read(record.timestamp) as records:
                assert (await anext(records)).timestamp == record.timestamp
        async with log.writer() as writer:
            assert (await writer.append(b"next")).offset == 9


async def test_records_of_one_splice_share_entries(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        ledgers = await staged(client.opened, log, *[[b"%d" % at] for at in range(8)])
        await commit(client.opened, log, batch(0, ledgers))
        (one,) = await ids(client, log)
        assert len(await client.contents(one)) == 1
        assert [record.data for record in await records_of(log)] == [b"%d" % at for at in range(8)]


@pytest.mark.parametrize("dies_before", [True, False])
async def test_a_gatherer_killed_at_any_write_harms_nothing(
    autojump_clock: object, dies_before: bool
) -> None:
    deaths = 0
    for at in range(1, 30):
        async with open_cluster() as cluster, cluster.client() as client:
            log = await new_log(client)
            await splice_apart(client, log, 5)
            before = await records_of(log)
            async with mortal(cluster, "driver") as (driver, death):
                death.at, death.is_before = at, dies_before
                with trio.CancelScope() as death.process:
                    await gather_ledgers(driver, registry(driver), "log", log.incarnation)
                deaths += death.process.cancelled_caught
            assert await records_of(log) == before
            await gather_now(client, log)
            assert len(await ids(client, log)) == 1
            await trio.sleep(_STAGED_S)
            await sweep(client.opened, min_age_s=0)
            assert await client.ledgers.list() == await ids(client, log)
            assert await lists_of_replaced(client, log) == []
            assert await records_of(log) == before
            if not death.process.cancelled_caught:
                break
    assert deaths >= 3


@pytest.mark.parametrize("fault", ["lost_answers", "lost_writes"])
async def test_a_gatherer_whose_answer_is_lost_looks_into_the_list(
    autojump_clock: object, fault: str
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await splice_apart(client, log, 4)
        before = await records_of(log)

        async def lose(path: str) -> None:
            # The new ledger is there, so the next write of the log's record is the one that replaces.
            if path == log_record_path(log.incarnation) and len(await client.ledgers.list()) > 4:
                other.store.before_get = None
                setattr(other.store, fault, 1)

        other.store.before_get = lose
        assert await gather_now(other, log) == 4
        assert len(await ids(client, log)) == 1
        assert await records_of(log) == before


async def test_of_two_gatherers_one_replaces_and_the_other_leaves_nothing(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await splice_apart(client, log, 4)
        before = await records_of(log)
        old = await ids(client, log)
        done: list[int] = []

        async def gather_in(gatherer: Client) -> None:
            done.append(await gather_now(gatherer, log))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(gather_in, client)
            nursery.start_soon(gather_in, other)
        assert sorted(done) == [0, 4]
        assert await client.ledgers.list() == sorted([*old, *await ids(client, log)])
        assert await records_of(log) == before


async def test_a_new_ledger_that_a_sweep_has_deleted_takes_no_place_in_the_list(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = log_gather._replace

    async def replace_late(client: LedgerClient, *args: Any) -> bool:
        await client.ledgers.delete(args[-1])
        return await replace(client, *args)

    monkeypatch.setattr(log_gather, "_replace", replace_late)
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await splice_apart(client, log, 4)
        before, old = await records_of(log), await ids(client, log)
        assert await gather_now(client, log) == 0
        assert await ids(client, log) == old
        assert await records_of(log) == before


async def test_replaced_ledgers_are_read_for_a_day_and_then_go(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await splice_apart(client, log, 4)
        old = await ids(client, log)
        await trio.sleep(2 * _STAGED_S)
        assert await gather_now(client, log) == 4
        with pytest.raises(InvalidArgument, match="a gathered ledger holds its records now"):
            async with log.read(Position(old[0], 0, 0)):
                raise AssertionError("it has the old position")
        await trio.sleep(_KEEP_S / 2)
        await delete_replaced(client.opened, registry(client.opened), log.incarnation)
        assert await sweep(client.opened, min_age_s=0) == []
        assert set(old) < set(await client.ledgers.list())
        await trio.sleep(_KEEP_S / 2)
        await delete_replaced(client.opened, registry(client.opened), log.incarnation)
        assert await client.ledgers.list() == await ids(client, log)
        assert await lists_of_replaced(client, log) == []


async def test_a_reader_within_a_ledger_that_goes_continues_in_the_new_one(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await splice_apart(client, log, 4)
        before = await records_of(log)
        async with (await open_log(other.opened, "log")).read(follow=True) as records:
            found = [await anext(records)]
            assert await gather_now(client, log) == 4
            await trio.sleep(_KEEP_S)
            await delete_replaced(client.opened, registry(client.opened), log.incarnation)
            for bookie in cluster.bookies.values():
                await bookie.node.engine.flush()
                assert await bookie.node.engine.collector.collect() == 4
            await splice_apart(client, log, 1, first=4)
            found += [await anext(records) for _ in range(len(before) + 1)]
        assert [each.offset for each in found] == list(range(len(before) + 2))
        assert [each.data for each in found[: len(before)]] == [each.data for each in before]


async def test_a_log_that_is_truncated_or_deleted_while_it_is_gathered_is_left_as_it_is(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await splice_apart(client, log, 5)
        before = await records_of(log)

        async def truncate(path: str) -> None:
            if path == log_record_path(log.incarnation) and len(await client.ledgers.list()) > 5:
                other.store.before_get = None
                await log.truncate(3)

        other.store.before_get = truncate
        assert await gather_now(other, log) == 0
        assert await client.ledgers.list() == await ids(client, log)
        assert await records_of(log) == before[3:]
        assert await gather_now(other, log) == 4
        assert await records_of(log) == before[3:]
        await delete_log(client.opened, "log")
        assert await client.ledgers.list() == []
        assert await client.store.children(splices_path(log.incarnation)) == []


async def test_a_damaged_ledger_stays_and_the_batch_is_in_the_log(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await splice_apart(client, log, 3)
        old = await ids(client, log)
        await client.ledgers.delete(old[1])
        done = await commit(client.opened, log, batch(3, await staged(client.opened, log, [b"x"])))
        assert done.end_offset == 7
        assert (await ids(client, log))[:3] == old
        assert await gather_now(client, log) == 0
        assert len(await client.ledgers.list()) == 3, "its own new ledger is gone"
        await splice_apart(client, log, 1, first=4)
        assert await gather_now(client, log) == 0
        await splice_apart(client, log, 1, first=5)
        assert await gather_now(client, log) == 4
        assert (await ids(client, log))[:2] == old[:2]
        async with log.read(4) as records:
            assert [record.offset async for record in records] == list(range(4, 11))


async def test_a_list_that_does_not_say_what_a_ledger_holds_is_not_gathered(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await splice_apart(client, log, 4)
        metadata, version = await registry(client.opened).read(log.incarnation)
        assert metadata is not None
        first, *rest = metadata.segments
        wrong = attrs.evolve(metadata, segments=(first._replace(byte_length=7), *rest))
        await registry(client.opened).write(wrong, version)
        assert await gather_now(client, log) == 0
        assert len(await ids(client, log)) == 4
        assert "but the list says 2 and 7" in caplog.text


async def test_retention_drops_gathered_ledgers(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await splice_apart(client, log, 4)
        assert await gather_now(client, log) == 4
        await log.configure(retention=RetentionPolicy(max_age_s=1))
        await trio.sleep(100)
        await commit(client.opened, log, batch(4, await staged(client.opened, log, [b"new"])))
        assert await log.apply_retention() == 8
        assert [record.data for record in await records_of(log)] == [b"new"]


async def test_a_commit_whose_answer_is_lost_finds_its_ledgers_though_they_were_gathered(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await splice_apart(client, log, 3)

        async def gather() -> None:
            assert await gather_now(other, log) == 4

        made = batch(3, await staged(client.opened, log, [b"x"]), producer=None)
        client.store.faults.append(answer_lost_behind(log_record_path(log.incarnation), gather))
        assert not (await commit(client.opened, log, made)).was_there
        assert [record.data for record in (await records_of(log))[-1:]] == [b"x"]
        assert set(await client.ledgers.list()) > {each.ledger_id for each in made.staged}


async def test_a_leader_goes_on_while_the_ledgers_before_its_own_are_gathered(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await splice_apart(client, log, 4)
        async with log.writer() as writer:
            await writer.append(b"one")
            assert await gather_now(other, log) == 4
            await writer.append(b"two")
            await writer.roll()
            assert (await writer.append(b"three")).offset == 10
            assert writer.epoch == 2
        assert [record.data for record in (await records_of(log))[-3:]] == [b"one", b"two", b"three"]


async def test_a_sweep_deletes_what_was_replaced_and_the_list_of_it(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await splice_apart(client, log, 4)
        before = await records_of(log)
        assert await gather_now(client, log) == 4
        await trio.sleep(_KEEP_S)
        await sweep(client.opened, min_age_s=0)
        assert await client.ledgers.list() == await ids(client, log)
        assert await lists_of_replaced(client, log) == []
        assert await records_of(log) == before


async def test_a_list_of_replaced_ledgers_that_is_damaged_harms_nothing(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await splice_apart(client, log, 4)
        before = await records_of(log)
        await client.store.create(gathered_path(log.incarnation, 5), b"damaged")
        assert await gather_now(client, log) == 4
        await trio.sleep(_KEEP_S)
        await sweep(client.opened, min_age_s=0)
        assert len(await lists_of_replaced(client, log)) == 1
        assert await records_of(log) == before


async def test_a_ledger_that_is_listed_again_is_not_deleted(autojump_clock: object) -> None:
    """As after a restore of an older record of the log."""
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await splice_apart(client, log, 4)
        before = await records_of(log)
        older, _ = await registry(client.opened).read(log.incarnation)
        assert older is not None
        assert await gather_now(client, log) == 4
        _, version = await registry(client.opened).read(log.incarnation)
        await registry(client.opened).write(older, version)
        await trio.sleep(_KEEP_S)
        await delete_replaced(client.opened, registry(client.opened), log.incarnation)
        assert await records_of(log) == before
