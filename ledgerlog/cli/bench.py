"""``ledgerlog bench``: measurements on this machine."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from ledgerlog.cli.bench_cluster import BenchCluster, open_bench_cluster
from ledgerlog.cli.bench_edges import STAMP_BYTES, EdgeRun, follow_runs, idle_runs, isolation_runs
from ledgerlog.cli.bench_failover import FAULTS, PARTS, FailoverRound, failover_rounds
from ledgerlog.cli.bench_figures import rounded
from ledgerlog.cli.bench_plot import check_can_plot, plot_writes
from ledgerlog.cli.bench_read import ReadRun, read_runs
from ledgerlog.cli.bench_takeover import TakeoverRun, takeover_runs
from ledgerlog.cli.bench_write import TURNS, WritePlan, WriteRun, tls_ratios, write_runs
from ledgerlog.cli.demo import throw_away_directory
from ledgerlog.cli.options import (
    FiniteNumber,
    WholeNumber,
    bench_uri_option,
    json_option,
    numbers,
    replication_options,
)
from ledgerlog.cli.output import print_json, print_line, print_table
from ledgerlog.cli.running import run
from ledgerlog.limits import ENTRY_BYTES_MAX, RECORD_BYTES_MAX
from ledgerlog.meta.uri import FileUri, MemoryUri, parse_uri
from ledgerlog.model.quorum import Replication
from ledgerlog.progress_bar import progress_bar

__all__ = ["bench"]

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def bench() -> None:
    """Measure writes, reads and takeovers, on a temporary cluster of three bookies or on --uri."""


@bench.command("write")
@click.option(
    "--api",
    type=click.Choice(["ledger", "log", "aio"]),
    default="ledger",
    show_default=True,
    help="What to write: entries of a ledger, records of a log, or records of a log under asyncio.",
)
@click.option(
    "--size",
    "sizes",
    default="100,1024,16384",
    show_default=True,
    callback=numbers(1, ENTRY_BYTES_MAX),
    help="Bytes per record. Separate several sizes with commas.",
)
@click.option(
    "--window",
    "windows",
    default="1000",
    show_default=True,
    callback=numbers(1, 1_000_000),
    help="Records in flight. Separate several numbers with commas. One at a time is always measured too.",
)
@click.option(
    "--rate", type=FiniteNumber(1), help="Open loop: append this many entries per second, without a window."
)
@click.option(
    "--seconds",
    type=FiniteNumber(0.1),
    default=3.0,
    show_default=True,
    help="How many seconds each run lasts.",
)
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Also draw a plot into this file."
)
@click.option(
    "--tls",
    "with_tls",
    is_flag=True,
    help=f"Compare a cluster with TLS and one without: each run {TURNS} times on both, in turns.",
)
@replication_options
@bench_uri_option
@json_option
def bench_write(
    api: str,
    sizes: tuple[int, ...],
    windows: tuple[int, ...],
    rate: float | None,
    seconds: float,
    plot: Path | None,
    with_tls: bool,
    replication: Replication,
    uri: str | None,
    as_json: bool,
) -> None:
    """Append as fast as possible, one at a time, or at a fixed rate. Measure latency and cost."""
    if rate is not None and api != "ledger":
        raise click.UsageError(f"--rate only works with ledgers: leave out --api {api}")
    if api == "aio" and uri is not None and isinstance(parse_uri(uri), FileUri | MemoryUri):
        raise click.UsageError(f"--api aio needs a second connection, but only one connection can use {uri}")
    if api != "ledger" and max(sizes) > RECORD_BYTES_MAX:
        raise click.UsageError(f"a record has at most {RECORD_BYTES_MAX} bytes")
    if with_tls and (uri is not None or plot is not None):
        raise click.UsageError("--tls starts its own clusters to compare: leave out --uri and --plot")
    if plot is not None:
        check_can_plot()
    plan = WritePlan(
        api=api, sizes=sizes, windows=windows, seconds=seconds, rate=rate, replication=replication
    )
    done: list[WriteRun] = []

    async def body() -> None:
        with progress_bar("measuring", None) as bar:
            async with AsyncExitStack() as stack:
                clusters = [
                    await stack.enter_async_context(
                        open_bench_cluster(uri, bookies=replication.ensemble, with_tls=is_certified)
                    )
                    for is_certified in ((False, True) if with_tls else (False,))
                ]
                async for each in write_runs(clusters, plan):
                    done.append(each)
                    bar.describe(f"{each.mode}, {each.size} B: {each.records_per_s:,.0f} records/s")
                    if as_json:
                        print_json(rounded(attrs.asdict(each)))

    run(body)
    ratios = tls_ratios(done) if with_tls else []
    if as_json:
        for ratio in ratios:
            print_json({"tls_ratio": rounded(attrs.asdict(ratio))})
    else:
        _print_writes(done, with_baseline=not with_tls)
        for ratio in ratios:
            print_line(
                f"TLS, {ratio.mode}, {ratio.size} B: CPU {ratio.cpu_us:.2f} x, "
                f"records/s {ratio.records_per_s:.2f} x, p50 {ratio.p50_ms:.2f} x, "
                f"p99 {ratio.p99_ms:.2f} x of plain (medians of {TURNS} turns)"
            )
    if plot is not None:
        plot_writes(done, plot)


def _print_writes(runs: list[WriteRun], *, with_baseline: bool) -> None:
    columns = (
        *("mode", "bytes", "window", "records/s", "MB/s", "p50 ms", "p99 ms", "p99.9 ms"),
        *("CPU us: client", "bookies", "sum", "syncs/s", "journal B/B"),
    )
    rows = [
        (
            (run.mode if run.rate is None else f"{run.rate:,.0f}/s") + (", TLS" if run.tls else ""),
            run.size,
            "" if run.window is None else run.window,
            f"{run.records_per_s:,.0f}",
            f"{run.megabytes_per_s:,.1f}",
            f"{run.p50_ms:.2f}",
            f"{run.p99_ms:.2f}",
            f"{run.p999_ms:.2f}",
            *_cpu(run.cpu_us),
            f"{run.syncs_per_s:,.0f}",
            f"{run.journal_bytes_per_payload_byte:.2f}",
        )
        for run in runs
    ]
    title = f"{runs[0].api} API, replication {runs[0].replication}; CPU in microseconds a record"
    print_table(columns, rows, title=title, numbers=columns[1:])
    for each in runs:
        found = each.baseline
        if found is not None and with_baseline:
            print_line(
                f"one at a time, {each.size} B: p50 {each.p50_ms:.2f} ms = {found['ratio']:.1f} x "
                f"(a synced write {found['sync_ms']:.3f} ms + a round trip {found['round_trip_ms']:.3f} ms)"
            )


def _cpu(cpu_us: dict[str, Any]) -> tuple[str, str, str]:
    if cpu_us["bookies"] is None:
        return f"{cpu_us['client']:.2f}", "-", "-"
    return f"{cpu_us['client']:.2f}", f"{sum(cpu_us['bookies'].values()):.2f}", f"{cpu_us['sum']:.2f}"


_seconds_option = click.option(
    "--seconds",
    type=FiniteNumber(0.1),
    default=3.0,
    show_default=True,
    help="How many seconds each run lasts.",
)


def _rate_option(default: int) -> Callable[[F], F]:
    return click.option(
        "--rate",
        type=FiniteNumber(1),
        default=default,
        show_default=True,
        help="How many records are written per second.",
    )


def _size_option(least: int, default: int) -> Callable[[F], F]:
    return click.option(
        "--size",
        type=WholeNumber(least, RECORD_BYTES_MAX),
        default=default,
        show_default=True,
        help="Bytes per record.",
    )


@bench.command("lone")
@click.option(
    "--size",
    "sizes",
    default="100,1024,16384",
    show_default=True,
    callback=numbers(1, ENTRY_BYTES_MAX),
    help="Bytes per entry. Separate several sizes with commas.",
)
@_seconds_option
@replication_options
@bench_uri_option
@json_option
def bench_lone(
    sizes: tuple[int, ...],
    seconds: float,
    replication: Replication,
    uri: str | None,
    as_json: bool,
) -> None:
    """Append one entry at a time, and compare it with a synced write and a round trip of this machine."""
    plan = WritePlan(
        api="ledger", sizes=sizes, windows=(), seconds=seconds, rate=None, replication=replication
    )
    done: list[WriteRun] = []

    async def body() -> None:
        with progress_bar("measuring", None):
            async with open_bench_cluster(uri, bookies=replication.ensemble) as cluster:
                async for each in write_runs([cluster], plan):
                    done.append(each)
                    if as_json:
                        print_json(rounded(attrs.asdict(each)))

    run(body)
    if not as_json:
        _print_writes(done, with_baseline=True)


@bench.command("followers")
@click.option(
    "--followers",
    type=WholeNumber(1),
    default=100,
    show_default=True,
    help="How many readers follow the log.",
)
@_rate_option(100)
@_size_option(STAMP_BYTES, 100)
@_seconds_option
@replication_options
@bench_uri_option
@json_option
def bench_followers(
    followers: int,
    rate: float,
    size: int,
    seconds: float,
    replication: Replication,
    uri: str | None,
    as_json: bool,
) -> None:
    """Write to one log while many readers of this process follow it."""

    async def measure(cluster: BenchCluster, report: Callable[[EdgeRun], None]) -> None:
        await follow_runs(
            cluster,
            report,
            followers=followers,
            rate=rate,
            size=size,
            seconds=seconds,
            replication=replication,
        )

    _measure_edges(measure, uri, replication, as_json)


@bench.command("isolation")
@click.option(
    "--readers", type=WholeNumber(1), default=1, show_default=True, help="How many processes replay a log."
)
@_rate_option(1000)
@_size_option(1, 1024)
@_seconds_option
@replication_options
@bench_uri_option
@json_option
def bench_isolation(
    readers: int,
    rate: float,
    size: int,
    seconds: float,
    replication: Replication,
    uri: str | None,
    as_json: bool,
) -> None:
    """Write at a fixed rate, first alone and then while other processes read a backlog, and compare the
    latencies."""

    async def measure(cluster: BenchCluster, report: Callable[[EdgeRun], None]) -> None:
        where = uri if cluster.local is None else cluster.local.uri
        assert where is not None
        await isolation_runs(
            cluster,
            where,
            report,
            readers=readers,
            rate=rate,
            size=size,
            seconds=seconds,
            replication=replication,
        )

    _measure_edges(measure, uri, replication, as_json)


@bench.command("idle")
@click.option("--logs", type=WholeNumber(1), default=1000, show_default=True, help="How many logs are open.")
@_seconds_option
@replication_options
@bench_uri_option
@json_option
def bench_idle(
    logs: int,
    seconds: float,
    replication: Replication,
    uri: str | None,
    as_json: bool,
) -> None:
    """Measure the CPU time of an idle cluster, first without and then with open logs."""

    async def measure(cluster: BenchCluster, report: Callable[[EdgeRun], None]) -> None:
        await idle_runs(cluster, report, logs=logs, seconds=seconds, replication=replication)

    _measure_edges(measure, uri, replication, as_json)


def _measure_edges(
    measure: Callable[[BenchCluster, Callable[[EdgeRun], None]], Awaitable[None]],
    uri: str | None,
    replication: Replication,
    as_json: bool,
) -> None:
    done: list[EdgeRun] = []

    def report(each: EdgeRun) -> None:
        done.append(each)
        if as_json:
            print_json(rounded(attrs.asdict(each)))

    async def body() -> None:
        with progress_bar("measuring", None):
            async with open_bench_cluster(uri, bookies=replication.ensemble) as cluster:
                await measure(cluster, report)

    run(body)
    if as_json:
        return
    columns = (
        *("mode", "count", "bytes", "written", "records/s", "missing", "p50 ms", "p99 ms"),
        *("CPU us: client", "bookies", "sum", "% of a core", "replays"),
    )
    rows = [
        (
            each.mode,
            each.count,
            "" if each.size is None else each.size,
            each.written,
            f"{each.records_per_s:,.0f}",
            each.missing,
            "" if each.p50_ms is None else f"{each.p50_ms:.2f}",
            "" if each.p99_ms is None else f"{each.p99_ms:.2f}",
            *_cpu(each.cpu_us),
            "" if each.core_percent is None else f"{sum(each.core_percent.values()):.2f}",
            "" if each.replays is None else each.replays,
        )
        for each in done
    ]
    title = f"replication {replication}; CPU in microseconds a record, or a second of idleness"
    print_table(columns, rows, title=title, numbers=columns[1:])


@bench.command("read")
@click.option(
    "--size",
    "sizes",
    default="100,1024",
    show_default=True,
    callback=numbers(1, RECORD_BYTES_MAX),
    help="Bytes per record. Separate several sizes with commas.",
)
@click.option(
    "--records",
    type=WholeNumber(1),
    default=500_000,
    show_default=True,
    help="How many records of each size.",
)
@replication_options
@bench_uri_option
@json_option
def bench_read(
    sizes: tuple[int, ...],
    records: int,
    replication: Replication,
    uri: str | None,
    as_json: bool,
) -> None:
    """Write a log and replay it, by batches and by records."""

    async def body() -> list[ReadRun]:
        with progress_bar("measuring", None):
            async with open_bench_cluster(uri, bookies=replication.ensemble) as cluster:
                return await read_runs(cluster, sizes=sizes, records=records, replication=replication)

    runs = run(body)
    if as_json:
        for each in runs:
            print_json(rounded(attrs.asdict(each)))
        return
    columns = (
        *("mode", "bytes", "records/s", "records/CPU s", "MB/s"),
        *("CPU us: client", "bookies", "sum", "from memory", "from disk"),
    )
    rows = [
        (
            each.mode,
            each.size,
            f"{each.records_per_s:,.0f}",
            f"{each.records_per_cpu_s:,.0f}",
            f"{each.megabytes_per_s:,.1f}",
            *_cpu(each.cpu_us),
            each.runs_from_memory,
            each.runs_from_disk,
        )
        for each in runs
    ]
    print_table(columns, rows, title="replay of a log; CPU in microseconds a record", numbers=columns[1:])


@bench.command("takeover")
@click.option(
    "--entries",
    default="0,100,1000,10000",
    show_default=True,
    callback=numbers(0, 16_000),
    help="Entries after the LAC. Separate several numbers with commas.",
)
@click.option("--size", type=WholeNumber(1, 1000), default=100, show_default=True, help="Bytes per entry.")
@click.option(
    "--rounds",
    type=WholeNumber(1),
    default=7,
    show_default=True,
    help="How many times to repeat each takeover.",
)
@replication_options
@bench_uri_option
@json_option
def bench_takeover(
    entries: tuple[int, ...],
    size: int,
    rounds: int,
    replication: Replication,
    uri: str | None,
    as_json: bool,
) -> None:
    """Take over a log from a live leader, and recover ledgers with entries that are not known to be
    confirmed."""

    async def body() -> list[TakeoverRun]:
        with progress_bar("measuring", None):
            async with open_bench_cluster(uri, bookies=replication.ensemble) as cluster:
                return await takeover_runs(
                    cluster, entries=entries, size=size, rounds=rounds, replication=replication
                )

    runs = run(body)
    if as_json:
        for each in runs:
            print_json(rounded(attrs.asdict(each)))
        return
    words = {
        "log": "log: a new leader",
        "append": "log: a new leader and its first durable append",
        "ledger": "ledger: recovery",
    }
    rows = [
        (words[e.what], f"{e.entries_after_lac:,}", f"{e.median_ms:.1f}", f"{e.worst_ms:.1f}") for e in runs
    ]
    columns = ("what", "entries after the LAC", "median ms", "worst ms")
    print_table(columns, rows, title=f"{rounds} rounds, replication {replication}", numbers=columns[1:])


@bench.command("failover")
@click.option(
    "--rounds", type=WholeNumber(1), default=30, show_default=True, help="How many times a leader fails."
)
@click.option(
    "--fault",
    type=click.Choice(FAULTS),
    default="kill",
    show_default=True,
    help="What happens to the leader: kill -9, SIGSTOP, or loss of the network to the bookies or to "
    "ZooKeeper.",
)
@bench_uri_option
@json_option
def bench_failover(rounds: int, fault: str, uri: str | None, as_json: bool) -> None:
    """Make the leader of a log fail, again and again, and wait each time until its standby has appended
    durably.

    The gap is the time without a durable append. --fault cut-store needs metadata in ZooKeeper.
    """
    done: list[FailoverRound] = []

    async def body() -> None:
        with progress_bar("leaders", rounds) as bar, throw_away_directory("failover") as directory:
            zookeepers = 1 if fault == "cut-store" else 0
            async with open_bench_cluster(uri, bookies=3, zookeepers=zookeepers) as cluster:
                where = uri if cluster.local is None else cluster.local.uri
                assert where is not None

                def report(one: FailoverRound) -> None:
                    done.append(one)
                    bar.move_to(len(done))
                    if as_json:
                        print_json(rounded(attrs.asdict(one)))

                await failover_rounds(cluster, where, directory, rounds=rounds, fault=fault, report=report)

    run(body)
    total = sorted(one.total_ms for one in done)
    takeover = sorted(one.takeover_ms for one in done)
    gap = sorted(one.gap_ms for one in done)
    summary: dict[str, Any] = {
        "fault": fault,
        "rounds": len(done),
        "gap_p50_ms": _share_of(gap, 0.5),
        "gap_p99_ms": _share_of(gap, 0.99),
        "p50_ms": _share_of(total, 0.5),
        "p99_ms": _share_of(total, 0.99),
        "takeover_p50_ms": _share_of(takeover, 0.5),
        "takeover_p99_ms": _share_of(takeover, 0.99),
        "parts": {
            part: {
                "p50_ms": _share_of(sorted(one.parts_ms[part] for one in done), 0.5),
                "p99_ms": _share_of(sorted(one.parts_ms[part] for one in done), 0.99),
                "share": sum(one.parts_ms[part] for one in done) / sum(total),
            }
            for part in PARTS
        },
    }
    if as_json:
        print_json(rounded(summary))
        return
    rows = [
        (part, f"{p['p50_ms']:.1f}", f"{p['p99_ms']:.1f}", f"{p['share']:.0%}")
        for part, p in summary["parts"].items()
    ]
    rows.append(
        ("all of the takeover", f"{summary['takeover_p50_ms']:.1f}", f"{summary['takeover_p99_ms']:.1f}", "")
    )
    rows.append(("the fault to a durable append", f"{summary['p50_ms']:.1f}", f"{summary['p99_ms']:.1f}", ""))
    rows.append(
        ("the gap between appends", f"{summary['gap_p50_ms']:.1f}", f"{summary['gap_p99_ms']:.1f}", "")
    )
    columns = ("part", "p50 ms", "p99 ms", "share")
    print_table(columns, rows, title=f"{len(done)} leaders, fault: {fault}", numbers=columns[1:])


def _share_of(ordered: list[float], part: float) -> float:
    """Return the smallest value that this share of the values does not exceed; ``part=0.5`` is the median."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
