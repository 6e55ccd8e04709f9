"""Running a Spark job in a separate thread, so that the caller sees how many of its tasks are done.

If the caller is interrupted, the job is cancelled."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.sql import SparkSession

__all__ = ["Progress", "watched"]

T = TypeVar("T")

_LOOK_S = 0.2
_numbers = itertools.count()

Progress = Callable[[int, int], None]
"""Called with two numbers: the tasks that are done, and all tasks."""


def watched(spark: SparkSession, what: str, work: Callable[[], T], on_progress: Progress | None) -> T:
    """Run ``work`` in a thread, and report the progress of the Spark tasks that it starts.

    Args:
        spark: The session.
        what: A description of the job, for Spark's displays.
        work: Runs Spark jobs.
        on_progress: Called several times a second; None: report nothing.

    Returns:
        What ``work`` returns. If ``work`` raises an error, this function raises the same error.
    """
    context = spark.sparkContext
    group = f"ledgerlog {what} {next(_numbers)}"
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            context.setJobGroup(group, what, interruptOnCancel=True)
            results.append(work())
        except BaseException as failure:  # The caller's thread raises the error below.
            failures.append(failure)

    thread = threading.Thread(target=run, name=group, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_S)
            if on_progress is not None:
                on_progress(*_tasks(context, group))
    except BaseException:
        context.cancelJobGroup(group)
        thread.join()
        raise
    if failures:
        raise failures[0]
    return results[0]


def _tasks(context: Any, group: str) -> tuple[int, int]:
    """Return how many tasks of a job group are done, and how many there are."""
    tracker = context.statusTracker()
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in () if info is None else info.stageIds:
            found = tracker.getStageInfo(stage)
            if found is not None:
                done += found.numCompletedTasks
                total += found.numTasks
    return done, total
