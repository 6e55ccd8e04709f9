"""``ledger.core.pending`` against a model that stores, for every entry, the set of slots that confirmed it.

The model states the rules of protocol A.1 and A.4 entry by entry, without ranges, classes or watermarks. It
is slow and obviously right. Both get the same random histories of pushes, acknowledgements, lost connections,
replacements and late answers.
"""

from __future__ import annotations

import itertools
from collections import Counter
from random import Random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.ledger.core.pending import PendingAdds, Send
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.ledger import Fragment
from ledgerlog.model.quorum import Replication

SHAPES = [(1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 2, 2), (4, 2, 2), (4, 3, 2), (5, 3, 2), (4, 4, 2)]
MODES = [Replication(*shape, guaranteed=guaranteed) for shape in SHAPES for guaranteed in (False, True)]
replications = st.sampled_from(MODES)


def bookies(count: int, start: int = 0) -> tuple[str, ...]:
    return tuple(f"b{i}" for i in range(start, start + count))


def pending_adds(
    shape: tuple[int, int, int], *, guaranteed: bool = False, base: int = NO_ENTRY, first: int = 0
) -> PendingAdds:
    replication = Replication(*shape, guaranteed=guaranteed)
    fragments: tuple[Fragment, ...] = (Fragment(first, bookies(shape[0])),)
    if first:
        fragments = (Fragment(0, bookies(shape[0], 50)), *fragments)
    return PendingAdds(replication, fragments, base=base)


def push(pending: PendingAdds, *counts: int) -> None:
    for count in counts:
        pending.push([b"x"] * count, count)


def spans(sends: list[Send]) -> list[tuple[int, int]]:
    return [(send.first, send.last) for send in sends]


def change(pending: PendingAdds, replacements: dict[int, str]) -> None:
    pending.strip(replacements)
    pending.install(replacements, pending.changed_fragments(replacements, pending.fragments))


# --- the model ------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Tenure:
    """One bookie's time in one slot."""

    slot: int
    bookie: str
    connected: bool = True
    handed: list[tuple[int, int]] = attrs.field(factory=list)  # on any connection of this tenure
    present: set[int] = attrs.field(factory=set)  # entries handed out on the present connection


class Model:
    """The rules, stated for single entries."""

    def __init__(self, replication: Replication, base: int) -> None:
        self.replication = replication
        self.lap = self.lac = self.lafr = base
        self.confirmed: dict[int, set[int]] = {}

    @property
    def settled(self) -> int:
        return self.lafr if self.replication.guaranteed else self.lac

    def push(self, count: int) -> None:
        for _ in range(count):
            self.lap += 1
            self.confirmed[self.lap] = set()

    def confirm(self, slot: int, first: int, last: int) -> None:
        for entry_id in range(first, last + 1):
            if entry_id > self.settled and slot in self.replication.write_set(entry_id):
                self.confirmed[entry_id].add(slot)
        while self.lac < self.lap and len(self.confirmed[self.lac + 1]) >= self.replication.ack_quorum:
            self.lac += 1
        while self.lafr < self.lac and len(self.confirmed[self.lafr + 1]) == self.replication.write_quorum:
            self.lafr += 1

    def strip(self, slots: set[int]) -> None:
        for entry_id in range(self.settled + 1, self.lap + 1):
            self.confirmed[entry_id] -= slots

    def may_leave(self, slots: set[int], *, full: bool) -> bool:
        """The pinning predicates of A.4 rule 3, word for word."""
        carried = range(self.settled + 1, self.lac + 1)
        if full:
            return not any(self.confirmed[entry_id] & slots for entry_id in carried)
        return all(len(self.confirmed[e] - slots) >= self.replication.ack_quorum for e in carried)


