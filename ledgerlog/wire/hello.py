"""HELLO: the first frame in each direction of a connection. It identifies the bookie.

The client begins with a HELLO. The HELLO names the bookie that the client wants to reach. It also names the
instance of the bookie's data and the client's cluster, if the client knows them. The bookie answers with a
``HELLO | REPLY`` that names the bookie itself. The status is OK if it is that bookie, WRONG_BOOKIE if it is
not, and BAD_REQUEST if client and bookie have no version of the protocol in common. No other frame is sent
before this exchange is over. If the status is not OK, the bookie then closes the connection.

An address does not identify a bookie. Another machine may have taken over the address, or the bookie's disk
may have been replaced. Such a bookie would accept an old writer's adds. It would answer a recoverer's reads
with "no such entry", and an acknowledged entry would be lost (#4812). So both ends compare identity *and*
instance, and both refuse.

The body of both frames is a CBOR map (``model.codec``), at most ``HELLO_BODY_BYTES_MAX`` long:

    protocol      int            the lowest version that the sender speaks; in a reply with OK: the one to use
    protocol_max  int            the highest version that it speaks; absent: the same as ``protocol``
    features      list of text   the features that it knows; in a reply with OK: the features to use; absent:
                                 none
    bookie        text           the bookie's id: wanted (request), own (reply)
    instance      text or null   the identity of its data: expected (request; null: any), own (reply)
    cluster       text or null   the id of the sender's metadata store; null or absent: unknown

A client sends the range that it speaks, and its features. The bookie answers OK with the highest common
version and the common features, and both use exactly these. If the bookie refuses, it sends its own range and
features. Version 0.1 of ledgerlog sends and compares only ``protocol``, which is 1. This counts as a range of
one version, without features. So a client that speaks 1 to 2 works with a bookie of 0.1, and the reverse.

Unknown keys are ignored, so a later version can add some.

If the client can prove who it is with a shared secret, its request also has a *claim*, and the answer of a
bookie that asks for the proof has a *challenge*. ``wire.proof`` describes the next steps:

    principal     text           request: the principal that the client claims to be
    keys          list of bytes  request: the fingerprints of its secrets, the preferred one first: 1 or 2
    key           bytes          reply: the fingerprint of the secret to use
    nonce         bytes          both: 32 random bytes

A bookie that serves only clients who prove themselves answers UNAUTHORIZED if it cannot verify the client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import attrs

from ledgerlog.errors import InvalidArgument, WireError
from ledgerlog.model.codec import Fields, decode_record_untrusted, encode_record
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.model.principal import Principal
from ledgerlog.model.protocol import ProtocolSupport
from ledgerlog.model.secret import FINGERPRINT_BYTES, SECRETS_MAX
from ledgerlog.wire.frame import REPLY, Frame, Kind, Status, encode_head

PROTOCOL = 1
"""The lowest version of the wire format that this package speaks."""

PROTOCOL_MAX = 1
"""The highest version that it speaks."""

FEATURES: tuple[str, ...] = ()
"""The features that this package knows, sorted."""

TLS_HANDSHAKE, TLS_ALERT = 0x16, 0x15
"""The types of the first TLS record of each end."""

HELLO_BODY_BYTES_MAX = 1024
NONCE_BYTES = 32
_TEXT_CHARS_MAX = 128
_NUMBER_MAX = 0xFFFF
_FEATURES_MAX = 16
_FEATURE_CHARS_MAX = 24


@attrs.frozen
class Claim:
    """The identity that a client claims in its HELLO. The claim is not proven yet."""

    principal: Principal
    fingerprints: tuple[bytes, ...]
    """The fingerprints of the client's secrets, the preferred one first."""
    nonce: bytes


@attrs.frozen
class Challenge:
    """A bookie's demand for a proof, in its answer."""

    fingerprint: bytes
    """The fingerprint of the secret to use; one of the fingerprints in the claim."""
    nonce: bytes


