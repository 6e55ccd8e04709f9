"""``ledger.core.writer``: the owner of a ledger, without a network."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import (
    AppendUnknown,
    LedgerClosed,
    LedgerFenced,
    LedgerNotFound,
    NotEnoughBookies,
    WriteQuorumUnavailable,
)
from ledgerlog.ledger.core.writer import WriterCore
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.ledger import Fragment, LedgerState
from tests.cores import Register, bookies, new_metadata, new_token


def new_writer(
    shape: tuple[int, int, int] = (3, 3, 2), *, guaranteed: bool = False, entries: int = 0, **options: int
) -> tuple[WriterCore, Register]:
    """Return a writer with ``entries`` appended, each in its own batch, all handed out to every bookie."""
    metadata = new_metadata(shape, guaranteed=guaranteed)
    register = Register(metadata)
    options = {"frames_outstanding": 100, "frame_entries": 1} | options
    writer = WriterCore(metadata, 1, new_token=new_token("writer"), **options)
    if entries:
        writer.append([b"x"] * entries)
        send_all(writer)
    return writer, register


def send_all(writer: WriterCore) -> dict[str, list[tuple[int, int]]]:
    writer.form_batches()
    return {
        bookie: [(send.first, send.last) for send in writer.take_sends(bookie)]
        for bookie in writer.pending.ensemble
    }


def confirm(writer: WriterCore, entry_id: int, *names: str) -> None:
    for bookie in names:
        writer.on_add_ok(bookie, entry_id, entry_id)


# --- appending ------------------------------------------------------------------------------------


def test_ids_are_given_in_order_of_appending_from_zero() -> None:
    writer, _ = new_writer()
    assert writer.last_add_pushed == NO_ENTRY
    assert writer.append([b"a", b"b"]) == 0
    assert writer.append([b"c"]) == 2
    writer.form_batches()
    assert writer.append([b"d"]) == 3
    assert writer.last_add_pushed == 3
    assert (writer.unsettled_entries, writer.unsettled_bytes) == (4, 4)


def test_a_lone_append_leaves_at_once_and_what_arrives_while_frames_are_out_travels_together() -> None:
    writer, _ = new_writer(frames_outstanding=1, frame_entries=100)
    writer.append([b"a"])
    assert [(batch.first, batch.last) for batch in writer.form_batches()] == [(0, 0)]
    for payload in (b"b", b"c", b"d"):
        writer.append([payload])
        assert writer.form_batches() == []
    confirm(writer, 0, "b0", "b1")
    assert [(batch.first, batch.last) for batch in writer.form_batches()] == [(1, 3)]


@given(
    st.lists(st.binary(max_size=12), min_size=1, max_size=40),
    st.integers(1, 6),
    st.integers(1, 20),
    st.data(),
)
def test_batches_keep_the_order_and_the_bounds_and_lose_nothing(
    payloads: list[bytes], frame_entries: int, frame_bytes: int, data: st.DataObject
) -> None:
    writer, _ = new_writer((1, 1, 1), frame_entries=frame_entries, frame_bytes=frame_bytes)
    batches = []
    rest = payloads
    while rest:
        count = data.draw(st.integers(1, len(rest)))
        writer.append(rest[:count])
        rest = rest[count:]
        batches += writer.form_batches()
    assert [payload for batch in batches for payload in batch.payloads] == payloads
    following = 0
    for batch in batches:
        assert batch.first == following
        following = batch.last + 1
        assert len(batch.payloads) <= frame_entries
        assert batch.byte_count == sum(map(len, batch.payloads))
        assert batch.byte_count <= frame_bytes or len(batch.payloads) == 1
    assert writer.unsettled_bytes == sum(map(len, payloads))


def test_entries_are_acknowledged_at_the_ack_quorum_in_order() -> None:
    writer, _ = new_writer(entries=2)
    assert not writer.on_add_ok("b0", 1, 1)
    assert not writer.on_add_ok("b1", 1, 1)
    assert writer.lac == NO_ENTRY, "T07"
    confirm(writer, 0, "b0", "b2")
    assert writer.lac == 1
    assert writer.is_drained


# --- fences ---------------------------------------------------------------------------------------


def test_a_fence_told_by_a_member_kills_the_writer_and_starts_no_change() -> None:
    writer, _ = new_writer(entries=1)
    writer.on_fenced("b1")
    assert isinstance(writer.failure, LedgerFenced)
    assert writer.is_over
    assert writer.replaceable() == []
    with pytest.raises(LedgerFenced):
        writer.append([b"y"])
    with pytest.raises(LedgerFenced):
        writer.close()
    assert writer.intent is None


def test_nothing_is_sent_formed_or_acknowledged_by_a_dead_writer() -> None:
    writer, _ = new_writer(entries=1)
    writer.append([b"y"])
    writer.on_fenced("b1")
    confirm(writer, 0, "b0", "b1", "b2")
    assert writer.lac == NO_ENTRY
    assert writer.form_batches() == []
    writer.on_bookie_connected("b0")
    assert writer.take_sends("b0") == []


def test_the_word_of_a_bookie_that_left_the_ensemble_does_not_kill_the_writer() -> None:
    writer, register = new_writer(entries=1)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    register.carry_out(writer)
    writer.on_fenced("b0")
    assert writer.failure is None, "D12: an unclean boot fences too"


def test_a_replacement_that_is_fenced_from_the_start_is_unfit_and_no_end() -> None:
    writer, register = new_writer(entries=1)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    register.carry_out(writer)
    send_all(writer)
    assert writer.on_fenced("b3")
    assert not writer.on_fenced("b3"), "the answer to its next frame is no news"
    assert writer.failure is None
    assert writer.unfit == {"b3"}
    assert writer.replaceable() == [0]
    confirm(writer, 0, "b1", "b2")
    assert writer.lac == 0, "an ack quorum lives"
    writer.change_ensemble({0: "b4"})
    register.carry_out(writer)
    assert writer.pending.ensemble == ("b4", "b1", "b2")


def test_a_replacement_that_has_confirmed_an_entry_kills_with_a_fence_as_anybody_does() -> None:
    writer, register = new_writer(entries=1)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    register.carry_out(writer)
    send_all(writer)
    confirm(writer, 0, "b3")
    assert not writer.on_fenced("b3")
    assert isinstance(writer.failure, LedgerFenced)
    assert writer.unfit == set()


@pytest.mark.parametrize("guaranteed", [False, True])
def test_the_answer_to_a_frame_that_only_told_the_lac_counts_for_nothing(guaranteed: bool) -> None:
    writer, register = new_writer(guaranteed=guaranteed, entries=1)
    confirm(writer, 0, "b1", "b2")
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    register.carry_out(writer)
    send_all(writer)
    assert writer.lac == 0
    assert not writer.on_add_ok("b3", writer.lac + 1, writer.lac)
    assert writer.on_fenced("b3"), "b3 has confirmed no entry, so its fence may be an old one"
    assert writer.failure is None


def test_the_change_that_replaces_a_fenced_replacement_finds_a_recovery() -> None:
    writer, register = new_writer(entries=1)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    register.carry_out(writer)
    send_all(writer)
    assert register.stored is not None
    register.put(register.stored.in_recovery(b"theirs"))
    writer.on_fenced("b3")
    writer.change_ensemble({0: "b4"})
    register.carry_out(writer)
    assert isinstance(writer.failure, LedgerFenced)


def test_the_first_failure_stands() -> None:
    writer, _ = new_writer(entries=1)
    writer.on_fenced("b1")
    first = writer.failure
    writer.on_fenced("b2")
    writer.abandon()
    writer.give_up(NotEnoughBookies("none"))
    assert writer.failure is first


# --- ensemble changes -----------------------------------------------------------------------------


def test_all_failed_slots_are_replaced_in_one_write() -> None:
    writer, register = new_writer((2, 2, 2), entries=1)
    writer.on_bookie_failed("b0")
    writer.on_bookie_failed("b1")
    assert writer.replaceable() == [0, 1]
    writer.change_ensemble({0: "b2", 1: "b3"})
    register.carry_out(writer)
    assert register.version == 2
    assert register.stored is not None
    assert register.stored.fragments == (Fragment(0, ("b2", "b3")),)
    assert send_all(writer) == {"b2": [(0, 0)], "b3": [(0, 0)]}


def test_while_a_change_is_written_no_other_begins() -> None:
    writer, register = new_writer(entries=1)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    writer.on_bookie_failed("b1")
    assert writer.replaceable() == []
    register.carry_out(writer)
    assert writer.replaceable() == [1], "a failure that came meanwhile is not forgotten"


def test_a_slot_that_did_not_fail_cannot_be_replaced() -> None:
    writer, _ = new_writer(entries=1)
    with pytest.raises(AssertionError):
        writer.change_ensemble({0: "b3"})


def test_a_failure_after_the_ack_quorum_starts_a_change_like_any_other() -> None:
    writer, register = new_writer(entries=1)
    confirm(writer, 0, "b0", "b1")
    writer.on_bookie_failed("b2")
    assert writer.replaceable() == [2], "rule 12"
    writer.change_ensemble({2: "b3"})
    register.carry_out(writer)
    assert register.stored is not None
    assert register.stored.fragments[-1] == Fragment(1, ("b0", "b1", "b3"))


def test_a_replacement_that_fails_before_the_write_is_replaced_by_the_next_change() -> None:
    writer, register = new_writer(entries=1)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    assert not writer.on_bookie_failed("b3"), "it is nobody yet; its connection tells again once it is"
    register.carry_out(writer)
    assert writer.on_bookie_failed("b3")
    assert writer.replaceable() == [0]
    writer.change_ensemble({0: "b4"})
    register.carry_out(writer)
    assert writer.pending.ensemble == ("b4", "b1", "b2")
    confirm(writer, 0, "b4", "b1")
    assert writer.lac == 0


def test_the_change_starts_after_the_newest_lac_when_its_write_is_formed_anew() -> None:
    writer, register = new_writer(entries=3)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    assert writer.intent is not None
    assert writer.intent.metadata.last_fragment == Fragment(0, ("b3", "b1", "b2"))
    confirm(writer, 0, "b1", "b2")
    register.show(writer)  # The write was lost.
    assert writer.intent.metadata.fragments == (Fragment(0, bookies(3)), Fragment(1, ("b3", "b1", "b2")))


def test_what_settles_while_a_change_is_written_is_sent_to_the_replacement_that_its_fragment_names() -> None:
    writer, register = new_writer(entries=2)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    confirm(writer, 0, "b1", "b2")
    assert writer.lac == 0
    register.carry_out(writer)
    assert writer.metadata.last_fragment == Fragment(0, ("b3", "b1", "b2"))
    sent = [(send.first, send.last) for send in writer.take_sends("b3")]
    assert sent == [(0, 0), (1, 1)], "entry 0 has its quorum, and the fragment says that b3 has it"


def test_a_write_whose_answer_was_lost_is_known_by_what_is_stored() -> None:
    writer, register = new_writer(entries=1)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    assert writer.intent is not None
    assert register.write(writer.intent)
    register.show(writer)
    assert writer.intent is None
    assert writer.pending.ensemble == ("b3", "b1", "b2")


def test_a_former_attempt_that_is_applied_late_is_known_too() -> None:
    writer, register = new_writer(entries=3)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    late = writer.intent
    assert late is not None
    register.show(writer)
    confirm(writer, 0, "b1", "b2")
    register.show(writer)
    assert writer.intent is not None
    assert register.write(late)
    assert not register.write(writer.intent)
    register.show(writer)
    assert writer.failure is None
    assert writer.intent is None
    assert writer.pending.ensemble == ("b3", "b1", "b2")
    assert writer.pending.fragments[-1].first_entry == 0
    # Entry 0 settled on b1 and b2 during the write. The fragment says that b3 has it too.
    assert send_all(writer)["b3"] == [(0, 0), (1, 1), (2, 2)]
    assert writer.pending.batches[0].first == 1, "what was carried is let go"


def test_a_conflict_with_repair_of_an_older_fragment_keeps_what_repair_did() -> None:
    writer, register = new_writer(entries=2)
    confirm(writer, 0, "b0", "b1")
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    register.carry_out(writer)
    assert register.stored is not None
    register.put(register.stored.with_replacement(0, "b2", "b9", b"repair"))
    writer.on_bookie_failed("b1")
    writer.change_ensemble({1: "b4"})
    register.carry_out(writer)
    assert writer.intent is not None, "the version moved: the write is formed anew"
    register.carry_out(writer)
    assert writer.failure is None
    assert register.stored.fragments == (Fragment(0, ("b0", "b1", "b9")), Fragment(1, ("b3", "b4", "b2")))


def test_a_change_that_meets_a_recovery_kills_the_writer() -> None:
    writer, register = new_writer(entries=1)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    assert register.stored is not None
    register.put(register.stored.in_recovery(b"recoverer"))
    register.carry_out(writer)
    assert isinstance(writer.failure, LedgerFenced)
    assert writer.is_over
    assert register.stored.fragments == (Fragment(0, bookies(3)),)


def test_a_change_that_finds_the_ledger_closed_without_what_is_pending_fails_with_ledger_closed() -> None:
    writer, register = new_writer(entries=1)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    assert register.stored is not None
    register.put(register.stored.closed(NO_ENTRY, b"recoverer"))
    register.carry_out(writer)
    assert isinstance(writer.failure, LedgerClosed)
    assert writer.failure.last_entry == NO_ENTRY
    assert writer.is_over


def test_where_recovery_kept_entries_that_were_pending_their_outcome_is_unknown_and_not_a_failure() -> None:
    writer, register = new_writer(entries=2)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    assert register.stored is not None
    register.put(register.stored.closed(0, b"recoverer"))
    register.carry_out(writer)
    assert isinstance(writer.failure, LedgerFenced)


def test_a_last_fragment_that_somebody_else_wrote_kills_the_writer() -> None:
    writer, register = new_writer(entries=1)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    assert register.stored is not None
    register.put(register.stored.with_ensemble(0, ("b7", "b8", "b9"), b"impostor"))
    register.show(writer)
    assert isinstance(writer.failure, LedgerFenced)


def test_a_ledger_that_was_deleted_kills_the_writer() -> None:
    writer, register = new_writer(entries=1)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    register.stored = None
    register.carry_out(writer)
    assert isinstance(writer.failure, LedgerNotFound)
    assert writer.is_over


def test_a_fence_during_a_change_wins_and_the_change_may_still_be_applied() -> None:
    writer, register = new_writer(entries=1)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    late = writer.intent
    assert late is not None
    writer.on_fenced("b1")
    assert writer.intent is None
    register.write(late)
    register.show(writer)
    assert isinstance(writer.failure, LedgerFenced)
    assert writer.intent is None


def test_every_attempt_carries_a_token_of_its_own() -> None:
    writer, register = new_writer(entries=1)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    assert writer.intent is not None
    first = writer.intent.metadata.token
    register.show(writer)
    assert writer.intent.metadata.token != first


def test_a_pinned_bookie_is_not_replaced_and_is_looked_at_again_when_the_lafr_moves() -> None:
    writer, _ = new_writer(guaranteed=True, entries=1)
    confirm(writer, 0, "b0", "b1")
    writer.on_bookie_failed("b0")
    assert writer.replaceable() == [], "T16"
    confirm(writer, 0, "b2")
    assert writer.replaceable() == [0]


# --- closing --------------------------------------------------------------------------------------


def test_a_ledger_is_closed_at_the_lac_and_not_at_the_last_add_pushed() -> None:
    writer, register = new_writer(entries=2)
    confirm(writer, 0, "b0", "b1")
    writer.close()
    register.carry_out(writer)
    assert writer.is_closed
    assert register.stored is not None
    assert (register.stored.state, register.stored.last_entry) == (LedgerState.CLOSED, 0), "T05"


def test_once_the_end_is_fixed_nothing_more_is_acknowledged() -> None:
    writer, register = new_writer(entries=1)
    writer.close()
    confirm(writer, 0, "b0", "b1", "b2")
    assert writer.lac == NO_ENTRY, "T06"
    register.carry_out(writer)
    assert writer.is_closed
    assert isinstance(writer.failure, LedgerClosed), "what was pending is not in the ledger"


def test_appending_after_a_close_began_is_refused() -> None:
    writer, _ = new_writer()
    writer.close()
    with pytest.raises(LedgerClosed):
        writer.append([b"x"])


def test_closing_twice_is_closing_once() -> None:
    writer, register = new_writer()
    writer.close()
    writer.close()
    register.carry_out(writer)
    writer.close()
    assert register.version == 2
    assert writer.is_closed


def test_a_close_whose_answer_was_lost_is_known_by_what_is_stored() -> None:
    writer, register = new_writer(entries=1)
    writer.close()
    assert writer.intent is not None
    register.write(writer.intent)
    register.show(writer)
    assert writer.is_closed


def test_a_close_that_conflicts_with_repair_is_tried_again_with_the_same_end() -> None:
    writer, register = new_writer(entries=1)
    writer.close()
    assert register.stored is not None
    register.put(attrs.evolve(register.stored, token=b"repair"))
    register.carry_out(writer)
    assert not writer.is_over
    register.carry_out(writer)
    assert writer.is_closed
    assert register.stored.last_entry == NO_ENTRY


def test_a_close_that_meets_a_recovery_fails_with_ledger_fenced() -> None:
    writer, register = new_writer(entries=1)
    writer.close()
    assert register.stored is not None
    register.put(register.stored.in_recovery(b"recoverer"))
    register.carry_out(writer)
    assert isinstance(writer.failure, LedgerFenced), "what was pending may survive"
    assert writer.is_over
    assert not writer.is_closed


def test_a_close_that_a_recoverer_did_at_the_same_end_is_a_success() -> None:
    writer, register = new_writer(entries=1)
    confirm(writer, 0, "b0", "b1")
    writer.close()
    assert register.stored is not None
    register.put(register.stored.closed(0, b"recoverer"))
    register.carry_out(writer)
    assert writer.is_closed


def test_a_close_that_a_recoverer_did_elsewhere_is_not() -> None:
    writer, register = new_writer(entries=1)
    writer.close()
    assert register.stored is not None
    register.put(register.stored.closed(0, b"recoverer"))
    register.carry_out(writer)
    assert not writer.is_closed
    assert writer.is_over
    assert isinstance(writer.failure, LedgerFenced), "entry 0 was pending and survived"


def test_a_fence_does_not_stop_a_close_that_has_begun() -> None:
    writer, register = new_writer(entries=1)
    writer.close()
    writer.on_fenced("b0")
    register.carry_out(writer)
    assert writer.is_closed, "D26: a bookie may be fenced though nobody recovers; the closing write finds out"


def test_a_close_during_a_change_waits_for_its_outcome_and_keeps_the_new_fragment() -> None:
    writer, register = new_writer(entries=2)
    confirm(writer, 0, "b0", "b1")
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    change = writer.intent
    writer.close()
    assert writer.intent is change, "one metadata write at a time"
    register.carry_out(writer)
    register.carry_out(writer)
    assert writer.is_closed
    assert register.stored is not None
    assert register.stored.fragments[-1] == Fragment(1, ("b3", "b1", "b2"))
    assert register.stored.last_entry == 0


def test_a_writer_that_was_abandoned_during_a_change_writes_it_no_second_time() -> None:
    writer, register = new_writer(entries=1)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    writer.abandon()
    assert writer.intent is None
    assert register.stored is not None
    writer.on_metadata_read(register.stored, register.version)
    assert writer.intent is None, "its write was lost, and the ledger is another client's by now"


def test_a_close_during_a_change_that_was_lost_closes_the_old_fragments() -> None:
    writer, register = new_writer(entries=2)
    writer.on_bookie_failed("b0")
    writer.change_ensemble({0: "b3"})
    late = writer.intent
    assert late is not None
    writer.close()
    register.show(writer)
    assert register.stored is not None
    assert writer.intent is not None
    assert writer.intent.metadata.fragments == (Fragment(0, bookies(3)),)
    assert register.write(late), "and now the change is applied after all"
    register.carry_out(writer)
    register.carry_out(writer)
    assert writer.is_closed
    assert register.stored.fragments == (Fragment(0, ("b3", "b1", "b2")),)


def test_a_guaranteed_ledger_closes_only_when_everything_is_on_its_full_write_quorum() -> None:
    writer, register = new_writer(guaranteed=True, entries=1)
    confirm(writer, 0, "b0", "b1")
    with pytest.raises(WriteQuorumUnavailable):
        writer.close()
    assert writer.failure is None, "the writer stays usable"
    confirm(writer, 0, "b2")
    writer.close()
    register.carry_out(writer)
    assert writer.is_closed


def test_a_guaranteed_ledger_does_not_close_over_entries_that_are_only_queued() -> None:
    writer, _ = new_writer(guaranteed=True, frames_outstanding=0)
    writer.append([b"x"])
    with pytest.raises(WriteQuorumUnavailable):
        writer.close()


# --- giving up ------------------------------------------------------------------------------------


def test_without_enough_bookies_the_plain_mode_closes_at_the_lac_and_the_rest_fails() -> None:
    writer, register = new_writer(entries=2)
    confirm(writer, 0, "b0", "b1")
    reason = NotEnoughBookies("none left")
    writer.give_up(reason)
    assert not writer.is_over, "until the closing write took effect nobody knows what became of entry 1"
    register.carry_out(writer)
    assert writer.is_over
    assert writer.failure is reason
    assert register.stored is not None
    assert register.stored.last_entry == 0


def test_giving_up_while_somebody_recovers_leaves_the_outcome_unknown() -> None:
    writer, register = new_writer(entries=2)
    writer.give_up(NotEnoughBookies("none left"))
    assert register.stored is not None
    register.put(register.stored.in_recovery(b"recoverer"))
    register.carry_out(writer)
    assert writer.is_over
    assert isinstance(writer.failure, LedgerFenced)


def test_without_enough_bookies_a_guaranteed_ledger_is_left_open_with_an_unknown_outcome() -> None:
    writer, _ = new_writer(guaranteed=True, entries=1)
    writer.give_up(NotEnoughBookies("none left"))
    assert writer.intent is None, "T18: never closed below its write quorum"
    assert writer.is_over
    assert isinstance(writer.failure, AppendUnknown)


def test_abandoning_leaves_the_ledger_open_with_an_unknown_outcome() -> None:
    writer, _ = new_writer(entries=1)
    writer.abandon()
    assert writer.intent is None
    assert writer.is_over
    assert not writer.is_closed
    assert isinstance(writer.failure, AppendUnknown)


def test_a_dead_writer_forgets_what_was_only_queued() -> None:
    writer, _ = new_writer(frames_outstanding=0)
    writer.append([b"x" * 100])
    writer.abandon()
    assert writer.unsettled_bytes == 0
    assert writer.last_add_pushed == NO_ENTRY


def test_only_an_open_ledger_has_a_writer() -> None:
    with pytest.raises(AssertionError):
        WriterCore(new_metadata(state=LedgerState.IN_RECOVERY), 1, new_token=new_token())
