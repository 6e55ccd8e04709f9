"""The reaction of a component to an input: production code, run once for each such pair.

A component (``client_nodes``, ``bookie_node``, ``repair_node``: production cores in small shells) never
changes once it has a number. ``react`` copies one, lets the production code run on the copy, and gives the
result its number. The same component meets the same input in very many states of the world, so production
code runs once for each such pair and the rest is looking up: what is explored is the product of the
components' own automata.

A ``Reaction`` is the number of the component as it is afterwards, the messages that it sent, and events for
the world: what it acknowledged, what it found missing, and the rules that it broke in doing so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ledgerlog.ledger.core.recovery import Phase
from tests.model import invariants
from tests.model.bookie_node import BookieNode
from tests.model.client_nodes import TO_BE_READ, OwnerNode, RecovererNode, read_stored
from tests.model.configuration import Configuration
from tests.model.invariants import Violation
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
)
from tests.model.numbering import Numbers, Reaction
from tests.model.repair_node import RepairNode


class Reactions(Numbers):
    """The components of one world, numbered, and what each does upon an input."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self._reactions: dict[tuple[Any, ...], Reaction] = {}

    def react(self, number: int, what: str, argument: Any = None) -> Reaction:
        key = (number, what, argument)
        reaction = self._reactions.get(key)
        if reaction is None:
            old = self.nodes[number]
            if isinstance(old, BookieNode):
                reaction = self._bookie_reacts(old, what, argument)
            elif isinstance(old, OwnerNode):
                reaction = self._owner_reacts(old, what, argument)
            elif isinstance(old, RepairNode):
                reaction = self._repair_reacts(old, what, argument)
            else:
                reaction = self._recoverer_reacts(old, what, argument)
            self._reactions[key] = reaction
        return reaction

    def reaction(
        self,
        node: OwnerNode | RecovererNode | RepairNode | BookieNode,
        out: Sequence[Message],
        *events: tuple[Any, ...],
    ) -> Reaction:
        numbers = dict.fromkeys(self._number_message(message) for message in out)
        return Reaction(self._number_node(node), tuple(numbers), events)

    def _bookie_reacts(self, old: BookieNode, what: str, argument: Any) -> Reaction:
        bookie = old.copy()
        request = None
        answers: list[Answer] = []
        if what == "handle":
            message = self.messages[argument]
            assert isinstance(message, Add | Fence | Read | Get)
            request = message
            answers += bookie.handle(message)
            if not self.configuration.crash and bookie.has_unsynced:
                answers += bookie.sync()
        elif what == "sync":
            answers += bookie.sync()
        else:
            getattr(bookie, what)(*(argument or ()))
        broken = invariants.check_bookie(bookie, old, request, answers)
        return self.reaction(bookie, answers, *_broken(broken))

    def _owner_reacts(self, old: OwnerNode, what: str, argument: Any) -> Reaction:
        owner = old.copy()
        core = owner.core
        broken: list[Violation] = []
        if what == "receive":
            message = self.messages[argument]
            assert isinstance(message, AddAnswer)
            owner.receive(message)
        elif what == "stored":
            register = self.nodes[argument]
            read_stored(owner, register.metadata, register.version)
        elif what == "written":
            owner.write = TO_BE_READ
        elif what == "append":
            owner.append()
        elif what == "fail":
            core.on_bookie_failed(owner.ensemble[argument])
        elif what == "connect":
            core.on_bookie_connected(owner.ensemble[argument])
        elif what in ("change", "replace"):
            if what == "replace":
                core.on_bookie_failed(owner.ensemble[argument[0][0]])
            broken += invariants.check_pins(owner, argument, self.configuration.full_pinning)
            owner.change(argument)
        elif what == "close":
            core.close()
        elif what == "abandon":
            core.abandon()
        elif what != "publish":
            owner.give_up()
        out = owner.pump()
        if what == "publish":
            out += owner.publish()
        broken += invariants.check_owner(owner, old)
        events = _broken(broken)
        if what == "receive" and core.failure is not None and old.core.failure is None:
            assert isinstance(message, AddAnswer)
            if message.tenure >= len(old.ensemble):  # It is a replacement.
                events.append(("ended", message.bookie))
        if core.lac > old.core.lac:
            members = tuple(slot.bookie for slot in core.pending.slots if not slot.replacing)
            events.append(("acknowledged", old.core.lac + 1, core.lac, members))
        return self.reaction(owner, out, *events)

    def _repair_reacts(self, old: RepairNode, what: str, argument: Any) -> Reaction:
        repair = old.copy()
        if what == "receive":
            message = self.messages[argument]
            assert isinstance(message, AddAnswer | GetAnswer)
            repair.receive(message)
        elif what == "stored":
            register = self.nodes[argument]
            repair.read_stored(register.metadata, register.version)
        elif what == "written":
            repair.write = TO_BE_READ
        elif what == "lose_target":
            repair.lose_target(argument)
        else:
            repair.fail_read(argument)
        return self.reaction(repair, repair.pump())

    def _recoverer_reacts(self, old: RecovererNode, what: str, argument: Any) -> Reaction:
        recoverer = old.copy()
        core = recoverer.core
        broken: list[Violation] = []
        if what == "receive":
            message = self.messages[argument]
            assert isinstance(message, AddAnswer | FenceAnswer | ReadAnswer)
            recoverer.receive(message)
        elif what == "stored":
            register = self.nodes[argument]
            read_stored(recoverer, register.metadata, register.version)
            if core.phase is Phase.DONE and core.metadata.last_entry != register.metadata.last_entry:
                broken.append(Violation("CloseAgree", f"{recoverer.name} ends at {core.metadata.last_entry}"))
        elif what == "written":
            recoverer.write = TO_BE_READ
        elif what == "fail":
            core.on_bookie_failed(recoverer.ensemble[argument])
        elif what == "connect":
            core.on_bookie_connected(recoverer.ensemble[argument])
        elif what in ("change", "replace"):
            if what == "replace":
                core.on_bookie_failed(recoverer.ensemble[argument[0][0]])
            broken += invariants.check_pins(recoverer, argument, self.configuration.full_pinning)
            recoverer.change(argument)
        elif what == "fail_fence":
            recoverer.fail_fence(argument)
        elif what == "give_up":
            recoverer.give_up()
        else:
            recoverer.fail_read(argument)
        out = recoverer.pump()
        reads = [message for message in out if isinstance(message, Read)]
        broken += invariants.check_recoverer(recoverer, old, reads)
        events = _broken(broken)
        if core.phase in (Phase.READING, Phase.CLOSING) and old.core.phase is Phase.FENCING:
            events.append(("reading", tuple(core.frozen.ensemble[slot] for slot in sorted(core.fenced))))
        is_ended = core.last_recoverable is not None and old.core.last_recoverable is None
        if is_ended and core.lost_from is None:
            assert core.last_recoverable is not None
            events.append(("missing", core.last_recoverable + 1))
        elif is_ended:
            assert core.lost_from is not None
            write_set = [core.frozen.ensemble[slot] for slot in core.replication.write_set(core.lost_from)]
            events.append(("given_up", core.lost_from, recoverer.name, write_set))
        return self.reaction(recoverer, out, *events)


def _broken(violations: Iterable[Violation]) -> list[tuple[Any, ...]]:
    """Violations as events: they are reported whenever the reaction is met."""
    return [("broken", violation) for violation in violations]


def new_token() -> bytes:
    return b"token"
