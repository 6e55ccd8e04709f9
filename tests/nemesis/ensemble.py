"""Faults on the ZooKeeper servers that hold the metadata of a cluster.

    kill server        SIGKILL one, the leader every other time; start it again after a while
    kill servers       the same for two or all three; meanwhile, no metadata can be read or written
    stop server        SIGSTOP one, the leader every other time; the others elect another leader
    cut metadata       a partition between a writer or bookie and one, two or all servers

Servers sync every write before they acknowledge it, and SIGKILL spares the page cache. So no acknowledged
write is lost, even if all servers are killed. Only one server fault runs at a time: if the three servers
never had a majority, nothing in the cluster would ever change. Partitions are not server faults, and may run
at the same time.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import attrs
import trio

from ledgerlog.cli.local_cluster import LocalCluster
from ledgerlog.cli.zookeeper import ask, wait_serving
from ledgerlog.testing.invariants import Violation

__all__ = ["SERVER_KINDS", "ServerFaults"]

SERVER_KINDS: dict[str, float] = {
    "kill server": 2,
    "kill servers": 0.4,
    "stop server": 1.5,
    "cut metadata": 3,
}
"""Frequency of each fault, relative to the others and to the faults of bookies and writers."""


@attrs.define(eq=False)
class ServerFaults:
    """The ensemble of a cluster, and the faults of its servers."""

    local: LocalCluster
    counts: Counter[str]
    patience_s: float
    """Seconds that a started server may take until it serves."""
    _is_busy: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether a server is killed or stopped at the moment."""
        return self._is_busy

    @property
    def names(self) -> list[str]:
        return list(self.local.servers)

    async def choose(self, dice: Random) -> str:
        """Choose a server for a fault: every other time, the leader."""
        if dice.random() < 0.5:
            for name, server in self.local.servers.items():
                if re.search(r"^Mode: leader$", await ask(server.client_port, "srvr"), re.MULTILINE):
                    self.counts["leading servers met"] += 1
                    return name
        return dice.choice(self.names)

    async def kill(self, names: list[str], dice: Random) -> None:
        """SIGKILL the servers, and start them again after a while."""
        with self._alone():
            for name in names:
                child = self.local.zookeepers[name]
                child.kill()
                self.counts["kills of servers"] += 1
                if await child.wait() != -signal.SIGKILL:
                    raise Violation(f"a server ended before it was killed: {child.how_it_ended()}")
            await trio.sleep(min(dice.expovariate(1 / 2), 10.0))
            await self._start(names)

    async def stop(self, name: str, dice: Random) -> None:
        """SIGSTOP a server, sometimes for longer than the others wait for it and than a session lives."""
        with self._alone():
            child = self.local.zookeepers[name]
            child.send_signal(signal.SIGSTOP)
            try:
                await trio.sleep(dice.choice((0.5, 3.0, 8.0)) * dice.uniform(0.5, 1))
            finally:
                child.send_signal(signal.SIGCONT)
            await self._wait_serving([name])

    async def heal(self) -> None:
        """Make all servers run and serve.

        Raises:
            Violation: A server does not serve in time.
        """
        self._is_busy = False
        for child in self.local.zookeepers.values():
            child.send_signal(signal.SIGCONT)
        await self._start([name for name in self.names if not self.local.zookeepers[name].is_running])
        if late := await self._wait_serving(self.names):
            raise Violation(f"{late} do not serve {self.patience_s:g} s after everything was healed")

    def require_running(self) -> None:
        """Raise Violation if a server ended by itself."""
        for child in self.local.zookeepers.values():
            if not self._is_busy and not child.is_running:
                raise Violation(f"a server ended that nobody had killed: {child.how_it_ended()}")

    async def _start(self, names: list[str]) -> None:
        for name in names:
            await self.local.start_zookeeper(name)
        await self._wait_serving(names)

    async def _wait_serving(self, names: list[str]) -> list[str]:
        """Return the servers that do not serve in time. During trouble, the trouble may be the cause."""
        late = []
        for name in names:
            with trio.move_on_after(self.patience_s) as patience:
                await wait_serving(self.local.servers[name])
            if patience.cancelled_caught:
                self.counts["servers that took too long"] += 1
                late.append(name)
        return late

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False
