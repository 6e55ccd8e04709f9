"""``ledgerlog bench write``: throughput, latency and cost of appending.

Each run drives a new ledger or log for some seconds, after half a second of warming up that does not count. A
lone run has one append in flight. It is compared with the machine's own figures (``bench_baseline``), which
are measured right before and right after it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from statistics import median
from typing import Any

import attrs

from ledgerlog.cli.bench_aio import driven_in_asyncio, in_task_group
from ledgerlog.cli.bench_baseline import Baseline
from ledgerlog.cli.bench_cluster import BenchCluster
from ledgerlog.cli.bench_drives import (
    LedgerPace,
    LedgerWindow,
    RecordWriter,
    Together,
    in_nursery,
    log_many,
    log_tasks,
    lone_ledger,
    lone_log,
)
from ledgerlog.cli.bench_figures import Latencies
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.quorum import Replication

__all__ = ["TURNS", "TlsRatio", "WritePlan", "WriteRun", "tls_ratios", "write_runs"]

TURNS = 3
"""How often each run is done, if clusters are compared."""

_WARM_UP_S = 0.5


@attrs.frozen(kw_only=True)
class WritePlan:
    """The runs to measure."""

    api: str
    """``ledger``, ``log``, or ``aio``: a log through the library for asyncio."""
    sizes: tuple[int, ...]
    windows: tuple[int, ...]
    seconds: float
    rate: float | None
    replication: Replication


@attrs.frozen(kw_only=True)
class WriteRun:
    """One run's figures. A latency is the time from handing a record over to its acknowledgement."""

    api: str
    tls: bool
    """Whether the cluster has certificates."""
    mode: str
    """``window``, ``rate``, ``append_many``, ``tasks`` or ``lone``."""
    replication: str
    size: int
    window: int | None
    """Records in flight; None at a fixed rate, which has no window."""
    rate: float | None
    records: int
    seconds: float
    records_per_s: float
    megabytes_per_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    cpu_us: dict[str, Any]
    """Microseconds of CPU for each record (``Spent.cpu_us``)."""
    syncs_per_s: float
    """Syncs of all bookies together, for each second."""
    journal_bytes_per_payload_byte: float
    """Bytes that all bookies together wrote to their journals, for each byte of the records."""
    baseline: dict[str, float] | None = None
    """For a lone run: the medians of one synced write and of one round trip, and the p50 as a multiple of
    their sum."""


async def write_runs(benches: Sequence[BenchCluster], plan: WritePlan) -> AsyncIterator[WriteRun]:
    """Run the plan's runs one after the other.

    Args:
        benches: The clusters. If there are several, each run takes ``TURNS`` turns on every cluster, so that
            all clusters meet the same conditions of the machine.
        plan: The runs.
    """
    turns = TURNS if len(benches) > 1 else 1
    for size in plan.sizes:
        for window in plan.windows:
            for mode in _modes(plan):
                for bench in [*benches] * turns:
                    yield await _run(bench, plan, mode=mode, size=size, window=window)
        if plan.rate is None:
            for bench in [*benches] * turns:
                before = await bench.baseline()
                lone = await _run(bench, plan, mode="lone", size=size, window=1)
                after = await bench.baseline()
                yield attrs.evolve(lone, baseline=_against(lone, before, after))


@attrs.frozen(kw_only=True)
class TlsRatio:
    """The cost of TLS in one kind of run: medians with TLS as multiples of the medians without TLS."""

    mode: str
    size: int
    window: int | None
    records_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """The CPU time of all processes together, also as a multiple."""


def tls_ratios(runs: Sequence[WriteRun]) -> list[TlsRatio]:
    """Compare the runs with TLS with the runs without TLS."""
    ratios = []
    for mode, size, window in dict.fromkeys((run.mode, run.size, run.window) for run in runs):
        alike = [run for run in runs if (run.mode, run.size, run.window) == (mode, size, window)]
        plain, tls = ([run for run in alike if run.tls is has_tls] for has_tls in (False, True))
        ratios.append(
            TlsRatio(
                mode=mode,
                size=size,
                window=window,
                records_per_s=median(r.records_per_s for r in tls) / median(r.records_per_s for r in plain),
                p50_ms=median(r.p50_ms for r in tls) / median(r.p50_ms for r in plain),
                p99_ms=median(r.p99_ms for r in tls) / median(r.p99_ms for r in plain),
                cpu_us=median(r.cpu_us["sum"] for r in tls) / median(r.cpu_us["sum"] for r in plain),
            )
        )
    return ratios


