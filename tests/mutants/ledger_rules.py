"""Mutants of the ledger's protocol: quorums, the writer, reading and the metadata's edges."""

from __future__ import annotations

from tests.mutants.mutant import Change, equivalent, mutant

_TEST_QUORUM = "tests/unit/test_model_quorum.py"
_TEST_LEDGER = "tests/unit/test_model_ledger.py"
_TEST_PENDING = "tests/unit/test_pending.py"
_TEST_WRITER = "tests/unit/test_writer_core.py"
_TEST_ENSEMBLE = "tests/shells/test_client_ensemble.py"
_TEST_RECOVERY = "tests/unit/test_recovery_core.py"
_TEST_READER = "tests/unit/test_reader_core.py"
_SCHEDULE = (
    "tests/scenarios/test_schedules.py::test_production_code_does_not_take_the_step_that_breaks_a_ledger"
)

QUORUMS = (
    mutant(
        "negative_quorum_one_too_small",
        "A.0, T03",
        "Replication.negative_quorum",
        "self.write_quorum - self.ack_quorum + 1",
        "max(1, self.write_quorum - self.ack_quorum)",
        f"{_TEST_QUORUM}::test_an_acknowledged_entry_and_a_negative_quorum_exclude_each_other",
        f"{_SCHEDULE}[T03]",
    ),
    mutant(
        "fence_quorum_over_the_ensemble",
        "A.0, D1, T26",
        "Replication.covers",
        "missing_max = self.ack_quorum - 1",
        """
        if len(slots) >= self.negative_quorum:
            return True
        missing_max = self.ack_quorum - 1
        """,
        f"{_TEST_QUORUM}::test_the_table_of_coverage",
        f"{_TEST_RECOVERY}::test_reading_starts_once_every_write_set_is_covered_and_not_before",
        f"{_SCHEDULE}[T26]",
    ),
    mutant(
        "coverage_allows_an_ack_quorum_outside",
        "A.0",
        "Replication.covers",
        "self.ack_quorum - 1",
        "self.ack_quorum",
        f"{_TEST_QUORUM}::test_the_table_of_coverage",
    ),
    mutant(
        "write_set_not_striped",
        "A.0",
        "Replication.write_set",
        "entry_id + i",
        "i",
        f"{_TEST_QUORUM}::test_write_sets_are_the_next_slots_around_the_ring",
    ),
)

METADATA = (
    mutant(
        "fragment_that_owns_nothing_is_kept",
        "R-B4",
        "change_fragments",
        "last.first_entry == first_entry",
        "last.first_entry > first_entry",
        f"{_TEST_LEDGER}::test_an_ensemble_change_appends_a_fragment_or_replaces_one_that_would_own_nothing",
    ),
    mutant(
        "fragment_starts_before_the_last",
        "R-B4",
        "change_fragments",
        """
        assert first_entry >= last.first_entry, (
            "a fragment never starts before the one it follows (R-B4)"
        )
        """,
        "first_entry = max(first_entry, last.first_entry)",
        f"{_TEST_LEDGER}::test_a_fragment_never_starts_before_the_one_it_follows",
    ),
    mutant(
        "closed_ledger_is_closed_again",
        "C ClosedImmutable",
        "LedgerMetadata.closed",
        'assert self.state is not LedgerState.CLOSED, "the end of a ledger never changes"',
        "",
        f"{_TEST_LEDGER}::test_closing_sets_the_end_for_ever",
    ),
    mutant(
        "closed_below_its_last_fragment",
        "R-B3",
        "LedgerMetadata.__attrs_post_init__",
        "end < previous - 1",
        "end < NO_ENTRY",
        f"{_TEST_LEDGER}::test_metadata_that_breaks_a_rule_cannot_be_made",
    ),
    mutant(
        "repair_of_an_open_last_fragment",
        "rule 20",
        "LedgerMetadata.with_replacement",
        "self.is_closed or fragment_index < len(self.fragments) - 1",
        "fragment_index < len(self.fragments)",
        f"{_TEST_LEDGER}::test_repair_replaces_a_bookie_in_its_slot_but_never_in_the_open_last_fragment",
    ),
    mutant(
        "entry_belongs_to_the_first_fragment_that_reaches_it",
        "A.1",
        "LedgerMetadata.fragment_index",
        "self.fragments[middle].first_entry <= entry_id",
        "self.fragments[middle].first_entry < entry_id",
        f"{_TEST_LEDGER}::test_an_entry_belongs_to_the_last_fragment_that_starts_at_or_before_it",
    ),
)

