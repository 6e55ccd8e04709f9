"""Ranges of ids: pairs of the first and the last id, both included. For example, (3, 5) is 3, 4 and 5."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["IdRange", "joined"]

IdRange = tuple[int, int]


def joined(ranges: Iterable[IdRange]) -> list[IdRange]:
    """Return the same ids as ranges that ascend, and that neither overlap nor touch.

    >>> joined([(6, 9), (0, 2), (3, 4)])
    [(0, 4), (6, 9)]
    """
    found: list[IdRange] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return found
