"""Every crash of a bookie that acknowledges before it syncs: what was flushed and every fence is there, of
what was acknowledged and is gone nothing is denied, and a crash during the boot after it changes none of
that."""

from __future__ import annotations

import random

import attrs
import pytest
import trio
from crashing import MOVING
from recording_disk import CrashPoint, CrashState, Recorder, RecordingDisk, RecordingIndexes
from storing import KEY, Crash, add, add_frame, opened, payload_of, read

from bookie.core.loss_marks import LossMarks
from bookie.storage.disk.loss_marks import LossMarkStore, read_marks
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from ledgerlog.wire.frame import Status

PATH = "b"
HIGHEST = 30
UNSYNCED = attrs.evolve(MOVING, journal_write_data=False, write_cache_age_s=1000.0)


class Promises:
    """What was promised: noted in the recorder as it happens."""

    def __init__(self, engine: Engine, recorder: Recorder) -> None:
        self._engine = engine
        self._recorder = recorder
        self._unflushed: list[tuple[int, range]] = []

    async def add(self, ledger_id: int, ids: range) -> None:
        await self._engine.wait_room()
        await self._engine.wait_durable(add(self._engine, ledger_id, ids))
        self._recorder.note(("acknowledged", ledger_id, ids))
        self._unflushed.append((ledger_id, ids))

    async def fence(self, ledger_id: int) -> None:
        assert (await self._engine.fence(ledger_id, KEY)).status is Status.OK
        self._recorder.note(("fence", ledger_id))

    async def flush(self) -> None:
        flushed, self._unflushed = self._unflushed, []
        await self._engine.flush()
        for ledger_id, ids in flushed:
            self._recorder.note(("flushed", ledger_id, ids))


async def scenario(engine: Engine, recorder: Recorder) -> None:
    promises = Promises(engine, recorder)
    for turn in range(6):
        for ledger_id in range(1, 4):
            for first in range(12 * turn, 12 * turn + 12, 4):
                await promises.add(ledger_id, range(first, first + 4))
        await promises.fence(20 + turn)
        if turn == 2:
            await promises.flush()
        if turn == 5:
            await promises.fence(1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(promises.flush)
                await promises.add(10, range(5))
        await engine.compactor.compact(is_eventual=True)


async def recorded(*, is_clean: bool) -> Recorder:
    recorder = Recorder()
    disk, indexes = RecordingDisk(recorder), RecordingIndexes(recorder)
    try:
        async with opened(PATH, disk, indexes) as directory, open_engine(directory, UNSYNCED) as engine:
            await scenario(engine, recorder)
            if not is_clean:
                raise Crash
    except Crash:
        pass
    return recorder


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
            await check(engine, notes, state.story, is_loss=is_loss, highest=highest)
    return recorder


async def check(engine: Engine, notes: list[object], story: str, *, is_loss: bool, highest: int) -> None:
    for note in notes:
        match note:
            case ("fence", int(ledger_id)):
                assert engine.add(*add_frame(ledger_id, [10**5])) is Status.FENCED, story
            case (("acknowledged" | "flushed") as how, int(ledger_id), range() as ids):
                seen = await read(engine, ledger_id, ids[0], ids[-1])
                there = dict(zip(seen.entries.ids, seen.entries.payloads(), strict=True))
                assert all(payload == payload_of(ledger_id, e) for e, payload in there.items()), story
                lost = [e for e in ids if e not in there]
                if not lost:
                    continue
                assert how == "acknowledged", f"{story}: ledger {ledger_id} has lost {lost}, flushed"
                if is_loss and highest < ledger_id:
                    continue  # Nothing is promised about a ledger that the metadata store does not know.
                assert seen.status is Status.UNKNOWN, f"{story}: ledger {ledger_id} denies {lost}"
    if is_loss and highest >= 2:
        assert engine.add(*add_frame(2, [10**5])) is Status.FENCED, story


@pytest.mark.parametrize("is_clean", [False, True])
async def test_every_crash_keeps_what_was_flushed_and_denies_nothing_of_the_rest(is_clean: bool) -> None:
    recorder = await recorded(is_clean=is_clean)
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
    recorder = await recorded(is_clean=False)
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
    recorder = await recorded(is_clean=True)
    state = CrashPoint(recorder, recorder.position)[0]
    recorder_of_boot = await boot_and_check(state, recorder.notes_before(recorder.position))
    assert ("marked",) not in recorder_of_boot.notes_before(recorder_of_boot.position)