class Play:
    """Drives the production object and the model side by side, like the shell of a client."""

    def __init__(self, replication: Replication, base: int) -> None:
        self.replication = replication
        ensemble = bookies(replication.ensemble)
        self.pending = PendingAdds(replication, (Fragment(0, ensemble),), base=base)
        self.model = Model(replication, base)
        self.tenures = [Tenure(i, bookie) for i, bookie in enumerate(ensemble)]
        self.former: list[Tenure] = []
        self.changing: dict[int, str] = {}
        # slot -> its replacement must receive the entries that settle above this one
        self.carried: dict[int, int] = {}
        self.written: tuple[Fragment, ...] = ()
        self.named = replication.ensemble
        self.seen: Counter[str] = Counter()

    # Each verb takes two numbers and derives its arguments from them.

    def push(self, a: int, b: int) -> None:
        count = a % 4 + 1
        self.pending.push([b"p"] * count, count)
        self.model.push(count)

    def send(self, a: int, b: int) -> None:
        tenure = self.tenures[a % len(self.tenures)]
        sends = self.pending.take_sends(tenure.bookie)
        slot = tenure.slot
        if not tenure.connected or slot in self.changing:
            assert not sends, "a failed or leaving slot is sent nothing"
            return
        for send in sends:
            held = [e for e in range(send.first, send.last + 1) if self.replication.holds(slot, e)]
            assert held, "a send holds something of the slot"
            assert send.batch.first <= send.first <= send.last == send.batch.last
            assert not tenure.present.intersection(held), "nothing is sent twice on one connection"
            tenure.present.update(held)
            tenure.handed.append((send.first, send.last))
        carried = self.carried.pop(slot, self.model.settled)
        # Of the entries that settled during the write, the replacement gets those for which its fragment
        # names it.
        carried = min(max(carried, self.pending.fragments[-1].first_entry - 1), self.model.settled)
        self.seen["carried"] += self.model.settled - carried
        due = {
            e
            for e in range(carried + 1, self.model.lap + 1)
            if self.replication.holds(slot, e) and slot not in self.model.confirmed[e]
        }
        assert due <= tenure.present, "everything unconfirmed is on its way"

    def acknowledge(self, a: int, b: int) -> None:
        tenure = self.tenures[a % len(self.tenures)]
        if not tenure.handed:
            return
        first, last = tenure.handed[b % len(tenure.handed)]
        before = self.pending.lac, self.pending.lafr
        moved = self.pending.on_add_ok(tenure.bookie, first, last)
        if tenure.slot not in self.changing:
            self.model.confirm(tenure.slot, first, last)
        assert moved == (before != (self.pending.lac, self.pending.lafr))
        self.seen["acknowledged"] += self.pending.lac - before[0]

    def late(self, a: int, b: int) -> None:
        """A bookie that has left the ensemble answers."""
        gone = [tenure for tenure in self.former if self.pending.slot_of(tenure.bookie) is None]
        gone = [tenure for tenure in gone if tenure.handed]
        if gone:
            tenure = gone[a % len(gone)]
            self.seen["late"] += 1
            assert not self.pending.on_add_ok(tenure.bookie, *tenure.handed[b % len(tenure.handed)])

    def fail(self, a: int, b: int) -> None:
        tenure = self.tenures[a % len(self.tenures)]
        assert self.pending.on_bookie_failed(tenure.bookie) == tenure.connected
        tenure.connected = False
        if tenure.slot not in self.changing:
            self.carried.pop(tenure.slot, None)

    def connect(self, a: int, b: int) -> None:
        tenure = self.tenures[a % len(self.tenures)]
        self.pending.on_bookie_connected(tenure.bookie)
        tenure.connected = True
        tenure.present = {
            e
            for e in range(self.model.settled + 1, self.model.lap + 1)
            if tenure.slot in self.model.confirmed[e] and tenure.slot not in self.changing
        }
        # Entries above the first gap are sent again although they were confirmed; bookies take them as the
        # same.
        for entry_id in range(self.model.settled + 1, self.model.lap + 1):
            if self.replication.holds(tenure.slot, entry_id) and entry_id not in tenure.present:
                tenure.present = {e for e in tenure.present if e < entry_id}
                break
        if self.carried.get(tenure.slot, self.model.settled) < self.model.settled:
            tenure.present = set()

    def begin(self, a: int, b: int) -> None:
        full = bool(b % 2)
        if self.changing:
            return
        for relaxed in (False, True):
            allowed = self.pending.replaceable(full_pinning=not relaxed)
            failed = [tenure.slot for tenure in self.tenures if not tenure.connected]
            assert set(allowed) <= set(failed)
            assert self.model.may_leave(set(allowed), full=not relaxed)
            for slot in set(failed) - set(allowed):
                assert not self.model.may_leave({*allowed, slot}, full=not relaxed), "none is kept needlessly"
            if not self.replication.guaranteed:
                assert allowed == failed, "the plain mode replaces all failed slots at once (D13)"
            self.seen["pinned"] += allowed != failed
        allowed = self.pending.replaceable(full_pinning=full)
        if not allowed:
            return
        returning = [t.bookie for t in self.former if self.pending.slot_of(t.bookie) is None]
        for slot in allowed:
            if returning and b % 3 == 0:
                self.changing[slot] = returning.pop()
                returning = [bookie for bookie in returning if bookie != self.changing[slot]]
            else:
                self.changing[slot] = f"b{self.named}"
                self.named += 1
        carry = b % 5 != 0  # The owner carries entries. A recoverer's change is in force at once.
        self.pending.strip(self.changing, carry=carry)
        self.model.strip(set(self.changing))
        if carry:
            self.carried |= dict.fromkeys(self.changing, self.model.settled)
        self.written = self.pending.changed_fragments(self.changing, self.pending.fragments)
        assert self.written[-1].first_entry == self.model.settled + 1

    def finish(self, a: int, b: int) -> None:
        if not self.changing:
            return
        if b % 3 == 0:  # The write met a conflict and is formed again.
            self.written = self.pending.changed_fragments(self.changing, self.pending.fragments)
        self.pending.install(self.changing, self.written)
        self.seen["changed"] += 1
        self.seen["returned"] += any(tenure.bookie in self.changing.values() for tenure in self.former)
        for slot, bookie in self.changing.items():
            self.former.append(self.tenures[slot])
            self.tenures[slot] = Tenure(slot, bookie)
        self.changing = {}
        self.model.confirm(0, 0, NO_ENTRY)

    def check(self) -> None:
        pending, model = self.pending, self.model
        assert (pending.lap, pending.lac) == (model.lap, model.lac)
        if self.replication.guaranteed:
            assert pending.lafr == model.lafr
        assert pending.settled == model.settled
        kept = [e for batch in pending.batches for e in range(batch.first, batch.last + 1)]
        assert kept == list(range(kept[0] if kept else model.lap + 1, model.lap + 1))
        retired = min([model.settled, *self.carried.values()])
        assert all(batch.last > retired for batch in pending.batches), "settled batches retire"
        assert not kept or kept[0] <= retired + 1, "nothing retires that somebody is to have"
        assert pending.byte_count == len(kept)
        assert pending.is_drained == (model.settled == model.lap)
        unconfirmed = [batch for batch in pending.batches if batch.last > model.lac]
        assert pending.unconfirmed_batches() == len(unconfirmed)
        pending.check()


