"""Deleted ledgers leave no row, and are refused for ever all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from storing import KEY, OTHER_KEY, SMALL, Crash, ToldOracle, add_durably, add_frame, opened, read, read_all
from trio.testing import wait_all_tasks_blocked

from bookie.core import rows
from bookie.core.gone_ledgers import Range
from bookie.core.journal_items import EntryRun
from bookie.core.ledger import StoredLedger
from bookie.storage.disk.gone_ledgers import gone_path, read_gone
from bookie.storage.disk.loss_marks import read_marks
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from bookie.storage.entrylog.entry_logs import EntryLogFiles
from bookie.storage.index.index import MemoryIndexes
from bookie.storage.upkeep.rebuild import rebuild_index
from ledgerlog.errors import DiskFull, StorageCorrupt, StorageError
from ledgerlog.model.id_ranges import ranges_of, without
from ledgerlog.testing.faulty_disk import DiskCall, Fails, FaultyDisk, Gate, GoOn
from ledgerlog.wire.checksum import checksum
from ledgerlog.wire.frame import Status

PATH = "b"
CONFIG = attrs.evolve(SMALL, merge_width=2, log_bytes_max=40_000, compact_bytes_per_s=2**40)


class ListingOracle(ToldOracle):
    """Lists the ledgers that a test put into ``listed``, and no other up to ``highest``."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: set[int] = set()
        self.highest = 10**6

        self.meanwhile: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint

    async def absent(self, first: int, last: int) -> list[Range]:
        await self.meanwhile()
        return without([(first, min(last, self.highest))], ranges_of(sorted(self.listed - self.gone)))


@attrs.define
class Machine:
    disk: FaultyDisk = attrs.Factory(FaultyDisk)
    indexes: MemoryIndexes = attrs.Factory(MemoryIndexes)
    oracle: ListingOracle = attrs.Factory(ListingOracle)

    @asynccontextmanager
    async def running(self, *, crashes: bool = False) -> AsyncIterator[Engine]:
        try:
            async with (
                opened(PATH, self.disk, self.indexes) as directory,
                open_engine(directory, CONFIG, oracle=self.oracle) as engine,
            ):
                yield engine
                if crashes:
                    raise Crash
        except Crash:
            pass

    def rows_of_ledgers(self) -> dict[int, int]:
        """How many rows of each ledger the index has, of whatever kind."""
        (index,) = self.indexes.indexes.values()
        found: dict[int, int] = {}
        for prefix in (b"L", b"R"):
            for key, _ in index.scan_now(prefix, prefix + b"\xff", floor=prefix, limit=10**6):
                ledger_id = rows.ledger_of_key(key) if prefix == b"L" else rows.ledger_of_run_key(key)
                found[ledger_id] = found.get(ledger_id, 0) + 1
        for key, value in index.scan_now(b"U", b"V", floor=b"U", limit=10**6):
            for ledger_id in rows.decode_usage(key, value, "i"):
                found[ledger_id] = found.get(ledger_id, 0) + 1
        return found

    async def ranges(self) -> list[Range]:
        marks = await read_marks(self.disk, PATH)
        assert marks is not None
        return (await read_gone(self.disk, PATH, "instance-1", marks)).ranges


@pytest.fixture
def machine() -> Machine:
    return Machine()


async def hold(engine: Engine, ledgers: Sequence[int]) -> None:
    for ledger_id in ledgers:
        await add_durably(engine, ledger_id, range(3))
    await engine.flush()


async def collect(engine: Engine) -> int:
    """Two passes, for a mass deletion waits for the second; and one for what was in use."""
    assert engine.collector is not None
    deleted = 0
    for _ in range(3):
        deleted += await engine.collector.collect()
    return deleted


async def fill_a_segment(engine: Engine, ledger_id: int) -> None:
    """Let the journal go on in another segment, so that the runs of the present one leave memory."""
    segment, entry_id = engine.statistics()["segment"], 0
    while engine.statistics()["segment"] <= segment + 2:
        await add_durably(engine, ledger_id, range(entry_id, entry_id + 10))
        entry_id += 10
    await engine.flush()


