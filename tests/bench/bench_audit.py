"""How many copies an audit checks for a second of processor time, by bookies' indexes and by scrubbing.

    python -m tests.bench.bench_audit [--entries N] [--ledgers N]
    python -m tests.bench.bench_audit --plan [LEDGERS] [--uri URI]

A cluster of its own in this process, on a real disk: the time that is told is all of the processor time, that
of the task and that of the bookies together, Spark's own left out. Everything is written, the cluster is
closed and opened again, so bookies find what they are asked for on the disk and in their index and not in
memory; the files themselves may still be in the page cache of the machine. Each figure is the best of three
rounds.

With ``--plan`` it measures planning: how long the driver plans an audit of so many closed ledgers (100,000),
which have metadata and no entries. The store is an SQLite file, or an empty store at ``--uri``.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from pathlib import Path

import trio

import ledgerlog
from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.meta.store import Create
from ledgerlog.model.layout import ledger_path
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.spark.audit_plan import plan_audit
from ledgerlog.spark.audit_task import CHECKED, open_audit
from ledgerlog.spark.connection import connected
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


async def make_metadata(uri: str, ledgers: int) -> None:
    """Make a cluster with the metadata of closed ledgers."""
    async with ledgerlog.connect(uri, create=True) as cluster:

        async def make(first: int) -> None:
            operations = []
            for ledger_id in range(first, min(first + 100, ledgers)):
                created = LedgerMetadata.create(
                    ledger_id=ledger_id,
                    replication=Replication(3, 3, 2),
                    ensemble=("b1", "b2", "b3"),
                    key=bytes(16),
                    token=bytes(16),
                    created_ms=0,
                    custom={},
                )
                made = created.closed(999, bytes(16))
                operations.append(Create(ledger_path(ledger_id), made.encode()))
            await cluster.client.store.transaction(operations)

        await gather_each(range(0, ledgers, 100), make, at_once=8)


async def measure_plan(uri: str, ledgers: int) -> None:
    await make_metadata(uri, ledgers)
    options = parse_audit_options({"uri": uri})
    async with connected(uri) as client:
        for _ in range(_ROUNDS):
            cpu, wall = time.process_time(), time.perf_counter()
            parts = await plan_audit(client, options)
            assert sum(len(part.ledgers) for part in parts) == ledgers
            print(
                f"plan of {ledgers:,} ledgers: {len(parts):,} tasks, {time.process_time() - cpu:.2f} CPU s"
                f" of this process ({time.perf_counter() - wall:.2f} s)"
            )


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
    parser.add_argument("--plan", type=int, metavar="LEDGERS", nargs="?", const=100_000)
    parser.add_argument("--uri")
    given = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    if given.plan:
        with tempfile.TemporaryDirectory(prefix="bench-audit-") as path:
            trio.run(measure_plan, given.uri or f"sqlite:{path}/metadata.sqlite", given.plan)
        return
    for replication in (Replication(3, 3, 2), Replication(3, 2, 2)):
        for size in (100, 1024):
            trio.run(measure, replication, size, given.ledgers, given.entries)
    trio.run(measure, Replication(3, 3, 2), 64 * 1024, given.ledgers, max(1000, given.entries // 100))


if __name__ == "__main__":
    main()
