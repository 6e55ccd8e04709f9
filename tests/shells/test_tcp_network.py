"""What only TCP has: addresses, names, options, and a process without free descriptors."""

from __future__ import annotations

import itertools
import logging
import os
import resource
import socket

import pytest
import trio
import trio.testing

from ledgerlog.errors import InvalidArgument
from ledgerlog.net.tcp import TcpListener, TcpNetwork, TcpStream, parse_address
from ledgerlog.net.transport import ConnectionLost
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("host:1", "host", 1),
        ("bookie-1.example.org:65535", "bookie-1.example.org", 65535),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:3181", "::1", 3181),
        ("[::ffff:10.0.0.1]:80", "::ffff:10.0.0.1", 80),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
    ],
)
def test_addresses(address: str, host: str, port: int) -> None:
    assert parse_address(address) == (host, port)


@pytest.mark.parametrize(
    "address",
    [
        "host",
        "host:",
        ":1",
        "host:65536",
        "host:-1",
        "host:1 ",
        "host:x",
        "::1:80",
        "[::1]",
        "[]:1",
        "[host]:1",
        "http://host:1",
        "host:123456",
        "a b:1",
        "host:\u0661",
    ],
    ids=itertools.count(),
)
async def test_what_is_no_address(address: str) -> None:
    with pytest.raises(InvalidArgument, match="is not an address"):
        await TcpNetwork().connect(address)
    with pytest.raises(InvalidArgument, match="is not an address"):
        await TcpNetwork().listen(address)


async def test_port_0_is_for_listening_only() -> None:
    with pytest.raises(InvalidArgument, match="port 0"):
        await TcpNetwork().connect("127.0.0.1:0")


async def test_a_name_that_cannot_be_one_is_an_invalid_argument() -> None:
    network = TcpNetwork()
    for address in ("x" * 70 + ".example:1", "a..b:1"):
        with pytest.raises((InvalidArgument, ConnectionLost)):
            await network.connect(address)
        with pytest.raises((InvalidArgument, ConnectionLost)):
            await network.listen(address)


async def test_names_are_resolved_and_the_real_address_is_told() -> None:
    network = TcpNetwork()
    listener = await network.listen("localhost:0")
    host, port = parse_address(listener.address)
    assert host in ("127.0.0.1", "::1")
    client = await network.connect(f"localhost:{port}")
    server = await listener.accept()
    await client.send_all([b"x"])
    assert await server.receive_into(memoryview(bytearray(1))) == 1
    for each in (client, server, listener):
        each.close()


async def test_streams_send_at_once_and_notice_dead_machines() -> None:
    network = TcpNetwork()
    listener = await network.listen("127.0.0.1:0")
    client = await network.connect(listener.address)
    server = await listener.accept()
    for stream in (client, server):
        sock: socket.socket = stream._sock
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 0
        assert not sock.get_inheritable()
    for each in (client, server, listener):
        each.close()


