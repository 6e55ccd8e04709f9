"""Mutants of backups and restores of the metadata store."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_TEST_RESTORED = "tests/scenarios/test_restored_metadata.py"
_TEST_BACK = "tests/scenarios/test_bringing_back.py"
_TEST_BACKUPS = (
    "tests/scenarios/test_backups_of_stores_in_use.py::"
    "test_a_log_in_a_backup_is_as_it_was_at_one_instant_and_has_its_ledgers"
)
_TEST_GAP = (
    f"{_TEST_BACK}::test_what_followed_ledgers_that_were_truncated_since_the_backup_comes_back_behind_a_gap"
)
_TEST_CHECK = "tests/unit/test_metadata_check.py"
_TEST_ORACLE = "tests/shells/test_deletion_oracle.py"

MUTANTS = (
    mutant(
        "a_restored_store_gives_out_ids_that_bookies_hold",
        "A.8",
        "restoration._past",
        "max(by_clock, ((highest >> bits) + 1) << bits)",
        "highest + 1",
        f"{_TEST_RESTORED}::test_after_a_restore_the_cluster_writes_at_once_under_ids_that_no_bookie_holds",
    ),
    mutant(
        "an_epoch_goes_back_with_a_backup",
        "A.8",
        "restoration._later_log",
        "attrs.evolve(log, epoch=first_new_epoch(highest, now_ms), token=_TOKEN).encode()",
        "value",
        f"{_TEST_RESTORED}::test_epochs_and_terms_never_go_back",
    ),
    mutant(
        "a_term_goes_back_with_a_backup",
        "A.8",
        "restoration._later_election",
        "max(state.term, _number_of(present, term_of))",
        "state.term",
        f"{_TEST_RESTORED}::test_epochs_and_terms_never_go_back",
    ),
    mutant(
        "what_a_backup_lacks_is_collected",
        "A.8, rule 25",
        "MetadataDeletionOracle.surely_gone",
        "gone = [ledger_id for ledger_id in gone if ledger_id >= floor]",
        "",
        f"{_TEST_ORACLE}::test_after_a_restore_nothing_from_before_it_is_gone_until_somebody_accepts_that",
    ),
    mutant(
        "a_recovery_trusts_the_ensemble_of_a_backup",
        "A.8",
        "holders.needs_holders",
        "AS_IN_BACKUP_LABEL in metadata.custom and not metadata.is_closed",
        "False",
        f"{_TEST_RESTORED}::test_a_ledger_whose_ensemble_changed_after_the_backup_is_not_closed_short",
    ),
    mutant(
        "a_recovery_after_a_restore_does_not_wait_for_silent_bookies",
        "A.8",
        "holders.with_holders",
        "len(silent) >= replication.ack_quorum",
        "False",
        f"{_TEST_RESTORED}::test_a_recovery_after_a_restore_waits_for_as_many_bookies_as_an_acknowledgement_has",
    ),
    mutant(
        "a_process_from_before_a_restore_is_served",
        "A.8",
        "Belonging.judge",
        "found != self._seen and self._seen is not None and not self._goes_through_restores",
        "False",
        f"{_TEST_RESTORED}::test_a_process_from_before_a_restore_is_refused_and_a_bookie_goes_on",
    ),
    mutant(
        "a_live_cluster_is_restored",
        "A.8",
        "restore._check",
        """
        alive += [f"{place}/{name}" for name in await store.children(place)]
        """,
        "pass",
        f"{_TEST_RESTORED}::test_a_live_cluster_is_not_restored",
    ),
    mutant(
        "a_backup_of_another_cluster_is_restored",
        "A.8",
        "restore._check",
        "theirs != backup.cluster.encode()",
        "False",
        f"{_TEST_RESTORED}::test_a_backup_of_another_cluster_is_refused",
    ),
    mutant(
        "a_ledger_comes_back_into_a_log_that_it_does_not_continue",
        "A.8",
        "bringing_back._Log._check_place",
        "not (is_next or (is_behind_gap and self._accept_gaps)) or not is_epoch_next",
        "False",
        f"{_TEST_BACK}::test_what_does_not_continue_its_log_is_named_and_kept[False]",
    ),
    mutant(
        "any_log_takes_a_ledger_back",
        "A.8",
        "log_key.is_key_of_log",
        "key[_RANDOM_BYTES:] == _tag(start, str(incarnation).encode())",
        "True",
        f"{_TEST_BACK}::test_what_bookies_hold_of_a_log_is_brought_back_into_it[False]",
    ),
    mutant(
        "what_a_later_leader_cut_off_comes_back",
        "A.8",
        "bringing_back._Log._cut",
        "header.end_offset <= boundary",
        "True",
        f"{_TEST_BACK}::test_entries_that_the_next_leader_had_cut_off_stay_cut_off",
    ),
    mutant(
        "a_roll_during_a_look_is_a_difference",
        "A.8",
        "metadata_check.look_at_metadata",
        "await store.get(ledger_path(number)) is None",
        "True",
        f"{_TEST_BACK}::test_a_roll_while_the_metadata_are_read_is_no_difference",
    ),
    mutant(
        "a_ledger_that_nobody_holds_is_no_difference",
        "A.8",
        "core.metadata_check.check_metadata",
        "not named & on.keys()",
        "False",
        f"{_TEST_BACK}::test_what_the_metadata_have_and_nobody_holds_is_named",
    ),
    mutant(
        "a_ledger_that_is_missing_is_no_difference",
        "A.8",
        "core.metadata_check.check_metadata",
        "s.ledger_id not in there",
        "False",
        f"{_TEST_BACK}::test_what_the_metadata_have_and_nobody_holds_is_named",
    ),
    mutant(
        "a_bookie_that_is_down_is_no_difference",
        "A.8",
        "core.metadata_check.check_metadata",
        "needed - {*registered}",
        "set()",
        f"{_TEST_BACK}::test_what_the_metadata_have_and_nobody_holds_is_named",
    ),
    mutant(
        "ledgers_are_brought_back_though_a_bookie_is_absent",
        "A.8",
        "bringing_back.bring_back",
        "absent and not accept_absent",
        "False",
        f"{_TEST_BACK}::test_nothing_is_brought_back_while_a_bookie_is_absent_unless_that_is_accepted",
    ),
    mutant(
        "an_interrupted_bringing_back_is_forgotten",
        "A.8",
        "core.metadata_check.check_metadata",
        "x.ledger_id in in_lists",
        "True",
        f"{_TEST_BACK}::test_an_interrupted_bringing_back_is_done_again",
    ),
    mutant(
        "a_closed_ledger_that_no_list_names_is_not_forgotten",
        "A.8",
        "core.metadata_check.check_metadata",
        "all(row.last_entry == NO_ENTRY for row in holders.get(x.ledger_id, {}).values())",
        "x.is_closed",
        f"{_TEST_BACK}::test_a_ledger_that_was_staged_at_the_backup_and_spliced_later_is_named",
    ),
    mutant(
        "a_ledger_that_its_leader_has_not_listed_yet_counts_as_deleted",
        "A.8",
        "core.metadata_check.check_metadata",
        "x.ledger_id >= floor",
        "False",
        f"{_TEST_CHECK}::test_a_ledger_that_was_made_since_the_restore_is_neither_forgotten_nor_deleted",
    ),
    mutant(
        "a_ledger_without_entries_is_forgotten",
        "A.8",
        "core.metadata_check.check_metadata",
        "all(row.last_entry == NO_ENTRY for row in holders.get(x.ledger_id, {}).values())",
        "False",
        f"{_TEST_CHECK}::test_a_ledger_that_was_only_fenced_is_not_forgotten",
    ),
    mutant(
        "a_ledger_comes_back_without_the_deduplication_of_its_leader",
        "A.8",
        "LogMetadata.brought_back",
        "(epoch if self.dedupe_epoch is None else self.dedupe_epoch) if names_producers else None",
        "self.dedupe_epoch",
        f"{_TEST_BACK}::test_a_ledger_comes_back_with_the_deduplication_of_its_leader",
    ),
    mutant(
        "the_end_of_a_ledger_after_a_restore_is_not_doubted",
        "A.8",
        "ledger.core.recovery.may_be_short",
        "LOST_FROM in metadata.custom or ENDED_AFTER_RESTORE_LABEL in metadata.custom",
        "LOST_FROM in metadata.custom",
        f"{_TEST_BACK}::test_a_log_whose_older_open_ledger_was_collected_since_the_backup_takes_no_leader",
    ),
    mutant(
        "a_gap_lets_a_ledger_of_an_earlier_epoch_back_in",
        "A.8",
        "bringing_back._Log._check_place",
        "last_epoch <= header.epoch <= record.epoch",
        "True",
        f"{_TEST_BACK}::test_what_does_not_continue_its_log_is_named_and_kept[True]",
    ),
    mutant(
        "a_ledger_behind_a_gap_must_have_the_bytes_of_the_log",
        "A.8",
        "bringing_back._Log._check_place",
        "self._accept_gaps or header.bytes_before == record.counted_bytes",
        "header.bytes_before == record.counted_bytes",
        f"{_TEST_GAP}[the open ledger]",
    ),
    mutant(
        "a_log_without_forgotten_ledgers_is_not_doubted",
        "A.8",
        "bringing_back.bring_back",
        "forgotten or await log.ends_in_doubt()",
        "forgotten",
        f"{_TEST_GAP}[the older, and nothing is forgotten]",
    ),
    mutant(
        "a_ledger_that_was_collected_in_part_stops_its_log_for_ever",
        "A.8",
        "takeover.count_open",
        "accept_loss and may_be_short(metadata)",
        "False",
        f"{_TEST_GAP}[the older, collected on some bookies]",
    ),
    mutant(
        "a_ledger_comes_back_at_the_end_of_its_log_and_not_behind_the_gap",
        "A.8",
        "LogMetadata.brought_back",
        "self.counted_end + counts.lost_before",
        "self.counted_end",
        "tests/unit/test_log_metadata.py::test_a_ledger_that_comes_back_behind_a_gap_begins_behind_it",
    ),
    mutant(
        "a_deleted_ledger_still_tells_its_lac",
        "A.8",
        "BookieLedger.on_delete",
        "self.lac = self.lafr = NO_ENTRY",
        "",
        "tests/unit/test_bookie_ledger.py::"
        "test_a_ledger_that_is_gone_knows_no_lac_so_that_no_recovery_after_a_restore_ends_there",
        f"{_TEST_BACK}::test_a_log_whose_older_open_ledger_was_collected_since_the_backup_takes_no_leader",
    ),
    mutant(
        "a_sweep_deletes_ledgers_from_before_a_restore",
        "A.8",
        "_look_over",
        "ledger_id < max(floor, await deletion_floor(client.store))",
        "False",
        f"{_TEST_BACK}::test_a_sweep_keeps_ledgers_from_before_a_restore_until_the_loss_is_accepted",
    ),
    mutant(
        "strangers_list_the_keys_of_ledgers",
        "A.8",
        "Requests._ledgers",
        "not compare_digest(header.key, self._shared.listing_key)",
        "False",
        "tests/shells/test_server.py::test_ledgers_and_their_keys_are_listed_for_who_brings_the_listing_key",
    ),
    mutant(
        "ledgers_in_memory_only_are_not_listed",
        "A.8",
        "LedgerTable.held_from",
        """
        look_at_memory()
        rows_found, through = await self._catalogue.ledgers_from(first, maximum)
        for ledger_id, row in rows_found:
            last = NO_ENTRY if row.is_deleted else row.last_entry
            held.setdefault(ledger_id, LedgerOnBookie(ledger_id, last, row.key))
        look_at_memory()
        """,
        """
        rows_found, through = await self._catalogue.ledgers_from(first, maximum)
        for ledger_id, row in rows_found:
            last = NO_ENTRY if row.is_deleted else row.last_entry
            held.setdefault(ledger_id, LedgerOnBookie(ledger_id, last, row.key))
        """,
        "tests/shells/test_server.py::test_ledgers_and_their_keys_are_listed_for_who_brings_the_listing_key",
    ),
    mutant(
        "a_backup_lacks_ledgers_that_a_log_has_listed_since",
        "A.8",
        "backup._Logs.save",
        "{**ledgers, path: record, **parts}",
        "{path: record, **parts}",
        f"{_TEST_BACK}::test_a_backup_has_the_ledgers_that_a_log_lists_since_they_were_read",
    ),
    mutant(
        "a_backup_has_a_log_as_of_two_instants",
        "A.8",
        "backup._Logs.save",
        "(again.get(path), again.get(snapshots)) == (record, listed)",
        "True",
        f"{_TEST_BACKUPS}[a splice]",
    ),
    mutant(
        "a_backup_lacks_the_ledgers_of_new_snapshots",
        "A.8",
        "backup._finished_snapshots",
        "[snapshot.ledger_id for snapshot in listed if snapshot.is_finished]",
        "[]",
        f"{_TEST_BACKUPS}[a snapshot and a truncation]",
    ),
    mutant(
        "a_backup_has_the_name_of_a_new_log_and_not_its_record",
        "A.8",
        "backup._Logs.save_name",
        'await self.save(f"{LOG_RECORDS}/{component}")',
        "pass",
        f"{_TEST_BACKUPS}[a new log]",
    ),
    mutant(
        "a_backup_has_the_name_of_a_log_that_was_deleted_meanwhile",
        "A.8",
        "backup._Logs.save_name",
        "await self._store.get(path) == name",
        "True",
        "tests/scenarios/test_backups_of_stores_in_use.py::"
        "test_a_log_that_was_made_and_deleted_during_a_backup_leaves_no_name_in_it",
    ),
    mutant(
        "a_backup_lists_a_snapshot_whose_ledger_was_deleted_meanwhile",
        "A.8",
        "backup._Logs.save",
        "(again.get(path), again.get(snapshots)) == (record, listed)",
        "again.get(path) == record",
        "tests/scenarios/test_backups_of_stores_in_use.py::"
        "test_a_snapshot_that_was_made_and_replaced_during_a_backup_is_not_listed_without_its_ledger",
    ),
    mutant(
        "a_backup_lacks_the_cookies_of_new_bookies",
        "A.8",
        "layout.LASTING_ROOTS",
        """
        (CLUSTER, LEDGERS, LOG_RECORDS, LOG_NAMES, COOKIES, PLACEMENT, CURSORS, SPLICES, ARCHIVES,
         DESTINATIONS, SNAPSHOTS, ELECTIONS, REPAIR, ADMISSION, GRANTS)
        """,
        """
        (CLUSTER, LEDGERS, COOKIES, LOG_RECORDS, LOG_NAMES, PLACEMENT, CURSORS, SPLICES, ARCHIVES,
         DESTINATIONS, SNAPSHOTS, ELECTIONS, REPAIR, ADMISSION, GRANTS)
        """,
        f"{_TEST_BACKUPS}[a leader on new bookies]",
    ),
    mutant(
        "a_backup_has_ledgers_as_they_were_before_their_log_counted_on_their_end",
        "A.8",
        "backup._is_closed",
        "LedgerMetadata.decode_untrusted(value, ledger_id).is_closed",
        "True",
        f"{_TEST_BACK}::"
        "test_a_ledger_that_was_open_when_the_backup_read_it_and_closed_in_its_log_is_read_whole",
    ),
    mutant(
        "half_a_restore_is_served",
        "A.8",
        "restore._begin",
        "RESTORING + f'{cluster}:{token}'.encode() + (_EMPTY if was_empty else b'')",
        "f'{cluster}:{token}'.encode()",
        f"{_TEST_RESTORED}::test_a_restore_that_breaks_off_leaves_a_store_that_refuses_all_but_another",
    ),
    mutant(
        "a_restore_goes_on_after_another_has_begun",
        "A.8",
        "restore._Turn.require",
        "node is None or node.value != self._mine",
        "node is None",
        f"{_TEST_RESTORED}::test_a_restore_writes_nothing_more_once_another_has_begun",
    ),
    mutant(
        "a_restore_does_not_check_its_turn_in_the_same_transaction",
        "A.8",
        "restore._Turn.write",
        "[Check(CLUSTER, version), *operations]",
        "operations",
        f"{_TEST_RESTORED}::test_a_restore_writes_nothing_more_once_another_has_begun",
    ),
    mutant(
        "a_restore_begins_on_what_another_has_restored_since_its_check",
        "A.8",
        "restore._begin",
        "node != checked",
        "False",
        f"{_TEST_RESTORED}::test_a_restore_writes_nothing_more_once_another_has_begun",
    ),
    mutant(
        "a_restore_takes_its_own_last_write_for_another_restore",
        "A.8",
        "restore._Turn.end",
        "is_unsure and node is not None and node.value == value",
        "False",
        f"{_TEST_RESTORED}::test_a_restore_is_complete_although_the_answer_to_a_write_is_lost",
    ),
    mutant(
        "a_restore_gives_revoked_rights_back",
        "SECURITY",
        "restore._is_access",
        "return path == ADMISSION or path.startswith(GRANTS + '/')",
        "return False",
        f"{_TEST_RESTORED}::test_a_restore_opens_no_cluster_and_gives_no_revoked_right_back[False-False]",
    ),
    mutant(
        "a_store_that_a_restore_half_filled_has_its_own_rights",
        "SECURITY",
        "restore.restore",
        "was_empty = checked is None or checked.value.endswith(_EMPTY)",
        "was_empty = checked is None",
        f"{_TEST_RESTORED}::test_a_restore_opens_no_cluster_and_gives_no_revoked_right_back[True-True]",
    ),
    mutant(
        "a_record_of_a_newer_version_is_restored_with_its_old_epoch",
        "A.8",
        "restoration.restored_value",
        "raise",
        "return value",
        f"{_TEST_RESTORED}::test_a_backup_with_records_of_a_newer_version_is_refused",
    ),
)