PENDING = (
    mutant(
        "acks_of_a_replaced_bookie_count",
        "A.1, D14, T14",
        "PendingAdds.strip",
        "self.slots[index].confirmed.clear()",
        "",
        f"{_TEST_PENDING}::test_confirmations_of_a_replaced_bookie_do_not_pass_to_its_replacement",
        f"{_SCHEDULE}[T14]",
        also=(Change("PendingAdds.install", "slot.confirmed.clear()", ""),),
    ),
    mutant(
        "acks_count_while_their_slot_is_being_replaced",
        "D14, T15",
        "PendingAdds._quorum_reach",
        "slot.replacing or slot.index in without",
        "slot.index in without",
        f"{_TEST_PENDING}::"
        "test_confirmations_of_a_slot_that_is_being_replaced_stop_counting_before_the_write_is_sent",
        f"{_SCHEDULE}[T15]",
        also=(Change("PendingAdds.strip", "self.slots[index].confirmed.clear()", ""),),
    ),
    mutant(
        "late_acks_of_a_slot_that_is_being_replaced_count",
        "D14, T15",
        "PendingAdds.on_add_ok",
        "slot is None or slot.replacing",
        "slot is None",
        f"{_TEST_PENDING}::"
        "test_confirmations_of_a_slot_that_is_being_replaced_stop_counting_before_the_write_is_sent",
        also=(
            Change(
                "PendingAdds._quorum_reach",
                "slot.replacing or slot.index in without",
                "slot.index in without",
            ),
        ),
    ),
    mutant(
        "lac_over_a_hole",
        "A.1 LAC, T07",
        "PendingAdds._quorum_reach",
        "slot.confirmed.reach(start)",
        "max([start - 1, *(high for _, high in slot.confirmed.ranges())])",
        f"{_TEST_PENDING}::test_the_lac_is_the_end_of_the_unbroken_prefix_that_an_ack_quorum_confirmed",
        f"{_SCHEDULE}[T07]",
    ),
    mutant(
        "ack_quorum_one_too_small",
        "A.0",
        "PendingAdds._advance",
        "self._quorum_reach(self.lac, self.replication.ack_quorum)",
        "self._quorum_reach(self.lac, max(1, self.replication.ack_quorum - 1))",
        f"{_TEST_PENDING}::test_the_lac_is_the_end_of_the_unbroken_prefix_that_an_ack_quorum_confirmed",
    ),
    mutant(
        "lafr_at_the_ack_quorum",
        "A.4 rule 1",
        "PendingAdds._advance",
        "self.replication.write_quorum",
        "self.replication.ack_quorum",
        f"{_TEST_PENDING}::test_the_lafr_waits_for_the_whole_write_set_and_the_lac_does_not",
    ),
    mutant(
        "striped_quorum_counts_every_slot",
        "A.0",
        "PendingAdds.__init__",
        "replication.is_striped",
        "False",
        f"{_TEST_PENDING}::test_a_striped_entry_counts_only_the_slots_of_its_write_set",
    ),
    mutant(
        "lac_of_a_recoverer_counted_from_zero",
        "D16",
        "PendingAdds.__init__",
        "self.lac = base",
        "self.lac = NO_ENTRY",
        f"{_TEST_PENDING}::test_a_recoverers_watermarks_are_counted_from_the_entry_where_it_started",
        f"{_TEST_RECOVERY}::test_a_recovery_that_started_above_zero_finishes",
    ),
    mutant(
        "change_carries_from_the_lac_in_guaranteed_mode",
        "A.4 rule 2",
        "PendingAdds.changed_fragments",
        "self.settled",
        "self.lac",
        f"{_TEST_PENDING}::test_a_change_appends_a_fragment_that_starts_after_the_lafr_in_guaranteed_mode",
    ),
    mutant(
        "change_starts_after_the_last_add_pushed",
        "A.1",
        "PendingAdds.changed_fragments",
        "self.settled",
        "self.lap",
        f"{_TEST_PENDING}::test_a_change_appends_a_fragment_that_starts_after_the_lac_in_the_plain_mode",
    ),
    mutant(
        "no_pinning",
        "A.4 rule 3, T16",
        "PendingAdds.replaceable",
        """
        if self._keeps_committed([*chosen, slot.index]):
            chosen.append(slot.index)
        """,
        "chosen.append(slot.index)",
        f"{_TEST_PENDING}::"
        "test_a_bookie_that_an_acknowledged_entry_needs_for_its_ack_quorum_is_pinned_in_both_modes",
        f"{_SCHEDULE}[T16]",
    ),
    mutant(
        "pinned_one_by_one",
        "A.4 rule 3, D13",
        "PendingAdds.replaceable",
        "[*chosen, slot.index]",
        "[slot.index]",
        f"{_TEST_PENDING}::test_failed_bookies_that_may_each_go_alone_do_not_all_go_together",
    ),
    mutant(
        "pinned_by_entries_below_the_write_quorum_alone",
        "D17, T28",
        "PendingAdds._is_pinned",
        """
        if self.replication.holds(slot.index, entry_id):
            return True
        """,
        """
        write_set = self.replication.write_set(entry_id)
        if slot.index in write_set and not all(
            entry_id in self.slots[i].confirmed for i in write_set
        ):
            return True
        """,
        f"{_TEST_PENDING}::test_full_pinning_keeps_a_bookie_that_confirmed_any_committed_entry_above_the_lafr",
    ),
    mutant(
        "replacement_is_not_sent_what_is_pending",
        "A.1 queue rule 3",
        "PendingAdds.install",
        "fragments[-1].first_entry - 1",
        "self.lap",
        f"{_TEST_PENDING}::test_a_replacement_is_sent_everything_that_is_pending",
    ),
    mutant(
        "nothing_is_sent_again_after_a_loss",
        "A.1 queue rule 3",
        "PendingAdds.on_bookie_connected",
        "slot.sent = slot.confirmed.reach(self._carried.get(slot.index, self.settled) + 1)",
        "",
        f"{_TEST_PENDING}::"
        "test_a_failed_slot_is_sent_nothing_and_a_returned_one_all_that_it_has_not_confirmed",
    ),
    mutant(
        "acks_of_acknowledged_entries_are_not_recorded",
        "rule 11",
        "PendingAdds.on_add_ok",
        "last <= settled",
        "last <= self.lac",
        f"{_TEST_PENDING}::test_the_lafr_waits_for_the_whole_write_set_and_the_lac_does_not",
    ),
    mutant(
        "acks_beyond_the_ack_quorum_are_not_recorded",
        "rule 11",
        "PendingAdds.on_add_ok",
        "slot.confirmed.add(first if first > settled else settled + 1, last)",
        """
        if sum(last in other.confirmed for other in self.slots) >= self.replication.ack_quorum:
            return False
        slot.confirmed.add(first if first > settled else settled + 1, last)
        """,
        f"{_TEST_PENDING}::test_confirmations_are_recorded_after_the_ack_quorum_was_reached",
    ),
    mutant(
        "acks_of_strangers_count",
        "A.1 queue rule 4",
        "PendingAdds.install",
        "del self._by_bookie[slot.bookie]",
        "",
        f"{_TEST_PENDING}::test_an_answer_of_a_bookie_that_left_the_ensemble_is_dropped",
    ),
    mutant(
        "a_batch_is_kept_until_the_write_quorum_in_the_plain_mode",
        "A.1 queue rule 2",
        "PendingAdds._retire",
        "batches[0].last <= retiring",
        "batches[0].last < retiring",
        f"{_TEST_PENDING}::test_in_the_plain_mode_a_batch_retires_when_its_last_entry_is_at_the_lac",
    ),
    equivalent(
        "watermarks_not_looked_at_after_a_change",
        "rule 11",
        "PendingAdds.install",
        "self._advance()",
        "",
        _TEST_PENDING,
        _TEST_WRITER,
        because="confirmations are kept by slot and looked at as a whole with every answer, and a slot that "
        "is being replaced counts for nothing already from strip() on: installing a bookie that has "
        "confirmed nothing moves no watermark. The line states the rule where a reader looks for it",
    ),
)