@attrs.frozen
class Hello:
    """A HELLO. It names the bookie that a client wants to reach (request) or that answers (reply)."""

    bookie_id: BookieId
    instance: str | None
    """The identity of the bookie's data. None in a request means any. Never None in a reply."""
    cluster: str | None = None
    """The id of the sender's metadata store; None if the HELLO has none."""
    protocol: int = PROTOCOL
    """The lowest version of the protocol that the sender speaks; in a reply with OK, the one to use."""
    protocol_max: int = attrs.field(default=attrs.Factory(lambda hello: hello.protocol, takes_self=True))
    """The highest version that it speaks."""
    features: tuple[str, ...] = ()
    """The features that the sender knows; in a reply with OK, the features to use. Sorted."""
    claim: Claim | None = None
    """Only in a request."""
    challenge: Challenge | None = None
    """Only in a reply."""

    @property
    def support(self) -> ProtocolSupport:
        """The protocol versions and features that the HELLO names."""
        return ProtocolSupport(self.protocol, self.protocol_max, self.features)

    @classmethod
    def of(
        cls, bookie_id: BookieId, instance: str | None, cluster: str | None, support: ProtocolSupport
    ) -> Hello:
        """Make the HELLO of a process that speaks ``support``."""
        return cls(bookie_id, instance, cluster, *support.range, support.features)

    def agreed(self, bookie: Hello) -> Hello:
        """Return the HELLO that ``bookie`` answers. If it accepts, the HELLO has the agreed version and
        features."""
        common = self.support.common(bookie.support)
        if common is None or self.accepts(bookie) is not Status.OK:
            return bookie
        return Hello.of(bookie.bookie_id, bookie.instance, bookie.cluster, common)

    def accepts(self, bookie: Hello) -> Status:
        """Return the status with which ``bookie`` answers this request.

        Returns:
            OK; BAD_REQUEST if client and bookie have no version of the protocol in common; WRONG_BOOKIE if
            the bookie's id, instance or cluster is not the requested one.
        """
        if self.support.common(bookie.support) is None:
            return Status.BAD_REQUEST
        if self.bookie_id != bookie.bookie_id:
            return Status.WRONG_BOOKIE
        if self.instance is not None and self.instance != bookie.instance:
            return Status.WRONG_BOOKIE
        if None not in (self.cluster, bookie.cluster) and self.cluster != bookie.cluster:
            return Status.WRONG_BOOKIE
        return Status.OK

    def _encode_body(self) -> bytes:
        body: dict[str, object] = {
            "protocol": self.protocol,
            "bookie": self.bookie_id,
            "instance": self.instance,
        }
        if self.cluster is not None:
            body["cluster"] = self.cluster
        if self.protocol_max != self.protocol:
            body["protocol_max"] = self.protocol_max
        if self.features:
            body["features"] = list(self.features)
        if self.claim is not None:
            body["principal"] = str(self.claim.principal)
            body["keys"] = list(self.claim.fingerprints)
            body["nonce"] = self.claim.nonce
        if self.challenge is not None:
            body["key"] = self.challenge.fingerprint
            body["nonce"] = self.challenge.nonce
        if not 1 <= self.protocol <= self.protocol_max <= _NUMBER_MAX:
            raise InvalidArgument(
                f"HELLO: protocol {self.protocol} to {self.protocol_max} is not in 1..{_NUMBER_MAX}"
            )
        _check_features(self.features, _refuse_to_say)
        check_bookie_id(self.bookie_id)
        _check_texts(self.instance, self.cluster, _refuse_to_say)
        encoded = encode_record(body)
        if len(encoded) > HELLO_BODY_BYTES_MAX:
            raise InvalidArgument(
                f"a HELLO of {len(encoded)} bytes, over the limit of {HELLO_BODY_BYTES_MAX}"
            )
        return encoded


def begins_as_tls(first: memoryview, kind: int) -> bool:
    """Return whether a stream begins with a TLS record instead of a frame.

    If the bytes of a TLS record were read as a frame, the frame would be longer than any HELLO. So no HELLO
    is mistaken for a TLS record.

    Args:
        first: The bytes that came first.
        kind: The type of the TLS record.
    """
    return len(first) > 2 and first[0] == kind and first[1] == 3 and 1 <= first[2] <= 4


def _check_texts(instance: str | None, cluster: str | None, fail: Callable[[str], NoReturn]) -> None:
    for name, text in (("instance", instance), ("cluster", cluster)):
        if text is not None and not 0 < len(text) <= _TEXT_CHARS_MAX:
            fail(f"the field {name!r} has {len(text)} characters, not 1 to {_TEXT_CHARS_MAX}")


