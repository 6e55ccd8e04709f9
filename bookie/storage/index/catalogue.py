"""The index in the terms of the storage: ledgers, runs, files and the replay mark instead of rows.

A *run* is a frame of entries of one ledger, stored in one piece.
"""

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
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import StorageCorrupt
from ledgerlog.limits import LEDGER_ID_MAX

_SCAN_ROWS = 256
_MORE = 4
"""If a scan finds too few rows, the limit of the next scan is this many times as large."""
_NO_LIMIT = 2**31
_PAGE_ROWS = 1024


class Catalogue:
    """Reads and writes the rows of an index as values: ``StoredLedger``, ``EntryRun``, ``FileRow``.

    Methods that end in ``_now`` read from the disk in the caller's thread.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.lock = trio.Lock()
        """Hold this lock for each batch that moves, indexes or removes runs: from the reads on which the
        batch depends until the batch is written."""

    @property
    def path(self) -> str:
        return self.index.path

    # --- single values ----------------------------------------------------------------------------

    def instance_now(self) -> str:
        """Return the instance of the bookie that owns the index. Raises StorageCorrupt if the index has no
        such row."""
        value = self.index.get_now(rows.INSTANCE_KEY)
        if value is None:
            raise StorageCorrupt(self.path, None, "the index does not name its bookie")
        return rows.decode_instance(value, self.path)

    def mark_now(self) -> ReplayStart:
        """Return the replay mark: the position in the journal at which replay begins. Raises StorageCorrupt
        if the index has no such row."""
        value = self.index.get_now(rows.MARK_KEY)
        if value is None:
            raise StorageCorrupt(self.path, None, "the index has no mark")
        return rows.decode_mark(value, self.path)

    def ledger_now(self, ledger_id: int) -> StoredLedger | None:
        """Return the stored state of a ledger; None if the index has none."""
        key = rows.ledger_key(ledger_id)
        value = self.index.get_now(key)
        return None if value is None else rows.decode_ledger(key, value, self.path)

    def names_now(self, run: EntryRun) -> bool:
        """Whether the index has a row for exactly this run. False if the row is damaged."""
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
        """Return every segment that the index knows, in order."""
        return await self._files(rows.segment_key)

    async def logs(self) -> list[FileRow]:
        """Return every entry log that the index knows, in order."""
        return await self._files(rows.log_key)

    async def _files(self, key_of: Callable[[int], bytes]) -> list[FileRow]:
        async with aclosing(self.pages(key_of(0), key_of(2**64 - 1))) as pages:
            return [rows.decode_file(key, value, self.path) async for page in pages for key, value in page]

    async def ledgers(
        self, first: int = 0, last: int = LEDGER_ID_MAX
    ) -> AsyncGenerator[list[tuple[int, StoredLedger]], None]:
        """Yield the id and the stored state of each ledger from ``first`` to ``last``, in order, page by
        page."""
        async with aclosing(self.pages(rows.ledger_key(first), rows.ledger_key(last + 1))) as pages:
            async for page in pages:
                yield [
                    (rows.ledger_of_key(key), rows.decode_ledger(key, value, self.path))
                    for key, value in page
                ]

    async def ledgers_from(self, first: int, maximum: int) -> tuple[list[tuple[int, StoredLedger]], int]:
        """Return up to ``maximum`` ledgers from ``first`` on, in order, and the ledger id up to which the
        result is complete."""
        start, stop = rows.ledger_key(first), rows.ledger_key(2**64 - 1)
        page = await self.index.scan(start, stop, floor=start, limit=maximum)
        found = [(rows.ledger_of_key(key), rows.decode_ledger(key, value, self.path)) for key, value in page]
        return found, LEDGER_ID_MAX if len(found) < maximum else found[-1][0]

    async def pages(self, start: bytes, stop: bytes) -> AsyncGenerator[list[Row], None]:
        """Yield all rows with ``start <= key < stop``, in order, one page at a time. Each page is read when
        you ask for it, so rows may appear and disappear between two pages."""
        while True:
            page = await self.index.scan(start, stop, floor=start, limit=_PAGE_ROWS)
            if page:
                yield page
            if len(page) < _PAGE_ROWS:
                return
            start = page[-1][0] + b"\0"

    async def file(self, file: int) -> FileRow | None:
        """Return the row of a file; None if the index has none."""
        key = rows.file_key(file)
        part = await self.index.scan(key, key + b"\0", floor=key, limit=1)
        return rows.decode_file(*part[0], self.path) if part else None

    async def usage(self, file: int) -> dict[int, int]:
        """Return the ledgers with live runs in a file (runs that the index names), and the bytes of these
        runs."""
        key = rows.usage_key(file)
        part = await self.index.scan(key, key + b"\0", floor=key, limit=1)
        return rows.decode_usage(*part[0], self.path) if part else {}

    async def runs(
        self, ledger_id: int, *, first: int, last: int, straddle: int
    ) -> tuple[list[EntryRun], int]:
        """Find the runs of a ledger that may hold entries from ``first`` on.

        Args:
            ledger_id: The ledger.
            first: The first entry id.
            last: The last entry id.
            straddle: How far before an entry its run may begin, even if another run begins in between
                (``bookie.core.ledger``).

        Returns:
            The runs, sorted, and an entry id from ``first`` to ``last``: up to this id, these are all runs in
            the index. If the range has many runs, the id is less than ``last``; call again from there.
        """
        limit = _SCAN_ROWS
        while True:
            # One scan must find all runs. Between two scans, a merge could join runs from the second scan's
            # range to a run that begins in the first scan's range. Neither scan would find the joined runs.
            # Do not take the lock instead: its holder may be waiting for room on the disk.
            search = _RunSearch(self.path, ledger_id, first=first, last=last, straddle=straddle)
            search.take(
                await self.index.scan(search.start, search.stop, floor=search.floor, limit=limit), limit
            )
            if search.is_done:
                return search.runs, search.horizon
            limit *= _MORE

    def runs_now(self, ledger_id: int, *, first: int, last: int, straddle: int) -> list[EntryRun]:
        """Return all runs of a ledger that may hold entries from ``first`` to ``last``, found by one scan."""
        search = _RunSearch(self.path, ledger_id, first=first, last=last, straddle=straddle)
        rows_found = self.index.scan_now(search.start, search.stop, floor=search.floor, limit=_NO_LIMIT)
        search.take(rows_found, _NO_LIMIT)
        return search.runs

    async def check(self, pace: Pace | None = None) -> None:
        """Read every row.

        Args:
            pace: Reads no faster than this allows. None: as fast as the disk allows.

        Raises:
            StorageCorrupt: The index is damaged.
        """
        async with aclosing(self.pages(b"", rows.BEHIND_ALL_KEYS)) as pages:
            async for page in pages:
                for key, value in page:
                    if not key.startswith(b"\0"):  # Rows with such keys belong to the index itself.
                        rows.check_row(key, value, self.path)
                if pace is not None:
                    await pace.pass_through(sum(len(key) + len(value) for key, value in page))

    async def write(self, batch: Sequence[Change]) -> None:
        """Write a batch atomically and durably, as ``Index.write`` does."""
        await self.index.write(batch)


class _RunSearch:
    """Finds the runs that may hold entries of a range. The search begins with the last run that begins at or
    before ``first - straddle``. It ends at the end of the range or of the scan."""

    def __init__(self, path: str, ledger_id: int, *, first: int, last: int, straddle: int) -> None:
        assert 0 <= first <= last
        self._path = path
        self._first = first
        # Plus one, because a scan also returns the row below ``start``: a run that begins exactly there.
        begin = max(0, first - straddle) + 1
        self.floor = rows.run_key(ledger_id, 0)
        self.start = rows.run_key(ledger_id, begin)
        self.stop = rows.run_key(ledger_id, last + 1)
        self.horizon = last
        self.runs: list[EntryRun] = []
        self.is_done = False

    def take(self, part: list[Row], limit: int) -> None:
        """Take the rows found by a scan for at most ``limit`` rows from ``start`` on."""
        runs = [rows.decode_run(key, value, self._path) for key, value in part]
        self.runs = [run for run in runs if run.last >= self._first]
        if len(part) < limit:
            self.is_done = True
        elif runs[-1].first >= self._first:
            # There may be more runs; they all begin after this one.
            self.horizon = runs[-1].first
            self.is_done = True
