"""PROOF: both ends of a connection prove that they know the same secret. Pure: a side each, and the bytes.

    client                                     bookie
      HELLO: claim (who, keys, nonce) --------->
                                                 looks up the secrets of "who"
      <--------- HELLO | REPLY: challenge (key, nonce)
      PROOF: HMAC(secret, "client" T) --------->
                                                 checks it: the client is "who"
      <-- PROOF | REPLY: HMAC(secret, "bookie" T)
    checks it: this is a bookie of the cluster

``T`` is the SHA-256 of both HELLO frames, each byte of them, behind a label and their lengths. ``secret`` is
the client's (``model.secret``), which the bookie derives from the cluster's. An HMAC is an HMAC-SHA256. The
body of a PROOF frame is those 32 bytes and nothing else. A bookie that is not convinced answers UNAUTHORIZED
without a body, and closes the connection.

**What this rules out**, and why:

* *Replay.* ``T`` holds a nonce of each side, so no frame of one session fits another.
* *Reflection.* The two proofs have different labels, so a side's own proof convinces it of nothing.
* *Downgrade.* ``T`` holds the versions and the features of both frames. Who changes them changes ``T``.
* *A swapped bookie.* ``T`` holds the id, the instance and the cluster that the client wants and that the
  bookie has. Each side refuses the other's before it proves anything.
* *Guessing.* A proof has 32 bytes, is compared in constant time, and each connection has one attempt.
* *Asking who exists.* Every principal has a secret, because it is computed. So an unknown principal costs as
  much as a wrong secret, and the answer is the same.

**What it does not do.** It encrypts nothing, and the frames after it carry no proof. Whoever can change the
packets between the two can wait for the end of the exchange and go on in the client's place. TLS prevents
that.

**Secrets that are being exchanged.** The client names those that it has, and the bookie chooses the first
that it has, too. Nothing proves the choice by itself, but a proof with another secret does not match.
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
        """Begin.

        Args:
            principal: Who the client is.
            secrets: The secrets of that principal, the preferred one first.
            nonce: ``hello.NONCE_BYTES`` random bytes, for this connection only.
        """
        self._secrets = tuple(secrets)
        self._step = _Step.CLAIMED
        self._secret = self._transcript = b""
        self.claim = Claim(principal, tuple(map(fingerprint_of, self._secrets)), nonce)
        """What to put into the HELLO."""

    @property
    def is_proven(self) -> bool:
        """Whether each end has convinced the other."""
        return self._step is _Step.PROVEN

    def on_challenge(self, challenge: Challenge, hello: bytes, reply: bytes) -> bytes:
        """The bookie asks for the proof. Return the proof to send.

        Args:
            challenge: The challenge in its answer.
            hello: The HELLO frame, as it was sent.
            reply: The answer, as it was received.

        Raises:
            Unauthenticated: It asks for the proof with a secret that was not offered.
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
        """The bookie accepts ours and proves itself.

        Raises:
            Unauthenticated: It does not know the secret, or somebody changed what was said.
        """
        assert self._step is _Step.CHALLENGED
        if not hmac.compare_digest(proof, _proof(self._secret, _BOOKIE, self._transcript)):
            self._step = _Step.FAILED
            raise Unauthenticated("it does not know our secret, or somebody changed what the two said")
        self._step = _Step.PROVEN


class BookieProof:
    """The bookie's side, for one connection."""

    def __init__(self, claim: Claim, secrets: Sequence[bytes], nonce: bytes) -> None:
        """Begin.

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
        """What to put into the answer. None: the two have no secret in common."""

    @property
    def principal(self) -> Principal | None:
        """Who the client has proved to be; None before that."""
        return self._principal if self._step is _Step.PROVEN else None

    def on_answered(self, hello: bytes, reply: bytes) -> None:
        """The answer with the challenge is sent.

        Args:
            hello: The client's HELLO frame, as it was received.
            reply: The answer, as it was sent.
        """
        assert self._step is _Step.CLAIMED
        self._transcript = _transcript(hello, reply)
        self._step = _Step.CHALLENGED

    def on_proof(self, proof: bytes) -> bytes | None:
        """The client sends its proof. Return ours, to send; None if the client's is wrong."""
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


def encode_proof_reply(proof: bytes | None) -> bytes:
    """Encode the bookie's proof; None: it is not convinced."""
    if proof is None:
        return encode_head(Kind.PROOF | REPLY, status=Status.UNAUTHORIZED)
    return encode_head(Kind.PROOF | REPLY, index=proof)


def decode_proof_untrusted(frame: Frame) -> bytes:
    """Decode the proof in a PROOF frame, or in its reply. The caller checks the kind and the status.

    Raises:
        WireError: The body is not a proof.
    """
    if len(frame.raw) != HEADER_BYTES + PROOF_BYTES:
        raise WireError(f"a proof of {len(frame.body)} bytes, not {PROOF_BYTES}")
    return bytes(frame.body)
