"""Mutants of the ledger's protocol: quorums, the writer, recovery, reading and the metadata's edges."""

from __future__ import annotations

from tests.mutants.mutant import Edit, equivalent, mutant

_QUORUM = "ledgerlog/model/quorum.py"
_LEDGER = "ledgerlog/model/ledger.py"
_PENDING = "ledgerlog/core/pending.py"
_WRITER = "ledgerlog/core/writer.py"
_RECOVERY = "ledgerlog/core/recovery.py"
_READER = "ledgerlog/core/reader.py"

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
        _QUORUM,
        "return self.write_quorum - self.ack_quorum + 1",
        "return max(1, self.write_quorum - self.ack_quorum)",
        f"{_TEST_QUORUM}::test_an_acknowledged_entry_and_a_negative_quorum_exclude_each_other",
        f"{_SCHEDULE}[T03]",
    ),
    mutant(
        "fence_quorum_over_the_ensemble",
        "A.0, D1, T26",
        _QUORUM,
        "        missing_max = self.ack_quorum - 1\n",
        "        if len(slots) >= self.negative_quorum:\n            return True\n"
        "        missing_max = self.ack_quorum - 1\n",
        f"{_TEST_QUORUM}::test_the_table_of_coverage",
        f"{_TEST_RECOVERY}::test_reading_starts_once_every_write_set_is_covered_and_not_before",
        f"{_SCHEDULE}[T26]",
    ),
    mutant(
        "coverage_allows_an_ack_quorum_outside",
        "A.0",
        _QUORUM,
        "missing_max = self.ack_quorum - 1",
        "missing_max = self.ack_quorum",
        f"{_TEST_QUORUM}::test_the_table_of_coverage",
    ),
    mutant(
        "write_set_not_striped",
        "A.0",
        _QUORUM,
        "return tuple((entry_id + i) % ensemble for i in range(self.write_quorum))",
        "return tuple(i % ensemble for i in range(self.write_quorum))",
        f"{_TEST_QUORUM}::test_write_sets_are_the_next_slots_around_the_ring",
    ),
)

METADATA = (
    mutant(
        "fragment_that_owns_nothing_is_kept",
        "R-B4",
        _LEDGER,
        "if last.first_entry == first_entry:",
        "if last.first_entry > first_entry:",
        f"{_TEST_LEDGER}::test_an_ensemble_change_appends_a_fragment_or_replaces_one_that_would_own_nothing",
    ),
    mutant(
        "fragment_starts_before_the_last",
        "R-B4",
        _LEDGER,
        'assert first_entry >= last.first_entry, "a fragment never starts before the one it follows (R-B4)"',
        "first_entry = max(first_entry, last.first_entry)",
        f"{_TEST_LEDGER}::test_a_fragment_never_starts_before_the_one_it_follows",
    ),
    mutant(
        "closed_ledger_is_closed_again",
        "C ClosedImmutable",
        _LEDGER,
        'assert self.state is not LedgerState.CLOSED, "the end of a ledger never changes"',
        "pass",
        f"{_TEST_LEDGER}::test_closing_sets_the_end_for_ever",
    ),
    mutant(
        "closed_below_its_last_fragment",
        "R-B3",
        _LEDGER,
        "self.last_entry is None or self.last_entry >= previous - 1,",
        "True,",
        f"{_TEST_LEDGER}::test_metadata_that_breaks_a_rule_cannot_be_made",
    ),
    mutant(
        "repair_of_an_open_last_fragment",
        "rule 20",
        _LEDGER,
        "assert self.is_closed or fragment_index < len(self.fragments) - 1, (",
        "assert fragment_index < len(self.fragments), (",
        f"{_TEST_LEDGER}::test_repair_replaces_a_bookie_in_its_slot_but_never_in_the_open_last_fragment",
    ),
    mutant(
        "entry_belongs_to_the_first_fragment_that_reaches_it",
        "A.1",
        _LEDGER,
        "if self.fragments[middle].first_entry <= entry_id:",
        "if self.fragments[middle].first_entry < entry_id:",
        f"{_TEST_LEDGER}::test_an_entry_belongs_to_the_last_fragment_that_starts_at_or_before_it",
    ),
)

