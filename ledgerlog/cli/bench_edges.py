"""``ledgerlog bench followers``, ``isolation`` and ``idle``: measurements that are not about one busy writer.

followers   many readers of this process follow one log that is written at a fixed rate. Each record carries
            the time at which it was handed to the writer. A latency is the time from then until a follower
            has the record
isolation   a ledger is written at a fixed rate, first alone, then while other processes replay a log again
            and again. Compare the two p99
idle        nothing happens: the CPU time of each process, first of a client that is only connected, then
            with many open logs, each with its writer
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio

from ledgerlog.cli.bench_cluster import BenchCluster
from ledgerlog.cli.bench_drives import LedgerPace, payloads_of
from ledgerlog.cli.bench_figures import Latencies
from ledgerlog.cli.bench_pacing import ticks
from ledgerlog.limits import MIB
from ledgerlog.log.log import Log
from ledgerlog.model.quorum import Replication

__all__ = ["STAMP_BYTES", "EdgeRun", "follow_runs", "idle_runs", "isolation_runs"]

STAMP_BYTES = 8
"""Bytes of the time in each record of ``followers``."""

_TICK_S = 0.002
_LATE_S = 10.0
"""After the last record, followers may take this many seconds to get the remaining records."""
_BACKLOG_BYTES = 32 * MIB
_BACKLOG_RECORD_BYTES = 1024
_OPENED_AT_ONCE = 32


@attrs.frozen(kw_only=True)
class EdgeRun:
    """One run's figures."""

    mode: str
    """``followers``; ``alone`` or ``with_readers``; ``connected`` or ``logs``."""
    count: int
    """How many followers, readers or logs."""
    size: int | None
    """Bytes of a record; None if nothing is written."""
    written: int
    """How many records were written."""
    records: int
    """How many records the figures are about: delivered to followers, or confirmed to the writer."""
    missing: int
    """How many deliveries had not come when the time was over."""
    seconds: float
    records_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    cpu_us: dict[str, Any]
    """Microseconds of CPU for each of ``records``; while nothing happens, for each second. The processes of
    other readers do not count."""
    core_percent: dict[str, float] | None = None
    """While nothing happens: how much of a core each process takes, in percent."""
    replays: int | None = None
    """How often the log of ``isolation`` was replayed to its end."""


Report = Callable[[EdgeRun], None]
"""Takes the figures of each run when it is done."""


async def follow_runs(
    bench: BenchCluster,
    report: Report,
    *,
    followers: int,
    rate: float,
    size: int,
    seconds: float,
    replication: Replication,
) -> None:
    """Measure followers of one log. A record has at least ``STAMP_BYTES``."""
    latencies = Latencies()
    seen = [0] * followers
    padding = os.urandom(size - STAMP_BYTES)

    def stamped() -> bytes:
        return time.perf_counter_ns().to_bytes(STAMP_BYTES, "little") + padding

    async def follow(log: Log, number: int) -> None:
        async with log.read(follow=True) as records:
            async for record in records:
                if record.offset:
                    written_at = int.from_bytes(record.data[:STAMP_BYTES], "little")
                    latencies.add(time.perf_counter_ns() - written_at)
                seen[number] += 1

    async with _a_log(bench, "followers", replication) as log, log.writer() as writer:
        await writer.append(stamped())
        async with trio.open_nursery() as nursery:
            for number in range(followers):
                nursery.start_soon(follow, log, number)
            await _until(lambda: min(seen) > 0)
            meter = await bench.meter()
            began = time.perf_counter()
            written = 0
            with ticks(_TICK_S) as clock:
                while (elapsed := time.perf_counter() - began) < seconds:
                    due = int(elapsed * rate) - written
                    if due > 0:
                        await writer.append_many([stamped() for _ in range(due)])
                        written += due
                    await clock.wait()
            with trio.move_on_after(_LATE_S):
                await _until(lambda: min(seen) > written)
            took = time.perf_counter() - began
            spent = await meter.spent()
            nursery.cancel_scope.cancel()
    delivered = latencies.count
    p50, p99 = latencies.percentiles_ms(0.5, 0.99)
    found = EdgeRun(
        mode="followers",
        count=followers,
        size=size,
        written=written,
        records=delivered,
        missing=written * followers - delivered,
        seconds=took,
        records_per_s=delivered / took,
        p50_ms=p50,
        p99_ms=p99,
        cpu_us=spent.cpu_us(max(1, delivered)),
    )
    report(found)


