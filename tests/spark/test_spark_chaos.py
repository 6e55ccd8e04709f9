"""A stream from a log to a log while its processes are killed: rows in are rows out, each once.

The tests kill the query's Python processes at random: tasks, and the processes that plan and commit. They
also kill where it hurts: in the middle of a task, just before the transaction of a commit, and just after it.
They remove Spark's entry of the last commit between runs. An ordinary writer leads the log from time to time
and appends beside the query. Two drivers run the query on one checkpoint. The tests start the query again
until it reaches the end.

Several tasks read and stage every micro-batch."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ledgerlog.errors import LostLeadership
from ledgerlog.limits import LOG_GATHER_LEDGERS_MIN
from tests.spark.conftest import SparkOnLogs
from tests.spark.killed_sink import KilledSink
from tests.spark.test_spark_sink import append, batch_of, contents, run_query
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

RESTARTS = 24
ROWS = 60
TASKS = 4
DRIVER_ROUNDS = 6
WRITTEN_S = PATIENCE_S


def descendants(root: int) -> list[int]:
    """List the processes below ``root``, by their present parents."""
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
    """Kills a Python process below Spark's JVM from time to time, during the body of a ``with``."""

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


def forget_newest_commit(checkpoint: Path) -> bool:
    """Remove Spark's entry of the last batch that it committed. Return False if there is none."""
    commits = [path for path in (checkpoint / "commits").glob("*") if path.name.isdigit()]
    if not commits:
        return False
    newest = max(commits, key=batch_of)
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    return True


def run_killed_query(
    on_spark: SparkOnLogs, source: str, sink: str, checkpoint: Path, notes: Path, **options: Any
) -> None:
    """Run the query in micro-batches of forty rows with ``TASKS`` tasks. The notes say where to kill."""
    notes.mkdir(exist_ok=True)
    run_query(on_spark, source, sink, checkpoint, "killed_sink", min_partitions=TASKS, notes=notes, **options)


def staged_by(on_spark: SparkOnLogs, name: str) -> list[int]:
    """Return the record count of each segment of a log."""
    return [segment.record_count for segment in on_spark.cluster.open_log(name).info().segments]