VERBS = ("push", "push", "send", "send", "acknowledge", "acknowledge", "acknowledge", "acknowledge")
RARE_VERBS = ("late", "fail", "connect", "begin", "finish")
histories = st.lists(
    st.tuples(st.sampled_from(VERBS + RARE_VERBS), st.integers(0, 30), st.integers(0, 30)),
    min_size=10,
    max_size=120,
)


def play(replication: Replication, base: int, history: list[tuple[str, int, int]]) -> Play:
    game = Play(replication, base)
    for verb, a, b in history:
        getattr(game, verb)(a, b)
        game.check()
    return game


@given(replications, st.sampled_from([NO_ENTRY, 0, 4, 7]), histories)
def test_watermarks_sends_and_pins_are_those_of_a_model_that_keeps_a_set_for_every_entry(
    replication: Replication, base: int, history: list[tuple[str, int, int]]
) -> None:
    play(replication, base, history)


def test_long_random_histories_agree_with_the_model_too_and_reach_every_kind_of_event() -> None:
    random = Random("pending")
    seen: Counter[str] = Counter()
    for number in range(180):
        weights = [6] * len(VERBS) + [random.choice((1, 3, 6)) for _ in RARE_VERBS]
        verbs = random.choices(VERBS + RARE_VERBS, weights, k=150)
        history = [(verb, random.randrange(31), random.randrange(31)) for verb in verbs]
        seen += play(MODES[number % len(MODES)], random.choice([NO_ENTRY, 5]), history).seen
    least = {"acknowledged": 1000, "carried": 25, "late": 100, "pinned": 100, "changed": 200, "returned": 20}
    assert {what: seen[what] for what in least if seen[what] < least[what]} == {}, "the histories were tame"


