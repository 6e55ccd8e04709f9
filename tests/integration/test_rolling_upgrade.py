"""Rolling upgrades of a cluster of processes under load: bookies one after the other, then the clients.

Version 0.1 runs from its own tree, which ``git archive`` takes out of the history.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from io import BytesIO
from pathlib import Path

import attrs
import cbor2
import pytest
import trio

from ledgerlog.cli.local_cluster import LocalCluster, local_cluster
from ledgerlog.cli.processes import Child
from ledgerlog.model.layout import ledger_path, writable_path
from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.protocol import ProtocolSupport
from ledgerlog.model.quorum import Replication
from ledgerlog.versions import NEXT_FEATURE, NEXT_KEY, NEXT_VERSION_VARIABLE, SPOKEN
from tests.index_kinds import KINDS_HERE
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.processes
runs_0_1 = pytest.mark.skipif(
    "leveldb" not in KINDS_HERE,
    reason="version 0.1 knows no index but LevelDB, and this Python has no package for it",
)

REPOSITORY = Path(__file__).resolve().parents[2]
COMMIT_OF_0_1 = "f2fc7a2"
CHILD = Path(__file__).with_name("upgrade_child.py")
BOOKIES = 4
STEP = 200
"""How many records are appended between two steps of an upgrade."""

Version = Mapping[str, str]
"""The environment variables that make a process run a version."""

THIS: Version = {NEXT_VERSION_VARIABLE: ""}
NEXT: Version = {NEXT_VERSION_VARIABLE: "1"}
SPOKEN_NEXT = ProtocolSupport(
    SPOKEN.lowest, SPOKEN.highest + 1, tuple(sorted((*SPOKEN.features, NEXT_FEATURE)))
)


def version_0_1(path: Path) -> Version:
    """Take the tree of version 0.1 out of the history; return how to run it."""
    ran = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", COMMIT_OF_0_1, "ledgerlog", "bookie"],
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, (
        f"the history lacks version 0.1, commit {COMMIT_OF_0_1}: this test needs a full clone "
        f"(git fetch --unshallow). git says: {ran.stderr.decode().strip()}"
    )
    with tarfile.open(fileobj=BytesIO(ran.stdout)) as tar:
        tar.extractall(path, filter="data")
    return {"PYTHONPATH": str(path), NEXT_VERSION_VARIABLE: ""}


@attrs.define(eq=False)
class Upgrade:
    """A cluster under load, whose processes change their versions."""

    local: LocalCluster
    of_bookies: dict[str, Version]
    step: int = STEP
    writer: Child | None = None
    acknowledged: int = 0
    said: str = ""
    runs: str = ""
    """The file of the package that the last writer ran."""

    async def start_writer(self, version: Version) -> None:
        self.writer = await self.local.children.start(
            "writer",
            [sys.executable, "-P", CHILD, self.local.uri, "orders"],
            pipe_in=True,
            pipe_out=True,
            log_path=self.local.path / "writer.stderr",
            environment={**os.environ, **version},
        )
        self.said = ""

    async def progress(self) -> None:
        """Return once the writer has appended another step of records."""
        wanted = self.acknowledged + self.step
        while self.acknowledged < wanted:
            assert await self._hear(), self._complaint()

    async def _hear(self) -> bool:
        """Take the writer's next line. Return whether there was one."""
        assert self.writer is not None
        assert self.writer.stdout is not None
        with trio.fail_after(PATIENCE_S):
            more = await self.writer.stdout.receive_some()
        *lines, self.said = (self.said + more.decode()).split("\n")
        for line in lines:
            if line.startswith("runs "):
                self.runs = line.removeprefix("runs ")
                continue
            assert not line.startswith("failed"), f"an append failed: {line}"
            self.acknowledged = int(line)
        return bool(more)

    def _complaint(self) -> str:
        return (self.local.path / "writer.stderr").read_text()

    async def stop_writer(self) -> None:
        assert self.writer is not None
        assert self.writer.stdin is not None
        await self.writer.stdin.aclose()
        while await self._hear():
            pass
        assert await self.writer.wait() == 0, self._complaint()

    async def kill_writer(self) -> None:
        """End the writer so that its ledger needs a recovery."""
        assert self.writer is not None
        self.writer.kill()
        await self.writer.wait()
        while await self._hear():
            pass

    async def said_protocol(self, bookie_id: str) -> int | None:
        """The highest protocol version in a bookie's registration. None: version 0.1 wrote it, or it is
        missing."""
        node = await self.local.cluster.store.get(writable_path(bookie_id))
        return None if node is None else cbor2.loads(node.value).get("protocol_max")

    async def change_bookies(self, version: Version, speaks: ProtocolSupport) -> None:
        """Give the bookies another version, one after the other, while the writer writes."""
        for bookie_id, child in self.local.bookies.items():
            await child.stop()
            await self.progress()
            self.of_bookies[bookie_id] = version
            await self.local.start_serving(bookie_id)

            async def is_back(bookie_id: str = bookie_id) -> bool:
                return await self.said_protocol(bookie_id) == speaks.highest

            await until(is_back)
            await self.progress()

    async def check(self) -> None:
        """Every acknowledged record is there, in its place and once."""
        log = await self.local.cluster.open_log("orders")
        async with log.read(0) as reader:
            found = [record.data async for record in reader]
        assert len(found) >= self.acknowledged
        assert found == [b"record %d" % number for number in range(len(found))]
        for ledger_id in await self.local.cluster.ledgers.list():
            verification = await self.local.cluster.ledgers.verify(ledger_id)
            assert verification.unreadable == []
            assert verification.damaged == []

    async def keys_of_ledgers(self) -> set[str]:
        """All keys of the metadata of all ledgers."""
        keys: set[str] = set()
        for ledger_id in await self.local.cluster.ledgers.list():
            node = await self.local.cluster.store.get(ledger_path(ledger_id))
            assert node is not None
            keys |= cbor2.loads(node.value).keys()
        return keys


