"""Mutants of the auditor, the worker and the board between them."""

from __future__ import annotations

from tests.mutants.mutant import Edit, mutant

_ROOM = "ledgerlog/autorecovery"
_TEST = "tests/scenarios/test_autorecovery.py"

MUTANTS = (
    mutant(
        "task_is_removed_at_whatever_version",
        "rule 22",
        f"{_ROOM}/board.py",
        "Delete(path, version))",
        "Delete(path))",
        f"{_TEST}::test_a_task_that_grows_while_it_is_worked_on_is_not_removed",
    ),
    mutant(
        "task_is_removed_by_a_worker_whose_session_is_over",
        "rule 22",
        f"{_ROOM}/board.py",
        "(Check(repair_worker_path(worker.token), worker.version), Delete(path, version))",
        "(Delete(path, version),)",
        f"{_TEST}::test_a_worker_that_was_cut_off_does_not_remove_a_task_that_was_made_since",
    ),
    mutant(
        "a_lock_of_ones_own_is_somebody_elses",
        "rule 22",
        f"{_ROOM}/board.py",
        "        except (NodeExists, MetadataOutcomeUnknown):\n            await self._store.sync()\n",
        "        except NodeExists:\n            return False\n        except MetadataOutcomeUnknown:\n"
        "            await self._store.sync()\n",
        f"{_TEST}::test_a_lock_that_could_not_be_let_go_of_is_taken_up_again_by_its_worker",
    ),
    mutant(
        "somebody_elses_lock_is_let_go",
        "rule 22",
        f"{_ROOM}/board.py",
        "        if node is None or node.value != worker.token.encode():\n            return\n",
        "        if node is None:\n            return\n",
        f"{_TEST}::test_a_worker_that_was_cut_off_does_not_remove_a_task_that_was_made_since",
    ),
    mutant(
        "auditor_begins_with_what_it_hears",
        "rule 22",
        f"{_ROOM}/auditor.py",
        "        audited: frozenset[BookieId] | None = None\n",
        "        audited: frozenset[BookieId] | None = frozenset()\n",
        f"{_TEST}::test_rule_22_a_bookie_of_which_only_its_name_in_metadata_is_left_is_missed",
        also=(
            Edit(
                f"{_ROOM}/auditor.py",
                "        next_pass_at = trio.current_time()\n",
                "        next_pass_at = trio.current_time() + 3600\n",
            ),
        ),
    ),
    mutant(
        "auditor_does_not_miss_whom_metadata_names",
        "rule 22",
        f"{_ROOM}/auditor.py",
        "absences.look({*named, *await self._board.known()}",
        "absences.look({*await self._board.known()}",
        f"{_TEST}::test_rule_22_a_bookie_of_which_only_its_name_in_metadata_is_left_is_missed",
    ),
    mutant(
        "absent_bookie_is_lost_at_once",
        "rule 22",
        "ledgerlog/core/audit.py",
        "in self._since.items() if now - since >= delay_s)",
        "in self._since.items() if now - since >= 0)",
        "tests/unit/test_audit_core.py",
        f"{_TEST}::test_a_bookie_that_is_back_before_the_delay_costs_no_copy",
    ),
    mutant(
        "bookie_that_is_back_is_replaced_all_the_same",
        "rule 20",
        f"{_ROOM}/ledger.py",
        "if bookie in named and bookie not in gone and not await self._board.is_registered(bookie):",
        "if bookie in named and bookie not in gone:",
        f"{_TEST}::test_a_bookie_that_is_back_before_its_task_is_worked_on_is_kept",
    ),
    mutant(
        "open_ledger_is_recovered_without_grace",
        "rule 20",
        f"{_ROOM}/ledger.py",
        "            if wait_s > 0:\n",
        "            if wait_s > 3600:\n",
        f"{_TEST}::test_rule_20_an_open_ledger_without_a_writer_is_recovered_after_the_grace_period",
    ),
    mutant(
        "writer_is_stopped_though_nobody_could_take_the_lost_ones_place",
        "rule 20",
        f"{_ROOM}/ledger.py",
        "            self._require_spare(metadata, barred={*gone, *draining, *task.damaged})\n",
        "",
        f"{_TEST}::test_rule_20_without_a_spare_a_live_writer_is_not_stopped",
    ),
    mutant(
        "open_ledger_is_recovered_without_a_second_look",
        "rule 20",
        f"{_ROOM}/ledger.py",
        "            if await self._is_still_so(metadata, gone):\n",
        "            if metadata is not None:\n",
        f"{_TEST}::test_rule_20_before_it_recovers_a_ledger_a_worker_looks_again",
    ),
    mutant(
        "holes_are_left_once_the_fragments_are_renamed",
        "rule 24",
        f"{_ROOM}/ledger.py",
        "        return await self._complete(metadata, task, say)\n",
        "        return DONE\n",
        f"{_TEST}::test_rule_24_entries_below_the_write_quorum_are_found_by_lists_and_given",
    ),
    mutant(
        "full_check_looks_at_the_ends",
        "rule 24",
        f"{_ROOM}/checking.py",
        "            if check_all:\n",
        "            if check_all and not shares:\n",
        f"{_TEST}::test_rule_24_a_hole_between_the_ends_is_seen_by_the_full_check_alone",
    ),
    mutant(
        "copies_are_not_held_to_the_rate",
        "rule 19",
        f"{_ROOM}/copying.py",
        "                self._bucket.spend(byte_count, trio.current_time())\n",
        "                self._bucket.spend(0, trio.current_time())\n",
        f"{_TEST}::test_copies_are_made_at_the_rate_that_was_set_however_many_ledgers_wait",
    ),
    mutant(
        "draining_is_followed_by_whoever_has_the_id",
        "rule 4",
        "bookie/server/draining.py",
        "== cookie.instance\n",
        "!= ''\n",
        f"{_TEST}::test_a_bookie_formatted_anew_under_the_id_of_an_emptied_one_is_another",
    ),
    mutant(
        "idle_writer_stays_with_a_bookie_that_is_emptied",
        "rule 20",
        "ledgerlog/client/writer.py",
        "                self._leave_read_only()\n",
        "",
        f"{_TEST}::test_a_bookie_is_emptied_under_load_without_disturbing_a_writer",
    ),
    mutant(
        "racks_are_not_kept_apart",
        "placement",
        "ledgerlog/core/placement.py",
        "return zone, None if rack is None else (zone, rack), host or",
        "return zone, None, host or",
        "tests/unit/test_placement.py",
        f"{_TEST}::test_copies_go_to_other_racks_where_bookies_say_theirs",
    ),
)
