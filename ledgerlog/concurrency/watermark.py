"""A number that only grows, and tasks that wait until it reaches their level.

The whole write path reports completion in this way. An entry is confirmed when the last add confirmed (LAC)
reaches its id. A record is durable when the log's watermark reaches its ticket. One ``advance`` wakes a whole
batch of waiters. A waiter costs one small object and one reschedule, and needs no event, channel or task of
its own.

**Invariants.**

* ``value`` never decreases. ``failure`` is set at most once, and ``value`` does not move afterwards.
* A waiter whose level is at or below ``value`` has been rescheduled. If there is no failure, all other
  waiters are in ``_waiters``, ordered by level, and by arrival within one level. Levels almost always arrive
  in growing order, so one comparison usually finds the place of a new waiter.
* A cancelled waiter has no task. It stays in the queue until ``advance`` passes it, or until cancelled
  waiters are more than half of the queue (and more than 64): then all cancelled waiters are removed.
  Cancelling is therefore O(1) on average. Even if a caller waits and gives up again and again while the
  watermark is stalled, the queue stays small.

**Failures are data.** ``fail`` stores an expected fault, and each waiter raises it in its own task. Each
waiter raises its own copy. If a thousand tasks raised the same exception object, it would collect a thousand
tracebacks, and a user would see the stacks of other tasks.
"""

from __future__ import annotations

from collections import deque
from typing import TypeVar

import trio
from trio.lowlevel import Abort, current_task, reschedule, wait_task_rescheduled

__all__ = ["Watermark", "fresh"]

E = TypeVar("E", bound=BaseException)

_DEAD_MIN = 64
"""The queue is swept only if it holds more cancelled waiters than this."""


def fresh(failure: E) -> E:
    """Copy an exception: same type, message, attributes and cause, but no traceback.

    The copy is made without calling the constructor, because the arguments of some constructors are not the
    exception's ``args``. Raise the copy, and never raise ``failure`` itself.
    """
    copy = type(failure).__new__(type(failure), *failure.args)
    copy.args = failure.args
    copy.__dict__.update(failure.__dict__)
    copy.__cause__ = failure.__cause__
    copy.__suppress_context__ = failure.__suppress_context__
    return copy


class _Waiter:
    """One waiting task; ``task`` is None after it was woken or cancelled."""

    __slots__ = ("level", "task", "watermark")

    def __init__(self, watermark: Watermark, level: int, task: trio.lowlevel.Task) -> None:
        self.watermark = watermark
        self.level = level
        self.task: trio.lowlevel.Task | None = task

    def abort(self, _raise_cancel: object) -> Abort:
        self.task = None
        self.watermark._on_cancelled()
        return Abort.SUCCEEDED


class Watermark:
    """A growing number to wait for.

    A watermark belongs to one trio loop. All methods but ``wait`` are synchronous; you may call them from
    anywhere in that loop, callbacks included.

    Args:
        value: The first value; -1 means that nothing has completed.
    """

    __slots__ = ("_dead", "_waiters", "failure", "value")

    def __init__(self, value: int = -1) -> None:
        self.value = value
        """The current value. Only ``advance`` changes it."""
        self.failure: BaseException | None = None
        """Why the value will never move again; None if nothing has failed. Only ``fail`` changes it."""
        self._waiters: deque[_Waiter] = deque()
        self._dead = 0

    def advance(self, to: int) -> None:
        """Move to ``to`` and wake every waiter whose level is at or below it.

        If the value is ``to`` already, nothing happens. Moving back is a bug, and so is moving after
        ``fail``.
        """
        assert to >= self.value, f"a watermark at {self.value} never goes back to {to}"
        assert self.failure is None or to == self.value, "a watermark that has failed does not move"
        self.value = to
        waiters = self._waiters
        while waiters and waiters[0].level <= to:
            self._wake(waiters.popleft())

    def fail(self, failure: BaseException) -> None:
        """Store ``failure`` and wake all waiters; each raises a copy of it.

        Every later ``wait`` for more than ``value`` raises a copy as well. The first failure is kept: later
        calls change nothing.
        """
        if self.failure is not None:
            return
        self.failure = failure
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            self._wake(waiter)

    async def wait(self, level: int) -> None:
        """Return when ``value`` is at least ``level``. Always a checkpoint.

        Args:
            level: The value to wait for.

        Raises:
            BaseException: A copy of ``failure``, if the watermark failed below ``level``.

        Cancelling: no other waiter is affected. If the watermark reached ``level`` before the cancellation
        was delivered, the call returns.
        """
        if level <= self.value:
            await trio.lowlevel.checkpoint()
            return
        if self.failure is None:
            waiter = _Waiter(self, level, current_task())
            waiters = self._waiters
            if not waiters or waiters[-1].level <= level:
                waiters.append(waiter)
            else:
                self._insert(waiter)
            await wait_task_rescheduled(waiter.abort)
            if level <= self.value:
                return
        else:
            await trio.lowlevel.checkpoint()
        assert self.failure is not None, "a waiter is woken when it is reached or when all fail"
        raise fresh(self.failure)

    # --- the queue -------------------------------------------------------------------------------

    def _insert(self, waiter: _Waiter) -> None:
        """The slow path: another task waits for a higher level already."""
        at = len(self._waiters)
        for before in reversed(self._waiters):
            if before.level <= waiter.level:
                break
            at -= 1
        self._waiters.insert(at, waiter)

    def _wake(self, waiter: _Waiter) -> None:
        task = waiter.task
        if task is None:
            self._dead -= 1
            return
        waiter.task = None
        reschedule(task)

    def _on_cancelled(self) -> None:
        self._dead += 1
        if self._dead > _DEAD_MIN and 2 * self._dead > len(self._waiters):
            self._waiters = deque(waiter for waiter in self._waiters if waiter.task is not None)
            self._dead = 0
