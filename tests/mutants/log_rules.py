"""Mutants of the chain of ledgers: takeover, rolling, acknowledging, ending."""

from __future__ import annotations

from tests.mutants.mutant import Edit, mutant

_LOG = "ledgerlog/model/log.py"
_CHAIN = "ledgerlog/core/log_chain.py"
_QUEUE = "ledgerlog/core/append_queue.py"
_LOG_KEEPER = "ledgerlog/log/keeper.py"
_SENDER = "ledgerlog/log/sender.py"
_LOG_READER = "ledgerlog/log/reader.py"
_PACKING = "ledgerlog/model/packing.py"

_TEST_LOG = "tests/unit/test_log_metadata.py"
_TEST_CHAIN = "tests/unit/test_log_chain.py"
_TEST_QUEUE = "tests/unit/test_append_queue.py"
_TEST_WRITER = "tests/shells/test_log_writer.py"
_TEST_READER = "tests/shells/test_log_reader.py"
_TEST_PACKING = "tests/unit/test_packing.py"
_TEST_LOSS = "tests/scenarios/test_log_after_loss.py"
_TEST_TRAPS = "tests/scenarios/test_log_traps.py"

CHAIN = (
    mutant(
        "takeover_recovers_the_last_ledger_only",
        "A.6, D23, C01",
        _CHAIN,
        "            self._counting = Counting(metadata, accept_loss=self._accept_loss)\n"
        "            self._go_on()\n",
        "            self._counting = Counting(metadata, accept_loss=self._accept_loss)\n"
        "            self._counting.counts = [NOTHING] * (len(metadata.open_segments) - 1)\n"
        "            self._go_on()\n",
        f"{_TEST_CHAIN}::test_c01_a_takeover_during_a_roll_recovers_both_ledgers",
    ),
    mutant(
        "takeover_fences_without_recovering",
        "A.6, D23",
        _CHAIN,
        "        if self._counting.recovering is not None:\n            self.need = TakeoverNeed.RECOVER\n",
        "        counts += [NOTHING] * (len(self.base.open_segments) - len(counts))\n"
        "        if self._counting.recovering is not None:\n            self.need = TakeoverNeed.RECOVER\n",
        f"{_TEST_CHAIN}::test_a_takeover_recovers_what_is_open_before_it_makes_a_ledger",
    ),
    mutant(
        "a_ledger_ended_short_counts_as_any_other",
        "A.6, D27.9: what can be read stays, or is named",
        _CHAIN,
        "        if is_short:\n            self._short = ledger_id\n",
        "",
        f"{_TEST_LOSS}::test_a_takeover_stops_and_names_what_it_would_drop",
        f"{_TEST_LOSS}::test_what_is_behind_a_loss_is_kept_behind_a_gap_if_an_operator_says_so",
    ),
    mutant(
        "nobody_has_to_accept_a_loss_for_the_log",
        "A.6, D27.9",
        _CHAIN,
        "        if is_behind_loss and not self._accept_loss:\n",
        "        if False:\n",
        f"{_TEST_LOSS}::test_a_takeover_stops_and_names_what_it_would_drop",
    ),
    mutant(
        "offsets_that_were_lost_are_given_out_again",
        "A.6: record n has offset n for ever",
        _CHAIN,
        "        lost = contents.first_offset - start_offset\n",
        "        lost = 0\n",
        f"{_TEST_LOSS}::test_what_is_behind_a_loss_is_kept_behind_a_gap_if_an_operator_says_so",
    ),
    mutant(
        "readers_are_not_told_of_a_gap",
        "A.6",
        _LOG_READER,
        "            self._buffer.append((RecordsLost(self._metadata.name, lost_from, first), 0))\n",
        "",
        f"{_TEST_LOSS}::test_what_is_behind_a_loss_is_kept_behind_a_gap_if_an_operator_says_so",
        f"{_TEST_LOSS}::test_a_follower_waits_for_the_decision_and_is_told_of_the_gap",
    ),
    mutant(
        "a_reader_ends_silently_at_a_loss_that_is_undecided",
        "A.6",
        _LOG_READER,
        "                    if undecided is not None:\n                        raise undecided\n",
        "",
        f"{_TEST_LOSS}::test_a_takeover_stops_and_names_what_it_would_drop",
    ),
    mutant(
        "a_moment_passes_over_a_gap",
        "A.6",
        "ledgerlog/log/places.py",
        "        return place if is_behind_gap and found.entry_id == 0 else found\n",
        "        return found\n",
        "tests/integration/test_log_gaps.py"
        "::test_a_moment_before_a_gap_is_found_while_what_follows_is_written",
    ),
    mutant(
        "gaps_are_not_written_down",
        "A.6",
        _LOG,
        '            fields |= {"v": _FORMAT_OF_GAPS, "gaps": gaps}\n',
        "            pass\n",
        f"{_TEST_LOSS}::test_what_is_behind_a_loss_is_kept_behind_a_gap_if_an_operator_says_so",
        f"{_TEST_LOG}::test_a_gap_is_kept_in_the_record_and_by_every_change",
    ),
    mutant(
        "what_is_behind_an_accepted_loss_is_told_as_lost",
        "A.6, A.7",
        _QUEUE,
        "            if lost_in in short and batch.ledger_id != lost_in:\n"
        "                verdict, lost_in = BatchState.UNKNOWN, None\n",
        "",
        f"{_TEST_QUEUE}::test_behind_an_accepted_loss_nothing_is_known",
        "tests/model/test_chain.py::test_no_order_of_events_breaks_an_invariant_of_the_chain",
    ),
    mutant(
        "list_conflict_reads_only_the_version_anew",
        "A.6, D24, C02",
        _CHAIN,
        "            self._counting = Counting(metadata, accept_loss=self._accept_loss)\n"
        "            self._go_on()\n",
        "            self._counting = self._counting or Counting(metadata, accept_loss=self._accept_loss)\n"
        "            self._go_on()\n",
        f"{_TEST_CHAIN}::test_c02_a_lost_compare_and_set_starts_over_with_recovery",
        f"{_TEST_CHAIN}::test_every_interleaving_of_two_takeovers_and_a_roll_keeps_the_rules",
    ),
    mutant(
        "second_roll_with_two_ledgers_open",
        "A.6 rule R, C03",
        _CHAIN,
        "if self._roll_wanted and self.draining is None and self.spare is not None:",
        "if self._roll_wanted and self.spare is not None:",
        f"{_TEST_CHAIN}::test_c03_no_second_roll_while_the_ledger_before_the_current_one_is_open",
        also=(
            Edit(
                _CHAIN,
                '                assert self.draining is None, "a roll waits for the one before it (C03)"\n',
                "",
            ),
            Edit(
                _LOG,
                "        assert len(self.open_segments) == 1, "
                '"a roll waits until the one before it is closed (C03)"\n',
                "",
            ),
        ),
    ),
    mutant(
        "list_with_three_ledgers_open",
        "A.6 rule R, C OnlyLastTwoOpen",
        _LOG,
        'require(all(s.is_counted for s in tail[:-2]), "only the last two ledgers may be open (C03)")',
        "require(True, '')",
        f"{_TEST_LOG}::test_only_the_last_two_ledgers_may_be_open",
    ),
    mutant(
        "serving_before_the_list_is_written",
        "A.6, C04",
        _CHAIN,
        "dedupe=self._dedupe)\n            self.need = TakeoverNeed.WRITE\n",
        "dedupe=self._dedupe)\n            self.need = TakeoverNeed.DONE\n",
        f"{_TEST_CHAIN}::test_nothing_is_served_before_the_list_is_written",
    ),
    mutant(
        "epoch_is_not_raised",
        "A.6",
        _LOG,
        "            epoch=self.epoch + 1,\n            segments=(*counted",
        "            epoch=max(1, self.epoch),\n            segments=(*counted",
        f"{_TEST_LOG}::test_a_takeover_raises_the_epoch_counts_what_was_open_and_appends_one_ledger",
        also=(
            Edit(
                _LOG,
                "segment = Segment(ledger_id, self.epoch + 1, counted.counted_end)",
                "segment = Segment(ledger_id, max(1, self.epoch), counted.counted_end)",
            ),
        ),
    ),
    mutant(
        "deposed_leader_goes_on",
        "A.6, A.7",
        _CHAIN,
        "        elif not metadata.has_same_chain(self.metadata):\n",
        "        elif metadata.sealed:\n",
        f"{_TEST_CHAIN}::test_a_roll_that_meets_a_takeover_ends_the_leadership_with_the_new_epoch",
    ),
    mutant(
        "lost_answer_of_a_takeover_is_not_settled",
        "rule 14",
        _CHAIN,
        "if metadata is not None and metadata.token == self.record.token:",
        "if metadata is not None and metadata.token == b'never':",
        f"{_TEST_CHAIN}::test_a_takeover_whose_answer_was_lost_knows_its_own_write",
    ),
    mutant(
        "ledger_that_may_be_listed_is_deleted",
        "rule 14",
        _CHAIN,
        "if is_unlisted or self.need not in (TakeoverNeed.WRITE, TakeoverNeed.SETTLE, TakeoverNeed.DONE):",
        "if is_unlisted or self.need not in (TakeoverNeed.WRITE, TakeoverNeed.DONE):",
        f"{_TEST_CHAIN}::test_a_takeover_given_up_leaves_no_ledger_unless_it_may_be_listed",
    ),
    mutant(
        "deposed_leader_deletes_the_ledger_that_his_roll_listed",
        "A.6, rule 14",
        _CHAIN,
        "            if self.spare is not None and metadata.index_of(self.spare) is not None:\n"
        "                self.spare = None  # The roll was written, and a successor found it.\n",
        "",
        f"{_TEST_CHAIN}::test_a_deposed_leader_does_not_give_back_a_spare_that_his_successor_found_in_the_list",
        "tests/model/test_chain.py::test_no_order_of_events_breaks_an_invariant_of_the_chain",
    ),
    mutant(
        "newer_ledger_counts_though_the_older_lost_some",
        "A.6, C05",
        _CHAIN,
        "        if not keep_behind_gap:\n            return NOTHING\n"
        "        lost = contents.first_offset - start_offset\n",
        "",
        f"{_TEST_CHAIN}::test_records_of_a_newer_ledger_whose_older_one_lost_some_are_not_in_the_log",
        f"{_TEST_CHAIN}::test_a_ledger_that_does_not_continue_an_open_one_before_it_counts_as_empty",
    ),
    mutant(
        "ledger_is_closed_before_it_is_drained",
        "A.6 d",
        _CHAIN,
        "if self.closing is not None and self._drained:",
        "if self.closing is not None:",
        f"{_TEST_CHAIN}::test_a_roll_moves_the_appends_and_then_closes_and_counts_the_old_ledger",
    ),
)