class HalfSocket(socket.socket):
    """A kernel that takes half of every send, and has room again at once."""

    def sendmsg(self, buffers: object, *more: object) -> int:
        data = b"".join(buffers)
        return self.send(data[: (len(data) + 1) // 2])


async def test_a_send_of_many_buffers_ends_where_the_kernel_stopped_taking() -> None:
    left, right = socket.socketpair()
    sock = HalfSocket(fileno=left.detach())
    for each in (sock, right):
        each.setblocking(False)
    sender, receiver = TcpStream(sock, "right"), TcpStream(right, "left")
    buffers = [index.to_bytes(2, "big") for index in range(4000)]
    sent = sender.send_nowait(buffers)
    room = memoryview(bytearray(10_000))
    assert 0 < sent < 8000
    assert await receiver.receive_into(room) == sent
    assert room[:sent] == b"".join(buffers)[:sent]
    for each in (sender, receiver):
        each.close()


async def test_a_reset_is_a_lost_connection_for_both_directions() -> None:
    network = TcpNetwork()
    listener = await network.listen("127.0.0.1:0")
    client = await network.connect(listener.address)
    server = await listener.accept()
    sock: socket.socket = client._sock
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    client.close()
    with pytest.raises(ConnectionLost, match="reset"):
        await server.receive_into(memoryview(bytearray(1)))
    with pytest.raises(ConnectionLost):
        await server.send_all([b"x"])
    for each in (server, listener):
        each.close()


async def test_a_socket_that_was_connected_to_itself_is_nobody_listening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel does this if it happens to pick the port that was asked for. Here we make it do so."""

    async def connect_to_itself(host: str, port: int) -> trio.SocketStream:
        sock = trio.socket.socket()
        await sock.bind((host, port))
        await sock.connect((host, port))
        return trio.SocketStream(sock)

    network = TcpNetwork()
    listener = await network.listen("127.0.0.1:0")
    listener.close()
    monkeypatch.setattr(trio, "open_tcp_stream", connect_to_itself)
    with pytest.raises(ConnectionLost, match="nothing listens there"):
        await network.connect(listener.address)


class Backlog:
    """A listening socket with some connections. Their sockets are pairs, so a peer that has left is gone at
    once."""

    def __init__(self, connections: list[socket.socket]) -> None:
        self.connections = connections

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        return self.connections.pop(0), ("127.0.0.1", len(self.connections))

    def fileno(self) -> int:
        return self.connections[0].fileno()

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 1


class Passes(trio.abc.Instrument):
    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_who_left_before_it_was_accepted_costs_a_pass_and_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = [socket.socketpair() for _ in range(12)]
    for _, peer in pairs[:10]:
        peer.close()
    pairs[10][1].sendall(b"HELLO")
    pairs[10][1].close()  # It has said something: it is served.
    network = TcpNetwork()
    monkeypatch.setattr(network, "_configure", lambda sock: sock.setblocking(False))
    listener = TcpListener(network, Backlog([ours for ours, _ in pairs]))
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    said = await listener.accept()
    trio.lowlevel.remove_instrument(passes)
    assert 10 <= passes.count <= 12, "others run between two of them"
    assert [ours.fileno() for ours, _ in pairs[:10]] == [-1] * 10
    room = bytearray(10)
    assert room[: await said.receive_into(room)] == b"HELLO"
    silent = await listener.accept()
    assert pairs[11][0].fileno() != -1
    for each in (said, silent):
        each.close()
    pairs[11][1].close()


async def test_running_out_of_descriptors_delays_connections_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network = TcpNetwork()
    listener = await network.listen("127.0.0.1:0")
    clients = [await network.connect(listener.address) for _ in range(2)]
    accepted = []

    async def accept_both() -> None:
        for _ in clients:
            accepted.append(await listener.accept())

    def told() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "ledgerlog.net.tcp"]

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    with caplog.at_level(logging.WARNING, logger="ledgerlog.net.tcp"):
        async with trio.open_nursery() as nursery:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
            try:
                nursery.start_soon(accept_both)
                with trio.fail_after(PATIENCE_S):
                    while not told():
                        await trio.lowlevel.checkpoint()
                # Meanwhile the listener tries again, without logging and without spinning.
                await trio.sleep(0.15)
                assert not accepted
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(accepted) == 2
    assert len(told()) == 1
    assert "cannot accept connections" in told()[0].getMessage()
    for each in (*clients, *accepted, listener):
        each.close()


async def test_closing_a_listener_ends_its_wait_for_descriptors_too() -> None:
    network = TcpNetwork()
    listener = await network.listen("127.0.0.1:0")
    client = await network.connect(listener.address)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)

    async def expect_lost() -> None:
        with pytest.raises(ConnectionLost, match="closed"):
            await listener.accept()

    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_lost)
            await trio.testing.wait_all_tasks_blocked()
            listener.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    client.close()


async def test_a_connection_waits_for_a_descriptor_and_the_other_end_is_not_taken_for_lost() -> None:
    network = TcpNetwork()
    listener = await network.listen("127.0.0.1:0")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    connected = []

    async def connect() -> None:
        connected.append(await network.connect(listener.address))

    async with trio.open_nursery() as nursery:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            with trio.move_on_after(0.15) as waiting:
                await connect()
            assert waiting.cancelled_caught
            nursery.start_soon(connect)
            await trio.testing.wait_all_tasks_blocked()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for each in (*connected, listener):
        each.close()