def _check_features(features: tuple[str, ...], fail: Callable[[str], NoReturn]) -> None:
    if list(features) != sorted({*features}) or len(features) > _FEATURES_MAX:
        fail(f"the field 'features' is not up to {_FEATURES_MAX} names in order, each once")
    if not all(0 < len(feature) <= _FEATURE_CHARS_MAX for feature in features):
        fail(f"the field 'features' has a name that is not 1 to {_FEATURE_CHARS_MAX} characters long")


def _refuse_to_say(why: str) -> NoReturn:
    raise InvalidArgument(f"HELLO: {why}")


def encode_hello(hello: Hello) -> bytes:
    """Encode the frame with which a client opens a connection."""
    assert hello.challenge is None, "a challenge answers a claim"
    return encode_head(Kind.HELLO, index=hello._encode_body())


def encode_hello_reply(status: Status, hello: Hello) -> bytes:
    """Encode the bookie's answer. ``hello`` describes the bookie itself, even if it refuses."""
    assert hello.instance is not None, "a bookie knows the instance of its data"
    assert hello.claim is None, "a bookie does not claim an identity as a client does"
    return encode_head(Kind.HELLO | REPLY, status=status, index=hello._encode_body())


def decode_hello_untrusted(frame: Frame) -> Hello:
    """Decode the body of a HELLO or of its reply.

    Any protocol version from 1 to 65,535 decodes: the receiver decides how to answer it.

    Raises:
        WireError: The frame is of another kind, or the body is malformed.
    """
    header = frame.header
    if header.kind & ~REPLY != Kind.HELLO:
        raise WireError(f"a message of kind {header.kind} where a HELLO was due")
    if len(frame.body) > HELLO_BODY_BYTES_MAX:
        raise WireError(f"a HELLO of {len(frame.body)} bytes, over the limit of {HELLO_BODY_BYTES_MAX}")
    fields = decode_record_untrusted(bytes(frame.body), "HELLO", WireError)
    protocol = fields.integer("protocol", low=1, high=_NUMBER_MAX)
    highest = protocol
    if fields.optional("protocol_max", int) is not None:
        highest = fields.integer("protocol_max", low=protocol, high=_NUMBER_MAX)
    features: tuple[str, ...] = ()
    if fields.optional("features", list) is not None:
        features = tuple(fields.sequence("features", str))
    _check_features(features, fields.fail)
    try:
        bookie_id = check_bookie_id(fields.get("bookie", str))
    except InvalidArgument as cause:
        raise WireError(f"HELLO: {cause}") from cause
    instance = fields.get("instance", str) if header.kind & REPLY else fields.optional("instance", str)
    cluster = fields.optional("cluster", str)
    _check_texts(instance, cluster, fields.fail)
    is_reply = bool(header.kind & REPLY)
    return Hello(
        bookie_id=bookie_id,
        instance=instance,
        cluster=cluster,
        protocol=protocol,
        protocol_max=highest,
        features=features,
        claim=None if is_reply else _read_claim(fields),
        challenge=_read_challenge(fields) if is_reply else None,
    )


def _read_claim(fields: Fields) -> Claim | None:
    principal = fields.optional("principal", str)
    if principal is None:
        return None
    fingerprints = tuple(fields.sequence("keys", bytes))
    if not 1 <= len(fingerprints) <= SECRETS_MAX:
        fields.fail(f"the field 'keys' has {len(fingerprints)} items, not 1 to {SECRETS_MAX}")
    for fingerprint in fingerprints:
        _check_length(fields, "keys", fingerprint, FINGERPRINT_BYTES)
    nonce = _check_length(fields, "nonce", fields.get("nonce", bytes), NONCE_BYTES)
    try:
        return Claim(Principal.parse(principal), fingerprints, nonce)
    except InvalidArgument as cause:
        fields.fail(str(cause))


def _read_challenge(fields: Fields) -> Challenge | None:
    fingerprint = fields.optional("key", bytes)
    if fingerprint is None:
        return None
    return Challenge(
        _check_length(fields, "key", fingerprint, FINGERPRINT_BYTES),
        _check_length(fields, "nonce", fields.get("nonce", bytes), NONCE_BYTES),
    )


def _check_length(fields: Fields, name: str, value: bytes, length: int) -> bytes:
    if len(value) != length:
        fields.fail(f"the field {name!r} has {len(value)} bytes, not {length}")
    return value
