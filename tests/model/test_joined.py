"""A whole log on real ledgers, with bookies that lose data, through every order of events: the small set, and
the proof that it sees what neither the chain's model nor the ledger's can see.

``make model`` searches much more."""

from __future__ import annotations

import pytest

from tests.model import joined_mutants as mutants
from tests.model.chain_nodes import Ledger
from tests.model.chain_world import LEDGERS
from tests.model.checker import explore, walk
from tests.model.configuration import Configuration
from tests.model.joined_sets import SMALL, WALKED
from tests.model.joined_world import JoinedConfiguration, JoinedWorld

WALKS = 20

ONE_LEDGER = JoinedConfiguration(takeovers=2, records=1, rolls=0, disks=1)
ROLLED = JoinedConfiguration(shape=(1, 1, 1), takeovers=1, records=1, rolls=1, accepts=1, disks=1)
ACCEPTED = JoinedConfiguration(takeovers=1, records=1, rolls=0, accepts=1, disks=1, reads=1)
BOUNCED = JoinedConfiguration(
    bookies=3, takeovers=1, records=1, rolls=0, bounces=1, stale=1, failures=1, changes=1
)
HEALED = JoinedConfiguration(processes=1, takeovers=1, records=1, rolls=0, leaves=1, forgets=1, heals=1)
ROLLED_AND_HEALED = JoinedConfiguration(processes=1, takeovers=1, records=1, rolls=1, disks=1, heals=1)
REPAIRED = JoinedConfiguration(
    processes=1, bookies=3, takeovers=1, records=1, rolls=0, leaves=1, forgets=1, heals=1, repairs=1
)
FRAMED = Configuration((3, 2, 2), entries=4, bookies=3, recoverers=0, frames_outstanding=1, frame_entries=3)
SHORT = Configuration((2, 2, 2), entries=2, bookies=2, round_entries=2, short=1)
PUBLISHED = Configuration((2, 2, 1), entries=2, bookies=2, recoverers=0, guaranteed=True, publish=1)

MUTANTS: list[tuple[mutants.Mutant, JoinedConfiguration | Configuration, str]] = [
    (mutants.the_newest_ledger_gets_no_mark, ONE_LEDGER, "AckedAtAckQuorum"),
    (mutants.a_loss_is_no_limbo, ONE_LEDGER, "AckedAtAckQuorum"),
    (mutants.a_loss_fences_nothing, ONE_LEDGER, "FenceDurable"),
    (mutants.an_accepted_loss_is_not_written_down, ROLLED, "NoTruncation"),
    (mutants.a_loss_is_accepted_though_somebody_is_silent, ACCEPTED, "LossIsLost"),
    (mutants.a_loss_is_accepted_before_everybody_answered, ACCEPTED, "LossIsLost"),
    (mutants.a_replacement_that_refuses_ends_its_writer, BOUNCED, "MarksEndNobody"),
    (mutants.holes_are_not_seen, HEALED, "AckedAtAckQuorum"),
    (mutants.all_ledgers_leave_limbo_with_the_first, ROLLED_AND_HEALED, "AckedAtAckQuorum"),
    (mutants.a_new_bookie_is_named_though_it_booted, REPAIRED, "AckedAtAckQuorum"),
    (mutants.a_batch_retires_with_its_first_entry, FRAMED, "QueueRule"),
    (mutants.an_answer_that_was_cut_short_denies_the_rest, SHORT, "NegativeReadFinal"),
    (mutants.a_frame_without_entries_confirms_what_it_tells, PUBLISHED, "WriterAckCount"),
]


@pytest.mark.parametrize("configuration", SMALL, ids=str)
def test_no_order_of_events_breaks_an_invariant_of_a_log_on_real_ledgers(
    configuration: JoinedConfiguration,
) -> None:
    result = explore(configuration)
    assert result.schedule is None, str(result.schedule)
    assert result.complete
    assert result.acknowledged == configuration.records, "a search without acknowledgements tests nothing"
    assert result.closed > 0 or configuration.takeovers + configuration.seals + configuration.accepts < 2


@pytest.mark.parametrize("configuration", WALKED, ids=str)
def test_random_walks_through_long_lives_of_a_log_on_real_ledgers_break_no_invariant(
    configuration: JoinedConfiguration,
) -> None:
    result = walk(configuration, range(WALKS))
    assert result.schedule is None, str(result.schedule)
    assert result.closed > WALKS // 4
    assert result.acknowledged > WALKS // 4


@pytest.mark.parametrize(
    ("mutant", "configuration", "name"), MUTANTS, ids=[mutant.__name__ for mutant, _, _ in MUTANTS]
)
def test_the_joined_search_finds_a_rule_that_is_missing(
    mutant: mutants.Mutant, configuration: JoinedConfiguration | Configuration, name: str
) -> None:
    with mutant():
        result = explore(configuration, states_max=50_000)
    assert result.schedule is not None
    assert result.schedule.violation.name == name, str(result.schedule)


def test_a_violation_in_a_ledger_of_a_log_comes_with_its_schedule_in_words() -> None:
    with mutants.the_newest_ledger_gets_no_mark():
        schedule = explore(ONE_LEDGER).schedule
    assert schedule is not None
    assert schedule.steps[0] == "A begins to take the log over"
    assert "A appends to L0" in schedule.steps
    assert schedule.steps[-1] == "b0 loses its disk"


def test_a_leader_closes_his_older_ledger_and_goes_on_in_the_newer_in_the_joined_world() -> None:
    """What is taken at once hides all else that may happen in its state, so more must come of it."""
    world = JoinedWorld(JoinedConfiguration(shape=(1, 1, 1), bookies=1, takeovers=1, records=2, rolls=1))
    frontier = [world.initial()]
    seen = {frontier[0].print}
    told = set()
    while frontier:
        state = frontier.pop()
        ledgers: tuple[Ledger, ...] = world.nodes[state.places[LEDGERS]].all
        told.add(tuple((ledger.acked, ledger.end) for ledger in ledgers))
        for action in world.actions(state):
            following = world.step(state, action)
            if following.print not in seen:
                seen.add(following.print)
                frontier.append(following)
    assert ((1, None), (1, None)) in told
    assert ((1, 0), (1, None)) in told
