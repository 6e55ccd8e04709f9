"""The clock that ZooKeeper sessions are measured by.

It is the boot-time clock, which runs on while the process is stopped or the machine sleeps: a server does
not stop counting then, so who sleeps through a session must find it over when it wakes."""

from __future__ import annotations

import time

NS = 1_000_000_000


def boot_clock_ns() -> int:
    """Nanoseconds since the machine's boot, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
