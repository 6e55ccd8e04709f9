"""Leaders over a real ensemble of three ZooKeeper servers that are restarted, one by one or all at once.

The tests print the longest gap between two appends (``pytest -s``). They do not assert it, because it
depends on the machine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

import ledgerlog
from ledgerlog.cli.local_cluster import LocalCluster, local_cluster
from ledgerlog.cli.zookeeper import wait_serving
from ledgerlog.cluster import Cluster
from ledgerlog.errors import LedgerLogError
from ledgerlog.model.layout import candidates_path
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.processes


@attrs.define(eq=False)
class Leader:
    """A process that appends to the log while it leads."""

    cluster: Cluster
    name: str
    terms: list[int] = attrs.Factory(list)
    errors: list[LedgerLogError] = attrs.Factory(list)
    appended: list[bytes] = attrs.Factory(list)
    longest_gap_s: float = 0.0

    async def run(self) -> None:
        log = await self.cluster.open_log("led")
        election = self.cluster.election("led", candidate=self.name)
        while True:
            try:
                async with election.leadership() as term, log.writer() as writer:
                    self.terms.append(int(term))
                    acknowledged_at = trio.current_time()
                    while True:
                        data = f"{self.name} {len(self.appended)}".encode()
                        await writer.append(data)
                        self.appended.append(data)
                        now = trio.current_time()
                        self.longest_gap_s = max(self.longest_gap_s, now - acknowledged_at)
                        acknowledged_at = now
                        await trio.sleep(0.005)
            except LedgerLogError as error:
                self.errors.append(error)

    async def appends(self, count: int = 30) -> None:
        """Wait for ``count`` more appends."""
        enough = len(self.appended) + count
        await until(lambda: len(self.appended) >= enough)


async def _has_two(listing: Awaitable[list[str]]) -> bool:
    return len(await listing) == 2


@asynccontextmanager
async def leader_and_standby(path: Path) -> AsyncIterator[tuple[LocalCluster, Leader, Leader]]:
    """Run a leader and a standby. At the end, only the leader may have led, and the log must hold its
    appends."""
    async with (
        local_cluster(path, bookies=3, zookeepers=3) as local,
        ledgerlog.connect(local.uri) as first,
        ledgerlog.connect(local.uri) as second,
    ):
        log = await local.cluster.create_log("led")
        leader, standby = Leader(first, "leader"), Leader(second, "standby")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leader.run)
            await leader.appends()
            nursery.start_soon(standby.run)
            store = local.cluster.store
            await until(lambda: _has_two(store.children(candidates_path("led"))))
            yield local, leader, standby
            await leader.appends()
            now = await standby.cluster.election("led").leader()
            nursery.cancel_scope.cancel()
        assert now is not None
        assert (now.candidate, now.term, now.is_registered) == ("leader", 1, True)
        assert (leader.terms, standby.terms) == ([1], [])
        assert leader.errors == standby.errors == []
        async with log.writer() as writer, log.read() as records:
            assert writer.epoch == 2, "nobody else took over"
            assert [record.data async for record in records][: len(leader.appended)] == leader.appended


async def test_a_rolling_restart_of_zookeeper_costs_no_change_of_leader(tmp_path: Path) -> None:
    async with leader_and_standby(tmp_path / "cluster") as (local, leader, _):
        leader.longest_gap_s = 0.0
        for name, server in local.servers.items():
            before = len(leader.appended)
            await local.zookeepers[name].stop()
            await leader.appends()
            await local.start_zookeeper(name)
            with trio.fail_after(PATIENCE_S):
                await wait_serving(server)
            await leader.appends()
            print(f"{name}: {len(leader.appended) - before} appends during its restart")
        print(f"rolling restart: the longest gap was {leader.longest_gap_s * 1000:.0f} ms")


async def test_fifteen_seconds_without_any_zookeeper_cost_a_leader_nothing(tmp_path: Path) -> None:
    """Fifteen seconds are more than twice the session timeout."""
    async with leader_and_standby(tmp_path / "cluster") as (local, leader, _):
        leader.longest_gap_s = 0.0
        for child in local.zookeepers.values():
            child.kill()
        for child in local.zookeepers.values():
            await child.wait()
        down_at, before = trio.current_time(), len(leader.appended)
        await until(lambda: trio.current_time() - down_at >= 15)
        await leader.appends()
        during = len(leader.appended) - before
        for name in local.servers:
            await local.start_zookeeper(name)
        with trio.fail_after(PATIENCE_S):
            for server in local.servers.values():
                await wait_serving(server)
        await leader.appends(300)
        print(
            f"{during} appends in {trio.current_time() - down_at:.0f} s without ZooKeeper; "
            f"the longest gap was {leader.longest_gap_s * 1000:.0f} ms"
        )
