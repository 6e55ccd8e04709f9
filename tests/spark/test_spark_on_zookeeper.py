"""Tables, streams and exactly-once writing on a cluster with its metadata in a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from ledgerlog import blocking
from ledgerlog.blocking.portal import Portal
from tests.integration.running_cluster import running_cluster
from tests.spark.conftest import SparkOnLogs
from tests.spark.test_spark_sink import append, contents, run_query

pytestmark = pytest.mark.processes


@pytest.fixture
def on_zookeeper(on_spark: SparkOnLogs, tmp_path: Path) -> Iterator[SparkOnLogs]:
    """The shared session with a separate cluster."""
    with Portal() as portal:
        cluster = running_cluster(tmp_path / "cluster", "--bookies", "3", "--metadata", "zookeeper")
        running, _ = portal.enter(cluster)
        with blocking.connect(running.uri) as connected:
            yield attrs.evolve(on_spark, uri=running.uri, cluster=connected)


def test_tables_and_streams_on_zookeeper(on_zookeeper: SparkOnLogs, tmp_path: Path) -> None:
    assert on_zookeeper.uri.startswith("zk://")
    values = [b"%d" % at for at in range(60)]
    on_zookeeper.cluster.create_log("in")
    append(on_zookeeper, "in", values[:30])
    append(on_zookeeper, "in", values[30:])
    table = on_zookeeper.read(minPartitions=3, startingOffsets=5).load("in")
    assert [(row.offset, bytes(row.value)) for row in table.orderBy("offset").collect()] == [
        *enumerate(values)
    ][5:]
    with on_zookeeper.cluster.create_log("out").writer() as rival:
        rival.append(b"before")
        run_query(on_zookeeper, "in", "out", tmp_path / "checkpoint", min_partitions=2)
        rival.append(b"late")
    run_query(on_zookeeper, "in", "out", tmp_path / "checkpoint", min_partitions=2)
    assert contents(on_zookeeper, "out") == [b"before", *values, b"late"]