def _modes(plan: WritePlan) -> tuple[str, ...]:
    if plan.rate is not None:
        return ("rate",)
    return ("window",) if plan.api == "ledger" else ("append_many", "tasks")


def _against(lone: WriteRun, before: Baseline | None, after: Baseline | None) -> dict[str, float] | None:
    if before is None or after is None:
        return None
    sync_ms = (before.sync_ms + after.sync_ms) / 2
    round_trip_ms = (before.round_trip_ms + after.round_trip_ms) / 2
    return {
        "sync_ms": sync_ms,
        "round_trip_ms": round_trip_ms,
        "ratio": lone.p50_ms / (sync_ms + round_trip_ms),
    }


Drive = Callable[[float], Awaitable[Latencies]]
"""Drives for some seconds; returns the latencies of exactly these seconds."""


async def _run(bench: BenchCluster, plan: WritePlan, *, mode: str, size: int, window: int) -> WriteRun:
    async with _drive(bench, plan, mode, size, window) as drive:
        await drive(min(_WARM_UP_S, plan.seconds))
        meter = await bench.meter()
        began = time.perf_counter()
        latencies = await drive(plan.seconds)
        seconds = time.perf_counter() - began
        spent = await meter.spent()
    count = latencies.count
    p50, p99, p999 = latencies.percentiles_ms(0.5, 0.99, 0.999)
    return WriteRun(
        api=plan.api,
        tls=bench.has_tls,
        mode=mode,
        replication=str(plan.replication),
        size=size,
        window=None if mode == "rate" else window,
        rate=plan.rate if mode == "rate" else None,
        records=count,
        seconds=seconds,
        records_per_s=count / seconds,
        megabytes_per_s=count * size / seconds / 1e6,
        p50_ms=p50,
        p99_ms=p99,
        p999_ms=p999,
        cpu_us=spent.cpu_us(count),
        syncs_per_s=spent.syncs / seconds,
        journal_bytes_per_payload_byte=spent.journal_bytes / (count * size),
    )


@asynccontextmanager
async def _drive(
    bench: BenchCluster, plan: WritePlan, mode: str, size: int, window: int
) -> AsyncIterator[Drive]:
    if plan.api == "ledger":
        async with await bench.cluster.ledgers.create(replication=plan.replication) as ledger:
            yield _ledger_drive(ledger, plan, mode, size, window)
            ledger_id = ledger.ledger_id
        await bench.cluster.ledgers.delete(ledger_id)
        return
    name = f"bench-{mode}-{size}-{window}-{time.time_ns()}"
    # One ledger for the whole run: this benchmark does not measure rolls.
    log = await bench.cluster.create_log(name, replication=plan.replication, roll=RollPolicy(max_bytes=None))
    if plan.api == "aio":
        drive = partial(_drive_log, mode=mode, size=size, window=window, together=in_task_group)
        async with driven_in_asyncio(bench, name, drive) as drive_for:
            yield drive_for
    else:
        async with log.writer() as writer:
            yield partial(_drive_log, writer, mode=mode, size=size, window=window, together=in_nursery)
    await bench.cluster.delete_log(name)


def _ledger_drive(writer: LedgerWriter, plan: WritePlan, mode: str, size: int, window: int) -> Drive:
    async def drive(seconds: float) -> Latencies:
        if mode == "lone":
            latencies = Latencies()
            await lone_ledger(writer, latencies, size=size, seconds=seconds)
            return latencies
        driving: LedgerWindow | LedgerPace
        if plan.rate is not None:
            driving = LedgerPace(writer, size=size, rate=plan.rate)
        else:
            driving = LedgerWindow(writer, size=size, window=window)
        await driving.run(seconds)
        return driving.latencies

    return drive


async def _drive_log(
    writer: RecordWriter, seconds: float, *, mode: str, size: int, window: int, together: Together
) -> Latencies:
    latencies = Latencies()
    if mode == "lone":
        await lone_log(writer, latencies, size=size, seconds=seconds)
    elif mode == "tasks":
        await log_tasks(writer, latencies, size=size, window=window, seconds=seconds, together=together)
    else:
        await log_many(writer, latencies, size=size, window=window, seconds=seconds, together=together)
    return latencies
