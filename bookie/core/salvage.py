"""Salvage: read what is still sound in a damaged file, as facts (``bookie.core.facts``).

Each file's header has a random nonce, which is part of every checksum in the file. So if a record's checksum
matches, this bookie wrote the record there, even if the bytes around the record are damaged. No client can
forge a record, because no client knows the nonce. If the header is damaged, the nonce is lost and no record
in the file can be verified.

* A segment is searched page by page. In a block, a page is *bad* if it does not match its checksum. A record
  of the block is taken if no bad page holds a part of it, and if the lengths of all earlier records in the
  block are known.
* After a damaged record, an entry log is searched for the head of the next record. Entries hold any bytes,
  and also bytes that look like a head. So a checksum is computed only if the fields of the record fit its
  kind: otherwise a search would read most of the file again for each of these places.

For example, a segment has the blocks 41, 42 and 43, and the header of 42 is damaged. Salvage then gives all
records of 41 and 43. ``bookie.storage.upkeep.salvage`` writes these facts into new entry logs.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator

from bookie.core.block import BLOCK_HEADER_BYTES, PAGE_BYTES, BlockHeader, bad_pages, decode_header
from bookie.core.entry_log import (
    HEAD_BYTES,
    LEDGER,
    LEDGER_BYTES,
    LOG_HEADER_BYTES,
    REPLACES,
    LoggedLedger,
    LogHeader,
    decode_head,
    is_whole,
)
from bookie.core.facts import Add, Fact, log_fact, segment_fact
from bookie.core.frames import is_head_sound
from bookie.core.journal_items import (
    ADD,
    RECORD_HEAD_BYTES,
    EntryRun,
    JournalItem,
    decode_add,
    decode_records,
)
from bookie.core.segment import SEGMENT_HEADER_BYTES, SegmentHeader
from ledgerlog.errors import StorageCorrupt
from ledgerlog.limits import FRAME_BYTES_MAX, KIB

_NUMBER = struct.Struct("<Q")
_NUMBER_AT = 16
_KINDS = (ADD, LEDGER, REPLACES)
"""The kinds of the records that give facts. No fact comes from a FOOTER."""
_HEAD_BEGINS = re.compile(b"[%c%c%c]\0\0\0" % _KINDS)
"""How the head of such a record begins: its kind and three zero bytes."""
_STEP_BYTES = 256 * KIB
"""About how many bytes are searched or verified in vain before ``log_facts`` yields None."""
_TRY_BYTES = 128
"""Looking at one place costs about as much as searching this many bytes."""


def own_number(page: bytes) -> int:
    """Return the number in the header of a segment or an entry log; -1 if the page is too short.

    If files were exchanged, this number differs from the one in the file's name. The caller verifies the
    header.
    """
    return _NUMBER.unpack_from(page, _NUMBER_AT)[0] if len(page) == PAGE_BYTES else -1


def owner_of(page: bytes, path: str) -> str | None:
    """Return the bookie instance that the first page of a segment or an entry log names; None if the page is
    not a sound header."""
    for header in (SegmentHeader, LogHeader):
        try:
            return header.decode(page, path=path, number=own_number(page), instance=None).instance
        except StorageCorrupt:
            continue
    return None


def segment_facts(image: memoryview, header: SegmentHeader, path: str) -> Iterator[tuple[int, Fact]]:
    """Yield each fact of the sound records of a segment, with the sequence of the record's block."""
    at = SEGMENT_HEADER_BYTES
    while at + PAGE_BYTES <= len(image):
        view = image[at:]
        block = decode_header(view, nonce=header.nonce, segment=header.number)
        if block is None or block.block_bytes > len(view):
            at += PAGE_BYTES
            continue
        bad = bad_pages(view, block, nonce=header.nonce)
        if bad is None:
            at += PAGE_BYTES
            continue
        for fact in _block_facts(image, at, block, bad, path):
            yield block.sequence, fact
        at += block.block_bytes


