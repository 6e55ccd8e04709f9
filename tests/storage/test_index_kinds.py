"""A directory says which kind of index it has. Another kind is refused, and a rebuild makes it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from storing import SMALL, add_durably, opened, payloads, read_all, running

from bookie.storage.disk.descriptors import OutOfDescriptors
from bookie.storage.disk.real import RealDisk
from bookie.storage.engine.opening import open_engine
from bookie.storage.index import kinds
from bookie.storage.index.kinds import LEVELDB, ROCKSDB, IndexKind, StoredIndexes, default_kind, kind_of
from bookie.storage.upkeep.rebuild import rebuild_index
from ledgerlog.errors import DiskFull, StorageCorrupt, StorageError
from tests.index_kinds import KINDS_HERE

needs_both = pytest.mark.skipif(len(KINDS_HERE) < 2, reason="one of the stores has no wheel for this Python")


def missing(kind: IndexKind) -> IndexKind:
    def load() -> object:
        raise ImportError(f"No module named '{kind.package}'")

    return attrs.evolve(kind, load=load)


@pytest.fixture
def without_plyvel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Python for which plyvel has no wheel."""
    leveldb = missing(LEVELDB)
    monkeypatch.setattr(kinds, "LEVELDB", leveldb)
    monkeypatch.setattr(kinds, "KINDS", (leveldb, ROCKSDB))


async def fill(path: Path, kind: str) -> None:
    async with running(str(path), attrs.evolve(SMALL, index=kind)) as engine:
        for ledger_id in (1, 2):
            await add_durably(engine, ledger_id, range(30))


async def assert_has_all(path: Path, kind: str = "") -> None:
    async with running(str(path), attrs.evolve(SMALL, index=kind)) as engine:
        for ledger_id in (1, 2):
            assert await read_all(engine, ledger_id) == payloads(ledger_id, range(30))


@pytest.mark.parametrize("kind", KINDS_HERE)
async def test_a_directory_keeps_the_kind_of_index_that_it_was_made_with(tmp_path: Path, kind: str) -> None:
    await fill(tmp_path / "b", kind)
    assert kind_of(str(tmp_path / "b" / "index")) is KINDS_HERE[kind]
    await assert_has_all(tmp_path / "b")
    await assert_has_all(tmp_path / "b", kind)
    async with opened(str(tmp_path / "b")) as directory:
        await rebuild_index(directory)
    assert kind_of(str(tmp_path / "b" / "index")) is KINDS_HERE[kind]
    await assert_has_all(tmp_path / "b")


@needs_both
@pytest.mark.parametrize(("present", "asked"), [("leveldb", "rocksdb"), ("rocksdb", "leveldb")])
async def test_another_kind_is_refused_and_made_by_a_rebuild(
    tmp_path: Path, present: str, asked: str
) -> None:
    path = tmp_path / "b"
    await fill(path, present)
    before = sorted(file.name for file in (path / "index").iterdir())
    here, other = KINDS_HERE[present].title, KINDS_HERE[asked].title
    with pytest.raises(StorageError) as refused:
        await assert_has_all(path, asked)
    assert not isinstance(refused.value, StorageCorrupt), "nothing may be made again for that"
    said = str(refused.value)
    assert "\n" not in said
    assert f"{path}/index is an index of {here}, and {other} is asked for" in said
    assert f"`bookie rebuild-index {path} --index {asked}` makes it one of {other}" in said
    assert sorted(file.name for file in (path / "index").iterdir()) == before
    async with opened(str(path), index=asked) as directory:
        assert await rebuild_index(directory) > 0
    assert kind_of(str(path / "index")) is KINDS_HERE[asked]
    assert [entry.name for entry in path.iterdir() if "index" in entry.name] == ["index"]
    await assert_has_all(path, asked)
    await assert_has_all(path)


@pytest.mark.skipif("rocksdb" not in KINDS_HERE, reason="there is no rocksdict here")
@pytest.mark.parametrize("lost", ["IDENTITY", "OPTIONS-*", "rocksdict-config.json"])
async def test_the_kind_is_known_also_if_a_file_that_says_so_is_lost(tmp_path: Path, lost: str) -> None:
    await fill(tmp_path / "b", "rocksdb")
    files = list((tmp_path / "b" / "index").glob(lost))
    assert files
    for file in files:
        file.unlink()
    assert kind_of(str(tmp_path / "b" / "index")) is ROCKSDB
    await assert_has_all(tmp_path / "b")


