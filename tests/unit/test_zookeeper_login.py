"""Credentials files for ZooKeeper, and the lists of znodes: what is read, refused, and never shown."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from ledgerlog.errors import InvalidArgument
from ledgerlog.meta.zookeeper import login
from ledgerlog.meta.zookeeper.acl import (
    ALL,
    OPEN,
    READ,
    Allowed,
    ZkPrincipal,
    acl_for,
    digest_principal,
    hides_digests,
    is_same,
    parse_principal,
)
from ledgerlog.meta.zookeeper.link import _Handler
from ledgerlog.meta.zookeeper.login import Login, load_auth, parse_auth

DIGEST = 'scheme = "digest"\nuser = "ledger"\npassword = "s3cret"\n'
SASL = 'scheme = "sasl"\nmechanism = "DIGEST-MD5"\nuser = "ledger"\npassword = "s3cret"\n'


def test_a_digest_is_read() -> None:
    auth = parse_auth(DIGEST, "f")
    assert auth.auth_data == [("digest", "ledger:s3cret")]
    assert auth.sasl_options is None
    # The worked example of ZooKeeper's own DigestAuthenticationProvider.
    assert str(digest_principal("super", "test")) == "digest:super:D/InIHSb7yEEbrWz8b9l71RjZJU="


def test_sasl_is_read() -> None:
    auth = parse_auth(SASL, "f")
    assert auth.auth_data == []
    assert auth.sasl_options == {
        "mechanism": "DIGEST-MD5",
        "service": "zookeeper",
        "username": "ledger",
        "password": "s3cret",
    }
    assert auth.principal == ZkPrincipal("sasl", "ledger")


def test_a_ticket_needs_no_password() -> None:
    auth = parse_auth('scheme = "sasl"\nmechanism = "GSSAPI"\nprincipal = "b1@EXAMPLE.ORG"\n', "f")
    assert auth.sasl_options == {
        "mechanism": "GSSAPI",
        "service": "zookeeper",
        "principal": "b1@EXAMPLE.ORG",
    }
    assert auth.principal is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "scheme must be"),
        ("ledger:s3cret", "not TOML"),
        ('scheme = "ip"', "scheme must be"),
        ("scheme = 7", "scheme must be"),
        ('scheme = "sasl"\nuser = "u"\npassword = "s3cret"', "mechanism"),
        ('scheme = "digest"\nuser = "u"', "password is missing"),
        ('scheme = "digest"\nuser = "u:v"\npassword = "s3cret"', "colon"),
        ('scheme = "digest"\nuser = "u"\npassword = 17', "password must be a text"),
        ('scheme = "digest"\nuser = ""\npassword = "s3cret"', "user must be a text"),
        (DIGEST + 'passwort = "s3cret"', "no field 'passwort'"),
        (DIGEST + 'broken = "s3cret', "not TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_not_quoted(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match="the-file") as told:
        parse_auth(text, "the-file")
    assert says in str(told.value)
    assert "s3cret" not in str(told.value)
    assert told.value.__cause__ is None


def test_no_text_of_an_identity_shows_the_password() -> None:
    auth = parse_auth(DIGEST, "f")
    for said in (repr(auth), str(auth), repr(Login(auth=auth)), str(Login(auth=auth))):
        assert "s3cret" not in said
        assert "ledger" in said


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "auth.toml"
    path.write_text(DIGEST)
    path.chmod(mode)
    with pytest.raises(InvalidArgument, match=f"mode {mode:04o}.*chmod 600"):
        load_auth(str(path))
    path.chmod(0o400)
    assert load_auth(str(path)).user == "ledger"


def test_a_missing_file_and_one_of_noise_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "auth.toml"
    with pytest.raises(InvalidArgument, match=r"auth\.toml.*No such file"):
        load_auth(str(path))
    for content in (b"\xff\xfe", b"#" * 100_000):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(InvalidArgument, match=r"auth\.toml"):
            load_auth(str(path))


def test_sasl_without_its_package_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "auth.toml"
    path.write_text(SASL)
    path.chmod(0o600)
    monkeypatch.setattr(login, "is_installed", lambda package: package != "puresasl")
    with pytest.raises(InvalidArgument, match=r"pure-sasl.*pip install"):
        load_auth(str(path))


# --- lists ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "digest:super:D/InIHSb7yEEbrWz8b9l71RjZJU=",
        "sasl:reader",
        "x509:CN=b1,O=example",
        "ip:10.0.0.0/8",
        "world:anyone",
    ],
)
def test_a_principal_is_read_as_it_is_written(text: str) -> None:
    assert str(parse_principal(text)) == text


@pytest.mark.parametrize("text", ["", "reader", "sasl:", "auth:", "digest:u:password", "digest:u", "foo:bar"])
def test_what_is_no_principal_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="principal"):
        parse_principal(text)


def test_everybody_is_named_once_and_all_is_more_than_read() -> None:
    one, two = ZkPrincipal("sasl", "one"), ZkPrincipal("sasl", "two")
    acl = acl_for([one, one], [two, one, two])
    assert acl == (Allowed(one, ALL), Allowed(two, READ))
    assert is_same(acl, acl[::-1])
    assert not is_same(acl, acl[:1])


def test_a_list_with_hidden_hashes_is_known() -> None:
    assert hides_digests((Allowed(ZkPrincipal("digest", "u:x"), ALL),))
    assert not hides_digests(OPEN)
    assert not hides_digests(acl_for([digest_principal("u", "p"), ZkPrincipal("sasl", "u:x")], []))


def test_what_is_decrypted_already_can_be_read() -> None:
    authority = trustme.CA()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("localhost").configure_cert(theirs)
    authority.configure_trust(ours)
    with ExitStack() as stack:
        one, other = (stack.enter_context(each) for each in socket.socketpair())
        server = threading.Thread(
            target=lambda: stack.enter_context(theirs.wrap_socket(other, server_side=True)).sendall(b"two")
        )
        server.start()
        client = stack.enter_context(ours.wrap_socket(one, server_hostname="localhost"))
        assert client.recv(1) == b"t"
        server.join()
        ready, _, _ = _Handler(1.0, None).select([client], [], [], 0.0)
        assert ready == [client]
