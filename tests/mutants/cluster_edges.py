"""Mutants at the edges of what keeps a cluster: its metadata, repair and elections, and waiting tasks.

``ledger_edges`` says what an edge is.
"""

from __future__ import annotations

from tests.mutants.mutant import Change, equivalent, mutant

_UNIT = "tests/unit/test_"
_SHELLS = "tests/shells/test_"
_SCENARIOS = "tests/scenarios/test_"
_CLOSING = f"{_SHELLS}client_closing.py::test_"
_GOING_ON = f"{_SHELLS}going_on.py::test_"
_RESTORED = f"{_SCENARIOS}restored_metadata.py::test_"
_QUEUE = f"{_SCENARIOS}repair_queue.py::test_"
_EMPTYING = f"{_SCENARIOS}emptying_bookies.py::test_"
_REPAIR = f"{_UNIT}repair_core.py::test_"
_ELECTION = f"{_UNIT}election_core.py::test_"
_ELECTIONS = "tests/election/test_election.py::test_"

METADATA = (
    mutant(
        "edge_after_a_lost_answer_a_replica_that_is_behind_is_read",
        "rule 14",
        "settle.settle",
        "doubt is not None or refusals",
        "refusals",
        f"{_GOING_ON}a_change_is_decided_anew_on_a_store_that_has_caught_up",
    ),
    mutant(
        "edge_after_a_conflict_a_replica_that_is_behind_is_read",
        "rule 13",
        "settle.settle",
        "doubt is not None or refusals",
        "doubt is not None",
        f"{_GOING_ON}a_change_is_decided_anew_on_a_store_that_has_caught_up",
    ),
    mutant(
        "edge_conflicts_without_end_after_a_lost_answer_say_that_nothing_was_written",
        "rule 14",
        "settle.settle",
        """
        if doubt is not None:
            raise MetadataOutcomeUnknown(f"{why}; it may have happened") from refusal
        """,
        "",
        f"{_GOING_ON}conflicts_without_end_leave_the_outcome_of_a_lost_answer_unknown",
    ),
    mutant(
        "edge_a_removal_believes_a_replica_that_is_behind",
        "rule 14",
        "settle.remove",
        """
        if not is_unsure:
            await store.sync()
        """,
        "",
        f"{_GOING_ON}a_removal_sees_the_node_that_was_made_just_before",
    ),
    mutant(
        "edge_settings_are_changed_by_what_a_replica_that_is_behind_says",
        "rule 13",
        "StoredSettings.change.write",
        """
        if not is_unsure:
            await store.sync()
        """,
        "",
        f"{_SHELLS}rival_updates.py::"
        "test_a_change_that_takes_a_rivals_back_is_made_though_a_replica_is_behind",
    ),
    equivalent(
        "edge_an_unsure_intent_is_attempted_without_a_look",
        "rule 14",
        "LedgerRegistry.attempt.write",
        "stored is None or stored[1] != intent.version",
        "False",
        f"{_CLOSING}a_lost_answer_to_the_closing_write_is_found_out",
        f"{_CLOSING}a_lost_answer_to_an_ensemble_change_is_found_out",
        because="a write at a version that is not stored any more is a conflict, and a conflict is settled "
        "by what is stored. The look saves a write that cannot succeed",
    ),
    mutant(
        "edge_a_conflict_is_settled_by_a_replica_that_is_behind",
        "rule 13",
        "LedgerRegistry.attempt.write",
        "await self._read_fresh(wanted.ledger_id) or (None, 0)",
        "await self.find(wanted.ledger_id) or (None, 0)",
        f"{_SHELLS}client_rules.py::"
        "test_rule_14_a_conflict_is_settled_by_what_is_stored_and_not_by_a_replica_that_is_behind",
    ),
    mutant(
        "edge_a_deletion_of_another_version_is_tried_again",
        "errors",
        "LedgerRegistry.delete",
        "settle(self._store, write, what=f'the deletion of ledger {ledger_id}', conflicts=())",
        "settle(self._store, write, what=f'the deletion of ledger {ledger_id}')",
        f"{_SHELLS}client_rules.py::test_a_ledger_that_changed_since_it_was_read_is_not_deleted",
    ),
    mutant(
        "edge_a_page_of_the_newest_ledgers_begins_with_its_bound",
        "lists",
        "LedgerRegistry.newest",
        "below is None or ledger_id < below",
        "below is None or ledger_id <= below",
        "tests/console/test_console.py::test_pages_go_on_behind_the_last_name_and_below_the_last_id",
    ),
    mutant(
        "edge_a_watch_that_fired_once_never_waits_again",
        "watches",
        "TreeWatch.mark",
        "self._event = trio.Event()",
        "",
        f"{_GOING_ON}a_watch_waits_for_the_next_change_after_each",
    ),
    mutant(
        "edge_a_wait_that_is_cancelled_takes_the_change_with_it",
        "watches",
        "TreeWatch.wait",
        """
        await trio.lowlevel.checkpoint()
        if not self._flag:
            await event.wait()  # It is set if the change came during the checkpoint, for another task too.
        self._flag = False
        """,
        """
        was, self._flag = self._flag, False
        await trio.lowlevel.checkpoint()
        if not was:
            await self._event.wait()
            self._flag = False
        """,
        f"{_GOING_ON}a_watch_remembers_a_change_that_nobody_has_waited_for",
    ),
    mutant(
        "edge_a_change_before_the_wait_is_not_remembered",
        "watches",
        "TreeWatch.mark",
        "self._flag = True",
        "",
        f"{_GOING_ON}a_watch_remembers_a_change_that_nobody_has_waited_for",
    ),
    mutant(
        "edge_a_restore_says_that_it_is_done_before_the_rest_is_deleted",
        "restore",
        "restore.restore",
        """
        await _delete_others(store, turn, seen, restored)
        if was_empty and secure is not None:
            await turn.require()
            await secure()
        await store.sync()
        await turn.end(f"{backup.cluster}:{restored.restoration.floor:x}".encode())
        """,
        """
        await store.sync()
        await turn.end(f"{backup.cluster}:{restored.restoration.floor:x}".encode())
        await _delete_others(store, turn, seen, restored)
        """,
        f"{_RESTORED}a_restore_that_breaks_off_leaves_a_store_that_refuses_all_but_another",
    ),
    equivalent(
        "edge_a_restore_writes_its_floor_after_the_nodes",
        "restore",
        "restore.restore",
        """
        await turn.put(RESTORED, restored.restoration.encode())
        await _write_nodes(store, turn, backup, restored, now_ms)
        """,
        """
        await _write_nodes(store, turn, backup, restored, now_ms)
        await turn.put(RESTORED, restored.restoration.encode())
        """,
        f"{_RESTORED}a_restore_that_breaks_off_leaves_a_store_that_refuses_all_but_another",
        because="until the id of the cluster is written at the very end, everybody refuses the store, and a "
        "restore that broke off has to begin again",
    ),
)

