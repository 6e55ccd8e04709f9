"""Mutants of the auditor, the worker and the queue between them."""

from __future__ import annotations

from tests.mutants.mutant import Change, mutant

_ROOM = "ledgerlog/repair"
_LOST = "tests/scenarios/test_repair_of_lost_bookies.py"
_OPEN = "tests/scenarios/test_repair_of_open_ledgers.py"
_CROSSED = "tests/scenarios/test_repair_that_is_crossed.py"
_LACKING = "tests/scenarios/test_repair_of_what_bookies_lack.py"
_BOARD = "tests/scenarios/test_repair_queue.py"
_DAMAGED = "tests/scenarios/test_repair_of_damaged_records.py"
_EMPTYING = "tests/scenarios/test_emptying_bookies.py"

_PLACEMENT = "tests/unit/test_placement.py"

MUTANTS = (
    mutant(
        "task_is_removed_at_whatever_version",
        "rule 22",
        "RepairQueue.remove.write",
        "Delete(path, version)",
        "Delete(path)",
        f"{_BOARD}::test_a_task_that_grows_while_it_is_worked_on_is_not_removed",
    ),
    mutant(
        "task_is_removed_by_a_worker_whose_session_is_over",
        "rule 22",
        "RepairQueue.remove.write",
        "(Check(repair_worker_path(worker.token), worker.version), Delete(path, version))",
        "(Delete(path, version),)",
        f"{_BOARD}::test_a_worker_that_was_cut_off_does_not_remove_a_task_that_was_made_since",
    ),
    mutant(
        "a_lock_of_ones_own_is_somebody_elses",
        "rule 22",
        "RepairQueue.lock.write",
        "await self._store.sync()",
        "return False",
        f"{_BOARD}::test_a_lock_that_could_not_be_let_go_of_is_taken_up_again_by_its_worker",
    ),
    mutant(
        "somebody_elses_lock_is_let_go",
        "rule 22",
        "RepairQueue.unlock",
        "node is None or node.value != worker.token.encode()",
        "node is None",
        f"{_BOARD}::test_a_worker_that_was_cut_off_does_not_remove_a_task_that_was_made_since",
    ),
    mutant(
        "auditor_begins_with_what_it_hears",
        "rule 22",
        "Auditor._lead",
        "self._found = self._audited = None",
        "self._found, self._audited = None, frozenset()",
        f"{_LOST}::test_rule_22_a_bookie_of_which_only_its_name_in_metadata_is_left_is_missed",
        also=(Change("Auditor._lead", "trio.current_time()", "trio.current_time() + 3600"),),
    ),
    mutant(
        "bookie_that_came_and_went_during_a_pass_was_looked_for",
        "rule 22",
        "Auditor._watch_bookies",
        "self._passing &= found.gone",
        "",
        f"{_LOST}::test_rule_22_a_bookie_that_comes_and_goes_during_a_pass_is_looked_for_again",
    ),
    mutant(
        "look_at_this_moment_misses_who_came_during_it",
        "rule 22",
        "pass_over_now",
        "there |= (await queue.registered()).keys() - frozenset(draining)",
        "",
        f"{_BOARD}::test_a_bookie_that_registers_during_a_pass_is_not_missed_by_it",
    ),
    mutant(
        "status_counts_tasks_alone",
        "rule 22",
        "status_fields",
        "set() if passed is None else set(passed.affected)",
        "set()",
        f"{_BOARD}::test_status_an_audit_and_the_auditor_find_the_same_ledgers",
    ),
    mutant(
        "auditor_does_not_miss_whom_metadata_names",
        "rule 22",
        "Auditor._watch_bookies",
        "{*self._named, *await self._queue.known()}",
        "{*await self._queue.known()}",
        f"{_LOST}::test_rule_22_a_bookie_of_which_only_its_name_in_metadata_is_left_is_missed",
    ),
    mutant(
        "absent_bookie_is_lost_at_once",
        "rule 22",
        "Absences.lost",
        "since + delay_s",
        "since",
        "tests/unit/test_audit_core.py",
        f"{_LOST}::test_a_bookie_that_is_back_before_the_delay_costs_no_copy",
    ),
    mutant(
        "bookie_that_is_back_is_replaced_all_the_same",
        "rule 20",
        "LedgerRepair._gone",
        "bookie in named and bookie not in gone and not await self._queue.is_registered(bookie)",
        "bookie in named and bookie not in gone",
        f"{_LOST}::test_a_bookie_that_is_back_before_its_task_is_worked_on_is_kept",
    ),
    mutant(
        "open_ledger_is_recovered_without_grace",
        "rule 20",
        "LedgerRepair._what_holds_up_the_end",
        "0",
        "3600",
        f"{_OPEN}::test_rule_20_an_open_ledger_without_a_writer_is_recovered_after_the_grace_period",
    ),
    mutant(
        "writer_is_stopped_though_nobody_could_take_the_lost_ones_place",
        "rule 20",
        "LedgerRepair._what_holds_up_the_end",
        """
        self._seen.pop(metadata.ledger_id, None)
        return Verdict(_words(trouble))
        """,
        "",
        f"{_OPEN}::test_rule_20_without_a_spare_a_live_writer_is_not_stopped",
    ),
    mutant(
        "open_ledger_is_recovered_without_a_second_look",
        "rule 20",
        "LedgerRepair._run",
        "held_up is None and await self._is_still_so(metadata, gone)",
        "held_up is None",
        f"{_OPEN}::test_rule_20_before_it_recovers_a_ledger_a_worker_looks_again",
    ),
    mutant(
        "writer_is_stopped_though_his_ledger_could_not_be_closed",
        "rules 20, 21",
        "LedgerRepair._what_holds_up_the_end",
        "not metadata.replication.covers(there)",
        "not there and not ensemble",
        f"{_OPEN}::test_a_writer_whose_bookies_all_lost_their_registration_is_not_fenced",
        f"{_OPEN}::test_an_open_ledger_whose_last_bookies_are_all_gone_stays_open_and_says_what_to_do",
    ),
    mutant(
        "one_fragment_that_is_stuck_holds_up_all",
        "rule 22",
        "LedgerRepair._repair_now",
        "attempt.stuck[first, finding.lost[0]] = _words(trouble)",
        "raise",
        f"{_CROSSED}::test_a_fragment_that_cannot_be_repaired_does_not_hold_up_the_others",
    ),
    mutant(
        "one_bookies_entries_that_nobody_has_hold_up_its_whole_fragment",
        "rule 22",
        "LedgerRepair._repair_now",
        "attempt.one_by_one.add(first)",
        "attempt.stuck.update(((first, b), _words(trouble)) for b in finding.lost)",
        f"{_CROSSED}::test_a_lost_bookie_whose_entries_nobody_has_does_not_hold_up_another_of_its_fragment",
    ),
    mutant(
        "task_names_whom_it_named_for_ever",
        "rule 22",
        "_Attempt.stands",
        "self.gone is None",
        "self.gone is not None",
        f"{_BOARD}::test_a_task_that_is_stuck_names_nobody_who_is_back",
    ),
    mutant(
        "task_names_whose_place_was_given_away",
        "rule 22",
        "_Attempt.stands",
        "(bookie for bookie in bookies if self.named is None or bookie in self.named)",
        "(bookie for bookie in bookies if bookie)",
        f"{_BOARD}::test_a_task_names_nobody_whose_place_was_given_away",
    ),
    mutant(
        "grace_of_a_former_loss_counts",
        "rule 20",
        "LedgerRepair._run",
        "self._seen.pop(task.ledger_id, None)",
        "",
        f"{_OPEN}::test_rule_20_a_bookie_that_is_lost_again_leaves_its_writer_the_whole_time_again",
    ),
    mutant(
        "task_with_a_stuck_fragment_is_done",
        "rule 22",
        "_together",
        """
        if not left:
            return verdict
        """,
        "return verdict",
        f"{_CROSSED}::test_a_fragment_that_cannot_be_repaired_does_not_hold_up_the_others",
        f"{_CROSSED}::test_an_entry_that_nobody_has_leaves_the_ledger_as_it_is_and_says_so",
    ),
    mutant(
        "who_is_emptied_is_not_asked_for_what_it_alone_has",
        "rule 21",
        "RangeRead.__init__",
        "even_holder",
        "even_holder and bookies",
        f"{_EMPTYING}::test_a_bookie_that_alone_has_something_is_emptied_too",
    ),
    mutant(
        "bookie_that_has_repaired_its_damage_is_replaced_all_the_same",
        "rule 24",
        "LedgerRepair._damaged",
        "await self._copying.is_sound(metadata, bookie)",
        "not task",
        f"{_LACKING}::test_a_bookie_that_has_repaired_its_damage_keeps_its_place",
    ),
    mutant(
        "bookie_reads_a_damaged_ledger_at_each_try",
        "rule 19",
        "LedgerRepair._damaged",
        "self._unsound[key] = trio.current_time()",
        "",
        f"{_LACKING}::test_a_bookie_is_not_made_to_read_a_damaged_ledger_at_each_try",
    ),
    mutant(
        "what_bookies_read_for_repair_is_not_held_to_the_rate",
        "rule 19",
        "Copying.is_sound",
        "self.pacer.pass_through(SCRUB_BYTES)",
        "self.pacer.pass_through(0)",
        f"{_LACKING}::test_what_a_bookie_reads_to_find_its_copy_sound_counts_against_the_rate",
    ),
    mutant(
        "damage_is_taken_for_repaired_unheard",
        "rules 8, 24",
        "Copying.is_sound",
        "answer is None or answer.report.unsound or answer.through < first",
        "answer is None or answer.through < first",
        f"{_LACKING}::test_a_damaged_copy_at_a_fragments_end_is_replaced",
    ),
    mutant(
        "lost_bookie_that_comes_and_goes_is_back",
        "rule 22",
        "LedgerRepair._complete",
        "bookie in task.lost",
        "bookie not in task.lost",
        f"{_LOST}::test_a_lost_bookie_that_comes_and_goes_is_not_taken_for_one_that_is_back",
        also=(
            Change(
                "LedgerRepair._complete",
                "bookie not in (attempt.gone or ())",
                "bookie in (attempt.gone or ())",
            ),
        ),
    ),
    mutant(
        "damaged_task_stops_the_auditor",
        "rule 22",
        "post_task.write",
        'logger.error("%s; it is made anew", damage)',
        "raise damage",
        f"{_BOARD}::test_a_task_whose_record_is_damaged_holds_up_no_other_and_is_made_anew",
    ),
    mutant(
        "damaged_settings_stop_repair",
        "rule 22",
        "SettingsInForce.read",
        "is_news, self.damage = str(damage) != self.damage, str(damage)",
        """
        is_news = False
        raise damage
        """,
        f"{_DAMAGED}::test_damaged_settings_are_told_and_the_last_ones_hold",
    ),
    mutant(
        "settings_that_nobody_can_read_are_no_pause",
        "rule 19",
        "SettingsInForce._noted",
        "RepairSettings(paused=True)",
        "RepairSettings()",
        f"{_DAMAGED}::test_settings_that_nobody_has_ever_read_may_be_a_pause",
    ),
    mutant(
        "settings_that_could_be_read_are_not_noted",
        "rule 19",
        "SettingsInForce._noted",
        "return record.settings",
        "return RepairSettings(paused=record.settings is None)",
        f"{_DAMAGED}::test_a_pause_outlives_its_record_and_who_has_read_it",
    ),
    mutant(
        "damaged_request_to_empty_a_bookie_is_none",
        "rule 22",
        "RepairQueue.requests",
        "unknown[bookie_id] = str(damage)",
        "",
        f"{_DAMAGED}::test_a_bookie_of_which_nobody_can_tell_whether_it_is_to_be_emptied_is_left_alone",
    ),
    mutant(
        "damaged_task_is_left_where_it_is",
        "rule 22",
        "Worker._attempt",
        "await self._repair.make_anew(ledger_id)",
        "",
        f"{_DAMAGED}::test_a_damaged_task_is_made_anew_by_who_is_to_work_on_it",
    ),
    mutant(
        "holes_are_left_once_the_fragments_are_renamed",
        "rule 24",
        "LedgerRepair._run",
        "_together(attempt.reasons(), await self._complete(metadata, attempt, say))",
        "_together(attempt.reasons(), DONE)",
        f"{_LACKING}::test_rule_24_entries_below_the_write_quorum_are_found_by_lists_and_given",
    ),
    mutant(
        "full_check_looks_at_the_ends",
        "rule 24",
        "checking._look",
        "check_all",
        "check_all and metadata is None",
        f"{_LACKING}::test_rule_24_a_hole_between_the_ends_is_seen_by_the_full_check_alone",
    ),
    mutant(
        "new_bookie_that_was_lost_after_its_copies_is_named",
        "rules 22, 23",
        "_FragmentShell._look_at_targets",
        "core.on_target_lost(new, target.failure)",
        "continue",
        f"{_CROSSED}::test_a_new_bookie_that_is_lost_before_it_is_named_is_not_named",
    ),
    mutant(
        "new_bookie_is_named_whether_it_is_registered_or_not",
        "rule 22",
        "_FragmentShell._look_at_targets",
        """
        if registration is None:
            core.on_target_lost(new, "it is lost, or takes no ordinary writes any more")
        else:
            self._registrations[new] = Check(writable_path(new), registration.version)
        """,
        """
        if registration is None:
            continue
        if not registration:
            core.on_target_lost(new, "it is lost, or takes no ordinary writes any more")
        else:
            self._registrations[new] = Check(writable_path(new), registration.version)
        """,
        f"{_CROSSED}::test_a_new_bookie_whose_registration_goes_before_it_is_named_is_not_named",
        f"{_EMPTYING}::test_a_new_bookie_that_is_to_be_emptied_meanwhile_is_not_named",
    ),
    mutant(
        "new_bookie_is_named_though_it_left_since_the_last_look",
        "rule 22",
        "_FragmentShell._write",
        "self._copying.registry.attempt(intent, tuple(self._registrations.values()))",
        "self._copying.registry.attempt(intent)",
        "tests/scenarios/test_repair_beside_others.py::"
        "test_a_new_bookie_is_not_named_once_it_is_lost_or_to_be_emptied",
    ),
    mutant(
        "refusal_of_one_copy_is_passed_over",
        "rules 6, 23",
        "Target.on_add_refused",
        'self._fail(f"it refuses copies of ledger {self._ledger_id}: {status.name}")',
        """
        return self._tell()
        self._fail(f"it refuses copies of ledger {self._ledger_id}: {status.name}")
        """,
        f"{_CROSSED}::test_a_new_bookie_that_refuses_one_copy_is_not_named",
    ),
    mutant(
        "copies_are_not_held_to_the_rate",
        "rule 19",
        "Pacer.pass_through",
        "self._bucket.spend(byte_count, trio.current_time())",
        "self._bucket.spend(0, trio.current_time())",
        f"{_BOARD}::test_copies_are_made_at_the_rate_that_was_set_however_many_ledgers_wait",
    ),
    mutant(
        "each_worker_copies_what_the_cluster_may",
        "rule 19",
        "Worker._list",
        "await self._queue.worker_count()",
        "1",
        f"{_BOARD}::test_workers_share_the_rate_of_the_cluster",
    ),
    mutant(
        "worker_begins_before_it_knows_its_rate",
        "rule 19",
        "Worker._live",
        "await self._heed()",
        "",
        f"{_BOARD}::test_a_worker_does_nothing_before_it_has_read_its_settings",
    ),
    mutant(
        "tasks_that_cannot_be_done_are_tried_without_end",
        "rule 19",
        "Worker._wait",
        "1",
        "0",
        f"{_BOARD}::test_tries_that_fail_are_few_however_many_tasks_wait",
    ),
    mutant(
        "who_waits_for_a_writer_waits_as_long_as_was_set_once",
        "rule 20",
        "Worker._heed",
        "self._try_again()  # Who waits for a writer may have to wait no longer.",
        "pass  # Who waits for a writer may have to wait no longer.",
        f"{_BOARD}::test_a_shorter_grace_holds_for_who_waits_already",
    ),
    mutant(
        "who_waits_at_an_old_rate_waits_on",
        "rule 19",
        "Pacer.pass_through",
        "self._changed.wait",
        "trio.sleep_forever",
        "tests/shells/test_repair_pacer.py::test_who_waits_at_a_low_rate_goes_on_as_soon_as_it_is_raised",
    ),
    mutant(
        "draining_is_followed_by_whoever_has_the_id",
        "rule 4",
        "follow_draining",
        "Draining.decode_untrusted(node.value, cookie.bookie_id).instance == cookie.instance",
        "Draining.decode_untrusted(node.value, cookie.bookie_id).instance != ''",
        f"{_EMPTYING}::test_a_bookie_formatted_anew_under_the_id_of_an_emptied_one_is_another",
    ),
    mutant(
        "idle_writer_stays_with_a_bookie_that_is_emptied",
        "rule 20",
        "LedgerWriter._maintain",
        "self._leave_read_only()",
        "",
        f"{_EMPTYING}::test_a_bookie_is_emptied_under_load_without_disturbing_a_writer",
    ),
    mutant(
        "racks_are_not_kept_apart",
        "placement",
        "_places",
        "zone, None if rack is None else (zone, rack), host or _host_of(info.address)",
        "zone, None, host or _host_of(info.address)",
        "tests/unit/test_placement.py",
        f"{_LOST}::test_copies_go_to_other_racks_where_bookies_say_theirs",
    ),
    mutant(
        "the_ring_of_write_sets_is_open",
        "placement",
        "placement._write_sets",
        "[tuple((first + at) % ensemble for at in range(write_quorum)) for first in range(ensemble)]",
        "[tuple(first + at for at in range(write_quorum)) for first in range(ensemble - write_quorum + 1)]",
        f"{_PLACEMENT}::test_no_place_has_all_copies_of_an_entry_if_the_places_allow_it",
    ),
    mutant(
        "a_search_stops_where_no_exchange_helps",
        "placement",
        "choose_bookies",
        "search.improve(slots) or search.escape(slots)",
        "search.improve(slots)",
        f"{_PLACEMENT}::test_an_arrangement_is_found_that_no_single_exchange_leads_to",
    ),
)
