"""Scenarios on a recording disk, and what must be true of every state that a crash of them can leave.

A scenario runs once and notes what was promised: entries and fences that were acknowledged, ledgers whose
deletion was begun, and those whose deletion was done. ``boot_and_check`` starts a bookie from a crash state
and asks: every acknowledged entry is there with its bytes, every acknowledged fence holds, nothing is there
that was never added, what was deleted is refused; then it lets the bookie work, compaction and garbage
collection included, stops it cleanly and asks again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial

import trio
from attrs import evolve
from recording_disk import CrashState, Recorder, RecordingDisk, RecordingIndexes
from storing import (
    KEY,
    SMALL,
    Crash,
    ToldOracle,
    add,
    add_durably,
    add_frame,
    opened,
    payload_of,
    read,
    read_all,
)
from trio.testing import wait_all_tasks_blocked

from bookie.core.loss_marks import LossMarks
from bookie.server.repairing import repair_directory
from bookie.storage.disk.loss_marks import LossMarkStore, read_marks
from bookie.storage.engine.directory import open_directory
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from bookie.storage.upkeep.rebuild import rebuild_index
from ledgerlog.errors import StorageCorrupt
from ledgerlog.model import layout
from ledgerlog.testing.memory_cluster import new_tree
from ledgerlog.wire.frame import Status

PATH = "b"
_READ_BYTES = 20_000
"""Less than the largest ledgers of the scenarios have, so reads must also go on after a first part."""
_LEDGERS = 60
"""More than the scenarios have."""
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


class NotedOracle(ToldOracle):
    """Answers what a test sets, and notes it first: from then on a ledger that it calls gone may be deleted
    at any time."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    async def surely_gone(self, ledger_ids: Sequence[int]) -> Collection[int]:
        self._recorder.note(("going", tuple(self.gone)))
        return await super().surely_gone(ledger_ids)


