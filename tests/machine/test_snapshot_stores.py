"""Both snapshot stores keep one contract, and each keeps some rules of its own."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import ledgerlog
from ledgerlog.errors import LedgerLogError, LedgerNotFound, StorageError
from ledgerlog.machine import directory, snapshots
from ledgerlog.machine.directory import DirectorySnapshots
from ledgerlog.machine.snapshots import LedgerSnapshots, SnapshotStore
from ledgerlog.model.ledger import MetadataCorrupt

STORES = ["directory", "ledgers"]


@asynccontextmanager
async def opened(kind: str, tmp_path: Path) -> AsyncIterator[SnapshotStore]:
    if kind == "directory":
        yield DirectorySnapshots(tmp_path / "a" / "snapshots")
        return
    async with ledgerlog.connect("memory:") as cluster:
        yield LedgerSnapshots(cluster)


def stream(size: int, piece: int = 1000) -> Iterator[bytes]:
    for at in range(0, size, piece):
        yield bytes((at + n) % 251 for n in range(min(piece, size - at)))


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("size", [0, 1, 262_144, 5_000_000])
async def test_what_is_saved_is_loaded(kind: str, size: int, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as store:
        info = await store.save("log", 3, 17, stream(size, 100_000))
        assert (info.next_offset, info.size) == (17, size)
        assert await store.find(3) == [info]
        assert await store.load(info) == b"".join(stream(size, 100_000))


@pytest.mark.parametrize("kind", STORES)
async def test_snapshots_are_found_newest_first_and_by_log(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as store:
        assert await store.find(3) == []
        for incarnation, offset in ((3, 10), (3, 30), (4, 40), (3, 20)):
            await store.save("log", incarnation, offset, [b"x"])
        assert [info.next_offset for info in await store.find(3)] == [30, 20, 10]
        await store.prune(3, 2)
        assert [info.next_offset for info in await store.find(3)] == [30, 20]
        assert [info.next_offset for info in await store.find(4)] == [40]
        await store.prune(5, 2)


@pytest.mark.parametrize("kind", STORES)
async def test_what_fails_in_the_middle_is_not_found(kind: str, tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield bytes(5_000_000)
        raise KeyError("the machine's own fault")

    async with opened(kind, tmp_path) as store:
        with pytest.raises(KeyError):
            await store.save("log", 3, 10, broken())
        assert await store.find(3) == []
        with trio.move_on_after(0) as scope:
            await store.save("log", 3, 10, stream(1000))
        assert scope.cancelled_caught
        assert await store.find(3) == []
        await store.save("log", 3, 20, [b"x"])
        await store.prune(3, 2)
        assert [info.next_offset for info in await store.find(3)] == [20]


@pytest.mark.parametrize("kind", STORES)
async def test_a_snapshot_that_is_too_large_to_be_loaded_is_not_saved(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "REPLICA_SNAPSHOT_BYTES_MAX", 10_000)
    async with opened(kind, tmp_path) as store:
        largest = await store.save("log", 3, 10, stream(10_000))
        with pytest.raises(StorageError, match="more than 10000 bytes"):
            await store.save("log", 3, 20, stream(10_001))
        await store.prune(3, 1)
        assert await store.find(3) == [largest]
        assert await store.load(largest) == b"".join(stream(10_000))


@pytest.mark.parametrize("kind", STORES)
async def test_savers_at_once_all_succeed(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as store:
        async with trio.open_nursery() as nursery:
            for offset in range(8):
                nursery.start_soon(store.save, "log", 3, offset, [b"x"])
        assert [info.next_offset for info in await store.find(3)] == list(range(7, -1, -1))


async def test_a_directory_keeps_what_is_not_its_own_and_sweeps_what_a_crash_left(tmp_path: Path) -> None:
    store = DirectorySnapshots(tmp_path)
    await store.save("log", 3, 10, [b"x"])
    (tmp_path / "letter").write_text("to somebody")
    unfinished = tmp_path / f"snapshot-{3:016x}-{11:016x}.00ff.new"
    unfinished.write_bytes(b"half")
    assert [info.next_offset for info in await store.find(3)] == [10]
    await store.prune(3, 1)
    assert sorted(os.listdir(tmp_path)) == ["letter", f"snapshot-{3:016x}-{10:016x}"]


async def test_a_snapshot_that_is_being_written_is_not_swept_by_another_replica(tmp_path: Path) -> None:
    one, two = DirectorySnapshots(tmp_path), DirectorySnapshots(tmp_path)
    begun: list[int] = []

    async def save() -> None:
        def pieces() -> Iterator[bytes]:
            for number in range(2000):
                begun.append(number)
                yield b"x"

        await one.save("log", 3, 10, pieces())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(save)
        while len(begun) < 10:
            await trio.lowlevel.checkpoint()
        await two.prune(3, 1)
    assert [info.next_offset for info in await two.find(3)] == [10]


async def test_a_directory_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = DirectorySnapshots(tmp_path / "file" / "snapshots")
    with pytest.raises(StorageError, match="snapshots in"):
        await store.save("log", 3, 10, [b"x"])


async def test_a_snapshot_whose_name_may_be_lost_in_a_power_cut_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectorySnapshots(tmp_path / "new" / "snapshots")
    await store.save("log", 3, 10, [b"x"])

    def fail(path: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(directory, "sync_directory", fail)
        with pytest.raises(StorageError):
            await store.save("log", 3, 20, [b"y"])
        with pytest.raises(StorageError):
            await store.save("log", 3, 10, [b"x"])
    (kept,) = await store.find(3)
    assert kept.next_offset == 10, "one of the two that reach offset 10 survives a power cut"
    assert await store.load(kept) == b"x"


async def test_what_a_dead_saver_left_in_ledgers_is_deleted() -> None:
    async with ledgerlog.connect("memory:") as cluster:
        store = LedgerSnapshots(cluster)
        began = trio.Event()

        async def die() -> None:
            with trio.CancelScope(shield=True):

                def pieces() -> Iterator[bytes]:
                    yield bytes(5_000_000)
                    began.set()
                    yield bytes(5_000_000)

                # Leave the list and the ledger as a dead saver leaves them.
                store._drop = nothing
                with pytest.raises(KeyError):
                    await store.save("log", 3, 10, failing(pieces()))

        async def nothing(*_: object) -> None:
            return

        def failing(pieces: Iterator[bytes]) -> Iterator[bytes]:
            yield from pieces
            raise KeyError

        await die()
        assert len(await cluster.ledgers.list()) == 1
        fresh = LedgerSnapshots(cluster)
        assert await fresh.find(3) == []
        info = await fresh.save("log", 3, 11, [b"x"])
        await fresh.prune(3, 1)
        assert await fresh.find(3) == [info]
        assert len(await cluster.ledgers.list()) == 1


async def test_a_saver_that_was_overtaken_and_pruned_fails_and_leaves_nothing() -> None:
    async with ledgerlog.connect("memory:") as cluster:
        store = LedgerSnapshots(cluster)

        async def prune_all() -> None:
            await store.save("log", 3, 20, [b"newer"])
            await store.prune(3, 1)

        done = trio.Event()

        def pieces() -> Iterator[bytes]:
            yield bytes(5_000_000)
            while not done.is_set():
                yield bytes(5_000_000)

        async def save() -> None:
            with pytest.raises((LedgerNotFound, LedgerLogError)):
                await store.save("log", 3, 10, pieces())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(save)
            async with cluster.store.watch("snapshots/0000000000000003") as watch:
                while not await cluster.store.get("snapshots/0000000000000003"):
                    await watch.wait()
            await prune_all()
            done.set()
        assert [info.next_offset for info in await store.find(3)] == [20]
        assert len(await cluster.ledgers.list()) == 1


async def test_a_damaged_list_of_snapshots_is_told() -> None:
    async with ledgerlog.connect("memory:") as cluster:
        await cluster.store.create("snapshots/0000000000000003", b"?")
        with pytest.raises(MetadataCorrupt, match="snapshots of log incarnation 3"):
            await LedgerSnapshots(cluster).find(3)


async def test_a_snapshot_that_is_removed_while_a_directory_is_looked_through_hides_no_other(
    tmp_path: Path,
) -> None:
    store = DirectorySnapshots(tmp_path, shared=True)
    for next_offset in range(1, 8):
        await store.save("log", 3, next_offset, [b"x"])
    # The directory lists this name, but the file is gone: another replica has pruned it.
    (tmp_path / f"snapshot-{3:016x}-{8:016x}").symlink_to(tmp_path / "gone")
    assert [info.next_offset for info in await store.find(3)] == [7, 6, 5, 4, 3, 2, 1]


async def test_whoever_tidies_up_takes_no_file_that_is_just_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectorySnapshots(tmp_path)
    lock = fcntl.flock
    tidied = []

    def tidy_up_first(descriptor: int, operation: int) -> None:
        if not tidied:
            tidied.append(True)
            store._prune(3, 1)  # It finds the file before the writer locks it.
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", tidy_up_first)
    info = await store.save("log", 3, 17, [b"x"])
    assert tidied
    assert await store.find(3) == [info]
    assert await store.load(info) == b"x"
    assert os.listdir(tmp_path) == [info.place]
