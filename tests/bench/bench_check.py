"""What a check of entries costs, by lists of all entries and by the ends of each fragment.

    python -m tests.bench.bench_check [--entries N] [--ledgers N]

The cluster runs in this process, on a real disk. The figures are the processor time of the auditor and of the
bookies together. The cluster is closed after writing and opened again, so bookies answer from their index and
their files and not from memory; the files may still be in the page cache of the machine. Each figure is the
best of three rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import trio

import ledgerlog
from ledgerlog.model.quorum import Replication
from ledgerlog.repair.auditor import check_entries
from ledgerlog.repair.checking import LedgerFaults

_ROUNDS = 3


async def fill(uri: str, ledgers: int, entries: int, batch: int, replication: Replication) -> None:
    async with ledgerlog.connect(uri) as cluster:
        for _ in range(ledgers):
            async with await cluster.client.ledgers.create(replication=replication) as writer:
                for first in range(0, entries, batch):
                    await writer.append_many([bytes(100)] * min(batch, entries - first))


async def check(cluster: ledgerlog.Cluster, *, check_all: bool) -> float:
    """Return the processor seconds of a check of all ledgers."""

    async def on_fault(ledger_id: int, faults: LedgerFaults) -> None:
        raise AssertionError(f"ledger {ledger_id}: {faults}")

    before = time.process_time()
    await check_entries(
        cluster.client, check_all=check_all, per_s=10**9, on_fault=on_fault, is_gone=lambda _: False
    )
    return time.process_time() - before


async def measure(replication: Replication, ledgers: int, entries: int, batch: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-check-") as path:
        uri = f"file:{Path(path) / 'cluster'}?bookies={replication.ensemble}"
        await fill(uri, ledgers, entries, batch, replication)
        async with ledgerlog.connect(uri) as cluster:
            costs = {}
            for check_all in (True, False):
                costs[check_all] = min([await check(cluster, check_all=check_all) for _ in range(_ROUNDS)])
    quorums = f"{replication.ensemble}-{replication.write_quorum}-{replication.ack_quorum}"
    million = ledgers * entries / 1_000_000
    print(
        f"| {ledgers} of {entries} entries, {batch} at a time | {quorums} | {costs[True] / million:.2f} s "
        f"| {1e6 * costs[True] / ledgers:.0f} us | {1e6 * costs[False] / ledgers:.0f} us |",
        flush=True,
    )


async def main(ledgers: int, entries: int) -> None:
    print("| ledgers | quorums | all, a million entries | all, a ledger | ends, a ledger |")
    print("|---|---|---|---|---|")
    for replication in (Replication(3, 3, 2), Replication(5, 3, 2)):
        await measure(replication, ledgers, 10, 10)
        await measure(replication, 1, entries, 1000)
        await measure(replication, 1, entries // 10, 10)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledgers", type=int, default=1000)
    parser.add_argument("--entries", type=int, default=200_000)
    arguments = parser.parse_args()
    trio.run(main, arguments.ledgers, arguments.entries)
