"""Building a reply to a read from runs.

A *run* is a frame of entries of one ledger at its place in a file. A read asks for the entries first, first +
stride, ... up to last. The ledger's runs are sorted by their first id. Runs may interleave after striping and
resends. While entries are being moved, two runs may hold the same entries; then each entry is taken from one
of the two. ``RangeReader`` takes runs one at a time, and only the runs that it needs. It emits entries in the
order of their ids:

    reader = RangeReader(...)
    reader.extend(runs, horizon)            # runs known, complete through ``horizon``
    while (run := reader.wanted()):         # not None: this run is needed next
        reader.on_entries(run, entries)     # or on_unreadable(run, status)

The reader emits the entries of a run together, up to the place where another run begins. It emits entries one
by one only where runs interleave. The reply ends at ``bytes_max`` payload bytes (the first entry always fits)
and at ``limits.FRAME_ENTRIES_MAX`` entries. It also ends before an id that is 2**32 or more above the reply's
first id, because a frame stores this distance in 32 bits.

For one reply, the reader looks at runs of about ``EXAMINED_BYTES_MAX`` bytes in total at most. The reply ends
before the next run. Otherwise a request of a few bytes, with a large stride, could read a whole ledger. The
reader always decides about the first entry asked for, so a client always makes progress with its next
request.

The reply is complete up to the id ``through``: if an entry up to this id was asked for and is not in the
reply, the entry does not exist here. ``through`` never passes an entry that exists and could not be read
(rule 8). Such an entry ends the reply.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

from bookie.core.journal_items import EntryRun
from ledgerlog.limits import FRAME_ENTRIES_MAX, KIB, MIB
from ledgerlog.model.id_ranges import ranges_of
from ledgerlog.wire.entries import Entries, compact_ids
from ledgerlog.wire.frame import Status

_SPAN_MAX = 2**32

EXAMINED_BYTES_MAX = 16 * MIB
"""The most bytes of frames that the reader looks at for one reply, with ``_RUN_BYTES`` added for each frame.
Half of this is enough for a reply of usual size, even if the ledger is striped over the largest ensemble."""

_RUN_BYTES = 4 * KIB
"""The cost of looking at a run, in addition to its bytes. This many bytes could be read in the same time."""


class _Cursor:
    """The requested entries of one run, from ``at`` on."""

    __slots__ = ("at", "entries", "ids", "indices", "payload", "starts")

    def __init__(self, entries: Entries, first: int, last: int, stride: int) -> None:
        ids = entries.ids
        self.entries = entries
        self.indices: Sequence[int]
        if isinstance(ids, range):
            low = max(first, ids[0])
            low += -(low - first) % stride
            self.indices = range(low - ids[0], min(last, ids[-1]) - ids[0] + 1, stride)
        else:
            low, high = bisect_left(ids, first), bisect_right(ids, last)
            self.indices = range(low, high)
            if stride > 1:
                self.indices = [index for index in self.indices if (ids[index] - first) % stride == 0]
        self.ids = ids
        self.at = 0
        self.payload = memoryview(entries.payload)
        # Where each payload begins, and where the last one ends. A slice of payloads needs the places of both
        # its ends, and entries seldom have the same size.
        self.starts = array("Q", itertools.accumulate(entries.lengths, initial=0))

    def __lt__(self, other: _Cursor) -> bool:
        return self.next_id < other.next_id

    @property
    def next_id(self) -> int:
        return self.ids[self.indices[self.at]]

    @property
    def is_done(self) -> bool:
        return self.at >= len(self.indices)

    def count_below(self, bound: int) -> int:
        """Return how many of the remaining entries have an id below ``bound``."""
        rest = self.indices[self.at :]
        ids = self.ids
        return bisect_left(rest, bound, key=lambda index: ids[index])


class RangeReader:
    """One read of one ledger (see the module's text).

    Args:
        ledger_id: The ledger.
        first: The first id asked for.
        last: The highest id that may be asked for.
        stride: The distance between the requested ids, at least 1.
        bytes_max: The most payload bytes in the reply. If the first entry is larger, it is the whole reply.
    """

    def __init__(self, *, ledger_id: int, first: int, last: int, stride: int, bytes_max: int) -> None:
        assert stride >= 1
        self.ledger_id = ledger_id
        self.through = first - 1
        """The reply is complete up to this id."""
        self.status = Status.OK
        """The reason if the reply ended before an unreadable entry; otherwise OK."""
        self._first = first
        self._last = last
        self._stride = stride
        self._bytes_left = bytes_max
        self._unexamined = EXAMINED_BYTES_MAX
        self._runs: deque[EntryRun] = deque()
        self._horizon = first - 1
        self._active: list[_Cursor] = []  # a heap, ordered by next id
        self._is_over = first > last
        self._barrier = last + 2
        """The first requested entry that cannot be read. The reply ends before it."""
        self._barrier_status = Status.OK
        self._ids: list[int] = []
        self._lengths: array[int] = array("I")
        self._digests: array[int] = array("I")
        self._payload: list[bytes] = []

    @property
    def is_over(self) -> bool:
        """Whether the reply is complete or full, or met an entry that cannot be read."""
        return self._is_over

    @property
    def horizon(self) -> int:
        """The id through which all runs are known. Ask for runs from the next id on."""
        return self._horizon

    @property
    def upcoming(self) -> Sequence[EntryRun]:
        """The runs that may be wanted next, in order. Use them to read ahead."""
        return self._runs

    def extend(self, runs: Sequence[EntryRun], horizon: int) -> None:
        """Take more runs, sorted. They hold all entries after the old horizon, up to ``horizon``."""
        assert horizon > self._horizon
        assert not self._runs
        self._active.clear()  # A run that spans the old horizon is among the new runs again.
        self._runs.extend(runs)
        self._horizon = horizon

    def end_early(self) -> bool:
        """End the reply after the last entry that was decided, unless nothing was decided yet. Return whether
        the reply is over."""
        self._is_over = self._is_over or self.through >= self._first
        return self._is_over

    def wanted(self) -> EntryRun | None:
        """Return the run to read next. None: the reply is over, or it needs ``extend``."""
        while not self._is_over:
            limit = min(self._horizon, self._last, self._barrier - 1)
            upcoming = self._runs[0].first if self._runs else limit + 1
            emitting = self._active[0].next_id if self._active else limit + 1
            if upcoming <= limit and upcoming <= emitting:
                if self._unexamined <= 0 and upcoming > self._first:
                    # All runs that begin before ``upcoming`` were looked at, and their entries are emitted.
                    self.through = max(self.through, upcoming - 1)
                    self._is_over = True
                    break
                return self._runs[0]
            if emitting <= limit:
                self._emit(limit)
                continue
            self.through = max(self.through, limit)
            if limit == self._barrier - 1:
                self.status = self._barrier_status
                self._is_over = True
            self._is_over = self._is_over or limit == self._last
            break
        return None

    def on_entries(self, run: EntryRun, entries: Entries, damaged: Sequence[int] = ()) -> None:
        """Take the entries of the wanted run. Only requested bytes are copied.

        Args:
            run: The run that ``wanted`` returned.
            entries: All its entries.
            damaged: The ids of the entries that fail their digests, ascending.
        """
        popped = self._runs.popleft()
        assert popped is run
        self._unexamined -= run.length + _RUN_BYTES
        for entry_id in damaged:
            if self._is_asked(entry_id):
                self._set_barrier(entry_id, Status.CORRUPT)
                break
        cursor = _Cursor(entries, self._first, self._last, self._stride)
        cursor.at = cursor.count_below(self.through + 1)  # Another run may have had these.
        if not cursor.is_done:
            heapq.heappush(self._active, cursor)

    def on_unreadable(self, run: EntryRun, status: Status) -> None:
        """The wanted run cannot be read. The reply ends before the run's first requested id."""
        popped = self._runs.popleft()
        assert popped is run
        self._unexamined -= run.length + _RUN_BYTES
        entry_id = max(run.first, self.through + 1)
        entry_id += -(entry_id - self._first) % self._stride
        if entry_id <= run.last and self._is_asked(entry_id):
            self._set_barrier(entry_id, status)

    def _is_asked(self, entry_id: int) -> bool:
        distance = entry_id - self._first
        return self.through < entry_id <= self._last and distance % self._stride == 0

    def _set_barrier(self, entry_id: int, status: Status) -> None:
        if entry_id < self._barrier:
            self._barrier, self._barrier_status = entry_id, status

    def _emit(self, limit: int) -> None:
        """Emit from the run with the lowest id until another run begins or the limit is reached."""
        cursor = heapq.heappop(self._active)
        if cursor.next_id <= self.through:
            # Two runs hold this entry, with the same content, because the entry is being moved to another
            # file. The other run has provided it already.
            cursor.at += cursor.count_below(self.through + 1)
            if not cursor.is_done:
                heapq.heappush(self._active, cursor)
            return
        bound = limit + 1
        if self._runs:
            bound = min(bound, self._runs[0].first)
        if self._active:
            bound = min(bound, self._active[0].next_id)
        count = max(1, cursor.count_below(bound))
        taken = self._take(cursor, count)
        cursor.at += taken
        if taken < count:
            self._is_over = True
        elif not cursor.is_done:
            heapq.heappush(self._active, cursor)

    def _take(self, cursor: _Cursor, count: int) -> int:
        """Copy up to ``count`` entries into the reply. Return how many the limits allowed."""
        entries, starts = cursor.entries, cursor.starts
        indices = cursor.indices[cursor.at : cursor.at + min(count, FRAME_ENTRIES_MAX - len(self._ids))]
        if self._ids:
            beyond = self._ids[0] + _SPAN_MAX
            indices = indices[: bisect_left(indices, beyond, key=lambda index: cursor.ids[index])]
        if not indices:
            return 0
        step = indices.step if isinstance(indices, range) else 0
        if step == 1:
            lengths = entries.lengths[indices[0] : indices[-1] + 1]
        else:
            lengths = array("I", [entries.lengths[index] for index in indices])
        fit = len(indices)
        if sum(lengths) > self._bytes_left:
            fit = bisect_right(array("Q", itertools.accumulate(lengths)), self._bytes_left)
            if not fit and not self._ids:
                fit = 1  # If one entry is larger than a reply, it is the whole reply.
            if not fit:
                return 0
            indices, lengths = indices[:fit], lengths[:fit]
        if step == 1:
            self._payload.append(bytes(cursor.payload[starts[indices[0]] : starts[indices[-1] + 1]]))
            self._digests.extend(entries.digests[indices[0] : indices[-1] + 1])
        else:
            self._payload.extend(
                bytes(cursor.payload[starts[index] : starts[index + 1]]) for index in indices
            )
            self._digests.extend(entries.digests[index] for index in indices)
        if isinstance(cursor.ids, range):
            assert isinstance(indices, range)
            self._ids.extend(cursor.ids[indices.start : indices.stop : indices.step])
        else:
            self._ids.extend([cursor.ids[index] for index in indices])
        self._lengths.extend(lengths)
        self._bytes_left -= sum(lengths)
        self.through = self._ids[-1]
        return fit

    def take_entries(self) -> Entries:
        """Return the entries of the reply, in new bytes."""
        payload = self._payload[0] if len(self._payload) == 1 else b"".join(self._payload)
        return Entries(self.ledger_id, compact_ids(self._ids), self._lengths, self._digests, payload)


def no_entries(ledger_id: int) -> Entries:
    """Return the entries of an empty reply."""
    return Entries(ledger_id, range(0), array("I"), array("I"), b"")


class RangeLister:
    """Join the ids of runs into ascending ranges that are not adjacent.

    It walks over the runs as ``RangeReader`` does, but takes ids only.
    """

    def __init__(self, *, first: int, pairs_max: int) -> None:
        assert pairs_max >= 1
        self._first = first
        self._pairs_max = pairs_max
        self._pairs: list[tuple[int, int]] = []
        self._open: list[tuple[int, int]] = []  # a heap of ranges not joined yet

    def add(self, run: EntryRun, ids: Sequence[int] | None) -> None:
        """Take the next run, sorted by first id. ``ids`` are its ids if it is sparse, else None."""
        if ids is None:
            heapq.heappush(self._open, (run.first, run.last))
        else:
            for low, high in ranges_of(ids):
                heapq.heappush(self._open, (low, high))

    def settle(self, bound: int) -> bool:
        """Join everything below ``bound``, because no later run begins there. Return False if there are
        enough pairs."""
        while self._open and self._open[0][0] < bound:
            low, high = heapq.heappop(self._open)
            if high >= bound:
                heapq.heappush(self._open, (bound, high))
                high = bound - 1
            low = max(low, self._first)
            if low > high:
                continue
            if self._pairs and low <= self._pairs[-1][1] + 1:
                self._pairs[-1] = self._pairs[-1][0], max(high, self._pairs[-1][1])
            elif len(self._pairs) == self._pairs_max:
                return False
            else:
                self._pairs.append((low, high))
        return True

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The ranges joined so far, as pairs of first and last id."""
        return self._pairs