APPENDS = (
    mutant(
        "new_ledger_is_acknowledged_before_the_old",
        "A.6 c, C05",
        _QUEUE,
        "            if batch.entry_id > self._confirmed.get(batch.ledger_id, NO_ENTRY):\n"
        "                break\n",
        "            if batch.ledger_id == ledger_id and batch.entry_id > last_confirmed:\n"
        "                break\n",
        f"{_TEST_QUEUE}::test_c05_what_a_newer_ledger_confirms_is_held_until_the_older_one_has_confirmed_all",
    ),
    mutant(
        "lost_in_the_old_ledger_is_durable_in_the_new",
        "A.6, C05",
        _QUEUE,
        "            if verdict is not BatchState.LOST:\n",
        "            if True:\n",
        f"{_TEST_QUEUE}::test_c05_when_the_older_ledger_loses_an_entry_the_newer_one_loses_all",
        f"{_TEST_QUEUE}::test_verdicts_follow_from_where_the_ledgers_ended",
        also=(
            Edit(
                _QUEUE,
                "                elif batch.entry_id > end:\n"
                "                    verdict, lost_in = BatchState.LOST, batch.ledger_id\n",
                "                else:\n"
                "                    lost = batch.entry_id > end\n"
                "                    verdict = BatchState.LOST if lost else BatchState.DURABLE\n",
            ),
        ),
    ),
    mutant(
        "unknown_is_told_as_lost",
        "A.7",
        _QUEUE,
        "                    verdict = BatchState.UNKNOWN\n",
        "                    verdict = BatchState.LOST\n",
        f"{_TEST_QUEUE}::test_verdicts_follow_from_where_the_ledgers_ended",
    ),
    mutant(
        "a_record_that_was_sent_is_taken_back",
        "A.7",
        _QUEUE,
        "        if batch.state is not BatchState.QUEUED:\n            return False\n",
        "        if batch.state is not BatchState.QUEUED:\n            return True\n",
        f"{_TEST_QUEUE}::test_what_was_sent_is_not_taken_back",
    ),
)

