"""Secrets: the file, the secrets of principals, and what a message may say of them."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import InvalidArgument
from ledgerlog.model.principal import Principal
from ledgerlog.model.secret import ADMIN, SECRET_BYTES, Secrets, common_secret, fingerprint_of

NEW, OLD = bytes(range(32)), b"o" * SECRET_BYTES
CLUSTER = Secrets(None, (NEW, OLD))
BILLING = Principal.parse("client/billing")

values = st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=2, unique=True).map(tuple)
holders = st.none() | st.sampled_from([BILLING, ADMIN, Principal.parse("bookie/b:1")])


@given(holders, values)
def test_a_file_says_what_was_written(holder: Principal | None, secrets: tuple[bytes, ...]) -> None:
    written = Secrets(holder, secrets)
    assert Secrets.parse(f"# of people\n\n  {written.encode()}", "f") == written


def test_the_secret_of_a_principal_is_an_hmac_of_its_text() -> None:
    expected = hmac.new(NEW, b"principal client/billing", hashlib.sha256).digest()
    assert CLUSTER.of(BILLING)[0] == expected
    assert CLUSTER.derived(BILLING) == Secrets(BILLING, CLUSTER.of(BILLING))
    assert len({*CLUSTER.of(BILLING), *CLUSTER.of(ADMIN), NEW, OLD}) == 6


def test_who_holds_the_secret_of_one_principal_is_that_one_and_knows_no_other() -> None:
    mine = CLUSTER.derived(BILLING)
    assert mine.principal == BILLING
    assert CLUSTER.principal == ADMIN
    assert mine.of(BILLING) == CLUSTER.of(BILLING)
    assert mine.of(ADMIN) == ()
    with pytest.raises(InvalidArgument, match="this is the secret of client/billing"):
        mine.derived(ADMIN)


def test_an_exchange_keeps_the_last_secret_until_it_is_settled() -> None:
    newest = bytes(32)
    assert CLUSTER.rotated(newest) == Secrets(None, (newest, NEW))
    assert CLUSTER.settled() == Secrets(None, (NEW,))
    with pytest.raises(InvalidArgument, match="different"):
        CLUSTER.rotated(NEW)


def test_the_secret_in_use_is_the_first_that_the_peer_names_and_we_have() -> None:
    assert common_secret((NEW, OLD), [fingerprint_of(OLD), fingerprint_of(NEW)]) == OLD
    assert common_secret((NEW,), [fingerprint_of(OLD), fingerprint_of(NEW)]) == NEW
    assert common_secret((NEW,), [fingerprint_of(OLD)]) is None
    assert common_secret((), [fingerprint_of(OLD)]) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it holds 0 secrets"),
        (f"cluster:{NEW.hex()}\n" * 3, "it holds 3 secrets"),
        (f"cluster:{NEW.hex()}\n" * 2, "its two secrets are the same"),
        (f"cluster:{NEW.hex()}\nclient/a:{OLD.hex()}", "different holders"),
        (NEW.hex(), "a line is not"),
        (f"nobody/x:{NEW.hex()}", "a line is not"),
        (f"cluster:{NEW.hex()[:-2]}", "64 hexadecimal digits"),
        (f"cluster:{NEW.hex()[:-1]} ", "a line is not"),
        (f"cluster:{'zz' * 32}", "a line is not"),
    ],
)
def test_a_refused_file_says_why_and_quotes_no_secret(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as caught:
        Secrets.parse(text, "/the/file")
    assert "/the/file" in str(caught.value)
    assert NEW.hex()[:8] not in str(caught.value)
    assert caught.value.__cause__ is None, "the cause would quote the line"


def test_no_text_of_secrets_shows_one() -> None:
    for said in (repr(CLUSTER), str(CLUSTER), f"{CLUSTER.derived(BILLING)}"):
        for secret in (*CLUSTER.values, *CLUSTER.of(BILLING)):
            assert secret.hex() not in said
            assert repr(secret) not in said
    assert fingerprint_of(NEW).hex() in repr(CLUSTER), "a person can tell which secret it is"


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33)])
def test_a_secret_has_32_bytes(secret: bytes) -> None:
    with pytest.raises(InvalidArgument):
        Secrets(None, (secret,))
