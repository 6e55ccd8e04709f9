"""Mutants of the bookie: what it refuses and promises, and when; its journal, and what a boot makes of it."""

from __future__ import annotations

from tests.mutants.mutant import Edit, mutant

_STATE = "bookie/core/ledger.py"
_BOOT = "bookie/core/boot.py"
_SEGMENT = "bookie/core/segment.py"
_READING = "bookie/core/reading.py"
_ENGINE = "bookie/storage/engine.py"
_ADDING = "bookie/storage/adding.py"
_FENCING = "bookie/storage/fencing.py"
_JOURNAL = "bookie/storage/journal.py"
_CHECKPOINT = "bookie/storage/checkpoint.py"
_REPLAY = "bookie/storage/replay.py"
_READER = "bookie/storage/reader.py"
_CONNECTION = "bookie/server/connection.py"

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
        "regular_add_on_a_fenced_ledger",
        "A.1, T23",
        _STATE,
        "if self.is_fenced and not is_recovery:",
        "if self.is_fenced and self.ledger_id < 0:",
        f"{_TEST_STATE}::test_an_ordinary_add_is_accepted_until_the_fence_and_refused_after_it",
        f"{_TEST_ENGINE}::test_rule_2_adds_fail_at_once_and_the_fence_is_answered_after_its_sync",
        f"{_SCHEDULE}[T23]",
    ),
    mutant(
        "recovery_adds_are_fenced_too",
        "rule 5",
        _STATE,
        "if self.is_fenced and not is_recovery:",
        "if self.is_fenced:",
        f"{_TEST_STATE}::test_recovery_adds_pass_the_fence",
    ),
    mutant(
        "recovery_adds_are_refused_by_a_read_only_bookie",
        "rule 5",
        _ADDING,
        "        if not is_recovery:\n            if self.is_read_only:",
        "        if True:\n            if self.is_read_only:",
        f"{_TEST_ENGINE}::test_rule_5_recovery_adds_pass_the_fence_and_read_only",
    ),
    mutant(
        "wrong_key_fences",
        "rule 10",
        _STATE,
        "return None if compare_digest(key, self.key) else Status.UNAUTHORIZED",
        "return None",
        f"{_TEST_STATE}::test_a_wrong_key_is_refused_before_anything_else_and_changes_nothing",
        f"{_TEST_ENGINE}::test_rule_10_a_wrong_key_changes_nothing",
    ),
    mutant(
        "wrong_key_adds",
        "rule 10",
        _STATE,
        "        if not compare_digest(key, self.key):\n            return Status.UNAUTHORIZED\n",
        "",
        f"{_TEST_STATE}::test_a_wrong_key_is_refused_before_anything_else_and_changes_nothing",
    ),
    mutant(
        "last_entry_is_the_latest",
        "rule 6",
        _STATE,
        "            self.last_entry = max(self.last_entry, run.last)\n",
        "            self.last_entry = run.last\n",
        f"{_TEST_STATE}::test_the_last_entry_is_the_highest_id_not_the_latest",
    ),
    mutant(
        "lac_is_the_latest_told",
        "rule 9, D10",
        _STATE,
        "if lac > self.lac:",
        "if lac != self.lac:",
        f"{_TEST_STATE}::test_lac_and_lafr_are_the_greatest_values_told",
    ),
    mutant(
        "evicted_while_in_use",
        "rule 3",
        _STATE,
        "if self.is_dirty or self.runs or self.pins:",
        "if self.is_dirty or self.runs:",
        f"{_TEST_STATE}::test_a_state_leaves_memory_only_when_nothing_would_be_lost",
    ),
    mutant(
        "evicted_before_its_fence_is_durable",
        "rules 2 and 3",
        _STATE,
        "return not self.is_fenced or self.is_fence_settled(durable)",
        "return True",
        f"{_TEST_STATE}::test_a_state_leaves_memory_only_when_nothing_would_be_lost",
    ),
)

