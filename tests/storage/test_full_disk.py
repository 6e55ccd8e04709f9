"""A disk that is full, whoever filled it: nothing is damaged, stops and starts are in order, and when there
is room again the bookie goes on by itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio
from attrs import evolve
from storing import KEY, SMALL, ToldOracle, add_durably, add_frame, opened, payloads, read_all, running
from trio.testing import wait_all_tasks_blocked

from bookie.core.rows import Change, Row
from bookie.storage.disk.ballast import Ballast
from bookie.storage.disk.descriptors import OutOfDescriptors
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.disk.real import RealDisk
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from bookie.storage.index.index import MemoryIndex, MemoryIndexes
from bookie.storage.index.kinds import StoredIndexes
from bookie.storage.index.patient import PatientIndex
from ledgerlog.concurrency.watermark import fresh
from ledgerlog.errors import DiskFull, StorageError
from ledgerlog.limits import KIB, MIB
from ledgerlog.wire.frame import Status
from tests.index_kinds import KINDS_HERE
from tests.waiting import PATIENCE_S

CAPACITY = 4 * MIB
BALLAST = 64 * KIB
CONFIG = evolve(
    SMALL, ballast_bytes=4 * BALLAST, small_run_bytes=0, disk_watch_interval_s=0.01, compact_interval_s=3600.0
)


class BoundIndex(MemoryIndex):
    """An index that fails if its disk has no page left, as LevelDB does."""

    def __init__(self, path: str, disk: MemoryDisk) -> None:
        super().__init__(path)
        self._disk = disk
        self.refused = 0

    async def write(self, rows: Sequence[Change]) -> None:
        space = await self._disk.space("b")
        if space is not None and space.free < 4 * KIB:
            self.refused += 1
            raise DiskFull("no room for a batch")
        await super().write(rows)


class BoundIndexes(MemoryIndexes):
    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__()
        self._disk = disk

    async def create(self, path: str) -> MemoryIndex:
        self.indexes[path] = BoundIndex(path, self._disk)
        return self.indexes[path]


class Machine:
    """A bookie's disk, which others fill."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.disk.capacity_bytes = CAPACITY
        self.indexes = BoundIndexes(self.disk)

    @property
    def free(self) -> int:
        assert self.disk.capacity_bytes is not None
        return self.disk.capacity_bytes - sum(map(len, self.disk.files.values()))

    @property
    def has_ballast(self) -> bool:
        return "b/ballast" in self.disk.files

    @property
    def refused(self) -> int:
        (index,) = self.indexes.indexes.values()
        assert isinstance(index, BoundIndex)
        return index.refused

    def fill(self, *, leave: int = 0) -> None:
        """Let somebody else take all of the disk."""
        self.disk.files["others"] = bytearray()
        self.disk.files["others"] = bytearray(self.free - leave)

    def give_back(self) -> None:
        del self.disk.files["others"]


async def until(condition: object) -> None:
    assert callable(condition)
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (tasks of the engine)
            await trio.sleep(0.005)


async def test_ballast_is_taken_while_there_is_plenty_and_no_more_than_a_sixteenth_of_the_disk() -> None:
    machine = Machine()
    async with running("b", CONFIG, disk=machine.disk, indexes=machine.indexes):
        await until(lambda: machine.has_ballast)
        assert len(machine.disk.files["b/ballast"]) == 4 * BALLAST
    small = MemoryDisk()
    small.capacity_bytes = 256 * KIB
    await small.make_directory("b")
    await Ballast(small, "b").restore()
    assert len(small.files["b/ballast"]) == 16 * KIB
    unbounded = MemoryDisk()
    await unbounded.make_directory("b")
    ballast = Ballast(unbounded, "b")
    await ballast.restore()
    await ballast.check(2**40)
    await ballast.ensure()
    assert not unbounded.files


