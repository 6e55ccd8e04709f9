"""Mutants of how Spark's processes use a cluster, and of what Spark's SQL is told."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_TEST_SQL = "tests/spark/test_spark_sql.py"
_TEST_JOB = "tests/spark/test_job_progress.py"
_TEST_SINK = "tests/spark/test_spark_sink.py"
_TEST_READING = "tests/spark/test_spark_reading.py"
_TEST_ARCHIVE = "tests/archive/test_archive_in_spark.py"
_TEST_CONNECTION = "tests/spark/test_spark_connection.py"
_TEST_CRASHES = "tests/spark/test_spark_archive_crashes.py"

MUTANTS = (
    mutant(
        "an_archive_job_on_spark_without_tasks_leaves_the_table_as_it_is",
        "C.4",
        "archive_on_spark",
        "run_connected(uri, end)",
        "if attempted:\n    run_connected(uri, end)",
        f"{_TEST_CRASHES}::test_an_archive_job_on_spark_that_ends_at_any_step_is_mended_by_the_next[1]",
    ),
    mutant(
        "a_portal_outlives_its_block",
        "closing",
        "Portal.__exit__",
        "self.close()",
        "",
        f"{_TEST_CONNECTION}::test_a_portal_ends_with_its_block_and_leaves_what_is_held_when_the_block_fails",
    ),
    mutant(
        "available_now_ends_where_the_answering_bookies_say",
        "C.4",
        "LogStream.latest",
        "target is not None and view.end < target",
        "False",
        "tests/spark/test_spark_stream.py::"
        "test_available_now_does_not_end_before_what_was_there_while_bookies_are_away",
    ),
    mutant(
        "available_now_fails_for_a_loss_that_was_accepted",
        "C.4",
        "LogStream.latest",
        """
        if self._options.fail_on_data_loss:
            raise
        """,
        "raise",
        "tests/spark/test_spark_stream.py::test_available_now_leaves_out_a_log_that_is_deleted_while_it_waits",
    ),
    mutant(
        "a_batch_ends_where_the_answering_bookies_say",
        "C.4",
        "LogView.check_whole",
        "self.doubt is not None",
        "False",
        "tests/spark/test_spark_reading.py::"
        "test_a_batch_needs_to_know_the_end_of_a_log_and_a_stream_reads_what_is_known",
    ),
    mutant(
        "a_task_does_not_say_why_its_scan_broke",
        "C.4",
        "spark.connection.taken",
        "held.leave()",
        "",
        f"{_TEST_CONNECTION}::test_a_context_that_breaks_says_why",
    ),
    mutant(
        "a_client_of_spark_connect_counts_the_tasks_of_other_jobs",
        "C.4",
        "_ConnectJob._told",
        "threading.current_thread() is self._thread",
        "True",
        f"{_TEST_JOB}::test_a_client_of_spark_connect_counts_the_tasks_of_its_own_job",
    ),
    mutant(
        "a_job_on_spark_connect_outlives_its_caller",
        "C.4",
        "_ConnectJob.cancel",
        "self._spark.interruptTag(self._tag)",
        "self._thread = None",
        f"{_TEST_JOB}::test_a_job_on_spark_connect_is_cancelled_with_its_caller",
    ),
    mutant(
        "a_job_of_a_session_in_this_process_outlives_its_caller",
        "C.4",
        "_ContextJob.cancel",
        "self._context.cancelJobGroup(self._group)",
        "return None",
        f"{_TEST_JOB}::test_a_job_of_a_session_in_this_process_is_cancelled_with_its_caller",
    ),
    mutant(
        "views_of_two_logs_share_a_table",
        "C.4",
        "spark.views._table_of",
        "view.lower()",
        "'one'",
        f"{_TEST_SQL}::test_each_log_of_a_cluster_gets_a_view_that_reads_it_as_it_is",
    ),
    mutant(
        "a_table_without_options_is_not_told_why",
        "C.4",
        "spark.options._known",
        "not options",
        "False",
        "tests/spark/test_spark_options.py::test_a_table_of_sql_that_got_no_options_is_told_why",
    ),
    mutant(
        "a_log_is_overwritten_by_appending",
        "C.4",
        "spark.sink.check_written",
        "overwrite",
        "False",
        f"{_TEST_SINK}::test_a_mode_that_a_log_cannot_have_is_refused_before_any_work",
    ),
    mutant(
        "columns_of_an_archive_are_all_read",
        "C.4",
        "ArchiveFile.read_columns",
        "name == 'offset' or name in columns",
        "True",
        f"{_TEST_ARCHIVE}::test_only_the_columns_that_are_asked_for_are_read_from_the_archive",
    ),
    mutant(
        "rows_of_an_archive_go_beyond_the_piece",
        "C.4",
        "ArchivedRows.between",
        "(start, end)",
        "(start, end + 1)",
        f"{_TEST_ARCHIVE}::test_a_batch_reads_through_the_archive_what_the_client_reads",
    ),
    mutant(
        "headers_of_an_archive_move_to_other_rows",
        "C.4",
        "spark.columns._archived_headers",
        "pc.fill_null(pc.list_value_length(column), 0)",
        "pc.drop_null(pc.list_value_length(column))",
        f"{_TEST_ARCHIVE}::test_keys_and_headers_come_from_the_archive_as_from_bookies",
    ),
    mutant(
        "an_archive_out_of_order_passes",
        "C.4",
        "ArchiveFile.read_columns",
        "pc.all(pc.greater(offsets[1:], offsets[:-1]), min_count=0).as_py()",
        "True",
        f"{_TEST_ARCHIVE}::test_columns_whose_offsets_are_not_those_of_the_footer_are_damage",
    ),
    mutant(
        "an_archive_that_lacks_rows_passes",
        "C.4",
        "ArchiveFile.read_columns",
        "len(offsets) != last - first + 1",
        "False",
        f"{_TEST_ARCHIVE}::test_columns_whose_offsets_are_not_those_of_the_footer_are_damage",
    ),
    mutant(
        "a_compacted_archive_is_counted_by_its_offsets",
        "C.4",
        "_Scan._read_piece",
        "not (record and record.compacted)",
        "True",
        f"{_TEST_ARCHIVE}::test_a_compacted_archive_gives_the_rows_that_are_left",
    ),
    mutant(
        "a_query_for_offsets_alone_reads_records",
        "C.4",
        "_Scan._read_piece",
        "OffsetRange.COLUMNS.issuperset(self._columns)",
        "False",
        f"{_TEST_READING}::test_a_query_for_offsets_alone_reads_no_record",
    ),
    mutant(
        "a_task_for_offsets_alone_is_as_small_as_others",
        "C.4",
        "spark.planning.plan",
        "OffsetRange.COLUMNS.issuperset(columns)",
        "False",
        f"{_TEST_READING}::test_a_task_for_offsets_alone_gets_more_rows",
    ),
    mutant(
        "the_archived_beginning_has_a_hole",
        "C.4",
        "leading_files",
        "record.first_offset == at",
        "record.first_offset >= at",
        "tests/unit/test_archive_prefix.py",
    ),
    mutant(
        "the_archived_beginning_must_begin_with_a_file",
        "C.4",
        "leading_files",
        "not found and record.holds(at)",
        "False",
        "tests/unit/test_archive_prefix.py",
    ),
    mutant(
        "a_view_reads_archived_rows_twice",
        "C.4",
        "spark.views.register_logs",
        "{'startingOffsets': str(archived.end)}",
        "{}",
        f"{_TEST_SQL}::test_spark_itself_reads_the_archived_beginning_of_a_view",
    ),
    mutant(
        "a_view_of_an_archived_log_misses_what_is_appended_later",
        "C.4",
        "spark.views._archived",
        "metadata.sealed and end == metadata.counted_end",
        "end == metadata.counted_end",
        f"{_TEST_SQL}::test_a_view_of_a_log_that_is_sealed_and_archived_whole_is_parquet_alone",
    ),
    mutant(
        "a_view_of_a_sealed_log_misses_what_is_not_archived",
        "C.4",
        "spark.views._archived",
        "metadata.sealed and end == metadata.counted_end",
        "metadata.sealed",
        f"{_TEST_SQL}::test_a_view_of_a_sealed_log_has_what_is_not_archived_too",
    ),
    mutant(
        "a_view_shows_truncated_records_of_its_first_file",
        "C.4",
        "spark.views._rows_of",
        'rows.where(f"offset >= {archived.start}")',
        "rows",
        f"{_TEST_SQL}::test_spark_itself_reads_the_archived_beginning_of_a_view",
    ),
)