REPAIR = (
    mutant(
        "edge_a_request_about_former_data_empties_the_bookie_of_today",
        "draining",
        "RepairQueue.requests",
        "cookie is None or cookie[0].instance == draining.instance",
        "True",
        f"{_EMPTYING}a_bookie_formatted_anew_under_the_id_of_an_emptied_one_is_another",
    ),
    mutant(
        "edge_a_bookie_that_turns_read_only_during_a_look_is_not_registered",
        "rule 22",
        "RepairQueue.registered",
        "(READ_ONLY_BOOKIES, WRITABLE_BOOKIES, READ_ONLY_BOOKIES)",
        "(READ_ONLY_BOOKIES, WRITABLE_BOOKIES)",
        f"{_QUEUE}a_bookie_that_moves_between_the_lists_is_registered_all_the_time",
    ),
    mutant(
        "edge_a_bookie_that_turns_read_only_between_two_reads_is_not_registered",
        "rule 22",
        "RepairQueue.is_registered",
        "(read_only, writable, read_only)",
        "(read_only, writable)",
        f"{_QUEUE}a_bookie_that_moves_between_the_lists_is_registered_all_the_time",
    ),
    mutant(
        "edge_who_is_registered_is_read_from_a_replica_that_is_behind",
        "rule 22",
        "RepairQueue.registered",
        "await self._store.sync()",
        "",
        f"{_QUEUE}a_bookie_that_has_just_registered_is_seen_on_every_replica",
    ),
    mutant(
        "edge_the_end_of_one_request_takes_the_next_one_with_it",
        "draining",
        "RepairQueue.end_request.write",
        "Draining.decode_untrusted(node.value, done.bookie_id).instance == done.instance",
        "True",
        f"{_SHELLS}rival_updates.py::test_a_request_that_is_fulfilled_takes_no_later_one_with_it",
    ),
    mutant(
        "edge_an_emptied_bookie_takes_the_cookie_of_its_successor_with_it",
        "draining",
        "RepairQueue.forget_cookie.write",
        "cookie is None or cookie[0].instance != draining.instance",
        "cookie is None",
        f"{_SHELLS}rival_updates.py",
        f"{_EMPTYING}a_bookie_formatted_anew_under_the_id_of_an_emptied_one_is_another",
        f"{_EMPTYING}the_cookie_of_a_bookie_that_was_formatted_anew_stays",
    ),
    mutant(
        "edge_a_lock_is_released_whoever_has_it_by_now",
        "rule 22",
        "RepairQueue.unlock",
        "self._store.transaction((worker.check, Delete(path, node.version)))",
        "self._store.delete(path, version=node.version)",
        f"{_QUEUE}a_lock_that_another_worker_took_between_two_steps_stays",
    ),
    mutant(
        "edge_a_request_is_tidied_away_though_it_is_a_new_one_by_now",
        "draining",
        "RepairQueue.tidy",
        "self._store.delete(draining_path(bookie_id), version=node.version)",
        "self._store.delete(draining_path(bookie_id))",
        f"{_QUEUE}a_request_that_was_made_between_two_steps_of_tidying_stays",
    ),
    mutant(
        "edge_a_bookie_is_decommissioned_after_one_look",
        "draining",
        "decommission.decommission",
        "looks < 2",
        "looks < 1",
        f"{_EMPTYING}a_bookie_is_emptied_under_load_without_disturbing_a_writer",
        f"{_EMPTYING}a_ledger_that_a_writer_made_during_the_first_look_is_seen_by_the_second",
    ),
    mutant(
        "edge_the_second_look_does_not_wait_for_recoveries",
        "draining",
        "decommission.decommission",
        "_RECOVERED_S if found.in_recovery else _SETTLED_S",
        "_SETTLED_S",
        f"{_EMPTYING}a_recovery_that_is_under_way_is_waited_for_before_the_second_look",
    ),
    mutant(
        "edge_a_bookie_is_lost_only_after_the_moment_that_was_told",
        "rule 22",
        "Absences.lost",
        "since + delay_s <= now",
        "since + delay_s < now",
        f"{_UNIT}audit_core.py::test_a_bookie_is_lost_when_it_was_absent_for_the_whole_delay",
    ),
    mutant(
        "edge_news_that_reach_the_auditor_during_its_look_are_forgotten",
        "watches",
        "Auditor._watch_bookies",
        "self._wake = trio.Event()",
        "",
        f"{_QUEUE}a_bookie_that_goes_while_the_auditor_looks_is_noticed_at_once",
        also=(
            Change(
                "Auditor._watch_bookies",
                "await self._wake.wait()",
                "self._wake = trio.Event()\nawait self._wake.wait()",
            ),
        ),
    ),
    mutant(
        "edge_a_last_round_of_one_entry_is_left_out",
        "rule 20",
        "FragmentRepair._look",
        "self._next > self.end",
        "self._next >= self.end",
        f"{_REPAIR}everything_that_the_lost_slots_hold_is_copied_and_nothing_else",
        f"{_REPAIR}the_last_entry_is_copied_though_it_has_a_round_of_its_own",
    ),
    mutant(
        "edge_repair_writes_again_what_it_read_before_the_conflict",
        "rule 13",
        "FragmentRepair.on_metadata_read",
        "self.metadata, self.version = stored, version",
        "self.version = version",
        f"{_REPAIR}rule_13_a_conflict_with_the_owners_change_keeps_what_he_wrote",
    ),
    equivalent(
        "edge_a_bookie_that_never_confirms_a_copy_is_waited_for",
        "deadlines",
        "Target._wait",
        "trio.move_on_after(_ANSWER_S)",
        "trio.CancelScope()",
        f"{_SCENARIOS}repair_that_is_crossed.py::test_the_bookie_that_copies_go_to_is_lost",
        because="a connection has deadlines of its own: to be made, and for the answer to each add. The "
        "bound here keeps that from being a promise of another room",
    ),
)

