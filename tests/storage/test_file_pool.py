"""A file is not removed while a read uses it."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from bookie.storage.disk.disk import FileMissing
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.entrylog.file_pool import FilePool


async def pool_of(count: int) -> tuple[FilePool, MemoryDisk]:
    disk = MemoryDisk()
    for number in range(count):
        await disk.write_file(f"file {number}", b"content of %d" % number)
    return FilePool(disk, lambda file: f"file {file}"), disk


async def test_a_file_is_retired_once_all_reads_that_began_before_are_done() -> None:
    pool, _ = await pool_of(1)
    done = trio.Event()
    async with trio.open_nursery() as nursery:

        async def retire() -> None:
            await pool.retire([0])
            done.set()

        with pool.reading():
            nursery.start_soon(retire)
            await wait_all_tasks_blocked()
            assert not done.is_set()
            assert await pool.read(0, [(0, 7)]) == [b"content"]
        await done.wait()


async def test_reads_that_begin_later_do_not_hold_a_retirement_up() -> None:
    pool, _ = await pool_of(1)
    async with trio.open_nursery() as nursery:
        earlier = pool.reading()
        earlier.__enter__()
        nursery.start_soon(pool.retire, [0])
        await wait_all_tasks_blocked()
        with pool.reading():
            earlier.__exit__(None, None, None)
            await wait_all_tasks_blocked()
            assert not nursery.child_tasks


async def test_several_files_are_read_at_once_and_stay_open_up_to_a_number() -> None:
    pool, disk = await pool_of(100)
    found = await pool.read_many([(number, [(0, 7), (11, 2)]) for number in range(100)])
    assert found == [[b"content", b"%d" % number] for number in range(100)]
    del disk.files["file 99"]
    assert await pool.read(99, [(0, 7)]) == [b"content"], "it is open"
    with pytest.raises(FileMissing):
        await pool.read(100, [(0, 1)])
    pool.close()
    with pytest.raises(FileMissing):
        await pool.read(99, [(0, 7)])
