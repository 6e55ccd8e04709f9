"""Frames: what is written is read back equal, and every value out of range is refused by name."""

from __future__ import annotations

import contextlib
import itertools
import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import InvalidArgument, WireError
from ledgerlog.limits import ENTRY_ID_MAX, FRAME_BYTES_MAX, FRAME_ENTRIES_MAX, LEDGER_ID_MAX
from ledgerlog.wire.checksum import checksum
from ledgerlog.wire.frame import (
    HEADER,
    HEADER_BYTES,
    RECOVERY,
    REPLY,
    SPARSE,
    Frame,
    FrameBuffer,
    Header,
    Kind,
    Status,
    decode_frame_untrusted,
    decode_pairs_untrusted,
    encode_head,
    encode_pairs,
    index_bytes,
)

PLAIN_KINDS = [kind for kind in Kind if kind is not Kind.ADD] + [
    Kind(kind) | REPLY for kind in Kind if kind is not Kind.READ
]

entry_ids = st.integers(-1, ENTRY_ID_MAX)
fields = st.fixed_dictionaries(
    {
        "flags": st.sampled_from([0, RECOVERY, SPARSE, RECOVERY | SPARSE]),
        "status": st.sampled_from(Status),
        "count": st.integers(0, 2**32 - 1),
        "request": st.integers(0, 2**64 - 1),
        "ledger_id": st.integers(0, LEDGER_ID_MAX),
        "first": entry_ids,
        "last": entry_ids,
        "lac": entry_ids,
        "lafr": entry_ids,
        "argument": st.integers(-(2**63), 2**63 - 1),
        "wait_ms": st.integers(0, 2**32 - 1),
        "key": st.binary(min_size=16, max_size=16),
    }
)


def decode(raw: bytes) -> Frame:
    return decode_frame_untrusted(memoryview(raw))


def with_field(name: str, value: int | bytes, *, body: bytes = b"", kind: int = Kind.INFO) -> bytes:
    """Encode a frame with any header fields and a matching checksum."""
    raw = encode_head(kind, index=body)
    header = Header._make(HEADER.unpack_from(raw))._replace(**{name: value})
    raw = HEADER.pack(*header) + body
    return raw[:4] + struct.pack("<I", checksum(raw[8:])) + raw[8:]


@given(kind=st.sampled_from(PLAIN_KINDS), fields=fields, body=st.binary(max_size=200))
def test_every_field_and_the_body_come_back(kind: int, fields: dict[str, Any], body: bytes) -> None:
    raw = encode_head(kind, index=body, **fields)
    header, view = decode(raw)
    assert bytes(view) == raw
    assert bytes(Frame(header, view).body) == body
    assert header.length == len(raw) - 4
    assert header.kind == kind
    fields["entry_count"] = fields.pop("count")
    assert {name: getattr(header, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("kind", list(PLAIN_KINDS), [0, 12, 0x7F, 0x80, 0x8C, 0xFF]),
        ("flags", [0, 1, 2, 3], [4, 8, 0x80, 0xFF]),
        ("status", list(Status), [max(Status) + 1, 255, 65535]),
        ("entry_count", [0, 1, 2**32 - 1], []),
        ("request", [0, 2**64 - 1], []),
        ("ledger_id", [0, LEDGER_ID_MAX], [-1, -(2**63)]),
        ("first", [-1, 0, ENTRY_ID_MAX], [-2, ENTRY_ID_MAX + 1, -(2**63)]),
        ("last", [-1, 0, ENTRY_ID_MAX], [-2, ENTRY_ID_MAX + 1, -(2**63)]),
        ("lac", [-1, 0, ENTRY_ID_MAX], [-2, ENTRY_ID_MAX + 1, -(2**63)]),
        ("lafr", [-1, 0, ENTRY_ID_MAX], [-2, ENTRY_ID_MAX + 1, -(2**63)]),
        ("argument", [-(2**63), 2**63 - 1], []),
        ("wait_ms", [0, 2**32 - 1], []),
        ("key", [bytes(16), bytes(range(16))], []),
    ],
)
def test_a_header_field_is_taken_within_its_range_only(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert getattr(decode(with_field(name, value)).header, name) == value
    for value in bad:
        with pytest.raises(WireError):
            decode(with_field(name, value))


def test_the_number_of_entries_is_bounded_where_there_are_entries() -> None:
    for kind in (Kind.ADD, Kind.READ | REPLY):
        with pytest.raises(WireError, match="over the limit"):
            decode(with_field("entry_count", FRAME_ENTRIES_MAX + 1, kind=kind))
        with pytest.raises(WireError, match="do not fit a body of 15 bytes"):
            decode(with_field("entry_count", 2, kind=kind, body=bytes(15)))


def test_the_length_says_exactly_what_there_is() -> None:
    raw = encode_head(Kind.INFO, index=b"body")
    for wrong in (raw[:-1], raw + b"x", raw[: HEADER_BYTES - 1], b"", raw[:3]):
        with pytest.raises(WireError):
            decode(wrong)
    assert decode(raw).body == b"body"


@pytest.mark.parametrize("kind", [Kind.INFO, Kind.LIST | REPLY, Kind.ADD | REPLY, Kind.HELLO])
def test_every_flipped_bit_of_a_frame_without_entries_is_noticed(kind: int) -> None:
    raw = encode_head(kind, request=5, ledger_id=9, lac=3, index=b"0123456789")
    for at, bit in itertools.product(range(len(raw)), range(8)):
        flipped = bytearray(raw)
        flipped[at] ^= 1 << bit
        with pytest.raises(WireError):
            decode(bytes(flipped))


def test_a_frame_over_the_limit_is_never_made() -> None:
    most = FRAME_BYTES_MAX - (HEADER_BYTES - 4)
    encode_head(Kind.ADD, payload_bytes=most)
    with pytest.raises(AssertionError):
        encode_head(Kind.ADD, payload_bytes=most + 1)


def test_what_the_checksum_covers_depends_on_the_kind() -> None:
    assert index_bytes(Kind.ADD, 0, 3, 1000) == 24
    assert index_bytes(Kind.ADD, SPARSE, 3, 1000) == 36
    assert index_bytes(Kind.READ | REPLY, SPARSE, 3, 1000) == 36
    assert index_bytes(Kind.READ, 0, 3, 1000) == 1000
    assert index_bytes(Kind.ADD | REPLY, 0, 3, 1000) == 1000


@given(st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_a_wire_error(raw: bytes) -> None:
    with contextlib.suppress(WireError):
        decode(raw)


# --- cutting a stream -----------------------------------------------------------------------------


def feed(buffer: FrameBuffer, chunks: list[bytes]) -> list[bytes]:
    taken = []
    for chunk in chunks:
        while chunk:
            room = buffer.writable()
            count = min(len(room), len(chunk))
            assert count > 0
            room[:count] = chunk[:count]
            buffer.received(count)
            chunk = chunk[count:]
            taken += [bytes(frame.raw) for frame in buffer.take_frames()]
    return taken


@given(
    bodies=st.lists(st.integers(0, 5000), max_size=12),
    cuts=st.lists(st.integers(1, 3000), min_size=1, max_size=30),
    initial=st.sampled_from([96, 100, 257, 4096]),
)
def test_frames_come_out_whole_and_in_order_however_the_stream_is_cut(
    bodies: list[int], cuts: list[int], initial: int
) -> None:
    frames = [encode_head(Kind.INFO, request=n, index=bytes(size)) for n, size in enumerate(bodies)]
    stream = b"".join(frames)
    chunks = []
    for size in itertools.cycle(cuts):
        if not stream:
            break
        chunks.append(stream[:size])
        stream = stream[size:]
    buffer = FrameBuffer(initial)
    assert feed(buffer, chunks) == frames
    assert not buffer.is_mid_frame
    assert buffer.unfinished_bytes == 0


def test_a_byte_at_a_time_is_mid_frame_until_the_last() -> None:
    raw = encode_head(Kind.INFO, index=b"abc")
    buffer = FrameBuffer(128)
    for at in range(len(raw)):
        assert buffer.is_mid_frame == (at > 0)
        taken = feed(buffer, [raw[at : at + 1]])
        assert taken == ([raw] if at == len(raw) - 1 else [])
    assert not buffer.is_mid_frame


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 5, FRAME_BYTES_MAX + 1, 2**32 - 1])
def test_a_length_out_of_range_is_refused_before_anything_is_buffered_for_it(length: int) -> None:
    buffer = FrameBuffer(4096)
    with pytest.raises(WireError, match="out of range"):
        feed(buffer, [struct.pack("<I", length)])
    assert buffer.capacity == 4096


