"""``ledgerlog bench takeover``: how long it takes to take over a log or a ledger.

log       a leader with one acknowledged record leads. Entering ``log.writer()`` deposes it: fence, recover,
          create a ledger, compare-and-set. Then the time to the first durable append
ledger    N entries of a ledger are acknowledged to the writer, but no bookie knows that. Recovery reads each
          of them and writes it back. The LAC travels with later adds, so the benchmark sends the entries
          together and then abandons the writer
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import attrs

from ledgerlog.cli.bench_cluster import BenchCluster
from ledgerlog.cli.bench_drives import payloads_of
from ledgerlog.model.quorum import Replication

__all__ = ["TakeoverRun", "takeover_runs"]


@attrs.frozen(kw_only=True)
class TakeoverRun:
    """The figures of one kind of takeover."""

    what: str
    """``log``: entering ``log.writer()``; ``append``: the same and one durable append; ``ledger``: recovering
    a ledger."""
    entries_after_lac: int
    rounds: int
    median_ms: float
    worst_ms: float


async def takeover_runs(
    bench: BenchCluster, *, entries: tuple[int, ...], size: int, rounds: int, replication: Replication
) -> list[TakeoverRun]:
    """Measure everything ``rounds`` times, after one round that does not count."""
    name = f"bench-takeover-{time.time_ns()}"
    log = await bench.cluster.create_log(name, replication=replication)
    entered: list[float] = []
    appended: list[float] = []
    try:
        for _ in range(rounds + 1):
            async with log.writer() as old:
                await old.append(b"a record of the leader that is deposed")
                began = time.perf_counter()
                async with log.writer() as new:
                    entered.append(_ms_since(began))
                    await new.append(b"a record of the leader that deposed it")
                    appended.append(_ms_since(began))
    finally:
        await bench.cluster.delete_log(name)
    runs = [_run("log", 0, entered[1:]), _run("append", 0, appended[1:])]
    for count in entries:

        async def recover(count: int = count) -> float:
            return await _recover_ms(bench, count, size, replication)

        runs.append(_run("ledger", count, await _rounds(recover, rounds)))
    return runs


async def _rounds(measure: Callable[[], Awaitable[float]], rounds: int) -> list[float]:
    return [await measure() for _ in range(rounds + 1)][1:]


def _run(what: str, entries: int, durations_ms: list[float]) -> TakeoverRun:
    ordered = sorted(durations_ms)
    return TakeoverRun(
        what=what,
        entries_after_lac=entries,
        rounds=len(ordered),
        median_ms=ordered[len(ordered) // 2],
        worst_ms=ordered[-1],
    )


async def _recover_ms(bench: BenchCluster, count: int, size: int, replication: Replication) -> float:
    ledgers = bench.cluster.ledgers
    writer = await ledgers.create(replication=replication)
    if count:
        writer.push(payloads_of(size, count))
        await writer.flush()
    await writer.aclose()  # Before the writer sends its LAC to any bookie.
    began = time.perf_counter()
    recovered = await ledgers.recover(writer.ledger_id)
    took_ms = _ms_since(began)
    assert recovered.last_entry == count - 1, "recovery keeps what was acknowledged"
    await ledgers.delete(writer.ledger_id)
    return took_ms


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000
