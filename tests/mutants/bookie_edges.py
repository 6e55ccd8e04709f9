"""Mutants at the edges of the rules of a bookie.

``ledger_edges`` says what an edge is.
"""

from __future__ import annotations

from tests.mutants.mutant import Change, equivalent, mutant

_UNIT = "tests/unit/test_"
_SHELLS = "tests/shells/test_"
_ENGINE = "tests/storage/test_engine.py::test_"
_BOOKIE_LEDGER = f"{_UNIT}bookie_ledger.py::test_"
_MARKS = f"{_UNIT}loss_marks.py::test_"
_ORACLE = f"{_SHELLS}deletion_oracle.py::test_"
_LIMBO = f"{_SHELLS}limbo_repair.py::test_"
_GONE = "tests/storage/test_rows_of_deleted_ledgers.py::test_"

MUTANTS = (
    mutant(
        "edge_a_fence_that_waited_for_room_is_answered_without_a_record",
        "rule 2",
        "Fencer._fence",
        """
        while not state.fence_sequence:
            if self._journal.append(FENCE, encode_fence(state.ledger_id, state.key)) is not None:
                self._journal.active.marked.add(state.ledger_id)
                state.fence_sequence = self._commit.sequence
                if state.key_sequence is None:
                    state.key_sequence = state.fence_sequence
            elif self._journal.is_disk_full:
                await trio.lowlevel.checkpoint()
                return Status.DISK_FULL
            else:
                await self._journal.progress.park()
        """,
        """
        if not state.fence_sequence:
            if self._journal.append(FENCE, encode_fence(state.ledger_id, state.key)) is not None:
                self._journal.active.marked.add(state.ledger_id)
                state.fence_sequence = self._commit.sequence
                if state.key_sequence is None:
                    state.key_sequence = state.fence_sequence
            elif self._journal.is_disk_full:
                await trio.lowlevel.checkpoint()
                return Status.DISK_FULL
            else:
                await self._journal.progress.park()
        """,
        f"{_ENGINE}a_fence_that_waited_for_room_is_answered_once_it_is_durable",
    ),
    mutant(
        "edge_a_fence_without_a_place_in_the_journal_is_settled",
        "rule 2",
        "BookieLedger.is_fence_settled",
        "0 < self.fence_sequence <= durable",
        "self.fence_sequence <= durable",
        f"{_BOOKIE_LEDGER}a_fence_is_settled_only_once_its_own_block_is_durable",
    ),
    mutant(
        "edge_the_newest_durable_entry_is_not_told",
        "rule 3",
        "BookieLedger.last_durable",
        "run.sequence <= durable",
        "run.sequence < durable",
        f"{_BOOKIE_LEDGER}the_last_durable_entry_is_in_the_newest_durable_block",
    ),
    mutant(
        "edge_an_add_is_acknowledged_with_the_block_before_its_own",
        "rule 1",
        "Adder._append",
        "return self._commit.newest",
        "return self._commit.durable",
        f"{_ENGINE}an_add_is_durable_only_once_its_write_returned",
    ),
    equivalent(
        "edge_an_add_that_is_here_in_part_does_not_wait_for_that_part",
        "rule 7",
        "Adder._add_some",
        "max(verdict, newest)",
        "verdict",
        f"{_ENGINE}rule_7_an_entry_sent_again_waits_for_the_sync_of_the_first",
        "tests/storage/test_unsynced_writes.py",
        because="in the journal the new part is in the newest block. In the write cache it waits for the "
        "block of the key, and the only add of the ledger that went through the journal is in that block",
    ),
    mutant(
        "edge_the_last_ledger_of_a_range_is_not_in_limbo",
        "A.3",
        "LossMarks.denies_nothing",
        "ledger_id <= limbo[at][1]",
        "ledger_id < limbo[at][1]",
        f"{_MARKS}after_a_loss_every_ledger_up_to_the_highest_id_is_fenced_and_in_limbo_and_none_above",
    ),
    mutant(
        "edge_a_second_loss_by_a_store_that_was_restored_forgets_fences",
        "rule 4",
        "LossMarks.after_loss",
        "max(self.fenced_through, highest_ledger_id)",
        "highest_ledger_id",
        f"{_MARKS}a_second_loss_puts_cleared_ledgers_into_limbo_again_and_forgets_no_fence",
    ),
    mutant(
        "edge_in_limbo_an_entry_just_before_an_unreadable_one_is_denied",
        "A.3",
        "loss_marks.undenied",
        "answer.through >= first",
        "answer.through > first",
        f"{_MARKS}an_answer_in_limbo_denies_nothing_before_an_entry_that_cannot_be_read",
    ),
    mutant(
        "edge_a_lost_list_of_gone_ledgers_is_made_anew_before_the_marks",
        "D27.2",
        "settle_marks",
        """
        await kept.change(lambda _: after)
        await write_gone(directory.disk, directory.path, instance, GoneLedgers())
        """,
        """
        await write_gone(directory.disk, directory.path, instance, GoneLedgers())
        await kept.change(lambda _: after)
        """,
        f"{_LIMBO}a_crash_after_a_lost_list_of_gone_ledgers_is_marked_by_the_next_start",
    ),
    mutant(
        "edge_the_newest_ledger_stays_in_limbo",
        "D27.6",
        "LimboRepair._look",
        "(floor, marks.now.fenced_through)",
        "(floor, marks.now.fenced_through - 1)",
        f"{_LIMBO}deleted_ledgers_leave_limbo_and_stay_fenced",
    ),
    mutant(
        "edge_what_a_restored_store_has_forgotten_leaves_limbo",
        "A.8",
        "LimboRepair._look",
        "max(self._floor, await peers.deletion_floor())",
        "0",
        "tests/scenarios/test_restored_metadata.py::"
        "test_what_a_restored_store_has_forgotten_stays_in_limbo_until_the_loss_is_accepted",
    ),
    mutant(
        "edge_what_cannot_be_read_now_is_told_as_lost",
        "A.3",
        "LimboRepair._copy",
        "isinstance(failure, EntryNotFound | EntryCorrupt)",
        "isinstance(failure, LedgerLogError)",
        f"{_LIMBO}what_a_silent_bookie_may_have_is_not_named_as_lost",
    ),
    mutant(
        "edge_the_newest_ledger_is_never_surely_gone",
        "rule 25",
        "MetadataDeletionOracle.surely_gone",
        "ledger_id > highest",
        "ledger_id >= highest",
        f"{_ORACLE}the_newest_ledger_can_be_gone_too",
    ),
    mutant(
        "edge_ids_that_were_not_given_out_are_absent",
        "rule 25",
        "MetadataDeletionOracle.absent",
        "last = min(last, await store.highest_id(LEDGER_COUNTER))",
        "",
        f"{_ORACLE}ids_without_a_ledger_are_absent_and_later_ones_are_not",
    ),
    mutant(
        "edge_ledgers_are_gone_by_what_a_replica_that_is_behind_says",
        "rule 25",
        "MetadataDeletionOracle.surely_gone",
        """
        await store.sync()
        floor = await deletion_floor(store)
        """,
        "floor = await deletion_floor(store)",
        f"{_ORACLE}a_ledger_that_a_replica_has_not_seen_yet_is_not_gone",
    ),
    mutant(
        "edge_what_was_brought_back_meanwhile_is_gone",
        "A.8",
        "MetadataDeletionOracle.surely_gone",
        "max(floor, await deletion_floor(store))",
        "await deletion_floor(store)",
        f"{_ORACLE}what_is_brought_back_before_the_loss_is_accepted_is_not_gone",
    ),
    mutant(
        "edge_a_ledger_is_deleted_before_its_record_is_durable",
        "rule 4",
        "Collector._delete",
        "await journal.wait_durable(sequence)",
        "",
        f"{_GONE}a_ledger_is_gone_for_readers_once_that_is_durable",
    ),
    mutant(
        "edge_a_deleted_ledger_is_forgotten_before_it_is_noted",
        "rule 4",
        "Collector._purge",
        """
        await self._note(ledger_ids)
        await self._ledgers.remove(ledger_ids)
        """,
        """
        await self._ledgers.remove(ledger_ids)
        await self._note(ledger_ids)
        """,
        f"{_GONE}a_crash_between_deleting_and_writing_the_ranges_forgets_nothing",
    ),
    mutant(
        "edge_a_conflict_ends_the_doubt_of_an_earlier_registration",
        "registration",
        "Registration._keep",
        "self._is_in_doubt = was_in_doubt",
        "self._is_in_doubt = False",
        f"{_SHELLS}server_registration.py::test_a_conflict_after_a_lost_answer_leaves_the_doubt",
    ),
    mutant(
        "edge_a_bookie_that_turns_read_only_while_it_looks_at_its_node_stays_in_its_list",
        "watches",
        "Registration.run",
        "self._changed = trio.Event()",
        "",
        f"{_SHELLS}server_registration.py::test_a_bookie_that_turns_read_only_while_it_looks_at_its_node_is_moved",
        also=(
            Change(
                "Registration.run",
                "await _wait_for_a_change(self._changed, session, writable, read_only)",
                """
                self._changed = trio.Event()
                await _wait_for_a_change(self._changed, session, writable, read_only)
                """,
            ),
        ),
    ),
)
