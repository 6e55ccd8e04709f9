"""``ledgerlog bench failover``: from kill -9 of a leading process to the next durable append by its standby.

Two processes (``cli.bench_candidate``) stand in one election and append to one log while they lead, with
default settings. Each round kills the leader with SIGKILL, waits for the first durable append of the standby,
and starts a new standby. Marks of the standby divide a round into parts:

detection        from the kill until the standby claims the leadership
election         its compare-and-set on the election's record
fencing          entering the log's writer: read the list, mark and fence the last ledger
recovery         find the ledger's end, write its last entries back, close it
creating         create the new ledger
compare-and-set  put the new ledger into the log's list
append           the first durable append

``takeover`` is the sum from fencing to compare-and-set.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import trio

from ledgerlog.cli.bench_cluster import BenchCluster
from ledgerlog.cli.processes import Child, ChildProcesses, open_children, python_command
from ledgerlog.errors import LedgerLogError
from ledgerlog.limits import ELECTION_TENURE_S

__all__ = ["PARTS", "FailoverRound", "failover_rounds", "parts_of"]

PARTS = ("detection", "election", "fencing", "recovery", "creating", "compare-and-set", "append")
_BOUNDS = ("killed", "claiming", "leading", "reading", "done", "created", "entered", "appended")

_EVENT_S = 60.0
_BETWEEN_S = 2 * ELECTION_TENURE_S
"""A leader leads for this long before it is killed."""


@attrs.frozen(kw_only=True)
class FailoverRound:
    """The times of one round. ``parts_ms`` has a time for each of ``PARTS``."""

    total_ms: float
    takeover_ms: float
    parts_ms: dict[str, float]


def parts_of(killed_ms: float, marks: dict[str, float]) -> dict[str, float]:
    """Return how long each part took, in milliseconds. The sum is the time from the kill to the append."""
    times = {"killed": killed_ms, **marks}
    return {
        part: times[after] - times[before]
        for part, (before, after) in zip(PARTS, pairwise(_BOUNDS), strict=True)
    }


class _Candidate:
    """A process that stands in the election, and the events that it reports."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self._rest = b""

    async def event(self, kind: str) -> dict[str, Any]:
        """Wait for the next event of this kind; skip others."""
        assert self.child.stdout is not None
        with trio.move_on_after(_EVENT_S):
            while True:
                line, newline, rest = self._rest.partition(b"\n")
                if newline:
                    self._rest = rest
                    said: dict[str, Any] = json.loads(line)
                    if said["event"] == kind:
                        return said
                    continue
                more = await self.child.stdout.receive_some()
                if not more:
                    raise LedgerLogError(f"a candidate ended: {self.child.how_it_ended()}")
                self._rest += more
        raise LedgerLogError(f"no candidate said {kind!r} within {_EVENT_S:g} s")


async def failover_rounds(
    bench: BenchCluster, uri: str, directory: Path, *, rounds: int, report: Callable[[FailoverRound], None]
) -> None:
    """Run the rounds and call ``report`` for each, except for a first one that does not count.

    The logs of the processes go into ``directory``.
    """
    name = f"bench-failover-{time.time_ns()}"
    await bench.cluster.create_log(name)
    try:
        async with open_children() as children:
            leader = await _start(children, uri, name, 0, directory)
            await leader.event("leading")
            for number in range(1, rounds + 2):
                standby = await _start(children, uri, name, number, directory)
                await standby.event("standing")
                await trio.sleep(_BETWEEN_S)
                killed_ms = time.monotonic_ns() / 1e6
                leader.child.kill()
                said = await standby.event("leading")
                parts = parts_of(killed_ms, said["marks"])
                if number > 1:
                    one = FailoverRound(
                        total_ms=sum(parts.values()),
                        takeover_ms=sum(
                            parts[part] for part in ("fencing", "recovery", "creating", "compare-and-set")
                        ),
                        parts_ms=parts,
                    )
                    report(one)
                leader = standby
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(10):
            await bench.cluster.delete_log(name)


async def _start(children: ChildProcesses, uri: str, log: str, number: int, directory: Path) -> _Candidate:
    command = python_command("ledgerlog.cli.bench_candidate", uri, log, f"candidate-{number}")
    child = await children.start(
        f"candidate-{number}",
        command,
        pipe_in=True,
        pipe_out=True,
        log_path=directory / f"candidate-{number}.log",
    )
    return _Candidate(child)
