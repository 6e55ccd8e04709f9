"""A stage that plays the schedules of part E of the protocol, in their own words.

Every sentence of a schedule has one of the forms below. The stage finds the matching actions of the model and
takes them. If production code keeps the rules, some sentence becomes impossible: a bookie refuses, a closing
write is not wanted, or a read is not sent. The play then stops there and says why.

If an invariant does not hold, the stage notes it with the number of the step, and the play goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import attrs

from ledgerlog.ledger.core.recovery import Phase
from ledgerlog.wire.frame import Status
from tests.model.client_nodes import SENT, TO_BE_READ
from tests.model.configuration import BUDGETS, Configuration
from tests.model.invariants import Violation
from tests.model.messages import Add, AddAnswer, Fence, FenceAnswer, Message, Read, ReadAnswer, Write
from tests.model.numbering import FORMER, Action
from tests.model.world import World


class Impossible(Exception):
    """The sentence does not happen. The text says what happens instead."""


class _LenientWorld(World):
    def __init__(self, configuration: Configuration, note: Callable[[Violation], None]) -> None:
        super().__init__(configuration)
        self._note = note

    def _report(self, broken: Iterable[Violation]) -> None:
        for violation in broken:
            self._note(violation)


@attrs.define
class Outcome:
    violations: dict[str, int] = attrs.field(factory=dict)
    """Names of the broken invariants, with the first step after which each did not hold."""
    stopped_at: int | None = None
    """The step that did not happen."""
    why: str = ""


class Stage:
    def __init__(self, configuration: Configuration) -> None:
        plenty = {name: 9 for name in BUDGETS if name not in ("crash", "repair")}
        self.world = _LenientWorld(attrs.evolve(configuration, **plenty), self._note)
        self.state = self.world.initial()
        self.outcome = Outcome()
        self._step = 0

    def _note(self, violation: Violation) -> None:
        self.outcome.violations.setdefault(violation.name, self._step)

    # --- playing ------------------------------------------------------------------------------

    def play(self, schedule: str) -> Outcome:
        """Take the steps "(1) ... (2) ..." one after the other, until one is impossible."""
        steps = re.split(r"\s*\(\d+\)\s+", " " + " ".join(schedule.split()))[1:]
        for number, step in enumerate(steps, 1):
            self._step = number
            try:
                for sentence in step.rstrip(".").split("; "):
                    self._take(sentence.strip())
            except Impossible as because:
                self.outcome.stopped_at, self.outcome.why = number, str(because)
                break
        return self.outcome

    def _take(self, sentence: str) -> None:
        for pattern, verb in _FORMS:
            match = re.fullmatch(pattern, sentence)
            if match:
                getattr(self, verb)(*match.groups())
                return
        raise ValueError(f"no form for {sentence!r}")

    def finish(self) -> None:
        """Deliver every message under way, and let clients read the store, until nothing is left to do."""
        while True:
            for action in sorted(self.world.actions(self.state), key=self._lateness):
                if self._is_due(action):
                    self._do(action)
                    break
            else:
                return

    def _lateness(self, action: Action) -> tuple[int, int]:
        """Order the due actions: first messages that nobody waits for, then messages in the order of sending,
        then actions of clients and bookies.
        """
        return 0 if action[0] == "silent" else 1 if action[0] == "message" else 2, action[1]

    def _is_due(self, action: Action) -> bool:
        if action[0] == "silent":
            return self.world.messages[action[1]].client == FORMER
        if action[0] == "do":
            return action[4] is None and action[2] in ("stored", "sync")
        return bool(action[0] == "message")

    def _do(self, action: Action) -> None:
        self.state = self.world.step(self.state, action)

    def node(self, name: str):
        return self.world.node(self.state, name)

    @property
    def metadata(self) -> str:
        """The register, in the notation of part E."""
        metadata = self.world.metadata(self.state)
        return f"{metadata.state.value} last={'-' if metadata.last_entry is None else metadata.last_entry}"

    # --- finding messages ---------------------------------------------------------------------

    def _find(self, kind: type[Message], **fields: object) -> int | None:
        for number in sorted(self.state.pool):
            message = self.world.messages[number]
            if isinstance(message, kind) and all(getattr(message, k) == v for k, v in fields.items()):
                return number
        return None

    def _request(self, kind: type[Message], **fields: object) -> int:
        number = self._find(kind, **fields)
        if number is None:
            told = ", ".join(f"{name} {value}" for name, value in fields.items())
            raise Impossible(f"no {kind.__name__} ({told}) is under way")
        return number

    def _handle(self, number: int) -> None:
        """A bookie handles a request. If the answer waits for a sync of the journal, it is synced."""
        self._do(("message", number))
        bookie = self.world.messages[number].bookie
        if self.world.configuration.crash and self.node(bookie).waiting:
            self._do(("do", self.world.place_of[bookie], "sync", None, None))

    def _receive(self, kind: type[Message], **fields: object) -> None:
        number = self._find(kind, **fields)
        if number is not None:
            self._do(("message", number))

    def _act(self, name: str, what: str, argument: object = None) -> None:
        place = self.world.place_of[name]
        for action in self.world.actions(self.state):
            if action[:3] == ("do", place, what) and (argument is None or action[3] == argument):
                self._do(action)
                return
        raise Impossible(f"{name} does not want to {what} {argument or ''}".strip())

    # --- the forms ----------------------------------------------------------------------------

    def owner_sends(self, entry: str, lac: str) -> None:
        self._act("W", "append")
        owner = self.node("W")
        assert owner.core.last_add_pushed == int(entry)
        if owner.core.lac != int(lac):
            raise Impossible(f"the LAC is {owner.core.lac}")

    def stores(self, bookie: str, entry: str, client: str) -> None:
        number = self._find(Add, client=client, bookie=bookie, first=int(entry))
        if number is not None and self.world.is_answered_at_once(number):
            self._handle(number)
            return
        self.stores_unheard(bookie, entry, client)
        self._receive(AddAnswer, client=client, bookie=bookie, first=int(entry))

    def stores_unheard(self, bookie: str, entry: str, client: str) -> None:
        number = self._request(Add, client=client, bookie=bookie, first=int(entry))
        answers = self.world.answers(self.state, number)
        if self.world.is_answered_at_once(number):
            self._do(("silent", number))
            return
        self._handle(number)
        if any(isinstance(answer, AddAnswer) and answer.status is Status.FENCED for answer in answers):
            self._receive(AddAnswer, client=client, bookie=bookie, first=int(entry))
            raise Impossible(f"{bookie} refuses e{entry}: it is fenced")

    def announces(self, name: str) -> None:
        place = self.world.place_of[name]
        self._do(("start", place))
        if self.node(name).write == SENT:
            self._write_through(name)

    def fences(self, name: str, bookie: str) -> None:
        self._handle(self._request(Fence, client=name, bookie=bookie))
        self._receive(FenceAnswer, client=name, bookie=bookie)

    def sends_read(self, name: str, entry: str) -> None:
        if not any(
            isinstance(self.world.messages[number], Read)
            and self.world.messages[number].client == name
            and self.world.messages[number].ask.first == int(entry)
            for number in self.state.pool
        ):
            core = self.node(name).core
            raise Impossible(
                f"{name} reads no e{entry} (it is {core.phase.value}, started after e{core.start})"
            )

    def answers_read(self, bookie: str, name: str, entry: str, word: str) -> None:
        asked = [
            number
            for number in sorted(self.state.pool)
            if isinstance(message := self.world.messages[number], Read)
            and (message.client, message.bookie, message.ask.first) == (name, bookie, int(entry))
        ]
        if not asked:
            raise Impossible(f"{name} does not ask {bookie} for e{entry}")
        self._handle(asked[0])
        if self.world.configuration.crash:
            self._receive(ReadAnswer, client=name, bookie=bookie)
            return
        # The client took the answer in the same step. The bookie's entries show what the answer said.
        held = self.node(bookie).durable_entries
        said = "OK" if int(entry) in held else "Unknown" if self.node(bookie).in_limbo else "NoSuchEntry"
        if said != word:
            raise Impossible(f"{bookie} answers {said}")

    def read_times_out(self, entry: str, bookie: str) -> None:
        for ask in self.node("R0").asks:
            if (ask.first, ask.bookie) == (int(entry), bookie):
                self._act("R0", "fail_read", ask)
                return
        raise Impossible(f"e{entry} is not asked of {bookie}")

    def starts_change(self, name: str, failed: str, ensemble: str) -> None:
        node = self.node(name)
        before, after = node.ensemble, tuple(ensemble.split(","))
        for bookie in failed.split(","):
            self._act(name, "fail", before.index(bookie))
        wanted = tuple((slot, new) for slot, new in enumerate(after) if new != before[slot])
        try:
            self._act(name, "change", wanted)
        except Impossible:
            replaceable = self.node(name).core.replaceable()
            raise Impossible(f"{name} may replace slots {replaceable} alone") from None
        if name != "W" and self.node(name).write == SENT:
            self._write_through(name)

    def change_succeeds(self) -> None:
        self._write_until("W", lambda: self.node("W").core.intent is None)
        node = self.node("W")
        if node.core.failure is not None:
            raise Impossible(f"W fails: {type(node.core.failure).__name__}")

    def fixes_close_value(self, value: str) -> None:
        self._act("W", "close")
        if self.node("W").core.close_at != int(value):
            raise Impossible(f"W closes at {self.node('W').core.close_at}")

    def owner_closes(self, last: str) -> None:
        self._write_until("W", lambda: self.node("W").is_over)
        self._require_closed("W", last)

    def recoverer_closes(self, name: str, last: str) -> None:
        core = self.node(name).core
        if core.phase in (Phase.FAILED, Phase.DONE):
            raise Impossible(f"{name} is {core.phase.value}")
        if core.intent is None:
            pending = core.pending
            why = (
                f"e{pending.settled + 1} is not settled" if not pending.is_drained else "it is still reading"
            )
            raise Impossible(f"{name} wants no closing write: {why}")
        self._write_until(name, lambda: self.node(name).is_over)
        self._require_closed(name, last)

    def _require_closed(self, name: str, last: str) -> None:
        if self.metadata != f"CLOSED last={last}":
            raise Impossible(f"{name} finds the ledger {self.metadata}")

    def _write_until(self, name: str, is_done: Callable[[], bool]) -> None:
        for _ in range(3):
            if is_done():
                return
            self._write_through(name)

    def _write_through(self, name: str) -> None:
        """The client's write reaches the store, and the client reads the stored metadata."""
        if self.node(name).write == SENT:
            self._do(("message", self._request(Write, client=name)))
        if self.node(name).write == TO_BE_READ:
            self._act(name, "stored")

    def crashes(self, bookie: str) -> None:
        self._do(("do", self.world.place_of[bookie], "crash", None, None))

    def loses_everything(self, bookie: str) -> None:
        self._do(("do", self.world.place_of[bookie], "lose_everything", None, None))


