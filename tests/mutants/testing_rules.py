"""Mutants of what users test with: drawn faults, their smallest part, and the check of histories."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_TROUBLE = "tests/simulation/test_trouble.py"
_HISTORY = "tests/simulation/test_history.py"

MUTANTS = (
    mutant(
        "faults_hit_whom_the_scenario_spares",
        "TESTING",
        "RunningFaults._inject",
        "[name for name in cluster.services if name not in self._faults.spare]",
        "cluster.services",
        f"{_TROUBLE}::test_nothing_happens_to_whom_you_spare_and_nothing_to_the_scenario_itself",
    ),
    mutant(
        "a_process_that_returned_is_down",
        "TESTING",
        "testing.cluster.Process.is_down",
        "not self.has_finished",
        "True",
        f"{_TROUBLE}::test_a_process_that_has_returned_is_not_started_again",
    ),
    mutant(
        "a_run_that_fails_in_another_way_counts",
        "TESTING",
        "testing.runs.simulate",
        "way_of(error) == way",
        "True",
        f"{_TROUBLE}::test_a_failure_lists_the_faults_before_it_and_those_that_it_takes",
    ),
    mutant(
        "an_answer_that_does_not_fit_fits",
        "TESTING",
        "_OrderSearch.run",
        "answer == call.answer",
        "True",
        f"{_HISTORY}::test_a_lost_write_is_found",
    ),
    mutant(
        "a_state_that_was_seen_is_searched_again",
        "TESTING",
        "_OrderSearch.run",
        "reached not in seen",
        "True",
        f"{_HISTORY}::test_the_same_calls_with_the_same_state_are_looked_at_once",
    ),
    mutant(
        "a_call_that_changes_nothing_is_placed",
        "TESTING",
        "_OrderSearch.run",
        "state != self._state if call.ended is None else answer == call.answer",
        "call.ended is None or answer == call.answer",
        f"{_HISTORY}::test_reads_without_an_answer_cost_nothing",
    ),
    mutant(
        "a_run_that_differs_when_repeated_is_shrunk",
        "TESTING",
        "testing.runs._shrunk",
        "again is None or again.trace_hash != failed.trace_hash",
        "False",
        f"{_TROUBLE}::test_a_scenario_that_depends_on_the_run_before_is_told_so",
    ),
    mutant(
        "a_call_without_an_answer_must_happen",
        "TESTING",
        "_OrderSearch.run",
        "state != self._state if call.ended is None else answer == call.answer",
        "answer == call.answer",
        f"{_HISTORY}::test_a_write_that_never_answered_may_happen_late_or_never",
    ),
)
