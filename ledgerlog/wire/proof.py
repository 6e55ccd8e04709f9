"""PROOF: both ends of a connection prove that they know the same secret.

This module is pure: one class for each side, and the bytes of the frames.

    client                                     bookie
      HELLO: claim (principal, keys, nonce) --->
                                                 looks up the secrets of the principal
      <--------- HELLO | REPLY: challenge (key, nonce)
      PROOF: HMAC(secret, "client" T) --------->
                                                 checks it: the client is the principal
      <-- PROOF | REPLY: HMAC(secret, "bookie" T)
    checks it: this is a bookie of the cluster

A "key" is the fingerprint of a secret (``model.secret``). ``T`` is the SHA-256 of a label, the lengths of
both HELLO frames, and all bytes of both frames. ``secret`` is the client's secret. The bookie computes the
client's secret from the cluster's secret. HMAC means HMAC-SHA256. The body of a PROOF frame is its 32 bytes
and nothing else. If the client's proof is wrong, the bookie answers UNAUTHORIZED without a body, and closes
the connection. The proof may be right while the principal already has as many connections as it may have.
Then the bookie answers TOO_MANY_REQUESTS without a body, and closes the connection. It does not say so before
the proof: a stranger must not learn how busy others are.

**Attacks that this prevents**, and why:

* *Replay.* ``T`` depends on a nonce of each side, so a proof of one connection is wrong on any other.
* *Reflection.* The two proofs have different labels. If an attacker sends a side its own proof back, that
  proof is wrong.
* *Downgrade.* ``T`` depends on the versions and the features in both frames. If an attacker changes them, the
  two sides compute different values of ``T``, and the proofs are wrong.
* *A swapped bookie.* ``T`` depends on the id, the instance and the cluster that the client wants, and on the
  bookie's own id, instance and cluster. If they differ, each side refuses the other before it sends a proof.
* *Guessing.* A proof has 32 bytes and is compared in constant time, and each connection has one attempt.
* *Asking which principals exist.* The bookie can compute a secret for any name. So it does the same work for
  an unknown principal as for a wrong secret, and gives the same answer.

**What it does not do.** It encrypts nothing, and the frames after it carry no proof. If an attacker can
change packets between the two ends, it can wait for the end of the exchange and then send frames in the
client's place. TLS prevents that.

**While a secret is replaced,** a process may have two. The client names all its secrets by their
fingerprints. The bookie chooses the first of these secrets that the bookie has, too. An attacker may change
the fingerprints on the way, but gains nothing: a proof with another secret is wrong.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
from collections.abc import Sequence

from ledgerlog.errors import Unauthenticated, WireError
from ledgerlog.model.principal import Principal
from ledgerlog.model.secret import common_secret, fingerprint_of
from ledgerlog.wire.frame import HEADER_BYTES, REPLY, Frame, Kind, Status, encode_head
from ledgerlog.wire.hello import Challenge, Claim

__all__ = [
    "PROOF_BYTES",
    "BookieProof",
    "ClientProof",
    "decode_proof_untrusted",
    "encode_proof",
    "encode_proof_reply",
]

PROOF_BYTES = 32

_LABEL = b"ledgerlog proof 1\0"
_CLIENT = b"client\0"
_BOOKIE = b"bookie\0"
_LENGTHS = struct.Struct("<II")


def _transcript(hello: bytes, reply: bytes) -> bytes:
    return hashlib.sha256(_LABEL + _LENGTHS.pack(len(hello), len(reply)) + hello + reply).digest()


def _proof(secret: bytes, side: bytes, transcript: bytes) -> bytes:
    return hmac.digest(secret, side + transcript, hashlib.sha256)


class _Step(enum.Enum):
    CLAIMED = enum.auto()
    CHALLENGED = enum.auto()
    PROVEN = enum.auto()
    FAILED = enum.auto()


class ClientProof:
    """The client's side, for one connection."""

    def __init__(self, principal: Principal, secrets: Sequence[bytes], nonce: bytes) -> None:
        """Begin the exchange.

        Args:
            principal: The principal that the client claims to be.
            secrets: The secrets of that principal, the preferred one first.
            nonce: ``hello.NONCE_BYTES`` random bytes, for this connection only.
        """
        self._secrets = tuple(secrets)
        self._step = _Step.CLAIMED
        self._secret = self._transcript = b""
        self.claim = Claim(principal, tuple(map(fingerprint_of, self._secrets)), nonce)
        """The claim to put into the HELLO."""

    @property
    def is_proven(self) -> bool:
        """Whether each end has convinced the other."""
        return self._step is _Step.PROVEN

    def on_challenge(self, challenge: Challenge, hello: bytes, reply: bytes) -> bytes:
        """Take the bookie's challenge. Return the proof to send.

        Args:
            challenge: The challenge in the bookie's answer.
            hello: The HELLO frame, as it was sent.
            reply: The answer, as it was received.

        Raises:
            Unauthenticated: The challenge names a secret that the client did not offer.
        """
        assert self._step is _Step.CLAIMED
        secret = common_secret(self._secrets, [challenge.fingerprint])
        if secret is None:
            self._step = _Step.FAILED
            raise Unauthenticated("it asks for the proof with a secret that we did not offer")
        self._secret, self._transcript = secret, _transcript(hello, reply)
        self._step = _Step.CHALLENGED
        return _proof(secret, _CLIENT, self._transcript)

    def on_proof(self, proof: bytes) -> None:
        """Check the bookie's proof. The bookie sends it after it has accepted the client's.

        Raises:
            Unauthenticated: The bookie does not know the secret, or the frames were changed on the way.
        """
        assert self._step is _Step.CHALLENGED
        if not hmac.compare_digest(proof, _proof(self._secret, _BOOKIE, self._transcript)):
            self._step = _Step.FAILED
            raise Unauthenticated("it does not know our secret, or the messages were changed on the way")
        self._step = _Step.PROVEN


