"""Without the journal's copy: adds are acknowledged from memory, flushed sorted, and lost in a crash before
that; keys, fences and marks are not. A stop that flushed everything is told from one that did not."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from storing import KEY, OTHER_KEY, SMALL, Crash, add, add_frame, opened, payloads, read, read_all
from trio.testing import wait_all_tasks_blocked

from bookie.core.journal import SegmentImage
from bookie.core.loss_marks import LossMarks
from bookie.core.rows import Row
from bookie.storage.disk.loss_marks import LossMarkStore, read_marks
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.forgetting import Forgetter
from bookie.storage.engine.ledgers import LedgerTable
from bookie.storage.engine.opening import open_engine
from bookie.storage.engine.write_cache import CachedArena
from bookie.storage.entrylog.file_pool import FilePool
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.index.index import MemoryIndex, MemoryIndexes
from ledgerlog.errors import DiskFull, StorageError
from ledgerlog.wire.frame import Status
from tests.waiting import PATIENCE_S

PATH = "/data/b1"
UNSYNCED = attrs.evolve(SMALL, journal_write_data=False, write_cache_age_s=1000.0)


class Machine:
    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.indexes = MemoryIndexes()

    @asynccontextmanager
    async def running(self, config: object = UNSYNCED, *, highest: int = 9) -> AsyncIterator[Engine]:
        """Open the engine, with phase one if necessary, for a cluster whose highest ledger is ``highest``."""
        async with opened(PATH, self.disk, self.indexes) as directory:
            found = await read_marks(self.disk, PATH)
            kept = LossMarkStore(self.disk, PATH, found or LossMarks(is_unclean=True))
            if kept.now.is_unclean:
                await kept.change(lambda now: now.after_loss(highest))
            async with open_engine(directory, config, marks=kept) as engine:
                yield engine

    async def marks(self) -> LossMarks | None:
        return await read_marks(self.disk, PATH)

    @asynccontextmanager
    async def crashing(self, config: object = UNSYNCED, *, highest: int = 9) -> AsyncIterator[Engine]:
        """The same, and the process is killed at the end of the body."""
        with contextlib.suppress(Crash):
            async with self.running(config, highest=highest) as engine:
                yield engine
                raise Crash


async def test_entries_stay_readable_if_the_run_before_them_came_later_and_leaves_memory_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compaction would join the two runs under the row of the first one, which readers pass over while that
    run is in memory."""
    forget = Forgetter.forget
    go_on = trio.Event()
    go_on.set()

    async def slow_forget(self: Forgetter, resident: CachedArena) -> None:
        await go_on.wait()
        await forget(self, resident)

    monkeypatch.setattr(Forgetter, "forget", slow_forget)
    config = attrs.evolve(UNSYNCED, merge_width=2)
    async with Machine().running(config) as engine, trio.open_nursery() as nursery:
        add(engine, 7, [100])
        add(engine, 7, range(1, 10))
        await engine.flush()
        add(engine, 7, [0], recovery=True)
        go_on = trio.Event()
        nursery.start_soon(engine.flush)
        await wait_all_tasks_blocked()
        assert engine.statistics()["caches_flushed"] == 2
        await engine.compactor.compact(is_eventual=True)
        assert (await read_all(engine, 7)).keys() == {*range(10), 100}
        go_on.set()


async def test_all_but_the_first_add_of_a_ledger_are_acknowledged_without_a_sync() -> None:
    async with Machine().running() as engine:
        first = add(engine, 7, [0])
        assert first > engine.durable_position, "it brings the key, which is synced"
        assert add(engine, 7, [1]) == first, "and so nothing of the ledger is acknowledged before"
        await engine.wait_durable(first)
        syncs = engine.statistics()["syncs"]
        for entry_id in range(2, 50):
            assert add(engine, 7, [entry_id]) <= engine.durable_position
        assert engine.statistics()["syncs"] == syncs
        assert await read_all(engine, 7) == payloads(7, range(50)), "and all may be read at once"


