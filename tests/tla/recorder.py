"""Runs of the production cores, recorded as steps of ``docs/tla/Ledger.tla``.

The cores run in the world of ``tests.model``. That world takes many states for one, and a request and its
answer for one step; here each message keeps its name and is delivered by itself. What a core does with one
input may be several steps of the module: the input, the entries that it turns into frames, each message that
it sends. They are recorded in that order, and the state of the core after the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import attrs

from ledgerlog.wire.frame import Status
from tests.model.bookie_node import BookieNode
from tests.model.client_nodes import OwnerNode, RecovererNode
from tests.model.configuration import BUDGETS, Configuration
from tests.model.healing import Copy, copies_back
from tests.model.messages import (
    Add,
    AddAnswer,
    Answer,
    Fence,
    FenceAnswer,
    Get,
    GetAnswer,
    Message,
    Read,
    ReadAnswer,
    Write,
)
from tests.model.numbering import BUDGET, META, Action, Reaction, State
from tests.model.repair_node import RepairNode, Task
from tests.model.world import World
from tests.tla import views
from tests.tla.sets import Losing
from tests.tla.steps import Step, Unjudged, record
from tests.tla.values import View


class RecordedWorld(Unjudged, World):
    """The model's world without anything that makes states fewer, and with a log of its reactions."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.log: list[tuple[int, str, Any, Reaction]] = []
        self.is_logging = False
        self.started: tuple[int, tuple[int, ...]] | None = None
        self.repaired: tuple[int, ...] = ()

    def actions(self, state: State) -> Iterator[Action]:
        if not isinstance(self.configuration, Losing):
            yield from super().actions(state)
            return
        crashes = BUDGETS.index("crash")
        for action in super().actions(state):
            if action[0] != "do" or action[2] != "crash":
                yield action
        if self.metadata(state).is_closed:
            for place in range(self.first_bookie, len(state.places)):
                copies, is_whole = self._copies_back(state, place)
                if copies or is_whole:
                    yield ("do", place, "heal", None, None)
        if self.nodes[state.places[BUDGET]][crashes] and not self.is_settled(state):
            for place in range(self.first_bookie, len(state.places)):
                yield ("do", place, "lose_everything", None, crashes)

    def _copies_back(self, state: State, place: int) -> tuple[list[Copy], bool]:
        """What a bookie copies back, and whether it leaves limbo then."""
        bookie = self.nodes[state.places[place]]
        if not bookie.in_limbo:
            return [], False
        return copies_back(self.metadata(state), bookie.name, partial(self.node, state))

    def is_answered_at_once(self, number: int) -> bool:
        return False

    def _without_inert(self, places: tuple[int, ...], pool: frozenset[int]) -> frozenset[int]:
        """Without the answers that their client would drop, and the writes that nobody awaits."""
        return frozenset(
            number
            for number in pool
            if not (
                isinstance(self.messages[number], AddAnswer | FenceAnswer | ReadAnswer | GetAnswer | Write)
                and self._is_inert(number, places[self.senders[number]], places[self.targets[number]])
            )
        )

    def react(self, number: int, what: str, argument: Any = None) -> Reaction:
        reaction = super().react(number, what, argument)
        if self.is_logging:
            self.log.append((number, what, argument, reaction))
        return reaction

    def _start(self, places: list[int], place: int, accept_loss: bool = False) -> tuple[int, ...]:
        out = super()._start(places, place, accept_loss)
        self.started = place, out
        return out

    def _start_repair(self, places: list[int], place: int, task: Task) -> tuple[int, ...]:
        self.repaired = super()._start_repair(places, place, task)
        return self.repaired

    def _step(self, state: State, action: Action) -> State:
        self.log, self.started, self.repaired, self.is_logging = [], None, (), True
        try:
            if action[0] == "do" and action[2] == "heal":
                return self._heal(state, action[1])
            return super()._step(state, action)
        finally:
            self.is_logging = False

    def _heal(self, state: State, place: int) -> State:
        copies, is_whole = self._copies_back(state, place)
        for copy in copies:
            state = super()._step(state, ("do", place, "copy_back", copy, None))
        return super()._step(state, ("do", place, "leave_limbo", None, None)) if is_whole else state


