"""How a long-running command handles signals. All our commands handle them in the same way.

SIGINT, SIGTERM and SIGHUP end the command cleanly. If SIGHUP is ignored at the start, as under ``nohup``, it
stays ignored. SIGUSR1 and SIGUSR2 do nothing. By default they would end the process at once. But people send
these two to get a report or to reopen a log file, not to end the command.

If a bookie has certificates or a secret, it reads these files again at SIGHUP, and continues. SIGHUP ends
such a bookie only if its terminal is gone.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Generic, TypeVar

import attrs
import trio

from ledgerlog.concurrency.nurseries import open_nursery

__all__ = [
    "Returned",
    "receiving_stops",
    "run_until_stopped",
    "stop_signals",
    "surviving_others",
]

T = TypeVar("T")

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OTHER = (signal.SIGUSR1, signal.SIGUSR2)


def stop_signals() -> list[signal.Signals]:
    """List the signals that end a command."""
    return [
        number
        for number in _STOP
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    ]


@contextmanager
def surviving_others() -> Iterator[None]:
    """Let SIGUSR1 and SIGUSR2 do nothing while the body runs.

    This installs handlers that do nothing. It does not ignore the signals, because processes that the body
    starts would inherit that.
    """

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
    """Yield the signals that end the command, as they arrive. SIGUSR1 and SIGUSR2 do nothing meanwhile."""
    with surviving_others(), trio.open_signal_receiver(*stop_signals()) as signals:
        yield signals


@attrs.frozen
class Returned(Generic[T]):
    """The value that the body of ``run_until_stopped`` returned."""

    value: T


async def run_until_stopped(body: Callable[[], Awaitable[T]]) -> Returned[T] | signal.Signals:
    """Run ``body`` until it returns or a stop signal arrives.

    The first signal cancels the body. Later signals change nothing.

    Args:
        body: The command. If it raises, the exception comes out unchanged.

    Returns:
        The value that ``body`` returned, or the first signal if the signal ended it.
    """
    returned: list[Returned[T]] = []
    received: list[signal.Signals] = []
    with receiving_stops() as signals:
        async with open_nursery() as nursery:
            running = trio.CancelScope()

            async def listen() -> None:
                # Take signals until the body has cleaned up. If a signal is not taken, trio raises it again,
                # which would end the process in the middle of the clean-up.
                async for number in signals:
                    received.append(signal.Signals(number))
                    running.cancel()

            nursery.start_soon(listen)
            with running:
                returned.append(Returned(await body()))
            nursery.cancel_scope.cancel()
    return returned[0] if returned else received[0]
