"""Facts: one decoded value for each kind of record, from segments of the journal and from entry logs.

    in a segment        Add, Fence, Deletion, Start, Close
    in an entry log     Replaces, LoggedLedger, Add

Code that reads whole files (replay, compaction, start-up clean-up, rebuilding the index, inspection) works on
facts and decodes no records. If a record has a kind that its file must not have, another version or a bug
wrote it; reading it raises StorageCorrupt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bookie.core.block import BlockHeader
from bookie.core.entry_log import LEDGER, REPLACES, LoggedLedger, decode_ledger, decode_replaces
from bookie.core.file_set import FileSet
from bookie.core.journal_items import (
    ADD,
    CLOSE,
    DELETE,
    FENCE,
    START,
    EntryRun,
    Fence,
    JournalItem,
    JournalPosition,
    decode_add,
    decode_delete,
    decode_fence,
    decode_start,
)
from bookie.core.segment import FoundBlock
from ledgerlog.errors import StorageCorrupt
from ledgerlog.wire.frame import Header


class Add(NamedTuple):
    """A frame of entries."""

    run: EntryRun
    """The place of the frame in its file."""
    header: Header


class Deletion(NamedTuple):
    """The metadata store no longer has these ledgers."""

    ledger_ids: tuple[int, ...]


class Start(NamedTuple):
    """A bookie started here."""

    end: JournalPosition
    """The end of the journal before this start."""


class Close(NamedTuple):
    """The bookie was stopped cleanly."""


class Replaces(NamedTuple):
    """The entry log replaced these files."""

    files: FileSet


Fact = Add | Fence | Deletion | Start | Close | LoggedLedger | Replaces


def block_facts(image: memoryview, block: FoundBlock, path: str) -> Iterator[Fact]:
    """Yield the facts of a valid block of a segment.

    Args:
        image: The segment's bytes.
        block: The block, found in ``image``.
        path: The segment's path, for errors.

    Raises:
        StorageCorrupt: A record does not parse, or its kind does not belong in a segment.
    """
    for record in block.records(image, path):
        yield segment_fact(record, block.header, path)


def segment_fact(record: JournalItem, header: BlockHeader, path: str) -> Fact:
    """Decode a record of a segment.

    Args:
        record: The record. The caller has verified its bytes.
        header: The header of its block.
        path: The segment's path, for errors.

    Raises:
        StorageCorrupt: The record does not parse, or its kind does not belong in a segment.
    """
    if record.kind == ADD:
        return Add(*decode_add(record, file=header.segment, sequence=header.sequence, path=path))
    if record.kind == FENCE:
        return decode_fence(record, path)
    if record.kind == DELETE:
        return Deletion(decode_delete(record, path))
    if record.kind == START:
        return Start(decode_start(record, path))
    if record.kind == CLOSE:
        return Close()
    raise StorageCorrupt(path, record.offset, f"a record of unknown kind {record.kind}")


def log_fact(kind: int, offset: int, body: bytes, *, file: int, path: str) -> Fact:
    """Decode a record of an entry log.

    The caller has verified the record's checksum, or at least the head of its frame if it is an ADD.

    Args:
        kind: The record's kind.
        offset: The place of the record's body in the entry log.
        body: The record's body.
        file: The file number of the entry log, which is negative.
        path: The entry log's path, for errors.

    Raises:
        StorageCorrupt: The record does not parse, or its kind does not belong in an entry log.
    """
    if kind == ADD:
        add = JournalItem(ADD, offset, memoryview(body))
        return Add(*decode_add(add, file=file, sequence=0, path=path))
    if kind == LEDGER:
        return decode_ledger(body, path, offset)
    if kind == REPLACES:
        return Replaces(decode_replaces(body, path, offset))
    raise StorageCorrupt(path, offset, f"a record of unknown kind {kind}")