WRITER = (
    mutant(
        "closed_at_the_last_add_pushed",
        "A.1, T05",
        "WriterCore._begin_close",
        "self.lac",
        "self.pending.lap",
        f"{_TEST_WRITER}::test_a_ledger_is_closed_at_the_lac_and_not_at_the_last_add_pushed",
        f"{_SCHEDULE}[T05]",
    ),
    mutant(
        "acks_count_after_the_close_snapshot",
        "D15, T06",
        "core.writer.WriterCore.on_add_ok",
        "self.failure is not None or first > last",
        "first > last",
        f"{_TEST_WRITER}::test_once_the_end_is_fixed_nothing_more_is_acknowledged",
        f"{_SCHEDULE}[T06]",
    ),
    mutant(
        "a_fence_starts_an_ensemble_change",
        "A.1, D12",
        "WriterCore.on_fenced",
        'self._fail(LedgerFenced(self.ledger_id, f"bookie {bookie} refuses adds"))',
        "self.on_bookie_failed(bookie)",
        f"{_TEST_WRITER}::test_a_fence_told_by_a_member_kills_the_writer_and_starts_no_change",
    ),
    mutant(
        "a_former_members_fence_kills",
        "D12",
        "WriterCore.on_fenced",
        "self.failure is not None or self.pending.slot_of(bookie) is None",
        "self.failure is not None",
        f"{_TEST_WRITER}::test_the_word_of_a_bookie_that_left_the_ensemble_does_not_kill_the_writer",
    ),
    mutant(
        "a_replacement_that_was_fenced_before_kills",
        "D12, D27.1",
        "WriterCore.on_fenced",
        "bookie in self._untried",
        "False",
        f"{_TEST_WRITER}::test_a_replacement_that_is_fenced_from_the_start_is_unfit_and_no_end",
        f"{_TEST_ENSEMBLE}::test_whatever_a_replacement_answers_the_writer_goes_on_and_finds_another",
    ),
    mutant(
        "a_frame_that_only_told_the_lac_counts_as_an_add",
        "A.1, D12",
        "core.writer.WriterCore.on_add_ok",
        "self.failure is not None or first > last",
        "self.failure is not None",
        f"{_TEST_WRITER}::test_the_answer_to_a_frame_that_only_told_the_lac_counts_for_nothing",
    ),
    mutant(
        "a_replacement_stays_untried_for_ever",
        "A.1, D12",
        "core.writer.WriterCore.on_add_ok",
        "self._untried.discard(bookie)",
        "",
        f"{_TEST_WRITER}::test_a_replacement_that_has_confirmed_an_entry_kills_with_a_fence_as_anybody_does",
    ),
    mutant(
        "a_change_is_written_again_whatever_the_state",
        "A.1, T22",
        "WriterCore.on_metadata_read",
        "self.metadata, self.version = stored, version",
        """
        stored = attrs.evolve(stored, state=LedgerState.OPEN, last_entry=None)
        self.metadata, self.version = stored, version
        """,
        f"{_TEST_WRITER}::test_a_change_that_meets_a_recovery_kills_the_writer",
        f"{_SCHEDULE}[T22]",
    ),
    mutant(
        "a_change_starts_where_its_first_attempt_did",
        "rule 13",
        "WriterCore._form_intent",
        "fragments[-1]",
        "self._attempts[0] if self._attempts else fragments[-1]",
        f"{_TEST_WRITER}::test_the_change_starts_after_the_newest_lac_when_its_write_is_formed_anew",
    ),
    mutant(
        "what_settles_during_a_change_is_not_kept_for_the_replacement",
        "A.1, rule 13",
        "WriterCore.change_ensemble",
        "self.pending.strip(self._replacements, carry=True)",
        "self.pending.strip(self._replacements)",
        f"{_TEST_WRITER}::"
        "test_what_settles_while_a_change_is_written_is_sent_to_the_replacement_that_its_fragment_names",
    ),
    mutant(
        "a_change_undoes_what_repair_did",
        "rule 13",
        "WriterCore._form_intent",
        "self.metadata.fragments",
        "self.pending.fragments",
        f"{_TEST_WRITER}::test_a_conflict_with_repair_of_an_older_fragment_keeps_what_repair_did",
        also=(
            Change(
                "WriterCore._form_intent",
                "self.metadata.with_ensemble(last.first_entry, last.ensemble, self._new_token())",
                "attrs.evolve(self.metadata, fragments=fragments, token=self._new_token())",
            ),
        ),
    ),
    mutant(
        "a_change_applied_late_is_not_known",
        "rule 14",
        "WriterCore.on_metadata_read",
        "stored.last_fragment in self._attempts",
        "self._attempts and stored.last_fragment == self._attempts[-1]",
        f"{_TEST_WRITER}::test_a_former_attempt_that_is_applied_late_is_known_too",
    ),
    mutant(
        "a_change_whose_answer_was_lost_is_not_known",
        "rule 14",
        "WriterCore.on_metadata_read",
        "stored.last_fragment in self._attempts",
        "stored.token == b'never'",
        f"{_TEST_WRITER}::test_a_write_whose_answer_was_lost_is_known_by_what_is_stored",
    ),
    mutant(
        "somebody_elses_fragment_is_adopted",
        "A.1",
        "WriterCore.on_metadata_read",
        "stored.last_fragment != self.pending.fragments[-1]",
        "stored.fragments == ()",
        f"{_TEST_WRITER}::test_a_last_fragment_that_somebody_else_wrote_kills_the_writer",
    ),
    mutant(
        "an_unknown_outcome_is_told_as_a_failure",
        "A.7",
        "WriterCore._closed_elsewhere",
        "self.lac",
        "self.pending.lap",
        f"{_TEST_WRITER}::"
        "test_where_recovery_kept_entries_that_were_pending_their_outcome_is_unknown_and_not_a_failure",
    ),
    mutant(
        "a_close_elsewhere_is_a_success",
        "A.1, C CloseAgree",
        "WriterCore.on_metadata_read",
        "self._closing is _Closing.WANTED and stored.last_entry == self.close_at",
        "self._closing is _Closing.WANTED",
        f"{_TEST_WRITER}::test_a_close_that_a_recoverer_did_elsewhere_is_not",
    ),
    mutant(
        "a_close_does_not_wait_for_the_change_under_way",
        "A.1",
        "WriterCore._begin_close",
        "self.intent is None",
        "True",
        f"{_TEST_WRITER}::test_a_close_during_a_change_waits_for_its_outcome_and_keeps_the_new_fragment",
    ),
    mutant(
        "an_abandoned_writer_goes_on_changing_its_ensemble",
        "A.1, rule 15",
        "WriterCore._form_intent",
        "self._replacements and self.failure is None",
        "self._replacements",
        f"{_TEST_WRITER}::test_a_writer_that_was_abandoned_during_a_change_writes_it_no_second_time",
    ),
    mutant(
        "a_guaranteed_ledger_closes_at_the_ack_quorum",
        "A.4 rule 4, D18, T18",
        "core.writer.WriterCore.close",
        "self.replication.guaranteed and not self.is_drained",
        "self.replication.guaranteed and self._queue",
        f"{_TEST_WRITER}::test_a_guaranteed_ledger_closes_only_when_everything_is_on_its_full_write_quorum",
    ),
    mutant(
        "a_guaranteed_ledger_is_closed_when_bookies_are_missing",
        "D18",
        "WriterCore.give_up",
        "self.replication.guaranteed",
        "not self.replication.write_quorum",
        f"{_TEST_WRITER}::"
        "test_without_enough_bookies_a_guaranteed_ledger_is_left_open_with_an_unknown_outcome",
    ),
    mutant(
        "two_changes_at_once",
        "A.1 queue rule 3",
        "WriterCore.replaceable",
        "self.failure is not None or self._replacements or self._closing is not _Closing.NO",
        "self.failure is not None or self._closing is not _Closing.NO",
        f"{_TEST_WRITER}::test_while_a_change_is_written_no_other_begins",
    ),
    mutant(
        "a_failure_after_the_ack_quorum_is_ignored",
        "rule 12",
        "WriterCore.on_bookie_failed",
        "self.pending.on_bookie_failed(bookie)",
        "not self.pending.is_drained and self.pending.on_bookie_failed(bookie)",
        f"{_TEST_WRITER}::test_a_failure_after_the_ack_quorum_starts_a_change_like_any_other",
    ),
    mutant(
        "a_dead_writer_goes_on_sending",
        "A.1, rule 15",
        "core.writer.WriterCore.take_sends",
        """
        if self.failure is not None:
            return []
        """,
        "",
        f"{_TEST_WRITER}::test_nothing_is_sent_formed_or_acknowledged_by_a_dead_writer",
    ),
)

