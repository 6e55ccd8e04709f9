"""The facts in records: one value for each kind, and the same walk for segments and for entry logs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import pytest

from bookie.core.block import PAGE_BYTES
from bookie.core.entry_log import LEDGER, LoggedLedger, encode_ledger
from bookie.core.facts import Add, Close, Deletion, Fact, Replaces, Start, block_facts, log_fact
from bookie.core.file_set import FileSet
from bookie.core.journal import GroupCommit, SegmentImage
from bookie.core.journal_items import (
    ADD,
    DELETE,
    FENCE,
    START,
    EntryRun,
    Fence,
    JournalPosition,
    encode_delete,
    encode_fence,
    encode_start,
)
from bookie.core.merging import merge_runs
from bookie.core.segment import SEGMENT_HEADER_BYTES, BlockWalk, SegmentHeader
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.found_ledgers import FoundLedgers
from bookie.storage.entrylog.entry_files import EntryFiles
from bookie.storage.entrylog.entry_logs import EntryLogFiles
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.index.index import MemoryIndex
from bookie.storage.journal.segments import SegmentFiles
from ledgerlog.errors import StorageCorrupt
from ledgerlog.wire.entries import Entries, encode_add

NONCE = b"n" * 16
KEY = b"k" * 16
FRAME = b"".join(encode_add(Entries.build(7, 41, [b"a", b"b"]), lac=40, lafr=39, key=KEY, recovery=False))


class Segment:
    """Segment 1. Each list of records becomes one block."""

    def __init__(self, *blocks: Sequence[tuple[int, bytes]], close: bool = False) -> None:
        self.header = SegmentHeader(number=1, size=16 * PAGE_BYTES, nonce=NONCE, instance="i")
        self.image = memoryview(bytearray(self.header.size))
        self.image[:SEGMENT_HEADER_BYTES] = self.header.encode()
        self.commit = GroupCommit(durable=0, image=SegmentImage(1, NONCE, self.image))
        for records in blocks:
            for kind, body in records:
                assert self.commit.append(kind, body) is not None
            self._write()
        if close:
            self.commit.append_close()
            self._write()

    def _write(self) -> None:
        block = self.commit.take_block()
        assert block is not None
        self.commit.on_written(block)

    def facts(self, stop: int | None = None) -> list[Fact]:
        walk = BlockWalk(self.image, self.header, path="f", stop=stop)
        return [fact for block in walk for fact in block_facts(self.image, block, "f")]


WHOLE = (
    [(START, encode_start(JournalPosition(0, 0, 0)))],
    [(ADD, FRAME), (FENCE, encode_fence(7, KEY))],
    [(DELETE, encode_delete([3, 4]))],
)


def test_each_record_of_a_segment_is_one_fact_in_order() -> None:
    start, add, fence, deletion, close = Segment(*WHOLE, close=True).facts()
    assert start == Start(JournalPosition(0, 0, 0))
    assert isinstance(add, Add)
    assert add.run[:5] == (7, 41, 42, 2, 1)
    assert (add.run.sequence, add.header.lac, add.header.key) == (2, 40, KEY)
    assert (fence, deletion, close) == (Fence(7, KEY), Deletion((3, 4)), Close())


def test_a_record_of_a_kind_that_does_not_belong_into_its_file_is_corrupt() -> None:
    ledger = encode_ledger(LoggedLedger(7, KEY, is_fenced=False, is_deleted=False, lac=1, lafr=1))
    with pytest.raises(StorageCorrupt, match="unknown kind 6"):
        Segment([(LEDGER, ledger)]).facts()
    with pytest.raises(StorageCorrupt, match="unknown kind 2"):
        log_fact(FENCE, 4108, encode_fence(7, KEY), file=-1, path="f")


def test_nothing_behind_the_end_that_is_known_is_looked_at() -> None:
    segment = Segment(*WHOLE)
    stop = 3 * PAGE_BYTES
    segment.image[stop : stop + 8] = b"anything"
    assert len(segment.facts(stop)) == 3
    with pytest.raises(StorageCorrupt, match="a damaged block"):
        segment.facts(stop + PAGE_BYTES)


async def test_the_same_walk_goes_through_a_segment_and_the_log_that_took_its_place() -> None:
    disk, segment = MemoryDisk(), Segment(*WHOLE)
    logs = EntryLogFiles(disk, "b/entries", "i", lambda: NONCE)
    files = EntryFiles(SegmentFiles(disk, "b/journal", "i"), logs)
    for directory in ("b", "b/journal"):
        await disk.make_directory(directory)
    await disk.write_file(files.path(1), bytes(segment.image))
    run = next(fact.run for fact in segment.facts() if isinstance(fact, Add))

    async def fetch(runs: Sequence[EntryRun]) -> list[memoryview]:
        return [segment.image[each.offset : each.offset + each.length] for each in runs]

    await logs.prepare()
    ledger = LoggedLedger(7, KEY, is_fenced=True, is_deleted=False, lac=40, lafr=39)
    written = await logs.write(
        level=0,
        replaced=FileSet.of([1]),
        ledgers={7: ledger},
        runs=list(merge_runs([run])),
        usage={7: run.length},
        fetch=fetch,
        pace=None,
    )
    assert await walked(files, 1, 4 * PAGE_BYTES) == segment.facts()
    replaces, logged, add = await walked(files, -1, written.size)
    assert (replaces, logged) == (Replaces(FileSet.of([1])), ledger)
    assert isinstance(add, Add)
    assert add.run == written.runs[0]


async def walked(files: EntryFiles, file: int, end: int) -> list[Fact]:
    async with aclosing(files.facts(file, end=end)) as facts:
        return [fact async for fact in facts]


async def test_a_segment_and_a_log_say_the_same_of_a_ledger() -> None:
    """They agree on the fence, the bounds and the LAC. Only the index's hints for finding runs may differ."""
    logged = LoggedLedger(7, KEY, is_fenced=True, is_deleted=False, lac=40, lafr=39)
    in_log = [logged, log_fact(ADD, 4108, FRAME, file=-1, path="f")]
    for facts in (Segment(*WHOLE).facts(), in_log):
        catalogue = Catalogue(MemoryIndex())
        ledgers = FoundLedgers(catalogue)
        assert [run.last for fact in facts if (run := ledgers.take(fact, "f")) is not None] == [42]
        await ledgers.save()
        stored = catalogue.ledger_now(7)
        assert stored is not None
        assert (stored.is_fenced, stored.lac, stored.lafr, stored.last_entry) == (True, 40, 39, 42)


async def test_entries_in_a_log_come_behind_the_record_of_their_ledger() -> None:
    ledgers = FoundLedgers(Catalogue(MemoryIndex()))
    with pytest.raises(StorageCorrupt, match="before its record"):
        ledgers.take(log_fact(ADD, 4108, FRAME, file=-1, path="f"), "f")
