"""The web services of ``examples/``: every acknowledged order is in the log exactly once, no matter which
processes die."""

from __future__ import annotations

import http.client
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

import ledgerlog
from ledgerlog.cli.processes import Child, ChildProcesses, open_children
from ledgerlog.cli.zookeeper import free_port
from tests.integration.running_cluster import start_cluster
from tests.waiting import PATIENCE_S, until

pytestmark = [
    pytest.mark.processes,
    # httpx leaves its generator of a body alone if the server is killed while it takes the request.
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SERVICES = ["orders_fastapi", "orders_starlette"]
CLIENTS = ["anna", "bert", "cleo"]
ORDERS = 30


@attrs.frozen
class Server:
    address: str
    child: Child


async def start(children: ChildProcesses, service: str, uri: str, folder: Path) -> Server:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, str(EXAMPLES / f"{service}.py"), uri, address]
    return Server(address, await children.start(address, command, log_path=folder / f"{address}.log"))


async def leader_of(client: httpx.AsyncClient, servers: list[Server]) -> Server:
    """Wait until all servers answer and name the same leader. The leader is one of them."""
    while True:
        named = {await leader_named_by(client, server) for server in servers}
        for server in servers:
            if named == {server.address}:
                return server
        await trio.sleep(0.05)


async def leader_named_by(client: httpx.AsyncClient, server: Server) -> str | None:
    try:
        name: str | None = (await client.get(f"http://{server.address}/leader")).json()["leader"]
    except httpx.TransportError:
        return None
    return name


@attrs.frozen
class Customer:
    """Sends its orders one after the other. It repeats each one at any server until it is acknowledged."""

    name: str
    client: httpx.AsyncClient
    servers: list[Server]
    acknowledged: dict[int, int] = attrs.field(factory=dict)
    """The offset of each order, by the order's number."""

    async def run(self) -> None:
        for number in range(ORDERS):
            while number not in self.acknowledged:
                for server in self.servers:
                    await self.put(server, number)

    async def put(self, server: Server, number: int) -> None:
        if number in self.acknowledged:
            return
        address = f"http://{server.address}/orders/{self.name}/{number}"
        try:
            answer = await self.client.put(address, content=b"an apple", follow_redirects=True)
        except httpx.TransportError:
            return
        if answer.status_code == 200:
            self.acknowledged[number] = answer.json()["offset"]
        else:
            assert answer.status_code == 503, answer.text


async def events(server: Server, last_seen: int, count: int) -> dict[int, Any]:
    """Return so many events behind the last one that was seen, by offset."""
    return await trio.to_thread.run_sync(read_events, server.address, last_seen, count)


def read_events(address: str, last_seen: int, count: int) -> dict[int, Any]:
    found: dict[int, Any] = {}
    headers = {"Last-Event-ID": str(last_seen)} if last_seen >= 0 else {}
    with closing(http.client.HTTPConnection(address, timeout=PATIENCE_S)) as connection:
        connection.request("GET", "/events", headers=headers)
        with connection.getresponse() as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            while len(found) < count:
                line = answer.readline().decode()
                assert line, "the stream has ended"
                name, _, value = line.strip().partition(": ")
                if name == "id":
                    offset = int(value)
                elif name == "data":
                    assert offset not in found
                    found[offset] = json.loads(value)
    return found


@pytest.mark.parametrize("service", SERVICES)
async def test_every_acknowledged_order_is_in_the_log_once_though_the_leader_is_killed(
    service: str, tmp_path: Path
) -> None:
    async with open_children() as children, httpx.AsyncClient(timeout=PATIENCE_S) as client:
        running = await start_cluster(children, tmp_path / "cluster")
        servers = [await start(children, service, running.uri, tmp_path) for _ in range(2)]
        customers = [Customer(name, client, servers) for name in CLIENTS]
        seen: dict[int, Any] = {}
        with trio.fail_after(PATIENCE_S):
            leader = await leader_of(client, servers)
            standby = next(server for server in servers if server is not leader)
            total = len(CLIENTS) * ORDERS

            async def tell() -> None:
                seen.update(await events(standby, -1, total))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(tell)
                for customer in customers:
                    nursery.start_soon(customer.run)
                await until(lambda: all(len(customer.acknowledged) > 5 for customer in customers))
                leader.child.kill()
            assert await leader_of(client, [standby]) is standby
            assert await events(standby, total - 3, 2) == {
                offset: seen[offset] for offset in (total - 2, total - 1)
            }
            out_of_sequence = await client.put(
                f"http://{standby.address}/orders/anna/{ORDERS + 7}", content=b""
            )
            assert (out_of_sequence.status_code, out_of_sequence.json()["last"]) == (409, ORDERS - 1)
            await standby.child.stop()
        async with ledgerlog.connect(running.uri) as cluster:
            log = await cluster.open_log("orders")
            last = (await log.info()).segments[-1].ledger_id
            assert (await cluster.ledgers.metadata(last)).is_closed, "a service that stops closes its ledger"
            async with log.read() as records:
                orders = [json.loads(record.data) async for record in records]
    assert dict(enumerate(orders)) == seen
    for server in servers:
        assert "Traceback" not in (tmp_path / f"{server.address}.log").read_text()
    for customer in customers:
        mine = [(at, order["number"]) for at, order in enumerate(orders) if order["client"] == customer.name]
        assert mine == [(offset, number) for number, offset in sorted(customer.acknowledged.items())]


@pytest.mark.parametrize("service", SERVICES)
async def test_a_stream_of_events_begins_at_the_first_order_that_is_left(
    service: str, tmp_path: Path
) -> None:
    async with open_children() as children, httpx.AsyncClient(timeout=PATIENCE_S) as client:
        running = await start_cluster(children, tmp_path / "cluster")
        server = await start(children, service, running.uri, tmp_path)
        with trio.fail_after(PATIENCE_S):
            await leader_of(client, [server])
            customer = Customer("anna", client, [server])
            for number in range(4):
                await customer.put(server, number)
            async with ledgerlog.connect(running.uri) as cluster:
                await (await cluster.open_log("orders")).truncate(2)
            for last_seen in (-1, 0, 1):
                assert list(await events(server, last_seen, 2)) == [2, 3]
            assert list(await events(server, 2, 1)) == [3]
            for malformed in ("-1", "-5", "two", "", "1.5", "9" * 5000):
                refused = await client.get(
                    f"http://{server.address}/events", headers={"Last-Event-ID": malformed}
                )
                assert refused.status_code == 422, malformed
            async with client.stream("GET", f"http://{server.address}/events") as stream:
                assert stream.status_code == 200
                await server.child.stop()
    assert "Traceback" not in (tmp_path / f"{server.address}.log").read_text()


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_shorter_than_150_lines(service: str) -> None:
    assert len((EXAMPLES / f"{service}.py").read_text(encoding="utf-8").splitlines()) < 150
