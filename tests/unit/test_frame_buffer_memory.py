"""A frame buffer's memory follows the bytes that arrive: little for an idle peer, more for a busy one."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from ledgerlog.errors import WireError
from ledgerlog.limits import FRAME_BYTES_MAX, MIB, TURN_BYTES
from ledgerlog.wire.frame import Frame, FrameBuffer, Kind, SpareBuffers, encode_head

SMALL, ROOMY = 16 * 1024, 256 * 1024


def feed(buffer: FrameBuffer, data: bytes, step: int) -> list[bytes]:
    """Receive all of ``data``, at most ``step`` bytes at a time. Return the frames."""
    frames = []
    position = 0
    while position < len(data):
        large = buffer.unfinished_bytes > ROOMY
        room = buffer.writable()
        assert len(room) > 0
        assert buffer.capacity <= (2 * FRAME_BYTES_MAX + ROOMY if large else ROOMY)
        count = min(len(room), step, len(data) - position)
        room[:count] = data[position : position + count]
        position += count
        buffer.received(count)
        frames += [bytes(frame.raw) for frame in buffer.take_frames()]
    return frames


def large_frame(number: int) -> bytes:
    return encode_head(Kind.INFO, index=bytes([number]) * 600_000)


def receive_one(buffer: FrameBuffer, data: bytes) -> Frame:
    """Receive one frame. Return it as it was taken, not copied."""
    position = 0
    while position < len(data):
        room = buffer.writable()
        count = min(len(room), len(data) - position)
        room[:count] = data[position : position + count]
        buffer.received(count)
        position += count
    (frame,) = buffer.take_frames()
    return frame


def test_frames_come_out_whole_however_they_are_cut_and_whatever_their_sizes() -> None:
    for seed in range(60):
        random_ = random.Random(seed)
        sizes = [
            random_.choice([0, 10, 1_000, 20_000, 300_000, 700_000]) for _ in range(random_.randint(1, 20))
        ]
        frames = [encode_head(Kind.INFO, index=random_.randbytes(size)) for size in sizes]
        step = random_.choice([50, 1_000, 70_000, 10**7])
        assert feed(FrameBuffer(SMALL, ROOMY), b"".join(frames), step) == frames


def test_a_buffer_stays_small_for_a_peer_that_sends_little() -> None:
    buffer = FrameBuffer(SMALL, ROOMY)
    for _ in range(1_000):
        feed(buffer, encode_head(Kind.INFO), 10**7)
    assert buffer.capacity == SMALL


def test_a_buffer_grows_to_its_roomy_size_and_no_further_when_more_is_always_waiting() -> None:
    buffer = FrameBuffer(SMALL, ROOMY)
    feed(buffer, encode_head(Kind.INFO) * 20_000, 10**7)
    assert buffer.capacity == ROOMY


def test_a_buffer_grows_if_receives_never_quite_fill_it() -> None:
    buffer = FrameBuffer(SMALL, ROOMY)
    frames = encode_head(Kind.INFO) * 10_000
    position = 0
    while position < len(frames):
        room = buffer.writable()
        count = min(len(room) - 1, len(frames) - position)  # As over TLS, where a receive ends with a record.
        room[:count] = frames[position : position + count]
        buffer.received(count)
        buffer.take_frames()
        position += count
    assert buffer.capacity >= 2 * TURN_BYTES


def test_a_large_frame_gives_its_memory_back_when_it_is_over() -> None:
    buffer = FrameBuffer(SMALL, ROOMY)
    feed(buffer, encode_head(Kind.INFO, index=bytes(3_000_000)), 10**7)
    feed(buffer, encode_head(Kind.INFO), 10**7)
    assert buffer.capacity == ROOMY


def test_a_length_that_is_announced_costs_nothing_until_its_bytes_arrive() -> None:
    buffer = FrameBuffer(SMALL, ROOMY)
    feed(buffer, encode_head(Kind.INFO, index=bytes(4_000_000))[:1_000], 10**7)
    assert buffer.unfinished_bytes > 4_000_000
    buffer.writable()
    assert buffer.capacity == SMALL


def test_frames_come_out_whole_from_buffers_that_are_lent() -> None:
    spares = SpareBuffers(8 * MIB)
    buffers = [FrameBuffer(SMALL, ROOMY, spares) for _ in range(3)]
    random_ = random.Random(1)
    for _ in range(100):
        sizes = [random_.choice([10, 1_000, 100_000, 300_000, 700_000, 1_500_000]) for _ in range(3)]
        frames = [encode_head(Kind.INFO, index=random_.randbytes(size)) for size in sizes]
        step = random_.choice([1_000, 70_000, 10**7])
        assert feed(random_.choice(buffers), b"".join(frames), step) == frames
        assert spares.bytes_held <= 8 * MIB


def test_large_frames_use_the_same_memory_again() -> None:
    spares = SpareBuffers(8 * MIB)
    buffers = [FrameBuffer(SMALL, ROOMY, spares) for _ in range(2)]
    large = encode_head(Kind.INFO, index=bytes(600_000))

    def exchange() -> None:
        for buffer in buffers:
            receive_one(buffer, large)
            buffer.writable()
            assert buffer.capacity == ROOMY

    for _ in range(3):
        exchange()
    tracemalloc.start()
    try:
        exchange()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Decoding copies the part under the frame's checksum, twice at most. No buffer is made.
    assert peak < 2 * len(large), "the memory of large frames is mapped again for each of them"
    assert spares.bytes_held < 2 * MIB


def test_a_large_frame_stays_whole_until_its_connection_receives_again() -> None:
    spares = SpareBuffers(8 * MIB)
    buffers = [FrameBuffer(SMALL, ROOMY, spares) for _ in range(3)]
    for round_ in range(3):
        # Each connection has taken a frame, and none of them has received again.
        sent = [large_frame(16 * round_ + number) for number in range(len(buffers))]
        taken = [receive_one(buffer, data) for buffer, data in zip(buffers, sent, strict=True)]
        for frame, data in zip(taken, sent, strict=True):
            assert bytes(frame.raw) == data, "another connection received into its memory"
        for buffer in buffers:
            buffer.writable()


def test_a_frame_is_dead_once_its_connection_receives_again() -> None:
    spares = SpareBuffers(8 * MIB)
    one, other = (FrameBuffer(SMALL, ROOMY, spares) for _ in range(2))
    frame = receive_one(one, large_frame(1))
    one.writable()
    receive_one(other, large_frame(2))
    assert bytes(frame.raw) == large_frame(2), "its memory belongs to another connection now"


def test_spare_buffers_are_bounded_and_the_largest_are_kept() -> None:
    spares = SpareBuffers(1_000)
    for size in (400, 300, 500):
        spares.give(bytearray(size))
    assert spares.bytes_held == 900
    assert spares.take(501) is None
    assert len(spares.take(401) or b"") == 500
    assert len(spares.take(1) or b"") == 400
    assert spares.take(1) is None
    spares.give(bytearray(1_001))
    assert spares.bytes_held == 0


def test_frames_can_be_counted_before_they_are_taken_and_taken_a_few_at_a_time() -> None:
    buffer = FrameBuffer(SMALL, ROOMY)
    frames = [encode_head(Kind.INFO, index=bytes(size)) for size in (0, 10, 20, 30)]
    data = b"".join(frames)
    buffer.writable()[: len(data) - 1] = data[:-1]
    buffer.received(len(data) - 1)
    assert buffer.has_frame
    assert buffer.count_frames(10) == (3, sum(map(len, frames[:3])))
    assert buffer.count_frames(2) == (2, sum(map(len, frames[:2])))
    assert [bytes(frame.raw) for frame in buffer.take_frames(2)] == frames[:2]
    assert [bytes(frame.raw) for frame in buffer.take_frames(2)] == frames[2:3]
    assert not buffer.has_frame
    assert buffer.count_frames(10) == (0, 0)
    assert buffer.is_mid_frame


def test_a_malformed_length_is_found_as_soon_as_it_is_there() -> None:
    for length in (0, FRAME_BYTES_MAX + 1):
        buffer = FrameBuffer(SMALL, ROOMY)
        buffer.writable()[:4] = length.to_bytes(4, "little")
        buffer.received(4)
        assert buffer.has_frame
        with pytest.raises(WireError, match="frame length"):
            buffer.take_frames(1)
