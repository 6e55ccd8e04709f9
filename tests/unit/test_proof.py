"""PROOF: each attack on the exchange, and what it comes to."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import Unauthenticated, WireError
from ledgerlog.model.principal import Principal
from ledgerlog.model.secret import Secrets, fingerprint_of
from ledgerlog.wire.frame import REPLY, Frame, Kind, Status, decode_frame_untrusted, encode_head
from ledgerlog.wire.hello import (
    Challenge,
    Claim,
    Hello,
    decode_hello_untrusted,
    encode_hello,
    encode_hello_reply,
)
from ledgerlog.wire.proof import (
    PROOF_BYTES,
    BookieProof,
    ClientProof,
    decode_proof_untrusted,
    encode_proof,
    encode_proof_reply,
)

CLUSTER = Secrets(None, (b"1" * 32,))
OTHER_CLUSTER = Secrets(None, (b"2" * 32,))
BILLING = Principal.parse("client/billing")
WANTED = Hello("b1", "i1", "c1", 1, 3, ("a", "b"))
BOOKIE = Hello("b1", "i1", "c1", 1, 2, ("a",))


def frame(raw: bytes) -> Frame:
    return decode_frame_untrusted(memoryview(raw))


@attrs.define
class Wire:
    """One connection: both sides, and the bytes that went between them as each side saw them."""

    client: ClientProof
    bookie: BookieProof
    hello: bytes
    answer: bytes

    @classmethod
    def between(
        cls,
        client: Secrets = CLUSTER,
        bookie: Secrets = CLUSTER,
        *,
        principal: Principal = BILLING,
        nonces: tuple[bytes, bytes] = (b"c" * 32, b"b" * 32),
    ) -> Wire:
        ours = ClientProof(principal, client.of(principal), nonces[0])
        hello = encode_hello(attrs.evolve(WANTED, claim=ours.claim))
        claim = decode_hello_untrusted(frame(hello)).claim
        assert claim == ours.claim
        theirs = BookieProof(claim, bookie.of(claim.principal), nonces[1])
        answer = attrs.evolve(WANTED.agreed(BOOKIE), challenge=theirs.challenge)
        return cls(ours, theirs, hello, encode_hello_reply(Status.OK, answer))

    def prove(
        self,
        *,
        heard_hello: bytes | None = None,
        answered: bytes | None = None,
        heard_answer: bytes | None = None,
    ) -> bytes:
        """Go up to the client's proof; what each side heard may be changed on the way."""
        self.bookie.on_answered(heard_hello or self.hello, answered or self.answer)
        heard = heard_answer or self.answer
        challenge = decode_hello_untrusted(frame(heard)).challenge
        assert challenge is not None
        return self.client.on_challenge(challenge, self.hello, heard)


def test_two_who_know_the_secret_convince_each_other() -> None:
    wire = Wire.between(CLUSTER.derived(BILLING))
    proof = wire.prove()
    assert wire.bookie.principal is None
    answer = wire.bookie.on_proof(decode_proof_untrusted(frame(encode_proof(proof))))
    assert wire.bookie.principal == BILLING
    assert answer is not None
    assert not wire.client.is_proven
    wire.client.on_proof(decode_proof_untrusted(frame(encode_proof_reply(answer))))
    assert wire.client.is_proven


def test_who_holds_the_clusters_secret_can_be_anybody() -> None:
    for name in ("admin/cluster", "bookie/b7"):
        wire = Wire.between(principal=Principal.parse(name))
        assert wire.bookie.on_proof(wire.prove()) is not None
        assert str(wire.bookie.principal) == name


def test_who_knows_another_secret_gets_no_challenge() -> None:
    assert Wire.between(OTHER_CLUSTER).bookie.challenge is None


def test_a_principal_that_nobody_made_is_refused_like_a_wrong_secret() -> None:
    unheard_of = Principal.parse("client/unheard-of")
    for principal in (BILLING, unheard_of):
        assert Wire.between(OTHER_CLUSTER, principal=principal).bookie.challenge is None


def test_the_secret_of_one_principal_proves_no_other() -> None:
    mine = CLUSTER.derived(BILLING)
    pretended = ClientProof(Principal.parse("admin/cluster"), mine.values, b"c" * 32)
    assert BookieProof(pretended.claim, CLUSTER.of(pretended.claim.principal), b"b" * 32).challenge is None


def test_a_guess_behind_a_fingerprint_that_was_heard_is_refused() -> None:
    heard = tuple(map(fingerprint_of, CLUSTER.of(BILLING)))
    bookie = BookieProof(Claim(BILLING, heard, b"c" * 32), CLUSTER.of(BILLING), b"b" * 32)
    bookie.on_answered(b"hello", b"answer")
    assert bookie.on_proof(bytes(PROOF_BYTES)) is None
    assert bookie.principal is None


def test_a_connection_has_one_attempt() -> None:
    wire = Wire.between()
    proof = wire.prove()
    assert wire.bookie.on_proof(bytes(PROOF_BYTES)) is None
    with pytest.raises(AssertionError):
        wire.bookie.on_proof(proof)
    assert wire.bookie.principal is None


def test_a_replayed_proof_of_the_client_is_refused() -> None:
    """Somebody recorded a whole session, and repeats its HELLO and its PROOF: the bookie's nonce is new."""
    first = Wire.between()
    recorded = first.prove()
    again = Wire.between(nonces=(b"c" * 32, b"B" * 32))
    again.bookie.on_answered(first.hello, again.answer)
    assert again.bookie.on_proof(recorded) is None


