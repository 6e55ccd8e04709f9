"""The joined world: a log whose ledgers are real ones, on bookies that lose data.

It is the world of the chain (``chain_world``) with the promise of part A.1 taken out. Each ledger of the
log is a *cell*: a whole state of the ledger's world (``world``), with a writer, a recoverer for each
process, and the bookies' part of this ledger. A leader's writer is that of its cell. A takeover, and a
leader that looks for the end of its ledgers, run a recovery in the cell, and go on with what comes of it.
So nothing is assumed of a ledger that its own cores do not do.

What a bookie has of each ledger is in the cell; its disk and its marks are one for all of them. ``wipe``
takes a disk with everything on it, ``forget`` what was not synced of the newest ledger, ``bounce`` nothing,
but the next start cannot know that. After each, the production ``LossMarks`` say which ledgers are fenced
and in limbo. A writer that replaces a bookie knows the fence marks, unless what it knows is old
(``stale``).

**What is one step.** A writer tells its leader at once what it confirmed and that it failed, as they are
one process; a writer or a recoverer whose process has gone on stops at once. In a cell the answer to a
request comes in the same step, or is lost, as in the ledger's world. A loss of data does not change that: a
client that hears early can do nothing that it could not do late. A bookie in limbo copies back all that it
lacks of one ledger, and leaves limbo for it, in one step too (``heal``): the ledger is closed, so what it
copies never changes. A boot ends a repair that is about to name the bookie, as its transaction checks the
bookie's registration.

Some actions are taken at once, before all others (``_is_due``), where nothing can come of a delay.

Cells are numbered like components. A cell and what happens to it come to the same cell wherever it lies in
a log, so the ledger's world steps once for each such pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import attrs

from bookie.core.loss_marks import LossMarks
from ledgerlog.log.core.chain import ChainNeed, TakeoverAim, TakeoverNeed
from ledgerlog.model.ledger import LedgerMetadata
from tests.model import chain_world, words
from tests.model.chain_nodes import LEADING, RESOLVING, TAKING, Ledger, ProcessNode, contents_of
from tests.model.chain_world import FIRST_PROCESS, LEDGERS, ChainConfiguration, ChainWorld, Stored
from tests.model.client_nodes import OwnerNode, RecovererNode
from tests.model.configuration import BUDGETS, Configuration
from tests.model.healing import copies_back
from tests.model.invariants import is_short
from tests.model.messages import OWNER, REPAIR, Write
from tests.model.numbering import FIRST_CLIENT, Action, State
from tests.model.world import World

OF_LEDGERS = {
    "fail": "failures",
    "connect": "reconnects",
    "change": "changes",
    "fence": "fences",
    "read": "reads",
    "lost": "answers",
    "dup": "repeats",
    "give_up": "closes",
    "short": "shorts",
    "publish": "publishes",
    "repair": "repairs",
}
"""The budgets of the ledger's world, and their names here. All cells share them."""

LOSSES = ("disks", "forgets", "bounces")
_VERBS = {"wipe": "disks", "forget": "forgets", "bounce": "bounces"}


