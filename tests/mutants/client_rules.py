"""Mutants of the shells around the ledger's cores, of what they say on the wire, and of connections."""

from __future__ import annotations

from tests.mutants.mutant import Change, mutant

_TEST_CLOSING = "tests/shells/test_client_closing.py"
_TEST_RECOVERY = "tests/shells/test_client_recovery.py"
_TEST_RULES = "tests/shells/test_client_rules.py"
_TEST_READER = "tests/shells/test_client_reader.py"
_TEST_LOG_READER = "tests/shells/test_log_reader.py"
_TEST_REACH = "tests/unit/test_reach_core.py"
_TEST_REACHING = "tests/shells/test_client_reach.py"
_TEST_ENTRIES = "tests/unit/test_entries.py"

MUTANTS = (
    mutant(
        "a_slow_bookie_is_taken_for_one_out_of_reach",
        "A.9",
        "reach.Reach.on_sign",
        "seen.sign_at, seen.is_doubtful = self._now, False",
        "pass",
        f"{_TEST_REACH}::test_a_bookie_that_answers_is_never_silent_however_long_it_acknowledges_nothing",
        f"{_TEST_REACHING}::"
        "test_a_bookie_that_reads_nothing_more_for_want_of_room_is_slow_and_not_out_of_reach",
        f"{_TEST_REACHING}::test_slow_disks_break_no_connection_off",
    ),
    mutant(
        "frames_are_no_sign_of_life",
        "A.9",
        "reach.Reach.look",
        "seen.frames is not None and seen.frames != member.frames",
        "False",
        f"{_TEST_REACH}::test_a_bookie_that_sends_anything_is_not_silent_and_not_asked_again",
    ),
    mutant(
        "the_time_of_a_suspended_process_counts",
        "A.9",
        "reach.Reach.look",
        "min(now - self._looked_at, 2 * REACH_LOOK_S)",
        "now - self._looked_at",
        f"{_TEST_REACH}::test_the_time_of_a_suspended_process_does_not_count",
    ),
    mutant(
        "an_ack_quorum_in_one_write_set_is_enough",
        "A.9",
        "Reach._needed",
        "min(sum(reached[slot] for slot in replication.write_set(first)) for first in range(len(reached)))",
        "max(sum(reached[slot] for slot in replication.write_set(first)) for first in range(len(reached)))",
        f"{_TEST_REACH}::test_an_ack_quorum_counts_in_each_write_set",
    ),
    mutant(
        "replacements_do_not_count",
        "A.9",
        "Reach._judge",
        "self._needed(reached, len(known) - len(lost))",
        "self._needed(reached, 0)",
        f"{_TEST_REACH}::test_out_of_reach_is_who_lacks_an_ack_quorum_of_members_and_replacements",
    ),
    mutant(
        "nobody_waits_for_the_answer_of_a_replacement",
        "A.9",
        "Reach._judge",
        "not may_answer and len(known) == len(spares)",
        "True",
        f"{_TEST_REACH}::test_a_replacement_that_registers_late_is_asked_before_the_verdict",
    ),
    mutant(
        "a_bookie_with_too_many_connections_gives_no_sign_of_life",
        "A.9",
        "session.handshake",
        "status is Status.TOO_MANY_REQUESTS",
        "False",
        f"{_TEST_REACHING}::test_a_bookie_with_as_many_connections_as_it_takes_is_not_out_of_reach",
    ),
    mutant(
        "a_member_that_joins_late_is_lost_at_once",
        "A.9",
        "Reach._is_lost",
        "self._since_sign(member) >= REACH_LOST_S and not is_new",
        "self._since_sign(member) >= REACH_LOST_S",
        f"{_TEST_REACH}::test_a_member_that_joins_during_the_stall_has_its_own_second",
    ),
    mutant(
        "a_writer_asks_although_its_ledger_makes_progress",
        "A.9",
        "MemberWatch._look_at_reach",
        "core.lac == core.last_add_pushed or trio.current_time() < progress_at + REACH_ASK_S",
        "core.lac == core.last_add_pushed",
        f"{_TEST_REACHING}::test_while_an_ack_quorum_acknowledges_nobody_is_asked",
    ),
    mutant(
        "a_silent_bookie_keeps_its_connection",
        "A.9",
        "SlotSinks.look_for_signs",
        "sink.bookie in reach.silent",
        "False",
        f"{_TEST_REACHING}::test_two_of_four_bookies_cut_off_cost_little_more_than_a_second",
    ),
    mutant(
        "a_new_connection_is_no_sign_of_life",
        "A.9",
        "BookieConnection.frames_received",
        "self._connects + self._ended_frames + since",
        "self._ended_frames + since",
        "tests/shells/test_connection_lifecycle.py::test_each_connection_that_is_made_is_a_sign_of_life",
    ),
    mutant(
        "a_write_back_waits_for_the_deadline_of_a_bookie_that_hangs",
        "A.9",
        "_Recovery._write_back",
        "self._look_at_reach()",
        "",
        "tests/shells/test_client_recovery.py::"
        "test_a_write_back_waits_little_more_than_a_second_for_a_bookie_that_hangs",
    ),
    mutant(
        "a_busy_bookie_has_answered",
        "rule 8",
        "RangeRead.__init__",
        "True",
        "False",
        "tests/unit/test_reader_core.py::test_a_bookie_that_is_busy_is_asked_again_once_no_other_is_left",
        "tests/shells/test_busy_bookies.py::test_a_busy_time_is_waited_out",
    ),
    mutant(
        "recovery_reads_are_sent_as_ordinary_ones",
        "D5, R-B1, T01",
        "_Recovery._read",
        """
        read_range(
            self._pool.connection(ask.bookie),
            self._core.ledger_id,
            first=ask.first,
            last=ask.last,
            stride=ask.stride,
            recovery_key=self._key,
        )
        """,
        """
        read_range(
            self._pool.connection(ask.bookie),
            self._core.ledger_id,
            first=ask.first,
            last=ask.last,
            stride=ask.stride,
        )
        """,
        f"{_TEST_RULES}::test_t01_a_recovery_fences_each_bookie_by_its_reads_as_well",
    ),
    mutant(
        "write_backs_are_sent_with_the_progress_of_recovery",
        "D11, T25, T31",
        "_Recovery.marks",
        "self._core.frozen_lac",
        "self._core.pending.lac",
        f"{_TEST_RULES}::test_t31_t32_write_backs_tell_the_lac_and_lafr_at_which_recovery_started",
    ),
    mutant(
        "write_backs_are_sent_with_the_lafr_of_recovery",
        "D11, T32",
        "_Recovery.marks",
        "self._core.frozen_lafr",
        "self._core.pending.lafr",
        f"{_TEST_RULES}::test_t31_t32_write_backs_tell_the_lac_and_lafr_at_which_recovery_started",
    ),
    mutant(
        "write_backs_are_sent_as_ordinary_adds",
        "rule 5",
        "_Recovery.__init__",
        "True",
        "False",
        f"{_TEST_RECOVERY}::test_recovery_keeps_what_was_acknowledged_and_closes_the_ledger",
    ),
    mutant(
        "a_refused_fence_counts",
        "A.0",
        "_Recovery._fence",
        "reply.header.status == Status.OK",
        "reply.header.status != Status.BAD_REQUEST",
        f"{_TEST_RULES}::test_a_bookie_that_refuses_the_fence_is_not_fenced",
    ),
    mutant(
        "a_read_without_an_answer_is_empty",
        "A.0, T04",
        "ledger.recovery",
        "from ledgerlog.ledger.core.recovery import LedgerRecovery, Phase, ReadAsk",
        "from ledgerlog.ledger.core.recovery import Negative, LedgerRecovery, Phase, ReadAsk",
        f"{_TEST_RULES}::test_t04_a_recovery_read_that_is_not_answered_is_unknown_and_cuts_nothing",
        also=(
            Change(
                "_Recovery._read",
                "self._core.on_read_failed(ask)",
                "self._core.on_read(ask, {}, ask.last, Negative.ABSENT)",
            ),
        ),
    ),
    mutant(
        "an_unknown_answer_is_negative",
        "A.3",
        "_NEGATIVES",
        "Negative.UNKNOWN",
        "Negative.ABSENT",
        f"{_TEST_RULES}::test_rule_8_only_a_bookie_that_looked_says_that_an_entry_is_not_there",
    ),
    mutant(
        "an_error_is_negative",
        "rule 8",
        "read_range",
        """
        if through < first and damaged is None:
            return None
        """,
        """
        if through < first and damaged is None:
            through = last
        """,
        f"{_TEST_RULES}::test_rule_8_only_a_bookie_that_looked_says_that_an_entry_is_not_there",
    ),
    mutant(
        "bytes_that_changed_on_the_way_are_taken",
        "rule 8",
        "read_range",
        "entries.first_damaged() if len(entries) else None",
        "None",
        f"{_TEST_RULES}::test_rule_8_bytes_that_changed_on_the_way_say_nothing_of_the_copy",
    ),
    mutant(
        "bytes_that_changed_on_the_way_condemn_the_copy",
        "rule 8",
        "read_range",
        "return RangeAnswer(found, broken - 1, negative, None)",
        "return RangeAnswer(found, broken - 1, negative, broken)",
        f"{_TEST_RULES}::test_rule_8_bytes_that_changed_on_the_way_say_nothing_of_the_copy",
    ),
    mutant(
        "bytes_that_changed_on_the_way_end_limbo",
        "A.3",
        "read_range",
        "return RangeAnswer(found, broken - 1, negative, None)",
        "return RangeAnswer(found, broken - 1, Negative.ABSENT, None)",
        "tests/shells/test_client_ranges.py::"
        "test_a_bookie_in_limbo_denies_no_entry_even_if_later_bytes_of_its_reply_changed_on_the_way",
    ),
    mutant(
        "a_refused_read_is_an_answer",
        "rule 8",
        "read_range",
        "status not in _NEGATIVES",
        "status is Status.NOT_READY",
        f"{_TEST_RULES}::test_rule_8_only_a_bookie_that_looked_says_that_an_entry_is_not_there",
    ),
    mutant(
        "recovery_reads_do_not_carry_their_flag",
        "D5, R-B1, T01",
        "read_range",
        "RECOVERY",
        "0 * RECOVERY",
        f"{_TEST_RULES}::test_t01_every_read_of_a_recovery_asks_its_bookie_to_fence",
    ),
    mutant(
        "a_fence_is_a_failure_like_others",
        "A.1, D12",
        "LedgerWriter._on_add_refused",
        "status is Status.FENCED",
        "False",
        f"{_TEST_CLOSING}::test_a_writer_whose_ledger_is_recovered_acknowledges_nothing_more",
    ),
    mutant(
        "the_lac_of_an_idle_writer_is_not_told",
        "rule 16",
        "LedgerWriter._maintain",
        "self._publish_lac()",
        "",
        f"{_TEST_RULES}::test_rule_16_the_last_entry_may_be_read_soon_after_its_writer_fell_idle",
    ),
    mutant(
        "the_lac_is_told_before_it_is_confirmed",
        "C LacIsCommitted",
        "LedgerWriter._marks",
        "pending.lac",
        "pending.lap",
        f"{_TEST_RULES}::test_an_open_ledger_is_not_read_beyond_what_its_writer_confirmed",
    ),
    mutant(
        "late_answers_reach_the_next_tenure",
        "A.1 queue rule 4",
        "SlotSinks.follow",
        "sink.connection.detach(sink)",
        "",
        f"{_TEST_RULES}::test_queue_rule_4_what_a_bookie_answers_after_its_tenure_reaches_nobody",
        f"{_TEST_RULES}::"
        "test_queue_rule_4_what_a_bookie_answers_for_one_slot_is_not_heard_for_the_next_that_it_gets",
    ),
    mutant(
        "a_lost_answer_is_taken_for_yes",
        "rule 14",
        "LedgerRegistry.attempt.write",
        """
        stored = await self.find(wanted.ledger_id)
        if stored is None or stored[1] != intent.version:
            return stored or (None, 0)
        """,
        "return wanted, intent.version + 1",
        f"{_TEST_CLOSING}::test_a_lost_answer_to_the_closing_write_is_found_out",
        f"{_TEST_CLOSING}::test_a_lost_answer_to_an_ensemble_change_is_found_out",
    ),
    mutant(
        "a_lost_answer_is_settled_by_a_stale_read",
        "rule 14",
        "LedgerRegistry._read_fresh",
        "await self._store.sync()",
        "",
        f"{_TEST_RULES}::test_rule_14_a_conflict_is_settled_by_what_is_stored_and_not_by_a_replica_that_is_behind",
    ),
    mutant(
        "a_lac_that_moves_defers_the_look_at_the_members",
        "A.1",
        "LedgerWriter._nap_until_idle",
        "min(self._look_at, now + LAC_PUBLISH_IDLE_S)",
        "now + LAC_PUBLISH_IDLE_S",
        "tests/shells/test_client_ensemble.py::test_a_busy_writer_also_tries_a_bookie_that_refused_again",
    ),
    mutant(
        "an_idle_writer_looks_at_the_clock",
        "idle",
        "LedgerWriter._next_look_s",
        "return _REST_S",
        "return LOOK_S",
        "tests/shells/test_idle_writers.py::test_writers_that_idle_for_minutes_hardly_wake_up",
    ),
    mutant(
        "an_add_does_not_wake_a_writer_that_rests",
        "idle",
        "LedgerWriter.push",
        "self._is_resting",
        "False",
        "tests/shells/test_client_reach.py::test_a_writer_that_rested_finds_out_as_soon_as_a_busy_one",
    ),
    mutant(
        "each_follower_asks_for_itself",
        "shared tails",
        "LedgerTails.follow",
        "key = (ledger_id, kind)",
        "key = (ledger_id, kind, object())",
        "tests/shells/test_shared_tails.py::test_forty_followers_ask_no_more_than_one",
    ),
    mutant(
        "an_open_ledger_is_read_beyond_its_lac",
        "A.7, C ReadStable",
        "LedgerReader.readable",
        "self._lac",
        "max((self._lac, *(self._waited_for or ((), {}))[1].values()))",
        f"{_TEST_RULES}::test_an_open_ledger_is_not_read_beyond_what_its_writer_confirmed",
    ),
    mutant(
        "a_reader_waits_for_the_last_entry_alone",
        "rule 16",
        "ledger.reader.LedgerReader._learn_end",
        """
        self._waited_for = ensemble, held
        held = await self._ask_end(reasons)
        """,
        "self._waited_for = ensemble, held",
        f"{_TEST_READER}::test_an_entry_that_was_acknowledged_is_found_though_a_later_one_is_under_way",
    ),
    mutant(
        "the_end_of_an_open_ledger_is_what_any_bookie_says",
        "A.0",
        "LedgerReader._check_enough",
        "(is_enough or self.metadata.replication.covers)(held)",
        "held",
        f"{_TEST_READER}::test_the_end_is_unavailable_if_too_few_bookies_answer",
    ),
    mutant(
        "a_reader_that_does_not_know_the_end_denies_what_comes_after",
        "A.0",
        "LedgerReader.is_readable",
        "self._learn_end()",
        "self._learn_end(is_enough=bool)",
        f"{_TEST_READER}::test_the_end_is_unavailable_if_too_few_bookies_answer",
    ),
    mutant(
        "a_log_that_is_read_once_ends_where_the_answering_bookies_say",
        "A.0",
        "LogReader._read_ledger",
        "doubt is not None and not is_continued",
        "False",
        f"{_TEST_LOG_READER}::test_a_reader_that_cannot_know_the_end_gives_what_it_has_and_says_so",
    ),
    mutant(
        "a_follower_ends_if_it_cannot_know_whether_the_log_is_continued",
        "A.0",
        "LogReader._read_ledger",
        "suppress(MetadataUnavailable, EntryUnavailable)",
        "suppress(MetadataUnavailable)",
        f"{_TEST_LOG_READER}::test_a_follower_waits_for_bookies_that_know_whether_the_log_is_continued",
    ),
    mutant(
        "the_second_answer_about_the_end_may_come_from_anybody",
        "A.0",
        "ledger.reader.LedgerReader._learn_end",
        "is_enough is None and not self.metadata.is_closed",
        "False",
        f"{_TEST_READER}::test_the_end_is_unavailable_if_bookies_go_away_before_it_is_known",
    ),
    mutant(
        "the_end_is_before_the_last_fragment",
        "A.0",
        "LedgerReader._lac",
        "max(self._lac_told, self.metadata.last_fragment.first_entry - 1)",
        "self._lac_told",
        f"{_TEST_READER}::test_the_end_is_not_before_the_last_fragment",
    ),
    mutant(
        "the_tail_of_a_log_is_where_the_answering_bookies_say",
        "A.0",
        "log.positions.find_tail",
        "doubt is not None",
        "False",
        f"{_TEST_LOG_READER}::test_a_reader_that_cannot_know_the_end_gives_what_it_has_and_says_so",
    ),
    mutant(
        "a_bookie_that_does_not_answer_counts_as_unchanged",
        "rule 16",
        "ledger.reader.LedgerReader._learn_end",
        "len(held) == len(ensemble)",
        "True",
        f"{_TEST_READER}::test_an_entry_that_was_waited_for_in_vain_is_found_once_it_is_acknowledged",
    ),
    mutant(
        "a_replaced_instance_is_the_bookie_it_was",
        "bookie identity",
        "BookieConnection._connect",
        "self._instance not in (None, answer.instance) and self._attachments",
        "self._instance not in (None, answer.instance) and not answer.instance",
        f"{_TEST_RULES}::test_a_bookie_whose_data_was_replaced_is_not_the_one_that_confirmed",
    ),
    mutant(
        "digests_do_not_cover_the_entry_id",
        "rule 17",
        "entry_digests",
        "piece_checksums(seeds, payload, lengths, payloads)",
        "piece_checksums(array('I', [_seed(ledger_crc, 7)]) * len(lengths), payload, lengths, payloads)",
        _TEST_ENTRIES,
    ),
    mutant(
        "all_pieces_have_the_seed_of_the_first",
        "compiled part",
        "piece_checksums_in_python",
        "range(seeds, seeds + count)",
        "[seeds] * count",
        "tests/unit/test_pieces.py::test_each_piece_has_its_own_checksum_from_its_own_seed",
    ),
    mutant(
        "lengths_that_do_not_add_up_are_taken",
        "compiled part",
        "piece_checksums_in_python",
        "sum(lengths) != len(data)",
        "False",
        "tests/unit/test_pieces.py::test_bytes_that_are_left_over_or_missing_are_refused",
    ),
    mutant(
        "a_follower_polls_bookies_that_lag_again_and_again",
        "client",
        "LedgerReader._worth_polling",
        "prompt if metadata.replication.covers(prompt) else range(len(ensemble))",
        "range(len(ensemble))",
        "tests/shells/test_client_reader.py::"
        "test_a_follower_leaves_few_polls_behind_at_a_bookie_that_hears_nothing_of_the_writer",
    ),
)