async def moving(engine: Engine, recorder: Recorder) -> None:
    """Flushes, compaction of all kinds, and deletions, beside adds and fences."""
    collector = engine.collector
    assert collector is not None
    oracle = collector.oracle
    assert isinstance(oracle, NotedOracle)
    for turn in range(5):
        for ledger in range(1, 5):
            if ledger not in oracle.gone:
                await add_noted(engine, recorder, ledger, range(12 * turn, 12 * turn + 6))
                await add_noted(engine, recorder, ledger, range(12 * turn + 6, 12 * turn + 12, 2))
                await add_noted(engine, recorder, ledger, range(12 * turn + 7, 12 * turn + 12, 2))
        await fence_noted(engine, recorder, 20 + turn)
        await wait_all_tasks_blocked()
        if turn in (1, 3):
            await engine.flush()  # Collection does not ask about ledgers that the index does not know yet.
            oracle.gone |= {1 + turn, 20 + turn}
            await collector.collect()
            recorder.note(("deleted", tuple(oracle.gone)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(engine.compactor.compact, is_eventual=True))
            await add_noted(engine, recorder, 9 + turn, range(4))
    assert engine.compactor.jobs >= 3, "the scenario is too small to be what it says"
    assert engine.statistics()["segments_flushed"] >= 2


async def restoring(engine: Engine, recorder: Recorder) -> None:
    """A run rots, is found, and is stored again in two parts. Then the files with these parts are flushed and
    compacted."""
    for first in range(0, 300, 25):
        await add_noted(engine, recorder, 1, range(first, first + 25))
    await engine.flush()
    await wait_all_tasks_blocked()
    disk, needle = recorder.disk, payload_of(1, 30)
    ((path, at),) = [(p, c.find(needle)) for p, c in disk.files.items() if needle in c]
    recorder.note(("rotten", 1, 30))
    disk.rot(path, at)
    assert await engine.scrubber.scrub() == 1
    (rotten,) = engine.scrubber.rotten.values()
    ids = range(rotten.run.first, rotten.run.last + 1)
    assert 30 in ids
    parts = [add_frame(1, part)[1] for part in (ids[: len(ids) // 2], ids[len(ids) // 2 :])]
    assert await engine.scrubber.restore(rotten, parts, lac=-1, lafr=-1)
    recorder.note(("restored", 1, 30))
    for first in range(0, 300, 25):
        await add_noted(engine, recorder, 2, range(first, first + 25))
    await engine.flush()
    await engine.compactor.compact(is_eventual=True)
    assert await engine.scrubber.scrub() == 0


async def mending(engine: Engine, recorder: Recorder) -> None:
    """The first entry of a run rots and is stored again. Then the files with it are flushed and compacted."""
    for first in range(0, 300, 25):
        await add_noted(engine, recorder, 1, range(first, first + 25))
    await engine.flush()
    await wait_all_tasks_blocked()
    disk, needle = recorder.disk, payload_of(1, 25)
    ((path, at),) = [(p, c.find(needle)) for p, c in disk.files.items() if needle in c]
    recorder.note(("rotten", 1, 25))
    disk.rot(path, at)
    await add_durably(engine, 1, [25, 26], recovery=True)
    recorder.note(("restored", 1, 25))
    await engine.compactor.compact(is_eventual=True)
    for first in range(0, 300, 25):
        await add_noted(engine, recorder, 2, range(first, first + 25))
    await engine.flush()
    await engine.compactor.compact(is_eventual=True)
    assert await engine.scrubber.scrub() == 0


async def freeing_rot(engine: Engine, recorder: Recorder) -> None:
    """Files without a sound header are written again, from what the index says of them."""
    collector = engine.collector
    assert collector is not None
    oracle = collector.oracle
    assert isinstance(oracle, NotedOracle)
    await fence_noted(engine, recorder, 20)
    for first in range(0, 200, 25):
        for ledger_id in (1, 2):
            await add_noted(engine, recorder, ledger_id, range(first, first + 25))
    await engine.flush()
    await wait_all_tasks_blocked()
    disk = recorder.disk
    for path in sorted(path for path in disk.files if path.endswith(".entries"))[:2]:
        disk.rot(path, 20)
    oracle.gone = {1}
    await collector.collect()
    recorder.note(("deleted", (1,)))
    await engine.scrubber.scrub()
    await engine.compactor.compact(is_eventual=True)
    assert not engine.compactor.damaged
    assert await engine.scrubber.scrub() == 0
    await add_noted(engine, recorder, 2, range(300, 303))


async def record(scenario: Scenario, *, is_clean: bool, start: CrashState | None = None) -> Recorder:
    recorder = Recorder()
    disk, indexes = RecordingDisk(recorder, start), RecordingIndexes(recorder, start)
    try:
        async with opened(PATH, disk, indexes) as directory:
            recorder.note(("formatted",))
            oracle = NotedOracle(recorder)
            async with open_engine(directory, MOVING, oracle=oracle) as engine:
                await scenario(engine, recorder)
                if not is_clean:
                    raise Crash
    except Crash:
        pass
    return recorder


def going_of(notes: list[object]) -> set[int]:
    """The ledgers whose deletion was begun."""
    return {ledger for note in notes if isinstance(note, tuple) and note[0] == "going" for ledger in note[1]}


async def _read_around_damage(engine: Engine, ledger: int) -> dict[int, bytes]:
    """Read all entries of a ledger but those that are told to be corrupt."""
    found: dict[int, bytes] = {}
    first = 0
    while first <= 10**6:
        result = await read(engine, ledger, first, bytes_max=_READ_BYTES)
        assert result.status in (Status.OK, Status.NO_SUCH_LEDGER, Status.CORRUPT), result.status
        found.update(zip(result.entries.ids, result.entries.payloads(), strict=True))
        first = result.through + (2 if result.status is Status.CORRUPT else 1)
    return found


async def check(engine: Engine, notes: list[object], story: str, *, passes_damage: bool = False) -> None:
    """Check that every noted promise holds. With ``passes_damage``, what was never promised may be
    corrupt."""
    ledgers: dict[int, set[int]] = {}
    going = going_of(notes)
    rotten: set[tuple[int, int]] = set()
    deleted: set[int] = set()
    for note in notes:
        match note:
            case ("deleted", (tuple() as ids)):
                deleted.update(ids)
            case ("entries", int(ledger), (tuple() | range()) as ids):
                ledgers.setdefault(ledger, set()).update(ids)
            case ("rotten", int(ledger), int(entry_id)):
                rotten.add((ledger, entry_id))
            case ("restored", int(ledger), int(entry_id)):
                rotten.discard((ledger, entry_id))
            case ("fence", int(ledger)):
                refusal = engine.add(*add_frame(ledger, [10**5]))
                assert refusal is Status.FENCED, story
    for ledger in deleted:
        assert engine.add(*add_frame(ledger, [10**5])) is Status.FENCED, story
        assert engine.add(*add_frame(ledger, [10**5], recovery=True)) is Status.NO_SUCH_LEDGER, story
        assert not await read_all(engine, ledger), story
    for ledger, entry_id in rotten:
        result = await read(engine, ledger, entry_id, entry_id)
        if result.status is Status.OK:
            assert result.entries.payloads() == [payload_of(ledger, entry_id)], story
        else:
            assert result.status is Status.CORRUPT, f"{story}: what is rotten is denied: {result.status}"
        ids = ledgers.pop(ledger)
        for low, high in ((min(ids), entry_id - 1), (entry_id + 1, max(ids))):
            seen = await read(engine, ledger, low, high)
            assert seen.status is Status.OK, story
            assert list(seen.entries.ids) == [each for each in range(low, high + 1) if each in ids], story
    for ledger in (*ledgers, 3):
        if passes_damage:
            found = await _read_around_damage(engine, ledger)
        else:
            found = await read_all(engine, ledger, bytes_max=_READ_BYTES)
        if ledger not in going:
            lost = sorted(ledgers.get(ledger, set()) - found.keys())
            assert not lost, f"{story}: ledger {ledger} has lost {lost}"
        for entry_id, payload in found.items():
            assert payload == payload_of(ledger, entry_id), story


async def check_replaced_files(engine: Engine, story: str) -> None:
    """Check that no entry log lists a file that counts as replaced: the file might be removed, and a rebuild
    of the index would pass it over."""
    catalogue, files = engine.compactor._catalogue, engine.compactor._contents._files
    logs = await catalogue.logs()
    counting = [row.file for row in (*await catalogue.segments(), *logs)]
    for row in logs:
        with suppress(StorageCorrupt):
            replaced = await files.logs.read_replaced(-row.file)
            assert not [file for file in counting if file in replaced], story


async def boot_and_check(state: CrashState, notes: list[object]) -> Recorder:
    """Start a bookie from the state, check it, let it work, stop it cleanly and check that."""
    return await _boot_and_check(state, notes, goes_on=True)


async def boot_and_look(state: CrashState, notes: list[object]) -> Recorder:
    """Start a bookie from the state, check it, and kill it. A third of the cost of ``boot_and_check``."""
    return await _boot_and_check(state, notes, goes_on=False)


async def _boot_and_check(state: CrashState, notes: list[object], *, goes_on: bool) -> Recorder:
    recorder = Recorder()
    disk, indexes = RecordingDisk(recorder, state), RecordingIndexes(recorder, state)
    notes = list(notes)
    oracle = NotedOracle(recorder)
    oracle.gone = going_of(notes)
    with suppress(Crash):
        async with opened(PATH, disk, indexes) as directory:
            async with open_engine(directory, MOVING, oracle=oracle) as engine:
                await check(engine, notes, state.story)
                await check_replaced_files(engine, state.story)
                if not goes_on:
                    raise Crash
                await add_durably(engine, 9, range(3))
                notes.append(("entries", 9, (0, 1, 2)))
                if oracle.gone:
                    assert engine.collector is not None
                    await engine.collector.collect()
                    await engine.compactor.compact(is_eventual=True)
                    await check(engine, notes, f"{state.story}, then collected and compacted")
            async with open_engine(directory, MOVING) as engine:
                await check(engine, notes, f"{state.story}, then a clean stop")
    return recorder


async def boot_or_repair_and_check(state: CrashState, notes: list[object]) -> bool:
    """Start a bookie from a state that may hold bytes that nobody wrote.

    It starts and has everything; or it refuses a file with such bytes, and a repair keeps everything.

    Returns:
        Whether it started.
    """
    refusal = ""
    try:
        await boot_and_check(state, notes)
    except StorageCorrupt as damage:
        refusal = str(damage)
    if not refusal:
        return True
    # The damage is that file, or the file is the proof that a write before it was synced.
    assert any(path in refusal for path in state.garbage), f"{state.story}: {refusal}"
    recorder = Recorder()
    disk, indexes = RecordingDisk(recorder, state), RecordingIndexes(recorder, state)
    store = new_tree().open_store()
    for _ in range(_LEDGERS):
        await store.next_id(layout.LEDGER_COUNTER)
    async with open_directory(PATH, disk=disk, indexes=indexes) as directory:
        await repair_directory(
            store, directory, random_bytes=lambda count: bytes(range(count)), config=MOVING
        )
        marks = await read_marks(disk, PATH)
        assert marks is not None
        for ledger_id in range(_LEDGERS):
            assert marks.refuses_adds(ledger_id), state.story
            assert marks.denies_nothing(ledger_id), state.story
        promises = [note for note in notes if not (isinstance(note, tuple) and note[0] == "fence")]
        unmarked = LossMarkStore(disk, PATH, LossMarks())  # So that it says what it lacks.
        async with open_engine(directory, MOVING, marks=unmarked, oracle=NotedOracle(recorder)) as engine:
            await check(engine, promises, f"{state.story}, then repaired", passes_damage=True)
    return False


async def rebuild_and_check(state: CrashState, notes: list[object]) -> None:
    """Lose the index of the state, make it again, and check that nothing else was lost."""
    recorder = Recorder()
    disk, indexes = RecordingDisk(recorder, state), RecordingIndexes(recorder, state)
    indexes.indexes.clear()
    async with opened(PATH, disk, indexes) as directory:
        await rebuild_index(directory)
        async with open_engine(directory, MOVING) as engine:
            await check(engine, notes, f"{state.story}, then made again")


class Looked:
    """The crash states that were examined. Crashes at different points may leave the same disk. Then it is
    enough to examine the state with the most promises, so points are taken from the last one backwards."""

    def __init__(self) -> None:
        self.states = 0
        self.torn = 0
        """Of which so many with a write of which a part is there."""
        self.boots = 0
        self._seen: set[int] = set()

    def is_new(self, state: CrashState) -> bool:
        self.states += 1
        self.torn += state.is_torn
        found = state.fingerprint()
        if found in self._seen:
            return False
        self._seen.add(found)
        self.boots += 1
        return True
