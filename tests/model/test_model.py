"""The small set of the model checker, and the proof that the checker notices broken rules.

``make model`` searches much more."""

from __future__ import annotations

from typing import Any

import pytest

from ledgerlog.ledger.core.pending import PendingAdds
from ledgerlog.model.quorum import Replication
from tests.cores import new_metadata
from tests.model.checker import explore, walk
from tests.model.configuration import Configuration
from tests.model.core_mutants import CORE_MUTANTS
from tests.model.sets import SMALL, WALKED
from tests.model.structure import clone, picture
from tests.scenarios import mutants

WALKS = 15


def changed(shape: tuple[int, int, int], recoverers: int = 1, **options: Any) -> Configuration:
    """One of the configurations in which fewer states stand for more, as in ``CHANGED``."""
    return Configuration(
        shape,
        **({"entries": 1} | options),
        sent=1,
        bookies=shape[0] + 1,
        recoverers=recoverers,
        twins=recoverers == 2,
        fail=1,
        change=1,
    )


SEARCHED: list[tuple[mutants.Mutant, Configuration, str]] = [
    (mutants.confirmations_outlive_their_bookie, changed((3, 3, 2)), "WriterAckCount"),
    (mutants.confirmations_are_stripped_after_the_write, changed((3, 3, 2)), "AckedAtAckQuorum"),
    (mutants.nobody_is_pinned, changed((3, 3, 2), guaranteed=True), "PinRespected"),
    (mutants.private_changes_are_published_at_once, changed((2, 2, 2), 2), "FragmentsFrozenInRecovery"),
    (mutants.recovery_reads_do_not_fence, changed((2, 2, 2)), "FenceBeforeReply"),
    (mutants.the_owner_writes_whatever_it_reads, changed((2, 2, 2)), "FragmentsFrozenInRecovery"),
    (
        mutants.recovery_closes_before_its_write_backs_are_confirmed,
        changed((2, 2, 2)),
        "ClosedAtAckQuorum",
    ),
    (mutants.the_closing_race_is_won_by_the_last, changed((2, 2, 2), 2), "ClosedImmutable"),
    (
        mutants.guaranteed_recovery_starts_after_the_lac,
        changed((2, 2, 1), entries=2, guaranteed=True),
        "LafrTruth",
    ),
    (mutants.negative_quorum_is_one_too_small, changed((3, 2, 2)), "NegativeReadFinal"),
    (mutants.coverage_is_a_negative_quorum_of_the_ensemble, changed((3, 2, 2)), "FenceCoverage"),
    (mutants.recovery_reads_ask_the_whole_ensemble, changed((3, 2, 2)), "RecoveryTargets"),
]


@pytest.mark.parametrize("configuration", SMALL, ids=str)
def test_no_order_of_events_breaks_an_invariant(configuration: Configuration) -> None:
    result = explore(configuration)
    assert result.schedule is None, str(result.schedule)
    assert result.complete
    assert result.closed > 20, "the world is too small to show anything"
    assert result.acknowledged == configuration.entries, "a search without acknowledgements tests nothing"


@pytest.mark.parametrize("configuration", WALKED, ids=str)
def test_random_walks_through_larger_worlds_break_no_invariant(configuration: Configuration) -> None:
    result = walk(configuration, range(WALKS))
    assert result.schedule is None, str(result.schedule)
    assert result.closed > WALKS // 2
    assert result.acknowledged > WALKS // 2


@pytest.mark.parametrize(
    ("mutant", "configuration"), CORE_MUTANTS, ids=[mutant.__name__ for mutant, _ in CORE_MUTANTS]
)
def test_random_walks_find_a_rule_that_is_missing(
    mutant: mutants.Mutant, configuration: Configuration
) -> None:
    with mutant():
        result = walk(configuration, range(400))
    assert result.schedule is not None


@pytest.mark.parametrize(
    ("mutant", "configuration", "name"), SEARCHED, ids=[mutant.__name__ for mutant, _, _ in SEARCHED]
)
def test_searches_in_which_few_states_stand_for_many_find_a_rule_that_is_missing(
    mutant: mutants.Mutant, configuration: Configuration, name: str
) -> None:
    with mutant():
        result = explore(configuration, states_max=200_000)
    assert result.schedule is not None
    assert result.schedule.violation.name == name, str(result.schedule)


def test_a_violation_comes_with_a_shortest_schedule_in_words() -> None:
    with mutants.negative_quorum_is_one_too_small():
        result = explore(Configuration((2, 2, 1), entries=1, bookies=2))
    schedule = result.schedule
    assert schedule is not None
    assert schedule.violation.name == "NegativeReadFinal"
    assert schedule.steps[0] == "W sends e0 (LAC -1)"
    assert schedule.steps[-1] == "b1 serves R0 read e0; b1 answers R0 read e0: NoSuchEntry"
    assert len(schedule.steps) == 7, str(schedule)


def test_a_copy_of_a_component_looks_alike_and_shares_nothing_that_changes() -> None:
    pending = PendingAdds(Replication(3, 3, 2), new_metadata().fragments)
    pending.push([b"x", b"y"], 2)
    copy = clone(pending)
    assert picture(copy) == picture(pending)
    copy.on_add_ok("b0", 0, 1)
    assert picture(copy) != picture(pending)
    assert pending.slots[0].confirmed.ranges() == []
    assert copy.slot_of("b0") is copy.slots[0], "what was one object is one object in the copy"


def test_an_object_of_an_unknown_kind_is_never_shared_by_oversight() -> None:
    with pytest.raises(TypeError, match="nobody said"):
        clone([object()])
    with pytest.raises(TypeError, match="nobody said"):
        picture([object()])
