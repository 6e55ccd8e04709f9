"""If a process has no descriptor left, nothing fails, and everything goes on once there are some."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import trio

from bookie.core.rows import Change
from bookie.storage.disk.ballast import Ballast
from bookie.storage.disk.descriptors import (
    CONNECTIONS_MIN,
    RESERVE,
    OutOfDescriptors,
    SpareDescriptor,
    connections_within,
)
from bookie.storage.disk.real import RealDisk
from bookie.storage.index.kinds import StoredIndexes
from bookie.storage.index.patient import PatientIndex
from bookie.storage.index.stored import Database, StoredIndex
from bookie.storage.index.tally import Tally
from tests.index_kinds import KINDS_HERE
from tests.waiting import PATIENCE_S


@contextlib.contextmanager
def no_descriptors() -> Iterator[Callable[[], None]]:
    """While the body runs, no file can be opened in this process.

    A thread that closes a file gives a descriptor back. The body gets a function that takes such descriptors
    too.
    """
    gc.collect()  # Garbage of earlier tests may hold descriptors, and would give them back in the middle.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    # Threads and sockets of the event loop that come later would want some, too.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))

    def take_all() -> None:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))

    try:
        take_all()
        yield take_all
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def until_logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    with trio.fail_after(PATIENCE_S):
        while text not in caplog.text:  # noqa: ASYNC110  # A log cannot be waited for.
            await trio.sleep(0.01)


async def create(disk: RealDisk, path: str) -> None:
    disk.close(await disk.create(f"{path}/new", 4096))


async def open_to_read(disk: RealDisk, path: str) -> None:
    disk.close(await disk.open(f"{path}/old"))


async def open_to_write(disk: RealDisk, path: str) -> None:
    disk.close(await disk.open(f"{path}/old", for_writing=True))


async def write_file(disk: RealDisk, path: str) -> None:
    await disk.write_file(f"{path}/small", b"text")
    assert await disk.read_file(f"{path}/small", 9) == b"text"


async def read_file(disk: RealDisk, path: str) -> None:
    assert await disk.read_file(f"{path}/old", 3) == b"old"


async def list_directory(disk: RealDisk, path: str) -> None:
    assert await disk.list_directory(path) == ["old"]


async def sync_directory(disk: RealDisk, path: str) -> None:
    await disk.sync_directory(path)


async def lock_directory(disk: RealDisk, path: str) -> None:
    (await disk.lock_directory(path)).release()


async def remove_directory(disk: RealDisk, path: str) -> None:
    await disk.remove_directory(path)
    await disk.make_directory(path)
    assert await disk.list_directory(path) == []


@pytest.mark.parametrize(
    "use",
    [
        create,
        open_to_read,
        open_to_write,
        write_file,
        read_file,
        list_directory,
        sync_directory,
        lock_directory,
        remove_directory,
    ],
)
async def test_whatever_opens_a_file_waits_for_a_descriptor(
    use: Callable[[RealDisk, str], Awaitable[None]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    nursery: trio.Nursery,
) -> None:
    (tmp_path / "old").write_bytes(b"old")
    disk = RealDisk()
    done = trio.Event()

    async def run() -> None:
        await use(disk, str(tmp_path))
        done.set()

    await trio.to_thread.run_sync(lambda: None)
    with no_descriptors():
        nursery.start_soon(run)
        await until_logged(caplog, "for now: Too many open files")
        assert not done.is_set()
    with trio.fail_after(PATIENCE_S):
        await done.wait()
    await disk.aclose()


async def test_who_cannot_wait_takes_the_spare_descriptor(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    disk = RealDisk()
    for _ in range(3):
        with no_descriptors():
            file = disk.open_now(str(tmp_path / "old"))
            assert disk.read_now(file, 0, 3) == b"old"
            with pytest.raises(OutOfDescriptors):
                disk.open_now(str(tmp_path / "old"))
            disk.close(file)
            disk.close(disk.open_now(str(tmp_path / "old")))
    await disk.aclose()


async def filled_index(path: Path, disk: RealDisk, kind: str) -> StoredIndex:
    index = await StoredIndexes(disk, asked=kind).create(str(path / "index"))
    for number in range(3):
        await index.write([(b"%d" % number, os.urandom(3_000_000))])
    return index


@pytest.mark.parametrize("kind", KINDS_HERE)
async def test_an_index_without_descriptors_is_written_again_when_there_are_some(
    tmp_path: Path, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """More than the store's log holds, so that it needs another, and tables."""
    disk = RealDisk()
    inner = await filled_index(tmp_path, disk, kind)
    index = PatientIndex(inner, Ballast(disk, str(tmp_path), 0), retry_s=0.01)
    rows: dict[bytes, bytes] = {}
    is_enough, done = trio.Event(), trio.Event()

    async def write() -> None:
        while not is_enough.is_set():
            key = b"%d" % (10 + len(rows))
            rows[key] = os.urandom(3_000_000)
            await index.write([(key, rows[key])])
        done.set()

    with no_descriptors() as take_all:
        nursery.start_soon(write)
        with trio.fail_after(PATIENCE_S):
            while "the index cannot be written for now" not in caplog.text:
                take_all()  # The store may close files of earlier writes only now.
                await trio.sleep(0.01)
        is_enough.set()
        assert not done.is_set()
    with trio.fail_after(PATIENCE_S):
        await done.wait()
    await index.aclose()
    again = await StoredIndexes(disk).open(str(tmp_path / "index"))
    assert {key: again.get_now(key) for key in rows} == rows
    await again.aclose()
    await disk.aclose()


