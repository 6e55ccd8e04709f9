"""What the judges of simulated runs say about a bug that a test has planted."""

from __future__ import annotations

from collections.abc import Iterable

from ledgerlog.testing.workload import Report

__all__ = ["first_violation"]


def first_violation(reports: Iterable[Report], *rules: str) -> str:
    """Return the message of the first broken rule in the reports.

    Args:
        reports: The reports of runs. Pass a generator: no run is made after the one that finds something.
        rules: The rules that the bug breaks. A run in which only a consequence of the bug is noticed, under
            another rule, does not count. Without rules, every rule counts.

    Raises:
        AssertionError: No report has such a violation.
    """
    others: list[str] = []
    for report in reports:
        failure = report.failure
        assert failure is None or isinstance(failure, Exception), failure
        if isinstance(failure, AssertionError):
            said = str(failure)
            if not rules or said.startswith(rules) or any(f"({rule})" in said for rule in rules):
                return said
            others.append(said)
    raise AssertionError(f"no run breaks {' or '.join(rules) or 'a rule'}; others: {others}")
