"""Mutants of the shells around the ledger's cores, of what they say on the wire, and of connections."""

from __future__ import annotations

from tests.mutants.mutant import Edit, mutant

_RECOVERY = "ledgerlog/client/recovery.py"
_WRITER = "ledgerlog/client/writer.py"
_READER = "ledgerlog/client/reader.py"
_RANGES = "ledgerlog/client/ranges.py"
_SLOTS = "ledgerlog/client/slots.py"
_METADATA = "ledgerlog/client/metadata.py"
_CONNECTION = "ledgerlog/net/connection.py"
_CHECKSUM = "ledgerlog/wire/checksum.py"

_TEST_CLOSING = "tests/shells/test_client_closing.py"
_TEST_RECOVERY = "tests/shells/test_client_recovery.py"
_TEST_RULES = "tests/shells/test_client_rules.py"
_TEST_ENTRIES = "tests/unit/test_entries.py"

MUTANTS = (
    mutant(
        "a_busy_bookie_has_answered",
        "rule 8",
        "ledgerlog/core/reader.py",
        "        self._waits_for_busy = True\n",
        "        self._waits_for_busy = False\n",
        "tests/unit/test_reader_core.py::test_a_bookie_that_is_busy_is_asked_again_once_no_other_is_left",
        "tests/shells/test_busy_bookies.py::test_a_busy_time_is_waited_out",
    ),
    mutant(
        "recovery_reads_are_sent_as_ordinary_ones",
        "D5, R-B1, T01",
        _RECOVERY,
        "            recovery_key=self._key,\n",
        "",
        f"{_TEST_RULES}::test_t01_a_recovery_fences_each_bookie_by_its_reads_as_well",
    ),
    mutant(
        "write_backs_are_sent_with_the_progress_of_recovery",
        "D11, T25, T31",
        _RECOVERY,
        "lac=core.frozen_lac, lafr=core.frozen_lafr",
        "lac=core.pending.lac, lafr=core.frozen_lafr",
        f"{_TEST_RULES}::test_t31_t32_write_backs_tell_the_lac_and_lafr_at_which_recovery_started",
    ),
    mutant(
        "write_backs_are_sent_with_the_lafr_of_recovery",
        "D11, T32",
        _RECOVERY,
        "lac=core.frozen_lac, lafr=core.frozen_lafr",
        "lac=core.frozen_lac, lafr=core.pending.lafr",
        f"{_TEST_RULES}::test_t31_t32_write_backs_tell_the_lac_and_lafr_at_which_recovery_started",
    ),
    mutant(
        "write_backs_are_sent_as_ordinary_adds",
        "rule 5",
        _RECOVERY,
        "self._key, recovery=True)",
        "self._key, recovery=False)",
        f"{_TEST_RECOVERY}::test_recovery_keeps_what_was_acknowledged_and_closes_the_ledger",
    ),
    mutant(
        "a_refused_fence_counts",
        "A.0",
        _RECOVERY,
        "            if reply.header.status == Status.OK:\n                self._core.on_fence_ok",
        "            if reply.header.status != Status.BAD_REQUEST:\n                self._core.on_fence_ok",
        f"{_TEST_RULES}::test_a_bookie_that_refuses_the_fence_is_not_fenced",
    ),
    mutant(
        "a_read_without_an_answer_is_empty",
        "A.0, T04",
        _RECOVERY,
        "            self._core.on_read_failed(ask)\n",
        "            self._core.on_read(ask, {}, ask.last, Negative.ABSENT)\n",
        f"{_TEST_RULES}::test_t04_a_recovery_read_that_is_not_answered_is_unknown_and_cuts_nothing",
        also=(
            Edit(
                _RECOVERY,
                "from ledgerlog.core.recovery import LedgerRecovery,",
                "from ledgerlog.core.recovery import Negative, LedgerRecovery,",
            ),
        ),
    ),
    mutant(
        "an_unknown_answer_is_negative",
        "A.3",
        _RANGES,
        "    Status.UNKNOWN: Negative.UNKNOWN,\n",
        "    Status.UNKNOWN: Negative.ABSENT,\n",
        f"{_TEST_RULES}::test_rule_8_only_a_bookie_that_looked_says_that_an_entry_is_not_there",
    ),
    mutant(
        "an_error_is_negative",
        "rule 8",
        _RANGES,
        "        if through < first and damaged is None:\n            return None\n",
        "        if through < first and damaged is None:\n            through = last\n",
        f"{_TEST_RULES}::test_rule_8_only_a_bookie_that_looked_says_that_an_entry_is_not_there",
    ),
    mutant(
        "a_copy_that_fails_its_digest_is_taken",
        "rule 8",
        _RANGES,
        "    damaged = entries.first_damaged() if len(entries) else None\n",
        "    damaged = None\n",
        f"{_TEST_RULES}::test_rule_8_a_copy_that_fails_its_digest_ends_the_answer_before_it",
    ),
    mutant(
        "a_refused_read_is_an_answer",
        "rule 8",
        _RANGES,
        "    if status not in _NEGATIVES and status not in _ABOUT_THE_NEXT:\n",
        "    if status is Status.NOT_READY and status not in _ABOUT_THE_NEXT:\n",
        f"{_TEST_RULES}::test_rule_8_only_a_bookie_that_looked_says_that_an_entry_is_not_there",
    ),
    mutant(
        "recovery_reads_do_not_carry_their_flag",
        "D5, R-B1, T01",
        _RANGES,
        "flags=0 if recovery_key is None else RECOVERY,",
        "flags=0 if recovery_key is None else 0 * RECOVERY,",
        f"{_TEST_RULES}::test_t01_every_read_of_a_recovery_asks_its_bookie_to_fence",
    ),
    mutant(
        "a_fence_is_a_failure_like_others",
        "A.1, D12",
        _WRITER,
        "        if status is Status.FENCED:\n            if self._core.on_fenced(bookie):\n",
        "        if False:\n            if self._core.on_fenced(bookie):\n",
        f"{_TEST_CLOSING}::test_a_writer_whose_ledger_is_recovered_acknowledges_nothing_more",
    ),
    mutant(
        "the_lac_of_an_idle_writer_is_not_told",
        "rule 16",
        _WRITER,
        "                self._publish_lac()\n",
        "",
        f"{_TEST_RULES}::test_rule_16_the_last_entry_may_be_read_soon_after_its_writer_fell_idle",
    ),
    mutant(
        "the_lac_is_told_before_it_is_confirmed",
        "C LacIsCommitted",
        _WRITER,
        "return self._encoder.encode(send, slot, lac=core.lac, lafr=core.lafr)",
        "return self._encoder.encode(send, slot, lac=send.last, lafr=core.lafr)",
        f"{_TEST_RULES}::test_an_open_ledger_is_not_read_beyond_what_its_writer_confirmed",
    ),
    mutant(
        "late_answers_reach_the_next_tenure",
        "A.1 queue rule 4",
        _SLOTS,
        "                sink.connection.detach(sink)\n                self.sinks[sink.index]",
        "                self.sinks[sink.index]",
        f"{_TEST_RULES}::test_queue_rule_4_what_a_bookie_answers_after_its_tenure_reaches_nobody",
        f"{_TEST_RULES}::"
        "test_queue_rule_4_what_a_bookie_answers_for_one_slot_is_not_heard_for_the_next_that_it_gets",
    ),
    mutant(
        "a_lost_answer_is_taken_for_yes",
        "rule 14",
        _METADATA,
        "                stored = await self.find(wanted.ledger_id)\n",
        "                return wanted, intent.version + 1\n",
        f"{_TEST_CLOSING}::test_a_lost_answer_to_the_closing_write_is_found_out",
        f"{_TEST_CLOSING}::test_a_lost_answer_to_an_ensemble_change_is_found_out",
    ),
    mutant(
        "a_lost_answer_is_settled_by_a_stale_read",
        "rule 14",
        _METADATA,
        "        await self._store.sync()\n        return await self.find(ledger_id)\n",
        "        return await self.find(ledger_id)\n",
        f"{_TEST_RULES}::test_rule_14_a_conflict_is_settled_by_what_is_stored_and_not_by_a_replica_that_is_behind",
    ),
    mutant(
        "an_open_ledger_is_read_beyond_its_lac",
        "A.7, C ReadStable",
        _READER,
        "        return self._end() if self.is_closed else self._lac\n",
        "        return self._end() if self.is_closed else max(self._lac, self._unconfirmed)\n",
        f"{_TEST_RULES}::test_an_open_ledger_is_not_read_beyond_what_its_writer_confirmed",
    ),
    mutant(
        "a_replaced_instance_is_the_bookie_it_was",
        "bookie identity",
        _CONNECTION,
        "if self._instance not in (None, answer.instance) and self._attachments:",
        "if self._instance not in (None, answer.instance) and not answer.instance:",
        f"{_TEST_RULES}::test_a_bookie_whose_data_was_replaced_is_not_the_one_that_confirmed",
    ),
    mutant(
        "digests_do_not_cover_the_entry_id",
        "rule 17",
        _CHECKSUM,
        '        return array("I", map(extend, range(seed, seed + count), payloads))\n',
        '        return array("I", map(extend, [seed] * count, payloads))\n',
        _TEST_ENTRIES,
    ),
    mutant(
        "a_follower_polls_bookies_that_lag_again_and_again",
        "client",
        _READER,
        "        slots = prompt if metadata.replication.covers(prompt) else range(len(ensemble))\n",
        "        slots = range(len(ensemble))\n",
        "tests/shells/test_client_reader.py::"
        "test_a_follower_leaves_few_polls_behind_at_a_bookie_that_hears_nothing_of_the_writer",
    ),
)
