"""Reading entries: recent ones from arenas, others from the read cache or from files.

**Finding runs.** A *run* is a frame of entries of one ledger, stored in one piece. A ledger's runs are listed
in two places. The ledger's ``BookieLedger`` lists the runs in segments that are in memory. The index lists
all older runs. The address of a run (file, offset, length) is valid while its file exists, and no file is
removed while a read may use it (``FilePool.reading``). So a list of runs never goes stale.

But a run may move from memory to the index during the search, and the search must not miss that run. So the
reader asks the index first and memory second. If a segment left memory in between, the reader asks both
again. The reader also asks again if several runs were merged into one with gaps, because the merged run may
begin further before an entry than any earlier run did (``straddle``). While a segment is flushed, both places
may list the same entries, in runs with different boundaries. ``RangeReader`` takes each entry once.

**Verifying.** Bytes in an arena were verified when they came, except in runs that replaced damaged ones
(``bookie.storage.upkeep.read_repair``). The reader verifies those runs and all bytes from files. It checks
the frame's checksum, which covers ids, lengths and digests, and then each entry's digest. If a check fails,
the status is CORRUPT. If the bytes cannot be read, the status is IO_ERROR. Neither status ever says that the
entry is absent (rule 8). An entry that is not durable yet does not exist yet.

**Pieces.** A reply of a megabyte takes a millisecond or more, and sixty such replies may be under way. No
client may have to wait for all of that. So a read, a list and a scrub work in pieces, and call ``pace`` with
the cost of each piece before they begin it. ``pace`` may wait, and other tasks may run. The runs that were
found and the bytes that were copied before stay valid, as above. So no segment can leave memory, and no file
can be removed, while such a call waits. If somebody waits for that, the call ends after the first entries
that it has found, and the client asks for the rest. The costs are bytes, as in the turns of
``bookie.server.fair``.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Protocol

import trio

from bookie.core.examining import Examination
from bookie.core.frames import decode_head, decode_run
from bookie.core.journal import SegmentImage
from bookie.core.journal_items import EntryRun
from bookie.core.ledger import BookieLedger
from bookie.core.reading import RangeLister, RangeReader
from bookie.core.results import ListResult, ReadResult, ScrubResult
from bookie.storage.engine.forgetting import Forgetter
from bookie.storage.entrylog.file_pool import FilePool
from bookie.storage.entrylog.read_cache import ReadCache
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.journal.journal import Journal
from ledgerlog.errors import StorageCorrupt, StorageError, WireError
from ledgerlog.limits import ENTRY_ID_MAX, KIB, MIB, TURN_BYTES
from ledgerlog.wire.entries import Entries
from ledgerlog.wire.frame import Status
from ledgerlog.wire.scrub import ScrubReport

_RUNS_PER_FETCH = 256
_RUNS_PER_LOOK = 512
"""The most runs in memory that one look finds before other tasks run. This is about a millisecond of work."""

_LIST_EFFORT = 16 * 1024
"""The effort that one list may take, at most a tenth of a second of work. A run without gaps counts as 1. A
run with gaps counts as ``_LIST_SPARSE``, plus 1 for every four entries, because its ids have to be read."""

_LIST_SPARSE = 32
_LIST_STEP = 16
"""A list calls ``pace`` before this many runs."""

_EFFORT_COST = 512

_LIST_PIECE = 64
"""A list reads the ids of this many runs at once."""

_GAP_BYTES = 4096
"""Runs in a file are read together if at most this many bytes lie between them."""

_LOOK_COST = 4 * KIB
_FOUND_COST = 128
_RUN_COST = 2 * KIB
"""The costs of a look for runs, of each run that the look finds, and of reading a run (added to the run's
bytes)."""

Pace = Callable[[int], Awaitable[None]]
"""Called with the cost of a piece of work, in bytes. Waits until that piece may be done."""


async def at_once(cost: int) -> None:
    """Do everything without waiting: a ``Pace`` for the bookie's own reads, which are few."""


class Resident(Protocol):
    """A segment of the journal, or an arena of the write cache, that is in memory."""

    @property
    def image(self) -> SegmentImage: ...

    @property
    def restored(self) -> Container[tuple[int, int]]:
        """Ledger and first id of the runs whose entries were not verified when they came."""
        ...

    @property
    def flushed_to(self) -> int | None:
        """The number of the entry log with its entries; None if they are not flushed."""
        ...


