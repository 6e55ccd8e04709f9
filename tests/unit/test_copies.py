"""The check of every copy of a ledger finds exactly the planted holes, and no others."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerlog.ledger.core.comparison import CopyAnswer, CopyAsk, FaultKind
from ledgerlog.ledger.core.copies import CopyCheck, CopyFault, count_held, count_lacking, replicas_of
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.limits import ENTRY_ID_MAX, SCRUB_BLOCK_ENTRIES
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import Fragment, LedgerMetadata, LedgerState
from ledgerlog.model.quorum import Replication
from ledgerlog.wire.checksum import entry_digest
from ledgerlog.wire.scrub import add_sums, scrub_weights

L = 7
SOUND, ROTTEN = 0, -1
"""A bookie's copy of an entry: a version (0 is the one that was written), or ROTTEN."""


def ledger(
    replication: Replication, fragments: list[tuple[int, list[BookieId]]], last: int | None
) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=L,
        replication=replication,
        state=LedgerState.OPEN if last is None else LedgerState.CLOSED,
        fragments=tuple(Fragment(first, tuple(ensemble)) for first, ensemble in fragments),
        last_entry=last,
        key=bytes(16),
        token=bytes(16),
        created_ms=0,
    )


def ranges(ids: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for entry_id in sorted(ids):
        if found and found[-1][1] == entry_id - 1:
            found[-1] = found[-1][0], entry_id
        else:
            found.append((entry_id, entry_id))
    return found


@attrs.define
class Bookies:
    """The copies of bookies. They answer a few entries at a time."""

    has: dict[BookieId, dict[int, int]]
    silent: set[BookieId] = attrs.Factory(set)
    in_limbo: set[BookieId] = attrs.Factory(set)
    pairs_max: int = 1000
    span_max: int = 10**6
    asked: list[CopyAsk] = attrs.Factory(list)

    def answer(self, check: CopyCheck, ask: CopyAsk) -> None:
        self.asked.append(ask)
        if ask.bookie in self.silent:
            check.on_silent(ask)
            return
        there = self.has.get(ask.bookie, {})
        negative = Negative.UNKNOWN if ask.bookie in self.in_limbo else Negative.ABSENT
        if not ask.classes:
            pairs = ranges(e for e in there if e >= ask.first)
            through = pairs[self.pairs_max - 1][1] if len(pairs) > self.pairs_max else ENTRY_ID_MAX
            check.on_answer(
                ask, CopyAnswer(through=through, negative=negative, sound=pairs[: self.pairs_max])
            )
            return
        through = min(ask.last, ask.first + self.span_max - 1)
        asked = {e: version for e, version in there.items() if ask.first <= e <= through}
        sums: dict[tuple[int, int], tuple[int, int]] = {}
        for e, version in asked.items():
            if version != ROTTEN:
                key = e // SCRUB_BLOCK_ENTRIES, e % ask.classes
                count, total = sums.get(key, (0, 0))
                weighed = entry_digest(L, e, b"%d" % version) * scrub_weights()[e % SCRUB_BLOCK_ENTRIES]
                sums[key] = count + 1, add_sums(total, weighed)
        check.on_answer(
            ask,
            CopyAnswer(
                through=through,
                negative=negative,
                sound=ranges(e for e, version in asked.items() if version != ROTTEN),
                unsound=ranges(e for e, version in asked.items() if version == ROTTEN),
                sums=[(*key, *sums[key]) for key in sorted(sums)],
            ),
        )


def run(
    metadata: LedgerMetadata,
    bookies: Bookies,
    *,
    scrub: bool,
    window_entries: int = SCRUB_BLOCK_ENTRIES,
    pick: Callable[[int], int] = lambda count: 0,
) -> tuple[list[CopyFault], CopyCheck]:
    """Run the check from beginning to end. ``pick`` chooses which of the open asks is answered next."""
    check = CopyCheck(metadata, scrub=scrub, window_entries=window_entries)
    faults, open_asks = [], []
    while not check.is_done:
        open_asks += check.take_asks()
        assert open_asks, "it waits for nothing"
        assert len({ask.bookie for ask in open_asks}) == len(open_asks)
        bookies.answer(check, open_asks.pop(pick(len(open_asks))))
        faults += check.take_faults()
    assert not open_asks
    return faults + check.take_faults(), check


def stored(metadata: LedgerMetadata, end: int | None = None) -> dict[BookieId, dict[int, int]]:
    """Put every copy where it should be."""
    has: dict[BookieId, dict[int, int]] = {}
    last = metadata.last_entry if end is None else end
    assert last is not None
    for entry_id in range(last + 1):
        for bookie in metadata.bookies_of(entry_id):
            has.setdefault(bookie, {})[entry_id] = SOUND
    return has


def brief(fault: CopyFault) -> tuple[str, int, int, int, int, str]:
    return (
        fault.bookie,
        fault.first_entry,
        fault.last_entry,
        fault.copies,
        fault.copies_left,
        fault.kind.value,
    )


R332 = Replication(3, 3, 2)
R532 = Replication(5, 3, 2)
ABC = ["a", "b", "c"]


@pytest.mark.parametrize("scrub", [False, True])
def test_a_whole_ledger_has_no_faults_and_is_asked_about_once(scrub: bool) -> None:
    metadata = ledger(R332, [(0, ABC), (40, ["a", "d", "c"])], 99)
    bookies = Bookies(stored(metadata))
    faults, check = run(metadata, bookies, scrub=scrub)
    assert faults == []
    assert check.checked == {"a": 100, "b": 40, "c": 100, "d": 60}
    assert sum(check.checked.values()) == replicas_of(metadata)
    assert len(bookies.asked) == (6 if scrub else 4), "a list that went further is not asked for again"


def test_each_hole_is_one_row_with_the_copies_that_are_left() -> None:
    metadata = ledger(R332, [(0, ABC)], 99)
    bookies = Bookies(stored(metadata))
    for entry_id in (*range(10, 20), 50):
        del bookies.has["a"][entry_id]
    for entry_id in range(15, 30):
        del bookies.has["b"][entry_id]
    bookies.has["c"][50] = ROTTEN
    listed, _ = run(metadata, bookies, scrub=False)
    holes = [
        ("a", 10, 14, 5, 2, "missing"),
        ("a", 15, 19, 5, 1, "missing"),
        ("b", 15, 19, 5, 1, "missing"),
        ("b", 20, 29, 10, 2, "missing"),
    ]
    assert sorted(map(brief, listed)) == [*holes[:2], ("a", 50, 50, 1, 2, "missing"), *holes[2:]]
    scrubbed, _ = run(metadata, bookies, scrub=True)
    assert sorted(map(brief, scrubbed)) == [
        *holes[:2],
        ("a", 50, 50, 1, 1, "missing"),
        *holes[2:],
        ("c", 50, 50, 1, 1, "corrupt"),
    ]


def test_a_striped_ledger_of_which_all_is_missing_is_one_row() -> None:
    metadata = ledger(R532, [(0, ["a", "b", "c", "d", "e"])], 999)
    bookies = Bookies(stored(metadata))
    del bookies.has["b"]
    faults, _ = run(metadata, bookies, scrub=False)
    assert list(map(brief, faults)) == [("b", 0, 999, 600, 2, "missing")]


def test_who_does_not_answer_and_who_may_have_lost_it_are_kinds_of_their_own() -> None:
    metadata = ledger(R332, [(0, ABC), (10, ["a", "b", "d"])], 19)
    bookies = Bookies(stored(metadata), silent={"a"}, in_limbo={"b"})
    bookies.has["b"] = dict.fromkeys(range(5), SOUND)
    faults, check = run(metadata, bookies, scrub=False)
    assert sorted(map(brief, faults)) == [
        ("a", 0, 4, 5, 2, "unreachable"),
        ("a", 5, 9, 5, 1, "unreachable"),
        ("a", 10, 19, 10, 1, "unreachable"),
        ("b", 5, 9, 5, 1, "limbo"),
        ("b", 10, 19, 10, 1, "limbo"),
    ]
    assert check.checked == {"b": 20, "c": 10, "d": 10}


def test_of_an_open_ledger_only_fragments_that_have_an_end_are_looked_at() -> None:
    metadata = ledger(R332, [(0, ABC), (10, ["a", "b", "d"])], None)
    bookies = Bookies(stored(metadata, 9))
    assert run(metadata, bookies, scrub=False)[0] == []
    assert {ask.bookie for ask in bookies.asked} == set(ABC)
    assert replicas_of(metadata) == 30
    empty = ledger(R332, [(0, ABC)], None)
    check = CopyCheck(empty, scrub=True)
    assert check.is_done
    assert check.take_asks() == []
    assert CopyCheck(ledger(R332, [(0, ABC)], -1), scrub=False).is_done


def test_the_outvoted_copy_diverges_and_without_a_majority_all_do() -> None:
    metadata = ledger(R332, [(0, ABC)], 9000)
    bookies = Bookies(stored(metadata), span_max=700)
    bookies.has["b"][5000] = 1
    bookies.has["c"][5000] = SOUND
    for version, bookie in enumerate(ABC):
        bookies.has[bookie][17] = version
    del bookies.has["a"][18]
    faults, _ = run(metadata, bookies, scrub=True, window_entries=2 * SCRUB_BLOCK_ENTRIES)
    assert sorted(map(brief, faults)) == [
        ("a", 17, 17, 1, 0, "diverging"),
        ("a", 18, 18, 1, 2, "missing"),
        ("b", 17, 17, 1, 0, "diverging"),
        ("b", 5000, 5000, 1, 2, "diverging"),
        ("c", 17, 17, 1, 0, "diverging"),
    ]
    assert run(metadata, bookies, scrub=False)[0] == [f for f in faults if f.kind is FaultKind.MISSING]


def test_blocks_that_agree_are_not_looked_at_again() -> None:
    metadata = ledger(R332, [(0, ABC)], 5 * SCRUB_BLOCK_ENTRIES)
    bookies = Bookies(stored(metadata))
    bookies.has["b"][SCRUB_BLOCK_ENTRIES + 3] = 1
    run(metadata, bookies, scrub=True, window_entries=8 * SCRUB_BLOCK_ENTRIES)
    closer = [ask for ask in bookies.asked if ask.classes == SCRUB_BLOCK_ENTRIES]
    assert {(ask.first, ask.last) for ask in closer} == {(SCRUB_BLOCK_ENTRIES, 2 * SCRUB_BLOCK_ENTRIES - 1)}
    assert len(closer) == 3


def test_an_answer_about_something_else_counts_as_none() -> None:
    for sound, through in (([(0, 9)], -1), ([(0, 12)], 9), ([], -1)):
        check = CopyCheck(ledger(Replication(1, 1, 1), [(0, ["a"])], 9), scrub=False)
        (ask,) = check.take_asks()
        check.on_answer(ask, CopyAnswer(through=through, negative=Negative.ABSENT, sound=sound))
        assert [fault.kind for fault in check.take_faults()] == [FaultKind.UNREACHABLE]


def test_a_ledger_of_any_length_is_checked_without_deep_calls() -> None:
    metadata = ledger(R332, [(0, ABC)], 10**9)
    check = CopyCheck(metadata, scrub=False)
    for ask in check.take_asks():
        check.on_answer(
            ask, CopyAnswer(through=ENTRY_ID_MAX, negative=Negative.ABSENT, sound=[(0, 10**9 - 1)])
        )
    assert check.is_done
    assert [(f.first_entry, f.copies_left) for f in check.take_faults()] == [(10**9, 0)] * 3
    assert sum(check.checked.values()) == 3 * (10**9 + 1)


# --- random ledgers -------------------------------------------------------------------------------


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    ensemble = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, ensemble))
    replication = Replication(ensemble, write_quorum, draw(st.integers(1, write_quorum)), draw(st.booleans()))
    names = [f"b{n}" for n in range(ensemble + 2)]
    starts = [0, *sorted(draw(st.sets(st.integers(1, 60), max_size=3)))]
    fragments = [(start, draw(st.permutations(names))[:ensemble]) for start in starts]
    is_closed = draw(st.booleans())
    return ledger(replication, fragments, draw(st.integers(starts[-1] - 1, 80)) if is_closed else None)


