"""A snapshot as a stream of bytes: a head, the table of requests, the machine's own chunks, an end.

    magic     8 bytes, ``LLSNAP1`` and a newline
    frames    each: size (u32), CRC-32C of the payload (u32), the payload; little endian
    end       FFFFFFFF (u32), number of frames (u32), CRC-32C of all before this field (u32)

The first frame is a canonical CBOR map (``model.codec``): ``v`` (1), ``log`` and ``incarnation`` of the log,
``next_offset`` (the first record that is not in the snapshot), ``timestamp_ms`` of the newest command in the
snapshot, ``requests`` (how many frames hold the table of requests), and ``epoch`` (of the leader that
appended the newest record in the snapshot; absent if it is not known, and in earlier versions). The frames of
this table follow; joined, they are the table (``machine.core.replica``). All other frames are the machine's
chunks, one frame for each.
If the stream is cut off, or if one bit of the stream is wrong, the whole stream is refused before the machine
sees any of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import attrs
from google_crc32c import extend

from ledgerlog.errors import IncompatibleVersion, WireError
from ledgerlog.model.codec import decode_record_untrusted, encode_record
from ledgerlog.wire.checksum import checksum

__all__ = ["Snapshot", "SnapshotHead", "decode_snapshot_untrusted", "encode_snapshot"]

_MAGIC = b"LLSNAP1\n"
_DIGIT_AT = 6
"""The position of the format number (one digit) in the magic."""
_FORMAT = 1
_FRAME = struct.Struct("<II")
_END = struct.Struct("<III")
_END_MARK = 0xFFFFFFFF


@attrs.frozen(kw_only=True)
class SnapshotHead:
    """The state that a snapshot holds."""

    log: str
    incarnation: int
    next_offset: int
    """The first record of the log that is not in the snapshot."""
    timestamp_ms: int
    """The timestamp of the newest command in the snapshot."""
    requests: int
    """How many frames hold the table of requests."""
    epoch: int | None = None
    """The epoch of the leader that appended the newest record in the snapshot; None: not known."""

    def encode(self) -> bytes:
        fields = {"v": _FORMAT, **attrs.asdict(self)}
        if self.epoch is None:
            del fields["epoch"]
        return encode_record(fields, SnapshotHead.decode_untrusted)

    @classmethod
    def decode_untrusted(cls, data: bytes) -> SnapshotHead:
        fields = decode_record_untrusted(data, "a snapshot's head", WireError)
        fields.format(_FORMAT)
        return cls(
            log=fields.get("log", str),
            incarnation=fields.integer("incarnation"),
            next_offset=fields.integer("next_offset"),
            timestamp_ms=fields.integer("timestamp_ms"),
            requests=fields.integer("requests"),
            epoch=fields.integer("epoch") if "epoch" in fields.names() else None,
        )


@attrs.frozen
class Snapshot:
    """A whole snapshot in memory."""

    head: SnapshotHead
    requests: bytes
    chunks: Sequence[bytes]


def encode_snapshot(
    head: SnapshotHead, requests: Iterable[bytes], chunks: Iterable[bytes]
) -> Iterator[bytes]:
    """Encode a snapshot piece by piece. A chunk is taken from ``chunks`` only when you ask for its piece.

    Args:
        head: The head.
        requests: The pieces of the table of requests, exactly ``head.requests`` of them.
        chunks: The machine's own chunks.
    """
    crc = checksum(_MAGIC)
    count = 0
    yield _MAGIC

    def frames() -> Iterator[bytes]:
        yield head.encode()
        yield from requests
        yield from chunks

    for payload in frames():
        payload = bytes(payload)
        piece = _FRAME.pack(len(payload), checksum(payload)) + payload
        crc = extend(crc, piece)
        count += 1
        yield piece
    mark = struct.pack("<II", _END_MARK, count)
    yield mark + struct.pack("<I", extend(crc, mark))


def decode_snapshot_untrusted(data: bytes) -> Snapshot:
    """Decode a whole stream. Raise WireError if it is not exactly one snapshot, IncompatibleVersion
    if a newer version wrote it."""
    magic, digit = data[: len(_MAGIC)], data[_DIGIT_AT : _DIGIT_AT + 1]
    is_newer = digit.isdigit() and int(digit) > _FORMAT and magic == _MAGIC.replace(b"1", digit)
    if magic != _MAGIC and not is_newer:
        raise WireError("it does not begin as a snapshot of this version does")
    if len(data) < len(_MAGIC) + _END.size:
        raise WireError("it is cut off")
    mark, count, digest = _END.unpack_from(data, len(data) - _END.size)
    if mark != _END_MARK:
        raise WireError("it is cut off")
    if digest != checksum(data[: len(data) - 4]):
        raise WireError("its digest does not match its bytes")
    if is_newer:
        raise IncompatibleVersion("the snapshot", (int(digit), int(digit)), (_FORMAT, _FORMAT))
    at, end = len(_MAGIC), len(data) - _END.size
    payloads: list[bytes] = []
    while at < end:
        if at + _FRAME.size > end:
            raise WireError("a frame is cut off")
        size, crc = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        payload = data[at : at + size]
        at += size
        if at > end or checksum(payload) != crc:
            raise WireError(f"frame {len(payloads)} is damaged")
        payloads.append(payload)
    if len(payloads) != count or not count:
        raise WireError(f"it has {len(payloads)} frames and says {count}")
    head = SnapshotHead.decode_untrusted(payloads[0])
    first_chunk = 1 + head.requests
    if first_chunk > count:
        raise WireError(f"it has {count} frames, and its table of requests would be {head.requests} of them")
    return Snapshot(head, b"".join(payloads[1:first_chunk]), payloads[first_chunk:])
