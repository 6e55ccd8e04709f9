"""The chain of a log's ledgers through every order of events: the small set, and the proof that it bites.

``make model`` searches much more."""

from __future__ import annotations

import pytest

from tests.model import chain_mutants as mutants
from tests.model.chain_sets import SMALL, WALKED
from tests.model.chain_world import ChainConfiguration
from tests.model.checker import explore, walk

WALKS = 100

PLAIN = ChainConfiguration(records=2, rolls=1)
LOSSY = ChainConfiguration(records=1, rolls=1, lost=1)
SHORT = ChainConfiguration(takeovers=1, records=2, rolls=1, losses=1, accepts=1)

SPLICING = ChainConfiguration(takeovers=1, records=1, rolls=0, leaves=1, splices=1, withdrawals=1)

MUTANTS: list[tuple[mutants.Mutant, ChainConfiguration, set[str]]] = [
    (mutants.a_takeover_recovers_the_last_ledger_only, PLAIN, {"TakeoverPrefixStable"}),
    (mutants.a_conflict_on_the_list_is_answered_by_its_version_alone, PLAIN, {"TakeoverPrefixStable"}),
    (
        mutants.a_second_roll_does_not_wait_for_the_first,
        ChainConfiguration(takeovers=1, records=1, rolls=2),
        {"OnlyLastTwoOpen"},
    ),
    (mutants.serving_before_the_list_is_written, PLAIN, {"LogAckedInList"}),
    (mutants.a_newer_ledger_acknowledges_before_the_older, PLAIN, {"LogOrder"}),
    (mutants.a_newer_ledger_counts_though_the_older_lost_some, PLAIN, {"OffsetsDense"}),
    (
        mutants.a_newer_ledger_is_durable_though_the_older_lost_some,
        PLAIN,
        {"OneLeader", "ReplayComplete", "LogOrder"},
    ),
    (
        mutants.what_nobody_knows_is_told_as_lost,
        ChainConfiguration(records=1, rolls=0, fail=1, crash=1),
        {"FailedMeansAbsent"},
    ),
    (mutants.a_ledger_is_closed_before_it_is_drained, PLAIN, {"NoTruncation"}),
    (mutants.a_deposed_leader_goes_on, LOSSY, {"LogAckedInList"}),
    (mutants.a_takeover_given_up_deletes_what_it_made, ChainConfiguration(crash=1), {"DeletedIsUnlisted"}),
    (mutants.a_deposed_leader_deletes_his_spare_whatever_is_listed, LOSSY, {"DeletedIsUnlisted"}),
    (mutants.a_ledger_that_was_ended_short_counts_as_any_other, SHORT, {"ReplayComplete"}),
    (mutants.an_accepted_loss_joins_what_is_behind_it, SHORT, {"OffsetsDense"}),
    (mutants.what_is_behind_an_accepted_loss_is_told_as_lost, SHORT, {"FailedMeansAbsent"}),
    (mutants.what_no_operator_accepted_is_kept_behind_a_gap, PLAIN, {"GapsAreLosses"}),
    (mutants.a_reader_goes_on_in_a_newer_ledger_whatever_it_saw_of_the_older, PLAIN, {"ReadersSeeAPrefix"}),
    (mutants.a_leader_gives_the_offsets_of_spliced_records_again, SPLICING, {"OffsetsDense", "LogOrder"}),
    (mutants.a_splice_does_not_ask_whether_its_request_is_still_there, SPLICING, {"SplicedOnce"}),
]


@pytest.mark.long
@pytest.mark.parametrize("configuration", SMALL, ids=str)
def test_no_order_of_events_breaks_an_invariant_of_the_chain(configuration: ChainConfiguration) -> None:
    result = explore(configuration)
    assert result.schedule is None, str(result.schedule)
    assert result.complete
    assert result.acknowledged == configuration.records, "a search without acknowledgements tests nothing"
    assert result.closed > 100


@pytest.mark.parametrize("configuration", WALKED, ids=str)
def test_random_walks_through_longer_lives_of_a_log_break_no_invariant(
    configuration: ChainConfiguration,
) -> None:
    result = walk(configuration, range(WALKS))
    assert result.schedule is None, str(result.schedule)
    assert result.closed > WALKS // 4
    assert result.acknowledged > WALKS


@pytest.mark.parametrize(
    ("mutant", "configuration", "names"), MUTANTS, ids=[mutant.__name__ for mutant, _, _ in MUTANTS]
)
def test_the_search_finds_a_rule_of_the_chain_that_is_missing(
    mutant: mutants.Mutant, configuration: ChainConfiguration, names: set[str]
) -> None:
    with mutant():
        result = explore(configuration, states_max=200_000)
    assert result.schedule is not None
    assert result.schedule.violation.name in names, str(result.schedule)


def test_a_violation_of_the_chain_comes_with_a_shortest_schedule_in_words() -> None:
    with mutants.a_deposed_leader_deletes_his_spare_whatever_is_listed():
        schedule = explore(LOSSY).schedule
    assert schedule is not None
    assert schedule.steps[0] == "A begins to take the log over"
    assert "A does not wait for the answer to its write any longer" in schedule.steps
    assert schedule.steps[-1] == "A reads [0, 1, 2] in epoch 2 at version 3"
    assert len(schedule.steps) == 15, str(schedule)