@given(replications, st.sampled_from([NO_ENTRY, 5]), histories, st.randoms(use_true_random=False))
def test_once_every_slot_is_well_and_everything_is_acknowledged_nothing_is_pending(
    replication: Replication, base: int, history: list[tuple[str, int, int]], random: object
) -> None:
    game = play(replication, base, history)
    game.finish(0, 1)
    for tenure in game.tenures:
        game.connect(tenure.slot, 0)
        game.send(tenure.slot, 0)
        for number in range(len(tenure.handed)):
            game.acknowledge(tenure.slot, number)
            game.check()
    assert game.pending.is_drained
    assert not game.pending.batches


# --- LAC and LAFR ---------------------------------------------------------------------------------


def test_the_lac_is_the_end_of_the_unbroken_prefix_that_an_ack_quorum_confirmed() -> None:
    pending = pending_adds((3, 3, 2))
    push(pending, 1, 1, 1)
    for bookie in ("b0", "b1"):
        pending.on_add_ok(bookie, 1, 2)
    assert pending.lac == NO_ENTRY, "entry 0 has no quorum yet (T07)"
    pending.on_add_ok("b0", 0, 0)
    assert pending.lac == NO_ENTRY
    assert pending.on_add_ok("b2", 0, 0)
    assert pending.lac == 2, "different pairs of slots may confirm different entries"


def test_a_striped_entry_counts_only_the_slots_of_its_write_set() -> None:
    pending = pending_adds((3, 2, 2))
    push(pending, 1, 1, 1)
    pending.on_add_ok("b0", 0, 2)  # Holds 0 and 2.
    pending.on_add_ok("b2", 0, 2)  # Holds 1 and 2.
    assert pending.lac == NO_ENTRY, "entry 0 lives on b0 and b1; b2's word is not about it"
    pending.on_add_ok("b1", 0, 0)
    assert pending.lac == 0
    pending.on_add_ok("b1", 1, 1)
    assert pending.lac == 2


def test_a_slot_that_holds_nothing_of_a_batch_is_not_waited_for() -> None:
    pending = pending_adds((4, 2, 2))
    push(pending, 1)
    for bookie in bookies(4):
        due = spans(pending.take_sends(bookie))
        assert due == ([(0, 0)] if bookie in ("b0", "b1") else [])
    pending.on_add_ok("b0", 0, 0)
    pending.on_add_ok("b1", 0, 0)
    assert pending.lac == 0


def test_a_recoverers_watermarks_are_counted_from_the_entry_where_it_started() -> None:
    for guaranteed in (False, True):
        pending = pending_adds((3, 3, 2), guaranteed=guaranteed, base=6, first=4)
        push(pending, 2)
        for bookie in bookies(3):
            pending.on_add_ok(bookie, 7, 8)
        assert pending.lac == 8, "D16: not from entry 0"
        assert pending.is_drained


def test_the_lafr_waits_for_the_whole_write_set_and_the_lac_does_not() -> None:
    pending = pending_adds((3, 3, 2), guaranteed=True)
    push(pending, 2)
    pending.on_add_ok("b0", 0, 1)
    pending.on_add_ok("b1", 0, 1)
    assert (pending.lac, pending.lafr) == (1, NO_ENTRY)
    assert not pending.is_drained
    assert pending.batches, "in guaranteed mode a batch retires at the LAFR (A.4 rule 1)"
    pending.on_add_ok("b2", 0, 1)
    assert (pending.lac, pending.lafr) == (1, 1)
    assert pending.is_drained
    assert not pending.batches


def test_in_the_plain_mode_a_batch_retires_when_its_last_entry_is_at_the_lac() -> None:
    pending = pending_adds((3, 3, 2))
    push(pending, 2, 1)
    pending.on_add_ok("b0", 0, 1)
    pending.on_add_ok("b1", 0, 0)
    assert [batch.first for batch in pending.batches] == [0, 2]
    assert pending.byte_count == 3
    pending.on_add_ok("b1", 1, 1)
    assert [batch.first for batch in pending.batches] == [2]
    assert pending.byte_count == 1