async def check_refused(engine: Engine, ledgers: Sequence[int]) -> None:
    for ledger_id in ledgers:
        for key in (KEY, OTHER_KEY):
            assert engine.add(*add_frame(ledger_id, [500], key=key)) is Status.FENCED
            assert engine.add(*add_frame(ledger_id, [500], recovery=True)) is Status.NO_SUCH_LEDGER
            assert (await engine.fence(ledger_id, key)).status is Status.OK
        assert (await read(engine, ledger_id)).status is Status.NO_SUCH_LEDGER
    held, _ = await engine.list_ledgers(0, 10**6)
    assert {ledger.ledger_id for ledger in held}.isdisjoint(ledgers)


async def test_deleted_ledgers_leave_no_row_and_are_one_range_between_those_that_live(
    machine: Machine,
) -> None:
    odd = range(1, 400, 2)  # The even ones are other bookies'.
    async with machine.running() as engine:
        await hold(engine, odd)
        machine.oracle.listed = {200, 201, 301}
        machine.oracle.gone = set(odd) - machine.oracle.listed
        await fill_a_segment(engine, 301)
        assert await collect(engine) == len(odd) - 2
        assert set(machine.rows_of_ledgers()) == {201, 301}
        assert await machine.ranges() == [(0, 199), (202, 300), (302, 399)]
        await check_refused(engine, [1, 2, 3, 200 - 1, 202, 399])
        assert await read_all(engine, 201) != {}
        await add_durably(engine, 400, range(3))
        await add_durably(engine, 200, range(3))  # It lives on other bookies, and may come here.
    for crashes in (True, False):
        async with machine.running(crashes=crashes) as engine:
            await check_refused(engine, [1, 2, 3, 399])
            assert await collect(engine) == 0
            assert set(machine.rows_of_ledgers()) == {200, 201, 301, 400}


async def test_no_ledger_that_this_bookie_knows_is_gone_because_a_listing_left_it_out(
    machine: Machine,
) -> None:
    async with machine.running() as engine:
        await hold(engine, [1, 2, 3, 4, 5])
        await engine.fence(6, KEY)
        machine.oracle.meanwhile = lambda: add_durably(engine, 8, [0])  # The index does not have it yet.
        machine.oracle.gone = {1, 3, 9}
        await hold(engine, [9])
        await fill_a_segment(engine, 2)
        assert await collect(engine) == 3
        assert await machine.ranges() == [(0, 1), (3, 3), (7, 7), (9, 9)]
        for ledger_id in (2, 4, 5, 8):
            assert await read_all(engine, ledger_id)


async def test_a_ledger_whose_runs_are_in_memory_goes_with_them(machine: Machine) -> None:
    async with machine.running() as engine:
        await hold(engine, [1, 2])
        machine.oracle.gone = {1}
        await collect(engine)
        assert set(machine.rows_of_ledgers()) == {1, 2}
        await check_refused(engine, [1])
        await fill_a_segment(engine, 2)
        await collect(engine)
        assert set(machine.rows_of_ledgers()) == {2}


async def test_ids_behind_the_last_deleted_ledger_are_left_alone(machine: Machine) -> None:
    """Their ledgers may be about to be made."""
    async with machine.running() as engine:
        await hold(engine, [1, 2])
        machine.oracle.gone = {1}
        await fill_a_segment(engine, 2)
        await collect(engine)
        assert await machine.ranges() == [(0, 1)]
        await add_durably(engine, 7, range(3))


async def test_while_ids_are_noted_nothing_unknown_among_them_is_taken(machine: Machine) -> None:
    """An entry that came in that moment would be deleted, and a fence forgotten by a crash."""
    answers: list[object] = []
    async with machine.running() as engine:
        await hold(engine, [1, 5, 8])
        machine.oracle.gone = {1, 5}
        await fill_a_segment(engine, 8)

        async def meanwhile(call: DiskCall, go_on: GoOn) -> Any:
            if "gone" in call.path:
                answers.append(engine.add(*add_frame(3, [0])))
                answers.append((await engine.fence(3, KEY)).status)
                answers.append(type(engine.add(*add_frame(8, [5000]))))
            return await go_on()

        machine.disk.faults.append(meanwhile)
        assert engine.collector is not None
        await engine.collector.collect()
        machine.disk.faults.clear()
        assert answers[:3] == [Status.IO_ERROR, Status.IO_ERROR, int]
        await check_refused(engine, [3])