@st.composite
def damaged(draw: st.DrawFn, metadata: LedgerMetadata) -> Bookies:
    """Put copies where they should be, then add holes, rot, other versions, and many copies that should not
    be there.
    """
    known = metadata.last_fragment.first_entry - 1 if metadata.last_entry is None else metadata.last_entry
    bookies = Bookies(stored(metadata, known) if known >= 0 else {})
    names = sorted({bookie for fragment in metadata.fragments for bookie in fragment.ensemble})
    bookies.silent = draw(st.sets(st.sampled_from(names), max_size=1))
    bookies.in_limbo = draw(st.sets(st.sampled_from(names), max_size=1))
    bookies.pairs_max = draw(st.sampled_from([1, 3, 1000]))
    bookies.span_max = draw(st.sampled_from([1, 7, 10**6]))
    for _ in range(draw(st.integers(0, 5))):
        bookie = draw(st.sampled_from(names))
        first = draw(st.integers(0, 80))
        kind = draw(st.sampled_from(["missing", "rotten", "other", "stray"]))
        version = draw(st.integers(1, 2))
        for entry_id in range(first, first + draw(st.sampled_from([1, 1, 5, 80]))):
            there = bookies.has.setdefault(bookie, {})
            if kind == "stray":
                # For example, an ensemble change left the copy. The check does not ask for it, or the bookie
                # has it anyway.
                there.setdefault(entry_id, SOUND)
            elif kind == "missing":
                there.pop(entry_id, None)
            elif entry_id in there:
                there[entry_id] = ROTTEN if kind == "rotten" else version
    return bookies


