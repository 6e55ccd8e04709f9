"""Running a command's async body: one loop, a clean end on signals, and no exception groups.

This module has the only ``trio.run`` of the command line. SIGINT, SIGTERM and SIGHUP (``ledgerlog.signals``)
cancel the body; its context managers then end what it started. Each context manager bounds its own time, so
further signals change nothing. Some commands run until interrupted (``run_until_interrupted``); then a signal
is their normal end. Any other command raises ``Interrupted``, which ``main`` turns into the exit code that
shells know.

If a command runs no loop itself, or several loops (``simulate`` in one process), it uses ``interruptible``.

Nurseries wrap exceptions in groups. ``unwrap`` chooses the one exception to report: the first that is not a
LedgerLogError, because that is a bug; otherwise the first exception. The other exceptions are mostly
consequences of the chosen one. If they have another type, they are added as notes.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import trio

from ledgerlog.errors import LedgerLogError
from ledgerlog.signals import Returned, run_until_stopped, stop_signals, surviving_others

__all__ = ["Interrupted", "interruptible", "run", "run_until_interrupted", "ungrouped", "unwrap"]

T = TypeVar("T")


class Interrupted(BaseException):
    """A signal ended the command before it was done."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"interrupted by {number.name}")
        self.exit_code = 128 + number


def run(body: Callable[[], Awaitable[T]]) -> T:
    """Run ``body`` and return its result.

    Raises Interrupted on a signal, otherwise the error of the body, never as a group.
    """
    outcome = _run(body)
    if isinstance(outcome, signal.Signals):
        raise Interrupted(outcome)
    return outcome.value


def run_until_interrupted(body: Callable[[], Awaitable[object]]) -> None:
    """Run ``body`` until it ends or a signal ends it. Raises the error of the body, never as a group."""
    _run(body)


def _run(body: Callable[[], Awaitable[T]]) -> Returned[T] | signal.Signals:
    with ungrouped():
        return trio.run(run_until_stopped, body)


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Raise Interrupted if a signal arrives during the body. The signal interrupts the body at any point.

    If a trio loop runs, the first signal cancels the loop's tasks. An exception at the place where the signal
    arrives could break the loop, or be lost in code that cannot raise, such as a callback of a C library. If
    the run does not end, because a task never comes to a checkpoint, the next signal raises an exception.

    Inside the body, the signal's exception may get into a group or look like a failure of the running code.
    So if a signal arrived, Interrupted is raised at the end, no matter how the body ends. The body gets a
    function to call before it relies on a result: the call raises Interrupted as well.
    """
    received: list[signal.Signals] = []

    def check() -> None:
        if received:
            raise Interrupted(received[0])

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        if trio.lowlevel.in_trio_run() and (len(received) == 1 or trio.lowlevel.currently_ki_protected()):
            trio.lowlevel.current_trio_token().run_sync_soon(_cancel_this_run)
        else:
            raise KeyboardInterrupt

    handlers = {number: signal.signal(number, receive) for number in stop_signals()}
    try:
        with surviving_others():
            yield check
    except BaseException:
        check()
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    check()


def _cancel_this_run() -> None:
    root = trio.lowlevel.current_root_task()
    assert root is not None, "it is called by a running loop"
    # The last of the root's nurseries has the main task and the system tasks. The one before it runs the
    # body.
    root.child_nurseries[-1].cancel_scope.cancel()


@contextmanager
def ungrouped() -> Iterator[None]:
    """Raise an exception of the body without its group. If the group has a cancellation in it, it stays."""
    try:
        yield
    except BaseExceptionGroup as group:
        if group.subgroup(trio.Cancelled) is not None:
            raise
        error = unwrap(group)
        # Drop the group: as the cause it would add nothing.
        raise error from error.__cause__


def unwrap(error: BaseException) -> BaseException:
    """Return the one exception to report: ``error`` itself if it is not a group."""
    leaves = _leaves(error)
    chosen = next((leaf for leaf in leaves if not isinstance(leaf, LedgerLogError)), leaves[0])
    for leaf in leaves:
        if leaf is not chosen and not isinstance(leaf, type(chosen)):
            chosen.add_note(f"beside it: {type(leaf).__name__}: {leaf}")
    return chosen


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