FENCES = (
    mutant(
        "recovery_read_does_not_fence",
        "D5, R-B1, T01",
        _ENGINE,
        "        fenced = await self.fence(ledger_id, key)\n        if fenced.status is not Status.OK:",
        "        fenced = FenceResult(Status.OK, NO_ENTRY, NO_ENTRY)\n"
        "        if fenced.status is not Status.OK:",
        f"{_TEST_ENGINE}::test_a_recovery_read_of_an_unknown_ledger_fences_it_and_says_that_it_has_nothing",
        f"{_TEST_SERVER}::test_a_recovery_read_fences_before_it_answers",
    ),
    mutant(
        "recovery_read_fences_only_what_it_knows",
        "R-B1, T24",
        _ENGINE,
        "        fenced = await self.fence(ledger_id, key)\n        if fenced.status is not Status.OK:",
        "        if self._ledgers.get(ledger_id) is None:\n"
        "            fenced = FenceResult(Status.OK, NO_ENTRY, NO_ENTRY)\n"
        "        else:\n"
        "            fenced = await self.fence(ledger_id, key)\n"
        "        if fenced.status is not Status.OK:",
        f"{_TEST_ENGINE}::test_a_recovery_read_of_an_unknown_ledger_fences_it_and_says_that_it_has_nothing",
    ),
    mutant(
        "recovery_read_is_answered_before_the_fence",
        "R-B1",
        _ENGINE,
        "        fenced = await self.fence(ledger_id, key)\n"
        "        if fenced.status is not Status.OK:\n"
        "            return ReadResult(fenced.status, no_entries(ledger_id), first - 1, NO_ENTRY, NO_ENTRY)\n"
        "        return await self.read(ledger_id, first=first, last=last, stride=stride, "
        "bytes_max=bytes_max)",
        "        result = await self.read(ledger_id, first=first, last=last, stride=stride, "
        "bytes_max=bytes_max)\n"
        "        fenced = await self.fence(ledger_id, key)\n"
        "        if fenced.status is not Status.OK:\n"
        "            return ReadResult(fenced.status, no_entries(ledger_id), first - 1, NO_ENTRY, NO_ENTRY)\n"
        "        return result",
        f"{_TEST_ENGINE}::"
        "test_rule_2_a_recovery_read_answers_after_the_fence_is_durable_and_sees_every_earlier_add",
    ),
    mutant(
        "fence_of_a_never_seen_ledger_is_ignored",
        "rule 1, T24",
        _FENCING,
        "        if state is None:\n"
        "            state = LedgerState(ledger_id, key)\n"
        "            self._ledgers.add(state)\n"
        "        refusal = state.fence_refusal(key)",
        "        if state is None:\n"
        "            await trio.lowlevel.checkpoint()\n"
        "            return FenceResult(Status.OK, NO_ENTRY, NO_ENTRY)\n"
        "        refusal = state.fence_refusal(key)",
        f"{_TEST_ENGINE}::test_rule_1_a_fence_of_an_unknown_ledger_refuses_its_late_first_add",
    ),
    mutant(
        "fence_is_answered_before_its_sync",
        "rule 2, T08",
        _FENCING,
        "        await self._journal.wait_durable(state.fence_sequence)\n",
        "        await trio.lowlevel.checkpoint()\n",
        f"{_TEST_ENGINE}::test_rule_2_adds_fail_at_once_and_the_fence_is_answered_after_its_sync",
    ),
    mutant(
        "second_fencer_is_answered_before_the_first_sync",
        "rule 2",
        _STATE,
        "return self.is_fenced and (self.is_fence_durable or 0 < self.fence_sequence <= durable)",
        "return self.is_fenced",
        f"{_TEST_STATE}::test_a_fence_is_settled_only_once_its_own_block_is_durable",
        f"{_TEST_ENGINE}::test_rule_2_a_second_fencer_waits_for_the_first_sync_and_adds_none",
        f"{_SCHEDULE}[T08]",
    ),
    mutant(
        "adds_pass_until_the_fence_is_durable",
        "rule 2",
        _STATE,
        "if self.is_fenced and not is_recovery:",
        "if self.is_fenced and self.fence_sequence and not is_recovery and not self.pins:",
        f"{_TEST_ENGINE}::test_rule_2_adds_fail_at_once_and_the_fence_is_answered_after_its_sync",
    ),
    mutant(
        "fence_is_forgotten_by_a_crash",
        "rule 2, T08",
        _REPLAY,
        "_state(ledgers, fence.ledger_id, fence.key).on_fence()",
        "_state(ledgers, fence.ledger_id, fence.key)",
        f"{_TEST_ENGINE}::test_a_fence_outlives_stops_of_both_kinds",
    ),
    mutant(
        "fence_is_forgotten_by_a_clean_stop",
        "rule 2, T08",
        _STATE,
        "            is_fenced=stored.is_fenced,\n",
        "            is_fenced=False,\n",
        f"{_TEST_STATE}::test_what_the_index_keeps_comes_back",
        f"{_TEST_ENGINE}::test_a_fence_outlives_stops_of_both_kinds",
    ),
)

