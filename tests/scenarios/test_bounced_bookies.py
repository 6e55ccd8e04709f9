"""Bookies come and go under writers and takeovers; afterwards, in quiet, no copy is missing (rule 24)."""

from __future__ import annotations

import itertools

import pytest
import trio
from trio.testing import MockClock

import ledgerlog.cluster
from ledgerlog.cli.repair import status_fields
from ledgerlog.errors import LedgerLogError
from ledgerlog.testing.memory_cluster import open_cluster
from tests.repairing import R332, assert_whole, payload, quiet, set_up, start_repair


@pytest.mark.parametrize("seed", range(3))
async def test_rule_24_after_bounced_bookies_and_quiet_every_copy_is_there(
    seed: int, clock: MockClock
) -> None:
    """Nobody checks entries, and no bookie is away long enough to be lost: only what was filed is found."""
    async with open_cluster(bookies=4, seed=seed) as cluster, cluster.client() as client:
        queue = await set_up(client, entry_check_ms=0, lost_after_ms=3_600_000)
        await start_repair(cluster)
        ends: dict[int, int] = {}

        async def write(takes_over: bool) -> None:
            while not done.is_set():
                try:
                    writer = await client.ledgers.create(replication=R332)
                    for number in range(30):
                        await writer.append(payload(number, 100))
                        await trio.sleep(0.05)
                    if takes_over:
                        await writer.aclose()
                    else:
                        await writer.close()
                except LedgerLogError:
                    continue
                ledger_id = writer.ledger_id
                ends[ledger_id] = (await client.ledgers.recover(ledger_id)).last_entry or 0

        done = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, False)
            nursery.start_soon(write, True)
            for bookie in itertools.islice(itertools.cycle(cluster.bookies.values()), 12):
                await bookie.stop()
                await trio.sleep(1.7)
                await bookie.start()
                await trio.sleep(1.1)
            done.set()
        assert ends
        await quiet(queue)
        status = await status_fields(ledgerlog.cluster.Cluster("memory:", client.opened))
        assert (status["under_replicated"], status["waiting"]) == (0, 0)
        for ledger_id, last in ends.items():
            await assert_whole(client, ledger_id, last + 1)
            assert await client.contents(ledger_id) == [payload(number, 100) for number in range(last + 1)]
