"""Running a command's async body: one loop, a clean end on signals, and no exception groups.

This holds the only ``trio.run`` of the command line. SIGINT, SIGTERM and SIGHUP (``ledgerlog.signals``)
cancel the body, whose context managers then end what it started; what they do is bounded in time by
themselves, so further signals are taken and change nothing. A command that only an interruption ends
(``run_until_interrupted``) is done then; any other raises ``Interrupted``, which ``main`` turns into the exit
code that shells know.

A command that runs no loop of its own, or loops of others (``simulate``), is ``interruptible``.

Nurseries wrap what leaves them in groups. ``unwrap`` finds the one exception that a person should
hear about: what is not of our tree (a bug) before what is, and nothing before its cause. The others
of a group are its consequences or its like, and are added as notes.
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
    """What ``body`` returns. Interrupted for a signal; else what the body raises, never as a group."""
    outcome = _run(body)
    if isinstance(outcome, signal.Signals):
        raise Interrupted(outcome)
    return outcome.value


def run_until_interrupted(body: Callable[[], Awaitable[object]]) -> None:
    """Run ``body`` until it ends or a signal ends it. Raises what the body raises, never as a group."""
    _run(body)


def _run(body: Callable[[], Awaitable[T]]) -> Returned[T] | signal.Signals:
    with ungrouped():
        return trio.run(run_until_stopped, body)


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Interrupted for a signal that comes in the body, which is left wherever it is.

    What the signal raises there may come out in a group, or be taken for a failure of what was running. So
    whatever the body does then, it was interrupted; and the body calls what it is given before it relies on
    an outcome, which raises then as well."""
    received: list[signal.Signals] = []

    def check() -> None:
        if received:
            raise Interrupted(received[0])

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
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


@contextmanager
def ungrouped() -> Iterator[None]:
    """Lets what leaves the body out as one exception; a group with a cancellation in it stays as it is."""
    try:
        yield
    except BaseExceptionGroup as group:
        if group.subgroup(trio.Cancelled) is not None:
            raise
        error = unwrap(group)
        # The group is not the cause: it says nothing that the exception does not.
        raise error from error.__cause__


def unwrap(error: BaseException) -> BaseException:
    """The one exception to report; ``error`` itself where it is no group."""
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
