"""Reading entries: from arenas where they are recent, from what was read before, from files otherwise.

A ledger's runs are known in two places: those in segments that are in memory in its ``LedgerState``, all
older ones in the index. A run's address (file, offset, length) is good as long as its file is, and a file
stays while a read that may have heard of it is under way (``FilePool.reading``), so a plan made of runs never
goes stale; only finding them must not miss a run that moves from the one place to the other meanwhile. Hence
the index is asked first, then memory, and both again if a segment left memory in between, or if runs were put
together to one with gaps, which may begin further before its entries than any did (``straddle``). While a
segment is flushed the same entries may be found in both, in runs that are cut differently; ``RangeReader``
takes them once.

Bytes from an arena were verified when they came and are copied out at once. Bytes from a file are verified
here: the frame's checksum, which covers ids, lengths and digests, and each entry's digest. What fails is
CORRUPT, what cannot be read is IO_ERROR, and neither is ever taken for an absence (rule 8). An entry that is
not durable yet does not exist yet.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Protocol

import trio

from bookie.core.examining import Examination
from bookie.core.journal import SegmentImage
from bookie.core.ledger import LedgerState
from bookie.core.reading import RangeLister, RangeReader
from bookie.core.records import Run
from bookie.core.results import ListResult, ReadResult, ScrubResult
from bookie.storage.catalogue import Catalogue
from bookie.storage.files import FilePool
from bookie.storage.journal import Journal
from bookie.storage.read_cache import ReadCache
from ledgerlog.errors import StorageCorrupt, StorageError, WireError
from ledgerlog.limits import ENTRY_ID_MAX
from ledgerlog.wire.checksum import checksum, entry_digests, u32_array
from ledgerlog.wire.entries import Entries, compact_ids, decode_entries_untrusted
from ledgerlog.wire.frame import HEADER, HEADER_BYTES, SPARSE, Frame, Header, Kind, Status
from ledgerlog.wire.scrub import ScrubReport

_RUNS_PER_FETCH = 256
_GAP_BYTES = 4096
"""Runs that lie no further apart are read together."""


class Resident(Protocol):
    """A segment, or an arena of the write cache, that is in memory."""

    @property
    def image(self) -> SegmentImage: ...


class Reader:
    """``read_ahead_bytes`` are read at once where so much lies together, however little is asked for."""

    def __init__(
        self,
        *,
        journal: Journal,
        residents: Mapping[int, Resident],
        pool: FilePool,
        catalogue: Catalogue,
        cache: ReadCache,
        read_ahead_bytes: int,
    ) -> None:
        self.runs_from_memory = 0
        self.runs_from_disk = 0
        self._journal = journal
        self._residents = residents
        """What is in memory, by the number of the file that runs name."""
        self._pool = pool
        self.cache = cache
        self._read_ahead_bytes = read_ahead_bytes
        self._catalogue = catalogue
        self._scrubbing = trio.Lock()

    # --- finding runs -----------------------------------------------------------------------------

    async def _find(self, state: LedgerState, first: int, last: int) -> tuple[list[Run], int]:
        """The durable runs that may hold ids from ``first`` on, and the id up to which these are all."""
        journal = self._journal
        while first <= state.index_last:
            given_up, straddle = journal.given_up, state.straddle
            indexed, horizon = await self._catalogue.runs(
                state.ledger_id, first=first, last=last, straddle=straddle
            )
            # Runs that were put together meanwhile may begin further ahead than was looked.
            if given_up == journal.given_up and straddle == state.straddle:
                found = {run.first: run for run in indexed}
                found.update((run.first, run) for run in self._resident(state, first, horizon))
                return [found[key] for key in sorted(found)], horizon
        return self._resident(state, first, last), last

    def _resident(self, state: LedgerState, first: int, last: int) -> list[Run]:
        durable = self._journal.commit.durable
        return [run for run in state.runs_between(first, last) if run.sequence <= durable]

    # --- reading entries --------------------------------------------------------------------------

    async def read(
        self, state: LedgerState, *, first: int, last: int, stride: int, bytes_max: int
    ) -> ReadResult:
        """See ``Engine.read``."""
        last = min(last, ENTRY_ID_MAX)
        with self._pool.reading():
            return await self._read(state, first=first, last=last, stride=stride, bytes_max=bytes_max)

    async def _read(
        self, state: LedgerState, *, first: int, last: int, stride: int, bytes_max: int
    ) -> ReadResult:
        reader = RangeReader(
            ledger_id=state.ledger_id, first=first, last=last, stride=stride, bytes_max=bytes_max
        )
        fetched: dict[Run, bytes | Status] = {}
        content: bytes | Entries | Status | None
        try:
            while True:
                run = reader.wanted()
                if run is None:
                    if reader.is_over:
                        break
                    runs, horizon = await self._find(state, reader.horizon + 1, last)
                    reader.extend(runs, horizon)
                    continue
                content = fetched.pop(run) if run in fetched else self._cached(run)
                if content is None:
                    # What is left over from the last fetch was read ahead, for whoever reads on.
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

    async def _fetch(self, runs: Sequence[Run], bytes_max: int) -> dict[Run, bytes | Status]:
        """The frames of the first few runs: as many as lie in one segment in memory, or in files, and
        as may be needed for ``bytes_max`` payload bytes."""
        resident = self._residents.get(runs[0].file)
        if resident is not None:
            number, view = runs[0].file, resident.image.view
            batch = _first_few(takewhile(lambda run: run.file == number, runs), bytes_max)
            self.runs_from_memory += len(batch)
            return {run: bytes(view[run.offset : run.offset + run.length]) for run in batch}
        on_disk = takewhile(lambda run: run.file not in self._residents, runs)
        batch = _first_few(on_disk, max(bytes_max, self._read_ahead_bytes))
        self.runs_from_disk += len(batch)
        try:
            return await self._read_together(batch)
        except StorageError:
            # That one of several files cannot be read says nothing of the others.
            batch = [run for run in batch if run.file == batch[0].file]
        try:
            return await self._read_together(batch)
        except StorageError:
            return dict.fromkeys(batch, Status.IO_ERROR)

    async def _read_together(self, batch: Sequence[Run]) -> dict[Run, bytes | Status]:
        """The frames of some runs in files; those that lie together in one are read as one range."""
        files: dict[int, list[list[Run]]] = {}
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
        frames: dict[Run, bytes | Status] = {}
        for spans, data in zip(files.values(), found, strict=True):
            for span, part in zip(spans, data, strict=True):
                start = span[0].offset
                for run in span:
                    frames[run] = part[run.offset - start : run.offset - start + run.length]
        return frames

    def _cached(self, run: Run) -> bytes | Entries | None:
        return None if run.file in self._residents else self.cache.get(run)

    def _keep(self, fetched: dict[Run, bytes | Status]) -> None:
        for run, frame in fetched.items():
            if isinstance(frame, bytes) and run.file not in self._residents:
                self.cache.put(run, frame)

    def _give(self, reader: RangeReader, run: Run, content: bytes | Entries | Status) -> None:
        """Hand the run that the reader wants to it."""
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
        if run.file in self._residents:
            reader.on_entries(run, entries)
            return
        reader.on_entries(run, entries, damaged := damaged_entries(entries))
        if not damaged:
            self.cache.put(run, entries)

    # --- listing ----------------------------------------------------------------------------------

    async def list_entries(self, state: LedgerState, *, first: int, pairs_max: int) -> ListResult:
        """See ``Engine.list_entries``."""
        with self._pool.reading():
            return await self._list_entries(state, first=first, pairs_max=pairs_max)

    async def _list_entries(self, state: LedgerState, *, first: int, pairs_max: int) -> ListResult:
        lister = RangeLister(first=first, pairs_max=pairs_max)
        horizon = first - 1
        try:
            while horizon < ENTRY_ID_MAX:
                runs, horizon = await self._find(state, horizon + 1, ENTRY_ID_MAX)
                for run in runs:
                    if not lister.settle(run.first):
                        return ListResult(Status.OK, lister.pairs, lister.pairs[-1][1])
                    lister.add(run, None if run.is_dense else await self._ids(run))
                if not lister.settle(horizon + 1):
                    return ListResult(Status.OK, lister.pairs, lister.pairs[-1][1])
        except StorageCorrupt:
            status = Status.CORRUPT
        except StorageError:
            status = Status.IO_ERROR
        else:
            return ListResult(Status.OK, lister.pairs, ENTRY_ID_MAX)
        through = lister.pairs[-1][1] if lister.pairs else first - 1
        return ListResult(status, lister.pairs, through)

    async def _ids(self, run: Run) -> Sequence[int]:
        segment = self._residents.get(run.file)
        if segment is not None:
            # Copied before anything else runs: an arena may serve another segment afterwards.
            head = bytes(segment.image.view[run.offset : run.offset + run.head_length])
            await trio.lowlevel.checkpoint()
        else:
            (head,) = await self._pool.read(run.file, [(run.offset, run.head_length)])
        return self._decode_head(run, head)[0]

    # --- scrubbing --------------------------------------------------------------------------------

    async def scrub(
        self, state: LedgerState, *, first: int, last: int, classes: int, bytes_max: int
    ) -> ScrubResult:
        """See ``Engine.scrub``. One after the other: however many ask, the disk serves others beside them."""
        last = min(last, ENTRY_ID_MAX)
        examination = Examination(first=first, last=last, classes=classes, bytes_max=bytes_max)
        async with self._scrubbing:
            with self._pool.reading():
                try:
                    horizon = await self._examine(state, examination, bytes_max)
                except StorageError as damage:
                    is_damage = isinstance(damage, StorageCorrupt)
                    nothing = ScrubReport((), (), ())
                    return ScrubResult(Status.CORRUPT if is_damage else Status.IO_ERROR, nothing, first - 1)
        return ScrubResult(Status.OK, *examination.close(horizon))

    async def _examine(self, state: LedgerState, examination: Examination, bytes_max: int) -> int:
        """Hand over the runs from the first entry on, as far as the work goes; up to which id they are all.

        What was read before is not taken from the cache, nor put there: the disk is what is asked about."""
        # All that one look finds. A second look would find the runs that reach over its end again.
        runs, horizon = await self._find(state, examination.first, examination.last)
        upcoming = deque(run for run in runs if run.last >= examination.first)
        while upcoming:
            fetched = await self._fetch(list(itertools.islice(upcoming, _RUNS_PER_FETCH)), bytes_max)
            for run, content in fetched.items():
                assert upcoming.popleft() is run
                if isinstance(content, Status):
                    examination.add_unreadable(run)
                else:
                    try:
                        entries = decode_run(run, content)
                    except WireError:
                        examination.add_unreadable(run)
                    else:
                        examination.add(run, entries, damaged_entries(entries))
                # Whoever asks must get on: all that may hold the first entry is looked at.
                if upcoming and not examination.has_room and upcoming[0].first > examination.first:
                    return upcoming[0].first - 1
            await trio.lowlevel.checkpoint()
        return horizon

    # --- for adds ---------------------------------------------------------------------------------

    def digests_now(self, state: LedgerState, first: int, last: int) -> dict[int, int]:
        """The digests of all entries from ``first`` to ``last``, durable or pending, by id.

        Does not let other tasks run, because an add's verdict depends on it (rule 3); it reads the disk where
        those entries left memory, which takes a re-sent or repaired entry of an older time. StorageCorrupt or
        StorageError if they cannot be read."""
        runs = {run.first: run for run in state.runs_between(first, last)}
        if first <= state.index_last:
            for run in self._catalogue.runs_now(
                state.ledger_id, first=first, last=last, straddle=state.straddle
            ):
                runs.setdefault(run.first, run)
        found: dict[int, int] = {}
        for run in runs.values():
            segment = self._residents.get(run.file)
            if segment is not None:
                head = bytes(segment.image.view[run.offset : run.offset + run.head_length])
            else:
                head = self._pool.read_now(run.file, run.offset, run.head_length)
            ids, digests = self._decode_head(run, head)
            found.update((e, d) for e, d in zip(ids, digests, strict=True) if first <= e <= last)
        return found

    def _decode_head(self, run: Run, head: bytes) -> tuple[Sequence[int], Sequence[int]]:
        """Ids and digests of a run, from the first ``run.head_length`` bytes of its frame."""
        count, path = run.entry_count, self._pool.path_of(run.file)
        if len(head) != run.head_length:
            raise StorageCorrupt(path, run.offset, "the file ends inside a frame")
        header = Header._make(HEADER.unpack_from(head))
        if checksum(head[8:]) != header.checksum or not _is_frame_of(run, header):
            raise StorageCorrupt(path, run.offset, f"not the frame of entries {run.first}..{run.last}")
        digests = u32_array(head[HEADER_BYTES + 4 * count : HEADER_BYTES + 8 * count])
        if run.is_dense:
            return range(run.first, run.last + 1), digests
        offsets = u32_array(head[HEADER_BYTES + 8 * count :])
        return [run.first + offset for offset in offsets], digests


def _is_frame_of(run: Run, header: Header) -> bool:
    return (
        header.kind == Kind.ADD
        and header.length + 4 == run.length
        and header.ledger_id == run.ledger_id
        and header.first == run.first
        and header.last == run.last
        and header.entry_count == run.entry_count
        and bool(header.flags & SPARSE) != run.is_dense
    )


def decode_run(run: Run, raw: bytes) -> Entries:
    """The entries of a run's frame. WireError if the bytes are not that frame; digests are not looked at."""
    if len(raw) != run.length or run.head_length > run.length:
        raise WireError(f"{len(raw)} bytes of a frame of {run.length}")
    header = Header._make(HEADER.unpack_from(raw))
    if not _is_frame_of(run, header):
        raise WireError(f"not the frame of entries {run.first}..{run.last} of ledger {run.ledger_id}")
    if checksum(raw[8 : run.head_length]) != header.checksum:
        raise WireError("the frame's checksum does not match")
    entries = decode_entries_untrusted(Frame(header, memoryview(raw)))
    entries.ids = compact_ids(list(entries.ids)) if not run.is_dense else entries.ids
    return entries


def damaged_entries(entries: Entries) -> list[int]:
    """The ids of entries that do not match their digests."""
    actual = entry_digests(entries.ledger_id, entries.ids, entries.payloads())
    if actual == entries.digests:
        return []
    return [e for e, a, d in zip(entries.ids, actual, entries.digests, strict=True) if a != d]


def _first_few(runs: Iterable[Run], bytes_max: int) -> list[Run]:
    """The first of some runs, and more of them up to ``bytes_max``."""
    batch: list[Run] = []
    size = 0
    for run in runs:
        size += run.length
        if batch and (size > bytes_max or len(batch) == _RUNS_PER_FETCH):
            break
        batch.append(run)
    return batch
