"""Faults on the ZooKeeper servers that hold the metadata of a cluster.

    kill server        SIGKILL for one, the leader every other time; it comes back after a while
    kill servers       the same for two or all three: no metadata can be read or written meanwhile
    stop server        SIGSTOP for one, the leader every other time: the others elect another one
    cut metadata       a partition between a client, bookies among them, and one, two or all servers

Servers sync what they acknowledge and SIGKILL spares the page cache, so nothing that a server has said is
lost however many are killed. One of these faults at a time: three servers that never have a majority would be
a cluster in which nothing ever changes. Partitions are no fault of a server and come beside them.
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
"""How often each comes, relative to the others and to those of bookies and writers."""


@attrs.define(eq=False)
class ServerFaults:
    """The ensemble of a cluster, and what is done to its servers."""

    local: LocalCluster
    counts: Counter[str]
    patience_s: float
    """How long a server that was started may take until it serves."""
    _is_busy: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether a server is out."""
        return self._is_busy

    @property
    def names(self) -> list[str]:
        return list(self.local.servers)

    async def choose(self, dice: Random) -> str:
        """A server to be met; every other time the one that leads."""
        if dice.random() < 0.5:
            for name, server in self.local.servers.items():
                if re.search(r"^Mode: leader$", await ask(server.client_port, "srvr"), re.MULTILINE):
                    self.counts["leading servers met"] += 1
                    return name
        return dice.choice(self.names)

    async def kill(self, names: list[str], dice: Random) -> None:
        """SIGKILL, and back after a while."""
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
        """SIGSTOP, for longer than the others wait for it and longer than a session lives, now and then."""
        with self._alone():
            child = self.local.zookeepers[name]
            child.send_signal(signal.SIGSTOP)
            try:
                await trio.sleep(dice.choice((0.5, 3.0, 8.0)) * dice.uniform(0.5, 1))
            finally:
                child.send_signal(signal.SIGCONT)
            await self._wait_serving([name])

    async def heal(self) -> None:
        """All run, and all serve."""
        self._is_busy = False
        for child in self.local.zookeepers.values():
            child.send_signal(signal.SIGCONT)
        await self._start([name for name in self.names if not self.local.zookeepers[name].is_running])
        if late := await self._wait_serving(self.names):
            raise Violation(f"{late} do not serve {self.patience_s:g} s after everything was healed")

    def require_running(self) -> None:
        """Violation if one ended by itself."""
        for child in self.local.zookeepers.values():
            if not self._is_busy and not child.is_running:
                raise Violation(f"a server ended that nobody had killed: {child.how_it_ended()}")

    async def _start(self, names: list[str]) -> None:
        for name in names:
            await self.local.start_zookeeper(name)
        await self._wait_serving(names)

    async def _wait_serving(self, names: list[str]) -> list[str]:
        """Which of them do not serve in time. While there is trouble that may be the trouble's doing."""
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
