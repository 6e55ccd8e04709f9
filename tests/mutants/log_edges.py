"""Mutants at the edges of logs and their users: state machines, archives, and the asyncio face.

``ledger_edges`` says what an edge is.
"""

from __future__ import annotations

from tests.mutants.mutant import equivalent, mutant

_UNIT = "tests/unit/test_"
_SHELLS = "tests/shells/test_"
_LOG_WRITER = f"{_SHELLS}log_writer.py::test_"
_CURSORS = f"{_SHELLS}log_cursors.py::test_"
_CHAIN = f"{_UNIT}log_chain.py::test_"
_RETENTION = f"{_SHELLS}log_retention.py::test_"
_REPLICA = "tests/machine/test_replica.py::test_"
_ARCHIVES = "tests/archive/test_archive_registry.py::test_"
_MARKER = "tests/archive/test_archive_marker.py::test_"
_AIO = "tests/aio/test_aio.py::test_"

LOG = (
    mutant(
        "edge_a_deposed_leader_does_not_look_who_leads_now",
        "log",
        "LogLeader.refuse",
        "await self._learn_successor()",
        "pass",
        f"{_LOG_WRITER}who_is_refused_is_told_of_a_successor_that_came_since",
    ),
    mutant(
        "edge_a_roll_is_over_before_the_older_ledger_is_counted",
        "log",
        "LogLeader.roll",
        "before in (chain.current, chain.draining)",
        "before == chain.current",
        f"{_LOG_WRITER}a_roll_goes_on_in_a_new_ledger_and_closes_the_old_one",
    ),
    equivalent(
        "edge_a_cancelled_takeover_does_not_clean_up",
        "log",
        "ledgerlog.log.takeover._run",
        "trio.move_on_after(METADATA_TIMEOUT_S, shield=True)",
        "trio.move_on_after(METADATA_TIMEOUT_S)",
        f"{_LOG_WRITER}a_takeover_that_is_cancelled_leaves_no_ledger",
        because="a cancellation finds a ledger of the takeover only while its write is under way, when it "
        "has to stay, or while it is being deleted. One ledger may be left to a sweep",
    ),
    mutant(
        "edge_a_takeover_forgets_the_producers_of_the_epoch_that_began_to_remember_them",
        "log",
        "load_producers",
        "segment.epoch < metadata.dedupe_epoch",
        "segment.epoch <= metadata.dedupe_epoch",
        f"{_SHELLS}log_producers.py::test_a_repeat_is_found_after_a_takeover_and_after_rolls",
    ),
    mutant(
        "edge_a_cursor_may_not_pin_the_first_record",
        "log",
        "Cursor._operations",
        "state.offset < metadata.first_offset",
        "state.offset <= metadata.first_offset",
        f"{_CURSORS}a_pin_holds_against_truncation_and_retention",
    ),
    mutant(
        "edge_a_cursor_is_read_from_a_replica_that_is_behind",
        "log",
        "log.cursors.Cursor.get",
        "await self._client.store.sync()",
        "",
        f"{_CURSORS}a_cursor_is_read_as_it_was_last_moved",
    ),
    mutant(
        "edge_a_truncation_up_to_a_pin_is_refused",
        "log",
        "truncate.shorten",
        "pin.offset < before_offset",
        "pin.offset <= before_offset",
        f"{_CURSORS}a_pin_holds_against_truncation_and_retention",
    ),
    mutant(
        "edge_retention_counts_what_a_former_attempt_would_have_dropped",
        "log",
        "apply_retention.shorten",
        "gone_records = 0",
        "",
        f"{_RETENTION}retention_that_a_pin_overtakes_drops_and_deletes_nothing",
    ),
    mutant(
        "edge_ledgers_are_deleted_that_only_a_former_attempt_left_out",
        "log",
        "_delete_unlisted",
        "dropped - listed",
        "dropped",
        f"{_RETENTION}retention_that_a_pin_overtakes_drops_and_deletes_nothing",
    ),
    mutant(
        "edge_a_log_that_was_just_made_is_not_found",
        "log",
        "LogRegistry.find",
        """
        if node is None:
            # A read may be older than the log, if another client has just created it.
            await self._store.sync()
            node = await self._store.get(path)
        """,
        "",
        f"{_SHELLS}log_names.py::test_a_log_that_was_just_made_is_found_and_listed_on_every_replica",
    ),
    mutant(
        "edge_logs_are_listed_by_a_replica_that_is_behind",
        "log",
        "LogRegistry.list",
        "await self._store.sync()",
        "",
        f"{_SHELLS}log_names.py::test_a_log_that_was_just_made_is_found_and_listed_on_every_replica",
    ),
    mutant(
        "edge_an_end_that_an_operator_made_is_counted_as_ours",
        "D27.9",
        "ChainMaintenance._close",
        "last != writer.last_add_pushed",
        "False",
        f"{_LOG_WRITER}a_ledger_that_an_operator_ended_short_is_not_counted_as_it_was_sent",
    ),
    mutant(
        "edge_a_record_that_could_not_be_read_is_not_read_again",
        "watches",
        "ChainMaintenance.step",
        "self._reread = self._reread or need is ChainNeed.SETTLE",
        "pass",
        f"{_LOG_WRITER}an_idle_leader_that_could_not_read_the_record_reads_it_again",
    ),
    mutant(
        "edge_a_change_while_the_record_is_read_is_forgotten",
        "watches",
        "ChainMaintenance._read",
        """
        self._reread = False
        ours = chain.metadata
        record, version = await self._registry.read(ours.incarnation, known=(ours, chain.version))
        """,
        """
        ours = chain.metadata
        record, version = await self._registry.read(ours.incarnation, known=(ours, chain.version))
        self._reread = False
        """,
        f"{_LOG_WRITER}an_idle_leader_learns_of_a_successor_who_came_while_it_read_the_record",
    ),
    mutant(
        "edge_a_takeover_whose_write_did_not_happen_yet_makes_another_ledger",
        "C02",
        "Takeover._is_settled_by",
        "metadata is not None and version == self.version",
        "False",
        f"{_CHAIN}a_takeover_whose_write_did_not_happen_yet_writes_the_same_again",
    ),
    mutant(
        "edge_a_ledger_that_continues_a_short_one_is_behind_a_loss",
        "D27.9",
        "Counting.on_recovered",
        "contents.first_offset > self._end",
        "contents.first_offset >= self._end",
        f"{_CHAIN}records_that_continue_a_ledger_that_was_ended_short_are_behind_no_loss",
    ),
    mutant(
        "edge_a_roll_that_met_a_truncation_is_written_as_it_was",
        "C02",
        "LeaderChain.on_record",
        """
        self.metadata, self.version = metadata, version
        self._tried = None
        """,
        "self.metadata, self.version = metadata, version",
        f"{_CHAIN}a_roll_that_meets_a_truncation_is_formed_anew_on_what_is_there",
    ),
    mutant(
        "edge_a_spare_is_given_back_while_its_roll_is_written",
        "C03",
        "LeaderChain.take_spare",
        "self._tried is not None",
        "False",
        f"{_CHAIN}a_spare_that_an_unsettled_write_may_have_listed_is_not_deleted",
    ),
    equivalent(
        "edge_leaving_drops_a_roll_whose_write_has_begun",
        "C03",
        "LeaderChain.finish",
        "self._tried is None or self._counts is not None",
        "True",
        f"{_CHAIN}a_leader_that_leaves_ends_its_roll_closes_its_ledger_and_gives_back_the_spare",
        f"{_CHAIN}every_interleaving_of_two_takeovers_and_a_roll_keeps_the_rules",
        because="while a roll is tried, its write is what the chain needs and its spare is not given back, "
        "whether the roll is still wanted or not. What settles the write ends the wish too",
    ),
    mutant(
        "edge_a_roll_before_the_watch_is_set_is_missed_by_a_reader",
        "watches",
        "LogReader._wait_after",
        """
        async with self._client.store.watch(log_record_path(self._metadata.incarnation)) as watch:
            while True:
                found = await self._registry.look(
                    self._metadata.name,
                    self._metadata.incarnation,
                    look,
                    known=(self._metadata, self._version),
                )
                if found is not None or self._metadata.sealed or not self._follow:
                    return found
                await watch.wait()
        """,
        """
        while True:
            found = await self._registry.look(
                self._metadata.name,
                self._metadata.incarnation,
                look,
                known=(self._metadata, self._version),
            )
            if found is not None or self._metadata.sealed or not self._follow:
                return found
            async with self._client.store.watch(
                log_record_path(self._metadata.incarnation)
            ) as watch:
                await watch.wait()
        """,
        f"{_SHELLS}log_reader.py::test_a_takeover_just_before_the_watch_does_not_stop_a_follower",
    ),
)