PENDING = (
    mutant(
        "acks_of_a_replaced_bookie_count",
        "A.1, D14, T14",
        _PENDING,
        "            slot.bookie = bookie\n            slot.confirmed.clear()\n",
        "            slot.bookie = bookie\n",
        f"{_TEST_PENDING}::test_confirmations_of_a_replaced_bookie_do_not_pass_to_its_replacement",
        f"{_SCHEDULE}[T14]",
        also=(Edit(_PENDING, "            self.slots[index].confirmed.clear()\n", ""),),
    ),
    mutant(
        "acks_count_while_their_slot_is_being_replaced",
        "D14, T15",
        _PENDING,
        "start - 1 if slot.replacing or slot.index in without else",
        "start - 1 if slot.index in without else",
        f"{_TEST_PENDING}::"
        "test_confirmations_of_a_slot_that_is_being_replaced_stop_counting_before_the_write_is_sent",
        f"{_SCHEDULE}[T15]",
        also=(Edit(_PENDING, "            self.slots[index].confirmed.clear()\n", ""),),
    ),
    mutant(
        "late_acks_of_a_slot_that_is_being_replaced_count",
        "D14, T15",
        _PENDING,
        "        if slot is None or slot.replacing:\n            return False\n"
        "        assert last <= self.lap",
        "        if slot is None:\n            return False\n        assert last <= self.lap",
        f"{_TEST_PENDING}::"
        "test_confirmations_of_a_slot_that_is_being_replaced_stop_counting_before_the_write_is_sent",
        also=(
            Edit(
                _PENDING,
                "start - 1 if slot.replacing or slot.index in without else",
                "start - 1 if slot.index in without else",
            ),
        ),
    ),
    mutant(
        "lac_over_a_hole",
        "A.1 LAC, T07",
        _PENDING,
        "else slot.confirmed.reach(start)",
        "else max([start - 1, *(high for _, high in slot.confirmed.ranges())])",
        f"{_TEST_PENDING}::test_the_lac_is_the_end_of_the_unbroken_prefix_that_an_ack_quorum_confirmed",
        f"{_SCHEDULE}[T07]",
    ),
    mutant(
        "ack_quorum_one_too_small",
        "A.0",
        _PENDING,
        "lac = self._quorum_reach(self.lac, self.replication.ack_quorum)",
        "lac = self._quorum_reach(self.lac, max(1, self.replication.ack_quorum - 1))",
        f"{_TEST_PENDING}::test_the_lac_is_the_end_of_the_unbroken_prefix_that_an_ack_quorum_confirmed",
    ),
    mutant(
        "lafr_at_the_ack_quorum",
        "A.4 rule 1",
        _PENDING,
        "lafr = self._quorum_reach(self.lafr, self.replication.write_quorum)",
        "lafr = self._quorum_reach(self.lafr, self.replication.ack_quorum)",
        f"{_TEST_PENDING}::test_the_lafr_waits_for_the_whole_write_set_and_the_lac_does_not",
    ),
    mutant(
        "striped_quorum_counts_every_slot",
        "A.0",
        _PENDING,
        "if replication.is_striped:\n            self._classes",
        "if False:\n            self._classes",
        f"{_TEST_PENDING}::test_a_striped_entry_counts_only_the_slots_of_its_write_set",
    ),
    mutant(
        "lac_of_a_recoverer_counted_from_zero",
        "D16",
        _PENDING,
        "        self.lap = base\n        self.lac = base\n",
        "        self.lap = base\n        self.lac = NO_ENTRY\n",
        f"{_TEST_PENDING}::test_a_recoverers_watermarks_are_counted_from_the_entry_where_it_started",
        f"{_TEST_RECOVERY}::test_a_recovery_that_started_above_zero_finishes",
    ),
    mutant(
        "change_carries_from_the_lac_in_guaranteed_mode",
        "A.4 rule 2",
        _PENDING,
        "return change_fragments(fragments, self.settled + 1, ensemble)",
        "return change_fragments(fragments, self.lac + 1, ensemble)",
        f"{_TEST_PENDING}::test_a_change_appends_a_fragment_that_starts_after_the_lafr_in_guaranteed_mode",
    ),
    mutant(
        "change_starts_after_the_last_add_pushed",
        "A.1",
        _PENDING,
        "return change_fragments(fragments, self.settled + 1, ensemble)",
        "return change_fragments(fragments, self.lap + 1, ensemble)",
        f"{_TEST_PENDING}::test_a_change_appends_a_fragment_that_starts_after_the_lac_in_the_plain_mode",
    ),
    mutant(
        "no_pinning",
        "A.4 rule 3, T16",
        _PENDING,
        "elif self._keeps_committed([*chosen, slot.index]):",
        "else:",
        f"{_TEST_PENDING}::"
        "test_a_bookie_that_an_acknowledged_entry_needs_for_its_ack_quorum_is_pinned_in_both_modes",
        f"{_SCHEDULE}[T16]",
    ),
    mutant(
        "pinned_one_by_one",
        "A.4 rule 3, D13",
        _PENDING,
        "elif self._keeps_committed([*chosen, slot.index]):",
        "elif self._keeps_committed([slot.index]):",
        f"{_TEST_PENDING}::test_failed_bookies_that_may_each_go_alone_do_not_all_go_together",
    ),
    mutant(
        "pinned_by_entries_below_the_write_quorum_alone",
        "D17, T28",
        _PENDING,
        "            if self.replication.holds(slot.index, entry_id):\n                return True\n",
        "            write_set = self.replication.write_set(entry_id)\n"
        "            if slot.index in write_set and not all(\n"
        "                entry_id in self.slots[i].confirmed for i in write_set\n"
        "            ):\n"
        "                return True\n",
        f"{_TEST_PENDING}::test_full_pinning_keeps_a_bookie_that_confirmed_any_committed_entry_above_the_lafr",
    ),
    mutant(
        "replacement_is_not_sent_what_is_pending",
        "A.1 queue rule 3",
        _PENDING,
        "slot.sent = fragments[-1].first_entry - 1",
        "slot.sent = self.lap",
        f"{_TEST_PENDING}::test_a_replacement_is_sent_everything_that_is_pending",
    ),
    mutant(
        "nothing_is_sent_again_after_a_loss",
        "A.1 queue rule 3",
        _PENDING,
        "            slot.sent = slot.confirmed.reach(self._carried.get(slot.index, self.settled) + 1)\n",
        "",
        f"{_TEST_PENDING}::"
        "test_a_failed_slot_is_sent_nothing_and_a_returned_one_all_that_it_has_not_confirmed",
    ),
    mutant(
        "acks_of_acknowledged_entries_are_not_recorded",
        "rule 11",
        _PENDING,
        "        settled = self.settled\n        if last <= settled:\n            return False\n",
        "        settled = self.settled\n        if last <= self.lac:\n            return False\n",
        f"{_TEST_PENDING}::test_the_lafr_waits_for_the_whole_write_set_and_the_lac_does_not",
    ),
    mutant(
        "acks_beyond_the_ack_quorum_are_not_recorded",
        "rule 11",
        _PENDING,
        "        slot.confirmed.add(max(first, settled + 1), last)\n",
        "        if sum(last in other.confirmed for other in self.slots) >= self.replication.ack_quorum:\n"
        "            return False\n"
        "        slot.confirmed.add(max(first, settled + 1), last)\n",
        f"{_TEST_PENDING}::test_confirmations_are_recorded_after_the_ack_quorum_was_reached",
    ),
    mutant(
        "acks_of_strangers_count",
        "A.1 queue rule 4",
        _PENDING,
        "            del self._by_bookie[slot.bookie]\n            self._by_bookie[bookie] = slot\n",
        "            self._by_bookie[bookie] = slot\n",
        f"{_TEST_PENDING}::test_an_answer_of_a_bookie_that_left_the_ensemble_is_dropped",
    ),
    mutant(
        "a_batch_is_kept_until_the_write_quorum_in_the_plain_mode",
        "A.1 queue rule 2",
        _PENDING,
        "while batches and batches[0].last <= retiring:",
        "while batches and batches[0].last < retiring:",
        f"{_TEST_PENDING}::test_in_the_plain_mode_a_batch_retires_when_its_last_entry_is_at_the_lac",
    ),
    equivalent(
        "watermarks_not_looked_at_after_a_change",
        "rule 11",
        _PENDING,
        "        # A slot that stays may have been all that an entry still lacked (rule 11).\n"
        "        self._advance()\n",
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
        _WRITER,
        "self.close_at = self.lac",
        "self.close_at = self.pending.lap",
        f"{_TEST_WRITER}::test_a_ledger_is_closed_at_the_lac_and_not_at_the_last_add_pushed",
        f"{_SCHEDULE}[T05]",
    ),
    mutant(
        "acks_count_after_the_close_snapshot",
        "D15, T06",
        _WRITER,
        "        if self.failure is not None:\n            return False\n        if self._untried:\n",
        "        if self._untried:\n",
        f"{_TEST_WRITER}::test_once_the_end_is_fixed_nothing_more_is_acknowledged",
        f"{_SCHEDULE}[T06]",
    ),
    mutant(
        "a_fence_starts_an_ensemble_change",
        "A.1, D12",
        _WRITER,
        'self._fail(LedgerFenced(self.ledger_id, f"bookie {bookie} refuses adds"))',
        "self.on_bookie_failed(bookie)",
        f"{_TEST_WRITER}::test_a_fence_told_by_a_member_kills_the_writer_and_starts_no_change",
    ),
    mutant(
        "a_former_members_fence_kills",
        "D12",
        _WRITER,
        "if self.failure is not None or self.pending.slot_of(bookie) is None:",
        "if self.failure is not None:",
        f"{_TEST_WRITER}::test_the_word_of_a_bookie_that_left_the_ensemble_does_not_kill_the_writer",
    ),
    mutant(
        "a_replacement_that_was_fenced_before_kills",
        "D12, D27.1",
        _WRITER,
        "        if bookie in self._untried:\n",
        "        if False:\n",
        f"{_TEST_WRITER}::test_a_replacement_that_is_fenced_from_the_start_is_unfit_and_no_end",
        f"{_TEST_ENSEMBLE}::test_whatever_a_replacement_answers_the_writer_goes_on_and_finds_another",
    ),
    mutant(
        "a_replacement_stays_untried_for_ever",
        "A.1, D12",
        _WRITER,
        "            self._untried.discard(bookie)\n",
        "            pass\n",
        f"{_TEST_WRITER}::test_a_replacement_that_has_confirmed_an_entry_kills_with_a_fence_as_anybody_does",
    ),
    mutant(
        "a_change_is_written_again_whatever_the_state",
        "A.1, T22",
        _WRITER,
        "        self.metadata, self.version = stored, version\n        if stored.state",
        "        stored = attrs.evolve(stored, state=LedgerState.OPEN, last_entry=None)\n"
        "        self.metadata, self.version = stored, version\n        if stored.state",
        f"{_TEST_WRITER}::test_a_change_that_meets_a_recovery_kills_the_writer",
        f"{_SCHEDULE}[T22]",
    ),
    mutant(
        "a_change_starts_where_its_first_attempt_did",
        "rule 13",
        _WRITER,
        "            last = fragments[-1]\n",
        "            last = self._attempts[0] if self._attempts else fragments[-1]\n",
        f"{_TEST_WRITER}::test_the_change_starts_after_the_newest_lac_when_its_write_is_formed_anew",
    ),
    mutant(
        "what_settles_during_a_change_is_not_kept_for_the_replacement",
        "A.1, rule 13",
        _WRITER,
        "self.pending.strip(self._replacements, carry=True)",
        "self.pending.strip(self._replacements)",
        f"{_TEST_WRITER}::"
        "test_what_settles_while_a_change_is_written_is_sent_to_the_replacement_that_its_fragment_names",
    ),
    mutant(
        "a_change_undoes_what_repair_did",
        "rule 13",
        _WRITER,
        "self.pending.changed_fragments(self._replacements, self.metadata.fragments)",
        "self.pending.changed_fragments(self._replacements, self.pending.fragments)",
        f"{_TEST_WRITER}::test_a_conflict_with_repair_of_an_older_fragment_keeps_what_repair_did",
        also=(
            Edit(
                _WRITER,
                "wanted = self.metadata.with_ensemble(last.first_entry, last.ensemble, self._new_token())",
                "wanted = attrs.evolve(self.metadata, fragments=fragments, token=self._new_token())",
            ),
        ),
    ),
    mutant(
        "a_change_applied_late_is_not_known",
        "rule 14",
        _WRITER,
        "elif stored.last_fragment in self._attempts:",
        "elif self._attempts and stored.last_fragment == self._attempts[-1]:",
        f"{_TEST_WRITER}::test_a_former_attempt_that_is_applied_late_is_known_too",
    ),
    mutant(
        "a_change_whose_answer_was_lost_is_not_known",
        "rule 14",
        _WRITER,
        "elif stored.last_fragment in self._attempts:",
        "elif stored.token == b'never':",
        f"{_TEST_WRITER}::test_a_write_whose_answer_was_lost_is_known_by_what_is_stored",
    ),
    mutant(
        "somebody_elses_fragment_is_adopted",
        "A.1",
        _WRITER,
        "elif stored.last_fragment != self.pending.fragments[-1]:",
        "elif stored.fragments == ():",
        f"{_TEST_WRITER}::test_a_last_fragment_that_somebody_else_wrote_kills_the_writer",
    ),
    mutant(
        "an_unknown_outcome_is_told_as_a_failure",
        "A.7",
        _WRITER,
        "if last_entry > self.lac:",
        "if last_entry > self.pending.lap:",
        f"{_TEST_WRITER}::"
        "test_where_recovery_kept_entries_that_were_pending_their_outcome_is_unknown_and_not_a_failure",
    ),
    mutant(
        "a_close_elsewhere_is_a_success",
        "A.1, C CloseAgree",
        _WRITER,
        "if self._closing is _Closing.WANTED and stored.last_entry == self.close_at:",
        "if self._closing is _Closing.WANTED:",
        f"{_TEST_WRITER}::test_a_close_that_a_recoverer_did_elsewhere_is_not",
    ),
    mutant(
        "a_close_does_not_wait_for_the_change_under_way",
        "A.1",
        _WRITER,
        "        if self.intent is None:\n            self._form_intent()  # Else",
        "        if True:\n            self._form_intent()  # Else",
        f"{_TEST_WRITER}::test_a_close_during_a_change_waits_for_its_outcome_and_keeps_the_new_fragment",
    ),
    mutant(
        "a_guaranteed_ledger_closes_at_the_ack_quorum",
        "A.4 rule 4, D18, T18",
        _WRITER,
        "if self.replication.guaranteed and not self.is_drained:",
        "if self.replication.guaranteed and self._queue:",
        f"{_TEST_WRITER}::test_a_guaranteed_ledger_closes_only_when_everything_is_on_its_full_write_quorum",
    ),
    mutant(
        "a_guaranteed_ledger_is_closed_when_bookies_are_missing",
        "D18",
        _WRITER,
        '        if self.replication.guaranteed:\n            self._fail(AppendUnknown(f"{reason};',
        '        if not self.replication.write_quorum:\n            self._fail(AppendUnknown(f"{reason};',
        f"{_TEST_WRITER}::"
        "test_without_enough_bookies_a_guaranteed_ledger_is_left_open_with_an_unknown_outcome",
    ),
    mutant(
        "two_changes_at_once",
        "A.1 queue rule 3",
        _WRITER,
        "if self.failure is not None or self._replacements or self._closing is not _Closing.NO:",
        "if self.failure is not None or self._closing is not _Closing.NO:",
        f"{_TEST_WRITER}::test_while_a_change_is_written_no_other_begins",
    ),
    mutant(
        "a_failure_after_the_ack_quorum_is_ignored",
        "rule 12",
        _WRITER,
        "        return self.pending.on_bookie_failed(bookie)",
        "        return not self.pending.is_drained and self.pending.on_bookie_failed(bookie)",
        f"{_TEST_WRITER}::test_a_failure_after_the_ack_quorum_starts_a_change_like_any_other",
    ),
    mutant(
        "a_dead_writer_goes_on_sending",
        "A.1, rule 15",
        _WRITER,
        "        if self.failure is not None:\n            return []\n"
        "        return self.pending.take_sends(bookie)",
        "        return self.pending.take_sends(bookie)",
        f"{_TEST_WRITER}::test_nothing_is_sent_formed_or_acknowledged_by_a_dead_writer",
    ),
)

