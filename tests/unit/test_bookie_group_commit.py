"""Group commit: which records go into which block, and when they are durable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.block import PAGE_BYTES, block_damage, content_capacity, decode_header
from bookie.core.journal import ClosedBlock, GroupCommit, SegmentImage
from bookie.core.journal_items import ADD, RECORD_HEAD_BYTES, decode_records
from bookie.core.segment import SEGMENT_HEADER_BYTES

NONCE = b"n" * 16


def image(number: int, pages: int = 16) -> SegmentImage:
    return SegmentImage(number, NONCE, memoryview(bytearray(pages * PAGE_BYTES)))


def write(commit: GroupCommit) -> ClosedBlock | None:
    block = commit.take_block()
    if block is not None:
        header = decode_header(block.view, nonce=NONCE, segment=block.image.number)
        assert header is not None
        assert block_damage(block.view, header, nonce=NONCE) is None
        assert header.sequence == block.sequence
        commit.on_written(block)
    return block


def bodies(block: ClosedBlock) -> list[bytes]:
    view = block.image.view
    start = block.offset + 64
    return [bytes(record.body) for record in decode_records(view, start, start + block.content_bytes, "f")]


def test_what_gathers_before_a_write_becomes_one_block() -> None:
    commit = GroupCommit(durable=5, image=image(1))
    for body in (b"a", b"bb", b"ccc"):
        assert commit.append(ADD, body) is not None
        assert commit.sequence == 6
    block = write(commit)
    assert block is not None
    assert bodies(block) == [b"a", b"bb", b"ccc"]
    assert commit.durable == 6
    assert write(commit) is None


def test_what_arrives_during_a_write_belongs_to_the_next_block() -> None:
    commit = GroupCommit(durable=0, image=image(1))
    commit.append(ADD, b"first")
    block = commit.take_block()
    assert block is not None
    commit.append(ADD, b"second")
    assert commit.sequence == 2
    assert commit.pending_bytes == 5 + 6 + 2 * RECORD_HEAD_BYTES
    commit.on_written(block)
    assert commit.durable == 1
    assert commit.newest == 2
    following = write(commit)
    assert following is not None
    assert bodies(following) == [b"second"]
    assert commit.pending_bytes == 0


def test_nothing_is_durable_before_its_write_returned() -> None:
    commit = GroupCommit(durable=0, image=image(1))
    commit.append(ADD, b"x")
    assert commit.durable < commit.newest
    block = commit.take_block()
    assert block is not None
    assert commit.durable < commit.newest


def test_only_one_block_is_given_out_at_a_time() -> None:
    commit = GroupCommit(durable=0, image=image(1))
    commit.append(ADD, b"x")
    commit.take_block()
    commit.append(ADD, b"y")
    with pytest.raises(AssertionError):
        commit.take_block()


def test_the_offset_is_where_the_body_lies_in_the_segment() -> None:
    segment = image(1)
    commit = GroupCommit(durable=0, image=segment)
    for body in (b"one", b"second", b"3"):
        at = commit.append(ADD, body)
        assert at is not None
        assert bytes(segment.view[at : at + len(body)]) == body


def test_a_group_ends_at_its_bound_and_a_larger_record_is_a_group_of_its_own() -> None:
    commit = GroupCommit(durable=0, image=image(1), group_bytes_max=1000)
    for size in (400, 400, 400, 5000, 10):
        assert commit.append(ADD, bytes(size)) is not None
    blocks = []
    while (block := write(commit)) is not None:
        blocks.append([len(body) for body in bodies(block)])
    assert blocks == [[400, 400], [400], [5000], [10]]


def test_a_record_that_does_not_fit_the_segment_goes_to_the_next() -> None:
    commit = GroupCommit(durable=0, image=image(1, pages=4))
    assert commit.append(ADD, bytes(5000)) is not None
    assert commit.append(ADD, bytes(5000)) is None, "there is no next segment yet"
    assert commit.image.number == 1
    commit.offer_segment(image(2, pages=4))
    assert commit.append(ADD, bytes(5000)) is not None
    assert commit.image.number == 2
    assert not commit.has_next
    first, second = write(commit), write(commit)
    assert first is not None
    assert second is not None
    assert (first.image.number, first.sequence) == (1, 1)
    assert (second.image.number, second.sequence, second.offset) == (2, 2, SEGMENT_HEADER_BYTES)


def test_a_refused_record_changes_nothing() -> None:
    commit = GroupCommit(durable=0, image=image(1, pages=4))
    commit.append(ADD, b"kept")
    before = (commit.sequence, commit.pending_bytes, commit.newest, commit.room)
    assert commit.append(ADD, bytes(100_000)) is None
    commit.offer_segment(image(2, pages=4))
    assert commit.append(ADD, bytes(100_000)) is None
    assert (commit.sequence, commit.pending_bytes, commit.newest, commit.room) == before
    assert commit.image.number == 1
    block = write(commit)
    assert block is not None
    assert bodies(block) == [b"kept"]


def test_there_is_always_room_for_the_close_record() -> None:
    commit = GroupCommit(durable=0, image=image(1, pages=4))
    while commit.append(ADD, bytes(1000)) is not None:
        pass
    while commit.append(ADD, b"") is not None:
        pass
    while write(commit) is not None:
        pass
    while commit.append(ADD, b"") is not None:
        write(commit)
    commit.append_close()
    block = write(commit)
    assert block is not None
    assert block.offset + len(block.view) <= block.image.size
    assert commit.durable == commit.newest


@given(st.lists(st.integers(0, 9000), max_size=8), st.integers(1, 20_000))
def test_a_record_of_the_size_of_the_room_fits(sizes: list[int], group_bytes_max: int) -> None:
    commit = GroupCommit(durable=0, image=image(1), group_bytes_max=group_bytes_max)
    assert commit.room == content_capacity(14) - RECORD_HEAD_BYTES
    for size in sizes:
        commit.append(ADD, bytes(size))
    room = commit.room
    if room >= 0:
        assert commit.append(ADD, bytes(room)) is not None


@given(
    st.lists(st.one_of(st.integers(0, 9000), st.just(None)), max_size=60),
    st.integers(1, 20_000),
)
def test_every_record_is_written_once_in_order_and_inside_its_segment(
    steps: list[int | None], group_bytes_max: int
) -> None:
    """A step is the size of a record to append, or None: write a block."""
    commit = GroupCommit(durable=0, image=image(1), group_bytes_max=group_bytes_max)
    commit.offer_segment(image(2))
    appended: list[tuple[bytes, int]] = []
    written: list[tuple[bytes, int]] = []

    def write_one() -> bool:
        block = write(commit)
        if block is None:
            return False
        assert block.offset % PAGE_BYTES == 0
        assert block.offset >= SEGMENT_HEADER_BYTES
        assert block.offset + len(block.view) <= block.image.size - PAGE_BYTES
        found = bodies(block)
        assert len(found) == 1 or block.content_bytes <= group_bytes_max
        written.extend((body, block.sequence) for body in found)
        return True

    for number, step in enumerate(steps):
        if step is None:
            write_one()
            continue
        body = number.to_bytes(2, "little") + bytes(step)
        if commit.append(ADD, body) is None:
            assert not commit.has_next
        else:
            appended.append((body, commit.sequence))
        if not commit.has_next:
            commit.offer_segment(image(commit.image.number + 1))
    while write_one():
        pass
    assert written == appended
    assert commit.pending_bytes == 0
    assert commit.durable == commit.newest
