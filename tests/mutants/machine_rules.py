"""Mutants of elections and of replicated state machines."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_TEST_ELECTION = "tests/unit/test_election_core.py"
_TEST_STAND = "tests/election/test_election.py"
_TEST_CORE = "tests/unit/test_replica_core.py"
_TEST_REPLICA = "tests/machine/test_replica.py"

ELECTIONS = (
    mutant(
        "suspicion_does_not_wait_for_the_tenure",
        "election",
        "Candidacy._claim_at",
        "self._seen_at + record.tenure_ms / 1000",
        "self._seen_at",
        f"{_TEST_ELECTION}::test_suspicion_waits_for_the_tenure_and_ends_with_a_beat",
    ),
    mutant(
        "duels_do_not_slow_down",
        "election",
        "Candidacy._tenure_ms",
        "min(2 * before, round(ELECTION_TENURE_MAX_S * 1000))",
        "shortest",
        f"{_TEST_ELECTION}::test_two_candidates_that_depose_one_another_do_it_ever_more_seldom",
    ),
    mutant(
        "a_suspicion_of_one_term_counts_for_the_next",
        "election",
        "Candidacy._claim_at",
        "self._suspected == record.term == self._heard",
        "self._suspected is not None and self._heard is not None",
        f"{_TEST_ELECTION}::test_suspicion_waits_for_the_tenure_and_ends_with_a_beat",
    ),
    mutant(
        "a_leader_that_was_never_heard_is_suspected",
        "election",
        "Candidacy._claim_at",
        "self._suspected == record.term == self._heard",
        "self._suspected == record.term",
        f"{_TEST_ELECTION}::test_a_leader_that_was_never_heard_is_not_suspected",
        f"{_TEST_STAND}::test_a_port_that_is_blocked_deposes_nobody",
    ),
    mutant(
        "an_earlier_candidacy_of_the_same_process_is_somebody_else",
        "election",
        "Candidacy._is_free",
        """
        record.holder is None or record.holder == self.me or record.holder in self._former or (
            record.holder not in self._candidates
        ) or (self._ended == record.term) or (
            record.on_offer is not None and self._better == (record.term, record.on_offer)
        )
        """,
        """
        record.holder is None or record.holder == self.me or record.holder not in self._candidates or (
            self._ended == record.term
        ) or (record.on_offer is not None and self._better == (record.term, record.on_offer))
        """,
        f"{_TEST_ELECTION}::test_a_term_that_an_earlier_candidacy_of_ones_own_has_is_claimed_at_once",
    ),
    mutant(
        "a_leader_offers_its_term_though_nobody_waits",
        "A.9",
        "Candidacy._wanted_offer",
        "bool(self._candidates - self._former - {self.me})",
        "True",
        f"{_TEST_ELECTION}::"
        "test_a_leader_that_reaches_no_ack_quorum_offers_its_term_while_another_candidate_waits",
    ),
    mutant(
        "a_strict_leader_offers_its_term",
        "A.9",
        "Candidacy._wanted_offer",
        "has_standby and not self.is_strict",
        "has_standby",
        f"{_TEST_ELECTION}::test_a_strict_leader_offers_nothing",
    ),
    mutant(
        "whoever_sees_an_offer_takes_it",
        "A.9",
        "Candidacy._is_free",
        "record.on_offer is not None and self._better == (record.term, record.on_offer)",
        "record.on_offer is not None",
        f"{_TEST_ELECTION}::test_who_reaches_enough_of_what_the_holder_misses_takes_the_term_and_nobody_else",
        f"{_TEST_STAND}::test_while_no_standby_reaches_the_bookies_a_leader_keeps_the_lead",
    ),
    mutant(
        "an_offer_that_was_withdrawn_is_taken",
        "A.9",
        "Candidacy._is_free",
        "record.on_offer is not None and self._better == (record.term, record.on_offer)",
        "self._better is not None and self._better[0] == record.term",
        f"{_TEST_ELECTION}::test_a_term_that_is_offered_no_more_is_not_taken",
    ),
    mutant(
        "a_new_term_is_on_offer_like_the_one_before",
        "A.9",
        "ElectionState.on_offer",
        "self.offer if self.holder is not None and self.offer_term == self.term else None",
        "self.offer",
        f"{_TEST_ELECTION}::test_an_offer_of_an_older_term_that_another_version_copied_is_none",
    ),
    mutant(
        "no_leader_hears_that_its_writer_reaches_nobody",
        "A.9",
        "LogLeader._tell_reach",
        "before or self._writer.out_of_reach",
        "None",
        f"{_TEST_STAND}::"
        "test_a_leader_cut_off_from_the_bookies_only_gives_way_to_a_standby_that_reaches_them",
    ),
    mutant(
        "who_leaves_without_the_store_stays_registered",
        "election",
        "_Stand.leave",
        """
        self._client.nursery.start_soon(self._withdraw, session, me, node_version)
        return
        """,
        "return",
        f"{_TEST_STAND}::test_who_leaves_while_the_store_is_away_withdraws_when_it_is_back",
    ),
    mutant(
        "a_lost_session_does_not_end_a_strict_leadership",
        "election",
        "Candidacy.on_session",
        'self._lose("the metadata session is not connected")',
        "pass",
        f"{_TEST_ELECTION}::test_a_leadership_ends_with_the_first_proof_and_a_strict_one_with_the_first_doubt",
    ),
    mutant(
        "a_session_that_is_over_does_not_end_the_leadership",
        "election",
        "Candidacy.on_session",
        """
        if is_lost:
            self._lose("the metadata session is over")
        """,
        "",
        f"{_TEST_ELECTION}::test_a_leadership_ends_with_the_first_proof_and_a_strict_one_with_the_first_doubt",
    ),
    mutant(
        "a_store_that_is_away_ends_every_leadership",
        "election",
        "Candidacy.on_session",
        "self.is_strict and not is_connected",
        "not is_connected",
        f"{_TEST_ELECTION}::test_a_leadership_outlasts_a_store_that_is_away_as_long_as_the_session_may",
    ),
    mutant(
        "a_claim_of_a_session_that_is_over_leads",
        "election",
        "Candidacy.on_claimed",
        "claimed.holder != self.me or not self._is_connected",
        "not self._is_connected",
        f"{_TEST_ELECTION}::test_a_claim_that_took_effect_after_the_session_ended_is_worth_nothing",
    ),
    mutant(
        "a_claim_that_a_suspended_session_finds_leads",
        "election",
        "Candidacy.on_looked",
        """
        is_ours and self._is_connected and claimed is not None and (record is not None) and (
            record.term == claimed.term
        )
        """,
        "is_ours and claimed is not None and record is not None and record.term == claimed.term",
        f"{_TEST_ELECTION}::test_a_claim_that_is_found_while_the_session_is_suspended_is_followed_by_the_next_term",
    ),
    mutant(
        "who_leaves_does_not_say_so",
        "election",
        "_Stand.leave",
        "self._server.say_ended(self._term.number, self._led_as)",
        "",
        f"{_TEST_STAND}::test_a_strict_leader_that_loses_the_store_ends_at_once_and_its_standby_follows_at_once",
    ),
    mutant(
        "a_registration_that_is_answered_after_its_candidate_left_stays",
        "election",
        "_Stand._register",
        """
        if self._is_left:
            self._client.nursery.start_soon(self._withdraw, session, me, version)
        else:
            self._core.on_registered(me, version, session.session_id)
        """,
        "self._core.on_registered(me, version, session.session_id)",
        f"{_TEST_STAND}::test_a_candidate_that_is_cancelled_at_any_moment_leaves_nothing_behind",
    ),
    mutant(
        "a_claim_that_is_answered_after_its_candidate_left_counts",
        "election",
        "_Stand._claim",
        """
        if not self._is_left:
            core.on_claimed(versions[1])
        """,
        "core.on_claimed(versions[1])",
        f"{_TEST_STAND}::test_a_candidate_that_is_cancelled_at_any_moment_leaves_nothing_behind",
    ),
)

REPLICAS = (
    mutant(
        "a_record_in_the_place_of_a_lost_one_passes_for_it",
        "machine",
        "Replica._confirm",
        "epoch != self._core.epoch",
        "False",
        f"{_TEST_REPLICA}::test_a_replica_that_has_applied_lost_commands_applies_none_with_the_same_offsets",
        f"{_TEST_REPLICA}::test_a_replica_that_has_not_followed_yet_reads_its_last_record_again_before_it_leads",
    ),
    mutant(
        "a_repeat_is_executed_again",
        "machine",
        "ReplicaCore.apply",
        "self.requests.find(request_id)",
        "None",
        f"{_TEST_CORE}::test_commands_are_applied_in_order_and_a_repeat_changes_nothing",
    ),
    mutant(
        "a_late_retry_is_executed_again",
        "machine",
        "RequestTable.is_expired",
        "since is not None and since <= self.forgotten_through",
        "False",
        f"{_TEST_CORE}::test_a_retry_that_comes_too_late_is_refused_where_its_id_tells",
    ),
    mutant(
        "the_bound_of_what_is_forgotten_is_one_too_low",
        "machine",
        "RequestTable.is_expired",
        "since <= self.forgotten_through",
        "since < self.forgotten_through",
        f"{_TEST_REPLICA}::test_a_retry_from_before_the_table_reaches_is_refused",
    ),
    mutant(
        "the_clock_of_a_machine_goes_back",
        "machine",
        "ReplicaCore.apply",
        "max(self.timestamp_ms, envelope.timestamp_ms)",
        "envelope.timestamp_ms",
        f"{_TEST_CORE}::test_the_clock_of_a_machine_never_goes_back",
    ),
    mutant(
        "a_lack_of_memory_is_a_result",
        "machine",
        "ReplicaCore._execute",
        """
        try:
            result = self._machine.apply(command)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            # Whatever a command makes of the machine is its result, on every replica.
            name = type(error).__name__.encode()[:_ERROR_BYTES_MAX].decode(errors="ignore")
            return CommandOutcome(command.offset, text_of(error).encode(errors="replace"), name)
        """,
        """
        try:
            result = self._machine.apply(command)
        except Exception as error:
            # Whatever a command makes of the machine is its result, on every replica.
            name = type(error).__name__.encode()[:_ERROR_BYTES_MAX].decode(errors="ignore")
            return CommandOutcome(command.offset, text_of(error).encode(errors="replace"), name)
        """,
        f"{_TEST_CORE}::test_an_exception_is_a_result_and_a_lack_of_memory_is_not",
    ),
    mutant(
        "a_linear_read_asks_nobody",
        "machine",
        "Leading.barrier",
        """
        try:
            while self._barrier is not None:
                await self._barrier.done.wait()
            self._forming, self._barrier = None, forming
            await self._submit(forming)
        except BaseException as error:
            if self._forming is forming:
                self._forming = None
            if self._barrier is forming:
                self._barrier = None
            forming.end_unsent(error)
            raise
        await forming.wait()
        """,
        """
        try:
            while self._barrier is not None:
                await self._barrier.done.wait()
            self._forming, self._barrier = None, forming
            await self._submit(forming)
        except BaseException as error:
            if self._forming is forming:
                self._forming = None
            if self._barrier is forming:
                self._barrier = None
            forming.end_unsent(error)
            raise
        """,
        f"{_TEST_REPLICA}::test_a_deposed_leader_answers_no_linear_read_and_acknowledges_nothing",
    ),
    mutant(
        "a_request_that_is_on_its_way_is_appended_again",
        "machine",
        "Leading.propose",
        "self._by_request.get(request_id)",
        "None",
        f"{_TEST_REPLICA}::test_a_request_that_is_proposed_again_is_not_executed_again",
    ),
    mutant(
        "the_log_is_truncated_behind_the_newest_snapshot",
        "machine",
        "SnapshotManager._forget_old",
        "-1",
        "0",
        f"{_TEST_REPLICA}::test_snapshots_are_taken_and_the_log_truncated_behind_them",
    ),
    mutant(
        "a_damaged_snapshot_is_restored",
        "machine",
        "decode_snapshot_untrusted",
        """
        if digest != checksum(data[: len(data) - 4]):
            raise WireError("its digest does not match its bytes")
        if is_newer:
            raise IncompatibleVersion("the snapshot", (int(digit), int(digit)), (_FORMAT, _FORMAT))
        at, end = len(_MAGIC), len(data) - _END.size
        payloads: list[bytes] = []
        while at < end:
            if at + _FRAME.size > end:
                raise WireError("a frame is cut off")
            size, crc = _FRAME.unpack_from(data, at)
            at += _FRAME.size
            payload = data[at : at + size]
            at += size
            if at > end or checksum(payload) != crc:
                raise WireError(f"frame {len(payloads)} is damaged")
            payloads.append(payload)
        """,
        """
        at, end = len(_MAGIC), len(data) - _END.size
        payloads: list[bytes] = []
        while at < end:
            if at + _FRAME.size > end:
                raise WireError("a frame is cut off")
            size, crc = _FRAME.unpack_from(data, at)
            at += _FRAME.size
            payload = data[at : at + size]
            at += size
            if at > end:
                raise WireError(f"frame {len(payloads)} is damaged")
            payloads.append(payload)
        """,
        f"{_TEST_CORE}::test_a_snapshot_survives_encoding_and_one_turned_bit_is_found",
    ),
    mutant(
        "who_joined_a_barrier_that_was_given_up_reads_all_the_same",
        "machine",
        "Leading.barrier",
        """
        if not forming.is_given_up:
            return
        """,
        "return",
        f"{_TEST_REPLICA}::test_who_joined_a_barrier_whose_maker_was_cancelled_gets_one_of_his_own",
    ),
    mutant(
        "a_command_that_was_taken_at_the_very_end_waits_for_ever",
        "machine",
        "Leading._submit",
        """
        if self._is_abandoned:
            raise AppendUnknown(_ABANDONED)
        """,
        "",
        f"{_TEST_REPLICA}::"
        "test_a_command_that_the_writer_takes_while_the_lead_is_lost_is_not_told_as_unwritten",
    ),
    mutant(
        "a_new_leader_does_not_look_at_the_snapshots_that_are_there",
        "machine",
        "SnapshotManager._learn",
        "self._tried_at = max(self._tried_at, newest)",
        "",
        f"{_TEST_REPLICA}::test_a_new_leader_takes_the_next_snapshot_when_it_is_due_and_not_at_once",
    ),
    mutant(
        "who_cannot_follow_keeps_the_lead",
        "machine",
        "machine.leading.catch_up",
        """
        if cause is not None and applied.value == before:
            raise fresh(cause)
        """,
        "",
        f"{_TEST_REPLICA}::test_who_cannot_come_to_the_end_of_the_log_lets_another_one_lead",
    ),
)

MUTANTS = (*ELECTIONS, *REPLICAS)
