"""Streams over TLS: which peers are let in, what both ends are told about a refusal, and what does not count
as the end of a stream."""

from __future__ import annotations

import datetime
import logging
import os
import re
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from ledgerlog.cli import trial_certificates
from ledgerlog.errors import InvalidArgument, Unauthenticated
from ledgerlog.limits import HANDSHAKE_TIMEOUT_S, MIB
from ledgerlog.model.credentials import NO_CREDENTIALS, TLS, Credentials
from ledgerlog.model.principal import Principal
from ledgerlog.net import certificates as certificates_module
from ledgerlog.net.certificates import Certificates
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.tcp import TcpNetwork
from ledgerlog.net.tls import TlsNetwork, TlsStream, bookie_of, network_of
from ledgerlog.net.transport import ConnectionLost, Network, Stream
from tests import certificates

BOOKIE = certificates.files("bookie/b1")
CLIENT = certificates.files("client/billing")


def tls(files: TLS, inner: Network, *, cluster: str = "c1") -> TlsNetwork:
    return TlsNetwork(inner, Certificates(files, cluster))


@attrs.frozen
class Ends:
    client: Stream
    server: Stream


@asynccontextmanager
async def ends(
    client: Callable[[Network], Network], server: Callable[[Network], Network]
) -> AsyncIterator[Ends]:
    """Connect two ends. Each wraps the plain network in its own way."""
    plain = LocalNetwork()
    listener = await server(plain).listen("bookie:0")
    stream = await client(plain).connect(listener.address)
    accepted = await listener.accept()
    try:
        yield Ends(stream, accepted)
    finally:
        for each in (stream, accepted, listener):
            each.close()


def as_bookie(inner: Network) -> Network:
    return tls(BOOKIE, inner)


def as_client(inner: Network) -> Network:
    return tls(CLIENT, inner)


async def greet(stream: Stream) -> Exception | None:
    """Say and hear a byte. Return what came instead."""
    try:
        await stream.send_all([b"?"])
        room = memoryview(bytearray(10))
        if not await stream.receive_into(room):
            raise ConnectionLost("it ended")
    except (ConnectionLost, Unauthenticated) as error:
        stream.close()
        return error
    return None


async def outcomes(pair: Ends) -> tuple[Exception | None, Exception | None]:
    """Have both ends greet each other. Return what each saw."""
    seen: dict[str, Exception | None] = {}

    async def run(name: str, stream: Stream) -> None:
        seen[name] = await greet(stream)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "client", pair.client)
            nursery.start_soon(run, "server", pair.server)
    return seen["client"], seen["server"]


def check_refused(outcome: Exception | None, why: str) -> None:
    assert isinstance(outcome, Unauthenticated)
    assert re.search(why, str(outcome))


# --- who is let in ----------------------------------------------------------------------------------