ELECTION = (
    mutant(
        "edge_candidates_are_listed_before_the_record_is_read",
        "election",
        "_Stand._look",
        """
        node = await store.get(election_path(self._name))
        candidates = await store.children(candidates_path(self._name))
        """,
        """
        candidates = await store.children(candidates_path(self._name))
        node = await store.get(election_path(self._name))
        """,
        f"{_ELECTIONS}a_leader_that_registers_while_a_standby_looks_is_not_taken_for_gone",
    ),
    mutant(
        "edge_a_claim_does_not_check_its_registration",
        "election",
        "_Stand._claim",
        """
        (
            Check(candidate_path(self._name, core.me), core.node_version),
            Set(election_path(self._name), claim.encode(), core.version),
        )
        """,
        "(Set(election_path(self._name), claim.encode(), core.version),)",
        f"{_ELECTIONS}a_claim_whose_registration_has_just_gone_is_not_written",
        also=(Change("_Stand._claim", "versions[1]", "versions[0]"),),
    ),
    mutant(
        "edge_leaving_an_election_waits_for_the_store",
        "deadlines",
        "_Stand.leave",
        "trio.move_on_after(ELECTION_STEP_DOWN_S, shield=True)",
        "trio.CancelScope(shield=True)",
        f"{_ELECTIONS}who_leaves_does_not_wait_long_for_a_store_that_hangs",
    ),
    mutant(
        "edge_a_tenure_begins_again_with_every_write_of_the_record",
        "election",
        "Candidacy.on_looked",
        "record is None or self.record is None or record.term != self.record.term",
        "version != self.version",
        f"{_ELECTION}the_tenure_is_counted_from_when_the_term_was_first_seen",
    ),
    mutant(
        "edge_a_registration_of_a_session_that_is_over_counts",
        "election",
        "Candidacy.on_registered",
        """
        if session_id == self._session_id:
            self.me, self.node_version = me, version
        """,
        "self.me, self.node_version = me, version",
        f"{_ELECTION}a_new_session_needs_a_new_registration",
    ),
    equivalent(
        "edge_a_beat_of_a_former_term_ends_the_suspicion_of_the_next",
        "election",
        "Candidacy.on_beat",
        """
        if self._suspected == term:
            self._suspected = None
        """,
        "self._suspected = None",
        f"{_ELECTION}suspicion_waits_for_the_tenure_and_ends_with_a_beat",
        f"{_ELECTION}whatever_happens_terms_are_led_once_and_only_while_registered_and_if_strict_connected",
        because="a term is claimed for a suspicion only if its own beat was the last one heard. After a "
        "beat of another term, only a beat of this one can bring that about, and that ends the suspicion",
    ),
    mutant(
        "edge_the_node_that_one_left_behind_counts_as_anothers",
        "election",
        "Candidacy.leave",
        """
        if self.me is not None:
            self._former |= {self.me}
        """,
        "",
        f"{_ELECTION}a_term_that_an_earlier_candidacy_of_ones_own_has_is_claimed_at_once",
        f"{_ELECTION}an_offer_ends_with_the_last_standby",
    ),
    mutant(
        "edge_a_term_that_was_not_claimed_is_led",
        "election",
        "Candidacy.on_looked",
        """
        is_ours and self._is_connected and claimed is not None and (record is not None) and (
            record.term == claimed.term
        )
        """,
        "is_ours and self._is_connected and record is not None",
        f"{_ELECTION}a_term_of_ours_that_was_left_is_followed_by_a_new_one_and_not_resumed",
        f"{_ELECTION}a_claim_that_took_effect_after_the_session_ended_is_worth_nothing",
    ),
)

