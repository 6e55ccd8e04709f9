"""Bugs put back into the cores: TLC must refuse a run of each.

Most of them are those of ``tests.model.core_mutants``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from ledgerlog.ledger.core.pending import PendingAdds
from ledgerlog.ledger.core.recovery import LedgerRecovery
from tests.model import joined_mutants
from tests.model.bookie_node import BookieNode
from tests.model.configuration import Configuration
from tests.model.core_mutants import CORE_MUTANTS
from tests.model.world import World
from tests.scenarios import mutants
from tests.scenarios.mutants import Mutant
from tests.tla.recorder import Step, record
from tests.tla.sets import (
    CRASHING,
    FRAMES,
    GUARANTEED,
    GUARANTEED_FRAMES,
    LOSING,
    PLAIN,
    STRIPED_FRAMES,
)


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
    (joined_mutants.a_batch_retires_with_its_first_entry, STRIPED_FRAMES),
    (joined_mutants.an_answer_that_was_cut_short_denies_the_rest, FRAMES),
    (joined_mutants.a_frame_without_entries_confirms_what_it_tells, GUARANTEED_FRAMES),
]

_SEEDS_MAX = 400


def runs_of(mutant: Mutant, configuration: Configuration, count: int) -> Iterator[tuple[int, list[Step]]]:
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
