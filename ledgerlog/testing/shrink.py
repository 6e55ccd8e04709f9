"""Shrink a failing run of the system itself: find the faults that it needs (``minimize``)."""

from __future__ import annotations

from collections.abc import Callable

from ledgerlog.testing.minimize import Minimum, minimize, way_of
from ledgerlog.testing.swarm import Size
from ledgerlog.testing.workload import Report, run_seed

__all__ = ["ATTEMPTS_MAX", "shrink"]

ATTEMPTS_MAX = {Size.SMALL: 200, Size.FULL: 200, Size.LONG: 20}
"""How many runs ``shrink`` makes at most."""

Run = Callable[[tuple[int, ...]], Report]


def shrink(
    failed: Report,
    *,
    size: Size = Size.FULL,
    attempts_max: int | None = None,
    on_attempt: Callable[[int, int], None] = lambda attempts, left: None,
    run: Run | None = None,
) -> Minimum[Report]:
    """Find the smallest part of a failing run's plan that still makes it fail in the same way.

    Args:
        failed: The report of the failing run.
        size: The size of the failing run.
        attempts_max: How many runs to make at most. None: ``ATTEMPTS_MAX`` of the size.
        on_attempt: Called as ``on_attempt(attempts, left)`` after each success, with the number of runs so
            far and of remaining faults.
        run: Runs the seed with the faults of these numbers. None: ``run_seed`` with this size.

    Returns:
        The smallest failing run that was found.
    """
    assert failed.failure is not None, "only a failed run can be shrunk"
    way = way_of(failed.failure)
    most = ATTEMPTS_MAX[size] if attempts_max is None else attempts_max

    def run_again(numbers: tuple[int, ...]) -> Report:
        return run_seed(failed.seed, size=size, only=numbers)

    def fails(numbers: tuple[int, ...]) -> Report | None:
        report = (run or run_again)(numbers)
        return report if report.failure is not None and way_of(report.failure) == way else None

    return minimize(
        failed,
        tuple(fault.number for fault in failed.plan),
        fails,
        may_try=lambda attempts: attempts < most,
        on_success=on_attempt,
    )
