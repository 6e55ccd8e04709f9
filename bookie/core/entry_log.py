"""Entry logs: files in which each ledger's entries lie together.

An entry log is written once and never changed. Its runs are known before it is written. (A run is a frame of
entries of one ledger at its place in a file.) An entry log replaces other files: segments whose runs are
small or belong to many ledgers, and files that are mostly garbage.

    page 0     header
               records without gaps: REPLACES first; then, in the order of ledgers, each ledger's LEDGER and
               its ADDs by first entry id; FOOTER last
               padding of 0xA5
    -32        tail

All numbers are little endian. The header is a page of 4096 bytes:

    offset  size  field
    0       8     magic      b"LLENTRY1"
    8       4     format     1
    12      4     page size  4096
    16      8     log        its number; the file's name says the same
    24      8     size       of the file, in bytes; a multiple of 4096
    32      16    nonce      random; part of every checksum below
    48      64    instance   of the bookie, UTF-8, padded with zeros
    112     4     level      how often its entries were merged with entries of other files
    116           padding of 0xA5
    4092    4     checksum   CRC-32C of bytes 0 to 4091

A record is a head of 12 bytes (kind u8, three zero bytes, length of the body u32, checksum u32) and the body.
The checksum is the CRC-32C of the nonce, the record's offset (u64), its kind (u8), its length (u32) and its
body. So it proves that the record is whole and was written to this place of this file.

    ADD      (1)  a frame of entries, as the client sent it, or joined from several consecutive frames. A
                  joined frame has -1 as its LAC and LAFR. Each frame has its own checksum and digests
    LEDGER   (6)  ledger (i64), key (16 bytes), flags (u8: 1 fenced, 2 deleted), LAC, LAFR (i64): the state
                  of a ledger. There is one for each ledger with a record in a replaced file. If a replaced
                  file was rotten, there is also one for each ledger that is fenced or deleted
    REPLACES (7)  pairs (first, last, i64): the numbers of the files that this one replaced, and of the files
                  that those files had replaced. Segments are positive, entry logs negative
    FOOTER   (8)  runs (u64), then for each ledger with runs its id and the bytes of its runs (i64, u64)

The tail is the last 32 bytes of the file: magic b"LLENDLOG", offset of the FOOTER (u64), its length (u32),
eight zero bytes, and the CRC-32C (u32) of the nonce and the tail before it.

An entry log is first written under another name. So a file with its final name is complete and durable. If
one of its checksums does not match, the file is damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

import attrs
from google_crc32c import extend, value

from bookie.core.block import PAGE_BYTES
from bookie.core.file_header import FileKind
from bookie.core.file_set import FileSet
from bookie.core.journal_items import ADD
from ledgerlog.errors import StorageCorrupt
from ledgerlog.wire.checksum import checksum

LEDGER = 6
REPLACES = 7
FOOTER = 8

LOG_HEADER_BYTES = PAGE_BYTES
LOG_NUMBER_MAX = 2**48

_KIND = FileKind("entry log", b"LLENTRY1", 1)
_LEVEL = struct.Struct("<I")
_TAIL_MAGIC = b"LLENDLOG"
_CHECKSUM = struct.Struct("<I")
_HEAD = struct.Struct("<B3xII")
_SEED = struct.Struct("<16sQBI")
_LEDGER = struct.Struct("<q16sBqq")
_RANGE = struct.Struct("<qq")
_RUNS = struct.Struct("<Q")
_USAGE = struct.Struct("<qQ")
_TAIL = struct.Struct("<8sQI8xI")
_FENCED, _DELETED = 1, 2

HEAD_BYTES = _HEAD.size
TAIL_BYTES = _TAIL.size
LEDGER_BYTES = _LEDGER.size
assert HEAD_BYTES == 12
assert TAIL_BYTES == 32


@attrs.frozen
class LogHeader:
    """The header of an entry log; the module docstring lists the fields."""

    number: int
    size: int
    nonce: bytes
    instance: str
    level: int

    def encode(self) -> bytes:
        """Return the file's first page."""
        assert self.size % PAGE_BYTES == 0
        level = _LEVEL.pack(self.level)
        return _KIND.encode(self.number, self.size, self.nonce, self.instance, level)

    @classmethod
    def decode(cls, page: bytes, *, path: str, number: int, instance: str | None) -> LogHeader:
        """Decode the first page of an entry log, and check that it is the right log of the right bookie.

        Args:
            page: The first page of the file.
            path: The file, for the error.
            number: The number that the file's name says.
            instance: The instance of this bookie. None: any.

        Raises:
            StorageCorrupt: The header is damaged, or belongs to another log or another bookie instance.
        """
        size, nonce, owner, more = _KIND.decode(page, path=path, number=number, instance=instance)
        if size % PAGE_BYTES or size < 2 * PAGE_BYTES:
            raise StorageCorrupt(path, 0, f"an entry log of {size} bytes")
        (level,) = _LEVEL.unpack_from(more)
        return cls(number=number, size=size, nonce=nonce, instance=owner, level=level)


