"""A ledger entry of a log: one header, the lengths of the records, the records.

Records are packed into entries, and an entry is all or nothing: its records were appended together, share one
timestamp, and are confirmed, recovered and read together. Numbers are little endian.

    offset  size  field
         0     2  magic, b"LR"
         2     1  version: 2 if codec or flags are not 0, else 1
         3     1  codec of the record part: 0, as it is; 1, packed
         4     2  flags: 2, a numbering follows the header; 4, the entry is a checkpoint; 8, it is staged;
                  others are 0
         6     2  reserved, 0
         8     4  record count; 0 exactly in a checkpoint
        12     8  epoch of the leader that wrote it
        20     8  offset in the log of the first record
        28     8  timestamp, milliseconds since 1970
        36     8  bytes of all records of the log before this entry
        44     -  numbering: [8 the newest checkpoint of this ledger, an entry id; 4 size of the rest;
                  the producers of these records (``wire.producers``)]
         -     -  record part, codec 0: the length of each record, 4 bytes; the records, joined
                  record part, codec 1: 4 the bytes of all records together, unpacked;
                  one zstd frame with the lengths and the records, as under codec 0
                  a checkpoint has in its place the table of producers (``wire.producers``)

The byte count is cumulative. So the last entry tells a new leader the size of the whole log, and you get the
number of bytes between two entries by subtraction. The ledger checks digests. So an entry
that arrives here is as it was written. If it does not decode, another program wrote it: this raises
``EntryCorrupt`` with the ledger and the entry.

A *staged* entry was written outside of any log, in a ledger that later becomes part of a log as a whole
(``log.attach``). Its epoch is 0. Its offset and its byte count start at 0 at the start of its ledger, and its
timestamp is the time of writing. The log's record has the values that are valid in the log
(``AttachedLedger``), and a staged entry can only be read with them.

A *checkpoint* holds no record. Its offset is the offset of the record that follows it, and readers of records
skip it. A log without deduplication has no checkpoints, and its entries have no numbering.

Worked example, two records ``b"a"`` and ``b"bc"`` at offset 7 of a log with 100 bytes before, epoch 3:

    4c52 01 00 0000 0000 02000000 0300000000000000 0700000000000000 <8 bytes ms> 6400000000000000
    01000000 02000000 61 6263
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from ledgerlog.errors import EntryCorrupt, InvalidArgument, RecordTooLarge
from ledgerlog.limits import ENTRY_BYTES_MAX, RECORD_BYTES_MAX
from ledgerlog.model.packing import pack, unpack
from ledgerlog.model.producer import NumberedRecords, ProducerState
from ledgerlog.model.record import AttachedLedger, PackedBatch, RecordBatch
from ledgerlog.wire.checksum import u32_array, u32_bytes
from ledgerlog.wire.entries import split_payloads
from ledgerlog.wire.producers import decode_numbered, decode_table, encode_numbered, encode_table

__all__ = [
    "EntryHeader",
    "Numbering",
    "decode_checkpoint",
    "decode_entry",
    "decode_header",
    "decode_numbering",
    "decode_packed",
    "encode_checkpoint",
    "encode_entry",
]

_MAGIC = b"LR"
_PLAIN = 1
_EXTENDED = 2
_CODEC_NONE = 0
_CODEC_PACKED = 1
_FLAG_NUMBERING = 2
_FLAG_CHECKPOINT = 4
_FLAG_STAGED = 8

_HEADER = struct.Struct("<2sBBHHIQQQQ")
_NUMBERING = struct.Struct("<QI")
_SIZE = struct.Struct("<I")
_NUMBER_MAX = 2**63 - 1

assert _HEADER.size == 44


class Numbering(NamedTuple):
    """The producers of an entry's records, in a log with deduplication."""

    checkpoint_entry: int
    """The newest checkpoint of the entry's ledger. If the entry is a checkpoint, this is its own id."""
    numbered: Sequence[NumberedRecords]
    """The producers of the entry's records, by slot. Records without a producer are left out."""


class EntryHeader(NamedTuple):
    """The header of an entry."""

    epoch: int
    first_offset: int
    record_count: int
    timestamp_ms: int
    bytes_before: int
    byte_length: int
    """Bytes of the entry's records."""
    is_checkpoint: bool
    has_numbering: bool
    is_staged: bool = False

    @property
    def end_offset(self) -> int:
        """The offset after the entry's last record."""
        return self.first_offset + self.record_count

    @property
    def bytes_after(self) -> int:
        """Bytes of all records of the log up to and including this entry."""
        return self.bytes_before + self.byte_length


