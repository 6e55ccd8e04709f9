"""Liveness (part C.6 of the protocol): once trouble is over, every ledger makes progress, no matter in which
state the trouble left it.

A random walk brings the world into some state. Then everybody answers, nothing is lost any more, and what was
lost before is found out by a new connection, as time-outs do."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from tests.model.checker import wander
from tests.model.client_nodes import TO_BE_READ, OwnerNode
from tests.model.configuration import Configuration
from tests.model.messages import OWNER
from tests.model.numbering import State
from tests.model.world import World

WALKS = 40

_TROUBLE = {"fail": 3, "connect": 1, "change": 3, "fence": 1, "read": 1, "lost": 2, "dup": 1}

RECOVERED = [
    Configuration((2, 2, 1), entries=3, bookies=4, recoverers=3, **_TROUBLE),
    Configuration((3, 3, 2), entries=4, bookies=5, recoverers=3, **_TROUBLE),
    Configuration((3, 2, 2), entries=6, bookies=5, recoverers=3, round_entries=2, **_TROUBLE),
    Configuration((4, 3, 2), entries=6, bookies=6, recoverers=3, guaranteed=True, **_TROUBLE),
    Configuration((3, 3, 2), entries=4, bookies=5, recoverers=3, crash=2, **_TROUBLE),
]
OWNED = [
    Configuration((2, 2, 2), entries=4, bookies=4, recoverers=0, **_TROUBLE),
    Configuration((3, 3, 2), entries=4, bookies=5, recoverers=0, **_TROUBLE),
    Configuration((3, 2, 2), entries=6, bookies=5, recoverers=0, **_TROUBLE),
    Configuration((3, 3, 2), entries=4, bookies=5, recoverers=0, guaranteed=True, **_TROUBLE),
    Configuration((4, 3, 2), entries=6, bookies=6, recoverers=0, guaranteed=True, **_TROUBLE),
    Configuration((4, 4, 2), entries=4, bookies=6, recoverers=0, guaranteed=True, **_TROUBLE),
]


def _trouble(world: World, seed: int) -> State:
    """Some state on a random walk, on which the last recoverer, if there are any, did not start."""
    random = Random(f"trouble/{seed}")
    last = world.place_of[world.clients[-1]]
    walk = wander(world, random, random.randrange(3, 70), spared=(("start", last),))
    return deque((found for found, _ in walk), maxlen=1).pop()


def _deliver_everything(world: World, state: State) -> State:
    while True:
        for action in world.actions(state):
            is_due = action[0] == "do" and action[2] in ("stored", "sync") and action[4] is None
            if action[0] == "message" or is_due:
                state = world.step(state, action)
                break
        else:
            return state


@pytest.mark.parametrize("configuration", RECOVERED, ids=str)
def test_a_new_recoverer_that_everybody_answers_closes_the_ledger(configuration: Configuration) -> None:
    world = World(configuration)
    was_open = 0
    for seed in range(WALKS):
        state = _trouble(world, seed)
        if world.metadata(state).is_closed:
            continue
        was_open += 1
        # The others are dead: they take part no more than their messages do.
        last = world.clients[-1]
        state = world.step(state, ("start", world.place_of[last]))
        state = _deliver_everything(world, state)
        recoverer = world.node(state, last)
        assert recoverer.is_over, f"seed {seed}: {recoverer.core.phase}"
        assert recoverer.core.failure is None, f"seed {seed}: {recoverer.core.failure}"
        assert world.metadata(state).is_closed
    assert was_open > WALKS // 4


@pytest.mark.parametrize("configuration", OWNED, ids=str)
def test_an_owner_whose_bookies_are_all_back_gets_everything_settled_and_can_close(
    configuration: Configuration,
) -> None:
    world = World(configuration)
    was_pending = 0
    place = world.place_of[OWNER]
    for seed in range(WALKS):
        state = _trouble(world, seed)
        was_pending += not world.node(state, OWNER).core.is_drained
        # All writes are done, and their clients know it.
        while (owner := world.node(state, OWNER)).core.intent is not None:
            if owner.write != TO_BE_READ:
                state = _deliver_everything(world, state)
            else:
                state = world.step(state, ("do", place, "stored", None, None))
        for slot in range(configuration.shape[0]):
            if not world.node(state, OWNER).core.pending.slots[slot].failed:
                state = world.step(state, ("do", place, "fail", slot, None))
            state = world.step(state, ("do", place, "connect", slot, None))
        state = _deliver_everything(world, state)
        owner = world.node(state, OWNER)
        assert isinstance(owner, OwnerNode)
        assert owner.core.failure is None, f"seed {seed}: {owner.core.failure}"
        assert owner.core.is_drained, f"seed {seed}: {owner.core.pending.slots}"
        state = world.step(state, ("do", place, "close", None, None))
        state = _deliver_everything(world, state)
        assert world.node(state, OWNER).core.is_closed, f"seed {seed}"
    assert was_pending > WALKS // 8
