"""Mutants of how Spark's processes use a cluster, and of what Spark's SQL is told."""

from __future__ import annotations

from tests.mutants.mutant import mutant

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
)