def test_where_nothing_is_there_is_no_kind(tmp_path: Path) -> None:
    assert kind_of(str(tmp_path / "nothing")) is None
    assert kind_of(str(tmp_path)) is None


def test_leveldb_is_the_default_where_it_can_be_imported() -> None:
    assert default_kind() is KINDS_HERE.get("leveldb", ROCKSDB)


@pytest.mark.usefixtures("without_plyvel")
@pytest.mark.skipif("rocksdb" not in KINDS_HERE, reason="there is no rocksdict here")
async def test_rocksdb_is_the_default_where_plyvel_cannot_be_imported(tmp_path: Path) -> None:
    assert default_kind() is ROCKSDB
    await fill(tmp_path / "b", "")
    assert kind_of(str(tmp_path / "b" / "index")) is ROCKSDB
    await assert_has_all(tmp_path / "b")


GOLDEN = Path(__file__).parent / "golden" / "version-1"


@pytest.mark.usefixtures("without_plyvel")
async def test_an_index_whose_package_is_not_there_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "b"
    shutil.copytree(GOLDEN, path)
    before = {file.name: file.read_bytes() for file in (path / "index").iterdir()}
    disk = RealDisk()
    with pytest.raises(StorageError) as refused:
        await StoredIndexes(disk, str(path / "index")).open(str(path / "index"))
    await disk.aclose()
    assert not isinstance(refused.value, StorageCorrupt)
    said = str(refused.value)
    assert "index of LevelDB, and plyvel cannot be imported here (No module named 'plyvel')" in said
    assert f"`bookie rebuild-index {path} --index rocksdb` makes it one of RocksDB" in said
    assert {file.name: file.read_bytes() for file in (path / "index").iterdir()} == before


@pytest.mark.usefixtures("without_plyvel")
@pytest.mark.skipif("rocksdb" not in KINDS_HERE, reason="there is no rocksdict here")
async def test_a_directory_of_version_0_1_is_converted_where_there_is_no_plyvel(tmp_path: Path) -> None:
    path = tmp_path / "b"
    shutil.copytree(GOLDEN, path)
    async with opened(str(path), index="rocksdb") as directory:
        runs = await rebuild_index(directory)
        async with open_engine(directory, SMALL):
            pass
    assert runs > 0
    assert kind_of(str(path / "index")) is ROCKSDB


async def test_if_no_store_can_be_imported_one_line_says_so_and_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kinds, "KINDS", (missing(LEVELDB), missing(ROCKSDB)))
    with pytest.raises(StorageError) as refused:
        default_kind()
    said = str(refused.value)
    assert "\n" not in said
    assert "plyvel for LevelDB (No module named 'plyvel')" in said
    assert "rocksdict for RocksDB (No module named 'rocksdict')" in said
    assert re.search(r"pip install 'rocksdict.*\(the extra ledgerlog\[rocksdb\]\)", said)


def test_nobody_imports_a_store_that_is_not_used() -> None:
    code = (
        "import sys, bookie.server.main, bookie.server.node, ledgerlog.embedded\n"
        "assert not {'plyvel', 'rocksdict'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_configuration_with_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="index is 'sqlite': it must be one of leveldb, rocksdb"):
        attrs.evolve(SMALL, index="sqlite")


@pytest.mark.parametrize(
    ("code", "failure"),
    [(errno.EMFILE, OutOfDescriptors), (errno.ENOSPC, DiskFull), (errno.EACCES, StorageError)],
    ids=["descriptors", "room", "rights"],
)
async def test_what_the_system_refuses_an_index_is_told_as_of_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, failure: type[StorageError]
) -> None:
    disk, path = RealDisk(), str(tmp_path / "index")
    indexes = StoredIndexes(disk)
    await (await indexes.create(path)).aclose()

    def refused(path: str) -> list[str]:
        raise OSError(code, os.strerror(code), path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", refused)
        with pytest.raises(failure, match=f"cannot open {path}: {os.strerror(code)}") as told:
            await indexes.open(path)
    assert type(told.value) is failure
    await (await indexes.open(path)).aclose()
    await disk.aclose()
