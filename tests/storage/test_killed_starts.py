"""A bookie that is killed at any step of its start starts again, and again if that start is killed too.

Each kind of start runs once to count its steps: the beginnings and ends of all that it does to its disk, its
index and the metadata store. Then it is killed at one step, the next start at another one, and the third runs
to its end: it has everything that was promised. In some runs the power goes, too, at the kill.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from crashing import MOVING, PATH, NotedOracle, check, going_of, moving, record
from recording_disk import CrashPoint, CrashState, Recorder, RecordingDisk, RecordingIndexes
from stepping import Killed, KillingRecorder
from storing import COOKIE, SMALL, Crash, add_durably, add_frame, payloads, read_all
from unsynced import HIGHEST, UNSYNCED, check_unsynced, record_unsynced

from bookie.server.identity import establish_identity, read_cookie
from bookie.server.phase_one import settle_marks
from bookie.server.repairing import heal_index
from bookie.storage.disk.loss_marks import LossMarkStore
from bookie.storage.disk.real import RealDisk
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.directory import open_directory
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine, refuse_newer
from ledgerlog.model import layout
from ledgerlog.testing.faulty_store import Call, FaultyStore, GoOn
from ledgerlog.testing.memory_cluster import CLUSTER, new_tree
from ledgerlog.wire.frame import Status
from tests.index_kinds import convert_index

MINE = attrs.evolve(COOKIE, cluster=CLUSTER)
GOLDEN = Path(__file__).parent / "golden" / "version-1"


@attrs.frozen
class Kind:
    """A kind of start: what it finds, and what must be true once it serves."""

    disk: CrashState
    cookie: bytes | None
    """The bookie's cookie in the metadata store."""
    check: Callable[[Engine, LossMarkStore], Awaitable[None]]
    config: StorageConfig = MOVING
    gone: frozenset[int] = frozenset()
    journal: str | None = None
    """The journal's own directory."""
    has_lost_index: bool = False


class Machine:
    """A disk, an index and a metadata store, and the processes that run on them, one after the other."""

    def __init__(self, kind: Kind, disk: CrashState | None = None, cookie: bytes | None = None) -> None:
        self.kind = kind
        self.recorder = KillingRecorder(None, only_syncs=False)
        self.disk = RecordingDisk(self.recorder, disk or kind.disk)
        self.indexes = RecordingIndexes(self.recorder, disk or kind.disk)
        self.tree = new_tree()
        self.steps = 0
        """How many steps the last start took until it served."""
        self._first_cookie = cookie or kind.cookie
        self.random_bytes = random.Random(1).randbytes

    async def prepare(self) -> None:
        store = self.tree.open_store()
        for _ in range(HIGHEST + 1):
            await store.next_id(layout.LEDGER_COUNTER)
        if self._first_cookie is not None:
            await store.create(layout.cookie_path(MINE.bookie_id), self._first_cookie)

    async def cookie(self) -> bytes | None:
        node = await self.tree.open_store().get(layout.cookie_path(MINE.bookie_id))
        return None if node is None else node.value

    async def start(self, kill_at: int | None = None) -> bool:
        """Start a bookie, check it and kill it. Return False if it was killed before it served."""
        self.recorder.live_again(kill_at)
        self.disk.unlock()
        try:
            await self._start()
        except* (Killed, Crash):
            pass
        return not self.recorder.is_dead

    async def _start(self) -> None:
        kind = self.kind

        async def step(call: Call, go_on: GoOn) -> Any:
            if not call.is_write:
                return await go_on()
            self.recorder.step()
            found = await go_on()
            self.recorder.step()
            return found

        store = FaultyStore(self.tree, step)
        async with open_directory(
            PATH, disk=self.disk, indexes=self.indexes, journal_directory=kind.journal
        ) as directory:
            await refuse_newer(directory)
            await establish_identity(
                store, directory, bookie_id=MINE.bookie_id, random_bytes=self.random_bytes
            )
            if kind.has_lost_index:
                assert await heal_index(store, directory, random_bytes=self.random_bytes, may_salvage=False)
            marks = await settle_marks(store, directory)
            oracle = NotedOracle(Recorder())
            oracle.gone = set(kind.gone)
            async with open_engine(directory, kind.config, marks=marks, oracle=oracle) as engine:
                self.steps = self.recorder.count
                if self.recorder.kill_at is None:
                    await kind.check(engine, marks)
                raise Crash


async def _state_of(recorder: Recorder) -> CrashState:
    """What a killed process leaves. The directory becomes one of the cluster of this file."""
    recorder.disk.unlock()
    async with open_directory(PATH, disk=recorder.disk, indexes=recorder.indexes) as directory:
        cookie = await read_cookie(directory)
        assert cookie is not None
        await directory.replace_cookie(attrs.evolve(cookie, cluster=CLUSTER))
    rows = {
        path: dict(index.scan_now(b"", b"\xff" * 33, floor=b"", limit=10**6))
        for path, index in recorder.indexes.indexes.items()
    }
    files = {path: bytes(content) for path, content in recorder.disk.files.items()}
    return CrashState(files, frozenset(recorder.disk.directories), rows, "a kill")


async def after_a_crash(path: Path) -> Kind:
    """The journal is replayed, and what moved is cleaned up."""
    recorder = await record(moving, is_clean=False)
    notes = [what for _, what in recorder.notes]

    async def look(engine: Engine, marks: LossMarkStore) -> None:
        await check(engine, notes, "a start after a kill")
        assert marks.now.fenced_through == -1

    return Kind(await _state_of(recorder), MINE.encode(), look, gone=frozenset(going_of(notes)))


