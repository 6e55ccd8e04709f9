"""Mutants of what a log promises above its chain: appends that count once, pins, truncation, the sweep."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_TEST_PRODUCERS = "tests/unit/test_producers.py"
_TEST_DEDUPE = "tests/shells/test_log_producers.py"
_TEST_CURSORS = "tests/shells/test_log_cursors.py"
_TEST_LOG_RETENTION = "tests/shells/test_log_retention.py"
_TEST_RETENTION = "tests/unit/test_retention.py"
_TEST_SNAPSHOTS = "tests/machine/test_snapshot_sweep.py"
_TEST_TRAPS = "tests/scenarios/test_log_traps.py"

ONCE = (
    mutant(
        "a_cursor_that_was_made_and_deleted_is_made_again",
        "rule 14",
        "cursors.Cursor.move",
        "is_unsure and version != tried_at",
        "False",
        "tests/shells/test_log_cursors.py"
        "::test_a_cursor_that_was_made_and_deleted_is_not_made_again_by_the_next_attempt",
    ),
    mutant(
        "a_deletion_takes_the_cursor_that_a_rival_made_since",
        "rule 14",
        "cursors.Cursor.delete",
        "is_unsure and version > tried_at + 1",
        "False",
        "tests/shells/test_log_cursors.py"
        "::test_a_deletion_that_took_effect_leaves_the_cursor_that_a_rival_made_since",
    ),
    mutant(
        "a_deletion_that_was_lost_is_told_as_done_behind_a_rivals_moves",
        "rule 14",
        "cursors.Cursor.delete",
        "return False",
        "return True",
        "tests/shells/test_log_cursors.py"
        "::test_a_deletion_that_was_lost_before_a_rivals_moves_is_not_told_as_done",
    ),
    mutant(
        "a_deletion_takes_the_node_that_a_rival_made_since",
        "rule 14",
        "settle.remove",
        "is_unsure and node != tried",
        "is_unsure and node is None",
        "tests/shells/test_log_retry_budget.py"
        "::test_a_deletion_that_took_effect_leaves_the_node_that_a_rival_made_since",
    ),
    mutant(
        "a_log_is_made_again_under_an_incarnation_that_was_deleted",
        "incarnations are never reused",
        "LogRegistry.create",
        "await new_number(self._store, LOG_COUNTER)",
        "next(iter(tried)) if tried else await new_number(self._store, LOG_COUNTER)",
        "tests/shells/test_log_names.py"
        "::test_a_log_that_was_made_used_and_deleted_is_not_made_again_as_the_same_one",
    ),
    mutant(
        "a_deposed_leader_denies_a_truncation_that_took_effect",
        "rule 14",
        "retention.truncate",
        """
        if before_offset <= metadata.first_offset:
            return None
        if epoch is not None and metadata.epoch != epoch:
            raise LostLeadership(name, metadata.epoch)
        """,
        """
        if epoch is not None and metadata.epoch != epoch:
            raise LostLeadership(name, metadata.epoch)
        if before_offset <= metadata.first_offset:
            return None
        """,
        "tests/shells/test_log_retention.py"
        "::test_a_truncation_that_took_effect_before_a_successor_came_is_not_denied",
    ),
    mutant(
        "a_refusal_hides_that_an_earlier_write_may_have_happened",
        "rule 14",
        "LogRegistry.change",
        "not is_unsure or isinstance(cause, AWAY)",
        "True",
        "tests/shells/test_log_retention.py"
        "::test_what_refuses_a_change_that_may_have_happened_does_not_say_that_nothing_happened",
    ),
    mutant(
        "repeat_of_a_record_on_its_way_is_written_again",
        "A.6",
        "Producers.on_taken",
        "in_flight.append((SequenceRange(first_sequence, count, slot), batch))",
        "",
        f"{_TEST_PRODUCERS}::test_a_repeat_is_found_while_it_gathers_while_it_is_under_way_and_for_good",
    ),
    mutant(
        "sequence_that_was_left_out_is_told_as_a_duplicate",
        "A.6",
        "Producers.admit",
        "self._find(producer_id, sequence)",
        "self._find(producer_id, sequence) or last",
        f"{_TEST_PRODUCERS}::test_with_gaps_a_sequence_need_only_grow_and_what_was_left_out_cannot_come_later",
    ),
    mutant(
        "producer_is_forgotten_early",
        "A.6",
        "Producers._make_place",
        "self._states[oldest].last_ms >= before_ms or oldest in self._in_flight",
        "oldest in self._in_flight",
        f"{_TEST_PRODUCERS}::test_nobody_is_forgotten_early_and_whoever_finds_no_place_is_refused",
    ),
    mutant(
        "takeover_starts_with_an_empty_table",
        "A.6",
        "takeover._replay",
        "producers.load(decode_checkpoint(payload, ledger_id=ledger_id, entry_id=at))",
        "decode_checkpoint(payload, ledger_id=ledger_id, entry_id=at)",
        f"{_TEST_DEDUPE}::test_a_repeat_is_found_after_a_takeover_and_after_rolls",
    ),
    mutant(
        "takeover_does_not_replay_what_follows_the_checkpoint",
        "A.6",
        "takeover._replay",
        "producers.replay(numbering.numbered, header.first_offset, header.timestamp_ms)",
        "",
        f"{_TEST_DEDUPE}::test_a_takeover_replays_what_follows_the_newest_checkpoint_and_no_more",
    ),
    mutant(
        "no_checkpoint_after_the_first",
        "A.6",
        "core.leadership.Leadership.is_checkpoint_due",
        "checkpoint is None or checkpoint.is_old",
        "checkpoint is None",
        f"{_TEST_DEDUPE}::test_a_takeover_replays_what_follows_the_newest_checkpoint_and_no_more",
    ),
    mutant(
        "truncation_drops_the_ledger_that_tells_who_appended_what",
        "A.6",
        "LogMetadata.truncated",
        "self.segments[:told_by]",
        "self.segments",
        f"{_TEST_DEDUPE}::test_the_table_outlives_the_records_that_were_truncated",
    ),
    mutant(
        "slots_of_producers_are_not_moved_up_with_their_records",
        "A.6",
        "Batch.live_numbered",
        "[one._replace(slot=self.live_slot(one.slot)) for one in self.numbered or ()]",
        "self.numbered or []",
        f"{_TEST_PRODUCERS}::test_a_record_that_moved_up_when_another_was_taken_back_is_found_where_it_is",
    ),
)

KEPT = (
    mutant(
        "retention_drops_the_ledger_that_tells_who_appended_what",
        "A.6",
        "retention.holds",
        """
        if index == told_by:
            found.add(Hold.DEDUPE)
        """,
        "",
        f"{_TEST_RETENTION}::test_the_first_ledger_of_a_list_that_deduplication_holds_says_so",
    ),
    mutant(
        "retention_passes_over_pins",
        "A.6",
        "retention.holds",
        "found.add(Hold.PIN)",
        "",
        f"{_TEST_RETENTION}::test_an_operator_is_told_why_each_ledger_is_there",
    ),
    mutant(
        "pin_does_not_touch_the_record",
        "A.6",
        "Cursor._operations",
        "[Set(log_record_path(self._incarnation), touched.encode(), version), cursor]",
        "[cursor]",
        f"{_TEST_CURSORS}::test_a_pin_that_comes_while_a_truncation_is_written_is_not_passed_over",
    ),
    mutant(
        "move_of_a_cursor_overwrites_somebody_elses",
        "A.6",
        "Cursor.move.write",
        """
        if _version(found) != _version(expected) or (is_unsure and version != tried_at):
            raise await self._conflict_or_gone()
        """,
        """
        version = await self._client.store.transaction(await self._operations(state, found))
        return attrs.evolve(state, version=version[-1])
        """,
        f"{_TEST_CURSORS}::test_of_two_that_move_a_cursor_at_once_one_is_told",
    ),
    mutant(
        "truncation_passes_over_pins",
        "A.6",
        "truncate.shorten",
        "pin is not None and pin.offset < before_offset",
        "False",
        f"{_TEST_CURSORS}::test_a_pin_holds_against_truncation_and_retention",
    ),
    mutant(
        "deposed_leader_truncates",
        "A.6",
        "truncate.shorten",
        "raise LostLeadership(name, metadata.epoch)",
        "",
        f"{_TEST_TRAPS}::test_a_truncation_by_a_deposed_leader_fails",
    ),
    mutant(
        "deposed_leader_applies_retention",
        "A.6",
        "apply_retention.shorten",
        """
        if epoch is not None and metadata.epoch != epoch:
            return None
        """,
        "",
        f"{_TEST_LOG_RETENTION}::test_a_deposed_leader_drops_nothing",
    ),
    mutant(
        "sweep_deletes_what_a_leader_has_made_ahead",
        "A.6",
        "_why_orphan",
        "epoch < record.epoch",
        "epoch <= record.epoch",
        f"{_TEST_LOG_RETENTION}::test_a_ledger_that_a_leader_has_made_ahead_is_not_swept",
    ),
    mutant(
        "sweep_believes_in_a_log_that_the_store_never_had",
        "A.6",
        "log.sweep._is_deleted",
        "await client.store.highest_id(LOG_COUNTER) < incarnation",
        "False",
        f"{_TEST_LOG_RETENTION}::test_ledgers_that_belong_to_no_log_are_left_alone",
    ),
    mutant(
        "sweep_deletes_a_snapshot_that_its_saver_is_finishing",
        "A.6",
        "_why_lost_snapshot",
        """
        if delete and _find(
            await snapshots.change(lambda listed: [s for s in listed if s != found]), ledger_id
        ):
            return None  # It was finished meanwhile.
        """,
        "",
        f"{_TEST_SNAPSHOTS}::test_a_snapshot_that_is_finished_while_it_is_being_swept_is_kept",
        f"{_TEST_SNAPSHOTS}::test_a_snapshot_whose_saver_died_while_writing_is_swept_after_a_day",
    ),
    mutant(
        "sweep_deletes_a_ledger_that_has_changed_since_it_was_read",
        "A.6",
        "_look_over",
        "ledgers.delete(ledger_id, version=version)",
        "ledgers.delete(ledger_id)",
        f"{_TEST_SNAPSHOTS}::test_a_snapshot_that_was_closed_while_a_sweep_looked_is_not_deleted",
    ),
    mutant(
        "snapshot_that_was_taken_off_its_list_is_finished",
        "A.6",
        "snapshots._finish",
        "raise LedgerNotFound(finished.ledger_id)",
        "return [*listed, finished]",
        f"{_TEST_SNAPSHOTS}::test_a_saver_whose_snapshot_was_taken_off_its_list_does_not_finish",
    ),
    mutant(
        "leader_keeps_to_the_policy_that_he_began_with",
        "A.6",
        "LeaderChain.on_record",
        "self.metadata, self.version = metadata, version",
        "self.version = version",
        f"{_TEST_LOG_RETENTION}::test_a_leader_keeps_to_the_roll_policy_that_somebody_else_has_written",
        f"{_TEST_LOG_RETENTION}::test_a_leader_keeps_to_a_bound_of_age_that_comes_and_goes",
    ),
    mutant(
        "operator_is_told_of_retention_without_the_open_ledgers",
        "A.6",
        "log.log.Log.why_kept",
        "metadata, durable_bytes = await self._look(self._with_durable_bytes)",
        "metadata, durable_bytes = (await self._read())[0], 0",
        f"{_TEST_LOG_RETENTION}::test_retention_drops_the_ledgers_that_an_operator_was_told",
    ),
    mutant(
        "retention_on_demand_takes_open_ledgers_for_empty",
        "A.6",
        "log.log.Log.apply_retention",
        "_, durable_bytes = await self._look(self._with_durable_bytes)",
        "durable_bytes = 0",
        f"{_TEST_LOG_RETENTION}::test_retention_drops_the_ledgers_that_an_operator_was_told",
    ),
    mutant(
        "retention_counts_what_is_only_on_its_way",
        "A.6",
        "core.leadership.Leadership.durable_bytes",
        "self._bytes_before + self.queue.durable_bytes",
        "self.bytes_total",
        f"{_TEST_LOG_RETENTION}::test_what_is_only_on_its_way_lets_nothing_go",
    ),
)

MUTANTS = (*ONCE, *KEPT)
