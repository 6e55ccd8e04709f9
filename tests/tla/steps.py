"""A recorded run, as steps of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

import attrs

from tests.model.checker import _Broke, wander
from tests.model.invariants import Violation
from tests.model.messages import Message
from tests.model.numbering import Action, State
from tests.tla.log_views import LogMessage
from tests.tla.values import View


@attrs.frozen
class Step:
    """One step of the module."""

    event: str
    """The action of the module; see ``Does`` in LedgerTrace.tla and LogTrace.tla."""
    arguments: View
    out: tuple[Message | LogMessage, ...] = ()
    """Exactly the messages that the action sends."""
    seen: tuple[View, ...] = ()
    """The states of components after it."""

    def __str__(self) -> str:
        told = [f"{name}={value}" for name, value in self.arguments.items()]
        return f"{self.event}({', '.join(told)}){' -> ' if self.out else ''}{', '.join(map(str, self.out))}"


Run = Sequence[Step]


class Unjudged:
    """A mixin for a world of the model: a run goes on, whatever it broke. The module is to say so."""

    def _report(self, broken: Iterable[Violation]) -> None:
        pass


def record(
    world: Any, seed: int, steps_max: int, steps_of: Callable[[Any, State, Action, State], Iterable[Step]]
) -> list[Step]:
    """Run the cores of a world at random, and return what they did as steps of the module.

    ``steps_of`` gets the world, a state, an action and the next state.
    """
    steps: list[Step] = []
    state = world.initial()
    try:
        for following, action in wander(world, Random(f"tla/{seed}"), steps_max):
            steps += steps_of(world, state, action, following)
            state = following
    except _Broke:
        pass  # A core that lost a rule may run into an assertion of its own. What it did before is judged.
    return steps
