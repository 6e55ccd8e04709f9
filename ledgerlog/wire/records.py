"""A ledger entry of a log: one header, the lengths of the records, the records.

Records are packed into entries, and an entry is all or nothing: its records were appended together, share one
timestamp, and are confirmed, recovered and read together. Numbers are little endian.

    offset  size  field
         0     2  magic, b"LR"
         2     1  version: 2 if codec or flags are not 0, else 1
         3     1  codec of the record part: 0, as it is; 1, packed
         4     2  flags: 2, a numbering follows the header; 4, the entry is a checkpoint; 8, it is staged;
                  16, records have keys or headers; others are 0
         6     2  reserved, 0
         8     4  record count; 0 exactly in a checkpoint
        12     8  epoch of the leader that wrote it
        20     8  offset in the log of the first record
        28     8  timestamp, milliseconds since 1970
        36     8  bytes of all records of the log before this entry
        44     -  numbering: [8 the newest checkpoint of this ledger, an entry id; 4 size of the rest;
                  the producers of these records (``wire.producers``)]
         -     -  with flag 16: 4 the bytes of all keys and headers together, unpacked
         -     -  record part, codec 0: the length of each record, 4 bytes; the records, joined; with flag
                  16 then the length of each key (2**32 - 1: the record has none), 4 bytes; the length of
                  each record's headers, 4 bytes; the keys, joined; the headers (``model.attributes``), joined
                  record part, codec 1: 4 the bytes of all records together, unpacked, without keys and
                  headers; one zstd frame with everything that codec 0 has
                  in a checkpoint, instead: the table of producers (``wire.producers``)

The bytes of a record are the bytes of its data, its key and its headers.

The byte count is cumulative. So the last entry tells a new leader the size of the whole log, and you get the
number of bytes between two entries by subtraction. The ledger has already checked the digest of an entry that
arrives here, so the entry is as it was written. If an entry does not decode, another program wrote it. Then
this module raises ``EntryCorrupt`` with the ledger and the entry.

A *staged* entry was written outside of any log, in a ledger that later becomes part of a log as a whole
(``log.attach``). Its epoch is 0. Its offset and its byte count start at 0 at the start of its ledger, and its
timestamp is the time of writing. The log's record has the values that are valid in the log
(``AttachedLedger``). You need these values to read a staged entry.

A *checkpoint* holds no record. Its offset is the offset of the record that follows it, and readers of records
skip it. A log without deduplication has no checkpoints, and its entries have no numbering.

Worked example, two records ``b"a"`` and ``b"bc"`` at offset 7 of a log with 100 bytes before, epoch 3:

    4c52 01 00 0000 0000 02000000 0300000000000000 0700000000000000 <8 bytes ms> 6400000000000000
    01000000 02000000 61 6263

If the second record has the key ``b"k"`` and the header ``("h", b"v")``, the version is 2, the flags are 16,
and the rest is

    09000000 01000000 02000000 61 6263 ffffffff 01000000 00000000 08000000 6b 0100 68 01000000 76
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from ledgerlog.errors import EntryCorrupt, InvalidArgument, RecordTooLarge
from ledgerlog.limits import ENTRY_BYTES_MAX, RECORD_ATTRIBUTES_BYTES_MAX, RECORD_BYTES_MAX
from ledgerlog.model.attributes import Attributes, Headers, decode_headers
from ledgerlog.model.packing import pack, unpack
from ledgerlog.model.producer import NumberedRecords, ProducerState
from ledgerlog.model.record import AttachedLedger, PackedBatch, PackedColumn, RecordBatch
from ledgerlog.wire.checksum import u32_array, u32_bytes
from ledgerlog.wire.pieces import split_pieces
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
_FLAG_ATTRIBUTES = 16

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
    """The producers of the entry's records, in the order of the slots. Records without a producer are left
    out."""


class EntryHeader(NamedTuple):
    """The header of an entry."""

    epoch: int
    first_offset: int
    record_count: int
    timestamp_ms: int
    bytes_before: int
    byte_length: int
    """Bytes of the entry's records, their keys and headers included."""
    is_checkpoint: bool
    has_numbering: bool
    is_staged: bool = False
    attributes_bytes: int | None = None
    """Bytes of all keys and headers together; None if no record has a key or headers."""

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
    attributes: Mapping[int, Attributes] | None = None,
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
        attributes: The keys and headers of the records that have any, by slot.

    Raises:
        RecordTooLarge: The records do not fit one entry. The limit counts before packing.
        InvalidArgument: A number is out of range.
    """
    assert records, "an entry holds at least one record"
    assert not (staged and (epoch or numbering is not None)), "no leader writes staged entries"
    _check_place(epoch, first_offset, first_offset + len(records), timestamp_ms, bytes_before)
    sizes = array("I", map(len, records))
    record_bytes = sum(sizes)
    size = 4 * len(sizes) + record_bytes
    columns: Sequence[bytes] = ()
    attributes_bytes = 0
    if attributes:
        columns, attributes_bytes = _attribute_columns(sizes, attributes)
        size += 8 * len(sizes) + attributes_bytes
    if size > RECORD_BYTES_MAX and max(sizes) > RECORD_BYTES_MAX:
        raise RecordTooLarge(max(sizes), RECORD_BYTES_MAX)
    if size > ENTRY_BYTES_MAX:
        raise RecordTooLarge(size, ENTRY_BYTES_MAX, "ledger entry")
    lengths = u32_bytes(sizes)
    codec = _CODEC_NONE
    if compress:
        body = b"".join((lengths, *records, *columns))
        packed = pack(body)
        if len(packed) + _SIZE.size < len(body):
            codec = _CODEC_PACKED
            packed = _SIZE.pack(record_bytes) + packed
    head = _HEADER.pack(
        _MAGIC,
        _PLAIN if numbering is None and not codec and not staged and not attributes else _EXTENDED,
        codec,
        (0 if numbering is None else _FLAG_NUMBERING)
        | (_FLAG_STAGED if staged else 0)
        | (_FLAG_ATTRIBUTES if attributes else 0),
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
    if attributes:
        head += _SIZE.pack(attributes_bytes)
    if codec:
        return head + packed
    return b"".join((head, lengths, *records, *columns))


def _attribute_columns(
    sizes: Sequence[int], attributes: Mapping[int, Attributes]
) -> tuple[Sequence[bytes], int]:
    """Return the columns of keys and headers, and the bytes of all keys and headers.

    Raises:
        RecordTooLarge: A record is over a limit.
    """
    key_lengths = array("I", (PackedColumn.ABSENT,)) * len(sizes)
    header_lengths = array("I", bytes(4 * len(sizes)))
    keys, headers = [], []
    total = 0
    for slot in sorted(attributes):
        key, encoded = attributes[slot]
        assert key is not None or encoded, "attributes name only records that have some"
        size = len(encoded) if key is None else len(key) + len(encoded)
        _check_attributes(sizes[slot], size, RecordTooLarge)
        total += size
        if key is not None:
            key_lengths[slot] = len(key)
            keys.append(key)
        header_lengths[slot] = len(encoded)
        headers.append(encoded)
    return (u32_bytes(key_lengths), u32_bytes(header_lengths), *keys, *headers), total


def _check_attributes(record: int, attributes: int, fail: Callable[[int, int, str], Exception]) -> None:
    """Check the bytes of a record's key and headers. ``fail`` makes the exception to raise, from a size and
    its limit."""
    if attributes > RECORD_ATTRIBUTES_BYTES_MAX:
        raise fail(attributes, RECORD_ATTRIBUTES_BYTES_MAX, "key with its headers")
    if record + attributes > RECORD_BYTES_MAX:
        raise fail(record + attributes, RECORD_BYTES_MAX, "record with its key and headers")


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

    See ``decode_header`` for the arguments and the errors.
    """
    header, lengths, body, start = _decode_whole(payload, ledger_id, entry_id, spliced)
    keys: list[bytes | None] | None = None
    headers: list[Headers] | None = None
    if header.attributes_bytes is None:
        records = b"" if header.is_checkpoint else body[start:]
    else:
        records = body[start : start + sum(lengths)]
        key_column, header_column = _split_attributes(header, lengths, body, start, ledger_id, entry_id)
        fail = _failing(ledger_id, entry_id)
        keys = key_column.items()
        headers = [decode_headers(encoded, fail) if encoded else () for encoded in header_column.items()]
    batch = RecordBatch(
        ledger_id=ledger_id,
        entry_id=entry_id,
        first_offset=header.first_offset,
        first_slot=0,
        epoch=header.epoch,
        timestamp_ms=header.timestamp_ms,
        payloads=split_pieces(records, lengths),
        keys=keys,
        headers=headers,
    )
    return header, batch


