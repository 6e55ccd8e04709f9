"""``ledger.core.recovery``: fencing, finding the end, writing back and closing, without a network."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerlog.errors import LedgerNotFound, NotEnoughBookies, RecoveryFailed
from ledgerlog.ledger.core import recovery as recovery_module
from ledgerlog.ledger.core.recovery import LedgerRecovery, Negative, Phase, ReadAsk
from ledgerlog.limits import ENTRY_ID_MAX
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.ledger import Fragment, LedgerState
from ledgerlog.model.quorum import Replication
from tests.cores import Register, bookies, new_metadata, new_token

ABSENT, UNKNOWN = Negative.ABSENT, Negative.UNKNOWN
SECOND = (Fragment(0, bookies(3, 5)), Fragment(4, bookies(3)))
"""Two fragments; the last one starts at entry 4."""


def start(
    shape: tuple[int, int, int] = (3, 3, 2),
    *,
    guaranteed: bool = False,
    state: LedgerState = LedgerState.IN_RECOVERY,
    fragments: tuple[Fragment, ...] | None = None,
    last_entry: int | None = None,
    **options: int,
) -> tuple[LedgerRecovery, Register]:
    metadata = new_metadata(
        shape, guaranteed=guaranteed, state=state, fragments=fragments, last_entry=last_entry
    )
    options = {"round_entries": 1} | options
    recovery = LedgerRecovery(metadata, 1, new_token=new_token("recoverer"), **options)
    return recovery, Register(metadata)


def fence(
    recovery: LedgerRecovery,
    slots: Collection[int] | None = None,
    *,
    lac: int = NO_ENTRY,
    lafr: int = NO_ENTRY,
) -> None:
    """Confirm the fences of all asked slots, or of those in ``slots``, until the recovery stops listening."""
    for slot, bookie in recovery.take_fences():
        assert bookie == recovery.frozen.ensemble[slot]
        if slots is None or slot in slots:
            recovery.on_fence_ok(slot, lac, lafr)


def begin(
    shape: tuple[int, int, int] = (3, 3, 2), *, lac: int = NO_ENTRY, lafr: int = NO_ENTRY, **options: object
) -> tuple[LedgerRecovery, Register]:
    """Return a recovery whose fencing is complete."""
    recovery, register = start(shape, **options)
    fence(recovery, lac=lac, lafr=lafr)
    assert recovery.phase is Phase.READING
    return recovery, register


class Bookies:
    """The entries of every bookie. The bookies answer reads like bookies that have lost nothing."""

    def __init__(
        self, held: Mapping[str, Collection[int]], limbo: Collection[str] = (), down: Collection[str] = ()
    ) -> None:
        self.held = held
        self.limbo = limbo
        self.down = down
        self.asked: list[ReadAsk] = []

    def answer(self, recovery: LedgerRecovery, ask: ReadAsk, reply_entries: int = 1000) -> None:
        self.asked.append(ask)
        if ask.bookie in self.down:
            recovery.on_read_failed(ask)
            return
        wanted = range(ask.first, ask.last + 1, ask.stride)[:reply_entries]
        found = {e: payload(e) for e in wanted if e in self.held.get(ask.bookie, ())}
        negative = UNKNOWN if ask.bookie in self.limbo else ABSENT
        recovery.on_read(ask, found, wanted[-1] if len(wanted) == reply_entries else ask.last, negative)

    def answer_all(self, recovery: LedgerRecovery, reply_entries: int = 1000) -> None:
        while asks := recovery.take_reads():
            for ask in asks:
                self.answer(recovery, ask, reply_entries)


def payload(entry_id: int) -> bytes:
    return b"entry %d" % entry_id


def ask_of(recovery: LedgerRecovery, asks: list[ReadAsk], bookie: str) -> ReadAsk:
    return next(ask for ask in asks if ask.bookie == bookie)


def write_backs(recovery: LedgerRecovery) -> dict[str, list[tuple[int, int]]]:
    return {
        bookie: [(send.first, send.last) for send in recovery.take_sends(bookie)]
        for bookie in recovery.private_ensemble
    }


def confirm_write_backs(recovery: LedgerRecovery, *names: str) -> None:
    for bookie in names or recovery.private_ensemble:
        for send in recovery.take_sends(bookie):
            recovery.on_add_ok(bookie, send.first, send.last)


# --- announcing -----------------------------------------------------------------------------------


def test_an_open_ledger_is_announced_before_anybody_is_fenced() -> None:
    recovery, register = start(state=LedgerState.OPEN)
    assert recovery.take_fences() == []
    assert recovery.intent is not None
    assert recovery.intent.metadata.state is LedgerState.IN_RECOVERY
    register.carry_out(recovery)
    assert recovery.phase is Phase.FENCING
    assert recovery.take_fences() == [(0, "b0"), (1, "b1"), (2, "b2")]


def test_joining_a_recovery_writes_nothing() -> None:
    recovery, _ = start(state=LedgerState.IN_RECOVERY)
    assert recovery.intent is None, "D9: a version bump would make two recoverers starve each other"
    assert recovery.phase is Phase.FENCING


def test_a_closed_ledger_needs_no_recovery() -> None:
    recovery, _ = start(state=LedgerState.CLOSED, last_entry=3)
    assert recovery.phase is Phase.DONE
    assert recovery.metadata.last_entry == 3


def test_an_announcement_that_conflicts_starts_again_from_what_is_stored() -> None:
    recovery, register = start(state=LedgerState.OPEN)
    assert register.stored is not None
    changed = register.stored.with_ensemble(0, ("b0", "b1", "b9"), b"owner")
    register.put(changed)
    register.carry_out(recovery)
    assert recovery.phase is Phase.ANNOUNCING
    register.carry_out(recovery)
    assert [bookie for _, bookie in recovery.take_fences()] == ["b0", "b1", "b9"]


def test_an_announcement_whose_answer_was_lost_goes_on() -> None:
    recovery, register = start(state=LedgerState.OPEN)
    assert recovery.intent is not None
    register.write(recovery.intent)
    register.show(recovery)
    assert recovery.phase is Phase.FENCING


def test_an_announcement_that_meets_the_owners_close_adopts_it() -> None:
    recovery, register = start(state=LedgerState.OPEN)
    assert register.stored is not None
    register.put(register.stored.closed(2, b"owner"))
    register.carry_out(recovery)
    assert recovery.phase is Phase.DONE
    assert recovery.metadata.last_entry == 2


def test_a_ledger_that_was_deleted_cannot_be_recovered() -> None:
    recovery, register = start(state=LedgerState.OPEN)
    register.stored = None
    register.carry_out(recovery)
    assert isinstance(recovery.failure, LedgerNotFound)


# --- fencing --------------------------------------------------------------------------------------

# Protocol A.0: a smallest covering set, and a set as large as a negative quorum that does not cover.
COVERAGE = [
    ((3, 2, 2), {0, 1}, {0}),
    ((3, 3, 2), {0, 1}, {2}),
    ((4, 2, 2), {0, 2}, {0}),
    ((4, 3, 2), {0, 1, 2}, {0, 1}),
    ((5, 3, 2), {0, 1, 2, 3}, {0, 1}),
    ((6, 3, 2), {0, 1, 3, 4}, {0, 1}),
    ((6, 3, 3), {0, 3}, {0}),
    ((9, 3, 2), {0, 1, 3, 4, 6, 7}, {0, 1}),
    ((3, 3, 1), {0, 1, 2}, {0, 1}),
]


@pytest.mark.parametrize(("shape", "covering", "short"), COVERAGE)
def test_reading_starts_once_every_write_set_is_covered_and_not_before(
    shape: tuple[int, int, int], covering: set[int], short: set[int]
) -> None:
    recovery, _ = start(shape)
    fence(recovery, short)
    assert recovery.phase is Phase.FENCING, "T26"
    assert recovery.take_reads() == []
    recovery, _ = start(shape)
    fence(recovery, covering)
    assert recovery.phase is Phase.READING


@given(st.sampled_from([case[0] for case in COVERAGE]), st.data())
def test_fencing_fails_exactly_when_some_write_set_has_an_ack_quorum_of_failures(
    shape: tuple[int, int, int], data: st.DataObject
) -> None:
    recovery, _ = start(shape)
    replication = Replication(*shape)
    failed: set[int] = set()
    for slot in data.draw(st.permutations(range(shape[0]))):
        recovery.on_fence_failed(slot)
        failed.add(slot)
        hopeless = any(
            len(failed.intersection(replication.write_set(entry_id))) >= shape[2]
            for entry_id in range(shape[0])
        )
        assert (recovery.phase is Phase.FAILED) == hopeless
        if hopeless:
            assert isinstance(recovery.failure, RecoveryFailed)
            return


def test_a_late_failure_of_a_fence_that_was_confirmed_undoes_nothing() -> None:
    recovery, _ = start((4, 2, 2))
    recovery.on_fence_ok(0, NO_ENTRY, NO_ENTRY)
    recovery.on_fence_failed(1)
    recovery.on_fence_failed(0)
    assert recovery.phase is Phase.FENCING
    recovery.on_fence_ok(2, NO_ENTRY, NO_ENTRY)
    assert recovery.phase is Phase.READING


def test_a_late_confirmation_of_a_fence_that_had_failed_counts() -> None:
    recovery, _ = start()
    recovery.on_fence_failed(0)
    recovery.on_fence_ok(0, NO_ENTRY, NO_ENTRY)
    recovery.on_fence_failed(1)
    assert recovery.phase is Phase.FENCING
    recovery.on_fence_ok(2, NO_ENTRY, NO_ENTRY)
    assert recovery.phase is Phase.READING


def test_reading_starts_after_the_highest_lac_that_a_fenced_bookie_has_seen() -> None:
    recovery, _ = start()
    recovery.take_fences()
    recovery.on_fence_ok(0, 3, NO_ENTRY)
    recovery.on_fence_ok(1, 6, NO_ENTRY)
    assert (recovery.start, recovery.frozen_lac) == (6, 6)
    assert {ask.first for ask in recovery.take_reads()} == {7}


def test_a_lac_that_no_ledger_can_have_fails_the_recovery() -> None:
    """There are no ids behind it to ask for."""
    recovery, _ = start(round_entries=100)
    fence(recovery, lac=ENTRY_ID_MAX - 50)
    assert isinstance(recovery.failure, RecoveryFailed)
    assert recovery.take_reads() == []


def test_a_fence_that_is_confirmed_after_reading_began_changes_nothing() -> None:
    recovery, _ = begin(lac=3)
    recovery.on_fence_ok(2, 9, 9)
    recovery.on_fence_failed(2)
    assert (recovery.start, recovery.frozen_lac, recovery.phase) == (3, 3, Phase.READING)


def test_reading_starts_no_lower_than_the_last_fragment() -> None:
    recovery, _ = begin(fragments=SECOND)
    assert recovery.start == 3, "T21: bookies that joined with the fragment know no LAC"
    assert {ask.first for ask in recovery.take_reads()} == {4}


def test_in_guaranteed_mode_reading_starts_after_the_lafr() -> None:
    recovery, _ = begin(guaranteed=True, lac=5, lafr=2)
    assert (recovery.start, recovery.frozen_lac, recovery.frozen_lafr) == (2, 5, 2), "T17, D20"
    assert {ask.first for ask in recovery.take_reads()} == {3}


def test_in_the_plain_mode_nobody_counts_a_lafr() -> None:
    recovery, _ = begin(lac=5, lafr=2)
    assert recovery.start == 5
    assert recovery.frozen_lafr == NO_ENTRY


# --- who is asked ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 2, 2), (4, 2, 2), (4, 3, 2), (5, 3, 2), (3, 3, 2)])
@pytest.mark.parametrize("round_entries", [1, 2, 5, 40])
def test_a_bookie_is_asked_for_entries_of_its_write_sets_alone_and_every_entry_of_its_whole_write_set(
    shape: tuple[int, int, int], round_entries: int
) -> None:
    recovery, _ = begin(shape, lac=6, round_entries=round_entries)
    replication = recovery.replication
    asked: dict[int, set[str]] = {}
    for ask in recovery.take_reads():
        assert ask.bookie == recovery.frozen.ensemble[ask.slot]
        for entry_id in range(ask.first, ask.last + 1, ask.stride):
            assert replication.holds(ask.slot, entry_id), "T02, RecoveryTargets"
            asked.setdefault(entry_id, set()).add(ask.bookie)
    assert min(asked) == 7
    assert sorted(asked) == list(range(7, max(asked) + 1))
    assert len(asked) >= round_entries
    for entry_id, names in asked.items():
        assert names == {recovery.frozen.ensemble[slot] for slot in replication.write_set(entry_id)}


def test_the_ensemble_that_is_read_is_the_one_of_the_metadata_even_after_a_private_change() -> None:
    recovery, _ = begin()
    recovery.on_read(recovery.take_reads()[0], {0: payload(0)}, 0, ABSENT)
    recovery.on_bookie_failed("b0")
    recovery.change_ensemble({0: "b3"})
    asks = recovery.take_reads()
    assert {ask.bookie for ask in asks} == {"b0", "b1", "b2"}
    recovery.on_read(asks[0], {1: payload(1)}, 1, ABSENT)
    assert {ask.bookie for ask in recovery.take_reads()} == {"b0", "b1", "b2"}, (
        "also in rounds after the change"
    )


# --- verdicts -------------------------------------------------------------------------------------


def _answers(recovery: LedgerRecovery, kinds: str) -> None:
    """Give the answers of b0, b1, ... for the requested entry: + has it, - lacks it, ? limbo, ! no answer, .
    nothing.
    """
    for ask, kind in zip(recovery.take_reads(), kinds, strict=True):
        if kind == "+":
            recovery.on_read(ask, {ask.first: payload(ask.first)}, ask.last, ABSENT)
        elif kind == "-":
            recovery.on_read(ask, {}, ask.last, ABSENT)
        elif kind == "?":
            recovery.on_read(ask, {}, ask.last, UNKNOWN)
        elif kind == "!":
            recovery.on_read_failed(ask)


@pytest.mark.parametrize("shape", [(3, 3, 2), (2, 2, 2), (3, 3, 3), (3, 3, 1), (2, 2, 1)])
def test_the_verdict_on_an_entry_is_that_of_the_rule_after_every_answer_and_every_time_out(
    shape: tuple[int, int, int],
) -> None:
    ensemble, write_quorum, ack_quorum = shape
    for kinds in itertools.product("+-?!", repeat=ensemble):
        recovery, _ = begin(shape)
        asks = recovery.take_reads()
        expected = "waiting"
        for count, (ask, kind) in enumerate(zip(asks, kinds, strict=True), 1):
            if kind == "!":
                recovery.on_read_failed(ask)
            else:
                found = {0: payload(0)} if kind == "+" else {}
                recovery.on_read(ask, found, 0, UNKNOWN if kind == "?" else ABSENT)
            if expected == "waiting":
                said = kinds[:count]
                if "+" in said:
                    expected = "recoverable"
                elif said.count("-") >= write_quorum - ack_quorum + 1:
                    expected = "unrecoverable"
                elif count == write_quorum:
                    expected = "unknown"
            got = (
                "recoverable"
                if recovery.pending.lap == 0
                else "unrecoverable"
                if recovery.last_recoverable == NO_ENTRY
                else "unknown"
                if recovery.phase is Phase.FAILED
                else "waiting"
            )
            assert got == expected, (kinds, count)


def test_one_copy_is_enough_to_recover_an_entry() -> None:
    recovery, _ = begin()
    _answers(recovery, "?+-")
    assert recovery.pending.lap == 0, "T27: with ack-quorum positives this ledger could never be closed"


def test_a_negative_quorum_ends_the_ledger_before_the_entry() -> None:
    recovery, _ = begin(lac=4)
    _answers(recovery, "--.")
    assert recovery.last_recoverable == 4
    assert recovery.phase is Phase.CLOSING


def test_one_negative_too_few_is_no_verdict() -> None:
    recovery, _ = begin()
    _answers(recovery, "-..")
    assert recovery.last_recoverable is None, "T03"
    assert recovery.phase is Phase.READING


def test_a_time_out_is_never_a_negative() -> None:
    recovery, _ = begin()
    _answers(recovery, "-!.")
    assert recovery.phase is Phase.READING, "T04"
    recovery, _ = begin()
    _answers(recovery, "-!!")
    assert isinstance(recovery.failure, RecoveryFailed)
    assert recovery.last_recoverable is None
    assert recovery.intent is None


def test_limbo_is_never_a_negative() -> None:
    recovery, _ = begin()
    _answers(recovery, "?-?")
    assert recovery.phase is Phase.FAILED, "T10"
    assert recovery.last_recoverable is None


def test_the_first_verdict_on_an_entry_is_final() -> None:
    recovery, _ = begin()
    asks = recovery.take_reads()
    recovery.on_read(asks[0], {}, 0, ABSENT)
    recovery.on_read(asks[1], {}, 0, ABSENT)
    recovery.on_read(asks[2], {0: payload(0)}, 0, ABSENT)
    assert recovery.last_recoverable == NO_ENTRY
    assert recovery.pending.lap == NO_ENTRY


def test_nothing_above_the_first_negative_is_written_back() -> None:
    recovery, register = begin(round_entries=8)
    Bookies({"b0": {0, 2, 3}, "b1": {2}, "b2": {2}}).answer_all(recovery)
    assert recovery.last_recoverable == 0
    assert recovery.pending.lap == 0
    confirm_write_backs(recovery)
    register.carry_out(recovery)
    assert recovery.phase is Phase.DONE
    assert recovery.metadata.last_entry == 0


def test_an_answer_for_a_former_round_is_not_looked_at() -> None:
    recovery, _ = begin()
    first = recovery.take_reads()
    recovery.on_read(first[0], {0: payload(0)}, 0, ABSENT)
    second = recovery.take_reads()
    assert {ask.first for ask in second} == {1}
    recovery.on_read(first[1], {}, 0, ABSENT)
    recovery.on_read(first[2], {}, 0, ABSENT)
    recovery.on_read_failed(first[2])
    assert recovery.phase is Phase.READING
    assert recovery.last_recoverable is None
    recovery.on_read(second[1], {}, 1, ABSENT)
    assert recovery.phase is Phase.READING, "what b2 said was about entry 0"
    recovery.on_read(second[2], {}, 1, ABSENT)
    assert recovery.last_recoverable == 0, "and its time-out then does not make it unknown now"


def test_an_answer_that_is_cut_short_is_asked_to_go_on_where_it_stopped() -> None:
    recovery, register = begin(round_entries=100)
    held = set(range(10))
    cluster = Bookies({"b0": held, "b1": held, "b2": held})
    cluster.answer_all(recovery, reply_entries=4)
    assert recovery.last_recoverable == 9
    confirm_write_backs(recovery)
    register.carry_out(recovery)
    assert recovery.metadata.last_entry == 9


def test_an_answer_that_says_nothing_at_all_counts_as_unknown_and_is_not_asked_for_ever() -> None:
    recovery, _ = begin(lac=3)
    for ask in recovery.take_reads():
        recovery.on_read(ask, {}, ask.first - 1, ABSENT)
    assert recovery.phase is Phase.FAILED


def test_what_a_cut_answer_does_not_reach_is_not_a_negative() -> None:
    recovery, _ = begin(round_entries=4)
    asks = recovery.take_reads()
    for ask in asks[:2]:
        recovery.on_read(ask, {0: payload(0), 1: payload(1)}, 1, ABSENT)
    assert recovery.last_recoverable is None
    assert recovery.pending.lap == 1
    recovery.on_read(asks[2], {}, 3, ABSENT)
    assert recovery.last_recoverable is None, "one negative for entry 2, and two that did not come so far"
    assert {ask.first for ask in recovery.take_reads()} == {2}


@settings(max_examples=max(150, settings().max_examples))
@given(
    st.sampled_from([(2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 2, 2), (4, 2, 2), (4, 3, 2), (5, 3, 2)]),
    st.booleans(),
    st.integers(1, 9),
    st.integers(1, 4),
    st.data(),
)
def test_recovery_keeps_all_that_was_acknowledged_and_ends_where_a_negative_quorum_lacks_the_next_entry(
    shape: tuple[int, int, int], guaranteed: bool, round_entries: int, reply_entries: int, data: st.DataObject
) -> None:
    """The answers come in any order and may be short."""
    replication = Replication(*shape, guaranteed=guaranteed)
    lac = data.draw(st.integers(NO_ENTRY, 6))
    held: dict[str, set[int]] = {bookie: set() for bookie in bookies(shape[0])}
    for entry_id in range(12):
        slots = replication.write_set(entry_id)
        # An acknowledged entry is on an ack quorum.
        least = shape[2] if entry_id <= lac else 0
        for slot in data.draw(st.sets(st.sampled_from(slots), min_size=least)):
            held[f"b{slot}"].add(entry_id)
    recovery, register = begin(
        shape, guaranteed=guaranteed, lac=lac, lafr=NO_ENTRY, round_entries=round_entries
    )
    floor = NO_ENTRY if guaranteed else lac
    cluster = Bookies(held)
    asks = []
    while asks := [*asks, *recovery.take_reads()]:
        cluster.answer(recovery, asks.pop(data.draw(st.integers(0, len(asks) - 1))), reply_entries)
    end = recovery.last_recoverable
    assert end is not None
    assert end >= lac
    lacking = [slot for slot in replication.write_set(end + 1) if end + 1 not in held[f"b{slot}"]]
    assert len(lacking) >= replication.negative_quorum
    assert recovery.pending.lap == end
    assert [p for batch in recovery.pending.batches for p in batch.payloads] == [
        payload(entry_id) for entry_id in range(floor + 1, end + 1)
    ]
    confirm_write_backs(recovery)
    register.carry_out(recovery)
    assert recovery.phase is Phase.DONE
    assert recovery.metadata.last_entry == end


# --- writing back ---------------------------------------------------------------------------------


def test_write_backs_and_reads_run_side_by_side() -> None:
    recovery, _ = begin()
    _answers(recovery, "+..")
    assert write_backs(recovery) == {"b0": [(0, 0)], "b1": [(0, 0)], "b2": [(0, 0)]}
    assert recovery.take_reads()


def test_write_backs_carry_the_lac_and_lafr_at_which_recovery_started() -> None:
    for guaranteed in (False, True):
        recovery, _ = begin(guaranteed=guaranteed, lac=3, lafr=3)
        for _ in range(3):
            _answers(recovery, "+..")
            confirm_write_backs(recovery)
        assert recovery.pending.lac == 6
        assert recovery.frozen_lac == 3, "T25, T31"
        assert recovery.frozen_lafr == (3 if guaranteed else NO_ENTRY), "T32"


def test_closing_waits_until_every_write_back_has_its_ack_quorum() -> None:
    recovery, _ = begin()
    _answers(recovery, "+..")
    confirm_write_backs(recovery, "b0")
    _answers(recovery, "--.")
    assert recovery.phase is Phase.CLOSING
    assert recovery.intent is None, "T19"
    confirm_write_backs(recovery, "b1")
    assert recovery.intent is not None


def test_in_guaranteed_mode_closing_waits_for_the_full_write_quorum() -> None:
    recovery, _ = begin(guaranteed=True)
    _answers(recovery, "+..")
    _answers(recovery, "--.")
    confirm_write_backs(recovery, "b0", "b1")
    assert recovery.intent is None
    confirm_write_backs(recovery, "b2")
    assert recovery.intent is not None


def test_a_recovery_that_started_above_zero_finishes() -> None:
    recovery, register = begin(fragments=SECOND, lac=5)
    _answers(recovery, "-+.")
    _answers(recovery, "-.-")
    confirm_write_backs(recovery, "b0", "b2")
    register.carry_out(recovery)
    assert recovery.phase is Phase.DONE, "D16"
    assert recovery.metadata.last_entry == 6


def test_a_private_change_is_published_by_the_closing_write_alone() -> None:
    recovery, register = begin()
    _answers(recovery, "+..")
    recovery.on_bookie_failed("b1")
    assert recovery.replaceable() == [1]
    recovery.change_ensemble({1: "b3"})
    assert recovery.intent is None, "T12"
    assert recovery.metadata.fragments == (Fragment(0, bookies(3)),)
    assert write_backs(recovery) == {"b0": [(0, 0)], "b3": [(0, 0)], "b2": [(0, 0)]}
    _answers(recovery, "--.")
    recovery.on_add_ok("b0", 0, 0)
    recovery.on_add_ok("b3", 0, 0)
    register.carry_out(recovery)
    assert register.stored is not None
    assert register.stored.fragments == (Fragment(0, ("b0", "b3", "b2")),)
    assert register.stored.last_entry == 0


def test_a_private_change_starts_after_what_is_settled_and_keeps_older_fragments() -> None:
    recovery, register = begin(fragments=SECOND)
    _answers(recovery, "+..")
    confirm_write_backs(recovery, "b0", "b1")
    _answers(recovery, "+..")
    recovery.on_bookie_failed("b2")
    recovery.change_ensemble({2: "b3"})
    confirm_write_backs(recovery, "b0", "b3")
    _answers(recovery, "--.")
    register.carry_out(recovery)
    assert recovery.metadata.fragments == (*SECOND, Fragment(5, ("b0", "b1", "b3")))
    assert recovery.metadata.last_entry == 5


def test_a_bookie_that_fails_while_nothing_is_to_be_written_is_not_replaced() -> None:
    recovery, _ = begin()
    recovery.on_bookie_failed("b1")
    assert recovery.replaceable() == []
    _answers(recovery, "+..")
    assert recovery.replaceable() == [1]


def test_a_recoverer_pins_by_its_own_confirmations() -> None:
    recovery, _ = begin(guaranteed=True)
    _answers(recovery, "+..")
    confirm_write_backs(recovery, "b0", "b1")
    recovery.on_bookie_failed("b0")
    assert recovery.replaceable() == [], "entry 0 is at its ack quorum with b0"
    with pytest.raises(AssertionError):
        recovery.change_ensemble({0: "b3"})


def test_without_a_bookie_for_a_write_back_the_ledger_stays_in_recovery() -> None:
    recovery, _ = begin()
    _answers(recovery, "+..")
    recovery.give_up("none left")
    assert isinstance(recovery.failure, NotEnoughBookies)
    assert recovery.intent is None


def test_reading_pauses_while_too_much_is_on_its_way_back_and_goes_on_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery_module, "WRITE_BACK_BYTES", 30)
    recovery, register = begin(round_entries=2)
    held = set(range(20))
    cluster = Bookies({"b0": held, "b1": held, "b2": held})
    cluster.answer_all(recovery)
    assert recovery.pending.byte_count >= 30
    assert recovery.pending.lap < 19
    for _ in range(20):
        confirm_write_backs(recovery)
        cluster.answer_all(recovery)
    assert recovery.last_recoverable == 19
    register.carry_out(recovery)
    assert recovery.metadata.last_entry == 19


# --- closing --------------------------------------------------------------------------------------


def test_an_empty_last_fragment_is_closed_at_the_entry_before_it() -> None:
    recovery, register = begin(fragments=SECOND)
    _answers(recovery, "--.")
    register.carry_out(recovery)
    assert recovery.phase is Phase.DONE
    assert recovery.metadata.last_entry == 3
    assert recovery.metadata.fragments == SECOND


def test_an_empty_ledger_is_closed_empty() -> None:
    recovery, register = begin((4, 2, 2))
    Bookies({}).answer_all(recovery)
    register.carry_out(recovery)
    assert recovery.metadata.last_entry == NO_ENTRY


def _about_to_close() -> tuple[LedgerRecovery, Register]:
    recovery, register = begin()
    _answers(recovery, "+..")
    recovery.on_bookie_failed("b0")
    recovery.change_ensemble({0: "b3"})
    confirm_write_backs(recovery, "b1", "b3")
    _answers(recovery, "--.")
    assert recovery.intent is not None
    return recovery, register


def test_whoever_loses_the_closing_race_adopts_the_winners_end() -> None:
    recovery, register = _about_to_close()
    assert register.stored is not None
    register.put(register.stored.closed(5, b"other"))
    register.carry_out(recovery)
    assert recovery.phase is Phase.DONE
    assert recovery.metadata.last_entry == 5, "T20"
    assert recovery.failure is None


def test_a_closing_write_whose_answer_was_lost_is_known_by_what_is_stored() -> None:
    recovery, register = _about_to_close()
    assert recovery.intent is not None
    register.write(recovery.intent)
    register.show(recovery)
    assert recovery.phase is Phase.DONE
    assert recovery.metadata.last_entry == 0


def test_a_closing_write_that_conflicts_with_repair_of_an_older_fragment_is_tried_again_and_keeps_it() -> (
    None
):
    recovery, register = begin(fragments=SECOND)
    _answers(recovery, "+..")
    recovery.on_bookie_failed("b0")
    recovery.change_ensemble({0: "b3"})
    confirm_write_backs(recovery, "b1", "b3")
    _answers(recovery, "--.")
    assert register.stored is not None
    register.put(register.stored.with_replacement(0, "b5", "b9", b"repair"))
    register.carry_out(recovery)
    assert recovery.phase is Phase.CLOSING
    register.carry_out(recovery)
    assert recovery.phase is Phase.DONE
    assert recovery.metadata.fragments == (
        Fragment(0, ("b9", "b6", "b7")),
        Fragment(4, ("b3", "b1", "b2")),
    )


def test_a_last_fragment_that_changed_under_recovery_ends_it() -> None:
    recovery, register = _about_to_close()
    assert register.stored is not None
    register.put(attrs.evolve(register.stored, fragments=(Fragment(0, bookies(3, 7)),)))
    register.carry_out(recovery)
    assert isinstance(recovery.failure, RecoveryFailed)


def test_what_is_stored_means_nothing_to_a_recovery_that_is_over() -> None:
    recovery, register = begin()
    _answers(recovery, "-!!")
    failure = recovery.failure
    assert register.stored is not None
    register.put(register.stored.closed(5, b"other"))
    register.show(recovery)
    assert recovery.failure is failure
    assert recovery.phase is Phase.FAILED


def test_a_recovery_that_is_over_asks_and_sends_nothing() -> None:
    recovery, _ = begin()
    _answers(recovery, "+..")
    recovery.give_up("none left")
    recovery.on_add_ok("b0", 0, 0)
    recovery.on_bookie_failed("b1")
    recovery.on_bookie_connected("b1")
    assert recovery.take_sends("b0") == []
    assert recovery.replaceable() == []
    assert recovery.intent is None


# --- accepting a loss -----------------------------------------------------------------------------


def test_an_operator_may_end_a_ledger_before_the_first_entry_that_nobody_can_speak_for() -> None:
    limbo = Bookies({"b0": [0, 1], "b1": [0], "b2": [0]}, limbo=("b1", "b2"))
    given_up, _ = begin(round_entries=10)
    limbo.answer_all(given_up)
    assert given_up.phase is Phase.FAILED, "without an operator it waits for somebody who knows"

    recovery, register = begin(round_entries=10, accept_loss=True)
    limbo.answer_all(recovery)
    confirm_write_backs(recovery)
    assert recovery.lost_from == 2
    register.carry_out(recovery)
    assert recovery.phase is Phase.DONE
    assert recovery.metadata.last_entry == 1, "what one bookie still has is kept"
    assert recovery.metadata.custom[recovery_module.LOST_FROM] == b"2", "and the loss stays on record"


def test_an_operator_accepts_what_bookies_lost_and_not_that_they_do_not_answer() -> None:
    """A silent bookie may hold the entry. Only an operator can know that the bookie is gone for good."""
    limbo = Bookies({"b1": [0], "b2": [0]}, limbo=("b1",), down=("b2",))
    for accept_loss in (False, True):
        refused, _ = begin(round_entries=10, accept_loss=accept_loss)
        limbo.answer_all(refused)
        assert isinstance(refused.failure, RecoveryFailed)
        assert "no answer from b2, which may hold the entry" in str(refused.failure)
        assert refused.lost_from is None

    recovery, register = begin(round_entries=10, accept_loss=True, accept_unreachable=True)
    limbo.answer_all(recovery)
    confirm_write_backs(recovery)
    register.carry_out(recovery)
    assert recovery.phase is Phase.DONE
    end = recovery.metadata.last_entry
    assert end is not None
    assert recovery.lost_from == end + 1
    assert recovery_module.LOST_FROM in recovery.metadata.custom


def test_a_loss_that_may_be_accepted_and_is_none_leaves_no_trace() -> None:
    recovery, register = begin(round_entries=10, accept_loss=True)
    Bookies({"b0": [0, 1], "b1": [0]}).answer_all(recovery)
    confirm_write_backs(recovery)
    register.carry_out(recovery)
    assert recovery.lost_from is None
    assert recovery.metadata.last_entry == 1
    assert recovery_module.LOST_FROM not in recovery.metadata.custom


def test_accepting_a_loss_asks_for_complete_fencing_all_the_same() -> None:
    recovery, _ = start(accept_loss=True)
    for slot, _bookie in recovery.take_fences():
        recovery.on_fence_failed(slot)
    assert isinstance(recovery.failure, RecoveryFailed)
