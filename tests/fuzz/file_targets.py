"""The readers of a bookie's files, as targets for fuzzing.

A journal segment gets its blocks made around the fuzzed records, with checksums that are right, besides
being scanned from bytes that are not: so both the scan and what reads the records behind it are reached.
A row of the index is fuzzed as a letter, a key and a value, which gets its checksum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bookie.core import entry_log, rows
from bookie.core.block import BLOCK_HEADER_BYTES, PAGE_BYTES, content_capacity, finish_block
from bookie.core.boot import JournalWalk, ReplayStart, start_of
from bookie.core.file_set import FileSet
from bookie.core.frames import decode_head
from bookie.core.gone_ledgers import GoneLedgers
from bookie.core.journal_items import (
    ADD,
    DELETE,
    FENCE,
    RECORD_HEAD,
    START,
    EntryRun,
    JournalItem,
    JournalPosition,
    decode_add,
    decode_delete,
    decode_fence,
    decode_records,
    decode_start,
    encode_delete,
    encode_fence,
    encode_start,
)
from bookie.core.ledger import StoredLedger
from bookie.core.loss_marks import LossMarks
from bookie.core.segment import SEGMENT_HEADER_BYTES, SegmentHeader, scan_segment
from ledgerlog.errors import IncompatibleVersion, StorageCorrupt
from ledgerlog.wire.checksum import checksum
from ledgerlog.wire.entries import Entries, encode_add
from tests.fuzz.targets import Target, expect

_PATH = "fuzzed"
_NONCE = bytes(range(16))
_PAGES = 3
_HEADER = SegmentHeader(3, SEGMENT_HEADER_BYTES + 2 * _PAGES * PAGE_BYTES, _NONCE, "instance")
_MARK = ReplayStart(3, 1, is_optional=False, end=JournalPosition(2, PAGE_BYTES, 0))


# --- segments -------------------------------------------------------------------------------------


def _run_records(data: bytes) -> bool:
    """The fuzzed bytes as the records of a block that is valid."""
    content = data[: content_capacity(_PAGES)]
    image = bytearray(_HEADER.size)
    view = memoryview(image)[SEGMENT_HEADER_BYTES:]
    view[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + len(content)] = content
    size = finish_block(view, nonce=_NONCE, segment=3, sequence=1, content_bytes=len(content), records=1)
    scan = scan_segment(memoryview(image), _HEADER, path=_PATH, sequence=1)
    expect(scan.end == SEGMENT_HEADER_BYTES + size and not scan.is_torn, "a whole block is not found whole")
    try:
        start_of(memoryview(image), scan.blocks[0], _PATH)
        _read_records(memoryview(content))
    except StorageCorrupt:
        return False
    return True


def _read_records(content: memoryview) -> None:
    readers: dict[int, Callable[..., object]] = {
        FENCE: decode_fence,
        START: decode_start,
        DELETE: decode_delete,
    }
    at = 0
    for record in decode_records(content, 0, len(content), _PATH):
        expect(record.offset == at + RECORD_HEAD.size, "records with gaps")
        at = record.offset + len(record.body)
        if record.kind == ADD:
            run, _ = decode_add(record, file=3, sequence=1, path=_PATH)
            expect(0 <= run.first <= run.last, "a run that ends before it starts")
            expect(run.head_length <= run.length == len(record.body), "a run longer than its record")
        elif record.kind in readers:
            readers[record.kind](record, _PATH)
    expect(at == len(content), "bytes behind the last record")


def _run_segment(data: bytes) -> bool:
    """The fuzzed bytes as all that stands behind a segment's header, which are mostly not whole pages."""
    room = _HEADER.size - SEGMENT_HEADER_BYTES
    image = bytes(SEGMENT_HEADER_BYTES) + data[:room] + bytes(max(0, room - len(data)))
    try:
        scan = scan_segment(memoryview(image), _HEADER, path=_PATH, sequence=None)
        expect(scan.end <= _HEADER.size, "a segment that ends behind its file")
        JournalWalk(_MARK).on_segment(scan, _PATH)
    except StorageCorrupt:
        return False
    return True


def _run_segment_header(data: bytes) -> bool:
    page = (data + bytes(PAGE_BYTES))[: PAGE_BYTES - 4]
    accepted = False
    for whole in (data, page + checksum(page).to_bytes(4, "little")):
        try:
            header = SegmentHeader.decode(whole, path=_PATH, number=3, instance="instance")
        except (StorageCorrupt, IncompatibleVersion):
            continue
        expect(header.number == 3 and header.instance == "instance", "another segment than was meant")
        accepted = True
    return accepted


