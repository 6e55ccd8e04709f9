"""Rows of the index: keys that sort, values that prove themselves.

Keys are a letter and big-endian numbers, so that they sort as the numbers do; values are little endian and
end in a CRC-32C of key and value, because the checksums of a key-value store cover its files and not the
way from there to here:

    key                        value
    I                          instance of the bookie (UTF-8)
    M                          mark: segment u64, sequence u64, optional u8, end: 3 x u64
    L  ledger                  key 16 bytes, fenced u8, lac, lafr, last entry, widest, straddle (i64)
    R  ledger, first entry     last i64, count u32, segment u64, offset u64, length u32, sequence u64
    S  segment                 end u64, last sequence u64, runs u32

``R`` says where a run lies, ``S`` that a segment exists and where its last block ends, ``M`` where replay
begins. All functions are pure; a row that does not decode is StorageCorrupt, naming the index's path.
"""

from __future__ import annotations

import struct
from typing import Any

import attrs

from bookie.core.boot import Mark
from bookie.core.ledger import StoredLedger
from bookie.core.records import Place, Run
from ledgerlog.errors import StorageCorrupt
from ledgerlog.wire.checksum import checksum

INSTANCE_KEY = b"I"
MARK_KEY = b"M"
SEGMENT_PREFIX = b"S"

_LEDGER_KEY = struct.Struct(">cQ")
_RUN_KEY = struct.Struct(">cQQ")
_MARK = struct.Struct("<QQBQQQ")
_LEDGER = struct.Struct("<16sBqqqqq")
_RUN = struct.Struct("<qIQQIQ")
_SEGMENT = struct.Struct("<QQI")
_CHECKSUM = struct.Struct("<I")

Row = tuple[bytes, bytes]


@attrs.frozen
class SegmentRow:
    number: int
    end: int
    """Where its last block ends."""
    last_sequence: int
    """Of the last block of the journal up to and including this segment."""
    runs: int


def _row(key: bytes, value: bytes) -> Row:
    return key, value + _CHECKSUM.pack(checksum(key + value))


def _value(key: bytes, value: bytes, path: str) -> bytes:
    bare = value[: -_CHECKSUM.size]
    if len(value) < _CHECKSUM.size or _CHECKSUM.pack(checksum(key + bare)) != value[-_CHECKSUM.size :]:
        raise StorageCorrupt(path, None, f"the checksum of the index row {key.hex()} does not match")
    return bare


def _unpack(layout: struct.Struct, key: bytes, value: bytes, path: str) -> tuple[Any, ...]:
    bare = _value(key, value, path)
    if len(bare) != layout.size:
        raise StorageCorrupt(path, None, f"the index row {key.hex()} has {len(value)} bytes")
    return layout.unpack(bare)


# --- single rows ----------------------------------------------------------------------------------


def encode_instance(instance: str) -> Row:
    return _row(INSTANCE_KEY, instance.encode())


def decode_instance(value: bytes, path: str) -> str:
    return _value(INSTANCE_KEY, value, path).decode(errors="replace")


def encode_mark(mark: Mark) -> Row:
    return _row(MARK_KEY, _MARK.pack(mark.segment, mark.sequence, mark.is_optional, *mark.end))


def decode_mark(value: bytes, path: str) -> Mark:
    segment, sequence, is_optional, *end = _unpack(_MARK, MARK_KEY, value, path)
    return Mark(segment, sequence, is_optional=bool(is_optional), end=Place(*end))


# --- ledgers --------------------------------------------------------------------------------------


def ledger_key(ledger_id: int) -> bytes:
    return _LEDGER_KEY.pack(b"L", ledger_id)


def encode_ledger(ledger_id: int, stored: StoredLedger) -> Row:
    return _row(
        ledger_key(ledger_id),
        _LEDGER.pack(
            stored.key,
            stored.is_fenced,
            stored.lac,
            stored.lafr,
            stored.last_entry,
            stored.widest,
            stored.straddle,
        ),
    )


def decode_ledger(key: bytes, value: bytes, path: str) -> StoredLedger:
    ledger_secret, is_fenced, lac, lafr, last_entry, widest, straddle = _unpack(_LEDGER, key, value, path)
    return StoredLedger(
        key=ledger_secret,
        is_fenced=bool(is_fenced),
        lac=lac,
        lafr=lafr,
        last_entry=last_entry,
        widest=widest,
        straddle=straddle,
    )


# --- runs -----------------------------------------------------------------------------------------


def run_key(ledger_id: int, first: int) -> bytes:
    return _RUN_KEY.pack(b"R", ledger_id, first)


def encode_run(run: Run) -> Row:
    return _row(
        run_key(run.ledger_id, run.first),
        _RUN.pack(run.last, run.entry_count, run.segment, run.offset, run.length, run.sequence),
    )


def decode_run(key: bytes, value: bytes, path: str) -> Run:
    last, count, segment, offset, length, sequence = _unpack(_RUN, key, value, path)
    _, ledger_id, first = _RUN_KEY.unpack(key)
    return Run(ledger_id, first, last, count, segment, offset, length, sequence)


# --- segments -------------------------------------------------------------------------------------


def segment_key(number: int) -> bytes:
    return _LEDGER_KEY.pack(SEGMENT_PREFIX, number)


def encode_segment(row: SegmentRow) -> Row:
    return _row(segment_key(row.number), _SEGMENT.pack(row.end, row.last_sequence, row.runs))


def decode_segment(key: bytes, value: bytes, path: str) -> SegmentRow:
    end, last_sequence, runs = _unpack(_SEGMENT, key, value, path)
    _, number = _LEDGER_KEY.unpack(key)
    return SegmentRow(number=number, end=end, last_sequence=last_sequence, runs=runs)
