"""Mutants that no invariant of the data can tell from the right code, however the events fall.

The model checker and the schedules must pass in spite of each: they look at nothing but what is stored,
acknowledged and closed. What a mutant here costs is time, or readers that see an entry later. Where that is a
rule all the same, a direct test of the line pins it, which ``because`` names.
"""

from __future__ import annotations

from tests.mutants.mutant import equivalent

_INVARIANTS = (
    "tests/scenarios/test_schedules.py::test_production_code_does_not_take_the_step_that_breaks_a_ledger",
    "tests/model/test_model.py::test_no_order_of_events_breaks_an_invariant",
)

MUTANTS = (
    equivalent(
        "harmless_bookie_lac_is_the_latest_told",
        "D10",
        "BookieLedger.tell",
        "lac > self.lac",
        "lac != self.lac",
        *_INVARIANTS,
        because="a LAC is a lower bound, and an older one is as true as a newer one: recovery reads a little "
        "more, readers see the last entries later. test_lac_and_lafr_are_the_greatest_values_told pins it",
    ),
    equivalent(
        "harmless_bookie_remembers_no_lac",
        "rule 9",
        "BookieLedger.tell",
        "lac > self.lac",
        "lac > self.lac and lac < 0",
        *_INVARIANTS,
        because="recovery starts at the last fragment's first entry then, which is always right and takes "
        "longer. test_rule_9_lac_and_lafr_are_the_greatest_told pins it",
    ),
    equivalent(
        "harmless_recovery_starts_at_the_floor",
        "A.1, D6",
        "LedgerRecovery.on_fence_ok",
        "max(self.start, lafr if self.replication.guaranteed else lac)",
        "max(self.start, self.frozen.first_entry - 1)",
        *_INVARIANTS,
        because="what lies at or below the LAC is read and written back again as the same. "
        "test_reading_starts_after_the_highest_lac_that_a_fenced_bookie_has_seen pins it",
    ),
    equivalent(
        "harmless_write_backs_carry_no_lac_below_the_last_fragment",
        "D6, rule 9",
        "LedgerRecovery._begin_fencing",
        "self.start = self.frozen_lac = self.frozen.first_entry - 1",
        "self.start = self.frozen.first_entry - 1",
        *_INVARIANTS,
        because="a LAC is a lower bound. Whoever recovers the ledger next starts no lower than its last "
        "fragment, and readers learn the end of a closed ledger from its metadata",
    ),
    equivalent(
        "harmless_a_writer_that_closes_might_change_its_ensemble",
        "A.1",
        "WriterCore.replaceable",
        "self.failure is not None or self._replacements or self._closing is not _Closing.NO",
        "self.failure is not None or self._replacements",
        "tests/unit/test_writer_core.py",
        _INVARIANTS[1],
        because="who begins to close sets failure in the same step, and nothing takes it back",
    ),
    equivalent(
        "harmless_verdict_waits_for_every_answer",
        "D3",
        "LedgerRecovery._judge",
        "negatives >= replication.negative_quorum",
        "negatives >= replication.negative_quorum and not outstanding",
        _INVARIANTS[1],
        because="a negative quorum stays one, and a read that gets no answer times out; recovery of a ledger "
        "with a dead bookie takes that much longer. "
        "test_the_verdict_on_an_entry_is_that_of_the_rule_after_every_answer_and_every_time_out pins it",
    ),
    equivalent(
        "harmless_full_pinning_for_relaxed",
        "A.4 rule 3, D17",
        "PendingAdds.replaceable",
        "self._keeps_committed([*chosen, slot.index])",
        "not self._is_pinned(slot)",
        *_INVARIANTS,
        because="full pinning allows less, so nothing is lost by it; a bookie that died may be waited for in "
        "vain (T29). "
        "test_relaxed_pinning_lets_a_bookie_go_when_every_committed_entry_keeps_its_ack_quorum pins it",
    ),
    equivalent(
        "harmless_everything_is_sent_again_after_a_loss",
        "A.1 queue rule 3",
        "PendingAdds.on_bookie_connected",
        "slot.confirmed.reach(self._carried.get(slot.index, self.settled) + 1)",
        "self.settled",
        *_INVARIANTS,
        because="bookies take an entry that they have as the same (rule 6). "
        "test_a_failed_slot_is_sent_nothing_and_a_returned_one_all_that_it_has_not_confirmed pins it",
    ),
)
