"""What the tests of real processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledgerlog.blocking.portal import Portal
from tests.integration.running_cluster import RunningCluster, running_cluster
from tests.zookeepers import SHARED_PROCESSES


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """One for the tests that harm none of its processes; each makes logs of its own."""
    portal = Portal()
    try:
        running, _ = portal.enter(running_cluster(tmp_path_factory.mktemp("shared") / "cluster"))
        SHARED_PROCESSES.add(running.child.pid)
        yield running
    finally:
        portal.close()
