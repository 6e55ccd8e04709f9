"""Blocks: the unit that the journal writes with one sync, and how to tell a torn write from damage.

A block is a whole number of 4096-byte pages, at a multiple of 4096 in its segment:

    offset  size  field
    0       8     magic            b"LLBLOCK1"
    8       8     segment          number of the segment that it was written to
    16      8     sequence         of this block; grows by one from block to block, across segments
    24      4     pages            its size in pages
    28      4     content          bytes of records
    32      4     records          number of records
    36      4     table checksum   CRC-32C of the table at the block's end
    40      20    zero
    60      4     header checksum  CRC-32C of the segment's nonce (16 bytes) and bytes 0 to 59
    64            the records
                  padding of 0xA5 up to the table
    -8*pages      the table: for each page a u64 of
                    bits 0..31    CRC-32C of the part of the page between header and table, started from
                                  (CRC-32C of nonce, segment, sequence) + page index
                    bits 32..39   one bit for each of the page's eight sectors of 512 bytes: set if the
                                  sector was written as all zeros
                    bits 56..63   0x01

The header comes first and has a fixed size, so records can be copied to their final place while the block is
still open. The table comes last because its size is known only when the block closes. A single small record
makes a block of one page.

**Torn or rotten.** A segment reads as zeros before it is written, and every byte of it is written at most
once. (A recycled segment file is filled with zeros first.) So if a crash prevents the write of a sector, the
sector reads as zeros. The padding, the header and each table entry are never zero, and the table says which
sectors of the records were written as zeros. So a page that fails its checksum is *torn* if one of its
sectors is zeros but was not written as zeros. Otherwise the page is *rotten*, because a crash cannot leave
such bytes. The same holds for the header (which lies within one sector) and for the table.

If nothing was written after a torn block, its records were never acknowledged. The journal begins to write a
block only after it has synced the previous one. So any trace of a later block proves that the bad block was
synced, and was damaged afterwards.

**Nonce.** Each segment has 16 random bytes in its file header. They are part of every checksum here. Clients
choose payloads: without the nonce, a payload that looks like a later block could turn a torn write into
apparent damage. The nonce also makes checksums fail if a block is read from the wrong place, or was left by
an earlier use of the file.

One case cannot be decided. If damage turns sectors of the very last block into zeros, and does nothing else,
the block looks like a torn write. After a clean stop this case does not matter, because the index says where
the journal ends.
"""

from __future__ import annotations

import enum
import functools
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from google_crc32c import value

from ledgerlog.limits import FRAME_BYTES_MAX
from ledgerlog.wire.pieces import piece_checksums

PAGE_BYTES = 4096
SECTOR_BYTES = 512
NONCE_BYTES = 16
BLOCK_HEADER_BYTES = 64
PADDING = b"\xa5"

_MAGIC = b"LLBLOCK1"
_HEADER = struct.Struct("<8sQQIIII20xI")
_HEADER_CHECKSUM = struct.Struct("<I")
_SEED = struct.Struct("<16sQQ")
_TABLE_ENTRY_BYTES = 8
_TABLE_MARK = 1 << 56
_PAGE_SECTORS = PAGE_BYTES // SECTOR_BYTES
_ZERO_SECTOR = bytes(SECTOR_BYTES)
_ZERO_PAGE = bytes(PAGE_BYTES)

_PAGE_CONTENT = PAGE_BYTES - _TABLE_ENTRY_BYTES
BLOCK_PAGES_MAX = 1 << 16

assert _HEADER.size == BLOCK_HEADER_BYTES
assert array("Q").itemsize == _TABLE_ENTRY_BYTES
assert BLOCK_PAGES_MAX * _PAGE_CONTENT > 2 * FRAME_BYTES_MAX


