"""The producers of a log and of an entry's records, as bytes (``log.core.producers``).

A *run* is a range of sequences of one producer whose records have consecutive offsets (``model.producer``).

**Numbered records**, in the head of each entry of a log with deduplication, one after the other:

    size  field
       4  slot of the first record
       4  how many records
       8  sequence of the first; the others have the next ones
       1  length of the producer's id
       -  the id, UTF-8

**The table** of producers, the content of a checkpoint entry:

    size  field
       4  size of the rest, unpacked
       -  one zstd frame of:  4  n, how many producers
                              -  n lengths of ids, 1 byte each
                              -  n counts of runs, 1 byte each
                              -  the ids, joined
                              -  columns of 64-bit numbers, each by planes (the lowest bytes of all its
                                 numbers, then the next, ...): n last uses; and over all runs of all
                                 producers the first sequences, the counts, the first offsets

All numbers are little endian. Ten thousand producers with one run each take 0.7 MB unpacked and about 0.2 MB
packed.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import ENTRY_BYTES_MAX, KIB, LOG_PRODUCER_RUNS_MAX, LOG_PRODUCERS_MAX, MIB
from ledgerlog.model.checks import utf8
from ledgerlog.model.packing import number_bytes, numbers, pack, planes, unpack, unplaned
from ledgerlog.model.producer import SEQUENCE_MAX, NumberedRecords, ProducerState, SequenceRange

__all__ = ["decode_numbered", "decode_table", "encode_numbered", "encode_table"]

_NUMBERED = struct.Struct("<IIQB")
_COUNT = struct.Struct("<I")
_NUMBER_MAX = 2**63 - 1
_TABLE_BYTES_MAX = ENTRY_BYTES_MAX - KIB
_TABLE_BYTES_TARGET = MIB
_ID_BYTES_MAX = 255
_SLOTS_MAX = 2**32 - 1

Fail = Callable[[str], NoReturn]


def encode_numbered(numbered: Iterable[NumberedRecords]) -> bytes:
    """Encode the producers of an entry's records. Raise InvalidArgument if no entry can hold them."""
    parts: list[bytes] = []
    end = 0
    for producer_id, slot, count, first_sequence in numbered:
        name = utf8(producer_id)
        if not 0 < len(name) <= _ID_BYTES_MAX or not end <= slot < slot + count <= _SLOTS_MAX:
            _refuse_to_write(f"records {slot} to {slot + count} of producer {producer_id!r:.80}")
        if not 0 <= first_sequence <= SEQUENCE_MAX - count + 1:
            _refuse_to_write(
                f"{count} records of producer {producer_id!r:.80} from sequence {first_sequence} on"
            )
        end = slot + count
        parts += (_NUMBERED.pack(slot, count, first_sequence, len(name)), name)
    return b"".join(parts)


def decode_numbered(data: bytes, record_count: int, fail: Fail) -> list[NumberedRecords]:
    """Decode the bytes of ``encode_numbered`` for an entry of ``record_count`` records.

    If they do not decode, ``fail`` is called with the reason; it must raise.
    """
    found = []
    at = end = 0
    while at < len(data):
        if len(data) < at + _NUMBERED.size:
            fail("it ends within its producers")
        slot, count, first_sequence, length = _NUMBERED.unpack_from(data, at)
        at += _NUMBERED.size
        name = data[at : at + length]
        at += length
        if len(name) != length or not length:
            fail("it ends within the id of a producer")
        if not end <= slot < slot + count <= record_count or first_sequence + count - 1 > SEQUENCE_MAX:
            fail(f"it numbers {count} records from slot {slot} on, of {record_count}")
        end = slot + count
        found.append(NumberedRecords(_text(name, fail), slot, count, first_sequence))
    return found


