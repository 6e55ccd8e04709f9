"""Segments: the files of the journal, and what can be said about one after a crash.

A segment is a file of fixed, preallocated size. Its first page is the file header, all after it are
blocks (``bookie.core.block``) without gaps, then zeros:

    offset  size  field
    0       8     magic      b"LLJOURN1"
    8       4     format     1
    12      4     page size  4096
    16      8     segment    its number; the file's name says the same
    24      8     size       of the whole file, in bytes
    32      16    nonce      random; part of every checksum of its blocks
    48      64    instance   of the bookie, UTF-8, padded with zeros
    112           padding of 0xA5
    4092    4     checksum   CRC-32C of bytes 0 to 4091

Segments are numbered from 1 without gaps and written one after the other. They are where entries may stay:
the index says where in which segment each run lies. Once nothing more can be written to a segment and the
index has all of it, its file may be *trimmed*: cut behind its last block. Where its entries went to an entry
log, the file goes.

**Scanning.** ``BlockWalk`` reads blocks until one is not valid and decides what that means, on the
evidence within the segment: the end (nothing but zeros follow), a torn write (see ``bookie.core.block``), or
damage, which is StorageCorrupt with the offset. A torn block is damage all the same when anything was
written behind it: a later block's header, or, where the torn block's own header stands and so its size is
known, any byte that is not zero. What later segments have to say about it is for ``bookie.core.boot``.

**Passing rot.** Damage ends a scan because nothing is known of what it hides. If it is in payloads only, it
hides nothing: the block's header and table prove themselves, so it is known which pages are bad, and each
record that touches one is an ADD whose frame says, under its own checksum, which entries it holds and how
long it is. Whoever asks for it (``passes_rot``) gets such a block as any other. The entries that do not match
their digests are found by who reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import attrs

from bookie.core.block import (
    BLOCK_HEADER_BYTES,
    NONCE_BYTES,
    PADDING,
    PAGE_BYTES,
    BlockHeader,
    Damage,
    bad_pages,
    block_damage,
    decode_header,
    first_nonzero,
    header_damage,
)
from bookie.core.frames import is_head_sound
from bookie.core.records import ADD, RECORD_HEAD_BYTES, Record, decode_records
from ledgerlog.errors import StorageCorrupt
from ledgerlog.wire.checksum import checksum

_MAGIC = b"LLJOURN1"
_FORMAT = 1
_HEADER = struct.Struct("<8sIIQQ16s64s")
_CHECKSUM = struct.Struct("<I")
_INSTANCE_BYTES = 64

SEGMENT_HEADER_BYTES = PAGE_BYTES
SEGMENT_NUMBER_MAX = 2**48


@attrs.frozen
class SegmentHeader:
    number: int
    size: int
    nonce: bytes
    instance: str

    def encode(self) -> bytes:
        """The file's first page."""
        instance = self.instance.encode()
        assert len(instance) <= _INSTANCE_BYTES
        assert len(self.nonce) == NONCE_BYTES
        fields = _HEADER.pack(_MAGIC, _FORMAT, PAGE_BYTES, self.number, self.size, self.nonce, instance)
        page = fields + PADDING * (PAGE_BYTES - len(fields) - _CHECKSUM.size)
        return page + _CHECKSUM.pack(checksum(page))

    @classmethod
    def decode(cls, page: bytes, *, path: str, number: int, instance: str) -> SegmentHeader:
        """The inverse of ``encode``. StorageCorrupt if it is damaged or is not that segment of that
        bookie."""
        if len(page) != PAGE_BYTES:
            raise StorageCorrupt(path, 0, f"the file has {len(page)} bytes, less than a segment's header")
        if _CHECKSUM.unpack_from(page, PAGE_BYTES - _CHECKSUM.size)[0] != checksum(page[: -_CHECKSUM.size]):
            raise StorageCorrupt(path, 0, "the checksum of the segment's header does not match")
        magic, version, page_bytes, found, size, nonce, raw_instance = _HEADER.unpack_from(page)
        if magic != _MAGIC or version != _FORMAT or page_bytes != PAGE_BYTES:
            raise StorageCorrupt(
                path, 0, f"not a journal segment of format {_FORMAT} (magic {magic!r}, format {version})"
            )
        if found != number:
            raise StorageCorrupt(path, 0, f"the file is segment {found}, not {number}")
        owner = raw_instance.rstrip(b"\0").decode(errors="replace")
        if owner != instance:
            raise StorageCorrupt(path, 0, f"the segment belongs to bookie instance {owner}, not {instance}")
        return cls(number=found, size=size, nonce=nonce, instance=owner)


@attrs.frozen
class FoundBlock:
    """A valid block of a segment."""

    offset: int
    header: BlockHeader

    @property
    def stop(self) -> int:
        return self.offset + self.header.block_bytes

    def records(self, image: memoryview, path: str) -> Iterator[Record]:
        """Its records; ``image`` is the segment's file. StorageCorrupt, naming ``path``, if they do not
        parse."""
        start = self.offset + BLOCK_HEADER_BYTES
        return decode_records(image, start, start + self.header.content_bytes, path)


@attrs.frozen
class SegmentScan:
    """What a segment holds."""

    number: int
    blocks: tuple[FoundBlock, ...]
    end: int
    """Where the last valid block ends; where the first would be if there is none."""
    is_torn: bool
    """A write was begun at ``end`` and did not complete, as far as this segment tells."""
    is_trimmed: bool = False
    """The file ends with the last block."""

    @property
    def is_pristine(self) -> bool:
        """Nothing was ever written behind the file's header."""
        return not self.blocks and not self.is_torn