async def test_each_end_learns_who_the_other_is() -> None:
    async with ends(as_client, as_bookie) as pair:
        assert pair.client.principal is None
        assert pair.server.principal is None
        assert await outcomes(pair) == (None, None)
        assert pair.client.principal == Principal("bookie", "b1")
        assert pair.server.principal == Principal("client", "billing")


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process present a certificate that it would itself refuse."""
    monkeypatch.setattr(certificates_module, "_check_times", lambda *_: None)


def not_yet_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TLS:
    monkeypatch.setattr(trial_certificates, "_BEFORE", -datetime.timedelta(hours=1))
    return certificates.renewed("client/billing", tmp_path / "later")


@pytest.mark.parametrize(
    ("files", "to_client", "to_server"),
    [
        pytest.param(
            attrs.evolve(certificates.files("client/billing", authority="theirs"), ca=CLIENT.ca),
            "it does not trust the authority of this process's certificate",
            "its certificate is not from an authority in .*ca.pem",
            id="another authority",
        ),
        pytest.param(
            certificates.files("client/billing", days=-0.01),
            "to it, this process's certificate has expired; this machine's clock says",
            "its certificate has expired; this machine's clock says",
            id="expired",
        ),
        pytest.param(
            None,
            "may not be valid yet by its clock; this machine's clock says",
            "its certificate is not valid yet; .*: is a clock wrong?",
            id="not yet valid",
        ),
    ],
)
async def test_a_client_with_a_bad_certificate_is_refused_and_both_ends_say_why(
    files: TLS | None,
    to_client: str,
    to_server: str,
    unchecked: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = files or not_yet_valid(tmp_path, monkeypatch)
    async with ends(lambda inner: tls(given, inner), as_bookie) as pair:
        client, server = await outcomes(pair)
    check_refused(server, to_server)
    check_refused(client, to_client)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        pytest.param(
            attrs.evolve(certificates.files("bookie/b1", authority="theirs"), ca=CLIENT.ca),
            "its certificate is not from an authority in",
            id="another authority",
        ),
        pytest.param(
            certificates.files("bookie/b1", days=-0.01),
            "its certificate has expired",
            id="expired",
        ),
    ],
)
async def test_a_bookie_with_a_bad_certificate_is_refused(files: TLS, why: str, unchecked: None) -> None:
    async with ends(as_client, lambda inner: tls(files, inner)) as pair:
        client, server = await outcomes(pair)
    check_refused(client, why)
    assert isinstance(server, Unauthenticated)


async def test_a_certificate_for_another_cluster_proves_nothing() -> None:
    theirs = certificates.files("client/billing", cluster="c2")
    async with ends(lambda inner: tls(theirs, inner, cluster="c2"), as_bookie) as pair:
        client, server = await outcomes(pair)
    # The bookie's certificate is for any cluster; the client's is for another one than the bookie's.
    check_refused(server, "is for cluster c2, but this is cluster c1")
    assert isinstance(client, ConnectionLost)


async def test_a_client_without_a_certificate_is_refused() -> None:
    class Anonymous(Certificates):
        def client(self) -> ssl.SSLContext:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(CLIENT.ca)
            return context

    async with ends(lambda inner: TlsNetwork(inner, Anonymous(CLIENT, "c1")), as_bookie) as pair:
        client, server = await outcomes(pair)
    check_refused(server, "it presents no certificate")
    check_refused(client, "it asks for a certificate")
    assert pair.server.principal is None


async def test_older_versions_of_tls_are_refused() -> None:
    class Old(Certificates):
        def client(self) -> ssl.SSLContext:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(CLIENT.ca)
            context.load_cert_chain(CLIENT.cert, CLIENT.key)
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            return context

    async with ends(lambda inner: TlsNetwork(inner, Old(CLIENT, "c1")), as_bookie) as pair:
        client, server = await outcomes(pair)
    check_refused(server, "it does not speak TLS 1.3")
    check_refused(client, "it does not speak TLS 1.3")


async def test_a_plain_client_is_told_apart_from_a_bad_one() -> None:
    async with ends(lambda inner: inner, as_bookie) as pair, trio.open_nursery() as nursery:
        nursery.start_soon(pair.client.send_all, [b"LEDGERLOG, plain, and long enough for a head"])
        with pytest.raises(Unauthenticated, match="it does not speak TLS, but this process does"):
            await pair.server.receive_into(memoryview(bytearray(10)))


# --- the stream -------------------------------------------------------------------------------------


async def test_nothing_goes_over_the_wire_readable() -> None:
    async with ends(lambda inner: inner, as_bookie) as pair:
        # A client that speaks TLS by hand: its ciphertext is what an eavesdropper sees.
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        shaking = Certificates(CLIENT, "c1").client().wrap_bio(back, there)
        seen = bytearray()
        room = memoryview(bytearray(65536))

        async def answer() -> None:
            await pair.server.send_all([b"a secret reply"])
            pair.server.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            clear = b""
            while not clear:
                try:
                    clear = shaking.read(100)
                except ssl.SSLWantReadError:
                    if there.pending:
                        await pair.client.send_all([there.read()])
                    count = await pair.client.receive_into(room)
                    seen += room[:count]
                    back.write(room[:count])
    assert clear == b"a secret reply"
    assert b"secret" not in seen
    assert b"ledgerlog" not in seen  # as in the certificates


async def test_accepting_waits_for_no_handshake_and_the_handshake_has_a_deadline(
    clock: trio.testing.MockClock,
) -> None:
    plain = LocalNetwork()
    listener = await as_bookie(plain).listen("bookie:0")
    silent = await plain.connect(listener.address)
    accepted = await listener.accept()
    assert trio.current_time() == 0
    started = trio.current_time()
    with (
        pytest.raises(ConnectionLost, match="its TLS handshake took longer than"),
        trio.fail_after(2 * HANDSHAKE_TIMEOUT_S),
    ):
        await accepted.receive_into(memoryview(bytearray(10)))
    assert trio.current_time() - started == pytest.approx(HANDSHAKE_TIMEOUT_S)
    silent.close()
    accepted.close()
    listener.close()


async def test_a_cancelled_handshake_goes_on_where_it_stopped() -> None:
    async with ends(as_client, as_bookie) as pair:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def cancel() -> None:
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()

                nursery.start_soon(cancel)
                await pair.client.send_all([b"never"])
        assert scope.cancelled_caught
        assert await outcomes(pair) == (None, None)


async def test_a_stream_that_is_cut_off_is_broken_and_not_at_its_end() -> None:
    async with ends(as_client, as_bookie) as pair:
        assert await outcomes(pair) == (None, None)
        assert isinstance(pair.client, TlsStream)
        pair.client._inner.close()  # An attacker on the way can do this.
        with pytest.raises(ConnectionLost, match="it ended without a TLS close message"):
            await pair.server.receive_into(memoryview(bytearray(10)))


async def test_a_changed_byte_breaks_the_connection() -> None:
    async with ends(as_client, as_bookie) as pair:
        assert await outcomes(pair) == (None, None)
        assert isinstance(pair.client, TlsStream)
        await pair.client._inner.send_all([b"\x17\x03\x03\x00\x20" + bytes(32)])
        with pytest.raises(ConnectionLost, match="broke"):
            await pair.server.receive_into(memoryview(bytearray(10)))


class Alerted:
    """Stands for the ``ssl`` of a peer's stream that sent an alert."""

    def read(self, *_: object) -> int:
        error = ssl.SSLError(1, "alert")
        error.reason = "TLSV1_ALERT_UNKNOWN_CA"
        raise error