def expected(
    metadata: LedgerMetadata, bookies: Bookies, scrub: bool
) -> dict[tuple[BookieId, int], FaultKind]:
    """Compute the fault of each copy, one by one."""
    known = metadata.last_fragment.first_entry - 1 if metadata.last_entry is None else metadata.last_entry
    found = {}
    for entry_id in range(known + 1):
        write_set = metadata.bookies_of(entry_id)
        versions = [
            bookies.has.get(b, {}).get(entry_id, ROTTEN) for b in write_set if b not in bookies.silent
        ]
        votes = {v: versions.count(v) for v in versions if v != ROTTEN}
        winners = [v for v, count in votes.items() if count == max(votes.values())]
        for bookie in write_set:
            version = bookies.has.get(bookie, {}).get(entry_id)
            if bookie in bookies.silent:
                found[bookie, entry_id] = FaultKind.UNREACHABLE
            elif version is None:
                in_limbo = bookie in bookies.in_limbo
                found[bookie, entry_id] = FaultKind.LIMBO if in_limbo else FaultKind.MISSING
            elif scrub and version == ROTTEN:
                found[bookie, entry_id] = FaultKind.CORRUPT
            elif scrub and len(votes) > 1 and winners != [version]:
                found[bookie, entry_id] = FaultKind.DIVERGING
    return found


