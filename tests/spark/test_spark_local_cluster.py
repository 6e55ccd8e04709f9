"""Each executor is a separate process. The test kills one while it reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import trio

from ledgerlog import blocking
from tests.integration.running_cluster import running_cluster
from tests.spark.standalone import executors_of

pytestmark = [pytest.mark.processes, pytest.mark.soak]

RECORDS = 200_000

PROGRAM = textwrap.dedent(
    """
    import os, sys, threading, time
    from ledgerlog.spark import session

    uri, name = sys.argv[1:]
    quiet = {"spark.log.level": "ERROR", "spark.driver.memory": "600m", "spark.executor.memory": "500m"}
    spark = session("local-cluster", master="local-cluster[2,1,600]", config=quiet)
    table = spark.read.format("ledgerlog").options(uri=uri, maxRecordsPerPartition=5000).load(name)
    assert table.rdd.getNumPartitions() >= 20

    def say_executors():
        # Once some tasks are done and many are not.
        tracker = spark.sparkContext.statusTracker()
        while True:
            done = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            if any(info and 2 <= info.numCompletedTasks < info.numTasks - 4 for info in done):
                break
            time.sleep(0.01)
        print("reading", flush=True)

    threading.Thread(target=say_executors, daemon=True).start()
    print("pid", spark.sparkContext._gateway.proc.pid, flush=True)
    slowly = table.rdd.map(lambda row: row.offset).mapPartitions(lambda rows: (time.sleep(0.5), *rows)[1:])
    counted = slowly.count()
    said = table.selectExpr("count(*)", "count(DISTINCT offset)", "min(offset)", "max(offset)").collect()
    print("result", counted, *said[0], flush=True)
    """
)


async def test_a_killed_executor_changes_no_count(tmp_path: Path) -> None:
    async with running_cluster(tmp_path / "cluster", "--bookies", "3") as running:

        def fill() -> None:
            with blocking.connect(running.uri) as cluster, cluster.create_log("log").writer() as writer:
                for start in range(0, RECORDS, 10_000):
                    writer.append_many([b"record %d" % at for at in range(start, start + 10_000)])

        await trio.to_thread.run_sync(fill)

        def run() -> tuple[list[str], int]:
            command = [sys.executable, "-c", PROGRAM, running.uri, "log"]
            killed = 0
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
                assert child.stdout is not None
                said, jvm = [], -1
                for line in child.stdout:
                    said.append(line.strip())
                    if line.startswith("pid "):
                        jvm = int(line.split()[1])
                    if line.startswith("reading"):
                        os.kill(executors_of(jvm)[0], signal.SIGKILL)
                        killed += 1
            assert child.returncode == 0
            return said, killed

        said, killed = await trio.to_thread.run_sync(run)
        assert killed == 1, said
        assert said[-1] == f"result {RECORDS} {RECORDS} {RECORDS} 0 {RECORDS - 1}"
