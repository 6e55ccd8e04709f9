"""Items that fall due in the order of their numbers, the lowest number first.

Thousands of items may wait, and most of them are removed before they fall due. So removal does not search the
heap. It empties the item's place, and the empty place stays in the heap until it comes to the front or until
most places are empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["DueItems", "Waiter"]

_FEW = 64

T = TypeVar("T")


class Waiter(Protocol):
    """An item with a method to call when the item falls due."""

    def wake(self) -> None:
        """Act, because the item is due now. This must not raise."""
        ...


class DueItems(Generic[T]):
    """Items, each with the number at which it falls due: a time, for example."""

    __slots__ = ("_heap", "_numbers", "_places")

    def __init__(self) -> None:
        self._heap: list[list[Any]] = []
        """The places. Each is a list: when the item falls due, a unique number, and the item (None if the
        item was removed)."""
        self._places: dict[T, list[Any]] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._places)

    def add(self, item: T, due: float) -> None:
        """Add an item that is not here yet. Items with the same number keep their order."""
        assert item not in self._places
        place = self._places[item] = [due, next(self._numbers), item]
        heappush(self._heap, place)

    def remove(self, item: T) -> None:
        """Remove an item. If it is not here, do nothing."""
        place = self._places.pop(item, None)
        if place is None:
            return
        place[2] = None
        if len(self._heap) > _FEW + 2 * len(self._places):
            self._heap = [place for place in self._heap if place[2] is not None]
            heapify(self._heap)

    def take(self, now: float) -> T | None:
        """Remove the item that falls due first and return it; None if none is due at ``now``."""
        if self.next_due() > now:
            return None
        item: T = heappop(self._heap)[2]
        del self._places[item]
        return item

    def take_all(self, now: float) -> Iterator[T]:
        """Remove all items that are due at ``now``, one after the other, and return them."""
        while (item := self.take(now)) is not None:
            yield item

    def next_due(self) -> float:
        """Return when the first item falls due; infinity if there is none."""
        heap = self._heap
        while heap and heap[0][2] is None:
            heappop(heap)
        return heap[0][0] if heap else float("inf")