@pytest.mark.parametrize("file", ["gone", "marks"])
async def test_ids_that_could_not_be_noted_are_refused_because_the_file_may_name_them(
    machine: Machine, file: str
) -> None:
    """Otherwise the bookie would acknowledge entries that it drops at its next start."""

    async def no_room_after_rename(call: DiskCall, go_on: GoOn) -> Any:
        found = await go_on()
        if call.verb == "rename" and file in call.path:
            raise DiskFull("no room")
        return found

    async with machine.running(crashes=True) as engine:
        await hold(engine, [1, 5, 8])
        machine.oracle.gone = {1, 5}
        await fill_a_segment(engine, 8)
        machine.disk.faults.append(no_room_after_rename)
        assert engine.collector is not None
        for _ in range(2):
            with pytest.raises(DiskFull):
                await engine.collector.collect()
            assert engine.add(*add_frame(3, [0])) is Status.IO_ERROR
        machine.disk.faults.clear()
        await engine.collector.collect()
        await check_refused(engine, [3])
        await add_durably(engine, 9, [0])


@pytest.mark.parametrize("file", ["gone", "marks"])
async def test_a_crash_between_deleting_and_writing_the_ranges_forgets_nothing(
    machine: Machine, file: str
) -> None:
    """The rows stay until the ranges are durable, and a later pass ends the work."""
    async with machine.running() as engine:
        await hold(engine, [1, 2, 3])
        machine.oracle.gone = {1, 2}
        await fill_a_segment(engine, 3)
        machine.disk.faults = [Fails("rename", only=lambda path: file in path)]
        with pytest.raises(StorageError):
            await collect(engine)
        machine.disk.faults.clear()
        assert machine.rows_of_ledgers().keys() >= {1, 2}
        raise Crash
    for crashes in (True, False):
        async with machine.running(crashes=crashes) as engine:
            await check_refused(engine, [1, 2])
    async with machine.running() as engine:
        await check_refused(engine, [1, 2])
        await collect(engine)
        assert set(machine.rows_of_ledgers()) == {3}
    async with machine.running() as engine:
        await check_refused(engine, [1, 2])


async def test_a_compaction_that_has_read_a_ledger_before_it_went_writes_no_run_of_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.running() as engine:
        for at in range(60):
            for ledger_id in (1, 2, 3):
                await add_durably(engine, ledger_id, [at])
        await fill_a_segment(engine, 4)
        machine.oracle.gone = {3}
        await collect(engine)  # So that there is something to compact.
        find = engine.compactor._named

        async def find_and_let_go(runs: list[EntryRun]) -> list[EntryRun]:
            found = await find(runs)
            if any(run.ledger_id == 1 for run in found):
                machine.oracle.gone = {1, 3}
                await collect(engine)
                assert 1 not in machine.rows_of_ledgers()
            return found

        monkeypatch.setattr(engine.compactor, "_named", find_and_let_go)
        assert await engine.compactor.compact(is_eventual=True)
        assert machine.oracle.gone == {1, 3}
        assert set(machine.rows_of_ledgers()) == {2, 4}
        assert len(await read_all(engine, 2)) == 60


async def test_an_index_that_is_made_again_from_files_with_gone_ledgers_serves_none_of_them(
    machine: Machine,
) -> None:
    async with machine.running() as engine:
        await hold(engine, [1, 2, 3])
        await fill_a_segment(engine, 2)
        machine.oracle.gone = {1, 3}
        await collect(engine)
        await fill_a_segment(engine, 2)  # The record of the deletion is gone with its segment.
    machine.indexes.indexes.clear()
    async with opened(PATH, machine.disk, machine.indexes) as directory:
        await rebuild_index(directory)
    async with machine.running() as engine:
        await check_refused(engine, [1, 3])
        assert await collect(engine) == 0
    async with machine.running() as engine:
        await collect(engine)
        await check_refused(engine, [1, 3])
        assert set(machine.rows_of_ledgers()) == {2}


