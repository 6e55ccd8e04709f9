"""States of the model as numbers, and which states count as the same.

Every component and every message gets a number when it is first seen, and 64 random bits; a state is the
numbers of its components with those of the messages under way, and its *print* is their bits, xored. What
never changes again is compared and hashed once.

Fewer states are to be visited where two cannot be told apart by anything that follows. So messages that can
change nothing are dropped; requests whose answers nobody waits for any more are told apart by what they do to
their bookie alone (``_as_former``); and where the configuration says so, two recoverers may be taken for one
another (``_with_roles_in_order``).
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from ledgerlog.model.ledger import LedgerMetadata
from tests.cores import bookies
from tests.model.bookie_node import BookieNode
from tests.model.client_nodes import SENT, OwnerNode, RecovererNode
from tests.model.configuration import Configuration
from tests.model.messages import (
    OWNER,
    REPAIR,
    Add,
    AddAnswer,
    Fence,
    FenceAnswer,
    Get,
    GetAnswer,
    Message,
    Read,
    ReadAnswer,
    Write,
)
from tests.model.repair_node import RepairNode
from tests.model.structure import picture

FORMER = "somebody"
"""In place of the client, in a request whose answer nobody waits for any more."""

_OTHER = {"R0": "R1", "R1": "R0"}

META, BUDGET, END, FIRST_CLIENT = 0, 1, 2, 3
"""Places in a state: the register; what is left of the budgets; the lowest entry that a recoverer found
missing for certain; then the owner, the recoverers, the bookies."""


class Register(NamedTuple):
    metadata: LedgerMetadata
    version: int


class Reaction(NamedTuple):
    """The result of one input to one component."""

    node: int
    out: tuple[int, ...]
    """Messages sent."""
    events: tuple[tuple[Any, ...], ...]


class State(NamedTuple):
    places: tuple[int, ...]
    pool: frozenset[int]
    print: int
    """64 random bits for every component and message, xored: what the visited set keeps."""


Action = tuple[Any, ...]
"""("message" | "silent" | "again", number), ("short", number, through), ("start", place),
("repair", place, task),
("do", place, what, argument, budget)."""


class Numbers:
    """The components and messages of a world, by number."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.bookies = bookies(configuration.bookies)
        assert not (configuration.repair and configuration.crash), "repair is not played with crashes"
        self.clients = (OWNER, *(f"R{i}" for i in range(configuration.recoverers)))
        self.recoverers_end = FIRST_CLIENT + len(self.clients)
        if configuration.repair:
            self.clients += (REPAIR,)
        self.names = ("metadata", "budgets", "end", *self.clients, *self.bookies)
        self.place_of = {name: place for place, name in enumerate(self.names)}
        self.place_of[FORMER] = FIRST_CLIENT  # The owner ignores answers to requests of others.
        self.first_bookie = FIRST_CLIENT + len(self.clients)
        self.messages: list[Message] = []
        self.targets: list[int] = []
        """The places that messages are under way to."""
        self.senders: list[int] = []
        """The places of the clients that messages are from, or answers for."""
        self.nodes: list[Any] = []
        self._random = Random("prints")
        self._prints: list[int] = []
        self._numbers: dict[Any, int] = {}
        self._message_prints: list[int] = []
        self._message_numbers: dict[Message, int] = {}
        self._inert: dict[tuple[int, int, int], bool] = {}
        self._former: dict[tuple[int, int], int] = {}
        self._formers: set[int] = set()
        self._twins: dict[int, int] = {}
        self._message_twins: dict[int, int] = {}
        assert not configuration.twins or (configuration.recoverers == 2 and not configuration.crash)
        self._effects: list[object] = []
        """What a message does to its bookie: equal for those that do the same."""
        self._features: list[int] = []
        self._feature_numbers: dict[Any, int] = {}

    # --- numbers ------------------------------------------------------------------------------

    def _number(self, key: Any, node: Any) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.nodes)
            self.nodes.append(node)
            self._prints.append(self._random.getrandbits(64))
            feature = _feature(node, number)
            self._features.append(self._feature_numbers.setdefault(feature, len(self._feature_numbers)))
        return number

    def _number_node(self, node: OwnerNode | RecovererNode | RepairNode | BookieNode) -> int:
        return self._number(node.key(), node)

    def _number_register(self, register: Register) -> int:
        metadata = register.metadata
        key = ("metadata", picture(metadata), register.version)
        return self._number(key, register)

    def _number_message(self, message: Message) -> int:
        number = self._message_numbers.get(message)
        if number is None:
            number = self._message_numbers[message] = len(self.messages)
            self.messages.append(message)
            self._message_prints.append(self._random.getrandbits(64))
            client = self.place_of[message.client]
            self.senders.append(client)
            self._effects.append(_effect(message, number))
            if isinstance(message, Write):
                self.targets.append(META)
            elif isinstance(message, Add | Fence | Read | Get):
                self.targets.append(self.place_of[message.bookie])
            else:
                self.targets.append(client)
        return number

    def _print(self, places: tuple[int, ...], pool: frozenset[int]) -> int:
        found = 0
        prints = self._prints
        for number in places:
            found ^= prints[number]
        prints = self._message_prints
        for number in pool:
            found ^= prints[number]
        return found

    def react(self, number: int, what: str, argument: Any = None) -> Reaction:
        """The result of one input to one component."""
        raise NotImplementedError

    # --- what is the same ---------------------------------------------------------------------

    def _with_roles_in_order(self, state: State) -> State:
        """Of a state and the one in which two recoverers have each other's roles, always the same one."""
        first, second = FIRST_CLIENT + 1, FIRST_CLIENT + 2
        if self.nodes[state.places[second]] is None:
            return state
        places = list(state.places)
        places[first], places[second] = self._twin(places[second]), self._twin(places[first])
        swapped = tuple(places)
        pool = frozenset([self._message_twin(number) for number in state.pool])
        found = self._print(swapped, pool)
        return State(swapped, pool, found) if found < state.print else state

    def _twin(self, number: int) -> int:
        """Return the number of a recoverer that is equal to this one except for the other one's name."""
        twin = self._twins.get(number)
        if twin is None:
            made = self.nodes[number].copy()
            made.name = _OTHER[made.name]
            twin = self._twins[number] = self._number_node(made)
            self._twins[twin] = number
        return twin

    def _message_twin(self, number: int) -> int:
        twin = self._message_twins.get(number)
        if twin is None:
            message = self.messages[number]
            if message.client in _OTHER:
                message = message._replace(client=_OTHER[message.client])
            twin = self._message_twins[number] = self._number_message(message)
            self._message_twins[twin] = number
        return twin

    def _without_inert(self, places: tuple[int, ...], pool: frozenset[int]) -> frozenset[int]:
        """Without the messages that can change nothing any more, whenever they come, and with those that
        nobody waits for as ``_as_former`` has them."""
        inert = self._inert
        dead = []
        for number in pool:
            key = (number, places[self.senders[number]], places[self.targets[number]])
            is_inert = inert.get(key)
            if is_inert is None:
                is_inert = inert[key] = self._is_inert(*key)
            if is_inert:
                dead.append(number)
        if dead:
            pool = pool.difference(dead)
        if self.configuration.crash:
            return pool
        changed: dict[int, int] = {}
        for number in pool:
            pair = (number, places[self.senders[number]])
            former = self._former.get(pair)
            if former is None:
                former = self._former[pair] = self._as_former(*pair)
            if former != number:
                changed[number] = former
        if not changed and not self._formers.intersection(pool):
            return pool
        kept = pool.difference(changed)
        live = {self._effects[number] for number in kept if number not in self._formers}
        formers = self._formers.intersection(kept).union(changed.values())
        return kept.difference(self._formers).union(
            number for number in formers if self._effects[number] not in live
        )

    def _as_former(self, number: int, client: int) -> int:
        """The number that a message goes by from now on.

        A request whose answer its client will not hear matters only for what it does to its bookie. So all
        fences and recovery reads of one bookie are one and the same by then, and so are recovery adds with
        the same content, whoever sent them; and where another request with the same effect is under way
        whose client still listens, it stands for both."""
        message = self.messages[number]
        if not isinstance(message, Add | Fence | Read) or message.client == FORMER:
            return number
        if self.nodes[client].awaits(message):
            return number
        if isinstance(message, Add):
            former: Message = message._replace(client=FORMER, tenure=-1)
        else:
            former = Fence(FORMER, message.bookie, -1)
        made = self._number_message(former)
        self._formers.add(made)
        return made

    def _is_inert(self, number: int, client_number: int, target_number: int) -> bool:
        message = self.messages[number]
        client = self.nodes[client_number]
        if isinstance(message, AddAnswer | FenceAnswer | ReadAnswer | GetAnswer):
            return not client.listens_to(message)
        if isinstance(message, Write):
            register = self.nodes[target_number]
            return register.version != message.version and (client.is_over or client.write != SENT)
        if self.configuration.crash:
            return False
        try:
            reaction = self.react(target_number, "handle", number)
        except AssertionError:
            return False  # It is met when the message is delivered.
        answers = [self.messages[answer] for answer in reaction.out]
        return reaction.node == target_number and not any(client.listens_to(answer) for answer in answers)


def _effect(message: Message, number: int) -> object:
    """What a message does to its bookie."""
    if isinstance(message, Fence | Read):
        return "fence", message.bookie
    if isinstance(message, Add) and message.is_recovery:
        return message._replace(client=FORMER, tenure=-1)
    return number


def _feature(node: Any, number: int) -> Any:
    """The part of a component that the invariants of the whole look at."""
    if isinstance(node, BookieNode):
        return "bookie", tuple(sorted(node.durable_entries.items())), node.lac, node.lafr, node.in_limbo
    if isinstance(node, OwnerNode):
        return "owner", node.core.lac, node.core.lafr, node.denies
    return "number", number
