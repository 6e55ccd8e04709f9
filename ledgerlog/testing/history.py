"""Check that one order of the calls to your service explains the answers that its clients got.

    history = History()  # inside the scenario, because a failing run is repeated

    async def customer(client):
        call = history.begin(("take", seat, name))
        answer = await ask(client, seat, name)  # if this raises, the call may have had its effect, or not
        call.answered(answer)

    history.check(take, initial=None, key=lambda command: command[1])

A history is *linearizable* (Herlihy and Wing) if the calls could have happened one after the other, each at
one moment between its begin and its answer, with these answers. ``apply`` says what a command does if nothing
else happens at the same time. If your service is a state machine on one log, and answers reads through the
log or as a confirmed leader, its histories are linearizable. A history with a stale read, a lost write or a
command that counts twice is not linearizable.

The search is the one of Wing and Gong, with Lowe's memory of visited states. It walks over the begins and
answers in the order in which they came. At the begin of a call, the search lets the call happen now if the
call's answer fits. At the answer of a call that has not happened, the search goes back to its last choice. It
never tries the same set of calls with the same state twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import attrs

from ledgerlog.errors import InvalidArgument

__all__ = ["ServiceCall", "History", "NotLinearizable"]

Command = TypeVar("Command")
State = TypeVar("State", bound=Hashable)

_LINES_MAX = 40
"""How many calls a failure lists."""


class NotLinearizable(AssertionError):
    """No order of the calls explains their answers. The message lists the calls around the first misfit."""


@attrs.define(eq=False)
class ServiceCall(Generic[Command]):
    """One call of a client. ``History.begin`` returns it."""

    command: Command
    """The command that the client sent."""
    begun: int
    """The place of the begin in the order of all begins and answers."""
    ended: int | None = None
    """The place of the answer in that order. None: no answer came, so the call may happen later, or never."""
    answer: Any = None
    """The answer, if there is one."""
    _history: History[Command] = attrs.field(kw_only=True, repr=False)

    def answered(self, answer: object) -> None:
        """Report the answer that the client got.

        Args:
            answer: The answer. ``check`` compares it with the answer that ``apply`` returns.

        Raises:
            InvalidArgument: The call has an answer, or was refused.
        """
        self._check_open()
        self.ended, self.answer = self._history._tick(), answer

    def refused(self) -> None:
        """Report that the call certainly had no effect and never will. The history then forgets the call.

        Report nothing if the outcome is unknown, for example after a time-out.

        Raises:
            InvalidArgument: The call has an answer, or was refused.
        """
        self._check_open()
        del self._history.calls[self]

    def _check_open(self) -> None:
        if self.ended is not None or self not in self._history.calls:
            raise InvalidArgument(f"the call {self.command!r} has ended already")

    def __str__(self) -> str:
        if self.ended is None:
            return f"{self.begun:>6} ..        {self.command!r}: no answer"
        return f"{self.begun:>6} .. {self.ended:<6} {self.command!r}: {self.answer!r}"


class History(Generic[Command]):
    """The calls of all clients of a service, in the order in which they began and ended.

    All clients must be in this process, or be recorded by it. The commands, answers and states are your own
    values.
    """

    def __init__(self) -> None:
        self.calls: dict[ServiceCall[Command], None] = {}
        """The calls that may have had an effect, in the order in which they began."""
        self._clock = 0

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def begin(self, command: Command) -> ServiceCall[Command]:
        """Record that a client makes a call. Do this before you send it.

        Args:
            command: The command that the client sends.

        Returns:
            The call. Report its answer with ``answered`` or ``refused``.
        """
        call = ServiceCall(command, self._tick(), history=self)
        self.calls[call] = None
        return call

    def check(
        self,
        apply: Callable[[State, Command], tuple[State, object]],
        *,
        initial: State,
        key: Callable[[Command], Hashable] | None = None,
    ) -> None:
        """Check that the history is linearizable.

            def apply(value, command):  # a register
                match command:
                    case ("set", new):
                        return new, None
                    case ("get",):
                        return value, value

            history.check(apply, initial=None)

        The check can take a time that grows exponentially with the number of overlapping calls. So use
        ``key`` if parts of your state do not depend on each other.

        Args:
            apply: Returns the state after a command, and its answer. It must not change the old state. States
                must be hashable.
            initial: The state at the beginning, for each key.
            key: Commands with different keys do not depend on each other, so each key is checked alone. None:
                all commands may depend on each other.

        Raises:
            NotLinearizable: No order of the calls explains the answers.
        """
        parts: dict[Hashable, list[ServiceCall[Command]]] = defaultdict(list)
        for call in self.calls:
            parts[None if key is None else key(call.command)].append(call)
        for name, calls in parts.items():
            stuck = _OrderSearch(calls, apply, initial).run()
            if stuck is not None:
                of_key = "" if key is None else f" with the key {name!r}"
                lines = "\n".join(f"  {call}" for call in _around(calls, stuck.call))
                raise NotLinearizable(
                    f"no order of the {len(calls)} calls{of_key} explains their answers. The longest order "
                    f"has {stuck.explained} of them and leads to the state {stuck.state!r}. After it, "
                    f"{stuck.call.command!r} cannot get the answer {stuck.call.answer!r}. The calls, as "
                    f"they began:\n{lines}"
                )


@attrs.frozen
class _Stuck:
    """The point at which the search got furthest."""

    call: ServiceCall[Any]
    """The call whose answer fits at no moment between its begin and its end."""
    explained: int
    state: object


def _around(calls: list[ServiceCall[Any]], stuck: ServiceCall[Any]) -> list[ServiceCall[Any]]:
    """Return the calls up to the one that does not fit, and a few after it."""
    last = min(len(calls), calls.index(stuck) + _LINES_MAX // 4)
    return calls[max(0, last - _LINES_MAX) : last]


class _Node:
    """The begin or the end of a call, in the list of the calls that have no place in the order yet."""

    __slots__ = ("after", "before", "end", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self.end: _Node | None = None
        """If this node is the begin of a call: the node of the call's end."""
        self.before: _Node = self
        self.after: _Node | None = None

    def lift(self) -> None:
        self.before.after = self.after
        if self.after is not None:
            self.after.before = self.before

    def put_back(self) -> None:
        self.before.after = self
        if self.after is not None:
            self.after.before = self


