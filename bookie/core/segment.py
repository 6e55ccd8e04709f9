"""Segments: the files of the journal, and how to read one after a crash.

A segment is a file of fixed, preallocated size. Its first page is the file header. Blocks
(``bookie.core.block``) follow without gaps, then zeros:

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

Segments are numbered from 1 without gaps and written one after the other. Entries may stay in segments for
good. The index records, for each run (a frame of entries of one ledger), its segment and its place in it.
Once a segment is complete and the index has all its runs, its file may be *trimmed*: cut after its last
block. If its entries were moved to an entry log instead, the file is deleted.

**Scanning.** ``BlockWalk`` reads blocks until one is not valid. It then decides, from this segment alone,
what it has reached:

- the end: nothing but zeros follow;
- a torn write (see ``bookie.core.block``);
- damage: StorageCorrupt with the offset.

A torn block counts as damage if anything was written after it. A valid header of a later block proves that.
If the torn block's own header is valid, we know where the block ends. Any nonzero byte after that end is then
proof too. ``bookie.core.boot`` adds the evidence of later segments.

**Passing rot.** Damage ends a scan, because it may hide whole records. If only payloads are damaged, no
record is hidden. The block's header and table have checksums, so the bad pages are known. Suppose that every
record on a bad page is an ADD record, and that the head of its frame is intact. Then we still know which
entries each frame has, and how long the frame is. A caller that sets ``passes_rot`` gets such a block like
any other. A later read finds the entries that do not match their digests.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from bookie.core.block import (
    BLOCK_HEADER_BYTES,
    PAGE_BYTES,
    BlockDamage,
    BlockHeader,
    bad_pages,
    begins_like_block,
    block_damage,
    decode_header,
    first_nonzero,
    header_damage,
)
from bookie.core.file_header import FileKind
from bookie.core.frames import is_head_sound
from bookie.core.journal_items import ADD, RECORD_HEAD_BYTES, JournalItem, decode_records
from ledgerlog.errors import StorageCorrupt

_KIND = FileKind("journal segment", b"LLJOURN1", 1)

SEGMENT_HEADER_BYTES = PAGE_BYTES
SEGMENT_NUMBER_MAX = 2**48


@attrs.frozen
class SegmentHeader:
    """The header of a segment's file; the module docstring lists the fields."""

    number: int
    size: int
    nonce: bytes
    instance: str

    def encode(self) -> bytes:
        """Return the file's first page."""
        return _KIND.encode(self.number, self.size, self.nonce, self.instance)

    @classmethod
    def decode(cls, page: bytes, *, path: str, number: int, instance: str | None) -> SegmentHeader:
        """Decode a segment's first page, and check that it is the right segment of the right bookie.

        Args:
            page: The first page of the file.
            path: The file, for the error.
            number: The number that the file's name says.
            instance: The instance of this bookie. None: any.

        Raises:
            StorageCorrupt: The header is damaged, or belongs to another segment or another bookie instance.
        """
        size, nonce, owner, _ = _KIND.decode(page, path=path, number=number, instance=instance)
        return cls(number=number, size=size, nonce=nonce, instance=owner)


@attrs.frozen
class FoundBlock:
    """A valid block of a segment."""

    offset: int
    header: BlockHeader

    @property
    def stop(self) -> int:
        """The offset of the first byte after the block."""
        return self.offset + self.header.block_bytes

    def records(self, image: memoryview, path: str) -> Iterator[JournalItem]:
        """Yield the block's records from ``image``, the whole file of the segment.

        Raises:
            StorageCorrupt: The records do not parse. The error names ``path``.
        """
        start = self.offset + BLOCK_HEADER_BYTES
        return decode_records(image, start, start + self.header.content_bytes, path)


@attrs.frozen
class SegmentScan:
    """The result of a walk over all blocks of a segment."""

    number: int
    blocks: tuple[FoundBlock, ...]
    end: int
    """The end of the last valid block; if there is none, the place where the first block would begin."""
    is_torn: bool
    """A write was begun at ``end`` and did not complete, according to this segment."""
    is_trimmed: bool = False
    """The file ends with the last block."""
    is_garbage: bool = False
    """The segment was never written to, but it holds bytes that do not form a block."""

    @property
    def is_pristine(self) -> bool:
        """Whether nothing was ever written after the file's header."""
        return not self.blocks and not self.is_torn


