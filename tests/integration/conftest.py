"""Fixtures that the tests of real processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledgerlog.blocking.portal import Portal
from tests.integration.running_cluster import RunningCluster, running_cluster
from tests.zookeepers import SHARED_PROCESSES


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """One cluster for all tests that harm none of its processes. Each test makes its own logs."""
    with Portal() as portal:
        running, _ = portal.enter(running_cluster(tmp_path_factory.mktemp("shared") / "cluster"))
        SHARED_PROCESSES.add(running.child.pid)
        yield running
