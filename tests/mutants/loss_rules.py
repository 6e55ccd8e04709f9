"""Mutants of what a bookie does after it may have lost data: marks, cookies, limbo, repair, accepted loss."""

from __future__ import annotations

from tests.mutants.mutant import Edit, mutant

_MARKS = "bookie/core/marks.py"
_RESULTS = "bookie/core/results.py"
_ENGINE = "bookie/storage/engine.py"
_ADDING = "bookie/storage/adding.py"
_OPENING = "bookie/storage/opening.py"
_CACHE = "bookie/storage/write_cache.py"
_IDENTITY = "bookie/server/identity.py"
_PHASE_ONE = "bookie/server/phase_one.py"
_LIMBO = "bookie/server/limbo.py"
_REQUESTS = "bookie/server/requests.py"
_READER = "ledgerlog/client/reader.py"
_RECOVERY = "ledgerlog/core/recovery.py"

_TEST_LOSS = "tests/scenarios/test_after_loss.py"
_TEST_MARKS = "tests/unit/test_bookie_marks.py"
_TEST_VERDICTS = "tests/storage/test_marks_in_verdicts.py"
_TEST_IDENTITY = "tests/shells/test_server_identity.py"
_TEST_REPAIR = "tests/shells/test_limbo_repair.py"
_TEST_CACHE = "tests/storage/test_write_cache.py"
_TEST_RECOVERY = "tests/unit/test_recovery_core.py"

_T09 = f"{_TEST_LOSS}::test_t09_scenario_1_a_fence_that_was_lost_with_a_disk_lets_no_add_in_after_the_close"
_T30 = f"{_TEST_LOSS}::test_t30_so_does_one_of_a_ledger_that_no_longer_names_the_bookie"
_SCENARIO_2 = (
    f"{_TEST_LOSS}::test_t10_t11_scenario_2_an_entry_that_was_lost_with_a_disk_is_not_denied_and_not_cut"
)

_UNSYNCED_2 = (
    f"{_TEST_LOSS}::test_t10_t11_scenario_2_an_entry_that_was_lost_unsynced_is_not_denied_and_not_cut"
)

