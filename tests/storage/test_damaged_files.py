"""Files with rot: their space comes back once nothing that counts needs them, the index can be made again
from what is left, and what is the only trace of a live entry stays."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator

import attrs
import pytest
import trio
from storing import KEY, SMALL, Crash, ToldOracle, add_durably, add_frame, opened, read

from bookie.core import rows
from bookie.core.rows import FileRow, Row
from bookie.server.inspect import show_journal
from bookie.server.inspect_entries import show_entries
from bookie.storage.disk.ballast import Ballast
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.directory import StorageDirectory
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from bookie.storage.entrylog.contents import FileContents, FileRuns
from bookie.storage.index.index import MemoryIndexes
from bookie.storage.upkeep.collector import DeletionOracle
from bookie.storage.upkeep.rebuild import rebuild_index
from bookie.storage.upkeep.salvage import drop_set_aside, salvage
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import DiskFull, StorageCorrupt
from ledgerlog.wire.frame import Status
from tests.waiting import PATIENCE_S

STAYS = attrs.evolve(SMALL, small_run_bytes=0, scrub=False, compact_bytes_per_s=2**40)
"""Segments keep their entries."""
MOVES = attrs.evolve(STAYS, small_run_bytes=20_000, merge_width=2, log_bytes_max=40_000)
"""Entries go to entry logs."""
FENCED = 90
PAGE = 4096
UNREADABLE = (Status.CORRUPT, Status.IO_ERROR)


@attrs.define
class Machine:
    """A bookie with entries of three ledgers, each of which has entries in every file."""

    config: StorageConfig
    disk: MemoryDisk = attrs.Factory(MemoryDisk)
    indexes: MemoryIndexes = attrs.Factory(MemoryIndexes)
    oracle: ToldOracle = attrs.Factory(ToldOracle)
    stored: dict[int, set[int]] = attrs.Factory(dict)

    async def fill(self) -> None:
        async with self.running() as engine:
            await engine.fence(FENCED, KEY)
            for entry_id in range(24):
                for ledger_id in (1, 2, 3):
                    await add_durably(
                        engine, ledger_id, [entry_id], payloads=[self.payload(ledger_id, entry_id)]
                    )
                    self.stored.setdefault(ledger_id, set()).add(entry_id)
        async with self.running() as engine:  # The entry is not in memory any more.
            await engine.flush()

    def running(self) -> _Running:
        return _Running(self)

    def payload(self, ledger_id: int, entry_id: int) -> bytes:
        return b"ledger %d entry %d|" % (ledger_id, entry_id) * (20 + 7 * (entry_id % 5))

    def files(self) -> list[str]:
        """The files with entries that the journal no longer uses."""
        kept = [path for path in self.disk.files if path.endswith((".journal", ".entries"))]
        journal = max(path for path in kept if path.endswith(".journal"))
        return sorted(path for path in kept if path != journal and any(self.disk.files[path][PAGE:]))

    def size(self, path: str) -> int:
        return len(self.disk.files[path])

    def rot_entry(self, ledger_id: int, entry_id: int) -> str:
        """Flip a bit of one stored payload. Return the file."""
        for path in self.files():
            content = self.disk.files[path]
            at = content.find(self.payload(ledger_id, entry_id))
            if at >= 0:
                content[at] ^= 1
                return path
        raise AssertionError("it is in one of the files")

    async def bring_again(self, engine: Engine, ledger_id: int, entry_id: int) -> None:
        frame = add_frame(ledger_id, [entry_id], [self.payload(ledger_id, entry_id)], recovery=True)
        position = engine.add(*frame)
        if not isinstance(position, Status):
            await engine.wait_durable(position)

    async def fill_memory(self, engine: Engine) -> None:
        """What was brought leaves memory, and is indexed."""
        for entry_id in range(60):
            await add_durably(engine, 50, [entry_id], payloads=[bytes(4000)])
        with trio.fail_after(PATIENCE_S):
            await engine.flush()

    async def check(self, *, may_be_unreadable: Collection[tuple[int, int]] = ()) -> None:
        async with self.running() as engine:
            for ledger_id, ids in self.stored.items():
                for entry_id in sorted(ids):
                    found = await read(engine, ledger_id, entry_id, entry_id)
                    if (ledger_id, entry_id) in may_be_unreadable and found.status in UNREADABLE:
                        continue
                    assert found.status is Status.OK, (ledger_id, entry_id, found.status)
                    assert found.entries.payloads() == [self.payload(ledger_id, entry_id)], (
                        ledger_id,
                        entry_id,
                    )
            assert engine.add(*add_frame(FENCED, [0])) is Status.FENCED
            for ledger_id in self.oracle.gone:
                assert isinstance(engine.add(*add_frame(ledger_id, [99], recovery=True)), Status)
            raise Crash

    async def check_all(self, **more: Collection[tuple[int, int]]) -> None:
        with pytest.raises(Crash):
            await self.check(**more)

    async def make_index_again(self) -> None:
        async with opened("b", self.disk, self.indexes) as directory:
            await rebuild_index(directory)


class _Running:
    """The engine of a machine, with its oracle."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def __aenter__(self) -> Engine:
        machine = self._machine
        self._directory = opened("b", machine.disk, machine.indexes)
        directory = await self._directory.__aenter__()
        oracle: DeletionOracle = machine.oracle
        self._engine = open_engine(directory, machine.config, oracle=oracle)
        return await self._engine.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await self._engine.__aexit__(*error)
        await self._directory.__aexit__(*error)