@attrs.frozen
class JoinedConfiguration(ChainConfiguration):
    """The chain's budgets, and those of its ledgers; ``fail`` is for an end that a leader cannot find out."""

    shape: tuple[int, int, int] = (2, 2, 2)
    bookies: int = 2
    guaranteed: bool = False
    round_entries: int = 1
    frames_outstanding: int = 8
    frame_entries: int = 1
    disks: int = 0
    """How often a bookie loses everything."""
    forgets: int = 0
    """How often a bookie dies that syncs late, and loses what it has of the newest ledger."""
    bounces: int = 0
    """How often a bookie dies that has lost nothing, but cannot know that."""
    heals: int = 0
    """How often a bookie in limbo copies back what it lacks of a closed ledger."""
    stale: int = 0
    """How often a writer chooses a replacement without knowing of its fence mark."""
    failures: int = 0
    reconnects: int = 0
    changes: int = 0
    fences: int = 0
    reads: int = 0
    answers: int = 0
    repeats: int = 0
    closes: int = 0
    """How often a writer gives up for lack of bookies."""
    shorts: int = 0
    publishes: int = 0
    repairs: int = 0

    def __str__(self) -> str:
        told = [f", {name} {getattr(self, name)}" for name in JoinedWorld.budgets if getattr(self, name)]
        if self.round_entries != 1:
            told.insert(0, f", rounds of {self.round_entries}")
        if self.frame_entries != 1:
            told.insert(0, f", {self.frames_outstanding} frames of {self.frame_entries}")
        shape = "/".join(map(str, self.shape)) + (" guaranteed" if self.guaranteed else "")
        return f"joined, {shape}, {self.bookies} bookies, {self.processes} processes{''.join(told)}"

    def of_ledgers(self) -> Configuration:
        """The configuration of the cells."""
        return Configuration(
            self.shape,
            entries=0,
            bookies=self.bookies,
            guaranteed=self.guaranteed,
            recoverers=self.processes,
            round_entries=self.round_entries,
            frames_outstanding=self.frames_outstanding,
            frame_entries=self.frame_entries,
            **{of_ledger: getattr(self, name) for of_ledger, name in OF_LEDGERS.items()},
        )


