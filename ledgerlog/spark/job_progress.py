"""Running a Spark job in a separate thread, so that the caller sees how many of its tasks are done.

If the caller is interrupted, the job is cancelled. If Spark does not end the job in time, for example because
its driver hangs, the caller continues without it.

A session is in this process, or it is a client of Spark Connect. A client has no SparkContext: it tags the
job to cancel it, and the server reports the stages of each operation. Nothing else of ``ledgerlog.spark``
asks which kind a session is.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from pyspark.sql import SparkSession

__all__ = ["Progress", "parallelism", "watched"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_LOOK_S = 0.2
_CANCEL_S = 30.0
"""How long to wait for the end of a job that was cancelled."""
_PARTITIONS_MAX = 1 << 16
_numbers = itertools.count()

Progress = Callable[[int, int], None]
"""Called with two numbers: the tasks that are done, and all tasks."""


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks the session runs at a time: Spark splits a range into that many parts.

    This runs a small job, because a client of Spark Connect cannot just ask. It counts up to 65,536 tasks.
    """
    return spark.range(_PARTITIONS_MAX).selectExpr("spark_partition_id()").distinct().count()


class _Job(Protocol):
    """A Spark job that a thread runs."""

    def begin(self) -> None:
        """Mark all that the calling thread runs from now on as part of this job."""

    def tasks(self) -> tuple[int, int]:
        """Return how many tasks are done, and how many there are."""

    def cancel(self) -> None:
        """Cancel the work of the thread."""

    def end(self) -> None:
        """Forget the job."""


class _ContextJob:
    """A job of a session in this process."""

    def __init__(self, spark: SparkSession, group: str, what: str) -> None:
        self._context = spark.sparkContext
        self._group = group
        self._what = what

    def begin(self) -> None:
        self._context.setJobGroup(self._group, self._what, interruptOnCancel=True)

    def tasks(self) -> tuple[int, int]:
        tracker = self._context.statusTracker()
        done = total = 0
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            for stage in () if info is None else info.stageIds:
                found = tracker.getStageInfo(stage)
                if found is not None:
                    done += found.numCompletedTasks
                    total += found.numTasks
        return done, total

    def cancel(self) -> None:
        self._context.cancelJobGroup(self._group)

    def end(self) -> None:
        pass


class _ConnectJob:
    """A job of a client of Spark Connect."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark = spark
        self._tag = tag
        self._thread: threading.Thread | None = None
        self._stages: dict[int, tuple[int, int]] = {}
        spark.registerProgressHandler(self._told)  # type: ignore[arg-type]  # It is any callable.

    def _told(self, *, stages: Iterable[Any] | None, **_: object) -> None:
        # The client calls this in the thread that waits for the operation, and for all operations.
        if threading.current_thread() is self._thread:
            for stage in stages or ():
                self._stages[stage.stage_id] = stage.num_completed_tasks, stage.num_tasks

    def begin(self) -> None:
        self._thread = threading.current_thread()
        self._spark.addTag(self._tag)

    def tasks(self) -> tuple[int, int]:
        stages = list(self._stages.values())
        return sum(done for done, _ in stages), sum(total for _, total in stages)

    def cancel(self) -> None:
        self._spark.interruptTag(self._tag)

    def end(self) -> None:
        self._spark.removeProgressHandler(self._told)  # type: ignore[arg-type]  # It is any callable.


def watched(spark: SparkSession, what: str, work: Callable[[], T], on_progress: Progress | None) -> T:
    """Run ``work`` in a thread, and report the progress of the Spark tasks that it starts.

    Args:
        spark: The session.
        what: A description of the job, for Spark's displays.
        work: Runs Spark jobs.
        on_progress: Called several times a second; None: report nothing.

    Returns:
        The result of ``work``. If ``work`` raises an error, this function raises the same error.
    """
    name = f"ledgerlog {what} {next(_numbers)}"
    is_here = isinstance(spark, SparkSession)  # A client has another class.
    job: _Job = _ContextJob(spark, name, what) if is_here else _ConnectJob(spark, name.replace(",", " "))
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            job.begin()
            results.append(work())
        except BaseException as failure:  # The caller's thread raises the error below.
            failures.append(failure)

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
        while thread.is_alive():
            thread.join(_LOOK_S)
            if on_progress is not None:
                on_progress(*job.tasks())
    except BaseException:
        _cancel(job, thread, name)
        raise
    finally:
        job.end()
    if failures:
        raise failures[0]
    return results[0]


def _cancel(job: _Job, thread: threading.Thread, name: str) -> None:
    is_over = threading.Event()

    def cancel() -> None:
        while thread.is_alive() and not is_over.is_set():  # The thread may not have begun the job yet.
            try:
                job.cancel()
            except Exception as failure:
                logger.warning("%s cannot be cancelled: %s", name, failure)
                return
            thread.join(_LOOK_S)

    # Spark may hang in ``cancel`` too.
    cancelling = threading.Thread(target=cancel, name=f"cancel {name}", daemon=True)
    cancelling.start()
    cancelling.join(_CANCEL_S)
    is_over.set()
    if thread.is_alive():
        logger.warning("%s was cancelled, and Spark has not ended it within %g s", name, _CANCEL_S)
