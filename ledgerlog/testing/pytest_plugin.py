"""A pytest fixture for simulated clusters. Import it in a ``conftest.py``:

    from ledgerlog.testing.pytest_plugin import simulated

Then use it in a test:

    def test_my_service_survives_a_bookie(simulated):
        simulated(scenario, seeds=range(10), bookies=4)

The test is an ordinary function, because each seed gets an event loop of its own. The first seed that fails
fails the test. Its exception has a note with the seed and the last events.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar

import pytest

from ledgerlog.testing.cluster import SimulatedCluster
from ledgerlog.testing.runs import simulate

__all__ = ["Simulated", "simulated"]

T = TypeVar("T")


class Simulated(Protocol):
    """The type of the fixture ``simulated``."""

    def __call__(
        self,
        scenario: Callable[[SimulatedCluster], Awaitable[T]],
        *,
        seeds: Iterable[int] = ...,
        **options: Any,
    ) -> list[T]:
        """Run the scenario once for each seed.

        Args:
            scenario: Called with a ``SimulatedCluster``.
            seeds: The seeds; the default is 0 to 9.
            options: The options of ``simulate``, for example ``bookies=4``.

        Returns:
            The results of the scenario, one for each seed.

        Raises:
            Exception: ``simulate`` raised it for the first seed that fails.
        """
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
