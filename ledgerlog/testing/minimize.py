"""Find the few faults that a failing run needs, by delta debugging (Zeller and Hildebrandt's ddmin).

Faults are left out in chunks, then in smaller chunks, as long as the run with the remaining faults still
fails *in the same way* (``way_of``). If there are enough attempts, the result is minimal: if you remove any
one of its faults, the run passes or fails in another way.

If a fault is left out, everything after it may change. So a run that fails by a rare race may shrink only
with luck. But the result always fails, because exactly this run was made and failed.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

from ledgerlog.testing.deterministic import is_users
from ledgerlog.testing.invariants import Violation

__all__ = ["Minimum", "minimize", "the_one", "way_of"]

T = TypeVar("T")


def the_one(error: BaseException) -> BaseException:
    """Return the violation in a group: the other errors follow from it. If there is none, the first error."""
    leaves = [error]
    while any(isinstance(leaf, BaseExceptionGroup) for leaf in leaves):
        leaves = [
            inner
            for leaf in leaves
            for inner in (leaf.exceptions if isinstance(leaf, BaseExceptionGroup) else (leaf,))
        ]
    return next((leaf for leaf in leaves if isinstance(leaf, Violation)), leaves[0])


def way_of(error: BaseException) -> str:
    """Return how a run failed: the broken rule, the place of the assertion, or the kind of exception."""
    leaf = the_one(error)
    if isinstance(leaf, Violation):
        return str(leaf).partition(":")[0] if ":" in str(leaf) else str(leaf)[:40]
    kind = type(leaf).__name__
    if not isinstance(leaf, AssertionError):
        return kind
    frames = list(traceback.walk_tb(leaf.__traceback__))
    # Name the line of the user's own code: several lines may call the same asserting helper or History.check.
    theirs = [each for each in frames if is_users(each[0])]
    places = (f"{frame.f_code.co_filename}:{line}" for frame, line in theirs or frames[-1:])
    return " ".join((kind, *places))


@attrs.frozen
class Minimum(Generic[T]):
    """A failing run with as few faults as possible."""

    result: T
    """The result of the smallest run that fails."""
    numbers: tuple[int, ...]
    """The numbers of the faults that the smallest run needs."""
    attempts: int
    is_minimal: bool
    """Whether each of these faults is needed. False: the attempts ran out, so some may not be needed."""


def minimize(
    failed: T,
    numbers: tuple[int, ...],
    run: Callable[[tuple[int, ...]], T | None],
    *,
    may_try: Callable[[int], bool],
    on_success: Callable[[int, int], None] = lambda attempts, left: None,
) -> Minimum[T]:
    """Find the smallest part of a failing run's faults with which it still fails in the same way.

    Args:
        failed: The result of the failing run.
        numbers: The numbers of its faults.
        run: Repeats the run with the faults of these numbers. Returns the result if the run fails in the same
            way, otherwise None.
        may_try: Called with the number of attempts so far. If it returns False, the search ends.
        on_success: Called as ``on_success(attempts, left)`` after each attempt that fails in the same way.

    Returns:
        The smallest failing run that was found.
    """
    best, left = failed, numbers
    attempts, chunks = 0, 1
    while left and may_try(attempts):
        length = -(-len(left) // chunks)
        for start in range(0, len(left), length):
            if not may_try(attempts):
                break
            attempts += 1
            rest = left[:start] + left[start + length :]
            result = run(rest)
            if result is not None:
                best, left = result, rest
                chunks = max(1, chunks - 1)
                on_success(attempts, len(left))
                break
        else:
            if length == 1:
                return Minimum(best, left, attempts, True)
            chunks = min(len(left), 2 * chunks)
    return Minimum(best, left, attempts, not left)
