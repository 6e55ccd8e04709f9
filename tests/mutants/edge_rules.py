"""Mutants at the edges of the rules, in every room.

A mutant here leaves the usual course as it is, and is wrong in one place only: a quorum or a range is one too
large or too small; a shell that has waited does not look again; a change between a read and a watch is
missed; a compare-and-set takes a version that was read at another time than its data; a wait has no deadline;
two errors with different promises are confused; or two durable steps come in the wrong order.
"""

from __future__ import annotations

from tests.mutants.mutant import Change, equivalent, mutant

_UNIT = "tests/unit/test_"
_SHELLS = "tests/shells/test_"
_SCENARIOS = "tests/scenarios/test_"

_PENDING = f"{_UNIT}pending.py::test_"
_CARRIED = f"{_UNIT}pending_carried.py::test_"
_WRITER = f"{_UNIT}writer_core.py::test_"
_RECOVERY = f"{_UNIT}recovery_core.py::test_"
_READER = f"{_UNIT}reader_core.py::test_"
_CLOSING = f"{_SHELLS}client_closing.py::test_"

WRITING = (
    mutant(
        "edge_a_striped_reach_takes_in_the_entry_that_lacks_its_quorum",
        "A.0",
        "PendingAdds._quorum_reach",
        "(residue - through - 1) % ensemble",
        "(residue - through) % ensemble",
        f"{_PENDING}a_striped_entry_counts_only_the_slots_of_its_write_set",
        f"{_PENDING}long_random_histories_agree_with_the_model_too_and_reach_every_kind_of_event",
    ),
    mutant(
        "edge_a_batch_that_is_confirmed_in_part_is_not_sent_again",
        "A.1 queue rule 3",
        "PendingAdds.take_sends",
        "batch.last <= slot.sent",
        "batch.first <= slot.sent",
        f"{_PENDING}a_failed_slot_is_sent_nothing_and_a_returned_one_all_that_it_has_not_confirmed",
        f"{_PENDING}long_random_histories_agree_with_the_model_too_and_reach_every_kind_of_event",
    ),
    mutant(
        "edge_a_short_batch_is_sent_to_a_slot_that_holds_nothing_of_it",
        "A.0",
        "PendingAdds._holds_any",
        "last - first + 1 >= replication.ensemble",
        "last - first + 1 >= replication.write_quorum",
        f"{_PENDING}a_slot_that_holds_nothing_of_a_batch_is_not_waited_for",
        f"{_PENDING}watermarks_sends_and_pins_are_those_of_a_model_that_keeps_a_set_for_every_entry",
    ),
    mutant(
        "edge_a_bookie_that_is_lost_again_while_it_is_replaced_ends_the_carrying",
        "A.1, rule 13",
        "PendingAdds.on_bookie_failed",
        """
        if not slot.replacing:
            self._stop_carrying(slot)
        """,
        "self._stop_carrying(slot)",
        f"{_CARRIED}what_settled_is_kept_though_the_bookie_that_leaves_comes_and_goes",
    ),
    mutant(
        "edge_a_replacement_that_connects_late_is_sent_what_is_not_settled_alone",
        "A.1, rule 13",
        "PendingAdds.on_bookie_connected",
        "self._carried.get(slot.index, self.settled)",
        "self.settled",
        f"{_CARRIED}a_replacement_that_connects_only_now_is_handed_it_as_well",
    ),
    mutant(
        "edge_what_is_pending_counts_against_the_bound_of_what_is_carried",
        "A.1, rule 13",
        "PendingAdds._retire",
        "self._settled_bytes() > CARRIED_BYTES_MAX",
        "self.byte_count > CARRIED_BYTES_MAX",
        f"{_CARRIED}what_is_kept_is_bounded",
    ),
    mutant(
        "edge_a_replacement_in_guaranteed_mode_is_sent_what_follows_the_lac",
        "A.4 rule 2",
        "PendingAdds.strip",
        "self._carried[index] = self.settled",
        "self._carried[index] = self.lac",
        f"{_CARRIED}in_guaranteed_mode_a_replacement_that_connects_only_now_is_handed_all_above_the_lafr",
    ),
    mutant(
        "edge_the_last_acknowledged_entry_pins_nobody",
        "A.4 rule 3, T16",
        "PendingAdds._keeps_committed",
        "reach >= self.lac",
        "reach >= self.lac - 1",
        f"{_PENDING}a_bookie_that_an_acknowledged_entry_needs_for_its_ack_quorum_is_pinned_in_both_modes",
    ),
    mutant(
        "edge_full_pinning_leaves_the_last_acknowledged_entry_out",
        "D17, T28",
        "PendingAdds._is_pinned",
        "entry_id <= self.lac",
        "entry_id < self.lac",
        f"{_PENDING}full_pinning_keeps_a_bookie_that_confirmed_any_committed_entry_above_the_lafr",
    ),
    mutant(
        "edge_the_attempts_of_a_finished_change_are_taken_for_those_of_the_next",
        "rule 13",
        "WriterCore.on_metadata_read",
        "self._attempts = []",
        "",
        f"{_WRITER}a_conflict_with_repair_of_an_older_fragment_keeps_what_repair_did",
    ),
    mutant(
        "edge_a_ledger_that_was_closed_at_the_lac_leaves_its_pending_adds_unknown",
        "D18",
        "WriterCore._closed_elsewhere",
        "last_entry > self.lac",
        "last_entry >= self.lac",
        f"{_WRITER}a_change_that_finds_the_ledger_closed_without_what_is_pending_fails_with_ledger_closed",
    ),
    mutant(
        "edge_a_writer_writes_again_what_it_read_before_the_conflict",
        "rule 13",
        "WriterCore.on_metadata_read",
        "self.metadata, self.version = stored, version",
        "self.version = version",
        f"{_WRITER}a_close_that_conflicts_with_repair_is_tried_again_with_the_same_end",
        f"{_WRITER}a_conflict_with_repair_of_an_older_fragment_keeps_what_repair_did",
    ),
    mutant(
        "edge_who_waits_for_room_looks_once",
        "window",
        "ledger.writer.LedgerWriter.wait_room",
        """
        while not self.has_room:
            self._check_alive()
            settled = pending.settled
            with trio.move_on_after(self._append_deadline_s) as patience:
                await self._room.park()
            if patience.cancelled_caught and self.replication.guaranteed and pending.settled == settled:
                self._check_alive()
                raise WriteQuorumUnavailable(
                    f"ledger {self.ledger_id}: the window is full of entries from {settled + 1} on that are "
                    f"not on their full write quorum; nothing was appended"
                )
        """,
        """
        if not self.has_room:
            self._check_alive()
            await self._room.park()
        """,
        f"{_SHELLS}client_writer.py::test_who_waits_for_room_looks_again_when_others_have_taken_it",
    ),
    equivalent(
        "edge_a_change_is_taken_in_after_the_end_of_its_writer",
        "A.1",
        "LedgerWriter._write_metadata",
        """
        if self._over.is_set():
            return
        """,
        "",
        f"{_CLOSING}a_writer_that_is_given_up_during_an_ensemble_change_uses_no_connection_any_more",
        because="the tasks of a writer that has ended are cancelled in the same turn, and the end of "
        "``_run`` detaches every connection again. The line says that the change may do nothing more",
    ),
    mutant(
        "edge_an_end_whose_write_is_not_settled_is_told_as_certain",
        "D18",
        "ledger.writer.LedgerWriter._run",
        "self._core.failure if self._core.is_over else None",
        "self._core.failure",
        f"{_CLOSING}a_client_that_is_closed_while_an_end_is_being_written_leaves_the_outcome_unknown",
    ),
    mutant(
        "edge_what_was_confirmed_in_the_burst_of_the_end_fails",
        "A.1",
        "ledger.writer.LedgerWriter._end",
        "self._confirmed.advance(core.lac)",
        "",
        f"{_SHELLS}client_writer.py::test_what_was_confirmed_just_before_the_end_is_acknowledged",
    ),
    mutant(
        "edge_a_bookie_that_left_with_all_its_entries_is_filed_for_repair",
        "rule 24",
        "SlotSinks.follow",
        "sink.tenure.lacks_any(first - 1)",
        "sink.tenure.lacks_any(first)",
        f"{_SCENARIOS}filing_for_repair.py::test_rule_24_a_bookie_that_left_with_all_its_entries_is_not_named",
    ),
    mutant(
        "edge_a_bookie_that_fences_just_this_ledger_counts_as_a_spare",
        "D27.1",
        "MemberWatch._look_at_reach",
        "info.fences_through < core.ledger_id",
        "info.fences_through <= core.ledger_id",
        f"{_SHELLS}client_reach.py::test_a_spare_that_fences_the_ledger_is_no_spare",
    ),
    mutant(
        "edge_a_read_only_member_leaves_without_one_to_take_its_place",
        "A.1",
        "MemberWatch._leave_read_only",
        "len(self._replacements(list(leaving), even_doubtful=False)) == len(leaving)",
        "True",
        f"{_SHELLS}client_read_only.py::test_without_a_spare_it_stays_and_changes_nothing",
    ),
)