def test_confirmations_are_recorded_after_the_ack_quorum_was_reached() -> None:
    pending = pending_adds((3, 3, 2))
    push(pending, 1, 1)
    pending.on_add_ok("b0", 1, 1)
    pending.on_add_ok("b1", 1, 1)
    pending.on_add_ok("b2", 1, 1)  # Entry 1 has AQ already (rule 11).
    pending.on_bookie_failed("b0")
    change(pending, {0: "b3"})
    pending.on_add_ok("b1", 0, 0)
    pending.on_add_ok("b2", 0, 0)
    assert pending.lac == 1, "b1 and b2 still make a quorum for entry 1"


# --- answers that do not count --------------------------------------------------------------------


def test_an_answer_of_a_bookie_that_left_the_ensemble_is_dropped() -> None:
    pending = pending_adds((3, 3, 2))
    push(pending, 1)
    pending.on_bookie_failed("b0")
    change(pending, {0: "b3"})
    pending.on_add_ok("b0", 0, 0)
    pending.on_add_ok("b1", 0, 0)
    assert pending.lac == NO_ENTRY
    pending.on_add_ok("b3", 0, 0)
    assert pending.lac == 0


def test_confirmations_of_a_replaced_bookie_do_not_pass_to_its_replacement() -> None:
    pending = pending_adds((3, 3, 2))
    push(pending, 2)
    pending.on_add_ok("b0", 0, 1)
    pending.on_bookie_failed("b0")
    change(pending, {0: "b3"})
    assert not pending.on_add_ok("b1", 0, 1), "T14: b1 alone is no quorum"
    assert pending.on_add_ok("b3", 0, 0)
    assert pending.lac == 0


def test_a_late_answer_of_a_bookie_that_is_still_a_member_counts() -> None:
    pending = pending_adds((3, 3, 2))
    push(pending, 1)
    assert spans(pending.take_sends("b0")) == [(0, 0)]
    pending.on_bookie_failed("b0")
    pending.on_add_ok("b0", 0, 0)
    pending.on_add_ok("b1", 0, 0)
    assert pending.lac == 0


def test_confirmations_of_a_slot_that_is_being_replaced_stop_counting_before_the_write_is_sent() -> None:
    pending = pending_adds((3, 3, 2))
    push(pending, 1)
    pending.on_add_ok("b0", 0, 0)
    pending.on_bookie_failed("b0")
    pending.strip([0])
    assert not pending.on_add_ok("b1", 0, 0), "T15: b0's confirmation is gone, b1 alone is no quorum"
    assert not pending.on_add_ok("b0", 0, 0), "and a new one of b0 does not count either"
    assert pending.on_add_ok("b2", 0, 0)
    assert pending.lac == 0


def test_while_a_change_is_written_the_surviving_slots_go_on_acknowledging() -> None:
    pending = pending_adds((3, 3, 2))
    push(pending, 1)
    pending.on_bookie_failed("b0")
    pending.strip([0])
    written = pending.changed_fragments({0: "b3"}, pending.fragments)
    push(pending, 1)
    pending.on_add_ok("b1", 0, 1)
    pending.on_add_ok("b2", 0, 0)
    assert pending.lac == 0
    pending.install({0: "b3"}, written)
    assert pending.fragments[-1] == Fragment(0, ("b3", "b1", "b2"))
    assert spans(pending.take_sends("b3")) == [(1, 1)], "entry 0 is settled: it has its quorum without b3"
    pending.on_add_ok("b3", 1, 1)
    assert pending.lac == 1


# --- sending --------------------------------------------------------------------------------------


def test_what_was_handed_out_is_not_handed_out_again_on_the_same_connection() -> None:
    pending = pending_adds((3, 3, 2))
    push(pending, 2, 1)
    assert spans(pending.take_sends("b0")) == [(0, 1), (2, 2)]
    assert pending.take_sends("b0") == []
    push(pending, 1)
    assert spans(pending.take_sends("b0")) == [(3, 3)]


