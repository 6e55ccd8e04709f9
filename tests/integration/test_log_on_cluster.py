"""Logs on production ledgers and bookies in this process: they keep the promises that the fakes keep."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

import ledgerlog
from ledgerlog import (
    Ack,
    AppendUnknown,
    Cluster,
    InvalidArgument,
    LedgerLogError,
    LostLeadership,
    Record,
    Replication,
    RollPolicy,
)
from ledgerlog.model.record import RecordBatch
from tests.waiting import PATIENCE_S


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with ledgerlog.connect("memory:") as cluster:
        yield cluster


async def everything(cluster: Cluster, name: str = "log") -> list[Record]:
    log = await cluster.open_log(name)
    async with log.read() as records:
        found = [record async for record in records]
    assert [record.offset for record in found] == list(range(len(found)))
    return found


async def test_the_first_program_of_the_readme(cluster: Cluster) -> None:
    log = await cluster.create_log("orders", exist_ok=True)
    async with log.writer() as writer:
        ack = await writer.append(b"first")
        assert (ack.offset, ack.epoch, ack.duplicate) == (0, 1, False)
        acks = await writer.append_many([b"a", b"b"])
        assert [ack.offset for ack in acks] == [1, 2]
    async with log.read(start=0) as records:
        assert [(record.offset, record.data) async for record in records] == [
            (0, b"first"),
            (1, b"a"),
            (2, b"b"),
        ]


@pytest.mark.parametrize(
    "replication",
    [Replication(1, 1, 1), Replication(3, 3, 2), Replication(3, 2, 2), Replication(3, 3, 2, True)],
    ids=str,
)
async def test_every_replication_carries_a_log_across_rolls_and_takeovers(
    cluster: Cluster, replication: Replication
) -> None:
    log = await cluster.create_log("log", replication=replication, roll=RollPolicy(max_records=100))
    expected = []
    for term in range(3):
        async with log.writer() as writer:
            assert writer.epoch == term + 1
            for number in range(4):
                datas = [b"%d.%d.%d" % (term, number, n) for n in range(60)]
                await writer.append_many(datas)
                expected += datas
    found = await everything(cluster)
    assert [record.data for record in found] == expected
    info = await log.info()
    assert (info.next_offset, info.epoch) == (720, 3)
    assert len(info.segments) > 4
    for segment in info.segments:
        assert (await cluster.ledgers.metadata(segment.ledger_id)).is_closed


async def test_a_live_leader_is_deposed_and_told_by_whom(cluster: Cluster) -> None:
    log = await cluster.create_log("log")
    async with log.writer() as a:
        await a.append(b"a")
        async with log.writer() as b:
            await b.append(b"b")
            with pytest.raises(LostLeadership) as caught:
                await a.append(b"never")
            assert caught.value.epoch == 2
    assert [(r.data, r.epoch) for r in await everything(cluster)] == [(b"a", 1), (b"b", 2)]


async def test_a_follower_sees_each_record_soon_after_its_ack_with_nothing_written_after_it(
    cluster: Cluster,
) -> None:
    log = await cluster.create_log("log")
    async with log.writer() as writer, log.read(follow=True) as records:
        for number in range(20):
            await writer.append(b"%d" % number)
            with trio.fail_after(PATIENCE_S):
                assert (await anext(records)).data == b"%d" % number
            if number % 7 == 3:
                await writer.roll()


async def test_a_crashed_leader_leaves_what_he_acknowledged(cluster: Cluster) -> None:
    log = await cluster.create_log("log")
    acked: list[Ack] = []
    for _ in range(3):
        with trio.CancelScope() as scope:
            async with log.writer() as writer:

                async def append(
                    writer: ledgerlog.LogWriter = writer, scope: trio.CancelScope = scope
                ) -> None:
                    for _ in range(20):
                        acked.append(await writer.append(b"x"))
                    scope.cancel()

                async with trio.open_nursery() as nursery:
                    for _ in range(5):
                        nursery.start_soon(append)
    found = await everything(cluster)
    async with log.writer():
        pass
    found = await everything(cluster)
    by_offset = {record.offset: record for record in found}
    for ack in acked:
        assert by_offset[ack.offset].position == ack.position
        assert by_offset[ack.offset].epoch == ack.epoch
    assert len({ack.offset for ack in acked}) == len(acked)


async def test_a_start_is_found_by_offset_and_by_position_among_many_entries(cluster: Cluster) -> None:
    log = await cluster.create_log("log")
    async with log.writer() as writer:
        for _ in range(40):
            await writer.append_many([b"x" * random.Random(1).randrange(9000)] * 50)
    found = await everything(cluster)
    for offset in range(0, 2000, 83):
        async with log.read(offset, until=offset + 1) as records:
            assert [record async for record in records] == [found[offset]]
        async with log.read(found[offset].position, until=offset + 1) as records:
            assert [record async for record in records] == [found[offset]]
    batches: list[RecordBatch] = []
    async with log.read() as reader:
        async for batch in reader.batches():
            batches.append(batch)
    assert [record for batch in batches for record in batch] == found


@pytest.mark.parametrize("seed", range(4))
async def test_rivals_on_production_ledgers_make_one_history(cluster: Cluster, seed: int) -> None:
    dice = random.Random(seed)
    acked: dict[bytes, Ack] = {}
    refused: set[bytes] = set()
    await cluster.create_log("log", roll=RollPolicy(max_records=50))

    async def lead(number: int) -> None:
        log = await cluster.open_log("log")
        for _ in range(4):
            with trio.CancelScope() as scope:
                try:
                    async with log.writer() as writer, trio.open_nursery() as nursery:
                        for task in range(4):
                            nursery.start_soon(append, writer, f"{writer.epoch}.{number}.{task}")
                        if dice.random() < 0.3:
                            await trio.sleep(dice.random() / 50)
                            scope.cancel()
                except LedgerLogError:
                    pass
            await trio.sleep(dice.random() / 50)

    async def append(writer: ledgerlog.LogWriter, prefix: str) -> None:
        for count in range(dice.randrange(30)):
            name = f"{prefix}.{count}".encode()
            try:
                acked[name] = await writer.append(name)
            except AppendUnknown:
                return
            except LedgerLogError:
                refused.add(name)
                return

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(lead, number)
    log = await cluster.open_log("log")
    async with log.writer():
        pass
    found = await everything(cluster)
    at = {record.data: record for record in found}
    assert len(at) == len(found)
    assert all(at[name].offset == ack.offset and at[name].epoch == ack.epoch for name, ack in acked.items())
    assert not refused & set(at)
    assert [record.epoch for record in found] == sorted(record.epoch for record in found)


async def test_a_sealed_or_deleted_log_leaves_no_ledger_open_or_behind(cluster: Cluster) -> None:
    log = await cluster.create_log("log")
    async with log.writer() as writer:
        await writer.append(b"a")
        await log.seal()
        with pytest.raises(ledgerlog.LogSealed):
            await writer.append(b"b")
    assert [record.data for record in await everything(cluster)] == [b"a"]
    for ledger_id in await cluster.ledgers.list():
        assert (await cluster.ledgers.metadata(ledger_id)).is_closed
    await cluster.delete_log("log")
    assert await cluster.ledgers.list() == []
    assert await cluster.logs() == []


@pytest.mark.parametrize("metadata", [{"a": "text"}, {1: b"x"}, {"a": None}, {"\ud800": b"x"}])
async def test_a_ledger_is_not_made_with_metadata_that_nobody_could_read(
    cluster: Cluster, metadata: Any
) -> None:
    with pytest.raises(InvalidArgument, match=r"labels of a ledger map text to bytes|is not text in UTF-8"):
        await cluster.ledgers.create(metadata=metadata)
    assert await cluster.ledgers.list() == []


@pytest.mark.parametrize("deadline_s", [0, -1, float("nan")])
async def test_a_deadline_is_a_positive_number(deadline_s: float) -> None:
    with pytest.raises(InvalidArgument, match="append_deadline_s must be positive"):
        async with ledgerlog.connect("memory:", append_deadline_s=deadline_s):
            pass


async def test_properties_that_are_not_utf_8_are_an_argument_that_is_wrong(cluster: Cluster) -> None:
    log = await cluster.create_log("log")
    for wrong in ({"a": "\udcff"}, {"\udcff": "a"}):
        with pytest.raises(InvalidArgument, match="is not text in UTF-8"):
            await log.set_properties(wrong)
        with pytest.raises(InvalidArgument, match="is not text in UTF-8"):
            await log.cursor("c").set(0, properties=wrong)
    assert (await log.properties(), await log.cursors()) == ({}, [])
