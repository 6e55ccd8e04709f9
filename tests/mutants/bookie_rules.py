"""Mutants of the bookie: what it refuses and promises, and when; its journal, and what a boot makes of it."""

from __future__ import annotations

from tests.mutants.mutant import Change, mutant

_TEST_STATE = "tests/unit/test_bookie_ledger.py"
_TEST_SEGMENT = "tests/unit/test_bookie_segment.py"
_TEST_READING = "tests/unit/test_bookie_reading.py"
_TEST_ENGINE = "tests/storage/test_engine.py"
_TEST_AT_ONCE = "tests/storage/test_commit_at_once.py"
_TEST_FAILURES = "tests/storage/test_storage_failures.py"
_TEST_CRASHES = "tests/storage/test_crash_states.py"
_TEST_UNSYNCED = "tests/storage/test_unsynced_writes.py"
_TEST_DAMAGE = "tests/storage/test_damage.py"
_TEST_SERVER = "tests/shells/test_server.py"
_SCHEDULE = (
    "tests/scenarios/test_schedules.py::test_production_code_does_not_take_the_step_that_breaks_a_ledger"
)

VERDICTS = (
    mutant(
        "a_request_that_fails_keeps_the_bytes_of_its_reply",
        "fair shares",
        "_Held.__exit__",
        "if kind is not None:\n    self._on_failure(self)",
        "pass",
        "tests/shells/test_server.py::test_a_request_that_fails_gives_the_bytes_of_its_reply_back",
    ),
    mutant(
        "regular_add_on_a_fenced_ledger",
        "A.1, T23",
        "BookieLedger.add_refusal",
        "self.is_fenced and not is_recovery",
        "self.is_fenced and self.ledger_id < 0",
        f"{_TEST_STATE}::test_an_ordinary_add_is_accepted_until_the_fence_and_refused_after_it",
        f"{_TEST_ENGINE}::test_rule_2_adds_fail_at_once_and_the_fence_is_answered_after_its_sync",
        f"{_SCHEDULE}[T23]",
    ),
    mutant(
        "large_buffers_are_made_for_each_frame",
        "memory",
        "FrameBuffer._leave_large",
        "self._spares.give(large)",
        "pass",
        "tests/unit/test_frame_buffer_memory.py::test_large_frames_use_the_same_memory_again",
    ),
    mutant(
        "a_spare_buffer_is_lent_twice",
        "memory",
        "SpareBuffers.take",
        "self._kept.remove(found)",
        "",
        "tests/unit/test_frame_buffer_memory.py::"
        "test_a_large_frame_stays_whole_until_its_connection_receives_again",
    ),
    mutant(
        "a_reply_lies_in_the_buffer_of_its_connection",
        "memory",
        "PeerSession._on_reply",
        "Frame(header, memoryview(bytes(frame.raw)))",
        "frame",
        "tests/shells/test_connection_requests.py::"
        "test_a_reply_stays_what_it_was_when_another_connection_gets_its_memory",
    ),
    mutant(
        "recovery_adds_are_fenced_too",
        "rule 5",
        "BookieLedger.add_refusal",
        "self.is_fenced and not is_recovery",
        "self.is_fenced",
        f"{_TEST_STATE}::test_recovery_adds_pass_the_fence",
    ),
    mutant(
        "recovery_adds_are_refused_by_a_read_only_bookie",
        "rule 5",
        "Adder.add",
        """
        if not is_recovery:
            if self.is_read_only:
                return Status.READ_ONLY
            if self.is_disk_full:
                return Status.DISK_FULL
        """,
        """
        if True:
            if self.is_read_only:
                return Status.READ_ONLY
            if self.is_disk_full:
                return Status.DISK_FULL
        """,
        f"{_TEST_ENGINE}::test_rule_5_recovery_adds_pass_the_fence_and_read_only",
    ),
    mutant(
        "wrong_key_fences",
        "rule 10",
        "BookieLedger.fence_refusal",
        "None if self.is_deleted or compare_digest(key, self.key) else Status.UNAUTHORIZED",
        "None",
        f"{_TEST_STATE}::test_a_wrong_key_is_refused_before_anything_else_and_changes_nothing",
        f"{_TEST_ENGINE}::test_rule_10_a_wrong_key_changes_nothing",
    ),
    mutant(
        "wrong_key_adds",
        "rule 10",
        "BookieLedger.add_refusal",
        """
        if not compare_digest(key, self.key):
            return Status.UNAUTHORIZED
        """,
        "",
        f"{_TEST_STATE}::test_a_wrong_key_is_refused_before_anything_else_and_changes_nothing",
    ),
    mutant(
        "last_entry_is_the_latest",
        "rule 6",
        "BookieLedger.on_run",
        "max(self.last_entry, run.last)",
        "run.last",
        f"{_TEST_STATE}::test_the_last_entry_is_the_highest_id_not_the_latest",
    ),
    mutant(
        "lac_is_the_latest_told",
        "rule 9, D10",
        "BookieLedger.tell",
        "lac > self.lac",
        "lac != self.lac",
        f"{_TEST_STATE}::test_lac_and_lafr_are_the_greatest_values_told",
    ),
    mutant(
        "evicted_while_in_use",
        "rule 3",
        "BookieLedger.is_evictable",
        "self.is_dirty or self.runs or self.pins",
        "self.is_dirty or self.runs",
        f"{_TEST_STATE}::test_a_state_leaves_memory_only_when_nothing_would_be_lost",
    ),
    mutant(
        "evicted_before_its_fence_is_durable",
        "rules 2 and 3",
        "BookieLedger.is_evictable",
        "not self.is_fenced or self.is_fence_settled(durable)",
        "True",
        f"{_TEST_STATE}::test_a_state_leaves_memory_only_when_nothing_would_be_lost",
    ),
)

