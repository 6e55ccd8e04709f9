"""A bookie that acknowledges before it syncs: its work on a recording disk, and what must be true of every
state that a crash of it can leave."""

from __future__ import annotations

import attrs
import trio
from crashing import MOVING, PATH
from recording_disk import Recorder, RecordingDisk, RecordingIndexes
from storing import KEY, Crash, add, add_frame, opened, payload_of, read

from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from ledgerlog.wire.frame import Status

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


async def _scenario(engine: Engine, recorder: Recorder) -> None:
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


async def record_unsynced(*, is_clean: bool) -> Recorder:
    recorder = Recorder()
    disk, indexes = RecordingDisk(recorder), RecordingIndexes(recorder)
    try:
        async with opened(PATH, disk, indexes) as directory, open_engine(directory, UNSYNCED) as engine:
            await _scenario(engine, recorder)
            if not is_clean:
                raise Crash
    except Crash:
        pass
    return recorder


async def check_unsynced(
    engine: Engine, notes: list[object], story: str, *, is_loss: bool, highest: int
) -> None:
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