_B, _C, _E = r"(b\d)", r"(W|R\d)", r"e(\d+)"
_FORMS = (
    (rf"W sends {_E} \(LAC (-?\d+)\)", "owner_sends"),
    (rf"{_B} stores {_E}, acks {_C}", "stores"),
    (rf"{_B} stores {_E} for {_C} \(reply lost\)", "stores_unheard"),
    (r"(R\d): metadata -> IN_RECOVERY, fence requests out", "announces"),
    (rf"(R\d) fences {_B}", "fences"),
    (rf"(R\d) sends recovery read {_E}", "sends_read"),
    (rf"{_B} answers (R\d) read {_E}: (\w+)", "answers_read"),
    (rf"read {_E} on {_B} times out", "read_times_out"),
    (r"(W): ([b\d,]+) failed, starts change to \(([b\d,]+)\)", "starts_change"),
    (r"(R\d): ([b\d,]+) failed, private ensemble \(([b\d,]+)\)", "starts_change"),
    (r"W: ensemble CAS succeeds", "change_succeeds"),
    (r"W fixes close value (-?\d+)", "fixes_close_value"),
    (r"W: closing CAS succeeds, last=(-?\d+)", "owner_closes"),
    (r"(R\d) closes, last=(-?\d+)", "recoverer_closes"),
    (rf"{_B} crashes and reboots", "crashes"),
    (rf"{_B} crashes, loses everything, reboots", "loses_everything"),
)
