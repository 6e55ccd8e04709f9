"""Heartbeats between a leader and its standbys: frames of 32 bytes, little endian.

    offset  size  field
    0       4     magic, ``LLHB``
    4       1     version, 1
    5       1     kind: 1 HELLO, 2 BEAT, 3 ENDED
    6       2     reserved, 0
    8       8     term
    16      16    the wanted candidacy (HELLO), or the sender's (BEAT, ENDED)

A standby connects to the address in the election's record and sends one HELLO. The HELLO names the candidacy
that the standby wants to reach, and the term that the standby believes in. If the listener is another
candidacy, the listener closes the connection: the port may belong to another process now. Otherwise the
listener sends a BEAT at once and then at its interval. A BEAT has the term in which the sender leads, or 0 if
the sender does not lead (yet). When the term is over, the leader sends ENDED.

A heartbeat does not prove who leads. Heartbeats only decide how soon a standby asks the metadata store. A
candidacy is random, and only the store tells it. So the candidacy in a HELLO shows that the sender can read
the store.
"""

from __future__ import annotations

import enum
import struct

import attrs

from ledgerlog.errors import InvalidArgument, WireError

__all__ = ["BEAT_FRAME_BYTES", "Beat", "BeatKind"]

_FRAME = struct.Struct("<4sBBHQ16s")
_MAGIC = b"LLHB"
_VERSION = 1

BEAT_FRAME_BYTES = _FRAME.size

assert BEAT_FRAME_BYTES == 32


class BeatKind(enum.IntEnum):
    """The kinds of frames."""

    HELLO = 1
    BEAT = 2
    ENDED = 3


_KINDS = frozenset(BeatKind)


@attrs.frozen
class Beat:
    """One frame."""

    kind: BeatKind
    term: int
    candidacy: bytes
    """16 bytes."""

    def encode(self) -> bytes:
        if len(self.candidacy) != 16 or not 0 <= self.term < 2**64:
            raise InvalidArgument(f"a heartbeat cannot hold {self!r}")
        return _FRAME.pack(_MAGIC, _VERSION, self.kind, 0, self.term, self.candidacy)

    @classmethod
    def decode_untrusted(cls, data: bytes) -> Beat:
        """Decode exactly ``BEAT_FRAME_BYTES`` bytes. Raise WireError if they do not form a frame."""
        if len(data) != BEAT_FRAME_BYTES:
            raise WireError(f"a heartbeat has {BEAT_FRAME_BYTES} bytes, not {len(data)}")
        magic, version, kind, reserved, term, candidacy = _FRAME.unpack(data)
        if magic != _MAGIC or version != _VERSION or reserved or kind not in _KINDS:
            raise WireError("these bytes are not a heartbeat of this version")
        return cls(BeatKind(kind), term, candidacy)