RECOVERING = (
    mutant(
        "edge_a_fence_that_was_confirmed_late_still_counts_as_failed",
        "A.0",
        "LedgerRecovery.on_fence_ok",
        "self._unfenced.discard(slot)",
        "",
        f"{_RECOVERY}a_late_confirmation_of_a_fence_that_had_failed_counts",
    ),
    mutant(
        "edge_a_late_failure_undoes_a_confirmed_fence",
        "A.0",
        "LedgerRecovery.on_fence_failed",
        "self.phase is not Phase.FENCING or slot in self.fenced",
        "self.phase is not Phase.FENCING",
        f"{_RECOVERY}a_late_failure_of_a_fence_that_was_confirmed_undoes_nothing",
    ),
    mutant(
        "edge_an_answer_about_one_entry_counts_as_no_answer",
        "A.0",
        "LedgerRecovery.on_read",
        "through < ask.first",
        "through <= ask.first",
        f"{_RECOVERY}one_copy_is_enough_to_recover_an_entry",
    ),
    mutant(
        "edge_the_last_entry_of_a_cut_answer_is_not_denied",
        "A.0",
        "LedgerRecovery._judge",
        "entry_id > answer.through",
        "entry_id >= answer.through",
        f"{_RECOVERY}a_negative_quorum_ends_the_ledger_before_the_entry",
    ),
    mutant(
        "edge_reading_does_not_go_on_after_its_pause",
        "A.1",
        "LedgerRecovery.on_add_ok",
        """
        if self.phase is Phase.READING and not self._answers:
            self._ask_more()
        """,
        "",
        f"{_RECOVERY}reading_pauses_while_too_much_is_on_its_way_back_and_goes_on_afterwards",
    ),
    mutant(
        "edge_a_late_answer_is_judged_during_a_pause",
        "A.0",
        "LedgerRecovery._ask_more",
        "self._round += 1",
        "",
        f"{_RECOVERY}reading_pauses_while_too_much_is_on_its_way_back_and_goes_on_afterwards",
    ),
    mutant(
        "edge_the_closing_write_is_tried_again_at_its_old_version",
        "rule 13",
        "LedgerRecovery.on_metadata_read",
        "self.metadata, self.version = stored, version",
        "self.metadata = stored",
        f"{_RECOVERY}"
        "a_closing_write_that_conflicts_with_repair_of_an_older_fragment_is_tried_again_and_keeps_it",
    ),
    mutant(
        "edge_the_closing_write_is_tried_again_with_its_old_metadata",
        "rule 13",
        "LedgerRecovery.on_metadata_read",
        "self.metadata, self.version = stored, version",
        "self.version = version",
        f"{_RECOVERY}"
        "a_closing_write_that_conflicts_with_repair_of_an_older_fragment_is_tried_again_and_keeps_it",
    ),
    mutant(
        "edge_a_fence_has_no_deadline",
        "A.0",
        "_Recovery._fence",
        "REQUEST_TIMEOUT_S",
        "100 * REQUEST_TIMEOUT_S",
        f"{_SHELLS}client_recovery.py::"
        "test_recovery_with_too_few_bookies_fails_and_succeeds_when_they_are_back",
    ),
    mutant(
        "edge_as_many_bookies_as_an_ack_quorum_may_be_silent_after_a_restore",
        "A.0",
        "holders.with_holders",
        "len(silent) >= replication.ack_quorum",
        "len(silent) > replication.ack_quorum",
        f"{_SCENARIOS}restored_metadata.py::"
        "test_a_recovery_after_a_restore_waits_for_as_many_bookies_as_an_acknowledgement_has",
    ),
    mutant(
        "edge_a_bookie_in_limbo_holds_nothing_of_a_restored_ledger",
        "A.3",
        "write_holders.ask",
        "listing.pairs or listing.negative is Negative.UNKNOWN",
        "listing.pairs",
        f"{_SCENARIOS}restored_metadata.py::"
        "test_a_bookie_in_limbo_is_a_holder_of_a_ledger_that_comes_from_a_backup",
    ),
    mutant(
        "edge_holders_are_looked_for_once_though_the_metadata_changed",
        "rule 13",
        "recover_ledger",
        """
        while needs_holders(metadata):
            stored, version = await write_holders(
                metadata,
                version,
                registry=registry,
                pool=pool,
                environment=environment,
                accept_unreachable=accept_unreachable,
            )
            if stored is None:
                raise LedgerNotFound(ledger_id)
            metadata = stored
        """,
        """
        if needs_holders(metadata):
            stored, version = await write_holders(
                metadata,
                version,
                registry=registry,
                pool=pool,
                environment=environment,
                accept_unreachable=accept_unreachable,
            )
            if stored is None:
                raise LedgerNotFound(ledger_id)
            metadata = stored
        """,
        f"{_SCENARIOS}restored_metadata.py::"
        "test_holders_are_looked_for_again_if_the_metadata_changed_meanwhile",
    ),
)
READING = (
    mutant(
        "edge_a_bookie_that_denied_one_entry_is_not_asked_for_the_next",
        "A.0 regular read",
        "RangeRead.on_reply",
        "lane.said, lane.why = {}, {}",
        "",
        f"{_READER}a_bookie_that_lacks_one_entry_is_asked_for_the_next",
    ),
    mutant(
        "edge_the_last_entry_that_an_answer_covers_is_not_denied",
        "A.0 regular read",
        "RangeRead.on_reply",
        "entry_id <= through",
        "entry_id < through",
        f"{_READER}an_entry_does_not_exist_only_if_its_whole_write_set_says_so",
    ),
    mutant(
        "edge_damage_among_busy_bookies_is_corrupt",
        "rule 8",
        "RangeRead._conclude",
        "{_Said.UNKNOWN, _Said.BUSY} & {*said.values()}",
        "{_Said.UNKNOWN} & {*said.values()}",
        f"{_READER}a_bookie_that_stays_busy_has_said_nothing",
    ),
    mutant(
        "edge_the_entry_that_was_damaged_on_the_way_is_given_too",
        "rule 8",
        "read_range",
        "entry_id < broken",
        "entry_id <= broken",
        f"{_SHELLS}client_rules.py::test_rule_8_bytes_that_changed_on_the_way_say_nothing_of_the_copy",
    ),
    mutant(
        "edge_a_list_that_was_cut_is_about_all_that_was_asked_for",
        "A.0",
        "list_range",
        "reply.header.argument if pairs else max(last, reply.header.argument)",
        "max(last, reply.header.argument)",
        f"{_SHELLS}client_ranges.py::test_a_list_that_ends_early_says_how_far_it_is_complete",
    ),
    mutant(
        "edge_a_reader_begins_one_above_what_is_committed",
        "R-B3",
        "ledger.reader.LedgerReader.__init__",
        "metadata.fragments[-1].first_entry - 1",
        "metadata.fragments[-1].first_entry",
        f"{_SHELLS}client_rules.py::test_an_open_ledger_is_not_read_beyond_what_its_writer_confirmed",
        f"{_SHELLS}client_reader.py::test_waiting_ends_when_an_entry_is_appended_within_the_poll",
    ),
    mutant(
        "edge_the_end_is_what_a_former_ensemble_says",
        "A.0",
        "LedgerReader._ask_end",
        "self.metadata.is_closed or self.metadata.last_fragment.ensemble == asked",
        "True",
        f"{_SHELLS}client_reader.py::test_the_end_is_known_after_bookies_were_replaced_one_after_another",
    ),
    mutant(
        "edge_a_reader_catches_up_with_the_entry_after_the_top",
        "rule 16",
        "ledger.reader.LedgerReader.last_add_confirmed",
        "self._poll_any(top - 1)",
        "self._poll_any(top)",
        f"{_SHELLS}client_reader.py::test_what_append_returned_can_be_read_at_once",
        f"{_SHELLS}client_reader.py::test_what_append_returned_can_be_read_though_a_bookie_is_behind",
    ),
    mutant(
        "edge_a_close_before_the_watch_is_set_is_missed",
        "watches",
        "LedgerReader._follow_metadata",
        """
        await self.refresh()
        while not self.metadata.is_closed and self.metadata.last_fragment.ensemble == ensemble:
            await watch.wait()
            await self.refresh()
        """,
        """
        while not self.metadata.is_closed and self.metadata.last_fragment.ensemble == ensemble:
            await watch.wait()
            await self.refresh()
        """,
        f"{_SHELLS}client_reader.py::test_a_close_just_before_the_watch_ends_the_waiting",
    ),
    mutant(
        "edge_waiting_beyond_an_entry_ends_with_the_entry",
        "rule 16",
        "LedgerReader.wait_beyond",
        "self.is_closed or self._lac > entry_id",
        "self.is_closed or self._lac >= entry_id",
        f"{_SHELLS}client_reader.py::test_waiting_ends_when_an_entry_is_appended_within_the_poll",
    ),
    mutant(
        "edge_following_a_ledger_ends_before_its_last_entry",
        "D12",
        "ledger.reader.LedgerReader.follow",
        "next_entry > self._end()",
        "next_entry >= self._end()",
        f"{_SHELLS}client_reader.py::test_following_gives_an_entry_that_was_confirmed_with_the_close",
    ),
    mutant(
        "edge_a_follower_that_was_woken_does_not_look_whether_it_is_its_turn",
        "tails",
        "_Turn.wait_round",
        """
        while self._is_taken:
            await self._over.park()
        """,
        """
        if self._is_taken:
            await self._over.park()
        """,
        f"{_SHELLS}shared_tails.py::test_one_of_those_who_wait_does_the_work_that_failed",
    ),
    equivalent(
        "edge_work_that_failed_counts_as_done_for_the_others",
        "tails",
        "_Turn.taken",
        """
        try:
            yield
            self.rounds += 1
        finally:
            self._is_taken = False
            self._over.unpark_all()
        """,
        """
        try:
            yield
        finally:
            self.rounds += 1
            self._is_taken = False
            self._over.unpark_all()
        """,
        f"{_SHELLS}shared_tails.py::test_a_follower_that_asked_for_all_may_leave",
        because="who waited comes back without an entry, which ``wait_beyond`` allows, or looks for the "
        "entry again in ``read``; then one of them does the work",
    ),
    mutant(
        "edge_kept_entries_stay_when_reading_jumps",
        "tails",
        "LedgerTail._read_for_all",
        "self._kept.clear()",
        "",
        f"{_SHELLS}shared_tails.py::test_what_was_kept_before_a_jump_is_not_given_for_other_entries",
    ),
    mutant(
        "edge_a_poll_has_no_deadline",
        "rule 16",
        "LedgerReader._lac_of",
        "REQUEST_TIMEOUT_S + wait_ms / 1000",
        "100 * REQUEST_TIMEOUT_S + wait_ms / 1000",
        f"{_SHELLS}client_reader.py::test_the_end_is_unavailable_in_time_where_every_bookie_hangs",
    ),
)

