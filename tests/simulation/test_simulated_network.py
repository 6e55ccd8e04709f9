"""The simulated network: the contract of networks, and the faults that it is there for."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from contract import test_network_contract as contract

from ledgerlog.net.transport import ConnectionLost, Stream
from ledgerlog.testing.deterministic import Simulation
from ledgerlog.testing.links import LinkQuality
from ledgerlog.testing.network import SimNetwork
from ledgerlog.testing.process import Incarnation, NodeCrashed

NEEDS_REAL_TIME = frozenset({"test_a_peer_that_never_lets_a_receive_wait_starves_nobody"})
"""This test spins until bytes arrive. In the simulation, time stands still while a task spins."""

CONTRACT = [
    (name, test)
    for name, test in vars(contract).items()
    if name.startswith("test_")
    and inspect.iscoroutinefunction(test)
    and name not in NEEDS_REAL_TIME
    and "monkeypatch" not in inspect.signature(test).parameters  # It is about a kind of its own.
]


def test_the_whole_contract_is_there() -> None:
    assert len(CONTRACT) > 15


@pytest.mark.parametrize("test", [test for _, test in CONTRACT], ids=[name for name, _ in CONTRACT])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_contract_of_networks(test: Callable[..., Awaitable[None]], seed: int) -> None:
    kind = contract.Kind(lambda: None, "server:0")

    async def main(simulation: Simulation) -> None:
        network = SimNetwork(simulation).at(Incarnation(simulation, "server", 1, lambda power_cut: None))
        given: dict[str, Any] = {"kind": kind, "network": network}
        wanted = inspect.signature(test).parameters
        if "pair" in wanted:
            listener = await network.listen("server:0")
            client = await network.connect(listener.address)
            given["pair"] = contract.Pair(client, await listener.accept(), listener)
        if "size" in wanted:
            given["size"] = 4
        if "address" in wanted:
            given["address"] = "a b:1"
        await test(**{name: given[name] for name in wanted})

    Simulation(seed).run(main, cpu_s_max=10)


class Two:
    """A client and a server on hosts of their own, connected."""

    def __init__(self, simulation: Simulation, **options: Any) -> None:
        self.simulation = simulation
        self.network = SimNetwork(simulation, **options)
        self.client = Incarnation(simulation, "client", 1, lambda power_cut: None)
        self.server = Incarnation(simulation, "server", 1, lambda power_cut: None)

    async def connect(self) -> tuple[Stream, Stream]:
        listener = await self.network.at(self.server).listen("server:1")
        stream = await self.network.at(self.client).connect("server:1")
        return stream, await listener.accept()


def simulated(scenario: Callable[[Two], Awaitable[None]], *, seeds: range = range(3), **options: Any) -> None:
    async def main(simulation: Simulation) -> None:
        await scenario(Two(simulation, **options))

    for seed in seeds:
        Simulation(seed).run(main, cpu_s_max=10)


async def receive(stream: Stream, count: int) -> bytes:
    return await contract.receive_exactly(stream, count)


async def hears_nothing(stream: Stream, seconds: float = 30) -> bool:
    with trio.move_on_after(seconds) as scope:
        await stream.receive_into(memoryview(bytearray(1)))
    return scope.cancelled_caught


def test_a_message_takes_time_and_a_slow_link_more_of_it() -> None:
    async def scenario(two: Two) -> None:
        client, server = await two.connect()
        start = two.simulation.now
        await client.send_all([b"x"])
        await receive(server, 1)
        quick = two.simulation.now - start
        assert 0 < quick < 0.1
        two.network.link("client", "server").slow = 1000
        await client.send_all([b"x"])
        start = two.simulation.now
        await receive(server, 1)
        assert two.simulation.now - start > quick
        two.network.link("server", "client").bytes_per_s = 100
        start = two.simulation.now
        await server.send_all([bytes(1000)])
        await receive(client, 1000)
        assert two.simulation.now - start >= 10

    simulated(scenario)


def test_a_blocked_link_says_nothing_and_delivers_in_order_when_healed() -> None:
    async def in_order(two: Two) -> None:
        client, server = await two.connect()
        two.network.block("client", "server", one_way=True)
        await client.send_all([b"abc"])
        await server.send_all([b"the other way is open"])
        assert await receive(client, 21) == b"the other way is open"
        assert await hears_nothing(server)
        await client.send_all([b"def"])
        two.network.heal()
        for piece in (b"ghi", b"jkl", b"mno"):
            await client.send_all([piece])
        assert await receive(server, 15) == b"abcdefghijklmno"

    simulated(in_order, seeds=range(15), quality=LinkQuality(cut_share=0.9, tail_share=0.5))


def test_connecting_over_a_blocked_link_hangs_until_it_is_healed() -> None:
    async def scenario(two: Two) -> None:
        await two.network.at(two.server).listen("server:1")
        network = two.network.at(two.client)
        for source, target in (("client", "server"), ("server", "client")):
            two.network.block(source, target, one_way=True)
            with trio.move_on_after(60) as scope:
                await network.connect("server:1")
            assert scope.cancelled_caught
            two.simulation.after(5, two.network.heal)
            (await network.connect("server:1")).close()

    simulated(scenario)


def test_a_reset_loses_what_is_in_flight_and_half_of_one_leaves_the_other_end_waiting() -> None:
    async def scenario(two: Two) -> None:
        client, server = await two.connect()
        await client.send_all([b"lost"])
        assert two.network.reset("client", "server") == 1
        for stream in (client, server):
            with pytest.raises(ConnectionLost):
                await receive(stream, 1)
        assert two.network.bytes_lost == 4

    async def half(two: Two) -> None:
        client, server = await two.connect()
        two.network.reset("client", "server", half=True)
        with pytest.raises(ConnectionLost):
            client.send_nowait([b"x"])
        assert await hears_nothing(server), "nobody told it"
        await server.send_all([b"is somebody there?"])
        with pytest.raises(ConnectionLost):
            await receive(server, 1)

    simulated(scenario)
    simulated(half)


def test_the_peers_of_a_killed_process_are_told_and_those_of_a_dead_machine_are_not() -> None:
    async def killed(two: Two) -> None:
        client, server = await two.connect()
        await server.send_all([b"last words"])
        two.server.die()
        two.network.on_process_end(two.server, is_silent=False)
        assert await contract.receive_rest(client) == b"last words"
        with pytest.raises(ConnectionLost):
            await two.network.at(two.client).connect("server:1")
        for call in (lambda: server.send_nowait([b"x"]), two.server.check):
            with pytest.raises(NodeCrashed):
                call()
        server.close()

    async def power_cut(two: Two) -> None:
        client, _ = await two.connect()
        two.server.die()
        two.network.on_process_end(two.server, is_silent=True)
        assert await hears_nothing(client)
        await client.send_all([b"hello?"])
        assert await hears_nothing(client)
        with trio.move_on_after(30) as scope:
            await two.network.at(two.client).connect("server:1")
        assert scope.cancelled_caught
        two.network.on_process_start("server")
        with pytest.raises(ConnectionLost):
            await receive(client, 1)

    simulated(killed)
    simulated(power_cut)


def test_a_paused_process_hears_and_says_nothing_until_it_is_resumed() -> None:
    async def scenario(two: Two) -> None:
        client, server = await two.connect()
        two.server.pause()
        await client.send_all([b"question"])
        server.send_nowait([b"answer"])
        assert await hears_nothing(client)
        assert await hears_nothing(server)
        two.server.resume()
        two.network.on_resume()
        assert await receive(server, 8) == b"question"
        assert await receive(client, 6) == b"answer"

    simulated(scenario)


def test_a_sender_waits_for_a_reader_that_does_not_read() -> None:
    async def scenario(two: Two) -> None:
        client, server = await two.connect()
        assert client.send_nowait([bytes(5000)]) == 1000
        with trio.move_on_after(60) as scope:
            await client.send_all([b"x"])
        assert scope.cancelled_caught
        assert await receive(server, 1000) == bytes(1000)
        await client.send_all([b"x"])

    simulated(scenario, buffer_bytes=1000)
