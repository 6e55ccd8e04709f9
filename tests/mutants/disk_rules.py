"""Mutants of a disk that fills up or rots: when it is read-only, and what takes a rotten run's place."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_FULLNESS = "bookie/core/fullness.py"
_NODE = "bookie/server/node.py"
_SCRUB = "bookie/storage/scrub.py"

_FULLNESS_TEST = "tests/unit/test_fullness.py"
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
        "bookie/storage/engine.py",
        "is_busy=lambda file: file in journal.residents or scrubber.holds(file),",
        "is_busy=lambda file: file in journal.residents,",
        f"{_SCRUB_TEST}::test_the_file_of_a_rotten_run_is_held_until_its_copies_are_indexed",
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
)
