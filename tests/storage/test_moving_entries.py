"""Entries that move: flushed, compacted, deleted with their ledgers, and read all the while."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import Never

import pytest
import trio
from attrs import evolve
from storing import (
    COOKIE,
    KEY,
    SMALL,
    Crash,
    ToldOracle,
    add,
    add_durably,
    add_frame,
    opened,
    payloads,
    read,
    read_all,
    running,
)
from trio.testing import wait_all_tasks_blocked

from bookie.core.journal_items import EntryRun
from bookie.core.rows import MARK_KEY, Change, FileRow, Row, ledger_of_run_key, log_key, run_key
from bookie.server.inspect import show_journal
from bookie.server.inspect_entries import show_entries
from bookie.storage.disk.disk import File
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.directory import open_directory
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from bookie.storage.index.index import MemoryIndexes
from bookie.storage.upkeep import collector
from bookie.storage.upkeep.compaction import verify_frame
from bookie.storage.upkeep.rebuild import rebuild_index
from ledgerlog.errors import DiskFull, MetadataUnavailable, StorageError
from ledgerlog.limits import KIB, MIB
from ledgerlog.testing.faulty_disk import Fails, FaultyDisk, Gate
from ledgerlog.wire.frame import Status

CONFIG = evolve(SMALL, merge_width=2, log_bytes_max=40_000, compact_bytes_per_s=2**40)


async def away(*_: object) -> Never:
    raise MetadataUnavailable("the store cannot be reached")


def is_log(path: str) -> bool:
    return "entries" in path


NO_ROOM = Fails("create", error=DiskFull("No space left on device"), only=is_log)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def oracle() -> ToldOracle:
    return ToldOracle()


@pytest.fixture
async def engine(disk: FaultyDisk, oracle: ToldOracle) -> AsyncIterator[Engine]:
    async with (
        opened("b", disk, MemoryIndexes()) as directory,
        open_engine(directory, CONFIG, oracle=oracle) as engine,
    ):
        yield engine


def names(disk: MemoryDisk, ending: str) -> list[str]:
    return sorted(path.rpartition("/")[2] for path in disk.files if path.endswith(ending))


async def interleave(
    engine: Engine, rounds: int, ledgers: Sequence[int] = (1, 2, 3), *, first: int = 0
) -> None:
    for at in range(first, first + rounds):
        for ledger in ledgers:
            await add_durably(engine, ledger, [2 * at, 2 * at + 1])
    await wait_all_tasks_blocked()


# --- flushes --------------------------------------------------------------------------------------


async def test_a_segment_of_small_runs_goes_and_its_ledgers_lie_together_in_a_log(
    engine: Engine, disk: FaultyDisk
) -> None:
    await interleave(engine, 40)
    assert engine.statistics()["segments_flushed"] > 2
    assert "0000000000000001.journal" not in names(disk, ".journal")
    assert names(disk, ".entries")
    for ledger in (1, 2, 3):
        assert await read_all(engine, ledger) == payloads(ledger, range(80))


async def test_a_segment_of_large_runs_stays_where_it_is(disk: FaultyDisk) -> None:
    async with running(
        "b", evolve(SMALL, small_run_bytes=1000), disk=disk, indexes=MemoryIndexes()
    ) as engine:
        for first in range(0, 600, 20):
            await add_durably(engine, 1, range(first, first + 20))
        await wait_all_tasks_blocked()
        assert engine.statistics()["checkpoints"] > 2
        assert engine.statistics()["segments_flushed"] == 0
        assert await read_all(engine, 1) == payloads(1, range(600))
    assert not names(disk, ".entries")


async def test_a_segment_stays_after_all_where_the_disk_has_no_room_for_a_log(
    engine: Engine, disk: FaultyDisk
) -> None:
    disk.faults = [NO_ROOM]
    await interleave(engine, 40)
    assert engine.statistics()["checkpoints"] > 2
    assert engine.statistics()["segments_flushed"] == 0
    assert not names(disk, ".entries")
    disk.faults.clear()
    await engine.compactor.compact(is_eventual=False)
    assert names(disk, ".entries")
    for ledger in (1, 2, 3):
        assert await read_all(engine, ledger) == payloads(ledger, range(80))


async def test_a_log_for_which_the_room_ran_out_half_way_leaves_no_file(
    engine: Engine, disk: FaultyDisk
) -> None:
    """Some file systems notice only at a write that they have no room, even if it was allocated."""

    async def write_behind(file: File, offset: int, view: memoryview) -> None:
        raise DiskFull(f"cannot write {file.path}: No space left on device")

    disk.write_behind = write_behind
    await interleave(engine, 60)
    assert engine.statistics()["checkpoints"] > 1
    assert not names(disk, ".entries")
    assert not names(disk, ".new")
    assert await read_all(engine, 1) == payloads(1, range(120))


async def test_reads_while_entries_move_miss_nothing_and_give_nothing_twice(engine: Engine) -> None:
    async with trio.open_nursery() as nursery:

        async def keep_reading(ledger: int) -> None:
            while True:
                await trio.lowlevel.checkpoint()
                result = await read(engine, ledger, bytes_max=10**6)
                if result.status is not Status.NO_SUCH_LEDGER:
                    ids = list(result.entries.ids)
                    assert result.status is Status.OK
                    assert ids == list(range(len(ids))), "an entry is missing, or there twice"
                    assert result.entries.payloads() == list(payloads(ledger, ids).values())

        async def keep_compacting() -> None:
            while True:
                await engine.compactor.compact(is_eventual=True)
                await trio.lowlevel.checkpoint()

        nursery.start_soon(keep_reading, 1)
        nursery.start_soon(keep_reading, 2)
        nursery.start_soon(keep_compacting)
        nursery.start_soon(keep_compacting)
        for at in range(150):
            for ledger in (1, 2, 3):
                await add_durably(engine, ledger, [2 * at, 2 * at + 1])
        nursery.cancel_scope.cancel()
    assert engine.statistics()["compactions"] > 3
    assert engine.statistics()["segments_flushed"] > 5


async def test_a_read_that_began_before_runs_with_gaps_were_put_together_finds_their_entries(
    disk: FaultyDisk,
) -> None:
    """Entry 3 lies elsewhere, so the run 0..6 begins before one that is nearer to entry 4. Who decided how
    far to look before 0..6 were put together, and looks only then, must look again."""
    indexes = MemoryIndexes()
    small_logs = evolve(CONFIG, small_run_bytes=8 * KIB)
    for ledger_id, ids in (7, [0, 2, 4, 6]), (8, [0]):
        async with (
            opened("b", disk, indexes) as directory,
            open_engine(directory, evolve(CONFIG, small_run_bytes=0)) as engine,
        ):
            for entry_id in ids:
                await add_durably(engine, ledger_id, [entry_id])
    async with opened("b", disk, indexes) as directory, open_engine(directory, small_logs) as engine:
        await add_durably(engine, 7, [3], recovery=True)
        await engine.flush()
        (index,) = indexes.indexes.values()
        original = index.scan
        looking, go_on = trio.Event(), trio.Event()

        async def scan(start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
            if start.startswith(b"R") and not looking.is_set():
                looking.set()
                await go_on.wait()  # For a thread that is free.
            return await original(start, stop, floor=floor, limit=limit)

        index.scan = scan
        seen: list[int] = []

        async def look() -> None:
            seen.extend((await read(engine, 7, 4, 6)).entries.ids)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await looking.wait()
            nursery.start_soon(lambda: engine.compactor.compact(is_eventual=True))
            await wait_all_tasks_blocked()
            assert len(names(disk, ".entries")) == 1
            go_on.set()
        assert seen == [4, 6]


async def test_an_entry_is_found_though_another_run_begins_between_it_and_the_run_with_gaps_that_holds_it(
    disk: FaultyDisk,
) -> None:
    """Runs 0, 2, 4 and 6 become one run with gaps, 0..6. Entry 3 is a run of its own, and begins nearer to
    entry 4 than the run that holds it."""
    indexes = MemoryIndexes()
    large_runs = evolve(CONFIG, small_run_bytes=0)
    for ledger_id, ids in (7, [0, 2, 4, 6]), (8, [0]):
        async with opened("b", disk, indexes) as directory, open_engine(directory, large_runs) as engine:
            for entry_id in ids:
                await add_durably(engine, ledger_id, [entry_id])
    for is_made_anew in (False, True):
        async with opened("b", disk, indexes) as directory, open_engine(directory, CONFIG) as engine:
            if not is_made_anew:
                await add_durably(engine, 7, [3], recovery=True)
                await engine.flush()
                await engine.compactor.compact(is_eventual=True)
                assert len(names(disk, ".entries")) == 1
            assert list((await read(engine, 7, 4, 6)).entries.ids) == [4, 6]


async def test_where_the_journal_has_a_directory_of_its_own_nothing_stays_in_it(disk: FaultyDisk) -> None:
    indexes = MemoryIndexes()
    large = evolve(CONFIG, small_run_bytes=0)
    for life in range(2):
        async with open_directory("b", disk=disk, indexes=indexes, journal_directory="fast") as directory:
            if not life:
                await directory.format(COOKIE)
            async with open_engine(directory, large) as engine:
                for first in range(600 * life, 600 * (life + 1), 20):
                    await add_durably(engine, 1, range(first, first + 20))
                await wait_all_tasks_blocked()
                assert engine.statistics()["segments_flushed"] == engine.statistics()["checkpoints"] > 2
                # What the last life left in its last segment moves as well.
                await engine.compactor.compact(is_eventual=False)
                used = [path for path in disk.files if path.startswith("fast/") and path.endswith(".journal")]
                assert len(used) <= CONFIG.arenas + 1
                assert await read_all(engine, 1) == payloads(1, range(600 * (life + 1)))
    assert not [path for path in disk.files if path.startswith("b/journal/")]


# --- compaction -----------------------------------------------------------------------------------


async def test_a_run_that_the_index_names_no_more_is_not_brought_back(disk: FaultyDisk) -> None:
    """Where entries are stored twice the index names the newer run. It may reach further, and has the row
    that the older one would take."""
    indexes = MemoryIndexes()
    stay, move = evolve(CONFIG, small_run_bytes=0), evolve(CONFIG, small_run_bytes=8 * KIB)
    sizes = [bytes(600)] * 20
    for ledger_id, ids in (8, range(1)), (7, range(10)), (7, range(20)):
        async with running("b", stay, disk=disk, indexes=indexes) as engine:
            await engine.wait_durable(add(engine, ledger_id, ids, payloads=sizes[: len(ids)]))
        if len(ids) == 10:
            indexes.indexes["b/index"].apply([(run_key(7, 0), None)])  # So that it is stored again.
    async with running("b", move, disk=disk, indexes=indexes) as engine:
        assert list((await read(engine, 7)).entries.ids) == list(range(20))
        assert await engine.compactor.compact(is_eventual=True)
        assert list((await read(engine, 7)).entries.ids) == list(range(20))


async def test_entries_stay_readable_if_the_run_before_them_came_later_and_is_still_in_memory(
    disk: FaultyDisk,
) -> None:
    """Entry 0 comes after the entries 1 to 9, and its segment is flushed. Compaction would join the two runs
    under the row of entry 0, which readers pass over while entry 0 is in memory."""

    async def fill_segment(engine: Engine, entry_id: int) -> int:
        number = engine.statistics()["segment"]
        while engine.statistics()["segment"] == number:
            await add_durably(engine, 2, [entry_id])
            entry_id += 1
        await wait_all_tasks_blocked()
        return entry_id

    indexes = MemoryIndexes()
    config = evolve(CONFIG, arenas=3, log_bytes_max=10**6)
    async with running("b", config, disk=disk, indexes=indexes) as engine:
        await add_durably(engine, 1, range(1, 10))
        filled = 0
        for _ in range(3):
            filled = await fill_segment(engine, filled)
        await add_durably(engine, 1, [0], recovery=True)
        filled = await fill_segment(engine, filled)
        assert engine.statistics()["segments_flushed"] == 4
        for _ in range(4):
            await engine.compactor.compact(is_eventual=True)
            assert await read_all(engine, 1) == payloads(1, range(10))
            listed = await engine.list_entries(1, first=0, last=9, pairs_max=10)
            assert [id for first, last in listed.pairs for id in range(first, last + 1)] == [*range(10)]
            filled = await fill_segment(engine, filled)
        (index,) = indexes.indexes.values()
        rows = index.scan_now(run_key(1, 0), run_key(1, 10), floor=run_key(1, 0), limit=10)
        assert len(rows) == 1, "the runs were never joined"


async def test_small_logs_become_few_and_nothing_is_lost(engine: Engine, disk: FaultyDisk) -> None:
    await interleave(engine, 100)
    before = len(names(disk, ".entries"))
    assert await engine.compactor.compact(is_eventual=False)
    assert len(names(disk, ".entries")) < before
    for ledger in (1, 2, 3):
        assert await read_all(engine, ledger) == payloads(ledger, range(200))


async def test_a_file_that_was_replaced_and_is_still_there_is_removed_and_changes_nothing(
    disk: FaultyDisk,
) -> None:
    indexes = MemoryIndexes()
    async with running("b", CONFIG, disk=disk, indexes=indexes) as engine:
        await interleave(engine, 100)
        await engine.flush()
        before = {path: bytes(disk.files[path]) for path in disk.files if path.endswith(".entries")}
        await engine.compactor.compact(is_eventual=True)
        after = set(disk.files)
    for path in before.keys() - after:
        disk.files[path] = bytearray(before[path])  # As if a crash had lost that it was removed.
    async with running("b", CONFIG, disk=disk, indexes=indexes) as engine:
        assert not (before.keys() - after) & set(disk.files)
        for ledger in (1, 2, 3):
            assert await read_all(engine, ledger) == payloads(ledger, range(200))


async def test_a_segment_that_a_log_replaced_does_not_count_again_if_the_next_start_crashes_too(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first crash comes before the batch that adds the log, the second one before replay moves the
    mark."""
    indexes = MemoryIndexes()

    async def crash_before(key: bytes) -> None:
        """Run a bookie until it writes this row."""

        async def write(batch: Sequence[Change]) -> None:
            if key in dict(batch):
                raise StorageError("power cut")
            await original(batch)

        async with opened("b", disk, indexes) as directory:
            (index,) = indexes.indexes.values()
            original = index.write
            with monkeypatch.context() as patch:
                patch.setattr(index, "write", write)
                async with open_engine(directory, CONFIG) as engine:
                    await interleave(engine, 40)

    for key in (log_key(1), MARK_KEY):
        with pytest.raises(StorageError, match="power cut"):
            await crash_before(key)
    async with running("b", CONFIG, disk=disk, indexes=indexes) as engine:
        assert names(disk, ".entries") == ["0000000000000001.entries"]
        assert "0000000000000001.journal" not in names(disk, ".journal")
        before = await read_all(engine, 1)
        assert len(before) > 5
    async with opened("b", disk, indexes) as directory:
        await rebuild_index(directory)
    async with running("b", CONFIG, disk=disk, indexes=indexes) as engine:
        assert await read_all(engine, 1) == before == payloads(1, range(len(before)))