def record_ledger(configuration: Configuration, seed: int, *, steps_max: int = 200) -> list[Step]:
    """Run the cores at random, and return what they did as steps of the module."""
    return record(RecordedWorld(configuration), seed, steps_max, _steps)


def _steps(world: RecordedWorld, state: State, action: Action, following: State) -> Iterator[Step]:
    if action[0] in ("message", "again") and world.targets[action[1]] == META:
        register = world.nodes[following.places[META]]
        seen = {"kind": "meta", "is": views.metadata_view(register.metadata, register.version)}
        write = world.messages[action[1]]
        yield Step("store applies", {"m": write}, (), (seen,))
    if world.started is not None:
        place, out = world.started
        yield from _recoverer_steps(
            world.names[place],
            "starts",
            {},
            [world.messages[one] for one in out],
            world.nodes[following.places[place]],
        )
    yield from _repair_steps([world.messages[one] for one in world.repaired])
    if action[0] == "short":
        yield from _short_steps(world, action)
        return
    for number, what, argument, reaction in world.log:
        if what == "written":
            continue
        old, new = world.nodes[number], world.nodes[reaction.node]
        sent = [world.messages[one] for one in reaction.out]
        if what in ("receive", "handle"):
            argument = world.messages[argument]
        if isinstance(new, RepairNode):
            yield from _repair_steps(sent)
        elif isinstance(argument, Get):
            continue  # An ordinary read changes nothing.
        elif isinstance(new, BookieNode):
            yield _bookie_step(new, what, argument, sent)
        elif isinstance(new, OwnerNode):
            yield from _owner_steps(old, new, what, argument, sent)
        else:
            yield from _recoverer_reaction(new, what, argument, sent)


def _short_steps(world: RecordedWorld, action: Action) -> Iterator[Step]:
    (_, _, request, handled), (_, _, answer, received) = world.log
    yield Step(
        "bookie is short",
        {"m": world.messages[request], "through": action[2]},
        (world.messages[answer],),
        (_bookie_seen(world.nodes[handled.node]),),
    )
    sent = [world.messages[one] for one in received.out]
    yield from _recoverer_reaction(world.nodes[received.node], "receive", world.messages[answer], sent)


# --- bookies --------------------------------------------------------------------------------------


def _bookie_seen(bookie: BookieNode) -> View:
    return {"kind": "bookie", "name": bookie.name, "is": views.bookie_view(bookie)}


_OF_BOOKIES = {
    "sync": "bookie syncs",
    "crash": "bookie crashes",
    "lose_everything": "bookie loses all",
    "leave_limbo": "bookie leaves limbo",
}


def _bookie_step(bookie: BookieNode, what: str, argument: Any, sent: list[Message]) -> Step:
    seen = (_bookie_seen(bookie),)
    if what == "handle":
        return Step("bookie handles", {"m": argument}, tuple(sent), seen)
    if what == "copy_back":
        (((entry_id, _),), _, _) = argument
        return Step("bookie copies back", {"b": bookie.name, "e": entry_id}, tuple(sent), seen)
    return Step(_OF_BOOKIES[what], {"b": bookie.name}, tuple(sent), seen)


# --- the owner ------------------------------------------------------------------------------------