CONCURRENCY = (
    mutant(
        "edge_an_error_during_the_cancellation_is_the_answer",
        "concurrency",
        "gathering._run.run",
        """
        if is_ended:
            return
        """,
        "",
        f"{_SHELLS}gathering.py::test_what_the_loser_of_a_race_raises_while_it_is_cancelled_decides_nothing",
    ),
    mutant(
        "edge_the_last_failure_of_a_watermark_stands",
        "concurrency",
        "Watermark.fail",
        """
        if self.failure is not None:
            return
        """,
        "",
        f"{_SHELLS}watermark.py::test_a_failure_reaches_everybody_who_waits_and_everybody_who_comes_later",
    ),
    mutant(
        "edge_a_group_with_a_cancellation_is_a_failure_of_the_body",
        "concurrency",
        "nurseries._opened",
        "holds_cancellation(error)",
        "isinstance(error, trio.Cancelled)",
        f"{_SHELLS}nurseries.py::test_a_nursery_that_its_body_cancels_catches_that_in_a_group_too",
    ),
    mutant(
        "edge_a_new_rate_holds_for_the_time_before_it_too",
        "concurrency",
        "TokenBucket.change_rate",
        "self._gather(now)",
        "",
        f"{_UNIT}rate.py::test_another_rate_pays_no_debt_for_the_time_before_it",
    ),
    mutant(
        "edge_cancelled_waiters_count_for_ever",
        "concurrency",
        "Watermark._wake",
        "self._dead -= 1",
        "",
        f"{_SHELLS}watermark.py::test_giving_up_again_and_again_before_a_stalled_watermark_holds_no_memory",
    ),
)

MUTANTS = (*METADATA, *REPAIR, *ELECTION, *CONCURRENCY)
