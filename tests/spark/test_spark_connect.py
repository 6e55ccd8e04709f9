"""A client of Spark Connect does all that a session in the driver's process does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

import ledgerlog
from tests.integration.running_cluster import running_cluster
from tests.waiting import PATIENCE_S

# Not among what all tests need: where it is installed, PySpark writes the log of the whole process as JSON.
pytest.importorskip("grpc", reason="pip install 'pyspark[connect]'")
pytestmark = [pytest.mark.processes, pytest.mark.soak]


async def test_a_client_of_spark_connect_reads_writes_audits_and_archives(tmp_path: Path) -> None:
    async with running_cluster(tmp_path / "cluster", "--bookies", "3") as running:
        async with ledgerlog.connect(running.uri) as cluster:
            log = await cluster.create_log("orders")
            async with log.writer() as writer:
                await writer.append_many([b'{"id": 1}', b'{"id": 1}'])
                await writer.roll()
                await writer.append(b'{"id": 1}')
        program = [sys.executable, "-m", "tests.spark.client_of_connect", running.uri, str(tmp_path)]
        with trio.fail_after(PATIENCE_S):
            ran = await trio.run_process(program, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
        said = ran.stdout.decode()
        assert ran.returncode == 0, said
        assert said.rstrip().endswith("all of it works")