@settings(max_examples=120)
@given(st.data(), ledgers(), st.booleans())
def test_exactly_the_holes_that_were_made_are_found(
    data: st.DataObject, metadata: LedgerMetadata, scrub: bool
) -> None:
    bookies = data.draw(damaged(metadata))
    window = SCRUB_BLOCK_ENTRIES if scrub else data.draw(st.sampled_from([1, 5, 16, 1000]))
    picks = data.draw(st.lists(st.integers(0, 4), max_size=30)) or [0]
    cycle = itertools.cycle(picks)
    faults, check = run(
        metadata,
        bookies,
        scrub=scrub,
        window_entries=window,
        pick=lambda count: next(cycle) % count,
    )
    wanted = expected(metadata, bookies, scrub)
    found: dict[tuple[BookieId, int], FaultKind] = {}
    before: dict[BookieId, CopyFault] = {}
    for fault in faults:
        slots = metadata.fragment_of(fault.first_entry).ensemble
        index = metadata.fragment_index(fault.first_entry)
        assert metadata.fragment_index(fault.last_entry) == index, "a run lies in one fragment"
        held = [
            e
            for e in range(fault.first_entry, fault.last_entry + 1)
            if metadata.replication.holds(slots.index(fault.bookie), e)
        ]
        assert (held[0], held[-1], len(held)) == (fault.first_entry, fault.last_entry, fault.copies)
        for entry_id in held:
            assert (fault.bookie, entry_id) not in found, "a copy is told once"
            found[fault.bookie, entry_id] = fault.kind
        left = [sum((b, e) not in wanted for b in metadata.bookies_of(e)) for e in held]
        assert fault.copies_left == min(left)
        assert metadata.replication.is_striped or set(left) == {fault.copies_left}
        last = before.get(fault.bookie)
        if last is not None and metadata.fragment_index(last.first_entry) == index:
            slot = slots.index(fault.bookie)
            between = range(last.last_entry + 1, fault.first_entry)
            assert last.last_entry < fault.first_entry, "in order"
            assert (last.kind, last.copies_left) != (fault.kind, fault.copies_left) or any(
                metadata.replication.holds(slot, e) for e in between
            ), "neighbours that are alike are one run"
        before[fault.bookie] = fault
    assert found == wanted
    silent = sum(kind is FaultKind.UNREACHABLE for kind in wanted.values())
    assert sum(check.checked.values()) == replicas_of(metadata) - silent


