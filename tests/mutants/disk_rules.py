"""Mutants of a disk that fills up or rots: when it is read-only, and what takes a rotten run's place."""

from __future__ import annotations

from tests.mutants.mutant import Change, mutant

_FULLNESS_TEST = "tests/unit/test_fullness.py"
_FULL_TEST = "tests/storage/test_full_disk.py"
_WATCH_TEST = "tests/shells/test_disk_watch.py"
_SCRUB_TEST = "tests/storage/test_scrub.py"
_CALLS = "tests/storage/test_failing_calls.py"
_SYSTEM_CALLS = (
    "tests/storage/test_crash_calls.py::"
    "test_a_power_cut_between_any_two_system_calls_takes_nothing_that_was_promised"
)
_STARTS = "tests/storage/test_killed_starts.py"
_CRASHES = "tests/storage/test_crash_states.py"
_MENDING_TEST = "tests/storage/test_read_repair.py"

MUTANTS = (
    mutant(
        "truncation_is_not_synced",
        "storage",
        "RealDisk.truncate",
        "os.fsync(descriptor)",
        "None",
        f"{_SYSTEM_CALLS}[leveldb-few]",
    ),
    mutant(
        "an_index_without_room_to_open_says_nothing_of_room",
        "storage",
        "StoredIndex._database",
        "raise fresh(self._failure)",
        "raise StorageError(str(self._failure))",
        f"{_FULL_TEST}::test_a_read_of_a_store_that_found_no_room_to_open_again_says_that_the_disk_is_full",
    ),
    mutant(
        "compaction_ends_a_bookie_whose_index_has_no_room_to_open",
        "storage",
        "Compactor._compact",
        "NOT_NOW",
        "RuntimeError",
        f"{_FULL_TEST}::test_upkeep_waits_while_the_index_cannot_be_opened_again",
    ),
    mutant(
        "collection_ends_a_bookie_whose_index_has_no_room_to_open",
        "storage",
        "Collector.run",
        "NOT_NOW",
        "RuntimeError",
        f"{_FULL_TEST}::test_upkeep_waits_while_the_index_cannot_be_opened_again",
    ),
    mutant(
        "a_small_segment_has_room_for_frames_that_it_does_not_take",
        "storage",
        "Journal.has_room_for",
        "commit.room - size >= active.image.size // 2",
        "commit.room > 0",
        "tests/storage/test_small_beginnings.py::test_the_largest_frame_is_taken_at_once",
    ),
    mutant(
        "no_reserve_is_kept",
        "rule 5",
        "FullnessPolicy.read_only_below",
        "max(self.reserve_bytes, round(total * (1 - self.read_only_ratio)))",
        "round(total * (1 - self.read_only_ratio))",
        f"{_FULLNESS_TEST}::test_the_reserve_holds_where_it_is_more_than_the_share_and_the_way_back_is_as_long",
    ),
    mutant(
        "writable_again_at_the_read_only_mark",
        "bounds",
        "FullnessPolicy._judge",
        "self.read_only_below if was is not Fullness.READ_ONLY else self.writable_from",
        "self.read_only_below",
        f"{_FULLNESS_TEST}::test_a_read_only_bookie_comes_back_at_the_lower_mark_and_not_before",
    ),
    mutant(
        "a_full_bookie_starts_as_writable",
        "bounds",
        "_serving",
        "await watch.look()  # Who starts on a full disk is never seen as writable.",
        "",
        f"{_WATCH_TEST}::test_who_starts_on_a_full_disk_is_never_registered_as_writable",
    ),
    mutant(
        "a_rotten_row_outlives_its_copy",
        "rule 8",
        "Rewriter.flush",
        "{(run.ledger_id, run.first) for run in runs[:indexed]}.union(rows_elsewhere)",
        "{(run.ledger_id, run.first) for run in runs[:indexed]}",
        f"{_SCRUB_TEST}::test_rotten_runs_are_named_and_restored_ones_take_their_rows_even_put_together",
    ),
    mutant(
        "a_copy_takes_the_row_before_the_rest_is_there",
        "rule 8",
        "Replacer.replace",
        "parts[::-1]",
        "parts[:]",
        f"{_SCRUB_TEST}::test_a_run_restored_in_parts_begins_with_its_last_part",
    ),
    mutant(
        "a_file_is_compacted_while_copies_are_on_their_way",
        "rule 8",
        "Compactor._is_busy",
        "self.holds(file)",
        "False",
        f"{_SCRUB_TEST}::test_the_file_of_a_rotten_run_is_held_until_its_copies_are_indexed",
    ),
    mutant(
        "large_files_take_the_room_that_the_index_needs",
        "storage",
        "Ballast.check",
        "free - size < 2 * kept - min(kept, await self._held())",
        "free - size < 0",
        f"{_FULL_TEST}::test_large_files_leave_what_the_index_needs",
    ),
    mutant(
        "the_index_is_written_to_the_last_byte",
        "storage",
        "Ballast.ensure",
        "free < size // 2",
        "False",
        f"{_FULL_TEST}::test_what_the_index_has_no_room_for_waits_and_goes_on_when_there_is_some",
    ),
    mutant(
        "what_a_stop_gave_up_is_left_to_others",
        "storage",
        "Ballast.leave",
        "self._was_given_up",
        "False",
        f"{_FULL_TEST}::"
        "test_a_bookie_whose_disk_others_fill_refuses_adds_fences_and_stops_and_starts_in_order",
    ),
    mutant(
        "a_store_writes_behind_half_a_batch",
        "storage",
        "StoredIndex.write",
        """
        if self._is_torn or self._failure is not None:
            with trio.CancelScope(shield=True):
                await self._open_again()
        """,
        """
        if False:
            with trio.CancelScope(shield=True):
                await self._open_again()
        """,
        f"{_FULL_TEST}::test_a_store_takes_the_next_batch_after_one_that_found_no_room",
    ),
    mutant(
        "the_index_made_again_goes_by_the_newest_of_two_runs",
        "rule 8",
        "Doubles._one_for_each_row",
        "[held for held in alike if _all_ids([held, *others]) == known]",
        "alike",
        "tests/storage/test_damage.py::"
        "test_of_entries_that_stand_in_two_files_none_is_denied_once_the_index_was_made_again",
    ),
    mutant(
        "nobody_hears_of_rot_that_cannot_be_mended",
        "rule 24",
        "CorruptionRepair._repair",
        "stuck.add(rotten.run.ledger_id)",
        "continue",
        "tests/shells/test_corruption_repair.py::"
        "test_auto_recovery_is_asked_about_what_cannot_be_copied_again_and_about_nothing_else",
    ),
    mutant(
        "a_rotten_copy_is_taken_for_stored",
        "rule 6, rule 8",
        "ReadRepair._look",
        "wanted.intersection(entries.damaged())",
        "wanted.intersection(entries.damaged()[:0])",
        f"{_MENDING_TEST}::test_a_good_copy_of_a_rotten_entry_takes_its_place_for_good",
    ),
    mutant(
        "what_mends_a_run_leaves_the_rest_of_it_out",
        "rule 8",
        "Damaged.replaced_by",
        "payloads.get(entry_id) or self.kept.get(entry_id)",
        "payloads.get(entry_id)",
        f"{_MENDING_TEST}::test_a_frame_that_proves_nothing_is_replaced_by_all_of_its_entries_and_by_no_fewer",
        also=(
            Change(
                "Damaged.replaced_by",
                "parts = [part for part in found if part is not None]",
                "parts = found = [part for part in found if part is not None]",
            ),
            Change(
                "Damaged.replaced_by",
                "compact_ids(list(self.ids))",
                "compact_ids([e for e in self.ids if e in payloads])",
            ),
        ),
    ),
    mutant(
        "what_is_carried_on_damaged_is_given_out_from_memory",
        "rule 8",
        "Reader._give",
        "resident is not None and (run.ledger_id, run.first) not in resident.restored",
        "resident is not None",
        f"{_MENDING_TEST}::test_of_two_rotten_entries_of_a_run_each_is_mended_when_it_is_brought",
    ),
    mutant(
        "what_is_carried_on_damaged_counts_as_verified",
        "rule 6, rule 8",
        "ReadRepair._look",
        "resident is not None and (run.ledger_id, run.first) not in resident.restored",
        "resident is not None",
        f"{_MENDING_TEST}::test_of_two_rotten_entries_of_a_run_each_is_mended_when_it_is_brought",
    ),
    mutant(
        "entries_without_a_head_are_not_compared",
        "rule 6",
        "ReadRepair._look_without_head",
        "{e: digest for e, (digest, _) in kept.items()}, Damaged(run, ids, kept, error)",
        "{}, Damaged(run, ids, kept, error)",
        f"{_MENDING_TEST}::test_a_frame_without_a_head_is_replaced_by_all_of_its_entries",
    ),
    mutant(
        "the_file_of_what_was_mended_is_put_together",
        "rule 8",
        "Replacer.replace",
        "self._compactor.hold(run.file)",
        "",
        f"{_MENDING_TEST}::test_the_file_of_what_was_mended_is_held_until_the_copy_is_indexed",
    ),
    mutant(
        "what_is_being_moved_is_mended",
        "rule 8",
        "ReadRepair.repair_now",
        "not self._compactor.is_moving(each.run.file) and each.run.file not in self._residents",
        "each.run.file not in self._residents",
        f"{_MENDING_TEST}::test_nothing_is_mended_in_a_file_that_is_being_written_again",
    ),
    mutant(
        "what_was_mended_is_found_rotten_again",
        "storage",
        "Scrubber._pass",
        "not is_deleted and run.file not in self._residents and not self._is_superseded(run)",
        "not is_deleted and run.file not in self._residents",
        f"{_MENDING_TEST}::test_a_mended_run_is_not_found_rotten_nor_stored_again_before_it_is_indexed",
    ),
    mutant(
        "what_is_left_of_the_ballast_counts_as_all_of_it",
        "storage",
        "Ballast._take",
        "size <= await self._held()",
        "size <= 0 or await self._held()",
        f"{_FULL_TEST}::test_what_was_left_of_the_ballast_is_made_whole_when_there_is_plenty",
    ),
    mutant(
        "a_ballast_without_its_name_stays_in_the_way",
        "storage",
        "Ballast.give_up",
        "(self._path, self._fresh)",
        "(self._path,)",
        f"{_FULL_TEST}::test_a_ballast_that_a_crash_kept_from_its_name_is_given_up_as_well",
        "tests/storage/test_crash_full_disk.py::"
        "test_every_crash_state_of_a_full_disk_boots_on_it_to_what_was_acknowledged",
    ),
    mutant(
        "a_scrub_closes_an_index_that_has_no_room_to_open_again",
        "storage",
        "PatientIndex.refresh",
        "await self._ballast.ensure()",
        "pass",
        f"{_FULL_TEST}::test_a_scrub_on_a_full_disk_does_not_close_the_index",
    ),
    mutant(
        "a_batch_fails_because_another_removed_the_ballast",
        "storage",
        "PatientIndex.write",
        "if is_last_try:\n    raise",
        "if is_last_try or not await self._ballast._held():\n    raise",
        f"{_FULL_TEST}::test_a_batch_is_tried_again_if_the_stop_removed_the_ballast_meanwhile",
    ),
    mutant(
        "of_what_mends_a_long_run_only_the_beginning_is_stored",
        "rule 8",
        "read_repair.cut_to_size",
        "[entries.select(part) for part in parts]",
        "[entries.select(part) for part in parts[:1]]",
        "tests/storage/test_crash_states.py::"
        "test_every_crash_state_boots_to_what_was_acknowledged[mending-False]",
    ),
    mutant(
        "what_is_on_its_way_to_the_disk_is_mended",
        "rule 8",
        "ReadRepair.repair_now",
        "not self._compactor.is_moving(each.run.file) and each.run.file not in self._residents",
        "not self._compactor.is_moving(each.run.file)",
        f"{_MENDING_TEST}::test_what_took_the_place_of_a_rotten_run_is_not_mended_before_it_is_on_the_disk",
    ),
    mutant(
        "a_part_takes_the_place_of_another_run",
        "rule 8",
        "Scrubber._restore",
        """
        if not self._replacer.fits(state, rest):
            return False
        """,
        "",
        f"{_SCRUB_TEST}::test_no_part_of_what_is_restored_takes_the_place_of_another_run",
    ),
    mutant(
        "what_was_stored_again_in_parts_is_looked_for_in_the_rotten_run",
        "rule 8",
        "Reader._find",
        """
        {
            run.first: run
            for run in indexed
            if run.first <= horizon and (not state.is_replaced(run.first, durable))
        }
        """,
        "{run.first: run for run in indexed if run.first <= horizon}",
        f"{_SCRUB_TEST}::test_a_run_restored_in_parts_begins_with_its_last_part",
    ),
    mutant(
        "name_of_the_directory_of_entry_logs_is_not_synced",
        "storage",
        "EntryLogFiles.prepare",
        'await self.disk.sync_directory(self.directory.rpartition("/")[0])',
        "",
        f"{_CRASHES}::test_every_crash_state_boots_to_what_was_acknowledged",
    ),
    mutant(
        "formatting_makes_directories_before_its_own_name_is_durable",
        "storage",
        "StorageDirectory.format",
        """
        await disk.write_file(unfinished, _file_of(cookie))
        await disk.sync_directory(self.path)
        await self.indexes.remove(self.index_path)
        """,
        """
        await disk.write_file(unfinished, _file_of(cookie))
        await self.indexes.remove(self.index_path)
        """,
        f"{_CRASHES}::test_every_crash_state_boots_to_what_was_acknowledged",
    ),
    mutant(
        "a_segment_that_found_no_room_must_have_its_first_name",
        "storage",
        "SegmentFiles.create",
        """
        with contextlib.suppress(FileMissing):
            await self.disk.unlink(unfinished)
        """,
        "await self.disk.unlink(unfinished)",
        f"{_CALLS}::test_a_segment_that_has_its_name_although_that_found_no_room_is_made_again",
    ),
    mutant(
        "a_failed_write_of_the_journal_is_tried_again",
        "storage",
        "Journal.write_block",
        "await self._disk.write_sync(segment.file, block.offset, block.view)",
        """
        try:
            await self._disk.write_sync(segment.file, block.offset, block.view)
        except StorageError:
            await self._disk.write_sync(segment.file, block.offset, block.view)
        """,
        f"{_CALLS}::"
        "test_each_call_that_fails_ends_the_bookie_with_the_files_name_or_is_passed_and_loses_nothing",
    ),
    mutant(
        "a_rolled_back_directory_counts_before_it_marks_its_loss",
        "D27.13",
        "identity.establish_identity",
        "await _mark_loss(store, directory)",
        "must_mark = True",
        f"{_STARTS}::test_a_start_that_is_killed_at_any_step_and_killed_again_loses_nothing"
        "[of_a_rolled_back_directory-few]",
        also=(
            Change(
                "identity.establish_identity",
                "return await count_generation(store, directory, here, node, fresh.generation_token)",
                """
                counted = await count_generation(store, directory, here, node, fresh.generation_token)
                if locals().get("must_mark"):
                    await _mark_loss(store, directory)
                return counted
                """,
            ),
        ),
    ),
    mutant(
        "a_block_with_a_sound_header_is_whole",
        "storage",
        "block.block_damage",
        "actual == table and value(table) == header.table_checksum",
        "True",
        f"{_CRASHES}::test_garbage_in_sectors_that_nobody_wrote_is_passed_or_refused_and_loses_nothing",
    ),
    mutant(
        "leveldb_writes_a_batch_without_a_sync",
        "storage",
        "LevelDbDatabase.write",
        "self._database.write_batch(transaction=True, sync=True)",
        "self._database.write_batch(transaction=True, sync=False)",
        f"{_SYSTEM_CALLS}[leveldb-few]",
    ),
    mutant(
        "rocksdb_writes_a_batch_without_a_sync",
        "storage",
        "RocksDbDatabase.write",
        "self._database.flush_wal(True)",
        "self._database.flush_wal(False)",
        f"{_SYSTEM_CALLS}[rocksdb-few]",
    ),
    mutant(
        "a_disk_is_slow_while_the_process_waits_for_a_processor",
        "storage",
        "RealDisk.write_now",
        "haste.on_written(took_s - (_waited_s() - waited_s) if in_doubt else took_s)",
        "haste.on_written(took_s)",
        "tests/storage/test_inline_writes.py"
        "::test_time_that_the_process_waited_for_a_processor_does_not_make_the_disk_slow",
    ),
)
