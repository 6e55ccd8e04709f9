"""Ranges of ids: pairs of the first and the last id, both included. For example, (3, 5) is 3, 4 and 5."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["IdRange", "joined", "ranges_of", "without"]

IdRange = tuple[int, int]


def joined(ranges: Iterable[IdRange]) -> list[IdRange]:
    """Return the same ids as ascending ranges that neither overlap nor touch.

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


def ranges_of(ids: Iterable[int]) -> list[IdRange]:
    """Return ascending ids as ascending ranges that do not touch.

    >>> ranges_of([0, 1, 2, 6])
    [(0, 2), (6, 6)]
    """
    found: list[IdRange] = []
    for an_id in ids:
        if found and an_id == found[-1][1] + 1:
            found[-1] = found[-1][0], an_id
        else:
            found.append((an_id, an_id))
    return found


def without(ranges: Iterable[IdRange], taken: Iterable[IdRange]) -> list[IdRange]:
    """Return the parts of ``ranges`` that are in none of ``taken``. Both must ascend.

    >>> without([(0, 9)], [(2, 3), (9, 12)])
    [(0, 1), (4, 8)]
    """
    found: list[IdRange] = []
    rest = iter(taken)
    away = next(rest, None)
    for low, high in ranges:
        while away is not None and away[1] < low:
            away = next(rest, None)
        while away is not None and away[0] <= high:
            if low < away[0]:
                found.append((low, away[0] - 1))
            low = away[1] + 1
            if low > high:
                break
            away = next(rest, None)
        if low <= high:
            found.append((low, high))
    return found
