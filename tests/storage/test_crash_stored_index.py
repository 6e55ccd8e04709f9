"""Crashes with a store's own files: durable rows are there, no matter what happens to the rows that it is
writing.

A bookie runs on real files. Before and after every batch that it writes to its index, and while segments and
entry logs come and go, its directory is copied, as a crash of the process would leave it. A power cut in the
middle of a batch leaves any part of what the store appended to its log for it: of the copy after the batch,
the log is cut at random places between its size before and its size after. Of RocksDB's log, zeros may follow
up to the size after: the file system knew the size, and the bytes were lost. LevelDB takes that for damage.
From each copy a bookie is started and asked.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import evolve
from crashing import NotedOracle, add_noted, check, fence_noted, going_of
from recording_disk import Recorder
from storing import SMALL, Crash, opened
from trio.testing import wait_all_tasks_blocked

from bookie.core.rows import Change
from bookie.storage.disk.real import RealDisk
from bookie.storage.engine.opening import open_engine
from bookie.storage.index.index import Index
from bookie.storage.index.kinds import StoredIndexes, default_kind
from bookie.storage.index.stored import StoredIndex
from bookie.storage.upkeep.rebuild import rebuild_index
from tests.index_kinds import KINDS_HERE

CONFIG = evolve(SMALL, merge_width=2, log_bytes_max=40_000, compact_bytes_per_s=2**40)


class Photographer:
    """Copies of a directory, each with what was promised by then."""

    def __init__(self, path: Path, copies: Path) -> None:
        self.path = path
        self.recorder = Recorder()
        self.shots: list[tuple[Path, list[object]]] = []
        self._copies = copies

    def shoot(self) -> Path:
        target = self._copies / f"{len(self.shots):04d}"
        shutil.copytree(self.path, target)
        (target / "lock").unlink(missing_ok=True)
        (target / "index" / "LOCK").unlink(missing_ok=True)
        self.recorder.position += 1
        self.shots.append((target, self.recorder.notes_before(self.recorder.position)))
        return target

    def log_sizes(self) -> dict[str, int]:
        return {file.name: file.stat().st_size for file in (self.path / "index").glob("*.log")}


class WatchedIndex:
    """An index on a disk that is photographed around every batch."""

    def __init__(
        self, inner: StoredIndex, photographer: Photographer, dice: random.Random, *, leaves_zeros: bool
    ) -> None:
        self._inner = inner
        self._leaves_zeros = leaves_zeros
        self._photographer = photographer
        self._dice = dice
        self.path, self.if_behind = inner.path, inner.if_behind
        self.get_now, self.scan_now, self.scan = inner.get_now, inner.scan_now, inner.scan
        self.refresh, self.aclose = inner.refresh, inner.aclose

    async def write(self, rows: Sequence[Change]) -> None:
        photographer = self._photographer
        before = photographer.log_sizes()
        await self._inner.write(rows)
        after = photographer.log_sizes()
        if self._dice.random() < 0.5:
            photographer.shoot()
        for name in before.keys() & after.keys():
            if after[name] > before[name]:
                cut = self._dice.randrange(before[name], after[name])
                target = photographer.shoot()
                with (target / "index" / name).open("r+b") as file:
                    file.truncate(cut)
                    if self._leaves_zeros and self._dice.random() < 0.5:
                        file.truncate(after[name])


class WatchedIndexes(StoredIndexes):
    def __init__(self, disk: RealDisk, photographer: Photographer, kind: str) -> None:
        super().__init__(disk, asked=kind)
        self._photographer = photographer
        self._dice = random.Random(5)
        self._leaves_zeros = kind == "rocksdb"

    async def open(self, path: str) -> Index:
        return WatchedIndex(
            await super().open(path), self._photographer, self._dice, leaves_zeros=self._leaves_zeros
        )


async def work(photographer: Photographer, indexes: WatchedIndexes, disk: RealDisk) -> None:
    recorder = photographer.recorder
    oracle = NotedOracle(recorder)
    async with (
        opened(str(photographer.path), disk, indexes) as directory,
        open_engine(directory, CONFIG, oracle=oracle) as engine,
    ):
        assert engine.collector is not None
        for turn in range(12):
            for ledger in (1, 2, 3):
                if ledger not in oracle.gone:
                    await add_noted(engine, recorder, ledger, range(12 * turn, 12 * turn + 6))
                    await add_noted(engine, recorder, ledger, range(12 * turn + 6, 12 * turn + 12))
            await fence_noted(engine, recorder, 20 + turn)
            await wait_all_tasks_blocked()
            if turn % 2:
                await engine.flush()
            if turn == 5:
                oracle.gone |= {2, 21}
                await engine.collector.collect()
                recorder.note(("deleted", (2, 21)))
            await engine.compactor.compact(is_eventual=True)
        assert engine.compactor.jobs
        photographer.shoot()
        raise Crash


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS_HERE)
async def test_every_state_of_a_stores_files_boots_to_what_was_acknowledged(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """Of the kind that is not the default each third state, except in the soak."""
    is_soak = request.config.getoption("--hypothesis-profile") == "soak"
    step = 1 if is_soak or kind == default_kind().name else 3
    disk = RealDisk()
    photographer = Photographer(tmp_path / "b", tmp_path / "copies")
    with contextlib.suppress(Crash):
        await work(photographer, WatchedIndexes(disk, photographer, kind), disk)
    await disk.aclose()
    assert len(photographer.shots) > 40
    for number, (path, notes) in list(enumerate(photographer.shots))[::step]:
        async with opened(str(path)) as directory:
            if number % 10 == 9:
                shutil.rmtree(path / "index")
                await rebuild_index(directory)
            async with open_engine(directory, CONFIG) as engine:
                await check(engine, notes, f"copy {number} of {len(photographer.shots)}, {going_of(notes)}")
        shutil.rmtree(path)
