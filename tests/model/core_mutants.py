"""Bugs put back into the cores, each with a small world in which it shows.

``mutants`` has the bugs. Random walks find them (``test_model``), and TLC refuses a run of each
(``tests.tla``)."""

from __future__ import annotations

import attrs

from tests.model.configuration import Configuration
from tests.model.sets import WALKED
from tests.scenarios import mutants

PLAIN, CRASHING, STRIPED, GUARANTEED = (WALKED[number] for number in (0, 1, 2, 5))
GIVING_UP = attrs.evolve(GUARANTEED, give_up=1)

CORE_MUTANTS: list[tuple[mutants.Mutant, Configuration]] = [
    (mutants.recovery_reads_do_not_fence, PLAIN),
    (mutants.fence_is_answered_before_it_is_durable, CRASHING),
    (mutants.regular_adds_pass_the_fence, PLAIN),
    (mutants.fence_of_an_unknown_ledger_is_forgotten, PLAIN),
    (mutants.negative_quorum_is_one_too_small, PLAIN),
    (mutants.coverage_is_a_negative_quorum_of_the_ensemble, STRIPED),
    (mutants.recovery_reads_ask_the_whole_ensemble, STRIPED),
    (mutants.time_outs_are_negative, PLAIN),
    (mutants.closing_at_the_last_add_pushed, PLAIN),
    (mutants.acknowledging_after_the_end_was_fixed, PLAIN),
    (mutants.a_gap_is_acknowledged_over, PLAIN),
    (mutants.confirmations_outlive_their_bookie, PLAIN),
    (mutants.confirmations_are_stripped_after_the_write, PLAIN),
    (mutants.nobody_is_pinned, GUARANTEED),
    (mutants.the_owner_writes_whatever_it_reads, PLAIN),
    (mutants.adds_that_recovery_may_keep_are_denied, PLAIN),
    (mutants.giving_up_in_guaranteed_mode_denies_what_is_pending, GIVING_UP),
    (mutants.private_changes_are_published_at_once, PLAIN),
    (mutants.guaranteed_recovery_starts_after_the_lac, GUARANTEED),
    (mutants.recovery_closes_before_its_write_backs_are_confirmed, PLAIN),
    (mutants.the_closing_race_is_won_by_the_last, PLAIN),
    (mutants.reading_starts_below_the_last_fragment, PLAIN),
    (mutants.write_backs_carry_the_progress_of_recovery, PLAIN),
    (mutants.write_backs_carry_the_progress_of_recovery, GUARANTEED),
]