class Reader:
    """Reads the entries of all ledgers.

    Args:
        residents: The segments and arenas in memory, by the number that runs name as their file.
        cache: Entries that were read from files.
        read_ahead_bytes: One read takes up to this many bytes from files, even if fewer are requested.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        residents: Mapping[int, Resident],
        pool: FilePool,
        catalogue: Catalogue,
        forgetter: Forgetter,
        cache: ReadCache,
        read_ahead_bytes: int,
    ) -> None:
        self.runs_from_memory = 0
        self.runs_from_disk = 0
        self._journal = journal
        self._residents = residents
        """The segments and arenas in memory, by the number that runs name as their file."""
        self._pool = pool
        self.cache = cache
        self._read_ahead_bytes = read_ahead_bytes
        self._catalogue = catalogue
        self._forgetter = forgetter
        self._scrubbing = trio.Lock()

    # --- finding runs -----------------------------------------------------------------------------

    async def _find(self, state: BookieLedger, first: int, last: int) -> tuple[list[EntryRun], int]:
        """Find the durable runs that may hold ids from ``first`` on.

        Returns:
            The runs, and the id up to which no run is missing.
        """
        forgetter = self._forgetter
        while first <= state.index_last:
            given_up, straddle = forgetter.given_up, state.straddle
            indexed, horizon = await self._catalogue.runs(
                state.ledger_id, first=first, last=last, straddle=straddle
            )
            # A run that was merged during the search may begin before the part of the index that was
            # searched.
            if given_up == forgetter.given_up and straddle == state.straddle:
                resident, horizon = self._resident(state, first, horizon)
                durable = self._journal.commit.durable
                found = {
                    run.first: run
                    for run in indexed
                    if run.first <= horizon and not state.is_replaced(run.first, durable)
                }
                found.update((run.first, run) for run in resident)
                return [found[key] for key in sorted(found)], horizon
        return self._resident(state, first, last)

    def _resident(self, state: BookieLedger, first: int, last: int) -> tuple[list[EntryRun], int]:
        """Return the durable runs in memory, and the id up to which no run is missing."""
        durable = self._journal.commit.durable
        last = state.horizon(first, last, _RUNS_PER_LOOK)
        return [run for run in state.runs_between(first, last) if run.sequence <= durable], last

    def _is_hurried(self, pace: Pace) -> bool:
        """Whether a call that waits for turns should end early."""
        return self._pool.is_awaited and pace is not at_once

    # --- reading entries --------------------------------------------------------------------------

    async def read(
        self, state: BookieLedger, *, first: int, last: int, stride: int, bytes_max: int, pace: Pace
    ) -> ReadResult:
        """Do ``Engine.read``."""
        last = min(last, ENTRY_ID_MAX)
        with self._pool.reading():
            return await self._read(
                state, first=first, last=last, stride=stride, bytes_max=bytes_max, pace=pace
            )

    async def _read(
        self, state: BookieLedger, *, first: int, last: int, stride: int, bytes_max: int, pace: Pace
    ) -> ReadResult:
        reader = RangeReader(
            ledger_id=state.ledger_id, first=first, last=last, stride=stride, bytes_max=bytes_max
        )
        fetched: dict[EntryRun, bytes | Status] = {}
        content: bytes | Entries | Status | None
        try:
            while not (self._is_hurried(pace) and reader.end_early()):
                run = reader.wanted()
                if run is None:
                    if reader.is_over:
                        break
                    if reader.horizon >= first:
                        await trio.lowlevel.checkpoint()  # Finding runs in memory has no checkpoint.
                    await pace(_LOOK_COST)
                    runs, horizon = await self._find(state, reader.horizon + 1, last)
                    reader.extend(runs, horizon)
                    await pace(_FOUND_COST * len(runs))
                    continue
                await pace(self._cost_of(run))
                content = fetched.pop(run) if run in fetched else self._cached(run)
                if content is None:
                    # The rest of the last fetch was read ahead. Keep it for the next read.
                    self._keep(fetched)
                    fetched = await self._fetch(list(reader.upcoming), bytes_max)
                    content = fetched.pop(run)
                self._give(reader, run, content)
            self._keep(fetched)
        except StorageCorrupt:
            status = Status.CORRUPT
        except StorageError:
            status = Status.IO_ERROR
        else:
            status = reader.status
        return ReadResult(status, reader.take_entries(), reader.through, state.lac, state.lafr)

    def _cost_of(self, run: EntryRun) -> int:
        """Return the cost of reading a run. Verified bytes cost less, because they are only copied."""
        is_verified = run.file in self._residents or self.cache.holds_verified(run)
        return _RUN_COST + (run.length >> 2 if is_verified else run.length)

    async def _fetch(self, runs: Sequence[EntryRun], bytes_max: int) -> dict[EntryRun, bytes | Status]:
        """Fetch the frames of the first few runs: as many as a read of ``bytes_max`` payload bytes may need.

        Either all of these runs lie in one segment in memory, or all lie in files. The frames come in the
        order of the runs.
        """
        resident = self._residents.get(runs[0].file)
        if resident is not None:
            number, view = runs[0].file, resident.image.view
            batch = _first_few(takewhile(lambda run: run.file == number, runs), min(bytes_max, TURN_BYTES))
            self.runs_from_memory += len(batch)
            return {run: bytes(view[run.offset : run.offset + run.length]) for run in batch}
        on_disk = takewhile(lambda run: run.file not in self._residents, runs)
        batch = _first_few(on_disk, max(bytes_max, self._read_ahead_bytes))
        self.runs_from_disk += len(batch)
        try:
            return await self._read_together(batch)
        except StorageError:
            # One of several files cannot be read. Try the first run's file alone.
            number = batch[0].file
            batch = list(takewhile(lambda run: run.file == number, batch))
        try:
            return await self._read_together(batch)
        except StorageError:
            return dict.fromkeys(batch, Status.IO_ERROR)

    async def _read_together(self, batch: Sequence[EntryRun]) -> dict[EntryRun, bytes | Status]:
        """Read the frames of some runs in files. Neighbours in a file are read as one range."""
        files: dict[int, list[list[EntryRun]]] = {}
        for run in batch:
            spans = files.setdefault(run.file, [])
            before = spans[-1][-1] if spans else None
            if before is not None and 0 <= run.offset - before.offset - before.length <= _GAP_BYTES:
                spans[-1].append(run)
            else:
                spans.append([run])
        found = await self._pool.read_many(
            [
                (
                    file,
                    [(span[0].offset, span[-1].offset + span[-1].length - span[0].offset) for span in spans],
                )
                for file, spans in files.items()
            ]
        )
        frames: dict[EntryRun, bytes | Status] = {}
        for spans, data in zip(files.values(), found, strict=True):
            for span, part in zip(spans, data, strict=True):
                start = span[0].offset
                for run in span:
                    frames[run] = part[run.offset - start : run.offset - start + run.length]
        return {run: frames[run] for run in batch}

    def _cached(self, run: EntryRun) -> bytes | Entries | None:
        return None if run.file in self._residents else self.cache.get(run)

    def _keep(self, fetched: dict[EntryRun, bytes | Status]) -> None:
        for run, frame in fetched.items():
            if isinstance(frame, bytes) and run.file not in self._residents:
                self.cache.put(run, frame)

    def _give(self, reader: RangeReader, run: EntryRun, content: bytes | Entries | Status) -> None:
        """Give the reader the content of the run that it wants."""
        if isinstance(content, Entries):
            reader.on_entries(run, content)
            return
        if isinstance(content, Status):
            reader.on_unreadable(run, content)
            return
        try:
            entries = decode_run(run, content)
        except WireError:
            reader.on_unreadable(run, Status.CORRUPT)
            return
        resident = self._residents.get(run.file)
        if resident is not None and (run.ledger_id, run.first) not in resident.restored:
            reader.on_entries(run, entries)
            return
        reader.on_entries(run, entries, damaged := entries.damaged())
        if resident is None and not damaged:
            self.cache.put(run, entries)

    # --- listing ----------------------------------------------------------------------------------

    async def list_entries(
        self, state: BookieLedger, *, first: int, last: int, pairs_max: int, pace: Pace
    ) -> ListResult:
        """Do ``Engine.list_entries``."""
        with self._pool.reading():
            return await self._list_entries(
                state, first=first, last=min(last, ENTRY_ID_MAX), pairs_max=pairs_max, pace=pace
            )

    async def _list_entries(
        self, state: BookieLedger, *, first: int, last: int, pairs_max: int, pace: Pace
    ) -> ListResult:
        lister = RangeLister(first=first, pairs_max=pairs_max)
        horizon, effort = first - 1, _LIST_EFFORT
        try:
            while horizon < last:
                await pace(_LOOK_COST)
                runs, horizon = await self._find(state, horizon + 1, last)
                ids: dict[EntryRun, Sequence[int]] = {}
                for at, run in enumerate(runs):
                    if at % _LIST_STEP == 0:
                        await pace(_EFFORT_COST * sum(map(_effort_of, runs[at : at + _LIST_STEP])))
                    if not lister.settle(run.first):
                        return ListResult(Status.OK, lister.pairs, lister.pairs[-1][1])
                    # An empty list says that there are no entries. So a list that ends early must have a
                    # range.
                    if lister.pairs and (effort <= 0 or self._is_hurried(pace)):
                        return ListResult(Status.OK, lister.pairs, run.first - 1)
                    if not run.is_dense and run not in ids:
                        ids = await self._ids(runs[at : at + _LIST_PIECE])
                    lister.add(run, None if run.is_dense else ids[run])
                    effort -= _effort_of(run)
                if not lister.settle(horizon + 1):
                    return ListResult(Status.OK, lister.pairs, lister.pairs[-1][1])
                await trio.lowlevel.checkpoint()
        except StorageCorrupt:
            status = Status.CORRUPT
        except StorageError:
            status = Status.IO_ERROR
        else:
            return ListResult(Status.OK, lister.pairs, last)
        through = lister.pairs[-1][1] if lister.pairs else first - 1
        return ListResult(status, lister.pairs, through)

    async def _ids(self, runs: Sequence[EntryRun]) -> dict[EntryRun, Sequence[int]]:
        """Read the ids of the runs that have gaps, with one read of each file."""
        heads: dict[EntryRun, bytes] = {}
        by_file: dict[int, list[EntryRun]] = {}
        for run in runs:
            if run.is_dense:
                continue
            segment = self._residents.get(run.file)
            if segment is None:
                by_file.setdefault(run.file, []).append(run)
            else:
                # Copy before another task runs: afterwards the arena may be reused for another segment.
                heads[run] = bytes(segment.image.view[run.offset : run.offset + run.head_length])
        if by_file:
            found = await self._pool.read_many(
                [(file, [(run.offset, run.head_length) for run in its]) for file, its in by_file.items()]
            )
            for its, read in zip(by_file.values(), found, strict=True):
                heads.update(zip(its, read, strict=True))
        else:
            await trio.lowlevel.checkpoint()
        return {run: decode_head(run, head, self._pool.path_of(run.file))[0] for run, head in heads.items()}

    # --- scrubbing --------------------------------------------------------------------------------

    async def scrub(
        self, state: BookieLedger, *, first: int, last: int, classes: int, bytes_max: int, pace: Pace
    ) -> ScrubResult:
        """Do ``Engine.scrub``. Calls run one after the other, so the disk has time for other work."""
        last = min(last, ENTRY_ID_MAX)
        examination = Examination(first=first, last=last, classes=classes, bytes_max=bytes_max)
        async with self._scrubbing:
            with self._pool.reading():
                if state.is_deleted:  # While another call was running. Its files may be removed already.
                    return ScrubResult(Status.NO_SUCH_LEDGER, ScrubReport((), (), ()), last)
                try:
                    horizon = await self._examine(state, examination, min(bytes_max, MIB), pace)
                except StorageError as damage:
                    is_damage = isinstance(damage, StorageCorrupt)
                    nothing = ScrubReport((), (), ())
                    return ScrubResult(Status.CORRUPT if is_damage else Status.IO_ERROR, nothing, first - 1)
        return ScrubResult(Status.OK, *examination.close(horizon))

    async def _examine(
        self, state: BookieLedger, examination: Examination, fetch_bytes: int, pace: Pace
    ) -> int:
        """Examine the runs from the first entry on, until the examination has no more room.

        This does not use or fill the read cache, because the bytes on the disk must be checked. It fetches
        about ``fetch_bytes`` at once.

        Returns:
            The id up to which no run is missing.
        """
        # Look only once. A second look would again find the runs that span the end of the first look.
        await pace(_LOOK_COST)
        runs, horizon = await self._find(state, examination.first, examination.last)
        upcoming = deque(run for run in runs if run.last >= examination.first)
        while upcoming:
            fetched = await self._fetch(list(itertools.islice(upcoming, _RUNS_PER_FETCH)), fetch_bytes)
            for run, content in fetched.items():
                await pace(_RUN_COST + run.length)
                assert upcoming.popleft() is run
                if isinstance(content, Status):
                    examination.add_unreadable(run)
                else:
                    try:
                        entries = decode_run(run, content)
                    except WireError:
                        examination.add_unreadable(run)
                    else:
                        examination.add(run, entries, entries.damaged())
                # The caller must make progress, so examine at least all runs that may hold the first entry.
                is_enough = not examination.has_room or self._is_hurried(pace)
                if upcoming and is_enough and upcoming[0].first > examination.first:
                    return upcoming[0].first - 1
            await trio.lowlevel.checkpoint()
        return horizon


def _effort_of(run: EntryRun) -> int:
    """Return the effort of listing a run."""
    return 1 if run.is_dense else _LIST_SPARSE + run.entry_count // 4


def _first_few(runs: Iterable[EntryRun], bytes_max: int) -> list[EntryRun]:
    """Return the first run, and the following ones while the sum is at most ``bytes_max`` bytes."""
    batch: list[EntryRun] = []
    size = 0
    for run in runs:
        size += run.length
        if batch and (size > bytes_max or len(batch) == _RUNS_PER_FETCH):
            break
        batch.append(run)
    return batch