async def test_what_was_not_flushed_is_lost_in_a_crash_and_the_bookie_knows_it() -> None:
    machine = Machine()
    async with machine.crashing() as engine:
        await engine.wait_durable(add(engine, 7, [0]))
        add(engine, 7, range(1, 30))
    assert await machine.marks() == LossMarks(is_unclean=True)
    with pytest.raises(StorageError, match="may have lost acknowledged entries"):
        async with opened(PATH, machine.disk, machine.indexes) as directory, open_engine(directory, UNSYNCED):
            pass
    async with machine.running() as engine:
        assert engine.loss_marks.now == LossMarks().after_loss(9)
        found = await read(engine, 7)
        assert found.status is Status.UNKNOWN, "nothing is denied"
        assert list(found.entries.ids) == [0], "what brought the key was synced"
        assert engine.add(*add_frame(7, [30])) is Status.FENCED


async def test_a_clean_stop_loses_nothing_and_says_so() -> None:
    machine = Machine()
    async with machine.running() as engine:
        for entry_id in range(200):
            await engine.wait_room()
            await engine.wait_durable(add(engine, 7, [entry_id]))
        during = await machine.marks()
        assert during is not None
        assert during.is_unclean, "from before the first request on"
    assert await machine.marks() == LossMarks()
    async with machine.running() as engine:
        assert await read_all(engine, 7) == payloads(7, range(200))


async def test_what_was_flushed_outlives_a_crash() -> None:
    machine = Machine()
    async with machine.crashing() as engine:
        for entry_id in range(40):
            await engine.wait_durable(add(engine, 7, [entry_id]))
        await engine.flush()
        for entry_id in range(40, 60):
            add(engine, 7, [entry_id])
    async with machine.running() as engine:
        found = await read(engine, 7)
        assert list(found.entries.ids) == list(range(40))


async def test_fences_and_keys_are_synced_all_the_same() -> None:
    machine = Machine()
    async with machine.crashing(highest=-1) as engine:
        await engine.wait_durable(add(engine, 7, [0]))
        assert (await engine.fence(7, KEY)).status is Status.OK
        assert (await engine.fence(8, KEY)).status is Status.OK
        add(engine, 8, [0], recovery=True)
    async with machine.running(highest=-1) as engine:
        assert engine.loss_marks.now.fenced_through == -1, "no mark helps here"
        assert engine.add(*add_frame(7, [1])) is Status.FENCED
        assert engine.add(*add_frame(8, [1])) is Status.FENCED
        assert engine.add(*add_frame(7, [1], key=OTHER_KEY, recovery=True)) is Status.UNAUTHORIZED


async def test_full_arenas_are_flushed_beside_adds_and_everything_stays_readable() -> None:
    machine = Machine()
    async with machine.running() as engine:
        ids = dict.fromkeys(range(5), 0)
        for _ in range(400):
            for ledger_id in ids:
                await engine.wait_room()
                await engine.wait_durable(add(engine, ledger_id, [ids[ledger_id]]))
                ids[ledger_id] += 1
        assert engine.statistics()["caches_flushed"] > 3
        for ledger_id, count in ids.items():
            assert await read_all(engine, ledger_id) == payloads(ledger_id, range(count))
        assert engine.statistics()["unflushed_bytes"] <= UNSYNCED.arenas * UNSYNCED.segment_bytes


async def test_the_same_entry_again_is_fine_and_another_under_its_id_is_a_conflict() -> None:
    async with Machine().running() as engine:
        await engine.wait_durable(add(engine, 7, range(3)))
        add(engine, 7, range(3, 9))
        add(engine, 7, range(5, 12))
        assert engine.add(*add_frame(7, [4], [b"something else"])) is Status.CONFLICT
        await engine.flush()
        add(engine, 7, range(14))
        assert engine.add(*add_frame(7, [4], [b"something else"])) is Status.CONFLICT
        assert await read_all(engine, 7) == payloads(7, range(14))


