"""Leaders that contend for one log make one history, and it agrees with everything that they were told.

Several processes take the log over repeatedly, append from several tasks, roll, are deposed, vanish at any
moment, and lose the answers of metadata writes. Meanwhile ledgers confirm late, and recovery may end them at
any entry. Readers follow all the time. At the end the test reads the log once more, and compares it with
everything that anybody was told:

* offsets are dense, epochs and timestamps never decrease;
* an acknowledged record is there, at its offset (even if its Ack came after a takeover);
* a record whose append failed definitely, or was taken back, is not there; no record is there twice;
* of the records of one call a prefix is there, and the calls of one task are there in their order;
* nobody is told an offset at or beyond the start of a newer leadership (no ack by a deposed leader);
* the records that followers saw are the beginning of that history.

The scheduler is seeded too, so a failing seed fails again.
"""

from __future__ import annotations

import random
from collections import defaultdict

import attrs
import pytest
import trio
from fakes.ledgers import Ledger, World, open_world

from ledgerlog.errors import (
    AppendUnknown,
    LedgerLogError,
    LostLeadership,
    MetadataOutcomeUnknown,
    OffsetMismatch,
    RecoveryFailed,
)
from ledgerlog.log.log import create_log, open_log
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.record import Ack, Record
from ledgerlog.testing.faulty_store import Call, Fate, Fault, FaultyStore, fates


def lossy(dice: random.Random, share: float) -> Fault:
    """A store that sometimes loses the answer to a write, and sometimes the request."""

    def choose(call: Call) -> Fate:
        roll = dice.random() if call.operations else 1.0
        return Fate.LOST if roll < share / 2 else Fate.UNANSWERED if roll < share else Fate.DONE

    return fates(choose)


@attrs.define
class History:
    """Everything that the processes did and were told."""

    acked: dict[bytes, Ack] = attrs.field(factory=dict)
    refused: set[bytes] = attrs.field(factory=set)
    """Records that are certainly not in the log."""
    begun: dict[int, int] = attrs.field(factory=dict)
    """Epoch -> the first offset of that leadership."""
    unknown: int = 0
    calls: list[list[bytes]] = attrs.field(factory=list)
    followed: list[list[Record]] = attrs.field(factory=list)

    def ack(self, data: bytes, ack: Ack) -> None:
        assert data not in self.acked
        self.acked[data] = ack
        newer = [offset for epoch, offset in self.begun.items() if epoch > ack.epoch]
        assert all(ack.offset < offset for offset in newer), "an ack by a deposed leader"


class Rival:
    """A process that leads whenever it can."""

    def __init__(self, world: World, history: History, number: int, seed: int) -> None:
        self.world = world
        self.history = history
        self.number = number
        self.dice = random.Random(f"{seed}.{number}")
        self.count = 0
        client = world.client()
        client.store = FaultyStore(world.tree, lossy(self.dice, 0.1))
        self.client = client

    async def run(self, terms: int) -> None:
        log = await open_log(self.client, "log")
        while terms:
            with trio.CancelScope() as scope:
                try:
                    async with log.writer(
                        window=self.dice.choice([1, 4, 100]),
                        entry_bytes=self.dice.choice([None, None, 1, 60]),
                        compression=self.dice.choice([None, None, "zstd"]),
                        dedupe=self.dice.choice([None, None, True, False]),
                    ) as writer:
                        terms -= 1
                        self.history.begun[writer.epoch] = writer.next_offset
                        await self.lead(writer, scope)
                except (RecoveryFailed, MetadataOutcomeUnknown, LostLeadership, AppendUnknown):
                    pass
            await self.pause(30)

    async def pause(self, steps: int) -> None:
        for _ in range(self.dice.randrange(steps)):
            await trio.lowlevel.checkpoint()

    async def lead(self, writer: LogWriter, scope: trio.CancelScope) -> None:
        async with trio.open_nursery() as nursery:
            for task in range(self.dice.randrange(1, 5)):
                nursery.start_soon(self.append, writer, task)
            if self.dice.random() < 0.5:
                nursery.start_soon(self.roll, writer)
            if self.dice.random() < 0.2:
                await self.pause(60)
                scope.cancel()

    async def roll(self, writer: LogWriter) -> None:
        for _ in range(self.dice.randrange(3)):
            await self.pause(20)
            try:
                await writer.roll()
            except LedgerLogError:
                return

    def name(self, writer: LogWriter, task: int) -> bytes:
        self.count += 1
        return b"%d.%d.%d.%d" % (writer.epoch, self.number, task, self.count)

    async def append(self, writer: LogWriter, task: int) -> None:
        for _ in range(self.dice.randrange(1, 12)):
            await self.pause(6)
            names = [self.name(writer, task) for _ in range(self.dice.choice([1, 1, 1, 3, 8]))]
            self.history.calls.append(names)
            many = len(names) > 1
            try:
                with trio.CancelScope() as scope:
                    if self.dice.random() < 0.1:
                        scope.deadline = trio.current_time()
                    if many:
                        acks = await writer.append_many(names, atomic=self.dice.random() < 0.3)
                    elif self.dice.random() < 0.2:
                        expected = writer.next_offset + self.dice.choice([0, 0, 1])
                        acks = [await writer.append(names[0], expected_offset=expected)]
                        assert acks[0].offset == expected
                    else:
                        acks = [await writer.append(names[0])]
                    for name, ack in zip(names, acks, strict=True):
                        self.history.ack(name, ack)
            except OffsetMismatch:
                self.history.refused.update(names)
            except AppendUnknown:
                self.history.unknown += len(names)
            except LedgerLogError:
                self.history.refused.update(names)
                return