class BlockWalk:
    """Iterate over the valid blocks of a segment, once.

    Args:
        image: The whole file.
        header: The file's header.
        path: The file, for errors.
        sequence: The sequence of the first block, or None if it is not known.
        stop: Where the last block ends, if a START record or the index says so. The blocks must reach exactly
            to this offset. The walk does not look at the bytes after it.
        passes_rot: Yield a damaged block too if the damage affects payloads only.

    Raises:
        StorageCorrupt: The segment is damaged. The error names ``path``, and the offset if there is one.
    """

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
        """The end of the last block that was walked over."""
        self.is_torn = False
        """Valid after the whole walk: a write was begun at ``end`` and did not complete."""
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
            raise StorageCorrupt(
                path, None, f"the file has {size} bytes, but {header.size} were preallocated"
            )
        limit = size if stop is None else stop
        if limit > size:
            raise StorageCorrupt(path, size, f"the file ends here, but the journal continues to {stop}")
        while (at := self.end) < limit:
            view = image[at:]
            block = decode_header(view, nonce=header.nonce, segment=header.number)
            if block is None:
                damage: BlockDamage | None = header_damage(view)
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
    is_unwritten: bool = False,
) -> SegmentScan:
    """Walk over all blocks of a segment and return its content.

    See ``BlockWalk`` for the other arguments and for the errors.

    Args:
        is_unwritten: The bookie never wrote to the segment. Bytes in it that do not form a block do not count
            as damage.
    """
    if is_unwritten and _is_garbage(image, header):
        return SegmentScan(header.number, (), SEGMENT_HEADER_BYTES, is_torn=False, is_garbage=True)
    walk = BlockWalk(image, header, path=path, sequence=sequence, stop=stop, passes_rot=passes_rot)
    blocks = tuple(walk)
    is_trimmed = len(image) < header.size and walk.end == len(image)
    return SegmentScan(header.number, blocks, walk.end, is_torn=walk.is_torn, is_trimmed=is_trimmed)


def _hides_nothing(view: memoryview, block: BlockHeader | None, nonce: bytes, path: str) -> bool:
    """Whether the damage to the block at the start of ``view`` affects payloads only."""
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
    """Return the segment's first block, or None if it is not valid."""
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
    damage: BlockDamage,
    *,
    path: str,
    stop: int | None,
) -> bool:
    """Decide whether a write was torn at ``at``, where there is no valid block.

    Returns:
        True if a write was torn there, False if none was begun.

    Raises:
        StorageCorrupt: The segment is damaged at ``at``.
    """
    if stop is not None:
        raise StorageCorrupt(path, at, f"a damaged block, but the journal continues to {stop}")
    if len(image) != header.size:
        raise StorageCorrupt(path, at, "a damaged block in a file that was trimmed after its last block")
    if damage is BlockDamage.ROTTEN:
        raise StorageCorrupt(path, at, "a damaged block: no interrupted write leaves such bytes behind")
    if block is None and first_nonzero(image, at, header.size) is None:
        return False
    behind = at + (PAGE_BYTES if block is None else block.block_bytes)
    written = None if block is None else first_nonzero(image, behind, header.size)
    if written is None:
        written = _later_block(image, header, behind)
    if written is not None:
        raise StorageCorrupt(path, at, f"a damaged block, but byte {written} was written after it")
    return True


def scan_without_header(image: memoryview, number: int) -> SegmentScan | None:
    """Scan a segment that the bookie certainly never wrote to, and whose file's header is damaged.

    Without the nonce in that header no block can be verified, but each block still begins with its magic.

    Returns:
        The scan; None if a page begins like a block, so the segment may have been written to after all.
    """
    for at in range(SEGMENT_HEADER_BYTES, len(image), PAGE_BYTES):
        if begins_like_block(image[at:]):
            return None
    return SegmentScan(number, (), SEGMENT_HEADER_BYTES, is_torn=False, is_garbage=True)


def _is_garbage(image: memoryview, header: SegmentHeader) -> bool:
    """Whether there are bytes after the file's header, but no block header among them."""
    start = SEGMENT_HEADER_BYTES
    return (
        len(image) == header.size
        and first_nonzero(image, start, header.size) is not None
        and _later_block(image, header, start) is None
    )


def _later_block(image: memoryview, header: SegmentHeader, start: int) -> int | None:
    """Return the offset of the first page from ``start`` on that begins with a valid block header."""
    for at in range(start, header.size, PAGE_BYTES):
        if decode_header(image[at:], nonce=header.nonce, segment=header.number) is not None:
            return at
    return None
