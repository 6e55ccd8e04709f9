"""Mutants of the chain of ledgers: takeover, rolling, acknowledging, ending."""

from __future__ import annotations

from tests.mutants.mutant import Change, mutant

_TEST_LOG = "tests/unit/test_log_metadata.py"
_TEST_CHAIN = "tests/unit/test_log_chain.py"
_TEST_QUEUE = "tests/unit/test_append_queue.py"
_TEST_WRITER = "tests/shells/test_log_writer.py"
_TEST_READER = "tests/shells/test_log_reader.py"
_TEST_PRODUCERS = "tests/shells/test_log_producers.py"
_TEST_PACKING = "tests/unit/test_packing.py"
_TEST_LOSS = "tests/scenarios/test_log_after_loss.py"
_TEST_TRAPS = "tests/scenarios/test_log_traps.py"

CHAIN = (
    mutant(
        "what_is_new_in_a_repeat_gets_the_keys_of_what_the_log_holds",
        "logs",
        "LogWriter._append_numbered",
        "attributes[at:]",
        "attributes[:len(records) - at]",
        f"{_TEST_PRODUCERS}::test_what_is_new_in_a_repeat_keeps_its_own_key_and_headers",
    ),
    mutant(
        "a_key_stays_at_its_slot_if_a_record_before_it_is_taken_back",
        "logs",
        "Batch.live_attributes",
        "self.live_slot(slot)",
        "slot",
        f"{_TEST_QUEUE}::test_a_key_goes_where_its_record_goes_and_counts_in_every_bound",
    ),
    mutant(
        "the_bytes_of_a_key_stay_in_the_window_if_its_record_is_taken_back",
        "logs",
        "Batch._drop",
        "size += attributes.size",
        "pass",
        f"{_TEST_QUEUE}::test_a_key_goes_where_its_record_goes_and_counts_in_every_bound",
    ),
    mutant(
        "an_entry_may_say_that_it_has_keys_and_have_none",
        "logs",
        "records._split_attributes",
        "not size and all(length == PackedColumn.ABSENT for length in key_lengths)",
        "False",
        "tests/unit/test_log_records.py::"
        "test_every_damage_of_keys_and_headers_is_refused_with_the_name_of_the_entry",
    ),
    mutant(
        "who_made_a_gap_is_not_told_if_the_answer_was_lost",
        "A.6, rule 14",
        "Takeover.on_unsettled",
        "self._tried_gaps.update(self._new_gaps())",
        "",
        f"{_TEST_LOSS}::test_a_gap_is_told_to_who_made_it_also_if_the_answer_was_lost",
    ),
    mutant(
        "a_ledger_that_a_rival_dropped_is_taken_for_a_loss",
        "logs",
        "ledgerlog.log.registry._lists_as_before",
        "all(each in metadata.segments for each in before.segments if each.ledger_id == ledger_id)",
        "True",
        "tests/shells/test_log_splice.py::"
        "test_a_commit_starts_over_if_the_ledger_it_recovers_is_gone_by_the_hand_of_a_rival",
        "tests/shells/test_log_writer.py::"
        "test_a_leader_is_deposed_before_it_leads_if_the_table_of_producers_is_gone_by_the_hand_of_a_rival",
        "tests/shells/test_log_writer.py::"
        "test_a_takeover_starts_over_if_its_ledger_is_gone_by_the_hand_of_a_rival",
    ),
    mutant(
        "an_abandoned_leader_keeps_its_spare",
        "logs",
        "Leadership.end",
        "not self.chain.is_finished",
        "False",
        f"{_TEST_WRITER}::test_a_cancelled_body_leaves_no_ledger_that_was_made_ahead",
    ),
    mutant(
        "a_write_that_was_not_sent_is_written_for_ever",
        "logs",
        "LeaderChain.on_not_written",
        "not self._is_in_doubt",
        "False",
        f"{_TEST_WRITER}::test_leaving_drops_a_roll_for_which_the_list_has_no_room",
    ),
    mutant(
        "a_write_in_doubt_is_prepared_anew",
        "rule 14",
        "LeaderChain.on_not_written",
        "not self._is_in_doubt",
        "True",
        f"{_TEST_CHAIN}::test_a_write_that_may_arrive_yet_stays_the_same_if_the_next_attempt_fails",
    ),
    mutant(
        "takeover_recovers_the_last_ledger_only",
        "A.6, D23, C01",
        "Takeover.on_record",
        "self._go_on()",
        """
        self._counting.counts = [NOTHING] * (len(metadata.open_segments) - 1)
        self._go_on()
        """,
        f"{_TEST_CHAIN}::test_c01_a_takeover_during_a_roll_recovers_both_ledgers",
    ),
    mutant(
        "takeover_fences_without_recovering",
        "A.6, D23",
        "Takeover._go_on",
        "counts = self._counting.counts",
        """
        counts = self._counting.counts
        counts += [NOTHING] * (len(self.base.open_segments) - len(counts))
        """,
        f"{_TEST_CHAIN}::test_a_takeover_recovers_what_is_open_before_it_makes_a_ledger",
    ),
    mutant(
        "a_ledger_ended_short_counts_as_any_other",
        "A.6, D27.9: what can be read stays, or is named",
        "Counting.on_recovered",
        """
        if is_short:
            self._short = ledger_id
        """,
        "",
        f"{_TEST_LOSS}::test_a_takeover_stops_and_names_what_it_would_drop",
        f"{_TEST_LOSS}::test_what_is_behind_a_loss_is_kept_behind_a_gap_if_an_operator_says_so",
    ),
    mutant(
        "nobody_has_to_accept_a_loss_for_the_log",
        "A.6, D27.9",
        "Counting.on_recovered",
        "is_behind_loss and not self._accept_loss",
        "False",
        f"{_TEST_LOSS}::test_a_takeover_stops_and_names_what_it_would_drop",
    ),
    mutant(
        "offsets_that_were_lost_are_given_out_again",
        "A.6: record n has offset n for ever",
        "count_segment",
        "contents.first_offset - start_offset",
        "0",
        f"{_TEST_LOSS}::test_what_is_behind_a_loss_is_kept_behind_a_gap_if_an_operator_says_so",
    ),
    mutant(
        "a_log_goes_on_below_its_truncation",
        "A.6: a truncated offset stays truncated",
        "LogMetadata._all_counted",
        "counted._moved_on(self.first_offset - counted.counted_end)",
        "counted",
        f"{_TEST_LOG}::test_a_log_that_ends_below_its_truncation_goes_on_at_its_first_offset",
        f"{_TEST_LOSS}::test_a_log_that_ends_below_its_truncation_goes_on_at_its_first_offset",
    ),
    mutant(
        "readers_are_not_told_of_a_gap",
        "A.6",
        "LogReader._pass_gap",
        "self._buffer.append((RecordsLost(self._metadata.name, lost_from, first), 0))",
        "",
        f"{_TEST_LOSS}::test_what_is_behind_a_loss_is_kept_behind_a_gap_if_an_operator_says_so",
        f"{_TEST_LOSS}::test_a_follower_waits_for_the_decision_and_is_told_of_the_gap",
    ),
    mutant(
        "a_reader_ends_silently_at_a_loss_that_is_undecided",
        "A.6",
        "LogReader._wait_after",
        """
        if undecided is not None:
            raise undecided
        """,
        "",
        f"{_TEST_LOSS}::test_a_takeover_stops_and_names_what_it_would_drop",
    ),
    mutant(
        "a_reader_reads_a_ledger_that_is_truncated_again_and_again",
        "A.6",
        "LogReader._after",
        "end > max(self._offset, metadata.first_offset)",
        "end > self._offset",
        f"{_TEST_LOSS}::test_a_follower_in_a_ledger_that_ends_below_a_truncation_is_told_of_the_truncation",
    ),
    mutant(
        "a_reader_skips_what_took_the_place_of_lost_records",
        "A.6",
        "LogReader._is_behind",
        "following.first_offset < self._offset",
        "False",
        f"{_TEST_LOSS}::test_a_reader_that_has_read_what_is_lost_skips_no_record_with_the_same_offset",
    ),
    mutant(
        "a_moment_passes_over_a_gap",
        "A.6",
        "find_moment",
        "place if is_behind_gap and found.entry_id == 0 else found",
        "found",
        "tests/integration/test_log_gaps.py"
        "::test_a_moment_before_a_gap_is_found_while_what_follows_is_written",
    ),
    mutant(
        "gaps_are_not_written_down",
        "A.6",
        "LogMetadata.encode",
        'fields |= {"v": _FORMAT_OF_GAPS, "gaps": gaps}',
        "",
        f"{_TEST_LOSS}::test_what_is_behind_a_loss_is_kept_behind_a_gap_if_an_operator_says_so",
        f"{_TEST_LOG}::test_a_gap_is_kept_in_the_record_and_by_every_change",
    ),
    mutant(
        "what_is_behind_an_accepted_loss_is_told_as_lost",
        "A.6, A.7",
        "AppendQueue.resolve",
        """
        if lost_in in short and batch.ledger_id != lost_in:
            verdict, lost_in = BatchState.UNKNOWN, None
        """,
        "",
        f"{_TEST_QUEUE}::test_behind_an_accepted_loss_nothing_is_known",
        "tests/model/test_chain.py::test_no_order_of_events_breaks_an_invariant_of_the_chain",
    ),
    mutant(
        "list_conflict_reads_only_the_version_anew",
        "A.6, D24, C02",
        "Takeover.on_record",
        "Counting(metadata, accept_loss=self._accept_loss)",
        "self._counting or Counting(metadata, accept_loss=self._accept_loss)",
        f"{_TEST_CHAIN}::test_c02_a_lost_compare_and_set_starts_over_with_recovery",
        f"{_TEST_CHAIN}::test_every_interleaving_of_two_takeovers_and_a_roll_keeps_the_rules",
    ),
    mutant(
        "second_roll_with_two_ledgers_open",
        "A.6 rule R, C03",
        "LeaderChain.need",
        "self._roll_wanted and self._splice is None and self.draining is None and self.spare is not None",
        "self._roll_wanted and self.spare is not None",
        f"{_TEST_CHAIN}::test_c03_no_second_roll_while_the_ledger_before_the_current_one_is_open",
        also=(
            Change(
                "LeaderChain.record",
                'assert self.draining is None, "a roll waits for the one before it (C03)"',
                "",
            ),
            Change(
                "LogMetadata.rolled",
                """
            assert len(self.open_segments) == 1, (
                "a roll waits until the one before it is closed (C03)"
            )
            """,
                "",
            ),
        ),
    ),
    mutant(
        "list_with_three_ledgers_open",
        "A.6 rule R, C OnlyLastTwoOpen",
        "LogMetadata.__attrs_post_init__",
        'require(all(s.is_counted for s in tail[:-2]), "only the last two ledgers may be open (C03)")',
        "require(True, '')",
        f"{_TEST_LOG}::test_only_the_last_two_ledgers_may_be_open",
    ),
    mutant(
        "serving_before_the_list_is_written",
        "A.6, C04",
        "Takeover._go_on",
        """
        if self.ledger_id is None:
            self.need = TakeoverNeed.CREATE
        else:
            self.record = self.base.taken_over(
                counts, self.ledger_id, self._new_token(), dedupe=self._dedupe
            )
            self.need = TakeoverNeed.WRITE
        """,
        """
        if self.ledger_id is None:
            self.need = TakeoverNeed.CREATE
        else:
            self.record = self.base.taken_over(
                counts, self.ledger_id, self._new_token(), dedupe=self._dedupe
            )
            self.need = TakeoverNeed.DONE
        """,
        f"{_TEST_CHAIN}::test_nothing_is_served_before_the_list_is_written",
    ),
    mutant(
        "epoch_is_not_raised",
        "A.6",
        "LogMetadata.taken_over",
        "LogSegment(ledger_id, self.epoch + 1, counted.counted_end)",
        "LogSegment(ledger_id, max(1, self.epoch), counted.counted_end)",
        f"{_TEST_LOG}::test_a_takeover_raises_the_epoch_counts_what_was_open_and_appends_one_ledger",
        also=(
            Change(
                "LogMetadata.taken_over",
                """
            attrs.evolve(
                counted,
                epoch=self.epoch + 1,
                segments=(*counted._without(ledger_id), segment),
                dedupe_epoch=dedupe_epoch,
                token=token,
            )
            """,
                """
            attrs.evolve(
                counted,
                epoch=max(1, self.epoch),
                segments=(*counted._without(ledger_id), segment),
                dedupe_epoch=dedupe_epoch,
                token=token,
            )
            """,
            ),
        ),
    ),
    mutant(
        "deposed_leader_goes_on",
        "A.6, A.7",
        "LeaderChain.on_record",
        "not metadata.has_same_chain(self.metadata)",
        "metadata.sealed",
        f"{_TEST_CHAIN}::test_a_roll_that_meets_a_takeover_ends_the_leadership_with_the_new_epoch",
    ),
    mutant(
        "lost_answer_of_a_takeover_is_not_settled",
        "rule 14",
        "Takeover._is_settled_by",
        "metadata.token == self.record.token",
        "metadata.token == b'never'",
        f"{_TEST_CHAIN}::test_a_takeover_whose_answer_was_lost_knows_its_own_write",
    ),
    mutant(
        "ledger_that_may_be_listed_is_deleted",
        "rule 14",
        "Takeover.abandon",
        "(TakeoverNeed.WRITE, TakeoverNeed.SETTLE, TakeoverNeed.DONE)",
        "(TakeoverNeed.WRITE, TakeoverNeed.DONE)",
        f"{_TEST_CHAIN}::test_a_takeover_given_up_leaves_no_ledger_unless_it_may_be_listed",
    ),
    mutant(
        "deposed_leader_deletes_the_ledger_that_his_roll_listed",
        "A.6, rule 14",
        "LeaderChain.on_record",
        """
        if self.spare is not None and metadata.index_of(self.spare) is not None:
            self.spare = None  # The roll was written, and a successor found it.
        """,
        "",
        f"{_TEST_CHAIN}::test_a_deposed_leader_does_not_give_back_a_spare_that_his_successor_found_in_the_list",
        "tests/model/test_chain.py::test_no_order_of_events_breaks_an_invariant_of_the_chain",
    ),
    mutant(
        "newer_ledger_counts_though_the_older_lost_some",
        "A.6, C05",
        "count_segment",
        """
        if not keep_behind_gap:
            return NOTHING
        lost = contents.first_offset - start_offset
        """,
        "",
        f"{_TEST_CHAIN}::test_records_of_a_newer_ledger_whose_older_one_lost_some_are_not_in_the_log",
        f"{_TEST_CHAIN}::test_a_ledger_that_does_not_continue_an_open_one_before_it_counts_as_empty",
    ),
    mutant(
        "ledger_is_closed_before_it_is_drained",
        "A.6 d",
        "LeaderChain.need",
        "self.closing is not None and self._drained",
        "self.closing is not None",
        f"{_TEST_CHAIN}::test_a_roll_moves_the_appends_and_then_closes_and_counts_the_old_ledger",
    ),
)

