"""Repair of fragments: which fragments it may touch, what it copies from where, what it writes (rules 20 to
24).
"""

from __future__ import annotations

from collections.abc import Collection

import pytest

from ledgerlog.errors import EntryNotFound, EntryUnavailable, LedgerNotFound
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.limits import FRAME_BYTES_TARGET
from ledgerlog.model.ledger import Fragment, LedgerMetadata, LedgerState
from ledgerlog.repair.core.copy_queue import Copy
from ledgerlog.repair.core.repair import FragmentRepair, RepairFailed, RepairPhase, Work, survey
from tests.cores import Register, bookies, new_metadata, new_token

B0, B1, B2, B3, B4, B5 = bookies(6)
TWO = (Fragment(0, (B0, B1, B2)), Fragment(4, (B0, B3, B2)))


def closed(
    shape: tuple[int, int, int] = (3, 3, 2),
    fragments: tuple[Fragment, ...] = TWO,
    last: int = 6,
    guaranteed: bool = False,
) -> LedgerMetadata:
    return new_metadata(
        shape, state=LedgerState.CLOSED, fragments=fragments, last_entry=last, guaranteed=guaranteed
    )


def payload(entry_id: int) -> bytes:
    return b"%d" % entry_id


def copy_all(
    repair: FragmentRepair, *, silent: Collection[str] = (), lacking: Collection[str] = ()
) -> dict[str, list[int]]:
    """Answer every read and confirm every copy. Return the entries that each bookie received.

    ``silent`` bookies fail, and ``lacking`` bookies have nothing.
    """
    given: dict[str, list[int]] = {}
    while repair.phase is RepairPhase.COPYING:
        asks, copies = repair.take_asks(), repair.take_copies()
        for ask in asks:
            ids = range(ask.first, ask.last + 1, ask.stride)
            if ask.bookie in silent:
                repair.on_failed(ask)
            else:
                found = {} if ask.bookie in lacking else {e: payload(e) for e in ids}
                repair.on_reply(ask, found, ask.last, Negative.ABSENT)
        for copy in copies:
            assert all(copy.entries[e] == payload(e) for e in copy.entries)
            given.setdefault(copy.bookie, []).extend(copy.entries)
            repair.on_copied(copy)
        if not asks and not copies:
            break
    return given


def start(
    metadata: LedgerMetadata, index: int, replacements: dict[str, str], **options: int
) -> tuple[FragmentRepair, Register]:
    register = Register(metadata)
    repair = FragmentRepair(metadata, register.version, index, replacements, new_token=new_token(), **options)
    return repair, register


def carry_out(repair: FragmentRepair, register: Register) -> None:
    assert repair.intent is not None
    register.write(repair.intent)
    repair.on_metadata_read(register.stored, register.version)


# --- what may be touched --------------------------------------------------------------------------


def test_a_survey_tells_which_fragments_name_lost_bookies_and_what_may_be_done() -> None:
    findings = survey(new_metadata(fragments=TWO), {B2, B1})
    assert [(f.fragment_index, f.lost, f.work) for f in findings] == [
        (0, (B1, B2), Work.COPY),
        (1, (B2,), Work.RECOVER),
    ]
    assert [f.work for f in survey(closed(), {B2})] == [Work.COPY, Work.COPY]
    assert survey(closed(), {B5}) == []


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_rule_20_the_last_fragment_of_a_ledger_that_is_not_closed_is_not_touched(state: LedgerState) -> None:
    metadata = new_metadata(fragments=TWO, state=state)
    assert survey(metadata, {B3})[0].work is Work.RECOVER
    with pytest.raises(AssertionError, match="rule 20"):
        start(metadata, 1, {B3: B4})
    repair, register = start(metadata, 0, {B1: B4})
    copy_all(repair)
    carry_out(repair, register)
    assert repair.phase is RepairPhase.DONE
    assert register.stored is not None
    assert register.stored.fragments == (Fragment(0, (B0, B4, B2)), TWO[1])
    assert register.stored.state is state


def test_rule_21_a_slot_that_a_short_striped_fragment_left_empty_lost_nothing() -> None:
    fragments = (Fragment(0, (B0, B1, B2, B3)),)
    metadata = closed((4, 2, 2), fragments, last=0)
    assert [survey(metadata, {b})[0].work for b in (B0, B1, B2, B3)] == [
        Work.COPY,
        Work.COPY,
        Work.NAME,
        Work.NAME,
    ]
    repair, register = start(metadata, 0, {B3: B4})
    assert repair.phase is RepairPhase.WRITING
    assert repair.take_asks() == []
    carry_out(repair, register)
    assert repair.phase is RepairPhase.DONE


