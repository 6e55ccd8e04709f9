"""A ledger entry of a log: one header, the lengths of the records, the records.

Records are packed into entries, and an entry is all or nothing: its records were appended together,
carry one timestamp, and are confirmed, recovered and read together. Numbers are little endian.

    offset  size  field
         0     2  magic, b"LR"
         2     1  version, 1
         3     1  codec of the record part: 0, as they are
         4     2  flags: 1, a producer part follows the header; all others must be 0
         6     2  reserved, 0
         8     4  record count, at least 1
        12     8  epoch of the leader that wrote it
        20     8  offset in the log of the first record
        28     8  timestamp, milliseconds since 1970
        36     8  bytes of all records of the log before this entry
        44     -  [16 bytes producer id, 8 bytes sequence number of the first record]
         -  4*n   length of each record
         -     -  the records, joined

The cumulative byte length makes the last entry tell the size of the whole log to a new leader, and the
difference between two entries what lies between them. Digests are the ledger's matter: an entry
that arrives here is what was written, so anything that does not decode was written by something
else, and says so as ``EntryCorrupt`` with the ledger and the entry.

Worked example, two records ``b"a"`` and ``b"bc"`` at offset 7 of a log with 100 bytes before, epoch 3:

    4c52 01 00 0000 0000 02000000 0300000000000000 0700000000000000 <8 bytes ms> 6400000000000000
    01000000 02000000 61 6263
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from ledgerlog.errors import EntryCorrupt
from ledgerlog.limits import RECORD_BYTES_MAX
from ledgerlog.model.record import RecordBatch
from ledgerlog.wire.checksum import u32_array, u32_bytes
from ledgerlog.wire.entries import split_payloads

__all__ = ["EntryHeader", "Producer", "decode_entry", "decode_header", "encode_entry", "ENTRY_HEADER_BYTES"]

_MAGIC = b"LR"
_VERSION = 1
_CODEC_NONE = 0
_FLAG_PRODUCER = 1

_HEADER = struct.Struct("<2sBBHHIQQQQ")
_PRODUCER = struct.Struct("<16sQ")
_NUMBER_MAX = 2**63 - 1

ENTRY_HEADER_BYTES = _HEADER.size + _PRODUCER.size
"""The most that an entry takes besides its records and four bytes for each of them."""

assert _HEADER.size == 44


class Producer(NamedTuple):
    """Who appended the records of an entry, where he numbers what he appends."""

    producer_id: bytes
    """16 bytes."""
    first_sequence: int
    """The number that the producer gave to the first record; the others follow it."""


class EntryHeader(NamedTuple):
    epoch: int
    first_offset: int
    record_count: int
    timestamp_ms: int
    bytes_before: int
    producer: Producer | None
    byte_length: int
    """Bytes of the entry's records. Not stored: it follows from their lengths."""

    @property
    def end_offset(self) -> int:
        """The offset after the entry's last record."""
        return self.first_offset + self.record_count

    @property
    def bytes_after(self) -> int:
        """Bytes of all records of the log up to and with this entry."""
        return self.bytes_before + self.byte_length


def encode_entry(
    records: Sequence[bytes],
    *,
    epoch: int,
    first_offset: int,
    timestamp_ms: int,
    bytes_before: int,
    producer: Producer | None = None,
) -> bytes:
    """The payload of one entry. There must be at least one record."""
    assert records, "an entry holds at least one record"
    head = _HEADER.pack(
        _MAGIC,
        _VERSION,
        _CODEC_NONE,
        0 if producer is None else _FLAG_PRODUCER,
        0,
        len(records),
        epoch,
        first_offset,
        timestamp_ms,
        bytes_before,
    )
    if producer is not None:
        head += _PRODUCER.pack(*producer)
    return b"".join((head, u32_bytes(array("I", map(len, records))), *records))


def decode_header(payload: bytes, *, ledger_id: int, entry_id: int) -> EntryHeader:
    """What the entry says of itself. EntryCorrupt where it is not an entry of a log."""
    header, _, _ = _decode_front(payload, ledger_id, entry_id)
    return header


def decode_entry(payload: bytes, *, ledger_id: int, entry_id: int) -> tuple[EntryHeader, RecordBatch]:
    """An entry and its records. EntryCorrupt where it is not an entry of a log."""
    header, lengths, start = _decode_front(payload, ledger_id, entry_id)
    batch = RecordBatch(
        ledger_id=ledger_id,
        entry_id=entry_id,
        first_offset=header.first_offset,
        first_slot=0,
        epoch=header.epoch,
        timestamp_ms=header.timestamp_ms,
        payloads=split_payloads(payload[start:], lengths),
    )
    return header, batch


def _decode_front(payload: bytes, ledger_id: int, entry_id: int) -> tuple[EntryHeader, array[int], int]:
    """The header, the lengths of the records, and where the records start."""

    def fail(why: str) -> NoReturn:
        raise EntryCorrupt(ledger_id, entry_id, why)

    if len(payload) < _HEADER.size:
        fail(f"{len(payload)} bytes are too short for an entry of a log")
    (magic, version, codec, flags, reserved, count, epoch, first_offset, timestamp_ms, bytes_before) = (
        _HEADER.unpack_from(payload)
    )
    if magic != _MAGIC:
        fail("it is not an entry of a log")
    if version != _VERSION:
        fail(f"it has format {version}; this version reads format {_VERSION}")
    if codec != _CODEC_NONE:
        fail(f"its records are packed by codec {codec}, which this version does not know")
    if flags & ~_FLAG_PRODUCER or reserved:
        fail(f"it has flags {flags:#x} and {reserved:#x}, which this version does not know")
    if max(epoch, first_offset + count, timestamp_ms, bytes_before) > _NUMBER_MAX:
        fail("a number of its header is out of range")
    at = _HEADER.size
    producer = None
    if flags & _FLAG_PRODUCER:
        if len(payload) < at + _PRODUCER.size:
            fail("it ends within its producer part")
        producer = Producer(*_PRODUCER.unpack_from(payload, at))
        at += _PRODUCER.size
    start = at + 4 * count
    if not count or len(payload) < start:
        fail(f"it has {len(payload)} bytes and says that it holds {count} records")
    lengths = u32_array(payload[at:start])
    size = sum(lengths)
    if size != len(payload) - start:
        fail(f"its records have {size} bytes by their lengths and {len(payload) - start} in fact")
    if max(lengths) > RECORD_BYTES_MAX:
        fail(f"a record of {max(lengths)} bytes, over the limit of {RECORD_BYTES_MAX}")
    header = EntryHeader(epoch, first_offset, count, timestamp_ms, bytes_before, producer, size)
    return header, lengths, start
