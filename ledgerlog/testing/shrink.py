"""Shrink a failing run: find the faults that it needs.

This is delta debugging (Zeller and Hildebrandt's ddmin) over the plan of a failing seed. It leaves faults out
in chunks, then in smaller chunks, as long as the run with the remaining faults still fails *in the same way*:
it breaks the same rule, or ends with the same kind of exception. If there are enough attempts, the result is
minimal: without any one of its faults, the run passes or fails in another way.

If a fault is left out, everything after it may change. So a run that fails by a rare race may shrink only
with luck. But the result always fails, because exactly this run was made and failed.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ledgerlog.testing.invariants import Violation
from ledgerlog.testing.swarm import Size
from ledgerlog.testing.workload import Report, run_seed

__all__ = ["ATTEMPTS_MAX", "Shrunk", "shrink", "way_of"]

ATTEMPTS_MAX = 200

Run = Callable[[tuple[int, ...]], Report]


@attrs.frozen
class Shrunk:
    """A failing run with as few faults as possible."""

    report: Report
    """The report of the smallest run that fails."""
    numbers: tuple[int, ...]
    """The numbers of the faults that it needs."""
    attempts: int
    is_minimal: bool
    """Whether each of them is needed. False: the attempts ran out."""


def way_of(report: Report) -> str:
    """Return how a run failed: the broken rule, or the kind of exception. Empty if it did not fail."""
    failure = report.failure
    if failure is None:
        return ""
    if isinstance(failure, Violation):
        return str(failure).partition(":")[0] if ":" in str(failure) else str(failure)[:40]
    return type(failure).__name__


def shrink(
    failed: Report,
    *,
    size: Size = Size.FULL,
    attempts_max: int = ATTEMPTS_MAX,
    on_attempt: Callable[[int, int], None] = lambda attempts, left: None,
    run: Run | None = None,
) -> Shrunk:
    """Find the smallest part of a failing run's plan that still makes it fail in the same way.

    Args:
        failed: The report of the failing run.
        size: The size of the failing run.
        attempts_max: How many runs to make at most.
        on_attempt: Called as ``on_attempt(attempts, left)`` after each success, with the number of runs so
            far and of remaining faults.
        run: Runs the seed with the faults of these numbers. None: ``run_seed`` with this size.

    Returns:
        The smallest failing run that was found.
    """
    way = way_of(failed)
    assert way, "only a failed run can be shrunk"

    def run_again(numbers: tuple[int, ...]) -> Report:
        return run_seed(failed.seed, size=size, only=numbers)

    run = run or run_again
    best = failed
    left = tuple(fault.number for fault in failed.plan)
    attempts, chunks = 0, 1
    while left and attempts < attempts_max:
        length = -(-len(left) // chunks)
        for start in range(0, len(left), length):
            if attempts == attempts_max:
                break
            attempts += 1
            rest = left[:start] + left[start + length :]
            report = run(rest)
            if way_of(report) == way:
                best, left = report, rest
                chunks = max(1, chunks - 1)
                on_attempt(attempts, len(left))
                break
        else:
            if length == 1:
                return Shrunk(best, left, attempts, True)
            chunks = min(len(left), 2 * chunks)
    return Shrunk(best, left, attempts, not left)