def test_rule_21_an_empty_last_fragment_whose_bookies_are_all_gone_is_repaired_by_its_names_alone() -> None:
    fragments = (Fragment(0, (B0, B1, B2)), Fragment(4, (B3, B4, B5)))
    metadata = closed(fragments=fragments, last=3)
    assert [f.work for f in survey(metadata, {B3, B4, B5})] == [Work.NAME]
    repair, register = start(metadata, 1, {B3: B0, B4: B1, B5: B2})
    carry_out(repair, register)
    assert register.stored is not None
    assert register.stored.fragments[1] == Fragment(4, (B0, B1, B2))


# --- copying --------------------------------------------------------------------------------------


@pytest.mark.parametrize("round_entries", [1, 2, 3, 100])
def test_everything_that_the_lost_slots_hold_is_copied_and_nothing_else(round_entries: int) -> None:
    metadata = closed((4, 2, 2), (Fragment(0, (B0, B1, B2, B3)), Fragment(9, (B0, B1, B2, B4))), last=12)
    repair, _ = start(metadata, 0, {B1: B4, B3: B5}, round_entries=round_entries)
    given = copy_all(repair)
    holds = metadata.replication.holds
    assert {bookie: sorted(ids) for bookie, ids in given.items()} == {
        B4: [e for e in range(9) if holds(1, e)],
        B5: [e for e in range(9) if holds(3, e)],
    }
    assert repair.phase is RepairPhase.WRITING


def test_the_last_entry_is_copied_though_it_has_a_round_of_its_own() -> None:
    repair, _ = start(closed(), 1, {B2: B4}, round_entries=2)
    assert copy_all(repair) == {B4: [4, 5, 6]}


def test_entries_are_read_from_the_others_of_their_write_set_lost_ones_last() -> None:
    repair, _ = start(closed(), 0, {B0: B3, B1: B4})
    (ask,) = repair.take_asks()
    assert (ask.bookie, ask.first, ask.last) == (B2, 0, 3)
    repair.on_failed(ask)
    (ask,) = repair.take_asks()
    assert ask.bookie == B1, "it may have been lost to others only"
    repair.on_failed(ask)
    assert repair.take_asks() == []
    assert isinstance(repair.failure, EntryUnavailable)


def test_what_all_others_lack_fails_the_repair_and_nothing_is_written() -> None:
    repair, register = start(closed(), 0, {B1: B3})
    copy_all(repair, lacking={B0, B2})
    assert repair.phase is RepairPhase.FAILED
    assert isinstance(repair.failure, EntryNotFound)
    assert repair.intent is None
    assert register.version == 1


def test_one_copy_anywhere_is_enough() -> None:
    repair, _ = start(closed(), 1, {B3: B4})
    assert copy_all(repair, silent={B0}) == {B4: [4, 5, 6]}
    repair, _ = start(closed(), 1, {B3: B4})
    assert copy_all(repair, lacking={B0}) == {B4: [4, 5, 6]}


def test_rule_23_copies_carry_the_end_of_a_closed_ledger_or_all_before_the_last_fragment() -> None:
    assert start(closed(), 0, {B1: B3})[0].lac == 6
    repair, _ = start(new_metadata(fragments=TWO), 0, {B1: B3})
    assert (repair.lac, repair.lafr) == (3, -1)