ADDS = (
    mutant(
        "acknowledged_before_the_sync",
        "A.1, storage",
        _ENGINE,
        '        """All adds with a position up to this one are durable. At least 1, never decreasing."""\n'
        "        return self._commit.durable\n",
        "        return self._commit.newest\n",
        f"{_TEST_ENGINE}::test_an_add_is_durable_only_once_its_write_returned",
        f"{_TEST_SERVER}::test_nothing_is_acknowledged_before_it_is_durable",
    ),
    mutant(
        "durable_before_the_write_returned",
        "A.1, storage",
        _JOURNAL,
        "        await self._disk.write_sync(segment.file, block.offset, block.view)\n"
        "        self._on_written(block)\n",
        "        self._on_written(block)\n"
        "        await self._disk.write_sync(segment.file, block.offset, block.view)\n",
        f"{_TEST_ENGINE}::test_an_add_is_durable_only_once_its_write_returned",
    ),
    mutant(
        "told_before_the_write_at_once",
        "A.1, storage",
        _JOURNAL,
        "            self._disk.write_now(segment.file, block.offset, block.view)\n",
        "            self._on_written(block)\n"
        "            self._disk.write_now(segment.file, block.offset, block.view)\n"
        "            return\n",
        f"{_TEST_AT_ONCE}::"
        "test_a_write_at_once_that_fails_ends_the_engine_and_is_neither_told_nor_tried_again",
    ),
    mutant(
        "failed_write_at_once_is_forgotten",
        "storage",
        _JOURNAL,
        "            self._failure = error\n",
        "            self.commit._in_flight = None\n            del error\n",
        f"{_TEST_AT_ONCE}::"
        "test_a_write_at_once_that_fails_ends_the_engine_and_is_neither_told_nor_tried_again",
    ),
    mutant(
        "neighbours_wait_for_who_has_more_at_hand",
        "storage",
        _JOURNAL,
        "        while self._follows and not self._is_urgent and",
        "        while self._follows and",
        f"{_TEST_AT_ONCE}::test_a_neighbour_does_not_wait_for_who_has_more_at_hand",
    ),
    mutant(
        "turns_have_a_sync_each",
        "storage",
        _JOURNAL,
        "            await self._gather()\n",
        "",
        f"{_TEST_AT_ONCE}::test_who_has_more_at_hand_has_one_sync_for_all_of_it",
    ),
    mutant(
        "failed_sync_is_taken_for_done",
        "storage",
        _JOURNAL,
        "        await self._disk.write_sync(segment.file, block.offset, block.view)\n",
        "        try:\n"
        "            await self._disk.write_sync(segment.file, block.offset, block.view)\n"
        "        except OSError:\n"
        "            pass\n"
        "        except Exception as error:\n"
        "            if type(error).__module__ != 'ledgerlog.errors':\n"
        "                raise\n",
        f"{_TEST_FAILURES}::test_a_failed_sync_of_a_fence_is_never_answered",
    ),
    mutant(
        "failed_sync_is_tried_again",
        "storage",
        _JOURNAL,
        "        await self._disk.write_sync(segment.file, block.offset, block.view)\n",
        "        try:\n"
        "            await self._disk.write_sync(segment.file, block.offset, block.view)\n"
        "        except Exception:\n"
        "            await self._disk.write_sync(segment.file, block.offset, block.view)\n",
        f"{_TEST_FAILURES}::"
        "test_a_failed_write_ends_the_engine_is_not_tried_again_and_nothing_of_it_is_acknowledged",
    ),
    mutant(
        "duplicate_acknowledged_before_the_first_copys_sync",
        "rule 7",
        _ADDING,
        "        if not fresh:\n            return newest\n",
        "        if not fresh:\n            return self._commit.durable\n",
        f"{_TEST_ENGINE}::test_rule_7_an_entry_sent_again_waits_for_the_sync_of_the_first",
    ),
    mutant(
        "another_payload_under_a_stored_id",
        "rule 6",
        _ADDING,
        "            elif known != digest:\n                return Status.CONFLICT\n",
        "",
        f"{_TEST_ENGINE}::test_rule_6_the_same_entry_again_is_fine_and_another_under_its_id_is_a_conflict",
    ),
    mutant(
        "ids_below_the_last_are_taken_for_stored",
        "rule 6",
        _ADDING,
        "            if known is None:\n                fresh.append(index)\n",
        "            if known is None and entry_id > state.last_entry:\n                fresh.append(index)\n"
        "            elif known is None:\n                pass\n",
        f"{_TEST_ENGINE}::test_rule_6_gaps_and_disorder_are_normal",
    ),
    mutant(
        "readable_before_it_is_durable",
        "storage",
        _READER,
        "return [run for run in state.runs_between(first, last) if run.sequence <= durable], last",
        "return [run for run in state.runs_between(first, last) if durable], last",
        f"{_TEST_ENGINE}::test_an_entry_is_not_readable_before_it_is_durable",
    ),
    mutant(
        "digests_are_not_verified",
        "rule 17",
        _CONNECTION,
        "if (damaged := entries.first_damaged()) is not None:",
        "if (damaged := entries.first_damaged()) is not None and damaged < 0:",
        f"{_TEST_SERVER}::test_a_damaged_entry_is_refused_and_told_and_nothing_of_its_frame_is_stored",
    ),
    mutant(
        "acknowledged_by_the_server_before_it_is_durable",
        "A.1, storage",
        _CONNECTION,
        "        while pending and pending[0][0] <= position:\n",
        "        while pending and pending[0][0] <= position + 1:\n",
        f"{_TEST_SERVER}::test_nothing_is_acknowledged_before_it_is_durable",
    ),
    mutant(
        "a_stranger_may_announce_a_large_frame",
        "bookie identity",
        _CONNECTION,
        "buffer.take_frame(limits.HELLO_BYTES_MAX)",
        "buffer.take_frame(limits.FRAME_BYTES_MAX)",
        "tests/shells/test_hostile_peers.py::test_what_is_no_small_hello_is_cut_off_at_once",
    ),
    mutant(
        "a_flood_of_frames_is_one_turn",
        "turns",
        _CONNECTION,
        "            if turns.is_over:\n",
        "            if turns.is_over and engine is None:\n",
        "tests/shells/test_turns.py::test_a_flood_is_served_a_turn_at_a_time",
    ),
    mutant(
        "any_instance_is_the_one_that_was_meant",
        "bookie identity",
        _CONNECTION,
        "        status = meant.accepts(identity)\n",
        "        status = Status.OK\n",
        f"{_TEST_SERVER}::test_who_means_another_bookie_is_told_and_cut_off",
    ),
)