class LedgerWorld(World):
    """The ledger's world as that of cells: states are numbered, and budgets are the log's."""

    def __init__(self, configuration: Configuration, *, is_repaired: bool) -> None:
        super().__init__(configuration)
        self.is_repaired = is_repaired
        self.states: list[State] = []
        self._cells: dict[int, int] = {}
        self._offers: dict[int, list[tuple[str | None, Action]]] = {}
        self._after: dict[tuple[int, Action], int] = {}
        self._healed: dict[tuple[int, str], tuple[int, bool]] = {}

    def number(self, state: State) -> int:
        cell = self._cells.get(state.print)
        if cell is None:
            cell = self._cells[state.print] = len(self.states)
            self.states.append(state)
        return cell

    def _spend(self, places: list[int], which: int) -> None:
        pass  # The step was taken from the log's budget already.

    def after(self, cell: int, action: Action) -> int:
        """The cell after an action. Raises Violation."""
        key = cell, action
        found = self._after.get(key)
        if found is None:
            found = self._after[key] = self.number(self.step(self.states[cell], action))
        return found

    def offers(self, cell: int) -> list[tuple[str | None, Action]]:
        """The actions of a cell by itself, each with the budget that it takes from."""
        found = self._offers.get(cell)
        if found is None:
            found = self._offers[cell] = list(self._offered(self.states[cell]))
        return found

    def _offered(self, state: State) -> Iterator[tuple[str | None, Action]]:
        for action in self.actions(state):
            match action:
                case ("start", *_):
                    continue  # By its process alone, like appends.
                case ("do", _, what, argument, needs):
                    if what == "append":
                        continue
                    if what in ("change", "replace") and action[1] == FIRST_CLIENT:
                        unfit = self.node(state, OWNER).core.unfit
                        if any(bookie in unfit for _, bookie in argument):
                            continue
                    yield (None if needs is None else OF_LEDGERS[BUDGETS[needs]]), action
                case ("again", _):
                    yield "repeats", action
                case ("short", *_):
                    yield "shorts", action
                case ("repair", *_):
                    yield "repairs", action
                case _:
                    yield None, action

    # --- what the log asks of a cell ----------------------------------------------------------

    def owner(self, cell: int) -> OwnerNode:
        found = self.node(self.states[cell], OWNER)
        assert isinstance(found, OwnerNode)
        return found

    def recoverer(self, cell: int, process: int) -> RecovererNode | None:
        found: RecovererNode | None = self.node(self.states[cell], self.clients[1 + process])
        return found

    def end_of(self, cell: int) -> LedgerMetadata | None:
        """The metadata, where the ledger is closed."""
        metadata = self.metadata(self.states[cell])
        return metadata if metadata.is_closed else None

    def is_readable(self, cell: int, entry_id: int) -> bool:
        """Whether some bookie that the metadata names gives an entry."""
        state = self.states[cell]
        nodes = [self.node(state, bookie) for bookie in self.metadata(state).bookies_of(entry_id)]
        return any(entry_id in node.durable_entries for node in nodes)

    def booted(self, cell: int, bookie: str, is_lost: bool, marks: LossMarks, ledger_id: int) -> int:
        """The cell after a bookie booted with these marks."""
        place = self.place_of[bookie]
        cell = self.after(cell, ("do", place, "boot_after_loss", (is_lost, marks, ledger_id), None))
        return self._without_repair(cell, bookie)

    def _without_repair(self, cell: int, new: str) -> int:
        """The cell without a repair that is about to name a bookie. The bookie has another registration now,
        which the transaction checks."""
        repair = self.node(self.states[cell], REPAIR) if self.configuration.repair else None
        if repair is None or repair.is_over or new not in repair.core.replacements.values():
            return cell
        state = self.states[cell]
        pool = frozenset(
            number
            for number in state.pool
            if not (isinstance(message := self.messages[number], Write) and message.client == REPAIR)
        )
        state = State(state.places, pool, self._print(state.places, pool))
        return self.number(self.step(state, ("do", self.place_of[REPAIR], "lose_target", new, None)))

    def healed(self, cell: int, bookie: str) -> tuple[int, bool]:
        """Phase two for a bookie in limbo and a closed ledger: it copies back what it lacks.

        Returns:
            The cell after the copies, and whether the bookie has all that it should have.
        """
        key = cell, bookie
        found = self._healed.get(key)
        if found is None:
            found = self._healed[key] = self._heal(cell, bookie)
        return found

    def _heal(self, cell: int, bookie: str) -> tuple[int, bool]:
        state = self.states[cell]
        copies, is_whole = copies_back(self.metadata(state), bookie, partial(self.node, state))
        for copy in copies:
            cell = self.after(cell, ("do", self.place_of[bookie], "copy_back", copy, None))
        return cell, is_whole

    def out_of_limbo(self, cell: int, bookie: str, marks: LossMarks, ledger_id: int) -> int:
        """The cell after marks were cleared."""
        if not self.node(self.states[cell], bookie).in_limbo or marks.denies_nothing(ledger_id):
            return cell
        return self.after(cell, ("do", self.place_of[bookie], "leave_limbo", None, None))


class Cells(NamedTuple):
    all: tuple[int, ...]
    """By ledger: its number in the ledger's world."""


class Marks(NamedTuple):
    all: tuple[LossMarks, ...]
    """By bookie."""


