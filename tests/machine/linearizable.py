"""Is a history of registers linearizable? A checker after Wing and Gong, with Lowe's memory.

A history is a list of operations on registers, each with the moments when it began and ended (or None:
it never answered, so it may take effect at any time, or never). It is linearizable if there is a moment
between both for each operation such that, had each happened at its moment, every answer would be as it
was. That is so for the whole exactly if it is so for each register by itself, so each is checked alone.

The search walks the operations in the order of their begins and ends. At the begin of one it tries to
let it happen now; at the end of one that has not happened it goes back to the last choice. What makes it
quick is to remember which set of operations that have happened with which value was seen before: nothing
new comes of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

import attrs

__all__ = ["Operation", "not_linearizable"]

Kind = Literal["get", "set", "cas"]


@attrs.frozen(kw_only=True)
class Operation:
    key: str
    kind: Kind
    begun: float
    ended: float | None
    value: str | None = None
    """What is written; what a get found."""
    old: str | None = None
    """What a cas expects."""
    succeeded: bool | None = None
    """What a cas answered; None where it did not."""

    def happen(self, value: str | None) -> tuple[bool, str | None]:
        """Whether it may happen at this value, and the value after it."""
        match self.kind:
            case "set":
                return True, self.value
            case "get":
                return self.ended is None or self.value == value, value
            case "cas":
                does = value == self.old
                fits = self.ended is None or self.succeeded == does
                return fits, self.value if does else value


class _Node:
    """A begin or an end in the list of what is still to be placed."""

    __slots__ = ("after", "before", "end", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self.end: _Node | None = None
        """Of a begin: its end."""
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


def _is_linearizable(operations: list[Operation]) -> bool:
    moments: list[tuple[float, int, int]] = []
    for index, operation in enumerate(operations):
        moments.append((operation.begun, 0, index))
        moments.append((float("inf") if operation.ended is None else operation.ended, 1, index))
    head = _Node(-1)
    begins: dict[int, _Node] = {}
    last = head
    for _, is_end, index in sorted(moments):
        node = _Node(index)
        if is_end:
            begins[index].end = node
        else:
            begins[index] = node
        last.after, node.before = node, last
        last = node
    value: str | None = None
    happened = 0
    seen: set[tuple[int, str | None]] = set()
    choices: list[tuple[_Node, str | None]] = []
    node_or_none = head.after
    while head.after is not None:
        assert node_or_none is not None
        node = node_or_none
        if node.end is not None:
            fits, after = operations[node.index].happen(value)
            placed = happened | 1 << node.index
            if fits and (placed, after) not in seen:
                seen.add((placed, after))
                choices.append((node, value))
                value, happened = after, placed
                node.end.lift()
                node.lift()
                node_or_none = head.after
            else:
                node_or_none = node.after
            continue
        if operations[node.index].ended is None:
            return True  # All that is left never answered: it need not have happened.
        if not choices:
            return False
        node, value = choices.pop()
        happened &= ~(1 << node.index)
        node.put_back()
        assert node.end is not None
        node.end.put_back()
        node_or_none = node.after
    return True


def not_linearizable(history: Iterable[Operation]) -> list[str]:
    """The keys whose histories are not linearizable. Every key begins without a value."""
    by_key: dict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        by_key[operation.key].append(operation)
    return [key for key, operations in by_key.items() if not _is_linearizable(operations)]