READING = (
    mutant(
        "one_negative_is_enough_for_a_reader",
        "A.0 regular read",
        "RangeRead._conclude",
        "said and all(what is _Said.ABSENT for what in said.values())",
        "any(what is _Said.ABSENT for what in said.values())",
        f"{_TEST_READER}::test_one_bookie_that_does_not_know_leaves_the_entry_unavailable",
    ),
    mutant(
        "limbo_is_negative_to_a_reader",
        "A.3",
        "RangeRead.on_reply",
        "_Said.ABSENT if negative is Negative.ABSENT else _Said.UNKNOWN",
        "_Said.ABSENT",
        f"{_TEST_READER}::test_one_bookie_that_does_not_know_leaves_the_entry_unavailable",
    ),
    mutant(
        "damage_is_negative_to_a_reader",
        "rule 8",
        "RangeRead.on_reply",
        "_Said.DAMAGED",
        "_Said.ABSENT",
        f"{_TEST_READER}::test_a_copy_that_fails_its_digest_is_neither_yes_nor_no",
    ),
    mutant(
        "a_reader_asks_outside_the_write_set",
        "A.0 regular read",
        "RangeRead.__init__",
        "replication.write_set(start)",
        "tuple(range(replication.ensemble))",
        f"{_TEST_READER}::test_a_bookie_is_asked_only_for_entries_that_it_holds",
    ),
)

MUTANTS = (*QUORUMS, *METADATA, *PENDING, *WRITER, *READING)
