"""Scrubbing and restoring inside the storage: what is rotten is named, held, and replaced by its first id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
import trio
from storing import SMALL, add_durably, add_frame, payload_of, payloads, read, read_all, running
from trio.testing import wait_all_tasks_blocked

from bookie.core import rows
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.engine import Engine
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.errors import DiskFull, StorageError
from ledgerlog.limits import MIB
from ledgerlog.testing.faulty_disk import DiskCall, FaultyDisk, GoOn
from ledgerlog.wire.entries import Entries
from ledgerlog.wire.frame import Status

STAYS = attrs.evolve(SMALL, small_run_bytes=0, scrub=False)
SORTED = attrs.evolve(STAYS, small_run_bytes=20_000)
L = 1


def copies(ids: Sequence[int]) -> Entries:
    return add_frame(L, ids)[1]


async def fill(disk: MemoryDisk, indexes: MemoryIndexes) -> None:
    """Runs of three entries each, in segments that are in memory no more."""
    for begin in (0, 15):
        async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
            for first in range(begin, begin + 15, 3):
                await add_durably(engine, L, range(first, first + 3))


def rot(disk: MemoryDisk, entry_id: int) -> Callable[[], None]:
    """Change a byte of the entry; what is returned changes it back."""
    needle = payload_of(L, entry_id)
    ((content, at),) = [(c, c.find(needle)) for c in disk.files.values() if needle in c]

    def turn() -> None:
        content[at] ^= 0xFF

    turn()
    return turn


async def check(engine: Engine, *, but: Sequence[int] = ()) -> None:
    for entry_id in range(30):
        result = await read(engine, L, entry_id, entry_id)
        if entry_id in but:
            assert result.status is Status.CORRUPT
        else:
            assert (result.status, result.entries.payloads()) == (Status.OK, [payload_of(L, entry_id)])


async def test_rotten_runs_are_named_and_restored_ones_take_their_rows_even_put_together() -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    await fill(disk, indexes)
    for entry_id in (4, 6, 20):
        rot(disk, entry_id)
    async with running("b", SORTED, disk=disk, indexes=indexes) as engine:
        assert await engine.scrubber.scrub() == 3
        assert sorted(engine.scrubber.rotten) == [(L, 3), (L, 6), (L, 18)]
        await check(engine, but=(4, 6, 20))
        for (_, first), rotten in sorted(engine.scrubber.rotten.items()):
            assert await engine.scrubber.restore(rotten, [copies(range(first, first + 3))], lac=-1, lafr=-1)
        assert not engine.scrubber.rotten
        await check(engine)
        for number in range(40):  # They leave memory, sorted and put together.
            await add_durably(engine, 2, [number], payloads=[bytes(4000)])
        assert await engine.scrubber.scrub() == 0
        await check(engine)
    async with running("b", SORTED, disk=disk, indexes=indexes) as engine:
        assert await engine.scrubber.scrub() == 0
        await check(engine)


@pytest.mark.parametrize("stride", [1, 2])
async def test_restored_runs_that_a_crash_kept_from_the_index_are_read_after_the_next_start(
    stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has the copies as one run. The second damaged run has a row of its own."""
    disk, indexes = MemoryDisk(), MemoryIndexes()
    ids = range(0, 15 * stride, stride)
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        for at in range(0, 15, 3):
            await add_durably(engine, L, ids[at : at + 3])
    rot(disk, ids[4])
    rot(disk, ids[6])

    async def restore_and_crash() -> None:
        async with running("b", SORTED, disk=disk, indexes=indexes) as engine:
            await engine.scrubber.scrub()
            assert sorted(engine.scrubber.rotten) == [(L, ids[3]), (L, ids[6])]
            for (_, first), rotten in sorted(engine.scrubber.rotten.items()):
                at = ids.index(first)
                assert await engine.scrubber.restore(rotten, [copies(ids[at : at + 3])], lac=-1, lafr=-1)
            index = indexes.indexes["b/index"]
            original = index.write

            async def write(batch: Sequence[rows.Change]) -> None:
                if rows.run_key(L, ids[3]) in dict(batch):
                    raise StorageError("power cut")
                await original(batch)

            monkeypatch.setattr(index, "write", write)
            for number in range(40):
                await add_durably(engine, 2, [number], payloads=[bytes(4000)])

    with pytest.raises(StorageError, match="power cut"):
        await restore_and_crash()
    monkeypatch.undo()
    async with running("b", SORTED, disk=disk, indexes=indexes) as engine:
        assert await read_all(engine, L) == payloads(L, ids)
        for entry_id in ids:
            result = await read(engine, L, entry_id, entry_id)
            assert (result.status, result.entries.payloads()) == (Status.OK, [payload_of(L, entry_id)])
        assert await engine.scrubber.scrub() == 0


async def test_a_run_restored_in_parts_begins_with_its_last_part() -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    await fill(disk, indexes)
    rot(disk, 4)
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await engine.scrubber.scrub()
        (rotten,) = engine.scrubber.rotten.values()
        assert await engine.scrubber.restore(rotten, [copies([3]), copies([4, 5])], lac=-1, lafr=-1)
        firsts = [run.first for run in engine._journal.active.runs if run.ledger_id == L]
        assert firsts == [4, 3]
        await check(engine)
        await engine.flush()
        await check(engine)
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        assert await engine.scrubber.scrub() == 0
        await check(engine)


