"""HELLO: the two ends of a connection identify each other."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import WireError
from ledgerlog.limits import HELLO_BYTES_MAX
from ledgerlog.model.codec import encode_record
from ledgerlog.model.principal import Principal
from ledgerlog.wire.frame import REPLY, Kind, Status, decode_frame_untrusted, encode_head
from ledgerlog.wire.hello import (
    HELLO_BODY_BYTES_MAX,
    TLS_ALERT,
    TLS_HANDSHAKE,
    Challenge,
    Claim,
    Hello,
    begins_as_tls,
    decode_hello_untrusted,
    encode_hello,
    encode_hello_reply,
)

GOOD: dict[str, Any] = {"protocol": 1, "bookie": "b1", "instance": "i1", "cluster": "c1"}
BOOKIE = Hello(bookie_id="b1", instance="i1", cluster="c1")

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


def decode(raw: bytes) -> Hello:
    return decode_hello_untrusted(decode_frame_untrusted(memoryview(raw)))


@given(bookie=names, instance=st.none() | texts, cluster=st.none() | texts, protocol=st.integers(1, 65535))
def test_a_hello_comes_back(bookie: str, instance: str | None, cluster: str | None, protocol: int) -> None:
    hello = Hello(bookie_id=bookie, instance=instance, cluster=cluster, protocol=protocol)
    assert decode(encode_hello(hello)) == hello
    if instance is not None:
        assert decode(encode_hello_reply(Status.WRONG_BOOKIE, hello)) == hello


def test_the_longest_identities_fit() -> None:
    hello = Hello(bookie_id="b" * 128, instance="\N{GREEK SMALL LETTER MU}" * 128, cluster="c" * 128)
    assert decode(encode_hello_reply(Status.OK, hello)) == hello


def test_unknown_keys_are_for_later_versions() -> None:
    raw = encode_head(Kind.HELLO, index=encode_record({**GOOD, "later": 1}))
    assert decode(raw) == BOOKIE


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"protocol": None}, "'protocol' is NoneType"),
        ({"protocol": True}, "'protocol' is bool"),
        ({"protocol": 0}, "'protocol' is 0"),
        ({"protocol": 65536}, "'protocol' is 65536"),
        ({"protocol": "1"}, "'protocol' is str"),
        ({"bookie": None}, "'bookie' is NoneType"),
        ({"bookie": ""}, "not a bookie id"),
        ({"bookie": "a b"}, "not a bookie id"),
        ({"bookie": "b" * 129}, "not a bookie id"),
        ({"bookie": b"b1"}, "'bookie' is bytes"),
        ({"instance": 5}, "'instance' is int"),
        ({"instance": ""}, "'instance' has 0 characters"),
        ({"instance": "i" * 129}, "'instance' has 129 characters"),
        ({"cluster": b"c"}, "'cluster' is bytes"),
        ({"cluster": "c" * 129}, "'cluster' has 129 characters"),
        ({"more": "x" * HELLO_BODY_BYTES_MAX}, "over the limit"),
    ],
    ids=itertools.count(),
)
def test_a_malformed_hello_names_the_field(change: dict[str, Any], why: str) -> None:
    body = encode_record({**GOOD, **change})
    for kind in (Kind.HELLO, Kind.HELLO | REPLY):
        with pytest.raises(WireError, match=why):
            decode(encode_head(kind, index=body))


def test_a_field_that_is_missing_is_named() -> None:
    for name in ("protocol", "bookie"):
        body = {key: value for key, value in GOOD.items() if key != name}
        with pytest.raises(WireError, match=f"the field '{name}' is missing"):
            decode(encode_head(Kind.HELLO, index=encode_record(body)))


def test_a_bookie_always_knows_its_instance() -> None:
    body = encode_record({"protocol": 1, "bookie": "b1", "instance": None})
    assert decode(encode_head(Kind.HELLO, index=body)).instance is None
    with pytest.raises(WireError, match="'instance'"):
        decode(encode_head(Kind.HELLO | REPLY, index=body))
    with pytest.raises(AssertionError):
        encode_hello_reply(Status.OK, Hello(bookie_id="b1", instance=None))


def test_another_message_is_no_hello() -> None:
    with pytest.raises(WireError, match="where a HELLO was due"):
        decode(encode_head(Kind.INFO, index=encode_record(GOOD)))
    for body in (b"", b"\xff", b"\x80", encode_record(GOOD) + b"\0"):
        with pytest.raises(WireError):
            decode(encode_head(Kind.HELLO, index=body))


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        (Hello(bookie_id="b1", instance="i1", cluster="c1"), Status.OK),
        (Hello(bookie_id="b1", instance=None), Status.OK),
        (Hello(bookie_id="b1", instance="i1", cluster=None), Status.OK),
        (Hello(bookie_id="b2", instance="i1"), Status.WRONG_BOOKIE),
        (Hello(bookie_id="b1", instance="i2"), Status.WRONG_BOOKIE),
        (Hello(bookie_id="b1", instance="i1", cluster="c2"), Status.WRONG_BOOKIE),
        (Hello(bookie_id="b2", instance="i1", protocol=2), Status.BAD_REQUEST),
    ],
    ids=itertools.count(),
)
def test_a_bookie_serves_only_who_means_it(wanted: Hello, status: Status) -> None:
    assert wanted.accepts(BOOKIE) is status


def test_a_bookie_that_does_not_say_its_cluster_serves_any() -> None:
    assert Hello("b1", "i1", "c9").accepts(attrs.evolve(BOOKIE, cluster=None)) is Status.OK


def speaking(low: int, high: int, *features: str) -> Hello:
    return attrs.evolve(BOOKIE, protocol=low, protocol_max=high, features=features)


def test_both_use_the_highest_common_version_and_the_common_features() -> None:
    client = speaking(1, 3, "a", "b")
    assert client.agreed(speaking(2, 5, "b", "c")) == speaking(3, 3, "b")
    assert client.agreed(speaking(1, 2, "z")) == speaking(2, 2)
    assert decode(encode_hello(client)) == client


def test_a_version_0_1_is_a_range_of_one_without_features() -> None:
    old = encode_head(Kind.HELLO, index=encode_record(GOOD))
    assert decode(old) == speaking(1, 1)
    new = speaking(1, 2, "a")
    assert decode(old).agreed(new) == speaking(1, 1), "an old client is told the protocol that it compares"
    assert new.agreed(decode(old)) == speaking(1, 1)
    assert encode_hello(speaking(1, 1)) == old, "what both know is said as ever"


def test_who_has_no_common_version_is_refused_and_told_the_range() -> None:
    for client, bookie in ((speaking(1, 2), speaking(3, 4, "a")), (speaking(3, 4), speaking(1, 2))):
        assert client.accepts(bookie) is Status.BAD_REQUEST
        assert client.agreed(bookie) == bookie


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": 2, "protocol_max": 1},
        {"protocol_max": 65536},
        {"protocol_max": "2"},
        {"features": ["b", "a"]},
        {"features": ["a", "a"]},
        {"features": [""]},
        {"features": ["x" * 25]},
        {"features": [1]},
        {"features": [f"f{number:02}" for number in range(17)]},
    ],
)
def test_a_range_or_features_that_make_no_sense_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        decode(encode_head(Kind.HELLO, index=encode_record({**GOOD, **change})))


CLAIM = Claim(Principal.parse("client/billing"), (b"f" * 8, b"g" * 8), b"n" * 32)
CHALLENGE = Challenge(b"f" * 8, b"n" * 32)


def test_a_claim_and_a_challenge_come_back() -> None:
    claiming = attrs.evolve(BOOKIE, claim=CLAIM)
    assert decode(encode_hello(claiming)) == claiming
    challenging = attrs.evolve(BOOKIE, challenge=CHALLENGE)
    assert decode(encode_hello_reply(Status.OK, challenging)) == challenging
    assert decode(encode_hello(BOOKIE)).claim is None
    longest = Hello("b" * 128, "\N{GREEK SMALL LETTER MU}" * 128, "c" * 128, claim=CLAIM)
    assert decode(encode_hello(longest)) == longest


def test_only_a_client_claims_and_only_a_bookie_challenges() -> None:
    with pytest.raises(AssertionError):
        encode_hello(attrs.evolve(BOOKIE, challenge=CHALLENGE))
    with pytest.raises(AssertionError):
        encode_hello_reply(Status.OK, attrs.evolve(BOOKIE, claim=CLAIM))


@pytest.mark.parametrize(
    "change",
    [
        {"principal": "client"},
        {"principal": "nobody/x"},
        {"principal": 1},
        {"keys": []},
        {"keys": [b"f" * 8] * 3},
        {"keys": [b"f" * 7]},
        {"keys": ["f" * 8]},
        {"keys": None},
        {"nonce": b"n" * 31},
        {"nonce": None},
    ],
    ids=str,
)
def test_a_malformed_claim_is_refused(change: dict[str, Any]) -> None:
    good = {**GOOD, "principal": "client/a", "keys": [b"f" * 8], "nonce": b"n" * 32}
    assert decode(encode_head(Kind.HELLO, index=encode_record(good))).claim is not None
    with pytest.raises(WireError):
        decode(encode_head(Kind.HELLO, index=encode_record({**good, **change})))


@pytest.mark.parametrize(
    "change", [{"key": b"f" * 9}, {"key": "f"}, {"nonce": b"n"}, {"nonce": None}], ids=str
)
def test_a_malformed_challenge_is_refused(change: dict[str, Any]) -> None:
    good = {**GOOD, "key": b"f" * 8, "nonce": b"n" * 32}
    assert decode(encode_head(Kind.HELLO | REPLY, index=encode_record(good))).challenge is not None
    with pytest.raises(WireError):
        decode(encode_head(Kind.HELLO | REPLY, index=encode_record({**good, **change})))


@pytest.mark.parametrize("kind", [TLS_HANDSHAKE, TLS_ALERT])
def test_a_record_of_tls_is_told_from_a_hello(kind: int) -> None:
    for version in range(1, 5):
        assert begins_as_tls(memoryview(bytes([kind, 3, version, 0, 5])), kind)
    assert not begins_as_tls(memoryview(bytes([kind, 3, 3, 0, 5])), TLS_ALERT + TLS_HANDSHAKE - kind)
    assert not begins_as_tls(memoryview(bytes([kind, 2, 0])), kind)
    assert not begins_as_tls(memoryview(bytes([kind, 3])), kind)


def test_no_hello_is_taken_for_tls() -> None:
    # A frame begins with its length. One that begins like a record of TLS would have more than 65,536 bytes.
    for kind in (TLS_HANDSHAKE, TLS_ALERT):
        for version in range(1, 5):
            assert int.from_bytes(bytes([kind, 3, version, 0]), "little") > 65_536 > HELLO_BYTES_MAX
    for hello in (BOOKIE, Hello("b" * 128, "i" * 128, "c" * 128)):
        first = memoryview(encode_hello(hello))
        assert not begins_as_tls(first, TLS_HANDSHAKE)
        assert not begins_as_tls(first, TLS_ALERT)
