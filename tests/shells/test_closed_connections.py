"""A connection that has ended leaves nothing to the garbage collector.

If it did, thousands of clients that come and go would make each full collection of the bookie a pause of a
tenth of a second, in which it serves nobody.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from raw_client import RawClient
from serving import Bookie, Machine
from trio.testing import wait_all_tasks_blocked

from ledgerlog.net.certificates import Certificates
from ledgerlog.net.tcp import TcpNetwork
from ledgerlog.net.tls import TlsNetwork
from ledgerlog.net.transport import Network
from ledgerlog.wire.frame import Kind
from tests.certificates import files
from tests.waiting import until

TIMES = 5


async def silent(client: RawClient, bookie: Bookie) -> None:
    """Connect and leave."""


async def cut_off(client: RawClient, bookie: Bookie) -> None:
    await client.send(b"noise" * 800)


async def dropped(client: RawClient, bookie: Bookie) -> None:
    for connection in list(bookie.node.server._connections):
        connection.drop("the test says so")


async def adds(client: RawClient, bookie: Bookie) -> None:
    await client.hello()
    await client.add(5, 0, [b"x"])
    await client.acknowledged(1)


async def asks(client: RawClient, bookie: Bookie) -> None:
    await client.hello()
    await client.ask(Kind.READ, count=1, ledger_id=5, first=0, last=10, argument=1000)


async def polls(client: RawClient, bookie: Bookie) -> None:
    await client.hello()
    await client.request(Kind.READ_LAC, ledger_id=5, first=1 << 40, wait_ms=10_000)
    await until(lambda: bookie.node.server.figures()["requests_under_way"])


def tcp_with_certificate() -> TlsNetwork:
    return TlsNetwork(TcpNetwork(), Certificates(files("admin/b1"), None))


@pytest.mark.parametrize("make_network", [TcpNetwork, tcp_with_certificate])
@pytest.mark.parametrize("does", [silent, cut_off, dropped, adds, asks, polls])
async def test_a_connection_that_has_ended_is_freed_at_once(
    does: Callable[[RawClient, Bookie], Awaitable[None]], make_network: Callable[[], Network]
) -> None:
    machine = Machine(network=make_network(), listen="127.0.0.1:0")

    async def come_and_go() -> None:
        served = bookie.node.server
        before = served.counts["connections_accepted"]
        stream = await machine.network.connect(bookie.node.address)
        await until(lambda: served.counts["connections_accepted"] > before)
        await does(RawClient(stream), bookie)
        stream.close()
        await until(lambda: not served.connections)
        await wait_all_tasks_blocked()

    async with machine.bookie() as bookie:
        await come_and_go()
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(TIMES):
                await come_and_go()
            gc.collect()
            found = Counter(type(each).__qualname__ for each in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert {name: count for name, count in found.items() if count >= TIMES} == {}
