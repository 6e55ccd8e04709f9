"""Every state that a crash can leave boots to what was acknowledged, and so does a crash during that boot.

Scenarios run once on a recording disk. Then a bookie is started from states that a crash at each point could
have left (tests/storage/recording_disk.py), and asked (tests/storage/crashing.py). Where there are many
states that differ only in which sectors of a write are there, some are drawn; ``make crash-soak`` draws for
as long as it is told to.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from crashing import (
    Looked,
    Scenario,
    boot_and_check,
    boot_or_repair_and_check,
    freeing_rot,
    mending,
    moving,
    rebuild_and_check,
    record,
    restoring,
    rolls_and_checkpoints,
    several_ledgers_in_one_group,
    small_adds,
)
from recording_disk import CrashPoint


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize(
    ("scenario", "stride"),
    [
        (small_adds, 1),
        (rolls_and_checkpoints, 3),
        (several_ledgers_in_one_group, 1),
        (moving, 5),
        (restoring, 2),
        (mending, 4),
        (freeing_rot, 4),
    ],
    ids=[
        "small_adds",
        "rolls_and_checkpoints",
        "several_ledgers_in_one_group",
        "moving",
        "restoring",
        "mending",
        "freeing_rot",
    ],
)
async def test_every_crash_state_boots_to_what_was_acknowledged(
    scenario: Scenario, stride: int, is_clean: bool
) -> None:
    recorder = await record(scenario, is_clean=is_clean)
    dice = random.Random(f"{scenario.__name__} {is_clean}")
    looked = Looked()
    for position in reversed(range(recorder.position + 1)):
        if dice.randrange(stride):
            continue
        states = CrashPoint(recorder, position)
        # All kinds of states, and some of the many ways in which one write may be torn.
        few = range(len(states)) if len(states) <= 4 else (0, 1, *dice.sample(range(2, len(states)), 2))
        for state in map(states.__getitem__, few):
            if looked.is_new(state):
                await boot_and_check(state, recorder.notes_before(position))
    assert looked.states > 100
    assert looked.torn > 5, "the scenario tore no writes"
    if scenario is moving:
        spares = [e for e in recorder.effects if e.kind == "rename" and e.path.endswith(".spare")]
        assert spares, "no segment's file was used again"


async def test_every_torn_write_of_a_small_scenario_is_cut() -> None:
    recorder = await record(small_adds, is_clean=False)
    writes = [e for e in recorder.effects if e.kind == "write"]
    assert len(writes) >= 6
    looked = Looked()
    for write in reversed(writes):
        for state in CrashPoint(recorder, write.began + 1):
            if looked.is_new(state):
                await boot_and_check(state, recorder.notes_before(write.began + 1))
    assert looked.states > 100


@pytest.mark.parametrize(
    ("scenario", "stride"), [(small_adds, 1), (rolls_and_checkpoints, 3), (moving, 17), (mending, 13)]
)
async def test_garbage_in_sectors_that_nobody_wrote_is_passed_or_refused_and_loses_nothing(
    scenario: Scenario, stride: int
) -> None:
    recorder = await record(scenario, is_clean=False)
    dice = random.Random(f"garbage {scenario.__name__}")
    starts: Counter[bool] = Counter()
    for position in range(0, recorder.position + 1, stride):
        notes = recorder.notes_before(position)
        if ("formatted",) not in notes:
            continue
        states = CrashPoint(recorder, position, garbage=True)
        for _ in range(3):
            state = dice.choice(states)
            if state.garbage:
                starts[await boot_or_repair_and_check(state, notes)] += 1
    assert starts[True] > 2
    assert starts[False] > 2


@pytest.mark.parametrize(("scenario", "stride"), [(rolls_and_checkpoints, 16), (moving, 97)])
async def test_a_second_crash_during_the_boot_after_the_first_loses_nothing(
    scenario: Scenario, stride: int
) -> None:
    recorder = await record(scenario, is_clean=False)
    dice = random.Random(7)
    checked = 0
    for position in range(0, recorder.position + 1, stride):
        notes = recorder.notes_before(position)
        state = dice.choice(CrashPoint(recorder, position))
        second = await boot_and_check(state, notes)
        for point in range(dice.randrange(3), second.position + 1, 3):
            again = dice.choice(CrashPoint(second, point, state))
            await boot_and_check(again, [*notes, *second.notes_before(point)])
            checked += 1
    assert checked > 100


async def test_once_rot_was_freed_the_index_is_made_again_from_the_other_files() -> None:
    recorder = await record(freeing_rot, is_clean=True)
    (state, *_) = CrashPoint(recorder, recorder.position)
    await rebuild_and_check(state, recorder.notes_before(recorder.position))


@pytest.mark.parametrize(
    ("scenario", "stride"), [(rolls_and_checkpoints, 7), (moving, 11), (restoring, 11), (mending, 11)]
)
async def test_the_index_made_again_from_the_other_files_says_the_same(
    scenario: Scenario, stride: int
) -> None:
    recorder = await record(scenario, is_clean=False)
    dice = random.Random(11)
    for position in range(20, recorder.position + 1, stride):
        notes = recorder.notes_before(position)
        state = dice.choice(CrashPoint(recorder, position))
        if not any(path.endswith(".journal") for path in state.files):
            continue
        await rebuild_and_check(state, notes)
        later = await boot_and_check(state, notes)
        # A crash after the second start, so that torn blocks lie in the middle of the journal.
        state = dice.choice(CrashPoint(later, later.position, state))
        await rebuild_and_check(state, [*notes, *later.notes_before(later.position)])