async def test_a_bookie_with_little_to_do_flushes_what_is_old() -> None:
    machine = Machine()
    async with machine.crashing(attrs.evolve(UNSYNCED, write_cache_age_s=0.02)) as engine:
        await engine.wait_durable(add(engine, 7, [0]))
        add(engine, 7, [1])
        with trio.fail_after(PATIENCE_S):
            while engine.statistics()["caches_flushed"] == 0:  # noqa: ASYNC110 (a task of the engine)
                await trio.sleep(0.005)
    async with machine.running() as engine:
        assert list((await read(engine, 7)).entries.ids) == [0, 1]


async def test_a_stop_that_finds_no_room_for_what_is_in_memory_is_not_clean() -> None:
    machine = Machine()

    async def create(path: str, size: int) -> None:
        raise DiskFull("the disk is full")

    async def run() -> None:
        async with machine.running() as engine:
            await engine.wait_durable(add(engine, 7, [0]))
            add(engine, 7, [1])
            machine.disk.create = create

    with pytest.raises(DiskFull):
        await run()
    after = await machine.marks()
    assert after is not None
    assert after.is_unclean


async def test_after_a_crash_without_the_journals_copy_a_bookie_with_it_is_in_limbo_too() -> None:
    machine = Machine()
    async with machine.crashing() as engine:
        await engine.wait_durable(add(engine, 7, [0]))
        add(engine, 7, range(1, 5))
    async with machine.running(SMALL) as engine:
        assert engine.loss_marks.now.denies_nothing(7)
        assert not engine.loss_marks.now.is_unclean, "from here on a crash loses nothing"
    async with machine.running(SMALL) as engine:
        assert engine.loss_marks.now.denies_nothing(7), "limbo ends by repair alone"


async def test_who_waits_for_a_flush_and_is_cancelled_does_not_interrupt_it() -> None:
    machine = Machine()
    async with machine.running() as engine:
        await engine.wait_durable(add(engine, 7, [0]))
        for entry_id in range(1, 30):
            add(engine, 7, [entry_id])
        with trio.move_on_after(0):
            await engine.flush()
        await engine.flush()
        assert engine.statistics()["caches_flushed"] == 1, "it was begun once and went on"
        assert engine.statistics()["unflushed_bytes"] == 0
        assert await read_all(engine, 7) == payloads(7, range(30))


async def test_an_entry_that_moves_from_memory_to_a_log_is_found_in_one_of_the_two() -> None:
    """A read looks into the index first and into memory then; a flush between the two must not fool it."""
    machine = Machine()
    async with machine.running() as engine:
        await engine.wait_durable(add(engine, 7, [0]))
        add(engine, 7, range(1, 4))
        await engine.flush()
        add(engine, 7, range(4, 8))
        (index,) = machine.indexes.indexes.values()
        original = index.scan
        looked, go_on = trio.Event(), trio.Event()

        async def scan(start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
            found = await original(start, stop, floor=floor, limit=limit)
            if not looked.is_set():
                looked.set()
                await go_on.wait()
            return found

        index.scan = scan
        seen: list[int] = []

        async def look() -> None:
            seen.extend((await read(engine, 7, 0, 7)).entries.ids)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await looked.wait()
            nursery.start_soon(engine.flush)
            # The flush waits for the read before it lets go of the memory, not before it forgets the runs.
            await wait_all_tasks_blocked()
            go_on.set()
        assert seen == list(range(8))


async def test_who_found_runs_in_memory_reads_them_there_before_their_bytes_go() -> None:
    pool = FilePool(MemoryDisk(), str)
    ledgers = LedgerTable(Catalogue(MemoryIndex()), maximum=1, durable=lambda: 0)
    forgetter, over = Forgetter(ledgers, pool), trio.Event()
    arena = CachedArena(SegmentImage(2**62, b"", memoryview(bytearray(8))))

    async def forget() -> None:
        await forgetter.forget(arena)
        over.set()

    async with trio.open_nursery() as nursery:
        with pool.reading():
            nursery.start_soon(forget)
            await wait_all_tasks_blocked()
            assert forgetter.given_up == 1, "who has looked into the index before looks again"
            assert not over.is_set()
        await over.wait()
