"""Records of the journal: the contents of a block, one after the other.

A record is an 8-byte head and a body. All numbers are little endian:

    offset  size  field
    0       1     kind
    1       3     zero
    4       4     length of the body
    8             the body

    ADD    (1)  a frame of entries exactly as the client sent it. Its header has ledger, key, ids, LAC and
                LAFR. The frame has its own checksum and digests, so it can be checked anywhere, without the
                rest of the file.
    FENCE  (2)  ledger id (i64), key (16 bytes): from here on ordinary adds of the ledger are refused.
    START  (3)  segment (u64), offset (u64), sequence (u64): the first record that a bookie writes when it
                starts. The journal before it ends at that offset of that segment, with the block of that
                sequence. Any bytes between that place and this record are the rest of a write that a crash
                tore. Nothing in these bytes was ever acknowledged.
    CLOSE  (4)  no body: the bookie was stopped cleanly, and everything before this record is complete.
    DELETE (5)  ledger ids (i64 each): the metadata store said that these ledgers are gone. Their entries no
                longer count, and no add of these ledgers is taken ever again.

Records have no checksum of their own. Each page of their block has one (``bookie.core.block``). If the pages
pass their checksums but a record does not parse, another version or a bug wrote it. A person must find out
which, so reading the record raises StorageCorrupt.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ledgerlog.errors import StorageCorrupt
from ledgerlog.wire.frame import HEADER, HEADER_BYTES, SPARSE, Header, Kind

ADD = 1
FENCE = 2
START = 3
CLOSE = 4
DELETE = 5

RECORD_HEAD = struct.Struct("<B3xI")
RECORD_HEAD_BYTES = RECORD_HEAD.size
assert RECORD_HEAD_BYTES == 8

_FENCE = struct.Struct("<q16s")
_START = struct.Struct("<QQQ")


class JournalPosition(NamedTuple):
    """The end of the journal: ``offset`` in ``segment``, after the block with this ``sequence``."""

    segment: int
    offset: int
    sequence: int


class EntryRun(NamedTuple):
    """The place of a frame of entries of one ledger. The ids in the frame are consecutive or sparse.

    ``file`` is the number of the segment, or the negative number of the entry log. ``offset`` and ``length``
    belong to the frame (not to its record) in that file. The run holds ``entry_count`` entries. It holds
    every id from ``first`` to ``last`` if ``entry_count == last - first + 1``. ``sequence`` is the sequence
    of the journal block: the run is durable once the block is. In an entry log it is 0. Runs of one ledger
    are sorted by their first id. The index has at most one run for each first id of a ledger. If a new run
    replaces a damaged run, both have the same first id.
    """

    ledger_id: int
    first: int
    last: int
    entry_count: int
    file: int
    offset: int
    length: int
    sequence: int

    @property
    def is_dense(self) -> bool:
        """Whether the run holds every id from ``first`` to ``last``."""
        return self.entry_count == self.last - self.first + 1

    @property
    def head_length(self) -> int:
        """The number of bytes at the frame's start that hold its header, lengths, digests and ids."""
        return HEADER_BYTES + self.entry_count * (8 if self.is_dense else 12)


class Fence(NamedTuple):
    """The content of a FENCE record."""

    ledger_id: int
    key: bytes


def encode_fence(ledger_id: int, key: bytes) -> bytes:
    """Return the body of a FENCE record."""
    return _FENCE.pack(ledger_id, key)


def encode_start(end: JournalPosition) -> bytes:
    """Return the body of a START record."""
    return _START.pack(*end)


def encode_delete(ledger_ids: Sequence[int]) -> bytes:
    """Return the body of a DELETE record."""
    return struct.pack(f"<{len(ledger_ids)}q", *ledger_ids)


class JournalItem(NamedTuple):
    """One record. ``body`` is a view into the image that holds the record. The body begins at ``offset`` in
    this image."""

    kind: int
    offset: int
    body: memoryview


def decode_records(image: memoryview, start: int, stop: int, path: str) -> Iterator[JournalItem]:
    """Yield the records in ``image[start:stop]``.

    Raises:
        StorageCorrupt: The records do not parse. The error names ``path``.
    """
    at = start
    while at < stop:
        if stop - at < RECORD_HEAD_BYTES:
            raise StorageCorrupt(
                path, at, f"{stop - at} bytes are left of a block, less than a record's head"
            )
        kind, length = RECORD_HEAD.unpack_from(image, at)
        body = at + RECORD_HEAD_BYTES
        if length > stop - body:
            raise StorageCorrupt(path, at, f"a record of {length} bytes passes the end of its block")
        yield JournalItem(kind, body, image[body : body + length])
        at = body + length


def decode_add(record: JournalItem, *, file: int, sequence: int, path: str) -> tuple[EntryRun, Header]:
    """Return the place and the header of an ADD record's frame.

    Args:
        record: The ADD record.
        file: The number of the segment.
        sequence: The sequence of the record's block.
        path: The segment's file, for the error.

    Raises:
        StorageCorrupt: The record does not hold an ADD frame.
    """
    if len(record.body) < HEADER_BYTES:
        raise StorageCorrupt(path, record.offset, f"a frame of {len(record.body)} bytes")
    header = Header._make(HEADER.unpack_from(record.body))
    run = EntryRun(
        ledger_id=header.ledger_id,
        first=header.first,
        last=header.last,
        entry_count=header.entry_count,
        file=file,
        offset=record.offset,
        length=len(record.body),
        sequence=sequence,
    )
    if header.kind != Kind.ADD or header.length + 4 != run.length or run.head_length > run.length:
        raise StorageCorrupt(path, record.offset, "an ADD record that does not hold an ADD frame")
    if not 0 <= run.first <= run.last or run.entry_count < 1 or run.is_dense == bool(header.flags & SPARSE):
        # The engine rewrites a sparse frame with consecutive ids as a dense frame, so such a frame never gets
        # here.
        raise StorageCorrupt(
            path, record.offset, f"a frame of {run.entry_count} entries says {run.first}..{run.last}"
        )
    return run, header


def decode_fence(record: JournalItem, path: str) -> Fence:
    """Decode a FENCE record. Raises StorageCorrupt, naming ``path``."""
    if len(record.body) != _FENCE.size:
        raise StorageCorrupt(path, record.offset, f"a fence of {len(record.body)} bytes")
    return Fence._make(_FENCE.unpack(record.body))


def decode_delete(record: JournalItem, path: str) -> tuple[int, ...]:
    """Return the ledgers that a DELETE record names. Raises StorageCorrupt, naming ``path``."""
    count, rest = divmod(len(record.body), 8)
    if rest or not count:
        raise StorageCorrupt(path, record.offset, f"a deletion of {len(record.body)} bytes")
    return struct.unpack(f"<{count}q", record.body)


def decode_start(record: JournalItem, path: str) -> JournalPosition:
    """Decode a START record. Raises StorageCorrupt, naming ``path``."""
    if len(record.body) != _START.size:
        raise StorageCorrupt(path, record.offset, f"a start of {len(record.body)} bytes")
    return JournalPosition._make(_START.unpack(record.body))
