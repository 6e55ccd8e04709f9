"""Power cuts of the file system under every bookie at once lose no acknowledged record.

The soak makes ``LEDGERLOG_POWER_CUTS`` of them (default 100).
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
import trio

import ledgerlog
from ledgerlog.cli.local_cluster import local_cluster
from ledgerlog.errors import LedgerLogError
from ledgerlog.limits import MIB
from ledgerlog.log.log import Log
from ledgerlog.model.quorum import Replication
from tests.nemesis.driver import SMALL_FILES
from tests.nemesis.power import Volume, open_volume, why_not
from tests.waiting import PATIENCE_S

pytestmark = [
    pytest.mark.processes,
    pytest.mark.root,
    pytest.mark.skipif(why_not() is not None, reason=f"no power cuts here: {why_not()}"),
]

BOOKIES = 3
CUTS = 3
SOAK_CUTS = int(os.environ.get("LEDGERLOG_POWER_CUTS", "100"))


async def append(log: Log, acknowledged: dict[int, bytes], numbers: list[int], enough: trio.Event) -> None:
    """Append several records at once, until the log cannot be written any more."""
    before = len(acknowledged)
    try:
        async with log.writer() as writer, trio.open_nursery() as nursery:

            async def one_by_one() -> None:
                while True:
                    numbers[0] += 1
                    record = b"record %d " % numbers[0] + bytes(numbers[0] % 700)
                    acknowledged[(await writer.append(record)).offset] = record
                    if len(acknowledged) > before + 20:
                        enough.set()

            for _ in range(6):
                nursery.start_soon(one_by_one)
    except* LedgerLogError:
        pass  # The power is gone, or an unknown writer leads; the caller tries again.


async def cut_again_and_again(tmp_path: Path, volume: Volume, cuts: int) -> int:
    """Cut the power ``cuts`` times, and return the number of acknowledged records."""
    chance = Random(f"power cuts {cuts}")
    config = tmp_path / "bookies.toml"
    await trio.Path(config).write_text(SMALL_FILES)
    acknowledged: dict[int, bytes] = {}
    numbers = [0]
    path = tmp_path / "cluster"
    await trio.Path(path).mkdir()
    for number in range(1, BOOKIES + 1):
        await trio.Path(volume.path / f"bookie-{number}").mkdir(mode=0o700)
        await trio.Path(path / f"bookie-{number}").symlink_to(volume.path / f"bookie-{number}")
    async with local_cluster(path, bookies=BOOKIES, config=config, grace_s=2.0) as local:
        await local.cluster.create_log("cut", replication=Replication(3, 3, 2))
        for _ in range(cuts):
            with trio.fail_after(PATIENCE_S):
                async with ledgerlog.connect(local.uri) as cluster, trio.open_nursery() as nursery:
                    log, enough = await cluster.open_log("cut"), trio.Event()

                    async def write(log: Log = log, enough: trio.Event = enough) -> None:
                        while True:
                            await append(log, acknowledged, numbers, enough)
                            await trio.sleep(0.1)

                    nursery.start_soon(write)
                    await enough.wait()
                    await trio.sleep(chance.random() * 0.5)
                    volume.shut_down()
                    for child in local.bookies.values():
                        child.kill()
                    for child in local.bookies.values():
                        await child.wait()
                    nursery.cancel_scope.cancel()
            volume.unmount()
            volume.mount()
            with trio.fail_after(PATIENCE_S):
                async with trio.open_nursery() as nursery:
                    for bookie in local.bookie_ids:
                        nursery.start_soon(local.start_serving, bookie)
                await check(local.uri, acknowledged)
    return len(acknowledged)


async def check(uri: str, acknowledged: dict[int, bytes]) -> None:
    async with ledgerlog.connect(uri) as cluster:
        log = await cluster.open_log("cut")
        while True:
            try:
                async with log.writer():
                    break
            except LedgerLogError:
                await trio.sleep(0.1)
        found: list[bytes] = []
        ledgers: set[int] = set()
        async with log.read() as records:
            async for record in records:
                assert record.offset == len(found)
                found.append(record.data)
                ledgers.add(record.position.ledger_id)
        for offset, data in acknowledged.items():
            assert offset < len(found), f"LOSS: offset {offset}; the log ends at {len(found)}"
            assert found[offset] == data, f"LOSS: offset {offset}"
        for ledger_id in ledgers:
            seen = await cluster.ledgers.verify(ledger_id)
            assert (seen.unreadable, seen.damaged) == ([], [])


async def test_power_cuts_under_every_bookie_lose_nothing_acknowledged(tmp_path: Path) -> None:
    with open_volume(tmp_path / "volume", size_bytes=256 * MIB) as volume:
        assert await cut_again_and_again(tmp_path, volume, CUTS) > 20 * CUTS


@pytest.mark.soak
async def test_many_power_cuts_lose_nothing_acknowledged(tmp_path: Path) -> None:
    with open_volume(tmp_path / "volume", size_bytes=1024 * MIB) as volume:
        acknowledged = await cut_again_and_again(tmp_path, volume, SOAK_CUTS)
    print(f"{SOAK_CUTS} power cuts, {acknowledged} records acknowledged")
    assert acknowledged > 20 * SOAK_CUTS


def test_a_power_cut_forgets_what_was_not_synced_and_keeps_what_was(tmp_path: Path) -> None:
    with open_volume(tmp_path / "volume", size_bytes=16 * MIB) as volume:
        for name in ("synced", "unsynced"):
            with (volume.path / name).open("wb") as file:
                file.write(b"data")
                file.flush()
                if name == "synced":
                    os.fsync(file.fileno())
        volume.shut_down()
        volume.unmount()
        volume.mount()
        assert (volume.path / "synced").read_bytes() == b"data"
        lost = volume.path / "unsynced"
        assert not lost.exists() or lost.read_bytes() != b"data"