_GOING_ON = f"{_SHELLS}going_on.py::test_"
_RESTORED = f"{_SCENARIOS}restored_metadata.py::test_"

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
            await self._event.wait()
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
        await _delete_others(store, seen, restored)
        await store.sync()
        await _put(store, CLUSTER, f"{backup.cluster}:{restored.restoration.floor:x}".encode())
        """,
        """
        await store.sync()
        await _put(store, CLUSTER, f"{backup.cluster}:{restored.restoration.floor:x}".encode())
        await _delete_others(store, seen, restored)
        """,
        f"{_RESTORED}a_restore_that_breaks_off_leaves_a_store_that_refuses_all_but_another",
    ),
    equivalent(
        "edge_a_restore_writes_its_floor_after_the_nodes",
        "restore",
        "restore.restore",
        """
        await _put(store, RESTORED, restored.restoration.encode())
        await _write_nodes(store, backup, restored, now_ms)
        """,
        """
        await _write_nodes(store, backup, restored, now_ms)
        await _put(store, RESTORED, restored.restoration.encode())
        """,
        f"{_RESTORED}a_restore_that_breaks_off_leaves_a_store_that_refuses_all_but_another",
        because="until the id of the cluster is written at the very end, everybody refuses the store, and a "
        "restore that broke off has to begin again",
    ),
)

_QUEUE = f"{_SCENARIOS}repair_queue.py::test_"
_EMPTYING = f"{_SCENARIOS}emptying_bookies.py::test_"
_REPAIR = f"{_UNIT}repair_core.py::test_"

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
        """
        self._store.transaction(
            (Check(repair_worker_path(worker.token), worker.version), Delete(path, node.version))
        )
        """,
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

_ELECTION = f"{_UNIT}election_core.py::test_"
_ELECTIONS = "tests/election/test_election.py::test_"

ELECTION = (
    mutant(
        "edge_candidates_are_listed_before_the_record_is_read",
        "election",
        "_Stand._do",
        """
        node = await store.get(path)
        candidates = await store.children(candidates_path(self._name))
        """,
        """
        candidates = await store.children(candidates_path(self._name))
        node = await store.get(path)
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
        "is_ours and claimed is not None and record is not None and record.term == claimed.term",
        "is_ours and record is not None",
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

