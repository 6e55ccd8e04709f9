"""``ledger.core.reader``: a range of entries, read from any bookies that have them."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerlog.errors import EntryCorrupt, EntryNotFound, EntryUnavailable
from ledgerlog.ledger.core.reader import RangeAsk, RangeRead
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.model.ledger import Fragment, LedgerMetadata, LedgerState
from tests.cores import bookies, new_metadata

ABSENT, UNKNOWN = Negative.ABSENT, Negative.UNKNOWN
THREE = (Fragment(0, bookies(3)), Fragment(4, bookies(3, 1)), Fragment(6, bookies(3, 4)))


def closed(shape: tuple[int, int, int] = (3, 3, 2), last_entry: int = 9, **options: object) -> LedgerMetadata:
    return new_metadata(shape, state=LedgerState.CLOSED, last_entry=last_entry, **options)


def payload(entry_id: int) -> bytes:
    return b"entry %d" % entry_id


def wanted(ask: RangeAsk) -> range:
    return range(ask.first, ask.last + 1, ask.stride)


def answer(read: RangeRead, ask: RangeAsk, held: Collection[int], *, negative: Negative = ABSENT) -> None:
    read.on_reply(ask, {e: payload(e) for e in wanted(ask) if e in held}, ask.last, negative)


def test_one_copy_of_each_entry_is_enough() -> None:
    read = RangeRead(closed(), 2, 5)
    (ask,) = read.take_asks()
    assert (ask.bookie, ask.first, ask.last, ask.stride) == ("b2", 2, 5, 1)
    assert read.take_asks() == [], "one bookie is asked at a time"
    answer(read, ask, range(10))
    assert read.is_done
    assert read.payloads() == [payload(e) for e in range(2, 6)]


@pytest.mark.parametrize("shape", [(3, 3, 2), (3, 2, 2), (4, 2, 2), (5, 3, 2)])
def test_a_bookie_is_asked_only_for_entries_that_it_holds(shape: tuple[int, int, int]) -> None:
    ensemble = shape[0]
    fragments = (Fragment(0, bookies(ensemble)), Fragment(7, bookies(ensemble, 2)))
    metadata = closed(shape, 19, fragments=fragments)
    read = RangeRead(metadata, 1, 17)
    asked: dict[int, str] = {}
    for ask in read.take_asks():
        for entry_id in wanted(ask):
            assert ask.bookie in metadata.bookies_of(entry_id)
            asked[entry_id] = ask.bookie
    assert sorted(asked) == list(range(1, 18))


def test_a_range_that_crosses_fragments_is_read_from_each_ones_ensemble() -> None:
    read = RangeRead(closed(fragments=THREE), 3, 7)
    asks = read.take_asks()
    assert [(ask.first, ask.last) for ask in asks] == [(3, 3), (4, 5), (6, 7)]
    for ask in reversed(asks):
        assert not read.is_done
        answer(read, ask, range(10))
    assert read.is_done
    assert read.payloads() == [payload(e) for e in range(3, 8)]


def test_what_one_bookie_lacks_the_next_of_the_write_set_is_asked_for_from_there() -> None:
    read = RangeRead(closed(), 0, 5)
    (ask,) = read.take_asks()
    answer(read, ask, {0, 1, 4, 5})
    (ask,) = read.take_asks()
    assert (ask.bookie, ask.first) == ("b1", 2)
    answer(read, ask, {2, 3})
    (ask,) = read.take_asks()
    assert ask.first == 4
    answer(read, ask, {4, 5})
    assert read.payloads() == [payload(e) for e in range(6)]


def test_a_bookie_that_lacks_one_entry_is_asked_for_the_next() -> None:
    read = RangeRead(closed(), 5, 6)
    held = {"b2": {6}, "b0": {5}, "b1": set[int]()}
    while asks := read.take_asks():
        for ask in asks:
            answer(read, ask, held[ask.bookie])
    assert read.payloads() == [payload(5), payload(6)]


def test_an_entry_does_not_exist_only_if_its_whole_write_set_says_so() -> None:
    read = RangeRead(closed(), 5, 5)
    for _ in range(2):
        (ask,) = read.take_asks()
        answer(read, ask, ())
        assert not read.is_done
    (ask,) = read.take_asks()
    answer(read, ask, ())
    assert read.take_asks() == []
    assert isinstance(read.failure, EntryNotFound)
    assert read.failure.entry_id == 5


@pytest.mark.parametrize("how", ["time-out", "limbo", "nothing said"])
def test_one_bookie_that_does_not_know_leaves_the_entry_unavailable(how: str) -> None:
    read = RangeRead(closed(), 5, 6)
    for number in range(3):
        (ask,) = read.take_asks()
        if number != 1:
            answer(read, ask, ())
        elif how == "time-out":
            read.on_failed(ask)
        elif how == "limbo":
            answer(read, ask, (), negative=UNKNOWN)
        else:
            read.on_reply(ask, {}, 4, ABSENT)
    assert read.take_asks() == []
    assert isinstance(read.failure, EntryUnavailable)


def test_a_copy_that_fails_its_digest_is_neither_yes_nor_no() -> None:
    read = RangeRead(closed(), 5, 5)
    (ask,) = read.take_asks()
    read.on_reply(ask, {}, 5, ABSENT, damaged=5)
    (ask,) = read.take_asks()
    answer(read, ask, {5})
    assert read.payloads() == [payload(5)], "rule 8: another replica is asked"
    read = RangeRead(closed(), 5, 5)
    for number in range(3):
        (ask,) = read.take_asks()
        read.on_reply(ask, {}, 5, ABSENT, damaged=5 if number == 0 else None)
    assert read.take_asks() == []
    assert isinstance(read.failure, EntryCorrupt), "it was there once"


def test_damage_among_silence_is_unavailable_and_not_corrupt() -> None:
    read = RangeRead(closed(), 5, 5)
    for number in range(3):
        (ask,) = read.take_asks()
        if number:
            read.on_failed(ask)
        else:
            read.on_reply(ask, {}, 5, ABSENT, damaged=5)
    read.take_asks()
    assert isinstance(read.failure, EntryUnavailable)


def test_what_precedes_a_damaged_entry_in_an_answer_is_kept() -> None:
    read = RangeRead(closed(), 2, 5)
    (ask,) = read.take_asks()
    read.on_reply(ask, {2: payload(2), 3: payload(3)}, 4, ABSENT, damaged=4)
    (ask,) = read.take_asks()
    assert (ask.bookie, ask.first) == ("b0", 4)
    answer(read, ask, {4, 5})
    assert read.payloads() == [payload(e) for e in range(2, 6)]


def test_an_answer_that_is_cut_short_is_asked_to_go_on() -> None:
    read = RangeRead(closed(), 0, 5)
    (ask,) = read.take_asks()
    read.on_reply(ask, {0: payload(0), 1: payload(1)}, 1, ABSENT)
    (ask,) = read.take_asks()
    assert (ask.bookie, ask.first) == ("b0", 2)


def test_an_answer_counts_once_and_for_the_ask_it_belongs_to() -> None:
    read = RangeRead(closed(fragments=THREE), 3, 5)
    first, second = read.take_asks()
    read.on_failed(first)
    (again,) = read.take_asks()
    answer(read, first, range(10))
    assert read.payloads() == [], "it came after its time-out"
    answer(read, again, range(10))
    answer(read, again, range(10))
    read.on_failed(again)
    assert not read.is_done, "the other fragment is still out"
    answer(read, second, range(10))
    assert read.is_done


def test_a_bookie_that_failed_once_is_asked_last() -> None:
    read = RangeRead(closed(), 0, 5)
    (ask,) = read.take_asks()
    assert ask.bookie == "b0"
    read.on_failed(ask)
    (ask,) = read.take_asks()
    assert ask.bookie == "b1"
    answer(read, ask, {0, 1, 2})
    (ask,) = read.take_asks()
    assert ask.bookie == "b2", "b0 is not tried for the next entry while others are there"
    answer(read, ask, ())
    (ask,) = read.take_asks()
    assert ask.bookie == "b0"


def test_a_bookie_that_is_busy_is_asked_again_once_no_other_is_left() -> None:
    read = RangeRead(closed(), 5, 5)
    (ask,) = read.take_asks()
    read.on_busy(ask)
    assert not read.is_waiting, "others are left"
    for _ in range(2):
        (ask,) = read.take_asks()
        assert ask.bookie != "b2"
        answer(read, ask, ())
    assert read.take_asks() == []
    assert read.is_waiting
    assert not read.is_done, "the one that is busy may have it"
    read.ask_busy_again()
    (ask,) = read.take_asks()
    assert ask.bookie == "b2"
    answer(read, ask, {5})
    assert read.payloads() == [payload(5)]


@pytest.mark.parametrize("damaged", [None, 5])
def test_a_bookie_that_stays_busy_has_said_nothing(damaged: int | None) -> None:
    read = RangeRead(closed(), 5, 5)
    for number in range(3):
        (ask,) = read.take_asks()
        if number == 1:
            read.on_busy(ask)
        else:
            read.on_reply(ask, {}, 5, ABSENT, damaged=damaged)
    assert read.take_asks() == []
    assert read.is_waiting
    read.give_up_busy()
    assert read.take_asks() == []
    assert isinstance(read.failure, EntryUnavailable)
    assert "busy" in str(read.failure)


def test_bookies_to_avoid_are_asked_last() -> None:
    read = RangeRead(closed(), 0, 0, avoid=["b0", "b1"])
    (ask,) = read.take_asks()
    assert ask.bookie == "b2"


def test_readers_spread_over_the_write_set_by_preference() -> None:
    assert {RangeRead(closed(), 0, 0, prefer=n).take_asks()[0].bookie for n in range(3)} == set(bookies(3))


def test_the_last_fragment_of_an_open_ledger_is_read_as_far_as_asked() -> None:
    read = RangeRead(new_metadata(fragments=THREE), 5, 30)
    assert [(ask.first, ask.last) for ask in read.take_asks()] == [(5, 5), (6, 30)]


@settings(max_examples=max(150, settings().max_examples))
@given(
    st.sampled_from([(1, 1, 1), (2, 2, 1), (3, 3, 2), (3, 2, 2), (4, 2, 2), (5, 3, 2)]),
    st.lists(st.integers(1, 12), max_size=3, unique=True).map(sorted),
    st.data(),
)
def test_a_read_finds_every_entry_that_some_bookie_of_its_write_set_gives(
    shape: tuple[int, int, int], starts: list[int], data: st.DataObject
) -> None:
    """If the read fails, its error about the first failing entry says no more than the answers allow."""
    fragments = tuple(
        Fragment(start, bookies(shape[0], 2 * number)) for number, start in enumerate([0, *starts])
    )
    metadata = closed(shape, 14, fragments=fragments)
    names = sorted({bookie for fragment in fragments for bookie in fragment.ensemble})
    lost = {
        (bookie, entry_id)
        for bookie, entry_id in data.draw(
            st.sets(st.tuples(st.sampled_from(names), st.integers(0, 14)), max_size=30)
        )
    }
    dead = data.draw(st.sets(st.sampled_from(names), max_size=2))
    limbo = data.draw(st.sets(st.sampled_from(names), max_size=1))
    reply_entries = data.draw(st.integers(1, 6))
    first = data.draw(st.integers(0, 14))
    last = data.draw(st.integers(first, 14))
    read = RangeRead(metadata, first, last, prefer=data.draw(st.integers(0, 4)))

    def has(bookie: str, entry_id: int) -> bool:
        return bookie not in dead and (bookie, entry_id) not in lost

    asks: list[RangeAsk] = []
    while not read.is_done:
        asks += read.take_asks()
        if read.failure is not None:
            break
        ask = asks.pop(data.draw(st.integers(0, len(asks) - 1)))
        if ask.bookie in dead:
            read.on_failed(ask)
            continue
        entries = list(wanted(ask)[:reply_entries])
        found = {e: payload(e) for e in entries if has(ask.bookie, e)}
        through = ask.last if len(wanted(ask)) <= reply_entries else entries[-1]
        read.on_reply(ask, found, through, UNKNOWN if ask.bookie in limbo else ABSENT)
    missing = [
        e for e in range(first, last + 1) if not any(has(bookie, e) for bookie in metadata.bookies_of(e))
    ]
    if not missing:
        assert read.failure is None
        assert read.payloads() == [payload(e) for e in range(first, last + 1)]
        return
    assert isinstance(read.failure, EntryNotFound | EntryUnavailable)
    assert read.failure.entry_id in missing
    knows = all(bookie not in dead | limbo for bookie in metadata.bookies_of(read.failure.entry_id))
    assert isinstance(read.failure, EntryNotFound) == knows
