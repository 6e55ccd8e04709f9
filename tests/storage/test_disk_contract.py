"""Every disk, the fake with faults included, keeps the contract of ``bookie.storage.disk.disk``."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from bookie.core.fullness import DiskSpace
from bookie.storage.disk import real as real_disk
from bookie.storage.disk.disk import Disk, FileMissing
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.disk.real import RealDisk
from ledgerlog.errors import DiskFull, StorageCorrupt, StorageError, StorageLocked
from ledgerlog.testing.faulty_disk import Fails, FaultyDisk


@pytest.fixture(params=["memory", "faulty", "real"])
async def disk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Disk]:
    disk: Disk = {"memory": MemoryDisk, "faulty": FaultyDisk, "real": RealDisk}[request.param]()
    await disk.make_directory(str(tmp_path))
    yield disk
    await disk.aclose()


async def test_a_new_file_reads_as_zeros_in_its_full_size(disk: Disk, tmp_path: Path) -> None:
    file = await disk.create(str(tmp_path / "f"), 16384)
    assert await disk.size(file) == 16384
    assert await disk.read(file, [(0, 16384)]) == [bytes(16384)]
    disk.close(file)


async def test_what_was_written_is_read_back_at_its_place(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    file = await disk.create(path, 16384)
    buffer = await disk.make_buffer(16384)
    buffer[4096:12288] = b"ab" * 4096
    await disk.write_sync(file, 8192, buffer[4096:8192])
    assert disk.read_now(file, 8190, 6) == b"\0\0abab"
    disk.close(file)
    file = await disk.open(path, for_writing=True)
    await disk.write_sync(file, 0, buffer[8192:12288])
    assert await disk.read(file, [(0, 4), (8192, 4), (12286, 4), (16380, 9)]) == [
        b"abab",
        b"abab",
        b"ab\0\0"[:2] + b"\0\0",
        bytes(4),
    ]
    disk.close(file)
    disk.close(file)


async def test_a_buffer_without_memory_is_an_error_of_the_storage() -> None:
    disk = RealDisk()
    with pytest.raises(StorageError, match="no memory for a buffer of"):
        await disk.make_buffer(2**50)
    await disk.aclose()


async def test_the_pages_of_a_new_buffer_are_there(disk: Disk) -> None:
    buffer = await disk.make_buffer(16 * 1024 * 1024)
    assert buffer == bytes(len(buffer))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for at in range(0, len(buffer), 4096):
        buffer[at] = 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < len(buffer) / 4096 / 10


async def test_names_come_and_go(disk: Disk, tmp_path: Path) -> None:
    base = str(tmp_path / "d")
    await disk.make_directory(base)
    await disk.make_directory(base)
    await disk.write_file(f"{base}/b", b"content")
    await disk.write_file(f"{base}/a", b"more")
    assert await disk.list_directory(base) == ["a", "b"]
    await disk.rename(f"{base}/a", f"{base}/b")
    await disk.sync_directory(base)
    assert await disk.list_directory(base) == ["b"]
    assert await disk.read_file(f"{base}/b", 100) == b"more"
    assert await disk.read_file(f"{base}/b", 2) == b"mo"
    await disk.unlink(f"{base}/b")
    with pytest.raises(FileMissing):
        await disk.unlink(f"{base}/b")
    await disk.remove_directory(base)
    await disk.remove_directory(base)
    with pytest.raises(FileMissing):
        await disk.list_directory(base)


async def test_what_is_missing_is_said_to_be_missing(disk: Disk, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(FileMissing):
        await disk.open(missing)
    with pytest.raises(FileMissing):
        disk.open_now(missing)
    with pytest.raises(FileMissing):
        await disk.read_file(missing, 10)


async def test_an_existing_file_is_not_created_over(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    disk.close(await disk.create(path, 4096))
    with pytest.raises(StorageError):
        await disk.create(path, 4096)
    assert await disk.list_directory(str(tmp_path)) == ["f"]


async def test_a_locked_directory_is_refused_until_it_is_released(disk: Disk, tmp_path: Path) -> None:
    lock = await disk.lock_directory(str(tmp_path))
    other = disk if isinstance(disk, MemoryDisk) else RealDisk()
    with pytest.raises(StorageLocked) as caught:
        await other.lock_directory(str(tmp_path))
    if isinstance(disk, RealDisk):
        assert caught.value.pid == os.getpid()
        assert str(os.getpid()) in str(caught.value)
    lock.release()
    lock.release()
    (await other.lock_directory(str(tmp_path))).release()


# --- the real one ---------------------------------------------------------------------------------


@pytest.mark.parametrize("support", ["all", "no O_DIRECT", "neither"])
async def test_writes_fall_back_to_what_the_file_system_supports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, support: str
) -> None:
    if support != "all":
        monkeypatch.setattr(real_disk, "_O_DIRECT", 0)
    if support == "neither":
        monkeypatch.setattr(real_disk, "_RWF_DSYNC", 0)
    disk = RealDisk()
    file = await disk.create(str(tmp_path / "f"), 8192)
    buffer = await disk.make_buffer(4096)
    buffer[:] = b"x" * 4096
    await disk.write_sync(file, 4096, buffer)
    assert await disk.read(file, [(4096, 4096)]) == [bytes(buffer)]
    assert os.listdir(tmp_path) == ["f"], "the trial file is gone"
    disk.close(file)
    await disk.aclose()


async def test_files_and_directories_are_for_their_owner_only(tmp_path: Path) -> None:
    disk = RealDisk()
    await disk.make_directory(str(tmp_path / "d"))
    disk.close(await disk.create(str(tmp_path / "d" / "f"), 4096))
    await disk.write_file(str(tmp_path / "d" / "g"), b"")
    (await disk.lock_directory(str(tmp_path / "d"))).release()
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    for name in ("f", "g", "lock"):
        assert (tmp_path / "d" / name).stat().st_mode & 0o777 == 0o600
    await disk.aclose()


async def test_failures_of_the_system_are_translated_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    disk.close(await disk.create(str(tmp_path / "f"), 4096))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFull, match="No space left"):
        await disk.create(str(tmp_path / "g"), 4096)
    assert os.listdir(tmp_path) == ["f"]

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwritev", broken)
    file = await disk.open(str(tmp_path / "f"), for_writing=True)
    with pytest.raises(StorageError, match="Input/output"):
        await disk.write_sync(file, 0, await disk.make_buffer(4096))
    disk.close(file)
    await disk.aclose()


async def test_a_short_write_is_continued_behind_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    file = await disk.create(str(tmp_path / "f"), 16384)
    buffer = await disk.make_buffer(12288)
    buffer[:] = b"abc" * 4096
    whole = os.pwritev
    calls: list[int] = []

    def short(descriptor: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        calls.append(offset)
        return whole(descriptor, [buffers[0][:4096]], offset, flags)

    monkeypatch.setattr(os, "pwritev", short)
    await disk.write_sync(file, 4096, buffer)
    assert calls == [4096, 8192, 12288]
    assert await disk.read(file, [(4096, 12288)]) == [b"abc" * 4096]
    disk.close(file)
    await disk.aclose()


async def test_a_cancelled_write_is_finished_first(tmp_path: Path) -> None:
    disk = RealDisk()
    file = await disk.create(str(tmp_path / "f"), 8192)
    buffer = await disk.make_buffer(4096)
    buffer[:] = b"z" * 4096
    async with trio.open_nursery() as nursery:

        async def write() -> None:
            await disk.write_sync(file, 0, buffer)

        nursery.start_soon(write)
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    data = disk.read_now(file, 0, 4096)
    assert data in (bytes(4096), bytes(buffer))
    disk.close(file)
    await disk.aclose()


async def test_a_disk_says_how_much_room_there_is_or_that_nothing_bounds_it(
    disk: Disk, tmp_path: Path
) -> None:
    space = await disk.space(str(tmp_path))
    if not isinstance(disk, RealDisk):
        assert space is None
        # A simulated disk's bounds are its platter's.
        bounded: Any = getattr(disk, "platter", disk)
        bounded.capacity_bytes = 10_000
        disk.close(await disk.create(str(tmp_path / "f"), 4096))
        assert await disk.space(str(tmp_path)) == DiskSpace(10_000, 5904)
        with pytest.raises(DiskFull):
            await disk.create(str(tmp_path / "g"), 8192)
    else:
        found = os.statvfs(tmp_path)
        assert space is not None
        assert 0 <= space.free <= space.total <= found.f_blocks * found.f_frsize
        with pytest.raises(StorageError):
            await disk.space(str(tmp_path / "missing"))


async def test_a_call_that_fails_with_an_error_raises_a_copy_of_it() -> None:
    error = StorageCorrupt("/data/entries", 4096, "its checksum does not match")
    disk = FaultyDisk(Fails("create", error=error))
    for _ in range(2):
        with pytest.raises(StorageCorrupt) as caught:
            await disk.create("/data/f", 4096)
        assert caught.value is not error
        assert (str(caught.value), caught.value.path, caught.value.offset) == (
            str(error),
            "/data/entries",
            4096,
        )