def _records() -> list[bytes]:
    entries = Entries.build(7, 3, [b"one", b"", b"three"])
    bodies = [
        (ADD, b"".join(encode_add(entries, lac=2, lafr=1, key=bytes(16), recovery=False))),
        (FENCE, encode_fence(7, bytes(16))),
        (START, encode_start(JournalPosition(2, PAGE_BYTES, 0))),
        (DELETE, encode_delete([7, 9])),
    ]
    one_each = [RECORD_HEAD.pack(kind, len(body)) + body for kind, body in bodies]
    return [*one_each, b"".join(one_each)]


def _segments() -> list[bytes]:
    images = []
    for sequence, content in enumerate(_records(), 1):
        view = memoryview(bytearray(PAGE_BYTES))
        view[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + len(content)] = content
        finish_block(view, nonce=_NONCE, segment=3, sequence=sequence, content_bytes=len(content), records=1)
        images.append(bytes(view))
    return [images[0], b"".join(images[:3])]


# --- entry logs -----------------------------------------------------------------------------------

_LOG = entry_log.LogHeader(5, 2 * PAGE_BYTES, _NONCE, "instance", 1)


_RUNS = [
    (frame, decode_add(JournalItem(ADD, 0, memoryview(frame)), file=1, sequence=0, path=_PATH)[0])
    for frame in (
        b"".join(encode_add(entries, lac=0, lafr=-1, key=bytes(16), recovery=False))
        for entries in (
            Entries.build(7, 3, [b"a", b"bb", b"ccc"]),
            Entries.gather(7, {3: b"a", 9: b"bb", 70: b"c"}),
        )
    )
]
"""Frames of consecutive entries and of others, and what the index says of them."""


def _run_run_head(data: bytes) -> bool:
    """The head of a frame that a bookie reads back: as it is, and with its checksum put right."""
    accepted = False
    for _, run in _RUNS:
        head = (data + bytes(run.head_length))[: run.head_length]
        for form in (head, head[:4] + checksum(head[8:]).to_bytes(4, "little") + head[8:], data):
            try:
                ids, digests = decode_head(run, form, _PATH)
            except StorageCorrupt:
                continue
            expect(len(ids) == len(digests) == run.entry_count, "a head of another number of entries")
            accepted = True
    return accepted


def _run_heads() -> list[bytes]:
    return [frame[: run.head_length] for frame, run in _RUNS]


def _run_entry_log(data: bytes) -> bool:
    """Each reader of a part of an entry log; its checksum is checked before, by whoever read the part."""
    accepted = False
    for read in (_ledger_record, _replaces_record, _footer_record, _log_tail, _log_header):
        try:
            read(data)
            accepted = True
        except (StorageCorrupt, IncompatibleVersion):
            continue
    return accepted


def _ledger_record(data: bytes) -> None:
    ledger = entry_log.decode_ledger(data, _PATH, 0)
    again = entry_log.decode_ledger(entry_log.encode_ledger(ledger), _PATH, 0)
    expect(again == ledger, "a ledger that reads back as another one")


def _replaces_record(data: bytes) -> None:
    replaced = entry_log.decode_replaces(data, _PATH, 0)
    expect(
        entry_log.decode_replaces(entry_log.encode_replaces(replaced), _PATH, 0) == replaced, "other files"
    )


def _footer_record(data: bytes) -> None:
    footer = entry_log.decode_footer(data, _PATH, 0)
    expect(entry_log.decode_footer(entry_log.encode_footer(*footer), _PATH, 0) == footer, "another footer")


def _log_tail(data: bytes) -> None:
    tail = (data + bytes(entry_log.TAIL_BYTES))[: entry_log.TAIL_BYTES - 4]
    sealed = tail + checksum(_NONCE + tail).to_bytes(4, "little")
    offset, length = entry_log.decode_tail(sealed, _LOG, _PATH)
    expect(entry_log.LOG_HEADER_BYTES <= offset <= offset + length <= _LOG.size, "a footer outside its file")


def _log_header(data: bytes) -> None:
    page = (data + bytes(PAGE_BYTES))[: PAGE_BYTES - 4]
    sealed = page + checksum(page).to_bytes(4, "little")
    header = entry_log.LogHeader.decode(sealed, path=_PATH, number=5, instance="instance")
    expect(header.number == 5 and header.instance == "instance", "another entry log than was meant")


def _entry_log_parts() -> list[bytes]:
    return [
        entry_log.encode_ledger(entry_log.LoggedLedger(7, bytes(16), True, False, 4, 3)),
        entry_log.encode_replaces(FileSet.of([1, 2, 3, -4])),
        entry_log.encode_footer(2, {7: 100, 9: 50}),
        entry_log.encode_tail(_NONCE, PAGE_BYTES, 100),
        _LOG.encode()[:128],
    ]


# --- the index and the marks ----------------------------------------------------------------------

_LEDGER_KEY = rows.ledger_key(7)
_RUN_KEY = rows.run_key(7, 3)

