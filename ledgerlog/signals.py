"""What signals do to a command that runs long, the same for every one of ours.

SIGINT, SIGTERM and SIGHUP end it cleanly; SIGHUP is left alone where it is ignored at the start, which is
what ``nohup`` asks for. SIGUSR1 and SIGUSR2, which end a process that knows nothing of them at once, do
nothing: whoever sends them hopes for a report or another log file, and not for a crash.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Generic, TypeVar

import attrs
import trio

__all__ = ["Returned", "receiving_stops", "run_until_stopped", "stop_signals", "surviving_others"]

T = TypeVar("T")

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OTHER = (signal.SIGUSR1, signal.SIGUSR2)


def stop_signals() -> list[signal.Signals]:
    """Those that end a command."""
    return [
        number
        for number in _STOP
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    ]


@contextmanager
def surviving_others() -> Iterator[None]:
    """For the body, the signals that mean nothing to us do nothing. Not by ignoring them, which processes
    that are started meanwhile would inherit."""

    def do_nothing(number: int, frame: FrameType | None) -> None:
        pass

    handlers = {
        number: signal.signal(number, do_nothing)
        for number in _OTHER
        if signal.getsignal(number) is signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def receiving_stops() -> Iterator[AsyncIterator[int]]:
    """The signals that end the command, as they come, for the body; the others do nothing meanwhile."""
    with surviving_others(), trio.open_signal_receiver(*stop_signals()) as signals:
        yield signals


@attrs.frozen
class Returned(Generic[T]):
    value: T


async def run_until_stopped(body: Callable[[], Awaitable[T]]) -> Returned[T] | signal.Signals:
    """What ``body`` returned, or the first signal, which cancelled it; the later ones change nothing.

    What the body raises comes out, perhaps in a group."""
    returned: list[Returned[T]] = []
    received: list[signal.Signals] = []
    with receiving_stops() as signals:
        async with trio.open_nursery() as nursery:
            running = trio.CancelScope()

            async def listen() -> None:
                # Until the body has cleaned up: trio raises a signal again that nobody took, and that would
                # end the process in the middle.
                async for number in signals:
                    received.append(signal.Signals(number))
                    running.cancel()

            nursery.start_soon(listen)
            with running:
                returned.append(Returned(await body()))
            nursery.cancel_scope.cancel()
    return returned[0] if returned else received[0]
