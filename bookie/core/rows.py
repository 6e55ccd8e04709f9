"""Rows of the index: keys that sort, and values with a checksum.

Keys are a letter and big-endian numbers, so they sort like the numbers. (In ``U`` keys, negative numbers sort
after positive ones.) Values are little endian and end in a CRC-32C of key and value. The key-value store has
its own checksums, but they cover only its files, not the path from a file to this module:

    key                        value
    I                          instance of the bookie (UTF-8)
    M                          mark: segment u64, sequence u64, optional u8, end: 3 x u64
    L  ledger                  key 16 bytes, flags u8, lac, lafr, last entry, widest, straddle (i64);
                               flags: 1 fenced, 2 deleted; version 0.1 also wrote 4
    R  ledger, first entry     last i64, count u32, file i64, offset u64, length u32, sequence u64
    S  segment                 end u64, last sequence u64, runs u32, run bytes u64, live bytes u64,
                               ledgers u32, level u8
    E  entry log               like ``S``; end is the size of the log, and last sequence is 0
    U  file i64                for each ledger that has runs in the file and is not deleted: ledger u64,
                               bytes u64

A *run* is a frame of entries of one ledger. ``R`` says where a run is: in the segment ``file``, or in an
entry log if the number is negative. A run counts if a row ``R`` names it and its ledger is not deleted. ``S``
and ``E`` say where a file's last block ends, and how many bytes of its runs belong to ledgers that are not
deleted. A file gets this row once the index has all its runs, and keeps the row until another file replaces
it. ``U`` lists the ledgers of a file. ``M`` says where replay begins.

All functions are pure. If a row does not decode, they raise StorageCorrupt, naming the index's path.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from bookie.core.block import u64_array, u64_bytes
from bookie.core.boot import ReplayStart
from bookie.core.journal_items import EntryRun, JournalPosition
from bookie.core.ledger import StoredLedger
from ledgerlog.errors import StorageCorrupt
from ledgerlog.wire.checksum import checksum

INSTANCE_KEY = b"I"
MARK_KEY = b"M"
SEGMENT_PREFIX = b"S"
LOG_PREFIX = b"E"
BEHIND_ALL_KEYS = b"\xff"
"""Sorts after every key that this module makes."""

_LEDGER_KEY = struct.Struct(">cQ")
_RUN_KEY = struct.Struct(">cQQ")
_USAGE_KEY = struct.Struct(">cq")
_MARK = struct.Struct("<QQBQQQ")
_LEDGER = struct.Struct("<16sBqqqqq")
_RUN = struct.Struct("<qIqQIQ")
_FILE = struct.Struct("<QQIQQIB")
_CHECKSUM = struct.Struct("<I")

_FENCED, _DELETED = 1, 2

Row = tuple[bytes, bytes]
Change = tuple[bytes, bytes | None]
"""A row to write, or the key of a row to remove (its value is None)."""


@attrs.frozen
class FileRow:
    """The row of a segment or an entry log whose runs are in the index."""

    file: int
    """The number of a segment, or the negative number of an entry log."""
    end: int
    """Where a segment's last block ends, or the size of an entry log."""
    last_sequence: int = 0
    """The sequence of the journal's last block up to the end of this segment; 0 for an entry log."""
    runs: int = 0
    """How many runs are in the file."""
    run_bytes: int = 0
    """The bytes of the runs in the file, as of the time when the row was made. Ledgers that were deleted
    already do not count."""
    live_bytes: int = 0
    """The bytes of the runs of ledgers that are not deleted."""
    ledgers: int = 0
    """How many ledgers had runs in the file, and were not deleted, when the row was made."""
    level: int = 0
    """How often the entries in the file were merged with entries of other files."""

    @classmethod
    def of(
        cls,
        file: int,
        *,
        end: int,
        last_sequence: int = 0,
        runs: Sequence[EntryRun],
        usage: Mapping[int, int],
        level: int = 0,
    ) -> FileRow:
        """Make the first row of a file.

        Args:
            file: The file's number, negative for an entry log.
            end: Where its last block ends, or its size.
            last_sequence: The sequence of its last block; 0 for an entry log.
            runs: All its runs.
            usage: The bytes of runs in the file, for each ledger that is not deleted.
            level: How often its entries were merged.
        """
        size = sum(usage.values())
        return cls(file, end, last_sequence, len(runs), size, size, len(usage), level)


def _row(key: bytes, value: bytes) -> Row:
    return key, value + _CHECKSUM.pack(checksum(key + value))


def _value(key: bytes, value: bytes, path: str) -> bytes:
    bare = value[: -_CHECKSUM.size]
    if len(value) < _CHECKSUM.size or _CHECKSUM.pack(checksum(key + bare)) != value[-_CHECKSUM.size :]:
        raise StorageCorrupt(path, None, f"the checksum of the index row {key.hex()} does not match")
    return bare


def check_row(key: bytes, value: bytes, path: str) -> None:
    """Check the checksum of a row of any kind. Raises StorageCorrupt if it does not match."""
    _value(key, value, path)


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


