"""Mutants of what an operator watches and does: metrics, administration, lines in the log."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_METRICS = "tests/shells/test_metrics.py"
_ADMIN = "tests/shells/test_admin.py"

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
        "a_cursor_that_is_moved_again_counts_as_old",
        "METRICS",
        "ClientCounts.on_cursor",
        "self.cursors.pop((log, cursor), None)",
        "",
        "tests/unit/test_counts.py",
    ),
    mutant(
        "a_deleted_cursor_is_still_told",
        "METRICS",
        "log.cursors.Cursor.delete",
        "self._client.counts.forget_cursor(self._log_name, self._name)",
        "",
        f"{_METRICS}::test_a_process_tells_where_it_has_moved_cursors_and_forgets_deleted_ones",
    ),
    mutant(
        "buckets_are_not_cumulative",
        "METRICS",
        "families.samples",
        "list(itertools.accumulate(value.buckets))",
        "list(value.buckets)",
        "tests/unit/test_counts.py",
    ),
    mutant(
        "changes_of_an_open_cluster_need_no_proof",
        "SECURITY",
        "AdminGate.check",
        "needs is Needs.READ and self._are_reads_open",
        "self._are_reads_open",
        f"{_ADMIN}::test_a_change_without_a_proof_is_refused_in_an_open_cluster_too",
    ),
    mutant(
        "a_token_for_reading_changes_things",
        "SECURITY",
        "AdminGate._proven_by_token",
        "needs is Needs.CHANGE and token.scope is not TokenScope.CHANGE",
        "False",
        f"{_ADMIN}::test_a_change_needs_a_fresh_token_of_an_admin",
    ),
    mutant(
        "an_expired_token_is_good",
        "SECURITY",
        "AdminGate._proven_by_token",
        "token.expires_s <= self._now_s()",
        "False",
        f"{_ADMIN}::test_a_change_needs_a_fresh_token_of_an_admin",
    ),
    mutant(
        "every_principal_may_change_things",
        "SECURITY",
        "AdminGate.check",
        "needs is Needs.CHANGE and not may_administer(rights)",
        "False",
        f"{_ADMIN}::test_a_revoked_admin_changes_nothing_and_a_client_with_the_role_may",
    ),
    mutant(
        "every_page_in_a_browser_may_use_its_certificate",
        "SECURITY",
        "AdminGate._proven",
        "'origin' in asked.headers or asked.headers.get('sec-fetch-site', 'none') != 'none'",
        "False",
        f"{_ADMIN}::test_a_certificate_is_a_proof_unless_a_page_in_a_browser_uses_it",
    ),
    mutant(
        "a_token_is_proven_without_its_scope",
        "SECURITY",
        "Token._said",
        "f'{_VERSION}/{self.scope.value}/{self.expires_s}/{self.principal}'",
        "f'{_VERSION}/read/{self.expires_s}/{self.principal}'",
        "tests/unit/test_token.py",
    ),
    mutant(
        "connections_that_wait_are_not_dropped_for_a_newcomer",
        "limits",
        "serve_http",
        "oldest = next(iter(idle), None)",
        "oldest = None",
        f"{_ADMIN}::test_connections_that_say_nothing_keep_nobody_out_and_end_after_a_while",
    ),
    mutant(
        "an_operators_wish_ends_when_the_bookie_serves_again",
        "OPERATIONS",
        "BookieAdministration.serves",
        "node.set_read_only(self._wanted_read_only)",
        "",
        f"{_ADMIN}::test_what_an_operator_wanted_holds_when_the_bookie_serves_again",
    ),
)