class JoinedWorld(ChainWorld):
    budgets = (*chain_world.BUDGETS, *LOSSES, "heals", "stale", *OF_LEDGERS.values())

    def __init__(self, configuration: JoinedConfiguration) -> None:
        super().__init__(configuration)
        self.configuration: JoinedConfiguration = configuration
        is_repaired = bool(configuration.heals or configuration.repairs)
        self.ledgers = LedgerWorld(configuration.of_ledgers(), is_repaired=is_repaired)
        self._settled: set[tuple[int, ...]] = set()
        self.cells_place = len(self.names)
        self.marks_place = self.cells_place + 1
        self.names += ("ledgers", "bookies")
        self.first_bookie = len(self.names)

    # --- states -------------------------------------------------------------------------------

    def initial(self) -> State:
        places = (
            *super().initial().places,
            self._number(("cells", ()), Cells(())),
            self._number_marks((LossMarks(),) * self.configuration.bookies),
        )
        return self._state(places, frozenset())

    def _number_marks(self, marks: tuple[LossMarks, ...]) -> int:
        return self._number(("marks", marks), Marks(marks))

    def _cell(self, places: Sequence[int], ledger_id: int) -> int:
        cell: int = self.nodes[places[self.cells_place]].all[ledger_id]
        return cell

    def _set_cell(self, places: list[int], ledger_id: int, cell: int) -> None:
        cells = list(self.nodes[places[self.cells_place]].all)
        cells[ledger_id : ledger_id + 1] = [cell]
        self._set_cells(places, tuple(cells))

    def _set_cells(self, places: list[int], cells: tuple[int, ...]) -> None:
        places[self.cells_place] = self._number(("cells", cells), Cells(cells))

    # --- what may happen next -----------------------------------------------------------------

    def actions(self, state: State) -> Iterator[Action]:
        places = state.places
        offered = [action for action in super().actions(state) if self._is_new(places, action)]
        due = next((action for action in offered if self._is_due(places, action)), None)
        if due is not None:
            yield due
            return
        yield from offered
        yield from self._cells_actions(places)

    def _is_new(self, places: Sequence[int], action: Action) -> bool:
        match action:
            case ("do", place, "take", _, _):
                return not self._has_elder_twin(places, place)
            case ("do", place, "recover" | "end", int() as ledger_id, _):
                recoverer = self.ledgers.recoverer(self._cell(places, ledger_id), place - FIRST_PROCESS)
                return recoverer is None or recoverer.is_over
            case ("do", place, "close", _, _):
                core = self.ledgers.owner(self._cell(places, self.nodes[places[place]].chain.closing)).core
                return core.failure is None and (core.is_drained or not core.replication.guaranteed)
        return True

    def _is_due(self, places: Sequence[int], action: Action) -> bool:
        """Whether an action can as well come at once, before all others. A takeover begins when it reads the
        record. A recovery that begins early may write late. What a leader makes ahead, and where it begins to
        close what is drained, depends on nothing."""
        match action:
            case ("do", place, "read", _, _):
                core = self.nodes[places[place]].takeover
                return core is not None and core.need is TakeoverNeed.READ
            case ("do", place, "create", _, _):
                return bool(self.nodes[places[place]].phase == LEADING)
            case ("do", _, "recover" | "end", int(), _) | ("do", _, "close", _, _):
                return True
        return False

    def _cells_actions(self, places: Sequence[int]) -> Iterator[Action]:
        budget = dict(zip(self.budgets, self.nodes[places[chain_world.BUDGET]], strict=True))
        cells: tuple[int, ...] = self.nodes[places[self.cells_place]].all
        marks: tuple[LossMarks, ...] = self.nodes[places[self.marks_place]].all
        for ledger_id, cell in enumerate(cells):
            for name, action in self.ledgers.offers(cell):
                if name is not None and not budget[name]:
                    continue
                if action[0] == "do" and action[2] in ("change", "replace") and action[1] == FIRST_CLIENT:
                    marked = [marks[int(bookie[1:])].refuses_adds(ledger_id) for _, bookie in action[3]]
                    if any(marked):
                        if budget["stale"]:
                            yield "cell", ledger_id, action, (name, "stale")
                        continue
                yield "cell", ledger_id, action, (name,)
            if budget["heals"]:
                for number, its in enumerate(marks):
                    if self._may_heal(cell, ledger_id, number, its):
                        yield (
                            "do",
                            self.marks_place,
                            "heal",
                            (number, ledger_id),
                            self.budgets.index("heals"),
                        )
        if cells:
            for what, name in _VERBS.items():
                if budget[name]:
                    for bookie in range(len(marks)):
                        yield "do", self.marks_place, what, bookie, self.budgets.index(name)

    def _may_heal(self, cell: int, ledger_id: int, bookie: int, marks: LossMarks) -> bool:
        """Whether a bookie is in limbo for a closed ledger, and a look at the ledger would change
        something."""
        if not marks.denies_nothing(ledger_id) or self.ledgers.end_of(cell) is None:
            return False
        after, is_whole = self.ledgers.healed(cell, self.ledgers.bookies[bookie])
        return is_whole or after != cell

    def _has_elder_twin(self, places: Sequence[int], place: int) -> bool:
        """Processes that have done nothing are alike, so the first of them goes first."""
        fresh = [self.nodes[places[one]].is_fresh for one in range(FIRST_PROCESS, place + 1)]
        return fresh[-1] and any(fresh[:-1])

    def _wanted(
        self, node: ProcessNode, stored: Stored, ledgers: tuple[Ledger, ...]
    ) -> Iterator[tuple[str, Any, str | None]]:
        for wanted in super()._wanted(node, stored, ledgers):
            # Cells tell of the ledgers.
            if wanted[0] not in ("recover", "end", "confirm", "lose", "fail"):
                yield wanted
        if node.phase == TAKING and node.takeover is not None and node.takeover.need is TakeoverNeed.RECOVER:
            yield "recover", node.takeover.recovering, None
        elif node.phase == RESOLVING:
            yield "end", node.to_end[0], None
            yield "end", (node.to_end[0], None), "fail"

    # --- one step -----------------------------------------------------------------------------

    def _step(self, state: State, action: Action) -> State:
        found = super()._step(state, action)
        # Otherwise it would hide all that may happen in this state.
        assert found.print != state.print or not self._is_due(state.places, action), f"{action} does nothing"
        return found

    def _play(self, places: list[int], pool: set[int], action: Action) -> None:
        if action[0] == "cell":
            _, ledger_id, inner, names = action
            for name in names:
                if name is not None:
                    self._spend(places, self.budgets.index(name))
            self._go_on_in(places, pool, ledger_id, inner)
        elif action[0] == "do" and action[1] == self.marks_place:
            _, _, what, bookie, needs = action
            self._spend(places, needs)
            if what == "heal":
                self._heal(places, *bookie)
            else:
                self._lose(places, what, bookie)
        else:
            super()._play(places, pool, action)
        self._settle(places, pool)

    def _lose(self, places: list[int], what: str, bookie: int) -> None:
        cells: tuple[int, ...] = self.nodes[places[self.cells_place]].all
        newest = len(cells) - 1
        marks = list(self.nodes[places[self.marks_place]].all)
        marks[bookie] = marks[bookie].after_loss(newest).serving(acknowledges_unsynced=False)
        lost = {"wipe": range(newest + 1), "forget": (newest,), "bounce": ()}[what]
        name = self.ledgers.bookies[bookie]
        made = [
            self.ledgers.booted(cell, name, ledger_id in lost, marks[bookie], ledger_id)
            for ledger_id, cell in enumerate(cells)
        ]
        self._set_cells(places, tuple(made))
        places[self.marks_place] = self._number_marks(tuple(marks))

    def _heal(self, places: list[int], bookie: int, ledger_id: int) -> None:
        name = self.ledgers.bookies[bookie]
        cells = list(self.nodes[places[self.cells_place]].all)
        cells[ledger_id], is_whole = self.ledgers.healed(cells[ledger_id], name)
        if is_whole:
            marks = list(self.nodes[places[self.marks_place]].all)
            marks[bookie] = marks[bookie].cleared([(ledger_id, ledger_id)])
            places[self.marks_place] = self._number_marks(tuple(marks))
            cells = [
                self.ledgers.out_of_limbo(cell, name, marks[bookie], each) for each, cell in enumerate(cells)
            ]
        self._set_cells(places, tuple(cells))

    def _do(self, places: list[int], pool: set[int], place: int, what: str, argument: Any) -> None:
        node: ProcessNode = self.nodes[places[place]]
        process = place - FIRST_PROCESS
        match what:
            case "recover":
                assert node.takeover is not None
                is_accepting = node.takeover._aim is TakeoverAim.RECOVER
                self._recover(places, pool, process, node.takeover.recovering, is_accepting)
            case "end" if isinstance(argument, int):
                self._recover(places, pool, process, argument, False)
            case "end":
                self._react(places, pool, place, "end", (*argument, False))
            case "close":
                assert node.chain is not None
                assert node.chain.closing is not None
                self._go_on_in(places, pool, node.chain.closing, ("do", FIRST_CLIENT, "close", None, None))
            case "append":
                assert node.chain is not None
                super()._do(places, pool, place, what, argument)
                self._go_on_in(places, pool, node.chain.current, ("do", FIRST_CLIENT, "append", None, None))
            case "create":
                made = len(self.nodes[places[LEDGERS]].all)
                self._set_cell(
                    places, made, self.ledgers.number(self.ledgers.initial(self._ensemble_of(made)))
                )
                super()._do(places, pool, place, what, argument)
                self._change_ledger(places, made, maker=node.name)
            case _:
                super()._do(places, pool, place, what, argument)

    def _ensemble_of(self, ledger_id: int) -> tuple[str, ...]:
        """Where a new ledger begins: if there are more bookies than it needs, each begins with the next."""
        names = self.ledgers.bookies
        first = ledger_id % len(names) if len(names) > self.configuration.shape[0] else 0
        return (names[first:] + names[:first])[: self.configuration.shape[0]]

    def _recover(
        self, places: list[int], pool: set[int], process: int, ledger_id: int, is_accepting: bool
    ) -> None:
        """A process begins to recover a ledger."""
        cell = self._cell(places, ledger_id)
        if self.ledgers.end_of(cell) is not None:
            self._deliver_end(places, pool, process, ledger_id)
        else:
            place = FIRST_CLIENT + 1 + process
            self._go_on_in(places, pool, ledger_id, ("start", place, is_accepting))

    def _go_on_in(self, places: list[int], pool: set[int], ledger_id: int, action: Action) -> None:
        """An event in a cell, and then what the log learns of it."""
        before = self._cell(places, ledger_id)
        after = self.ledgers.after(before, action)
        if after == before:
            return
        self._set_cell(places, ledger_id, after)
        for process in range(len(self.processes)):
            was, now = self.ledgers.recoverer(before, process), self.ledgers.recoverer(after, process)
            if now is not None and now.is_over and (was is None or not was.is_over):
                self._learn(places, ledger_id, after)
                if self._is_recovering(places, process, ledger_id):
                    self._deliver_end(places, pool, process, ledger_id)

    def _deliver_end(self, places: list[int], pool: set[int], process: int, ledger_id: int) -> None:
        """A process learns where a ledger ends, or that the end cannot be found."""
        place = FIRST_PROCESS + process
        cell = self._cell(places, ledger_id)
        is_taking = self.nodes[places[place]].phase == TAKING
        ledger: Ledger = self.nodes[places[LEDGERS]].all[ledger_id]
        metadata = self.ledgers.end_of(cell)
        if metadata is None or ledger.is_deleted:
            what: tuple[str, Any] = ("cancel", None) if is_taking else ("end", (ledger_id, None, False))
        else:
            end = metadata.last_entry
            assert end is not None
            if not is_taking:
                what = "end", (ledger_id, end, is_short(metadata))
            elif end >= 0 and not all(self.ledgers.is_readable(cell, entry) for entry in (0, end)):
                what = "cancel", None  # Its contents cannot be looked at.
            else:
                what = "recover", (contents_of(ledger, end), is_short(metadata))
        self._react(places, pool, place, *what)

    def _is_recovering(self, places: list[int], process: int, ledger_id: int) -> bool:
        node: ProcessNode = self.nodes[places[FIRST_PROCESS + process]]
        if node.phase == TAKING:
            core = node.takeover
            return core is not None and core.need is TakeoverNeed.RECOVER and core.recovering == ledger_id
        return node.phase == RESOLVING and node.to_end[0] == ledger_id

    def _learn(self, places: list[int], ledger_id: int, cell: int) -> None:
        """The ghosts of a ledger follow its cell."""
        ledger: Ledger = self.nodes[places[LEDGERS]].all[ledger_id]
        metadata = self.ledgers.end_of(cell)
        if metadata is not None and ledger.end is None:
            self._change_ledger(places, ledger_id, end=metadata.last_entry, is_short=is_short(metadata))

    # --- what follows at once -----------------------------------------------------------------

    def _settle(self, places: list[int], pool: set[int]) -> None:
        """Leaders follow their writers. Writers and recoverers stop if their process has gone on without
        them."""
        while (where := tuple(places[LEDGERS:])) not in self._settled:
            before = list(places)
            for ledger_id in range(len(self.nodes[places[self.cells_place]].all)):
                self._settle_owner(places, pool, ledger_id)
                for process in range(len(self.processes)):
                    recoverer = self.ledgers.recoverer(self._cell(places, ledger_id), process)
                    is_at_work = recoverer is not None and not recoverer.is_over
                    if is_at_work and not self._is_recovering(places, process, ledger_id):
                        place = FIRST_CLIENT + 1 + process
                        self._go_on_in(places, pool, ledger_id, ("do", place, "give_up", None, None))
            if before == places:
                self._settled.add(where)

    def _settle_owner(self, places: list[int], pool: set[int], ledger_id: int) -> None:
        cell = self._cell(places, ledger_id)
        self._learn(places, ledger_id, cell)
        ledger: Ledger = self.nodes[places[LEDGERS]].all[ledger_id]
        owner = self.ledgers.owner(cell)
        core = owner.core
        place = FIRST_PROCESS + self.processes.index(ledger.maker)
        node: ProcessNode = self.nodes[places[place]]
        chain = node.chain
        is_listed = (
            node.phase == LEADING and chain is not None and ledger_id in (chain.draining, chain.current)
        )
        if core.lac + 1 > ledger.confirmed:
            self._change_ledger(places, ledger_id, confirmed=core.lac + 1)
            if is_listed:
                self._react(places, pool, place, "confirm", (ledger_id, core.lac))
        elif is_listed and core.failure is not None:
            assert chain is not None
            is_closing = chain.need is ChainNeed.CLOSE and chain.closing == ledger_id
            if is_closing and core.is_closed and ledger.end == ledger.pushed - 1:
                self._react(places, pool, place, "close", ledger_id)
            elif core.is_over or not is_closing:
                self._react(places, pool, place, "lose", None)
        elif core.failure is None and not is_listed:
            is_kept = node.takeover is not None and node.takeover.ledger_id == ledger_id
            if not is_kept and (chain is None or chain.spare != ledger_id):
                self._go_on_in(places, pool, ledger_id, ("do", FIRST_CLIENT, "abandon", None, None))

    # --- words --------------------------------------------------------------------------------

    def describe(self, state: State, action: Action) -> str:
        if action[0] == "cell":
            cell = self._cell(state.places, action[1])
            told = words.describe(self.ledgers, self.ledgers.states[cell], action[2])
            return f"L{action[1]}: {told}"
        if action[0] == "message":
            return super().describe(state, action)
        _, place, what, argument, _ = action
        if place == self.marks_place and what == "heal":
            return f"{self.ledgers.bookies[argument[0]]} copies back what it lacks of L{argument[1]}"
        if place == self.marks_place:
            did = {
                "wipe": "loses its disk",
                "forget": "dies and loses what it had of the newest ledger",
                "bounce": "dies, and cannot know that it lost nothing",
            }
            return f"{self.ledgers.bookies[argument]} {did[what]}"
        name = self.names[place]
        if what == "recover":
            return f"{name} begins to recover L{argument}"
        if what == "end" and isinstance(argument, int):
            return f"{name} begins to look for the end of its L{argument}"
        if what == "end":
            return f"{name} cannot find out where its L{argument[0]} ended"
        return super().describe(state, action)
