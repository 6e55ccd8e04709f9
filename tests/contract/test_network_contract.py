"""The promises of every network: TCP, streams inside the process, and the fake with faults."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable

import attrs
import pytest
import trio
import trio.testing

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import MIB
from ledgerlog.net.certificates import Certificates
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.tcp import TcpNetwork
from ledgerlog.net.tls import TlsNetwork
from ledgerlog.net.transport import ConnectionLost, Listener, Network, Stream, buffers_bytes, unsent
from ledgerlog.testing.faulty_network import FaultyNetwork
from tests import certificates
from tests.waiting import PATIENCE_S


@attrs.frozen
class Kind:
    make: Callable[[], Network]
    address: str


def over_tls(inner: Callable[[], Network]) -> Callable[[], Network]:
    """Return a function that makes a network with one certificate, which both ends use."""
    return lambda: TlsNetwork(inner(), Certificates(certificates.files("bookie/b1"), cluster="c1"))


KINDS = {
    "local": Kind(LocalNetwork, "bookie:0"),
    "faulty": Kind(lambda: FaultyNetwork().at("client"), "bookie:0"),
    "local-narrow": Kind(lambda: LocalNetwork(buffer_bytes=1000), "bookie:0"),
    "tcp": Kind(TcpNetwork, "127.0.0.1:0"),
    "tcp6": Kind(TcpNetwork, "[::1]:0"),
    "tls": Kind(over_tls(TcpNetwork), "127.0.0.1:0"),
    # The room of little more than one record of TLS.
    "tls-narrow": Kind(over_tls(lambda: LocalNetwork(buffer_bytes=17_001)), "bookie:0"),
}


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param == "tcp6" and not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    return KINDS[request.param]


@pytest.fixture
def network(kind: Kind) -> Network:
    return kind.make()


async def meet(client: Stream, server: Stream) -> None:
    """Have a byte go in both directions, as HELLO does. Over TLS this does the handshake."""

    async def greet(stream: Stream) -> None:
        await stream.send_all([b"?"])
        assert await receive_exactly(stream, 1) == b"?"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(greet, client)
        nursery.start_soon(greet, server)


@attrs.frozen
class Pair:
    client: Stream
    server: Stream
    listener: Listener

    def close(self) -> None:
        for each in (self.client, self.server, self.listener):
            each.close()


@pytest.fixture
async def pair(network: Network, kind: Kind) -> Pair:
    listener = await network.listen(kind.address)
    client = await network.connect(listener.address)
    pair = Pair(client, await listener.accept(), listener)
    await meet(pair.client, pair.server)
    try:
        yield pair
    finally:
        pair.close()


async def receive_exactly(stream: Stream, count: int, *, at_most: int = 65536) -> bytes:
    received = bytearray()
    room = memoryview(bytearray(at_most))
    while len(received) < count:
        got = await stream.receive_into(room[: min(at_most, count - len(received))])
        if not got:
            raise AssertionError(f"the end came after {len(received)} of {count} bytes")
        received += room[:got]
    return bytes(received)


async def receive_rest(stream: Stream) -> bytes:
    received = bytearray()
    room = memoryview(bytearray(65536))
    while got := await stream.receive_into(room):
        received += room[:got]
    return bytes(received)


async def test_bytes_arrive_in_order_in_both_directions_at_once(pair: Pair) -> None:
    rng = random.Random(1)
    there, back = rng.randbytes(300_000), rng.randbytes(200_000)

    async def send(stream: Stream, data: bytes) -> None:
        at = 0
        while at < len(data):
            sizes = [rng.choice((0, 1, 3, 1000, 40_000)) for _ in range(rng.randrange(1, 5))]
            buffers = []
            for index, size in enumerate(sizes):
                part = data[at : at + size]
                buffers.append((bytes, bytearray, memoryview)[index % 3](part))
                at += len(part)
            await stream.send_all(buffers)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, pair.client, there)
        nursery.start_soon(send, pair.server, back)

        async def receive_and_compare(stream: Stream, data: bytes) -> None:
            assert await receive_exactly(stream, len(data), at_most=10_000) == data

        nursery.start_soon(receive_and_compare, pair.server, there)
        nursery.start_soon(receive_and_compare, pair.client, back)


@pytest.mark.parametrize("size", [4, 4000])
async def test_more_buffers_than_one_system_call_takes_arrive_whole(pair: Pair, size: int) -> None:
    buffers = [index.to_bytes(size, "big") for index in range(5000)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.client.send_all, buffers)
        await trio.testing.wait_all_tasks_blocked(0.01)  # Until the buffers between them are full.
        assert await receive_exactly(pair.server, 5000 * size) == b"".join(buffers)


async def test_send_nowait_says_how_much_went_and_nothing_is_lost_or_doubled(pair: Pair) -> None:
    data = random.Random(2).randbytes(32 * MIB)
    sent = 0
    buffers = [data[at : at + 100_001] for at in range(0, len(data), 100_001)]
    while went := pair.client.send_nowait(unsent(buffers, sent)):
        sent += went
    assert 0 < sent < len(data), "a peer that does not read stops a sender"
    assert pair.client.send_nowait([]) == 0
    # Exactly the bytes that the send reported as sent arrive.
    assert await receive_exactly(pair.server, sent) == data[:sent]
    with trio.move_on_after(0.05) as nothing_more:
        await pair.server.receive_into(memoryview(bytearray(1)))
    assert nothing_more.cancelled_caught


async def test_send_all_waits_for_a_reader_and_then_goes_on(pair: Pair) -> None:
    data = random.Random(3).randbytes(24 * MIB)
    finished = False

    async def send() -> None:
        nonlocal finished
        await pair.client.send_all([data[: 5 * MIB], memoryview(data)[5 * MIB :]])
        finished = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not finished
        assert await receive_exactly(pair.server, len(data), at_most=MIB) == data
    assert finished


async def test_a_buffer_may_change_once_it_was_sent(pair: Pair) -> None:
    buffer = bytearray(b"abc")
    await pair.client.send_all([buffer, memoryview(buffer)])
    buffer[:] = b"xyz"
    assert await receive_exactly(pair.server, 6) == b"abcabc"


async def test_what_was_sent_before_a_close_is_readable_and_then_comes_the_end(pair: Pair) -> None:
    await pair.client.send_all([b"last", b"w"])
    pair.client.close()
    assert await receive_rest(pair.server) == b"lastw"
    assert await pair.server.receive_into(memoryview(bytearray(5))) == 0


async def test_sending_to_a_closed_end_fails_before_long(pair: Pair) -> None:
    pair.client.close()

    async def send_on_and_on() -> None:
        with trio.fail_after(PATIENCE_S):
            while True:
                await pair.server.send_all([b"nobody reads this"])
                await trio.lowlevel.checkpoint()

    with pytest.raises(ConnectionLost):
        await send_on_and_on()


async def test_closing_wakes_the_tasks_inside(pair: Pair) -> None:
    outcomes = []

    async def expect_lost(call: Callable[[], object]) -> None:
        with pytest.raises(ConnectionLost):
            await call()
        outcomes.append("lost")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect_lost, lambda: pair.client.receive_into(memoryview(bytearray(1))))
        nursery.start_soon(expect_lost, lambda: pair.client.send_all([bytes(64 * MIB)]))
        nursery.start_soon(expect_lost, pair.listener.accept)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not outcomes
        pair.client.close()
        pair.listener.close()
    assert outcomes == ["lost"] * 3


async def test_a_closed_stream_refuses_everything_and_closing_again_does_nothing(pair: Pair) -> None:
    pair.client.close()
    pair.client.close()
    with pytest.raises(ConnectionLost):
        pair.client.send_nowait([b"x"])
    with pytest.raises(ConnectionLost):
        await pair.client.send_all([b"x"])
    with pytest.raises(ConnectionLost):
        await pair.client.receive_into(memoryview(bytearray(1)))
    pair.listener.close()
    pair.listener.close()
    with pytest.raises(ConnectionLost):
        await pair.listener.accept()


async def test_a_cancelled_receive_loses_nothing(pair: Pair) -> None:
    received = bytearray()
    room = memoryview(bytearray(16))

    async def receive_with_interruptions() -> None:
        while len(received) < 400:
            with trio.CancelScope() as scope:
                if len(received) % 3 == 0:
                    scope.cancel()
                got = await pair.server.receive_into(room)
                received.extend(room[:got])
            if scope.cancelled_caught:
                got = await pair.server.receive_into(room[:5])
                received.extend(room[:got])

    data = bytes(range(100)) * 4
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive_with_interruptions)
        for at in range(0, len(data), 4):
            await pair.client.send_all([data[at : at + 4]])
            await trio.lowlevel.checkpoint()
    assert bytes(received) == data


async def test_every_wait_sees_a_cancellation_even_when_it_need_not_wait(pair: Pair) -> None:
    await pair.client.send_all([b"ready"])
    for call in (
        lambda: pair.server.receive_into(memoryview(bytearray(2))),
        lambda: pair.client.send_all([b"x"]),
        pair.listener.accept,
    ):
        with trio.CancelScope() as scope:
            scope.cancel()
            await call()
        assert scope.cancelled_caught
    assert await receive_exactly(pair.server, 5) == b"ready"


async def test_a_peer_that_never_lets_a_receive_wait_starves_nobody(pair: Pair) -> None:
    steps = 0
    received = 0

    async def count_steps() -> None:
        nonlocal steps
        while received < 20_000:
            steps += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.client.send_all, [bytes(20_000)])
        nursery.start_soon(count_steps)
        room = memoryview(bytearray(1))
        while received < 20_000:
            received += await pair.server.receive_into(room)
    assert steps > 500


async def test_nobody_listens_is_a_lost_connection(network: Network, kind: Kind) -> None:
    listener = await network.listen(kind.address)
    address = listener.address
    listener.close()
    with pytest.raises(ConnectionLost, match="cannot connect"):
        await network.connect(address)


async def test_an_address_is_listened_at_once_and_again_after_a_close(network: Network, kind: Kind) -> None:
    listener = await network.listen(kind.address)
    with pytest.raises(ConnectionLost, match="cannot listen"):
        await network.listen(listener.address)
    client = await network.connect(listener.address)
    server = await listener.accept()
    listener.close()
    # The accepted connection outlives its listener, and does not block the address for the next listener.
    again = await network.listen(listener.address)
    assert again.address == listener.address
    await meet(client, server)
    await client.send_all([b"still"])
    assert await receive_exactly(server, 5) == b"still"
    for each in (client, server, again):
        each.close()


async def test_port_0_is_any_free_one_and_never_the_same_twice(network: Network, kind: Kind) -> None:
    listeners = [await network.listen(kind.address) for _ in range(3)]
    assert len({listener.address for listener in listeners}) == 3
    assert not any(listener.address.endswith(":0") for listener in listeners)
    for listener in listeners:
        listener.close()


async def test_connections_that_nobody_accepted_end_with_their_listener(network: Network, kind: Kind) -> None:
    listener = await network.listen(kind.address)
    client = await network.connect(listener.address)
    listener.close()
    with contextlib.suppress(ConnectionLost):
        assert await client.receive_into(memoryview(bytearray(1))) == 0
    client.close()


async def test_a_link_that_is_cut_while_a_connection_begins_carries_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = FaultyNetwork()
    listener = await network.at("bookie").listen("bookie")
    connect = network._local.connect

    async def connect_late(address: str, **options: None) -> Stream:
        network.cut("client", "bookie")
        return await connect(address, **options)

    monkeypatch.setattr(network._local, "connect", connect_late)
    with pytest.raises(ConnectionLost, match="the link is cut"):
        await network.at("client").connect("bookie")
    server = await listener.accept()
    with trio.fail_after(PATIENCE_S):
        assert await server.receive_into(memoryview(bytearray(1))) == 0
    server.close()
    listener.close()


@pytest.mark.parametrize("address", ["", "a b:1", "\n:1"])
async def test_a_malformed_address_is_an_invalid_argument(network: Network, address: str) -> None:
    with pytest.raises(InvalidArgument):
        await network.connect(address)
    with pytest.raises(InvalidArgument):
        await network.listen(address)


async def test_peers_have_names_for_messages(pair: Pair) -> None:
    assert pair.client.peer == pair.listener.address
    assert pair.server.peer


def test_unsent_is_what_is_left() -> None:
    buffers = [b"ab", b"", bytearray(b"cde"), memoryview(b"f")]
    whole = b"abcdef"
    for sent in range(7):
        left = unsent(buffers, sent)
        assert b"".join(bytes(each) for each in left) == whole[sent:]
        assert buffers_bytes(left) == 6 - sent