FENCES = (
    mutant(
        "recovery_read_does_not_fence",
        "D5, R-B1, T01",
        "Engine.recovery_read",
        "await self.fence(ledger_id, key)",
        "FenceResult(Status.OK, NO_ENTRY, NO_ENTRY)",
        f"{_TEST_ENGINE}::test_a_recovery_read_of_an_unknown_ledger_fences_it_and_says_that_it_has_nothing",
        f"{_TEST_SERVER}::test_a_recovery_read_fences_before_it_answers",
    ),
    mutant(
        "recovery_read_fences_only_what_it_knows",
        "R-B1, T24",
        "Engine.recovery_read",
        "fenced = await self.fence(ledger_id, key)",
        """
        if self._ledgers.get(ledger_id) is None:
            fenced = FenceResult(Status.OK, NO_ENTRY, NO_ENTRY)
        else:
            fenced = await self.fence(ledger_id, key)
        """,
        f"{_TEST_ENGINE}::test_a_recovery_read_of_an_unknown_ledger_fences_it_and_says_that_it_has_nothing",
    ),
    mutant(
        "recovery_read_is_answered_before_the_fence",
        "R-B1",
        "Engine.recovery_read",
        """
        fenced = await self.fence(ledger_id, key)
        if fenced.status is not Status.OK:
            return ReadResult(fenced.status, no_entries(ledger_id), first - 1, NO_ENTRY, NO_ENTRY)
        return await self.read(
            ledger_id, first=first, last=last, stride=stride, bytes_max=bytes_max, pace=pace
        )
        """,
        """
        result = await self.read(
            ledger_id, first=first, last=last, stride=stride, bytes_max=bytes_max, pace=pace
        )
        fenced = await self.fence(ledger_id, key)
        if fenced.status is not Status.OK:
            return ReadResult(fenced.status, no_entries(ledger_id), first - 1, NO_ENTRY, NO_ENTRY)
        return result
        """,
        f"{_TEST_ENGINE}::"
        "test_rule_2_a_recovery_read_answers_after_the_fence_is_durable_and_sees_every_earlier_add",
    ),
    mutant(
        "fence_of_a_never_seen_ledger_is_ignored",
        "rule 1, T24",
        "Fencer.fence",
        """
        state = BookieLedger(ledger_id, key)
        self._ledgers.add(state)
        """,
        """
        await trio.lowlevel.checkpoint()
        return FenceResult(Status.OK, NO_ENTRY, NO_ENTRY)
        """,
        f"{_TEST_ENGINE}::test_rule_1_a_fence_of_an_unknown_ledger_refuses_its_late_first_add",
    ),
    mutant(
        "fence_is_answered_before_its_sync",
        "rule 2, T08",
        "Fencer._fence",
        "self._journal.wait_durable(state.fence_sequence)",
        "trio.lowlevel.checkpoint()",
        f"{_TEST_ENGINE}::test_rule_2_adds_fail_at_once_and_the_fence_is_answered_after_its_sync",
    ),
    mutant(
        "second_fencer_is_answered_before_the_first_sync",
        "rule 2",
        "BookieLedger.is_fence_settled",
        "self.is_fenced and (self.is_fence_durable or 0 < self.fence_sequence <= durable)",
        "self.is_fenced",
        f"{_TEST_STATE}::test_a_fence_is_settled_only_once_its_own_block_is_durable",
        f"{_TEST_ENGINE}::test_rule_2_a_second_fencer_waits_for_the_first_sync_and_adds_none",
        f"{_SCHEDULE}[T08]",
    ),
    mutant(
        "adds_pass_until_the_fence_is_durable",
        "rule 2",
        "BookieLedger.add_refusal",
        "self.is_fenced and not is_recovery",
        "self.is_fenced and self.fence_sequence and not is_recovery and not self.pins",
        f"{_TEST_ENGINE}::test_rule_2_adds_fail_at_once_and_the_fence_is_answered_after_its_sync",
    ),
    mutant(
        "fence_is_forgotten_by_a_crash",
        "rule 2, T08",
        "FoundLedgers.take",
        "self._state(fact.ledger_id, fact.key).on_fence_found()",
        "self._state(fact.ledger_id, fact.key)",
        f"{_TEST_ENGINE}::test_a_fence_outlives_stops_of_both_kinds",
    ),
    mutant(
        "fence_is_forgotten_by_a_clean_stop",
        "rule 2, T08",
        "BookieLedger.restore",
        """
        cls(
            ledger_id,
            stored.key,
            is_fenced=stored.is_fenced,
            key_sequence=0,
            is_fence_durable=stored.is_fenced,
            lac=stored.lac,
            lafr=stored.lafr,
            last_entry=stored.last_entry,
            index_last=stored.last_entry,
            widest=stored.widest,
            straddle=stored.straddle,
        )
        """,
        """
        cls(
            ledger_id,
            stored.key,
            is_fenced=False,
            key_sequence=0,
            is_fence_durable=stored.is_fenced,
            lac=stored.lac,
            lafr=stored.lafr,
            last_entry=stored.last_entry,
            index_last=stored.last_entry,
            widest=stored.widest,
            straddle=stored.straddle,
        )
        """,
        f"{_TEST_STATE}::test_what_the_index_keeps_comes_back",
        f"{_TEST_ENGINE}::test_a_fence_outlives_stops_of_both_kinds",
    ),
)