APPENDS = (
    mutant(
        "new_ledger_is_acknowledged_before_the_old",
        "A.6 c, C05",
        "AppendQueue.on_confirmed",
        "batch.entry_id > self._confirmed.get(batch.ledger_id, NO_ENTRY)",
        "batch.ledger_id == ledger_id and batch.entry_id > last_confirmed",
        f"{_TEST_QUEUE}::test_c05_what_a_newer_ledger_confirms_is_held_until_the_older_one_has_confirmed_all",
    ),
    mutant(
        "lost_in_the_old_ledger_is_durable_in_the_new",
        "A.6, C05",
        "AppendQueue.resolve",
        "verdict is not BatchState.LOST",
        "True",
        f"{_TEST_QUEUE}::test_c05_when_the_older_ledger_loses_an_entry_the_newer_one_loses_all",
        f"{_TEST_QUEUE}::test_verdicts_follow_from_where_the_ledgers_ended",
        also=(
            Change(
                "AppendQueue.resolve",
                """
            if batch.entry_id > end:
                verdict, lost_in = BatchState.LOST, batch.ledger_id
            """,
                """
            lost = batch.entry_id > end
            verdict = BatchState.LOST if lost else BatchState.DURABLE
            """,
            ),
        ),
    ),
    mutant(
        "unknown_is_told_as_lost",
        "A.7",
        "AppendQueue.resolve",
        "verdict = BatchState.UNKNOWN",
        "verdict = BatchState.LOST",
        f"{_TEST_QUEUE}::test_verdicts_follow_from_where_the_ledgers_ended",
    ),
    mutant(
        "a_record_that_was_sent_is_taken_back",
        "A.7",
        "AppendQueue.take_back",
        "False",
        "True",
        f"{_TEST_QUEUE}::test_what_was_sent_is_not_taken_back",
    ),
)