class _OrderSearch:
    """The search for an order of calls that do not depend on others."""

    def __init__(
        self, calls: list[ServiceCall[Any]], apply: Callable[[Any, Any], tuple[Any, object]], initial: Any
    ):
        self._calls = calls
        self._apply = apply
        self._state = initial
        self._happened = 0
        """The calls that have a place in the order, as bits."""
        self._choices: list[tuple[_Node, Any]] = []
        """The calls in their order, with the state before each."""
        self._best: _Stuck | None = None
        self._head = self._laid_out()

    def _laid_out(self) -> _Node:
        moments: list[tuple[float, int]] = []
        for index, call in enumerate(self._calls):
            moments.append((call.begun, index))
            moments.append((float("inf") if call.ended is None else call.ended, index))
        last = head = _Node(-1)
        begins: dict[int, _Node] = {}
        for _, index in sorted(moments):
            node = _Node(index)
            if index in begins:
                begins[index].end = node
            else:
                begins[index] = node
            last.after, node.before = node, last
            last = node
        return head

    def run(self) -> _Stuck | None:
        """Return None if there is an order. Otherwise return the point at which the search got furthest."""
        seen: set[tuple[int, Any]] = set()
        node = self._head.after
        while node is not None:
            call = self._calls[node.index]
            if node.end is not None:
                state, answer = self._apply(self._state, call.command)
                reached = (self._happened | 1 << node.index, state)
                # A call that has no answer and changes nothing need not happen.
                fits = state != self._state if call.ended is None else answer == call.answer
                if fits and reached not in seen:
                    seen.add(reached)
                    self._let_happen(node, state)
                    node = self._head.after
                else:
                    node = node.after
            elif call.ended is None:
                return None  # The remaining calls have no answers, so none of them need have happened.
            else:
                self._note(call)
                if not self._choices:
                    return self._best
                node = self._take_back()
        return None

    def _let_happen(self, begin: _Node, state: Any) -> None:
        self._choices.append((begin, self._state))
        self._state = state
        self._happened |= 1 << begin.index
        assert begin.end is not None
        begin.end.lift()
        begin.lift()

    def _take_back(self) -> _Node | None:
        begin, self._state = self._choices.pop()
        self._happened &= ~(1 << begin.index)
        begin.put_back()
        assert begin.end is not None
        begin.end.put_back()
        return begin.after

    def _note(self, call: ServiceCall[Any]) -> None:
        if self._best is None or len(self._choices) > self._best.explained:
            self._best = _Stuck(call, len(self._choices), self._state)