async def test_rows_of_deleted_ledgers_that_version_0_1_left_go(machine: Machine) -> None:
    async with machine.running() as engine:
        await hold(engine, [50])
    (index,) = machine.indexes.indexes.values()
    purged = StoredLedger(KEY, True, 5, 5, 9, 0, 0, is_deleted=True)
    for ledger_id in range(1, 41):
        key, value = rows.encode_ledger(ledger_id, purged)
        bare = bytearray(value[:-4])
        bare[16] |= 4  # "Nothing else of the ledger is left here."
        await index.write([rows._row(key, bytes(bare))])
    async with machine.running() as engine:
        await check_refused(engine, [1, 40])
        await collect(engine)
        assert set(machine.rows_of_ledgers()) == {50}
        assert await machine.ranges() == [(0, 40)]
        await check_refused(engine, [1, 40])


@pytest.mark.parametrize("damage", ["missing", "flipped", "another's"])
async def test_without_its_gone_ledgers_no_directory_opens(machine: Machine, damage: str) -> None:
    async with machine.running() as engine:
        await hold(engine, [1, 2])
        machine.oracle.gone = {1}
        await fill_a_segment(engine, 2)
        await collect(engine)
    content = machine.disk.files[gone_path(PATH)]
    if damage == "missing":
        del machine.disk.files[gone_path(PATH)]
    elif damage == "flipped":
        content[-6] ^= 1
    else:
        content[16:26] = b"instance-2"
        content[-4:] = checksum(bytes(content[:-4])).to_bytes(4, "little")
    with pytest.raises(StorageCorrupt, match=gone_path(PATH)):
        async with machine.running():
            pass


async def test_a_ledger_is_gone_for_readers_once_that_is_durable(machine: Machine) -> None:
    """A crash before that would bring the ledger back without its fence."""
    gate = Gate("write_sync")
    gate.open()
    async with machine.running() as engine:
        await hold(engine, [1, 2])
        machine.oracle.gone = {1}
        machine.disk.faults = [gate]
        gate.shut()
        assert engine.collector is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.collector.collect)
            await wait_all_tasks_blocked()
            assert (await read(engine, 1)).status is Status.OK
            gate.open()
        await check_refused(engine, [1])


async def test_compaction_hears_of_a_deletion_after_a_flush_that_ended_before_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both watch for deletions. The flush ended its watch by a comparison of sets, and both were empty."""
    held, go_on = trio.Event(), trio.Event()
    write = EntryLogFiles.write

    async def hold(self: EntryLogFiles, **options: Any) -> Any:
        if options["level"]:  # A flush writes at level 0.
            held.set()
            await go_on.wait()
        return await write(self, **options)

    monkeypatch.setattr(EntryLogFiles, "write", hold)
    machine.oracle.listed = {1, 2}
    async with machine.running() as engine:

        async def fill(first: int, end: int) -> None:
            for entry_id in range(first, end):
                for ledger_id in (1, 2):
                    await add_durably(engine, ledger_id, [entry_id])
            await wait_all_tasks_blocked()

        await fill(0, 60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(engine.compactor.compact, is_eventual=True))
            await held.wait()
            flushed = engine.statistics()["segments_flushed"]
            await fill(60, 100)
            assert engine.statistics()["segments_flushed"] > flushed
            machine.oracle.gone.add(1)
            assert await collect(engine) == 1
            go_on.set()
        assert set(machine.rows_of_ledgers()) == {2}
        assert len(await read_all(engine, 2)) == 100


async def test_scrubbing_looks_for_no_run_of_a_deleted_ledger(machine: Machine) -> None:
    """Its rows stay until a collection removes them. Compaction may remove their file first."""
    async with machine.running(crashes=True) as engine:
        for at in range(60):
            for ledger_id in (1, 2):
                await add_durably(engine, ledger_id, [at])
        await engine.flush()
        machine.oracle.gone = {1}
        assert engine.collector is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.collector.collect)
            while (await read(engine, 1)).status is not Status.NO_SUCH_LEDGER:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    async with machine.running() as engine:
        assert await engine.compactor.compact(is_eventual=True)
        assert machine.rows_of_ledgers()[1] > 1
        checked = engine.scrubber.runs_checked
        assert await engine.scrubber.scrub() == 0
        assert engine.scrubber.runs_checked > checked, "the other ledger is scrubbed"
