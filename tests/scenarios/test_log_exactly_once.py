"""Exactly once from end to end: producers that repeat everything, 200 takeovers, a consumer with a cursor.

Everything is production code on bookies in memory. Two processes take the log from each other repeatedly, at
any moment of the other's work. Bookies restart, links stall, and answers of the metadata store get lost.
Clients send each record to the current leader until it is acknowledged, and sometimes once more. A consumer
stores its results in the properties of its cursor, so results and cursor move in one step. Whenever it is
thrown out, it starts again from there.
"""

from __future__ import annotations

import contextlib
import random

import pytest
import trio
from trio.testing import MockClock

from ledgerlog.errors import CursorConflict, LedgerLogError
from ledgerlog.log.log import create_log, open_log
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, open_cluster

TAKEOVERS = 200
PRODUCERS = "abcd"


class Story:
    def __init__(self, cluster: MemoryCluster, clients: list[Client], seed: int) -> None:
        self.cluster = cluster
        self.clients = clients
        self.dice = random.Random(seed)
        self.leader: LogWriter | None = None
        self.led = trio.Event()
        self.takeovers = 0
        self.is_over = False
        self.acked: dict[str, list[int]] = {producer: [] for producer in PRODUCERS}
        self.duplicates = 0
        self.conflicts = 0

    async def lead(self, client: Client) -> None:
        """Take the log repeatedly; most of the time this deposes the other process."""
        log = await open_log(client.opened, "log")
        while self.takeovers < TAKEOVERS:
            client.store.lost_answers = self.dice.choice([0, 0, 0, 1])
            client.store.lost_writes = self.dice.choice([0, 0, 0, 1])
            with trio.CancelScope() as life, contextlib.suppress(LedgerLogError):
                async with log.writer(dedupe=True, window=self.dice.choice([2, 20, 200])) as writer:
                    self.takeovers += 1
                    self.leader = writer
                    self.led.set()
                    self.led = trio.Event()
                    await trio.sleep(self.dice.random() * 0.05)
                    if self.dice.random() < 0.3:
                        life.cancel()
            await trio.sleep(self.dice.random() * 0.05)

    async def produce(self, producer: str) -> None:
        acked = self.acked[producer]
        while not self.is_over:
            writer = self.leader
            if writer is None or writer.failure is not None:
                with trio.move_on_after(0.01):
                    await self.led.wait()
                continue
            back = self.dice.choice([0, 0, 0, 3])
            first = max(0, len(acked) - back)
            datas = [b"%s%d" % (producer.encode(), first + n) for n in range(self.dice.randrange(1, 6))]
            try:
                acks = await writer.append_many(datas, sequence=first, producer=producer)
            except LedgerLogError:
                await trio.sleep(0.001)
                continue  # Send it to the next leader.
            for sequence, ack in enumerate(acks, first):
                self.duplicates += ack.duplicate
                if sequence < len(acked):
                    assert ack.offset == acked[sequence]
                else:
                    acked.append(ack.offset)
            await trio.sleep(self.dice.random() * 0.01)

    async def disturb(self) -> None:
        while not self.is_over:
            await trio.sleep(self.dice.random() * 0.5)
            bookie = self.dice.choice(list(self.cluster.bookies))
            match self.dice.randrange(3):
                case 0:
                    await self.cluster.bookies[bookie].restart()
                case 1:
                    self.cluster.network.stall(self.dice.choice(self.clients).host, bookie)
                    await trio.sleep(0.1)
                    self.cluster.network.heal()
                case _:
                    self.cluster.network.reset(self.dice.choice(self.clients).host, bookie)

    async def consume(self, client: Client) -> None:
        """Count each producer's records, which arrive in their order, in the cursor's own properties."""
        log = await open_log(client.opened, "log")
        cursor = log.cursor("consumer")
        while not self.is_over:
            client.store.lost_answers = self.dice.choice([0, 0, 1])
            await trio.sleep(0.001)
            with contextlib.suppress(LedgerLogError), trio.move_on_after(self.dice.random()):
                state = await cursor.get()
                offset = 0 if state is None else state.offset
                counts = dict.fromkeys(PRODUCERS, 0)
                if state is not None:
                    counts |= {producer: int(count) for producer, count in state.properties.items()}
                async with log.read(offset, follow=True) as records:
                    async for batch in records.batches():
                        for data in batch.payloads:
                            text = data.decode()
                            assert int(text[1:]) == counts[text[0]], "each once, and in order"
                            counts[text[0]] += 1
                        properties = {producer: str(count) for producer, count in counts.items()}
                        try:
                            state = await cursor.move(
                                batch.end_offset, expected=state, properties=properties, pins=True
                            )
                        except CursorConflict:
                            self.conflicts += 1
                            break

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.disturb)
            for client in self.clients[2:]:
                nursery.start_soon(self.consume, client)
            for producer in PRODUCERS:
                nursery.start_soon(self.produce, producer)
            async with trio.open_nursery() as leaders:
                for client in self.clients[:2]:
                    leaders.start_soon(self.lead, client)
            self.is_over = True
            nursery.cancel_scope.cancel()


@pytest.mark.long
@pytest.mark.parametrize("seed", [5, *(pytest.param(n, marks=pytest.mark.soak) for n in range(100, 200))])
async def test_each_record_once_and_in_order_across_two_hundred_takeovers(
    seed: int, autojump_clock: MockClock
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(open_cluster(3))
        clients = [await stack.enter_async_context(cluster.client()) for _ in range(4)]
        await create_log(
            clients[0].opened,
            "log",
            roll=RollPolicy(max_records=100),
            retention=RetentionPolicy(max_bytes=1),
        )
        story = Story(cluster, clients, seed=seed)
        await story.run()
        cluster.network.heal()
        await cluster.start_all()
        for client in clients:
            client.store.lost_answers = client.store.lost_writes = 0
        log = await open_log(clients[0].opened, "log")
        async with log.writer(dedupe=True):
            pass
        state = await log.cursor("consumer").get()
        assert state is not None
        counts = {producer: int(count) for producer, count in state.properties.items()}
        info = await log.info()
        assert info.first_offset <= state.offset, "what the cursor pins is there"
        assert info.first_offset > 0, "and what it has passed is not"
        async with log.read(state.offset) as records:
            async for record in records:
                text = record.data.decode()
                assert int(text[1:]) == counts[text[0]]
                counts[text[0]] += 1
        for producer in PRODUCERS:
            assert counts[producer] >= len(story.acked[producer])
            assert story.acked[producer] == sorted(set(story.acked[producer]))
        assert story.takeovers >= TAKEOVERS
        assert min(counts.values()) > 100
        assert story.duplicates > 50
        assert sum(counts.values()) == info.next_offset
