"""Replies that are assembled from runs equal replies that are picked entry by entry."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.journal_items import EntryRun
from bookie.core.reading import EXAMINED_BYTES_MAX, RangeLister, RangeReader
from ledgerlog.limits import FRAME_ENTRIES_MAX
from ledgerlog.wire.entries import Entries
from ledgerlog.wire.frame import Status

LEDGER = 4


def entries_of(ids: list[int], size: int = 0) -> Entries:
    payloads = [b"%d" % entry_id + b"." * size for entry_id in ids]
    return Entries.gather(LEDGER, dict(zip(ids, payloads, strict=True)))


@attrs.define
class Store:
    """Runs such as a bookie may have."""

    frames: dict[EntryRun, list[int]] = attrs.field(factory=dict)
    examined: list[EntryRun] = attrs.field(factory=list)

    def add(self, ids: list[int], frame_bytes: int = 0) -> None:
        run = EntryRun(LEDGER, ids[0], ids[-1], len(ids), 1, 0, frame_bytes, 1)
        self.frames[run] = ids

    @property
    def ids(self) -> set[int]:
        return {entry_id for ids in self.frames.values() for entry_id in ids}

    def read(
        self,
        *,
        first: int,
        last: int,
        stride: int = 1,
        bytes_max: int = 10**9,
        runs_per_step: int = 100,
        unreadable: frozenset[EntryRun] = frozenset(),
        damaged: frozenset[int] = frozenset(),
    ) -> RangeReader:
        reader = RangeReader(ledger_id=LEDGER, first=first, last=last, stride=stride, bytes_max=bytes_max)
        while not reader.is_over:
            run = reader.wanted()
            if run is None:
                if not reader.is_over:
                    reader.extend(*self.find(reader.horizon + 1, last, runs_per_step))
            elif run in unreadable:
                reader.on_unreadable(run, Status.IO_ERROR)
            else:
                ids = self.frames[run]
                self.examined.append(run)
                reader.on_entries(run, entries_of(ids), [i for i in ids if i in damaged])
        return reader

    def find(self, first: int, last: int, limit: int) -> tuple[list[EntryRun], int]:
        """Answer like an index: some of the runs, and the id up to which these are all runs."""
        found = sorted(run for run in self.frames if run.last >= first and run.first <= last)
        cut = max(limit, sum(run.first < first for run in found) + 1)
        if len(found) > cut:
            return found[:cut], found[cut - 1].first
        return found, last


frames = st.lists(st.sets(st.integers(0, 60), min_size=1, max_size=10), max_size=12)


def store_of(sets: list[set[int]]) -> Store:
    store = Store()
    seen: set[int] = set()
    for ids in sets:
        fresh = sorted(ids - seen)
        if fresh:
            store.add(fresh)
            seen |= set(fresh)
    return store


@given(frames, st.integers(0, 65), st.integers(0, 65), st.integers(1, 5), st.integers(1, 6), st.data())
def test_a_reply_holds_exactly_the_asked_entries_up_to_where_it_is_complete(
    sets: list[set[int]], first: int, last: int, stride: int, runs_per_step: int, data: st.DataObject
) -> None:
    store = store_of(sets)
    bytes_max = data.draw(st.sampled_from([1, 5, 20, 10**6]))
    reader = store.read(
        first=first, last=last, stride=stride, bytes_max=bytes_max, runs_per_step=runs_per_step
    )
    reply = reader.take_entries()
    asked = [entry_id for entry_id in range(first, last + 1, stride) if entry_id in store.ids]
    assert list(reply.ids) == [entry_id for entry_id in asked if entry_id <= reader.through]
    assert reply.first_damaged() is None
    assert reader.status is Status.OK
    assert sum(reply.lengths) <= bytes_max or len(reply) == 1
    if len(reply) < len(asked):
        following = asked[len(reply)]
        assert sum(reply.lengths) + len(b"%d" % following) > bytes_max, "there was room for another"
    elif last >= first:
        assert reader.through == last or reader.through == asked[-1]


@given(frames, st.integers(0, 65), st.integers(1, 4), st.data())
def test_a_reply_never_passes_an_asked_entry_that_cannot_be_read(
    sets: list[set[int]], first: int, stride: int, data: st.DataObject
) -> None:
    store = store_of(sets)
    runs = sorted(store.frames)
    unreadable = frozenset(data.draw(st.sets(st.sampled_from(runs)))) if runs else frozenset()
    damaged = frozenset(data.draw(st.sets(st.integers(0, 60), max_size=4)))
    reader = store.read(first=first, last=65, stride=stride, unreadable=unreadable, damaged=damaged)
    reply = reader.take_entries()
    bad = {entry_id for run in unreadable for entry_id in store.frames[run]} | (damaged & store.ids)
    asked = [entry_id for entry_id in range(first, 66, stride) if entry_id in store.ids]
    assert list(reply.ids) == [entry_id for entry_id in asked if entry_id <= reader.through]
    assert not bad & set(reply.ids)
    asked_bad = bad & set(asked)
    assert not asked_bad or reader.through < min(asked_bad)
    if asked_bad:
        assert reader.status in (Status.IO_ERROR, Status.CORRUPT)
    elif not unreadable:
        assert (reader.status, reader.through) == (Status.OK, 65)


def test_a_damaged_entry_that_is_not_asked_for_does_not_matter() -> None:
    store = Store()
    store.add(list(range(10)))
    reader = store.read(first=0, last=9, stride=2, damaged=frozenset({3, 5}))
    assert (reader.status, reader.through) == (Status.OK, 9)


def test_one_entry_always_fits() -> None:
    store = Store()
    store.add([5, 6])
    reader = store.read(first=0, last=9, bytes_max=0)
    assert list(reader.take_entries().ids) == [5]
    assert reader.through == 5


def test_a_huge_range_costs_no_more_than_its_runs() -> None:
    store = Store()
    store.add([2**40])
    reader = store.read(first=0, last=2**62, stride=7)
    assert list(reader.take_entries().ids) == ([2**40] if 2**40 % 7 == 0 else [])
    assert reader.through == 2**62


def test_a_reply_ends_before_an_id_that_a_frame_cannot_name() -> None:
    store = Store()
    store.add([0])
    store.add([2**32 - 1])
    store.add([2**32])
    reader = store.read(first=0, last=2**40)
    assert list(reader.take_entries().ids) == [0, 2**32 - 1]
    assert reader.through == 2**32 - 1


def test_a_reply_has_no_more_entries_than_a_frame() -> None:
    store = Store()
    for first in range(0, 3 * FRAME_ENTRIES_MAX, FRAME_ENTRIES_MAX):
        store.add(list(range(first, first + FRAME_ENTRIES_MAX)))
    reader = store.read(first=10, last=10**9)
    assert len(reader.take_entries()) == FRAME_ENTRIES_MAX
    assert reader.through == 10 + FRAME_ENTRIES_MAX - 1


@pytest.mark.parametrize("last", [-1, 4])
def test_an_empty_range_is_over_at_once(last: int) -> None:
    reader = RangeReader(ledger_id=1, first=5, last=last, stride=1, bytes_max=10)
    assert reader.wanted() is None
    assert reader.is_over


@given(frames, st.integers(0, 65), st.integers(1, 8), st.integers(1, 6))
def test_a_list_names_exactly_the_stored_ids_up_to_where_it_is_complete(
    sets: list[set[int]], first: int, pairs_max: int, runs_per_step: int
) -> None:
    store = store_of(sets)
    lister = RangeLister(first=first, pairs_max=pairs_max)
    horizon, is_full = first - 1, False
    while horizon < 70 and not is_full:
        runs, horizon = store.find(horizon + 1, 70, runs_per_step)
        for run in runs:
            if not lister.settle(run.first):
                is_full = True
                break
            lister.add(run, None if run.is_dense else store.frames[run])
        is_full = is_full or not lister.settle(horizon + 1)
    through = lister.pairs[-1][1] if is_full else 70
    named = {entry_id for low, high in lister.pairs for entry_id in range(low, high + 1)}
    assert named == {entry_id for entry_id in store.ids if first <= entry_id <= through}
    assert len(lister.pairs) <= pairs_max
    for (_, high), (low, _) in zip(lister.pairs, lister.pairs[1:], strict=False):
        assert low > high + 1


@pytest.mark.parametrize("frame_bytes", [0, EXAMINED_BYTES_MAX // 4, 2 * EXAMINED_BYTES_MAX])
def test_a_reply_looks_at_a_bounded_part_of_a_ledger_however_far_apart_the_entries_asked_for_are(
    frame_bytes: int,
) -> None:
    store = Store()
    runs, per_run = 12_000, 10
    for first in range(0, runs * per_run, per_run):
        store.add([*range(first, first + per_run)], frame_bytes)
    reader = store.read(first=5, last=10**9, stride=100_000)
    assert reader.status is Status.OK
    assert len(store.examined) <= EXAMINED_BYTES_MAX // (frame_bytes or 4096) + 1
    assert list(reader.take_entries().ids) == [5]
    # The reply is complete up to the last examined run, and no further.
    assert reader.through == store.examined[-1].last


def test_a_reply_that_ends_early_has_always_judged_the_first_entry_that_was_asked_for() -> None:
    store = Store()
    # These runs begin before the first requested entry and end after it, but none has it.
    for first in range(5):
        store.add([first, 1000 + first], 2 * EXAMINED_BYTES_MAX)
    store.add([600], 2 * EXAMINED_BYTES_MAX)
    store.add([700], 2 * EXAMINED_BYTES_MAX)
    found: set[int] = set()
    replies, first = 0, 500
    while first <= 1100:
        reader = store.read(first=first, last=1100)
        assert reader.through >= first
        found.update(reader.take_entries().ids)
        first = reader.through + 1
        replies += 1
    assert found == {600, 700, *range(1000, 1005)}
    assert 2 < replies < 12


@given(frames, st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=4), st.integers(1, 6))
def test_entries_that_two_runs_hold_are_given_once(
    sets: list[set[int]], moved: list[tuple[int, int]], runs_per_step: int
) -> None:
    """While entries move, the index holds merged runs and the runs that they were made of."""
    store = store_of(sets)
    stored = sorted(store.ids)
    for start, count in moved:
        ids = [entry_id for entry_id in stored if entry_id >= start][:count]
        if ids and ids[0] not in {run.first for run in store.frames}:
            store.add(ids)
    entries = store.read(first=0, last=100, runs_per_step=runs_per_step).take_entries()
    assert list(entries.ids) == stored
    assert entries.payloads() == entries_of(stored).payloads()
