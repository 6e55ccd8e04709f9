"""``ledgerlog bench failover``: from a fault of a leading process to the next durable append by its standby.

Two processes (``cli.bench_candidate``) stand in one election and append to one log while they lead, with
default settings. Each round injects a fault into the leader, waits for the first durable append of the
standby, kills the old leader, and starts a new standby. The faults:

kill             SIGKILL
stop             SIGSTOP: the leader hangs
cut-bookies      nothing passes between the leader and the bookies (``cli.bench_cut``)
cut-store        nothing passes between the leader and ZooKeeper. The leader continues appending until its
                 session has ended and the standby has fenced it

The *gap* is the time without a durable append. It begins with the fault; with ``cut-store``, it begins with
the last durable append of the old leader. Marks of the standby divide a round into parts:

detection        from the fault until the standby claims the leadership
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
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import trio

from ledgerlog.cli.bench_cluster import BenchCluster
from ledgerlog.cli.bench_cut import StoreRelay, open_store_relay
from ledgerlog.cli.processes import Child, ChildProcesses, open_children, python_command
from ledgerlog.errors import InvalidArgument, LedgerLogError
from ledgerlog.limits import ELECTION_TENURE_S
from ledgerlog.meta.uri import ZooKeeperUri, parse_uri

__all__ = ["FAULTS", "PARTS", "FailoverRound", "failover_rounds", "parts_of"]

PARTS = ("detection", "election", "fencing", "recovery", "creating", "compare-and-set", "append")
FAULTS = ("kill", "stop", "cut-bookies", "cut-store")
_BOUNDS = ("fault", "claiming", "leading", "reading", "done", "created", "entered", "appended")

_EVENT_S = 60.0
_BETWEEN_S = 2 * ELECTION_TENURE_S
"""A leader leads for this long before the fault."""


@attrs.frozen(kw_only=True)
class FailoverRound:
    """The times of one round. ``parts_ms`` has a time for each of ``PARTS``."""

    fault: str
    """One of ``FAULTS``."""
    gap_ms: float
    """The time without a durable append."""
    total_ms: float
    """From the fault to the standby's first durable append."""
    takeover_ms: float
    parts_ms: dict[str, float]


def parts_of(fault_ms: float, marks: dict[str, float]) -> dict[str, float]:
    """Return how long each part took, in milliseconds. The sum is the time from the fault to the append."""
    times = {"fault": fault_ms, **marks}
    return {
        part: times[after] - times[before]
        for part, (before, after) in zip(PARTS, pairwise(_BOUNDS), strict=True)
    }


class _Candidate:
    """A process that stands in the election, and the events that it reports."""

    def __init__(self, child: Child, relay: StoreRelay | None) -> None:
        self.child = child
        self._relay = relay
        self._rest = b""

    async def suffer(self, fault: str) -> None:
        """Inject the fault into the process."""
        match fault:
            case "kill":
                self.child.kill()
            case "stop":
                self.child.send_signal(signal.SIGSTOP)
            case "cut-bookies":
                assert self.child.stdin is not None
                await self.child.stdin.send_all(b"!")
            case "cut-store":
                assert self._relay is not None
                self._relay.cut()

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
    bench: BenchCluster,
    uri: str,
    directory: Path,
    *,
    rounds: int,
    fault: str,
    report: Callable[[FailoverRound], None],
) -> None:
    """Run the rounds and call ``report`` for each, except for a first round that does not count.

    The logs of the processes are in ``directory``.

    Raises:
        InvalidArgument: The fault is ``cut-store``, and the metadata is not in ZooKeeper.
    """
    store = parse_uri(uri)
    if fault == "cut-store" and not isinstance(store, ZooKeeperUri):
        raise InvalidArgument(f"--fault cut-store needs a cluster with its metadata in ZooKeeper, not {uri}")
    name = f"bench-failover-{time.time_ns()}"
    await bench.cluster.create_log(name)
    try:
        async with AsyncExitStack() as stack:
            relays: dict[int, StoreRelay] = {}
            if fault == "cut-store":
                assert isinstance(store, ZooKeeperUri)
                for number in range(rounds + 2):
                    relays[number] = await stack.enter_async_context(open_store_relay(store))
            children = await stack.enter_async_context(open_children())

            async def start(number: int) -> _Candidate:
                relay = relays.get(number)
                return await _start(children, uri, name, number, directory, relay, bench.client_environment)

            leader = await start(0)
            await leader.event("leading")
            for number in range(1, rounds + 2):
                standby = await start(number)
                await standby.event("standing")
                await trio.sleep(_BETWEEN_S)
                fault_ms = time.monotonic_ns() / 1e6
                await leader.suffer(fault)
                said = await standby.event("leading")
                gap_from_ms = fault_ms
                if fault == "cut-store":
                    gap_from_ms = (await leader.event("lost"))["acknowledged"]
                leader.child.kill()
                parts = parts_of(fault_ms, said["marks"])
                if number > 1:
                    one = FailoverRound(
                        fault=fault,
                        gap_ms=fault_ms + sum(parts.values()) - gap_from_ms,
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


async def _start(
    children: ChildProcesses,
    uri: str,
    log: str,
    number: int,
    directory: Path,
    relay: StoreRelay | None,
    environment: Mapping[str, str],
) -> _Candidate:
    where = uri if relay is None else relay.uri
    child = await children.start(
        f"candidate-{number}",
        python_command("ledgerlog.cli.bench_candidate", where, log, f"candidate-{number}"),
        pipe_in=True,
        pipe_out=True,
        log_path=directory / f"candidate-{number}.log",
        environment=environment,
    )
    return _Candidate(child, relay)
