"""How many copies an audit checks for a second of processor time, by bookies' indexes and by scrubbing.

    python -m tests.bench.bench_audit [--entries N] [--ledgers N]

A cluster of its own in this process, on a real disk: the time that is told is all of the processor time, that
of the task and that of the bookies together, Spark's own left out. Everything is written, the cluster is
closed and opened again, so bookies find what they are asked for on the disk and in their index and not in
memory; the files themselves may still be in the page cache of the machine. Each figure is the best of three
rounds.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from pathlib import Path

import trio

import ledgerlog
from ledgerlog.model.quorum import Replication
from ledgerlog.spark.audit_plan import plan_audit
from ledgerlog.spark.audit_task import CHECKED, open_audit
from ledgerlog.spark.options import parse_audit_options

_ROUNDS = 3


async def fill(uri: str, ledgers: int, entries: int, size: int, replication: Replication) -> None:
    async with ledgerlog.connect(uri) as cluster:
        for _ in range(ledgers):
            async with await cluster.client.ledgers.create(replication=replication) as writer:
                for _ in range(0, entries, 1000):
                    await writer.append_many([bytes(size)] * 1000)


async def audit(cluster: ledgerlog.Cluster, mode: str) -> tuple[int, float, float]:
    """Copies, processor seconds, seconds."""
    options = parse_audit_options({"uri": "sqlite:unused", "mode": mode, "summary": "true"})
    copies = 0
    cpu, wall = time.process_time(), time.perf_counter()
    for part in await plan_audit(cluster.client, options):
        async with open_audit(part, cluster.client) as take:
            while (rows := await take()) is not None:
                assert {row.kind for row in rows} == {CHECKED}, rows
                copies += sum(row.copies for row in rows)
    return copies, time.process_time() - cpu, time.perf_counter() - wall


async def measure(replication: Replication, size: int, ledgers: int, entries: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-audit-") as path:
        uri = f"file:{Path(path) / 'cluster'}?bookies={replication.ensemble}"
        await fill(uri, ledgers, entries, size, replication)
        async with ledgerlog.connect(uri) as cluster:
            for mode in ("index", "scrub"):
                rounds = [await audit(cluster, mode) for _ in range(_ROUNDS)]
                copies, cpu_s, wall_s = min(rounds, key=lambda found: found[1])
                assert copies == ledgers * entries * replication.write_quorum
                print(
                    f"{replication} {size:6} B {mode:5} {copies:10,} copies"
                    f" {copies / cpu_s:12,.0f} copies and {copies * size / cpu_s / 2**20:7,.0f} MiB"
                    f" a CPU second ({wall_s:.2f} s)"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--ledgers", type=int, default=4)
    given = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    for replication in (Replication(3, 3, 2), Replication(3, 2, 2)):
        for size in (100, 1024):
            trio.run(measure, replication, size, given.ledgers, given.entries)
    trio.run(measure, Replication(3, 3, 2), 64 * 1024, given.ledgers, max(1000, given.entries // 100))


if __name__ == "__main__":
    main()