@pytest.mark.parametrize("end", ["client", "server"])
async def test_an_alert_after_both_were_sure_is_no_refusal(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ends(as_client, as_bookie) as pair:
        assert await outcomes(pair) == (None, None)
        victim, peer = (pair.client, pair.server) if end == "client" else (pair.server, pair.client)
        await peer.send_all([b"?"])
        monkeypatch.setattr(victim, "_ssl", Alerted())
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="UNKNOWN_CA"):
                await victim.receive_into(memoryview(bytearray(10)))
        monkeypatch.undo()


async def test_what_came_at_once_is_given_without_waiting_for_more(clock: trio.testing.MockClock) -> None:
    async with ends(as_client, as_bookie) as pair:
        assert await outcomes(pair) == (None, None)
        await pair.client.send_all([b"12345"])
        await pair.client.send_all([b"678"])
        room = memoryview(bytearray(3))
        with trio.fail_after(1):
            assert [await pair.server.receive_into(room) for _ in range(3)] == [3, 3, 2]


async def test_what_the_socket_does_not_take_is_bounded() -> None:
    plain = LocalNetwork(buffer_bytes=20_000)
    listener = await as_bookie(plain).listen("bookie:0")
    client = await as_client(plain).connect(listener.address)
    server = await listener.accept()
    assert await outcomes(Ends(client, server)) == (None, None)
    assert isinstance(client, TlsStream)
    message = os.urandom(4 * MIB)
    sent = client.send_nowait([message])
    assert 0 < sent < 20_000
    held = sum(len(record.rest) for record in client._waiting)
    assert 0 < held < 300_000
    assert client.send_nowait([memoryview(message)[sent:]]) == 0
    assert sum(len(record.rest) for record in client._waiting) == held, "it is encrypted once"
    for each in (client, server, listener):
        each.close()


# --- the files --------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> TLS:
    """Files of client/billing that a test may change."""
    files = {name: shutil.copy(path, tmp_path / f"{name}.pem") for name, path in attrs.asdict(CLIENT).items()}
    return TLS(**files)


def test_files_that_do_not_fit_are_refused_by_name(own: TLS, tmp_path: Path) -> None:
    for field in ("cert", "key", "ca"):
        with pytest.raises(InvalidArgument, match=f"--tls-{field}.*no-such: No such file"):
            Certificates(attrs.evolve(own, **{field: str(tmp_path / "no-such")}), "c1")
    with pytest.raises(InvalidArgument, match=r"is not the key of the certificate"):
        Certificates(attrs.evolve(own, key=BOOKIE.key), "c1")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    with pytest.raises(InvalidArgument, match=r"text.pem holds no certificate of an authority"):
        Certificates(attrs.evolve(own, ca=str(text)), "c1")
    with pytest.raises(InvalidArgument, match=r"are not a certificate and its key in PEM format"):
        Certificates(attrs.evolve(own, cert=str(text)), "c1")


def test_a_process_refuses_its_own_certificate_before_its_peers_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unauthenticated, match=r"billing.pem expired at .* clock says"):
        Certificates(certificates.files("client/billing", days=-0.01), "c1")
    with pytest.raises(Unauthenticated, match=r"is for cluster c2, but this is cluster c1"):
        Certificates(certificates.files("client/billing", cluster="c2"), "c1")
    with pytest.raises(Unauthenticated, match=r"is not valid before .* is the clock wrong"):
        Certificates(not_yet_valid(tmp_path, monkeypatch), "c1")