class Stuck:
    """A database whose compaction has failed: it takes no batch until it is opened again."""

    def __init__(self, database: Database) -> None:
        self.close = database.close

    def write(self, changes: Sequence[Change], tally: Tally) -> None:
        raise OutOfDescriptors("index/000007: Too many open files")


@pytest.mark.parametrize("kind", KINDS_HERE)
async def test_an_index_whose_compaction_found_no_descriptor_is_opened_again(
    tmp_path: Path, kind: str
) -> None:
    disk = RealDisk()
    inner = await filled_index(tmp_path, disk, kind)
    inner._opened.database = Stuck(inner._opened.database)
    index = PatientIndex(inner, Ballast(disk, str(tmp_path), 0), retry_s=0.01)
    with trio.fail_after(PATIENCE_S):
        await index.write([(b"key", b"value")])
    assert index.get_now(b"key") == b"value"
    await index.aclose()
    await disk.aclose()


def test_a_spare_descriptor_is_for_exhaustion_alone() -> None:
    spare = SpareDescriptor()
    calls = 0

    def fail() -> None:
        nonlocal calls
        calls += 1
        raise FileNotFoundError(2, "No such file")

    with pytest.raises(FileNotFoundError):
        spare.lend(fail)
    assert calls == 1
    spare.close()


def test_threads_that_need_the_spare_descriptor_have_it_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second close would close another file that has got this number meanwhile."""
    threads = 4
    spare = SpareDescriptor()
    all_found_none = threading.Barrier(threads)
    users = 0
    outcomes: list[str] = []
    close = os.close

    def close_slowly(descriptor: int) -> None:
        close(descriptor)
        time.sleep(0.01)  # Another thread runs now, if it may.

    monkeypatch.setattr("os.close", close_slowly)

    def lend() -> None:
        found_none = False

        def read() -> None:
            nonlocal found_none, users
            if not found_none:
                found_none = True
                all_found_none.wait(PATIENCE_S)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            users += 1
            time.sleep(0.01)
            assert users == 1
            users -= 1

        try:
            spare.lend(read)
        except Exception as failure:
            outcomes.append(repr(failure))
        else:
            outcomes.append("read")

    running = [threading.Thread(target=lend) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(PATIENCE_S)
    spare.close()
    assert outcomes == ["read"] * threads


def test_a_spare_descriptor_that_was_closed_is_not_taken_again() -> None:
    before = len(os.listdir("/proc/self/fd"))
    spare = SpareDescriptor()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    spare.close()
    spare.keep()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("limit", "connections"),
    [(RESERVE + CONNECTIONS_MIN, CONNECTIONS_MIN), (1024, 1024 - RESERVE), (2**20, 2048), (2**31, 2048)],
)
def test_connections_get_what_the_reserve_leaves(limit: int, connections: int) -> None:
    assert connections_within(limit, 2048) == connections
