"""The model's world: a metadata register, bookies, an owner, recoverers, and the messages between them.

A state is a tuple of numbers, one for each component, and the set of messages under way. Components are
objects (``client_nodes``, ``bookie_node``: production cores in small shells) that never change once they
have a number; what comes of an input to one of them is told by ``reactions``.

``actions`` lists everything that may happen next, and ``step`` does it. Deliveries are free; what nature or a
user does is bounded by the configuration's budgets (see ``Configuration``). After every step the invariants
are checked (``invariants``), and so are the production code's own assertions: ``Violation``.

**Answers.** A message may be late without limit. Where that adds nothing, a request and its answer are one
step, and "silent" is the same step with the answer lost, or still to come (see ``is_answered_at_once``).
Which states are taken for one is said in ``numbering``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ledgerlog.ledger.core.pending import PendingAdds
from ledgerlog.ledger.core.recovery import LedgerRecovery
from ledgerlog.ledger.core.writer import WriterCore
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.ledger import Fragment, LedgerMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.repair.core.repair import FragmentRepair
from tests.cores import new_metadata
from tests.model import invariants
from tests.model.bookie_node import BookieNode
from tests.model.client_nodes import SENT, TO_BE_READ, OwnerNode, RecovererNode, choices
from tests.model.configuration import BUDGETS, Configuration
from tests.model.invariants import NEVER, Violation
from tests.model.messages import (
    OWNER,
    Add,
    Message,
    Read,
    ReadAnswer,
    Write,
)
from tests.model.numbering import (
    BUDGET,
    END,
    FIRST_CLIENT,
    META,
    Action,
    Register,
    State,
)
from tests.model.reactions import Reactions, new_token
from tests.model.repair_node import RepairNode, Task, tasks
from tests.model.structure import clone

_DUP, _CRASH, _REPAIR = BUDGETS.index("dup"), BUDGETS.index("crash"), BUDGETS.index("repair")
_SHORT = BUDGETS.index("short")


class World(Reactions):
    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.replication = Replication(*configuration.shape, guaranteed=configuration.guaranteed)
        self._deliveries: dict[tuple[int, int, int], tuple[int, int, tuple[int, ...], Any]] = {}
        self._heard: dict[tuple[int, int, int], bool] = {}
        self._wants: dict[int, list[tuple[int | None, Action]]] = {}
        self._checked: dict[tuple[int, ...], list[Violation]] = {}
        # An acknowledgement may be late to some effect only where something is sent again, or to others.
        self._are_acks_at_once = not (configuration.change or configuration.connect)
        self._is_replaced_at_once = configuration.fail == 1 and not configuration.connect
        self.is_repaired = bool(configuration.repair)
        """Whether bookies get copies from others, which may tell them the end of the ledger (rule 23)."""

    # --- states -------------------------------------------------------------------------------

    def initial(self, ensemble: tuple[str, ...] | None = None) -> State:
        configuration = self.configuration
        metadata = new_metadata(
            configuration.shape,
            guaranteed=configuration.guaranteed,
            fragments=None if ensemble is None else (Fragment(0, ensemble),),
        )
        core = WriterCore(
            metadata,
            1,
            new_token=new_token,
            full_pinning=configuration.full_pinning,
            frames_outstanding=configuration.frames_outstanding,
            frame_entries=configuration.frame_entries,
        )
        owner = OwnerNode(core, configuration.entries)
        sent = owner.pump()
        for _ in range(configuration.sent):
            owner.append()
            sent += owner.pump()
        budget = tuple(getattr(configuration, name) for name in BUDGETS)
        places = (
            self._number_register(Register(metadata, 1)),
            self._number(("budget", budget), budget),
            self._number(("end", NEVER), NEVER),
            self._number_node(owner),
            *(self._number(("nobody", name), None) for name in self.clients[1:]),
            *(self._number_node(BookieNode(name)) for name in self.bookies),
        )
        pool = frozenset(self._number_message(message) for message in sent)
        return State(places, pool, self._print(places, pool))

    def node(self, state: State, name: str) -> Any:
        """Return the component of that name."""
        return self.nodes[state.places[self.place_of[name]]]

    def metadata(self, state: State) -> LedgerMetadata:
        found: LedgerMetadata = self.nodes[state.places[META]].metadata
        return found

    def progress(self, state: State) -> tuple[bool, int]:
        """Whether the ledger is closed, and how many entries are acknowledged."""
        return self.metadata(state).is_closed, self.node(state, OWNER).core.lac + 1

    def is_settled(self, state: State) -> bool:
        """Whether nothing can break any more: the ledger is closed and no client is at work. Copies only
        become more; nobody acknowledges or writes."""
        if not self.nodes[state.places[META]].metadata.is_closed:
            return False
        if self.nodes[state.places[BUDGET]][_REPAIR]:
            return False
        for number in state.places[FIRST_CLIENT : self.first_bookie]:
            client = self.nodes[number]
            if client is not None and not client.is_over:
                return False
        return True

    # --- what may happen next -----------------------------------------------------------------

    def actions(self, state: State) -> Iterator[Action]:
        """Return everything that may happen next, without doing it."""
        places, pool, _ = state
        if self.is_settled(state):
            return
        budget = self.nodes[places[BUDGET]]
        for number in pool:
            if not self.is_answered_at_once(number):
                yield ("message", number)
            else:
                is_heard = self._has_listener(number, places)
                is_kept = self._is_repeatable(number)
                if is_heard or not is_kept:
                    yield ("message", number)
                if self._has_effect(number, places) if is_kept else is_heard:
                    yield ("silent", number)
            if budget[_DUP] and self.targets[number] >= self.first_bookie:
                yield ("again", number)
            if budget[_SHORT]:
                yield from self._short_answers(number, places)
        for place in range(FIRST_CLIENT, self.first_bookie):
            if place >= self.recoverers_end and budget[_REPAIR]:
                repair = self.nodes[places[place]]
                if repair is None or repair.is_over:
                    for task in tasks(self.nodes[places[META]].metadata, self.bookies):
                        yield ("repair", place, task)
            if place >= self.recoverers_end and self.nodes[places[place]] is None:
                continue
            if self.nodes[places[place]] is None:
                # Recoverers are alike, so they begin in order.
                is_next = place == FIRST_CLIENT + 1 or self.nodes[places[place - 1]] is not None
                if is_next and not self.nodes[places[META]].metadata.is_closed:
                    yield ("start", place)
                continue
            for needs, action in self._wanted(places[place], place):
                if needs is None or budget[needs]:
                    yield action
        if self.configuration.crash:
            for place in range(self.first_bookie, len(places)):
                if self.nodes[places[place]].has_unsynced:
                    yield ("do", place, "sync", None, None)
                    if budget[_CRASH]:
                        yield ("do", place, "crash", None, _CRASH)

    def is_answered_at_once(self, number: int) -> bool:
        """Whether the answer to a request is taken by its client in the same step, or else lost.

        That loses no behaviour. A fence, a recovery read and a recovery add may be handled any number of
        times: nothing comes of the second time, and the answer stands. So an answer that is late is a
        request that is handled silently, stays under way, and is handled once more when the answer comes;
        and a recoverer that hears of a read early can do nothing that it could not do late, for what it
        sends may still be late. An ordinary add may be refused the second time, but the same holds for it
        as long as no ensemble changes and nothing is sent again: an entry that carries a lower LAC was
        appended earlier."""
        if self.targets[number] < self.first_bookie or self.configuration.crash:
            return False
        return self._are_acks_at_once or self._is_repeatable(number)

    def _is_repeatable(self, number: int) -> bool:
        """Whether a request that was handled silently stays under way."""
        message = self.messages[number]
        return not isinstance(message, Add) or message.is_recovery

    def answers(self, state: State, number: int) -> tuple[Message, ...]:
        """What the target of a request would answer now."""
        return self._answers(number, state.places[self.targets[number]])

    def _answers(self, number: int, bookie: int) -> tuple[Message, ...]:
        try:
            reaction = self.react(bookie, "handle", number)
        except AssertionError:
            return ()  # It is met when the message is delivered.
        return tuple(self.messages[answer] for answer in reaction.out)

    def _has_effect(self, number: int, places: tuple[int, ...]) -> bool:
        """Whether a request changes its bookie."""
        bookie = places[self.targets[number]]
        try:
            return self.react(bookie, "handle", number).node != bookie
        except AssertionError:
            return True  # It is met when the message is delivered.

    def _has_listener(self, number: int, places: tuple[int, ...]) -> bool:
        """Whether a client would take the answer to a request that is handled now."""
        key = (number, places[self.senders[number]], places[self.targets[number]])
        heard = self._heard.get(key)
        if heard is None:
            client = self.nodes[key[1]]
            answers = self._answers(number, key[2])
            heard = self._heard[key] = any(client.listens_to(answer) for answer in answers)
        return heard

    def _short_answers(self, number: int, places: tuple[int, ...]) -> Iterator[Action]:
        """A bookie answers a read with fewer entries than it was asked for, or with none of them."""
        request = self.messages[number]
        if isinstance(request, Read) and self._has_listener(number, places):
            ask = request.ask
            yield from (("short", number, through) for through in range(ask.first - 1, ask.last))

    def _wanted(self, number: int, place: int) -> list[tuple[int | None, Action]]:
        """The actions of a client by itself, each with the budget that it takes from."""
        wants = self._wants.get(number)
        if wants is None:
            client = self.nodes[number]
            if place == FIRST_CLIENT:
                found = self._owner_wants(client)
            elif place < self.recoverers_end:
                found = self._recoverer_wants(client)
            else:
                found = [("read", "fail_read", index) for index in range(len(client.asks))]
            if not client.is_over and client.write == TO_BE_READ:
                found.append((None, "stored", None))
            elif not client.is_over and client.write == SENT:
                found.append(("lost", "stored", None))
            wants = []
            for name, what, argument in found:
                needs = None if name is None else BUDGETS.index(name)
                wants.append((needs, ("do", place, what, argument, needs)))
            self._wants[number] = wants
        return wants

    def _owner_wants(self, owner: OwnerNode) -> list[tuple[str | None, str, Any]]:
        core = owner.core
        found: list[tuple[str | None, str, Any]] = []
        if core.failure is not None:
            return found
        if owner.entries_left:
            found.append((None, "append", None))
        if self.configuration.publish and core.lac > NO_ENTRY:
            found.append(("publish", "publish", None))
        found += self._changes(core, core.pending)
        if self.configuration.close and (not self.replication.guaranteed or core.is_drained):
            found.append((None, "close", None))
        found.append(("give_up", "give_up", None))
        return found

    def _recoverer_wants(self, recoverer: RecovererNode) -> list[tuple[str | None, str, Any]]:
        core = recoverer.core
        found: list[tuple[str | None, str, Any]] = []
        if recoverer.is_over:
            return found
        found += [("fence", "fail_fence", slot) for slot in sorted(recoverer.fences)]
        found += [("read", "fail_read", ask) for ask in sorted(recoverer.asks, key=repr)]
        pending = recoverer.pending
        # While nothing is being written back, a failure can as well come later.
        if pending is not None and not pending.is_drained:
            found += self._changes(core, pending)
        return found

    def _changes(
        self, core: WriterCore | LedgerRecovery, pending: PendingAdds
    ) -> list[tuple[str | None, str, Any]]:
        """Bookies that fail, come back, are replaced.

        Where at most one fails and none comes back, failing and being replaced are one step: a bookie that
        was found to have failed earlier is one that would not have answered meanwhile."""
        found: list[tuple[str | None, str, Any]] = []
        if self._is_replaced_at_once:
            for slot in pending.slots:
                # Once it has failed, the core decides whether it may be replaced.
                failed = clone(core)
                failed.on_bookie_failed(slot.bookie)
                for replacements in choices(failed.replaceable(), pending.ensemble, self.bookies):
                    found.append(("change", "replace", replacements))
            return found
        for slot in pending.slots:
            what = "connect" if slot.failed else "fail"
            found.append((what, what, slot.index))
        for replacements in choices(core.replaceable(), pending.ensemble, self.bookies):
            found.append(("change", "change", replacements))
        return found

    # --- one step -----------------------------------------------------------------------------

    def step(self, state: State, action: Action) -> State:
        """The state after an action. Raises Violation where an invariant does not hold in it, or where the
        production code's own assertions do not."""
        try:
            return self._step(state, action)
        except Violation:
            raise
        except AssertionError as cause:
            raise Violation("Assertion", str(cause) or repr(cause)) from cause

    def _step(self, state: State, action: Action) -> State:
        places = list(state.places)
        pool = state.pool
        kind = action[0]
        out: tuple[int, ...] = ()
        events: Any = ()
        if kind == "do":
            _, place, what, argument, needs = action
            if needs is not None:
                self._spend(places, needs)
            if what == "stored":
                argument = places[META]
            places[place], out, events = self.react(places[place], what, argument)
        elif kind == "start":
            out = self._start(places, *action[1:])
        elif kind == "short":
            self._spend(places, _SHORT)
            pool = pool - {action[1]}
            out, events = self._answer_short(places, *action[1:])
        elif kind == "repair":
            self._spend(places, _REPAIR)
            out = self._start_repair(places, *action[1:])
        else:
            number = action[1]
            if kind == "again":
                self._spend(places, _DUP)
            elif kind == "message" or not self._is_repeatable(number):
                pool = pool - {number}
            target = self.targets[number]
            if target == META:
                out, events = self._write(places, number)
            elif target < self.first_bookie:
                places[target], out, events = self.react(places[target], "receive", number)
            elif kind == "message" and self.is_answered_at_once(number):
                client = self.senders[number]
                places[target], places[client], out, events = self._deliver(
                    number, places[target], places[client]
                )
            else:
                places[target], out, events = self.react(places[target], "handle", number)
                if kind == "silent":
                    out = ()
        for event in events:
            self._on_event(places, event)
        if out:
            pool = pool.union(out)
        made = tuple(places)
        pool = self._without_inert(made, pool)
        self._check(made)
        state = State(made, pool, self._print(made, pool))
        return self._with_roles_in_order(state) if self.configuration.twins else state

    def _deliver(
        self, number: int, bookie: int, client: int
    ) -> tuple[int, int, tuple[int, ...], tuple[tuple[Any, ...], ...]]:
        """A bookie handles a request and the client takes the answer: both, what is sent, and the events."""
        key = (number, bookie, client)
        found = self._deliveries.get(key)
        if found is None:
            reaction = self.react(bookie, "handle", number)
            out: tuple[int, ...] = ()
            events = reaction.events
            for answer in reaction.out:
                if self.nodes[client].listens_to(self.messages[answer]):
                    client, out, heard = self.react(client, "receive", answer)
                    events += heard
            found = self._deliveries[key] = (reaction.node, client, out, events)
        return found

    def _spend(self, places: list[int], which: int) -> None:
        budget = list(self.nodes[places[BUDGET]])
        budget[which] -= 1
        places[BUDGET] = self._number(("budget", tuple(budget)), tuple(budget))

    def _answer_short(
        self, places: list[int], number: int, through: int
    ) -> tuple[tuple[int, ...], tuple[tuple[Any, ...], ...]]:
        bookie, client = self.targets[number], self.senders[number]
        places[bookie], answers, events = self.react(places[bookie], "handle", number)
        (answer,) = (self.messages[one] for one in answers)
        assert isinstance(answer, ReadAnswer)
        short = self._number_message(answer.cut_after(through))
        places[client], out, heard = self.react(places[client], "receive", short)
        return out, events + heard

    def _start(self, places: list[int], place: int, accept_loss: bool = False) -> tuple[int, ...]:
        register = self.nodes[places[META]]
        core = LedgerRecovery(
            register.metadata,
            register.version,
            new_token=new_token,
            round_entries=self.configuration.round_entries,
            accept_loss=accept_loss,
        )
        recoverer = RecovererNode(self.names[place], core)
        recoverer.is_again = self.nodes[places[place]] is not None
        reaction = self.reaction(recoverer, recoverer.pump())
        places[place] = self._number_node(recoverer)
        return reaction.out

    def _start_repair(self, places: list[int], place: int, task: Task) -> tuple[int, ...]:
        register = self.nodes[places[META]]
        index, old, new = task
        core = FragmentRepair(register.metadata, register.version, index, {old: new}, new_token=new_token)
        repair = RepairNode(core)
        reaction = self.reaction(repair, repair.pump())
        places[place] = reaction.node
        return reaction.out

    def _write(self, places: list[int], number: int) -> tuple[tuple[int, ...], tuple[tuple[Any, ...], ...]]:
        message = self.messages[number]
        assert isinstance(message, Write)
        old = self.nodes[places[META]]
        if old.version == message.version:
            new = Register(message.intent.metadata, old.version + 1)
            self._report(invariants.check_edge(old.metadata, new.metadata, message.client))
            places[META] = self._number_register(new)
        client = self.senders[number]
        node = self.nodes[places[client]]
        intent = node.core.intent
        is_current = intent is not None and Write(message.client, intent.version, intent) == message
        if node.write == SENT and is_current:
            places[client] = self.react(places[client], "written").node
            if isinstance(node, RecovererNode) and not self.configuration.lost:
                # The owner reads the stored value at once. A later read would show the same, or that the
                # ledger has ended.
                reaction = self.react(places[client], "stored", places[META])
                places[client] = reaction.node
                return reaction.out, reaction.events
        return (), ()

    def _on_event(self, places: list[int], event: tuple[Any, ...]) -> None:
        if event[0] == "missing":
            end = min(event[1], self.nodes[places[END]])
            places[END] = self._number(("end", end), end)
        elif event[0] == "reading":
            for bookie in event[1]:
                if not self.nodes[places[self.place_of[bookie]]].is_fenced_durably:
                    self._report([Violation("FenceCoverage", f"{bookie} is counted and is not fenced")])
        elif event[0] == "broken":
            self._report([event[1]])
        elif event[0] == "given_up":
            self._check_loss(places, *event[1:])
        elif event[0] == "ended":
            recoverers = [self.nodes[number] for number in places[FIRST_CLIENT + 1 : self.recoverers_end]]
            if recoverers.count(None) == len(recoverers):
                self._report(invariants.check_ending(self.nodes[places[self.place_of[event[1]]]]))
        else:
            _, first, last, members = event
            nodes = {name: self.nodes[places[self.place_of[name]]] for name in members}
            if self.is_repaired and (end := self.nodes[places[META]].metadata.last_entry) is not None:
                # The answer was late. Repair may have moved copies since. The metadata says where they are.
                first = max(first, end + 1)
            for entry_id in range(first, last + 1):
                self._report(invariants.check_acknowledged(self.replication, entry_id, members, nodes))

    def _check_loss(self, places: list[int], entry_id: int, client: str, write_set: list[str]) -> None:
        """An accepted loss will end the ledger before an entry. Another recovery may have read that entry
        before it was lost, and bring it back too late. So only the first recovery is checked."""
        nodes = [self.nodes[number] for number in places[FIRST_CLIENT + 1 : self.recoverers_end]]
        if all(node is None or (node.name == client and not node.is_again) for node in nodes):
            bookies = [self.nodes[places[self.place_of[name]]] for name in write_set]
            self._report(invariants.check_loss(entry_id, bookies))

    def _check(self, places: tuple[int, ...]) -> None:
        features = self._features
        where = (
            places[META],
            places[END],
            features[places[FIRST_CLIENT]],
            *[features[number] for number in places[self.first_bookie :]],
        )
        broken = self._checked.get(where)
        if broken is None:
            broken = self._checked[where] = list(
                invariants.check_whole(
                    self.nodes[places[META]].metadata,
                    self.nodes[places[FIRST_CLIENT]],
                    {name: self.nodes[places[self.place_of[name]]] for name in self.bookies},
                    self.nodes[places[END]],
                    is_repaired=self.is_repaired,
                )
            )
        if broken:
            self._report(broken)

    def _report(self, broken: Iterable[Violation]) -> None:
        """What to do about invariants that do not hold: stop at the first."""
        for violation in broken:
            raise violation