async def test_a_bookie_whose_disk_others_fill_refuses_adds_fences_and_stops_and_starts_in_order() -> None:
    machine = Machine()
    async with running("b", CONFIG, disk=machine.disk, indexes=machine.indexes) as engine:
        await add_durably(engine, 1, range(20))
        await until(lambda: machine.has_ballast)
        await wait_all_tasks_blocked()
        machine.fill()
        at = 20
        while not isinstance(position := engine.add(*add_frame(1, [at], [bytes(9000)])), Status):
            await engine.wait_durable(position)
            await engine.wait_room()
            at += 1
        assert position is Status.DISK_FULL
        assert (await engine.fence(1, KEY)).status is Status.OK
        assert (await engine.fence(9, KEY)).status is Status.OK, "also of a ledger that it never saw"
    assert machine.has_ballast, "what the stop left of it was taken again, before others did"
    assert machine.refused <= 1
    for _ in range(4):  # It tries again and again, although the disk stays full.
        machine.fill()
        async with running("b", CONFIG, disk=machine.disk, indexes=machine.indexes) as engine:
            assert (await read_all(engine, 1, bytes_max=10**6)).keys() == set(range(at))
            for ledger in (1, 9):
                assert engine.add(*add_frame(ledger, [at])) is Status.FENCED
    machine.give_back()
    async with running("b", CONFIG, disk=machine.disk, indexes=machine.indexes) as engine:
        await add_durably(engine, 2, range(5))
        assert await read_all(engine, 2) == payloads(2, range(5))
        await until(lambda: machine.has_ballast)


async def test_a_start_on_a_disk_without_a_free_byte_takes_the_ballast() -> None:
    machine = Machine()
    large = evolve(CONFIG, ballast_bytes=256 * KIB)
    async with running("b", large, disk=machine.disk, indexes=machine.indexes) as engine:
        await add_durably(engine, 1, range(20))
        await until(lambda: machine.has_ballast)
    machine.fill()
    assert machine.free == 0
    async with running("b", large, disk=machine.disk, indexes=machine.indexes) as engine:
        assert not machine.has_ballast
        assert await read_all(engine, 1) == payloads(1, range(20))
        assert (await engine.fence(1, KEY)).status is Status.OK


async def test_who_has_no_room_for_a_start_is_told_how_much_it_takes() -> None:
    machine = Machine()
    large = evolve(CONFIG, segment_bytes=MIB)
    async with running("b", large, disk=machine.disk, indexes=machine.indexes) as engine:
        await add_durably(engine, 1, range(3))
    machine.disk.files.pop("b/ballast", None)
    machine.fill(leave=32 * KIB)
    for path in [path for path in machine.disk.files if path.endswith(".journal")][1:]:
        del machine.disk.files[path]  # The one that was prepared in advance.
    machine.fill(leave=32 * KIB)
    with pytest.raises(DiskFull, match="a start needs 131072 bytes"):
        async with running("b", large, disk=machine.disk, indexes=machine.indexes):
            pass


async def test_what_the_index_has_no_room_for_waits_and_goes_on_when_there_is_some() -> None:
    machine = Machine()
    async with running("b", CONFIG, disk=machine.disk, indexes=machine.indexes) as engine:
        await add_durably(engine, 1, range(5))
        await until(lambda: machine.has_ballast)
        await wait_all_tasks_blocked()
        machine.disk.files["b/ballast"] = bytearray()
        machine.fill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.flush)
            await until(lambda: engine.statistics()["is_disk_full"])
            assert machine.refused == 0, "it was asked first"
            assert engine.add(*add_frame(1, [5])) is Status.DISK_FULL
            assert (await engine.fence(7, KEY)).status is Status.OK
            assert await read_all(engine, 1) == payloads(1, range(5))
            machine.give_back()
        await until(lambda: not engine.statistics()["is_disk_full"])
        await add_durably(engine, 1, [5])


