"""Mutants of the core of repair: what may be touched, what is copied, what is written."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_TEST = "tests/unit/test_repair_core.py"
_FILLING_TEST = "tests/unit/test_repair_backfill.py"
_FILING_TEST = "tests/scenarios/test_filing_for_repair.py"
_CLOSES_BELOW = f"{_FILING_TEST}::test_rule_24_a_writer_that_closes_below_the_write_quorum_files_the_repair"
_IN_DOUBT = f"{_FILING_TEST}::test_rule_24_a_writer_that_does_not_know_whether_it_closed_files_the_repair"
_WRITER_DIES = (
    f"{_FILING_TEST}::test_rule_24_a_writer_that_dies_at_its_close_has_filed_the_copies_that_were_lost"
)
_RECOVERED = f"{_FILING_TEST}::test_rule_24_a_ledger_that_is_recovered_below_its_write_quorum_is_filed"
_WHICHEVER = (
    "test_rule_24_any_bookie_of_a_recovered_ledger_may_lack_entries_whichever_its_task_names[afterwards]"
)
_QUEUE_TEST = "tests/scenarios/test_repair_queue.py"
_TENURE_TEST = "tests/unit/test_tenure.py"
_ROT = "tests/shells/test_corruption_repair.py"
_BEHIND = "test_what_rotted_behind_the_end_of_a_ledger_keeps_nothing_from_being_stored_again"
_MODEL = "tests/model/test_model.py::test_no_order_of_events_breaks_an_invariant"

MUTANTS = (
    mutant(
        "a_rotten_run_is_asked_for_behind_the_end",
        "23",
        "CorruptionRepair._restore",
        "min(run.last, end)",
        "run.last",
        f"{_ROT}::test_what_rotted_behind_the_end_of_a_ledger_keeps_nothing_from_being_stored_again",
    ),
    mutant(
        "a_rotten_run_that_begins_behind_the_end_stays_rotten",
        "8",
        "CorruptionRepair._restore",
        "metadata.last_entry is not None and run.first > metadata.last_entry",
        "False",
        f"{_ROT}::{_BEHIND}",
    ),
    mutant(
        "a_rotten_run_that_goes_on_behind_the_end_stays_rotten",
        "8",
        "CorruptionRepair._restore",
        "attrs.evolve(metadata, last_entry=max(end, run.last))",
        "metadata",
        f"{_ROT}::{_BEHIND}",
    ),
    mutant(
        "the_last_entry_of_a_ledger_is_forgotten_if_it_rots",
        "8",
        "CorruptionRepair._restore",
        "run.first > metadata.last_entry",
        "run.first >= metadata.last_entry",
        f"{_ROT}::{_BEHIND}",
    ),
    mutant(
        "a_rotten_run_of_a_stale_copy_stays_rotten",
        "8",
        "CorruptionRepair._restore",
        "ids = list(range(run.first, run.last + 1))",
        "raise _NotNow('the metadata does not name this bookie')",
        f"{_ROT}::test_what_rotted_in_a_copy_that_the_metadata_does_not_name_is_stored_again",
    ),
    mutant(
        "a_rotten_run_of_a_stale_copy_is_forgotten",
        "8",
        "CorruptionRepair._restore",
        "run.first > metadata.last_entry",
        "(run.first > metadata.last_entry or not shares(metadata, self._bookie_id))",
        f"{_ROT}::test_what_rotted_in_a_copy_that_the_metadata_does_not_name_is_stored_again",
    ),
    mutant(
        "filing_is_left_out_after_a_close_below_the_write_quorum",
        "rule 24",
        "LedgerWriter._file_for_repair",
        """
        lacking = self._slots.lacking(end)
        """,
        """
        lacking = [] if self._slots.lacking(end) else ["b0"]
        """,
        _IN_DOUBT,
        f"{_FILING_TEST}::test_rule_24_a_ledger_on_its_whole_write_quorum_is_not_filed",
    ),
    mutant(
        "a_close_files_no_copies_that_were_lost",
        "rule 24",
        "LedgerWriter._attempt",
        '{"incomplete": lost} if lost else None',
        "None",
        _CLOSES_BELOW,
        f"{_WRITER_DIES}[closed-back]",
    ),
    mutant(
        "a_close_files_only_bookies_that_are_away",
        "rule 24",
        "SlotSinks.given_up",
        "(sink.tenure.has_gap if sink.connection.is_connected else sink.tenure.lacks_any)(last)",
        "not sink.connection.is_connected and sink.tenure.lacks_any(last)",
        f"{_WRITER_DIES}[closed-back]",
    ),
    mutant(
        "a_close_files_only_bookies_that_confirmed_later_entries",
        "rule 24",
        "SlotSinks.given_up",
        "(sink.tenure.has_gap if sink.connection.is_connected else sink.tenure.lacks_any)(last)",
        "sink.tenure.has_gap(last)",
        f"{_WRITER_DIES}[closed-away]",
    ),
    mutant(
        "a_close_does_not_file_bookies_that_left",
        "rule 24",
        "SlotSinks.given_up",
        "self._left_short | present",
        "present",
        f"{_WRITER_DIES}[closed-replaced]",
    ),
    mutant(
        "what_the_close_filed_is_filed_again",
        "rule 24",
        "LedgerWriter._file_for_repair",
        "bookie not in (self._filed or ())",
        "True",
        f"{_FILING_TEST}::test_rule_24_a_task_that_a_worker_ends_after_the_close_is_not_made_again",
    ),
    mutant(
        "filing_is_left_out_after_a_close_in_doubt",
        "rule 24",
        "LedgerWriter._file_for_repair",
        "end is None",
        "not self._core.is_closed or end is None",
        _IN_DOUBT,
    ),
    mutant(
        "filing_is_left_out_after_a_recovery",
        "rule 24",
        "_Recovery._write",
        "wanted.is_closed and wanted.last_entry != NO_ENTRY and may_lack_copies(wanted.replication)",
        "not wanted.is_closed",
        f"{_FILING_TEST}::test_rule_24_a_recoverer_that_dies_at_its_close_has_filed_the_repair",
    ),
    mutant(
        "filing_is_left_out_if_another_recoverer_closed_it",
        "rule 24",
        "recover_ledger",
        "core.metadata.token not in shell.filed",
        "not shell.filed",
        f"{_FILING_TEST}::test_rule_24_a_ledger_that_another_recoverer_closes_first_is_filed",
    ),
    mutant(
        "a_task_that_a_worker_ends_meanwhile_counts_as_filed",
        "rule 24",
        "repair_tasks.filing",
        "return operation",
        "return operation if isinstance(operation, Create) else None",
        f"{_FILING_TEST}::test_rule_24_a_task_that_a_worker_ends_before_the_close_is_made_again",
    ),
    mutant(
        "filing_does_not_wait_for_late_copies",
        "rule 24",
        "LedgerWriter._file_for_repair",
        "self._slots.expects_more(end)",
        "False",
        f"{_FILING_TEST}::test_rule_24_a_copy_that_is_confirmed_after_the_close_counts",
    ),
    mutant(
        "filing_may_make_the_close_fail",
        "rule 24",
        "repair_tasks.file_for_repair",
        "LedgerLogError",
        "ZeroDivisionError",
        f"{_FILING_TEST}::test_rule_24_a_close_succeeds_if_the_ledger_cannot_be_filed[refused]",
    ),
    mutant(
        "filing_has_no_deadline",
        "rule 24",
        "repair_tasks.file_for_repair",
        "trio.move_on_after(FILING_TIMEOUT_S)",
        "trio.CancelScope()",
        f"{_FILING_TEST}::test_rule_24_a_close_succeeds_if_the_ledger_cannot_be_filed[hanging]",
    ),
    mutant(
        "tenure_takes_forgotten_ranges_for_confirmed",
        "rule 24",
        "Tenure.lacks_any",
        "self._confirmed.reach(self._first_held())",
        "max((high for _, high in self._confirmed.ranges()), default=self._first - 1)",
        f"{_TENURE_TEST}::test_so_many_gaps_that_some_are_forgotten_are_still_gaps",
    ),
    mutant(
        "tenure_of_a_striped_slot_takes_other_entries_for_gaps",
        "rule 24",
        "Tenure.__init__",
        "replication.is_striped",
        "not replication.is_striped",
        f"{_TENURE_TEST}::test_a_striped_slot_that_confirms_each_of_its_entries_alone_lacks_nothing",
    ),
    mutant(
        "repair_is_done_though_a_bookie_is_away",
        "rule 24",
        "LedgerRepair._complete",
        """
        if away:
            left.append(f"it is not known which copies {', '.join(away)} has: not registered")
        """,
        "",
        _CLOSES_BELOW,
        _RECOVERED,
    ),
    mutant(
        "repair_of_a_task_without_names_asks_nobody_who_is_away",
        "rule 24",
        "LedgerRepair._complete",
        "bookie in task.incomplete or task.is_about_all",
        "bookie in task.incomplete",
        _RECOVERED,
    ),
    mutant(
        "a_task_that_gets_names_is_no_longer_about_all",
        "rule 24",
        "RepairTask.merged",
        'self.asks_all or found.get("asks_all", False)',
        "False",
        f"{_FILING_TEST}::{_WHICHEVER}",
    ),
    mutant(
        "a_finding_that_the_task_has_already_changes_nothing",
        "rule 22",
        "repair_tasks.post_task.write",
        "operation, is_news = await _wanted(store, environment, ledger_id, **found)",
        """
        operation, is_news = await _wanted(store, environment, ledger_id, **found)
        if not is_news:
            return False
        """,
        f"{_QUEUE_TEST}::test_a_task_whose_finding_is_found_again_while_it_is_worked_on_is_not_removed",
    ),
    mutant(
        "a_denied_read_ends_the_process_that_copies",
        "tasks record failures",
        "_Shell._carry_out",
        "LedgerLogError",
        "ZeroDivisionError",
        "tests/scenarios/test_repair_that_is_crossed.py::"
        "test_copying_without_the_right_to_read_is_refused_without_a_group",
    ),
    mutant(
        "open_last_fragment_is_surveyed_for_copying",
        "rule 20",
        "ledgerlog.repair.core.repair.survey",
        "Work.RECOVER",
        "Work.COPY",
        f"{_TEST}::test_a_survey_tells_which_fragments_name_lost_bookies_and_what_may_be_done",
        f"{_TEST}::test_rule_20_the_last_fragment_of_a_ledger_that_is_not_closed_is_not_touched",
        _MODEL,
    ),
    mutant(
        "slot_without_entries_counts_as_lost",
        "rule 21",
        "repair._holds_any",
        "any(replication.holds(slot, entry_id) for entry_id in range(fragment.first_entry, stop + 1))",
        """
        True or any(
            replication.holds(slot, entry_id)
            for entry_id in range(fragment.first_entry, stop + 1)
        )
        """,
        f"{_TEST}::test_rule_21_a_slot_that_a_short_striped_fragment_left_empty_lost_nothing",
        f"{_TEST}::test_rule_21_an_empty_last_fragment_whose_bookies_are_all_gone_is_repaired_by_its_names_alone",
    ),
    mutant(
        "striped_slot_is_judged_by_the_first_entry_alone",
        "rules 21, 24",
        "repair._holds_any",
        "min(end, fragment.first_entry + replication.ensemble - 1)",
        "min(end, fragment.first_entry)",
        f"{_TEST}::test_everything_that_the_lost_slots_hold_is_copied_and_nothing_else",
    ),
    mutant(
        "one_round_is_taken_for_the_fragment",
        "rule 24",
        "FragmentRepair._look",
        "self.end",
        "self.fragment.first_entry",
        f"{_TEST}::test_everything_that_the_lost_slots_hold_is_copied_and_nothing_else",
    ),
    mutant(
        "new_bookie_is_named_before_its_copies_are_durable",
        "rule 23, A.5",
        "FragmentRepair._go_on",
        "not self._copies",
        "self._copies is not None",
        f"{_TEST}::test_new_names_are_written_once_every_copy_is_durable",
        _MODEL,
    ),
    mutant(
        "fragment_with_an_entry_that_nobody_has_is_renamed",
        "rules 8, 20",
        "FragmentRepair._look",
        "self._fail(read.failure)",
        """
        self._read, self._todo = None, []
        self._go_on()
        """,
        f"{_TEST}::test_what_all_others_lack_fails_the_repair_and_nothing_is_written",
    ),
    mutant(
        "copies_carry_the_end_of_their_fragment",
        "rule 23",
        "FragmentRepair.__init__",
        "self.lac = metadata.surely_committed",
        "self.lac = end",
        f"{_TEST}::test_rule_23_copies_carry_the_end_of_a_closed_ledger_or_all_before_the_last_fragment",
    ),
    mutant(
        "copies_carry_a_lafr",
        "rule 23, C LafrTruth",
        "FragmentRepair.__init__",
        "NO_ENTRY",
        "self.lac if NO_ENTRY else NO_ENTRY",
        f"{_TEST}::test_rule_23_copies_carry_the_end_of_a_closed_ledger_or_all_before_the_last_fragment",
    ),
    mutant(
        "repair_writes_over_what_it_did_not_read",
        "rule 13",
        "FragmentRepair._form_intent",
        "self.metadata",
        "self._base",
        f"{_TEST}::test_rule_13_a_conflict_with_the_owners_change_keeps_what_he_wrote",
        _MODEL,
    ),
    mutant(
        "repair_takes_the_slot_of_whoever_is_there",
        "rules 13, 14",
        "FragmentRepair.on_metadata_read",
        "ensemble[slot] == old and new not in ensemble",
        "ensemble[slot] == old or new not in ensemble",
        f"{_TEST}::test_a_repair_that_another_overtook_with_other_bookies_is_over",
    ),
    mutant(
        "who_does_not_answer_denies",
        "rule 8",
        "Holdings.is_doubtful",
        "self.is_silent or self.in_limbo",
        "self.in_limbo",
        f"{_FILLING_TEST}::test_what_somebody_does_not_answer_for_is_unavailable_and_holds_up_nothing",
    ),
    mutant(
        "who_is_in_limbo_denies_what_it_does_not_list",
        "rule 8, D27",
        "Holdings.is_doubtful",
        "self.is_silent or self.in_limbo",
        "self.is_silent",
        f"{_FILLING_TEST}::test_rule_8_who_is_in_limbo_denies_nothing",
    ),
    mutant(
        "long_hole_is_filled_entry_by_entry",
        "rule 19",
        "Backfill.take_asks",
        "bookie in lane.entries.get(last + self._stride, ())",
        "bookie in () and lane.entries.get(last + self._stride, ())",
        f"{_FILLING_TEST}::test_a_huge_range_is_read_in_batches_and_not_entry_by_entry",
    ),
    mutant(
        "filling_reads_on_whatever_is_on_its_way",
        "rule 19",
        "Backfill.take_asks",
        "self._copies.is_full",
        "False",
        f"{_FILLING_TEST}::test_reading_pauses_while_so_many_bytes_are_on_their_way",
    ),
    mutant(
        "damaged_copy_is_asked_for_again_and_again",
        "rule 8",
        "Backfill._without",
        "bookie in sources",
        "bookie in sources[1:]",
        f"{_FILLING_TEST}::test_rule_8_a_damaged_copy_is_had_from_another_or_is_none",
    ),
    mutant(
        "lost_answer_of_a_repair_is_not_settled",
        "rule 14",
        "FragmentRepair.on_metadata_read",
        "all(ensemble[slot] == new for slot, (_, new) in slots.items())",
        "not slots",
        f"{_TEST}::test_a_write_whose_answer_was_lost_is_known_by_what_is_stored",
    ),
)
