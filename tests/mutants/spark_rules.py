"""Mutants of how Spark's processes use a cluster, and of what Spark's SQL is told."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_TEST_SQL = "tests/spark/test_spark_sql.py"
_TEST_JOB = "tests/spark/test_job_progress.py"
_TEST_SINK = "tests/spark/test_spark_sink.py"
_TEST_CONNECTION = "tests/spark/test_spark_connection.py"

MUTANTS = (
    mutant(
        "a_portal_outlives_its_block",
        "closing",
        "Portal.__exit__",
        "self.close()",
        "",
        f"{_TEST_CONNECTION}::test_a_portal_ends_with_its_block_and_leaves_what_is_held_when_the_block_fails",
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
)
