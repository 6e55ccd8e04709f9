"""The index made again from files with rot in payloads says what the one before said.

Adds, rot, copies brought again, whole or in parts, flushes, compaction and deletion come in an order that
only the seed knows. Whatever was healed reads well afterwards, though the rotten copy is still in its file;
what was not healed is damaged and never denied; what was never there is not there.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import attrs
import pytest
from storing import KEY, SMALL, Crash, ToldOracle, add_durably, add_frame, opened, read, running

from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from bookie.storage.index.index import MemoryIndexes
from bookie.storage.upkeep.rebuild import rebuild_index
from ledgerlog.errors import StorageCorrupt
from ledgerlog.wire.frame import Status

MOVING = attrs.evolve(SMALL, scrub=False, merge_width=2, log_bytes_max=60_000, compact_bytes_per_s=2**40)
UNREADABLE = (Status.CORRUPT, Status.IO_ERROR)
LEDGERS = (1, 2, 3)
IDS_MAX = 160
_SEEDS = 8

Answers = dict[tuple[int, int], bytes | Status | None]
"""Of each entry its payload, why it cannot be had, or None: it is not there."""


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    return b"ledger %d entry %d|" % (ledger_id, entry_id) * (4 + 30 * (entry_id % 5))


class Life:
    """A bookie's directory, and what is done to it."""

    def __init__(self, seed: int) -> None:
        self.disk, self.indexes, self.oracle = MemoryDisk(), MemoryIndexes(), ToldOracle()
        self.stored: dict[int, set[int]] = {ledger_id: set() for ledger_id in LEDGERS}
        self.rotted = 0
        self._dice = random.Random(seed)
        self._config = attrs.evolve(
            MOVING,
            small_run_bytes=self._dice.choice((0, 20_000)),
        )
        self._compacts = self._dice.choice((0, 0, 1))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Engine]:
        async with (
            opened("b", self.disk, self.indexes) as directory,
            open_engine(directory, self._config, oracle=self.oracle) as engine,
        ):
            yield engine

    async def live(self, steps: int) -> None:
        with suppress(Crash):
            async with self.running() as engine:
                for _ in range(steps):
                    await engine.wait_room()
                    await self._step(engine)
                if self._dice.random() < 0.3:
                    raise Crash

    async def _step(self, engine: Engine) -> None:
        dice = self._dice
        ledger_id = dice.choice(LEDGERS)
        known = sorted(self.stored[ledger_id])
        weights = (5, 4, 6, 2, 1, self._compacts, 0.1, 0.2)
        names = ("new", "rot", "again", "restore", "flush", "compact", "delete", "fence")
        match dice.choices(names, weights)[0]:
            case "new":
                first, step = dice.randrange(IDS_MAX - 40), dice.choice((1, 1, 1, 2))
                await self._add(engine, ledger_id, range(first, first + dice.choice((1, 3, 8, 20)), step))
            case "again" if known:
                first = dice.choice(known)
                last = first + dice.choice((1, 1, 2, 5, 30))
                await self._add(engine, ledger_id, [each for each in known if first <= each < last])
            case "rot" if known:
                self._rot(engine, ledger_id, dice.choice(known))
            case "restore":
                await self._restore(engine)
            case "flush":
                await engine.flush()
            case "compact":
                await engine.compactor.compact(is_eventual=True)
            case "delete":
                await engine.flush()
                self.oracle.gone.add(ledger_id)
                assert engine.collector is not None
                await engine.collector.collect()
                self.stored[ledger_id] = set()
            case "fence":
                await engine.fence(ledger_id, KEY)

    async def _add(self, engine: Engine, ledger_id: int, ids: Sequence[int]) -> None:
        payloads = [payload_of(ledger_id, entry_id) for entry_id in ids]
        position = engine.add(*add_frame(ledger_id, ids, payloads, recovery=True))
        if not isinstance(position, Status):
            await engine.wait_durable(position)
            self.stored[ledger_id].update(ids)

    async def _restore(self, engine: Engine) -> None:
        """As the bookie does with what scrubbing found."""
        await engine.scrubber.scrub()
        for rotten in list(engine.scrubber.rotten.values()):
            run = rotten.run
            ids = [each for each in sorted(self.stored[run.ledger_id]) if run.first <= each <= run.last]
            if not ids or ids[0] != run.first or self._dice.random() < 0.3:
                continue
            size = self._dice.choice((2, 5))  # Each part must fit a frame.
            parts = [ids[at : at + size] for at in range(0, len(ids), size)]
            entries = [
                add_frame(run.ledger_id, part, [payload_of(run.ledger_id, each) for each in part])[1]
                for part in parts
            ]
            await engine.wait_room()
            await engine.scrubber.restore(rotten, entries, lac=-1, lafr=-1)

    def _rot(self, engine: Engine, ledger_id: int, entry_id: int) -> None:
        """In the payload, in one of the files that are in memory no more."""
        memory = {f"b/journal/{number:016x}.journal" for number in range(engine.statistics()["segment"] + 2)}
        memory -= {f"b/journal/{number:016x}.journal" for number in range(min(engine._journal.residents))}
        payload = payload_of(ledger_id, entry_id)
        paths = [
            path
            for path, content in self.disk.files.items()
            if path.endswith((".journal", ".entries")) and path not in memory and payload in content
        ]
        if paths:
            content = self.disk.files[self._dice.choice(sorted(paths))]
            at = content.find(payload) + self._dice.randrange(len(payload))
            content[at] ^= 1 << self._dice.randrange(8)
            self.rotted += 1

    async def answers(self) -> Answers:
        found: Answers = {}
        with suppress(Crash):
            async with self.running() as engine:
                for ledger_id in LEDGERS:
                    refusal = engine.add(*add_frame(ledger_id, [10**6]))
                    found[ledger_id, -1] = refusal if isinstance(refusal, Status) else None
                    for entry_id in range(IDS_MAX):
                        result = await read(engine, ledger_id, entry_id, entry_id)
                        if result.status is Status.OK and result.entries.ids:
                            (found[ledger_id, entry_id],) = result.entries.payloads()
                        else:
                            missing = result.status in (Status.OK, Status.NO_SUCH_LEDGER)
                            found[ledger_id, entry_id] = None if missing else result.status
                raise Crash
        return found

    async def make_index_again(self) -> None:
        self.indexes.indexes.clear()
        async with opened("b", self.disk, self.indexes) as directory:
            await rebuild_index(directory)