async def test_a_source_that_is_damaged_is_left_alone_and_the_others_are_compacted(
    engine: Engine, disk: FaultyDisk
) -> None:
    await interleave(engine, 100)
    path = f"b/entries/{names(disk, '.entries')[0]}"
    disk.files[path][5000] ^= 1
    await engine.compactor.compact(is_eventual=True)
    assert path in disk.files
    assert list(engine.compactor.damaged) == [-int(path[-24:-8], 16)]
    assert len(names(disk, ".entries")) >= 2


def test_a_damaged_entry_is_not_written_again() -> None:
    """Only the frame's own digests count, and not the file's checksums."""
    frame, _ = add_frame(1, [0], payloads=[b"x" * 50])
    raw = bytearray(frame.raw)
    run = EntryRun(1, 0, 0, 1, 4, 0, len(raw), 0)
    verify_frame(run, bytes(raw), "path")
    raw[-1] ^= 1
    with pytest.raises(StorageError, match="entry 0 of ledger 1 does not match its digest"):
        verify_frame(run, bytes(raw), "path")


async def test_a_full_disk_ends_compaction_and_it_goes_on_later(engine: Engine, disk: FaultyDisk) -> None:
    await interleave(engine, 60)
    disk.faults = [NO_ROOM]
    assert await engine.compactor.compact(is_eventual=True) == 0
    disk.faults.clear()
    assert await engine.compactor.compact(is_eventual=True) > 0
    assert await read_all(engine, 2) == payloads(2, range(120))