MACHINE = (
    mutant(
        "edge_an_unknown_outcome_is_told_as_not_written",
        "machine",
        "Leading.run",
        "self._answer(error)",
        "self._answer(self._definite(error))",
        "tests/machine/test_leading.py::"
        "test_an_outcome_that_is_unknown_is_told_as_unknown_and_nothing_more_is_proposed",
    ),
    mutant(
        "edge_proposals_are_taken_after_an_unknown_outcome",
        "machine",
        "Leading.run",
        """
        self._is_over, failure = True, failure or error
        self._answer(error)
        """,
        """
        failure = failure or error
        self._answer(error)
        """,
        "tests/machine/test_leading.py::"
        "test_an_outcome_that_is_unknown_is_told_as_unknown_and_nothing_more_is_proposed",
    ),
    mutant(
        "edge_a_replica_leads_though_another_has_appended_since",
        "machine",
        "Replica._lead_with",
        "self._core.next_offset != writer.next_offset",
        "False",
        f"{_REPLICA}who_is_overtaken_before_he_leads_follows_on",
    ),
    equivalent(
        "edge_a_replica_leads_while_it_still_follows",
        "machine",
        "Replica._pause_following",
        "await self._parked.wait()",
        "pass",
        f"{_REPLICA}a_leadership_that_ends_while_following_stops_lets_it_go_on",
        f"{_REPLICA}what_is_proposed_to_the_leader_is_applied_by_all",
        because="a cancellation reaches a task that waits at once, and all records up to the end of the log "
        "are applied before. So nothing is left that following could apply",
    ),
    mutant(
        "edge_a_gap_that_was_passed_is_restored_again",
        "machine",
        "Replica._follow_always",
        """
        await self._restore(gap)
        gap = None
        """,
        "await self._restore(gap)",
        f"{_REPLICA}a_replica_that_slept_through_a_truncation_restores",
    ),
    mutant(
        "edge_two_snapshots_are_taken_at_once",
        "machine",
        "SnapshotManager.take",
        """
        while self._is_saving:
            await self._saved.wait()
        """,
        """
        if self._is_saving:
            await self._saved.wait()
        """,
        f"{_REPLICA}snapshots_that_are_asked_for_at_once_are_taken_one_after_the_other",
    ),
    mutant(
        "edge_the_log_is_truncated_before_enough_snapshots_are_kept",
        "machine",
        "SnapshotManager._forget_old",
        "len(kept) >= self.kept and leader is not None",
        "kept and leader is not None",
        f"{_REPLICA}snapshots_are_taken_and_the_log_truncated_behind_them",
    ),
    mutant(
        "edge_a_snapshot_that_just_covers_a_gap_is_too_short",
        "machine",
        "SnapshotManager.restore",
        "info.next_offset < least",
        "info.next_offset <= least",
        f"{_REPLICA}a_snapshot_that_ends_where_a_gap_ends_covers_it",
    ),
)

