"""Each call of a bookie to its disk and its index fails once: EIO or ENOSPC, at the first call, at the
second, and so on.

A scripted workload runs once to count what it does to the disk, and then once for each of these effects. The
bookie goes on by its rules, or it ends with an error that names the file. In both cases it starts again with
everything that it had promised, from what the machine's cache holds and from what a power cut leaves.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio
from attrs import evolve
from crashing import MOVING, PATH, NotedOracle, boot_and_look
from recording_disk import CrashPoint, CrashState, Recorder, RecordingDisk, RecordingIndexes
from stepping import FailingRecorder
from storing import KEY, add_frame, opened
from trio.testing import MockClock, wait_all_tasks_blocked

from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from ledgerlog.errors import DiskFull, StorageError
from ledgerlog.limits import KIB, MIB
from ledgerlog.wire.frame import Status

CONFIG = evolve(MOVING, ballast_bytes=64 * KIB, disk_watch_interval_s=0.01)
_DEADLINE_S = 1000.0


@pytest.fixture(autouse=True)
def clock() -> MockClock:
    """Time passes only while tasks of the bookie wait on purpose. So a bookie that waits for ever is seen."""
    return MockClock(autojump_threshold=0)


async def _add(engine: Engine, recorder: Recorder, ledger: int, ids: range) -> None:
    """Add entries as a client does, who comes back when a full disk has room."""
    while isinstance(position := engine.add(*add_frame(ledger, ids)), Status):
        assert position is Status.DISK_FULL, position
        await trio.sleep(0.01)
    await engine.wait_durable(position)
    recorder.note(("entries", ledger, tuple(ids)))
    await engine.wait_room()


async def _fence(engine: Engine, recorder: Recorder, ledger: int) -> None:
    while (result := await engine.fence(ledger, KEY)).status is not Status.OK:
        assert result.status is Status.DISK_FULL, result.status
        await trio.sleep(0.01)
    recorder.note(("fence", ledger))


async def _work(engine: Engine, recorder: Recorder, oracle: NotedOracle) -> None:
    assert engine.collector is not None
    for turn in range(5):
        for ledger in range(1, 5):
            if ledger not in oracle.gone:
                await _add(engine, recorder, ledger, range(12 * turn, 12 * turn + 12))
        await _fence(engine, recorder, 20 + turn)
        await engine.flush()
        if turn in (1, 3):
            oracle.gone |= {1 + turn, 20 + turn}
            await engine.collector.collect()
        await engine.compactor.compact(is_eventual=True)
    await wait_all_tasks_blocked()


async def run(recorder: Recorder) -> StorageError | None:
    """Format a directory, work, stop, and start once more. Return the error that ended it."""
    disk, indexes = RecordingDisk(recorder), RecordingIndexes(recorder)
    disk.capacity_bytes = 16 * MIB
    oracle = NotedOracle(recorder)
    try:
        with trio.fail_after(_DEADLINE_S):
            for life in range(2):
                async with (
                    opened(PATH, disk, indexes) as directory,
                    open_engine(directory, CONFIG, oracle=oracle) as engine,
                ):
                    if life == 0:
                        await _work(engine, recorder, oracle)
                    else:
                        await _add(engine, recorder, 1, range(100, 103))
    except StorageError as error:
        return error
    return None


async def fail_one_call(number: int, error: type[StorageError], *, happens: bool, dice: random.Random) -> str:
    """Return the kind of effect that failed, and what the bookie did."""
    recorder = FailingRecorder(number, error, happens=happens)
    try:
        end = await run(recorder)
        failed = recorder.failed
        assert failed is not None
        if end is not None:
            assert isinstance(end, error) or isinstance(end.__cause__, error), repr(end)
            assert failed.path in str(end), f"the error does not name the file: {end}"
        notes = recorder.notes_before(recorder.position)
        kept = CrashState(
            {path: bytes(content) for path, content in recorder.disk.files.items()},
            frozenset(recorder.disk.directories),
            {
                path: dict(index.scan_now(b"", b"\xff" * 33, floor=b"", limit=10**6))
                for path, index in recorder.indexes.indexes.items()
            },
            "the machine's cache",
        )
        for state in (kept, dice.choice(CrashPoint(recorder, recorder.position))):
            await boot_and_look(state, notes)
    except BaseException as failure:
        failure.add_note(f"effect {number}, {recorder.failed}, {error.__name__}, {happens=}")
        raise
    return f"{failed.kind} {'ends it' if end else 'is passed'}"


_SHARE = 4
"""Of the calls, one of so many is tried outside of the soak."""


async def _counted(error: type[StorageError]) -> FailingRecorder:
    counting = FailingRecorder(None, error)
    assert await run(counting) is None
    assert len(counting.begun) > 100
    return counting


@pytest.mark.parametrize("is_soak", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["few", "all"])
@pytest.mark.parametrize("happens", [False, True], ids=["undone", "done"])
@pytest.mark.parametrize("error", [StorageError, DiskFull], ids=["EIO", "ENOSPC"])
async def test_each_call_that_fails_ends_the_bookie_with_the_files_name_or_is_passed_and_loses_nothing(
    error: type[StorageError], happens: bool, is_soak: bool
) -> None:
    """In the soak each call, otherwise some."""
    counting = await _counted(error)
    dice = random.Random(f"{error} {happens}")
    tried: Counter[str] = Counter()
    for number in range(len(counting.begun)):
        if is_soak or not dice.randrange(_SHARE):
            tried[await fail_one_call(number, error, happens=happens, dice=dice)] += 1
    if error is DiskFull:
        assert tried["index is passed"] > 3
        assert tried["write ends it"] > 3
    else:
        assert not [what for what in tried if what.endswith("passed")], "no failed call is tried again"


async def test_a_segment_that_has_its_name_although_that_found_no_room_is_made_again() -> None:
    counting = await _counted(DiskFull)
    names = [
        number
        for number, effect in enumerate(counting.begun)
        if effect.kind == "rename" and effect.target.endswith(".journal")
    ]
    assert len(names) > 2
    ends = [await fail_one_call(n, DiskFull, happens=True, dice=random.Random(n)) for n in names]
    assert ends[0] == "rename ends it", "the first start has nothing to wait for"
    assert set(ends[1:]) == {"rename is passed"}
