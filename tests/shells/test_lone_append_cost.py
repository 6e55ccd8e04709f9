"""Counts what a lone append costs. It does not measure time.

A lone append is all overhead: passes of event loops, steps of tasks and system calls. Each of them costs more
than the work on the entry, so one more of any is a regression that this notices, on any machine.
"""

from __future__ import annotations

import math
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import pytest
import trio
from raw_client import add
from serving import Machine
from trio.testing import wait_all_tasks_blocked

from bookie.server.server import BookieServer
from bookie.storage.disk import real as real_disk
from ledgerlog import embedded
from ledgerlog.cluster import connect
from ledgerlog.ledger import writer as ledger_writer
from ledgerlog.model.quorum import Replication
from ledgerlog.net.tcp import TcpNetwork
from ledgerlog.testing.faulty_disk import FaultyDisk
from ledgerlog.wire.frame import HEADER_BYTES
from ledgerlog.wire.hello import Hello, encode_hello
from tests.waiting import PATIENCE_S

APPENDS = 300
SLACK = 0.5
"""Allowed for other work of the process, for each append: registrations, and a message that came in two
pieces."""
BOOKIE_CALLS = 260
"""The maximum of Python and C calls of an add on a bookie, including the calls of the event loop."""
CALLS_IN_ONE_PROCESS = 1_350
"""The maximum of calls of an append on its writer and three bookies together."""

_SYSTEM_CALLS = {
    "poll": "epoll_wait",
    "modify": "epoll_ctl",
    "register": "epoll_ctl",
    "recv_into": "recv",
    "sendmsg": "send",
    "pwritev": "write",
}


class Cost(trio.abc.Instrument):
    """Counts what the event loop does, and the system calls of the hot path by their names in C."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.steps_of: Counter[str] = Counter()
        self.calls = 0
        """How many functions were called, in Python and C."""
        self.calls_at: list[int] = []
        """``calls`` at the beginning of each append."""

    def before_io_wait(self, timeout: float) -> None:
        self.counts["passes"] += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.counts["steps"] += 1
        self.steps_of[task.name] += 1

    def on_profile(self, _frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.calls += 1
        elif event == "c_call":
            self.calls += 1
            name = _SYSTEM_CALLS.get(argument.__name__)
            if name is not None:
                self.counts[name] += 1
            if name == "recv":
                self.calls_at.append(self.calls)

    def per_append(self) -> dict[str, float]:
        return {name: count / APPENDS for name, count in self.counts.items()}

    @property
    def calls_of_an_append(self) -> int:
        """How many calls an append took. The lowest number counts, because the others include work of timers.
        On a busy machine, most appends take so long that timers run."""
        return min(after - before for before, after in pairwise(self.calls_at))


@contextmanager
def counting() -> Iterator[Cost]:
    cost = Cost()
    trio.lowlevel.add_instrument(cost)
    before = sys.getprofile()
    sys.setprofile(cost.on_profile)
    try:
        yield cost
    finally:
        sys.setprofile(before)
        trio.lowlevel.remove_instrument(cost)


@pytest.fixture(autouse=True)
def _a_disk_that_is_always_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_disk, "INLINE_S", math.inf)


def append_one_by_one(address: str) -> None:
    """In a thread, over a blocking socket: what is counted is the bookie's alone."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(encode_hello(Hello("b1", None, None)))
        assert peer.recv(65536)
        for entry_id in range(APPENDS):
            peer.sendall(b"".join(bytes(buffer) for buffer in add(7, entry_id, [b"x" * 100])))
            left = HEADER_BYTES
            while left:
                left -= len(peer.recv(left))


async def test_a_bookie_takes_one_step_and_five_system_calls_and_few_calls(tmp_path: Path) -> None:
    machine = Machine.real(tmp_path / "b1", network=TcpNetwork(), listen="127.0.0.1:0")
    async with machine.bookie() as bookie:
        await wait_all_tasks_blocked()
        with counting() as cost:
            await trio.to_thread.run_sync(append_one_by_one, bookie.node.address)
    assert cost.calls_of_an_append <= BOOKIE_CALLS
    spent = cost.per_append()
    for name in ("steps", "passes", "epoll_wait", "epoll_ctl", "recv", "send", "write"):
        assert 1 - SLACK < spent[name] < 1 + SLACK, (name, spent, cost.steps_of)


async def test_a_writer_and_its_bookies_take_one_step_each_and_one_for_each_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No segment fills up during the test.
    monkeypatch.setattr(embedded, "STORAGE", attrs.evolve(embedded.STORAGE, first_segment_bytes=0))
    # No append is so slow that the writer publishes the LAC by itself, which goes by the clock.
    monkeypatch.setattr(ledger_writer, "LAC_PUBLISH_IDLE_S", PATIENCE_S)
    async with (
        connect(f"file:{tmp_path}?bookies=3") as cluster,
        await cluster.ledgers.create(replication=Replication(3, 3, 2)) as ledger,
    ):
        await ledger.append(b"x" * 100)
        await wait_all_tasks_blocked()
        with counting() as cost:
            for _ in range(APPENDS):
                cost.calls_at.append(cost.calls)
                await ledger.append(b"x" * 100)
    assert cost.calls_of_an_append <= CALLS_IN_ONE_PROCESS
    steps = {name: count / APPENDS for name, count in cost.steps_of.items()}
    for bookie in ("bookie-1", "bookie-2", "bookie-3"):
        assert steps[f"connection to {bookie}"] < 1 + SLACK, steps
    serving = steps[f"{BookieServer.__module__}.{BookieServer._run.__qualname__}"]
    assert 3 - SLACK < serving < 3 + SLACK, steps
    assert steps[trio.lowlevel.current_task().name] < 1 + SLACK, steps
    assert cost.counts["write"] / APPENDS < 3 + SLACK
    # The journal's own tasks sleep; the writer's maintenance runs by the clock, and not for each append.
    assert sum(count for name, count in steps.items() if "_running" in name) < SLACK, steps


async def test_adds_of_two_connections_go_to_the_journals_task_which_gathers_them() -> None:
    disk = FaultyDisk()
    disk.is_quick = True
    async with Machine(disk=disk).bookie() as bookie:
        one, two = await bookie.client(), await bookie.client()
        for entry_id in range(4):
            await one.add(1, entry_id, [b"x"])
            await one.acknowledged(entry_id + 1)
        assert disk.calls["write_now"] == 2, "alone from its third add on: after the second it need not ask"
        for entry_id in range(4):
            await two.add(2, entry_id, [b"y"])
            await two.acknowledged(entry_id + 1)
            await one.add(1, 4 + entry_id, [b"x"])
            await one.acknowledged(5 + entry_id)
        assert disk.calls["write_now"] == 2
        await two.add(2, 4, [b"y"])
        await two.acknowledged(5)
        await two.add(2, 5, [b"y"])
        await two.acknowledged(6)
        assert disk.calls["write_now"] == 3, "alone again"