async def follow(world: World, history: History, count: int) -> None:
    log = await open_log(world.client(), "log")
    for _ in range(count):
        seen: list[Record] = []
        history.followed.append(seen)
        while True:
            start = seen[-1].offset + 1 if seen else "earliest"
            async with log.read(start, follow=True) as records:
                async for record in records:
                    seen.append(record)
            return


def judge(history: History, found: list[Record]) -> None:
    assert [record.offset for record in found] == list(range(len(found)))
    epochs = [record.epoch for record in found]
    assert epochs == sorted(epochs)
    times = [record.timestamp for record in found]
    assert times == sorted(times)
    at = {record.data: record for record in found}
    assert len(at) == len(found), "nothing is in the log twice"
    for name, ack in history.acked.items():
        assert name in at, f"{name!r} was acknowledged and is lost"
        assert (at[name].offset, at[name].position, at[name].epoch) == (ack.offset, ack.position, ack.epoch)
    assert not history.refused & set(at), "what was refused is in the log"
    for epoch, begun in history.begun.items():
        assert all(r.offset >= begun for r in found if r.epoch == epoch)
        assert all(r.offset < begun for r in found if r.epoch < epoch)
    last: dict[bytes, int] = defaultdict(int)
    for record in found:
        assert int(record.data.split(b".")[0]) == record.epoch
        task, _, count = record.data.rpartition(b".")
        assert int(count) > last[task], "the calls of one task are in the log in their order"
        last[task] = int(count)
    for names in history.calls:
        there = [name in at for name in names]
        assert there == sorted(there, reverse=True), "of the records of one call a prefix is there"
    for seen in history.followed:
        assert seen == found[: len(seen)]


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """Turn on trio's own switch for repeatable schedules."""
    monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    return trio._core._run._r


@pytest.mark.parametrize("seed", range(60))
async def test_contending_leaders_make_one_history(seed: int, deterministic: random.Random) -> None:
    await contend(seed, deterministic)


@pytest.mark.soak
@pytest.mark.parametrize("start", range(60, 3000, 60))
async def test_many_more_contending_leaders_make_one_history_each(
    start: int, deterministic: random.Random
) -> None:
    for seed in range(start, start + 60):
        try:
            await contend(seed, deterministic)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


async def contend(seed: int, deterministic: random.Random) -> None:
    """Three rivals lead in turn and two readers follow, as the seed has it. Judges what they saw."""
    deterministic.seed(seed)
    dice = random.Random(seed)

    def ends(ledger: Ledger) -> int:
        return dice.randint(ledger.lac, len(ledger.entries) - 1)

    history = History()
    async with open_world(seed) as world:
        world.ends = ends
        world.confirm_steps = lambda: dice.choice([0, 1, 1, 5, 20])
        world.recovery_steps = dice.choice([0, 2, 10])
        roll = RollPolicy(max_records=dice.choice([None, 3, 10]))
        await create_log(world.client(), "log", roll=roll)

        async def age() -> None:
            while True:
                await trio.lowlevel.checkpoint()
                world.now_ms += dice.randrange(-3, 5)
                if dice.random() < 0.01:
                    world.recovery_fails = {dice.choice(world.created)} if world.created else set()
                elif dice.random() < 0.05:
                    world.recovery_fails = set()

        async with trio.open_nursery() as background:
            background.start_soon(age)
            for _ in range(2):
                background.start_soon(follow, world, history, 1)
            async with trio.open_nursery() as nursery:
                for number in range(3):
                    nursery.start_soon(Rival(world, history, number, seed).run, 4)
            background.cancel_scope.cancel()
        world.recovery_fails = set()
        log = await open_log(world.client(), "log")
        async with log.writer():
            pass
        async with log.read() as records:
            found = [record async for record in records]
    judge(history, found)
    assert history.acked