def test_a_commit_killed_before_or_after_its_transaction_and_a_task_count_once(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    on_spark.spark.dataSource.register(KilledSink)
    source, sink, notes = f"{log_name}/in", f"{log_name}/out", tmp_path / "notes"
    values = [b"%d" % at for at in range(40)]
    on_spark.cluster.create_log(source)
    with on_spark.cluster.create_log(sink).writer() as service:
        service.append(b"before")
        append(on_spark, source, values)
        notes.mkdir()
        for note in (f"task-0-{TASKS - 1}", "before-0", "after-0"):
            (notes / note).touch()
        for _ in range(2):
            with pytest.raises(Exception, match=r"crashed|EOF|reset|exited"):
                run_killed_query(on_spark, source, sink, tmp_path / "checkpoint", notes)
        run_killed_query(on_spark, source, sink, tmp_path / "checkpoint", notes)
        service.append(b"after")
    assert list(notes.iterdir()) == []
    assert contents(on_spark, sink) == [b"before", *values, b"after"]
    assert staged_by(on_spark, sink) == [1, 10, 10, 10, 10, 1]


@pytest.mark.soak
def test_rows_in_are_rows_out_whatever_is_killed_and_whoever_leads(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    on_spark.spark.dataSource.register(KilledSink)
    source, sink = f"{log_name}/in", f"{log_name}/out"
    checkpoint, notes = tmp_path / "checkpoint", tmp_path / "notes"
    on_spark.cluster.create_log(source)
    on_spark.cluster.create_log(sink)
    notes.mkdir()
    rng = random.Random(8)
    jvm = on_spark.spark.sparkContext._gateway.proc.pid
    values: list[bytes] = []
    ordinary: list[bytes] = []
    counted = dict.fromkeys(("at random", "tasks", "before", "after", "failed", "forgotten", "beside"), 0)
    for number in range(RESTARTS):
        more = [b"%d" % at for at in range(len(values), len(values) + ROWS)]
        append(on_spark, source, more)
        values += more
        numbers = [batch_of(path) for path in checkpoint.glob("commits/*") if path.name.isdigit()]
        done = max(numbers, default=-1)
        written = {f"before-{done + rng.randint(1, 3)}", f"after-{done + rng.randint(1, 3)}"}
        written |= {f"task-{done + rng.randint(1, 3)}-{rng.randrange(TASKS)}" for _ in range(3)}
        for note in written:
            (notes / note).touch()
        with contextlib.ExitStack() as held:
            leader = None
            if number % 4 == 1:
                leader = held.enter_context(on_spark.cluster.open_log(sink).writer())
                ordinary.append(b"ordinary %d" % number)
                leader.append(ordinary[-1])
            try:
                with Killer(jvm, number) if number % 3 == 2 else contextlib.nullcontext() as killer:
                    run_killed_query(on_spark, source, sink, checkpoint, notes)
            except Exception:
                counted["failed"] += 1
            counted["at random"] += killer.killed if killer is not None else 0
            if leader is not None:
                # On a slow machine a leader may answer too late, and is deposed.
                with contextlib.suppress(LostLeadership):
                    leader.append(b"ordinary, late %d" % number)
                    ordinary.append(b"ordinary, late %d" % number)
                    counted["beside"] += 1
        for note in written:
            counted[{"b": "before", "a": "after", "t": "tasks"}[note[0]]] += not (notes / note).exists()
            (notes / note).unlink(missing_ok=True)
        counted["forgotten"] += number % 2 and forget_newest_commit(checkpoint)
        there = [value for value in contents(on_spark, sink) if not value.startswith(b"ordinary")]
        assert there == values[: len(there)]
    run_killed_query(on_spark, source, sink, checkpoint, notes)
    written_out = contents(on_spark, sink)
    assert [value for value in written_out if not value.startswith(b"ordinary")] == values
    assert [value for value in written_out if value.startswith(b"ordinary")] == ordinary
    assert len(staged_by(on_spark, sink)) < 2 * LOG_GATHER_LEDGERS_MIN, "small ledgers are gathered"
    print(f"{len(values)} rows, {RESTARTS} restarts, killed or otherwise: {counted}")
    assert all(counted.values())


@pytest.mark.soak
def test_two_drivers_on_one_checkpoint_write_every_row_once(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    source, sink, checkpoint = f"{log_name}/in", f"{log_name}/out", tmp_path / "checkpoint"
    on_spark.cluster.create_log(source)
    on_spark.cluster.create_log(sink)
    stop = tmp_path / "stop"
    program = Path(__file__).with_name("driver_of_two.py")
    command = [sys.executable, str(program), on_spark.uri, source, sink, str(checkpoint), str(stop)]
    with contextlib.ExitStack() as running:
        errors = [running.enter_context((tmp_path / f"driver-{number}.log").open("wb")) for number in (1, 2)]
        drivers = [
            running.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log))
            for log in errors
        ]
        running.callback(stop.touch)
        values: list[bytes] = []
        for _ in range(DRIVER_ROUNDS):
            more = [b"%d" % at for at in range(len(values), len(values) + ROWS)]
            append(on_spark, source, more)
            values += more
            wait_until_there(on_spark, sink, len(values), drivers)
        stop.touch()
        said = [json.loads(driver.communicate(timeout=PATIENCE_S)[0]) for driver in drivers]
    run_query(on_spark, source, sink, checkpoint)
    assert contents(on_spark, sink) == values
    print(f"{len(values)} rows by two drivers: {said}")
    assert sum(each["started"] for each in said) > 2
    assert sum(each["refused"] for each in said) > 0


def wait_until_there(on_spark: SparkOnLogs, name: str, count: int, drivers: list[Any]) -> None:
    deadline = time.monotonic() + WRITTEN_S
    while len(contents(on_spark, name)) < count:
        assert time.monotonic() < deadline
        assert [driver.poll() for driver in drivers] == [None, None]
        time.sleep(0.3)


@pytest.mark.soak
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
        forgotten += number % 2 and forget_newest_commit(checkpoint)
        there = contents(on_spark, sink)
        assert there == values[: len(there)]
    run_query(on_spark, source, sink, checkpoint)
    assert contents(on_spark, sink) == values
    print(f"{len(values)} rows, {killed} processes killed, {failures} runs failed, {forgotten} forgotten")
    assert killed >= RESTARTS // 2