def decode_packed(
    payload: bytes, *, ledger_id: int, entry_id: int, spliced: AttachedLedger | None = None
) -> tuple[EntryHeader, PackedBatch]:
    """Decode like ``decode_entry``, without an object for each record.

    The headers of each record stay bytes, and only their lengths are checked.
    """
    header, lengths, body, start = _decode_whole(payload, ledger_id, entry_id, spliced)
    data = memoryview(b"" if header.is_checkpoint else body)[start:]
    keys = headers = None
    if header.attributes_bytes is not None:
        data = data[: sum(lengths)]
        keys, headers = _split_attributes(header, lengths, body, start, ledger_id, entry_id)
    batch = PackedBatch(
        ledger_id=ledger_id,
        entry_id=entry_id,
        first_offset=header.first_offset,
        epoch=header.epoch,
        timestamp_ms=header.timestamp_ms,
        lengths=lengths,
        data=data,
        keys=keys,
        headers=headers,
    )
    return header, batch


def _split_attributes(
    header: EntryHeader, lengths: array[int], body: bytes, start: int, ledger_id: int, entry_id: int
) -> tuple[PackedColumn, PackedColumn]:
    """Return the keys and the headers of an entry, from the bytes after its records."""
    fail = _failing(ledger_id, entry_id)
    count, size = header.record_count, header.attributes_bytes
    keys_at = start + sum(lengths)
    headers_at = keys_at + 4 * count
    data_at = headers_at + 4 * count
    key_lengths, header_lengths = u32_array(body[keys_at:headers_at]), u32_array(body[headers_at:data_at])
    key_sizes = [0 if length == PackedColumn.ABSENT else length for length in key_lengths]
    keys_end = data_at + sum(key_sizes)
    if len(body) - data_at != size or keys_end + sum(header_lengths) != len(body):
        fail(f"its keys and headers have other lengths than {size} bytes together")
    if not size and all(length == PackedColumn.ABSENT for length in key_lengths):
        fail("it says that records have keys or headers, and none has")

    most = max(key_sizes) + max(header_lengths)
    if most > RECORD_ATTRIBUTES_BYTES_MAX or max(lengths) + most > RECORD_BYTES_MAX:

        def refuse(size: int, limit: int, what: str) -> Exception:
            return EntryCorrupt(ledger_id, entry_id, f"a {what} of {size} bytes, over the limit of {limit}")

        for record, key, encoded in zip(lengths, key_sizes, header_lengths, strict=True):
            _check_attributes(record, key + encoded, refuse)
    view = memoryview(body)
    return PackedColumn(key_lengths, view[data_at:keys_end]), PackedColumn(header_lengths, view[keys_end:])


