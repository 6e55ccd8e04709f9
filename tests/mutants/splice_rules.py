"""Mutants of what is written to a log as whole ledgers: once, by one leader, swept in time; and of scans."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_CORE = "ledgerlog/core/splice.py"
_SHELL = "ledgerlog/log/splice.py"
_LOG = "ledgerlog/model/log.py"
_SWEEP = "ledgerlog/log/sweep.py"
_RECORDS = "ledgerlog/wire/records.py"
_STREAM = "ledgerlog/spark/stream.py"
_SCANNING = "ledgerlog/spark/scanning.py"
_COLUMNS = "ledgerlog/spark/columns.py"
_LOOKING = "ledgerlog/spark/looking.py"

_TEST = "tests/shells/test_log_splice.py"
_TEST_STREAM = "tests/spark/test_spark_stream.py"
_TEST_READING = "tests/spark/test_spark_reading.py"

MUTANTS = (
    mutant(
        "batch_that_is_there_is_spliced_again",
        "A.6",
        _CORE,
        "mark.source == commit.source and commit.batch <= mark.batch",
        "mark.source == commit.source and commit.batch < mark.batch",
        _TEST,
    ),
    mutant(
        "lost_answer_of_a_splice_without_a_producer_is_tried_again",
        "A.6",
        _CORE,
        "        if commit.producer is None:\n            return self._is_ours()",
        "        if commit.producer is None:\n            return False",
        f"{_TEST}::test_a_transaction_whose_answer_is_lost_is_settled_by_reading",
    ),
    mutant(
        "commit_without_a_producer_took_effect_only_while_all_of_it_is_there",
        "A.6",
        _CORE,
        "return any(ledger.is_spliced for ledger in self.ledgers.values())",
        "return all(\n"
        "            each.ledger_id in self.ledgers and self.ledgers[each.ledger_id].is_spliced\n"
        "            for each in self._commit.staged\n"
        "        )",
        f"{_TEST}::test_a_commit_whose_first_ledger_was_truncated_before_its_answer_is_settled_took_effect",
    ),
    mutant(
        "checkpoint_that_was_deleted_passes_for_done",
        "A.6",
        _CORE,
        "return mark is not None and mark.source == commit.source and commit.batch <= mark.batch",
        "return mark is not None and commit.batch <= mark.batch",
        f"{_TEST}::test_the_traps_are_errors_that_say_so",
    ),
    mutant(
        "run_that_was_followed_takes_the_log_back",
        "A.6",
        _CORE,
        "        if mark is not None and commit.run in mark.former:\n",
        "        if mark is not None and False:\n",
        f"{_TEST}::test_of_two_runs_on_one_checkpoint_the_older_is_told",
    ),
    mutant(
        "run_that_was_followed_takes_the_others_batch_for_its_own",
        "A.6",
        _CORE,
        "followed = None if self._was_tried else self._followed()",
        "followed = None",
        f"{_TEST}::test_a_run_that_was_followed_is_told_also_where_the_other_has_a_batch_of_that_number",
    ),
    mutant(
        "batch_of_a_log_that_is_gone_passes_for_done",
        "A.6",
        _CORE,
        "        if metadata is None:\n",
        "        if metadata is None and not self._is_there():\n",
        f"{_TEST}::test_what_is_left_of_a_log_that_is_gone_passes_for_no_batch",
    ),
    mutant(
        "run_goes_on_in_the_epoch_of_another_leader",
        "A.6",
        _CORE,
        "        if mark is not None and commit.run == mark.run and metadata.epoch != mark.epoch:\n",
        "        if mark is not None and False:\n",
        f"{_TEST}::test_who_takes_the_log_over_deposes_a_run_and_the_next_run_goes_on",
    ),
    mutant(
        "splice_leaves_a_live_writers_epoch_as_it_is",
        "A.6",
        _LOG,
        "        epoch = self.epoch + (counts is not None)\n",
        "        epoch = self.epoch\n",
        _TEST,
    ),
    mutant(
        "full_list_is_told_at_the_commit_only",
        "A.6",
        _SHELL,
        "    metadata.check_room(LOG_SPLICE_LEDGERS_MAX)\n",
        "",
        f"{_TEST}::test_a_list_that_is_full_is_told_before_a_task_writes_and_nothing_is_harmed",
    ),
    mutant(
        "checkpoint_that_was_put_back_passes_for_done",
        "A.6",
        _CORE,
        "commit.batch < mark.batch and commit.run != mark.run and commit.run not in mark.former",
        "False",
        f"{_TEST}::test_a_new_run_below_the_mark_is_told_both_numbers_and_writes_nothing",
    ),
    mutant(
        "run_that_is_late_with_its_own_batch_is_refused",
        "A.6",
        _CORE,
        "commit.batch < mark.batch and commit.run != mark.run and commit.run not in mark.former",
        "commit.batch < mark.batch and commit.run not in mark.former",
        f"{_TEST}::test_a_new_run_below_the_mark_is_told_both_numbers_and_writes_nothing",
    ),
    mutant(
        "batch_of_other_rows_passes_for_the_one_of_its_number",
        "A.6",
        _CORE,
        "commit.batch == mark.batch and mark.records not in (None, commit.records)",
        "False",
        f"{_TEST}::test_a_batch_with_the_marks_number_and_another_count_is_not_that_batch",
    ),
    mutant(
        "log_that_ends_before_the_mark_is_gone_on_with",
        "A.6",
        _CORE,
        "mark.end_offset is None or mark.end_offset <= metadata.counted_end",
        "True",
        f"{_TEST}::test_a_log_that_ends_before_the_mark_was_put_back",
    ),
    mutant(
        "transaction_that_arrives_while_it_is_settled_is_refused",
        "A.6",
        _CORE,
        "        if self._was_tried and self._is_ours():\n",
        "        if False:\n",
        f"{_TEST}::test_a_transaction_that_arrives_while_it_is_settled_took_effect",
    ),
    mutant(
        "batches_that_are_missing_are_passed_over",
        "A.6",
        _CORE,
        "commit.batch > expected and not commit.gaps",
        "False",
        f"{_TEST}::test_the_traps_are_errors_that_say_so",
    ),
    mutant(
        "spliced_ledgers_are_not_labelled",
        "A.6",
        _SHELL,
        "ledger.metadata.with_labels(labels, record.token).encode(),",
        "ledger.metadata.encode(),",
        _TEST,
    ),
    mutant(
        "second_attempt_deletes_what_the_first_has_spliced",
        "A.6",
        _CORE,
        "[ledger for ledger in self.ledgers.values() if not ledger.is_spliced]",
        "list(self.ledgers.values())",
        f"{_TEST}::test_a_batch_counts_once_and_what_a_second_attempt_staged_is_deleted",
    ),
    mutant(
        "staged_ledger_is_swept_before_its_time",
        "A.6",
        _SWEEP,
        "STAGED_LABEL in ledger.custom and age_s < LOG_STAGED_SWEEP_AGE_S",
        "False",
        f"{_TEST}::test_a_sweep_takes_what_was_staged_in_vain_and_nothing_before_its_time",
    ),
    mutant(
        "spliced_records_go_back_in_time",
        "A.6",
        _LOG,
        "        at, ms = counted.counted_end, max(now_ms, counted.counted_ms)\n",
        "        at, ms = counted.counted_end, now_ms\n",
        f"{_TEST}::test_times_never_go_back_whatever_the_clock_of_the_committer_says",
    ),
    mutant(
        "staged_entry_is_read_outside_of_a_log",
        "A.6",
        _RECORDS,
        '        raise EntryCorrupt(ledger_id, entry_id, "it is staged, and its ledger is in no log")\n',
        "        return header\n",
        f"{_TEST}::test_a_staged_entry_is_no_entry_of_a_log_by_itself",
    ),
    mutant(
        "stream_reads_a_log_that_was_made_anew_from_its_old_offset",
        "C.4",
        _STREAM,
        "begun.incarnation if begun is not None and options.fail_on_data_loss else None",
        "None",
        f"{_TEST_STREAM}::test_a_log_that_was_deleted_or_made_anew_is_no_jump_back",
    ),
    mutant(
        "streams_cursor_follows_a_beginning_that_is_asked_again",
        "C.4",
        _STREAM,
        "if state.pins and (state.offset >= at or not forward):",
        "if state.pins and state.offset >= at:",
        f"{_TEST_STREAM}::test_a_cursor_is_not_moved_where_spark_asks_again_where_a_query_begins",
    ),
    mutant(
        "table_by_time_ends_at_the_first_open_ledger",
        "C.4",
        _LOOKING,
        "        if stretch.last_entry is not None and stretch.start == at:\n",
        "        if False:\n",
        f"{_TEST_READING}::test_bounds_by_time_are_found_behind_a_ledger_that_cannot_be_closed_yet",
    ),
    mutant(
        "streams_cursor_is_left_as_it_is_found",
        "C.4",
        _STREAM,
        "if state.pins and (state.offset >= at or not forward):",
        "if state.offset >= at or not forward:",
        f"{_TEST_STREAM}::test_a_cursor_that_is_there_and_pins_nothing_does_so_from_the_start_of_the_query_on",
    ),
    mutant(
        "task_does_not_read_metadata_again",
        "C.4",
        _SCANNING,
        "        return before != (ledger.fragments, self._bookies)\n",
        "        return False\n",
        f"{_TEST_READING}::test_metadata_are_read_again_where_all_replicas_refuse",
    ),
    mutant(
        "scan_that_broke_off_looks_like_one_that_ended",
        "C.4",
        _SCANNING,
        '                raise ScanBroken("the scan ended before its end") from None\n',
        "                return None\n",
        f"{_TEST_READING}::test_a_scan_that_breaks_off_is_not_one_that_has_ended",
    ),
    mutant(
        "packed_records_are_held_without_bound",
        "C.4",
        _SCANNING,
        "                if size >= _FETCHED_BYTES:\n",
        "                if False:\n",
        f"{_TEST_READING}::test_what_is_held_at_once_is_bounded_however_well_records_are_packed",
    ),
    mutant(
        "values_that_nobody_asked_for_are_held_without_bound",
        "C.4",
        _COLUMNS,
        "            size += batch.byte_length",
        "            size += 0",
        f"{_TEST_READING}::test_what_is_held_at_once_is_bounded_however_well_records_are_packed",
    ),
    mutant(
        "ledger_that_has_left_the_list_ends_a_query",
        "C.4",
        _LOOKING,
        "            if version == seen:\n",
        "            if True:\n",
        f"{_TEST_READING}::test_a_ledger_that_leaves_the_list_while_it_is_looked_at_is_no_error",
    ),
    mutant(
        "stream_passes_over_what_a_new_log_has_already",
        "C.4",
        _STREAM,
        "                ends[name] = view.first\n",
        "                ends[name] = view.end\n",
        f"{_TEST_STREAM}::test_a_log_that_comes_later_is_read_from_its_start",
    ),
    mutant(
        "large_record_is_put_beside_others",
        "A.6",
        _SHELL,
        "            if self._records and self._size + cost > RECORD_BYTES_MAX:\n",
        "            if False:\n",
        f"{_TEST}::test_a_record_as_large_as_may_be_comes_after_a_small_one",
    ),
)
