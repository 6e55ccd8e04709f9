"""Bugs put back into the cores: TLC must refuse a run of each.

Most of them are those of ``tests.model.core_mutants`` and ``tests.model.chain_mutants``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from ledgerlog.ledger.core.pending import PendingAdds
from ledgerlog.ledger.core.recovery import LedgerRecovery
from tests.model import chain_mutants, joined_mutants, repair_mutants
from tests.model.bookie_node import BookieNode
from tests.model.chain_world import ChainConfiguration
from tests.model.checker import AnyConfiguration
from tests.model.configuration import Configuration
from tests.model.core_mutants import CORE_MUTANTS
from tests.model.world import World
from tests.scenarios import mutants
from tests.scenarios.mutants import Mutant
from tests.tla.sets import (
    CRASHING,
    CRASHING_LOG,
    FRAMES,
    GUARANTEED,
    GUARANTEED_FRAMES,
    LATE_LOG,
    LOSING,
    LOSSY_LOG,
    PLAIN,
    PLAIN_LOG,
    REPAIRING,
    SHORT_LOG,
    SPLICING_LOG,
    STRIPED_FRAMES,
)
from tests.tla.steps import Step
from tests.tla.subjects import record


def _quorum_of(counted: str, taken: int) -> AbstractContextManager[Any]:
    """The LAC or LAFR counts up to entries that fewer bookies confirmed than it must have."""
    original = PendingAdds._quorum_reach

    def reach(self: PendingAdds, base: int, quorum: int, without: Any = ()) -> int:
        return original(
            self, base, taken if quorum == getattr(self.replication, counted) else quorum, without
        )

    return patch.object(PendingAdds, "_quorum_reach", reach)


def acknowledging_below_the_ack_quorum() -> AbstractContextManager[Any]:
    return _quorum_of("ack_quorum", 1)


def the_lafr_moves_at_the_ack_quorum() -> AbstractContextManager[Any]:
    return _quorum_of("write_quorum", 2)


def metadata_are_written_without_comparing() -> AbstractContextManager[Any]:
    """The store applies every write, at whatever version."""
    original = World._write

    def write(self: World, places: list[int], number: int) -> Any:
        message = self.messages[number]
        register = self.nodes[places[0]]
        places[0] = self._number_register(register._replace(version=message.version))
        result = original(self, places, number)
        stored = self.nodes[places[0]]
        places[0] = self._number_register(stored._replace(version=max(register.version, message.version) + 1))
        return result

    return patch.object(World, "_write", write)


def nothing_is_carried_for_a_replacement() -> AbstractContextManager[Any]:
    original = PendingAdds.strip

    def strip(self: PendingAdds, slots: Any, *, carry: bool = False) -> None:
        original(self, slots)

    return patch.object(PendingAdds, "strip", strip)


def recovery_goes_on_behind_a_missing_entry() -> AbstractContextManager[Any]:
    """The stop rule: what lies behind the first entry that is missing for certain is written back, too."""
    original = LedgerRecovery._end_at

    def end_at(self: LedgerRecovery, last_entry: int, recovered: list[bytes]) -> None:
        found = {e for answer in self._answers.values() for e in answer.found if e > last_entry + 1}
        if found:
            recovered = [*recovered, b"%d" % (last_entry + 1), b"%d" % (last_entry + 2)]
            last_entry += 2
        original(self, last_entry, recovered)

    return patch.object(LedgerRecovery, "_end_at", end_at)


def who_lost_its_data_is_not_fenced() -> AbstractContextManager[Any]:
    original = BookieNode.lose_everything

    def lose_everything(self: BookieNode) -> None:
        original(self)
        self.ledger = None

    return patch.object(BookieNode, "lose_everything", lose_everything)


def who_lost_its_data_denies_it() -> AbstractContextManager[Any]:
    original = BookieNode.lose_everything

    def lose_everything(self: BookieNode) -> None:
        original(self)
        self.in_limbo = False

    return patch.object(BookieNode, "lose_everything", lose_everything)


MUTANTS: list[tuple[Mutant, Configuration]] = [
    (acknowledging_below_the_ack_quorum, PLAIN),
    (the_lafr_moves_at_the_ack_quorum, GUARANTEED),
    (metadata_are_written_without_comparing, PLAIN),
    (nothing_is_carried_for_a_replacement, PLAIN),
    (recovery_goes_on_behind_a_missing_entry, CRASHING),
    *CORE_MUTANTS,
    (who_lost_its_data_is_not_fenced, LOSING),
    (who_lost_its_data_denies_it, LOSING),
    (mutants.limbo_is_negative, LOSING),
    (joined_mutants.holes_are_not_seen, LOSING),
    (repair_mutants.new_bookies_are_named_before_they_have_their_copies, REPAIRING),
    (repair_mutants.a_fragment_is_repaired_by_its_first_entry_alone, REPAIRING),
    (repair_mutants.repair_writes_what_it_read_at_first, REPAIRING),
    (repair_mutants.the_owner_writes_his_own_older_fragments, REPAIRING),
    (repair_mutants.a_recoverer_closes_with_the_older_fragments_that_he_read, REPAIRING),
    (joined_mutants.a_batch_retires_with_its_first_entry, STRIPED_FRAMES),
    (joined_mutants.an_answer_that_was_cut_short_denies_the_rest, FRAMES),
    (joined_mutants.a_frame_without_entries_confirms_what_it_tells, GUARANTEED_FRAMES),
]

LOG_MUTANTS: list[tuple[Mutant, ChainConfiguration]] = [
    (chain_mutants.a_takeover_recovers_the_last_ledger_only, PLAIN_LOG),
    (chain_mutants.a_conflict_on_the_list_is_answered_by_its_version_alone, PLAIN_LOG),
    (chain_mutants.a_second_roll_does_not_wait_for_the_first, PLAIN_LOG),
    (chain_mutants.serving_before_the_list_is_written, PLAIN_LOG),
    (chain_mutants.a_newer_ledger_acknowledges_before_the_older, PLAIN_LOG),
    (chain_mutants.a_newer_ledger_counts_though_the_older_lost_some, PLAIN_LOG),
    (chain_mutants.a_newer_ledger_is_durable_though_the_older_lost_some, PLAIN_LOG),
    (chain_mutants.what_nobody_knows_is_told_as_lost, CRASHING_LOG),
    (chain_mutants.a_ledger_is_closed_before_it_is_drained, PLAIN_LOG),
    (chain_mutants.a_deposed_leader_goes_on, LOSSY_LOG),
    (chain_mutants.a_takeover_given_up_deletes_what_it_made, CRASHING_LOG),
    (chain_mutants.a_deposed_leader_deletes_his_spare_whatever_is_listed, LATE_LOG),
    (chain_mutants.a_ledger_that_was_ended_short_counts_as_any_other, SHORT_LOG),
    (chain_mutants.an_accepted_loss_joins_what_is_behind_it, SHORT_LOG),
    (chain_mutants.what_is_behind_an_accepted_loss_is_told_as_lost, SHORT_LOG),
    (chain_mutants.what_no_operator_accepted_is_kept_behind_a_gap, PLAIN_LOG),
    (chain_mutants.a_leader_gives_the_offsets_of_spliced_records_again, SPLICING_LOG),
    (chain_mutants.a_splice_does_not_ask_whether_its_request_is_still_there, SPLICING_LOG),
]
"""Every bug of the chain's model. All configurations have the same processes, so TLC can judge runs of
several at once."""

_SEEDS_MAX = 400


def runs_of(mutant: Mutant, configuration: AnyConfiguration, count: int) -> Iterator[tuple[int, list[Step]]]:
    """Runs with a bug that differ from those without it, by the first step that differs. The bug does
    nothing in other runs."""
    for seed in range(_SEEDS_MAX):
        if not count:
            return
        sound = record(configuration, seed)
        with mutant():
            broken = record(configuration, seed)
        if sound != broken:
            pairs = zip(sound, broken, strict=False)
            same = next(
                (at for at, (one, other) in enumerate(pairs) if one != other), min(len(sound), len(broken))
            )
            yield same, broken
            count -= 1
