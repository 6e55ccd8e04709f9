"""A ledger's state on a bookie: its verdicts, and the facts that it must not forget."""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.journal_items import EntryRun
from bookie.core.ledger import BookieLedger
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.wire.frame import Status

KEY = b"k" * 16
OTHER = b"o" * 16


def state() -> BookieLedger:
    return BookieLedger(1, KEY)


def run(first: int, last: int, *, count: int | None = None, segment: int = 1, sequence: int = 1) -> EntryRun:
    return EntryRun(
        1, first, last, last - first + 1 if count is None else count, segment, 4096 + first, 500, sequence
    )


def test_an_ordinary_add_is_accepted_until_the_fence_and_refused_after_it() -> None:
    ledger = state()
    assert ledger.add_refusal(KEY, is_recovery=False) is None
    ledger.on_fence()
    assert ledger.add_refusal(KEY, is_recovery=False) is Status.FENCED


def test_recovery_adds_pass_the_fence() -> None:
    ledger = state()
    ledger.on_fence()
    assert ledger.add_refusal(KEY, is_recovery=True) is None


def test_a_wrong_key_is_refused_before_anything_else_and_changes_nothing() -> None:
    ledger = state()
    assert ledger.add_refusal(OTHER, is_recovery=False) is Status.UNAUTHORIZED
    assert ledger.add_refusal(OTHER, is_recovery=True) is Status.UNAUTHORIZED
    assert ledger.fence_refusal(OTHER) is Status.UNAUTHORIZED
    assert not ledger.is_fenced
    assert not ledger.is_dirty


def test_rule_4_a_ledger_that_is_gone_is_stored_as_fenced() -> None:
    ledger = state()
    ledger.on_delete()
    stored = ledger.to_store()
    assert stored.is_deleted
    assert stored.is_fenced
    restored = BookieLedger.restore(1, stored)
    assert restored.add_refusal(KEY, is_recovery=False) is Status.FENCED
    assert restored.is_fence_settled(0), "no other record is needed for a fence of it"


def test_a_ledger_that_is_gone_knows_no_lac_so_that_no_recovery_after_a_restore_ends_there() -> None:
    ledger = state()
    ledger.tell(7, 5)
    of_before = attrs.evolve(ledger.to_store(), is_deleted=True)
    ledger.on_delete()
    for gone in (ledger, BookieLedger.restore(1, ledger.to_store()), BookieLedger.restore(1, of_before)):
        assert not gone.tell(8, 8), "a file that is read later tells nothing about it"
        assert (gone.lac, gone.lafr) == (NO_ENTRY, NO_ENTRY)


def test_a_fence_is_settled_only_once_its_own_block_is_durable() -> None:
    ledger = state()
    ledger.on_fence()
    assert not ledger.is_fence_settled(10), "there is no record yet"
    ledger.fence_sequence = 11
    assert not ledger.is_fence_settled(10)
    assert ledger.is_fence_settled(11)


def test_a_fence_from_the_index_is_settled_at_once() -> None:
    ledger = state()
    ledger.on_fence()
    ledger.fence_sequence = 11
    ledger.settle_fence(11)
    assert BookieLedger.restore(1, ledger.to_store()).is_fence_settled(0)


def test_the_index_is_not_told_of_a_fence_before_the_journal_has_it_durably() -> None:
    ledger = state()
    ledger.on_fence()
    ledger.settle_fence(10)
    assert not ledger.to_store().is_fenced, "there is no record"
    ledger.fence_sequence = 11
    ledger.settle_fence(10)
    assert not ledger.to_store().is_fenced, "its block may be torn"
    ledger.settle_fence(11)
    assert ledger.to_store().is_fenced


@given(st.lists(st.tuples(st.integers(-1, 20), st.integers(-1, 20))))
def test_lac_and_lafr_are_the_greatest_values_told(told: list[tuple[int, int]]) -> None:
    ledger = state()
    for lac, lafr in told:
        before = ledger.lac
        assert ledger.tell(lac, lafr) == (ledger.lac > before)
    assert ledger.lac == max([-1, *(lac for lac, _ in told)])
    assert ledger.lafr == max([-1, *(lafr for _, lafr in told)])


def test_the_last_entry_is_the_highest_id_not_the_latest() -> None:
    ledger = state()
    ledger.on_run(run(10, 20))
    ledger.on_run(run(0, 5))
    assert ledger.last_entry == 20


def test_the_last_durable_entry_is_in_the_newest_durable_block() -> None:
    ledger = state()
    ledger.on_run(run(0, 5, sequence=1))
    ledger.on_run(run(6, 9, sequence=2))
    assert [ledger.last_durable(durable) for durable in range(4)] == [-1, 5, 9, 9]


@given(st.lists(st.sets(st.integers(0, 40), min_size=1, max_size=8), max_size=12), st.data())
def test_every_run_that_holds_an_id_is_found_however_runs_interleave(
    frames: list[set[int]], data: st.DataObject
) -> None:
    ledger = state()
    held: dict[EntryRun, set[int]] = {}
    seen: set[int] = set()
    for frame in frames:
        ids = sorted(frame - seen)  # No id is stored twice.
        if not ids:
            continue
        seen |= set(ids)
        added = run(ids[0], ids[-1], count=len(ids))
        held[added] = set(ids)
        ledger.on_run(added)
    first = data.draw(st.integers(0, 45))
    last = data.draw(st.integers(first, 45))
    found = ledger.runs_between(first, last)
    assert found == sorted(found)
    for candidate, held_ids in held.items():
        if held_ids & set(range(first, last + 1)):
            assert candidate in found


def test_runs_that_never_overlapped_are_found_without_looking_back() -> None:
    ledger = state()
    for first in range(0, 100, 10):
        ledger.on_run(run(first, first + 9))
    assert ledger.straddle == 0
    assert [found.first for found in ledger.runs_between(35, 52)] == [30, 40, 50]


def test_forgotten_runs_are_known_to_be_in_the_index() -> None:
    ledger = state()
    ledger.on_run(run(0, 9, segment=1))
    ledger.on_run(run(10, 19, segment=2))
    ledger.forget_runs(1)
    assert ledger.index_last == 9
    assert [found.first for found in ledger.runs] == [10]


def test_a_state_leaves_memory_only_when_nothing_would_be_lost() -> None:
    ledger = state()
    assert ledger.is_evictable(0)
    for change in ("dirty", "run", "pin", "fence"):
        ledger = state()
        if change == "dirty":
            ledger.tell(3, 3)
        elif change == "run":
            ledger.on_run(run(0, 1))
            ledger.is_dirty = False
        elif change == "pin":
            ledger.pins += 1
        else:
            ledger.on_fence()
            ledger.is_dirty = False
            ledger.fence_sequence = 5
            assert ledger.is_evictable(5)
        assert not ledger.is_evictable(4), change


def test_what_the_index_keeps_comes_back() -> None:
    ledger = state()
    ledger.on_run(run(5, 9))
    ledger.on_run(run(0, 3))
    ledger.tell(4, 2)
    ledger.on_fence()
    ledger.fence_sequence = 3
    ledger.settle_fence(3)
    back = BookieLedger.restore(1, ledger.to_store())
    assert (back.key, back.is_fenced, back.lac, back.lafr) == (KEY, True, 4, 2)
    assert (back.last_entry, back.widest, back.straddle) == (9, 4, 4)
    assert back.index_last == 9
    assert not back.is_dirty