# --- records --------------------------------------------------------------------------------------


class RecordHead(NamedTuple):
    kind: int
    length: int
    checksum: int


def record_bytes(length: int) -> int:
    """Return the size of a record with a body of ``length`` bytes."""
    return HEAD_BYTES + length


def encode_head(nonce: bytes, offset: int, kind: int, body: bytes) -> bytes:
    """Return the head of a record that begins at ``offset``."""
    return _HEAD.pack(kind, len(body), _checksum(nonce, offset, kind, body))


def decode_head(data: bytes | memoryview, at: int = 0) -> RecordHead:
    return RecordHead._make(_HEAD.unpack_from(data, at))


def is_whole(nonce: bytes, offset: int, head: RecordHead, body: bytes) -> bool:
    """Whether a record at ``offset`` is whole and was written there."""
    return head.length == len(body) and head.checksum == _checksum(nonce, offset, head.kind, body)


def _checksum(nonce: bytes, offset: int, kind: int, body: bytes) -> int:
    crc: int = extend(value(_SEED.pack(nonce, offset, kind, len(body))), body)
    return crc


class LoggedLedger(NamedTuple):
    """The content of a LEDGER record."""

    ledger_id: int
    key: bytes
    is_fenced: bool
    is_deleted: bool
    lac: int
    lafr: int


def encode_ledger(ledger: LoggedLedger) -> bytes:
    flags = ledger.is_fenced * _FENCED | ledger.is_deleted * _DELETED
    return _LEDGER.pack(ledger.ledger_id, ledger.key, flags, ledger.lac, ledger.lafr)


def decode_ledger(body: bytes, path: str, offset: int) -> LoggedLedger:
    if len(body) != _LEDGER.size:
        raise StorageCorrupt(path, offset, f"a ledger's record of {len(body)} bytes")
    ledger_id, key, flags, lac, lafr = _LEDGER.unpack(body)
    return LoggedLedger(ledger_id, key, bool(flags & _FENCED), bool(flags & _DELETED), lac, lafr)


def encode_replaces(replaced: FileSet) -> bytes:
    return b"".join(_RANGE.pack(low, high) for low, high in replaced.ranges)


def decode_replaces(body: bytes, path: str, offset: int) -> FileSet:
    if len(body) % _RANGE.size:
        raise StorageCorrupt(path, offset, f"a list of replaced files of {len(body)} bytes")
    return FileSet.join(_RANGE.iter_unpack(body))


def footer_length(ledgers: int) -> int:
    """Return the length of the FOOTER's body."""
    return _RUNS.size + ledgers * _USAGE.size


def encode_footer(runs: int, usage: Mapping[int, int]) -> bytes:
    return _RUNS.pack(runs) + b"".join(_USAGE.pack(*pair) for pair in sorted(usage.items()))


def decode_footer(body: bytes, path: str, offset: int) -> tuple[int, dict[int, int]]:
    """Return the number of runs, and the bytes of each ledger's runs."""
    if len(body) < _RUNS.size or (len(body) - _RUNS.size) % _USAGE.size:
        raise StorageCorrupt(path, offset, f"a footer of {len(body)} bytes")
    return _RUNS.unpack_from(body)[0], dict(_USAGE.iter_unpack(body[_RUNS.size :]))


# --- tail -----------------------------------------------------------------------------------------


def file_size(records: int) -> int:
    """Return the size of a file with ``records`` bytes of records, heads and footer included."""
    return -(-(LOG_HEADER_BYTES + records + TAIL_BYTES) // PAGE_BYTES) * PAGE_BYTES


def encode_tail(nonce: bytes, offset: int, length: int) -> bytes:
    tail = _TAIL.pack(_TAIL_MAGIC, offset, length, 0)
    return tail[:-4] + _CHECKSUM.pack(checksum(nonce + tail[:-4]))


def decode_tail(tail: bytes, header: LogHeader, path: str) -> tuple[int, int]:
    """Return the offset and the length of the FOOTER record. The length includes the record's head.

    Raises:
        StorageCorrupt: The end of the file is missing or damaged.
    """
    at = header.size - TAIL_BYTES
    if len(tail) != TAIL_BYTES:
        raise StorageCorrupt(path, at, "the end of the entry log is missing")
    magic, offset, length, crc = _TAIL.unpack(tail)
    if magic != _TAIL_MAGIC or crc != checksum(header.nonce + tail[:-4]):
        raise StorageCorrupt(path, at, "the end of the entry log is damaged")
    if not LOG_HEADER_BYTES <= offset <= offset + length <= at:
        raise StorageCorrupt(path, at, f"a footer of {length} bytes at {offset}")
    return offset, length


assert ADD == 1
