"""A pytest fixture for simulated clusters. In a ``conftest.py``:

    from ledgerlog.testing.pytest_plugin import simulated

and in a test:

    def test_my_service_survives_a_bookie(simulated):
        simulated(scenario, seeds=range(10), bookies=4)

The test is an ordinary function: each seed is an event loop of its own. The first seed that fails fails the
test, and its exception carries the seed and the last events.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar

import pytest

from ledgerlog.testing.cluster import SimulatedCluster, simulate

__all__ = ["Simulated", "simulated"]

T = TypeVar("T")


class Simulated(Protocol):
    """What the fixture gives."""

    def __call__(
        self,
        scenario: Callable[[SimulatedCluster], Awaitable[T]],
        *,
        seeds: Iterable[int] = ...,
        **options: Any,
    ) -> list[T]:
        """Run the scenario once for each seed, with the options of ``simulate``; what it returned."""
        ...


@pytest.fixture
def simulated() -> Simulated:
    """Run a scenario on simulated clusters: ``simulated(scenario, seeds=range(10), bookies=4)``."""

    def run(
        scenario: Callable[[SimulatedCluster], Awaitable[T]],
        *,
        seeds: Iterable[int] = range(10),
        **options: Any,
    ) -> list[T]:
        return [simulate(scenario, seed=seed, **options).value for seed in seeds]

    return run
