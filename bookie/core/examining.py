"""The result of scrubbing a range of entries: which ids are sound, which are not, and sums of digests.

A *run* is a frame of entries of one ledger at its place in a file. The runs of a range come in the order of
their first ids, as for a read, each with the ids of its damaged entries. Runs may interleave, and while
entries are being moved two runs may hold the same entries. An entry is *sound* if it is intact in every run
that holds it. An entry is *unsound* if it is damaged in any of these runs, because a reader may meet that
copy. If a run cannot be read, only its first and last id are known. Then all ids from the first to the last
count as unsound, except entries that are sound in another run.

    examination = Examination(first=..., last=..., classes=..., bytes_max=...)
    while examination.has_room:             # else the reply ends before the next run
        examination.add(run, entries, damaged)      # or add_unreadable(run)
    report, through = examination.close(horizon)

**The work is bounded** by ``bytes_max``: each run costs its bytes and ``_RUN_BYTES``. The reply is bounded
too: ``last`` is lowered until every sum has room, and the reply ends when one list of ranges is full. The
first run is always examined, so the client always makes progress.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import mul

import attrs

from bookie.core.journal_items import EntryRun
from ledgerlog.limits import KIB, SCRUB_BLOCK_ENTRIES, SCRUB_RANGES_MAX, SCRUB_SUMS_MAX
from ledgerlog.model.id_ranges import joined, ranges_of, without
from ledgerlog.wire.entries import Entries
from ledgerlog.wire.scrub import ScrubReport, ScrubSum, add_sums, scrub_weights

__all__ = ["Examination"]

_RUN_BYTES = 4 * KIB
"""The cost of looking at a run, in addition to its bytes. This many bytes could be read in the same time."""

Pairs = list[tuple[int, int]]


@attrs.frozen
class _Found:
    """A run that was read. ``digests`` are the digests of its entries, in the order of ``ids``."""

    ids: Sequence[int]
    digests: Sequence[int]
    damaged: frozenset[int]


class Examination:
    """The examination of one range, for one request (see the module's text).

    Args:
        first: The first id of the range.
        last: The last id of the range. It may be lowered (``Examination.last``).
        classes: Each block of ``SCRUB_BLOCK_ENTRIES`` ids is divided into this many classes, by
            ``id % classes``. Each class of each block has a sum of digests.
        bytes_max: How many bytes of runs may be examined.
    """

    def __init__(self, *, first: int, last: int, classes: int, bytes_max: int) -> None:
        assert 0 <= first <= last
        assert 1 <= classes <= SCRUB_BLOCK_ENTRIES
        blocks = SCRUB_SUMS_MAX // classes
        self.first = first
        self.last = min(last, (first // SCRUB_BLOCK_ENTRIES + blocks) * SCRUB_BLOCK_ENTRIES - 1)
        """Entries beyond this id are not examined."""
        self._classes = classes
        self._room = bytes_max
        self._found: list[_Found] = []
        self._unreadable: Pairs = []
        self._reach = -1
        self._is_interleaved = False

    @property
    def has_room(self) -> bool:
        """Whether one more run may be read for this request."""
        return self._room > 0

    def add(self, run: EntryRun, entries: Entries, damaged: Collection[int] = ()) -> None:
        """Take the next run and its entries. ``damaged``: the ids of entries that fail their digests."""
        self._count(run)
        self._found.append(_Found(entries.ids, entries.digests, frozenset(damaged)))

    def add_unreadable(self, run: EntryRun) -> None:
        """Take the next run, which cannot be read. ``run`` is its row in the index."""
        self._count(run)
        self._unreadable.append((run.first, run.last))

    def _count(self, run: EntryRun) -> None:
        self._room -= run.length + _RUN_BYTES
        self._is_interleaved = self._is_interleaved or run.first <= self._reach
        self._reach = max(self._reach, run.last)

    def close(self, horizon: int) -> tuple[ScrubReport, int]:
        """Return the report, and the entry through which the report is complete.

        Call this after you have added all runs that begin at or below ``horizon``.
        """
        looked_at = through = min(self.last, horizon)
        if self._is_interleaved:
            self._merge()
        damaged = sorted(set().union(*(found.damaged for found in self._found)))
        sound = joined(_within(self._sound_ranges(), self.first, through))
        # If an entry is sound in one run, it can be read there. So it is not unsound, even if another run
        # with the entry cannot be read.
        doubtful = without(joined(self._unreadable), sound)
        unsound = joined(_within([*doubtful, *ranges_of(damaged)], self.first, through))
        for ranges in (sound, unsound):
            if len(ranges) > SCRUB_RANGES_MAX:
                through = min(through, ranges[SCRUB_RANGES_MAX - 1][1])
        if through < looked_at:
            sound, unsound = (list(_within(ranges, self.first, through)) for ranges in (sound, unsound))
        return ScrubReport(sound, unsound, self._sums(through)), through

    def _merge(self) -> None:
        """Count each entry once. An entry counts as damaged if it is damaged in any run that holds it."""
        digests: dict[int, int] = {}
        damaged = frozenset().union(*(found.damaged for found in self._found))
        for found in self._found:
            digests.update(zip(found.ids, found.digests, strict=True))
        ids = sorted(digests)
        self._found = [_Found(ids, [digests[entry_id] for entry_id in ids], damaged)]

    def _sound_ranges(self) -> Iterator[tuple[int, int]]:
        for found in self._found:
            if isinstance(found.ids, range) and not found.damaged:
                yield found.ids[0], found.ids[-1]
            else:
                yield from ranges_of(entry_id for entry_id in found.ids if entry_id not in found.damaged)

    def _sums(self, through: int) -> list[ScrubSum]:
        sums: dict[tuple[int, int], tuple[int, int]] = {}
        for found in self._found:
            if isinstance(found.ids, range) and not found.damaged:
                parts = self._slices(found.ids, found.digests, through)
            else:
                parts = self._one_by_one(found, through)
            for key, count, total in parts:
                counted, summed = sums.get(key, (0, 0))
                sums[key] = counted + count, add_sums(summed, total)
        return [(*key, *sums[key]) for key in sorted(sums)]

    def _slices(
        self, ids: range, digests: Sequence[int], through: int
    ) -> Iterator[tuple[tuple[int, int], int, int]]:
        """Yield the sums of consecutive entries. Each class of each block is summed as one slice."""
        classes, start = self._classes, ids[0]
        at, end = max(self.first, start), min(through, ids[-1]) + 1
        while at < end:
            block = at // SCRUB_BLOCK_ENTRIES
            stop = min(end, (block + 1) * SCRUB_BLOCK_ENTRIES)
            for entry_id in range(at, min(stop, at + classes)):
                part = digests[entry_id - start : stop - start : classes]
                place = entry_id % SCRUB_BLOCK_ENTRIES
                weights = scrub_weights()[place : place + stop - entry_id : classes]
                yield (block, entry_id % classes), len(part), sum(map(mul, part, weights))
            at = stop

    def _one_by_one(self, found: _Found, through: int) -> Iterator[tuple[tuple[int, int], int, int]]:
        first, classes, damaged = self.first, self._classes, found.damaged
        for entry_id, digest in zip(found.ids, found.digests, strict=True):
            if first <= entry_id <= through and entry_id not in damaged:
                block, place = divmod(entry_id, SCRUB_BLOCK_ENTRIES)
                yield (block, entry_id % classes), 1, digest * scrub_weights()[place]


def _within(ranges: Iterable[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of the ranges that lie between ``first`` and ``last``, both included."""
    for low, high in ranges:
        if max(low, first) <= min(high, last):
            yield max(low, first), min(high, last)
