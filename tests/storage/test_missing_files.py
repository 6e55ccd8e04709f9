"""Each file and directory of a ``file:`` cluster is gone in turn: opening it and reading it succeeds, or
raises an exception that has a public name."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import trio

import ledgerlog
from ledgerlog.limits import MIB

RECORD = random.Random(7).randbytes(MIB)


def everybody(error: BaseException) -> list[BaseException]:
    """Return an exception, or those in a group."""
    if isinstance(error, BaseExceptionGroup):
        return [each for part in error.exceptions for each in everybody(part)]
    return [error]


def parts(path: Path) -> list[Path]:
    """Every file and directory below a directory."""
    return sorted(path.rglob("*"))


def assert_public(error: BaseException, doing: str) -> None:
    for each in everybody(error):
        name = type(each).__name__
        assert getattr(ledgerlog, name, None) is type(each), f"{doing}: {name}: {each}"


async def use(path: Path, appends: int) -> int:
    """Read all there is, then append; how many records there were."""
    async with ledgerlog.connect(f"file:{path}") as cluster:
        log = await cluster.create_log("orders", exist_ok=True)
        async with log.read() as records:
            found = [record.offset async for record in records]
        async with log.writer() as writer:
            for _ in range(appends):
                await writer.append(RECORD)
        return len(found)


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("missing") / "data"
    trio.run(use, path, 20)
    assert len(list((path / "bookie-1" / "journal").glob("*.journal"))) > 1
    return path


async def test_a_missing_file_is_told_by_a_public_exception(used: Path, tmp_path: Path) -> None:
    raised = 0
    for number, path in enumerate(parts(used)):
        copy = tmp_path / str(number)
        shutil.copytree(used, copy)
        gone = copy / path.relative_to(used)
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        try:
            await use(copy, 1)
        except Exception as error:
            raised += 1
            assert_public(error, f"without {gone.relative_to(copy)}")
        shutil.rmtree(copy)
    assert raised


@pytest.mark.parametrize("part", ["entries", "journal", "index"])
async def test_what_goes_missing_under_an_open_cluster_is_told_by_a_public_exception(
    used: Path, tmp_path: Path, part: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(used, copy)
    try:
        async with ledgerlog.connect(f"file:{copy}") as cluster:
            shutil.rmtree(copy / "bookie-1" / part)
            log = await cluster.open_log("orders")
            async with log.writer() as writer:
                for _ in range(40):
                    await writer.append(RECORD)
            async with log.read() as records:
                async for _ in records:
                    pass
    except Exception as error:
        assert_public(error, f"{part} went missing")
