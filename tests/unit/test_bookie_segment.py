"""Segments and the journal as a whole: where the journal ends, and which states are damage."""

from __future__ import annotations

import attrs
import pytest

from bookie.core.block import PAGE_BYTES, SECTOR_BYTES
from bookie.core.boot import JournalWalk, ReplayStart, segments_to_replay, start_of
from bookie.core.journal import GroupCommit, SegmentImage
from bookie.core.journal_items import (
    FENCE,
    START,
    JournalPosition,
    decode_records,
    encode_fence,
    encode_start,
)
from bookie.core.segment import SEGMENT_HEADER_BYTES, SegmentHeader, SegmentScan, scan_segment
from ledgerlog.errors import StorageCorrupt

SIZE = 16 * PAGE_BYTES
NONCE = b"n" * 16
FRESH = ReplayStart(1, 1, is_optional=False, end=JournalPosition(0, 0, 0))
OPTIONAL = attrs.evolve(FRESH, is_optional=True)


class Writer:
    """Writes blocks of fences into images, like a journal."""

    def __init__(self) -> None:
        self.images = [self._image(1)]
        self.commit = GroupCommit(durable=0, image=self._segment(1))

    def _image(self, number: int) -> bytearray:
        image = bytearray(SIZE)
        header = SegmentHeader(number=number, size=SIZE, nonce=NONCE, instance="b")
        image[:SEGMENT_HEADER_BYTES] = header.encode()
        return image

    def _segment(self, number: int) -> SegmentImage:
        return SegmentImage(number, NONCE, memoryview(bytearray(SIZE)))

    def block(self, bodies: int = 1) -> tuple[int, int]:
        """Write a block with ``bodies`` large records. Return its range in the last image."""
        for _ in range(bodies):
            assert self.commit.append(FENCE, encode_fence(1, b"k" * 16) * 120) is not None
        block = self.commit.take_block()
        assert block is not None
        self.commit.on_written(block)
        stop = block.offset + len(block.view)
        self.images[-1][block.offset : stop] = block.view
        return block.offset, stop

    def roll(self) -> None:
        number = len(self.images) + 1
        self.images.append(self._image(number))
        self.commit.offer_segment(self._segment(number))
        assert self.commit.leave_segment()

    def scan(self, number: int = 1, stop: int | None = None, *, is_unwritten: bool = False) -> SegmentScan:
        image = memoryview(self.images[number - 1])
        header = SegmentHeader.decode(bytes(image[:PAGE_BYTES]), path="f", number=number, instance="b")
        return scan_segment(image, header, path="f", sequence=None, stop=stop, is_unwritten=is_unwritten)

    def walk(self, mark: ReplayStart = FRESH) -> JournalWalk:
        walk = JournalWalk(mark)
        for number in range(mark.segment, len(self.images) + 1):
            walk.on_segment(self.scan(number, is_unwritten=walk.is_unwritten), f"segment {number}")
        return walk


@pytest.fixture
def writer() -> Writer:
    return Writer()


def test_a_segment_header_comes_back_and_every_flipped_byte_of_it_is_noticed() -> None:
    header = SegmentHeader(number=5, size=SIZE, nonce=NONCE, instance="instance")
    page = bytearray(header.encode())
    assert SegmentHeader.decode(bytes(page), path="f", number=5, instance="instance") == header
    for at in range(len(page)):
        page[at] ^= 0x10
        with pytest.raises(StorageCorrupt):
            SegmentHeader.decode(bytes(page), path="f", number=5, instance="instance")
        page[at] ^= 0x10


def test_a_segment_of_another_number_or_bookie_is_refused() -> None:
    page = SegmentHeader(number=5, size=SIZE, nonce=NONCE, instance="instance").encode()
    with pytest.raises(StorageCorrupt, match="segment 5, not 6"):
        SegmentHeader.decode(page, path="f", number=6, instance="instance")
    with pytest.raises(StorageCorrupt, match="belongs to bookie instance"):
        SegmentHeader.decode(page, path="f", number=5, instance="other")


def test_all_blocks_of_a_segment_are_found(writer: Writer) -> None:
    places = [writer.block(count) for count in (1, 2, 1)]
    scan = writer.scan()
    assert [(block.offset, block.stop) for block in scan.blocks] == places
    assert [block.header.sequence for block in scan.blocks] == [1, 2, 3]
    assert scan.end == places[-1][1]
    assert not scan.is_torn


