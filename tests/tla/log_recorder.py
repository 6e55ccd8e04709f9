"""Runs of the production cores of a log, recorded as steps of ``docs/tla/Log.tla``.

The cores run in the world of ``tests.model.chain_world``. What a process does with one input may be several
steps of the module: the input, the deletion of ledgers that it found useless, the write that is due then.
They are recorded in that order, and the states of all after the last of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from ledgerlog.log.core.chain import ChainNeed
from tests.model.chain_nodes import LEADING, Event, ProcessNode, RecordWrite
from tests.model.chain_world import LEDGERS, RECORD, ChainConfiguration, ChainWorld, Ledgers, Stored
from tests.model.numbering import Action, State
from tests.tla import log_views as views
from tests.tla.sets import Late
from tests.tla.steps import Step, Unjudged, record
from tests.tla.values import View


class RecordedChain(Unjudged, ChainWorld):
    """The model's world of a log, with the events of its last step."""

    def __init__(self, configuration: ChainConfiguration) -> None:
        super().__init__(configuration)
        self.events: list[Event] = []

    def actions(self, state: State) -> Iterator[Action]:
        for action in super().actions(state):
            if not (isinstance(self.configuration, Late) and self._is_early(state, action)):
                yield action

    def _is_early(self, state: State, action: Action) -> bool:
        """Whether a leader settles its write before it is deposed."""
        if action[0] != "do" or action[2] != "read":
            return False
        chain = self.nodes[state.places[action[1]]].chain
        stored: Stored = self.nodes[state.places[RECORD]]
        return chain is not None and chain.need is ChainNeed.SETTLE and stored.record.epoch == chain.epoch

    def _step(self, state: State, action: Action) -> State:
        self.events = []
        return super()._step(state, action)

    def _on_event(self, places: list[int], event: Event) -> None:
        self.events.append(event)
        super()._on_event(places, event)


def record_log(configuration: ChainConfiguration, seed: int, *, steps_max: int = 200) -> list[Step]:
    """Run the cores at random, and return what they did as steps of the module."""
    return record(RecordedChain(configuration), seed, steps_max, _steps)


def _steps(world: RecordedChain, state: State, action: Action, following: State) -> list[Step]:
    """The last step has the states of everything after it."""
    stored: Stored = world.nodes[following.places[RECORD]]
    ledgers: Ledgers = world.nodes[following.places[LEDGERS]]
    seen: list[View] = [
        {"kind": "record", "is": views.stored_view(stored)},
        {"kind": "ledgers", "is": [views.ledger_view(one) for one in ledgers.all]},
    ]
    if action[0] == "message":
        steps = list(_store_steps(world, state, action))
        name = world.messages[action[1]].process
    elif action[1] == RECORD:
        steps = list(_steps_of_others(world, state, action, ledgers))
        name = None
    else:
        name = world.names[action[1]]
        steps = [_process_step(world, state, action, name)]
    steps += [Step("deletes", {"l": views.number(one[1])}) for one in world.events if one[0] == "delete"]
    if name is not None:
        written = [world.messages[one] for one in following.pool - state.pool]
        steps += [Step("writes", {"p": name}, (one,)) for one in written]
        node: ProcessNode = world.nodes[following.places[world.names.index(name)]]
        seen.append({"kind": "process", "name": name, "is": views.process_view(node)})
    return [*steps[:-1], attrs.evolve(steps[-1], seen=tuple(seen))]


def _store_steps(world: RecordedChain, state: State, action: Action) -> Iterator[Step]:
    write: RecordWrite = world.messages[action[1]]
    places = list(state.places)
    stored: Stored = world.nodes[places[RECORD]]
    if not world._is_awaited(places, write):
        yield Step("store applies", {"m": write})
        return
    ok = stored.version == write.version and world._has_request(places, write.staged)
    answer = views.RecordAnswer(write.process, write.attempt, ok)
    yield Step("store applies", {"m": write}, (answer,))
    yield Step("hears", {"p": write.process, "m": answer})


def _steps_of_others(world: RecordedChain, state: State, action: Action, ledgers: Ledgers) -> Iterator[Step]:
    _, _, what, argument, _ = action
    before: Ledgers = world.nodes[state.places[LEDGERS]]
    match what:
        case "truncate":
            stored: Stored = world.nodes[state.places[RECORD]]
            yield Step("truncates", {"to": stored.record.counted_end})
            for ledger_id, ledger in enumerate(ledgers.all):
                if ledger.is_deleted and not before.all[ledger_id].is_deleted:
                    yield Step("deletes", {"l": views.number(ledger_id)})
        case "ask":
            yield Step("asks for splice", {"n": ledgers.all[-1].pushed})
        case "withdraw" | "splice":
            event = {"withdraw": "withdraws", "splice": "splices"}[what]
            yield Step(event, {"l": views.number(argument)})
        case _:
            assert what == "lose", what
            yield Step("accepts loss", {"l": views.number(argument[0]), "end": argument[1]})


_PLAIN = {
    "crash": "crashes",
    "cancel": "gives up",
    "refuse": "cannot write",
    "give_up_waiting": "stops waiting",
    "append": "appends",
    "leave": "leaves",
    "roll": "wants roll",
    "ask": "sees request",
    "finish": "finishes",
}
"""The steps that have no more arguments."""


def _process_step(world: RecordedChain, state: State, action: Action, name: str) -> Step:
    _, place, what, argument, _ = action
    node: ProcessNode = world.nodes[state.places[place]]
    ledgers: Ledgers = world.nodes[state.places[LEDGERS]]
    process: View = {"p": name}

    def step(event: str, **arguments: Any) -> Step:
        return Step(event, process | arguments)

    match what:
        case "take":
            return step("begins", aim=views.AIMS[argument])
        case "read":
            return step("leader reads" if node.phase == LEADING else "takeover reads")
        case "recover":
            assert node.takeover is not None
            ledger_id = node.takeover.recovering
            place_of_end = {"l": views.number(ledger_id), "end": argument}
            if ledgers.all[ledger_id].is_deleted:
                return step("gives up")
            for event in world.events:
                if event[0] == "named":
                    return step("stops at loss", **place_of_end, kept=views.number(event[1]), to=event[2])
            return step("recovers", **place_of_end)
        case "create":
            return step("creates spare" if node.phase == LEADING else "creates")
        case "confirm" | "lose" | "fail":
            event = {"confirm": "confirms", "lose": "finds closed", "fail": "fails"}[what]
            return step(event, l=views.number(argument))
        case "admit":
            return step("admits", l=views.number(argument))
        case "close":
            assert node.chain is not None
            assert node.chain.closing is not None
            ledger = ledgers.all[node.chain.closing]
            if ledger.is_short and ledger.end != ledger.pushed - 1:
                return step("finds closed", l=views.number(node.chain.closing))
            return step("closes")
        case "end":
            ledger_id, end = argument
            is_known = end is not None and not ledgers.all[ledger_id].is_deleted
            return step("finds end", l=views.number(ledger_id), end=end if is_known else views.NONE)
    return step(_PLAIN[what])
