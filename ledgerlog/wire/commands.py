"""A record of a replicated state machine's log: an envelope and a command.

    offset  size  field                                     little endian
    0       2     magic, ``LC``
    2       1     version, 1
    3       1     kind: 1 command, 2 barrier
    4       8     timestamp, milliseconds since 1970
    12      8     seed
    20      2     n, bytes of the request id (0 in a barrier)
    22      2     reserved, 0
    24      n     request id, UTF-8
    24 + n        the command (nothing in a barrier)

A barrier changes nothing. If a barrier is acknowledged, its writer still led when the barrier was appended. A
linearizable read waits for this proof.

Example, the command ``+1`` with request id ``a``, at 1,700,000,000,000 ms, seed 5:

    4c43 01 01 0068e5cf8b010000 0500000000000000 0100 0000 61 2b31
"""

from __future__ import annotations

import struct

from ledgerlog.errors import InvalidArgument, WireError
from ledgerlog.model.checks import utf8
from ledgerlog.model.command import REQUEST_ID_BYTES_MAX, Envelope

__all__ = ["decode_envelope_untrusted", "encode_envelope"]

_HEAD = struct.Struct("<2sBBQQHH")
_MAGIC = b"LC"
_VERSION = 1
_COMMAND = 1
_BARRIER = 2
_NUMBER_MAX = 2**64 - 1

assert _HEAD.size == 24


def encode_envelope(envelope: Envelope) -> bytes:
    """Encode an envelope as a record. Raise InvalidArgument if no record can hold it."""
    name = utf8(envelope.request_id)
    if len(name) > REQUEST_ID_BYTES_MAX or not min(envelope.timestamp_ms, envelope.seed) >= 0:
        raise InvalidArgument(f"no record can hold this command: {envelope!r:.200}")
    if max(envelope.timestamp_ms, envelope.seed) > _NUMBER_MAX or (envelope.is_barrier and envelope.data):
        raise InvalidArgument(f"no record can hold this command: {envelope!r:.200}")
    kind = _BARRIER if envelope.is_barrier else _COMMAND
    head = _HEAD.pack(_MAGIC, _VERSION, kind, envelope.timestamp_ms, envelope.seed, len(name), 0)
    return b"".join((head, name, envelope.data))


def decode_envelope_untrusted(data: bytes) -> Envelope:
    """Decode the envelope in one record. Raise WireError if the bytes do not form an envelope."""
    if len(data) < _HEAD.size:
        raise WireError(f"a command has at least {_HEAD.size} bytes, not {len(data)}")
    magic, version, kind, timestamp_ms, seed, size, reserved = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or reserved or kind not in (_COMMAND, _BARRIER):
        raise WireError("these bytes are not a command of this version")
    end = _HEAD.size + size
    is_barrier = kind == _BARRIER
    if size > REQUEST_ID_BYTES_MAX or end > len(data) or is_barrier != (not size):
        raise WireError(f"a request id of {size} bytes in a command of {len(data)}")
    if is_barrier and end != len(data):
        raise WireError("a barrier holds a command")
    try:
        request_id = data[_HEAD.size : end].decode()
    except UnicodeDecodeError:
        raise WireError("a request id is not UTF-8") from None
    return Envelope(timestamp_ms=timestamp_ms, seed=seed, request_id=request_id, data=data[end:])
