"""Crash states of random work, for as long as you want: ``make crash-soak``.

Each seed makes a scenario of its own: adds of all shapes, fences, flushes, deletions and compaction in an
order that only the seed knows. It is crashed at random points, each in a state drawn from those that such a
crash may leave, and now and then a second time while it starts, or its index is lost and made again. Each
state is booted and checked; a fifth of the bookies then also work, stop, and are started and checked again.
Some states have garbage in sectors that nobody wrote; then a bookie may also refuse, and is repaired.
Environment:

    CRASH_SOAK_STATES   how many states are examined (three million; about ten milliseconds each)
    CRASH_SOAK_SEED     the first seed (1). A failure names its seed

Every ten thousand states it prints their number, the memory in use, and the seed to go on from.
"""

from __future__ import annotations

import logging
import os
import random
import resource
from collections.abc import Iterator

import pytest
from crashing import (
    NotedOracle,
    add_noted,
    boot_and_check,
    boot_and_look,
    boot_or_repair_and_check,
    fence_noted,
    rebuild_and_check,
    record,
)
from recording_disk import CrashPoint, CrashState, Recorder
from trio.testing import wait_all_tasks_blocked

from bookie.storage.engine.engine import Engine

_POINTS_PER_SCENARIO = 60
_GOES_ON = 0.2
"""How often a bookie that started is also let work, stopped cleanly and started once more."""
_GARBAGE = 0.1
"""How often a state may also hold garbage."""
_TELL_STATES = 10_000
_MEMORY_MIB = 1024


class RandomWork:
    """A scenario made of a seed."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    async def __call__(self, engine: Engine, recorder: Recorder) -> None:
        dice = self._dice
        collector = engine.collector
        assert collector is not None
        oracle = collector.oracle
        assert isinstance(oracle, NotedOracle)
        nexts = dict.fromkeys(range(1, 1 + dice.randint(1, 6)), 0)
        fenced: set[int] = set()
        for _ in range(dice.randint(10, 60)):
            match dice.choices(
                ("add", "fence", "flush", "collect", "compact", "settle"), (12, 1, 1, 1, 1, 1)
            )[0]:
                case "add":
                    open_ones = [each for each in nexts if each not in oracle.gone | fenced]
                    if not open_ones:
                        nexts[max(nexts) + 1] = 0
                        continue
                    ledger = dice.choice(open_ones)
                    first = nexts[ledger]
                    count = dice.choice((1, 2, 5, 20))
                    nexts[ledger] = first + 2 * count if dice.random() < 0.3 else first + count
                    if nexts[ledger] == first + count:
                        await add_noted(engine, recorder, ledger, range(first, first + count))
                    else:
                        halves = [list(range(first + odd, first + 2 * count, 2)) for odd in (0, 1)]
                        dice.shuffle(halves)
                        for half in halves:
                            await add_noted(engine, recorder, ledger, half)
                case "fence":
                    ledger = dice.choice((*nexts, 30 + dice.randrange(5)))
                    if ledger not in oracle.gone:
                        await fence_noted(engine, recorder, ledger)
                        fenced.add(ledger)
                case "flush":
                    await engine.flush()
                case "collect":
                    if dice.random() < 0.5:
                        await engine.flush()
                        oracle.gone.add(dice.choice(list(nexts)))
                    await collector.collect()
                case "compact":
                    await engine.compactor.compact(is_eventual=dice.random() < 0.5)
                case "settle":
                    await wait_all_tasks_blocked()


def draw(recorder: Recorder, position: int, dice: random.Random, start: CrashState | None) -> CrashState:
    return dice.choice(CrashPoint(recorder, position, start))


async def examine(seed: int) -> int:
    """Crash one scenario. Return how many states were examined."""
    dice = random.Random(f"points of {seed}")
    recorder = await record(RandomWork(seed), is_clean=dice.random() < 0.3)
    examined = 0
    for _ in range(_POINTS_PER_SCENARIO):
        position = dice.randint(0, recorder.position)
        notes = recorder.notes_before(position)
        if dice.random() < _GARBAGE and ("formatted",) in notes:
            await boot_or_repair_and_check(dice.choice(CrashPoint(recorder, position, garbage=True)), notes)
            examined += 1
            continue
        state = draw(recorder, position, dice, None)
        second = await (boot_and_check if dice.random() < _GOES_ON else boot_and_look)(state, notes)
        examined += 1
        if dice.random() < 0.3:
            point = dice.randint(0, second.position)
            again = draw(second, point, dice, state)
            await boot_and_look(again, [*notes, *second.notes_before(point)])
            examined += 1
        if dice.random() < 0.1 and any(path.endswith(".journal") for path in state.files):
            await rebuild_and_check(state, notes)
            examined += 1
    return examined


async def examine_seeds(first: int, states: int) -> int:
    examined, seed, told = 0, first, 0
    while examined < states:
        try:
            examined += await examine(seed)
        except BaseException as failure:
            failure.add_note(f"CRASH_SOAK_SEED={seed}, after {examined} states")
            raise
        seed += 1
        if examined - told >= _TELL_STATES:
            told = examined
            print(f"crash states: {examined}, next CRASH_SOAK_SEED={seed}, {peak_mib()} MiB", flush=True)
    return examined


def peak_mib() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """pytest keeps every line of the log until a test ends, and repairs write many."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def test_a_few_seeds_of_random_work_survive_crashes() -> None:
    assert await examine_seeds(1, 400) >= 400


@pytest.mark.soak
async def test_random_work_survives_any_number_of_crashes() -> None:
    states = int(os.environ.get("CRASH_SOAK_STATES", "3000000"))
    print(await examine_seeds(int(os.environ.get("CRASH_SOAK_SEED", "1")), states), "crash states")
    assert peak_mib() < _MEMORY_MIB, "a soak's memory does not grow with the states it examines"
