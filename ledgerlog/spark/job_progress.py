"""A job of Spark's that somebody waits for: it runs in a thread of its own, and whoever waits sees how many
of its tasks are done. An interruption ends them."""

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
"""Told how many tasks are done, and of how many."""


def watched(spark: SparkSession, what: str, work: Callable[[], T], on_progress: Progress | None) -> T:
    """What ``work`` returns or raises, while ``on_progress`` is told of the tasks that it has started."""
    context = spark.sparkContext
    group = f"ledgerlog {what} {next(_numbers)}"
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            context.setJobGroup(group, what, interruptOnCancel=True)
            results.append(work())
        except BaseException as failure:  # Raised below, where somebody waits for it.
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
