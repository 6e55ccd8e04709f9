"""The tests here share one Spark session and one cluster of real bookies: each takes seconds to start.
Every test makes its own logs.

Both end after the last test of this folder, not at the end of the run. They hold threads, an event loop and
open files in the test process, and a test of another folder would meet them there. For example, if a test
takes all descriptors away from its process, that loop loses them too.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

from ledgerlog import Replication, blocking
from ledgerlog.blocking.portal import Portal
from ledgerlog.spark import session
from tests.integration.running_cluster import running_cluster
from tests.zookeepers import SHARED_PROCESSES

EVERY_COPY = Replication(3, 3, 3)
"""All copies are there before an append returns. So an archive job or an audit finds them all at any time."""

_numbers = itertools.count()
_FOLDER = Path(__file__).parent
_RUNNING = pytest.StashKey[ExitStack]()


@attrs.frozen
class SparkOnLogs:
    spark: Any
    uri: str
    cluster: blocking.Cluster

    def read(self, **options: Any) -> Any:
        return self.spark.read.format("ledgerlog").options(uri=self.uri, **options)

    def read_stream(self, **options: Any) -> Any:
        return self.spark.readStream.format("ledgerlog").options(uri=self.uri, **options)


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A directory that outlives the test, because the cluster does: its archives name files in it."""
    return tmp_path_factory.mktemp(re.sub(r"\W", "_", request.node.name)[:30])


@pytest.fixture(scope="session")
def _shared_spark(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[SparkOnLogs]:
    with ExitStack() as running:
        pytestconfig.stash[_RUNNING] = running
        yield running.enter_context(_spark_on_logs(tmp_path_factory.mktemp("spark")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End the shared session and cluster after the last test of this folder."""
    yield
    if nextitem is None or _FOLDER not in nextitem.path.parents:
        running = item.config.stash.get(_RUNNING, ExitStack())
        running.close()
        loops = [thread.name for thread in threading.enumerate() if thread.name == "ledgerlog-blocking"]
        assert not loops, "an event loop of the Spark tests still runs, and other folders come next"


@contextmanager
def _spark_on_logs(path: Path) -> Iterator[SparkOnLogs]:
    portal = Portal()
    try:
        running, _ = portal.enter(running_cluster(path / "cluster", "--bookies", "3"))
        SHARED_PROCESSES.add(running.child.pid)
        with preferred():
            spark = session(
                "tests",
                master="local[2,4]",
                config={
                    "spark.driver.memory": "600m",
                    "spark.python.daemon.module": "tests.spark.warm_daemon",
                    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                    "spark.sql.shuffle.partitions": "2",
                    "spark.sql.warehouse.dir": str(path / "warehouse"),
                    "spark.sql.session.timeZone": "UTC",
                    "spark.log.level": "ERROR",
                },
            )
        gateway = spark.sparkContext._gateway
        SHARED_PROCESSES.add(gateway.proc.pid)
        try:
            with blocking.connect(running.uri) as cluster:
                yield SparkOnLogs(spark, running.uri, cluster)
        finally:
            spark.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()
    finally:
        portal.close()


@contextmanager
def preferred() -> Iterator[None]:
    """Give processes that start in the body priority over others, if the system lets us.

    Spark gives up on the Python process of a streaming source if it does not connect within ten seconds, and
    no setting changes that. On a busy machine such a process needs longer for its imports alone.
    """
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness - 10)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)


@pytest.fixture
def on_spark(_shared_spark: SparkOnLogs) -> SparkOnLogs:
    """The session and the cluster, shared by all tests."""
    return _shared_spark


@pytest.fixture
def log_name(request: pytest.FixtureRequest) -> str:
    """A log name that no other test uses."""
    return f"{re.sub(r'[^a-z_]', '_', request.node.name.lower())[:60]}_{next(_numbers)}"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts this process, even if the shell that started the tests made them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
