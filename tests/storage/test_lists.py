"""Lists of a long ledger come in parts and miss nothing. Each part takes little of the bookie's time."""

from __future__ import annotations

import attrs
import pytest
import trio
from storing import KEY, SMALL, add, add_durably, running

from bookie.core import rows
from bookie.core.journal_items import EntryRun
from bookie.core.ledger import StoredLedger
from bookie.core.rows import Row
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.engine import Engine
from bookie.storage.index.index import MemoryIndex, MemoryIndexes
from ledgerlog.limits import ENTRY_ID_MAX
from ledgerlog.wire.frame import Status
from tests.waiting import PATIENCE_S

LONG = 7
RUNS = 60_000
LARGE = attrs.evolve(SMALL, segment_bytes=8 * 1024 * 4096, frame_bytes_max=100_000, small_run_bytes=0)
Pairs = list[tuple[int, int]]


class CountingIndex(MemoryIndex):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.looked_at = 0

    async def scan(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        found = await super().scan(start, stop, floor=floor, limit=limit)
        self.looked_at += len(found)
        return found


class CountingIndexes(MemoryIndexes):
    async def create(self, path: str) -> MemoryIndex:
        self.indexes[path] = CountingIndex(path)
        return self.indexes[path]

    @property
    def index(self) -> CountingIndex:
        (index,) = self.indexes.values()
        assert isinstance(index, CountingIndex)
        return index

    def put_long_ledger(self, *, gap: int) -> Pairs:
        """A ledger of as many runs of nine entries as it takes, which nobody has touched yet: what it has."""
        step = 9 + gap
        firsts = range(0, RUNS * step, step)
        stored = StoredLedger(KEY, False, -1, -1, firsts[-1] + 8, 8, 0)
        self.index.apply(
            [
                rows.encode_ledger(LONG, stored),
                *(
                    rows.encode_run(
                        EntryRun(LONG, first, first + 8, 9, file=1, offset=4096, length=300, sequence=0)
                    )
                    for first in firsts
                ),
            ]
        )
        pairs = [(first, first + 8) for first in firsts]
        return pairs if gap else [(0, firsts[-1] + 8)]


async def list_all(engine: Engine, ledger_id: int, *, last: int = ENTRY_ID_MAX) -> tuple[Pairs, int]:
    """All that it has, and in how many parts that came."""
    found: Pairs = []
    first = parts = 0
    while first <= last:
        listed = await engine.list_entries(ledger_id, first=first, last=last, pairs_max=65_536)
        assert listed.status is Status.OK
        assert listed.pairs or listed.through == last
        for pair in listed.pairs:
            if found and found[-1][1] + 1 == pair[0]:
                found[-1] = found[-1][0], pair[1]
            else:
                found.append(pair)
        first = listed.through + 1
        parts += 1
    return found, parts


@pytest.mark.parametrize("gap", [0, 3])
async def test_a_list_looks_at_a_bounded_part_of_the_index_and_says_how_far_it_came(gap: int) -> None:
    indexes = CountingIndexes()
    async with running("b", disk=MemoryDisk(), indexes=indexes) as engine:
        stored = indexes.put_long_ledger(gap=gap)
        listed = await engine.list_entries(LONG, first=0, pairs_max=65_536)
        assert 10_000 < indexes.index.looked_at < 20_000
        assert listed.through < stored[-1][1]
        found, parts = await list_all(engine, LONG)
        assert found == stored
        assert 3 <= parts <= 6


async def test_a_list_ends_where_it_is_asked_to() -> None:
    indexes = CountingIndexes()
    async with running("b", disk=MemoryDisk(), indexes=indexes) as engine:
        stored = indexes.put_long_ledger(gap=3)
        for first, last in ((0, 4), (13, 40), (9, 11), (9, 9), (600_003, 600_003)):
            indexes.index.looked_at = 0
            listed = await engine.list_entries(LONG, first=first, last=last, pairs_max=65_536)
            expected = [(max(a, first), min(b, last)) for a, b in stored if b >= first and a <= last]
            assert (listed.pairs, listed.through) == (expected, last)
            assert indexes.index.looked_at < 300
        listed = await engine.list_entries(LONG, first=0, last=100, pairs_max=2)
        assert (listed.pairs, listed.through) == ([(0, 8), (12, 20)], 20)


async def test_of_an_unknown_ledger_a_list_is_complete_through_its_end() -> None:
    async with running("b", disk=MemoryDisk(), indexes=MemoryIndexes()) as engine:
        listed = await engine.list_entries(99, first=3, last=8, pairs_max=3)
        assert (listed.status, listed.pairs, listed.through) == (Status.NO_SUCH_LEDGER, [], 8)


async def test_what_is_in_memory_is_listed_and_read_with_others_served_in_between() -> None:
    async with running("b", LARGE, disk=MemoryDisk(), indexes=MemoryIndexes()) as engine:
        ids = range(0, 34_000, 2)
        for start in range(0, len(ids), 1000):
            await engine.wait_room()
            await engine.wait_durable(max(add(engine, 1, [e], payloads=[b""]) for e in ids[start:][:1000]))
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            found, parts = await list_all(engine, 1)
            assert ticks > 30
            ticks, first = 0, 0
            while first < ids[-1]:
                result = await engine.read(1, first=first, last=10**6, stride=1, bytes_max=10**6)
                first = result.through + 1
            assert ticks > 20
            nursery.cancel_scope.cancel()
        assert found == [(e, e) for e in ids]
        assert parts == 2


async def test_runs_with_gaps_count_for_what_it_takes_to_read_them() -> None:
    async with running("b", LARGE, disk=MemoryDisk(), indexes=MemoryIndexes()) as engine:
        for first in range(0, 240_000, 2000):
            await add_durably(engine, 1, range(first, first + 2000, 2), payloads=[b""] * 1000)
        found, parts = await list_all(engine, 1)
        assert found == [(e, e) for e in range(0, 240_000, 2)]
        assert parts == 3


async def test_nobody_who_looks_for_runs_waits_for_those_who_move_them() -> None:
    """Who moves runs may wait for room on a full disk, for as long as that takes."""
    indexes = CountingIndexes()
    async with running("b", disk=MemoryDisk(), indexes=indexes) as engine:
        # Any of the last 5000 may reach this far, as far as the ledger's state says.
        stored = StoredLedger(KEY, False, -1, -1, 3999, 0, 5000)
        found = [EntryRun(LONG, e, e, 1, file=1, offset=4096, length=300, sequence=0) for e in range(4000)]
        indexes.index.apply([rows.encode_ledger(LONG, stored), *map(rows.encode_run, found)])
        async with engine._ledgers._catalogue.lock:
            with trio.fail_after(PATIENCE_S):
                listed = await engine.list_entries(LONG, first=3900, last=3950, pairs_max=10)
        assert (listed.pairs, listed.through) == ([(3900, 3950)], 3950)