_LOG_WRITER = f"{_SHELLS}log_writer.py::test_"
_CURSORS = f"{_SHELLS}log_cursors.py::test_"
_CHAIN = f"{_UNIT}log_chain.py::test_"
_RETENTION = f"{_SHELLS}log_retention.py::test_"

LOG = (
    mutant(
        "edge_a_deposed_leader_does_not_look_who_leads_now",
        "log",
        "LogLeader.refuse",
        "await self._learn_successor()",
        "pass",
        f"{_LOG_WRITER}who_is_refused_is_told_of_a_successor_that_came_since",
    ),
    mutant(
        "edge_a_roll_is_over_before_the_older_ledger_is_counted",
        "log",
        "LogLeader.roll",
        "before in (chain.current, chain.draining)",
        "before == chain.current",
        f"{_LOG_WRITER}a_roll_goes_on_in_a_new_ledger_and_closes_the_old_one",
    ),
    equivalent(
        "edge_a_cancelled_takeover_does_not_clean_up",
        "log",
        "ledgerlog.log.takeover._run",
        "trio.move_on_after(METADATA_TIMEOUT_S, shield=True)",
        "trio.move_on_after(METADATA_TIMEOUT_S)",
        f"{_LOG_WRITER}a_takeover_that_is_cancelled_leaves_no_ledger",
        because="a cancellation finds a ledger of the takeover only while its write is under way, when it "
        "has to stay, or while it is being deleted. One ledger may be left to a sweep",
    ),
    mutant(
        "edge_a_takeover_forgets_the_producers_of_the_epoch_that_began_to_remember_them",
        "log",
        "load_producers",
        "segment.epoch < metadata.dedupe_epoch",
        "segment.epoch <= metadata.dedupe_epoch",
        f"{_SHELLS}log_producers.py::test_a_repeat_is_found_after_a_takeover_and_after_rolls",
    ),
    mutant(
        "edge_a_cursor_may_not_pin_the_first_record",
        "log",
        "Cursor._operations",
        "state.offset < metadata.first_offset",
        "state.offset <= metadata.first_offset",
        f"{_CURSORS}a_pin_holds_against_truncation_and_retention",
    ),
    mutant(
        "edge_a_cursor_is_read_from_a_replica_that_is_behind",
        "log",
        "log.cursors.Cursor.get",
        "await self._client.store.sync()",
        "",
        f"{_CURSORS}a_cursor_is_read_as_it_was_last_moved",
    ),
    mutant(
        "edge_a_truncation_up_to_a_pin_is_refused",
        "log",
        "truncate.shorten",
        "pin.offset < before_offset",
        "pin.offset <= before_offset",
        f"{_CURSORS}a_pin_holds_against_truncation_and_retention",
    ),
    mutant(
        "edge_retention_counts_what_a_former_attempt_would_have_dropped",
        "log",
        "apply_retention.shorten",
        "gone_records = 0",
        "",
        f"{_RETENTION}retention_that_a_pin_overtakes_drops_and_deletes_nothing",
    ),
    mutant(
        "edge_ledgers_are_deleted_that_only_a_former_attempt_left_out",
        "log",
        "_delete_unlisted",
        "dropped - listed",
        "dropped",
        f"{_RETENTION}retention_that_a_pin_overtakes_drops_and_deletes_nothing",
    ),
    mutant(
        "edge_a_log_that_was_just_made_is_not_found",
        "log",
        "LogRegistry.find",
        """
        if node is None:
            # A read may be older than the log, if another client has just created it.
            await self._store.sync()
            node = await self._store.get(path)
        """,
        "",
        f"{_SHELLS}log_names.py::test_a_log_that_was_just_made_is_found_and_listed_on_every_replica",
    ),
    mutant(
        "edge_logs_are_listed_by_a_replica_that_is_behind",
        "log",
        "LogRegistry.list",
        "await self._store.sync()",
        "",
        f"{_SHELLS}log_names.py::test_a_log_that_was_just_made_is_found_and_listed_on_every_replica",
    ),
    mutant(
        "edge_an_end_that_an_operator_made_is_counted_as_ours",
        "D27.9",
        "ChainMaintenance._close",
        "last != writer.last_add_pushed",
        "False",
        f"{_LOG_WRITER}a_ledger_that_an_operator_ended_short_is_not_counted_as_it_was_sent",
    ),
    mutant(
        "edge_a_record_that_could_not_be_read_is_not_read_again",
        "watches",
        "ChainMaintenance.step",
        "self._reread = self._reread or need is ChainNeed.SETTLE",
        "pass",
        f"{_LOG_WRITER}an_idle_leader_that_could_not_read_the_record_reads_it_again",
    ),
    mutant(
        "edge_a_change_while_the_record_is_read_is_forgotten",
        "watches",
        "ChainMaintenance._read",
        """
        self._reread = False
        known = (chain.metadata, chain.version)
        chain.on_record(*await self._registry.read(chain.metadata.incarnation, known=known))
        """,
        """
        known = (chain.metadata, chain.version)
        chain.on_record(*await self._registry.read(chain.metadata.incarnation, known=known))
        self._reread = False
        """,
        f"{_LOG_WRITER}an_idle_leader_learns_of_a_successor_who_came_while_it_read_the_record",
    ),
    mutant(
        "edge_a_takeover_whose_write_did_not_happen_yet_makes_another_ledger",
        "C02",
        "Takeover._is_settled_by",
        "metadata is not None and version == self.version",
        "False",
        f"{_CHAIN}a_takeover_whose_write_did_not_happen_yet_writes_the_same_again",
    ),
    mutant(
        "edge_a_ledger_that_continues_a_short_one_is_behind_a_loss",
        "D27.9",
        "Counting.on_recovered",
        "contents.first_offset > self._end",
        "contents.first_offset >= self._end",
        f"{_CHAIN}records_that_continue_a_ledger_that_was_ended_short_are_behind_no_loss",
    ),
    mutant(
        "edge_a_roll_that_met_a_truncation_is_written_as_it_was",
        "C02",
        "LeaderChain.on_record",
        """
        self.metadata, self.version = metadata, version
        self._tried = None
        """,
        "self.metadata, self.version = metadata, version",
        f"{_CHAIN}a_roll_that_meets_a_truncation_is_formed_anew_on_what_is_there",
    ),
    mutant(
        "edge_a_spare_is_given_back_while_its_roll_is_written",
        "C03",
        "LeaderChain.take_spare",
        "self._tried is not None",
        "False",
        f"{_CHAIN}a_spare_that_an_unsettled_write_may_have_listed_is_not_deleted",
    ),
    equivalent(
        "edge_leaving_drops_a_roll_whose_write_has_begun",
        "C03",
        "LeaderChain.finish",
        "self._tried is None or self._counts is not None",
        "True",
        f"{_CHAIN}a_leader_that_leaves_ends_its_roll_closes_its_ledger_and_gives_back_the_spare",
        f"{_CHAIN}every_interleaving_of_two_takeovers_and_a_roll_keeps_the_rules",
        because="while a roll is tried, its write is what the chain needs and its spare is not given back, "
        "whether the roll is still wanted or not. What settles the write ends the wish too",
    ),
    mutant(
        "edge_a_roll_before_the_watch_is_set_is_missed_by_a_reader",
        "watches",
        "LogReader._next_segment",
        """
        async with self._client.store.watch(log_record_path(self._metadata.incarnation)) as watch:
            while True:
                await self._refresh()
                found = self._after(segment)
                if found is not None or self._metadata.sealed:
                    return found
                if not self._follow:
                    undecided = await find_undecided_loss(self._client.ledgers, self._metadata)
                    if undecided is not None:
                        raise undecided
                    return None
                await watch.wait()
        """,
        """
        while True:
            await self._refresh()
            found = self._after(segment)
            if found is not None or self._metadata.sealed:
                return found
            if not self._follow:
                undecided = await find_undecided_loss(self._client.ledgers, self._metadata)
                if undecided is not None:
                    raise undecided
                return None
            async with self._client.store.watch(
                log_record_path(self._metadata.incarnation)
            ) as watch:
                await watch.wait()
        """,
        f"{_SHELLS}log_reader.py::test_a_takeover_just_before_the_watch_does_not_stop_a_follower",
    ),
)