SHELLS = (
    mutant(
        "a_leader_does_not_look_at_the_record_when_it_begins_to_watch_it",
        "logs",
        _LOG_KEEPER,
        "                        self._reread = True\n"
        "                        self.look()\n"
        "                        await watch.wait()\n",
        "                        await watch.wait()\n"
        "                        self._reread = True\n"
        "                        self.look()\n",
        f"{_TEST_WRITER}::test_an_idle_leader_learns_of_a_successor_who_came_while_nothing_was_watched",
    ),
    mutant(
        "a_guaranteed_log_waits_for_the_last_copies_for_ever",
        "logs",
        _SENDER,
        "                if writer is self.segment.writer:\n                    self.on_lost(failure)\n",
        "                del failure\n",
        f"{_TEST_TRAPS}::test_a_guaranteed_log_without_a_bookie_for_its_last_copies_ends_its_appends_in_time",
    ),
    mutant(
        "a_reader_counts_packed_bytes",
        "logs",
        _LOG_READER,
        "        size = max(len(payload), header.byte_length)\n",
        "        size = len(payload)\n",
        f"{_TEST_READER}::test_reading_ahead_is_bounded_by_what_records_take_and_not_by_how_they_were_packed",
    ),
    mutant(
        "a_reader_unpacks_a_whole_reply_at_once",
        "logs",
        _LOG_READER,
        "                    if self._is_full:\n"
        "                        await self._wait_taken()  # Entries that were packed small "
        "take more than the reply.\n",
        "",
        f"{_TEST_READER}::test_reading_ahead_is_bounded_by_what_records_take_and_not_by_how_they_were_packed",
    ),
    mutant(
        "list_is_written_longer_than_it_is_read",
        "logs",
        _LOG,
        "        if len(self.segments) > LOG_SEGMENTS_MAX:\n",
        "        if False:\n",
        f"{_TEST_LOG}::test_a_list_is_bounded_by_its_segments_however_well_they_are_packed",
    ),
    mutant(
        "list_is_written_that_breaks_its_rules",
        "logs",
        "ledgerlog/model/segments.py",
        "        fail=_refuse_to_write,\n",
        "        fail=lambda why: None,\n",
        f"{_TEST_LOG}::test_what_could_not_be_read_again_is_not_written",
    ),
    mutant(
        "sweep_takes_a_damaged_record_for_a_log_that_is_gone",
        "logs",
        "ledgerlog/log/sweep.py",
        '            logger.warning("nothing is swept of a log whose record cannot be read: %s", damage)\n'
        "            continue\n",
        '            logger.warning("nothing is swept of a log whose record cannot be read: %s", damage)\n'
        "            record = None\n",
        "tests/shells/test_log_keeping.py"
        "::test_the_ledgers_of_a_damaged_log_are_swept_once_it_is_deleted_and_not_before",
    ),
    mutant(
        "what_is_packed_is_unpacked_by_a_stream",
        "logs",
        _PACKING,
        "zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)",
        "zstandard.ZstdDecompressor().decompressobj().decompress(data)",
        f"{_TEST_PACKING}::test_a_bomb_takes_no_more_memory_than_what_it_stands_for_may",
    ),
    mutant(
        "what_follows_a_packed_frame_is_passed_over",
        "logs",
        _PACKING,
        "decompress(data, allow_extra_data=False)",
        "decompress(data)",
        f"{_TEST_PACKING}::test_what_is_not_one_whole_frame_of_that_size_is_refused",
    ),
)

MUTANTS = (*CHAIN, *APPENDS, *SHELLS)