def _block_facts(
    image: memoryview, at: int, block: BlockHeader, bad: frozenset[int], path: str
) -> Iterator[Fact]:
    start = at + BLOCK_HEADER_BYTES
    try:
        for record in decode_records(image, start, start + block.content_bytes, path):
            first = (record.offset - RECORD_HEAD_BYTES - at) // PAGE_BYTES
            last = (record.offset + len(record.body) - 1 - at) // PAGE_BYTES
            if bad.isdisjoint(range(first, last + 1)):
                yield segment_fact(record, block, path)
            elif record.kind != ADD or not is_head_sound(record.body):
                return  # The record's length may be damaged, so the next record cannot be found.
    except StorageCorrupt:
        return


def log_facts(image: memoryview, header: LogHeader, path: str) -> Iterator[Fact | None]:
    """Yield each fact of the sound records of an entry log. A ledger's state comes before its entries.

    While the search finds no record, this yields None now and then, so that the caller can let other tasks
    run.
    """
    at, in_vain = LOG_HEADER_BYTES, 0
    # Whether a whole record, or the file's header, ends at ``at``. Then a head begins here, whatever its zero
    # bytes are now: no checksum covers them.
    is_next = True
    known: set[int] = set()
    while at + HEAD_BYTES <= len(image):
        if in_vain >= _STEP_BYTES:
            in_vain = 0
            yield None
        if not is_next:
            found = _HEAD_BEGINS.search(image, at, at + _STEP_BYTES)
            if found is None:
                at += _STEP_BYTES - 3  # A head may begin in the last three bytes.
                in_vain = _STEP_BYTES
                continue
            in_vain += found.start() - at
            at = found.start()
        is_next = False
        in_vain += _TRY_BYTES
        body = _possible_body(image, at)
        if body is None:
            at += 1
            continue
        head = decode_head(image, at)
        if not is_whole(header.nonce, at, head, body):
            in_vain += head.length
            at += 1
            continue
        fact = log_fact(head.kind, at + HEAD_BYTES, body, file=-header.number, path=path)
        at, in_vain, is_next = at + HEAD_BYTES + head.length, 0, True
        if isinstance(fact, LoggedLedger):
            known.add(fact.ledger_id)
        elif isinstance(fact, Add) and fact.run.ledger_id not in known:
            known.add(fact.run.ledger_id)
            # The LEDGER record of this ledger is lost. The loss marks make up for a fence that it recorded.
            yield LoggedLedger(fact.run.ledger_id, fact.header.key, False, False, -1, -1)
        yield fact


def _possible_body(image: memoryview, at: int) -> bytes | None:
    """Return the body of the record at ``at``; None if there is certainly no record."""
    if at + HEAD_BYTES > len(image):
        return None
    kind, length, _ = decode_head(image, at)
    if kind not in _KINDS:
        return None
    body = image[at + HEAD_BYTES : at + HEAD_BYTES + length]
    if len(body) != length:
        return None
    if kind == LEDGER and length != LEDGER_BYTES:
        return None
    if kind == REPLACES and at != LOG_HEADER_BYTES:
        return None  # There is only one, and it comes first.
    if kind == ADD:
        if length > 4 + FRAME_BYTES_MAX:
            return None
        try:
            decode_add(JournalItem(ADD, at + HEAD_BYTES, body), file=0, sequence=0, path="")
        except StorageCorrupt:
            return None
    return bytes(body)


def fullest(runs: Iterable[EntryRun]) -> list[EntryRun]:
    """Return the runs, sorted, with at most one run for each ledger and first id.

    The index has room for only one run with the same ledger and first id. If there are several, keep the run
    with the most entries, or the last of these runs if they are equal. If a dropped run has other entries,
    these entries count as lost, and are copied from other bookies.
    """
    found: dict[tuple[int, int], EntryRun] = {}
    for run in runs:
        known = found.get((run.ledger_id, run.first))
        if known is None or run.entry_count >= known.entry_count:
            found[run.ledger_id, run.first] = run
    return [found[key] for key in sorted(found)]
