"""Ticks for an open loop: a timer that is exact to some microseconds.

``trio.sleep`` goes through epoll, which counts milliseconds. At 5,000 records a second that would add half a
millisecond to every latency. A timerfd is exact, and the loop waits for it like for any descriptor. Python
has timerfd in ``os`` only from 3.13 on, so this module calls libc.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import trio

__all__ = ["ticks"]

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Ticks:
    """A timerfd that ticks at a fixed interval."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def wait(self) -> None:
        """Wait for the next tick. Several missed ticks count as one."""
        await trio.lowlevel.wait_readable(self._descriptor)
        os.read(self._descriptor, 8)


@contextmanager
def ticks(interval_s: float) -> Iterator[Ticks]:
    """Tick every ``interval_s`` seconds during the body."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        seconds, nanoseconds = divmod(max(1, round(interval_s * 1e9)), 10**9)
        every = _Timespec(seconds, nanoseconds)
        if libc.timerfd_settime(descriptor, 0, ctypes.byref(_Itimerspec(every, every)), None) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        yield Ticks(descriptor)
    finally:
        os.close(descriptor)
