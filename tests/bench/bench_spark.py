"""What reading a log in Spark costs: run by hand, ``python -m tests.bench.bench_spark [WHAT ...]``.

    columns     rows for a second of processor time, at 100 bytes and 1 KiB, all columns and the value alone,
                beside Spark's own scan of the same rows in Parquet, in turns
    many        fifty million small records, or as many as are written in two minutes: parts and task times

Each starts a cluster of three bookie processes and a session on two threads. The time is that of processes,
as the kernel counts it: Spark's (the JVM and its Python workers, told apart) and the bookies'. On a machine
that does other things as well the times of two scans in one run are to be compared, not those of two runs.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from ledgerlog import blocking
from ledgerlog.blocking.portal import Portal
from ledgerlog.spark import session
from tests.integration.running_cluster import running_cluster

ROUNDS = 3
BYTES = 256 * 1024 * 1024
MANY = 50_000_000
MANY_BYTES = 10
FILL_S = 120.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Times:
    """Processor seconds."""

    jvm: float
    workers: float
    bookies: float

    @property
    def spark(self) -> float:
        return self.jvm + self.workers

    def words(self) -> str:
        return f"JVM {self.jvm:.1f} s, Python {self.workers:.1f} s, bookies {self.bookies:.1f} s"


@attrs.frozen
class Clock:
    """What processes have taken so far."""

    jvm: float
    workers: dict[int, float]
    ended: float
    """Those that ended, as far as somebody waited for them."""
    bookies: float

    def since(self, before: Clock) -> Times:
        gone = sum(taken for pid, taken in before.workers.items() if pid not in self.workers)
        workers = sum(taken - before.workers.get(pid, 0.0) for pid, taken in self.workers.items())
        workers += max(0.0, self.ended - before.ended - gone)
        return Times(self.jvm - before.jvm, workers, self.bookies - before.bookies)


@attrs.frozen
class Bench:
    spark: Any
    uri: str
    cluster: blocking.Cluster
    bookies: list[int]
    path: Path

    def clock(self) -> Clock:
        jvm = self.spark.sparkContext._gateway.proc.pid
        own, parents = {}, {}
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                try:
                    fields = (path / "stat").read_bytes().rpartition(b")")[2].split()
                except OSError:
                    continue
                pid = int(path.name)
                parents[pid] = int(fields[1])
                own[pid] = (sum(map(int, fields[11:13])) * _TICK_S, sum(map(int, fields[13:15])) * _TICK_S)
        below = [jvm]
        for pid in below:
            below += [child for child, parent in parents.items() if parent == pid]
        return Clock(
            own[jvm][0],
            {pid: own[pid][0] for pid in below[1:]},
            sum(own[pid][1] for pid in below),
            sum(own[pid][0] for pid in self.bookies),
        )

    def log(self) -> Any:
        return self.spark.read.format("ledgerlog").option("uri", self.uri)

    def fill(self, name: str, size: int, count: int, until_s: float) -> int:
        """Append up to so many records of random bytes; how many."""
        rng = random.Random(size)
        chunk = [rng.randbytes(size) for _ in range(min(count, max(1, 4_000_000 // (size + 100))))]
        until, written = time.monotonic() + until_s, 0
        with self.cluster.create_log(name).writer() as writer:
            while written < count and time.monotonic() < until:
                written += len(writer.append_many(chunk[: count - written]))
        return written


@contextmanager
def open_bench(path: Path) -> Iterator[Bench]:
    portal = Portal()
    try:
        running, _ = portal.enter(running_cluster(path / "cluster", "--bookies", "3"))
        spark = session(
            "bench",
            master="local[2]",
            config={
                "spark.driver.memory": "2g",
                "spark.log.level": "ERROR",
                "spark.ui.showConsoleProgress": "false",
            },
        )
        gateway = spark.sparkContext._gateway
        try:
            with blocking.connect(running.uri) as cluster:
                yield Bench(spark, running.uri, cluster, list(running.pids.values()), path)
        finally:
            spark.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()
    finally:
        portal.close()


def columns(bench: Bench) -> None:
    for size in (100, 1024):
        name = f"of-{size}"
        count = bench.fill(name, size, BYTES // size, FILL_S)
        path = f"{bench.path}/{name}"
        bench.log().load(name).write.mode("overwrite").parquet(path)
        for what, schema in (("all columns", None), ("value alone", "value BINARY")):
            log = bench.log()
            tables = {
                "log": (log if schema is None else log.schema(schema)).load(name),
                "parquet": bench.spark.read.parquet(path).select(*([schema.split()[0]] if schema else ["*"])),
            }
            taken: dict[str, list[Times]] = {each: [] for each in tables}
            for number in range(ROUNDS + 1):
                for each, table in tables.items():
                    before = bench.clock()
                    table.write.format("noop").mode("overwrite").save()
                    if number:  # The first round warms up.
                        taken[each].append(bench.clock().since(before))
            best = {each: min(times, key=lambda one: one.spark) for each, times in taken.items()}
            for each, one in best.items():
                print(
                    f"{size:5} bytes, {what}, {each:7}: {count / one.spark / 1e6:.2f} million rows "
                    f"for a second of Spark's ({one.words()}; {count:,} rows)"
                )
            ratios = [a.spark / b.spark for a, b in zip(taken["log"], taken["parquet"], strict=True)]
            print(f"{size:5} bytes, {what}: a log takes {statistics.median(ratios):.1f} times Parquet's time")


def many(bench: Bench) -> None:
    begun = time.monotonic()
    count = bench.fill("many", MANY_BYTES, MANY, FILL_S)
    print(f"{count:,} records of {MANY_BYTES} bytes written in {time.monotonic() - begun:.0f} s")
    for options in ({}, {"minPartitions": 16}):
        table = bench.log().options(**options).load("many")
        group = f"many {options}"
        bench.spark.sparkContext.setJobGroup(group, group)
        before, begun = bench.clock(), time.monotonic()
        table.write.format("noop").mode("overwrite").save()
        took, spent = time.monotonic() - begun, bench.clock().since(before)
        durations = task_seconds(bench.spark, group)
        print(
            f"{options or 'as it is'}: {len(durations)} parts, {took:.1f} s; a task takes "
            f"{min(durations):.1f} to {max(durations):.1f} s, mostly {statistics.median(durations):.1f}; "
            f"{count / spent.spark / 1e6:.2f} million rows for a second of Spark's ({spent.words()})"
        )


def task_seconds(spark: Any, group: str) -> list[float]:
    """How long the tasks of a group of jobs took."""
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark.sparkContext._jsc.sc().statusStore()
    found = []
    for job in tracker.getJobIdsForGroup(group):
        for stage in tracker.getJobInfo(job).stageIds:
            tasks = store.taskList(stage, 0, 100_000)
            found += [tasks.apply(at).duration().get() / 1000 for at in range(tasks.size())]
    return found


PARTS: dict[str, Callable[[Bench], None]] = {"columns": columns, "many": many}


def main() -> None:
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory() as path, open_bench(Path(path)) as bench:
            PARTS[name](bench)


if __name__ == "__main__":
    main()
