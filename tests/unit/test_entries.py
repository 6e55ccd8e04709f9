"""The entries of a frame: round trips, digests, and every kind of damage is noticed."""

from __future__ import annotations

import contextlib
import itertools
import random
import tracemalloc
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import WireError
from ledgerlog.limits import ENTRY_BYTES_MAX, ENTRY_ID_MAX, FRAME_ENTRIES_MAX, LEDGER_ID_MAX
from ledgerlog.wire.checksum import checksum, entry_digest, entry_digests, u32_array, u32_bytes
from ledgerlog.wire.entries import (
    Entries,
    compact_ids,
    decode_entries_untrusted,
    encode_add,
    encode_lac,
)
from ledgerlog.wire.frame import (
    HEADER_BYTES,
    RECOVERY,
    REPLY,
    SPARSE,
    Kind,
    decode_frame_untrusted,
    encode_head,
)

KEY = bytes(range(16))

payload_lists = st.one_of(
    st.lists(st.binary(max_size=30), min_size=1, max_size=20),
    st.integers(0, 40).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=20)
    ),
)


def add(entries: Entries, **fields: object) -> bytes:
    options = {"lac": 5, "lafr": 4, "key": KEY, "recovery": False, **fields}
    return b"".join(map(bytes, encode_add(entries, **options)))


def decode(raw: bytes) -> Entries:
    return decode_entries_untrusted(decode_frame_untrusted(memoryview(raw)))


def forge(
    *,
    count: int,
    first: int,
    last: int,
    lengths: Sequence[int],
    payload: bytes,
    offsets: Sequence[int] | None = None,
) -> bytes:
    """Encode a frame with any claims and a matching checksum."""
    index = u32_bytes(array("I", lengths)) + bytes(4 * count)
    if offsets is not None:
        index += u32_bytes(array("I", offsets))
    return (
        encode_head(
            Kind.ADD,
            flags=0 if offsets is None else SPARSE,
            count=count,
            first=first,
            last=last,
            index=index,
            payload_bytes=len(payload),
        )
        + payload
    )


@given(
    ledger_id=st.integers(0, LEDGER_ID_MAX),
    first=st.one_of(
        st.integers(0, 1000), st.integers(2**32 - 10, 2**32 + 10), st.integers(0, ENTRY_ID_MAX - 30)
    ),
    payloads=payload_lists,
    recovery=st.booleans(),
)
def test_an_add_comes_back(ledger_id: int, first: int, payloads: list[bytes], recovery: bool) -> None:
    raw = add(Entries.build(ledger_id, first, payloads), recovery=recovery)
    frame = decode_frame_untrusted(memoryview(raw))
    assert (frame.header.kind, frame.header.flags) == (Kind.ADD, RECOVERY if recovery else 0)
    assert (frame.header.lac, frame.header.lafr, frame.header.key) == (5, 4, KEY)
    entries = decode_entries_untrusted(frame)
    assert entries.ledger_id == ledger_id
    assert entries.ids == range(first, first + len(payloads))
    assert (entries.first, entries.last, len(entries)) == (first, first + len(payloads) - 1, len(payloads))
    assert entries.payloads() == payloads
    assert entries.first_damaged() is None
    assert list(entries.digests) == [
        entry_digest(ledger_id, first + index, payload) for index, payload in enumerate(payloads)
    ]


@given(
    payloads=payload_lists,
    keep=st.lists(st.booleans(), min_size=20, max_size=20),
    first=st.integers(0, ENTRY_ID_MAX - 30),
)
def test_selected_entries_keep_ids_and_digests_consecutive_or_not(
    payloads: list[bytes], keep: list[bool], first: int
) -> None:
    wanted = [index for index in range(len(payloads)) if keep[index]]
    if not wanted:
        return
    selected = Entries.build(3, first, payloads).select(wanted)
    is_consecutive = wanted[-1] - wanted[0] == len(wanted) - 1
    assert selected.flags == (0 if is_consecutive else SPARSE)
    entries = decode(add(selected))
    assert list(entries.ids) == [first + index for index in wanted]
    assert entries.payloads() == [payloads[index] for index in wanted]
    assert entries.first_damaged() is None
    assert isinstance(entries.ids, range) == is_consecutive


def test_ids_are_a_range_exactly_where_they_are_consecutive() -> None:
    assert compact_ids([4, 5, 6]) == range(4, 7)
    assert compact_ids([4]) == range(4, 5)
    assert compact_ids([4, 6]) == [4, 6]
    assert compact_ids([]) == []