ARCHIVE = (
    mutant(
        "edge_a_merge_during_a_listing_of_an_archive_leaves_a_ledger_out",
        "archive",
        "ArchiveRegistry.of_log",
        "len(found) == len(components)",
        "True",
        f"{_ARCHIVES}a_listing_during_a_merge_leaves_no_ledger_out",
    ),
    mutant(
        "edge_a_marker_whose_record_may_be_stored_is_deleted",
        "archive",
        "Markers._make.write",
        """
        if not is_unsure:
            await in_thread(lambda: destination.delete(name), file=destination.url)
        """,
        "await in_thread(lambda: destination.delete(name), file=destination.url)",
        f"{_MARKER}a_destination_is_claimed_though_the_answer_is_lost",
    ),
    mutant(
        "edge_a_destination_that_was_claimed_meanwhile_is_refused",
        "archive",
        "Markers.claim",
        """
        if await self._places.find(where) is not None:
            continue
        """,
        "",
        f"{_MARKER}a_job_that_sees_the_first_records_of_another_looks_for_its_marker_again",
    ),
    mutant(
        "edge_a_destination_gets_its_id_by_a_version_that_is_newer_than_its_record",
        "archive",
        "Markers._addressed",
        "found is None or found[0] != place",
        "found is None",
        f"{_MARKER}a_destination_that_another_job_gave_its_id_just_before_keeps_it",
    ),
)

