"""Mutants of the metadata in ZooKeeper, and of who is registered under a bookie's id."""

from __future__ import annotations

from tests.mutants.mutant import Change, mutant

_TEST_SESSION = "tests/unit/test_zookeeper_session.py"
_TEST_PLAN = "tests/unit/test_zookeeper_plan.py"
_TEST_CONTRACT = "tests/contract/test_metadata_contract.py"
_TEST_STORE = "tests/integration/test_zookeeper_store.py"
_TEST_ACCESS = "tests/contract/test_zookeeper_access.py"
_TEST_BELONGING = "tests/contract/test_belonging.py"
_TEST_OLDER = f"{_TEST_BELONGING}::test_an_older_copy_of_the_file_is_refused_and_a_restore_is_not"
_TEST_REGISTRATION = "tests/shells/test_server_registration.py"

_TEST_LEASES = "tests/integration/test_sqlite_sessions.py"
_TEST_SQLITE = "tests/integration/test_sqlite_processes.py"
_TEST_LOST = "tests/shells/test_lost_answers.py"
_TEST_PATIENCE = "tests/shells/test_log_retry_budget.py"

MUTANTS = (
    mutant(
        "a_change_that_may_have_happened_did_not",
        "rule 14",
        "settle.settle",
        """
        if doubt is None:
            raise
        """,
        "raise",
        f"{_TEST_LOST}::test_what_an_operation_says_of_itself_is_true[Truncate-applied_away]",
        f"{_TEST_LOST}::test_what_an_operation_says_of_itself_is_true[DeleteLedger-applied_away]",
    ),
    mutant(
        "a_store_that_answers_no_write_is_asked_for_ever",
        "rule 14",
        "settle.settle",
        "now - unanswered_since < METADATA_TIMEOUT_S",
        "now - unanswered_since < 1e9",
        f"{_TEST_PATIENCE}::test_a_store_that_answers_no_write_is_not_asked_for_ever[truncate]",
        "tests/archive/test_archive_retry_budget.py::test_a_store_that_answers_no_write_does_not_hold_a_job[merge]",
    ),
    mutant(
        "a_refusal_is_no_answer",
        "rule 14",
        "settle.settle",
        "unanswered_since = None",
        "",
        f"{_TEST_PATIENCE}::test_a_lost_answer_is_settled_at_once_and_a_refusal_is_an_answer",
    ),
    mutant(
        "what_a_lost_delete_deleted_is_not_found",
        "rule 14",
        "LedgerRegistry.delete.write",
        "not is_unsure",
        "True",
        f"{_TEST_LOST}::test_what_an_operation_says_of_itself_is_true[DeleteLedger-applied]",
    ),
    mutant(
        "a_log_that_is_deleted_is_not_where_its_cursors_stay",
        "rule 14",
        "log.delete_log",
        """
        with left_to_a_sweep(f"what log {name!r} left"):
            await delete_cursors(client, incarnation)
            await delete_replaced(client, registry, incarnation, is_deleted=True)
            await delete_marks(client, incarnation)
            await delete_snapshots(client, incarnation)
        """,
        """
        if True:
            await delete_cursors(client, incarnation)
            await delete_replaced(client, registry, incarnation)
            await delete_marks(client, incarnation)
            await delete_snapshots(client, incarnation)
        """,
        f"{_TEST_LOST}::test_what_an_operation_says_of_itself_is_true[DeleteLog-away]",
    ),
    mutant(
        "any_store_is_the_right_one",
        "rule 25",
        "Belonging.judge",
        "found.partition(b':')[0] != self._cluster.encode()",
        "False",
        f"{_TEST_BELONGING}::test_a_store_that_becomes_another_answers_nothing_until_the_right_one_is_back",
        also=(
            Change(
                "Belonging.judge",
                "found != self._seen and self._seen is not None and not self._goes_through_restores",
                "False",
            ),
        ),
    ),
    mutant(
        "a_file_that_was_replaced_is_not_noticed",
        "rule 25",
        "SqliteStore._run.work_in_place",
        "self._file.require_in_place()",
        "",
        f"{_TEST_BELONGING}::test_a_store_that_becomes_another_answers_nothing_until_the_right_one_is_back",
    ),
    mutant(
        "a_log_that_was_left_is_played_into_another_file",
        "metadata contract",
        "SqliteStore._adopt.open_again",
        "displaced.owns_log()",
        "False",
        "tests/integration/test_sqlite_metadata_file.py"
        "::test_a_file_in_whose_place_another_was_put_beside_its_log_is_not_mixed_with_it",
    ),
    mutant(
        "an_older_state_of_the_ensemble_is_believed",
        "rule 25",
        "ZooKeeperStore._judge",
        "link.zxid_of(number) < self._zxid_floor",
        "False",
        f"{_TEST_STORE}::test_an_older_state_of_the_right_store_is_refused_until_the_newer_one_is_back",
    ),
    mutant(
        "an_older_copy_of_the_file_is_believed",
        "rule 25",
        "Belonging.judge",
        "is_older = revision < self._revision",
        "is_older = False",
        f"{_TEST_OLDER}[False-another file]",
        f"{_TEST_OLDER}[True-the same file]",
    ),
    mutant(
        "a_copy_from_before_a_restore_is_believed",
        "A.8",
        "Belonging.judge",
        "_order_of_mark(found) < _order_of_mark(self._seen)",
        "False",
        f"{_TEST_OLDER}[True-before a restore]",
    ),
    mutant(
        "a_refused_ensemble_is_not_left",
        "rule 25",
        "ZooKeeperStore._be_refused",
        "self._link_ended.set()",
        "",
        f"{_TEST_STORE}::test_an_older_state_of_the_right_store_is_refused_until_the_newer_one_is_back",
        f"{_TEST_BELONGING}::test_a_store_that_becomes_another_answers_nothing_until_the_right_one_is_back",
    ),
    mutant(
        "compare_and_set_at_a_negative_version_is_a_plain_write",
        "rule 13",
        "_spellable",
        "0 <= version < NO_VERSION",
        "version < NO_VERSION",
        f"{_TEST_PLAN}::test_a_version_that_zookeeper_would_read_as_any_or_not_at_all_matches_none",
        f"{_TEST_CONTRACT}::test_a_set_at_another_version_conflicts_and_changes_nothing",
    ),
    mutant(
        "delete_does_not_look_for_children",
        "metadata contract",
        "plan.plan",
        """
        step(StepRole.PROVE_NO_DIRECTORY, MakeZnode(directory))
        step(StepRole.PROVE_NO_DIRECTORY, DeleteZnode(directory))
        """,
        "",
        f"{_TEST_PLAN}::test_a_delete_proves_in_the_same_instant_that_nothing_lies_below",
        f"{_TEST_CONTRACT}::test_a_node_with_children_is_not_deleted",
    ),
    mutant(
        "ephemeral_create_slips_into_the_next_session",
        "D27.5",
        "ZookeeperCall.serialize",
        "self.session_id not in (None, carrier.session_id)",
        "False",
        f"{_TEST_STORE}::test_an_ephemeral_create_for_a_session_that_ended_out_of_contact_is_refused",
    ),
    mutant(
        "what_was_given_up_is_sent_later",
        "rule 14",
        "ZookeeperCall.serialize",
        "self._is_revoked or self._met_wrong_session",
        "self._met_wrong_session",
        f"{_TEST_STORE}::test_a_write_that_kazoo_keeps_for_its_next_connection_is_taken_back_in_time",
    ),
    mutant(
        "a_lost_answer_is_a_definite_failure",
        "rule 14",
        "Conversation.write",
        "attempt.is_in_doubt = not call.revoke()",
        "call.revoke()",
        f"{_TEST_STORE}::test_a_write_whose_answer_is_lost_is_unknown_and_settled_by_reading",
    ),
    mutant(
        "a_lost_connection_writes_again",
        "rule 14",
        "Conversation.write",
        "not is_repeatable",
        "False",
        f"{_TEST_STORE}::test_a_write_that_was_under_way_when_its_server_died_is_unknown_at_once",
    ),
    mutant(
        "a_session_is_believed_in_beyond_its_lease",
        "metadata contract",
        "ZooKeeperSession.state",
        "self._state is SessionState.CONNECTED and self.lease_left_s <= 0",
        "False",
        "tests/unit/test_zookeeper_session.py::test_a_lease_lasts_as_long_after_the_sending_of_what_was_answered_last_as_was_agreed",
        f"{_TEST_STORE}::test_a_process_that_was_stopped_for_too_long_believes_nothing_when_it_wakes",
    ),
    mutant(
        "a_session_is_believed_in_by_the_lease_of_the_next_one",
        "metadata contract",
        "KazooLink.lease_until_ns",
        "until_ns if present == session_id else 0",
        "until_ns",
        f"{_TEST_SESSION}::test_a_session_is_not_believed_in_because_the_next_one_was_opened",
    ),
    mutant(
        "watches_are_not_added_again_on_a_new_connection",
        "metadata contract",
        "ZooKeeperStore._judge",
        """
        for path, attached in self._attached.items():
            self._add_watches(path, attached)
        """,
        "",
        f"{_TEST_STORE}::test_a_session_outlives_a_server_that_is_killed_and_started_again",
    ),
    mutant(
        "watches_sleep_through_what_happened_out_of_contact",
        "metadata contract",
        "ZooKeeperStore._add_watches.added",
        """
        if attached.is_given_out:
            self._watches.changed([path])
        """,
        "",
        f"{_TEST_STORE}::test_a_session_outlives_a_server_that_is_killed_and_started_again",
    ),
    mutant(
        "a_listing_shows_what_a_lagging_server_has",
        "D27.4",
        "LedgerRegistry.survey",
        "await self._store.sync()",
        "",
        "tests/shells/test_client_rules.py::test_a_listing_is_not_that_of_a_replica_that_is_behind",
    ),
    mutant(
        "a_bookie_replaces_a_registration_without_proof",
        "D27.5",
        "_is_former_life",
        'info.place != "" and info.place == place',
        "info.place == place",
        f"{_TEST_REGISTRATION}::test_a_node_from_another_place_is_never_replaced",
    ),
    mutant(
        "a_bookie_replaces_the_registration_of_a_copy",
        "D27.5",
        "_is_former_life",
        'info.place != "" and info.place == place',
        'info.place != ""',
        f"{_TEST_REGISTRATION}::test_a_node_from_another_place_is_never_replaced",
    ),
    mutant(
        "a_write_to_the_log_of_the_file_is_no_hint",
        "a commit of another process wakes a watch",
        "sqlite_changes.Hints._take",
        "event.name.startswith(self._name)",
        "event.name == self._name",
        f"{_TEST_SQLITE}::test_what_others_do_beside_the_file_is_no_reason_to_look_at_it",
    ),
    mutant(
        "hints_that_were_closed_are_read",
        "hints may be closed between the kernel's word and the next step of who waits",
        "sqlite_changes.Hints.wait",
        "not self._inotify.closed and (hint := self._take())",
        "(hint := self._take())",
        f"{_TEST_SQLITE}::test_hints_that_are_closed_as_they_become_readable_end_the_wait",
    ),
    mutant(
        "whoever_tries_a_lock_looks_like_an_owner_that_dies",
        "a hint about a session means that its owner is gone",
        "sqlite_sessions._try_lock",
        "os.O_RDONLY",
        "os.O_RDWR",
        f"{_TEST_SQLITE}::test_whoever_tries_a_lock_gives_no_hint",
    ),
    mutant(
        "an_owner_renews_without_a_claim",
        "a lease that ends a session is not renewed meanwhile",
        "sqlite_sessions.Sessions.renew",
        "lease.lock.claimed()",
        "contextlib.nullcontext()",
        f"{_TEST_LEASES}::test_a_lease_is_not_renewed_while_another_process_reads_it_to_end_the_session",
    ),
    mutant(
        "a_session_is_ended_without_a_claim",
        "a lease that ends a session is not renewed meanwhile",
        "sqlite_sessions.Sessions._is_over",
        "self._is_alive(session_id, is_claimed=True)",
        "self._is_alive(session_id)",
        f"{_TEST_LEASES}::test_a_session_is_not_ended_while_its_owner_renews_the_lease",
    ),
    mutant(
        "a_lapsed_lease_is_renewed",
        "expiry is strict",
        "sqlite_sessions.Sessions.renew",
        "not is_listed or lease.until_ns <= now_ns or not lease.lock.has_lease_in_place",
        "not is_listed or not lease.lock.has_lease_in_place",
        f"{_TEST_LEASES}::test_a_lapsed_lease_is_not_renewed",
    ),
    mutant(
        "a_session_ends_by_an_old_look_at_its_lease",
        "expiry is strict",
        "sqlite_sessions.Sessions._is_over",
        "not self._is_alive(session_id, is_claimed=True)",
        "True",
        f"{_TEST_LEASES}::test_a_lease_that_was_renewed_in_time_ends_no_session",
    ),
    mutant(
        "an_owner_goes_on_without_its_lock_file",
        "the owner of a session treats it as over before others do",
        "sqlite_sessions.Sessions.renew",
        "not is_listed or lease.until_ns <= now_ns or not lease.lock.has_lease_in_place",
        "not is_listed or lease.until_ns <= now_ns",
        f"{_TEST_LEASES}::test_a_session_without_its_lock_file_ends_for_its_owner_before_it_ends_for_others",
    ),
    mutant(
        "a_lock_file_that_was_moved_counts",
        "the owner of a session treats it as over before others do",
        "SessionLock.has_lease_in_place",
        "_same_file(self._descriptor, self._path) and _read_lease(self._descriptor) is not None",
        "_read_lease(self._descriptor) is not None",
        f"{_TEST_LEASES}::test_a_session_without_its_lock_file_ends_for_its_owner_before_it_ends_for_others[move]",
    ),
    mutant(
        "a_lease_that_was_missing_once_is_not_waited_for_again",
        "the owner of a session treats it as over before others do",
        "sqlite_sessions.Sessions._is_current",
        "self._missed_since_ns.pop(session_id, None)",
        "",
        f"{_TEST_LEASES}::test_a_lease_that_is_missing_for_a_second_time_is_waited_for_again",
    ),
    mutant(
        "a_lock_file_that_stays_hides_which_nodes_are_gone",
        "a reaped session is announced to the watches",
        "sqlite_sessions._unlink",
        'logger.warning("the lock file of an ended session stays: %s", error)',
        "raise",
        f"{_TEST_LEASES}::test_a_session_ends_although_its_lock_file_cannot_be_removed",
    ),
    mutant(
        "the_lease_in_a_row_of_version_0_1_is_not_looked_at",
        "processes of two versions share a file",
        "sqlite_sessions.Sessions._is_current",
        "return until_ns > boot_clock_ns()",
        "return True",
        f"{_TEST_LEASES}::test_a_session_of_version_0_1_lives_by_the_lease_in_its_row",
    ),
    mutant(
        "znodes_are_made_open",
        "metadata contract",
        "Conversation.write",
        "Transaction([*first, *operations], session_id=number, acl=self._acl)",
        "Transaction([*first, *operations], session_id=number)",
        f"{_TEST_ACCESS}::test_every_znode_that_is_made_has_the_list_of_the_cluster",
    ),
    mutant(
        "a_process_that_works_goes_on_making_znodes_with_the_former_list",
        "metadata contract",
        "securing.secure",
        "await conversation.within_deadline(partial(_write_again, conversation, place))",
        "",
        f"{_TEST_ACCESS}::test_an_open_tree_is_secured_while_others_write",
    ),
    mutant(
        "who_is_denied_waits_for_the_deadline",
        "metadata contract",
        "ZooKeeperStore._judge",
        "self._be_refused(self._conversation.denial(denied.znode))",
        "link.cut()",
        f"{_TEST_ACCESS}::test_a_client_without_credentials_gets_one_clear_error_at_once",
    ),
    mutant(
        "the_authorities_of_the_machine_count_for_zookeeper",
        "SECURITY, the metadata store",
        "login.tls_context",
        "ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=tls.ca)",
        "ssl._create_unverified_context()",
        f"{_TEST_ACCESS}::test_a_server_whose_certificate_is_not_ours_is_refused_by_name",
    ),
    mutant(
        "what_is_decrypted_already_waits",
        "metadata contract",
        "_Handler.select",
        """
        if decrypted:
            ready, *rest = super().select(readable, *others[:-1], 0.0)
            return [*decrypted, *(one for one in ready if one not in decrypted)], *rest
        """,
        "",
        "tests/unit/test_zookeeper_login.py::test_what_is_decrypted_already_can_be_read",
    ),
    mutant(
        "a_password_that_others_may_read_is_used",
        "SECURITY, the metadata store",
        "login.load_auth",
        "stat.S_ISREG(mode) and mode & 0o077",
        "False",
        "tests/unit/test_zookeeper_login.py::test_a_file_that_others_may_read_is_refused",
    ),
)