async def test_large_files_leave_what_the_index_needs() -> None:
    disk = MemoryDisk()
    disk.capacity_bytes = MIB
    await disk.make_directory("b")
    ballast = Ballast(disk, "b", BALLAST)
    await ballast.restore()
    disk.files["others"] = bytearray(MIB - 3 * BALLAST)  # Two ballasts are free.
    await ballast.check(BALLAST)
    with pytest.raises(DiskFull, match="are reserved for the index"):
        await ballast.check(BALLAST + 1)
    await ballast.check(BALLAST // 16)
    # Room for three ballasts is free, and the bookie takes one again.
    await ballast.give_up("the test says so")
    await ballast.check(BALLAST)
    with pytest.raises(DiskFull):
        await ballast.check(BALLAST + 1)


async def test_a_batch_is_tried_again_if_the_stop_removed_the_ballast_meanwhile() -> None:
    disk = MemoryDisk()
    disk.capacity_bytes = MIB
    await disk.make_directory("b")
    ballast = Ballast(disk, "b", BALLAST)
    await ballast.restore()
    disk.files["others"] = bytearray(MIB - BALLAST)
    tries = 0

    class Inner(BoundIndex):
        async def write(self, rows: Sequence[Change]) -> None:
            nonlocal tries
            tries += 1
            try:
                await super().write(rows)
            except DiskFull:
                await ballast.make_way_for_good()  # As the stop does in another task.
                raise

    index = PatientIndex(Inner("index", disk), ballast, retry_s=1.0)
    await index.write([(b"key", b"value")])
    assert (tries, index.get_now(b"key")) == (2, b"value")
    disk.files["others"] += bytes(BALLAST)
    with pytest.raises(DiskFull):
        await index.write([(b"key", b"another")])
    assert tries == 4


async def test_what_was_left_of_the_ballast_is_made_whole_when_there_is_plenty() -> None:
    disk = MemoryDisk()
    disk.capacity_bytes = MIB
    await disk.make_directory("b")
    ballast = Ballast(disk, "b", BALLAST)
    await ballast.restore()
    disk.files["others"] = bytearray(MIB - BALLAST)
    await ballast.make_way()  # Nothing else is free.
    disk.files["others"] += bytes(BALLAST // 2)
    await ballast.leave()
    assert len(disk.files["b/ballast"]) == BALLAST // 2
    disk.files["others"] = bytearray(MIB - 3 * BALLAST)  # Two and a half are free, and half of it is missing.
    await ballast.check(BALLAST)
    with pytest.raises(DiskFull):
        await ballast.check(BALLAST + 4096)
    await ballast.restore()
    assert len(disk.files["b/ballast"]) == BALLAST


async def test_a_ballast_that_a_crash_kept_from_its_name_is_given_up_as_well() -> None:
    disk = MemoryDisk()
    disk.capacity_bytes = MIB
    await disk.make_directory("b")
    disk.files["b/ballast.new"] = bytearray(BALLAST)
    disk.files["others"] = bytearray(MIB - BALLAST)
    ballast = Ballast(disk, "b", BALLAST)
    await ballast.make_way()
    space = await disk.space("b")
    assert space is not None
    assert space.free == BALLAST


# --- stores on a disk ----------------------------------------------------------------------------


class ClosedIndex(MemoryIndex):
    """An index that can be closed for a while, as a ``StoredIndex`` that could not be opened again."""

    failure: StorageError | None = None
    refused = 0

    def _check(self) -> None:
        if self.failure is not None:
            self.refused += 1
            raise fresh(self.failure)

    def get_now(self, key: bytes) -> bytes | None:
        self._check()
        return super().get_now(key)

    def scan_now(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        self._check()
        return super().scan_now(start, stop, floor=floor, limit=limit)


class ClosedIndexes(MemoryIndexes):
    async def create(self, path: str) -> MemoryIndex:
        self.indexes[path] = ClosedIndex(path)
        return self.indexes[path]


@pytest.mark.parametrize(
    "failure", [DiskFull("no room"), OutOfDescriptors("no descriptor")], ids=["room", "descriptor"]
)
@pytest.mark.parametrize("task", ["compaction", "collection", "reclaiming"])
async def test_upkeep_waits_while_the_index_cannot_be_opened_again(task: str, failure: StorageError) -> None:
    soon = {"compaction": {"compact_interval_s": 0.005}, "collection": {"collect_interval_s": 0.005}}
    config = evolve(SMALL, **{"compact_interval_s": 3600.0} | soon.get(task, {}))
    disk, indexes = MemoryDisk(), ClosedIndexes()
    async with (
        opened("b", disk, indexes) as directory,
        open_engine(directory, config, oracle=ToldOracle()) as engine,
    ):
        await add_durably(engine, 1, range(5))
        await engine.flush()
        (index,) = indexes.indexes.values()
        assert isinstance(index, ClosedIndex)
        index.failure = failure
        if task == "reclaiming":
            engine.reclaimer.prompt()
        await until(lambda: index.refused > 1)
        await wait_all_tasks_blocked()
        index.failure = None
        await add_durably(engine, 1, [5])
        assert await read_all(engine, 1) == payloads(1, range(6))


class NoRoomToSync(MemoryDisk):
    """After a change of a file's name, the next sync of its directory finds no room, once."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_for: tuple[str, str] | None = None
        """The method, and what the name ends with."""
        self._unsynced: str | None = None

    def _on_change(self, verb: str, path: str) -> None:
        if self.waits_for is not None and verb == self.waits_for[0] and path.endswith(self.waits_for[1]):
            self._unsynced, self.waits_for = path.rpartition("/")[0], None

    async def rename(self, source: str, target: str) -> None:
        await super().rename(source, target)
        self._on_change("rename", target)

    async def unlink(self, path: str) -> None:
        await super().unlink(path)
        self._on_change("unlink", path)

    async def sync_directory(self, path: str) -> None:
        await super().sync_directory(path)
        if path == self._unsynced:
            self._unsynced = None
            raise DiskFull(f"no room for {path}")


async def _fill_a_segment(engine: Engine) -> int:
    """Let the journal go on in the next segment, and return how many entries of ledger 2 that took."""
    segment, count = engine.statistics()["segment"], 0
    while engine.statistics()["segment"] == segment:
        await add_durably(engine, 2, [count], payloads=[b"x" * 300])
        count += 1
    await wait_all_tasks_blocked()
    return count


async def test_a_log_whose_name_finds_no_room_to_become_durable_ends_the_bookie() -> None:
    """It counts at the next start. If entries in it were repaired before, it would take the copies' place."""
    disk, indexes = NoRoomToSync(), MemoryIndexes()
    disk.waits_for = "rename", ".entries"
    with pytest.RaisesGroup(
        pytest.RaisesExc(StorageError, match="has its name, but not durably"),
        flatten_subgroups=True,
        allow_unwrapped=True,
    ):
        async with running("b", evolve(SMALL, scrub=False), disk=disk, indexes=indexes) as engine:
            await add_durably(engine, 1, range(20))
            await _fill_a_segment(engine)
            await engine.flush()
    async with running("b", SMALL, disk=disk, indexes=indexes) as engine:
        assert await read_all(engine, 1) == payloads(1, range(20))


async def test_a_segment_whose_removal_finds_no_room_is_flushed_all_the_same() -> None:
    disk, indexes = NoRoomToSync(), MemoryIndexes()
    config = evolve(SMALL, scrub=False, spare_segments=0)
    async with running("b", config, disk=disk, indexes=indexes) as engine:
        disk.waits_for = "unlink", ".journal"
        count = await _fill_a_segment(engine)
        await engine.flush()
        assert engine.statistics()["segments_flushed"] == 1
        await _fill_a_segment(engine)
    async with running("b", config, disk=disk, indexes=indexes) as engine:
        assert len(await read_all(engine, 2)) >= count


async def test_a_scrub_on_a_full_disk_does_not_close_the_index() -> None:
    machine = Machine()
    async with running("b", CONFIG, disk=machine.disk, indexes=machine.indexes) as engine:
        await until(lambda: machine.has_ballast)
        await wait_all_tasks_blocked()
        (index,) = machine.indexes.indexes.values()
        closed = 0

        async def refresh() -> None:
            nonlocal closed
            closed += 1

        index.refresh = refresh
        machine.fill()
        await engine.scrubber.scrub()
        assert (closed, engine.scrubber.passes) == (0, 0)
        machine.give_back()
        await engine.scrubber.scrub()
        assert (closed, engine.scrubber.passes) == (1, 1)


class ReopenedIndex(ClosedIndex):
    """An index that a refresh closes, and that the next batch opens again once ``failure_to_open`` is
    gone."""

    failure_to_open: StorageError | None = None

    async def refresh(self) -> None:
        self.failure = self.failure_to_open
        self._check()

    async def write(self, rows: Sequence[Change]) -> None:
        await self.refresh()
        await super().write(rows)


class ReopenedIndexes(MemoryIndexes):
    async def create(self, path: str) -> MemoryIndex:
        self.indexes[path] = ReopenedIndex(path)
        return self.indexes[path]


@pytest.mark.parametrize(
    "failure", [DiskFull("no room"), OutOfDescriptors("no descriptor")], ids=["room", "descriptor"]
)
async def test_an_index_that_a_scrub_could_not_open_again_is_opened_as_soon_as_that_is_possible(
    failure: StorageError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie.storage.index.patient.RETRY_S", 0.01)
    disk, indexes = MemoryDisk(), ReopenedIndexes()
    async with running("b", CONFIG, disk=disk, indexes=indexes) as engine, trio.open_nursery() as nursery:
        (index,) = indexes.indexes.values()
        assert isinstance(index, ReopenedIndex)
        await add_durably(engine, 1, range(5))
        await engine.flush()
        index.failure_to_open = failure
        nursery.start_soon(engine.scrubber.scrub)
        await until(lambda: engine.statistics()["is_disk_full"])
        assert engine.add(*add_frame(1, [5])) is Status.DISK_FULL
        index.failure_to_open = None
        await until(lambda: not engine.statistics()["is_disk_full"])
        assert (await engine.fence(7, KEY)).status is Status.OK, "the bookie never saw this ledger"
        await add_durably(engine, 1, [5])


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr!r}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(disk: Path) -> None:
    """Take every byte that is free."""
    with (disk / "others").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    assert os.statvfs(disk).f_bavail == 0


@pytest.mark.parametrize("kind", KINDS_HERE)
async def test_a_read_of_a_store_that_found_no_room_to_open_again_says_that_the_disk_is_full(
    tiny_disk: Path, kind: str
) -> None:
    disk = RealDisk()
    index = await StoredIndexes(disk, asked=kind).create(str(tiny_disk / "index"))
    await index.write([(b"before", b"1")])
    fill(tiny_disk)
    with pytest.raises(DiskFull):
        await index.refresh()
    for _ in range(2):
        with pytest.raises(DiskFull):
            index.get_now(b"before")
    (tiny_disk / "others").unlink()
    await index.write([(b"after", b"2")])
    assert (index.get_now(b"before"), index.get_now(b"after")) == (b"1", b"2")
    await index.aclose()
    await disk.aclose()


@pytest.mark.parametrize("kind", KINDS_HERE)
async def test_a_store_takes_the_next_batch_after_one_that_found_no_room(tiny_disk: Path, kind: str) -> None:
    disk = RealDisk()
    indexes = StoredIndexes(disk, asked=kind)
    index = await indexes.create(str(tiny_disk / "index"))
    await index.write([(b"before", b"1")])
    fill(tiny_disk)
    batch: list[Change] = [(b"key %d" % number, bytes(1000)) for number in range(100)]
    # Room for a part of the batch, and for what opening the database again takes, but not for both.
    os.truncate(tiny_disk / "others", (tiny_disk / "others").stat().st_size - 64 * KIB)
    with pytest.raises(DiskFull):
        await index.write(batch)
    assert index.get_now(b"before") == b"1"
    (tiny_disk / "others").unlink()
    await index.write(batch)
    assert index.get_now(b"key 99") == bytes(1000)
    await index.aclose()
    again = await indexes.open(str(tiny_disk / "index"))
    assert len(await again.scan(b"key", b"kez", floor=b"key", limit=1000)) == 100
    await again.aclose()
    await disk.aclose()


@pytest.mark.parametrize("kind", KINDS_HERE)
async def test_a_bookie_on_a_real_disk_that_others_fill_stops_and_starts_with_all_it_promised(
    tiny_disk: Path, kind: str
) -> None:
    config = StorageConfig(
        index=kind,
        segment_bytes=16 * 4096,
        arenas=2,
        frame_bytes_max=20_000,
        disk_full_retry_s=0.01,
        disk_watch_interval_s=0.01,
        small_run_bytes=0,
    )
    path = str(tiny_disk / "b")
    async with opened(path, index=kind) as directory, open_engine(directory, config) as engine:
        await add_durably(engine, 1, range(10))
        await until((tiny_disk / "b" / "ballast").exists)
        await wait_all_tasks_blocked()
        fill(tiny_disk)
        at = 10
        while not isinstance(position := engine.add(*add_frame(1, [at], [bytes(9000)])), Status):
            await engine.wait_durable(position)
            await engine.wait_room()
            at += 1
        assert position is Status.DISK_FULL
        assert (await engine.fence(1, KEY)).status is Status.OK
        fill(tiny_disk)
    fill(tiny_disk)
    async with opened(path, index=kind) as directory, open_engine(directory, config) as engine:
        assert (await read_all(engine, 1, bytes_max=10**6)).keys() == set(range(at))
        assert engine.add(*add_frame(1, [at])) is Status.FENCED
        (tiny_disk / "others").unlink()
        await until(lambda: not engine.statistics()["is_disk_full"])
        await add_durably(engine, 2, range(5))