_REPLICA = "tests/machine/test_replica.py::test_"

MACHINE = (
    mutant(
        "edge_an_unknown_outcome_is_told_as_not_written",
        "machine",
        "Leading.run",
        "self._answer(error)",
        "self._answer(self._definite(error))",
        "tests/machine/test_leading.py::"
        "test_an_outcome_that_is_unknown_is_told_as_unknown_and_nothing_more_is_proposed",
    ),
    mutant(
        "edge_proposals_are_taken_after_an_unknown_outcome",
        "machine",
        "Leading.run",
        """
        self._is_over, failure = True, failure or error
        self._answer(error)
        """,
        """
        failure = failure or error
        self._answer(error)
        """,
        "tests/machine/test_leading.py::"
        "test_an_outcome_that_is_unknown_is_told_as_unknown_and_nothing_more_is_proposed",
    ),
    mutant(
        "edge_a_replica_leads_though_another_has_appended_since",
        "machine",
        "Replica._lead_with",
        "self._core.next_offset != writer.next_offset",
        "False",
        f"{_REPLICA}who_is_overtaken_before_he_leads_follows_on",
    ),
    equivalent(
        "edge_a_replica_leads_while_it_still_follows",
        "machine",
        "Replica._pause_following",
        "await self._parked.wait()",
        "pass",
        f"{_REPLICA}a_leadership_that_ends_while_following_stops_lets_it_go_on",
        f"{_REPLICA}what_is_proposed_to_the_leader_is_applied_by_all",
        because="a cancellation reaches a task that waits at once, and all records up to the end of the log "
        "are applied before. So nothing is left that following could apply",
    ),
    mutant(
        "edge_a_gap_that_was_passed_is_restored_again",
        "machine",
        "Replica._follow_always",
        """
        await self._restore(gap)
        gap = None
        """,
        "await self._restore(gap)",
        f"{_REPLICA}a_replica_that_slept_through_a_truncation_restores",
    ),
    mutant(
        "edge_two_snapshots_are_taken_at_once",
        "machine",
        "SnapshotManager.take",
        """
        while self._is_saving:
            await self._saved.wait()
        """,
        """
        if self._is_saving:
            await self._saved.wait()
        """,
        f"{_REPLICA}snapshots_that_are_asked_for_at_once_are_taken_one_after_the_other",
    ),
    mutant(
        "edge_the_log_is_truncated_before_enough_snapshots_are_kept",
        "machine",
        "SnapshotManager._forget_old",
        "len(kept) >= self.kept and leader is not None",
        "kept and leader is not None",
        f"{_REPLICA}snapshots_are_taken_and_the_log_truncated_behind_them",
    ),
    mutant(
        "edge_a_snapshot_that_just_covers_a_gap_is_too_short",
        "machine",
        "SnapshotManager.restore",
        "info.next_offset < least",
        "info.next_offset <= least",
        f"{_REPLICA}a_snapshot_that_ends_where_a_gap_ends_covers_it",
    ),
)

