"""Walking through the index page by page."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from bookie.core import rows
from bookie.core.journal_items import EntryRun
from bookie.core.ledger import StoredLedger
from bookie.core.rows import FileRow
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.index.index import MemoryIndex

STORED = StoredLedger(b"k" * 16, is_fenced=False, lac=-1, lafr=-1, last_entry=-1, widest=0, straddle=0)


async def ledger_ids(catalogue: Catalogue) -> list[int]:
    async with aclosing(catalogue.ledgers()) as pages:
        return [ledger_id async for page in pages for ledger_id, _ in page]


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 2048, 2500])
async def test_every_row_comes_once_and_in_order_however_many_pages_there_are(count: int) -> None:
    catalogue = Catalogue(MemoryIndex())
    await catalogue.write([rows.encode_ledger(number, STORED) for number in range(count)])
    empty = [FileRow.of(number, end=1, runs=(), usage={}) for number in range(1, count + 1)]
    await catalogue.write([change for row in empty for change in rows.encode_file_and_usage(row, {})])
    await catalogue.write([rows.encode_run(EntryRun(5, 0, 0, 1, 1, 0, 10, 1))])
    assert await ledger_ids(catalogue) == list(range(count))
    assert [row.file for row in await catalogue.segments()] == list(range(1, count + 1))
    assert await catalogue.logs() == []


async def test_a_page_is_found_when_it_is_asked_for() -> None:
    catalogue = Catalogue(MemoryIndex())
    await catalogue.write([rows.encode_ledger(number, STORED) for number in range(3000)])
    async with aclosing(catalogue.ledgers()) as pages:
        seen = [ledger_id for ledger_id, _ in await anext(pages)]
        await catalogue.write([(rows.ledger_key(number), None) for number in range(2000)])
        seen += [ledger_id async for page in pages for ledger_id, _ in page]
    assert seen == [*range(1024), *range(2000, 3000)]