def decode_numbering(payload: bytes, *, ledger_id: int, entry_id: int) -> tuple[EntryHeader, Numbering]:
    """Decode an entry's header and its producers.

    Raises:
        EntryCorrupt: This is not an entry of a log, or it has no numbering.
    """
    fail = _failing(ledger_id, entry_id)
    header, _, _, _ = _decode_front(payload, ledger_id, entry_id)
    if not header.has_numbering:
        fail("it does not say which producers appended its records, in a log with deduplication")
    at = _HEADER.size
    checkpoint_entry, size = _NUMBERING.unpack_from(payload, at)
    if checkpoint_entry > entry_id or header.is_checkpoint != (checkpoint_entry == entry_id):
        fail(f"it names entry {checkpoint_entry} as the newest checkpoint")
    at += _NUMBERING.size
    return header, Numbering(
        checkpoint_entry, decode_numbered(payload[at : at + size], header.record_count, fail)
    )


def decode_checkpoint(payload: bytes, *, ledger_id: int, entry_id: int) -> list[ProducerState]:
    """Decode the table of a checkpoint. Raise EntryCorrupt if the entry is not a checkpoint."""
    fail = _failing(ledger_id, entry_id)
    header, _, _, start = _decode_front(payload, ledger_id, entry_id)
    if not header.is_checkpoint:
        fail("another entry names it as a checkpoint, but it is not one")
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

    The last two values are the payload, and the position in it at which the records, the packed part or a
    checkpoint's table begin."""
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
    if flags & ~(_FLAG_NUMBERING | _FLAG_CHECKPOINT | _FLAG_STAGED | _FLAG_ATTRIBUTES) or reserved:
        fail(f"it has flags {flags:#x} and {reserved:#x}, which this version does not know")
    if version == _PLAIN and (codec or flags):
        fail(f"it has format {version} with codec {codec} and flags {flags:#x}")
    if flags & _FLAG_STAGED and (epoch or flags & ~(_FLAG_STAGED | _FLAG_ATTRIBUTES)):
        fail(f"it is staged with flags {flags:#x} in epoch {epoch}")
    if max(epoch, first_offset + count, timestamp_ms, bytes_before) > _NUMBER_MAX:
        fail("a number of its header is out of range")
    at = _HEADER.size
    if flags & _FLAG_NUMBERING:
        if len(payload) < at + _NUMBERING.size:
            fail("it ends within its numbering")
        at += _NUMBERING.size + _NUMBERING.unpack_from(payload, at)[1]
    is_checkpoint = bool(flags & _FLAG_CHECKPOINT)
    if is_checkpoint != (not count) or (
        is_checkpoint and (codec or not flags & _FLAG_NUMBERING or flags & _FLAG_ATTRIBUTES)
    ):
        fail(f"it has flags {flags:#x}, codec {codec} and {count} records")
    attributes_bytes: int | None = None
    columns_bytes = 0
    if flags & _FLAG_ATTRIBUTES:
        if len(payload) < at + _SIZE.size:
            fail("it ends before its records")
        (attributes_bytes,) = _SIZE.unpack_from(payload, at)
        at += _SIZE.size
        columns_bytes = 8 * count + attributes_bytes
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
        if 4 * count + size + columns_bytes > ENTRY_BYTES_MAX:
            fail(f"it says that it holds {count} records of {size + columns_bytes} bytes together")
    else:
        start = at + 4 * count
        if len(payload) < start:
            fail(f"it has {len(payload)} bytes and says that it holds {count} records")
        lengths = u32_array(payload[at:start])
        size = sum(lengths)
        if size + columns_bytes != len(payload) - start:
            fail(
                f"its records have {size + columns_bytes} bytes by their lengths and {len(payload) - start} "
                "in fact"
            )
        if max(lengths) > RECORD_BYTES_MAX:
            fail(f"a record of {max(lengths)} bytes, over the limit of {RECORD_BYTES_MAX}")
    header = EntryHeader(
        epoch,
        first_offset,
        count,
        timestamp_ms,
        bytes_before,
        size + (attributes_bytes or 0),
        is_checkpoint,
        bool(flags & _FLAG_NUMBERING),
        bool(flags & _FLAG_STAGED),
        attributes_bytes,
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
    columns_bytes = 0 if header.attributes_bytes is None else 2 * start
    body = unpack(packed, start + header.byte_length + columns_bytes, fail)
    lengths = u32_array(body[:start])
    size = header.byte_length - (header.attributes_bytes or 0)
    if sum(lengths) != size or max(lengths) > RECORD_BYTES_MAX:
        fail(f"its packed records have {sum(lengths)} bytes by their lengths, not {size}")
    return lengths, body, start
