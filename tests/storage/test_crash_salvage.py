"""Crashes while a damaged directory is repaired: the next repair finds all that the first one would have
found, and no state takes adds or denies entries without the marks (D27.12)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from crashing import MOVING, Looked, NotedOracle, moving, record
from recording_disk import CrashPoint, CrashState, Recorder, RecordingDisk, RecordingIndexes
from storing import payload_of, read_all

from bookie.core.loss_marks import LossMarks
from bookie.server.repairing import repair_directory
from bookie.storage.disk.loss_marks import LossMarkStore, read_marks
from bookie.storage.engine.directory import open_directory
from bookie.storage.engine.opening import open_engine
from bookie.storage.upkeep.salvage import ASIDE
from ledgerlog.model import layout
from ledgerlog.testing.memory_cluster import new_tree

PATH = "b"
LEDGERS = 40

Found = dict[int, dict[int, bytes]]


def random_bytes(count: int) -> bytes:
    return bytes(range(count))


def files_of(state: CrashState, end: str) -> list[str]:
    return sorted(path for path, content in state.files.items() if path.endswith(end) and any(content[4096:]))


def flip_segment(state: CrashState) -> None:
    state.files[files_of(state, ".journal")[0]][4096 + 9] ^= 1


def flip_log(state: CrashState) -> None:
    content = state.files[files_of(state, ".entries")[-1]]
    content[4096 + 9] ^= 1  # In the head of its first record.


def lose_segment(state: CrashState) -> None:
    del state.files[files_of(state, ".journal")[-1]]
    flip_log(state)


def flip_what_was_not_replayed(state: CrashState) -> None:
    state.files[files_of(state, ".journal")[-1]][2 * 4096 + 9] ^= 1


async def damaged_state(damage: Callable[[CrashState], None]) -> CrashState:
    recorder = await record(moving, is_clean=False)
    state = CrashState(
        {path: bytearray(content) for path, content in recorder.disk.files.items()},
        frozenset(recorder.disk.directories),
        {
            path: dict(index.scan_now(b"", b"\xff", floor=b"", limit=10**6))
            for path, index in recorder.indexes.indexes.items()
        },
        "damaged",
    )
    if damage is not flip_what_was_not_replayed:
        state.indexes.clear()  # With its index the bookie would start, and scrubbing would find the damage.
    damage(state)
    return state


async def repaired(state: CrashState) -> Recorder:
    recorder = Recorder()
    disk, indexes = RecordingDisk(recorder, state), RecordingIndexes(recorder, state)
    store = new_tree().open_store()
    for _ in range(LEDGERS):
        await store.next_id(layout.LEDGER_COUNTER)
    async with open_directory(PATH, disk=disk, indexes=indexes) as directory:
        await repair_directory(store, directory, random_bytes=random_bytes, config=MOVING)
    return recorder


async def found_in(recorder: Recorder, story: str) -> Found:
    found: Found = {}
    async with open_directory(PATH, disk=recorder.disk, indexes=recorder.indexes) as directory:
        marks = await read_marks(recorder.disk, PATH)
        assert marks is not None, story
        for ledger_id in range(LEDGERS):
            assert marks.refuses_adds(ledger_id), story
            assert marks.denies_nothing(ledger_id), story
        unmarked = LossMarkStore(recorder.disk, PATH, LossMarks())  # So that it says what it lacks.
        async with open_engine(directory, MOVING, marks=unmarked, oracle=NotedOracle(recorder)) as engine:
            for ledger_id in range(LEDGERS):
                found[ledger_id] = await read_all(engine, ledger_id)
                for entry_id, payload in found[ledger_id].items():
                    assert payload == payload_of(ledger_id, entry_id), story
    return found


@pytest.mark.parametrize("damage", [flip_segment, flip_log, lose_segment, flip_what_was_not_replayed])
async def test_a_crash_during_a_repair_loses_nothing_that_the_repair_keeps(
    damage: Callable[[CrashState], None],
) -> None:
    state = await damaged_state(damage)
    recorder = await repaired(state)
    assert any(path.endswith(ASIDE) for path in recorder.disk.files)
    last = recorder.position
    kept = await found_in(recorder, "without a crash")
    assert sum(map(len, kept.values())) > 50
    dice, looked = random.Random(damage.__name__), Looked()
    for position in range(last):
        states = CrashPoint(recorder, position, state)
        few = range(len(states)) if len(states) <= 8 else (0, 1, *dice.sample(range(2, len(states)), 6))
        for crashed in map(states.__getitem__, few):
            if looked.is_new(crashed):
                again = await repaired(crashed)
                assert await found_in(again, crashed.story) == kept, crashed.story
    assert looked.boots > 40
    assert looked.torn > 20