async def isolation_runs(
    bench: BenchCluster,
    uri: str,
    report: Report,
    *,
    readers: int,
    rate: float,
    size: int,
    seconds: float,
    replication: Replication,
) -> None:
    """Measure a writer alone, and beside the processes of readers that connect to ``uri``."""
    async with _a_log(bench, "backlog", replication) as log:
        payloads = payloads_of(_BACKLOG_RECORD_BYTES, 4096)
        async with log.writer() as writer:
            for _ in range(_BACKLOG_BYTES // (_BACKLOG_RECORD_BYTES * len(payloads))):
                await writer.append_many(payloads)
        report(await _paced(bench, "alone", 0, None, rate, size, seconds, replication))
        replays = [0]
        async with trio.open_nursery() as nursery:
            for _ in range(readers):
                nursery.start_soon(_replay_again_and_again, bench, uri, log.name, replays)
            await _until(lambda: replays[0] >= readers)
            report(await _paced(bench, "with_readers", readers, replays, rate, size, seconds, replication))
            nursery.cancel_scope.cancel()


async def _replay_again_and_again(bench: BenchCluster, uri: str, name: str, replays: list[int]) -> None:
    command = [sys.executable, "-P", "-m", "ledgerlog", "log", "read", name, "--raw", "--uri", uri]
    while True:
        await trio.run_process(
            command, stdout=subprocess.DEVNULL, capture_stderr=True, env=bench.client_environment
        )
        replays[0] += 1


async def _paced(
    bench: BenchCluster,
    mode: str,
    count: int,
    replays: list[int] | None,
    rate: float,
    size: int,
    seconds: float,
    replication: Replication,
) -> EdgeRun:
    async with await bench.cluster.ledgers.create(replication=replication) as ledger:
        meter = await bench.meter()
        before = 0 if replays is None else replays[0]
        began = time.perf_counter()
        pace = LedgerPace(ledger, size=size, rate=rate)
        await pace.run(seconds)
        took = time.perf_counter() - began
        spent = await meter.spent()
    await bench.cluster.ledgers.delete(ledger.ledger_id)
    confirmed = pace.latencies.count
    p50, p99 = pace.latencies.percentiles_ms(0.5, 0.99)
    return EdgeRun(
        mode=mode,
        count=count,
        size=size,
        written=confirmed,
        records=confirmed,
        missing=0,
        seconds=took,
        records_per_s=confirmed / took,
        p50_ms=p50,
        p99_ms=p99,
        cpu_us=spent.cpu_us(max(1, confirmed)),
        replays=None if replays is None else replays[0] - before,
    )


async def idle_runs(
    bench: BenchCluster, report: Report, *, logs: int, seconds: float, replication: Replication
) -> None:
    """Measure a cluster in which nothing happens: without open logs, and with this many."""
    report(await _idle(bench, "connected", 0, seconds))
    names = [f"bench-idle-{time.time_ns()}-{number}" for number in range(logs)]
    limiter = trio.CapacityLimiter(_OPENED_AT_ONCE)
    opened = 0

    async def hold(name: str) -> None:
        nonlocal opened
        async with AsyncExitStack() as stack:
            async with limiter:
                log = await bench.cluster.create_log(name, replication=replication)
                writer = await stack.enter_async_context(log.writer())
                await writer.append(b"one record")
            opened += 1
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(hold, name)
        await _until(lambda: opened == logs)
        await trio.sleep(1.0)  # The writers tell the bookies which entries are confirmed.
        report(await _idle(bench, "logs", logs, seconds))
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(partial(_delete, bench, name, limiter))


async def _delete(bench: BenchCluster, name: str, limiter: trio.CapacityLimiter) -> None:
    async with limiter:
        await bench.cluster.delete_log(name)


async def _idle(bench: BenchCluster, mode: str, count: int, seconds: float) -> EdgeRun:
    meter = await bench.meter()
    began = time.perf_counter()
    await trio.sleep(seconds)
    took = time.perf_counter() - began
    spent = await meter.spent()
    shares = {"client": spent.here_ns / 1e7 / took}
    for name, used_ns in (spent.bookies_ns or {}).items():
        shares[name] = used_ns / 1e7 / took
    return EdgeRun(
        mode=mode,
        count=count,
        size=None,
        written=0,
        records=0,
        missing=0,
        seconds=took,
        records_per_s=0.0,
        p50_ms=None,
        p99_ms=None,
        cpu_us=spent.cpu_us(max(1, round(took))),
        core_percent=shares,
    )


@asynccontextmanager
async def _a_log(bench: BenchCluster, what: str, replication: Replication) -> AsyncIterator[Log]:
    name = f"bench-{what}-{time.time_ns()}"
    log = await bench.cluster.create_log(name, replication=replication)
    yield log
    await bench.cluster.delete_log(name)


async def _until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110 (other tasks and processes make it true)
        await trio.sleep(_TICK_S)