_ARCHIVES = "tests/archive/test_archive_registry.py::test_"
_MARKER = "tests/archive/test_archive_marker.py::test_"

ARCHIVE = (
    mutant(
        "edge_a_merge_during_a_listing_of_an_archive_leaves_a_ledger_out",
        "archive",
        "ArchiveRegistry.of_log",
        "len(found) == len(components)",
        "True",
        f"{_ARCHIVES}a_listing_during_a_merge_leaves_no_ledger_out",
    ),
    mutant(
        "edge_a_marker_whose_record_may_be_stored_is_deleted",
        "archive",
        "Markers._make.write",
        """
        if not is_unsure:
            await in_thread(lambda: destination.delete(name), file=destination.url)
        """,
        "await in_thread(lambda: destination.delete(name), file=destination.url)",
        f"{_MARKER}a_destination_is_claimed_though_the_answer_is_lost",
    ),
    mutant(
        "edge_a_destination_that_was_claimed_meanwhile_is_refused",
        "archive",
        "Markers.claim",
        """
        if await self._places.find(where) is not None:
            continue
        """,
        "",
        f"{_MARKER}a_job_that_sees_the_first_records_of_another_looks_for_its_marker_again",
    ),
    mutant(
        "edge_a_destination_gets_its_id_by_a_version_that_is_newer_than_its_record",
        "archive",
        "Markers._addressed",
        "found is None or found[0] != place",
        "found is None",
        f"{_MARKER}a_destination_that_another_job_gave_its_id_just_before_keeps_it",
    ),
)