def test_a_failed_slot_is_sent_nothing_and_a_returned_one_all_that_it_has_not_confirmed() -> None:
    pending = pending_adds((3, 3, 2))
    push(pending, 2, 2, 1)
    pending.take_sends("b0")
    pending.on_add_ok("b0", 0, 1)
    pending.on_bookie_failed("b0")
    assert pending.take_sends("b0") == []
    pending.on_bookie_connected("b0")
    assert spans(pending.take_sends("b0")) == [(2, 3), (4, 4)]


def test_a_replacement_is_sent_everything_that_is_pending() -> None:
    pending = pending_adds((3, 3, 2), guaranteed=True)
    push(pending, 2, 1)
    for bookie in ("b0", "b1"):
        pending.take_sends(bookie)
        pending.on_add_ok(bookie, 0, 2)
    pending.on_bookie_failed("b2")
    change(pending, {2: "b3"})
    assert spans(pending.take_sends("b3")) == [(0, 1), (2, 2)], "acknowledged entries too (A.4 rule 2)"
    assert pending.take_sends("b0") == [], "the others are sent nothing again (queue rule 3)"


def test_a_bookie_that_is_not_in_the_ensemble_is_sent_nothing() -> None:
    pending = pending_adds((3, 3, 2))
    push(pending, 1)
    pending.on_bookie_failed("b0")
    change(pending, {0: "b3"})
    assert pending.take_sends("b0") == []


def test_failures_and_returns_of_strangers_change_nothing() -> None:
    pending = pending_adds((3, 3, 2))
    assert not pending.on_bookie_failed("b9")
    pending.on_bookie_connected("b9")
    assert pending.replaceable() == []
    assert pending.on_bookie_failed("b1"), "a failure is news once"
    assert not pending.on_bookie_failed("b1")


def test_a_failure_after_every_entry_reached_its_ack_quorum_still_asks_for_a_replacement() -> None:
    pending = pending_adds((3, 3, 2))
    push(pending, 1)
    pending.on_add_ok("b0", 0, 0)
    pending.on_add_ok("b1", 0, 0)
    assert pending.is_drained
    pending.on_bookie_failed("b2")
    assert pending.replaceable() == [2], "rule 12"


# --- the new fragment -----------------------------------------------------------------------------


def test_a_change_before_anything_is_settled_overwrites_the_last_fragment() -> None:
    pending = pending_adds((3, 3, 2))
    push(pending, 1)
    pending.on_bookie_failed("b1")
    change(pending, {1: "b3"})
    assert pending.fragments == (Fragment(0, ("b0", "b3", "b2")),)


def test_a_change_appends_a_fragment_that_starts_after_the_lac_in_the_plain_mode() -> None:
    pending = pending_adds((3, 3, 2))
    push(pending, 3)
    for bookie in ("b0", "b1"):
        pending.on_add_ok(bookie, 0, 1)
    pending.on_bookie_failed("b1")
    change(pending, {1: "b3"})
    assert pending.fragments == (Fragment(0, bookies(3)), Fragment(2, ("b0", "b3", "b2")))


def test_a_change_appends_a_fragment_that_starts_after_the_lafr_in_guaranteed_mode() -> None:
    pending = pending_adds((3, 3, 2), guaranteed=True)
    push(pending, 3)
    for bookie in ("b0", "b2"):
        pending.on_add_ok(bookie, 0, 2)
    pending.on_add_ok("b1", 0, 0)
    pending.on_bookie_failed("b1")
    change(pending, {1: "b3"})
    assert (pending.lac, pending.lafr) == (2, 0)
    assert pending.fragments == (Fragment(0, bookies(3)), Fragment(1, ("b0", "b3", "b2")))
    pending.on_add_ok("b3", 1, 2)
    assert pending.lafr == 2


def test_replacements_that_repair_made_in_older_fragments_are_kept() -> None:
    pending = pending_adds((3, 3, 2), base=4, first=5)
    push(pending, 1)
    pending.on_bookie_failed("b1")
    pending.strip([1])
    repaired = (Fragment(0, ("r0", "r1", "r2")), pending.fragments[1])
    written = pending.changed_fragments({1: "b3"}, repaired)
    assert written == (repaired[0], Fragment(5, ("b0", "b3", "b2")))