def encode_mark(mark: ReplayStart) -> Row:
    return _row(MARK_KEY, _MARK.pack(mark.segment, mark.sequence, mark.is_optional, *mark.end))


def decode_mark(value: bytes, path: str) -> ReplayStart:
    segment, sequence, is_optional, *end = _unpack(_MARK, MARK_KEY, value, path)
    if sequence != end[-1] + 1:
        raise StorageCorrupt(path, None, f"the index's mark names block {sequence}, after block {end[-1]}")
    return ReplayStart(segment, sequence, is_optional=bool(is_optional), end=JournalPosition(*end))


# --- ledgers --------------------------------------------------------------------------------------


def ledger_key(ledger_id: int) -> bytes:
    return _LEDGER_KEY.pack(b"L", ledger_id)


def ledger_of_key(key: bytes) -> int:
    """Return the ledger of a ``ledger_key``."""
    ledger_id: int = _LEDGER_KEY.unpack(key)[1]
    return ledger_id


def encode_ledger(ledger_id: int, stored: StoredLedger) -> Row:
    return _row(
        ledger_key(ledger_id),
        _LEDGER.pack(
            stored.key,
            stored.is_fenced * _FENCED | stored.is_deleted * _DELETED,
            stored.lac,
            stored.lafr,
            stored.last_entry,
            stored.widest,
            stored.straddle,
        ),
    )


def decode_ledger(key: bytes, value: bytes, path: str) -> StoredLedger:
    ledger_secret, flags, lac, lafr, last_entry, widest, straddle = _unpack(_LEDGER, key, value, path)
    return StoredLedger(
        key=ledger_secret,
        is_fenced=bool(flags & _FENCED),
        is_deleted=bool(flags & _DELETED),
        lac=lac,
        lafr=lafr,
        last_entry=last_entry,
        widest=widest,
        straddle=straddle,
    )


# --- runs -----------------------------------------------------------------------------------------


def run_key(ledger_id: int, first: int) -> bytes:
    return _RUN_KEY.pack(b"R", ledger_id, first)


def is_run_key(key: bytes) -> bool:
    return key[:1] == b"R"


def ledger_of_run_key(key: bytes) -> int:
    """Return the ledger of a ``run_key``."""
    ledger_id: int = _RUN_KEY.unpack(key)[1]
    return ledger_id


def encode_run(run: EntryRun) -> Row:
    return _row(
        run_key(run.ledger_id, run.first),
        _RUN.pack(run.last, run.entry_count, run.file, run.offset, run.length, run.sequence),
    )


def decode_run(key: bytes, value: bytes, path: str) -> EntryRun:
    last, count, file, offset, length, sequence = _unpack(_RUN, key, value, path)
    _, ledger_id, first = _RUN_KEY.unpack(key)
    return EntryRun(ledger_id, first, last, count, file, offset, length, sequence)


# --- files ----------------------------------------------------------------------------------------


def segment_key(number: int) -> bytes:
    return _LEDGER_KEY.pack(SEGMENT_PREFIX, number)


def log_key(number: int) -> bytes:
    return _LEDGER_KEY.pack(LOG_PREFIX, number)


def file_key(file: int) -> bytes:
    return segment_key(file) if file > 0 else log_key(-file)


def encode_file(row: FileRow) -> Row:
    value = _FILE.pack(
        row.end, row.last_sequence, row.runs, row.run_bytes, row.live_bytes, row.ledgers, row.level
    )
    return _row(file_key(row.file), value)


def encode_file_and_usage(row: FileRow, usage: Mapping[int, int]) -> tuple[Row, Row]:
    """Encode both rows of a file. They are written in one batch."""
    return encode_file(row), encode_usage(row.file, usage)


def decode_file(key: bytes, value: bytes, path: str) -> FileRow:
    prefix, number = _LEDGER_KEY.unpack(key)
    return FileRow(number if prefix == SEGMENT_PREFIX else -number, *_unpack(_FILE, key, value, path))


def usage_of(runs: Iterable[EntryRun]) -> dict[int, int]:
    """Return the bytes of these runs, by ledger."""
    usage: dict[int, int] = {}
    for run in runs:
        usage[run.ledger_id] = usage.get(run.ledger_id, 0) + run.length
    return usage


def usage_key(file: int) -> bytes:
    return _USAGE_KEY.pack(b"U", file)


def encode_usage(file: int, usage: Mapping[int, int]) -> Row:
    """Encode the bytes of runs that each ledger has in a file."""
    flat = array("Q", itertools.chain.from_iterable(sorted(usage.items())))
    return _row(usage_key(file), u64_bytes(flat))


def decode_usage(key: bytes, value: bytes, path: str) -> dict[int, int]:
    bare = _value(key, value, path)
    if len(bare) % 16:
        raise StorageCorrupt(path, None, f"the index row {key.hex()} has {len(value)} bytes")
    flat = u64_array(bare)
    return dict(zip(flat[::2], flat[1::2], strict=True))