@pytest.mark.parametrize("scrub", [False, True])
@pytest.mark.parametrize("replication", [R332, R532], ids=["whole", "striped"])
def test_a_check_ends_wherever_the_metadata_say_that_the_ledger_ends(
    replication: Replication, scrub: bool
) -> None:
    ensemble = ["a", "b", "c", "d", "e"][: replication.ensemble]
    end = ENTRY_ID_MAX
    bookies = Bookies(stored(ledger(replication, [(0, ensemble)], 9)), span_max=end + 1)
    bookies.has["a"][replication.ensemble << 40] = SOUND
    metadata = ledger(replication, [(0, ensemble)], end)
    faults, _ = run(metadata, bookies, scrub=scrub)
    assert len(bookies.asked) < 10 * len(ensemble)
    assert all(fault.kind is FaultKind.MISSING for fault in faults)
    missing = Counter[str]()
    for fault in faults:
        missing[fault.bookie] += fault.copies
    held = {bookie: len(has) for bookie, has in bookies.has.items()}
    assert missing == {
        bookie: count_held(replication, slot, 0, end) - held[bookie] for slot, bookie in enumerate(ensemble)
    }


def test_behind_a_long_hole_the_windows_are_short_again() -> None:
    block, window = SCRUB_BLOCK_ENTRIES, 2 * SCRUB_BLOCK_ENTRIES
    metadata = ledger(R332, [(0, ABC)], 120 * block - 1)
    there = dict.fromkeys(range(100 * block + 5, 120 * block), SOUND)
    bookies = Bookies({bookie: dict(there) for bookie in ABC}, span_max=120 * block)
    faults, _ = run(metadata, bookies, scrub=True, window_entries=window)
    assert [brief(fault)[1:3] for fault in faults] == [(0, 100 * block + 4)] * 3
    assert sum(not ask.classes for ask in bookies.asked) == 3, "lists find the end of the hole"
    assert len(bookies.asked) == 3 * (1 + 1 + 10)
    short = [ask for ask in bookies.asked if ask.first >= 100 * block]
    assert len(short) == 3 * 10
    assert all(ask.last - ask.first < window for ask in short)


