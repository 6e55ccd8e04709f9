"""Run contending log writers as processes, and record the answers that they got.

The driver keeps the output of each writer's pipe (``writer``), outside the processes that are killed. A
record counts as acknowledged as soon as its writer says so, even if the writer is killed then. A writer that
ends is started again under a new name, so that record names never come twice.

``judge_all`` has the last word. It applies ``ledgerlog.testing.log_history.judge`` to the whole log, read
twice when everything is healed. It also checks that no leader was told an offset at or behind the start of a
newer leadership.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import trio

from ledgerlog.cli.local_cluster import LocalCluster
from ledgerlog.cli.processes import Child
from ledgerlog.log.log import Log
from ledgerlog.model.ids import Position
from ledgerlog.model.record import Ack, Record
from ledgerlog.testing.invariants import Violation
from ledgerlog.testing.log_history import AppendCall, LogHistory, judge
from tests.nemesis.namespaces import Namespaces
from tests.nemesis.proxies import Proxies
from tests.nemesis.writer import ANYWHERE

__all__ = ["LOG", "NS", "Writers", "judge_deposed", "now_ns"]

LOG = "contended"
NS = 1_000_000_000
REPOSITORY = Path(__file__).resolve().parents[2]


@attrs.define(eq=False)
class Writers:
    """The processes ``writer-1``, ``writer-2``, ... and their history."""

    local: LocalCluster
    network: Proxies | Namespaces
    seed: int
    think_s: float
    term_s: float
    history: LogHistory = attrs.Factory(LogHistory)
    counts: Counter[str] = attrs.Factory(Counter)
    acked_at: list[int] = attrs.Factory(list)
    """The time of each call's acknowledgement, in nanoseconds of the monotonic clock."""
    running: dict[str, Child] = attrs.Factory(dict)
    is_over: bool = False
    """If true, writers that end are not started again."""
    _starts: int = 0
    _acked: trio.Event = attrs.Factory(trio.Event)

    async def keep(self, name: str) -> None:
        """Run a writer, again and again, until ``end``."""
        while not self.is_over:
            self._starts += 1
            incarnation = f"{name}.{self._starts}"
            child = await self.local.children.start(
                name,
                [
                    *(self.network.command(name) if isinstance(self.network, Namespaces) else ()),
                    *(sys.executable, "-m", "tests.nemesis.writer", incarnation, self._uri(name), LOG),
                    *(self._links_of(name), f"{self.seed}/{incarnation}"),
                    *(str(self.think_s), str(self.term_s)),
                ],
                pipe_out=True,
                log_path=self.local.path / f"{name}.log",
                cwd=REPOSITORY,
            )
            self.running[name] = child
            await self._listen(child)
            # The pipe ends with the process, so all its output has been read.
            status = await child.wait()
            if status >= 0:
                raise Violation(f"a writer ended that nobody had killed: {child.how_it_ended()}")

    def end(self) -> None:
        """SIGKILL all writers, for good."""
        self.is_over = True
        for child in self.running.values():
            child.kill()

    async def wait_acked(self) -> None:
        """Return at the next acknowledgement."""
        await self._acked.wait()

    def _uri(self, name: str) -> str:
        if isinstance(self.network, Proxies) and self.local.servers:
            return self.network.metadata_uri(name)
        return self.local.uri

    def _links_of(self, name: str) -> str:
        """Return the address where the links of this writer begin."""
        return self.network.hosts[name] if isinstance(self.network, Proxies) else ANYWHERE

    async def _listen(self, child: Child) -> None:
        assert child.stdout is not None
        calls: dict[int, AppendCall] = {}
        rest = b""
        async for data in child.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._on_event(calls, json.loads(line))

    def _on_event(self, calls: dict[int, AppendCall], event: dict[str, Any]) -> None:
        match event["event"]:
            case "leads":
                self.counts["takeovers"] += 1
                self.history.on_leader(event["epoch"], event["offset"])
            case "sent":
                call = calls[event["call"]] = AppendCall(
                    [record.encode() for record in event["records"]], event["at"]
                )
                self.history.calls.append(call)
                self.counts["sent"] += len(call.names)
            case "acked":
                call = calls.pop(event["call"])
                call.answered_at = event["at"]
                call.acks = [
                    Ack(offset, Position(*position), epoch) for offset, position, epoch in event["acks"]
                ]
                if len(call.acks) != len(call.names):
                    raise Violation(f"{len(call.acks)} acknowledgements for {len(call.names)} records")
                self.acked_at.append(event["at"])
                self.counts["acked"] += len(call.names)
                self._acked.set()
                self._acked = trio.Event()
            case "refused":
                self.history.on_refused(calls.pop(event["call"]))
                self.counts["refused calls"] += 1
            case "unknown":
                calls.pop(event["call"])
                self.counts["unknown calls"] += 1
            case "term failed":
                self.counts["terms that failed"] += 1
            case other:
                raise AssertionError(f"a writer says {other!r}")

    # --- the end ------------------------------------------------------------------------------

    async def append_the_last(self, log: Log) -> None:
        """Take the log over once more, and append one more record. Errors of the log pass through."""
        async with log.writer() as writer:
            self.history.on_leader(writer.epoch, writer.next_offset)
            call = AppendCall([b"the last, of epoch %d" % writer.epoch], now_ns())
            self.history.calls.append(call)
            ack = await writer.append(call.names[0])
            call.answered_at, call.acks = now_ns(), [ack]

    def judge_all(self, final: list[Record], again: list[Record]) -> None:
        """Raise Violation if these two complete reads do not explain every answer to a writer."""
        judge(self.history, final, again)
        judge_deposed(self.history)

    def longest_gap(self, began_ns: int, ended_ns: int) -> tuple[float, int]:
        """Return the longest time without an acknowledgement, in seconds, and its start in nanoseconds."""
        times = [began_ns, *sorted(at for at in self.acked_at if began_ns < at < ended_ns), ended_ns]
        return max(((after - before) / NS, before) for before, after in itertools.pairwise(times))


def judge_deposed(history: LogHistory) -> None:
    """Raise Violation if a leader was told an offset at or behind the start of a newer leadership."""
    lowest: dict[int, int] = {}
    epochs = sorted(history.begun)
    newer = sys.maxsize
    for epoch in reversed(epochs):
        lowest[epoch] = newer
        newer = min(newer, history.begun[epoch])
    for call in history.calls:
        for ack in call.acks:
            if ack.epoch not in lowest:
                raise Violation(f"{ack} is of a leadership that nobody was told of")
            if ack.offset >= lowest[ack.epoch]:
                raise Violation(
                    f"the leader of epoch {ack.epoch} was told offset {ack.offset}, and a newer one began at "
                    f"{lowest[ack.epoch]}"
                )


def now_ns() -> int:
    """Read the clock that all processes of this machine share."""
    return time.monotonic_ns()
