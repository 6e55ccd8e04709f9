"""Mutants of a disk that fills up or rots: when it is read-only, and what takes a rotten run's place."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_FULLNESS = "bookie/core/fullness.py"
_NODE = "bookie/server/node.py"
_SCRUB = "bookie/storage/scrub.py"
_BALLAST = "bookie/storage/ballast.py"

_FULLNESS_TEST = "tests/unit/test_fullness.py"
_FULL_TEST = "tests/storage/test_full_disk.py"
_WATCH_TEST = "tests/shells/test_disk_watch.py"
_SCRUB_TEST = "tests/storage/test_scrub.py"

MUTANTS = (
    mutant(
        "no_reserve_is_kept",
        "rule 5",
        _FULLNESS,
        "return max(self.reserve_bytes, round(total * (1 - self.read_only_ratio)))",
        "return round(total * (1 - self.read_only_ratio))",
        f"{_FULLNESS_TEST}::test_the_reserve_holds_where_it_is_more_than_the_share_and_the_way_back_is_as_long",
    ),
    mutant(
        "writable_again_at_the_read_only_mark",
        "bounds",
        _FULLNESS,
        "bound = self.read_only_below if was is not Fullness.READ_ONLY else self.writable_from",
        "bound = self.read_only_below",
        f"{_FULLNESS_TEST}::test_a_read_only_bookie_comes_back_at_the_lower_mark_and_not_before",
    ),
    mutant(
        "a_full_bookie_starts_as_writable",
        "bounds",
        _NODE,
        "        await watch.look()  # Who starts on a full disk is never seen as writable.\n",
        "",
        f"{_WATCH_TEST}::test_who_starts_on_a_full_disk_is_never_registered_as_writable",
    ),
    mutant(
        "a_rotten_row_outlives_its_copy",
        "rule 8",
        "bookie/storage/rewriting.py",
        "for run in runs[:indexed]}.union(restored),",
        "for run in runs[:indexed]},",
        f"{_SCRUB_TEST}::test_rotten_runs_are_named_and_restored_ones_take_their_rows_even_put_together",
    ),
    mutant(
        "a_copy_takes_the_row_before_the_rest_is_there",
        "rule 8",
        _SCRUB,
        "for entries in reversed(parts):",
        "for entries in parts:",
        f"{_SCRUB_TEST}::test_a_run_restored_in_parts_begins_with_its_last_part",
    ),
    mutant(
        "a_file_is_compacted_while_copies_are_on_their_way",
        "rule 8",
        "bookie/storage/opening.py",
        "is_busy=lambda file: file in journal.residents or scrubber.holds(file),",
        "is_busy=lambda file: file in journal.residents,",
        f"{_SCRUB_TEST}::test_the_file_of_a_rotten_run_is_held_until_its_copies_are_indexed",
    ),
    mutant(
        "large_files_take_the_room_that_the_index_needs",
        "storage",
        _BALLAST,
        "elif free - size < (kept if await self._is_held() else 2 * kept):",
        "elif free - size < 0:",
        f"{_FULL_TEST}::test_large_files_leave_what_the_index_needs",
    ),
    mutant(
        "the_index_is_written_to_the_last_byte",
        "storage",
        _BALLAST,
        "        if free < size // 2:\n            raise DiskFull(",
        "        if False:\n            raise DiskFull(",
        f"{_FULL_TEST}::test_what_the_index_has_no_room_for_waits_and_goes_on_when_there_is_some",
    ),
    mutant(
        "what_a_stop_gave_up_is_left_to_others",
        "storage",
        _BALLAST,
        "        if self._was_given_up:\n",
        "        if False:\n",
        f"{_FULL_TEST}::"
        "test_a_bookie_whose_disk_others_fill_refuses_adds_fences_and_stops_and_starts_in_order",
    ),
    mutant(
        "leveldb_writes_behind_half_a_batch",
        "storage",
        "bookie/storage/leveldb.py",
        "        if self._is_torn:\n",
        "        if False:\n",
        f"{_FULL_TEST}::test_leveldb_takes_the_next_batch_after_one_that_found_no_room",
    ),
    mutant(
        "the_index_made_again_goes_by_the_newest_of_two_runs",
        "rule 8",
        "bookie/storage/rebuild.py",
        "if known is None or self._last(key, known) <= self._last(key, value):",
        "if True:",
        "tests/storage/test_damage.py::"
        "test_of_entries_that_stand_in_two_files_none_is_denied_once_the_index_was_made_again",
    ),
    mutant(
        "nobody_hears_of_rot_that_cannot_be_mended",
        "rule 24",
        "bookie/server/rot.py",
        "                    stuck.add(rotten.run.ledger_id)\n",
        "                    continue\n",
        "tests/shells/test_rot_repair.py::"
        "test_auto_recovery_is_asked_about_what_cannot_be_copied_again_and_about_nothing_else",
    ),
)
