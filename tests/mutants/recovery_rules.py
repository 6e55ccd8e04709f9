"""Mutants of the recovery of ledgers."""

from __future__ import annotations

from tests.mutants.mutant import Change, mutant

_TEST_RECOVERY = "tests/unit/test_recovery_core.py"
_SCHEDULE = (
    "tests/scenarios/test_schedules.py::test_production_code_does_not_take_the_step_that_breaks_a_ledger"
)

MUTANTS = (
    mutant(
        "time_out_is_negative",
        "A.0, T04",
        "LedgerRecovery._judge",
        """
        if answer.failed:
            unknowns += 1
            silent.append(self.frozen.ensemble[slot])
        elif entry_id > answer.through:
            pass  # Cut short before this entry: the next round asks again.
        elif answer.negative is Negative.ABSENT:
            negatives += 1
        else:
            unknowns += 1
        """,
        """
        if answer.failed:
            negatives += 1
            silent.append(self.frozen.ensemble[slot])
        elif entry_id > answer.through:
            pass  # Cut short before this entry: the next round asks again.
        elif answer.negative is Negative.ABSENT:
            negatives += 1
        else:
            unknowns += 1
        """,
        f"{_TEST_RECOVERY}::test_a_time_out_is_never_a_negative",
        f"{_SCHEDULE}[T04]",
    ),
    mutant(
        "limbo_is_negative",
        "A.3, T10",
        "LedgerRecovery._judge",
        """
        if answer.negative is Negative.ABSENT:
            negatives += 1
        else:
            unknowns += 1
        """,
        """
        if answer.negative is Negative.ABSENT:
            negatives += 1
        else:
            negatives += 1
        """,
        f"{_TEST_RECOVERY}::test_limbo_is_never_a_negative",
        f"{_SCHEDULE}[T10]",
    ),
    mutant(
        "a_cut_answer_is_negative",
        "A.0",
        "LedgerRecovery._judge",
        "pass  # Cut short before this entry: the next round asks again.",
        "negatives += 1",
        f"{_TEST_RECOVERY}::test_what_a_cut_answer_does_not_reach_is_not_a_negative",
    ),
    mutant(
        "negatives_counted_over_the_ensemble",
        "A.0, T02",
        "LedgerRecovery._ask_round",
        "replication.write_set(start)",
        "range(replication.ensemble)",
        f"{_TEST_RECOVERY}::"
        "test_a_bookie_is_asked_for_entries_of_its_write_sets_alone_and_every_entry_of_its_whole_write_set",
        f"{_SCHEDULE}[T02]",
        also=(
            Change("LedgerRecovery._judge", "replication.write_set(entry_id)", "range(replication.ensemble)"),
        ),
    ),
    mutant(
        "one_negative_ends_the_ledger",
        "A.0, T03",
        "LedgerRecovery._judge",
        "negatives >= replication.negative_quorum",
        "negatives >= 1",
        f"{_TEST_RECOVERY}::test_one_negative_too_few_is_no_verdict",
        f"{_SCHEDULE}[T03]",
    ),
    mutant(
        "an_ack_quorum_of_copies_is_needed",
        "D2, T27",
        "LedgerRecovery._judge",
        "negatives = unknowns = outstanding = 0",
        "negatives = unknowns = outstanding = copies = 0",
        f"{_TEST_RECOVERY}::test_one_copy_is_enough_to_recover_an_entry",
        f"{_SCHEDULE}[T27]",
        also=(
            Change(
                "LedgerRecovery._judge",
                "payload = answer.found.get(entry_id)",
                "copy = answer.found.get(entry_id)",
            ),
            Change(
                "LedgerRecovery._judge",
                """
            if payload is not None:
                break
            """,
                """
            if copy is not None:
                copies += 1
                if copies == replication.ack_quorum:
                    payload = copy
                    break
                continue
            """,
            ),
        ),
    ),
    mutant(
        "a_private_change_is_written_during_recovery",
        "A.1, T12",
        "LedgerRecovery.change_ensemble",
        "self._maybe_close()",
        """
        changed = attrs.evolve(self.metadata, fragments=fragments, token=self._new_token())
        self.intent = MetadataIntent(changed, self.version)
        """,
        f"{_TEST_RECOVERY}::test_a_private_change_is_published_by_the_closing_write_alone",
        f"{_SCHEDULE}[T12]",
    ),
    mutant(
        "bookies_are_replaced_while_the_closing_write_is_under_way",
        "A.1",
        "LedgerRecovery.replaceable",
        "self.phase not in (Phase.READING, Phase.CLOSING) or self.pending.is_drained",
        "self.phase not in (Phase.READING, Phase.CLOSING)",
        f"{_TEST_RECOVERY}::test_a_bookie_that_fails_while_nothing_is_to_be_written_is_not_replaced",
    ),
    mutant(
        "recovery_gives_up_before_everybody_has_answered",
        "A.0",
        "LedgerRecovery._judge",
        "negatives + unknowns == replication.write_quorum",
        "negatives + unknowns >= replication.write_quorum - 1",
        f"{_TEST_RECOVERY}::"
        "test_the_verdict_on_an_entry_is_that_of_the_rule_after_every_answer_and_every_time_out",
    ),
    mutant(
        "recovery_gives_up_as_soon_as_there_cannot_be_a_negative_quorum",
        "A.0, D2",
        "LedgerRecovery._judge",
        "negatives + unknowns == replication.write_quorum",
        "unknowns > replication.write_quorum - replication.negative_quorum",
        f"{_TEST_RECOVERY}::"
        "test_the_verdict_on_an_entry_is_that_of_the_rule_after_every_answer_and_every_time_out",
    ),
    mutant(
        "reading_starts_at_the_first_entry_of_all",
        "D7, R-B3, T21",
        "LedgerRecovery._begin_fencing",
        "self.frozen.first_entry - 1",
        "NO_ENTRY",
        f"{_TEST_RECOVERY}::test_reading_starts_no_lower_than_the_last_fragment",
        f"{_SCHEDULE}[T21]",
    ),
    mutant(
        "reading_starts_after_the_lac_in_guaranteed_mode",
        "A.4 rule 6, T17",
        "LedgerRecovery.on_fence_ok",
        "max(self.start, lafr if self.replication.guaranteed else lac)",
        "max(self.start, lac)",
        f"{_TEST_RECOVERY}::test_in_guaranteed_mode_reading_starts_after_the_lafr",
        f"{_SCHEDULE}[T17]",
    ),
    mutant(
        "closed_before_the_write_back",
        "A.1, T19",
        "LedgerRecovery._maybe_close",
        "self.phase is Phase.CLOSING and self.pending.is_drained and self.intent is None",
        "self.phase is Phase.CLOSING and self.intent is None",
        f"{_TEST_RECOVERY}::test_closing_waits_until_every_write_back_has_its_ack_quorum",
        f"{_SCHEDULE}[T19]",
        also=(
            Change(
                "LedgerRecovery._form_closing_intent",
                """
            assert self.pending.settled >= self.last_recoverable, (
                "the ledger is closed only after all entries were written back (T19)"
            )
            """,
                "",
            ),
        ),
    ),
    mutant(
        "guaranteed_recovery_closes_at_the_ack_quorum",
        "A.4 rule 5",
        "LedgerRecovery._maybe_close",
        "self.phase is Phase.CLOSING and self.pending.is_drained and self.intent is None",
        "self.phase is Phase.CLOSING and self.pending.lac == self.pending.lap and self.intent is None",
        f"{_TEST_RECOVERY}::test_in_guaranteed_mode_closing_waits_for_the_full_write_quorum",
        also=(Change("LedgerRecovery._form_closing_intent", "self.pending.settled", "self.pending.lac"),),
    ),
    mutant(
        "recovery_adds_advance_the_lac",
        "D11, T25, T31",
        "LedgerRecovery.on_add_ok",
        "self.pending.on_add_ok(bookie, first, last)",
        """
        self.pending.on_add_ok(bookie, first, last)
        self.frozen_lac = max(self.frozen_lac, self.pending.lac)
        """,
        f"{_TEST_RECOVERY}::test_write_backs_carry_the_lac_and_lafr_at_which_recovery_started",
        f"{_SCHEDULE}[T25]",
        f"{_SCHEDULE}[T31]",
    ),
    mutant(
        "recovery_adds_advance_the_lafr",
        "D11, T32",
        "LedgerRecovery.frozen_lafr",
        "self.start",
        "self.pending.lafr",
        f"{_TEST_RECOVERY}::test_write_backs_carry_the_lac_and_lafr_at_which_recovery_started",
        f"{_SCHEDULE}[T32]",
    ),
    mutant(
        "the_loser_of_the_closing_race_writes_again",
        "A.1, T20",
        "LedgerRecovery.on_metadata_read",
        "stored.state is LedgerState.CLOSED",
        """
        stored.state is LedgerState.CLOSED and (
            self.phase is not Phase.CLOSING or stored.last_entry == self.last_recoverable
        )
        """,
        f"{_TEST_RECOVERY}::test_whoever_loses_the_closing_race_adopts_the_winners_end",
        f"{_SCHEDULE}[T20]",
        also=(
            Change(
                "LedgerRecovery.on_metadata_read",
                "stored.state is LedgerState.IN_RECOVERY and stored.last_fragment == self.frozen",
                "stored.last_fragment == self.frozen",
            ),
            Change(
                "LedgerRecovery.on_metadata_read",
                "self.metadata, self.version = stored, version",
                """
            stored = attrs.evolve(stored, state=LedgerState.IN_RECOVERY, last_entry=None)
            self.metadata, self.version = stored, version
            """,
            ),
        ),
    ),
    mutant(
        "a_joining_recoverer_bumps_the_version",
        "D9",
        "LedgerRecovery._begin",
        "metadata.state is LedgerState.OPEN",
        "self.intent is None",
        f"{_TEST_RECOVERY}::test_joining_a_recovery_writes_nothing",
        also=(
            Change(
                "LedgerMetadata.in_recovery",
                'assert self.state is LedgerState.OPEN, "a recoverer that joins writes nothing (D9)"',
                "",
            ),
        ),
    ),
    mutant(
        "a_late_fence_moves_the_start",
        "A.1",
        "LedgerRecovery.on_fence_ok",
        """
        if self.phase is not Phase.FENCING:
            return  # The start is fixed; a late answer changes nothing.
        """,
        "",
        f"{_TEST_RECOVERY}::test_a_fence_that_is_confirmed_after_reading_began_changes_nothing",
    ),
    mutant(
        "a_fence_that_timed_out_counts",
        "A.0",
        "LedgerRecovery.on_fence_failed",
        "possible = [i for i in range(self.replication.ensemble) if i not in self._unfenced]",
        """
        self.on_fence_ok(slot, NO_ENTRY, NO_ENTRY)
        return
        possible = [i for i in range(self.replication.ensemble) if i not in self._unfenced]
        """,
        f"{_TEST_RECOVERY}::test_fencing_fails_exactly_when_some_write_set_has_an_ack_quorum_of_failures",
    ),
    mutant(
        "what_is_read_moves_with_the_private_ensemble",
        "A.1",
        "LedgerRecovery._ask_round",
        "self.frozen",
        "self.pending",
        f"{_TEST_RECOVERY}::"
        "test_the_ensemble_that_is_read_is_the_one_of_the_metadata_even_after_a_private_change",
    ),
    mutant(
        "answers_of_former_rounds_are_looked_at",
        "A.0",
        "LedgerRecovery._answer_to",
        "self.phase is not Phase.READING or ask.round != self._round",
        "self.phase is not Phase.READING",
        f"{_TEST_RECOVERY}::test_an_answer_for_a_former_round_is_not_looked_at",
    ),
    mutant(
        "an_entry_above_the_end_is_written_back",
        "A.1",
        "LedgerRecovery._judge",
        """
        if negatives >= replication.negative_quorum:
            self._end_at(entry_id - 1, recovered)
            return
        elif negatives + unknowns == replication.write_quorum:
            if self._accept_loss and (self._accept_unreachable or not silent):
                self.lost_from = entry_id
                self._end_at(entry_id - 1, recovered)
                return
            self._write_back(recovered)
            why = (
                f"no bookie can say whether entry {entry_id} exists ({negatives} absent, {unknowns} "
                f"unknown)"
            )
            if silent:
                why += f"; no answer from {', '.join(silent)}, which may hold the entry"
            self._fail(RecoveryFailed(self.ledger_id, why))
            return
        else:
            self._write_back(recovered)
            if not outstanding:
                self._ask_more()
            return
        """,
        """
        if negatives >= replication.negative_quorum:
            above = [
                a.found[entry_id + 1] for a in self._answers.values() if entry_id + 1 in a.found
            ]
            self._end_at(entry_id - 1, [*recovered, *above[:1]])
            return
        elif negatives + unknowns == replication.write_quorum:
            if self._accept_loss and (self._accept_unreachable or not silent):
                self.lost_from = entry_id
                self._end_at(entry_id - 1, recovered)
                return
            self._write_back(recovered)
            why = (
                f"no bookie can say whether entry {entry_id} exists ({negatives} absent, {unknowns} "
                f"unknown)"
            )
            if silent:
                why += f"; no answer from {', '.join(silent)}, which may hold the entry"
            self._fail(RecoveryFailed(self.ledger_id, why))
            return
        else:
            self._write_back(recovered)
            if not outstanding:
                self._ask_more()
            return
        """,
        f"{_TEST_RECOVERY}::test_nothing_above_the_first_negative_is_written_back",
    ),
    mutant(
        "recovery_of_a_changed_ledger_goes_on",
        "A.1",
        "LedgerRecovery.on_metadata_read",
        "stored.state is LedgerState.IN_RECOVERY and stored.last_fragment == self.frozen",
        "stored.state is LedgerState.IN_RECOVERY",
        f"{_TEST_RECOVERY}::test_a_last_fragment_that_changed_under_recovery_ends_it",
    ),
    mutant(
        "the_closing_write_undoes_what_repair_did",
        "rule 13",
        "LedgerRecovery._form_closing_intent",
        "self.metadata.fragments",
        "self.pending.fragments",
        f"{_TEST_RECOVERY}::"
        "test_a_closing_write_that_conflicts_with_repair_of_an_older_fragment_is_tried_again_and_keeps_it",
    ),
    mutant(
        "a_recoverer_ignores_its_own_pins",
        "A.4 rule 3",
        "LedgerRecovery.replaceable",
        "self.pending.replaceable(full_pinning=self._full_pinning)",
        "[slot.index for slot in self.pending.slots if slot.failed]",
        f"{_TEST_RECOVERY}::test_a_recoverer_pins_by_its_own_confirmations",
    ),
)