def compare(before: Answers, after: Answers, life: Life) -> int:
    """Nothing is worse than it was; how much is damaged."""
    damaged = 0
    for (ledger_id, entry_id), found in before.items():
        again = after[ledger_id, entry_id]
        if isinstance(found, Status) and found in UNREADABLE:
            damaged += 1
            assert again in UNREADABLE or again == payload_of(ledger_id, entry_id), (
                ledger_id,
                entry_id,
                again,
            )
        else:
            assert again == found, (ledger_id, entry_id, found, again)
            if entry_id in life.stored[ledger_id]:
                assert found == payload_of(ledger_id, entry_id)
    return damaged


async def test_the_index_made_again_says_what_it_said_whatever_rots_and_is_healed() -> None:
    rotted = damaged = 0
    for seed in range(_SEEDS):
        life = Life(seed)
        try:
            for _ in range(3):
                await life.live(50)
                before = await life.answers()
                await life.make_index_again()
                damaged += compare(before, await life.answers(), life)
        except BaseException as failure:
            failure.add_note(f"seed {seed}")
            raise
        rotted += life.rotted
    assert rotted > _SEEDS, "too little rots to show anything"
    assert damaged > _SEEDS, "all was healed"


@pytest.mark.parametrize("small_run_bytes", [0, 20_000], ids=["segments", "logs"])
@pytest.mark.parametrize("before_payload", [1, 30, 60], ids=["digest", "lac", "ids"])
async def test_rot_in_a_head_is_refused_by_name(small_run_bytes: int, before_payload: int) -> None:
    """What it hides would be denied."""
    disk, indexes = MemoryDisk(), MemoryIndexes()
    config = attrs.evolve(MOVING, small_run_bytes=small_run_bytes)
    async with running("b", config, disk=disk, indexes=indexes) as engine:
        for entry_id in range(0, 240, 2):
            await add_durably(engine, 1, [entry_id], payloads=[payload_of(1, entry_id)])
    payload = payload_of(1, 0)
    ((path, at),) = [(path, found.find(payload)) for path, found in disk.files.items() if payload in found]
    disk.files[path][at - before_payload] ^= 1
    async with opened("b", disk, indexes) as directory:
        with pytest.raises(StorageCorrupt, match=path):
            await rebuild_index(directory)
