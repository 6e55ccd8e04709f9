"""Appends that count once: sequences through retries, rolls, cancellations and takeovers."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from fakes.ledgers import World, open_world

from ledgerlog.errors import InvalidArgument, LedgerLogError, OutOfSequence, TooManyProducers
from ledgerlog.limits import LOG_CHECKPOINT_ENTRIES
from ledgerlog.log import takeover
from ledgerlog.log.log import Log, create_log, open_log
from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.producer import Dedupe
from ledgerlog.wire.records import decode_header


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as world:
        yield world


@pytest.fixture
async def log(world: World) -> Log:
    return await create_log(world.client(), "log")


async def elsewhere(world: World) -> Log:
    return await open_log(world.client(), "log")


async def contents(world: World) -> list[bytes]:
    async with (await elsewhere(world)).read() as records:
        found = [record async for record in records]
    assert [record.offset for record in found] == list(range(len(found)))
    return [record.data for record in found]


async def test_a_repeat_gives_the_first_offset(world: World, log: Log) -> None:
    async with log.writer(producer="p") as writer:
        first = await writer.append(b"a", sequence=1)
        assert not first.duplicate
        again = await writer.append(b"a", sequence=1)
        assert (again.offset, again.duplicate, again.epoch) == (0, True, 1)
        assert (await writer.append(b"b", sequence=2)).offset == 1
        acks = await writer.append_many([b"a", b"b", b"c"], sequence=1)
        assert [(ack.offset, ack.duplicate) for ack in acks] == [(0, True), (1, True), (2, False)]
        submission = await writer.submit(b"d", sequence=4)
        repeat = await writer.submit(b"d", sequence=4)
        assert (await submission.wait()).offset == 3
        ack = await repeat.wait()
        assert (ack.offset, ack.duplicate) == (3, True)
        late = await (await writer.submit(b"d", sequence=4)).wait()
        assert (late.offset, late.duplicate) == (3, True)
    assert await contents(world) == [b"a", b"b", b"c", b"d"]


async def test_what_is_new_in_a_repeat_keeps_its_own_key_and_headers(world: World, log: Log) -> None:
    async with log.writer(producer="p") as writer:
        await writer.append_many([b"a", b"b"], sequence=1, keys=[b"A", None])
        acks = await writer.append_many(
            [b"a", b"b", b"c", b"d"],
            sequence=1,
            keys=[b"A", None, None, b"D"],
            headers=[None, None, {"h": b"c"}, None],
        )
        assert [ack.duplicate for ack in acks] == [True, True, False, False]
    async with (await elsewhere(world)).read() as records:
        found = [(record.data, record.key, record.headers) async for record in records]
    assert found == [
        (b"a", b"A", ()),
        (b"b", None, ()),
        (b"c", None, (("h", b"c"),)),
        (b"d", b"D", ()),
    ]


async def test_repeats_at_once_are_one_record(world: World, log: Log) -> None:
    found = []
    async with log.writer(producer="p") as writer, trio.open_nursery() as nursery:

        async def append() -> None:
            found.append(await writer.append(b"a", sequence=9))

        for _ in range(5):
            nursery.start_soon(append)
    assert [ack.offset for ack in found] == [0] * 5
    assert sorted(ack.duplicate for ack in found) == [False, True, True, True, True]
    assert await contents(world) == [b"a"]


async def test_a_repeat_is_found_after_a_takeover_and_after_rolls(world: World, log: Log) -> None:
    async with log.writer(producer="p") as writer:
        await writer.append_many([b"a", b"b"], sequence=1)
        await writer.roll()
        await writer.append(b"c", sequence=3)
        await writer.roll()
        await writer.append(b"x")
    for epoch in (2, 3, 4):
        async with (await elsewhere(world)).writer(producer="p") as writer:
            acks = await writer.append_many([b"a", b"b", b"c"], sequence=1)
            assert [(a.offset, a.duplicate, a.epoch) for a in acks] == [
                (0, True, epoch),
                (1, True, epoch),
                (2, True, epoch),
            ]
    assert await contents(world) == [b"a", b"b", b"c", b"x"]


async def test_a_leader_who_does_not_ask_for_it_keeps_the_table(world: World, log: Log) -> None:
    async with log.writer(producer="p") as writer:
        await writer.append(b"a", sequence=1)
    async with (await elsewhere(world)).writer() as writer:
        await writer.append(b"x")
        assert (await writer.append(b"a", sequence=1, producer="p")).duplicate
    async with (await elsewhere(world)).writer(dedupe=False) as writer:
        await writer.append(b"y")
        with pytest.raises(InvalidArgument, match="dedupe"):
            await writer.append(b"a", sequence=1, producer="p")
    async with (await elsewhere(world)).writer(dedupe=True) as writer:
        assert not (await writer.append(b"a", sequence=1, producer="p")).duplicate, "it was switched off"
    assert await contents(world) == [b"a", b"x", b"y", b"a"]


@pytest.mark.parametrize("dedupe", [False, True])
async def test_a_record_with_a_producer_needs_a_sequence(world: World, log: Log, dedupe: bool) -> None:
    async with log.writer(dedupe=dedupe) as writer:
        for append in (writer.append, writer.submit):
            with pytest.raises(InvalidArgument, match="a record with a producer needs a sequence"):
                await append(b"a", producer="p")
        with pytest.raises(InvalidArgument, match="needs a producer" if dedupe else "needs deduplication"):
            await writer.append(b"a", sequence=1)


async def test_the_table_outlives_the_records_that_were_truncated(world: World, log: Log) -> None:
    async with log.writer(producer="p") as writer:
        await writer.append_many([b"a", b"b", b"c"], sequence=1)
    await log.truncate(3)
    for _ in range(3):  # Leaders that die before they wrote anything.
        with trio.CancelScope() as scope:
            async with (await elsewhere(world)).writer():
                await log.truncate(3)
                scope.cancel()
    async with (await elsewhere(world)).writer(producer="p") as writer:
        ack = await writer.append(b"b", sequence=2)
        assert (ack.offset, ack.duplicate, ack.position) == (1, True, None)
        assert (await writer.append(b"d", sequence=4)).offset == 3
        await writer.roll()
        await log.truncate(4)
    assert len((await log.info()).segments) == 2, "the newest with records, and the last one, which is empty"


async def test_a_sequence_that_does_not_follow_is_refused_and_the_writer_goes_on(
    world: World, log: Log
) -> None:
    async with log.writer(producer="p", dedupe=Dedupe(max_producers=2)) as writer:
        await writer.append(b"a", sequence=1)
        with pytest.raises(OutOfSequence):
            await writer.append(b"c", sequence=3)
        with pytest.raises(OutOfSequence):
            await writer.append(b"z", sequence=0)
        with pytest.raises(OutOfSequence, match="part of the group"):
            await writer.append_many([b"a", b"b"], sequence=1, atomic=True)
        await writer.append(b"q", sequence=1, producer="q")
        with pytest.raises(TooManyProducers):
            await writer.append(b"r", sequence=1, producer="r")
        await writer.append(b"b", sequence=2)
    assert await contents(world) == [b"a", b"q", b"b"]


async def test_arguments_of_numbered_records_are_checked(log: Log) -> None:
    async with log.writer() as writer:
        with pytest.raises(InvalidArgument, match="dedupe"):
            await writer.append(b"a", sequence=1)
    async with log.writer(dedupe=True) as writer:
        for options in (
            {"sequence": 1},
            {"producer": "p"},
            {"producer": "", "sequence": 1},
            {"producer": "p", "sequence": -1},
            {"producer": "p", "sequence": 2**63},
            {"producer": "p", "sequence": True},
            {"producer": "p", "sequence": 1, "expected_offset": 0},
        ):
            with pytest.raises(InvalidArgument):
                await writer.append(b"a", **options)
    for bad in ({"dedupe": 3}, {"producer": ""}, {"producer": "p", "dedupe": False}):
        with pytest.raises(InvalidArgument):
            log.writer(**bad)


async def test_a_cancelled_append_is_not_taken_back_and_its_repeat_finds_it(world: World, log: Log) -> None:
    async with log.writer(producer="p") as writer:
        world.hold_all = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: writer.append(b"a", sequence=1))
            await trio.testing.wait_all_tasks_blocked()
            assert writer.statistics().records_outstanding == 1
            nursery.cancel_scope.cancel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: writer.append(b"b", sequence=2))
            world.release()
        acks = await writer.append_many([b"a", b"b", b"c"], sequence=1)
        assert [(a.offset, a.duplicate) for a in acks] == [(0, True), (1, True), (2, False)]
    assert await contents(world) == [b"a", b"b", b"c"]


async def test_a_call_that_waits_for_the_window_is_repeated_without_a_double(world: World, log: Log) -> None:
    async with log.writer(producer="p", window=2) as writer:
        world.hold_all = True
        many = [b"%d" % n for n in range(10)]
        with trio.move_on_after(0.01):
            await writer.append_many(many, sequence=0)
        async with trio.open_nursery() as nursery:
            found = []

            async def again() -> None:
                found.extend(await writer.append_many(many, sequence=0))

            nursery.start_soon(again)
            await trio.testing.wait_all_tasks_blocked()
            world.release()
        assert [ack.offset for ack in found] == list(range(10))
    assert await contents(world) == many


async def test_a_takeover_replays_what_follows_the_newest_checkpoint_and_no_more(
    world: World, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with log.writer(producer="p", entry_bytes=1) as writer:
        count = LOG_CHECKPOINT_ENTRIES + 100
        await writer.append_many([b"x"] * count, sequence=0)
    entries = world.ledgers[world.created[0]].entries
    at = [n for n, e in enumerate(entries) if decode_header(e, ledger_id=0, entry_id=n).is_checkpoint]
    assert at == [0, LOG_CHECKPOINT_ENTRIES + 1]
    looked_at = []
    decode = takeover.decode_numbering

    def watched(payload: bytes, *, ledger_id: int, entry_id: int) -> object:
        looked_at.append(entry_id)
        return decode(payload, ledger_id=ledger_id, entry_id=entry_id)

    monkeypatch.setattr(takeover, "decode_numbering", watched)
    async with (await elsewhere(world)).writer(producer="p") as writer:
        assert set(looked_at) == set(range(at[1], len(entries)))
        acks = await writer.append_many([b"x"] * (count + 1), sequence=0)
    assert [a.offset for a in acks] == list(range(count + 1))
    assert [a.duplicate for a in acks] == [True] * count + [False]


@pytest.mark.parametrize("seed", [11, *(pytest.param(n, marks=pytest.mark.soak) for n in range(100, 200))])
async def test_two_hundred_forced_takeovers_and_a_client_that_repeats_everything(seed: int) -> None:
    """Leaders are deposed at any moment, and recovery keeps or loses their last entries. Clients repeat
    records that were not acknowledged, and sometimes records that were."""
    dice = random.Random(seed)
    async with open_world(seed) as world:
        world.ends = lambda ledger: dice.randint(ledger.lac, len(ledger.entries) - 1)
        world.confirm_steps = lambda: dice.choice([0, 1, 3])
        await create_log(world.client(), "log", roll=RollPolicy(max_records=40))
        acked: dict[tuple[str, int], int] = {}
        sent = dict.fromkeys("abcd", 0)

        async def produce(writer: object, producer: str) -> None:
            while True:
                for _ in range(dice.randrange(4)):
                    await trio.lowlevel.checkpoint()
                first = max(0, sent[producer] - dice.choice([0, 0, 2]))
                datas = [f"{producer}{first + n}".encode() for n in range(dice.randrange(1, 8))]
                try:
                    acks = await writer.append_many(datas, sequence=first, producer=producer)
                except LedgerLogError:
                    return
                for n, ack in enumerate(acks):
                    assert acked.setdefault((producer, first + n), ack.offset) == ack.offset
                sent[producer] = max(sent[producer], first + len(acks))

        for _ in range(200):
            log = await elsewhere(world)
            with trio.CancelScope() as leadership, contextlib.suppress(LedgerLogError):
                async with (
                    log.writer(dedupe=True, window=dice.choice([3, 30, 300])) as writer,
                    trio.open_nursery() as nursery,
                ):
                    for producer in "abcd":
                        nursery.start_soon(produce, writer, producer)
                    for _ in range(dice.randrange(60)):
                        await trio.lowlevel.checkpoint()
                    if dice.random() < 0.5:
                        leadership.cancel()
                    else:
                        world.fence(writer.statistics().ledger_id)
                    nursery.cancel_scope.cancel()
        async with (await elsewhere(world)).writer(dedupe=True):
            pass
        found = await contents(world)
        assert len(found) == len(set(found)), "nothing is there twice"
        for (producer, sequence), offset in acked.items():
            assert found[offset] == f"{producer}{sequence}".encode()
        for producer in "abcd":
            numbers = [int(data[1:]) for data in found if data.decode()[0] == producer]
            assert numbers == list(range(len(numbers))), "all of them, in order"
            assert len(numbers) > 50