def encode_entry(
    records: Sequence[bytes],
    *,
    epoch: int,
    first_offset: int,
    timestamp_ms: int,
    bytes_before: int,
    numbering: Numbering | None = None,
    compress: bool = False,
    staged: bool = False,
) -> bytes:
    """Encode the payload of one entry.

    Args:
        records: The records, at least one.
        epoch: The leader's epoch; 0 for a staged entry.
        first_offset: The offset of the first record; for a staged entry, from the start of the ledger.
        timestamp_ms: Milliseconds since 1970.
        bytes_before: Bytes of all records before this entry; for a staged entry, from the start of the
            ledger.
        numbering: The producers of the records; None in a log without deduplication.
        compress: Pack the records if that makes the entry smaller.
        staged: Write a staged entry.

    Raises:
        RecordTooLarge: The records do not fit one entry. The limit counts before packing.
        InvalidArgument: A number is out of range.
    """
    assert records, "an entry holds at least one record"
    assert not (staged and (epoch or numbering is not None)), "no leader writes staged entries"
    _check_place(epoch, first_offset, first_offset + len(records), timestamp_ms, bytes_before)
    sizes = array("I", map(len, records))
    size = 4 * len(sizes) + sum(sizes)
    if size > RECORD_BYTES_MAX and max(sizes) > RECORD_BYTES_MAX:
        raise RecordTooLarge(max(sizes), RECORD_BYTES_MAX)
    if size > ENTRY_BYTES_MAX:
        raise RecordTooLarge(size, ENTRY_BYTES_MAX, "ledger entry")
    lengths = u32_bytes(sizes)
    codec = _CODEC_NONE
    if compress:
        body = b"".join((lengths, *records))
        packed = pack(body)
        if len(packed) + _SIZE.size < len(body):
            codec = _CODEC_PACKED
            packed = _SIZE.pack(len(body) - len(lengths)) + packed
    head = _HEADER.pack(
        _MAGIC,
        _PLAIN if numbering is None and not codec and not staged else _EXTENDED,
        codec,
        (0 if numbering is None else _FLAG_NUMBERING) | (_FLAG_STAGED if staged else 0),
        0,
        len(records),
        epoch,
        first_offset,
        timestamp_ms,
        bytes_before,
    )
    if numbering is not None:
        numbered = encode_numbered(numbering.numbered)
        head += _NUMBERING.pack(numbering.checkpoint_entry, len(numbered)) + numbered
    if codec:
        return head + packed
    return b"".join((head, lengths, *records))


def encode_checkpoint(
    states: Sequence[ProducerState],
    *,
    entry_id: int,
    epoch: int,
    first_offset: int,
    timestamp_ms: int,
    bytes_before: int,
) -> bytes:
    """Encode the payload of a checkpoint.

    Args:
        states: The table of producers as of ``first_offset``.
        entry_id: The entry that the checkpoint will be.
        epoch: The leader's epoch.
        first_offset: The offset of the record that follows.
        timestamp_ms: Milliseconds since 1970.
        bytes_before: Bytes of all records of the log before this entry.

    Raises:
        InvalidArgument: No table can hold these producers, or a number is out of range.
    """
    _check_place(epoch, first_offset, timestamp_ms, bytes_before)
    head = _HEADER.pack(
        _MAGIC,
        _EXTENDED,
        _CODEC_NONE,
        _FLAG_NUMBERING | _FLAG_CHECKPOINT,
        0,
        0,
        epoch,
        first_offset,
        timestamp_ms,
        bytes_before,
    )
    return b"".join((head, _NUMBERING.pack(entry_id, 0), encode_table(states)))


def _check_place(*numbers: int) -> None:
    """Check the range of the epoch, the offsets, the timestamp and ``bytes_before``."""
    if min(numbers) < 0 or max(numbers) > _NUMBER_MAX:
        raise InvalidArgument(f"an epoch, an offset, a time or a byte count is out of range: {numbers}")


