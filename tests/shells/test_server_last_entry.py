"""READ_LAC also tells the last durable entry, confirmed or not."""

from __future__ import annotations

import trio
from raw_client import RawClient
from serving import Machine

from bookie.core.journal_items import EntryRun
from bookie.core.ledger import BookieLedger
from ledgerlog.testing.faulty_disk import FaultyDisk, Gate
from ledgerlog.wire.frame import Kind

L = 7


async def last_of(client: RawClient) -> tuple[int, int]:
    header = (await client.ask(Kind.READ_LAC, ledger_id=L, last=-1)).header
    return header.last, header.lac


async def test_the_last_entry_is_told_with_the_lac_whether_or_not_it_is_confirmed() -> None:
    async with Machine().bookie() as bookie:
        client = await bookie.client()
        assert await last_of(client) == (-1, -1)
        await client.add(L, 0, [b"a", b"b"], lac=-1)
        await client.acknowledged(1)
        assert await last_of(client) == (1, -1)
        await client.add(L, 5, [b"f"], lac=1)  # Gaps are normal in a striped ledger.
        await client.acknowledged(2)
        assert await last_of(client) == (5, 1)


async def test_an_entry_that_is_not_durable_yet_is_not_told() -> None:
    disk = FaultyDisk()
    async with Machine(disk=disk).bookie() as bookie:
        client, other = await bookie.client(), await bookie.client()
        await client.add(L, 0, [b"a"])
        await client.acknowledged(1)
        disk.faults.append(gate := Gate("write_sync"))
        await client.add(L, 1, [b"b"])
        while bookie.node.engine.statistics()["entries"] < 2:
            await trio.lowlevel.checkpoint()
        assert await last_of(other) == (0, -1)
        gate.open()
        await client.acknowledged(2)
        assert await last_of(other) == (1, -1)


async def test_the_last_entry_outlives_stops() -> None:
    machine = Machine()
    for _ in range(2):
        async with machine.bookie() as bookie:
            client = await bookie.client()
            await client.add(L, 0, [b"a", b"b", b"c"])
            await client.acknowledged(1)
            assert await last_of(client) == (2, -1)


def test_the_last_durable_entry_may_lie_in_a_run_that_begins_earlier() -> None:
    state = BookieLedger(L, b"k" * 16)

    def run(first: int, last: int, sequence: int) -> EntryRun:
        return EntryRun(L, first, last, 1 + (last > first), 1, 0, 100, sequence)

    state.on_run(run(0, 9, 1))
    state.on_run(run(1, 1, 2))
    state.on_run(run(4, 12, 3))
    state.on_run(run(13, 13, 4))
    assert [state.last_durable(sequence) for sequence in range(5)] == [-1, 9, 9, 12, 13]
    state.forget_runs(1)
    assert state.last_durable(0) == 13
