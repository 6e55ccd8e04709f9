"""HELLO: the first frame in each direction of a connection, and who the two ends are.

The client opens with a HELLO that names the bookie it means to reach, the instance of that bookie's
data where it knows it, and its cluster where it knows that. The bookie answers with a ``HELLO | REPLY``
that says who it is: status OK where it is the one that was meant, WRONG_BOOKIE where it is not, and
BAD_REQUEST where it does not speak the client's protocol. Nothing else is said on a connection before
this exchange is over, and the bookie closes a connection that it did not answer with OK.

An address does not identify a bookie. A machine that took over an address, or a bookie whose disk was
replaced, would accept an old writer's adds and answer a recoverer's reads with "no such entry", and an
acknowledged entry would be lost (#4812). So both ends compare identity *and* instance, and both refuse.

The body of both frames is a CBOR map (``model.codec``), at most ``HELLO_BODY_BYTES_MAX`` long:

    protocol   int            the version of the wire format that the sender speaks, 1 here
    bookie     text           the bookie's id: meant (request), own (reply)
    instance   text or null   the identity of its data: expected (request; null: any), own (reply)
    cluster    text or null   the id of the sender's metadata store; null or absent: not said

Unknown keys are ignored, so that a later version can say more. A client says nothing about itself: what
authorises a write is the ledger's key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import attrs

from ledgerlog.errors import InvalidArgument, WireError
from ledgerlog.model.codec import decode_record_untrusted, encode_record
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.wire.frame import REPLY, Frame, Kind, Status, encode_head

PROTOCOL = 1
"""The version of the wire format that this package speaks."""

HELLO_BODY_BYTES_MAX = 1024
_TEXT_CHARS_MAX = 128
_PROTOCOL_MAX = 0xFFFF


@attrs.frozen
class Hello:
    """What one end says of the bookie: a client whom it means, a bookie who it is."""

    bookie_id: BookieId
    instance: str | None
    """The identity of the bookie's data. None in a request: whatever it is. Never None in a reply."""
    cluster: str | None = None
    """The id of the metadata store, where the sender says it."""
    protocol: int = PROTOCOL

    def accepts(self, bookie: Hello) -> Status:
        """What a ``bookie`` that is as described answers to this request.

        OK, or BAD_REQUEST where it does not speak the protocol, or WRONG_BOOKIE where its id, its
        instance or its cluster is not the one that was asked for."""
        if self.protocol != bookie.protocol:
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
        if not 1 <= self.protocol <= _PROTOCOL_MAX:
            raise InvalidArgument(f"HELLO: protocol {self.protocol} is not in 1..{_PROTOCOL_MAX}")
        check_bookie_id(self.bookie_id)
        _check_texts(self.instance, self.cluster, _refuse_to_say)
        encoded = encode_record(body)
        if len(encoded) > HELLO_BODY_BYTES_MAX:
            raise InvalidArgument(
                f"a HELLO of {len(encoded)} bytes, over the limit of {HELLO_BODY_BYTES_MAX}"
            )
        return encoded


def _check_texts(instance: str | None, cluster: str | None, fail: Callable[[str], NoReturn]) -> None:
    for name, text in (("instance", instance), ("cluster", cluster)):
        if text is not None and not 0 < len(text) <= _TEXT_CHARS_MAX:
            fail(f"the field {name!r} has {len(text)} characters, not 1 to {_TEXT_CHARS_MAX}")


def _refuse_to_say(why: str) -> NoReturn:
    raise InvalidArgument(f"HELLO: {why}")


def encode_hello(hello: Hello) -> bytes:
    """The frame that a client opens a connection with."""
    return encode_head(Kind.HELLO, index=hello._encode_body())


def encode_hello_reply(status: Status, hello: Hello) -> bytes:
    """The frame that a bookie answers with; ``hello`` says who it is, whatever the status."""
    assert hello.instance is not None, "a bookie knows the instance of its data"
    return encode_head(Kind.HELLO | REPLY, status=status, index=hello._encode_body())


def decode_hello_untrusted(frame: Frame) -> Hello:
    """The body of a HELLO or of its reply. WireError if the frame is another one or the body is malformed.

    Any protocol version from 1 to 65,535 decodes: the receiver decides what to say to it."""
    header = frame.header
    if header.kind & ~REPLY != Kind.HELLO:
        raise WireError(f"a message of kind {header.kind} where a HELLO was due")
    if len(frame.body) > HELLO_BODY_BYTES_MAX:
        raise WireError(f"a HELLO of {len(frame.body)} bytes, over the limit of {HELLO_BODY_BYTES_MAX}")
    fields = decode_record_untrusted(bytes(frame.body), "HELLO", WireError)
    protocol = fields.integer("protocol", low=1, high=_PROTOCOL_MAX)
    try:
        bookie_id = check_bookie_id(fields.get("bookie", str))
    except InvalidArgument as cause:
        raise WireError(f"HELLO: {cause}") from cause
    instance = fields.get("instance", str) if header.kind & REPLY else fields.optional("instance", str)
    cluster = fields.optional("cluster", str)
    _check_texts(instance, cluster, fields.fail)
    return Hello(bookie_id=bookie_id, instance=instance, cluster=cluster, protocol=protocol)