class BookieProof:
    """The bookie's side, for one connection."""

    def __init__(self, claim: Claim, secrets: Sequence[bytes], nonce: bytes) -> None:
        """Begin the exchange.

        Args:
            claim: The claim in the client's HELLO.
            secrets: The secrets of the claimed principal.
            nonce: ``hello.NONCE_BYTES`` random bytes, for this connection only.
        """
        self._principal = claim.principal
        self._secret = common_secret(secrets, claim.fingerprints)
        self._step = _Step.CLAIMED if self._secret is not None else _Step.FAILED
        self._transcript = b""
        self.challenge = None if self._secret is None else Challenge(fingerprint_of(self._secret), nonce)
        """The challenge to put into the answer. None: client and bookie have no secret in common."""

    @property
    def principal(self) -> Principal | None:
        """The principal that the client has proved to be; None before its proof."""
        return self._principal if self._step is _Step.PROVEN else None

    def on_answered(self, hello: bytes, reply: bytes) -> None:
        """Note both HELLO frames, once the answer with the challenge is sent.

        Args:
            hello: The client's HELLO frame, as it was received.
            reply: The answer, as it was sent.
        """
        assert self._step is _Step.CLAIMED
        self._transcript = _transcript(hello, reply)
        self._step = _Step.CHALLENGED

    def on_proof(self, proof: bytes) -> bytes | None:
        """Check the client's proof. Return the bookie's proof, to send; None if the client's proof is
        wrong."""
        assert self._step is _Step.CHALLENGED
        assert self._secret is not None
        if not hmac.compare_digest(proof, _proof(self._secret, _CLIENT, self._transcript)):
            self._step = _Step.FAILED
            return None
        self._step = _Step.PROVEN
        return _proof(self._secret, _BOOKIE, self._transcript)


def encode_proof(proof: bytes) -> bytes:
    """Encode the client's proof."""
    return encode_head(Kind.PROOF, index=proof)


def encode_proof_reply(proof: bytes | None, *, is_busy: bool = False) -> bytes:
    """Encode the bookie's answer to a proof.

    Args:
        proof: The bookie's own proof. None: the client's proof is wrong.
        is_busy: The client's proof is right, but its principal may not have one more connection. Then
            ``proof`` is not sent.
    """
    if is_busy:
        return encode_head(Kind.PROOF | REPLY, status=Status.TOO_MANY_REQUESTS)
    if proof is None:
        return encode_head(Kind.PROOF | REPLY, status=Status.UNAUTHORIZED)
    return encode_head(Kind.PROOF | REPLY, index=proof)


def decode_proof_untrusted(frame: Frame) -> bytes:
    """Decode the proof in a PROOF frame or in the reply to it. The caller checks the kind and the status.

    Raises:
        WireError: The body is not a proof.
    """
    if len(frame.raw) != HEADER_BYTES + PROOF_BYTES:
        raise WireError(f"a proof of {len(frame.body)} bytes, not {PROOF_BYTES}")
    return bytes(frame.body)
