"""An archive job on Spark ends hard at each step. Everyone reads the whole log, and a second run mends.

Steps in tasks and steps in the driver count together. At the step that is its turn, a task's process ends
without a word, and the driver begins nothing more. Tasks that run meanwhile end at their own next step.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark import cloudpickle

from ledgerlog.archive.jobs.publishing import TableOptions
from ledgerlog.archive.table import CATALOG_FILE, CATALOG_NAME
from ledgerlog.ledger.environment import Environment
from ledgerlog.model.record import Record
from ledgerlog.spark import archive
from ledgerlog.spark.archive import archive_on_spark
from tests.spark.conftest import EVERY_COPY, SparkOnLogs

pytestmark = pytest.mark.processes

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's processes cannot import the tests.

TABLE = TableOptions()


class Crash(Exception):
    """The driver ends here."""


class Steps:
    """The steps that a job has reached, in all its processes: lines of a file. At one of them the job ends.

    Args:
        path: The file.
        last: The number of the step at which the job ends, from 0.
    """

    def __init__(self, path: Path, last: int) -> None:
        self._path = path
        self._last = last

    def reach(self, step: str) -> bool:
        """Note a step. Return whether the job has ended."""
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{step}\n".encode())
            end = os.lseek(file, 0, os.SEEK_CUR)
            return os.pread(file, end, 0).count(b"\n") > self._last
        finally:
            os.close(file)

    def reached(self) -> list[str]:
        return self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []

    def is_over(self) -> bool:
        return len(self.reached()) > self._last


def ending(steps: Steps, end: Callable[[], None], work: Callable[[], Any]) -> Any:
    """Do ``work``. If it reaches the last step, call ``end``."""
    original = Environment.mark

    def mark(_: Environment, step: str) -> None:
        if step.startswith("archive: ") and steps.reach(step.removeprefix("archive: ")):
            end()

    Environment.mark = mark
    try:
        return work()
    finally:
        Environment.mark = original


def in_tasks(steps: Steps, generates: Callable[..., Iterable[Any]]) -> Callable[..., Iterator[Any]]:
    """Return what a task does instead: it ends its process at the last step, and does nothing after it."""

    def work(*given: Any) -> Iterator[Any]:
        if not steps.is_over():
            yield from ending(steps, lambda: os._exit(1), lambda: list(generates(*given)))

    return work


def run(steps: Steps, monkeypatch: pytest.MonkeyPatch, job: Callable[[], Any]) -> bool:
    """Run a job that ends at a step. Return whether it came to its own end."""

    def die() -> None:
        raise Crash

    def connected(*given: Any, **options: Any) -> Any:
        if steps.is_over():
            die()
        return run_connected(*given, **options)

    run_connected = archive.run_connected
    with monkeypatch.context() as patched:
        patched.setattr(archive, "run_connected", connected)
        patched.setattr(archive, "_steps_of_task", in_tasks(steps, archive._steps_of_task))
        try:
            ending(steps, die, job)
        except Crash:
            return False
    return True


def records_of(on_spark: SparkOnLogs, name: str) -> list[Record]:
    with on_spark.cluster.open_log(name).read() as reader:
        return list(reader)


def shown(where: Path, name: str) -> list[tuple[int, bytes]]:
    """Read the table with DuckDB and with pandas, as programs that know nothing of logs."""
    catalog = SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{where / CATALOG_FILE}")
    scan = catalog.load_table(("ledgerlog", name)).scan(selected_fields=("offset", "value"))
    rows = scan.to_duckdb("log").execute("SELECT * FROM log ORDER BY ALL").fetchall()
    frame = scan.to_pandas().sort_values("offset")
    catalog.close()
    assert list(frame.itertuples(index=False, name=None)) == rows
    return rows


def rows_of(records: Iterable[Record]) -> list[tuple[int, bytes]]:
    return [(record.offset, record.data) for record in records]


def fill(on_spark: SparkOnLogs, name: str, ledgers: int) -> None:
    with on_spark.cluster.open_log(name).writer() as writer:
        for number in range(ledgers):
            if number:
                writer.roll()
            writer.append_many([b"%d of %d" % (at, number) for at in range(3)])


@pytest.mark.parametrize("ledgers", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_an_archive_job_on_spark_that_ends_at_any_step_is_mended_by_the_next(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ledgers: int
) -> None:
    where = tmp_path / "archive"

    def job() -> list[Any]:
        return archive_on_spark(
            on_spark.spark, on_spark.uri, log_name, str(where), keep_copies_s=0, table=TABLE
        )

    on_spark.cluster.create_log(log_name, replication=EVERY_COPY)
    fill(on_spark, log_name, 1)
    assert [step.what for step in job()] == ["copied", "published"]
    for number in itertools.count():
        earlier = shown(where, log_name)
        fill(on_spark, log_name, ledgers)
        filled = records_of(on_spark, log_name)
        steps = Steps(tmp_path / f"steps-{number}", number)
        is_over = run(steps, monkeypatch, job)
        assert records_of(on_spark, log_name) == filled, steps.reached()
        assert shown(where, log_name) in (earlier, rows_of(filled)), steps.reached()
        if is_over:
            break
        assert {step.what for step in job()} <= {"copied", "given up", "published", "cleaned"}, (
            steps.reached()
        )
        assert records_of(on_spark, log_name) == filled, steps.reached()
        assert shown(where, log_name) == rows_of(filled), steps.reached()
    seen = steps.reached()
    assert number == len(seen), "each of its steps had its turn"
    assert [seen.count(step) for step in ("recorded", "copies given up", "table published")] == [
        ledgers,
        ledgers,
        1,
    ]
    print(f"{number} steps: {seen}")