_AIO = "tests/aio/test_aio.py::test_"

FACES = (
    mutant(
        "edge_an_act_wakes_the_other_loop_before_it_can_be_found",
        "aio",
        "Mailbox.put",
        """
        self._acts.append(act)
        if not self._is_awake:
            self._is_awake = True
            self._wake(self._run)
        """,
        """
        if not self._is_awake:
            self._is_awake = True
            self._wake(self._run)
        self._acts.append(act)
        """,
        f"{_AIO}what_gathers_for_the_other_loop_wakes_it_once",
        f"{_AIO}an_act_is_there_when_the_other_loop_wakes",
    ),
    mutant(
        "edge_a_cancelled_call_does_not_wait_for_its_end",
        "aio",
        "Bridge.wait",
        """
        self._to_trio.put(cancel)
        await asyncio.wait([future])
        raise
        """,
        """
        self._to_trio.put(cancel)
        raise
        """,
        f"{_AIO}a_cancelled_append_leaves_the_writer_in_order",
        f"{_AIO}a_cancelled_call_has_ended_when_the_cancellation_comes_out",
    ),
    mutant(
        "edge_a_connection_leaves_its_oldest_context_first",
        "aio",
        "Bridge.close",
        "reversed(list(self._held))",
        "list(self._held)",
        f"{_AIO}a_connection_that_is_left_leaves_its_contexts_from_the_newest_on",
    ),
    equivalent(
        "edge_a_context_that_was_entered_for_a_cancelled_caller_stays_open",
        "aio",
        "HeldContext.wait_entered",
        "self._tell_leave(is_failed=True, at_once=True)",
        "pass",
        f"{_AIO}a_body_that_is_cancelled_leaves_the_ledger_to_the_next_leader",
        because="to cancel the call cancels the scope of the context, entered or not. Leaving it as well "
        "is the ordinary end of a context that was entered",
    ),
    mutant(
        "edge_what_arrived_before_a_failure_is_not_given",
        "crossing",
        "Fetched.take",
        "not taken and self.is_complete and self.failure is not None",
        "self.is_complete and self.failure is not None",
        f"{_AIO}what_arrived_before_a_failure_is_given_first",
    ),
)

_ENGINE = "tests/storage/test_engine.py::test_"
_BOOKIE_LEDGER = f"{_UNIT}bookie_ledger.py::test_"
_MARKS = f"{_UNIT}loss_marks.py::test_"
_ORACLE = f"{_SHELLS}deletion_oracle.py::test_"
_LIMBO = f"{_SHELLS}limbo_repair.py::test_"
_GONE = "tests/storage/test_rows_of_deleted_ledgers.py::test_"

