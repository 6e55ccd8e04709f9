"""Mutants of what a bookie does after it may have lost data: marks, cookies, limbo, repair, accepted loss."""

from __future__ import annotations

from tests.mutants.mutant import Change, mutant

_TEST_LOSS = "tests/scenarios/test_after_loss.py"
_TEST_MARKS = "tests/unit/test_loss_marks.py"
_TEST_VERDICTS = "tests/storage/test_loss_marks_in_verdicts.py"
_TEST_IDENTITY = "tests/shells/test_server_identity.py"
_TEST_REPAIR = "tests/shells/test_limbo_repair.py"
_TEST_CACHE = "tests/storage/test_write_cache.py"
_TEST_RECOVERY = "tests/unit/test_recovery_core.py"

_T09 = f"{_TEST_LOSS}::test_t09_scenario_1_a_fence_that_was_lost_with_a_disk_lets_no_add_in_after_the_close"
_T30 = f"{_TEST_LOSS}::test_t30_so_does_one_of_a_ledger_that_no_longer_names_the_bookie"
_SCENARIO_2 = (
    f"{_TEST_LOSS}::test_t10_t11_scenario_2_an_entry_that_was_lost_with_a_disk_is_not_denied_and_not_cut"
)

_TEST_GENERATIONS = "tests/shells/test_server_generations.py"

_ROLLED_BACK = (
    f"{_TEST_LOSS}::test_t10_t11_scenario_2_an_entry_that_was_rolled_back_is_not_denied_and_not_cut"
)

_UNSYNCED_2 = (
    f"{_TEST_LOSS}::test_t10_t11_scenario_2_an_entry_that_was_lost_unsynced_is_not_denied_and_not_cut"
)

_REPAIRED = "tests/shells/test_repaired_directories.py"

_SALVAGE_CRASHES = "tests/storage/test_crash_salvage.py"

_HEALED = "tests/shells/test_healed_index.py"