async def rotten_in_two_parts() -> tuple[MemoryDisk, MemoryIndexes, list[Entries]]:
    """A bookie with a rotten run, and the copies that replace it."""
    disk, indexes = MemoryDisk(), MemoryIndexes()
    await fill(disk, indexes)
    rot(disk, 4)
    return disk, indexes, [copies([3]), copies([4, 5])]


async def restored_half(engine: Engine, parts: list[Entries], monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the rotten run. The disk is full after its last part."""
    journal = engine._journal
    append, appended = journal.append, list[int]()

    def append_one(kind: int, body: bytes) -> int | None:
        if appended:
            journal.is_index_stuck = True
            return None
        appended.append(kind)
        return append(kind, body)

    (rotten,) = engine.scrubber.rotten.values()
    with monkeypatch.context() as patch:
        patch.setattr(journal, "append", append_one)
        with pytest.raises(DiskFull):
            await engine.scrubber.restore(rotten, parts, lac=-1, lafr=-1)
    journal.is_index_stuck = False
    assert len(parts) > len(appended) == 1
    await journal.wait_durable(journal.commit.newest)


async def restored_rest(engine: Engine, parts: list[Entries]) -> None:
    (rotten,) = engine.scrubber.rotten.values()
    runs = len(engine._journal.active.runs)
    assert await engine.scrubber.restore(rotten, parts, lac=-1, lafr=-1)
    assert len(engine._journal.active.runs) == runs + 1, "the last part is not stored once more"
    await engine.flush()


@pytest.mark.parametrize("is_restarted", [False, True], ids=["same process", "restart"])
@pytest.mark.parametrize("ids", [[3, 4, 5], [30, 34, 36]], ids=["in a row", "with gaps"])
async def test_a_restore_in_parts_that_a_full_disk_stopped_goes_on_later(
    ids: list[int], is_restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    await fill(disk, indexes)
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        if ids[0] == 30:
            await add_durably(engine, L, ids)
    parts = [copies(ids[:1]), copies(ids[1:])]
    rot(disk, ids[1])
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await engine.scrubber.scrub()
        await restored_half(engine, parts, monkeypatch)
        if not is_restarted:
            await restored_rest(engine, parts)
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        if is_restarted:
            assert await engine.scrubber.scrub() == 1
            await restored_rest(engine, parts)
        assert await read_all(engine, L) == payloads(L, sorted({*range(30), *ids}))
        assert await engine.scrubber.scrub() == 0
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        assert await read_all(engine, L) == payloads(L, sorted({*range(30), *ids}))
        assert await engine.scrubber.scrub() == 0


async def test_a_restore_goes_on_while_the_segment_of_its_first_try_is_in_memory_and_in_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flushed segment stays in memory until another one needs its room. On a quiet bookie, that is long."""
    disk, indexes, parts = await rotten_in_two_parts()
    async with running("b", attrs.evolve(SORTED, arenas=3), disk=disk, indexes=indexes) as engine:
        await engine.scrubber.scrub()
        segment = engine._journal.active.number
        await restored_half(engine, parts, monkeypatch)
        while not engine._checkpointer.flushes:
            await add_durably(engine, 2, [engine.last_durable(2) + 1], payloads=[bytes(4000)])
            await wait_all_tasks_blocked()
        await engine.flush()
        assert segment in engine._journal.residents
        assert engine.compactor._pool.path_of(segment) not in disk.files
        await restored_rest(engine, parts)
        for entry_id in range(15):
            result = await read(engine, L, entry_id, entry_id)
            assert (result.status, result.entries.payloads()) == (Status.OK, [payload_of(L, entry_id)])


async def test_a_restore_may_look_at_a_part_while_compaction_rewrites_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, indexes, parts = await rotten_in_two_parts()
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await engine.scrubber.scrub()
        await restored_half(engine, parts, monkeypatch)
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine, trio.open_nursery() as nursery:
        await engine.scrubber.scrub()
        (rotten,) = engine.scrubber.rotten.values()
        key = rows.run_key(L, 4)
        value = indexes.indexes["b/index"].get_now(key)
        assert value is not None
        stored = rows.decode_run(key, value, "b/index")
        read_many, reading, go_on = disk.read_many, trio.Event(), trio.Event()

        async def read_slowly(requests: Any) -> list[list[bytes]]:
            monkeypatch.undo()
            reading.set()
            await go_on.wait()
            return await read_many(requests)

        async def restore() -> None:
            assert await engine.scrubber.restore(rotten, parts, lac=-1, lafr=-1)

        async def compact() -> None:
            engine.compactor.suspect(stored.file)
            await engine.compactor.compact(is_eventual=False)

        monkeypatch.setattr(disk, "read_many", read_slowly)
        nursery.start_soon(restore)
        await reading.wait()
        nursery.start_soon(compact)
        await wait_all_tasks_blocked()
        go_on.set()
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await check(engine)
        assert await engine.scrubber.scrub() == 0


async def test_no_part_of_what_is_restored_takes_the_place_of_another_run() -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await add_durably(engine, L, [0, 2, 4, 6])
        await add_durably(engine, L, [3, 5, 7])
    rot(disk, 2)
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await engine.scrubber.scrub()
        (rotten,) = engine.scrubber.rotten.values()
        # A bookie's share of these may be more than this run has of it.
        assert not await engine.scrubber.restore(rotten, [copies([0, 2]), copies([3, 4, 6])], lac=-1, lafr=-1)
        await engine.flush()
        for entry_id in (0, 3, 5, 7):
            result = await read(engine, L, entry_id, entry_id)
            assert (result.status, result.entries.payloads()) == (Status.OK, [payload_of(L, entry_id)])
        assert await engine.scrubber.restore(rotten, [copies([0, 2, 3, 4, 6])], lac=-1, lafr=-1)


async def test_the_file_of_a_rotten_run_is_held_until_its_copies_are_indexed() -> None:
    """What could not be read for a moment, and was put together with others, must not lose its row."""
    disk, indexes = MemoryDisk(), MemoryIndexes()
    await fill(disk, indexes)
    heal = rot(disk, 1)
    moving = attrs.evolve(STAYS, small_run_bytes=20_000, merge_width=2)
    async with running("b", moving, disk=disk, indexes=indexes) as engine:
        await engine.scrubber.scrub()
        (rotten,) = engine.scrubber.rotten.values()
        file = rotten.run.file
        heal()  # The damage was not on the disk, but on the way from it.
        assert not engine.compactor.holds(file)
        assert await engine.scrubber.restore(rotten, [copies(range(3))], lac=-1, lafr=-1)
        assert engine.compactor.holds(file)
        await engine.compactor.compact(is_eventual=True)
        for number in range(40):
            await add_durably(engine, 2, [number], payloads=[bytes(4000)])
        assert not engine.compactor.holds(file)
        await engine.compactor.compact(is_eventual=True)
        await check(engine)


async def test_a_file_stays_held_while_copies_are_made_though_an_add_replaced_another_run_of_it() -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        compactor = engine.compactor
        async with compactor.holding(1):
            compactor.hold(1)
            before = engine.statistics()["segment"]
            while engine.statistics()["segment"] < before + 2:  # What the journal held then is indexed.
                await add_durably(engine, 2, [engine.last_durable(2) + 1], payloads=[bytes(4000)])
            await engine.flush()
            assert compactor.holds(1)
        assert compactor.holds(1), "the last copies may have come just now"
        before = engine.statistics()["segment"]
        while engine.statistics()["segment"] < before + 1:
            await add_durably(engine, 2, [engine.last_durable(2) + 1], payloads=[bytes(4000)])
        await engine.flush()
        assert not compactor.holds(1)


async def test_a_file_is_held_before_a_job_under_way_is_waited_for() -> None:
    """Otherwise the job could begin between the two, and join runs that are being restored."""
    disk, indexes = MemoryDisk(), MemoryIndexes()
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        compactor, entered = engine.compactor, trio.Event()

        async def hold() -> None:
            async with compactor.holding(1):
                entered.set()

        async with trio.open_nursery() as nursery:
            async with compactor._lock:  # A job under way sees the file like this.
                nursery.start_soon(hold)
                await wait_all_tasks_blocked()
                assert compactor.holds(1)
                assert not entered.is_set()
            await entered.wait()


async def test_what_the_index_names_no_more_is_not_restored() -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    await fill(disk, indexes)
    rot(disk, 4)
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await engine.scrubber.scrub()
        (rotten,) = engine.scrubber.rotten.values()
        indexes.indexes["b/index"].apply([rows.encode_run(rotten.run._replace(offset=1))])
        assert not await engine.scrubber.restore(rotten, [copies(range(3, 6))], lac=-1, lafr=-1)
        assert not engine.scrubber.rotten


async def test_a_scrub_reads_whole_files_no_faster_than_it_may(autojump_clock: object) -> None:
    read_at: Counter[float] = Counter()

    async def note(call: DiskCall, go_on: GoOn) -> Any:
        if call.verb == "read":
            read_at[trio.current_time()] += call.size
        return await go_on()

    disk, indexes = FaultyDisk(note), MemoryIndexes()
    slow = attrs.evolve(
        STAYS, segment_bytes=8 * MIB, frame_bytes_max=MIB, scrub_bytes_per_s=MIB, log_bytes_max=16 * MIB
    )
    async with running("b", slow, disk=disk, indexes=indexes) as engine:
        for first in range(60):
            await add_durably(engine, L, [first], payloads=[bytes(100_000)])
    async with running("b", slow, disk=disk, indexes=indexes) as engine:
        read_at.clear()
        begun = trio.current_time()
        assert await engine.scrubber.scrub() == 0
        elapsed = trio.current_time() - begun
    assert sum(read_at.values()) > 6 * MIB
    assert max(read_at.values()) <= 2 * MIB + 2 * 100_000, "a second's worth and what is under way"
    assert elapsed >= sum(read_at.values()) / MIB - 3