ADDS = (
    mutant(
        "acknowledged_before_the_sync",
        "A.1, storage",
        "Engine.durable_position",
        "self._commit.durable",
        "self._commit.newest",
        f"{_TEST_ENGINE}::test_an_add_is_durable_only_once_its_write_returned",
        f"{_TEST_SERVER}::test_nothing_is_acknowledged_before_it_is_durable",
    ),
    mutant(
        "durable_before_the_write_returned",
        "A.1, storage",
        "Journal.write_block",
        "await self._disk.write_sync(segment.file, block.offset, block.view)",
        "self._on_written(block)",
        f"{_TEST_ENGINE}::test_an_add_is_durable_only_once_its_write_returned",
        also=(
            Change(
                "Journal.write_block",
                "self._on_written(block)",
                "await self._disk.write_sync(segment.file, block.offset, block.view)",
            ),
        ),
    ),
    mutant(
        "told_before_the_write_at_once",
        "A.1, storage",
        "Journal._write_now",
        "took_s = self._disk.write_now(segment.file, block.offset, block.view)",
        """
        self._on_written(block)
        took_s = self._disk.write_now(segment.file, block.offset, block.view)
        return
        """,
        f"{_TEST_AT_ONCE}::"
        "test_a_write_at_once_that_fails_ends_the_engine_and_is_neither_told_nor_tried_again",
    ),
    mutant(
        "failed_write_at_once_is_forgotten",
        "storage",
        "Journal._write_now",
        "self._failure = error",
        """
        self.commit._in_flight = None
        del error
        """,
        f"{_TEST_AT_ONCE}::"
        "test_a_write_at_once_that_fails_ends_the_engine_and_is_neither_told_nor_tried_again",
    ),
    mutant(
        "neighbours_wait_for_who_has_more_at_hand",
        "storage",
        "Journal._gather",
        "self._follows and not self._is_urgent and self.commit.pending_bytes < JOURNAL_GATHER_BYTES",
        "self._follows and self.commit.pending_bytes < JOURNAL_GATHER_BYTES",
        f"{_TEST_AT_ONCE}::test_a_neighbour_does_not_wait_for_who_has_more_at_hand",
    ),
    mutant(
        "turns_have_a_sync_each",
        "storage",
        "Journal.run_writer",
        "await self._gather()",
        "",
        f"{_TEST_AT_ONCE}::test_who_has_more_at_hand_has_one_sync_for_all_of_it",
    ),
    mutant(
        "failed_sync_is_taken_for_done",
        "storage",
        "Journal.write_block",
        "await self._disk.write_sync(segment.file, block.offset, block.view)",
        """
        try:
            await self._disk.write_sync(segment.file, block.offset, block.view)
        except OSError:
            pass
        except Exception as error:
            if type(error).__module__ != 'ledgerlog.errors':
                raise
        """,
        f"{_TEST_FAILURES}::test_a_failed_sync_of_a_fence_is_never_answered",
    ),
    mutant(
        "failed_sync_is_tried_again",
        "storage",
        "Journal.write_block",
        "await self._disk.write_sync(segment.file, block.offset, block.view)",
        """
        try:
            await self._disk.write_sync(segment.file, block.offset, block.view)
        except Exception:
            await self._disk.write_sync(segment.file, block.offset, block.view)
        """,
        f"{_TEST_FAILURES}::"
        "test_a_failed_write_ends_the_engine_is_not_tried_again_and_nothing_of_it_is_acknowledged",
    ),
    mutant(
        "duplicate_acknowledged_before_the_first_copys_sync",
        "rule 7",
        "Adder._add_some",
        "newest = self._commit.newest",
        "newest = self._commit.durable",
        f"{_TEST_ENGINE}::test_rule_7_an_entry_sent_again_waits_for_the_sync_of_the_first",
    ),
    mutant(
        "another_payload_under_a_stored_id",
        "rule 6",
        "Adder._add_some",
        """
        if known != digest:
            return Status.CONFLICT
        """,
        "",
        f"{_TEST_ENGINE}::test_rule_6_the_same_entry_again_is_fine_and_another_under_its_id_is_a_conflict",
    ),
    mutant(
        "ids_below_the_last_are_taken_for_stored",
        "rule 6",
        "Adder._add_some",
        "known is None",
        "known is None and entry_id > state.last_entry",
        f"{_TEST_ENGINE}::test_rule_6_gaps_and_disorder_are_normal",
        also=(
            Change(
                "Adder._add_some",
                """
            if known != digest:
                return Status.CONFLICT
            """,
                """
            if known is None:
                pass
            elif known != digest:
                return Status.CONFLICT
            """,
            ),
        ),
    ),
    mutant(
        "readable_before_it_is_durable",
        "storage",
        "Reader._resident",
        "[run for run in state.runs_between(first, last) if run.sequence <= durable]",
        "[run for run in state.runs_between(first, last) if durable]",
        f"{_TEST_ENGINE}::test_an_entry_is_not_readable_before_it_is_durable",
    ),
    mutant(
        "digests_are_not_verified",
        "rule 17",
        "Connection._on_add",
        "(damaged := entries.first_damaged()) is not None",
        "(damaged := entries.first_damaged()) is not None and damaged < 0",
        f"{_TEST_SERVER}::test_a_damaged_entry_is_refused_and_told_and_nothing_of_its_frame_is_stored",
    ),
    mutant(
        "acknowledged_by_the_server_before_it_is_durable",
        "A.1, storage",
        "Connection.on_durable",
        "pending[0][0] <= position",
        "pending[0][0] <= position + 1",
        f"{_TEST_SERVER}::test_nothing_is_acknowledged_before_it_is_durable",
    ),
    mutant(
        "a_stranger_may_announce_a_large_frame",
        "bookie identity",
        "Connection._receive_first",
        "limits.HELLO_BYTES_MAX",
        "limits.FRAME_BYTES_MAX",
        "tests/shells/test_hostile_peers.py::test_what_is_no_small_hello_is_cut_off_at_once",
    ),
    mutant(
        "a_flood_of_frames_is_one_turn",
        "turns",
        "Connection._on_frames",
        "turns.left <= 0",
        "turns.left <= 0 and not frames",
        "tests/shells/test_turns.py::test_a_flood_is_served_a_turn_at_a_time",
    ),
    mutant(
        "a_bookie_that_stops_waits_for_its_adds_to_the_deadline",
        "the end of a bookie",
        "Connection.on_durable",
        "self._all_durable.set()",
        "pass",
        f"{_TEST_SERVER}::test_a_bookie_that_stops_waits_only_until_what_it_took_is_durable",
    ),
    mutant(
        "a_reply_that_is_sent_at_once_keeps_its_room",
        "bounds",
        "Outbox._send_now",
        "on_sent()",
        "pass",
        f"{_TEST_SERVER}::test_a_reply_that_is_sent_at_once_takes_up_no_room_any_more",
    ),
    mutant(
        "any_instance_is_the_one_that_was_meant",
        "bookie identity",
        "Connection._on_hello",
        "meant.accepts(identity)",
        "Status.OK",
        f"{_TEST_SERVER}::test_who_means_another_bookie_is_told_and_cut_off",
    ),
)