MUTANTS = (
    mutant(
        "a_repaired_directory_without_marks",
        "D27.12",
        "_mark_all_lost",
        "await write_marks(directory.disk, directory.path, after)",
        "await write_marks(directory.disk, directory.path, known or type(after)())",
        f"{_REPAIRED}::test_what_was_lost_is_unknown_and_never_denied",
    ),
    mutant(
        "a_repair_takes_a_newer_format_for_damage",
        "D27.12",
        "repair_directory",
        "await refuse_newer(directory)",
        "",
        f"{_REPAIRED}::test_a_newer_format_is_refused_and_nothing_is_changed",
    ),
    mutant(
        "salvage_stops_at_the_first_damage",
        "D27.12",
        "segment_facts",
        """
        if block is None or block.block_bytes > len(view):
            at += PAGE_BYTES
            continue
        """,
        """
        if block is None or block.block_bytes > len(view):
            return
        """,
        f"{_REPAIRED}::test_sound_records_around_the_damage_are_kept",
    ),
    mutant(
        "a_salvage_keeps_the_later_of_two_runs_and_not_the_longer",
        "D27.12",
        "bookie.core.salvage.fullest",
        "known is None or run.entry_count >= known.entry_count",
        "True",
        "tests/unit/test_salvage_core.py"
        "::test_of_runs_that_begin_with_one_entry_the_one_with_most_entries_is_kept",
    ),
    mutant(
        "a_salvage_stops_at_two_runs_that_need_one_row",
        "D27.12",
        "Doubles._one_for_each_row",
        "not found and self._is_lost_marked",
        "False",
        "tests/storage/test_damage.py"
        "::test_of_entries_that_stand_in_two_files_and_do_not_fit_one_row_a_salvage_keeps_the_most",
    ),
    mutant(
        "a_file_is_not_compacted_again_after_the_index_failed_once",
        "rule 24",
        "Compactor.compact",
        "damage.run is None",
        "False",
        "tests/storage/test_damaged_files.py::test_a_file_is_compacted_once_the_index_can_be_read_again",
    ),
    mutant(
        "a_bookie_inside_a_process_keeps_its_damaged_index",
        "D27.12",
        "open_embedded",
        "again_at is not None",
        "False",
        f"{_HEALED}::test_a_cluster_inside_a_process_makes_a_damaged_index_again_too",
    ),
    mutant(
        "files_set_aside_go_before_they_are_healed",
        "D27.12",
        "_drop_when_healed",
        "await repair.wait_done()",
        "",
        f"{_REPAIRED}::test_what_was_lost_is_unknown_and_never_denied",
    ),
    mutant(
        "a_loss_is_marked_after_the_salvage",
        "D27.12",
        "_mark_and_salvage",
        """
        await _mark_all_lost(store, directory)
        return await salvage(directory, new_nonce)
        """,
        """
        done = await salvage(directory, new_nonce)
        await _mark_all_lost(store, directory)
        return done
        """,
        _SALVAGE_CRASHES,
    ),
    mutant(
        "a_file_goes_before_its_records_are_kept",
        "D27.12",
        "_Salvage._move",
        "await self._write(replaced, ledgers, runs, image)",
        """
        if not is_damaged:
            await self._disk.unlink(path)
            await self._disk.sync_directory(path.rpartition("/")[0])
        await self._write(replaced, ledgers, runs, image)
        if not is_damaged:
            return
        """,
        _SALVAGE_CRASHES,
    ),
    mutant(
        "a_restored_cookie_without_marks",
        "D27.12",
        "restore_cookie",
        "await _mark_all_lost(store, directory)",
        "",
        f"{_REPAIRED}::test_a_lost_cookie_is_restored_and_all_is_marked",
    ),
    mutant(
        "a_cookie_is_restored_beside_a_live_bookie",
        "D27.5",
        "restore_cookie",
        "await wait_unregistered(store, cookie.bookie_id, place)",
        "",
        f"{_REPAIRED}::test_no_cookie_is_restored_in_a_copy_of_a_directory_that_is_served",
    ),
    mutant(
        "a_cookie_is_restored_from_any_one_of_the_files",
        "D27.12",
        "restore_cookie",
        "len(owners) != 1",
        "not owners",
        f"{_REPAIRED}::test_no_cookie_is_restored_if_the_files_are_of_two_bookies",
    ),
    mutant(
        "damage_of_the_index_is_not_remembered",
        "D27.12",
        "PatientIndex.noting_damage",
        "damage.path == self.path and self.damage is None",
        "False",
        f"{_HEALED}::test_a_read_that_meets_damage_of_the_index_has_it_made_again",
    ),
    mutant(
        "damage_of_any_file_counts_as_the_indexs",
        "D27.12",
        "PatientIndex.noting_damage",
        "damage.path == self.path and self.damage is None",
        "self.damage is None",
        f"{_HEALED}::test_another_failure_of_the_storage_ends_the_bookie",
    ),
    mutant(
        "a_scrub_reads_no_rows_of_ledgers",
        "D27.12",
        "Scrubber.scrub",
        "await self.check_index(self._pace)",
        "",
        f"{_HEALED}::test_scrubbing_finds_damage_of_the_index_and_the_index_is_made_again",
    ),
    mutant(
        "a_scrub_reads_the_index_from_memory",
        "D27.12",
        "StoredIndex.refresh",
        "await self._open_again()",
        "await trio.lowlevel.checkpoint()",
        "tests/storage/test_index_contract.py::test_a_refreshed_index_reads_from_the_disk_again",
    ),
    mutant(
        "a_damaged_block_at_the_end_of_the_index_is_passed_over",
        "rule 8",
        "leveldb._rows_from",
        "has_end",
        "False",
        "tests/storage/test_index_contract.py::test_a_range_beside_a_damaged_block_is_whole_or_an_error",
    ),
    mutant(
        "a_damaged_block_at_the_beginning_of_the_index_is_passed_over",
        "rule 8",
        "LevelDbDatabase._scan",
        "row is None and tally and start > tally_key(tally)",
        "False",
        "tests/storage/test_index_contract.py::test_a_range_beside_a_damaged_block_is_whole_or_an_error",
    ),
    mutant(
        "a_damaged_block_of_rocksdb_is_the_end_of_the_range",
        "rule 8",
        "RocksDbDatabase._scan",
        """
        if not iterator.valid():
            iterator.status()
        elif (key := iterator.key()) >= floor:
            rows.append((key, iterator.value()))
        """,
        """
        if iterator.valid() and (key := iterator.key()) >= floor:
            rows.append((key, iterator.value()))
        """,
        "tests/storage/test_index_contract.py::test_a_range_beside_a_damaged_block_is_whole_or_an_error",
    ),
    mutant(
        "the_error_about_damage_keeps_rocksdb_open",
        "a damaged index is rebuilt in its place",
        "rocksdb._translated",
        "del function",
        "pass",
        "tests/storage/test_index_contract.py::test_another_index_can_be_made_in_place_of_a_damaged_one_while_its_error_is_kept",
    ),
    mutant(
        "rocksdb_does_not_sync_a_batch",
        "storage",
        "RocksDbDatabase.write",
        "_translated(self._path, lambda: self._database.flush_wal(True))",
        "pass",
        "tests/storage/test_index_contract.py::test_rocksdb_has_synced_a_batch_when_its_write_returns",
    ),
    mutant(
        "an_index_of_another_kind_is_opened",
        "storage",
        "StoredIndexes.open",
        "kind is not None and self._asked is not None and self._asked is not kind",
        "False",
        "tests/storage/test_index_kinds.py::test_another_kind_is_refused_and_made_by_a_rebuild",
    ),
    mutant(
        "a_rebuild_forgets_the_kind_of_the_index",
        "storage",
        "StoredIndexes.create",
        "self._asked or self._present or default_kind()",
        "self._asked or default_kind()",
        "tests/storage/test_index_kinds.py::test_a_directory_keeps_the_kind_of_index_that_it_was_made_with",
    ),
    mutant(
        "a_healed_index_counts_as_a_loss",
        "D27.12",
        "heal_index",
        "runs = await rebuild_index(directory)",
        "runs = (await _mark_and_salvage(store, directory, partial(random_bytes, NONCE_BYTES))).runs",
        f"{_HEALED}::test_an_index_that_was_made_again_marks_nothing_as_lost",
    ),
    mutant(
        "a_directory_is_salvaged_without_leave",
        "D27.12",
        "heal_index",
        "may_salvage",
        "True",
        f"{_HEALED}::test_if_a_file_is_damaged_too_the_directory_is_salvaged_only_by_leave",
    ),
    mutant(
        "an_index_is_made_again_as_often_as_it_is_damaged",
        "D27.12",
        "serve_and_heal",
        "trio.current_time() + _AT_MOST_EVERY_S",
        "-inf",
        f"{_HEALED}::test_an_index_that_is_damaged_again_within_an_hour_is_made_again_only_after_it",
    ),
    mutant(
        "a_boot_after_loss_does_not_fence",
        "D27.1, T09, T30",
        "Adder.add",
        "not is_recovery and self._marks.now.refuses_adds(header.ledger_id)",
        "not is_recovery and header.ledger_id < 0",
        f"{_TEST_VERDICTS}::test_a_fence_mark_refuses_ordinary_adds_of_old_ledgers_alone",
        _T09,
        _T30,
    ),
    mutant(
        "a_boot_after_loss_fences_only_what_is_not_closed_and_names_the_bookie",
        "D27.1, T09, T30",
        "LossMarks.refuses_adds",
        "ledger_id <= self.fenced_through",
        "self.denies_nothing(ledger_id)",
        f"{_TEST_MARKS}::test_clearing_limbo_leaves_the_fence",
        _T09,
        _T30,
    ),
    mutant(
        "a_bookie_in_limbo_denies_what_is_missing_before_rot",
        "A.3, rule 8",
        "loss_marks.undenied",
        "answer.status in _UNREADABLE and answer.through >= first",
        "False",
        f"{_TEST_VERDICTS}::test_in_limbo_what_is_missing_before_an_entry_that_cannot_be_read_is_not_denied",
    ),
    mutant(
        "a_bookie_in_limbo_denies",
        "A.3, D27.7, T10",
        "loss_marks.undenied",
        "answer.status in _DENIALS or (answer.status in _UNREADABLE and answer.through >= first)",
        "False",
        f"{_TEST_VERDICTS}::test_in_limbo_nothing_is_denied_whether_the_ledger_is_known_or_not",
        _SCENARIO_2,
        _UNSYNCED_2,
    ),
    mutant(
        "limbo_is_asked_after_the_look",
        "A.3",
        "Engine.read",
        """
        found = await self._reader.read(
            state, first=first, last=last, stride=stride, bytes_max=bytes_max, pace=pace
        )
        """,
        """
        found = await self._reader.read(
            state, first=first, last=last, stride=stride, bytes_max=bytes_max, pace=pace
        )
        in_limbo = self.loss_marks.now.denies_nothing(ledger_id)
        """,
        f"{_TEST_VERDICTS}::test_a_look_that_began_in_limbo_denies_nothing_though_limbo_ended_meanwhile",
    ),
    mutant(
        "a_bookie_that_may_have_lost_data_serves_without_phase_one",
        "D27.3, T11",
        "settle_marks",
        "kept.now.is_unclean",
        "not kept.now.is_unclean and kept.now.is_unclean",
        f"{_TEST_REPAIR}::test_without_the_metadata_store_a_bookie_that_lost_data_does_not_serve",
        _UNSYNCED_2,
    ),
    mutant(
        "limbo_ends_before_the_copies_are_durable",
        "D27.8, LimboClear",
        "LimboRepair._clear",
        "await self._engine.flush()",
        "",
        f"{_TEST_REPAIR}::test_limbo_ends_only_when_every_copy_is_durable",
    ),
    mutant(
        "limbo_is_left_by_all_ledgers_together",
        "D27.8, LimboClear",
        "LimboRepair._repair_all",
        "await is_any_whole.wait()",
        "await is_over.wait()",
        f"{_TEST_REPAIR}::test_whole_ledgers_leave_limbo_while_a_slow_one_is_still_being_repaired",
    ),
    mutant(
        "the_unclean_bit_is_never_set",
        "D27.10",
        "open_engine",
        "not config.journal_write_data",
        "False",
        f"{_TEST_CACHE}::test_what_was_not_flushed_is_lost_in_a_crash_and_the_bookie_knows_it",
        _UNSYNCED_2,
    ),
    mutant(
        "the_unclean_bit_is_cleared_before_everything_is_flushed",
        "D27.10",
        "Engine.close",
        """
        if self._write_cache is not None:
            await self._write_cache.flush()
        """,
        """
        await self.loss_marks.change(lambda now: now.serving(acknowledges_unsynced=False))
        if self._write_cache is not None:
            await self._write_cache.flush()
        """,
        f"{_TEST_CACHE}::test_a_stop_that_finds_no_room_for_what_is_in_memory_is_not_clean",
    ),
    mutant(
        "keys_skip_the_journal_too",
        "D27.10, rule 10",
        "Adder._append",
        "self._write_cache is not None and state.key_sequence is not None",
        "self._write_cache is not None",
        f"{_TEST_CACHE}::test_all_but_the_first_add_of_a_ledger_are_acknowledged_without_a_sync",
        also=(
            Change(
                "Adder._append",
                "return self._append_unsynced(self._write_cache, state, header, raw)",
                """
            state.key_sequence = state.key_sequence or 0
            return self._append_unsynced(self._write_cache, state, header, raw)
            """,
            ),
        ),
    ),
    mutant(
        "entries_leave_memory_without_a_word_to_who_is_looking_for_them",
        "rule 8",
        "Forgetter.forget",
        "self.given_up += 1",
        "",
        f"{_TEST_CACHE}::test_an_entry_that_moves_from_memory_to_a_log_is_found_in_one_of_the_two",
    ),
    mutant(
        "entries_leave_memory_before_they_are_in_a_log",
        "D27.10",
        "WriteCache._flush_oldest",
        "arena = self._sealed[0]",
        """
        arena = self._sealed[0]
        await self._forgetter.forget(arena)
        """,
        f"{_TEST_CACHE}::test_an_entry_that_moves_from_memory_to_a_log_is_found_in_one_of_the_two",
    ),
    mutant(
        "an_unsynced_add_is_acknowledged_before_its_ledgers_key_is_durable",
        "D27.10, rule 10",
        "Adder._append_unsynced",
        "return state.key_sequence",
        "return self._commit.durable",
        f"{_TEST_CACHE}::test_all_but_the_first_add_of_a_ledger_are_acknowledged_without_a_sync",
    ),
    mutant(
        "a_fixed_cookie_without_marks",
        "D27.3, T11",
        "_fix",
        "directory.format(here, await marks_after_loss(store, None))",
        "directory.format(here)",
        f"{_TEST_IDENTITY}::test_an_emptied_directory_is_formatted_anew_with_marks_for_all_that_it_may_have_lost",
        _SCENARIO_2,
        _T09,
    ),
    mutant(
        "a_loss_is_marked_by_what_a_replica_that_is_behind_has_seen",
        "D27.2",
        "marks_after_loss",
        "await store.sync()",
        "",
        "tests/shells/test_limbo_repair.py::"
        "test_a_loss_is_marked_for_ledgers_that_a_replica_that_is_behind_has_not_seen",
    ),
    mutant(
        "an_adopted_directory_without_marks",
        "D27.3",
        "_mark_loss",
        "write_marks(directory.disk, directory.path, await marks_after_loss(store, marks))",
        "marks_after_loss(store, marks)",
        f"{_TEST_IDENTITY}::test_a_swapped_directory_is_marked_and_then_adopted",
    ),
    mutant(
        "a_directory_that_was_rolled_back_is_believed",
        "D27.13",
        "establish_identity",
        "await compare_generations(directory, here, there) is Age.BEHIND",
        "False",
        f"{_TEST_IDENTITY}::test_a_directory_that_was_rolled_back_is_marked_for_the_loss",
        _ROLLED_BACK,
    ),
    mutant(
        "a_generation_is_counted_before_the_directory_names_it",
        "D27.13",
        "count_generation",
        "await directory.replace_cookie(begun)",
        "",
        f"{_TEST_IDENTITY}::test_starts_are_counted_and_mark_nothing",
    ),
    mutant(
        "a_generation_is_counted_before_the_directory_has_it_for_good",
        "D27.13",
        "StorageDirectory.replace_cookie",
        """
        await self.disk.rename(f"{path}/cookie.next", f"{path}/cookie")
        await self.disk.sync_directory(path)
        """,
        'await self.disk.rename(f"{path}/cookie.next", f"{path}/cookie")',
        "tests/storage/test_crash_generations.py"
        "::test_no_crash_while_a_generation_is_counted_sends_a_sound_directory_into_limbo",
    ),
    mutant(
        "a_journal_that_was_rolled_back_alone_is_believed",
        "D27.13",
        "compare_generations",
        "data is not None and Cookie.decode_untrusted(data, here.bookie_id).age(there) is Age.BEHIND",
        "False",
        f"{_TEST_IDENTITY}::test_a_journal_that_alone_was_rolled_back_is_noticed",
    ),
    mutant(
        "a_directory_ahead_of_a_restored_store_goes_into_limbo",
        "D27.13",
        "Cookie.age",
        "Age.AHEAD if self.generation > there.generation else Age.BEHIND",
        "Age.BEHIND",
        f"{_TEST_IDENTITY}::test_a_directory_is_believed_if_the_store_was_restored_from_an_older_backup",
    ),
    mutant(
        "a_start_on_a_copy_counts_while_the_original_serves",
        "D27.13",
        "establish_identity",
        "await wait_unregistered(store, bookie_id, place)",
        "",
        f"{_TEST_GENERATIONS}::test_a_copy_that_is_started_while_its_original_serves_does_the_original_no_harm",
    ),
    mutant(
        "a_bookie_that_serves_counts_nothing",
        "D27.13",
        "Generations.run",
        "await self._count()",
        "pass",
        f"{_TEST_GENERATIONS}::test_a_copy_that_is_older_than_ten_minutes_is_behind_after_a_crash",
    ),
    mutant(
        "a_clean_stop_counts_nothing",
        "D27.13",
        "Generations.stop",
        "await self._count()",
        "pass",
        f"{_TEST_GENERATIONS}::test_a_copy_that_was_made_while_the_bookie_served_is_behind_after_its_stop",
    ),
    mutant(
        "a_bookie_counts_over_what_another_process_counted",
        "D27.13",
        "Generations._count",
        "there != mine or mine.age(there) is Age.BEHIND",
        "False",
        f"{_TEST_GENERATIONS}::test_a_generation_that_cannot_be_counted_is_told_and_the_bookie_serves_on",
    ),
    mutant(
        "a_bookie_registers_though_its_id_has_other_data",
        "loss",
        "Generations._is_elsewhere",
        "there.instance != self._cookie.instance",
        "False",
        f"{_TEST_GENERATIONS}::test_a_bookie_that_was_cut_off_stops_if_other_data_was_served_under_its_id",
    ),
    mutant(
        "a_bookie_registers_though_a_copy_counted_since",
        "loss",
        "Generations._is_elsewhere",
        "here is not None and Cookie.decode_untrusted(here, bookie_id).age(there) is Age.BEHIND",
        "False",
        f"{_TEST_GENERATIONS}::test_a_bookie_that_was_cut_off_stops_if_other_data_was_served_under_its_id",
    ),
    mutant(
        "an_emptied_directory_is_taken_for_a_new_one",
        "cookies",
        "establish_identity",
        "not fix_cookie or is_foreign or (here is None and has_data)",
        "is_foreign or (here is None and has_data)",
        f"{_TEST_IDENTITY}::test_an_emptied_directory_is_refused",
        f"{_TEST_IDENTITY}::test_a_swapped_directory_is_refused",
    ),
    mutant(
        "marks_that_are_gone_are_clean",
        "D27.3",
        "settle_marks",
        "LossMarks(is_unclean=True)",
        "LossMarks()",
        f"{_TEST_REPAIR}::test_without_the_metadata_store_a_bookie_that_lost_data_does_not_serve",
    ),
    mutant(
        "open_ledgers_leave_limbo",
        "D27.6, LimboClear",
        "LimboRepair._repair",
        "metadata, metadata.is_closed and not lost",
        "metadata, not lost",
        f"{_TEST_REPAIR}::"
        "test_an_open_ledger_that_does_not_name_the_bookie_last_stays_in_limbo_until_it_is_closed",
    ),
    mutant(
        "ledgers_with_lost_entries_leave_limbo",
        "D27.8, LimboClear",
        "LimboRepair._repair",
        "metadata, metadata.is_closed and not lost",
        "metadata, metadata.is_closed",
        f"{_TEST_REPAIR}::test_entries_that_all_others_deny_are_named_as_lost_and_still_not_denied",
    ),
    mutant(
        "open_ledgers_are_not_recovered",
        "D27.9",
        "LimboRepair._repair",
        "not metadata.is_closed and self._bookie_id in metadata.last_fragment.ensemble",
        "not metadata.is_closed and not metadata.fragments",
        f"{_TEST_REPAIR}::test_an_open_ledger_is_recovered_and_its_owner_is_fenced",
    ),
    mutant(
        "the_last_entry_of_a_bookie_in_limbo_counts",
        "A.3",
        "LedgerReader._lac_of",
        "header.status == Status.UNKNOWN",
        "False",
        f"{_TEST_REPAIR}::test_the_end_of_an_open_ledger_is_not_taken_from_a_bookie_in_limbo",
    ),
    mutant(
        "a_bookie_in_limbo_tells_its_last_entry_as_the_last",
        "A.3",
        "Requests._read_lac",
        "Status.UNKNOWN if engine.loss_marks.now.denies_nothing(header.ledger_id) else Status.OK",
        "Status.OK",
        f"{_TEST_REPAIR}::"
        "test_a_bookie_in_limbo_gives_what_it_has_and_says_of_the_rest_that_it_does_not_know",
    ),
    mutant(
        "recovery_accepts_losses_by_itself",
        "D27.9, A.0",
        "LedgerRecovery._judge",
        "self._accept_loss and (self._accept_unreachable or not silent)",
        "self._accept_unreachable or not silent",
        f"{_TEST_RECOVERY}::"
        "test_an_operator_may_end_a_ledger_before_the_first_entry_that_nobody_can_speak_for",
        _SCENARIO_2,
    ),
    mutant(
        "a_bookie_that_does_not_answer_is_taken_for_one_that_lost_its_data",
        "D27.9",
        "LedgerRecovery._judge",
        "self._accept_loss and (self._accept_unreachable or not silent)",
        "self._accept_loss",
        f"{_TEST_RECOVERY}::test_an_operator_accepts_what_bookies_lost_and_not_that_they_do_not_answer",
    ),
    mutant(
        "an_accepted_loss_leaves_no_trace",
        "D27.9",
        "LedgerRecovery._form_closing_intent",
        "self.lost_from is not None",
        "False",
        f"{_TEST_RECOVERY}::"
        "test_an_operator_may_end_a_ledger_before_the_first_entry_that_nobody_can_speak_for",
    ),
    mutant(
        "limbo_is_copied_as_fast_as_it_goes",
        "D27.8",
        "LimboRepair._store",
        "await self._pace.pass_through(len(raw))",
        "",
        f"{_TEST_REPAIR}::test_copying_goes_no_faster_than_it_should",
    ),
    mutant(
        "a_full_disk_ends_a_bookie_that_repairs_itself",
        "D27.8",
        "LimboRepair.run",
        "isinstance(trouble, StorageError) and not isinstance(trouble, NOT_NOW)",
        "isinstance(trouble, StorageError)",
        f"{_TEST_REPAIR}::test_a_full_disk_stops_the_copying_and_not_the_bookie",
    ),
    mutant(
        "a_ledger_leaves_limbo_by_metadata_that_is_old",
        "D27.6",
        "LimboRepair._clear",
        "[e for e, seen in sorted(whole.items()) if await peers.metadata(e) == seen]",
        "[e for e, seen in sorted(whole.items()) ]",
        f"{_TEST_REPAIR}::test_a_ledger_that_names_the_bookie_only_since_it_was_looked_at_stays_in_limbo",
    ),
)