def encode_table(states: Sequence[ProducerState]) -> bytes:
    """Encode the table of producers.

    If many producers have many runs, only the newest runs of each are written, at least one. This keeps the
    table at about a megabyte. Appends continue while the table is written, and a larger table would delay
    them.

    Raises:
        InvalidArgument: No table can hold these producers.
    """
    names = [utf8(state.producer_id) for state in states]
    fixed = sum(map(len, names)) + 10 * len(states)
    depth = max((len(state.runs) for state in states), default=1)
    while depth > 1 and fixed + 24 * sum(min(depth, len(s.runs)) for s in states) > _TABLE_BYTES_TARGET:
        depth //= 2
    runs = [run for state in states for run in state.runs[-depth:]]
    counts = [min(depth, len(state.runs)) for state in states]
    columns = (
        [state.last_ms for state in states],
        [run.first_sequence for run in runs],
        [run.length for run in runs],
        [run.first_offset for run in runs],
    )
    _check_table(names, counts, columns, _refuse_to_write)
    body = b"".join(
        (
            _COUNT.pack(len(states)),
            bytes(map(len, names)),
            bytes(counts),
            *names,
            *(planes(number_bytes(column)) for column in columns),
        )
    )
    return _COUNT.pack(len(body)) + pack(body)


def _check_table(
    ids: Sequence[bytes], run_counts: Sequence[int], columns: Sequence[Sequence[int]], fail: Fail
) -> None:
    """Check the rules for a table that is written or read.

    ``columns`` are last uses, first sequences, lengths and first offsets.
    """
    if len(ids) > LOG_PRODUCERS_MAX:
        fail(f"its table of producers has {len(ids)} of them, over the limit of {LOG_PRODUCERS_MAX}")
    if ids and not 0 < min(map(len, ids)) <= max(map(len, ids)) <= _ID_BYTES_MAX:
        fail("a producer of its table has no id, or one that is too long")
    if run_counts and not 0 < min(run_counts) <= max(run_counts) <= LOG_PRODUCER_RUNS_MAX:
        fail("a producer of its table has no run, or too many")
    if len(set(ids)) != len(ids) or min(map(min, filter(len, columns)), default=0) < 0:
        fail("its table of producers holds one twice, or a number out of range")
    last_uses, sequences, lengths, offsets = columns
    if (
        max(last_uses, default=0) > _NUMBER_MAX
        or max(map(operator.add, sequences, lengths), default=0) > SEQUENCE_MAX + 1
        or max(map(operator.add, offsets, lengths), default=0) > _NUMBER_MAX
    ):
        fail("its table of producers holds a number out of range")


def _refuse_to_write(why: str) -> NoReturn:
    raise InvalidArgument(f"no entry can hold this: {why}")


def decode_table(data: bytes, fail: Fail) -> list[ProducerState]:
    """Decode the bytes of ``encode_table``. If they do not decode, ``fail`` is called; it must raise."""
    if len(data) < _COUNT.size:
        fail("it is too short for a table of producers")
    (size,) = _COUNT.unpack_from(data)
    if not _COUNT.size <= size <= _TABLE_BYTES_MAX + KIB:
        fail(f"its table of producers is said to have {size} bytes")
    body = unpack(data[_COUNT.size :], size, fail)
    (count,) = _COUNT.unpack_from(body)
    at = _COUNT.size + 2 * count
    if count > LOG_PRODUCERS_MAX or len(body) < at:
        fail(f"its table of producers is said to have {count} of them")
    lengths, run_counts = body[_COUNT.size : _COUNT.size + count], body[_COUNT.size + count : at]
    runs_total = sum(run_counts)
    if len(body) != at + sum(lengths) + 8 * (count + 3 * runs_total):
        fail("its table of producers is not as long as it says")
    ids = []
    for length in lengths:
        ids.append(body[at : at + length])
        at += length
    columns = []
    for length in (count, runs_total, runs_total, runs_total):
        columns.append(numbers(unplaned(body[at : at + 8 * length])))
        at += 8 * length
    _check_table(ids, run_counts, columns, fail)
    runs = list(map(SequenceRange, *columns[1:]))
    states = []
    first = 0
    for producer_id, last_ms, run_count in zip(ids, columns[0], run_counts, strict=True):
        states.append(
            ProducerState(_text(producer_id, fail), last_ms, tuple(runs[first : first + run_count]))
        )
        first += run_count
    return states


def _text(name: bytes, fail: Fail) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        fail("the id of a producer is not UTF-8")