ANSWERS = (
    mutant(
        "unreadable_entry_is_no_such_entry",
        "rule 8",
        _READING,
        "            self._set_barrier(entry_id, status)\n",
        "            pass\n",
        f"{_TEST_READING}::test_a_reply_never_passes_an_asked_entry_that_cannot_be_read",
        f"{_TEST_FAILURES}::test_rule_8_an_entry_that_cannot_be_read_is_an_error_and_never_an_absence",
    ),
    mutant(
        "damaged_entry_is_given_out",
        "rule 8",
        _READER,
        "        reader.on_entries(run, entries, damaged := damaged_entries(entries))\n",
        "        reader.on_entries(run, entries, damaged := damaged_entries(entries)[:0])\n",
        f"{_TEST_FAILURES}::test_rule_8_damage_of_one_entry_is_told_and_the_others_are_given",
    ),
    mutant(
        "damaged_frame_is_no_such_entry",
        "rule 8",
        _READER,
        "            reader.on_unreadable(run, Status.CORRUPT)\n",
        "            reader.on_entries(run, no_entries(run.ledger_id))\n",
        f"{_TEST_DAMAGE}::test_no_changed_byte_of_the_journal_or_the_cookie_leads_to_a_wrong_answer",
        also=(
            Edit(
                _READER,
                "from bookie.core.reading import ",
                "from bookie.core.reading import no_entries, ",
            ),
        ),
    ),
    mutant(
        "unreadable_index_is_no_such_ledger",
        "rule 8",
        _ENGINE,
        "            return ReadResult(status_of(error), no_entries(ledger_id), first - 1, "
        "NO_ENTRY, NO_ENTRY)\n        self._reads += 1",
        "            return ReadResult(Status.NO_SUCH_LEDGER, no_entries(ledger_id), last, "
        "NO_ENTRY, NO_ENTRY)\n        self._reads += 1",
        f"{_TEST_FAILURES}::test_rule_8_trouble_of_the_index_is_an_error_and_never_an_unknown_ledger",
    ),
    mutant(
        "file_that_cannot_be_read_is_empty",
        "rule 8",
        _READER,
        "            return dict.fromkeys(batch, Status.IO_ERROR)\n",
        "            return dict.fromkeys(batch, Status.NO_SUCH_ENTRY)\n",
        f"{_TEST_FAILURES}::test_rule_8_an_entry_that_cannot_be_read_is_an_error_and_never_an_absence",
    ),
)