# --- deletion -------------------------------------------------------------------------------------


async def test_what_the_store_says_is_gone_goes_and_stays_refused(
    engine: Engine, disk: FaultyDisk, oracle: ToldOracle
) -> None:
    await interleave(engine, 60)
    await engine.flush()
    assert engine.collector is not None
    size = sum(len(disk.files[f"b/entries/{name}"]) for name in names(disk, ".entries"))
    oracle.gone = {1, 2}
    assert await engine.collector.collect() == 2
    assert (await read(engine, 1)).status is Status.NO_SUCH_LEDGER
    assert engine.add(*add_frame(1, [500])) is Status.FENCED
    assert engine.add(*add_frame(1, [500], recovery=True)) is Status.NO_SUCH_LEDGER
    await engine.compactor.compact(is_eventual=True)
    assert sum(len(disk.files[f"b/entries/{name}"]) for name in names(disk, ".entries")) < size / 2
    assert await read_all(engine, 3) == payloads(3, range(120))
    assert await engine.collector.collect() == 0


@pytest.mark.parametrize("piece_rows", [1, 4, 7, 1024])
async def test_a_deletion_of_many_ledgers_leaves_no_row_of_theirs_and_every_row_of_the_others(
    disk: FaultyDisk, oracle: ToldOracle, monkeypatch: pytest.MonkeyPatch, piece_rows: int
) -> None:
    monkeypatch.setattr(collector, "_PIECE_ROWS", piece_rows)
    indexes = MemoryIndexes()
    few = {1, 2, 5, 8, 9}
    async with (
        opened("b", disk, indexes) as directory,
        open_engine(directory, evolve(CONFIG, small_run_bytes=0), oracle=oracle) as engine,
    ):
        for ledger in range(1, 11):
            for entry in range(3 if ledger in few else 12):
                await add_durably(engine, ledger, [entry])
        await engine.flush()
        oracle.gone = {1, 3, 4, 5, 8, 10}
        assert engine.collector is not None
        assert await engine.collector.collect() == 6
        (index,) = indexes.indexes.values()
        found = [ledger_of_run_key(key) for key, _ in index.scan_now(b"R", b"S", floor=b"R", limit=10**6)]
        assert {ledger: found.count(ledger) for ledger in set(found)} == {2: 3, 6: 12, 7: 12, 9: 3}
        for ledger in (2, 6, 7, 9):
            count = 3 if ledger in few else 12
            assert await read_all(engine, ledger) == payloads(ledger, range(count))