def test_others_who_may_read_the_key_are_reported(own: TLS, caplog: pytest.LogCaptureFixture) -> None:
    os.chmod(own.key, 0o640)
    with caplog.at_level(logging.WARNING):
        Certificates(own, "c1")
    assert f"other users of this machine can access the key {own.key}: its mode is 0640" in caplog.text


def renew(own: TLS, principal: str = "client/billing") -> None:
    """Replace the files by another certificate of our authority."""
    made = certificates.renewed(principal, Path(own.cert).parent / "renewed")
    shutil.copy(made.key, own.key)
    shutil.copy(made.cert, own.cert)


async def serial(client: Network, server: Network) -> str:
    """Return the serial number of the certificate with which a client is met."""
    listener = await server.listen("bookie:0")
    stream = await client.connect(listener.address)
    accepted = await listener.accept()
    assert await outcomes(Ends(stream, accepted)) == (None, None)
    assert isinstance(accepted, TlsStream)
    shown = accepted._ssl.getpeercert()
    assert shown is not None
    for each in (stream, accepted, listener):
        each.close()
    return str(shown["serialNumber"])


async def test_new_connections_use_the_files_that_are_there_then(
    own: TLS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates_module, "_LOOK_S", 0.0)
    plain = LocalNetwork()
    client, server = tls(own, plain), as_bookie(plain)
    first = await serial(client, server)
    assert await serial(client, server) == first
    renew(own)
    assert await serial(client, server) != first


async def test_reload_looks_at_once(own: TLS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates_module, "_LOOK_S", 3600.0)
    plain = LocalNetwork()
    client, server = tls(own, plain), as_bookie(plain)
    first = await serial(client, server)
    renew(own)
    assert await serial(client, server) == first
    client.certificates.reload()
    assert await serial(client, server) != first


@pytest.mark.parametrize("change", ["half", "another principal", "gone"])
async def test_a_bad_change_is_not_taken_and_told_once(
    own: TLS, change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(certificates_module, "_LOOK_S", 0.0)
    plain = LocalNetwork()
    client, server = tls(own, plain), as_bookie(plain)
    first = await serial(client, server)
    caplog.clear()
    if change == "half":
        shutil.copy(BOOKIE.key, own.key)
    elif change == "another principal":
        renew(own, "admin/eve")
    else:
        os.unlink(own.cert)
    assert await serial(client, server) == first
    assert await serial(client, server) == first
    assert [record.message for record in caplog.records if "stay as they were" in record.message] == [
        next(record.message for record in caplog.records)
    ]
    renew(own)
    assert await serial(client, server) != first


@pytest.mark.parametrize("place", ["_warn_of_readers", "_present", "_check_own"])
@pytest.mark.parametrize("field", ["cert", "key", "ca"])
@pytest.mark.parametrize("harm", ["removed", "emptied"])
def test_a_file_that_changes_while_it_is_read_leaves_the_old_certificates(
    own: TLS,
    place: str,
    field: str,
    harm: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A program that renews certificates does not wait for the processes that use them."""
    loaded = Certificates(own, "c1")
    before = loaded.client()
    step, path = getattr(certificates_module, place), Path(getattr(own, field))

    def harm_it(*arguments: object) -> object:
        path.write_bytes(b"")
        if harm == "removed":
            path.unlink()
        return step(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(certificates_module, place, harm_it)
        loaded.reload()
    if "stay as they were" in caplog.text:
        assert loaded.client() is before
    else:
        assert (place, field) == ("_check_own", "ca"), "its last read was before"


# --- the network of a process -----------------------------------------------------------------------


def test_a_process_with_a_certificate_never_speaks_plainly() -> None:
    assert isinstance(network_of(NO_CREDENTIALS, cluster="c1"), TcpNetwork)
    assert isinstance(network_of(Credentials(tls=CLIENT), cluster="c1"), TlsNetwork)
    both = Credentials(tls=CLIENT, secret_file="secret")
    assert isinstance(network_of(both, cluster="c1"), TlsNetwork)


def test_a_bookie_has_the_id_of_its_certificate() -> None:
    assert bookie_of(LocalNetwork(), expected="b7") == "b7"
    assert bookie_of(LocalNetwork(), expected=None) is None
    network = tls(BOOKIE, LocalNetwork())
    assert bookie_of(network, expected=None) == bookie_of(network, expected="b1") == "b1"
    with pytest.raises(Unauthenticated, match=r"b1.pem names bookie/b1, but .* bookie/b2"):
        bookie_of(network, expected="b2")
    with pytest.raises(Unauthenticated, match=r"names client/billing, but .* bookie/ID"):
        bookie_of(tls(CLIENT, LocalNetwork()), expected=None)