async def delete(machine: Machine, engine: Engine, *ledger_ids: int) -> None:
    machine.oracle.gone.update(ledger_ids)
    assert engine.collector is not None
    await engine.collector.collect()
    for ledger_id in ledger_ids:
        machine.stored.pop(ledger_id, None)


@pytest.fixture(params=[STAYS, MOVES], ids=["segments", "logs"])
async def machine(request: pytest.FixtureRequest) -> Machine:
    machine = Machine(request.param)
    await machine.fill()
    return machine


PLACES = {
    "file header": 20,
    "first record": PAGE + 3,
    "first block or record": PAGE + 70,
    "middle": -2,
    "end": -1,
}


@pytest.mark.parametrize("where", PLACES)
async def test_a_rotten_file_whose_ledgers_are_all_deleted_is_freed(machine: Machine, where: str) -> None:
    path = machine.files()[0]
    at = PLACES[where]
    at = machine.size(path) // 2 if at == -2 else machine.size(path) - 30 if at == -1 else at
    machine.disk.files[path][at] ^= 0x40
    async with machine.running() as engine:
        await delete(machine, engine, 1, 2, 3)
        await engine.compactor.compact(is_eventual=True)
        assert not engine.compactor.damaged
    assert path not in machine.disk.files
    await machine.check_all()
    await machine.make_index_again()
    await machine.check_all()


async def test_a_file_that_was_healed_is_freed_and_does_not_stop_rebuild_index(machine: Machine) -> None:
    path = machine.rot_entry(2, 5)
    async with machine.running() as engine:
        await machine.bring_again(engine, 2, 5)
        await machine.fill_memory(engine)
        await engine.compactor.compact(is_eventual=True)
    assert path not in machine.disk.files
    await machine.make_index_again()
    await machine.check_all()


async def test_inspection_tells_healed_files_from_damaged_ones(machine: Machine) -> None:
    async def look() -> list[str]:
        async with opened("b", machine.disk, machine.indexes) as directory:
            items = [item for show in (show_journal, show_entries) async for item in show(directory)]
        return [name for item in items for name in ("damage", "healed") if name in item]

    machine.rot_entry(2, 5)
    assert await look() == ["damage"]
    async with machine.running() as engine:
        await machine.bring_again(engine, 2, 5)
        await machine.fill_memory(engine)
    assert await look() == ["healed"]
    machine.indexes.indexes.clear()
    assert await look() == ["damage"]