BOOT = (
    mutant(
        "torn_tail_in_the_middle_is_cut",
        "storage",
        _BOOT,
        "        if self._torn is not None:\n            torn_path",
        "        if self._torn is not None and self._torn[1] < 0:\n            torn_path",
        f"{_TEST_SEGMENT}::test_two_torn_blocks_are_damage_though_the_later_segment_has_nothing_but_its_own",
    ),
    mutant(
        "missing_block_is_not_noticed",
        "storage",
        _BOOT,
        "if first.header.sequence != self.next_sequence:",
        "if first.header.sequence < self.next_sequence:",
        f"{_TEST_SEGMENT}::test_a_missing_last_block_is_noticed_by_the_next_segments_sequence",
    ),
    mutant(
        "missing_segment_is_not_noticed",
        "storage",
        _BOOT,
        "    for number in expected:\n        if number not in wanted:",
        "    for number in expected[:1]:\n        if number not in wanted and wanted:",
        f"{_TEST_SEGMENT}::test_segments_from_the_mark_on_must_all_be_there",
    ),
    mutant(
        "rot_is_taken_for_a_torn_write",
        "storage",
        _SEGMENT,
        "    if damage is Damage.ROTTEN:\n"
        "        raise StorageCorrupt("
        'path, at, "a damaged block: no interrupted write leaves such bytes behind")\n',
        "",
        f"{_TEST_SEGMENT}::test_rot_in_the_last_block_is_damage_and_not_a_torn_write",
    ),
    mutant(
        "checksum_is_not_looked_at_in_replay",
        "storage",
        _SEGMENT,
        "            damage = block_damage(view, block, nonce=header.nonce)\n        if damage is not None:",
        "            damage = None\n        if damage is not None:",
        f"{_TEST_SEGMENT}::test_a_torn_last_block_ends_the_segment_before_it",
        f"{_TEST_CRASHES}::test_every_torn_write_of_a_small_scenario_is_cut",
    ),
    mutant(
        "damage_before_later_blocks_is_cut",
        "storage",
        _SEGMENT,
        "    if written is not None:\n        raise",
        "    if written is not None and written < 0:\n        raise",
        f"{_TEST_SEGMENT}::test_a_torn_block_with_a_later_block_behind_it_is_damage",
    ),
    mutant(
        "what_was_replayed_is_shown_before_it_is_synced",
        "storage",
        _REPLAY,
        "        if seal is None and not scan.is_trimmed:\n"
        "            await self._write_again(number, image, scan.blocks[-1])\n",
        "",
        f"{_TEST_UNSYNCED}::test_what_a_boot_finds_in_a_cache_is_synced_before_it_is_shown",
    ),
    mutant(
        "mark_moves_before_the_index",
        "storage",
        _CHECKPOINT,
        "        await self._index_runs(segment, segment.final_sequence)\n"
        "        await self._ledgers.save()\n"
        "        end = ",
        "        end = ",
        f"{_TEST_CRASHES}::test_every_crash_state_boots_to_what_was_acknowledged",
        also=(
            Edit(
                _CHECKPOINT,
                "        await self._catalogue.write("
                "[*rows.encode_file_and_usage(row, usage), rows.encode_mark(mark)])\n",
                "        await self._catalogue.write("
                "[*rows.encode_file_and_usage(row, usage), rows.encode_mark(mark)])\n"
                "        await self._index_runs(segment, segment.final_sequence)\n"
                "        await self._ledgers.save()\n",
            ),
        ),
    ),
    mutant(
        "segment_is_indexed_before_it_is_durable",
        "storage",
        _CHECKPOINT,
        "            piece = [run for run in piece if run.sequence <= sequence]\n",
        "            piece = [run for run in piece if run.sequence]\n",
        f"{_TEST_UNSYNCED}::test_a_flush_brings_nothing_into_the_index_that_became_pending_behind_it",
    ),
    mutant(
        "lac_of_the_journal_is_forgotten_by_a_crash",
        "rule 9",
        _REPLAY,
        "                state.tell(header.lac, header.lafr)\n",
        "",
        f"{_TEST_ENGINE}::test_rule_9_the_lac_outlives_stops",
    ),
)

MUTANTS = (*VERDICTS, *FENCES, *ADDS, *ANSWERS, *BOOT)
