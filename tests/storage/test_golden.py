"""Directories that earlier versions wrote are read: entries, fences, deletions and LACs, and from the index
as well as without it."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from storing import KEY, SMALL, add_durably, add_frame, opened, payloads, read, read_all

from bookie.server.inspect import show_journal
from bookie.server.inspect_entries import show_entries
from bookie.storage.engine.opening import open_engine
from bookie.storage.upkeep.rebuild import rebuild_index
from ledgerlog.wire.frame import Status
from tests.index_kinds import KINDS_HERE, convert_index

GOLDEN = Path(__file__).resolve().parent / "golden"
VERSIONS = sorted(path.name for path in GOLDEN.glob("version-*"))


@pytest.fixture(scope="module")
def made() -> ModuleType:
    specification = importlib.util.spec_from_file_location("golden_make", GOLDEN / "make.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(params=VERSIONS)
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / "b"))


@pytest.mark.parametrize("is_index_lost", [False, True])
async def test_a_directory_of_an_earlier_version_is_read(
    copy: Path, made: ModuleType, is_index_lost: bool
) -> None:
    await convert_index(copy)
    async with opened(str(copy)) as directory:
        if is_index_lost:
            shutil.rmtree(copy / "index")
            await rebuild_index(directory)
        for _ in range(2):
            async with open_engine(directory, SMALL) as engine:
                for ledger, ids in made.ENTRIES.items():
                    assert await read_all(engine, ledger) == payloads(ledger, ids)
                for ledger in (*made.FENCED, *made.DELETED):
                    assert engine.add(*add_frame(ledger, [1000])) is Status.FENCED
                for ledger in made.DELETED:
                    assert (await read(engine, ledger)).status is Status.NO_SUCH_LEDGER
                ledger, lac, lafr = made.LAC
                assert engine.lac(ledger) == (lac, lafr)
                assert engine.add(*add_frame(1, [1000], key=b"another key 16 b")) is Status.UNAUTHORIZED
                assert (await engine.fence(2, KEY)).status is Status.OK
                await add_durably(engine, 6, range(5))


@pytest.mark.skipif("leveldb" not in KINDS_HERE, reason="a conversion of the index mends the torn journal")
async def test_a_directory_of_an_earlier_version_has_every_kind_of_file(copy: Path) -> None:
    async with opened(str(copy)) as directory:
        logs = [item async for item in show_entries(directory)]
        segments = [item async for item in show_journal(directory)]
    assert not [item for item in (*logs, *segments) if "damage" in item]
    assert len({item["level"] for item in logs}) > 1
    assert sum(item["deleted_ledgers"] for item in logs) + sum(item["adds"] for item in segments) > 0
    assert segments[-1]["is_torn"]
    assert any(item["kept_because"] != segments[-1]["kept_because"] for item in segments)
