"""A bookie and its clients over TLS: which certificates they accept, and what they say about others."""

from __future__ import annotations

import logging

import attrs
import pytest
import trio
from raw_client import add
from serving import Bookie, Machine, ledger

from ledgerlog.errors import BookieUnavailable, NotEnoughBookies, Unauthenticated
from ledgerlog.ledger.client import open_client
from ledgerlog.log.log import create_log
from ledgerlog.meta.grants import change_grants
from ledgerlog.model.access import Grant, Role
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.credentials import TLS
from ledgerlog.model.ids import BookieId
from ledgerlog.model.log import RetentionPolicy, RollPolicy
from ledgerlog.model.principal import Principal
from ledgerlog.model.quorum import Replication
from ledgerlog.net.certificates import Certificates
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.pool import open_pool
from ledgerlog.net.tls import TlsNetwork
from ledgerlog.net.transport import Network
from ledgerlog.testing.memory_cluster import CLUSTER
from ledgerlog.wire.frame import REPLY, Kind
from ledgerlog.wire.hello import Hello, encode_hello
from tests import certificates
from tests.waiting import PATIENCE_S

CLIENT = certificates.files("client/billing")
STRANGER = attrs.evolve(certificates.files("client/billing", authority="theirs"), ca=CLIENT.ca)


def network(files: TLS | None, inner: Network, cluster: str = CLUSTER) -> Network:
    return inner if files is None else TlsNetwork(inner, Certificates(files, cluster))


async def ask(node: Bookie, client: Network) -> None:
    """Ask the bookie b1 something, as a client does."""

    async def resolve(bookie_id: BookieId) -> BookieInfo:
        return BookieInfo("b1", node.node.address, node.node.info.instance)

    async with open_pool(client, resolve, cluster=CLUSTER) as pool:
        await pool.connection("b1").request(Kind.INFO, timeout_s=PATIENCE_S)


async def test_a_bookie_serves_clients_over_tls() -> None:
    inner = LocalNetwork()
    async with Machine(network=network(certificates.files("bookie/b1"), inner)).bookie() as node:
        await ask(node, network(CLIENT, inner))
        await ask(node, network(certificates.files("bookie/b2"), inner))


def bookie_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name.startswith("bookie.")]


@pytest.mark.parametrize(
    ("bookie", "client", "why", "logged"),
    [
        pytest.param(
            certificates.files("bookie/b1"),
            STRANGER,
            "it does not trust the authority of this process's certificate",
            "its certificate is not from an authority in",
            id="a client of another authority",
        ),
        pytest.param(
            certificates.files("bookie/b1"),
            None,
            "it speaks TLS, but this process has no certificate: give --tls-cert",
            "it does not speak TLS, but this process does",
            id="a plain client at a bookie with TLS",
        ),
        pytest.param(
            None,
            CLIENT,
            "it does not speak TLS, but this process does",
            "it speaks TLS, but this bookie has no certificate",
            id="a client with TLS at a plain bookie",
        ),
        pytest.param(
            certificates.files("bookie/b2"),
            CLIENT,
            "its certificate proves that it is bookie/b2, but bookie/b1 was expected",
            None,
            id="the certificate of another bookie",
        ),
        pytest.param(
            certificates.files("client/b1"),
            CLIENT,
            "its certificate proves that it is client/b1, but bookie/b1 was expected",
            None,
            id="the certificate of a client in place of a bookie's",
        ),
        pytest.param(
            attrs.evolve(certificates.files("bookie/b1", authority="theirs"), ca=CLIENT.ca),
            CLIENT,
            "its certificate is not from an authority in",
            "it does not trust the authority of this process's certificate",
            id="a bookie of another authority",
        ),
    ],
)
async def test_who_is_not_believed_is_told_why_and_the_bookie_logs_one_line(
    bookie: TLS | None, client: TLS | None, why: str, logged: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    inner = LocalNetwork()
    async with Machine(network=network(bookie, inner)).bookie() as node:
        with caplog.at_level(logging.WARNING):
            with pytest.raises(BookieUnavailable) as refused:
                await ask(node, network(client, inner))
            while node.node.server.connections:
                await trio.testing.wait_all_tasks_blocked()
    assert isinstance(refused.value, Unauthenticated)
    assert why in str(refused.value)
    lines = bookie_lines(caplog)
    assert len(lines) == (logged is not None)
    assert all(logged is not None and logged in line and "client=" in line for line in lines)


async def test_a_flood_of_strangers_writes_a_bounded_log(caplog: pytest.LogCaptureFixture) -> None:
    inner = LocalNetwork()
    async with Machine(network=network(certificates.files("bookie/b1"), inner)).bookie() as node:
        with caplog.at_level(logging.WARNING):
            for _ in range(50):
                stream = await inner.connect(node.node.address)
                await stream.send_all([b"GET / HTTP/1.1\r\n\r\n"])
                while node.node.server.connections:
                    await trio.testing.wait_all_tasks_blocked()
                stream.close()
        assert len(bookie_lines(caplog)) == 20
        # And whoever is known is served.
        await ask(node, network(CLIENT, inner))


async def test_nothing_that_a_stranger_sends_is_done() -> None:
    """The client's end of the handshake is over before the bookie has seen the certificate. So the client can
    send adds."""
    inner = LocalNetwork()
    machine = Machine(network=network(certificates.files("bookie/b1"), inner))
    machine.ledgers[7] = ledger(7, key=b"o" * 16)
    async with machine.bookie() as node:
        everything = Grant(Role.WRITER)
        await change_grants(node.store, Principal("client", "billing"), lambda now: now.granted(everything))
        stranger = await Bookie(node.node, network(STRANGER, inner), node.store).connect()
        await stranger.send(encode_hello(Hello("b1", None, None)), *add(7, 0, [b"poison"], key=b"o" * 16))
        with pytest.raises(Unauthenticated):
            await stranger.receive()
        known = await Bookie(node.node, network(CLIENT, inner), node.store).client()
        # Had the stranger's add been taken, this one would be in conflict with it.
        await known.add(7, 0, [b"true"], key=b"o" * 16)
        assert (await known.receive()).header.kind == Kind.ADD | REPLY


async def test_an_append_with_a_certificate_that_the_bookies_refuse_names_the_reason() -> None:
    inner = LocalNetwork()
    machine = Machine(network=network(certificates.files("bookie/b1"), inner))
    async with machine.bookie(), machine.tree.open_store() as store:
        for files, why in (
            (STRANGER, "failed: b1 (it does not trust the authority of this process's certificate)"),
            (None, "failed: b1 (it speaks TLS, but this process has no certificate"),
        ):
            async with open_client(store, network(files, inner), append_deadline_s=1.0) as client:
                log = await create_log(
                    client,
                    "orders",
                    replication=Replication(1, 1, 1),
                    roll=RollPolicy(),
                    retention=RetentionPolicy(),
                    properties={},
                    exist_ok=True,
                )
                with pytest.raises(NotEnoughBookies) as refused:
                    async with log.writer() as writer:
                        await writer.append(b"never")
            assert why in str(refused.value)
