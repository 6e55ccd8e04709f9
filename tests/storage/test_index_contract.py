"""All indexes keep the contract of ``bookie.storage.index.index``, and those on a disk notice what their
stores do not."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.core.rows import Change, Row
from bookie.storage.disk.disk import FileMissing
from bookie.storage.disk.real import RealDisk
from bookie.storage.index.index import Index, Indexes, MemoryIndex, MemoryIndexes
from bookie.storage.index.kinds import StoredIndexes
from bookie.storage.index.tally import Tally
from ledgerlog.errors import DiskFull, StorageCorrupt, StorageError, StorageLocked
from tests.index_kinds import KINDS_HERE

TABLES = {"leveldb": "*.ldb", "rocksdb": "*.sst"}


@pytest.fixture(params=["memory", *KINDS_HERE])
async def indexes(request: pytest.FixtureRequest) -> AsyncIterator[Indexes]:
    if request.param == "memory":
        yield MemoryIndexes()
    else:
        disk = RealDisk()
        yield StoredIndexes(disk, asked=request.param)
        await disk.aclose()


@pytest.fixture(params=KINDS_HERE)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def stored(kind: str) -> AsyncIterator[StoredIndexes]:
    disk = RealDisk()
    yield StoredIndexes(disk, asked=kind)
    await disk.aclose()


def rows_behind_its_back(kind: str, path: str) -> list[Row]:
    """What the store of a closed index has, from its beginning."""
    database = KINDS_HERE[kind].load().open(path, is_new=False)
    rows = list(database.rows_from(b"\0"))
    database.close()
    return rows


def write_behind_its_back(kind: str, path: str, changes: Sequence[Change]) -> None:
    database = KINDS_HERE[kind].load().open(path, is_new=False)
    database.write(changes, Tally())
    database.close()


@pytest.fixture
async def index(indexes: Indexes, tmp_path: Path) -> AsyncIterator[Index]:
    index = await indexes.create(str(tmp_path / "index"))
    yield index
    await index.aclose()


async def test_what_was_written_is_read_and_written_over(index: Index) -> None:
    assert index.get_now(b"a") is None
    await index.write([(b"a", b"1"), (b"b", b"2")])
    await index.write([(b"a", b"3")])
    assert index.get_now(b"a") == b"3"
    assert index.get_now(b"b") == b"2"


async def test_a_range_has_its_rows_in_order_and_the_one_below_it(index: Index) -> None:
    await index.write([(b"r%d" % number, b"v%d" % number) for number in (7, 1, 5, 3, 9)])

    async def keys(start: bytes, stop: bytes, floor: bytes, limit: int = 100) -> list[bytes]:
        rows = index.scan_now(start, stop, floor=floor, limit=limit)
        assert rows == await index.scan(start, stop, floor=floor, limit=limit)
        return [key for key, _ in rows]

    assert await keys(b"r3", b"r8", b"r3") == [b"r3", b"r5", b"r7"]
    assert await keys(b"r3", b"r7", b"r") == [b"r1", b"r3", b"r5"]
    assert await keys(b"r4", b"r5", b"r2") == [b"r3"]
    assert await keys(b"r4", b"r5", b"r4") == []
    assert await keys(b"r2", b"rx", b"r", limit=2) == [b"r1", b"r3", b"r5"]
    assert await keys(b"r1", b"r9", b"a") == [b"r1", b"r3", b"r5", b"r7"]
    assert await keys(b"x", b"z", b"r9") == [b"r9"]


async def test_rows_outlive_closing(indexes: Indexes, tmp_path: Path) -> None:
    path = str(tmp_path / "i")
    index = await indexes.create(path)
    await index.write([(b"a", b"1")])
    await index.aclose()
    index = await indexes.open(path)
    assert index.get_now(b"a") == b"1"
    await index.write([(b"b", b"2")])
    await index.aclose()
    index = await indexes.open(path)
    assert index.get_now(b"b") == b"2"
    await index.aclose()


async def test_an_index_that_is_there_is_not_created_and_one_that_is_not_is_missing(
    indexes: Indexes, tmp_path: Path
) -> None:
    with pytest.raises(FileMissing):
        await indexes.open(str(tmp_path / "i"))
    await (await indexes.create(str(tmp_path / "i"))).aclose()
    with pytest.raises(StorageError):
        await indexes.create(str(tmp_path / "i"))
    await indexes.remove(str(tmp_path / "i"))
    await indexes.remove(str(tmp_path / "i"))
    with pytest.raises(FileMissing):
        await indexes.open(str(tmp_path / "i"))


async def test_an_index_takes_the_place_of_another(indexes: Indexes, tmp_path: Path) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    for path in (old, new):
        index = await indexes.create(path)
        await index.write([(b"path", path.encode())])
        await index.aclose()
    await indexes.replace(new, old)
    index = await indexes.open(old)
    assert index.get_now(b"path") == new.encode()
    await index.aclose()
    with pytest.raises(FileMissing):
        await indexes.open(new)


keys = st.binary(min_size=1, max_size=3).map(lambda key: b"R" + key)


@pytest.mark.parametrize("kind", KINDS_HERE)
@settings(max_examples=15)
@given(
    st.lists(st.lists(st.tuples(keys, st.none() | st.binary(max_size=4)), max_size=8), max_size=6),
    st.lists(st.tuples(keys, keys, keys, st.integers(1, 5)), max_size=20),
)
def test_a_store_answers_as_the_model_does(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    batches: list[list[Change]],
    scans: list[tuple[bytes, bytes, bytes, int]],
) -> None:
    async def main() -> None:
        disk = RealDisk()
        path = tmp_path_factory.mktemp(kind)
        real, model = await StoredIndexes(disk, asked=kind).create(str(path / "i")), MemoryIndex()
        try:
            for batch in batches:
                await real.write(batch)
                await model.write(batch)
            for start, stop, floor, limit in scans:
                low = min(floor, start)
                found = real.scan_now(start, stop, floor=low, limit=limit)
                assert found == model.scan_now(start, stop, floor=low, limit=limit)
                assert real.get_now(start) == model.get_now(start)
        finally:
            await real.aclose()
            await disk.aclose()

    trio.run(main)


async def test_a_batch_that_a_store_lost_without_a_word_is_noticed(
    stored: StoredIndexes, kind: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "i")
    index = await stored.create(path)
    for number in range(5):
        await index.write([(b"k%d" % number, b"v")])
    await index.aclose()
    lost = next(key for key, _ in rows_behind_its_back(kind, path) if key.endswith(b"\3"))
    assert lost.startswith(b"\0tally")
    write_behind_its_back(kind, path, [(lost, None)])
    with pytest.raises(StorageCorrupt, match="batch 3"):
        await stored.open(path)


async def test_a_batch_that_cannot_be_made_is_not_written_in_part(
    stored: StoredIndexes, tmp_path: Path
) -> None:
    path = str(tmp_path / "i")
    index = await stored.create(path)
    with pytest.raises((TypeError, ValueError)):
        await index.write([(b"a", b"1"), (b"b", "not bytes")])
    assert index.get_now(b"a") is None
    await index.aclose()
    await (await stored.open(path)).aclose()


async def test_the_tally_of_batches_does_not_grow_with_the_life_of_a_bookie(
    stored: StoredIndexes, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie.storage.index.tally.KEPT", 8)
    monkeypatch.setattr("bookie.storage.index.tally.STEP", 2)
    path = str(tmp_path / "i")

    async def write(index: Index, numbers: range) -> None:
        for number in numbers:
            await index.write([(b"k%d" % number, b"v")])
        await index.aclose()

    async def without(key: bytes) -> str:
        """What opening says where a row is missing."""
        row = dict(rows_behind_its_back(kind, path))[key]
        write_behind_its_back(kind, path, [(key, None)])
        try:
            await (await stored.open(path)).aclose()
        except StorageCorrupt as damage:
            return str(damage)
        finally:
            write_behind_its_back(kind, path, [(key, row)])
        return ""

    await write(await stored.create(path), range(40))
    await write(await stored.open(path), range(40, 101))
    kept = [key for key, _ in rows_behind_its_back(kind, path) if key.startswith(b"\0tally")]
    assert 8 <= len(kept) < 8 + 2
    for key in kept[:-1]:
        assert "is missing" in await without(key)
    assert "batch 1 of the index is missing" in await without(b"\0since")
    assert len(kept) == 9, "so the newest may be one that was being written when the power went"
    assert not await without(kept[-1])
    index = await stored.open(path)
    assert index.get_now(b"k7") == b"v"
    await index.aclose()


async def test_the_files_of_an_index_are_in_a_directory_that_only_the_owner_enters(
    stored: StoredIndexes, tmp_path: Path
) -> None:
    await (await stored.create(str(tmp_path / "i"))).aclose()
    assert (tmp_path / "i").stat().st_mode & 0o777 == 0o700


async def test_an_index_that_is_open_is_not_opened_a_second_time(
    stored: StoredIndexes, tmp_path: Path
) -> None:
    index = await stored.create(str(tmp_path / "i"))
    with pytest.raises(StorageLocked, match=f"{tmp_path}/i is in use by another process"):
        await stored.open(str(tmp_path / "i"))
    await index.aclose()


class WatchedDatabase:
    """A database of rocksdict that notes which calls write."""

    def __init__(self, database: object) -> None:
        self._database = database
        self.calls: list[object] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(self, *arguments: object) -> None:
        self._database.write(*arguments)
        self.calls.append("write")

    def flush_wal(self, sync: bool) -> None:
        self._database.flush_wal(sync)
        self.calls.append(("flush_wal", sync))


@pytest.mark.skipif("rocksdb" not in KINDS_HERE, reason="there is no rocksdict here")
async def test_rocksdb_has_synced_a_batch_when_its_write_returns(tmp_path: Path) -> None:
    disk = RealDisk()
    index = await StoredIndexes(disk, asked="rocksdb").create(str(tmp_path / "i"))
    inner = index._opened.database
    inner._database = watched = WatchedDatabase(inner._database)
    for number in range(2):
        await index.write([(b"%d" % number, b"v")])
    assert watched.calls == ["write", ("flush_wal", True)] * 2
    await index.aclose()
    await disk.aclose()


@pytest.mark.skipif("rocksdb" not in KINDS_HERE, reason="there is no rocksdict here")
async def test_a_batch_whose_sync_found_no_room_counts_once_when_it_is_written_again(tmp_path: Path) -> None:
    class Full(WatchedDatabase):
        def flush_wal(self, sync: bool) -> None:
            raise Exception(f"IO error: While fdatasync: {os.strerror(errno.ENOSPC)}")

    disk = RealDisk()
    indexes = StoredIndexes(disk, asked="rocksdb")
    index = await indexes.create(str(tmp_path / "i"))
    await index.write([(b"a", b"1")])
    inner = index._opened.database
    inner._database = Full(inner._database)
    with pytest.raises(DiskFull):
        await index.write([(b"a", b"2"), (b"b", b"2")])
    await index.write([(b"a", b"2"), (b"b", b"2")])
    await index.aclose()
    again = await indexes.open(str(tmp_path / "i"))  # Its tally has no gap.
    assert (again.get_now(b"a"), again.get_now(b"b")) == (b"2", b"2")
    await again.write([(b"a", b"3")])
    await again.aclose()
    await disk.aclose()


@pytest.mark.skipif("rocksdb" not in KINDS_HERE, reason="there is no rocksdict here")
async def test_a_batch_for_which_rocksdb_has_no_buffer_is_tried_again(tmp_path: Path) -> None:
    class Stalled(WatchedDatabase):
        def write(self, *arguments: object) -> None:
            self.calls.append("write")
            if len(self.calls) < 3:
                raise Exception("Result incomplete: Write stall")
            self._database.write(*arguments)

    disk = RealDisk()
    index = await StoredIndexes(disk, asked="rocksdb").create(str(tmp_path / "i"))
    inner = index._opened.database
    inner._database = watched = Stalled(inner._database)
    await index.write([(b"a", b"v")])
    assert watched.calls == ["write"] * 3 + [("flush_wal", True)]
    assert index.get_now(b"a") == b"v"
    await index.aclose()
    await disk.aclose()


async def test_a_refreshed_index_has_its_rows_and_takes_batches(index: Index) -> None:
    await index.write([(b"a", b"1")])
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(index.write, [(b"b%d" % number, b"2")])
            nursery.start_soon(index.refresh)
            nursery.start_soon(partial(index.scan, b"a", b"z", floor=b"a", limit=10))
    assert len(index.scan_now(b"a", b"z", floor=b"a", limit=10)) == 6


def damage_tables(kind: str, path: Path) -> None:
    """Damage the first block of each table, in place: LevelDB has mapped the files into memory."""
    tables = list(path.glob(TABLES[kind]))
    assert tables
    for table in tables:
        with table.open("r+b") as file:
            file.seek(20)
            file.write(b"damage")


async def two_tables(stored: StoredIndexes, path: Path) -> Index:
    for number in range(2):
        index = await (stored.open if number else stored.create)(str(path))
        await index.write([(b"k%d" % number, b"v")])
        await index.aclose()
    return await stored.open(str(path))


async def test_a_refreshed_index_reads_from_the_disk_again(
    stored: StoredIndexes, kind: str, tmp_path: Path
) -> None:
    """Before that, a store answers from memory and hides the damage until the next start."""
    index = await two_tables(stored, tmp_path / "i")
    assert index.get_now(b"k0") == index.get_now(b"k1") == b"v"
    damage_tables(kind, tmp_path / "i")
    assert index.get_now(b"k0") == b"v"
    with pytest.raises(StorageCorrupt):
        await index.refresh()
    with pytest.raises(StorageError):
        index.get_now(b"k0")
    await index.aclose()


async def test_another_index_can_be_made_in_place_of_a_damaged_one_while_its_error_is_kept(
    stored: StoredIndexes, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "i"
    index = await two_tables(stored, path)
    damage_tables(kind, path)
    with pytest.raises(StorageCorrupt) as kept:
        await index.refresh()
    await index.aclose()
    shutil.rmtree(path)
    again = await stored.create(str(path))
    await again.aclose()
    assert kept.value.__traceback__ is not None


@pytest.mark.parametrize(
    ("start", "stop", "floor"),
    [(b"a", b"k1", b"a"), (b"k1", b"z", b"k1"), (b"a", b"b", b"a"), (b"x", b"z", b"y"), (b"k1", b"k1", b"a")],
)
async def test_no_range_is_shorter_for_a_damaged_block_behind_which_no_row_is_left(
    stored: StoredIndexes, kind: str, tmp_path: Path, start: bytes, stop: bytes, floor: bytes
) -> None:
    """There plyvel ends like at the end of a sound range."""
    index = await two_tables(stored, tmp_path / "i")
    damage_tables(kind, tmp_path / "i")
    with pytest.raises(StorageCorrupt, match="index"):
        index.scan_now(start, stop, floor=floor, limit=10)
    await index.aclose()


@pytest.mark.parametrize("at", [20, -1])
async def test_a_range_beside_a_damaged_block_is_whole_or_an_error(
    stored: StoredIndexes, kind: str, tmp_path: Path, at: int
) -> None:
    """The first block and the last one, with sound blocks between them."""
    path = tmp_path / "i"
    index = await stored.create(str(path))
    every = [(b"k%04d" % number, random.Random(number).randbytes(100)) for number in range(400)]
    await index.write(every)
    await index.aclose()
    index = await stored.open(str(path))
    (table,) = path.glob(TABLES[kind])
    content = table.read_bytes()
    with table.open("r+b") as file:
        file.seek(at if at > 0 else content.rindex(every[-1][1][:20]))
        file.write(b"damage")
    told = 0
    for first in range(0, 400, 3):
        for count in (2, 400):
            try:
                found = index.scan_now(b"k%04d" % first, b"k%04d" % (first + count), floor=b"k", limit=400)
            except StorageCorrupt:
                told += 1
            else:
                assert found == every[max(0, first - 1) : first + count]
    assert 0 < told < 200
    await index.aclose()


@pytest.mark.skipif(
    "leveldb" not in KINDS_HERE, reason="version 0.1 had LevelDB, and there is no plyvel here"
)
async def test_an_index_of_version_0_1_gets_the_row_at_its_end_with_the_next_batch(tmp_path: Path) -> None:
    import plyvel

    disk = RealDisk()
    leveldb, path = StoredIndexes(disk, asked="leveldb"), tmp_path / "i"
    await (await two_tables(leveldb, path)).aclose()
    end = b"\xff" * 32
    with plyvel.DB(str(path)) as database:
        database.delete(end)
    index = await leveldb.open(str(path))
    assert [key for key, _ in index.scan_now(b"a", b"z", floor=b"a", limit=10)] == [b"k0", b"k1"]
    await index.write([(b"k2", b"v")])
    assert [key for key, _ in index.scan_now(b"a", b"\xff", floor=b"a", limit=10)] == [b"k0", b"k1", b"k2"]
    await index.aclose()
    with plyvel.DB(str(path)) as database:
        assert database.get(end) is not None
    await disk.aclose()


async def test_an_index_that_could_not_be_opened_again_is_opened_by_the_next_batch(
    stored: StoredIndexes, tmp_path: Path
) -> None:
    path = tmp_path / "i"
    index = await stored.create(str(path))
    await index.write([(b"a", b"1")])
    (path / "CURRENT").rename(path / "elsewhere")
    with pytest.raises(StorageError):
        await index.refresh()
    with pytest.raises(StorageError):
        index.get_now(b"a")
    (path / "elsewhere").rename(path / "CURRENT")
    await index.write([(b"b", b"2")])
    assert (index.get_now(b"a"), index.get_now(b"b")) == (b"1", b"2")
    await index.aclose()
