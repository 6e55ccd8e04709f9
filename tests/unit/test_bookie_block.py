"""Blocks: written content comes back, and any other content is recognized as torn or rotten."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from bookie.core import block
from bookie.core.block import (
    BLOCK_HEADER_BYTES,
    PAGE_BYTES,
    SECTOR_BYTES,
    BlockDamage,
    BlockHeader,
    block_damage,
    content_capacity,
    decode_header,
    finish_block,
    first_nonzero,
    header_damage,
    pages_of,
)

NONCE = bytes(range(16))
SEGMENT = 9
SEQUENCE = 77


def make(content: bytes, *, dirt: int = 0x5C) -> bytearray:
    """Build a block in memory that held something else before."""
    view = bytearray([dirt]) * (pages_of(len(content)) * PAGE_BYTES)
    view[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + len(content)] = content
    size = finish_block(
        memoryview(view),
        nonce=NONCE,
        segment=SEGMENT,
        sequence=SEQUENCE,
        content_bytes=len(content),
        records=1,
    )
    assert size == len(view)
    return view


def judge(block: bytes | bytearray) -> BlockDamage | BlockHeader:
    view = memoryview(block)
    header = decode_header(view, nonce=NONCE, segment=SEGMENT)
    if header is None:
        return header_damage(view)
    return block_damage(view, header, nonce=NONCE) or header


contents = st.one_of(
    st.binary(max_size=300),
    st.integers(1, 3 * PAGE_BYTES).map(bytes),
    st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 400)).map(lambda p: p[0] * p[1]),
    st.tuples(st.integers(0, 5000), st.integers(0, 5000)).map(lambda p: b"a" * p[0] + bytes(p[1]) + b"z"),
)


@given(contents)
def test_a_finished_block_is_valid_and_holds_its_content(content: bytes) -> None:
    block = make(content)
    header = judge(block)
    assert isinstance(header, BlockHeader)
    assert (header.segment, header.sequence, header.records) == (SEGMENT, SEQUENCE, 1)
    assert header.content_bytes == len(content)
    assert block[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + len(content)] == content


@given(contents)
def test_the_former_content_of_the_memory_does_not_show_in_a_block(content: bytes) -> None:
    assert make(content, dirt=0) == make(content, dirt=0xFF)


@given(contents, st.data())
def test_a_block_of_which_any_sectors_were_not_written_is_torn(content: bytes, data: st.DataObject) -> None:
    block = make(content)
    sectors = range(len(block) // SECTOR_BYTES)
    lost = data.draw(st.sets(st.sampled_from(list(sectors)), min_size=1))
    for sector in lost:
        block[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES] = bytes(SECTOR_BYTES)
    if block == make(content):
        assert isinstance(judge(block), BlockHeader)  # Only sectors that are zeros by right were "lost".
    else:
        assert judge(block) is BlockDamage.TORN


@given(contents, st.data())
def test_a_changed_byte_is_rot_wherever_it_is(content: bytes, data: st.DataObject) -> None:
    block = make(content)
    at = data.draw(st.integers(0, len(block) - 1))
    # If a sector has only one byte that is not zero, that byte must not become zero: the block would look
    # torn.
    block[at] ^= data.draw(st.integers(1, 255).filter(lambda flip: block[at] ^ flip != 0))
    assert judge(block) is BlockDamage.ROTTEN


def test_every_single_byte_flip_of_a_small_block_is_rot() -> None:
    block = make(b"record " * 100 + bytes(1024) + b"!")
    for at in range(len(block)):
        block[at] ^= 0xFF
        if block[at]:
            assert judge(block) is BlockDamage.ROTTEN, at
        block[at] ^= 0xFF
    assert isinstance(judge(block), BlockHeader)


def test_a_block_is_not_valid_under_another_nonce_or_segment() -> None:
    view = memoryview(make(b"content"))
    assert decode_header(view, nonce=bytes(16), segment=SEGMENT) is None
    assert decode_header(view, nonce=NONCE, segment=SEGMENT + 1) is None


def test_a_lone_small_record_makes_a_block_of_one_page() -> None:
    assert pages_of(300) == 1
    assert len(make(bytes(content_capacity(1)))) == PAGE_BYTES
    assert pages_of(content_capacity(1) + 1) == 2


@given(st.integers(0, 10**7))
def test_capacity_is_the_inverse_of_size(content_bytes: int) -> None:
    pages = pages_of(content_bytes)
    assert content_capacity(pages) >= content_bytes > content_capacity(pages - 1)


@given(st.integers(0, 200_000), st.integers(0, 200_000), st.integers(0, 200_000))
def test_the_first_byte_that_is_not_zero_is_found(size: int, at: int, start: int) -> None:
    data = bytearray(size)
    expected = None
    if at < size:
        data[at] = 1
        expected = at if at >= start else None
    assert first_nonzero(memoryview(data), start, size) == expected


def test_closing_a_block_takes_no_memory_in_proportion_to_it() -> None:
    content = bytes(range(1, 256)) * 4_096
    make(content)
    view = memoryview(bytearray(pages_of(len(content)) * PAGE_BYTES))
    tracemalloc.start()
    try:
        finish_block(
            view, nonce=NONCE, segment=SEGMENT, sequence=SEQUENCE, content_bytes=len(content), records=1
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(content) // 8


@given(
    st.lists(st.sampled_from(("zeros", "first", "last")), max_size=40), st.integers(0, 10), st.integers(0, 40)
)
def test_the_sectors_of_zeros_are_found(kinds: list[str], start: int, stop: int) -> None:
    """In whole pages of them, too, and where a page ends after ``stop``."""
    sectors = {"zeros": bytes(512), "first": b"x" + bytes(511), "last": bytes(511) + b"x"}
    data = memoryview(b"".join(sectors[kind] for kind in kinds) + bytes(-len(kinds) % 8 * 512))
    stop = min(stop * 512 + 100, len(data))
    found = list(block._zero_sectors(data, start * 512, stop))
    assert found == [at for at in range(start, stop // 512) if not any(data[at * 512 : (at + 1) * 512])]