async def started(stack: AsyncExitStack, path: Path, version: Version, *, step: int = STEP) -> Upgrade:
    """A cluster of this version, with a log, that takes bookies of another one."""
    of_bookies: dict[str, Version] = {f"bookie-{number}": version for number in range(1, BOOKIES + 1)}

    def prefix_of(bookie_id: str) -> list[str]:
        return ["/usr/bin/env", *(f"{name}={value}" for name, value in of_bookies[bookie_id].items())]

    # Version 0.1 knows no secret.
    local = await stack.enter_async_context(
        local_cluster(path, bookies=BOOKIES, prefix_of=prefix_of, is_closed=False)
    )
    await local.cluster.create_log(
        "orders", replication=Replication(3, 3, 2), roll=RollPolicy(max_records=1500)
    )
    return Upgrade(local, of_bookies, step=step)


async def upgrade_from_0_1(path: Path, *, step: int) -> None:
    old = version_0_1(path / "0.1")
    async with AsyncExitStack() as stack:
        upgrade = await started(stack, path / "cluster", old, step=step)
        await upgrade.start_writer(old)
        await upgrade.progress()
        assert upgrade.runs.startswith(str(path)), "the writer is of version 0.1"
        for bookie_id in upgrade.local.bookie_ids:
            assert await upgrade.said_protocol(bookie_id) is None, "the bookies are of version 0.1"
        await upgrade.change_bookies(THIS, SPOKEN)
        await upgrade.kill_writer()
        await upgrade.start_writer(THIS)
        await upgrade.progress()
        assert not upgrade.runs.startswith(str(path))
        await upgrade.stop_writer()
        await upgrade.check()


async def upgrade_to_next_and_back(path: Path, *, step: int) -> None:
    async with AsyncExitStack() as stack:
        upgrade = await started(stack, path / "cluster", THIS, step=step)
        await upgrade.start_writer(THIS)
        await upgrade.change_bookies(NEXT, SPOKEN_NEXT)
        await upgrade.kill_writer()
        await upgrade.start_writer(NEXT)
        await upgrade.progress()
        await upgrade.kill_writer()  # This version recovers a ledger that the next version left open.
        await upgrade.start_writer(THIS)
        await upgrade.change_bookies(THIS, SPOKEN)
        await upgrade.stop_writer()
        await upgrade.check()
        assert NEXT_KEY in await upgrade.keys_of_ledgers(), "the recovery kept what it does not know"


@runs_0_1
async def test_an_upgrade_from_0_1_under_load_loses_nothing(tmp_path: Path) -> None:
    await upgrade_from_0_1(tmp_path, step=STEP)


async def test_an_upgrade_to_the_next_version_and_back_under_load_loses_nothing(tmp_path: Path) -> None:
    await upgrade_to_next_and_back(tmp_path, step=STEP)


@runs_0_1
@pytest.mark.soak
async def test_long_upgrades_under_load_lose_nothing(tmp_path: Path) -> None:
    await upgrade_from_0_1(tmp_path / "from", step=10_000)
    await upgrade_to_next_and_back(tmp_path / "next", step=10_000)
