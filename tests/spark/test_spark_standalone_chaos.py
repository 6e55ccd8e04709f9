"""A stream from a log to a log, and an archive job, on a Spark cluster whose drivers are killed at random.

The seed decides after which batch, in which part of it and with which delay each driver is killed. Some
drivers are stopped instead, and go on beside their successors. Tasks run speculatively, executors are killed,
and bookies are killed and restarted. Whatever happens, the sink has the rows of the source, each once and in
order.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path

import attrs
import pytest
import trio
from pyiceberg.catalog.sql import SqlCatalog

import ledgerlog
from ledgerlog.archive.table import CATALOG_FILE, CATALOG_NAME
from ledgerlog.cli.processes import Child, ChildProcesses, open_children
from tests.integration.running_cluster import RunningCluster, running_cluster
from tests.spark.conftest import EVERY_COPY, preferred
from tests.spark.driver_on_cluster import ROWS
from tests.spark.standalone import StandaloneCluster, standalone_cluster
from tests.spark.test_spark_chaos import descendants
from tests.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.soak]

SEED = int(os.environ.get("LEDGERLOG_TEST_SEED", "20"))
KILLS = 20
ARCHIVE_KILLS = 6
LEDGERS = 60
ZOMBIE_ROUNDS = (2, 11)
EXECUTOR_ROUNDS = (1, 4, 7, 10, 13, 16)
BOOKIE_ROUNDS = (3, 12)
SETTINGS = {
    "spark.cores.max": "2",  # A zombie driver keeps its executors, and its successor needs some too.
    "spark.executor.cores": "1",
    "spark.network.timeout": "1200s",  # So that a driver that was stopped for long goes on where it was.
    "spark.python.daemon.module": "tests.spark.warm_daemon",
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.quantile": "0.5",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}
PROGRAM = Path(__file__).with_name("driver_on_cluster.py")


@attrs.define
class Stage:
    """The clusters, the logs and what happened so far."""

    running: RunningCluster
    spark: StandaloneCluster
    children: ChildProcesses
    cluster: ledgerlog.Cluster
    path: Path
    values: list[bytes] = attrs.Factory(list)
    happened: Counter[str] = attrs.Factory(Counter)
    _numbers: Iterator[int] = attrs.Factory(count)

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    async def append(self, rows: int) -> None:
        more = [b"row %d" % at for at in range(len(self.values), len(self.values) + rows)]
        async with (await self.cluster.open_log("source")).writer() as writer:
            await writer.append_many(more)
        self.values += more

    async def written(self) -> list[bytes]:
        async with (await self.cluster.open_log("sink")).read() as records:
            found = [record async for record in records]
        assert [record.offset for record in found] == list(range(len(found)))
        return [record.data for record in found]

    async def check(self) -> None:
        """The checker: the sink has the first rows of the source, each once and in order."""
        found = await self.written()
        assert found == self.values[: len(found)]

    async def has_all(self, driver: Child) -> bool:
        assert driver.is_running, driver.how_it_ended()
        return len(await self.written()) == len(self.values)

    async def start(self, *arguments: str) -> Child:
        number = next(self._numbers)
        with preferred():
            return await self.children.start(
                f"driver {number}",
                [sys.executable, str(PROGRAM), self.spark.master, self.running.uri, *arguments],
                log_path=self.spark.path / f"driver-{number}.log",
                environment={**self.spark.environment, "PYSPARK_PYTHON": sys.executable},
            )

    async def start_copy(self) -> Child:
        return await self.start("copy", "source", "sink", str(self.checkpoint))

    def batches(self, part: str = "commits") -> int:
        """Count the batches that Spark has noted in a part of its checkpoint."""
        numbers = [int(path.name) for path in (self.checkpoint / part).glob("*") if path.name.isdigit()]
        return max(numbers, default=-1) + 1

    async def wait(self, driver: Child, look: Callable[[], object]) -> None:
        def is_so() -> object:
            assert driver.is_running, driver.how_it_ended()
            return look()

        await until(is_so, every_s=0.1)


def signal_driver(driver: Child, number: signal.Signals) -> None:
    """Send a signal to a driver: to the program, its JVM, and the Python processes of that."""
    for pid in (driver.pid, *descendants(driver.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


async def kill(driver: Child) -> None:
    signal_driver(driver, signal.SIGKILL)
    await driver.wait()


@asynccontextmanager
async def staged(path: Path, *logs: str) -> AsyncIterator[Stage]:
    events = path / "events"
    await trio.Path(events).mkdir()
    settings = {**SETTINGS, "spark.eventLog.dir": f"file://{events}"}
    async with (
        running_cluster(path / "cluster", "--bookies", "4") as running,
        standalone_cluster(path / "spark", cores=2, memory="1000m", settings=settings) as spark,
        ledgerlog.connect(running.uri) as cluster,
        open_children() as children,
    ):
        for name in logs:
            await cluster.create_log(name, replication=EVERY_COPY)
        yield Stage(running, spark, children, cluster, path)


def speculative_tasks(events: Path) -> int:
    logs = [path.read_text(encoding="utf-8", errors="replace") for path in events.iterdir()]
    return sum(
        '"Event":"SparkListenerTaskStart"' in line and '"Speculative":true' in line
        for log in logs
        for line in log.splitlines()
    )


async def one_round(stage: Stage, number: int, dice: random.Random) -> None:
    """Run a driver until its point of the seed, and kill it there."""
    begun = stage.batches()
    batches, part, delay_s = dice.randint(2, 4), dice.choice(["offsets", "commits"]), dice.uniform(0, 0.5)
    await stage.append((stage.batches("offsets") - begun + batches + 2) * ROWS)
    driver = await stage.start_copy()
    if number in BOOKIE_ROUNDS:
        await stage.wait(driver, stage.spark.executors)
        os.kill(stage.running.pids.pop(dice.choice(sorted(stage.running.pids))), signal.SIGKILL)
        stage.happened["bookies killed"] += 1
        await until(lambda: stage.running.says().count("serves again") == stage.happened["bookies killed"])
    if number in EXECUTOR_ROUNDS:
        await stage.wait(driver, lambda: stage.batches() > begun)
        os.kill(dice.choice(sorted(stage.spark.executors())), signal.SIGKILL)
        stage.happened["executors killed"] += 1
    if number in ZOMBIE_ROUNDS:
        await stage.wait(driver, lambda: stage.batches() > begun)
        driver = await followed(stage, driver)
        begun = stage.batches()
        await stage.append((batches + 2) * ROWS)
    await stage.wait(driver, lambda: stage.batches(part) >= begun + batches)
    await trio.sleep(delay_s)
    await kill(driver)
    stage.happened["drivers killed"] += 1


async def followed(stage: Stage, zombie: Child) -> Child:
    """Stop a driver, start its successor, and let the stopped one go on beside it. Return the successor."""
    signal_driver(zombie, signal.SIGSTOP)
    await stage.append(4 * ROWS)
    begun = stage.batches()
    successor = await stage.start_copy()
    await stage.wait(successor, lambda: stage.batches() >= begun + 2)
    signal_driver(zombie, signal.SIGCONT)
    await stage.append(2 * ROWS)
    assert await zombie.wait() != 0, "it has a successor"
    stage.happened["zombies ended"] += 1
    await stage.append(2 * ROWS)
    begun = stage.batches()
    await stage.wait(successor, lambda: stage.batches() > begun)
    return successor


async def test_each_row_is_there_once_and_in_order_whatever_is_killed_on_a_cluster(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    async with staged(tmp_path, "source", "sink") as stage:
        for number in range(KILLS):
            await one_round(stage, number, dice)
            await stage.check()
            print(f"round {number}: {stage.batches()} batches, {dict(stage.happened)}", flush=True)
        driver = await stage.start_copy()
        await until(lambda: stage.has_all(driver), every_s=0.5)
        await kill(driver)
        assert await stage.written() == stage.values
        speculative = await trio.to_thread.run_sync(speculative_tasks, tmp_path / "events")
        print(f"{len(stage.values)} rows in {stage.batches()} batches, {speculative} speculative tasks")
        assert stage.happened["drivers killed"] == KILLS
        assert stage.happened["zombies ended"] == len(ZOMBIE_ROUNDS)
        assert speculative > 0


async def test_an_archive_job_is_completed_whenever_its_driver_is_killed_on_a_cluster(tmp_path: Path) -> None:
    """Readers of the log see no difference. A run that nobody kills completes the archive and its table."""
    dice = random.Random(SEED)
    where = tmp_path / "archive"

    def files() -> int:
        return sum(path.is_file() for path in where.rglob("*"))

    def has_come_to(driver: Child, enough: int) -> bool:
        return not driver.is_running or files() >= enough

    async with staged(tmp_path, "sink") as stage:
        stage.values += [b"row %d" % at for at in range(LEDGERS)]
        async with (await stage.cluster.open_log("sink")).writer() as writer:
            for value in stage.values:
                await writer.append(value)
                await writer.roll()
        for number in range(ARCHIVE_KILLS):
            begun, more, delay_s = files(), dice.randint(0, LEDGERS // 5), dice.uniform(0, 0.5)
            driver = await stage.start("archive", "sink", str(where))
            await until(partial(has_come_to, driver, begun + more))
            await trio.sleep(delay_s)
            stage.happened["killed" if driver.is_running else "done"] += 1
            await kill(driver)
            assert await stage.written() == stage.values
            print(f"round {number}: {files()} files, {dict(stage.happened)}", flush=True)
        driver = await stage.start("archive", "sink", str(where))
        assert await driver.wait() == 0, driver.how_it_ended()
        assert await stage.written() == stage.values
    catalog = SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{where / CATALOG_FILE}")
    table = catalog.load_table(("ledgerlog", "sink")).scan().to_arrow().sort_by("offset")
    catalog.close()
    assert table["value"].to_pylist() == stage.values
    assert stage.happened["killed"] > 0