class BlockWalk:
    """The valid blocks of a segment, to be gone through once; ``image`` is the whole file.

    ``sequence`` is that of the first block, None if it is not known. With ``stop`` it is known where the last
    block ends (a START record or the index says so): blocks must reach exactly there, and what stands
    behind is not looked at. Raises StorageCorrupt for damage, naming ``path`` and the offset; with
    ``passes_rot`` for such only as may hide more than payloads."""

    def __init__(
        self,
        image: memoryview,
        header: SegmentHeader,
        *,
        path: str,
        sequence: int | None = None,
        stop: int | None = None,
        passes_rot: bool = False,
    ) -> None:
        self.end = SEGMENT_HEADER_BYTES
        """Where the blocks end that were walked over."""
        self.is_torn = False
        """Once all were: a write was begun at ``end`` and did not complete."""
        self._image = image
        self._header = header
        self._path = path
        self._sequence = sequence
        self._stop = stop
        self._passes_rot = passes_rot

    def __iter__(self) -> Iterator[FoundBlock]:
        image, header, path, stop = self._image, self._header, self._path, self._stop
        sequence, size = self._sequence, len(image)
        if size > header.size or size % PAGE_BYTES:
            raise StorageCorrupt(path, None, f"the file has {size} bytes, {header.size} were preallocated")
        limit = size if stop is None else stop
        if limit > size:
            raise StorageCorrupt(path, size, f"the file ends here, though the journal goes on to {stop}")
        while (at := self.end) < limit:
            view = image[at:]
            block = decode_header(view, nonce=header.nonce, segment=header.number)
            if block is None:
                damage: Damage | None = header_damage(view)
            elif sequence is not None and block.sequence != sequence:
                raise StorageCorrupt(path, at, f"block {block.sequence} where block {sequence} was expected")
            else:
                damage = block_damage(view, block, nonce=header.nonce)
            if damage is not None:
                try:
                    self.is_torn = _is_torn(image, header, at, block, damage, path=path, stop=stop)
                except StorageCorrupt:
                    if not self._passes_rot or not _hides_nothing(view, block, header.nonce, path):
                        raise
                else:
                    return
            assert block is not None
            self.end += block.block_bytes
            yield FoundBlock(at, block)
            sequence = block.sequence + 1
        if self.end > limit:
            raise StorageCorrupt(path, self.end, f"the last block passes the end of the journal at {limit}")


def scan_segment(
    image: memoryview,
    header: SegmentHeader,
    *,
    path: str,
    sequence: int | None,
    stop: int | None = None,
    passes_rot: bool = False,
) -> SegmentScan:
    """What a segment holds, by a walk over all of its blocks. StorageCorrupt as ``BlockWalk``."""
    walk = BlockWalk(image, header, path=path, sequence=sequence, stop=stop, passes_rot=passes_rot)
    blocks = tuple(walk)
    is_trimmed = len(image) < header.size and walk.end == len(image)
    return SegmentScan(header.number, blocks, walk.end, is_torn=walk.is_torn, is_trimmed=is_trimmed)


def _hides_nothing(view: memoryview, block: BlockHeader | None, nonce: bytes, path: str) -> bool:
    """Whether the block at the start of ``view``, which is damaged, says all that it said but payloads."""
    bad = None if block is None else bad_pages(view, block, nonce=nonce)
    if block is None or bad is None:
        return False
    count = 0
    try:
        stop = BLOCK_HEADER_BYTES + block.content_bytes
        for record in decode_records(view, BLOCK_HEADER_BYTES, stop, path):
            count += 1
            first = (record.offset - RECORD_HEAD_BYTES) // PAGE_BYTES
            last = (record.offset + len(record.body) - 1) // PAGE_BYTES
            if bad.isdisjoint(range(first, last + 1)):
                continue
            if record.kind != ADD or not is_head_sound(record.body):
                return False
    except StorageCorrupt:
        return False
    return count == block.records


def first_block(image: memoryview, header: SegmentHeader) -> FoundBlock | None:
    """The segment's first block, None where it is not valid."""
    view = image[SEGMENT_HEADER_BYTES:]
    block = decode_header(view, nonce=header.nonce, segment=header.number)
    if block is None or block_damage(view, block, nonce=header.nonce) is not None:
        return None
    return FoundBlock(SEGMENT_HEADER_BYTES, block)


def _is_torn(
    image: memoryview,
    header: SegmentHeader,
    at: int,
    block: BlockHeader | None,
    damage: Damage,
    *,
    path: str,
    stop: int | None,
) -> bool:
    """Decides about the place ``at``, where a valid block was looked for and not found: whether a write was
    torn there, or none was begun. StorageCorrupt if it is damage."""
    if stop is not None:
        raise StorageCorrupt(path, at, f"a damaged block, though the journal goes on to {stop}")
    if len(image) != header.size:
        raise StorageCorrupt(path, at, "a damaged block in a file that was cut behind its last block")
    if damage is Damage.ROTTEN:
        raise StorageCorrupt(path, at, "a damaged block: no interrupted write leaves such bytes behind")
    if block is None and first_nonzero(image, at, header.size) is None:
        return False
    behind = at + (PAGE_BYTES if block is None else block.block_bytes)
    written = None if block is None else first_nonzero(image, behind, header.size)
    if written is None:
        written = _later_block(image, header, behind)
    if written is not None:
        raise StorageCorrupt(path, at, f"a damaged block, though byte {written} was written after it")
    return True


def _later_block(image: memoryview, header: SegmentHeader, start: int) -> int | None:
    """The offset of the first page from ``start`` on that begins with a block's valid header."""
    for at in range(start, header.size, PAGE_BYTES):
        if decode_header(image[at:], nonce=header.nonce, segment=header.number) is not None:
            return at
    return None
