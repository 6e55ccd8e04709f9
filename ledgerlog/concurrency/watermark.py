"""A number that only grows, and the tasks that wait for it to reach theirs.

This is how completion is told everywhere on the write path: an entry is confirmed when the last add
confirmed reaches its id, a record is durable when the log's watermark reaches its ticket. One
``advance`` answers a whole batch of waiters, and a waiter costs one small object and one reschedule
instead of an event, a channel or a task.

**Invariants.**

* ``value`` never decreases. ``failure`` is set at most once, and ``value`` does not move afterwards.
* A waiter whose level is at or below ``value`` has been rescheduled; all others, if there is no
  failure, sit in ``_waiters`` in the order of their levels, those of one level in the order of their
  arrival. Levels almost always arrive in growing order, so finding the place means one comparison.
* A waiter that was cancelled has no task. It stays in the queue until ``advance`` passes it or until
  the dead outnumber the living, whichever is first: cancelling is O(1) on average, and a caller that
  gives up and comes back again and again in front of a stalled watermark holds no memory.

**Failures are data** (an expected fault is stored, and raised in the task of whoever asks). Each
waiter raises a copy of its own: one exception object that is raised in a thousand tasks would collect
a thousand tracebacks, and each would show its reader the stack of somebody else.
"""

from __future__ import annotations

from collections import deque
from typing import TypeVar

import trio
from trio.lowlevel import Abort, current_task, reschedule, wait_task_rescheduled

__all__ = ["Watermark", "fresh"]

E = TypeVar("E", bound=BaseException)

_DEAD_MIN = 64
"""Below so many cancelled waiters the queue is not worth sweeping."""


def fresh(failure: E) -> E:
    """A copy of an exception, equal in type, message, attributes and cause, without a traceback.

    The constructor is not called, so it works for exceptions whose message is made from other
    arguments. The caller raises the copy; ``failure`` itself is never raised twice."""
    copy = type(failure).__new__(type(failure), *failure.args)
    copy.args = failure.args
    copy.__dict__.update(failure.__dict__)
    copy.__cause__ = failure.__cause__
    copy.__suppress_context__ = failure.__suppress_context__
    return copy


class _Waiter:
    """One waiting task; ``task`` is None once it was woken or cancelled."""

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
    """A growing number to wait for. Belongs to one trio loop; the methods that are not ``wait`` are
    synchronous and may be called from anywhere in that loop, from a callback as well."""

    __slots__ = ("_dead", "_failure", "_value", "_waiters")

    def __init__(self, value: int = -1) -> None:
        self._value = value
        self._failure: BaseException | None = None
        self._waiters: deque[_Waiter] = deque()
        self._dead = 0

    @property
    def value(self) -> int:
        """How far it has come."""
        return self._value

    @property
    def failure(self) -> BaseException | None:
        """Why it will never move again, or None."""
        return self._failure

    def advance(self, to: int) -> None:
        """Move to ``to`` and wake everybody who waits for that or for less. Moving to where it is
        already is allowed and does nothing; moving back, or after ``fail``, is a bug."""
        assert to >= self._value, f"a watermark at {self._value} never goes back to {to}"
        assert self._failure is None or to == self._value, "a watermark that has failed does not move"
        self._value = to
        waiters = self._waiters
        while waiters and waiters[0].level <= to:
            self._wake(waiters.popleft())

    def fail(self, failure: BaseException) -> None:
        """Wake everybody who still waits, with a copy of ``failure``, and let every later ``wait`` for
        more than ``value`` raise one too. The first failure stands; a second call changes nothing."""
        if self._failure is not None:
            return
        self._failure = failure
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            self._wake(waiter)

    async def wait(self, level: int) -> None:
        """Return once ``value`` is at least ``level``. Always a checkpoint.

        Raises a copy of the failure where the watermark has failed below ``level``. Being cancelled
        changes nothing for anybody else; a waiter that was reached before its cancellation was
        delivered returns."""
        if level <= self._value:
            await trio.lowlevel.checkpoint()
            return
        if self._failure is None:
            waiter = _Waiter(self, level, current_task())
            waiters = self._waiters
            if not waiters or waiters[-1].level <= level:
                waiters.append(waiter)
            else:
                self._insert(waiter)
            await wait_task_rescheduled(waiter.abort)
            if level <= self._value:
                return
        else:
            await trio.lowlevel.checkpoint()
        assert self._failure is not None, "a waiter is woken when it is reached or when all fail"
        raise fresh(self._failure)

    # --- the queue -------------------------------------------------------------------------------

    def _insert(self, waiter: _Waiter) -> None:
        """The slow way in, for a level below one that is waited for already."""
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
