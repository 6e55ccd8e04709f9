"""Mutants at the edges of the rules of ledgers: writing, recovering, reading.

A mutant at an edge leaves the usual course as it is, and is wrong in one place only: a quorum or a range is
one too large or too small; a shell that has waited does not look again; a change between a read and a watch
is missed; a compare-and-set takes a version that was read at another time than its data; a wait has no
deadline; two errors with different promises are confused; or two durable steps come in the wrong order.
"""

from __future__ import annotations

from tests.mutants.mutant import equivalent, mutant

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
        "LedgerReader._lac",
        "self.metadata.last_fragment.first_entry - 1",
        "self.metadata.last_fragment.first_entry",
        f"{_SHELLS}client_rules.py::test_an_open_ledger_is_not_read_beyond_what_its_writer_confirmed",
        f"{_SHELLS}client_reader.py::test_waiting_ends_when_an_entry_is_appended_within_the_poll",
    ),
    mutant(
        "edge_the_end_is_what_a_former_ensemble_says",
        "A.0",
        "LedgerReader._ask_end",
        "self.metadata.is_closed or self.metadata.last_fragment == asked",
        "True",
        f"{_SHELLS}client_reader.py::test_the_end_is_known_after_bookies_were_replaced_one_after_another",
    ),
    mutant(
        "edge_a_reader_catches_up_with_the_entry_after_the_top",
        "rule 16",
        "ledger.reader.LedgerReader._learn_end",
        "self._poll_any(top - 1)",
        "self._poll_any(top)",
        f"{_SHELLS}client_reader.py::test_what_append_returned_can_be_read_at_once",
        f"{_SHELLS}client_reader.py::test_what_append_returned_can_be_read_though_a_bookie_is_behind",
    ),
    mutant(
        "edge_a_close_before_the_watch_is_set_is_missed",
        "watches",
        "LedgerReader._wait_beyond",
        """
        if self.metadata.is_closed or self.metadata.last_fragment.ensemble != ensemble:
            return
        await watch.wait()
        """,
        """
        await watch.wait()
        if self.metadata.is_closed or self.metadata.last_fragment.ensemble != ensemble:
            return
        """,
        f"{_SHELLS}client_reader.py::test_a_close_just_before_the_watch_ends_the_waiting",
    ),
    mutant(
        "edge_a_follower_ends_as_soon_as_the_store_is_away",
        "outages",
        "LedgerReader._wait_beyond",
        "self._check_in_touch(away)",
        "raise",
        f"{_SHELLS}client_reader.py"
        "::test_a_follower_goes_on_without_the_metadata_store_while_new_records_come",
    ),
    mutant(
        "edge_each_poll_cuts_off_a_slow_look_at_the_metadata",
        "outages",
        "LedgerReader._wait_beyond",
        "is_looking and self._lac <= entry_id",
        "False",
        f"{_SHELLS}client_reader.py"
        "::test_waiting_for_an_entry_ends_though_every_poll_is_shorter_than_the_silence_of_the_store",
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
        "edge_nobody_takes_over_from_a_follower_that_leaves",
        "tails",
        "LedgerTail.follow",
        "self._polled is None and self._at_end",
        "False",
        f"{_SHELLS}shared_tails.py::test_a_follower_takes_over_from_one_that_cannot_go_on",
    ),
    mutant(
        "edge_every_follower_wakes_for_each_entry",
        "tails",
        "LedgerTail._hand_out",
        "follower.next += 1",
        "follower.next += 1; follower.wakes.set()",
        f"{_SHELLS}shared_tails.py::test_the_task_that_fetches_sleeps_while_another_follower_hands_it_records",
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

MUTANTS = (*WRITING, *RECOVERING, *READING)
