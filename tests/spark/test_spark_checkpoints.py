"""Checkpoints of streams of an earlier version: this version goes on with them, or Spark says why not."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ledgerlog import blocking
from ledgerlog.blocking.portal import Portal
from tests.golden import make_checkpoints
from tests.golden.make_checkpoints import VALUES, run_copy, run_distinct
from tests.index_kinds import convert_index
from tests.integration.running_cluster import running_cluster
from tests.spark.conftest import SparkOnLogs

pytestmark = pytest.mark.processes

GOLDEN = Path(make_checkpoints.__file__).parent
VERSIONS = sorted(path.parent.name for path in GOLDEN.glob("*/checkpoints.tar.xz"))

COLUMNS_OF_0_1 = (
    "log STRING NOT NULL, offset LONG NOT NULL, timestamp TIMESTAMP NOT NULL, value BINARY NOT NULL, "
    "ledger_id LONG NOT NULL, entry_id LONG NOT NULL, epoch LONG NOT NULL"
)
"""All columns that a record had in version 0.1."""


@contextmanager
def unpacked(version: str, path: Path) -> Iterator[str]:
    """The cluster of a version's checkpoints, run by this version; its URI."""
    with tarfile.open(GOLDEN / version / "checkpoints.tar.xz") as tar:
        tar.extractall(path, filter="data")
    with Portal() as portal:
        portal.run(lambda: convert_index(path / "cluster" / "bookie-1"))
        running, _ = portal.enter(running_cluster(path / "cluster", "--bookies", "1"))
        yield running.uri


def add_with_keys(cluster: blocking.Cluster, count: int) -> list[bytes]:
    """Append records to ``in`` that have what version 0.1 does not know."""
    values = [b"later %d" % number for number in range(count)]
    with cluster.open_log("in").writer() as writer:
        for number, value in enumerate(values):
            writer.append(value, key=b"key %d" % number, headers=[("name", b"%d" % number)])
    return values


def contents(cluster: blocking.Cluster, name: str) -> list[bytes]:
    log = cluster.open_log(name)
    with log.read("earliest") as records:
        return [record.data for record in records]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stream_goes_on_from_the_checkpoint_of_an_earlier_version(
    on_spark: SparkOnLogs, version: str, tmp_path: Path
) -> None:
    """The offsets of the source and the mark of the sink: the batch whose commit is missing is planned again,
    and is not written twice."""
    with unpacked(version, tmp_path) as uri, blocking.connect(uri) as cluster:
        assert contents(cluster, "out") == VALUES
        run_copy(on_spark.spark, uri, tmp_path / "copy")
        assert contents(cluster, "out") == VALUES
        later = add_with_keys(cluster, 30)
        run_copy(on_spark.spark, uri, tmp_path / "copy")
        assert contents(cluster, "out") == [*VALUES, *later]


def test_a_query_that_keeps_all_columns_is_refused_with_the_reason_and_goes_on_with_the_columns_of_then(
    on_spark: SparkOnLogs, tmp_path: Path
) -> None:
    with unpacked("v0.1", tmp_path) as uri, blocking.connect(uri) as cluster:
        later = add_with_keys(cluster, 5)
        with pytest.raises(Exception, match=r"STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"):
            run_distinct(on_spark.spark, uri, tmp_path / "distinct")
        assert contents(cluster, "distinct") == VALUES
        run_distinct(on_spark.spark, uri, tmp_path / "distinct", COLUMNS_OF_0_1)
        assert sorted(contents(cluster, "distinct")) == sorted([*VALUES, *later])