def test_a_frame_of_the_largest_size_passes_and_its_memory_is_given_back() -> None:
    raw = encode_head(Kind.INFO, index=bytes(FRAME_BYTES_MAX - (HEADER_BYTES - 4)))
    buffer = FrameBuffer(4096)
    capacities = []
    for at in range(0, len(raw), 65536):
        assert bool(feed(buffer, [raw[at : at + 65536]])) == (at + 65536 >= len(raw))
        capacities.append((buffer.capacity, at))
    assert all(capacity <= 2 * max(at + 65536, 4096) + 4 * 4096 for capacity, at in capacities)
    assert feed(buffer, [encode_head(Kind.INFO)]) == [encode_head(Kind.INFO)]
    assert buffer.capacity <= 4 * 4096


def test_random_streams_end_in_frames_or_a_wire_error() -> None:
    rng = random.Random(4)
    for _ in range(300):
        buffer = FrameBuffer(256)
        stream = b"".join(
            encode_head(rng.choice(PLAIN_KINDS), index=rng.randbytes(rng.randrange(40)))
            for _ in range(rng.randrange(4))
        ) + rng.randbytes(rng.randrange(200))
        try:
            feed(buffer, [stream[at : at + 50] for at in range(0, len(stream), 50)])
        except WireError:
            continue


# --- ranges of a LIST reply -----------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**6), max_size=40, unique=True).map(sorted))
def test_ranges_come_back(bounds: list[int]) -> None:
    pairs = list(zip(bounds[::2], bounds[1::2], strict=False))
    pairs = [pair for pair in pairs if pair[0] <= pair[1]]
    assert decode_pairs_untrusted(memoryview(encode_pairs(pairs))) == pairs


@pytest.mark.parametrize(
    "pairs",
    [
        [(1, 0)],
        [(-1, 0)],
        [(0, 5), (5, 6)],
        [(3, 4), (1, 2)],
        [(0, ENTRY_ID_MAX + 1)],
    ],
    ids=itertools.count(),
)
def test_ranges_that_do_not_grow_are_neither_written_nor_read(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidArgument):
        encode_pairs(pairs)
    with pytest.raises(WireError):
        decode_pairs_untrusted(memoryview(b"".join(struct.pack("<qq", *pair) for pair in pairs)))


def test_a_part_of_a_range_is_refused() -> None:
    with pytest.raises(WireError):
        decode_pairs_untrusted(memoryview(bytes(15)))
