"""Every state that a crash can leave boots to what was acknowledged, and so does a crash during that boot.

Scenarios run once on a recording disk. Then a bookie is started from each state that a crash at each point
could have left (tests/storage/recording_disk.py) and asked: every acknowledged entry is there with its bytes,
every acknowledged fence holds, nothing is there that was never added, and it takes new entries that survive
the next stop.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest
import trio
from attrs import evolve
from recording_disk import CrashState, Recorder, RecordingDisk, RecordingIndexes, crash_states
from storing import (
    KEY,
    SMALL,
    Crash,
    add,
    add_durably,
    add_frame,
    opened,
    payload_of,
    read_all,
    running,
)
from trio.testing import wait_all_tasks_blocked

from bookie.storage.engine import Engine, open_engine
from bookie.storage.rebuild import rebuild_index
from ledgerlog.wire.frame import Status

PATH = "b"
MOVING = evolve(SMALL, merge_width=2, log_bytes_max=40_000, compact_bytes_per_s=2**40)
Scenario = Callable[[Engine, Recorder], Awaitable[None]]


async def add_noted(engine: Engine, recorder: Recorder, ledger_id: int, ids: range | list[int]) -> None:
    await add_durably(engine, ledger_id, ids)
    recorder.note(("entries", ledger_id, tuple(ids)))


async def fence_noted(engine: Engine, recorder: Recorder, ledger_id: int) -> None:
    result = await engine.fence(ledger_id, KEY)
    assert result.status is Status.OK
    recorder.note(("fence", ledger_id))


async def small_adds(engine: Engine, recorder: Recorder) -> None:
    for first in range(0, 20, 5):
        await add_noted(engine, recorder, 1, range(first, first + 5))
    await fence_noted(engine, recorder, 1)
    await add_noted(engine, recorder, 2, [0, 2, 4])
    await add_noted(engine, recorder, 2, [1, 3, 5])
    add(engine, 3, range(4))  # Never acknowledged.


async def rolls_and_checkpoints(engine: Engine, recorder: Recorder) -> None:
    for first in range(0, 300, 25):
        await add_noted(engine, recorder, 1 + first % 4, range(first, first + 25))
        if first == 100:
            await fence_noted(engine, recorder, 8)
        if first == 225:
            await engine.flush()
    await wait_all_tasks_blocked()
    assert engine.statistics()["checkpoints"] >= 2, "the scenario is too small to be what it says"


async def several_ledgers_in_one_group(engine: Engine, recorder: Recorder) -> None:
    for first in range(0, 30, 10):
        positions = [add(engine, ledger, range(first, first + 10)) for ledger in (1, 2, 3)]
        await engine.wait_durable(max(positions))
        for ledger in (1, 2, 3):
            recorder.note(("entries", ledger, tuple(range(first, first + 10))))


class NotedWitness:
    """Says what it is told to, and notes it first: what is said to be gone may go at any time from then
    on."""

    def __init__(self, recorder: Recorder) -> None:
        self.gone: set[int] = set()
        self._recorder = recorder

    async def surely_gone(self, ledger_ids: Sequence[int]) -> list[int]:
        await trio.lowlevel.checkpoint()
        self._recorder.note(("going", tuple(self.gone)))
        return [ledger_id for ledger_id in ledger_ids if ledger_id in self.gone]


async def moving(engine: Engine, recorder: Recorder) -> None:
    """Flushes, compaction of all kinds, and deletions, beside adds and fences."""
    collector = engine.collector
    assert collector is not None
    witness = collector.witness
    assert isinstance(witness, NotedWitness)
    for turn in range(5):
        for ledger in range(1, 5):
            if ledger not in witness.gone:
                await add_noted(engine, recorder, ledger, range(12 * turn, 12 * turn + 6))
                await add_noted(engine, recorder, ledger, range(12 * turn + 6, 12 * turn + 12, 2))
                await add_noted(engine, recorder, ledger, range(12 * turn + 7, 12 * turn + 12, 2))
        await fence_noted(engine, recorder, 20 + turn)
        await wait_all_tasks_blocked()
        if turn in (1, 3):
            witness.gone |= {1 + turn, 20 + turn}
            await collector.collect()
            recorder.note(("deleted", tuple(witness.gone)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(engine.compactor.compact, is_eventual=True))
            await add_noted(engine, recorder, 9 + turn, range(4))
    assert engine.compactor.jobs >= 3, "the scenario is too small to be what it says"
    assert engine.statistics()["segments_flushed"] >= 2


async def record(scenario: Scenario, *, is_clean: bool, start: CrashState | None = None) -> Recorder:
    recorder = Recorder()
    disk, indexes = RecordingDisk(recorder, start), RecordingIndexes(recorder, start)
    try:
        async with opened(PATH, disk, indexes) as directory:
            recorder.note(("formatted",))
            witness = NotedWitness(recorder)
            async with open_engine(directory, MOVING, witness=witness) as engine:
                await scenario(engine, recorder)
                if not is_clean:
                    raise Crash
    except Crash:
        pass
    return recorder


async def check(engine: Engine, notes: list[object], story: str) -> None:
    """What every note promises holds."""
    ledgers: dict[int, set[int]] = {}
    going: set[int] = set()
    deleted: set[int] = set()
    for note in notes:
        match note:
            case ("going", (tuple() as ids)):
                going.update(ids)
            case ("deleted", (tuple() as ids)):
                deleted.update(ids)
            case ("entries", int(ledger), (tuple() | range()) as ids):
                ledgers.setdefault(ledger, set()).update(ids)
            case ("fence", int(ledger)):
                refusal = engine.add(*add_frame(ledger, [10**5]))
                assert refusal is Status.FENCED, story
    for ledger in deleted:
        assert engine.add(*add_frame(ledger, [10**5])) is Status.FENCED, story
        assert engine.add(*add_frame(ledger, [10**5], recovery=True)) is Status.NO_SUCH_LEDGER, story
        assert not await read_all(engine, ledger), story
    for ledger in (*ledgers, 3):
        found = await read_all(engine, ledger)
        if ledger not in going:
            assert ledgers.get(ledger, set()) <= found.keys(), story
        for entry_id, payload in found.items():
            assert payload == payload_of(ledger, entry_id), story


async def boot_and_check(state: CrashState, notes: list[object]) -> Recorder:
    """Start a bookie from the state, check it, let it work, stop it cleanly and check that."""
    recorder = Recorder()
    disk, indexes = RecordingDisk(recorder, state), RecordingIndexes(recorder, state)
    async with running(PATH, disk=disk, indexes=indexes) as engine:
        await check(engine, notes, state.story)
        await add_durably(engine, 9, range(3))
    async with running(PATH, disk=disk, indexes=indexes) as engine:
        await check(engine, [*notes, ("entries", 9, range(3))], f"{state.story}, then a clean stop")
    return recorder


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize(
    "scenario", [small_adds, rolls_and_checkpoints, several_ledgers_in_one_group, moving]
)
async def test_every_crash_state_boots_to_what_was_acknowledged(scenario: Scenario, is_clean: bool) -> None:
    recorder = await record(scenario, is_clean=is_clean)
    dice = random.Random(f"{scenario.__name__} {is_clean}")
    checked = torn = 0
    for position in range(recorder.position + 1):
        states = list(crash_states(recorder, position))
        # All that differ in kind, and some of the many ways in which one write may be torn.
        few = states if len(states) <= 6 else states[:2] + dice.sample(states[2:], 4)
        for state in few:
            await boot_and_check(state, recorder.notes_before(position))
            checked += 1
            torn += "sector" in state.story or "half" in state.story
    assert checked > 100
    assert torn > 20, "the scenario tore no writes"


async def test_every_torn_write_of_a_small_scenario_is_cut() -> None:
    recorder = await record(small_adds, is_clean=False)
    writes = [e for e in recorder.effects if e.kind == "write"]
    assert len(writes) >= 6
    checked = 0
    for write in writes:
        for state in crash_states(recorder, write.began + 1):
            await boot_and_check(state, recorder.notes_before(write.began + 1))
            checked += 1
    assert checked > 100


async def test_a_second_crash_during_the_boot_after_the_first_loses_nothing() -> None:
    recorder = await record(rolls_and_checkpoints, is_clean=False)
    dice = random.Random(7)
    checked = 0
    for position in range(0, recorder.position + 1, 9):
        notes = recorder.notes_before(position)
        state = dice.choice(list(crash_states(recorder, position)))
        second = await boot_and_check(state, notes)
        for point in range(0, second.position + 1, 3):
            again = dice.choice(list(crash_states(second, point, state)))
            await boot_and_check(again, notes)
            checked += 1
    assert checked > 100


async def test_the_index_made_again_from_the_journal_says_the_same() -> None:
    recorder = await record(rolls_and_checkpoints, is_clean=False)
    dice = random.Random(11)
    for position in range(20, recorder.position + 1, 7):
        notes = recorder.notes_before(position)
        state = dice.choice(list(crash_states(recorder, position)))
        later = await boot_and_check(state, notes)
        # A crash after the second start, so that torn blocks lie in the middle of the journal.
        state = dice.choice(list(crash_states(later, later.position, state)))
        disk, indexes = RecordingDisk(Recorder(), state), RecordingIndexes(Recorder(), state)
        indexes.indexes.clear()
        async with opened(PATH, disk, indexes) as directory:
            await rebuild_index(directory)
            async with open_engine(directory, SMALL) as engine:
                await check(engine, [*notes, ("entries", 9, range(3))], state.story)
