"""Mutants of the audit of all copies: what is found, what is no false alarm, what a bookie says it has."""

from __future__ import annotations

from tests.mutants.mutant import equivalent, mutant

_CORE = "ledgerlog/core/copies.py"
_TASK = "ledgerlog/spark/audit_task.py"
_MARKS = "ledgerlog/spark/audit_marks.py"
_EXAMINING = "bookie/core/examining.py"
_READER = "bookie/storage/reader.py"

_TEST = "tests/unit/test_copies.py"
_TEST_BOOKIES = "tests/spark/test_audit_of_bookies.py"
_TEST_VERDICTS = "tests/spark/test_audit_verdicts.py"
_TEST_SCRUB = "tests/storage/test_scrub_request.py"
_RULE = "rule 24"

MUTANTS = (
    mutant(
        "audit_takes_a_listed_ledger_without_metadata_for_deleted",
        _RULE,
        _TASK,
        "return not ledger.incarnations or await self._is_archived(ledger)",
        "return True",
        f"{_TEST_VERDICTS}::test_a_listed_ledger_without_metadata_is_lost",
    ),
    mutant(
        "audit_calls_lost_what_retention_has_taken",
        _RULE,
        _TASK,
        "            if metadata is not None and metadata.index_of(ledger.ledger_id) is not None:\n",
        "            if True:\n",
        f"{_TEST_VERDICTS}::test_what_retention_takes_meanwhile_is_not_lost",
    ),
    mutant(
        "audit_calls_a_file_missing_that_is_being_retired",
        "A.6",
        _TASK,
        "            if is_readable and (metadata is None or metadata.index_of(file.ledger_id) is None):\n",
        "            if False:\n",
        f"{_TEST_VERDICTS}::test_what_is_archived_retired_or_merged_meanwhile_is_no_fault",
    ),
    mutant(
        "audit_does_not_look_at_the_size_of_a_file",
        "A.6",
        "ledgerlog/archive/reader.py",
        "        if size != record.file_bytes:\n",
        "        if False:\n",
        f"{_TEST_VERDICTS}::test_a_file_that_is_not_what_was_recorded_is_told_and_the_others_are_looked_at",
    ),
    mutant(
        "audit_counts_a_copy_that_was_not_seen_as_left",
        _RULE,
        _CORE,
        "sum(other not in faulty for other in self._replication.write_set(entry_id))",
        "sum(other != slot for other in self._replication.write_set(entry_id))",
        f"{_TEST}::test_each_hole_is_one_row_with_the_copies_that_are_left",
    ),
    mutant(
        "audit_calls_what_limbo_does_not_know_missing",
        "A.3",
        _CORE,
        "absent = FaultKind.LIMBO if side.in_limbo else FaultKind.MISSING",
        "absent = FaultKind.MISSING",
        f"{_TEST}::test_who_does_not_answer_and_who_may_have_lost_it_are_kinds_of_their_own",
    ),
    mutant(
        "audit_calls_who_does_not_answer_empty",
        _RULE,
        _CORE,
        "return [(low, high, FaultKind.UNREACHABLE) for low, high in gaps(share, ())]",
        "return [(low, high, FaultKind.MISSING) for low, high in gaps(share, ())]",
        f"{_TEST}::test_who_does_not_answer_and_who_may_have_lost_it_are_kinds_of_their_own",
    ),
    mutant(
        "audit_takes_a_tie_for_a_majority",
        _RULE,
        _CORE,
        "right = votes[0][0] if votes[0][1] > votes[1][1] else None",
        "right = votes[0][0]",
        f"{_TEST}::test_the_outvoted_copy_diverges_and_without_a_majority_all_do",
    ),
    equivalent(
        "audit_compares_bookies_of_other_write_sets",
        _RULE,
        _CORE,
        "for side in (self._members(remainder) if self._classes > 1 else self._answering())",
        "for side in self._answering()",
        _TEST,
        because="a block too many is looked at entry by entry, where write sets are told apart again",
    ),
    mutant(
        "audit_compares_counts_and_not_digests",
        _RULE,
        _CORE,
        "                side.sums[block, remainder]\n                for side",
        "                side.sums[block, remainder][0]\n                for side",
        f"{_TEST}::test_the_outvoted_copy_diverges_and_without_a_majority_all_do",
    ),
    mutant(
        "audit_asks_only_for_the_first_part_of_a_list",
        _RULE,
        _CORE,
        "        if side.is_silent or side.through >= self._high:\n",
        "        if side.is_silent or side.through >= self._low:\n",
        f"{_TEST}::test_exactly_the_holes_that_were_made_are_found",
    ),
    mutant(
        "audit_believes_an_answer_to_something_else",
        _RULE,
        _CORE,
        "        if answer.through < ask.first or any(strays):\n",
        "        if answer.through < ask.first:\n",
        f"{_TEST}::test_an_answer_about_something_else_counts_as_none",
    ),
    mutant(
        "audit_reports_what_it_saw_once",
        _RULE,
        _TASK,
        "        if look.faults:\n            return False\n        await self._tell(ledger, look, [])\n",
        "        await self._tell(ledger, look, look.faults)\n",
        f"{_TEST_BOOKIES}::test_what_is_deleted_or_repaired_between_two_looks_is_no_row",
    ),
    mutant(
        "audit_reports_what_was_deleted_meanwhile",
        _RULE,
        _TASK,
        "        if now is not None:\n            await self._tell(",
        "        now = now or (look.metadata, 0)\n        if now is not None:\n            await self._tell(",
        f"{_TEST_BOOKIES}::test_metadata_are_read_again_after_the_second_look",
    ),
    mutant(
        "audit_reports_what_was_moved_meanwhile",
        _RULE,
        _TASK,
        "[fault for fault in look.faults if is_due(now[0], fault)]",
        "look.faults",
        f"{_TEST_BOOKIES}::test_metadata_are_read_again_after_the_second_look",
    ),
    mutant(
        "audit_does_not_wait_for_copies_on_their_way",
        _RULE,
        _TASK,
        "            await trio.sleep(self._part.settle_s)\n",
        "",
        f"{_TEST_BOOKIES}::test_a_copy_on_its_way_is_no_hole",
    ),
    mutant(
        "audit_takes_an_old_view_of_the_metadata",
        _RULE,
        _TASK,
        "        # A ledger that a replica of the store has not heard of yet would pass for deleted.\n"
        "        await self._client.store.sync()\n",
        "",
        f"{_TEST_BOOKIES}::test_a_ledger_that_a_replica_of_the_store_has_not_heard_of_is_not_taken_for_deleted",
    ),
    mutant(
        "copies_that_differ_are_copied_over",
        _RULE,
        _MARKS,
        "elif bookie is not None and kind == FaultKind.CORRUPT.value:",
        "elif bookie is not None and kind != FaultKind.UNREACHABLE.value:",
        f"{_TEST_BOOKIES}::test_copies_that_differ_are_told_and_left_to_a_person",
    ),
    mutant(
        "scrub_calls_an_entry_sound_where_one_copy_of_it_is",
        "rule 8",
        _EXAMINING,
        "        damaged = frozenset().union(*(found.damaged for found in self._found))\n        for",
        "        damaged = frozenset[int]()\n        for",
        _TEST_SCRUB,
    ),
    mutant(
        "scrub_says_what_it_did_not_read_is_absent",
        "rule 8",
        _READER,
        "                    return upcoming[0].first - 1\n",
        "                    return horizon\n",
        f"{_TEST_SCRUB}::test_what_is_on_disk_is_read_in_as_many_requests_as_it_takes_and_says_the_same",
    ),
    mutant(
        "scrub_says_nothing_of_a_frame_that_cannot_be_read",
        "rule 8",
        _READER,
        "                    except WireError:\n                        examination.add_unreadable(run)\n",
        "                    except WireError:\n                        pass\n",
        f"{_TEST_SCRUB}::test_of_a_frame_that_cannot_be_read_all_of_its_span_is_unsound",
    ),
    mutant(
        "scrub_adds_digests_up_without_their_places",
        "rule 17",
        _EXAMINING,
        "yield (block, entry_id % classes), len(part), sum(map(mul, part, weights))",
        "yield (block, entry_id % classes), len(part), sum(part)",
        _TEST_SCRUB,
    ),
)