async def test_a_store_that_does_not_answer_deletes_nothing(engine: Engine, oracle: ToldOracle) -> None:
    await interleave(engine, 5)
    await engine.flush()
    assert engine.collector is not None
    oracle.gone, oracle.surely_gone = {1}, away
    with pytest.raises(MetadataUnavailable):
        await engine.collector.collect()
    assert await read_all(engine, 1) == payloads(1, range(10))


async def test_ledgers_are_deleted_at_once_even_if_fewer_of_them_stay_in_memory(
    disk: FaultyDisk, oracle: ToldOracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the DELETE record on, every add is refused, although their ids are not noted as gone yet."""
    ledgers = range(1, 91)
    async with (
        opened("b", disk, MemoryIndexes()) as directory,
        open_engine(directory, evolve(CONFIG, ledgers_max=20), oracle=oracle) as engine,
    ):
        await interleave(engine, 1, [*ledgers, 100])
        await interleave(engine, 200, [100], first=1)
        await engine.flush()
        assert engine.statistics()["ledgers_in_memory"] < len(ledgers)
        monkeypatch.setattr(oracle, "absent", away)
        oracle.gone = set(ledgers)
        assert engine.collector is not None
        with pytest.raises(MetadataUnavailable):
            await engine.collector.collect()
        for ledger in ledgers:
            assert engine.add(*add_frame(ledger, [500])) is Status.FENCED


@pytest.mark.parametrize("recovery", [False, True])
async def test_rule_4_no_add_of_a_deleted_ledger_comes_between_its_record_and_the_sync_of_the_record(
    engine: Engine, disk: FaultyDisk, oracle: ToldOracle, recovery: bool
) -> None:
    """The journal would have the add behind the record that forbids it, and the bookie would confirm it."""
    await interleave(engine, 5)
    await engine.flush()
    assert engine.collector is not None
    oracle.gone = {1}
    disk.faults = [gate := Gate("write_sync")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.collector.collect)
        await wait_all_tasks_blocked()
        assert engine.statistics()["ledgers_deleted"] == 0, "the record is not durable yet"
        answer = engine.add(*add_frame(1, [500], recovery=recovery))
        found = await read(engine, 1)
        gate.open()
    assert answer is (Status.NO_SUCH_LEDGER if recovery else Status.FENCED)
    assert list(found.entries.ids) == list(range(10)), "it was not deleted yet"
    assert (await read(engine, 1)).status is Status.NO_SUCH_LEDGER


async def test_a_deletion_during_which_the_store_fails_is_finished_by_a_later_pass(
    engine: Engine, oracle: ToldOracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    await interleave(engine, 5)
    await engine.flush()
    assert engine.collector is not None
    oracle.gone = {1}
    with monkeypatch.context() as patch:
        patch.setattr(oracle, "absent", away)
        with pytest.raises(MetadataUnavailable):
            await engine.collector.collect()
    assert engine.statistics()["ledgers_deleted"] == 1
    assert engine.add(*add_frame(1, [500])) is Status.FENCED
    await engine.collector.collect()
    assert engine.add(*add_frame(1, [500])) is Status.FENCED
    assert engine.collector._gone.now.joined([(1, 1)]) == engine.collector._gone.now
    assert await read_all(engine, 2) == payloads(2, range(10))


async def test_a_deleted_ledger_stays_refused_after_stops_of_both_kinds_and_after_its_files_are_gone(
    disk: FaultyDisk, oracle: ToldOracle
) -> None:
    indexes = MemoryIndexes()

    async def delete_and_crash() -> None:
        async with (
            opened("b", disk, indexes) as directory,
            open_engine(directory, CONFIG, oracle=oracle) as engine,
        ):
            assert engine.collector is not None
            await interleave(engine, 40)
            await engine.fence(7, KEY)
            await engine.flush()
            oracle.gone = {1, 2, 3, 7}
            await engine.collector.collect()
            raise Crash

    with pytest.raises(Crash):
        await delete_and_crash()
    for _ in range(2):
        async with opened("b", disk, indexes) as directory, open_engine(directory, CONFIG) as engine:
            for ledger in (1, 2, 3, 7):
                assert engine.add(*add_frame(ledger, [500])) is Status.FENCED
                assert (await read(engine, ledger)).status is Status.NO_SUCH_LEDGER
            await engine.compactor.compact(is_eventual=True)
    assert sum(len(disk.files[f"b/entries/{name}"]) for name in names(disk, ".entries")) <= 3 * 8192


def damage(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


# --- looking at it --------------------------------------------------------------------------------


async def test_inspection_says_what_is_in_each_file_and_why_it_is_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "b")
    async with running(path, CONFIG) as engine:
        for at in range(60):
            for ledger in (1, 2):
                await add_durably(engine, ledger, [at])
        await engine.fence(5, KEY)
        await engine.flush()
        assert engine.statistics()["segments_flushed"]
    async with opened(path) as directory:
        logs = [item async for item in show_entries(directory)]
        segments = [item async for item in show_journal(directory)]
        assert sum(item["entries"] for item in (*logs, *segments)) == 120
        assert all("of its bytes belong to ledgers that exist" in item["kept_because"] for item in logs)
        assert segments[-1]["kept_because"] == "the journal: the next start replays it"
        damage(Path(logs[0]["file"]), 6000)
        damaged, *_ = [item async for item in show_entries(directory)]
        assert "checksum" in damaged["damage"]


# --- mass deletion --------------------------------------------------------------------------------


async def hold(engine: Engine, ledgers: int) -> None:
    for ledger in range(1, ledgers + 1):
        await add_durably(engine, ledger, [0])
    await engine.flush()


async def test_a_mass_deletion_waits_for_a_second_pass_that_finds_the_same(
    engine: Engine, oracle: ToldOracle, caplog: pytest.LogCaptureFixture
) -> None:
    await hold(engine, 300)
    assert engine.collector is not None
    oracle.gone = set(range(1, 201))
    assert await engine.collector.collect() == 0
    assert "200 of 300 ledgers are gone" in caplog.text
    assert await read_all(engine, 1) == payloads(1, range(1))
    oracle.gone = set(range(1, 151)) | set(range(201, 211))  # Fifty are there after all, ten are new.
    assert await engine.collector.collect() == 160
    assert await read_all(engine, 151) == payloads(151, range(1))
    assert await engine.collector.collect() == 0


async def test_deleted_ledgers_cost_each_file_once_however_many_pages_they_fill(
    engine: Engine, oracle: ToldOracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file lists its ledgers in one row. Read for every page of deleted ledgers, it would cost too much."""
    monkeypatch.setattr(collector, "_PAGE_LEDGERS", 4)
    files: list[int] = []
    discharge = collector.Collector._discharge

    async def counted(self: collector.Collector, file: int, gone: Collection[int]) -> None:
        files.append(file)
        await discharge(self, file, gone)

    monkeypatch.setattr(collector.Collector, "_discharge", counted)
    ledgers = range(1, 41)
    await interleave(engine, 10, ledgers)
    await engine.flush()
    oracle.gone = set(ledgers)
    assert engine.collector is not None
    assert await engine.collector.collect() == len(ledgers)
    assert len(files) == len(set(files)) > 1
    for ledger_id in ledgers:
        assert (await read(engine, ledger_id, 0, 19)).status is Status.NO_SUCH_LEDGER


async def test_what_only_the_second_pass_finds_waits_for_a_third(engine: Engine, oracle: ToldOracle) -> None:
    await hold(engine, 300)
    assert engine.collector is not None
    oracle.gone = set(range(1, 121))
    assert await engine.collector.collect() == 0
    oracle.gone = set()  # The right store is back.
    assert await engine.collector.collect() == 0
    oracle.gone = set(range(1, 121))
    assert await engine.collector.collect() == 0, "two passes that are not one after the other prove nothing"
    oracle.gone = set(range(1, 300))
    assert await engine.collector.collect() == 120
    assert await engine.collector.collect() == 179


@pytest.mark.parametrize(("ledgers", "gone"), [(300, 100), (1100, 110)])
async def test_a_deletion_that_is_small_in_number_or_in_share_waits_for_nothing(
    engine: Engine, oracle: ToldOracle, ledgers: int, gone: int
) -> None:
    await hold(engine, ledgers)
    assert engine.collector is not None
    oracle.gone = set(range(1, gone + 1))
    assert await engine.collector.collect() == gone


# --- looking for a job ----------------------------------------------------------------------------

FILES = [FileRow(-number, MIB, runs=1, run_bytes=MIB, live_bytes=MIB) for number in range(1, 20_001)]


async def test_other_tasks_run_while_compaction_looks_at_many_files(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await trio.lowlevel.checkpoint()

    async def logs() -> list[FileRow]:
        await trio.lowlevel.checkpoint()
        return FILES

    monkeypatch.setattr(engine.compactor._catalogue, "logs", logs)
    nursery.start_soon(tick)
    await trio.lowlevel.checkpoint()
    before = ticks
    assert await engine.compactor.compact(is_eventual=True) == 0
    assert ticks - before >= len(FILES) // 512
    assert engine.compactor.space.entry_logs == len(FILES)
    nursery.cancel_scope.cancel()


async def test_a_file_that_is_held_while_compaction_looks_at_others_is_left_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    dead = FileRow(-1, MIB, runs=1, run_bytes=MIB)
    compactor = engine.compactor
    looks: list[int] = []

    async def logs() -> list[FileRow]:
        await trio.lowlevel.checkpoint()
        looks.append(len(looks))
        return [dead, *FILES[1:]]

    async def hold() -> None:
        for _ in range(len(FILES) // 512 + 20):
            await trio.lowlevel.checkpoint()
        compactor.hold(dead.file)

    monkeypatch.setattr(compactor._catalogue, "logs", logs)
    nursery.start_soon(hold)
    assert await compactor._next_job(is_eventual=True) is None
    assert len(looks) == 2, "it had found the file before that was held"