RECOVERY = (
    mutant(
        "time_out_is_negative",
        "A.0, T04",
        _RECOVERY,
        "                elif answer.failed:\n                    unknowns += 1\n",
        "                elif answer.failed:\n                    negatives += 1\n",
        f"{_TEST_RECOVERY}::test_a_time_out_is_never_a_negative",
        f"{_SCHEDULE}[T04]",
    ),
    mutant(
        "limbo_is_negative",
        "A.3, T10",
        _RECOVERY,
        "                    negatives += 1\n                else:\n                    unknowns += 1\n",
        "                    negatives += 1\n                else:\n                    negatives += 1\n",
        f"{_TEST_RECOVERY}::test_limbo_is_never_a_negative",
        f"{_SCHEDULE}[T10]",
    ),
    mutant(
        "a_cut_answer_is_negative",
        "A.0",
        _RECOVERY,
        "                    pass  # Cut short before this entry: the next round asks again.\n",
        "                    negatives += 1\n",
        f"{_TEST_RECOVERY}::test_what_a_cut_answer_does_not_reach_is_not_a_negative",
    ),
    mutant(
        "negatives_counted_over_the_ensemble",
        "A.0, T02",
        _RECOVERY,
        "            for slot in replication.write_set(entry_id):\n",
        "            for slot in range(replication.ensemble):\n",
        f"{_TEST_RECOVERY}::"
        "test_a_bookie_is_asked_for_entries_of_its_write_sets_alone_and_every_entry_of_its_whole_write_set",
        f"{_SCHEDULE}[T02]",
        also=(
            Edit(
                _RECOVERY,
                "            for slot in replication.write_set(start):\n",
                "            for slot in range(replication.ensemble):\n",
            ),
        ),
    ),
    mutant(
        "one_negative_ends_the_ledger",
        "A.0, T03",
        _RECOVERY,
        "elif negatives >= replication.negative_quorum:",
        "elif negatives >= 1:",
        f"{_TEST_RECOVERY}::test_one_negative_too_few_is_no_verdict",
        f"{_SCHEDULE}[T03]",
    ),
    mutant(
        "an_ack_quorum_of_copies_is_needed",
        "D2, T27",
        _RECOVERY,
        "                payload = answer.found.get(entry_id)\n"
        "                if payload is not None:\n"
        "                    break\n",
        "                copy = answer.found.get(entry_id)\n"
        "                if copy is not None:\n"
        "                    copies += 1\n"
        "                    if copies == replication.ack_quorum:\n"
        "                        payload = copy\n"
        "                        break\n"
        "                    continue\n",
        f"{_TEST_RECOVERY}::test_one_copy_is_enough_to_recover_an_entry",
        f"{_SCHEDULE}[T27]",
        also=(
            Edit(
                _RECOVERY,
                "negatives = unknowns = outstanding = 0",
                "negatives = unknowns = outstanding = copies = 0",
            ),
        ),
    ),
    mutant(
        "a_private_change_is_written_during_recovery",
        "A.1, T12",
        _RECOVERY,
        "        self.pending.install(replacements, fragments)\n        self._maybe_close()\n",
        "        self.pending.install(replacements, fragments)\n"
        "        changed = attrs.evolve(self.metadata, fragments=fragments, token=self._new_token())\n"
        "        self.intent = MetadataIntent(changed, self.version)\n",
        f"{_TEST_RECOVERY}::test_a_private_change_is_published_by_the_closing_write_alone",
        f"{_SCHEDULE}[T12]",
    ),
    mutant(
        "reading_starts_at_the_first_entry_of_all",
        "D7, R-B3, T21",
        _RECOVERY,
        "self.start = self.frozen_lac = self.frozen.first_entry - 1  # The floor (R-B3).",
        "self.start = self.frozen_lac = NO_ENTRY",
        f"{_TEST_RECOVERY}::test_reading_starts_no_lower_than_the_last_fragment",
        f"{_SCHEDULE}[T21]",
    ),
    mutant(
        "reading_starts_after_the_lac_in_guaranteed_mode",
        "A.4 rule 6, T17",
        _RECOVERY,
        "self.start = max(self.start, lafr if self.replication.guaranteed else lac)",
        "self.start = max(self.start, lac)",
        f"{_TEST_RECOVERY}::test_in_guaranteed_mode_reading_starts_after_the_lafr",
        f"{_SCHEDULE}[T17]",
    ),
    mutant(
        "closed_before_the_write_back",
        "A.1, T19",
        _RECOVERY,
        "if self.phase is Phase.CLOSING and self.pending.is_drained and self.intent is None:",
        "if self.phase is Phase.CLOSING and self.intent is None:",
        f"{_TEST_RECOVERY}::test_closing_waits_until_every_write_back_has_its_ack_quorum",
        f"{_SCHEDULE}[T19]",
        also=(
            Edit(
                _RECOVERY,
                "        assert self.pending.settled >= self.last_recoverable, "
                '"closed only when written back (T19)"\n',
                "",
            ),
        ),
    ),
    mutant(
        "guaranteed_recovery_closes_at_the_ack_quorum",
        "A.4 rule 5",
        _RECOVERY,
        "if self.phase is Phase.CLOSING and self.pending.is_drained and self.intent is None:",
        "if self.phase is Phase.CLOSING and self.pending.lac == self.pending.lap and self.intent is None:",
        f"{_TEST_RECOVERY}::test_in_guaranteed_mode_closing_waits_for_the_full_write_quorum",
        also=(
            Edit(
                _RECOVERY,
                "assert self.pending.settled >= self.last_recoverable",
                "assert self.pending.lac >= self.last_recoverable",
            ),
        ),
    ),
    mutant(
        "recovery_adds_advance_the_lac",
        "D11, T25, T31",
        _RECOVERY,
        "        self.pending.on_add_ok(bookie, first, last)\n        if self.phase is Phase.READING",
        "        self.pending.on_add_ok(bookie, first, last)\n"
        "        self.frozen_lac = max(self.frozen_lac, self.pending.lac)\n"
        "        if self.phase is Phase.READING",
        f"{_TEST_RECOVERY}::test_write_backs_carry_the_lac_and_lafr_at_which_recovery_started",
        f"{_SCHEDULE}[T25]",
        f"{_SCHEDULE}[T31]",
    ),
    mutant(
        "recovery_adds_advance_the_lafr",
        "D11, T32",
        _RECOVERY,
        "return self.start if self.replication.guaranteed else NO_ENTRY",
        "return self.pending.lafr if self.replication.guaranteed else NO_ENTRY",
        f"{_TEST_RECOVERY}::test_write_backs_carry_the_lac_and_lafr_at_which_recovery_started",
        f"{_SCHEDULE}[T32]",
    ),
    mutant(
        "the_loser_of_the_closing_race_writes_again",
        "A.1, T20",
        _RECOVERY,
        "        elif stored.state is LedgerState.CLOSED:\n            self._finish(stored)",
        "        elif stored.state is LedgerState.CLOSED and (\n"
        "            self.phase is not Phase.CLOSING or stored.last_entry == self.last_recoverable\n"
        "        ):\n"
        "            self._finish(stored)",
        f"{_TEST_RECOVERY}::test_whoever_loses_the_closing_race_adopts_the_winners_end",
        f"{_SCHEDULE}[T20]",
        also=(
            Edit(
                _RECOVERY,
                "        elif stored.state is LedgerState.IN_RECOVERY and "
                "stored.last_fragment == self.frozen:\n",
                "        elif stored.last_fragment == self.frozen:\n"
                "            stored = attrs.evolve(stored, state=LedgerState.IN_RECOVERY, last_entry=None)\n",
            ),
        ),
    ),
    mutant(
        "a_joining_recoverer_bumps_the_version",
        "D9",
        _RECOVERY,
        "        elif metadata.state is LedgerState.OPEN:\n",
        "        elif self.intent is None:\n",
        f"{_TEST_RECOVERY}::test_joining_a_recovery_writes_nothing",
        also=(
            Edit(
                _LEDGER,
                'assert self.state is LedgerState.OPEN, "a recoverer that joins writes nothing (D9)"',
                "pass",
            ),
        ),
    ),
    mutant(
        "a_late_fence_moves_the_start",
        "A.1",
        _RECOVERY,
        "        if self.phase is not Phase.FENCING:\n"
        "            return  # The start is fixed; a late answer changes nothing.\n",
        "",
        f"{_TEST_RECOVERY}::test_a_fence_that_is_confirmed_after_reading_began_changes_nothing",
    ),
    mutant(
        "a_fence_that_timed_out_counts",
        "A.0",
        _RECOVERY,
        "        self._unfenced.add(slot)\n",
        "        self._unfenced.add(slot)\n"
        "        self.on_fence_ok(slot, NO_ENTRY, NO_ENTRY)\n        return\n",
        f"{_TEST_RECOVERY}::test_fencing_fails_exactly_when_some_write_set_has_an_ack_quorum_of_failures",
    ),
    mutant(
        "what_is_read_moves_with_the_private_ensemble",
        "A.1",
        _RECOVERY,
        "                bookie = self.frozen.ensemble[slot]\n",
        "                bookie = self.pending.ensemble[slot]\n",
        f"{_TEST_RECOVERY}::"
        "test_the_ensemble_that_is_read_is_the_one_of_the_metadata_even_after_a_private_change",
    ),
    mutant(
        "answers_of_former_rounds_are_looked_at",
        "A.0",
        _RECOVERY,
        "if self.phase is not Phase.READING or ask.round != self._round:",
        "if self.phase is not Phase.READING:",
        f"{_TEST_RECOVERY}::test_an_answer_for_a_former_round_is_not_looked_at",
    ),
    mutant(
        "an_entry_above_the_end_is_written_back",
        "A.1",
        _RECOVERY,
        "                self._end_at(entry_id - 1, recovered)\n                return\n            elif",
        "                above = [a.found[entry_id + 1] for a in self._answers.values() "
        "if entry_id + 1 in a.found]\n"
        "                self._end_at(entry_id - 1, [*recovered, *above[:1]])\n                return\n"
        "            elif",
        f"{_TEST_RECOVERY}::test_nothing_above_the_first_negative_is_written_back",
    ),
    mutant(
        "recovery_of_a_changed_ledger_goes_on",
        "A.1",
        _RECOVERY,
        "elif stored.state is LedgerState.IN_RECOVERY and stored.last_fragment == self.frozen:",
        "elif stored.state is LedgerState.IN_RECOVERY:",
        f"{_TEST_RECOVERY}::test_a_last_fragment_that_changed_under_recovery_ends_it",
    ),
    mutant(
        "the_closing_write_undoes_what_repair_did",
        "rule 13",
        _RECOVERY,
        "            *self.metadata.fragments[: self._frozen_count - 1],\n",
        "            *self.pending.fragments[: self._frozen_count - 1],\n",
        f"{_TEST_RECOVERY}::"
        "test_a_closing_write_that_conflicts_with_repair_of_an_older_fragment_is_tried_again_and_keeps_it",
    ),
    mutant(
        "a_recoverer_ignores_its_own_pins",
        "A.4 rule 3",
        _RECOVERY,
        "        return self.pending.replaceable(full_pinning=self._full_pinning)\n",
        "        return [slot.index for slot in self.pending.slots if slot.failed]\n",
        f"{_TEST_RECOVERY}::test_a_recoverer_pins_by_its_own_confirmations",
    ),
)

