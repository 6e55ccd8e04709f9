"""The chain's world: the record of one log, its ledgers, processes that contend for it, and their writes.

The same kind of state as in ``world`` (numbered components, and messages under way), and the same way of
going on: production code runs once for each input that a component meets. Here the only messages are
compare-and-sets of the record; a write whose answer is given up stays under way, and may be applied late, or
never. Reads are one step, since nothing comes of a read but what its process does next, which may be late.

Somebody else truncates the log now and then, which is a write of the record as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, NamedTuple

import attrs

from ledgerlog.log.core.chain import ChainNeed, TakeoverAim, TakeoverNeed
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.quorum import Replication
from tests.model.chain_invariants import check_ack, check_edge, check_log
from tests.model.chain_nodes import (
    ASKED,
    IDLE,
    LEADING,
    LOG,
    REFUSED,
    RESOLVING,
    SPLICED,
    TAKING,
    WITHDRAWN,
    Event,
    Ledger,
    ProcessNode,
    RecordWrite,
    contents_of,
)
from tests.model.invariants import Violation
from tests.model.numbering import Action, State
from tests.model.structure import picture

BUDGETS = (
    *("takeovers", "seals", "records", "rolls", "leaves", "lost", "crash", "fail", "truncate"),
    *("losses", "accepts", "splices", "withdrawals"),
)

RECORD, BUDGET, LEDGERS, FIRST_PROCESS = 0, 1, 2, 3
"""Places in a state."""


@attrs.frozen
class ChainConfiguration:
    """Processes, and a budget for everything that they or nature may do."""

    processes: int = 2
    takeovers: int = 2
    """How often a process begins to take the log over."""
    seals: int = 0
    """How often a process begins to seal it."""
    records: int = 2
    rolls: int = 1
    """How often a leader wants to go on in a new ledger."""
    leaves: int = 0
    """How often a leader leaves in good order."""
    lost: int = 0
    """How often a process gives up waiting for the answer to its write, which may be applied later."""
    crash: int = 0
    """How often a process dies, or is cancelled in the middle of anything, or cannot reach the store."""
    fail: int = 0
    """How often a ledger fails under its writer, which ends it, or its end cannot be found out."""
    truncate: int = 0
    losses: int = 0
    """How often an operator accepts the loss of the end of a ledger."""
    accepts: int = 0
    """How often an operator then accepts the loss for the log."""
    splices: int = 0
    """How often somebody asks for a splice of a ledger with one record."""
    withdrawals: int = 0
    """How often somebody gives such a request up."""

    def __str__(self) -> str:
        told = [f", {name} {getattr(self, name)}" for name in BUDGETS if getattr(self, name)]
        return f"chain, {self.processes} processes{''.join(told)}"


class Stored(NamedTuple):
    record: LogMetadata
    version: int


class Ledgers(NamedTuple):
    all: tuple[Ledger, ...]
    """By id, in the order in which they were made."""


class ChainWorld:
    budgets = BUDGETS
    """The kinds of events that the configuration has budgets for."""

    def __init__(self, configuration: ChainConfiguration) -> None:
        self.configuration: ChainConfiguration = configuration
        self.processes = tuple("ABCDEF"[: configuration.processes])
        self.names = ("record", "budgets", "ledgers", *self.processes)
        self.first_bookie = len(self.names)
        """No place has a bookie: messages go to the record."""
        self.messages: list[RecordWrite] = []
        self.targets: list[int] = []
        self.nodes: list[Any] = []
        self._random = Random("prints")
        self._prints: list[int] = []
        self._numbers: dict[Any, int] = {}
        self._message_prints: list[int] = []
        self._message_numbers: dict[object, int] = {}
        self._reactions: dict[Any, tuple[int, tuple[int, ...], tuple[Event, ...]]] = {}
        self._checked: dict[tuple[int, int], list[Violation]] = {}

    # --- numbers and states -------------------------------------------------------------------

    def _number(self, key: Any, node: Any) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.nodes)
            self.nodes.append(node)
            self._prints.append(self._random.getrandbits(64))
        return number

    def _number_process(self, node: ProcessNode) -> int:
        return self._number(node.key(), node)

    def _number_stored(self, stored: Stored) -> int:
        return self._number(("record", picture(stored.record), stored.version), stored)

    def _number_ledgers(self, ledgers: tuple[Ledger, ...]) -> int:
        return self._number(("ledgers", ledgers), Ledgers(ledgers))

    def _number_message(self, write: RecordWrite) -> int:
        key = write.key()
        number = self._message_numbers.get(key)
        if number is None:
            number = self._message_numbers[key] = len(self.messages)
            self.messages.append(write)
            self.targets.append(RECORD)
            self._message_prints.append(self._random.getrandbits(64))
        return number

    def initial(self) -> State:
        record = LogMetadata.create(
            name=LOG, incarnation=1, created_ms=0, token=b"made", replication=Replication(1, 1, 1)
        )
        budget = tuple(getattr(self.configuration, name) for name in self.budgets)
        places = (
            self._number_stored(Stored(record, 0)),
            self._number(("budget", budget), budget),
            self._number_ledgers(()),
            *(self._number_process(ProcessNode(name)) for name in self.processes),
        )
        return self._state(places, frozenset())

    def _state(self, places: tuple[int, ...], pool: frozenset[int]) -> State:
        found = 0
        for number in places:
            found ^= self._prints[number]
        for number in pool:
            found ^= self._message_prints[number]
        return State(places, pool, found)

    def progress(self, state: State) -> tuple[bool, int]:
        """Whether one leader followed another, and how many records are acknowledged."""
        stored: Stored = self.nodes[state.places[RECORD]]
        ledgers: Ledgers = self.nodes[state.places[LEDGERS]]
        return stored.record.epoch > 1, sum(ledger.acked for ledger in ledgers.all if not ledger.request)

    # --- what may happen next -----------------------------------------------------------------

    def actions(self, state: State) -> Iterator[Action]:
        places, pool, _ = state
        budget = dict(zip(self.budgets, self.nodes[places[BUDGET]], strict=True))
        stored: Stored = self.nodes[places[RECORD]]
        ledgers: Ledgers = self.nodes[places[LEDGERS]]
        for number in pool:
            yield ("message", number)
        if budget["truncate"] and (stored.record.segments or stored.record.epoch):
            yield ("do", RECORD, "truncate", None, BUDGETS.index("truncate"))
        if budget["losses"]:
            for segment in stored.record.open_segments:
                ledger = ledgers.all[segment.ledger_id]
                for end in range(-1, ledger.pushed if ledger.end is None else -1):
                    yield ("do", RECORD, "lose", (segment.ledger_id, end), BUDGETS.index("losses"))
        if budget["splices"] and stored.record.epoch:
            yield ("do", RECORD, "ask", None, BUDGETS.index("splices"))
        for ledger_id, ledger in enumerate(ledgers.all):
            if ledger.request == ASKED and budget["withdrawals"]:
                yield ("do", RECORD, "withdraw", ledger_id, BUDGETS.index("withdrawals"))
            if ledger.request == ASKED and not stored.record.open_segments and not stored.record.sealed:
                yield ("do", RECORD, "splice", ledger_id, None)
        for place in range(FIRST_PROCESS, FIRST_PROCESS + len(self.processes)):
            node: ProcessNode = self.nodes[places[place]]
            for what, argument, name in self._wanted(node, stored, ledgers.all):
                if name is None:
                    yield ("do", place, what, argument, None)
                elif budget[name]:
                    yield ("do", place, what, argument, self.budgets.index(name))

    def _wanted(
        self, node: ProcessNode, stored: Stored, ledgers: tuple[Ledger, ...]
    ) -> Iterator[tuple[str, Any, str | None]]:
        """The actions of a process, each with the budget that it takes from."""
        if node.phase == IDLE:
            yield "take", TakeoverAim.LEAD, "takeovers"
            yield "take", TakeoverAim.SEAL, "seals"
            yield "take", TakeoverAim.RECOVER, "accepts"
            return
        yield "crash", None, "crash"
        if node.is_waiting:
            yield "give_up_waiting", None, "lost"
        if node.phase == TAKING:
            yield from self._wanted_by_takeover(node, ledgers)
        elif node.phase == LEADING:
            yield from self._wanted_by_leader(node, stored, ledgers)
        elif node.phase == RESOLVING:
            ledger_id = node.to_end[0]
            yield from (("end", (ledger_id, end), None) for end in ledgers[ledger_id].ends)
            yield "end", (ledger_id, None), "fail"

    def _wanted_by_takeover(
        self, node: ProcessNode, ledgers: tuple[Ledger, ...]
    ) -> Iterator[tuple[str, Any, str | None]]:
        core = node.takeover
        assert core is not None
        yield "cancel", None, "crash"
        match core.need:
            case TakeoverNeed.READ | TakeoverNeed.SETTLE:
                yield "read", None, None
            case TakeoverNeed.RECOVER:
                ledger = ledgers[core.recovering]
                yield from (("recover", end, None) for end in ledger.ends)
            case TakeoverNeed.CREATE:
                yield "create", None, None
            case TakeoverNeed.WRITE:
                yield "refuse", None, "crash"

    def _wanted_by_leader(
        self, node: ProcessNode, stored: Stored, ledgers: tuple[Ledger, ...]
    ) -> Iterator[tuple[str, Any, str | None]]:
        chain = node.chain
        assert chain is not None
        yield "leave", None, "crash"
        is_finishing = chain._finishing
        if not is_finishing:
            if not chain.is_holding:
                yield "append", None, "records"
            yield "finish", None, "leaves"
            if not chain._roll_wanted:
                yield "roll", None, "rolls"
        for ledger_id in (chain.draining, chain.current):
            if ledger_id is None:
                continue
            ledger = ledgers[ledger_id]
            if ledger.may_confirm:
                yield "confirm", ledger_id, None
            if ledger.is_closed:
                yield "lose", ledger_id, None
            else:
                yield "fail", ledger_id, "fail"
        asked = next((number for number, each in enumerate(ledgers) if each.request == ASKED), None)
        if asked is not None and not chain._is_asked and chain._splice is None and not is_finishing:
            yield "ask", None, None
        match chain.need:
            case ChainNeed.ADMIT:
                yield "admit", asked, None
            case ChainNeed.SPARE:
                yield "create", None, None
            case ChainNeed.CLOSE:
                yield "close", None, None
        # The watch of the record has it reread, except where a write that can be made would find out.
        is_writing = chain.need is ChainNeed.WRITE
        if chain.need is ChainNeed.SETTLE or (not is_writing and stored.version != chain.version):
            yield "read", None, None

    # --- one step -----------------------------------------------------------------------------

    def step(self, state: State, action: Action) -> State:
        """The state after an action. Raises Violation."""
        try:
            return self._step(state, action)
        except Violation:
            raise
        except AssertionError as cause:
            raise Violation("Assertion", str(cause) or repr(cause)) from cause

    def _step(self, state: State, action: Action) -> State:
        places = list(state.places)
        pool = set(state.pool)
        self._play(places, pool, action)
        pool = {number for number in pool if not self._is_inert(places, number)}
        self._check(places)
        return self._state(tuple(places), frozenset(pool))

    def _play(self, places: list[int], pool: set[int], action: Action) -> None:
        if action[0] == "message":
            self._deliver(places, pool, action[1])
        else:
            _, place, what, argument, needs = action
            if needs is not None:
                self._spend(places, needs)
            if place == RECORD and what == "truncate":
                self._truncate(places)
            elif place == RECORD and what == "ask":
                ledgers: Ledgers = self.nodes[places[LEDGERS]]
                staged = Ledger(pushed=1, confirmed=1, end=0, request=ASKED)
                places[LEDGERS] = self._number_ledgers((*ledgers.all, staged))
            elif place == RECORD and what == "withdraw":
                self._change_ledger(places, argument, request=WITHDRAWN)
            elif place == RECORD and what == "splice":
                stored: Stored = self.nodes[places[RECORD]]
                token = b"spliced at %d" % stored.version
                self._store(places, stored.record.spliced([(argument, 1, 1)], 0, token), "somebody", argument)
            elif place == RECORD:
                self._change_ledger(places, argument[0], end=argument[1], is_short=True)
            else:
                self._do(places, pool, place, what, argument)

    def _spend(self, places: list[int], which: int) -> None:
        budget = list(self.nodes[places[BUDGET]])
        budget[which] -= 1
        places[BUDGET] = self._number(("budget", tuple(budget)), tuple(budget))

    def _deliver(self, places: list[int], pool: set[int], number: int) -> None:
        """The store sees a write."""
        write = self.messages[number]
        pool.remove(number)
        stored: Stored = self.nodes[places[RECORD]]
        version: int | str = REFUSED
        if stored.version == write.version and self._has_request(places, write.staged):
            version = stored.version + 1
            self._store(places, write.record, write.process, write.staged)
        place = FIRST_PROCESS + self.processes.index(write.process)
        if self._is_awaited(places, write):
            self._react(places, pool, place, "hear", version)

    def _has_request(self, places: list[int], staged: int | None) -> bool:
        return staged is None or self.nodes[places[LEDGERS]].all[staged].request == ASKED

    def _store(self, places: list[int], record: LogMetadata, writer: str, staged: int | None) -> None:
        """Replace the record. The same transaction splices ``staged``, and removes its request."""
        stored: Stored = self.nodes[places[RECORD]]
        ledgers = dict(enumerate(self.nodes[places[LEDGERS]].all))
        self._report(check_edge(stored.record, record, ledgers, writer))
        places[RECORD] = self._number_stored(Stored(record, stored.version + 1))
        index = None if staged is None else record.index_of(staged)
        if staged is not None and index is not None:
            first = record.segments[index].first_offset
            self._change_ledger(places, staged, first=first, acked=1, request=SPLICED)

    def _is_awaited(self, places: list[int], write: RecordWrite) -> bool:
        node: ProcessNode = self.nodes[places[FIRST_PROCESS + self.processes.index(write.process)]]
        return node.is_waiting and node.attempt == write.attempt

    def _is_inert(self, places: list[int], number: int) -> bool:
        write = self.messages[number]
        return self.nodes[places[RECORD]].version != write.version and not self._is_awaited(places, write)

    def _truncate(self, places: list[int]) -> None:
        """Truncate all counted records, and delete the ledgers that left the list."""
        stored: Stored = self.nodes[places[RECORD]]
        end = stored.record.counted_end
        changed, dropped = stored.record.truncated(end, end, b"truncated at %d" % stored.version)
        places[RECORD] = self._number_stored(Stored(changed, stored.version + 1))
        for ledger_id in dropped:
            self._change_ledger(places, ledger_id, is_deleted=True)

    def _change_ledger(self, places: list[int], ledger_id: int, **changes: Any) -> None:
        ledgers = list(self.nodes[places[LEDGERS]].all)
        ledgers[ledger_id] = ledgers[ledger_id]._replace(**changes)
        places[LEDGERS] = self._number_ledgers(tuple(ledgers))

    def _do(self, places: list[int], pool: set[int], place: int, what: str, argument: Any) -> None:
        ledgers: tuple[Ledger, ...] = self.nodes[places[LEDGERS]].all
        node: ProcessNode = self.nodes[places[place]]
        match what:
            case "read":
                argument = places[RECORD]
            case "recover":
                assert node.takeover is not None
                ledger_id = node.takeover.recovering
                ledger = ledgers[ledger_id]
                if ledger.is_deleted:
                    what, argument = "cancel", None  # There is no such ledger: the takeover fails.
                else:
                    self._change_ledger(places, ledger_id, end=argument)
                    argument = (contents_of(ledger, argument), ledger.is_short)
            case "end":
                ledger_id, end = argument
                argument = (ledger_id, end, ledgers[ledger_id].is_short)
                if end is not None and ledgers[ledger_id].is_deleted:
                    argument = (ledger_id, None, False)
                elif end is not None:
                    self._change_ledger(places, ledger_id, end=end)
            case "create":
                argument = len(ledgers)
                places[LEDGERS] = self._number_ledgers((*ledgers, Ledger()))
            case "confirm":
                confirmed = ledgers[argument].confirmed + 1
                self._change_ledger(places, argument, confirmed=confirmed)
                argument = (argument, confirmed - 1)
            case "close":
                assert node.chain is not None
                argument = node.chain.closing
                assert argument is not None
                ledger = ledgers[argument]
                if not ledger.is_closed:
                    ledger = ledger._replace(end=ledger.confirmed - 1)
                    self._change_ledger(places, argument, end=ledger.end)
                if ledger.is_short and ledger.end != ledger.pushed - 1:
                    what = "lose"  # Its writer finds it closed elsewhere.
                elif ledger.end != ledger.pushed - 1:
                    self._report([Violation("NoTruncation", f"ledger {argument} was not drained: {ledger}")])
            case "fail":
                # Too few bookies: its writer closes it at the last entry that is confirmed.
                self._change_ledger(places, argument, end=ledgers[argument].confirmed - 1)
            case "refuse":
                pool -= {number for number in pool if self._is_awaited(places, self.messages[number])}
        self._react(places, pool, place, what, argument)

    def _react(self, places: list[int], pool: set[int], place: int, what: str, argument: Any) -> None:
        key = (places[place], what, argument)
        found = self._reactions.get(key)
        if found is None:
            node: ProcessNode = self.nodes[places[place]].copy()
            self._act(node, what, argument)
            writes = node.pump()
            events, node.events = tuple(node.events), []
            out = tuple(self._number_message(write) for write in writes)
            found = self._reactions[key] = (self._number_process(node), out, events)
        places[place], out, events = found
        pool.update(out)
        for event in events:
            self._on_event(places, event)

    def _act(self, node: ProcessNode, what: str, argument: Any) -> None:
        match what:
            case "read":
                stored: Stored = self.nodes[argument]
                node.read(stored.record, stored.version)
            case "hear":
                node.hear(argument)
            case "give_up_waiting":
                node.hear(None)
            case "recover":
                assert node.takeover is not None
                contents, is_short = argument
                node.takeover.on_recovered(contents, is_short=is_short)
            case "create":
                if node.takeover is not None:
                    node.takeover.on_created(argument)
                else:
                    assert node.chain is not None
                    node.chain.on_spare(argument)
            case "crash":
                node.rest()
            case "cancel":
                node.give_up()
            case "refuse":
                assert node.takeover is not None
                node.takeover.on_not_written()
                node.give_up()
            case "roll":
                assert node.chain is not None
                node.chain.want_roll()
            case "ask":
                assert node.chain is not None
                node.chain.want_splice()
            case "finish":
                assert node.chain is not None
                node.chain.finish()
            case "lose" | "fail":
                node.lose()
            case "confirm" | "end":
                getattr(node, what)(*argument)
            case "take" | "close" | "admit":
                getattr(node, what)(argument)
            case _:
                getattr(node, what)()

    def _on_event(self, places: list[int], event: Event) -> None:
        ledgers: tuple[Ledger, ...] = self.nodes[places[LEDGERS]].all
        if event[0] == "corrupt":
            self._report([Violation("OffsetsDense", event[1])])
        elif event[0] == "named":
            kept = ledgers[event[1]]
            if kept.first is None or kept.end is None or kept.first + kept.end + 1 != event[2]:
                self._report([Violation("LossNamed", f"{event} is said of {kept}")])
        elif event[0] == "delete":
            self._change_ledger(places, event[1], is_deleted=True)
        elif event[0] == "pushed":
            _, ledger_id, offset = event
            ledger = ledgers[ledger_id]
            first = offset if ledger.first is None else ledger.first
            self._change_ledger(places, ledger_id, first=first, pushed=ledger.pushed + 1)
        else:
            what, ledger_id, entry_id, offset, epoch = event
            ledger = ledgers[ledger_id]
            if what == "acked":
                record = self.nodes[places[RECORD]].record
                self._report(check_ack(record, dict(enumerate(ledgers)), ledger_id, entry_id, offset, epoch))
                self._change_ledger(places, ledger_id, acked=max(ledger.acked, entry_id + 1))
            elif ledger.denied is None or entry_id < ledger.denied:
                self._change_ledger(places, ledger_id, denied=entry_id)

    def _check(self, places: list[int]) -> None:
        where = places[RECORD], places[LEDGERS]
        broken = self._checked.get(where)
        if broken is None:
            stored, ledgers = self.nodes[where[0]], self.nodes[where[1]]
            broken = self._checked[where] = list(check_log(stored.record, dict(enumerate(ledgers.all))))
        self._report(broken)

    def _report(self, broken: Iterable[Violation]) -> None:
        for violation in broken:
            raise violation

    # --- words --------------------------------------------------------------------------------

    def describe(self, state: State, action: Action) -> str:
        """Describe an action before it is done."""
        if action[0] == "message":
            write = self.messages[action[1]]
            listed = [segment.ledger_id for segment in write.record.segments]
            told = f"{listed} in epoch {write.record.epoch}{', sealed' if write.record.sealed else ''}"
            return f"the store sees {write.process}'s write of {told} at version {write.version}"
        _, place, what, argument, _ = action
        name = self.names[place]
        if place == RECORD and what == "truncate":
            return "somebody truncates the log"
        if place == RECORD and what in ("ask", "withdraw", "splice"):
            which = len(self.nodes[state.places[LEDGERS]].all) if argument is None else argument
            return f"somebody {what}s{' for a splice of' if what == 'ask' else ''} L{which}"
        if place == RECORD:
            return f"an operator accepts that L{argument[0]} lost what was behind {argument[1]}"
        node: ProcessNode = self.nodes[state.places[place]]
        stored: Stored = self.nodes[state.places[RECORD]]
        made = len(self.nodes[state.places[LEDGERS]].all)
        match what:
            case "take":
                aims = {
                    TakeoverAim.LEAD: "take the log over",
                    TakeoverAim.SEAL: "end the log",
                    TakeoverAim.RECOVER: "recover the log, whatever is lost",
                }
                return f"{name} begins to {aims[argument]}"
            case "read":
                listed = [segment.ledger_id for segment in stored.record.segments]
                return f"{name} reads {listed} in epoch {stored.record.epoch} at version {stored.version}"
            case "recover":
                assert node.takeover is not None
                return f"{name} recovers L{node.takeover.recovering}, it ends at {argument}"
            case "create":
                return f"{name} creates L{made}"
            case "append":
                assert node.chain is not None
                return f"{name} appends to L{node.chain.current}"
            case "confirm":
                return f"L{argument} confirms an entry to {name}"
            case "admit":
                return f"{name} finds {'no request' if argument is None else f'the request for L{argument}'}"
            case "close":
                assert node.chain is not None
                return f"{name} closes L{node.chain.closing}"
            case "end":
                return f"{name} finds that its L{argument[0]} ended at {argument[1]}"
            case "lose":
                return f"{name} finds that its L{argument} is closed"
            case "fail":
                return f"L{argument} fails under {name}"
            case "finish":
                return f"{name} leaves in good order"
            case "give_up_waiting":
                return f"{name} does not wait for the answer to its write any longer"
        return {
            "crash": f"{name} crashes",
            "cancel": f"{name} gives its takeover up",
            "refuse": f"{name} cannot reach the store",
            "leave": f"{name} is cancelled",
            "roll": f"{name} wants to roll",
            "ask": f"{name} sees a request",
        }[what]