ANSWERS = (
    mutant(
        "unreadable_entry_is_no_such_entry",
        "rule 8",
        "RangeReader.on_unreadable",
        "self._set_barrier(entry_id, status)",
        "",
        f"{_TEST_READING}::test_a_reply_never_passes_an_asked_entry_that_cannot_be_read",
        f"{_TEST_FAILURES}::test_rule_8_an_entry_that_cannot_be_read_is_an_error_and_never_an_absence",
    ),
    mutant(
        "damaged_entry_is_given_out",
        "rule 8",
        "Reader._give",
        "entries.damaged()",
        "entries.damaged()[:0]",
        f"{_TEST_FAILURES}::test_rule_8_damage_of_one_entry_is_told_and_the_others_are_given",
    ),
    mutant(
        "damaged_frame_is_no_such_entry",
        "rule 8",
        "engine.reader",
        "from bookie.core.reading import RangeLister, RangeReader",
        "from bookie.core.reading import no_entries, RangeLister, RangeReader",
        f"{_TEST_DAMAGE}::test_no_changed_byte_of_the_journal_or_the_cookie_leads_to_a_wrong_answer",
        also=(
            Change(
                "Reader._give",
                "reader.on_unreadable(run, Status.CORRUPT)",
                "reader.on_entries(run, no_entries(run.ledger_id))",
            ),
        ),
    ),
    mutant(
        "unreadable_index_is_no_such_ledger",
        "rule 8",
        "Engine.read",
        "ReadResult(status_of(error), no_entries(ledger_id), first - 1, NO_ENTRY, NO_ENTRY)",
        "ReadResult(Status.NO_SUCH_LEDGER, no_entries(ledger_id), last, NO_ENTRY, NO_ENTRY)",
        f"{_TEST_FAILURES}::test_rule_8_trouble_of_the_index_is_an_error_and_never_an_unknown_ledger",
    ),
    mutant(
        "file_that_cannot_be_read_is_empty",
        "rule 8",
        "Reader._fetch",
        "Status.IO_ERROR",
        "Status.NO_SUCH_ENTRY",
        f"{_TEST_FAILURES}::test_rule_8_an_entry_that_cannot_be_read_is_an_error_and_never_an_absence",
    ),
)

