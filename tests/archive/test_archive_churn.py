"""A log lives while jobs archive it. One user appends to it, takes it over, splices, truncates, deletes and
recreates it, while jobs copy, give up copies, merge and crash. A reader from the start and a follower that
was there all along both read every acknowledged record that was not truncated, each at its offset, and
nothing else."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
import trio

from ledgerlog.archive.jobs.job import archive_log, retire_gone
from ledgerlog.archive.jobs.rewrite import merge_log
from ledgerlog.errors import EntryNotFound, EntryUnavailable, LedgerNotFound, LogNotFound, Truncated
from ledgerlog.log.log import Log, delete_log
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, open_cluster
from tests.archive.archived_logs import Crash, add_spliced, archived, files, new_log, path_of, records_of


class Life:
    """The log as its users see it."""

    def __init__(self, client: Client, rng: random.Random) -> None:
        self.client = client
        self.rng = rng
        self.lives = 0
        self.log: Log
        self.acknowledged: list[bytes] = []
        self.first = 0

    async def begin(self) -> None:
        if self.lives:
            await delete_log(self.client.opened, "log")
        self.lives += 1
        self.log = await new_log(self.client)
        self.acknowledged, self.first = [], 0

    def _values(self) -> list[bytes]:
        start = len(self.acknowledged)
        return [b"%d of life %d" % (start + at, self.lives) for at in range(self.rng.randint(1, 6))]

    async def lead(self) -> None:
        async with self.log.writer() as writer:
            for _ in range(self.rng.randint(1, 3)):
                values = self._values()
                acks = await writer.append_many(values)
                assert [ack.offset for ack in acks] == [
                    len(self.acknowledged) + at for at in range(len(values))
                ]
                self.acknowledged += values
                await writer.roll()

    async def splice(self) -> None:
        values = self._values()
        await add_spliced(self.client, self.log, values)
        self.acknowledged += values

    async def truncate(self) -> None:
        self.first = self.rng.randint(self.first, len(self.acknowledged))
        await self.log.truncate(self.first)

    async def step(self) -> None:
        step = self.rng.choice((self.lead, self.lead, self.splice, self.splice, self.truncate))
        await step()

    async def check(self) -> None:
        records = await records_of(self.log)
        assert [record.offset for record in records] == list(range(self.first, len(self.acknowledged)))
        assert [record.data for record in records] == self.acknowledged[self.first :]


async def work(client: Client, where: Path, rng: random.Random) -> None:
    """A job, which may crash."""
    left = rng.randint(1, 30)

    def mark(name: str) -> None:
        nonlocal left
        left -= name.startswith("archive: ")
        if left == 0:
            raise Crash

    client.opened.environment.mark = mark
    try:
        if rng.random() < 0.3:
            await merge_log(client.opened, "log", str(where))
        else:
            await archive_log(client.opened, "log", str(where), keep_copies_s=0.0)
    except (Crash, LogNotFound):
        pass


async def collect(cluster: MemoryCluster) -> None:
    for bookie in cluster.bookies.values():
        await bookie.node.engine.flush()
        await bookie.node.engine.collector.collect()


async def live(where: Path, seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    async with (
        open_cluster() as cluster,
        cluster.client() as user,
        cluster.client() as one,
        cluster.client() as other,
    ):
        life = Life(user, rng)
        await life.begin()
        await life.lead()
        for at in range(rounds):
            seen: list[bytes] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow, life.log, life.first, seen)
                async with trio.open_nursery() as jobs:
                    jobs.start_soon(partial(work, one, where, random.Random(rng.random())))
                    jobs.start_soon(partial(work, other, where, random.Random(rng.random())))
                    await life.step()
                    await life.step()
                nursery.cancel_scope.cancel()
            begun = int(seen[0].split()[0]) if seen else 0
            assert seen == life.acknowledged[begun : begun + len(seen)]
            await life.check()
            await collect(cluster)
            await life.check()
            if at % 4 == 3:
                await life.begin()
                await life.lead()
        one.opened.environment.mark = lambda step: None
        await archive_log(one.opened, "log", str(where), keep_copies_s=0.0)
        await retire_gone(one.opened, str(where))
        await life.check()
        named = [path_of(record) for record in await archived(one, life.log)]
        assert set(named) <= set(files(where))


async def follow(log: Log, start: int, seen: list[bytes]) -> None:
    """Read until the task is cancelled, or the log is truncated or deleted under it."""
    try:
        async with log.read(start, follow=True) as records:
            async for record in records:
                seen.append(record.data)
    except (Truncated, LogNotFound):
        pass
    except (LedgerNotFound, EntryNotFound, EntryUnavailable):
        raise AssertionError("a record that is archived was not found") from None


@pytest.mark.parametrize("seed", range(2))
async def test_nothing_that_was_acknowledged_is_lost_by_archiving(tmp_path: Path, seed: int) -> None:
    await live(tmp_path, seed, rounds=4)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
async def test_nothing_that_was_acknowledged_is_lost_by_archiving_for_long(tmp_path: Path, seed: int) -> None:
    await live(tmp_path, seed, rounds=16)
