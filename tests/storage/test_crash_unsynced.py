"""Every crash of a bookie that acknowledges before it syncs: what was flushed and every fence is there, of
what was acknowledged and is gone nothing is denied, and a crash during the boot after it changes none of
that."""

from __future__ import annotations

import random

import pytest
from crashing import PATH
from recording_disk import CrashPoint, CrashState, Recorder, RecordingDisk, RecordingIndexes
from storing import opened
from unsynced import HIGHEST, UNSYNCED, check_unsynced, record_unsynced

from bookie.core.loss_marks import LossMarks
from bookie.storage.disk.loss_marks import LossMarkStore, read_marks
from bookie.storage.engine.opening import open_engine


async def boot_and_check(
    state: CrashState, notes: list[object], *, highest: int = HIGHEST, must_be_marked: bool = False
) -> Recorder:
    """Boot as a bookie does: phase one, then the engine. Check that every promise holds."""
    recorder = Recorder()
    disk, indexes = RecordingDisk(recorder, state), RecordingIndexes(recorder, state)
    async with opened(PATH, disk, indexes) as directory:
        found = await read_marks(disk, PATH)
        marks = LossMarkStore(disk, PATH, found or LossMarks(is_unclean=True))
        is_loss = marks.now.is_unclean
        if is_loss:
            await marks.change(lambda now: now.after_loss(highest))
            recorder.note(("marked",))
        if must_be_marked:
            assert marks.now.fenced_through >= highest, state.story
            assert marks.now.denies_nothing(highest), state.story
        async with open_engine(directory, UNSYNCED, marks=marks) as engine:
            await check_unsynced(engine, notes, state.story, is_loss=is_loss, highest=highest)
    return recorder


@pytest.mark.parametrize("is_clean", [False, True])
async def test_every_crash_keeps_what_was_flushed_and_denies_nothing_of_the_rest(is_clean: bool) -> None:
    recorder = await record_unsynced(is_clean=is_clean)
    dice = random.Random(f"unsynced {is_clean}")
    checked = 0
    for position in range(recorder.position + 1):
        states = CrashPoint(recorder, position)
        for state in dice.sample(states, min(dice.randrange(3), len(states))):
            # Fences also hold without marks, that is, if the store knows no ledger.
            highest = dice.choice((HIGHEST, -1))
            await boot_and_check(state, recorder.notes_before(position), highest=highest)
            checked += 1
    assert checked > 120


async def test_a_second_crash_during_the_boot_leaves_it_marked_or_to_be_marked() -> None:
    recorder = await record_unsynced(is_clean=False)
    dice = random.Random(5)
    checked = 0
    for position in range(30, recorder.position + 1, 19):
        notes = recorder.notes_before(position)
        state = dice.choice(CrashPoint(recorder, position))
        second = await boot_and_check(state, notes)
        for point in range(dice.randrange(3), second.position + 1, 3):
            again = dice.choice(CrashPoint(second, point, state))
            is_marked = ("marked",) in second.notes_before(point)
            await boot_and_check(again, notes, must_be_marked=is_marked)
            checked += 1
    assert checked > 100


async def test_after_a_clean_stop_nothing_is_missing_and_nothing_is_marked() -> None:
    recorder = await record_unsynced(is_clean=True)
    state = CrashPoint(recorder, recorder.position)[0]
    recorder_of_boot = await boot_and_check(state, recorder.notes_before(recorder.position))
    assert ("marked",) not in recorder_of_boot.notes_before(recorder_of_boot.position)
