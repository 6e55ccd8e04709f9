"""On a failing disk, only durable entries are acknowledged, and a failure never means "not there"."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from attrs import evolve
from storing import (
    KEY,
    SMALL,
    add,
    add_durably,
    add_frame,
    payload_of,
    payloads,
    read,
    read_all,
    running,
)
from trio.testing import wait_all_tasks_blocked

from bookie.core.rows import Change, Row
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.engine import Engine
from bookie.storage.index.index import MemoryIndex, MemoryIndexes
from ledgerlog.errors import DiskFull, StorageError
from ledgerlog.testing.faulty_disk import Fails, FaultyDisk
from ledgerlog.wire.frame import Status

WRITES_FAIL = Fails("write_sync")
READS_FAIL = Fails("read")
IS_FULL = Fails("create", error=DiskFull("cannot create: No space left on device"))


class FailingIndex(MemoryIndex):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.fails_writes = self.fails_reads = False

    async def write(self, rows: Sequence[Row]) -> None:
        if self.fails_writes:
            raise StorageError("the index failed")
        await super().write(rows)

    def get_now(self, key: bytes) -> bytes | None:
        if self.fails_reads:
            raise StorageError("the index failed")
        return super().get_now(key)

    def scan_now(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        if self.fails_reads:
            raise StorageError("the index failed")
        return super().scan_now(start, stop, floor=floor, limit=limit)


class FailingIndexes(MemoryIndexes):
    made: FailingIndex

    async def create(self, path: str) -> MemoryIndex:
        await trio.lowlevel.checkpoint()
        self.indexes[path] = self.made = FailingIndex(path)
        return self.made


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


async def roll(engine: Engine, segments: int) -> None:
    segment = engine.statistics()["segment"]
    ledger = 1000 * segment
    while engine.statistics()["segment"] < segment + segments:
        await add_durably(engine, ledger, range(8))
        ledger += 1
        await wait_all_tasks_blocked()


async def test_a_failed_write_ends_the_engine_is_not_tried_again_and_nothing_of_it_is_acknowledged(
    disk: FaultyDisk,
) -> None:
    indexes = MemoryIndexes()
    acknowledged: list[int] = []
    tried = 0

    async def add_while_writes_fail() -> None:
        nonlocal tried
        async with running("b", disk=disk, indexes=indexes) as engine:
            await add_durably(engine, 1, [0])
            await wait_all_tasks_blocked()
            engine.on_durable(lambda: acknowledged.append(engine.durable_position))
            disk.faults = [WRITES_FAIL]
            tried = disk.calls["write_sync"]
            add(engine, 1, [1])
            try:
                await trio.sleep_forever()
            finally:
                assert engine.add(*add_frame(1, [2])) is Status.IO_ERROR

    with pytest.raises(StorageError, match="Input/output"):
        await add_while_writes_fail()
    assert disk.calls["write_sync"] == tried + 1
    assert not acknowledged
    disk.faults.clear()
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert await read_all(engine, 1) == payloads(1, [0])


async def test_a_failed_sync_of_a_fence_is_never_answered(disk: FaultyDisk) -> None:
    answers: list[object] = []

    async def fence_while_writes_fail() -> None:
        async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
            await wait_all_tasks_blocked()
            disk.faults = [WRITES_FAIL]
            answers.append(await engine.fence(1, KEY))

    with pytest.raises(StorageError):
        await fence_while_writes_fail()
    assert not answers


async def test_a_failed_index_ends_the_engine(disk: FaultyDisk) -> None:
    indexes = FailingIndexes()

    async def work_while_the_index_fails() -> None:
        async with running("b", disk=disk, indexes=indexes) as engine:
            indexes.made.fails_writes = True
            await roll(engine, 2)
            await trio.sleep_forever()

    with pytest.raises(StorageError, match="the index failed"):
        await work_while_the_index_fails()
    indexes.made.fails_writes = False
    async with running("b", disk=disk, indexes=indexes):
        pass


async def test_rule_8_an_entry_that_cannot_be_read_is_an_error_and_never_an_absence(
    disk: FaultyDisk,
) -> None:
    async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
        await add_durably(engine, 1, range(5))
        await roll(engine, 4)
        disk.faults = [READS_FAIL]
        result = await read(engine, 1)
        assert (result.status, result.through) == (Status.IO_ERROR, -1)
        result = await engine.recovery_read(1, KEY, first=0, last=9, stride=1, bytes_max=1000)
        assert (result.status, result.through) == (Status.IO_ERROR, -1)
        disk.faults.clear()
        assert await read_all(engine, 1) == payloads(1, range(5))


IN_PLACE = evolve(SMALL, small_run_bytes=0)


@pytest.mark.parametrize("config", [SMALL, IN_PLACE], ids=["rewritten", "in place"])
async def test_rule_8_damage_of_one_entry_is_told_and_the_others_are_given(
    disk: FaultyDisk, config: StorageConfig
) -> None:
    async with running("b", config, disk=disk, indexes=MemoryIndexes()) as engine:
        await add_durably(engine, 1, range(5), payloads=[b"%d" % i * 300 for i in range(5)])
        await roll(engine, 4)
        (content,) = [content for content in disk.files.values() if b"3" * 300 in content]
        content[content.find(b"3" * 300) + 7] ^= 1
        result = await read(engine, 1)
        assert list(result.entries.ids) == [0, 1, 2]
        assert (result.status, result.through) == (Status.CORRUPT, 2)
        result = await read(engine, 1, 4, 9)
        assert list(result.entries.ids) == [4]
        assert (result.status, result.through) == (Status.OK, 9)


async def test_rule_8_trouble_of_the_index_is_an_error_and_never_an_unknown_ledger(
    disk: FaultyDisk,
) -> None:
    indexes = FailingIndexes()
    config = StorageConfig(segment_bytes=12 * 4096, arenas=2, frame_bytes_max=20_000, ledgers_max=1)
    async with running("b", config, disk=disk, indexes=indexes) as engine:
        await add_durably(engine, 1, range(5))
        await roll(engine, 4)
        indexes.made.fails_reads = True
        assert (await read(engine, 1)).status is Status.IO_ERROR
        assert (await engine.list_entries(1, first=0, pairs_max=3)).status is Status.IO_ERROR
        assert (await engine.fence(1, KEY)).status is Status.IO_ERROR
        assert engine.add(*add_frame(1, [9])) is Status.IO_ERROR
        with pytest.raises(StorageError):
            engine.lac(1)
        indexes.made.fails_reads = False
        assert await read_all(engine, 1) == payloads(1, range(5))


@pytest.mark.parametrize("config", [SMALL, IN_PLACE], ids=["rewritten", "in place"])
async def test_a_file_that_vanished_is_an_error_to_its_readers(
    disk: FaultyDisk, config: StorageConfig
) -> None:
    async with running("b", config, disk=disk, indexes=MemoryIndexes()) as engine:
        await add_durably(engine, 1, range(5))
        await roll(engine, 4)
        for path in [path for path, content in disk.files.items() if payload_of(1, 4) in content]:
            del disk.files[path]
        assert (await read(engine, 1)).status is Status.IO_ERROR


async def test_a_full_disk_refuses_ordinary_adds_and_keeps_a_reserve_for_fences_and_recovery(
    disk: FaultyDisk,
) -> None:
    async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
        await wait_all_tasks_blocked()
        disk.faults = [IS_FULL]
        ledger = 1
        position: int | Status = 0
        while not isinstance(position, Status):
            position = engine.add(*add_frame(ledger, range(5)))
            await engine.wait_room()
            ledger += 1
        assert position is Status.DISK_FULL
        await engine.wait_room()  # The add must not hang: fences may wait behind it.
        assert (await engine.fence(1, KEY)).status is Status.OK
        await add_durably(engine, 1, [50], recovery=True)
        while not isinstance(engine.add(*add_frame(ledger, range(5), recovery=True)), Status):
            ledger += 1
        while not isinstance(engine.add(*add_frame(ledger, [0], [b""], recovery=True)), Status):
            ledger += 1
        while (await engine.fence(ledger + 1, KEY)).status is Status.OK:
            ledger += 1
        # Now even the reserve is used up, and the bookie says so.
        result = await engine.fence(ledger + 1, KEY)
        assert result.status is Status.DISK_FULL
        recovered = await engine.recovery_read(ledger + 1, KEY, first=0, last=1, stride=1, bytes_max=9)
        assert (recovered.status, recovered.through) == (Status.DISK_FULL, -1)
        disk.faults.clear()
        while engine.statistics()["is_disk_full"]:
            await wait_all_tasks_blocked()
        await add_durably(engine, ledger + 2, range(5))
        assert (await engine.fence(ledger + 1, KEY)).status is Status.OK


async def use_reserve_of_records(engine: Engine, config: StorageConfig) -> int:
    """Add tiny entries of ledger 1 until ordinary adds are refused, and then as many for a recovery as a
    segment may have records. Return the next entry id."""
    position: int | Status = 0
    at = 0
    while not isinstance(position, Status):
        position = engine.add(*add_frame(1, [at], [b""]))
        await engine.wait_room()
        at += 1
    assert position is Status.DISK_FULL
    for count in range(config.segment_records_max):
        assert not isinstance(engine.add(*add_frame(1, [at], [b""], recovery=True)), Status), count
        at += 1
    return at


@pytest.mark.parametrize("journal_write_data", [True, False])
async def test_the_reserve_of_a_full_disk_also_has_room_for_records(
    disk: FaultyDisk, journal_write_data: bool
) -> None:
    """Tiny adds reach the most records of a segment long before its bytes are used."""
    config = evolve(SMALL, segment_records_max=20, journal_write_data=journal_write_data)
    async with running("b", config, disk=disk, indexes=MemoryIndexes()) as engine:
        await wait_all_tasks_blocked()
        disk.faults = [IS_FULL]
        at = await use_reserve_of_records(engine, config)
        assert (await engine.fence(1, KEY)).status is Status.OK
        while not isinstance(engine.add(*add_frame(1, [at], [b""], recovery=True)), Status):
            at += 1
            assert at < 2 * config.arenas * config.segment_records_max, "each record costs memory"
        disk.faults.clear()
        while engine.statistics()["is_disk_full"]:
            await wait_all_tasks_blocked()
        assert len(await read_all(engine, 1)) == at - 1


async def test_the_reserve_also_has_room_for_records_if_the_index_has_no_room() -> None:
    config = evolve(SMALL, segment_records_max=20, journal_write_data=False)
    indexes = MemoryIndexes()
    async with running("b", config, disk=MemoryDisk(), indexes=indexes) as engine:
        (index,) = indexes.indexes.values()
        write = index.write

        async def full(changes: Sequence[Change]) -> None:
            raise DiskFull("no room for the index")

        index.write = full
        at = await use_reserve_of_records(engine, config)
        index.write = write
        while engine.statistics()["is_disk_full"]:
            await wait_all_tasks_blocked()
        assert len(await read_all(engine, 1)) == at - 1


async def fill(engine: Engine) -> int:
    """Use up all the room there is, the reserve for fences included; a ledger id that was not used."""
    await engine.wait_room()
    ledger = 10
    for ids in (range(5), [0]):
        while not isinstance(engine.add(*add_frame(ledger, ids, recovery=True)), Status):
            ledger += 1
            await engine.wait_room()
    while (await engine.fence(ledger, KEY)).status is Status.OK:
        ledger += 1
    return ledger + 1


async def test_a_fence_that_found_no_room_is_taken_back(disk: FaultyDisk) -> None:
    async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
        await wait_all_tasks_blocked()
        await add_durably(engine, 1, [0])
        disk.faults = [IS_FULL]
        unknown = await fill(engine)
        ledgers = engine.statistics()["ledgers_in_memory"]
        assert (await engine.fence(1, KEY)).status is Status.DISK_FULL
        assert (await engine.fence(unknown, b"?" * 16)).status is Status.DISK_FULL
        assert engine.statistics()["ledgers_in_memory"] == ledgers
        disk.faults.clear()
        while engine.statistics()["is_disk_full"]:
            await wait_all_tasks_blocked()
        await add_durably(engine, 1, [1])
        await add_durably(engine, unknown, [0])
        assert (await engine.fence(1, KEY)).status is Status.OK
        assert engine.add(*add_frame(1, [2])) is Status.FENCED


async def test_a_fence_that_found_no_room_stands_if_an_add_was_refused_for_it(disk: FaultyDisk) -> None:
    async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
        await wait_all_tasks_blocked()
        await add_durably(engine, 1, [0])
        disk.faults = [IS_FULL]
        await fill(engine)
        refusal: int | Status = 0
        while refusal is not Status.FENCED:  # Until the add comes while the fence is under way.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.fence, 1, KEY)
                await trio.lowlevel.checkpoint()
                refusal = engine.add(*add_frame(1, [1]))
        disk.faults.clear()
        while engine.statistics()["is_disk_full"]:
            await wait_all_tasks_blocked()
        assert engine.add(*add_frame(1, [1])) is Status.FENCED


async def test_a_bookie_whose_disk_is_full_at_the_start_says_so(disk: FaultyDisk) -> None:
    async with running("b", disk=disk, indexes=(indexes := MemoryIndexes())) as engine:
        await roll(engine, 1)
    for path in sorted(disk.files):
        if path.endswith(".journal") and not any(disk.files[path][4096:]):
            del disk.files[path]  # The segment that was prepared in advance.
    disk.faults = [IS_FULL]
    with pytest.raises(DiskFull):
        async with running("b", disk=disk, indexes=indexes):
            pass
    disk.faults.clear()
    async with running("b", disk=disk, indexes=indexes):
        pass
