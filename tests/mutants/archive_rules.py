"""Mutants of archives: no record without a place, no second truth, nothing left out at a boundary."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_PLAN = "tests/archive/test_archive_plan.py"
_TEST = "tests/archive/test_archive_job.py"
_REWRITING = "tests/archive/test_archive_rewriting.py"
_PLACES = "tests/archive/test_archive_destinations.py"
_NAMES = "tests/archive/test_archive_names.py"
_FAULTS = "tests/archive/test_archive_faults.py"
_MARKER = "tests/archive/test_archive_marker.py"
_TABLE = "tests/archive/test_archive_table.py"
_S3 = "tests/archive/test_archive_on_s3.py"
_MOVED = "tests/archive/test_archive_moved.py"
_TOLD = "test_a_job_that_was_told_the_old_place_of_a_moved_archive_cannot_record_files"
_OVER_ROT = "tests/archive/test_archive_over_damage.py"

MUTANTS = (
    mutant(
        "a_file_is_recorded_by_its_whole_url",
        "A.6",
        "_Writing.finish",
        "archiver.destination_id",
        'b""',
        f"{_MOVED}::test_an_archive_is_moved_by_the_record_of_its_destination_alone",
    ),
    mutant(
        "a_file_that_is_not_at_the_new_place_is_moved",
        "A.6",
        "_Mover.check",
        "(size, footer) != (record.file_bytes, record.footer)",
        "False",
        f"{_MOVED}::test_nothing_is_moved_if_a_file_or_the_marker_is_not_there",
    ),
    mutant(
        "an_archive_that_was_moved_away_is_claimed",
        "A.6",
        "Markers.claim",
        "found is not None and found[0].moved_to",
        "False",
        f"{_MOVED}::test_a_job_that_is_told_the_old_place_refuses_although_a_copy_is_there",
    ),
    mutant(
        "a_copy_of_an_archive_is_the_archive",
        "A.6",
        "Markers._addressed",
        "not await in_thread(lambda: destination.is_at(place.url), file=destination.url)",
        "False",
        f"{_MOVED}::test_a_job_that_is_told_the_old_place_refuses_although_a_copy_is_there",
    ),
    mutant(
        "a_file_at_the_old_place_is_recorded_after_the_move",
        "A.6",
        "Archiver._record",
        "await self.check_place()",
        "Check(log_record_path(self.incarnation), version)",
        f"{_MOVED}::test_a_job_does_not_record_a_file_at_the_old_place_after_the_move",
    ),
    mutant(
        "a_merged_file_at_the_old_place_is_recorded_after_the_move",
        "A.6",
        "commit_group",
        "await archiver.check_place()",
        "(await archiver.check_place()) and Check(path, versions[0])",
        f"{_MOVED}::{_TOLD}",
    ),
    mutant(
        "a_file_is_recorded_although_the_archive_is_moved_in_that_moment",
        "A.6",
        "Archiver._record",
        "await self.check_place()",
        "(await self.check_place()) and Check(log_record_path(self.incarnation), version)",
        f"{_MOVED}::{_TOLD}",
    ),
    mutant(
        "a_file_that_is_recorded_during_a_move_ends_the_move",
        "A.6",
        "move_archive",
        "if mover.is_switched:\n    break",
        "if mover.is_switched and not records:\n    break",
        f"{_MOVED}::test_a_file_that_a_job_recorded_during_the_move_is_looked_for_too",
    ),
    mutant(
        "a_file_that_is_recorded_during_a_move_is_not_looked_for",
        "A.6",
        "move_archive",
        "await mover.switch()",
        "await mover.switch()\nbreak",
        f"{_MOVED}::test_a_file_that_a_job_recorded_during_the_move_is_looked_for_too",
    ),
    mutant(
        "a_marker_that_was_accepted_is_made_before_the_files_are_found",
        "A.6",
        "_Mover.check_marker",
        "self._is_marker_missing, self.is_switched = True, False",
        "await self._markers.mark(self._destination, self._place.marker)",
        f"{_MOVED}::test_a_marker_is_made_only_where_the_files_are_and_the_old_one_counts_no_more",
    ),
    mutant(
        "a_marker_that_was_accepted_is_the_old_one",
        "A.6",
        "_Mover.check_marker",
        "attrs.evolve(self._place, marker=marker, made_ms=environment.now_ms())",
        "self._place",
        f"{_MOVED}::test_a_marker_is_made_only_where_the_files_are_and_the_old_one_counts_no_more",
    ),
    mutant(
        "a_move_drops_the_keys_of_a_later_version",
        "A.6",
        "_Mover.switch",
        "self._place.encode()",
        "attrs.evolve(self._place, unknown=b'').encode()",
        f"{_MOVED}::test_keys_of_a_later_version_stay_with_a_destination",
    ),
    mutant(
        "a_second_move_to_the_same_place_records_nothing",
        "A.6",
        "_Mover.begin",
        "place == new",
        "True",
        f"{_MOVED}::test_a_second_move_to_the_same_place_records_how_it_is_reached_now",
    ),
    mutant(
        "requests_to_an_object_store_have_no_deadline",
        "A.6",
        "_with_deadlines",
        'filesystem.type_name == "s3"',
        "False",
        f"{_S3}::test_a_process_ends_although_a_server_does_not_answer_it",
    ),
    mutant(
        "a_job_waits_for_a_dead_server_at_each_file",
        "A.6",
        "Archiver.expect_answer_after",
        "isinstance(failure, ArchiveUnavailable)",
        "False",
        f"{_S3}::test_a_job_asks_a_dead_server_for_one_file_and_not_for_all",
    ),
    mutant(
        "a_table_on_s3_is_looked_for_at_another_server",
        "A.6",
        "LogTable._open_catalog",
        "catalog.properties.setdefault(key, value)",
        "pass",
        f"{_S3}::test_the_table_of_an_archive_on_s3_shows_the_log",
    ),
    mutant(
        "a_secret_of_a_destination_is_stored",
        "A.6",
        "load_destination",
        "has_secret(where)",
        "False",
        f"{_S3}::test_a_destination_with_a_secret_is_refused_and_the_secret_is_neither_stored_nor_shown",
    ),
    mutant(
        "a_commit_of_older_records_passes_over_a_newer_one",
        "A.6",
        "LogTable._translated",
        "raise TableChanged(self.name) from cause",
        "pass",
        f"{_TABLE}::test_a_commit_after_that_of_another_job_is_planned_anew_with_newer_records",
    ),
    mutant(
        "a_table_that_was_made_anew_meanwhile_is_replaced_again",
        "A.6",
        "LogTable._drop_replaced",
        "now != replaced",
        "False",
        f"{_TABLE}::test_of_two_jobs_that_make_a_table_at_once_neither_drops_that_of_the_other",
    ),
    mutant(
        "a_file_is_retired_while_the_table_names_it",
        "A.6",
        "Publisher.retire",
        "records and await self.publish(tell)",
        "records",
        f"{_TABLE}::test_if_other_jobs_always_come_first_it_fails_and_deletes_no_file",
    ),
    mutant(
        "files_that_the_log_lacks_stay_in_the_table",
        "A.6",
        "Publisher._publish",
        "url not in files",
        "False",
        f"{_TABLE}::test_the_table_shows_the_log_after_each_job_which_commits_one_snapshot",
    ),
    mutant(
        "what_another_program_wrote_into_the_table_stays",
        "A.6",
        "LogTable._files",
        "ours == head",
        "True",
        f"{_TABLE}::test_a_table_that_another_program_changed_is_refused_until_it_is_made_anew",
    ),
    mutant(
        "snapshots_are_kept_for_ever",
        "A.6",
        "LogTable.commit",
        "_moment(each) < expire_before",
        "False",
        f"{_TABLE}::test_a_day_later_old_snapshots_and_what_only_they_need_are_gone",
    ),
    mutant(
        "a_file_that_the_table_needs_is_cleaned_away",
        "A.6",
        "LogTable.forget_files",
        "base_name(file.name) not in kept",
        "True",
        f"{_TABLE}::test_a_day_later_old_snapshots_and_what_only_they_need_are_gone",
    ),
    mutant(
        "the_table_of_another_log_is_taken_over",
        "A.6",
        "LogTable._incarnation_in",
        "all(found.get(key) == self._mine[key] for key in (_LOG, _CLUSTER))",
        "True",
        f"{_TABLE}::test_the_table_of_another_log_or_cluster_is_refused_and_stays",
    ),
    mutant(
        "a_file_without_columns_for_keys_takes_records_with_keys",
        "A.6",
        "ArchiveWriter.add",
        "not self._has_attributes and batch.has_attributes",
        "False",
        f"{_REWRITING}::test_keys_and_headers_are_archived_merged_and_compacted_by_key",
    ),
    mutant(
        "what_a_record_names_is_deleted_whatever_it_is",
        "A.6",
        "name_of_record",
        """
        not directory.startswith(directory_start) or len(directory) > len(
            directory_start
        ) + _CLUSTER_DIGITS or file != f"{file_start}{nonce}.parquet" or (not _NONCE.match(nonce))
        """,
        """
        not directory.startswith(directory_start) or len(directory) > len(
            directory_start
        ) + _CLUSTER_DIGITS or (not _NONCE.match(nonce))
        """,
        f"{_NAMES}::test_no_name_leads_out_of_its_destination",
    ),
    mutant(
        "a_link_leads_out_of_a_destination",
        "A.6",
        "Destination._path",
        "there != os.path.join(here, name)",
        "False",
        f"{_NAMES}::test_no_name_of_a_destination_leads_out_of_it",
    ),
    mutant(
        "a_file_is_retired_where_nothing_vouches_for_the_place",
        "A.6",
        "Archiver.retire",
        """
        self.expect_own(record)
        await self.markers.expect(record.file)
        """,
        "self.expect_own(record)",
        f"{_NAMES}::test_no_name_leads_out_of_its_destination[retire]",
    ),
    mutant(
        "newest_ledger_is_given_up",
        "A.6",
        "plan_archive",
        "now_ms - record.archived_ms >= keep_copies_ms and newest not in standing",
        "now_ms - record.archived_ms >= keep_copies_ms",
        _PLAN,
    ),
    mutant(
        "copies_are_given_up_before_their_delay",
        "A.6",
        "plan_archive",
        "now_ms - record.archived_ms >= keep_copies_ms",
        "now_ms >= record.archived_ms",
        f"{_PLAN}::test_copies_wait_for_their_delay_and_the_newest_ledger_for_ever",
    ),
    mutant(
        "what_bookies_have_is_merged",
        "A.6",
        "_given_up",
        """
        record is not None and (record.first_offset, record.end_offset) == (
            segment.first_offset,
            segment.end_offset,
        ) and (not any((ledger.ledger_id in with_copies for ledger in record.ledgers)))
        """,
        """
        record is not None and (record.first_offset, record.end_offset) == (
            segment.first_offset,
            segment.end_offset,
        )
        """,
        f"{_PLAN}::test_merging_takes_neighbours_up_to_a_size_and_leaves_large_files_alone",
    ),
    mutant(
        "neighbours_are_merged_over_what_lies_between",
        "A.6",
        "merge_groups",
        "group and not _adjoin(group[-1], record)",
        "False",
        f"{_PLAN}::test_merging_takes_neighbours_up_to_a_size_and_leaves_large_files_alone",
    ),
    mutant(
        "ledger_that_left_the_list_gets_an_archive",
        "A.6",
        "Archiver._record.write",
        "metadata is None or metadata.index_of(record.ledger_id) is None",
        "metadata is None",
        f"{_TEST}::test_records_that_are_truncated_while_they_are_copied_get_no_archive",
    ),
    mutant(
        "lost_answer_of_an_archive_is_another_job",
        "A.6",
        "Archiver._record.write",
        """
        if found.token == record.token:
            return done("copied", record)
        """,
        "",
        f"{_TEST}::test_a_lost_answer_of_the_store_is_settled",
    ),
    mutant(
        "copies_are_given_up_for_a_file_that_was_not_read_again",
        "A.6",
        "Archiver.give_up",
        "await check_archive(record)",
        "",
        f"{_TEST}::test_a_damaged_file_is_told_and_copies_are_not_given_up_for_it",
    ),
    mutant(
        "ledger_that_is_not_fully_replicated_is_archived",
        "A.6",
        "LedgerFaults.doubtful",
        "(*self.incomplete, *self.damaged, *self.silent, *self.in_limbo)",
        "(*self.incomplete, *self.damaged, *self.in_limbo)",
        f"{_TEST}::test_a_ledger_that_is_not_fully_replicated_is_left_to_repair",
    ),
    mutant(
        "file_of_another_ledger_is_read",
        "A.6",
        "ArchiveFile._check_record",
        "said != wanted",
        "False",
        f"{_TEST}::test_a_file_that_says_something_else_than_its_record_is_told",
    ),
    mutant(
        "damaged_pages_are_read",
        "A.6",
        "ArchiveFile._open",
        "True",
        "False",
        f"{_TEST}::test_a_damaged_file_is_told_and_copies_are_not_given_up_for_it",
    ),
    mutant(
        "reader_passes_over_what_was_merged",
        "A.6",
        "LogReader._after",
        "end is not None and end > max(self._offset, metadata.first_offset)",
        "False and end is not None",
        f"{_REWRITING}::test_a_follower_at_the_end_of_a_ledger_that_is_merged_leaves_nothing_out",
    ),
    mutant(
        "reader_looks_only_for_the_file_that_was",
        "A.6",
        "LogReader._read_elsewhere",
        """
        if moved is None or moved.file == record.file:
            await self._look_for_truncation()
            raise
        """,
        "raise",
        f"{_REWRITING}::test_a_reader_goes_on_when_what_it_is_about_to_read_is_merged",
    ),
    mutant(
        "gap_is_kept_from_a_dense_reader",
        "A.6",
        "LogReader._read_archive",
        "self._dense and batch.first_offset > self._offset",
        "False",
        f"{_REWRITING}::test_a_dense_reader_is_told_of_the_gap_as_of_a_truncation",
    ),
    mutant(
        "merged_segment_counts_its_first_ledger_alone",
        "A.6",
        "model.segments.joined",
        "sum((part.record_count or 0 for part in parts))",
        "parts[0].record_count",
        _PLAN,
    ),
    mutant(
        "record_without_a_key_is_dropped",
        "A.6",
        "Latest.keeps",
        "key is None or self._offsets.get(key_digest(key), offset) == offset",
        "key is not None and self._offsets.get(key_digest(key), offset) == offset",
        f"{_PLAN}::test_of_each_key_the_latest_stays_and_what_has_no_key_stays",
    ),
    mutant(
        "tombstones_go_at_once",
        "A.6",
        "Latest.keeps",
        "is_old and key is not None and self._rule.is_tombstone(record)",
        "key is not None and self._rule.is_tombstone(record)",
        f"{_PLAN}::test_tombstones_go_when_they_are_old_and_the_latest_of_their_key",
    ),
    mutant(
        "newer_files_are_compacted_first",
        "A.6",
        "compact_log",
        """
        for group in groups:
            step = await _guarded(archiver, group, latest.keeps)
            steps.tell(step)
            if step.what in ("failed", "skipped"):
                break
        """,
        """
        for group in reversed(groups):
            step = await _guarded(archiver, group, latest.keeps)
            steps.tell(step)
            if step.what in ("failed", "skipped"):
                break
        """,
        f"{_REWRITING}::test_a_compaction_that_crashes_anywhere_leaves_the_latest_of_each_key",
    ),
    mutant(
        "file_of_a_merge_that_comes_late_is_deleted",
        "A.6",
        "commit_group.write",
        """
        if not is_unsure:
            await archiver.delete_file(made)
        """,
        "await archiver.delete_file(made)",
        f"{_REWRITING}::test_a_merge_that_comes_late_keeps_its_file_though_half_of_it_is_seen",
    ),
    mutant(
        "files_are_replaced_by_one_that_is_gone",
        "A.6",
        "commit_group.write",
        "await archiver.expect_file(made)",
        "",
        f"{_REWRITING}::test_files_are_not_replaced_by_one_that_is_gone_or_another",
    ),
    mutant(
        "files_of_a_place_in_other_words_are_strays",
        "A.6",
        "cleaning.clean",
        "destinations.base_name(file.name) not in named",
        "destination.url_of(file.name) not in {record.file for record in records}",
        f"{_MOVED}::test_a_file_that_version_0_1_recorded_by_another_url_is_not_a_stray",
    ),
    mutant(
        "new_directories_of_an_archive_are_not_durable",
        "A.6",
        "_sync_directories",
        "directory.parents",
        "()",
        f"{_PLACES}::test_a_published_file_is_durable_with_every_directory_on_the_way_to_it",
    ),
    mutant(
        "destination_that_is_not_mounted_is_taken_for_a_new_one",
        "A.6",
        "Markers.claim",
        "raise self.refusal(destination, destination.url, found[0])",
        "pass",
        f"{_MARKER}::test_a_destination_that_is_known_is_refused_without_its_marker_before_it_has_a_file",
    ),
    mutant(
        "destination_with_files_is_taken_for_a_new_one",
        "A.6",
        "Markers.claim",
        "raise self.refusal(destination, named, None)",
        "pass",
        f"{_MARKER}::test_a_link_that_leads_elsewhere_now_is_no_new_destination",
    ),
    mutant(
        "new_destination_is_begun_although_the_log_has_files_elsewhere",
        "A.6",
        "Markers.claim",
        "named is not None or elsewhere",
        "named is not None",
        f"{_MARKER}::test_a_log_with_files_elsewhere_does_not_begin_a_new_destination_unless_it_is_accepted",
    ),
    mutant(
        "any_marker_vouches_for_any_destination",
        "A.6",
        "Markers._vouching",
        "[known] if known is not None else [each for each in everywhere if not each.moved_to]",
        "await self._places.all()",
        f"{_MARKER}::test_an_archive_of_another_destination_does_not_vouch_for_one_that_is_known",
    ),
    mutant(
        "marker_below_a_mount_point_vouches_for_ever",
        "A.6",
        "Markers._make",
        "environment.new_token()[:MARKER_BYTES]",
        "bytes(MARKER_BYTES)",
        f"{_MARKER}::test_a_marker_below_the_mount_point_vouches_no_more_once_the_disk_has_its_own",
    ),
    mutant(
        "file_that_was_merged_is_not_looked_for_in_the_list",
        "A.6",
        "ArchiveRegistry.holding",
        "ledger_id = listed",
        "return None",
        "tests/archive/test_archive_registry.py",
    ),
    mutant(
        "record_is_withdrawn_where_the_place_of_its_file_is_away",
        "A.6",
        "Archiver.give_up",
        """
        try:
            await check_archive(record)
        except (ArchiveCorrupt, ArchiveUnavailable) as failure:
            if isinstance(failure, ArchiveUnavailable) and not isinstance(
                failure.__cause__, FileNotFoundError
            ):
                raise
            gone = str(failure)
        await self.markers.expect(record.file)
        """,
        """
        try:
            await check_archive(record)
        except (ArchiveCorrupt, ArchiveUnavailable) as failure:
            if isinstance(failure, ArchiveUnavailable) and not isinstance(
                failure.__cause__, FileNotFoundError
            ):
                raise
            gone = str(failure)
        """,
        f"{_MARKER}::test_a_destination_that_goes_away_while_its_file_is_looked_at_has_nothing_withdrawn",
    ),
    mutant(
        "file_below_a_mount_point_is_recorded",
        "A.6",
        "_Writing.finish",
        "await archiver.markers.expect(url)",
        "",
        f"{_MARKER}::test_a_destination_that_goes_away_under_a_job_gets_no_record_and_withdraws_none",
    ),
    mutant(
        "what_fails_once_is_not_decoded_again",
        "A.6",
        "ArchiveFile._decode_again",
        "return work()",
        'raise OSError("not again")',
        f"{_FAULTS}::test_a_fault_of_the_store_while_a_group_is_read_is_not_damage",
    ),
    mutant(
        "file_that_cannot_be_read_is_damaged",
        "A.6",
        "ArchiveFile._decode_again",
        "_read_bytes(self.url, start, length)",
        "",
        f"{_FAULTS}::test_a_fault_that_stays_is_unavailable_and_never_damage",
    ),
    mutant(
        "files_that_a_missing_one_was_made_of_are_cleaned",
        "A.6",
        "_Others.lack",
        "not await self._is_there(record)",
        "False",
        f"{_MARKER}::test_a_stray_is_kept_while_the_file_that_replaced_it_is_not_there",
    ),
    mutant(
        "record_of_a_strange_place_ends_every_run",
        "A.6",
        "recorded",
        "InvalidArgument",
        "ZeroDivisionError",
        f"{_MARKER}::test_a_record_of_a_place_that_is_not_known_here_stops_no_other_step",
    ),
    mutant(
        "file_below_a_mount_point_vouches_for_the_one_on_the_disk",
        "A.6",
        "Archiver.give_up",
        """
        gone: str | None = None
        # Before the look at the file and behind it: what was there may have gone away under it, and what was
        # looked at may have been what lies below a mount point.
        await self.markers.expect(record.file)
        """,
        "gone: str | None = None",
        f"{_MARKER}::test_a_file_below_the_mount_point_is_not_taken_for_the_one_on_the_disk",
    ),
    mutant(
        "copies_are_given_up_by_the_version_of_another_record",
        "A.6",
        "Archiver.give_up.write",
        """
        found = await self.archives.find(self.incarnation, record.ledger_id)
        if found is None or found[0] != record:
            return done("skipped", record, why="its archive changed in the meantime")
        """,
        "",
        f"{_TEST}::test_a_ledger_that_is_archived_anew_waits_anew_though_its_record_has_the_version_of_the_old_one",
    ),
    mutant(
        "files_are_replaced_by_one_that_a_cleaner_is_about_to_delete",
        "A.6",
        "commit_group.write",
        "not is_unsure and archiver.is_late(made)",
        "False",
        f"{_REWRITING}::test_files_are_not_replaced_by_one_that_a_cleaner_may_be_about_to_delete",
    ),
    mutant(
        "numbers_that_are_one_double_are_one_key",
        "A.6",
        "json_rule.key",
        "not isinstance(value, str | int)",
        "False",
        f"{_PLAN}::test_numbers_that_are_one_double_and_differ_are_no_keys",
    ),
    mutant(
        "end_of_a_file_is_believed",
        "A.6",
        "read_recorded_end",
        "digest_of(end) != record.footer",
        "False",
        f"{_FAULTS}::test_any_wrong_bit_in_the_end_of_a_file_is_told_before_it_is_decoded",
    ),
    mutant(
        "end_of_an_upload_is_believed",
        "A.6",
        "_Writing.finish",
        "footer != writer.end",
        "False",
        f"{_TEST}::test_an_upload_with_a_damaged_end_is_told_before_it_is_decoded",
    ),
    mutant(
        "bounds_of_a_file_are_recorded_unseen",
        "A.6",
        "FileCheck.step",
        "self._file.bounds(self._group - 1) == (first, last, last_ms)",
        "True",
        f"{_FAULTS}::test_a_file_whose_bounds_are_not_those_of_its_records_is_told",
    ),
    mutant(
        "record_is_withdrawn_where_bookies_have_lost_the_entries",
        "A.6",
        "Archiver._withdraw",
        """
        async for _ in self._entries(metadata.segments[index], record.ledgers[0].last_entry):
            pass
        """,
        "",
        f"{_TEST}::test_a_file_that_is_damaged_keeps_its_record_while_bookies_do_not_give_the_records",
    ),
    mutant(
        "files_that_were_merged_go_at_once",
        "A.6",
        "cleaning.clean",
        "replaced.get(file.name, 0) > _ms(made_before)",
        "False",
        f"{_TEST}::test_files_that_were_merged_stay_for_a_day_from_then_on",
    ),
    mutant(
        "files_of_ledgers_that_bookies_alone_have_are_cleaned",
        "A.6",
        "_Others.lack",
        "max(first, start) < stop and segment.ledger_id not in self._archived",
        "False",
        f"{_TEST}::test_a_file_that_was_withdrawn_stays_until_its_ledger_is_archived_again",
    ),
    mutant(
        "files_that_a_restored_backup_does_not_know_are_cleaned",
        "A.8",
        "_Others.lack",
        "self.is_restored",
        "False",
        f"{_TEST}::test_files_that_a_restored_backup_does_not_know_stay_until_the_loss_is_accepted",
    ),
    mutant(
        "what_has_rotted_on_every_bookie_is_denied_though_its_file_has_it",
        "A.6",
        "NOT_ON_BOOKIES",
        "(LedgerNotFound, EntryNotFound, EntryUnavailable, EntryCorrupt)",
        "(LedgerNotFound, EntryNotFound, EntryUnavailable)",
        _OVER_ROT,
    ),
    mutant(
        "task_gives_records_twice_where_it_goes_on_in_a_file",
        "A.6",
        "_Scan._read_records",
        "self._at = max(self._at, offset)  # What comes next may have to be read from a file.",
        "",
        f"{_OVER_ROT}::test_a_task_that_finds_damage_within_a_reply_gives_no_record_twice",
    ),
    mutant(
        "log_that_begins_within_an_entry_looks_truncated_further",
        "A.6",
        "LogReader._check_truncation",
        "max(self._offset, self._first_offset)",
        "self._offset",
        f"{_OVER_ROT}::test_a_log_that_begins_within_an_entry_goes_on_in_its_file_when_bookies_fall_silent",
    ),
    mutant(
        "file_is_closed_in_the_loop",
        "A.6",
        "open_archive",
        "_close_beside(file.close)",
        "file.close()",
        f"{_PLACES}::test_a_file_is_closed_beside_the_loop",
    ),
    mutant(
        "one_damaged_ledger_ends_the_job_of_its_log",
        "A.6",
        "guarded",
        "(ArchiveCorrupt, ArchiveUnavailable, EntryCorrupt, MetadataCorrupt)",
        "(ArchiveCorrupt, ArchiveUnavailable, EntryCorrupt)",
        f"{_TEST}::test_a_ledger_whose_metadata_are_damaged_fails_its_step_and_the_others_are_archived",
    ),
    mutant(
        "compaction_goes_on_without_what_it_cannot_read",
        "A.6",
        "compact_log",
        "if steps: return steps",
        "pass",
        f"{_REWRITING}::test_compaction_names_each_file_that_it_cannot_read_and_changes_nothing",
    ),
)
