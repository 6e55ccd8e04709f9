"""The entries of a frame: lengths, digests, ids and payloads, handled together.

An ADD and a READ reply carry ``Entries``. A writer builds them from payloads; a bookie or a reader decodes
them from a frame. No object is made for a single entry: lengths and digests are arrays, and the payloads are
one piece of bytes. One call splits it if you need single payloads.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Mapping, Sequence

from ledgerlog.errors import WireError
from ledgerlog.limits import ENTRY_BYTES_MAX, FRAME_BYTES_TARGET, FRAME_ENTRIES_MAX
from ledgerlog.wire.checksum import entry_digests, u32_array, u32_bytes
from ledgerlog.wire.frame import HEADER_BYTES, RECOVERY, SPARSE, Frame, Kind, encode_head
from ledgerlog.wire.pieces import split_pieces


class Entries:
    """Some entries of one ledger, in growing order of their ids.

    ``ids`` is a range if they are consecutive, else a list. ``payload`` is all payloads joined. In entries
    from a ``FrameBuffer`` it is a view, which is invalid after the next use of the buffer.
    """

    __slots__ = ("digests", "ids", "ledger_id", "lengths", "payload")

    def __init__(
        self,
        ledger_id: int,
        ids: Sequence[int],
        lengths: array[int],
        digests: array[int],
        payload: bytes | memoryview,
    ) -> None:
        self.ledger_id = ledger_id
        self.ids = ids
        self.lengths = lengths
        self.digests = digests
        self.payload = payload

    @classmethod
    def build(cls, ledger_id: int, first: int, payloads: Sequence[bytes]) -> Entries:
        """Build consecutive entries from ``first`` on, and compute their digests."""
        return cls._join(ledger_id, range(first, first + len(payloads)), payloads)

    @classmethod
    def gather(cls, ledger_id: int, found: Mapping[int, bytes]) -> Entries:
        """Build entries with any ids, and compute their digests. ``found`` must be in growing order.

        Code that copies entries uses this.
        """
        return cls._join(ledger_id, compact_ids(list(found)), list(found.values()))

    @classmethod
    def _join(cls, ledger_id: int, ids: Sequence[int], payloads: Sequence[bytes]) -> Entries:
        lengths, payload = array("I", map(len, payloads)), b"".join(payloads)
        return cls(
            ledger_id, ids, lengths, entry_digests(ledger_id, ids, payload, lengths, payloads), payload
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def first(self) -> int:
        return self.ids[0]

    @property
    def last(self) -> int:
        return self.ids[-1]

    def payloads(self) -> list[bytes]:
        """Return each entry's payload as separate bytes."""
        return split_pieces(self.payload, self.lengths)

    def damaged(self) -> list[int]:
        """Return the ids of the entries whose payloads do not match their digests, ascending."""
        actual = entry_digests(self.ledger_id, self.ids, self.payload, self.lengths)
        if actual == self.digests:
            return []
        return [e for e, a, d in zip(self.ids, actual, self.digests, strict=True) if a != d]

    def first_damaged(self) -> int | None:
        """Return the id of the first entry whose payload does not match its digest; None if all match."""
        damaged = self.damaged()
        return damaged[0] if damaged else None

    def select(self, wanted: Sequence[int]) -> Entries:
        """Return the entries at some indices, which must grow, as new ``Entries``."""
        payloads = self.payloads()
        return Entries(
            self.ledger_id,
            compact_ids([self.ids[i] for i in wanted]),
            array("I", [self.lengths[i] for i in wanted]),
            array("I", [self.digests[i] for i in wanted]),
            b"".join([payloads[i] for i in wanted]),
        )

    def index_part(self) -> bytes:
        """Encode lengths, digests and, unless the ids are consecutive, offsets."""
        part = self.lengths + self.digests
        if not isinstance(self.ids, range):
            first = self.ids[0]
            part += array("I", [entry_id - first for entry_id in self.ids])
        return u32_bytes(part)

    @property
    def flags(self) -> int:
        return 0 if isinstance(self.ids, range) else SPARSE


def cut_to_frames(found: Mapping[int, bytes]) -> Iterator[dict[int, bytes]]:
    """Split a map from entry ids to payloads into parts that each fit one frame, in the order of the ids."""
    part: dict[int, bytes] = {}
    size = 0
    for entry_id in sorted(found):
        payload = found[entry_id]
        if part and (size + len(payload) > FRAME_BYTES_TARGET or len(part) == FRAME_ENTRIES_MAX):
            yield part
            part, size = {}, 0
        part[entry_id] = payload
        size += len(payload)
    if part:
        yield part


def compact_ids(ids: list[int]) -> Sequence[int]:
    """Return a range if the ids are consecutive, else the list."""
    if ids and ids[-1] - ids[0] == len(ids) - 1:
        return range(ids[0], ids[-1] + 1)
    return ids


def encode_add(
    entries: Entries, *, lac: int, lafr: int, key: bytes, recovery: bool
) -> list[bytes | memoryview]:
    """Encode an ADD as buffers to send one after the other. The buffers are the same for every bookie."""
    ids = entries.ids
    head = encode_head(
        Kind.ADD,
        flags=entries.flags | (RECOVERY if recovery else 0),
        count=len(ids),
        ledger_id=entries.ledger_id,
        first=ids[0],
        last=ids[-1],
        lac=lac,
        lafr=lafr,
        key=key,
        index=entries.index_part(),
        payload_bytes=len(entries.payload),
    )
    return [head, entries.payload]


def encode_lac(ledger_id: int, *, lac: int, lafr: int, key: bytes) -> list[bytes | memoryview]:
    """Encode an ADD without entries, which tells the LAC (rule 16)."""
    return [encode_head(Kind.ADD, ledger_id=ledger_id, first=0, last=-1, lac=lac, lafr=lafr, key=key)]


def decode_entries_untrusted(frame: Frame) -> Entries:
    """Decode the entries of an ADD or a READ reply.

    This does not check the payloads: see ``Entries.damaged``.

    Raises:
        WireError: Lengths, ids and sizes do not agree.
    """
    header, raw = frame
    count = header.entry_count
    if not count:
        if len(raw) != HEADER_BYTES:
            raise WireError("a frame without entries has payload bytes")
        return Entries(header.ledger_id, range(0), array("I"), array("I"), b"")
    at = HEADER_BYTES
    numbers = u32_array(raw[at : at + 8 * count])
    lengths, digests = numbers[:count], numbers[count:]
    at += 8 * count
    ids: Sequence[int]
    if header.first < 0:
        raise WireError(f"entry id {header.first} is out of range")
    if header.flags & SPARSE:
        offsets = u32_array(raw[at : at + 4 * count])
        at += 4 * count
        if offsets[0] != 0 or any(a >= b for a, b in itertools.pairwise(offsets)):
            raise WireError("the entry ids of a frame do not grow")
        ids = [header.first + offset for offset in offsets]
    else:
        ids = range(header.first, header.first + count)
    if header.last != ids[-1]:
        raise WireError(f"a frame of entries {ids[0]}..{ids[-1]} says that its last is {header.last}")
    if sum(lengths) != len(raw) - at:
        raise WireError(f"entry lengths add up to {sum(lengths)}, the payloads to {len(raw) - at} bytes")
    if max(lengths) > ENTRY_BYTES_MAX:
        raise WireError(f"an entry of {max(lengths)} bytes, over the limit of {ENTRY_BYTES_MAX}")
    return Entries(header.ledger_id, ids, lengths, digests, raw[at:])
