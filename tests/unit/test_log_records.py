"""Entries of a log: their bytes, and the batches that readers get."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import EntryCorrupt, InvalidArgument, RecordTooLarge
from ledgerlog.limits import RECORD_ATTRIBUTES_BYTES_MAX, RECORD_BYTES_MAX
from ledgerlog.model.attributes import Attributes, Headers, attributes_of, decode_headers, encode_headers
from ledgerlog.model.ids import Position
from ledgerlog.model.producer import NumberedRecords, ProducerState, SequenceRange
from ledgerlog.model.record import AttachedLedger, Record, RecordBatch, moment
from ledgerlog.wire.producers import decode_table, encode_table
from ledgerlog.wire.records import (
    Numbering,
    decode_checkpoint,
    decode_entry,
    decode_header,
    decode_numbering,
    decode_packed,
    encode_checkpoint,
    encode_entry,
)

NOW = 1_700_000_000_000


def entry(
    records: list[bytes],
    numbering: Numbering | None = None,
    compress: bool = False,
    attributes: Mapping[int, Attributes] | None = None,
    staged: bool = False,
) -> bytes:
    return encode_entry(
        records,
        epoch=0 if staged else 3,
        first_offset=7,
        timestamp_ms=NOW,
        bytes_before=100,
        numbering=numbering,
        compress=compress,
        attributes=attributes,
        staged=staged,
    )


Full = tuple[bytes, bytes | None, Headers]
"""The data, the key and the headers of a record."""

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
headers = st.lists(st.tuples(names, st.binary(max_size=3)), max_size=3).map(tuple)
full_records: st.SearchStrategy[list[Full]] = st.lists(
    st.tuples(st.binary(max_size=9), st.none() | st.binary(max_size=4), headers), min_size=1, max_size=12
)


def attributes_by_slot(records: Sequence[Full]) -> dict[int, Attributes]:
    found = {slot: attributes_of(len(data), key, pairs) for slot, (data, key, pairs) in enumerate(records)}
    return {slot: each for slot, each in found.items() if each is not None}


def checkpoint(states: list[ProducerState], entry_id: int = 9) -> bytes:
    return encode_checkpoint(
        states, entry_id=entry_id, epoch=3, first_offset=7, timestamp_ms=NOW, bytes_before=100
    )


STATES = [
    ProducerState("a", NOW, (SequenceRange(1, 5, 0),)),
    ProducerState("\u00e9", NOW + 1, (SequenceRange(0, 1, 5), SequenceRange(7, 2, 6))),
]
NUMBERED = [NumberedRecords("a", 0, 1, 6), NumberedRecords("bb", 1, 1, 2**40)]


def test_the_worked_example_of_the_format_is_what_is_written() -> None:
    assert entry([b"a", b"bc"]).hex(" ") == (
        "4c 52 01 00 00 00 00 00 02 00 00 00 03 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 "
        "00 68 e5 cf 8b 01 00 00 64 00 00 00 00 00 00 00 01 00 00 00 02 00 00 00 61 62 63"
    )


def test_the_worked_example_of_a_numbered_entry_is_what_is_written() -> None:
    assert entry([b"a", b"bc"], Numbering(0, NUMBERED)).hex(" ") == (
        "4c 52 02 00 02 00 00 00 02 00 00 00 03 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 "
        "00 68 e5 cf 8b 01 00 00 64 00 00 00 00 00 00 00 "
        "00 00 00 00 00 00 00 00 25 00 00 00 "
        "00 00 00 00 01 00 00 00 06 00 00 00 00 00 00 00 01 61 "
        "01 00 00 00 01 00 00 00 00 00 00 00 00 01 00 00 02 62 62 "
        "01 00 00 00 02 00 00 00 61 62 63"
    )


def test_the_head_of_a_checkpoint_is_what_is_written() -> None:
    assert checkpoint(STATES, entry_id=0)[:60].hex(" ") == (
        "4c 52 02 00 06 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 "
        "00 68 e5 cf 8b 01 00 00 64 00 00 00 00 00 00 00 "
        "00 00 00 00 00 00 00 00 00 00 00 00 63 00 00 00"
    )


def test_packed_records_of_another_machine_are_read() -> None:
    """The frame was made once. Other versions of zstd may compress the same records to other bytes."""
    payload = bytes.fromhex(
        "4c5202010000000004000000030000000000000007000000000000000068e5cf8b01000064000000000000002c010000"
        "28b52ffd603c00850000384b0000006162630200263a75cc3922"
    )
    _, batch = decode_entry(payload, ledger_id=4, entry_id=9)
    assert batch.payloads == [b"abc" * 25] * 4


def test_a_checkpoint_of_another_machine_is_read() -> None:
    payload = bytes.fromhex(
        "4c5202000600000000000000030000000000000007000000000000000068e5cf8b0100006400000000000000"
        "0000000000000000000000006300000028b52ffd20638501006402020000000102010261c3a900016868e5e5"
        "cfcf8b8b0101000000000100070005010200050600031000f4f8c8b413"
    )
    assert decode_checkpoint(payload, ledger_id=4, entry_id=0) == STATES


@given(
    st.lists(st.binary(max_size=9), min_size=2, max_size=40),
    st.none() | st.builds(Numbering, st.integers(0, 8), st.just(NUMBERED)),
    st.booleans(),
)
def test_an_entry_gives_back_what_was_put_in(
    records: list[bytes], numbering: Numbering | None, compress: bool
) -> None:
    payload = entry(records, numbering, compress)
    header, batch = decode_entry(payload, ledger_id=4, entry_id=9)
    assert header == decode_header(payload, ledger_id=4, entry_id=9)
    assert batch.payloads == records
    assert (header.epoch, header.first_offset, header.end_offset) == (3, 7, 7 + len(records))
    assert (header.timestamp_ms, header.has_numbering) == (NOW, numbering is not None)
    assert header.bytes_after == 100 + sum(map(len, records))
    if numbering is not None:
        assert decode_numbering(payload, ledger_id=4, entry_id=9) == (header, numbering)


def test_records_are_packed_where_that_makes_them_smaller() -> None:
    records = [b"abc" * 25] * 4
    assert len(entry(records, compress=True)) < 100
    assert entry([b"x"], compress=True) == entry([b"x"])
    _, batch = decode_entry(entry(records, compress=True), ledger_id=4, entry_id=9)
    assert batch.payloads == records


def test_a_checkpoint_holds_a_table_and_no_record() -> None:
    payload = checkpoint(STATES)
    header, batch = decode_entry(payload, ledger_id=4, entry_id=9)
    assert (header.record_count, header.end_offset, header.bytes_after, len(batch)) == (0, 7, 100, 0)
    assert header.is_checkpoint
    assert decode_checkpoint(payload, ledger_id=4, entry_id=9) == STATES
    assert decode_numbering(payload, ledger_id=4, entry_id=9) == (header, Numbering(9, []))
    assert decode_checkpoint(checkpoint([]), ledger_id=4, entry_id=9) == []


def test_a_table_that_would_not_fit_keeps_the_newest_run_of_each() -> None:
    runs = tuple(SequenceRange(10 * n, 1, 3 * n) for n in range(16))
    states = [ProducerState(f"{n:064d}", NOW, runs) for n in range(32_768)]
    payload = encode_table(states)
    assert len(payload) < 4 * 2**20
    assert decode_table(payload, pytest.fail) == [s._replace(runs=runs[-1:]) for s in states]


@pytest.mark.parametrize(
    "states",
    [
        [ProducerState("a", NOW, ())],
        [ProducerState("a", NOW, tuple(SequenceRange(n, 1, 2 * n) for n in range(17)))],
        [ProducerState("", NOW, (SequenceRange(1, 1, 1),))],
        [ProducerState("a", NOW, (SequenceRange(1, 1, 1),))] * 2,
        [ProducerState("a", -1, (SequenceRange(1, 1, 1),))],
        [ProducerState("a", NOW, (SequenceRange(-1, 1, 1),))],
        [ProducerState("a", NOW, (SequenceRange(2**63 - 1, 1, 1),))],
        [ProducerState("a", NOW, (SequenceRange(1, 1, 2**63 - 1),))],
    ],
    ids=str,
)
def test_a_table_out_of_range_is_neither_written_nor_read(
    states: list[ProducerState], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidArgument):
        checkpoint(states)
    with monkeypatch.context() as patched:
        patched.setattr("ledgerlog.wire.producers._check_table", lambda *_: None)
        payload = checkpoint(states)
    with pytest.raises(EntryCorrupt, match="entry 9 of ledger 4"):
        decode_checkpoint(payload, ledger_id=4, entry_id=9)


@given(st.binary(max_size=120), st.sampled_from([b"LR\2\1", b"LR\2\0\2\0", b"LR\2\0\6\0\0\0\0\0\0\0"]))
def test_no_bytes_of_format_2_raise_anything_else(payload: bytes, head: bytes) -> None:
    for decode in (decode_entry, decode_numbering, decode_checkpoint):
        with contextlib.suppress(EntryCorrupt):
            decode(head + payload, ledger_id=4, entry_id=9)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_no_damage_of_a_checkpoint_raises_anything_else(at: int, value: int) -> None:
    good = bytearray(checkpoint(STATES))
    good[at % len(good)] = value
    with contextlib.suppress(EntryCorrupt):
        decode_checkpoint(bytes(good), ledger_id=4, entry_id=9)


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


@given(
    st.lists(st.binary(max_size=20), min_size=1, max_size=8),
    st.booleans(),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_a_packed_batch_holds_what_the_batch_holds(
    records: list[bytes], compress: bool, start: int, end: int
) -> None:
    payload = entry(records, compress=compress)
    header, batch = decode_entry(payload, ledger_id=4, entry_id=9)
    packed_header, packed = decode_packed(payload, ledger_id=4, entry_id=9)
    assert packed_header == header
    for whole, part in ((batch, packed), (batch.between(start, end), packed.between(start, end))):
        assert (part.byte_length, len(part)) == (whole.byte_length, len(whole))
        assert list(part.lengths) == [len(record) for record in whole.payloads]
        assert bytes(part.data) == b"".join(whole.payloads)
        for name in ("ledger_id", "entry_id", "first_offset", "end_offset", "epoch", "timestamp_ms"):
            assert getattr(part, name) == getattr(whole, name)
    assert packed.between(0, 100) is packed
    _, none = decode_packed(checkpoint(STATES), ledger_id=4, entry_id=9)
    assert (len(none), none.byte_length) == (0, 0)


def test_every_damage_is_refused_with_the_name_of_the_entry() -> None:
    good = entry([b"a", b"bc"])
    bad = [
        b"",
        good[:43],
        good[:-1],
        good + b"x",
        b"XX" + good[2:],
        good[:2] + b"\3" + good[3:],
        good[:3] + b"\1" + good[4:],
        good[:4] + b"\2" + good[5:],
        good[:6] + b"\1" + good[7:],
        good[:8] + b"\0\0\0\0" + good[12:],
        good[:8] + b"\xff\xff\xff\xff" + good[12:],
        good[:12] + b"\xff" * 8 + good[20:],
        good[:20] + b"\xff" * 8 + good[28:],
        good[:4] + b"\1" + good[5:44],
        good[:2] + b"\2\0\1" + good[5:],
        good[:2] + b"\2\2" + good[4:],
        good[:2] + b"\2\0\2" + good[5:50],
        good[:2] + b"\2\0\4" + good[5:],
        entry([b"a" * 99], compress=True)[:-1],
        entry([b"a" * 99], compress=True) + b"x",
        entry([b"a" * 99], compress=True)[:44],
        good[:44] + b"\xff\xff\xff\xff" + good[48:],
    ]
    for payload in bad:
        for decode in (decode_entry, decode_packed):
            with pytest.raises(EntryCorrupt, match="entry 9 of ledger 4"):
                decode(payload, ledger_id=4, entry_id=9)


@given(st.binary(max_size=120))
def test_no_bytes_raise_anything_else(payload: bytes) -> None:
    with contextlib.suppress(EntryCorrupt):
        decode_entry(b"LR\1\0" + payload, ledger_id=4, entry_id=9)


# --- keys and headers ---------------------------------------------------------------------------------


ONE = {1: Attributes(b"k", encode_headers({"h": b"v"}))}


def test_the_worked_example_of_a_key_and_a_header_is_what_is_written() -> None:
    assert entry([b"a", b"bc"], attributes=ONE).hex(" ") == (
        "4c 52 02 00 10 00 00 00 02 00 00 00 03 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 "
        "00 68 e5 cf 8b 01 00 00 64 00 00 00 00 00 00 00 "
        "09 00 00 00 01 00 00 00 02 00 00 00 61 62 63 ff ff ff ff 01 00 00 00 00 00 00 00 08 00 00 00 "
        "6b 01 00 68 01 00 00 00 76"
    )
    assert entry([b"a", b"bc"], attributes={}) == entry([b"a", b"bc"]), "absent, they cost no byte"


@given(full_records, st.booleans(), st.sampled_from(["plain", "numbered", "staged"]))
def test_keys_and_headers_come_back_whatever_else_the_entry_has(
    records: list[Full], compress: bool, kind: str
) -> None:
    numbering = Numbering(0, [NumberedRecords("a", 0, 1, 6)]) if kind == "numbered" else None
    attributes = attributes_by_slot(records)
    payload = entry([data for data, *_ in records], numbering, compress, attributes, staged=kind == "staged")
    spliced = AttachedLedger(50, 4, NOW + 1) if kind == "staged" else None
    header, batch = decode_entry(payload, ledger_id=4, entry_id=9, spliced=spliced)
    assert header == decode_header(payload, ledger_id=4, entry_id=9, spliced=spliced)
    assert [(record.data, record.key, record.headers) for record in batch] == records
    assert header.byte_length == batch.byte_length
    assert header.byte_length == sum(len(data) for data, *_ in records) + sum(
        each.size for each in attributes.values()
    )
    assert (header.attributes_bytes is None) == (not attributes) == (batch.keys is None)
    assert batch.has_attributes == bool(attributes)
    if numbering is not None:
        assert decode_numbering(payload, ledger_id=4, entry_id=9) == (header, numbering)


@given(full_records, st.booleans(), st.integers(0, 20), st.integers(0, 20))
def test_a_packed_batch_holds_the_keys_and_headers_of_its_part(
    records: list[Full], compress: bool, start: int, end: int
) -> None:
    payload = entry([data for data, *_ in records], None, compress, attributes_by_slot(records))
    _, batch = decode_entry(payload, ledger_id=4, entry_id=9)
    _, packed = decode_packed(payload, ledger_id=4, entry_id=9)
    for whole, part in ((batch, packed), (batch.between(start, end), packed.between(start, end))):
        wanted = records[whole.first_offset - 7 :][: len(whole)]
        assert [(record.data, record.key, record.headers) for record in whole] == wanted
        assert part.byte_length == whole.byte_length
        assert bytes(part.data) == b"".join(whole.payloads)
        if whole.keys is None or whole.headers is None:
            assert part.keys is None
            assert part.headers is None
        else:
            assert part.keys is not None
            assert part.headers is not None
            assert part.keys.items() == whole.keys
            encoded = part.headers.items()
            assert [decode_headers(one or b"", pytest.fail) for one in encoded] == whole.headers


def test_every_damage_of_keys_and_headers_is_refused_with_the_name_of_the_entry() -> None:
    good = entry([b"a", b"bc"], attributes=ONE)
    front, keys_at, headers_at = 44, 44 + 4 + 8 + 3, 44 + 4 + 8 + 3 + 8
    none = good[:front] + bytes(4) + good[front + 4 : keys_at] + b"\xff" * 8 + bytes(8)
    bad = [
        good[:front],
        good[: front + 3],
        good[:-1],
        good + b"x",
        good[:front] + b"\x08" + good[front + 1 :],
        good[:2] + b"\1" + good[3:],
        good[:4] + b"\x14" + good[5:],
        good[:keys_at] + b"\1\0\0\0" + good[keys_at + 4 :],
        good[:headers_at] + b"\xff\xff\xff\x7f" + good[headers_at + 4 :],
        good[:-2] + b"\2" + good[-1:],
        good[:-6] + b"\xff" + good[-5:],
        none,
        entry([b"a" * 99], compress=True, attributes={0: Attributes(b"k" * 99, b"")})[:-1],
        entry([b"a" * 99], attributes={0: Attributes(None, b"xx")}),
    ]
    for payload in bad:
        with pytest.raises(EntryCorrupt, match="entry 9 of ledger 4"):
            decode_entry(payload, ledger_id=4, entry_id=9)


@pytest.mark.parametrize(
    ("data", "key", "is_taken"),
    [
        (RECORD_BYTES_MAX - 10, 10, True),
        (RECORD_BYTES_MAX - 10, 11, False),
        (0, RECORD_ATTRIBUTES_BYTES_MAX, True),
        (0, RECORD_ATTRIBUTES_BYTES_MAX + 1, False),
    ],
)
def test_keys_are_bounded_where_they_are_written_and_where_they_are_read(
    data: int, key: int, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes = {0: Attributes(bytes(key), b"")}
    if is_taken:
        _, batch = decode_entry(entry([bytes(data)], attributes=attributes), ledger_id=4, entry_id=9)
        assert batch.keys == [bytes(key)]
        assert attributes_of(data, bytes(key), None) == attributes[0]
        return
    with pytest.raises(RecordTooLarge):
        entry([bytes(data)], attributes=attributes)
    with pytest.raises(RecordTooLarge):
        attributes_of(data, bytes(key), None)
    with monkeypatch.context() as patched:
        patched.setattr("ledgerlog.wire.records._check_attributes", lambda *_: None)
        payload = entry([bytes(data)], attributes=attributes)
    with pytest.raises(EntryCorrupt, match="entry 9 of ledger 4"):
        decode_entry(payload, ledger_id=4, entry_id=9)


@given(st.binary(max_size=120), st.sampled_from([b"\0\x10", b"\1\x10", b"\0\x18", b"\0\x12"]))
def test_no_bytes_with_keys_raise_anything_else(payload: bytes, head: bytes) -> None:
    for decode in (decode_entry, decode_packed):
        with contextlib.suppress(EntryCorrupt):
            decode(b"LR\2" + head + b"\0\0\0\2\0\0\0" + bytes(32) + payload, ledger_id=4, entry_id=9)