def decode_header(
    payload: bytes, *, ledger_id: int, entry_id: int, spliced: AttachedLedger | None = None
) -> EntryHeader:
    """Decode the header of an entry.

    Args:
        payload: The entry.
        ledger_id: Its ledger.
        entry_id: Its id.
        spliced: The place of its ledger in the log, for a staged entry. The header gets the log's offset,
            epoch and timestamp, but keeps its own ``bytes_before``.

    Raises:
        EntryCorrupt: This is not an entry of a log, or it is staged and ``spliced`` is None.
    """
    header, _, _, _ = _decode_front(payload, ledger_id, entry_id)
    return _placed(header, ledger_id, entry_id, spliced)


def decode_entry(
    payload: bytes, *, ledger_id: int, entry_id: int, spliced: AttachedLedger | None = None
) -> tuple[EntryHeader, RecordBatch]:
    """Decode an entry and its records; a checkpoint has none.

    Arguments and errors are those of ``decode_header``.
    """
    header, lengths, body, start = _decode_whole(payload, ledger_id, entry_id, spliced)
    batch = RecordBatch(
        ledger_id=ledger_id,
        entry_id=entry_id,
        first_offset=header.first_offset,
        first_slot=0,
        epoch=header.epoch,
        timestamp_ms=header.timestamp_ms,
        payloads=[] if header.is_checkpoint else split_payloads(body[start:], lengths),
    )
    return header, batch


def decode_packed(
    payload: bytes, *, ledger_id: int, entry_id: int, spliced: AttachedLedger | None = None
) -> tuple[EntryHeader, PackedBatch]:
    """Decode like ``decode_entry``, without an object for each record."""
    header, lengths, body, start = _decode_whole(payload, ledger_id, entry_id, spliced)
    batch = PackedBatch(
        ledger_id=ledger_id,
        entry_id=entry_id,
        first_offset=header.first_offset,
        epoch=header.epoch,
        timestamp_ms=header.timestamp_ms,
        lengths=lengths,
        data=memoryview(b"" if header.is_checkpoint else body)[start:],
    )
    return header, batch


def decode_numbering(payload: bytes, *, ledger_id: int, entry_id: int) -> tuple[EntryHeader, Numbering]:
    """Decode an entry's header and its producers.

    Raises:
        EntryCorrupt: This is not an entry of a log, or it has no numbering.
    """
    fail = _failing(ledger_id, entry_id)
    header, _, _, _ = _decode_front(payload, ledger_id, entry_id)
    if not header.has_numbering:
        fail("it does not say who appended its records, in a log with deduplication")
    at = _HEADER.size
    checkpoint_entry, size = _NUMBERING.unpack_from(payload, at)
    if checkpoint_entry > entry_id or header.is_checkpoint != (checkpoint_entry == entry_id):
        fail(f"it names entry {checkpoint_entry} as the newest checkpoint")
    at += _NUMBERING.size
    return header, Numbering(
        checkpoint_entry, decode_numbered(payload[at : at + size], header.record_count, fail)
    )


def decode_checkpoint(payload: bytes, *, ledger_id: int, entry_id: int) -> list[ProducerState]:
    """Decode the table of a checkpoint. Raise EntryCorrupt if the entry is no checkpoint."""
    fail = _failing(ledger_id, entry_id)
    header, _, _, start = _decode_front(payload, ledger_id, entry_id)
    if not header.is_checkpoint:
        fail("another entry names it as a checkpoint, but it is none")
    return decode_table(payload[start:], fail)


def _placed(
    header: EntryHeader, ledger_id: int, entry_id: int, spliced: AttachedLedger | None
) -> EntryHeader:
    if not header.is_staged:
        return header
    if spliced is None:
        raise EntryCorrupt(ledger_id, entry_id, "it is staged, and its ledger is in no log")
    return header._replace(
        first_offset=spliced.first_offset + header.first_offset,
        epoch=spliced.epoch,
        timestamp_ms=spliced.timestamp_ms,
    )


def _failing(ledger_id: int, entry_id: int) -> Callable[[str], NoReturn]:
    def fail(why: str) -> NoReturn:
        raise EntryCorrupt(ledger_id, entry_id, why)

    return fail


