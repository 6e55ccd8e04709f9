"""Mutants of elections and of replicated state machines."""

from __future__ import annotations

from tests.mutants.mutant import Edit, mutant

_ELECTION = "ledgerlog/core/election.py"
_STAND = "ledgerlog/election/election.py"
_CORE = "ledgerlog/core/replica.py"
_LEADING = "ledgerlog/machine/leading.py"
_KEEPER = "ledgerlog/machine/keeper.py"
_STREAM = "ledgerlog/wire/snapshots.py"

_TEST_ELECTION = "tests/unit/test_election_core.py"
_TEST_STAND = "tests/election/test_election.py"
_TEST_CORE = "tests/unit/test_replica_core.py"
_TEST_REPLICA = "tests/machine/test_replica.py"

ELECTIONS = (
    mutant(
        "suspicion_does_not_wait_for_the_tenure",
        "election",
        _ELECTION,
        "            return self._seen_at + record.tenure_ms / 1000\n",
        "            return self._seen_at\n",
        f"{_TEST_ELECTION}::test_suspicion_waits_for_the_tenure_and_ends_with_a_beat",
    ),
    mutant(
        "duels_do_not_slow_down",
        "election",
        _ELECTION,
        "        return min(2 * before, round(ELECTION_TENURE_MAX_S * 1000))\n",
        "        return shortest\n",
        f"{_TEST_ELECTION}::test_two_candidates_that_depose_one_another_do_it_ever_more_seldom",
    ),
    mutant(
        "a_suspicion_of_one_term_counts_for_the_next",
        "election",
        _ELECTION,
        "        if self._suspected == record.term == self._heard:\n",
        "        if self._suspected is not None and self._heard is not None:\n",
        f"{_TEST_ELECTION}::test_suspicion_waits_for_the_tenure_and_ends_with_a_beat",
    ),
    mutant(
        "a_leader_that_was_never_heard_is_suspected",
        "election",
        _ELECTION,
        "        if self._suspected == record.term == self._heard:\n",
        "        if self._suspected == record.term:\n",
        f"{_TEST_ELECTION}::test_a_leader_that_was_never_heard_is_not_suspected",
        f"{_TEST_STAND}::test_a_port_that_is_blocked_deposes_nobody",
    ),
    mutant(
        "an_earlier_candidacy_of_the_same_process_is_somebody_else",
        "election",
        _ELECTION,
        "            or record.holder in self._former\n",
        "",
        f"{_TEST_ELECTION}::test_a_term_that_an_earlier_candidacy_of_ones_own_has_is_claimed_at_once",
    ),
    mutant(
        "who_leaves_without_the_store_stays_registered",
        "election",
        _STAND,
        "        if session.state is not SessionState.CONNECTED:\n"
        "            self._client.nursery.start_soon(self._withdraw, session, me, node_version)\n"
        "            return\n",
        "        if session.state is not SessionState.CONNECTED:\n            return\n",
        f"{_TEST_STAND}::test_who_leaves_while_the_store_is_away_withdraws_when_it_is_back",
    ),
    mutant(
        "a_lost_session_does_not_end_the_leadership",
        "election",
        _ELECTION,
        '            self._lose("the metadata session is not connected")\n',
        "            pass\n",
        f"{_TEST_ELECTION}::test_a_leadership_ends_with_the_first_doubt",
    ),
    mutant(
        "a_claim_of_a_session_that_is_over_leads",
        "election",
        _ELECTION,
        "        if claimed.holder != self.me or not self._is_connected:\n",
        "        if not self._is_connected:\n",
        f"{_TEST_ELECTION}::test_a_claim_that_took_effect_after_the_session_ended_is_worth_nothing",
    ),
    mutant(
        "who_leaves_does_not_say_so",
        "election",
        _STAND,
        "                self._server.say_ended(self._term.number, self._led_as)\n",
        "                pass\n",
        f"{_TEST_STAND}::test_a_leader_that_loses_the_store_ends_at_once_and_its_standby_follows_at_once",
    ),
    mutant(
        "a_registration_that_is_answered_after_its_candidate_left_stays",
        "election",
        _STAND,
        "        if self._is_left:\n"
        "            self._client.nursery.start_soon(self._withdraw, session, me, version)\n"
        "        else:\n"
        "            self._core.on_registered(me, version, session.session_id)\n",
        "        self._core.on_registered(me, version, session.session_id)\n",
        f"{_TEST_STAND}::test_a_candidate_that_is_cancelled_at_any_moment_leaves_nothing_behind",
    ),
    mutant(
        "a_claim_that_is_answered_after_its_candidate_left_counts",
        "election",
        _STAND,
        "            if not self._is_left:\n                core.on_claimed(versions[1])\n",
        "            core.on_claimed(versions[1])\n",
        f"{_TEST_STAND}::test_a_candidate_that_is_cancelled_at_any_moment_leaves_nothing_behind",
    ),
)

