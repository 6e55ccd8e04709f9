"""Mutants of roles and grants: what a bookie allows whom, and what clients make of a refusal."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_TEST_MODEL = "tests/unit/test_access.py"
_TEST_BOOKIE = "tests/shells/test_bookie_access.py"
_TEST_CLIENT = "tests/shells/test_client_access.py"
_MATRIX = f"{_TEST_BOOKIE}::test_each_request_is_allowed_or_refused_as_the_page_says"

DECISIONS = (
    mutant(
        "a_grant_holds_for_every_log",
        "grants",
        "Rights.allows",
        "right in rights and log.startswith(prefix)",
        "right in rights",
        f"{_TEST_MODEL}::test_a_right_on_another_log_is_none",
        _MATRIX,
    ),
    mutant(
        "a_revoked_admin_stays_one",
        "grants",
        "rights_of",
        "own is not None and not (grants is not None and grants.is_revoked)",
        "own is not None",
        f"{_TEST_MODEL}::test_a_bookie_and_an_admin_have_their_role_by_themselves_unless_it_is_revoked",
        f"{_TEST_BOOKIE}::test_a_revoked_bookie_or_admin_may_do_nothing",
    ),
    mutant(
        "a_reader_may_fence_by_a_recovery_read",
        "grants",
        "right_for",
        "(_RIGHTS_WITH_RECOVERY_FLAG if flags & RECOVERY else _RIGHTS)[kind]",
        "_RIGHTS[kind]",
        f"{_TEST_MODEL}::test_a_recovery_flag_asks_for_another_right",
        _MATRIX,
    ),
    mutant(
        "a_recovery_flag_makes_a_listing_of_all_keys_a_recovery",
        "grants",
        "right_for",
        "(_RIGHTS_WITH_RECOVERY_FLAG if flags & RECOVERY else _RIGHTS)[kind]",
        "Right.RECOVER if flags & RECOVERY else _RIGHTS[kind]",
        f"{_TEST_MODEL}::test_a_recovery_flag_means_nothing_on_a_request_that_has_none",
        f"{_TEST_BOOKIE}::test_a_recovery_flag_gives_nobody_a_right_on_other_requests[writer]",
    ),
    mutant(
        "a_recovery_flag_makes_any_request_urgent",
        "SECURITY, fair shares",
        "requests._is_urgent",
        "right_for(header.kind, header.flags) is Right.RECOVER",
        "header.kind == Kind.FENCE or bool(header.flags & RECOVERY)",
        f"{_TEST_BOOKIE}::test_a_recovery_flag_gives_nobody_a_right_on_other_requests[reader]",
    ),
    mutant(
        "grants_bind_programs_with_a_secret_in_an_open_cluster",
        "SECURITY",
        "AccessControl._bound",
        "self._is_open and access.is_by_secret",
        "False",
        f"{_TEST_BOOKIE}::test_grants_bind_a_program_with_a_secret_only_while_the_cluster_is_not_open",
    ),
    mutant(
        "grants_bind_nobody_whom_a_certificate_proved_in_an_open_cluster",
        "SECURITY",
        "AccessControl._bound",
        "self._is_open and access.is_by_secret",
        "self._is_open",
        f"{_TEST_BOOKIE}::test_what_a_certificate_proved_has_only_its_rights_in_any_mode",
    ),
    mutant(
        "what_an_open_cluster_allowed_stays_allowed",
        "SECURITY",
        "AccessControl.set_open",
        "access.forget()",
        "pass",
        f"{_TEST_BOOKIE}::test_grants_bind_a_program_with_a_secret_only_while_the_cluster_is_not_open",
    ),
    mutant(
        "a_request_under_way_is_refused_when_the_cluster_is_closed",
        "SECURITY",
        "AccessControl.decide",
        """
        status = await self._judge(access, header)
        known = self._bound(access)
        """,
        "status = await self._judge(access, header)",
        f"{_TEST_BOOKIE}::test_in_a_cluster_that_is_being_closed_a_request_under_way_is_judged_by_the_grants",
    ),
    mutant(
        "an_id_that_was_not_given_out_can_be_claimed",
        "rule 10",
        "needs_facts",
        "must_exist(right) and not is_known",
        "False",
        f"{_TEST_MODEL}::test_who_may_do_everything_needs_the_store_only_for_what_is_remembered_anew",
        f"{_TEST_BOOKIE}::test_an_id_that_was_not_given_out_cannot_be_claimed",
    ),
    mutant(
        "the_first_frame_brings_the_key_unchecked",
        "rule 10",
        "access.judge",
        "must_exist(right) and not compare_digest(header.key, facts.key)",
        "False",
        f"{_TEST_MODEL}::test_the_first_touch_compares_the_key_with_the_metadata",
        f"{_TEST_BOOKIE}::test_a_first_frame_with_a_wrong_key_is_refused_and_leaves_nothing",
    ),
    mutant(
        "a_recovery_read_of_no_ledger_denies_its_entries",
        "rule 8, rule 10",
        "access.judge",
        "Status.NO_SUCH_LEDGER if header.kind in (Kind.ADD, Kind.FENCE) else Status.NOT_READY",
        "Status.NO_SUCH_LEDGER",
        f"{_TEST_MODEL}::test_a_ledger_that_does_not_exist_is_denied_only_to_adds_and_fences",
    ),
    mutant(
        "a_fence_that_was_refused_counts_as_one",
        "rule 10",
        "write_holders.ask",
        "status == Status.UNAUTHORIZED",
        "status in (Status.UNAUTHORIZED, Status.NO_SUCH_LEDGER)",
        "tests/scenarios/test_restored_metadata.py::"
        "test_a_bookie_that_looks_at_another_store_is_not_fenced_and_counts_as_silent",
    ),
)

BOOKIES = (
    mutant(
        "an_idle_bookie_goes_on_refreshing_grants",
        "PERFORMANCE, idle",
        "AccessControl.run",
        "limits.ACCESS_REFRESH_S if self._refreshes else math.inf",
        "limits.ACCESS_REFRESH_S",
        f"{_TEST_BOOKIE}::test_while_nobody_is_connected_only_a_change_of_the_grants_wakes_a_bookie",
    ),
    mutant(
        "a_bookie_goes_on_refreshing_after_the_last_principal_has_left",
        "PERFORMANCE, idle",
        "AccessControl.run",
        "if self._refreshes:\n    self._turn.cancel()",
        "pass",
        f"{_TEST_BOOKIE}::test_while_nobody_is_connected_only_a_change_of_the_grants_wakes_a_bookie",
    ),
    mutant(
        "the_first_principal_after_a_rest_is_not_refreshed",
        "grants",
        "AccessControl.open",
        "if not self._refreshes:\n    self._turn.cancel()",
        "pass",
        f"{_TEST_BOOKIE}::test_without_any_watch_a_change_is_in_force_within_five_seconds",
    ),
    mutant(
        "a_bookie_denies_a_ledger_without_a_sync",
        "rule 10",
        "AccessControl._read_facts",
        "await self._store.sync()",
        "",
        f"{_TEST_BOOKIE}::test_a_replica_of_the_store_that_lags_denies_no_ledger",
    ),
    mutant(
        "a_bookie_refuses_by_old_grants",
        "grants",
        "AccessControl.decide",
        "trio.current_time() < known.looked_at + _CONFIRM_EVERY_S",
        "True",
        f"{_TEST_BOOKIE}::test_a_bookie_that_was_told_of_no_change_looks_again_before_it_refuses",
    ),
    mutant(
        "what_was_allowed_before_a_change_stays_allowed",
        "grants",
        "Access.forget",
        """
        self.writable.clear()
        self._allowed.clear()
        """,
        "",
        _MATRIX,
    ),
    mutant(
        "a_long_poll_outlives_its_right",
        "grants",
        "Access.forget",
        "self._on_change()",
        "",
        f"{_TEST_BOOKIE}::test_a_revocation_ends_long_polls_at_once",
    ),
    mutant(
        "a_long_poll_answers_without_a_second_look",
        "grants",
        "Requests._answer",
        "await self._check(header)",
        "if not request.has_waited:\n    await self._check(header)",
        f"{_TEST_BOOKIE}::test_a_revocation_ends_long_polls_at_once",
    ),
    mutant(
        "nobody_has_rights_while_the_store_is_away",
        "grants",
        "AccessControl._look_at_grants",
        "known.rights is None",
        "True",
        f"{_TEST_BOOKIE}::test_the_last_known_grants_hold_while_the_store_is_away",
    ),
    mutant(
        "a_flood_takes_every_question",
        "fair shares",
        "AccessControl._question",
        "await places.enter_async_context(limiter)",
        "pass",
        f"{_TEST_BOOKIE}::test_a_flood_of_unknown_ledgers_leaves_the_store_to_others",
    ),
    mutant(
        "every_add_waits_for_a_store_that_is_away",
        "rule 10",
        "AccessControl._check_away",
        "trio.current_time() < self._away_until",
        "False",
        f"{_TEST_BOOKIE}::test_a_new_ledger_is_refused_for_now_if_the_store_does_not_answer",
    ),
    mutant(
        "an_add_is_taken_without_a_right",
        "grants",
        "Connection._on_frames",
        "frame.header.ledger_id not in writable and not await self._may_add(frame.header)",
        "False",
        _MATRIX,
    ),
    mutant(
        "a_lone_add_is_taken_without_a_right",
        "grants",
        "Connection._receive_frames",
        "header.ledger_id in writable",
        "True",
        _MATRIX,
    ),
    mutant(
        "a_refused_add_has_no_number",
        "grants",
        "Connection._may_add",
        "self._adds += 1",
        "",
        f"{_TEST_BOOKIE}::test_a_refused_add_has_its_number_and_its_neighbours_are_acknowledged",
    ),
)

CLIENTS = (
    mutant(
        "bookies_hear_of_a_ledger_with_its_first_entry",
        "rule 10",
        "LedgerWriter._maintain",
        "self._introduce()",
        "",
        "tests/simulation/test_simulated_cluster.py::"
        "test_nothing_is_lost_to_a_metadata_store_that_is_another_for_a_while",
    ),
    mutant(
        "a_writer_without_the_right_looks_for_other_bookies",
        "grants",
        "LedgerWriter._on_add_refused",
        "status is Status.PERMISSION_DENIED",
        "False",
        f"{_TEST_CLIENT}::test_an_append_without_the_right_fails_for_certain",
    ),
    mutant(
        "a_leader_without_the_right_calls_itself_deposed",
        "grants",
        "Leadership.on_lost",
        "isinstance(failure, LostLeadership | LogSealed | NotEnoughBookies | PermissionDenied)",
        "isinstance(failure, LostLeadership | LogSealed | NotEnoughBookies)",
        f"{_TEST_CLIENT}::test_a_leader_that_is_revoked_ends_and_the_next_one_finds_every_acknowledged_record",
    ),
    mutant(
        "a_refused_recovery_goes_on_asking",
        "grants",
        "_Recovery._fence",
        "reply.header.status == Status.PERMISSION_DENIED",
        "False",
        f"{_TEST_CLIENT}::test_a_recovery_without_the_right_ends_at_once_and_another_client_finishes_it",
    ),
    mutant(
        "a_read_without_the_right_is_only_unavailable",
        "grants",
        "check_permitted",
        "status == Status.PERMISSION_DENIED",
        "False",
        f"{_TEST_CLIENT}::test_each_way_to_read_without_the_right_says_so",
    ),
)

MUTANTS = (*DECISIONS, *BOOKIES, *CLIENTS)