BOOKIE = (
    mutant(
        "edge_a_fence_that_waited_for_room_is_answered_without_a_record",
        "rule 2",
        "Fencer._fence",
        """
        while not state.fence_sequence:
            if self._journal.append(FENCE, encode_fence(state.ledger_id, state.key)) is not None:
                self._journal.active.marked.add(state.ledger_id)
                state.fence_sequence = self._commit.sequence
                if state.key_sequence is None:
                    state.key_sequence = state.fence_sequence
            elif self._journal.is_disk_full:
                await trio.lowlevel.checkpoint()
                return Status.DISK_FULL
            else:
                await self._journal.progress.park()
        """,
        """
        if not state.fence_sequence:
            if self._journal.append(FENCE, encode_fence(state.ledger_id, state.key)) is not None:
                self._journal.active.marked.add(state.ledger_id)
                state.fence_sequence = self._commit.sequence
                if state.key_sequence is None:
                    state.key_sequence = state.fence_sequence
            elif self._journal.is_disk_full:
                await trio.lowlevel.checkpoint()
                return Status.DISK_FULL
            else:
                await self._journal.progress.park()
        """,
        f"{_ENGINE}a_fence_that_waited_for_room_is_answered_once_it_is_durable",
    ),
    mutant(
        "edge_a_fence_without_a_place_in_the_journal_is_settled",
        "rule 2",
        "BookieLedger.is_fence_settled",
        "0 < self.fence_sequence <= durable",
        "self.fence_sequence <= durable",
        f"{_BOOKIE_LEDGER}a_fence_is_settled_only_once_its_own_block_is_durable",
    ),
    mutant(
        "edge_the_newest_durable_entry_is_not_told",
        "rule 3",
        "BookieLedger.last_durable",
        "run.sequence <= durable",
        "run.sequence < durable",
        f"{_BOOKIE_LEDGER}the_last_durable_entry_is_in_the_newest_durable_block",
    ),
    mutant(
        "edge_an_add_is_acknowledged_with_the_block_before_its_own",
        "rule 1",
        "Adder._append",
        "return self._commit.newest",
        "return self._commit.durable",
        f"{_ENGINE}an_add_is_durable_only_once_its_write_returned",
    ),
    equivalent(
        "edge_an_add_that_is_here_in_part_does_not_wait_for_that_part",
        "rule 7",
        "Adder._add_some",
        "max(verdict, newest)",
        "verdict",
        f"{_ENGINE}rule_7_an_entry_sent_again_waits_for_the_sync_of_the_first",
        "tests/storage/test_unsynced_writes.py",
        because="in the journal the new part is in the newest block. In the write cache it waits for the "
        "block of the key, and the only add of the ledger that went through the journal is in that block",
    ),
    mutant(
        "edge_the_last_ledger_of_a_range_is_not_in_limbo",
        "A.3",
        "LossMarks.denies_nothing",
        "ledger_id <= limbo[at][1]",
        "ledger_id < limbo[at][1]",
        f"{_MARKS}after_a_loss_every_ledger_up_to_the_highest_id_is_fenced_and_in_limbo_and_none_above",
    ),
    mutant(
        "edge_a_second_loss_by_a_store_that_was_restored_forgets_fences",
        "rule 4",
        "LossMarks.after_loss",
        "max(self.fenced_through, highest_ledger_id)",
        "highest_ledger_id",
        f"{_MARKS}a_second_loss_puts_cleared_ledgers_into_limbo_again_and_forgets_no_fence",
    ),
    mutant(
        "edge_in_limbo_an_entry_just_before_an_unreadable_one_is_denied",
        "A.3",
        "loss_marks.undenied",
        "answer.through >= first",
        "answer.through > first",
        f"{_MARKS}an_answer_in_limbo_denies_nothing_before_an_entry_that_cannot_be_read",
    ),
    mutant(
        "edge_a_lost_list_of_gone_ledgers_is_made_anew_before_the_marks",
        "D27.2",
        "settle_marks",
        """
        await kept.change(lambda _: after)
        await write_gone(directory.disk, directory.path, instance, GoneLedgers())
        """,
        """
        await write_gone(directory.disk, directory.path, instance, GoneLedgers())
        await kept.change(lambda _: after)
        """,
        f"{_LIMBO}a_crash_after_a_lost_list_of_gone_ledgers_is_marked_by_the_next_start",
    ),
    mutant(
        "edge_the_newest_ledger_stays_in_limbo",
        "D27.6",
        "_complement",
        "(*ledger_ids, through + 1)",
        "(*ledger_ids, through)",
        f"{_LIMBO}deleted_ledgers_leave_limbo_and_stay_fenced",
    ),
    mutant(
        "edge_what_cannot_be_read_now_is_told_as_lost",
        "A.3",
        "LimboRepair._copy",
        "isinstance(failure, EntryNotFound | EntryCorrupt)",
        "isinstance(failure, LedgerLogError)",
        f"{_LIMBO}what_a_silent_bookie_may_have_is_not_named_as_lost",
    ),
    mutant(
        "edge_the_newest_ledger_is_never_surely_gone",
        "rule 25",
        "MetadataDeletionOracle.surely_gone",
        "ledger_id > highest",
        "ledger_id >= highest",
        f"{_ORACLE}the_newest_ledger_can_be_gone_too",
    ),
    mutant(
        "edge_ids_that_were_not_given_out_are_absent",
        "rule 25",
        "MetadataDeletionOracle.absent",
        "last = min(last, await store.highest_id(LEDGER_COUNTER))",
        "",
        f"{_ORACLE}ids_without_a_ledger_are_absent_and_later_ones_are_not",
    ),
    mutant(
        "edge_ledgers_are_gone_by_what_a_replica_that_is_behind_says",
        "rule 25",
        "MetadataDeletionOracle.surely_gone",
        """
        await store.sync()
        highest = await store.highest_id(LEDGER_COUNTER)
        """,
        "highest = await store.highest_id(LEDGER_COUNTER)",
        f"{_ORACLE}a_ledger_that_a_replica_has_not_seen_yet_is_not_gone",
    ),
    mutant(
        "edge_a_ledger_is_deleted_before_its_record_is_durable",
        "rule 4",
        "Collector._delete",
        "await journal.wait_durable(sequence)",
        "",
        f"{_GONE}a_ledger_is_gone_for_readers_once_that_is_durable",
    ),
    mutant(
        "edge_a_deleted_ledger_is_forgotten_before_it_is_noted",
        "rule 4",
        "Collector._purge",
        """
        await self._note(ledger_ids)
        await self._ledgers.remove(ledger_ids)
        """,
        """
        await self._ledgers.remove(ledger_ids)
        await self._note(ledger_ids)
        """,
        f"{_GONE}a_crash_between_deleting_and_writing_the_ranges_forgets_nothing",
    ),
    mutant(
        "edge_a_conflict_ends_the_doubt_of_an_earlier_registration",
        "registration",
        "Registration._keep",
        "self._is_in_doubt = was_in_doubt",
        "self._is_in_doubt = False",
        f"{_SHELLS}server_registration.py::test_a_conflict_after_a_lost_answer_leaves_the_doubt",
    ),
    mutant(
        "edge_a_bookie_that_turns_read_only_while_it_looks_at_its_node_stays_in_its_list",
        "watches",
        "Registration.run",
        "self._changed = trio.Event()",
        "",
        f"{_SHELLS}server_registration.py::test_a_bookie_that_turns_read_only_while_it_looks_at_its_node_is_moved",
        also=(
            Change(
                "Registration.run",
                "await _wait_for_a_change(self._changed, session, writable, read_only)",
                """
                self._changed = trio.Event()
                await _wait_for_a_change(self._changed, session, writable, read_only)
                """,
            ),
        ),
    ),
)

MUTANTS = (
    *WRITING,
    *RECOVERING,
    *READING,
    *METADATA,
    *REPAIR,
    *ELECTION,
    *CONCURRENCY,
    *LOG,
    *MACHINE,
    *ARCHIVE,
    *FACES,
    *BOOKIE,
)
