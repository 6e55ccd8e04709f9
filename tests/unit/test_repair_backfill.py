"""Backfill gives a bookie the missing ranges of its share. It reports what it cannot get, and goes on."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.ledger.core.comparison import CopyAnswer
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.limits import ENTRY_ID_MAX, FRAME_BYTES_TARGET
from ledgerlog.model.ledger import Fragment, LedgerMetadata, LedgerState
from ledgerlog.model.missing import gaps, shares
from ledgerlog.repair.core.backfill import Backfill
from ledgerlog.repair.core.copy_queue import COPY_BYTES
from tests.cores import bookies, new_metadata

NAMES = bookies(6)


def closed(shape: tuple[int, int, int], last: int) -> LedgerMetadata:
    fragments = (Fragment(0, NAMES[: shape[0]]),)
    return new_metadata(shape, state=LedgerState.CLOSED, fragments=fragments, last_entry=last)


def payload(entry_id: int) -> bytes:
    return b"%d" % entry_id


def pairs(ids: set[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for e in sorted(ids):
        if found and found[-1][1] == e - 1:
            found[-1] = (found[-1][0], e)
        else:
            found.append((e, e))
    return found


class Others:
    """Bookies with their entries. ``batch`` is how many entries a reply brings."""

    def __init__(
        self,
        stored: Mapping[str, set[int]],
        *,
        silent: set[str] = frozenset(),
        mute: set[str] = frozenset(),
        in_limbo: set[str] = frozenset(),
        damaged: set[tuple[str, int]] = frozenset(),
        batch: int = 100,
        list_reach: int = ENTRY_ID_MAX,
    ) -> None:
        self.stored, self.silent, self.in_limbo, self.damaged = stored, silent, in_limbo, damaged
        self.mute = mute
        """These list their entries, but do not send them."""
        self.batch, self.list_reach = batch, list_reach
        self.lists = self.reads = 0
        self.given: list[int] = []

    def _negative(self, bookie: str) -> Negative:
        return Negative.UNKNOWN if bookie in self.in_limbo else Negative.ABSENT

    def carry_out(self, core: Backfill) -> None:
        for _ in range(100_000):
            lists, asks, copies = core.take_lists(), core.take_asks(), core.take_copies()
            for listing in lists:
                self.lists += 1
                if listing.bookie in self.silent:
                    core.on_list_failed(listing)
                    continue
                through = min(ENTRY_ID_MAX, listing.first + self.list_reach)
                has = {e for e in self.stored[listing.bookie] if listing.first <= e <= through}
                core.on_listed(
                    listing,
                    CopyAnswer(through=through, negative=self._negative(listing.bookie), sound=pairs(has)),
                )
            for ask in asks:
                self.reads += 1
                if ask.bookie in self.mute:
                    core.on_failed(ask)
                    continue
                wanted = range(ask.first, ask.last + 1, ask.stride)[: self.batch]
                damaged = next((e for e in wanted if (ask.bookie, e) in self.damaged), None)
                if damaged is not None:
                    wanted = range(ask.first, damaged, ask.stride)
                found = {e: payload(e) for e in wanted if e in self.stored[ask.bookie]}
                through = wanted[-1] if wanted else ask.first - 1
                core.on_reply(ask, found, through, self._negative(ask.bookie), damaged)
            for copy in copies:
                assert copy.bookie == core.bookie
                assert all(body == payload(e) for e, body in copy.entries.items())
                self.given += copy.entries
                core.on_copied(copy)
            if core.is_done:
                return
            assert lists or asks or copies, "it waits for nobody"
        raise AssertionError("it does not end")


def filling(shape: tuple[int, int, int], last: int, has: set[int] = frozenset(), **options: int) -> Backfill:
    metadata = closed(shape, last)
    (share,) = shares(metadata, NAMES[0])
    return Backfill(metadata, NAMES[0], share, gaps(share, pairs(has)), **options)


def test_a_huge_range_is_read_in_batches_and_not_entry_by_entry() -> None:
    core = filling((3, 3, 2), 99_999)
    others = Others({NAMES[1]: set(range(100_000)), NAMES[2]: set()}, batch=2_000)
    others.carry_out(core)
    assert others.given == list(range(100_000))
    assert others.reads <= 80
    assert others.lists == 2


def test_what_nobody_has_is_passed_over_in_one_step_however_much_it_is() -> None:
    million = 10**6
    core = filling((3, 3, 2), 10 * million - 1)
    others = Others({NAMES[1]: {5 * million}, NAMES[2]: {5 * million + 1}})
    others.carry_out(core)
    assert others.given == [5 * million, 5 * million + 1]
    assert core.nowhere.ranges() == [(0, 5 * million - 1), (5 * million + 2, 10 * million - 1)]
    assert others.lists + others.reads <= 6


def test_what_somebody_does_not_answer_for_is_unavailable_and_holds_up_nothing() -> None:
    core = filling((3, 3, 2), 9)
    others = Others({NAMES[1]: {0, 1, 2, 6, 7, 8, 9}, NAMES[2]: set()}, silent={NAMES[2]})
    others.carry_out(core)
    assert others.given == [0, 1, 2, 6, 7, 8, 9]
    assert (core.unavailable.ranges(), core.nowhere.ranges()) == ([(3, 5)], [])
    assert core.silent == [NAMES[2]]


def test_rule_8_who_is_in_limbo_denies_nothing() -> None:
    core = filling((3, 3, 2), 9)
    others = Others({NAMES[1]: {0, 1}, NAMES[2]: {0}}, in_limbo={NAMES[2]})
    others.carry_out(core)
    assert others.given == [0, 1]
    assert (core.unavailable.ranges(), core.nowhere.ranges()) == ([(2, 9)], [])


def test_rule_8_a_damaged_copy_is_had_from_another_or_is_none() -> None:
    everything = set(range(10))
    core = filling((3, 3, 2), 9)
    others = Others(
        {NAMES[1]: everything, NAMES[2]: everything - {7}}, damaged={(NAMES[1], 3), (NAMES[1], 7)}
    )
    others.carry_out(core)
    assert sorted(others.given) == sorted(everything - {7})
    assert (core.unavailable.ranges(), core.nowhere.ranges()) == ([], [(7, 7)])


def test_reading_pauses_while_so_many_bytes_are_on_their_way() -> None:
    core = filling((3, 3, 2), 10**6)
    size = FRAME_BYTES_TARGET
    for listing in core.take_lists():
        core.on_listed(
            listing, CopyAnswer(through=ENTRY_ID_MAX, negative=Negative.ABSENT, sound=[(0, 10**6)])
        )
    core.take_lists()
    under_way = at = 0
    while asks := core.take_asks():
        (ask,) = asks
        assert ask.first == at
        core.on_reply(ask, {at: b"." * size, at + 1: b"." * size}, at + 1, Negative.ABSENT)
        under_way, at = under_way + 2 * size, at + 2
    assert COPY_BYTES <= under_way <= COPY_BYTES + 2 * size
    copies = core.take_copies()
    assert len(copies) == at
    core.on_copied(copies[0])
    core.on_copied(copies[1])
    assert core.take_asks()


def test_rule_23_copies_carry_what_is_certainly_committed() -> None:
    assert filling((3, 3, 2), 9).lac == 9
    metadata = new_metadata(fragments=(Fragment(0, NAMES[:3]), Fragment(4, (NAMES[3], *NAMES[1:3]))))
    (share,) = shares(metadata, NAMES[0])
    assert Backfill(metadata, NAMES[0], share, [(0, 3)]).lac == 3


@given(
    data=st.data(),
    shape=st.sampled_from([(3, 3, 2), (4, 2, 2), (5, 3, 2), (2, 2, 1), (1, 1, 1)]),
    last=st.integers(0, 40),
    batch=st.integers(1, 9),
    reach=st.integers(0, 50),
    round_entries=st.integers(1, 20),
)
def test_all_that_somebody_has_is_given_once_and_the_rest_is_told(
    data: st.DataObject,
    shape: tuple[int, int, int],
    last: int,
    batch: int,
    reach: int,
    round_entries: int,
) -> None:
    metadata = closed(shape, last)
    ensemble = NAMES[: shape[0]]

    def some_of(bookie: str) -> set[int]:
        held = [e for e in range(last + 1) if bookie in metadata.bookies_of(e)]
        return set(data.draw(st.lists(st.sampled_from(held)))) if held else set()

    stored = {bookie: some_of(bookie) for bookie in ensemble}
    others = [bookie for bookie in ensemble if bookie != NAMES[0]]
    some = st.sets(st.sampled_from(others)) if others else st.just(set())
    silent, mute, in_limbo = data.draw(some), data.draw(some), data.draw(some)
    damaged = {(b, e) for b in others for e in stored[b] if data.draw(st.integers(0, 9)) == 0}
    has = stored[NAMES[0]]
    wanted = {e for e in range(last + 1) if NAMES[0] in metadata.bookies_of(e)} - has
    if not any(NAMES[0] in metadata.bookies_of(e) for e in range(last + 1)):
        return
    core = filling(shape, last, has, round_entries=round_entries)
    peers = Others(
        stored, silent=silent, mute=mute, in_limbo=in_limbo, damaged=damaged, batch=batch, list_reach=reach
    )
    peers.carry_out(core)
    can_be_had = {
        e
        for e in wanted
        if any(
            e in stored[b] and b not in silent | mute and (b, e) not in damaged
            for b in metadata.bookies_of(e)
            if b != NAMES[0]
        )
    }
    assert sorted(peers.given) == sorted(can_be_had)
    told = {e for e in wanted if e in core.nowhere or e in core.unavailable}
    assert told == wanted - can_be_had
    for e in told:
        holders = set(metadata.bookies_of(e)) - {NAMES[0]}
        has_it = {b for b in holders if e in stored[b]}
        if not (silent | in_limbo | mute) & set(others):
            assert e in core.nowhere
        if e in core.nowhere:
            assert not (silent | in_limbo) & holders
            assert not mute & has_it, "who has it and does not bring it is worth asking again"