def test_a_frame_that_only_tells_the_lac_has_no_entries() -> None:
    (raw,) = encode_lac(9, lac=41, lafr=40, key=KEY)
    frame = decode_frame_untrusted(memoryview(raw))
    assert (frame.header.lac, frame.header.lafr, frame.header.key) == (41, 40, KEY)
    entries = decode_entries_untrusted(frame)
    assert len(entries) == 0
    assert entries.payloads() == []
    assert entries.first_damaged() is None


SHAPES = {
    "one size": Entries.build(7, 100, [b"abcdef", b"ghijkl", b"mnopqr"]),
    "sizes": Entries.build(7, 100, [b"a", b"", b"bcdefgh"]),
    "sparse": Entries.build(7, 100, [b"ab", b"cd", b"ef", b"gh"]).select([0, 1, 3]),
    "one": Entries.build(7, 0, [b"lonely"]),
    "empty payload": Entries.build(7, 0, [b""]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_flipped_bit_of_an_add_is_noticed(shape: str) -> None:
    raw = add(SHAPES[shape])
    assert decode(raw).first_damaged() is None
    for at, bit in itertools.product(range(len(raw)), range(8)):
        flipped = bytearray(raw)
        flipped[at] ^= 1 << bit
        try:
            damaged = decode(bytes(flipped)).first_damaged()
        except WireError:
            continue
        assert damaged is not None, f"bit {bit} of byte {at}"
        assert at >= len(raw) - len(SHAPES[shape].payload), "only payloads are left to the entries' digests"


def test_damage_names_the_first_entry_that_it_hit() -> None:
    entries = Entries.build(7, 100, [b"aaaa", b"bbbb", b"cccc"])
    raw = bytearray(add(entries))
    raw[-1] ^= 1
    assert decode(bytes(raw)).first_damaged() == 102
    raw[-5] ^= 1
    assert decode(bytes(raw)).first_damaged() == 101


@given(
    ledger_id=st.integers(0, 2**40),
    entry_id=st.integers(0, 2**40),
    other=st.integers(1, 2**32 - 1),
    payload=st.binary(max_size=20),
)
def test_one_payload_under_two_entry_ids_never_has_one_digest(
    ledger_id: int, entry_id: int, other: int, payload: bytes
) -> None:
    assert entry_digest(ledger_id, entry_id, payload) != entry_digest(
        ledger_id, entry_id + other, payload
    ) or (
        # The upper half of the id counts too. So two ids this far apart may collide; closer ids never do.
        (entry_id + other) >> 32 != entry_id >> 32
    )


def test_a_payload_of_another_ledger_is_noticed() -> None:
    entries = Entries.build(7, 5, [b"payload"])
    moved = Entries(8, entries.ids, entries.lengths, entries.digests, entries.payload)
    assert moved.first_damaged() == 5


@given(
    first=st.integers(2**32 - 50, 2**32 + 50),
    payloads=st.lists(st.binary(max_size=5), min_size=1, max_size=90),
)
def test_digests_of_many_are_those_of_each(first: int, payloads: list[bytes]) -> None:
    lengths, payload = array("I", map(len, payloads)), b"".join(payloads)
    for ledger_id in (0, 1, 77, LEDGER_ID_MAX):
        ids = range(first, first + len(payloads))
        each = [entry_digest(ledger_id, e, p) for e, p in zip(ids, payloads, strict=True)]
        for some_ids in (ids, list(ids)):
            assert list(entry_digests(ledger_id, some_ids, payload, lengths)) == each
            assert list(entry_digests(ledger_id, some_ids, payload, lengths, payloads)) == each
    assert list(entry_digests(1, range(0), b"", array("I"))) == []


def test_digests_need_a_length_for_each_entry() -> None:
    for ids in (range(5, 8), [5, 7], range(0)):
        with pytest.raises(ValueError, match=f"1 payloads for {len(ids)} entries"):
            entry_digests(1, ids, b"abc", array("I", [3]))


def test_digests_survive_the_wrap_of_their_seed() -> None:
    # Choose a ledger whose seed is near the maximum, so a range of entries passes it.
    ledger_id = max(range(200_000), key=lambda n: checksum(n.to_bytes(8, "little")))
    base = checksum(ledger_id.to_bytes(8, "little"))
    first = 2**32 - base - 3
    payloads = [b"the same"] * 8
    each = [entry_digest(ledger_id, first + n, payload) for n, payload in enumerate(payloads)]
    lengths = array("I", [8]) * 8
    assert list(entry_digests(ledger_id, range(first, first + 8), b"".join(payloads), lengths)) == each
    assert len(set(each)) == 8


# --- what does not agree with itself --------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (forge(count=2, first=0, last=1, lengths=[3, 4], payload=bytes(6)), "lengths add up to 7"),
        (forge(count=2, first=0, last=1, lengths=[3, 4], payload=bytes(8)), "lengths add up to 7"),
        (forge(count=2, first=0, last=2, lengths=[1, 1], payload=bytes(2)), "says that its last is 2"),
        (forge(count=2, first=-1, last=0, lengths=[1, 1], payload=bytes(2)), "entry id -1"),
        (forge(count=1, first=0, last=0, lengths=[ENTRY_BYTES_MAX + 1], payload=b""), "lengths add up"),
        (
            forge(
                count=1, first=0, last=0, lengths=[ENTRY_BYTES_MAX + 1], payload=bytes(ENTRY_BYTES_MAX + 1)
            ),
            "over the limit",
        ),
        (forge(count=2, first=5, last=6, lengths=[0, 0], payload=b"", offsets=[1, 2]), "do not grow"),
        (forge(count=2, first=5, last=5, lengths=[0, 0], payload=b"", offsets=[0, 0]), "do not grow"),
        (forge(count=3, first=5, last=6, lengths=[0] * 3, payload=b"", offsets=[0, 2, 1]), "do not grow"),
        (forge(count=2, first=5, last=9, lengths=[0, 0], payload=b"", offsets=[0, 3]), "says that its last"),
        (forge(count=0, first=0, last=-1, lengths=[], payload=b"x"), "has payload bytes"),
        (
            forge(count=2, first=ENTRY_ID_MAX, last=ENTRY_ID_MAX, lengths=[0, 0], payload=b""),
            "says that its last",
        ),
    ],
    ids=itertools.count(),
)
def test_frames_that_contradict_themselves_are_refused(raw: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        decode(raw)


def test_entries_of_the_largest_number_and_size_pass() -> None:
    many = Entries.build(1, 0, [b""] * FRAME_ENTRIES_MAX)
    assert len(decode(add(many))) == FRAME_ENTRIES_MAX
    large = Entries.build(1, 0, [bytes(ENTRY_BYTES_MAX)])
    assert decode(add(large)).first_damaged() is None
    odd = Entries.build(1, 0, [b""] * FRAME_ENTRIES_MAX).select(range(0, FRAME_ENTRIES_MAX, 2))
    assert decode(add(odd)).last == FRAME_ENTRIES_MAX - 2


def test_random_damage_of_any_size_is_a_wire_error_or_a_damaged_entry() -> None:
    rng = random.Random(9)
    raw = add(Entries.build(7, 100, [rng.randbytes(rng.randrange(30)) for _ in range(10)]))
    for _ in range(2000):
        damaged = bytearray(raw)
        for _ in range(rng.randrange(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        if damaged == raw:
            continue
        with contextlib.suppress(WireError):
            assert decode(bytes(damaged)).first_damaged() is not None


def test_a_read_reply_carries_entries_like_an_add() -> None:
    entries = Entries.build(7, 3, [b"x", b"yz"])
    raw = (
        encode_head(
            Kind.READ | REPLY,
            count=2,
            ledger_id=7,
            first=3,
            last=4,
            index=entries.index_part(),
            payload_bytes=3,
        )
        + entries.payload
    )
    assert decode(raw).payloads() == [b"x", b"yz"]
    assert len(raw) == HEADER_BYTES + 16 + 3


@given(st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_arrays_are_little_endian(numbers: list[int]) -> None:
    raw = b"".join(number.to_bytes(4, "little") for number in numbers)
    assert u32_bytes(array("I", numbers)) == raw
    assert list(u32_array(raw)) == numbers
    assert list(u32_array(memoryview(raw))) == numbers
    assert list(u32_array()) == []


# --- what checking costs --------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[1_024] * 1_000, [1_000, 1_048] * 500])
def test_checking_a_frame_takes_no_memory_in_proportion_to_its_payloads(sizes: list[int]) -> None:
    entries = Entries.build(1, 0, [bytes(size) for size in sizes])
    assert entries.first_damaged() is None
    tracemalloc.start()
    try:
        assert entries.first_damaged() is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(entries.payload) // 8