@settings(max_examples=60)
@given(st.data())
def test_far_apart_copies_are_compared_as_if_they_were_neighbours(data: st.DataObject) -> None:
    end = 40 * SCRUB_BLOCK_ENTRIES
    border = data.draw(st.integers(1, end))
    metadata = ledger(R332, [(0, ABC), (border, ["b", "c", "a"])], end)
    entries = st.integers(0, end)
    copies = st.dictionaries(entries, st.sampled_from([SOUND, SOUND, 1, ROTTEN]), max_size=6)
    everywhere = data.draw(copies)
    has = {bookie: everywhere | data.draw(copies) for bookie in ABC}
    picks = itertools.cycle(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=9)))
    bookies = Bookies(has, span_max=data.draw(st.sampled_from([7000, 10**6])))

    def found(window_entries: int) -> list[CopyFault]:
        faults, _ = run(
            metadata,
            bookies,
            scrub=True,
            window_entries=window_entries,
            pick=lambda count: next(picks) % count,
        )
        return sorted(faults, key=lambda fault: (fault.bookie, fault.first_entry))

    assert found(SCRUB_BLOCK_ENTRIES) == found(64 * SCRUB_BLOCK_ENTRIES)


@given(st.integers(1, 6), st.data(), st.integers(0, 50), st.integers(-1, 60))
def test_what_a_slot_holds_is_counted_as_it_is_listed(
    ensemble: int, data: st.DataObject, first: int, last: int
) -> None:
    write_quorum = data.draw(st.integers(1, ensemble))
    replication = Replication(ensemble, write_quorum, write_quorum)
    slot = data.draw(st.integers(0, ensemble - 1))
    assert count_held(replication, slot, first, last) == sum(
        replication.holds(slot, e) for e in range(first, last + 1)
    )


@given(st.data())
def test_the_faulty_copies_of_each_entry_are_counted_as_one_by_one(data: st.DataObject) -> None:
    ensemble = data.draw(st.integers(1, 5))
    replication = Replication(ensemble, data.draw(st.integers(1, ensemble)), 1)
    bookies = ["a", "b", "c", "d", "e"][:ensemble]
    metadata = ledger(replication, [(0, bookies), (13, bookies[::-1])], 30)
    lacks = {
        (bookie, entry)
        for entry in range(31)
        for bookie in metadata.bookies_of(entry)
        if data.draw(st.sampled_from([True, True, False]))
    }
    has = {
        bookie: {e: SOUND for e in range(31) if (bookie, e) not in lacks and bookie in metadata.bookies_of(e)}
        for bookie in bookies
    }
    faults, _ = run(metadata, Bookies(has), scrub=False)
    told = list(count_lacking(metadata, faults))
    assert all(low <= high < following for (low, high, _), (following, *_) in itertools.pairwise(told))
    counts = {e: copies for low, high, copies in told for e in range(low, high + 1)}
    assert counts == Counter(entry for _, entry in lacks)


def test_the_faulty_copies_of_a_long_hole_are_counted_in_a_few_steps() -> None:
    ensemble = [*"abcde"]
    bookies = Bookies(stored(ledger(R532, [(0, ensemble)], 9)))
    metadata = ledger(R532, [(0, ensemble)], ENTRY_ID_MAX)
    faults, _ = run(metadata, bookies, scrub=False)
    told = list(count_lacking(metadata, faults))
    assert len(told) < 20
    assert sum(high - low + 1 for low, high, copies in told if copies == 3) == ENTRY_ID_MAX - 9