def _decode_front(
    payload: bytes, ledger_id: int, entry_id: int
) -> tuple[EntryHeader, array[int] | None, bytes, int]:
    """Decode the header and the lengths of the records (None if they are packed).

    The last two values are the payload and a position in it: of the records, of the packed part, or of a
    checkpoint's table.
    """
    fail = _failing(ledger_id, entry_id)
    if len(payload) < _HEADER.size:
        fail(f"{len(payload)} bytes are too short for an entry of a log")
    (magic, version, codec, flags, reserved, count, epoch, first_offset, timestamp_ms, bytes_before) = (
        _HEADER.unpack_from(payload)
    )
    if magic != _MAGIC:
        fail("it is not an entry of a log")
    if version not in (_PLAIN, _EXTENDED):
        fail(f"it has format {version}; this version reads formats {_PLAIN} and {_EXTENDED}")
    if codec > _CODEC_PACKED:
        fail(f"its records are packed by codec {codec}, which this version does not know")
    if flags & ~(_FLAG_NUMBERING | _FLAG_CHECKPOINT | _FLAG_STAGED) or reserved:
        fail(f"it has flags {flags:#x} and {reserved:#x}, which this version does not know")
    if version == _PLAIN and (codec or flags):
        fail(f"it has format {version} with codec {codec} and flags {flags:#x}")
    if flags & _FLAG_STAGED and (epoch or flags != _FLAG_STAGED):
        fail(f"it is staged with flags {flags:#x} in epoch {epoch}")
    if max(epoch, first_offset + count, timestamp_ms, bytes_before) > _NUMBER_MAX:
        fail("a number of its header is out of range")
    at = _HEADER.size
    if flags & _FLAG_NUMBERING:
        if len(payload) < at + _NUMBERING.size:
            fail("it ends within its numbering")
        at += _NUMBERING.size + _NUMBERING.unpack_from(payload, at)[1]
    is_checkpoint = bool(flags & _FLAG_CHECKPOINT)
    if is_checkpoint != (not count) or (is_checkpoint and (codec or not flags & _FLAG_NUMBERING)):
        fail(f"it has flags {flags:#x}, codec {codec} and {count} records")
    if is_checkpoint:
        lengths: array[int] | None = array("I")
        size, start = 0, at
        if len(payload) < start:
            fail("it ends within its numbering")
    elif codec:
        start = at + _SIZE.size
        if len(payload) < start:
            fail("it ends within its packed part")
        lengths = None
        (size,) = _SIZE.unpack_from(payload, at)
        if 4 * count + size > ENTRY_BYTES_MAX:
            fail(f"it says that it holds {count} records of {size} bytes together")
    else:
        start = at + 4 * count
        if len(payload) < start:
            fail(f"it has {len(payload)} bytes and says that it holds {count} records")
        lengths = u32_array(payload[at:start])
        size = sum(lengths)
        if size != len(payload) - start:
            fail(f"its records have {size} bytes by their lengths and {len(payload) - start} in fact")
        if max(lengths) > RECORD_BYTES_MAX:
            fail(f"a record of {max(lengths)} bytes, over the limit of {RECORD_BYTES_MAX}")
    header = EntryHeader(
        epoch,
        first_offset,
        count,
        timestamp_ms,
        bytes_before,
        size,
        is_checkpoint,
        bool(flags & _FLAG_NUMBERING),
        bool(flags & _FLAG_STAGED),
    )
    return header, lengths, payload, start


def _decode_whole(
    payload: bytes, ledger_id: int, entry_id: int, spliced: AttachedLedger | None
) -> tuple[EntryHeader, array[int], bytes, int]:
    """Return the header with the log's values, the lengths, and the bytes and position of the records."""
    header, lengths, body, start = _decode_front(payload, ledger_id, entry_id)
    header = _placed(header, ledger_id, entry_id, spliced)
    if lengths is None:
        lengths, body, start = _unpack(header, body[start:], ledger_id, entry_id)
    return header, lengths, body, start


def _unpack(
    header: EntryHeader, packed: bytes, ledger_id: int, entry_id: int
) -> tuple[array[int], bytes, int]:
    """Return the lengths of packed records, the unpacked bytes, and the position of the records in them."""
    fail = _failing(ledger_id, entry_id)
    start = 4 * header.record_count
    body = unpack(packed, start + header.byte_length, fail)
    lengths = u32_array(body[:start])
    if sum(lengths) != header.byte_length or max(lengths) > RECORD_BYTES_MAX:
        fail(f"its packed records have {sum(lengths)} bytes by their lengths, not {header.byte_length}")
    return lengths, body, start