REPLICAS = (
    mutant(
        "a_repeat_is_executed_again",
        "machine",
        _CORE,
        "            outcome = self.requests.find(request_id)\n            if outcome is None and",
        "            outcome = None\n            if outcome is None and",
        f"{_TEST_CORE}::test_commands_are_applied_in_order_and_a_repeat_changes_nothing",
    ),
    mutant(
        "a_late_retry_is_executed_again",
        "machine",
        _CORE,
        "        return since is not None and since <= self.forgotten_through\n",
        "        return False\n",
        f"{_TEST_CORE}::test_a_retry_that_comes_too_late_is_refused_where_its_id_tells",
    ),
    mutant(
        "the_bound_of_what_is_forgotten_is_one_too_low",
        "machine",
        _CORE,
        "        return since is not None and since <= self.forgotten_through\n",
        "        return since is not None and since < self.forgotten_through\n",
        f"{_TEST_REPLICA}::test_a_retry_from_before_the_table_reaches_is_refused",
    ),
    mutant(
        "the_clock_of_a_machine_goes_back",
        "machine",
        _CORE,
        "        timestamp_ms = max(self.timestamp_ms, envelope.timestamp_ms)\n",
        "        timestamp_ms = envelope.timestamp_ms\n",
        f"{_TEST_CORE}::test_the_clock_of_a_machine_never_goes_back",
    ),
    mutant(
        "a_lack_of_memory_is_a_result",
        "machine",
        _CORE,
        "        except (MemoryError, RecursionError):\n            raise\n",
        "",
        f"{_TEST_CORE}::test_an_exception_is_a_result_and_a_lack_of_memory_is_not",
    ),
    mutant(
        "a_linear_read_asks_nobody",
        "machine",
        _LEADING,
        "        await forming.wait()\n\n    def _stamp",
        "\n    def _stamp",
        f"{_TEST_REPLICA}::test_a_deposed_leader_answers_no_linear_read_and_acknowledges_nothing",
    ),
    mutant(
        "a_request_that_is_on_its_way_is_appended_again",
        "machine",
        _LEADING,
        "            proposal = self._by_request.get(request_id)\n",
        "            proposal = None\n",
        f"{_TEST_REPLICA}::test_a_request_that_is_proposed_again_is_not_executed_again",
    ),
    mutant(
        "the_log_is_truncated_behind_the_newest_snapshot",
        "machine",
        _KEEPER,
        "                before = kept[-1].next_offset\n",
        "                before = kept[0].next_offset\n",
        f"{_TEST_REPLICA}::test_snapshots_are_taken_and_the_log_truncated_behind_them",
    ),
    mutant(
        "a_damaged_snapshot_is_restored",
        "machine",
        _STREAM,
        "    if digest != checksum(data[: len(data) - 4]):\n"
        '        raise WireError("its digest is not that of its bytes")\n',
        "",
        f"{_TEST_CORE}::test_a_snapshot_survives_encoding_and_one_turned_bit_is_found",
        also=(Edit(_STREAM, "at > end or checksum(payload) != crc", "at > end"),),
    ),
    mutant(
        "who_joined_a_barrier_that_was_given_up_reads_all_the_same",
        "machine",
        _LEADING,
        "            if not forming.is_given_up:\n                return\n",
        "            return\n",
        f"{_TEST_REPLICA}::test_who_joined_a_barrier_whose_maker_was_cancelled_gets_one_of_his_own",
    ),
    mutant(
        "a_command_that_was_taken_at_the_very_end_waits_for_ever",
        "machine",
        _LEADING,
        "        if self._is_abandoned:\n            raise AppendUnknown(_ABANDONED)\n",
        "",
        f"{_TEST_REPLICA}::"
        "test_a_command_that_the_writer_takes_while_the_lead_is_lost_is_not_told_as_unwritten",
    ),
    mutant(
        "a_new_leader_does_not_look_at_the_snapshots_that_are_there",
        "machine",
        _KEEPER,
        "            self._tried_at = max(self._tried_at, newest)\n",
        "",
        f"{_TEST_REPLICA}::test_a_new_leader_takes_the_next_snapshot_when_it_is_due_and_not_at_once",
    ),
    mutant(
        "who_cannot_follow_keeps_the_lead",
        "machine",
        _LEADING,
        "        if cause is not None and applied.value == before:\n            raise fresh(cause)\n",
        "",
        f"{_TEST_REPLICA}::test_who_cannot_come_to_the_end_of_the_log_lets_another_one_lead",
    ),
)

MUTANTS = (*ELECTIONS, *REPLICAS)
