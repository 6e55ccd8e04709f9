"""Actions of the model in the words of part E of the protocol."""

from __future__ import annotations

from tests.model.messages import (
    AddAnswer,
    FenceAnswer,
    GetAnswer,
    Message,
    ReadAnswer,
    describe_handling,
    describe_receipt,
)
from tests.model.numbering import Action, State
from tests.model.world import World


def describe(world: World, state: State, action: Action) -> str:
    """Describe an action before it is done."""
    if action[0] in ("message", "silent", "again"):
        return _delivery(world, state, action[0], action[1])
    if action[0] == "short":
        request, (answer,) = world.messages[action[1]], world.answers(state, action[1])
        assert isinstance(answer, ReadAnswer)
        return (
            f"{describe_handling(request, ())}; {describe_receipt(answer.cut_after(action[2]))} and no more"
        )
    if action[0] == "start":
        return f"{world.names[action[1]]} starts"
    if action[0] == "repair":
        index, old, new = action[2]
        return f"{world.names[action[1]]} begins to replace {old} by {new} in fragment {index}"
    _, place, what, argument, _ = action
    name = world.names[place]
    node = world.nodes[state.places[place]]
    match what:
        case "append":
            return f"{name} sends e{node.core.last_add_pushed + 1} (LAC {node.core.lac})"
        case "fail":
            return f"{name}: {node.ensemble[argument]} failed"
        case "connect":
            return f"{name}: {node.ensemble[argument]} is back"
        case "change" | "replace":
            new = dict(argument)
            told = ",".join(new.get(slot, bookie) for slot, bookie in enumerate(node.ensemble))
            return f"{name} starts change to ({told})"
        case "stored":
            stored = world.metadata(state)
            end = f" last={stored.last_entry}" if stored.is_closed else ""
            return f"{name} reads the metadata: {stored.state.value}{end}"
        case "fail_fence":
            return f"{name}: the fence of {node.core.frozen.ensemble[argument]} times out"
        case "fail_read" if isinstance(argument, int):
            return f"{name}: its read of {node.asks[argument].bookie} times out"
        case "fail_read":
            return f"{name}: the read of e{argument.first} on {argument.bookie} times out"
        case "sync":
            return f"{name} syncs its journal"
        case "crash":
            return f"{name} crashes and reboots from what it had synced"
        case "publish":
            return f"{name} tells LAC {node.core.lac} in frames without entries"
        case "close":
            return f"{name} fixes close value {node.core.lac}"
    return f"{name} gives up"


def _delivery(world: World, state: State, kind: str, number: int) -> str:
    message = world.messages[number]
    if isinstance(message, AddAnswer | FenceAnswer | ReadAnswer | GetAnswer):
        return describe_receipt(message)
    answers: tuple[Message, ...] = ()
    if world.targets[number] >= world.first_bookie:
        answers = world.answers(state, number)
    told = describe_handling(message, answers)
    if kind == "again":
        return f"once more: {told}"
    if kind == "silent":
        return f"{told} (answer lost)"
    heard = [describe_receipt(answer) for answer in answers] if world.is_answered_at_once(number) else []
    return "; ".join([told, *heard])