def test_a_replayed_answer_of_the_bookie_convinces_nobody() -> None:
    """Somebody recorded a whole session, and plays the bookie: the client's nonce is new."""
    first = Wire.between()
    recorded = first.bookie.on_proof(first.prove())
    assert recorded is not None
    again = Wire.between(nonces=(b"C" * 32, b"b" * 32))
    again.prove(heard_answer=first.answer)
    with pytest.raises(Unauthenticated):
        again.client.on_proof(recorded)
    assert not again.client.is_proven


def test_a_reflected_proof_convinces_nobody() -> None:
    """Somebody without the secret sends the client's own proof back."""
    wire = Wire.between()
    with pytest.raises(Unauthenticated, match="does not know our secret"):
        wire.client.on_proof(wire.prove())


@pytest.mark.parametrize(
    "lowered",
    [{"protocol_max": 2}, {"protocol": 2}, {"features": ("a",)}, {"features": ()}, {"bookie_id": "b2"}],
    ids=str,
)
def test_a_downgraded_hello_is_noticed(lowered: dict[str, object]) -> None:
    wire = Wire.between()
    heard = encode_hello(attrs.evolve(decode_hello_untrusted(frame(wire.hello)), **lowered))
    assert wire.bookie.on_proof(wire.prove(heard_hello=heard)) is None


@pytest.mark.parametrize("lowered", [{"protocol": 1, "protocol_max": 1}, {"features": ()}], ids=str)
def test_a_downgraded_answer_is_noticed(lowered: dict[str, object]) -> None:
    wire = Wire.between()
    heard = encode_hello_reply(Status.OK, attrs.evolve(decode_hello_untrusted(frame(wire.answer)), **lowered))
    assert wire.bookie.on_proof(wire.prove(heard_answer=heard)) is None


@pytest.mark.parametrize("swapped", [{"bookie_id": "b2"}, {"instance": "i2"}, {"cluster": "c2"}], ids=str)
def test_a_proof_for_a_swapped_bookie_does_not_pass(swapped: dict[str, str]) -> None:
    """Somebody leads the client to another bookie of the cluster, and changes both frames to hide it."""
    wire = Wire.between()
    heard = encode_hello(attrs.evolve(decode_hello_untrusted(frame(wire.hello)), **swapped))
    real = encode_hello_reply(Status.OK, attrs.evolve(decode_hello_untrusted(frame(wire.answer)), **swapped))
    assert wire.bookie.on_proof(wire.prove(heard_hello=heard, answered=real)) is None


def test_a_challenge_with_a_secret_that_was_not_offered_is_refused() -> None:
    wire = Wire.between()
    with pytest.raises(Unauthenticated, match="did not offer"):
        wire.client.on_challenge(Challenge(b"x" * 8, b"n" * 32), wire.hello, wire.answer)
    assert not wire.client.is_proven


@pytest.mark.parametrize("length", [0, 1, 31, 33, 64])
def test_a_truncated_or_longer_proof_is_malformed(length: int) -> None:
    for kind in (Kind.PROOF, Kind.PROOF | REPLY):
        with pytest.raises(WireError, match=f"a proof of {length} bytes"):
            decode_proof_untrusted(frame(encode_head(kind, index=bytes(length))))


@given(at=st.integers(0, PROOF_BYTES - 1), bit=st.integers(0, 7))
def test_a_proof_with_one_flipped_bit_proves_nothing(at: int, bit: int) -> None:
    wire = Wire.between()
    proof = bytearray(wire.prove())
    proof[at] ^= 1 << bit
    assert wire.bookie.on_proof(bytes(proof)) is None
    intact = Wire.between()
    answer = intact.bookie.on_proof(intact.prove())
    assert answer is not None
    flipped = bytearray(answer)
    flipped[at] ^= 1 << bit
    with pytest.raises(Unauthenticated):
        intact.client.on_proof(bytes(flipped))


@given(at=st.integers(0), bit=st.integers(0, 7), is_hello=st.booleans())
def test_whatever_byte_of_either_hello_is_changed_nothing_is_proven(
    at: int, bit: int, is_hello: bool
) -> None:
    wire = Wire.between()
    changed = bytearray(wire.hello if is_hello else wire.answer)
    changed[at % len(changed)] ^= 1 << bit
    wire.bookie.on_answered(bytes(changed) if is_hello else wire.hello, wire.answer)
    assert wire.bookie.challenge is not None
    heard = wire.answer if is_hello else bytes(changed)
    proof = wire.client.on_challenge(wire.bookie.challenge, wire.hello, heard)
    assert wire.bookie.on_proof(proof) is None


@pytest.mark.parametrize(
    ("client", "bookie"), [((2, 1), (1,)), ((1,), (2, 1)), ((2, 1), (2, 1)), ((2,), (2, 1)), ((2, 1), (2,))]
)
def test_while_secrets_are_exchanged_two_who_have_one_in_common_understand_each_other(
    client: tuple[int, ...], bookie: tuple[int, ...]
) -> None:
    wire = Wire.between(*(Secrets(None, tuple(bytes([n]) * 32 for n in each)) for each in (client, bookie)))
    answer = wire.bookie.on_proof(wire.prove())
    assert answer is not None
    wire.client.on_proof(answer)


def test_a_bookie_that_is_not_convinced_says_only_that() -> None:
    refusal = frame(encode_proof_reply(None))
    assert refusal.header.status == Status.UNAUTHORIZED
    assert not refusal.body