BOOT = (
    mutant(
        "a_block_that_rotted_is_taken_for_garbage",
        "A.5",
        "JournalWalk.is_unwritten",
        "self._skipped is not None or self._number == self._optional",
        "True",
        "tests/unit/test_bookie_segment.py::test_garbage_where_a_block_may_have_been_is_damage",
    ),
    mutant(
        "a_start_goes_on_in_garbage",
        "A.5",
        "JournalWalk.on_segment",
        """
        if scan.is_garbage and self.next_segment == scan.number:
            self.next_segment = scan.number + 1
        """,
        "",
        "tests/unit/test_bookie_segment.py"
        "::test_garbage_in_the_segment_of_an_optional_mark_is_no_damage_and_is_never_written_over",
    ),
    mutant(
        "a_start_goes_on_in_the_second_segment_of_garbage",
        "A.5",
        "JournalWalk.on_segment",
        "scan.is_garbage and self.next_segment == scan.number",
        "scan.is_garbage and self._skipped is None",
        "tests/unit/test_bookie_segment.py::test_of_several_segments_with_garbage_none_is_ever_written_over",
    ),
    mutant(
        "a_segment_without_a_header_was_never_written",
        "A.5",
        "scan_without_header",
        """
        if begins_like_block(image[at:]):
            return None
        """,
        "pass",
        "tests/storage/test_damage.py"
        "::test_a_prepared_segment_without_a_header_that_may_have_been_written_stops_a_start",
    ),
    mutant(
        "a_rebuild_takes_the_first_rotten_block_for_garbage",
        "A.5",
        "rebuild._beginning",
        "ReplayStart(1, NOTHING_YET.sequence + 1, is_optional=False, end=NOTHING_YET)",
        "ReplayStart(1, NOTHING_YET.sequence + 1, is_optional=True, end=NOTHING_YET)",
        "tests/storage/test_damage.py::test_no_index_is_made_from_a_journal_whose_first_block_rotted",
    ),
    mutant(
        "torn_tail_in_the_middle_is_cut",
        "storage",
        "JournalWalk.on_segment",
        "self._torn is not None",
        "self._torn is not None and self._torn[1] < 0",
        f"{_TEST_SEGMENT}::test_two_torn_blocks_are_damage_though_the_later_segment_has_nothing_but_its_own",
    ),
    mutant(
        "missing_block_is_not_noticed",
        "storage",
        "JournalWalk.on_segment",
        "first.header.sequence != self.next_sequence",
        "first.header.sequence < self.next_sequence",
        f"{_TEST_SEGMENT}::test_a_missing_last_block_is_noticed_by_the_next_segments_sequence",
    ),
    mutant(
        "missing_segment_is_not_noticed",
        "storage",
        "segments_to_replay",
        """
        for number in expected:
            if number not in wanted:
                raise IndexBehind(
                    directory,
                    None,
                    f"segment {number} is missing, but the index says that the journal continues there",
                )
        """,
        """
        for number in expected[:1]:
            if number not in wanted and wanted:
                raise IndexBehind(
                    directory,
                    None,
                    f"segment {number} is missing, but the index says that the journal continues there",
                )
        """,
        f"{_TEST_SEGMENT}::test_segments_from_the_mark_on_must_all_be_there",
    ),
    mutant(
        "rot_is_taken_for_a_torn_write",
        "storage",
        "segment._is_torn",
        """
        if damage is BlockDamage.ROTTEN:
            raise StorageCorrupt(
                path, at, "a damaged block: no interrupted write leaves such bytes behind"
            )
        """,
        "",
        f"{_TEST_SEGMENT}::test_rot_in_the_last_block_is_damage_and_not_a_torn_write",
    ),
    mutant(
        "checksum_is_not_looked_at_in_replay",
        "storage",
        "BlockWalk.__iter__",
        "block_damage(view, block, nonce=header.nonce)",
        "None",
        f"{_TEST_SEGMENT}::test_a_torn_last_block_ends_the_segment_before_it",
        f"{_TEST_CRASHES}::test_every_torn_write_of_a_small_scenario_is_cut",
    ),
    mutant(
        "damage_before_later_blocks_is_cut",
        "storage",
        "segment._is_torn",
        "written is not None",
        "written is not None and written < 0",
        f"{_TEST_SEGMENT}::test_a_torn_block_with_a_later_block_behind_it_is_damage",
    ),
    mutant(
        "what_was_replayed_is_shown_before_it_is_synced",
        "storage",
        "Replay.take_segment",
        """
        if seal is None and not scan.is_trimmed:
            await self._write_again(number, image, last)
        """,
        "",
        f"{_TEST_UNSYNCED}::test_what_a_boot_finds_in_a_cache_is_synced_before_it_is_shown",
    ),
    mutant(
        "mark_moves_before_the_index",
        "storage",
        "Checkpointer._pass",
        """
        await self._index_runs(segment, segment.final_sequence)
        await self._ledgers.save()
        end = JournalPosition(segment.number, segment.end, segment.final_sequence)
        mark = ReplayStart(segment.number + 1, end.sequence + 1, is_optional=is_optional, end=end)
        async with self._catalogue.lock:
            usage = rows.usage_of(
                run for run in segment.runs if not self._is_deleted(run.ledger_id)
            )
            row = FileRow.of(
                segment.number,
                end=end.offset,
                last_sequence=end.sequence,
                runs=segment.runs,
                usage=usage,
            )
            await self._catalogue.write(
                [*rows.encode_file_and_usage(row, usage), rows.encode_mark(mark)]
            )
        """,
        """
        end = JournalPosition(segment.number, segment.end, segment.final_sequence)
        mark = ReplayStart(segment.number + 1, end.sequence + 1, is_optional=is_optional, end=end)
        async with self._catalogue.lock:
            usage = rows.usage_of(
                run for run in segment.runs if not self._is_deleted(run.ledger_id)
            )
            row = FileRow.of(
                segment.number,
                end=end.offset,
                last_sequence=end.sequence,
                runs=segment.runs,
                usage=usage,
            )
            await self._catalogue.write(
                [*rows.encode_file_and_usage(row, usage), rows.encode_mark(mark)]
            )
        await self._index_runs(segment, segment.final_sequence)
        await self._ledgers.save()
        """,
        "tests/storage/test_engine.py::test_the_mark_passes_a_segment_only_when_the_index_has_its_runs_and_ledgers",
        f"{_TEST_CRASHES}::test_every_crash_state_boots_to_what_was_acknowledged",
    ),
    mutant(
        "segment_is_indexed_before_it_is_durable",
        "storage",
        "Checkpointer._index_runs",
        "[run for run in piece if run.sequence <= sequence]",
        "[run for run in piece if run.sequence]",
        f"{_TEST_UNSYNCED}::test_a_flush_brings_nothing_into_the_index_that_became_pending_behind_it",
    ),
    mutant(
        "lac_of_the_journal_is_forgotten_by_a_crash",
        "rule 9",
        "FoundLedgers.take",
        "state.tell(header.lac, header.lafr)",
        "",
        f"{_TEST_ENGINE}::test_rule_9_the_lac_outlives_stops",
    ),
)

MUTANTS = (*VERDICTS, *FENCES, *ADDS, *ANSWERS, *BOOT)
