"""Adds, rot, copies brought again, flushes, compaction and scrubbing in an order that only the seed knows.

Whatever happens, an entry that was acknowledged is never denied and never another, and one that was
acknowledged just now can be read.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs
from storing import SMALL, add_frame, payload_of, read, running

from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.engine import Engine
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.wire.frame import Status

L = 1
MOVING = attrs.evolve(SMALL, scrub=False, merge_width=2, log_bytes_max=40_000, compact_bytes_per_s=2**40)
REFUSALS = (Status.CORRUPT, Status.IO_ERROR, Status.TOO_MANY_REQUESTS)
UNREADABLE = (Status.CORRUPT, Status.IO_ERROR)
_SEEDS = 16
BLOCKS_AT = 4096
"""What a start needs of a file lies before."""


class RandomRot:
    def __init__(self, seed: int) -> None:
        self.disk, self.indexes = MemoryDisk(), MemoryIndexes()
        self.stored: set[int] = set()
        self.mended = 0
        self._dice = random.Random(seed)
        self._config = attrs.evolve(MOVING, small_run_bytes=self._dice.choice((0, 20_000)))

    async def live(self, steps: int) -> None:
        async with running("b", self._config, disk=self.disk, indexes=self.indexes) as engine:
            before = engine.statistics()["runs_restored"]
            for _ in range(steps):
                await engine.wait_room()
                await self._step(engine)
            for entry_id in sorted(self.stored):
                await self._read(engine, entry_id)
            self.mended += engine.statistics()["runs_restored"] - before

    async def _step(self, engine: Engine) -> None:
        dice = self._dice
        known = sorted(self.stored)
        match dice.choices(("new", "rot", "again", "flush", "compact", "scrub"), (4, 3, 8, 1, 1, 1))[0]:
            case "new":
                first, step = dice.randrange(300), dice.choice((1, 1, 2))
                await self._add(engine, range(first, first + dice.choice((1, 3, 8, 20)), step))
            case "again" if known:
                first = dice.choice(known)
                last = first + dice.choice((1, 1, 2, 5, 30))
                await self._add(engine, [each for each in known if first <= each < last])
            case "rot" if known:
                self._rot(engine, dice.choice(known))
            case "flush":
                await engine.flush()
            case "compact":
                await engine.compactor.compact(is_eventual=True)
            case "scrub":
                await engine.scrubber.scrub()

    async def _add(self, engine: Engine, ids: Sequence[int]) -> None:
        position = engine.add(*add_frame(L, ids, recovery=self._dice.random() < 0.5))
        if isinstance(position, Status):
            assert position in REFUSALS
            return
        await engine.wait_durable(position)
        self.stored.update(ids)
        for entry_id in ids:
            assert await self._read(engine, entry_id) is Status.OK

    async def _read(self, engine: Engine, entry_id: int) -> Status:
        found = await read(engine, L, entry_id, entry_id)
        if found.status is Status.OK:
            assert found.entries.payloads() == [payload_of(L, entry_id)], "it is denied, or another"
        else:
            assert found.status in UNREADABLE
        return found.status

    def _rot(self, engine: Engine, entry_id: int) -> None:
        """In one of the files that are in memory no more."""
        memory = {f"b/journal/{number:016x}.journal" for number in range(engine.statistics()["segment"] + 2)}
        memory -= {f"b/journal/{number:016x}.journal" for number in range(min(engine._journal.residents))}
        paths = [p for p in self.disk.files if p.endswith((".journal", ".entries")) and p not in memory]
        if paths:
            content = self.disk.files[self._dice.choice(paths)]
            at = content.find(payload_of(L, entry_id)) - self._dice.choice((0, 0, 0, 0, 4, 40, 100))
            if at >= BLOCKS_AT:
                content[at] ^= 1 << self._dice.randrange(8)


async def test_nothing_that_was_acknowledged_is_denied_whatever_rots_and_is_brought_again() -> None:
    mended = 0
    for seed in range(_SEEDS):
        run = RandomRot(seed)
        try:
            for _ in range(3):
                await run.live(60)
        except BaseException as failure:
            failure.add_note(f"seed {seed}")
            raise
        mended += run.mended
    assert mended > _SEEDS, "too little rots to show anything"