def _owner_steps(
    old: OwnerNode, owner: OwnerNode, what: str, argument: Any, sent: list[Message]
) -> Iterator[Step]:
    writes = tuple(one for one in sent if isinstance(one, Write))
    steps: list[Step] = []
    match what:
        case "receive":
            event = "owner hears ok" if argument.status is Status.OK else "owner hears fence"
            steps.append(Step(event, {"m": argument}, writes))
        case "stored":
            steps.append(Step("owner reads", {}, writes))
        case "fail" | "connect":
            steps.append(Step(f"owner {what}s", {"slot": argument + 1}, writes))
        case "change":
            steps.append(Step("owner changes", {"repl": views.replacements_view(argument)}, writes))
        case "replace":
            steps.append(Step("owner fails", {"slot": argument[0][0] + 1}))
            steps.append(Step("owner changes", {"repl": views.replacements_view(argument)}, writes))
        case "close" | "give_up":
            steps.append(Step({"close": "owner closes", "give_up": "owner gives up"}[what], {}, writes))
        case _:
            assert what in ("append", "publish"), what
            assert not writes
    pushed = owner.core.pending.lap - old.core.pending.lap
    if pushed:
        steps.append(Step("owner pushes", {"count": pushed}))
    for add in sent:
        if isinstance(add, Add):
            slot = owner.ensemble.index(add.bookie) + 1
            if add.first > add.last:
                steps.append(Step("owner publishes", {"slot": slot}, (add,)))
            else:
                steps.append(
                    Step("owner sends", {"slot": slot, "first": add.first, "last": add.last}, (add,))
                )
    yield from _with_seen(steps, {"kind": "owner", "is": views.owner_view(owner)})


def _with_seen(steps: list[Step], seen: View) -> Iterator[Step]:
    if steps:
        yield from steps[:-1]
        yield attrs.evolve(steps[-1], seen=(seen,))


# --- repairs --------------------------------------------------------------------------------------


def _repair_steps(sent: list[Message]) -> Iterator[Step]:
    for message in sent:
        if isinstance(message, Add):
            entries = {entry_id for entry_id, _ in message.entries}
            told = {"b": message.bookie, "es": entries, "lac": message.lac}
            yield Step("repair copies", told, (message,))
        elif isinstance(message, Write):
            yield Step("repair writes", {"m": message}, (message,))


# --- recoverers -----------------------------------------------------------------------------------


def _recoverer_reaction(
    recoverer: RecovererNode, what: str, argument: Any, sent: list[Message]
) -> Iterator[Step]:
    match what:
        case "receive":
            event, arguments = _heard(argument), {"m": argument}
        case "stored":
            event, arguments = "reads", {}
        case "fail" | "connect":
            event, arguments = f"{what}s", {"slot": argument + 1}
        case "change":
            event, arguments = "changes", {"repl": views.replacements_view(argument)}
        case "replace":
            yield Step("fails", {"c": recoverer.name, "slot": argument[0][0] + 1})
            event, arguments = "changes", {"repl": views.replacements_view(argument)}
        case "fail_fence":
            event, arguments = "fence fails", {"slot": argument + 1}
        case "fail_read":
            event, arguments = "read fails", {"slot": argument.slot + 1, "first": argument.first}
        case _:
            raise AssertionError(what)
    yield from _recoverer_steps(recoverer.name, event, arguments, sent, recoverer)


def _heard(answer: Answer) -> str:
    match answer:
        case AddAnswer():
            return "hears ok"
        case FenceAnswer():
            return "hears fence"
        case _:
            return "hears read"


def _recoverer_steps(
    name: str, event: str, arguments: View, sent: list[Message], recoverer: RecovererNode
) -> Iterator[Step]:
    client = {"c": name}
    writes = tuple(one for one in sent if isinstance(one, Write))
    reads = tuple(one for one in sent if isinstance(one, Read))
    steps = [Step(event, client | arguments, writes)]
    for message in sent:
        if isinstance(message, Fence):
            steps.append(Step("sends fence", client | {"slot": message.slot + 1}, (message,)))
        elif isinstance(message, Add):
            slot = recoverer.ensemble.index(message.bookie) + 1
            places = {"slot": slot, "first": message.first, "last": message.last}
            steps.append(Step("sends", client | places, (message,)))
    if reads:
        steps.append(Step("asks", client, reads))
    yield from _with_seen(steps, {"kind": "rec", "name": name, "is": views.recoverer_view(recoverer)})