def pages_of(content_bytes: int) -> int:
    """Return how many pages a block with ``content_bytes`` bytes of records takes."""
    return -(-(BLOCK_HEADER_BYTES + content_bytes) // _PAGE_CONTENT)


def content_capacity(pages: int) -> int:
    """Return how many bytes of records fit into a block of ``pages`` pages. It is negative if there is no
    page."""
    return pages * _PAGE_CONTENT - BLOCK_HEADER_BYTES


class BlockHeader(NamedTuple):
    """The fields of a block's header; see the module docstring for their meaning."""

    segment: int
    sequence: int
    pages: int
    content_bytes: int
    records: int
    table_checksum: int

    @property
    def block_bytes(self) -> int:
        return self.pages * PAGE_BYTES


class BlockDamage(enum.Enum):
    """Why a block is not valid."""

    TORN = "torn"
    """Sectors are zeros that should not be: the write did not complete."""
    ROTTEN = "rotten"
    """The block holds bytes that no interrupted write leaves behind."""


def finish_block(
    view: memoryview, *, nonce: bytes, segment: int, sequence: int, content_bytes: int, records: int
) -> int:
    """Close the block at the start of ``view``: write padding, table and header around its records.

    The records are in place already.

    Returns:
        The size of the block in bytes.
    """
    pages = pages_of(content_bytes)
    block_bytes = pages * PAGE_BYTES
    content_stop = BLOCK_HEADER_BYTES + content_bytes
    table_start = block_bytes - pages * _TABLE_ENTRY_BYTES
    view[content_stop:table_start] = PADDING * (table_start - content_stop)
    table = _table(view[:block_bytes], nonce=nonce, segment=segment, sequence=sequence)
    view[table_start:block_bytes] = table
    head = _HEADER.pack(_MAGIC, segment, sequence, pages, content_bytes, records, value(table), 0)
    view[:BLOCK_HEADER_BYTES] = head[:-4] + _HEADER_CHECKSUM.pack(value(nonce + head[:-4]))
    return block_bytes


def decode_header(view: memoryview, *, nonce: bytes, segment: int) -> BlockHeader | None:
    """Return the block header at the start of ``view``, or None if there is no valid header of this
    segment."""
    if len(view) < PAGE_BYTES or view[:8] != _MAGIC:
        return None
    head = bytes(view[:BLOCK_HEADER_BYTES])
    _, number, sequence, pages, content_bytes, records, table_checksum, checksum = _HEADER.unpack(head)
    if value(nonce + head[:-4]) != checksum or number != segment:
        return None
    if (
        not 1 <= pages <= BLOCK_PAGES_MAX
        or pages_of(content_bytes) != pages
        or pages * PAGE_BYTES > len(view)
    ):
        return None  # The checksum holds, so another version or a bug wrote this header.
    return BlockHeader(number, sequence, pages, content_bytes, records, table_checksum)


def begins_like_block(view: memoryview) -> bool:
    """Whether ``view`` begins with the magic of a block, which may be damaged otherwise."""
    return view[: len(_MAGIC)] == _MAGIC


def header_damage(view: memoryview) -> BlockDamage:
    """Classify the damage at the start of ``view``, where a block should begin but has no valid header."""
    return BlockDamage.TORN if view[:SECTOR_BYTES] == _ZERO_SECTOR else BlockDamage.ROTTEN


def block_damage(view: memoryview, header: BlockHeader, *, nonce: bytes) -> BlockDamage | None:
    """Return the kind of damage to the block at the start of ``view``, or None if the block is whole.

    The block's header is valid."""
    block = view[: header.block_bytes]
    table_start = header.block_bytes - header.pages * _TABLE_ENTRY_BYTES
    table = bytes(block[table_start:])
    actual = _table(block, nonce=nonce, segment=header.segment, sequence=header.sequence)
    if actual == table and value(table) == header.table_checksum:
        return None
    if value(table) != header.table_checksum:
        # No entry of a table is zero, so a sector of the table that reads as zeros was never written.
        unwritten = _zero_sectors(block, table_start // SECTOR_BYTES * SECTOR_BYTES, header.block_bytes)
        return BlockDamage.ROTTEN if next(unwritten, None) is None else BlockDamage.TORN
    rightly_zero = u64_array(table)
    bad = {
        page
        for page, (wanted, found) in enumerate(zip(rightly_zero, u64_array(actual), strict=True))
        if wanted != found
    }
    assert bad, "if two tables differ, one of their entries differs"
    torn = {
        sector // _PAGE_SECTORS
        for sector in _zero_sectors(block, 0, header.block_bytes)
        if not rightly_zero[sector // _PAGE_SECTORS] >> (32 + sector % _PAGE_SECTORS) & 1
    }
    return BlockDamage.TORN if bad <= torn else BlockDamage.ROTTEN


def bad_pages(view: memoryview, header: BlockHeader, *, nonce: bytes) -> frozenset[int] | None:
    """Return the pages, torn or rotten, that do not read as they were written.

    The block is at the start of ``view``, and its header is valid.

    Returns:
        The indexes of the bad pages, or None if the table itself is damaged: then they are unknown.
    """
    block = view[: header.block_bytes]
    table = bytes(block[header.block_bytes - header.pages * _TABLE_ENTRY_BYTES :])
    if value(table) != header.table_checksum:
        return None
    actual = _table(block, nonce=nonce, segment=header.segment, sequence=header.sequence)
    pairs = zip(u64_array(table), u64_array(actual), strict=True)
    return frozenset(page for page, (wanted, found) in enumerate(pairs) if wanted != found)


# --- the table ------------------------------------------------------------------------------------


def _table(block: memoryview, *, nonce: bytes, segment: int, sequence: int) -> bytes:
    """Return the table of a whole block whose records and padding are in place.

    This is the one pass over the bytes of a group commit.
    """
    size = len(block)
    count = size // PAGE_BYTES
    body_stop = size - count * _TABLE_ENTRY_BYTES
    full = body_stop // PAGE_BYTES  # A large table takes whole pages, too.
    lengths = array("I", [PAGE_BYTES] * full + [body_stop % PAGE_BYTES] + [0] * (count - full - 1))
    lengths[0] -= BLOCK_HEADER_BYTES
    seed = value(_SEED.pack(nonce, segment, sequence))
    checksums = piece_checksums(seed, block[BLOCK_HEADER_BYTES:body_stop], lengths)
    entries = [checksum | _TABLE_MARK for checksum in checksums]
    for sector in _zero_sectors(block, SECTOR_BYTES, body_stop):
        entries[sector // _PAGE_SECTORS] |= 1 << (32 + sector % _PAGE_SECTORS)
    return u64_bytes(entries)


def _zero_sectors(view: memoryview, start: int, stop: int) -> Iterator[int]:
    """Yield the numbers of the sectors within ``view[start:stop]`` that consist of zeros.

    The first bytes of all sectors are read in one call. More is read only if the first byte of a sector is
    zero: the whole page if the sector begins a page, otherwise the sector.
    """
    heads = bytes(view[::SECTOR_BYTES])
    sector = heads.find(0, -(-start // SECTOR_BYTES))
    while 0 <= sector < stop // SECTOR_BYTES:
        at = sector * SECTOR_BYTES
        following = sector + 1
        if (
            at % PAGE_BYTES == 0
            and at + PAGE_BYTES <= stop
            and bytes(view[at : at + PAGE_BYTES]) == _ZERO_PAGE
        ):
            following = sector + _PAGE_SECTORS
            yield from range(sector, following)
        elif bytes(view[at : at + SECTOR_BYTES]) == _ZERO_SECTOR:
            yield sector
        sector = heads.find(0, following)


def u64_array(data: bytes) -> array[int]:
    """Return numbers from little-endian bytes."""
    numbers = array("Q", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def u64_bytes(entries: Iterable[int]) -> bytes:
    """Return the little-endian bytes of numbers below 2**64."""
    numbers = array("Q", entries)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


# --- zeros ----------------------------------------------------------------------------------------

_CHUNK_BYTES = 64 * 1024


@functools.cache
def _zeros(size: int) -> bytes:
    return bytes(size)


def first_nonzero(view: memoryview, start: int, stop: int) -> int | None:
    """Return the offset of the first byte in ``view[start:stop]`` that is not zero, or None if all bytes are
    zero."""
    zeros = _zeros(_CHUNK_BYTES)
    for at in range(start, stop, _CHUNK_BYTES):
        chunk = bytes(view[at : min(stop, at + _CHUNK_BYTES)])
        if chunk != zeros and (rest := chunk.lstrip(b"\0")):
            return at + len(chunk) - len(rest)
    return None
