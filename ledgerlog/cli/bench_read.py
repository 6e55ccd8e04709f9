"""``ledgerlog bench read``: how fast a log is replayed.

It writes a log and reads it twice from its start: by the batch, for readers that need only the bytes, and
record by record. A replay is bound by the reader's CPU, so the figures include records for each CPU second.
"""

from __future__ import annotations

import time
from typing import Any

import attrs

from ledgerlog.cli.bench_cluster import BenchCluster
from ledgerlog.cli.bench_drives import payloads_of
from ledgerlog.log.log import Log
from ledgerlog.model.quorum import Replication

__all__ = ["ReadRun", "read_runs"]

_AT_ONCE = 10_000


@attrs.frozen(kw_only=True)
class ReadRun:
    """One run's figures."""

    mode: str
    """``batches`` or ``records``."""
    size: int
    records: int
    seconds: float
    records_per_s: float
    records_per_cpu_s: float
    """Records for each second of CPU time of the reading process."""
    megabytes_per_s: float
    cpu_us: dict[str, Any]
    """CPU for each record."""
    runs_from_memory: int
    """How many stretches of entries the bookies read from memory."""
    runs_from_disk: int
    """How many stretches of entries the bookies read from their disks."""


async def read_runs(
    bench: BenchCluster, *, sizes: tuple[int, ...], records: int, replication: Replication
) -> list[ReadRun]:
    """Write ``records`` records of each size and replay them. The logs are deleted afterwards."""
    runs = []
    for size in sizes:
        name = f"bench-read-{size}-{time.time_ns()}"
        log = await bench.cluster.create_log(name, replication=replication)
        try:
            payloads = payloads_of(size, min(records, _AT_ONCE))
            async with log.writer() as writer:
                for at in range(0, records, len(payloads)):
                    await writer.append_many(payloads[: records - at])
            for mode in ("batches", "records"):
                runs.append(await _replay(bench, log, mode, size, records))
        finally:
            await bench.cluster.delete_log(name)
    return runs


async def _replay(bench: BenchCluster, log: Log, mode: str, size: int, records: int) -> ReadRun:
    meter = await bench.meter()
    began = time.perf_counter()
    count = 0
    async with log.read(0) as reader:
        if mode == "batches":
            async for batch in reader.batches():
                count += len(batch.payloads)
        else:
            async for _ in reader:
                count += 1
    seconds = time.perf_counter() - began
    spent = await meter.spent()
    assert count == records, f"{records} records were written, {count} read"
    return ReadRun(
        mode=mode,
        size=size,
        records=count,
        seconds=seconds,
        records_per_s=count / seconds,
        records_per_cpu_s=count / (spent.here_ns / 1e9),
        megabytes_per_s=count * size / seconds / 1e6,
        cpu_us=spent.cpu_us(count),
        runs_from_memory=sum(counts.runs_from_memory for counts in spent.counts.values()),
        runs_from_disk=sum(counts.runs_from_disk for counts in spent.counts.values()),
    )
