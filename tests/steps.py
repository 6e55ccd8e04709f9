"""Counting what tasks do, for tests of what must be idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio

__all__ = ["counted_steps"]


class _Steps(trio.abc.Instrument):
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.counts[task.name] += 1


@contextmanager
def counted_steps() -> Iterator[Counter[str]]:
    """Count the steps of all tasks during the body, by the names of the tasks."""
    steps = _Steps()
    trio.lowlevel.add_instrument(steps)
    try:
        yield steps.counts
    finally:
        trio.lowlevel.remove_instrument(steps)
