"""Mutants of what is written to a log as whole ledgers: once, by one leader, swept in time; and of scans."""

from __future__ import annotations

from tests.mutants.mutant import Change, mutant

_TEST = "tests/shells/test_log_splice.py"
_TEST_SEVERAL = "tests/shells/test_splices_of_several_writers.py"
_TEST_LEADER = "tests/unit/test_leader_splices.py"
_TEST_COMMIT = "tests/spark/test_spark_commit.py"
_TEST_STREAM = "tests/spark/test_spark_stream.py"
_TEST_READING = "tests/spark/test_spark_reading.py"

MUTANTS = (
    mutant(
        "a_splice_that_may_have_happened_is_denied",
        "rule 14",
        "Splice._staged_refusal",
        "ledger is None and self.was_tried",
        "False",
        "tests/shells/test_log_splice.py"
        "::test_a_splice_without_producer_that_was_truncated_before_its_answer_is_settled_is_not_denied",
    ),
    mutant(
        "batch_that_is_there_is_spliced_again",
        "A.6",
        "Splice._is_there",
        "commit.batch <= mark.batch",
        "commit.batch < mark.batch",
        _TEST,
    ),
    mutant(
        "lost_answer_of_a_splice_without_a_producer_is_tried_again",
        "A.6",
        "Splice._is_there",
        "return self._is_ours()",
        "return False",
        f"{_TEST}::test_a_transaction_whose_answer_is_lost_is_settled_by_reading",
    ),
    mutant(
        "commit_without_a_producer_took_effect_only_while_all_of_it_is_there",
        "A.6",
        "Splice._is_ours",
        "any",
        "all",
        f"{_TEST}::test_a_commit_whose_first_ledger_was_truncated_before_its_answer_is_settled_took_effect",
        also=(
            Change(
                "Splice._is_ours",
                "(ledger.is_spliced for ledger in self.ledgers.values())",
                """
            (
                each.ledger_id in self.ledgers and self.ledgers[each.ledger_id].is_spliced
                for each in self._commit.staged
            )
            """,
            ),
        ),
    ),
    mutant(
        "checkpoint_that_was_deleted_passes_for_done",
        "A.6",
        "Splice._is_there",
        "mark is not None and mark.source == commit.source and commit.batch <= mark.batch",
        "mark is not None and commit.batch <= mark.batch",
        f"{_TEST}::test_the_traps_are_errors_that_say_so",
    ),
    mutant(
        "run_that_was_followed_takes_the_log_back",
        "A.6",
        "Splice._followed",
        "mark is not None and commit.run in mark.former",
        "mark is not None and False",
        f"{_TEST}::test_of_two_runs_on_one_checkpoint_the_older_is_told",
    ),
    mutant(
        "run_that_was_followed_takes_the_others_batch_for_its_own",
        "A.6",
        "Splice._doubt",
        "None if may_be_ours else self._followed()",
        "None",
        f"{_TEST}::test_a_run_that_was_followed_is_told_also_where_the_other_has_a_batch_of_that_number",
    ),
    mutant(
        "batch_of_a_log_that_is_gone_passes_for_done",
        "A.6",
        "Splice.on_read",
        """
        if metadata is None:
            # A log's record is deleted first, then its marks and ledgers. Without the record they mean
            # nothing.
            self._fail(LogNotFound(self._name))
            return
        """,
        """
        if metadata is None and not self._is_there():
            self._fail(LogNotFound(self._name))
            return
        """,
        f"{_TEST}::test_what_is_left_of_a_log_that_is_gone_passes_for_no_batch",
    ),
    mutant(
        "splice_leaves_a_silent_leaders_epoch_as_it_is",
        "A.6",
        "LogMetadata.spliced",
        "max(self.epoch, 1) if counts is None else self.epoch + 1",
        "max(self.epoch, 1)",
        f"{_TEST_SEVERAL}::test_a_leader_that_does_not_answer_is_deposed_and_its_late_transaction_does_nothing",
    ),
    mutant(
        "splice_deposes_every_other_producer",
        "A.6",
        "LogMetadata.spliced",
        "max(self.epoch, 1) if counts is None else self.epoch + 1",
        "self.epoch + 1",
        f"{_TEST_SEVERAL}::test_the_batches_of_two_producers_alternate_and_the_epoch_stays",
    ),
    mutant(
        "splice_deposes_a_live_leader",
        "A.6",
        "Splice.on_read",
        "self.need = SpliceNeed.ASK",
        "self._go_on()",
        f"{_TEST_SEVERAL}::test_the_leader_splices_between_its_records_and_goes_on",
    ),
    mutant(
        "leader_that_does_not_answer_is_asked_for_ever",
        "A.6",
        "Splice.on_unanswered",
        "self._fall_silent()",
        "",
        f"{_TEST_LEADER}::test_a_process_asks_a_leader_again_only_if_another_one_leads",
    ),
    mutant(
        "leader_that_never_splices_is_asked_for_ever",
        "A.6",
        "Splice.on_asked",
        "self._answers >= _ANSWERS_MAX",
        "self._answers >= 100",
        f"{_TEST_LEADER}::test_a_leader_that_answers_and_never_splices_is_taken_over_from",
    ),
    mutant(
        "leader_does_not_move_the_mark",
        "A.6",
        "SpliceDesk.write",
        "splice_operations(admitted.core, admitted.commit, version)",
        """
        (
            each
            for each in splice_operations(admitted.core, admitted.commit, version)
            if "splices/" not in each.path
        )
        """,
        f"{_TEST_SEVERAL}::test_a_leader_that_is_killed_at_any_write_of_a_splice_leaves_the_batch_once",
    ),
    mutant(
        "leader_splices_a_request_that_was_withdrawn",
        "A.6",
        "SpliceDesk.write",
        """
        [
            *splice_operations(admitted.core, admitted.commit, version),
            Delete(request_path(self._incarnation, admitted.token), admitted.version),
        ]
        """,
        "splice_operations(admitted.core, admitted.commit, version)",
        f"{_TEST_SEVERAL}::test_a_request_that_is_withdrawn_while_the_leader_acts_is_not_spliced",
    ),
    mutant(
        "leader_sends_on_while_it_splices",
        "A.6",
        "LogLeader._send_due",
        "core.failure is None and not core.chain.is_holding",
        "core.failure is None",
        f"{_TEST_SEVERAL}::test_records_that_wait_for_a_splice_keep_their_order_and_a_condition_that_fails_is_told",
    ),
    mutant(
        "leader_gives_the_offsets_of_spliced_records_again",
        "A.6",
        "AppendQueue.skip_to",
        "self.next_offset = self.durable_offset = offset",
        "pass",
        f"{_TEST_SEVERAL}::test_the_leader_splices_between_its_records_and_goes_on",
    ),
    mutant(
        "condition_that_a_splice_breaks_is_passed_over",
        "A.6",
        "AppendQueue.skip_to",
        "self._recheck()",
        "pass",
        f"{_TEST_LEADER}::test_queued_records_go_behind_the_spliced_ones_and_a_condition_that_fails_is_told",
    ),
    mutant(
        "refused_transaction_of_a_leader_is_repeated",
        "A.6",
        "LeaderChain.on_record",
        "version != self.version or is_refused",
        "version != self.version",
        f"{_TEST_LEADER}::test_a_refused_transaction_is_admitted_again_and_the_leader_goes_on_without_it",
    ),
    mutant(
        "ledgers_that_are_listed_before_the_splice_is_written_are_listed_twice",
        "A.6",
        "LeaderChain.on_record",
        "self._splice is not None",
        "self.is_holding and tried is not None",
        f"{_TEST_SEVERAL}::test_a_ledger_that_is_listed_while_the_leader_gets_ready_to_splice_it_is_refused",
    ),
    mutant(
        "leader_that_leaves_admits_a_splice_again",
        "A.6",
        "LeaderChain.finish",
        "self._splice, self._is_splice_refused = None, False",
        "self._splice = None",
        f"{_TEST_LEADER}::test_a_leader_that_leaves_while_a_splice_is_admitted_again_drops_it",
    ),
    mutant(
        "leader_that_leaves_drops_a_splice_for_which_its_ledger_is_closed",
        "A.6",
        "LeaderChain.finish",
        "not (self.is_holding and self._drained) and self._counts is None",
        "True",
        f"{_TEST_LEADER}::test_a_leader_that_leaves_drops_a_splice_unless_its_ledger_is_closed_for_it",
    ),
    mutant(
        "process_waits_for_a_leader_that_has_left",
        "A.6",
        "ask_leader.until_nobody_leads.look",
        "record is None or not record.open_segments",
        "False",
        f"{_TEST_SEVERAL}::test_a_splice_goes_on_by_itself_as_soon_as_the_leader_has_left",
    ),
    mutant(
        "appends_are_held_back_for_ever",
        "A.6",
        "ChainMaintenance._pause",
        "self._held_since is not None and now - self._held_since > LOG_SPLICE_HOLD_S",
        "False",
        f"{_TEST_SEVERAL}"
        "::test_a_leader_that_cannot_end_a_splice_gives_up_and_its_held_records_are_surely_not_written",
    ),
    mutant(
        "zombie_that_asked_a_leader_passes_for_done",
        "A.6",
        "Splice._doubt",
        "self.was_tried and not self._is_surely_not_ours()",
        "self.was_tried",
        f"{_TEST_SEVERAL}::test_a_run_that_is_followed_while_it_asks_is_told",
    ),
    mutant(
        "full_list_is_told_at_the_commit_only",
        "A.6",
        "stage",
        "metadata.check_room(room)",
        "",
        f"{_TEST}::test_a_list_that_is_full_is_told_before_a_task_writes_and_nothing_is_harmed",
    ),
    mutant(
        "checkpoint_that_was_put_back_passes_for_done",
        "A.6",
        "Splice._doubt",
        "commit.batch < mark.batch and commit.run != mark.run and commit.run not in mark.former",
        "False",
        f"{_TEST}::test_a_new_run_below_the_mark_is_told_both_numbers_and_writes_nothing",
    ),
    mutant(
        "run_that_is_late_with_its_own_batch_is_refused",
        "A.6",
        "Splice._doubt",
        "commit.batch < mark.batch and commit.run != mark.run and commit.run not in mark.former",
        "commit.batch < mark.batch and commit.run not in mark.former",
        f"{_TEST}::test_a_new_run_below_the_mark_is_told_both_numbers_and_writes_nothing",
    ),
    mutant(
        "batch_of_other_rows_passes_for_the_one_of_its_number",
        "A.6",
        "Splice._doubt",
        "commit.batch == mark.batch and mark.records not in (None, commit.records)",
        "False",
        f"{_TEST}::test_a_batch_with_the_marks_number_and_another_count_is_not_that_batch",
    ),
    mutant(
        "log_that_ends_before_the_mark_is_gone_on_with",
        "A.6",
        "Splice._put_back",
        "mark is None or mark.end_offset is None or mark.end_offset <= metadata.counted_end",
        "mark is None or True",
        f"{_TEST}::test_a_log_that_ends_before_the_mark_was_put_back",
    ),
    mutant(
        "transaction_that_arrives_while_it_is_settled_is_refused",
        "A.6",
        "Splice._is_there",
        "self.was_tried and self._is_ours()",
        "False",
        f"{_TEST}::test_a_transaction_that_arrives_while_it_is_settled_took_effect",
    ),
    mutant(
        "batches_that_are_missing_are_passed_over",
        "A.6",
        "Splice._refusal",
        "commit.producer is not None and commit.batch > expected and not commit.gaps",
        "commit.producer is not None and False",
        f"{_TEST}::test_the_traps_are_errors_that_say_so",
    ),
    mutant(
        "spliced_ledgers_are_not_labelled",
        "A.6",
        "attach.splice_operations",
        "ledger.metadata.with_labels(labels, record.token)",
        "ledger.metadata",
        _TEST,
    ),
    mutant(
        "second_attempt_deletes_what_the_first_has_spliced",
        "A.6",
        "Splice.garbage",
        "ledger_id not in self._listed",
        "True",
        "tests/unit/test_log_attach.py",
    ),
    mutant(
        "second_commit_deletes_ledgers_that_were_gathered_for_readers",
        "A.6",
        "Splice.garbage",
        "not self._was_found or self._is_ours()",
        "not self._was_found",
        "tests/unit/test_log_attach.py",
    ),
    mutant(
        "ledger_that_its_transaction_did_not_label_is_spliced_twice",
        "A.6",
        "Splice._staged_refusal",
        "ledger.is_spliced or staged.ledger_id in self._listed",
        "ledger.is_spliced",
        f"{_TEST}::test_a_batch_of_more_ledgers_than_a_transaction_labels_counts_once",
    ),
    mutant(
        "sweep_deletes_a_staged_ledger_without_a_change_of_the_record",
        "A.6",
        "_delete_staged",
        "operations.append(Set(log_record_path(incarnation), touched.encode(), record_version))",
        "pass",
        f"{_TEST}::test_of_a_splice_and_a_sweep_at_the_same_time_one_fails",
    ),
    mutant(
        "witnesses_of_a_splice_are_its_first_ledgers",
        "A.6",
        "Splice.witnesses",
        "self._commit.staged[-LOG_SPLICE_LABELS_MAX:]",
        "self._commit.staged[:LOG_SPLICE_LABELS_MAX]",
        f"{_TEST}::test_a_batch_of_more_ledgers_than_a_transaction_labels_counts_once",
    ),
    mutant(
        "task_beyond_the_limit_reads_its_rows",
        "A.6",
        "spark.sink.stage_rows",
        "task >= LOG_SPLICE_LEDGERS_MAX",
        "False",
        f"{_TEST_COMMIT}::test_a_task_too_many_fails_before_it_reads_a_row",
    ),
    mutant(
        "staged_ledger_is_swept_before_its_time",
        "A.6",
        "_why_orphan",
        "STAGED_LABEL in ledger.custom and age_s < LOG_STAGED_SWEEP_AGE_S",
        "False",
        f"{_TEST}::test_a_sweep_takes_what_was_staged_in_vain_and_nothing_before_its_time",
    ),
    mutant(
        "spliced_records_go_back_in_time",
        "A.6",
        "LogMetadata._with_staged",
        "self.counted_end, max(now_ms, self.counted_ms)",
        "self.counted_end, now_ms",
        f"{_TEST}::test_times_never_go_back_whatever_the_clock_of_the_committer_says",
    ),
    mutant(
        "staged_entry_is_read_outside_of_a_log",
        "A.6",
        "_placed",
        'raise EntryCorrupt(ledger_id, entry_id, "it is staged, and its ledger is in no log")',
        "return header",
        f"{_TEST}::test_a_staged_entry_is_no_entry_of_a_log_by_itself",
    ),
    mutant(
        "stream_reads_a_log_that_was_made_anew_from_its_old_offset",
        "C.4",
        "LogStream._views",
        "begun.incarnation if begun is not None and options.fail_on_data_loss else None",
        "None",
        f"{_TEST_STREAM}::test_a_log_that_was_deleted_or_made_anew_is_no_jump_back",
    ),
    mutant(
        "streams_cursor_follows_a_beginning_that_is_asked_again",
        "C.4",
        "LogStream._move_cursors",
        "state.pins and (state.offset >= at or not forward)",
        "state.pins and state.offset >= at",
        f"{_TEST_STREAM}::test_a_cursor_is_not_moved_where_spark_asks_again_where_a_query_begins",
    ),
    mutant(
        "table_by_time_ends_at_the_first_open_ledger",
        "C.4",
        "_offset_of_moment",
        "index is not None and stretch.last_entry is not None and stretch.start == at",
        "False",
        f"{_TEST_READING}::test_bounds_by_time_are_found_behind_a_ledger_that_cannot_be_closed_yet",
    ),
    mutant(
        "streams_cursor_is_left_as_it_is_found",
        "C.4",
        "LogStream._move_cursors",
        "state.pins and (state.offset >= at or not forward)",
        "state.offset >= at or not forward",
        f"{_TEST_STREAM}::test_a_cursor_that_is_there_and_pins_nothing_does_so_from_the_start_of_the_query_on",
    ),
    mutant(
        "task_does_not_read_metadata_again",
        "C.4",
        "_View.refresh",
        "before != (ledger.fragments, self._bookies)",
        "False",
        f"{_TEST_READING}::test_metadata_are_read_again_where_all_replicas_refuse",
    ),
    mutant(
        "scan_that_broke_off_looks_like_one_that_ended",
        "C.4",
        "take_from",
        "raise broken from None",
        "return None",
        f"{_TEST_READING}::test_a_scan_that_breaks_off_is_not_one_that_has_ended",
    ),
    mutant(
        "packed_records_are_held_without_bound",
        "C.4",
        "_Scan._read_records",
        "size >= _FETCHED_BYTES",
        "False",
        f"{_TEST_READING}::test_what_is_held_at_once_is_bounded_however_well_records_are_packed",
    ),
    mutant(
        "values_that_nobody_asked_for_are_held_without_bound",
        "C.4",
        "batches_of",
        "batch.byte_length",
        "0",
        f"{_TEST_READING}::test_what_is_held_at_once_is_bounded_however_well_records_are_packed",
    ),
    mutant(
        "ledger_that_has_left_the_list_ends_a_query",
        "C.4",
        "LogRegistry.look",
        "_lists_as_before(metadata, before, failure.ledger_id)",
        "True",
        f"{_TEST_READING}::test_a_ledger_that_leaves_the_list_while_it_is_looked_at_is_no_error",
    ),
    mutant(
        "stream_passes_over_what_a_new_log_has_already",
        "C.4",
        "LogStream.latest",
        "view.first",
        "view.end",
        f"{_TEST_STREAM}::test_a_log_that_comes_later_is_read_from_its_start",
    ),
    mutant(
        "large_record_is_put_beside_others",
        "A.6",
        "Stage.append_many",
        "not batch.has_room(size, 1, size_max, for_attributes=attributes is not None)",
        "attributes is not None and batch.attributes is None",
        f"{_TEST}::test_a_record_as_large_as_may_be_comes_after_a_small_one",
    ),
    mutant(
        "logs_that_rows_name_may_have_no_gaps",
        "C.4",
        "spark.sink.commit_rows",
        "not is_stream or not options.fail_on_data_loss or options.log is None",
        "not is_stream or not options.fail_on_data_loss",
        f"{_TEST_COMMIT}::test_each_log_gets_its_part_once_if_the_commit_ends_between_two_logs",
    ),
    mutant(
        "a_log_that_was_made_again_between_two_tasks_is_one_log",
        "C.4",
        "spark.sink.commit_rows",
        "len({part.incarnation for part in of_log}) != 1",
        "False",
        f"{_TEST_COMMIT}::test_each_log_gets_its_part_once_if_the_commit_ends_between_two_logs",
    ),
    mutant(
        "rows_go_to_every_log_that_any_row_names",
        "C.4",
        "spark.sink._by_log",
        "batch.filter(pc.equal(names, name))",
        "batch",
        f"{_TEST_COMMIT}::test_the_rows_of_a_batch_go_to_their_logs_in_their_order",
    ),
)
