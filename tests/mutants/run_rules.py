"""Mutants of what an operator watches and does: metrics, administration, lines in the log."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_METRICS = "tests/shells/test_metrics.py"

MUTANTS = (
    mutant(
        "every_entry_of_a_ledger_begins_the_timing_anew",
        "METRICS",
        "ledger.writer.LedgerWriter.push",
        "self._timed_entry == NO_ENTRY",
        "False",
        f"{_METRICS}::test_a_client_tells_of_its_appends_takeovers_and_of_the_logs_that_it_leads",
    ),
    mutant(
        "a_leadership_that_its_holder_left_counts_as_lost",
        "METRICS",
        "LogLeader._answer_all",
        "not self._over.is_set() and self.core.failure is not None",
        "True",
        f"{_METRICS}::test_a_client_tells_of_its_appends_takeovers_and_of_the_logs_that_it_leads",
    ),
    mutant(
        "what_an_ended_leadership_has_appended_is_forgotten",
        "METRICS",
        "ClientCounts.end_leading",
        "self.records_appended += log.records_appended",
        "",
        "tests/unit/test_counts.py",
    ),
    mutant(
        "a_session_that_ends_while_it_is_connected_is_not_counted",
        "METRICS",
        "SessionCounts.follow",
        "self._on_state(await session.wait_not(self.state))",
        "await session.wait_not(self.state)\nsession = store.session",
        f"{_METRICS}::test_lost_sessions_and_lost_contact_are_counted",
    ),
    mutant(
        "a_bookie_that_lost_its_session_says_that_it_is_registered",
        "METRICS",
        "Registration.is_registered",
        "self._node is not None and session is self._session and session.state is SessionState.CONNECTED",
        "self._node is not None",
        f"{_METRICS}::test_a_bookie_that_lost_its_session_says_so_until_it_is_registered_again",
    ),
    mutant(
        "buckets_are_not_cumulative",
        "METRICS",
        "families.samples",
        "list(itertools.accumulate(value.buckets))",
        "list(value.buckets)",
        "tests/unit/test_counts.py",
    ),
)
