"""A Spark job is watched, and cancelled with its caller, on each kind of session."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ledgerlog.spark
from ledgerlog.spark import job_progress
from ledgerlog.spark.job_progress import parallelism, watched
from tests.spark.conftest import SparkOnLogs
from tests.waiting import PATIENCE_S


class Connected:
    """The part of a client of Spark Connect that is used. It has no ``sparkContext``."""

    def __init__(self) -> None:
        self.handlers: list[Callable[..., None]] = []
        self.tags: dict[threading.Thread, str] = {}
        self.interrupted = threading.Event()
        self.registerProgressHandler = self.handlers.append
        self.removeProgressHandler = self.handlers.remove

    def addTag(self, tag: str) -> None:
        assert "," not in tag, "Spark refuses such a tag"
        self.tags[threading.current_thread()] = tag

    def interruptTag(self, tag: str) -> None:
        if tag in self.tags.values():
            self.interrupted.set()

    def tell(self, *stages: tuple[int, int, int]) -> None:
        told = [
            SimpleNamespace(stage_id=at, num_tasks=of, num_completed_tasks=done) for at, done, of in stages
        ]
        for handler in self.handlers:
            handler(stages=told, inflight_tasks=0, operation_id="x", done=False)


def test_a_client_of_spark_connect_counts_the_tasks_of_its_own_job() -> None:
    spark: Any = Connected()
    seen: list[tuple[int, int]] = []
    is_seen = threading.Event()

    def see(done: int, total: int) -> None:
        seen.append((done, total))
        if total >= 6:
            is_seen.set()

    def work() -> str:
        spark.tell((0, 1, 4))
        spark.tell((0, 4, 4), (1, 1, 2))
        other = threading.Thread(target=lambda: spark.tell((7, 0, 100)))  # Another job of the session.
        other.start()
        other.join()
        assert is_seen.wait(PATIENCE_S)
        return "result"

    assert watched(spark, "one, two", work, see) == "result"
    assert (5, 6) in seen
    assert all(total <= 6 for _, total in seen)
    assert spark.handlers == []


def test_a_job_on_spark_connect_is_cancelled_with_its_caller(interruptible: None) -> None:
    spark: Any = Connected()

    def work() -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        spark.interrupted.wait(PATIENCE_S)
        raise ValueError("interrupted")

    with pytest.raises(KeyboardInterrupt):
        watched(spark, "work", work, None)
    assert spark.interrupted.is_set()
    assert spark.handlers == []


@pytest.mark.parametrize("what", ["the job", "the cancellation"])
def test_a_caller_goes_on_without_a_job_that_spark_does_not_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    monkeypatch.setattr(job_progress, "_CANCEL_S", 0.1)
    spark: Any = Connected()
    let_go = threading.Event()
    if what == "the cancellation":
        spark.interruptTag = lambda tag: let_go.wait()

    def tell(done: int, total: int) -> None:
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            watched(spark, "work", let_go.wait, tell)
        assert "Spark has not ended it" in caplog.text
        assert spark.handlers == []
    finally:
        let_go.set()


def test_a_cancellation_that_fails_does_not_hide_why_it_was_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spark: Any = Connected()
    let_go = threading.Event()

    def refuse(tag: str) -> None:
        let_go.set()
        raise ConnectionError("the session is gone")

    spark.interruptTag = refuse

    def tell(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched(spark, "work", let_go.wait, tell)
    assert "cannot be cancelled: the session is gone" in caplog.text


def test_an_error_of_the_job_is_raised_as_it_is() -> None:
    spark: Any = Connected()

    def work() -> None:
        raise ValueError("the reason")

    with pytest.raises(ValueError, match="the reason"):
        watched(spark, "work", work, None)


def test_only_the_job_of_a_session_in_this_process_uses_its_context() -> None:
    """And the end of the lines about progress, which ignores that a session of Spark Connect has none."""
    folder = Path(ledgerlog.spark.__file__).parent
    using = {
        path.name: len(re.findall(r"\bsparkContext\b|\.rdd\b|\._jsparkSession\b|\._jvm\b|\._jdf\b", text))
        for path in folder.glob("*.py")
        if (text := path.read_text(encoding="utf-8"))
    }
    assert {name: count for name, count in using.items() if count} == {
        "job_progress.py": 1,
        "progress.py": 1,
    }


@pytest.mark.processes
def test_a_session_is_asked_how_many_tasks_it_runs(on_spark: SparkOnLogs) -> None:
    assert parallelism(on_spark.spark) == on_spark.spark.sparkContext.defaultParallelism


@pytest.mark.processes
def test_a_job_of_a_session_in_this_process_is_cancelled_with_its_caller(
    on_spark: SparkOnLogs, tmp_path: Path
) -> None:
    spark = on_spark.spark
    seen: list[tuple[int, int]] = []

    marker = tmp_path / "ended"

    def wait_long(batches: Any) -> Any:
        threading.Event().wait(PATIENCE_S)
        marker.touch()
        yield from batches

    def tell(done: int, total: int) -> None:
        seen.append((done, total))
        if total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched(
            spark,
            "waiting",
            spark.range(2).repartition(2).mapInArrow(wait_long, "id LONG").collect,
            tell,
        )
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
    assert not marker.exists()
