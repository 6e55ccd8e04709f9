"""What a record says: one decoded value for each kind, from segments of the journal and from entry logs.

    in a segment        Add, Fence, Deletion, Start, Close
    in an entry log     Replaces, LoggedLedger, Add

Whoever goes through files (replay, compaction, clean-up at a start, making the index again, inspection) takes
these, and knows nothing of records. A record of a kind that does not belong into its file was written by
another version or by a bug: StorageCorrupt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bookie.core.entry_log import LEDGER, REPLACES, LoggedLedger, decode_ledger, decode_replaces
from bookie.core.file_set import FileSet
from bookie.core.records import (
    ADD,
    CLOSE,
    DELETE,
    FENCE,
    START,
    Fence,
    Place,
    Record,
    Run,
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

    run: Run
    """Where it lies."""
    header: Header


class Deletion(NamedTuple):
    """The metadata store said that these ledgers are gone."""

    ledger_ids: tuple[int, ...]


class Start(NamedTuple):
    """A bookie started here."""

    end: Place
    """Where the journal before it ends."""


class Close(NamedTuple):
    """The bookie was stopped cleanly."""


class Replaces(NamedTuple):
    """The entry log took the place of these files."""

    files: FileSet


Fact = Add | Fence | Deletion | Start | Close | LoggedLedger | Replaces


def block_facts(image: memoryview, block: FoundBlock, path: str) -> Iterator[Fact]:
    """What a valid block says of the segment whose file is ``image``. StorageCorrupt, naming ``path``, if its
    records do not parse."""
    header = block.header
    for record in block.records(image, path):
        if record.kind == ADD:
            yield Add(*decode_add(record, file=header.segment, sequence=header.sequence, path=path))
        elif record.kind == FENCE:
            yield decode_fence(record, path)
        elif record.kind == DELETE:
            yield Deletion(decode_delete(record, path))
        elif record.kind == START:
            yield Start(decode_start(record, path))
        elif record.kind == CLOSE:
            yield Close()
        else:
            raise StorageCorrupt(path, record.offset, f"a record of unknown kind {record.kind}")


def log_fact(kind: int, offset: int, body: bytes, *, file: int, path: str) -> Fact:
    """What a record of an entry log says that was proved, and whose body is at ``offset``. StorageCorrupt,
    naming ``path``, if it does not parse."""
    if kind == ADD:
        add = Record(ADD, offset, memoryview(body))
        return Add(*decode_add(add, file=file, sequence=0, path=path))
    if kind == LEDGER:
        return decode_ledger(body, path, offset)
    if kind == REPLACES:
        return Replaces(decode_replaces(body, path, offset))
    raise StorageCorrupt(path, offset, f"a record of unknown kind {kind}")
