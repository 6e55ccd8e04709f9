"""A stream from a log to a log while its processes are killed: rows in are rows out, each once.

Whatever runs Python for the query is killed at random, tasks and the processes that plan and commit alike;
Spark's entry of the last commit is removed between runs. The query is started again until it has come to the
end."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest

from tests.spark.conftest import SparkOnLogs
from tests.spark.test_spark_sink import append, batch_of, contents, run_query

pytestmark = [pytest.mark.processes, pytest.mark.soak]

RESTARTS = 24
ROWS = 60


def descendants(root: int) -> list[int]:
    """The processes below one, by their parents as they are now."""
    parents = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parents[int(path.name)] = int((path / "stat").read_bytes().rpartition(b")")[2].split()[1])
            except OSError:
                continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


class Killer:
    """Kills a Python process below Spark's from time to time, for the body of a ``with``."""

    def __init__(self, jvm: int, seed: int) -> None:
        self.killed = 0
        self._jvm = jvm
        self._random = random.Random(seed)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(self._random.uniform(0.3, 3.0)):
            running = descendants(self._jvm)
            if running:
                victim = self._random.choice(running)
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.killed += 1


def test_rows_in_are_rows_out_whatever_is_killed(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    source, sink, checkpoint = f"{log_name}/in", f"{log_name}/out", tmp_path / "checkpoint"
    on_spark.cluster.create_log(source)
    on_spark.cluster.create_log(sink)
    jvm = on_spark.spark.sparkContext._gateway.proc.pid
    values: list[bytes] = []
    failures = killed = forgotten = 0
    for number in range(RESTARTS):
        more = [b"%d" % at for at in range(len(values), len(values) + ROWS)]
        append(on_spark, source, more)
        values += more
        try:
            with Killer(jvm, number) as killer:
                run_query(on_spark, source, sink, checkpoint)
        except Exception:
            failures += 1
        killed += killer.killed
        commits = [path for path in (checkpoint / "commits").glob("*") if path.name.isdigit()]
        if number % 2 and commits:
            newest = max(commits, key=batch_of)
            newest.unlink()
            (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
            forgotten += 1
        there = contents(on_spark, sink)
        assert there == values[: len(there)]
    run_query(on_spark, source, sink, checkpoint)
    assert contents(on_spark, sink) == values
    print(f"{len(values)} rows, {killed} processes killed, {failures} runs failed, {forgotten} forgotten")
    assert killed >= RESTARTS // 2
