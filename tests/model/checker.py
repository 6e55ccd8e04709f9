"""Searching the model: every order of events for small configurations, random walks for larger ones.

``explore`` goes breadth first, so the first violation it meets lies at the end of a shortest schedule. The
visited set keeps 64 random bits a state (two states of a million share them with a probability of about
3e-8) with its predecessor, from which a schedule is found again.

``walk`` goes at random, by a seed, with the leaning that part E.4 of the protocol asks for: recoveries begin
while the owner is still at work, changes are not rare, and a client that has begun is slow at times.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from random import Random

import attrs

from ledgerlog.log.core.chain import TakeoverAim
from tests.model.chain_world import ChainConfiguration, ChainWorld
from tests.model.configuration import Configuration
from tests.model.invariants import Violation
from tests.model.joined_world import JoinedConfiguration, JoinedWorld
from tests.model.numbering import Action, State
from tests.model.words import describe
from tests.model.world import World

Model = World | ChainWorld
AnyConfiguration = Configuration | ChainConfiguration

NODES_MAX = 100_000
"""A walk goes on in a new world once its world remembers this many components, to bound its memory."""


def world_of(configuration: AnyConfiguration) -> Model:
    """The world that a configuration describes."""
    if isinstance(configuration, JoinedConfiguration):
        return JoinedWorld(configuration)
    if isinstance(configuration, ChainConfiguration):
        return ChainWorld(configuration)
    return World(configuration)


def _words(world: Model, state: State, action: Action) -> str:
    return world.describe(state, action) if isinstance(world, ChainWorld) else describe(world, state, action)


@attrs.frozen
class Schedule:
    """A violation and the way to it."""

    configuration: AnyConfiguration
    steps: tuple[str, ...]
    violation: Violation

    def __str__(self) -> str:
        steps = " ".join(f"({number}) {step}." for number, step in enumerate(self.steps, 1))
        return f"{self.configuration}\n{steps}\n=> {self.violation}"


@attrs.define
class Result:
    configuration: AnyConfiguration
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    """CPU seconds."""
    closed: int = 0
    """States in which the ledger is closed, or the log was taken over by a second leader (of walks: the last
    of each)."""
    acknowledged: int = 0
    """The most entries acknowledged in any state; of walks, those of all. What never closes a ledger, or
    never acknowledges, has tested little."""
    complete: bool = True
    schedule: Schedule | None = None

    def __str__(self) -> str:
        rate = self.states / self.seconds if self.seconds else 0.0
        outcome = "ok" if self.schedule is None else self.schedule.violation.name
        return (
            f"{self.states:>9,} states {self.transitions:>10,} transitions depth {self.depth:>3} "
            f"{self.seconds:6.1f} s {rate:7,.0f}/s  {outcome}{'' if self.complete else ' (cut)'}  "
            f"{self.configuration}"
        )


def explore(configuration: AnyConfiguration, *, states_max: int = 1 << 62) -> Result:
    """Search every state of a configuration, or as many as allowed, nearest first."""
    world = world_of(configuration)
    begin = time.process_time()
    result = Result(configuration)
    first = world.initial()
    # For the print of each state, the print of its predecessor.
    came_from: dict[int, int] = {first.print: first.print}
    frontier = [first]
    while frontier:
        following: list[State] = []
        for state in frontier:
            here = state.print
            for action in world.actions(state):
                result.transitions += 1
                try:
                    found = world.step(state, action)
                except Violation as violation:
                    steps = (*_retrace(world, came_from, here), _words(world, state, action))
                    result.schedule = Schedule(configuration, steps, violation)
                    return _finish(result, came_from, begin)
                if found.print not in came_from:
                    came_from[found.print] = here
                    following.append(found)
                    is_closed, acknowledged = world.progress(found)
                    result.closed += is_closed
                    result.acknowledged = max(result.acknowledged, acknowledged)
        if len(came_from) >= states_max and following:
            result.complete = False
            return _finish(result, came_from, begin)
        if following:
            result.depth += 1
        frontier = following
    return _finish(result, came_from, begin)


def _finish(result: Result, came_from: dict[int, int], begin: float) -> Result:
    result.states = len(came_from)
    result.seconds = time.process_time() - begin
    return result


def _retrace(world: Model, came_from: dict[int, int], target: int) -> list[str]:
    """The actions from the beginning to the state with a print, in words."""
    prints: deque[int] = deque()
    while came_from[target] != target:
        prints.appendleft(target)
        target = came_from[target]
    state = world.initial()
    steps = []
    for wanted in prints:
        for action in world.actions(state):
            found = world.step(state, action)
            if found.print == wanted:
                steps.append(_words(world, state, action))
                state = found
                break
        else:
            raise AssertionError("the predecessor does not lead to its successor")
    return steps


def walk(
    configuration: AnyConfiguration, seeds: range, *, steps_max: int = 400, steps_total: int = 1 << 62
) -> Result:
    """Random walks, one for each seed, each to its end, until they have ``steps_total`` steps together."""
    world = world_of(configuration)
    begin = time.process_time()
    result = Result(configuration)
    seen: set[int] = set()
    for seed in seeds:
        if len(world.nodes) > NODES_MAX:
            # The prints of its states are others, so what is seen again may be counted again.
            world = world_of(configuration)
            result.states += len(seen)
            seen.clear()
        state = world.initial()
        taken: list[Action] = []
        try:
            for state, action in wander(world, Random(f"walk/{seed}"), steps_max):
                taken.append(action)
                seen.add(state.print)
        except _Broke as broke:
            taken.append(broke.action)
            steps = (f"seed {seed}", *_tell(world, taken))
            result.schedule = Schedule(configuration, steps, broke.violation)
        result.transitions += len(taken)
        result.depth = max(result.depth, len(taken))
        is_closed, acknowledged = world.progress(state)
        result.closed += is_closed
        result.acknowledged += acknowledged
        if result.schedule is not None or result.transitions >= steps_total:
            break
    result.states += len(seen)
    result.seconds = time.process_time() - begin
    return result


def _tell(world: Model, actions: Sequence[Action]) -> Iterator[str]:
    """The words for actions from the beginning, of which the last need not be possible."""
    state = world.initial()
    for number, action in enumerate(actions, 1):
        yield _words(world, state, action)
        if number < len(actions):
            state = world.step(state, action)


class _Broke(Exception):
    def __init__(self, action: Action, violation: Violation) -> None:
        self.action = action
        self.violation = violation


def wander(
    world: Model, random: Random, steps_max: int, *, spared: tuple[Action, ...] = ()
) -> Iterator[tuple[State, Action]]:
    """A walk from the beginning: each state on it, with the action that led there. ``spared`` actions are
    never taken."""
    slow = [random.choice((0.15, 1.0, 1.0)) for _ in world.names]
    state = world.initial()
    for _ in range(steps_max):
        # Messages have numbers, and all else comes in the same order: a seed gives the same walk anywhere.
        actions = [action for action in world.actions(state) if action not in spared]
        actions.sort(key=_order)
        if not actions:
            return
        (action,) = random.choices(actions, [_weight(world, action, slow) for action in actions])
        try:
            state = world.step(state, action)
        except Violation as violation:
            raise _Broke(action, violation) from violation
        yield state, action


def _order(action: Action) -> tuple[int, int]:
    if action[0] == "cell":
        return action[1], _order(action[2])[1]
    return -1, action[1] if action[0] in ("message", "silent", "again", "short") else -1


def _weight(world: Model, action: Action, slow: Sequence[float]) -> float:
    """The weight of an action in a random choice."""
    if action[0] == "cell":
        return _weight(world.ledgers, action[2], [1.0] * len(world.ledgers.names))
    if action[0] == "message":
        return 1.0 * slow[world.targets[action[1]]]
    if action[0] == "again":
        return 0.05
    if action[0] == "silent":
        return 0.15
    if action[0] in ("start", "repair", "short"):
        return 0.06
    if action[2] == "take":
        return _AIMS[action[3]] * slow[action[1]]
    return _LEANINGS.get(action[2], 1.0) * slow[action[1]]


_LEANINGS = {
    "append": 0.6,
    "fail": 0.12,
    "connect": 0.4,
    "change": 0.7,
    "replace": 0.1,
    "fail_fence": 0.05,
    "fail_read": 0.05,
}
_LEANINGS |= {"close": 0.02, "give_up": 0.02, "crash": 0.3, "sync": 0.5}
_LEANINGS |= {"roll": 0.3, "cancel": 0.03, "refuse": 0.03, "leave": 0.03, "truncate": 0.03}
_LEANINGS |= {"finish": 0.05, "lose": 0.3, "lose_everything": 0.015, "give_up_waiting": 0.3}
_LEANINGS |= {"wipe": 0.03, "forget": 0.03, "bounce": 0.03, "heal": 0.2, "publish": 0.2}

_AIMS = {TakeoverAim.LEAD: 0.08, TakeoverAim.RECOVER: 0.03, TakeoverAim.SEAL: 0.004}
"""Takeovers are weighted by their purpose. If a log ends early, or no leader leads for long, a walk shows
little."""