def test_copies_are_no_larger_than_a_frame_and_wait_for_each_other() -> None:
    metadata = closed(last=59, fragments=(Fragment(0, (B0, B1, B2)),))
    repair, _ = start(metadata, 0, {B1: B3}, round_entries=10)
    big = bytes(FRAME_BYTES_TARGET // 2)
    copies: list[Copy] = []
    while asks := repair.take_asks():
        for ask in asks:
            found = dict.fromkeys(range(ask.first, ask.last + 1), big)
            repair.on_reply(ask, found, ask.last, Negative.ABSENT)
        copies += repair.take_copies()
    assert {len(copy.entries) for copy in copies} == {2}
    assert sum(copy.byte_count for copy in copies) < 21 * FRAME_BYTES_TARGET, "reading pauses"
    for copy in copies:
        repair.on_copied(copy)
    assert repair.take_asks(), "and goes on"


# --- writing --------------------------------------------------------------------------------------


def test_new_names_are_written_once_every_copy_is_durable() -> None:
    repair, register = start(closed(), 0, {B1: B3}, round_entries=2)
    copies: list[Copy] = []
    while asks := repair.take_asks():
        for ask in asks:
            repair.on_reply(
                ask, {e: payload(e) for e in range(ask.first, ask.last + 1)}, ask.last, Negative.ABSENT
            )
        copies += repair.take_copies()
    for copy in copies:
        assert repair.intent is None
        repair.on_copied(copy)
    carry_out(repair, register)
    assert register.stored is not None
    assert register.stored.fragments == (Fragment(0, (B0, B3, B2)), TWO[1])
    assert register.stored.last_entry == 6


def test_rule_13_a_conflict_with_the_owners_change_keeps_what_he_wrote() -> None:
    repair, register = start(new_metadata(fragments=TWO), 0, {B1: B4})
    copy_all(repair)
    assert register.stored is not None
    register.put(register.stored.with_ensemble(6, (B5, B3, B2), b"owner"))
    carry_out(repair, register)
    assert repair.phase is RepairPhase.WRITING
    carry_out(repair, register)
    assert repair.phase is RepairPhase.DONE
    assert register.stored.fragments == (Fragment(0, (B0, B4, B2)), TWO[1], Fragment(6, (B5, B3, B2)))


def test_a_write_whose_answer_was_lost_is_known_by_what_is_stored() -> None:
    repair, register = start(closed(), 0, {B1: B3})
    copy_all(repair)
    assert repair.intent is not None
    register.write(repair.intent)
    assert register.stored is not None
    register.put(register.stored.with_replacement(0, B0, B5, b"another"))
    repair.on_metadata_read(register.stored, register.version)
    assert repair.phase is RepairPhase.DONE


def test_a_repair_that_another_overtook_with_other_bookies_is_over() -> None:
    repair, register = start(closed(), 0, {B1: B3})
    copy_all(repair)
    register.put(closed().with_replacement(0, B1, B4, b"another"))
    carry_out(repair, register)
    assert isinstance(repair.failure, RepairFailed)
    assert register.stored is not None
    assert register.stored.fragments[0].ensemble == (B0, B4, B2)
    # A change of another slot does not matter, unless it put this repair's new bookie there.
    for taken, phase in ((B4, RepairPhase.WRITING), (B3, RepairPhase.FAILED)):
        repair, register = start(closed(), 0, {B1: B3})
        copy_all(repair)
        register.put(closed().with_replacement(0, B0, taken, b"another"))
        carry_out(repair, register)
        assert repair.phase is phase


@pytest.mark.parametrize(
    "state", [LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED], ids=lambda state: state.name
)
def test_a_repair_whose_fragment_has_another_range_now_is_over(state: LedgerState) -> None:
    """A recovery after a restore names other bookies for the whole ledger. The copies are of a part only."""
    two = new_metadata((3, 3, 2), state=LedgerState.OPEN, fragments=TWO)
    repair, register = start(two, 0, {B1: B4})
    assert sorted(copy_all(repair)[B4]) == [0, 1, 2, 3]
    last = 6 if state is LedgerState.CLOSED else None
    one = new_metadata((3, 3, 2), state=state, fragments=(Fragment(0, (B0, B1, B2)),), last_entry=last)
    register.put(one)
    carry_out(repair, register)
    assert isinstance(repair.failure, RepairFailed)
    assert register.stored == one


def test_a_new_bookie_that_takes_no_copy_fails_the_repair() -> None:
    repair, _ = start(closed(), 0, {B1: B3})
    (ask,) = repair.take_asks()
    repair.on_reply(ask, {e: payload(e) for e in range(4)}, 3, Negative.ABSENT)
    (copy,) = repair.take_copies()
    repair.on_copy_failed(copy, "its disk is full")
    assert isinstance(repair.failure, RepairFailed)
    assert "its disk is full" in str(repair.failure)
    repair.on_copied(copy)
    assert repair.phase is RepairPhase.FAILED
    repair.on_target_lost(B3, "again")
    assert "its disk is full" in str(repair.failure)


def test_a_new_bookie_that_is_lost_after_its_last_copy_is_not_named() -> None:
    repair, register = start(closed(), 0, {B0: B4, B1: B3})
    copy_all(repair)
    assert repair.intent is not None
    repair.on_target_lost(B4, "it closed the connection")
    assert isinstance(repair.failure, RepairFailed)
    assert "b4: it closed" in str(repair.failure).lower()
    assert repair.intent is None
    # Once the metadata names the bookie, the write has decided.
    repair, register = start(closed(), 0, {B0: B4, B1: B3})
    copy_all(repair)
    carry_out(repair, register)
    repair.on_target_lost(B4, "it closed the connection")
    assert repair.phase is RepairPhase.DONE


def test_a_ledger_that_was_deleted_meanwhile_needs_no_repair() -> None:
    repair, _ = start(closed(), 0, {B1: B3})
    copy_all(repair)
    repair.on_metadata_read(None, -1)
    assert isinstance(repair.failure, LedgerNotFound)
    repair.on_metadata_read(closed(), 9)
    assert repair.phase is RepairPhase.FAILED
