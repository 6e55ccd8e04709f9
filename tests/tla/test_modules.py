"""The modules in ``docs/tla`` keep their invariants, and refine the published module where they claim to.

``python -m tests.tla --only module`` and ``--only published`` search more."""

from __future__ import annotations

import pytest

from tests.tla.modules import AMENDMENTS, LOG_INVARIANTS, ONE, PAIR_AND_SPARE, PUBLISHED, LogSearch, Search
from tests.tla.tlc import MODULES

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("tlc")]


@pytest.mark.parametrize(
    "search",
    [
        Search(ONE),
        Search(ONE, bookies=2, changes=1),
        Search(ONE, violates="NeverClosedByRecovery"),
        Search(ONE, without="Refuses <- NothingIsRefused", violates="Safety"),
        Search((2, 2, 2), losses=1, closes=False, without="MayLeaveLimbo <- AnyTime", violates="Safety"),
        Search((2, 2, 2), bookies=3, changes=1, repairs=1, violates="NeverRepaired"),
        Search((2, 2, 2), bookies=3, repairs=1, without="MayBeNamed <- WithoutCopies", violates="Safety"),
    ],
    ids=str,
)
def test_the_module_keeps_its_invariants_and_breaks_them_without_a_rule(search: Search) -> None:
    outcome = search.run(is_short=True)
    assert search.is_as_expected(outcome), outcome.text
    assert outcome.states > 20


@pytest.mark.parametrize(
    "search",
    [
        LogSearch(takeovers=1, rolls=1, lost_answers=1),
        LogSearch(records=0, without="Conflicted <- NoneAgain", violates="OneLeader"),
        LogSearch(takeovers=1, records=0, rolls=2, without="MayRoll <- AnyTime", violates="OnlyLastTwoOpen"),
    ],
    ids=str,
)
def test_the_module_of_a_log_keeps_its_invariants_and_breaks_them_without_a_rule(search: LogSearch) -> None:
    outcome = search.run(is_short=True)
    assert search.is_as_expected(outcome), outcome.text
    assert outcome.states > 20


def test_every_invariant_of_a_log_is_searched_for() -> None:
    text = (MODULES / "Log.tla").read_text()
    safety = text[text.index("\nSafety ==") : text.index("ListCas ==")]
    assert all(f"/\\ {name}" in safety for name in LOG_INVARIANTS)
    assert safety.count("/\\ ") == len(LOG_INVARIANTS)


@pytest.mark.parametrize(
    "search",
    [
        Search(ONE, amendments=()),
        Search(ONE, recoverers=2, amendments=(), violates="steps"),
        Search(ONE, entries=2, amendments=("frozen", "base"), violates="steps"),
        Search(recoverers=0, amendments=("carried", "changes", "order", "highest"), **PAIR_AND_SPARE),
        Search(recoverers=0, amendments=("changes", "order", "highest"), violates="steps", **PAIR_AND_SPARE),
    ],
    ids=str,
)
def test_the_module_refines_the_published_one_as_far_as_it_claims(search: Search) -> None:
    outcome = search.run(is_short=True)
    assert search.is_as_expected(outcome), outcome.text


def test_the_command_shows_that_each_amendment_is_needed() -> None:
    wanted = {
        amendment for search in PUBLISHED for amendment in search.amendments or () if search.violates is None
    }
    assert wanted == set(AMENDMENTS)
    text = (MODULES / "Amended.tla").read_text()
    assert all(f'"{amendment}"' in text for amendment in AMENDMENTS)