MUTANTS = (
    mutant(
        "a_boot_after_loss_does_not_fence",
        "D27.1, T09, T30",
        _ADDING,
        "if not is_recovery and self._marks.now.refuses_adds(header.ledger_id):",
        "if not is_recovery and header.ledger_id < 0:",
        f"{_TEST_VERDICTS}::test_a_fence_mark_refuses_ordinary_adds_of_old_ledgers_alone",
        _T09,
        _T30,
    ),
    mutant(
        "a_boot_after_loss_fences_only_what_is_not_closed_and_names_the_bookie",
        "D27.1, T09, T30",
        _MARKS,
        "        return ledger_id <= self.fenced_through\n",
        "        return self.denies_nothing(ledger_id)\n",
        f"{_TEST_MARKS}::test_clearing_limbo_leaves_the_fence",
        _T09,
        _T30,
    ),
    mutant(
        "a_bookie_in_limbo_denies",
        "A.3, D27.7, T10",
        _RESULTS,
        "return attrs.evolve(self, status=Status.UNKNOWN) if self.status in _DENIALS else self\n\n\n"
        "@attrs.frozen\nclass ListResult:",
        "return self\n\n\n@attrs.frozen\nclass ListResult:",
        f"{_TEST_VERDICTS}::test_in_limbo_nothing_is_denied_whether_the_ledger_is_known_or_not",
        _SCENARIO_2,
        _UNSYNCED_2,
        also=(
            Edit(
                _ENGINE,
                "            status = Status.UNKNOWN if in_limbo else Status.NO_SUCH_LEDGER\n",
                "            status = Status.NO_SUCH_LEDGER\n",
            ),
        ),
    ),
    mutant(
        "limbo_is_asked_after_the_look",
        "A.3",
        _ENGINE,
        "            found = await self._reader.read(state, first=first, last=last, stride=stride, "
        "bytes_max=bytes_max)\n        finally:\n            state.pins -= 1\n",
        "            found = await self._reader.read(state, first=first, last=last, stride=stride, "
        "bytes_max=bytes_max)\n            in_limbo = self.marks.now.denies_nothing(ledger_id)\n"
        "        finally:\n            state.pins -= 1\n",
        f"{_TEST_VERDICTS}::test_a_look_that_began_in_limbo_denies_nothing_though_limbo_ended_meanwhile",
    ),
    mutant(
        "a_bookie_that_may_have_lost_data_serves_without_phase_one",
        "D27.3, T11",
        _PHASE_ONE,
        "    if kept.now.is_unclean:\n",
        "    if not kept.now.is_unclean and kept.now.is_unclean:\n",
        f"{_TEST_REPAIR}::test_without_the_metadata_store_a_bookie_that_lost_data_does_not_serve",
        _UNSYNCED_2,
    ),
    mutant(
        "limbo_ends_before_the_copies_are_durable",
        "D27.8, LimboClear",
        _LIMBO,
        "            await self._engine.flush()\n",
        "",
        f"{_TEST_REPAIR}::test_limbo_ends_only_when_every_copy_is_durable",
    ),
    mutant(
        "the_unclean_bit_is_never_set",
        "D27.10",
        _OPENING,
        "acknowledges_unsynced=not config.journal_write_data",
        "acknowledges_unsynced=False",
        f"{_TEST_CACHE}::test_what_was_not_flushed_is_lost_in_a_crash_and_the_bookie_knows_it",
        _UNSYNCED_2,
    ),
    mutant(
        "the_unclean_bit_is_cleared_before_everything_is_flushed",
        "D27.10",
        _ENGINE,
        "        if self._write_cache is not None:\n            await self._write_cache.flush()\n"
        "        await self._checkpointer.close()\n",
        "        await self.marks.replace(self.marks.now.serving(acknowledges_unsynced=False))\n"
        "        if self._write_cache is not None:\n            await self._write_cache.flush()\n"
        "        await self._checkpointer.close()\n",
        f"{_TEST_CACHE}::test_a_stop_that_finds_no_room_for_what_is_in_memory_is_not_clean",
    ),
    mutant(
        "keys_skip_the_journal_too",
        "D27.10, rule 10",
        _ADDING,
        "if self._write_cache is not None and state.key_sequence is not None:",
        "if self._write_cache is not None:\n            state.key_sequence = state.key_sequence or 0",
        f"{_TEST_CACHE}::test_all_but_the_first_add_of_a_ledger_are_acknowledged_without_a_sync",
    ),
    mutant(
        "entries_leave_memory_without_a_word_to_who_is_looking_for_them",
        "rule 8",
        _ENGINE,
        "        self._journal.given_up += 1  # Before the first run is forgotten, as the journal does.\n",
        "",
        f"{_TEST_CACHE}::test_an_entry_that_moves_from_memory_to_a_log_is_found_in_one_of_the_two",
    ),
    mutant(
        "entries_leave_memory_before_they_are_in_a_log",
        "D27.10",
        _CACHE,
        "        arena = self._sealed[0]\n        if arena.runs:\n",
        "        arena = self._sealed[0]\n        await self._forget(arena)\n        if arena.runs:\n",
        f"{_TEST_CACHE}::test_an_entry_that_moves_from_memory_to_a_log_is_found_in_one_of_the_two",
    ),
    mutant(
        "an_unsynced_add_is_acknowledged_before_its_ledgers_key_is_durable",
        "D27.10, rule 10",
        _ADDING,
        "        return state.key_sequence\n",
        "        return self._commit.durable\n",
        f"{_TEST_CACHE}::test_all_but_the_first_add_of_a_ledger_are_acknowledged_without_a_sync",
    ),
    mutant(
        "a_fixed_cookie_without_marks",
        "D27.3, T11",
        _IDENTITY,
        "await directory.format(here, await marks_after_loss(store, None))",
        "await directory.format(here)",
        f"{_TEST_IDENTITY}::test_an_emptied_directory_is_formatted_anew_with_marks_for_all_that_it_may_have_lost",
        _SCENARIO_2,
        _T09,
    ),
    mutant(
        "an_adopted_directory_without_marks",
        "D27.3",
        _IDENTITY,
        "await write_marks(directory.disk, directory.path, await marks_after_loss(store, marks))",
        "await marks_after_loss(store, marks)",
        f"{_TEST_IDENTITY}::test_a_swapped_directory_is_marked_and_then_adopted",
    ),
    mutant(
        "an_emptied_directory_is_taken_for_a_new_one",
        "cookies",
        _IDENTITY,
        "        if not fix_cookie or is_foreign or (here is None and has_data):",
        "        if is_foreign or (here is None and has_data):",
        f"{_TEST_IDENTITY}::test_an_emptied_directory_is_refused",
        f"{_TEST_IDENTITY}::test_a_swapped_directory_is_refused",
    ),
    mutant(
        "marks_that_are_gone_are_clean",
        "D27.3",
        _PHASE_ONE,
        "found or Marks(is_unclean=True)",
        "found or Marks()",
        f"{_TEST_REPAIR}::test_without_the_metadata_store_a_bookie_that_lost_data_does_not_serve",
    ),
    mutant(
        "open_ledgers_leave_limbo",
        "D27.6, LimboClear",
        _LIMBO,
        "return metadata, metadata.is_closed and not lost",
        "return metadata, not lost",
        f"{_TEST_REPAIR}::"
        "test_an_open_ledger_that_does_not_name_the_bookie_last_stays_in_limbo_until_it_is_closed",
    ),
    mutant(
        "ledgers_with_lost_entries_leave_limbo",
        "D27.8, LimboClear",
        _LIMBO,
        "return metadata, metadata.is_closed and not lost",
        "return metadata, metadata.is_closed",
        f"{_TEST_REPAIR}::test_entries_that_all_others_deny_are_named_as_lost_and_still_not_denied",
    ),
    mutant(
        "open_ledgers_are_not_recovered",
        "D27.9",
        _LIMBO,
        "if not metadata.is_closed and self._bookie_id in metadata.last_fragment.ensemble:",
        "if not metadata.is_closed and not metadata.fragments:",
        f"{_TEST_REPAIR}::test_an_open_ledger_is_recovered_and_its_owner_is_fenced",
    ),
    mutant(
        "the_last_entry_of_a_bookie_in_limbo_counts",
        "A.3",
        _READER,
        "return None if header.status == Status.UNKNOWN else header.last",
        "return header.last",
        f"{_TEST_REPAIR}::test_the_end_of_an_open_ledger_is_not_taken_from_a_bookie_in_limbo",
    ),
    mutant(
        "a_bookie_in_limbo_tells_its_last_entry_as_the_last",
        "A.3",
        _REQUESTS,
        "status = Status.UNKNOWN if engine.marks.now.denies_nothing(header.ledger_id) else Status.OK",
        "status = Status.OK",
        f"{_TEST_REPAIR}::"
        "test_a_bookie_in_limbo_gives_what_it_has_and_says_of_the_rest_that_it_does_not_know",
    ),
    mutant(
        "recovery_accepts_losses_by_itself",
        "D27.9, A.0",
        _RECOVERY,
        "if self._accept_loss and (self._accept_unreachable or not silent):\n",
        "if self._accept_unreachable or not silent:\n",
        f"{_TEST_RECOVERY}::"
        "test_an_operator_may_end_a_ledger_before_the_first_entry_that_nobody_can_speak_for",
        _SCENARIO_2,
    ),
    mutant(
        "a_bookie_that_does_not_answer_is_taken_for_one_that_lost_its_data",
        "D27.9",
        _RECOVERY,
        "if self._accept_loss and (self._accept_unreachable or not silent):\n",
        "if self._accept_loss:\n",
        f"{_TEST_RECOVERY}::test_an_operator_accepts_what_bookies_lost_and_not_that_they_do_not_answer",
    ),
    mutant(
        "an_accepted_loss_leaves_no_trace",
        "D27.9",
        _RECOVERY,
        "        if self.lost_from is not None:\n            closed",
        "        if False:\n            closed",
        f"{_TEST_RECOVERY}::"
        "test_an_operator_may_end_a_ledger_before_the_first_entry_that_nobody_can_speak_for",
    ),
    mutant(
        "limbo_is_copied_as_fast_as_it_goes",
        "D27.8",
        _LIMBO,
        "            await self._pace.pass_through(len(raw))\n",
        "",
        f"{_TEST_REPAIR}::test_copying_goes_no_faster_than_it_should",
    ),
    mutant(
        "a_full_disk_ends_a_bookie_that_repairs_itself",
        "D27.8",
        _LIMBO,
        "if isinstance(trouble, StorageError) and not isinstance(trouble, DiskFull):",
        "if isinstance(trouble, StorageError):",
        f"{_TEST_REPAIR}::test_a_full_disk_stops_the_copying_and_not_the_bookie",
    ),
    mutant(
        "a_ledger_leaves_limbo_by_metadata_that_is_old",
        "D27.6",
        _LIMBO,
        "if await peers.metadata(e) == seen]",
        "]",
        f"{_TEST_REPAIR}::test_a_ledger_that_names_the_bookie_only_since_it_was_looked_at_stays_in_limbo",
    ),
)
