"""One replica in one process, on its own disk, as in a service with durable state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ledgerlog
from ledgerlog.machine.directory import DirectorySnapshots
from ledgerlog.machine.replica import Replica
from tests.machine.machines import Keys


async def test_a_service_goes_on_from_its_snapshot_and_its_log_stays_short(tmp_path: Path) -> None:
    for life in range(3):
        async with ledgerlog.connect(f"file:{tmp_path}/data") as cluster:
            log = await cluster.create_log("log", exist_ok=True)
            store = DirectorySnapshots(tmp_path / "snapshots", shared=True)
            async with Replica(log, Keys(), snapshots=store, snapshot_every=10) as replica:
                await replica.wait_leading()
                assert await replica.read(lambda machine: machine.values.get("x", 0)) == 25 * life
                for number in range(25):
                    await replica.propose(json.dumps(["add", "x", 1]).encode(), request_id=f"{life}-{number}")
                assert await replica.propose(b'["add", "x", 1]', request_id="0-0") == b"1"
                info = await replica.snapshot()
                assert info.next_offset == replica.next_offset
                statistics = replica.statistics()
                assert statistics.restores == (1 if life else 0)
                assert statistics.executed <= 25, "no command in the snapshot was applied again"
            assert (await log.info()).first_offset > 0
            assert len(list((tmp_path / "snapshots").iterdir())) == 2


async def test_snapshots_of_a_private_directory_do_not_truncate_the_log(tmp_path: Path) -> None:
    async with ledgerlog.connect("memory:") as cluster:
        log = await cluster.create_log("log")
        store = DirectorySnapshots(tmp_path)
        async with Replica(log, Keys(), snapshots=store, snapshot_every=5, snapshots_kept=1) as replica:
            await replica.wait_leading()
            for _ in range(20):
                await replica.propose(b'["add", "x", 1]')
            await replica.snapshot()
            assert (await log.info()).first_offset == 0
        async with Replica(log, Keys(), snapshots=store, leads=False) as other:
            assert other.next_offset == 20
            with pytest.raises(ledgerlog.NotLeader):
                await other.propose(b"")
