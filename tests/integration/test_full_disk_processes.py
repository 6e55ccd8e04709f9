"""A writer fills the real 64 MB disk of a real bookie. The bookie becomes read-only before the disk is full,
stays alive, can be recovered from, and is writable again once ledgers are deleted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio

from ledgerlog.errors import NotEnoughBookies
from ledgerlog.ledger.client import open_client
from ledgerlog.limits import KIB, MIB
from ledgerlog.meta.sqlite import open_sqlite_store
from ledgerlog.meta.uri import SqliteUri, make_cluster_at
from ledgerlog.model.quorum import Replication
from ledgerlog.net.tcp import TcpNetwork
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

ALONE = Replication(1, 1, 1)
ENTRY = bytes(64 * KIB)
SEGMENT_BYTES = 6 * MIB
SEGMENT_ENTRIES = SEGMENT_BYTES // len(ENTRY)
CONFIG = f"""
segment_bytes = {SEGMENT_BYTES}
log_bytes_max = {8 * MIB}
disk_reserve_bytes = {24 * MIB}
disk_watch_interval_s = 0.5
collect_interval_s = 0.5
compact_interval_s = 0.5
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs of 64 MB cannot be mounted here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("options", [[], ["--no-journal-data"]], ids=["journal", "no-journal-data"])
async def test_a_bookie_on_a_disk_of_64_mb_outlives_being_filled(
    small_disk: Path, tmp_path: Path, options: list[str]
) -> None:
    metadata, config = tmp_path / "metadata.sqlite", tmp_path / "bookie.toml"
    config.write_text(CONFIG)
    command = [
        *(sys.executable, "-m", "bookie", "run", str(small_disk / "b1"), "--id", "b1"),
        *("--metadata", f"sqlite:{metadata}", "--config", str(config), *options),
    ]
    await make_cluster_at(SqliteUri(str(metadata)))
    said = tmp_path / "said"
    with said.open("wb") as output:
        process = await trio.lowlevel.open_process(command, stdout=subprocess.DEVNULL, stderr=output)
    try:
        async with (
            open_sqlite_store(str(metadata)) as store,
            open_client(store, TcpNetwork(), append_deadline_s=15.0) as client,
        ):
            await client.bookies.wait_writable(1, timeout_s=PATIENCE_S)
            writer = await client.ledgers.create(replication=ALONE)
            with pytest.raises(NotEnoughBookies, match=r"READ_ONLY"):
                await _append_for_ever(writer.append)
            assert process.poll() is None, said.read_text()
            space = os.statvfs(small_disk)
            assert space.f_bavail * space.f_frsize > 0
            assert client.bookies.is_read_only("b1")
            async with open_client(store, TcpNetwork()) as another:
                reader = await another.ledgers.open(writer.ledger_id, recover=True)
                # How much there is room for depends on how far the files of the index are behind the journal,
                # and so on what else the machine does: two segments, at least.
                assert await reader.last_add_confirmed() >= writer.last_add_confirmed > 2 * SEGMENT_ENTRIES
                verified = await another.ledgers.verify(writer.ledger_id)
                assert verified.under_replicated == []
            await client.ledgers.delete(writer.ledger_id)
            await client.bookies.wait_writable(1, timeout_s=PATIENCE_S)
            async with open_client(store, TcpNetwork()) as another:
                again = await another.ledgers.create(replication=ALONE)
                for _ in range(100):
                    await again.append(ENTRY)
                await again.close()
        assert process.poll() is None, said.read_text()
        process.terminate()
        with trio.fail_after(PATIENCE_S):
            assert await process.wait() == 0, said.read_text()
        assert "No space left" not in said.read_text()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def _append_for_ever(append: Callable[[bytes], Awaitable[int]]) -> None:
    while True:
        await append(ENTRY)