SHELLS = (
    mutant(
        "a_leader_does_not_look_at_the_record_when_it_begins_to_watch_it",
        "logs",
        "settle.follow",
        """
        await look()
        backoff.reset()
        with trio.move_on_after(every_s):
            await watch.wait()
        """,
        """
        with trio.move_on_after(every_s):
            await watch.wait()
        await look()
        backoff.reset()
        """,
        f"{_TEST_WRITER}::test_an_idle_leader_learns_of_a_successor_who_came_while_nothing_was_watched",
    ),
    mutant(
        "a_leader_gives_up_the_ledger_that_its_writer_is_closing",
        "A.7",
        "LogLeader._end_ledger",
        "await writer.close()",
        "await writer.aclose()",
        f"{_TEST_TRAPS}::test_a_leader_without_bookies_ends_its_ledger_where_it_was_acknowledged",
    ),
    mutant(
        "a_leader_without_bookies_leaves_its_other_ledger_open",
        "A.7",
        "LogLeader._end_ledger",
        "await writer.close(timeout_s=0)",
        "pass",
        f"{_TEST_TRAPS}::test_a_leader_without_bookies_ends_both_its_ledgers_while_it_rolls",
    ),
    mutant(
        "a_guaranteed_log_waits_for_the_last_copies_for_ever",
        "logs",
        "LogLeader._make_room",
        """
        if writer is self._writer:
            self._on_lost(failure)
        """,
        "del failure",
        f"{_TEST_TRAPS}::test_a_guaranteed_log_without_a_bookie_for_its_last_copies_ends_its_appends_in_time",
    ),
    mutant(
        "a_reader_counts_packed_bytes",
        "logs",
        "LogReader._read_segment",
        "max(len(payload), header.byte_length)",
        "len(payload)",
        f"{_TEST_READER}::test_reading_ahead_is_bounded_by_what_records_take_and_not_by_how_they_were_packed",
    ),
    mutant(
        "a_follower_begins_its_look_anew_with_each_poll",
        "rule 16",
        "LogReader._read_ledger.wait",
        "has_news() or not is_looking",
        "True",
        "tests/shells/test_client_reader.py"
        "::test_a_follower_goes_on_in_the_next_ledger_however_long_it_takes_to_find_it[slow store]",
    ),
    mutant(
        "a_reader_unpacks_a_whole_reply_at_once",
        "logs",
        "LogReader._read_ledger",
        """
        if self._is_full:
            await self._wait_taken()  # Entries that were packed small take more than the reply.
        """,
        "",
        f"{_TEST_READER}::test_reading_ahead_is_bounded_by_what_records_take_and_not_by_how_they_were_packed",
    ),
    mutant(
        "list_is_written_longer_than_it_is_read",
        "logs",
        "LogMetadata.encode",
        "len(self.segments) > LOG_SEGMENTS_MAX",
        "False",
        f"{_TEST_LOG}::test_a_list_is_bounded_by_its_segments_however_well_they_are_packed",
    ),
    mutant(
        "list_is_written_that_breaks_its_rules",
        "logs",
        "segment_columns",
        "_refuse_to_write",
        "lambda why: None",
        f"{_TEST_LOG}::test_what_could_not_be_read_again_is_not_written",
    ),
    mutant(
        "sweep_takes_a_damaged_record_for_a_log_that_is_gone",
        "logs",
        "_look_over",
        """
        logger.warning("nothing is swept of a log whose record cannot be read: %s", damage)
        return
        """,
        """
        logger.warning("nothing is swept of a log whose record cannot be read: %s", damage)
        record = None
        """,
        "tests/shells/test_log_retention.py"
        "::test_the_ledgers_of_a_damaged_log_are_swept_once_it_is_deleted_and_not_before",
    ),
    mutant(
        "what_is_packed_is_unpacked_by_a_stream",
        "logs",
        "unpack",
        "zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)",
        "zstandard.ZstdDecompressor().decompressobj().decompress(data)",
        f"{_TEST_PACKING}::test_a_bomb_takes_no_more_memory_than_what_it_stands_for_may",
    ),
    mutant(
        "what_follows_a_packed_frame_is_passed_over",
        "logs",
        "unpack",
        "zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)",
        "zstandard.ZstdDecompressor().decompress(data)",
        f"{_TEST_PACKING}::test_what_is_not_one_whole_frame_of_that_size_is_refused",
    ),
)

MUTANTS = (*CHAIN, *APPENDS, *SHELLS)