def test_a_torn_last_block_ends_the_segment_before_it(writer: Writer) -> None:
    _, end = writer.block()
    start, stop = writer.block(2)
    whole = bytes(writer.images[0])
    for sector in range(start, stop, SECTOR_BYTES):
        writer.images[0][:] = whole
        writer.images[0][sector : sector + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        scan = writer.scan()
        assert scan.is_torn
        assert scan.end == end == start


def test_a_torn_block_with_a_later_block_behind_it_is_damage(writer: Writer) -> None:
    start, _ = writer.block(2)
    writer.block()
    for lost in (start, start + PAGE_BYTES):  # Lose its header, which hides its size; and then another page.
        image = bytes(writer.images[0])
        writer.images[0][lost : lost + PAGE_BYTES] = bytes(PAGE_BYTES)
        with pytest.raises(StorageCorrupt) as caught:
            writer.scan()
        assert caught.value.offset == start
        writer.images[0][:] = image


def test_a_torn_block_with_a_trace_of_a_later_write_behind_it_is_damage(writer: Writer) -> None:
    start, stop = writer.block(2)
    writer.images[0][start + PAGE_BYTES : start + 2 * PAGE_BYTES] = bytes(PAGE_BYTES)
    assert writer.scan().is_torn
    writer.images[0][stop + 3 * PAGE_BYTES] = 1
    with pytest.raises(StorageCorrupt):
        writer.scan()


def test_rot_in_the_last_block_is_damage_and_not_a_torn_write(writer: Writer) -> None:
    start, stop = writer.block(2)
    for at in range(start, stop, 61):
        writer.images[0][at] ^= 0xFF
        if writer.images[0][at]:
            with pytest.raises(StorageCorrupt):
                writer.scan()
        writer.images[0][at] ^= 0xFF


def test_a_file_of_an_odd_size_or_too_large_is_damage(writer: Writer) -> None:
    writer.block()
    image = writer.images[0]
    for wrong in (image[:-1], image + bytes(4096)):
        writer.images[0] = wrong
        with pytest.raises(StorageCorrupt, match="preallocated"):
            writer.scan()


def test_a_trimmed_file_ends_with_its_last_block_and_nothing_of_it_may_be_damaged(writer: Writer) -> None:
    start, stop = writer.block(2)
    del writer.images[0][stop:]
    scan = writer.scan()
    assert scan.is_trimmed
    assert scan.end == stop
    with pytest.raises(StorageCorrupt, match="has not reached its end"):
        writer.walk()
    writer.images[0][start + PAGE_BYTES : start + 2 * PAGE_BYTES] = bytes(PAGE_BYTES)
    with pytest.raises(StorageCorrupt):
        writer.scan()
    del writer.images[0][stop - PAGE_BYTES :]
    with pytest.raises(StorageCorrupt):
        writer.scan()


def test_a_sealed_segment_must_reach_its_seal_and_what_is_behind_does_not_matter(writer: Writer) -> None:
    _, seal = writer.block()
    start, stop = writer.block()
    writer.images[0][start:stop] = b"\x77" * (stop - start)
    assert writer.scan(stop=seal).end == seal
    with pytest.raises(StorageCorrupt):
        writer.scan(stop=stop)
    with pytest.raises(StorageCorrupt):
        writer.scan(stop=seal - 1)


# --- the chain of segments ------------------------------------------------------------------------


def test_a_journal_is_followed_through_its_segments(writer: Writer) -> None:
    writer.block()
    writer.block()
    writer.roll()
    _, stop = writer.block()
    walk = writer.walk()
    assert walk.end == JournalPosition(2, stop, 3)
    assert walk.next_segment == 3
    assert walk.next_sequence == 4


def test_a_prepared_segment_that_was_never_written_is_the_next(writer: Writer) -> None:
    _, stop = writer.block()
    writer.roll()
    walk = writer.walk()
    assert walk.end == JournalPosition(1, stop, 1)
    assert walk.next_segment == 2


def test_a_torn_first_block_of_the_last_segment_is_cut_and_that_segment_left(writer: Writer) -> None:
    _, end = writer.block()
    writer.roll()
    start, _ = writer.block(2)
    writer.images[1][start + PAGE_BYTES : start + 2 * PAGE_BYTES] = bytes(PAGE_BYTES)
    walk = writer.walk()
    assert walk.end == JournalPosition(1, end, 1)
    assert walk.next_segment == 3


def test_a_torn_block_is_damage_where_a_later_segment_was_begun(writer: Writer) -> None:
    writer.block()
    start, _ = writer.block(2)
    writer.images[0][start + PAGE_BYTES : start + 2 * PAGE_BYTES] = bytes(PAGE_BYTES)
    writer.roll()
    assert writer.walk().end.sequence == 1
    writer.block()
    with pytest.raises(StorageCorrupt, match="segment 1"):
        writer.walk()


def test_two_torn_blocks_are_damage_though_the_later_segment_has_nothing_but_its_own(writer: Writer) -> None:
    writer.block()
    for image in (0, 1):
        start, _ = writer.block(2)
        writer.images[image][start + PAGE_BYTES : start + 2 * PAGE_BYTES] = bytes(PAGE_BYTES)
        writer.roll()
    with pytest.raises(StorageCorrupt, match="segment 1"):
        writer.walk()


def test_a_missing_last_block_is_noticed_by_the_next_segments_sequence(writer: Writer) -> None:
    writer.block()
    start, stop = writer.block()
    writer.images[0][start:stop] = bytes(stop - start)
    writer.roll()
    writer.block()
    with pytest.raises(StorageCorrupt, match="block 3 where block 2 was expected"):
        writer.walk()


def test_an_emptied_segment_between_others_is_damage(writer: Writer) -> None:
    writer.block()
    writer.roll()
    start, stop = writer.block()
    writer.images[1][start:stop] = bytes(stop - start)
    writer.roll()
    writer.block()
    with pytest.raises(StorageCorrupt, match="segment 2"):
        writer.walk()


def garble(image: bytearray) -> None:
    image[PAGE_BYTES:] = b"\x5a" * (len(image) - PAGE_BYTES)


def test_garbage_where_a_block_may_have_been_is_damage(writer: Writer) -> None:
    writer.block()
    writer.roll()
    garble(writer.images[1])
    with pytest.raises(StorageCorrupt, match="at byte 4096: a damaged block"):
        writer.walk()


def test_garbage_in_the_segment_of_an_optional_mark_is_no_damage_and_is_never_written_over(
    writer: Writer,
) -> None:
    garble(writer.images[0])
    with pytest.raises(StorageCorrupt, match="at byte 4096: a damaged block"):
        writer.walk()
    assert writer.walk(OPTIONAL).next_segment == 2
    writer.roll()
    assert writer.walk(OPTIONAL).next_segment == 2
    writer.block()
    with pytest.raises(StorageCorrupt, match="an empty segment"):
        writer.walk(OPTIONAL)


def test_of_several_segments_with_garbage_none_is_ever_written_over(writer: Writer) -> None:
    garble(writer.images[0])
    writer.roll()
    garble(writer.images[1])
    assert writer.walk(OPTIONAL).next_segment == 3


def test_garbage_behind_a_segment_that_was_never_written_is_no_damage(writer: Writer) -> None:
    _, stop = writer.block()
    writer.roll()
    writer.roll()
    garble(writer.images[2])
    walk = writer.walk()
    assert walk.end == JournalPosition(1, stop, 1)
    assert walk.next_segment == 2


def test_a_torn_block_behind_a_segment_that_was_never_written_is_damage(writer: Writer) -> None:
    writer.block()
    writer.roll()
    writer.roll()
    start, _ = writer.block(2)
    writer.images[2][start + PAGE_BYTES : start + 2 * PAGE_BYTES] = bytes(PAGE_BYTES)
    with pytest.raises(StorageCorrupt, match="segment 2"):
        writer.walk()


def test_segments_from_the_mark_on_must_all_be_there() -> None:
    mark = ReplayStart(3, 10, is_optional=False, end=JournalPosition(2, 4096, 9))
    assert segments_to_replay([1, 2, 3, 4], mark, "d") == [3, 4]
    for present in ([1, 2], [1, 2, 4], [3, 5]):
        with pytest.raises(StorageCorrupt, match="missing"):
            segments_to_replay(present, mark, "d")


def test_the_segment_of_an_optional_mark_may_be_missing_but_not_one_in_the_middle() -> None:
    mark = ReplayStart(3, 10, is_optional=True, end=JournalPosition(2, 4096, 9))
    assert segments_to_replay([1, 2], mark, "d") == []
    assert segments_to_replay([1, 2, 3], mark, "d") == [3]
    with pytest.raises(StorageCorrupt, match="missing"):
        segments_to_replay([1, 2, 4], mark, "d")


def test_a_start_record_says_where_the_journal_before_it_ends(writer: Writer) -> None:
    end = JournalPosition(7, 8192, 41)
    writer.commit.append(START, encode_start(end))
    writer.block()
    scan = writer.scan()
    image = memoryview(writer.images[0])
    assert start_of(image, scan.blocks[0], "f") == end
    writer.block()
    assert start_of(image, writer.scan().blocks[1], "f") is None


def test_content_that_does_not_parse_is_corruption_with_its_offset() -> None:
    image = memoryview(bytearray(b"\2\0\0\0\xff\0\0\0short"))
    with pytest.raises(StorageCorrupt, match="passes the end"):
        list(decode_records(image, 0, len(image), "f"))
    with pytest.raises(StorageCorrupt, match="less than"):
        list(decode_records(image, 0, 5, "f"))
