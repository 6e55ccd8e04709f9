"""A bookie that loses everything and boots through limbo, in the model: with any order of events, and fewer
losers than an ack quorum, nothing acknowledged is cut, no negative is taken back, a closed ledger stays as it
is.

The world is the one of crashes, but a crash takes all that the bookie has (its disk, or what it had not
synced when it acknowledges without syncing), and it boots as a bookie with marks does: fenced whatever the
ledger's state, and denying nothing (protocol A.3, D27). That is one step, as between the two nobody is
answered. What the loss itself breaks is not asked for: copies are fewer than they were (part C marks these
invariants).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest

from bookie.core.ledger import BookieLedger
from tests.cores import KEY, LEDGER
from tests.model import checker
from tests.model.bookie_node import BookieNode
from tests.model.checker import explore, walk
from tests.model.configuration import BUDGETS, Configuration
from tests.model.invariants import Violation
from tests.model.world import BUDGET, Action, State, World
from tests.scenarios import mutants

COPIES = frozenset({"AckedAtAckQuorum", "WriterAckCount", "ClosedAtAckQuorum"})
"""The invariants that a loss of data breaks by itself. AckedReadable still holds: a copy of each acknowledged
entry is left."""

STATES_MAX = 150_000

SEARCHED = [
    Configuration((2, 2, 2), entries=1, bookies=2, crash=1),
    pytest.param(
        Configuration((2, 2, 2), entries=1, bookies=2, crash=1, recoverers=2), marks=pytest.mark.soak
    ),
]
WALKED = [
    Configuration((3, 3, 2), entries=3, bookies=4, recoverers=2, crash=1, fail=2, change=2, fence=1, read=2),
    Configuration((3, 3, 3), entries=2, bookies=4, recoverers=2, crash=2, fail=1, change=1, fence=1, read=1),
    Configuration((4, 3, 2), entries=3, bookies=5, recoverers=2, crash=1, fail=1, change=1, fence=1, read=1),
]


class LimboWorld(World):
    """A world in which bookies that crash lose everything."""

    unasked = COPIES

    def actions(self, state: State) -> Iterator[Action]:
        for action in super().actions(state):
            if action[0] == "do" and action[2] == "crash":
                continue
            yield action
        if self.is_settled(state):
            return
        budget = BUDGETS.index("crash")
        if not self.nodes[state.places[BUDGET]][budget]:
            return
        for place in range(self.first_bookie, len(state.places)):
            yield ("do", place, "lose_everything", None, budget)

    def _report(self, broken: Iterable[Violation]) -> None:
        super()._report(violation for violation in broken if violation.name not in self.unasked)


@pytest.fixture(autouse=True)
def losing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "world_of", LimboWorld)


@pytest.mark.parametrize("configuration", SEARCHED, ids=str)
def test_no_order_of_events_with_a_bookie_in_limbo_breaks_an_invariant(configuration: Configuration) -> None:
    many = configuration.recoverers > 1
    result = explore(configuration, states_max=STATES_MAX // 3 if many else STATES_MAX)
    assert result.schedule is None, str(result.schedule)
    assert result.complete or many
    assert result.closed > 50
    assert result.acknowledged == configuration.entries


@pytest.mark.parametrize("configuration", WALKED, ids=str)
def test_random_walks_with_bookies_in_limbo_break_no_invariant(configuration: Configuration) -> None:
    result = walk(configuration, range(60))
    assert result.schedule is None, str(result.schedule)
    assert result.acknowledged > 2


def boot_does_not_fence() -> AbstractContextManager[Any]:
    def lose_everything(self: BookieNode) -> None:
        original(self)
        self.ledger = BookieLedger(LEDGER, KEY)

    original = BookieNode.lose_everything
    return patch.object(BookieNode, "lose_everything", lose_everything)


@pytest.mark.parametrize("mutant", [boot_does_not_fence, mutants.limbo_is_negative])
def test_without_fence_or_limbo_at_the_boot_the_search_finds_the_loss(
    mutant: mutants.Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checker must find lost acknowledged entries, and not only the missing fence, which other checks see
    at once."""
    fences = {"FenceCoverage", "FenceBeforeReply", "FenceDurable"}
    monkeypatch.setattr(LimboWorld, "unasked", COPIES | fences)
    with mutant():
        result = explore(SEARCHED[0], states_max=STATES_MAX)
    assert result.schedule is not None
    assert result.schedule.violation.name in ("NoTruncation", "NegativeReadFinal"), str(result.schedule)
