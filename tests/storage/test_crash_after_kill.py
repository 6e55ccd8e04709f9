"""A process is killed, is started again on what the machine's cache holds, and then the power goes.

What a killed process had written and not synced is seen by the next one, as if it were there for good, and is
gone after a power cut. So whatever a start builds on it has to make durable first: names that were given,
and the last block of the journal. The process is killed at the beginning or the end of what it does to its
disk, of each sync of a directory above all; the one after it works and makes promises; and crash states are
drawn from its life.
"""

from __future__ import annotations

import random

import pytest
from crashing import (
    MOVING,
    PATH,
    NotedOracle,
    Scenario,
    add_noted,
    boot_and_look,
    check,
    going_of,
    moving,
    rolls_and_checkpoints,
    small_adds,
)
from recording_disk import CrashPoint, CrashState, RecordingDisk, RecordingIndexes
from stepping import Killed, KillingRecorder
from storing import Crash, opened

from bookie.core.loss_marks import LossMarks
from bookie.storage.disk.loss_marks import write_marks
from bookie.storage.engine.opening import open_engine


async def killed_run(scenario: Scenario, kill_at: int | None, only_syncs: bool) -> KillingRecorder:
    recorder = KillingRecorder(kill_at, only_syncs=only_syncs)
    disk, indexes = RecordingDisk(recorder), RecordingIndexes(recorder)
    try:
        async with opened(PATH, disk, indexes) as directory:
            recorder.note(("formatted",))
            async with open_engine(directory, MOVING, oracle=NotedOracle(recorder)) as engine:
                await scenario(engine, recorder)
                raise Crash
    except* (Killed, Crash):
        pass
    return recorder


async def next_life(recorder: KillingRecorder) -> None:
    """Start on the state in the cache, make promises, and end at once."""
    recorder.live_again()
    disk, indexes = recorder.disk, recorder.indexes
    disk.unlock()
    oracle = NotedOracle(recorder)
    oracle.gone = going_of([what for _, what in recorder.notes])
    try:
        async with (
            opened(PATH, disk, indexes) as directory,
            open_engine(directory, MOVING, oracle=oracle) as engine,
        ):
            await check(engine, recorder.notes_before(recorder.position), "the life after the kill")
            for first in range(0, 60, 20):
                await add_noted(engine, recorder, 40, range(first, first + 20))
            raise Crash
    except Crash:
        pass


@pytest.mark.parametrize(
    ("scenario", "only_syncs", "stride"),
    [
        (rolls_and_checkpoints, True, 1),
        (moving, True, 4),
        (small_adds, False, 5),
        (rolls_and_checkpoints, False, 11),
        (moving, False, 31),
    ],
)
async def test_a_power_cut_after_the_start_behind_a_kill_takes_nothing_that_was_promised(
    scenario: Scenario, only_syncs: bool, stride: int
) -> None:
    count = (await killed_run(scenario, None, only_syncs)).count
    assert count > 20
    dice = random.Random(13)
    looked = 0
    for kill_at in range(dice.randrange(stride), count, stride):
        recorder = await killed_run(scenario, kill_at, only_syncs)
        begun = recorder.position
        await next_life(recorder)
        # The last points, where most was promised, and some before.
        points = {recorder.position, *(dice.randint(begun, recorder.position) for _ in range(5))}
        for position in sorted(points):
            states = CrashPoint(recorder, position)
            for state in (states[0], dice.choice(states)):
                await boot_and_look(state, recorder.notes_before(position))
                looked += 1
    assert looked > 100


async def test_marks_that_a_start_finds_outlive_a_power_cut() -> None:
    recorder = KillingRecorder(None)
    disk, indexes = RecordingDisk(recorder), RecordingIndexes(recorder)
    async with opened(PATH, disk, indexes):
        pass
    recorder = KillingRecorder(0)
    disk = RecordingDisk(recorder, CrashState(disk.files, frozenset(disk.directories), {}, "formatted"))
    start = CrashState(dict(disk.files), frozenset(disk.directories), {}, "formatted")
    with pytest.raises(Killed):
        await write_marks(disk, PATH, LossMarks(is_unclean=True))
    recorder.live_again()
    assert (
        CrashPoint(recorder, recorder.position, start)[0].files[f"{PATH}/marks"]
        != disk.files[f"{PATH}/marks"]
    )
    async with opened(PATH, disk, indexes):
        lost = CrashPoint(recorder, recorder.position, start)[0]
        assert lost.files[f"{PATH}/marks"] == disk.files[f"{PATH}/marks"]
