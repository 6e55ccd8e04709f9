"""The index as the storage sees it: ledgers, runs, segments and the mark, instead of rows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import trio

from bookie.core import rows
from bookie.core.boot import ReplayStart
from bookie.core.journal_items import EntryRun
from bookie.core.ledger import StoredLedger
from bookie.core.rows import Change, FileRow, Row
from bookie.storage.index.index import Index
from ledgerlog.errors import StorageCorrupt

_SCAN_ROWS = 256
_MORE = 4
"""Where a look finds too few rows, the next one is for so many times as many."""
_NO_LIMIT = 2**31
_PAGE_ROWS = 1024


class Catalogue:
    def __init__(self, index: Index) -> None:
        self.index = index
        self.lock = trio.Lock()
        """Held for each piece of what moves runs, indexes them or removes them: what it decides by must still
        be so when it is written."""

    @property
    def path(self) -> str:
        return self.index.path

    # --- single values ----------------------------------------------------------------------------

    def instance_now(self) -> str:
        """The instance of the bookie whose index this is. StorageCorrupt if it does not say."""
        value = self.index.get_now(rows.INSTANCE_KEY)
        if value is None:
            raise StorageCorrupt(self.path, None, "the index does not say whose it is")
        return rows.decode_instance(value, self.path)

    def mark_now(self) -> ReplayStart:
        """Where replay begins. StorageCorrupt if the index does not say."""
        value = self.index.get_now(rows.MARK_KEY)
        if value is None:
            raise StorageCorrupt(self.path, None, "the index has no mark")
        return rows.decode_mark(value, self.path)

    def ledger_now(self, ledger_id: int) -> StoredLedger | None:
        """What is known of a ledger, None if nothing is."""
        key = rows.ledger_key(ledger_id)
        value = self.index.get_now(key)
        return None if value is None else rows.decode_ledger(key, value, self.path)

    def names_now(self, run: EntryRun) -> bool:
        """Whether the index names just this run. Of a row that is damaged it is not known, and False."""
        key = rows.run_key(run.ledger_id, run.first)
        value = self.index.get_now(key)
        if value is None:
            return False
        try:
            return rows.decode_run(key, value, self.path) == run
        except StorageCorrupt:
            return False

    # --- ranges -----------------------------------------------------------------------------------

    async def segments(self) -> list[FileRow]:
        """Every segment that the index knows, in order."""
        return await self._files(rows.segment_key)

    async def logs(self) -> list[FileRow]:
        """Every entry log that the index knows, in order."""
        return await self._files(rows.log_key)

    async def _files(self, key_of: Callable[[int], bytes]) -> list[FileRow]:
        async with aclosing(self.pages(key_of(0), key_of(2**64 - 1))) as pages:
            return [rows.decode_file(key, value, self.path) async for page in pages for key, value in page]

    async def ledgers(self) -> AsyncGenerator[list[tuple[int, StoredLedger]], None]:
        """What is known of every ledger, in order, a page at a time."""
        async with aclosing(self.pages(rows.ledger_key(0), rows.ledger_key(2**64 - 1))) as pages:
            async for page in pages:
                yield [
                    (rows.ledger_of_key(key), rows.decode_ledger(key, value, self.path))
                    for key, value in page
                ]

    async def pages(self, start: bytes, stop: bytes) -> AsyncGenerator[list[Row], None]:
        """All rows with ``start <= key < stop``, in order, a page at a time. Each page is found when it is
        asked for, so rows may come and go between two of them."""
        while True:
            page = await self.index.scan(start, stop, floor=start, limit=_PAGE_ROWS)
            if page:
                yield page
            if len(page) < _PAGE_ROWS:
                return
            start = page[-1][0] + b"\0"

    async def file(self, file: int) -> FileRow | None:
        """What is known of a file, None if nothing is."""
        key = rows.file_key(file)
        part = await self.index.scan(key, key + b"\0", floor=key, limit=1)
        return rows.decode_file(*part[0], self.path) if part else None

    async def usage(self, file: int) -> dict[int, int]:
        """The ledgers that have runs in a file which count, and how many bytes."""
        key = rows.usage_key(file)
        part = await self.index.scan(key, key + b"\0", floor=key, limit=1)
        return rows.decode_usage(*part[0], self.path) if part else {}

    async def runs(
        self, ledger_id: int, *, first: int, last: int, straddle: int
    ) -> tuple[list[EntryRun], int]:
        """Runs of a ledger that may hold ids from ``first`` on, sorted, and the id up to which these are all
        that the index has (at most ``last``, at least ``first``)."""
        limit = _SCAN_ROWS
        while True:
            # All in one look: between two of them, runs that it has yet to meet could become part of one that
            # begins where it was already. Whoever moves runs is not waited for, since that one may itself be
            # waiting for room on the disk.
            search = _RunSearch(self.path, ledger_id, first=first, last=last, straddle=straddle)
            search.take(
                await self.index.scan(search.start, search.stop, floor=search.floor, limit=limit), limit
            )
            if search.is_done:
                return search.runs, search.horizon
            limit *= _MORE

    def runs_now(self, ledger_id: int, *, first: int, last: int, straddle: int) -> list[EntryRun]:
        """All runs of a ledger that may hold ids from ``first`` to ``last``, found with one look."""
        search = _RunSearch(self.path, ledger_id, first=first, last=last, straddle=straddle)
        rows_found = self.index.scan_now(search.start, search.stop, floor=search.floor, limit=_NO_LIMIT)
        search.take(rows_found, _NO_LIMIT)
        return search.runs

    async def write(self, batch: Sequence[Change]) -> None:
        await self.index.write(batch)


class _RunSearch:
    """Finds the runs around a range of ids: from the last one that begins at or before it (or ``straddle``
    before that) to the end of the range or of a scan."""

    def __init__(self, path: str, ledger_id: int, *, first: int, last: int, straddle: int) -> None:
        assert 0 <= first <= last
        self._path = path
        self._first = first
        # One past it, so that the run that begins exactly there is found as the one below ``start``.
        begin = max(0, first - straddle) + 1
        self.floor = rows.run_key(ledger_id, 0)
        self.start = rows.run_key(ledger_id, begin)
        self.stop = rows.run_key(ledger_id, last + 1)
        self.horizon = last
        self.runs: list[EntryRun] = []
        self.is_done = False

    def take(self, part: list[Row], limit: int) -> None:
        """What a scan for up to ``limit`` rows from ``start`` on has found."""
        runs = [rows.decode_run(key, value, self._path) for key, value in part]
        self.runs = [run for run in runs if run.last >= self._first]
        if len(part) < limit:
            self.is_done = True
        elif runs[-1].first >= self._first:
            # There may be more runs behind; none of them begins at or before this one.
            self.horizon = runs[-1].first
            self.is_done = True
