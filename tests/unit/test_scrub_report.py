"""The body of a reply to SCRUB: it is written, read back, and refused if it is impossible."""

from __future__ import annotations

import struct
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import WireError
from ledgerlog.limits import ENTRY_ID_MAX, SCRUB_BLOCK_ENTRIES, SCRUB_RANGES_MAX, SCRUB_SUMS_MAX
from ledgerlog.wire.checksum import entry_digest
from ledgerlog.wire.scrub import ScrubReport, decode_scrub_untrusted, encode_scrub, scrub_weights

ROW = struct.Struct("<qIIQ")


def body(
    *,
    sound: list[tuple[int, int]] | None = None,
    unsound: list[tuple[int, int]] | None = None,
    sums: list[tuple[int, int, int, int]] | None = None,
) -> bytes:
    """Encode the body of a reply, even one that the encoder refuses."""
    sound, unsound, sums = sound or [], unsound or [], sums or []
    head = struct.pack("<II", len(sound), len(unsound))
    pairs = [struct.pack("<qq", *pair) for pair in (*sound, *unsound)]
    return b"".join((head, *pairs, *(ROW.pack(*row) for row in sums)))


@st.composite
def ranges(draw: st.DrawFn) -> list[tuple[int, int]]:
    bounds = sorted(draw(st.sets(st.integers(0, ENTRY_ID_MAX), max_size=20)))
    return list(zip(bounds[::2], bounds[1::2], strict=False))


@given(
    ranges(),
    ranges(),
    st.dictionaries(
        st.tuples(st.integers(0, ENTRY_ID_MAX // SCRUB_BLOCK_ENTRIES), st.integers(0, 4095)),
        st.integers(1, 4096).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, 2**64 - 1))),
        max_size=10,
    ),
)
def test_a_report_reads_back_as_it_was_written(
    sound: list[tuple[int, int]],
    unsound: list[tuple[int, int]],
    sums: dict[tuple[int, int], tuple[int, int]],
) -> None:
    report = ScrubReport(sound, unsound, [(*key, *sums[key]) for key in sorted(sums)])
    assert decode_scrub_untrusted(memoryview(encode_scrub(report))) == report


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes(7),
        body(sound=[(0, 1)])[:-1],
        body(sums=[(0, 0, 1, 1)]) + b"x",
        struct.pack("<II", 2, 0) + bytes(16),
        struct.pack("<II", SCRUB_RANGES_MAX + 1, 0) + bytes(16 * (SCRUB_RANGES_MAX + 1)),
        struct.pack("<II", 0, 2**32 - 1),
        struct.pack("<IIqq", 1, 0, 5, 4),
        struct.pack("<IIqqqq", 0, 2, 5, 9, 9, 9),
        struct.pack("<IIqqqq", 1, 1, 5, 9, 9, ENTRY_ID_MAX + 1),
        bytes(8) + ROW.pack(-1, 0, 1, 1),
        bytes(8) + ROW.pack(ENTRY_ID_MAX // SCRUB_BLOCK_ENTRIES + 1, 0, 1, 1),
        bytes(8) + ROW.pack(0, SCRUB_BLOCK_ENTRIES, 1, 1),
        bytes(8) + ROW.pack(0, 0, 0, 0),
        bytes(8) + ROW.pack(0, 0, SCRUB_BLOCK_ENTRIES + 1, 0),
        bytes(8) + ROW.pack(3, 1, 1, 1) + ROW.pack(3, 1, 1, 1),
        bytes(8) + ROW.pack(3, 1, 1, 1) + ROW.pack(2, 5, 1, 1),
        bytes(8) + b"".join(ROW.pack(block, 0, 1, 1) for block in range(SCRUB_SUMS_MAX + 1)),
    ],
)
def test_what_cannot_be_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        decode_scrub_untrusted(memoryview(raw))


def test_weights_are_the_ones_of_the_format_and_all_of_them_differ() -> None:
    assert scrub_weights()[:3] == (0xE220A839 | 1, 0x6E789E6A | 1, 0x06C45D18 | 1)
    assert len(set(scrub_weights())) == SCRUB_BLOCK_ENTRIES
    assert all(weight % 2 and weight < 2**32 for weight in scrub_weights())


def test_neighbours_that_both_differ_do_not_hide_each_other() -> None:
    """With similar payloads each entry may have the other's former digest: a plain sum would not change."""
    written, other = ([entry_digest(7, e, payload) for e in (2, 3)] for payload in (b"0", b"1"))
    assert sum(written) == sum(other)
    assert sum(map(mul, written, scrub_weights()[2:4])) != sum(map(mul, other, scrub_weights()[2:4]))