async def test_rot_of_a_live_entry_stays_until_it_is_deleted(machine: Machine) -> None:
    path = machine.rot_entry(2, 5)
    async with machine.running() as engine:
        await engine.scrubber.scrub()
        for _ in range(3):
            await engine.compactor.compact(is_eventual=True)
        await delete(machine, engine, 1, 3)
        for _ in range(3):
            await engine.compactor.compact(is_eventual=True)
        assert path in machine.disk.files
        (damage,) = engine.compactor.damaged.values()
        assert damage.run is not None
        assert damage.run.ledger_id == 2
    await machine.check_all(may_be_unreadable={(2, 5)})
    async with machine.running() as engine:
        await engine.compactor.compact(is_eventual=True)
        await delete(machine, engine, 2)
        await engine.compactor.compact(is_eventual=True)
        assert not engine.compactor.damaged
    assert path not in machine.disk.files


async def test_a_file_is_compacted_once_the_index_can_be_read_again(machine: Machine) -> None:
    path = machine.files()[0]
    machine.disk.files[path][machine.size(path) - 5] ^= 0x40
    async with machine.running() as engine:
        await engine.scrubber.scrub()
        (index,) = machine.indexes.indexes.values()
        scan = index.scan_now

        def fails_for_runs(start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
            if rows.is_run_key(start):
                raise StorageCorrupt("b/index", None, "a block does not match its checksum")
            return scan(start, stop, floor=floor, limit=limit)

        index.scan_now = fails_for_runs
        await engine.compactor.compact(is_eventual=False)
        assert {damage.run for damage in engine.compactor.damaged.values()} == {None}
        index.scan_now = scan
        await engine.compactor.compact(is_eventual=False)
        assert not engine.compactor.damaged
        assert path not in machine.disk.files
    await machine.check_all()


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The files that were read whole."""
    looked_at: list[int] = []
    read_contents = FileContents.read

    async def noted(self: FileContents, row: FileRow, *, pace: Pace | None = None) -> FileRuns:
        looked_at.append(row.file)
        return await read_contents(self, row, pace=pace)

    monkeypatch.setattr(FileContents, "read", noted)
    return looked_at


async def no_room(self: Ballast, size: int) -> None:
    raise DiskFull("no room")


async def test_a_compaction_that_finds_no_room_reads_none_of_its_files(
    machine: Machine, looked_at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.running() as engine:
        await engine.compactor.compact(is_eventual=True)
        await delete(machine, engine, 1, 3)
        looked_at.clear()
        with monkeypatch.context() as patches:
            patches.setattr(Ballast, "check", no_room)
            await engine.compactor.compact(is_eventual=True)
        assert looked_at == []
        await engine.compactor.compact(is_eventual=True)
        assert looked_at
    await machine.check_all()


async def test_a_damaged_file_is_read_whatever_room_its_old_size_would_need(
    machine: Machine, looked_at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Perhaps most of it is stored again elsewhere, and the new log is far smaller."""
    path = machine.files()[0]
    machine.disk.files[path][machine.size(path) - 5] ^= 0x40
    async with machine.running() as engine:
        await engine.scrubber.scrub()
        looked_at.clear()
        with monkeypatch.context() as patches:
            patches.setattr(Ballast, "check", no_room)
            await engine.compactor.compact(is_eventual=False)
        assert looked_at
        await engine.compactor.compact(is_eventual=False)
        assert path not in machine.disk.files
    await machine.check_all()


async def test_a_new_file_that_is_damaged_while_compaction_looks_at_older_ones_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The files were listed before this one was made."""
    machine = Machine(STAYS)
    await machine.fill()
    path = machine.files()[0]
    async with machine.running() as engine:
        catalogue, pool = engine.compactor._catalogue, engine.compactor._pool
        segments, logs = await catalogue.segments(), await catalogue.logs()
        newest = next(row for row in (*segments, *logs) if pool.path_of(row.file) == path)

        async def others(rows: list[FileRow]) -> list[FileRow]:
            engine.compactor.suspect(newest.file)
            return [row for row in rows if row != newest]

        with monkeypatch.context() as patches:
            patches.setattr(catalogue, "segments", lambda: others(segments))
            patches.setattr(catalogue, "logs", lambda: others(logs))
            await engine.compactor.compact(is_eventual=False)
        assert path in machine.disk.files
        await engine.compactor.compact(is_eventual=False)
        assert path not in machine.disk.files
    await machine.check_all()


async def test_scrubbing_finds_rot_that_no_entry_needs(machine: Machine) -> None:
    """Otherwise only a later rebuild of the index would find it."""
    path = machine.files()[0]
    machine.disk.files[path][machine.size(path) - 5] ^= 0x40
    async with machine.running() as engine:
        await engine.scrubber.scrub()
        await engine.compactor.compact(is_eventual=False)
        assert path not in machine.disk.files
    await machine.make_index_again()
    await machine.check_all()


@pytest.mark.parametrize("config", [STAYS, MOVES], ids=["segments", "logs"])
async def test_whatever_rots_space_comes_back_and_nothing_live_is_lost(config: StorageConfig) -> None:
    """Rot at random places, some healed and some deleted, in an order that only the seed knows."""
    freed = 0
    for seed in range(12):
        dice = random.Random(seed)
        machine = Machine(config)
        await machine.fill()
        try:
            freed += await _live(machine, dice)
        except BaseException as failure:
            failure.add_note(f"seed {seed}")
            raise
    assert freed > 12, "too little rots to show anything"


async def _live(machine: Machine, dice: random.Random) -> int:
    rotten = set[str]()
    for _ in range(dice.choice((1, 2, 6))):
        path = dice.choice(machine.files())
        machine.disk.files[path][dice.randrange(machine.size(path))] ^= 1 << dice.randrange(8)
        rotten.add(path)
    deleted = dice.sample((1, 2, 3), dice.choice((0, 1, 2, 3)))
    async with machine.running() as engine:
        steps = ["compact", "scrub", "heal", "compact", "heal", "delete", "scrub"]
        dice.shuffle(steps)
        for step in (*steps, "delete", "scrub", "heal"):
            match step:
                case "compact":
                    await engine.compactor.compact(is_eventual=dice.random() < 0.5)
                case "scrub":
                    await engine.scrubber.scrub()
                case "delete":
                    await delete(machine, engine, *deleted)
                case "heal":
                    for ledger_id, ids in machine.stored.items():
                        for entry_id in sorted(ids):
                            await machine.bring_again(engine, ledger_id, entry_id)
        await machine.fill_memory(engine)
        await engine.scrubber.scrub()
        await engine.compactor.compact(is_eventual=True)
        assert not engine.scrubber.rotten
        assert not engine.compactor.damaged
    await machine.check_all()
    await machine.make_index_again()
    await machine.check_all()
    return sum(path not in machine.disk.files for path in rotten)


async def test_a_file_that_was_set_aside_and_moved_away_since_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def gone(_: StorageDirectory) -> list[str]:
        await trio.lowlevel.checkpoint()
        return ["b/journal/0000000000000001.journal.damaged"]

    monkeypatch.setattr("bookie.storage.upkeep.salvage.find_set_aside", gone)
    async with opened("b", MemoryDisk(), MemoryIndexes()) as directory:
        assert await drop_set_aside(directory) == 1


async def test_other_tasks_run_while_a_salvage_searches_a_damaged_log(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    ticks, turns = 0, list[int]()

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await trio.lowlevel.checkpoint()

    def search_in_vain(*_: object) -> Iterator[None]:
        before = ticks
        yield from [None] * 10
        turns.append(ticks - before)

    monkeypatch.setattr("bookie.storage.upkeep.salvage.log_facts", search_in_vain)
    for path in machine.disk.files:
        if path.endswith(".entries"):
            machine.disk.files[path][PAGE + 14] ^= 0x40
    async with opened("b", machine.disk, machine.indexes) as directory:
        nursery.start_soon(tick)
        await salvage(directory, lambda: bytes(16))
        nursery.cancel_scope.cancel()
    assert bool(turns) == (machine.config is MOVES)
    assert min(turns, default=10) >= 9