_ROWS: tuple[tuple[bytes, Callable[[bytes], Any], Callable[[Any], rows.Row]], ...] = (
    (rows.INSTANCE_KEY, lambda value: rows.decode_instance(value, _PATH), rows.encode_instance),
    (rows.MARK_KEY, lambda value: rows.decode_mark(value, _PATH), rows.encode_mark),
    (
        _LEDGER_KEY,
        lambda value: rows.decode_ledger(_LEDGER_KEY, value, _PATH),
        lambda stored: rows.encode_ledger(7, stored),
    ),
    (_RUN_KEY, lambda value: rows.decode_run(_RUN_KEY, value, _PATH), rows.encode_run),
    (
        rows.segment_key(3),
        lambda value: rows.decode_file(rows.segment_key(3), value, _PATH),
        rows.encode_file,
    ),
    (
        rows.usage_key(3),
        lambda value: rows.decode_usage(rows.usage_key(3), value, _PATH),
        lambda usage: rows.encode_usage(3, usage),
    ),
)


def _run_row(data: bytes) -> bool:
    """The first byte chooses the row; the rest is its value, with its checksum put right."""
    if not data:
        return False
    key, decode, encode = _ROWS[data[0] % len(_ROWS)]
    value = data[1:]
    accepted = False
    for whole in (value, value + checksum(key + value).to_bytes(4, "little")):
        try:
            decoded = decode(whole)
        except StorageCorrupt:
            continue
        if key != rows.INSTANCE_KEY:  # Bytes that are no text are shown, and told as another bookie's.
            again = encode(decoded)
            expect(again[0] == key and decode(again[1]) == decoded, "a row that reads back as another one")
        accepted = True
    return accepted


def _rows() -> list[bytes]:
    run = EntryRun(7, 3, 5, 3, 3, PAGE_BYTES, 140, 1)
    stored = StoredLedger(bytes(16), True, 4, 3, 5, 3, -1)
    values = (
        rows.encode_instance("instance"),
        rows.encode_mark(_MARK),
        rows.encode_ledger(7, stored),
        rows.encode_run(run),
        rows.encode_file(rows.FileRow.of(3, end=2 * PAGE_BYTES, last_sequence=1, runs=[run], usage={7: 140})),
        rows.encode_usage(3, {7: 140, 9: 3}),
    )
    return [bytes([number]) + value[:-4] for number, (_, value) in enumerate(values)]


def _run_marks(data: bytes) -> bool:
    accepted = False
    for whole in (data, data + checksum(data).to_bytes(4, "little")):
        try:
            marks = LossMarks.decode_untrusted(whole, _PATH)
        except (StorageCorrupt, IncompatibleVersion):
            continue
        expect(LossMarks.decode_untrusted(marks.encode(), _PATH) == marks, "marks that read back as others")
        gone = marks.limbo[::2]
        rest = marks.cleared(gone)
        expect(not any(rest.denies_nothing(low) for low, _ in gone), "limbo that was cleared and is there")
        expect(LossMarks.decode_untrusted(rest.encode(), _PATH) == rest, "marks that read back as others")
        accepted = True
    return accepted


def _marks() -> list[bytes]:
    some = LossMarks(is_unclean=True, fenced_through=9, limbo=((1, 3), (5, 5)))
    return [LossMarks().encode()[:-4], some.encode()[:-4]]


def _run_gone(data: bytes) -> bool:
    accepted = False
    for whole in (data, data + checksum(data).to_bytes(4, "little")):
        try:
            gone = GoneLedgers.decode_untrusted(whole, path=_PATH, instance="instance")
        except (StorageCorrupt, IncompatibleVersion):
            continue
        ranges = gone.ranges
        again = GoneLedgers.decode_untrusted(gone.encode("instance"), path=_PATH, instance="instance")
        expect(again == gone, "gone ledgers that read back as others")
        expect(all(first in gone and last in gone for first, last in ranges), "an end outside of its range")
        expect(gone.joined(ranges[::2]) == gone, "gone ledgers that joining with their own changes")
        accepted = True
    return accepted


def _gone() -> list[bytes]:
    some = GoneLedgers().joined([(0, 9), (12, 12), (70, 2**40)])
    return [gone.encode("instance")[:-4] for gone in (GoneLedgers(), some)]


FILE_TARGETS = (
    Target("records", _run_records, _records),
    Target("run-head", _run_run_head, _run_heads),
    Target("segment", _run_segment, _segments),
    Target("segment-header", _run_segment_header, lambda: [_HEADER.encode()[:128]]),
    Target("entry-log", _run_entry_log, _entry_log_parts),
    Target("index-row", _run_row, _rows),
    Target("marks", _run_marks, _marks),
    Target("gone-ledgers", _run_gone, _gone),
)
