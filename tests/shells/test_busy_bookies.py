"""A reader waits while its bookies have as many requests under way as they take."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest
import trio
from raw_client import RawClient
from trio.testing import MockClock

from bookie.server.requests import Requests
from ledgerlog import limits
from ledgerlog.errors import EntryUnavailable
from ledgerlog.ledger.ranges import list_range, scrub_range
from ledgerlog.ledger.reader import LedgerReader
from ledgerlog.limits import REQUEST_TIMEOUT_S
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, open_cluster
from ledgerlog.wire.frame import Kind, Status

R332 = Replication(3, 3, 2)
R111 = Replication(1, 1, 1)
ENTRIES = [b"entry %d" % number for number in range(10)]


async def read(client: Client, reader: LedgerReader) -> None:
    assert await reader.read(0, 9) == ENTRIES


async def ask_for_the_end(client: Client, reader: LedgerReader) -> None:
    fresh = await client.ledgers.open(reader.ledger_id)
    assert await fresh.last_add_confirmed() == 9


async def follow(client: Client, reader: LedgerReader) -> None:
    async with aclosing(reader.follow()) as entries:
        for number in range(10):
            assert await anext(entries) == (number, ENTRIES[number])


async def recover(client: Client, reader: LedgerReader) -> None:
    recovered = await client.ledgers.recover(reader.ledger_id)
    assert recovered.last_entry == 9


async def list_and_scrub(client: Client, reader: LedgerReader) -> None:
    for bookie in reader.metadata.last_fragment.ensemble:
        connection = client.opened.pool.connection(bookie)
        assert await list_range(connection, reader.ledger_id, first=0, last=9) is not None
        assert await scrub_range(connection, reader.ledger_id, first=0, last=9, classes=1) is not None


@pytest.mark.parametrize("use", [read, ask_for_the_end, follow, recover, list_and_scrub])
@pytest.mark.parametrize("replication", [R332, R111], ids=str)
async def test_a_busy_time_is_waited_out(
    use: Callable[[Client, LedgerReader], Awaitable[None]],
    replication: Replication,
    clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy_until = float("inf")
    begin = Requests.begin

    def begin_or_refuse(self: Requests, frame, nursery) -> None:
        if trio.current_time() < busy_until:
            self._refuse(frame.header, Status.TOO_MANY_REQUESTS)
        else:
            begin(self, frame, nursery)

    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=replication)
        async with writer:
            await writer.append_many(ENTRIES)
            reader = await client.ledgers.open(writer.ledger_id)
            assert await reader.last_add_confirmed() == 9
            monkeypatch.setattr(Requests, "begin", begin_or_refuse)
            busy_until = trio.current_time() + REQUEST_TIMEOUT_S - 1
            if use is recover:
                async with cluster.client() as other:
                    await use(other, reader)
            else:
                await use(client, reader)
        assert busy_until <= trio.current_time() < busy_until + 2


async def test_one_bookie_that_is_busy_is_not_waited_for_where_another_has_the_entry(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        async with await client.ledgers.create(replication=R332) as writer:
            await writer.append_many(ENTRIES)
        reader = await client.ledgers.open(writer.ledger_id)
        for bookie in cluster.bookies_of(reader.metadata.last_fragment.ensemble)[:2]:
            monkeypatch.setattr(bookie.node.server._shared.fair.everybody, "requests", limits.BOOKIE_REQUESTS)
        begun = trio.current_time()
        assert await reader.read(0, 9) == ENTRIES
        assert trio.current_time() - begun < 0.2


async def test_bookies_that_stay_busy_make_an_entry_unavailable_in_the_end(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        async with await client.ledgers.create(replication=R332) as writer:
            await writer.append_many(ENTRIES)
        reader = await client.ledgers.open(writer.ledger_id)
        for bookie in cluster.bookies.values():
            monkeypatch.setattr(bookie.node.server._shared.fair.everybody, "requests", limits.BOOKIE_REQUESTS)
        begun = trio.current_time()
        with pytest.raises(EntryUnavailable, match="busy"):
            await reader.read(0, 9)
        assert trio.current_time() - begun == pytest.approx(REQUEST_TIMEOUT_S, abs=1)


async def flood_with_polls(cluster: MemoryCluster, client: Client) -> None:
    """Keeps as many long polls at each bookie as it takes, for ever."""

    async def flood(bookie_id: str) -> None:
        address = cluster.bookies[bookie_id].node.address
        raw = RawClient(await client.opened.network.connect(address))
        assert (await raw.hello(bookie_id))[0] is Status.OK
        for _ in range(2 * limits.BOOKIE_CONNECTION_REQUESTS):
            await raw.request(Kind.READ_LAC, ledger_id=1, first=2**40, wait_ms=60_000)
        while True:
            await raw.receive(timeout_s=60)
            await trio.sleep(0.01)
            await raw.request(Kind.READ_LAC, ledger_id=1, first=2**40, wait_ms=60_000)

    async with trio.open_nursery() as nursery:
        for bookie_id in cluster.bookies:
            for _ in range(3):
                nursery.start_soon(flood, bookie_id)


async def test_a_flood_of_long_polls_takes_no_place_of_a_read(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BOOKIE_CONNECTION_REQUESTS", 8)
    monkeypatch.setattr(limits, "BOOKIE_REQUESTS", 16)
    async with open_cluster() as cluster, cluster.client() as client, trio.open_nursery() as nursery:
        async with await client.ledgers.create(replication=R332) as writer:
            await writer.append_many(ENTRIES)
        nursery.start_soon(flood_with_polls, cluster, client)
        await trio.sleep(0.1)
        for bookie in cluster.bookies.values():
            assert bookie.node.server._shared.fair.requests == 12
        for _ in range(5):
            begun = trio.current_time()
            reader = await client.ledgers.open(writer.ledger_id)
            assert await reader.last_add_confirmed() == 9
            assert await reader.read(0, 9) == ENTRIES
            assert trio.current_time() - begun < 0.5, "nothing was waited out"
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