READING = (
    mutant(
        "one_negative_is_enough_for_a_reader",
        "A.0 regular read",
        _READER,
        "if said and all(what is _Said.ABSENT for what in said.values()):",
        "if any(what is _Said.ABSENT for what in said.values()):",
        f"{_TEST_READER}::test_one_bookie_that_does_not_know_leaves_the_entry_unavailable",
    ),
    mutant(
        "limbo_is_negative_to_a_reader",
        "A.3",
        _READER,
        "_Said.ABSENT if negative is Negative.ABSENT else _Said.UNKNOWN",
        "_Said.ABSENT",
        f"{_TEST_READER}::test_one_bookie_that_does_not_know_leaves_the_entry_unavailable",
    ),
    mutant(
        "damage_is_negative_to_a_reader",
        "rule 8",
        _READER,
        "            lane.said[ask.bookie] = _Said.DAMAGED\n",
        "            lane.said[ask.bookie] = _Said.ABSENT\n",
        f"{_TEST_READER}::test_a_copy_that_fails_its_digest_is_neither_yes_nor_no",
    ),
    mutant(
        "a_reader_asks_outside_the_write_set",
        "A.0 regular read",
        _READER,
        "                slots = replication.write_set(start)\n",
        "                slots = tuple(range(replication.ensemble))\n",
        f"{_TEST_READER}::test_a_bookie_is_asked_only_for_entries_that_it_holds",
    ),
)

MUTANTS = (*QUORUMS, *METADATA, *PENDING, *WRITER, *RECOVERY, *READING)
