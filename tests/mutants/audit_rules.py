"""Mutants of the audit of all copies: what is found, what is no false alarm, what a bookie says it has."""

from __future__ import annotations

from tests.mutants.mutant import equivalent, mutant

_TEST = "tests/unit/test_copies.py"
_TEST_COMPARISON = "tests/unit/test_comparison.py"
_TEST_FIVE = (
    "tests/scenarios/test_one_comparison_of_copies.py::test_five_users_say_the_same_of_one_broken_cluster"
)
_TEST_ABSURD = "tests/scenarios/test_absurd_metadata.py"
_TEST_BOOKIES = "tests/spark/test_audit_of_bookies.py"
_TEST_VERDICTS = "tests/spark/test_audit_verdicts.py"
_TEST_DAMAGE = "tests/spark/test_audit_damage.py"
_TEST_PACE = "tests/spark/test_audit_pace.py"
_TEST_PLAN = "tests/spark/test_audit_plan.py"
_TEST_SCRUB = "tests/storage/test_scrub_request.py"
_RULE = "rule 24"

MUTANTS = (
    mutant(
        "audit_ends_at_a_log_whose_archive_it_may_not_list",
        "A.6",
        "audit_plan._files",
        "registry.survey(wanted, on_denied=denied.append)",
        "registry.survey(wanted)",
        f"{_TEST_DAMAGE}::test_records_that_zookeeper_does_not_list_are_a_row_and_the_rest_has_a_verdict",
    ),
    mutant(
        "audit_says_nothing_of_a_log_whose_archive_it_may_not_list",
        "A.6",
        "audit_plan._files",
        "[Stray(ARCHIVES, why, is_denied=True) for why in denied]",
        "[]",
        f"{_TEST_DAMAGE}::test_records_that_zookeeper_does_not_list_are_a_row_and_the_rest_has_a_verdict",
    ),
    mutant(
        "audit_fails_if_it_has_more_copies_than_a_long_can_count",
        _RULE,
        "audit_job._counts",
        'table.copies.cast("decimal(19,0)")',
        "table.copies",
        "tests/spark/test_spark_audit.py::test_the_command_counts_the_copies_of_absurd_ledgers",
    ),
    mutant(
        "audit_ends_at_a_node_that_is_no_ledgers",
        _RULE,
        "plan_audit",
        "await registry.survey()",
        "(await registry.list(), ())",
        f"{_TEST_DAMAGE}::test_a_node_that_is_no_records_is_a_row_and_the_rest_has_a_verdict",
    ),
    mutant(
        "audit_says_nothing_of_a_node_that_is_no_ledgers",
        _RULE,
        "LedgerRegistry.survey",
        'strays.append(f"{LEDGERS}/{high}/{middle}/{low}: {cause}")',
        "del cause",
        f"{_TEST_DAMAGE}::test_a_node_that_is_no_records_is_a_row_and_the_rest_has_a_verdict",
    ),
    mutant(
        "audit_says_nothing_of_a_node_that_is_no_archives",
        "A.6",
        "ArchiveRegistry.survey",
        'strays.append(f"{ARCHIVES}/{component}: {cause}")',
        "del cause",
        f"{_TEST_DAMAGE}::test_a_node_that_is_no_records_is_a_row_and_the_rest_has_a_verdict",
    ),
    mutant(
        "audit_ends_at_a_log_with_an_impossible_name",
        _RULE,
        "_Audit._report_log",
        "(MetadataCorrupt, InvalidArgument, PermissionDenied)",
        "(MetadataCorrupt, PermissionDenied)",
        f"{_TEST_DAMAGE}::test_a_node_that_is_no_records_is_a_row_and_the_rest_has_a_verdict",
    ),
    mutant(
        "audit_does_not_plan_past_a_log_with_an_impossible_name",
        _RULE,
        "_listed.look",
        "(MetadataCorrupt, InvalidArgument, PermissionDenied)",
        "(MetadataCorrupt, PermissionDenied)",
        f"{_TEST_DAMAGE}::test_a_node_that_is_no_records_is_a_row_and_the_rest_has_a_verdict",
    ),
    mutant(
        "audit_does_not_miss_the_name_of_a_log",
        _RULE,
        "plan_audit",
        "sorted(set(records).difference(logs.incarnations.values()))",
        "[]",
        f"{_TEST_DAMAGE}::test_a_log_that_lost_its_name_is_a_row",
    ),
    mutant(
        "bookie_with_an_impossible_id_keeps_everybody_out",
        _RULE,
        "model.bookie._fields",
        """
        try:
            check_bookie_id(bookie_id)
        except InvalidArgument as cause:
            raise MetadataCorrupt(f"{what}: {cause}") from cause
        """,
        "check_bookie_id(bookie_id)",
        f"{_TEST_DAMAGE}::test_a_node_that_is_no_records_is_a_row_and_the_rest_has_a_verdict",
    ),
    mutant(
        "audit_does_not_pause",
        _RULE,
        "_Audit._answer",
        "await share.rest()",
        "",
        f"{_TEST_PACE}::test_a_busy_bookie_gets_fewer_requests",
    ),
    mutant(
        "audit_pauses_as_long_after_a_slow_answer_as_after_a_quick_one",
        _RULE,
        "TimeShare.on_worked",
        "seconds * self._pause",
        "0.1 * self._pause",
        f"{_TEST_PACE}::test_a_busy_bookie_gets_fewer_requests",
    ),
    mutant(
        "audit_asks_a_bookie_several_things_at_once",
        _RULE,
        "TimeShare.turn",
        """
        async with self._lock:
            yield
        """,
        "yield",
        f"{_TEST_PACE}::test_a_busy_bookie_gets_fewer_requests",
    ),
    mutant(
        "audit_waits_for_a_silent_bookie_at_each_ledger",
        _RULE,
        "_Audit._answer",
        """
        if answer is None:
            self._silent_until[ask.bookie] = now + _SILENT_S
        else:
            share.on_worked(now - begun, now)
        """,
        "share.on_worked(now - begun, now)",
        f"{_TEST_PACE}::test_a_bookie_that_does_not_answer_keeps_the_task_once_and_not_at_each_ledger",
    ),
    mutant(
        "audit_plan_reads_all_metadata",
        _RULE,
        "_look_at_some",
        "-(-len(items) // at_most)",
        "1",
        f"{_TEST_PLAN}::test_a_plan_has_all_ledgers_and_reads_the_metadata_of_some",
    ),
    mutant(
        "audit_plan_weighs_every_group_by_its_first_ledger",
        _RULE,
        "_look_at_some",
        "int(number * _GOLDEN_RATIO % 1 * len(group))",
        "0",
        f"{_TEST_PLAN}::test_ledgers_of_several_logs_in_turn_are_weighed_by_more_than_one_of_the_logs",
    ),
    mutant(
        "audit_plan_believes_in_ledgers_that_somebody_names",
        _RULE,
        "plan_audit",
        "len(wanted) if options.ledgers else _WEIGHED",
        "1",
        f"{_TEST_PLAN}::test_a_plan_has_all_ledgers_and_reads_the_metadata_of_some",
    ),
    mutant(
        "audit_takes_a_listed_ledger_without_metadata_for_deleted",
        _RULE,
        "_Audit._is_clean",
        "not ledger.incarnations or await self._is_archived(ledger)",
        "True",
        f"{_TEST_VERDICTS}::test_a_listed_ledger_without_metadata_is_lost",
    ),
    mutant(
        "audit_calls_lost_what_retention_has_taken",
        _RULE,
        "_Audit._report_lost",
        "metadata is not None and metadata.index_of(ledger.ledger_id) is not None",
        "True",
        f"{_TEST_VERDICTS}::test_what_retention_takes_meanwhile_is_not_lost",
    ),
    mutant(
        "audit_calls_a_file_missing_that_is_being_retired",
        "A.6",
        "_Audit._report_file",
        "is_readable and (metadata is None or metadata.index_of(file.ledger_id) is None)",
        "False",
        f"{_TEST_VERDICTS}::test_what_is_archived_retired_or_merged_meanwhile_is_no_fault",
    ),
    mutant(
        "audit_does_not_look_at_the_size_of_a_file",
        "A.6",
        "check_end.look",
        "size != record.file_bytes",
        "False",
        f"{_TEST_VERDICTS}::test_a_file_that_is_not_what_was_recorded_is_told_and_the_others_are_looked_at",
    ),
    mutant(
        "audit_ends_at_a_ledger_that_it_may_not_read",
        _RULE,
        "_Audit._report",
        "(MetadataCorrupt, PermissionDenied)",
        "MetadataCorrupt",
        f"{_TEST_BOOKIES}::test_a_ledger_that_the_audit_may_not_read_is_a_row_and_the_rest_has_a_verdict",
    ),
    mutant(
        "check_of_copies_walks_through_a_hole_of_any_length",
        _RULE,
        "CopyCheck._judge",
        "nearest > self._window_end(self._high + 1)",
        "False",
        f"{_TEST}::test_behind_a_long_hole_the_windows_are_short_again",
    ),
    mutant(
        "check_of_copies_scrubs_a_hole_of_any_length",
        _RULE,
        "CopyCheck._next_window",
        "self._scrub and self._was_empty",
        "False",
        f"{_TEST}::test_behind_a_long_hole_the_windows_are_short_again",
    ),
    mutant(
        "check_of_copies_does_not_scrub_what_it_found_behind_a_hole",
        _RULE,
        "CopyCheck._look",
        "self._is_searching and self._names_any()",
        "False",
        f"{_TEST}::test_far_apart_copies_are_compared_as_if_they_were_neighbours",
    ),
    mutant(
        "check_of_copies_keeps_its_long_window_behind_a_hole",
        _RULE,
        "CopyCheck._shorten",
        "min(self._high, max(before, self._window_end(self._low)))",
        "self._high",
        f"{_TEST}::test_behind_a_long_hole_the_windows_are_short_again",
    ),
    mutant(
        "audit_does_not_plan_past_a_log_that_it_may_not_read",
        _RULE,
        "_listed.look",
        "(MetadataCorrupt, InvalidArgument, PermissionDenied)",
        "(MetadataCorrupt, InvalidArgument)",
        f"{_TEST_DAMAGE}::test_a_record_that_zookeeper_does_not_show_is_a_row_and_the_rest_has_a_verdict",
    ),
    mutant(
        "audit_does_not_plan_past_a_ledger_that_it_may_not_read",
        _RULE,
        "plan_audit.look",
        "(MetadataCorrupt, PermissionDenied)",
        "MetadataCorrupt",
        f"{_TEST_DAMAGE}::test_a_record_that_zookeeper_does_not_show_is_a_row_and_the_rest_has_a_verdict",
    ),
    mutant(
        "audit_ends_at_a_log_that_it_may_not_read",
        _RULE,
        "_Audit._report_log",
        "(MetadataCorrupt, InvalidArgument, PermissionDenied)",
        "(MetadataCorrupt, InvalidArgument)",
        f"{_TEST_DAMAGE}::test_a_record_that_zookeeper_does_not_show_is_a_row_and_the_rest_has_a_verdict",
    ),
    mutant(
        "audit_ends_at_a_file_that_it_may_not_read",
        _RULE,
        "_Audit._look_at_file",
        "(MetadataCorrupt, PermissionDenied)",
        "MetadataCorrupt",
        f"{_TEST_DAMAGE}::test_a_record_that_zookeeper_does_not_show_is_a_row_and_the_rest_has_a_verdict",
    ),
    mutant(
        "audit_calls_a_record_that_it_may_not_read_damaged",
        _RULE,
        "_kind_of",
        "DENIED if isinstance(failure, PermissionDenied) else kind",
        "kind",
        f"{_TEST_DAMAGE}::test_a_record_that_zookeeper_does_not_show_is_a_row_and_the_rest_has_a_verdict",
    ),
    mutant(
        "verification_calls_every_lacking_entry_unreadable",
        _RULE,
        "_Verifying.run",
        "copies == write_quorum",
        "copies",
        "tests/shells/test_client_reader.py::test_verification_tells_missing_unreadable_and_damaged_entries",
    ),
    mutant(
        "faulty_copies_are_counted_by_the_first_write_set",
        _RULE,
        "count_lacking",
        "counts[entry_id % ensemble]",
        "counts[0]",
        f"{_TEST}::test_the_faulty_copies_of_each_entry_are_counted_as_one_by_one",
    ),
    mutant(
        "bookies_own_check_walks_through_a_hole_of_any_length",
        _RULE,
        "Copying.is_sound",
        "not answer.report.sound",
        "False",
        f"{_TEST_ABSURD}::test_a_bookie_that_checks_its_copies_skips_holes_and_no_copy",
    ),
    mutant(
        "bookie_in_limbo_skips_copies_behind_a_hole",
        _RULE,
        "LedgerPeers.first_held",
        "min(found, max(first, listed.pairs[0][0]))",
        "found",
        f"{_TEST_ABSURD}::test_a_bookie_in_limbo_copies_what_is_behind_a_hole",
    ),
    mutant(
        "bookie_in_limbo_gives_up_what_a_silent_bookie_may_have",
        _RULE,
        "LedgerPeers.first_held",
        "listed is None or listed.negative is not Negative.ABSENT",
        "listed is not None and listed.negative is not Negative.ABSENT",
        f"{_TEST_ABSURD}::test_only_what_all_other_bookies_deny_is_skipped",
    ),
    mutant(
        "auditor_steps_down_at_a_node_that_is_no_ledgers",
        _RULE,
        "_survey",
        "await registry.survey()",
        "(await registry.list(), ())",
        f"{_TEST_ABSURD}::test_a_node_that_is_no_ledgers_does_not_keep_the_auditor_from_the_ledgers",
    ),
    mutant(
        "bookie_is_removed_although_a_stray_node_may_name_it",
        _RULE,
        "decommission.decommission",
        "MetadataCorrupt(found.strays[0])",
        "InvalidArgument(found.strays[0])",
        f"{_TEST_ABSURD}::test_a_node_that_is_no_ledgers_may_name_a_bookie_that_is_to_be_removed",
    ),
    mutant(
        "check_of_entries_ends_at_a_ledger_that_it_may_not_read",
        _RULE,
        "check_entries.look",
        "(MetadataCorrupt, PermissionDenied)",
        "MetadataCorrupt",
        f"{_TEST_ABSURD}::test_the_check_of_entries_goes_on_after_a_ledger_that_it_may_not_read",
    ),
    mutant(
        "repair_audit_says_nothing_of_a_ledger_that_it_may_not_read",
        _RULE,
        "check_entries.look",
        "on_unchecked(ledger_id, why)",
        "pass",
        f"{_TEST_ABSURD}::test_the_check_of_entries_goes_on_after_a_ledger_that_it_may_not_read",
    ),
    mutant(
        "auditor_steps_down_at_a_record_that_it_may_not_read",
        _RULE,
        "pass_over_metadata.look",
        "(MetadataCorrupt, PermissionDenied)",
        "MetadataCorrupt",
        f"{_TEST_ABSURD}::test_the_auditor_goes_on_after_a_record_that_zookeeper_does_not_show",
    ),
    mutant(
        "repair_audit_that_did_not_check_a_ledger_ends_with_0",
        _RULE,
        "repair_audit",
        'sum(not fields["bookies"] for fields in found)',
        "0",
        "tests/integration/test_cli_lost_entries.py"
        "::test_a_list_of_ledgers_has_all_of_them_although_a_node_is_no_ledgers",
    ),
    mutant(
        "plan_of_absurd_counts_is_one_part",
        _RULE,
        "_split",
        "max(1, count * SCAN_PIECES_MAX // total)",
        "1",
        "tests/spark/test_scan_plan.py::test_absurd_numbers_of_a_log_record_or_an_option_give_a_bounded_plan",
    ),
    mutant(
        "error_repeats_a_name_of_any_length",
        _RULE,
        "_quoted",
        'f"{value!r:.300}"',
        "repr(value)",
        "tests/unit/test_codecs_agree.py::test_whatever_a_field_of_a_record_holds_it_is_read_or_refused_in_a_few_words",
    ),
    mutant(
        "json_lists_every_entry_of_an_absurd_ledger",
        _RULE,
        "cli.ledger._ids",
        "entry_ids[:_IDS_LISTED]",
        "entry_ids[:1]",
        f"{_TEST_ABSURD}::test_json_lists_some_entries_and_all_ranges",
    ),
    mutant(
        "sweep_ends_at_a_node_that_is_no_ledgers",
        "A.6",
        "_look_over",
        "await ledgers.survey()",
        "(await ledgers.list(), ())",
        f"{_TEST_ABSURD}::test_a_sweep_goes_on_after_what_it_cannot_read",
    ),
    mutant(
        "list_of_ledgers_ends_at_a_node_that_is_no_ledgers",
        "A.6",
        "ledger_list",
        "await LedgerRegistry(cluster.store, cluster.client.environment).survey()",
        "(await LedgerRegistry(cluster.store, cluster.client.environment).list(), ())",
        "tests/integration/test_cli_lost_entries.py"
        "::test_a_list_of_ledgers_has_all_of_them_although_a_node_is_no_ledgers",
    ),
    mutant(
        "audit_counts_a_copy_that_was_not_seen_as_left",
        _RULE,
        "CopyCheck._add",
        "other not in faulty",
        "other != slot",
        f"{_TEST}::test_each_hole_is_one_row_with_the_copies_that_are_left",
    ),
    mutant(
        "audit_calls_what_limbo_does_not_know_missing",
        "A.3",
        "Holdings._faults_of_told",
        "FaultKind.LIMBO if self.in_limbo else FaultKind.MISSING",
        "FaultKind.MISSING",
        f"{_TEST}::test_who_does_not_answer_and_who_may_have_lost_it_are_kinds_of_their_own",
    ),
    mutant(
        "audit_calls_who_does_not_answer_empty",
        _RULE,
        "Holdings.faults",
        "FaultKind.UNREACHABLE",
        "FaultKind.MISSING",
        f"{_TEST}::test_who_does_not_answer_and_who_may_have_lost_it_are_kinds_of_their_own",
    ),
    mutant(
        "audit_takes_a_tie_for_a_majority",
        _RULE,
        "CopyCheck._compare_entries",
        "votes[0][0] if votes[0][1] > votes[1][1] else None",
        "votes[0][0]",
        f"{_TEST}::test_the_outvoted_copy_diverges_and_without_a_majority_all_do",
    ),
    equivalent(
        "audit_compares_bookies_of_other_write_sets",
        _RULE,
        "CopyCheck._suspects",
        "self._members(remainder) if self._classes > 1 else self._answering()",
        "self._answering()",
        _TEST,
        because="a block too many is looked at entry by entry, where write sets are told apart again",
    ),
    mutant(
        "audit_compares_counts_and_not_digests",
        _RULE,
        "CopyCheck._suspects",
        "side.sums[block, remainder]",
        "side.sums[block, remainder][0]",
        f"{_TEST}::test_the_outvoted_copy_diverges_and_without_a_majority_all_do",
    ),
    mutant(
        "audit_asks_only_for_the_first_part_of_a_list",
        _RULE,
        "CopyCheck._next_ask",
        "side.through >= self._high",
        "side.through >= self._low",
        f"{_TEST}::test_exactly_the_holes_that_were_made_are_found",
    ),
    mutant(
        "audit_believes_an_answer_to_something_else",
        _RULE,
        "CopyAnswer.is_about",
        "first <= ranges[0][0] and ranges[-1][1] <= self.through",
        "True",
        f"{_TEST}::test_an_answer_about_something_else_counts_as_none",
    ),
    mutant(
        "comparison_takes_limbo_for_certain",
        "rule 8, A.3",
        "FaultKind.is_certain",
        "(FaultKind.MISSING, FaultKind.CORRUPT)",
        "(FaultKind.MISSING, FaultKind.CORRUPT, FaultKind.LIMBO)",
        f"{_TEST_COMPARISON}::test_only_absence_and_damage_are_certain",
    ),
    mutant(
        "comparison_takes_silence_for_certain",
        "rule 8",
        "FaultKind.is_certain",
        "(FaultKind.MISSING, FaultKind.CORRUPT)",
        "(FaultKind.MISSING, FaultKind.CORRUPT, FaultKind.UNREACHABLE)",
        f"{_TEST_COMPARISON}::test_only_absence_and_damage_are_certain",
        "tests/unit/test_repair_backfill.py::test_all_that_somebody_has_is_given_once_and_the_rest_is_told",
    ),
    mutant(
        "comparison_forgets_that_a_bookie_was_in_limbo",
        "A.3",
        "Holdings.on_answer",
        "self.in_limbo or absence(answer.negative) is FaultKind.LIMBO",
        "absence(answer.negative) is FaultKind.LIMBO",
        f"{_TEST_COMPARISON}::test_who_was_in_limbo_in_one_answer_was_in_limbo_in_all",
    ),
    mutant(
        "comparison_believes_a_bookie_that_does_not_know_what_it_lost",
        "A.3, D27",
        "comparison.absence",
        "negative is Negative.ABSENT",
        "negative in Negative",
        f"{_TEST_COMPARISON}::test_limbo_changes_only_what_is_not_named",
        _TEST_FIVE,
    ),
    mutant(
        "comparison_takes_damage_for_absence",
        "rule 8",
        "Holdings._faults_of_told",
        "(FaultKind.CORRUPT, unsound)",
        "(FaultKind.MISSING, unsound)",
        f"{_TEST_COMPARISON}::test_damage_is_no_absence",
    ),
    mutant(
        "comparison_drops_what_was_told_before_the_silence",
        _RULE,
        "Holdings.faults",
        "min(share.last, self.through)",
        "share.first - 1 if self.is_silent else min(share.last, self.through)",
        f"{_TEST_COMPARISON}::test_silence_changes_only_what_was_not_told",
    ),
    mutant(
        "comparison_goes_on_asking_who_is_silent",
        _RULE,
        "compare_lists.answer",
        "ask.bookie in silent",
        "False",
        "tests/shells/test_client_copies.py::test_a_comparison_of_lists_asks_who_is_silent_once",
    ),
    mutant(
        "comparison_lets_every_user_look_at_an_open_fragment",
        "rule 20",
        "CopyCheck._next_window",
        "end = self._tail",
        "end = self._fragment.first_entry if self._tail is None else self._tail",
        f"{_TEST_COMPARISON}::test_the_last_fragment_of_an_open_ledger_is_looked_at_only_by_who_says_so",
    ),
    mutant(
        "verification_does_not_look_at_an_open_fragment",
        _RULE,
        "_Verifying.run",
        "CopyCheck(metadata, scrub=False, tail=end)",
        "CopyCheck(metadata, scrub=False)",
        "tests/shells/test_client_reader.py::test_verification_of_an_open_ledger_sees_what_is_below_the_write_quorum",
    ),
    mutant(
        "read_copies_takes_silence_for_absence",
        "rule 8",
        "read_copies",
        "through = first - 1",
        "",
        "tests/shells/test_client_reader.py::test_verification_tells_missing_unreadable_and_damaged_entries",
    ),
    mutant(
        "verification_believes_limbo_where_a_ledger_ends",
        "A.3",
        "_Verifying._find_tail",
        "stock.in_limbo",
        "False",
        "tests/scenarios/test_one_comparison_of_copies.py"
        "::test_what_only_bookies_in_limbo_say_of_the_end_of_an_open_ledger_is_not_known",
    ),
    mutant(
        "repair_is_done_though_a_bookie_is_in_limbo",
        "A.3, rule 24",
        "LedgerRepair._complete",
        """
        if in_limbo:
            left.append(f"it is not known which copies {', '.join(in_limbo)} has: in limbo")
        """,
        "",
        _TEST_FIVE,
    ),
    mutant(
        "repair_copies_what_limbo_does_not_know",
        "A.3, D27",
        "LedgerRepair._complete",
        "fault.kind is FaultKind.MISSING",
        "fault.kind in (FaultKind.MISSING, FaultKind.LIMBO)",
        _TEST_FIVE,
    ),
    mutant(
        "ledger_is_archived_while_a_bookie_is_in_limbo",
        "A.6",
        "LedgerFaults.doubtful",
        "(*self.incomplete, *self.damaged, *self.silent, *self.in_limbo)",
        "(*self.incomplete, *self.damaged, *self.silent)",
        "tests/scenarios/test_one_comparison_of_copies.py"
        "::test_a_bookie_in_limbo_and_a_silent_one_have_nothing_that_a_ledger_could_be_archived_on",
    ),
    mutant(
        "audit_reports_what_it_saw_once",
        _RULE,
        "_Audit._is_clean",
        """
        if look.faults:
            return False
        await self._tell(ledger, look, [])
        """,
        "await self._tell(ledger, look, look.faults)",
        f"{_TEST_BOOKIES}::test_what_is_deleted_or_repaired_between_two_looks_is_no_row",
    ),
    mutant(
        "audit_reports_what_was_deleted_meanwhile",
        _RULE,
        "_Audit._report",
        """
        if now is not None:
            await self._tell(
                ledger, look, [fault for fault in look.faults if is_due(now[0], fault)]
            )
        """,
        """
        now = now or (look.metadata, 0)
        if now is not None:
            await self._tell(
                ledger, look, [fault for fault in look.faults if is_due(now[0], fault)]
            )
        """,
        f"{_TEST_BOOKIES}::test_metadata_are_read_again_after_the_second_look",
    ),
    mutant(
        "audit_reports_what_was_moved_meanwhile",
        _RULE,
        "_Audit._report",
        "self._tell(ledger, look, [fault for fault in look.faults if is_due(now[0], fault)])",
        "self._tell(ledger, look, look.faults)",
        f"{_TEST_BOOKIES}::test_metadata_are_read_again_after_the_second_look",
    ),
    mutant(
        "audit_does_not_wait_for_copies_on_their_way",
        _RULE,
        "_Audit._check_all",
        "await trio.sleep(self._part.settle_s)",
        "",
        f"{_TEST_BOOKIES}::test_a_copy_on_its_way_is_no_hole",
    ),
    mutant(
        "audit_takes_an_old_view_of_the_metadata",
        _RULE,
        "_Audit._check_all",
        "await self._client.store.sync()",
        "",
        f"{_TEST_BOOKIES}::test_a_ledger_that_a_replica_of_the_store_has_not_heard_of_is_not_taken_for_deleted",
    ),
    mutant(
        "copies_that_differ_are_copied_over",
        _RULE,
        "Ailments.add",
        "kind == FaultKind.CORRUPT.value",
        "kind != FaultKind.UNREACHABLE.value",
        f"{_TEST_BOOKIES}::test_copies_that_differ_are_told_and_left_to_a_person",
    ),
    mutant(
        "scrub_calls_an_entry_sound_where_one_copy_of_it_is",
        "rule 8",
        "Examination._merge",
        "frozenset().union(*(found.damaged for found in self._found))",
        "frozenset[int]()",
        _TEST_SCRUB,
    ),
    mutant(
        "scrub_says_what_it_did_not_read_is_absent",
        "rule 8",
        "Reader._examine",
        "upcoming[0].first - 1",
        "horizon",
        f"{_TEST_SCRUB}::test_what_is_on_disk_is_read_in_as_many_requests_as_it_takes_and_says_the_same",
    ),
    mutant(
        "scrub_says_nothing_of_a_frame_that_cannot_be_read",
        "rule 8",
        "Reader._examine",
        """
        try:
            entries = decode_run(run, content)
        except WireError:
            examination.add_unreadable(run)
        else:
            examination.add(run, entries, entries.damaged())
        """,
        """
        try:
            entries = decode_run(run, content)
        except WireError:
            pass
        else:
            examination.add(run, entries, entries.damaged())
        """,
        f"{_TEST_SCRUB}::test_of_a_frame_that_cannot_be_read_all_of_its_span_is_unsound",
    ),
    mutant(
        "scrub_adds_digests_up_without_their_places",
        "rule 17",
        "Examination._slices",
        "sum(map(mul, part, weights))",
        "sum(part)",
        _TEST_SCRUB,
    ),
)
