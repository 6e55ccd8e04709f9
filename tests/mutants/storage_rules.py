"""Mutants of entries that move: flushes, compaction, what a start makes of them, and deletion."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_STOP = "tests/storage/test_clean_stop.py"
_MOVING = "tests/storage/test_moving_entries.py"
_CRASHES = "tests/storage/test_crash_states.py"
_EVERY_STATE = f"{_CRASHES}::test_every_crash_state_boots_to_what_was_acknowledged[moving-False]"
_ROTTEN = "tests/storage/test_damaged_files.py"
_REBUILD = f"{_CRASHES}::test_the_index_made_again_from_the_other_files_says_the_same"
_ROWS = "tests/storage/test_rows_of_deleted_ledgers.py"
_TEST_ORACLE = "tests/shells/test_deletion_oracle.py"

MUTANTS = (
    mutant(
        "a_disk_without_descriptors_has_failed",
        "storage",
        "RealDisk._run",
        "not is_exhaustion(cause)",
        "not is_exhaustion(cause) or True",
        "tests/storage/test_descriptors.py::test_whatever_opens_a_file_waits_for_a_descriptor",
    ),
    mutant(
        "an_index_without_descriptors_is_not_opened_again",
        "storage",
        "StoredIndex.write",
        "NOT_NOW",
        "NOT_NOW[:1]",
        "tests/storage/test_descriptors.py::test_an_index_whose_compaction_found_no_descriptor_is_opened_again",
    ),
    mutant(
        "mass_deletion_waits_for_nobody",
        "rule 25",
        "Collector._without_suspects",
        "len(fresh) <= MASS_LEDGERS or len(fresh) * MASS_SHARE <= held",
        "True or len(fresh) * MASS_SHARE <= held",
        f"{_MOVING}::test_a_mass_deletion_waits_for_a_second_pass_that_finds_the_same",
    ),
    mutant(
        "suspects_are_not_forgotten",
        "rule 25",
        "Collector._without_suspects",
        'self._suspected = array("Q")',
        "",
        f"{_MOVING}::test_what_only_the_second_pass_finds_waits_for_a_third",
    ),
    mutant(
        "store_is_not_asked_again_whose_it_is",
        "rule 25",
        "MetadataDeletionOracle.surely_gone",
        """
        await store.sync()
        floor = await deletion_floor(store)
        """,
        "floor = await deletion_floor(store)",
        f"{_TEST_ORACLE}::test_a_store_that_was_emptied_meanwhile_says_nothing_at_all",
    ),
    mutant(
        "gone_ledgers_are_forgotten_with_their_rows",
        "rule 4",
        "LedgerTable.get",
        """
        if self.is_gone(ledger_id):
            return BookieLedger.tombstone(ledger_id)
        """,
        "",
        f"{_ROWS}::test_deleted_ledgers_leave_no_row_and_are_one_range_between_those_that_live",
    ),
    mutant(
        "rows_found_again_bring_gone_ledgers_back",
        "rule 4",
        "LedgerTable.get",
        "not state.is_deleted and self.is_gone(ledger_id)",
        "False",
        f"{_ROWS}::test_an_index_that_is_made_again_from_files_with_gone_ledgers_serves_none_of_them",
    ),
    mutant(
        "unknown_ledgers_come_while_ids_are_noted",
        "rule 4",
        "LedgerTable.settling",
        "self._settling = candidates.joined(self._settling.ranges)",
        "self._settling = GoneLedgers()",
        f"{_ROWS}::test_while_ids_are_noted_nothing_unknown_among_them_is_taken",
    ),
    mutant(
        "ids_that_the_file_may_name_are_taken_after_a_failure",
        "rule 4",
        "LedgerTable.settling",
        "yield\nself._settling = GoneLedgers()",
        "try:\n    yield\nfinally:\n    self._settling = GoneLedgers()",
        f"{_ROWS}::test_ids_that_could_not_be_noted_are_refused_because_the_file_may_name_them",
    ),
    mutant(
        "a_listing_is_believed_over_the_bookies_own_ledgers",
        "rule 25",
        "Collector._note",
        "without(between, ranges_of(await self._ledgers.living_between(low, high)))",
        "without(between, [])",
        f"{_ROWS}::test_no_ledger_that_this_bookie_knows_is_gone_because_a_listing_left_it_out",
    ),
    mutant(
        "ledgers_known_in_memory_alone_are_gone",
        "rule 25",
        "LedgerTable.living_between",
        """
        look_at_memory()
        async with aclosing(self._catalogue.ledgers(first, last)) as pages:
            async for page in pages:
                found.update(ledger_id for ledger_id, stored in page if not stored.is_deleted)
        look_at_memory()
        """,
        """
        async with aclosing(self._catalogue.ledgers(first, last)) as pages:
            async for page in pages:
                found.update(ledger_id for ledger_id, stored in page if not stored.is_deleted)
        """,
        f"{_ROWS}::test_no_ledger_that_this_bookie_knows_is_gone_because_a_listing_left_it_out",
    ),
    mutant(
        "the_marks_do_not_name_the_gone_ledgers",
        "rule 4",
        "GoneLedgerStore.replace",
        "await self._marks.change(lambda marks: attrs.evolve(marks, has_gone_file=True))",
        "",
        f"{_ROWS}::test_without_its_gone_ledgers_no_directory_opens",
    ),
    mutant(
        "an_older_version_takes_a_directory_whose_gone_ledgers_it_would_forget",
        "rule 4",
        "LossMarks.encode",
        "_FORMAT_WITH_GONE_FILE if self.has_gone_file else _FORMAT",
        "_FORMAT",
        "tests/unit/test_loss_marks.py::"
        "test_a_version_that_would_forget_the_gone_ledgers_refuses_the_marks_of_a_directory_that_has_them",
    ),
    mutant(
        "runs_of_gone_ledgers_are_compacted",
        "rule 4",
        "Rewriter._carried",
        """
        if self._ledgers.is_gone(ledger_id):
            deleted.add(ledger_id)
            continue
        """,
        "",
        f"{_ROWS}::test_a_compaction_that_has_read_a_ledger_before_it_went_writes_no_run_of_it",
    ),
    mutant(
        "states_in_use_are_removed",
        "rule 4",
        "LedgerTable.remove",
        "state is None or state.is_evictable(durable)",
        "True",
        f"{_ROWS}::test_a_ledger_whose_runs_are_in_memory_goes_with_them",
    ),
    mutant(
        "forgotten_deletions_are_no_loss",
        "rule 4, D27.3",
        "settle_marks",
        "await kept.change(lambda _: after)",
        "",
        "tests/shells/test_repaired_directories.py::"
        "test_a_bookie_that_has_forgotten_its_deleted_ledgers_is_marked_as_after_a_loss",
    ),
    mutant(
        "replaced_log_is_taken_over_again",
        "storage",
        "take_over_logs",
        "number not in known and -number not in gone",
        "number not in known",
        f"{_MOVING}::test_a_file_that_was_replaced_and_is_still_there_is_removed_and_changes_nothing",
    ),
    mutant(
        "a_log_is_known_before_the_mark_is_after_what_it_replaced",
        "storage",
        "opening._begin",
        "replayed = await replay(ground.directory, segments, catalogue, replaced, changes)",
        """
        await catalogue.write(changes)
        replayed = await replay(ground.directory, segments, catalogue, replaced, [])
        """,
        f"{_MOVING}::test_a_segment_that_a_log_replaced_does_not_count_again_if_the_next_start_crashes_too",
        f"{_CRASHES}::"
        "test_a_second_crash_during_the_boot_after_the_first_loses_nothing[rolls_and_checkpoints-16]",
    ),
    mutant(
        "flush_leaves_the_mark_where_it_was",
        "storage",
        "Checkpointer._flush",
        "[rows.encode_mark(mark)]",
        "[]",
        _EVERY_STATE,
    ),
    mutant(
        "sources_go_before_the_log_counts",
        "storage",
        "Rewriter._write",
        "await self._index(written, merged, old_keys, gone)",
        """
        await self.remove([f for f in replaced.ranges[0][:1] if f > 0 and old_keys is None])
        await self._index(written, merged, old_keys, gone)
        """,
        f"{_MOVING}::test_small_logs_become_few_and_nothing_is_lost",
        f"{_MOVING}::test_a_segment_stays_after_all_where_the_disk_has_no_room_for_a_log",
    ),
    mutant(
        "fences_do_not_go_along",
        "rule 1",
        "Rewriter._write",
        "ledgers.update(marked)",
        "",
        f"{_REBUILD}[moving-11]",
    ),
    mutant(
        "reads_are_not_waited_for",
        "rule 8",
        "FilePool.retire",
        "begun <= era",
        "begun < era - 10**9",
        "tests/storage/test_file_pool.py::test_a_file_is_retired_once_all_reads_that_began_before_are_done",
    ),
    mutant(
        "entries_in_two_places_are_given_twice",
        "storage",
        "RangeReader._emit",
        "cursor.next_id <= self.through",
        "cursor.next_id < self.through",
        "tests/unit/test_bookie_reading.py::test_entries_that_two_runs_hold_are_given_once",
    ),
    mutant(
        "merged_runs_reach_over_others_unnoticed",
        "rule 6",
        "Rewriter._merge",
        "state.on_merge(each.last - each.first)",
        "state.on_merge(0)",
        f"{_MOVING}::test_an_entry_is_found_though_another_run_begins_between_it_and_the_run_with_gaps_that_holds_it",
    ),
    mutant(
        "spare_is_used_as_it_is",
        "storage",
        "Recycler.run",
        "self._fill(file, used)",
        "trio.lowlevel.checkpoint()",
        _EVERY_STATE,
    ),
    mutant(
        "damaged_entries_are_compacted",
        "rule 8",
        "verify_frame",
        "entries.damaged()",
        "entries.damaged()[:0]",
        f"{_MOVING}::test_a_damaged_entry_is_not_written_again",
    ),
    mutant(
        "record_of_another_place_is_taken",
        "storage",
        "is_whole",
        "head.length == len(body) and head.checksum == _checksum(nonce, offset, head.kind, body)",
        "head.length == len(body)",
        "tests/unit/test_entry_log.py::test_a_record_is_whole_only_where_it_was_written",
    ),
    mutant(
        "late_recovery_add_of_a_deleted_ledger_is_taken",
        "rule 4",
        "BookieLedger.add_refusal",
        """
        Status.NO_SUCH_LEDGER if is_recovery else Status.FENCED
        """,
        "None if is_recovery else Status.FENCED",
        f"{_MOVING}::test_what_the_store_says_is_gone_goes_and_stays_refused",
    ),
    mutant(
        "deleted_ledger_is_not_fenced",
        "rule 4",
        "BookieLedger.on_delete",
        "self.is_fenced = self.is_fence_durable = True  # The same record is its fence.",
        "",
        "tests/unit/test_bookie_ledger.py::test_rule_4_a_ledger_that_is_gone_is_stored_as_fenced",
    ),
    mutant(
        "a_ledger_takes_adds_until_its_deletion_is_durable",
        "rule 4",
        "BookieLedger.on_leave",
        "self.is_leaving = True",
        "",
        f"{_MOVING}::test_rule_4_no_add_of_a_deleted_ledger_comes_between_its_record_and_the_sync_of_the_record",
    ),
    mutant(
        "deleted_ledger_is_read",
        "rule 4",
        "Engine._living",
        "None if state is None or state.is_deleted else state",
        "state",
        f"{_MOVING}::test_what_the_store_says_is_gone_goes_and_stays_refused",
    ),
    mutant(
        "listing_alone_deletes",
        "rule 25",
        "MetadataDeletionOracle.surely_gone",
        "await store.get(ledger_path(ledger_id)) is None",
        "True",
        f"{_TEST_ORACLE}::test_a_listing_that_leaves_ledgers_out_deletes_none_of_them",
    ),
    mutant(
        "ids_of_another_store_are_gone",
        "rule 25",
        "MetadataDeletionOracle.surely_gone",
        "ledger_id > highest",
        "ledger_id < 0",
        f"{_TEST_ORACLE}::test_nothing_is_said_of_ids_that_were_never_given_out",
    ),
    mutant(
        "a_deletion_takes_the_runs_of_the_ledgers_between",
        "rule 25",
        "Collector._remove_runs",
        "rows.ledger_of_run_key(key) in gone",
        "True",
        f"{_MOVING}::test_a_deletion_of_many_ledgers_leaves_no_row_of_theirs_and_every_row_of_the_others",
    ),
    mutant(
        "a_deletion_ends_at_the_first_ledger_that_stays",
        "storage",
        "Collector._remove_runs",
        "rows.run_key(following, 0)",
        "stop",
        f"{_MOVING}::test_a_deletion_of_many_ledgers_leaves_no_row_of_theirs_and_every_row_of_the_others",
    ),
    mutant(
        "a_deletion_gets_behind_a_clean_stop",
        "rule 4, D27.3",
        "Engine.close",
        "await self.collector.stop()",
        "",
        f"{_STOP}::test_a_collection_that_is_under_way_appends_nothing_behind_a_clean_stop",
    ),
    mutant(
        "read_does_not_notice_that_runs_were_put_together",
        "rule 8",
        "Reader._find",
        "given_up == forgetter.given_up and straddle == state.straddle",
        "given_up == forgetter.given_up",
        f"{_MOVING}::test_a_read_that_began_before_runs_with_gaps_were_put_together_finds_their_entries",
    ),
    mutant(
        "a_log_without_room_leaves_its_file",
        "bounds",
        "EntryLogFiles.write",
        "(UnreadableSource, DiskFull)",
        "UnreadableSource",
        f"{_MOVING}::test_a_log_for_which_the_room_ran_out_half_way_leaves_no_file",
    ),
    mutant(
        "a_segment_without_room_leaves_its_file",
        "bounds",
        "SegmentFiles.create",
        "await self.disk.unlink(unfinished)  # It is made anew when there is room.",
        "",
        "tests/storage/test_storage_space.py::"
        "test_a_segment_for_which_the_room_ran_out_half_way_is_made_when_there_is_room",
    ),
    mutant(
        "a_full_disk_keeps_a_bookie_from_starting",
        "bounds",
        "opening._next_segment",
        "size <= _FIRST_SEGMENT_BYTES_MIN",
        "size > 0",
        "tests/storage/test_storage_space.py::"
        "test_a_bookie_whose_disk_is_full_starts_and_can_be_read_and_fenced",
    ),
    mutant(
        "a_rotten_file_is_freed_though_a_live_entry_is_in_it",
        "rule 8",
        "FileContents._indexed_runs",
        "found += [run for run in those if run.file == file]",
        "",
        f"{_ROTTEN}::test_rot_of_a_live_entry_stays_until_it_is_deleted",
    ),
    mutant(
        "fences_do_not_go_along_when_rot_hides_them",
        "rule 1",
        "FileContents._fenced_or_deleted",
        "stored.is_fenced or stored.is_deleted",
        "False",
        f"{_ROTTEN}::test_a_rotten_file_whose_ledgers_are_all_deleted_is_freed",
    ),
    mutant(
        "what_a_rotten_log_had_replaced_is_forgotten",
        "storage",
        "FileContents.read_by_index",
        "await self._absent()",
        "FileSet()",
        f"{_ROTTEN}::test_a_rotten_file_whose_ledgers_are_all_deleted_is_freed",
    ),
    mutant(
        "a_healed_file_is_never_written_again",
        "storage",
        "Replacer.replace",
        "self._compactor.suspect(run.file)",
        "",
        f"{_ROTTEN}::test_a_file_that_was_healed_is_freed_and_does_not_stop_rebuild_index",
    ),
    mutant(
        "the_index_made_again_names_the_rotten_one_of_two_runs",
        "storage",
        "Doubles._without_forgotten",
        "not known.issuperset(held.ids)",
        "True",
        "tests/storage/test_rebuilt_with_damage.py::"
        "test_the_index_made_again_says_what_it_said_whatever_rots_and_is_healed",
    ),
    mutant(
        "a_run_whose_head_has_rotted_is_passed_over",
        "rule 8",
        "is_head_sound",
        'decode_head(run, head, "")',
        "",
        "tests/storage/test_rebuilt_with_damage.py::test_rot_in_a_head_is_refused_by_name",
    ),
    mutant(
        "a_rotten_log_that_was_replaced_keeps_a_bookie_from_starting",
        "storage",
        "_read_replaced",
        "any(low not in known and -low not in gone for low in numbers if low <= number)",
        "True",
        f"{_CRASHES}::test_every_crash_state_boots_to_what_was_acknowledged[freeing_rot-False]",
    ),
    mutant(
        "a_missing_log_of_a_store_is_taken_for_an_empty_one",
        "storage",
        "_newest_log",
        """
        raise StorageCorrupt(
            path, None, f"the index's log, {path}/*.log, is missing; {remedy(path)}"
        )
        """,
        """
        return path
        raise StorageCorrupt(
            path, None, f"the index's log, {path}/*.log, is missing; {remedy(path)}"
        )
        """,
        "tests/storage/test_damage.py::"
        "test_whatever_is_damaged_in_an_index_is_named_with_the_command_that_makes_it_again",
    ),
    mutant(
        "a_log_is_compacted_while_its_entries_are_in_memory",
        "rule 8",
        "Compactor._is_busy",
        "any(resident.flushed_to == file for resident in self._residents.values())",
        "False",
        f"{_MOVING}::test_entries_stay_readable_if_the_run_before_them_came_later_and_is_still_in_memory",
    ),
    mutant(
        "compaction_brings_back_what_the_index_names_no_more",
        "rule 8",
        "Compactor._do",
        "await self._named(runs)",
        "runs",
        f"{_MOVING}::test_a_run_that_the_index_names_no_more_is_not_brought_back",
    ),
    mutant(
        "a_list_looks_at_a_whole_ledger",
        "bounds",
        "Reader._list_entries",
        "effort <= 0 or self._is_hurried(pace)",
        "self._is_hurried(pace)",
        "tests/storage/test_lists.py::"
        "test_a_list_looks_at_a_bounded_part_of_the_index_and_says_how_far_it_came",
    ),
    mutant(
        "a_list_that_ends_early_says_that_it_is_complete",
        "rule 8",
        "Reader._list_entries",
        "ListResult(Status.OK, lister.pairs, run.first - 1)",
        "ListResult(Status.OK, lister.pairs, last)",
        "tests/storage/test_lists.py::"
        "test_a_list_looks_at_a_bounded_part_of_the_index_and_says_how_far_it_came",
    ),
    mutant(
        "all_that_is_in_memory_is_found_without_a_wait",
        "bounds",
        "BookieLedger.horizon",
        "at >= len(self.runs) or self.runs[at].first > last",
        "at >= 0",
        "tests/storage/test_lists.py::"
        "test_what_is_in_memory_is_listed_and_read_with_others_served_in_between",
    ),
    mutant(
        "names_of_segments_that_a_start_finds_are_left_in_a_cache",
        "storage",
        "SegmentFiles.prepare",
        "await self.disk.sync_directory(self.directory)",
        "",
        "tests/storage/test_crash_after_kill.py::"
        "test_a_power_cut_after_the_start_behind_a_kill_takes_nothing_that_was_promised",
    ),
    mutant(
        "names_of_logs_that_a_start_finds_are_left_in_a_cache",
        "storage",
        "EntryLogFiles.prepare",
        "await self.disk.sync_directory(self.directory)",
        "",
        "tests/storage/test_crash_after_kill.py::"
        "test_a_power_cut_after_the_start_behind_a_kill_takes_nothing_that_was_promised[moving-True-4]",
    ),
    mutant(
        "marks_that_a_start_finds_are_left_in_a_cache",
        "storage, D27.3",
        "directory.open_directory",
        "await used.sync_directory(each)",
        "",
        "tests/storage/test_crash_after_kill.py::test_marks_that_a_start_finds_outlive_a_power_cut",
    ),
    mutant(
        "who_looks_for_runs_waits_for_who_moves_them",
        "bounds",
        "Catalogue.runs",
        "limit *= _MORE",
        """
        async with self.lock:
            limit *= _MORE
        """,
        "tests/storage/test_lists.py::test_nobody_who_looks_for_runs_waits_for_those_who_move_them",
    ),
    mutant(
        "a_full_page_of_the_index_is_taken_for_the_last",
        "storage",
        "Catalogue.pages",
        "len(page) < _PAGE_ROWS",
        "len(page) <= _PAGE_ROWS",
        "tests/unit/test_catalogue.py",
    ),
    mutant(
        "what_stands_behind_the_end_that_is_known_is_looked_at",
        "storage",
        "BlockWalk.__iter__",
        "size if stop is None else stop",
        "size",
        "tests/unit/test_facts.py::test_nothing_behind_the_end_that_is_known_is_looked_at",
    ),
    mutant(
        "a_fence_that_a_file_tells_is_taken_for_one_on_its_way",
        "rule 2, T08",
        "BookieLedger.on_fence_found",
        "self.is_fence_durable = True",
        "",
        "tests/unit/test_facts.py::test_a_segment_and_a_log_say_the_same_of_a_ledger",
    ),
    mutant(
        "a_held_file_is_let_go_of_while_its_copies_are_made",
        "rule 8",
        "Compactor.hold",
        "self._held.get(file, self._journal.active) is not None",
        "True",
        "tests/storage/test_scrub.py::"
        "test_a_file_stays_held_while_copies_are_made_though_an_add_replaced_another_run_of_it",
    ),
    mutant(
        "a_job_under_way_is_not_waited_for_before_a_run_is_restored",
        "rule 8",
        "Compactor.holding",
        """
        async with self._lock:
            pass  # A job that began before the file was held has ended.
        """,
        "",
        "tests/storage/test_scrub.py::test_a_file_is_held_before_a_job_under_way_is_waited_for",
    ),
    mutant(
        "who_waits_for_turns_keeps_segments_in_memory",
        "bounds",
        "Reader._is_hurried",
        "self._pool.is_awaited and pace is not at_once",
        "False",
        "tests/storage/test_engine.py::test_who_waits_for_a_turn_keeps_no_segment_in_memory_for_long",
    ),
    mutant(
        "a_segment_is_trimmed_while_nothing_follows_it",
        "rule 8",
        "Checkpointer._pass",
        """
        if not is_optional:
            # A rebuild of the index takes a trimmed segment for a damaged one if nothing follows it.
            await self._journal.wait_durable(segment.final_sequence + 1)
        """,
        "",
        "tests/storage/test_engine.py::test_a_segment_is_trimmed_when_the_next_one_has_a_block",
    ),
    mutant(
        "runs_of_deleted_ledgers_are_called_rotten",
        "rule 8",
        "Scrubber._pass",
        "self._ledgers.is_deleted(run.ledger_id)",
        "False",
        "tests/storage/test_rows_of_deleted_ledgers.py::test_scrubbing_looks_for_no_run_of_a_deleted_ledger",
    ),
    mutant(
        "segments_leave_memory_under_who_reads_there",
        "rule 8",
        "Forgetter.forget",
        "await self._pool.retire(())",
        "",
        "tests/storage/test_write_cache.py::"
        "test_who_found_runs_in_memory_reads_them_there_before_their_bytes_go",
    ),
    mutant(
        "what_was_repaired_is_verified_in_an_hour",
        "rule 8",
        "Scrubber.run",
        "not at_once",
        "True",
        "tests/shells/test_repaired_directories.py::test_any_damage_of_any_file_is_repaired",
    ),
    mutant(
        "files_that_were_set_aside_say_nothing",
        "rule 8",
        "node.open_bookie",
        "repair_damage or bool(await find_set_aside(directory))",
        "repair_damage",
        "tests/shells/test_corruption_repair.py::test_scrubbing_begins_at_once_while_files_are_set_aside",
    ),
)