@pytest.mark.parametrize("replacements", [{0: "b1"}, {0: "b3", 1: "b3"}, {0: "b1", 1: "b3"}])
def test_a_replacement_that_sits_in_the_ensemble_already_is_refused_before_anything_is_written(
    replacements: dict[int, str],
) -> None:
    pending = pending_adds((3, 3, 2))
    for index in replacements:
        pending.on_bookie_failed(f"b{index}")
    pending.strip(replacements)
    with pytest.raises(AssertionError):
        pending.changed_fragments(replacements, pending.fragments)


# --- pinning --------------------------------------------------------------------------------------


def _t29() -> PendingAdds:
    pending = pending_adds((3, 3, 2), guaranteed=True)
    push(pending, 1, 1)
    for bookie, entry_id in (("b0", 0), ("b2", 0), ("b1", 1), ("b2", 1), ("b0", 1)):
        pending.on_add_ok(bookie, entry_id, entry_id)
    assert (pending.lac, pending.lafr) == (1, NO_ENTRY)
    pending.on_bookie_failed("b1")
    return pending


def test_full_pinning_keeps_a_bookie_that_confirmed_any_committed_entry_above_the_lafr() -> None:
    assert _t29().replaceable(full_pinning=True) == [], "D17, and T29: this can block for ever"


def test_relaxed_pinning_lets_a_bookie_go_when_every_committed_entry_keeps_its_ack_quorum() -> None:
    pending = _t29()
    assert pending.replaceable() == [1]
    change(pending, {1: "b3"})
    assert spans(pending.take_sends("b3")) == [(0, 0), (1, 1)]
    pending.on_add_ok("b3", 0, 1)
    assert pending.lafr == 1, "T29 proceeds"


def test_a_bookie_that_an_acknowledged_entry_needs_for_its_ack_quorum_is_pinned_in_both_modes() -> None:
    pending = pending_adds((3, 3, 2), guaranteed=True)
    push(pending, 1)
    pending.on_add_ok("b0", 0, 0)
    pending.on_add_ok("b1", 0, 0)
    pending.on_bookie_failed("b0")
    assert pending.replaceable() == [], "T16"
    assert pending.replaceable(full_pinning=True) == []
    pending.on_add_ok("b2", 0, 0)
    assert pending.replaceable() == [0], "once the entry is on its full write quorum nobody is pinned"
    assert pending.replaceable(full_pinning=True) == [0]


def test_failed_bookies_that_may_each_go_alone_do_not_all_go_together() -> None:
    pending = pending_adds((4, 4, 2), guaranteed=True)
    push(pending, 1)
    for bookie in ("b0", "b1", "b2"):
        pending.on_add_ok(bookie, 0, 0)
    for bookie in ("b0", "b1"):
        pending.on_bookie_failed(bookie)
    assert pending.replaceable() == [0], "with both gone entry 0 would be on b2 alone"


def test_a_change_in_guaranteed_mode_never_takes_the_lac_back() -> None:
    pending = _t29()
    change(pending, {1: "b3"})
    assert pending.lac == 1
    pending.on_add_ok("b3", 1, 1)
    assert (pending.lac, pending.lafr) == (1, NO_ENTRY)


@pytest.mark.parametrize("shape", [(3, 2, 2), (4, 2, 2), (4, 3, 2), (5, 3, 2)])
def test_a_striped_slot_is_pinned_by_the_entries_that_it_holds_alone(shape: tuple[int, int, int]) -> None:
    ensemble = shape[0]
    for leaving in range(ensemble):
        pending = pending_adds(shape, guaranteed=True)
        push(pending, *itertools.repeat(1, ensemble))
        replication = pending.replication
        for entry_id in range(ensemble):
            # Entry 0 reaches exactly its ack quorum, so the LAFR stays below it. The others reach all slots.
            slots = replication.write_set(entry_id)
            for slot in slots[: shape[2]] if entry_id == 0 else slots:
                pending.on_add_ok(f"b{slot}", entry_id, entry_id)
        pending.on_bookie_failed(f"b{leaving}")
        carried = range(pending.settled + 1, pending.lac + 1)
        holds_carried = any(
            replication.holds(leaving, e) and (e != 0 or leaving in replication.write_set(0)[: shape[2]])
            for e in carried
        )
        assert pending.replaceable(full_pinning=True) == ([] if holds_carried else [leaving])
