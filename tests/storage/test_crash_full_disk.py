"""Crashes of a bookie on a full disk: while its ballast is made, given up and made again, and at every other
step that it takes there. From each state that one may leave the bookie starts, on a disk as full as it was,
and has all that it promised; and when there is room it goes on.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import trio
from attrs import evolve
from crashing import PATH, Looked, add_noted, check, fence_noted
from recording_disk import CrashPoint, CrashState, Recorder, RecordingDisk, RecordingIndexes
from storing import SMALL, add_durably, add_frame, opened
from trio.testing import MockClock, wait_all_tasks_blocked

from bookie.storage.engine.opening import open_engine
from ledgerlog.limits import KIB, MIB
from ledgerlog.wire.frame import Status

CAPACITY = 4 * MIB
FULL = evolve(SMALL, ballast_bytes=4 * 64 * KIB, small_run_bytes=0, disk_watch_interval_s=0.01)
BALLAST_PATH = f"{PATH}/ballast"


@pytest.fixture(autouse=True)
def clock() -> MockClock:
    """A disk in memory works at once. So time passes only while tasks of the bookie wait on purpose."""
    return MockClock(autojump_threshold=0)


async def _until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 (tasks of the engine)
            await trio.sleep(FULL.disk_watch_interval_s)


def _has_whole_ballast(disk: RecordingDisk) -> bool:
    return len(disk.files.get(BALLAST_PATH, b"")) == FULL.ballast_bytes


async def record_full_disk() -> Recorder:
    """A bookie whose disk others fill to the last byte: it refuses, fences, stops, starts, stops, and goes on
    when there is room. The ballast is made, given up, made again of what is left, and whole in the end."""
    recorder = Recorder()
    disk, indexes = RecordingDisk(recorder), RecordingIndexes(recorder)
    disk.capacity_bytes = CAPACITY
    disk.leave(CAPACITY)
    async with opened(PATH, disk, indexes) as directory:
        recorder.note(("formatted",))
        async with open_engine(directory, FULL) as engine:
            await add_noted(engine, recorder, 1, range(20))
            await _until(lambda: _has_whole_ballast(disk))
            await wait_all_tasks_blocked()
            disk.leave(0)
            at = 20
            while not isinstance(position := engine.add(*add_frame(1, range(at, at + 25))), Status):
                await engine.wait_durable(position)
                recorder.note(("entries", 1, tuple(range(at, at + 25))))
                await engine.wait_room()
                at += 25
            assert position is Status.DISK_FULL
            await fence_noted(engine, recorder, 1)
            await fence_noted(engine, recorder, 8)
    assert BALLAST_PATH in disk.files, "it was made again of what the stop left"
    for _ in range(2):
        disk.leave(0)
        async with opened(PATH, disk, indexes) as directory, open_engine(directory, FULL) as engine:
            await check(engine, [what for _, what in recorder.notes], "while it was recorded")
    disk.leave(CAPACITY)
    async with opened(PATH, disk, indexes) as directory, open_engine(directory, FULL) as engine:
        await _until(lambda: _has_whole_ballast(disk))
        await add_noted(engine, recorder, 2, range(5))
    return recorder


async def boot_full_and_check(state: CrashState, notes: list[object]) -> Recorder:
    """Start a bookie from the state on a disk as full as it was, check it, stop it cleanly, start it again;
    then give it room, and see it go on."""
    recorder = Recorder()
    disk, indexes = RecordingDisk(recorder, state), RecordingIndexes(recorder, state)
    notes = list(notes)
    disk.capacity_bytes = CAPACITY
    disk.others_bytes = [n[1] for n in notes if isinstance(n, tuple) and n[0] == "others"][-1]
    for _ in range(2):
        async with opened(PATH, disk, indexes) as directory, open_engine(directory, FULL) as engine:
            await check(engine, notes, state.story)
    disk.leave(CAPACITY)
    async with opened(PATH, disk, indexes) as directory, open_engine(directory, FULL) as engine:
        await _until(lambda: _has_whole_ballast(disk))
        await add_durably(engine, 9, range(3))
        await check(engine, [*notes, ("entries", 9, (0, 1, 2))], f"{state.story}, then given room")
    assert set(disk.files) >= {BALLAST_PATH}
    assert f"{BALLAST_PATH}.new" not in disk.files
    return recorder


async def test_every_crash_state_of_a_full_disk_boots_on_it_to_what_was_acknowledged() -> None:
    """At most of these points the ballast is being made, given up or made again."""
    recorder = await record_full_disk()
    of_ballast = [e for e in recorder.effects if e.path.startswith(BALLAST_PATH)]
    assert sum(e.kind == "create" for e in of_ballast) >= 3
    assert sum(e.kind == "unlink" and e.path == BALLAST_PATH for e in of_ballast) >= 2
    near = {at for e in of_ballast for at in range(e.began, (e.ended or e.began) + 3)}
    dice = random.Random("a full disk")
    looked = Looked()
    for position in reversed(range(recorder.position + 1)):
        if position not in near and dice.randrange(4):
            continue
        notes = recorder.notes_before(position)
        if ("formatted",) not in notes:
            continue
        states = CrashPoint(recorder, position)
        few = range(len(states)) if len(states) <= 8 else (0, 1, *dice.sample(range(2, len(states)), 4))
        for state in map(states.__getitem__, few):
            if looked.is_new(state):
                await boot_full_and_check(state, notes)
    assert looked.boots > 50


@pytest.mark.long
async def test_a_second_crash_while_it_starts_on_the_full_disk_loses_nothing_either() -> None:
    recorder = await record_full_disk()
    dice = random.Random("a full disk, twice")
    checked = 0
    for position in range(recorder.position, 0, -7):
        notes = recorder.notes_before(position)
        if ("formatted",) not in notes:
            continue
        state = dice.choice(CrashPoint(recorder, position))
        second = await boot_full_and_check(state, notes)
        for point in range(dice.randrange(20), second.position + 1, 20):
            again = dice.choice(CrashPoint(second, point, state))
            await boot_full_and_check(again, [*notes, *second.notes_before(point)])
            checked += 1
    assert checked > 50
