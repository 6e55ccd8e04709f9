"""Making a failing run small: which of its faults does it take?

Delta debugging (Zeller and Hildebrandt's ddmin) over the plan of a failing seed. Faults are left out in
chunks, then in smaller ones, as long as what is left still makes the run fail *in the same way*: by the same
rule, or by the same kind of exception. The result is 1-minimal where the attempts suffice: leaving out any
one more fault makes the run pass, or fail of something else.

Leaving a fault out changes what happens afterwards, so a run that fails by a rare race may need luck; what is
printed always fails, because it was run.
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
    """What is left of a failing run."""

    report: Report
    """Of the smallest run that fails."""
    numbers: tuple[int, ...]
    """The faults that it takes."""
    attempts: int
    is_minimal: bool
    """Whether each of them is needed."""


def way_of(report: Report) -> str:
    """How a run failed: the rule that was broken, or the kind of exception. Empty where it did not."""
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
    """The smallest part of a failing run's plan that still makes it fail so. ``on_attempt(attempts, left)``
    is told how it goes."""
    way = way_of(failed)
    assert way, "only what failed can be shrunk"

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
