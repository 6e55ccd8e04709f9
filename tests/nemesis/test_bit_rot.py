"""If files of a stopped bookie are damaged, it refuses to start, or reports every lost copy as damaged. It
never denies an entry that it had."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest
import trio

from ledgerlog.cli.local_cluster import LocalCluster, local_cluster
from ledgerlog.cli.processes import ChildFailed
from ledgerlog.model.quorum import Replication
from tests.nemesis.damage import damage_files
from tests.nemesis.driver import SMALL_FILES
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

ROUNDS = 8
ENTRIES = 3000
VICTIM = "bookie-2"


async def write(local: LocalCluster) -> int:
    """Write and close a ledger, with every entry on every bookie and several files on each."""
    writer = await local.cluster.ledgers.create(replication=Replication(2, 2, 2))
    async with trio.open_nursery() as nursery:
        numbers = iter(range(ENTRIES))

        async def append() -> None:
            for number in numbers:
                await writer.append(b"entry %d" % number + bytes(1000))

        for _ in range(50):
            nursery.start_soon(append)
    await writer.close()
    return writer.ledger_id


async def test_damage_is_refused_at_the_start_or_told_when_it_is_read_and_never_denied(
    tmp_path: Path,
) -> None:
    config = tmp_path / "bookies.toml"
    await trio.Path(config).write_text(SMALL_FILES)
    outcomes: list[str] = []
    async with local_cluster(tmp_path / "cluster", bookies=2, config=config, grace_s=2.0) as local:
        ledger_id = await write(local)
        local.bookies[VICTIM].kill()
        await local.bookies[VICTIM].wait()
        whole, directory = tmp_path / "whole", local.data_path(VICTIM)
        shutil.copytree(directory, whole)
        for number in range(ROUNDS):
            dice = Random(f"rot {number}")
            shutil.rmtree(directory)
            shutil.copytree(whole, directory)
            done = damage_files(directory, dice, flips=3, cut=number % 2 == 0)
            assert done, "there must be something to damage"
            what = ", ".join(map(str, done))
            refusal = ""
            try:
                await local.start_serving(VICTIM, attempts=1)
            except ChildFailed as failure:
                refusal = str(failure)
            if refusal:
                assert "bookie: StorageCorrupt: " in refusal, what
                outcomes.append("refused")
                continue
            with trio.fail_after(PATIENCE_S):
                seen = await local.cluster.ledgers.verify(ledger_id)
            assert (seen.entries, seen.unreadable) == (ENTRIES, [])
            assert not seen.unreachable, what
            told = {entry for entry, bookie in seen.damaged if bookie == VICTIM}
            assert set(seen.under_replicated) <= told, f"entries are denied after {what}"
            outcomes.append("told" if told else "nothing that counts was hit")
            local.bookies[VICTIM].kill()
            await local.bookies[VICTIM].wait()
        shutil.rmtree(directory)
        shutil.copytree(whole, directory)
        await local.start_serving(VICTIM)
    print(outcomes)
    assert outcomes.count("refused") + outcomes.count("told") >= ROUNDS / 2, outcomes
