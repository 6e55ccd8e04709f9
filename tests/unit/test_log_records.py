"""Entries of a log: their bytes, and the batches that readers get."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import EntryCorrupt
from ledgerlog.model.ids import Position
from ledgerlog.model.record import Record, RecordBatch, moment
from ledgerlog.wire.records import Producer, decode_entry, decode_header, encode_entry

NOW = 1_700_000_000_000


def entry(records: list[bytes], producer: Producer | None = None) -> bytes:
    return encode_entry(
        records, epoch=3, first_offset=7, timestamp_ms=NOW, bytes_before=100, producer=producer
    )


def test_the_worked_example_of_the_format_is_what_is_written() -> None:
    assert entry([b"a", b"bc"]).hex(" ") == (
        "4c 52 01 00 00 00 00 00 02 00 00 00 03 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 "
        "00 68 e5 cf 8b 01 00 00 64 00 00 00 00 00 00 00 01 00 00 00 02 00 00 00 61 62 63"
    )


@given(
    st.lists(st.binary(max_size=9), min_size=1, max_size=40),
    st.none() | st.builds(Producer, st.binary(min_size=16, max_size=16), st.integers(0, 2**60)),
)
def test_an_entry_gives_back_what_was_put_in(records: list[bytes], producer: Producer | None) -> None:
    payload = entry(records, producer)
    header, batch = decode_entry(payload, ledger_id=4, entry_id=9)
    assert header == decode_header(payload, ledger_id=4, entry_id=9)
    assert batch.payloads == records
    assert (header.epoch, header.first_offset, header.end_offset) == (3, 7, 7 + len(records))
    assert (header.timestamp_ms, header.producer) == (NOW, producer)
    assert header.bytes_after == 100 + sum(map(len, records))


def test_a_batch_makes_records_with_offsets_positions_and_one_timestamp() -> None:
    _, batch = decode_entry(entry([b"a", b"bc", b""]), ledger_id=4, entry_id=9)
    assert list(batch) == [
        Record(7, Position(4, 9, 0), b"a", moment(NOW), 3),
        Record(8, Position(4, 9, 1), b"bc", moment(NOW), 3),
        Record(9, Position(4, 9, 2), b"", moment(NOW), 3),
    ]
    assert (len(batch), batch.end_offset, batch.byte_length) == (3, 10, 3)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, None, [7, 8, 9]), (8, None, [8, 9]), (8, 9, [8]), (10, None, []), (0, 7, []), (9, 8, [])],
)
def test_a_part_of_a_batch_keeps_offsets_and_slots(start: int, end: int | None, expected: list[int]) -> None:
    _, batch = decode_entry(entry([b"a", b"bc", b""]), ledger_id=4, entry_id=9)
    part = batch.between(start, end)
    assert [record.offset for record in part] == expected
    assert [record.position.slot for record in part] == [offset - 7 for offset in expected]


def test_a_batch_that_is_taken_whole_is_not_copied() -> None:
    batch = RecordBatch(
        ledger_id=1, entry_id=0, first_offset=5, first_slot=0, epoch=1, timestamp_ms=0, payloads=[b"x"]
    )
    assert batch.between(0, 6) is batch


def test_every_damage_is_refused_with_the_name_of_the_entry() -> None:
    good = entry([b"a", b"bc"])
    bad = [
        b"",
        good[:43],
        good[:-1],
        good + b"x",
        b"XX" + good[2:],
        good[:2] + b"\2" + good[3:],
        good[:3] + b"\1" + good[4:],
        good[:4] + b"\2" + good[5:],
        good[:6] + b"\1" + good[7:],
        good[:8] + b"\0\0\0\0" + good[12:],
        good[:8] + b"\xff\xff\xff\xff" + good[12:],
        good[:12] + b"\xff" * 8 + good[20:],
        good[:20] + b"\xff" * 8 + good[28:],
        good[:4] + b"\1" + good[5:44],
        good[:44] + b"\xff\xff\xff\xff" + good[48:],
    ]
    for payload in bad:
        with pytest.raises(EntryCorrupt, match="entry 9 of ledger 4"):
            decode_entry(payload, ledger_id=4, entry_id=9)


@given(st.binary(max_size=120))
def test_no_bytes_raise_anything_else(payload: bytes) -> None:
    with contextlib.suppress(EntryCorrupt):
        decode_entry(b"LR\1\0" + payload, ledger_id=4, entry_id=9)