async def after_the_loss_of_its_index(path: Path) -> Kind:
    """The index is made again from the files, and the journal goes on."""
    kind = await after_a_crash(path)
    return attrs.evolve(kind, has_lost_index=True)


async def of_a_rolled_back_directory(path: Path) -> Kind:
    """The cookies tell that the directory is an older copy: the loss is marked."""
    kind = await after_a_crash(path)
    machine = Machine(kind)
    await machine.prepare()
    await machine.start()
    older = await _state_of(machine.recorder)
    for _ in range(2):
        await machine.start()

    async def look(engine: Engine, marks: LossMarkStore) -> None:
        assert marks.now.fenced_through == HIGHEST
        assert marks.now.denies_nothing(HIGHEST)
        assert engine.add(*add_frame(7, [10**5])) is Status.FENCED

    return attrs.evolve(kind, disk=older, cookie=await machine.cookie(), check=look)


async def after_acknowledging_unsynced_entries(path: Path) -> Kind:
    """All ledgers are fenced and in limbo before the first request."""
    recorder = await record_unsynced(is_clean=False)
    notes = [what for _, what in recorder.notes]

    async def look(engine: Engine, marks: LossMarkStore) -> None:
        assert marks.now.fenced_through == HIGHEST
        assert marks.now.denies_nothing(HIGHEST)
        await check_unsynced(engine, notes, "a start", is_loss=True, highest=HIGHEST)

    return Kind(await _state_of(recorder), MINE.encode(), look, config=UNSYNCED)


async def of_version_0_1(path: Path) -> Kind:
    """A directory of the first version is taken over."""
    shutil.copytree(GOLDEN, path / "b")
    await convert_index(path / "b")
    disk = RealDisk()
    async with open_directory(str(path / "b"), disk=disk) as directory:
        index = await directory.indexes.open(directory.index_path)
        rows = dict(index.scan_now(b"", b"\xff" * 33, floor=b"", limit=10**6))
        await index.aclose()
        await directory.replace_cookie(MINE)  # Its bytes are those of version 0.1, too.
    await disk.aclose()
    files = {
        f"{PATH}/{file.relative_to(path / 'b')}": file.read_bytes()
        for file in (path / "b").rglob("*")
        if file.is_file() and file.parent.name != "index"
    }
    directories = {PATH, *(name.rpartition("/")[0] for name in files)}
    state = CrashState(files, frozenset(directories), {f"{PATH}/index": rows}, "version 0.1")

    async def look(engine: Engine, marks: LossMarkStore) -> None:
        for ledger, ids in ((1, range(80)), (2, range(0, 160, 2)), (4, range(400)), (5, range(3))):
            assert await read_all(engine, ledger) == payloads(ledger, ids)
        for ledger in (2, 9, 3):
            assert engine.add(*add_frame(ledger, [1000])) is Status.FENCED

    return Kind(state, MINE.encode(), look, config=SMALL)


async def _serves(engine: Engine, marks: LossMarkStore) -> None:
    await add_durably(engine, 1, range(5))
    assert await read_all(engine, 1) == payloads(1, range(5))
    assert marks.now.fenced_through == -1


async def of_a_new_bookie(path: Path) -> Kind:
    return Kind(CrashState({}, frozenset(), {}, "nothing"), None, _serves)


async def of_a_new_bookie_with_a_journal_apart(path: Path) -> Kind:
    return attrs.evolve(await of_a_new_bookie(path), journal="j")


KINDS = [
    after_a_crash,
    after_the_loss_of_its_index,
    of_a_rolled_back_directory,
    after_acknowledging_unsynced_entries,
    of_version_0_1,
    of_a_new_bookie,
    of_a_new_bookie_with_a_journal_apart,
]


async def killed_twice(
    kind: Kind, first: int, second: int, dice: random.Random, *, is_power_cut: bool
) -> None:
    machine = Machine(kind)
    await machine.prepare()
    story = f"killed at {first}, then at {second}, {is_power_cut=}"
    try:
        assert not await machine.start(first)
        if is_power_cut:
            recorder = machine.recorder
            state = dice.choice(CrashPoint(recorder, recorder.position, kind.disk))
            story += f": {state.story}"
            machine = Machine(kind, state, await machine.cookie())
            await machine.prepare()
        await machine.start(second)
        assert await machine.start()
    except BaseException as failure:
        failure.add_note(story)
        raise


@pytest.mark.parametrize("is_soak", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["few", "all"])
@pytest.mark.parametrize("make", KINDS)
async def test_a_start_that_is_killed_at_any_step_and_killed_again_loses_nothing(
    make: Callable[[Path], Awaitable[Kind]], tmp_path: Path, is_soak: bool
) -> None:
    """In the soak, each step of the second start for each step of the first."""
    kind = await make(tmp_path)
    machine = Machine(kind)
    await machine.prepare()
    assert await machine.start()
    steps = machine.steps
    assert steps > 10
    dice = random.Random(make.__name__)
    for first in range(steps):
        seconds = range(steps) if is_soak else [dice.randrange(steps)]
        for second in seconds:
            await killed_twice(kind, first, second, dice, is_power_cut=dice.random() < 0.5)