FACES = (
    mutant(
        "edge_an_act_wakes_the_other_loop_before_it_can_be_found",
        "aio",
        "Mailbox.put",
        """
        self._acts.append(act)
        if not self._is_awake:
            self._is_awake = True
            try:
                self._wake(self._run)
            except BaseException:
                self._is_awake = False
                self._acts.pop()
                raise
        """,
        """
        if not self._is_awake:
            self._is_awake = True
            self._wake(self._run)
        self._acts.append(act)
        """,
        f"{_AIO}what_gathers_for_the_other_loop_wakes_it_once",
        f"{_AIO}an_act_is_there_when_the_other_loop_wakes",
    ),
    mutant(
        "edge_a_cancelled_call_does_not_wait_for_its_end",
        "aio",
        "Bridge.wait",
        """
        with suppress(ConnectionClosed):
            self._to_trio.put(cancel)
        await asyncio.wait([future])
        raise
        """,
        """
        self._to_trio.put(cancel)
        raise
        """,
        f"{_AIO}a_cancelled_append_leaves_the_writer_in_order",
        f"{_AIO}a_cancelled_call_has_ended_when_the_cancellation_comes_out",
    ),
    mutant(
        "edge_a_connection_leaves_its_oldest_context_first",
        "aio",
        "Bridge.close",
        "reversed(list(self._held))",
        "list(self._held)",
        f"{_AIO}a_connection_that_is_left_leaves_its_contexts_from_the_newest_on",
    ),
    equivalent(
        "edge_a_context_that_was_entered_for_a_cancelled_caller_stays_open",
        "aio",
        "HeldContext.wait_entered",
        "self._tell_leave(is_failed=True, at_once=True)",
        "pass",
        f"{_AIO}a_body_that_is_cancelled_leaves_the_ledger_to_the_next_leader",
        because="to cancel the call cancels the scope of the context, entered or not. Leaving it as well "
        "is the ordinary end of a context that was entered",
    ),
    mutant(
        "edge_what_arrived_before_a_failure_is_not_given",
        "crossing",
        "Fetched.take",
        "not taken and self.is_complete and self.failure is not None",
        "self.is_complete and self.failure is not None",
        f"{_AIO}what_arrived_before_a_failure_is_given_first",
    ),
)

MUTANTS = (*LOG, *MACHINE, *ARCHIVE, *FACES)
