"""Repair beside a writer and recoverers: it makes progress, and the checker notices broken repairs.

The configurations are in ``sets`` with the others."""

from __future__ import annotations

from random import Random

import pytest

from tests.model import repair_mutants as mutants
from tests.model.checker import explore, wander
from tests.model.configuration import Configuration
from tests.model.messages import REPAIR, Write
from tests.model.world import World

BESIDE_OWNER = Configuration(
    (2, 2, 2), entries=1, bookies=3, recoverers=0, close=True, fail=1, change=1, repair=1
)
BESIDE_RECOVERER = Configuration((2, 2, 2), entries=1, bookies=3, fail=1, change=1, repair=1)

MUTANTS: list[tuple[mutants.Mutant, Configuration, set[str]]] = [
    (mutants.the_last_fragment_of_an_open_ledger_is_repaired, BESIDE_RECOVERER, {"RepairTouches"}),
    (
        mutants.new_bookies_are_named_before_they_have_their_copies,
        BESIDE_OWNER,
        {"AckedAtAckQuorum"},
    ),
    (
        mutants.a_fragment_is_repaired_by_its_first_entry_alone,
        Configuration((2, 2, 2), entries=2, bookies=3, recoverers=0, close=True, repair=1),
        {"AckedAtAckQuorum"},
    ),
    (
        mutants.repair_writes_what_it_read_at_first,
        BESIDE_OWNER,
        {"FragmentsMonotone", "MetaTransitions", "RepairTouches"},
    ),
    (mutants.the_owner_writes_his_own_older_fragments, BESIDE_OWNER, {"FragmentsMonotone"}),
    (
        mutants.a_recoverer_closes_with_the_older_fragments_that_he_read,
        BESIDE_RECOVERER,
        {"FragmentsMonotone"},
    ),
]


@pytest.mark.parametrize(
    ("mutant", "configuration", "names"), MUTANTS, ids=[mutant.__name__ for mutant, _, _ in MUTANTS]
)
def test_the_search_finds_a_rule_of_repair_that_is_missing(
    mutant: mutants.Mutant, configuration: Configuration, names: set[str]
) -> None:
    with mutant():
        result = explore(configuration, states_max=300_000)
    assert result.schedule is not None
    assert result.schedule.violation.name in names, str(result.schedule)


def test_repairs_of_open_ledgers_of_ledgers_in_recovery_and_of_closed_ones_are_all_played() -> None:
    world = World(
        Configuration((2, 2, 2), entries=3, bookies=4, recoverers=1, close=True, fail=2, change=2, repair=2)
    )
    written: set[str] = set()
    for seed in range(300):
        state = world.initial()
        for following, _ in wander(world, Random(f"repair/{seed}"), 200):
            before, after = world.metadata(state), world.metadata(following)
            by_repair = [
                number
                for number in state.pool - following.pool
                if isinstance(message := world.messages[number], Write) and message.client == REPAIR
            ]
            if by_repair and before.fragments != after.fragments:
                written.add(after.state.value)
            state = following
    assert written == {"OPEN", "IN_RECOVERY", "CLOSED"}
