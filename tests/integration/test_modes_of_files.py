"""Files and directories of the library are closed to other users of the machine, no matter what the umask
is."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ledgerlog
from ledgerlog.cli.processes import open_children
from ledgerlog.meta.uri import back_up, make_cluster_at, parse_uri
from tests.waiting import until

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    """Use the most generous umask. If a file is closed now, its mode closes it."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(path: Path) -> dict[str, str]:
    """Return the paths that give others a right, with their modes. LevelDB's files have the mode of the
    umask, and lie in a closed directory."""
    found = {}
    for directory, names, files in os.walk(path):
        is_leveldb = Path(directory).name == "index" and "CURRENT" in files
        for name in names if is_leveldb else [*names, *files]:
            mode = stat.S_IMODE(os.lstat(Path(directory) / name).st_mode)
            if mode & 0o077:
                found[str((Path(directory) / name).relative_to(path))] = f"{mode:04o}"
    return found


async def test_a_file_cluster_is_closed(tmp_path: Path) -> None:
    place = tmp_path / "made" / "by" / "us"
    async with ledgerlog.connect(f"file:{place}") as cluster:
        log = await cluster.create_log("orders")
        async with log.writer() as writer:
            await writer.append(b"x")
        assert open_to_others(tmp_path) == {}


async def test_a_bookie_a_metadata_file_and_a_backup_are_closed(tmp_path: Path) -> None:
    where = parse_uri(f"sqlite:{tmp_path}/made/too/metadata.sqlite")
    await make_cluster_at(where)
    bookie = [sys.executable, "-m", "bookie", "run", str(tmp_path / "bookies" / "b1")]
    async with open_children() as children:
        await children.start("b1", [*bookie, "--metadata", str(where), "--id", "b1"])
        async with ledgerlog.connect(str(where)) as cluster:

            async def is_there() -> bool:
                await cluster.client.bookies.refresh()
                return bool(cluster.client.bookies.registered())

            await until(is_there)
            one = ledgerlog.Replication(1, 1, 1)
            log = await cluster.create_log("orders", replication=one)
            async with log.writer() as writer:
                await writer.append(b"x")
            await back_up(where, str(tmp_path / "backup"), made_ms=1)
            assert open_to_others(tmp_path) == {}
